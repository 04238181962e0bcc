/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations of a network on peers that are reached by the proxy's rings: one thread of the group hands over,
 * all have its status. A plain form waits until the request is complete, at the peer as well; what is not
 * plain, and every signal, is found out about by the quiet that comes after it.
 *
 * A failure of a ring is its last: nothing that is handed over later completes. */
#ifndef TERN_RING_ROUTE_H
#define TERN_RING_ROUTE_H

#include "net/ring.h"
#include "net/target.h"
#include "net/wait.h"

TERN_DEVICE const struct net_ring *ring_to(const struct tern_net *net, int peer, uint32_t queue)
{
    return (const struct net_ring *)net->rings + (uint64_t)(uint32_t)peer * net->num_queues + queue;
}

TERN_DEVICE int ring_end(const struct tern_net *net, const struct net_ring *r, uint32_t status,
                         uint64_t begin_ns)
{
    return net_ended(net, NET_FAULT_RING, r->peer, (uint32_t)r->queue, 0, status, begin_ns);
}

/* One thread. The ticket's request is complete, or, unless `is_plain`, handed over. */
TERN_DEVICE int ring_settle(const struct tern_net *net, const struct net_ring *r, uint64_t ticket,
                            int is_plain, uint64_t begin_ns)
{
    return ring_end(net, r,
                    is_plain ? ring_flush(r, ticket, begin_ns + net->timeout_ns) : net_ticket_status(ticket),
                    begin_ns);
}

/* One thread. All that was handed over to this ring is complete. */
TERN_DEVICE int ring_quiet(const struct tern_net *net, int peer, uint32_t queue)
{
    const struct net_ring *r = ring_to(net, peer, queue);
    uint64_t begin_ns = clock_ns();
    return ring_end(net, r, ring_flush_all(r, begin_ns + net->timeout_ns), begin_ns);
}

/* One thread each. */
TERN_DEVICE int ring_put_to(const struct tern_net *net, const struct net_target *t, const void *src,
                            uint64_t bytes, int is_plain)
{
    uint64_t begin_ns = clock_ns();
    return ring_settle(net, t->ring, ring_put(t->ring, target_remote(t), (uint64_t)(uintptr_t)src, bytes),
                       is_plain, begin_ns);
}

TERN_DEVICE int ring_get_from(const struct tern_net *net, const struct net_target *t, void *dst,
                              uint64_t bytes, int is_plain)
{
    uint64_t begin_ns = clock_ns();
    return ring_settle(net, t->ring, ring_get(t->ring, (uint64_t)(uintptr_t)dst, target_remote(t), bytes),
                       is_plain, begin_ns);
}

TERN_DEVICE int ring_put_inline_to(const struct tern_net *net, const struct net_target *t, uint64_t value,
                                   uint32_t width)
{
    return ring_settle(net, t->ring, ring_put_inline(t->ring, target_remote(t), value, width), 0, clock_ns());
}

/* asks: waits for *old. */
TERN_DEVICE int ring_atomic_at(const struct tern_net *net, const struct net_target *t, uint32_t width,
                               uint32_t amo, uint64_t value, uint64_t compare, int asks, uint64_t *old)
{
    uint64_t begin_ns = clock_ns();
    uint32_t status;
    if (asks) {
        status = ring_fetch(t->ring, target_remote(t), amo, width, value, compare, begin_ns + net->timeout_ns,
                            old);
    } else {
        status = net_ticket_status(ring_atomic(t->ring, target_remote(t), amo, width, value, compare));
    }
    return ring_end(net, t->ring, status, begin_ns);
}

TERN_DEVICE uint64_t ring_signal_ticket(const struct net_target *t, uint32_t width, uint32_t signal,
                                        uint64_t value)
{
    return ring_atomic(t->ring, target_remote(t), signal == TERN_SIGNAL_SET ? NET_AMO_SET : NET_AMO_ADD,
                       width, value, 0);
}

TERN_DEVICE int ring_signal_to(const struct tern_net *net, const struct net_target *t, uint32_t width,
                               uint32_t signal, uint64_t value)
{
    return ring_settle(net, t->ring, ring_signal_ticket(t, width, signal, value), 0, clock_ns());
}

/* The signal, at `s`, is on its way before anybody waits for the put. */
TERN_DEVICE int ring_put_signal_to(const struct tern_net *net, const struct net_target *t, const void *src,
                                   uint64_t bytes, const struct net_target *s, uint32_t width,
                                   uint32_t signal, uint64_t value, int is_plain)
{
    uint64_t begin_ns = clock_ns();
    uint64_t put = ring_put(t->ring, target_remote(t), (uint64_t)(uintptr_t)src, bytes);
    uint64_t told = net_ticket_status(put) == NET_OK ? ring_signal_ticket(s, width, signal, value) : put;
    if (net_ticket_status(told) != NET_OK) {
        put = told;
    }
    return ring_settle(net, t->ring, put, is_plain, begin_ns);
}

/* Whether a request is taken without a wait: 1; 0: not now; -1: the ring has failed, and drops what comes. */
TERN_DEVICE int ring_takes(const struct tern_net *net, int peer, uint32_t queue)
{
    const struct net_ring *r = ring_to(net, peer, queue);
    if (ring_done_syndrome(ld_relaxed_sys_u64(&r->words->done)) != 0) {
        return -1;
    }
    return ring_has_room(r, ld_relaxed_sys_u64(&r->state->reserved));
}

/* A word that counts the peers which the proxy has lost; NULL: there is no proxy. */
TERN_DEVICE const uint64_t *ring_lost_word(const struct tern_net *net)
{
    return net->rings ? ring_to(net, net->rank, 0)->lost : 0;
}

/* Whether the peer is one of them. */
TERN_DEVICE int ring_has_lost(const struct tern_net *net, int peer)
{
    uint64_t done = ld_relaxed_sys_u64(&ring_to(net, peer, 0)->words->done);
    return ring_done_syndrome(done) == NET_SYNDROME_LOST;
}

#endif
