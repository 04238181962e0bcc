/* SPDX-License-Identifier: Apache-2.0
 *
 * Nearest rank, not interpolation: every figure printed was really measured. */
#include "stats.h"

#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The smallest value that at least percent % of the values do not exceed. */
static double quantile(const double *sorted, size_t num, size_t percent)
{
    size_t rank = (num * percent + 99) / 100;
    return sorted[rank > 0 ? rank - 1 : 0];
}

struct stats stats_of(double *values, size_t num)
{
    struct stats s;
    qsort(values, num, sizeof(*values), compare);
    s.p10 = quantile(values, num, 10);
    s.p50 = quantile(values, num, 50);
    s.p90 = quantile(values, num, 90);
    s.p99 = quantile(values, num, 99);
    s.best = values[0];
    s.worst = values[num - 1];
    s.spread = s.p50 > 0 ? (s.worst - s.best) / s.p50 : 0;
    return s;
}
