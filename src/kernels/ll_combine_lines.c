/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency combine of some tokens, whose rows go in lines (ll_lines.h): any GPU, and the cpu machine. */
#define LL_WITH_MASKS 0
#define LL_WITH_LINES 1
#include "kernels/kernels.h"
#include "kernels/ll_combine_body.h"

TERN_KERNEL_AS(tern_ll, combine_lines, ll_combine_lines, struct ll_combine_args, p)
{
    ll_combine_body(p, LL_PLAIN, 0);
}
