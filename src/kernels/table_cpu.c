/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels by number. Those of the benchmark are linked into tern-bench only: the library refers to them
 * weakly, by symbols that a program can provide, and launching one that is absent fails with its name. */
#include "kernels/table_cpu.h"

#include "kernels/kernels.h"

#define DECLARE(name, type, threads)                                                                         \
    __attribute__((visibility("default"))) void tern_cpu_##name(const void *args);
TERN_KERNEL_LIST(DECLARE)
#undef DECLARE

#pragma weak tern_cpu_wire_store
#pragma weak tern_cpu_wire_push
#pragma weak tern_cpu_wire_pull
#pragma weak tern_cpu_wire_load
#pragma weak tern_cpu_wire_ping
#pragma weak tern_cpu_drive_move
#pragma weak tern_cpu_drive_bulk
#pragma weak tern_cpu_drive_ping
#pragma weak tern_cpu_drive_fetch
#pragma weak tern_cpu_drive_barrier
#pragma weak tern_cpu_drive_nic

const struct cpu_kernel *terni_cpu_kernel(int kernel)
{
#define ENTRY(name, type, threads) {#name, tern_cpu_##name, threads},
    static const struct cpu_kernel table[TERN_KERNEL_COUNT] = {TERN_KERNEL_LIST(ENTRY)};
#undef ENTRY
    return &table[kernel];
}

int terni_cpu_stamps(void)
{
#ifdef TERN_STAMPS
    return 1;
#else
    return 0;
#endif
}
