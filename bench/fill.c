/* SPDX-License-Identifier: Apache-2.0
 *
 * Random bits become numbers by masks, four or eight to a word: the rows of a large run are gigabytes. */
#include "fill.h"

#include <string.h>

uint64_t fill_next(struct fill_random *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

struct fill_random fill_begin(uint64_t seed, enum fill_kind kind, uint64_t rank, uint64_t row)
{
    struct fill_random r = {seed};
    r.state = fill_next(&r) ^ (uint64_t)kind << 56 ^ rank << 40;
    r.state = fill_next(&r) ^ row;
    r.state = fill_next(&r);
    return r;
}

/* Writes `bytes` bytes: each 64-bit random number, anded with `mask`, plus `base`. */
static void fill_masked(struct fill_random r, void *row, uint64_t bytes, uint64_t mask, uint64_t base)
{
    char *at = (char *)row;
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t v = (fill_next(&r) & mask) + base;
        memcpy(at, &v, 8);
    }
    if (bytes > 0) {
        uint64_t v = (fill_next(&r) & mask) + base;
        memcpy(at, &v, bytes);
    }
}

void fill_bf16(struct fill_random r, uint16_t *row, uint32_t channels)
{
    /* Sign, three bits of exponent above 2^-4 (0x3d80), mantissa. */
    fill_masked(r, row, 2 * (uint64_t)channels, 0x83ff83ff83ff83ffu, 0x3d803d803d803d80u);
}

void fill_e4m3(struct fill_random r, uint8_t *row, uint32_t channels)
{
    /* Exponent field 2 to 9 of 15: neither zero nor NaN. */
    fill_masked(r, row, channels, 0xbfbfbfbfbfbfbfbfu, 0x1010101010101010u);
}

void fill_f32(struct fill_random r, float *row, uint32_t num)
{
    /* Exponent field 120, 122, 124 or 126, and any mantissa. */
    uint32_t i;
    for (i = 0; i < num; i++) {
        uint64_t v = fill_next(&r);
        uint32_t bits = 0x3c000000u + (uint32_t)(v >> 32 & 3u) * 0x01000000u + (uint32_t)(v & 0x7fffffu);
        memcpy(&row[i], &bits, 4);
    }
}
