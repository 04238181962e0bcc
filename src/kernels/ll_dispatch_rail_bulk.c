/* SPDX-License-Identifier: Apache-2.0
 *
 * Railed low-latency dispatch across domains, by asynchronous bulk copies inside the domain. */
#define LL_WITH_FAR   1
#define LL_WITH_RAIL  1
#define LL_WITH_MASKS 0
#include "kernels/kernels.h"
#include "kernels/ll_dispatch_body.h"

TERN_KERNEL_AS(tern_ll, dispatch_rail_bulk, ll_dispatch_rail_bulk, struct ll_dispatch_inter_args, p)
{
    if (TERN_HAS_BULK) {
        ll_dispatch_body(&p->d, 1);
    }
}
