/* SPDX-License-Identifier: Apache-2.0
 *
 * One-way latency: ranks 0 and 1 raise a word of each other in turn, by an inline put, a signal, an atomic,
 * or a put with a signal behind it. The clock starts after the first round, which absorbs that the kernels
 * do not start together. With a scope of a warp or a block the whole group waits and sends a put; words are
 * raised by one thread. */
#define TERN_DIALECT
#include "tern/tern_device.h"

#include "drive_args.h"
#include "kernels/kernels.h"

/* What the word becomes in a round, and what it is before. */
struct ping_round {
    uint64_t value, last;
};

TERN_DEVICE struct ping_round ping_round_of(const struct drive_args *p, int64_t i)
{
    struct ping_round r = {drive_value(p->seed, p->width, i), drive_value(p->seed, p->width, i - 1)};
    return r;
}

/* Raises the peer's word to that of a round. Kind and width are constants of the caller, as a program's
 * are. */
TERN_DEVICE int raise(const struct drive_args *p, struct net_group g, int peer, const struct ping_round *r,
                      const int kind, const uint32_t width)
{
    const struct tern_net *net = &p->net;
    uint64_t *word = &p->words[DRIVE_WORD];
    switch (kind) {
    case DRIVE_PUT_SIGNAL:
        return route_put_signal(net, g, peer, 0, p->to + (uint64_t)net->rank * p->area,
                                p->from + (uint64_t)peer * p->area, p->bytes, word, 8, TERN_SIGNAL_SET,
                                r->value, 0);
    case DRIVE_INLINE:
        return tern_put_inline(net, peer, 0, word, r->value, width);
    case DRIVE_SIGNAL_ADD:
        return tern_signal_add(net, peer, 0, word, r->value - r->last, width);
    case DRIVE_SIGNAL_SET:
        return tern_signal_set(net, peer, 0, word, r->value, width);
    default:
        return tern_atomic(net, peer, 0, word, p->amo,
                           p->amo == TERN_AMO_ADD   ? r->value - r->last
                           : p->amo == TERN_AMO_XOR ? r->value ^ r->last
                                                    : r->value,
                           r->last, width);
    }
}

/* Until the own word is not that of the round before. */
TERN_DEVICE int await_round(const struct drive_args *p, struct net_group g, int64_t i,
                            const struct ping_round *r, const uint32_t width)
{
    int status = TERN_OK;
    if (g.index == 0) {
        status = tern_wait(&p->net, &p->words[DRIVE_WORD], TERN_COMPARE_NE, r->last, width, 0);
        if (p->log) {
            p->log[i] = net_look(&p->words[DRIVE_WORD], width);
        }
    }
    return group_or(g, status != TERN_OK) ? TERN_TIMEOUT : TERN_OK;
}

TERN_DEVICE void ping_as(const struct drive_args *p, const int scope, const int kind, const uint32_t width)
{
    struct net_group g = group_of(scope);
    int peer = p->net.rank ^ 1, status = TERN_OK;
    uint64_t first_ns = 0;
    struct ping_round now = ping_round_of(p, 0);
    for (int64_t i = 0; i <= p->rounds && status == TERN_OK; i++) {
        status = p->net.rank == 0 ? raise(p, g, peer, &now, kind, width) : TERN_OK;
        struct ping_round next = ping_round_of(p, i + 1); /* while the word travels: that is no part of it */
        status = status != TERN_OK ? status : await_round(p, g, i, &now, width);
        if (p->net.rank == 1 && status == TERN_OK) {
            status = raise(p, g, peer, &now, kind, width);
        }
        now = next;
        first_ns = i == 0 ? clock_ns() : first_ns;
    }
    if (g.index == 0) {
        uint64_t ns = clock_ns() - first_ns;
        st_relaxed_sys_u64(&p->result[0], (uint64_t)(uint32_t)(status < 0 ? -status : status));
        st_relaxed_sys_u64(&p->result[1], ns);
    }
}

/* One thread. */
TERN_DEVICE void ping_words(const struct drive_args *p, const uint32_t width)
{
    switch (p->kind) {
    case DRIVE_INLINE:
        ping_as(p, GROUP_THREAD, DRIVE_INLINE, width);
        break;
    case DRIVE_SIGNAL_ADD:
        ping_as(p, GROUP_THREAD, DRIVE_SIGNAL_ADD, width);
        break;
    case DRIVE_SIGNAL_SET:
        ping_as(p, GROUP_THREAD, DRIVE_SIGNAL_SET, width);
        break;
    default:
        ping_as(p, GROUP_THREAD, DRIVE_ATOMIC, width);
        break;
    }
}

TERN_KERNEL(drive_ping, struct drive_args, p)
{
    if (p->kind != DRIVE_PUT_SIGNAL || p->scope == GROUP_THREAD) {
        if (tid() != 0) {
            return;
        }
        if (p->kind == DRIVE_PUT_SIGNAL) {
            ping_as(p, GROUP_THREAD, DRIVE_PUT_SIGNAL, 8);
        } else if (p->width == 8) {
            ping_words(p, 8);
        } else {
            ping_words(p, 4);
        }
    } else if (p->scope == GROUP_WARP) {
        ping_as(p, GROUP_WARP, DRIVE_PUT_SIGNAL, 8);
    } else {
        ping_as(p, GROUP_BLOCK, DRIVE_PUT_SIGNAL, 8);
    }
}
