/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels by number. nvcc leaves a host function of the kernel's name in each object; the CUDA runtime takes
 * its address for the kernel's identity, so C code can launch what nvcc compiled without seeing its
 * arguments. Those of the benchmark are linked into tern-bench only, hence weak here. */
#include "kernels/table_cuda.h"

#include "kernels/kernels.h"

#include <stdint.h>

#define DECLARE(name, type, threads) __attribute__((visibility("default"))) void tern_cuda_##name(void);
TERN_KERNEL_LIST(DECLARE)
#undef DECLARE

#pragma weak tern_cuda_wire_store
#pragma weak tern_cuda_wire_push
#pragma weak tern_cuda_wire_pull
#pragma weak tern_cuda_wire_load
#pragma weak tern_cuda_wire_ping
#pragma weak tern_cuda_drive_move
#pragma weak tern_cuda_drive_bulk
#pragma weak tern_cuda_drive_ping
#pragma weak tern_cuda_drive_fetch
#pragma weak tern_cuda_drive_barrier
#pragma weak tern_cuda_drive_nic

/* ISO C has no cast from a function to an object pointer; POSIX lets both fit a uintptr_t. */
static const void *stub_of(void (*function)(void)) { return (const void *)(uintptr_t)function; }

struct cuda_kernel terni_cuda_kernel(int kernel)
{
    static const struct {
        const char *name;
        void (*function)(void);
        int max_threads;
    } table[TERN_KERNEL_COUNT] = {
#define ENTRY(name, type, threads) {#name, tern_cuda_##name, threads},
        TERN_KERNEL_LIST(ENTRY)
#undef ENTRY
    };
    struct cuda_kernel k = {table[kernel].name, stub_of(table[kernel].function), table[kernel].max_threads};

    return k;
}

int terni_cuda_stamps(void)
{
#ifdef TERN_STAMPS
    return 1;
#else
    return 0;
#endif
}
