/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations whose tensors lie in memory that the heap grew by, in several pieces: random cases as in
 * ep_random_test, with ranks in one process and as processes. Kernels write and read across the borders of
 * pieces, through the addresses that peers got before there was memory. */
#include "ep_case.h"
#include "procs.h"

enum { CASES = 60, PROCESS_CASES = 4, RANKS = 3 };

static int body(int rank, struct procs_page *page, void *user)
{
    struct ep_case c = *(const struct ep_case *)user;

    return ep_case_run(&c, rank, &page->id);
}

static int processes(struct test *t)
{
    struct ep_limits limits = ep_case_limits(t);
    uint64_t seed;

    limits.num_ranks = RANKS;
    for (seed = 1; seed <= (uint64_t)test_scaled(t, PROCESS_CASES); seed++) {
        struct ep_case c;
        ep_case_draw(&c, seed, &limits);
        c.deterministic = 0;
        c.windows_grow = 1;
        PASS(procs_run(RANKS, -1, 120, body, &c));
    }
    return 0;
}

static int one_process(struct test *t)
{
    struct ep_limits limits = ep_case_limits(t);
    uint64_t seed;

    for (seed = 1; seed <= (uint64_t)test_scaled(t, CASES); seed++) {
        struct ep_case c;
        ep_case_draw(&c, seed, &limits);
        c.windows_grow = 1;
        PASS(ep_case_run(&c, -1, NULL));
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    /* Processes first: their parent must not have started a machine. */
    test_run(&t, "operations in grown windows, processes", processes);
    test_run(&t, "operations in grown windows, one process", one_process);
    return test_end(&t);
}
