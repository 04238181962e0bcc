/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens and closes a provider as a whole, exchanges cards, and answers after faults. When a step of opening
 * fails, close takes back those before it. */
#include "net/softnic_packets.h"

#include <stdlib.h>
#include <string.h>

enum { CARD_FORMAT = 0x54534e32, DEFAULT_BLOCKS = 1024, DEFAULT_BATCH = 32, MAX_NIC_BLOCKS = 64 };

/* What two ranks must agree on; and how many peers the rank has, behind it the place of each rank among
 * them. */
struct card {
    uint32_t format, rank, num_ranks, num_queues;
    uint32_t mtu, adaptive, first_psn, num_nics;
    uint32_t num_peers, reserved;
    unsigned char clock[16]; /* of whoever runs the NIC: a GPU's uuid; zeros: the host's */
};

void terni_softnic_config_init(struct softnic_config *c, struct machine *machine, int rank, int num_ranks)
{
    memset(c, 0, sizeof *c);
    c->machine = machine;
    c->rank = rank;
    c->num_ranks = num_ranks;
    c->num_queues = c->num_nics = 1;
    c->num_blocks = DEFAULT_BLOCKS;
    c->batch_blocks = DEFAULT_BATCH;
    c->timeout_ns = 30000000000ull;
    c->nic_blocks = c->nic_warps = 8;
}

static enum tern_status check_config(const struct softnic_config *c)
{
    const struct {
        const char *name;
        int64_t value, low, high;
    } ranges[] = {
        {"num_ranks", c->num_ranks, 1, 65536},
        {"rank", c->rank, 0, (int64_t)c->num_ranks - 1},
        {"num_nics", c->num_nics, 1, SOFTNIC_MAX_NICS},
        {"num_queues", c->num_queues, 1, SOFTNIC_MAX_QUEUES},
        {"num_blocks", c->num_blocks, NET_QUEUE_MIN_BLOCKS,
         c->cq_ring ? (int64_t)NET_QUEUE_MAX_CQ_RING_BLOCKS : (int64_t)WQE_MAX_RING_BLOCKS},
        {"batch_blocks", c->batch_blocks, 1, WQE_MAX_RING_BLOCKS},
        {"nic_blocks", c->nic_blocks, 1, MAX_NIC_BLOCKS},
        {"nic_warps", c->nic_warps, 1, 8},
        {"runner", c->runner, SOFTNIC_AUTO, SOFTNIC_KERNEL},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s of a software NIC is %lld; it is %lld to %lld",
                             ranges[i].name, (long long)ranges[i].value, (long long)ranges[i].low,
                             (long long)ranges[i].high);
        }
    }
    if ((c->num_blocks & (c->num_blocks - 1)) != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "a send ring of %u blocks: it is a power of two",
                         c->num_blocks);
    }
    if (c->runner == SOFTNIC_THREAD && c->machine->info.kind != TERN_MACHINE_CPU) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "a software NIC in a thread cannot reach device %d's memory",
                         c->machine->info.device);
    }
    return TERN_OK;
}

static enum tern_status open_peers(struct softnic_provider *p)
{
    const struct softnic_config *c = &p->config;
    p->peers = (struct softnic_peer *)calloc((size_t)c->num_ranks, sizeof *p->peers);
    if (p->peers == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %d peers", c->num_ranks);
    }
    for (int r = 0; r < c->num_ranks; r++) {
        p->peers[r].is_wanted = c->wanted != NULL ? c->wanted[r] != 0 : r != c->rank;
        p->peers[r].order = p->num_peers;
        p->num_places += p->peers[r].is_wanted ? c->num_queues : 0;
        p->num_peers += p->peers[r].is_wanted != 0;
    }
    return TERN_OK;
}

static int is_modelled(const struct softnic_rates *r)
{
    return r->bytes_per_s != 0 || r->receive_bytes_per_s != 0 || r->messages_per_s != 0 || r->latency_ns != 0;
}

static enum tern_status open_all(struct softnic_provider *p)
{
    const struct softnic_config *c = &p->config;
    int in_thread = c->runner == SOFTNIC_THREAD ||
                    (c->runner == SOFTNIC_AUTO && p->machine->info.kind == TERN_MACHINE_CPU);
    TERN_TRY(terni_softnic_model(&c->rates, &p->model));
    p->is_modelled = is_modelled(&c->rates);
    TERN_TRY(open_peers(p));
    p->is_kernel = !in_thread;
    p->crew.machine = p->machine;
    if (p->machine->info.kind == TERN_MACHINE_CUDA && terni_softnic_has_packets(p)) {
        /* Their kernel would have to end for whatever waits for the device, as softnic_fleet.h's does. */
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "rank %d: NICs in software speak packets on the cpu machine only so far, not on %s",
                         c->rank, p->machine->info.name);
    }
    if (p->is_kernel && terni_softnic_has_packets(p)) {
        TERN_TRY(p->machine->ops->stream_open(p->machine, &p->stream));
    } else if (p->is_kernel) {
        TERN_TRY(terni_softnic_enlist(&p->crew));
    }
    TERN_TRY(terni_softnic_tables_open(p));
    TERN_TRY(terni_softnic_memory_open(p));
    TERN_TRY(terni_softnic_tables_fill(p));
    return terni_softnic_packets_open(p);
}

enum tern_status terni_softnic_open(const struct softnic_config *config, struct softnic_provider **provider)
{
    struct softnic_provider *p;
    enum tern_status status;
    TERN_TRY(check_config(config));
    p = (struct softnic_provider *)calloc(1, sizeof *p);
    if (p == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for a software NIC");
    }
    p->config = *config;
    p->machine = config->machine;
    status = open_all(p);
    if (status != TERN_OK) {
        terni_softnic_close(p);
        return status;
    }
    p->config.wanted = NULL; /* the caller's; not looked at again */
    *provider = p;
    return TERN_OK;
}

/* What a network that errs has done. It does not run. */
static void log_traffic(const struct softnic_provider *p)
{
    struct softnic_traffic t;
    memset(&t, 0, sizeof t);
    if (p->is_connected && terni_softnic_has_packets(p) && terni_softnic_packets_count(p, &t) == TERN_OK) {
        TERN_LOG(
            TERN_LOG_INFO,
            "rank %d: its NIC has sent %llu packets, %llu of them lost, %llu doubled, %llu delayed, %llu "
            "times some again; it took %llu out of order",
            p->config.rank, (unsigned long long)t.sent, (unsigned long long)t.lost,
            (unsigned long long)t.doubled, (unsigned long long)t.delayed, (unsigned long long)t.resent,
            (unsigned long long)t.reordered);
    }
}

void terni_softnic_close(struct softnic_provider *p)
{
    if (p == NULL) {
        return;
    }
    terni_softnic_run_close(p);
    log_traffic(p);
    terni_softnic_packets_close(p);
    terni_softnic_tables_close(p);
    terni_softnic_memory_close(p);
    free(p->peers);
    free(p);
}

/* ---- Cards ---- */

uint32_t terni_softnic_card_bytes(const struct softnic_provider *p)
{
    return sizeof(struct card) + (uint32_t)p->config.num_ranks * (uint32_t)sizeof(uint32_t);
}

static void clock_of(const struct softnic_provider *p, unsigned char clock[16])
{
    memset(clock, 0, 16);
    if (p->machine->info.kind == TERN_MACHINE_CUDA) {
        memcpy(clock, p->machine->info.uuid, 16);
    }
}

void terni_softnic_card(const struct softnic_provider *p, void *card)
{
    const struct rc_config *wire = &p->config.wire.config;
    struct card c = {CARD_FORMAT,
                     (uint32_t)p->config.rank,
                     (uint32_t)p->config.num_ranks,
                     p->config.num_queues,
                     wire->mtu,
                     wire->adaptive,
                     wire->first_psn,
                     p->config.num_nics,
                     p->num_peers,
                     0,
                     {0}};
    clock_of(p, c.clock);
    memcpy(card, &c, sizeof c);
    for (int r = 0; r < p->config.num_ranks; r++) {
        uint32_t order = p->peers[r].order;
        memcpy((char *)card + sizeof c + (size_t)r * sizeof order, &order, sizeof order);
    }
}

static enum tern_status check_card(const struct softnic_provider *p, int peer, const struct card *c)
{
    if (c->format != CARD_FORMAT || c->rank != (uint32_t)peer) {
        return TERN_FAIL(TERN_MISMATCH, "rank %d has sent no card of a software NIC (0x%x, rank %u)", peer,
                         c->format, c->rank);
    }
    if (c->num_ranks != (uint32_t)p->config.num_ranks || c->num_queues != p->config.num_queues) {
        return TERN_FAIL(TERN_MISMATCH, "rank %d has %u queues to each of %u ranks, rank %d has %u to %d",
                         peer, c->num_queues, c->num_ranks, p->config.rank, p->config.num_queues,
                         p->config.num_ranks);
    }
    if (c->num_nics != p->config.num_nics) {
        return TERN_FAIL(TERN_MISMATCH, "rank %d has %u NICs, rank %d has %u", peer, c->num_nics,
                         p->config.rank, p->config.num_nics);
    }
    if (c->mtu != p->config.wire.config.mtu || c->adaptive != p->config.wire.config.adaptive ||
        c->first_psn != p->config.wire.config.first_psn) {
        return TERN_FAIL(TERN_MISMATCH,
                         "rank %d's NIC speaks packets of %u bytes (0: none), adaptive %u, from %u on; rank "
                         "%d's of %u, %u, from %u on",
                         peer, c->mtu, c->adaptive, c->first_psn, p->config.rank, p->config.wire.config.mtu,
                         p->config.wire.config.adaptive, p->config.wire.config.first_psn);
    }
    return TERN_OK;
}

/* Where peers' receiving sides are, into the queue pairs, and whether they count by clocks of their own. */
static enum tern_status put_links(struct softnic_provider *p, struct softnic_link *const *links)
{
    struct softnic_qp *qps;
    enum tern_status status;
    TERN_TRY(terni_softnic_read_qps(p, &qps));
    for (int r = 0; r < p->config.num_ranks; r++) {
        for (uint32_t i = 0; p->peers[r].is_wanted && i < p->config.num_queues; i++) {
            struct softnic_qp *qp = &qps[terni_softnic_place(p, r, i)];
            qp->peer_link = links[r] != NULL ? links[r] + i % p->config.num_nics : NULL;
            qp->has_other_clock = qp->peer_link != NULL && p->peers[r].has_other_clock;
        }
    }
    status = terni_softnic_write_qps(p, qps);
    free(qps);
    return status;
}

/* Each card fits; seats: [num_ranks] this rank's among the peers of each. */
static enum tern_status read_cards(const struct softnic_provider *p, const char *cards,
                                   struct softnic_seat *seats)
{
    unsigned char clock[16];
    clock_of(p, clock);
    for (int r = 0; r < p->config.num_ranks; r++) {
        const char *at = cards + (size_t)r * terni_softnic_card_bytes(p);
        struct card c;
        memcpy(&c, at, sizeof c);
        if (p->peers[r].is_wanted) {
            TERN_TRY(check_card(p, r, &c));
        }
        p->peers[r].has_other_clock = memcmp(c.clock, clock, sizeof clock) != 0;
        seats[r].num_peers = c.num_peers;
        memcpy(&seats[r].order, at + sizeof c + (size_t)p->config.rank * sizeof(uint32_t), sizeof(uint32_t));
    }
    return TERN_OK;
}

enum tern_status terni_softnic_connect(struct softnic_provider *p, const void *cards,
                                       struct softnic_link *const *links, void *const *wires)
{
    struct softnic_seat *seats;
    enum tern_status status;
    if (p->is_connected) {
        return TERN_FAIL(TERN_BAD_STATE, "the NIC of rank %d is connected already", p->config.rank);
    }
    seats = (struct softnic_seat *)calloc((size_t)p->config.num_ranks, sizeof *seats);
    if (seats == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %d cards", p->config.num_ranks);
    }
    status = read_cards(p, (const char *)cards, seats);
    if (status == TERN_OK && links != NULL && p->is_modelled) {
        status = put_links(p, links);
    }
    if (status == TERN_OK && terni_softnic_has_packets(p)) {
        status = terni_softnic_packets_connect(p, seats, wires);
    }
    free(seats);
    TERN_TRY(status);
    p->is_connected = 1;
    return terni_softnic_run_open(p);
}

/* ---- After a fault ---- */

/* After a pause: the NIC serves others, whatever became of what it paused for. */
static enum tern_status go_on(struct softnic_provider *p, enum tern_status outcome)
{
    enum tern_status status = terni_softnic_resume(p);
    return outcome != TERN_OK ? outcome : status;
}

enum tern_status terni_softnic_abort(struct softnic_provider *p)
{
    struct softnic_qp *qps = NULL;
    enum tern_status status;
    TERN_TRY(terni_softnic_pause(p));
    status = terni_softnic_read_qps(p, &qps);
    for (uint32_t i = 0; status == TERN_OK && i < p->num_places; i++) {
        qps[i].state = SOFTNIC_ERROR;
    }
    status = status == TERN_OK ? terni_softnic_write_qps(p, qps) : status;
    free(qps);
    if (status == TERN_OK && terni_softnic_has_packets(p) && p->is_connected) {
        status = terni_softnic_packets_break(p);
    }
    return go_on(p, status);
}

enum tern_status terni_softnic_traffic(struct softnic_provider *p, struct softnic_traffic *traffic)
{
    memset(traffic, 0, sizeof *traffic);
    if (!p->is_connected || !terni_softnic_has_packets(p)) {
        return TERN_OK;
    }
    TERN_TRY(terni_softnic_pause(p));
    return go_on(p, terni_softnic_packets_count(p, traffic));
}

enum tern_status terni_softnic_inspect(struct softnic_provider *p, int peer, uint32_t index,
                                       struct softnic_state *state)
{
    struct softnic_qp *qps = NULL;
    const struct softnic_qp *qp;
    enum tern_status status;
    if (terni_softnic_queue(p, peer, index) == NULL) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "rank %d has no queue %u to rank %d", p->config.rank, index,
                         peer);
    }
    TERN_TRY(terni_softnic_pause(p));
    status = terni_softnic_read_qps(p, &qps);
    if (status != TERN_OK) {
        return go_on(p, status);
    }
    qp = &qps[terni_softnic_place(p, peer, index)];
    state->nic = index % p->config.num_nics;
    state->posted = qp->posted;
    state->fetched = qp->fetched;
    state->reported = qp->reported;
    state->is_error = qp->state == SOFTNIC_ERROR;
    state->num_wrong = (uint32_t)(qp->num_overwritten + qp->num_overruns + qp->num_wrong_bells);
    state->refusal = qp->refusal;
    free(qps);
    return terni_softnic_resume(p);
}
