/* SPDX-License-Identifier: Apache-2.0
 *
 * Order statistics of a few hundred times. */
#ifndef TERN_BENCH_STATS_H
#define TERN_BENCH_STATS_H

#include <stddef.h>

struct stats {
    double p10, p50, p90, p99; /* by nearest rank: always one of the values */
    double best, worst;
    double spread; /* (worst - best) / p50 */
};

/* Sorts `values` in place; num > 0. */
struct stats stats_of(double *values, size_t num);

#endif
