/* SPDX-License-Identifier: Apache-2.0
 *
 * Random cases of low-latency dispatch and combine whose ranks are cut into domains: the same bits as in the
 * reference, whatever the layout, casts, compression, masks, phases, slots of the out-box, queues and
 * schedules; then lanes in flight with high-throughput operations between them. `ep_ll_inter_test --seeds N`
 * replays a seed in all worlds. */
#include "ll_stage.h"
#include "ll_worlds.h"

/* ---- Several lanes ---- */

static int in_flight(struct test *t)
{
    PASS(ll_stage_run_cut(t, ll_stage_in_flight, 60000, 0, STAGE_CUT));
    PASS(ll_stage_run_cut(t, ll_stage_in_flight, 60000, 1, STAGE_CUT));
    return ll_stage_run_cut(t, ll_stage_in_flight, 60000, 0, STAGE_BY_PROXY);
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    ll_world_cases(&t, 0);
    test_run(&t, "lanes in flight across domains", in_flight);
    return test_end(&t);
}
