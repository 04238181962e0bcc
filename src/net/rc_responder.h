/* SPDX-License-Identifier: Apache-2.0
 *
 * The responder of a reliable connection: packets in, memory, answers out.
 *
 * Packets take effect in the order of their numbers, one after the other; `expected` is the next. What comes
 * before it is a duplicate: a WRITE is acknowledged again and touches nothing, a READ is read again, an
 * atomic is told what it was told, from a cache of the last RC_MAX_READS. What comes after it says that
 * something is missing, which is answered once. With adaptive routing a WRITE from after it is placed at
 * once, and noted in `ahead`, so that it is not placed again over what came later.
 *
 * While the answer of a READ goes out, packet by packet, no other request of the queue pair is taken.
 *
 * A refusal puts the queue pair into error. Unlike silicon, which falls silent, this responder repeats the
 * refusal, and answers to what came before it, as often as it is asked: so that the requester learns why,
 * also when the first answer is lost. A responder that was stopped from outside says nothing any more. */
#ifndef TERN_RC_RESPONDER_H
#define TERN_RC_RESPONDER_H

#include "net/rc_send.h"

enum { RC_SERVING, RC_REFUSED, RC_STOPPED };

/* Room for one WRITE_IMM, and then what came with it. */
struct rc_receive {
    uint32_t imm, bytes;
};

/* What an atomic was told. */
struct rc_told {
    uint64_t number;
    uint64_t value;
};

struct rc_responder {
    struct rc_config config;
    uint32_t state;   /* RC_SERVING, RC_REFUSED, RC_STOPPED */
    uint32_t has_nak; /* that something is missing has been said */
    uint64_t expected;
    uint64_t ahead; /* bit i: packet expected + i has been placed */
    struct rc_told told[RC_MAX_READS];
    uint64_t num_told;
    /* The READ that is being answered: packets from `number` on; none is left if it equals `end`. */
    struct rc_packet read;
    uint64_t read_number, read_end;
    /* Receive entries, counted. */
    struct rc_receive *receives;
    uint32_t receive_capacity; /* a power of two; 0: none ever */
    uint32_t is_again;         /* the READ above is not answered for the first time */
    uint64_t given, filled, fetched;
    struct nic_refusal refusal; /* RC_REFUSED: why */
    uint64_t num_duplicates;
};

TERN_DEVICE void rc_responder_init(struct rc_responder *s, const struct rc_config *config,
                                   struct rc_receive *receives, uint32_t receive_capacity)
{
    const struct rc_responder nothing = {0};
    *s = nothing;
    s->config = *config;
    s->expected = s->read_number = s->read_end = rc_first_number(config->first_psn);
    s->receives = receives;
    s->receive_capacity = receive_capacity;
}

/* From outside: silence. */
TERN_DEVICE void rc_responder_stop(struct rc_responder *s) { s->state = RC_STOPPED; }

/* Both ends that a queue pair has in its NIC: an error of one is one of the other. */
TERN_DEVICE void rc_couple(struct rc_requester *q, struct rc_responder *s)
{
    if (s->state != RC_SERVING) {
        rc_requester_stop(q);
    } else if (q->state == RC_ERROR) {
        rc_responder_stop(s);
    }
}

/* ---- Receive entries ---- */

/* Returns 0 if there is no room for one more. */
TERN_DEVICE int rc_responder_give(struct rc_responder *s)
{
    if (s->given - s->fetched == s->receive_capacity) {
        return 0;
    }
    s->given++;
    return 1;
}

/* The next WRITE_IMM that has arrived; its data is in place. Returns 0 if there is none. */
TERN_DEVICE int rc_responder_fetch(struct rc_responder *s, struct rc_receive *receive)
{
    if (s->fetched == s->filled) {
        return 0;
    }
    *receive = s->receives[s->fetched++ & (s->receive_capacity - 1)];
    return 1;
}

/* ---- Answers ---- */

TERN_DEVICE struct rc_packet *rc_answer_clear(const struct rc_responder *s, struct rc_link *out,
                                              uint32_t kind, uint64_t number)
{
    struct rc_packet *answer = rc_link_slot(out);
    rc_packet_clear(answer, kind, s->config.peer_qpn, number);
    return answer;
}

/* Of everything before `expected`. */
TERN_DEVICE void rc_answer_ack(const struct rc_responder *s, struct rc_link *out, uint64_t now)
{
    rc_answer_clear(s, out, RC_ACK, s->expected - 1);
    rc_link_send(out, now);
}

/* Of this packet, and an acknowledgement of all before it. */
TERN_DEVICE void rc_answer_nak(struct rc_responder *s, struct rc_link *out, uint64_t number, uint32_t why,
                               uint64_t now)
{
    struct rc_packet *answer = rc_answer_clear(s, out, RC_NAK, number);
    answer->nak = why;
    answer->syndrome = s->refusal.syndrome;
    answer->reason = s->refusal.reason;
    rc_link_send(out, now);
    s->has_nak = 1;
}

TERN_DEVICE void rc_answer_old(const struct rc_responder *s, struct rc_link *out, uint64_t number,
                               uint64_t value, uint64_t now)
{
    struct rc_packet *answer = rc_answer_clear(s, out, RC_ATOMIC_ANSWER, number);
    answer->value = value;
    rc_link_send(out, now);
}

TERN_DEVICE void rc_responder_refuse(struct rc_responder *s, const struct nic_refusal *r, uint64_t number,
                                     struct rc_link *out, uint64_t now)
{
    s->state = RC_REFUSED;
    s->refusal = *r;
    rc_answer_nak(s, out, number, RC_NAK_REFUSED, now);
}

/* `count` packets from `expected` on have taken effect, and those behind them that were placed ahead. */
TERN_DEVICE void rc_responder_advance(struct rc_responder *s, uint64_t count)
{
    s->expected += count;
    s->ahead = count < 64 ? s->ahead >> count : 0;
    for (; (s->ahead & 1) != 0; s->ahead >>= 1) {
        s->expected++;
    }
    s->has_nak = 0;
}

/* ---- READ ---- */

TERN_DEVICE int rc_responder_is_reading(const struct rc_responder *s)
{
    return s->read_number != s->read_end && s->state != RC_STOPPED;
}

/* `packet` asks for the parts from packet->offset on; `again`: not for the first time. */
TERN_DEVICE void rc_responder_start_read(struct rc_responder *s, const struct rc_packet *packet,
                                         uint64_t number, uint32_t again)
{
    s->read = *packet;
    s->is_again = again;
    s->read_number = number;
    s->read_end = number + rc_num_packets(packet->bytes - packet->offset, s->config.mtu);
}

/* One step that no request asks for: the next packet of a READ's answer. Returns whether there was one. */
TERN_DEVICE int rc_responder_work(struct rc_responder *s, struct rc_memory *m, struct rc_link *out,
                                  uint64_t now)
{
    const struct rc_packet *asked = &s->read;
    uint32_t part = rc_part_bytes(asked->bytes, asked->offset, s->config.mtu);
    struct rc_packet *answer;
    struct key_memory memory;
    struct nic_refusal r;
    if (!rc_responder_is_reading(s) || rc_link_slot(out) == NULL) {
        return 0;
    }
    if (rc_lookup(m, KEY_USE_READ, asked->rkey, s->config.pd, asked->remote, asked->bytes, &memory, &r) !=
        SYNDROME_NONE) { /* taken away meanwhile */
        rc_responder_refuse(s, &r, s->read_number, out, now);
        s->read_number = s->read_end;
        return 1;
    }
    answer = rc_answer_clear(s, out, RC_READ_ANSWER, s->read_number);
    answer->payload_bytes = part;
    if (part != 0) {
        rc_memory_push(m, &memory);
        if (s->is_again) {
            rc_memory_read_again(m, rc_payload(answer), memory.host + asked->offset, part);
        } else {
            rc_memory_read(m, rc_payload(answer), memory.host + asked->offset, part);
        }
    }
    rc_link_send(out, now);
    s->read.offset += part;
    s->read_number++;
    return 1;
}

/* ---- Requests, each of the packet that is expected ---- */

TERN_DEVICE uint32_t rc_responder_place(const struct rc_responder *s, struct rc_memory *m,
                                        const struct rc_packet *packet, struct nic_refusal *r)
{
    struct key_memory memory;
    uint32_t syndrome =
        rc_lookup(m, KEY_USE_WRITE, packet->rkey, s->config.pd, packet->remote, packet->bytes, &memory, r);
    if (syndrome == SYNDROME_NONE && packet->payload_bytes != 0) {
        rc_memory_write(m, memory.host + packet->offset, rc_payload_of(packet), packet->payload_bytes);
    }
    return syndrome;
}

TERN_DEVICE void rc_responder_write(struct rc_responder *s, struct rc_memory *m,
                                    const struct rc_packet *packet, struct rc_link *out, uint64_t now)
{
    int has_imm = (packet->flags & RC_IMM) != 0;
    struct nic_refusal r;
    if (has_imm && s->given == s->filled) {
        rc_answer_nak(s, out, s->expected, RC_NAK_NOT_READY, now);
        return;
    }
    if (rc_responder_place(s, m, packet, &r) != SYNDROME_NONE) {
        rc_responder_refuse(s, &r, s->expected, out, now);
        return;
    }
    if (has_imm) {
        struct rc_receive *receive = &s->receives[s->filled++ & (s->receive_capacity - 1)];
        receive->imm = packet->imm;
        receive->bytes = packet->bytes;
        /* Whoever sees the immediate sees the data, and all data before it. */
        rc_land_until(&m->writes, m->writes.next);
    }
    rc_responder_advance(s, 1);
    if ((packet->flags & RC_ASK_ACK) != 0) {
        rc_answer_ack(s, out, now);
    }
}

TERN_DEVICE void rc_responder_read(struct rc_responder *s, struct rc_memory *m,
                                   const struct rc_packet *packet, struct rc_link *out, uint64_t now)
{
    struct key_memory memory;
    struct nic_refusal r;
    if (rc_lookup(m, KEY_USE_READ, packet->rkey, s->config.pd, packet->remote, packet->bytes, &memory, &r) !=
        SYNDROME_NONE) {
        rc_responder_refuse(s, &r, s->expected, out, now);
        return;
    }
    rc_responder_start_read(s, packet, s->expected, 0);
    rc_responder_advance(s, s->read_end - s->read_number);
}

TERN_DEVICE void rc_responder_atomic(struct rc_responder *s, struct rc_memory *m,
                                     const struct rc_packet *packet, struct rc_link *out, uint64_t now)
{
    struct rc_told *told = &s->told[s->num_told % RC_MAX_READS];
    struct key_memory memory;
    struct nic_refusal r;
    if (rc_lookup(m, KEY_USE_ATOMIC, packet->rkey, s->config.pd, packet->remote, packet->amo.bytes, &memory,
                  &r) != SYNDROME_NONE) {
        rc_responder_refuse(s, &r, s->expected, out, now);
        return;
    }
    told->number = s->expected;
    told->value = rc_memory_atomic(m, &memory, &packet->amo);
    s->num_told++;
    rc_answer_old(s, out, told->number, told->value, now);
    rc_responder_advance(s, 1);
}

/* ---- Requests of any number ---- */

TERN_DEVICE void rc_responder_duplicate(struct rc_responder *s, const struct rc_packet *packet,
                                        uint64_t number, struct rc_link *out, uint64_t now)
{
    uint32_t i;
    s->num_duplicates++;
    switch (packet->kind) {
    case RC_WRITE:
        rc_answer_ack(s, out, now);
        break;
    case RC_READ:
        rc_responder_start_read(s, packet, number, 1);
        break;
    default:
        for (i = 0; i < RC_MAX_READS; i++) {
            if (i < s->num_told && s->told[i].number == number) {
                rc_answer_old(s, out, number, s->told[i].value, now);
            }
        }
        break;
    }
}

/* From after the packet that is expected. */
TERN_DEVICE void rc_responder_early(struct rc_responder *s, struct rc_memory *m,
                                    const struct rc_packet *packet, uint64_t distance, struct rc_link *out,
                                    uint64_t now)
{
    struct nic_refusal r;
    if (s->config.adaptive && rc_is_plain_write(packet) && distance < RC_ADAPTIVE_WINDOW) {
        /* A refusal is for when its turn comes. */
        if ((s->ahead >> distance & 1) == 0 && rc_responder_place(s, m, packet, &r) == SYNDROME_NONE) {
            s->ahead |= 1ull << distance;
        }
    } else if (!s->has_nak) {
        rc_answer_nak(s, out, s->expected, RC_NAK_SEQUENCE, now);
    }
}

/* A packet for this queue pair. Returns 0 if it cannot be taken yet: an answer is on its way or finds no
 * room. */
TERN_DEVICE int rc_responder_take(struct rc_responder *s, struct rc_memory *m, const struct rc_packet *packet,
                                  struct rc_link *out, uint64_t now)
{
    uint64_t number = rc_widen(packet->psn, s->expected);
    if (s->state == RC_STOPPED) {
        return 1;
    }
    if (rc_responder_is_reading(s) || rc_link_slot(out) == NULL) {
        return 0;
    }
    if (number < s->expected) {
        rc_responder_duplicate(s, packet, number, out, now);
    } else if (s->state == RC_REFUSED) {
        rc_answer_nak(s, out, s->expected, RC_NAK_REFUSED, now);
    } else if (number > s->expected) {
        rc_responder_early(s, m, packet, number - s->expected, out, now);
    } else if (packet->kind == RC_WRITE) {
        rc_responder_write(s, m, packet, out, now);
    } else if (packet->kind == RC_READ) {
        rc_responder_read(s, m, packet, out, now);
    } else {
        rc_responder_atomic(s, m, packet, out, now);
    }
    return 1;
}

#endif
