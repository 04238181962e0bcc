/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency combine: sums that a warp makes of several rows, LL_SUM bytes of a row at once. Loads of
 * several rows are on their way together; the additions keep their order. */
#ifndef TERN_LL_SUM_H
#define TERN_LL_SUM_H

#include "kernels/ll_codec.h"

/* Bytes of a row, in BF16, that a warp adds at once; whole blocks of 128 channels. */
enum { LL_SUM_VECS = 2, LL_SUM = LL_SUM_VECS * 512 };
/* Rows whose loads a warp has on their way. A sum that is then packed takes registers for that. */
enum { LL_HITS = 4, LL_PACKED_HITS = 2 };

/* Where a lane's LL_SUM_VECS pieces of 16 bytes lie in the LL_SUM of BF16 that a warp adds. */
TERN_DEVICE uint32_t ll_vec_at(int q, const int codec)
{
    return codec == LL_PLAIN ? (uint32_t)(q * 512 + lane() * 16) : ll_lane_at() + (uint32_t)q * LL_HALF_BLOCK;
}

TERN_DEVICE void ll_clear_sums(float sum[][8])
{
    TERN_UNROLL
    for (int q = 0; q < LL_SUM_VECS; q++) {
        TERN_UNROLL
        for (int i = 0; i < 8; i++) {
            sum[q][i] = 0.0f;
        }
    }
}

/* A lane's pieces of a row of BF16, of which so many bytes are left; zeros past its end. */
TERN_DEVICE void ll_load_vecs(struct vec16 *v, const char *from, uint32_t left, const int codec)
{
    TERN_UNROLL
    for (int q = 0; q < LL_SUM_VECS; q++) {
        struct vec16 zero = {{0, 0, 0, 0}};
        uint32_t at = ll_vec_at(q, codec);
        v[q] = at < left ? ld_stream_vec16(from + at) : zero;
    }
}

/* Products are rounded by themselves. Sums begin with +0 and never become -0, so that a weight of 1 adds the
 * value itself, whatever it is. */
TERN_DEVICE void ll_add_vecs(float sum[][8], const struct vec16 *v, float weight)
{
    TERN_UNROLL
    for (int q = 0; q < LL_SUM_VECS; q++) {
        TERN_UNROLL
        for (int i = 0; i < 4; i++) {
            sum[q][2 * i] += weight * bf16_lo(v[q].w[i]);
            sum[q][2 * i + 1] += weight * bf16_hi(v[q].w[i]);
        }
    }
}

#endif
