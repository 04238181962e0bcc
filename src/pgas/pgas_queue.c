/* SPDX-License-Identifier: Apache-2.0
 *
 * The way to ranks that are reached by NICs whose queue pairs kernels drive: a provider of either make
 * (net/nic_provider.h), opened and connected over the communicator's boot, and what kernels see of it.
 *
 *     0   open the provider, post how that went     1   all have; post cards
 *     2   connect; post how that went               3   all have
 *     then the windows are registered (comm/carrier.h), and at the end of the network's opening it runs
 *
 * Where all are asked, up to the end of registering, TERN_TRANSPORT_AUTO has another way: if one rank's NICs
 * have failed, none keeps any, and the proxy comes.
 *
 * What is registered: the window of tern_alloc as far as it has grown, the network's own, and the windows
 * that are adopted, now or later; and a bounce area, by which calls of the host move what lies in none. */
#include "pgas/pgas.h"

#include "pgas/pgas_nics.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BOUNCE_BYTES = 1 << 18, STATE_BYTES = 256 };

static int is_nic_transport(uint32_t transport)
{
    return transport == TERN_TRANSPORT_MLX5 || transport == TERN_TRANSPORT_SOFTNIC;
}

static int may_need_nics(const struct tern_network *n)
{
    return is_nic_transport(n->transport) ||
           (n->transport == TERN_TRANSPORT_AUTO && n->comm->num_domains > 1);
}

/* ---- Where this rank's NIC in software reaches peers' windows ---- */

static int is_same_process(const struct tern_comm *comm, int r)
{
    return comm->cards[r].process == comm->cards[comm->rank].process;
}

/* NULL: nowhere. A NIC may go where kernels must not: domains that TERN_DOMAIN_SIZE makes hide nothing inside
 * a process. */
static char *reach(const struct tern_comm *comm, char *const *bases, const uint64_t *owners, int r)
{
    return bases[r] != NULL ? bases[r] : is_same_process(comm, r) ? (char *)(uintptr_t)owners[r] : NULL;
}

/* All NICs of a GPU are one kernel, which keeps its processors: each rank there needs one besides. */
static enum tern_status check_device(const struct tern_comm *comm)
{
    const struct machine_info *info = &comm->machine->info;
    int ranks = comm->ranks_on_device, blocks = terni_nic_blocks(ranks);
    for (int r = 0; r < comm->num_ranks; r++) {
        const struct rank_card *c = &comm->cards[r], *mine = &comm->cards[comm->rank];
        if (memcmp(c->uuid, mine->uuid, sizeof c->uuid) == 0 && c->host == mine->host &&
            !is_same_process(comm, r)) {
            return TERN_FAIL(TERN_UNSUPPORTED,
                             "TERN_TRANSPORT_SOFTNIC: ranks %d and %d share device %d, but no process, as "
                             "ranks whose NICs are one kernel there must",
                             comm->rank, r, info->device);
        }
    }
    if (ranks > SOFTNIC_MAX_FLEET || ranks * (blocks + 1) > info->num_sms) {
        return TERN_FAIL(
            TERN_UNSUPPORTED,
            "TERN_TRANSPORT_SOFTNIC: %d ranks on device %d need %d processors for each one's NIC "
            "and one besides; it has %d, and NICs for %d",
            ranks, info->device, blocks, info->num_sms, SOFTNIC_MAX_FLEET);
    }
    return TERN_OK;
}

int terni_pgas_num_sms(const struct tern_comm *comm, uint32_t transport)
{
    const struct machine_info *info = &comm->machine->info;
    int ranks = comm->ranks_on_device, left = info->num_sms - ranks * terni_nic_blocks(ranks);
    if (transport != TERN_TRANSPORT_SOFTNIC || info->kind != TERN_MACHINE_CUDA) {
        return tern_comm_num_sms(comm);
    }
    return left > ranks ? left / ranks : 1;
}

enum tern_status terni_pgas_nics_check(const struct tern_comm *comm, uint32_t transport)
{
    if (transport != TERN_TRANSPORT_SOFTNIC) {
        return TERN_OK;
    }
    if (comm->machine->info.kind == TERN_MACHINE_CUDA) {
        TERN_TRY(check_device(comm));
    }
    for (int r = 0; r < comm->num_ranks; r++) {
        if (comm->domain_of[r] != comm->domain_of[comm->rank] && !is_same_process(comm, r)) {
            return TERN_FAIL(
                TERN_UNSUPPORTED,
                "TERN_TRANSPORT_SOFTNIC: the software NIC of rank %d cannot reach rank %d, which is "
                "in another process and another domain",
                comm->rank, r);
        }
    }
    return TERN_OK;
}

/* ---- Memory ---- */

static struct nic_provider *provider_of(struct carrier *c) { return &((struct pgas_nics *)c)->provider; }

static enum tern_status add_piece(struct carrier *c, const struct carrier_piece *piece,
                                  struct carrier_card *card)
{
    struct nic_region region;
    static_assert(sizeof region <= sizeof *card, "a card has room for a region");
    TERN_TRY(provider_of(c)->ops->add(provider_of(c), piece->memory, piece->bytes, &region));
    memcpy(card, &region, sizeof region);
    return TERN_OK;
}

static enum tern_status import_pieces(struct carrier *c, const struct carrier_piece *piece,
                                      const struct carrier_card *cards)
{
    struct nic_provider *p = provider_of(c);
    for (int r = 0; r < c->comm->num_ranks; r++) {
        char *base = reach(c->comm, piece->bases, piece->owners, r);
        struct nic_region region;
        memcpy(&region, &cards[r], sizeof region);
        if (((struct pgas_nics *)c)->wanted[r] && region.bytes != 0) {
            TERN_TRY(p->ops->import(p, r, &region, base ? base + (region.addr - piece->owners[r]) : NULL));
        }
    }
    return p->ops->refresh(p);
}

static void release_piece(struct carrier *c, const struct carrier_piece *piece)
{
    struct nic_provider *p = provider_of(c);
    uint64_t inner = (uint64_t)((char *)piece->memory - piece->bases[c->comm->rank]);
    for (int r = 0; r < c->comm->num_ranks; r++) {
        if (((struct pgas_nics *)c)->wanted[r]) {
            p->ops->forget(p, r, piece->owners[r] + inner);
        }
    }
    p->ops->remove(p, piece->memory);
    if (p->ops->refresh(p) != TERN_OK) {
        TERN_LOG(TERN_LOG_ERROR, "rank %d: %s", c->comm->rank, tern_last_error());
    }
}

static const struct carrier_ops carrier_ops = {add_piece, import_pieces, release_piece};

/* ---- Opening ---- */

static_assert(PGAS_LINK + TERN_NET_MAX_NICS * sizeof(struct softnic_link) <= PGAS_TEAMS, "one a NIC");
static_assert((int)TERN_NET_MAX_NICS == (int)SOFTNIC_MAX_NICS && (int)TERN_NET_MAX_NICS == (int)MLX5_MAX_NICS,
              "as many as providers have");

static int is_wanted(const struct tern_network *n, int r)
{
    int is_other = n->rail_ranks != 0 && r % (int)n->rail_ranks != n->comm->rank % (int)n->rail_ranks;
    int is_near = n->near_ranks != 0 && r / (int)n->near_ranks == n->comm->rank / (int)n->near_ranks;
    int is_asked = is_nic_transport(n->transport) && !is_near;
    return r != n->comm->rank && !is_other && (is_asked || n->heap->bases[r] == NULL);
}

static enum tern_status open_provider(struct tern_network *n)
{
    struct tern_comm *comm = n->comm;
    struct pgas_nics *nics = n->nics;
    char *own = n->heap->bases[comm->rank];
    struct nic_config c;
    memset(&c, 0, sizeof c);
    c.machine = n->machine;
    c.rank = comm->rank;
    c.num_ranks = comm->num_ranks;
    c.ranks_on_device = comm->ranks_on_device;
    c.local_index = terni_local_index(comm->cards, comm->rank);
    for (int r = 0; r < comm->num_ranks; r++) {
        c.num_local += comm->cards[r].host == comm->cards[comm->rank].host;
        nics->wanted[r] = is_wanted(n, r) != 0;
    }
    c.wanted = nics->wanted;
    c.num_nics = n->num_nics;
    c.num_queues = n->num_queues;
    c.abort = (const uint64_t *)(void *)(own + PGAS_ABORT);
    c.timeout_ns = (uint64_t)n->timeout_ms * 1000000u;
    c.lost = terni_pgas_lost_word(n);
    c.copies = &n->is_telling;
    c.link = own + PGAS_LINK;
    c.wire = own + n->wire_at;
    return n->transport == TERN_TRANSPORT_SOFTNIC ? terni_nic_open_softnic(&c, &nics->provider)
                                                  : terni_nic_open_mlx5(&c, &nics->provider);
}

/* Before the NIC runs, as allocating may wait for the device. */
static enum tern_status open_memory(struct tern_network *n)
{
    const struct machine_ops *ops = n->machine->ops;
    size_t queues = (size_t)n->comm->num_ranks * n->num_queues * sizeof(struct net_queue);
    void *memory = NULL;
    TERN_TRY(ops->alloc(n->machine, queues, &memory));
    n->nics->calm = (struct net_queue *)memory;
    TERN_TRY(ops->alloc(n->machine, STATE_BYTES + BOUNCE_BYTES, &memory));
    n->nics->bounce = (char *)memory;
    TERN_TRY(ops->fill(n->machine, n->nics->bounce, 0, STATE_BYTES, n->stream));
    return ops->stream_synchronize(n->machine, n->stream);
}

static enum tern_status open_nics(struct tern_network *n)
{
    struct pgas_nics *nics = (struct pgas_nics *)calloc(1, sizeof *nics);
    if (nics == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for the way to NICs");
    }
    n->nics = nics;
    nics->carrier.ops = &carrier_ops;
    nics->carrier.comm = n->comm;
    nics->wanted = (unsigned char *)calloc((size_t)n->comm->num_ranks, 1);
    if (nics->wanted == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %d ranks", n->comm->num_ranks);
    }
    TERN_TRY(open_provider(n));
    return open_memory(n);
}

/* A wrong wish is not a NIC's failure, and who has waited in vain may still find the others gone. */
static int is_nics_failure(enum tern_status status)
{
    return status != TERN_OK && status != TERN_INVALID_ARGUMENT && status != TERN_TIMEOUT;
}

/* Whether all ranks came through the steps so far. With TERN_TRANSPORT_AUTO none keeps its NICs after a
 * failure of anybody's: all hear the same verdict, hence all go on without, and n->nics is NULL. */
static enum tern_status agree(struct tern_network *n, int is_opening)
{
    int is_verdict;
    enum tern_status status = terni_comm_judge_hear(n->comm, &is_verdict);
    if (n->transport != TERN_TRANSPORT_AUTO || !is_verdict || !is_nics_failure(status)) {
        return status;
    }
    /* To have no NIC is nothing to warn of. */
    TERN_LOG(is_opening && status == TERN_UNSUPPORTED ? TERN_LOG_INFO : TERN_LOG_WARN,
             "rank %d goes without NICs: %s", n->comm->rank, tern_last_error());
    terni_carrier_finish(&n->parcels, TERN_OK); /* what is registered goes with its carrier */
    terni_pgas_nics_close(n);
    return TERN_OK;
}

static enum tern_status post_card(struct tern_network *n)
{
    const struct nic_provider *p = &n->nics->provider;
    uint32_t bytes = p->ops->card_bytes(p);
    enum tern_status status;
    void *card = calloc(1, bytes);
    if (card == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for a card of %u bytes", bytes);
    }
    p->ops->card(p, card);
    status = n->comm->boot->ops->post(n->comm->boot, card, bytes);
    free(card);
    return status;
}

/* A signal of a peer must not be seen before what it speaks of, and nothing here would fetch that (page 010).
 * Asked where a NIC was found: else there is nothing to warn of. NICs in software are no such writers. */
static enum tern_status check_order(const struct tern_network *n)
{
    const struct machine_info *info = &n->machine->info;
    if (info->nic_writes_ordered || n->transport == TERN_TRANSPORT_SOFTNIC) {
        return TERN_OK;
    }
    return TERN_FAIL(
        TERN_UNSUPPORTED,
        "device %d (%s) does not order what a NIC writes into its memory (it has no GPUDirect RDMA "
        "write ordering): a kernel that waits for a signal could see it before the data",
        info->device, info->name);
}

static enum tern_status connect_with(struct tern_network *n, const void *cards)
{
    struct tern_comm *comm = n->comm;
    struct pgas_nics *nics = n->nics;
    struct nic_provider *p = &nics->provider;
    struct nic_region unused; /* of memory that no peer names */
    enum tern_status status = TERN_OK;
    void **links, **wires;
    TERN_TRY(check_order(n));
    links = (void **)calloc(2 * (size_t)comm->num_ranks, sizeof *links);
    wires = links + comm->num_ranks;
    if (links == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %d ranks", comm->num_ranks);
    }
    for (int r = 0; status == TERN_OK && r < comm->num_ranks; r++) {
        char *base = reach(comm, n->heap->bases, n->heap->owners, r);
        links[r] = base != NULL ? base + PGAS_LINK : NULL;
        /* To memory that this rank maps: packets may still be answered when a peer has closed. */
        wires[r] = n->heap->bases[r] != NULL ? n->heap->bases[r] + n->wire_at : NULL;
        if (n->transport == TERN_TRANSPORT_SOFTNIC && nics->wanted[r] && n->heap->bases[r] == NULL &&
            comm->cards[r].device != comm->cards[comm->rank].device) {
            status = n->machine->ops->peer_enable(n->machine, comm->cards[r].device);
        }
    }
    status = status == TERN_OK ? p->ops->pause(p) : status;
    status = status == TERN_OK ? p->ops->connect(p, cards, links, wires) : status;
    free(links);
    return status == TERN_OK ? p->ops->add(p, nics->bounce + STATE_BYTES, BOUNCE_BYTES, &unused) : status;
}

static enum tern_status connect_all(struct tern_network *n)
{
    struct tern_comm *comm = n->comm;
    uint32_t bytes = n->nics->provider.ops->card_bytes(&n->nics->provider);
    enum tern_status status;
    void *cards = calloc((size_t)comm->num_ranks, bytes);
    if (cards == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %d cards", comm->num_ranks);
    }
    status = comm->boot->ops->wait(comm->boot, cards, bytes, comm->timeout_ms);
    status = status == TERN_OK ? connect_with(n, cards) : status;
    free(cards);
    return status;
}

enum tern_status terni_pgas_nics_step(struct tern_network *n, int step)
{
    if (!may_need_nics(n) || (step > 0 && n->nics == NULL)) {
        return TERN_OK;
    }
    switch (step) {
    case 0:
        return terni_comm_judge_post(n->comm, open_nics(n));
    case 1:
        TERN_TRY(agree(n, 1));
        return n->nics != NULL ? post_card(n) : TERN_OK;
    case 2:
        return terni_comm_judge_post(n->comm, connect_all(n));
    case 3:
        return agree(n, 0);
    case 4:
        TERN_TRY(terni_pgas_list_windows(n, &n->nics->carrier, 1));
        break;
    case PGAS_NICS_STEPS - 1: /* the carrier's last, which is to hear how registering went */
        return n->parcels.num != 0 ? agree(n, 0) : TERN_OK;
    }
    return terni_carrier_step(n->comm, &n->parcels, step - 4);
}

int terni_pgas_nics_reach(const struct tern_network *n, int r)
{
    return n->nics != NULL && n->nics->wanted[r];
}

void terni_pgas_nics_lay(struct tern_network *n)
{
    if (n->nics != NULL) {
        n->view.queues = n->nics->provider.ops->queues(&n->nics->provider);
    }
}

enum tern_status terni_pgas_nics_run_post(struct tern_network *n)
{
    struct nic_provider *p = n->nics != NULL ? &n->nics->provider : NULL;
    return p != NULL ? terni_comm_judge_post(n->comm, p->ops->resume(p)) : TERN_OK;
}

enum tern_status terni_pgas_nics_run_wait(struct tern_network *n)
{
    if (n->nics == NULL) {
        return TERN_OK;
    }
    TERN_TRY(terni_comm_judge_wait(n->comm));
    terni_carrier_link(&n->nics->carrier);
    return TERN_OK;
}

void terni_pgas_nics_close(struct tern_network *n)
{
    const struct machine_ops *ops = n->machine->ops;
    struct pgas_nics *nics = n->nics;
    if (nics == NULL) {
        return;
    }
    terni_carrier_unlink(&nics->carrier);
    if (nics->provider.ops != NULL) {
        nics->provider.ops->close(&nics->provider);
    }
    if (nics->calm != NULL) {
        ops->free(n->machine, nics->calm);
    }
    if (nics->bounce != NULL) {
        ops->free(n->machine, nics->bounce);
    }
    free(nics->wanted);
    free(nics);
    n->nics = NULL;
}

/* ---- For calls of the host ---- */

void terni_pgas_bounce(const struct tern_network *n, struct net_bounce *bounce)
{
    bounce->state = (struct net_bounce_state *)(void *)n->nics->bounce;
    bounce->memory = n->nics->bounce + STATE_BYTES;
    bounce->bytes = BOUNCE_BYTES;
}

/* Their abort word says that this rank gives up: a full ring would refuse the word that tells others. */
enum tern_status terni_pgas_nics_calm(struct tern_network *n, struct tern_stream *stream, const void **queues)
{
    const struct machine_ops *ops = n->machine->ops;
    size_t num = (size_t)n->comm->num_ranks * n->num_queues;
    struct net_queue *image = (struct net_queue *)calloc(num, sizeof *image);
    enum tern_status status;
    if (image == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %zu queues", num);
    }
    status = ops->copy(n->machine, image, n->view.queues, num * sizeof *image, stream);
    status = status == TERN_OK ? ops->stream_synchronize(n->machine, stream) : status;
    for (size_t i = 0; i < num; i++) {
        image[i].abort = NULL;
    }
    if (status == TERN_OK) {
        status = ops->copy(n->machine, n->nics->calm, image, num * sizeof *image, stream);
    }
    status = status == TERN_OK ? ops->stream_synchronize(n->machine, stream) : status;
    free(image);
    *queues = n->nics->calm;
    return status;
}

int terni_pgas_nics_explain(const struct tern_network *n, int peer, uint32_t queue, char *text, size_t bytes)
{
    struct nic_provider *p = &n->nics->provider;
    char why[TERN_SENTENCE_BYTES];
    int is_first = p->ops->explain(p, peer, queue, why, sizeof why);
    snprintf(text, bytes, "%s%.*s", why[0] != '\0' ? ": " : "", (int)sizeof why - 1, why);
    return is_first;
}

enum tern_status terni_pgas_nics_traffic(const struct tern_network *n, struct softnic_traffic *traffic)
{
    if (n == NULL || n->nics == NULL) {
        memset(traffic, 0, sizeof *traffic);
        return TERN_OK;
    }
    return terni_nic_traffic(&n->nics->provider, traffic);
}

/* The queue of kernels that it is about; syndrome 0: it has not failed. */
static enum tern_status read_syndrome(const struct tern_network *n, const struct net_queue *q,
                                      uint32_t *syndrome)
{
    uint64_t error = 0;
    if (q->state != NULL) {
        TERN_TRY(terni_pgas_move(n, &error, &q->state->error, sizeof error));
    }
    *syndrome = error != 0 ? queue_error_syndrome(error) : 0;
    return TERN_OK;
}

void terni_pgas_nics_print_lost(const struct tern_network *n, char *text, size_t bytes)
{
    size_t num = (size_t)n->comm->num_ranks * n->num_queues;
    struct net_queue *image;
    uint64_t lost = 0;
    if (terni_pgas_move(n, &lost, terni_pgas_lost_word(n), sizeof lost) != TERN_OK || lost == 0) {
        return;
    }
    image = (struct net_queue *)calloc(num, sizeof *image);
    if (image != NULL && terni_pgas_move(n, image, n->view.queues, num * sizeof *image) == TERN_OK) {
        for (size_t i = 0; i < num && text[0] == '\0'; i++) {
            uint32_t syndrome = 0, queue = (uint32_t)(i % n->num_queues);
            int peer = (int)(i / n->num_queues);
            char why[TERN_SENTENCE_BYTES / 4];
            if (read_syndrome(n, &image[i], &syndrome) != TERN_OK || !net_syndrome_is_lost(syndrome)) {
                continue;
            }
            if (terni_pgas_nics_explain(n, peer, queue, why, sizeof why)) {
                snprintf(text, bytes, "; queue %u to rank %d has failed with syndrome 0x%02x%s", queue, peer,
                         syndrome, why);
            } else {
                snprintf(text, bytes, "; rank %d is lost: queue %u to it has failed with syndrome 0x%02x, %s",
                         peer, queue, syndrome, terni_syndrome_text(syndrome));
            }
        }
    }
    free(image);
}
