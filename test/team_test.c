/* SPDX-License-Identifier: Apache-2.0
 *
 * Teams: who is in them and by which number, for random communicators, domains and splits; barriers that hold
 * back their own members and nobody else, between threads and between processes; late ranks, ranks that
 * leave, ranks that cannot open. One file, because all cases are one life of a team, from its members to its
 * end, on the same few actors. */
#include "comm_scene.h"
#include "procs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- Membership ---- */

static void close_teams(struct tern_team **teams, int num)
{
    for (int r = 0; r < num; r++) {
        tern_team_close(teams[r]);
    }
}

static void close_comms(struct tern_comm **comms, int num)
{
    for (int r = 0; r < num; r++) {
        tern_comm_close(comms[r]);
    }
}

/* Whether rank q of the communicator is in rank r's team of this kind, one host, domains of `size`. */
static int belongs(int kind, int r, int q, int size)
{
    switch (kind) {
    case TERN_TEAM_DOMAIN:
        return r / size == q / size;
    case TERN_TEAM_RAIL:
        return r % size == q % size;
    default:
        return 1;
    }
}

/* The team has exactly the ranks of is_member, in ascending order, and translation goes both ways. */
static int check_members(const struct tern_team *team, int self, const unsigned char *is_member,
                         int num_ranks)
{
    int next = 0;
    for (int q = 0; q < num_ranks; q++) {
        CHECK(tern_team_translate(NULL, q, team) == (is_member[q] ? next : -1), "rank %d is %d, not %d", q,
              tern_team_translate(NULL, q, team), is_member[q] ? next : -1);
        if (is_member[q]) {
            CHECK(tern_team_translate(team, next, NULL) == q, "member %d is rank %d, not %d", next,
                  tern_team_translate(team, next, NULL), q);
            CHECK(tern_team_translate(team, next, team) == next, "member %d is itself", next);
            CHECK(q != self || tern_team_rank(team) == next, "rank %d has number %d, not %d", q,
                  tern_team_rank(team), next);
            next++;
        }
    }
    CHECK(tern_team_size(team) == next, "size %d, not %d", tern_team_size(team), next);
    CHECK(tern_team_translate(team, next, NULL) == -1 && tern_team_translate(team, -1, NULL) == -1,
          "numbers outside the team");
    return 0;
}

static int check_kinds(struct tern_comm **comms, int num_ranks, int domain_size, struct tern_team **teams)
{
    for (int kind = TERN_TEAM_WORLD; kind <= TERN_TEAM_RAIL; kind++) {
        OK(tern_team_open_all(num_ranks, comms, kind, teams));
        for (int r = 0; r < num_ranks; r++) {
            unsigned char is_member[max_ranks];
            for (int q = 0; q < num_ranks; q++) {
                is_member[q] = (unsigned char)belongs(kind, r, q, domain_size);
            }
            PASS(check_members(teams[r], r, is_member, num_ranks));
        }
        if (kind != TERN_TEAM_RAIL) { /* the caller goes on with that */
            close_teams(teams, num_ranks);
            memset(teams, 0, (size_t)num_ranks * sizeof *teams);
        }
    }
    return 0;
}

/* Splits of splits, each of random ranks of the one before, which closes first. */
static int check_splits(struct rng *r, struct tern_comm **comms, int num_ranks, struct tern_team **teams)
{
    unsigned char is_member[max_ranks], is_next[max_ranks];
    int size = num_ranks;
    memset(is_member, 1, sizeof is_member);
    close_teams(teams, num_ranks);
    memset(teams, 0, (size_t)num_ranks * sizeof *teams);
    OK(tern_team_open_all(num_ranks, comms, TERN_TEAM_WORLD, teams));
    while (size > 1 || rng_one_in(r, 2)) {
        struct tern_team *parents[max_ranks];
        int start = (int)rng_below(r, (uint32_t)size), stride = (int)rng_between(r, 1, 3);
        int most = (size - 1 - start) / stride + 1, count = (int)rng_between(r, 1, (uint32_t)most),
            number = 0;
        memcpy(parents, teams, sizeof parents);
        memset(is_next, 0, sizeof is_next);
        for (int q = 0; q < num_ranks; q++) {
            int i = is_member[q] ? number++ : -1;
            is_next[q] = i >= start && (i - start) % stride == 0 && (i - start) / stride < count;
        }
        REFUSES(tern_team_split_all(num_ranks, parents, start, stride, most + 1, teams),
                TERN_INVALID_ARGUMENT, "are not all among");
        OK(tern_team_split_all(num_ranks, parents, start, stride, count, teams));
        close_teams(parents, num_ranks);
        for (int q = 0; q < num_ranks; q++) {
            CHECK((teams[q] != NULL) == is_next[q], "rank %d has a team or none", q);
            PASS(teams[q] == NULL ? 0 : check_members(teams[q], q, is_next, num_ranks));
        }
        memcpy(is_member, is_next, sizeof is_member);
        size = count;
    }
    return 0;
}

static int membership(struct test *t)
{
    struct tern_comm_config config = config_of(20000);
    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 60); seed++) {
        struct rng r = {seed};
        struct tern_comm *comms[max_ranks];
        struct tern_team *teams[max_ranks] = {NULL};
        int num_ranks = (int)rng_between(&r, 1, max_ranks), size = (int)rng_between(&r, 1, 6), result;
        enum tern_status status;
        char text[16];
        snprintf(text, sizeof text, "%d", size);
        setenv("TERN_DOMAIN_SIZE", text, 1);
        status = tern_comm_open_all(num_ranks, &config, comms);
        unsetenv("TERN_DOMAIN_SIZE");
        OK(status);
        result = check_kinds(comms, num_ranks, size, teams);
        result = result ? result : check_splits(&r, comms, num_ranks, teams);
        close_teams(teams, num_ranks);
        close_comms(comms, num_ranks);
        CHECK(result == 0, "seed %llu: %d ranks, domains of %d", (unsigned long long)seed, num_ranks, size);
    }
    return 0;
}

/* ---- Barriers ---- */

enum { num_laps = 30 };

/* Where ranks count the laps that they have begun, visible to all of them. */
struct track {
    int laps[4][max_ranks];
};

/* After a barrier every member has begun this lap, and none is more than one ahead. Relaxed: what orders the
 * counts is the barrier. */
static int run_laps(struct tern_team *team, int *laps, int self)
{
    for (int lap = 1; lap <= num_laps; lap++) {
        __atomic_store_n(&laps[self], lap, __ATOMIC_RELAXED);
        OK(tern_team_barrier(team));
        for (int i = 0; i < tern_team_size(team); i++) {
            int rank = tern_team_translate(team, i, NULL);
            int seen = __atomic_load_n(&laps[rank], __ATOMIC_RELAXED);
            CHECK(seen == lap || seen == lap + 1, "rank %d is in lap %d, rank %d in %d", self, lap, rank,
                  seen);
        }
    }
    return 0;
}

static int run_rest(struct tern_team *team)
{
    int rank = tern_team_rank(team), size = tern_team_size(team);
    struct tern_team *rest = NULL;
    OK(tern_team_split(team, 1, 1, size - 1, &rest));
    CHECK(tern_team_rank(rest) == rank - 1 && tern_team_size(rest) == (rank == 0 ? 0 : size - 1),
          "number %d of %d", tern_team_rank(rest), tern_team_size(rest));
    OK(rest != NULL ? tern_team_barrier(rest) : TERN_OK);
    tern_team_close(rest);
    return 0;
}

/* Even ranks first run on a team of their own while the odd ones wait in a barrier of theirs, so nobody waits
 * for a rank that is in no team with it. */
static int race(struct tern_comm *comm, struct track *track)
{
    struct tern_team *teams[4] = {NULL}, *half = NULL;
    int self = tern_comm_rank(comm), n = tern_comm_size(comm), result = 0;
    for (int kind = TERN_TEAM_WORLD; kind <= TERN_TEAM_RAIL; kind++) {
        OK(tern_team_open(comm, kind, &teams[kind]));
    }
    OK(tern_team_split(teams[TERN_TEAM_WORLD], 0, 2, (n + 1) / 2, &half));
    CHECK((half != NULL) == (self % 2 == 0), "rank %d of the even ones", self);
    if (half != NULL) { /* and a split of that, without its first rank, whose numbers are others in each */
        PASS(run_laps(half, track->laps[3], self));
        PASS(n < 4 ? 0 : run_rest(half));
        tern_team_close(half);
    }
    for (int i = 0; i < 3 && result == 0; i++) {
        static const int kinds[] = {TERN_TEAM_DOMAIN, TERN_TEAM_RAIL, TERN_TEAM_WORLD};
        result = run_laps(teams[kinds[i]], track->laps[i], self);
    }
    OK(tern_comm_barrier(comm));
    close_teams(teams, 4);
    return result;
}

static int race_actor(struct actor *a)
{
    static struct track track;
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm = a->scene->comms[a->rank];
    int result;
    if (a->rank == 0) {
        memset(&track, 0, sizeof track);
    }
    pthread_barrier_wait(&a->scene->barrier);
    if (comm == NULL) {
        OK(tern_comm_open(&a->scene->id, a->rank, a->num_ranks, &config, &comm));
    }
    result = race(comm, &track);
    tern_comm_close(comm);
    return result;
}

static int threads(struct test *t)
{
    static const int sizes[] = {1, 2, 5, 8};
    struct actor actors[max_ranks];
    int result = 0;
    (void)t;
    setenv("TERN_DOMAIN_SIZE", "3", 1);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && result == 0; i++) {
        struct tern_comm_config config = config_of(20000);
        struct scene scene;
        memset(&scene, 0, sizeof scene);
        OK(tern_id_create("127.0.0.1", &scene.id));
        result = run_threads(&scene, actors, sizes[i], race_actor);
        memset(&scene, 0, sizeof scene);
        OK(tern_comm_open_all(sizes[i], &config, scene.comms));
        result = result ? result : run_threads(&scene, actors, sizes[i], race_actor);
    }
    unsetenv("TERN_DOMAIN_SIZE");
    return result;
}

static int process_body(int rank, struct procs_page *page, void *user)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    int fds;
    setenv("TERN_DOMAIN_SIZE", "2", 1);
    OK(tern_comm_open(&page->id, rank, 5, &config, &comm));
    fds = num_fds();
    PASS(race(comm, (struct track *)user));
    CHECK(num_fds() == fds, "%d descriptors after teams, %d before", num_fds(), fds);
    tern_comm_close(comm);
    return 0;
}

static int processes(struct test *t)
{
    struct track *track =
        (struct track *)mmap(NULL, sizeof *track, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int result;
    (void)t;
    CHECK(track != MAP_FAILED, "no page to share");
    result = procs_run(5, -1, 60, process_body, track);
    munmap(track, sizeof *track);
    return result;
}

/* ---- Trouble ---- */

enum { num_odd = 3, num_all = 6 };

/* Ranks 1, 3 and 5 are a team, of which `late` comes late to a barrier. The communicator never notices. */
static int late_actor(struct actor *a)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm = a->scene->comms[a->rank];
    struct tern_team *world, *odd = NULL;
    int late = (int)a->scene->timeout_ms;
    if (comm == NULL) {
        OK(tern_comm_open(&a->scene->id, a->rank, a->num_ranks, &config, &comm));
    }
    OK(tern_team_open(comm, TERN_TEAM_WORLD, &world));
    OK(tern_team_split(world, 1, 2, num_odd, &odd));
    comm->timeout_ms = deadline_ms; /* opening may take longer under a sanitizer */
    if (odd != NULL) {
        if (a->rank == late) {
            nap_ms(deadline_ms + 1700); /* past everybody's grace */
        }
        note_status(a, tern_team_barrier(odd));
        REFUSES(tern_team_barrier(odd), TERN_TIMEOUT, "the team failed earlier: rank");
    }
    comm->timeout_ms = 20000;
    OK(tern_comm_barrier(comm));
    OK(tern_team_barrier(world));
    tern_team_close(odd);
    OK(tern_team_split(world, 1, 2, num_odd, &odd));
    OK(odd != NULL ? tern_team_barrier(odd) : TERN_OK);
    tern_team_close(odd);
    tern_team_close(world);
    tern_comm_close(comm);
    return 0;
}

static int late_member(int late, int on_board)
{
    struct tern_comm_config config = config_of(20000);
    struct actor actors[max_ranks];
    struct scene scene;
    char others[64], own[64];
    memset(&scene, 0, sizeof scene);
    scene.timeout_ms = (uint32_t)late;
    if (on_board) {
        OK(tern_comm_open_all(num_all, &config, scene.comms));
    } else {
        OK(tern_id_create("127.0.0.1", &scene.id));
    }
    PASS(run_threads(&scene, actors, num_all, late_actor));
    snprintf(others, sizeof others, "rank %d did not arrive within 300 ms", late);
    snprintf(own, sizeof own, "rank %d (this one) did not arrive within 300 ms", late);
    for (int r = 1; r < num_all; r += 2) {
        PASS(same_sentence(&actors[r], 1, TERN_TIMEOUT, r == late ? own : others));
    }
    return 0;
}

static int late_ranks(struct test *t)
{
    (void)t;
    PASS(late_member(5, 1));
    PASS(late_member(1, 1));
    PASS(late_member(5, 0));
    return late_member(3, 0);
}

static int late_leader(struct test *t)
{
    (void)t;
    return late_member(1, 0);
}

static int leaving_actor(struct actor *a)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm = a->scene->comms[a->rank];
    struct tern_team *team;
    if (comm == NULL) {
        OK(tern_comm_open(&a->scene->id, a->rank, a->num_ranks, &config, &comm));
    }
    OK(tern_team_open(comm, TERN_TEAM_RAIL, &team)); /* ranks 0, 2 and 4, and the others */
    if (a->rank >= 4) {
        tern_team_close(team);
    } else {
        note_status(a, tern_team_barrier(team));
        tern_team_close(team);
    }
    OK(tern_comm_barrier(comm));
    tern_comm_close(comm);
    return 0;
}

static int leaving(struct test *t)
{
    (void)t;
    for (int on_board = 0; on_board < 2; on_board++) {
        struct tern_comm_config config = config_of(20000);
        struct actor actors[max_ranks];
        struct scene scene;
        int result;
        memset(&scene, 0, sizeof scene);
        setenv("TERN_DOMAIN_SIZE", "2", 1);
        OK(on_board ? tern_comm_open_all(num_all, &config, scene.comms)
                    : tern_id_create("127.0.0.1", &scene.id));
        result = run_threads(&scene, actors, num_all, leaving_actor);
        unsetenv("TERN_DOMAIN_SIZE");
        PASS(result);
        for (int r = 0; r < 4; r++) {
            PASS(same_sentence(&actors[r], 1, TERN_DISCONNECTED,
                               r % 2 == 0 ? "rank 4 closed its connection" : "rank 5 closed its connection"));
        }
    }
    return 0;
}

static int disagreeing_actor(struct actor *a)
{
    struct tern_comm *comm = a->scene->comms[a->rank];
    struct tern_team *world, *team = NULL;
    OK(tern_team_open(comm, TERN_TEAM_WORLD, &world));
    REFUSES(tern_team_split(world, a->rank == 2 ? 1 : 0, 1, 2, &team), TERN_MISMATCH,
            "rank 2 asks for kind -1, start 1, stride 1, size 2 where rank 0 asks for kind -1, start 0");
    REFUSES(tern_team_open(comm, a->rank == 2 ? TERN_TEAM_RAIL : TERN_TEAM_NODE, &team), TERN_MISMATCH,
            "rank 2 asks for kind 3");
    REFUSES(tern_team_open(comm, 4, &team), TERN_INVALID_ARGUMENT, "kind 4 is no enum tern_team_kind");
    CHECK(team == NULL, "the output of a failure is untouched");
    tern_comm_close(comm); /* refused: a team is open on it */
    OK(tern_team_barrier(world));
    tern_team_close(world);
    return 0;
}

static int bad_calls(struct tern_comm **comms)
{
    static const int splits[][3] = {{-1, 1, 1},        {0, 0, 1},         {0, -1, 1},       {0, 1, 0},
                                    {0, 1, 5},         {4, 1, 1},         {1, 2, 3},        {0, 4, 2},
                                    {0, INT32_MAX, 2}, {0, 1, INT32_MAX}, {0, INT32_MAX, 3}};
    struct tern_team *worlds[4], *teams[4] = {NULL};
    REFUSES(tern_team_open(NULL, 0, teams), TERN_INVALID_ARGUMENT, "comm is NULL");
    REFUSES(tern_team_open_all(4, comms, 0, NULL), TERN_INVALID_ARGUMENT, "teams is NULL");
    REFUSES(tern_team_open_all(3, comms, 0, teams), TERN_INVALID_ARGUMENT, "comms[0] is rank 0 of 4");
    REFUSES(tern_team_open_all(4, comms, -1, teams), TERN_INVALID_ARGUMENT, "kind -1");
    REFUSES(tern_team_split(NULL, 0, 1, 1, teams), TERN_INVALID_ARGUMENT, "parent is NULL");
    REFUSES(tern_team_barrier(NULL), TERN_INVALID_ARGUMENT, "team is NULL");
    CHECK(tern_team_rank(NULL) == -1 && tern_team_size(NULL) == 0, "no team");
    CHECK(tern_team_translate(NULL, 3, NULL) == 3 && tern_team_translate(NULL, 4, NULL) == 4,
          "by themselves");
    tern_team_close(NULL);
    OK(tern_team_open_all(4, comms, TERN_TEAM_WORLD, worlds));
    for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
        REFUSES(tern_team_split_all(4, worlds, splits[i][0], splits[i][1], splits[i][2], teams),
                TERN_INVALID_ARGUMENT, "rank 0 opens no team");
    }
    REFUSES(tern_team_split_all(0, worlds, 0, 1, 1, teams), TERN_INVALID_ARGUMENT, "num_parents is 0");
    CHECK(teams[0] == NULL && teams[3] == NULL, "the outputs of a failure are untouched");
    close_teams(worlds, 4);
    return 0;
}

static int refusals(struct test *t)
{
    struct tern_comm_config config = config_of(20000);
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_comm_open_all(4, &config, scene.comms));
    PASS(bad_calls(scene.comms));
    PASS(run_threads(&scene, actors, 4, disagreeing_actor));
    close_comms(scene.comms, 4);
    return 0;
}

/* Rank 2, which leads a team, has no descriptor to listen on; then rank 3 none to join with. */
static int poor_body(int rank, struct procs_page *page, void *user)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    struct tern_team *team = NULL;
    int fds;
    (void)user;
    setenv("TERN_DOMAIN_SIZE", "2", 1);
    OK(tern_comm_open(&page->id, rank, 4, &config, &comm));
    fds = num_fds();
    for (int poor = 2; poor < 4; poor++) {
        struct rlimit limit, saved;
        int next = dup(0);
        close(next);
        CHECK(getrlimit(RLIMIT_NOFILE, &saved) == 0, "getrlimit");
        limit = saved;
        limit.rlim_cur = (rlim_t)next;
        comm->timeout_ms = 1000; /* rank 2 waits for rank 3 in vain */
        CHECK(rank != poor || setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
        REFUSES(tern_team_open(comm, TERN_TEAM_DOMAIN, &team), TERN_SYSTEM_ERROR,
                poor == 2 ? "rank 2 opens no team: no socket to listen on"
                          : "rank 3 has no socket to call rank 2");
        CHECK(rank != poor || setrlimit(RLIMIT_NOFILE, &saved) == 0, "setrlimit");
        comm->timeout_ms = 20000;
        CHECK(num_fds() == fds && team == NULL, "%d descriptors after a failure, %d before", num_fds(), fds);
    }
    OK(tern_team_open(comm, TERN_TEAM_DOMAIN, &team));
    OK(tern_team_barrier(team));
    tern_team_close(team);
    CHECK(num_fds() == fds, "%d descriptors after a team, %d before", num_fds(), fds);
    tern_comm_close(comm);
    return 0;
}

static int poor(struct test *t)
{
    (void)t;
    return procs_run(4, -1, 60, poor_body, NULL);
}

static int exchange(struct boot **boots)
{
    for (int r = 0; r < 3; r++) {
        OK(boots[r]->ops->post(boots[r], NULL, 0));
    }
    for (int r = 0; r < 3; r++) {
        OK(boots[r]->ops->wait(boots[r], NULL, 0, 1000));
    }
    return 0;
}

/* Boots of a group alone: one that never gets complete, then one whose judgement names ranks by their
 * names. */
static int groups(struct test *t)
{
    static const int names[] = {5, 7, 9};
    struct boot *boots[3], *joined[3];
    struct boot_group group = {0, 3, 0, names};
    struct tern_id id;
    (void)t;
    OK(terni_board_open(3, boots));
    OK(boots[0]->ops->invite(boots[0], &id));
    for (int num_joining = 2; num_joining <= 3; num_joining++) {
        PASS(exchange(boots));
        for (group.rank = 0; group.rank < num_joining; group.rank++) {
            struct boot *b = boots[group.rank];
            OK(b->ops->join(b, &group, &id, 1000, &joined[group.rank]));
        }
        for (int r = 0; r < 3 && num_joining == 3; r++) {
            OK(terni_boot_judge_post(joined[r], r == 2 ? TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d", 12)
                                                       : TERN_OK));
        }
        for (int r = 0; r < 3 && num_joining == 3; r++) {
            REFUSES(terni_boot_judge_wait(joined[r], 1000), TERN_OUT_OF_MEMORY, "rank 9: no memory for 12");
        }
        for (int r = 0; r < num_joining; r++) {
            joined[r]->ops->close(joined[r]);
        }
    }
    for (int r = 0; r < 3; r++) {
        boots[r]->ops->close(boots[r]);
    }
    return 0;
}

static int leaks(struct test *t)
{
    static int (*const bodies[])(struct test * t) = {refusals, leaving, threads};
    return leaves_nothing(t, bodies, 3);
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    setenv("TERN_MACHINE", "cpu", 1);
    /* Processes first: their parent must not have started a machine. */
    test_run(&t, "barriers of processes", processes);
    test_run(&t, "a rank without descriptors", poor);
    test_run(&t, "membership", membership);
    test_run(&t, "barriers of threads", threads);
    test_run(&t, "late ranks", late_ranks);
    test_run(&t, "a late leader", late_leader);
    test_run(&t, "ranks that leave", leaving);
    test_run(&t, "refusals", refusals);
    test_run(&t, "groups", groups);
    test_run(&t, "leaks", leaks);
    return test_end(&t);
}
