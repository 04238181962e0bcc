/* SPDX-License-Identifier: Apache-2.0
 *
 * Which way an operation takes: the one place where a peer's route byte is looked at. Each way is a case of
 * the switches below and has a header of its own (p2p.h); what they have in common is done here: the
 * symmetric address becomes the peer's, the group synchronises, one thread signals, refusals are recorded.
 *
 * An address is looked for in the window of tern_alloc first, whose bounds travel with the kernel's
 * arguments, then in the others. */
#ifndef TERN_ROUTE_H
#define TERN_ROUTE_H

#include "net/p2p.h"
#include "net/wait.h"

/* How many there are of each enum. */
enum { NET_NUM_SIGNALS = TERN_SIGNAL_SET + 1, NET_NUM_AMOS = TERN_AMO_FETCH + 1 };

enum net_route { NET_ROUTE_NONE = 0, NET_ROUTE_P2P = 1 };

/* Where an operation goes. */
struct net_target {
    int status; /* TERN_OK, or why it goes nowhere */
    uint32_t route;
    char *address; /* at the peer; p2p: as this rank reaches it */
};

/* Whether `bytes` from there on are in the window. */
TERN_DEVICE int net_holds(uint64_t window_bytes, uint64_t offset, uint64_t bytes)
{
    return offset < window_bytes && bytes <= window_bytes - offset;
}

/* Where `bytes` at `p` of this rank lie in the window of `peer`; 0 if they are in no window, or not
 * addressable. */
TERN_DEVICE char *net_address(const struct tern_net *net, int peer, const void *p, uint64_t bytes)
{
    const struct tern_net_window *w = &net->heap;
    uint64_t offset = (uint64_t)(uintptr_t)p - (uint64_t)(uintptr_t)w->own; /* wraps below it */
    char *const *bases = w->bases;
    int found = net_holds(w->bytes, offset, bytes);
    char *base;
    for (uint32_t i = 0; !found && i < net->num_windows; i++) {
        w = &net->windows[i];
        offset = (uint64_t)(uintptr_t)p - (uint64_t)(uintptr_t)w->own;
        bases = w->bases;
        found = net_holds(w->bytes, offset, bytes);
    }
    base = found ? bases[peer] : 0;
    return base ? base + offset : 0;
}

/* Thread `first` of the group tells. */
TERN_DEVICE int net_refuse(const struct tern_net *net, struct net_group g, int fault, int status, int peer,
                           const void *p)
{
    if (g.index == 0) {
        struct net_note n = {fault, status, peer, 0, 0, 0, p, 0, 0, 0, 0, 0};
        net_record(net, &n);
    }
    return status;
}

/* `bytes` at p, or none: then nobody looks at p. width: 0, or what p must be a multiple of. */
TERN_DEVICE struct net_target net_find(const struct tern_net *net, struct net_group g, int peer,
                                       uint32_t queue, const void *p, uint64_t bytes, uint32_t width)
{
    struct net_target t = {TERN_OK, NET_ROUTE_NONE, 0};
    if ((uint32_t)peer >= (uint32_t)net->num_ranks || queue >= net->num_queues) {
        t.status = net_refuse(net, g, NET_FAULT_ROUTE, TERN_INVALID_ARGUMENT, peer, p);
        return t;
    }
    /* Both loads before either is looked at: after an acquire each comes from L2, 150 ns away. */
    t.route = net->routes[peer];
    t.address = bytes ? net_address(net, peer, p, bytes) : 0;
    if (TERN_RARE(t.route == NET_ROUTE_NONE)) {
        t.status = net_refuse(net, g, NET_FAULT_ROUTE, TERN_UNSUPPORTED, peer, p);
        return t;
    }
    if (bytes == 0) {
        return t;
    }
    if (t.address == 0 || (width != 0 && ((uintptr_t)p & (width - 1)) != 0)) {
        t.status = net_refuse(net, g, NET_FAULT_ADDRESS, TERN_INVALID_ARGUMENT, peer, p);
    }
    return t;
}

/* A word. op: an enumerator, which is to be below num_ops. */
TERN_DEVICE struct net_target net_find_word(const struct tern_net *net, struct net_group g, int peer,
                                            uint32_t queue, const void *p, uint32_t width, uint32_t op,
                                            uint32_t num_ops)
{
    if ((width != 4 && width != 8) || op >= num_ops) {
        struct net_target t = {TERN_INVALID_ARGUMENT, NET_ROUTE_NONE, 0};
        if (g.index == 0) {
            struct net_note n = {NET_FAULT_WORD, TERN_INVALID_ARGUMENT, peer, width, op, 0, p, 0, 0, 0, 0, 0};
            net_record(net, &n);
        }
        return t;
    }
    return net_find(net, g, peer, queue, p, width, width);
}

/* All threads of the group; what any of them wrote to the source before is what goes out, and any of them
 * may signal or quiet afterwards. */
TERN_DEVICE int route_put(const struct tern_net *net, struct net_group g, int peer, uint32_t queue, void *dst,
                          const void *src, uint64_t bytes)
{
    struct net_target t = net_find(net, g, peer, queue, dst, bytes, 0);
    if (t.status == TERN_OK) {
        group_sync(g);
        switch (t.route) {
        case NET_ROUTE_P2P:
            p2p_copy(g, t.address, (const char *)src, bytes);
            break;
        }
        group_sync(g);
    }
    return t.status;
}

TERN_DEVICE int route_get(const struct tern_net *net, struct net_group g, int peer, uint32_t queue, void *dst,
                          const void *src, uint64_t bytes)
{
    struct net_target t = net_find(net, g, peer, queue, src, bytes, 0);
    if (t.status == TERN_OK) {
        group_sync(g); /* nobody reads the destination any more */
        switch (t.route) {
        case NET_ROUTE_P2P:
            p2p_copy(g, (char *)dst, t.address, bytes);
            break;
        }
        group_sync(g);
    }
    return t.status;
}

/* One thread, as the following. */
TERN_DEVICE int route_put_inline(const struct tern_net *net, int peer, uint32_t queue, void *dst,
                                 uint64_t value, uint32_t width)
{
    struct net_target t = net_find_word(net, group_of(GROUP_THREAD), peer, queue, dst, width, 0, 1);
    if (t.status == TERN_OK) {
        switch (t.route) {
        case NET_ROUTE_P2P:
            p2p_put_inline(t.address, value, width);
            break;
        }
    }
    return t.status;
}

/* After this thread's earlier puts to this peer by this queue. */
TERN_DEVICE int route_signal(const struct tern_net *net, int peer, uint32_t queue, void *word, uint32_t width,
                             uint32_t signal, uint64_t value)
{
    struct net_target t =
        net_find_word(net, group_of(GROUP_THREAD), peer, queue, word, width, signal, NET_NUM_SIGNALS);
    if (t.status == TERN_OK) {
        switch (t.route) {
        case NET_ROUTE_P2P:
            p2p_signal(t.address, value, width, signal == TERN_SIGNAL_SET);
            break;
        }
    }
    return t.status;
}

/* old: NULL if nobody asks. */
TERN_DEVICE int route_atomic(const struct tern_net *net, int peer, uint32_t queue, void *word, uint32_t width,
                             uint32_t amo, uint64_t value, uint64_t compare, uint64_t *old)
{
    struct net_target t =
        net_find_word(net, group_of(GROUP_THREAD), peer, queue, word, width, amo, NET_NUM_AMOS);
    if (t.status == TERN_OK) {
        uint64_t seen = 0;
        switch (t.route) {
        case NET_ROUTE_P2P:
            seen = p2p_atomic(t.address, amo, width, value, compare);
            break;
        }
        if (old) {
            *old = seen;
        }
    }
    return t.status;
}

/* All threads of the group; the signal comes after the puts of all of them. Refused, it moves nothing. */
TERN_DEVICE int route_put_signal(const struct tern_net *net, struct net_group g, int peer, uint32_t queue,
                                 void *dst, const void *src, uint64_t bytes, void *word, uint32_t width,
                                 uint32_t signal, uint64_t value)
{
    struct net_target t = net_find(net, g, peer, queue, dst, bytes, 0), s;
    if (t.status != TERN_OK) {
        return t.status;
    }
    s = net_find_word(net, g, peer, queue, word, width, signal, NET_NUM_SIGNALS);
    if (s.status == TERN_OK) {
        group_sync(g);
        switch (t.route) {
        case NET_ROUTE_P2P:
            p2p_copy(g, t.address, (const char *)src, bytes);
            group_sync(g);
            if (g.index == 0) {
                p2p_signal(s.address, value, width, signal == TERN_SIGNAL_SET);
            }
            break;
        }
    }
    return s.status;
}

/* What this thread issued to this peer by this queue is complete; peer -1: to all, by all. It serves as a
 * fence, too: loads and stores know no weaker one. */
TERN_DEVICE int route_quiet(const struct tern_net *net, int peer, uint32_t queue)
{
    if (peer != -1 && ((uint32_t)peer >= (uint32_t)net->num_ranks || queue >= net->num_queues)) {
        return net_refuse(net, group_of(GROUP_THREAD), NET_FAULT_ROUTE, TERN_INVALID_ARGUMENT, peer, 0);
    }
    p2p_flush();
    return TERN_OK;
}

#endif
