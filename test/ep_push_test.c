/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine of rows that are pushed: by turns with those that are pulled, or that copy engines bring; rows that
 * peers cannot reach, or with gaps; processors; graphs; objects that cannot push; and rows that do not come.
 * ep_random_test has its shapes. Whether rows were pushed is seen in the words of their units, on the cpu
 * machine. */
#include "push_words.h"
#include "scene.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 5, ROUNDS = 12, DEADLINE_MS = 1200, SLOW_DEADLINE_MS = 4000, PATIENCE_MS = 60000 };

static uint64_t latest_of_all(const struct scene *s)
{
    uint64_t latest = 0;
    int r;

    for (r = 0; scene_on_cpu() && r < s->world.num_ranks; r++) {
        uint64_t mine = push_latest(s->eps[r]);
        latest = mine > latest ? mine : latest;
    }
    return latest;
}

/* A combine of batch i, right to the bit, that pushes, or does not. */
static int combine_way(struct scene *s, int i, int pushes)
{
    uint64_t before = latest_of_all(s), after;

    combine_fill(&s->combines[i], &s->rng);
    PASS(combine_check(&s->combines[i], s->eps, 0));
    after = latest_of_all(s);
    CHECK(!scene_on_cpu() || pushes == (after > before), "rows were %s",
          after > before ? "pushed" : "pulled");
    return 0;
}

static void push_scene(struct scene *s, const struct test *t, uint64_t seed)
{
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);

    test_quiet();
    scene_init(s, RANKS, seed);
    s->config.timeout_ms = t->scale < 100 ? SLOW_DEADLINE_MS : DEADLINE_MS;
    s->config.staging_bytes = 0;
    s->config.combine_push = TERN_PUSH_ALWAYS;
    scene_add(s, &shape, (uint64_t)RANKS * MAX_TOKENS);
}

/* Batch 1 has expert layout, whose rows are pulled. */
static int rounds_of_both(struct scene *s)
{
    int round;

    PASS(batch_open(&s->batches[1], s->eps, 0));
    for (round = 0; round < ROUNDS; round++) {
        PASS(combine_way(s, 0, 1));
        PASS(dispatch_check(&s->dispatches[round % 2], s->eps, 0));
        PASS(combine_way(s, 1, 0));
        PASS(combine_way(s, round % 2, round % 2 == 0));
    }
    return 0;
}

static int turns(struct test *t)
{
    struct batch_shape other = scene_shape(RANKS, TERN_LAYOUT_EXPERT, ROUTING_UNIFORM);
    struct scene s;

    push_scene(&s, t, 60);
    s.config.timeout_ms = PATIENCE_MS;
    scene_add(&s, &other, 0);
    return scene_then(&s, rounds_of_both);
}

/* Engine and pushing by turns, on one object that may do both. */
static int engine_too(struct scene *s)
{
    int round;

    for (round = 0; round < ROUNDS; round++) {
        s->combines[0].copy_engine = (uint32_t)round % 2;
        PASS(batch_check_counts(&s->batches[0]));
        PASS(combine_way(s, 0, round % 2 == 0));
    }
    return 0;
}

static int by_engine(struct test *t)
{
    struct scene s;

    push_scene(&s, t, 61);
    s.config.timeout_ms = PATIENCE_MS;
    s.config.copy_engine = 1;
    return scene_then(&s, engine_too);
}

static int pushes(struct scene *s) { return combine_way(s, 0, 1); }
static int pulls(struct scene *s) { return combine_way(s, 0, 0); }

/* One rank's rows are in no window; those of another have gaps, too. */
static int out_of_reach(struct test *t)
{
    struct gatherer *g;
    struct scene s;

    push_scene(&s, t, 62);
    g = &s.combines[0].ranks[1];
    g->in = payload_take(&s.world, 1, ARENA_DEVICE, g->in_rows, SCENE_ROW_BYTES, 0, "combine in");
    g = &s.combines[0].ranks[3];
    g->in = payload_take(&s.world, 3, ARENA_DEVICE, g->in_rows, SCENE_ROW_BYTES, SCENE_ROW_BYTES + 32,
                         "combine in");
    return scene_then(&s, pushes);
}

/* Every number of processors, also fewer than the two blocks that it takes. */
static int with_processors(struct scene *s)
{
    uint32_t sms;
    int r;

    for (sms = 1; sms <= 3; sms++) {
        for (r = 0; r < RANKS; r++) {
            s->combines[0].ranks[r].num_sms = sms + (uint32_t)r % 2;
        }
        PASS(combine_way(s, 0, 1));
    }
    return 0;
}

static int processors(struct test *t)
{
    struct scene s;

    push_scene(&s, t, 63);
    return scene_then(&s, with_processors);
}

/* Captured once, replayed with other ids. */
static int graphs(struct test *t)
{
    struct scene s;
    int result;

    test_quiet();
    PASS(scene_static(&s, RANKS, TERN_LAYOUT_RANK, 64, 0));
    s.config.staging_bytes = 0;
    s.config.combine_push = TERN_PUSH_ALWAYS;
    result = scene_replay(&s, 1, test_scaled(t, ROUNDS));
    if (!result && scene_on_cpu() && latest_of_all(&s) == 0) {
        test_detail(t, "nothing was pushed");
        result = TEST_FAILED;
    }
    scene_fini(&s);
    return result;
}

/* Rows further apart than memory is long. */
static int too_far(struct scene *s)
{
    struct tern_combine_args a = combine_args(&s->combines[0], 0, 1);

    a.in_rows = INT32_MAX;
    a.in.row_stride = INT64_C(1) << 34;
    REFUSES(tern_combine(s->batches[0].routes[0], &a, s->world.members[0].lanes[0]), TERN_INVALID_ARGUMENT,
            "more than an address space");
    return combine_way(s, 0, 1);
}

static int refusals(struct test *t)
{
    struct scene s;
    int result;

    push_scene(&s, t, 72);
    PASS(scene_then(&s, too_far));
    push_scene(&s, t, 65);
    s.config.staging_bytes = TERN_STAGING_NONE;
    PASS(scene_refused(&s, TERN_INVALID_ARGUMENT, "need 17408 bytes of staging; staging_bytes is 0"));
    push_scene(&s, t, 66);
    s.config.transfer = TERN_TRANSFER_PLAIN;
    PASS(scene_refused(&s, TERN_UNSUPPORTED, "combine_push is 1, but transfer is plain"));
    push_scene(&s, t, 67);
    s.config.domain_ranks = 1;
    PASS(scene_refused(&s, TERN_UNSUPPORTED, "combine_push is 1, with 5 ranks in 5 domains"));
    if (!scene_on_cpu()) {
        return 0;
    }
    setenv("TERN_CPU_SMS", "5", 1);
    push_scene(&s, t, 68);
    result = scene_refused(&s, TERN_UNSUPPORTED, "this rank may use 1 processor");
    unsetenv("TERN_CPU_SMS");
    return result;
}

/* What is left to Tern: by ranks, tokens, rows, processors, staging and what a rank can do. */
enum { WIDE = 12288, NARROW = SCENE_ROW_BYTES };
static const struct choice {
    uint32_t wish, max_tokens, max_row_bytes, num_sms, transfer;
    uint64_t staging_bytes;
    int ranks, pushes;
} choices[] = {
    {TERN_PUSH_AUTO, 4096, WIDE, 24, TERN_TRANSFER_AUTO, 0, RANKS, 0}, /* opened again by one_lacks */
    {TERN_PUSH_AUTO, 4096, WIDE, 24, TERN_TRANSFER_AUTO, 0, RANKS, 1},
    {TERN_PUSH_AUTO, 4096, WIDE, 0, TERN_TRANSFER_AUTO, 0, RANKS, 1}, /* num_sms as everybody leaves it */
    {TERN_PUSH_NEVER, 4096, WIDE, 24, TERN_TRANSFER_AUTO, 0, RANKS, 0},
    {TERN_PUSH_AUTO, 4095, WIDE, 24, TERN_TRANSFER_AUTO, 0, RANKS, 0},
    {TERN_PUSH_AUTO, 4096, WIDE - 1, 24, TERN_TRANSFER_AUTO, 0, RANKS, 0},
    {TERN_PUSH_AUTO, 4096, WIDE, 23, TERN_TRANSFER_AUTO, 0, RANKS, 0},
    {TERN_PUSH_AUTO, 4096, WIDE, 24, TERN_TRANSFER_PLAIN, 0, RANKS, 0}, /* no rank can */
    {TERN_PUSH_AUTO, 4096, WIDE, 24, TERN_TRANSFER_AUTO, TERN_STAGING_NONE, RANKS, 0},
    {TERN_PUSH_AUTO, 4096, WIDE, 24, TERN_TRANSFER_AUTO, (uint64_t)RANKS * 4096 * WIDE, RANKS, 0},
    {TERN_PUSH_AUTO, 4096, WIDE, 24, TERN_TRANSFER_AUTO, 0, 3, 1},
    {TERN_PUSH_AUTO, 8191, WIDE, 24, TERN_TRANSFER_AUTO, 0, 2, 0},
    {TERN_PUSH_AUTO, 8192, NARROW, 24, TERN_TRANSFER_AUTO, 0, 2, 1},
};

/* Opened again while rank 2 may use a tenth of its processors: all pull. */
static int one_lacks(struct scene *s)
{
    struct tern_comm *comms[RANKS];
    int r;

    batch_close(&s->batches[0]);
    for (r = 0; r < RANKS; r++) {
        comms[r] = s->world.members[r].comm;
        tern_ep_close(s->eps[r]);
        s->eps[r] = NULL;
    }
    push_crowd(comms[2], 10);
    OK(tern_ep_open_all(RANKS, comms, &s->config, s->eps));
    push_crowd(comms[2], 1);
    PASS(scene_round(s, 0));
    return pulls(s);
}

static int choose_all(struct test *t)
{
    size_t i;

    for (i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        const struct choice *c = &choices[i];
        struct batch_shape shape = scene_shape(c->ranks, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
        struct scene s;
        int result;

        test_quiet();
        scene_init(&s, c->ranks, 80 + i);
        s.config.timeout_ms = PATIENCE_MS;
        s.config.combine_push = c->wish;
        s.config.max_tokens = c->max_tokens;
        s.config.max_row_bytes = c->max_row_bytes;
        s.config.num_sms = c->num_sms;
        s.config.transfer = c->transfer;
        s.config.staging_bytes = c->staging_bytes;
        scene_add(&s, &shape, (uint64_t)c->ranks * MAX_TOKENS);
        result = scene_then(&s, i == 0 ? one_lacks : c->pushes ? pushes : pulls);
        if (result) {
            test_note(__FILE__, __LINE__, "choice %zu", i);
            return result;
        }
    }
    test_detail(t, "%zu choices", sizeof choices / sizeof choices[0]);
    return 0;
}

static int chosen(struct test *t)
{
    int result;

    setenv("TERN_CPU_SMS", "200", 1); /* 40 for each rank */
    result = choose_all(t);
    unsetenv("TERN_CPU_SMS");
    return result;
}

static int recover(struct scene *s)
{
    batch_close(&s->batches[0]);
    OK(tern_ep_reset_all(RANKS, s->eps));
    PASS(scene_round(s, 0));
    return combine_way(s, 0, 1);
}

static int absent(struct scene *s)
{
    int r;

    for (r = 0; r < RANKS - 1; r++) {
        PASS(combine_issue_rank(&s->combines[0], r, 0));
    }
    for (r = 0; r < RANKS - 1; r++) {
        REFUSES(tern_ep_synchronize(s->eps[r]), TERN_TIMEOUT, "rank 4 ");
    }
    return recover(s);
}

static int disagree(struct scene *s)
{
    int r;

    push_forbid(s->eps[2], 1);
    PASS(combine_issue(&s->combines[0], 0));
    for (r = 0; r < RANKS; r++) {
        EXPECT(tern_ep_synchronize(s->eps[r]), TERN_MISMATCH);
    }
    push_forbid(s->eps[2], 0);
    return recover(s);
}

/* Rank 4 raises other words than its peers look at. Adds to *rows who tells that rows are missing: nobody, if
 * rank 4, which then misses its peers' ends, began to wait before all of them. */
static int mislead(struct scene *s, int *rows)
{
    struct tern_fault f;
    int r;

    push_mislead(s->eps[4], 1);
    PASS(combine_issue(&s->combines[0], 0));
    for (r = 0; r < RANKS; r++) {
        EXPECT(tern_ep_synchronize(s->eps[r]), TERN_TIMEOUT);
        f.size = sizeof f;
        OK(tern_fault_get(s->eps[r], &f));
        CHECK(f.awaited == TERN_AWAIT_ROWS || f.awaited == TERN_AWAIT_DONE, "rank %d awaited %d", r,
              f.awaited);
        *rows += f.awaited == TERN_AWAIT_ROWS;
    }
    push_mislead(s->eps[4], 0);
    return recover(s);
}

static int silent(struct scene *s)
{
    int rows = 0;

    for (int i = 0; i < 5 && rows == 0; i++) {
        PASS(mislead(s, &rows));
    }
    CHECK(rows > 0, "nobody missed rows");
    return 0;
}

static int faults(struct test *t)
{
    struct scene s;

    push_scene(&s, t, 69);
    PASS(scene_then(&s, absent));
    push_scene(&s, t, 70);
    PASS(scene_then(&s, disagree));
    push_scene(&s, t, 71);
    return scene_then(&s, silent);
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "rows are pushed in rank layout and pulled in expert layout, by turns", turns);
    test_run(&t, "pushing and the copy engine take turns", by_engine);
    test_run(&t, "rows in no window, and rows with gaps", out_of_reach);
    test_run(&t, "any number of processors, other ones on other ranks", processors);
    test_run(&t, "a captured combine pushes what the latest ids say", graphs);
    test_run(&t, "what cannot be pushed is refused by value", refusals);
    test_run(&t, "who pushes, if that is left to the library", chosen);
    test_run(&t, "a rank that never comes, one that disagrees, rows that do not come", faults);
    return test_end(&t);
}
