/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine by copy engine. In rank layout the rows that a rank holds for another are one run of memory, so the
 * engine can bring them home without a processor: cut into pieces, a stored word behind each, peers in turn
 * so that ranks send to different ones at any time. The engine's stream starts after the enter kernel, when
 * the peers' staging is free (after a fault it writes there all the same, which is why rows do not go to
 * callers' memory), and the caller's stream goes on when it has read the rows. */
#include "ep/ep_engine.h"

#include <string.h>

#include "kernels/kernels.h"

enum {
    ENTER_THREADS = 128,
    FEWEST_ROWS = 64, /* of a piece: an engine copy costs a microsecond or two beside its bytes */
    CPU_FEWEST_ROWS = 2
};

/* A peer's rows in staging: one area a source, each for every token. */
static uint64_t area_bytes(const struct tern_ep *ep, const struct tern_combine_args *a)
{
    return (uint64_t)ep->shape.max_tokens * a->in.row_bytes;
}

uint64_t terni_engine_staging(const struct tern_ep *ep, const struct tern_combine_args *a)
{
    return area_bytes(ep, a) * ep->shape.num_ranks;
}

static uint32_t piece_rows(const struct tern_ep *ep)
{
    uint32_t rows = (ep->shape.max_tokens + EP_MAX_PIECES - 1) / EP_MAX_PIECES;
    uint32_t fewest = ep->machine->info.kind == TERN_MACHINE_CPU ? CPU_FEWEST_ROWS : FEWEST_ROWS;
    return rows < fewest ? fewest : rows;
}

enum tern_status terni_engine_check_stream(const struct tern_ep *ep, struct tern_stream *stream)
{
    if (ep->machine->ops->stream_capturing(ep->machine, stream)) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "copy_engine is 1, but the stream is being captured: a graph would "
                         "keep these counts");
    }
    return TERN_OK;
}

enum tern_status terni_engine_check(const struct tern_route *route, const struct tern_combine_args *a,
                                    struct tern_stream *stream)
{
    const struct tern_ep *ep = route->ep;
    uint64_t need = terni_engine_staging(ep, a);
    if (!ep->shape.copy_engine) {
        return TERN_FAIL(TERN_BAD_STATE, "copy_engine is 1, but the object was opened without it");
    }
    if (route->layout != TERN_LAYOUT_RANK) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "copy_engine is 1, but the route has expert layout, where a peer's rows "
                         "do not lie together");
    }
    if (a->in.row_stride && a->in.row_stride != (int64_t)a->in.row_bytes) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "copy_engine is 1: in.row_stride is %lld, but it must be "
                         "row_bytes, %u",
                         (long long)a->in.row_stride, a->in.row_bytes);
    }
    if (need > ep->shape.staging_bytes) {
        return TERN_FAIL(
            TERN_NO_SPACE,
            "copy_engine is 1: rows of %u bytes of %u ranks x %u tokens need %llu bytes of staging; "
            "staging_bytes is %llu",
            a->in.row_bytes, ep->shape.num_ranks, ep->shape.max_tokens, (unsigned long long)need,
            (unsigned long long)ep->shape.staging_bytes);
    }
    TERN_TRY(terni_engine_check_stream(ep, stream));
    if (route->in_graph) {
        return TERN_FAIL(TERN_BAD_STATE,
                         "copy_engine is 1, but the route also runs in a graph, whose replays change its "
                         "counts unseen by the host: open another route for calls outside the graph");
    }
    /* Pairs with the kernel's release of the ticket: the counts are those of the latest run. */
    if (__atomic_load_n(route->host.ticket, __ATOMIC_ACQUIRE) != route->ticket) {
        return TERN_FAIL(TERN_BAD_STATE,
                         "copy_engine is 1, but the counts of the route's latest run are not on "
                         "the host: call tern_route_wait first");
    }
    return TERN_OK;
}

void terni_engine_args(struct tern_route *route, const struct tern_combine_args *a, struct engine_args *e)
{
    const struct tern_ep *ep = route->ep;
    e->run = ep->num_engine_runs + 1;
    e->own = (const char *)a->in.data;
    e->staged = ep->heap->bases[ep->comm->rank] + ep->layout.staging;
    e->area_bytes = area_bytes(ep, a);
    e->piece_rows = piece_rows(ep);
}

enum tern_status terni_engine_enter(struct tern_ep *ep, const struct op_frame *f, int num_columns,
                                    struct tern_stream *stream)
{
    struct enter_args k;
    struct launch l;
    memset(&k, 0, sizeof(k));
    k.f = *f;
    k.num_values = MESSAGE_COLUMNS + 2 * num_columns;
    l.kernel = TERN_KERNEL_enter;
    l.num_blocks = 1;
    l.num_threads = ENTER_THREADS;
    l.shared_bytes = 0;
    l.args = &k;
    l.args_bytes = sizeof(k);
    return ep->machine->ops->launch(ep->machine, &l, stream);
}

/* Where this rank's rows for rank d begin, and how many there are below the capacity. */
struct run_of_rows {
    uint64_t begin, num;
};

static void find_runs(const struct tern_route *route, uint64_t capacity, struct run_of_rows *runs)
{
    uint64_t begin = 0;
    for (uint32_t d = 0; d < route->ep->shape.num_ranks; d++) {
        uint64_t num = (uint64_t)route->host.rank_counts[d];
        uint64_t room = begin < capacity ? capacity - begin : 0;
        runs[d].begin = begin;
        runs[d].num = num < room ? num : room;
        begin += num;
    }
}

/* Piece p of the rows for rank d, which are `rows`, and the word that says so. */
static enum tern_status push_piece(struct tern_ep *ep, uint64_t bytes, const struct engine_args *e,
                                   uint32_t p, int d, const struct run_of_rows *rows)
{
    const struct machine_ops *ops = ep->machine->ops;
    uint64_t first = (uint64_t)p * e->piece_rows;
    if (first >= rows->num) {
        return TERN_OK;
    }
    uint64_t num = rows->num - first < e->piece_rows ? rows->num - first : e->piece_rows;
    char *window = ep->heap->bases[d];
    char *to = window + ep->layout.staging + (uint64_t)ep->comm->rank * e->area_bytes + first * bytes;
    uint64_t *word =
        (uint64_t *)(void *)(window + ep->layout.pieces) + (uint64_t)ep->comm->rank * EP_MAX_PIECES + p;
    TERN_TRY(ops->copy(ep->machine, to, e->own + (rows->begin + first) * bytes, num * bytes, ep->engine));
    return ops->store(ep->machine, word, e->run, ep->engine);
}

enum tern_status terni_engine_push(struct tern_route *route, const struct tern_combine_args *a,
                                   const struct engine_args *e, struct tern_stream *stream)
{
    struct tern_ep *ep = route->ep;
    const struct machine_ops *ops = ep->machine->ops;
    int num_ranks = (int)ep->shape.num_ranks;
    struct run_of_rows runs[TERN_MAX_RANKS];
    find_runs(route, a->in_rows, runs);
    TERN_TRY(ops->event_record(ep->machine, ep->engine_event, stream));
    TERN_TRY(ops->event_wait(ep->machine, ep->engine_event, ep->engine));
    for (uint32_t p = 0; p < EP_MAX_PIECES; p++) {
        for (int k = 1; k < num_ranks; k++) {
            int d = (ep->comm->rank + k) % num_ranks;
            TERN_TRY(push_piece(ep, a->in.row_bytes, e, p, d, &runs[d]));
        }
    }
    return TERN_OK;
}

enum tern_status terni_engine_join(struct tern_ep *ep, struct tern_stream *stream)
{
    const struct machine_ops *ops = ep->machine->ops;
    TERN_TRY(ops->event_record(ep->machine, ep->engine_event, ep->engine));
    return ops->event_wait(ep->machine, ep->engine_event, stream);
}
