/* SPDX-License-Identifier: Apache-2.0
 *
 * ll_combine_fp8_bulk for objects with masks. */
#include "kernels/kernels.h"
#include "kernels/ll_combine_body.h"

TERN_KERNEL_AS(tern_ll, combine_fp8_mask_bulk, ll_combine_fp8_mask_bulk, struct ll_combine_args, p)
{
    if (TERN_HAS_BULK) { /* elsewhere it is never launched, and need not be compiled */
        ll_combine_body(p, LL_FP8, 1);
    }
}
