/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch by asynchronous bulk copies, where some blocks bring rows on from staging (dispatch_drain.h). */
#define DISPATCH_HAS_DRAIN 1
#include "kernels/kernels.h"
#include "kernels/dispatch_body.h"

TERN_KERNEL(dispatch_drain_bulk, struct dispatch_drain_args, a)
{
    if (TERN_HAS_BULK) { /* elsewhere it is never launched, and need not be compiled */
        dispatch_body(&a->d, 1);
    }
}
