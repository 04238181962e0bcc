/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuda machine over a runtime that is played: cuda.c, cuda_driver.c and cuda_stream.c as they are,
 * without a GPU. What an error is said to be, launches of the program's own kernels that a device cannot
 * take, and streams that are closed without being open. test/cuda_share.sh builds and runs this. */
#include "kernels/table_cuda.h"
#include "machine/cuda_machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            printf("# %s:%d: %s (\"%s\")\n", __FILE__, __LINE__, #condition, tern_last_error());             \
            printf("not ok the cuda machine\n");                                                             \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

/* ---- The runtime and the driver ---- */

static int num_launches, num_streams;
static cudaError_t launch_error;
static struct CUstream_st *const played = (struct CUstream_st *)&num_streams; /* the one that is opened */

static CUresult device_get(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult primary_retain(CUcontext *context, CUdevice device)
{
    (void)device;
    *context = NULL;
    return CUDA_SUCCESS;
}

static CUresult context_push(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS;
}

static CUresult context_pop(CUcontext *context)
{
    *context = NULL;
    return CUDA_SUCCESS;
}

/* The others of the list are not called. */
static cudaError_t find_entry(const char *symbol, void **entry, enum cudaDriverEntryPointQueryResult *found)
{
    PFN_cuDeviceGet_v2000 get = device_get;
    PFN_cuDevicePrimaryCtxRetain_v7000 retain = primary_retain;
    PFN_cuCtxPushCurrent_v4000 push = context_push;
    PFN_cuCtxPopCurrent_v4000 pop = context_pop;
    const void *function = strcmp(symbol, "cuDeviceGet") == 0                ? (const void *)&get
                           : strcmp(symbol, "cuDevicePrimaryCtxRetain") == 0 ? (const void *)&retain
                           : strcmp(symbol, "cuCtxPushCurrent") == 0         ? (const void *)&push
                           : strcmp(symbol, "cuCtxPopCurrent") == 0          ? (const void *)&pop
                                                                             : NULL;
    *entry = NULL;
    if (function) {
        memcpy(entry, function, sizeof(*entry));
    }
    *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **entry, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    (void)version, (void)flags;
    return find_entry(symbol, entry, found);
}
#else
cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **entry, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *found)
{
    (void)flags;
    return find_entry(symbol, entry, found);
}
#endif

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    (void)mode;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) { return cudaSuccess; }

const char *cudaGetErrorName(cudaError_t error)
{
    (void)error;
    return "name";
}

const char *cudaGetErrorString(cudaError_t error)
{
    (void)error;
    return "text";
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 12040;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = NULL;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    (void)event;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    (void)function;
    memset(attributes, 0, sizeof(*attributes));
    attributes->ptxVersion = 90;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **args)
{
    (void)config, (void)function, (void)args;
    num_launches++;
    return launch_error;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    num_streams++;
    *stream = played;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    CHECK(stream == played);
    num_streams--;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}

/* ---- The rest of the machine ---- */

struct cuda_kernel terni_cuda_kernel(int kernel)
{
    struct cuda_kernel k = {"played", &num_launches, 1024};
    (void)kernel;
    return k;
}

enum tern_status terni_cuda_info_get(int ordinal, struct machine_info *info)
{
    memset(info, 0, sizeof(*info));
    info->device = ordinal;
    info->max_shared_bytes = 200 << 10;
    return TERN_OK;
}

enum tern_status terni_cuda_share_granule(struct cuda_machine *c, uint64_t *granule)
{
    (void)c;
    *granule = 2 << 20;
    return TERN_OK;
}

enum tern_status terni_cuda_own_take(int device, cudaStream_t *stream)
{
    (void)device;
    *stream = NULL;
    return TERN_OK;
}

void terni_cuda_own_give(int device) { (void)device; }

/* ---- What must hold ---- */

static enum tern_status status_of(int error) { return terni_cuda_fail(__FILE__, __LINE__, error, "a call"); }

/* A mistake of the caller, or what a device has not, is not its end. */
static void errors(void)
{
    CHECK(status_of(cudaErrorMemoryAllocation) == TERN_OUT_OF_MEMORY);
    CHECK(status_of(cudaErrorInvalidValue) == TERN_INVALID_ARGUMENT);
    CHECK(status_of(cudaErrorInvalidConfiguration) == TERN_INVALID_ARGUMENT);
    CHECK(status_of(cudaErrorLaunchOutOfResources) == TERN_INVALID_ARGUMENT);
    CHECK(status_of(cudaErrorNotSupported) == TERN_UNSUPPORTED);
    CHECK(status_of(cudaErrorPeerAccessUnsupported) == TERN_UNSUPPORTED);
    CHECK(status_of(cudaErrorStreamCaptureInvalidated) == TERN_BAD_STATE);
    CHECK(status_of(cudaErrorInvalidDevice) == TERN_DEVICE_ERROR);
    CHECK(status_of(cudaErrorIllegalAddress) == TERN_DEVICE_ERROR);
    CHECK(status_of(cudaErrorLaunchFailure) == TERN_DEVICE_ERROR);
}

static void own_kernel(void) {}

static enum tern_status launch(struct machine *m, int num_threads)
{
    struct tern_kernel kernel = {"mine", NULL, own_kernel};
    struct launch l = {0, 1, num_threads, 0, &kernel, sizeof(kernel)};
    return m->ops->launch_other(m, &kernel, &l, NULL);
}

static void launches(struct machine *m)
{
    num_launches = 0;
    CHECK(launch(m, 1024) == TERN_OK && num_launches == 1);
    CHECK(launch(m, 1056) == TERN_INVALID_ARGUMENT && num_launches == 1);
    CHECK(strstr(tern_last_error(), "1 blocks of 1056 threads") != NULL);
    launch_error = cudaErrorLaunchOutOfResources; /* of registers, as it was compiled */
    CHECK(launch(m, 1024) == TERN_INVALID_ARGUMENT && num_launches == 2);
    CHECK(strstr(tern_last_error(), "kernel mine with 1 blocks of 1024 threads") != NULL);
    launch_error = cudaErrorIllegalAddress;
    CHECK(launch(m, 32) == TERN_DEVICE_ERROR);
    launch_error = cudaSuccess;
}

static char said[256];

static void listen(enum tern_log_level level, const char *file, int line, const char *text, void *user)
{
    (void)file, (void)line, (void)user;
    if (level == TERN_LOG_ERROR) {
        snprintf(said, sizeof(said), "%s", text);
    }
}

static void streams(struct machine *m)
{
    struct tern_stream *s;
    CHECK(m->ops->stream_open(m, &s) == TERN_OK && num_streams == 1);
    tern_log_set(listen, NULL);
    m->ops->stream_close(m, NULL);
    m->ops->stream_close(m, s);
    CHECK(num_streams == 0 && said[0] == '\0');
    m->ops->stream_close(m, s);
    CHECK(num_streams == 0);
    CHECK(strstr(said, "tern_stream_close of ") && strstr(said, "was not opened here or is closed"));
    tern_log_set(NULL, NULL);
}

int main(void)
{
    struct machine *m;
    CHECK(terni_cuda_open(0, &m) == TERN_OK);
    errors();
    launches(m);
    streams(m);
    m->ops->close(m);
    printf("ok the cuda machine's errors, launches and streams over a played runtime\n");
    return 0;
}
