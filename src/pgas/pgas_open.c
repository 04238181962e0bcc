/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening and closing a network. Opening is a collective, cut where it would wait for peers, so that one
 * thread can take several ranks through it:
 *
 *     0   check the configuration, allocate; post both    1   compare with all; begin the own window
 *     2   end it; post                                    3   all have one
 *     then the steps of NICs (pgas_queue.c), or of a proxy (pgas_proxy.c), and at the end
 *         say which way leads to each peer; post          all are whole; NICs run, post that
 *         all do
 *
 * What can fail on one rank comes before the last judgement. NICs run once all ranks are whole: one that is a
 * kernel would be in the way of what others still allocate on its device.
 *
 * A rank that fails posts its failure like any other result. */
#include "pgas/pgas.h"

#include "net/nic_place.h"
#include "net/nic_provider.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What every rank must agree on, as it travels. */
struct net_card {
    uint32_t num_queues, num_teams, timeout_ms, transport, num_nics;
    uint32_t wanted_queues; /* so that each NIC of this rank has one; 0: the program has said how many */
    uint32_t needs_proxy;
    uint32_t wire_bytes;
    int32_t status; /* of the rank's own part */
    char reason[TERN_SENTENCE_BYTES - 8];
};

uint64_t terni_pgas_team_stride(const struct tern_comm *comm) { return (uint64_t)comm->num_ranks * 8; }

uint64_t terni_pgas_own_bytes(int num_ranks, uint32_t num_teams)
{
    return PGAS_TEAMS + (uint64_t)num_teams * (uint64_t)num_ranks * 8;
}

uint64_t terni_pgas_state_stride(const struct tern_comm *comm)
{
    return 8 + ((uint64_t)comm->num_ranks * 4 + 7) / 8 * 8;
}

enum tern_status terni_pgas_move(const struct tern_network *n, void *dst, const void *src, size_t bytes)
{
    const struct machine_ops *ops = n->machine->ops;
    TERN_TRY(ops->copy(n->machine, dst, src, bytes, n->stream));
    return ops->stream_synchronize(n->machine, n->stream);
}

static enum tern_status choose(struct tern_network *n, const struct tern_net_config *c)
{
    struct tern_comm *comm = n->comm;
    TERN_TRY(terni_check_range("num_queues", c->num_queues, 0, TERN_NET_MAX_QUEUES));
    TERN_TRY(terni_check_range("num_teams", c->num_teams, 0, TERN_NET_MAX_TEAMS));
    TERN_TRY(terni_check_range("transport", c->transport, TERN_TRANSPORT_AUTO, TERN_TRANSPORT_SOFTNIC));
    TERN_TRY(terni_check_range("num_nics", c->num_nics, 0, TERN_NET_MAX_NICS));
    n->num_nics = c->num_nics;
    n->num_queues = c->num_queues != 0 ? c->num_queues : c->num_nics != 0 ? c->num_nics : 1;
    if (n->num_nics > n->num_queues) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "num_nics is %u, but num_queues %u: some would have none",
                         n->num_nics, n->num_queues);
    }
    n->num_teams = c->num_teams != 0 ? c->num_teams : 4;
    n->timeout_ms = c->timeout_ms != 0 ? c->timeout_ms : comm->timeout_ms;
    n->transport = c->transport;
    if (n->transport == TERN_TRANSPORT_PROXY && strcmp(terni_env(TERN_ENV_PROXY), "none") == 0) {
        return TERN_FAIL(TERN_UNSUPPORTED, "TERN_TRANSPORT_PROXY, but %s=none",
                         terni_env_name(TERN_ENV_PROXY));
    }
    TERN_TRY(terni_pgas_nics_check(comm, n->transport));
    if (n->transport == TERN_TRANSPORT_SOFTNIC) {
        TERN_TRY(terni_nic_wire_bytes(comm->num_ranks, n->num_nics, &n->wire_bytes));
    }
    for (int r = 0; r < comm->num_ranks && n->transport == TERN_TRANSPORT_P2P; r++) {
        if (comm->domain_of[r] != comm->domain_of[comm->rank]) {
            return TERN_FAIL(TERN_UNSUPPORTED,
                             "TERN_TRANSPORT_P2P: rank %d cannot address rank %d, which is in another domain",
                             comm->rank, r);
        }
    }
    return TERN_OK;
}

/* Device memory: a state for each team place, routes, the claims, the count of lost queues. */
static uint64_t routes_at(const struct tern_network *n)
{
    return n->num_teams * terni_pgas_state_stride(n->comm);
}

static uint64_t claim_at(const struct tern_network *n)
{
    return (routes_at(n) + (uint64_t)n->comm->num_ranks + 15) / 16 * 16;
}

static uint64_t lost_at(const struct tern_network *n)
{
    return claim_at(n) + (PGAS_TELLERS * sizeof(uint32_t) + 7) / 8 * 8;
}

static uint64_t device_bytes(const struct tern_network *n) { return lost_at(n) + sizeof(uint64_t); }

uint64_t *terni_pgas_lost_word(const struct tern_network *n)
{
    return (uint64_t *)(void *)(n->device + lost_at(n));
}

static enum tern_status allocate(struct tern_network *n)
{
    const struct machine_ops *ops = n->machine->ops;
    void *device = NULL, *host = NULL, *host_device = NULL;
    n->places = (struct pgas_place *)calloc(n->num_teams, sizeof *n->places);
    for (uint32_t i = 0; n->places != NULL && i < n->num_teams; i++) {
        n->places[i].members = (int32_t *)calloc((size_t)n->comm->num_ranks, sizeof(int32_t));
        if (n->places[i].members == NULL) {
            return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %u device teams", n->num_teams);
        }
    }
    if (n->places == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %u device teams", n->num_teams);
    }
    n->routes = (unsigned char *)calloc((size_t)n->comm->num_ranks, 1);
    if (n->routes == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %d routes", n->comm->num_ranks);
    }
    if (n->has_stream) {
        TERN_TRY(ops->stream_open(n->machine, &n->stream));
    } else {
        n->stream = ops->own_stream(n->machine);
    }
    TERN_TRY(ops->host_alloc(n->machine,
                             sizeof *n->host + (size_t)n->comm->num_ranks * sizeof n->host->told[0], &host,
                             &host_device));
    n->host = (struct pgas_host *)host;
    n->host_device = (struct pgas_host *)host_device;
    TERN_TRY(ops->alloc(n->machine, device_bytes(n), &device));
    n->device = (char *)device;
    TERN_TRY(ops->fill(n->machine, n->device, 0, device_bytes(n), n->stream));
    return ops->stream_synchronize(n->machine, n->stream);
}

/* On failure *network may be an object to close. */
static enum tern_status create(struct tern_comm *comm, const struct tern_net_config *config,
                               uint64_t window_bytes, struct tern_network **network)
{
    struct tern_network *n = (struct tern_network *)calloc(1, sizeof *n);
    if (n == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for a network of %zu bytes", sizeof *n);
    }
    n->comm = comm;
    n->machine = comm->machine;
    n->has_stream =
        window_bytes == 0; /* else nobody calls it but the object, which does not wait for peers */
    terni_comm_adopt(comm, &n->child);
    *network = n;
    TERN_TRY(choose(n, config));
    return allocate(n);
}

/* A default number of queues grows to the number of NICs that TERN_NICS names. */
static uint32_t wanted_queues(const struct tern_network *n, const struct tern_net_config *c)
{
    struct nic_wish wish = {terni_env(TERN_ENV_NICS), 0, 0, 0};
    uint32_t named = 0;
    if (c->num_queues != 0) {
        return 0;
    }
    if (n->transport == TERN_TRANSPORT_AUTO || n->transport == TERN_TRANSPORT_MLX5) {
        wish.local_index = terni_local_index(n->comm->cards, n->comm->rank);
        named = (uint32_t)terni_nic_num_named(&wish);
        named = named < TERN_NET_MAX_NICS ? named : TERN_NET_MAX_NICS;
    }
    return named > n->num_queues ? named : n->num_queues;
}

static enum tern_status open_post(struct tern_comm *comm, const struct tern_net_config *config,
                                  uint64_t window_bytes, struct tern_network **network)
{
    struct net_card card;
    memset(&card, 0, sizeof card);
    card.status = (int32_t)create(comm, config, window_bytes, network);
    if (card.status == TERN_OK) {
        card.num_queues = (*network)->num_queues;
        card.wanted_queues = wanted_queues(*network, config);
        card.num_teams = (*network)->num_teams;
        card.timeout_ms = (*network)->timeout_ms;
        card.transport = (*network)->transport;
        card.num_nics = (*network)->num_nics;
        card.needs_proxy = (uint32_t)terni_pgas_needs_proxy(comm, card.transport);
        card.wire_bytes = (uint32_t)(*network)->wire_bytes;
    } else {
        snprintf(card.reason, sizeof card.reason, "%s", tern_last_error());
    }
    return comm->boot->ops->post(comm->boot, &card, sizeof card);
}

static enum tern_status compare(int rank, const char *field, uint32_t mine, uint32_t theirs)
{
    return mine == theirs ? TERN_OK
                          : TERN_FAIL(TERN_MISMATCH, "%s of the network is %u here but %u on rank %d", field,
                                      mine, theirs, rank);
}

/* The failures of ranks come before differences between them. */
static enum tern_status judge(const struct tern_comm *comm, const struct net_card *cards)
{
    const struct net_card *mine = &cards[comm->rank];
    for (int r = 0; r < comm->num_ranks; r++) {
        const struct net_card *c = mine->status != TERN_OK ? mine : &cards[r];
        if (c->status != TERN_OK) {
            return TERN_FAIL((enum tern_status)c->status, "rank %d: %.*s", c == mine ? comm->rank : r,
                             (int)sizeof c->reason, c->reason);
        }
    }
    for (int r = 0; r < comm->num_ranks; r++) {
        TERN_TRY(compare(r, "num_queues", mine->num_queues, cards[r].num_queues));
        TERN_TRY(compare(r, "num_teams", mine->num_teams, cards[r].num_teams));
        TERN_TRY(compare(r, "timeout_ms", mine->timeout_ms, cards[r].timeout_ms));
        TERN_TRY(compare(r, "num_nics", mine->num_nics, cards[r].num_nics));
        TERN_TRY(compare(r, "transport", mine->transport, cards[r].transport));
        TERN_TRY(compare(r, "a proxy (TERN_PROXY is none, or not)", mine->needs_proxy, cards[r].needs_proxy));
        TERN_TRY(compare(r, "memory for packets", mine->wire_bytes, cards[r].wire_bytes));
    }
    return TERN_OK;
}

/* As many queues as the rank wants that wants most, where none has said how many. */
static uint32_t agreed_queues(const struct tern_comm *comm, const struct net_card *cards)
{
    uint32_t most = 0;
    for (int r = 0; r < comm->num_ranks; r++) {
        if (cards[r].wanted_queues == 0) {
            return cards[r].num_queues;
        }
        most = cards[r].wanted_queues > most ? cards[r].wanted_queues : most;
    }
    return most;
}

static enum tern_status compare_with_all(struct tern_comm *comm, struct tern_network *n)
{
    enum tern_status status;
    struct net_card *cards = (struct net_card *)calloc((size_t)comm->num_ranks, sizeof *cards);
    if (cards == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %d cards", comm->num_ranks);
    }
    status = comm->boot->ops->wait(comm->boot, cards, sizeof *cards, comm->timeout_ms);
    if (status == TERN_OK) {
        status = judge(comm, cards);
    }
    if (status == TERN_OK) { /* so this rank's own part went well */
        n->num_queues = agreed_queues(comm, cards);
    }
    free(cards);
    return status;
}

/* Loads and stores where they lead, but for transports that take every pair for which they have queues. */
static void choose_routes(struct tern_network *n)
{
    int takes_all = n->transport != TERN_TRANSPORT_AUTO && n->transport != TERN_TRANSPORT_P2P;
    for (int r = 0; r < n->comm->num_ranks; r++) {
        unsigned char other = terni_pgas_nics_reach(n, r) ? NET_ROUTE_QUEUE
                              : n->courier != NULL        ? NET_ROUTE_RING
                                                          : NET_ROUTE_NONE;
        int leads =
            n->heap->bases[r] != NULL && (!takes_all || other == NET_ROUTE_NONE || r == n->comm->rank);
        n->routes[r] = leads ? NET_ROUTE_P2P : other;
    }
}

/* As kernels look them up: with what a link lacks. */
static enum tern_status write_routes(struct tern_network *n)
{
    size_t num = (size_t)n->comm->num_ranks;
    enum tern_status status;
    unsigned char *image = (unsigned char *)calloc(num, 1);
    if (image == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %zu routes", num);
    }
    for (size_t r = 0; r < num; r++) {
        int lacks = n->routes[r] == NET_ROUTE_P2P && n->comm->lacks_atomics[r];
        image[r] = (unsigned char)(n->routes[r] | (lacks ? NET_ROUTE_LACKS_ATOMICS : 0));
    }
    status = terni_pgas_move(n, n->device + routes_at(n), image, num);
    free(image);
    return status;
}

void terni_pgas_lay_near(const struct tern_network *n, char *const *bases, struct tern_net *v)
{
    const struct tern_comm *comm = n->comm;
    int first = 0;
    while (n->routes[first] != NET_ROUTE_P2P) { /* this rank's own route is */
        first++;
    }
    v->first_near = first;
    for (int r = first; r < comm->num_ranks && r - first < TERN_NET_NUM_NEAR; r++) {
        int leads = n->routes[r] == NET_ROUTE_P2P && !comm->lacks_atomics[r];
        v->near_bases[r - first] = leads ? bases[r] : NULL;
    }
}

static enum tern_status complete(struct tern_network *n)
{
    struct tern_comm *comm = n->comm;
    struct tern_net *v = &n->view;
    choose_routes(n);
    TERN_TRY(write_routes(n));
    v->size = sizeof *v;
    v->rank = comm->rank;
    v->num_ranks = comm->num_ranks;
    v->num_queues = n->num_queues;
    v->timeout_ns = (uint64_t)n->timeout_ms * 1000000u;
    v->heap.own = comm->heap->bases[comm->rank];
    v->heap.bytes = comm->heap->max_bytes;
    v->routes = (unsigned char *)n->device + routes_at(n);
    v->abort_word = (uint64_t *)(void *)(n->heap->bases[comm->rank] + PGAS_ABORT);
    v->record = &n->host_device->records[PGAS_KERNELS];
    v->claim = (uint32_t *)(void *)(n->device + claim_at(n));
    terni_pgas_lay_near(n, comm->heap->bases, v);
    TERN_TRY(terni_pgas_lay_rings(n));
    terni_pgas_nics_lay(n);
    return terni_network_view(n, &n->first);
}

/* The steps of NICs, then of a proxy. */
static enum tern_status carry(struct tern_network *n, int step)
{
    enum tern_status status = step < PGAS_NICS_STEPS ? terni_pgas_nics_step(n, step)
                                                     : terni_pgas_proxy_step(n, step - PGAS_NICS_STEPS);
    int is_last = step == PGAS_NICS_STEPS - 1 || step == PGAS_NICS_STEPS + PGAS_PROXY_STEPS - 1;
    if (status == TERN_OK && is_last) {
        terni_carrier_finish(&n->parcels, TERN_OK);
    }
    return status;
}

static uint64_t window_of(struct tern_network *n, uint64_t wanted)
{
    uint64_t words = terni_pgas_own_bytes(n->comm->num_ranks, n->num_teams);
    words = wanted > words ? wanted : words;
    n->wire_at = (words + 63) / 64 * 64;
    return n->wire_bytes != 0 ? n->wire_at + n->wire_bytes : words;
}

enum tern_status terni_network_open_step(struct tern_comm *comm, const struct tern_net_config *config,
                                         uint64_t window_bytes, int step, struct tern_network **network)
{
    switch (step) {
    case 0:
        return open_post(comm, config, window_bytes, network);
    case 1:
        TERN_TRY(compare_with_all(comm, *network)); /* passes only if this rank's own part went well */
        return terni_heap_begin(comm, window_of(*network, window_bytes), &(*network)->heap);
    case 2:
        return terni_comm_judge_post(comm, terni_heap_end(comm, (*network)->heap));
    case 3:
        return terni_comm_judge_wait(comm);
    case NET_OPEN_STEPS - 3:
        return terni_comm_judge_post(comm, complete(*network));
    case NET_OPEN_STEPS - 2:
        TERN_TRY(terni_comm_judge_wait(comm));
        return terni_pgas_nics_run_post(*network);
    case NET_OPEN_STEPS - 1:
        TERN_TRY(terni_pgas_nics_run_wait(*network));
        if ((*network)->courier != NULL) {
            terni_carrier_link(terni_courier_carrier((*network)->courier));
        }
        return TERN_OK;
    default:
        return carry(*network, step - 4);
    }
}

void terni_network_close(struct tern_network *n)
{
    if (n == NULL) {
        return;
    }
    const struct machine_ops *ops = n->machine->ops;
    terni_carrier_finish(&n->parcels, TERN_OK); /* what is registered goes with its carrier */
    terni_pgas_nics_close(n);                   /* first: a NIC that is a kernel holds up the rest */
    if (n->has_stream && n->stream != NULL) {
        ops->stream_close(n->machine, n->stream);
    }
    terni_pgas_proxy_close(n);
    terni_pgas_tables_close(n);
    terni_heap_close(n->heap);
    if (n->host != NULL) {
        ops->host_free(n->machine, n->host);
    }
    if (n->device != NULL) {
        ops->free(n->machine, n->device);
    }
    for (uint32_t i = 0; n->places != NULL && i < n->num_teams; i++) {
        free(n->places[i].members);
    }
    free(n->places);
    free(n->routes);
    terni_comm_disown(n->comm, &n->child);
    free(n);
}
