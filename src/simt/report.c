/* SPDX-License-Identifier: Apache-2.0
 *
 * Bugs of kernels: divergent barriers, forgotten waits, misaligned bulk copies. On a GPU they hang or
 * corrupt; here the process ends with a report that names kernel, machine, block and lanes. A fiber only
 * writes the sentence (its stack is small) and lets the scheduler print. */
#include "simt/executor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_WARPS 64 /* in one report */

void terni_fiber_bug(struct fiber *f, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    vsnprintf(f->executor->bug_text, sizeof(f->executor->bug_text), format, list);
    va_end(list);
    order_release(&f->executor->bug_clock);
    f->fate = FIBER_FAULTY;
    terni_fiber_yield(f);
    abort(); /* the scheduler does not come back */
}

void simt_no_fence(void)
{
    struct fiber *f = current_fiber();

    terni_fiber_bug(f, "st_fenced of thread %d without a system fence since its last acquire", f->thread.tid);
}

/* That threads of b wait in; which of the two, is not known of each thread. */
static const char *name_of_barrier(const struct block *b)
{
    if (b->whole.joined && b->part.joined) {
        return "sync_block or sync_part";
    }
    return terni_primitive_name(b->part.joined ? b->part.primitive : b->whole.primitive);
}

/* Returns the number of warps printed. */
static int print_block(const struct block *b)
{
    const struct grid *g = b->grid;

    fprintf(stderr, "tern:   kernel %s, machine %d, grid %u, block %d of %d, %d threads\n", g->op->name,
            g->stream->machine, g->id, b->bid, g->op->num_blocks, g->op->num_threads);
    for (int i = 0; i < b->num_warps; i++) {
        const struct warp *w = &b->warps[i];
        fprintf(stderr, "tern:     warp %d:", w->idx);
        if (w->joined != 0) {
            fprintf(stderr, " lanes %08x wait in %s;", w->joined, terni_primitive_name(w->primitive));
        }
        if (w->at_block != 0) {
            fprintf(stderr, " lanes %08x wait in %s;", w->at_block, name_of_barrier(b));
        }
        if (w->at_bulk != 0) {
            fprintf(stderr, " lanes %08x wait in bulk_wait;", w->at_bulk);
        }
        if (w->exited != 0) {
            fprintf(stderr, " lanes %08x have exited;", w->exited);
        }
        fprintf(stderr, " lanes %08x can run\n", w->ready);
    }
    return b->num_warps;
}

void terni_report(struct executor *x, struct block *block, const char *text)
{
    fprintf(stderr, "tern: kernel bug: %s\n", text);
    if (block != NULL) {
        print_block(block);
    } else {
        int printed = 0;
        for (struct grid *g = x->grids; g != NULL; g = g->next) {
            for (struct block *b = g->blocks; b != NULL && printed < MAX_WARPS; b = b->next) {
                printed += print_block(b);
            }
        }
    }
    fflush(stderr);
    abort();
}
