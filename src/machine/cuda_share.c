/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that other ranks address. Between processes: physical memory of the driver's virtual memory
 * management, exported as a file descriptor and mapped by each rank for its own device.
 *
 *     reserve addresses, create memory, map, set access, export          owner
 *     import the descriptor, close it, reserve addresses, map, access    peer
 *
 * The handle is released as soon as memory is mapped: mappings and descriptors keep it alive, so the last who
 * unmaps frees it, in whatever order ranks close. Inside a process: plain cudaMalloc and peer access between
 * devices. A share records only what it must undo: in `opaque` the bytes mapped, 0 for cudaMalloc. */
#include "machine/cuda_machine.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define HANDLE_TYPE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static uint64_t round_up(uint64_t bytes, uint64_t granule)
{
    return (bytes + granule - 1) / granule * granule;
}

/* Whole granules (2 MiB on today's devices) that hold `bytes`. */
static enum tern_status granules(struct cuda_machine *c, const CUmemAllocationProp *prop, uint64_t bytes,
                                 size_t *mapped)
{
    size_t granule = 0;

    TERN_TRY(TERN_CUDA_STATUS(c->driver.get_granularity(&granule, prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                              "cuMemGetAllocationGranularity on device %d", c->base.info.device));
    *mapped = (size_t)round_up(bytes ? bytes : 1, granule);
    return TERN_OK;
}

static enum tern_status set_access(struct cuda_machine *c, CUdeviceptr at, size_t mapped, int device)
{
    CUmemAccessDesc access;

    memset(&access, 0, sizeof(access));
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return TERN_CUDA_STATUS(c->driver.set_access(at, mapped, &access, 1),
                            "cuMemSetAccess of %zu bytes for device %d", mapped, device);
}

/* Maps all of `handle` at new addresses for this machine's device. */
static enum tern_status map(struct cuda_machine *c, CUmemGenericAllocationHandle handle, size_t mapped,
                            CUdeviceptr *at)
{
    CUdeviceptr base = 0;
    enum tern_status status;

    TERN_TRY(TERN_CUDA_STATUS(c->driver.address_reserve(&base, mapped, 0, 0, 0),
                              "cuMemAddressReserve of %zu bytes", mapped));
    status = TERN_CUDA_STATUS(c->driver.map(base, mapped, 0, handle, 0), "cuMemMap of %zu bytes", mapped);
    if (status != TERN_OK) {
        goto free_addresses;
    }
    status = set_access(c, base, mapped, c->base.info.device);
    if (status != TERN_OK) {
        goto unmap;
    }
    *at = base;
    return TERN_OK;
unmap:
    TERN_CUDA_WARN(c->driver.unmap(base, mapped), "cuMemUnmap of %zu bytes", mapped);
free_addresses:
    TERN_CUDA_WARN(c->driver.address_free(base, mapped), "cuMemAddressFree of %zu bytes", mapped);
    return status;
}

static void unmap(struct cuda_machine *c, CUdeviceptr at, size_t mapped)
{
    TERN_CUDA_WARN(c->driver.unmap(at, mapped), "cuMemUnmap of %zu bytes", mapped);
    TERN_CUDA_WARN(c->driver.address_free(at, mapped), "cuMemAddressFree of %zu bytes", mapped);
}

static enum tern_status zero(struct cuda_machine *c, void *at, uint64_t bytes)
{
    TERN_TRY(TERN_CUDA_STATUS(cudaMemsetAsync(at, 0, bytes, c->own), "cudaMemsetAsync of %llu bytes",
                              (unsigned long long)bytes));
    return TERN_CUDA_STATUS(cudaStreamSynchronize(c->own), "cudaStreamSynchronize after zeroing %llu bytes",
                            (unsigned long long)bytes);
}

static enum tern_status export_fd(struct cuda_machine *c, CUmemGenericAllocationHandle handle, int *fd)
{
    int exported = -1;

    TERN_TRY(TERN_CUDA_STATUS(c->driver.export_handle(&exported, handle, HANDLE_TYPE, 0),
                              "cuMemExportToShareableHandle on device %d", c->base.info.device));
    if (fcntl(exported, F_SETFD, FD_CLOEXEC) != 0) {
        int reason = errno;

        close(exported);
        errno = reason;
        return TERN_FAIL(TERN_SYSTEM_ERROR, "fcntl of exported descriptor %d: %m", exported);
    }
    *fd = exported;
    return TERN_OK;
}

/* Ranks on other devices of this process may use the owner's addresses, as with cudaMalloc after peer_enable.
 */
static enum tern_status set_peer_access(struct cuda_machine *c, CUdeviceptr at, size_t mapped)
{
    int own = c->base.info.device, count = 0;

    TERN_TRY(TERN_CUDA_STATUS(cudaGetDeviceCount(&count), "cudaGetDeviceCount"));
    for (int d = 0; d < count; d++) {
        int can = 0;

        if (d == own) {
            continue;
        }
        TERN_TRY(TERN_CUDA_STATUS(cudaDeviceCanAccessPeer(&can, d, own),
                                  "cudaDeviceCanAccessPeer of %d to %d", d, own));
        if (can) {
            TERN_TRY(set_access(c, at, mapped, d));
        }
    }
    return TERN_OK;
}

static enum tern_status create_exportable(struct cuda_machine *c, uint64_t bytes, struct share *share)
{
    CUmemAllocationProp prop;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at = 0;
    enum tern_status status;
    size_t mapped = 0;
    int fd = -1;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = HANDLE_TYPE;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = c->base.info.device;
    TERN_TRY(granules(c, &prop, bytes, &mapped));
    TERN_TRY(TERN_CUDA_STATUS(c->driver.create(&handle, mapped, &prop, 0),
                              "cuMemCreate of %zu bytes on device %d", mapped, c->base.info.device));
    status = map(c, handle, mapped, &at);
    if (status != TERN_OK) {
        goto release;
    }
    status = set_peer_access(c, at, mapped);
    if (status == TERN_OK) {
        status = zero(c, (void *)(uintptr_t)at, mapped);
    }
    if (status == TERN_OK) {
        status = export_fd(c, handle, &fd);
    }
    if (status != TERN_OK) {
        unmap(c, at, mapped);
        goto release;
    }
    share->base = (char *)(uintptr_t)at;
    share->bytes = bytes;
    share->fd = fd;
    share->opaque = mapped;
release:
    TERN_CUDA_WARN(c->driver.release(handle), "cuMemRelease of %zu bytes", mapped);
    return status;
}

static enum tern_status create_local(struct cuda_machine *c, uint64_t bytes, struct share *share)
{
    enum tern_status status;
    void *base = NULL;

    TERN_TRY(TERN_CUDA_STATUS(cudaMalloc(&base, bytes ? bytes : 1), "cudaMalloc of %llu bytes on device %d",
                              (unsigned long long)bytes, c->base.info.device));
    status = zero(c, base, bytes);
    if (status != TERN_OK) {
        TERN_CUDA_WARN(cudaFree(base), "cudaFree of %p", base);
        return status;
    }
    share->base = (char *)base;
    share->bytes = bytes;
    share->fd = -1;
    share->opaque = 0;
    return TERN_OK;
}

enum tern_status terni_cuda_share_alloc(struct machine *m, uint64_t bytes, int exportable,
                                        struct share *share)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    enum tern_status status;

    TERN_TRY(terni_cuda_enter(c, &caller));
    status = exportable ? create_exportable(c, bytes, share) : create_local(c, bytes, share);
    terni_cuda_leave(&caller);
    return status;
}

static enum tern_status import(struct cuda_machine *c, int fd, uint64_t bytes, struct share *share)
{
    CUmemAllocationProp prop;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at = 0;
    enum tern_status status;
    size_t mapped = 0;

    TERN_TRY(TERN_CUDA_STATUS(c->driver.import_handle(&handle, (void *)(intptr_t)fd, HANDLE_TYPE),
                              "cuMemImportFromShareableHandle of descriptor %d on device %d", fd,
                              c->base.info.device));
    /* The owner's device, not this one's, says what a granule is. */
    status =
        TERN_CUDA_STATUS(c->driver.get_properties(&prop, handle), "cuMemGetAllocationPropertiesFromHandle");
    if (status == TERN_OK) {
        status = granules(c, &prop, bytes, &mapped);
    }
    if (status == TERN_OK) {
        status = map(c, handle, mapped, &at);
    }
    if (status == TERN_OK) {
        share->base = (char *)(uintptr_t)at;
        share->bytes = bytes;
        share->fd = -1;
        share->opaque = mapped;
        close(fd); /* the mapping keeps the memory alive */
    }
    TERN_CUDA_WARN(c->driver.release(handle), "cuMemRelease of an imported handle");
    return status;
}

enum tern_status terni_cuda_share_import(struct machine *m, int fd, uint64_t bytes, struct share *share)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    enum tern_status status;

    TERN_TRY(terni_cuda_enter(c, &caller));
    status = import(c, fd, bytes, share);
    terni_cuda_leave(&caller);
    return status;
}

static enum tern_status enable(struct cuda_machine *c, int device)
{
    int own = c->base.info.device, can = 0;
    cudaError_t error;

    TERN_TRY(TERN_CUDA_STATUS(cudaDeviceCanAccessPeer(&can, own, device),
                              "cudaDeviceCanAccessPeer of %d to %d", own, device));
    if (!can) {
        return TERN_FAIL(TERN_UNSUPPORTED, "device %d cannot address memory of device %d", own, device);
    }
    error = cudaDeviceEnablePeerAccess(device, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError(); /* of another rank on this device, or of the program's own making */
        return TERN_OK;
    }
    return TERN_CUDA_STATUS(error, "cudaDeviceEnablePeerAccess of %d to %d", own, device);
}

enum tern_status terni_cuda_peer_enable(struct machine *m, int device)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    enum tern_status status;

    if (device == m->info.device) {
        return TERN_OK;
    }
    TERN_TRY(terni_cuda_enter(c, &caller));
    status = enable(c, device);
    terni_cuda_leave(&caller);
    return status;
}

void terni_cuda_share_free(struct machine *m, struct share *share)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;

    if (share->base && terni_cuda_enter(c, &caller) == TERN_OK) {
        if (share->opaque) {
            unmap(c, (CUdeviceptr)(uintptr_t)share->base, (size_t)share->opaque);
        } else {
            TERN_CUDA_WARN(cudaFree(share->base), "cudaFree of %p", (void *)share->base);
        }
        terni_cuda_leave(&caller);
    }
    if (share->fd >= 0) {
        close(share->fd);
    }
    share->base = NULL;
    share->bytes = 0;
    share->fd = -1;
    share->opaque = 0;
}
