/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch by asynchronous bulk copies: sm_90 and later, and the cpu machine. */
#include "kernels/kernels.h"
#include "kernels/dispatch_body.h"

TERN_KERNEL(dispatch_bulk, struct dispatch_args, p)
{
    if (TERN_HAS_BULK) { /* elsewhere it is never launched, and need not be compiled */
        dispatch_body(p, 1);
    }
}
