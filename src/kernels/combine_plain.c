/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine by loads: any GPU, and the cpu machine. */
#include "kernels/kernels.h"
#include "kernels/combine_body.h"

TERN_KERNEL(combine_plain, struct combine_args, p) { combine_body(p, 0); }
