/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch and combine under test. The same description of a rank's buffers makes the arguments for the
 * device and the arguments for the reference; only the addresses differ. */
#include "batch.h"

#include <stdlib.h>
#include <string.h>

static int64_t stride_of(const struct tern_rows *rows)
{
    return rows->row_stride ? rows->row_stride : (int64_t)rows->row_bytes;
}

struct payload payload_take(struct world *w, int rank, int arena, uint64_t rows, uint32_t row_bytes,
                            int64_t row_stride, const char *name)
{
    struct payload p;

    memset(&p, 0, sizeof p);
    p.rows.row_bytes = row_bytes;
    p.rows.row_stride = row_stride;
    p.place = world_take(w, rank, arena, (size_t)rows * (size_t)stride_of(&p.rows), name);
    return p;
}

static struct tern_rows rows_at(const struct world *w, const struct payload *p, int device)
{
    struct tern_rows rows = p->rows;

    rows.data = device ? world_device(w, p->place) : world_image(w, p->place);
    return rows;
}

static void *pointer(const struct world *w, struct place place, int device)
{
    return device ? world_device(w, place) : world_image(w, place);
}

static uint64_t room(const struct batch *b, int rank, uint64_t capacity)
{
    return capacity ? capacity : b->expected[rank].num_rows;
}

/* ---- Dispatch ---- */

void dispatch_init(struct dispatch *d, struct batch *b, uint32_t cast, uint32_t num_in)
{
    memset(d, 0, sizeof *d);
    d->batch = b;
    d->cast = cast;
    d->num_in = num_in;
    d->num_out = num_in + (cast != TERN_CAST_NONE);
    d->ranks = (struct sender *)test_take((size_t)b->world->num_ranks, sizeof *d->ranks);
}

void dispatch_plain(struct dispatch *d, struct batch *b, uint32_t row_bytes, uint64_t capacity, int arena)
{
    struct world *w = b->world;
    int r;

    dispatch_init(d, b, TERN_CAST_NONE, 1);
    for (r = 0; r < w->num_ranks; r++) {
        struct sender *s = &d->ranks[r];
        size_t topk = b->shape.topk;
        s->out_rows = room(b, r, capacity);
        s->in[0] = payload_take(w, r, ARENA_DEVICE, b->num_tokens[r], row_bytes, 0, "in");
        s->out[0] = payload_take(w, r, arena, s->out_rows, row_bytes, 0, "out");
        s->has_weights = 1;
        s->zero_padding = b->shape.layout == TERN_LAYOUT_EXPERT;
        s->out_source = world_take(w, r, arena, (size_t)s->out_rows * 8, "out_source");
        if (b->shape.layout == TERN_LAYOUT_RANK) {
            s->out_idx =
                world_take(w, r, arena, (size_t)s->out_rows * topk * b->shape.idx_bytes, "out_topk_idx");
        } else {
            topk = 1;
        }
        s->out_weights =
            world_take(w, r, arena, (size_t)s->out_rows * topk * sizeof(float), "out_topk_weights");
    }
}

void dispatch_fill(struct dispatch *d, struct rng *r)
{
    struct world *w = d->batch->world;
    uint32_t i;
    int s;

    for (s = 0; s < w->num_ranks; s++) {
        for (i = 0; i < d->num_in; i++) {
            struct place place = d->ranks[s].in[i].place;
            if (i == 0 && d->cast != TERN_CAST_NONE) {
                rng_bf16(r, (uint16_t *)world_image(w, place), place.bytes / 2, d->wild);
            } else {
                rng_bytes(r, world_image(w, place), place.bytes);
            }
        }
    }
    dispatch_poison(d);
}

void dispatch_poison(struct dispatch *d)
{
    struct world *w = d->batch->world;
    uint32_t i;
    int s;

    for (s = 0; s < w->num_ranks; s++) {
        for (i = 0; i < d->num_out; i++) {
            world_poison(w, d->ranks[s].out[i].place);
        }
        world_poison(w, d->ranks[s].out_idx);
        world_poison(w, d->ranks[s].out_weights);
        world_poison(w, d->ranks[s].out_source);
    }
}

struct tern_dispatch_args dispatch_args(const struct dispatch *d, int rank, int device, struct tern_rows *in,
                                        struct tern_rows *out)
{
    const struct world *w = d->batch->world;
    const struct sender *s = &d->ranks[rank];
    struct tern_dispatch_args args = TERN_DISPATCH_ARGS_INIT;
    uint32_t i;

    for (i = 0; i < d->num_in; i++) {
        in[i] = rows_at(w, &s->in[i], device);
    }
    for (i = 0; i < d->num_out; i++) {
        out[i] = rows_at(w, &s->out[i], device);
    }
    args.in = in;
    args.out = out;
    args.num_in = d->num_in;
    args.cast = d->cast;
    args.out_rows = s->out_rows;
    if (s->has_weights) {
        args.topk_weights = (const float *)pointer(w, d->batch->weights[rank], device);
    }
    args.out_topk_idx = pointer(w, s->out_idx, device);
    args.out_topk_weights = (float *)pointer(w, s->out_weights, device);
    args.out_source = (int32_t *)pointer(w, s->out_source, device);
    args.zero_padding = s->zero_padding;
    args.num_sms = s->num_sms;
    args.after = s->after;
    args.record = s->record;
    return args;
}

int dispatch_issue_rank(struct dispatch *d, int rank, int lane)
{
    struct tern_rows in[TERN_MAX_PAYLOADS], out[TERN_MAX_PAYLOADS + 1];
    struct tern_dispatch_args args = dispatch_args(d, rank, 1, in, out);

    OK(tern_dispatch(d->batch->routes[rank], &args, d->batch->world->members[rank].lanes[lane]));
    return 0;
}

int dispatch_issue(struct dispatch *d, int lane)
{
    int r;

    for (r = 0; r < d->batch->world->num_ranks; r++) {
        if (world_local(d->batch->world, r)) {
            PASS(dispatch_issue_rank(d, r, lane));
        }
    }
    return 0;
}

struct dispatch_images {
    struct tern_rows in[TERN_MAX_PAYLOADS], out[TERN_MAX_PAYLOADS + 1];
};

void dispatch_expect(struct dispatch *d)
{
    size_t ranks = (size_t)d->batch->world->num_ranks;
    struct dispatch_images *images = (struct dispatch_images *)test_take(ranks, sizeof *images);
    struct tern_dispatch_args *args = (struct tern_dispatch_args *)test_take(ranks, sizeof *args);
    int r;

    for (r = 0; r < (int)ranks; r++) {
        args[r] = dispatch_args(d, r, 0, images[r].in, images[r].out);
    }
    for (r = 0; r < (int)ranks; r++) {
        if (world_local(d->batch->world, r)) {
            (void)terni_ref_dispatch(&d->batch->ref, &d->batch->expected[r], args);
        }
    }
    free(images);
    free(args);
}

int dispatch_check_overflow(struct dispatch *d)
{
    struct batch *b = d->batch;
    int r;

    for (r = 0; r < b->world->num_ranks; r++) {
        uint64_t needs = b->expected[r].num_rows;
        uint64_t expected = needs > d->ranks[r].out_rows ? needs - d->ranks[r].out_rows : 0;
        struct tern_route_view v = TERN_ROUTE_VIEW_INIT;
        const uint64_t *got;
        if (!world_local(b->world, r)) {
            continue;
        }
        OK(tern_route_get_view(b->routes[r], &v));
        got = (const uint64_t *)world_peek(b->world, r, v.overflow, sizeof *got);
        CHECK(got, "rank %d: no overflow", r);
        CHECK(*got == expected, "rank %d: overflow is %llu with room for %llu rows of %llu, expected %llu", r,
              (unsigned long long)*got, (unsigned long long)d->ranks[r].out_rows, (unsigned long long)needs,
              (unsigned long long)expected);
    }
    return 0;
}

void dispatch_fini(struct dispatch *d)
{
    free(d->ranks);
    d->ranks = NULL;
}

int dispatch_check(struct dispatch *d, struct tern_ep **eps, int lane)
{
    PASS(world_upload(d->batch->world));
    PASS(dispatch_issue(d, lane));
    dispatch_expect(d);
    PASS(world_ep_synchronize(d->batch->world, eps));
    PASS(world_verify(d->batch->world, "dispatch"));
    return dispatch_check_overflow(d);
}

/* ---- Combine ---- */

void combine_init(struct combine *c, struct batch *b)
{
    memset(c, 0, sizeof *c);
    c->batch = b;
    c->ranks = (struct gatherer *)test_take((size_t)b->world->num_ranks, sizeof *c->ranks);
}

void combine_plain(struct combine *c, struct batch *b, uint32_t row_bytes, uint64_t capacity, int arena)
{
    struct world *w = b->world;
    int r, i;

    combine_init(c, b);
    for (r = 0; r < w->num_ranks; r++) {
        struct gatherer *g = &c->ranks[r];
        size_t per_row = b->shape.layout == TERN_LAYOUT_RANK ? b->shape.topk : 1;
        g->in_rows = room(b, r, capacity);
        g->in = payload_take(w, r, arena, g->in_rows, row_bytes, 0, "combine in");
        g->out = payload_take(w, r, ARENA_DEVICE, b->num_tokens[r], row_bytes, 0, "combine out");
        g->in_weights = world_take(w, r, arena, (size_t)g->in_rows * per_row * sizeof(float), "in_weights");
        g->out_weights = world_take(w, r, ARENA_DEVICE,
                                    (size_t)b->num_tokens[r] * b->shape.topk * sizeof(float), "out_weights");
        for (i = 0; i < 2; i++) {
            g->bias[i] = world_take(w, r, ARENA_DEVICE, (size_t)b->num_tokens[r] * row_bytes, "bias");
        }
    }
}

static void fill_bf16(const struct combine *c, struct place place, struct rng *r)
{
    if (place.arena) {
        rng_bf16(r, (uint16_t *)world_image(c->batch->world, place), place.bytes / 2, c->wild);
    }
}

void combine_fill(struct combine *c, struct rng *r)
{
    struct world *w = c->batch->world;
    size_t i;
    int s;

    for (s = 0; s < w->num_ranks; s++) {
        struct gatherer *g = &c->ranks[s];
        float *weights = (float *)world_image(w, g->in_weights);
        fill_bf16(c, g->in.place, r);
        fill_bf16(c, g->bias[0], r);
        fill_bf16(c, g->bias[1], r);
        for (i = 0; i < g->in_weights.bytes / sizeof(float); i++) {
            weights[i] = (float)(int32_t)rng_next(r) * 0x1p-30f;
        }
    }
    combine_poison(c);
}

void combine_poison(struct combine *c)
{
    int s;

    for (s = 0; s < c->batch->world->num_ranks; s++) {
        world_poison(c->batch->world, c->ranks[s].out.place);
        world_poison(c->batch->world, c->ranks[s].out_weights);
    }
}

struct tern_combine_args combine_args(const struct combine *c, int rank, int device)
{
    const struct world *w = c->batch->world;
    const struct gatherer *g = &c->ranks[rank];
    struct tern_combine_args args = TERN_COMBINE_ARGS_INIT;
    int i;

    args.copy_engine = c->copy_engine;
    args.in = rows_at(w, &g->in, device);
    args.in_rows = g->in_rows;
    args.in_weights = (const float *)pointer(w, g->in_weights, device);
    args.out = rows_at(w, &g->out, device);
    args.out_weights = (float *)pointer(w, g->out_weights, device);
    for (i = 0; i < 2; i++) {
        args.bias[i] = pointer(w, g->bias[i], device);
    }
    args.num_sms = g->num_sms;
    args.after = g->after;
    args.record = g->record;
    return args;
}

int combine_issue_rank(struct combine *c, int rank, int lane)
{
    struct tern_combine_args args = combine_args(c, rank, 1);

    OK(tern_combine(c->batch->routes[rank], &args, c->batch->world->members[rank].lanes[lane]));
    return 0;
}

int combine_issue(struct combine *c, int lane)
{
    int r;

    for (r = 0; r < c->batch->world->num_ranks; r++) {
        if (world_local(c->batch->world, r)) {
            PASS(combine_issue_rank(c, r, lane));
        }
    }
    return 0;
}

void combine_expect(struct combine *c)
{
    size_t ranks = (size_t)c->batch->world->num_ranks;
    struct tern_combine_args *args = (struct tern_combine_args *)test_take(ranks, sizeof *args);
    int r;

    for (r = 0; r < (int)ranks; r++) {
        args[r] = combine_args(c, r, 0);
    }
    for (r = 0; r < (int)ranks; r++) {
        if (world_local(c->batch->world, r)) {
            terni_ref_combine(&c->batch->ref, c->batch->expected, args, r);
        }
    }
    free(args);
}

void combine_fini(struct combine *c)
{
    free(c->ranks);
    c->ranks = NULL;
}

int combine_check(struct combine *c, struct tern_ep **eps, int lane)
{
    PASS(world_upload(c->batch->world));
    PASS(combine_issue(c, lane));
    combine_expect(c);
    PASS(world_ep_synchronize(c->batch->world, eps));
    return world_verify(c->batch->world, "combine");
}
