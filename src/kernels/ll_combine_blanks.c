/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency combine of some tokens, whose rows go over blanks (ll_blanks.h): any GPU, and the cpu
 * machine. */
#define LL_WITH_MASKS  0
#define LL_WITH_BLANKS 1
#include "kernels/kernels.h"
#include "kernels/ll_combine_body.h"

TERN_KERNEL_AS(tern_ll, combine_blanks, ll_combine_blanks, struct ll_combine_args, p)
{
    ll_combine_body(p, LL_PLAIN, 0);
}
