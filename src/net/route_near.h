/* SPDX-License-Identifier: Apache-2.0
 *
 * What puts to one peer by one queue pair take, at hand (queue_near.h): for threads that know beforehand
 * where they will put. What is in one window of this rank and the peer's, as an object has it, needs no
 * looking up then; whatever else is asked for goes as always (route.h). */
#ifndef TERN_ROUTE_NEAR_H
#define TERN_ROUTE_NEAR_H

#include "net/queue_near.h"
#include "net/route.h"

/* Whether `n` is of this peer and queue: then a queue pair leads there. */
TERN_DEVICE int route_is_near(const struct tern_net *net, const struct queue_near *n, int peer,
                              uint32_t queue)
{
    return net->queues != 0 && n->queue == queue_to(net, peer, queue);
}

/* One thread: of the window that has p. Where no queue pair leads, nothing is at hand. */
TERN_DEVICE void route_bring_near(const struct tern_net *net, int peer, uint32_t queue, const void *p,
                                  struct queue_near *n)
{
    /* Both before either is looked at. */
    const uint32_t route = net_route_to(net, peer);
    const char *there = net_address(net, peer, p, 1);
    n->queue = 0;
    if (net->queues != 0 && route == NET_ROUTE_QUEUE && there != 0) {
        queue_bring_near(queue_to(net, peer, queue), (uint64_t)(uintptr_t)there, (uint64_t)(uintptr_t)p, n);
        n->way = (uint64_t)(uintptr_t)there - (uint64_t)(uintptr_t)p;
    }
}

/* One thread, as route_put_signal of one, or of no bytes as route_signal; on a word of 8 bytes. 0: what is at
 * hand is not enough, or the queue has failed: those will do it, or say so, as a queue that has failed takes
 * nothing any more. */
TERN_DEVICE int route_near_put_signal(struct queue_near *n, const void *dst, const void *src, uint64_t bytes,
                                      const void *word, uint32_t signal, uint64_t value)
{
    const uint64_t ticket =
        queue_near_put_signal(n, (uint64_t)(uintptr_t)dst + n->way, (uint64_t)(uintptr_t)src, bytes,
                              (uint64_t)(uintptr_t)word + n->way, value, queue_signal_amo(signal));
    return ticket != 0 && net_ticket_status(ticket) == NET_OK;
}

#endif
