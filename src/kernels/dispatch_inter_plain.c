/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch across domains by loads and stores: any GPU, and the cpu machine. */
#include "kernels/kernels.h"
#include "kernels/dispatch_inter_body.h"

TERN_KERNEL(dispatch_inter_plain, struct dispatch_inter_args, p) { dispatch_inter_body(p, 0); }
