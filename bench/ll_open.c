/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and arguments of one shape of low latency. Every lane has tensors of its own with other contents, so
 * that a row that went to another lane is a wrong row. Of what experts made of slabs, only the rows in use
 * are filled: they are a fraction of the whole. */
#include "bench_ll.h"
#include "fill.h"

#include <stdlib.h>
#include <string.h>

void ll_fill_row(const struct ll_shape *s, uint32_t lane, int rank, enum ll_tensor t, uint64_t row, void *at)
{
    enum fill_kind kind = t == LT_TOKENS ? FILL_TOKENS : FILL_EXPERTS;
    uint64_t seed = s->options->seed | (uint64_t)lane << 32;
    fill_bf16(fill_begin(seed, kind, (uint64_t)rank, row), (uint16_t *)at, s->hidden);
}

static void fill_args(const struct ll_shape *s, struct ll_lane_seat *x, uint32_t lane)
{
    static const struct tern_ll_combine_args combine_init = TERN_LL_COMBINE_ARGS_INIT;
    const float *weights = (const float *)x->tensors[LT_WEIGHTS];
    int at_dispatch = s->options->ll.weights == TERN_LL_WEIGHTS_AT_DISPATCH;
    x->dispatch = ll_dispatch_shape(s);
    x->dispatch.lane = lane;
    x->dispatch.in = x->tensors[LT_TOKENS];
    x->dispatch.topk_idx = x->tensors[LT_IDS];
    x->dispatch.topk_weights = at_dispatch ? weights : NULL;
    x->dispatch.out = x->tensors[LT_SLAB];
    x->dispatch.out_scales = x->tensors[LT_SCALES];
    x->dispatch.out_counts = (int32_t *)x->tensors[LT_COUNTS];
    x->dispatch.out_ranges = (int64_t *)x->tensors[LT_RANGES];
    x->dispatch.out_source = (int32_t *)x->tensors[LT_SOURCES];
    x->dispatch.out_topk_idx = (int32_t *)x->tensors[LT_ROW_IDS];
    x->dispatch.out_topk_weights = (float *)x->tensors[LT_ROW_WEIGHTS];
    x->dispatch.sum_counts = (int64_t *)x->tensors[LT_SUM_COUNTS];
    x->dispatch.wait_ns = (uint64_t *)x->tensors[LT_WAITS];
    x->combine = combine_init;
    x->combine.lane = lane;
    x->combine.in = x->tensors[LT_MADE];
    x->combine.topk_weights = at_dispatch ? NULL : weights;
    x->combine.out = x->tensors[LT_SUMS];
    x->combine.num_sms = s->sms;
    x->combine.compression = s->options->ll.compression;
    x->combine.wait_ns = x->dispatch.wait_ns ? x->dispatch.wait_ns + s->routing.num_ranks : NULL;
}

static enum tern_status open_lane(const struct ll_shape *s, struct ll_seat *seat, uint32_t lane)
{
    struct ll_lane_seat *x = &seat->lanes[lane];
    for (int t = 0; t < NUM_LL_TENSORS; t++) {
        uint64_t bytes = ll_tensor_bytes(s, (enum ll_tensor)t);
        if (bytes != 0) {
            TERN_TRY(tern_alloc(seat->comm, TERN_MEMORY_DEVICE, bytes, &x->tensors[t]));
        }
    }
    fill_args(s, x, lane);
    return TERN_OK;
}

static enum tern_status open_seat(struct ll_bench *b, int i)
{
    struct ll_seat *seat = &b->seats[i];
    uint32_t num_lanes = b->shape.options->ll.lanes;
    seat->comm = b->party->comms[i];
    seat->stream = b->party->streams[i];
    seat->rank = b->party->first + i;
    seat->lanes = (struct ll_lane_seat *)calloc(num_lanes, sizeof(*seat->lanes));
    if (!seat->lanes) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %u lanes", num_lanes);
    }
    for (uint32_t k = 0; k < num_lanes; k++) {
        TERN_TRY(open_lane(&b->shape, seat, k));
    }
    return TERN_OK;
}

/* One tensor of one lane of one rank, as what makes its rows sees it. */
struct filled {
    const struct ll_shape *shape;
    uint32_t lane;
    int rank;
    enum ll_tensor tensor;
};

static void make_row(void *user, uint64_t row, void *at)
{
    const struct filled *f = (const struct filled *)user;
    ll_fill_row(f->shape, f->lane, f->rank, f->tensor, row, at);
}

static enum tern_status fill_lane(struct pieces *p, const struct ll_shape *s, struct ll_seat *seat,
                                  uint32_t lane)
{
    struct ll_lane_seat *x = &seat->lanes[lane];
    struct filled tokens = {s, lane, seat->rank, LT_TOKENS}, made = {s, lane, seat->rank, LT_MADE};
    struct piece_rows rows = {x->tensors[LT_TOKENS], 2 * s->hidden, 0, s->routing.tokens};
    uint64_t choices = (uint64_t)s->routing.tokens * s->routing.topk;
    uint64_t first = (uint64_t)seat->rank * choices;
    if (choices != 0) {
        TERN_TRY(tern_copy(seat->comm, x->tensors[LT_IDS], s->routing.ids + first, choices * sizeof(int64_t),
                           seat->stream));
        TERN_TRY(tern_copy(seat->comm, x->tensors[LT_WEIGHTS], s->routing.weights + first,
                           choices * sizeof(float), seat->stream));
        TERN_TRY(tern_stream_synchronize(seat->comm, seat->stream));
    }
    TERN_TRY(pieces_fill(p, &rows, make_row, &tokens));
    rows.device = x->tensors[LT_MADE];
    for (uint32_t k = 0; k < ll_num_runs(s); k++) {
        struct ll_run run = ll_run(s, seat->rank, k);
        rows.first = run.first;
        rows.num = run.num;
        TERN_TRY(pieces_fill(p, &rows, make_row, &made));
    }
    return TERN_OK;
}

static enum tern_status fill_inputs(void *user, int i)
{
    struct ll_bench *b = (struct ll_bench *)user;
    struct ll_seat *seat = &b->seats[i];
    enum tern_status status = TERN_OK;
    struct pieces pieces;
    TERN_TRY(pieces_open(&pieces, seat->comm, seat->stream));
    for (uint32_t k = 0; status == TERN_OK && k < b->shape.options->ll.lanes; k++) {
        status = fill_lane(&pieces, &b->shape, seat, k);
    }
    pieces_close(&pieces);
    return status;
}

/* On all others. Whoever is not masked there yet has issued nothing that would wait for it. */
static enum tern_status mask_rank(struct ll_bench *b)
{
    uint32_t mask = b->shape.options->ll.mask;
    for (int i = 0; mask != NO_MASK && i < b->party->num_local; i++) {
        struct ll_seat *seat = &b->seats[i];
        if (seat->rank != (int)mask) {
            TERN_TRY(tern_ll_mask_set(seat->ep, (int)mask, 1, seat->stream));
        }
    }
    return TERN_OK;
}

static enum tern_status open_all(struct ll_bench *b)
{
    const struct ll_shape *s = &b->shape;
    struct tern_ep_config config = ll_config(s->options, s->routing.tokens);
    struct tern_ep *eps[TERN_MAX_RANKS];
    config.transport = b->transport;
    TERN_TRY(party_sms(b->party, s->options->sms, UINT32_MAX, &b->shape.sms));
    for (int i = 0; i < b->party->num_local; i++) {
        TERN_TRY(open_seat(b, i));
    }
    TERN_TRY(party_open_eps(b->party, &config, eps));
    for (int i = 0; i < b->party->num_local; i++) {
        b->seats[i].ep = eps[i];
    }
    TERN_TRY(party_each(b->party->num_local, fill_inputs, b));
    TERN_TRY(mask_rank(b));
    return s->options->ll.graph ? ll_capture(b) : TERN_OK;
}

enum tern_status ll_open(struct ll_bench *b)
{
    memset(b->seats, 0, sizeof(b->seats));
    enum tern_status status = open_all(b);
    if (status != TERN_OK) {
        ll_close(b);
    }
    return status;
}

static void close_seat(struct ll_seat *seat, uint32_t num_lanes)
{
    for (int k = 0; k < NUM_LL_STEPS; k++) {
        tern_graph_close(seat->comm, seat->graphs[k]);
    }
    tern_ep_close(seat->ep);
    for (uint32_t k = 0; seat->lanes && k < num_lanes; k++) {
        for (int t = 0; t < NUM_LL_TENSORS; t++) {
            if (seat->lanes[k].tensors[t]) {
                tern_free(seat->comm, seat->lanes[k].tensors[t]);
            }
        }
    }
    free(seat->lanes);
}

void ll_close(struct ll_bench *b)
{
    for (int i = 0; i < b->party->num_local; i++) {
        close_seat(&b->seats[i], b->shape.options->ll.lanes);
    }
    memset(b->seats, 0, sizeof(b->seats));
}
