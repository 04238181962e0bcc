/* SPDX-License-Identifier: Apache-2.0
 *
 * Who waited for whom, and how long, in words and numbers. */
#include "trace_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_PAIRS = 40, SHOWN_RANKS = 16 };

const char *trace_thing(const struct stamp_event *e, int rank)
{
    int low_latency = e->operation >= TERN_OP_LL_DISPATCH;
    switch (e->what) {
    case TERN_AWAIT_READY:
        return e->operation == TERN_OP_ROUTE ? "its entry or counts" : "its entry";
    case TERN_AWAIT_DONE:
        return low_latency ? "rows" : e->peer == rank ? "blocks" : "its end";
    case TERN_AWAIT_ROWS:
        return "rows to staging";
    case TERN_AWAIT_COUNTS:
        return "counts";
    case TERN_AWAIT_BLOCK:
        return "tables";
    case TERN_AWAIT_CREDIT:
        return "room for messages";
    case TERN_AWAIT_CHUNK:
        return "messages";
    default:
        return "something else";
    }
}

const char *trace_operation(const struct stamp_event *e)
{
    static const char *const operations[NUM_OPERATIONS] = {
        "operation", "route", "dispatch", "combine", "low-latency dispatch", "low-latency combine"};
    return operations[e->operation];
}

enum { NUM_KINDS = NUM_OPERATIONS * NUM_WHATS };

/* Of one rank for another. */
struct pair {
    int waiter, peer;
    int64_t ns, most;        /* in all; for one thing in one operation */
    struct stamp_event what; /* that one */
};

/* Time in which any of some waits goes on. */
struct total {
    int64_t ns, until;
};

static void add_wait(struct total *t, const struct slice *w)
{
    if (t->ns == 0 || w->end > t->until) {
        t->ns += w->end - (t->ns == 0 || w->begin > t->until ? w->begin : t->until);
        t->until = w->end;
    }
}

/* Neither is negative. Made files may have more than fits. */
static int64_t plus(int64_t a, int64_t b) { return a < INT64_MAX - b ? a + b : INT64_MAX; }

/* totals: [n], then [n][NUM_KINDS]; waits are in order of their begin. */
static void add_file(const struct file *f, int n, struct total *totals, struct pair *pairs)
{
    memset(totals, 0, (size_t)n * (1 + NUM_KINDS) * sizeof(*totals));
    for (size_t i = 0; i < f->num_waits; i++) {
        const struct slice *w = &f->waits[i];
        struct total *kind = &totals[n + w->e.peer * NUM_KINDS + w->e.operation * NUM_WHATS + w->e.what];
        struct pair *p = &pairs[f->h.rank * n + w->e.peer];
        add_wait(&totals[w->e.peer], w);
        add_wait(kind, w);
        if (kind->ns > p->most) {
            p->most = kind->ns;
            p->what = w->e;
        }
    }
    for (int peer = 0; peer < n; peer++) {
        struct pair *p = &pairs[f->h.rank * n + peer];
        p->ns = plus(p->ns, totals[peer].ns);
    }
}

static int longest_first(const void *x, const void *y)
{
    return trace_compare_times(((const struct pair *)y)->ns, ((const struct pair *)x)->ns);
}

static int by_begin(const void *x, const void *y)
{
    return trace_compare_times(((const struct slice *)x)->begin, ((const struct slice *)y)->begin);
}

static double milliseconds(int64_t ns) { return (double)ns / 1e6; }

static void print_matrix(const struct pair *pairs, int n)
{
    printf("milliseconds in which a thread of the rank on the left waited for the rank above:\n%8s", "");
    for (int peer = 0; peer < n; peer++) {
        printf(" %10d", peer);
    }
    for (int i = 0; i < n * n; i++) {
        if (i % n == 0) {
            printf("\n%8d", i / n);
        }
        printf(" %10.3f", milliseconds(pairs[i].ns));
    }
    printf("\n");
}

static void print_files(const struct traces *t, int comm)
{
    for (size_t i = 0; i < t->num_files; i++) {
        const struct file *f = &t->files[i];
        if (f->comm == comm) {
            printf("rank %d, object %d: %llu events, %llu dropped, on %s\n", f->h.rank, f->place,
                   (unsigned long long)f->h.num_events, (unsigned long long)f->h.num_dropped, f->h.host_name);
        }
    }
}

static void print_pairs(struct pair *pairs, int n)
{
    qsort(pairs, (size_t)n * (size_t)n, sizeof(*pairs), longest_first);
    for (int i = 0; i < n * n && i < SHOWN_PAIRS && pairs[i].ns > 0; i++) {
        const struct pair *p = &pairs[i];
        printf("rank %d waited %.3f ms for rank %d%s, most in %s: %.3f ms for %s\n", p->waiter,
               milliseconds(p->ns), p->peer, p->waiter == p->peer ? " (itself)" : "",
               trace_operation(&p->what), milliseconds(p->most), trace_thing(&p->what, p->waiter));
    }
}

/* Who was waited for most, by the others. */
static void print_culprit(const struct pair *pairs, int n)
{
    int64_t most = 0;
    int culprit = -1;
    for (int peer = 0; peer < n; peer++) {
        int64_t sum = 0;
        for (int waiter = 0; waiter < n; waiter++) {
            sum = waiter == peer ? sum : plus(sum, pairs[waiter * n + peer].ns);
        }
        culprit = sum > most ? peer : culprit;
        most = sum > most ? sum : most;
    }
    if (culprit >= 0) {
        printf("most waited for: rank %d, %.3f ms by all others together\n", culprit, milliseconds(most));
    }
}

static void print_clocks(const struct traces *t)
{
    for (int c = 1; c < t->num_clocks; c++) {
        const struct clock *k = &t->clocks[c];
        const struct trace_header *h = &t->files[k->first].h;
        printf("clock of rank %d (%s) shifted by %.3f ms against that of rank %d", h->rank, h->host_name,
               milliseconds(k->offset), t->files[0].h.rank);
        if (t->contradiction) {
            printf(": waits contradict each other by %.3f ms\n", milliseconds(t->contradiction));
        } else if (k->half >= 0) {
            printf(", which waits bound to %.3f ms either way\n", milliseconds(k->half));
        } else {
            printf(": waits do not bound it on both sides\n");
        }
    }
}

void trace_summarize(struct traces *t)
{
    for (size_t i = 0; i < t->num_files; i++) {
        qsort(t->files[i].waits, t->files[i].num_waits, sizeof(struct slice), by_begin);
    }
    print_clocks(t);
    for (int comm = 0; comm < t->num_comms; comm++) {
        int n = 0;
        for (size_t i = 0; i < t->num_files; i++) {
            n = t->files[i].comm == comm ? t->files[i].h.num_ranks : n;
        }
        struct pair *pairs = (struct pair *)trace_make((size_t)n * (size_t)n, sizeof(*pairs));
        printf("communicator %d of %d ranks\n", comm, n);
        print_files(t, comm);
        struct total *totals = (struct total *)trace_make((size_t)n * (1 + NUM_KINDS), sizeof(*totals));
        for (int i = 0; i < n * n; i++) {
            pairs[i].waiter = i / n;
            pairs[i].peer = i % n;
        }
        for (size_t i = 0; i < t->num_files; i++) {
            if (t->files[i].comm == comm) {
                add_file(&t->files[i], n, totals, pairs);
            }
        }
        free(totals);
        print_culprit(pairs, n);
        if (n <= SHOWN_RANKS) {
            print_matrix(pairs, n);
        }
        print_pairs(pairs, n);
        free(pairs);
    }
}
