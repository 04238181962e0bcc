/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch of some tokens, whose rows go over blanks (ll_blanks.h), by asynchronous bulk copies:
 * sm_90 and later, and the cpu machine. */
#define LL_WITH_MASKS 0
#include "kernels/kernels.h"
#include "kernels/ll_dispatch_blanks.h"

TERN_KERNEL_AS(tern_ll, dispatch_blanks_bulk, ll_dispatch_blanks_bulk, struct ll_dispatch_args, p)
{
    if (TERN_HAS_BULK) { /* elsewhere it is never launched, and need not be compiled */
        ll_dispatch_over(p, 1);
    }
}
