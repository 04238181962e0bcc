/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations of a network on peers that are reached by queue pairs, which this thread drives: one thread of
 * the group hands over, all have its status. A plain form waits for its completion; what is not plain, and
 * every signal, is found out about by the quiet that comes after it.
 *
 * A NIC reads and writes memory by keys, so memory of this rank that an operation names lies in a window, as
 * the peer's does. What lies in none is refused, and nothing is lost by it; what a NIC refuses is the queue's
 * last. */
#ifndef TERN_QUEUE_ROUTE_H
#define TERN_QUEUE_ROUTE_H

#include "net/queue_ops.h"
#include "net/target.h"
#include "net/wait.h"

TERN_DEVICE const struct net_queue *queue_to(const struct tern_net *net, int peer, uint32_t queue)
{
    return (const struct net_queue *)net->queues + (uint64_t)(uint32_t)peer * net->num_queues + queue;
}

/* A word that counts the queues which have lost their peer. */
TERN_DEVICE const uint64_t *queue_lost_word(const struct tern_net *net)
{
    return queue_to(net, net->rank, 0)->lost;
}

/* Whether a queue to this peer has. */
TERN_DEVICE int queue_has_lost(const struct tern_net *net, int peer)
{
    for (uint32_t i = 0; i < net->num_queues; i++) {
        uint64_t error = ld_relaxed_sys_u64(&queue_to(net, peer, i)->state->error);
        if (error != 0 && net_syndrome_is_lost(queue_error_syndrome(error))) {
            return 1;
        }
    }
    return 0;
}

enum { QUEUE_SIGNAL_BLOCKS = 3 }; /* at most: two, and a nop behind them */

/* Whether a signal is taken without a wait: 1; 0: not now; -1: the queue has failed. */
TERN_DEVICE int queue_takes(const struct tern_net *net, int peer, uint32_t queue)
{
    const struct net_queue *q = queue_to(net, peer, queue);
    if (queue_poll(q) != NET_OK) {
        return -1;
    }
    struct queue_look k = queue_look_at(q->state);
    return k.reserved + QUEUE_SIGNAL_BLOCKS - k.consumed <= wqe_ring_blocks(&q->ring);
}

/* local: memory of this rank that it was about, or NULL. */
TERN_DEVICE int queue_end(const struct tern_net *net, const struct net_queue *q, const void *local,
                          uint32_t status, uint64_t begin_ns)
{
    if (TERN_RARE(status != NET_OK)) {
        uint32_t number = (uint32_t)(q - (const struct net_queue *)net->queues);
        return net_ended(net, NET_FAULT_QUEUE, (int)(number / net->num_queues), number % net->num_queues,
                         local, status, begin_ns);
    }
    return TERN_OK;
}

/* One thread each. The ticket's operation is complete, or, unless `is_plain`, handed over. */
TERN_DEVICE int queue_settle(const struct tern_net *net, const struct net_queue *q, const void *local,
                             uint64_t ticket, int is_plain, uint64_t begin_ns)
{
    return queue_end(
        net, q, local,
        is_plain ? queue_flush(q, ticket, begin_ns + net->timeout_ns) : net_ticket_status(ticket), begin_ns);
}

/* All that was handed over to this queue is complete. */
TERN_DEVICE int queue_quiet(const struct tern_net *net, int peer, uint32_t queue)
{
    const struct net_queue *q = queue_to(net, peer, queue);
    uint64_t begin_ns = clock_ns();
    return queue_end(net, q, 0, queue_flush_all(q, begin_ns + net->timeout_ns), begin_ns);
}

/* The same, and what this queue wrote at the peer comes before whatever another of the peer's NICs writes
 * from now on. An acknowledged WRITE may still be on its way across PCIe; a READ by the same NIC pushes it
 * on. remote: 8 bytes there that nobody changes but as a word. */
TERN_DEVICE int queue_settle_far(const struct tern_net *net, int peer, uint32_t queue, uint64_t remote)
{
    const struct net_queue *q = queue_to(net, peer, queue);
    const struct net_range *r;
    struct queue_piece piece;
    uint64_t begin_ns = clock_ns(), ticket;
    if (ld_relaxed_sys_u64(&q->state->ready) == 0) {
        return TERN_OK; /* nothing has ever gone this way */
    }
    r = queue_range(&q->remote, remote);
    if (r == NULL) {
        return queue_end(net, q, 0, NET_REFUSED, begin_ns);
    }
    piece.remote = remote;
    piece.local = q->results_addr + 8 * NET_QUEUE_OF_NOBODY;
    piece.rkey = r->key;
    piece.lkey = q->results_lkey;
    piece.bytes = 8;
    ticket = queue_rdma(q, WQE_RDMA_READ, &piece, 0);
    return queue_settle(net, q, 0, ticket, 1, begin_ns);
}

TERN_DEVICE int queue_put_to(const struct tern_net *net, const struct net_target *t, const void *src,
                             uint64_t bytes, int is_plain)
{
    uint64_t begin_ns = clock_ns();
    uint64_t ticket = queue_put(t->queue, target_remote(t), (uint64_t)(uintptr_t)src, bytes);
    return queue_settle(net, t->queue, src, ticket, is_plain, begin_ns);
}

TERN_DEVICE int queue_get_from(const struct tern_net *net, const struct net_target *t, void *dst,
                               uint64_t bytes, int is_plain)
{
    uint64_t begin_ns = clock_ns();
    uint64_t ticket = queue_get(t->queue, (uint64_t)(uintptr_t)dst, target_remote(t), bytes);
    return queue_settle(net, t->queue, dst, ticket, is_plain, begin_ns);
}

TERN_DEVICE int queue_put_inline_to(const struct tern_net *net, const struct net_target *t, uint64_t value,
                                    uint32_t width)
{
    uint64_t begin_ns = clock_ns();
    uint64_t ticket = queue_put_inline(t->queue, target_remote(t), value, width);
    return queue_settle(net, t->queue, 0, ticket, 0, begin_ns);
}

/* asks: waits for *old. */
TERN_DEVICE int queue_atomic_at(const struct tern_net *net, const struct net_target *t, uint32_t width,
                                uint32_t amo, uint64_t value, uint64_t compare, int asks, uint64_t *old)
{
    uint64_t begin_ns = clock_ns();
    uint32_t status;
    if (asks) {
        status = queue_fetch(t->queue, target_remote(t), amo, width, value, compare,
                             begin_ns + net->timeout_ns, old);
    } else {
        status = net_ticket_status(queue_atomic(t->queue, target_remote(t), amo, width, value, compare));
    }
    return queue_end(net, t->queue, 0, status, begin_ns);
}

TERN_DEVICE uint32_t queue_signal_amo(uint32_t signal)
{
    return signal == TERN_SIGNAL_SET ? NET_AMO_SET : NET_AMO_ADD;
}

TERN_DEVICE int queue_signal_to(const struct tern_net *net, const struct net_target *t, uint32_t width,
                                uint32_t signal, uint64_t value)
{
    uint64_t begin_ns = clock_ns();
    uint32_t status =
        net_ticket_status(queue_signal(t->queue, target_remote(t), queue_signal_amo(signal), width, value));
    return queue_end(net, t->queue, 0, status, begin_ns);
}

/* The signal is at `s`. */
TERN_DEVICE int queue_put_signal_to(const struct tern_net *net, const struct net_target *t, const void *src,
                                    uint64_t bytes, const struct net_target *s, uint32_t width,
                                    uint32_t signal, uint64_t value, int is_plain)
{
    uint64_t begin_ns = clock_ns();
    uint64_t ticket = queue_put_signal(t->queue, target_remote(t), (uint64_t)(uintptr_t)src, bytes,
                                       target_remote(s), width, value, queue_signal_amo(signal));
    return queue_settle(net, t->queue, bytes != 0 ? src : 0, ticket, is_plain, begin_ns);
}

#endif
