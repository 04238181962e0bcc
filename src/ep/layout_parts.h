/* SPDX-License-Identifier: Apache-2.0
 *
 * What layout.c and layout_ll.c share: limits of both, the step of the cursor that lays arrays one behind the
 * other, and what the one asks of the other. */
#ifndef TERN_LAYOUT_PARTS_H
#define TERN_LAYOUT_PARTS_H

#include "ep/layout.h"

enum {
    ALIGNMENT = 256, /* of every array: whole cache lines and DMA granules */
    MAX_ROW_BYTES = 1 << 20,
    MAX_ROWS = 0x7fffffff /* that one rank can hold */
};

/* Of low latency: its part of the shape, which has ranks, experts and max_topk already; and a lane. */
enum tern_status terni_shape_init_ll(const struct tern_ep_config *config, struct ep_shape *shape);
void terni_layout_lane(const struct ep_shape *shape, struct ll_layout *layout);

static inline uint64_t lesser(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

static inline uint64_t take(uint64_t *cursor, uint64_t bytes)
{
    uint64_t at = *cursor;
    *cursor = align_up(at + bytes, ALIGNMENT);
    return at;
}

#endif
