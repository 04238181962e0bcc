/* SPDX-License-Identifier: Apache-2.0
 *
 * Work that warps take: each has its first pieces by its number, and all others go to whoever has room for
 * them, by a counter in the rank's own memory. Shared out by numbers, an operation takes as long as the
 * slowest processor, and processors are not equally fast: where some of them share a way to memory that
 * others have alone, dispatch took a fifth longer (docs/performance.md). What is done does not depend on who
 * does it.
 *
 * Where a link is full, who is served least still has what it took long before, and the others have nothing
 * to do any more while it finishes that. So a warp that has had clearly fewer pieces than the mean takes no
 * more as soon as those left will be done before it would have sent another. There is always one that has
 * not stopped, whoever looks when: all have been given as many, and whoever stops has no claim under way, so
 * that the pieces of all that had stopped would be fewer than are taken. Who has claimed past the end has
 * seen that all are. A warp that joins later has none by its number and never stops. */
#ifndef TERN_TAKE_H
#define TERN_TAKE_H

#include "kernels/op.h"

/* One warp's claim on the next piece. It is asked for one piece before it is needed, as the answer takes a
 * way to memory and back. */
struct taker {
    uint64_t *counter;
    uint32_t given, end;  /* pieces that warps have by their numbers; all */
    uint32_t warps;       /* that take */
    uint32_t mine, under; /* pieces that this one has had; that it has under way, as take_is_late counts */
    uint32_t claim;       /* lane 0: of those behind the given */
};

/* All lanes. */
TERN_DEVICE void take_ask(struct taker *t)
{
    if (lane() == 0 && t->given < t->end) {
        t->claim = (uint32_t)atom_add_relaxed_gpu_u64(t->counter, 1);
    }
}

/* Of `end` pieces, of which each of `warps` has `mine` by its number. All lanes. */
TERN_DEVICE struct taker taker_of(const struct op_frame *f, uint32_t warps, uint32_t mine, uint32_t end)
{
    struct taker t = {&f->state->taken, warps * mine, end, warps, mine, mine + 3, 0};
    take_ask(&t);
    return t;
}

/* As `next` pieces were taken when this claim was asked for: the warp has had less than three quarters of its
 * share of them, and at its pace what it has under way takes longer than all that are left at everybody's.
 * Under way are, beside those that it was given, the next, and two for what passes until that is loaded. */
TERN_DEVICE int take_is_late(const struct taker *t, uint32_t next)
{
    return (uint64_t)t->mine * t->warps * 4 < (uint64_t)next * 3 &&
           (uint64_t)(t->end - next) * t->mine < (uint64_t)next * t->under;
}

/* The next piece of the warp; t->end or more: there are no more for it. All lanes. */
TERN_DEVICE uint32_t take_next(struct taker *t)
{
    uint32_t claim = shfl_u32(t->claim, 0), next = t->given < t->end ? t->given + claim : t->end;
    if (next < t->end) {
        t->mine++;
        if (take_is_late(t, next)) {
            t->given = t->end;
        }
        take_ask(t);
    }
    return next;
}

#endif
