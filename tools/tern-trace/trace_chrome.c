/* SPDX-License-Identifier: Apache-2.0
 *
 * The trace in the Chrome format: a process is a rank, a thread one block of its kernels; what it waited
 * for is in rows below it. */
#include "trace_parts.h"

#include <stdio.h>

/* A clean name, between quotes. */
static void put_text(const char *text)
{
    for (; *text; text++) {
        putchar(*text == '"' || *text == '\\' ? '_' : *text);
    }
}

static int pid_of(const struct file *f) { return f->comm * TERN_MAX_RANKS + f->h.rank; }

/* Of the first object's blocks, the block's number. */
static int tid_of(const struct file *f, const struct slice *s)
{
    return (f->place << 10 | (int)s->level) << 10 | (s->e.block & 1023);
}

static const char *separator = "";

static void begin_event(const char *ph, const struct file *f, const struct slice *s)
{
    printf("%s\n{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d", separator, ph, pid_of(f), tid_of(f, s));
    separator = ",";
}

static double microseconds(int64_t ns) { return (double)ns / 1e3; }

static void put_name_of_row(const struct file *f, const struct slice *s)
{
    begin_event("M", f, s);
    printf(",\"name\":\"thread_name\",\"args\":{\"name\":\"");
    if (f->place) {
        printf("object %d, ", f->place);
    }
    printf("block %d%s\"}}", s->e.block, s->level ? " waits" : "");
    begin_event("M", f, s);
    printf(",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%u}}",
           ((unsigned)f->place << 10 | (s->e.block & 1023u)) << 10 | s->level);
}

static void put_slices(const struct file *f, const struct slice *slices, size_t num, int64_t zero)
{
    for (size_t i = 0; i < num; i++) {
        const struct slice *s = &slices[i];
        int named = 0;
        for (size_t j = i; j > 0 && slices[j - 1].e.block == s->e.block && !named; j--) {
            named = slices[j - 1].level == s->level;
        }
        if (!named) {
            put_name_of_row(f, s);
        }
        begin_event("X", f, s);
        printf(",\"ts\":%.3f,\"dur\":%.3f", microseconds(s->begin - zero), microseconds(s->end - s->begin));
        if (s->e.what == STAMP_BLOCK) {
            printf(",\"cat\":\"kernel\",\"name\":\"%s\",\"args\":{", trace_operation(&s->e));
        } else {
            printf(",\"cat\":\"wait\",\"name\":\"wait rank %d: %s%s\",\"args\":{\"peer\":%d,\"threads\":%u,"
                   "\"came\":%s,\"operation\":\"%s\",",
                   s->e.peer, trace_thing(&s->e, f->h.rank), s->e.outcome == STAMP_CAME ? "" : " (in vain)",
                   s->e.peer, s->threads, s->e.outcome == STAMP_CAME ? "true" : "false",
                   trace_operation(&s->e));
        }
        printf("\"epoch\":%u,\"lane\":%u,\"object\":%u}}", s->e.epoch, s->e.lane, (unsigned)f->place);
    }
}

/* From the block of the rank that was waited for to the wait's end. */
static void put_arrow(const struct file *from, const struct slice *block, const struct file *to,
                      const struct slice *wait, int64_t zero)
{
    static unsigned id;
    int64_t leaves = wait->e.what == TERN_AWAIT_READY ? block->begin : block->end;
    leaves = leaves < wait->end ? leaves : wait->end;
    id++;
    begin_event("s", from, block);
    printf(",\"ts\":%.3f,\"cat\":\"wait\",\"name\":\"waited for\",\"id\":%u}", microseconds(leaves - zero),
           id);
    begin_event("f", to, wait);
    printf(",\"ts\":%.3f,\"cat\":\"wait\",\"name\":\"waited for\",\"id\":%u,\"bp\":\"e\"}",
           microseconds(wait->end - zero), id);
}

static void put_arrows(const struct traces *t, const struct file *f, int64_t zero)
{
    for (size_t i = 0; i < t->num_files; i++) {
        const struct file *g = &t->files[i];
        if (g == f || g->comm != f->comm || g->h.object != f->h.object) {
            continue;
        }
        for (size_t k = 0; k < f->num_waits; k++) {
            const struct slice *w = &f->waits[k];
            const struct slice *b = NULL;
            if (w->e.peer == g->h.rank && w->e.outcome == STAMP_CAME) {
                b = trace_find_block(g, &w->e, w->end, -1);
            }
            if (b) {
                put_arrow(g, b, f, w, zero);
            }
        }
    }
}

static int64_t first_time(const struct traces *t)
{
    int64_t zero = INT64_MAX;
    for (size_t i = 0; i < t->num_files; i++) {
        const struct file *f = &t->files[i];
        for (size_t k = 0; k < f->num_blocks; k++) {
            zero = f->blocks[k].begin < zero ? f->blocks[k].begin : zero;
        }
        for (size_t k = 0; k < f->num_waits; k++) {
            zero = f->waits[k].begin < zero ? f->waits[k].begin : zero;
        }
    }
    return zero;
}

void trace_put(const struct traces *t)
{
    struct slice nothing = {{0}, 0, 0, 0, 0};
    int64_t zero = first_time(t);
    printf("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
    for (size_t i = 0; i < t->num_files; i++) {
        const struct file *f = &t->files[i];
        begin_event("M", f, &nothing);
        printf(",\"name\":\"process_name\",\"args\":{\"name\":\"rank %d on ", f->h.rank);
        put_text(f->h.host_name);
        printf(", ");
        put_text(f->h.device_name);
        if (t->num_comms > 1) {
            printf(", communicator %d", f->comm);
        }
        printf("%s\"}}", f->h.num_dropped ? ", older events dropped" : "");
        put_slices(f, f->blocks, f->num_blocks, zero);
        put_slices(f, f->waits, f->num_waits, zero);
        put_arrows(t, f, zero);
    }
    printf("\n]}\n");
}
