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
 * A ticket (net_wait.h) is the number of its request, from 1 on; waiting for one waits for all before it. A
 * full ring makes posters wait; a poster that gives up has reserved nothing, so it leaves no hole that would
 * stop the others. The word `done` carries its error in the high byte: every look at it sees both.
 *
 * The operations have the shapes of a queue pair's (queue_ops.h). */
#ifndef TERN_RING_H
#define TERN_RING_H

#include "net/amo.h"
#include "net/net_wait.h"

enum { RING_PUT = 1, RING_PUT_INLINE, RING_GET, RING_ATOMIC };
enum { RING_NUM_RESULTS = 64 }; /* old values that are on their way */

/* One request: 64 bytes, so that two posters never share a line. */
struct ring_slot {
    uint64_t stamp;  /* ticket of the request that is whole in here; 0: none yet */
    uint64_t code;   /* ring_code */
    uint64_t remote; /* as the peer addresses it */
    uint64_t local;  /* put, get: as this rank addresses it; atomic: 1 + the result word, 0: nobody asks */
    uint64_t bytes;
    uint64_t value, compare;
    uint64_t reserved; /* 0 */
};
TERN_DEVICE uint64_t ring_code(uint32_t kind, uint32_t amo, uint32_t width)
{
    return (uint64_t)kind | (uint64_t)amo << 8 | (uint64_t)width << 16;
}
TERN_DEVICE uint32_t ring_code_kind(uint64_t code) { return (uint32_t)code & 0xffu; }
TERN_DEVICE uint32_t ring_code_amo(uint64_t code) { return (uint32_t)(code >> 8) & 0xffu; }
TERN_DEVICE uint32_t ring_code_width(uint64_t code) { return (uint32_t)(code >> 16) & 0xffu; }

/* What the host raises, in host memory; kernels read. A line each. */
struct ring_words {
    uint64_t consumed; /* requests whose slots are free again */
    uint64_t pad[7];
    uint64_t done; /* ring_done_count requests have completed; ring_done_syndrome is why no more will */
    uint64_t more_pad[7];
    uint64_t results[RING_NUM_RESULTS];
};
TERN_DEVICE uint64_t ring_done_count(uint64_t done) { return done & 0xffffffffffffffull; }
TERN_DEVICE uint32_t ring_done_syndrome(uint64_t done) { return (uint32_t)(done >> 56); }

/* What posters share, in device memory. */
struct ring_state {
    uint64_t reserved;     /* tickets given out */
    uint64_t room;         /* tickets up to here have a free slot, as somebody saw */
    uint64_t results_busy; /* bit i: result word i is in use */
    uint64_t pad;
    /* Of a result word whose wait was given up: the ticket after which the host writes it no more; else 0. */
    uint64_t result_until[RING_NUM_RESULTS];
};

/* The view of a ring that kernels get. Plain data. After an error it takes requests and drops them: nothing
 * completes any more. */
struct net_ring {
    struct ring_slot *slots;
    const struct ring_words *words;
    struct ring_state *state;
    const uint64_t *abort; /* not 0: every wait ends */
    const uint64_t *lost;  /* peers that were lost so far, of all rings of this rank */
    uint64_t timeout_ns;   /* of a wait for a free slot */
    uint32_t depth;        /* slots; a power of two */
    int32_t peer, queue;
};

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
    /* Pairs with the acquire above. Where a lower value overwrites a higher one, the host is asked again. */
    st_release_sys_u64(&r->state->room, room);
    return 1;
}

/* A ticket whose slot this thread may fill, or a refused one. */
TERN_DEVICE uint64_t ring_reserve(const struct net_ring *r)
{
    struct net_patience patience = net_patience_of(r->abort, TERN_NET_NO_DEADLINE);
    uint32_t status;
    for (;;) {
        uint64_t reserved = ld_relaxed_sys_u64(&r->state->reserved);
        if (ring_has_room(r, reserved)) {
            /* Pairs with itself in other posters: each ticket has one owner. */
            if (atom_cas_acqrel_gpu_u64(&r->state->reserved, reserved, reserved + 1) == reserved) {
                return reserved + 1;
            }
            continue; /* another poster was faster */
        }
        if (patience.looks == 0) {
            patience.deadline_ns = clock_ns() + r->timeout_ns;
        }
        status = net_patient(&patience);
        if (status != NET_OK) {
            return net_ticket_refused(status);
        }
    }
}

/* The request's ticket. What this thread wrote, and what it was ordered after, precedes the request. */
TERN_DEVICE uint64_t ring_post(const struct net_ring *r, const struct ring_slot *request)
{
    uint64_t ticket = ring_reserve(r);
    struct ring_slot *slot = &r->slots[(ticket - 1) & (r->depth - 1)];
    if (net_ticket_status(ticket) != NET_OK) {
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

/* The local bytes are the host's until the ticket is flushed. Puts and gets have no order among themselves.
 * To move no bytes is nothing: ticket 0. */
TERN_DEVICE uint64_t ring_put(const struct net_ring *r, uint64_t remote, uint64_t local, uint64_t bytes)
{
    struct ring_slot q = {0, ring_code(RING_PUT, 0, 0), remote, local, bytes, 0, 0, 0};
    return bytes != 0 ? ring_post(r, &q) : 0;
}

TERN_DEVICE uint64_t ring_get(const struct net_ring *r, uint64_t local, uint64_t remote, uint64_t bytes)
{
    struct ring_slot q = {0, ring_code(RING_GET, 0, 0), remote, local, bytes, 0, 0, 0};
    return bytes != 0 ? ring_post(r, &q) : 0;
}

/* 4 or 8 bytes of `value`, to an address that is a multiple of as many. */
TERN_DEVICE uint64_t ring_put_inline(const struct net_ring *r, uint64_t remote, uint64_t value,
                                     uint32_t width)
{
    struct ring_slot q = {0, ring_code(RING_PUT_INLINE, NET_AMO_SET, width), remote, 0, width, value, 0, 0};
    return ring_post(r, &q);
}

/* result: 1 + the word for the old value, or 0. */
TERN_DEVICE uint64_t ring_post_amo(const struct net_ring *r, uint64_t remote, uint32_t amo, uint32_t width,
                                   uint64_t value, uint64_t compare, uint64_t result)
{
    struct ring_slot q = {0, ring_code(RING_ATOMIC, amo, width), remote, result, width, value, compare, 0};
    return ring_post(r, &q);
}

/* NET_AMO_* on a word of 4 or 8 bytes, after all that was handed over to this ring before, by this thread and
 * those it has synchronised with. */
TERN_DEVICE uint64_t ring_atomic(const struct net_ring *r, uint64_t remote, uint32_t amo, uint32_t width,
                                 uint64_t value, uint64_t compare)
{
    return ring_post_amo(r, remote, amo, width, value, compare, 0);
}

/* How a wait goes on at a look at `done`: not, where nothing more will complete. */
TERN_DEVICE uint32_t ring_patient(uint64_t done, struct net_patience *patience)
{
    return ring_done_syndrome(done) != 0 ? net_failed(ring_done_syndrome(done)) : net_patient(patience);
}

/* Until the request and all before it are complete, here and at the peer. */
TERN_DEVICE uint32_t ring_flush(const struct net_ring *r, uint64_t ticket, uint64_t deadline_ns)
{
    struct net_patience patience = net_patience_of(r->abort, deadline_ns);
    uint32_t status = net_ticket_status(ticket);
    while (status == NET_OK) {
        /* Pairs with the host's release in raise_done (proxy_ring.c): what a get or an atomic brought is
         * here. */
        uint64_t done = ld_acquire_sys_u64(&r->words->done);
        if (ring_done_count(done) >= ticket) {
            break;
        }
        status = ring_patient(done, &patience);
    }
    return status;
}

/* Everything handed over so far, by this thread and those it has synchronised with. */
TERN_DEVICE uint32_t ring_flush_all(const struct net_ring *r, uint64_t deadline_ns)
{
    return ring_flush(r, ld_relaxed_sys_u64(&r->state->reserved), deadline_ns);
}

/* One whose wait was given up, and which the host has written since; 0: none. */
TERN_DEVICE int ring_reclaim_result(const struct net_ring *r, uint32_t *word)
{
    /* Pairs with the host's release in raise_done (proxy_ring.c): it is done with the words. */
    uint64_t done = ring_done_count(ld_acquire_sys_u64(&r->words->done));
    for (uint32_t i = 0; i < RING_NUM_RESULTS; i++) {
        uint64_t until = ld_relaxed_sys_u64(&r->state->result_until[i]);
        /* Pairs with itself, in ring_leave_result and in others who look for a word: one gets it. */
        if (until != 0 && done >= until &&
            atom_cas_acqrel_gpu_u64(&r->state->result_until[i], until, 0) == until) {
            *word = i;
            return 1;
        }
    }
    return 0;
}

/* The word stays taken, as the host may write it yet, until it is needed and `until` is done. */
TERN_DEVICE void ring_leave_result(const struct net_ring *r, uint32_t word, uint64_t until)
{
    /* Pairs with ring_reclaim_result. */
    (void)atom_cas_acqrel_gpu_u64(&r->state->result_until[word], 0, until);
}

/* A word for an old value, in *word. On a ring that has failed those of given-up waits are never free again:
 * who finds no other hears of the failure. */
TERN_DEVICE uint32_t ring_take_result(const struct net_ring *r, uint64_t deadline_ns, uint32_t *word)
{
    struct net_patience w = net_patience_of(r->abort, deadline_ns);
    for (;;) {
        uint64_t busy = ld_relaxed_sys_u64(&r->state->results_busy), free = ~busy;
        uint32_t low = (uint32_t)free, status;
        *word = low != 0 ? (uint32_t)TERN_FFS(low) - 1 : 31 + (uint32_t)TERN_FFS((uint32_t)(free >> 32));
        /* Pairs with itself in ring_give_result: what was in the word has been read. */
        if (free != 0 &&
            atom_cas_acqrel_gpu_u64(&r->state->results_busy, busy, busy | 1ull << *word) == busy) {
            return NET_OK;
        }
        if (free == 0 && ring_reclaim_result(r, word)) {
            return NET_OK;
        }
        status = free != 0 ? (uint32_t)NET_OK : ring_patient(ld_relaxed_sys_u64(&r->words->done), &w);
        if (status != NET_OK) {
            return status;
        }
    }
}

TERN_DEVICE void ring_give_result(const struct net_ring *r, uint32_t word)
{
    uint64_t busy, seen = ld_relaxed_sys_u64(&r->state->results_busy);
    do {
        busy = seen;
        /* Pairs with itself in ring_take_result. */
        seen = atom_cas_acqrel_gpu_u64(&r->state->results_busy, busy, busy & ~(1ull << word));
    } while (seen != busy);
}

/* As ring_atomic, and waits for the old value. */
TERN_DEVICE uint32_t ring_fetch(const struct net_ring *r, uint64_t remote, uint32_t amo, uint32_t width,
                                uint64_t value, uint64_t compare, uint64_t deadline_ns, uint64_t *old)
{
    uint32_t word, status = ring_take_result(r, deadline_ns, &word);
    uint64_t ticket;
    if (status != NET_OK) {
        return status;
    }
    ticket = ring_post_amo(r, remote, amo, width, value, compare, 1 + word);
    if (net_ticket_status(ticket) != NET_OK) {
        ring_give_result(r, word);
        return net_ticket_status(ticket);
    }
    status = ring_flush(r, ticket, deadline_ns);
    if (status == NET_OK) {
        *old = ld_relaxed_sys_u64(&r->words->results[word]); /* ring_flush acquired it */
        ring_give_result(r, word);
    } else {
        ring_leave_result(r, word, ticket);
    }
    return status;
}

#endif
