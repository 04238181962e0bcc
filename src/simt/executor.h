/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor behind the cpu machine. One worker thread runs every fiber of every grid of all its machines;
 * host threads only append to streams and wait.
 *
 *     host threads --submit--> tern_stream: op, op, op --launch--> grid: block: warp: 32 fibers
 *                                     worker thread: picks a ready warp, resumes each ready lane once
 *                                     bulk engine:   between warps, moves pending copies a step
 *
 * The lock protects what hosts and worker share (marked "lock" below). Everything else is the worker's alone,
 * and the functions of fibers, which run on the worker too, use it without the lock. All randomness comes
 * from one generator, so that a seed and one host thread give one schedule. */
#ifndef TERN_EXECUTOR_H
#define TERN_EXECUTOR_H

#include <pthread.h>
#include <stdint.h>

#include "core/core.h"
#include "machine/machine.h"
#include "simt/context_switch.h"
#include "simt/sanitizer.h"
#include "simt/simt.h"

enum {
    SIMT_LANES = 32,
    SIMT_MAX_THREADS = 1024,        /* a block */
    SIMT_SHARED_BYTES = 227 * 1024, /* of one block at most, as sm_90 */
    SIMT_ARGS_BYTES = 4000,         /* of one launch at most, as machine.h */
    SIMT_GROUP_CLOCKS = 16          /* more than the groups that bulk_wait can leave open */
};

/* A side of a bulk copy, and what a fence between proxies is of. */
enum space { SPACE_SHARED, SPACE_GLOBAL };
enum { SPACE_COUNT = SPACE_GLOBAL + 1 };

typedef void simt_function(const void *args);

/* ---- Fibers (fiber.c) ---- */

enum primitive {
    PRIMITIVE_NONE,
    PRIMITIVE_SYNC_WARP,
    PRIMITIVE_BALLOT,
    PRIMITIVE_SHFL,
    PRIMITIVE_MATCH,
    PRIMITIVE_SYNC_BLOCK,
    PRIMITIVE_SYNC_BLOCK_OR,
    PRIMITIVE_SYNC_PART,
    PRIMITIVE_SYNC_PART_OR
};
enum { PRIMITIVE_COUNT = PRIMITIVE_SYNC_PART_OR + 1 };

enum fiber_fate { FIBER_LIVES, FIBER_ENDED, FIBER_FAULTY };

/* Lies at the high end of its own stack, so that both share a page. */
struct fiber {
    struct simt_thread thread; /* first: simt_self points here */
    struct stack_context stack;
    struct executor *executor;
    struct block *block;
    struct warp *warp;
    int lane;
    enum fiber_fate fate;
    char *stack_low;
    char *stack_high;
    void *context;          /* ThreadSanitizer's; bound to the stack for ever */
    void *fence_context;    /* likewise, or NULL: has acquired what the fiber's fences cover, no more */
    char fence_clock;       /* of the fiber at its last fence */
    void *fake_stack;       /* AddressSanitizer's */
    struct bulk_op *stores; /* whose writes are not done */
    uint64_t groups;        /* committed so far; the open group has this number */
    int open_stores;        /* in the open group */
    uint64_t groups_read;   /* groups below this one have been waited for */
    uint64_t groups_written;
    int waits_read; /* while in bulk_wait: until groups below wait_limit are read, or written */
    uint64_t wait_limit;
    char read_clock[SIMT_GROUP_CLOCKS];  /* of reads of shared memory */
    char write_clock[SIMT_GROUP_CLOCKS]; /* of writes of global memory */
    struct fiber *next_free;
};

struct slab;

/* ---- Grids (grid.c) ---- */

struct warp {
    struct block *block;
    struct fiber *fibers[SIMT_LANES];
    uint32_t id;   /* over the life of the executor */
    int idx;       /* in the block */
    int ready_idx; /* in executor.ready, or -1 */
    /* Every lane is in exactly one of these. */
    uint32_t ready;
    uint32_t joined;   /* the warp primitive */
    uint32_t at_block; /* waits in a block barrier */
    uint32_t at_bulk;  /* waits for bulk copies */
    uint32_t exited;
    enum primitive primitive;
    /* Two of each: a lane may enter the next phase before another has left this one, but not the one after.
     */
    uint32_t phase;
    uint32_t bits[2];
    uint64_t slots[2][SIMT_LANES];
    char clock[2];
};

/* Of a block's threads. Two values and clocks, as in a warp. */
struct barrier {
    int joined;
    int threads; /* that the first to join has named */
    enum primitive primitive;
    uint32_t phase;
    int any[2];
    char clock[2];
};

struct block {
    struct grid *grid;
    struct block *next, *prev;
    int bid;
    int live; /* fibers */
    struct barrier whole, part;
    char *shared;
    uint32_t shared_bytes;
    uint64_t **bars; /* initialised mbarriers */
    int num_bars, max_bars;
    int pending_loads;
    /* Contexts that carry clocks to `proxies`; the one of shared memory allocates, fills and frees it, too,
     * the other is NULL until it is needed. */
    void *engines[SPACE_COUNT];
    char begin;                /* clock: the launch, and shared memory is there */
    char end;                  /* clock: its fibers have ended */
    char proxies[SPACE_COUNT]; /* clocks: what bulk copies issued from now on come after */
    int num_warps;
    struct warp warps[];
};

struct grid {
    struct grid *next, *prev;
    struct executor *executor;
    struct tern_stream *stream;
    struct op *op;
    uint32_t id;
    int started, ended; /* blocks */
    char begin;         /* clock: what came before the launch */
    int first, stride;  /* block number i to start has bid (first + i * stride) mod num_blocks */
    struct block *blocks;
};

/* ---- Bulk copies (bulk.c) ---- */

struct bulk_op {
    struct block *block;
    struct fiber *fiber; /* of a store; NULL for a load */
    uint64_t *bar;       /* of a load */
    uint64_t group;      /* of a store */
    char *dst;
    const char *src;
    uint32_t bytes;
    char *staging; /* NULL until the source has been read */
    int in_words;  /* a store in words, which is written in two parts; 1 before the first, 2 after it */
    uint32_t cut;  /* the word that the rear part begins with, */
    int end_first; /* and whether it is written first */
    void *contexts[SPACE_COUNT];
    struct bulk_op *next; /* of the fiber's stores, or free */
};

/* ---- Streams (stream.c) ---- */

/* One record of an event: what a wait that was issued after it waits for. */
struct mark {
    int refs;         /* atomic */
    uint64_t when_ns; /* atomic; 0 until it has run */
    char clock;
};

enum op_kind { OP_LAUNCH, OP_COPY, OP_FILL, OP_STORE, OP_RECORD, OP_WAIT };

struct op {
    struct op *next;
    enum op_kind kind;
    simt_function *function;
    const char *name;
    int num_blocks, num_threads;
    uint32_t shared_bytes, args_bytes;
    char *dst;
    const char *src;
    int byte;
    uint64_t value;
    size_t bytes;
    struct mark *mark;
    struct tern_event *event; /* of a captured record only */
    char clock;               /* of the host at submission */
    _Alignas(16) char args[];
};

struct op_list {
    struct op *first, *last;
};

struct tern_stream {
    struct executor *executor;
    int machine; /* ordinal on the executor, for reports */
    int num_sms;
    struct op_list incoming;          /* lock */
    uint64_t submitted;               /* lock */
    int arrived;                      /* lock: is in executor.arrivals */
    struct tern_stream *next_arrival; /* lock */
    struct op_list queue;
    uint64_t completed;
    int active;
    struct grid *grid; /* running */
    void *context;
    char clock;                 /* everything that has run on the stream */
    struct tern_graph *capture; /* the host's */
    struct tern_stream *next;   /* of the machine's, the host's */
};

struct tern_event {
    int refs;
    struct mark *mark;        /* of the last record, or NULL */
    struct tern_graph *graph; /* of the capture in progress that recorded it last, or NULL */
};

struct tern_graph {
    struct op_list ops;
    uint64_t number; /* of its capture, from 1 */
};

/* ---- Executor ---- */

enum waiter_kind { WAIT_STREAM, WAIT_MARK, WAIT_WORD };

/* A host thread that waits; lives on its stack. */
struct waiter {
    struct waiter *next;
    enum waiter_kind kind;
    int satisfied;
    struct tern_stream *stream;
    uint64_t target; /* of stream->completed */
    struct mark *mark;
    const uint64_t *word;
    uint64_t value;
};

enum policy_kind { POLICY_UNIFORM, POLICY_STARVE_GRIDS, POLICY_STARVE_WARPS, POLICY_BURST, POLICY_COUNT };

/* How warps are picked for the next `left` picks. */
struct policy {
    enum policy_kind kind;
    uint32_t salt;        /* chooses who starves */
    uint32_t bulk_period; /* picks between two steps of the bulk engine, on average */
    uint32_t left;
    struct warp *last; /* POLICY_BURST; only compared with what is in executor.ready */
};

struct executor_stats {
    uint64_t resumes; /* of a fiber: two switches each */
    uint64_t picks;   /* of a warp */
    uint64_t trace;   /* hash of every pick: equal schedules have equal traces */
    /* What kernels asked for, whatever the schedule, unless they vote on what they found while waiting. */
    uint64_t grids, blocks, threads;
    uint64_t joins[PRIMITIVE_COUNT]; /* completed, of a warp or a block */
    uint64_t bulk_loads, bulk_load_bytes;
    uint64_t bulk_stores, bulk_store_bytes;
    uint64_t bulk_groups, bulk_waits; /* of a thread */
    uint64_t bar_arrivals;
    uint64_t proxy_fences; /* of a thread */
    uint64_t releases;     /* of a thread: stores and additions that release */
    uint64_t atomics;      /* of a thread: others on words of more than its block */
};

struct executor {
    pthread_mutex_t lock;
    pthread_cond_t work;    /* for the worker */
    pthread_cond_t settled; /* for hosts */
    pthread_t worker;
    int refs;                         /* lock */
    int stop;                         /* lock */
    int num_machines;                 /* lock: ever opened */
    struct waiter *waiters;           /* lock */
    struct tern_stream *arrivals;     /* lock: streams with incoming work, in order of arrival */
    struct tern_stream *last_arrival; /* lock */
    struct tern_stream *closed;       /* lock: idle streams for the worker to free */
    struct executor_stats published;  /* lock */
    int deterministic;
    unsigned char uuid[16];

    uint64_t random;
    struct policy policy;
    struct stack_context scheduler;
    void *context; /* of the scheduler */
    void *origin;  /* makes contexts: each comes after its maker, which has seen nothing since the opening */
    void *scheduler_fake_stack;
    const void *scheduler_low;
    size_t scheduler_bytes;
    char bug_text[200]; /* what a faulty fiber did */
    char bug_clock;     /* its writing comes before the report */

    struct tern_stream **active; /* streams with work */
    int num_active, max_active;
    struct grid *grids;
    struct warp **ready;
    int num_ready, max_ready;
    int live_fibers;
    struct bulk_op **pending;
    int num_pending, max_pending;
    struct bulk_op *free_ops;
    struct fiber *free_fibers;
    struct slab *slabs;
    uint32_t num_fibers;
    void **contexts; /* ring of idle contexts, the longest idle first */
    int first_context, num_contexts, max_contexts;
    uint32_t next_warp_id, next_grid_id;
    uint64_t quiet; /* resumes since anything but spinning happened */
    int naps;
    struct executor_stats stats;
};

/* Random 32 bits; xorshift64*. */
static inline uint32_t draw(struct executor *x)
{
    uint64_t s = x->random;
    s ^= s >> 12;
    s ^= s << 25;
    s ^= s >> 27;
    x->random = s;
    return (uint32_t)(s * 0x2545f4914f6cdd1dull >> 32);
}

/* Random, 0 to n - 1. */
static inline uint32_t draw_below(struct executor *x, uint32_t n)
{
    return (uint32_t)((uint64_t)draw(x) * n >> 32);
}

/* executor.c */
void terni_executor_stats(struct executor *x, struct executor_stats *stats); /* as of the last pause */
/* Blocks until the worker has found the condition true. deadline_ns 0: none. */
enum tern_status terni_executor_wait(struct executor *x, struct waiter *w, uint64_t deadline_ns);
int terni_executor_ref(struct executor *x); /* a machine's; returns its ordinal */
enum tern_status terni_executor_word(struct executor *x, const uint64_t *word, uint64_t value,
                                     uint64_t deadline_ns);
/* Out of memory in the worker, where nobody can be told: ends the process with a sentence. */
void *terni_executor_need(void *memory, const char *what);
/* An idle context, never one that was in use lately where that can be had: a context remembers what it was
 * ordered after, which hides races. Callable from fibers. */
void *terni_context_take(struct executor *x);
/* A new one, which comes after the opening of the executor and nothing later. Callable from fibers. */
void *terni_context_create(struct executor *x);
void terni_context_give(struct executor *x, void *context);

/* schedule.c */
/* Marks lanes ready; puts the warp into the ready list. */
void terni_warp_wake(struct warp *w, uint32_t lanes);
/* Runs warps and the bulk engine for a fixed number of resumptions, or until nothing can run. */
void terni_slice_run(struct executor *x);

/* fiber.c */
struct fiber *terni_fiber_take(struct executor *x);
void terni_fiber_give(struct fiber *f);
void terni_fibers_destroy(struct executor *x);
void terni_fiber_resume(struct fiber *f); /* from the scheduler */
void terni_fiber_yield(struct fiber *f);  /* from the fiber */

/* Fetches what resuming it will touch. */
static inline void terni_fiber_prefetch(const struct fiber *f)
{
    __builtin_prefetch(f);
    __builtin_prefetch((const char *)f + 64);
    __builtin_prefetch((const char *)f - 64);
    __builtin_prefetch((const char *)f - 128);
}

static inline struct fiber *current_fiber(void) { return (struct fiber *)simt_self; }

/* report.c: a bug of a kernel; a report on standard error, then abort(). From a fiber and from the scheduler.
 */
void terni_fiber_bug(struct fiber *f, const char *format, ...) TERN_PRINTF(2, 3) __attribute__((noreturn));
void terni_report(struct executor *x, struct block *block, const char *text) __attribute__((noreturn));

/* warp.c */
const char *terni_primitive_name(enum primitive p);
/* If the warp can never run again, reports it. Called after a lane has blocked. */
void terni_warp_check(struct fiber *f);

/* grid.c */
/* For tests: no more blocks of a grid at once than these, in the order of their numbers; 0: as many as the
 * processors hold, in any order. Set while nothing runs. */
extern int terni_grid_resident;
void terni_grid_start(struct tern_stream *s, struct op *op);
void terni_fiber_ended(struct fiber *f); /* from the scheduler */
void terni_block_close(struct block *b); /* once no fiber of it lives */

/* bulk.c */
void terni_bulk_step(struct executor *x);
void terni_bulk_destroy(struct executor *x);
void terni_bulk_check_exit(struct fiber *f);

/* stream.c: the worker's side */
void terni_streams_advance(struct executor *x); /* starts what can start */
void terni_streams_intake(struct executor *x);  /* under the lock */
void terni_stream_launched(struct grid *g);     /* the grid has ended */
int terni_waiter_ready(const struct waiter *w); /* is its condition true? */

/* stream.c: the host's side */
enum tern_status terni_stream_open(struct executor *x, int machine, int num_sms, struct tern_stream **stream);
void terni_stream_close(struct tern_stream *s);
enum tern_status terni_stream_synchronize(struct tern_stream *s);
enum tern_status terni_stream_copy(struct tern_stream *s, void *dst, const void *src, size_t bytes);
enum tern_status terni_stream_fill(struct tern_stream *s, void *dst, int byte, size_t bytes);
enum tern_status terni_stream_store(struct tern_stream *s, uint64_t *word, uint64_t value);
enum tern_status terni_stream_launch(struct tern_stream *s, simt_function *function, const char *name,
                                     const struct launch *launch);
/* event.c */
void terni_mark_unref(struct mark *m);
enum tern_status terni_event_open(struct tern_event **e);
void terni_event_unref(struct tern_event *e);
enum tern_status terni_event_record(struct tern_event *e, struct tern_stream *s);
enum tern_status terni_event_wait(struct tern_event *e, struct tern_stream *s);
enum tern_status terni_event_synchronize(struct executor *x, struct tern_event *e);
enum tern_status terni_event_elapsed(struct tern_event *a, struct tern_event *b, float *ms);
enum tern_status terni_graph_begin(struct tern_stream *s);
enum tern_status terni_graph_end(struct tern_stream *s, struct tern_graph **graph);
enum tern_status terni_graph_launch(struct tern_graph *g, struct tern_stream *s);
void terni_graph_close(struct tern_graph *g);

/* Shared by stream.c and event.c. */
struct op *terni_op_new(enum op_kind kind, size_t args_bytes);
void terni_op_append(struct op_list *list, struct op *op);
/* Gives the op to the worker, or to the capture in progress. Takes it over. */
void terni_op_submit(struct tern_stream *s, struct op *op);

/* machine/cpu.c: for tests of the executor, any function of the dialect. launch->kernel is not looked at. */
enum tern_status terni_cpu_launch_function(struct machine *m, simt_function *function, const char *name,
                                           const struct launch *launch, struct tern_stream *s);

#endif
