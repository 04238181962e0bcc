/* SPDX-License-Identifier: Apache-2.0
 *
 * Routes used more than once, together and anew: what one use leaves behind must not show in the next. Every
 * step is judged byte by byte. */
#include "scene.h"

#include <string.h>

/* ---- A route used for dispatch, dispatch, combine, combine (of gradients), dispatch (of gradients) ---- */

static int forth_and_back(struct scene *s)
{
    int step;

    PASS(scene_open(s));
    scene_refill(s, 0);
    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batches[0], s->eps, 0));
    for (step = 0; step < 5; step++) {
        scene_refill(s, 0);
        if (step < 2 || step == 4) {
            PASS(dispatch_check(&s->dispatches[0], s->eps, 0));
        } else {
            PASS(combine_check(&s->combines[0], s->eps, 0));
        }
    }
    PASS(batch_check_counts(&s->batches[0]));
    return batch_check_view(&s->batches[0]);
}

static int cached(struct test *t)
{
    int round, rounds = test_scaled(t, 6), result = 0;

    for (round = 0; round < rounds && !result; round++) {
        struct scene s;
        int ranks = 2 + round % 4;
        struct batch_shape shape =
            scene_shape(ranks, round % 2 ? TERN_LAYOUT_EXPERT : TERN_LAYOUT_RANK, ROUTING_MIXED);
        scene_init(&s, ranks, 100 + (uint64_t)round);
        scene_add(&s, &shape, 0);
        result = forth_and_back(&s);
        scene_fini(&s);
    }
    test_detail(t, "%d routes, 5 operations each", rounds);
    return result;
}

/* ---- Three live routes, operations in a random order that all ranks share ---- */

static int interleaved(struct test *t)
{
    int result = 0, ranks;

    for (ranks = 2; ranks <= (t->scale < 100 ? 2 : 4) && !result; ranks++) {
        struct scene s;
        struct batch_shape by_rank = scene_shape(ranks, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
        struct batch_shape by_expert = scene_shape(ranks, TERN_LAYOUT_EXPERT, ROUTING_MIXED);
        scene_init(&s, ranks, 200 + (uint64_t)ranks);
        scene_add(&s, &by_rank, 0);
        scene_add(&s, &by_expert, 0);
        scene_add(&s, &by_rank, 0);
        result = scene_interleave(&s, test_scaled(t, 6));
        scene_fini(&s);
    }
    return result;
}

/* ---- Update: another batch by the same route; outputs have room for any ---- */

static int renew(struct scene *s, int rounds)
{
    int round;

    PASS(scene_open(s));
    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batches[0], s->eps, 0));
    for (round = 0; round < rounds; round++) {
        batch_redraw(&s->batches[0], round % NUM_ROUTINGS, &s->rng);
        scene_refill(s, 0);
        PASS(world_upload(&s->world));
        PASS(batch_update(&s->batches[0], 0));
        if (round % 2) {
            PASS(batch_check_counts(&s->batches[0]));
        }
        PASS(dispatch_issue(&s->dispatches[0], 0));
        PASS(combine_issue(&s->combines[0], 0));
        dispatch_expect(&s->dispatches[0]);
        combine_expect(&s->combines[0]);
        PASS(world_ep_synchronize(&s->world, s->eps));
        PASS(world_verify(&s->world, "a renewed route"));
        PASS(batch_check_view(&s->batches[0]));
    }
    return 0;
}

static int updated(struct test *t)
{
    uint32_t layout;
    int result = 0;

    for (layout = TERN_LAYOUT_RANK; layout <= TERN_LAYOUT_EXPERT && !result; layout++) {
        struct scene s;
        result = scene_static(&s, 4, layout, 400 + layout, 0);
        result = result ? result : renew(&s, test_scaled(t, 10));
        scene_fini(&s);
    }
    return result;
}

/* ---- max_routes ---- */

static int run_out(struct scene *s)
{
    struct tern_route *extra = NULL;
    int i;

    PASS(scene_open(s));
    scene_refill(s, 0);
    scene_refill(s, 1);
    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batches[0], s->eps, 0));
    PASS(batch_open(&s->batches[1], s->eps, 0));
    for (i = 0; i < s->world.num_ranks; i++) {
        struct tern_route_args args = batch_args(&s->batches[1], i);
        EXPECT(tern_route_open(s->eps[i], &args, s->world.members[i].lanes[0], &extra), TERN_NO_SPACE);
        CHECK(!extra, "a failed tern_route_open wrote its output");
        CHECK(strstr(tern_last_error(), "2"), "\"%s\" does not say how many routes are open",
              tern_last_error());
    }
    PASS(dispatch_check(&s->dispatches[0], s->eps, 0));
    for (i = 0; i < 3; i++) { /* a slot comes back each time, whichever it was */
        batch_close(&s->batches[i % 2]);
        PASS(batch_open(&s->batches[i % 2], s->eps, 0));
        scene_refill(s, 0);
        scene_refill(s, 1);
        PASS(dispatch_check(&s->dispatches[i % 2], s->eps, 0));
        PASS(combine_check(&s->combines[!(i % 2)], s->eps, 0));
    }
    return 0;
}

static int exhausted(struct test *t)
{
    struct scene s;
    struct batch_shape by_rank = scene_shape(2, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    struct batch_shape by_expert = scene_shape(2, TERN_LAYOUT_EXPERT, ROUTING_UNIFORM);
    int result;

    (void)t;
    scene_init(&s, 2, 500);
    s.config.max_routes = 2;
    scene_add(&s, &by_rank, 0);
    scene_add(&s, &by_expert, 0);
    result = run_out(&s);
    scene_fini(&s);
    return result;
}

/* ---- Any number of SMs: the same bits, which are the reference's ---- */

static int widths(struct scene *s)
{
    static const uint32_t sms[] = {1, 2, 3, 8};
    int i, r;

    PASS(scene_open(s));
    scene_refill(s, 0);
    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batches[0], s->eps, 0));
    for (i = 0; i < 4; i++) {
        for (r = 0; r < s->world.num_ranks; r++) {
            s->dispatches[0].ranks[r].num_sms = sms[i];
            s->combines[0].ranks[r].num_sms = sms[i];
        }
        dispatch_poison(&s->dispatches[0]); /* the inputs stay */
        combine_poison(&s->combines[0]);
        PASS(dispatch_check(&s->dispatches[0], s->eps, 0));
        PASS(combine_check(&s->combines[0], s->eps, 0));
    }
    return 0;
}

static int any_sms(struct test *t)
{
    uint32_t layout;
    int result = 0;

    (void)t;
    for (layout = TERN_LAYOUT_RANK; layout <= TERN_LAYOUT_EXPERT && !result; layout++) {
        struct scene s;
        struct batch_shape shape = scene_shape(3, layout, ROUTING_UNIFORM);
        scene_init(&s, 3, 800 + layout);
        scene_add(&s, &shape, 0);
        result = widths(&s);
        scene_fini(&s);
    }
    return result;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "a route serves dispatch and combine, forth and back", cached);
    test_run(&t, "three live routes interleave in any order", interleaved);
    test_run(&t, "a route is renewed for other batches", updated);
    test_run(&t, "max_routes is enforced and slots come back", exhausted);
    test_run(&t, "any number of SMs gives the same bits", any_sms);
    return test_end(&t);
}
