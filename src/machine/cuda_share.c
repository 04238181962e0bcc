/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that other ranks address. A range that grows, or that other processes map, is made of physical
 * memory of the driver's virtual memory management:
 *
 *     reserve addresses once; for each piece: create memory, map, set access, export       owner
 *     reserve addresses once; for each piece: import the descriptor, close it, map, access  peer
 *     unmap the pieces, last first; free the addresses                                      both
 *
 * A handle is released as soon as its memory is mapped: mappings and descriptors keep it alive, so the last
 * who unmaps frees it, in whatever order ranks close. cuMemUnmap takes whole mappings only, so a share
 * remembers where each piece ends. One piece for ranks of one process is plain cudaMalloc, with peer access
 * between devices. */
#include "machine/cuda_machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HANDLE_TYPE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

/* share.opaque, of every kind but SHARE_LOCAL. */
struct pieces {
    size_t num, most;
    uint64_t ends[]; /* [most] bytes from the share's base to where each piece ends */
};

static struct pieces *pieces_of(const struct share *share) { return (struct pieces *)share->opaque; }

/* Before anything is mapped that must be remembered. */
static enum tern_status make_room(struct share *share)
{
    struct pieces *p = pieces_of(share);
    size_t most = p && p->num < p->most ? p->most : p ? 2 * p->most : 4;

    if (p && most == p->most) {
        return TERN_OK;
    }
    p = (struct pieces *)realloc(p, sizeof(*p) + most * sizeof(p->ends[0]));
    if (!p) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for a list of %zu pieces", most);
    }
    p->num = share->opaque ? p->num : 0;
    p->most = most;
    share->opaque = p;
    return TERN_OK;
}

/* NICs reach memory only if it was made for them; a device that cannot do that refuses to make it. */
static int is_for_nics(const struct cuda_machine *c)
{
    CUdevice device;
    int can = 0;

    return c->driver.device_get(&device, c->base.info.device) == CUDA_SUCCESS &&
           c->driver.device_attribute(&can, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                                      device) == CUDA_SUCCESS &&
           can;
}

static CUmemAllocationProp prop_of(const struct cuda_machine *c, int exported)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = exported ? HANDLE_TYPE : CU_MEM_HANDLE_TYPE_NONE;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = c->base.info.device;
    prop.allocFlags.gpuDirectRDMACapable = (unsigned char)is_for_nics(c);
    return prop;
}

enum tern_status terni_cuda_share_granule(struct cuda_machine *c, uint64_t *granule)
{
    CUmemAllocationProp prop = prop_of(c, 1);
    size_t bytes = 0;

    TERN_TRY(TERN_CUDA_STATUS(c->driver.get_granularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                              "cuMemGetAllocationGranularity on device %d", c->base.info.device));
    *granule = bytes;
    return TERN_OK;
}

/* Of a call by which `device` gets at memory that may be another device's. Without peer access between the
 * two the driver calls a device invalid; it is as good as before. */
static enum tern_status reach_status(int device, CUresult error, const char *call, uint64_t bytes)
{
    if (error == CUDA_ERROR_INVALID_DEVICE || error == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "device %d cannot address memory of another device (%s): with TERN_DOMAIN_SIZE=1 it "
                         "need not",
                         device, call);
    }
    return TERN_CUDA_STATUS(error, "%s of %llu bytes for device %d", call, (unsigned long long)bytes, device);
}

static enum tern_status set_access(struct cuda_machine *c, CUdeviceptr at, size_t bytes, int device)
{
    CUmemAccessDesc access;

    memset(&access, 0, sizeof(access));
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return reach_status(device, c->driver.set_access(at, bytes, &access, 1), "cuMemSetAccess", bytes);
}

enum tern_status terni_cuda_set_peer_access(struct cuda_machine *c, CUdeviceptr at, size_t bytes)
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
            TERN_TRY(set_access(c, at, bytes, d));
        }
    }
    return TERN_OK;
}

static CUdeviceptr address(const struct share *share, uint64_t offset)
{
    return (CUdeviceptr)(uintptr_t)share->base + offset;
}

/* Maps all of `handle` as the share's next piece, for this machine's device. Undone by
 * terni_cuda_share_trim. */
static enum tern_status map_piece(struct cuda_machine *c, struct share *share,
                                  CUmemGenericAllocationHandle handle, uint64_t bytes)
{
    CUdeviceptr at = address(share, share->bytes);
    struct pieces *p;
    enum tern_status status;

    if (bytes > share->reserved - share->bytes) {
        return TERN_FAIL(TERN_INTERNAL_ERROR, "%llu bytes more in a range of %llu that has %llu",
                         (unsigned long long)bytes, (unsigned long long)share->reserved,
                         (unsigned long long)share->bytes);
    }
    TERN_TRY(make_room(share));
    TERN_TRY(reach_status(c->base.info.device, c->driver.map(at, bytes, 0, handle, 0), "cuMemMap", bytes));
    status = set_access(c, at, bytes, c->base.info.device);
    if (status != TERN_OK) {
        TERN_CUDA_WARN(c->driver.unmap(at, bytes), "cuMemUnmap of %llu bytes", (unsigned long long)bytes);
        return status;
    }
    share->bytes += bytes;
    p = pieces_of(share);
    p->ends[p->num++] = share->bytes;
    return TERN_OK;
}

/* Last piece first. */
static void trim(struct cuda_machine *c, struct share *share, uint64_t bytes)
{
    struct pieces *p = pieces_of(share);

    while (p && p->num > 0 && p->ends[p->num - 1] > bytes) {
        uint64_t end = p->ends[--p->num], begin = p->num > 0 ? p->ends[p->num - 1] : 0;

        TERN_CUDA_WARN(c->driver.unmap(address(share, begin), end - begin), "cuMemUnmap of %llu bytes",
                       (unsigned long long)(end - begin));
        share->bytes = begin;
    }
}

static enum tern_status zero(struct cuda_machine *c, void *at, uint64_t bytes)
{
    TERN_TRY(TERN_CUDA_STATUS(cudaMemsetAsync(at, 0, bytes, c->own), "cudaMemsetAsync of %llu bytes",
                              (unsigned long long)bytes));
    return TERN_CUDA_STATUS(cudaStreamSynchronize(c->own), "cudaStreamSynchronize after zeroing %llu bytes",
                            (unsigned long long)bytes);
}

enum tern_status terni_cuda_export_fd(struct cuda_machine *c, CUmemGenericAllocationHandle handle, int *fd)
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

/* Zeroed before a peer can see it. */
static enum tern_status fill_piece(struct cuda_machine *c, struct share *share, uint64_t begin,
                                   CUmemGenericAllocationHandle handle, int *fd)
{
    uint64_t bytes = share->bytes - begin;

    TERN_TRY(terni_cuda_set_peer_access(c, address(share, begin), bytes));
    TERN_TRY(zero(c, share->base + begin, bytes));
    return share->kind == SHARE_EXPORTED ? terni_cuda_export_fd(c, handle, fd) : TERN_OK;
}

static enum tern_status add_piece(struct cuda_machine *c, struct share *share, uint64_t bytes, int *fd)
{
    CUmemAllocationProp prop = prop_of(c, share->kind == SHARE_EXPORTED);
    CUmemGenericAllocationHandle handle;
    uint64_t begin = share->bytes;
    enum tern_status status;
    int exported = -1;

    TERN_TRY(TERN_CUDA_STATUS(c->driver.create(&handle, bytes, &prop, 0),
                              "cuMemCreate of %llu bytes on device %d", (unsigned long long)bytes,
                              c->base.info.device));
    status = map_piece(c, share, handle, bytes);
    if (status == TERN_OK) {
        status = fill_piece(c, share, begin, handle, &exported);
        if (status != TERN_OK) {
            trim(c, share, begin);
        }
    }
    TERN_CUDA_WARN(c->driver.release(handle), "cuMemRelease of %llu bytes", (unsigned long long)bytes);
    if (status == TERN_OK) {
        *fd = exported;
    }
    return status;
}

static enum tern_status add_local(struct cuda_machine *c, struct share *share, uint64_t bytes)
{
    enum tern_status status;
    void *base = NULL;

    TERN_TRY(TERN_CUDA_STATUS(cudaMalloc(&base, bytes), "cudaMalloc of %llu bytes on device %d",
                              (unsigned long long)bytes, c->base.info.device));
    status = zero(c, base, bytes);
    if (status != TERN_OK) {
        TERN_CUDA_WARN(cudaFree(base), "cudaFree of %p", base);
        return status;
    }
    share->base = (char *)base;
    share->bytes = bytes;
    return TERN_OK;
}

enum tern_status terni_cuda_share_reserve(struct machine *m, int kind, uint64_t bytes, struct share *share)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    CUdeviceptr base = 0;
    enum tern_status status;

    if (bytes == 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "shared memory of no bytes");
    }
    if (kind != SHARE_LOCAL) {
        TERN_TRY(terni_cuda_enter(c, &caller));
        status = TERN_CUDA_STATUS(c->driver.address_reserve(&base, bytes, 0, 0, 0),
                                  "cuMemAddressReserve of %llu bytes", (unsigned long long)bytes);
        terni_cuda_leave(&caller);
        TERN_TRY(status);
    }
    memset(share, 0, sizeof(*share));
    share->base = (char *)(uintptr_t)base;
    share->reserved = bytes;
    share->kind = kind;
    return TERN_OK;
}

enum tern_status terni_cuda_share_add(struct machine *m, struct share *share, uint64_t bytes, int *fd)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    enum tern_status status;
    int exported = -1;

    TERN_TRY(terni_cuda_enter_alone(c, &caller));
    status = share->kind == SHARE_LOCAL ? add_local(c, share, bytes) : add_piece(c, share, bytes, &exported);
    terni_cuda_leave(&caller);
    if (status == TERN_OK) {
        *fd = exported;
    }
    return status;
}

static enum tern_status import(struct cuda_machine *c, struct share *share, int fd, uint64_t bytes)
{
    CUmemGenericAllocationHandle handle;
    enum tern_status status;

    TERN_TRY(reach_status(c->base.info.device,
                          c->driver.import_handle(&handle, (void *)(intptr_t)fd, HANDLE_TYPE),
                          "cuMemImportFromShareableHandle", bytes));
    status = map_piece(c, share, handle, bytes);
    if (status == TERN_OK) {
        close(fd); /* the mapping keeps the memory alive */
    }
    TERN_CUDA_WARN(c->driver.release(handle), "cuMemRelease of an imported handle");
    return status;
}

/* A handle is mapped from its beginning: the driver has no other offset yet. */
enum tern_status terni_cuda_share_import(struct machine *m, struct share *share, int fd, uint64_t offset,
                                         uint64_t bytes)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    enum tern_status status;

    if (offset != 0) {
        return TERN_FAIL(TERN_INTERNAL_ERROR, "an import of %llu bytes from offset %llu on",
                         (unsigned long long)bytes, (unsigned long long)offset);
    }
    TERN_TRY(terni_cuda_enter_alone(c, &caller));
    status = import(c, share, fd, bytes);
    terni_cuda_leave(&caller);
    return status;
}

void terni_cuda_share_trim(struct machine *m, struct share *share, uint64_t bytes)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;

    if (terni_cuda_enter_alone(c, &caller) == TERN_OK) {
        trim(c, share, bytes);
        terni_cuda_leave(&caller);
    }
}

static enum tern_status enable(struct cuda_machine *c, int device)
{
    int own = c->base.info.device, can = 0;
    cudaError_t error;

    TERN_TRY(TERN_CUDA_STATUS(cudaDeviceCanAccessPeer(&can, own, device),
                              "cudaDeviceCanAccessPeer of %d to %d", own, device));
    if (!can) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "device %d cannot address memory of device %d: with TERN_DOMAIN_SIZE=1 it need not",
                         own, device);
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
    TERN_TRY(terni_cuda_enter_alone(c, &caller));
    status = enable(c, device);
    terni_cuda_leave(&caller);
    return status;
}

/* The device of this name as this process numbers it; -1 if it does not see it. */
static int find_device(const struct cuda_driver *driver, const unsigned char uuid[16])
{
    int num_devices = 0;

    if (TERN_CUDA_STATUS(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount") != TERN_OK) {
        return -1;
    }
    for (int i = 0; i < num_devices; i++) {
        CUdevice device;
        CUuuid name;
        if (TERN_CUDA_STATUS(driver->device_get(&device, i), "cuDeviceGet of device %d", i) == TERN_OK &&
            TERN_CUDA_STATUS(driver->device_uuid(&name, device), "cuDeviceGetUuid of device %d", i) ==
                TERN_OK &&
            memcmp(name.bytes, uuid, 16) == 0) {
            return i;
        }
    }
    return -1;
}

int terni_cuda_lacks_atomics(struct machine *m, const unsigned char uuid[16])
{
    int own = m->info.device, native = 1;
    int device = find_device(&terni_cuda_of(m)->driver, uuid);

    if (device < 0 || device == own) {
        return 0;
    }
    if (TERN_CUDA_STATUS(cudaDeviceGetP2PAttribute(&native, cudaDevP2PAttrNativeAtomicSupported, own, device),
                         "cudaDeviceGetP2PAttribute of %d to %d", own, device) != TERN_OK) {
        TERN_LOG(TERN_LOG_WARN, "whether atomics reach device %d: %s", device, tern_last_error());
        return 0;
    }
    return !native;
}

void terni_cuda_share_free(struct machine *m, struct share *share)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;

    if (share->base && terni_cuda_enter_alone(c, &caller) == TERN_OK) {
        if (share->kind == SHARE_LOCAL) {
            TERN_CUDA_WARN(cudaFree(share->base), "cudaFree of %p", (void *)share->base);
        } else {
            trim(c, share, 0);
            TERN_CUDA_WARN(c->driver.address_free(address(share, 0), share->reserved),
                           "cuMemAddressFree of %llu bytes", (unsigned long long)share->reserved);
        }
        terni_cuda_leave(&caller);
    }
    free(share->opaque);
    memset(share, 0, sizeof(*share));
}
