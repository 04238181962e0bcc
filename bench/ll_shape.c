/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and arguments of one shape of low latency. Every lane has tensors of its own with other contents, so
 * that a row that went to another lane is a wrong row. Of the slab that experts made, only the rows in use are
 * filled: they are what the reference says, a fraction of the whole. */
#include "bench_ll.h"
#include "fill.h"

#include <stdlib.h>
#include <string.h>

static uint32_t max_tokens(uint32_t tokens) { return tokens != 0 ? tokens : 1; }

static struct tern_ep_config config_of(const struct options *o, uint32_t tokens)
{
    struct tern_ep_config config = TERN_EP_CONFIG_INIT;
    config.num_experts = o->experts;
    config.max_topk = o->topk;
    config.max_tokens = 1; /* of high throughput, which has no part in this */
    config.max_row_bytes = 16;
    config.staging_bytes = TERN_STAGING_NONE;
    config.transfer = o->transfer;
    config.ll_tokens = max_tokens(tokens);
    config.ll_hidden = o->hidden;
    config.ll_lanes = o->ll.lanes;
    return config;
}

/* What the library would refuse is refused before memory is taken for it. */
static enum tern_status check_config(const struct options *o, int num_ranks, uint32_t tokens)
{
    struct tern_ep_config config = config_of(o, tokens);
    struct tern_ep_sizes sizes = TERN_EP_SIZES_INIT;
    return tern_ep_get_sizes(&config, num_ranks, &sizes);
}

enum tern_status ll_shape_open(struct ll_shape *s, const struct options *o, int num_ranks, uint32_t tokens)
{
    uint32_t step = o->ll.cast == TERN_CAST_NONE ? 8 : 16;
    memset(s, 0, sizeof(*s));
    s->options = o;
    s->hidden = o->hidden;
    s->experts_here = o->experts / (uint32_t)num_ranks;
    s->row_bytes = o->ll.cast == TERN_CAST_NONE ? 2 * o->hidden : o->hidden;
    s->scale_words = o->ll.cast == TERN_CAST_NONE ? 0 : terni_ref_scale_bytes(o->ll.cast, o->hidden) / 4;
    s->slab_rows = (uint64_t)num_ranks * max_tokens(tokens);
    if (o->hidden % step != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--hidden %u is not a multiple of %u, with --cast %s",
                         o->hidden, step, options_word(COMMAND_LL, "--cast", o->ll.cast));
    }
    TERN_TRY(check_config(o, num_ranks, tokens));
    TERN_TRY(routing_open(o, num_ranks, tokens, &s->routing));
    terni_ref_ll_init(&s->ref, &s->routing.world, max_tokens(tokens));
    return TERN_OK;
}

void ll_shape_close(struct ll_shape *s)
{
    terni_ref_ll_fini(&s->ref);
    routing_close(&s->routing);
}

uint32_t ll_num_runs(const struct ll_shape *s) { return s->experts_here; }

struct ll_run ll_run(const struct ll_shape *s, int rank, uint32_t number)
{
    const struct routing *g = &s->routing;
    size_t expert = (size_t)rank * s->experts_here + number;
    struct ll_run run = {number * s->slab_rows, 0};
    for (int source = 0; source < g->num_ranks; source++) {
        run.num += (uint64_t)s->ref.counts[expert * (size_t)g->num_ranks + (size_t)source];
    }
    return run;
}

uint32_t ll_row_bytes(const struct ll_shape *s, enum ll_tensor t)
{
    switch (t) {
    case LT_IDS:
        return s->routing.topk * (uint32_t)sizeof(int64_t);
    case LT_WEIGHTS:
        return s->routing.topk * (uint32_t)sizeof(float);
    case LT_SLAB:
        return s->row_bytes;
    case LT_SCALES:
        return s->scale_words != 0 ? 4 : 0;
    case LT_COUNTS:
        return 4;
    case LT_RANGES:
        return s->options->meta ? 8 : 0;
    case LT_SOURCES:
        return s->options->meta ? 4 : 0;
    case LT_TOKENS:
    case LT_MADE:
    case LT_SUMS:
    case NUM_LL_TENSORS:
        break;
    }
    return 2 * s->hidden;
}

static uint64_t num_rows(const struct ll_shape *s, enum ll_tensor t)
{
    switch (t) {
    case LT_SLAB:
    case LT_SOURCES:
    case LT_MADE:
        return s->experts_here * s->slab_rows;
    case LT_SCALES:
        return s->experts_here * s->slab_rows * s->scale_words;
    case LT_COUNTS:
        return s->experts_here;
    case LT_RANGES:
        return (uint64_t)s->experts_here * (uint64_t)s->routing.num_ranks;
    default:
        return max_tokens(s->routing.tokens); /* an empty tensor has room for a row: it needs an address */
    }
}

uint64_t ll_tensor_bytes(const struct ll_shape *s, enum ll_tensor t)
{
    return num_rows(s, t) * ll_row_bytes(s, t);
}

void ll_fill_row(const struct ll_shape *s, uint32_t lane, int rank, enum ll_tensor t, uint64_t row, void *at)
{
    enum fill_kind kind = t == LT_TOKENS ? FILL_TOKENS : FILL_EXPERTS;
    uint64_t seed = s->options->seed | (uint64_t)lane << 32;
    fill_bf16(fill_begin(seed, kind, (uint64_t)rank, row), (uint16_t *)at, s->hidden);
}

/* ---- Open ---- */

struct tern_ll_dispatch_args ll_dispatch_shape(const struct ll_shape *s)
{
    struct tern_ll_dispatch_args a = TERN_LL_DISPATCH_ARGS_INIT;
    a.idx_bytes = sizeof(int64_t);
    a.num_tokens = s->routing.tokens;
    a.topk = s->routing.topk;
    a.max_tokens = max_tokens(s->routing.tokens);
    a.hidden = s->hidden;
    a.cast = s->options->ll.cast;
    a.weights = s->options->ll.weights;
    a.num_sms = s->sms;
    return a;
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
    x->combine = combine_init;
    x->combine.lane = lane;
    x->combine.in = x->tensors[LT_MADE];
    x->combine.topk_weights = at_dispatch ? NULL : weights;
    x->combine.out = x->tensors[LT_SUMS];
    x->combine.num_sms = s->sms;
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

static enum tern_status open_all(struct ll_bench *b)
{
    const struct ll_shape *s = &b->shape;
    struct tern_ep_config config = config_of(s->options, s->routing.tokens);
    struct tern_ep *eps[TERN_MAX_RANKS];
    TERN_TRY(party_sms(b->party, s->options->sms, UINT32_MAX, &b->shape.sms));
    for (int i = 0; i < b->party->num_local; i++) {
        TERN_TRY(open_seat(b, i));
    }
    TERN_TRY(party_open_eps(b->party, &config, eps));
    for (int i = 0; i < b->party->num_local; i++) {
        b->seats[i].ep = eps[i];
    }
    TERN_TRY(party_each(b->party->num_local, fill_inputs, b));
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
