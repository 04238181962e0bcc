/* SPDX-License-Identifier: Apache-2.0
 *
 * What low latency refuses, argument by argument and in what order, and what it takes in memory. */
#include "ll_stage.h"

#include <pthread.h>
#include <string.h>

/* ---- Refusals ---- */

static int refuse_dispatch(struct ll_stage *x)
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
    REFUSED(lane, 4, "lane is 4; the object has 4");
    REFUSED(phase, 3, "phase is 3");
    REFUSED(num_tokens, STAGE_TOKENS + 1, "num_tokens is 21");
    REFUSED(max_tokens, STAGE_TOKENS + 1, "max_tokens is 21");
    REFUSED(topk, 5, "topk is 5");
    REFUSED(topk, 0, "topk is 0");
    REFUSED(hidden, 2000, "hidden is 2000");
    REFUSED(hidden, 72, "hidden is 72; it must be a multiple of 16");
    REFUSED(cast, 4, "cast is 4");
    REFUSED(weights, 3, "weights is 3");
    REFUSED(weights, TERN_LL_WEIGHTS_AHEAD, "weights is 2: they come with the combine");
    REFUSED(weights, TERN_LL_WEIGHTS_AT_COMBINE, "weights is 0: they come with the combine");
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
    REFUSED(in, a.out, "overlaps in, ");
    REFUSED(out_counts, (int32_t *)(uintptr_t)a.topk_idx, "overlaps topk_idx, ");
    REFUSED(out_source, (int32_t *)(uintptr_t)a.topk_weights, "out_source, ");
    REFUSED(wait_ns, (uint64_t *)(uintptr_t)a.in, "wait_ns, ");
#undef REFUSED
    return 0;
}

/* What one layout has and the other has not. */
static int refuse_layout(struct ll_stage *x)
{
    const struct ll_batch *b = &x->batches[STAGE_BY_RANK];
    struct tern_ep *ep = x->scene.eps[0];
    struct tern_stream *stream = x->scene.world.members[0].lanes[0];
    struct tern_ll_dispatch_args a = ll_dispatch_args(&x->batches[1], 0, 1);
    void *any = a.out;

#define REFUSED(batch, field, value, text)                                                                   \
    do {                                                                                                     \
        a = ll_dispatch_args(batch, 0, 1);                                                                   \
        a.field = value;                                                                                     \
        REFUSES(tern_ll_dispatch(ep, &a, stream), TERN_INVALID_ARGUMENT, text);                              \
    } while (0)
    REFUSED(b, layout, 2, "layout is 2");
    REFUSED(b, weights, TERN_LL_WEIGHTS_AT_COMBINE, "must be at dispatch");
    REFUSED(b, weights, TERN_LL_WEIGHTS_AHEAD, "must be at dispatch");
    REFUSED(b, out_ranges, (int64_t *)any, "out_ranges is given, but by rank");
    REFUSED(b, out_topk_idx, (int32_t *)(void *)((char *)any + 2), "out_topk_idx is at");
    REFUSED(b, out_topk_weights, (float *)(void *)((char *)any + 2), "out_topk_weights is at");
    REFUSED(b, sum_counts, (int64_t *)(void *)((char *)any + 4), "sum_counts is at");
    REFUSED(&x->batches[1], out_topk_idx, (int32_t *)any, "out_topk_idx is given, but layout is by expert");
    REFUSED(&x->batches[1], out_topk_weights, (float *)any, "out_topk_weights is given, but layout is");
#undef REFUSED
    return 0;
}

static int refuse_combine(struct ll_stage *x)
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
    REFUSED(0, compression, 3, "compression is 3");
    REFUSED(0, out, NULL, "out is NULL");
    REFUSED(0, out_stride, 136, "out is at");
    REFUSED(0, topk_weights, NULL, "topk_weights is NULL");
    REFUSED(0, in, a.out, "overlaps in, ");
    REFUSED(0, out, (void *)(uintptr_t)a.in, "overlaps in, ");
    REFUSED(0, topk_weights, (const float *)a.out, "overlaps topk_weights, ");
    REFUSED(1, topk_weights, (const float *)a.out, "had weights at dispatch");
#undef REFUSED
    return 0;
}

/* The order in a lane. */
static int refuse_order(struct ll_stage *x)
{
    static const char *const nothing = "lane 0 has sent no";

    for (int r = 0; r < STAGE_RANKS; r++) {
        REFUSES((enum tern_status)ll_stage_issue_for(x, 0, TERN_OP_LL_DISPATCH, TERN_LL_RECEIVE, r),
                TERN_BAD_STATE, nothing);
        REFUSES((enum tern_status)ll_stage_issue_for(x, 0, TERN_OP_LL_COMBINE, TERN_LL_BOTH, r),
                TERN_BAD_STATE, "dispatched nothing");
    }
    PASS(ll_dispatch_issue(&x->batches[0], TERN_LL_SEND, 0));
    for (int r = 0; r < STAGE_RANKS; r++) {
        REFUSES((enum tern_status)ll_stage_issue_for(x, 0, TERN_OP_LL_DISPATCH, TERN_LL_BOTH, r),
                TERN_BAD_STATE, "must be received first");
        REFUSES((enum tern_status)ll_stage_issue_for(x, 0, TERN_OP_LL_COMBINE, TERN_LL_RECEIVE, r),
                TERN_BAD_STATE, "has sent no combine");
    }
    for (int r = 0; r < STAGE_RANKS; r++) {
        struct tern_ll_dispatch_args a = ll_dispatch_args(&x->batches[0], r, 1);
        a.phase = TERN_LL_RECEIVE;
        a.layout = TERN_LL_BY_RANK;
        REFUSES(tern_ll_dispatch(x->scene.eps[r], &a, x->scene.world.members[r].lanes[0]),
                TERN_INVALID_ARGUMENT, "layout is 1, but the lane's send phase had 0");
    }
    PASS(ll_dispatch_issue(&x->batches[0], TERN_LL_RECEIVE, 0));
    PASS(ll_dispatch_issue(&x->batches[1], TERN_LL_BOTH, 0));
    return world_ep_synchronize(&x->scene.world, x->scene.eps);
}

static int refusals_body(struct ll_stage *x)
{
    test_quiet();
    for (int i = 0; i < STAGE_BATCHES; i++) {
        ll_batch_redraw_ids(&x->batches[i], ROUTING_UNIFORM, &x->scene.rng);
    }
    PASS(world_upload(&x->scene.world));
    PASS(refuse_dispatch(x));
    PASS(refuse_layout(x));
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

static int refusals(struct test *t) { return ll_stage_run(t, refusals_body, 60000); }

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
    CHECK(s.window_bytes < 140000000, "8 ranks take %llu bytes", (unsigned long long)s.window_bytes);
    c.ll_hidden = 8; /* compressed, a row has one whole block of 128 channels and its range */
    OK(tern_ep_get_sizes(&c, 1, &s));
    CHECK(s.window_bytes >= 4ull * 128 * 8 * 176, "%llu bytes for short rows",
          (unsigned long long)s.window_bytes);
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
    return 0;
}

/* Railed objects: what they refuse, and what they take beside direct ones. */
static int rails(struct test *t)
{
    struct tern_ep_sizes direct = TERN_EP_SIZES_INIT, railed = TERN_EP_SIZES_INIT;
    struct tern_ep_config c = large();

    test_quiet();
    c.domain_ranks = 8;
    for (int ranks = 8; ranks <= 64; ranks *= 2) {
        c.ll_rail = 0;
        OK(tern_ep_get_sizes(&c, ranks, &direct));
        c.ll_rail = 1;
        OK(tern_ep_get_sizes(&c, ranks, &railed));
        uint64_t without = direct.window_bytes + direct.device_bytes;
        uint64_t with = railed.window_bytes + railed.device_bytes;
        CHECK(ranks == 8 ? with == without : with > without, "%d ranks: %llu bytes with rails, %llu without",
              ranks, (unsigned long long)with, (unsigned long long)without);
        CHECK(with < without * 2, "%d ranks: %llu bytes with rails, %llu without", ranks,
              (unsigned long long)with, (unsigned long long)without);
        test_detail(t, "%d ranks take %.0f MB, direct %.0f MB", ranks, (double)with * 1e-6,
                    (double)without * 1e-6);
    }
    c.ll_mask = 1;
    REFUSES(tern_ep_get_sizes(&c, 64, &railed), TERN_INVALID_ARGUMENT, "ll_rail is 1 with ll_mask 1");
    REFUSES(tern_ep_get_sizes(&c, 8, &railed), TERN_INVALID_ARGUMENT, "ll_rail is 1 with ll_mask 1");
    c.ll_mask = 0;
    c.ll_rail = 2;
    REFUSES(tern_ep_get_sizes(&c, 64, &railed), TERN_INVALID_ARGUMENT, "ll_rail is 2");
    c.ll_rail = 1;
    c.ll_tokens = c.ll_hidden = 0;
    REFUSES(tern_ep_get_sizes(&c, 64, &railed), TERN_INVALID_ARGUMENT, "ll_rail without ll_tokens");
    return 0;
}

/* One rank of four asks for rails, by a thread each. */
static void *open_one(void *user)
{
    struct tern_comm *comm = *(struct tern_comm **)user;
    struct tern_ep_config c = large();
    struct tern_ep *ep = NULL;

    c.max_tokens = c.max_row_bytes = 0;
    c.staging_bytes = 0;
    c.ll_tokens = 4;
    c.domain_ranks = 2;
    c.ll_rail = tern_comm_rank(comm) == 3;
    enum tern_status status = tern_ep_open(comm, &c, &ep);
    int right = status == TERN_MISMATCH && strstr(tern_last_error(), "ll_rail") != NULL;
    if (!right) {
        test_note(__FILE__, __LINE__, "%s: %s", tern_status_string(status), tern_last_error());
    }
    tern_ep_close(ep);
    return right ? NULL : user;
}

static int other_rails(struct test *t)
{
    struct tern_comm *comms[STAGE_RANKS];
    pthread_t threads[STAGE_RANKS];
    int wrong = 0;

    (void)t;
    test_quiet();
    OK(tern_comm_open_all(STAGE_RANKS, NULL, comms));
    for (int r = 0; r < STAGE_RANKS; r++) {
        CHECK(pthread_create(&threads[r], NULL, open_one, &comms[r]) == 0, "no thread");
    }
    for (int r = 0; r < STAGE_RANKS; r++) {
        void *failed;
        pthread_join(threads[r], &failed);
        wrong += failed != NULL;
    }
    for (int r = 0; r < STAGE_RANKS; r++) {
        tern_comm_close(comms[r]);
    }
    CHECK(!wrong, "%d ranks do not say that ll_rail differs", wrong);
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
        result = status == TERN_BAD_STATE && strstr(tern_last_error(), "give ll_tokens and ll_hidden")
                     ? 0
                     : TEST_FAILED;
    }
    scene_fini(&s);
    return result;
}

/* Low latency works with 64 ranks in ep_ll_test. */
static int alone(struct test *t)
{
    struct tern_ep_sizes sizes = TERN_EP_SIZES_INIT;
    struct tern_ep_config c = large();
    struct tern_route_args a = TERN_ROUTE_ARGS_INIT;
    struct tern_route *route;
    struct tern_comm *comm;
    struct tern_ep *ep;
    int result;

    (void)t;
    test_quiet();
    c.max_tokens = c.max_row_bytes = 0;
    c.staging_bytes = 0;
    c.ll_tokens = 4;
    OK(tern_ep_get_sizes(&c, 1, &sizes));
    CHECK(sizes.staging_bytes == 0 && sizes.max_rows == 0, "%llu bytes of staging, %llu rows",
          (unsigned long long)sizes.staging_bytes, (unsigned long long)sizes.max_rows);
    a.topk = 8;
    OK(tern_comm_open_all(1, NULL, &comm));
    OK(tern_ep_open_all(1, &comm, &c, &ep));
    result = tern_route_open(ep, &a, NULL, &route) == TERN_BAD_STATE &&
                     strstr(tern_last_error(), "has no routes") != NULL
                 ? 0
                 : TEST_FAILED;
    tern_ep_close(ep);
    tern_comm_close(comm);
    c.max_routes = 1; /* which says that there are to be routes */
    REFUSES(tern_ep_get_sizes(&c, 1, &sizes), TERN_INVALID_ARGUMENT, "max_tokens is 0");
    c = large();
    c.ll_hidden = 100;
    REFUSES(tern_ep_get_sizes(&c, 1, &sizes), TERN_INVALID_ARGUMENT, "multiple of 8");
    return result;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "refused arguments and orders", refusals);
    test_run(&t, "memory, by a pure function", sizes);
    test_run(&t, "rails refused, and their memory", rails);
    test_run(&t, "ranks that differ in ll_rail", other_rails);
    test_run(&t, "an object without low latency", without);
    test_run(&t, "an object for low latency alone", alone);
    return test_end(&t);
}
