/* SPDX-License-Identifier: Apache-2.0
 *
 * Time stamps of kernels, for tern-trace. Only a build with TERN_STAMPS (make VARIANT=trace) has them; in
 * any other the functions here are empty, and kernels are, instruction for instruction, what they would be
 * without. There, too, nothing is stamped unless the host has given the rank a ring. */
#ifndef TERN_STAMP_H
#define TERN_STAMP_H

#include "kernels/ep_args.h"
#include "kernels/stamp_ring.h"
#include "simt/simt.h"

/* When something begins that is to be stamped. */
TERN_DEVICE uint64_t stamp_now(void)
{
#ifdef TERN_STAMPS
    return clock_ns();
#else
    return 0;
#endif
}

#ifdef TERN_STAMPS
TERN_DEVICE void stamp_put(struct stamp_ring *ring, struct stamp_event e)
{
    uint64_t n = atom_add_relaxed_gpu_u64(&ring->claimed, 1);
    e.number = (uint32_t)n + 1;
    e.end = clock_ns();
    ((struct stamp_event *)(ring + 1))[n & (ring->capacity - 1)] = e;
}
#endif

/* One thread of a block, when all that the others do is over: it began at `begin`. */
TERN_DEVICE void stamp_block(const struct op_frame *f, uint32_t lane, uint64_t epoch, uint64_t begin)
{
#ifdef TERN_STAMPS
    if (f->state && f->state->stamps) {
        struct stamp_event e = {begin,
                                0,
                                0,
                                (uint32_t)epoch,
                                -1,
                                (uint16_t)bid(),
                                (uint8_t)f->operation,
                                STAMP_BLOCK,
                                STAMP_CAME,
                                (uint8_t)lane};
        stamp_put(f->state->stamps, e);
    }
#else
    (void)f, (void)lane, (void)epoch, (void)begin;
#endif
}

#ifdef TERN_STAMPS
/* A wait that has looked in vain. Begins as zeros. */
struct stamp_wait {
    struct stamp_ring *ring; /* NULL: none, or it has not looked yet */
    uint64_t begin, epoch;
    int peer, what;
};

TERN_DEVICE void stamp_waited(const struct op_frame *f, const struct stamp_wait *w, uint32_t lane,
                              int outcome)
{
    if (w->ring) {
        struct stamp_event e = {w->begin,
                                0,
                                0,
                                (uint32_t)w->epoch,
                                (int16_t)w->peer,
                                (uint16_t)bid(),
                                (uint8_t)f->operation,
                                (uint8_t)w->what,
                                (uint8_t)outcome,
                                (uint8_t)lane};
        stamp_put(w->ring, e);
    }
}

/* After each look in vain. `peer` as the communicator numbers it. Who is waited for may change on the way. */
TERN_DEVICE void stamp_wait_on(const struct op_frame *f, struct stamp_wait *w, int peer, int what,
                               uint64_t epoch)
{
    if (w->begin && (peer != w->peer || what != w->what)) {
        stamp_waited(f, w, 0, STAMP_CAME);
        w->begin = 0;
    }
    if (!w->begin) {
        struct stamp_wait begun = {f->state ? f->state->stamps : 0, clock_ns(), epoch, peer, what};
        *w = begun;
    }
}
#endif

#endif
