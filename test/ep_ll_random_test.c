/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch and combine against the naive reference, bit for bit, over random shapes, each under a
 * scheduler seed of its own. A failure prints the seed; `ep_ll_random_test --seeds N` replays it.
 * From seed OVER_BLANKS on all rows go over blanks if their places fit. */
#include "ll_case.h"

enum { CASES_A_GROUP = 100, GROUPS = 5, OVER_BLANKS = 401 };

static void change(struct ll_case *c)
{
    if (c->seed >= OVER_BLANKS) {
        ll_case_over_blanks(c);
    }
}

static int asked(struct test *t) { return ll_case_run_seeds(t, t->seeds[0], t->seeds[1], change); }

static int group(struct test *t)
{
    uint64_t first = (uint64_t)(t->number - 1) * CASES_A_GROUP + 1;

    return ll_case_run_seeds(t, first, first + (uint64_t)test_scaled(t, CASES_A_GROUP) - 1, change);
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    if (t.has_seeds) {
        test_run(&t, "random shapes and schedules as asked", asked);
        return test_end(&t);
    }
    for (int i = 0; i < GROUPS; i++) {
        test_run(&t, "random shapes and schedules", group);
    }
    return test_end(&t);
}
