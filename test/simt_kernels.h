/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of simt_test.c and what they take. Their entries are tern_cpu_NAME(const void *args). */
#ifndef TERN_SIMT_KERNELS_H
#define TERN_SIMT_KERNELS_H

#include <stdint.h>

struct simt_args {
    int rounds;
    int wait_before_flag; /* simt_late */
    uint32_t total;       /* simt_crowd: threads of all grids */
    uint32_t *words;
    uint32_t *out;
    uint64_t *flags;
    uint32_t *counter;
    const char *in;
    char *copy;
};

#define SIMT_KERNEL_LIST(X)                                                                                  \
    X(simt_barrier)                                                                                          \
    X(simt_warp)                                                                                             \
    X(simt_lanes)                                                                                            \
    X(simt_message)                                                                                          \
    X(simt_fence)                                                                                            \
    X(simt_relay)                                                                                            \
    X(simt_pipeline)                                                                                         \
    X(simt_late)                                                                                             \
    X(simt_trace)                                                                                            \
    X(simt_crowd)                                                                                            \
    X(simt_increment)                                                                                        \
    X(simt_poison)                                                                                           \
    X(simt_diverge)                                                                                          \
    X(simt_exit_early)                                                                                       \
    X(simt_no_arrival)                                                                                       \
    X(simt_misaligned)                                                                                       \
    X(simt_misaligned_hint)                                                                                  \
    X(simt_no_wait)                                                                                          \
    X(simt_overflow)

#define SIMT_KERNEL_DECLARE(name) void tern_cpu_##name(const void *args);
SIMT_KERNEL_LIST(SIMT_KERNEL_DECLARE)
#undef SIMT_KERNEL_DECLARE

enum {
    SIMT_CHUNK = 512, /* bytes that a warp of simt_pipeline moves at once */
    SIMT_MESSAGE_WORDS = 64,
    SIMT_WARP_OUTS = 6 /* words a thread writes in simt_warp */
};

#endif
