/* SPDX-License-Identifier: Apache-2.0
 *
 * The requester's way out: which operation may begin, which packet goes next.
 *
 * An operation begins when its fence allows and, if it wants an answer, when fewer than max_reads are
 * missing. Fence modes as we read them: FENCE and FENCE_SMALL wait for the answers of all READs and atomics
 * before, STRONG for everything before to be over, SMALL concerns local operations, which are in order
 * anyway.
 *
 * With adaptive routing only packets of a WRITE may travel together: whatever else is sent waits until the
 * responder has said that all WRITE packets before it have landed. That is one round trip more for an atomic
 * behind data, and makes it safe. */
#ifndef TERN_RC_SEND_H
#define TERN_RC_SEND_H

#include "net/rc_requester.h"

TERN_DEVICE uint32_t rc_lookup(const struct rc_memory *m, uint32_t use, uint32_t key, uint32_t pd,
                               uint64_t addr, uint64_t bytes, struct key_memory *memory,
                               struct nic_refusal *r)
{
    struct key_request request;
    request.use = use;
    request.key = key;
    request.pd = pd;
    request.addr = addr;
    request.bytes = bytes;
    return key_lookup(m->keys, &request, memory, r);
}

/* The local memory of an operation; on refusal it will complete with that. */
TERN_DEVICE uint32_t rc_entry_memory(const struct rc_requester *q, const struct rc_memory *m,
                                     struct rc_entry *e, struct key_memory *memory)
{
    uint32_t use = rc_entry_is_read(e) ? KEY_USE_SCATTER : KEY_USE_GATHER;
    struct nic_refusal r;
    if (rc_lookup(m, use, e->op.lkey, q->config.pd, e->op.local, e->op.bytes, memory, &r) != SYNDROME_NONE) {
        e->refusal = r;
    }
    return r.syndrome;
}

/* ---- Sending again ---- */

TERN_DEVICE void rc_requester_go_back(struct rc_requester *q, uint64_t now)
{
    q->cursor = q->write_end = q->acked;
    q->cursor_entry = q->acked_entry;
    q->deadline = now + rc_requester_patience(q);
    q->num_resent++;
}

/* Nothing was heard for too long. */
TERN_DEVICE void rc_requester_timeout(struct rc_requester *q, uint64_t now)
{
    if (q->retries == q->config.retry_count) {
        rc_requester_fail(q, SYNDROME_TRANSPORT_RETRY, REFUSED_NOTHING);
        return;
    }
    q->retries++;
    rc_requester_go_back(q, now);
}

/* ---- Beginning ---- */

TERN_DEVICE int rc_requester_may_begin(const struct rc_requester *q, const struct rc_entry *e)
{
    switch (e->op.fence) {
    case WQE_FM_FENCE:
    case WQE_FM_FENCE_SMALL:
        if (q->num_reads != 0) {
            return 0;
        }
        break;
    case WQE_FM_STRONG:
        if (q->acked_entry != q->begun) {
            return 0;
        }
        break;
    }
    return !rc_entry_is_read(e) || q->num_reads < q->config.max_reads;
}

/* Gives an operation its packets, or carries it out if it has none. */
TERN_DEVICE void rc_requester_begin(struct rc_requester *q, struct rc_memory *m, struct rc_entry *e)
{
    struct key_memory memory;
    if (e->op.opcode != WQE_NOP && !e->op.is_inline && rc_entry_memory(q, m, e, &memory) != SYNDROME_NONE) {
        rc_requester_settle(q);
        return;
    }
    e->first = q->next;
    q->begun++;
    q->num_reads += (uint32_t)rc_entry_is_read(e);
    if (e->op.opcode == WQE_DUMP) {
        rc_memory_land(m);
    }
    if (e->num_packets == 0) {
        q->cursor_entry++;
        rc_requester_settle(q);
    }
}

/* ---- Packets ---- */

/* 0: the key was taken away since the operation began. */
TERN_DEVICE int rc_requester_fill(const struct rc_requester *q, struct rc_memory *m, struct rc_entry *e,
                                  struct rc_packet *packet)
{
    char *payload = rc_payload(packet);
    struct wqe_source from;
    struct key_memory memory;
    uint32_t i;
    packet->payload_bytes = rc_part_bytes(e->op.bytes, packet->offset, q->config.mtu);
    if (packet->payload_bytes == 0) {
        return 1;
    }
    if (!e->op.is_inline) {
        if (rc_entry_memory(q, m, e, &memory) != SYNDROME_NONE) {
            return 0;
        }
        rc_memory_read(m, payload, memory.host + packet->offset, packet->payload_bytes);
        return 1;
    }
    from.ring = e->ring;
    from.idx = e->idx;
    for (i = 0; i < packet->payload_bytes; i++) {
        payload[i] = *wqe_inline_payload(&from, packet->offset + i);
    }
    return 1;
}

/* The packet at the cursor, which belongs to e. 0: there is none after all. */
TERN_DEVICE int rc_requester_build(struct rc_requester *q, struct rc_memory *m, struct rc_entry *e,
                                   struct rc_packet *packet)
{
    uint32_t part = (uint32_t)(q->cursor - e->first), half = q->config.window / 2;
    int is_last = part + 1 == e->num_packets;
    uint32_t kind = e->op.opcode == WQE_RDMA_READ ? RC_READ : rc_entry_is_read(e) ? RC_ATOMIC : RC_WRITE;
    rc_packet_clear(packet, kind, q->config.peer_qpn, q->cursor);
    packet->rkey = e->op.rkey;
    packet->remote = e->op.remote;
    packet->bytes = e->op.bytes;
    packet->offset = part * q->config.mtu;
    if (kind == RC_ATOMIC) {
        packet->amo = e->op.amo;
    } else if (kind == RC_WRITE) {
        if (!rc_requester_fill(q, m, e, packet)) {
            return 0;
        }
        if (is_last && e->op.opcode == WQE_RDMA_WRITE_IMM) {
            packet->imm = e->op.imm;
            packet->flags |= RC_IMM;
        }
        /* Often enough that a window never fills without. */
        if (is_last || q->config.adaptive || half == 0 || q->cursor % half == 0) {
            packet->flags |= RC_ASK_ACK;
        }
    }
    return 1;
}

/* Adaptive routing: a packet that others must not be overtaken by. */
TERN_DEVICE int rc_requester_must_hold(const struct rc_requester *q, const struct rc_entry *e)
{
    int is_last = q->cursor + 1 == e->first + e->num_packets;
    int is_plain = !rc_entry_is_read(e) && !(is_last && e->op.opcode == WQE_RDMA_WRITE_IMM);
    return q->config.adaptive != 0 && !is_plain && q->write_end > q->landed;
}

/* A link stays full if nobody takes packets from it any more: that is silence, too, although of this queue
 * pair no packet may have found room, or found it again. One that moves is busy with others' packets, and the
 * turn of this one comes; nothing is owed before. */
TERN_DEVICE void rc_requester_is_blocked(struct rc_requester *q, const struct rc_link *out, uint64_t now)
{
    uint64_t first = rc_link_first(out);
    if (q->cursor == q->acked && (!q->is_blocked || first != q->full_at)) {
        q->is_blocked = 1;
        q->full_at = first;
        q->deadline = now + rc_requester_patience(q);
    }
}

TERN_DEVICE int rc_requester_send(struct rc_requester *q, struct rc_memory *m, struct rc_entry *e,
                                  struct rc_link *out, uint64_t now)
{
    struct rc_packet *packet = rc_link_slot(out);
    if (packet == NULL) {
        rc_requester_is_blocked(q, out, now);
        return 0;
    }
    if (rc_requester_must_hold(q, e) || (q->cursor == q->next && q->next - q->acked >= q->config.window)) {
        return 0;
    }
    if (!rc_requester_build(q, m, e, packet)) {
        rc_requester_settle(q);
        return 0;
    }
    if (q->cursor == q->acked) { /* the first of those that are awaited, or it again */
        q->deadline = now + rc_requester_patience(q);
    }
    rc_link_send(out, now);
    q->is_blocked = 0;
    q->cursor = e->op.opcode == WQE_RDMA_READ ? e->first + e->num_packets : q->cursor + 1;
    if (!rc_entry_is_read(e)) {
        q->write_end = q->cursor;
    }
    q->next = q->cursor > q->next ? q->cursor : q->next;
    q->cursor_entry += q->cursor == e->first + e->num_packets;
    return 1;
}

/* One step at time `now`: begins an operation, sends a packet, or notices that nothing is heard. Returns
 * whether there was anything to do. */
TERN_DEVICE int rc_requester_work(struct rc_requester *q, struct rc_memory *m, struct rc_link *out,
                                  uint64_t now)
{
    struct rc_entry *e;
    rc_requester_settle(q);
    if (q->state == RC_ERROR) {
        return 0;
    }
    if ((q->acked < q->next || q->is_blocked) && now >= q->deadline) {
        if (q->is_blocked && rc_link_first(out) != q->full_at) {
            rc_requester_is_blocked(q, out, now); /* this queue pair was not looked at for long */
        } else {
            rc_requester_timeout(q, now);
        }
        return 1;
    }
    if (q->is_not_ready && now < q->not_before) {
        return 0;
    }
    q->is_not_ready = 0;
    while (q->cursor_entry < q->begun && rc_entry_at(q, q->cursor_entry)->num_packets == 0) {
        q->cursor_entry++;
    }
    e = rc_entry_at(q, q->cursor_entry);
    if (q->cursor_entry == q->posted || e->refusal.syndrome != SYNDROME_NONE) {
        return 0;
    }
    if (q->cursor_entry == q->begun) {
        if (!rc_requester_may_begin(q, e)) {
            return 0;
        }
        rc_requester_begin(q, m, e);
        return 1;
    }
    return rc_requester_send(q, m, e, out, now);
}

#endif
