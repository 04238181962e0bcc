/* SPDX-License-Identifier: Apache-2.0
 *
 * One direction of a network: a bounded queue of packets, between two NICs, that errs on request.
 *
 * A connection has two, one for requests and one for answers: answers are always taken, so that two ends that
 * send to each other cannot both wait for room. Any number of queue pairs may share them. One thread sends
 * and one receives; they may be threads of the host, fibers or blocks of a GPU.
 *
 * The sender loses and doubles packets and says how long they take; the receiver picks among those that have
 * arrived. Packets of one queue pair stay in order, but for doubles, which may come much later; those of
 * different ones need not. Where the link is told to (adaptive routing), a WRITE without immediate overtakes
 * and is overtaken inside its queue pair too. All of it comes from a seed: the same calls give the same
 * faults.
 *
 *     slots   [taken][taken][ ... the receiver picks here ... ][ free ... ]
 *             ^first                                           ^next        counted, never wrapped */
#ifndef TERN_RC_LINK_H
#define TERN_RC_LINK_H

#include "net/rc_memory.h"

enum {
    RC_LINK_MIN_PACKETS = 4,
    RC_LINK_SIGHT = 64, /* packets from `first` on that the receiver picks from */
    RC_CERTAIN = 65536, /* a probability of one */
};

/* RC_FAULT_DROP for ever is a black hole. */
enum { RC_FAULT_NONE, RC_FAULT_DROP, RC_FAULT_DUPLICATE, RC_FAULT_DELAY };

/* Which packets a fault may hit, and how often. */
struct rc_faults {
    uint64_t seed;
    uint32_t kinds; /* bit 1 << RC_WRITE and so on; 0: all */
    uint32_t qpn;   /* to this queue pair; 0: any */
    /* Of the packets above, these, counted from 1; first 0: none. */
    uint32_t nth_fault;
    uint32_t reserved;
    uint64_t nth_first, nth_last;
    /* Of RC_CERTAIN. */
    uint32_t drop, duplicate, delay;
    uint32_t reorder;  /* another packet that has arrived is taken first */
    uint32_t overtake; /* not 0: `reorder` also inside a queue pair, where one of two is a plain WRITE */
    uint32_t reserved_2;
    uint64_t latency;   /* of every packet, in units of `now` */
    uint64_t max_delay; /* of a delayed or doubled one, beyond that: 1 to max_delay */
};

struct rc_link {
    int64_t slots;     /* from this structure on: its two ends may have it at different addresses */
    uint32_t capacity; /* packets: a power of two, RC_LINK_MIN_PACKETS or more */
    uint32_t slot_bytes;
    struct rc_faults faults;
    /* The sender's, but for `next`, which the receiver reads. */
    uint64_t next;
    uint64_t send_random, num_hit; /* packets that faults could have hit */
    uint64_t num_sent, num_dropped, num_duplicated, num_delayed;
    /* The receiver's, but for `first`, which the sender reads. */
    uint64_t first;
    uint64_t taken; /* bit i: first + i is */
    uint64_t receive_random, num_reordered;
    uint32_t is_picked, picked; /* what peek showed, relative to first */
};

/* `slots` has capacity * rc_packet_bytes(mtu) bytes, aligned to 16, and moves only with the link. */
TERN_DEVICE void rc_link_init(struct rc_link *link, void *slots, uint32_t capacity, uint32_t mtu,
                              const struct rc_faults *faults)
{
    const struct rc_link nothing = {0};
    *link = nothing;
    link->slots = (int64_t)((uintptr_t)slots - (uintptr_t)link);
    link->capacity = capacity;
    link->slot_bytes = (uint32_t)rc_packet_bytes(mtu);
    link->faults = *faults;
    link->send_random = faults->seed * 2 + 1;
    link->receive_random = (faults->seed ^ 0x9e3779b97f4a7c15ull) | 1;
}

TERN_DEVICE struct rc_packet *rc_link_at(const struct rc_link *link, uint64_t idx)
{
    uintptr_t slots = (uintptr_t)link + (uintptr_t)link->slots;
    return (struct rc_packet *)(slots + (size_t)(idx & (link->capacity - 1)) * link->slot_bytes);
}

TERN_DEVICE int rc_chance(uint64_t *random, uint32_t of_65536)
{
    return of_65536 != 0 && (rc_draw(random) & 0xffffu) < of_65536;
}

/* ---- Sending ---- */

/* The oldest packet that the receiver has not taken: what changes while the link moves. */
TERN_DEVICE uint64_t rc_link_first(const struct rc_link *link)
{
    /* Pairs with the receiver's release in rc_link_release: it reads what was in slots before no longer. */
    return nic_load_u64(&link->first);
}

/* Where to build the next packet; NULL while there is no room for it and a double. */
TERN_DEVICE struct rc_packet *rc_link_slot(const struct rc_link *link)
{
    return link->next - rc_link_first(link) + 2 > link->capacity ? NULL : rc_link_at(link, link->next);
}

TERN_DEVICE uint32_t rc_link_fault(struct rc_link *link, const struct rc_packet *packet)
{
    const struct rc_faults *f = &link->faults;
    if ((f->kinds != 0 && (f->kinds & 1u << packet->kind) == 0) ||
        (f->qpn != 0 && f->qpn != packet->to_qpn)) {
        return RC_FAULT_NONE;
    }
    link->num_hit++;
    if (f->nth_first != 0 && link->num_hit >= f->nth_first && link->num_hit <= f->nth_last) {
        return f->nth_fault;
    }
    return rc_chance(&link->send_random, f->drop)        ? RC_FAULT_DROP
           : rc_chance(&link->send_random, f->duplicate) ? RC_FAULT_DUPLICATE
           : rc_chance(&link->send_random, f->delay)     ? RC_FAULT_DELAY
                                                         : RC_FAULT_NONE;
}

TERN_DEVICE uint64_t rc_link_delay(struct rc_link *link)
{
    return link->faults.max_delay == 0 ? 0 : 1 + rc_draw(&link->send_random) % link->faults.max_delay;
}

/* The packet that was built in the slot goes. */
TERN_DEVICE void rc_link_send(struct rc_link *link, uint64_t now)
{
    struct rc_packet *packet = rc_link_at(link, link->next);
    uint32_t fault = rc_link_fault(link, packet);
    uint64_t next = link->next + 1;
    link->num_sent++;
    packet->due = now + link->faults.latency;
    if (fault == RC_FAULT_DROP) {
        link->num_dropped++;
        return;
    }
    if (fault == RC_FAULT_DELAY) {
        packet->due += rc_link_delay(link);
        link->num_delayed++;
    }
    if (fault == RC_FAULT_DUPLICATE) {
        struct rc_packet *twin = rc_link_at(link, next);
        nic_copy((char *)twin, (const char *)packet, (uint32_t)sizeof(*packet) + packet->payload_bytes);
        twin->due += rc_link_delay(link);
        twin->flags |= RC_TWIN;
        link->num_duplicated++;
        next++;
    }
    /* Pairs with the receiver's acquire in rc_link_peek: the packet is there when it is counted. */
    nic_store_u64(&link->next, next);
}

/* ---- Receiving ---- */

TERN_DEVICE int rc_link_is_taken(const struct rc_link *link, uint32_t i)
{
    return (link->taken >> i & 1) != 0;
}

TERN_DEVICE int rc_is_plain_write(const struct rc_packet *packet)
{
    return packet->kind == RC_WRITE && (packet->flags & RC_IMM) == 0;
}

/* Whether the packet at `first + i` may be the next of its queue pair. */
TERN_DEVICE int rc_link_may_pick(const struct rc_link *link, uint32_t i)
{
    const struct rc_packet *packet = rc_link_at(link, link->first + i);
    uint32_t k;
    if (link->faults.overtake != 0 && rc_is_plain_write(packet)) {
        return 1;
    }
    for (k = 0; k < i; k++) {
        const struct rc_packet *before = rc_link_at(link, link->first + k);
        if (!rc_link_is_taken(link, k) && before->to_qpn == packet->to_qpn &&
            (before->flags & RC_TWIN) == 0 && !(link->faults.overtake != 0 && rc_is_plain_write(before))) {
            return 0;
        }
    }
    return 1;
}

/* A packet that has arrived, the same until it is released; NULL if there is none. */
TERN_DEVICE struct rc_packet *rc_link_peek(struct rc_link *link, uint64_t now)
{
    uint64_t waiting;
    uint32_t i, end;
    if (link->is_picked) {
        return rc_link_at(link, link->first + link->picked);
    }
    /* Pairs with the sender's release in rc_link_send. */
    waiting = nic_load_u64(&link->next) - link->first;
    end = waiting < RC_LINK_SIGHT ? (uint32_t)waiting : (uint32_t)RC_LINK_SIGHT;
    for (i = 0; i < end; i++) {
        if (rc_link_is_taken(link, i) || rc_link_at(link, link->first + i)->due > now ||
            !rc_link_may_pick(link, i)) {
            continue;
        }
        link->num_reordered += link->is_picked;
        link->is_picked = 1;
        link->picked = i;
        if (!rc_chance(&link->receive_random, link->faults.reorder)) {
            break;
        }
    }
    return link->is_picked ? rc_link_at(link, link->first + link->picked) : NULL;
}

/* What peek showed is used up. */
TERN_DEVICE void rc_link_release(struct rc_link *link)
{
    uint64_t first = link->first;
    link->taken |= 1ull << link->picked;
    link->is_picked = 0;
    for (; (link->taken & 1) != 0; link->taken >>= 1) {
        first++;
    }
    if (first != link->first) {
        /* Pairs with the sender's acquire in rc_link_slot. */
        nic_store_u64(&link->first, first);
    }
}

#endif
