/* SPDX-License-Identifier: Apache-2.0
 *
 * A proxy above an engine that the test holds back, completes backwards, or fails: what a ring promises to
 * kernels whatever the engine does. Requests are posted by kernels of the cpu machine. One file, because
 * every case is a few lines on the one stage that the first half sets up. */
#include "mock_engine.h"
#include "proxy_rig.h"
#include "simt/executor.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NUM_PEERS = 2, DEPTH = 8, AREA_BYTES = 1 << 16 };
enum { WAIT_NS = 100000000 }; /* of a wait that is to end in vain */
#define LONG_NS 20000000000ull

/* Rank 0 of three; the others are memory. */
struct stage_of_one {
    struct executor *x;
    struct machine *m;
    struct mock_engine *engine;
    struct proxy *proxy;
    struct net_ring rings[3 * RIG_QUEUES];
    struct ring_step *steps;
    char *here, *there[3];
    struct ring_steps_args args;
};

static void nap_ms(int ms)
{
    struct timespec t = {0, ms * 1000000l};
    nanosleep(&t, NULL);
}

static enum tern_status connect_mocks(struct stage_of_one *s)
{
    struct proxy_card cards[3];
    struct region windows[3];
    uint32_t all = KEY_LOCAL_WRITE | KEY_REMOTE_WRITE | KEY_REMOTE_READ | KEY_REMOTE_ATOMIC;
    memset(windows, 0, sizeof windows);
    TERN_TRY(terni_proxy_register(s->proxy, s->here, AREA_BYTES, all, 1, &windows[0]));
    for (int r = 0; r < 3; r++) {
        TERN_TRY(terni_proxy_card(s->proxy, &cards[r]));
        windows[r].base = (uint64_t)(uintptr_t)s->there[r];
        windows[r].bytes = AREA_BYTES;
    }
    TERN_TRY(terni_proxy_import(s->proxy, windows));
    return terni_proxy_connect(s->proxy, cards);
}

static int open_stage(struct stage_of_one *s, uint64_t timeout_ms, int stages_all)
{
    struct proxy_config config;
    struct rng rng = {7};
    memset(s, 0, sizeof *s);
    OK(terni_executor_open(0, &s->x));
    OK(terni_cpu_open(s->x, &s->m));
    s->engine = mock_engine_new(0, 3);
    memset(&config, 0, sizeof config);
    config.machine = s->m;
    config.engine = &s->engine->base;
    config.num_queues = RIG_QUEUES;
    config.depth = DEPTH;
    config.timeout_ms = (uint32_t)timeout_ms;
    config.stages_all = stages_all;
    OK(terni_proxy_open(&config, &s->proxy));
    for (int r = 0; r < 3; r++) {
        s->there[r] = (char *)test_take(1, AREA_BYTES);
    }
    s->here = s->there[0];
    rng_bytes(&rng, s->here, AREA_BYTES);
    OK(connect_mocks(s));
    for (int i = RIG_QUEUES; i < 3 * RIG_QUEUES; i++) {
        s->rings[i] = *terni_proxy_ring(s->proxy, i / RIG_QUEUES, i % RIG_QUEUES);
    }
    return TEST_PASSED;
}

static void close_stage(struct stage_of_one *s)
{
    if (s->m != NULL) {
        s->m->ops->settle(s->m);
        terni_proxy_close(s->proxy);
        s->m->ops->close(s->m);
        terni_executor_release(s->x);
    }
    free(s->steps);
    for (int r = 0; r < 3; r++) {
        free(s->there[r]);
    }
}

/* Lists of so many steps for so many threads, to be filled. */
static struct ring_step *lists(struct stage_of_one *s, int num_threads, int num_steps)
{
    free(s->steps);
    s->steps = (struct ring_step *)test_take((size_t)(num_threads + 31) / 32 * 32 * (size_t)num_steps,
                                             sizeof *s->steps);
    s->args.num_steps = (uint32_t)num_steps;
    return s->steps;
}

static enum tern_status launch(struct stage_of_one *s, int num_threads, uint64_t timeout_ns)
{
    struct launch l = {0, (num_threads + 31) / 32, 32, 0, &s->args, sizeof s->args};
    s->args.rings = s->rings;
    s->args.steps = s->steps;
    s->args.timeout_ns = timeout_ns;
    return terni_cpu_launch_function(s->m, tern_cpu_ring_steps, "ring_steps", &l, NULL);
}

static enum tern_status settle(struct stage_of_one *s) { return s->m->ops->stream_synchronize(s->m, NULL); }

static struct ring_step put(struct stage_of_one *s, int peer, uint64_t to, uint64_t from, uint64_t bytes)
{
    struct ring_step step;
    memset(&step, 0, sizeof step);
    step.kind = STEP_PUT;
    step.ring = proxy_rig_ring(peer, 0);
    step.remote = (uint64_t)(uintptr_t)s->there[peer] + to;
    step.local = s->here + from;
    step.bytes = bytes;
    return step;
}

static struct ring_step signal_of(struct stage_of_one *s, int peer, uint64_t at, uint64_t value)
{
    struct ring_step step = put(s, peer, at, 0, 8);
    step.kind = STEP_SIGNAL;
    step.value = value;
    step.amo = NET_AMO_SET;
    return step;
}

static struct ring_step flush_of(int peer)
{
    struct ring_step step;
    memset(&step, 0, sizeof step);
    step.kind = STEP_FLUSH;
    step.ring = proxy_rig_ring(peer, 0);
    return step;
}

/* The words of a ring, as the host raises them. */
static uint64_t consumed(const struct stage_of_one *s, int peer)
{
    return __atomic_load_n(&s->rings[proxy_rig_ring(peer, 0)].words->consumed, __ATOMIC_ACQUIRE);
}

static uint64_t done(const struct stage_of_one *s, int peer)
{
    return __atomic_load_n(&s->rings[proxy_rig_ring(peer, 0)].words->done, __ATOMIC_ACQUIRE);
}

/* Of the slot of request 6. */
static uint64_t stamp_of_6(const struct stage_of_one *s, int peer)
{
    return __atomic_load_n(&s->rings[proxy_rig_ring(peer, 0)].slots[5].stamp, __ATOMIC_ACQUIRE);
}

static uint64_t num_completed(const struct stage_of_one *s, int peer)
{
    (void)peer;
    return (uint64_t)mock_engine_look(s->engine).num_completed;
}

static int await(uint64_t (*what)(const struct stage_of_one *s, int peer), struct stage_of_one *s,
                 uint64_t value)
{
    for (int i = 0; i < 20000 && what(s, 1) != value; i++) {
        nap_ms(1);
    }
    CHECK(what(s, 1) == value, "a word of the ring is 0x%llx, not 0x%llx", (unsigned long long)what(s, 1),
          (unsigned long long)value);
    return TEST_PASSED;
}

/* Random programs, an engine in the worst of moods. */
static int moody_body(struct stage_of_one *s, uint64_t seed)
{
    struct rng rng = {seed};
    enum { THREADS = 32, ROUNDS = 12, STEPS = ROUNDS * 3 + 1, SLOT = AREA_BYTES / THREADS };
    struct ring_step *steps = lists(s, THREADS, STEPS);
    s->engine->refuses_one_in = 2;
    s->engine->random = seed;
    for (int t = 0; t < THREADS; t++) {
        int peer = 1 + t % 2;
        struct ring_step *list = steps + t * STEPS;
        for (int i = 0; i < ROUNDS; i++) {
            uint64_t at = (uint64_t)t * SLOT + 64 + (uint64_t)i * 128;
            list[3 * i] = put(s, peer, at, at, 1 + rng_below(&rng, 128));
            list[3 * i].bytes -= list[3 * i].bytes > 120 ? 8 : 0;
            list[3 * i + 1] = put(s, peer, (uint64_t)t * SLOT + 8, (uint64_t)i * 8, 8);
            list[3 * i + 1].kind = i % 3 == 0 ? STEP_GET : STEP_NOTHING;
            list[3 * i + 1].local = s->here + (uint64_t)t * SLOT + 1920;
            list[3 * i + 2] = signal_of(s, peer, (uint64_t)t * SLOT, (uint64_t)i + 1);
        }
        list[STEPS - 1] = flush_of(peer);
    }
    OK(launch(s, THREADS, LONG_NS));
    OK(settle(s));
    CHECK(!mock_engine_look(s->engine).order_broken, "seed %llu: an atomic overtook",
          (unsigned long long)seed);
    for (int t = 0; t < THREADS; t++) {
        const struct ring_step *list = steps + t * STEPS;
        uint64_t value;
        CHECK(list[STEPS - 1].end == NET_OK, "seed %llu: flush of thread %d ended with 0x%x",
              (unsigned long long)seed, t, list[STEPS - 1].end);
        memcpy(&value, s->there[1 + t % 2] + t * SLOT, 8);
        CHECK(value == ROUNDS, "seed %llu: signal of thread %d is %llu", (unsigned long long)seed, t,
              (unsigned long long)value);
        for (int i = 0; i < ROUNDS; i++) {
            CHECK(memcmp((const void *)(uintptr_t)list[3 * i].remote, list[3 * i].local, list[3 * i].bytes) ==
                      0,
                  "seed %llu: put %d of thread %d", (unsigned long long)seed, i, t);
        }
    }
    return TEST_PASSED;
}

static int with_stage(int (*body)(struct stage_of_one *s), uint64_t timeout_ms)
{
    struct stage_of_one s;
    int result = open_stage(&s, timeout_ms, 0);
    result = result ? result : body(&s);
    if (s.engine != NULL) {
        mock_engine_set(s.engine, -1, -1); /* kernels that still wait are let go */
    }
    close_stage(&s);
    return result;
}

/* A test of that name: NAME_body, on a stage with this deadline. */
#define ON_STAGE(name, deadline_ms)                                                                          \
    static int name(struct test *t)                                                                          \
    {                                                                                                        \
        (void)t;                                                                                             \
        return with_stage(name##_body, deadline_ms);                                                         \
    }

static int moody_engine(struct test *t)
{
    uint64_t last = (uint64_t)test_scaled(t, 40);
    for (uint64_t seed = t->has_seeds ? t->seeds[0] : 1; seed <= (t->has_seeds ? t->seeds[1] : last);
         seed++) {
        struct stage_of_one s;
        int result = open_stage(&s, 20000, seed % 5 == 0);
        result = result ? result : moody_body(&s, seed);
        close_stage(&s);
        PASS(result);
    }
    test_detail(t, "%llu seeds", (unsigned long long)last);
    return TEST_PASSED;
}

/* A slot is free once the engine has taken its request, and not before. */
static int consumed_after_post_body(struct stage_of_one *s)
{
    struct ring_step *steps = lists(s, 1, 3);
    mock_engine_set(s->engine, 0, -1);
    steps[0] = put(s, 1, 0, 0, 64);
    steps[1] = put(s, 1, 512, 128, 64);
    steps[2] = flush_of(1);
    OK(launch(s, 1, LONG_NS));
    nap_ms(100);
    CHECK(consumed(s, 1) == 0, "consumed is %llu", (unsigned long long)consumed(s, 1));
    mock_engine_set(s->engine, 1, -1);
    PASS(await(consumed, s, 1));
    nap_ms(20);
    CHECK(consumed(s, 1) == 1 && done(s, 1) == 1, "consumed %llu", (unsigned long long)consumed(s, 1));
    mock_engine_set(s->engine, -1, -1);
    OK(settle(s));
    CHECK(steps[2].end == NET_OK && memcmp(s->there[1] + 512, s->here + 128, 64) == 0, "the second put");
    return TEST_PASSED;
}
ON_STAGE(consumed_after_post, 20000)

/* The engine completes the latest first: nothing is done before what came earlier is. */
static int done_in_order_body(struct stage_of_one *s)
{
    struct ring_step *steps = lists(s, 1, 4);
    s->engine->backwards = 1;
    mock_engine_set(s->engine, -1, 0);
    for (int i = 0; i < 3; i++) {
        steps[i] = put(s, 1, 1024 * (uint64_t)i, 2048 * (uint64_t)i, 64);
    }
    steps[3] = flush_of(1);
    OK(launch(s, 1, LONG_NS));
    PASS(await(consumed, s, 3));
    mock_engine_set(s->engine, -1, 2);
    PASS(await(num_completed, s, 2));
    nap_ms(20);
    CHECK(done(s, 1) == 0, "done is %llu with the first still out", (unsigned long long)done(s, 1));
    mock_engine_set(s->engine, -1, -1);
    PASS(await(done, s, 3));
    OK(settle(s));
    return TEST_PASSED;
}
ON_STAGE(done_in_order, 20000)

/* Four puts that continue each other, one that does not: the engine is busy, so that they gather. */
static int coalesced_body(struct stage_of_one *s)
{
    struct ring_step *steps = lists(s, 1, 7);
    mock_engine_set(s->engine, 0, 0);
    steps[0] = put(s, 1, 8192, 8192, 8);
    for (int i = 0; i < 4; i++) {
        steps[1 + i] = put(s, 1, 100 * (uint64_t)i, 300 + 100 * (uint64_t)i, 100);
    }
    steps[5] = put(s, 1, 400, 1000, 100); /* continues there, not here */
    steps[6] = flush_of(1);
    OK(launch(s, 1, LONG_NS));
    PASS(await(stamp_of_6, s, 6));
    mock_engine_set(s->engine, -1, 0);
    PASS(await(consumed, s, 6));
    CHECK(mock_engine_look(s->engine).num_taken == 3 && mock_engine_look(s->engine).longest == 400,
          "%d operations, the longest of %llu", mock_engine_look(s->engine).num_taken,
          (unsigned long long)mock_engine_look(s->engine).longest);
    CHECK(done(s, 1) == 0, "done is %llu before anything completed", (unsigned long long)done(s, 1));
    mock_engine_set(s->engine, -1, -1);
    OK(settle(s));
    CHECK(steps[6].end == NET_OK && memcmp(s->there[1], s->here + 300, 400) == 0, "the bytes");
    return TEST_PASSED;
}
ON_STAGE(coalesced, 20000)

/* More posters than slots, and nothing is taken: those without a slot give up at the ring's deadline, leave
 * no hole, and what was posted goes out whole. */
static int full_ring_body(struct stage_of_one *s)
{
    enum { POSTERS = 64 };
    struct ring_step *steps = lists(s, POSTERS, 2);
    int posted = 0, given_up = 0;
    mock_engine_set(s->engine, 0, -1);
    s->rings[proxy_rig_ring(1, 0)].timeout_ns = WAIT_NS; /* long before the peer is late */
    for (int i = 0; i < POSTERS; i++) {
        steps[2 * i] = put(s, 1, (uint64_t)i * 128, (uint64_t)i * 256, 64);
    }
    OK(launch(s, POSTERS, LONG_NS));
    OK(settle(s));
    for (int i = 0; i < POSTERS; i++) {
        given_up += net_ticket_status(steps[2 * i].ticket) == NET_TIMED_OUT;
        posted += net_ticket_status(steps[2 * i].ticket) == NET_OK;
    }
    CHECK(posted == DEPTH && given_up == POSTERS - DEPTH, "%d posted, %d gave up", posted, given_up);
    CHECK(consumed(s, 1) == 0, "consumed");
    mock_engine_set(s->engine, -1, -1);
    PASS(await(done, s, DEPTH));
    for (int i = 0; i < POSTERS; i++) {
        char nothing[64] = {0};
        const char *wanted = net_ticket_status(steps[2 * i].ticket) == NET_OK ? s->here + i * 256 : nothing;
        CHECK(memcmp(s->there[1] + i * 128, wanted, 64) == 0, "the put of thread %d", i);
    }
    steps[0] = put(s, 1, 0, 4096, 64);
    steps[1] = flush_of(1);
    OK(launch(s, 1, LONG_NS));
    OK(settle(s));
    CHECK(steps[1].end == NET_OK && memcmp(s->there[1], s->here + 4096, 64) == 0, "the ring goes on");
    return TEST_PASSED;
}
ON_STAGE(full_ring, 20000)

/* The abort word, the deadline. */
static int given_up_body(struct stage_of_one *s)
{
    struct ring_step *steps = lists(s, 1, 2);
    mock_engine_set(s->engine, -1, 0);
    steps[0] = put(s, 1, 0, 0, 64);
    steps[1] = flush_of(1);
    OK(launch(s, 1, WAIT_NS));
    OK(settle(s));
    CHECK(steps[1].end == NET_TIMED_OUT, "a wait for nothing ended with 0x%x", steps[1].end);
    OK(launch(s, 1, LONG_NS));
    nap_ms(50);
    terni_proxy_abort(s->proxy);
    OK(settle(s));
    CHECK(steps[1].end == NET_ABORTED, "after the abort word: 0x%x", steps[1].end);
    return TEST_PASSED;
}
ON_STAGE(given_up, 20000)

/* An operation that fails takes its ring with it, and no other. */
static int failed_body(struct stage_of_one *s)
{
    struct ring_step *steps = lists(s, 1, 6);
    s->engine->syndrome = SYNDROME_REMOTE_ACCESS;
    steps[0] = put(s, 1, 0, 0, 64);
    steps[1] = flush_of(1);
    steps[2] = put(s, 1, 64, 64, 64);
    steps[3] = flush_of(1);
    steps[4] = put(s, 2, 0, 0, 64);
    steps[5] = flush_of(2);
    OK(launch(s, 1, LONG_NS));
    OK(settle(s));
    CHECK(steps[1].end == net_failed(SYNDROME_REMOTE_ACCESS), "ended with 0x%x", steps[1].end);
    CHECK(steps[3].end == net_failed(SYNDROME_REMOTE_ACCESS), "after it, 0x%x", steps[3].end);
    CHECK(steps[5].end == NET_OK, "another peer's ring ended with 0x%x", steps[5].end);
    CHECK(s->there[1][64] == 0, "a request after the failure went out");
    REFUSES(terni_proxy_refusal(s->proxy, 1, 0), TERN_INVALID_ARGUMENT, "put of 64 bytes");
    REFUSES(terni_proxy_refusal(s->proxy, 1, 0), TERN_INVALID_ARGUMENT, "rank 1 failed: syndrome 0x13");
    OK(terni_proxy_refusal(s->proxy, 1, 1));
    OK(terni_proxy_loss(s->proxy, 1));
    /* A ring in error takes and drops, however much comes: posters do not wait. */
    for (int round = 0; round < 4 * DEPTH; round++) {
        OK(launch(s, 1, LONG_NS));
        OK(settle(s));
        CHECK(steps[3].end == net_failed(SYNDROME_REMOTE_ACCESS), "round %d: 0x%x", round, steps[3].end);
    }
    return TEST_PASSED;
}
ON_STAGE(failed, 20000)

/* Fetches on a ring that has failed, more than there are words for old values: each hears of the failure. */
static int fetches_failed_body(struct stage_of_one *s)
{
    enum { NUM = 2 + RING_NUM_RESULTS + 4 };
    struct ring_step *steps = lists(s, 1, NUM);
    uint64_t old;
    s->engine->syndrome = SYNDROME_REMOTE_ACCESS;
    steps[0] = put(s, 1, 0, 0, 64);
    steps[1] = flush_of(1);
    for (int i = 2; i < NUM; i++) {
        steps[i] = signal_of(s, 1, 0, 1);
        steps[i].kind = STEP_FETCH;
        steps[i].local = (char *)&old;
    }
    OK(launch(s, 1, WAIT_NS));
    OK(settle(s));
    for (int i = 1; i < NUM; i++) {
        CHECK(steps[i].end == net_failed(SYNDROME_REMOTE_ACCESS), "step %d ended with 0x%x", i, steps[i].end);
    }
    return TEST_PASSED;
}
ON_STAGE(fetches_failed, 20000)

/* A copy that fails at the peer is a device's failure, not what somebody asked for wrongly. */
static int device_failed_body(struct stage_of_one *s)
{
    struct ring_step *steps = lists(s, 1, 2);
    s->engine->syndrome = SYNDROME_REMOTE_OPERATION;
    steps[0] = put(s, 1, 0, 0, 64);
    steps[1] = flush_of(1);
    OK(launch(s, 1, LONG_NS));
    OK(settle(s));
    CHECK(steps[1].end == net_failed(SYNDROME_REMOTE_OPERATION), "ended with 0x%x", steps[1].end);
    REFUSES(terni_proxy_refusal(s->proxy, 1, 0), TERN_DEVICE_ERROR, "syndrome 0x14, remote operation error");
    return TEST_PASSED;
}
ON_STAGE(device_failed, 20000)

/* Addresses that nobody registered, words that are not aligned. */
static int refused_body(struct stage_of_one *s)
{
    static const uint32_t wanted[] = {SYNDROME_LOCAL_PROTECTION, SYNDROME_REMOTE_ACCESS,
                                      SYNDROME_REMOTE_INVALID_REQUEST, SYNDROME_REMOTE_ACCESS};
    struct ring_step *steps = lists(s, 1, 2);
    char foreign[64];
    for (int i = 0; i < 4; i++) {
        uint32_t ring = (uint32_t)(RIG_QUEUES + i); /* two peers, two queues: each ring fails once */
        int peer = (int)ring / RIG_QUEUES;
        steps[0] = i == 2 ? signal_of(s, peer, 12, 1) : put(s, peer, 0, 0, 64);
        steps[0].remote += i == 1 ? AREA_BYTES : i == 3 ? AREA_BYTES - 32 : 0;
        steps[0].local = i == 0 ? foreign : steps[0].local;
        steps[0].ring = steps[1].ring = ring;
        steps[1].kind = STEP_FLUSH;
        OK(launch(s, 1, LONG_NS));
        OK(settle(s));
        CHECK(steps[1].end == net_failed(wanted[i]), "request %d ended with 0x%x", i, steps[1].end);
    }
    return TEST_PASSED;
}
ON_STAGE(refused, 20000)

/* A peer whose bytes come is not silent, though it ends no operation for several deadlines; then it is. */
static int heard_body(struct stage_of_one *s)
{
    struct ring_step *steps = lists(s, 1, 2);
    pthread_mutex_lock(&s->engine->lock); /* the proxy's thread looks already */
    s->engine->silent_peer = s->engine->heard_peer = 1;
    pthread_mutex_unlock(&s->engine->lock);
    steps[0] = put(s, 1, 0, 0, 64);
    steps[1] = flush_of(1);
    OK(launch(s, 1, LONG_NS));
    nap_ms(700);
    OK(terni_proxy_loss(s->proxy, 1));
    pthread_mutex_lock(&s->engine->lock);
    s->engine->heard_peer = -1;
    pthread_mutex_unlock(&s->engine->lock);
    OK(settle(s));
    CHECK(steps[1].end == net_failed(SYNDROME_TRANSPORT_RETRY), "it ended with 0x%x", steps[1].end);
    REFUSES(terni_proxy_loss(s->proxy, 1), TERN_TIMEOUT, "rank 1 has not answered for 200 ms");
    return TEST_PASSED;
}
ON_STAGE(heard, 200)

/* A peer that answers nothing is lost at the deadline, by name; the others go on. */
static int silent_body(struct stage_of_one *s)
{
    struct ring_step *steps = lists(s, 1, 4);
    s->engine->silent_peer = 1;
    steps[0] = put(s, 1, 0, 0, 64);
    steps[1] = put(s, 2, 0, 0, 64);
    steps[2] = flush_of(2);
    steps[3] = flush_of(1);
    steps[3].kind = STEP_FLUSH_ALL;
    OK(launch(s, 1, LONG_NS));
    OK(settle(s));
    CHECK(steps[2].end == NET_OK, "the other peer's ring ended with 0x%x", steps[2].end);
    CHECK(steps[3].end == net_failed(SYNDROME_TRANSPORT_RETRY), "the silent one's with 0x%x", steps[3].end);
    REFUSES(terni_proxy_loss(s->proxy, 1), TERN_TIMEOUT, "rank 1 has not answered for 200 ms");
    CHECK(mock_engine_look(s->engine).num_drops == 1, "dropped %d times",
          mock_engine_look(s->engine).num_drops);
    return TEST_PASSED;
}
ON_STAGE(silent, 200)

/* What is handed over for a silent peer meanwhile is no sign of it: the first that it owes counts. */
static int silent_though_busy_body(struct stage_of_one *s)
{
    struct ring_step *steps = lists(s, 1, 2);
    s->engine->silent_peer = 1;
    steps[0] = signal_of(s, 1, 0, 1);
    for (int i = 0; i < 2; i++) {
        OK(launch(s, 1, LONG_NS));
        OK(settle(s));
        nap_ms(300);
    }
    steps[1] = flush_of(1);
    OK(launch(s, 1, 600 * 1000000ull)); /* less than from this signal on to a deadline of its own */
    OK(settle(s));
    CHECK(steps[1].end == net_failed(SYNDROME_TRANSPORT_RETRY), "ended with 0x%x", steps[1].end);
    REFUSES(terni_proxy_loss(s->proxy, 1), TERN_TIMEOUT, "rank 1 has not answered for 800 ms");
    return TEST_PASSED;
}
ON_STAGE(silent_though_busy, 800)

/* A queue fails by a refusal, then the peer is lost: other queues tell of the loss alone, and the first one,
 * where a barrier looks whether it is to wait, does not hide it. */
static int refused_then_lost_body(struct stage_of_one *s)
{
    struct ring_step *steps = lists(s, 1, 4);
    uint32_t lost = net_failed(SYNDROME_TRANSPORT_RETRY);
    steps[0] = put(s, 1, AREA_BYTES, 0, 64);
    steps[1] = flush_of(1);
    steps[2].kind = steps[3].kind = STEP_NOTHING;
    OK(launch(s, 1, LONG_NS));
    OK(settle(s));
    CHECK(steps[1].end == net_failed(SYNDROME_REMOTE_ACCESS), "refused with 0x%x", steps[1].end);
    s->engine->silent_peer = 1;
    steps[0] = put(s, 1, 0, 0, 64);
    steps[0].ring = proxy_rig_ring(1, 1);
    steps[1].ring = proxy_rig_ring(1, 1);
    steps[2] = put(s, 1, 0, 0, 64);
    steps[3] = flush_of(1);
    OK(launch(s, 1, LONG_NS));
    OK(settle(s));
    CHECK(steps[1].end == lost && steps[3].end == lost, "ended with 0x%x and 0x%x", steps[1].end,
          steps[3].end);
    CHECK(ring_done_syndrome(done(s, 1)) == NET_SYNDROME_LOST, "done is 0x%llx",
          (unsigned long long)done(s, 1));
    REFUSES(terni_proxy_loss(s->proxy, 1), TERN_TIMEOUT, "rank 1 has not answered for 200 ms");
    REFUSES(terni_proxy_refusal(s->proxy, 1, 0), TERN_INVALID_ARGUMENT, "the peer has registered nothing");
    OK(terni_proxy_refusal(s->proxy, 1, 1));
    OK(terni_proxy_loss(s->proxy, 2));
    return TEST_PASSED;
}
ON_STAGE(refused_then_lost, 200)

/* Staged, and the silent peer gets more to do than there are buffers: it alone is named, also later. */
static int silent_staged_body(struct stage_of_one *s)
{
    struct ring_step *steps = lists(s, 1, 4);
    s->engine->silent_peer = 1;
    steps[0] = put(s, 1, 0, 0, AREA_BYTES);
    steps[1] = put(s, 1, 0, 0, AREA_BYTES);
    steps[2] = flush_of(1);
    OK(launch(s, 1, LONG_NS));
    OK(settle(s));
    CHECK(steps[2].end == net_failed(SYNDROME_TRANSPORT_RETRY), "the silent one's ended with 0x%x",
          steps[2].end);
    steps[0] = put(s, 2, 0, 0, AREA_BYTES);
    steps[1] = flush_of(2);
    steps[2].kind = STEP_NOTHING;
    OK(launch(s, 1, LONG_NS));
    OK(settle(s));
    CHECK(steps[1].end == NET_OK, "the other peer's ring ended with 0x%x", steps[1].end);
    CHECK(memcmp(s->there[2], s->here, AREA_BYTES) == 0, "the bytes");
    OK(terni_proxy_loss(s->proxy, 2));
    REFUSES(terni_proxy_loss(s->proxy, 1), TERN_TIMEOUT, "rank 1 has not answered for 200 ms");
    return TEST_PASSED;
}
static int silent_staged(struct test *t)
{
    struct stage_of_one s;
    int result = open_stage(&s, 200, 1);
    (void)t;
    result = result ? result : silent_staged_body(&s);
    close_stage(&s);
    return result;
}

/* Memory that is released while a put and a get of it are out: the ring fails, and the get brings nothing. */
static int released_body(struct stage_of_one *s)
{
    struct ring_step *steps = lists(s, 1, 2);
    for (int is_get = 0; is_get < 2; is_get++) {
        struct region windows[3];
        char *mine = (char *)test_take(1, 4096);
        uint32_t access = KEY_LOCAL_WRITE;
        enum tern_status status;
        memset(windows, 0, sizeof windows);
        status = terni_proxy_register(s->proxy, mine, 4096, access, 1, &windows[0]);
        mock_engine_set(s->engine, -1, 0);
        steps[0] = put(s, 1 + is_get, 0, 0, 100);
        steps[0].kind = is_get ? STEP_GET : STEP_PUT;
        steps[0].local = mine;
        steps[1] = flush_of(1 + is_get);
        status = status == TERN_OK ? launch(s, 1, LONG_NS) : status;
        for (int i = 0; i < 20000 && mock_engine_look(s->engine).num_taken <= is_get; i++) {
            nap_ms(1);
        }
        status = status == TERN_OK ? terni_proxy_release(s->proxy, mine) : status;
        mock_engine_set(s->engine, -1, -1);
        status = status == TERN_OK ? settle(s) : status;
        free(mine);
        OK(status);
        CHECK(steps[1].end == net_failed(SYNDROME_LOCAL_PROTECTION), "ended with 0x%x", steps[1].end);
    }
    return TEST_PASSED;
}
static int released(struct test *t)
{
    struct stage_of_one s;
    int result = open_stage(&s, 20000, 1);
    (void)t;
    result = result ? result : released_body(&s);
    if (s.engine != NULL) {
        mock_engine_set(s.engine, -1, -1);
    }
    close_stage(&s);
    return result;
}

/* Registrations side by side: a put over both is two operations. */
static int side_by_side_body(struct stage_of_one *s)
{
    struct region windows[3];
    struct ring_step *steps = lists(s, 1, 2);
    char *big = (char *)test_take(2, 4096), *from = (char *)test_take(1, 8192);
    struct rng rng = {3};
    int result = TEST_FAILED;
    rng_bytes(&rng, from, 8192);
    for (int half = 0; half < 2; half++) {
        memset(windows, 0, sizeof windows);
        if (terni_proxy_register(s->proxy, from + 4096 * half, 4096, KEY_LOCAL_WRITE, 1, &windows[0]) !=
            TERN_OK) {
            goto free_memory;
        }
        windows[1].base = (uint64_t)(uintptr_t)(big + (half ? 1000 : 0));
        windows[1].bytes = half ? 8192 - 1000 : 1000;
        if (terni_proxy_import(s->proxy, windows) != TERN_OK) {
            goto free_memory;
        }
    }
    steps[0] = put(s, 1, 0, 0, 8192);
    steps[0].local = from;
    steps[0].remote = (uint64_t)(uintptr_t)big;
    steps[1] = flush_of(1);
    if (launch(s, 1, LONG_NS) == TERN_OK && settle(s) == TERN_OK && steps[1].end == NET_OK &&
        memcmp(big, from, 8192) == 0 && mock_engine_look(s->engine).num_taken == 3) {
        result = TEST_PASSED;
    } else {
        test_note(__FILE__, __LINE__, "ended with 0x%x after %d operations", steps[1].end,
                  mock_engine_look(s->engine).num_taken);
    }
    /* Released memory is no longer to be named. */
    if (terni_proxy_release(s->proxy, from) != TERN_OK || launch(s, 1, LONG_NS) != TERN_OK ||
        settle(s) != TERN_OK || steps[1].end != net_failed(SYNDROME_LOCAL_PROTECTION)) {
        test_note(__FILE__, __LINE__, "a put from released memory ended with 0x%x", steps[1].end);
        result = TEST_FAILED;
    }
    /* Nor is what was imported with it. */
    steps[0].local = s->here;
    steps[0].bytes = 100;
    steps[0].ring = steps[1].ring = proxy_rig_ring(1, 1);
    if (launch(s, 1, LONG_NS) != TERN_OK || settle(s) != TERN_OK ||
        steps[1].end != net_failed(SYNDROME_REMOTE_ACCESS)) {
        test_note(__FILE__, __LINE__, "a put to what was imported ended with 0x%x", steps[1].end);
        result = TEST_FAILED;
    }

free_memory:
    free(from);
    free(big);
    return result;
}
ON_STAGE(side_by_side, 20000)

/* With nothing to do the thread sleeps, and longer than it is awake. */
static int idle_body(struct stage_of_one *s)
{
    struct timespec before, after;
    double used;
    struct proxy_counts counts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    nap_ms(500);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    used = (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    terni_proxy_counts(s->proxy, &counts);
    CHECK(counts.rests > 0 && mock_engine_look(s->engine).num_rests > 0, "it never rests");
    CHECK(used < 0.25, "%.0f ms of processor time in 500 ms of nothing", used * 1e3);
    return TEST_PASSED;
}
ON_STAGE(idle, 20000)

static int bad_configs(struct test *t)
{
    struct executor *x;
    struct machine *m;
    struct proxy *p;
    (void)t;
    OK(terni_executor_open(0, &x));
    OK(terni_cpu_open(x, &m));
    for (int i = 0; i < 4; i++) {
        struct proxy_config c = {m, &mock_engine_new(0, 2)->base, 1, 64, 1000, 0, 0};
        c.num_queues = i == 0 ? 0 : 1;
        c.depth = i == 1 ? 48 : i == 2 ? 1 : 64;
        c.timeout_ms = i == 3 ? 0 : 1000;
        REFUSES(terni_proxy_open(&c, &p), TERN_INVALID_ARGUMENT,
                i == 0   ? "0 queues"
                : i == 3 ? "timeout_ms"
                         : "ring of");
    }
    m->ops->close(m);
    terni_executor_release(x);
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "a moody engine: order and bytes", moody_engine);
    test_run(&t, "a slot is free once its request was taken", consumed_after_post);
    test_run(&t, "done in order, whatever the engine's", done_in_order);
    test_run(&t, "puts that continue each other are one", coalesced);
    test_run(&t, "a full ring blocks, and giving up leaves no hole", full_ring);
    test_run(&t, "deadline and abort word end waits", given_up);
    test_run(&t, "a failed operation takes its ring along", failed);
    test_run(&t, "fetches on a failed ring, more than it has words", fetches_failed);
    test_run(&t, "a copy that fails at the peer", device_failed);
    test_run(&t, "requests without registered memory", refused);
    test_run(&t, "a silent peer is lost by name", silent);
    test_run(&t, "a peer whose bytes come is not silent", heard);
    test_run(&t, "a silent peer is lost though requests go on", silent_though_busy);
    test_run(&t, "a peer that is lost after a refusal", refused_then_lost);
    test_run(&t, "a silent peer keeps no other's buffers", silent_staged);
    test_run(&t, "memory released with requests on their way", released);
    test_run(&t, "a put over two registrations", side_by_side);
    test_run(&t, "an idle thread sleeps", idle);
    test_run(&t, "configurations that cannot be", bad_configs);
    return test_end(&t);
}
