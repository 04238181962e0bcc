/* SPDX-License-Identifier: Apache-2.0
 *
 * FP32 to E4M3 (1 sign, 4 exponent bits of bias 7, 3 mantissa bits; no infinities, 0x7f is NaN), rounding to
 * nearest even and saturating to 448, as the GPU's cvt.rn.satfinite.e4m3x2.f32 has it. */
#include "simt/simt.h"

enum {
    F32_INFINITY = 0x7f800000,
    F32_448 = 0x43e00000,      /* the largest E4M3 */
    F32_2_POW_M6 = 0x3c800000, /* the smallest normal E4M3 */
    F32_2_POW_14 = 0x46800000
};

uint32_t simt_e4m3(float v)
{
    uint32_t bits = f32_bits(v);
    uint32_t sign = bits >> 24 & 0x80u;
    uint32_t magnitude = bits & 0x7fffffffu;

    if (magnitude > F32_INFINITY) {
        return 0x7f;
    }
    if (magnitude >= F32_448) {
        return sign | 0x7eu;
    }
    if (magnitude < F32_2_POW_M6) {
        /* The last place of 2^14 is 2^-9, E4M3's smallest step: the addition rounds there, to nearest even.
         */
        return sign | (f32_bits(bits_f32(magnitude) + bits_f32(F32_2_POW_14)) - F32_2_POW_14);
    }
    magnitude -= (127u - 7u) << 23; /* change of bias */
    return sign | (magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20;
}
