/* SPDX-License-Identifier: Apache-2.0
 *
 * Railed low latency: random cases whose ranks are cut into domains have the bits of the reference, whatever
 * the layout, casts, compression, phases, queues and schedules; then a few tokens, or many of one expert,
 * lanes in flight with high-throughput operations between them, and one domain, where rails are nothing.
 * `ep_ll_rail_test --seeds N` replays a seed in all worlds. */
#include "ll_stage.h"
#include "ll_worlds.h"

/* ---- Hot experts, and nothing at all ---- */

/* More messages to a rank than a chunk has, or a few warps take at once; all for one rank, or none. */
static int run_hot(struct test *t, int routing, uint32_t tokens)
{
    static const struct ll_world world = {{6, 3}, BY_STORES, 1};

    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 6); seed++) {
        struct ll_case c;
        ll_world_draw(t, &world, seed, &c);
        c.shape.weights = TERN_LL_WEIGHTS_AT_DISPATCH;
        c.shape.layout = seed % 2 ? TERN_LL_BY_RANK : TERN_LL_BY_EXPERT;
        c.shape.compression = (uint32_t)seed % 3;
        c.shape.hidden = c.config.ll_hidden = 272;
        c.shape.batch.max_tokens = c.config.ll_tokens = tokens;
        c.shape.batch.num_experts = c.config.num_experts = 12;
        c.shape.batch.routing = routing;
        PASS(ll_case_run(&c, -1, NULL));
    }
    return 0;
}

static int hot(struct test *t)
{
    PASS(run_hot(t, ROUTING_ONE_EXPERT, 70));
    PASS(run_hot(t, ROUTING_ONE_RANK, 70));
    return run_hot(t, ROUTING_MIXED, 70);
}

static int nothing(struct test *t)
{
    PASS(run_hot(t, ROUTING_NONE, 5));
    PASS(run_hot(t, ROUTING_ONE_RANK, 1));
    return run_hot(t, ROUTING_UNIFORM, 1);
}

/* ---- Several lanes ---- */

static int in_flight(struct test *t)
{
    PASS(ll_stage_run_railed(t, ll_stage_in_flight, 60000, STAGE_CUT));
    PASS(ll_stage_run_railed(t, ll_stage_in_flight, 60000, STAGE_BY_NIC));
    return ll_stage_run_railed(t, ll_stage_in_flight, 60000, STAGE_BY_PROXY);
}

/* ---- One domain ---- */

static int one_domain(struct test *t)
{
    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 10); seed++) {
        struct ll_case c;
        ll_case_draw(&c, seed, 0, t->scale < 100);
        c.config.ll_rail = 1;
        c.config.ll_mask = 0;
        PASS(ll_case_run(&c, -1, NULL));
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    ll_world_cases(&t, 1);
    test_run(&t, "many tokens of one expert or one rank", hot);
    test_run(&t, "few tokens, and choices of nobody", nothing);
    test_run(&t, "lanes in flight across domains", in_flight);
    test_run(&t, "in one domain rails are nothing", one_domain);
    return test_end(&t);
}
