/* SPDX-License-Identifier: Apache-2.0
 *
 * Events and graphs. An event points to the mark of its last record; a wait keeps the mark that it found when
 * it was issued, so that an event may be recorded again at once. A graph is a list of operations kept aside:
 * each launch submits copies of them. Records inside a graph make a new mark for every launch. */
#include "simt/executor.h"

#include <stdlib.h>
#include <string.h>

/* ---- Marks and events ---- */

void terni_mark_unref(struct mark *m)
{
    if (__atomic_sub_fetch(&m->refs, 1, __ATOMIC_ACQ_REL) == 0) {
        free(m);
    }
}

enum tern_status terni_event_open(struct tern_event **event)
{
    struct tern_event *e = (struct tern_event *)calloc(1, sizeof(*e));

    if (e == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for an event of %zu bytes", sizeof(*e));
    }
    e->refs = 1;
    *event = e;
    return TERN_OK;
}

void terni_event_unref(struct tern_event *e)
{
    if (--e->refs != 0) {
        return;
    }
    if (e->mark != NULL) {
        terni_mark_unref(e->mark);
    }
    free(e);
}

/* Gives the record operation and its event a new mark. */
static enum tern_status mark_new(struct op *op, struct tern_event *e)
{
    struct mark *m = (struct mark *)calloc(1, sizeof(*m));

    if (m == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory to record an event");
    }
    m->refs = 2;
    if (e->mark != NULL) {
        terni_mark_unref(e->mark);
    }
    e->mark = m;
    op->mark = m;
    return TERN_OK;
}

enum tern_status terni_event_record(struct tern_event *e, struct tern_stream *s)
{
    struct op *op = terni_op_new(OP_RECORD, 0);
    enum tern_status status;

    if (op == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory to record an event");
    }
    if (s->capture != NULL) {
        op->event = e;
        e->refs++;
        e->graph = s->capture;
    } else {
        status = mark_new(op, e);
        if (status != TERN_OK) {
            free(op);
            return status;
        }
        e->graph = NULL;
    }
    terni_op_submit(s, op);
    return TERN_OK;
}

enum tern_status terni_event_wait(struct tern_event *e, struct tern_stream *s)
{
    struct op *op;

    if (e->graph != NULL || s->capture != NULL) {
        if (e->graph == s->capture) {
            return TERN_OK; /* recorded earlier in this capture, and a stream runs in order */
        }
        return TERN_FAIL(
            TERN_UNSUPPORTED,
            "the cpu machine captures one stream: an event cannot lead into or out of the capture");
    }
    if (e->mark == NULL) {
        return TERN_OK; /* never recorded: nothing to wait for */
    }
    op = terni_op_new(OP_WAIT, 0);
    if (op == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory to wait for an event");
    }
    op->mark = e->mark;
    __atomic_add_fetch(&op->mark->refs, 1, __ATOMIC_RELAXED);
    terni_op_submit(s, op);
    return TERN_OK;
}

enum tern_status terni_event_synchronize(struct executor *x, struct tern_event *e)
{
    struct waiter w = {.kind = WAIT_MARK, .mark = e->mark};

    if (e->graph != NULL) {
        return TERN_FAIL(TERN_BAD_STATE,
                         "the event's last record is being captured: there is nothing to wait for");
    }
    if (e->mark == NULL) {
        return TERN_OK;
    }
    TERN_TRY(terni_executor_wait(x, &w, 0));
    order_acquire(&e->mark->clock);
    return TERN_OK;
}

enum tern_status terni_event_elapsed(struct tern_event *a, struct tern_event *b, float *ms)
{
    uint64_t begin = a->mark == NULL ? 0 : __atomic_load_n(&a->mark->when_ns, __ATOMIC_ACQUIRE);
    uint64_t end = b->mark == NULL ? 0 : __atomic_load_n(&b->mark->when_ns, __ATOMIC_ACQUIRE);

    if (begin == 0 || end == 0) {
        return TERN_FAIL(TERN_BAD_STATE, "the %s event has not been recorded, or its record has not run yet",
                         begin == 0 ? "first" : "second");
    }
    *ms = (float)((double)(int64_t)(end - begin) * 1e-6);
    return TERN_OK;
}

/* ---- Graphs ---- */

/* Of all executors of the process. */
static uint64_t num_captures;

enum tern_status terni_graph_begin(struct tern_stream *s)
{
    if (s->capture != NULL) {
        return TERN_FAIL(TERN_BAD_STATE, "the stream is capturing a graph already");
    }
    s->capture = (struct tern_graph *)calloc(1, sizeof(*s->capture));
    if (s->capture == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a graph");
    }
    s->capture->number = __atomic_add_fetch(&num_captures, 1, __ATOMIC_RELAXED);
    return TERN_OK;
}

/* The events that the capture recorded are ordinary ones again. */
static void release_events(struct tern_graph *g)
{
    for (struct op *op = g->ops.first; op != NULL; op = op->next) {
        if (op->event != NULL && op->event->graph == g) {
            op->event->graph = NULL;
        }
    }
}

enum tern_status terni_graph_end(struct tern_stream *s, struct tern_graph **graph)
{
    if (s->capture == NULL) {
        return TERN_FAIL(TERN_BAD_STATE, "the stream is not capturing a graph");
    }
    release_events(s->capture);
    *graph = s->capture;
    s->capture = NULL;
    return TERN_OK;
}

static struct op *op_copy(const struct op *from)
{
    struct op *op = terni_op_new(from->kind, from->args_bytes);

    if (op != NULL) {
        memcpy(op, from, sizeof(*op) + from->args_bytes);
        op->next = NULL;
        op->event = NULL;
    }
    return op;
}

/* Of operations that were never submitted. Nothing would set their marks, so they are set here. */
static void discard(struct op_list *ops)
{
    while (ops->first != NULL) {
        struct op *op = ops->first;
        ops->first = op->next;
        if (op->mark != NULL) {
            __atomic_store_n(&op->mark->when_ns, terni_clock_ns(), __ATOMIC_RELEASE);
            terni_mark_unref(op->mark);
        }
        free(op);
    }
}

enum tern_status terni_graph_launch(struct tern_graph *g, struct tern_stream *s)
{
    struct op_list ops = {NULL, NULL};

    if (s->capture != NULL) {
        return TERN_FAIL(TERN_UNSUPPORTED, "the cpu machine does not capture a graph into a graph");
    }
    for (struct op *from = g->ops.first; from != NULL; from = from->next) {
        struct op *op = op_copy(from);
        enum tern_status status = TERN_OK;
        if (op == NULL) {
            discard(&ops);
            return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory to launch a graph");
        }
        terni_op_append(&ops, op);
        if (from->event != NULL) {
            status = mark_new(op, from->event);
        }
        if (status != TERN_OK) {
            discard(&ops);
            return status;
        }
    }
    while (ops.first != NULL) {
        struct op *op = ops.first;
        ops.first = op->next;
        terni_op_submit(s, op);
    }
    return TERN_OK;
}

void terni_graph_close(struct tern_graph *g)
{
    if (g == NULL) {
        return;
    }
    release_events(g);
    while (g->ops.first != NULL) {
        struct op *op = g->ops.first;
        g->ops.first = op->next;
        if (op->event != NULL) {
            terni_event_unref(op->event);
        }
        free(op);
    }
    free(g);
}
