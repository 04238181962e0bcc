/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch, receiving: what a block keeps of it in shared memory, beside what sending needs:
 * | begins [R][L] | rows before [R + 1] | rows of the slab before [L + 1] | in one domain even [1], across
 * domains order [R + 1] | choices before [R][L + 1] | railed messages [D + 1] | */
#ifndef TERN_LL_RECEIVER_H
#define TERN_LL_RECEIVER_H

#include "kernels/ids.h"
#include "kernels/ll_frame.h"

struct ll_receiver {
    const struct ll_dispatch_args *p;
    uint64_t epoch, begin;
    int threads;      /* the block's first so many receive; the others wait for copies that they have sent */
    uint32_t *begins; /* choices at first */
    uint32_t *rows_before, *slab_before;
};

TERN_DEVICE struct ll_receiver ll_receiver_of(const struct ll_dispatch_args *p, uint64_t epoch, int threads)
{
    struct ll_receiver r;
    r.p = p;
    r.epoch = epoch;
    r.threads = threads;
    r.begin = ll_begin(&p->lane);
    r.begins = (uint32_t *)(shared_memory() + p->place_offset);
    r.rows_before = r.begins + p->num_experts;
    r.slab_before = r.rows_before + p->f.num_ranks + 1;
    return r;
}

/* By rank, choices an expert are for the caller's sums only. */
TERN_DEVICE uint32_t ll_experts_counted(const struct ll_dispatch_args *p)
{
    return p->by_rank && !p->sum_counts ? 0 : p->experts_a_rank;
}

/* One warp: values[1 .. n] become the sums of those up to them, values[0] 0. A lane has consecutive ones. */
TERN_DEVICE void ll_scan(uint32_t *values, uint32_t n)
{
    uint32_t each = (n + 31) / 32, sum = 0;
    uint32_t begin = 1 + (uint32_t)lane() * each;
    uint32_t end = begin + each < n + 1 ? begin + each : n + 1;
    TERN_ROLLED
    for (uint32_t i = begin; i < end; i++) {
        sum += values[i];
    }
    sum = scan_warp(sum) - sum;
    TERN_ROLLED
    for (uint32_t i = begin; i < end; i++) {
        sum += values[i];
        values[i] = sum;
    }
    if (lane() == 0) {
        values[0] = 0;
    }
}

#endif
