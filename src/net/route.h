/* SPDX-License-Identifier: Apache-2.0
 *
 * Which way an operation takes: the one place where a peer's route byte is looked at. Each way is a case of
 * the switches below and has a header of its own (p2p.h, ring_route.h, queue_route.h); what they have in
 * common is done here: the symmetric address becomes the peer's, the group synchronises, one thread signals,
 * refusals are recorded.
 *
 * An address is looked for in the view's first window, that of tern_alloc or an object's, whose bounds travel
 * with the kernel's arguments, and so do its bases at the ranks nearby: after an acquire a load comes from
 * L2, 150 ns away. Then among the other windows, which are sorted by address. */
#ifndef TERN_ROUTE_H
#define TERN_ROUTE_H

#include "net/p2p.h"
#include "net/queue_route.h"
#include "net/ring_route.h"
#include "net/target.h"
#include "net/wait.h"

/* How many there are of each enum. */
enum { NET_NUM_SIGNALS = TERN_SIGNAL_SET + 1, NET_NUM_AMOS = TERN_AMO_FETCH + 1 };

/* Whether `bytes` from there on are in the window. */
TERN_DEVICE int net_holds(uint64_t window_bytes, uint64_t offset, uint64_t bytes)
{
    return offset < window_bytes && bytes <= window_bytes - offset;
}

/* Of the windows in the table, the one that begins last at or before p, if any does. */
TERN_DEVICE const struct tern_net_window *net_window_before(const struct tern_net *net, const void *p)
{
    uint32_t low = 0, high = net->num_windows; /* those below `low` do, those from `high` on begin behind p */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if ((uintptr_t)net->windows[middle].own <= (uintptr_t)p) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low != 0 ? &net->windows[low - 1] : 0;
}

/* Where `bytes` at `p` of this rank lie in the window of `peer`, as its route names it; 0 if they are in no
 * window, or nothing leads there. */
TERN_DEVICE char *net_address(const struct tern_net *net, int peer, const void *p, uint64_t bytes)
{
    const struct tern_net_window *w = &net->heap;
    uint64_t offset = (uint64_t)(uintptr_t)p - (uint64_t)(uintptr_t)w->own; /* wraps below it */
    char *const *bases = w->bases;
    char *base;
    if (!net_holds(w->bytes, offset, bytes)) {
        w = net_window_before(net, p);
        if (w == 0) {
            return 0;
        }
        offset = (uint64_t)(uintptr_t)p - (uint64_t)(uintptr_t)w->own;
        bases = w->bases;
        if (!net_holds(w->bytes, offset, bytes)) {
            return 0;
        }
    }
    base = bases[peer];
    return base ? base + offset : 0;
}

/* The same, of the view's first window and a rank whose base is in the view: nothing has to be loaded. 0:
 * look further. */
TERN_DEVICE char *net_near(const struct tern_net *net, int peer, const void *p, uint64_t bytes)
{
    uint32_t i = (uint32_t)peer - (uint32_t)net->first_near;
    uint64_t offset = (uint64_t)(uintptr_t)p - (uint64_t)(uintptr_t)net->heap.own; /* wraps below it */
    char *base = i < TERN_NET_NUM_NEAR ? net->near_bases[i] : 0;
    return base && net_holds(net->heap.bytes, offset, bytes) ? base + offset : 0;
}

/* Likewise of a word; 0 also if a request for it is to be refused. */
TERN_DEVICE char *net_near_word(const struct tern_net *net, int peer, uint32_t queue, const void *p,
                                uint32_t width, uint32_t op, uint32_t num_ops)
{
    int is_sound = queue < net->num_queues && op < num_ops && (width == 4 || width == 8) &&
                   ((uintptr_t)p & (width - 1)) == 0;
    return is_sound ? net_near(net, peer, p, width) : 0;
}

/* An enum net_route; what the link lacks is no part of it. */
TERN_DEVICE uint32_t net_route_to(const struct tern_net *net, int peer)
{
    return net->routes[peer] & ~(uint32_t)NET_ROUTE_LACKS_ATOMICS;
}

/* The same for loads and stores of this rank; 0 if they do not lead there. */
TERN_DEVICE char *net_pointer(const struct tern_net *net, int peer, const void *p)
{
    return (uint32_t)peer < (uint32_t)net->num_ranks && net_route_to(net, peer) == NET_ROUTE_P2P
               ? net_address(net, peer, p, 1)
               : 0;
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
    struct net_target t = {TERN_OK, NET_ROUTE_NONE, 0, 0, 0, 0};
    if (queue < net->num_queues && bytes != 0 && (width == 0 || ((uintptr_t)p & (width - 1)) == 0)) {
        t.address = net_near(net, peer, p, bytes);
        if (t.address != 0) {
            t.route = NET_ROUTE_P2P;
            return t;
        }
    }
    if ((uint32_t)peer >= (uint32_t)net->num_ranks || queue >= net->num_queues) {
        t.status = net_refuse(net, g, NET_FAULT_ROUTE, TERN_INVALID_ARGUMENT, peer, p);
        return t;
    }
    /* Both loads before either is looked at: after an acquire each comes from L2, 150 ns away. */
    t.route = net->routes[peer];
    t.address = bytes ? net_address(net, peer, p, bytes) : 0;
    if (TERN_RARE(t.route != NET_ROUTE_P2P)) {
        t.lacks_atomics = (t.route & NET_ROUTE_LACKS_ATOMICS) != 0;
        t.route &= ~(uint32_t)NET_ROUTE_LACKS_ATOMICS;
        if (t.route == NET_ROUTE_NONE) {
            t.status = net_refuse(net, g, NET_FAULT_ROUTE, TERN_UNSUPPORTED, peer, p);
            return t;
        }
    }
    t.ring = t.route == NET_ROUTE_RING ? ring_to(net, peer, queue) : 0;
    t.queue = t.route == NET_ROUTE_QUEUE ? queue_to(net, peer, queue) : 0;
    if (bytes == 0) {
        return t;
    }
    if (t.address == 0 || (width != 0 && ((uintptr_t)p & (width - 1)) != 0)) {
        t.status = net_refuse(net, g, NET_FAULT_ADDRESS, TERN_INVALID_ARGUMENT, peer, p);
    }
    return t;
}

/* A word. op: an enumerator, which is to be below num_ops. is_atomic: not for every link. */
TERN_DEVICE struct net_target net_find_word(const struct tern_net *net, struct net_group g, int peer,
                                            uint32_t queue, const void *p, uint32_t width, uint32_t op,
                                            uint32_t num_ops, int is_atomic)
{
    struct net_target t = {TERN_INVALID_ARGUMENT, NET_ROUTE_NONE, 0, 0, 0, 0};
    if ((width != 4 && width != 8) || op >= num_ops) {
        if (g.index == 0) {
            struct net_note n = {NET_FAULT_WORD, TERN_INVALID_ARGUMENT, peer, width, op, 0, p, 0, 0, 0, 0, 0};
            net_record(net, &n);
        }
        return t;
    }
    t = net_find(net, g, peer, queue, p, width, width);
    if (TERN_RARE(t.lacks_atomics) && is_atomic && t.status == TERN_OK) {
        t.status = net_refuse(net, g, NET_FAULT_ATOMIC, TERN_UNSUPPORTED, peer, p);
    }
    return t;
}

/* All threads of the group; what any of them wrote to the source before is what goes out, and any of them
 * may signal or quiet afterwards. is_plain: the source may be written again on return, else after a quiet. */
TERN_DEVICE int route_put(const struct tern_net *net, struct net_group g, int peer, uint32_t queue, void *dst,
                          const void *src, uint64_t bytes, int is_plain)
{
    struct net_target t = net_find(net, g, peer, queue, dst, bytes, 0);
    if (t.status == TERN_OK) {
        group_sync(g);
        switch (t.route) {
        case NET_ROUTE_P2P:
            p2p_copy(g, t.address, (const char *)src, bytes);
            break;
        case NET_ROUTE_RING:
            t.status = group_status(g, g.index == 0 ? ring_put_to(net, &t, src, bytes, is_plain) : TERN_OK);
            break;
        case NET_ROUTE_QUEUE:
            t.status = group_status(g, g.index == 0 ? queue_put_to(net, &t, src, bytes, is_plain) : TERN_OK);
            break;
        }
        group_sync(g);
    }
    return t.status;
}

/* Likewise; is_plain: the bytes are here on return, else after a quiet. */
TERN_DEVICE int route_get(const struct tern_net *net, struct net_group g, int peer, uint32_t queue, void *dst,
                          const void *src, uint64_t bytes, int is_plain)
{
    struct net_target t = net_find(net, g, peer, queue, src, bytes, 0);
    if (t.status == TERN_OK) {
        group_sync(g); /* nobody reads the destination any more */
        switch (t.route) {
        case NET_ROUTE_P2P:
            p2p_copy(g, (char *)dst, t.address, bytes);
            break;
        case NET_ROUTE_RING:
            t.status = group_status(g, g.index == 0 ? ring_get_from(net, &t, dst, bytes, is_plain) : TERN_OK);
            break;
        case NET_ROUTE_QUEUE:
            t.status =
                group_status(g, g.index == 0 ? queue_get_from(net, &t, dst, bytes, is_plain) : TERN_OK);
            break;
        }
        group_sync(g);
    }
    return t.status;
}

/* What one thread asks of one word. */
enum route_word_kind { ROUTE_WORD_PUT, ROUTE_WORD_SIGNAL, ROUTE_WORD_ATOMIC };

/* How it ended, and of an atomic the word as it was. */
struct route_word_end {
    int status;
    uint64_t old;
};

/* A word whose base is not in the view, or one that is to be refused. op: an enum tern_signal or tern_amo. */
TERN_DEVICE struct route_word_end route_word(const struct tern_net *net, int kind, int peer, uint32_t queue,
                                             void *word, uint32_t width, uint32_t op, uint64_t value,
                                             uint64_t compare, int asks)
{
    uint32_t num_ops = kind == ROUTE_WORD_PUT      ? 1
                       : kind == ROUTE_WORD_SIGNAL ? (uint32_t)NET_NUM_SIGNALS
                                                   : (uint32_t)NET_NUM_AMOS;
    int adds = (kind == ROUTE_WORD_SIGNAL && op == TERN_SIGNAL_ADD) ||
               (kind == ROUTE_WORD_ATOMIC && op != TERN_AMO_FETCH);
    struct net_target t =
        net_find_word(net, group_of(GROUP_THREAD), peer, queue, word, width, op, num_ops, adds);
    struct route_word_end end = {t.status, 0};
    if (t.status != TERN_OK) {
        return end;
    }
    switch (t.route * 3 + (uint32_t)kind) {
    case NET_ROUTE_P2P * 3 + ROUTE_WORD_PUT:
        p2p_put_inline(t.address, value, width);
        break;
    case NET_ROUTE_P2P * 3 + ROUTE_WORD_SIGNAL:
        p2p_signal(t.address, value, width, op == TERN_SIGNAL_SET);
        break;
    case NET_ROUTE_P2P * 3 + ROUTE_WORD_ATOMIC:
        end.old = p2p_atomic(t.address, op, width, value, compare);
        break;
    case NET_ROUTE_RING * 3 + ROUTE_WORD_PUT:
        end.status = ring_put_inline_to(net, &t, value, width);
        break;
    case NET_ROUTE_RING * 3 + ROUTE_WORD_SIGNAL:
        end.status = ring_signal_to(net, &t, width, op, value);
        break;
    case NET_ROUTE_RING * 3 + ROUTE_WORD_ATOMIC:
        end.status = ring_atomic_at(net, &t, width, op, value, compare, asks, &end.old);
        break;
    case NET_ROUTE_QUEUE * 3 + ROUTE_WORD_PUT:
        end.status = queue_put_inline_to(net, &t, value, width);
        break;
    case NET_ROUTE_QUEUE * 3 + ROUTE_WORD_SIGNAL:
        end.status = queue_signal_to(net, &t, width, op, value);
        break;
    case NET_ROUTE_QUEUE * 3 + ROUTE_WORD_ATOMIC:
        end.status = queue_atomic_at(net, &t, width, op, value, compare, asks, &end.old);
        break;
    }
    return end;
}

/* The same, and nobody asks. Apart from its callers: a kernel that raises words of ranks nearby is short, and
 * does not wait for its own instructions to come from memory. */
TERN_APART int route_word_far(const struct tern_net *net, int kind, int peer, uint32_t queue, void *word,
                              uint32_t width, uint32_t op, uint64_t value, uint64_t compare)
{
    return route_word(net, kind, peer, queue, word, width, op, value, compare, 0).status;
}

/* One thread, as the following. */
TERN_DEVICE int route_put_inline(const struct tern_net *net, int peer, uint32_t queue, void *dst,
                                 uint64_t value, uint32_t width)
{
    char *near = net_near_word(net, peer, queue, dst, width, 0, 1);
    if (TERN_RARE(near == 0)) {
        return route_word_far(net, ROUTE_WORD_PUT, peer, queue, dst, width, 0, value, 0);
    }
    p2p_put_inline(near, value, width);
    return TERN_OK;
}

/* After this thread's earlier puts to this peer by this queue. */
TERN_DEVICE int route_signal(const struct tern_net *net, int peer, uint32_t queue, void *word, uint32_t width,
                             uint32_t signal, uint64_t value)
{
    char *near = net_near_word(net, peer, queue, word, width, signal, NET_NUM_SIGNALS);
    if (TERN_RARE(near == 0)) {
        return route_word_far(net, ROUTE_WORD_SIGNAL, peer, queue, word, width, signal, value, 0);
    }
    p2p_signal(near, value, width, signal == TERN_SIGNAL_SET);
    return TERN_OK;
}

/* asks: *old is the word as it was, else 0. */
TERN_DEVICE int route_atomic(const struct tern_net *net, int peer, uint32_t queue, void *word, uint32_t width,
                             uint32_t amo, uint64_t value, uint64_t compare, int asks, uint64_t *old)
{
    char *near = net_near_word(net, peer, queue, word, width, amo, NET_NUM_AMOS);
    struct route_word_end end = {TERN_OK, 0};
    if (!TERN_RARE(near == 0)) {
        end.old = p2p_atomic(near, amo, width, value, compare);
    } else if (!asks) {
        end.status = route_word_far(net, ROUTE_WORD_ATOMIC, peer, queue, word, width, amo, value, compare);
    } else {
        end = route_word(net, ROUTE_WORD_ATOMIC, peer, queue, word, width, amo, value, compare, 1);
    }
    if (end.status == TERN_OK) {
        *old = asks ? end.old : 0;
    }
    return end.status;
}

/* Apart from its callers, which are short of registers. The address, or what it is refused with. */
TERN_APART uint64_t net_find_signal_far(const struct tern_net *net, int kind, int peer, uint32_t queue,
                                        const void *word, uint32_t width, uint32_t signal)
{
    struct net_target t = net_find_word(net, group_of(kind), peer, queue, word, width, signal,
                                        NET_NUM_SIGNALS, signal == TERN_SIGNAL_ADD);
    return t.status == TERN_OK ? target_remote(&t) : (uint64_t)(int64_t)t.status;
}

/* Where the word of a put's signal is. Most often in the same window as what the put has found, and then
 * nothing has to be looked up again. */
TERN_DEVICE struct net_target net_find_signal(const struct tern_net *net, struct net_group g, int peer,
                                              uint32_t queue, const struct net_target *put, const void *dst,
                                              uint64_t bytes, const void *word, uint32_t width,
                                              uint32_t signal)
{
    const uint64_t heap = (uint64_t)(uintptr_t)net->heap.own;
    const uint64_t from = (uint64_t)(uintptr_t)dst - heap, to = (uint64_t)(uintptr_t)word - heap;
    struct net_target s = *put;
    if (bytes != 0 && (width == 4 || width == 8) && signal < NET_NUM_SIGNALS &&
        ((uintptr_t)word & (width - 1)) == 0 && net_holds(net->heap.bytes, from, bytes) &&
        net_holds(net->heap.bytes, to, width) && (!put->lacks_atomics || signal == TERN_SIGNAL_SET)) {
        s.address = put->address + (int64_t)(to - from);
        return s;
    }
    uint64_t found = net_find_signal_far(net, g.kind, peer, queue, word, width, signal);
    s.status = (int64_t)found < 0 && (int64_t)found > TERN_STATUS_END ? (int)(int64_t)found : TERN_OK;
    s.address = (char *)(uintptr_t)found;
    return s;
}

/* A put and its signal where loads and stores do not lead. */
TERN_DEVICE int route_post_signal(const struct tern_net *net, struct net_group g, const struct net_target *t,
                                  const void *src, uint64_t bytes, const struct net_target *s, uint32_t width,
                                  uint32_t signal, uint64_t value, int is_plain)
{
    int status = TERN_OK;
    if (g.index == 0 && t->route == NET_ROUTE_RING) {
        status = ring_put_signal_to(net, t, src, bytes, s, width, signal, value, is_plain);
    } else if (g.index == 0) {
        status = queue_put_signal_to(net, t, src, bytes, s, width, signal, value, is_plain);
    }
    return group_status(g, status);
}

/* is_away, a constant: loads and stores do not lead there, as whoever calls knows. */
TERN_DEVICE int route_put_signal_to(const struct tern_net *net, struct net_group g, int is_away, int peer,
                                    uint32_t queue, void *dst, const void *src, uint64_t bytes, void *word,
                                    uint32_t width, uint32_t signal, uint64_t value, int is_plain)
{
    struct net_target t = net_find(net, g, peer, queue, dst, bytes, 0), s;
    if (t.status != TERN_OK) {
        return t.status;
    }
    s = net_find_signal(net, g, peer, queue, &t, dst, bytes, word, width, signal);
    if (s.status != TERN_OK) {
        return s.status;
    }
    group_sync(g);
    if (is_away || t.route != NET_ROUTE_P2P) {
        return route_post_signal(net, g, &t, src, bytes, &s, width, signal, value, is_plain);
    }
    p2p_copy(g, t.address, (const char *)src, bytes);
    group_sync(g);
    if (g.index == 0) {
        p2p_signal(s.address, value, width, signal == TERN_SIGNAL_SET);
    }
    return TERN_OK;
}

/* All threads of the group; the signal comes after the puts of all of them. Refused, it signals
 * nothing; bytes before those that are refused may have gone.
 * is_plain: as of route_put. */
TERN_DEVICE int route_put_signal(const struct tern_net *net, struct net_group g, int peer, uint32_t queue,
                                 void *dst, const void *src, uint64_t bytes, void *word, uint32_t width,
                                 uint32_t signal, uint64_t value, int is_plain)
{
    return route_put_signal_to(net, g, 0, peer, queue, dst, src, bytes, word, width, signal, value, is_plain);
}

/* The same to a peer where loads and stores do not lead. */
TERN_DEVICE int route_put_signal_away(const struct tern_net *net, struct net_group g, int peer,
                                      uint32_t queue, void *dst, const void *src, uint64_t bytes, void *word,
                                      uint32_t width, uint32_t signal, uint64_t value, int is_plain)
{
    return route_put_signal_to(net, g, 1, peer, queue, dst, src, bytes, word, width, signal, value, is_plain);
}

/* Whether a call can return with something under way, by whatever route. */
TERN_DEVICE int route_leaves_any(const struct tern_net *net) { return net->rings != 0 || net->queues != 0; }

/* What was handed over for these peers by these queues, of each from `first` to before `end`, is complete,
 * whatever becomes of the others; the first failure. */
TERN_DEVICE int route_quiet_range(const struct tern_net *net, int first_peer, int end_peer,
                                  uint32_t first_queue, uint32_t end_queue)
{
    int status = TERN_OK;
    for (int r = first_peer; r < end_peer; r++) {
        uint32_t route = net_route_to(net, r);
        for (uint32_t q = first_queue; route > NET_ROUTE_P2P && q < end_queue; q++) {
            int one = route == NET_ROUTE_RING ? ring_quiet(net, r, q) : queue_quiet(net, r, q);
            status = status == TERN_OK ? one : status;
        }
    }
    return status;
}

/* The same, and complete as others learn of it by whatever queue: where the peer has several NICs, what one
 * has acknowledged is pushed on before another tells of it. */
TERN_DEVICE int route_settle_range(const struct tern_net *net, int first_peer, int end_peer,
                                   uint32_t first_queue, uint32_t end_queue)
{
    int status = TERN_OK;
    for (int r = first_peer; r < end_peer; r++) {
        const int is_far =
            net_route_to(net, r) == NET_ROUTE_QUEUE && (queue_to(net, r, 0)->flags & NET_QUEUE_FAR_NICS) != 0;
        const char *word = is_far ? net_address(net, r, net->abort_word, 8) : 0;
        int one = is_far ? TERN_OK : route_quiet_range(net, r, r + 1, first_queue, end_queue);
        for (uint32_t q = first_queue; is_far && q < end_queue; q++) {
            int pushed = queue_settle_far(net, r, q, (uint64_t)(uintptr_t)word);
            one = one == TERN_OK ? pushed : one;
        }
        status = status == TERN_OK ? one : status;
    }
    return status;
}

/* What this thread issued to this peer by this queue is complete, and the first failure. Peer -1: to every
 * peer; TERN_ALL_QUEUES: by every queue. It serves as a fence, too: no route knows a weaker one. */
TERN_DEVICE int route_quiet(const struct tern_net *net, int peer, uint32_t queue)
{
    int every_peer = peer == -1, every_queue = queue == TERN_ALL_QUEUES;
    if ((!every_peer && (uint32_t)peer >= (uint32_t)net->num_ranks) ||
        (!every_queue && queue >= net->num_queues)) {
        return net_refuse(net, group_of(GROUP_THREAD), NET_FAULT_ROUTE, TERN_INVALID_ARGUMENT, peer, 0);
    }
    p2p_flush();
    if (!route_leaves_any(net)) {
        return TERN_OK;
    }
    return route_settle_range(net, every_peer ? 0 : peer, every_peer ? net->num_ranks : peer + 1,
                              every_queue ? 0 : queue, every_queue ? net->num_queues : queue + 1);
}

/* A word that changes when a peer is lost; NULL: none is ever known to be. */
TERN_DEVICE const uint64_t *route_lost_word(const struct tern_net *net)
{
    return net->queues ? queue_lost_word(net) : ring_lost_word(net);
}

/* Whether this peer is. */
TERN_DEVICE int route_has_lost(const struct tern_net *net, int peer)
{
    uint32_t route = net_route_to(net, peer);
    return route == NET_ROUTE_RING    ? ring_has_lost(net, peer)
           : route == NET_ROUTE_QUEUE ? queue_has_lost(net, peer)
                                      : 0;
}

/* What became of what was handed over to this peer by this queue: its loss is noticed by who looks. The proxy
 * looks by itself. */
TERN_DEVICE void route_look(const struct tern_net *net, int peer, uint32_t queue)
{
    if (net_route_to(net, peer) == NET_ROUTE_QUEUE) {
        (void)queue_poll(queue_to(net, peer, queue));
    }
}

#endif
