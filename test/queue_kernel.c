/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that follow lists of steps (queue_steps.h). Where there is nvcc, make check compiles them for GPUs
 * too. */
#include "queue_steps.h"

TERN_DEVICE uint64_t deadline_of(const struct queue_drive_args *p)
{
    return p->timeout_ns == TERN_NET_NO_DEADLINE ? TERN_NET_NO_DEADLINE : clock_ns() + p->timeout_ns;
}

/* No operation of ours has immediate data, but a NIC has receivers that are not ready. */
TERN_DEVICE uint64_t put_imm(const struct net_queue *q, const struct queue_step *s)
{
    struct wqe_rdma_args args = {0};
    struct queue_piece piece;
    struct queue_fixed f;
    uint64_t first;
    if (!queue_cut(q, s->remote, s->local, s->bytes, &piece)) {
        return net_ticket_refused(NET_REFUSED);
    }
    first = queue_reserve(q, 1);
    if (net_ticket_status(first) != NET_OK) {
        return first;
    }
    f = queue_fixed_of(q);
    args.qpn = f.qpn;
    args.fm_ce_se = WQE_CE_ALWAYS;
    args.remote = piece.remote;
    args.local = piece.local;
    args.rkey = piece.rkey;
    args.lkey = piece.lkey;
    args.bytes = piece.bytes;
    wqe_rdma(&f.ring, (uint32_t)first, &args, WQE_RDMA_WRITE_IMM, (uint32_t)s->value);
    queue_submit(&f, first, 1);
    return first + 1;
}

/* By what this thread has at hand, of the queue that it used last in this way; its guesses grow old while it
 * does other things. Long messages, and memory of other ranges, and rings that are full, are not for that. */
TERN_DEVICE uint64_t put_signal_near(const struct net_queue *q, struct queue_step *s, struct queue_near *near)
{
    if (near->queue != q) {
        queue_bring_near(q, s->remote, s->local, near);
    }
    uint64_t ticket = queue_near_put_signal(near, s->remote, s->local, s->bytes, s->signal, s->value, s->amo);
    s->near = ticket != 0 ? STEP_WAS_NEAR : s->near;
    return ticket;
}

/* The operations that return a ticket. */
TERN_DEVICE uint64_t hand_over(const struct net_queue *q, struct queue_step *s, struct queue_near *near)
{
    uint64_t ticket = 0;
    switch (s->kind) {
    case STEP_PUT:
        return queue_put(q, s->remote, s->local, s->bytes);
    case STEP_PUT_INLINE:
        return queue_put_inline(q, s->remote, s->value, s->width);
    case STEP_GET:
        return queue_get(q, s->local, s->remote, s->bytes);
    case STEP_ATOMIC:
        return queue_atomic(q, s->remote, s->amo, s->width, s->value, s->compare);
    case STEP_PUT_IMM:
        return put_imm(q, s);
    case STEP_SIGNAL:
        return queue_atomic(q, s->remote, s->amo, 8, s->value, 0);
    default:
        if (s->near) {
            ticket = put_signal_near(q, s, near);
        }
        return ticket != 0
                   ? ticket
                   : queue_put_signal(q, s->remote, s->local, s->bytes, s->signal, 8, s->value, s->amo);
    }
}

TERN_DEVICE void on_memory(struct queue_step *s, const struct queue_drive_args *p)
{
    char *memory = (char *)(uintptr_t)s->local;
    struct net_patience w = net_patience_of(p->queues[s->queue].abort, deadline_of(p));
    switch (s->kind) {
    case STEP_FILL:
        for (uint64_t i = 0; i < s->bytes; i++) {
            memory[i] = (char)step_pattern(s->value, i);
        }
        break;
    case STEP_EXPECT:
        for (uint64_t i = 0; i < s->bytes; i++) {
            s->old += (unsigned char)memory[i] != step_pattern(s->value, i);
        }
        break;
    case STEP_STORE:
        st_release_sys_u64((uint64_t *)(void *)memory, s->value);
        break;
    default:
        /* Pairs with the NIC's store or atomic on the word. */
        while (ld_acquire_sys_u64((const uint64_t *)(void *)memory) < s->value && s->status == NET_OK) {
            s->status = net_patient(&w);
        }
    }
}

TERN_DEVICE void follow(struct queue_step *s, const struct queue_drive_args *p, struct queue_near *near,
                        uint64_t *ticket)
{
    const struct net_queue *q = &p->queues[s->queue];
    uint64_t old = 0;
    switch (s->kind) {
    case STEP_NOTHING:
        return;
    case STEP_FETCH:
        s->status = queue_fetch(q, s->remote, s->amo, s->width, s->value, s->compare, deadline_of(p), &old);
        s->old = old;
        return;
    case STEP_FLUSH:
        s->ticket = *ticket;
        s->status = queue_flush(q, *ticket, deadline_of(p));
        *ticket = 0; /* the next one may be of another queue */
        return;
    case STEP_FLUSH_ALL:
        for (uint32_t i = 0; i < p->num_queues; i++) {
            uint32_t one = queue_flush_all(&p->queues[i], deadline_of(p));
            s->status = s->status == NET_OK ? one : s->status;
        }
        return;
    case STEP_POLL:
        s->status = queue_poll(q);
        s->old = ld_acquire_sys_u64(&q->state->consumed);
        return;
    case STEP_FILL:
    case STEP_EXPECT:
    case STEP_STORE:
    case STEP_AWAIT:
        on_memory(s, p);
        return;
    default:
        s->ticket = hand_over(q, s, near);
        s->status = net_ticket_status(s->ticket);
        *ticket = s->ticket == 0 ? *ticket : s->ticket; /* of no bytes: it covers nothing */
    }
}

TERN_KERNEL(queue_drive, struct queue_drive_args, p)
{
    struct queue_step *steps = p->steps + (uint64_t)(bid() * nthr() + tid()) * p->num_steps;
    struct queue_near near = {0};
    uint64_t ticket = 0;
    for (uint32_t i = 0; i < p->num_steps; i++) {
        struct queue_step *s = &steps[i];
        if (i == p->warp_step) {
            ticket = queue_put_warp(&p->queues[s->queue], s->remote, s->local, s->bytes);
            s->ticket = ticket;
            s->status = net_ticket_status(ticket);
        } else {
            follow(s, p, &near, &ticket);
        }
    }
}
