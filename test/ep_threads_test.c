/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks as threads of one process that meet by an id, each with an executor of its own: random cases against
 * the reference. Under ThreadSanitizer this is where a missing release or acquire between ranks shows. */
#include "ep_case.h"

#include <pthread.h>

enum { FEW_THREADS = 4, MAX_THREADS = 8 };

struct member_thread {
    pthread_t thread;
    const struct ep_case *c;
    const struct tern_id *id;
    int rank, result;
};

static void *run_rank(void *user)
{
    struct member_thread *m = (struct member_thread *)user;

    m->result = ep_case_run(m->c, m->rank, m->id);
    return NULL;
}

static int run_case(const struct ep_case *c)
{
    struct member_thread members[MAX_THREADS];
    struct tern_id id;
    int r, started = 0, result = 0;

    OK(tern_id_create(NULL, &id));
    for (r = 0; r < c->num_ranks; r++) {
        members[r].c = c;
        members[r].id = &id;
        members[r].rank = r;
        members[r].result = TEST_FAILED;
        started += pthread_create(&members[r].thread, NULL, run_rank, &members[r]) == 0;
    }
    CHECK(started == c->num_ranks, "only %d threads of %d started", started, c->num_ranks);
    for (r = 0; r < c->num_ranks; r++) {
        pthread_join(members[r].thread, NULL);
        result = members[r].result ? members[r].result : result;
    }
    return result;
}

static int run_cases(struct test *t, int threads, int deterministic, uint64_t first, int count)
{
    struct ep_limits limits = ep_case_limits(t);
    uint64_t last = first + (uint64_t)test_scaled(t, count) - 1;
    uint64_t seed;
    int result = 0;

    if (t->has_seeds) {
        first = t->seeds[0];
        last = t->seeds[1];
    }
    limits.num_ranks = threads;
    limits.max_bytes /= 4;
    for (seed = first; seed <= last && !result; seed++) {
        struct ep_case c;
        ep_case_draw(&c, seed, &limits);
        c.deterministic = deterministic;
        result = run_case(&c);
    }
    test_detail(t, "seeds %llu-%llu", (unsigned long long)first, (unsigned long long)seed - 1);
    return result;
}

static int waiting(struct test *t) { return run_cases(t, FEW_THREADS, 1, 7000, 60); }
static int running(struct test *t) { return run_cases(t, FEW_THREADS, 0, 7100, 60); }
static int many(struct test *t) { return run_cases(t, MAX_THREADS, 0, 7200, 20); }

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "random cases, 4 threads, each executor runs while its thread waits", waiting);
    test_run(&t, "random cases, 4 threads, executors run freely", running);
    test_run(&t, "random cases, 8 threads, executors run freely", many);
    return test_end(&t);
}
