/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency operations among others: batches in flight in several lanes, high-throughput operations between
 * their phases, replayed graphs, and 64 ranks. */
#include "ll_stage.h"

#include <string.h>

/* ---- In flight ---- */

static int in_flight_body(struct ll_stage *x)
{
    for (int round = 0; round < 12; round++) {
        ll_stage_redraw(x);
        PASS(world_upload(&x->scene.world));
        PASS(ll_stage_shuffle(x));
        PASS(ll_stage_judge(x, "lanes in flight with high throughput between"));
        batch_close(&x->scene.batches[0]);
    }
    return 0;
}

static int in_flight(struct test *t) { return ll_stage_run(t, in_flight_body, 60000); }
static int few_in_flight(struct test *t) { return ll_stage_run_few(t, in_flight_body, 60000); }

/* ---- Graphs ---- */

static int capture(struct ll_stage *x)
{
    struct scene *s = &x->scene;

    for (int r = 0; r < STAGE_RANKS; r++) {
        struct member *m = &s->world.members[r];
        OK(tern_graph_begin(m->comm, m->lanes[1]));
        for (int i = 0; i < STAGE_BATCHES; i++) {
            struct tern_ll_dispatch_args d = ll_dispatch_args(&x->batches[i], r, 1);
            d.phase = i == 2 ? TERN_LL_BOTH : TERN_LL_SEND;
            OK(tern_ll_dispatch(s->eps[r], &d, m->lanes[1]));
        }
        for (int i = 0; i < STAGE_BATCHES; i++) {
            struct tern_ll_dispatch_args d = ll_dispatch_args(&x->batches[i], r, 1);
            struct tern_ll_combine_args c = ll_combine_args(&x->batches[i], r, 1);
            d.phase = TERN_LL_RECEIVE;
            if (i != 2) {
                OK(tern_ll_dispatch(s->eps[r], &d, m->lanes[1]));
            }
            OK(tern_ll_combine(s->eps[r], &c, m->lanes[1]));
        }
        OK(tern_graph_end(m->comm, m->lanes[1], &s->graphs[r]));
    }
    return 0;
}

static int replay(struct ll_stage *x, int round)
{
    struct scene *s = &x->scene;

    for (int i = 0; i < STAGE_BATCHES; i++) {
        ll_batch_redraw_ids(&x->batches[i], round % 3 == 0 ? ROUTING_MIXED : round % NUM_ROUTINGS, &s->rng);
    }
    PASS(world_upload(&s->world));
    for (int r = 0; r < STAGE_RANKS; r++) {
        OK(tern_graph_launch(s->world.members[r].comm, s->graphs[r], s->world.members[r].lanes[1]));
    }
    for (int i = 0; i < STAGE_BATCHES; i++) {
        ll_expect_dispatch(&x->batches[i]);
        ll_expect_combine(&x->batches[i]);
    }
    PASS(world_synchronize(&s->world));
    PASS(world_ep_synchronize(&s->world, s->eps));
    return world_verify(&s->world, "a replayed graph");
}

static int graphs_body(struct ll_stage *x)
{
    struct scene *s = &x->scene;

    ll_stage_redraw(x);
    PASS(capture(x));
    for (int round = 0; round < 10; round++) {
        PASS(replay(x, round));
        if (round % 4 == 3) { /* calls outside the graph fit between replays: one combine more, too */
            ll_batch_redraw_ids(&x->batches[0], ROUTING_UNIFORM, &s->rng);
            PASS(world_upload(&s->world));
            PASS(ll_dispatch_issue(&x->batches[0], TERN_LL_BOTH, 1));
            PASS(ll_combine_issue(&x->batches[0], TERN_LL_BOTH, 1));
            PASS(ll_combine_issue(&x->batches[0], TERN_LL_BOTH, 1));
            ll_expect_dispatch(&x->batches[0]);
            ll_expect_combine(&x->batches[0]);
            PASS(world_ep_synchronize(&s->world, s->eps));
            PASS(world_verify(&s->world, "calls beside a graph"));
        }
    }
    return 0;
}

static int graphs(struct test *t) { return ll_stage_run(t, graphs_body, 60000); }
static int few_graphs(struct test *t) { return ll_stage_run_few(t, graphs_body, 60000); }
static int far_graphs(struct test *t)
{
    PASS(ll_stage_run_cut(t, graphs_body, 60000, 0, STAGE_CUT));
    return ll_stage_run_cut(t, graphs_body, 60000, 0, STAGE_BY_PROXY);
}
static int railed_graphs(struct test *t)
{
    PASS(ll_stage_run_railed(t, graphs_body, 60000, STAGE_CUT));
    return ll_stage_run_railed(t, graphs_body, 60000, STAGE_BY_NIC);
}

/* ---- Many ---- */

enum { MANY = 64 };

static int many_rounds(struct world *w, struct ll_batch *b, struct tern_ep **eps,
                       const struct tern_ep_config *config, struct rng *r)
{
    struct tern_comm_config comm = TERN_COMM_CONFIG_INIT;

    comm.timeout_ms = 60000;
    comm.cpu_seed = 64;
    PASS(world_open(w, NULL, &comm));
    PASS(world_ep_open(w, config, eps));
    for (int round = 0; round < 3; round++) {
        ll_batch_redraw(b, round == 1 ? ROUTING_MIXED : ROUTING_UNIFORM, r);
        PASS(world_upload(w));
        PASS(ll_dispatch_issue(b, TERN_LL_BOTH, 0));
        PASS(ll_combine_issue(b, TERN_LL_SEND, 0));
        PASS(ll_combine_issue(b, TERN_LL_RECEIVE, 0));
        ll_expect_dispatch(b);
        ll_expect_combine(b);
        PASS(world_ep_synchronize(w, eps));
        PASS(world_verify(w, "64 ranks"));
    }
    return 0;
}

static int many_by(struct test *t, uint32_t layout, uint32_t tokens, uint32_t weights)
{
    struct ll_shape shape;
    struct tern_ep_config config = TERN_EP_CONFIG_INIT;
    struct tern_ep *eps[MANY] = {NULL};
    struct rng r = {64};
    struct world w;
    struct ll_batch b;
    int cpu = scene_on_cpu();
    int result;

    if (cpu != 1) {
        return cpu < 0 ? cpu : test_skip(t, "%d ranks do not fit on one device at once", MANY);
    }
#ifdef TERN_THREAD_SANITIZER
    return test_skip(t, "%d ranks have more fibers than ThreadSanitizer takes threads", MANY);
#endif
    memset(&shape, 0, sizeof shape);
    shape.batch = scene_shape(MANY, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    shape.batch.num_experts = 2 * MANY;
    shape.batch.topk = tokens == 1 ? 4 : 8;
    shape.batch.max_tokens = tokens;
    shape.hidden = 64;
    shape.weights = weights;
    shape.layout = layout;
    shape.cast = TERN_CAST_FP8_POW2;
    shape.compression = tokens == 1 ? TERN_LL_PLAIN : TERN_LL_LOG10; /* rows of few go in words */
    config.num_experts = shape.batch.num_experts;
    config.max_topk = shape.batch.topk;
    ll_config_add(&config, &shape, 1);
    world_init(&w, MANY, -1);
    w.num_lanes = 1;
    ll_batch_init(&b, &w, eps, &shape, &r);
    for (int s = 0; s < MANY; s++) {
        b.ranks[s].num_sms = 1 + (uint32_t)s % 2;
    }
    result = many_rounds(&w, &b, eps, &config, &r);
    ll_batch_fini(&b);
    world_ep_close(&w, eps);
    world_fini(&w);
    return result;
}

static int many(struct test *t) { return many_by(t, TERN_LL_BY_EXPERT, 10, TERN_LL_WEIGHTS_AT_DISPATCH); }
static int many_by_rank(struct test *t)
{
    return many_by(t, TERN_LL_BY_RANK, 10, TERN_LL_WEIGHTS_AT_DISPATCH);
}
static int many_of_few(struct test *t)
{
    return many_by(t, TERN_LL_BY_EXPERT, 1, TERN_LL_WEIGHTS_AT_DISPATCH);
}
static int many_ahead(struct test *t) { return many_by(t, TERN_LL_BY_EXPERT, 10, TERN_LL_WEIGHTS_AHEAD); }

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "lanes in flight, phases in any order, high throughput between", in_flight);
    test_run(&t, "a captured graph replays with other ids and counts", graphs);
    test_run(&t, "the same across domains", far_graphs);
    test_run(&t, "the same, railed", railed_graphs);
    test_run(&t, "64 ranks", many);
    test_run(&t, "64 ranks, output by rank", many_by_rank);
    test_run(&t, "lanes in flight, of few tokens and of more", few_in_flight);
    test_run(&t, "a captured graph of few tokens", few_graphs);
    test_run(&t, "64 ranks, a token each", many_of_few);
    test_run(&t, "64 ranks, weights ahead of combines", many_ahead);
    return test_end(&t);
}
