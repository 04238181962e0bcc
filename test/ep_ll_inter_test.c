/* SPDX-License-Identifier: Apache-2.0
 *
 * Random cases of low-latency dispatch and combine whose ranks are cut into domains: the same bits as in the
 * reference, whatever the layout, casts, compression, masks, phases, slots of the out-box, queues and
 * schedules; then lanes in flight with high-throughput operations between them. `ep_ll_inter_test --seeds N`
 * replays a seed in all worlds. */
#include "erring.h"
#include "ll_stage.h"
#include "ll_worlds.h"

static int run_world(struct test *t, int ranks, int domain_ranks, enum ll_carrier carrier, int count)
{
    struct ll_world world = {{ranks, domain_ranks}, carrier, 0};

    return ll_world_run(t, &world, count);
}

static int two_by_two(struct test *t) { return run_world(t, 4, 2, BY_STORES, 60); }
static int two_by_eight(struct test *t) { return run_world(t, 16, 8, BY_STORES, 8); }
static int four_by_four(struct test *t) { return run_world(t, 16, 4, BY_STORES, 8); }
static int three_by_five(struct test *t) { return run_world(t, 15, 5, BY_STORES, 8); }
static int eight_by_eight(struct test *t) { return run_world(t, 64, 8, BY_STORES, 1); }

static int others(struct test *t)
{
    PASS(run_world(t, 2, 1, BY_STORES, 15));
    PASS(run_world(t, 5, 1, BY_STORES, 15));
    PASS(run_world(t, 6, 2, BY_STORES, 15));
    return run_world(t, 8, 4, BY_STORES, 15);
}

static int by_proxy(struct test *t)
{
    PASS(run_world(t, 4, 2, BY_PROXY, 8));
    PASS(run_world(t, 6, 2, BY_PROXY, 4));
    PASS(run_world(t, 4, 2, BY_FORCE, 8));
    PASS(run_world(t, 2, 1, BY_FORCE, 8));
    return run_world(t, 8, 4, BY_FORCE, 4);
}

static int by_nics(struct test *t)
{
    PASS(run_world(t, 4, 2, BY_NIC, 8));
    PASS(run_world(t, 5, 1, BY_NIC, 4));
    return run_world(t, 6, 2, BY_NIC, 4);
}

/* ---- By packets over a network that errs ---- */

static int erring_body(struct test *t, uint64_t seed, const int world[2])
{
    struct ll_world cut = {{world[0], world[1]}, BY_NIC, 0};

    return ll_world_seed(t, &cut, seed);
}

static int by_packets(struct test *t)
{
    static const struct erring e = {0, 8, LL_MAX_RANKS, erring_body};
    return erring_run(t, &e);
}

static int by_adaptive(struct test *t)
{
    static const struct erring e = {1, 8, LL_MAX_RANKS, erring_body};
    return erring_run(t, &e);
}

/* ---- Several lanes ---- */

static int in_flight_body(struct ll_stage *x)
{
    for (int round = 0; round < 6; round++) {
        ll_stage_redraw(x);
        PASS(world_upload(&x->scene.world));
        PASS(ll_stage_shuffle(x));
        PASS(ll_stage_judge(x, "lanes in flight with high throughput between"));
        batch_close(&x->scene.batches[0]);
        if (round == 3) { /* words and places begin anew */
            OK(tern_ep_reset_all(STAGE_RANKS, x->scene.eps));
        }
    }
    return 0;
}

static int in_flight(struct test *t)
{
    PASS(ll_stage_run_cut(t, in_flight_body, 60000, 0, STAGE_CUT));
    PASS(ll_stage_run_cut(t, in_flight_body, 60000, 1, STAGE_CUT));
    return ll_stage_run_cut(t, in_flight_body, 60000, 0, STAGE_BY_PROXY);
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "2 x 2 ranks", two_by_two);
    test_run(&t, "2 x 8 ranks", two_by_eight);
    test_run(&t, "4 x 4 ranks", four_by_four);
    test_run(&t, "3 x 5 ranks", three_by_five);
    test_run(&t, "8 x 8 ranks", eight_by_eight);
    test_run(&t, "2 x 1, 5 x 1, 3 x 2 and 2 x 4 ranks", others);
    test_run(&t, "by the proxy", by_proxy);
    test_run(&t, "by software NICs", by_nics);
    test_run(&t, "by packets over a network that errs", by_packets);
    test_run(&t, "by packets with adaptive routing", by_adaptive);
    test_run(&t, "lanes in flight across domains", in_flight);
    return test_end(&t);
}
