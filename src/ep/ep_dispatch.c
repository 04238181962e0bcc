/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch on the host: checks, how payloads lie in a stage, where outputs lie, one launch. */
#include <string.h>

#include "ep/ep.h"
#include "ep/ep_drain.h"
#include "ep/ep_extent.h"
#include "ep/ep_inter.h"
#include "ep/tuning.h"
#include "kernels/kernels.h"

static uint32_t elem_bytes_of(const struct tern_rows *r)
{
    return r->elem_bytes ? r->elem_bytes : r->row_bytes;
}

static int64_t elem_stride_of(const struct tern_rows *r)
{
    return r->elem_stride ? r->elem_stride : elem_bytes_of(r);
}

static int64_t row_stride_of(const struct tern_rows *r)
{
    return r->row_stride ? r->row_stride : r->row_bytes;
}

/* What a column of this size must be aligned to where rows are written or read whole. */
static uint32_t alignment_of(uint32_t row_bytes)
{
    return row_bytes % 16 == 0 ? 16 : row_bytes % 4 == 0 ? 4 : 1;
}

static enum tern_status check_aligned(const char *what, int i, const void *data, int64_t stride,
                                      uint32_t alignment)
{
    if ((uintptr_t)data % alignment != 0 || stride % alignment != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "%s[%d] is at %p with rows %lld bytes apart; both must be multiples of %u", what, i,
                         data, (long long)stride, alignment);
    }
    return TERN_OK;
}

static enum tern_status check_input(int i, const struct tern_rows *r, uint32_t num_tokens)
{
    uint32_t elem = elem_bytes_of(r);
    if (r->row_bytes == 0 || r->row_bytes % elem != 0) {
        return TERN_FAIL(
            TERN_INVALID_ARGUMENT,
            "in[%d] has rows of %u bytes in elements of %u; row_bytes must be a positive multiple of "
            "elem_bytes",
            i, r->row_bytes, elem);
    }
    if (!r->data && num_tokens > 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "in[%d].data is NULL with %u tokens", i, num_tokens);
    }
    if (i == 0) {
        if (r->row_bytes % 16 != 0) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "in[0].row_bytes is %u; it must be a multiple of 16",
                             r->row_bytes);
        }
        if (elem_stride_of(r) != elem) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT,
                             "in[0].elem_stride is %lld; the rows of in[0] must be contiguous",
                             (long long)r->elem_stride);
        }
        return check_aligned("in", 0, r->data, row_stride_of(r), 16);
    }
    return TERN_OK;
}

static enum tern_status check_output(int i, const struct tern_rows *r, uint32_t row_bytes, uint64_t rows)
{
    if (r->row_bytes != row_bytes) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "out[%d].row_bytes is %u; what is sent there has %u", i,
                         r->row_bytes, row_bytes);
    }
    if (elem_stride_of(r) != elem_bytes_of(r)) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "out[%d].elem_stride is %lld; rows of outputs must be contiguous", i,
                         (long long)r->elem_stride);
    }
    if (row_stride_of(r) < (int64_t)row_bytes) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "out[%d].row_stride is %lld; rows have %u bytes", i,
                         (long long)row_stride_of(r), row_bytes);
    }
    if (!r->data && rows > 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "out[%d].data is NULL with %llu rows", i,
                         (unsigned long long)rows);
    }
    return check_aligned("out", i, r->data, row_stride_of(r), alignment_of(row_bytes));
}

static enum tern_status check_extras(const struct tern_route *route, const struct tern_dispatch_args *a)
{
    if (a->out_topk_idx && route->layout != TERN_LAYOUT_RANK) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "out_topk_idx is given with the expert layout, where each row is one choice");
    }
    if (a->out_topk_weights && !a->topk_weights && route->num_tokens > 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "out_topk_weights is given but topk_weights is NULL");
    }
    if (a->zero_padding && route->layout != TERN_LAYOUT_EXPERT) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "zero_padding is given with the rank layout, which has no padding");
    }
    if (a->out_rows > INT32_MAX) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "out_rows is %llu; one rank can hold %d",
                         (unsigned long long)a->out_rows, INT32_MAX);
    }
    TERN_TRY(terni_check_aligned("out_topk_idx", a->out_topk_idx, route->idx_bytes));
    TERN_TRY(terni_check_aligned("topk_weights", a->topk_weights, 4));
    TERN_TRY(terni_check_aligned("out_topk_weights", a->out_topk_weights, 4));
    return terni_check_aligned("out_source", a->out_source, 8);
}

/* Bytes of output i's rows: of the input it comes from, or what the cast makes. */
static uint32_t output_bytes(const struct tern_dispatch_args *a, uint32_t i)
{
    uint32_t channels = a->in[0].row_bytes / 2;
    uint32_t blocks = (channels + TERN_FP8_BLOCK - 1) / TERN_FP8_BLOCK;
    if (a->cast == TERN_CAST_NONE) {
        return a->in[i].row_bytes;
    }
    if (i == 0) {
        return channels;
    }
    if (i == 1) {
        return a->cast == TERN_CAST_FP8_UE8M0 ? (blocks + 3) / 4 * 4 : blocks * 4;
    }
    return a->in[i - 1].row_bytes;
}

/* An input, whose elements may lie apart. */
static struct extent *input_extent(struct extent *e, int i, const struct tern_rows *r, uint32_t num_tokens)
{
    struct extent *next = extent_rows(e, "in", i, r->data, num_tokens, r->row_bytes, row_stride_of(r));
    uint32_t elem = elem_bytes_of(r);
    int64_t apart = elem_stride_of(r);
    if (next != e && apart != elem) {
        uint64_t way = (r->row_bytes / elem - 1) * (uint64_t)apart;
        e->stride = 0;
        e->first += apart < 0 ? way : 0;
        e->end += (apart < 0 ? 0 : way) + elem;
        e->end -= r->row_bytes;
    }
    return next;
}

/* No output has a byte of an input. */
static enum tern_status check_apart(const struct tern_route *route, const struct tern_dispatch_args *a,
                                    uint32_t num_out)
{
    uint64_t rows = a->out_rows;
    uint32_t ids = route->topk * route->idx_bytes;
    struct extents x;
    extents_begin(&x);
    for (uint32_t i = 0; i < a->num_in; i++) {
        x.in = input_extent(x.in, (int)i, &a->in[i], route->num_tokens);
    }
    x.in = extent_bytes(x.in, "topk_weights", a->topk_weights, (uint64_t)route->num_tokens * route->topk * 4);
    for (uint32_t i = 0; i < num_out; i++) {
        const struct tern_rows *r = &a->out[i];
        x.out = extent_rows(x.out, "out", (int)i, r->data, rows, r->row_bytes, row_stride_of(r));
    }
    x.out = extent_bytes(x.out, "out_topk_idx", a->out_topk_idx, rows * ids);
    x.out = extent_bytes(x.out, "out_topk_weights", a->out_topk_weights, rows * terni_weight_bytes(route));
    x.out = extent_bytes(x.out, "out_source", a->out_source, rows * 8);
    return terni_extents_check(&x);
}

static enum tern_status check_args(const struct tern_route *route, const struct tern_dispatch_args *a,
                                   uint32_t num_out)
{
    uint64_t total = 0;
    if (a->num_in < 1 || a->num_in > TERN_MAX_PAYLOADS) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "num_in is %u; it must be 1 to %d", a->num_in,
                         TERN_MAX_PAYLOADS);
    }
    if (a->cast > TERN_CAST_FP8_UE8M0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "cast is %u; see enum tern_cast", a->cast);
    }
    if (!a->in || !a->out) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s is NULL", a->in ? "out" : "in");
    }
    for (uint32_t i = 0; i < a->num_in; i++) {
        TERN_TRY(check_input((int)i, &a->in[i], route->num_tokens));
    }
    if (a->cast != TERN_CAST_NONE && a->in[0].row_bytes % 32 != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "in[0] has %u BF16 channels; a cast needs a multiple of 16",
                         a->in[0].row_bytes / 2);
    }
    for (uint32_t i = 0; i < num_out; i++) {
        TERN_TRY(check_output((int)i, &a->out[i], output_bytes(a, i), a->out_rows));
        total += output_bytes(a, i);
    }
    if (total > route->ep->shape.max_row_bytes) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "a row has %llu bytes of payloads; max_row_bytes is %u",
                         (unsigned long long)total, route->ep->shape.max_row_bytes);
    }
    TERN_TRY(check_extras(route, a));
    return check_apart(route, a, num_out);
}

/* Inputs into a stage one after the other; a row to be cast as what the cast makes of it, its scales after
 * all inputs. The bytes of it. */
static uint32_t lay_stage(const struct tern_dispatch_args *a, uint32_t num_out, struct dispatch_args *k)
{
    uint32_t at = 0;
    uint32_t shift = a->cast == TERN_CAST_NONE ? 0 : 1;
    for (uint32_t i = 0; i < a->num_in; i++) {
        const struct tern_rows *r = &a->in[i];
        struct column_in *c = &k->in[i];
        c->data = (const char *)r->data;
        c->row_bytes = r->row_bytes;
        c->elem_bytes = elem_bytes_of(r);
        c->elem_stride = elem_stride_of(r);
        c->row_stride = row_stride_of(r);
        c->stage_offset = at;
        c->whole = c->elem_stride == c->elem_bytes && r->row_bytes % 16 == 0 && c->row_stride % 16 == 0 &&
                   (uintptr_t)r->data % 16 == 0;
        k->out[i == 0 ? 0 : i + shift].stage_offset = at;
        at += (uint32_t)align_up(i == 0 ? output_bytes(a, 0) : r->row_bytes, 16);
    }
    if (shift) {
        k->out[1].stage_offset = at;
        k->scale_bytes = output_bytes(a, 1);
        at += (uint32_t)align_up(k->scale_bytes, 16);
    }
    for (uint32_t i = 0; i < num_out; i++) {
        k->out[i].column = EP_COL_PAYLOADS + i;
        k->out[i].row_bytes = output_bytes(a, i);
        k->out[i].whole = k->out[i].row_bytes % 16 == 0;
        k->column_bytes[EP_COL_PAYLOADS + i] = k->out[i].row_bytes;
    }
    return at;
}

static enum tern_status place_outputs(const struct tern_route *route, const struct tern_dispatch_args *a,
                                      uint32_t num_out, struct dispatch_args *k, struct staging *s)
{
    struct ep_place *columns = k->f.message.columns;
    for (uint32_t i = 0; i < num_out; i++) {
        TERN_TRY(terni_staging_place(s, "an output", a->out[i].data, a->out[i].row_bytes,
                                     row_stride_of(&a->out[i]), 0, &columns[EP_COL_PAYLOADS + i],
                                     &k->own[EP_COL_PAYLOADS + i]));
    }
    uint32_t ids = route->topk * route->idx_bytes;
    uint32_t weights = terni_weight_bytes(route);
    TERN_TRY(terni_staging_place(s, "out_topk_idx", a->out_topk_idx, ids, ids, 1, &columns[EP_COL_IDS],
                                 &k->own[EP_COL_IDS]));
    TERN_TRY(terni_staging_place(s, "out_topk_weights", a->out_topk_weights, weights, weights, 0,
                                 &columns[EP_COL_WEIGHTS], &k->own[EP_COL_WEIGHTS]));
    TERN_TRY(terni_staging_place(s, "out_source", a->out_source, 8, 8, 0, &columns[EP_COL_SOURCE],
                                 &k->own[EP_COL_SOURCE]));
    k->column_bytes[EP_COL_WEIGHTS] = weights;
    k->column_bytes[EP_COL_SOURCE] = 8;
    k->fill_ids = a->out_topk_idx != NULL;
    return TERN_OK;
}

static uint64_t sign(const struct tern_route *route, const struct tern_dispatch_args *a, uint32_t num_out)
{
    uint64_t s = terni_ep_sign(terni_ep_sign(TERN_OP_DISPATCH, route->number), a->cast);
    s = terni_ep_sign(terni_ep_sign(s, num_out), route->idx_bytes);
    for (uint32_t i = 0; i < num_out; i++) {
        s = terni_ep_sign(s, output_bytes(a, i));
    }
    return s;
}

/* Columns of a few bytes a row beside the first one: in rank layout the rows of consecutive tokens are
 * consecutive at a rank, so that couriers send many of them at once. */
static uint32_t thin_of(const struct tern_route *route, const struct dispatch_args *k)
{
    const struct ep_shape *s = &route->ep->shape;
    int can = k->cast == TERN_CAST_NONE && route->layout == TERN_LAYOUT_RANK && s->num_domains == 1 &&
              s->transfer == TERN_TRANSFER_BULK;
    uint32_t thin = 0;
    for (uint32_t i = 1; can && i < k->num_in; i++) {
        thin |= (uint32_t)(k->in[i].whole && k->in[i].row_bytes <= DISPATCH_THIN_BYTES) << i;
    }
    return thin;
}

/* Of a block: one, but for thin columns of more runs of 32 tokens than there are blocks. Four H200, FP8, 24
 * SMs: 128 tokens 24.7 us with one and 25.2 with two, 4096 tokens 289 and 252.5 (253.2 with nothing thin). */
static uint32_t couriers_of(const struct dispatch_args *k, int num_blocks)
{
    uint64_t runs = ((uint64_t)k->num_tokens + 31) / 32 * (uint64_t)k->f.num_ranks;
    return k->thin && runs > (uint64_t)num_blocks ? DISPATCH_COURIERS : 1;
}

/* Geometry and launch, with everything else in k. */
static enum tern_status launch_dispatch(struct tern_route *route, uint32_t num_sms, struct dispatch_args *k,
                                        struct tern_stream *stream)
{
    struct tern_ep *ep = route->ep;
    int bulk = ep->shape.transfer == TERN_TRANSFER_BULK;
    uint32_t table = terni_place_table(&ep->shape, EP_COL_PAYLOADS + k->num_out);
    struct geometry g;
    int num_blocks = terni_tuning_blocks(num_sms, ep->shape.num_sms, tern_comm_num_sms(ep->comm));
    k->stage_bytes = (uint32_t)align_up(k->stage_bytes, 128);
    TERN_TRY(terni_tuning_dispatch(&ep->machine->info, bulk, k->cast != TERN_CAST_NONE, k->stage_bytes, table,
                                   DISPATCH_COURIERS, &g));
    k->num_stages = g.num_stages;
    k->table_bytes = g.table_bytes;
    k->num_senders = (uint32_t)g.num_threads / 32;
    k->f.message.num_blocks = (uint64_t)num_blocks;
    const struct launch l = {bulk ? TERN_KERNEL_dispatch_bulk : TERN_KERNEL_dispatch_plain,
                             num_blocks,
                             g.num_threads + 32 * (int)couriers_of(k, num_blocks),
                             g.shared_bytes,
                             k,
                             sizeof(*k)};
    return terni_ep_launch(ep, &l, k->f.ticket, stream);
}

/* Out of staging. The kernel runs by now, so that a caller who made the call again would run ahead of the
 * peers: a failure ends the object's operations, but for one in a graph, which has not run yet. */
static enum tern_status copy_outputs(struct tern_ep *ep, const struct staging *staging, uint64_t ticket,
                                     int tells, struct tern_stream *stream)
{
    enum tern_status status = terni_staging_copy(staging, tells ? ticket : 0, stream);
    if (status != TERN_OK && ticket == 0) {
        return TERN_FAIL(status, "%s; the operation is in the capture: throw that away", tern_last_error());
    }
    return status == TERN_OK ? TERN_OK : terni_ep_break(ep, TERN_OP_DISPATCH, status);
}

enum tern_status terni_ep_dispatch(struct tern_route *route, const struct tern_dispatch_args *a,
                                   struct tern_stream *stream)
{
    struct tern_ep *ep = route->ep;
    uint32_t num_out = a->num_in + (a->cast == TERN_CAST_NONE ? 0 : 1);
    struct dispatch_drain_args drain; /* of which d alone matters where nothing drains */
    struct dispatch_args *k = &drain.d;
    struct staging staging;
    memset(&drain, 0, sizeof(drain));
    TERN_TRY(check_args(route, a, num_out));
    terni_ep_frame(ep, TERN_OP_DISPATCH, &k->f);
    k->route = route->memory;
    k->weights = a->topk_weights;
    k->num_tokens = route->num_tokens;
    k->topk = route->topk;
    k->num_experts = ep->shape.num_experts;
    k->layout = route->layout;
    k->idx_bytes = route->idx_bytes;
    k->cast = a->cast;
    k->zero_padding = a->zero_padding;
    k->num_in = a->num_in;
    k->num_out = num_out;
    k->stage_bytes = lay_stage(a, num_out, k);
    k->thin = thin_of(route, k);
    k->f.message.num_rows = a->out_rows;
    k->f.message.signature = sign(route, a, num_out);
    terni_staging_begin(&staging, ep, route, a->out_rows, a->zero_padding != 0, 0);
    TERN_TRY(place_outputs(route, a, num_out, k, &staging));
    TERN_TRY(terni_ep_begin(ep, stream, a->after));
    TERN_TRY(terni_route_check_run(route, stream));
    /* The ticket is the kernel's, or that of the copies behind it. */
    int drains = terni_drain_is(route), copies = !drains && staging.copies.num_columns > 0,
        tells = copies && terni_staging_tells(&staging) && ep->shape.num_domains == 1;
    uint64_t ticket = terni_ep_ticket(ep, stream);
    k->f.ticket = tells ? 0 : ticket;
    enum tern_status status;
    if (drains) {
        status = terni_drain_launch(route, a->num_sms, &staging, &drain, stream);
    } else if (ep->shape.num_domains > 1) {
        status = terni_inter_dispatch(route, a->num_sms, k->stage_bytes, k, stream);
    } else {
        status = launch_dispatch(route, a->num_sms, k, stream);
    }
    if (status == TERN_OK && copies) {
        status = copy_outputs(ep, &staging, ticket, tells, stream);
    }
    copies = copies && !(tells && status == TERN_OK);
    return terni_ep_end(ep, TERN_OP_DISPATCH, status, copies, stream, a->record);
}
