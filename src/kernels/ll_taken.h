/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch, receiving: in which order rows are taken. All sources send their rows in the order of
 * their slots, and at the same time. So in one domain the first rows of all are taken, then the second ones,
 * and so on as long as every source has one; what some have more, source after source. A combine sends home
 * in that order too: each rank to all homes in turn, and to each first what its first tokens await. If ranks
 * went by source they would wait for one source's last row while the others' lay there, and all write to the
 * same home at once.
 *
 * Across domains rows are taken source after source, near ones first, which are there first. */
#ifndef TERN_LL_TAKEN_H
#define TERN_LL_TAKEN_H

#include "kernels/ll_order.h"

/* Row i of rank s, whose notes for a combine are `number`. */
struct ll_taken {
    uint32_t s, i, number;
};

/* Rows that every source has. */
TERN_DEVICE uint32_t *ll_even(const struct ll_receiver *r)
{
    return r->slab_before + r->p->experts_a_rank + 1;
}

/* One warp, while rows_before still has rows, and a barrier before they are used. */
TERN_DEVICE void ll_find_even(const struct ll_receiver *r)
{
    uint32_t least = ~0u;
    for (int s = lane(); s < r->p->f.num_ranks; s += 32) {
        uint32_t rows = r->rows_before[s + 1];
        least = rows < least ? rows : least;
    }
    TERN_UNROLL
    for (int step = 16; step > 0; step >>= 1) {
        uint32_t other = shfl_u32(least, lane() ^ step);
        least = other < least ? other : least;
    }
    if (lane() == 0) {
        *ll_even(r) = least;
    }
}

/* Whose row it is if `even` of each source are left out, and the others lie source after source. */
TERN_DEVICE uint32_t ll_source_of(const struct ll_receiver *r, uint32_t n, uint32_t even)
{
    uint32_t s = 0, end = (uint32_t)r->p->f.num_ranks;
    while (end - s > 1) {
        uint32_t middle = (s + end) / 2;
        if (r->rows_before[middle] - middle * even <= n) {
            s = middle;
        } else {
            end = middle;
        }
    }
    return s;
}

/* The n-th row that is taken. */
TERN_DEVICE struct ll_taken ll_taken_of(const struct ll_receiver *r, uint32_t n)
{
    const uint32_t ranks = (uint32_t)r->p->f.num_ranks;
    struct ll_taken t = {0, 0, n};
    if (LL_WITH_FAR) {
        uint32_t received = r->rows_before[ranks];
        n += r->rows_before[ll_far_of(&r->p->f)->first];
        n = n < received ? n : n - received;
        t.s = ll_source_of(r, n, 0);
        t.i = n - r->rows_before[t.s];
        t.number = ll_row_number(r, t.s, n);
        return t;
    }
    const uint32_t even = *ll_even(r);
    if (n < even * ranks) {
        t.i = n / ranks;
        t.s = n - t.i * ranks;
        return t;
    }
    n -= even * ranks;
    t.s = ll_source_of(r, n, even);
    t.i = even + n - (r->rows_before[t.s] - t.s * even);
    return t;
}

#endif
