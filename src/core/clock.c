/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's monotonic clock. Every host deadline in Tern is a value of this clock, in nanoseconds; it never
 * jumps when someone sets the time of day. Equal for all processes of a host, unrelated between hosts. */
#include "core/core.h"

#include <time.h>

uint64_t terni_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
