/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors in no window, in expert layout, of ranks with experts by the hundred: more ranges of rows than a
 * warp of the copying kernel has lanes, most of them of fewer pieces than there are warps, some of none. Rows
 * of one piece and of several, with and without gaps, padding that is written and padding that nobody may
 * touch, columns that bulk copies can take and others. Judged byte by byte; a piece that two warps copy is a
 * race, which ThreadSanitizer tells. */
#include "scene.h"

#include <string.h>

enum { RANKS = 3, ALIGNMENT = 8, GAP = 48, LONG_ROW = 592 };

/* Rank 1's padding is left alone, and rank 2's rows are apart. */
static void unlike(struct scene *s)
{
    struct sender *d = s->dispatches[0].ranks;
    struct gatherer *g = &s->combines[0].ranks[2];

    d[1].zero_padding = 0;
    d[2].out[0] =
        payload_take(&s->world, 2, ARENA_DEVICE, d[2].out_rows, s->row_bytes, s->row_bytes + GAP, "out");
    g->in =
        payload_take(&s->world, 2, ARENA_DEVICE, g->in_rows, s->row_bytes, s->row_bytes + GAP, "combine in");
}

static int rounds(struct scene *s, int routing, int num)
{
    PASS(scene_open(s));
    for (int i = 0; i < num; i++) {
        PASS(scene_round(s, 0));
        batch_close(&s->batches[0]);
        batch_redraw(&s->batches[0], routing, &s->rng); /* other ranges */
    }
    return 0;
}

static int many(struct test *t, uint32_t experts, uint32_t transfer, int routing, uint32_t row_bytes)
{
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_EXPERT, routing);
    struct scene s;
    uint64_t capacity;
    int result;

    shape.num_experts = experts * RANKS;
    shape.alignment = ALIGNMENT;
    capacity = (uint64_t)RANKS * MAX_TOKENS * shape.topk + (uint64_t)experts * ALIGNMENT;
    scene_init(&s, RANKS, 100 + experts);
    scene_leave_windows(&s);
    s.row_bytes = s.config.max_row_bytes = row_bytes;
    s.config.num_experts = shape.num_experts;
    s.config.transfer = transfer;
    s.config.staging_bytes = capacity * (row_bytes + GAP + 64) + 65536;
    scene_add(&s, &shape, capacity);
    unlike(&s);
    result = rounds(&s, routing, test_scaled(t, 6));
    if (result) {
        test_note(__FILE__, __LINE__, "%u experts a rank, transfer %u, rows of %u bytes", experts, transfer,
                  row_bytes);
    }
    scene_fini(&s);
    return result;
}

/* 31 to 33 experts: a range less and more than a warp looks up at once. */
static int bulk(struct test *t)
{
    static const uint32_t experts[] = {1, 31, 32, 33, 64, 100, 257};
    size_t i;

    for (i = 0; i < sizeof experts / sizeof experts[0]; i++) {
        PASS(many(t, experts[i], TERN_TRANSFER_AUTO, ROUTING_UNIFORM, SCENE_ROW_BYTES));
    }
    return many(t, 100, TERN_TRANSFER_AUTO, ROUTING_MIXED, LONG_ROW);
}

static int plain(struct test *t)
{
    static const uint32_t experts[] = {1, 32, 33, 100};
    size_t i;

    for (i = 0; i < sizeof experts / sizeof experts[0]; i++) {
        PASS(many(t, experts[i], TERN_TRANSFER_PLAIN, ROUTING_UNIFORM, SCENE_ROW_BYTES));
    }
    return many(t, 100, TERN_TRANSFER_PLAIN, ROUTING_MIXED, LONG_ROW);
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "rows of hundreds of experts to tensors and back, by bulk copies", bulk);
    test_run(&t, "the same by loads and stores", plain);
    return test_end(&t);
}
