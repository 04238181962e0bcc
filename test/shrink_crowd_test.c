/* SPDX-License-Identifier: Apache-2.0
 *
 * Many callers at a door while ranks shrink: more than it lets in at once, silent ones among them, and a
 * rank that closes what it has not heard. Nobody who calls and lives is taken for lost. */
#include "comm/lobby.h"
#include "comm/id.h"
#include "comm_scene.h"
#include "procs.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PATIENCE_MS = 20000, STRANGERS = 3 * TERN_MOST_GUESTS / 2 };

static const struct frame knock = {.type = 5 /* KNOCK */};

static int call_own_door(struct tern_comm *comm)
{
    struct id_fields fields;
    struct address a;
    return terni_id_read(&comm->cards[comm->rank].door, &fields, &a) == TERN_OK ? call_port(&a) : -1;
}

/* They stay; every other one has knocked. */
static int call_in_numbers(struct tern_comm *comm, int *fds)
{
    for (int i = 0; i < STRANGERS; i++) {
        fds[i] = call_own_door(comm);
        CHECK(fds[i] >= 0, "stranger %d cannot connect", i);
        CHECK(i % 2 == 0 || send(fds[i], &knock, sizeof knock, MSG_NOSIGNAL) == sizeof knock, "no knock");
    }
    return 0;
}

/* Accepts the next caller at the door, once its call is there, and closes: the caller finds a reset. */
static int turn_away(struct tern_comm *comm)
{
    struct pollfd caller = {.fd = comm->door_fd, .events = POLLIN};
    CHECK(poll(&caller, 1, PATIENCE_MS) == 1, "nobody calls");
    caller.fd = accept(comm->door_fd, NULL, NULL);
    CHECK(caller.fd >= 0 && poll(&caller, 1, PATIENCE_MS) == 1, "a caller says nothing");
    close(caller.fd);
    return 0;
}

static int shrinks_to(struct tern_comm *comm, int num)
{
    struct tern_shrink_args args = TERN_SHRINK_ARGS_INIT;
    struct tern_comm *shrunk = NULL;
    int32_t old_ranks[2];
    double begin = test_seconds();
    args.timeout_ms = PATIENCE_MS;
    OK(tern_comm_shrink(comm, &args, old_ranks, &shrunk));
    CHECK(tern_comm_size(shrunk) == num, "rank %d: %d ranks are left, not %d", comm->rank,
          tern_comm_size(shrunk), num);
    CHECK(test_seconds() - begin < PATIENCE_MS * 1e-3 / 2, "rank %d: it took %.1f s", comm->rank,
          test_seconds() - begin);
    OK(tern_comm_barrier(shrunk));
    tern_comm_close(shrunk);
    return 0;
}

static int run_two(int (*body)(struct actor *a))
{
    struct actor actors[max_ranks];
    struct scene scene;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    return run_threads(&scene, actors, 2, body);
}

static int open_two(struct actor *a, struct tern_comm **comm)
{
    struct tern_comm_config config = config_of(PATIENCE_MS);
    OK(tern_comm_open(&a->scene->id, a->rank, 2, &config, comm));
    return 0;
}

/* Rank 1's call is the first in the queue of rank 0's door, and more come than the house holds. */
static int first_actor(struct actor *a)
{
    int fds[STRANGERS], result;
    struct tern_comm *comm;
    PASS(open_two(a, &comm));
    if (a->rank == 0) {
        struct pollfd caller = {.fd = comm->door_fd, .events = POLLIN};
        CHECK(poll(&caller, 1, PATIENCE_MS) == 1, "rank 1 does not call");
        PASS(call_in_numbers(comm, fds));
    }
    result = shrinks_to(comm, 2);
    for (int i = 0; a->rank == 0 && i < STRANGERS; i++) {
        close(fds[i]);
    }
    tern_comm_close(comm);
    return result;
}

static int first_of_many(struct test *t)
{
    (void)t;
    return run_two(first_actor);
}

/* Rank 1 calls when the house is full of those who say nothing, or nothing more. */
static int last_actor(struct actor *a)
{
    int fds[STRANGERS], result;
    struct tern_comm *comm;
    PASS(open_two(a, &comm));
    if (a->rank == 0) {
        PASS(call_in_numbers(comm, fds));
    }
    pthread_barrier_wait(&a->scene->barrier);
    result = shrinks_to(comm, 2);
    for (int i = 0; a->rank == 0 && i < STRANGERS; i++) {
        close(fds[i]);
    }
    tern_comm_close(comm);
    return result;
}

static int last_of_many(struct test *t)
{
    (void)t;
    return run_two(last_actor);
}

/* Rank 0's door closes on rank 1 before it has heard it, and then hears it. */
static int unheard_actor(struct actor *a)
{
    struct tern_comm *comm;
    int result;
    PASS(open_two(a, &comm));
    if (a->rank == 0) {
        PASS(turn_away(comm));
    }
    result = shrinks_to(comm, 2);
    tern_comm_close(comm);
    return result;
}

static int unheard(struct test *t)
{
    (void)t;
    return run_two(unheard_actor);
}

/* Who listens at rank 0's door closes whatever comes: that is no rank, and nobody waits for it. */
static int never_heard_actor(struct actor *a)
{
    struct tern_comm *comm;
    int result;
    PASS(open_two(a, &comm));
    if (a->rank == 0) {
        PASS(turn_away(comm));
        result = turn_away(comm);
    } else {
        result = shrinks_to(comm, 1);
    }
    pthread_barrier_wait(&a->scene->barrier);
    tern_comm_close(comm);
    return result;
}

static int never_heard(struct test *t)
{
    (void)t;
    return run_two(never_heard_actor);
}

/* ---- Few descriptors, for many ranks ---- */

enum { MANY = 16 };

/* All go on, each after it has done what `user` points to. */
struct few {
    int (*prepare)(int rank);
};

static int few_body(int rank, struct procs_page *page, void *user)
{
    struct tern_comm_config config = config_of(PATIENCE_MS);
    struct tern_shrink_args args = TERN_SHRINK_ARGS_INIT;
    struct tern_comm *comm, *shrunk;
    setenv("TERN_DOMAIN_SIZE", "2", 1);
    args.timeout_ms = PATIENCE_MS;
    OK(tern_comm_open(&page->id, rank, MANY, &config, &comm));
    OK(tern_comm_barrier(comm));
    PASS(((const struct few *)user)->prepare(rank));
    OK(tern_comm_shrink(comm, &args, NULL, &shrunk));
    CHECK(tern_comm_size(shrunk) == MANY, "rank %d: %d ranks are left", rank, tern_comm_size(shrunk));
    OK(tern_comm_barrier(shrunk));
    tern_comm_close(shrunk);
    tern_comm_close(comm);
    return 0;
}

/* Rank 1 may have as many descriptors as two for each rank: it needs few of them, and poll takes no more
 * entries than that. */
static int limit_one(int rank)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit: %m");
    limit.rlim_cur = rank == 1 ? 2 * MANY : limit.rlim_cur;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit: %m");
    return 0;
}

static int many_ranks(struct test *t)
{
    struct few few = {limit_one};
    (void)t;
    return procs_run(MANY, -1, 60, few_body, &few);
}

/* Rank 0 has knocked at all doors when the others call, one after the other: one descriptor for each rank is
 * enough, and a few. */
static int limit_leader(int rank)
{
    if (rank == 0) {
        return leave_fds(MANY + 8);
    }
    poll(NULL, 0, 200 + 50 * rank);
    return 0;
}

static int leader(struct test *t)
{
    struct few few = {limit_leader};
    (void)t;
    return procs_run(MANY, -1, 60, few_body, &few);
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    /* Processes first: their parent must not have started a machine. */
    test_run(&t, "a rank may have two descriptors for each rank", many_ranks);
    test_run(&t, "a leader needs one descriptor for each rank", leader);
    test_run(&t, "a call before more than the house holds", first_of_many);
    test_run(&t, "a call after more than the house holds", last_of_many);
    test_run(&t, "a door closes on a call that it has not heard", unheard);
    test_run(&t, "a door closes on every call", never_heard);
    return test_end(&t);
}
