/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine by asynchronous bulk copies: sm_90 and later, and the cpu machine. */
#include "kernels/kernels.h"

#define COMBINE_HAS_ENGINE 0
#include "kernels/combine_body.h"

TERN_KERNEL(combine_bulk, struct combine_args, p)
{
    if (TERN_HAS_BULK) { /* elsewhere it is never launched, and need not be compiled */
        combine_body(p, 1);
    }
}
