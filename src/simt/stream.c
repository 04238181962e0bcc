/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams: a host appends operations under the lock, the worker takes them over at its next look and runs
 * those of one stream strictly in order, those of different streams side by side.
 *
 * Order, as ThreadSanitizer is told: an operation comes after its submission (op->clock) and after everything
 * that ran on its stream before (stream->clock), and after nothing else that the host or other streams did.
 */
#include "simt/executor.h"

#include <stdlib.h>
#include <string.h>

/* ---- The host's side ---- */

struct op *terni_op_new(enum op_kind kind, size_t args_bytes)
{
    struct op *op = (struct op *)calloc(1, sizeof(*op) + args_bytes);

    if (op != NULL) {
        op->kind = kind;
        op->args_bytes = (uint32_t)args_bytes;
    }
    return op;
}

void terni_op_append(struct op_list *list, struct op *op)
{
    op->next = NULL;
    if (list->last != NULL) {
        list->last->next = op;
    } else {
        list->first = op;
    }
    list->last = op;
}

void terni_op_submit(struct tern_stream *s, struct op *op)
{
    struct executor *x = s->executor;

    if (s->capture != NULL) {
        terni_op_append(&s->capture->ops, op);
        return;
    }
    order_release(&op->clock);
    pthread_mutex_lock(&x->lock);
    terni_op_append(&s->incoming, op);
    s->submitted++;
    if (!s->arrived) {
        s->arrived = 1;
        s->next_arrival = NULL;
        if (x->last_arrival != NULL) {
            x->last_arrival->next_arrival = s;
        } else {
            x->arrivals = s;
        }
        x->last_arrival = s;
    }
    pthread_cond_signal(&x->work);
    pthread_mutex_unlock(&x->lock);
}

enum tern_status terni_stream_open(struct executor *x, int machine, int num_sms, struct tern_stream **stream)
{
    struct tern_stream *s = (struct tern_stream *)calloc(1, sizeof(*s));

    if (s == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a stream of %zu bytes", sizeof(*s));
    }
    s->executor = x;
    s->machine = machine;
    s->num_sms = num_sms;
    *stream = s;
    return TERN_OK;
}

static void wait_idle(struct tern_stream *s)
{
    struct waiter w = {.kind = WAIT_STREAM, .stream = s};

    pthread_mutex_lock(&s->executor->lock);
    w.target = s->submitted;
    pthread_mutex_unlock(&s->executor->lock);
    (void)terni_executor_wait(s->executor, &w, 0); /* without a deadline it succeeds */
    order_acquire(&s->clock);
}

enum tern_status terni_stream_synchronize(struct tern_stream *s)
{
    if (s->capture != NULL) {
        return TERN_FAIL(TERN_BAD_STATE, "the stream is capturing a graph: it cannot be synchronised");
    }
    wait_idle(s);
    return TERN_OK;
}

void terni_stream_close(struct tern_stream *s)
{
    struct executor *x = s->executor;

    if (s->capture != NULL) {
        terni_graph_close(s->capture);
        s->capture = NULL;
    }
    wait_idle(s);
    pthread_mutex_lock(&x->lock);
    s->next_arrival = x->closed; /* the worker has its context to take back */
    x->closed = s;
    pthread_mutex_unlock(&x->lock);
}

static struct op *copy_op(enum op_kind kind, void *dst, size_t bytes)
{
    struct op *op = terni_op_new(kind, 0);

    if (op != NULL) {
        op->dst = (char *)dst;
        op->bytes = bytes;
    }
    return op;
}

enum tern_status terni_stream_copy(struct tern_stream *s, void *dst, const void *src, size_t bytes)
{
    struct op *op = copy_op(OP_COPY, dst, bytes);

    if (op == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory to issue a copy of %zu bytes", bytes);
    }
    op->src = (const char *)src;
    terni_op_submit(s, op);
    return TERN_OK;
}

enum tern_status terni_stream_fill(struct tern_stream *s, void *dst, int byte, size_t bytes)
{
    struct op *op = copy_op(OP_FILL, dst, bytes);

    if (op == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory to issue a fill of %zu bytes", bytes);
    }
    op->byte = byte;
    terni_op_submit(s, op);
    return TERN_OK;
}

enum tern_status terni_stream_store(struct tern_stream *s, uint64_t *word, uint64_t value)
{
    struct op *op = copy_op(OP_STORE, word, sizeof *word);

    if (op == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory to issue a store of a word");
    }
    op->value = value;
    terni_op_submit(s, op);
    return TERN_OK;
}

enum tern_status terni_stream_launch(struct tern_stream *s, simt_function *function, const char *name,
                                     const struct launch *launch)
{
    struct op *op;

    if (launch->num_blocks < 1 || launch->num_threads < SIMT_LANES ||
        launch->num_threads > SIMT_MAX_THREADS || launch->num_threads % SIMT_LANES != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "kernel %s: %d blocks of %d threads cannot be launched", name,
                         launch->num_blocks, launch->num_threads);
    }
    if (launch->shared_bytes > SIMT_SHARED_BYTES) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "kernel %s: %u bytes of shared memory, more than %d", name,
                         launch->shared_bytes, SIMT_SHARED_BYTES);
    }
    if (launch->args_bytes > SIMT_ARGS_BYTES) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "kernel %s: %u bytes of arguments, more than %d", name,
                         launch->args_bytes, SIMT_ARGS_BYTES);
    }
    op = terni_op_new(OP_LAUNCH, launch->args_bytes);
    if (op == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory to launch kernel %s", name);
    }
    op->function = function;
    op->name = name;
    op->num_blocks = launch->num_blocks;
    op->num_threads = launch->num_threads;
    op->shared_bytes = launch->shared_bytes;
    if (launch->args_bytes != 0) {
        memcpy(op->args, launch->args, launch->args_bytes);
    }
    terni_op_submit(s, op);
    return TERN_OK;
}

/* ---- The worker's side ---- */

int terni_waiter_ready(const struct waiter *w)
{
    switch (w->kind) {
    case WAIT_STREAM:
        return w->stream->completed >= w->target;
    case WAIT_MARK:
        return __atomic_load_n(&w->mark->when_ns, __ATOMIC_ACQUIRE) != 0; /* pairs with run_record */
    case WAIT_WORD:
        break;
    }
    return __atomic_load_n(w->word, __ATOMIC_ACQUIRE) == w->value; /* pairs with the kernel's release store */
}

static void reap_closed(struct executor *x)
{
    while (x->closed != NULL) {
        struct tern_stream *s = x->closed;
        x->closed = s->next_arrival;
        if (s->context != NULL) {
            terni_context_give(x, s->context);
        }
        free(s);
    }
}

static void activate(struct executor *x, struct tern_stream *s)
{
    if (s->active) {
        return;
    }
    if (x->num_active == x->max_active) {
        int max = x->max_active == 0 ? 16 : 2 * x->max_active;
        x->active = (struct tern_stream **)terni_executor_need(
            realloc(x->active, (size_t)max * sizeof(struct tern_stream *)), "streams");
        x->max_active = max;
    }
    if (s->context == NULL) {
        s->context = terni_context_take(x);
    }
    s->active = 1;
    x->active[x->num_active++] = s;
}

void terni_streams_intake(struct executor *x)
{
    int kept = 0;

    for (int i = 0; i < x->num_active; i++) {
        struct tern_stream *s = x->active[i];
        s->active = s->grid != NULL || s->queue.first != NULL;
        if (s->active) {
            x->active[kept++] = s;
        }
    }
    x->num_active = kept;
    while (x->arrivals != NULL) {
        struct tern_stream *s = x->arrivals;
        x->arrivals = s->next_arrival;
        s->arrived = 0;
        if (s->queue.last != NULL) {
            s->queue.last->next = s->incoming.first;
        } else {
            s->queue.first = s->incoming.first;
        }
        s->queue.last = s->incoming.last;
        s->incoming.first = NULL;
        s->incoming.last = NULL;
        activate(x, s);
    }
    x->last_arrival = NULL;
    reap_closed(x);
}

/* In the stream's context: takes the finished first operation off the queue. */
static void pop(struct tern_stream *s)
{
    struct op *op = s->queue.first;

    s->queue.first = op->next;
    if (op->next == NULL) {
        s->queue.last = NULL;
    }
    s->completed++;
    s->executor->quiet = 0;
    free(op);
}

static void run_record(struct tern_stream *s, struct op *op)
{
    order_release(&op->mark->clock);   /* pairs with run_wait and terni_event_synchronize */
    order_enter(s->executor->context); /* the clock's result is on the worker's stack */
    __atomic_store_n(&op->mark->when_ns, terni_clock_ns(), __ATOMIC_RELEASE);
    terni_mark_unref(op->mark);
    order_enter(s->context);
}

static void run_wait(struct tern_stream *s, struct op *op)
{
    order_acquire(&op->mark->clock);
    order_enter(s->executor->context);
    terni_mark_unref(op->mark);
    order_enter(s->context);
}

/* Runs anything but a launch, at once. */
static void run_small(struct tern_stream *s, struct op *op)
{
    order_enter(s->context);
    order_acquire(&op->clock);
    order_acquire(&s->clock);
    switch (op->kind) {
    case OP_COPY:
        memcpy(op->dst, op->src, op->bytes);
        break;
    case OP_FILL:
        memset(op->dst, op->byte, op->bytes);
        break;
    case OP_STORE:
        order_release(op->dst); /* what ThreadSanitizer would see of the store below */
        /* Pairs with the acquire of whoever awaits the word in a kernel. */
        __atomic_store_n((uint64_t *)(void *)op->dst, op->value, __ATOMIC_RELEASE);
        break;
    case OP_RECORD:
        run_record(s, op);
        break;
    default:
        run_wait(s, op);
        break;
    }
    order_release(&s->clock);
    pop(s);
    order_enter(s->executor->context);
}

static void advance(struct tern_stream *s)
{
    struct executor *x = s->executor;

    while (s->grid == NULL && s->queue.first != NULL) {
        struct op *op = s->queue.first;
        int moves = op->kind == OP_COPY || op->kind == OP_STORE;
        if (op->kind == OP_LAUNCH) {
            terni_grid_start(s, op);
            return;
        }
        if (op->kind == OP_WAIT && __atomic_load_n(&op->mark->when_ns, __ATOMIC_ACQUIRE) == 0) {
            return;
        }
        run_small(s, op);
        /* Copies take their time: while kernels run, what follows may be left for a later slice. */
        if (moves && x->num_ready != 0 && (draw(x) & 1u) != 0) {
            return;
        }
    }
}

void terni_streams_advance(struct executor *x)
{
    for (int i = 0; i < x->num_active; i++) {
        /* A launch takes its time to arrive: while others run, a stream may be left for the next slice. */
        if (x->num_ready == 0 || (draw(x) & 3u) != 0) {
            advance(x->active[i]);
        }
    }
}

void terni_stream_launched(struct grid *g)
{
    struct tern_stream *s = g->stream;

    s->grid = NULL;
    order_enter(s->context);
    order_acquire(&s->clock);
    pop(s);
    order_enter(s->executor->context);
}
