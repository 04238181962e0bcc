/* SPDX-License-Identifier: Apache-2.0
 *
 * Low latency across domains: rows for one far rank, or railed for one domain, leave in chunks
 * (ll_far_args.h), whichever warps have them. Whoever has put a row into the out-box counts it, and who finds
 * that it was the chunk's last one puts the chunk. So nobody waits for anybody. Each knows of how many rows
 * the chunk is. Rows that warps make by pieces, railed sums (ll_gather.h), are counted by pieces.
 *
 * Counters are never cleared. Each row first raises its counter to no rows of this epoch, and then adds one:
 * both are atomic and by one thread, so that its addition finds this epoch's number whatever the word held
 * before, and a later raise finds no less. Kernels of a lane that count run one after another, with epochs
 * that rise, and no counter of an operation is touched when the next one begins; so dispatch and combine have
 * the same words, each in an order of its own. What an operation left incomplete, since this rank was evicted
 * in its middle or the far rank masked, thus means nothing in the next. A reset zeroes the counters with the
 * epoch. */
#ifndef TERN_LL_CHUNK_H
#define TERN_LL_CHUNK_H

#include "kernels/ll_carry.h"

/* A program that is wrong on purpose, for test/tsan_awake.sh, counts without order. */
#ifdef TERN_TEST_RELAXED_LL_CHUNK
#define LL_COUNT_ROW atom_add_relaxed_gpu_u64
#else
#define LL_COUNT_ROW atom_add_acqrel_gpu_u64
#endif

/* The first slot of a slot's chunk. */
TERN_DEVICE uint32_t ll_chunk_of(uint32_t slot) { return slot & ~(LL_CHUNK - 1u); }

/* Rows of the chunk with this first slot, if the far rank gets `rows`. */
TERN_DEVICE uint32_t ll_chunk_rows(uint32_t rows, uint32_t first)
{
    return rows - first < LL_CHUNK ? rows - first : (uint32_t)LL_CHUNK;
}

/* One warp, before ll_count_row. */
TERN_DEVICE void ll_open_chunk(uint64_t *count, uint64_t epoch)
{
    if (lane() == 0) {
        red_max_relaxed_gpu_u64(count, epoch << LL_CHUNK_BITS);
    }
}

/* One warp, whose row is in the out-box. 1: so are now all `rows` of the chunk, or all pieces, and all lanes
 * may read them. */
TERN_DEVICE int ll_count_row(uint64_t *count, uint32_t rows)
{
    uint64_t before = 0;
    sync_warp(); /* what all lanes have stored comes before the count */
    if (lane() == 0) {
        /* Pairs with itself in the warps that have the chunk's other rows: all of them are in the out-box
         * before the last one puts it. */
        before = LL_COUNT_ROW(count, 1);
    }
    int last = shfl_u32((uint32_t)before & ((1u << LL_CHUNK_BITS) - 1u), 0) + 1 == rows;
    sync_warp(); /* what one has seen through the count is there for all */
    return last;
}

#endif
