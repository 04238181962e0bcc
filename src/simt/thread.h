/* SPDX-License-Identifier: Apache-2.0
 *
 * The dialect in a thread of the host that is no fiber: what plays a device beside the executor, not on it
 * (net/softnic_thread.c). Such a file defines TERN_HOST_THREAD before it includes anything. The thread is a
 * block of one thread and a warp of one lane; nobody schedules it, so the words that need the executor do
 * nothing here, and bulk copies are absent. All other words are those of fiber.h. */
#ifndef TERN_THREAD_H
#define TERN_THREAD_H

#include <time.h>

TERN_DEVICE int tid(void) { return 0; }
TERN_DEVICE int bid(void) { return 0; }
TERN_DEVICE int nthr(void) { return 1; }
TERN_DEVICE int nblk(void) { return 1; }
TERN_DEVICE int lane(void) { return 0; }
TERN_DEVICE int warp(void) { return 0; }

TERN_DEVICE void sync_warp(void) {}
TERN_DEVICE void sync_block(void) {}
TERN_DEVICE int sync_block_or(int v) { return v; }
TERN_DEVICE uint32_t warp_ballot(int v) { return v ? 0xffffffffu : 0; } /* all lanes are this one */
TERN_DEVICE uint32_t shfl_u32(uint32_t v, int src)
{
    (void)src;
    return v;
}
TERN_DEVICE uint64_t shfl_u64(uint64_t v, int src)
{
    (void)src;
    return v;
}

TERN_DEVICE void simt_point(void) {}
TERN_DEVICE void spin(void) {}
TERN_DEVICE void simt_acquired(void) {}
TERN_DEVICE void simt_fenced(void) {}
TERN_DEVICE void simt_check_fence(void) {}
TERN_DEVICE void simt_released(void) {}
TERN_DEVICE void simt_atomic(void) {}
uint32_t simt_e4m3(float v);

/* As the executor's. */
TERN_DEVICE uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

#endif
