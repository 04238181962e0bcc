/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine across domains by asynchronous bulk copies, for as many targets and domains as there can be: it
 * holds more in registers, so its blocks have fewer warps. */
#include "kernels/kernels.h"
#include "kernels/combine_inter_body.h"

TERN_KERNEL(combine_inter_wide_bulk, struct combine_inter_args, p)
{
    if (TERN_HAS_BULK) {
        combine_inter_body(p, COMBINE_BULK, PULL_MAX_GROUPS);
    }
}
