/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a random case: takes the buffers (strides, arenas and optional outputs are drawn rank by rank), issues
 * route, dispatch and combine one behind the other, and judges every byte and every count. */
#include "ep_case.h"

#include <stdlib.h>
#include <string.h>

static int arena_for(const struct ep_case *c, struct rng *r)
{
    return c->windows_only || !rng_one_in(r, 3) ? ARENA_WINDOW : ARENA_DEVICE;
}

/* Row by row with gaps, or column by column: element i of all tokens lies together. */
static struct payload take_input(struct world *w, int rank, uint32_t tokens, uint32_t row_bytes,
                                 uint32_t unit, uint32_t gap, struct rng *r)
{
    struct payload p;

    memset(&p, 0, sizeof p);
    p.rows.row_bytes = row_bytes;
    if (rng_one_in(r, 3) && row_bytes % unit == 0) {
        p.rows.elem_bytes = unit;
        p.rows.row_stride = unit;
        p.rows.elem_stride = (int64_t)unit * (tokens + rng_below(r, 4)) + (rng_one_in(r, 2) ? gap : 0);
        if (p.rows.elem_stride < (int64_t)unit) {
            p.rows.elem_stride = unit;
        }
        p.place = world_take(w, rank, ARENA_DEVICE, (size_t)p.rows.elem_stride * (row_bytes / unit), "in");
        return p;
    }
    return payload_take(w, rank, ARENA_DEVICE, tokens, row_bytes,
                        rng_one_in(r, 2) ? (int64_t)row_bytes + gap : 0, "in");
}

static void take_inputs(const struct ep_case *c, struct dispatch *d, int rank, struct rng *r)
{
    struct batch *b = d->batch;
    struct sender *s = &d->ranks[rank];
    uint32_t tokens = b->num_tokens[rank];
    uint32_t i, unit;

    for (i = 0; i < d->num_in; i++) {
        if (i == 0) { /* rows of in[0] are contiguous */
            s->in[0] = payload_take(b->world, rank, ARENA_DEVICE, tokens, c->row_bytes[0],
                                    c->row_bytes[0] + 16 * (int64_t)rng_below(r, 3), "in[0]");
            continue;
        }
        unit = c->row_bytes[i] % 16 == 0 ? 16 : c->row_bytes[i] % 4 == 0 ? 4 : 1;
        s->in[i] = take_input(b->world, rank, tokens, c->row_bytes[i], unit, unit * rng_below(r, 5), r);
    }
}

static uint64_t draw_room(const struct ep_case *c, const struct batch *b, int rank, struct rng *r)
{
    uint64_t rows = b->expected[rank].num_rows;
    uint64_t most = 0;

    if (c->room == ROOM_STATIC) {
        (void)tern_ep_max_rows(&c->config, c->num_ranks, (int)c->shape.layout, c->shape.alignment, &most);
        return most;
    }
    return c->room == ROOM_SHORT ? rng_below(r, (uint32_t)rows + 1) : rows;
}

/* With a cast, out[0] has a byte a channel, out[1] the scales, and the rest moves up by one. */
static uint32_t output_bytes(const struct ep_case *c, uint32_t i)
{
    if (c->cast == TERN_CAST_NONE) {
        return c->row_bytes[i];
    }
    if (i == 1) {
        return terni_ref_scale_bytes(c->cast, c->row_bytes[0] / 2);
    }
    return i == 0 ? c->row_bytes[0] / 2 : c->row_bytes[i - 1];
}

static void take_outputs(const struct ep_case *c, struct dispatch *d, int rank, struct rng *r)
{
    struct batch *b = d->batch;
    struct world *w = b->world;
    struct sender *s = &d->ranks[rank];
    uint32_t i, bytes, gap;
    int by_rank = b->shape.layout == TERN_LAYOUT_RANK;
    size_t per_row = by_rank ? b->shape.topk : 1;

    for (i = 0; i < d->num_out; i++) {
        bytes = output_bytes(c, i);
        gap = rng_below(r, 4) * (bytes % 16 == 0 ? 16 : bytes % 4 == 0 ? 4 : 1);
        s->out[i] = payload_take(w, rank, arena_for(c, r), s->out_rows, bytes,
                                 rng_one_in(r, 2) ? 0 : (int64_t)bytes + gap, i ? "out[i]" : "out[0]");
    }
    if (by_rank && !rng_one_in(r, 3)) {
        s->out_idx = world_take(w, rank, arena_for(c, r), (size_t)s->out_rows * per_row * b->shape.idx_bytes,
                                "out_topk_idx");
    }
    if (c->weights && !rng_one_in(r, 3)) {
        s->out_weights = world_take(w, rank, arena_for(c, r), (size_t)s->out_rows * per_row * sizeof(float),
                                    "out_topk_weights");
    }
    if (!rng_one_in(r, 3)) {
        s->out_source = world_take(w, rank, arena_for(c, r), (size_t)s->out_rows * 8, "out_source");
    }
}

static void take_dispatch(const struct ep_case *c, struct dispatch *d, struct batch *b, struct rng *r)
{
    int s;

    dispatch_init(d, b, c->cast, c->num_in);
    d->wild = 1;
    for (s = 0; s < c->num_ranks; s++) {
        d->ranks[s].out_rows = draw_room(c, b, s, r);
        d->ranks[s].has_weights = c->weights;
        d->ranks[s].zero_padding = c->shape.layout == TERN_LAYOUT_EXPERT && rng_one_in(r, 2);
        d->ranks[s].num_sms = rng_below(r, 5);
        take_inputs(c, d, s, r);
        take_outputs(c, d, s, r);
    }
}

static void take_combine(const struct ep_case *c, struct combine *k, struct batch *b, struct rng *r)
{
    struct world *w = b->world;
    size_t per_row = b->shape.layout == TERN_LAYOUT_RANK ? b->shape.topk : 1;
    int s, i, first;

    combine_init(k, b);
    k->wild = 1;
    k->copy_engine = (uint32_t)c->copy_engine;
    for (s = 0; s < c->num_ranks; s++) {
        struct gatherer *g = &k->ranks[s];
        uint32_t tokens = b->num_tokens[s];
        g->in_rows = draw_room(c, b, s, r);
        g->num_sms = rng_below(r, 5);
        g->in =
            payload_take(w, s, arena_for(c, r), g->in_rows, c->combine_bytes,
                         c->copy_engine ? 0 : c->combine_bytes + 16 * (int64_t)rng_below(r, 3), "combine in");
        g->out = payload_take(w, s, ARENA_DEVICE, tokens, c->combine_bytes,
                              c->combine_bytes + 16 * (int64_t)rng_below(r, 3), "combine out");
        if (c->weights) {
            g->in_weights =
                world_take(w, s, arena_for(c, r), (size_t)g->in_rows * per_row * sizeof(float), "in_weights");
        }
        if (c->weights && !rng_one_in(r, 4)) {
            g->out_weights =
                world_take(w, s, ARENA_DEVICE, (size_t)tokens * b->shape.topk * sizeof(float), "out_weights");
        }
        first = c->num_biases == 1 ? (int)rng_below(r, 2) : 0; /* a single bias may be either */
        for (i = first; i < first + c->num_biases; i++) {
            g->bias[i] = world_take(w, s, ARENA_DEVICE, (size_t)tokens * c->combine_bytes, "bias");
        }
    }
}

struct running {
    struct world world;
    struct batch batch;
    struct dispatch dispatch;
    struct combine combine;
    struct tern_ep **eps;
};

/* With exact shapes the host learns the counts before it dispatches; otherwise nothing waits for it. */
static int steps(const struct ep_case *c, struct running *x, const struct tern_id *id)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct rng r = {c->seed + 77};

    config.timeout_ms = 60000;
    config.cpu_seed = c->deterministic ? c->seed + 1 : 0;
    PASS(world_open(&x->world, id, &config));
    PASS(world_ep_open(&x->world, &c->config, x->eps));
    dispatch_fill(&x->dispatch, &r);
    combine_fill(&x->combine, &r);
    PASS(world_upload(&x->world));
    PASS(batch_open(&x->batch, x->eps, 0));
    if (c->room == ROOM_EXACT || c->copy_engine) {
        PASS(batch_check_counts(&x->batch));
    }
    PASS(dispatch_issue(&x->dispatch, 0));
    dispatch_expect(&x->dispatch);
    PASS(combine_issue(&x->combine, 0));
    combine_expect(&x->combine);
    PASS(world_ep_synchronize(&x->world, x->eps));
    PASS(world_verify(&x->world, "route, dispatch and combine"));
    PASS(dispatch_check_overflow(&x->dispatch));
    PASS(batch_check_view(&x->batch));
    if (x->world.self >= 0) { /* nobody closes what a peer's operation still waits for */
        OK(tern_comm_barrier(x->world.members[x->world.self].comm));
    }
    return 0;
}

static int run_case(const struct ep_case *c, int self, const struct tern_id *id, struct tern_comm *comm)
{
    struct running x;
    struct rng r = {c->seed + 1};
    char text[768];
    int result;

    memset(&x, 0, sizeof x);
    world_init(&x.world, c->num_ranks, self);
    if (comm != NULL) {
        x.world.members[self].comm = comm;
    }
    x.world.grows = c->windows_grow;
    x.world.domain_ranks = c->domain_ranks;
    x.world.forces_domains = c->forces_domains;
    x.world.num_lanes = 1; /* few streams, so that many ranks on one GPU find a hardware queue each */
    x.eps = (struct tern_ep **)test_take((size_t)c->num_ranks, sizeof(struct tern_ep *));
    batch_init(&x.batch, &x.world, &c->shape, &r);
    take_dispatch(c, &x.dispatch, &x.batch, &r);
    take_combine(c, &x.combine, &x.batch, &r);
    result = steps(c, &x, id);
    if (result) {
        ep_case_text(c, text, sizeof text);
        test_note(__FILE__, __LINE__, "%s%s", self < 0 ? "" : "one of several processes or threads; ", text);
    }
    batch_fini(&x.batch);
    world_ep_close(&x.world, x.eps);
    dispatch_fini(&x.dispatch);
    combine_fini(&x.combine);
    world_fini(&x.world);
    free(x.eps);
    return result;
}

int ep_case_run(const struct ep_case *c, int self, const struct tern_id *id)
{
    return run_case(c, self, id, NULL);
}

int ep_case_run_on(const struct ep_case *c, struct tern_comm *comm)
{
    return run_case(c, tern_comm_rank(comm), NULL, comm);
}
