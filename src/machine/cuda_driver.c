/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver's entry points, the current context, and what an error means.
 *
 * An error becomes the status by which the caller decides what to rebuild: no memory, a launch that a device
 * cannot take and misuse of a capture leave everything as it was; a fault of the device stays with its
 * context until the process ends. */
#include "machine/cuda_machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* `function` is a function pointer of `bytes` bytes, filled as bytes: there is no lvalue type for all of
 * them. */
static cudaError_t fetch(const char *symbol, unsigned version, void *function, size_t bytes)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *entry = NULL;
    cudaError_t error;

#if CUDART_VERSION >= 12050
    error = cudaGetDriverEntryPointByVersion(symbol, &entry, version, cudaEnableDefault, &found);
#else
    (void)version;
    error = cudaGetDriverEntryPoint(symbol, &entry, cudaEnableDefault, &found);
#endif
    if (error == cudaSuccess && found != cudaDriverEntryPointSuccess) {
        error = cudaErrorSymbolNotFound;
    }
    memcpy(function, &entry, bytes);
    return error;
}

enum tern_status terni_cuda_driver_load(struct cuda_driver *driver)
{
#define FETCH(member, symbol, type_version, cuda_version)                                                    \
    TERN_TRY(TERN_CUDA_STATUS(fetch(#symbol, cuda_version, &driver->member, sizeof(driver->member)),         \
                              "driver entry point %s", #symbol));
    TERN_CUDA_DRIVER_LIST(FETCH)
#undef FETCH
    return TERN_OK;
}

enum tern_status terni_cuda_enter(struct cuda_machine *c, struct cuda_caller *caller)
{
    TERN_TRY(TERN_CUDA_STATUS(c->driver.context_push(c->context), "cuCtxPushCurrent of device %d",
                              c->base.info.device));
    caller->machine = c;
    caller->mode = cudaStreamCaptureModeRelaxed;
    caller->holds = 0;
    TERN_CUDA_WARN(cudaThreadExchangeStreamCaptureMode(&caller->mode), "cudaThreadExchangeStreamCaptureMode");
    return TERN_OK;
}

enum tern_status terni_cuda_enter_alone(struct cuda_machine *c, struct cuda_caller *caller)
{
    enum tern_status status;

    terni_residents_hold();
    status = terni_cuda_enter(c, caller);
    if (status == TERN_OK) {
        caller->holds = 1;
    } else {
        terni_residents_release();
    }
    return status;
}

void terni_cuda_leave(const struct cuda_caller *caller)
{
    struct cuda_machine *c = caller->machine;
    enum cudaStreamCaptureMode mode = caller->mode;
    CUcontext popped;

    TERN_CUDA_WARN(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
    TERN_CUDA_WARN(c->driver.context_pop(&popped), "cuCtxPopCurrent of device %d", c->base.info.device);
    if (caller->holds) {
        terni_residents_release();
    }
}

static enum tern_status status_of(int error)
{
    switch (error) {
    case cudaErrorMemoryAllocation:
        return TERN_OUT_OF_MEMORY;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorInvalidConfiguration:
    case cudaErrorLaunchOutOfResources:
        return TERN_INVALID_ARGUMENT;
    case cudaErrorNotSupported:
    case cudaErrorNotPermitted:
    case cudaErrorPeerAccessUnsupported:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorSymbolNotFound:
        return TERN_UNSUPPORTED;
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorCapturedEvent:
    case cudaErrorStreamCaptureWrongThread:
    case cudaErrorNotReady:
        return TERN_BAD_STATE;
    default:
        return TERN_DEVICE_ERROR;
    }
}

enum tern_status terni_cuda_fail(const char *file, int line, int error, const char *format, ...)
{
    char what[256];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    (void)cudaGetLastError();
    return terni_fail(file, line, status_of(error), "%s: %s (%s)", what, cudaGetErrorName((cudaError_t)error),
                      cudaGetErrorString((cudaError_t)error));
}
