/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine by copy engine: turn and turn about with the pulling one on one object, what it refuses, ranks that
 * disagree, and a rank that never comes. ep_random_test has its shapes. */
#include "scene.h"

#include <string.h>

enum { RANKS = 5, ROUNDS = 24, DEADLINE_MS = 1200, SLOW_DEADLINE_MS = 4000, PATIENCE_MS = 60000 };

static void engine_scene(struct scene *s, const struct test *t, uint32_t layout, uint64_t seed)
{
    struct batch_shape shape = scene_shape(RANKS, layout, ROUTING_UNIFORM);

    test_quiet();
    scene_init(s, RANKS, seed);
    s->config.timeout_ms = t->scale < 100 ? SLOW_DEADLINE_MS : DEADLINE_MS;
    s->config.copy_engine = 1;
    s->config.staging_bytes = (uint64_t)RANKS * MAX_TOKENS * 1024;
    scene_add(s, &shape, (uint64_t)RANKS * MAX_TOKENS);
}

/* New ids, rows and sums; the rows come by copy engine in every second round. */
static int one_round(struct scene *s, int round)
{
    struct combine *c = &s->combines[0];

    c->copy_engine = (uint32_t)round % 2;
    scene_refill(s, 0);
    PASS(world_upload(&s->world));
    PASS(batch_update(&s->batches[0], 0));
    PASS(batch_check_counts(&s->batches[0]));
    if (round % 3 == 0) {
        PASS(dispatch_check(&s->dispatches[0], s->eps, 0));
    }
    PASS(combine_check(c, s->eps, round % 4)); /* streams change as well */
    if (round % 5 == 0) {                      /* the same counts again, with other rows */
        combine_fill(c, &s->rng);
        PASS(world_upload(&s->world));
        PASS(combine_check(c, s->eps, 0));
    }
    return 0;
}

/* `body` opens the scene. */
static int with_scene(struct test *t, uint32_t layout, uint64_t seed, int (*body)(struct scene *))
{
    struct scene s;
    int result;

    engine_scene(&s, t, layout, seed);
    result = body(&s);
    scene_fini(&s);
    return result;
}

static int take_turns(struct scene *s, int rounds)
{
    int round;

    PASS(scene_open(s));
    PASS(scene_round(s, 0));
    for (round = 0; round < rounds; round++) {
        PASS(one_round(s, round));
    }
    return 0;
}

static int turns(struct test *t)
{
    struct scene s;
    int result;

    engine_scene(&s, t, TERN_LAYOUT_RANK, 40);
    s.config.timeout_ms = PATIENCE_MS;
    result = take_turns(&s, test_scaled(t, ROUNDS));
    scene_fini(&s);
    return result;
}

static struct tern_combine_args args_of(struct scene *s)
{
    struct tern_combine_args a = combine_args(&s->combines[0], 0, 1);

    a.copy_engine = 1;
    return a;
}

/* A route that has run in a graph: a replay would change rows that the host counts. */
static int refuse_after_graph(struct scene *s)
{
    const struct world *w = &s->world;
    struct tern_combine_args a = args_of(s);
    struct tern_graph *graph;

    for (int r = 0; r < w->num_ranks; r++) {
        OK(tern_graph_begin(w->members[r].comm, w->members[r].lanes[0]));
    }
    PASS(batch_update(&s->batches[0], 0));
    for (int r = 0; r < w->num_ranks; r++) {
        OK(tern_graph_end(w->members[r].comm, w->members[r].lanes[0], &graph));
        tern_graph_close(w->members[r].comm, graph);
    }
    REFUSES(tern_combine(s->batches[0].routes[0], &a, w->members[0].lanes[0]), TERN_BAD_STATE, "graph");
    PASS(batch_update(&s->batches[0], 0));
    PASS(batch_check_counts(&s->batches[0]));
    REFUSES(tern_combine(s->batches[0].routes[0], &a, w->members[0].lanes[0]), TERN_BAD_STATE, "graph");
    s->combines[0].copy_engine = 0;
    PASS(combine_check(&s->combines[0], s->eps, 0));
    return 0;
}

static int refuse(struct scene *s)
{
    struct tern_stream *lane;
    struct tern_comm *comm;
    struct tern_route *route;
    struct tern_combine_args a;
    struct tern_graph *graph;

    PASS(scene_open(s));
    PASS(scene_round(s, 0));
    lane = s->world.members[0].lanes[0];
    comm = s->world.members[0].comm;
    route = s->batches[0].routes[0];
    a = args_of(s);
    a.copy_engine = 2;
    REFUSES(tern_combine(route, &a, lane), TERN_INVALID_ARGUMENT, "copy_engine is 2");
    a = args_of(s);
    a.in.row_stride = 2 * (int64_t)a.in.row_bytes;
    REFUSES(tern_combine(route, &a, lane), TERN_INVALID_ARGUMENT, "in.row_stride is 288");
    a = args_of(s);
    OK(tern_graph_begin(comm, lane));
    REFUSES(tern_combine(route, &a, lane), TERN_UNSUPPORTED, "captured");
    OK(tern_graph_end(comm, lane, &graph));
    tern_graph_close(comm, graph);
    PASS(batch_update(&s->batches[0], 0));
    REFUSES(tern_combine(route, &a, lane), TERN_BAD_STATE, "tern_route_wait");
    PASS(batch_check_counts(&s->batches[0]));
    s->combines[0].copy_engine = 1; /* nothing has been spoilt */
    PASS(combine_check(&s->combines[0], s->eps, 0));
    return refuse_after_graph(s);
}

/* An object, or a route, for which it cannot be. */
static int refuse_object(struct scene *s, enum tern_status status, const char *text)
{
    struct tern_combine_args a;

    PASS(scene_open(s));
    PASS(scene_round(s, 0));
    a = args_of(s);
    REFUSES(tern_combine(s->batches[0].routes[0], &a, s->world.members[0].lanes[0]), status, text);
    s->combines[0].copy_engine = 0;
    return combine_check(&s->combines[0], s->eps, 0);
}

static int refuse_without(struct scene *s)
{
    s->config.copy_engine = 0;
    return refuse_object(s, TERN_BAD_STATE, "opened without it");
}

static int refuse_small(struct scene *s)
{
    s->config.staging_bytes = 4096;
    return refuse_object(s, TERN_NO_SPACE, "staging_bytes is 4096");
}

static int refuse_layout(struct scene *s) { return refuse_object(s, TERN_UNSUPPORTED, "expert layout"); }

static int refusals(struct test *t)
{
    PASS(with_scene(t, TERN_LAYOUT_RANK, 41, refuse));
    PASS(with_scene(t, TERN_LAYOUT_RANK, 42, refuse_without));
    PASS(with_scene(t, TERN_LAYOUT_RANK, 43, refuse_small));
    return with_scene(t, TERN_LAYOUT_EXPERT, 44, refuse_layout);
}

/* After a fault, by the book; then everything works, its runs counted from the first again. */
static int recover(struct scene *s)
{
    batch_close(&s->batches[0]);
    OK(tern_ep_reset_all(RANKS, s->eps));
    PASS(scene_round(s, 0));
    PASS(one_round(s, 1));
    return one_round(s, 3);
}

static int disagree(struct scene *s)
{
    int r;

    PASS(scene_open(s));
    PASS(scene_round(s, 0));
    for (r = 0; r < RANKS; r++) {
        s->combines[0].copy_engine = r != 2;
        PASS(combine_issue_rank(&s->combines[0], r, 0));
    }
    for (r = 0; r < RANKS; r++) {
        EXPECT(tern_ep_synchronize(s->eps[r]), TERN_MISMATCH);
    }
    return recover(s);
}

static int absent(struct scene *s)
{
    int r;

    PASS(scene_open(s));
    PASS(scene_round(s, 0));
    PASS(one_round(s, 1));
    s->combines[0].copy_engine = 1;
    for (r = 0; r < RANKS - 1; r++) {
        PASS(combine_issue_rank(&s->combines[0], r, 0));
    }
    for (r = 0; r < RANKS - 1; r++) {
        REFUSES(tern_ep_synchronize(s->eps[r]), TERN_TIMEOUT, "rank 4 ");
    }
    return recover(s);
}

static int faults(struct test *t)
{
    PASS(with_scene(t, TERN_LAYOUT_RANK, 45, disagree));
    return with_scene(t, TERN_LAYOUT_RANK, 46, absent);
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "copy engine and pull take turns", turns);
    test_run(&t, "what the copy engine cannot do is refused by value", refusals);
    test_run(&t, "ranks that disagree, and one that never comes", faults);
    return test_end(&t);
}
