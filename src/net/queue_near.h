/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pairs that are at hand. A put with its signal (queue_put_signal) asks what a queue is and which keys
 * memory has, then how far the queue is, takes slots, and asks whose turn it is: ways to memory and back, one
 * after the other. Whoever knows beforehand which queue it will be brings near what does not change, into
 * shared memory, while it has nothing else to do. Then one way is left: the swap that takes slots goes by
 * what was seen last, and whose turn it is, and whether the queue has failed, are asked with it.
 *
 * What is at hand are ranges, not the lists that they are from (key_lists.h), so they hold for as long as
 * their memory stays registered: that of an object, while an operation of it runs. */
#ifndef TERN_QUEUE_NEAR_H
#define TERN_QUEUE_NEAR_H

#include "net/queue_ops.h"

/* One thread: with the keys of the ranges that hold `there`, at the peer, and `here`. None is at hand where
 * there are no such keys. */
TERN_DEVICE void queue_bring_near(const struct net_queue *q, uint64_t there, uint64_t here,
                                  struct queue_near *n)
{
    const struct queue_fixed f = queue_fixed_of(q);
    const struct queue_lists lists = queue_lists_of(q);
    const int has = queue_range_from(lists.there, &lists.first_there, there, &n->there) &&
                    queue_range_from(lists.here, &lists.first_here, here, &n->here);
    const struct queue_look look = queue_look_at(f.state); /* behind the lists, see key_lists.h */
    n->fixed = f;
    n->message_bytes = lists.message_bytes;
    n->reserved = look.reserved;
    n->consumed = look.consumed;
    n->queue = has ? q : NULL;
}

/* Whether `bytes` at addr are in the range. */
TERN_DEVICE int queue_range_holds(const struct net_range *r, uint64_t addr, uint64_t bytes)
{
    return addr - r->addr < r->bytes && bytes <= r->bytes - (addr - r->addr);
}

/* What a reservation has learnt: its first slot, and a look that came with it. */
struct queue_near_slots {
    uint64_t first, error;
    struct queue_turn turn;
};

/* As queue_reserve_from, but 0 where there is no room: then it takes waiting, or looking at completions.
 *
 * What was seen of `reserved` may be old; the swap finds that out, and says what it is. `consumed` has only
 * grown since it was acquired, by this thread or one that it has synchronised with; more than `reserved` as
 * it was seen it may be, too, if others went on, and then the swap fails. */
TERN_DEVICE int queue_near_reserve(struct queue_near *n, uint32_t blocks, struct queue_near_slots *slots)
{
    struct net_queue_state *s = n->fixed.state;
    const int64_t room = (int64_t)wqe_ring_blocks(&n->fixed.ring) - (int64_t)blocks;
    uint64_t seen;
    for (;;) {
        if (TERN_RARE((int64_t)(n->reserved - n->consumed) > room)) {
            n->consumed = ld_acquire_sys_u64(&s->consumed); /* pairs with the polls' max */
            if ((int64_t)(n->reserved - n->consumed) > room) {
                return 0;
            }
        }
        seen = atom_cas_relaxed_gpu_u64(&s->reserved, n->reserved, n->reserved + blocks);
        slots->error = ld_relaxed_sys_u64(&s->error);
        slots->turn = queue_turn_of(s); /* all three before any is looked at */
        if (seen == n->reserved) {
            break;
        }
        n->reserved = seen;
    }
    slots->first = n->reserved;
    n->reserved += blocks;
    return 1;
}

/* One thread, of those that use `n` at a time. As queue_put_signal, and of no bytes as queue_signal, on a
 * word of 8 bytes. 0: what is at hand is not enough, and nothing has been handed over. Refused: the queue has
 * failed, as all will find from now on, and what was handed over to it does nothing. */
TERN_DEVICE uint64_t queue_near_put_signal(struct queue_near *n, uint64_t remote, uint64_t local,
                                           uint64_t bytes, uint64_t signal, uint64_t value, uint32_t amo)
{
    struct queue_near_slots slots;
    struct queue_piece piece;
    struct queue_amo a;
    uint32_t blocks;
    if (TERN_RARE(n->queue == NULL || bytes > n->message_bytes || !queue_range_holds(&n->there, signal, 8) ||
                  (bytes != 0 && (!queue_range_holds(&n->there, remote, bytes) ||
                                  !queue_range_holds(&n->here, local, bytes))))) {
        return 0;
    }
    a = queue_amo_by(n->queue, n->there.key, signal, amo, 8, value, 0, 0);
    blocks = queue_amo_blocks(&a) + (bytes != 0);
    if (TERN_RARE(!queue_near_reserve(n, blocks, &slots))) {
        return 0;
    }
    if (bytes != 0) {
        piece.remote = remote;
        piece.local = local;
        piece.rkey = n->there.key;
        piece.lkey = n->here.key;
        piece.bytes = (uint32_t)bytes;
        queue_build_rdma(&n->fixed, slots.first, WQE_RDMA_WRITE, &piece, WQE_CE_ON_ERROR);
    }
    queue_build_amo(&n->fixed, slots.first + (bytes != 0), &a, NET_QUEUE_OF_SIGNALS);
    queue_submit_from(&n->fixed, slots.first, blocks, slots.turn);
    if (TERN_RARE(slots.error != 0)) {
        return net_ticket_refused(queue_error_status(slots.error));
    }
    return slots.first + blocks;
}

#endif
