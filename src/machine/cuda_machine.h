/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the cuda machine share: cuda.c (open, close, memory, launch), cuda_share.c and
 * cuda_lend.c (memory for peers), cuda_nic.c (what NICs need), cuda_stream.c (streams, the host's wait),
 * cuda_own.c (the library's own stream), cuda_graph.c (events, graphs), cuda_driver.c (driver calls, the
 * current context, errors), cuda_info.c (what devices there are).
 *
 * The CUDA runtime is linked statically and opens the driver when it is first asked, so a program with Tern
 * in it runs where no driver is. Driver calls that the runtime lacks are fetched through it (cuda_driver.c).
 *
 * One host thread may drive ranks on several devices and has a current device of its own, so every operation
 * stands between terni_cuda_enter and terni_cuda_leave. These push and pop the device's primary context,
 * which puts back what was there exactly: setting a device back that the thread never used would make a
 * context on it. */
#ifndef TERN_CUDA_MACHINE_H
#define TERN_CUDA_MACHINE_H

#include "machine/machine.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

/* X(member, entry point, version of its type, CUDA version to ask for) */
#define TERN_CUDA_DRIVER_LIST(X)                                                                             \
    X(device_get, cuDeviceGet, v2000, 2000)                                                                  \
    X(device_attribute, cuDeviceGetAttribute, v2000, 2000)                                                   \
    X(device_uuid, cuDeviceGetUuid, v11040, 11040)                                                           \
    X(primary_retain, cuDevicePrimaryCtxRetain, v7000, 7000)                                                 \
    X(context_push, cuCtxPushCurrent, v4000, 4000)                                                           \
    X(context_pop, cuCtxPopCurrent, v4000, 4000)                                                             \
    X(address_reserve, cuMemAddressReserve, v10020, 10020)                                                   \
    X(address_free, cuMemAddressFree, v10020, 10020)                                                         \
    X(write_value, cuStreamWriteValue64, v11070, 11070)                                                      \
    X(create, cuMemCreate, v10020, 10020)                                                                    \
    X(release, cuMemRelease, v10020, 10020)                                                                  \
    X(map, cuMemMap, v10020, 10020)                                                                          \
    X(unmap, cuMemUnmap, v10020, 10020)                                                                      \
    X(set_access, cuMemSetAccess, v10020, 10020)                                                             \
    X(export_handle, cuMemExportToShareableHandle, v10020, 10020)                                            \
    X(import_handle, cuMemImportFromShareableHandle, v10020, 10020)                                          \
    X(retain_handle, cuMemRetainAllocationHandle, v11000, 11000)                                             \
    X(get_address_range, cuMemGetAddressRange, v3020, 3020)                                                  \
    X(pointer_attribute, cuPointerGetAttribute, v4000, 4000)                                                 \
    X(get_range_handle, cuMemGetHandleForAddressRange, v11070, 11070)                                        \
    X(get_granularity, cuMemGetAllocationGranularity, v10020, 10020)                                         \
    X(get_properties, cuMemGetAllocationPropertiesFromHandle, v10020, 10020)

struct cuda_driver {
#define TERN_CUDA_DRIVER_MEMBER(member, symbol, type_version, cuda_version)                                  \
    PFN_##symbol##_##type_version member;
    TERN_CUDA_DRIVER_LIST(TERN_CUDA_DRIVER_MEMBER)
#undef TERN_CUDA_DRIVER_MEMBER
};

/* A stream that was opened here and not yet closed. */
struct cuda_stream {
    cudaStream_t stream;
    struct cuda_stream *next;
};

struct cuda_machine {
    struct machine base; /* first */
    struct cuda_driver driver;
    CUcontext context;  /* the device's primary one; retained, never released: see cuda.c */
    int launches_early; /* kernels may be made ready while the one before ends, which all of them await */
    /* For zeroing, probing and own_stream, no part of anybody's order or capture; of the process's machines
     * on this device (cuda_own.c). */
    cudaStream_t own;
    pthread_mutex_t lock; /* of all below */
    struct cuda_stream *streams;
    cudaEvent_t probe; /* on `own`: whether the device still answers */
    int probing;       /* `probe` is recorded and was not yet seen done */
};

/* What a thread had before terni_cuda_enter, for terni_cuda_leave to put back. In the frame of the function
 * that enters, because several threads may be in one machine. */
struct cuda_caller {
    struct cuda_machine *machine;
    enum cudaStreamCaptureMode mode;
    int holds; /* residents, until it leaves */
};

static inline struct cuda_machine *terni_cuda_of(struct machine *m) { return (struct cuda_machine *)m; }

enum tern_status terni_cuda_driver_load(struct cuda_driver *driver);

/* Makes the device current for this thread, and lets it make calls that would spoil another thread's capture
 * (allocation, queries): none of ours touches a stream that is being captured unless it is the caller's. */
enum tern_status terni_cuda_enter(struct cuda_machine *c, struct cuda_caller *caller);
/* Likewise, for calls that may wait for all work of the device: what stays there has ended meanwhile. */
enum tern_status terni_cuda_enter_alone(struct cuda_machine *c, struct cuda_caller *caller);
void terni_cuda_leave(const struct cuda_caller *caller);

/* Turns an error into a status and a sentence "<format>: <CUDA's name and text>", and clears it from the
 * thread so that the caller's own next CUDA call does not report it. Driver codes have the same values as the
 * runtime's. */
enum tern_status terni_cuda_fail(const char *file, int line, int error, const char *format, ...)
    TERN_PRINTF(4, 5);
/* Of a cudaError_t or CUresult: TERN_OK if it is success. `error` is evaluated once: it is usually a call,
 * which would be made again. */
#define TERN_CUDA_STATUS(error, ...)                                                                         \
    __extension__({                                                                                          \
        int cuda_error_ = (int)(error);                                                                      \
        enum tern_status cuda_status_ = TERN_OK;                                                             \
        if (cuda_error_ != 0) {                                                                              \
            cuda_status_ = terni_cuda_fail(__FILE__, __LINE__, cuda_error_, __VA_ARGS__);                    \
        }                                                                                                    \
        cuda_status_;                                                                                        \
    })
/* For calls that cannot report: logs and goes on. */
#define TERN_CUDA_WARN(error, ...)                                                                           \
    do {                                                                                                     \
        if (TERN_CUDA_STATUS(error, __VA_ARGS__) != TERN_OK) {                                               \
            TERN_LOG(TERN_LOG_WARN, "%s", tern_last_error());                                                \
        }                                                                                                    \
    } while (0)

/* cuda_info.c. The driver's version as "580.159 / CUDA 13.0". */
enum tern_status terni_cuda_info_get(int ordinal, struct machine_info *info);

/* cuda_share.c */
enum tern_status terni_cuda_share_granule(struct cuda_machine *c, uint64_t *granule);
enum tern_status terni_cuda_share_reserve(struct machine *m, int kind, uint64_t bytes, struct share *share);
enum tern_status terni_cuda_share_add(struct machine *m, struct share *share, uint64_t bytes, int *fd);
enum tern_status terni_cuda_share_import(struct machine *m, struct share *share, int fd, uint64_t offset,
                                         uint64_t bytes);
void terni_cuda_share_trim(struct machine *m, struct share *share, uint64_t bytes);
enum tern_status terni_cuda_peer_enable(struct machine *m, int device);
int terni_cuda_lacks_atomics(struct machine *m, const unsigned char uuid[16]);
void terni_cuda_share_free(struct machine *m, struct share *share);
/* Ranks on other devices of this process may use these addresses, as with cudaMalloc after peer_enable. */
enum tern_status terni_cuda_set_peer_access(struct cuda_machine *c, CUdeviceptr at, size_t bytes);
/* Closed on exec. */
enum tern_status terni_cuda_export_fd(struct cuda_machine *c, CUmemGenericAllocationHandle handle, int *fd);

/* cuda_lend.c */
enum tern_status terni_cuda_share_lend(struct machine *m, void *memory, uint64_t bytes, int exported,
                                       struct share_loan *loan);

/* cuda_nic.c */
enum tern_status terni_cuda_io_map(struct machine *m, void *registers, size_t bytes, void **device);
void terni_cuda_io_unmap(struct machine *m, void *registers);
enum tern_status terni_cuda_dmabuf(struct machine *m, void *memory, uint64_t bytes, int *fd,
                                   uint64_t *offset);

/* cuda_stream.c */
enum tern_status terni_cuda_stream_open(struct machine *m, struct tern_stream **s);
int terni_cuda_stream_is_open(struct machine *m, struct tern_stream *s);
void terni_cuda_stream_close(struct machine *m, struct tern_stream *s);
void terni_cuda_settle(struct machine *m);
enum tern_status terni_cuda_stream_synchronize(struct machine *m, struct tern_stream *s);
int terni_cuda_stream_capturing(struct machine *m, struct tern_stream *s);
uint64_t terni_cuda_stream_capture(struct machine *m, struct tern_stream *s);
int terni_cuda_is_default_stream(struct machine *m, struct tern_stream *s);
enum tern_status terni_cuda_wait_word(struct machine *m, const uint64_t *word, uint64_t value,
                                      uint64_t deadline_ns);

/* cuda_own.c. The device is current. */
enum tern_status terni_cuda_own_take(int device, cudaStream_t *stream);
void terni_cuda_own_give(int device);

/* cuda_graph.c */
enum tern_status terni_cuda_event_open(struct machine *m, struct tern_event **e);
void terni_cuda_event_close(struct machine *m, struct tern_event *e);
enum tern_status terni_cuda_event_record(struct machine *m, struct tern_event *e, struct tern_stream *s);
enum tern_status terni_cuda_event_wait(struct machine *m, struct tern_event *e, struct tern_stream *s);
enum tern_status terni_cuda_event_synchronize(struct machine *m, struct tern_event *e);
enum tern_status terni_cuda_event_elapsed(struct machine *m, struct tern_event *a, struct tern_event *b,
                                          float *ms);
enum tern_status terni_cuda_graph_begin(struct machine *m, struct tern_stream *s);
enum tern_status terni_cuda_graph_end(struct machine *m, struct tern_stream *s, struct tern_graph **g);
enum tern_status terni_cuda_graph_launch(struct machine *m, struct tern_graph *g, struct tern_stream *s);
void terni_cuda_graph_close(struct machine *m, struct tern_graph *g);

#endif
