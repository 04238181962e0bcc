/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch by loads and stores: any GPU, and the cpu machine. */
#include "kernels/kernels.h"
#include "kernels/ll_dispatch_body.h"

TERN_KERNEL_AS(tern_ll, dispatch_plain, ll_dispatch_plain, struct ll_dispatch_args, p)
{
    ll_dispatch_body(p, 0);
}
