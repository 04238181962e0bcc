/* SPDX-License-Identifier: Apache-2.0
 *
 * What counting ids takes, with a route or without: an id as the caller has it, and sums along a warp. */
#ifndef TERN_IDS_H
#define TERN_IDS_H

#include "simt/simt.h"

/* Of int64 if idx_bytes is 8, else of int32. */
TERN_DEVICE int64_t id_at(const void *topk_idx, uint32_t idx_bytes, uint64_t at)
{
    return idx_bytes == 8 ? ((const int64_t *)topk_idx)[at] : ((const int32_t *)topk_idx)[at];
}

/* Sum of v over this lane and the lanes before it. All lanes. */
TERN_DEVICE uint32_t scan_warp(uint32_t v)
{
    TERN_UNROLL
    for (int step = 1; step < 32; step *= 2) {
        uint32_t other = shfl_u32(v, (lane() - step) & 31);
        v += lane() >= step ? other : 0;
    }
    return v;
}

/* All lanes. Tokens lie side by side in a warp, `topk` lanes each, and this lane is the k-th of its token:
 * whether none before it there has its value. */
TERN_DEVICE int is_first(uint32_t value, uint32_t k, uint32_t topk)
{
    uint32_t mine = topk < 32 ? ((1u << topk) - 1) << ((uint32_t)lane() - k) : ~0u;
    return TERN_FFS(match_any_u32(value) & mine) - 1 == lane();
}

#endif
