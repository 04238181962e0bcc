/* SPDX-License-Identifier: Apache-2.0
 *
 * Many ranks in one process: dispatch and combine over 64 ranks, against the reference, within a time. The
 * time covers opening, route, dispatch and combine, not the reference. */
#include "scene.h"

enum { RANKS = 64, HIDDEN = 256, TOKENS = 64, EXPERTS = 256, TOPK = 8, SECONDS = 30 };

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

static int at_scale(struct test *t)
{
    struct batch_shape shape = {EXPERTS, TOPK, 8, TERN_LAYOUT_RANK, 0, TOKENS, 1, ROUTING_UNIFORM};
    int ranks = t->scale < 100 ? 8 : RANKS;
    struct scene s;
    int result;

    scene_init(&s, ranks, 64);
    s.config.num_experts = EXPERTS;
    s.config.max_topk = TOPK;
    s.config.max_tokens = TOKENS;
    s.config.max_row_bytes = 2 * HIDDEN;
    s.row_bytes = 2 * HIDDEN;
    scene_add(&s, &shape, 0);
    result = run(&s, t, t->scale < 100 ? 0 : SECONDS);
    scene_fini(&s);
    return result;
}

static int by_machine(struct test *t)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_comm *comm = NULL;
    enum tern_machine machine;

    config.heap_bytes = 1 << 20;
    OK(tern_comm_open_all(1, &config, &comm));
    machine = tern_comm_machine(comm);
    tern_comm_close(comm);
    if (machine != TERN_MACHINE_CPU) {
        return test_skip(t, "64 ranks do not fit on one device at once");
    }
    return at_scale(t);
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "64 ranks, hidden 256, 64 tokens a rank, 256 experts, top-8, one process", by_machine);
    return test_end(&t);
}
