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
        r->status =
            route_atomic(net, q->peer, q->queue, q->remote, q->width, q->op, q->value, q->compare, &r->value);
        if (q->num_old_bytes == 4) {
            *(uint32_t *)q->local = (uint32_t)r->value;
        } else if (q->num_old_bytes == 8) {
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
        r->value = (uint64_t)(uintptr_t)net_address(net, q->peer, q->remote, 1);
        break;
    default:
        break;
    }
}

TERN_DEVICE void perform(const struct net_args *p, struct net_group g, const struct net_request *q)
{
    const struct tern_net *net = &p->net;
    struct net_result r = {TERN_OK, 0};
    switch (q->kind) {
    case NET_REQUEST_PUT:
        r.status = route_put(net, g, q->peer, q->queue, q->remote, q->local, q->bytes);
        break;
    case NET_REQUEST_GET:
        r.status = route_get(net, g, q->peer, q->queue, q->local, q->remote, q->bytes);
        break;
    case NET_REQUEST_PUT_SIGNAL:
        r.status = route_put_signal(net, g, q->peer, q->queue, q->remote, q->local, q->bytes, q->word,
                                    q->width, q->op, q->value);
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
            struct net_request q = p->requests ? p->requests[n] : p->one;
            perform(p, g, &q);
        }
    }
}
