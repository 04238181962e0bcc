/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between buffers in global memory by one warp, with many loads in flight. */
#ifndef TERN_COPY_H
#define TERN_COPY_H

#include "kernels/ep_args.h"
#include "simt/simt.h"

enum { COPY_AT_ONCE = COPY_PIECE / 512 }; /* loads a lane has on their way */

/* In words if `words`, else in bytes. All lanes. */
TERN_DEVICE void copy_narrow(char *dst, const char *src, uint32_t bytes, int words)
{
    uint32_t unit = words ? 4 : 1;
    for (uint32_t i = (uint32_t)lane() * unit; i < bytes; i += 32 * unit) {
        if (words) {
            *(uint32_t *)(dst + i) = *(const uint32_t *)(src + i);
        } else {
            dst[i] = src[i];
        }
    }
}

/* Up to COPY_PIECE bytes, in the widest unit that both ends and the size allow. All lanes. */
TERN_DEVICE void copy_piece(char *dst, const char *src, uint32_t bytes)
{
    uint64_t either = (uint64_t)(uintptr_t)dst | (uint64_t)(uintptr_t)src | bytes;
    uint32_t i = (uint32_t)lane() * 16;
    if ((either & 15) == 0) {
        struct vec16 v[COPY_AT_ONCE];
        TERN_UNROLL
        for (uint32_t q = 0; q < COPY_AT_ONCE; q++) {
            if (i + q * 512 < bytes) {
                v[q] = ld_stream_vec16(src + i + q * 512);
            }
        }
        TERN_UNROLL
        for (uint32_t q = 0; q < COPY_AT_ONCE; q++) {
            if (i + q * 512 < bytes) {
                st_stream_vec16(dst + i + q * 512, v[q]);
            }
        }
    } else {
        copy_narrow(dst, src, bytes, (either & 3) == 0);
    }
}

#endif
