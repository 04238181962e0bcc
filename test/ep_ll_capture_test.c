/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency calls in captures and calls beside them: two batches of different shapes take turns in one
 * lane, one captured, the other not. What is captured has not run, may never run, and may run often; so
 * neither side may disturb the other's order, and a launch in the wrong place must be told, not carried
 * out. */
#include "ll_batch.h"
#include "scene.h"

#include <string.h>

enum { RANKS = 3, OUTSIDE = 0, CAPTURED = 1, BATCHES = 2 };

struct stage {
    struct scene scene;
    struct ll_batch batches[BATCHES];
    struct tern_graph *more[RANKS]; /* beside the scene's */
};

/* alike: the batches differ in nothing but tokens. ahead: weights of both go ahead of combines. */
static int stage_open(struct stage *x, uint64_t seed, int alike, int ahead)
{
    static const uint32_t hiddens[BATCHES] = {400, 72};
    struct tern_ep_config *config = &x->scene.config;

    memset(x, 0, sizeof *x);
    scene_init(&x->scene, RANKS, seed);
    for (int i = 0; i < BATCHES; i++) {
        struct ll_shape s;
        memset(&s, 0, sizeof s);
        s.batch = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
        s.batch.topk = i == CAPTURED && !alike ? 2 : 4;
        s.batch.max_tokens = 12;
        s.hidden = hiddens[alike ? OUTSIDE : i];
        s.weights = i == CAPTURED && !alike ? TERN_LL_WEIGHTS_AT_DISPATCH : TERN_LL_WEIGHTS_AT_COMBINE;
        s.weights = ahead ? TERN_LL_WEIGHTS_AHEAD : s.weights;
        ll_batch_init(&x->batches[i], &x->scene.world, x->scene.eps, &s, &x->scene.rng);
        ll_config_add(config, &s, 1);
    }
    config->ll_hidden = hiddens[OUTSIDE];
    return scene_open(&x->scene);
}

static void stage_close(struct stage *x)
{
    for (int r = 0; r < RANKS; r++) {
        if (x->more[r]) {
            tern_graph_close(x->scene.world.members[r].comm, x->more[r]);
        }
    }
    for (int i = 0; i < BATCHES; i++) {
        ll_batch_fini(&x->batches[i]);
    }
    scene_fini(&x->scene);
}

static int with_stage(struct test *t, int (*body)(struct stage *), int alike, int ahead)
{
    struct stage x;
    int result = stage_open(&x, 77 + (uint64_t)t->number, alike, ahead);

    result = result ? result : body(&x);
    stage_close(&x);
    return result;
}

static int begin(struct stage *x)
{
    for (int i = 0; i < BATCHES; i++) {
        ll_batch_redraw_ids(&x->batches[i], ROUTING_UNIFORM, &x->scene.rng);
    }
    return world_upload(&x->scene.world);
}

/* ---- Captures ---- */

static int capture_begin(struct stage *x)
{
    for (int r = 0; r < RANKS; r++) {
        OK(tern_graph_begin(x->scene.world.members[r].comm, x->scene.world.members[r].lanes[0]));
    }
    return 0;
}

static int capture_end(struct stage *x, struct tern_graph **graphs)
{
    for (int r = 0; r < RANKS; r++) {
        OK(tern_graph_end(x->scene.world.members[r].comm, x->scene.world.members[r].lanes[0], &graphs[r]));
    }
    return 0;
}

static int launch(struct stage *x, struct tern_graph **graphs)
{
    for (int r = 0; r < RANKS; r++) {
        struct member *m = &x->scene.world.members[r];
        OK(tern_graph_launch(m->comm, graphs[r], m->lanes[0]));
    }
    return 0;
}

static int throw_away(struct stage *x, struct tern_graph **graphs)
{
    PASS(capture_end(x, graphs));
    for (int r = 0; r < RANKS; r++) {
        tern_graph_close(x->scene.world.members[r].comm, graphs[r]);
        graphs[r] = NULL;
    }
    return 0;
}

/* Both operations of batch i, by calls or by graphs, have been given to all streams: waits and compares. */
static int judge(struct stage *x, int i, const char *step)
{
    ll_expect_dispatch(&x->batches[i]);
    ll_expect_combine(&x->batches[i]);
    PASS(world_synchronize(&x->scene.world));
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    return world_verify(&x->scene.world, step);
}

/* What the call of rank 0 returns. The call is refused, so no other rank need make it. */
static enum tern_status try_call(struct stage *x, int i, int operation, uint32_t phase)
{
    struct tern_ll_dispatch_args d = ll_dispatch_args(&x->batches[i], 0, 1);
    struct tern_ll_combine_args c = ll_combine_args(&x->batches[i], 0, 1);
    struct tern_stream *stream = x->scene.world.members[0].lanes[0];

    d.phase = phase;
    c.phase = phase;
    return operation == TERN_OP_LL_DISPATCH ? tern_ll_dispatch(x->scene.eps[0], &d, stream)
                                            : tern_ll_combine(x->scene.eps[0], &c, stream);
}

/* ---- Cases ---- */

/* A send is captured and never received or run. */
static int thrown_away_body(struct stage *x)
{
    test_quiet();
    PASS(begin(x));
    for (int i = 0; i < 2; i++) {
        PASS(capture_begin(x));
        PASS(ll_dispatch_issue(&x->batches[CAPTURED], TERN_LL_SEND, 0)); /* the second time, too */
        REFUSES(try_call(x, CAPTURED, TERN_OP_LL_DISPATCH, TERN_LL_SEND), TERN_BAD_STATE,
                "must be received first");
        PASS(throw_away(x, x->scene.graphs));
    }
    REFUSES(try_call(x, OUTSIDE, TERN_OP_LL_DISPATCH, TERN_LL_RECEIVE), TERN_BAD_STATE, "has sent no");
    PASS(ll_dispatch_issue(&x->batches[OUTSIDE], TERN_LL_BOTH, 0));
    PASS(ll_combine_issue(&x->batches[OUTSIDE], TERN_LL_BOTH, 0));
    return judge(x, OUTSIDE, "calls after a capture that was thrown away");
}

/* A capture of whole operations comes between the calls of another batch; it runs before or after them. */
static int between_body(struct stage *x)
{
    test_quiet();
    PASS(begin(x));
    PASS(ll_dispatch_issue(&x->batches[OUTSIDE], TERN_LL_SEND, 0));
    PASS(capture_begin(x));
    REFUSES(try_call(x, CAPTURED, TERN_OP_LL_DISPATCH, TERN_LL_RECEIVE), TERN_BAD_STATE,
            "by a captured call");
    REFUSES(try_call(x, CAPTURED, TERN_OP_LL_COMBINE, TERN_LL_BOTH), TERN_BAD_STATE, "by a captured call");
    PASS(ll_dispatch_issue(&x->batches[CAPTURED], TERN_LL_BOTH, 0));
    PASS(ll_combine_issue(&x->batches[CAPTURED], TERN_LL_BOTH, 0));
    PASS(capture_end(x, x->scene.graphs));
    PASS(ll_dispatch_issue(&x->batches[OUTSIDE], TERN_LL_RECEIVE, 0));
    PASS(ll_combine_issue(&x->batches[OUTSIDE], TERN_LL_SEND, 0));
    PASS(ll_combine_issue(&x->batches[OUTSIDE], TERN_LL_RECEIVE, 0));
    PASS(judge(x, OUTSIDE, "calls around a capture"));
    PASS(launch(x, x->scene.graphs));
    return judge(x, CAPTURED, "the capture between calls");
}

/* One graph sends, another receives and combines. */
static int two_graphs_body(struct stage *x)
{
    PASS(begin(x));
    PASS(capture_begin(x));
    PASS(ll_dispatch_issue(&x->batches[CAPTURED], TERN_LL_SEND, 0));
    PASS(capture_end(x, x->scene.graphs));
    PASS(capture_begin(x));
    PASS(ll_dispatch_issue(&x->batches[CAPTURED], TERN_LL_RECEIVE, 0));
    PASS(ll_combine_issue(&x->batches[CAPTURED], TERN_LL_BOTH, 0));
    PASS(capture_end(x, x->more));
    for (int i = 0; i < 3; i++) {
        PASS(begin(x));
        PASS(launch(x, x->scene.graphs));
        PASS(launch(x, x->more));
        PASS(judge(x, CAPTURED, "an operation in two graphs"));
    }
    return 0;
}

/* A graph with a dispatch runs between a dispatch outside and its combine. */
static int wrong_place_body(struct stage *x)
{
    int told = 0, differ = 0;

    test_quiet();
    ll_batch_redraw(&x->batches[OUTSIDE], ROUTING_UNIFORM, &x->scene.rng);
    for (int r = 0; r < RANKS; r++) {
        differ += x->batches[OUTSIDE].batch.num_tokens[r] != x->batches[CAPTURED].batch.num_tokens[r];
    }
    CHECK(differ, "the seed gives both batches the same numbers of tokens");
    PASS(begin(x));
    PASS(capture_begin(x));
    PASS(ll_dispatch_issue(&x->batches[CAPTURED], TERN_LL_BOTH, 0));
    PASS(capture_end(x, x->scene.graphs));
    PASS(ll_dispatch_issue(&x->batches[OUTSIDE], TERN_LL_BOTH, 0));
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    PASS(launch(x, x->scene.graphs));
    PASS(world_synchronize(&x->scene.world));
    PASS(ll_combine_issue(&x->batches[OUTSIDE], TERN_LL_BOTH, 0));
    for (int r = 0; r < RANKS; r++) {
        REFUSES(tern_ep_synchronize(x->scene.eps[r]), TERN_MISMATCH, "another dispatch has run in the lane");
        told += strstr(tern_last_error(), "reported") == NULL;
    }
    CHECK(told, "no rank found it by itself");
    OK(tern_ep_reset_all(RANKS, x->scene.eps));
    PASS(begin(x));
    PASS(ll_dispatch_issue(&x->batches[OUTSIDE], TERN_LL_BOTH, 0));
    PASS(ll_combine_issue(&x->batches[OUTSIDE], TERN_LL_BOTH, 0));
    return judge(x, OUTSIDE, "after a reset");
}

static int thrown_away(struct test *t) { return with_stage(t, thrown_away_body, 0, 0); }
static int between(struct test *t) { return with_stage(t, between_body, 0, 0); }
static int two_graphs(struct test *t) { return with_stage(t, two_graphs_body, 0, 0); }
static int wrong_place(struct test *t) { return with_stage(t, wrong_place_body, 0, 0); }
static int wrong_tokens(struct test *t) { return with_stage(t, wrong_place_body, 1, 0); }
static int ahead_between(struct test *t) { return with_stage(t, between_body, 0, 1); }
static int ahead_in_two(struct test *t) { return with_stage(t, two_graphs_body, 0, 1); }
static int ahead_wrong_place(struct test *t) { return with_stage(t, wrong_place_body, 0, 1); }

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "a captured send that is thrown away", thrown_away);
    test_run(&t, "a capture between calls of another shape", between);
    test_run(&t, "one graph sends, another receives", two_graphs);
    test_run(&t, "a graph in the wrong place", wrong_place);
    test_run(&t, "a graph in the wrong place, of the same shape with other tokens", wrong_tokens);
    test_run(&t, "a capture between calls, weights ahead", ahead_between);
    test_run(&t, "one graph sends, another receives, weights ahead", ahead_in_two);
    test_run(&t, "a graph in the wrong place, weights ahead", ahead_wrong_place);
    return test_end(&t);
}
