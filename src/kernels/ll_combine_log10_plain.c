/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency combine of rows that travel as 10-bit logarithms, by loads and stores: any GPU, and the cpu
 * machine. */
#include "kernels/kernels.h"
#include "kernels/ll_combine_body.h"

TERN_KERNEL_AS(tern_ll, combine_log10_plain, ll_combine_log10_plain, struct ll_combine_args, p)
{
    ll_combine_body(p, LL_LOG10, 0);
}
