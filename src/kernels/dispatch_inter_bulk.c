/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch across domains by asynchronous bulk copies: sm_90 and later, and the cpu machine. */
#include "kernels/kernels.h"
#include "kernels/dispatch_inter_body.h"

TERN_KERNEL(dispatch_inter_bulk, struct dispatch_inter_args, p)
{
    if (TERN_HAS_BULK) { /* elsewhere it is never launched, and need not be compiled */
        dispatch_inter_body(p, 1);
    }
}
