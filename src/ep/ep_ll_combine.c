/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency combine on the host: its shape is that of the lane's latest dispatch. */
#include <string.h>

#include "ep/ep_extent.h"
#include "ep/ep_ll.h"
#include "ep/tuning.h"
#include "kernels/kernels.h"

/* By compression: by bulk copies, the same with masks, and without bulk copies; across domains, where kernels
 * have masks in any case, by bulk copies and without; railed, where they have none, likewise. */
static const int kernels[][3] = {
    {TERN_KERNEL_ll_combine_bulk, TERN_KERNEL_ll_combine_mask_bulk, TERN_KERNEL_ll_combine_plain},
    {TERN_KERNEL_ll_combine_fp8_bulk, TERN_KERNEL_ll_combine_fp8_mask_bulk, TERN_KERNEL_ll_combine_fp8_plain},
    {TERN_KERNEL_ll_combine_log10_bulk, TERN_KERNEL_ll_combine_log10_mask_bulk,
     TERN_KERNEL_ll_combine_log10_plain}};
static const int inter_kernels[][2] = {
    {TERN_KERNEL_ll_combine_inter_bulk, TERN_KERNEL_ll_combine_inter_plain},
    {TERN_KERNEL_ll_combine_fp8_inter_bulk, TERN_KERNEL_ll_combine_fp8_inter_plain},
    {TERN_KERNEL_ll_combine_log10_inter_bulk, TERN_KERNEL_ll_combine_log10_inter_plain}};

static const int rail_kernels[][2] = {
    {TERN_KERNEL_ll_combine_rail_bulk, TERN_KERNEL_ll_combine_rail_plain},
    {TERN_KERNEL_ll_combine_fp8_rail_bulk, TERN_KERNEL_ll_combine_fp8_rail_plain},
    {TERN_KERNEL_ll_combine_log10_rail_bulk, TERN_KERNEL_ll_combine_log10_rail_plain}};

static enum tern_status check_weights(const struct tern_ll_combine_args *a, const struct ll_dispatch_args *d)
{
    if (d->num_tokens > 0 && !a->topk_weights) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "topk_weights is NULL with %u tokens", d->num_tokens);
    }
    return terni_check_aligned("topk_weights", a->topk_weights, 4);
}

/* Weights that go ahead are sent, and peers' awaited. */
static enum tern_status check_input(const struct tern_ll_combine_args *a, const struct ll_dispatch_args *d)
{
    if (d->ahead) {
        TERN_TRY(check_weights(a, d));
        TERN_TRY(terni_check_aligned("wait_ns", a->wait_ns, 8));
    }
    TERN_TRY(terni_check_pointer("in", a->in));
    TERN_TRY(terni_check_aligned("in", a->in, 16));
    if (a->compression > TERN_LL_LOG10) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "compression is %u; see enum tern_ll_compression",
                         a->compression);
    }
    return TERN_OK;
}

/* Home needs the weights, if dispatch had none. */
static enum tern_status check_output(const struct tern_ll_combine_args *a, const struct ll_dispatch_args *d)
{
    int64_t row = 2 * (int64_t)d->hidden;
    if (d->num_tokens > 0 && !a->out) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "out is NULL with %u tokens", d->num_tokens);
    }
    if ((uintptr_t)a->out % 16 != 0 || (a->out_stride && (a->out_stride < row || a->out_stride % 16 != 0))) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "out is at %p with rows of %lld bytes %lld apart; address and distance must be "
                         "multiples of 16",
                         a->out, (long long)row, (long long)a->out_stride);
    }
    if (d->summed && !d->ahead && a->topk_weights) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "topk_weights is given, but the lane's dispatch had weights at dispatch");
    }
    if (!d->summed) {
        TERN_TRY(check_weights(a, d));
    }
    return terni_check_aligned("wait_ns", a->wait_ns, 8);
}

/* No output has a byte of an input that the same phases read. */
static enum tern_status check_apart(const struct tern_ll_combine_args *a, const struct ll_dispatch_args *d,
                                    const struct ll_combine_args *k)
{
    uint64_t ranks = (uint64_t)d->f.num_ranks, tokens = d->num_tokens;
    const int sends = a->phase != TERN_LL_RECEIVE, receives = a->phase != TERN_LL_SEND;
    struct extents x;
    extents_begin(&x);
    if (sends) {
        x.in = extent_bytes(x.in, "in", a->in, terni_ll_slab_rows(d) * k->row_bytes);
    }
    if (d->ahead ? sends : receives) {
        x.in = extent_bytes(x.in, "topk_weights", a->topk_weights, tokens * d->topk * 4);
    }
    if (receives) {
        x.out = extent_rows(x.out, "out", -1, a->out, tokens, k->row_bytes, k->out_stride);
    }
    if (d->ahead || receives) {
        x.out = extent_bytes(x.out, "wait_ns", a->wait_ns, ranks * 8);
    }
    return terni_extents_check(&x);
}

/* That come home, at most. */
static uint32_t rows_of_token(const struct ll_dispatch_args *d)
{
    return d->summed && d->topk > (uint32_t)d->f.num_ranks ? (uint32_t)d->f.num_ranks : d->topk;
}

/* By what is the same on all ranks: whether all places of a token's rows fit. */
static void choose_blanks(struct ll_combine_args *k, const struct ll_dispatch_args *d)
{
    uint64_t rows = (uint64_t)d->max_tokens * rows_of_token(d);
    uint64_t bytes = rows * align_up(k->row_bytes, LL_BLANK_ALIGN);
    k->token_places = rows_of_token(d);
    k->over_blanks =
        k->compression == TERN_LL_PLAIN && rows > 0 && bytes <= k->lane.blank_bytes && bytes <= LL_MOST_HOME;
}

static void fill_input(struct tern_ep *ep, const struct tern_ll_combine_args *a,
                       const struct ll_dispatch_args *d, struct ll_combine_args *k)
{
    memset(k, 0, sizeof(*k));
    terni_ll_frame(ep, TERN_OP_LL_COMBINE, &k->f);
    k->lane = d->lane;
    k->lane.wait_ns = NULL;
    k->in = (const char *)a->in;
    k->num_tokens = d->num_tokens;
    k->topk = d->topk;
    k->experts_a_rank = d->experts_a_rank;
    k->row_bytes = 2 * d->hidden;
    k->dispatched = d->traces;
    k->compression = a->compression;
    k->sent_bytes = terni_ll_sent_bytes(a->compression, d->hidden);
    k->blocks = (d->hidden + TERN_FP8_BLOCK - 1) / TERN_FP8_BLOCK;
    k->summed = d->summed;
    k->adds_here = d->summed && !d->by_rank;
    choose_blanks(k, d);
    uint64_t s = terni_ep_sign(TERN_OP_LL_COMBINE, d->f.message.signature);
    k->f.message.signature = terni_ep_sign(s, a->compression) & 0xffffffffu;
}

/* Rows that go home as they are pass through a ring of each warp if they go by bulk copies; others are made
 * in the block's stages. */
static uint32_t fill_room(const struct tern_ep *ep, struct ll_combine_args *k)
{
    struct ll_depth depth = terni_tuning_ll_depth(&ep->machine->info, &ep->shape);
    int as_they_are = !k->adds_here && k->compression == TERN_LL_PLAIN;
    struct ll_room room = {0, 0, 0, 0};
    if (k->over_blanks) {
        return 0;
    }
    if (!as_they_are) {
        room = terni_ll_row_room(&ep->shape, &depth, k->sent_bytes);
    } else if (ep->shape.transfer == TERN_TRANSFER_BULK) {
        room = terni_ll_chunk_room(&ep->shape, &depth, k->row_bytes);
    }
    k->stage_bytes = room.stage_bytes;
    k->stages = room.stages;
    k->words_offset = room.words_offset;
    return room.bytes;
}

/* If rows to other domains share slots, no more blocks than have one for each of their warps. */
static uint32_t blocks_with_slots(const struct tern_ep *ep, uint32_t num_sms)
{
    uint32_t warps = terni_tuning_ll_depth(&ep->machine->info, &ep->shape).warps;
    uint32_t most = ep->layout.ll.out_slots / warps;
    return !ep->layout.ll.recycles || (num_sms > 0 && num_sms < most) ? num_sms : most;
}

/* Weights go ahead of rows: of the kernel before the combine's own. */
static struct ll_ahead_args ahead_of(const struct tern_ll_combine_args *a, const struct ll_combine_args *k)
{
    struct ll_ahead_args ahead = {*k, k->f};
    ahead.c.weights = a->topk_weights;
    ahead.c.lane.watch = 0;
    ahead.c.lane.wait_ns = a->wait_ns;
    ahead.hasty.timeout_ns -= ahead.hasty.timeout_ns / 8;
    return ahead;
}

static enum tern_status launch(struct tern_ep *ep, const struct tern_ll_combine_args *a,
                               const struct ll_combine_args *c, const struct ll_ahead_args *ahead,
                               struct tern_stream *stream)
{
    struct ll_combine_inter_args k;
    struct ll_launch what;
    memset(&what, 0, sizeof(what));
    what.operation = TERN_OP_LL_COMBINE;
    what.ahead = ahead;
    what.shared_bytes = (uint32_t)c->lane.watch;
    what.record = a->record;
    if (ep->shape.num_domains > 1) {
        terni_ll_far(ep, a->lane, &k.far);
        k.c = *c;
        int is_railed = ep->shape.ll_rail && c->summed; /* else no rank but home knows the weights */
        const int *pair = is_railed ? rail_kernels[c->compression] : inter_kernels[c->compression];
        what.bulk = pair[0];
        what.plain = pair[1];
        what.num_sms = is_railed ? a->num_sms : blocks_with_slots(ep, a->num_sms);
        what.args = &k;
        what.args_bytes = sizeof(k);
    } else if (c->over_blanks) {
        what.bulk = what.plain = TERN_KERNEL_ll_combine_blanks;
        what.num_sms = a->num_sms;
        what.args = c;
        what.args_bytes = sizeof(*c);
    } else {
        what.bulk = kernels[c->compression][ep->shape.ll_mask != 0];
        what.plain = kernels[c->compression][2];
        what.num_sms = a->num_sms;
        what.args = c;
        what.args_bytes = sizeof(*c);
    }
    return terni_ll_launch(ep, &what, stream);
}

enum tern_status terni_ll_combine(struct tern_ep *ep, const struct tern_ll_combine_args *a,
                                  struct tern_stream *stream)
{
    struct ep_lane_calls *calls;
    struct ll_combine_args k;
    struct ll_ahead_args ahead;
    TERN_TRY(terni_ll_calls_for(ep, a->lane, a->phase, TERN_OP_LL_COMBINE, a->after, stream, &calls));
    if (a->phase != TERN_LL_RECEIVE) {
        TERN_TRY(check_input(a, &calls->dispatch));
        fill_input(ep, a, &calls->dispatch, &k);
    } else {
        k = calls->combine;
    }
    if (a->phase != TERN_LL_SEND) {
        TERN_TRY(check_output(a, &calls->dispatch));
        k.weights = k.summed ? NULL : a->topk_weights;
        k.lane.wait_ns = a->wait_ns;
        k.out = (char *)a->out;
        k.out_stride = a->out_stride ? a->out_stride : (int64_t)k.row_bytes;
    }
    TERN_TRY(check_apart(a, &calls->dispatch, &k));
    k.phases = terni_ll_phases(a->phase);
    k.lane.watch = fill_room(ep, &k);
    int sends_ahead = calls->dispatch.ahead && a->phase != TERN_LL_RECEIVE;
    if (sends_ahead) {
        ahead = ahead_of(a, &k);
    }
    TERN_TRY(launch(ep, a, &k, sends_ahead ? &ahead : NULL, stream));
    calls->combine = k;
    terni_ll_called(ep, calls, a->phase, TERN_OP_LL_COMBINE, stream);
    return TERN_OK;
}
