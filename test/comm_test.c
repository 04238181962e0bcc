/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators whole: ranks as processes, as threads and driven by one thread; what happens when ranks are
 * late, die, disagree, or when strangers call; and that nothing is left behind. Failures must come within the
 * deadline, and every rank must name the same culprit. */
#include "comm/comm.h"
#include "comm/id.h"
#include "comm/tcp.h"
#include "procs.h"
#include "support.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { max_ranks = 16, heap_bytes = 1 << 20 };

static struct tern_comm_config config_of(uint32_t timeout_ms)
{
    struct tern_comm_config c = TERN_COMM_CONFIG_INIT;
    c.machine = TERN_MACHINE_CPU;
    c.heap_bytes = heap_bytes;
    c.timeout_ms = timeout_ms;
    return c;
}

static void nap_ms(int ms)
{
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

/* ---- Ranks as threads ---- */

struct scene {
    struct tern_id id;
    struct tern_comm *comms[max_ranks]; /* when opened before */
    uint32_t timeout_ms;
    pthread_barrier_t barrier;
};

struct actor {
    struct scene *scene;
    int rank, num_ranks;
    int (*act)(struct actor *a);
    int result;
    enum tern_status status; /* for the test to look at */
    char text[256];
    double seconds;
};

static void *act(void *user)
{
    struct actor *a = (struct actor *)user;
    double begin = test_seconds();
    a->result = a->act(a);
    a->seconds = test_seconds() - begin;
    return NULL;
}

/* Runs act(rank) in as many threads; 0 if all return 0. */
static int run_threads(struct scene *scene, struct actor *actors, int num_ranks, int (*body)(struct actor *a))
{
    pthread_t threads[max_ranks];
    int result = 0;
    pthread_barrier_init(&scene->barrier, NULL, (unsigned)num_ranks);
    for (int r = 0; r < num_ranks; r++) {
        memset(&actors[r], 0, sizeof actors[r]);
        actors[r].scene = scene;
        actors[r].rank = r;
        actors[r].num_ranks = num_ranks;
        actors[r].act = body;
        pthread_create(&threads[r], NULL, act, &actors[r]);
    }
    for (int r = 0; r < num_ranks; r++) {
        pthread_join(threads[r], NULL);
        result = result != 0 ? result : actors[r].result;
    }
    pthread_barrier_destroy(&scene->barrier);
    return result;
}

static void note_status(struct actor *a, enum tern_status status)
{
    a->status = status;
    snprintf(a->text, sizeof a->text, "%s", tern_last_error());
}

/* ---- What a sound communicator can do ---- */

static int check_allgather(struct tern_comm *comm, size_t bytes)
{
    int n = tern_comm_size(comm), rank = tern_comm_rank(comm);
    unsigned char *send = (unsigned char *)test_take(1, bytes + 1);
    unsigned char *recv = (unsigned char *)test_take((size_t)n, bytes + 1);
    int num_wrong = 0;
    enum tern_status status;
    memset(send, 1 + rank, bytes);
    status = tern_comm_allgather(comm, send, recv, bytes);
    for (size_t i = 0; i < (size_t)n * bytes; i++) {
        num_wrong += recv[i] != 1 + i / bytes;
    }
    free(send);
    free(recv);
    CHECK(status == TERN_OK && num_wrong == 0, "allgather of %zu bytes: %s, %d wrong", bytes, tern_last_error(), num_wrong);
    return 0;
}

/* Every rank writes its word into a slot of every peer's window, through the addresses that kernels use. */
static int check_windows(struct tern_comm *comm)
{
    int n = tern_comm_size(comm), rank = tern_comm_rank(comm);
    void *memory;
    uint64_t *mine;
    int64_t offset;
    OK(tern_alloc(comm, TERN_MEMORY_WINDOW, sizeof(uint64_t) * max_ranks, &memory));
    mine = (uint64_t *)memory;
    offset = terni_heap_offset(comm->heap, mine, sizeof(uint64_t) * max_ranks);
    CHECK(offset >= 0 && offset % 256 == 0, "window at offset %lld", (long long)offset);
    OK(tern_comm_barrier(comm));
    for (int r = 0; r < n; r++) {
        CHECK(comm->heap->bases[r] != NULL && comm->heap->device_bases[r] == comm->heap->bases[r], "base of rank %d", r);
        ((uint64_t *)(comm->heap->bases[r] + offset))[rank] = (uint64_t)(1000 * rank + r);
    }
    OK(tern_comm_barrier(comm));
    for (int r = 0; r < n; r++) {
        CHECK(mine[r] == (uint64_t)(1000 * r + rank), "rank %d finds %llu of rank %d", rank, (unsigned long long)mine[r], r);
    }
    OK(tern_comm_barrier(comm));
    tern_free(comm, memory);
    return 0;
}

static int check_all(struct tern_comm *comm)
{
    static const size_t sizes[] = {0, 1, 24, 4097, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        PASS(check_allgather(comm, sizes[i]));
    }
    return check_windows(comm);
}

/* ---- Processes ---- */

static int process_body(int rank, struct procs_page *page, void *user)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    char text[4096];
    (void)user;
    OK(tern_comm_open(&page->id, rank, 4, &config, &comm));
    PASS(check_all(comm));
    CHECK(tern_comm_describe(comm, text, sizeof text) < (int)sizeof text, "description");
    CHECK(strstr(text, "4 ranks, 1 host, 4 processes, 1 domain") != NULL, "%s", text);
    CHECK(tern_comm_num_sms(comm) == comm->machine->info.num_sms, "a process has its processors to itself");
    tern_comm_close(comm);
    return 0;
}

static int processes(struct test *t)
{
    (void)t;
    return procs_run(4, -1, 60, process_body, NULL);
}

static int mixed_actor(struct actor *a)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    int rank = a->rank + 2 * (int)a->scene->timeout_ms; /* the process */
    OK(tern_comm_open(&a->scene->id, rank, 4, &config, &comm));
    PASS(check_all(comm));
    tern_comm_close(comm);
    return 0;
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

/* The victim dies after opening; the others wait for it in a barrier. */
static int victim_body(int rank, struct procs_page *page, void *user)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    int victim = *(const int *)user;
    char name[16];
    OK(tern_comm_open(&page->id, rank, 4, &config, &comm));
    OK(tern_comm_barrier(comm));
    if (rank == victim) {
        raise(SIGKILL);
    }
    snprintf(name, sizeof name, "rank %d closed", victim);
    REFUSES(tern_comm_barrier(comm), TERN_DISCONNECTED, name);
    REFUSES(tern_comm_barrier(comm), TERN_DISCONNECTED, name);
    CHECK(tern_status_recovery(TERN_DISCONNECTED) == TERN_RECOVER_GROUP, "recovery");
    tern_comm_close(comm);
    return 0;
}

static int killed_rank(struct test *t)
{
    int victim = 2;
    (void)t;
    return procs_run(4, victim, 15, victim_body, &victim);
}

static int killed_root(struct test *t)
{
    int victim = 0;
    (void)t;
    return procs_run(4, victim, 15, victim_body, &victim);
}

/* ---- Threads, IPv4 and IPv6 ---- */

static int open_and_check(struct actor *a)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    OK(tern_comm_open(&a->scene->id, a->rank, a->num_ranks, &config, &comm));
    CHECK(tern_comm_rank(comm) == a->rank && tern_comm_size(comm) == a->num_ranks, "rank and size");
    CHECK(tern_comm_machine(comm) == TERN_MACHINE_CPU, "machine");
    PASS(check_all(comm));
    tern_comm_close(comm);
    return 0;
}

static int threads_on(const char *interface)
{
    static const int sizes[] = {1, 2, 3, 8};
    struct actor actors[max_ranks];
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct scene scene = {.timeout_ms = 20000};
        OK(tern_id_create(interface, &scene.id));
        PASS(run_threads(&scene, actors, sizes[i], open_and_check));
    }
    return 0;
}

static int threads_v4(struct test *t)
{
    (void)t;
    return threads_on("127.0.0.1");
}

static int has_v6(void)
{
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int is_bound = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return is_bound;
}

static int threads_v6(struct test *t) { return has_v6() ? threads_on("::1") : test_skip(t, "no IPv6 loopback"); }

/* Rank 0 comes last: with an agreed address the others find nobody at first. */
static int late_root_actor(struct actor *a)
{
    if (a->rank == 0) {
        nap_ms(250);
    }
    return open_and_check(a);
}

static int agreed_address(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene = {.timeout_ms = 20000};
    struct id_fields f;
    struct address a;
    char address[64];
    int fd;
    (void)t;
    OK(tern_id_create("127.0.0.1", &scene.id)); /* to learn a free port */
    OK(terni_id_read(&scene.id, &f, &a));
    OK(terni_id_take_listener(&scene.id, &fd));
    close(fd);
    snprintf(address, sizeof address, "127.0.0.1:%u/job", f.port);
    OK(tern_id_from_address(address, &scene.id));
    return run_threads(&scene, actors, 3, late_root_actor);
}

/* ---- Late ranks ---- */

enum { deadline_ms = 300, slack_ms = 4000 };

static int open_may_fail(struct actor *a)
{
    struct tern_comm_config config = config_of(deadline_ms);
    struct tern_comm *comm = NULL;
    nap_ms(a->rank == 0 ? 100 : 0); /* so that others' deadlines pass before rank 0's */
    if (a->rank == a->num_ranks - 1) {
        return 0; /* never comes */
    }
    note_status(a, tern_comm_open(&a->scene->id, a->rank, a->num_ranks, &config, &comm));
    CHECK(comm == NULL, "the output of a failure is untouched");
    return 0;
}

static int same_sentence(const struct actor *actors, int num_ranks, enum tern_status status, const char *text)
{
    for (int r = 0; r < num_ranks; r++) {
        CHECK(actors[r].status == status && strstr(actors[r].text, text) != NULL, "rank %d: %s: \"%s\", not \"%s\"", r,
              tern_status_string(actors[r].status), actors[r].text, text);
        CHECK(actors[r].seconds * 1000 < deadline_ms + slack_ms, "rank %d took %.1f s", r, actors[r].seconds);
    }
    return 0;
}

static int late_at_open(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    PASS(run_threads(&scene, actors, 4, open_may_fail));
    return same_sentence(actors, 3, TERN_TIMEOUT, "rank 3 did not arrive within 300 ms");
}

static int late_at_barrier_actor(struct actor *a)
{
    struct tern_comm_config config = config_of(deadline_ms);
    struct tern_comm *comm = a->scene->comms[a->rank];
    int late = a->scene->timeout_ms == 0 ? 0 : a->num_ranks - 1;
    config.timeout_ms = 20000;
    if (comm == NULL) {
        OK(tern_comm_open(&a->scene->id, a->rank, a->num_ranks, &config, &comm));
    }
    comm->timeout_ms = deadline_ms; /* opening may take longer under a sanitizer */
    pthread_barrier_wait(&a->scene->barrier);
    if (a->rank == late) {
        nap_ms(deadline_ms + 1700); /* past everybody's grace: it finds the verdict when it comes */
    }
    note_status(a, tern_comm_barrier(comm));
    pthread_barrier_wait(&a->scene->barrier);
    tern_comm_close(comm);
    return 0;
}

static int late_at_barrier(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    scene.timeout_ms = 1; /* the last rank is late */
    OK(tern_id_create("127.0.0.1", &scene.id));
    PASS(run_threads(&scene, actors, 4, late_at_barrier_actor));
    return same_sentence(actors, 4, TERN_TIMEOUT, "rank 3 did not arrive within 300 ms");
}

static int late_root_at_barrier(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    PASS(run_threads(&scene, actors, 4, late_at_barrier_actor));
    return same_sentence(actors + 1, 3, TERN_TIMEOUT, "rank 0 did not arrive within 300 ms");
}

static int late_on_board(struct test *t)
{
    struct tern_comm_config config = config_of(20000);
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    scene.timeout_ms = 1;
    OK(tern_comm_open_all(4, &config, scene.comms));
    PASS(run_threads(&scene, actors, 4, late_at_barrier_actor));
    return same_sentence(actors, 4, TERN_TIMEOUT, "rank 3 did not arrive within 300 ms");
}

/* ---- Strangers ---- */

static int call_port(const struct address *a)
{
    int fd = socket(a->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&a->storage, a->bytes) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Garbage, another cookie, silence in numbers, a hello cut short: then the last rank comes. */
static int strangers_actor(struct actor *a)
{
    int fds[80], num = 0;
    struct id_fields f;
    struct address where;
    struct {
        struct frame frame;
        struct hello hello;
    } wrong;
    char garbage[512];
    ssize_t sent = 0;
    int result;
    if (a->rank != a->num_ranks - 1) {
        return open_and_check(a);
    }
    OK(terni_id_read(&a->scene->id, &f, &where));
    memset(&wrong, 0, sizeof wrong);
    wrong.frame.type = TERN_FRAME_HELLO;
    wrong.frame.value = (uint32_t)a->rank;
    wrong.frame.bytes = sizeof wrong.hello;
    wrong.hello.version = tern_version();
    wrong.hello.num_ranks = (uint32_t)a->num_ranks;
    memset(wrong.hello.cookie, 0x5a, sizeof wrong.hello.cookie);
    memset(garbage, 0xa5, sizeof garbage);
    for (; num < 80; num++) {
        fds[num] = call_port(&where);
        CHECK(fds[num] >= 0, "stranger %d cannot connect", num);
        if (num % 4 == 1) {
            sent += send(fds[num], garbage, sizeof garbage, MSG_NOSIGNAL);
        } else if (num % 4 == 2) {
            sent += send(fds[num], &wrong, sizeof wrong, MSG_NOSIGNAL);
        } else if (num % 4 == 3) {
            sent += send(fds[num], &wrong, sizeof wrong - 5, MSG_NOSIGNAL);
        }
    }
    CHECK(sent > 0, "strangers said something");
    nap_ms(50);
    result = open_and_check(a);
    while (num > 0) {
        close(fds[--num]);
    }
    return result;
}

static int strangers(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    return run_threads(&scene, actors, 3, strangers_actor);
}

static int wrong_cookie_actor(struct actor *a)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    struct tern_id id = a->scene->id;
    if (a->rank < 2) {
        return open_and_check(a);
    }
    id.bytes[20] ^= 1; /* in the cookie */
    a->num_ranks = 2;
    REFUSES(tern_comm_open(&id, 1, 2, &config, &comm), TERN_DISCONNECTED, "did not welcome rank 1");
    return 0;
}

/* Two ranks open, a third caller has another cookie: it alone fails. */
static int wrong_cookie_body(struct actor *a)
{
    a->num_ranks = 2;
    if (a->rank == 1) {
        nap_ms(100); /* the stranger first */
    }
    return wrong_cookie_actor(a);
}

static int wrong_cookie(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    return run_threads(&scene, actors, 3, wrong_cookie_body);
}

/* ---- Disagreement ---- */

static int wrong_size_actor(struct actor *a)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    note_status(a, tern_comm_open(&a->scene->id, a->rank, a->rank == 1 ? 5 : 2, &config, &comm));
    return 0;
}

static int wrong_rank_actor(struct actor *a)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    note_status(a, tern_comm_open(&a->scene->id, a->rank == 2 ? 1 : a->rank, 4, &config, &comm));
    return 0;
}

static int wrong_heap_actor(struct actor *a)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    config.heap_bytes = a->rank == 1 ? 2 * heap_bytes : heap_bytes;
    note_status(a, tern_comm_open(&a->scene->id, a->rank, a->num_ranks, &config, &comm));
    return 0;
}

static int wrong_bytes_actor(struct actor *a)
{
    char send[16] = "", recv[16 * max_ranks];
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm = a->scene->comms[a->rank];
    if (comm == NULL) {
        OK(tern_comm_open(&a->scene->id, a->rank, a->num_ranks, &config, &comm));
    }
    note_status(a, tern_comm_allgather(comm, send, recv, a->rank == 2 ? 16 : 8));
    pthread_barrier_wait(&a->scene->barrier);
    tern_comm_close(comm);
    return 0;
}

static int disagreement(struct test *t)
{
    struct actor actors[max_ranks];
    struct tern_comm_config config = config_of(20000);
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    PASS(run_threads(&scene, actors, 2, wrong_size_actor));
    PASS(same_sentence(actors, 2, TERN_MISMATCH, "rank 1 expects 5 ranks where rank 0 expects 2"));
    OK(tern_id_create("127.0.0.1", &scene.id));
    PASS(run_threads(&scene, actors, 3, wrong_rank_actor));
    PASS(same_sentence(actors, 3, TERN_MISMATCH, "two callers say that they are rank 1 of 4"));
    OK(tern_id_create("127.0.0.1", &scene.id));
    PASS(run_threads(&scene, actors, 3, wrong_heap_actor));
    PASS(same_sentence(actors, 3, TERN_MISMATCH, "rank 1 has heap_bytes 2097152 where rank 0 has 1048576"));
    OK(tern_id_create("127.0.0.1", &scene.id));
    PASS(run_threads(&scene, actors, 3, wrong_bytes_actor));
    PASS(same_sentence(actors, 3, TERN_MISMATCH, "rank 2 sent 16 bytes in exchange"));
    PASS(same_sentence(actors, 3, TERN_MISMATCH, "where rank 0 sent 8"));
    OK(tern_comm_open_all(3, &config, scene.comms));
    PASS(run_threads(&scene, actors, 3, wrong_bytes_actor));
    PASS(same_sentence(actors, 3, TERN_MISMATCH, "rank 2 sent 16 bytes in exchange"));
    return same_sentence(actors, 3, TERN_MISMATCH, "where rank 0 sent 8");
}

/* ---- All ranks in one thread ---- */

static int check_actor(struct actor *a)
{
    PASS(check_all(a->scene->comms[a->rank]));
    return 0;
}

static void close_all(struct tern_comm **comms, int num_ranks)
{
    for (int r = 0; r < num_ranks; r++) {
        tern_comm_close(comms[r]);
    }
}

static int open_all_sizes(struct test *t)
{
    struct tern_comm_config config = config_of(20000);
    struct actor actors[max_ranks];
    int step = t->scale < 100 ? 5 : 1;
    for (int n = 1; n <= max_ranks; n += step) {
        struct scene scene;
        int result, sms;
        memset(&scene, 0, sizeof scene);
        OK(tern_comm_open_all(n, &config, scene.comms));
        sms = scene.comms[0]->machine->info.num_sms / n;
        result = run_threads(&scene, actors, n, check_actor);
        CHECK(tern_comm_num_sms(scene.comms[n - 1]) == (sms > 0 ? sms : 1), "%d ranks share a device", n);
        close_all(scene.comms, n);
        PASS(result);
    }
    return 0;
}

static int forced_domains(struct test *t)
{
    static const int wanted[] = {0, 0, 1, 1, 2};
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comms[5];
    char text[4096];
    int needed;
    enum tern_status status;
    (void)t;
    setenv("TERN_DOMAIN_SIZE", "2", 1);
    status = tern_comm_open_all(5, &config, comms);
    unsetenv("TERN_DOMAIN_SIZE");
    OK(status);
    for (int r = 0; r < 5; r++) {
        for (int q = 0; q < 5; q++) {
            CHECK(comms[r]->domain_of[q] == wanted[q], "rank %d: domain of %d is %d", r, q, comms[r]->domain_of[q]);
            CHECK((comms[r]->heap->bases[q] != NULL) == (wanted[q] == wanted[r]), "rank %d: base of %d", r, q);
        }
    }
    needed = tern_comm_describe(comms[0], NULL, 0);
    CHECK(tern_comm_describe(comms[0], text, sizeof text) == needed && (int)strlen(text) == needed, "length %d", needed);
    CHECK(strstr(text, "5 ranks, 1 host, 1 process, 3 domains") != NULL, "%s", text);
    CHECK(tern_comm_describe(comms[0], text, 10) == needed && strlen(text) == 9, "cut to 9 characters");
    close_all(comms, 5);
    return 0;
}

/* Several heaps on one communicator; memory lives until the last who maps it has closed, whatever the order. */
static int heaps_and_order(struct test *t)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comms[3];
    struct heap *heaps[3];
    (void)t;
    OK(tern_comm_open_all(3, &config, comms));
    for (int r = 0; r < 3; r++) {
        OK(terni_heap_begin(comms[r], 1ull << 52, &heaps[r]));
    }
    for (int r = 0; r < 3; r++) {
        REFUSES(terni_heap_end(comms[r], heaps[r]), TERN_OUT_OF_MEMORY, "rank 0 has no window of 4503599627370496 bytes");
        terni_heap_close(heaps[r]);
    }
    for (int r = 0; r < 3; r++) {
        OK(terni_heap_begin(comms[r], 4096, &heaps[r]));
    }
    for (int r = 0; r < 3; r++) {
        OK(terni_heap_end(comms[r], heaps[r]));
        CHECK(heaps[r]->bases[r] != comms[r]->heap->bases[r], "another heap");
    }
    terni_heap_close(heaps[1]);
    heaps[0]->bases[1][4095] = 77; /* rank 1 has closed */
    CHECK(heaps[2]->bases[1][4095] == 77, "the part of rank 1 lives on");
    terni_heap_close(heaps[0]);
    tern_comm_close(comms[0]);
    CHECK(heaps[2]->bases[0][0] == 0, "the part of rank 0 lives on");
    terni_heap_close(heaps[2]);
    comms[1]->num_children++;
    tern_comm_close(comms[1]); /* refused */
    comms[1]->num_children--;
    OK(tern_fill(comms[1], comms[1]->heap->bases[1], 3, 64, NULL));
    tern_comm_close(comms[2]);
    tern_comm_close(comms[1]);
    return 0;
}

static int memory_and_streams(struct test *t)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    struct tern_stream *stream;
    struct tern_event *events[2];
    struct tern_graph *graph;
    void *window, *device, *host;
    float ms = -1;
    (void)t;
    OK(tern_comm_open_all(1, &config, &comm));
    REFUSES(tern_alloc(comm, TERN_MEMORY_WINDOW, heap_bytes + 1, &window), TERN_OUT_OF_MEMORY,
            "1048577 bytes: 1048576 are free, the largest block has 1048576");
    REFUSES(tern_alloc(comm, (enum tern_memory)9, 1, &window), TERN_INVALID_ARGUMENT, "kind 9");
    OK(tern_alloc(comm, TERN_MEMORY_WINDOW, heap_bytes, &window));
    OK(tern_alloc(comm, TERN_MEMORY_DEVICE, 5000, &device));
    OK(tern_alloc(comm, TERN_MEMORY_HOST, 5000, &host));
    CHECK(((uintptr_t)window | (uintptr_t)device | (uintptr_t)host) % 256 == 0, "alignment");
    OK(tern_stream_open(comm, &stream));
    OK(tern_event_open(comm, &events[0]));
    OK(tern_event_open(comm, &events[1]));
    OK(tern_event_record(comm, events[0], stream));
    OK(tern_fill(comm, window, 0x11, 5000, stream));
    OK(tern_copy(comm, device, window, 5000, stream));
    OK(tern_copy(comm, host, device, 5000, stream));
    OK(tern_event_record(comm, events[1], stream));
    OK(tern_event_wait(comm, events[1], NULL));
    OK(tern_stream_synchronize(comm, stream));
    CHECK(((char *)host)[0] == 0x11 && ((char *)host)[4999] == 0x11, "copied through three kinds");
    OK(tern_event_elapsed(comm, events[0], events[1], &ms));
    CHECK(ms >= 0, "%g ms", (double)ms);
    OK(tern_graph_begin(comm, stream));
    OK(tern_fill(comm, host, 0x22, 5000, stream));
    OK(tern_graph_end(comm, stream, &graph));
    OK(tern_graph_launch(comm, graph, stream));
    OK(tern_stream_synchronize(comm, stream));
    CHECK(((char *)host)[4999] == 0x22, "the graph ran");
    REFUSES(tern_copy(comm, NULL, device, 1, stream), TERN_INVALID_ARGUMENT, "dst is NULL");
    OK(tern_copy(comm, NULL, NULL, 0, stream));
    REFUSES(tern_stream_open(NULL, &stream), TERN_INVALID_ARGUMENT, "comm is NULL");
    REFUSES(tern_event_record(comm, NULL, stream), TERN_INVALID_ARGUMENT, "event is NULL");
    tern_graph_close(comm, graph);
    tern_event_close(comm, events[0]);
    tern_event_close(comm, events[1]);
    tern_stream_close(comm, stream);
    tern_free(comm, window);
    tern_free(comm, window); /* twice: an error in the log, no harm */
    tern_free(comm, host);
    OK(tern_alloc(comm, TERN_MEMORY_WINDOW, heap_bytes, &window));
    tern_comm_close(comm); /* frees `device` and `window` */
    return 0;
}

static int bad_arguments(struct test *t)
{
    struct tern_comm_config config = config_of(1000);
    struct tern_comm *comms[2];
    struct tern_id id;
    struct {
        struct tern_comm_config config;
        uint64_t more;
    } longer = {config, 1};
    (void)t;
    memset(&id, 0, sizeof id);
    REFUSES(tern_comm_open(NULL, 0, 1, &config, comms), TERN_INVALID_ARGUMENT, "id is NULL");
    REFUSES(tern_comm_open(&id, 0, 1, &config, comms), TERN_INVALID_ARGUMENT, "no id");
    REFUSES(tern_comm_open(&id, 3, 3, &config, comms), TERN_INVALID_ARGUMENT, "rank 3 is none of 3");
    REFUSES(tern_comm_open_all(0, &config, comms), TERN_INVALID_ARGUMENT, "num_ranks is 0");
    REFUSES(tern_comm_open_all(5000, &config, comms), TERN_INVALID_ARGUMENT, "5000");
    REFUSES(tern_comm_open_all(1, &config, NULL), TERN_INVALID_ARGUMENT, "comms is NULL");
    config.size = 8;
    REFUSES(tern_comm_open_all(1, &config, comms), TERN_INVALID_ARGUMENT, "config->size is 8");
    longer.config.size = sizeof longer;
    REFUSES(tern_comm_open_all(1, &longer.config, comms), TERN_UNSUPPORTED, "is not zero");
    longer.more = 0;
    OK(tern_comm_open_all(1, &longer.config, comms));
    REFUSES(tern_comm_allgather(comms[0], &id, &id, (1 << 20) + 1), TERN_INVALID_ARGUMENT, "1048577");
    REFUSES(tern_comm_allgather(comms[0], NULL, &id, 1), TERN_INVALID_ARGUMENT, "send is NULL");
    tern_comm_close(comms[0]);
    tern_comm_close(NULL);
    config = config_of(1000);
    config.machine = 7;
    REFUSES(tern_comm_open_all(1, &config, comms), TERN_INVALID_ARGUMENT, "machine 7");
    config.machine = TERN_MACHINE_CPU;
    config.device = TERN_DEVICE_ORDINAL(3);
    REFUSES(tern_comm_open_all(1, &config, comms), TERN_INVALID_ARGUMENT, "TERN_DEVICE_ORDINAL(3)");
    return 0;
}

/* ---- Nothing is left behind ---- */

static int num_fds(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d != NULL && readdir(d) != NULL) {
        n++;
    }
    if (d != NULL) {
        closedir(d);
    }
    return n;
}

/* Mappings of at least half a window: thread stacks come and go, windows must not. */
static int num_windows(void)
{
    unsigned long begin, end;
    char line[512];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        n += sscanf(line, "%lx-%lx", &begin, &end) == 2 && strstr(line, "rw-s") != NULL && end - begin >= heap_bytes / 2;
    }
    if (f != NULL) {
        fclose(f);
    }
    return n;
}

static int leak_body(int process, struct procs_page *page, void *user)
{
    int fds = num_fds(), windows = num_windows();
    PASS(process_body(process, page, user));
    CHECK(num_fds() <= fds, "%d descriptors after, %d before", num_fds(), fds);
    CHECK(num_windows() == windows, "%d windows after, %d before", num_windows(), windows);
    return 0;
}

static int leaks_of_processes(struct test *t)
{
    (void)t;
    return procs_run(4, -1, 60, leak_body, NULL);
}

/* Every way to succeed and to fail above, again. */
static int leaks_of_threads(struct test *t)
{
    int fds, windows;
    PASS(threads_v4(t));
    fds = num_fds();
    windows = num_windows();
    PASS(threads_v4(t));
    PASS(heaps_and_order(t));
    PASS(disagreement(t));
    PASS(late_at_open(t));
    PASS(strangers(t));
    CHECK(num_fds() == fds, "%d descriptors after, %d before", num_fds(), fds);
    CHECK(num_windows() == windows, "%d windows after, %d before", num_windows(), windows);
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    setenv("TERN_MACHINE", "cpu", 1);
    /* Processes first: their parent must not have started a machine. */
    test_run(&t, "processes", processes);
    test_run(&t, "processes_of_threads", processes_of_threads);
    test_run(&t, "killed_rank", killed_rank);
    test_run(&t, "killed_root", killed_root);
    test_run(&t, "leaks_of_processes", leaks_of_processes);
    test_run(&t, "threads_v4", threads_v4);
    test_run(&t, "threads_v6", threads_v6);
    test_run(&t, "agreed_address", agreed_address);
    test_run(&t, "late_at_open", late_at_open);
    test_run(&t, "late_at_barrier", late_at_barrier);
    test_run(&t, "late_root_at_barrier", late_root_at_barrier);
    test_run(&t, "late_on_board", late_on_board);
    test_run(&t, "strangers", strangers);
    test_run(&t, "wrong_cookie", wrong_cookie);
    test_run(&t, "disagreement", disagreement);
    test_run(&t, "open_all_sizes", open_all_sizes);
    test_run(&t, "forced_domains", forced_domains);
    test_run(&t, "heaps_and_order", heaps_and_order);
    test_run(&t, "memory_and_streams", memory_and_streams);
    test_run(&t, "bad_arguments", bad_arguments);
    test_run(&t, "leaks_of_threads", leaks_of_threads);
    return test_end(&t);
}
