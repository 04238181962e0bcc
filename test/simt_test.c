/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor of the cpu machine: what its vocabulary promises, that schedules replay from their seeds, that
 * bulk copies are late, and that broken kernels are reported. Without arguments all tests run; arguments name
 * the ones to run. forgotten_wait fails by intent: it is there for ThreadSanitizer to report. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "simt_rig.h"

/* ---- Barriers, warps, messages ---- */

static void test_barrier(void)
{
    enum { BLOCKS = 3, THREADS = 96, ROUNDS = 20 };

    for (uint64_t seed = 0; seed < 5; seed++) {
        struct rig r;
        int wrong = 0;
        rig_open(&r, seed);
        r.args.rounds = ROUNDS;
        r.args.words = (uint32_t *)rig_alloc(&r, BLOCKS * THREADS * 4);
        r.args.out = (uint32_t *)rig_alloc(&r, BLOCKS * THREADS * 4);
        LAUNCH(&r, simt_barrier, BLOCKS, THREADS, 0, NULL);
        SYNC(&r, NULL);
        for (int i = 0; i < BLOCKS * THREADS; i++) {
            uint32_t want =
                (uint32_t)(ROUNDS * ((i + 33) % THREADS) + 1000 * ROUNDS * (ROUNDS - 1) / 2 + ROUNDS);
            wrong += r.args.out[i] != want;
        }
        CHECK(wrong == 0);
        rig_close(&r);
    }
}

static void test_lanes(void)
{
    enum { BLOCKS = 2, THREADS = 64, ROUNDS = 20 };

    for (uint64_t seed = 0; seed < 5; seed++) {
        struct rig r;
        int wrong = 0;
        rig_open(&r, seed);
        r.args.rounds = ROUNDS;
        r.args.words = (uint32_t *)rig_alloc(&r, BLOCKS * THREADS * 4);
        r.args.out = (uint32_t *)rig_alloc(&r, BLOCKS * THREADS * 4);
        LAUNCH(&r, simt_lanes, BLOCKS, THREADS, 0, NULL);
        SYNC(&r, NULL);
        for (int i = 0; i < BLOCKS * THREADS; i++) {
            wrong += r.args.out[i] != (uint32_t)(ROUNDS * ((i + 5) & 31) + 1000 * ROUNDS * (ROUNDS - 1) / 2);
        }
        CHECK(wrong == 0);
        rig_close(&r);
    }
}

static void test_warp(void)
{
    for (uint64_t seed = 1; seed < 5; seed++) {
        struct rig r;
        int wrong = 0;
        rig_open(&r, seed);
        r.args.out = (uint32_t *)rig_alloc(&r, 64 * SIMT_WARP_OUTS * 4);
        LAUNCH(&r, simt_warp, 1, 64, 0, NULL);
        SYNC(&r, NULL);
        for (int tid = 0; tid < 64; tid++) {
            const uint32_t *out = r.args.out + tid * SIMT_WARP_OUTS;
            int lane = tid & 31;
            uint32_t same = 0;
            for (int i = lane % 5; i < 32; i += 5) {
                same |= 1u << i;
            }
            wrong += out[0] != 3u * (uint32_t)((tid & 32) + ((lane + 5) & 31));
            wrong += out[1] != 0x49249249u;
            wrong += out[2] != same;
            wrong += out[3] != 3u;
            wrong += bits_f32(out[4]) != (float)(lane ^ 16);
            wrong += out[5] != 9u;
        }
        CHECK(wrong == 0);
        rig_close(&r);
    }
}

/* Some blocks pass rounds of words on, and block 1 sums them. */
static void check_message(simt_function *function, const char *name, int num_blocks)
{
    for (uint64_t seed = 0; seed < 5; seed++) {
        struct rig r;
        uint32_t sum = 0, want = 0;
        rig_open(&r, seed);
        r.args.rounds = 10;
        r.args.words = (uint32_t *)rig_alloc(&r, SIMT_MESSAGE_WORDS * 4);
        r.args.out = (uint32_t *)rig_alloc(&r, 64 * 4);
        CHECK(rig_launch(&r, function, name, num_blocks, 64, 0, NULL) == TERN_OK);
        SYNC(&r, NULL);
        for (int i = 0; i < 64; i++) {
            sum += r.args.out[i];
        }
        for (uint32_t i = 0; i < 10 * SIMT_MESSAGE_WORDS; i++) {
            want += i / SIMT_MESSAGE_WORDS + i % SIMT_MESSAGE_WORDS;
        }
        CHECK(sum == want);
        rig_close(&r);
    }
}

static void test_message(void) { check_message(tern_cpu_simt_message, "simt_message", 2); }

static void test_fence(void) { check_message(tern_cpu_simt_fence, "simt_fence", 2); }

static void test_relay(void) { check_message(tern_cpu_simt_relay, "simt_relay", 3); }

/* ---- Bulk copies ---- */

static void test_pipeline(void)
{
    enum { BLOCKS = 2, WARPS = 2, ROUNDS = 9, BYTES = BLOCKS * WARPS * ROUNDS * SIMT_CHUNK };

    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct rig r;
        uint32_t *in;
        int wrong = 0;
        rig_open(&r, seed);
        r.args.rounds = ROUNDS;
        in = (uint32_t *)rig_alloc(&r, BYTES);
        for (int i = 0; i < BYTES / 4; i++) {
            in[i] = (uint32_t)i * 2654435761u;
        }
        r.args.in = (const char *)in;
        r.args.copy = (char *)rig_alloc(&r, BYTES);
        LAUNCH(&r, simt_pipeline, BLOCKS, WARPS * 32, WARPS * (4 * SIMT_CHUNK + 16), NULL);
        SYNC(&r, NULL);
        for (int i = 0; i < BYTES / 4; i++) {
            wrong += ((const uint32_t *)(void *)r.args.copy)[i] != in[i] + 1u;
        }
        CHECK(wrong == 0);
        rig_close(&r);
    }
}

/* Returns in how many of the seeds block 1 saw old data. */
static int count_stale(int wait_before_flag)
{
    int stale = 0;

    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct rig r;
        int old = 0;
        rig_open(&r, seed);
        r.args.wait_before_flag = wait_before_flag;
        r.args.words = (uint32_t *)rig_alloc(&r, 128);
        r.args.out = (uint32_t *)rig_alloc(&r, 128);
        LAUNCH(&r, simt_late, 2, 32, 128, NULL);
        SYNC(&r, NULL);
        for (int i = 0; i < 32; i++) {
            old += r.args.out[i] != 7u;
        }
        stale += old != 0;
        rig_close(&r);
    }
    return stale;
}

static void test_late(void)
{
    CHECK(count_stale(1) == 0);
    if (!UNDER_TSAN) { /* it would rightly call this a race */
        int stale = count_stale(0);
        printf("# a forgotten bulk_wait showed in %d of %u seeds\n", stale, SEEDS);
        CHECK(stale > 0);
    }
}

/* For ThreadSanitizer, on request: a run that it must report. */
static void test_forgotten_wait(void) { CHECK(count_stale(0) == 0); }

static void test_poison(void)
{
    struct rig r;
    int zeros = 0;

    rig_open(&r, 1);
    r.args.out = (uint32_t *)rig_alloc(&r, 128);
    LAUNCH(&r, simt_poison, 1, 32, 128, NULL);
    SYNC(&r, NULL);
    for (int i = 0; i < 32; i++) {
        zeros += r.args.out[i] == 0;
    }
    CHECK(zeros == 0);
    rig_close(&r);
}

/* ---- Replay ---- */

/* Three machines of one executor, driven by this thread. Returns a hash of the order of all their threads. */
static uint64_t trace_hash(uint64_t seed)
{
    enum {
        MACHINES = 3,
        BLOCKS = 2,
        THREADS = 32,
        ROUNDS = 4,
        ENTRIES = MACHINES * BLOCKS * THREADS * ROUNDS
    };
    struct rig r;
    struct machine *more[MACHINES - 1];
    struct executor_stats stats;
    uint64_t hash = 1469598103934665603ull;

    rig_open(&r, seed);
    r.args.rounds = ROUNDS;
    r.args.out = (uint32_t *)rig_alloc(&r, ENTRIES * 4);
    LAUNCH(&r, simt_trace, BLOCKS, THREADS, 0, NULL);
    for (int i = 0; i < MACHINES - 1; i++) {
        struct launch launch = {0, BLOCKS, THREADS, 0, &r.args, sizeof(r.args)};
        CHECK(terni_cpu_open(r.x, &more[i]) == TERN_OK);
        CHECK(terni_cpu_launch_function(more[i], tern_cpu_simt_trace, "simt_trace", &launch, NULL) ==
              TERN_OK);
    }
    SYNC(&r, NULL);
    for (int i = 0; i < MACHINES - 1; i++) {
        CHECK(more[i]->ops->stream_synchronize(more[i], NULL) == TERN_OK);
        more[i]->ops->close(more[i]);
    }
    CHECK(*r.args.counter == ENTRIES);
    for (int i = 0; i < ENTRIES; i++) {
        hash = (hash ^ r.args.out[i]) * 1099511628211ull;
    }
    terni_executor_stats(r.x, &stats);
    CHECK(stats.resumes >= ENTRIES / ROUNDS && stats.grids == MACHINES);
    rig_close(&r);
    return hash ^ stats.trace;
}

static void test_replay(void)
{
    int equal = 0;

    for (uint64_t seed = 1; seed <= 10; seed++) {
        CHECK(trace_hash(seed) == trace_hash(seed));
        equal += trace_hash(seed) == trace_hash(seed + 1);
    }
    CHECK(equal == 0);
}

static void test_crowd(void)
{
    struct rig r;
    uint32_t threads = UNDER_TSAN ? 256 : 20480;

    rig_open(&r, 5);
    r.args.total = threads;
    LAUNCH(&r, simt_crowd, (int)threads / 64, 64, 0, NULL);
    SYNC(&r, NULL);
    CHECK(*r.args.counter == threads);
    rig_close(&r);
}

/* ---- Reports ---- */

/* Runs the kernel in a child; returns whether it aborted and said `text`, the kernel's name and its machine.
 */
static int is_reported(simt_function *function, const char *name, int num_blocks, int num_threads,
                       const char *text)
{
    char said[8192];
    size_t length = 0;
    ssize_t got;
    int ends[2], status;
    pid_t child;

    if (pipe(ends) != 0) {
        return 0;
    }
    fflush(stdout);
    child = fork();
    if (child == 0) {
        struct rig r;
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        alarm(60);
        rig_open(&r, 1);
        r.args.copy = (char *)rig_alloc(&r, 256);
        r.args.out = (uint32_t *)rig_alloc(&r, 256);
        rig_launch(&r, function, name, num_blocks, num_threads, 64, NULL);
        r.m->ops->stream_synchronize(r.m, NULL);
        _exit(0);
    }
    close(ends[1]);
    while (length < sizeof(said) - 1 && (got = read(ends[0], said + length, sizeof(said) - 1 - length)) > 0) {
        length += (size_t)got;
    }
    said[length] = '\0';
    close(ends[0]);
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strstr(said, text) != NULL &&
        strstr(said, name) != NULL && strstr(said, "machine 0") != NULL) {
        return 1;
    }
    printf("# status %x, expected \"%s\" in:\n%s\n", status, text, said);
    return 0;
}

#define REPORTED(kernel, num_blocks, num_threads, text)                                                      \
    CHECK(is_reported(tern_cpu_##kernel, #kernel, (num_blocks), (num_threads), (text)))

static void test_reports(void)
{
    REPORTED(simt_diverge, 1, 32, "lanes 0000ffff wait in sync_warp; lanes ffff0000 wait in sync_block");
    REPORTED(simt_exit_early, 1, 32, "00000020 have exited");
    REPORTED(simt_no_arrival, 1, 64, "lanes 00000001 wait in sync_block");
    REPORTED(simt_misaligned, 1, 32, "not multiples of 16");
    REPORTED(simt_misaligned_hint, 1, 32, "24 bytes at");
    REPORTED(simt_no_wait, 1, 32, "has ended before its bulk stores were");
    REPORTED(simt_overflow, 1, 32, "has overflown its stack");
}

static const struct test tests[] = {
    {"barrier", test_barrier, 0},
    {"warp", test_warp, 0},
    {"lanes", test_lanes, 0},
    {"message", test_message, 0},
    {"fence", test_fence, 0},
    {"relay", test_relay, 0},
    {"pipeline", test_pipeline, 0},
    {"late", test_late, 0},
    {"poison", test_poison, 0},
    {"replay", test_replay, 0},
    {"crowd", test_crowd, 0},
    {"reports", test_reports, 0},
    {"forgotten_wait", test_forgotten_wait, 1},
};

int main(int argc, char **argv) { return run_tests(tests, sizeof(tests) / sizeof(tests[0]), argc, argv); }
