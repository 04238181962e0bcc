/* SPDX-License-Identifier: Apache-2.0
 *
 * Railed low-latency combine of rows that travel as logarithms across domains, by loads and stores: any GPU,
 * and the cpu machine. */
#define LL_WITH_FAR   1
#define LL_WITH_RAIL  1
#define LL_WITH_MASKS 0
#include "kernels/kernels.h"
#include "kernels/ll_combine_body.h"

TERN_KERNEL_AS(tern_ll, combine_log10_rail_plain, ll_combine_log10_rail_plain, struct ll_combine_inter_args,
               p)
{
    ll_combine_body(&p->c, LL_LOG10, 0);
}
