/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening and closing a network. Opening is a collective, cut where it would wait for peers, so that one
 * thread can take several ranks through it:
 *
 *     0   check the configuration, allocate; post both    1   compare with all; begin the own window
 *     2   end it; say which way leads to each peer; post  3   all are whole
 *
 * A rank that fails posts its failure like any other result. */
#include "pgas/pgas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What every rank must agree on, as it travels. */
struct net_card {
    uint32_t num_queues, num_teams, timeout_ms, transport;
    int32_t status; /* of the rank's own part */
    char reason[TERN_SENTENCE_BYTES - 4];
};

uint64_t terni_pgas_team_stride(const struct tern_comm *comm) { return (uint64_t)comm->num_ranks * 8; }

uint64_t terni_pgas_state_stride(const struct tern_comm *comm)
{
    return 8 + ((uint64_t)comm->num_ranks * 4 + 7) / 8 * 8;
}

enum tern_status terni_pgas_move(struct tern_network *n, void *dst, const void *src, size_t bytes)
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
    TERN_TRY(terni_check_range("transport", c->transport, TERN_TRANSPORT_AUTO, TERN_TRANSPORT_P2P));
    n->num_queues = c->num_queues != 0 ? c->num_queues : 1;
    n->num_teams = c->num_teams != 0 ? c->num_teams : 4;
    n->timeout_ms = c->timeout_ms != 0 ? c->timeout_ms : comm->timeout_ms;
    n->transport = c->transport;
    for (int r = 0; r < comm->num_ranks && n->transport == TERN_TRANSPORT_P2P; r++) {
        if (comm->domain_of[r] != comm->domain_of[comm->rank]) {
            return TERN_FAIL(TERN_UNSUPPORTED,
                             "TERN_TRANSPORT_P2P: rank %d cannot address rank %d, which is in another domain",
                             comm->rank, r);
        }
    }
    return TERN_OK;
}

/* Device memory: a state for each team place, routes, the claim. */
static uint64_t routes_at(const struct tern_network *n)
{
    return n->num_teams * terni_pgas_state_stride(n->comm);
}

static uint64_t claim_at(const struct tern_network *n)
{
    return (routes_at(n) + (uint64_t)n->comm->num_ranks + 15) / 16 * 16;
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
    TERN_TRY(ops->stream_open(n->machine, &n->stream));
    TERN_TRY(ops->host_alloc(n->machine, sizeof *n->host, &host, &host_device));
    n->host = (struct pgas_host *)host;
    n->host_device = (struct pgas_host *)host_device;
    TERN_TRY(ops->alloc(n->machine, claim_at(n) + sizeof(uint32_t), &device));
    n->device = (char *)device;
    TERN_TRY(ops->fill(n->machine, n->device, 0, claim_at(n) + sizeof(uint32_t), n->stream));
    return ops->stream_synchronize(n->machine, n->stream);
}

/* On failure *network may be an object to close. */
static enum tern_status create(struct tern_comm *comm, const struct tern_net_config *config,
                               struct tern_network **network)
{
    struct tern_network *n = (struct tern_network *)calloc(1, sizeof *n);
    if (n == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for a network of %zu bytes", sizeof *n);
    }
    n->comm = comm;
    n->machine = comm->machine;
    terni_comm_adopt(comm, &n->child);
    *network = n;
    TERN_TRY(choose(n, config));
    return allocate(n);
}

static enum tern_status open_post(struct tern_comm *comm, const struct tern_net_config *config,
                                  struct tern_network **network)
{
    struct net_card card;
    memset(&card, 0, sizeof card);
    card.status = (int32_t)create(comm, config, network);
    if (card.status == TERN_OK) {
        card.num_queues = (*network)->num_queues;
        card.num_teams = (*network)->num_teams;
        card.timeout_ms = (*network)->timeout_ms;
        card.transport = (*network)->transport;
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
        TERN_TRY(compare(r, "transport", mine->transport, cards[r].transport));
    }
    return TERN_OK;
}

static enum tern_status compare_with_all(struct tern_comm *comm)
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
    free(cards);
    return status;
}

static enum tern_status write_routes(struct tern_network *n)
{
    struct tern_comm *comm = n->comm;
    enum tern_status status;
    unsigned char *routes = (unsigned char *)calloc((size_t)comm->num_ranks, 1);
    if (routes == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %d routes", comm->num_ranks);
    }
    for (int r = 0; r < comm->num_ranks; r++) {
        routes[r] = n->heap->bases[r] != NULL ? NET_ROUTE_P2P : NET_ROUTE_NONE;
    }
    status = terni_pgas_move(n, n->device + routes_at(n), routes, (size_t)comm->num_ranks);
    free(routes);
    return status;
}

static enum tern_status complete(struct tern_network *n)
{
    struct tern_comm *comm = n->comm;
    struct tern_net *v = &n->view;
    struct tern_net view;
    TERN_TRY(terni_heap_end(comm, n->heap));
    TERN_TRY(write_routes(n));
    v->size = sizeof *v;
    v->rank = comm->rank;
    v->num_ranks = comm->num_ranks;
    v->num_queues = n->num_queues;
    v->timeout_ns = (uint64_t)n->timeout_ms * 1000000u;
    v->heap.own = comm->heap->bases[comm->rank];
    v->heap.bytes = comm->heap->max_bytes;
    v->heap.bases = comm->heap->device_bases;
    v->routes = (unsigned char *)n->device + routes_at(n);
    v->abort_word = (uint64_t *)(void *)(n->heap->bases[comm->rank] + PGAS_ABORT);
    v->record = &n->host_device->record;
    v->claim = (uint32_t *)(void *)(n->device + claim_at(n));
    return terni_network_view(n, &view);
}

enum tern_status terni_network_open_step(struct tern_comm *comm, const struct tern_net_config *config,
                                         int step, struct tern_network **network)
{
    switch (step) {
    case 0:
        return open_post(comm, config, network);
    case 1:
        TERN_TRY(compare_with_all(comm)); /* passes only if this rank's own part went well */
        return terni_heap_begin(comm, PGAS_TEAMS + (*network)->num_teams * terni_pgas_team_stride(comm),
                                &(*network)->heap);
    case 2:
        return terni_comm_judge_post(comm, complete(*network));
    default:
        return terni_comm_judge_wait(comm);
    }
}

void terni_network_close(struct tern_network *n)
{
    if (n == NULL) {
        return;
    }
    const struct machine_ops *ops = n->machine->ops;
    if (n->stream != NULL) {
        ops->stream_close(n->machine, n->stream);
    }
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
    terni_comm_disown(n->comm, &n->child);
    free(n);
}
