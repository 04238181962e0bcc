/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels by number. nvcc leaves a host function of the kernel's name in each object; the CUDA runtime takes
 * its address for the kernel's identity, so C code can launch what nvcc compiled without seeing its
 * arguments. Those of the benchmark are linked into tern-bench only, hence weak here. */
#include "kernels/table_cuda.h"

#include "kernels/kernels.h"

#include <stddef.h>
#include <stdint.h>

#define DECLARE(name, type, threads) __attribute__((visibility("default"))) void tern_cuda_##name(void);
TERN_C_KERNEL_LIST(DECLARE)
#undef DECLARE
#define DECLARE(name, type, threads) const void *tern_cuda_at_##name(void);
TERN_LL_KERNEL_LIST(DECLARE)
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
        const void *(*at)(void); /* of a C++ name: gives its address */
        int max_threads;
    } table[TERN_KERNEL_COUNT] = {
#define ENTRY(name, type, threads) {#name, tern_cuda_##name, NULL, threads},
        TERN_C_KERNEL_LIST(ENTRY)
#undef ENTRY
#define ENTRY(name, type, threads) {#name, NULL, tern_cuda_at_##name, threads},
            TERN_LL_KERNEL_LIST(ENTRY)
#undef ENTRY
    };
    const void *function = table[kernel].at ? table[kernel].at() : stub_of(table[kernel].function);
    struct cuda_kernel k = {table[kernel].name, function, table[kernel].max_threads};

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
