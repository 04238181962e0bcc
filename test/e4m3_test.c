/* SPDX-License-Identifier: Apache-2.0
 *
 * Formats: E4M3 rounding against a search through all its values, and the larger of two BF16 numbers. Without
 * arguments every value that matters is tried; "e4m3_all" tries all 2^32, in half a minute. */
#include <math.h>

#include "simt_rig.h"

static float e4m3_value(int code)
{
    int exponent = code >> 3, mantissa = code & 7;
    return exponent == 0 ? ldexpf((float)mantissa, -9) : ldexpf((float)(8 + mantissa), exponent - 10);
}

/* By comparing with all values, in double precision. */
static uint32_t slow_e4m3(const double *values, uint32_t bits)
{
    double v = (double)bits_f32(bits & 0x7fffffffu);
    uint32_t sign = bits >> 31 << 7;
    int low = 0, high = 0x7e;

    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return 0x7f;
    }
    if (v >= values[high]) {
        return sign | 0x7eu;
    }
    while (high - low > 1) {
        int middle = (low + high) / 2;
        *(v >= values[middle] ? &low : &high) = middle;
    }
    if (v - values[low] == values[high] - v) {
        return sign | (uint32_t)(low % 2 == 0 ? low : high);
    }
    return sign | (uint32_t)(v - values[low] < values[high] - v ? low : high);
}

static uint32_t e4m3_wrong(const uint32_t *tails, uint32_t num_tails)
{
    double values[0x7f];
    uint32_t wrong = 0;

    for (int i = 0; i < 0x7f; i++) {
        values[i] = (double)e4m3_value(i);
    }
    for (uint32_t head = 0; head < 1u << 20; head++) {
        for (uint32_t i = 0; i < num_tails; i++) {
            uint32_t bits = head << 12 | (tails != NULL ? tails[i] : i);
            wrong += simt_e4m3(bits_f32(bits)) != slow_e4m3(values, bits);
        }
    }
    return wrong;
}

/* Every value that matters: E4M3 keeps 3 of 23 mantissa bits, all lower ones count only as zero, one, half,
 * or something in between. */
static void test_e4m3(void)
{
    static const uint32_t tails[] = {0, 1, 0x7ff, 0x800, 0x801, 0xfff};
    CHECK(e4m3_wrong(tails, UNDER_TSAN ? 1 : 6) == 0);
}

static void test_e4m3_all(void) { CHECK(e4m3_wrong(NULL, 1u << 12) == 0); }

/* Where a BF16 number stands among all, with -0 before +0; NaN before all. */
static int bf16_rank(uint32_t v)
{
    if ((v & 0x7fff) > 0x7f80) {
        return -0x10000;
    }
    return v & 0x8000 ? -1 - (int)(v & 0x7fff) : (int)v;
}

/* Of all 2^16 with some, in either half while the other has the same pair turned round. */
static void test_max_bf16x2(void)
{
    static const uint32_t others[] = {0,      0x8000, 1,      0x8001, 0x007f, 0x3f80, 0xbf80,
                                      0x7f7f, 0x7f80, 0xff80, 0x7f81, 0x7fff, 0xffff, 0x38d1};
    uint32_t wrong = 0;
    for (uint32_t a = 0; a < 0x10000; a++) {
        for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
            uint32_t b = others[i], want = bf16_rank(a) >= bf16_rank(b) ? a : b;
            want = bf16_rank(want) == -0x10000 ? 0x7fff : want;
            wrong += max_bf16x2(a | b << 16, b | a << 16) != (want | want << 16);
        }
    }
    CHECK(wrong == 0);
}

static const struct test tests[] = {
    {"max_bf16x2", test_max_bf16x2, 0},
    {"e4m3", test_e4m3, 0},
    {"e4m3_all", test_e4m3_all, 1},
};

int main(int argc, char **argv) { return run_tests(tests, sizeof(tests) / sizeof(tests[0]), argc, argv); }
