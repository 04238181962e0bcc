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

/* The largest magnitudes of 8 BF16 values, of those with even numbers in the low half. NaN never wins. */
TERN_DEVICE uint32_t amax_vec16(struct vec16 v)
{
    const uint32_t magnitude = 0x7fff7fffu;
    return max_bf16x2(max_bf16x2(v.w[0] & magnitude, v.w[1] & magnitude),
                      max_bf16x2(v.w[2] & magnitude, v.w[3] & magnitude));
}

/* Of both halves, in either. */
TERN_DEVICE uint32_t amax_halves(uint32_t m) { return max_bf16x2(m, m >> 16 | m << 16); }

/* Of 16 lanes, each half apart. All lanes. */
TERN_DEVICE uint32_t amax_lanes(uint32_t m)
{
    TERN_UNROLL
    for (int step = 8; step > 0; step >>= 1) {
        m = max_bf16x2(m, shfl_xor_u32(m, step));
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

/* One lane's 8 channels. */
TERN_DEVICE void cast_vec16(uint32_t *out, struct vec16 v, float factor)
{
    out[0] = cvt_e4m3x4(bf16_lo(v.w[0]) * factor, bf16_hi(v.w[0]) * factor, bf16_lo(v.w[1]) * factor,
                        bf16_hi(v.w[1]) * factor);
    out[1] = cvt_e4m3x4(bf16_lo(v.w[2]) * factor, bf16_hi(v.w[2]) * factor, bf16_lo(v.w[3]) * factor,
                        bf16_hi(v.w[3]) * factor);
}

/* The same, from channel c on. */
TERN_DEVICE void cast_store(char *row, uint32_t c, struct vec16 v, float factor)
{
    cast_vec16((uint32_t *)(void *)(row + c), v, factor);
}

TERN_DEVICE void cast_store_scale(char *scales, uint32_t block, uint32_t stored, uint32_t cast)
{
    if (cast == CAST_FP8_UE8M0) {
        scales[block] = (char)stored;
    } else {
        ((uint32_t *)(void *)scales)[block] = stored;
    }
}

/* Half a warp works on a block of 128 channels, 8 a lane; a warp on four pairs of them at once, which hide
 * each other's latency. */
enum { CAST_AT_ONCE = 4, CAST_CHANNELS = CAST_AT_ONCE * 256 };

/* This lane's channels of blocks from channel `base` on, where its first are at `from`; zeros past the
 * end. */
TERN_DEVICE void cast_load(struct vec16 v[CAST_AT_ONCE], const char *from, uint32_t base, uint32_t channels)
{
    TERN_UNROLL
    for (uint32_t a = 0; a < CAST_AT_ONCE; a++) {
        const uint32_t c = base + a * 256 + (uint32_t)lane() * 8;
        const struct vec16 zero = {{0, 0, 0, 0}};
        v[a] = c < channels ? ld_stream_vec16(from + (size_t)base * 2 + a * 512) : zero;
    }
}

/* Lane a of each half, as every fourth from it on, gets the scale of the half's block a: two divisions a
 * lane, where each would else have two for every block. All lanes; one round of shuffles finds the maxima of
 * two blocks, half a word each. */
TERN_DEVICE struct block_scale cast_scale(const struct vec16 v[CAST_AT_ONCE], uint32_t cast)
{
    uint32_t m[CAST_AT_ONCE], both;
    TERN_UNROLL
    for (int a = 0; a < CAST_AT_ONCE; a++) {
        m[a] = amax_halves(amax_vec16(v[a]));
    }
    m[0] = amax_lanes((m[0] & 0xffffu) | m[1] << 16);
    m[2] = amax_lanes((m[2] & 0xffffu) | m[3] << 16);
    both = (lane() & 2) != 0 ? m[2] : m[0];
    return block_scale_of((lane() & 1) != 0 ? bf16_hi(both) : bf16_lo(both), cast);
}

/* `from`, in global memory, holds `channels` BF16 values (a multiple of 16); `row` receives the FP8 bytes and
 * `scales` scale_bytes, both in shared memory. What comes next is on its way meanwhile. */
TERN_DEVICE void cast_row(const char *from, char *row, char *scales, uint32_t channels, uint32_t scale_bytes,
                          uint32_t cast)
{
    const uint32_t half = (uint32_t)lane() & 16, which = (uint32_t)lane() & 15;
    struct vec16 v[CAST_AT_ONCE], next[CAST_AT_ONCE];
    /* Else the row's address is computed anew for every load: a tenth more instructions. */
    from = computed_once(from + lane() * 16);
    cast_load(v, from, 0, channels);
    for (uint32_t i = (uint32_t)lane(); cast == CAST_FP8_UE8M0 && i < scale_bytes; i += 32) {
        scales[i] = 0;
    }
    sync_warp();
    TERN_ROLLED
    for (uint32_t base = 0; base < channels; base += CAST_CHANNELS) {
        cast_load(next, from, base + CAST_CHANNELS, channels);
        const struct block_scale s = cast_scale(v, cast);
        const uint32_t block = base / 128 + 2 * which + half / 16;
        if (which < CAST_AT_ONCE && block * 128 < channels) {
            cast_store_scale(scales, block, s.stored, cast);
        }
        TERN_UNROLL
        for (uint32_t a = 0; a < CAST_AT_ONCE; a++) {
            const uint32_t c = base + a * 256 + (uint32_t)lane() * 8;
            const float factor = shfl_f32(s.factor, (int)(half + a));
            if (c < channels) {
                cast_store(row, c, v[a], factor);
            }
            v[a] = next[a];
        }
    }
    sync_warp();
}

#endif
