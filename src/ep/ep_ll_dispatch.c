/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch on the host: checks of what the phase needs, one launch. */
#include <string.h>

#include "ep/ep_extent.h"
#include "ep/ep_ll.h"
#include "kernels/kernels.h"

/* Of BF16 rows. */
static int64_t stride_of(const struct tern_ll_dispatch_args *a)
{
    return a->in_stride ? a->in_stride : 2 * (int64_t)a->hidden;
}

static enum tern_status check_shape(const struct tern_ep *ep, const struct tern_ll_dispatch_args *a)
{
    uint32_t step = a->cast == TERN_CAST_NONE ? 8 : 16;
    TERN_TRY(terni_check_range("max_tokens", a->max_tokens, 0, ep->shape.ll_tokens));
    TERN_TRY(terni_check_range("num_tokens", a->num_tokens, 0,
                               a->max_tokens ? a->max_tokens : ep->shape.ll_tokens));
    TERN_TRY(terni_check_range("topk", a->topk, 1, ep->shape.max_topk));
    TERN_TRY(terni_check_range("hidden", a->hidden, 1, ep->shape.ll_hidden));
    TERN_TRY(terni_check_range("cast", a->cast, TERN_CAST_NONE, TERN_CAST_FP8_UE8M0));
    TERN_TRY(terni_check_range("layout", a->layout, TERN_LL_BY_EXPERT, TERN_LL_BY_RANK));
    TERN_TRY(terni_check_range("weights", a->weights, TERN_LL_WEIGHTS_AT_COMBINE, TERN_LL_WEIGHTS_AHEAD));
    if (a->weights == TERN_LL_WEIGHTS_AHEAD && ep->layout.ll.ahead_bytes == 0) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "weights is TERN_LL_WEIGHTS_AHEAD (%u), which is for objects of one domain without "
                         "masks; this one has %u domains and ll_mask %u",
                         a->weights, ep->shape.num_domains, ep->shape.ll_mask);
    }
    if (a->layout == TERN_LL_BY_RANK && a->weights != TERN_LL_WEIGHTS_AT_DISPATCH) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "layout %u is by rank, where one row a rank comes home and nothing can be weighted; "
                         "weights is %u and must be at dispatch",
                         a->layout, a->weights);
    }
    if (a->hidden % step != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "hidden is %u; it must be a multiple of %u", a->hidden, step);
    }
    if (a->idx_bytes != 0 && a->idx_bytes != 4 && a->idx_bytes != 8) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "idx_bytes is %u; it must be 4 or 8", a->idx_bytes);
    }
    return TERN_OK;
}

static enum tern_status check_inputs(const struct tern_ll_dispatch_args *a)
{
    if (a->num_tokens > 0 && (!a->in || !a->topk_idx)) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s is NULL with %u tokens", a->in ? "topk_idx" : "in",
                         a->num_tokens);
    }
    if (a->weights == TERN_LL_WEIGHTS_AT_DISPATCH && a->layout == TERN_LL_BY_EXPERT && a->num_tokens > 0 &&
        !a->topk_weights) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "topk_weights is NULL with %u tokens", a->num_tokens);
    }
    if (a->weights != TERN_LL_WEIGHTS_AT_DISPATCH && a->topk_weights) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "topk_weights is given, but weights is %u: they come with the combine", a->weights);
    }
    if (stride_of(a) < 2 * (int64_t)a->hidden || stride_of(a) % 16 != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "in_stride is %lld with rows of %u bytes; it must be a multiple of 16, no less",
                         (long long)a->in_stride, 2 * a->hidden);
    }
    TERN_TRY(terni_check_aligned("in", a->in, 16));
    TERN_TRY(terni_check_aligned("topk_weights", a->topk_weights, 4));
    return terni_check_aligned("topk_idx", a->topk_idx, a->idx_bytes ? a->idx_bytes : 8);
}

/* Outputs that one layout has and the other has not. */
static enum tern_status check_layout(const struct tern_ll_dispatch_args *a, uint32_t by_rank)
{
    if (by_rank && a->out_ranges) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "out_ranges is given, but by rank the rows of source s are out_counts[s] from row "
                         "s * max_tokens on");
    }
    if (!by_rank && (a->out_topk_idx || a->out_topk_weights)) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s is given, but layout is by expert",
                         a->out_topk_idx ? "out_topk_idx" : "out_topk_weights");
    }
    return TERN_OK;
}

static enum tern_status check_outputs(const struct tern_ll_dispatch_args *a, const struct ll_dispatch_args *k)
{
    uint32_t cast = k->cast;
    TERN_TRY(check_layout(a, k->by_rank));
    TERN_TRY(terni_check_pointer("out", a->out));
    TERN_TRY(terni_check_pointer("out_counts", a->out_counts));
    if ((cast != TERN_CAST_NONE) != (a->out_scales != NULL)) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "out_scales is %p with cast %u", a->out_scales, cast);
    }
    TERN_TRY(terni_check_aligned("out", a->out, 16));
    TERN_TRY(terni_check_aligned("out_scales", a->out_scales, 4));
    TERN_TRY(terni_check_aligned("out_counts", a->out_counts, 4));
    TERN_TRY(terni_check_aligned("out_source", a->out_source, 4));
    TERN_TRY(terni_check_aligned("out_topk_idx", a->out_topk_idx, 4));
    TERN_TRY(terni_check_aligned("out_topk_weights", a->out_topk_weights, 4));
    TERN_TRY(terni_check_aligned("sum_counts", a->sum_counts, 8));
    TERN_TRY(terni_check_aligned("wait_ns", a->wait_ns, 8));
    return terni_check_aligned("out_ranges", a->out_ranges, 8);
}

/* Of a receive phase alone: its outputs have the shape that the layout of the send phase gives them. */
static enum tern_status check_received(const struct tern_ll_dispatch_args *a,
                                       const struct ll_dispatch_args *k)
{
    uint32_t sent = k->by_rank ? TERN_LL_BY_RANK : TERN_LL_BY_EXPERT;
    return a->layout == sent
               ? TERN_OK
               : TERN_FAIL(TERN_INVALID_ARGUMENT,
                           "layout is %u, but the lane's send phase had %u; both phases have the "
                           "same one",
                           a->layout, sent);
}

/* Of a call with both phases no output has a byte of an input. */
static enum tern_status check_apart(const struct tern_ll_dispatch_args *a, const struct ll_dispatch_args *k)
{
    uint64_t ranks = (uint64_t)k->f.num_ranks, tokens = a->num_tokens;
    uint64_t lists = k->by_rank ? ranks : k->experts_a_rank, rows = terni_ll_slab_rows(k);
    struct extents x;
    extents_begin(&x);
    x.in = extent_rows(x.in, "in", -1, a->in, tokens, 2 * a->hidden, k->in_stride);
    x.in = extent_bytes(x.in, "topk_idx", a->topk_idx, tokens * k->topk * k->idx_bytes);
    x.in = extent_bytes(x.in, "topk_weights", a->topk_weights, tokens * k->topk * 4);
    x.out = extent_bytes(x.out, "out", a->out, rows * k->payload_bytes);
    x.out = extent_bytes(x.out, "out_scales", a->out_scales, rows * k->scale_bytes);
    x.out = extent_bytes(x.out, "out_counts", a->out_counts, lists * 4);
    x.out = extent_bytes(x.out, "out_ranges", a->out_ranges, lists * ranks * 8);
    x.out = extent_bytes(x.out, "out_source", a->out_source, rows * 4);
    x.out = extent_bytes(x.out, "out_topk_idx", a->out_topk_idx, rows * k->topk * 4);
    x.out = extent_bytes(x.out, "out_topk_weights", a->out_topk_weights, rows * k->topk * 4);
    x.out = extent_bytes(x.out, "sum_counts", a->sum_counts, k->experts_a_rank * 8ull);
    x.out = extent_bytes(x.out, "wait_ns", a->wait_ns, ranks * 8);
    return terni_extents_check(&x);
}

/* By what is the same on all ranks: whether places of all their rows fit. */
static void choose_blanks(struct ll_dispatch_args *k)
{
    uint32_t bytes = LL_BLANK_ROW_BYTES(k->topk, k->payload_bytes, k->scale_bytes);
    uint64_t rows = (uint64_t)(uint32_t)k->f.num_ranks * k->max_tokens;
    k->over_blanks = !terni_ll_in_words(k) && rows * align_up(bytes, LL_BLANK_ALIGN) <= k->lane.blank_bytes;
    k->row_bytes = k->over_blanks ? bytes : k->row_bytes;
}

static void fill_inputs(struct tern_ep *ep, const struct tern_ll_dispatch_args *a, struct ll_dispatch_args *k)
{
    memset(k, 0, sizeof(*k));
    terni_ll_frame(ep, TERN_OP_LL_DISPATCH, &k->f);
    k->lane = terni_ll_lane(ep, a->lane);
    k->in = (const char *)a->in;
    k->in_stride = stride_of(a);
    k->topk_idx = a->topk_idx;
    k->weights = a->topk_weights;
    k->idx_bytes = a->idx_bytes ? a->idx_bytes : 8;
    k->num_tokens = a->num_tokens;
    k->topk = a->topk;
    k->max_tokens = a->max_tokens ? a->max_tokens : ep->shape.ll_tokens;
    k->num_experts = ep->shape.num_experts;
    k->experts_a_rank = ep->shape.experts_a_rank;
    k->hidden = a->hidden;
    k->cast = a->cast;
    k->summed = a->weights != TERN_LL_WEIGHTS_AT_COMBINE;
    k->ahead = a->weights == TERN_LL_WEIGHTS_AHEAD;
    k->by_rank = a->layout == TERN_LL_BY_RANK;
    k->header_bytes = terni_ll_header_bytes(a->topk, ep->shape.ll_rail);
    k->payload_bytes = a->cast == TERN_CAST_NONE ? 2 * a->hidden : a->hidden;
    k->scale_bytes = terni_ll_scale_bytes(a->cast, a->hidden);
    k->row_bytes = k->header_bytes + k->payload_bytes + (uint32_t)align_up(k->scale_bytes, 16);
    choose_blanks(k);
    k->place_offset = terni_ll_place_offset(&ep->shape);
    k->stage_offset = terni_ll_stage_offset(&ep->shape);
    uint64_t s = terni_ep_sign(terni_ep_sign(TERN_OP_LL_DISPATCH, a->hidden), a->cast);
    s = terni_ep_sign(terni_ep_sign(terni_ep_sign(s, a->topk), k->max_tokens), a->weights);
    s = terni_ep_sign(s, a->layout);
    k->f.message.signature = (s ^ s >> 32) & 0xffffffffu;
    k->traces = (uint32_t)terni_ep_sign(s, a->num_tokens) | 1;
}

static void fill_outputs(const struct tern_ll_dispatch_args *a, struct ll_dispatch_args *k)
{
    k->out = (char *)a->out;
    k->out_scales = (uint32_t *)a->out_scales;
    k->out_counts = a->out_counts;
    k->out_ranges = a->out_ranges;
    k->out_source = a->out_source;
    k->out_topk_idx = a->out_topk_idx;
    k->out_topk_weights = a->out_topk_weights;
    k->sum_counts = a->sum_counts;
    k->lane.wait_ns = a->wait_ns;
}

static enum tern_status launch(struct tern_ep *ep, const struct tern_ll_dispatch_args *a,
                               const struct ll_dispatch_args *d, struct tern_stream *stream)
{
    struct ll_dispatch_inter_args k;
    struct ll_launch what;
    memset(&what, 0, sizeof(what));
    what.operation = TERN_OP_LL_DISPATCH;
    what.shared_bytes = (uint32_t)d->lane.watch;
    what.num_sms = a->num_sms;
    what.record = a->record;
    if (ep->shape.num_domains > 1) {
        terni_ll_far(ep, a->lane, &k.far);
        k.d = *d;
        int is_railed = ep->shape.ll_rail != 0;
        what.bulk = is_railed ? TERN_KERNEL_ll_dispatch_rail_bulk : TERN_KERNEL_ll_dispatch_inter_bulk;
        what.plain = is_railed ? TERN_KERNEL_ll_dispatch_rail_plain : TERN_KERNEL_ll_dispatch_inter_plain;
        what.args = &k;
        what.args_bytes = sizeof(k);
    } else if (terni_ll_in_words(d)) {
        what.bulk = what.plain = TERN_KERNEL_ll_dispatch_words;
        what.args = d;
        what.args_bytes = sizeof(*d);
    } else if (d->over_blanks) {
        what.bulk = TERN_KERNEL_ll_dispatch_blanks_bulk;
        what.plain = TERN_KERNEL_ll_dispatch_blanks_plain;
        what.args = d;
        what.args_bytes = sizeof(*d);
    } else {
        what.bulk = ep->shape.ll_mask ? TERN_KERNEL_ll_dispatch_mask_bulk : TERN_KERNEL_ll_dispatch_bulk;
        what.plain = TERN_KERNEL_ll_dispatch_plain;
        what.args = d;
        what.args_bytes = sizeof(*d);
    }
    return terni_ll_launch(ep, &what, stream);
}

enum tern_status terni_ll_dispatch(struct tern_ep *ep, const struct tern_ll_dispatch_args *a,
                                   struct tern_stream *stream)
{
    struct ep_lane_calls *calls;
    struct ll_dispatch_args k;
    TERN_TRY(terni_ll_calls_for(ep, a->lane, a->phase, TERN_OP_LL_DISPATCH, a->after, stream, &calls));
    if (a->phase != TERN_LL_RECEIVE) {
        TERN_TRY(check_shape(ep, a));
        TERN_TRY(check_inputs(a));
        fill_inputs(ep, a, &k);
    } else {
        k = calls->dispatch;
        TERN_TRY(check_received(a, &k));
    }
    if (a->phase != TERN_LL_SEND) {
        TERN_TRY(check_outputs(a, &k));
        fill_outputs(a, &k);
    }
    if (a->phase == TERN_LL_BOTH) {
        TERN_TRY(check_apart(a, &k));
    }
    k.phases = terni_ll_phases(a->phase);
    k.ids_offset = terni_ll_shared_bytes(&ep->shape, k.row_bytes);
    k.lane.watch = k.ids_offset;
    if (terni_ll_in_words(&k)) {
        k.lane.watch += terni_ll_ids_bytes(&ep->shape, k.max_tokens, k.topk);
    }
    TERN_TRY(launch(ep, a, &k, stream));
    calls->dispatch = k;
    terni_ll_called(ep, calls, a->phase, TERN_OP_LL_DISPATCH, stream);
    return TERN_OK;
}
