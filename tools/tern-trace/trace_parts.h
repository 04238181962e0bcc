/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of tern-trace share. Files are read and judged (trace_read.c); waits of many threads that
 * overlap become one slice (trace_slice.c); clocks are aligned (trace_clock.c); then slices become events
 * of a trace (trace_chrome.c) or sums (trace_summary.c). */
#ifndef TERN_TRACE_PARTS_H
#define TERN_TRACE_PARTS_H

#include "ep/trace_file.h"
#include "tern/tern.h"

#include <stddef.h>

/* Operations and waits, as kernels number them. */
enum { NUM_OPERATIONS = TERN_OP_LL_COMBINE + 1, NUM_WHATS = TERN_AWAIT_TRANSPORT + 1 };
enum { MAX_LEVELS = 1024 };
/* No stamp is later, so that differences of times, and shifted ones, fit. */
#define MAX_TIME (INT64_MAX / 4)

/* A block of a kernel, or a wait of some of its threads. */
struct slice {
    struct stamp_event e;
    int64_t begin, end; /* as aligned */
    uint32_t threads;   /* that waited */
    uint32_t level;     /* row of the trace below the block's own */
};

struct file {
    char *path;
    struct trace_header h;
    struct stamp_event *events;
    int comm, clock;
    int place;                    /* of its object among those of the communicator */
    struct slice *blocks, *waits; /* each by block, then begin */
    size_t num_blocks, num_waits;
    struct slice **in_order; /* blocks by operation, then begin */
};

struct clock {
    uint32_t kind;
    uint64_t host;
    unsigned char device[16];
    int first;            /* a file that has it */
    int64_t offset, half; /* to be added; it may be off by so much; -1: nothing bounds that */
};

struct traces {
    struct file *files;
    size_t num_files;
    struct clock *clocks;
    int num_clocks, num_comms;
    int64_t contradiction; /* waits cannot be aligned: around some clocks so much is missing; else 0 */
};

/* Zeroed memory; the program ends if there is none. */
void *trace_make(size_t num, size_t size);
/* Adds the file, or the files *.trace of a folder. Nonzero: some of it is refused, and standard error says
 * why. */
int trace_read_path(struct traces *t, const char *path);
/* Numbers communicators and objects; nonzero: the files cannot be of one run. */
int trace_join_files(struct traces *t);
void trace_drop(struct traces *t);

/* On the rank's own clock. */
void trace_slice_file(struct file *f);
int trace_compare_times(int64_t a, int64_t b);
/* 0 if two events are of one operation, on any ranks. */
int trace_compare_operation(const struct stamp_event *a, const struct stamp_event *b);
/* The first of the file's blocks, in order, that are of the operation of `e` or a later one. */
size_t trace_find_operation(const struct file *f, const struct stamp_event *e);
/* Whether older events that the ring had no room for may be of the operation of `e`. `first`: the first of
 * its blocks that the file has, in order. */
int trace_may_lack_blocks(const struct file *f, size_t first);
/* The latest block of the file in the operation of `e` that has begun by `time`; block: this one, or -1 for
 * any. */
struct slice *trace_find_block(const struct file *f, const struct stamp_event *e, int64_t time, int block);

/* Shifts all slices, so that times of different clocks can be compared. */
void trace_align(struct traces *t);

/* What a rank waited for, and in what. */
const char *trace_thing(const struct stamp_event *e, int rank);
const char *trace_operation(const struct stamp_event *e);
/* To standard output. */
void trace_put(const struct traces *t);
void trace_summarize(struct traces *t);

#endif
