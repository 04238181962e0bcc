/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that come late. Past everybody's grace the exchange has failed, and the late one hears that it is the
 * one. A rank 0 that comes before that finds what the others have said in its sockets, their questions who is
 * late among it: who has come is not named, and where all have, all is well. */
#include "comm/id.h"
#include "comm/lobby.h"
#include "comm_scene.h"

#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- Past the grace ---- */

static int refused_earlier(struct tern_comm *comm)
{
    REFUSES(tern_comm_barrier(comm), TERN_TIMEOUT, "the communicator failed earlier: rank 3");
    return 0;
}

static int late_at_barrier_actor(struct actor *a)
{
    struct tern_comm_config config = config_of(deadline_ms);
    struct tern_comm *comm = a->scene->comms[a->rank];
    int late = a->scene->timeout_ms == 0 ? 0 : a->num_ranks - 1, result = 0;
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
    for (int i = 0; i < 2 && late != 0 && result == 0; i++) {
        result = refused_earlier(comm);
    }
    tern_comm_close(comm);
    return result;
}

/* The late rank is told that it is the one. */
static int same_but_for_late(const struct actor *actors)
{
    PASS(same_sentence(actors, 3, TERN_TIMEOUT, "rank 3 did not arrive within 300 ms"));
    return same_sentence(actors + 3, 1, TERN_TIMEOUT, "rank 3 (this one) did not arrive within 300 ms");
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
    return same_but_for_late(actors);
}

static int late_root_at_barrier(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    PASS(run_threads(&scene, actors, 4, late_at_barrier_actor));
    PASS(same_sentence(actors, 1, TERN_TIMEOUT, "rank 0 (this one) did not arrive within 300 ms"));
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
    return same_but_for_late(actors);
}

/* ---- Rank 0 within the grace: at a barrier ---- */

/* Within the grace that the others give it after their deadline. */
enum { late_ms = 200, open_deadline_ms = 1000 };
/* What a scene's timeout_ms says of an opening. */
enum { ONE_IS_ABSENT = 1, TOO_LATE = 2 };

/* The last rank is later still if the scene has a deadline. */
static int barrier_actor(struct actor *a)
{
    struct tern_comm_config config = config_of(20000);
    int is_absent = a->scene->timeout_ms != 0 && a->rank == a->num_ranks - 1;
    struct tern_comm *comm;
    OK(tern_comm_open(&a->scene->id, a->rank, a->num_ranks, &config, &comm));
    comm->timeout_ms = deadline_ms;
    pthread_barrier_wait(&a->scene->barrier);
    nap_ms(a->rank == 0 ? deadline_ms + late_ms : is_absent ? deadline_ms + 1700 : 0);
    note_status(a, tern_comm_barrier(comm));
    if (a->scene->timeout_ms == 0) {
        CHECK(a->status == TERN_OK, "rank %d: \"%s\"", a->rank, a->text);
        OK(tern_comm_barrier(comm));
    }
    pthread_barrier_wait(&a->scene->barrier);
    tern_comm_close(comm);
    return 0;
}

static int at_barrier(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    return run_threads(&scene, actors, 4, barrier_actor);
}

static int one_is_absent(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    scene.timeout_ms = 1;
    OK(tern_id_create("127.0.0.1", &scene.id));
    PASS(run_threads(&scene, actors, 4, barrier_actor));
    return same_but_for_late(actors);
}

/* ---- Rank 0 within the grace: at the opening ---- */

/* Rank 1 calls, then as many who say nothing as fill the house with it, then rank 2 unless it is absent:
 * when rank 0 comes it has seated rank 1, and may read its question, before it lets rank 2 in. */
static int open_actor(struct actor *a)
{
    struct tern_comm_config config = config_of(open_deadline_ms);
    int fds[TERN_MOST_GUESTS - 1], num = 0;
    struct tern_comm *comm = NULL;
    struct id_fields f;
    struct address where;
    if (a->rank == 0) {
        nap_ms(open_deadline_ms + (a->scene->timeout_ms == TOO_LATE ? 1000 + 700 : late_ms));
    }
    if (a->rank == 2) {
        OK(terni_id_read(&a->scene->id, &f, &where));
        nap_ms(100);
        for (; num < TERN_MOST_GUESTS - 1; num++) {
            fds[num] = call_port(&where);
        }
    }
    if (a->rank != 2 || a->scene->timeout_ms != ONE_IS_ABSENT) {
        note_status(a, tern_comm_open(&a->scene->id, a->rank, a->num_ranks, &config, &comm));
    } else {
        nap_ms(open_deadline_ms + late_ms + 700);
    }
    while (num > 0) {
        close(fds[--num]);
    }
    tern_comm_close(comm);
    return 0;
}

static int at_open(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    PASS(run_threads(&scene, actors, 3, open_actor));
    for (int r = 0; r < 3; r++) {
        CHECK(actors[r].status == TERN_OK, "rank %d: \"%s\"", r, actors[r].text);
    }
    return 0;
}

static int one_never_opens(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    scene.timeout_ms = ONE_IS_ABSENT;
    OK(tern_id_create("127.0.0.1", &scene.id));
    PASS(run_threads(&scene, actors, 3, open_actor));
    return same_sentence(actors, 2, TERN_TIMEOUT, "rank 2 did not arrive within 1000 ms");
}

/* Past the grace as well: the others have gone, and have left word. */
static int too_late_to_open(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    scene.timeout_ms = TOO_LATE;
    OK(tern_id_create("127.0.0.1", &scene.id));
    PASS(run_threads(&scene, actors, 3, open_actor));
    for (int r = 1; r < 3; r++) {
        CHECK(actors[r].status == TERN_TIMEOUT, "rank %d: \"%s\"", r, actors[r].text);
    }
    return same_sentence(actors, 1, TERN_TIMEOUT, "rank 0 (this one) did not arrive within 1000 ms");
}

/* Of ranks that have not come poll is asked nothing: it takes as many entries as there may be descriptors. */
static int more_ranks_than_descriptors(struct test *t)
{
    struct tern_comm_config config = config_of(300);
    struct tern_comm *comm = NULL;
    struct rlimit old, few;
    struct tern_id id;
    enum tern_status status;
    (void)t;
    OK(tern_id_create("127.0.0.1", &id));
    CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0, "no limit");
    few = old;
    few.rlim_cur = 64;
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0, "no other limit");
    status = tern_comm_open(&id, 0, 300, &config, &comm);
    setrlimit(RLIMIT_NOFILE, &old);
    CHECK(status == TERN_TIMEOUT && strstr(tern_last_error(), "did not arrive within 300 ms") != NULL,
          "\"%s\"", tern_last_error());
    return 0;
}

/* ---- A port that nobody listens at yet ---- */

/* The next caller of this port is given the port itself, as a system may that chooses among all. */
static _Atomic int port_given, times_given;

int connect(int fd, const struct sockaddr *a, socklen_t bytes)
{
    struct sockaddr_in v4;
    int port = atomic_load(&port_given);
    if (port != 0 && a->sa_family == AF_INET && bytes == sizeof v4) {
        memcpy(&v4, a, sizeof v4);
        if (ntohs(v4.sin_port) == port && bind(fd, a, bytes) == 0) {
            atomic_store(&port_given, 0);
            atomic_fetch_add(&times_given, 1);
        }
    }
    return (int)syscall(SYS_connect, fd, a, bytes);
}

/* Rank 1 calls the agreed port before rank 0 is there, and first reaches itself. */
static int self_actor(struct actor *a)
{
    nap_ms(a->rank == 0 ? late_ms : 0);
    return open_and_check(a);
}

static int self_connection(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    struct id_fields f;
    struct address where;
    char text[64];
    int fd;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id)); /* to learn a free port */
    OK(terni_id_read(&scene.id, &f, &where));
    OK(terni_id_take_listener(&scene.id, &fd));
    close(fd);
    snprintf(text, sizeof text, "127.0.0.1:%u/job", f.port);
    OK(tern_id_from_address(text, &scene.id));
    atomic_store(&port_given, f.port);
    PASS(run_threads(&scene, actors, 2, self_actor));
    CHECK(atomic_load(&times_given) == 1, "the port was given %d times", atomic_load(&times_given));
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "a rank is too late at a barrier", late_at_barrier);
    test_run(&t, "rank 0 is too late at a barrier", late_root_at_barrier);
    test_run(&t, "a rank of one process is too late at a barrier", late_on_board);
    test_run(&t, "rank 0 is late at a barrier", at_barrier);
    test_run(&t, "rank 0 is late at a barrier, and one more is", one_is_absent);
    test_run(&t, "rank 0 is late to open, with a crowd at its door", at_open);
    test_run(&t, "rank 0 is late to open, and one more is", one_never_opens);
    test_run(&t, "rank 0 is too late to open", too_late_to_open);
    test_run(&t, "more ranks to wait for than descriptors", more_ranks_than_descriptors);
    test_run(&t, "a caller of rank 0's port, before rank 0, reaches itself", self_connection);
    return test_end(&t);
}
