/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors in no window, in expert layout, of ranks with experts by the hundred: more ranges of rows than a
 * warp of the copying kernel has lanes, most of them of fewer pieces than there are warps, some of none. Rows
 * with and without gaps, padding that is written and padding that nobody may touch, columns that bulk copies
 * can take and others. Judged byte by byte. */
#include "scene.h"

#include <string.h>

enum { RANKS = 3, ALIGNMENT = 8, GAP = 48 };

static int many(struct test *t, uint32_t experts, uint32_t transfer, int routing, uint64_t seed)
{
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_EXPERT, routing);
    struct scene s;
    uint64_t capacity;
    int i, r, result;

    shape.num_experts = experts * RANKS;
    shape.alignment = ALIGNMENT;
    capacity = (uint64_t)RANKS * MAX_TOKENS * shape.topk + (uint64_t)experts * ALIGNMENT;
    scene_init(&s, RANKS, seed);
    scene_leave_windows(&s);
    s.config.num_experts = shape.num_experts;
    s.config.transfer = transfer;
    s.config.staging_bytes = capacity * (SCENE_ROW_BYTES + GAP + 64) + 65536;
    scene_add(&s, &shape, capacity);
    for (r = 0; r < RANKS; r++) {
        struct sender *d = &s.dispatches[0].ranks[r];
        d->zero_padding = r != 1;
        if (r == 2) {
            d->out[0] = payload_take(&s.world, r, ARENA_DEVICE, d->out_rows, SCENE_ROW_BYTES,
                                     SCENE_ROW_BYTES + GAP, "out");
        }
    }
    result = scene_open(&s);
    for (i = 0; !result && i < test_scaled(t, 6); i++) {
        result = scene_round(&s, 0);
        batch_close(&s.batches[0]);
    }
    if (result) {
        test_note(__FILE__, __LINE__, "%u experts a rank, transfer %u", experts, transfer);
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
        PASS(many(t, experts[i], TERN_TRANSFER_AUTO, ROUTING_UNIFORM, 100 + i));
    }
    return many(t, 100, TERN_TRANSFER_AUTO, ROUTING_MIXED, 120);
}

static int plain(struct test *t)
{
    static const uint32_t experts[] = {1, 32, 33, 100};
    size_t i;

    for (i = 0; i < sizeof experts / sizeof experts[0]; i++) {
        PASS(many(t, experts[i], TERN_TRANSFER_PLAIN, ROUTING_UNIFORM, 200 + i));
    }
    return many(t, 100, TERN_TRANSFER_PLAIN, ROUTING_MIXED, 220);
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "rows of hundreds of experts to tensors and back, by bulk copies", bulk);
    test_run(&t, "the same by loads and stores", plain);
    return test_end(&t);
}
