/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows that a rank dispatches to itself, by warps of their own, from memory to memory. A processor's bulk unit
 * stores some 47 GB/s: with few blocks that, not the links, is the limit, and a quarter of the rows (of 4
 * ranks) need no link. With many blocks the senders take these rows along. */
#ifndef TERN_DISPATCH_OWN_H
#define TERN_DISPATCH_OWN_H

#include "kernels/copy.h"
#include "kernels/place.h"

/* Every payload of token t into row `row` of this rank. All lanes. */
TERN_DEVICE void keep_row(const struct dispatch_args *p, const struct op_table *table, uint32_t t,
                          int64_t row)
{
    for (uint32_t c = 0; c < p->num_out; c++) {
        struct place at = table->places[p->out[c].column * (uint32_t)p->f.num_ranks + (uint32_t)p->f.rank];
        const char *from = p->in[c].data + (int64_t)t * p->in[c].row_stride;
        for (uint32_t o = 0; at.base && o < p->out[c].row_bytes; o += COPY_PIECE) {
            uint32_t left = p->out[c].row_bytes - o;
            copy_piece(at.base + row * at.stride + o, from + o, left < COPY_PIECE ? left : COPY_PIECE);
        }
    }
}

/* The warps after the courier, in rank layout and without a cast. */
TERN_DEVICE void keep_own(const struct dispatch_args *p, const struct op_table *table)
{
    struct target_map map = target_map_of(&p->f, table, &p->route, p->layout, p->topk, p->num_experts);
    uint32_t keeper = (uint32_t)bid() * p->num_keepers + (uint32_t)warp() - p->num_senders - 1;
    for (uint32_t t0 = keeper * 32; t0 < p->num_tokens; t0 += (uint32_t)nblk() * p->num_keepers * 32) {
        struct target g = {-1, 0};
        if (t0 + (uint32_t)lane() < p->num_tokens) {
            g = target_of(&map, t0 + (uint32_t)lane(), (uint32_t)p->f.rank);
        }
        for (uint32_t left = warp_ballot(g.rank >= 0); left; left &= left - 1) {
            int src = TERN_FFS(left) - 1;
            keep_row(p, table, t0 + (uint32_t)src, (int64_t)shfl_u64((uint64_t)g.row, src));
        }
    }
}

#endif
