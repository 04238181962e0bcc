/* SPDX-License-Identifier: Apache-2.0
 *
 * Ids of all ranks, the reference's view of them, and the routes that must agree. */
#include "batch.h"

#include <stdlib.h>
#include <string.h>

static uint32_t share_of(const struct batch *b)
{
    return b->shape.num_experts / (uint32_t)b->world->num_ranks;
}

/* One token's ids. All kinds but ROUTING_MIXED draw experts without repetition while there are enough. */
static void draw_token(const struct batch *b, int routing, int64_t target, int64_t *ids, struct rng *r)
{
    uint32_t share = share_of(b);
    uint32_t k, j;

    for (k = 0; k < b->shape.topk; k++) {
        int64_t id = rng_below(r, b->shape.num_experts);
        if (routing == ROUTING_ONE_EXPERT) {
            id = target;
        } else if (routing == ROUTING_ONE_RANK) {
            id = target / share * share + rng_below(r, share);
        } else if (routing == ROUTING_NONE) {
            id = -1;
        } else if (routing == ROUTING_MIXED) {
            id = rng_one_in(r, 4) ? -1 : k && rng_one_in(r, 4) ? ids[k - 1] : id;
        }
        for (j = 0; j < k && routing == ROUTING_UNIFORM && k < b->shape.num_experts; j++) {
            if (ids[j] == id) { /* the next one that is free */
                id = (id + 1) % b->shape.num_experts;
                j = (uint32_t)-1;
            }
        }
        ids[k] = id;
    }
}

static void draw_ids(struct batch *b, int routing, struct rng *r)
{
    int64_t target = rng_below(r, b->shape.num_experts);
    uint32_t t;
    int s;

    for (s = 0; s < b->world->num_ranks; s++) {
        for (t = 0; t < b->num_tokens[s]; t++) {
            draw_token(b, routing, target, b->ids[s] + (size_t)t * b->shape.topk, r);
        }
    }
}

static void draw_weights(struct batch *b, struct rng *r)
{
    size_t i;
    int s;

    for (s = 0; s < b->world->num_ranks; s++) {
        float *weights = (float *)world_image(b->world, b->weights[s]);
        for (i = 0; i < b->weights[s].bytes / sizeof(float); i++) {
            weights[i] = (float)(int32_t)rng_next(r) * 0x1p-30f;
        }
    }
}

void batch_changed(struct batch *b)
{
    size_t i;
    int s;

    for (s = 0; s < b->world->num_ranks; s++) {
        void *image = world_image(b->world, b->idx[s]);
        for (i = 0; i < (size_t)b->num_tokens[s] * b->shape.topk; i++) {
            if (b->shape.idx_bytes == 4) {
                ((int32_t *)image)[i] = (int32_t)b->ids[s][i];
            } else {
                ((int64_t *)image)[i] = b->ids[s][i];
            }
        }
    }
    for (s = 0; s < b->world->num_ranks; s++) {
        terni_ref_route_fini(&b->expected[s], &b->ref);
        terni_ref_route_init(&b->expected[s], &b->ref, b->shape.layout, b->shape.alignment, s);
    }
}

void batch_redraw(struct batch *b, int routing, struct rng *r)
{
    draw_ids(b, routing, r);
    draw_weights(b, r);
    batch_changed(b);
}

void batch_init(struct batch *b, struct world *w, const struct batch_shape *shape, struct rng *r)
{
    size_t ranks = (size_t)w->num_ranks;
    size_t entries;
    int s;

    memset(b, 0, sizeof *b);
    b->world = w;
    b->shape = *shape;
    b->num_tokens = (uint32_t *)test_take(ranks, sizeof *b->num_tokens);
    b->ids = (int64_t **)test_take(ranks, sizeof *b->ids);
    b->expected = (struct ref_route *)test_take(ranks, sizeof *b->expected);
    b->idx = (struct place *)test_take(ranks, sizeof *b->idx);
    b->weights = (struct place *)test_take(ranks, sizeof *b->weights);
    b->routes = (struct tern_route **)test_take(ranks, sizeof *b->routes);
    for (s = 0; s < w->num_ranks; s++) {
        b->num_tokens[s] = shape->equal_tokens ? shape->max_tokens
                           : rng_one_in(r, 6)  ? 0
                                               : rng_between(r, 0, shape->max_tokens);
        entries = (size_t)b->num_tokens[s] * shape->topk;
        b->ids[s] = (int64_t *)test_take(entries, sizeof(int64_t));
        b->idx[s] = world_take(w, s, ARENA_DEVICE, entries * shape->idx_bytes, "topk_idx");
        b->weights[s] = world_take(w, s, ARENA_DEVICE, entries * sizeof(float), "topk_weights");
    }
    b->ref.num_ranks = w->num_ranks;
    b->ref.domain_ranks = w->domain_ranks;
    b->ref.num_experts = shape->num_experts;
    b->ref.topk = shape->topk;
    b->ref.idx_bytes = shape->idx_bytes;
    b->ref.num_tokens = b->num_tokens;
    b->ref.topk_idx = (const int64_t *const *)b->ids;
    batch_redraw(b, shape->routing, r);
}

void batch_fini(struct batch *b)
{
    int s;

    batch_close(b);
    for (s = 0; b->ids && s < b->world->num_ranks; s++) {
        terni_ref_route_fini(&b->expected[s], &b->ref);
        free(b->ids[s]);
    }
    free(b->num_tokens);
    free(b->ids);
    free(b->expected);
    free(b->idx);
    free(b->weights);
    free(b->routes);
    memset(b, 0, sizeof *b);
}

struct tern_route_args batch_args(const struct batch *b, int rank)
{
    struct tern_route_args args = TERN_ROUTE_ARGS_INIT;

    args.topk_idx = b->num_tokens[rank] ? world_device(b->world, b->idx[rank]) : NULL;
    args.idx_bytes = b->shape.idx_bytes;
    args.num_tokens = b->num_tokens[rank];
    args.topk = b->shape.topk;
    args.layout = b->shape.layout;
    args.expert_alignment = b->shape.alignment;
    return args;
}

int batch_open(struct batch *b, struct tern_ep **eps, int lane)
{
    int s;

    for (s = 0; s < b->world->num_ranks; s++) {
        if (world_local(b->world, s)) {
            struct tern_route_args args = batch_args(b, s);
            OK(tern_route_open(eps[s], &args, b->world->members[s].lanes[lane], &b->routes[s]));
        }
    }
    return 0;
}

int batch_update(struct batch *b, int lane)
{
    int s;

    for (s = 0; s < b->world->num_ranks; s++) {
        if (world_local(b->world, s)) {
            struct tern_route_args args = batch_args(b, s);
            OK(tern_route_update(b->routes[s], &args, b->world->members[s].lanes[lane]));
        }
    }
    return 0;
}

static int compare(const struct batch *b, int rank, const char *what, const int32_t *got,
                   const int32_t *expected, uint32_t count)
{
    uint32_t i;

    CHECK(got, "rank %d of %d: no %s", rank, b->world->num_ranks, what);
    for (i = 0; i < count; i++) {
        CHECK(got[i] == expected[i], "rank %d of %d: %s[%u] is %d, expected %d", rank, b->world->num_ranks,
              what, i, got[i], expected[i]);
    }
    return 0;
}

int batch_check_counts(struct batch *b)
{
    uint32_t ranks = (uint32_t)b->world->num_ranks;
    uint32_t share = share_of(b);
    int s;

    for (s = 0; s < b->world->num_ranks; s++) {
        const struct ref_route *e = &b->expected[s];
        struct tern_route_counts c = TERN_ROUTE_COUNTS_INIT;
        if (!world_local(b->world, s)) {
            continue;
        }
        OK(tern_route_wait(b->routes[s], &c));
        CHECK(c.num_rows == e->num_rows, "rank %d: num_rows is %llu, expected %llu", s,
              (unsigned long long)c.num_rows, (unsigned long long)e->num_rows);
        CHECK(c.num_tokens == e->num_tokens, "rank %d: num_tokens is %llu, expected %llu", s,
              (unsigned long long)c.num_tokens, (unsigned long long)e->num_tokens);
        PASS(compare(b, s, "rank_counts", c.rank_counts, e->rank_counts, ranks));
        PASS(compare(b, s, "expert_counts", c.expert_counts, e->expert_counts, share));
        if (e->expert_offsets) {
            PASS(compare(b, s, "expert_offsets", c.expert_offsets, e->expert_offsets, share + 1));
        }
    }
    return 0;
}

static int is_far(const struct batch *b, int rank, int other)
{
    int size = b->world->domain_ranks;

    return size && rank / size != other / size;
}

/* token_rows and bases together name the row of every token at every rank, or of every choice. */
static int check_token_rows(struct batch *b, int rank, const struct tern_route_view *v)
{
    int by_rank = b->shape.layout == TERN_LAYOUT_RANK;
    uint32_t columns = by_rank ? (uint32_t)b->world->num_ranks : b->shape.topk;
    uint32_t num_bases = by_rank ? (uint32_t)b->world->num_ranks : b->shape.num_experts;
    uint32_t i, t = 0;
    const int32_t *rows;
    int32_t *bases = (int32_t *)test_take(num_bases, sizeof(int32_t));
    const void *peeked = world_peek(b->world, rank, v->bases, num_bases * sizeof(int32_t));

    memcpy(bases, peeked ? peeked : bases, num_bases * sizeof(int32_t));
    rows = (const int32_t *)world_peek(b->world, rank, v->token_rows,
                                       (size_t)b->num_tokens[rank] * columns * sizeof(int32_t));
    for (t = 0; peeked && rows && t < b->num_tokens[rank]; t++) {
        for (i = 0; i < columns; i++) {
            int64_t id = by_rank ? -1 : b->ids[rank][(size_t)t * columns + i];
            int owner = by_rank                                ? (int)i
                        : id >= 0 && id < b->shape.num_experts ? (int)(id / share_of(b))
                                                               : -1;
            int64_t expected = owner < 0 ? -1 : terni_ref_route_row(&b->expected[owner], &b->ref, rank, t, i);
            int64_t got = rows[(size_t)t * columns + i];
            int32_t base = by_rank ? bases[i] : owner < 0 ? 0 : bases[id];
            if (owner >= 0 && is_far(b, rank, owner)) { /* only ranks there know the row */
                expected = expected < 0 ? -1 : 0;
                got = base != -1 ? base : got < 0 ? -1 : 0;
            } else if (got >= 0) {
                got += base;
            }
            if (got != expected) {
                test_note(__FILE__, __LINE__, "rank %d: token %u, %s %u: row %lld, expected %lld", rank, t,
                          by_rank ? "rank" : "choice", i, (long long)got, (long long)expected);
                peeked = NULL;
                break;
            }
        }
    }
    free(bases);
    return peeked && rows ? TEST_PASSED : TEST_FAILED;
}

static int peek_compare(struct batch *b, int rank, const char *what, const int32_t *device,
                        const int32_t *expected, uint32_t count)
{
    CHECK(device, "rank %d: the view has no %s", rank, what);
    return compare(b, rank, what,
                   (const int32_t *)world_peek(b->world, rank, device, count * sizeof(int32_t)), expected,
                   count);
}

int batch_check_view(struct batch *b)
{
    uint32_t share = share_of(b);
    int s;

    PASS(world_synchronize(b->world));
    for (s = 0; s < b->world->num_ranks; s++) {
        const struct ref_route *e = &b->expected[s];
        struct tern_route_view v = TERN_ROUTE_VIEW_INIT;
        int32_t num_rows = (int32_t)e->num_rows;
        if (!world_local(b->world, s)) {
            continue;
        }
        OK(tern_route_get_view(b->routes[s], &v));
        PASS(peek_compare(b, s, "num_rows", v.num_rows, &num_rows, 1));
        PASS(peek_compare(b, s, "expert_counts", v.expert_counts, e->expert_counts, share));
        if (e->rank_offsets) {
            PASS(peek_compare(b, s, "rank_offsets", v.rank_offsets, e->rank_offsets,
                              (uint32_t)b->world->num_ranks + 1));
        } else {
            PASS(peek_compare(b, s, "expert_offsets", v.expert_offsets, e->expert_offsets, share + 1));
        }
        PASS(check_token_rows(b, s, &v));
    }
    return 0;
}

void batch_close(struct batch *b)
{
    int s;

    for (s = 0; b->routes && s < b->world->num_ranks; s++) {
        tern_route_close(b->routes[s]);
        b->routes[s] = NULL;
    }
}
