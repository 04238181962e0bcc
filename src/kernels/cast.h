/* SPDX-License-Identifier: Apache-2.0
 *
 * BF16 rows to FP8 E4M3 with one scale per 128 channels, by one warp, from global to shared memory. The
 * definition is in tern.h (enum tern_cast); amax has a floor of 1e-4, so that a block of zeros has a
 * scale. */
#ifndef TERN_CAST_H
#define TERN_CAST_H

#include "simt/simt.h"

enum { CAST_NONE = 0, CAST_FP8 = 1, CAST_FP8_POW2 = 2, CAST_FP8_UE8M0 = 3 };

TERN_DEVICE float abs_max(float m, float v)
{
    float a = bits_f32(f32_bits(v) & 0x7fffffffu);
    return a > m ? a : m; /* NaN never wins */
}

TERN_DEVICE float amax_vec16(struct vec16 v)
{
    float m = 0.0f;
    TERN_UNROLL
    for (int i = 0; i < 4; i++) {
        m = abs_max(abs_max(m, bf16_lo(v.w[i])), bf16_hi(v.w[i]));
    }
    return m;
}

/* The factor a block is multiplied with, and what its scale says: FP32 bits, or the exponent byte. */
struct block_scale {
    float factor;
    uint32_t stored;
};

TERN_DEVICE struct block_scale block_scale_of(float amax, uint32_t cast)
{
    struct block_scale s;
    float floored = amax > 1e-4f ? amax : 1e-4f;
    float inverse = floored / 448.0f;
    if (cast == CAST_FP8) {
        s.factor = 448.0f / floored;
        s.stored = f32_bits(inverse);
    } else {
        uint32_t bits = f32_bits(inverse);
        uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0);
        /* 2^(127 - exponent), which is subnormal for the two largest exponents. */
        s.factor = bits_f32(exponent < 254 ? (254u - exponent) << 23 : 0x400000u >> (exponent - 254));
        s.stored = cast == CAST_FP8_UE8M0 ? exponent : exponent << 23;
    }
    return s;
}

enum { CAST_AT_ONCE = 4 }; /* independent blocks a lane works on, to hide the latency of each */

/* Writes one lane's 8 channels, and its block's scale by the block's first lane. */
TERN_DEVICE void cast_store(char *row, char *scales, uint32_t c, struct vec16 v, struct block_scale s,
                            uint32_t cast)
{
    uint32_t *out = (uint32_t *)(row + c);
    out[0] = cvt_e4m3x4(bf16_lo(v.w[0]) * s.factor, bf16_hi(v.w[0]) * s.factor, bf16_lo(v.w[1]) * s.factor,
                        bf16_hi(v.w[1]) * s.factor);
    out[1] = cvt_e4m3x4(bf16_lo(v.w[2]) * s.factor, bf16_hi(v.w[2]) * s.factor, bf16_lo(v.w[3]) * s.factor,
                        bf16_hi(v.w[3]) * s.factor);
    if ((lane() & 15) == 0 && cast == CAST_FP8_UE8M0) {
        scales[c / 128] = (char)s.stored;
    } else if ((lane() & 15) == 0) {
        ((uint32_t *)scales)[c / 128] = s.stored;
    }
}

/* `from`, in global memory, holds `channels` BF16 values (a multiple of 16); `row` receives the FP8 bytes and
 * `scales` scale_bytes, both in shared memory. Half a warp works on a block of 128 channels, 8 a lane. */
TERN_DEVICE void cast_row(const char *from, char *row, char *scales, uint32_t channels, uint32_t scale_bytes,
                          uint32_t cast)
{
    for (uint32_t i = (uint32_t)lane(); cast == CAST_FP8_UE8M0 && i < scale_bytes; i += 32) {
        scales[i] = 0;
    }
    sync_warp();
    for (uint32_t c0 = (uint32_t)lane() * 8; c0 - (uint32_t)lane() * 8 < channels; c0 += CAST_AT_ONCE * 256) {
        struct vec16 v[CAST_AT_ONCE];
        float amax[CAST_AT_ONCE];
        TERN_UNROLL
        for (int a = 0; a < CAST_AT_ONCE; a++) {
            uint32_t c = c0 + (uint32_t)a * 256;
            struct vec16 zero = {{0, 0, 0, 0}};
            v[a] = c < channels ? ld_stream_vec16(from + (size_t)c * 2) : zero;
        }
        TERN_UNROLL
        for (int a = 0; a < CAST_AT_ONCE; a++) {
            amax[a] = amax_vec16(v[a]);
        }
        TERN_UNROLL
        for (int step = 8; step > 0; step >>= 1) {
            TERN_UNROLL
            for (int a = 0; a < CAST_AT_ONCE; a++) {
                amax[a] = abs_max(amax[a], shfl_xor_f32(amax[a], step));
            }
        }
        TERN_UNROLL
        for (int a = 0; a < CAST_AT_ONCE; a++) {
            uint32_t c = c0 + (uint32_t)a * 256;
            if (c < channels) {
                cast_store(row, scales, c, v[a], block_scale_of(amax[a], cast), cast);
            }
        }
    }
    sync_warp();
}

#endif
