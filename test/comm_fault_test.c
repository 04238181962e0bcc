/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators in trouble: ranks never come, die or disagree, strangers call. Failures must come within the
 * deadline, every rank must name the same culprit, and nothing may be left behind. */
#include "comm/id.h"
#include "comm/tcp.h"
#include "comm_scene.h"
#include "procs.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- Death ---- */

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
    CHECK(strstr(tern_last_error(), "earlier") == NULL, "\"%s\" is told as it happens", tern_last_error());
    REFUSES(tern_comm_barrier(comm), TERN_DISCONNECTED, name);
    REFUSES(tern_comm_barrier(comm), TERN_DISCONNECTED, "the communicator failed earlier: rank");
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

/* ---- Late ranks ---- */

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

/* ---- One rank alone fails ---- */

/* Rank 1 has descriptors left for its connection, its door, its window and the socket where it receives
 * those of the others, but not for a socket to send its own: it fails in the last step, and all are told. */
static int few_descriptors_body(int rank, struct procs_page *page, void *user)
{
    struct tern_comm_config config = config_of(2000);
    struct tern_comm *comm = NULL;
    (void)user;
    if (rank == 1) {
        PASS(leave_fds(4));
    }
    REFUSES(tern_comm_open(&page->id, rank, 3, &config, &comm), TERN_SYSTEM_ERROR, "rank 1: no unix socket");
    CHECK(comm == NULL, "the output of a failure is untouched");
    return 0;
}

static int few_descriptors(struct test *t)
{
    (void)t;
    return procs_run(3, -1, 30, few_descriptors_body, NULL);
}

/* Rank 1 cannot even call: it says so at once and does not blame rank 0, which is not there either. */
static int no_socket_body(int rank, struct procs_page *page, void *user)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm = NULL;
    struct tern_id agreed;
    double begin = test_seconds();
    (void)user;
    if (rank == 0) {
        return 0;
    }
    OK(terni_id_from_address("127.0.0.1:9/no socket", &agreed));
    PASS(leave_fds(0));
    REFUSES(tern_comm_open(&page->id, 1, 2, &config, &comm), TERN_SYSTEM_ERROR,
            "rank 1 has no socket to call rank 0: Too many open files");
    REFUSES(tern_comm_open(&agreed, 1, 2, &config, &comm), TERN_SYSTEM_ERROR,
            "rank 1 has no socket to call rank 0: Too many open files");
    CHECK(comm == NULL, "the output of a failure is untouched");
    CHECK(test_seconds() - begin < 10, "it took %.1f s", test_seconds() - begin);
    return 0;
}

static int no_socket(struct test *t)
{
    (void)t;
    return procs_run(2, -1, 30, no_socket_body, NULL);
}

static int judgement(struct test *t)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comms[3];
    (void)t;
    OK(tern_comm_open_all(3, &config, comms));
    for (int r = 0; r < 3; r++) {
        OK(terni_comm_judge_post(comms[r], TERN_OK));
    }
    for (int r = 0; r < 3; r++) {
        OK(terni_comm_judge_wait(comms[r]));
    }
    OK(terni_comm_judge_post(comms[0], TERN_FAIL(TERN_TIMEOUT, "rank 2 did not arrive within 5 ms")));
    OK(terni_comm_judge_post(comms[1], TERN_OK));
    OK(terni_comm_judge_post(comms[2], TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d bytes", 12)));
    for (int r = 0; r < 3; r++) {
        REFUSES(terni_comm_judge_wait(comms[r]), TERN_OUT_OF_MEMORY, "rank 2: no memory for 12 bytes");
    }
    OK(terni_comm_judge_post(comms[0], TERN_FAIL(TERN_TIMEOUT, "rank 2 did not arrive within 5 ms")));
    OK(terni_comm_judge_post(comms[1], TERN_OK));
    OK(terni_comm_judge_post(comms[2], TERN_OK));
    REFUSES(terni_comm_judge_wait(comms[0]), TERN_TIMEOUT, "rank 2 did not arrive");
    REFUSES(terni_comm_judge_wait(comms[1]), TERN_TIMEOUT, "rank 2 did not arrive");
    REFUSES(terni_comm_judge_wait(comms[2]), TERN_TIMEOUT, "rank 2 (this one) did not arrive");
    for (int r = 0; r < 3; r++) {
        tern_comm_close(comms[r]);
    }
    return 0;
}

/* One thread has both ranks. The first one's communicator has failed, and a call for both ends with its
 * status and its sentence, though the second would be refused for another reason. */
static int first_sentence(struct test *t)
{
    struct tern_comm_config config = config_of(200);
    struct tern_ep_config nothing = TERN_EP_CONFIG_INIT;
    struct tern_comm *comms[2];
    struct tern_ep *eps[2] = {NULL, NULL};
    (void)t;
    OK(tern_comm_open_all(2, &config, comms));
    REFUSES(tern_comm_barrier(comms[0]), TERN_TIMEOUT, "rank 1 did not arrive");
    REFUSES(tern_ep_open_all(2, comms, &nothing, eps), TERN_TIMEOUT, "the communicator failed earlier");
    CHECK(eps[0] == NULL && eps[1] == NULL, "an object was made");
    tern_comm_close(comms[0]);
    tern_comm_close(comms[1]);
    return 0;
}

/* Why opening failed is what is told, whatever is said while what there is closes. */
static _Atomic int is_closing_loud;

int pthread_mutex_destroy(pthread_mutex_t *mutex)
{
    (void)mutex; /* one of the C library's holds nothing */
    if (atomic_load(&is_closing_loud)) {
        TERN_FAIL(TERN_INTERNAL_ERROR, "a lock is gone");
    }
    return 0;
}

static int loud_close_actor(struct actor *a)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm = NULL;
    config.heap_bytes = a->rank == 1 ? 2 * heap_bytes : heap_bytes;
    note_status(a, tern_comm_open(&a->scene->id, a->rank, a->num_ranks, &config, &comm));
    return 0;
}

static int loud_close(struct test *t)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comms[2] = {NULL, NULL};
    struct actor actors[max_ranks];
    struct scene scene;
    enum tern_status status;
    char text[256];
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    atomic_store(&is_closing_loud, 1);
    PASS(run_threads(&scene, actors, 2, loud_close_actor));
    config.heap_bytes = 1ull << 46;
    status = tern_comm_open_all(2, &config, comms);
    snprintf(text, sizeof text, "%s", tern_last_error());
    atomic_store(&is_closing_loud, 0);
    PASS(same_sentence(actors, 2, TERN_MISMATCH, "rank 1 has heap_bytes 2097152 where rank 0 has 1048576"));
    CHECK(status != TERN_OK && strstr(text, "has no window of") != NULL, "%s: \"%s\"",
          tern_status_string(status), text);
    return 0;
}

/* ---- Strangers ---- */

/* Garbage, another cookie, silence in numbers, a hello cut short: then the last rank comes. */
static int strangers_actor(struct actor *a)
{
    int fds[160], num = 0; /* half of them stay silent: more than rank 0 entertains at once */
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
    for (; num < 160; num++) {
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

/* Rank 1 says its hello in two parts, between which a stranger who called before it leaves. */
static int halved_hello_actor(struct actor *a)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm = NULL;
    struct id_fields f;
    struct address where;
    struct frame frame = {.type = TERN_FRAME_HELLO, .value = 1, .bytes = sizeof(struct hello)};
    struct hello hello = {.version = tern_version(), .num_ranks = 2};
    int stranger, fd;
    ssize_t sent, got;
    if (a->rank == 0) {
        REFUSES(tern_comm_open(&a->scene->id, 0, 2, &config, &comm), TERN_DISCONNECTED, "rank 1 closed");
        return 0;
    }
    OK(terni_id_read(&a->scene->id, &f, &where));
    memcpy(hello.cookie, f.cookie, sizeof hello.cookie);
    stranger = call_port(&where);
    nap_ms(100);
    fd = call_port(&where);
    sent = send(fd, &frame, sizeof frame, MSG_NOSIGNAL);
    nap_ms(100);
    close(stranger);
    nap_ms(100);
    sent += send(fd, &hello, sizeof hello, MSG_NOSIGNAL);
    got = recv(fd, &frame, sizeof frame, MSG_WAITALL);
    close(fd);
    CHECK(stranger >= 0 && sent == (ssize_t)(sizeof frame + sizeof hello), "%zd bytes were sent", sent);
    CHECK(got == (ssize_t)sizeof frame && frame.type == TERN_FRAME_RESULT, "rank 1 was not welcomed");
    return 0;
}

static int halved_hello(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    return run_threads(&scene, actors, 2, halved_hello_actor);
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

/* ---- Nothing is left behind ---- */

static int leaks_of_threads(struct test *t)
{
    static int (*const bodies[])(struct test * t) = {disagreement, late_at_open, strangers};
    return leaves_nothing(t, bodies, 3);
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    setenv("TERN_MACHINE", "cpu", 1);
    /* Processes first: their parent must not have started a machine. */
    test_run(&t, "killed_rank", killed_rank);
    test_run(&t, "killed_root", killed_root);
    test_run(&t, "few_descriptors", few_descriptors);
    test_run(&t, "no_socket", no_socket);
    test_run(&t, "judgement", judgement);
    test_run(&t, "first_sentence", first_sentence);
    test_run(&t, "loud_close", loud_close);
    test_run(&t, "late_at_open", late_at_open);
    test_run(&t, "strangers", strangers);
    test_run(&t, "halved_hello", halved_hello);
    test_run(&t, "wrong_cookie", wrong_cookie);
    test_run(&t, "disagreement", disagreement);
    test_run(&t, "leaks_of_threads", leaks_of_threads);
    return test_end(&t);
}
