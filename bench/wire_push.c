/* SPDX-License-Identifier: Apache-2.0
 *
 * All-to-all, every rank writes into its peers with bulk copies: the wire that dispatch is compared with. */
#include "kernels/kernels.h"
#include "wire_bulk.h"

TERN_KERNEL(wire_push, struct wire_args, p) { wire_bulk(p, 0); }
