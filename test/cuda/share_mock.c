/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuda machine's shared memory over a driver that is played: machine/cuda_share.c and cuda_lend.c as they
 * are, without a GPU; and what the machine says of links between devices. The driver keeps account of
 * handles, mappings and ranges, takes only what the real one takes (whole mappings, ranges that are empty),
 * and can fail at any one call. Whatever fails, nothing may be left, and the next call must go as if nothing
 * had been. test/cuda_share.sh builds and runs this. One file, because the driver that is played and its
 * account are what every case is judged by. */
#include "machine/cuda_machine.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GRANULE = 2 << 20, MOST = 4096, PIECES = 6 };

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            printf("# %s:%d: %s (call %d fails)\n", __FILE__, __LINE__, #condition, fail_at);                \
            printf("not ok cuda shares\n");                                                                  \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

/* ---- The driver ---- */

static int num_calls, fail_at; /* the number of the call that fails; 0: none does */
static int depth;              /* entered and not left */
static int num_ranges, num_plain, num_access;
static CUmemoryPool pool; /* that all plain memory is of */

static struct {
    size_t bytes;
    int references, is_exportable;
} handles[MOST]; /* [handle] */
static unsigned num_handles = 1, num_live_handles;

static struct mapping {
    CUdeviceptr at;
    size_t bytes;
    CUmemGenericAllocationHandle handle;
} mappings[MOST];
static int num_mappings;

static CUdeviceptr plain_at;
static size_t plain_bytes;

static CUresult answer(void)
{
    CHECK(depth == 1);
    return ++num_calls == fail_at ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult reserve(CUdeviceptr *at, size_t bytes, size_t align, CUdeviceptr hint,
                        unsigned long long flags)
{
    static CUdeviceptr next = 1ull << 40;
    (void)align, (void)hint, (void)flags;
    CHECK(bytes > 0 && bytes % GRANULE == 0);
    if (answer() != CUDA_SUCCESS) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *at = next;
    next += bytes + GRANULE;
    num_ranges++;
    return CUDA_SUCCESS;
}

static CUresult free_range(CUdeviceptr at, size_t bytes)
{
    for (int i = 0; i < num_mappings; i++) {
        CHECK(mappings[i].at < at || mappings[i].at >= at + bytes);
    }
    num_ranges--;
    return CUDA_SUCCESS;
}

/* Of what needs no context. */
static CUresult answer_query(void) { return ++num_calls == fail_at ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS; }

static CUresult device_get(CUdevice *device, int ordinal)
{
    *device = 10 + ordinal;
    return answer_query();
}

/* Device 2 is named 2, 2, 2, ... */
static CUresult device_uuid(CUuuid *uuid, CUdevice device)
{
    CHECK(device >= 10 && device < 13);
    memset(uuid->bytes, device - 10, sizeof(uuid->bytes));
    return answer_query();
}

static int has_rdma; /* NICs reach memory that is made for it */

static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    CHECK(attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED && device == 10);
    *value = has_rdma;
    return answer_query();
}

/* A device that cannot have it refuses it; nobody may forget it but where the device could not be asked. */
static void check_rdma(const CUmemAllocationProp *prop)
{
    int asks = prop->allocFlags.gpuDirectRDMACapable;
    CHECK(asks == has_rdma || (asks == 0 && fail_at != 0));
}

static CUmemGenericAllocationHandle new_handle(size_t bytes, int is_exportable)
{
    CHECK(num_handles < MOST);
    handles[num_handles].bytes = bytes;
    handles[num_handles].references = 1;
    handles[num_handles].is_exportable = is_exportable;
    num_live_handles++;
    return num_handles++;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                       unsigned long long flags)
{
    (void)flags;
    CHECK(bytes > 0 && bytes % GRANULE == 0);
    check_rdma(prop);
    if (answer() != CUDA_SUCCESS) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = new_handle(bytes, prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    CHECK(handles[handle].references-- > 0);
    num_live_handles--;
    return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                    unsigned long long flags)
{
    (void)flags;
    CHECK(offset == 0 && handles[handle].references > 0 && handles[handle].bytes == bytes);
    for (int i = 0; i < num_mappings; i++) {
        CHECK(at + bytes <= mappings[i].at || at >= mappings[i].at + mappings[i].bytes);
    }
    if (answer() != CUDA_SUCCESS) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    mappings[num_mappings++] = (struct mapping){at, bytes, handle};
    return CUDA_SUCCESS;
}

/* The mapping that holds an address, or NULL. */
static struct mapping *mapping_of(CUdeviceptr p)
{
    for (int i = 0; i < num_mappings; i++) {
        if (p >= mappings[i].at && p - mappings[i].at < mappings[i].bytes) {
            return &mappings[i];
        }
    }
    return NULL;
}

static CUresult far_error; /* of access: the memory is of a device without peer access */

/* Whole mappings, and the latest one first. */
static CUresult unmap(CUdeviceptr at, size_t bytes)
{
    struct mapping *m = mapping_of(at);
    CHECK(m != NULL && m->at == at && m->bytes == bytes && mapping_of(at + bytes) == NULL);
    *m = mappings[--num_mappings];
    return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    struct mapping *m = mapping_of(at);
    CHECK(m != NULL && m->at == at && m->bytes == bytes && count == 1 && access->location.id < 2);
    num_access++;
    return far_error != CUDA_SUCCESS ? far_error : answer();
}

static CUresult export_handle(void *fd, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                              unsigned long long flags)
{
    (void)flags;
    CHECK(handles[handle].is_exportable && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (answer() != CUDA_SUCCESS) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *(int *)fd = dup(0);
    return CUDA_SUCCESS;
}

/* Every descriptor is of two granules. */
static CUresult import_handle(CUmemGenericAllocationHandle *handle, void *fd, CUmemAllocationHandleType type)
{
    CHECK(fcntl((int)(intptr_t)fd, F_GETFD) >= 0 && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (answer() != CUDA_SUCCESS) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = new_handle(2 * GRANULE, 1);
    return CUDA_SUCCESS;
}

static CUresult get_granularity(size_t *granule, const CUmemAllocationProp *prop,
                                CUmemAllocationGranularity_flags option)
{
    (void)option;
    check_rdma(prop);
    *granule = GRANULE;
    return CUDA_SUCCESS;
}

static CUresult get_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    memset(prop, 0, sizeof(*prop));
    prop->requestedHandleTypes =
        handles[handle].is_exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
    return CUDA_SUCCESS;
}

static CUresult retain_handle(CUmemGenericAllocationHandle *handle, void *p)
{
    const struct mapping *m = mapping_of((CUdeviceptr)(uintptr_t)p);
    if (m == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    handles[m->handle].references++;
    num_live_handles++;
    *handle = m->handle;
    return CUDA_SUCCESS;
}

static CUresult get_address_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr p)
{
    const struct mapping *m = mapping_of(p);
    *base = m ? m->at : plain_at;
    *bytes = m ? m->bytes : plain_bytes;
    return CUDA_SUCCESS;
}

static CUresult pointer_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr p)
{
    (void)p;
    CHECK(attribute == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
    memcpy(data, &pool, sizeof(pool));
    return CUDA_SUCCESS;
}

/* ---- The runtime, and what cuda_driver.c does ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 3;
    return cudaSuccess;
}

/* Device 2 has no way to device 0. */
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    (void)peer;
    *can = device != 2;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    (void)peer, (void)flags;
    return cudaSuccess;
}

/* Devices 0 and 1 have a link that carries atomics. */
cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attribute, int device, int peer)
{
    CHECK(attribute == cudaDevP2PAttrNativeAtomicSupported && device != peer);
    if (answer_query() != CUDA_SUCCESS) {
        return cudaErrorInvalidValue;
    }
    *value = device + peer == 1;
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    (void)p, (void)value, (void)bytes, (void)stream;
    return answer() == CUDA_SUCCESS ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    (void)bytes;
    if (answer() != CUDA_SUCCESS) {
        return cudaErrorMemoryAllocation;
    }
    *p = malloc(1);
    num_plain++;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    free(p);
    num_plain--;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *p)
{
    (void)p;
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = 0;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) { return cudaSuccess; }

enum tern_status terni_cuda_enter(struct cuda_machine *c, struct cuda_caller *caller)
{
    (void)c, (void)caller;
    CHECK(depth++ == 0);
    return TERN_OK;
}

/* No NIC is a kernel here. */
enum tern_status terni_cuda_enter_alone(struct cuda_machine *c, struct cuda_caller *caller)
{
    return terni_cuda_enter(c, caller);
}

void terni_cuda_leave(const struct cuda_caller *caller)
{
    (void)caller;
    depth--;
}

enum tern_status terni_cuda_fail(const char *file, int line, int error, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return terni_fail(file, line, TERN_OUT_OF_MEMORY, "%s: error %d", text, error);
}

/* ---- What must hold ---- */

static struct cuda_machine machine;

static int num_fds(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++) {
        n += fcntl(fd, F_GETFD) >= 0;
    }
    return n;
}

static void check_idle(int fds)
{
    CHECK(depth == 0 && num_live_handles == 0 && num_mappings == 0 && num_ranges == 0 && num_plain == 0);
    CHECK(num_fds() == fds);
}

/* A piece more, which may fail once. */
static void add(struct share *s, uint64_t bytes)
{
    for (int tries = 0;; tries++) {
        int fd = -1;
        char *base = s->base;
        uint64_t before = s->bytes;
        enum tern_status status = terni_cuda_share_add(&machine.base, s, bytes, &fd);
        CHECK(num_live_handles == 0);
        if (status == TERN_OK) {
            CHECK(s->bytes == before + bytes && (s->kind == SHARE_LOCAL || s->base == base));
            CHECK((fd >= 0) == (s->kind == SHARE_EXPORTED));
            CHECK(fd < 0 || (fcntl(fd, F_GETFD) & FD_CLOEXEC));
            if (fd >= 0) {
                close(fd);
            }
            return;
        }
        CHECK(status == TERN_OUT_OF_MEMORY && tries == 0 && fd == -1 && s->bytes == before &&
              s->base == base);
    }
}

/* Grows, is trimmed and grows again, with a failure at call `fail_at`. */
static void grow(int kind, int fds)
{
    struct share s;
    int fd;
    num_calls = 0;
    if (terni_cuda_share_reserve(&machine.base, kind, 16 * GRANULE, &s) != TERN_OK) {
        check_idle(fds);
        return;
    }
    if (kind == SHARE_LOCAL) {
        add(&s, 16 * GRANULE);
    } else {
        for (int i = 0; i < PIECES; i++) {
            add(&s, (uint64_t)(1 + i % 3) * GRANULE); /* 1 3 6 7 9 12 */
        }
        terni_cuda_share_trim(&machine.base, &s, 6 * GRANULE);
        CHECK(s.bytes == 6 * GRANULE && num_mappings == PIECES / 2);
        add(&s, 4 * GRANULE);
        CHECK(terni_cuda_share_add(&machine.base, &s, 7 * GRANULE, &fd) != TERN_OK &&
              s.bytes == 10 * GRANULE);
    }
    terni_cuda_share_free(&machine.base, &s);
    CHECK(s.base == NULL && s.opaque == NULL && s.bytes == 0);
    check_idle(fds);
}

static void import(int fds)
{
    struct share s;
    fail_at = 0;
    CHECK(terni_cuda_share_reserve(&machine.base, SHARE_EXPORTED, 4 * GRANULE, &s) == TERN_OK);
    for (fail_at = 1; fail_at < 6; fail_at++) {
        int fd = dup(0);
        num_calls = 0;
        if (terni_cuda_share_import(&machine.base, &s, fd, 0, 2 * GRANULE) == TERN_OK) {
            CHECK(fcntl(fd, F_GETFD) < 0 && s.bytes == 2 * GRANULE);
            terni_cuda_share_trim(&machine.base, &s, 0);
        } else {
            CHECK(fcntl(fd, F_GETFD) >= 0 && s.bytes == 0);
            close(fd);
        }
        CHECK(num_live_handles == 0 && num_mappings == 0);
    }
    fail_at = 0;
    terni_cuda_share_free(&machine.base, &s);
    check_idle(fds);
}

/* No failure of the device. What an error means is cuda_driver.c's to say, but for these. */
static void import_far(int fds)
{
    static const CUresult errors[] = {CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED};
    struct share s;
    int fd = dup(0);
    CHECK(terni_cuda_share_reserve(&machine.base, SHARE_EXPORTED, 4 * GRANULE, &s) == TERN_OK);
    for (int i = 0; i < 2; i++) {
        far_error = errors[i];
        CHECK(terni_cuda_share_import(&machine.base, &s, fd, 0, 2 * GRANULE) == TERN_UNSUPPORTED);
        CHECK(strstr(tern_last_error(), "TERN_DOMAIN_SIZE=1") != NULL);
        CHECK(fcntl(fd, F_GETFD) >= 0 && s.bytes == 0 && num_live_handles == 0 && num_mappings == 0);
    }
    far_error = CUDA_SUCCESS;
    close(fd);
    terni_cuda_share_free(&machine.base, &s);
    machine.base.info.device = 2;
    CHECK(terni_cuda_peer_enable(&machine.base, 0) == TERN_UNSUPPORTED);
    CHECK(strstr(tern_last_error(), "TERN_DOMAIN_SIZE=1") != NULL);
    machine.base.info.device = 0;
    check_idle(fds);
}

static void lend_refused(void *memory, uint64_t bytes, int exported, const char *text)
{
    struct share_loan loan;
    CHECK(terni_cuda_share_lend(&machine.base, memory, bytes, exported, &loan) == TERN_UNSUPPORTED);
    CHECK(loan.fd == -1 && num_live_handles == 0 && strstr(tern_last_error(), text) != NULL);
}

static void lend(int fds)
{
    struct share_loan loan;
    struct share s;
    char *p;
    int fd;
    CHECK(terni_cuda_share_reserve(&machine.base, SHARE_EXPORTED, 4 * GRANULE, &s) == TERN_OK);
    CHECK(terni_cuda_share_add(&machine.base, &s, 2 * GRANULE, &fd) == TERN_OK);
    close(fd);
    p = s.base + 12345;
    CHECK(terni_cuda_share_lend(&machine.base, p, 1000, 1, &loan) == TERN_OK);
    CHECK(loan.fd >= 0 && loan.offset == 0 && loan.span_bytes == 2 * GRANULE && loan.inner == 12345);
    close(loan.fd);
    num_access = 0;
    CHECK(terni_cuda_share_lend(&machine.base, p, 1000, 0, &loan) == TERN_OK && loan.fd == -1);
    CHECK(num_access == 1); /* device 1 of this process reaches it now */
    lend_refused(p, 2 * GRANULE, 0, "are more than one allocation");
    handles[mapping_of((CUdeviceptr)(uintptr_t)p)->handle].is_exportable = 0;
    lend_refused(p, 1000, 1, "its cuMemCreate did not ask for CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");
    terni_cuda_share_free(&machine.base, &s);
    plain_at = 1 << 20;
    plain_bytes = 4096;
    p = (char *)(uintptr_t)plain_at + 8;
    CHECK(terni_cuda_share_lend(&machine.base, p, 100, 0, &loan) == TERN_OK && loan.fd == -1);
    lend_refused(p, 100, 1, "allocate it with cuMemCreate and CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");
    pool = (CUmemoryPool)&machine;
    lend_refused(p, 100, 0, "is of a pool");
    check_idle(fds);
}

/* From the machine's device to one of the name `name` repeated. */
static int lacks(int from, int name)
{
    unsigned char uuid[16];
    memset(uuid, name, sizeof(uuid));
    machine.base.info.device = from;
    num_calls = 0;
    return terni_cuda_lacks_atomics(&machine.base, uuid);
}

static void atomics(void)
{
    fail_at = 0;
    CHECK(!lacks(0, 0) && !lacks(0, 1) && lacks(0, 2) && !lacks(1, 0) && lacks(2, 1) && lacks(1, 2));
    CHECK(!lacks(0, 3)); /* in no list of this process */
    CHECK(lacks(0, 2) && num_calls == 7);
    for (fail_at = 5; fail_at <= 7; fail_at++) {
        CHECK(!lacks(0, 2)); /* nobody knows */
    }
    machine.base.info.device = fail_at = 0;
}

int main(void)
{
    struct cuda_driver *d = &machine.driver;
    uint64_t granule = 0;
    int fds = num_fds(), num_sweeps = 0;
    d->address_reserve = reserve, d->address_free = free_range, d->create = create, d->release = release;
    d->map = map, d->unmap = unmap, d->set_access = set_access, d->export_handle = export_handle;
    d->import_handle = import_handle, d->get_granularity = get_granularity,
    d->get_properties = get_properties;
    d->retain_handle = retain_handle, d->get_address_range = get_address_range;
    d->pointer_attribute = pointer_attribute;
    d->device_get = device_get, d->device_uuid = device_uuid, d->device_attribute = device_attribute;
    for (int kind = SHARE_LOCAL; kind <= SHARE_EXPORTED; kind++) {
        int most;
        fail_at = 0;
        for (has_rdma = 0; has_rdma < 2; has_rdma++) {
            CHECK(terni_cuda_share_granule(&machine, &granule) == TERN_OK && granule == GRANULE);
            grow(kind, fds);
        }
        has_rdma = 1;
        grow(kind, fds);
        most = num_calls;
        for (fail_at = 1; fail_at <= most; fail_at++, num_sweeps++) {
            grow(kind, fds);
        }
    }
    import(fds);
    import_far(fds);
    lend(fds);
    atomics();
    printf("ok cuda shares over a played driver, a failure at each of %d calls\n", num_sweeps);
    return 0;
}
