/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch by loads and stores: any GPU, and the cpu machine. */
#include "kernels/kernels.h"
#include "kernels/dispatch_body.h"

TERN_KERNEL(dispatch_plain, struct dispatch_args, p) { dispatch_body(p, 0); }
