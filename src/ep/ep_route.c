/* SPDX-License-Identifier: Apache-2.0
 *
 * Routes on the host: a slot of device memory each, one kernel launch a run, and a ticket by which the host
 * knows that the counts it reads are those of its run. */
#include <string.h>

#include "ep/ep.h"
#include "ep/tuning.h"
#include "kernels/kernels.h"

static enum tern_status check_args(const struct tern_ep *ep, const struct tern_route_args *a,
                                   uint32_t idx_bytes)
{
    if (idx_bytes != 4 && idx_bytes != 8) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "idx_bytes is %u; it must be 4 or 8", idx_bytes);
    }
    if (a->topk < 1 || a->topk > ep->shape.max_topk) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "topk is %u; it must be 1 to max_topk, %u", a->topk,
                         ep->shape.max_topk);
    }
    if (a->num_tokens > ep->shape.max_tokens) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "num_tokens is %u; max_tokens is %u", a->num_tokens,
                         ep->shape.max_tokens);
    }
    if (a->num_tokens > 0 && !a->topk_idx) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "topk_idx is NULL with %u tokens", a->num_tokens);
    }
    if ((uintptr_t)a->topk_idx % idx_bytes != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "topk_idx is %p; it must be aligned to %u bytes", a->topk_idx,
                         idx_bytes);
    }
    uint64_t rows = 0;
    TERN_TRY(terni_shape_max_rows(&ep->shape, a->layout > INT32_MAX ? -1 : (int)a->layout,
                                  a->expert_alignment, &rows));
    if (rows > INT32_MAX) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "expert_alignment %u makes up to %llu rows; one rank can hold %d",
                         a->expert_alignment, (unsigned long long)rows, INT32_MAX);
    }
    return TERN_OK;
}

/* One run of a route, before it is known that it could be launched. */
struct route_run {
    uint64_t number;
    int captured;
};

static void fill_route_args(struct tern_route *route, const struct tern_route_args *a,
                            const struct route_run *run, struct route_args *k)
{
    struct tern_ep *ep = route->ep;
    const struct route_host_layout *l = &ep->layout.route_host;
    uint64_t at = ep->layout.route_hosts + (uint64_t)route->slot * l->bytes;
    char *device = ep->host_memory_device + at;
    memset(k, 0, sizeof(*k));
    terni_ep_frame(ep, TERN_OP_ROUTE, &k->f);
    k->f.message.signature = terni_ep_sign(terni_ep_sign(TERN_OP_ROUTE, route->topk), route->layout);
    k->f.message.signature =
        terni_ep_sign(terni_ep_sign(k->f.message.signature, route->alignment), run->number);
    k->route = route->memory;
    k->host.ticket = (uint64_t *)(device + l->ticket);
    k->host.epoch = (uint64_t *)(device + l->epoch);
    k->host.bad_id = (struct ep_record *)(device + l->bad_id);
    k->host.num_rows = (int32_t *)(device + l->num_rows);
    k->host.rank_counts = (int32_t *)(device + l->rank_counts);
    k->host.expert_counts = (int32_t *)(device + l->expert_counts);
    k->host.expert_offsets = (int32_t *)(device + l->expert_offsets);
    k->cells = (uint64_t *)(ep->device_memory + ep->layout.cells);
    k->finished = (uint64_t *)(ep->device_memory + ep->layout.finished);
    k->ticket = run->captured ? 0 : run->number;
    k->topk_idx = a->topk_idx;
    k->idx_bytes = route->idx_bytes;
    k->num_tokens = a->num_tokens;
    k->topk = route->topk;
    k->num_experts = ep->shape.num_experts;
    k->layout = route->layout;
    k->alignment = route->alignment;
    char *host = ep->host_memory + at;
    route->host.ticket = (uint64_t *)(host + l->ticket);
    route->host.epoch = (uint64_t *)(host + l->epoch);
    route->host.bad_id = (struct ep_record *)(host + l->bad_id);
    route->host.num_rows = (int32_t *)(host + l->num_rows);
    route->host.rank_counts = (int32_t *)(host + l->rank_counts);
    route->host.expert_counts = (int32_t *)(host + l->expert_counts);
    route->host.expert_offsets = (int32_t *)(host + l->expert_offsets);
}

static enum tern_status launch_route(struct tern_route *route, const struct tern_route_args *a,
                                     struct tern_stream *stream)
{
    struct tern_ep *ep = route->ep;
    struct geometry g;
    struct route_inter_args k;
    TERN_TRY(terni_tuning_route(&ep->machine->info, &ep->shape, a->num_tokens, &g));
    TERN_TRY(terni_ep_begin(ep, stream, a->after));
    struct route_run run = {ep->num_route_runs + 1, ep->machine->ops->stream_capturing(ep->machine, stream)};
    fill_route_args(route, a, &run, &k.r);
    k.r.f.ticket = terni_ep_ticket(ep, stream);
    struct launch l;
    l.kernel = TERN_KERNEL_route;
    l.args = &k.r;
    l.args_bytes = sizeof(k.r);
    if (ep->shape.num_domains > 1) {
        terni_route_inter(route, &k);
        l.kernel = TERN_KERNEL_route_inter;
        l.args = &k;
        l.args_bytes = sizeof(k);
    }
    l.num_blocks = g.num_blocks;
    l.num_threads = g.num_threads;
    l.shared_bytes = g.shared_bytes;
    enum tern_status status = ep->machine->ops->launch(ep->machine, &l, stream);
    if (status == TERN_OK) {
        terni_ep_issued(ep, k.r.f.ticket, 1);
        /* Ranks agree on this number only if a run that did not happen is not counted. */
        ep->num_route_runs = run.number;
        route->is_mixed =
            run.captured && (route->is_mixed || (route->number != 0 && route->num_tokens != a->num_tokens));
        route->number = run.number;
        route->ticket = k.r.ticket;
        route->captured = run.captured;
        route->in_graph |= run.captured;
        route->num_tokens = a->num_tokens;
    }
    return terni_ep_end(ep, TERN_OP_ROUTE, status, 0, stream, a->record);
}

enum tern_status terni_route_open(struct tern_ep *ep, const struct tern_route_args *args,
                                  struct tern_stream *stream, struct tern_route **out)
{
    uint32_t idx_bytes = args->idx_bytes ? args->idx_bytes : 8;
    if (ep->shape.max_routes == 0) {
        return TERN_FAIL(TERN_BAD_STATE,
                         "the object was opened with max_tokens 0, for low latency alone: it has no routes");
    }
    TERN_TRY(check_args(ep, args, idx_bytes));
    uint32_t slot = 0;
    while (slot < ep->shape.max_routes && ep->routes[slot].slot >= 0) {
        slot++;
    }
    if (slot == ep->shape.max_routes) {
        return TERN_FAIL(TERN_NO_SPACE, "all %u routes of the object are open; close one or raise max_routes",
                         ep->shape.max_routes);
    }
    struct tern_route *route = &ep->routes[slot];
    route->slot = (int)slot;
    route->stale = 0;
    route->topk = args->topk;
    route->layout = args->layout;
    route->alignment = args->expert_alignment ? args->expert_alignment : 1;
    route->idx_bytes = idx_bytes;
    route->number = 0;
    route->in_graph = 0;
    route->is_mixed = 0;
    enum tern_status status = launch_route(route, args, stream);
    if (status != TERN_OK) {
        /* A kernel that was launched all the same runs undisturbed: the next user of the slot comes after it.
         */
        route->slot = -1;
        return status;
    }
    *out = route;
    return TERN_OK;
}

enum tern_status terni_route_run(struct tern_route *route, const struct tern_route_args *args,
                                 struct tern_stream *stream)
{
    uint32_t idx_bytes = args->idx_bytes ? args->idx_bytes : 8;
    TERN_TRY(check_args(route->ep, args, idx_bytes));
    uint32_t alignment = args->expert_alignment ? args->expert_alignment : 1;
    if (args->topk != route->topk || args->layout != route->layout || idx_bytes != route->idx_bytes ||
        alignment != route->alignment) {
        return TERN_FAIL(
            TERN_INVALID_ARGUMENT,
            "the route was opened with topk %u, layout %u, alignment %u, ids of %u bytes, not %u, %u, %u, %u",
            route->topk, route->layout, route->alignment, route->idx_bytes, args->topk, args->layout,
            alignment, idx_bytes);
    }
    return launch_route(route, args, stream);
}

enum tern_status terni_route_check_run(const struct tern_route *route, struct tern_stream *stream)
{
    const struct machine *m = route->ep->machine;
    if (route->is_mixed && !m->ops->stream_capturing(route->ep->machine, stream)) {
        return TERN_FAIL(
            TERN_BAD_STATE,
            "the route's latest run is in a graph, with num_tokens %u, and one before it had others: "
            "which of them was the last to run the host does not see; update the route, or have one "
            "for each",
            route->num_tokens);
    }
    return TERN_OK;
}

enum tern_status terni_route_wait(struct tern_route *route, struct tern_route_counts *counts)
{
    struct tern_ep *ep = route->ep;
    enum tern_status status;
    if (route->captured) {
        return TERN_FAIL(TERN_BAD_STATE,
                         "the route ran in a graph: its counts are on the device, see tern_route_get_view");
    }
    do {
        status = terni_ep_wait_ticket(ep, "a route", route->host.ticket, route->ticket);
        TERN_TRY(terni_ep_fault(ep));
    } while (status == TERN_TIMEOUT);
    TERN_TRY(status);
    counts->num_rows = (uint64_t)route->host.num_rows[0];
    counts->num_tokens = (uint64_t)route->host.num_rows[1];
    counts->rank_counts = route->host.rank_counts;
    counts->expert_counts = route->host.expert_counts;
    counts->expert_offsets = route->host.expert_offsets;
    return terni_route_bad_id(route); /* it ends nothing: the counts hold */
}

void terni_route_view(struct tern_route *route, struct tern_route_view *view)
{
    view->num_rows = route->memory.num_rows;
    view->rank_offsets = route->memory.rank_offsets;
    view->expert_counts = route->memory.expert_counts;
    view->expert_offsets = route->memory.expert_offsets;
    view->token_rows = route->memory.token_rows;
    view->bases = route->memory.bases;
    view->overflow = route->memory.overflow;
}
