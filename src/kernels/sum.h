/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of BF16 rows, eight channels at a time: added in FP32, rounded once at the end. */
#ifndef TERN_SUM_H
#define TERN_SUM_H

#include "simt/simt.h"

TERN_DEVICE void sum_add(float sum[8], struct vec16 v)
{
    TERN_UNROLL
    for (int i = 0; i < 4; i++) {
        sum[2 * i] += bf16_lo(v.w[i]);
        sum[2 * i + 1] += bf16_hi(v.w[i]);
    }
}

TERN_DEVICE struct vec16 sum_round(const float sum[8])
{
    struct vec16 v;
    TERN_UNROLL
    for (int i = 0; i < 4; i++) {
        v.w[i] = cvt_bf16x2(sum[2 * i], sum[2 * i + 1]);
    }
    return v;
}

#endif
