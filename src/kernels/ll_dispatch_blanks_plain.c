/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch of some tokens, whose rows go over blanks (ll_blanks.h), by loads and stores: any GPU,
 * and the cpu machine. */
#define LL_WITH_MASKS 0
#include "kernels/kernels.h"
#include "kernels/ll_dispatch_blanks.h"

TERN_KERNEL_AS(tern_ll, dispatch_blanks_plain, ll_dispatch_blanks_plain, struct ll_dispatch_args, p)
{
    ll_dispatch_over(p, 0);
}
