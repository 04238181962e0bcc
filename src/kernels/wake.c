/* SPDX-License-Identifier: Apache-2.0
 *
 * Nothing, so that a new stream has run something (machine/cuda_stream.c says why). */
#include "kernels/kernels.h"
#include "simt/simt.h"

TERN_KERNEL(wake, struct wake_args, p) { (void)p; }
