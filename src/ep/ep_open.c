/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening, closing and resetting an EP object. Each collective is cut where it would wait for peers, so that
 * one thread can take several ranks through it:
 *
 *   open    0 check the configuration, allocate; post both   1 compare with all; begin the heap
 *           2 end the heap; post how it went                 3 all have mapped everything: it is whole
 *           with several domains, from the end of 1 on: the steps of a network, whose window is the heap, and
 *           one in which all have learnt that it leads to everybody's rail peers
 *   reset   0 wait for own work; post how it went            1 all have stopped: zero what peers write; post
 *           2 all have zeroed
 *
 * A rank that fails posts its failure like any other result, so that all ranks fail together, with its
 * sentence, and the communicator stays usable. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ep/ep.h"
#include "ep/ep_drain.h"
#include "ep/ep_inter.h"
#include "ep/ep_push.h"
#include "ep/ep_trace.h"
#include "ep/tuning.h"

/* What every rank must agree on, as it travels. */
struct ep_card {
    uint32_t num_experts, max_topk, max_tokens, max_row_bytes, max_routes, num_sms, timeout_ms, transfer;
    uint32_t copy_engine, combine_push, is_pushed, dispatch_drain, ll_tokens, ll_hidden, ll_lanes, ll_mask,
        ll_rail;
    uint32_t domain_ranks, net_queues, transport;
    uint64_t net_ring_bytes, limits_out, staging_bytes;
    uint64_t message_bytes;
    uint32_t no_words, no_push; /* not compared: rows go in words, or are pushed, if they can on all ranks */
    int32_t status;             /* of the rank's own part */
    char reason[244];
};

static struct ep_card card_of(const struct ep_shape *s)
{
    struct ep_card c;
    memset(&c, 0, sizeof(c));
    c.num_experts = s->num_experts;
    c.max_topk = s->max_topk;
    c.max_tokens = s->max_tokens;
    c.max_row_bytes = s->max_row_bytes;
    c.max_routes = s->max_routes;
    c.num_sms = s->num_sms;
    c.timeout_ms = s->timeout_ms;
    c.transfer = s->transfer;
    c.copy_engine = s->copy_engine;
    c.combine_push = s->push_wish;
    c.is_pushed = s->combine_push;
    c.dispatch_drain = s->dispatch_drain;
    c.ll_tokens = s->ll_tokens;
    c.ll_hidden = s->ll_hidden;
    c.ll_lanes = s->ll_lanes;
    c.ll_mask = s->ll_mask;
    c.ll_rail = s->ll_rail;
    c.domain_ranks = s->domain_ranks;
    c.net_queues = s->net_queues;
    c.transport = s->transport;
    c.net_ring_bytes = s->limits_out ? s->net_ring_bytes : 0; /* as it was given: sizes depend on that too */
    c.limits_out = s->limits_out;
    c.staging_bytes = s->staging_bytes;
    c.message_bytes = sizeof(struct ep_message);
    return c;
}

static enum tern_status compare_field(int rank, const char *field, uint64_t mine, uint64_t theirs)
{
    if (mine != theirs) {
        return TERN_FAIL(TERN_MISMATCH, "%s is %llu here but %llu on rank %d", field,
                         (unsigned long long)mine, (unsigned long long)theirs, rank);
    }
    return TERN_OK;
}

static enum tern_status compare_cards(const struct ep_card *mine, const struct ep_card *theirs, int rank)
{
    TERN_TRY(compare_field(rank, "num_experts", mine->num_experts, theirs->num_experts));
    TERN_TRY(compare_field(rank, "max_topk", mine->max_topk, theirs->max_topk));
    TERN_TRY(compare_field(rank, "max_tokens", mine->max_tokens, theirs->max_tokens));
    TERN_TRY(compare_field(rank, "max_row_bytes", mine->max_row_bytes, theirs->max_row_bytes));
    TERN_TRY(compare_field(rank, "max_routes", mine->max_routes, theirs->max_routes));
    TERN_TRY(compare_field(rank, "num_sms", mine->num_sms, theirs->num_sms));
    TERN_TRY(compare_field(rank, "timeout_ms", mine->timeout_ms, theirs->timeout_ms));
    TERN_TRY(compare_field(rank, "transfer", mine->transfer, theirs->transfer));
    TERN_TRY(compare_field(rank, "copy_engine", mine->copy_engine, theirs->copy_engine));
    TERN_TRY(compare_field(rank, "combine_push", mine->combine_push, theirs->combine_push));
    TERN_TRY(compare_field(rank, "dispatch_drain", mine->dispatch_drain, theirs->dispatch_drain));
    TERN_TRY(compare_field(rank, "ll_tokens", mine->ll_tokens, theirs->ll_tokens));
    TERN_TRY(compare_field(rank, "ll_hidden", mine->ll_hidden, theirs->ll_hidden));
    TERN_TRY(compare_field(rank, "ll_lanes", mine->ll_lanes, theirs->ll_lanes));
    TERN_TRY(compare_field(rank, "ll_mask", mine->ll_mask, theirs->ll_mask));
    TERN_TRY(compare_field(rank, "ll_rail", mine->ll_rail, theirs->ll_rail));
    TERN_TRY(compare_field(rank, "domain_ranks", mine->domain_ranks, theirs->domain_ranks));
    TERN_TRY(compare_field(rank, "net_queues", mine->net_queues, theirs->net_queues));
    TERN_TRY(compare_field(rank, "transport", mine->transport, theirs->transport));
    TERN_TRY(compare_field(rank, "net_ring_bytes", mine->net_ring_bytes, theirs->net_ring_bytes));
    TERN_TRY(compare_field(rank, "whether net_ring_bytes is given", mine->limits_out, theirs->limits_out));
    TERN_TRY(compare_field(rank, "staging_bytes", mine->staging_bytes, theirs->staging_bytes));
    /* With all else alike. */
    TERN_TRY(compare_field(rank, "whether staging_bytes is left to its default", mine->is_pushed,
                           theirs->is_pushed));
    return compare_field(rank, "the size of a message", mine->message_bytes, theirs->message_bytes);
}

/* Whether shared memory holds as many of the longest rows at once as this transfer needs. */
static enum tern_status rows_fit(const struct machine *m, const struct ep_shape *s, int bulk)
{
    struct geometry g;
    if (s->num_domains > 1) {
        return terni_inter_rows_fit(&m->info, s, bulk);
    }
    return terni_tuning_dispatch(&m->info, bulk, 0, terni_longest_stage(s),
                                 terni_place_table(s, EP_MAX_COLUMNS), DISPATCH_COURIERS, &g);
}

static enum tern_status choose_transfer(const struct machine *m, const struct ep_shape *s, uint32_t *transfer)
{
    if (*transfer == TERN_TRANSFER_AUTO) {
        const char *name = terni_env(TERN_ENV_TRANSFER);
        if (strcmp(name, "bulk") == 0) {
            *transfer = TERN_TRANSFER_BULK;
        } else if (strcmp(name, "plain") == 0) {
            *transfer = TERN_TRANSFER_PLAIN;
        } else if (strcmp(name, "auto") == 0) {
            int bulk = m->info.has_bulk && rows_fit(m, s, 1) == TERN_OK;
            *transfer = bulk ? TERN_TRANSFER_BULK : TERN_TRANSFER_PLAIN;
        } else {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "TERN_TRANSFER is \"%s\"; it must be auto, bulk or plain",
                             name);
        }
    }
    if (*transfer == TERN_TRANSFER_BULK && !m->info.has_bulk) {
        return TERN_FAIL(TERN_UNSUPPORTED, "%s has no asynchronous bulk copies; use TERN_TRANSFER_PLAIN",
                         m->info.name);
    }
    return rows_fit(m, s, *transfer == TERN_TRANSFER_BULK);
}

/* On one GPU the ranks of a process have one default stream, where a kernel that waits for a later one would
 * wait for ever. The cpu machine gives every rank its own. */
static int default_stream_is_shared(const struct tern_comm *comm)
{
    const struct rank_card *mine = &comm->cards[comm->rank];
    int same = 0;
    for (int r = 0; r < comm->num_ranks; r++) {
        const struct rank_card *c = &comm->cards[r];
        same += c->process == mine->process && memcmp(c->uuid, mine->uuid, sizeof(c->uuid)) == 0;
    }
    return same > 1 && comm->machine->info.kind == TERN_MACHINE_CUDA;
}

static struct route_memory route_memory_at(const struct tern_ep *ep, int slot)
{
    const struct route_layout *l = &ep->layout.route;
    char *at = ep->device_memory + ep->layout.routes + (uint64_t)slot * l->bytes;
    struct route_memory m;
    m.token_rows = (int32_t *)(at + l->token_rows);
    m.ids = (int32_t *)(at + l->ids);
    m.rank_sets = (struct ep_rank_set *)(at + l->rank_sets);
    m.bases = (int32_t *)(at + l->bases);
    m.rank_offsets = (int32_t *)(at + l->rank_offsets);
    m.expert_counts = (int32_t *)(at + l->expert_counts);
    m.expert_offsets = (int32_t *)(at + l->expert_offsets);
    m.num_rows = (int32_t *)(at + l->num_rows);
    m.overflow = (uint64_t *)(at + l->overflow);
    return m;
}

static enum tern_status allocate(struct tern_ep *ep)
{
    const struct machine_ops *ops = ep->machine->ops;
    void *memory = NULL, *host = NULL, *host_device = NULL;
    TERN_TRY(ops->alloc(ep->machine, ep->layout.device_bytes, &memory));
    ep->device_memory = (char *)memory;
    TERN_TRY(ops->host_alloc(ep->machine, ep->layout.host_bytes, &host, &host_device));
    ep->host_memory = (char *)host;
    ep->host_memory_device = (char *)host_device;
    TERN_TRY(ops->event_open(ep->machine, &ep->last));
    if (ep->shape.copy_engine) {
        TERN_TRY(ops->stream_open(ep->machine, &ep->engine));
        TERN_TRY(ops->event_open(ep->machine, &ep->engine_event));
    }
    ep->routes = (struct tern_route *)calloc(ep->shape.max_routes + 1u, sizeof(*ep->routes));
    if (!ep->routes) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %u routes", ep->shape.max_routes);
    }
    for (uint32_t i = 0; i < ep->shape.max_routes; i++) {
        ep->routes[i].ep = ep;
        ep->routes[i].slot = -1;
        ep->routes[i].memory = route_memory_at(ep, (int)i);
    }
    if (ep->shape.ll_lanes > 0) {
        ep->lanes = (struct ep_lane *)calloc(ep->shape.ll_lanes, sizeof(*ep->lanes));
        if (!ep->lanes) {
            return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %u lanes", ep->shape.ll_lanes);
        }
    }
    struct tern_stream *stream = ops->own_stream(ep->machine);
    enum tern_status status = ops->fill(ep->machine, ep->device_memory, 0, ep->layout.device_bytes, stream);
    if (status == TERN_OK) {
        status = ops->stream_synchronize(ep->machine, stream);
    }
    return status;
}

/* All that a rank can do, and fail at, without its peers. */
static enum tern_status prepare(struct tern_ep *ep)
{
    struct tern_comm *comm = ep->comm;
    TERN_TRY(choose_transfer(comm->machine, &ep->shape, &ep->shape.transfer));
    TERN_TRY(terni_push_check(ep));
    TERN_TRY(terni_drain_check(ep));
    ep->shape.timeout_ms = ep->shape.timeout_ms ? ep->shape.timeout_ms : comm->timeout_ms;
    if (ep->shape.ll_lanes > 0) {
        struct geometry g;
        uint32_t row = terni_ll_row_bytes(&ep->shape);
        uint32_t bytes = terni_ll_shared_bytes(&ep->shape, row) + terni_ll_watch_bytes(&ep->shape);
        TERN_TRY(terni_tuning_low_latency(&ep->machine->info, &ep->shape, bytes, &g));
    }
    if (ep->shape.num_domains > 1 && ep->shape.max_tokens > 0) {
        TERN_TRY(terni_inter_check_roles(comm, &ep->shape));
    }
    ep->no_default_stream = default_stream_is_shared(comm);
    terni_layout_init(&ep->shape, &ep->layout);
    TERN_TRY(allocate(ep));
    terni_ep_trace_open(ep);
    return TERN_OK;
}

/* That whole runs of so many ranks address each other. */
static enum tern_status check_domains(const struct tern_comm *comm, uint32_t domain_ranks)
{
    for (int r = 0; r < comm->num_ranks; r++) {
        int first = r / (int)domain_ranks * (int)domain_ranks;
        if (comm->domain_of[r] != comm->domain_of[first]) {
            return TERN_FAIL(
                TERN_INVALID_ARGUMENT,
                "domain_ranks is %u, but ranks %d and %d cannot address each other: they are in the "
                "communicator's domains %d and %d",
                domain_ranks, first, r, comm->domain_of[first], comm->domain_of[r]);
        }
    }
    return TERN_OK;
}

/* How many ranks each of the communicator's domains has. Rank r is to be number r % size of domain r /
 * size. */
static enum tern_status size_of_domains(const struct tern_comm *comm, uint32_t *domain_ranks)
{
    int size = 0;
    for (int r = 0; r < comm->num_ranks; r++) {
        size += comm->domain_of[r] == comm->domain_of[0];
    }
    for (int r = 0; r < comm->num_ranks; r++) {
        int first = r, members = 0;
        for (int q = comm->num_ranks - 1; q >= 0; q--) {
            members += comm->domain_of[q] == comm->domain_of[r];
            first = comm->domain_of[q] == comm->domain_of[r] ? q : first;
        }
        if (members != size) {
            return TERN_FAIL(
                TERN_UNSUPPORTED,
                "rank 0 is in a domain of %d ranks, rank %d in one of %d; domains of different size "
                "are not supported yet: see TERN_DOMAIN_SIZE",
                size, r, members);
        }
        if (r >= first + size) {
            return TERN_FAIL(
                TERN_UNSUPPORTED,
                "ranks %d and %d are in one domain of %d ranks, and not all between them; number the "
                "ranks of a domain one after the other",
                first, r, size);
        }
    }
    *domain_ranks = (uint32_t)size;
    return TERN_OK;
}

/* On failure *out may be an object to close. */
static enum tern_status create(struct tern_comm *comm, const struct tern_ep_config *config,
                               struct tern_ep **out)
{
    struct tern_ep *ep = (struct tern_ep *)calloc(1, sizeof(*ep));
    if (!ep) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for an EP object of %zu bytes", sizeof(*ep));
    }
    ep->comm = comm;
    ep->machine = comm->machine;
    ep->number = (uint32_t)comm->num_trades;
    terni_comm_adopt(comm, &ep->child);
    *out = ep;
    uint32_t domain_ranks = config->domain_ranks;
    if (domain_ranks == 0) {
        TERN_TRY(size_of_domains(comm, &domain_ranks));
    }
    TERN_TRY(terni_shape_init(config, comm->num_ranks, domain_ranks, &ep->shape));
    TERN_TRY(check_domains(comm, domain_ranks));
    return prepare(ep);
}

/* Whether low latency cannot have rows in words (kernels/ll_in_words.h), nor over blanks (ll_blanks.h): a
 * link without atomics may cut words in two, and their rows and ids take shared memory. */
static uint32_t lacks_words(const struct tern_ep *ep)
{
    const struct ep_shape *s = &ep->shape;
    uint32_t row_bytes = terni_ll_row_bytes(s), over_blanks = terni_ll_blank_row_bytes(s);
    row_bytes = over_blanks > row_bytes ? over_blanks : row_bytes;
    uint32_t bytes = terni_ll_shared_bytes(s, row_bytes) + terni_ll_watch_bytes(s);
    uint32_t tokens = (uint32_t)ep->layout.ll.word_rows, lacks = 0;
    for (int r = 0; r < ep->comm->num_ranks; r++) {
        lacks |= ep->comm->lacks_atomics[r];
    }
    return lacks || bytes + terni_ll_ids_bytes(s, tokens, s->max_topk) > ep->machine->info.max_shared_bytes;
}

/* Whatever fails here, a bad configuration too, the others are in the exchange or will come to it: the card
 * goes out with the failure in it. */
static enum tern_status open_post(struct tern_comm *comm, const struct tern_ep_config *config,
                                  struct tern_ep **out)
{
    struct ep_card card;
    memset(&card, 0, sizeof(card));
    card.status = create(comm, config, out);
    if (card.status == TERN_OK) {
        card = card_of(&(*out)->shape);
        card.no_words = lacks_words(*out);
        card.no_push = (uint32_t)terni_push_lacks(*out);
    } else {
        snprintf(card.reason, sizeof(card.reason), "%s", tern_last_error());
    }
    return comm->boot->ops->post(comm->boot, &card, sizeof(card));
}

/* The failures of ranks come before differences between them. */
static enum tern_status judge_cards(const struct tern_comm *comm, const struct ep_card *cards)
{
    const struct ep_card *mine = &cards[comm->rank];
    if (mine->status != TERN_OK) {
        return TERN_FAIL((enum tern_status)mine->status, "%s", mine->reason);
    }
    for (int r = 0; r < comm->num_ranks; r++) {
        if (cards[r].status != TERN_OK) {
            return TERN_FAIL((enum tern_status)cards[r].status, "rank %d: %.243s", r, cards[r].reason);
        }
    }
    for (int r = 0; r < comm->num_ranks; r++) {
        TERN_TRY(compare_cards(mine, &cards[r], r));
    }
    return TERN_OK;
}

static enum tern_status compare_with_all(struct tern_comm *comm, struct tern_ep *ep)
{
    struct ep_card *cards = (struct ep_card *)calloc((size_t)comm->num_ranks, sizeof(*cards));
    if (!cards) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %d cards", comm->num_ranks);
    }
    enum tern_status status = comm->boot->ops->wait(comm->boot, cards, sizeof(*cards), comm->timeout_ms);
    if (status == TERN_OK) {
        status = judge_cards(comm, cards);
    }
    for (int r = 0; status == TERN_OK && r < comm->num_ranks; r++) {
        ep->no_words |= cards[r].no_words;
        ep->no_push |= cards[r].no_push;
    }
    if (status == TERN_OK && ep->shape.push_wish == TERN_PUSH_AUTO && ep->shape.combine_push) {
        TERN_LOG(TERN_LOG_INFO, "combines in rank layout %s",
                 ep->no_push ? "pull: a rank cannot push" : "push");
    }
    free(cards);
    return status;
}

/* That something leads to the ranks that have this rank's place in other domains; low latency goes to all. */
static enum tern_status reach_far_ranks(const struct tern_ep *ep)
{
    int rank = ep->comm->rank, group = (int)ep->shape.domain_ranks, by = ep->shape.ll_lanes != 0 ? 1 : group;
    for (int peer = rank % by; peer < ep->comm->num_ranks; peer += by) {
        if (ep->network->routes[peer] == NET_ROUTE_NONE) {
            return TERN_FAIL(TERN_UNSUPPORTED,
                             "nothing leads from rank %d to rank %d, which is in another domain: loads and "
                             "stores do not, and there is neither a NIC nor a proxy (see transport and "
                             "TERN_PROXY)",
                             rank, peer);
        }
    }
    return TERN_OK;
}

/* Of several domains: the network's steps, and then its window is the object's heap. */
static enum tern_status open_network(struct tern_ep *ep, int step)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    config.num_queues = ep->shape.net_queues;
    config.num_teams = EP_NET_TEAMS;
    config.timeout_ms = ep->shape.timeout_ms;
    config.transport = ep->shape.transport;
    if (step == NET_OPEN_STEPS) {
        return terni_comm_judge_wait(ep->comm);
    }
    enum tern_status status =
        terni_network_open_step(ep->comm, &config, ep->layout.window_bytes, step, &ep->network);
    if (status == TERN_OK) {
        /* Low latency goes to every rank of other domains. */
        ep->network->rail_ranks = ep->shape.ll_tokens != 0 ? 0 : ep->shape.domain_ranks;
        ep->network->near_ranks = ep->shape.domain_ranks;
        ep->heap = ep->network->heap;
    }
    if (step < NET_OPEN_STEPS - 1) {
        return status;
    }
    status = status == TERN_OK ? terni_network_own_view(ep->network, &ep->net) : status;
    status = status == TERN_OK ? reach_far_ranks(ep) : status;
    return terni_comm_judge_post(ep->comm, status);
}

static enum tern_status open_heap(struct tern_ep *ep, int step)
{
    switch (step) {
    case 0:
        return terni_heap_begin(ep->comm, ep->layout.window_bytes, &ep->heap);
    case 1:
        return terni_comm_judge_post(ep->comm, terni_heap_end(ep->comm, ep->heap));
    case 2:
        return terni_comm_judge_wait(ep->comm);
    default:
        return TERN_OK;
    }
}

enum tern_status terni_ep_open_step(struct tern_comm *comm, const struct tern_ep_config *config, int step,
                                    struct tern_ep **ep)
{
    if (step == 0) {
        return open_post(comm, config, ep);
    }
    if (step == 1) {
        TERN_TRY(compare_with_all(comm, *ep)); /* passes only if this rank's own part went well */
    }
    return (*ep)->shape.num_domains > 1 ? open_network(*ep, step - 1) : open_heap(*ep, step - 1);
}

void terni_ep_close(struct tern_ep *ep)
{
    if (!ep) {
        return;
    }
    const struct machine_ops *ops = ep->machine->ops;
    if (terni_ep_wait_end(ep) != TERN_OK) {
        TERN_LOG(TERN_LOG_WARN, "closing an object: %s", tern_last_error());
    }
    terni_ep_trace_close(ep);
    if (ep->engine) {
        ops->stream_close(ep->machine, ep->engine); /* waits for it: it writes to peers' windows */
    }
    if (ep->network) {
        terni_network_close(ep->network); /* with its window */
    } else {
        terni_heap_close(ep->heap);
    }
    if (ep->last) {
        ops->event_close(ep->machine, ep->last);
    }
    if (ep->engine_event) {
        ops->event_close(ep->machine, ep->engine_event);
    }
    if (ep->host_memory) {
        ops->host_free(ep->machine, ep->host_memory);
    }
    if (ep->device_memory) {
        ops->free(ep->machine, ep->device_memory);
    }
    free(ep->routes);
    free(ep->lanes);
    terni_comm_disown(ep->comm, &ep->child);
    free(ep);
}

static enum tern_status zero_everything(struct tern_ep *ep)
{
    const struct machine_ops *ops = ep->machine->ops;
    struct tern_stream *stream = ops->own_stream(ep->machine);
    enum tern_status status = ops->fill(ep->machine, ep->heap->bases[ep->comm->rank] + ep->layout.control, 0,
                                        ep->layout.control_bytes, stream);
    if (status == TERN_OK) {
        status =
            ops->fill(ep->machine, ep->device_memory + ep->layout.state, 0, ep->layout.state_bytes, stream);
    }
    if (status == TERN_OK) {
        status = ops->stream_synchronize(ep->machine, stream);
    }
    terni_ep_trace_arm(ep);
    ep->trace_has_fault = 0;
    /* A rank that missed operations has counted fewer route runs: all begin again, and no old ticket may be
     * taken for a new one. */
    memset(ep->host_memory, 0, ep->layout.host_bytes);
    memset(&ep->stated, 0, sizeof(ep->stated));
    ep->broken[0] = '\0';
    ep->num_route_runs = 0;
    ep->num_engine_runs = 0;
    ep->num_issued = 0;
    ep->num_leaving = 0;
    memset(ep->masks_told, 0, sizeof(ep->masks_told));
    for (uint32_t i = 0; i < ep->shape.ll_lanes; i++) {
        memset(&ep->lanes[i].issued, 0, sizeof(ep->lanes[i].issued)); /* graphs outlive a reset */
        ep->lanes[i].bad_id_told = 0;
    }
    for (uint32_t i = 0; i < ep->shape.max_routes; i++) {
        ep->routes[i].stale = 1;
        ep->routes[i].reported = 0;
    }
    return status;
}

/* This rank's kernels have ended, and what they sent to other domains has arrived: nothing comes to peers'
 * windows any more. */
static enum tern_status stop(struct tern_ep *ep)
{
    struct pgas_call all = {ep->network, -1, 0, NULL, 1};
    TERN_TRY(terni_ep_wait_end(ep));
    return ep->network ? terni_pgas_quiet(&all, -1) : TERN_OK;
}

enum tern_status terni_ep_reset_step(struct tern_ep *ep, int step)
{
    struct boot *boot = ep->comm->boot;
    char what[40];
    snprintf(what, sizeof(what), "resets EP object %u", ep->number);
    if (step == 0) {
        return terni_boot_judge_post_of(boot, stop(ep), what);
    }
    /* Others may wait for the object's deadline before they come. */
    uint32_t timeout_ms =
        ep->shape.timeout_ms > ep->comm->timeout_ms ? ep->shape.timeout_ms : ep->comm->timeout_ms;
    TERN_TRY(terni_boot_judge_wait(boot, timeout_ms));
    return step == 1 ? terni_boot_judge_post_of(boot, zero_everything(ep), what) : TERN_OK;
}
