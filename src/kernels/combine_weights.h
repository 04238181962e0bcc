/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine: top-k weights. In one domain a warp of each block pulls them while the others pull rows. */
#ifndef TERN_COMBINE_WEIGHTS_H
#define TERN_COMBINE_WEIGHTS_H

#include "kernels/combine_pull.h"

/* Weights of up to this many ranks are on their way at once; each is a remote load of some microseconds. */
enum { WEIGHTS_AT_ONCE = 8 };

/* Adds the weights of targets begin .. begin + WEIGHTS_AT_ONCE - 1 of choice k of token t, in order. */
TERN_DEVICE float add_weights(const struct puller *s, uint32_t t, uint32_t k, uint32_t begin, uint32_t end,
                              float sum)
{
    const struct combine_args *p = s->p;
    const struct place *from = s->table.places + COMBINE_WEIGHTS * p->f.num_ranks;
    float value[WEIGHTS_AT_ONCE];
    int there[WEIGHTS_AT_ONCE];
    TERN_UNROLL
    for (int i = 0; i < WEIGHTS_AT_ONCE; i++) {
        struct target g = {-1, 0};
        if (begin + (uint32_t)i < end) {
            g = target_of(&s->map, t, begin + (uint32_t)i);
        }
        there[i] = g.rank >= 0 && from[g.rank].base;
        value[i] = 0.0f;
        if (there[i]) {
            const float *row = (const float *)(from[g.rank].base + g.row * from[g.rank].stride);
            value[i] = row[p->layout == 0 ? k : 0];
        }
    }
    TERN_UNROLL
    for (int i = 0; i < WEIGHTS_AT_ONCE; i++) {
        sum = there[i] ? sum + value[i] : sum;
    }
    return sum;
}

/* A warp of each of s->blocks pulls top-k weights while others see to rows: a lane takes one choice of one
 * token. */
TERN_DEVICE void pull_weights(const struct puller *s)
{
    const struct combine_args *p = s->p;
    uint64_t choices = (uint64_t)p->num_tokens * p->topk;
    for (uint64_t c = (uint64_t)s->block * 32 + (uint32_t)lane(); c < choices;
         c += (uint64_t)s->blocks * 32) {
        uint32_t t = (uint32_t)(c / p->topk);
        uint32_t k = (uint32_t)(c % p->topk);
        uint32_t begin = p->layout == 0 ? 0 : k;
        uint32_t end = p->layout == 0 ? s->map.num_targets : k + 1;
        float sum = 0.0f;
        for (uint32_t i = begin; i < end; i += WEIGHTS_AT_ONCE) {
            sum = add_weights(s, t, k, i, end, sum);
        }
        p->out_weights[c] = sum;
    }
}

#endif
