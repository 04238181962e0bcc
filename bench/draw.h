/* SPDX-License-Identifier: Apache-2.0
 *
 * Ids that no file gives: each token draws different experts, from the seed and its rank alone, so that a
 * rank's tokens stay the same when others come or go. Uniform, or with a rank that is named more often. */
#ifndef TERN_BENCH_DRAW_H
#define TERN_BENCH_DRAW_H

#include "core/core.h"

struct draw {
    uint32_t seed, num_ranks, tokens, topk, experts;
    uint32_t skew; /* rows that rank 0 receives in rank layout, in per cent of the mean; 100: as the others */
};

/* ids: [num_ranks, tokens, topk]. TERN_INVALID_ARGUMENT if no draw gives that skew. */
enum tern_status draw_ids(const struct draw *draw, int64_t *ids);

#endif
