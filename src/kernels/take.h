/* SPDX-License-Identifier: Apache-2.0
 *
 * Work that warps take: each has its first pieces by its number, and all others go to whoever has room for
 * them, by a counter in the rank's own memory. Shared out by numbers, an operation takes as long as the
 * slowest processor, and processors are not equally fast: where some of them share a way to memory that
 * others have alone, dispatch took a fifth longer (docs/performance.md). What is done does not depend on who
 * does it. */
#ifndef TERN_TAKE_H
#define TERN_TAKE_H

#include "kernels/op.h"

/* One warp's claim on the next piece. It is asked for one piece before it is needed, as the answer takes a
 * way to memory and back. */
struct taker {
    uint64_t *counter;
    uint32_t given, end; /* pieces that warps have by their numbers; all */
    uint32_t claim;      /* lane 0: of those behind them */
};

/* All lanes. */
TERN_DEVICE void take_ask(struct taker *t)
{
    if (lane() == 0 && t->given < t->end) {
        t->claim = (uint32_t)atom_add_relaxed_gpu_u64(t->counter, 1);
    }
}

/* Of `end` pieces, of which the first `given` are. All lanes. */
TERN_DEVICE struct taker taker_of(const struct op_frame *f, uint32_t given, uint32_t end)
{
    struct taker t = {&f->state->taken, given, end, 0};
    take_ask(&t);
    return t;
}

/* The next piece of the warp; t->end or more: there are no more. All lanes. */
TERN_DEVICE uint32_t take_next(struct taker *t)
{
    uint32_t next = t->given < t->end ? t->given + shfl_u32(t->claim, 0) : t->end;
    if (next < t->end) {
        take_ask(t);
    }
    return next;
}

#endif
