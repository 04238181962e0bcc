/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams, and the host's wait for a kernel's word. A stream here is a cudaStream_t and does not synchronise
 * with the legacy default stream. */
#include "machine/cuda_machine.h"

#include "kernels/kernels.h"

#include <sched.h>
#include <stdlib.h>

enum {
    LOOKS_A_ROUND = 64, /* at the word between two readings of the clock, some 2 microseconds */
    PROBE_NS = 1000000, /* between two questions whether the device still answers */
    SPIN_NS = 200000    /* after which the waiting thread offers its processor to others */
};

/* The first kernel on a new stream can wait until the kernels that run on the device have ended (seen on
 * H200, driver 580, when ranks are threads that share a GPU). If one of those waits for this rank, both wait
 * to the deadline. So a stream gets its first kernel when it is opened, which is before its rank's first
 * operation. */
static enum tern_status wake(struct machine *m, cudaStream_t stream)
{
    struct wake_args args = {0};
    struct launch l = {TERN_KERNEL_wake, 1, 32, 0, &args, sizeof(args)};

    TERN_TRY(m->ops->launch(m, &l, (struct tern_stream *)stream));
    return terni_cuda_stream_synchronize(m, (struct tern_stream *)stream);
}

static enum tern_status open_stream(struct machine *m, struct tern_stream **s)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    struct cuda_stream *entry = (struct cuda_stream *)calloc(1, sizeof(*entry));
    enum tern_status status;

    if (!entry) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for a stream");
    }
    status = terni_cuda_enter(c, &caller);
    if (status == TERN_OK) {
        status = TERN_CUDA_STATUS(cudaStreamCreateWithFlags(&entry->stream, cudaStreamNonBlocking),
                                  "cudaStreamCreateWithFlags on device %d", m->info.device);
        terni_cuda_leave(&caller);
    }
    if (status != TERN_OK) {
        goto free_entry;
    }
    status = wake(m, entry->stream);
    if (status != TERN_OK) {
        goto destroy_stream;
    }
    pthread_mutex_lock(&c->lock);
    entry->next = c->streams;
    c->streams = entry;
    pthread_mutex_unlock(&c->lock);
    *s = (struct tern_stream *)entry->stream;
    return TERN_OK;
destroy_stream:
    if (terni_cuda_enter(c, &caller) == TERN_OK) {
        TERN_CUDA_WARN(cudaStreamDestroy(entry->stream), "cudaStreamDestroy");
        terni_cuda_leave(&caller);
    }
free_entry:
    free(entry);
    return status;
}

/* What stays on the device has ended: the first kernel may wait for it. */
enum tern_status terni_cuda_stream_open(struct machine *m, struct tern_stream **s)
{
    enum tern_status status;

    terni_residents_hold();
    status = open_stream(m, s);
    terni_residents_release();
    return status;
}

int terni_cuda_stream_is_open(struct machine *m, struct tern_stream *s)
{
    struct cuda_machine *c = terni_cuda_of(m);
    const struct cuda_stream *at;

    pthread_mutex_lock(&c->lock);
    for (at = c->streams; at && at->stream != (cudaStream_t)s; at = at->next) {
    }
    pthread_mutex_unlock(&c->lock);
    return at != NULL;
}

/* A stream that was not opened here is the caller's and stays. */
void terni_cuda_stream_close(struct machine *m, struct tern_stream *s)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    struct cuda_stream **at = &c->streams, *entry;

    if (!s) {
        return;
    }
    pthread_mutex_lock(&c->lock);
    while (*at && (*at)->stream != (cudaStream_t)s) {
        at = &(*at)->next;
    }
    entry = *at;
    if (entry) {
        *at = entry->next;
    }
    pthread_mutex_unlock(&c->lock);
    if (!entry) {
        TERN_LOG(TERN_LOG_ERROR, "tern_stream_close of %p, which was not opened here or is closed",
                 (void *)s);
        return;
    }
    if (terni_cuda_enter(c, &caller) == TERN_OK) {
        TERN_CUDA_WARN(cudaStreamSynchronize(entry->stream), "cudaStreamSynchronize of a stream that closes");
        TERN_CUDA_WARN(cudaStreamDestroy(entry->stream), "cudaStreamDestroy");
        terni_cuda_leave(&caller);
    }
    free(entry);
}

/* The list is read without the lock, which must not be held for so long: nobody opens or closes streams of a
 * machine that settles. */
void terni_cuda_settle(struct machine *m)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;

    if (c->streams && terni_cuda_enter(c, &caller) == TERN_OK) {
        for (const struct cuda_stream *s = c->streams; s; s = s->next) {
            TERN_CUDA_WARN(cudaStreamSynchronize(s->stream),
                           "cudaStreamSynchronize of a machine that settles");
        }
        terni_cuda_leave(&caller);
    }
}

enum tern_status terni_cuda_stream_synchronize(struct machine *m, struct tern_stream *s)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    cudaError_t error;

    TERN_TRY(terni_cuda_enter(c, &caller));
    error = cudaStreamSynchronize((cudaStream_t)s);
    terni_cuda_leave(&caller);
    return TERN_CUDA_STATUS(error, "cudaStreamSynchronize on device %d", m->info.device);
}

/* By either name. Not cudaStreamPerThread: each thread has one of its own. */
int terni_cuda_is_default_stream(struct machine *m, struct tern_stream *s)
{
    (void)m;
    return s == NULL || (cudaStream_t)s == cudaStreamLegacy;
}

/* The legacy default stream cannot be captured, and asking it would spoil a capture elsewhere. */
uint64_t terni_cuda_stream_capture(struct machine *m, struct tern_stream *s)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    unsigned long long number = 0;
    cudaError_t error;

    if (terni_cuda_is_default_stream(m, s) || terni_cuda_enter(c, &caller) != TERN_OK) {
        return 0;
    }
#if CUDART_VERSION >= 13000
    error = cudaStreamGetCaptureInfo((cudaStream_t)s, &capture, &number, NULL, NULL, NULL, NULL);
#else
    error = cudaStreamGetCaptureInfo_v2((cudaStream_t)s, &capture, &number, NULL, NULL, NULL);
#endif
    terni_cuda_leave(&caller);
    TERN_CUDA_WARN(error, "cudaStreamGetCaptureInfo");
    return error == cudaSuccess && capture != cudaStreamCaptureStatusNone ? number : 0;
}

int terni_cuda_stream_capturing(struct machine *m, struct tern_stream *s)
{
    return terni_cuda_stream_capture(m, s) != 0;
}

/* A dead context shows only where work is pending or issued, so each probe is an event on the machine's own
 * stream: nobody else's stream is asked, which might be in a capture. Threads that wait at once take turns
 * with the one event: each sees what the device answered last. */
static enum tern_status probe(struct cuda_machine *c)
{
    struct cuda_caller caller;
    cudaError_t error;

    TERN_TRY(terni_cuda_enter(c, &caller));
    pthread_mutex_lock(&c->lock);
    error = c->probing ? cudaEventQuery(c->probe) : cudaEventRecord(c->probe, c->own);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        error = cudaSuccess;
    } else {
        c->probing = !c->probing;
    }
    pthread_mutex_unlock(&c->lock);
    terni_cuda_leave(&caller);
    return TERN_CUDA_STATUS(error, "device %d, while the host waited for a kernel", c->base.info.device);
}

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

enum tern_status terni_cuda_wait_word(struct machine *m, const uint64_t *word, uint64_t value,
                                      uint64_t deadline_ns)
{
    struct cuda_machine *c = terni_cuda_of(m);
    uint64_t begin = terni_clock_ns(), now = begin, next_probe = begin + PROBE_NS;

    for (;;) {
        for (int i = 0; i < LOOKS_A_ROUND; i++) {
            /* Pairs with the kernel's st.release.sys of the same word: what it wrote for the host before is
             * whole. */
            if (__atomic_load_n(word, __ATOMIC_ACQUIRE) == value) {
                return TERN_OK;
            }
            pause_briefly();
        }
        if (now >= deadline_ns) {
            return TERN_TIMEOUT;
        }
        now = terni_clock_ns();
        if (now >= next_probe) {
            TERN_TRY(probe(c));
            next_probe = now + PROBE_NS;
        }
        if (now - begin > SPIN_NS) {
            sched_yield();
        }
    }
}
