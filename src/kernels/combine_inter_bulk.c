/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine across domains by asynchronous bulk copies, for tokens of at most 32 targets in a domain and at
 * most 32 domains: sm_90 and later, and the cpu machine. */
#include "kernels/kernels.h"

#define COMBINE_PIECE LINE_PIECE
#include "kernels/combine_inter_body.h"

TERN_KERNEL(combine_inter_bulk, struct combine_inter_args, p)
{
    if (TERN_HAS_BULK) { /* elsewhere it is never launched, and need not be compiled */
        combine_inter_body(p, COMBINE_LINE, 1);
    }
}
