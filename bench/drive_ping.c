/* SPDX-License-Identifier: Apache-2.0
 *
 * One-way latency: ranks 0 and 1 raise a word of each other in turn, by an inline put, a signal, an atomic,
 * or a put with a signal behind it. The clock starts after the first round, which absorbs that the kernels do
 * not start together. With a scope of a warp or a block the whole group waits and sends. */
#define TERN_DIALECT
#include "tern/tern_device.h"

#include "drive_args.h"
#include "kernels/kernels.h"

/* Raises the peer's word to that of round i. Only a put with signal is launched for more than a thread. */
TERN_DEVICE int raise(const struct drive_args *p, struct net_group g, int peer, int64_t i)
{
    const struct tern_net *net = &p->net;
    uint64_t *word = &p->words[DRIVE_WORD];
    uint64_t value = drive_value(p->seed, p->width, i), last = drive_value(p->seed, p->width, i - 1);
    if (p->kind == DRIVE_PUT_SIGNAL) {
        return route_put_signal(net, g, peer, 0, p->to + (uint64_t)net->rank * p->area,
                                p->from + (uint64_t)peer * p->area, p->bytes, word, 8, TERN_SIGNAL_SET,
                                value);
    }
    switch (p->kind) {
    case DRIVE_INLINE:
        return tern_put_inline(net, peer, 0, word, value, p->width);
    case DRIVE_SIGNAL_ADD:
        return tern_signal_add(net, peer, 0, word, value - last, p->width);
    case DRIVE_SIGNAL_SET:
        return tern_signal_set(net, peer, 0, word, value, p->width);
    default:
        return tern_atomic(net, peer, 0, word, p->amo,
                           p->amo == TERN_AMO_ADD   ? value - last
                           : p->amo == TERN_AMO_XOR ? value ^ last
                                                    : value,
                           last, p->width);
    }
}

/* Until the own word is not that of the round before. */
TERN_DEVICE int await_round(const struct drive_args *p, struct net_group g, int64_t i)
{
    int status = TERN_OK;
    if (g.index == 0) {
        status = tern_wait(&p->net, &p->words[DRIVE_WORD], TERN_COMPARE_NE,
                           drive_value(p->seed, p->width, i - 1), p->width, 0);
        if (p->log) {
            p->log[i] = net_look(&p->words[DRIVE_WORD], p->width);
        }
    }
    return group_or(g, status != TERN_OK) ? TERN_TIMEOUT : TERN_OK;
}

TERN_DEVICE void ping_as(const struct drive_args *p, const int scope)
{
    struct net_group g = group_of(scope);
    int peer = p->net.rank ^ 1, status = TERN_OK;
    uint64_t first_ns = 0;
    for (int64_t i = 0; i <= p->rounds && status == TERN_OK; i++) {
        status = p->net.rank == 0 ? raise(p, g, peer, i) : TERN_OK;
        status = status != TERN_OK ? status : await_round(p, g, i);
        if (p->net.rank == 1 && status == TERN_OK) {
            status = raise(p, g, peer, i);
        }
        first_ns = i == 0 ? clock_ns() : first_ns;
    }
    if (g.index == 0) {
        uint64_t ns = clock_ns() - first_ns;
        st_relaxed_sys_u64(&p->result[0], (uint64_t)(uint32_t)(status < 0 ? -status : status));
        st_relaxed_sys_u64(&p->result[1], ns);
    }
}

TERN_KERNEL(drive_ping, struct drive_args, p)
{
    if (p->scope == GROUP_THREAD) {
        if (tid() == 0) {
            ping_as(p, GROUP_THREAD);
        }
    } else if (p->scope == GROUP_WARP) {
        ping_as(p, GROUP_WARP);
    } else {
        ping_as(p, GROUP_BLOCK);
    }
}
