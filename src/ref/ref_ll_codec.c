/* SPDX-License-Identifier: Apache-2.0
 *
 * What home reads of a row that travels compressed, as docs/numerics.md defines it: a table of logarithms,
 * plain divisions, one channel after another. There are no bytes here, only the values that come out. */
#include <math.h>

#include "ref/ref.h"

enum { CHUNK = 128, OCTAVE = 16384, STEPS = 510, STEPS_BESIDE_SPECIAL = 508 };

/* In 2^-14 octaves, of 1 + m / 128. */
static const int16_t fractions[128] = {
    0,     193,   384,   572,   759,   944,   1127,  1308,  1487,  1664,  1840,  2014,  2186,  2357,  2526,
    2693,  2859,  3024,  3187,  3349,  3509,  3668,  3825,  3981,  4137,  4290,  4443,  4594,  4745,  4894,
    5042,  5189,  5334,  5479,  5623,  5766,  5908,  6049,  6189,  6328,  6466,  6604,  6740,  6876,  7011,
    7145,  7278,  7411,  7543,  7674,  7804,  7933,  8062,  8191,  8318,  8445,  8571,  8697,  8822,  8946,
    9070,  9193,  9315,  9437,  9559,  9680,  9800,  9919,  10039, 10157, 10275, 10393, 10510, 10626, 10742,
    10858, 10973, 11087, 11201, 11315, 11428, 11541, 11653, 11764, 11876, 11986, 12097, 12207, 12316, 12425,
    12534, 12642, 12749, 12857, 12964, 13070, 13176, 13282, 13387, 13492, 13596, 13700, 13804, 13907, 14010,
    14113, 14215, 14317, 14418, 14520, 14620, 14721, 14821, 14921, 15020, 15119, 15218, 15317, 15415, 15513,
    15611, 15708, 15806, 15903, 15999, 16096, 16192, 16288};

/* Of a magnitude's pattern; that of 2^-127 is 0. */
static int64_t logarithm(uint32_t pattern)
{
    return (int64_t)(pattern / 128) * OCTAVE + fractions[pattern % 128];
}

/* The value at a place in 2^-23 octaves: the fraction bent to f - 11/32 f (1 - f), in 11 bits. */
static double power(int64_t place)
{
    int64_t octave = place / (1 << 23);
    int64_t fraction = place % (1 << 23);
    int64_t product = fraction * ((1 << 23) - fraction) / (1 << 14); /* f (1 - f) in 2^-32 */
    int64_t bend = product * 11 / (1 << 14);
    int64_t mantissa = (fraction - bend + 2048) / 4096;

    return octave == 0 ? ldexp((double)mantissa, -126 - 11)
                       : ldexp((double)(2048 + mantissa), (int)octave - 127 - 11);
}

static void through_logarithms(const uint16_t *in, uint32_t channels, float *out)
{
    uint32_t largest = 0, smallest = 0x7f80;
    int64_t steps = STEPS;

    for (uint32_t c = 0; c < channels; c++) {
        uint32_t pattern = in[c] & 0x7fff;
        if (pattern >= 0x7f80) {
            steps = STEPS_BESIDE_SPECIAL;
        } else if (pattern > 0) {
            largest = pattern > largest ? pattern : largest;
            smallest = pattern < smallest ? pattern : smallest;
        }
    }
    int64_t high = logarithm(largest), low = logarithm(smallest);
    low = low < high - 32 * OCTAVE ? high - 32 * OCTAVE : low;
    int64_t span = high > low ? high - low : 1;
    int64_t step = (span * 512 + steps / 2) / steps;
    for (uint32_t c = 0; c < channels; c++) {
        double sign = in[c] >> 15 ? -1.0 : 1.0;
        uint32_t pattern = in[c] & 0x7fff;
        int64_t above = logarithm(pattern) - low;
        if (pattern >= 0x7f80) {
            out[c] = terni_ref_bf16_value(in[c]);
        } else if (pattern == 0 || above < -OCTAVE) {
            out[c] = (float)(sign * 0.0);
        } else {
            above = above < 0 ? 0 : above;
            int64_t steps_up = (above * steps + span / 2) / span;
            out[c] = (float)(sign * power(low * 512 + steps_up * step));
        }
    }
}

static void through_fp8(const uint16_t *in, uint32_t channels, float *out)
{
    uint8_t bytes[CHUNK];
    float scale;

    terni_ref_cast(TERN_CAST_FP8, in, channels, bytes, &scale);
    for (uint32_t c = 0; c < channels; c++) {
        out[c] = terni_ref_e4m3_value(bytes[c]) * scale;
    }
}

void terni_ref_compress(uint32_t compression, const uint16_t *in, uint32_t channels, float *out)
{
    for (uint32_t begin = 0; begin < channels; begin += CHUNK) {
        uint32_t count = channels - begin < CHUNK ? channels - begin : CHUNK;
        if (compression == TERN_LL_FP8) {
            through_fp8(in + begin, count, out + begin);
        } else if (compression == TERN_LL_LOG10) {
            through_logarithms(in + begin, count, out + begin);
        } else {
            for (uint32_t c = begin; c < begin + count; c++) {
                out[c] = terni_ref_bf16_value(in[c]);
            }
        }
    }
}
