/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch by asynchronous bulk copies, for objects with masks. */
#include "kernels/kernels.h"
#include "kernels/ll_dispatch_body.h"

TERN_KERNEL_AS(tern_ll, dispatch_mask_bulk, ll_dispatch_mask_bulk, struct ll_dispatch_args, p)
{
    if (TERN_HAS_BULK) {
        ll_dispatch_body(p, 1);
    }
}
