/* SPDX-License-Identifier: Apache-2.0
 *
 * What NICs and GPUs need of each other: a kernel stores into a NIC's doorbell register, and a NIC reads and
 * writes the memory of a GPU.
 *
 * Registers are registered with CUDA as I/O memory. Drivers refuse that unless the host's administrator has
 * allowed it (PeerMappingOverride=1 among the registry entries of the nvidia module, or enough rights), and
 * then a thread of the host rings for the GPU. Memory goes to the NIC's driver as a dma-buf: a descriptor for
 * a range of whole host pages. */
#include "machine/cuda_machine.h"

#include <fcntl.h>
#include <unistd.h>

static enum tern_status map_registers(void *registers, size_t bytes, void **device)
{
    enum tern_status status;

    TERN_TRY(TERN_CUDA_STATUS(
        cudaHostRegister(registers, bytes,
                         cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterIoMemory),
        "cudaHostRegister of %zu bytes of registers at %p", bytes, registers));
    status = TERN_CUDA_STATUS(cudaHostGetDevicePointer(device, registers, 0),
                              "cudaHostGetDevicePointer of registers at %p", registers);
    if (status != TERN_OK) {
        TERN_CUDA_WARN(cudaHostUnregister(registers), "cudaHostUnregister of %p", registers);
    }
    return status;
}

enum tern_status terni_cuda_io_map(struct machine *m, void *registers, size_t bytes, void **device)
{
    struct cuda_caller caller;
    enum tern_status status;

    TERN_TRY(terni_cuda_enter_alone(terni_cuda_of(m), &caller));
    status = map_registers(registers, bytes, device);
    terni_cuda_leave(&caller);
    return status;
}

void terni_cuda_io_unmap(struct machine *m, void *registers)
{
    struct cuda_caller caller;

    if (terni_cuda_enter_alone(terni_cuda_of(m), &caller) == TERN_OK) {
        TERN_CUDA_WARN(cudaHostUnregister(registers), "cudaHostUnregister of %p", registers);
        terni_cuda_leave(&caller);
    }
}

enum tern_status terni_cuda_dmabuf(struct machine *m, void *memory, uint64_t bytes, int *fd, uint64_t *offset)
{
    struct cuda_machine *c = terni_cuda_of(m);
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), at = (uint64_t)(uintptr_t)memory;
    uint64_t first = at / page * page, end = (at + bytes + page - 1) / page * page;
    struct cuda_caller caller;
    CUresult error;
    int found = -1;

    TERN_TRY(terni_cuda_enter(c, &caller));
    error = c->driver.get_range_handle(&found, (CUdeviceptr)first, (size_t)(end - first),
                                       CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    terni_cuda_leave(&caller);
    if (error != CUDA_SUCCESS) {
        (void)TERN_CUDA_STATUS(error, "cuMemGetHandleForAddressRange of %llu bytes at %p",
                               (unsigned long long)bytes, memory);
        return TERN_UNSUPPORTED; /* whatever the reason: the caller has another way */
    }
    if (fcntl(found, F_SETFD, FD_CLOEXEC) != 0) {
        TERN_LOG(TERN_LOG_WARN, "a dma-buf stays open in programs that this one starts");
    }
    *fd = found;
    *offset = at - first;
    return TERN_OK;
}
