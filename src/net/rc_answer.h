/* SPDX-License-Identifier: Apache-2.0
 *
 * The requester's way in: what each answer of the responder means.
 *
 * Every answer says how far the responder has come. If that is past a READ or an atomic whose answer is not
 * here, the answer was lost, and the request goes again: the responder reads anew, and knows what it told an
 * atomic. Answers that are old, or of packets that were never sent, mean nothing. */
#ifndef TERN_RC_ANSWER_H
#define TERN_RC_ANSWER_H

#include "net/rc_send.h"

/* Once, until there is progress: one loss is told by many packets, and if what is sent again is lost too, the
 * timer knows. */
TERN_DEVICE void rc_requester_go_back_once(struct rc_requester *q, uint64_t now)
{
    if (q->went_back != q->acked + 1) {
        rc_requester_go_back(q, now);
        q->went_back = q->acked + 1;
    }
}

TERN_DEVICE void rc_requester_not_ready(struct rc_requester *q, uint64_t now)
{
    if (q->is_not_ready) {
        return; /* the same, twice */
    }
    if (q->config.rnr_retry != RC_RNR_FOREVER && q->rnr_retries == q->config.rnr_retry) {
        rc_requester_fail(q, SYNDROME_RNR_RETRY, REFUSED_NOTHING);
        return;
    }
    q->rnr_retries++;
    q->retries = 0; /* the responder lives */
    q->is_not_ready = 1;
    q->not_before = now + q->config.rnr_delay;
    rc_requester_go_back(q, q->not_before);
}

/* Of the oldest packet that is not over. */
TERN_DEVICE void rc_requester_take_nak(struct rc_requester *q, const struct rc_packet *packet, uint64_t now)
{
    switch (packet->nak) {
    case RC_NAK_SEQUENCE:
        rc_requester_go_back_once(q, now);
        break;
    case RC_NAK_NOT_READY:
        rc_requester_not_ready(q, now);
        break;
    default:
        rc_requester_fail(q, packet->syndrome, packet->reason);
        break;
    }
}

/* Data or an old value for the oldest operation, of the packet at `acked`. */
TERN_DEVICE void rc_requester_take_data(struct rc_requester *q, struct rc_memory *m, struct rc_packet *packet,
                                        uint64_t now)
{
    struct rc_entry *e = rc_entry_at(q, q->acked_entry);
    int is_read = e->op.opcode == WQE_RDMA_READ;
    uint32_t offset = is_read ? (uint32_t)(q->acked - e->first) * q->config.mtu : 0;
    struct key_memory memory;
    if (!rc_entry_is_read(e) || is_read != (packet->kind == RC_READ_ANSWER) ||
        packet->payload_bytes != (is_read ? rc_part_bytes(e->op.bytes, offset, q->config.mtu) : 0)) {
        rc_requester_fail(q, SYNDROME_BAD_RESPONSE, REFUSED_NOTHING);
        return;
    }
    if (rc_entry_memory(q, m, e, &memory) != SYNDROME_NONE) {
        rc_requester_settle(q);
        return;
    }
    if (is_read && packet->payload_bytes != 0) {
        rc_memory_result(m, memory.host + offset, rc_payload_of(packet), packet->payload_bytes);
    } else if (!is_read) {
        packet->value = wqe_amo_result(e->op.bytes, packet->value);
        rc_memory_result(m, memory.host, (const char *)&packet->value, e->op.bytes);
    }
    q->acked++;
    q->landed = q->acked > q->landed ? q->acked : q->landed;
    rc_requester_settle(q);
    rc_requester_progress(q, now);
}

/* A packet for this queue pair, which may be used up. */
TERN_DEVICE void rc_requester_take(struct rc_requester *q, struct rc_memory *m, struct rc_packet *packet,
                                   uint64_t now)
{
    uint64_t number = rc_widen(packet->psn, q->acked);
    uint64_t taken = packet->kind == RC_ACK ? number + 1 : number;
    if (q->state == RC_ERROR || number >= q->next) {
        return;
    }
    rc_requester_advance(q, taken, now);
    if (q->state == RC_ERROR || q->acked > number) {
        return;
    }
    if (q->acked < taken) {
        rc_requester_go_back_once(q, now);
    } else if (packet->kind == RC_NAK) {
        rc_requester_take_nak(q, packet, now);
    } else {
        rc_requester_take_data(q, m, packet, now);
    }
}

#endif
