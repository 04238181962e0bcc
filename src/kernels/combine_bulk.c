/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine by asynchronous bulk copies: sm_90 and later, and the cpu machine. */
#include "kernels/kernels.h"
#include "kernels/combine_body.h"

TERN_KERNEL(combine_bulk, struct combine_args, p) { combine_body(p, 1); }
