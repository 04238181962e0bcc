/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks as processes that reach each other through proxies only: every operation, peers that die, stop or
 * leave, and what closing leaves behind. */
#include "comm_scene.h"
#include "procs.h"
#include "proxy_case.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { NUM_RANKS = 3, THREADS = 32, STEPS = 40 };
enum { LATE_MS = 1500 }; /* a peer's deadline where one is to be lost */
#define LONG_NS 30000000000ull

static const char rxm[] = "fabric:tcp;ofi_rxm", shm[] = "fabric:shm";
static const char *engine; /* of the running case, inherited by the children */

/* A barrier of the ranks, and of this thread with its proxy's: what that one did here
 * for peers is ordered through another process, where ThreadSanitizer does not look. */
static enum tern_status meet(struct proxy_rig *rig, int rank)
{
    struct proxy *proxy = terni_courier_proxy(rig->members[rank].courier);
    struct proxy_counts counts;
    enum tern_status status;
    terni_proxy_counts(proxy, &counts);
    status = tern_comm_barrier(rig->members[rank].comm);
    terni_proxy_counts(proxy, &counts);
    return status;
}

/* One random program on all ranks, judged by each. */
static int run_case(struct proxy_rig *rig, int rank, uint64_t seed)
{
    struct proxy_case c;
    int result = TEST_FAILED;
    proxy_case_init(&c, rig->num_ranks, THREADS, STEPS, seed);
    proxy_case_upload(&c, rig);
    proxy_case_draw(&c, rig);
    if (meet(rig, rank) == TERN_OK && proxy_rig_launch(rig, rank, THREADS, STEPS, LONG_NS) == TERN_OK &&
        proxy_rig_wait(rig, rank) == TERN_OK && proxy_case_ended(&c, rig, rank) == TEST_PASSED &&
        meet(rig, rank) == TERN_OK) {
        result = proxy_case_compare(&c, rig, rank);
    }
    /* Nobody draws the next while somebody still looks. */
    if (result == TEST_PASSED && meet(rig, rank) != TERN_OK) {
        result = TEST_FAILED;
    }
    proxy_case_fini(&c);
    return result;
}

/* All ranks in this process's sense. 0, or TEST_FAILED; TERN_UNSUPPORTED counts as nothing to do. */
static int joined(struct proxy_rig *rig, int rank, const struct tern_id *id, uint32_t late_ms)
{
    proxy_rig_init(rig, rig->num_ranks != 0 ? rig->num_ranks : NUM_RANKS, engine);
    rig->config.timeout_ms = late_ms;
    OK(proxy_rig_join(rig, rank, id, 20000));
    return TEST_PASSED;
}

static int operations_body(int rank, struct procs_page *page, void *user)
{
    struct proxy_rig rig = {.num_ranks = NUM_RANKS};
    int result = joined(&rig, rank, &page->id, 20000);
    for (uint64_t seed = 1; seed <= 3 && !result; seed++) {
        result = run_case(&rig, rank, seed);
    }
    (void)user;
    proxy_rig_close(&rig);
    return result;
}

/* What a process of this number that was killed has left of its endpoint: a file that the provider itself
 * would name so. */
static int after_killed_body(int rank, struct procs_page *page, void *user)
{
    char path[64];
    int file, result;
    snprintf(path, sizeof path, "/dev/shm/%d:%d:0", (int)getpid(), (int)getuid());
    file = open(path, O_CREAT | O_RDWR, 0600);
    CHECK(file >= 0, "%s: %s", path, strerror(errno));
    close(file);
    result = operations_body(rank, page, user);
    unlink(path);
    return result;
}

/* A put to `peer` and its flush; what that ended with. */
static uint32_t put_once(struct proxy_rig *rig, int rank, int peer)
{
    struct ring_step *steps = proxy_rig_steps(rig, rank, 1, 2);
    steps[0].kind = STEP_PUT;
    steps[0].ring = steps[1].ring = proxy_rig_ring(peer, 0);
    steps[0].local = rig->members[rank].window;
    steps[0].remote = proxy_rig_at(rig, peer, 65536);
    steps[0].bytes = 1000;
    steps[1].kind = STEP_FLUSH;
    if (proxy_rig_launch(rig, rank, 1, 2, LONG_NS) != TERN_OK || proxy_rig_wait(rig, rank) != TERN_OK) {
        return ~0u;
    }
    return steps[1].end;
}

/* Puts until one fails: that must be with the peer's loss, in time, and by its name. */
static int lose(struct proxy_rig *rig, int rank, int peer, double seconds)
{
    double end = test_seconds() + seconds;
    char name[32];
    enum tern_status status;
    uint32_t how;
    snprintf(name, sizeof name, "rank %d", peer);
    do {
        how = put_once(rig, rank, peer);
    } while (how == NET_OK && test_seconds() < end);
    CHECK(how == net_failed(SYNDROME_TRANSPORT_RETRY), "rank %d: flush to rank %d ended with 0x%x", rank,
          peer, how);
    CHECK(test_seconds() < end, "rank %d: too late", rank);
    status = terni_proxy_loss(terni_courier_proxy(rig->members[rank].courier), peer);
    CHECK(status == TERN_TIMEOUT || status == TERN_DISCONNECTED, "rank %d: status %d", rank, (int)status);
    CHECK(strstr(tern_last_error(), name), "rank %d: \"%s\"", rank, tern_last_error());
    return TEST_PASSED;
}

/* Rank 2 is killed, or stopped, while others put to it; they lose it, and reach each other as before. Not
 * over shm: that provider takes answers in the order of its requests, whoever they are from, so that nothing
 * passes one to a stopped peer. */
static int lost_body(int rank, struct procs_page *page, void *user)
{
    struct proxy_rig rig = {.num_ranks = NUM_RANKS};
    int is_stopped = *(const int *)user, other = 1 - rank;
    int result = joined(&rig, rank, &page->id, LATE_MS);
    if (rank == 2) {
        page->marks[0] = (double)getpid();
        OK(tern_comm_barrier(rig.members[rank].comm));
        nap_ms(100);
        raise(is_stopped ? SIGSTOP : SIGKILL);
        return TEST_FAILED;
    }
    result = result || tern_comm_barrier(rig.members[rank].comm) != TERN_OK;
    result = result ? TEST_FAILED : lose(&rig, rank, 2, 10);
    if (!result && strcmp(engine, shm) != 0) {
        uint32_t how = put_once(&rig, rank, other);
        enum tern_status status = terni_proxy_loss(terni_courier_proxy(rig.members[rank].courier), other);
        if (how != NET_OK || status != TERN_OK) {
            test_note(__FILE__, __LINE__, "rank %d: a put to rank %d ended with 0x%x: %s", rank, other, how,
                      tern_last_error());
            result = TEST_FAILED;
        }
    }
    page->marks[1 + rank] = 1;
    for (int i = 0; i < 2000 && page->marks[1 + other] == 0; i++) {
        nap_ms(5); /* the other still needs this one */
    }
    if (rank == 0) {
        kill((pid_t)page->marks[0], SIGKILL);
    }
    proxy_rig_close(&rig);
    return result;
}

/* Uses up this process's descriptors; returns how many it took. */
static int take_all_fds(int *fds, int room)
{
    struct rlimit limit = {(rlim_t)room, (rlim_t)room};
    int n = 0;
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = (rlim_t)room;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    while (n < room && (fds[n] = dup(STDERR_FILENO)) >= 0) {
        n++;
    }
    return n;
}

/* A rank has no descriptor for its connections, to call others (rank 2) or to be called (rank 0): all ranks
 * hear so at once, not when somebody's deadline is over, and the communicator is as it was. */
static int no_connection_body(int rank, struct procs_page *page, void *user)
{
    enum { ROOM = 128 };
    struct proxy_rig rig;
    struct proxy_member *m;
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    int fds[ROOM], num_fds_taken = 0;
    double begin;
    int victim = *(const int *)user;
    proxy_rig_init(&rig, NUM_RANKS, engine);
    m = &rig.members[rank];
    config.machine = TERN_MACHINE_CPU;
    config.timeout_ms = 8000;
    OK(tern_comm_open(&page->id, rank, NUM_RANKS, &config, &m->comm));
    OK(terni_courier_open_step(m->comm, &rig.config, 0, &m->courier));
    if (rank == victim) {
        num_fds_taken = take_all_fds(fds, ROOM);
    }
    begin = test_seconds();
    OK(terni_courier_open_step(m->comm, &rig.config, 1, &m->courier));
    OK(terni_courier_open_step(m->comm, &rig.config, 2, &m->courier));
    REFUSES(terni_courier_open_step(m->comm, &rig.config, 3, &m->courier), TERN_SYSTEM_ERROR,
            victim == 2 ? "rank 2: no socket for the connection to rank 0"
                        : "rank 0 cannot accept a connection: Too many open files");
    CHECK(test_seconds() - begin < 4, "rank %d heard so after %.1f s", rank, test_seconds() - begin);
    for (int i = 0; i < num_fds_taken; i++) {
        close(fds[i]);
    }
    terni_courier_close(m->courier);
    OK(tern_comm_barrier(m->comm));
    tern_comm_close(m->comm);
    return TEST_PASSED;
}

/* Rank 1 closes in good order; that is no fault, until somebody wants something of it. */
static int left_body(int rank, struct procs_page *page, void *user)
{
    struct proxy_rig rig = {.num_ranks = 2};
    int result = joined(&rig, rank, &page->id, LATE_MS);
    (void)user;
    result = result || put_once(&rig, rank, 1 - rank) != NET_OK ||
             tern_comm_barrier(rig.members[rank].comm) != TERN_OK;
    if (rank == 0 && !result) {
        nap_ms(200);
        OK(terni_proxy_loss(terni_courier_proxy(rig.members[0].courier), 1));
        result = lose(&rig, 0, 1, 10);
        if (!result && !strstr(tern_last_error(), "rank 1 closed its connection")) {
            test_note(__FILE__, __LINE__, "\"%s\"", tern_last_error());
            result = TEST_FAILED;
        }
    }
    proxy_rig_close(&rig);
    return result;
}

/* Of descriptors, threads and shared memory. */
static int is_left(int fds, int threads, int windows)
{
    return num_fds() == fds && test_files("/proc/self/task") == threads && num_windows() == windows;
}

/* Ranks close one after the other, in an order that changes; nothing is left. */
static int nothing_left_body(int rank, struct procs_page *page, void *user)
{
    int fds = 0, threads = 0, windows = 0, result = 0;
    (void)user;
    for (int round = 0; round < 4 && !result; round++) {
        struct proxy_rig rig = {.num_ranks = NUM_RANKS};
        struct tern_id id = page->id;
        if (round > 0) {
            /* An id opens one communicator: rank 0 makes another. */
            double end = test_seconds() + 20;
            if (rank == 0) {
                OK(tern_id_create(NULL, &page->id));
                __atomic_store_n(&page->has_id, round + 1, __ATOMIC_RELEASE);
            }
            while (__atomic_load_n(&page->has_id, __ATOMIC_ACQUIRE) != round + 1 && test_seconds() < end) {
                nap_ms(1);
            }
            id = page->id;
        }
        result = joined(&rig, rank, &id, 20000);
        result = result || run_case(&rig, rank, (uint64_t)round + 1);
        nap_ms((rank + round) % NUM_RANKS * 60);
        proxy_rig_close(&rig);
        if (round == 0) { /* what stays for good is there now */
            nap_ms(1000);
            fds = num_fds();
            threads = test_files("/proc/self/task");
            windows = num_windows();
        }
        for (double end = test_seconds() + 20; !is_left(fds, threads, windows) && test_seconds() < end;) {
            nap_ms(10); /* a thread has ended a little before it is gone */
        }
        CHECK(is_left(fds, threads, windows),
              "rank %d, round %d: %d descriptors, %d threads, %d windows; %d, %d, %d after the first", rank,
              round, num_fds(), test_files("/proc/self/task"), num_windows(), fds, threads, windows);
    }
    return result;
}

/* Says by its exit whether the engine is to be had: the asking process is to fork, and must not have begun to
 * use libfabric itself. */
static int probe_body(int rank, struct procs_page *page, void *user)
{
    struct proxy_rig rig;
    enum tern_status status;
    proxy_rig_init(&rig, 1, engine);
    status = proxy_rig_join(&rig, rank, &page->id, 20000);
    proxy_rig_close(&rig);
    *(int *)user = status == TERN_UNSUPPORTED;
    return status == TERN_OK || status == TERN_UNSUPPORTED ? TEST_PASSED : TEST_FAILED;
}

static int with_engine(struct test *t, const char *name, int num_ranks, int victim,
                       int (*body)(int rank, struct procs_page *page, void *user), void *user)
{
    int *is_absent =
        (int *)mmap(NULL, sizeof *is_absent, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int result;
    CHECK(is_absent != MAP_FAILED, "no page to share");
    engine = name;
    result = procs_run(1, -1, 30, probe_body, is_absent);
    if (!result && *is_absent) {
        result = test_skip(t, "there is no %s here", name);
    } else if (!result) {
        result = procs_run(num_ranks, victim, 60, body, user);
    }
    munmap(is_absent, sizeof *is_absent);
    return result;
}

static int is_killed = 0, is_stopped = 1;
static int caller = 2, called = 0;

static int tcp_operations(struct test *t) { return with_engine(t, "tcp", 3, -1, operations_body, NULL); }
static int rxm_operations(struct test *t) { return with_engine(t, rxm, 3, -1, operations_body, NULL); }
static int shm_operations(struct test *t) { return with_engine(t, shm, 3, -1, operations_body, NULL); }
static int shm_after_killed(struct test *t) { return with_engine(t, shm, 3, -1, after_killed_body, NULL); }
static int tcp_killed(struct test *t) { return with_engine(t, "tcp", 3, 2, lost_body, &is_killed); }
static int tcp_stopped(struct test *t) { return with_engine(t, "tcp", 3, 2, lost_body, &is_stopped); }
static int rxm_killed(struct test *t) { return with_engine(t, rxm, 3, 2, lost_body, &is_killed); }
static int rxm_stopped(struct test *t) { return with_engine(t, rxm, 3, 2, lost_body, &is_stopped); }
static int shm_stopped(struct test *t) { return with_engine(t, shm, 3, 2, lost_body, &is_stopped); }
static int tcp_left(struct test *t) { return with_engine(t, "tcp", 2, -1, left_body, NULL); }
static int rxm_left(struct test *t) { return with_engine(t, rxm, 2, -1, left_body, NULL); }
static int shm_left(struct test *t) { return with_engine(t, shm, 2, -1, left_body, NULL); }
static int tcp_uncalling(struct test *t) { return with_engine(t, "tcp", 3, -1, no_connection_body, &caller); }
static int tcp_unhearing(struct test *t) { return with_engine(t, "tcp", 3, -1, no_connection_body, &called); }
static int tcp_nothing(struct test *t) { return with_engine(t, "tcp", 3, -1, nothing_left_body, NULL); }
static int rxm_nothing(struct test *t) { return with_engine(t, rxm, 3, -1, nothing_left_body, NULL); }
static int shm_nothing(struct test *t) { return with_engine(t, shm, 3, -1, nothing_left_body, NULL); }

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "every operation, TCP", tcp_operations);
    test_run(&t, "every operation, libfabric's tcp;ofi_rxm", rxm_operations);
    test_run(&t, "every operation, libfabric's shm", shm_operations);
    test_run(&t, "every operation, libfabric's shm, after a killed process of the same number",
             shm_after_killed);
    test_run(&t, "a killed peer, TCP", tcp_killed);
    test_run(&t, "a stopped peer, TCP", tcp_stopped);
    test_run(&t, "a killed peer, libfabric's tcp;ofi_rxm", rxm_killed);
    test_run(&t, "a stopped peer, libfabric's tcp;ofi_rxm", rxm_stopped);
    test_run(&t, "a stopped peer, libfabric's shm", shm_stopped);
    test_run(&t, "a rank that cannot call costs nobody a deadline", tcp_uncalling);
    test_run(&t, "a rank that cannot be called costs nobody a deadline", tcp_unhearing);
    test_run(&t, "a peer that has left, TCP", tcp_left);
    test_run(&t, "a peer that has left, libfabric's tcp;ofi_rxm", rxm_left);
    test_run(&t, "a peer that has left, libfabric's shm", shm_left);
    test_run(&t, "closing in any order leaves nothing, TCP", tcp_nothing);
    test_run(&t, "closing in any order leaves nothing, libfabric's tcp;ofi_rxm", rxm_nothing);
    test_run(&t, "closing in any order leaves nothing, libfabric's shm", shm_nothing);
    return test_end(&t);
}
