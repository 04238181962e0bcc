/* SPDX-License-Identifier: Apache-2.0
 *
 * The public calls on streams, events, graphs and kernels of the program's own: arguments checked, one call
 * to the machine. */
#include "comm/comm.h"

/* ---- Streams ---- */

enum tern_status tern_stream_open(struct tern_comm *comm, struct tern_stream **stream)
{
    TERN_TRY(terni_check_pointer("comm", comm));
    TERN_TRY(terni_check_pointer("stream", stream));
    return comm->machine->ops->stream_open(comm->machine, stream);
}

void tern_stream_close(struct tern_comm *comm, struct tern_stream *stream)
{
    if (comm != NULL && stream != NULL) {
        /* First done, then forgotten, then gone: its handle may be another stream's at once. */
        if (comm->machine->ops->stream_is_open(comm->machine, stream)) {
            if (comm->machine->ops->stream_synchronize(comm->machine, stream) != TERN_OK) {
                TERN_LOG(TERN_LOG_WARN, "tern_stream_close: %s", tern_last_error());
            }
            terni_comm_stream_closed(comm, stream);
        }
        comm->machine->ops->stream_close(comm->machine, stream);
    }
}

enum tern_status tern_stream_synchronize(struct tern_comm *comm, struct tern_stream *stream)
{
    TERN_TRY(terni_check_pointer("comm", comm));
    return comm->machine->ops->stream_synchronize(comm->machine, stream);
}

/* ---- Events ---- */

enum tern_status tern_event_open(struct tern_comm *comm, struct tern_event **event)
{
    TERN_TRY(terni_check_pointer("comm", comm));
    TERN_TRY(terni_check_pointer("event", event));
    return comm->machine->ops->event_open(comm->machine, event);
}

void tern_event_close(struct tern_comm *comm, struct tern_event *event)
{
    if (comm != NULL && event != NULL) {
        comm->machine->ops->event_close(comm->machine, event);
    }
}

enum tern_status tern_event_record(struct tern_comm *comm, struct tern_event *event,
                                   struct tern_stream *stream)
{
    TERN_TRY(terni_check_pointer("comm", comm));
    TERN_TRY(terni_check_pointer("event", event));
    return comm->machine->ops->event_record(comm->machine, event, stream);
}

enum tern_status tern_event_wait(struct tern_comm *comm, struct tern_event *event, struct tern_stream *stream)
{
    TERN_TRY(terni_check_pointer("comm", comm));
    TERN_TRY(terni_check_pointer("event", event));
    return comm->machine->ops->event_wait(comm->machine, event, stream);
}

enum tern_status tern_event_elapsed(struct tern_comm *comm, struct tern_event *begin, struct tern_event *end,
                                    float *milliseconds)
{
    TERN_TRY(terni_check_pointer("comm", comm));
    TERN_TRY(terni_check_pointer("begin", begin));
    TERN_TRY(terni_check_pointer("end", end));
    TERN_TRY(terni_check_pointer("milliseconds", milliseconds));
    return comm->machine->ops->event_elapsed(comm->machine, begin, end, milliseconds);
}

/* ---- Graphs ---- */

enum tern_status tern_graph_begin(struct tern_comm *comm, struct tern_stream *stream)
{
    TERN_TRY(terni_check_pointer("comm", comm));
    return comm->machine->ops->graph_begin(comm->machine, stream);
}

enum tern_status tern_graph_end(struct tern_comm *comm, struct tern_stream *stream, struct tern_graph **graph)
{
    TERN_TRY(terni_check_pointer("comm", comm));
    TERN_TRY(terni_check_pointer("graph", graph));
    return comm->machine->ops->graph_end(comm->machine, stream, graph);
}

enum tern_status tern_graph_launch(struct tern_comm *comm, struct tern_graph *graph,
                                   struct tern_stream *stream)
{
    TERN_TRY(terni_check_pointer("comm", comm));
    TERN_TRY(terni_check_pointer("graph", graph));
    return comm->machine->ops->graph_launch(comm->machine, graph, stream);
}

void tern_graph_close(struct tern_comm *comm, struct tern_graph *graph)
{
    if (comm != NULL && graph != NULL) {
        comm->machine->ops->graph_close(comm->machine, graph);
    }
}

/* ---- Kernels ---- */

enum tern_status tern_launch(struct tern_comm *comm, const struct tern_kernel *kernel,
                             const struct tern_launch_args *args, struct tern_stream *stream)
{
    struct launch launch = {-1, 0, 0, 0, NULL, 0};
    TERN_TRY(terni_check_pointer("comm", comm));
    TERN_TRY(terni_check_pointer("kernel", kernel));
    TERN_TRY(terni_check_struct("args", args, sizeof(*args)));
    TERN_TRY(terni_check_pointer("the kernel's arguments", args->args));
    launch.num_blocks = args->num_blocks;
    launch.num_threads = args->num_threads;
    launch.shared_bytes = args->shared_bytes;
    launch.args = args->args;
    launch.args_bytes = args->args_bytes;
    return comm->machine->ops->launch_other(comm->machine, kernel, &launch, stream);
}
