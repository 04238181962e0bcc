/* SPDX-License-Identifier: Apache-2.0
 *
 * Growing heaps: random histories of allocating, freeing and growing against a model, with ranks as threads,
 * as processes and driven by one thread; pointers of before a growth after it; growths that fail, after which
 * all is as before. heap_model.h has the model, ep_heap_test.c operations in grown memory. */
#include "comm_scene.h"
#include "heap_model.h"
#include "procs.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { histories = 60, rounds = 12 };

/* ---- Random histories ---- */

static int one_thread(struct test *t)
{
    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, histories); seed++) {
        struct rng r = {seed};
        struct heap_model m;
        int num_ranks = (int)rng_between(&r, 2, 8), result;
        PASS(heap_model_open(&m, num_ranks, -1, NULL, seed));
        result = heap_model_run(&m, rounds);
        heap_model_close(&m);
        test_detail(t, "to seed %llu", (unsigned long long)seed);
        CHECK(result == 0, "seed %llu", (unsigned long long)seed);
    }
    return 0;
}

static int history_of(int rank, int num_ranks, const struct tern_id *id, uint64_t seed)
{
    struct heap_model m;
    int result;
    PASS(heap_model_open(&m, num_ranks, rank, id, seed));
    result = heap_model_run(&m, rounds);
    heap_model_close(&m);
    CHECK(result == 0, "rank %d, seed %llu", rank, (unsigned long long)seed);
    return 0;
}

static int thread_actor(struct actor *a)
{
    return history_of(a->rank, a->num_ranks, &a->scene->id, a->scene->timeout_ms);
}

static int threads(struct test *t)
{
    struct actor actors[max_ranks];
    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, histories / 3); seed++) {
        struct rng r = {seed};
        struct scene scene = {.timeout_ms = (uint32_t)seed};
        OK(tern_id_create("127.0.0.1", &scene.id));
        PASS(run_threads(&scene, actors, (int)rng_between(&r, 2, 8), thread_actor));
    }
    return 0;
}

struct job {
    int num_ranks;
    uint64_t seed;
};

static int process_body(int rank, struct procs_page *page, void *user)
{
    const struct job *job = (const struct job *)user;
    int fds = num_fds() - (rank == 0); /* the listener of the id, which opening uses up */
    PASS(history_of(rank, job->num_ranks, &page->id, job->seed));
    CHECK(num_fds() == fds, "%d descriptors after, %d before", num_fds(), fds);
    CHECK(num_mappings("memfd:tern") == 0, "%d mappings are left", num_mappings("memfd:tern"));
    return 0;
}

static int processes(struct test *t)
{
    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, histories / 5); seed++) {
        struct rng r = {seed};
        struct job job = {(int)rng_between(&r, 2, 8), seed};
        PASS(procs_run(job.num_ranks, -1, 60, process_body, &job));
    }
    return 0;
}

/* Two processes of two ranks each: every rank has peers of both kinds. */
static int mixed_actor(struct actor *a)
{
    return history_of(a->rank + 2 * (int)a->scene->timeout_ms, 4, &a->scene->id, 77);
}

static int mixed_body(int process, struct procs_page *page, void *user)
{
    struct actor actors[2];
    struct scene scene = {.id = page->id, .timeout_ms = (uint32_t)process};
    (void)user;
    return run_threads(&scene, actors, 2, mixed_actor);
}

static int processes_of_threads(struct test *t)
{
    (void)t;
    return procs_run(2, -1, 60, mixed_body, NULL);
}

/* ---- Growths that fail ---- */

enum { few = 65536, many = 1 << 20 };

static struct tern_comm_config growing(uint32_t timeout_ms)
{
    struct tern_comm_config c = config_of(timeout_ms);
    c.heap_bytes = few;
    c.heap_max_bytes = many;
    return c;
}

/* The window is as it was at `bytes`, to the user and to the system. */
static int is_as_before(const struct tern_comm *comm, uint64_t bytes)
{
    void *memory;
    char text[64];
    for (int r = 0; r < comm->num_ranks; r++) {
        const char *base = comm->heap->bases[r];
        CHECK(terni_heap_bytes(comm->heap) == bytes, "%llu bytes, not %llu",
              (unsigned long long)comm->heap->bytes, (unsigned long long)bytes);
        CHECK(strcmp(access_of(base + bytes - 1), "rw-s") == 0, "rank %d sees the last page of %d as %s",
              comm->rank, r, access_of(base + bytes - 1));
        CHECK(strcmp(access_of(base + bytes), "---p") == 0, "rank %d sees the page after %d's window as %s",
              comm->rank, r, access_of(base + bytes));
    }
    snprintf(text, sizeof text, "tern_heap_grow can add %llu", (unsigned long long)(many - bytes));
    REFUSES(tern_alloc((struct tern_comm *)(uintptr_t)comm, TERN_MEMORY_WINDOW, bytes + 1, &memory),
            TERN_OUT_OF_MEMORY, text);
    return 0;
}

static int grow_refused(struct tern_comm *comm, uint64_t bytes, enum tern_status status, const char *text,
                        uint64_t before)
{
    REFUSES(tern_heap_grow(comm, bytes), status, text);
    return is_as_before(comm, before);
}

static int grow_accepted(struct tern_comm *comm, uint64_t bytes, uint64_t before)
{
    OK(tern_heap_grow(comm, bytes));
    return is_as_before(comm, before + bytes);
}

/* What rank 1's machine is made to refuse. Ops are copied once, before any rank is told of them. */
static struct machine_ops broken_ops;

static enum tern_status refuse_add(struct machine *m, struct share *share, uint64_t bytes, int *fd)
{
    (void)m, (void)share, (void)fd;
    return TERN_FAIL(TERN_OUT_OF_MEMORY, "%llu bytes are not to be had", (unsigned long long)bytes);
}

static enum tern_status refuse_import(struct machine *m, struct share *share, int fd, uint64_t offset,
                                      uint64_t bytes)
{
    (void)m, (void)share, (void)fd, (void)offset;
    return TERN_FAIL(TERN_OUT_OF_MEMORY, "%llu bytes do not fit in here", (unsigned long long)bytes);
}

static int all_refuse(struct tern_comm **comms, uint64_t bytes, enum tern_status status, const char *text)
{
    uint64_t before = comms[0]->heap->bytes;
    REFUSES(tern_heap_grow_all(4, comms, bytes), status, text);
    for (int r = 0; r < 4; r++) {
        PASS(is_as_before(comms[r], before));
    }
    return 0;
}

static int refusals_of_one_thread(struct tern_comm **comms)
{
    const struct machine_ops *ops = comms[2]->machine->ops;
    int result;
    PASS(all_refuse(comms, 0, TERN_INVALID_ARGUMENT, "a growth of 0 bytes"));
    PASS(all_refuse(comms, many - few + 1, TERN_OUT_OF_MEMORY, "may grow to 1048576: raise heap_max_bytes"));
    PASS(all_refuse(comms, UINT64_MAX, TERN_OUT_OF_MEMORY, "raise heap_max_bytes"));
    REFUSES(tern_heap_grow_all(0, comms, 4096), TERN_INVALID_ARGUMENT, "num_ranks is 0");
    REFUSES(tern_heap_grow_all(4, NULL, 4096), TERN_INVALID_ARGUMENT, "comms is NULL");
    REFUSES(tern_heap_grow_all(2, comms, 4096), TERN_INVALID_ARGUMENT, "comms[0] is rank 0 of 4");
    REFUSES(tern_heap_grow(NULL, 4096), TERN_INVALID_ARGUMENT, "comm is NULL");
    broken_ops = *ops;
    broken_ops.share_add = refuse_add;
    for (int i = 0; i < 3; i++) { /* a failure, and the next growth is as good as the first */
        comms[2]->machine->ops = &broken_ops;
        result = all_refuse(comms, 5000, TERN_OUT_OF_MEMORY,
                            "rank 2 cannot grow its window by 5000 bytes: 8192 bytes are not to be had");
        comms[2]->machine->ops = ops;
        PASS(result);
        OK(tern_heap_grow_all(4, comms, 5000));
        for (int r = 0; r < 4; r++) {
            PASS(is_as_before(comms[r], few + 8192 * (uint64_t)(i + 1)));
        }
    }
    return 0;
}

static int refusals(struct test *t)
{
    struct tern_comm_config config = growing(20000);
    struct tern_comm *comms[4];
    char *base, text[1024];
    int result;
    (void)t;
    config.heap_max_bytes = few - 1;
    REFUSES(tern_comm_open_all(4, &config, comms), TERN_INVALID_ARGUMENT,
            "heap_max_bytes is 65535, less than heap_bytes, 65536");
    config.heap_max_bytes = UINT64_MAX;
    REFUSES(tern_comm_open_all(4, &config, comms), TERN_INVALID_ARGUMENT,
            "heap_max_bytes 18446744073709551615");
    config = growing(20000);
    OK(tern_comm_open_all(4, &config, comms));
    CHECK(tern_comm_describe(comms[0], text, sizeof text) < (int)sizeof text &&
              strstr(text, "windows of 65536 bytes a rank that may grow to 1048576, deadline") != NULL,
          "%s", text);
    base = comms[3]->heap->bases[3];
    result = refusals_of_one_thread(comms);
    for (int r = 0; r < 4; r++) {
        tern_comm_close(comms[r]);
    }
    PASS(result);
    CHECK(strcmp(access_of(base), "none") == 0, "rank 3's window is still there: %s", access_of(base));
    CHECK(strcmp(access_of(base + many - 1), "none") == 0, "the end of its range is still there: %s",
          access_of(base + many - 1));
    return 0;
}

/* A heap that may not grow says what would help. */
static int fixed_heap(struct test *t)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    void *memory;
    (void)t;
    OK(tern_comm_open_all(1, &config, &comm));
    REFUSES(tern_alloc(comm, TERN_MEMORY_WINDOW, heap_bytes + 1, &memory), TERN_OUT_OF_MEMORY,
            "heap_max_bytes what tern_heap_grow can make of it");
    REFUSES(tern_heap_grow(comm, 1), TERN_OUT_OF_MEMORY, "raise heap_max_bytes");
    tern_comm_close(comm);
    return 0;
}

/* Rank 1 may write no file of more than 3 pages, which a piece of 4 is. */
static int limit_of_memory(struct tern_comm *comm)
{
    struct rlimit limit, saved;
    int is_one = comm->rank == 1;
    CHECK(getrlimit(RLIMIT_FSIZE, &saved) == 0, "getrlimit");
    limit = saved;
    limit.rlim_cur = 3 * 4096;
    CHECK(!is_one || setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
    PASS(grow_refused(comm, 4 * 4096, TERN_OUT_OF_MEMORY,
                      "rank 1 cannot grow its window by 16384 bytes: a memfd of 16384 bytes: File too large",
                      few));
    CHECK(!is_one || setrlimit(RLIMIT_FSIZE, &saved) == 0, "setrlimit");
    return grow_accepted(comm, 4 * 4096, few);
}

/* Rank 1 has descriptors for its piece and the socket where it receives, none to send its own. */
static int limit_of_descriptors(struct tern_comm *comm, uint64_t before)
{
    struct rlimit limit, saved;
    int is_one = comm->rank == 1, next = dup(0);
    close(next);
    CHECK(getrlimit(RLIMIT_NOFILE, &saved) == 0, "getrlimit");
    limit = saved;
    limit.rlim_cur = (rlim_t)next + 2;
    comm->timeout_ms = 1000; /* the others wait for its memory in vain */
    CHECK(!is_one || setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
    REFUSES(tern_heap_grow(comm, 4096), TERN_SYSTEM_ERROR, "rank 1: no unix socket");
    CHECK(!is_one || setrlimit(RLIMIT_NOFILE, &saved) == 0, "setrlimit");
    comm->timeout_ms = 20000;
    PASS(is_as_before(comm, before));
    return grow_accepted(comm, 4096, before);
}

/* Rank 1 alone cannot map, after others have mapped its memory. */
static int limit_of_addresses(struct tern_comm *comm, uint64_t before)
{
    const struct machine_ops *ops = comm->machine->ops;
    int result;
    broken_ops = *ops;
    broken_ops.share_import = refuse_import;
    comm->machine->ops = comm->rank == 1 ? &broken_ops : ops;
    result =
        grow_refused(comm, 4096, TERN_OUT_OF_MEMORY,
                     "rank 1 cannot map what rank 0's window grew by: 4096 bytes do not fit in here", before);
    comm->machine->ops = ops;
    PASS(result);
    return grow_accepted(comm, 4096, before);
}

static int limits_body(int rank, struct procs_page *page, void *user)
{
    struct tern_comm_config config = growing(20000);
    struct tern_comm *comm;
    int fds;
    (void)user;
    signal(SIGXFSZ, SIG_IGN);
    OK(tern_comm_open(&page->id, rank, 3, &config, &comm));
    fds = num_fds();
    PASS(is_as_before(comm, few));
    PASS(limit_of_memory(comm));
    PASS(limit_of_descriptors(comm, few + 4 * 4096));
    PASS(limit_of_addresses(comm, few + 5 * 4096));
    PASS(check_all(comm));
    CHECK(num_fds() == fds, "%d descriptors after growing, %d before", num_fds(), fds);
    tern_comm_close(comm);
    return 0;
}

static int limits(struct test *t)
{
    (void)t;
    return procs_run(3, -1, 60, limits_body, NULL);
}

/* ---- Ranks that disagree or do not come ---- */

/* Rank by rank after all have returned: threads see each other's windows at the owners' addresses. */
static int all_as_before(struct actor *a, const struct tern_comm *comm, uint64_t bytes)
{
    int result;
    pthread_barrier_wait(&a->scene->barrier);
    result = is_as_before(comm, bytes);
    pthread_barrier_wait(&a->scene->barrier);
    return result;
}

static int disagree(struct actor *a, struct tern_comm *comm)
{
    static char memory[max_ranks][8192];
    REFUSES(tern_heap_grow(comm, a->rank == 1 ? 8192 : 4096), TERN_MISMATCH,
            "rank 1 grows its window by 8192 bytes in call 1 about windows, where rank 0 grows its window by "
            "4096");
    PASS(all_as_before(a, comm, few));
    note_status(a, a->rank == 2 ? tern_window_adopt(comm, memory[2], 4096) : tern_heap_grow(comm, 4096));
    PASS(all_as_before(a, comm, few));
    OK(tern_heap_grow(comm, 4096));
    PASS(all_as_before(a, comm, few + 4096));
    comm->timeout_ms = deadline_ms;
    if (a->rank != 2) { /* which does not come */
        REFUSES(tern_heap_grow(comm, 4096), TERN_TIMEOUT, "rank 2 did not arrive within 300 ms");
    }
    return all_as_before(a, comm, few + 4096);
}

static int disagreeing_actor(struct actor *a)
{
    struct tern_comm_config config = growing(20000);
    struct tern_comm *comm;
    int result;
    OK(tern_comm_open(&a->scene->id, a->rank, a->num_ranks, &config, &comm));
    result = disagree(a, comm);
    tern_comm_close(comm);
    return result;
}

static int disagreement(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    PASS(run_threads(&scene, actors, 3, disagreeing_actor));
    return same_sentence(actors, 3, TERN_MISMATCH, "rank 2 adopts a window of 4096 bytes in call 2");
}

static int wrong_max_actor(struct actor *a)
{
    struct tern_comm_config config = growing(20000);
    struct tern_comm *comm;
    config.heap_max_bytes += a->rank == 1 ? 4096 : 0;
    note_status(a, tern_comm_open(&a->scene->id, a->rank, a->num_ranks, &config, &comm));
    return 0;
}

static int wrong_max(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    PASS(run_threads(&scene, actors, 2, wrong_max_actor));
    return same_sentence(actors, 2, TERN_MISMATCH,
                         "rank 1 has heap_max_bytes 1052672 where rank 0 has 1048576");
}

/* ---- Nothing is left behind ---- */

static int leaks(struct test *t)
{
    static int (*const bodies[])(struct test * t) = {refusals, disagreement, fixed_heap};
    return leaves_nothing(t, bodies, 3);
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    setenv("TERN_MACHINE", "cpu", 1);
    /* Processes first: their parent must not have started a machine. */
    test_run(&t, "random histories, processes", processes);
    test_run(&t, "random histories, processes of threads", processes_of_threads);
    test_run(&t, "a limit on one process", limits);
    test_run(&t, "random histories, one thread", one_thread);
    test_run(&t, "random histories, threads", threads);
    test_run(&t, "refusals", refusals);
    test_run(&t, "a heap that may not grow", fixed_heap);
    test_run(&t, "disagreement", disagreement);
    test_run(&t, "another heap_max_bytes", wrong_max);
    test_run(&t, "leaks", leaks);
    return test_end(&t);
}
