/* SPDX-License-Identifier: Apache-2.0
 *
 * The number formats of the reference. A conversion counts how many steps of the target format lie below the
 * value, in doubles, where every such count is exact, and lets rint choose the nearest, the even one of two.
 * Patterns without sign grow by one a step, across exponents too, so the count is the pattern. This shares
 * nothing with the bit tricks of the kernels. */
#include "ref/ref.h"

#include <math.h>
#include <string.h>

/* Pattern without sign of the nearest value, for a format with so many bits of mantissa, whose exponent field
 * 0 has the step 2^least. */
static uint32_t nearest(double size, int mantissa_bits, int least)
{
    int exponent, field;

    if (size == 0) {
        return 0;
    }
    (void)frexp(size, &exponent); /* size lies in [2^(exponent - 1), 2^exponent) */
    field = exponent - 1 - mantissa_bits - least + 1;
    if (field <= 1) { /* the first normal exponent has the same step as the subnormal one */
        return (uint32_t)rint(ldexp(size, -least));
    }
    return ((uint32_t)(field - 1) << mantissa_bits) + (uint32_t)rint(ldexp(size, -(least + field - 1)));
}

float terni_ref_bf16_value(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16; /* BF16 is the upper half of FP32, by definition */
    float value;

    memcpy(&value, &wide, 4);
    return value;
}

uint16_t terni_ref_bf16(float value)
{
    uint32_t sign = signbit(value) ? 0x8000u : 0u;

    if (isnan(value)) {
        return 0x7fff;
    }
    if (isinf(value)) {
        return (uint16_t)(sign | 0x7f80u);
    }
    return (uint16_t)(sign | nearest(fabs((double)value), 7, -133)); /* past the largest comes infinity */
}

float terni_ref_e4m3_value(uint8_t bits)
{
    int exponent = bits >> 3 & 15;
    double mantissa = bits & 7;
    double size = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);

    if ((bits & 127) == 127) {
        return NAN;
    }
    return (float)(bits >> 7 ? -size : size);
}

uint8_t terni_ref_e4m3(float value)
{
    uint32_t sign = signbit(value) ? 0x80u : 0u;

    if (isnan(value)) {
        return 0x7f;
    }
    if (fabsf(value) >= 448.0f) {
        return (uint8_t)(sign | 0x7eu);
    }
    return (uint8_t)(sign | nearest(fabs((double)value), 3, -9));
}

uint32_t terni_ref_scale_bytes(uint32_t cast, uint32_t channels)
{
    uint32_t blocks = (channels + TERN_FP8_BLOCK - 1) / TERN_FP8_BLOCK;

    return cast == TERN_CAST_FP8_UE8M0 ? (blocks + 3) / 4 * 4 : 4 * blocks;
}

/* The exponent byte of the smallest power of two that is not below a positive scale. */
static int ceiling_exponent(float scale)
{
    uint32_t bits;

    memcpy(&bits, &scale, 4);
    return (int)(bits >> 23) + ((bits & 0x7fffffu) != 0);
}

static void cast_block(uint32_t cast, const uint16_t *in, uint32_t channels, uint8_t *out, uint32_t block,
                       unsigned char *scales)
{
    float amax = 1e-4f;
    float scale, factor;
    uint32_t i;
    int exponent;

    for (i = 0; i < channels; i++) {
        float size = fabsf(terni_ref_bf16_value(in[i]));
        if (size > amax) { /* false for NaN, which has no say */
            amax = size;
        }
    }
    scale = amax / 448.0f;
    factor = 448.0f / amax;
    exponent = ceiling_exponent(scale);
    if (cast != TERN_CAST_FP8) {
        scale = ldexpf(1.0f, exponent - 127);
        factor = ldexpf(1.0f, 127 - exponent);
    }
    for (i = 0; i < channels; i++) {
        float product = terni_ref_bf16_value(in[i]) * factor;
        out[i] = terni_ref_e4m3(product);
    }
    if (cast == TERN_CAST_FP8_UE8M0) {
        scales[block] = (unsigned char)exponent;
    } else {
        memcpy(scales + 4 * (size_t)block, &scale, 4);
    }
}

void terni_ref_cast(uint32_t cast, const uint16_t *in, uint32_t channels, uint8_t *out, void *scales)
{
    uint32_t begin;

    memset(scales, 0, terni_ref_scale_bytes(cast, channels));
    for (begin = 0; begin < channels; begin += TERN_FP8_BLOCK) {
        uint32_t left = channels - begin;
        cast_block(cast, in + begin, left < TERN_FP8_BLOCK ? left : TERN_FP8_BLOCK, out + begin,
                   begin / TERN_FP8_BLOCK, (unsigned char *)scales);
    }
}
