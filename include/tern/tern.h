/* SPDX-License-Identifier: Apache-2.0
 *
 * tern.h - the whole host interface of Tern: expert-parallel communication for mixture-of-experts models.
 *
 * Tokens leave for the ranks that own their experts (dispatch) and come home summed (combine). What one
 * table of expert ids means for every rank (counts, offsets, slots) is a route; dispatch and combine take it
 * any number of times. A program reads, in order of need:
 *
 *     tern_comm_open   ranks find each other and get memory that peers can address
 *     tern_ep_open     expert-parallel state for one shape (experts, tokens, bytes a row)
 *     tern_route_open  the ids of one batch become a route
 *     tern_dispatch    rows go out
 *     tern_combine     rows come home
 *
 * Small batches go by tern_ll_dispatch and tern_ll_combine instead: a kernel each, or two, and no route.
 *
 * Machines. The same kernels run on GPUs ("cuda") and on the processor ("cpu"). "Device memory", "stream"
 * and "event" mean the machine's own: on cuda a struct tern_stream * IS a cudaStream_t and a struct
 * tern_event * IS a cudaEvent_t, cast either way; NULL is the machine's default stream, which Tern uses only
 * when the caller passes it. Ranks of one process that share a GPU share its default stream, so there every
 * rank needs streams of its own.
 *
 * Early launches. From compute capability 9.0 and CUDA 12.3 on, Tern launches its kernels with programmatic
 * stream serialization, but on the default stream: one may be made ready while the kernel before it in the
 * stream ends, or once that one allows it (cudaTriggerProgrammaticLaunchCompletion), and waits until it is
 * over. Tern's own kernels never allow it early. In captured graphs such edges are programmatic ones. Kernels
 * of yours, or of a library, that are launched so as well must each wait for those before them
 * (cudaGridDependencySynchronize) before they end or read what Tern's have written; and if one allows the
 * next early and then waits for something that needs processors, Tern's next kernel may hold them.
 * TERN_EARLY_LAUNCH=0 in the environment turns it off.
 *
 * Threads. An object may be used by one thread at a time; different objects may be used by different threads
 * at once, also EP objects of one communicator. Opening, resetting and closing EP objects, teams and
 * networks, tern_net_view, tern_alloc, tern_free, the calls on windows and the host collectives are uses of
 * the communicator. Operations of EP objects and networks are none: while they run another thread may grow
 * the window, and adopt and release windows that they do not name. Calls marked COLLECTIVE must be made by
 * every rank, in the same order on one object. No call keeps a lock while it waits for a peer. On cuda a call
 * leaves the thread's current device as it was.
 *
 * Errors. Every call that can fail returns an enum tern_status: 0 is success. On failure outputs are
 * untouched unless the call says otherwise, and tern_last_error() gives one sentence with the offending
 * value. A negative status never leaves an object half made. A refusal is local unless the call says
 * otherwise: where one rank alone is refused a COLLECTIVE call, its peers wait for it until their deadline.
 * Nothing is lost if it calls again within that time; later the peers have failed, and all ranks recover as
 * TERN_RECOVER_GROUP says.
 *
 * Structures. Every configuration and argument structure begins with its own size, must be initialised with
 * its _INIT macro (or be zeroed and have size set), and only ever grows at the end; struct tern_rows, which
 * stands in arrays, keeps its size for ever. Zero is the default of every optional field.
 *
 * Ownership. What an _open call returns is released by the matching _close, which accepts NULL. Device
 * pointers given to a call that takes a stream must stay valid until the work issued there has finished;
 * structures and arrays of structures are read before the call returns.
 *
 * Deadlines. A host collective (opening, resetting, barrier, allgather) that misses its deadline ends the
 * communicator: its later collectives fail with the same sentence; close it and open another, or let those
 * that are left shrink it (tern_comm_shrink). A barrier of a team, or a split, that does so ends that team
 * only. A kernel that misses its deadline ends its EP object only: see tern_ep_reset. Across domains its
 * waits are up to a quarter longer: a rank that itself waits for the late one is to speak first. */
#ifndef TERN_TERN_H
#define TERN_TERN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_VERSION_MAJOR 0
#define TERN_VERSION_MINOR 1
#define TERN_VERSION_PATCH 0

#if defined(__GNUC__)
#define TERN_API __attribute__((visibility("default")))
#else
#define TERN_API
#endif

/* ---- Status ------------------------------------------------------------------------------------------ */

/* What a caller must rebuild after a failure. */
enum tern_recovery {
    TERN_RECOVER_NOTHING = 0, /* success */
    TERN_RECOVER_CALL = 1,    /* mend the arguments and call again; every object is as before. In a COLLECTIVE
                                 call that peers are in, before their deadline: see Errors above */
    TERN_RECOVER_GROUP = 2,   /* the operation is lost: tern_ep_reset after a kernel's fault, else close and
                                 open the communicator anew, or let those that are left shrink it
                                 (tern_comm_shrink) */
    TERN_RECOVER_PROCESS = 3  /* the device or the process is beyond repair */
};

/* X(name, value, recovery, text) */
#define TERN_STATUS_LIST(X)                                                                                  \
    X(TERN_OK, 0, TERN_RECOVER_NOTHING, "success")                                                           \
    X(TERN_INVALID_ARGUMENT, -1, TERN_RECOVER_CALL, "invalid argument")                                      \
    X(TERN_UNSUPPORTED, -2, TERN_RECOVER_CALL, "not supported by this build, machine or configuration")      \
    X(TERN_OUT_OF_MEMORY, -3, TERN_RECOVER_CALL, "out of memory")                                            \
    X(TERN_NO_SPACE, -4, TERN_RECOVER_CALL, "a buffer or a table given to Tern is too small")                \
    X(TERN_BAD_STATE, -5, TERN_RECOVER_CALL, "the object is not in a state that allows this call")           \
    X(TERN_SYSTEM_ERROR, -6, TERN_RECOVER_CALL, "a call to the operating system failed")                     \
    X(TERN_MISMATCH, -10, TERN_RECOVER_GROUP, "ranks disagree about a configuration or an operation")        \
    X(TERN_TIMEOUT, -11, TERN_RECOVER_GROUP, "a rank did not arrive within the deadline")                    \
    X(TERN_DISCONNECTED, -12, TERN_RECOVER_GROUP, "a rank closed its connection")                            \
    X(TERN_DEVICE_ERROR, -20, TERN_RECOVER_PROCESS, "the device reported an error")                          \
    X(TERN_INTERNAL_ERROR, -21, TERN_RECOVER_PROCESS, "an invariant of Tern does not hold")

enum tern_status {
#define TERN_STATUS_ENUM(name, value, recovery, text) name = value,
    TERN_STATUS_LIST(TERN_STATUS_ENUM)
#undef TERN_STATUS_ENUM
        TERN_STATUS_END = -1000 /* no call returns this */
};

/* Static text for any value, also an unknown one. Any thread. */
TERN_API const char *tern_status_string(enum tern_status status);
TERN_API enum tern_recovery tern_status_recovery(enum tern_status status);
/* The sentence of the last failure in this thread; "" if there was none. Valid until the next failure. */
TERN_API const char *tern_last_error(void);
/* (major << 16) | (minor << 8) | patch of the library in use. Any thread. */
TERN_API uint32_t tern_version(void);

/* ---- Log --------------------------------------------------------------------------------------------- */

enum tern_log_level { TERN_LOG_ERROR = 0, TERN_LOG_WARN = 1, TERN_LOG_INFO = 2, TERN_LOG_TRACE = 3 };

/* Receives every message at or below the level of TERN_LOG (default: warn). Called from any thread, never
 * from a kernel; must not call Tern. `text` has no newline and is valid during the call only. */
typedef void (*tern_log_function)(enum tern_log_level level, const char *file, int line, const char *text,
                                  void *user);
/* The one process-wide setting: NULL restores the default, one line on standard error. Any thread. */
TERN_API void tern_log_set(tern_log_function function, void *user);

/* ---- Communicator ------------------------------------------------------------------------------------ */

enum tern_machine {
    TERN_MACHINE_AUTO = 0, /* cuda if a usable GPU is there, else cpu */
    TERN_MACHINE_CPU = 1,
    TERN_MACHINE_CUDA = 2
};

struct tern_comm;
struct tern_stream;
struct tern_event;
struct tern_graph;

/* Names one communicator. Made by one rank, carried to the others by any means (a file, an environment
 * variable, MPI, a store). Plain bytes; no pointers. */
struct tern_id {
    unsigned char bytes[128];
};

#define TERN_DEVICE_ORDINAL(ordinal) ((ordinal) + 1)

struct tern_comm_config {
    size_t size;
    int32_t machine; /* enum tern_machine; default: TERN_MACHINE, else auto */
    int32_t device;  /* TERN_DEVICE_ORDINAL(cuda ordinal); default: rank among the host's ranks modulo GPUs */
    uint64_t heap_bytes; /* window memory for tern_alloc on this rank; default 256 MiB. Equal on all ranks */
    uint32_t timeout_ms; /* deadline of every wait for a peer; default: TERN_TIMEOUT_MS, else 30000 */
    uint32_t reserved;
    uint64_t cpu_seed; /* cpu: nonzero fixes the schedule, which then runs only while a host thread waits
                          in Tern, so that one thread driving all ranks (tern_comm_open_all) replays
                          exactly; default: TERN_CPU_SEED, else free running */
    /* What tern_heap_grow may make of heap_bytes; default: heap_bytes, no growth. Addresses for so much are
     * reserved on every rank, for its own window and for each peer's. With growth both sizes are rounded up
     * to granules, as tern_heap_grow says. Equal on all ranks. */
    uint64_t heap_max_bytes;
};
#define TERN_COMM_CONFIG_INIT                                                                                \
    {                                                                                                        \
        sizeof(struct tern_comm_config), 0, 0, 0, 0, 0, 0, 0                                                 \
    }

/* Makes an id whose root listens on this host; the process that calls this must hold rank 0. `interface`
 * is a numeric IPv4 or IPv6 address of this host that the other ranks can reach; NULL: TERN_INTERFACE,
 * else 127.0.0.1. Fails with TERN_SYSTEM_ERROR if no socket can be had. */
TERN_API enum tern_status tern_id_create(const char *interface, struct tern_id *id);
/* The id of "host:port/cookie" or "[v6]:port/cookie", the same on every rank, for launchers that give an
 * agreed address instead of bytes; rank 0 listens there when it opens, for a name at all its addresses. */
TERN_API enum tern_status tern_id_from_address(const char *address, struct tern_id *id);
/* The id, rank and size that tern-run (or a caller's own launcher) put into TERN_ID, TERN_RANK and
 * TERN_NUM_RANKS. TERN_BAD_STATE if they are not set. */
TERN_API enum tern_status tern_id_from_environment(struct tern_id *id, int *rank, int *num_ranks);

/* COLLECTIVE over num_ranks callers with the same id. Blocks until all have come or the deadline passes.
 * Ranks may be threads of a process, processes, or both. `config` may be NULL. */
TERN_API enum tern_status tern_comm_open(const struct tern_id *id, int rank, int num_ranks,
                                         const struct tern_comm_config *config, struct tern_comm **comm);
/* All num_ranks ranks in this process, driven by the calling thread: comms[r] is rank r. No sockets. With
 * TERN_DEVICE_ORDINAL given, all share that device; by default rank r uses GPU r modulo the number of GPUs. A
 * communicator may have more ranks than an EP object, which takes at most TERN_MAX_RANKS.
 * Of the COLLECTIVE calls marked blocking one thread can be in one at a time, and waits there for the other
 * ranks: to drive several ranks use the forms that end in _all. Barriers and tern_comm_allgather have no such
 * form; one thread for all ranks needs neither. */
TERN_API enum tern_status tern_comm_open_all(int num_ranks, const struct tern_comm_config *config,
                                             struct tern_comm **comms);
/* Local. EP objects, networks and teams must have been closed, else nothing happens but a line in the log;
 * close events and graphs before, too. Streams opened through it are waited for and closed, memory of
 * tern_alloc is freed; work on any other stream, a GPU's default one among them, must have finished. Memory
 * that peers still map lives until they close. What is given back may make a device wait until running
 * kernels have ended, also a peer's, whose window the last to close frees: not while a peer's operation waits
 * for this rank. */
TERN_API void tern_comm_close(struct tern_comm *comm);

TERN_API int tern_comm_rank(const struct tern_comm *comm);
TERN_API int tern_comm_size(const struct tern_comm *comm);
TERN_API enum tern_machine tern_comm_machine(const struct tern_comm *comm);
/* Processors (SMs) that one rank may use at once: the device's, divided by the ranks that share it. */
TERN_API int tern_comm_num_sms(const struct tern_comm *comm);
/* Writes a description of machine, ranks, hosts and domains, as tern-info prints it; returns the length it
 * needs without the terminator, like snprintf. */
TERN_API int tern_comm_describe(const struct tern_comm *comm, char *text, size_t text_bytes);
/* COLLECTIVE, blocking, host only: returns when all ranks have called it. */
TERN_API enum tern_status tern_comm_barrier(struct tern_comm *comm);
/* COLLECTIVE, blocking, host only: recv[r] becomes rank r's send; `bytes` equal on all, at most 1 MiB. */
TERN_API enum tern_status tern_comm_allgather(struct tern_comm *comm, const void *send, void *recv,
                                              size_t bytes);

/* What the ranks that are left do after one was lost. Zero is the default of every field; equal on all
 * ranks. */
struct tern_shrink_args {
    size_t size;
    const struct tern_comm_config *config; /* of the new communicator; default: as the old one was opened */
    uint32_t timeout_ms; /* that a silent rank is waited for; default: twice the old one's deadline */
    uint32_t min_ranks;  /* fewer are refused; more than half of the old ones: no two groups can both go on */
    uint32_t whole_domains; /* 1: only ranks go on whose domain has lost none */
    uint32_t reserved;
};
#define TERN_SHRINK_ARGS_INIT                                                                                \
    {                                                                                                        \
        sizeof(struct tern_shrink_args), NULL, 0, 0, 0, 0                                                    \
    }

/* COLLECTIVE over the ranks that are left, whichever they are, blocking: they agree who is there and open a
 * communicator of their own, in the same order; *shrunk is NULL on a rank that whole_domains leaves out.
 * old_ranks, unless NULL, has room for tern_comm_size(comm) numbers: those in `comm` of the new ranks, then
 * -1. Also when `comm` has failed, and whichever rank was lost, rank 0 among them. `comm` stays until it is
 * closed, best after this, with all that was opened on it.
 *
 * A rank is lost at once if its process has ended or has closed `comm`; one that is silent or cannot be
 * reached, timeout_ms after its first call (twice if low and high ranks are), and so is one that calls so
 * much later than others. TERN_TIMEOUT, on all alike, names the ranks that were lost if fewer are left than
 * must. TERN_DISCONNECTED: the others went on without this rank. If one more rank is lost meanwhile, opening
 * fails as tern_comm_open does, with the new ranks' numbers: call again. Where the network is cut each side
 * may go on by itself unless min_ranks forbids it. TERN_UNSUPPORTED on ranks of tern_comm_open_all. */
TERN_API enum tern_status tern_comm_shrink(struct tern_comm *comm, const struct tern_shrink_args *args,
                                           int32_t *old_ranks, struct tern_comm **shrunk);

/* ---- Teams ------------------------------------------------------------------------------------------- */

/* Some ranks of a communicator, numbered from 0 in ascending order of their numbers there, with collectives
 * of their own: these neither wait for other ranks nor need an order with calls on the communicator or on
 * other teams. For threads a team is an object of its own; opening one uses the communicator, splitting one
 * the parent. */
struct tern_team;

enum tern_team_kind {
    TERN_TEAM_WORLD = 0,  /* all ranks */
    TERN_TEAM_DOMAIN = 1, /* those that this rank can address; TERN_DOMAIN_SIZE makes domains smaller */
    TERN_TEAM_NODE = 2,   /* those on this rank's host */
    TERN_TEAM_RAIL = 3    /* those with this rank's index in their domains */
};

/* COLLECTIVE over the communicator, blocking: makes all teams of a kind (enum tern_team_kind) at once, and
 * *team the one that this rank is in. The ranks are judged together: all fail alike, and may then call again.
 * Between processes a team holds sockets: its rank 0 one for each of the others, these one each. The
 * communicator cannot close before its teams. */
TERN_API enum tern_status tern_team_open(struct tern_comm *comm, int kind, struct tern_team **team);
/* The same for all ranks of tern_comm_open_all, by one thread. */
TERN_API enum tern_status tern_team_open_all(int num_ranks, struct tern_comm **comms, int kind,
                                             struct tern_team **teams);
/* COLLECTIVE over `parent`, blocking: a team of its ranks start, start + stride, ..., `size` of them, stride
 * at least 1; the same on all ranks of the parent, else TERN_MISMATCH. *team becomes NULL on a rank that is
 * not among them. Judged as in tern_team_open. The parent may close before the team. */
TERN_API enum tern_status tern_team_split(struct tern_team *parent, int start, int stride, int size,
                                          struct tern_team **team);
/* The same by one thread for all ranks of one parent, or of several, which are then each split alike: all of
 * their teams in `parents`. A NULL there stays one. */
TERN_API enum tern_status tern_team_split_all(int num_parents, struct tern_team **parents, int start,
                                              int stride, int size, struct tern_team **teams);
/* Local. A member that waits in a collective of the team fails with TERN_DISCONNECTED. */
TERN_API void tern_team_close(struct tern_team *team);

TERN_API int tern_team_rank(const struct tern_team *team);
TERN_API int tern_team_size(const struct tern_team *team);
/* The number in team `to` of the rank that is `rank` in team `from`, both of one communicator; -1 if it is
 * not there. NULL stands for the communicator. Any thread. */
TERN_API int tern_team_translate(const struct tern_team *from, int rank, const struct tern_team *to);
/* COLLECTIVE over the team, blocking, host only. One thread that drives all ranks needs none. TERN_TIMEOUT,
 * at the communicator's deadline, names every late rank by its number in the communicator; TERN_DISCONNECTED
 * one that closed. Either ends the team, not the communicator: close it and open another. */
TERN_API enum tern_status tern_team_barrier(struct tern_team *team);

/* ---- Memory, streams, events, graphs of the communicator's machine ----------------------------------- */

enum tern_memory {
    TERN_MEMORY_WINDOW = 0, /* device memory that peers can address: dispatch writes there, combine reads */
    TERN_MEMORY_DEVICE = 1, /* device memory */
    TERN_MEMORY_HOST = 2    /* host memory that copies run fast from and to */
};

/* Local, blocking. Aligned to 256 bytes, contents undefined. TERN_OUT_OF_MEMORY says what a window has
 * left, and by how much tern_heap_grow could help; of device memory on cuda what the device has. */
TERN_API enum tern_status tern_alloc(struct tern_comm *comm, enum tern_memory kind, size_t bytes,
                                     void **memory);
/* What uses the memory, a peer's work too, must have finished. Device and host memory may make the device
 * wait until running kernels have ended: where ranks share a GPU, not while a peer's operation waits for this
 * rank. Windows do not. */
TERN_API void tern_free(struct tern_comm *comm, void *memory);

/* COLLECTIVE, blocking. Adds `bytes`, the same on all ranks and rounded up to whole granules (2 MiB on cuda,
 * a page on cpu), to every rank's window memory, for tern_alloc; heap_max_bytes is the limit. No pointer
 * changes, neither this rank's nor what tern_peer_pointer gave, and what runs meanwhile goes on. The ranks
 * are judged together: if one has no memory, all fail with its status and sentence, are as they were, and may
 * call again; TERN_OUT_OF_MEMORY past heap_max_bytes, TERN_MISMATCH names a rank with other bytes. Memory is
 * never given back before the communicator closes. On cuda as tern_free of device memory: not while a peer's
 * operation on the same GPU waits for this rank. */
TERN_API enum tern_status tern_heap_grow(struct tern_comm *comm, uint64_t bytes);
/* The same for all ranks of tern_comm_open_all, by one thread. */
TERN_API enum tern_status tern_heap_grow_all(int num_ranks, struct tern_comm **comms, uint64_t bytes);

/* COLLECTIVE, blocking. Makes memory that the caller allocated a window: the peers of this rank's domain
 * reach it by tern_peer_pointer, all others by networks (tern_net.h). `bytes` is the same on all ranks;
 * addresses need not be. The memory stays the caller's, who frees it after tern_window_release and, as long
 * as peers may use it, not at all. Judged together like tern_heap_grow; TERN_UNSUPPORTED says which rank's
 * memory peers cannot address and what to take instead:
 *
 *     cpu    ranks in one process: any memory. Else a MAP_SHARED mapping of a memfd, or of a file, of which a
 *            descriptor for reading and writing is open during this call
 *     cuda   device memory of this rank's device. Ranks in one process: of cudaMalloc or cuMemCreate. Else of
 *            one cuMemCreate that asked for CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR. Peers map the whole
 *            allocation
 *
 * Operations of EP objects treat it as memory in no window: tensors there go through staging, but for rows of
 * a rank to itself in rank layout and one domain (tern_dispatch_args). */
TERN_API enum tern_status tern_window_adopt(struct tern_comm *comm, void *memory, uint64_t bytes);
/* The same for all ranks of tern_comm_open_all, by one thread: memories[r] is rank r's. */
TERN_API enum tern_status tern_window_adopt_all(int num_ranks, struct tern_comm **comms,
                                                void *const *memories, uint64_t bytes);
/* Local. `memory` is what was adopted; what tern_peer_pointer gave for it is not valid any more on this rank,
 * and work that uses it must have finished. Peers' pointers to this rank's memory stay valid until they
 * release theirs, or, inside one process, until the memory is freed. Closing the communicator releases what
 * is left. */
TERN_API void tern_window_release(struct tern_comm *comm, void *memory);
/* Local. *pointer: where this rank and its device reach, in the window of rank `peer`, the place that
 * `memory` has in this rank's; NULL (and TERN_OK) if the peer is in another domain; `memory` itself if the
 * peer is this rank. `memory` may point to any byte of the window memory of tern_alloc or of an adopted
 * window, else TERN_INVALID_ARGUMENT. tern_alloc is local: ranks have the same things in the same places only
 * if they have called it alike. */
TERN_API enum tern_status tern_peer_pointer(const struct tern_comm *comm, const void *memory, int peer,
                                            void **pointer);

/* Ordered on `stream`; any direction between the kinds above and ordinary host memory, which must stay as it
 * is until the copy has run (tern_stream_synchronize). */
TERN_API enum tern_status tern_copy(struct tern_comm *comm, void *dst, const void *src, size_t bytes,
                                    struct tern_stream *stream);
TERN_API enum tern_status tern_fill(struct tern_comm *comm, void *dst, int byte, size_t bytes,
                                    struct tern_stream *stream);

/* On cuda, runs an empty kernel there and waits for it: the first kernel on a new stream can wait for all
 * that run on the device. Where ranks share a GPU, open streams, or run something on streams of your own,
 * before any rank begins an operation. */
TERN_API enum tern_status tern_stream_open(struct tern_comm *comm, struct tern_stream **stream);
/* Waits for the stream. */
TERN_API void tern_stream_close(struct tern_comm *comm, struct tern_stream *stream);
/* Blocks until everything issued on `stream` has run. Says nothing of faults: see tern_ep_synchronize. */
TERN_API enum tern_status tern_stream_synchronize(struct tern_comm *comm, struct tern_stream *stream);

TERN_API enum tern_status tern_event_open(struct tern_comm *comm, struct tern_event **event);
TERN_API void tern_event_close(struct tern_comm *comm, struct tern_event *event);
TERN_API enum tern_status tern_event_record(struct tern_comm *comm, struct tern_event *event,
                                            struct tern_stream *stream);
/* Work issued on `stream` after this call runs after the event's last record, also if it is closed then. */
TERN_API enum tern_status tern_event_wait(struct tern_comm *comm, struct tern_event *event,
                                          struct tern_stream *stream);
/* Milliseconds between two recorded and finished events. */
TERN_API enum tern_status tern_event_elapsed(struct tern_comm *comm, struct tern_event *begin,
                                             struct tern_event *end, float *milliseconds);

/* What is issued on `stream` between begin and end is captured, not run; each launch replays it. Not allowed
 * in between: allocation, tern_route_wait, synchronisation. On cuda it is a CUDA graph, and a capture begun
 * by other means serves as well. Operations of one EP object go to one stream of a capture. A launch counts
 * as operations of the objects in it: order launches against each other and other calls on those objects,
 * and keep the routes in it open, with the num_tokens they had (an update in the capture sees to that).
 * Synchronise its streams before tern_graph_close, tern_ep_synchronize, _reset, _close: those ignore it. */
TERN_API enum tern_status tern_graph_begin(struct tern_comm *comm, struct tern_stream *stream);
TERN_API enum tern_status tern_graph_end(struct tern_comm *comm, struct tern_stream *stream,
                                         struct tern_graph **graph);
TERN_API enum tern_status tern_graph_launch(struct tern_comm *comm, struct tern_graph *graph,
                                            struct tern_stream *stream);
TERN_API void tern_graph_close(struct tern_comm *comm, struct tern_graph *graph);

/* ---- Expert parallelism ------------------------------------------------------------------------------ */

struct tern_ep;
struct tern_route;

enum {
    TERN_MAX_RANKS = 128, /* of an EP object, all domains together */
    TERN_MAX_TOPK = 64,
    TERN_MAX_PAYLOADS = 8,
    TERN_FP8_BLOCK = 128 /* channels that share one scale */
};

enum tern_transfer {
    TERN_TRANSFER_AUTO = 0, /* bulk where the device has it */
    TERN_TRANSFER_BULK = 1, /* asynchronous bulk copies (sm_90 and later, cpu) */
    TERN_TRANSFER_PLAIN = 2 /* loads and stores (any device) */
};

/* Whether combines push their rows (tern_ep_config.combine_push). */
enum tern_push {
    TERN_PUSH_AUTO = 0,   /* where that is the faster way for a whole max_tokens */
    TERN_PUSH_ALWAYS = 1, /* an object that cannot is refused */
    TERN_PUSH_NEVER = 2   /* the tokens' ranks pull them */
};

/* Of zero staging: refuse outputs and inputs that are not in a window. */
#define TERN_STAGING_NONE UINT64_MAX

/* Every field must be equal on all ranks. */
struct tern_ep_config {
    size_t size;
    uint32_t num_experts; /* of all ranks, to 16384; a multiple of their number. Rank r owns the r-th share */
    uint32_t max_topk;    /* ids a token, 1 to TERN_MAX_TOPK; with ll_tokens, to 32 */
    uint32_t max_tokens;  /* tokens a rank gives to one route, to 2^24; num_ranks * max_tokens * max_topk is
                             below 2^31. With ll_tokens, this and the next two may be 0: the object then has
                             low-latency operations alone, no routes and no staging */
    uint32_t max_row_bytes;  /* payload bytes of one row, all columns together, of dispatch or combine; bulk
                               copies take rows to about 100 KiB on sm_90, plain ones to about 200 */
    uint32_t max_routes;     /* routes open at once; default 4 */
    uint32_t num_sms;        /* processors an operation takes unless its arguments say otherwise; default 24,
                               capped by tern_comm_num_sms and 256. Operations that may run at once (of
                               several objects) must together fit it, or one may wait for processors that
                               another holds while it waits for a peer. At least: 3 for a dispatch and 2 for
                               a combine across domains; in one domain 2 for a combine that pushes and a
                               dispatch that drains, else 1 */
    uint32_t timeout_ms;     /* default: the communicator's */
    uint32_t transfer;       /* enum tern_transfer; default: TERN_TRANSFER, else auto */
    uint64_t staging_bytes;  /* window memory for callers' tensors that are in no window: default the worst
                               case of one operation in rank layout, about num_ranks * max_tokens *
                               max_row_bytes; TERN_STAGING_NONE for none, if every tensor is in a window.
                               Expert layout can need up to max_topk times as much, once many choices fall on
                               one rank: there give the rows of tern_ep_max_rows times the bytes of a row of
                               all outputs (ids, weights and sources too), and 256 bytes an output. Copies
                               between staging and tensors take every processor that is free, with up to
                               129 KiB of its shared memory, whatever num_sms says */
    uint32_t copy_engine;    /* 1: combine may use the copy engine, on a stream of the object's own, where
                               tern_combine_args.copy_engine asks for it; the same on all ranks */
    uint32_t ll_tokens;      /* most tokens a rank gives to one low-latency dispatch, to 8192; default 0: the
                           object has no low-latency operations */
    uint32_t ll_hidden;      /* most channels of a token there, 8 to 2^19, a multiple of 8 */
    uint32_t ll_lanes;       /* low-latency batches in flight at once, to 64; default 2 */
    uint32_t ll_mask;        /* 1: a rank that misses the deadline of a low-latency operation is masked there,
                               which goes on without it; default 0: it ends the object's operations */
    uint32_t domain_ranks;   /* consecutive ranks that reach each other by loads and stores, all others by the
                               network below; a divisor of num_ranks. Default: the communicator's domains,
                               which must then be of equal size and consecutive ranks. A smaller number cuts
                               them. Across domains copy_engine is not supported yet */
    uint32_t transport;      /* enum tern_transport (tern_net.h): how other domains are reached */
    uint32_t net_queues;     /* to the rank of each other domain that has this rank's place there: its rail
                               peer; in low latency to every rank of other domains; to TERN_NET_MAX_QUEUES.
                               Default: 8, or fewer with more than 5 of these. Of those to a rail peer routes
                               have a quarter to half for credits. A railed object's rows all go to rail
                               peers: it may want more than that where domains are large */
    uint64_t net_ring_bytes; /* buffers for each rail peer, each way, of all streams to it, whose number
                                follows from num_sms; default 4 to 24 MiB, less if max_tokens need less. If
                                given, a low-latency combine, too, has no more for rows to each other domain
                                at once, and fewer blocks if these have a row a warp else. A low-latency
                                dispatch, and sums with ll_rail, have room for all their rows in any case */
    uint32_t ll_rail;        /* 1: low latency across domains is railed: one network copy a (token, domain),
                                which the sender's rail peer there spreads, and with weights at dispatch one
                                row a (token, domain) home, which the rail peer adds (tern_ll.h). Not with
                                ll_mask. Default 0: every rank sends to every rank. In one domain no effect */
    uint32_t combine_push;   /* enum tern_push: whether combines in rank layout push their rows, see
                                tern_combine; the same on all ranks. It takes one domain of 32 ranks at most,
                                bulk copies, two processors or more, 177 KiB of shared memory a block, and
                                staging_bytes of num_ranks * max_tokens * max_row_bytes at least.
                                Default: they do where all ranks can, staging_bytes is left to its default,
                                num_sms is 24 or more, and max_tokens 8192 or more with two ranks, with more
                                4096 and max_row_bytes 12288. Without routes no effect */
    uint32_t dispatch_drain; /* 1: dispatches in rank layout bring rows that are in no window from staging
                                to where they belong while others arrive, by half of their processors, and
                                behind the last by most of them, see tern_dispatch; the same on all ranks. In
                                one domain, by bulk copies, with two processors or more. Default 0: all are
                                copied behind the last, by every processor of the device. Without routes no
                                effect */
    uint32_t reserved;       /* 0 */
};
#define TERN_EP_CONFIG_INIT                                                                                  \
    {                                                                                                        \
        sizeof(struct tern_ep_config), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0      \
    }

/* What tern_ep_open takes on every rank. */
struct tern_ep_sizes {
    size_t size;
    uint64_t window_bytes;  /* device memory that peers address: signals, messages, staging, lanes. Beside the
                               communicator's heap_bytes, not out of them */
    uint64_t device_bytes;  /* device memory of this rank only: routes and state */
    uint64_t host_bytes;    /* host memory the device writes: counts and fault records */
    uint64_t staging_bytes; /* the part of window_bytes that is staging */
    uint64_t max_rows;      /* rows a rank can receive in rank layout: num_ranks * max_tokens */
    uint64_t net_bytes;     /* the part of window_bytes that is for other domains: rings, routes' tables,
                               out-boxes of lanes */
};
#define TERN_EP_SIZES_INIT                                                                                   \
    {                                                                                                        \
        sizeof(struct tern_ep_sizes), 0, 0, 0, 0, 0, 0                                                       \
    }

/* Pure: needs no communicator and no device. domain_ranks 0 is one domain here, whatever a communicator's
 * are: set it, or what networks and ll_rail take is not counted. */
TERN_API enum tern_status tern_ep_get_sizes(const struct tern_ep_config *config, int num_ranks,
                                            struct tern_ep_sizes *sizes);
/* Pure: the most rows any rank can receive from routes of `layout` (enum tern_layout) with this alignment. */
TERN_API enum tern_status tern_ep_max_rows(const struct tern_ep_config *config, int num_ranks, int layout,
                                           uint32_t expert_alignment, uint64_t *rows);

/* COLLECTIVE, blocking. The ranks' configurations are judged together: if one has a value out of range, or a
 * rank lacks memory, all fail with its status and sentence; TERN_MISMATCH names the rank, the field and both
 * values. All may then call again. Any number may be open on one communicator. */
TERN_API enum tern_status tern_ep_open(struct tern_comm *comm, const struct tern_ep_config *config,
                                       struct tern_ep **ep);
/* The same for all ranks of tern_comm_open_all, by one thread. */
TERN_API enum tern_status tern_ep_open_all(int num_ranks, struct tern_comm **comms,
                                           const struct tern_ep_config *config, struct tern_ep **eps);
/* Local. Waits for what this rank issued; closes routes left open. Gives memory back as tern_comm_close does:
 * not while a peer's operation, on any object, waits for this rank; across domains not before all ranks have
 * called tern_ep_synchronize, behind which nothing is on its way to a peer. */
TERN_API void tern_ep_close(struct tern_ep *ep);
/* Blocks until all that was issued on this object, outside graphs, has run; if the latest was a low-latency
 * operation, until all that its stream holds has. Returns the object's fault, if any, every time; an expert
 * id out of range, which ends nothing (it counts as -1), once, and not if tern_route_wait has told of it. The
 * route is as good as any other: go on with it, or update it. On cuda, call this before you destroy a stream
 * of your own on which the object's latest operation was issued; tern_stream_close does its own waiting. */
TERN_API enum tern_status tern_ep_synchronize(struct tern_ep *ep);
/* COLLECTIVE, blocking: after a fault, makes the object as new; all routes become invalid: close them. Every
 * rank must still be there. Not after TERN_AWAIT_TRANSPORT: close the object on all ranks, open another.
 * Until it returns a late rank may still write to the outputs of what failed, and read what combine was
 * given: reuse neither. Where a rank is lost, take windows of the communicator that is opened next. */
TERN_API enum tern_status tern_ep_reset(struct tern_ep *ep);
/* The same for all ranks of one process, by one thread. */
TERN_API enum tern_status tern_ep_reset_all(int num_ranks, struct tern_ep **eps);

/* ---- Faults ------------------------------------------------------------------------------------------ */

/* What a kernel was doing when its deadline passed. */
enum tern_operation {
    TERN_OP_NONE = 0,
    TERN_OP_ROUTE = 1,
    TERN_OP_DISPATCH = 2,
    TERN_OP_COMBINE = 3,
    TERN_OP_LL_DISPATCH = 4,
    TERN_OP_LL_COMBINE = 5
};
enum tern_awaited {
    TERN_AWAIT_NOTHING = 0,
    TERN_AWAIT_READY = 1,      /* the peer has entered the operation */
    TERN_AWAIT_DONE = 2,       /* the peer has finished writing to, or reading from, this rank */
    TERN_AWAIT_MATCH = 3,      /* the peer entered another operation, or other payloads */
    TERN_AWAIT_WEIGHTS = 5,    /* the peer wants top-k weights, and this rank was given none */
    TERN_AWAIT_ROWS = 6,       /* rows that the peer pushes, or its copy engine brings; expected, seen =
                                  operation number, or run of the engine */
    TERN_AWAIT_COUNTS = 7,     /* across domains: what the peer tells when a route begins; runs */
    TERN_AWAIT_BLOCK = 8,      /* its tables for a route's messages; likewise */
    TERN_AWAIT_CREDIT = 9,     /* that it has forwarded, or added, what was sent; chunks */
    TERN_AWAIT_CHUNK = 10,     /* messages from it; chunks */
    TERN_AWAIT_TRANSPORT = 11, /* an operation on it failed, no reset helps; seen = minus the tern_status */
    TERN_AWAIT_EXPERT_ID = 4   /* an id outside -1 .. num_experts - 1: peer = this rank, expected = token *
                                topk + k, seen = the id; topk and num_experts are set */
};

struct tern_fault {
    size_t size;
    int32_t status;    /* enum tern_status */
    int32_t operation; /* enum tern_operation */
    int32_t awaited;   /* enum tern_awaited; what the reporter awaited */
    int32_t rank;      /* who wrote the record */
    int32_t peer;      /* who was late, or what the record is about */
    int32_t reporter;  /* the rank that noticed first: this one, or a peer that told us */
    int32_t block;     /* of the kernel */
    int32_t warp;
    uint64_t epoch;       /* running number of the operation on its object, from 1 */
    uint64_t expected;    /* value of the awaited signal */
    uint64_t seen;        /* its value at the deadline */
    uint64_t elapsed_ns;  /* waited so far */
    uint64_t late[2];     /* bit r: rank r (r + 64 in the second word) had not arrived at the deadline; 0 if a
                             peer told us */
    uint32_t topk;        /* TERN_AWAIT_EXPERT_ID: the route's; else 0 */
    uint32_t num_experts; /* likewise: the object's */
};
#define TERN_FAULT_INIT                                                                                      \
    {                                                                                                        \
        sizeof(struct tern_fault), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0, 0}, 0, 0                          \
    }

/* Copies the object's first fault since it was opened or reset, else an id out of range of one of its routes.
 * TERN_BAD_STATE if there is none. Does not block and may be called while work runs. */
TERN_API enum tern_status tern_fault_get(struct tern_ep *ep, struct tern_fault *fault);
/* One sentence; returns the length it needs, like snprintf. Pure. */
TERN_API int tern_fault_text(const struct tern_fault *fault, char *text, size_t text_bytes);

/* ---- Route ------------------------------------------------------------------------------------------- */

enum tern_layout {
    TERN_LAYOUT_RANK = 0,  /* one row per (token, rank): by source rank, then token */
    TERN_LAYOUT_EXPERT = 1 /* one row per (token, choice): by local expert, then source rank, then token, then
                              choice; each expert's rows begin at a multiple of expert_alignment */
};

struct tern_route_args {
    size_t size;
    const void *topk_idx; /* device, [num_tokens, topk] dense; -1: no expert. Duplicates are legal. May be
                             NULL if num_tokens is 0. Read by the kernel, not kept */
    uint32_t idx_bytes;   /* 4 (int32) or 8 (int64, the default); also the type of out_topk_idx; equal on
                             all ranks */
    uint32_t num_tokens;  /* of this rank; 0 is normal; ranks may differ */
    uint32_t topk;        /* equal on all ranks */
    uint32_t layout;      /* enum tern_layout; equal on all ranks */
    uint32_t expert_alignment; /* rows; default 1; equal on all ranks. Rank layout has no use for it */
    uint32_t reserved;
    struct tern_event *after;  /* start no sooner than this event; may be NULL */
    struct tern_event *record; /* record this event when done; may be NULL */
};
#define TERN_ROUTE_ARGS_INIT                                                                                 \
    {                                                                                                        \
        sizeof(struct tern_route_args), NULL, 0, 0, 0, 0, 0, 0, NULL, NULL                                   \
    }

/* Host copy of what a rank receives; all pointers belong to the route. They and the counts hold until its
 * next run outside graphs, or close; replays of graphs leave them alone. */
struct tern_route_counts {
    size_t size;
    uint64_t num_rows;             /* rows the output needs, padding included */
    uint64_t num_tokens;           /* (token, rank) pairs received: num_rows in rank layout */
    const int32_t *rank_counts;    /* [num_ranks] pairs received from each source rank */
    const int32_t *expert_counts;  /* [local experts] choices received, without padding */
    const int32_t *expert_offsets; /* [local experts + 1] first row of each expert, expert layout only */
};
#define TERN_ROUTE_COUNTS_INIT                                                                               \
    {                                                                                                        \
        sizeof(struct tern_route_counts), 0, 0, NULL, NULL, NULL                                             \
    }

/* The same on the device, for kernels that follow on the stream; valid until the route is closed. */
struct tern_route_view {
    size_t size;
    const int32_t *num_rows;       /* [1] rows the output needs, padding included; may exceed its capacity */
    const int32_t *rank_offsets;   /* [num_ranks + 1] first row of each source rank (rank layout) */
    const int32_t *expert_counts;  /* [local experts] */
    const int32_t *expert_offsets; /* [local experts + 1] aligned first row of each expert (expert layout) */
    const int32_t *token_rows;     /* rank layout [num_tokens, num_ranks]: row at each rank or -1, before that
                                      rank's base; expert layout [num_tokens, topk]: row or -1, likewise */
    const int32_t *bases;     /* rank layout [num_ranks], expert layout [num_experts]: this rank's base row;
                                 -1 in other domains, whose rows nobody here can address */
    const uint64_t *overflow; /* [1] rows, padding included, of the last dispatch that had no room here */
};
#define TERN_ROUTE_VIEW_INIT                                                                                 \
    {                                                                                                        \
        sizeof(struct tern_route_view), NULL, NULL, NULL, NULL, NULL, NULL, NULL                             \
    }

/* COLLECTIVE, asynchronous on `stream`. TERN_NO_SPACE if max_routes are open. */
TERN_API enum tern_status tern_route_open(struct tern_ep *ep, const struct tern_route_args *args,
                                          struct tern_stream *stream, struct tern_route **route);
/* Runs the route anew for another batch of the same topk, layout and alignment. COLLECTIVE, asynchronous. */
TERN_API enum tern_status tern_route_update(struct tern_route *route, const struct tern_route_args *args,
                                            struct tern_stream *stream);
/* Local, blocking: the host learns the counts (exact shapes). Not needed for static shapes. Not in a
 * capture. TERN_TIMEOUT as a kernel's fault. TERN_INVALID_ARGUMENT, every time, if an id of this rank was out
 * of range; it counts as -1, and the counts are filled all the same. */
TERN_API enum tern_status tern_route_wait(struct tern_route *route, struct tern_route_counts *counts);
/* Local, does not block. */
TERN_API enum tern_status tern_route_get_view(struct tern_route *route, struct tern_route_view *view);
/* Local. Work already issued with the route finishes undisturbed. */
TERN_API void tern_route_close(struct tern_route *route);

/* ---- Dispatch and combine ---------------------------------------------------------------------------- */

/* One byte payload per token. Element (t, i) is the elem_bytes bytes at data + t * row_stride + i *
 * elem_stride, i < row_bytes / elem_bytes. */
struct tern_rows {
    void *data;
    uint32_t row_bytes;  /* bytes of one token */
    uint32_t elem_bytes; /* default: row_bytes, one piece */
    int64_t row_stride;  /* bytes; default row_bytes */
    int64_t elem_stride; /* bytes; default elem_bytes */
};

enum tern_cast {
    TERN_CAST_NONE = 0,
    TERN_CAST_FP8 = 1,      /* in[0] BF16 -> out[0] E4M3; scales FP32 amax / 448 per 128 channels */
    TERN_CAST_FP8_POW2 = 2, /* the same with scales rounded up to a power of two */
    TERN_CAST_FP8_UE8M0 = 3 /* likewise, scales as exponent bytes, a row padded to 4 bytes */
};

/* Outputs in a window of tern_alloc are written in place by the peers; others go through staging and one more
 * copy, but for rows from this rank to itself in rank layout and one domain. TERN_NO_SPACE on this rank alone
 * if out_rows rows are more than staging_bytes, whose default suffices for rank layout only. Rows at or past
 * out_rows are never written; they are counted in tern_route_view.overflow.
 *
 * No output may overlap an input, in windows or not, for both are in use at once: TERN_INVALID_ARGUMENT if
 * the bytes from the first to the last one of an output (of all out_rows rows) and of an input meet. Rows of
 * both may lie between each other if they are equally far apart (row_stride), like columns of one matrix. */
struct tern_dispatch_args {
    size_t size;
    const struct tern_rows *in;  /* [num_in] with num_tokens rows each; device memory */
    const struct tern_rows *out; /* [num_out] with out_rows rows each; elem_stride must be the default.
                                    num_out = num_in, or num_in + 1 with a cast: out[1] are then the scales,
                                    and in[i] goes to out[i + 1] for i > 0 */
    uint32_t num_in;             /* 1 to TERN_MAX_PAYLOADS */
    uint32_t cast;               /* enum tern_cast */
    uint64_t out_rows;           /* capacity of every output; 0 drops every row */
    const float *topk_weights;   /* device, [num_tokens, topk] dense, or NULL */
    void *out_topk_idx;          /* rank layout [out_rows, topk] of the route's type: local expert or -1; rows
                                    past the received ones are all -1. NULL: not wanted */
    float *out_topk_weights;     /* rank layout [out_rows, topk], 0 where not local; expert layout [out_rows].
                                    Needs topk_weights on every rank. NULL: not wanted */
    int32_t *out_source;         /* [out_rows, 2]: source rank, token there. NULL: not wanted */
    uint32_t zero_padding;       /* expert layout: nonzero writes zeros into padding rows of every output and
                                    {-1, -1} into out_source; else they keep what they held */
    uint32_t num_sms;            /* default: the object's; capped by tern_comm_num_sms and 256; ranks may
                                    differ */
    struct tern_event *after;    /* start no sooner than this event; may be NULL */
    struct tern_event *record;   /* record this event when done; may be NULL */
};
#define TERN_DISPATCH_ARGS_INIT                                                                              \
    {                                                                                                        \
        sizeof(struct tern_dispatch_args), NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL     \
    }

/* COLLECTIVE, asynchronous on `stream`. Every rank gives the same payload sizes, cast and route; num_tokens
 * is the route's. May be called any number of times with one route: nothing is exchanged again (DeepEP's
 * cached mode; the backward of combine).
 *
 * in[0]: rows contiguous, row_bytes, row_stride and data multiples of 16; with a cast, channels a multiple
 * of 16. Other inputs: any strides. Outputs: rows contiguous; where row_bytes is a multiple of 16 (or else of
 * 4), so must data and row_stride be. out_topk_idx and zero_padding belong to one layout each and are refused
 * in the other.
 *
 * Outputs in no window go through staging. With the object's dispatch_drain, in rank layout, some of the
 * processors bring rows on from there while others arrive, else a copy behind the kernel does; the rows are
 * the same, and graphs and static shapes are as ever. With num_sms 1 it takes two processors. */
TERN_API enum tern_status tern_dispatch(struct tern_route *route, const struct tern_dispatch_args *args,
                                        struct tern_stream *stream);

struct tern_combine_args {
    size_t size;
    struct tern_rows in;     /* BF16 rows [in_rows] as dispatch laid them out; elem_stride the default */
    uint64_t in_rows;        /* capacity; rows at or past it count as absent */
    const float *in_weights; /* device; rank layout [in_rows, topk], expert layout [in_rows]; or NULL */
    struct tern_rows out;    /* BF16 [num_tokens] */
    float *out_weights;      /* device, [num_tokens, topk]; needs in_weights if in_rows > 0; or NULL. A rank
                                without in_weights adds nothing to its peers' */
    const void *bias[2];     /* device, BF16 [num_tokens, hidden] dense; or NULL */
    uint32_t num_sms;     /* default: the object's; capped by tern_comm_num_sms and 256; ranks may differ */
    uint32_t copy_engine; /* 1: rows travel by the device's copy engine, see tern_combine; the same on all
                             ranks */
    struct tern_event *after;
    struct tern_event *record;
};
#define TERN_COMBINE_ARGS_INIT                                                                               \
    {                                                                                                        \
        sizeof(struct tern_combine_args), {NULL, 0, 0, 0, 0}, 0, NULL, {NULL, 0, 0, 0, 0}, NULL,             \
            {NULL, NULL}, 0, 0, NULL, NULL                                                                   \
    }

/* COLLECTIVE, asynchronous on `stream`. out[t] = bias[0][t] + bias[1][t] + the sum of token t's rows, in
 * FP32, rounded once to BF16. Order: rank layout, ranks ascending; expert layout, choices ascending. Across
 * domains the rows of each domain are summed and rounded first, then these sums, lowest domain first. No
 * weighting: the caller weights expert outputs. out_weights sums in_weights over the ranks in the same order
 * (rank layout), or takes each choice's (expert layout). A token with no row gets the biases, or zeros. `in`
 * and in_weights in no window go through staging, as in dispatch. No output may overlap an input, which a
 * bias is, too, and `in` with all of in_rows: TERN_INVALID_ARGUMENT, as in dispatch.
 *
 * With copy_engine, in rank layout only, the copy engine brings every rank's rows to the tokens' ranks, into
 * staging, and the kernel only adds; the bits are the same. It needs an object opened with copy_engine, dense
 * rows (`in` need then be in no window), staging_bytes of num_ranks * max_tokens * in.row_bytes, and more if
 * in_weights is in no window (TERN_NO_SPACE), and the counts on the host: tern_route_wait after the route's
 * latest run, and a route that has run in no graph, whose replays the host does not see (TERN_BAD_STATE). Not
 * in a graph (TERN_UNSUPPORTED). If the machine fails while the operation is being issued, that is the
 * object's fault from then on: see tern_ep_reset.
 *
 * Where the object pushes (combine_push), in rank layout and without copy_engine, a rank brings its rows into
 * staging of the tokens' ranks, and adds what comes there; the bits are the same. `in` need be in no window,
 * and is not copied for that: with many tokens that is faster for tensors in ordinary memory. Few tokens take
 * longer, and so do processors that are few; with num_sms 1 it takes two. Graphs and static shapes are as
 * ever; in_weights goes as without it, in what staging there is behind the rows (TERN_NO_SPACE). */
TERN_API enum tern_status tern_combine(struct tern_route *route, const struct tern_combine_args *args,
                                       struct tern_stream *stream);

#ifdef __cplusplus
}
#endif

#include "tern/tern_ll.h"
#include "tern/tern_net.h"
#endif
