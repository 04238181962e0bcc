/* SPDX-License-Identifier: Apache-2.0
 *
 * The requester of a reliable connection: operations in, packets out, answers in, completions out in order.
 *
 *     entries  [retired][done, not retired][ in flight ][ posted, not begun ][ free ]
 *                       ^retired           ^acked_entry ^begun               ^posted
 *     packets           acked <= cursor <= next
 *
 * What has been sent and not been acknowledged is sent again from `acked` on (go back n): when a packet was
 * lost on the way there (the responder says so), when an answer was lost on the way home (a later one tells)
 * or when nothing is heard for `timeout`. The packet of a READ or an atomic counts as acknowledged only once
 * its answer is here, and answers are taken in order; so whatever is below `acked` is over.
 *
 * Packets are cut from memory when they are sent, also when they are sent again: until an operation has
 * completed, its source and, with inline data, its work queue entry belong to the NIC.
 *
 * An error is reported when everything before it is over, on the oldest operation; then the queue pair is in
 * error and whatever is behind is flushed. The state is plain memory of the caller, and so are the
 * entries. */
#ifndef TERN_RC_REQUESTER_H
#define TERN_RC_REQUESTER_H

#include "net/rc_link.h"

enum { RC_READY, RC_ERROR };

/* One operation, from the work queue entry to the completion. */
struct rc_entry {
    struct wqe_op op;
    struct wqe_ring ring;       /* where inline data is, */
    uint32_t idx;               /* and the index of the work queue entry, which the completion names */
    uint32_t num_packets;       /* 0: nothing to send (NOP, DUMP) */
    uint64_t first;             /* number of its first packet, once it has begun */
    struct nic_refusal refusal; /* of the decoder, of a local key or of the responder */
};

struct rc_requester {
    struct rc_config config;
    struct rc_entry *entries;
    uint32_t capacity; /* of entries, a power of two */
    uint32_t state;    /* RC_READY, RC_ERROR */
    /* Operations, counted from the first. */
    uint64_t posted, begun, acked_entry, retired;
    uint64_t cursor_entry; /* to which the packet at cursor belongs */
    /* Packets, counted from config.first_psn. */
    uint64_t acked, cursor, next;
    uint64_t landed;    /* the responder has said that it took all before */
    uint64_t write_end; /* behind the last WRITE packet before cursor that may not have landed */
    uint64_t went_back; /* acked + 1 when packets were last sent again on the other side's word; or 0 */
    uint32_t num_reads; /* READs and atomics that have begun and have no answer */
    uint32_t retries, rnr_retries; /* since the last progress */
    uint32_t is_not_ready;         /* waiting, because the responder was not ready, until not_before */
    uint32_t is_blocked;           /* nothing is under way, and the link has no room for the next packet */
    uint32_t reserved;
    uint64_t full_at;    /* of is_blocked: the link's first packet when the deadline began */
    uint64_t not_before; /* of is_not_ready */
    uint64_t deadline;   /* of something to be heard; while acked < next, or is_blocked */
    uint64_t num_resent; /* times that packets were sent again */
};

/* What became of the oldest operation. */
struct rc_completion {
    const struct rc_entry *entry; /* until it is retired */
    uint32_t syndrome;
};

/* ---- Operations in ---- */

/* `entries`: a power of two of them, at least one. The configuration has passed terni_rc_check_config. */
TERN_DEVICE void rc_requester_init(struct rc_requester *q, const struct rc_config *config,
                                   struct rc_entry *entries, uint32_t capacity)
{
    const struct rc_requester nothing = {0};
    *q = nothing;
    q->config = *config;
    q->entries = entries;
    q->capacity = capacity;
    q->acked = q->cursor = q->next = q->landed = q->write_end = rc_first_number(config->first_psn);
}

TERN_DEVICE struct rc_entry *rc_entry_at(const struct rc_requester *q, uint64_t i)
{
    return &q->entries[i & (q->capacity - 1)];
}

TERN_DEVICE int rc_requester_has_room(const struct rc_requester *q)
{
    return q->posted - q->retired < q->capacity;
}

/* What wqe_decode made of the entry at from->idx: an operation, or a refusal, which completes in its turn.
 * There is room for it. */
TERN_DEVICE void rc_requester_post(struct rc_requester *q, const struct wqe_op *op,
                                   const struct wqe_source *from, const struct nic_refusal *refusal)
{
    struct rc_entry *e = rc_entry_at(q, q->posted);
    e->op = *op;
    e->ring = from->ring;
    e->idx = from->idx;
    e->refusal = *refusal;
    e->first = 0;
    e->num_packets = op->opcode == WQE_NOP || op->opcode == WQE_DUMP ? 0
                     : wqe_opcode_is_atomic(op->opcode)              ? 1
                                                        : rc_num_packets(op->bytes, q->config.mtu);
    q->posted++;
}

TERN_DEVICE int rc_entry_is_read(const struct rc_entry *e)
{
    return e->op.opcode == WQE_RDMA_READ || wqe_opcode_is_atomic(e->op.opcode);
}

/* ---- What is over ---- */

/* Steps over operations that are over, up to the first that is not; an error that waited for its turn is due
 * when it comes to stand there. */
TERN_DEVICE void rc_requester_settle(struct rc_requester *q)
{
    while (q->state == RC_READY && q->acked_entry < q->posted) {
        const struct rc_entry *e = rc_entry_at(q, q->acked_entry);
        if (e->refusal.syndrome != SYNDROME_NONE) {
            q->state = RC_ERROR;
        } else if (q->acked_entry == q->begun || q->acked != e->first + e->num_packets) {
            return;
        } else {
            q->num_reads -= (uint32_t)rc_entry_is_read(e);
            q->acked_entry++;
        }
    }
}

/* How long something may be silent. */
TERN_DEVICE uint64_t rc_requester_patience(const struct rc_requester *q)
{
    uint32_t doubled = q->config.backoff == 0 ? 0 : q->retries < 20 ? q->retries : 20;
    return q->config.timeout << doubled;
}

/* Something was heard that brings the connection on. */
TERN_DEVICE void rc_requester_progress(struct rc_requester *q, uint64_t now)
{
    q->retries = q->rnr_retries = 0;
    q->is_not_ready = q->is_blocked = 0;
    q->deadline = now + rc_requester_patience(q);
    /* The second: only entries without packets lie between, whose places may soon be others'. */
    if (q->cursor < q->acked || q->cursor_entry < q->acked_entry) {
        q->cursor = q->acked;
        q->cursor_entry = q->acked_entry;
    }
}

/* All packets before `number` have been taken by the responder. Moves `acked` as far as that and answers
 * that are missing allow. */
TERN_DEVICE void rc_requester_advance(struct rc_requester *q, uint64_t number, uint64_t now)
{
    uint64_t before = q->acked;
    q->landed = number > q->landed ? number : q->landed;
    for (; q->state == RC_READY && q->acked < number; rc_requester_settle(q)) {
        const struct rc_entry *e = rc_entry_at(q, q->acked_entry);
        uint64_t end = e->first + e->num_packets;
        if (rc_entry_is_read(e)) {
            break;
        }
        q->acked = end < number ? end : number;
    }
    if (q->acked != before) {
        rc_requester_progress(q, now);
    }
}

/* The oldest operation ends the connection. */
TERN_DEVICE void rc_requester_fail(struct rc_requester *q, uint32_t syndrome, uint32_t reason)
{
    struct rc_entry *e = rc_entry_at(q, q->acked_entry);
    e->refusal.syndrome = syndrome;
    e->refusal.reason = reason;
    q->state = RC_ERROR;
}

/* From outside: the queue pair is put into error, everything that is not over is flushed. */
TERN_DEVICE void rc_requester_stop(struct rc_requester *q) { q->state = RC_ERROR; }

/* The oldest operation that is over, if there is one. In error all are. */
TERN_DEVICE int rc_requester_peek(const struct rc_requester *q, struct rc_completion *done)
{
    if (q->retired == q->posted || (q->retired == q->acked_entry && q->state == RC_READY)) {
        return 0;
    }
    done->entry = rc_entry_at(q, q->retired);
    done->syndrome = SYNDROME_NONE;
    if (q->retired >= q->acked_entry) {
        done->syndrome = q->retired == q->acked_entry ? done->entry->refusal.syndrome : SYNDROME_NONE;
        if (done->syndrome == SYNDROME_NONE) {
            done->syndrome = SYNDROME_FLUSHED;
        }
    }
    return 1;
}

TERN_DEVICE void rc_requester_retire(struct rc_requester *q) { q->retired++; }

#endif
