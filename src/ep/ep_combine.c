/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine on the host: checks, where the rows lie, one launch. */
#include <string.h>

#include "ep/ep.h"
#include "ep/ep_engine.h"
#include "ep/ep_extent.h"
#include "ep/ep_inter.h"
#include "ep/ep_push.h"
#include "ep/tuning.h"
#include "kernels/kernels.h"

/* Of a warp's stage, bytes and rows. What a step costs beside its bytes is shared by them, and warps that
 * have more on their way get less through a link (docs/performance.md). */
enum { BATCH_BYTES = COMBINE_BATCH_BYTES, MOST_BATCH_ROWS = 8 };

static int64_t stride_of(const struct tern_rows *r) { return r->row_stride ? r->row_stride : r->row_bytes; }

static enum tern_status check_rows(const char *what, const struct tern_rows *r, uint64_t rows)
{
    if (r->row_bytes == 0 || r->row_bytes % 16 != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s.row_bytes is %u; it must be a multiple of 16", what,
                         r->row_bytes);
    }
    if (r->elem_stride && r->elem_stride != (int64_t)(r->elem_bytes ? r->elem_bytes : r->row_bytes)) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s.elem_stride is %lld; rows must be contiguous", what,
                         (long long)r->elem_stride);
    }
    if (stride_of(r) < (int64_t)r->row_bytes || stride_of(r) % 16 != 0 || (uintptr_t)r->data % 16 != 0) {
        return TERN_FAIL(
            TERN_INVALID_ARGUMENT,
            "%s is at %p with rows of %u bytes %lld apart; address and distance must be multiples of 16",
            what, r->data, r->row_bytes, (long long)stride_of(r));
    }
    uint64_t span;
    TERN_TRY(terni_rows_span(what, rows, r->row_bytes, stride_of(r), &span));
    if (!r->data && rows > 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s.data is NULL with %llu rows", what,
                         (unsigned long long)rows);
    }
    return TERN_OK;
}

/* No output has a byte of an input. */
static enum tern_status check_apart(const struct tern_route *route, const struct tern_combine_args *a)
{
    uint64_t tokens = route->num_tokens;
    uint32_t row = a->in.row_bytes;
    struct extents x;
    extents_begin(&x);
    x.in = extent_rows(x.in, "in", -1, a->in.data, a->in_rows, row, stride_of(&a->in));
    x.in = extent_bytes(x.in, "in_weights", a->in_weights, a->in_rows * terni_weight_bytes(route));
    x.in = extent_rows(x.in, "bias", 0, a->bias[0], tokens, row, row);
    x.in = extent_rows(x.in, "bias", 1, a->bias[1], tokens, row, row);
    x.out = extent_rows(x.out, "out", -1, a->out.data, tokens, row, stride_of(&a->out));
    x.out = extent_bytes(x.out, "out_weights", a->out_weights, tokens * route->topk * 4);
    return terni_extents_check(&x);
}

static enum tern_status check_args(const struct tern_route *route, const struct tern_combine_args *a)
{
    TERN_TRY(check_rows("in", &a->in, a->in_rows));
    TERN_TRY(check_rows("out", &a->out, route->num_tokens));
    if (a->in.row_bytes != a->out.row_bytes) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "in.row_bytes is %u but out.row_bytes is %u", a->in.row_bytes,
                         a->out.row_bytes);
    }
    if (a->in.row_bytes > route->ep->shape.max_row_bytes) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "in.row_bytes is %u; max_row_bytes is %u", a->in.row_bytes,
                         route->ep->shape.max_row_bytes);
    }
    if (a->in_rows > INT32_MAX) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "in_rows is %llu; one rank can hold %d",
                         (unsigned long long)a->in_rows, INT32_MAX);
    }
    for (int b = 0; b < 2; b++) {
        if ((uintptr_t)a->bias[b] % 16 != 0) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "bias[%d] is at %p; it must be 16-byte aligned", b,
                             a->bias[b]);
        }
    }
    if (a->copy_engine > 1) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "copy_engine is %u; it must be 0 or 1", a->copy_engine);
    }
    if (a->out_weights && !a->in_weights && a->in_rows > 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "out_weights is given but in_weights is NULL with %llu rows",
                         (unsigned long long)a->in_rows);
    }
    if ((uintptr_t)a->in_weights % 4 != 0 || (uintptr_t)a->out_weights % 4 != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "in_weights %p and out_weights %p must be 4-byte aligned",
                         (const void *)a->in_weights, (const void *)a->out_weights);
    }
    return check_apart(route, a);
}

static enum tern_status place_inputs(const struct tern_route *route, const struct tern_combine_args *a,
                                     struct combine_args *k, struct staging *s)
{
    uint32_t weights = terni_weight_bytes(route);
    if (!a->copy_engine && !terni_push_is(route, a)) {
        TERN_TRY(terni_staging_place(s, "in", a->in.data, a->in.row_bytes, stride_of(&a->in), 0,
                                     &k->f.message.columns[COMBINE_ROWS], &k->own[COMBINE_ROWS]));
    }
    union {
        const float *in;
        void *place;
    } w = {a->in_weights}; /* only read; places have one type */
    return terni_staging_place(s, "in_weights", w.place, weights, weights, 0,
                               &k->f.message.columns[COMBINE_WEIGHTS], &k->own[COMBINE_WEIGHTS]);
}

void terni_combine_steps(const struct tern_ep *ep, struct combine_args *k, uint32_t chunk, uint32_t batch)
{
    uint32_t targets = k->layout == TERN_LAYOUT_RANK ? ep->shape.domain_ranks : k->topk;
    uint32_t most = targets < MOST_BATCH_ROWS ? targets : MOST_BATCH_ROWS;
    k->chunk_bytes = k->row_bytes < chunk ? k->row_bytes : chunk;
    k->batch_rows = batch / k->chunk_bytes < most ? batch / k->chunk_bytes : most;
}

static void fill_args(const struct tern_route *route, const struct tern_combine_args *a,
                      struct combine_args *k)
{
    k->route = route->memory;
    k->out = (char *)a->out.data;
    k->out_stride = stride_of(&a->out);
    k->out_weights = a->out_weights;
    k->bias[0] = (const char *)a->bias[0];
    k->bias[1] = (const char *)a->bias[1];
    k->num_tokens = route->num_tokens;
    k->topk = route->topk;
    k->num_experts = route->ep->shape.num_experts;
    k->layout = route->layout;
    k->row_bytes = a->in.row_bytes;
    terni_combine_steps(route->ep, k, a->copy_engine ? COMBINE_MIX_CHUNK : COMBINE_CHUNK, BATCH_BYTES);
    k->f.message.num_rows = a->in_rows;
    k->f.message.signature = terni_ep_sign(
        terni_ep_sign(terni_ep_sign(TERN_OP_COMBINE, route->number), a->in.row_bytes),
        route->layout | (uint64_t)(a->copy_engine != 0) << 32 | (uint64_t)terni_push_is(route, a) << 33);
}

static enum tern_status launch_combine(struct tern_ep *ep, const struct combine_args *k,
                                       const struct geometry *g, struct tern_stream *stream)
{
    int bulk = ep->shape.transfer == TERN_TRANSFER_BULK;
    int kernel = k->engine.run ? TERN_KERNEL_combine_engine_bulk : TERN_KERNEL_combine_bulk;
    const struct launch l = {bulk ? kernel : TERN_KERNEL_combine_plain,
                             g->num_blocks,
                             g->num_threads + (k->out_weights ? 32 : 0),
                             g->shared_bytes,
                             k,
                             sizeof(*k)};
    return terni_ep_launch(ep, &l, k->f.ticket, stream);
}

/* Enter, rows by copy engine, additions. Once the enter kernel is issued the peers count on the rest, so a
 * failure after it ends the object's operations until a reset. */
static enum tern_status combine_by_engine(struct tern_route *route, const struct tern_combine_args *a,
                                          struct combine_args *k, const struct geometry *g,
                                          struct tern_stream *stream)
{
    struct tern_ep *ep = route->ep;
    TERN_TRY(terni_engine_enter(ep, &k->f, COMBINE_COLUMNS, stream));
    struct first_failure first = {TERN_OK, ""};
    terni_first_add(&first, terni_engine_push(route, a, &k->engine, stream));
    if (first.status == TERN_OK) {
        terni_first_add(&first, launch_combine(ep, k, g, stream));
    }
    if (first.status == TERN_OK) {
        ep->num_engine_runs = k->engine.run;
    }
    /* The caller's stream waits for the engine in any case: it may still read `in`. */
    terni_first_add(&first, terni_engine_join(ep, stream));
    enum tern_status status = terni_first_end(&first);
    return status == TERN_OK ? TERN_OK : terni_ep_break(ep, TERN_OP_COMBINE, status);
}

static enum tern_status choose_geometry(struct tern_ep *ep, uint32_t num_sms, struct combine_args *k,
                                        struct geometry *g)
{
    int bulk = ep->shape.transfer == TERN_TRANSFER_BULK;
    uint32_t table = terni_place_table(&ep->shape, COMBINE_COLUMNS);
    TERN_TRY(terni_tuning_combine(&ep->machine->info, bulk, k->batch_rows * k->chunk_bytes, table, g));
    k->num_stages = g->num_stages;
    k->table_bytes = g->table_bytes;
    k->num_pullers = (uint32_t)g->num_threads / 32;
    g->num_blocks = terni_tuning_blocks(num_sms, ep->shape.num_sms, tern_comm_num_sms(ep->comm));
    k->f.message.num_blocks = (uint64_t)g->num_blocks;
    return TERN_OK;
}

/* What a warp adds at a time, in so many blocks. */
static void divide(struct combine_args *k, int num_blocks)
{
    k->parts = terni_tuning_parts(k->num_tokens, (k->row_bytes + k->chunk_bytes - 1) / k->chunk_bytes,
                                  (uint32_t)num_blocks * k->num_pullers, &k->part_chunks);
}

static enum tern_status launch_push(struct tern_ep *ep, const struct combine_push_args *k,
                                    const struct geometry *g, struct tern_stream *stream)
{
    const struct launch l = {
        TERN_KERNEL_combine_push_bulk, g->num_blocks, g->num_threads, g->shared_bytes, k, sizeof(*k)};
    return terni_ep_launch(ep, &l, k->c.f.ticket, stream);
}

enum tern_status terni_ep_combine(struct tern_route *route, const struct tern_combine_args *a,
                                  struct tern_stream *stream)
{
    struct tern_ep *ep = route->ep;
    struct combine_push_args push;
    struct combine_args *k = &push.c;
    struct staging staging;
    struct geometry g;
    struct inter_combine inter;
    int crosses = ep->shape.num_domains > 1, pushes = terni_push_is(route, a);
    memset(&push, 0, sizeof(push));
    TERN_TRY(check_args(route, a));
    if (a->copy_engine) {
        TERN_TRY(terni_engine_check(route, a, stream));
        terni_engine_args(route, a, &k->engine);
    }
    terni_ep_frame(ep, TERN_OP_COMBINE, &k->f);
    fill_args(route, a, k);
    terni_staging_begin(&staging, ep, route, a->in_rows, 0, 1);
    staging.used = a->copy_engine ? terni_engine_staging(ep, a)
                   : pushes       ? terni_push_staging(&ep->shape, a->in.row_bytes)
                                  : 0;
    TERN_TRY(place_inputs(route, a, k, &staging));
    if (crosses) {
        TERN_TRY(terni_inter_combine_prepare(route, a->num_sms, k, &inter));
    } else if (pushes) {
        TERN_TRY(terni_push_prepare(route, a, &push, &g));
        divide(k, g.num_blocks - (int)push.push_blocks);
    } else {
        TERN_TRY(choose_geometry(ep, a->num_sms, k, &g));
        divide(k, g.num_blocks);
    }
    TERN_TRY(terni_ep_begin(ep, stream, a->after));
    TERN_TRY(terni_route_check_run(route, stream));
    if (a->copy_engine) {
        TERN_TRY(terni_engine_check_stream(ep, stream)); /* again: `after` may have led it into a capture */
    }
    k->f.ticket = terni_ep_ticket(ep, stream);
    enum tern_status status = terni_staging_copy(&staging, 0, stream);
    if (status == TERN_OK && crosses) {
        status = terni_inter_combine(ep, &inter, k->f.ticket, stream);
    } else if (status == TERN_OK && pushes) {
        status = launch_push(ep, &push, &g, stream);
    } else if (status == TERN_OK) {
        status =
            a->copy_engine ? combine_by_engine(route, a, k, &g, stream) : launch_combine(ep, k, &g, stream);
    }
    int copies =
        status != TERN_OK && staging.copies.num_columns > 0; /* they may run, and the kernel does not */
    return terni_ep_end(ep, TERN_OP_COMBINE, status, copies, stream, a->record);
}
