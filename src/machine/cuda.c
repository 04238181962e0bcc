/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuda machine: one rank's view of one device. Open, memory of the rank's own, copies and launches.
 *
 * Everything a later operation needs is loaded at open: with lazy loading a kernel's first launch would wait
 * until the device is idle, which it is not while another rank's kernel there waits for ours.
 *
 * The primary context is retained once a machine and never released, as programs on the CUDA runtime do:
 * releasing the last reference would destroy memory that other ranks of the process, or the program itself,
 * still use. */
#include "machine/cuda_machine.h"

#include "kernels/kernels.h"
#include "kernels/table_cuda.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ARGS_BYTES = 4000, MAX_THREADS = 1024 };

static void cuda_close(struct machine *m)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;

    while (c->streams) {
        terni_cuda_stream_close(m, (struct tern_stream *)c->streams->stream);
    }
    if (terni_cuda_enter(c, &caller) == TERN_OK) {
        if (c->own) {
            TERN_CUDA_WARN(cudaStreamSynchronize(c->own), "cudaStreamSynchronize on device %d",
                           m->info.device);
            terni_cuda_own_give(m->info.device);
        }
        if (c->probe) {
            TERN_CUDA_WARN(cudaEventDestroy(c->probe), "cudaEventDestroy");
        }
        terni_cuda_leave(&caller);
    }
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- Memory ---- */

static enum tern_status cuda_alloc(struct machine *m, size_t bytes, void **memory)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    size_t free_bytes = 0, total_bytes = 0;
    void *p = NULL;
    cudaError_t error;

    TERN_TRY(terni_cuda_enter_alone(c, &caller));
    error = cudaMalloc(&p, bytes ? bytes : 1);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    }
    terni_cuda_leave(&caller);
    TERN_TRY(TERN_CUDA_STATUS(error, "cudaMalloc of %zu bytes on device %d, where %zu of %zu are free", bytes,
                              m->info.device, free_bytes, total_bytes));
    *memory = p;
    return TERN_OK;
}

static void cuda_free(struct machine *m, void *memory)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;

    if (memory && terni_cuda_enter_alone(c, &caller) == TERN_OK) {
        TERN_CUDA_WARN(cudaFree(memory), "cudaFree of %p", memory);
        terni_cuda_leave(&caller);
    }
}

static enum tern_status map_host(size_t bytes, void **host, void **device)
{
    void *p = NULL, *mapped = NULL;
    enum tern_status status;

    TERN_TRY(
        TERN_CUDA_STATUS(cudaHostAlloc(&p, bytes ? bytes : 1, cudaHostAllocMapped | cudaHostAllocPortable),
                         "cudaHostAlloc of %zu bytes", bytes));
    status = TERN_CUDA_STATUS(cudaHostGetDevicePointer(&mapped, p, 0), "cudaHostGetDevicePointer of %p", p);
    if (status != TERN_OK) {
        TERN_CUDA_WARN(cudaFreeHost(p), "cudaFreeHost of %p", p);
        return status;
    }
    memset(p, 0, bytes);
    *host = p;
    *device = mapped;
    return TERN_OK;
}

static enum tern_status cuda_host_alloc(struct machine *m, size_t bytes, void **host, void **device)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    enum tern_status status;

    TERN_TRY(terni_cuda_enter_alone(c, &caller));
    status = map_host(bytes, host, device);
    terni_cuda_leave(&caller);
    return status;
}

static void cuda_host_free(struct machine *m, void *host)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;

    if (host && terni_cuda_enter_alone(c, &caller) == TERN_OK) {
        TERN_CUDA_WARN(cudaFreeHost(host), "cudaFreeHost of %p", host);
        terni_cuda_leave(&caller);
    }
}

/* ---- Work ---- */

static enum tern_status cuda_copy(struct machine *m, void *dst, const void *src, size_t bytes,
                                  struct tern_stream *s)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    cudaError_t error;

    if (bytes == 0) {
        return TERN_OK;
    }
    TERN_TRY(terni_cuda_enter(c, &caller));
    error = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, (cudaStream_t)s);
    terni_cuda_leave(&caller);
    return TERN_CUDA_STATUS(error, "cudaMemcpyAsync of %zu bytes from %p to %p", bytes, src, dst);
}

static enum tern_status cuda_fill(struct machine *m, void *dst, int byte, size_t bytes, struct tern_stream *s)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    cudaError_t error;

    if (bytes == 0) {
        return TERN_OK;
    }
    TERN_TRY(terni_cuda_enter(c, &caller));
    error = cudaMemsetAsync(dst, byte, bytes, (cudaStream_t)s);
    terni_cuda_leave(&caller);
    return TERN_CUDA_STATUS(error, "cudaMemsetAsync of %zu bytes at %p", bytes, dst);
}

/* By default the write comes after a fence of system scope. */
static enum tern_status cuda_store(struct machine *m, uint64_t *word, uint64_t value, struct tern_stream *s)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    CUresult error;

    TERN_TRY(terni_cuda_enter(c, &caller));
    error = c->driver.write_value((CUstream)s, (CUdeviceptr)(uintptr_t)word, value,
                                  CU_STREAM_WRITE_VALUE_DEFAULT);
    terni_cuda_leave(&caller);
    return TERN_CUDA_STATUS(error, "cuStreamWriteValue64 of %llu to %p", (unsigned long long)value,
                            (const void *)word);
}

static enum tern_status check_launch(const struct machine *m, const struct launch *launch)
{
    struct cuda_kernel kernel;

    if (launch->kernel < 0 || launch->kernel >= TERN_KERNEL_COUNT) {
        return TERN_FAIL(TERN_INTERNAL_ERROR, "there is no kernel %d", launch->kernel);
    }
    kernel = terni_cuda_kernel(launch->kernel);
    if (!kernel.stub) {
        return TERN_FAIL(TERN_UNSUPPORTED, "kernel %s is not linked into this program", kernel.name);
    }
    if (launch->num_blocks < 1 || launch->num_threads < 32 || launch->num_threads % 32 != 0 ||
        launch->num_threads > kernel.max_threads || launch->shared_bytes > m->info.max_shared_bytes ||
        launch->args_bytes > MAX_ARGS_BYTES) {
        return TERN_FAIL(
            TERN_INTERNAL_ERROR,
            "kernel %s with %d blocks of %d threads, %u bytes of shared memory, %u of arguments; the most "
            "are %d threads, %u and %d bytes",
            kernel.name, launch->num_blocks, launch->num_threads, launch->shared_bytes, launch->args_bytes,
            kernel.max_threads, m->info.max_shared_bytes, MAX_ARGS_BYTES);
    }
    return TERN_OK;
}

/* early: the kernel may be made ready while the one before it in the stream ends, and waits for that itself
 * (TERN_AWAIT_STREAM in ptx.h). */
static enum tern_status launch_stub(struct machine *m, const char *name, const void *stub, int early,
                                    const struct launch *launch, struct tern_stream *s)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    void *args[1] = {(void *)launch->args}; /* CUDA reads them only */
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config;
    cudaError_t error;

    memset(&config, 0, sizeof(config));
    config.gridDim.x = (unsigned)launch->num_blocks;
    config.gridDim.y = config.gridDim.z = 1;
    config.blockDim.x = (unsigned)launch->num_threads;
    config.blockDim.y = config.blockDim.z = 1;
    config.dynamicSmemBytes = launch->shared_bytes;
    config.stream = (cudaStream_t)s;
    if (early) {
        memset(&attribute, 0, sizeof(attribute));
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
        config.attrs = &attribute;
        config.numAttrs = 1;
    }
    TERN_TRY(terni_cuda_enter(c, &caller));
    error = cudaLaunchKernelExC(&config, stub, args);
    terni_cuda_leave(&caller);
    return TERN_CUDA_STATUS(
        error,
        "launch of kernel %s with %d blocks of %d threads and %u bytes of shared memory on "
        "device %d",
        name, launch->num_blocks, launch->num_threads, launch->shared_bytes, m->info.device);
}

static enum tern_status cuda_launch(struct machine *m, const struct launch *launch, struct tern_stream *s)
{
    struct cuda_kernel kernel;

    TERN_TRY(check_launch(m, launch));
    kernel = terni_cuda_kernel(launch->kernel);
    /* What the default stream waits for is more than the kernel before. */
    return launch_stub(m, kernel.name, kernel.stub,
                       terni_cuda_of(m)->launches_early && !terni_cuda_is_default_stream(m, s), launch, s);
}

/* More dynamic shared memory than this must be asked for, kernel by kernel. */
enum { SHARED_UNASKED = 48 * 1024 };

static enum tern_status ask_for_shared(struct machine *m, const struct tern_kernel *kernel, const void *stub,
                                       uint32_t bytes)
{
    struct cuda_caller caller;
    cudaError_t error;

    TERN_TRY(terni_cuda_enter(terni_cuda_of(m), &caller));
    error = cudaFuncSetAttribute(stub, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    terni_cuda_leave(&caller);
    return TERN_CUDA_STATUS(error, "cudaFuncSetAttribute of kernel %s to %u bytes of shared memory",
                            kernel->name, bytes);
}

static enum tern_status cuda_launch_other(struct machine *m, const struct tern_kernel *kernel,
                                          const struct launch *launch, struct tern_stream *s)
{
    const void *stub = (const void *)(uintptr_t)kernel->cuda;

    if (stub == NULL) {
        return TERN_FAIL(TERN_UNSUPPORTED, "kernel %s was not compiled for the cuda machine", kernel->name);
    }
    if (launch->num_blocks < 1 || launch->num_threads < 32 || launch->num_threads % 32 != 0 ||
        launch->num_threads > MAX_THREADS || launch->shared_bytes > m->info.max_shared_bytes ||
        launch->args_bytes > MAX_ARGS_BYTES) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "kernel %s: %d blocks of %d threads, %u bytes of shared memory and %u of arguments "
                         "cannot be launched",
                         kernel->name, launch->num_blocks, launch->num_threads, launch->shared_bytes,
                         launch->args_bytes);
    }
    if (launch->shared_bytes > SHARED_UNASKED) {
        TERN_TRY(ask_for_shared(m, kernel, stub, launch->shared_bytes));
    }
    return launch_stub(m, kernel->name, stub, 0, launch, s);
}

/* ---- Open ---- */

static int cuda_is_thread_stream(struct machine *m, struct tern_stream *s)
{
    (void)m;
    return (cudaStream_t)s == cudaStreamPerThread;
}

static struct tern_stream *cuda_own_stream(struct machine *m)
{
    return (struct tern_stream *)terni_cuda_of(m)->own;
}

static const struct machine_ops ops = {
    .close = cuda_close,
    .settle = terni_cuda_settle,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .share_reserve = terni_cuda_share_reserve,
    .share_add = terni_cuda_share_add,
    .share_import = terni_cuda_share_import,
    .share_trim = terni_cuda_share_trim,
    .peer_enable = terni_cuda_peer_enable,
    .lacks_atomics = terni_cuda_lacks_atomics,
    .share_free = terni_cuda_share_free,
    .share_lend = terni_cuda_share_lend,
    .io_map = terni_cuda_io_map,
    .io_unmap = terni_cuda_io_unmap,
    .dmabuf = terni_cuda_dmabuf,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .store = cuda_store,
    .launch = cuda_launch,
    .launch_other = cuda_launch_other,
    .stream_open = terni_cuda_stream_open,
    .stream_is_open = terni_cuda_stream_is_open,
    .stream_close = terni_cuda_stream_close,
    .stream_synchronize = terni_cuda_stream_synchronize,
    .stream_capturing = terni_cuda_stream_capturing,
    .stream_capture = terni_cuda_stream_capture,
    .is_default_stream = terni_cuda_is_default_stream,
    .is_thread_stream = cuda_is_thread_stream,
    .own_stream = cuda_own_stream,
    .event_open = terni_cuda_event_open,
    .event_close = terni_cuda_event_close,
    .event_record = terni_cuda_event_record,
    .event_wait = terni_cuda_event_wait,
    .event_synchronize = terni_cuda_event_synchronize,
    .event_elapsed = terni_cuda_event_elapsed,
    .graph_begin = terni_cuda_graph_begin,
    .graph_end = terni_cuda_graph_end,
    .graph_launch = terni_cuda_graph_launch,
    .graph_close = terni_cuda_graph_close,
    .wait_word = terni_cuda_wait_word,
};

/* CUDA 12.3: graphs have edges for launches that are made ready early. */
enum { EARLY_DRIVER = 12030 };

/* Asking for a kernel's attributes loads it. All may then take the device's whole dynamic shared memory. */
static enum tern_status load_kernels(struct machine *m)
{
    struct cuda_machine *c = terni_cuda_of(m);
    uint64_t early;
    int driver = 0;

    TERN_TRY(terni_env_uint(TERN_ENV_EARLY_LAUNCH, 1, &early));
    TERN_TRY(TERN_CUDA_STATUS(cudaDriverGetVersion(&driver), "cudaDriverGetVersion"));
    c->launches_early = early && driver >= EARLY_DRIVER;
    for (int i = 0; i < TERN_KERNEL_COUNT; i++) {
        struct cuda_kernel kernel = terni_cuda_kernel(i);
        struct cudaFuncAttributes attributes;
        int most;

        if (!kernel.stub) {
            continue;
        }
        TERN_TRY(TERN_CUDA_STATUS(cudaFuncGetAttributes(&attributes, kernel.stub),
                                  "cudaFuncGetAttributes of kernel %s "
                                  "on device %d",
                                  kernel.name, m->info.device));
        if (attributes.ptxVersion < 90) { /* it does not wait: TERN_AWAIT_STREAM in ptx.h */
            c->launches_early = 0;
        }
        most = (int)m->info.max_shared_bytes - (int)attributes.sharedSizeBytes;
        TERN_TRY(TERN_CUDA_STATUS(
            cudaFuncSetAttribute(kernel.stub, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
            "cudaFuncSetAttribute of kernel %s to %d bytes of shared memory", kernel.name, most));
    }
    return TERN_OK;
}

static enum tern_status retain(struct cuda_machine *c)
{
    CUdevice device = 0;

    TERN_TRY(terni_cuda_driver_load(&c->driver));
    TERN_TRY(TERN_CUDA_STATUS(c->driver.device_get(&device, c->base.info.device), "cuDeviceGet of device %d",
                              c->base.info.device));
    return TERN_CUDA_STATUS(c->driver.primary_retain(&c->context, device),
                            "cuDevicePrimaryCtxRetain of device %d", c->base.info.device);
}

static enum tern_status prepare(struct cuda_machine *c)
{
    TERN_TRY(terni_cuda_own_take(c->base.info.device, &c->own));
    TERN_TRY(TERN_CUDA_STATUS(cudaEventCreateWithFlags(&c->probe, cudaEventDisableTiming),
                              "cudaEventCreateWithFlags "
                              "on device %d",
                              c->base.info.device));
    TERN_TRY(terni_cuda_share_granule(c, &c->base.info.share_granule));
    return load_kernels(&c->base);
}

enum tern_status terni_cuda_open(int ordinal, struct machine **m)
{
    struct cuda_caller caller;
    struct machine_info info;
    struct cuda_machine *c;
    enum tern_status status;

    TERN_TRY(terni_cuda_info_get(ordinal, &info));
    c = (struct cuda_machine *)calloc(1, sizeof(*c));
    if (!c) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for a machine");
    }
    c->base.ops = &ops;
    c->base.info = info;
    pthread_mutex_init(&c->lock, NULL);
    status = retain(c);
    if (status != TERN_OK) {
        goto free_machine;
    }
    status = terni_cuda_enter_alone(c, &caller);
    if (status != TERN_OK) {
        goto free_machine;
    }
    status = prepare(c);
    terni_cuda_leave(&caller);
    if (status != TERN_OK) {
        cuda_close(&c->base);
        return status;
    }
    *m = &c->base;
    return TERN_OK;
free_machine:
    pthread_mutex_destroy(&c->lock);
    free(c);
    return status;
}
