/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch and combine against the naive reference, bit for bit, over random shapes, each under a
 * scheduler seed of its own. A failure prints the seed; `ep_ll_random_test --seeds N` replays it.
 * From seed OVER_BLANKS on all rows go over blanks if their places fit. */
#include "ll_case.h"

enum { CASES_A_GROUP = 100, GROUPS = 5, OVER_BLANKS = 401 };

static int run_seeds(struct test *t, uint64_t first, uint64_t last)
{
    int failures = 0;
    uint64_t seed;

    for (seed = first; seed <= last && failures < 3; seed++) {
        struct ll_case c;
        ll_case_draw(&c, seed, 0, t->scale < 100);
        if (seed >= OVER_BLANKS) {
            ll_case_over_blanks(&c);
        }
        failures += ll_case_run(&c, -1, NULL) != 0;
    }
    test_detail(t, "seeds %llu-%llu", (unsigned long long)first, (unsigned long long)seed - 1);
    return failures ? TEST_FAILED : TEST_PASSED;
}

static int asked(struct test *t) { return run_seeds(t, t->seeds[0], t->seeds[1]); }

static int group(struct test *t)
{
    uint64_t first = (uint64_t)(t->number - 1) * CASES_A_GROUP + 1;

    return run_seeds(t, first, first + (uint64_t)test_scaled(t, CASES_A_GROUP) - 1);
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
