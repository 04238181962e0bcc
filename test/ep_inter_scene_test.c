/* SPDX-License-Identifier: Apache-2.0
 *
 * What happens between operations across domains: a route used again and again, combines without a dispatch
 * before them, three routes at once, a captured graph, and two objects. Streams between rail peers go on from
 * operation to operation, with messages of other sizes and counts each time; every step is judged byte by
 * byte. */
#include "scene.h"

#include <string.h>

/* Ranks, ranks of a domain, and whether the proxy carries what goes between domains. */
struct cut {
    int ranks, group, by_proxy;
};
static const struct cut cuts[] = {{4, 2, 0}, {6, 3, 0}, {6, 2, 0}, {3, 1, 0}, {4, 2, 1}};
enum { NUM_CUTS = sizeof cuts / sizeof cuts[0] };

static void cut_scene(struct scene *s, const struct cut *cut, uint64_t seed)
{
    scene_init(s, cut->ranks, seed);
    s->world.domain_ranks = cut->group;
    s->world.forces_domains = cut->by_proxy;
    s->free_running = cut->by_proxy;
    s->config.domain_ranks = cut->by_proxy ? 0 : (uint32_t)cut->group;
    s->config.net_queues = 1 + (uint32_t)(seed % 3);
    s->config.net_ring_bytes = 1 + seed % 5 * 1000; /* the least there is, mostly */
}

/* ---- A route used for dispatch, combine, combine, dispatch ---- */

static int forth_and_back(struct scene *s)
{
    PASS(scene_open(s));
    scene_refill(s, 0);
    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batches[0], s->eps, 0));
    for (int step = 0; step < 5; step++) {
        scene_refill(s, 0);
        if (step == 0 || step > 2) {
            PASS(combine_check(&s->combines[0], s->eps, 0)); /* without a dispatch before it */
        } else {
            PASS(dispatch_check(&s->dispatches[0], s->eps, 0));
        }
    }
    PASS(batch_check_counts(&s->batches[0]));
    return batch_check_view(&s->batches[0]);
}

static int cached(struct test *t)
{
    int rounds = test_scaled(t, 10), result = 0;

    for (int round = 0; round < rounds && !result; round++) {
        const struct cut *cut = &cuts[round % NUM_CUTS];
        struct batch_shape shape = scene_shape(cut->ranks, round % 2 ? TERN_LAYOUT_EXPERT : TERN_LAYOUT_RANK,
                                               round % 3 ? ROUTING_MIXED : ROUTING_UNIFORM);
        struct scene s;
        cut_scene(&s, cut, 100 + (uint64_t)round);
        scene_add(&s, &shape, 0);
        result = forth_and_back(&s);
        scene_fini(&s);
    }
    return result;
}

/* ---- Three live routes of two layouts, operations in a random order ---- */

static int interleaved(struct test *t)
{
    int result = 0;

    for (int c = 0; c < NUM_CUTS && !result; c++) {
        struct batch_shape by_rank = scene_shape(cuts[c].ranks, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
        struct batch_shape by_expert = scene_shape(cuts[c].ranks, TERN_LAYOUT_EXPERT, ROUTING_MIXED);
        struct scene s;
        cut_scene(&s, &cuts[c], 200 + (uint64_t)c);
        scene_add(&s, &by_rank, 0);
        scene_add(&s, &by_expert, 0);
        scene_add(&s, &by_rank, 0);
        result = scene_interleave(&s, test_scaled(t, 5));
        scene_fini(&s);
    }
    return result;
}

/* ---- Route, dispatch and combine captured once, replayed with other ids and rows ---- */

static int graphs(struct test *t)
{
    int result = 0;

    for (int c = 0; c < NUM_CUTS && !result; c++) {
        struct batch_shape shape =
            scene_shape(cuts[c].ranks, c % 2 ? TERN_LAYOUT_RANK : TERN_LAYOUT_EXPERT, ROUTING_UNIFORM);
        struct scene s;
        uint64_t rows = 0;
        cut_scene(&s, &cuts[c], 300 + (uint64_t)c);
        shape.equal_tokens = 1;
        OK(tern_ep_max_rows(&s.config, cuts[c].ranks, (int)shape.layout, shape.alignment, &rows));
        scene_add(&s, &shape, rows);
        result = scene_replay(&s, 0, test_scaled(t, 10));
        scene_fini(&s);
    }
    return result;
}

/* ---- A reset in the middle of everything: streams begin anew ---- */

static int reset_between(struct scene *s)
{
    PASS(scene_open(s));
    for (int round = 0; round < 3; round++) {
        PASS(scene_round(s, 0));
        batch_close(&s->batches[0]);
        OK(tern_ep_reset_all(s->world.num_ranks, s->eps));
    }
    return scene_round(s, 0);
}

static int resets(struct test *t)
{
    int result = 0;

    (void)t;
    for (int c = 0; c < NUM_CUTS && !result; c++) {
        struct batch_shape shape = scene_shape(cuts[c].ranks, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
        struct scene s;
        cut_scene(&s, &cuts[c], 400 + (uint64_t)c);
        scene_add(&s, &shape, 0);
        result = reset_between(&s);
        scene_fini(&s);
    }
    return result;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "a route used again, and combines without a dispatch", cached);
    test_run(&t, "three live routes, operations interleaved", interleaved);
    test_run(&t, "a captured graph replays with other ids and rows", graphs);
    test_run(&t, "resets between rounds", resets);
    return test_end(&t);
}
