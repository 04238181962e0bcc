/* SPDX-License-Identifier: Apache-2.0
 *
 * From events to slices: a block and the blocks of its operation are found again, waits of a block's
 * threads for the same are one, and what overlaps in a block gets rows of its own, since slices of one row
 * have to nest. */
#include "trace_parts.h"

#include <stdlib.h>

/* What two events of the same object's same operation have in common, on any ranks. */
int trace_compare_operation(const struct stamp_event *a, const struct stamp_event *b)
{
    return a->operation != b->operation ? (int)a->operation - (int)b->operation
           : a->lane != b->lane         ? (int)a->lane - (int)b->lane
           : a->epoch != b->epoch       ? (a->epoch < b->epoch ? -1 : 1)
                                        : 0;
}

int trace_compare_times(int64_t a, int64_t b) { return a < b ? -1 : a > b; }

static int by_wait(const void *x, const void *y)
{
    const struct slice *a = (const struct slice *)x, *b = (const struct slice *)y;
    int d = (int)a->e.block - (int)b->e.block;
    d = d ? d : trace_compare_operation(&a->e, &b->e);
    d = d ? d : (int)a->e.what - (int)b->e.what;
    d = d ? d : (int)a->e.peer - (int)b->e.peer;
    d = d ? d : (int)a->e.outcome - (int)b->e.outcome;
    return d ? d : trace_compare_times(a->begin, b->begin);
}

static int by_time(const void *x, const void *y)
{
    const struct slice *a = (const struct slice *)x, *b = (const struct slice *)y;
    int d = (int)a->e.block - (int)b->e.block;
    return d ? d : trace_compare_times(a->begin, b->begin);
}

/* Waits of one block for the same that overlap are one. */
static void merge_waits(struct file *f)
{
    size_t num = 0;
    qsort(f->waits, f->num_waits, sizeof(*f->waits), by_wait);
    for (size_t i = 0; i < f->num_waits; i++) {
        struct slice *w = &f->waits[i], *last = num ? &f->waits[num - 1] : NULL;
        if (last && last->e.block == w->e.block && trace_compare_operation(&last->e, &w->e) == 0 &&
            last->e.what == w->e.what && last->e.peer == w->e.peer && last->e.outcome == w->e.outcome &&
            w->begin <= last->end) {
            last->end = w->end > last->end ? w->end : last->end;
            last->threads++;
        } else {
            f->waits[num++] = *w;
        }
    }
    f->num_waits = num;
}

static int by_operation(const void *x, const void *y)
{
    const struct slice *a = *(const struct slice *const *)x, *b = *(const struct slice *const *)y;
    int d = trace_compare_operation(&a->e, &b->e);
    return d ? d : trace_compare_times(a->begin, b->begin);
}

/* The first of the file's blocks, in order, that are of the operation of `e` or a later one. */
size_t trace_find_operation(const struct file *f, const struct stamp_event *e)
{
    size_t low = 0, high = f->num_blocks;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (trace_compare_operation(&f->in_order[middle]->e, e) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

int trace_may_lack_blocks(const struct file *f, size_t first)
{
    const struct stamp_event *e = &f->in_order[first]->e, *before = first ? &f->in_order[first - 1]->e : NULL;
    /* A lane's operations go one after the other: what was dropped is of none after the first left. */
    return f->h.num_dropped && (!before || before->operation != e->operation || before->lane != e->lane);
}

/* The latest block of the file in the operation of `e` that has begun by `time`; block: this one, or -1
 * for any. */
struct slice *trace_find_block(const struct file *f, const struct stamp_event *e, int64_t time, int block)
{
    struct slice *found = NULL;
    for (size_t i = trace_find_operation(f, e); i < f->num_blocks; i++) {
        struct slice *b = f->in_order[i];
        if (trace_compare_operation(&b->e, e) != 0) {
            break;
        }
        if ((block < 0 || b->e.block == block) && b->begin <= time && (!found || b->begin > found->begin)) {
            found = b;
        }
    }
    return found;
}

/* The block that a wait was in. One thread stamps its begin, and another may have waited before, or be done
 * even: then it is the next to begin. */
static struct slice *block_around(const struct file *f, const struct slice *w)
{
    struct slice *found = trace_find_block(f, &w->e, w->end, w->e.block);
    if (found && found->end >= w->end) {
        return found;
    }
    found = NULL;
    for (size_t first = trace_find_operation(f, &w->e), i = first; i < f->num_blocks; i++) {
        struct slice *b = f->in_order[i];
        if (trace_compare_operation(&b->e, &w->e) != 0 || trace_may_lack_blocks(f, first)) {
            break; /* the wait's block may be gone, and this one of another kernel */
        }
        if (b->e.block == w->e.block && b->begin > w->end && (!found || b->begin < found->begin)) {
            found = b;
        }
    }
    return found;
}

static void order_blocks(struct file *f)
{
    for (size_t i = 0; i < f->num_blocks; i++) {
        f->in_order[i] = &f->blocks[i];
    }
    qsort(f->in_order, f->num_blocks, sizeof(struct slice *), by_operation);
}

/* Slices of one block that overlap get rows of their own, from `level` on. */
static void stack(struct slice *slices, size_t num, uint32_t level)
{
    static int64_t ends[MAX_LEVELS];
    uint32_t used = level;
    qsort(slices, num, sizeof(*slices), by_time);
    for (size_t i = 0; i < num; i++) {
        uint32_t l = level;
        used = i > 0 && slices[i].e.block == slices[i - 1].e.block ? used : level;
        while (l < used && ends[l] > slices[i].begin) {
            l++;
        }
        l = l < MAX_LEVELS ? l : MAX_LEVELS - 1;
        used = l == used ? used + 1 : used;
        ends[l] = slices[i].end;
        slices[i].level = l;
    }
}

void trace_slice_file(struct file *f)
{
    f->blocks = (struct slice *)trace_make(f->h.num_events, sizeof(*f->blocks));
    f->waits = (struct slice *)trace_make(f->h.num_events, sizeof(*f->waits));
    for (uint64_t i = 0; i < f->h.num_events; i++) {
        const struct stamp_event *e = &f->events[i];
        struct slice s = {*e, (int64_t)e->begin, (int64_t)e->end, 1, 0};
        if (e->what == STAMP_BLOCK) {
            f->blocks[f->num_blocks++] = s;
        } else {
            f->waits[f->num_waits++] = s;
        }
    }
    f->in_order = (struct slice **)trace_make(f->num_blocks, sizeof(struct slice *));
    merge_waits(f);
    order_blocks(f);
    for (size_t i = 0; i < f->num_waits; i++) {
        const struct slice *w = &f->waits[i];
        struct slice *b = block_around(f, w);
        if (b && b->begin > w->begin) {
            b->begin = w->begin;
        }
    }
    stack(f->blocks, f->num_blocks, 0);
    order_blocks(f);
    stack(f->waits, f->num_waits, 1);
}
