/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of a low-latency batch, filled, issued and expected. */
#include "ll_batch.h"

#include <stdlib.h>
#include <string.h>

/* What a caller may leave out, by chance. */
static void take_optional(struct ll_batch *b, int rank, size_t rows, struct rng *r)
{
    struct world *w = b->batch.world;
    struct ll_member *m = &b->ranks[rank];
    size_t share = b->shape.batch.num_experts / (uint32_t)w->num_ranks;
    size_t topk = b->shape.batch.topk;

    if (!rng_one_in(r, 3)) {
        m->source = world_take(w, rank, ARENA_DEVICE, rows * sizeof(int32_t), "out_source");
    }
    if (rng_one_in(r, 2)) {
        m->sums = world_take(w, rank, ARENA_DEVICE, share * sizeof(int64_t), "sum_counts");
    }
    if (b->shape.layout == TERN_LL_BY_EXPERT) {
        if (!rng_one_in(r, 3)) {
            m->ranges = world_take(w, rank, ARENA_DEVICE, share * (size_t)w->num_ranks * sizeof(int64_t),
                                   "out_ranges");
        }
        return;
    }
    m->weighted = !rng_one_in(r, 3);
    if (!rng_one_in(r, 3)) {
        m->local = world_take(w, rank, ARENA_DEVICE, rows * topk * sizeof(int32_t), "out_topk_idx");
    }
    if (!rng_one_in(r, 3)) {
        m->local_weights = world_take(w, rank, ARENA_DEVICE, rows * topk * sizeof(float), "out_topk_weights");
    }
}

static void take_member(struct ll_batch *b, int rank, struct rng *r)
{
    int by_rank = b->shape.layout == TERN_LL_BY_RANK;
    const struct ll_shape *s = &b->shape;
    struct world *w = b->batch.world;
    struct ll_member *m = &b->ranks[rank];
    size_t tokens = s->batch.max_tokens;
    size_t share = s->batch.num_experts / (uint32_t)w->num_ranks;
    size_t rows = (by_rank ? 1 : share) * (size_t)w->num_ranks * tokens;
    int64_t row = 2 * (int64_t)s->hidden;

    m->in_stride = s->strided ? row + 16 * (int64_t)rng_below(r, 4) : 0;
    m->home_stride = s->strided ? row + 16 * (int64_t)rng_below(r, 4) : 0;
    m->num_sms = rng_between(r, 1, 5);
    m->in = world_take(w, rank, ARENA_DEVICE, tokens * (size_t)(m->in_stride ? m->in_stride : row), "in");
    m->out = world_take(w, rank, ARENA_DEVICE, rows * s->hidden * (s->cast == TERN_CAST_NONE ? 2 : 1), "out");
    if (s->cast != TERN_CAST_NONE) {
        m->scales =
            world_take(w, rank, ARENA_DEVICE, rows * terni_ref_scale_bytes(s->cast, s->hidden), "out_scales");
    }
    m->counts = world_take(w, rank, ARENA_DEVICE, (by_rank ? (size_t)w->num_ranks : share) * sizeof(int32_t),
                           "out_counts");
    take_optional(b, rank, rows, r);
    m->mask = world_take(w, rank, ARENA_DEVICE, (size_t)w->num_ranks * sizeof(int32_t), "masks");
    m->made = world_take(w, rank, rng_one_in(r, 3) ? ARENA_WINDOW : ARENA_DEVICE, rows * 2 * s->hidden,
                         "combine in");
    m->home = world_take(w, rank, ARENA_DEVICE, tokens * (size_t)(m->home_stride ? m->home_stride : row),
                         "combine out");
}

void ll_batch_init(struct ll_batch *b, struct world *w, struct tern_ep **eps, const struct ll_shape *shape,
                   struct rng *r)
{
    memset(b, 0, sizeof *b);
    b->shape = *shape;
    b->shape.batch.equal_tokens = 1;
    b->eps = eps;
    batch_init(&b->batch, w, &b->shape.batch, r);
    b->ranks = (struct ll_member *)test_take((size_t)w->num_ranks, sizeof *b->ranks);
    for (int s = 0; s < w->num_ranks; s++) {
        take_member(b, s, r);
    }
}

void ll_batch_redraw_ids(struct ll_batch *b, int routing, struct rng *r)
{
    struct world *w = b->batch.world;

    terni_ref_ll_fini(&b->ref);
    batch_redraw(&b->batch, routing, r);
    terni_ref_ll_init(&b->ref, &b->batch.ref, b->shape.batch.max_tokens);
    b->ref.rail_ranks = b->shape.railed ? w->domain_ranks : 0;
    for (int s = 0; s < w->num_ranks; s++) {
        struct ll_member *m = &b->ranks[s];
        rng_bf16(r, (uint16_t *)world_image(w, m->in), m->in.bytes / 2, b->shape.wild);
        rng_bf16(r, (uint16_t *)world_image(w, m->made), m->made.bytes / 2, b->shape.wild);
        if (b->shape.wild && b->batch.weights[s].bytes > 0 && rng_one_in(r, 4)) { /* a NaN, all ones */
            size_t last = b->batch.weights[s].bytes / sizeof(float);
            memset((float *)world_image(w, b->batch.weights[s]) + rng_below(r, (uint32_t)last), 0xff,
                   sizeof(float));
        }
        world_poison(w, m->out);
        world_poison(w, m->scales);
        world_poison(w, m->counts);
        world_poison(w, m->ranges);
        world_poison(w, m->source);
        world_poison(w, m->local);
        world_poison(w, m->local_weights);
        world_poison(w, m->home);
        world_poison(w, m->mask);
    }
}

void ll_batch_redraw(struct ll_batch *b, int routing, struct rng *r)
{
    for (int s = 0; s < b->batch.world->num_ranks; s++) {
        b->batch.num_tokens[s] = rng_one_in(r, 5)   ? 0
                                 : rng_one_in(r, 4) ? b->shape.batch.max_tokens
                                                    : rng_between(r, 0, b->shape.batch.max_tokens);
    }
    ll_batch_redraw_ids(b, routing, r);
}

void ll_batch_fini(struct ll_batch *b)
{
    if (b->batch.world) {
        terni_ref_ll_fini(&b->ref);
        batch_fini(&b->batch);
    }
    free(b->ranks);
    memset(b, 0, sizeof *b);
}

static void *at(const struct ll_batch *b, struct place place, int device)
{
    return device ? world_device(b->batch.world, place) : world_image(b->batch.world, place);
}

struct tern_ll_dispatch_args ll_dispatch_args(const struct ll_batch *b, int rank, int device)
{
    struct tern_ll_dispatch_args a = TERN_LL_DISPATCH_ARGS_INIT;
    const struct ll_member *m = &b->ranks[rank];
    uint32_t tokens = b->batch.num_tokens[rank];

    a.lane = b->shape.lane;
    a.in = tokens ? at(b, m->in, device) : NULL;
    a.in_stride = m->in_stride;
    a.topk_idx = tokens ? at(b, b->batch.idx[rank], device) : NULL;
    if (b->shape.weights == TERN_LL_WEIGHTS_AT_DISPATCH && tokens &&
        (b->shape.layout == TERN_LL_BY_EXPERT || m->weighted)) {
        a.topk_weights = (const float *)at(b, b->batch.weights[rank], device);
    }
    a.idx_bytes = b->shape.batch.idx_bytes;
    a.num_tokens = tokens;
    a.topk = b->shape.batch.topk;
    a.max_tokens = b->shape.batch.max_tokens;
    a.hidden = b->shape.hidden;
    a.cast = b->shape.cast;
    a.weights = b->shape.weights;
    a.num_sms = m->num_sms;
    a.out = at(b, m->out, device);
    a.out_scales = at(b, m->scales, device);
    a.out_counts = (int32_t *)at(b, m->counts, device);
    a.out_ranges = (int64_t *)at(b, m->ranges, device);
    a.out_source = (int32_t *)at(b, m->source, device);
    a.layout = b->shape.layout;
    a.out_topk_idx = (int32_t *)at(b, m->local, device);
    a.out_topk_weights = (float *)at(b, m->local_weights, device);
    a.sum_counts = (int64_t *)at(b, m->sums, device);
    return a;
}

struct tern_ll_combine_args ll_combine_args(const struct ll_batch *b, int rank, int device)
{
    struct tern_ll_combine_args a = TERN_LL_COMBINE_ARGS_INIT;
    const struct ll_member *m = &b->ranks[rank];

    a.lane = b->shape.lane;
    a.in = at(b, m->made, device);
    if (b->shape.weights != TERN_LL_WEIGHTS_AT_DISPATCH && b->batch.num_tokens[rank]) {
        a.topk_weights = (const float *)at(b, b->batch.weights[rank], device);
    }
    a.out = at(b, m->home, device);
    a.out_stride = m->home_stride;
    a.compression = b->shape.compression;
    a.num_sms = m->num_sms;
    return a;
}

int ll_dispatch_issue(struct ll_batch *b, uint32_t phase, int lane)
{
    struct world *w = b->batch.world;

    for (int s = 0; s < w->num_ranks; s++) {
        struct tern_ll_dispatch_args a = ll_dispatch_args(b, s, world_local(w, s));
        a.phase = phase;
        if (world_local(w, s)) {
            OK(tern_ll_dispatch(b->eps[s], &a, w->members[s].lanes[lane]));
        }
    }
    return 0;
}

int ll_combine_issue(struct ll_batch *b, uint32_t phase, int lane)
{
    struct world *w = b->batch.world;

    for (int s = 0; s < w->num_ranks; s++) {
        struct tern_ll_combine_args a = ll_combine_args(b, s, world_local(w, s));
        a.phase = phase;
        a.compression = phase == TERN_LL_RECEIVE ? 99 : a.compression; /* it is ignored there */
        if (world_local(w, s)) {
            OK(tern_ll_combine(b->eps[s], &a, w->members[s].lanes[lane]));
        }
    }
    return 0;
}

int ll_mask_issue(struct ll_batch *b, const unsigned char *masked, int lane)
{
    struct world *w = b->batch.world;

    for (int s = 0; s < w->num_ranks; s++) {
        int32_t *told = (int32_t *)world_image(w, b->ranks[s].mask);
        for (int r = 0; r < w->num_ranks; r++) {
            told[r] = masked[r];
            if (world_local(w, s)) {
                OK(tern_ll_mask_set(b->eps[s], r, masked[r], w->members[s].lanes[lane]));
            }
        }
        if (world_local(w, s)) {
            OK(tern_ll_mask_get(b->eps[s], (int32_t *)world_device(w, b->ranks[s].mask),
                                w->members[s].lanes[lane]));
        }
    }
    return 0;
}

void ll_expect_masks(struct ll_batch *b, const unsigned char *masked, int combine)
{
    memcpy(b->masked, masked, sizeof b->masked);
    if (!combine) {
        terni_ref_ll_mask(&b->ref, b->masked);
    } else {
        b->ref.masked = b->masked;
    }
}

void ll_expect_dispatch(struct ll_batch *b)
{
    size_t ranks = (size_t)b->batch.world->num_ranks;
    struct tern_ll_dispatch_args *args = (struct tern_ll_dispatch_args *)test_take(ranks, sizeof *args);

    for (size_t s = 0; s < ranks; s++) {
        args[s] = ll_dispatch_args(b, (int)s, 0);
    }
    for (size_t s = 0; s < ranks; s++) {
        terni_ref_ll_dispatch(&b->ref, args, (int)s);
    }
    free(args);
}

void ll_expect_combine(struct ll_batch *b)
{
    size_t ranks = (size_t)b->batch.world->num_ranks;
    struct tern_ll_dispatch_args *sent = (struct tern_ll_dispatch_args *)test_take(ranks, sizeof *sent);
    struct tern_ll_combine_args *args = (struct tern_ll_combine_args *)test_take(ranks, sizeof *args);

    for (size_t s = 0; s < ranks; s++) {
        sent[s] = ll_dispatch_args(b, (int)s, 0);
        args[s] = ll_combine_args(b, (int)s, 0);
    }
    for (size_t s = 0; s < ranks; s++) {
        terni_ref_ll_combine(&b->ref, sent, args, (int)s);
    }
    free(sent);
    free(args);
}

void ll_config_add(struct tern_ep_config *config, const struct ll_shape *shape, uint32_t lanes)
{
    config->ll_tokens = shape->batch.max_tokens;
    config->ll_hidden = shape->hidden;
    config->ll_lanes = lanes;
    config->ll_rail = (uint32_t)shape->railed;
}
