/* SPDX-License-Identifier: Apache-2.0
 *
 * A ring of requests from kernels to the thread of the host that serves them (proxy.h): one ring a (peer,
 * queue). It lies in host memory that kernels write.
 *
 *     kernel   reserve ticket n: compare-and-swap of the count, if slot n - depth is free
 *              fill slot n % depth; st.release.sys stamp = n
 *     host     ld.acquire stamp == n: the request is whole, no doorbell says so
 *              hand it to an engine; only when that has taken it: st.release consumed = n, the slot is free
 *              peer's memory has it, and all before it: st.release done = n
 *     kernel   ld.acquire.sys done >= n: flushed
 *
 * A ticket is the number of its request, from 1 on; waiting for one waits for all before it. A full ring makes
 * posters wait; a poster that gives up has reserved nothing, so it leaves no hole that would stop the others.
 * The word `done` carries its error in the high byte: every look at it sees both. */
#ifndef TERN_RING_H
#define TERN_RING_H

#include "net/amo.h"

enum { RING_PUT = 1, RING_PUT_INLINE, RING_GET, RING_ATOMIC, RING_SIGNAL };
enum { RING_SIGNAL_ADD = 0, RING_SIGNAL_SET = 1 };

/* One request: 64 bytes, so that two posters never share a line. */
struct ring_slot {
    uint64_t stamp;  /* ticket of the request that is whole in here; 0: none yet */
    uint64_t code;   /* RING_CODE */
    uint64_t remote; /* as the peer addresses it */
    uint64_t local;  /* as this rank addresses it: of a put or get; of the old value, 0 if nobody wants it */
    uint64_t bytes;  /* of a put or get */
    uint64_t value, compare;
    uint64_t unused;
};
#define RING_CODE(kind, amo, width) ((uint64_t)(kind) | (uint64_t)(amo) << 8 | (uint64_t)(width) << 16)
#define RING_CODE_KIND(code)        ((uint32_t)(code)&0xffu)
#define RING_CODE_AMO(code)         ((uint32_t)((code) >> 8) & 0xffu)
#define RING_CODE_WIDTH(code)       ((uint32_t)((code) >> 16) & 0xffu)

/* What the host raises, in host memory; kernels read. A line each. */
struct ring_words {
    uint64_t consumed; /* requests whose slots are free again */
    uint64_t pad[7];
    uint64_t done; /* RING_DONE_COUNT requests have completed; RING_DONE_SYNDROME is why no more will */
    uint64_t more_pad[7];
};
#define RING_DONE_COUNT(done)    ((done)&0xffffffffffffffull)
#define RING_DONE_SYNDROME(done) ((uint32_t)((done) >> 56))

/* What posters share, in device memory. */
struct ring_state {
    uint64_t reserved; /* tickets given out */
    uint64_t room;     /* tickets up to here have a free slot, as somebody saw */
};

/* The view of a ring that kernels get. Plain data. */
struct net_ring {
    struct ring_slot *slots;
    const struct ring_words *words;
    struct ring_state *state;
    const uint64_t *abort; /* not 0: every wait ends */
    uint64_t timeout_ns;   /* of a wait for a free slot */
    uint32_t depth;        /* slots; a power of two */
    int32_t peer, queue;
};

/* How a wait ended; RING_FAILED has the syndrome (SYNDROME_* of mlx5_cqe.h) in bits 8 to 15. After that the
 * ring takes requests and drops them: nothing completes any more. */
enum { RING_COMPLETE = 0, RING_FAILED = 1, RING_ABORTED = 2, RING_EXPIRED = 3 };
/* The ticket of a request that was not posted: no slot became free. Flushing it says why. */
#define RING_REFUSED (~0ull)
#define RING_NEVER   (~0ull) /* a deadline */

struct ring_patience {
    uint64_t deadline; /* of clock_ns */
    uint32_t looks;
};

/* After a look that found nothing: RING_COMPLETE to look again. */
TERN_DEVICE uint32_t ring_patient(const struct net_ring *r, struct ring_patience *w)
{
    w->looks++;
    spin();
    if (w->looks % 64 != 0) {
        return RING_COMPLETE;
    }
    if (ld_relaxed_sys_u64(r->abort) != 0) {
        return RING_ABORTED;
    }
    return w->deadline != RING_NEVER && clock_ns() > w->deadline ? RING_EXPIRED : RING_COMPLETE;
}

/* Whether the slot of the request after `reserved` others is free. Host memory is far away from a GPU: it is
 * asked only when what somebody saw earlier is used up. */
TERN_DEVICE int ring_has_room(const struct net_ring *r, uint64_t reserved)
{
    uint64_t room;
    /* Pairs with the release below in another thread, and through it with the host's release of `consumed`:
     * it has read the slot's old request. */
    if (reserved < ld_acquire_sys_u64(&r->state->room)) {
        return 1;
    }
    /* Pairs with the host's release in raise_consumed (proxy_ring.c), likewise. */
    room = ld_acquire_sys_u64(&r->words->consumed) + r->depth;
    if (reserved >= room) {
        return 0;
    }
    /* Pairs with the acquire above. A lower value may overwrite a higher one: then the host is asked again. */
    st_release_sys_u64(&r->state->room, room);
    return 1;
}

/* A ticket whose slot this thread may fill, or RING_REFUSED. */
TERN_DEVICE uint64_t ring_reserve(const struct net_ring *r)
{
    struct ring_patience patience = {RING_NEVER, 0};
    for (;;) {
        uint64_t reserved = ld_relaxed_sys_u64(&r->state->reserved);
        if (ring_has_room(r, reserved)) {
            /* Pairs with itself in other posters: each ticket has one owner. */
            if (atom_cas_acqrel_gpu_u64(&r->state->reserved, reserved, reserved + 1) == reserved) {
                return reserved + 1;
            }
            continue; /* another poster was faster */
        }
        if (patience.deadline == RING_NEVER) {
            patience.deadline = clock_ns() + r->timeout_ns;
        }
        if (ring_patient(r, &patience) != RING_COMPLETE) {
            return RING_REFUSED;
        }
    }
}

/* The request's ticket. What this thread wrote, and what it was ordered after, precedes the request. */
TERN_DEVICE uint64_t ring_post(const struct net_ring *r, const struct ring_slot *request)
{
    uint64_t ticket = ring_reserve(r);
    struct ring_slot *slot = &r->slots[(ticket - 1) & (r->depth - 1)];
    if (ticket == RING_REFUSED) {
        return ticket;
    }
    slot->code = request->code;
    slot->remote = request->remote;
    slot->local = request->local;
    slot->bytes = request->bytes;
    slot->value = request->value;
    slot->compare = request->compare;
    /* Pairs with the acquire in peek (proxy_ring.c): the host sees the request whole, and the local bytes as
     * they are to be sent. */
    st_release_sys_u64(&slot->stamp, ticket);
    return ticket;
}

/* Asynchronous; the local bytes are the host's until the ticket is flushed. Puts have no order among
 * themselves. */
TERN_DEVICE uint64_t ring_put(const struct net_ring *r, uint64_t remote, const void *local, uint64_t bytes)
{
    struct ring_slot q = {0, RING_CODE(RING_PUT, 0, 0), remote, (uint64_t)(uintptr_t)local, bytes, 0, 0, 0};
    return ring_post(r, &q);
}

/* 4 or 8 bytes of `value`, to an address that is a multiple of as many. */
TERN_DEVICE uint64_t ring_put_inline(const struct net_ring *r, uint64_t remote, uint64_t value,
                                     uint32_t width)
{
    struct ring_slot q = {0, RING_CODE(RING_PUT_INLINE, NET_AMO_SET, width), remote, 0, width, value, 0, 0};
    return ring_post(r, &q);
}

/* The bytes are at `local` once the ticket is flushed. */
TERN_DEVICE uint64_t ring_get(const struct net_ring *r, void *local, uint64_t remote, uint64_t bytes)
{
    struct ring_slot q = {0, RING_CODE(RING_GET, 0, 0), remote, (uint64_t)(uintptr_t)local, bytes, 0, 0, 0};
    return ring_post(r, &q);
}

/* NET_AMO_* on a word of 4 or 8 bytes, after this ring's earlier puts, gets and atomics. The old value is at
 * `result`, as `width` bytes, once the ticket is flushed; NULL: nobody asks. */
TERN_DEVICE uint64_t ring_atomic(const struct net_ring *r, uint64_t remote, uint32_t amo, uint32_t width,
                                 uint64_t value, uint64_t compare, void *result)
{
    struct ring_slot q = {
        0, RING_CODE(RING_ATOMIC, amo, width), remote, (uint64_t)(uintptr_t)result, width, value, compare, 0};
    return ring_post(r, &q);
}

/* A word of 8 bytes, after this ring's earlier puts, gets and atomics. */
TERN_DEVICE uint64_t ring_signal(const struct net_ring *r, uint64_t remote, uint64_t value, uint32_t how)
{
    uint32_t amo = how == RING_SIGNAL_SET ? NET_AMO_SET : NET_AMO_ADD;
    struct ring_slot q = {0, RING_CODE(RING_SIGNAL, amo, 8), remote, 0, 8, value, 0, 0};
    return ring_post(r, &q);
}

/* Everything posted so far, by any thread whose posts this one is ordered after: for ring_flush. */
TERN_DEVICE uint64_t ring_posted(const struct net_ring *r) { return ld_relaxed_sys_u64(&r->state->reserved); }

/* Until request `until` and all before it are complete, here and at the peer, or `deadline` of clock_ns. */
TERN_DEVICE uint32_t ring_flush(const struct net_ring *r, uint64_t until, uint64_t deadline)
{
    struct ring_patience patience = {deadline, 0};
    for (;;) {
        /* Pairs with the host's release in raise_done (proxy_ring.c): what a get or an atomic brought is
         * here. */
        uint64_t done = ld_acquire_sys_u64(&r->words->done);
        uint32_t end = RING_COMPLETE;
        if (RING_DONE_COUNT(done) >= until) {
            return RING_COMPLETE;
        }
        if (RING_DONE_SYNDROME(done) != 0) {
            return RING_FAILED | RING_DONE_SYNDROME(done) << 8;
        }
        if (until == RING_REFUSED) {
            return ld_relaxed_sys_u64(r->abort) != 0 ? RING_ABORTED : RING_EXPIRED;
        }
        end = ring_patient(r, &patience);
        if (end != RING_COMPLETE) {
            return end;
        }
    }
}

#endif
