/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks as processes that share window memory: random cases against the reference. Every process draws all
 * ranks' images from the seed and judges its own. */
#include "ep_case.h"
#include "procs.h"

#include <stdlib.h>
#include <string.h>

static int run_case(int rank, struct procs_page *page, void *user)
{
    const struct ep_case *c = (const struct ep_case *)user;

    return ep_case_run(c, rank, &page->id);
}

/* On GPUs a case costs seconds of driver start in every process. */
enum { GPU_CASES_PER_CENT = 15 };

static int run_cases(struct test *t, int num_ranks, int count)
{
    const char *machine = getenv("TERN_MACHINE");
    int scaled =
        test_scaled(t, machine && strcmp(machine, "cuda") == 0 ? count * GPU_CASES_PER_CENT / 100 : count);
    struct ep_limits limits = ep_case_limits(t);
    uint64_t first = t->has_seeds ? t->seeds[0] : 5000 + 100 * (uint64_t)num_ranks;
    uint64_t last = t->has_seeds ? t->seeds[1] : first + (uint64_t)scaled - 1;
    uint64_t seed;
    int result = 0;

    limits.num_ranks = num_ranks;
    limits.max_bytes /= 4;
    for (seed = first; seed <= last && !result; seed++) {
        struct ep_case c;
        ep_case_draw(&c, seed, &limits);
        c.deterministic = (int)(seed % 2); /* the other half runs while hosts do something else */
        result = procs_run(num_ranks, -1, 120, run_case, &c);
    }
    test_detail(t, "seeds %llu-%llu", (unsigned long long)first, (unsigned long long)seed - 1);
    return result;
}

static int two(struct test *t) { return run_cases(t, 2, 20); }
static int four(struct test *t) { return run_cases(t, 4, 40); }
static int eight(struct test *t) { return run_cases(t, 8, 20); }

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "random cases, ranks in 2 processes", two);
    test_run(&t, "random cases, ranks in 4 processes", four);
    test_run(&t, "random cases, ranks in 8 processes", eight);
    return test_end(&t);
}
