/* SPDX-License-Identifier: Apache-2.0
 *
 * ep: the host side of expert parallelism. An EP object owns a control window that peers write, a staging
 * window, device memory for its routes and state, and host memory for counts and fault records (layout.h says
 * where everything is). Operations are launches of one kernel each, or some, in issue order: two operations
 * of one object never run at once, on any streams. */
#ifndef TERN_EP_H
#define TERN_EP_H

#include "comm/comm.h"
#include "ep/layout.h"
#include "kernels/inter_args.h"
#include "kernels/ll_args.h"
#include "pgas/pgas.h"

struct tern_route {
    struct tern_ep *ep;
    int slot;  /* -1: free */
    int stale; /* the object was reset since the route was opened */
    uint32_t num_tokens, topk, layout, alignment, idx_bytes;
    uint64_t number; /* of this run on the object; equal on all ranks */
    uint64_t ticket; /* what the kernel writes when its counts are there */
    int captured;    /* last run inside a graph: its counts stay on the device */
    int in_graph;    /* some run was: replays change the counts unseen by the host */
    int is_mixed; /* one was that had other num_tokens than the run before it, and none since was not: which
                        * of them has run last the host does not know */
    uint64_t reported; /* epoch of the run whose bad id the caller has been told of */
    struct route_memory memory;
    struct route_host host;
};

/* Of the weights that come with one row: of all choices, or of the one that it is of. */
static inline uint32_t terni_weight_bytes(const struct tern_route *route)
{
    return route->layout == TERN_LAYOUT_RANK ? route->topk * 4 : 4;
}

/* Calls in one lane so far: the arguments of what was sent there are those of what is received. */
struct ep_lane_calls {
    int sent;         /* enum tern_operation that is to be received next; TERN_OP_NONE: nothing */
    int dispatched;   /* combine has something to bring home */
    uint64_t capture; /* that the latest call was in; 0: none */
    struct ll_dispatch_args dispatch;
    struct ll_combine_args combine;
};

/* What the host knows of a lane. What is captured runs later, more than once or never: it has an order of its
 * own, and leaves that of calls outside graphs alone. */
struct ep_lane {
    struct ep_lane_calls issued, captured;
    int bad_id_told;
};

struct tern_ep {
    struct tern_comm *comm;
    struct machine *machine;
    struct ep_shape shape;
    struct ep_layout layout;
    struct tern_network *network; /* to other domains, whose window is the heap; or NULL */
    struct tern_net net;          /* as kernels see it */
    struct heap *heap;
    char *device_memory;
    char *host_memory; /* as the host addresses it */
    char *host_memory_device;
    struct tern_route *routes; /* [max_routes] */
    uint64_t num_route_runs;
    struct ep_lane *lanes;   /* [ll_lanes], or NULL */
    struct comm_child child; /* knows the stream of the latest operation outside a graph */
    struct tern_event *last; /* after that operation, if is_recorded */
    int is_recorded, changes_streams;
    int lacks_ticket;                /* that operation tells its host nothing when it is done */
    uint64_t num_issued;             /* operations outside graphs: the latest one's ticket */
    int num_leaving;                 /* blocks of that one which leave it */
    struct tern_stream *engine;      /* with copy_engine: of its copies */
    struct tern_event *engine_event; /* joins it with the caller's stream */
    uint64_t num_engine_runs;
    uint32_t no_words;     /* of low latency: rows do not go in words, on any rank */
    uint32_t no_push;      /* no rank pushes, though the layout has room for it: one of them cannot */
    int no_default_stream; /* another rank of this process has the same device, so the same default stream */
    struct stamp_ring *stamps;           /* in device memory, of kernels that stamp; or NULL (ep_trace.h) */
    uint64_t trace_events;               /* it has room for */
    uint32_t trace_number;               /* of the object on its communicator */
    int trace_has_fault;                 /* the fault's trace is written */
    struct ep_record stated;             /* the fault, once seen */
    char broken[200];                    /* it came while an operation was issued: what failed then */
    uint32_t number;                     /* on its communicator, the same on all ranks */
    uint64_t masks_told[TERN_MAX_RANKS]; /* the record of each rank's masking that is in the log */
};

/* Collective opening in steps, so that one thread can take several ranks through each. */
enum { EP_OPEN_STEPS = 1 + NET_OPEN_STEPS + 1 };
enum tern_status terni_ep_open_step(struct tern_comm *comm, const struct tern_ep_config *config, int step,
                                    struct tern_ep **ep);
void terni_ep_close(struct tern_ep *ep);
enum { EP_RESET_STEPS = 3 };
enum tern_status terni_ep_reset_step(struct tern_ep *ep, int step);

/* Before an operation: no fault, `after` awaited, earlier operations of this object ordered before. */
enum tern_status terni_ep_begin(struct tern_ep *ep, struct tern_stream *stream, struct tern_event *after);
/* The ticket of an operation that is about to be launched on the stream; 0 in a capture. */
uint64_t terni_ep_ticket(struct tern_ep *ep, struct tern_stream *stream);
/* Its kernel, the one that leaves, has been launched; the first num_leaving of its blocks leave a ticket. */
void terni_ep_issued(struct tern_ep *ep, uint64_t ticket, int num_leaving);
/* Likewise, of an operation that leaves no ticket. */
void terni_ep_issued_without(struct tern_ep *ep, struct tern_stream *stream);
/* Launches the kernel that leaves, with all blocks, and it is issued. */
enum tern_status terni_ep_launch(struct tern_ep *ep, const struct launch *launch, uint64_t ticket,
                                 struct tern_stream *stream);
/* After all launches, whether or not all of them succeeded (`status`). copies: some come after what leaves
 * the ticket. Returns the first failure. One that comes after the launches is the object's fault from then
 * on, unless `operation` is TERN_OP_NONE, which may be issued again. */
enum tern_status terni_ep_end(struct tern_ep *ep, int operation, enum tern_status status, int copies,
                              struct tern_stream *stream, struct tern_event *record);
/* One wait for a kernel's ticket. TERN_TIMEOUT, and a warning: other work is before the kernel, which ends by
 * its deadline once it runs. */
enum tern_status terni_ep_wait_ticket(struct tern_ep *ep, const char *what, const uint64_t *word,
                                      uint64_t ticket);
enum tern_status terni_ep_synchronize(struct tern_ep *ep);
/* Host waits for the operations issued, whatever became of them. */
enum tern_status terni_ep_wait(struct tern_ep *ep);
/* The same, for what no block of this rank may outlive. After a fault block 0 ends the operation though
 * others may not have heard of it in time; then all is waited for that was issued to its stream by then. */
enum tern_status terni_ep_wait_end(struct tern_ep *ep);
int terni_ep_has_failed(const struct tern_ep *ep);

/* The object's fault is that this rank could not issue an operation that its peers have seen begin. Returns
 * the status; the sentence of the failure stays. */
enum tern_status terni_ep_break(struct tern_ep *ep, int operation, enum tern_status status);
/* TERN_OK, or the object's fault, with its sentence. */
enum tern_status terni_ep_fault(struct tern_ep *ep);
/* TERN_OK, or TERN_INVALID_ARGUMENT if the route's latest run met an id out of range. */
enum tern_status terni_route_bad_id(struct tern_route *route);
/* The same for any route of the object whose bad id the caller has not been told of. */
enum tern_status terni_ep_bad_id(struct tern_ep *ep);
int terni_fault_format(const struct tern_fault *fault, char *text, size_t bytes);
enum tern_status terni_ep_fault_copy(struct tern_ep *ep, struct tern_fault *fault);
/* 1 if the record has been written, and then what it says. */
int terni_record_read(const struct tern_ep *ep, const struct ep_record *record, uint64_t *written,
                      struct tern_fault *fault);

void terni_ep_frame(struct tern_ep *ep, int operation, struct op_frame *frame);
/* Of objects that span domains (ep_far.c): who is where; a route's tables; what the route kernel takes beside
 * what it takes in one domain, which is in k->r. */
void terni_ep_world(const struct tern_ep *ep, struct inter_world *world);
void terni_route_far(const struct tern_route *route, struct route_far *far);
void terni_route_inter(const struct tern_route *route, struct route_inter_args *k);
/* Whether this rank can have blocks with roles of their own, at least `fewest`, as `option` of its object
 * wants. */
enum tern_status terni_ep_check_roles(const struct tern_ep *ep, const char *option, int fewest);
/* Bytes that a dispatch's longest row takes of shared memory. */
uint32_t terni_longest_stage(const struct ep_shape *shape);
/* Bytes of a kernel's place table in shared memory (kernels/place.h), with so many columns. */
uint32_t terni_place_table(const struct ep_shape *shape, uint32_t num_columns);
/* Continues a hash of what must be equal on all ranks. */
uint64_t terni_ep_sign(uint64_t signature, uint64_t value);

enum tern_status terni_route_open(struct tern_ep *ep, const struct tern_route_args *args,
                                  struct tern_stream *stream, struct tern_route **route);
enum tern_status terni_route_run(struct tern_route *route, const struct tern_route_args *args,
                                 struct tern_stream *stream);
/* Behind terni_ep_begin, of an operation along the route: whether its num_tokens are those of the run that it
 * will find. */
enum tern_status terni_route_check_run(const struct tern_route *route, struct tern_stream *stream);
enum tern_status terni_route_wait(struct tern_route *route, struct tern_route_counts *counts);
void terni_route_view(struct tern_route *route, struct tern_route_view *view);
enum tern_status terni_ep_dispatch(struct tern_route *route, const struct tern_dispatch_args *args,
                                   struct tern_stream *stream);
enum tern_status terni_ll_dispatch(struct tern_ep *ep, const struct tern_ll_dispatch_args *args,
                                   struct tern_stream *stream);
enum tern_status terni_ll_combine(struct tern_ep *ep, const struct tern_ll_combine_args *args,
                                  struct tern_stream *stream);
enum tern_status terni_ll_mask_set(struct tern_ep *ep, int rank, int masked, struct tern_stream *stream);
enum tern_status terni_ll_mask_get(struct tern_ep *ep, int32_t *out, struct tern_stream *stream);
enum tern_status terni_ll_mask_peek(struct tern_ep *ep, uint64_t ranks[2]);
enum tern_status terni_ll_mask_fault(struct tern_ep *ep, int rank, struct tern_fault *fault);
/* Puts into the log what kernels have masked since the last look. */
void terni_ll_mask_log(struct tern_ep *ep);
enum tern_status terni_ep_combine(struct tern_route *route, const struct tern_combine_args *args,
                                  struct tern_stream *stream);

/* Places of an operation's tensors: in a window as they are, else in staging with a copy before or after. If
 * copies.own_rows is given, this rank's own rows lie together, and the kernel finds them in the tensor. */
struct staging {
    struct tern_ep *ep;
    uint64_t used;           /* bytes of the staging window */
    struct copy_args copies; /* between staging and tensors */
    int copy_in;             /* tensors are read: copy them to staging first */
};
void terni_staging_begin(struct staging *s, struct tern_ep *ep, const struct tern_route *route,
                         uint64_t capacity, int padding, int copy_in);
/* Bytes from the first to the last of so many rows, if memory can hold them. */
enum tern_status terni_rows_span(const char *what, uint64_t rows, uint32_t row_bytes, int64_t row_stride,
                                 uint64_t *span);
/* Finds the place of `capacity` rows at data (NULL: PLACE_NONE), and, with copies.own_rows, that of this
 * rank's own rows if it is another. all: every row is copied, not only sent ones; with own_rows, those that
 * nobody sends are this rank's own, too. */
enum tern_status terni_staging_place(struct staging *s, const char *what, void *data, uint32_t row_bytes,
                                     int64_t row_stride, int all, struct ep_place *place, struct place *own);
/* Whether there are copies that can leave an operation's ticket. */
int terni_staging_tells(const struct staging *s);
/* Launches the copies, if any; with a ticket they leave it, and the operation is issued. */
enum tern_status terni_staging_copy(const struct staging *s, uint64_t ticket, struct tern_stream *stream);

#endif
