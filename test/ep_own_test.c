/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's own rows, where tensors are in no window, in rank layout and one domain: kernels find them in the
 * tensors, and the copies from and to staging leave them out. So that none is lost, or kept from before, they
 * are met here by graphs, resets, several routes, streams and processes, and judged byte by byte. */
#include "procs.h"
#include "scene.h"

enum { RANKS = 3 };

static void own_scene(struct scene *s, uint64_t seed)
{
    scene_init(s, RANKS, seed);
    scene_leave_windows(s);
}

/* ---- Processes ---- */

static int rounds_apart(struct scene *s, const struct tern_id *id, int rounds)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    int i;

    config.timeout_ms = 20000;
    PASS(world_open(&s->world, id, &config));
    PASS(world_ep_open(&s->world, &s->config, s->eps));
    for (i = 0; i < rounds; i++) {
        PASS(scene_round(s, 0));
        batch_close(&s->batches[0]);
    }
    OK(tern_comm_barrier(s->world.members[s->world.self].comm)); /* nobody closes what a peer still reads */
    return 0;
}

static int process(int rank, struct procs_page *page, void *user)
{
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_MIXED);
    struct scene s;
    int result;

    own_scene(&s, 40);
    s.world.self = rank;
    scene_add(&s, &shape, 0);
    result = rounds_apart(&s, &page->id, test_scaled((const struct test *)user, 4));
    scene_fini(&s);
    return result;
}

static int processes(struct test *t) { return procs_run(RANKS, -1, 90, process, t); }

/* ---- A graph ---- */

static int graph(struct test *t)
{
    struct scene s;
    int result;

    own_scene(&s, 50);
    result = scene_add_static(&s, TERN_LAYOUT_RANK, 1);
    result = result ? result : scene_replay(&s, 1, test_scaled(t, 15));
    result = result ? result : batch_check_view(&s.batches[0]);
    scene_fini(&s);
    return result;
}

/* ---- Routes ---- */

static int routes(struct test *t)
{
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    struct scene s;
    int i, result;

    own_scene(&s, 60);
    for (i = 0; i < MAX_BATCHES; i++) {
        shape.routing = i ? ROUTING_MIXED : ROUTING_UNIFORM;
        scene_add(&s, &shape, 0);
    }
    result = scene_interleave(&s, test_scaled(t, 6));
    scene_fini(&s);
    return result;
}

/* ---- Streams ---- */

static int streams(struct test *t)
{
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    struct scene s;
    int result;

    own_scene(&s, 70);
    scene_add(&s, &shape, 0);
    scene_add(&s, &shape, 0);
    result = scene_side_by_side(&s, test_scaled(t, 6));
    scene_fini(&s);
    return result;
}

/* ---- A reset, after an operation for which the last rank never came ---- */

static int issue(struct scene *s, int combines, int rank)
{
    return combines ? combine_issue_rank(&s->combines[0], rank, 0)
                    : dispatch_issue_rank(&s->dispatches[0], rank, 0);
}

static int fail_and_reset(struct scene *s, int combines)
{
    int r;

    scene_refill(s, 0);
    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batches[0], s->eps, 0));
    PASS(world_ep_synchronize(&s->world, s->eps));
    for (r = 0; r < RANKS - 1; r++) {
        PASS(issue(s, combines, r));
    }
    for (r = 0; r < RANKS - 1; r++) {
        EXPECT(tern_ep_synchronize(s->eps[r]), TERN_TIMEOUT);
    }
    batch_close(&s->batches[0]);
    OK(tern_ep_reset_all(RANKS, s->eps));
    return 0;
}

static int again(struct scene *s)
{
    PASS(scene_open(s));
    for (int combines = 0; combines < 2; combines++) {
        PASS(scene_round(s, 0));
        batch_close(&s->batches[0]);
        PASS(fail_and_reset(s, combines));
        PASS(scene_round(s, 0));
        batch_close(&s->batches[0]);
    }
    return 0;
}

static int reset(struct test *t)
{
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    struct scene s;
    int result;

    test_quiet();
    own_scene(&s, 80);
    s.config.timeout_ms = t->scale < 100 ? 4000 : 1200; /* what a sanitizer build needs on a busy machine */
    shape.equal_tokens = 1;
    scene_add(&s, &shape, 0);
    result = again(&s);
    scene_fini(&s);
    return result;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "own rows in no window, ranks as processes", processes); /* first: forks */
    test_run(&t, "own rows in no window, a graph replayed with other ids and rows", graph);
    test_run(&t, "own rows in no window, three routes in any order", routes);
    test_run(&t, "own rows in no window, two objects on streams of their own", streams);
    test_run(&t, "own rows in no window, after a fault and a reset", reset);
    return test_end(&t);
}
