/* SPDX-License-Identifier: Apache-2.0
 *
 * Low latency: a row by loads and stores of a warp, from global memory to any rank's. Loads of some KiB are
 * on their way before the first store. */
#ifndef TERN_LL_COPY_H
#define TERN_LL_COPY_H

#include "kernels/ll_frame.h"

/* 16-byte pieces that a lane has on their way; a kernel that is short of registers may say less. */
#ifndef LL_COPY_AT_ONCE
#define LL_COPY_AT_ONCE 8
#endif

/* One warp: a row to `at`. Bytes [16 i, + 16) are lane i % 32's. */
TERN_DEVICE void ll_copy_wide(char *at, const char *row, uint32_t bytes)
{
    for (uint32_t i0 = (uint32_t)lane() * 16; i0 < bytes; i0 += LL_COPY_AT_ONCE * 512) {
        struct vec16 v[LL_COPY_AT_ONCE];
        TERN_UNROLL
        for (uint32_t a = 0; a < LL_COPY_AT_ONCE; a++) {
            if (i0 + a * 512 < bytes) {
                v[a] = ld_stream_vec16(row + i0 + a * 512);
            }
        }
        TERN_UNROLL
        for (uint32_t a = 0; a < LL_COPY_AT_ONCE; a++) {
            if (i0 + a * 512 < bytes) {
                st_vec16(at + i0 + a * 512, v[a]);
            }
        }
    }
}

#endif
