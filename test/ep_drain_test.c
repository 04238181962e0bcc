/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch whose rows leave staging while others arrive: by turns with expert layout, whose rows do not;
 * ranks whose outputs are in windows among those whose are not; rows with gaps, of odd sizes, and more than
 * there is room for; processors; graphs; objects that cannot drain; and phases that nobody tells of.
 * ep_random_test has its shapes. Whether rows were drained is seen in the words of phases, on the cpu
 * machine. */
#include "push_words.h"
#include "scene.h"

#include <stdlib.h>
#include <string.h>

enum {
    RANKS = 5,
    ROUNDS = 12,
    GPU_TOKENS = 256,
    DEADLINE_MS = 1200,
    SLOW_DEADLINE_MS = 4000,
    PATIENCE_MS = 60000
};

/* The latest operation in which a peer told an object of a phase; 0: none. */
static uint64_t latest_of_all(const struct scene *s)
{
    uint64_t latest = 0;
    int r;

    for (r = 0; scene_on_cpu() && r < RANKS; r++) {
        uint64_t mine = drain_latest(s->eps[r]);
        latest = mine > latest ? mine : latest;
    }
    return latest;
}

/* A dispatch of batch i, right to the bit, that drains, or does not. */
static int dispatch_way(struct scene *s, int i, int drains)
{
    uint64_t before = latest_of_all(s), after;

    dispatch_fill(&s->dispatches[i], &s->rng);
    PASS(dispatch_check(&s->dispatches[i], s->eps, 0));
    after = latest_of_all(s);
    CHECK(!scene_on_cpu() || drains == (after > before), "rows were %s",
          after > before ? "drained" : "copied behind the last");
    return 0;
}

/* Of as many tokens as make several phases; `equal`: every rank has all of them. */
static void scene_of(struct scene *s, const struct test *t, uint64_t seed, int routing, int equal)
{
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_RANK, routing);

    test_quiet();
    scene_init(s, RANKS, seed);
    scene_leave_windows(s);
    s->config.timeout_ms = t->scale < 100 ? SLOW_DEADLINE_MS : DEADLINE_MS;
    s->config.num_sms = 3;
    s->config.dispatch_drain = 1;
    shape.equal_tokens = equal;
    shape.max_tokens = s->config.max_tokens = scene_on_cpu() ? (uint32_t)MAX_TOKENS : (uint32_t)GPU_TOKENS;
    scene_add(s, &shape, (uint64_t)RANKS * shape.max_tokens);
}

static void drain_scene(struct scene *s, const struct test *t, uint64_t seed, int routing)
{
    scene_of(s, t, seed, routing, 0);
}

/* Batch 1 has expert layout, whose rows are copied behind the last. */
static int rounds_of_both(struct scene *s)
{
    int round;

    PASS(batch_open(&s->batches[1], s->eps, 0));
    for (round = 0; round < ROUNDS; round++) {
        PASS(dispatch_way(s, 0, 1));
        PASS(dispatch_way(s, 1, 0));
        PASS(combine_check(&s->combines[round % 2], s->eps, 0));
        PASS(dispatch_way(s, round % 2, round % 2 == 0));
    }
    return 0;
}

static int turns(struct test *t)
{
    struct batch_shape other = scene_shape(RANKS, TERN_LAYOUT_EXPERT, ROUTING_UNIFORM);
    struct scene s;

    drain_scene(&s, t, 80, ROUTING_UNIFORM);
    s.config.timeout_ms = PATIENCE_MS;
    s.config.staging_bytes = 1 << 18;
    scene_add(&s, &other, 0);
    return scene_then(&s, rounds_of_both);
}

static int drains(struct scene *s) { return dispatch_way(s, 0, 1); }

/* Outputs of rank 1 are in windows; of rank 3 rows have gaps; of rank 4 there is room for half of them. */
static int places(struct test *t)
{
    struct sender *one;
    struct scene s;

    drain_scene(&s, t, 82, ROUTING_UNIFORM);
    one = &s.dispatches[0].ranks[1];
    one->out[0] = payload_take(&s.world, 1, ARENA_WINDOW, one->out_rows, SCENE_ROW_BYTES, 0, "out");
    one = &s.dispatches[0].ranks[3];
    one->out[0] =
        payload_take(&s.world, 3, ARENA_DEVICE, one->out_rows, SCENE_ROW_BYTES, SCENE_ROW_BYTES + 32, "out");
    s.dispatches[0].ranks[4].out_rows = MAX_TOKENS;
    return scene_then(&s, drains);
}

/* Where ids lead: some of these send nothing to some ranks, or all to one. */
static int routings(struct test *t)
{
    struct scene s;
    int routing;

    for (routing = 0; routing < NUM_ROUTINGS; routing++) {
        drain_scene(&s, t, 84 + (uint64_t)routing, routing);
        PASS(scene_then(&s, drains));
    }
    return 0;
}

/* Every number of processors, also fewer than the two blocks that it takes. */
static int with_processors(struct scene *s)
{
    uint32_t sms;
    int r;

    for (sms = 1; sms <= 3; sms++) {
        for (r = 0; r < RANKS; r++) {
            s->dispatches[0].ranks[r].num_sms = sms + (uint32_t)r % 2;
        }
        PASS(dispatch_way(s, 0, 1));
    }
    return 0;
}

static int processors(struct test *t)
{
    struct scene s;

    drain_scene(&s, t, 90, ROUTING_UNIFORM);
    return scene_then(&s, with_processors);
}

/* Captured once, replayed with other ids. */
static int graphs(struct test *t)
{
    struct scene s;
    int result;

    test_quiet();
    scene_init(&s, RANKS, 91);
    scene_leave_windows(&s);
    s.config.dispatch_drain = 1;
    PASS(scene_add_static(&s, TERN_LAYOUT_RANK, 0));
    result = scene_replay(&s, 1, test_scaled(t, ROUNDS));
    if (!result && scene_on_cpu() && latest_of_all(&s) == 0) {
        test_detail(t, "nothing was drained");
        result = TEST_FAILED;
    }
    scene_fini(&s);
    return result;
}

static int refusals(struct test *t)
{
    struct scene s;
    int result;

    drain_scene(&s, t, 92, ROUTING_UNIFORM);
    s.config.dispatch_drain = 2;
    PASS(scene_refused(&s, TERN_INVALID_ARGUMENT, "dispatch_drain is 2"));
    drain_scene(&s, t, 93, ROUTING_UNIFORM);
    s.config.transfer = TERN_TRANSFER_PLAIN;
    PASS(scene_refused(&s, TERN_UNSUPPORTED, "dispatch_drain is 1, but transfer is plain"));
    drain_scene(&s, t, 94, ROUTING_UNIFORM);
    s.config.domain_ranks = 1;
    PASS(scene_refused(&s, TERN_UNSUPPORTED, "dispatch_drain is 1, with 5 ranks in 5 domains"));
    if (!scene_on_cpu()) {
        return 0;
    }
    setenv("TERN_CPU_SMS", "5", 1);
    drain_scene(&s, t, 95, ROUTING_UNIFORM);
    result = scene_refused(&s, TERN_UNSUPPORTED, "this rank may use 1 processor");
    unsetenv("TERN_CPU_SMS");
    return result;
}

static int recover(struct scene *s)
{
    batch_close(&s->batches[0]);
    OK(tern_ep_reset_all(RANKS, s->eps));
    PASS(scene_round(s, 0));
    return dispatch_way(s, 0, 1);
}

static int absent(struct scene *s)
{
    int r;

    for (r = 0; r < RANKS - 1; r++) {
        PASS(dispatch_issue_rank(&s->dispatches[0], r, 0));
    }
    for (r = 0; r < RANKS - 1; r++) {
        REFUSES(tern_ep_synchronize(s->eps[r]), TERN_TIMEOUT, "rank 4 ");
    }
    return recover(s);
}

/* All outputs of rank 4 are in windows, so that nothing drains there. */
static void keep_in_windows(struct scene *s)
{
    struct sender *one = &s->dispatches[0].ranks[4];
    const struct batch_shape *shape = &s->batches[0].shape;

    one->out[0] = payload_take(&s->world, 4, ARENA_WINDOW, one->out_rows, SCENE_ROW_BYTES, 0, "out");
    one->out_idx =
        world_take(&s->world, 4, ARENA_WINDOW, one->out_rows * shape->topk * shape->idx_bytes, "ids");
    one->out_weights = world_take(&s->world, 4, ARENA_WINDOW, one->out_rows * shape->topk * 4, "weights");
    one->out_source = world_take(&s->world, 4, ARENA_WINDOW, one->out_rows * 8, "sources");
}

/* Rank 4 sends, but does not tell of it: all others name it, and none itself or another. */
static int silent(struct scene *s, enum drain_lie lie)
{
    int awaited = lie == DRAIN_HIDES_DONE ? TERN_AWAIT_DONE : TERN_AWAIT_ROWS;
    struct tern_fault f;
    int r;

    drain_mislead(s->eps[4], lie);
    PASS(dispatch_issue(&s->dispatches[0], 0));
    for (r = 0; r < RANKS - 1; r++) {
        EXPECT(tern_ep_synchronize(s->eps[r]), TERN_TIMEOUT);
        f.size = sizeof f;
        OK(tern_fault_get(s->eps[r], &f));
        CHECK(f.peer == 4 && (int)f.awaited == awaited, "rank %d awaited %d of rank %d", r, f.awaited,
              f.peer);
        /* None where another told of it. */
        CHECK((f.late[0] & ~(1ull << 4)) == 0, "rank %d: late ranks are 0x%llx", r,
              (unsigned long long)f.late[0]);
    }
    (void)tern_ep_synchronize(s->eps[4]); /* it may have ended before it hears of that */
    drain_mislead(s->eps[4], DRAIN_HIDES_NOTHING);
    return recover(s);
}

static int hides_ends(struct scene *s) { return silent(s, DRAIN_HIDES_ENDS); }

static int hides_words(struct scene *s) { return silent(s, DRAIN_HIDES_WORDS); }

static int hides_done(struct scene *s) { return silent(s, DRAIN_HIDES_DONE); }

static int faults(struct test *t)
{
    struct scene s;

    drain_scene(&s, t, 96, ROUTING_UNIFORM);
    PASS(scene_then(&s, absent));
    scene_of(&s, t, 97, ROUTING_UNIFORM, 1);
    keep_in_windows(&s);
    PASS(scene_then(&s, hides_ends));
    scene_of(&s, t, 98, ROUTING_UNIFORM, 1);
    keep_in_windows(&s);
    PASS(scene_then(&s, hides_words));
    scene_of(&s, t, 99, ROUTING_UNIFORM, 1);
    keep_in_windows(&s);
    return scene_then(&s, hides_done);
}

/* Of three blocks that send, and three that drain, no more than two have a processor: none waits for a peer's
 * rows while another of its rank has yet to send. */
static int few_at_once(struct test *t)
{
    struct scene s;
    int result;

    if (!scene_on_cpu()) {
        return 0;
    }
    setenv("TERN_CPU_SMS", "30", 1);
    drain_let_reside(2);
    scene_of(&s, t, 100, ROUTING_UNIFORM, 1);
    s.config.num_sms = 6;
    result = scene_then(&s, drains);
    drain_let_reside(0);
    unsetenv("TERN_CPU_SMS");
    return result;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "rows are drained in rank layout, and copied in expert layout, by turns", turns);
    test_run(&t, "outputs in windows, with gaps, without room", places);
    test_run(&t, "ids that lead everywhere, or to few", routings);
    test_run(&t, "any number of processors, other ones on other ranks", processors);
    test_run(&t, "a captured dispatch drains what the latest ids say", graphs);
    test_run(&t, "what cannot be drained is refused by value", refusals);
    test_run(&t, "a rank that never comes, and phases that are not told of", faults);
    test_run(&t, "fewer processors than blocks that send", few_at_once);
    return test_end(&t);
}
