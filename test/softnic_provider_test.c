/* SPDX-License-Identifier: Apache-2.0
 *
 * The softnic provider among ranks that are threads, each with an executor of its own and a NIC beside it,
 * in a thread or in a kernel: random programs of many threads on few queues against a reference, a NIC that
 * pauses in the middle, counters past 16 bits, errors, and that nothing is left behind. In one file, as all
 * cases share the scene of its first half. */
#include "kernels/kernels.h"
#include "net/softnic_provider.h"
#include "queue_steps.h"
#include "simt/executor.h"
#include "support.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    RANKS = 3,
    CARD_BYTES = 96, /* at least */
    THREADS = 64,
    AREA = 600,
    WORDS = 5, /* of a thread at each peer */
    ROUNDS = 6,
    ROUND_STEPS = 11,
    STEPS = ROUNDS * ROUND_STEPS + 3,
    SEEDS = 6,
    WRAP_STEPS = 1100
};

/* What one thread of one rank has at another rank. */
struct corner {
    char in[AREA];
    uint64_t words[WORDS];
};

/* One rank's memory: what it sends and gets back, and everybody's corners. `sum` is raised by all. */
struct heap {
    char out[THREADS][AREA], back[THREADS][AREA];
    struct corner corners[RANKS][THREADS];
    uint64_t sum;
};

struct scene;
struct member {
    struct scene *scene;
    int rank, result;
    struct executor *executor;
    struct machine *machine;
    struct softnic_provider *provider;
    struct tern_stream *stream;
    struct softnic_region_card card;
    struct queue_step (*steps)[STEPS]; /* [THREADS] */
    uint64_t *old;                     /* [THREADS * STEPS]: what fetches must tell */
    uint32_t num_wrong;
    pthread_t thread;
};

struct scene {
    uint64_t seed;
    struct rng random;
    struct softnic_config shape; /* of all, but for machine and rank */
    int pauses;
    struct heap *heaps, *wanted; /* [RANKS] */
    struct softnic_link links[RANKS][SOFTNIC_MAX_NICS];
    void *wires[RANKS]; /* or none */
    char cards[RANKS][CARD_BYTES];
    struct member members[RANKS];
    pthread_barrier_t barrier;
};

static uint64_t at(const void *p) { return (uint64_t)(uintptr_t)p; }

/* ---- What is left behind ---- */

static const struct machine_ops *real_ops;
static struct machine_ops counting_ops;
static int num_live;

static enum tern_status count_alloc(struct machine *m, size_t bytes, void **memory)
{
    __atomic_fetch_add(&num_live, 1, __ATOMIC_RELAXED);
    return real_ops->alloc(m, bytes, memory);
}

static void count_free(struct machine *m, void *memory)
{
    __atomic_fetch_sub(&num_live, 1, __ATOMIC_RELAXED);
    real_ops->free(m, memory);
}

static enum tern_status count_host_alloc(struct machine *m, size_t bytes, void **host, void **device)
{
    __atomic_fetch_add(&num_live, 1, __ATOMIC_RELAXED);
    return real_ops->host_alloc(m, bytes, host, device);
}

static void count_host_free(struct machine *m, void *host)
{
    __atomic_fetch_sub(&num_live, 1, __ATOMIC_RELAXED);
    real_ops->host_free(m, host);
}

/* All cpu machines have the same operations. */
static void make_counting(void)
{
    counting_ops = *real_ops;
    counting_ops.alloc = count_alloc;
    counting_ops.free = count_free;
    counting_ops.host_alloc = count_host_alloc;
    counting_ops.host_free = count_host_free;
}

static void take_over(struct machine *m)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (real_ops == NULL) {
        real_ops = m->ops;
        make_counting();
    }
    pthread_mutex_unlock(&lock);
    m->ops = &counting_ops;
}

/* ---- Programs and the reference ---- */

static struct queue_step *next_step(struct member *m, int thread, int *i, enum step_kind kind, uint32_t queue)
{
    struct queue_step *s = &m->steps[thread][(*i)++];
    s->kind = kind;
    s->queue = queue;
    s->width = 8;
    return s;
}

/* One of any kind on a word; what it tells before, and does to the reference's word. */
static void plan_word(struct scene *w, struct queue_step *s, uint64_t *word, uint64_t *wanted, uint64_t *old)
{
    uint32_t width = rng_one_in(&w->random, 2) ? 4 : 8;
    s->amo = rng_below(&w->random, NET_AMO_FETCH + 1u);
    s->width = width;
    s->value = width == 4 ? (uint32_t)rng_next(&w->random) : rng_next(&w->random);
    s->remote = at(word);
    *old = width == 4 ? (uint32_t)*wanted : *wanted;
    s->compare = rng_one_in(&w->random, 2) ? *old : s->value + 1;
    if (width == 4) {
        s->compare = (uint32_t)s->compare;
        *wanted = (*wanted & 0xffffffff00000000ull) |
                  (uint32_t)net_amo_apply(s->amo, 4, (uint32_t)*wanted, s->value, s->compare);
    } else {
        *wanted = net_amo_apply(s->amo, 8, *wanted, s->value, s->compare);
    }
}

static void plan_round(struct scene *w, struct member *m, int thread, int *i, uint64_t value)
{
    int peer = (m->rank + 1 + (int)rng_below(&w->random, RANKS - 1)) % RANKS;
    uint32_t queue = (uint32_t)peer * w->shape.num_queues + rng_below(&w->random, w->shape.num_queues);
    struct corner *there = &w->heaps[peer].corners[m->rank][thread];
    struct corner *wanted = &w->wanted[peer].corners[m->rank][thread];
    struct heap *mine = &w->heaps[m->rank];
    uint64_t bytes = 1 + rng_below(&w->random, AREA),
             first = rng_below(&w->random, AREA - (uint32_t)bytes + 1);
    struct queue_step *s = next_step(m, thread, i, STEP_FILL, queue);
    s->local = at(mine->out[thread] + first);
    s->bytes = bytes;
    s->value = value;
    s = next_step(m, thread, i, STEP_PUT_SIGNAL, queue);
    s->local = at(mine->out[thread] + first);
    s->remote = at(there->in + first);
    s->bytes = bytes;
    s->signal = at(&there->words[0]);
    s->value = value;
    s->amo = NET_AMO_ADD;
    wanted->words[0] += value;
    for (uint64_t k = 0; k < bytes; k++) {
        wanted->in[first + k] = (char)step_pattern(value, k);
    }
    s = next_step(m, thread, i, STEP_FETCH, queue);
    plan_word(w, s, &there->words[1], &wanted->words[1], &m->old[thread * STEPS + *i - 1]);
    s = next_step(m, thread, i, STEP_ATOMIC, queue);
    plan_word(w, s, &there->words[2], &wanted->words[2], &m->old[thread * STEPS + *i - 1]);
    s = next_step(m, thread, i, STEP_PUT_INLINE, queue);
    s->remote = at(&there->words[3]);
    s->value = wanted->words[3] = rng_next(&w->random);
    s = next_step(m, thread, i, STEP_SIGNAL, queue);
    s->remote = at(&there->words[4]);
    s->value = wanted->words[4] = value;
    s->amo = NET_AMO_SET;
    s = next_step(m, thread, i, STEP_ATOMIC, queue);
    s->remote = at(&w->heaps[peer].sum);
    s->value = 1;
    s->amo = NET_AMO_ADD;
    w->wanted[peer].sum++;
    s = next_step(m, thread, i, STEP_GET, queue);
    s->local = at(mine->back[thread] + first);
    s->remote = at(there->in + first);
    s->bytes = bytes;
    next_step(m, thread, i, STEP_FLUSH, queue);
    s = next_step(m, thread, i, STEP_EXPECT, queue);
    s->local = at(mine->back[thread] + first);
    s->bytes = bytes;
    s->value = value;
    next_step(m, thread, i, STEP_NOTHING, queue);
}

/* The last steps: each warp puts together. */
static void plan(struct scene *w, struct member *m)
{
    for (int thread = 0; thread < THREADS; thread++) {
        int i = 0, peer = (m->rank + 1 + thread / 32 % (RANKS - 1)) % RANKS;
        uint64_t bytes = rng_below(&w->random, AREA);
        struct queue_step *s;
        for (int round = 1; round <= ROUNDS; round++) {
            plan_round(w, m, thread, &i, w->seed * 100000 + (uint64_t)(thread * 100 + round));
        }
        s = next_step(m, thread, &i, STEP_FILL, 0);
        s->local = at(w->heaps[m->rank].out[thread]);
        s->bytes = bytes;
        s->value = 77 + (uint64_t)thread;
        s = next_step(m, thread, &i, STEP_NOTHING, (uint32_t)peer * w->shape.num_queues);
        s->remote = at(w->heaps[peer].corners[m->rank][thread].in);
        s->local = at(w->heaps[m->rank].out[thread]);
        s->bytes = bytes;
        for (uint64_t k = 0; k < bytes; k++) {
            w->wanted[peer].corners[m->rank][thread].in[k] = (char)step_pattern(77 + (uint64_t)thread, k);
        }
        next_step(m, thread, &i, STEP_FLUSH, (uint32_t)peer * w->shape.num_queues);
    }
}

/* ---- A rank ---- */

static int open_rank(struct member *m)
{
    struct scene *w = m->scene;
    struct softnic_config c = w->shape;
    OK(terni_executor_open(0, &m->executor));
    OK(terni_cpu_open(m->executor, &m->machine));
    take_over(m->machine);
    OK(m->machine->ops->stream_open(m->machine, &m->stream));
    c.machine = m->machine;
    c.rank = m->rank;
    c.link = w->links[m->rank];
    c.wire_memory = w->wires[m->rank];
    OK(terni_softnic_open(&c, &m->provider));
    CHECK(terni_softnic_card_bytes(m->provider) <= sizeof w->cards[0], "a long card");
    OK(terni_softnic_register(m->provider, &w->heaps[m->rank], sizeof(struct heap), &m->card));
    return TEST_PASSED;
}

static int connect_rank(struct member *m)
{
    struct scene *w = m->scene;
    struct softnic_link *links[RANKS];
    uint32_t bytes = terni_softnic_card_bytes(m->provider);
    char cards[RANKS * CARD_BYTES];
    for (int r = 0; r < RANKS; r++) {
        terni_softnic_card(w->members[r].provider, cards + (size_t)r * bytes);
        links[r] = w->links[r];
    }
    OK(terni_softnic_connect(m->provider, cards, links, w->wires));
    for (int r = 0; r < RANKS; r++) {
        if (r != m->rank) {
            OK(terni_softnic_import(m->provider, r, &w->members[r].card, &w->heaps[r]));
        }
    }
    OK(terni_softnic_refresh(m->provider));
    return TEST_PASSED;
}

static int drive(struct member *m, struct queue_step *steps, uint32_t num_steps, uint32_t warp_step)
{
    struct scene *w = m->scene;
    struct queue_drive_args args = {terni_softnic_queues(m->provider),
                                    RANKS * w->shape.num_queues,
                                    num_steps,
                                    steps,
                                    warp_step,
                                    60000000000ull};
    struct launch launch = {0, 1, THREADS, 0, &args, sizeof args};
    OK(terni_cpu_launch_function(m->machine, tern_cpu_queue_drive, "queue_drive", &launch, m->stream));
    return TEST_PASSED;
}

static int work_rank(struct member *m)
{
    const struct timespec nap = {0, 500000};
    PASS(drive(m, &m->steps[0][0], STEPS, STEPS - 2));
    for (int i = 0; i < m->scene->pauses; i++) {
        OK(terni_softnic_pause(m->provider));
        OK(terni_softnic_pause(m->provider));
        OK(terni_softnic_resume(m->provider));
        nanosleep(&nap, NULL);
        OK(terni_softnic_resume(m->provider));
        nanosleep(&nap, NULL);
    }
    OK(m->machine->ops->stream_synchronize(m->machine, m->stream));
    for (int peer = 0; peer < RANKS; peer++) {
        for (uint32_t q = 0; peer != m->rank && q < m->scene->shape.num_queues; q++) {
            struct softnic_state state;
            OK(terni_softnic_inspect(m->provider, peer, q, &state));
            CHECK(!state.is_error && state.num_wrong == 0 && state.posted == state.fetched,
                  "seed %llu: rank %d, queue %u to %d: error %u, %u wrong, at %llu of %llu",
                  (unsigned long long)m->scene->seed, m->rank, q, peer, state.is_error, state.num_wrong,
                  (unsigned long long)state.fetched, (unsigned long long)state.posted);
        }
    }
    return TEST_PASSED;
}

/* Every thread comes to every barrier, whatever has failed. */
static void *rank_main(void *argument)
{
    struct member *m = (struct member *)argument;
    struct scene *w = m->scene;
    int all = TEST_PASSED;
    m->result = open_rank(m);
    pthread_barrier_wait(&w->barrier);
    for (int r = 0; r < RANKS; r++) {
        all |= __atomic_load_n(&w->members[r].result, __ATOMIC_ACQUIRE);
    }
    pthread_barrier_wait(&w->barrier);
    if (all == TEST_PASSED) {
        m->result = connect_rank(m);
    }
    pthread_barrier_wait(&w->barrier);
    if (all == TEST_PASSED && m->result == TEST_PASSED) {
        m->result = work_rank(m);
    }
    pthread_barrier_wait(&w->barrier); /* peers' memory is written until here */
    terni_softnic_close(m->provider);
    if (m->machine != NULL) {
        m->machine->ops->close(m->machine);
    }
    if (m->executor != NULL) {
        terni_executor_release(m->executor);
    }
    return NULL;
}

static int check_rank(const struct scene *w, const struct member *m)
{
    const struct heap *got = &w->heaps[m->rank], *wanted = &w->wanted[m->rank];
    const struct queue_step *steps = &m->steps[0][0];
    for (int k = 0; k < THREADS * STEPS; k++) {
        const struct queue_step *s = &steps[k];
        CHECK(s->status == NET_OK, "seed %llu: rank %d, thread %d, step %d (kind %u): status 0x%x",
              (unsigned long long)w->seed, m->rank, k / STEPS, k % STEPS, s->kind, s->status);
        CHECK(s->kind != STEP_EXPECT || s->old == 0, "seed %llu: rank %d, thread %d: %llu bytes differ",
              (unsigned long long)w->seed, m->rank, k / STEPS, (unsigned long long)s->old);
        CHECK(s->kind != STEP_FETCH || s->old == m->old[k],
              "seed %llu: rank %d, thread %d, step %d: old value 0x%llx, not 0x%llx",
              (unsigned long long)w->seed, m->rank, k / STEPS, k % STEPS, (unsigned long long)s->old,
              (unsigned long long)m->old[k]);
    }
    CHECK(memcmp(got->corners, wanted->corners, sizeof got->corners) == 0,
          "seed %llu: rank %d has other bytes than the reference", (unsigned long long)w->seed, m->rank);
    CHECK(got->sum == wanted->sum, "seed %llu: rank %d was raised %llu times, not %llu",
          (unsigned long long)w->seed, m->rank, (unsigned long long)got->sum,
          (unsigned long long)wanted->sum);
    return TEST_PASSED;
}

static struct scene *scene_take(uint64_t seed)
{
    struct scene *w = (struct scene *)test_take(1, sizeof *w);
    w->seed = w->random.state = seed;
    w->heaps = (struct heap *)test_take(RANKS, sizeof *w->heaps);
    w->wanted = (struct heap *)test_take(RANKS, sizeof *w->wanted);
    pthread_barrier_init(&w->barrier, NULL, RANKS);
    for (int r = 0; r < RANKS; r++) {
        w->members[r].scene = w;
        w->members[r].rank = r;
        w->members[r].steps = (struct queue_step(*)[STEPS])test_take(THREADS, sizeof *w->members[r].steps);
        w->members[r].old = (uint64_t *)test_take(THREADS * STEPS, 8);
    }
    terni_softnic_config_init(&w->shape, NULL, 0, RANKS);
    w->shape.watch = 1;
    w->shape.num_blocks = NET_QUEUE_MIN_BLOCKS;
    return w;
}

static void scene_give(struct scene *w)
{
    for (int r = 0; r < RANKS; r++) {
        free(w->wires[r]);
        free(w->members[r].steps);
        free(w->members[r].old);
    }
    pthread_barrier_destroy(&w->barrier);
    free(w->heaps);
    free(w->wanted);
    free(w);
}

/* All ranks from their opening to their end. */
static void scene_run(struct scene *w)
{
    for (int r = 0; r < RANKS; r++) {
        pthread_create(&w->members[r].thread, NULL, rank_main, &w->members[r]);
    }
    for (int r = 0; r < RANKS; r++) {
        pthread_join(w->members[r].thread, NULL);
    }
}

/* ---- Random programs ---- */

enum how { BY_THREAD, BY_KERNEL, PAUSED, RELAYED, MODELLED, PACKETS };

static void speak_packets(struct scene *w, int is_adaptive)
{
    uint64_t bytes;
    terni_softnic_wire_err(&w->shape.wire, is_adaptive);
    w->shape.wire.config.retry_count = 30;
    bytes = terni_softnic_wire_bytes(&w->shape.wire, RANKS, w->shape.num_nics);
    for (int r = 0; r < RANKS; r++) {
        w->wires[r] = aligned_alloc(64, bytes);
        if (w->wires[r] == NULL) {
            abort();
        }
    }
}

static void shape(struct scene *w, enum how how)
{
    struct rng *r = &w->random;
    struct softnic_config *c = &w->shape;
    c->num_queues = rng_between(r, 1, 3);
    c->num_nics = rng_between(r, 1, 3);
    c->num_blocks = NET_QUEUE_MIN_BLOCKS << rng_below(r, 3);
    c->batch_blocks = 1u << rng_below(r, 3);
    c->cq_ring = rng_one_in(r, 2);
    c->dump = rng_one_in(r, 2);
    c->hold_one_in = rng_below(r, 4);
    c->seed = w->seed;
    c->nic_blocks = (int)rng_between(r, 1, 3);
    c->nic_warps = (int)rng_between(r, 1, 3);
    c->runner = how == BY_KERNEL || (how == PAUSED && rng_one_in(r, 2)) ? SOFTNIC_KERNEL : SOFTNIC_AUTO;
    c->relay = how == RELAYED;
    w->pauses = how == PAUSED ? 5 : 0;
    if (how == MODELLED) {
        c->runner = rng_one_in(r, 3) ? SOFTNIC_KERNEL : SOFTNIC_AUTO;
        c->rates.bytes_per_s = 200000000ull << rng_below(r, 4);
        c->rates.receive_bytes_per_s = rng_one_in(r, 2) ? c->rates.bytes_per_s : 0;
        c->rates.messages_per_s = rng_one_in(r, 2) ? 500000 : 0;
        c->rates.latency_ns = rng_below(r, 3) * 10000;
    }
    if (how == PACKETS) {
        c->runner = rng_one_in(r, 3) ? SOFTNIC_KERNEL : SOFTNIC_AUTO;
        c->relay = rng_one_in(r, 3);
        w->pauses = rng_one_in(r, 2) ? 5 : 0;
        speak_packets(w, rng_one_in(r, 2));
    }
}

static int one(uint64_t seed, enum how how)
{
    struct scene *w = scene_take(seed);
    int threads = test_threads(-1), fds = test_files("/proc/self/fd"), live = num_live;
    int result = TEST_PASSED, now;
    shape(w, how);
    for (int r = 0; r < RANKS; r++) {
        plan(w, &w->members[r]);
    }
    scene_run(w);
    for (int r = 0; r < RANKS && result == TEST_PASSED; r++) {
        result = w->members[r].result != TEST_PASSED ? w->members[r].result : check_rank(w, &w->members[r]);
    }
    scene_give(w);
    PASS(result);
    now = test_threads(threads);
    CHECK(now == threads && test_files("/proc/self/fd") == fds,
          "seed %llu: %d threads, %d before; %d descriptors, %d before", (unsigned long long)seed, now,
          threads, test_files("/proc/self/fd"), fds);
    CHECK(num_live == live, "seed %llu: %d pieces of machine memory are left", (unsigned long long)seed,
          num_live - live);
    return TEST_PASSED;
}

static int each_seed(struct test *t, enum how how)
{
    uint64_t first = t->has_seeds ? t->seeds[0] : 1;
    uint64_t last = t->has_seeds ? t->seeds[1] : (uint64_t)test_scaled(t, SEEDS);
    for (uint64_t seed = first; seed <= last; seed++) {
        PASS(one(seed, how));
    }
    test_detail(t, "seeds %llu to %llu", (unsigned long long)first, (unsigned long long)last);
    return TEST_PASSED;
}

static int by_thread(struct test *t) { return each_seed(t, BY_THREAD); }
static int by_kernel(struct test *t) { return each_seed(t, BY_KERNEL); }
static int paused(struct test *t) { return each_seed(t, PAUSED); }
static int relayed(struct test *t) { return each_seed(t, RELAYED); }
static int modelled(struct test *t) { return each_seed(t, MODELLED); }
static int packets(struct test *t) { return each_seed(t, PACKETS); }

/* ---- Counters past 16 bits, errors, and what is refused ---- */

/* Ranks in this thread, connected. */
static int open_quietly(struct scene *w)
{
    for (int r = 0; r < RANKS; r++) {
        PASS(open_rank(&w->members[r]));
    }
    for (int r = 0; r < RANKS; r++) {
        PASS(connect_rank(&w->members[r]));
    }
    return TEST_PASSED;
}

static int with_ranks(struct scene *w, int (*body)(struct scene *w))
{
    int result = open_quietly(w);
    result = result == TEST_PASSED ? body(w) : result;
    for (int r = RANKS - 1; r >= 0; r--) {
        struct member *m = &w->members[r];
        if (m->stream != NULL) {
            (void)m->machine->ops->stream_synchronize(m->machine, m->stream);
        }
    }
    for (int r = 0; r < RANKS; r++) { /* rank 0 first: the others' NICs still run */
        struct member *m = &w->members[r];
        terni_softnic_close(m->provider);
        if (m->machine != NULL) {
            m->machine->ops->close(m->machine);
        }
        if (m->executor != NULL) {
            terni_executor_release(m->executor);
        }
    }
    scene_give(w);
    return result;
}

static int raise_often(struct scene *w)
{
    struct member *m = &w->members[0];
    uint32_t num = WRAP_STEPS;
    struct queue_step *steps = (struct queue_step *)test_take(THREADS * (size_t)num, sizeof *steps);
    struct softnic_state state;
    int result;
    for (uint32_t k = 0; k < THREADS * num; k++) {
        steps[k].kind = k % num == num - 1 ? STEP_FLUSH : STEP_ATOMIC;
        steps[k].queue = w->shape.num_queues; /* the first to rank 1 */
        steps[k].remote = at(&w->heaps[1].sum);
        steps[k].amo = NET_AMO_ADD;
        steps[k].width = 8;
        steps[k].value = 1;
    }
    result = drive(m, steps, num, ~0u);
    if (result == TEST_PASSED && m->machine->ops->stream_synchronize(m->machine, m->stream) != TERN_OK) {
        result = TEST_FAILED;
    }
    for (uint32_t k = 0; k < THREADS * num && result == TEST_PASSED; k++) {
        result = steps[k].status == NET_OK ? TEST_PASSED : TEST_FAILED;
    }
    free(steps);
    CHECK(result == TEST_PASSED, "a step failed");
    OK(terni_softnic_inspect(m->provider, 1, 0, &state));
    CHECK(state.posted == THREADS * (num - 1) && state.reported == state.posted && state.num_wrong == 0,
          "the queue is at %llu, reported %llu", (unsigned long long)state.posted,
          (unsigned long long)state.reported);
    CHECK(state.posted > 65536 && w->heaps[1].sum == state.posted, "raised %llu times",
          (unsigned long long)w->heaps[1].sum);
    return TEST_PASSED;
}

static int wraps(struct test *t)
{
    (void)t;
    for (int ring = 0; ring < 2; ring++) {
        struct scene *w = scene_take(1);
        w->shape.cq_ring = ring;
        PASS(with_ranks(w, raise_often));
    }
    return TEST_PASSED;
}

/* One step of one thread of rank 0, and how it ends. */
static int try_put(struct scene *w, uint64_t remote, uint32_t wanted)
{
    struct queue_step steps[THREADS * 2];
    struct member *m = &w->members[0];
    memset(steps, 0, sizeof steps);
    steps[0].kind = STEP_PUT;
    steps[1].kind = STEP_FLUSH;
    steps[0].queue = steps[1].queue = w->shape.num_queues;
    steps[0].remote = remote;
    steps[0].local = at(w->heaps[0].out);
    steps[0].bytes = 16;
    PASS(drive(m, steps, 2, ~0u));
    OK(m->machine->ops->stream_synchronize(m->machine, m->stream));
    CHECK(steps[1].status == wanted, "a wait ended with 0x%x, not 0x%x", steps[1].status, wanted);
    return TEST_PASSED;
}

/* Memory that a peer has taken back; then a key that its NIC never gave. */
static int spoil(struct scene *w)
{
    struct member *m = &w->members[0];
    uint64_t there = at(&w->heaps[1].corners[0][0].in);
    struct softnic_state state;
    PASS(try_put(w, there, NET_OK));
    terni_softnic_forget(m->provider, 1, at(&w->heaps[1]));
    OK(terni_softnic_refresh(m->provider));
    PASS(try_put(w, there, NET_REFUSED));
    OK(terni_softnic_import(m->provider, 1, &w->members[1].card, &w->heaps[1]));
    OK(terni_softnic_refresh(m->provider));
    PASS(try_put(w, there, NET_OK));
    ((struct net_range *)(uintptr_t)queue_range(&terni_softnic_queue(m->provider, 1, 0)->remote, there))
        ->key = wqe_key_of(0x4242);
    PASS(try_put(w, there, net_failed(SYNDROME_REMOTE_ACCESS)));
    OK(terni_softnic_inspect(m->provider, 1, 0, &state));
    CHECK(state.is_error && state.refusal.reason == REFUSED_RKEY, "state %u, reason %u", state.is_error,
          state.refusal.reason);
    return TEST_PASSED;
}

static int bad_keys(struct test *t)
{
    (void)t;
    for (int how = 0; how < 4; how++) {
        struct scene *w = scene_take(1);
        if (how == 3) {
            speak_packets(w, 0);
        }
        w->shape.runner = how == 1 ? SOFTNIC_KERNEL : SOFTNIC_AUTO;
        w->shape.rates.latency_ns = how == 2 ? 1000 : 0;
        PASS(with_ranks(w, spoil));
    }
    return TEST_PASSED;
}

/* What is posted to a NIC that does not run waits, and is flushed by an abort. */
static int cut_off(struct scene *w)
{
    struct member *m = &w->members[0];
    struct queue_step steps[THREADS * 2];
    struct softnic_state state;
    memset(steps, 0, sizeof steps);
    steps[0].kind = STEP_PUT;
    steps[1].kind = STEP_FLUSH;
    steps[0].queue = steps[1].queue = w->shape.num_queues;
    steps[0].remote = at(&w->heaps[1].corners[0][0].in);
    steps[0].local = at(w->heaps[0].out);
    steps[0].bytes = 16;
    memset(w->heaps[0].out, 1, 16);
    OK(terni_softnic_pause(m->provider));
    PASS(drive(m, steps, 2, ~0u));
    OK(terni_softnic_abort(m->provider));
    OK(terni_softnic_resume(m->provider));
    OK(m->machine->ops->stream_synchronize(m->machine, m->stream));
    CHECK(steps[1].status == net_failed(SYNDROME_FLUSHED), "status 0x%x", steps[1].status);
    CHECK(w->heaps[1].corners[0][0].in[0] == 0, "a put was done after the abort");
    OK(terni_softnic_inspect(m->provider, 1, 0, &state));
    CHECK(state.is_error, "the queue pair is not in error");
    REFUSES(terni_softnic_resume(m->provider), TERN_BAD_STATE, "not paused");
    return TEST_PASSED;
}

static int aborts(struct test *t)
{
    (void)t;
    for (int how = 0; how < 3; how++) {
        struct scene *w = scene_take(1);
        w->shape.rates.latency_ns = how == 1 ? 1000 : 0;
        if (how == 2) {
            speak_packets(w, 0);
        }
        PASS(with_ranks(w, cut_off));
    }
    return TEST_PASSED;
}

static enum tern_status no_copy(struct machine *m, void *dst, const void *src, size_t bytes,
                                struct tern_stream *s)
{
    (void)m;
    (void)dst;
    (void)src;
    (void)bytes;
    (void)s;
    return TERN_FAIL(TERN_DEVICE_ERROR, "no copy");
}

/* The device's queue pairs cannot be read: the abort says so, and the NIC goes on. */
static int cut_off_blindly(struct scene *w)
{
    static struct machine_ops broken;
    struct member *m = &w->members[0];
    const struct machine_ops *real = m->machine->ops;
    enum tern_status status;
    broken = *real;
    broken.copy = no_copy;
    m->machine->ops = &broken;
    status = terni_softnic_abort(m->provider);
    m->machine->ops = real;
    CHECK(status == TERN_DEVICE_ERROR && strcmp(tern_last_error(), "no copy") == 0, "%s: \"%s\"",
          tern_status_string(status), tern_last_error());
    REFUSES(terni_softnic_resume(m->provider), TERN_BAD_STATE, "not paused");
    return TEST_PASSED;
}

static int aborts_blindly(struct test *t)
{
    (void)t;
    return with_ranks(scene_take(1), cut_off_blindly);
}

static int refuse(struct scene *w)
{
    struct member *m = &w->members[0];
    struct softnic_provider *p = NULL;
    struct softnic_config c = w->shape;
    struct softnic_region_card card;
    char cards[RANKS * CARD_BYTES] = {0};
    c.machine = m->machine;
    REFUSES(terni_softnic_connect(m->provider, cards, NULL, NULL), TERN_BAD_STATE, "connected already");
    REFUSES(terni_softnic_register(m->provider, &w->heaps[0].sum, 8, &card), TERN_INVALID_ARGUMENT,
            "overlap");
    REFUSES(terni_softnic_import(m->provider, 0, &m->card, &w->heaps[0]), TERN_BAD_STATE, "not connected");
    REFUSES(terni_softnic_import(m->provider, 1, &w->members[1].card, &w->heaps[1]), TERN_INVALID_ARGUMENT,
            "overlap");
    REFUSES(terni_softnic_inspect(m->provider, 0, 0, NULL), TERN_INVALID_ARGUMENT, "no queue 0");
    c.num_nics = 9;
    REFUSES(terni_softnic_open(&c, &p), TERN_INVALID_ARGUMENT, "num_nics of a software NIC is 9");
    c.num_nics = 1;
    c.num_blocks = 6;
    REFUSES(terni_softnic_open(&c, &p), TERN_INVALID_ARGUMENT, "6 blocks");
    c.num_blocks = 2;
    REFUSES(terni_softnic_open(&c, &p), TERN_INVALID_ARGUMENT, "num_blocks of a software NIC is 2");
    c.num_blocks = 64;
    c.rates.bytes_per_s = 10;
    REFUSES(terni_softnic_open(&c, &p), TERN_INVALID_ARGUMENT, "bytes_per_s of a software NIC is 10");
    c.rates.bytes_per_s = 0;
    terni_softnic_wire_init(&c.wire);
    REFUSES(terni_softnic_open(&c, &p), TERN_INVALID_ARGUMENT, "no memory for packets of 1024 bytes");
    c.wire.config.mtu = 300;
    REFUSES(terni_softnic_open(&c, &p), TERN_INVALID_ARGUMENT, "an MTU of 300 bytes");
    c.wire.config.mtu = 0;
    OK(terni_softnic_open(&c, &p));
    if (terni_softnic_connect(p, cards, NULL, NULL) == TERN_OK) {
        terni_softnic_close(p);
        CHECK(0, "cards of zeros were taken");
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        terni_softnic_card(w->members[r].provider, cards + r * terni_softnic_card_bytes(p));
    }
    cards[terni_softnic_card_bytes(p) + 12]++; /* rank 1's number of queues */
    if (terni_softnic_connect(p, cards, NULL, NULL) != TERN_MISMATCH) {
        terni_softnic_close(p);
        CHECK(0, "different numbers of queues were taken");
    }
    cards[terni_softnic_card_bytes(p) + 12]--;
    cards[terni_softnic_card_bytes(p) + 17]++; /* its packets */
    if (terni_softnic_connect(p, cards, NULL, NULL) != TERN_MISMATCH) {
        terni_softnic_close(p);
        CHECK(0, "packets of one end alone were taken");
    }
    terni_softnic_close(p);
    return TEST_PASSED;
}

static int refusals(struct test *t)
{
    (void)t;
    return with_ranks(scene_take(1), refuse);
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "ranks with a NIC in a thread each", by_thread);
    test_run(&t, "ranks with a NIC in a kernel each", by_kernel);
    test_run(&t, "NICs that pause in the middle", paused);
    test_run(&t, "doorbells rung by a thread of the host", relayed);
    test_run(&t, "indices past 16 bits in a ring of 4 blocks", wraps);
    test_run(&t, "a key that is forgotten, and one that is wrong", bad_keys);
    test_run(&t, "an abort flushes what has not completed", aborts);
    test_run(&t, "an abort that cannot read the queue pairs", aborts_blindly);
    test_run(&t, "what is refused", refusals);
    test_run(&t, "a wire that is modelled changes no result", modelled);
    test_run(&t, "packets over a network that errs, by threads and by kernels", packets);
    return test_end(&t);
}
