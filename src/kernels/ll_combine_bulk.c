/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency combine by asynchronous bulk copies: sm_90 and later, and the cpu machine. */
#define LL_WITH_MASKS 0
#include "kernels/kernels.h"
#include "kernels/ll_combine_body.h"

TERN_KERNEL_AS(tern_ll, combine_bulk, ll_combine_bulk, struct ll_combine_args, p)
{
    if (TERN_HAS_BULK) { /* elsewhere it is never launched, and need not be compiled */
        ll_combine_body(p, LL_PLAIN, 1);
    }
}
