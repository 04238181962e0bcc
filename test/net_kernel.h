/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernel of net_kernel_test and its host share: the layout of what a rank gives its next one. */
#ifndef TERN_TEST_NET_KERNEL_H
#define TERN_TEST_NET_KERNEL_H

#include "tern/tern.h"

enum {
    TOUR_THREADS = 96,
    TOUR_WARPS = TOUR_THREADS / 32,
    CELL = 13,                          /* bytes of a thread */
    STRIP = 101,                        /* of a warp */
    SHEET = 3003,                       /* of the block */
    TOUR_SHARED = TOUR_WARPS * 4 * 136, /* stages of 128 bytes: a sheet goes round the rings */
};

/* Twice for each: by the plain call and by the other; for a warp and the block once more, by bulk copies. */
struct tour_box {
    unsigned char cells[2][TOUR_THREADS][CELL], strips[3][TOUR_WARPS][STRIP], sheets[3][SHEET];
    unsigned char signalled[2][3][SHEET]; /* by a thread, a warp, the block */
    uint32_t stored[TOUR_THREADS];        /* through a pointer */
    uint32_t small[2];                    /* inline */
    uint64_t large, sum, tickets, flags[6];
    uint32_t narrow_flags[2];
    uint32_t mark; /* between the last two barriers of each round: its number */
    uint32_t nothing_more;
};

struct tour_args {
    struct tern_net net;
    struct tern_net_team team;
    const struct tour_box *from; /* this rank's, to read */
    struct tour_box *box;        /* in a window */
    struct tour_box *seen;       /* the box as all of the block saw it after the barrier */
    struct tour_box *got;        /* fetched back from the next rank */
    struct tour_box *early;      /* of that, what was there when plain gets returned */
    uint64_t *olds;              /* [TOUR_THREADS] */
    int32_t *status;             /* [TOUR_THREADS] all statuses together */
    uint64_t round;              /* from 1 */
};

/* What a box holds of the rank before, who gave `given` in this round, after the round's first barriers: as
 * the block sees it. */
static inline struct tour_box tour_box_of(const struct tour_box *given, uint64_t round)
{
    struct tour_box box = *given;
    box.sum = round * TOUR_THREADS * (TOUR_THREADS + 1) / 2;
    box.tickets = round * TOUR_THREADS;
    for (int i = 0; i < 6; i++) {
        box.flags[i] = round;
    }
    box.narrow_flags[0] = box.narrow_flags[1] = (uint32_t)round;
    box.mark = (uint32_t)round - 1;
    box.nothing_more = 0;
    return box;
}

/* Memory that has the types of its users, to whom the calls lie open: one thread writes numbers, gives them
 * to itself, fetches them back and reads numbers. By as many bytes at a time as the ends allow: 4, 8, 16. */
enum { TYPES_NUMBERS = 12, TYPES_SHIFTS = 3 };

struct types_args {
    struct tern_net net;
    float *box;        /* [TYPES_NUMBERS + 4] in a window, 16-byte aligned */
    float *from, *got; /* [TYPES_NUMBERS] local, likewise aligned */
    float *seen;       /* [TYPES_SHIFTS][TYPES_NUMBERS] what came back */
    int32_t *status;
    float first;
};

#endif
