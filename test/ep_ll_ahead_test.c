/* SPDX-License-Identifier: Apache-2.0
 *
 * Low latency with weights that go ahead of a combine's rows: against the naive reference, bit for bit, over
 * random shapes, each under a scheduler seed of its own (a failure prints the seed; `ep_ll_ahead_test --seeds
 * N` replays it); a rank that is late, and one that never comes, whom the wait for its weights must name;
 * objects that have no such operations. */
#include "ll_case.h"
#include "ll_words.h"
#include "scene.h"

#include <string.h>
#include <time.h>

enum { CASES_A_GROUP = 100, GROUPS = 2, FIRST_SEED = 2001, OVER_BLANKS = 2101 };
enum { RANKS = 4, EXPERTS = 4, EARLY = 0, FRIEND = 1, CULPRIT = 2, LATE_MS = 200, TOKENS = 20 };

static void change(struct ll_case *c)
{
    ll_case_ahead(c);
    if (c->seed >= OVER_BLANKS) {
        ll_case_over_blanks(c);
    }
}

static int asked(struct test *t) { return ll_case_run_seeds(t, t->seeds[0], t->seeds[1], change); }

static int group(struct test *t)
{
    uint64_t first = FIRST_SEED + (uint64_t)(t->number - 1) * CASES_A_GROUP;

    return ll_case_run_seeds(t, first, first + (uint64_t)test_scaled(t, CASES_A_GROUP) - 1, change);
}

/* ---- Ranks that are late, or do not come ---- */

struct stage {
    struct scene scene;
    struct ll_batch batch;
};

static void choose(struct stage *x, uint32_t timeout_ms)
{
    struct ll_shape s;

    memset(x, 0, sizeof *x);
    memset(&s, 0, sizeof s);
    scene_init(&x->scene, RANKS, 53);
    s.batch = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    s.batch.max_tokens = TOKENS;
    s.hidden = 256;
    s.cast = TERN_CAST_FP8;
    s.weights = TERN_LL_WEIGHTS_AHEAD;
    ll_batch_init(&x->batch, &x->scene.world, x->scene.eps, &s, &x->scene.rng);
    ll_config_add(&x->scene.config, &s, 1);
    x->scene.config.timeout_ms = timeout_ms;
    x->scene.free_running = 1;
}

static int with_stage(uint32_t timeout_ms, int (*body)(struct stage *))
{
    struct stage x;
    int result;

    choose(&x, timeout_ms);
    result = scene_open(&x.scene);
    result = result ? result : body(&x);
    ll_batch_fini(&x.batch);
    scene_fini(&x.scene);
    return result;
}

static int dispatch(struct stage *x)
{
    ll_batch_redraw_ids(&x->batch, ROUTING_UNIFORM, &x->scene.rng); /* every rank has all its tokens */
    PASS(world_upload(&x->scene.world));
    return ll_dispatch_issue(&x->batch, TERN_LL_BOTH, 0);
}

static int combine(struct stage *x, int rank, uint32_t phase, uint64_t *wait_ns)
{
    struct tern_ll_combine_args a = ll_combine_args(&x->batch, rank, 1);

    a.phase = phase;
    a.wait_ns = wait_ns;
    OK(tern_ll_combine(x->scene.eps[rank], &a, x->scene.world.members[rank].lanes[0]));
    return 0;
}

static int judge(struct stage *x, const char *step)
{
    ll_expect_dispatch(&x->batch);
    ll_expect_combine(&x->batch);
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    return world_verify(&x->scene.world, step);
}

static int reset(struct stage *x)
{
    uint64_t left = 0;

    OK(tern_ep_reset_all(RANKS, x->scene.eps));
    for (int r = 0; r < RANKS; r++) {
        PASS(ll_words_left(x->scene.eps[r], 0, &left));
        CHECK(left == 0, "rank %d: %llu words are left", r, (unsigned long long)left);
    }
    return 0;
}

/* All others have ended, and know why. */
static int check_named(struct stage *x)
{
    struct tern_fault f = TERN_FAULT_INIT;
    int told = 0;

    for (int r = 0; r < RANKS; r++) {
        if (r == CULPRIT) {
            continue;
        }
        REFUSES(tern_ep_synchronize(x->scene.eps[r]), TERN_TIMEOUT, "rank 2");
        OK(tern_fault_get(x->scene.eps[r], &f));
        CHECK(f.peer == CULPRIT && f.operation == TERN_OP_LL_COMBINE && f.awaited == TERN_AWAIT_READY,
              "rank %d: peer %d, operation %d, awaited %d", r, f.peer, f.operation, f.awaited);
        told += f.reporter == r;
    }
    CHECK(told, "no rank found it by itself");
    return 0;
}

/* The culprit never combines, nor even sends; after a reset nothing of what others had sent is left. */
static int absent_body(struct stage *x)
{
    test_quiet();
    for (uint32_t phase = TERN_LL_BOTH; phase <= TERN_LL_SEND; phase++) {
        PASS(dispatch(x));
        PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
        for (int r = 0; r < RANKS; r++) {
            PASS(r == CULPRIT ? 0 : combine(x, r, phase, NULL));
        }
        PASS(check_named(x));
        PASS(reset(x));
    }
    PASS(dispatch(x));
    PASS(ll_combine_issue(&x->batch, TERN_LL_BOTH, 0));
    return judge(x, "after a reset");
}

/* One rank has rows of the culprit, and of the early one, which has none. */
static int dispatch_through_friend(struct stage *x)
{
    struct batch *b = &x->batch.batch;

    test_quiet();
    ll_batch_redraw_ids(&x->batch, ROUTING_UNIFORM, &x->scene.rng);
    for (int r = 0; r < RANKS; r++) {
        int to = r == EARLY || r == CULPRIT ? FRIEND : r;
        for (uint32_t i = 0; i < b->num_tokens[r] * b->shape.topk; i++) {
            b->ids[r][i] = to * EXPERTS + (int)(i % b->shape.topk);
        }
    }
    batch_changed(b);
    PASS(world_upload(&x->scene.world));
    PASS(ll_dispatch_issue(&x->batch, TERN_LL_BOTH, 0));
    return world_ep_synchronize(&x->scene.world, x->scene.eps);
}

/* One rank has rows of the culprit and waits for their weights, so that the rank which has a row from that
 * one waits for it, and begins earlier, too. Neither it nor the rank that waits is to blame. */
static int behind_body(struct stage *x)
{
    const struct timespec a_while = {0, (long)(x->scene.config.timeout_ms / 4) * 1000000};

    PASS(dispatch_through_friend(x));
    PASS(combine(x, EARLY, TERN_LL_BOTH, NULL));
    nanosleep(&a_while, NULL);
    for (int r = 0; r < RANKS; r++) {
        PASS(r == CULPRIT || r == EARLY ? 0 : combine(x, r, TERN_LL_BOTH, NULL));
    }
    PASS(check_named(x));
    return reset(x);
}

/* The culprit is in, and its weights do not come: as if its kernel had stopped, others' windows have its
 * entry word, which is that of all. The early one waits for rows of the friend, which waits for those
 * weights. */
static int stuck_body(struct stage *x)
{
    struct tern_fault f = TERN_FAULT_INIT;

    PASS(dispatch_through_friend(x));
    for (int r = 0; r < RANKS; r++) {
        PASS(r == CULPRIT ? 0 : combine(x, r, TERN_LL_BOTH, NULL));
    }
    for (int r = 0; r < RANKS; r++) {
        uint64_t *of_early = ll_words_entry(x->scene.eps[r], 0, 2, EARLY), word = 0;
        double begin = test_seconds();
        while (r != CULPRIT && word >> 32 != 2 && test_seconds() - begin < 10) {
            word = __atomic_load_n(of_early, __ATOMIC_ACQUIRE);
        }
        __atomic_store_n(ll_words_entry(x->scene.eps[r], 0, 2, CULPRIT), word, __ATOMIC_RELEASE);
    }
    for (int r = EARLY; r <= FRIEND; r++) {
        REFUSES(tern_ep_synchronize(x->scene.eps[r]), TERN_TIMEOUT, "rank 2");
        OK(tern_fault_get(x->scene.eps[r], &f));
        CHECK(f.peer == CULPRIT && f.reporter == FRIEND && f.awaited == TERN_AWAIT_DONE,
              "rank %d: peer %d, reporter %d, awaited %d", r, f.peer, f.reporter, f.awaited);
    }
    return reset(x);
}

/* One rank asks for another compression: all know it, long before the deadline. */
static int unlike_body(struct stage *x)
{
    double begin;

    test_quiet();
    PASS(dispatch(x));
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    begin = test_seconds();
    for (int r = 0; r < RANKS; r++) {
        struct tern_ll_combine_args a = ll_combine_args(&x->batch, r, 1);
        a.compression = r == CULPRIT ? TERN_LL_LOG10 : TERN_LL_PLAIN;
        OK(tern_ll_combine(x->scene.eps[r], &a, x->scene.world.members[r].lanes[0]));
    }
    for (int r = 0; r < RANKS; r++) {
        EXPECT(tern_ep_synchronize(x->scene.eps[r]), TERN_MISMATCH);
    }
    CHECK(test_seconds() - begin < x->scene.config.timeout_ms * 1e-3 / 2, "after %.1f s",
          test_seconds() - begin);
    return reset(x);
}

static int read_waits(struct stage *x, const uint64_t *device, uint64_t *waits)
{
    struct member *m = &x->scene.world.members[0];

    OK(tern_copy(m->comm, m->scratch, device, RANKS * sizeof *waits, m->lanes[0]));
    OK(tern_stream_synchronize(m->comm, m->lanes[0]));
    memcpy(waits, m->scratch, RANKS * sizeof *waits);
    return 0;
}

/* Rank 0 has its weights late from the culprit, and says so: in the send phase, if there is one. Of times
 * that a busy machine adds, half the lateness is allowed for. */
static int late_round(struct stage *x, uint64_t *device, uint32_t phase)
{
    const struct timespec lateness = {0, LATE_MS * 1000000};
    const uint64_t late = LATE_MS * 1000000ull;
    struct member *m = &x->scene.world.members[0];
    uint64_t waits[RANKS];
    double begin;

    OK(tern_fill(m->comm, device, 0, RANKS * sizeof *waits, m->lanes[0]));
    PASS(dispatch(x));
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    begin = test_seconds();
    for (int r = 0; r < RANKS; r++) {
        PASS(r == CULPRIT ? 0 : combine(x, r, phase, r == 0 ? device : NULL));
    }
    nanosleep(&lateness, NULL);
    PASS(combine(x, CULPRIT, phase, NULL));
    PASS(phase == TERN_LL_SEND ? ll_combine_issue(&x->batch, TERN_LL_RECEIVE, 0) : 0);
    PASS(judge(x, "with a late rank"));
    PASS(read_waits(x, device, waits));
    CHECK(waits[CULPRIT] >= late / 2 && waits[CULPRIT] <= (uint64_t)((test_seconds() - begin) * 1e9),
          "rank 2 was waited for for %llu ns", (unsigned long long)waits[CULPRIT]);
    return 0;
}

static int late_body(struct stage *x)
{
    struct tern_comm *comm = x->scene.world.members[0].comm;
    void *device = NULL;
    int result;

    OK(tern_alloc(comm, TERN_MEMORY_DEVICE, RANKS * sizeof(uint64_t), &device));
    result = late_round(x, (uint64_t *)device, TERN_LL_BOTH);
    result = result ? result : late_round(x, (uint64_t *)device, TERN_LL_SEND);
    tern_free(comm, device);
    return result;
}

static int absent(struct test *t) { return with_stage(t->scale < 100 ? 3000 : 700, absent_body); }
static int behind(struct test *t) { return with_stage(t->scale < 100 ? 3000 : 900, behind_body); }

static int stuck(struct test *t)
{
    int cpu = scene_on_cpu();

    if (cpu != 1) {
        return cpu < 0 ? cpu : test_skip(t, "windows are not host memory");
    }
    return with_stage(t->scale < 100 ? 4000 : 1200, stuck_body);
}

static int unlike_ranks(struct test *t)
{
    (void)t;
    return with_stage(20000, unlike_body);
}

static int late(struct test *t)
{
    (void)t;
    return with_stage(60000, late_body);
}

/* ---- Refusals ---- */

static int refusals_body(struct stage *x)
{
    struct tern_ll_dispatch_args d = ll_dispatch_args(&x->batch, 0, 1);
    struct tern_stream *stream = x->scene.world.members[0].lanes[0];
    struct tern_ll_combine_args c;

    test_quiet();
    if (x->scene.config.ll_mask || x->scene.config.domain_ranks) {
        REFUSES(tern_ll_dispatch(x->scene.eps[0], &d, stream), TERN_UNSUPPORTED,
                x->scene.config.ll_mask ? "has 1 domains and ll_mask 1" : "has 2 domains and ll_mask 0");
        return 0;
    }
    PASS(dispatch(x));
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    c = ll_combine_args(&x->batch, 0, 1);
    c.topk_weights = NULL;
    REFUSES(tern_ll_combine(x->scene.eps[0], &c, stream), TERN_INVALID_ARGUMENT, "topk_weights is NULL");
    c.phase = TERN_LL_SEND;
    REFUSES(tern_ll_combine(x->scene.eps[0], &c, stream), TERN_INVALID_ARGUMENT, "topk_weights is NULL");
    c = ll_combine_args(&x->batch, 0, 1);
    c.phase = TERN_LL_SEND;
    c.wait_ns = (uint64_t *)(uintptr_t)c.topk_weights;
    REFUSES(tern_ll_combine(x->scene.eps[0], &c, stream), TERN_INVALID_ARGUMENT, "overlaps topk_weights, ");
    c = ll_combine_args(&x->batch, 0, 1);
    c.topk_weights = (const float *)c.out;
    REFUSES(tern_ll_combine(x->scene.eps[0], &c, stream), TERN_INVALID_ARGUMENT, "overlaps topk_weights, ");
    PASS(ll_combine_issue(&x->batch, TERN_LL_SEND, 0));
    for (int r = 0; r < RANKS; r++) { /* which a receive phase does not look at */
        c = ll_combine_args(&x->batch, r, 1);
        c.phase = TERN_LL_RECEIVE;
        c.topk_weights = r % 2 ? NULL : (const float *)c.out;
        OK(tern_ll_combine(x->scene.eps[r], &c, x->scene.world.members[r].lanes[0]));
    }
    return judge(x, "weights that only the send phase reads");
}

static int refusals(struct test *t)
{
    (void)t;
    for (int i = 0; i < 3; i++) {
        struct stage x;
        int result;
        choose(&x, 60000);
        x.scene.config.ll_mask = i == 1;
        x.scene.config.domain_ranks = i == 2 ? RANKS / 2 : 0;
        result = scene_open(&x.scene);
        result = result ? result : refusals_body(&x);
        ll_batch_fini(&x.batch);
        scene_fini(&x.scene);
        PASS(result);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    if (t.has_seeds) {
        test_run(&t, "random shapes and schedules as asked", asked);
        return test_end(&t);
    }
    for (int i = 0; i < GROUPS; i++) {
        test_run(&t, "random shapes and schedules", group);
    }
    test_run(&t, "a rank that never combines is named", absent);
    test_run(&t, "and so it is where others wait for those that wait for it", behind);
    test_run(&t, "a rank that is in, and sends no weights, is named by who waits for them", stuck);
    test_run(&t, "a rank that wants another compression", unlike_ranks);
    test_run(&t, "a rank that combines late is waited for, and it is told", late);
    test_run(&t, "what cannot be", refusals);
    return test_end(&t);
}
