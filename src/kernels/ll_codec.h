/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks of 128 channels of BF16 to fewer bytes and back, for rows on their way home (docs/numerics.md has
 * the formats and their accuracy). A row is planes of all its blocks, the last one whole too. Eight lanes
 * have a block: lane j has channels 8 j to 8 j + 7 and those 64 further on, whose codes lie together, 16
 * bytes.
 *
 *   FP8    | E4M3, 128 bytes a block | FP32 scale of each |
 *   LOG10  | low 8 bits of codes, 128 bytes a block | their ninth bits and signs, 32 bytes | range of each |
 *
 * LOG10 has a sign and a 9-bit code a channel. Code 0 is zero; codes 1 to 511 are equal steps of the
 * logarithm from the smallest magnitude of the block, or 32 octaves below the largest, to the largest. The
 * range is those two magnitudes themselves, as BF16, and two flags.
 *
 * Logarithms are of the pattern, pattern / 128 with the fraction bent: log2 + 127 to less than 0.005 octaves.
 * So the power is a quadratic, exact in integers, and the patterns of subnormals, which grow like those of
 * the first octave, need no case of their own. All of it is integers: kernels, the cpu machine and the
 * reference, which has a table in place of ll_log, agree in every bit.
 *
 * A processor has half as many integer units as floating-point ones, and unpacks on the way to a sum that is
 * waited for. Hence what most blocks do not have, zeros, infinities and NaN, is behind one branch a block. */
#ifndef TERN_LL_CODEC_H
#define TERN_LL_CODEC_H

#include "kernels/cast.h"
#include "kernels/ll_args.h"

enum { LL_PLAIN = 0, LL_FP8 = 1, LL_LOG10 = 2 };

enum {
    LOG_OCTAVE = 1 << 14,        /* ll_log counts in 2^-14 octaves, */
    LOG_FINE = 9,                /* decoding in so many bits more */
    LOG_REACH = 32 * LOG_OCTAVE, /* of codes, below the largest magnitude */
    LOG_STEPS = 510,
    LOG_STEPS_SPECIAL = 508, /* beside infinities and NaN: finite codes end at 509 */
    LOG_INFINITY = 510,
    LOG_NAN = 511,
    BF16_INFINITY = 0x7f80
};

/* A range: largest finite magnitude << 16 | smallest that is not zero; both 0 if there are none. */
#define LOG_HAS_SPECIAL 0x80000000u /* an infinity or NaN */
#define LOG_HAS_ZERO    0x00008000u /* a zero, or something that may become one */

/* Of a magnitude's 15 bits. The cubic is fitted so that ll_power brings every fraction back. */
TERN_DEVICE uint32_t ll_log(uint32_t pattern)
{
    uint32_t m = pattern & 127;
    uint32_t bend = 1106417674u - m * (9344277u - m * (63177u - m * 193u));
    return (pattern << 7) + ((m * (128 - m) * (bend >> 12) + (1u << 18)) >> 19);
}

TERN_DEVICE uint32_t mul_high(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }

/* FP32 bits of the magnitude with this logarithm, in 2^-23 octaves: fraction f becomes f - 11/32 f (1 - f),
 * rounded to 11 bits. */
TERN_DEVICE uint32_t ll_power(uint32_t log)
{
    uint32_t f = log << 9; /* in 2^-32 */
    uint32_t bend = mul_high(mul_high(f, 0u - f), 11u << 18);
    return (log - bend + 2048) & 0xfffff000u;
}

/* What both sides make of a range: code 1 stands at `low`, the last finite one at low + span. */
struct ll_scale {
    uint32_t low, span, steps;
    int clipped; /* `low` is above the smallest */
};

TERN_DEVICE struct ll_scale ll_scale_of(uint32_t range)
{
    struct ll_scale s;
    uint32_t high = ll_log(range >> 16 & 0x7fff);
    uint32_t low = ll_log(range & 0x7fff);
    s.clipped = low + LOG_REACH < high;
    s.low = s.clipped ? high - LOG_REACH : low;
    s.span = s.low < high ? high - s.low : 1; /* all equal: only code 1 is used */
    s.steps = range & LOG_HAS_SPECIAL ? LOG_STEPS_SPECIAL : LOG_STEPS;
    return s;
}

/* Eight lanes: the range of their block. A lane's 16 channels are in 8 words. */
TERN_DEVICE uint32_t ll_range_of(const uint32_t *words)
{
    uint32_t special = 0, zero = 0, high = 0x80u << 16, low = 0;
    TERN_UNROLL
    for (int i = 0; i < 8; i++) {
        /* Two channels at once. 0x80 more makes infinities and NaN negative, and all others stay ordered. The
         * smallest is the largest of 0x8000 - pattern; only zero reaches the upper bit, and is taken out. */
        uint32_t pair = words[i] & 0x7fff7fffu;
        uint32_t raised = pair + 0x00800080u;
        uint32_t turned = 0x80008000u - pair;
        special |= raised;
        zero |= turned;
        turned &= 0x7fff7fffu;
        high = (int32_t)raised > (int32_t)high ? raised : high;
        high = (int32_t)(raised << 16) > (int32_t)high ? raised << 16 : high;
        low = turned > low ? turned : low;
        low = turned << 16 > low ? turned << 16 : low;
    }
    high >>= 16;
    low >>= 16;
    TERN_UNROLL
    for (int step = 4; step > 0; step >>= 1) {
        uint32_t other_high = shfl_u32(high, lane() ^ step);
        uint32_t other_low = shfl_u32(low, lane() ^ step);
        high = other_high > high ? other_high : high;
        low = other_low > low ? other_low : low;
    }
    uint32_t block = 0xffu << (lane() & 24);
    uint32_t range = warp_ballot((special & 0x80008000u) != 0) & block ? LOG_HAS_SPECIAL : 0;
    range |= warp_ballot((zero & 0x80008000u) != 0) & block ? LOG_HAS_ZERO : 0;
    return high == 0x80 ? range : range | (high - 0x80) << 16 | (0x8000 - low);
}

/* The nearest code of a magnitude that is finite and not below s.low, the upper one of two. */
TERN_DEVICE uint32_t ll_code_of(struct ll_scale s, uint32_t inverse, uint32_t pattern)
{
    uint32_t n = (ll_log(pattern) - s.low) * s.steps + s.span / 2; /* below 2^28 */
    uint32_t q = mul_high(n, inverse);                             /* n / span, or one less */
    return q + 1 + (n - q * s.span >= s.span);
}

/* The code of a magnitude that may be anything, if it has one of its own. */
TERN_DEVICE uint32_t ll_rare_code(struct ll_scale s, uint32_t pattern, uint32_t code)
{
    uint32_t log = ll_log(pattern);
    if (pattern >= BF16_INFINITY) {
        return pattern == BF16_INFINITY ? LOG_INFINITY : LOG_NAN;
    }
    if (pattern == 0 || log + LOG_OCTAVE < s.low) { /* more than an octave below code 1, zero is nearer */
        return 0;
    }
    return log < s.low ? 1 : code;
}

/* One lane's 16 channels as they travel. */
struct ll_coded {
    uint32_t low[4];
    uint32_t
        high; /* of channels 2 p and 2 p + 1: ninth bits at 7 - p and 23 - p, signs at 15 - p and 31 - p */
    uint32_t range; /* FP8: scale */
};

TERN_DEVICE struct ll_coded ll_log_encode(const uint32_t *words)
{
    struct ll_coded coded = {{0, 0, 0, 0}, 0, ll_range_of(words)};
    struct ll_scale s = ll_scale_of(coded.range);
    uint32_t inverse = 0xffffffffu / s.span;
    uint32_t codes[16];
    coded.range |= s.clipped ? LOG_HAS_ZERO : 0;
    TERN_UNROLL
    for (int i = 0; i < 16; i++) {
        codes[i] = ll_code_of(s, inverse, words[i / 2] >> 16 * (i % 2) & 0x7fff);
    }
    if (coded.range & (LOG_HAS_SPECIAL | LOG_HAS_ZERO)) {
        TERN_UNROLL
        for (int i = 0; i < 16; i++) {
            codes[i] = ll_rare_code(s, words[i / 2] >> 16 * (i % 2) & 0x7fff, codes[i]);
        }
    }
    TERN_UNROLL
    for (int p = 0; p < 8; p++) {
        uint32_t pair = codes[2 * p] | codes[2 * p + 1] << 16;
        coded.low[p / 2] |= ((pair & 255) | (pair >> 8 & 0xff00)) << 16 * (p % 2);
        coded.high |= (pair & 0x01000100u) >> (1 + p) | (words[p] & 0x80008000u) >> p;
    }
    return coded;
}

TERN_DEVICE uint32_t ll_code_at(const struct ll_coded *coded, int i)
{
    uint32_t ninth = i % 2 ? coded->high >> (15 - i / 2) : coded->high << (1 + i / 2);
    return (coded->low[i / 4] >> 8 * (i % 4) & 255) | (ninth & 256);
}

TERN_DEVICE uint32_t ll_sign_at(const struct ll_coded *coded, int i)
{
    return coded->high << (i % 2 ? i / 2 : 16 + i / 2) & 0x80000000u;
}

/* One half of a lane's channels. */
TERN_DEVICE void ll_log_decode(float *y, const struct ll_coded *coded, const int half)
{
    struct ll_scale s = ll_scale_of(coded->range);
    uint32_t step = ((s.span << LOG_FINE) + s.steps / 2) / s.steps;
    uint32_t first = (s.low << LOG_FINE) - step; /* where code 0 would be */
    TERN_UNROLL
    for (int i = 0; i < 8; i++) {
        uint32_t size = ll_power(first + ll_code_at(coded, 8 * half + i) * step);
        y[i] = bits_f32((size & 0x7fffffffu) | ll_sign_at(coded, 8 * half + i));
    }
    if (coded->range & (LOG_HAS_SPECIAL | LOG_HAS_ZERO)) {
        TERN_UNROLL
        for (int i = 0; i < 8; i++) {
            uint32_t code = ll_code_at(coded, 8 * half + i);
            uint32_t sign = ll_sign_at(coded, 8 * half + i);
            if (code == 0) {
                y[i] = bits_f32(sign);
            } else if (code > s.steps + 1) {
                y[i] = bits_f32(sign | (code == LOG_INFINITY ? 0x7f800000u : 0x7fc00000u));
            }
        }
    }
}

/* Eight lanes have a block; as dispatch casts it. */
TERN_DEVICE struct ll_coded ll_fp8_encode(const uint32_t *words)
{
    struct ll_coded coded;
    float amax = 0.0f;
    TERN_UNROLL
    for (int i = 0; i < 8; i++) {
        amax = abs_max(abs_max(amax, bf16_lo(words[i])), bf16_hi(words[i]));
    }
    TERN_UNROLL
    for (int step = 4; step > 0; step >>= 1) {
        amax = abs_max(amax, shfl_xor_f32(amax, step));
    }
    struct block_scale s = block_scale_of(amax, CAST_FP8);
    TERN_UNROLL
    for (int i = 0; i < 4; i++) {
        uint32_t a = words[2 * i], b = words[2 * i + 1];
        coded.low[i] = cvt_e4m3x4(bf16_lo(a) * s.factor, bf16_hi(a) * s.factor, bf16_lo(b) * s.factor,
                                  bf16_hi(b) * s.factor);
    }
    coded.high = 0;
    coded.range = s.stored;
    return coded;
}

TERN_DEVICE void ll_fp8_decode(float *y, const struct ll_coded *coded, const int half)
{
    float scale = bits_f32(coded->range);
    TERN_UNROLL
    for (int i = 0; i < 8; i++) {
        uint32_t byte = coded->low[2 * half + i / 4] >> 8 * (i % 4);
        /* E4M3's fields lie like FP32's, subnormals too; 2^120 makes up for the other bias. */
        float value = bits_f32((byte & 0x80) << 24 | (byte & 0x7f) << 20) * bits_f32(0x7b800000u);
        y[i] = (byte & 0x7f) == 0x7f ? bits_f32(0x7fc00000u) : value * scale;
    }
}

/* Four blocks have the 1024 bytes of BF16 that a warp works on. Of a lane's 16 channels the first 8 begin at
 * this byte of them, the others LL_HALF_BLOCK further on. */
enum { LL_HALF_BLOCK = 128 };
TERN_DEVICE uint32_t ll_lane_at(void) { return (uint32_t)(lane() >> 3) * 256 + (uint32_t)(lane() & 7) * 16; }

/* One warp: each lane's 16 channels, v[0] and v[1], of block `block`, into a row of so many blocks,
 * wherever it is. Lanes past its last block give anything, channels past the row's end are zero. */
TERN_DEVICE void ll_encode(char *row, uint32_t blocks, uint32_t block, const struct vec16 *v, const int codec)
{
    uint32_t j = (uint32_t)lane() & 7;
    uint32_t words[8];
    TERN_UNROLL
    for (int i = 0; i < 8; i++) {
        words[i] = v[i / 4].w[i % 4];
    }
    struct ll_coded coded = codec == LL_FP8 ? ll_fp8_encode(words) : ll_log_encode(words);
    if (block < blocks) {
        struct vec16 low = {{coded.low[0], coded.low[1], coded.low[2], coded.low[3]}};
        st_vec16(row + block * 128 + j * 16, low);
        if (codec == LL_LOG10) {
            *(uint32_t *)(row + blocks * 128 + block * 32 + j * 4) = coded.high;
        }
        if (j == 0) {
            *(uint32_t *)(row + blocks * (codec == LL_FP8 ? 128 : 160) + block * 4) = coded.range;
        }
    }
}

/* One lane: its 16 channels of a block of a row in global memory. */
TERN_DEVICE struct ll_coded ll_fetch(const char *row, uint32_t blocks, uint32_t block, const int codec)
{
    struct ll_coded coded;
    uint32_t j = (uint32_t)lane() & 7;
    struct vec16 low = ld_stream_vec16(row + block * 128 + j * 16);
    TERN_UNROLL
    for (int i = 0; i < 4; i++) {
        coded.low[i] = low.w[i];
    }
    coded.high = codec == LL_LOG10 ? *(const uint32_t *)(row + blocks * 128 + block * 32 + j * 4) : 0;
    coded.range = *(const uint32_t *)(row + blocks * (codec == LL_FP8 ? 128 : 160) + block * 4);
    return coded;
}

/* Half 0: the lane's first 8 channels; half 1: the others. */
TERN_DEVICE void ll_decode(float *y, const struct ll_coded *coded, const int half, const int codec)
{
    if (codec == LL_FP8) {
        ll_fp8_decode(y, coded, half);
    } else {
        ll_log_decode(y, coded, half);
    }
}

#endif
