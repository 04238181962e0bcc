/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators that go on with the ranks that are left: some have closed, died or been stopped, rank 0
 * among them. Whoever is left agrees on the same list at once, or when the time for silent ranks is over,
 * and the new communicator does all that one can. One long file, because all cases are of one call, in
 * scenes that they share. */
#include "comm/id.h"
#include "comm_scene.h"
#include "procs.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

enum { RANKS = 4, PATIENCE_MS = 20000, SHORT_MS = 700 };

static struct tern_shrink_args patient(uint32_t timeout_ms)
{
    struct tern_shrink_args args = TERN_SHRINK_ARGS_INIT;
    args.timeout_ms = timeout_ms;
    return args;
}

/* The list is `wanted` (ended by -1), this rank has its place in it, and all that a communicator can do
 * works. */
static int check_shrunk(struct tern_comm *comm, const int32_t *old_ranks, int size, const int *wanted,
                        int self)
{
    int n = 0;
    for (; wanted[n] >= 0; n++) {
        CHECK(old_ranks[n] == wanted[n], "rank %d: number %d of those left is %d, not %d", self, n,
              old_ranks[n], wanted[n]);
        CHECK(wanted[n] != self || tern_comm_rank(comm) == n, "rank %d has number %d", self,
              tern_comm_rank(comm));
    }
    for (int i = n; i < size; i++) {
        CHECK(old_ranks[i] == -1, "rank %d: past the end stands %d", self, old_ranks[i]);
    }
    CHECK(tern_comm_size(comm) == n, "rank %d: %d ranks are left", self, tern_comm_size(comm));
    return check_all(comm);
}

/* ---- Ranks that close: threads ---- */

/* Rank 1 closes; then, of those left, the first. Nobody waits for a deadline. */
static int leavers_actor(struct actor *a)
{
    static const int first[] = {0, 2, 3, -1}, second[] = {1, 2, -1};
    struct tern_comm_config config = config_of(PATIENCE_MS);
    struct tern_shrink_args args = patient(PATIENCE_MS);
    struct tern_comm *comm, *shrunk, *last;
    int32_t old_ranks[RANKS];
    double begin;
    OK(tern_comm_open(&a->scene->id, a->rank, RANKS, &config, &comm));
    OK(tern_comm_barrier(comm));
    if (a->rank == 1) {
        tern_comm_close(comm);
        return 0;
    }
    begin = test_seconds();
    OK(tern_comm_shrink(comm, &args, old_ranks, &shrunk));
    PASS(check_shrunk(shrunk, old_ranks, RANKS, first, a->rank));
    tern_comm_close(comm);
    if (a->rank == 0) {
        tern_comm_close(shrunk);
        return 0;
    }
    nap_ms(a->rank == 2 ? 300 : 0); /* who is to lead comes last */
    OK(tern_comm_shrink(shrunk, &args, old_ranks, &last));
    PASS(check_shrunk(last, old_ranks, RANKS - 1, second, a->rank - 1));
    CHECK(test_seconds() - begin < PATIENCE_MS * 1e-3 / 2, "it took %.1f s", test_seconds() - begin);
    tern_comm_close(shrunk);
    tern_comm_close(last);
    return 0;
}

static int leavers(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    return run_threads(&scene, actors, RANKS, leavers_actor);
}

/* The system gives a closed rank's port to the next that asks for any: to the others, for their calls; to one
 * at a time, as it does with any port. Two that are bound and do not listen yet may have the same one, where
 * they name it. */
static _Atomic int port_given, times_given;
static pthread_mutex_t giving = PTHREAD_MUTEX_INITIALIZER;

static int takes_it(int fd, const struct sockaddr_in *v4)
{
    int taken;
    pthread_mutex_lock(&giving);
    taken = syscall(SYS_bind, fd, v4, sizeof *v4) == 0 && listen(fd, 1) == 0;
    pthread_mutex_unlock(&giving);
    return taken;
}

int bind(int fd, const struct sockaddr *a, socklen_t bytes)
{
    struct sockaddr_in v4;
    int port = atomic_load(&port_given);
    if (port != 0 && a->sa_family == AF_INET && bytes == sizeof v4) {
        memcpy(&v4, a, sizeof v4);
        if (v4.sin_port == 0) {
            v4.sin_port = htons((uint16_t)port);
            if (takes_it(fd, &v4)) {
                atomic_fetch_add(&times_given, 1);
                return 0;
            }
        }
    }
    return (int)syscall(SYS_bind, fd, a, bytes);
}

static int same_port_actor(struct actor *a)
{
    static const int left[] = {0, 2, 3, -1};
    struct tern_comm_config config = config_of(PATIENCE_MS);
    struct tern_shrink_args args = patient(PATIENCE_MS);
    struct tern_comm *comm, *shrunk;
    int32_t old_ranks[RANKS];
    struct id_fields door;
    struct address address;
    double begin;
    OK(tern_comm_open(&a->scene->id, a->rank, RANKS, &config, &comm));
    OK(terni_id_read(&comm->cards[1].door, &door, &address));
    OK(tern_comm_barrier(comm));
    if (a->rank == 1) {
        tern_comm_close(comm);
        atomic_store(&port_given, door.port);
    }
    pthread_barrier_wait(&a->scene->barrier);
    if (a->rank == 1) {
        return 0;
    }
    begin = test_seconds();
    OK(tern_comm_shrink(comm, &args, old_ranks, &shrunk));
    PASS(check_shrunk(shrunk, old_ranks, RANKS, left, a->rank));
    CHECK(test_seconds() - begin < PATIENCE_MS * 1e-3 / 2, "it took %.1f s", test_seconds() - begin);
    tern_comm_close(comm);
    tern_comm_close(shrunk);
    return 0;
}

static int same_port(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    int result;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    atomic_store(&times_given, 0);
    result = run_threads(&scene, actors, RANKS, same_port_actor);
    atomic_store(&port_given, 0);
    CHECK(result != 0 || atomic_load(&times_given) > 0, "nobody was given the port");
    return result;
}

/* Nobody is lost, and ranks come one after the other, the lowest last: it takes the lead back. */
static int one_by_one_actor(struct actor *a)
{
    static const int all[] = {0, 1, 2, 3, -1};
    struct tern_comm_config config = config_of(PATIENCE_MS);
    struct tern_shrink_args args = patient(PATIENCE_MS);
    struct tern_comm *comm, *shrunk;
    int32_t old_ranks[RANKS];
    OK(tern_comm_open(&a->scene->id, a->rank, RANKS, &config, &comm));
    OK(tern_comm_barrier(comm));
    nap_ms(700 * (RANKS - 1 - a->rank));
    OK(tern_comm_shrink(comm, &args, old_ranks, &shrunk));
    PASS(check_shrunk(shrunk, old_ranks, RANKS, all, a->rank));
    tern_comm_close(shrunk);
    tern_comm_close(comm);
    return 0;
}

static int one_by_one(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    return run_threads(&scene, actors, RANKS, one_by_one_actor);
}

/* ---- A call in two parts ---- */

static int call_door(struct tern_comm *comm, int rank)
{
    struct id_fields fields;
    struct address a;
    return terni_id_read(&comm->cards[rank].door, &fields, &a) == TERN_OK ? call_port(&a) : -1;
}

/* Rank 1 calls rank 0 in two parts, between which a stranger who knocked before it leaves: it hears that
 * rank 0 is there and where both go on. */
static int call_in_parts(struct tern_comm *comm, struct tern_id *id)
{
    struct {
        unsigned char cookie[sizeof comm->cookie];
        struct tern_id id;
    } call = {.id = {{0}}}; /* the id is for the lowest rank alone */
    struct frame frame = {.type = 0x4c4c4143 /* CALL */, .value = 1, .bytes = sizeof call};
    int stranger = call_door(comm, 0), fd;
    ssize_t sent, got;
    nap_ms(100);
    fd = call_door(comm, 0);
    memcpy(call.cookie, comm->cookie, sizeof call.cookie);
    sent = send(fd, &frame, sizeof frame, MSG_NOSIGNAL);
    nap_ms(200);
    close(stranger);
    nap_ms(200);
    sent += send(fd, &call, sizeof call, MSG_NOSIGNAL);
    got = recv(fd, &frame, sizeof frame, MSG_WAITALL);  /* HERE */
    got += recv(fd, &frame, sizeof frame, MSG_WAITALL); /* ROLL: the id, then marks */
    got += recv(fd, id, sizeof *id, MSG_WAITALL);
    close(fd);
    CHECK(stranger >= 0 && sent == (ssize_t)(sizeof frame + sizeof call), "%zd bytes were sent", sent);
    CHECK(got == (ssize_t)(2 * sizeof frame + sizeof *id), "rank 0 told %zd bytes", got);
    return 0;
}

static int halved_call_actor(struct actor *a)
{
    static const int both[] = {0, 1, -1};
    struct tern_comm_config config = config_of(PATIENCE_MS);
    struct tern_shrink_args args = patient(PATIENCE_MS);
    struct tern_comm *comm, *shrunk;
    int32_t old_ranks[2] = {0, 1};
    struct tern_id id;
    OK(tern_comm_open(&a->scene->id, a->rank, 2, &config, &comm));
    OK(tern_comm_barrier(comm));
    if (a->rank == 0) {
        OK(tern_comm_shrink(comm, &args, old_ranks, &shrunk));
    } else {
        PASS(call_in_parts(comm, &id));
        OK(tern_comm_open(&id, 1, 2, &config, &shrunk));
    }
    PASS(check_shrunk(shrunk, old_ranks, 2, both, a->rank));
    tern_comm_close(shrunk);
    tern_comm_close(comm);
    return 0;
}

static int halved_call(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    return run_threads(&scene, actors, 2, halved_call_actor);
}

/* Fewer are left than must be: all hear the same, and may go on with less. */
static int too_few_actor(struct actor *a)
{
    static const int left[] = {0, 1, 2, -1};
    struct tern_comm_config config = config_of(PATIENCE_MS);
    struct tern_shrink_args args = patient(PATIENCE_MS);
    struct tern_comm *comm, *shrunk = NULL;
    int32_t old_ranks[RANKS] = {7, 7, 7, 7};
    OK(tern_comm_open(&a->scene->id, a->rank, RANKS, &config, &comm));
    OK(tern_comm_barrier(comm));
    if (a->rank == 3) {
        tern_comm_close(comm);
        return 0;
    }
    args.min_ranks = 4;
    note_status(a, tern_comm_shrink(comm, &args, old_ranks, &shrunk));
    CHECK(shrunk == NULL && old_ranks[0] == 7, "outputs of a failure are untouched");
    args.min_ranks = 3;
    OK(tern_comm_shrink(comm, &args, old_ranks, &shrunk));
    PASS(check_shrunk(shrunk, old_ranks, RANKS, left, a->rank));
    tern_comm_close(shrunk);
    tern_comm_close(comm);
    return 0;
}

static int too_few(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    PASS(run_threads(&scene, actors, RANKS, too_few_actor));
    for (int r = 0; r < 3; r++) {
        CHECK(actors[r].status == TERN_TIMEOUT && strstr(actors[r].text, "rank 3 did not arrive") &&
                  strstr(actors[r].text, "3 of 4 ranks could go on, and 4 must"),
              "rank %d: \"%s\"", r, actors[r].text);
    }
    return 0;
}

enum { CROWD = 16, CALLERS = 2, CROWD_MS = 1500 };

/* All but the last ranks have their doors and say nothing. */
static int many_silent_actor(struct actor *a)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_shrink_args args = TERN_SHRINK_ARGS_INIT;
    struct tern_comm *comm, *shrunk = NULL;
    OK(tern_comm_open(&a->scene->id, a->rank, a->num_ranks, &config, &comm));
    if (a->rank >= CROWD - CALLERS) {
        double begin = test_seconds();
        args.timeout_ms = CROWD_MS;
        OK(tern_comm_shrink(comm, &args, NULL, &shrunk));
        a->seconds = test_seconds() - begin;
        CHECK(tern_comm_size(shrunk) == CALLERS, "%d ranks are left", tern_comm_size(shrunk));
        tern_comm_close(shrunk);
    }
    pthread_barrier_wait(&a->scene->barrier);
    tern_comm_close(comm);
    return 0;
}

/* They cost little more than one: four half seconds until all are called, and the time for silent ranks. */
static int many_silent(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    PASS(run_threads(&scene, actors, CROWD, many_silent_actor));
    for (int r = CROWD - CALLERS; r < CROWD; r++) {
        CHECK(actors[r].seconds < 6, "rank %d: it took %.1f s", r, actors[r].seconds);
    }
    return 0;
}

/* Threads of one process leave no descriptor behind. */
static int nothing_left(struct test *t)
{
    static int (*const bodies[])(struct test *) = {leavers, same_port, too_few};
    return leaves_nothing(t, bodies, 3);
}

/* ---- Ranks that die or stop: processes ---- */

static int victim;

/* The victim dies where the others wait for it; `domains` of two are whole or not. */
static int killed_body(int rank, struct procs_page *page, void *user)
{
    static const int without_two[] = {0, 1, 3, -1}, without_root[] = {1, 2, 3, -1};
    struct tern_comm_config config = config_of(PATIENCE_MS);
    struct tern_shrink_args args = patient(PATIENCE_MS);
    struct tern_comm *comm, *shrunk;
    int32_t old_ranks[RANKS];
    double begin;
    (void)user;
    OK(tern_comm_open(&page->id, rank, RANKS, &config, &comm));
    OK(tern_comm_barrier(comm));
    if (rank == victim) {
        raise(SIGKILL);
    }
    EXPECT(tern_comm_barrier(comm), TERN_DISCONNECTED);
    begin = test_seconds();
    OK(tern_comm_shrink(comm, &args, old_ranks, &shrunk));
    PASS(check_shrunk(shrunk, old_ranks, RANKS, victim == 0 ? without_root : without_two, rank));
    CHECK(test_seconds() - begin < PATIENCE_MS * 1e-3 / 2, "it took %.1f s", test_seconds() - begin);
    tern_comm_close(comm);
    tern_comm_close(shrunk);
    return 0;
}

static int killed(struct test *t)
{
    (void)t;
    victim = 2;
    return procs_run(RANKS, victim, 30, killed_body, NULL);
}

static int killed_root(struct test *t)
{
    (void)t;
    victim = 0;
    return procs_run(RANKS, victim, 30, killed_body, NULL);
}

enum { PAIRS = 6 };

/* Of three domains of two, the middle one loses a rank: the other of it is left out. */
static int domains_body(int rank, struct procs_page *page, void *user)
{
    static const int whole[] = {0, 1, 4, 5, -1};
    struct tern_comm_config config = config_of(PATIENCE_MS);
    struct tern_shrink_args args = patient(PATIENCE_MS);
    struct tern_comm *comm, *shrunk = NULL;
    int32_t old_ranks[PAIRS];
    (void)user;
    setenv("TERN_DOMAIN_SIZE", "2", 1);
    OK(tern_comm_open(&page->id, rank, PAIRS, &config, &comm));
    OK(tern_comm_barrier(comm));
    if (rank == 3) {
        raise(SIGKILL);
    }
    args.whole_domains = 1;
    OK(tern_comm_shrink(comm, &args, old_ranks, &shrunk));
    if (rank == 2) {
        CHECK(shrunk == NULL && old_ranks[2] == 4, "rank 2 is left out, and knows who goes on");
    } else {
        OK(tern_comm_barrier(shrunk));
        CHECK(tern_comm_size(shrunk) == 4 && memcmp(old_ranks, whole, sizeof whole) == 0,
              "rank %d: %d ranks are left", rank, tern_comm_size(shrunk));
    }
    tern_comm_close(comm);
    tern_comm_close(shrunk);
    return 0;
}

static int whole_domains(struct test *t)
{
    (void)t;
    return procs_run(PAIRS, 3, 30, domains_body, NULL);
}

/* Rank 0 is stopped: the others wait for it as long as they were told, not more. When it wakes they have
 * gone on without it, and it may not go on alone. */
static int stopped_body(int rank, struct procs_page *page, void *user)
{
    static const int others[] = {1, 2, 3, -1};
    struct tern_comm_config config = config_of(PATIENCE_MS);
    struct tern_shrink_args args = patient(SHORT_MS);
    struct tern_comm *comm, *shrunk;
    int32_t old_ranks[RANKS];
    double begin;
    (void)user;
    args.min_ranks = 3;
    OK(tern_comm_open(&page->id, rank, RANKS, &config, &comm));
    page->marks[rank] = (double)getpid();
    OK(tern_comm_barrier(comm));
    if (rank == 0) {
        raise(SIGSTOP);
        REFUSES(tern_comm_shrink(comm, &args, old_ranks, &shrunk), TERN_TIMEOUT,
                "ranks 1, 2, 3 did not arrive within 700 ms; 1 of 4 ranks could go on, and 3 must");
        tern_comm_close(comm);
        return 0;
    }
    begin = test_seconds();
    OK(tern_comm_shrink(comm, &args, old_ranks, &shrunk));
    CHECK(test_seconds() - begin > SHORT_MS * 1e-3 * 0.9 && test_seconds() - begin < 10, "it took %.1f s",
          test_seconds() - begin);
    PASS(check_shrunk(shrunk, old_ranks, RANKS, others, rank));
    if (rank == 1) {
        kill((pid_t)page->marks[0], SIGCONT);
    }
    tern_comm_close(comm);
    tern_comm_close(shrunk);
    return 0;
}

static int stopped(struct test *t)
{
    (void)t;
    return procs_run(RANKS, -1, 30, stopped_body, NULL);
}

/* ---- Ranks that cannot call, or be called, though they live ---- */

/* Of two ranks, the one that has so few descriptors left, and what it says. */
struct poor {
    int rank, num_fds;
    const char *sentence;
};

/* The poor one fails, and the other goes on as soon as it has gone. */
static int poor_body(int rank, struct procs_page *page, void *user)
{
    const struct poor *poor = (const struct poor *)user;
    const int other[] = {1 - poor->rank, -1};
    struct tern_comm_config config = config_of(PATIENCE_MS);
    struct tern_shrink_args args = patient(PATIENCE_MS);
    struct tern_comm *comm, *shrunk = NULL;
    int32_t old_ranks[2];
    double begin;
    OK(tern_comm_open(&page->id, rank, 2, &config, &comm));
    OK(tern_comm_barrier(comm));
    begin = test_seconds();
    if (rank == poor->rank) {
        PASS(leave_fds(poor->num_fds));
        REFUSES(tern_comm_shrink(comm, &args, old_ranks, &shrunk), TERN_SYSTEM_ERROR, poor->sentence);
        CHECK(shrunk == NULL, "outputs of a failure are untouched");
    } else {
        OK(tern_comm_shrink(comm, &args, old_ranks, &shrunk));
        PASS(check_shrunk(shrunk, old_ranks, 2, other, rank));
        tern_comm_close(shrunk);
    }
    CHECK(test_seconds() - begin < PATIENCE_MS * 1e-3 / 2, "it took %.1f s", test_seconds() - begin);
    tern_comm_close(comm);
    return 0;
}

static int few_descriptors(struct test *t)
{
    /* One is for the id at which a rank would welcome a communicator, the next for a call. */
    struct poor callers[] = {{1, 0, "no socket to listen on 127.0.0.1:0: Too many open files"},
                             {1, 1, "rank 1 has no socket to call rank 0: Too many open files"},
                             {0, 1, "rank 0 has no socket to call rank 1: Too many open files"},
                             {0, 2, "rank 0 cannot accept a connection: Too many open files"}};
    (void)t;
    for (int i = 0; i < 4; i++) {
        PASS(procs_run(2, -1, 30, poor_body, &callers[i]));
    }
    return 0;
}

static struct tern_id *door_out_of_reach, true_door;

static void bring_back(int signal)
{
    (void)signal;
    *door_out_of_reach = true_door;
}

/* Rank 1 has no way to rank 0's door for so long; 0: as long as it is not brought back. */
static int move_away(struct tern_comm *comm, int for_ms)
{
    struct itimerval timer = {.it_value = {for_ms / 1000, (suseconds_t)(for_ms % 1000) * 1000}};
    struct id_fields fields;
    struct address a;
    door_out_of_reach = &comm->cards[0].door;
    true_door = *door_out_of_reach;
    OK(terni_id_read(&true_door, &fields, &a));
    memcpy(fields.address, (const unsigned char[]){224, 0, 0, 1}, 4); /* no stream goes to a group of hosts */
    memcpy(door_out_of_reach, &fields, sizeof fields);
    signal(SIGALRM, bring_back);
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0, "setitimer: %m");
    return 0;
}

/* Rank 0 is lost to rank 1 when the time is over, not before; and not at all if a way opens in time. */
static int out_of_reach_body(int rank, struct procs_page *page, void *user)
{
    static const int both[] = {0, 1, -1};
    struct tern_comm_config config = config_of(PATIENCE_MS);
    struct tern_shrink_args args = patient(PATIENCE_MS);
    struct tern_comm *comm, *shrunk = NULL;
    int32_t old_ranks[2];
    double begin;
    (void)user;
    OK(tern_comm_open(&page->id, rank, 2, &config, &comm));
    OK(tern_comm_barrier(comm));
    begin = test_seconds();
    if (rank == 1) {
        args.timeout_ms = SHORT_MS;
        args.min_ranks = 2;
        PASS(move_away(comm, 0));
        REFUSES(tern_comm_shrink(comm, &args, old_ranks, &shrunk), TERN_TIMEOUT,
                "rank 0 did not arrive within 700 ms; 1 of 2 ranks could go on, and 2 must");
        CHECK(test_seconds() - begin > SHORT_MS * 1e-3 * 0.9, "it took %.1f s", test_seconds() - begin);
        bring_back(0);
        args = patient(PATIENCE_MS);
        PASS(move_away(comm, SHORT_MS));
    }
    OK(tern_comm_shrink(comm, &args, old_ranks, &shrunk));
    PASS(check_shrunk(shrunk, old_ranks, 2, both, rank));
    CHECK(test_seconds() - begin < PATIENCE_MS * 1e-3 / 2, "it took %.1f s", test_seconds() - begin);
    tern_comm_close(shrunk);
    tern_comm_close(comm);
    return 0;
}

static int out_of_reach(struct test *t)
{
    (void)t;
    return procs_run(2, -1, 30, out_of_reach_body, NULL);
}

/* ---- Refusals, and one rank ---- */

static int refusals(struct test *t)
{
    struct tern_comm_config config = config_of(1000);
    struct tern_shrink_args args = TERN_SHRINK_ARGS_INIT;
    struct tern_comm *comms[2], *shrunk = NULL;
    (void)t;
    OK(tern_comm_open_all(2, &config, comms));
    REFUSES(tern_comm_shrink(comms[0], NULL, NULL, &shrunk), TERN_UNSUPPORTED,
            "the 2 ranks are one process's");
    REFUSES(tern_comm_shrink(NULL, NULL, NULL, &shrunk), TERN_INVALID_ARGUMENT, "comm");
    REFUSES(tern_comm_shrink(comms[0], NULL, NULL, NULL), TERN_INVALID_ARGUMENT, "shrunk");
    args.min_ranks = 3;
    REFUSES(tern_comm_shrink(comms[0], &args, NULL, &shrunk), TERN_INVALID_ARGUMENT,
            "min_ranks is 3, of 2 ranks");
    args.min_ranks = 0;
    args.whole_domains = 2;
    REFUSES(tern_comm_shrink(comms[0], &args, NULL, &shrunk), TERN_INVALID_ARGUMENT, "whole_domains is 2");
    args.whole_domains = 0;
    args.reserved = 1;
    REFUSES(tern_comm_shrink(comms[0], &args, NULL, &shrunk), TERN_INVALID_ARGUMENT, "reserved is 1");
    CHECK(shrunk == NULL, "outputs of a failure are untouched");
    tern_comm_close(comms[0]);
    tern_comm_close(comms[1]);
    OK(tern_comm_open_all(1, &config, comms));
    OK(tern_comm_shrink(comms[0], NULL, NULL, &shrunk));
    CHECK(tern_comm_size(shrunk) == 1, "one rank shrinks to itself");
    tern_comm_close(shrunk);
    tern_comm_close(comms[0]);
    return 0;
}

/* Without a configuration of its own the new communicator is opened as the old one was. */
static int same_config(struct test *t)
{
    struct tern_comm_config config = config_of(12345);
    struct tern_comm *comm, *shrunk;
    (void)t;
    config.heap_max_bytes = 2 * config.heap_bytes;
    config.cpu_seed = 77;
    OK(tern_comm_open_all(1, &config, &comm));
    OK(tern_comm_shrink(comm, NULL, NULL, &shrunk));
    CHECK(shrunk->cpu_seed == 77, "cpu_seed is %llu", (unsigned long long)shrunk->cpu_seed);
    CHECK(shrunk->timeout_ms == 12345, "timeout_ms is %u", shrunk->timeout_ms);
    CHECK(shrunk->machine->info.kind == TERN_MACHINE_CPU, "another machine");
    CHECK(shrunk->heap->bytes == comm->heap->bytes && shrunk->heap->max_bytes == comm->heap->max_bytes,
          "a window of %llu bytes, to grow to %llu", (unsigned long long)shrunk->heap->bytes,
          (unsigned long long)shrunk->heap->max_bytes);
    tern_comm_close(shrunk);
    tern_comm_close(comm);
    return 0;
}

/* ---- One rank of somebody's job ---- */

/* Six ranks on three hosts, of which the first is cut off by whoever runs this: the others go on, it may not
 * do so. */
static int one_rank(void)
{
    static const int left[] = {2, 3, 4, 5};
    struct tern_comm_config config = config_of(2000);
    struct tern_shrink_args args = patient(3000);
    struct tern_comm *comm, *shrunk = NULL;
    int32_t old_ranks[PAIRS];
    struct tern_id id;
    int rank, num_ranks;
    double end = test_seconds() + 40;
    enum tern_status status;
    args.min_ranks = PAIRS / 2 + 1;
    OK(tern_id_from_environment(&id, &rank, &num_ranks));
    CHECK(num_ranks == PAIRS, "%d ranks", num_ranks);
    OK(tern_comm_open(&id, rank, num_ranks, &config, &comm));
    printf("# rank %d goes on\n", rank);
    fflush(stdout);
    while ((status = tern_comm_barrier(comm)) == TERN_OK && test_seconds() < end) {
        nap_ms(20);
    }
    CHECK(status == TERN_TIMEOUT || status == TERN_DISCONNECTED, "%s", tern_status_string(status));
    if (rank < 2) {
        REFUSES(tern_comm_shrink(comm, &args, old_ranks, &shrunk), TERN_TIMEOUT,
                "ranks 2, 3, 4, 5 did not arrive");
    } else {
        OK(tern_comm_shrink(comm, &args, old_ranks, &shrunk));
        CHECK(tern_comm_size(shrunk) == 4 && memcmp(old_ranks, left, sizeof left) == 0, "%d ranks are left",
              tern_comm_size(shrunk));
        OK(tern_comm_barrier(shrunk));
    }
    tern_comm_close(shrunk);
    tern_comm_close(comm);
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    if (getenv("TERN_RANK") != NULL) {
        return one_rank() == TEST_PASSED ? 0 : 1;
    }
    test_run(&t, "a killed rank", killed);
    test_run(&t, "killed rank 0, to which all were connected", killed_root);
    test_run(&t, "a stopped rank 0 costs the time for silent ranks, and does not go on alone", stopped);
    test_run(&t, "a domain that lost a rank is left out", whole_domains);
    test_run(&t, "a rank that has no descriptor left fails, and does not go on alone", few_descriptors);
    test_run(&t, "a rank out of reach is waited for, and found again", out_of_reach);
    test_run(&t, "ranks that close, twice", leavers);
    test_run(&t, "a closed rank's port is given to those of the call", same_port);
    test_run(&t, "ranks come one after the other, the lowest last", one_by_one);
    test_run(&t, "a call comes in two parts", halved_call);
    test_run(&t, "fewer are left than must be", too_few);
    test_run(&t, "many silent ranks cost little more than one", many_silent);
    test_run(&t, "refusals, and one rank", refusals);
    test_run(&t, "the new one is opened as the old one was", same_config);
    test_run(&t, "nothing is left behind", nothing_left);
    return test_end(&t);
}
