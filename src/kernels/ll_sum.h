/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency combine: sums that a warp makes of several rows, LL_SUM bytes of a row at once. Loads of
 * several rows are on their way together; the additions keep their order. */
#ifndef TERN_LL_SUM_H
#define TERN_LL_SUM_H

#include "kernels/ll_codec.h"

/* Bytes of a row, in BF16, that a warp adds at once; whole blocks of 128 channels. Rows whose loads a warp
 * has on their way. */
enum {
    LL_SUM_VECS = 2,
    LL_SUM = LL_SUM_VECS * 512,
    LL_HITS = 4,
    LL_PACKED_HITS = 2 /* of sums that are then packed, which takes registers */
};

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

/* A row that has come, of which a lane has loaded its channels. */
struct ll_loaded {
    struct vec16 v[LL_SUM_VECS];
    struct ll_coded coded;
};

/* One lane: its channels of the LL_SUM from `begin` on. */
TERN_DEVICE void ll_load_home(const struct ll_combine_args *p, struct ll_loaded *l, const char *row,
                              uint32_t begin, const int codec)
{
    uint32_t block = (begin + ll_lane_at()) / 256;
    if (codec == LL_PLAIN) {
        ll_load_vecs(l->v, row + begin, p->row_bytes - begin, codec);
    } else if (block < p->blocks) {
        l->coded = ll_fetch(row, p->blocks, block, codec);
    }
}

/* A block's last channels may be past the row's end; nobody stores their sums. Rows that are sums already
 * have weight 1. */
TERN_DEVICE void ll_add_home(const struct ll_combine_args *p, float sum[][8], const struct ll_loaded *l,
                             uint32_t begin, float weight, const int codec)
{
    if (codec == LL_PLAIN) {
        ll_add_vecs(sum, l->v, weight);
        return;
    }
    if ((begin + ll_lane_at()) / 256 >= p->blocks) {
        return;
    }
    TERN_UNROLL
    for (int q = 0; q < LL_SUM_VECS; q++) {
        float y[8];
        ll_decode(y, &l->coded, q, codec);
        TERN_UNROLL
        for (int i = 0; i < 8; i++) {
            sum[q][i] += weight * y[i];
        }
    }
}

/* One warp: so much of a row on its way, at `row`. */
TERN_DEVICE void ll_put_vecs(const struct ll_combine_args *p, char *row, uint32_t begin,
                             const struct vec16 *v, const int codec)
{
    if (codec != LL_PLAIN) {
        ll_encode(row, p->blocks, (begin + ll_lane_at()) / 256, v, codec);
        return;
    }
    TERN_UNROLL
    for (int q = 0; q < LL_SUM_VECS; q++) {
        uint32_t at = begin + ll_vec_at(q, codec);
        if (at < p->row_bytes) {
            st_vec16(row + at, v[q]);
        }
    }
}

#endif
