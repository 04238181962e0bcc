/* SPDX-License-Identifier: Apache-2.0
 *
 * What moves the counters of a queue pair. Any threads of one device may use a queue at once.
 *
 *     queue_reserve   slots, once there is room                  may wait for the NIC
 *       build entries
 *     queue_submit    in its turn, the order of reservation;     waits for threads that reserved before
 *                     rings, or leaves it to whoever reserved
 *                     after it
 *     queue_flush     until the NIC has completed a ticket       may wait for the NIC
 *
 * Between reserve and submit a thread does nothing that could wait for anything: then the chain of threads
 * that wait in queue_submit always moves, and needs neither abort word nor deadline. Slots are given only
 * when they are free, so that a wait for room which is given up leaves the queue as it was, and so that
 * whoever reserved last is on its way to the doorbell, never itself waiting for completions that nobody asked
 * for.
 *
 * The turn is the lock. One thread at a time finds `ready` where its slots begin, since no two were given the
 * same ones, and until it moves `ready` on record and doorbell are its own. So they never go backwards, and
 * nobody compares and swaps for them.
 *
 * Memory order. An entry's stores come before the reading NIC's loads by: submit's store of `ready`
 * (release), the next turn's load of it (acquire), from turn to turn up to one that rings, fence, record,
 * fence, doorbell; where there is no record, fence, doorbell. A turn's record and doorbell come before the
 * next ones by the same store and load. A slot's reading by the NIC comes before the next store to it by: the
 * completion's last word, poll's acquire of it, a poll's max on `consumed` (release), reserve's load of
 * `consumed` (acquire). Scope is the system's where a NIC is at the other end, the device's where a thread
 * is: order is made of steps, each of which need only reach the two that take it. */
#ifndef TERN_QUEUE_CORE_H
#define TERN_QUEUE_CORE_H

#include "net/mlx5_cqe.h"
#include "net/queue.h"

/* A program that is wrong on purpose, for test/tsan_awake.sh. */
#ifdef TERN_WEAKEN_TURN
#define TERN_QUEUE_END_TURN(p, v) st_relaxed_sys_u64(p, v)
#else
/* Pairs with queue_turn_of's load in the thread that reserved next: what all threads wrote up to here is
 * passed on, and this one's doorbell comes before its own. */
#define TERN_QUEUE_END_TURN(p, v) st_release_gpu_u64(p, v)
#endif

/* ---- Completions ---- */

TERN_DEVICE uint32_t queue_error_status(uint64_t error)
{
    return error == 0 ? (uint32_t)NET_OK : net_failed(queue_error_syndrome(error));
}

/* The first error that any thread sees is kept: entries behind a failed one complete as flushed, and in a
 * collapsed queue they overwrite what says why. */
TERN_DEVICE uint32_t queue_keep_error(const struct net_queue *q, const uint32_t *cqe, uint32_t tail)
{
    /* Relaxed: poll's acquire of the tail ordered them, and a later error may overwrite them meanwhile. */
    uint32_t why = ld_relaxed_sys_u32(cqe + CQE_WORD_SYNDROME), who = ld_relaxed_sys_u32(cqe + CQE_WORD_QPN);
    uint64_t error = TERN_QUEUE_ERROR_SEEN | (uint64_t)cqe_wqe_opcode(who) << 32 | cqe_tail_idx(tail) << 16 |
                     cqe_vendor_syndrome(why) << 8 | cqe_syndrome(why);
    /* Pairs with itself in other threads: one of them is first. */
    uint64_t first = atom_cas_acqrel_gpu_u64(&q->state->error, 0, error);
    if (first == 0 && q->lost != NULL && net_syndrome_is_lost(queue_error_syndrome(error))) {
        red_add_release_sys_u64(q->lost, 1); /* pairs with the acquire in barrier_await (barrier.h) */
    }
    return queue_error_status(first != 0 ? first : error);
}

/* All completions overwrite one entry, so that only the latest can be seen, again and again. */
TERN_DEVICE uint32_t queue_poll_collapsed(const struct net_queue *q)
{
    /* Before the completion is read: that one can then only be ahead of it. Acquire pairs with the max below,
     * in the thread that saw an earlier completion: the one read here is not older. */
    uint64_t consumed = ld_acquire_sys_u64(&q->state->consumed);
    /* One load gives index and opcode of one completion. Pairs with the NIC's store of the word, which comes
     * last: what the NIC has read and written for this entry lies before. */
    uint32_t tail = ld_acquire_sys_u32(q->cqes + CQE_WORD_TAIL), ahead;
    if (cqe_tail_opcode(tail) == CQE_INVALID) {
        return NET_OK;
    }
    if (cqe_is_error(tail)) {
        return queue_keep_error(q, q->cqes, tail);
    }
    /* No more than a ring is in flight. More than that: others went on since `consumed` was read, and the
     * next look will tell. 65536 blocks or more since then: too little is told, never too much. */
    ahead = (cqe_tail_idx(tail) + 1u - (uint32_t)consumed) & 0xffffu;
    if (ahead - 1u < wqe_ring_blocks(&q->ring)) {
        /* Pairs with the acquires in queue_look_at, queue_near_reserve and queue_flush. */
        red_max_release_gpu_u64(&q->state->consumed, consumed + ahead);
    }
    return NET_OK;
}

/* Every completion is there once, and whoever takes it has to tell what it says. */
TERN_DEVICE uint32_t queue_poll_ring(const struct net_queue *q)
{
    struct net_queue_state *s = q->state;
    uint64_t taken = ld_acquire_sys_u64(&s->completions); /* pairs with the CAS below */
    /* After `taken`, before the completion: if this thread takes it, nothing behind it was consumed by then.
     * And not more than two rings lie between: the completion before it was taken by then, so all that its
     * entry had waited for was consumed. */
    uint64_t consumed = ld_acquire_sys_u64(&s->consumed); /* pairs with the max below */
    const uint32_t *cqe = q->cqes + (taken & (q->num_cqes - 1u)) * CQE_WORDS;
    /* Pairs with the NIC's store, as in a collapsed queue. */
    uint32_t tail = ld_acquire_sys_u32(cqe + CQE_WORD_TAIL), ahead;
    if (!cqe_is_written(tail, (uint32_t)taken, q->num_cqes)) {
        return NET_OK;
    }
    if (cqe_is_error(tail)) {
        return queue_keep_error(q, cqe, tail);
    }
    /* If another thread was faster the slot may even hold a later completion. */
    if (atom_cas_acqrel_gpu_u64(&s->completions, taken, taken + 1) == taken) { /* pairs with the load above */
        ahead = (cqe_tail_idx(tail) + 1u - (uint32_t)consumed) & 0xffffu;
        red_max_release_gpu_u64(&s->consumed, consumed + ahead); /* as in a collapsed queue */
    }
    return NET_OK;
}

/* One look at the completion queue. Whatever entry an error belongs to, it ends every wait. */
TERN_DEVICE uint32_t queue_poll(const struct net_queue *q)
{
    uint64_t error = ld_relaxed_sys_u64(&q->state->error);
    if (error != 0) {
        return queue_error_status(error);
    }
    return q->flags & NET_QUEUE_CQ_RING ? queue_poll_ring(q) : queue_poll_collapsed(q);
}

/* ---- Doorbell ---- */

/* Up to `next`, by the thread whose turn it is. */
TERN_DEVICE void queue_tell(const struct queue_fixed *q, uint64_t next)
{
    /* With the store behind it, pairs with the NIC's (softnic_look) or the host's acquire: all that threads
     * wrote up to `next`, entries and data, can be read. */
    fence_acqrel_sys();
    if (q->flags & NET_QUEUE_RELAY) {
        st_fenced_sys_u64(q->relay, next); /* pairs with the acquire in terni_relay_step */
        return;
    }
    if (!(q->flags & NET_QUEUE_NO_RECORD)) {
        st_fenced_sys_u32(q->record + DOORBELL_RECORD_SEND, doorbell_record((uint32_t)next));
        /* The record first, so that a NIC that is told to look finds it; pairs with its reading of the
         * register. */
        fence_acqrel_sys();
    }
    /* Queue pairs share registers, and lanes ring for theirs at the same time. */
    st_register_sys_u64(q->doorbell, doorbell_value(q->qpn, (uint32_t)next));
}

/* ---- Slots ---- */

/* Of a wait that is given none. */
TERN_DEVICE uint64_t queue_deadline(const struct net_queue *q)
{
    return q->timeout_ns == TERN_NET_NO_DEADLINE ? TERN_NET_NO_DEADLINE : clock_ns() + q->timeout_ns;
}

/* How far a queue is, as one look has it. */
struct queue_look {
    uint64_t error, reserved, consumed;
};

TERN_DEVICE struct queue_look queue_look_at(const struct net_queue_state *s)
{
    /* All three before any is looked at: they are on their way together. */
    struct queue_look k;
    k.error = ld_relaxed_sys_u64(&s->error);
    k.reserved = ld_relaxed_sys_u64(&s->reserved);
    /* Pairs with the polls' max: the NIC has read what the slots held. */
    k.consumed = ld_acquire_sys_u64(&s->consumed);
    return k;
}

/* The first of so many slots, which are this thread's to write and to submit, without waiting for anything;
 * or a refused ticket. `s`: where its counters are; `room`: blocks of its
 * ring; `k`: a first look at the counters.
 *
 * The swap is relaxed. It only tells apart threads that saw the same `reserved`, and what follows relies on
 * nothing that another one did before its own: that the slots may be written comes from `consumed`, which was
 * acquired after `reserved` was seen and has only grown since, and entries are passed on by `ready`. */
TERN_DEVICE uint64_t queue_reserve_from(const struct net_queue *q, struct net_queue_state *s, uint32_t room,
                                        uint32_t blocks, struct queue_look k)
{
    struct net_patience w = net_patience_of(q->abort, 0);
    uint32_t status = blocks > room ? (uint32_t)NET_REFUSED : (uint32_t)NET_OK;
    while (status == NET_OK) {
        if (TERN_RARE(k.error != 0)) {
            status = queue_error_status(k.error);
        } else if (TERN_RARE(k.reserved + blocks - k.consumed > room)) {
            if (w.deadline_ns == 0) {
                w.deadline_ns = queue_deadline(q);
            }
            status = queue_poll(q);
            status = status == NET_OK ? net_patient(&w) : status;
        } else if (atom_cas_relaxed_gpu_u64(&s->reserved, k.reserved, k.reserved + blocks) == k.reserved) {
            return k.reserved;
        }
        k = queue_look_at(s);
    }
    return net_ticket_refused(status);
}

TERN_DEVICE uint64_t queue_reserve(const struct net_queue *q, uint32_t blocks)
{
    const uint32_t room = wqe_ring_blocks(&q->ring);
    return queue_reserve_from(q, q->state, room, blocks, queue_look_at(q->state));
}

/* Whose turn it is, after one has reserved. */
struct queue_turn {
    uint64_t reserved, ready;
};

TERN_DEVICE struct queue_turn queue_turn_of(const struct net_queue_state *s)
{
    /* Together, each time: both are on their way at once, and who has waited knows of those that came
     * meanwhile. */
    struct queue_turn t;
    t.reserved = ld_relaxed_sys_u64(&s->reserved);
    /* Pairs with the store at the end of queue_submit_from, by the thread that reserved before. */
    t.ready = ld_acquire_sys_u64(&s->ready);
    return t;
}

/* The entries from `first` on are written, by this thread, which reserved them, or by others that have
 * synchronised with it.
 *
 * Somebody always rings. `reserved` is `end` or more for whoever reserved these slots, as no thread reads a
 * word older than what it has stored. If it is more, a thread has reserved behind and will be here, too; if
 * it is `end`, this one rings, even if that is old by now, which costs one more doorbell. So the last to
 * reserve rings for all. This needs no order between the load of `reserved` and others, and `t`, the first
 * look, may be from any time since the reservation. */
TERN_DEVICE void queue_submit_from(const struct queue_fixed *q, uint64_t first, uint32_t blocks,
                                   struct queue_turn t)
{
    const uint64_t end = first + blocks;
    const int crosses = (first ^ end) >= q->batch_blocks;
    while (t.ready != first) {
        spin();
        t = queue_turn_of(q->state);
    }
    if (t.reserved == end || crosses) {
        queue_tell(q, end);
    }
    TERN_QUEUE_END_TURN(&q->state->ready, end);
}

TERN_DEVICE void queue_submit(const struct queue_fixed *q, uint64_t first, uint32_t blocks)
{
    queue_submit_from(q, first, blocks, queue_turn_of(q->state));
}

/* ---- Waiting ---- */

/* Until the ticket's operation and everything before it in this queue is complete. deadline_ns: of
 * clock_ns(), or TERN_NET_NO_DEADLINE. */
TERN_DEVICE uint32_t queue_flush(const struct net_queue *q, uint64_t ticket, uint64_t deadline_ns)
{
    struct net_queue_state *s = q->state;
    struct net_patience w = net_patience_of(q->abort, deadline_ns);
    uint32_t status = net_ticket_status(ticket);
    while (status == NET_OK) {
        /* Pairs with the polls' max: what the NIC wrote for these operations can be read. */
        if (ld_acquire_sys_u64(&s->consumed) >= ticket) {
            return NET_OK;
        }
        status = queue_poll(q);
        if (status == NET_OK) {
            status = net_patient(&w);
        }
    }
    return status;
}

/* Everything that was submitted before, by this thread and those it has synchronised with. */
TERN_DEVICE uint32_t queue_flush_all(const struct net_queue *q, uint64_t deadline_ns)
{
    return queue_flush(q, ld_relaxed_sys_u64(&q->state->ready), deadline_ns);
}

#endif
