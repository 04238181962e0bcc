/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations of a queue pair, each called by one thread unless it says otherwise. Remote addresses are the
 * peer's, local ones this GPU's; the ranges of the queue have their keys.
 *
 * All but queue_fetch only hand over: they return a ticket for queue_flush, and local memory is the NIC's
 * until then. They wait for room in the ring at most. To put or get no bytes is nothing: its ticket is 0, and
 * covers nothing that went before. A request that is longer than a message, or lies in several ranges,
 * becomes several messages; when one of them cannot be handed over, those before it were.
 *
 * In one queue writes and atomics take effect in the order in which they were handed over, except that a NIC
 * with adaptive routing lets writes pass each other: an atomic is what follows data safely, and so
 * signals are atomics. Between queues there is no order. Results of READs and atomics arrive whenever they
 * do, until flushed, and a READ may be done again until then: what changes its bytes meanwhile may be what it
 * gets. With adaptive routing a write may also pass an atomic or a READ that has no answer yet; a software
 * NIC lets one pass an atomic, too. */
#ifndef TERN_QUEUE_OPS_H
#define TERN_QUEUE_OPS_H

#include "net/queue_build.h"
#include "net/queue_core.h"

/* ---- Put and get ---- */

/* A message in a reservation of its own. */
TERN_DEVICE uint64_t queue_rdma(const struct net_queue *q, uint32_t opcode, const struct queue_piece *piece,
                                uint32_t dump)
{
    struct queue_fixed f;
    uint64_t first = queue_reserve(q, 1 + dump);
    if (net_ticket_status(first) != NET_OK) {
        return first;
    }
    f = queue_fixed_of(q);
    queue_build_rdma(&f, first, opcode, piece, dump ? WQE_CE_ON_ERROR : WQE_CE_ALWAYS);
    if (dump) {
        queue_build_dump(&f, first + 1);
    }
    queue_submit(&f, first, 1 + dump);
    return first + 1 + dump;
}

/* All messages of a request. */
TERN_DEVICE uint64_t queue_transfer(const struct net_queue *q, uint32_t opcode, uint64_t remote,
                                    uint64_t local, uint64_t bytes, uint32_t dump)
{
    struct queue_piece piece;
    uint64_t ticket = 0;
    while (bytes != 0) {
        if (!queue_cut(q, remote, local, bytes, &piece)) {
            return net_ticket_refused(NET_REFUSED);
        }
        bytes -= piece.bytes;
        ticket = queue_rdma(q, opcode, &piece, bytes == 0 ? dump : 0);
        if (net_ticket_status(ticket) != NET_OK) {
            break;
        }
        remote += piece.bytes;
        local += piece.bytes;
    }
    return ticket;
}

TERN_DEVICE uint64_t queue_put(const struct net_queue *q, uint64_t remote, uint64_t local, uint64_t bytes)
{
    return queue_transfer(q, WQE_RDMA_WRITE, remote, local, bytes, 0);
}

TERN_DEVICE uint64_t queue_get(const struct net_queue *q, uint64_t local, uint64_t remote, uint64_t bytes)
{
    return queue_transfer(q, WQE_RDMA_READ, remote, local, bytes, (q->flags & NET_QUEUE_DUMP) != 0);
}

/* 4 or 8 bytes of a value, little-endian, which travel in the entry itself. */
TERN_DEVICE uint64_t queue_put_inline(const struct net_queue *q, uint64_t remote, uint64_t value,
                                      uint32_t bytes)
{
    struct queue_fixed f;
    const struct net_range *r = queue_range(&q->remote, remote);
    struct wqe_inline_args args;
    uint64_t first;
    if (r == NULL) {
        return net_ticket_refused(NET_REFUSED);
    }
    args.rkey = r->key; /* now: a list may be gone after a wait (net/key_lists.h) */
    first = queue_reserve(q, 1);
    if (net_ticket_status(first) != NET_OK) {
        return first;
    }
    f = queue_fixed_of(q);
    args.qpn = f.qpn;
    args.fm_ce_se = WQE_CE_ALWAYS;
    args.remote = remote;
    args.bytes = bytes;
    args.words[0] = (uint32_t)value;
    args.words[1] = bytes == 8 ? (uint32_t)(value >> 32) : 0;
    args.words[2] = 0;
    args.words[3] = args.words[4] = args.words[5] = args.words[6] = 0;
    wqe_write_inline(&f.ring, (uint32_t)first, &args);
    queue_submit(&f, first, 1);
    return first + 1;
}

/* All 32 lanes of a warp, each with a put of its own; lanes may have 0 bytes. Puts of one message each share
 * a reservation and a doorbell. Every lane gets the same ticket then, which covers them all. */
TERN_DEVICE uint64_t queue_put_warp(const struct net_queue *q, uint64_t remote, uint64_t local,
                                    uint64_t bytes)
{
    struct queue_fixed f;
    struct queue_piece piece = {0};
    uint32_t fits = bytes == 0 || (queue_cut(q, remote, local, bytes, &piece) && piece.bytes == bytes);
    uint32_t mine = warp_ballot(bytes != 0), num = (uint32_t)TERN_POPC(mine);
    uint64_t first = 0;
    if (!warp_all((int)fits) || num > wqe_ring_blocks(&q->ring)) {
        return queue_put(q, remote, local, bytes);
    }
    if (num == 0) {
        return 0;
    }
    if (lane() == 0) {
        first = queue_reserve(q, num);
    }
    first = shfl_u64(first, 0);
    sync_warp(); /* that the slots may be written, lane 0 has seen; a shuffle orders nothing */
    if (net_ticket_status(first) != NET_OK) {
        return first;
    }
    f = queue_fixed_of(q);
    if (bytes != 0) {
        int is_last = mine >> lane() == 1u;
        queue_build_rdma(&f, first + (uint32_t)popc_before(mine, lane()), WQE_RDMA_WRITE, &piece,
                         is_last ? WQE_CE_ALWAYS : WQE_CE_ON_ERROR);
    }
    sync_warp(); /* lane 0 submits what all have written */
    if (lane() == 0) {
        queue_submit(&f, first, num);
    }
    return first + num;
}

/* ---- Atomics and signals ---- */

/* Nobody wants the old value, which goes to result word `word`. */
TERN_DEVICE uint64_t queue_amo_at(const struct net_queue *q, uint64_t remote, uint32_t amo, uint32_t width,
                                  uint64_t value, uint64_t compare, uint32_t word)
{
    struct queue_fixed f;
    struct queue_amo a;
    uint64_t first;
    if (!queue_amo_of(q, remote, amo, width, value, compare, 0, &a)) {
        return net_ticket_refused(NET_REFUSED);
    }
    first = queue_reserve(q, queue_amo_blocks(&a));
    if (net_ticket_status(first) != NET_OK) {
        return first;
    }
    f = queue_fixed_of(q);
    queue_build_amo(&f, first, &a, word);
    queue_submit(&f, first, queue_amo_blocks(&a));
    return first + queue_amo_blocks(&a);
}

TERN_DEVICE uint64_t queue_atomic(const struct net_queue *q, uint64_t remote, uint32_t amo, uint32_t width,
                                  uint64_t value, uint64_t compare)
{
    return queue_amo_at(q, remote, amo, width, value, compare, NET_QUEUE_OF_NOBODY);
}

/* Signals have a result word of their own: a software NIC knows by that which additions nothing has to come
 * after (softnic_list.h). */
TERN_DEVICE uint64_t queue_signal(const struct net_queue *q, uint64_t remote, uint32_t amo, uint32_t width,
                                  uint64_t value)
{
    return queue_amo_at(q, remote, amo, width, value, 0, NET_QUEUE_OF_SIGNALS);
}

/* One whose wait was given up, and which the NIC has written since; 0: none. */
TERN_DEVICE int queue_reclaim_result(const struct net_queue *q, uint32_t *word)
{
    struct net_queue_state *s = q->state;
    for (uint32_t i = 0; i < NET_QUEUE_NUM_RESULTS; i++) {
        uint64_t until = ld_relaxed_sys_u64(&s->result_until[i]);
        /* Pairs with the polls' max: the NIC is done with the word. */
        if (until != 0 && ld_acquire_sys_u64(&s->consumed) >= until &&
            /* Pairs with itself, in queue_leave_result and in others who look for a word: one gets it. */
            atom_cas_acqrel_gpu_u64(&s->result_until[i], until, 0) == until) {
            *word = i;
            return 1;
        }
    }
    return 0;
}

/* The word stays taken, as the NIC may write it yet, until it is needed and `until` is consumed. */
TERN_DEVICE void queue_leave_result(const struct net_queue *q, uint32_t word, uint64_t until)
{
    /* Pairs with queue_reclaim_result. */
    (void)atom_cas_acqrel_gpu_u64(&q->state->result_until[word], 0, until);
}

/* A result word, in *word. */
TERN_DEVICE uint32_t queue_take_result(const struct net_queue *q, uint64_t deadline_ns, uint32_t *word)
{
    struct net_patience w = net_patience_of(q->abort, deadline_ns);
    uint64_t busy = ld_relaxed_sys_u64(&q->state->results_busy), seen;
    uint32_t low, status;
    for (;;) {
        if (~busy != 0) {
            low = (uint32_t)~busy;
            *word =
                low != 0 ? (uint32_t)TERN_FFS(low) - 1u : 31u + (uint32_t)TERN_FFS((uint32_t)(~busy >> 32));
            /* Acquire pairs with queue_give_result: the thread before has read the word. */
            seen = atom_cas_acqrel_gpu_u64(&q->state->results_busy, busy, busy | 1ull << *word);
            if (seen == busy) {
                return NET_OK;
            }
            busy = seen;
            continue;
        }
        if (queue_reclaim_result(q, word)) {
            return NET_OK;
        }
        status = queue_poll(q); /* nobody else may be waiting for a completion */
        status = status == NET_OK ? net_patient(&w) : status;
        if (status != NET_OK) {
            return status;
        }
        busy = ld_relaxed_sys_u64(&q->state->results_busy);
    }
}

TERN_DEVICE void queue_give_result(const struct net_queue *q, uint32_t word)
{
    uint64_t busy = ld_relaxed_sys_u64(&q->state->results_busy), seen;
    for (;;) {
        /* Release pairs with queue_take_result in the word's next user. */
        seen = atom_cas_acqrel_gpu_u64(&q->state->results_busy, busy, busy & ~(1ull << word));
        if (seen == busy) {
            return;
        }
        busy = seen;
    }
}

/* Waits for the old value. */
TERN_DEVICE uint32_t queue_fetch(const struct net_queue *q, uint64_t remote, uint32_t amo, uint32_t width,
                                 uint64_t value, uint64_t compare, uint64_t deadline_ns, uint64_t *old)
{
    struct queue_fixed f;
    struct queue_amo a;
    uint64_t first, raw;
    uint32_t status, word;
    if (!queue_amo_of(q, remote, amo, width, value, compare, 1, &a)) {
        return NET_REFUSED;
    }
    status = queue_take_result(q, deadline_ns, &word);
    if (status != NET_OK) {
        return status;
    }
    first = queue_reserve(q, queue_amo_blocks(&a));
    if (net_ticket_status(first) != NET_OK) {
        queue_give_result(q, word);
        return net_ticket_status(first);
    }
    f = queue_fixed_of(q);
    queue_build_amo(&f, first, &a, word);
    queue_submit(&f, first, queue_amo_blocks(&a));
    status = queue_flush(q, first + queue_amo_blocks(&a), deadline_ns);
    if (status != NET_OK) {
        queue_leave_result(q, word, first + queue_amo_blocks(&a));
        return status;
    }
    raw = ld_relaxed_sys_u64(q->results + word); /* queue_flush acquired it */
    *old = width == 4 ? wqe_amo_result(4, (uint32_t)raw) : raw;
    queue_give_result(q, word);
    return NET_OK;
}

/* A put and the signal that it has arrived, on a word of 4 or 8 bytes: the last message and the signal share
 * a doorbell. */
TERN_DEVICE uint64_t queue_put_signal(const struct net_queue *q, uint64_t remote, uint64_t local,
                                      uint64_t bytes, uint64_t signal, uint32_t width, uint64_t value,
                                      uint32_t amo)
{
    struct queue_lists lists;
    struct queue_fixed f;
    struct queue_look look;
    struct net_queue_state *s;
    uint32_t room;
    struct queue_piece piece;
    struct queue_amo a;
    struct net_range word;
    uint64_t first, ticket;
    if (bytes == 0) {
        return queue_signal(q, signal, amo, width, value);
    }
    /* Where the queue's counters are, and its room, with the lists; then the counters, with the lists' first
     * ranges. That look acquires, and comes last; after it only those ranges are known, and lists that are to
     * be searched are read anew. */
    s = q->state;
    room = wqe_ring_blocks(&q->ring);
    lists = queue_lists_of(q);
    look = queue_look_at(s);
    if (TERN_RARE(!queue_lists_begin_with(&lists, remote, local, signal))) {
        lists = queue_lists_of(q);
    }
    if (!queue_range_from(lists.there, &lists.first_there, signal, &word)) {
        return net_ticket_refused(NET_REFUSED);
    }
    a = queue_amo_by(q, word.key, signal, amo, width, value, 0, 0);
    for (;;) {
        if (!queue_cut_in(&lists, remote, local, bytes, &piece)) {
            return net_ticket_refused(NET_REFUSED);
        }
        if (piece.bytes == bytes) {
            break;
        }
        ticket = queue_rdma(q, WQE_RDMA_WRITE, &piece, 0);
        if (net_ticket_status(ticket) != NET_OK) {
            return ticket;
        }
        look = queue_look_at(s);
        lists = queue_lists_of(q); /* after a wait others may have taken their place */
        bytes -= piece.bytes;
        remote += piece.bytes;
        local += piece.bytes;
    }
    first = queue_reserve_from(q, s, room, 1 + queue_amo_blocks(&a), look);
    if (net_ticket_status(first) != NET_OK) {
        return first;
    }
    f = queue_fixed_of(q);
    queue_build_rdma(&f, first, WQE_RDMA_WRITE, &piece, WQE_CE_ON_ERROR);
    queue_build_amo(&f, first + 1, &a, NET_QUEUE_OF_SIGNALS);
    queue_submit(&f, first, 1 + queue_amo_blocks(&a));
    return first + 1 + queue_amo_blocks(&a);
}

#endif
