/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests performed by groups: group n of the launch takes the n-th run of num_each, in order. What needs a
 * single thread is done by the first of the group. Nothing here synchronises: puts, gets and barriers do, and
 * that is what callers rely on. */
#include "kernels/kernels.h"
#include "kernels/net_args.h"
#include "net/barrier.h"

/* What one thread does. */
TERN_DEVICE void perform_single(const struct tern_net *net, const struct net_request *q, struct net_result *r)
{
    switch (q->kind) {
    case NET_REQUEST_PUT_INLINE:
        r->status = route_put_inline(net, q->peer, q->queue, q->remote, q->value, q->width);
        break;
    case NET_REQUEST_SIGNAL:
        r->status = route_signal(net, q->peer, q->queue, q->remote, q->width, q->op, q->value);
        break;
    case NET_REQUEST_ATOMIC:
        r->status = route_atomic(net, q->peer, q->queue, q->remote, q->width, q->op, q->value, q->compare,
                                 !(q->flags & NET_REQUEST_NO_OLD), &r->value);
        if (r->status == TERN_OK && q->num_old_bytes == 4) {
            *(uint32_t *)q->local = (uint32_t)r->value;
        } else if (r->status == TERN_OK && q->num_old_bytes == 8) {
            *(uint64_t *)q->local = r->value;
        }
        break;
    case NET_REQUEST_WAIT:
        r->status = net_wait(net, q->remote, q->width, q->op, q->value, q->timeout_ns, &r->value);
        break;
    case NET_REQUEST_TEST:
        r->value = (uint64_t)net_test(q->remote, q->width, q->op, q->value);
        break;
    case NET_REQUEST_AT_PEER:
        r->value = (uint64_t)(uintptr_t)net_pointer(net, q->peer, q->remote);
        break;
    default:
        break;
    }
    if (q->flags & NET_REQUEST_PLAIN && r->status == TERN_OK) {
        r->status = route_quiet(net, q->peer, q->queue);
    }
}

/* The thread that has the lock: until no NIC reads or writes the area any more. An operation that gave up on
 * its own completion has left it to the next one; a queue that has failed does nothing any more. */
TERN_DEVICE int bounce_settle(const struct net_args *p, uint64_t begin_ns)
{
    const struct tern_net *net = &p->net;
    struct net_bounce_state *state = p->bounce.state;
    if (state->owner == 0) {
        return TERN_OK;
    }
    int peer = (int)state->owner - 1;
    uint32_t status = queue_flush_all(queue_to(net, peer, state->queue), begin_ns + net->timeout_ns);
    if (net_status_kind(status) == NET_OK || net_status_kind(status) == NET_FAILED) {
        state->owner = 0;
        return TERN_OK;
    }
    return net_ended(net, NET_FAULT_QUEUE, peer, state->queue, 0, status, begin_ns);
}

TERN_DEVICE void bounce_give(const struct net_args *p, struct net_group g)
{
    group_sync(g); /* nobody reads or writes it any more */
    if (g.index == 0) {
        atom_cas_acqrel_gpu_u32(&p->bounce.state->lock, 1, 0); /* pairs with bounce_take */
    }
}

TERN_DEVICE int bounce_take(const struct net_args *p, struct net_group g, const struct net_request *q)
{
    const struct tern_net *net = &p->net;
    uint64_t begin_ns = clock_ns();
    struct net_patience w = net_patience_of(net->abort_word, begin_ns + net->timeout_ns);
    uint32_t status = NET_OK;
    /* Pairs with bounce_give in the group that had it. */
    while (g.index == 0 && status == NET_OK && atom_cas_acqrel_gpu_u32(&p->bounce.state->lock, 0, 1) != 0) {
        status = net_patient(&w);
    }
    int taken = group_status(g, net_ended(net, NET_FAULT_QUEUE, q->peer, q->queue, 0, status, begin_ns));
    if (taken != TERN_OK) {
        return taken;
    }
    int settled = group_status(g, g.index == 0 ? bounce_settle(p, begin_ns) : TERN_OK);
    if (settled != TERN_OK) {
        bounce_give(p, g);
    }
    return settled;
}

/* PUT and GET, and what a PUT_SIGNAL puts: as a whole, or through the bounce area by its pieces. */
TERN_DEVICE int perform_move(const struct net_args *p, struct net_group g, const struct net_request *q)
{
    int bounces = (q->flags & NET_REQUEST_BOUNCE) != 0, is_put = q->kind != NET_REQUEST_GET;
    int is_plain = bounces || (q->flags & NET_REQUEST_PLAIN) != 0;
    int status = bounces ? bounce_take(p, g, q) : TERN_OK, is_taken = bounces && status == TERN_OK;
    uint64_t at = 0;
    for (int is_last = 0; status == TERN_OK && !is_last;) {
        uint64_t left = q->bytes - at, bytes = bounces && left > p->bounce.bytes ? p->bounce.bytes : left;
        char *local = (char *)q->local + at, *remote = (char *)q->remote + at;
        char *here = bounces ? p->bounce.memory : local;
        if (bounces && is_put) {
            p2p_copy(g, here, local, bytes);
        }
        status = is_put ? route_put(&p->net, g, q->peer, q->queue, remote, here, bytes, is_plain)
                        : route_get(&p->net, g, q->peer, q->queue, here, remote, bytes, is_plain);
        if (bounces && !is_put && status == TERN_OK) {
            p2p_copy(g, local, here, bytes);
            group_sync(g); /* the next piece comes over it */
        }
        at += bytes;
        is_last = bytes == left;
    }
    if (is_taken) {
        if (g.index == 0 && status != TERN_OK) { /* what was handed over may still happen */
            p->bounce.state->owner = (uint32_t)q->peer + 1;
            p->bounce.state->queue = q->queue;
        }
        bounce_give(p, g);
    }
    return status;
}

/* PUT_SIGNAL through the bounce area: the signal behind the last piece, and none if one has failed. */
TERN_DEVICE int perform_bounced_signal(const struct net_args *p, struct net_group g,
                                       const struct net_request *q)
{
    int status = perform_move(p, g, q);
    if (status == TERN_OK && g.index == 0) {
        status = route_signal(&p->net, q->peer, q->queue, q->word, q->width, q->op, q->value);
        status = status == TERN_OK ? route_quiet(&p->net, q->peer, q->queue) : status;
    }
    return group_status(g, status);
}

TERN_DEVICE void perform(const struct net_args *p, struct net_group g, const struct net_request *q)
{
    const struct tern_net *net = &p->net;
    struct net_result r = {TERN_OK, 0};
    switch (q->kind) {
    case NET_REQUEST_PUT:
    case NET_REQUEST_GET:
        r.status = perform_move(p, g, q);
        break;
    case NET_REQUEST_PUT_SIGNAL:
        r.status = q->flags & NET_REQUEST_BOUNCE
                       ? perform_bounced_signal(p, g, q)
                       : route_put_signal(net, g, q->peer, q->queue, q->remote, q->local, q->bytes, q->word,
                                          q->width, q->op, q->value, q->flags & NET_REQUEST_PLAIN);
        break;
    case NET_REQUEST_FENCE:
    case NET_REQUEST_QUIET:
        r.status = route_quiet(net, q->peer, q->queue);
        break;
    case NET_REQUEST_BARRIER:
        r.status = route_barrier(net, &p->team, g);
        break;
    default:
        if (g.index == 0) {
            perform_single(net, q, &r);
        }
        break;
    }
    if (g.index == 0 && q->result) {
        *q->result = r;
    }
}

TERN_KERNEL(net_ops, struct net_args, p)
{
    struct net_group g = group_of(p->group);
    uint64_t unit = (uint64_t)bid() * ((uint64_t)nthr() / g.count) + (uint64_t)tid() / g.count;
    for (uint32_t i = 0; i < p->num_each; i++) {
        uint64_t n = unit * p->num_each + i;
        if (n < p->num_requests) {
            /* Where it stands: a copy would take 28 registers. */
            perform(p, g, p->requests ? p->requests + n : &p->one);
        }
    }
}
