/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that the program allocated itself, for peers. What cudaMalloc gave can be addressed from this
 * process only, once peer access is enabled. What cuMemCreate made can be exported if its maker asked for
 * that; peers then map the whole allocation, because a handle is mapped from its beginning. Memory of a pool
 * has accesses of its own, which are not Tern's to set. */
#include "machine/cuda_machine.h"

#include <string.h>

static enum tern_status check_owner(struct cuda_machine *c, void *memory)
{
    struct cudaPointerAttributes a;

    memset(&a, 0, sizeof(a));
    TERN_TRY(
        TERN_CUDA_STATUS(cudaPointerGetAttributes(&a, memory), "cudaPointerGetAttributes of %p", memory));
    if (a.type != cudaMemoryTypeDevice || a.device != c->base.info.device) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%p is no memory of device %d", memory, c->base.info.device);
    }
    return TERN_OK;
}

/* Of cudaMalloc, or of a pool. */
static enum tern_status lend_plain(struct cuda_machine *c, void *memory, int exported)
{
    CUmemoryPool pool = NULL;

    if (exported) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "other processes cannot map the memory at %p: allocate it with cuMemCreate and "
                         "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, or with tern_alloc",
                         memory);
    }
    if (c->driver.pointer_attribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                    (CUdeviceptr)(uintptr_t)memory) == CUDA_SUCCESS &&
        pool != NULL) {
        return TERN_FAIL(
            TERN_UNSUPPORTED,
            "the memory at %p is of a pool, which peers cannot address: use cudaMalloc, cuMemCreate or "
            "tern_alloc",
            memory);
    }
    return TERN_OK;
}

/* Of cuMemCreate: `handle` is the whole allocation, mapped at `base`. */
static enum tern_status lend_mapped(struct cuda_machine *c, CUmemGenericAllocationHandle handle,
                                    CUdeviceptr base, size_t mapped, int exported, struct share_loan *loan)
{
    CUmemAllocationProp prop;

    TERN_TRY(
        TERN_CUDA_STATUS(c->driver.get_properties(&prop, handle), "cuMemGetAllocationPropertiesFromHandle"));
    if (exported && !((int)prop.requestedHandleTypes & (int)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "other processes cannot map the memory at %p: its cuMemCreate did not ask for "
                         "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
                         (void *)(uintptr_t)base);
    }
    TERN_TRY(terni_cuda_set_peer_access(c, base, mapped));
    return exported ? terni_cuda_export_fd(c, handle, &loan->fd) : TERN_OK;
}

static enum tern_status lend(struct cuda_machine *c, void *memory, uint64_t bytes, int exported,
                             struct share_loan *loan)
{
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr base = 0, at = (CUdeviceptr)(uintptr_t)memory;
    size_t mapped = 0;
    enum tern_status status;

    TERN_TRY(check_owner(c, memory));
    TERN_TRY(TERN_CUDA_STATUS(c->driver.get_address_range(&base, &mapped, at), "cuMemGetAddressRange of %p",
                              memory));
    if (bytes > mapped - (at - base)) {
        return TERN_FAIL(TERN_UNSUPPORTED, "%llu bytes at %p are more than one allocation, which ends at %p",
                         (unsigned long long)bytes, memory, (void *)(uintptr_t)(base + mapped));
    }
    if (c->driver.retain_handle(&handle, (void *)(uintptr_t)base) != CUDA_SUCCESS) {
        return lend_plain(c, memory, exported);
    }
    status = lend_mapped(c, handle, base, mapped, exported, loan);
    TERN_CUDA_WARN(c->driver.release(handle), "cuMemRelease of %zu bytes", mapped);
    loan->span_bytes = mapped;
    loan->inner = at - base;
    return status;
}

enum tern_status terni_cuda_share_lend(struct machine *m, void *memory, uint64_t bytes, int exported,
                                       struct share_loan *loan)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    enum tern_status status;

    memset(loan, 0, sizeof(*loan));
    loan->fd = -1;
    TERN_TRY(terni_cuda_enter_alone(c, &caller));
    status = lend(c, memory, bytes, exported, loan);
    terni_cuda_leave(&caller);
    return status;
}
