/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch across domains: rows for one far rank leave in chunks (ll_far_args.h). Consecutive
 * slots belong to tokens of one block or of several. Whoever has put a row into the out-box counts it, and
 * who finds that it was the chunk's last one puts the chunk. So nobody waits for anybody. Every block knows
 * how many rows there are for each rank, hence of how many the last chunk is.
 *
 * Counters are never cleared. Each row first raises its counter to no rows of this epoch, and then adds one:
 * both are atomic and by one thread, so that its addition finds this epoch's number whatever the word held
 * before, and a later raise finds no less. Kernels of a lane that send run one after another, with epochs
 * that rise, and no counter of an operation is touched when the next one begins. What an operation left
 * incomplete, since this rank was evicted in its middle or the far rank masked, thus means nothing in the
 * next. A reset zeroes the counters with the epoch. */
#ifndef TERN_LL_CHUNK_H
#define TERN_LL_CHUNK_H

#include "kernels/ll_carry.h"
#include "kernels/ll_counts.h"
#include "kernels/ll_sender.h"

/* A program that is wrong on purpose, for test/tsan_awake.sh, counts without order. */
#ifdef TERN_TEST_RELAXED_LL_CHUNK
#define LL_COUNT_ROW atom_add_relaxed_gpu_u64
#else
#define LL_COUNT_ROW atom_add_acqrel_gpu_u64
#endif

/* One warp: `bytes`, a multiple of 16. */
TERN_DEVICE void ll_copy_row(char *to, const char *from, uint32_t bytes)
{
    for (uint32_t i = (uint32_t)lane() * 16; i < bytes; i += 512) {
        st_vec16(to + i, ld_vec16(from + i));
    }
}

/* One warp: the row at `row` goes to far rank d, which has `slot` for it. */
TERN_DEVICE void ll_add_to_chunk(const struct ll_sender *s, int d, uint32_t slot, const char *row)
{
    const struct ll_dispatch_args *p = s->p;
    const struct ll_far *far = ll_far_of(&p->f);
    const uint32_t *begins = ll_far_begins(s);
    uint32_t first = slot & ~(LL_CHUNK - 1u), left = begins[d + 1] - begins[d] - first;
    uint32_t rows = left < LL_CHUNK ? left : LL_CHUNK;
    uint64_t *count = &far->chunks[(uint64_t)(uint32_t)d * far->rank_chunks + slot / LL_CHUNK];
    char *out = ll_rows_out(&p->f, s->epoch) + (uint64_t)(begins[d] + first) * p->row_bytes;
    uint64_t before = 0;
    if (lane() == 0) {
        red_max_relaxed_gpu_u64(count, s->epoch << LL_CHUNK_BITS);
    }
    ll_copy_row(out + (slot - first) * p->row_bytes, row, p->row_bytes);
    sync_warp(); /* what all lanes have stored comes before the count */
    if (lane() == 0) {
        /* Pairs with itself in the warps that have the chunk's other rows: all of them are in the out-box
         * before the last one puts it. */
        before = LL_COUNT_ROW(count, 1);
    }
    if (shfl_u32((uint32_t)before & ((1u << LL_CHUNK_BITS) - 1u), 0) + 1 == rows) {
        sync_warp(); /* what one has seen through the count is there for all */
        uint64_t place = ll_place_of(&p->lane, (uint32_t)p->f.rank, 0);
        char *to = ll_buffer(&p->lane, p->f.own, s->epoch) + place * p->lane.row_stride;
        ll_put_rows(&p->f, &p->lane, s->epoch, d, slot / LL_CHUNK + (uint32_t)d,
                    to + (uint64_t)first * p->row_bytes, out, rows * p->row_bytes, place + first);
    }
}

/* All warps, after the stage is whole: its row into the out-box, once for each far rank that it is for, a
 * warp each. slots[d]: at rank d, or -1. */
TERN_DEVICE void ll_start_far(const struct ll_sender *s, const int32_t *slots, const char *row)
{
    const struct op_frame *f = &s->p->f;
    int turn = 0;
    for (int d0 = 0; d0 < f->num_ranks; d0 += 32) {
        int d = d0 + lane();
        int32_t slot = d < f->num_ranks && ll_is_far(f, d) ? slots[d] : -1;
        for (uint32_t left = warp_ballot(slot >= 0); left; left &= left - 1) {
            int from = TERN_FFS(left) - 1;
            uint32_t there = shfl_u32((uint32_t)slot, from);
            if (turn == warp()) {
                ll_add_to_chunk(s, d0 + from, there, row);
            }
            turn = turn + 1 < nwarps() ? turn + 1 : 0;
        }
    }
}

#endif
