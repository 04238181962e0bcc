/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency operations among others: batches in flight in several lanes, high-throughput operations between
 * their phases, replayed graphs, ranks that do not come or do something else, what is refused, and what it
 * takes in memory. */
#include "ll_batch.h"
#include "scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, CULPRIT = 3, BATCHES = 3, LL_TOKENS = 12 };

/* Lanes 0, 1 and 2 hold batches of different forms, beside one batch of the scene. */
struct stage {
    struct scene scene;
    struct ll_batch batches[BATCHES];
};

static int stage_open(struct stage *x, uint64_t seed, uint32_t timeout_ms)
{
    static const uint32_t casts[BATCHES] = {TERN_CAST_NONE, TERN_CAST_FP8, TERN_CAST_FP8_UE8M0};
    static const uint32_t hiddens[BATCHES] = {72, 400, 1040};
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_EXPERT, ROUTING_UNIFORM);

    memset(x, 0, sizeof *x);
    scene_init(&x->scene, RANKS, seed);
    scene_add(&x->scene, &shape, 0);
    for (uint32_t i = 0; i < BATCHES; i++) {
        struct ll_shape s;
        memset(&s, 0, sizeof s);
        s.batch = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
        s.batch.max_tokens = LL_TOKENS;
        s.lane = i;
        s.hidden = hiddens[i];
        s.cast = casts[i];
        s.weights = i % 2;
        ll_batch_init(&x->batches[i], &x->scene.world, x->scene.eps, &s, &x->scene.rng);
        ll_config_add(&x->scene.config, &s, BATCHES);
    }
    x->scene.config.timeout_ms = timeout_ms;
    return scene_open(&x->scene);
}

static void stage_close(struct stage *x)
{
    for (int i = 0; i < BATCHES; i++) {
        ll_batch_fini(&x->batches[i]);
    }
    scene_fini(&x->scene);
}

static int with_stage(struct test *t, int (*body)(struct stage *), uint32_t timeout_ms)
{
    struct stage x;
    int result = stage_open(&x, 900 + (uint64_t)t->number, timeout_ms);

    result = result ? result : body(&x);
    stage_close(&x);
    return result;
}

static void redraw(struct stage *x)
{
    for (int i = 0; i < BATCHES; i++) {
        ll_batch_redraw(&x->batches[i], i == 1 ? ROUTING_MIXED : ROUTING_UNIFORM, &x->scene.rng);
    }
    scene_refill(&x->scene, 0);
}

static int judge(struct stage *x, const char *step)
{
    for (int i = 0; i < BATCHES; i++) {
        ll_expect_dispatch(&x->batches[i]);
        ll_expect_combine(&x->batches[i]);
    }
    dispatch_expect(&x->scene.dispatches[0]);
    combine_expect(&x->scene.combines[0]);
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    return world_verify(&x->scene.world, step);
}

/* ---- In flight ---- */

/* One phase of one operation of one lane. */
static int take_step(struct stage *x, int lane, int step)
{
    struct ll_batch *b = &x->batches[lane];
    int stream = (int)rng_below(&x->scene.rng, NUM_LANES);
    uint32_t phase = step % 2 ? TERN_LL_RECEIVE : TERN_LL_SEND;

    return step < 2 ? ll_dispatch_issue(b, phase, stream) : ll_combine_issue(b, phase, stream);
}

/* Phases of all lanes in a random order, on random streams, with a route, a dispatch and a combine anywhere
 * between them; nothing waits for the host. */
static int shuffle_phases(struct stage *x)
{
    struct scene *s = &x->scene;
    int steps[BATCHES + 1] = {0, 0, 0, 0};

    for (int left = 4 * BATCHES + 3; left > 0;) {
        int who = (int)rng_below(&s->rng, BATCHES + 1);
        if (steps[who] == (who == BATCHES ? 3 : 4)) {
            continue;
        }
        if (who < BATCHES) {
            PASS(take_step(x, who, steps[who]));
        } else if (steps[who] == 0) {
            PASS(batch_open(&s->batches[0], s->eps, (int)rng_below(&s->rng, NUM_LANES)));
        } else if (steps[who] == 1) {
            PASS(dispatch_issue(&s->dispatches[0], (int)rng_below(&s->rng, NUM_LANES)));
        } else {
            PASS(combine_issue(&s->combines[0], (int)rng_below(&s->rng, NUM_LANES)));
        }
        steps[who]++;
        left--;
    }
    return 0;
}

static int in_flight_body(struct stage *x)
{
    for (int round = 0; round < 12; round++) {
        redraw(x);
        PASS(world_upload(&x->scene.world));
        PASS(shuffle_phases(x));
        PASS(judge(x, "lanes in flight with high throughput between"));
        batch_close(&x->scene.batches[0]);
    }
    return 0;
}

static int in_flight(struct test *t) { return with_stage(t, in_flight_body, 60000); }

/* ---- Graphs ---- */

static int capture(struct stage *x)
{
    struct scene *s = &x->scene;

    for (int r = 0; r < RANKS; r++) {
        struct member *m = &s->world.members[r];
        OK(tern_graph_begin(m->comm, m->lanes[1]));
        for (int i = 0; i < BATCHES; i++) {
            struct tern_ll_dispatch_args d = ll_dispatch_args(&x->batches[i], r, 1);
            d.phase = i == 2 ? TERN_LL_BOTH : TERN_LL_SEND;
            OK(tern_ll_dispatch(s->eps[r], &d, m->lanes[1]));
        }
        for (int i = 0; i < BATCHES; i++) {
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

static int replay(struct stage *x, int round)
{
    struct scene *s = &x->scene;

    for (int i = 0; i < BATCHES; i++) {
        ll_batch_redraw_ids(&x->batches[i], round % 3 == 0 ? ROUTING_MIXED : round % NUM_ROUTINGS, &s->rng);
    }
    PASS(world_upload(&s->world));
    for (int r = 0; r < RANKS; r++) {
        OK(tern_graph_launch(s->world.members[r].comm, s->graphs[r], s->world.members[r].lanes[1]));
    }
    for (int i = 0; i < BATCHES; i++) {
        ll_expect_dispatch(&x->batches[i]);
        ll_expect_combine(&x->batches[i]);
    }
    PASS(world_synchronize(&s->world));
    PASS(world_ep_synchronize(&s->world, s->eps));
    return world_verify(&s->world, "a replayed graph");
}

static int graphs_body(struct stage *x)
{
    struct scene *s = &x->scene;

    redraw(x);
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

static int graphs(struct test *t) { return with_stage(t, graphs_body, 60000); }

/* ---- Faults ---- */

static int issue_for(struct stage *x, int lane, int operation, uint32_t phase, int rank)
{
    struct ll_batch *b = &x->batches[lane];
    struct tern_ll_dispatch_args d = ll_dispatch_args(b, rank, 1);
    struct tern_ll_combine_args c = ll_combine_args(b, rank, 1);
    struct tern_stream *stream = x->scene.world.members[rank].lanes[0];

    d.phase = phase;
    c.phase = phase;
    return operation == TERN_OP_LL_DISPATCH ? tern_ll_dispatch(x->scene.eps[rank], &d, stream)
                                            : tern_ll_combine(x->scene.eps[rank], &c, stream);
}

static int check_survivors(struct stage *x, int operation)
{
    int noticed = 0;

    for (int r = 0; r < RANKS; r++) {
        struct tern_fault f = TERN_FAULT_INIT;
        if (r == CULPRIT) {
            continue;
        }
        REFUSES(tern_ep_synchronize(x->scene.eps[r]), TERN_TIMEOUT, "rank 3 ");
        OK(tern_fault_get(x->scene.eps[r], &f));
        CHECK(f.operation == operation && f.peer == CULPRIT, "rank %d: operation %d, rank %d is to blame", r,
              f.operation, f.peer);
        CHECK(strstr(tern_last_error(), "low-latency"), "\"%s\" does not say low-latency", tern_last_error());
        if (f.reporter == r) {
            CHECK(f.late[0] == 1u << CULPRIT, "rank %d: late ranks are 0x%llx", r,
                  (unsigned long long)f.late[0]);
            CHECK(f.elapsed_ns >= (uint64_t)x->scene.config.timeout_ms * 900000, "gave up after %llu ns",
                  (unsigned long long)f.elapsed_ns);
            noticed++;
        }
    }
    CHECK(noticed, "no rank noticed by itself");
    return 0;
}

static int recover(struct stage *x)
{
    OK(tern_ep_reset_all(RANKS, x->scene.eps));
    batch_close(&x->scene.batches[0]);
    redraw(x);
    PASS(world_upload(&x->scene.world));
    PASS(shuffle_phases(x));
    return judge(x, "after a reset");
}

/* Rank 3 leaves out `operation`, whole or from its receive phase on, and does all before it. */
static int absent(struct stage *x, int operation, uint32_t phase)
{
    test_quiet();
    redraw(x);
    PASS(world_upload(&x->scene.world));
    if (operation == TERN_OP_LL_COMBINE) {
        PASS(ll_dispatch_issue(&x->batches[1], TERN_LL_BOTH, 0));
    }
    for (int r = 0; r < RANKS; r++) {
        if (r != CULPRIT) {
            OK((enum tern_status)issue_for(x, 1, operation, phase, r));
        }
    }
    for (int r = 0; r < RANKS && phase == TERN_LL_SEND; r++) {
        if (r != CULPRIT) {
            OK(tern_ep_synchronize(x->scene.eps[r])); /* sending waits for nobody */
            OK((enum tern_status)issue_for(x, 1, operation, TERN_LL_RECEIVE, r));
        }
    }
    PASS(check_survivors(x, operation));
    return recover(x);
}

static int absent_dispatch_body(struct stage *x) { return absent(x, TERN_OP_LL_DISPATCH, TERN_LL_BOTH); }
static int absent_send_body(struct stage *x) { return absent(x, TERN_OP_LL_DISPATCH, TERN_LL_SEND); }
static int absent_combine_body(struct stage *x) { return absent(x, TERN_OP_LL_COMBINE, TERN_LL_BOTH); }
static int absent_home_body(struct stage *x) { return absent(x, TERN_OP_LL_COMBINE, TERN_LL_SEND); }

static uint32_t deadline_ms(const struct test *t) { return t->scale < 100 ? 3000 : 700; }
static int absent_dispatch(struct test *t) { return with_stage(t, absent_dispatch_body, deadline_ms(t)); }
static int absent_send(struct test *t) { return with_stage(t, absent_send_body, deadline_ms(t)); }
static int absent_combine(struct test *t) { return with_stage(t, absent_combine_body, deadline_ms(t)); }
static int absent_home(struct test *t) { return with_stage(t, absent_home_body, deadline_ms(t)); }

static int other_shape_body(struct stage *x)
{
    int told = 0;

    test_quiet();
    redraw(x);
    PASS(world_upload(&x->scene.world));
    for (int r = 0; r < RANKS; r++) {
        struct tern_ll_dispatch_args d = ll_dispatch_args(&x->batches[1], r, 1);
        d.hidden -= r == CULPRIT ? 16 : 0;
        OK(tern_ll_dispatch(x->scene.eps[r], &d, x->scene.world.members[r].lanes[0]));
    }
    for (int r = 0; r < RANKS; r++) {
        EXPECT(tern_ep_synchronize(x->scene.eps[r]), TERN_MISMATCH);
        told += strstr(tern_last_error(), "rank 3 ") != NULL;
    }
    CHECK(told, "no rank names rank 3");
    return recover(x);
}

static int other_shape(struct test *t) { return with_stage(t, other_shape_body, 60000); }

static int bad_ids_body(struct stage *x)
{
    struct ll_batch *b = &x->batches[0];
    struct tern_fault f = TERN_FAULT_INIT;

    test_quiet();
    ll_batch_redraw_ids(b, ROUTING_UNIFORM, &x->scene.rng); /* every rank has all its tokens */
    b->batch.ids[1][7] = 16;
    batch_changed(&b->batch);
    terni_ref_ll_fini(&b->ref);
    terni_ref_ll_init(&b->ref, &b->batch.ref, LL_TOKENS);
    PASS(world_upload(&x->scene.world));
    PASS(ll_dispatch_issue(b, TERN_LL_BOTH, 0));
    PASS(ll_combine_issue(b, TERN_LL_BOTH, 0));
    ll_expect_dispatch(b);
    ll_expect_combine(b);
    OK(tern_ep_synchronize(x->scene.eps[0]));
    REFUSES(tern_ep_synchronize(x->scene.eps[1]), TERN_INVALID_ARGUMENT, "expert id 16 of token 1, choice 3");
    OK(tern_ep_synchronize(x->scene.eps[1])); /* told once */
    OK(tern_fault_get(x->scene.eps[1], &f));
    CHECK(f.awaited == TERN_AWAIT_EXPERT_ID && f.seen == 16, "awaited %d, seen %llu", f.awaited,
          (unsigned long long)f.seen);
    return world_verify(&x->scene.world, "an id out of range counts as -1");
}

static int bad_ids(struct test *t) { return with_stage(t, bad_ids_body, 60000); }

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

static int many(struct test *t)
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
#ifdef __SANITIZE_THREAD__
    return test_skip(t, "%d ranks have more fibers than ThreadSanitizer takes threads", MANY);
#endif
    memset(&shape, 0, sizeof shape);
    shape.batch = scene_shape(MANY, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    shape.batch.num_experts = 2 * MANY;
    shape.batch.topk = 8;
    shape.batch.max_tokens = 3;
    shape.hidden = 64;
    shape.weights = TERN_LL_WEIGHTS_AT_DISPATCH;
    shape.cast = TERN_CAST_FP8_POW2;
    config.num_experts = shape.batch.num_experts;
    config.max_topk = 8;
    config.max_tokens = 1;
    config.max_row_bytes = 16;
    config.staging_bytes = TERN_STAGING_NONE;
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

/* ---- Refusals ---- */

static int refuse_dispatch(struct stage *x)
{
    const struct ll_batch *b = &x->batches[1];
    struct tern_ep *ep = x->scene.eps[0];
    struct tern_stream *stream = x->scene.world.members[0].lanes[0];
    struct tern_ll_dispatch_args a;

#define REFUSED(field, value, text)                                                                          \
    do {                                                                                                     \
        a = ll_dispatch_args(b, 0, 1);                                                                       \
        a.field = value;                                                                                     \
        REFUSES(tern_ll_dispatch(ep, &a, stream), TERN_INVALID_ARGUMENT, text);                              \
    } while (0)
    REFUSED(size, 8, "size is 8");
    REFUSED(lane, 3, "lane is 3; the object has 3");
    REFUSED(phase, 3, "phase is 3");
    REFUSED(num_tokens, LL_TOKENS + 1, "num_tokens is 13");
    REFUSED(max_tokens, LL_TOKENS + 1, "max_tokens is 13");
    REFUSED(topk, 5, "topk is 5");
    REFUSED(topk, 0, "topk is 0");
    REFUSED(hidden, 2000, "hidden is 2000");
    REFUSED(hidden, 72, "hidden is 72; it must be a multiple of 16");
    REFUSED(cast, 4, "cast is 4");
    REFUSED(weights, 2, "weights is 2");
    REFUSED(weights, TERN_LL_WEIGHTS_AT_COMBINE, "weights says at combine");
    REFUSED(idx_bytes, 2, "idx_bytes is 2");
    REFUSED(in, NULL, "in is NULL");
    REFUSED(topk_idx, NULL, "topk_idx is NULL");
    REFUSED(topk_weights, NULL, "topk_weights is NULL");
    REFUSED(in_stride, 600, "in_stride is 600");
    REFUSED(in, (const char *)a.in + 8, "in is at");
    REFUSED(out, NULL, "out is NULL");
    REFUSED(out_counts, NULL, "out_counts is NULL");
    REFUSED(out_scales, NULL, "out_scales is");
    REFUSED(out, (char *)a.out + 4, "out is at");
#undef REFUSED
    return 0;
}

static int refuse_combine(struct stage *x)
{
    struct tern_ep *ep = x->scene.eps[0];
    struct tern_stream *stream = x->scene.world.members[0].lanes[0];
    struct tern_ll_combine_args a;

#define REFUSED(batch, field, value, text)                                                                   \
    do {                                                                                                     \
        a = ll_combine_args(&x->batches[batch], 0, 1);                                                       \
        a.field = value;                                                                                     \
        REFUSES(tern_ll_combine(ep, &a, stream), TERN_INVALID_ARGUMENT, text);                               \
    } while (0)
    REFUSED(0, in, NULL, "in is NULL");
    REFUSED(0, in, (const char *)a.in + 8, "in is at");
    REFUSED(0, out, NULL, "out is NULL");
    REFUSED(0, out_stride, 136, "out is at");
    REFUSED(0, topk_weights, NULL, "topk_weights is NULL");
    REFUSED(1, topk_weights, (const float *)a.out, "dispatch has taken them");
#undef REFUSED
    return 0;
}

/* The order in a lane. */
static int refuse_order(struct stage *x)
{
    static const char *const nothing = "lane 0 has sent no";

    for (int r = 0; r < RANKS; r++) {
        REFUSES((enum tern_status)issue_for(x, 0, TERN_OP_LL_DISPATCH, TERN_LL_RECEIVE, r), TERN_BAD_STATE,
                nothing);
        REFUSES((enum tern_status)issue_for(x, 0, TERN_OP_LL_COMBINE, TERN_LL_BOTH, r), TERN_BAD_STATE,
                "dispatched nothing");
    }
    PASS(ll_dispatch_issue(&x->batches[0], TERN_LL_SEND, 0));
    for (int r = 0; r < RANKS; r++) {
        REFUSES((enum tern_status)issue_for(x, 0, TERN_OP_LL_DISPATCH, TERN_LL_BOTH, r), TERN_BAD_STATE,
                "must be received first");
        REFUSES((enum tern_status)issue_for(x, 0, TERN_OP_LL_COMBINE, TERN_LL_RECEIVE, r), TERN_BAD_STATE,
                "has sent no combine");
    }
    PASS(ll_dispatch_issue(&x->batches[0], TERN_LL_RECEIVE, 0));
    PASS(ll_dispatch_issue(&x->batches[1], TERN_LL_BOTH, 0));
    return world_ep_synchronize(&x->scene.world, x->scene.eps);
}

static int refusals_body(struct stage *x)
{
    test_quiet();
    for (int i = 0; i < BATCHES; i++) {
        ll_batch_redraw_ids(&x->batches[i], ROUTING_UNIFORM, &x->scene.rng);
    }
    PASS(world_upload(&x->scene.world));
    PASS(refuse_dispatch(x));
    PASS(refuse_order(x));
    PASS(refuse_combine(x));
    PASS(ll_combine_issue(&x->batches[0], TERN_LL_BOTH, 0));
    PASS(ll_combine_issue(&x->batches[1], TERN_LL_BOTH, 0));
    for (int i = 0; i < 2; i++) {
        ll_expect_dispatch(&x->batches[i]);
        ll_expect_combine(&x->batches[i]);
    }
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    return world_verify(&x->scene.world, "after refusals");
}

static int refusals(struct test *t) { return with_stage(t, refusals_body, 60000); }

/* ---- Sizes: pure ---- */

static struct tern_ep_config large(void)
{
    struct tern_ep_config c = TERN_EP_CONFIG_INIT;

    c.num_experts = 256;
    c.max_topk = 8;
    c.max_tokens = 128;
    c.max_row_bytes = 14336;
    c.staging_bytes = TERN_STAGING_NONE;
    c.ll_tokens = 128;
    c.ll_hidden = 7168;
    return c;
}

static int sizes(struct test *t)
{
    static const int ranks[] = {1, 2, 4, 8, 16, 32, 64};
    struct tern_ep_sizes s = TERN_EP_SIZES_INIT;
    struct tern_ep_config c = large();
    uint64_t with = 0;

    test_quiet();
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        OK(tern_ep_get_sizes(&c, ranks[i], &s));
        with = s.window_bytes + s.device_bytes;
        CHECK(with < 950000000, "%d ranks take %llu bytes", ranks[i], (unsigned long long)with);
        /* Rows that can be on their way to one rank, in two lanes with two copies each. */
        CHECK(s.window_bytes >= 4ull * (uint64_t)ranks[i] * 128 * 14336, "%d ranks: too little", ranks[i]);
    }
    test_detail(t, "64 ranks take %.0f MB", (double)with * 1e-6);
    OK(tern_ep_get_sizes(&c, 8, &s));
    CHECK(s.window_bytes < 70000000, "8 ranks take %llu bytes", (unsigned long long)s.window_bytes);
    c.ll_tokens = c.ll_hidden = 0;
    OK(tern_ep_get_sizes(&c, 8, &s));
    CHECK(s.window_bytes < 2000000, "%llu bytes without low latency", (unsigned long long)s.window_bytes);
    c = large();
    c.ll_tokens = 0;
    REFUSES(tern_ep_get_sizes(&c, 8, &s), TERN_INVALID_ARGUMENT, "ll_hidden without ll_tokens");
    c = large();
    c.max_topk = 33;
    REFUSES(tern_ep_get_sizes(&c, 8, &s), TERN_INVALID_ARGUMENT, "max_topk with low latency is 33");
    c = large();
    c.ll_tokens = 8193;
    REFUSES(tern_ep_get_sizes(&c, 8, &s), TERN_INVALID_ARGUMENT, "ll_tokens is 8193");
    c = large();
    c.reserved = 1;
    REFUSES(tern_ep_get_sizes(&c, 8, &s), TERN_INVALID_ARGUMENT, "reserved is 1");
    return 0;
}

static int without(struct test *t)
{
    struct tern_ll_dispatch_args a = TERN_LL_DISPATCH_ARGS_INIT;
    struct scene s;
    int result;

    (void)t;
    test_quiet();
    scene_init(&s, 1, 5);
    result = scene_open(&s);
    if (result == 0) {
        enum tern_status status = tern_ll_dispatch(s.eps[0], &a, s.world.members[0].lanes[0]);
        result =
            status == TERN_BAD_STATE && strstr(tern_last_error(), "without low latency") ? 0 : TEST_FAILED;
    }
    scene_fini(&s);
    return result;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "lanes in flight, phases in any order, high throughput between", in_flight);
    test_run(&t, "a captured graph replays with other ids and counts", graphs);
    test_run(&t, "a rank that never dispatches", absent_dispatch);
    test_run(&t, "a rank that never sends, the others in two phases", absent_send);
    test_run(&t, "a rank that never combines", absent_combine);
    test_run(&t, "a rank that never combines, the others in two phases", absent_home);
    test_run(&t, "a rank with another shape", other_shape);
    test_run(&t, "an id out of range", bad_ids);
    test_run(&t, "64 ranks", many);
    test_run(&t, "refused arguments and orders", refusals);
    test_run(&t, "memory, by a pure function", sizes);
    test_run(&t, "an object without low latency", without);
    return test_end(&t);
}
