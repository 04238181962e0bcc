/* SPDX-License-Identifier: Apache-2.0
 *
 * The place of the cuda machine in a build without CUDA. */
#include "machine/machine.h"

int terni_cuda_device_count(void) { return 0; }

enum tern_status terni_cuda_open(int ordinal, struct machine **m)
{
    (void)m;
    return TERN_FAIL(TERN_UNSUPPORTED, "CUDA device %d was asked for, but this build of Tern has no CUDA",
                     ordinal);
}

const char *terni_cuda_describe(void) { return "not in this build"; }
