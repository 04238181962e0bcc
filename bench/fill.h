/* SPDX-License-Identifier: Apache-2.0
 *
 * The contents of every row, as a formula of (seed, kind, rank, row): random, finite and never zero. A row
 * can be made again wherever it is expected, so that a check needs no copy of anybody's input. */
#ifndef TERN_BENCH_FILL_H
#define TERN_BENCH_FILL_H

#include <stdint.h>

enum fill_kind { FILL_TOKENS = 1, FILL_SCALES, FILL_EXPERTS, FILL_IDS, FILL_WEIGHTS, FILL_WIRE };

/* Uniform 64-bit numbers (splitmix64). */
struct fill_random {
    uint64_t state;
};
struct fill_random fill_begin(uint64_t seed, enum fill_kind kind, uint64_t rank, uint64_t row);
uint64_t fill_next(struct fill_random *r);

/* Sizes from 2^-4 to 2^4, both signs. */
void fill_bf16(struct fill_random r, uint16_t *row, uint32_t channels);
/* Bytes that are finite E4M3 numbers and not zero. */
void fill_e4m3(struct fill_random r, uint8_t *row, uint32_t channels);
/* From 2^-7 to 1. */
void fill_f32(struct fill_random r, float *row, uint32_t num);

#endif
