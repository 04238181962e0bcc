/* SPDX-License-Identifier: Apache-2.0
 *
 * What moves the counters of a queue pair. Any threads of one device may use a queue at once.
 *
 *     queue_reserve     slots, once there is room                      may wait for the NIC
 *       build entries
 *     queue_submit      in the order of reservation; rings, or         waits for threads that reserved earlier
 *                       leaves it to whoever reserved after this
 *     queue_flush       until the NIC has completed a ticket           may wait for the NIC
 *
 * Between reserve and submit a thread does nothing that could wait for anything: then the chain of threads
 * that wait in queue_submit always moves, and needs neither abort word nor deadline. Slots are given only when
 * they are free, so that a wait for room which is given up leaves the queue as it was, and so that whoever
 * reserved last is on its way to the doorbell, never itself waiting for completions that nobody asked for.
 *
 * Memory order. An entry's stores come before the reading NIC's loads by: submit's CAS on `ready` (release),
 * ring's load of `ready` (acquire), fence, record, fence, doorbell. A slot's reading by the NIC comes before
 * the next store to it by: the completion's last word, poll's acquire of it, poll's max on `consumed`
 * (release), reserve's load of `consumed` (acquire). Scope is the system's where a NIC is at the other end,
 * the device's where a thread is. */
#ifndef TERN_QUEUE_CORE_H
#define TERN_QUEUE_CORE_H

#include "net/mlx5_cqe.h"
#include "net/queue.h"

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
    uint64_t error = QUEUE_ERROR_SEEN | (uint64_t)cqe_wqe_opcode(who) << 32 | cqe_tail_idx(tail) << 16 |
                     cqe_vendor_syndrome(why) << 8 | cqe_syndrome(why);
    uint64_t first = atom_cas_acqrel_gpu_u64(&q->state->error, 0, error);
    return queue_error_status(first != 0 ? first : error);
}

/* One look at the completion queue. Whatever entry an error belongs to, it ends every wait. */
TERN_DEVICE uint32_t queue_poll(const struct net_queue *q)
{
    struct net_queue_state *s = q->state;
    uint64_t error = ld_relaxed_sys_u64(&s->error);
    uint32_t ring = q->flags & NET_QUEUE_CQ_RING, tail, ahead;
    const uint32_t *cqe = q->cqes;
    uint64_t consumed, taken = 0;
    if (error != 0) {
        return queue_error_status(error);
    }
    /* Before the completion is read: what it tells can then only be ahead of it. Acquire pairs with the max
     * below, in the thread that saw an earlier completion: the tail read here is not older than that. */
    consumed = ld_acquire_sys_u64(&s->consumed);
    if (ring) {
        taken = ld_acquire_sys_u64(&s->completions);
        cqe += (taken & (q->num_cqes - 1u)) * CQE_WORDS;
    }
    /* One load gives index, opcode and owner of one completion. Pairs with the NIC's store of the word, which
     * comes last: what the NIC has read and written for this entry lies before. */
    tail = ld_acquire_sys_u32(cqe + CQE_WORD_TAIL);
    if (ring ? !cqe_is_written(tail, (uint32_t)taken, q->num_cqes) : cqe_tail_opcode(tail) == CQE_INVALID) {
        return NET_OK;
    }
    if (cqe_is_error(tail)) {
        return queue_keep_error(q, cqe, tail);
    }
    if (ring && atom_cas_acqrel_gpu_u64(&s->completions, taken, taken + 1) != taken) {
        return NET_OK; /* another thread has taken this entry, and the slot may hold a later one */
    }
    /* 16 bits tell how far ahead, since no more than a ring is in flight; anything else is a completion that was
     * there before. Too little is told, never too much, if others consumed 65536 blocks meanwhile. */
    ahead = (cqe_tail_idx(tail) + 1u - (uint32_t)consumed) & 0xffffu;
    if (ahead - 1u < wqe_ring_blocks(&q->ring)) {
        red_max_release_gpu_u64(&s->consumed, consumed + ahead);
    }
    return NET_OK;
}

/* ---- Doorbell ---- */

/* Everything that is ready, by the thread that has the lock. */
TERN_DEVICE void queue_tell(const struct net_queue *q, uint64_t next)
{
    fence_acqrel_sys();
    if (q->flags & NET_QUEUE_RELAY) {
        st_fenced_sys_u64(q->relay, next); /* pairs with the acquire in terni_relay_step */
        return;
    }
    st_fenced_sys_u32(q->record + DOORBELL_RECORD_SEND, doorbell_record((uint32_t)next));
    /* The record first: a NIC that is told to look finds it. */
    fence_acqrel_sys();
    st_fenced_sys_u64(q->doorbell, doorbell_value(q->qpn, (uint32_t)next));
}

/* Until the NIC has been told of all entries before `until`, which must be ready. The lock keeps record and
 * doorbell from going backwards; who holds it waits for nothing. */
TERN_DEVICE void queue_ring(const struct net_queue *q, uint64_t until)
{
    struct net_queue_state *s = q->state;
    while (ld_relaxed_sys_u64(&s->posted) < until) {
        if (atom_cas_acqrel_gpu_u32(&s->lock, 0, 1) == 0) {
            uint64_t ready = ld_acquire_sys_u64(&s->ready); /* pairs with queue_submit's CAS */
            if (ready > ld_relaxed_sys_u64(&s->posted)) {
                queue_tell(q, ready);
                st_relaxed_sys_u64(&s->posted, ready);
            }
            atom_cas_acqrel_gpu_u32(&s->lock, 1, 0);
        } else {
            spin();
        }
    }
}

/* ---- Slots ---- */

/* Of a wait that is given none. */
TERN_DEVICE uint64_t queue_deadline(const struct net_queue *q)
{
    return q->timeout_ns == NET_NO_DEADLINE ? NET_NO_DEADLINE : clock_ns() + q->timeout_ns;
}

/* NET_OK: the slots from *first on are this thread's to write and to submit, without waiting. */
TERN_DEVICE uint32_t queue_reserve(const struct net_queue *q, uint32_t blocks, uint64_t *first)
{
    struct net_queue_state *s = q->state;
    const uint32_t room = wqe_ring_blocks(&q->ring);
    struct net_patience w = net_patience_of(q->abort, 0);
    if (blocks > room) {
        return NET_REFUSED;
    }
    if (ld_relaxed_sys_u64(&s->error) != 0) {
        return queue_poll(q);
    }
    for (;;) {
        uint64_t reserved = ld_relaxed_sys_u64(&s->reserved);
        /* Pairs with queue_poll's max: the NIC has read what the slots held. */
        uint64_t consumed = ld_acquire_sys_u64(&s->consumed);
        uint32_t status;
        if (reserved + blocks - consumed <= room) {
            if (atom_cas_acqrel_gpu_u64(&s->reserved, reserved, reserved + blocks) == reserved) {
                *first = reserved;
                return NET_OK;
            }
            continue;
        }
        if (w.deadline_ns == 0) {
            w.deadline_ns = queue_deadline(q);
        }
        status = queue_poll(q);
        if (status == NET_OK) {
            status = net_patient(&w);
        }
        if (status != NET_OK) {
            return status;
        }
    }
}

/* The entries from `first` on are written. Threads that synchronised with this one may have written them. */
TERN_DEVICE void queue_submit(const struct net_queue *q, uint64_t first, uint32_t blocks)
{
    struct net_queue_state *s = q->state;
    uint64_t end = first + blocks;
    while (ld_relaxed_sys_u64(&s->ready) != first) {
        spin();
    }
    /* Alone here. Acquire: what earlier threads wrote is passed on to whoever rings. Release: so is this. */
    atom_cas_acqrel_gpu_u64(&s->ready, first, end);
    /* After the CAS: whoever reserves last finds nothing newer here, so that somebody always rings. */
    if (ld_relaxed_sys_u64(&s->reserved) == end || (first ^ end) >= q->batch_blocks) {
        queue_ring(q, end);
    }
}

/* ---- Waiting ---- */

/* Until the ticket's operation and everything before it in this queue is complete. deadline_ns: of clock_ns(),
 * or NET_NO_DEADLINE. */
TERN_DEVICE uint32_t queue_flush(const struct net_queue *q, uint64_t ticket, uint64_t deadline_ns)
{
    struct net_queue_state *s = q->state;
    struct net_patience w = net_patience_of(q->abort, deadline_ns);
    uint32_t status = net_ticket_status(ticket);
    while (status == NET_OK) {
        /* Pairs with queue_poll's max: what the NIC wrote for these operations can be read. */
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

/* The same for queues first, first + step, ... of num: all of them by one thread (0, 1), or shared out among
 * the threads of a warp, not more, since all that wait for one queue read the same words. The first failure, in
 * the order of the queues. */
TERN_DEVICE uint32_t queue_flush_each(const struct net_queue *queues, uint32_t num, uint32_t first,
                                      uint32_t step, uint64_t deadline_ns)
{
    uint32_t status = NET_OK;
    for (uint32_t i = first; i < num; i += step) {
        uint32_t one = queue_flush_all(&queues[i], deadline_ns);
        status = status == NET_OK ? one : status;
    }
    return status;
}

#endif
