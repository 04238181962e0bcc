/* SPDX-License-Identifier: Apache-2.0
 *
 * All-to-all, every rank reads from its peers with bulk copies: the way combine moves rows. */
#include "kernels/kernels.h"
#include "wire_bulk.h"

TERN_KERNEL(wire_pull, struct wire_args, p) { wire_bulk(p, 1); }
