/* SPDX-License-Identifier: Apache-2.0
 *
 * Events, which are cudaEvent_t with timing, and graphs, which are executable CUDA graphs. */
#include "machine/cuda_machine.h"

enum tern_status terni_cuda_event_open(struct machine *m, struct tern_event **e)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    cudaEvent_t event = NULL;
    cudaError_t error;

    TERN_TRY(terni_cuda_enter(c, &caller));
    error = cudaEventCreateWithFlags(&event, cudaEventDefault);
    terni_cuda_leave(&caller);
    TERN_TRY(TERN_CUDA_STATUS(error, "cudaEventCreateWithFlags on device %d", m->info.device));
    *e = (struct tern_event *)event;
    return TERN_OK;
}

void terni_cuda_event_close(struct machine *m, struct tern_event *e)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;

    if (e && terni_cuda_enter(c, &caller) == TERN_OK) {
        TERN_CUDA_WARN(cudaEventDestroy((cudaEvent_t)e), "cudaEventDestroy");
        terni_cuda_leave(&caller);
    }
}

enum tern_status terni_cuda_event_record(struct machine *m, struct tern_event *e, struct tern_stream *s)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    cudaError_t error;

    TERN_TRY(terni_cuda_enter(c, &caller));
    error = cudaEventRecord((cudaEvent_t)e, (cudaStream_t)s);
    terni_cuda_leave(&caller);
    return TERN_CUDA_STATUS(error, "cudaEventRecord on device %d", m->info.device);
}

enum tern_status terni_cuda_event_wait(struct machine *m, struct tern_event *e, struct tern_stream *s)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    cudaError_t error;

    TERN_TRY(terni_cuda_enter(c, &caller));
    error = cudaStreamWaitEvent((cudaStream_t)s, (cudaEvent_t)e, cudaEventWaitDefault);
    terni_cuda_leave(&caller);
    return TERN_CUDA_STATUS(error, "cudaStreamWaitEvent on device %d", m->info.device);
}

enum tern_status terni_cuda_event_synchronize(struct machine *m, struct tern_event *e)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    cudaError_t error;

    TERN_TRY(terni_cuda_enter(c, &caller));
    error = cudaEventSynchronize((cudaEvent_t)e);
    terni_cuda_leave(&caller);
    return TERN_CUDA_STATUS(error, "cudaEventSynchronize on device %d", m->info.device);
}

enum tern_status terni_cuda_event_elapsed(struct machine *m, struct tern_event *a, struct tern_event *b,
                                          float *ms)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    cudaError_t error;
    float elapsed = 0;

    TERN_TRY(terni_cuda_enter(c, &caller));
    error = cudaEventElapsedTime(&elapsed, (cudaEvent_t)a, (cudaEvent_t)b);
    terni_cuda_leave(&caller);
    TERN_TRY(TERN_CUDA_STATUS(error, "cudaEventElapsedTime on device %d", m->info.device));
    *ms = elapsed;
    return TERN_OK;
}

/* Thread-local: what other threads of the program do with CUDA in the meantime is not our affair. */
enum tern_status terni_cuda_graph_begin(struct machine *m, struct tern_stream *s)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    cudaError_t error;

    TERN_TRY(terni_cuda_enter(c, &caller));
    error = cudaStreamBeginCapture((cudaStream_t)s, cudaStreamCaptureModeThreadLocal);
    terni_cuda_leave(&caller);
    return TERN_CUDA_STATUS(error, "cudaStreamBeginCapture on device %d", m->info.device);
}

/* Upload here spares the first launch the allocation of the graph's device memory. */
static enum tern_status finish(cudaGraph_t graph, cudaStream_t stream, cudaGraphExec_t *exec)
{
    cudaGraphExec_t made = NULL;
    enum tern_status status;

    TERN_TRY(
        TERN_CUDA_STATUS(cudaGraphInstantiateWithFlags(&made, graph, 0), "cudaGraphInstantiateWithFlags"));
    status = TERN_CUDA_STATUS(cudaGraphUpload(made, stream), "cudaGraphUpload");
    if (status != TERN_OK) {
        TERN_CUDA_WARN(cudaGraphExecDestroy(made), "cudaGraphExecDestroy");
        return status;
    }
    *exec = made;
    return TERN_OK;
}

enum tern_status terni_cuda_graph_end(struct machine *m, struct tern_stream *s, struct tern_graph **g)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    cudaGraphExec_t exec = NULL;
    cudaGraph_t graph = NULL;
    enum tern_status status;

    TERN_TRY(terni_cuda_enter(c, &caller));
    status = TERN_CUDA_STATUS(cudaStreamEndCapture((cudaStream_t)s, &graph),
                              "cudaStreamEndCapture on device %d", m->info.device);
    if (status == TERN_OK) {
        status = finish(graph, (cudaStream_t)s, &exec);
        TERN_CUDA_WARN(cudaGraphDestroy(graph), "cudaGraphDestroy");
    }
    terni_cuda_leave(&caller);
    if (status == TERN_OK) {
        *g = (struct tern_graph *)exec;
    }
    return status;
}

enum tern_status terni_cuda_graph_launch(struct machine *m, struct tern_graph *g, struct tern_stream *s)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;
    cudaError_t error;

    TERN_TRY(terni_cuda_enter(c, &caller));
    error = cudaGraphLaunch((cudaGraphExec_t)g, (cudaStream_t)s);
    terni_cuda_leave(&caller);
    return TERN_CUDA_STATUS(error, "cudaGraphLaunch on device %d", m->info.device);
}

void terni_cuda_graph_close(struct machine *m, struct tern_graph *g)
{
    struct cuda_machine *c = terni_cuda_of(m);
    struct cuda_caller caller;

    if (g && terni_cuda_enter(c, &caller) == TERN_OK) {
        TERN_CUDA_WARN(cudaGraphExecDestroy((cudaGraphExec_t)g), "cudaGraphExecDestroy");
        terni_cuda_leave(&caller);
    }
}
