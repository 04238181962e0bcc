/* SPDX-License-Identifier: Apache-2.0
 *
 * All-to-all, every rank stores to its peers, 16 bytes at a time. */
#include "kernels/kernels.h"
#include "wire_lanes.h"

TERN_KERNEL(wire_store, struct wire_args, p) { wire_lanes(p, 0); }
