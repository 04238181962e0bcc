/* SPDX-License-Identifier: Apache-2.0
 *
 * Many ranks in one process: dispatch and combine over 64 ranks and over the most there may be, against the
 * reference, within a time. The time covers opening, route, dispatch and combine, not the reference.
 *
 * Past 64 ranks a set of ranks has a second word; with 64 choices and 128 ranks a token has more targets than
 * a warp has lanes. */
#include "scene.h"

enum { HIDDEN = 256, EXPERTS = 256, SECONDS = 30 };

struct scale {
    int ranks;
    uint32_t layout, alignment, tokens, topk;
};

static int run(struct scene *s, struct test *t, int limit)
{
    double begin = test_seconds();
    double spent;

    PASS(scene_open(s));
    scene_refill(s, 0);
    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batches[0], s->eps, 0));
    PASS(dispatch_issue(&s->dispatches[0], 0));
    PASS(combine_issue(&s->combines[0], 0));
    PASS(world_ep_synchronize(&s->world, s->eps));
    spent = test_seconds() - begin;
    dispatch_expect(&s->dispatches[0]);
    combine_expect(&s->combines[0]);
    PASS(world_verify(&s->world, "dispatch and combine at scale"));
    test_detail(t, "%d ranks in %.1f s", s->world.num_ranks, spent);
    CHECK(!limit || spent < limit, "%d ranks took %.1f s, allowed are %d", s->world.num_ranks, spent, limit);
    return 0;
}

static int at_scale(struct test *t, const struct scale *scale)
{
    struct batch_shape shape = {EXPERTS, 0, 8, 0, 0, 0, 1, ROUTING_UNIFORM};
    int ranks = t->scale < 100 ? 8 : scale->ranks;
    int cpu = scene_on_cpu();
    struct scene s;
    int result;

    if (cpu != 1) {
        return cpu < 0 ? cpu : test_skip(t, "%d ranks do not fit on one device at once", scale->ranks);
    }
    shape.topk = scale->topk;
    shape.layout = scale->layout;
    shape.alignment = scale->alignment;
    shape.max_tokens = scale->tokens;
    scene_init(&s, ranks, (uint64_t)scale->ranks);
    s.config.num_experts = EXPERTS;
    s.config.max_topk = scale->topk;
    s.config.max_tokens = scale->tokens;
    s.config.max_row_bytes = 2 * HIDDEN;
    s.row_bytes = 2 * HIDDEN;
    scene_add(&s, &shape, 0);
    result = run(&s, t, t->scale < 100 ? 0 : SECONDS);
    scene_fini(&s);
    return result;
}

static int half(struct test *t)
{
    static const struct scale scale = {64, TERN_LAYOUT_RANK, 0, 64, 8};
    return at_scale(t, &scale);
}

static int most_by_rank(struct test *t)
{
    static const struct scale scale = {TERN_MAX_RANKS, TERN_LAYOUT_RANK, 0, 6, 64};
    return at_scale(t, &scale);
}

static int most_by_expert(struct test *t)
{
    static const struct scale scale = {TERN_MAX_RANKS, TERN_LAYOUT_EXPERT, 8, 6, 64};
    return at_scale(t, &scale);
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "64 ranks, hidden 256, 64 tokens a rank, 256 experts, top-8, one process", half);
    test_run(&t, "128 ranks, rank layout, 6 tokens a rank, top-64", most_by_rank);
    test_run(&t, "128 ranks, expert layout, 6 tokens a rank, top-64", most_by_expert);
    return test_end(&t);
}
