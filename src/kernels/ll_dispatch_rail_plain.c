/* SPDX-License-Identifier: Apache-2.0
 *
 * Railed low-latency dispatch across domains, by loads and stores: any GPU, and the
 * cpu machine. */
#define LL_WITH_FAR   1
#define LL_WITH_RAIL  1
#define LL_WITH_MASKS 0
#include "kernels/kernels.h"
#include "kernels/ll_dispatch_body.h"

TERN_KERNEL_AS(tern_ll, dispatch_rail_plain, ll_dispatch_rail_plain, struct ll_dispatch_inter_args, p)
{
    ll_dispatch_body(&p->d, 0);
}
