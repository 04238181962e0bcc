/* SPDX-License-Identifier: Apache-2.0
 *
 * The same, of rows that copy engines bring: apart, as what it asks for each row takes some per cent where
 * processors are few. */
#include "kernels/kernels.h"

#define COMBINE_PIECE COMBINE_MIX_CHUNK
#include "kernels/combine_body.h"

TERN_KERNEL(combine_engine_bulk, struct combine_args, p)
{
    if (TERN_HAS_BULK) {
        combine_body(p, 1);
    }
}
