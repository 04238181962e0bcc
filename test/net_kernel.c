/* SPDX-License-Identifier: Apache-2.0
 *
 * A user's kernel that makes every call of tern_device.h, each by the threads it is for: net_kernel_test
 * launches it on either machine. Between a call and what relies on it there is nothing but the calls' own
 * promises and, where one thread speaks for the block, the block's barrier. */
#define TERN_DIALECT
#include "tern/tern_device.h"

#include "net_kernel.h"

enum { TERN_THREADS_net_tour = TOUR_THREADS, TERN_THREADS_net_types = 32 };

TERN_DEVICE void copy_seen(struct tour_box *to, const struct tour_box *from)
{
    for (size_t i = (size_t)tid(); i < sizeof *to; i += (size_t)nthr()) {
        ((unsigned char *)to)[i] = ((const unsigned char *)from)[i];
    }
}

/* A plain call returns when its source may be written again: from a scratch that is cleared at once. What
 * gets bring, if anything, comes there later. */
TERN_DEVICE void clear(unsigned char *scratch, int bytes, int index, int count)
{
    for (int i = index; i < bytes; i += count) {
        scratch[i] = 0;
    }
}

TERN_DEVICE void bring(unsigned char *scratch, const unsigned char *from, int bytes, int index, int count)
{
    for (int i = index; i < bytes; i += count) {
        scratch[i] = from[i];
    }
}

TERN_DEVICE int put_cleared_warp(const struct tour_args *p, int next)
{
    unsigned char *scratch = p->got->strips[0][warp()];
    int status;
    bring(scratch, p->from->strips[0][warp()], STRIP, lane(), 32);
    sync_warp();
    status = tern_put_warp(&p->net, next, 0, p->box->strips[0][warp()], scratch, STRIP);
    sync_warp(); /* its call has returned to every thread */
    clear(scratch, STRIP, lane(), 32);
    return status;
}

TERN_DEVICE int put_cleared_block(const struct tour_args *p, int next)
{
    unsigned char *scratch = p->got->sheets[0];
    int status;
    bring(scratch, p->from->sheets[0], SHEET, tid(), nthr());
    sync_block();
    status = tern_put_block(&p->net, next, 0, p->box->sheets[0], scratch, SHEET);
    sync_block();
    clear(scratch, SHEET, tid(), nthr());
    return status;
}

TERN_DEVICE int signal_cleared_warp(const struct tour_args *p, int next)
{
    unsigned char *scratch = p->got->signalled[0][1];
    int status;
    bring(scratch, p->from->signalled[0][1], SHEET, lane(), 32);
    sync_warp();
    status = tern_put_signal_warp(&p->net, next, 0, p->box->signalled[0][1], scratch, SHEET,
                                  &p->box->flags[2], 8, TERN_SIGNAL_ADD, 1);
    sync_warp();
    clear(scratch, SHEET, lane(), 32);
    return status;
}

TERN_DEVICE int signal_cleared_block(const struct tour_args *p, int next)
{
    unsigned char *scratch = p->got->signalled[0][2];
    int status;
    bring(scratch, p->from->signalled[0][2], SHEET, tid(), nthr());
    sync_block();
    status = tern_put_signal_block(&p->net, next, 0, p->box->signalled[0][2], scratch, SHEET,
                                   &p->box->flags[4], 8, TERN_SIGNAL_ADD, 1);
    sync_block();
    clear(scratch, SHEET, tid(), nthr());
    return status;
}

TERN_DEVICE int put_cleared(const struct tour_args *p, int next)
{
    unsigned char *scratch = p->got->cells[0][tid()];
    int status;
    memcpy(scratch, p->from->cells[0][tid()], CELL);
    status = tern_put(&p->net, next, 0, p->box->cells[0][tid()], scratch, CELL);
    memset(scratch, 0, CELL);
    return status;
}

TERN_DEVICE int signal_cleared(const struct tour_args *p, int next)
{
    unsigned char *scratch = p->got->signalled[0][0];
    int status;
    memcpy(scratch, p->from->signalled[0][0], SHEET);
    status = tern_put_signal(&p->net, next, 0, p->box->signalled[0][0], scratch, SHEET, &p->box->flags[0], 8,
                             TERN_SIGNAL_ADD, 1);
    memset(scratch, 0, SHEET);
    return status;
}

TERN_DEVICE int put_all(const struct tour_args *p, struct tern_bulk *bulk, int next)
{
    const struct tern_net *net = &p->net;
    struct tour_box *to = p->box;
    const struct tour_box *from = p->from;
    int t = tid(), w = warp(), status;
    status = put_cleared(p, next);
    status |= tern_put_nbi(net, next, 0, to->cells[1][t], from->cells[1][t], CELL);
    status |= put_cleared_warp(p, next);
    status |= tern_put_nbi_warp(net, next, 0, to->strips[1][w], from->strips[1][w], STRIP);
    status |= put_cleared_block(p, next);
    status |= tern_put_nbi_block(net, next, 0, to->sheets[1], from->sheets[1], SHEET);
    status |= tern_put_bulk_warp(net, bulk, next, 0, to->strips[2][w], from->strips[2][w], STRIP);
    status |= tern_put_bulk_block(net, bulk, next, 0, to->sheets[2], from->sheets[2], SHEET);
    status |= tern_atomic(net, next, 0, &to->sum, TERN_AMO_ADD, (uint64_t)t + 1, 0, 8);
    status |= tern_atomic_fetch(net, next, 0, &to->tickets, TERN_AMO_ADD, 1, 0, 8, &p->olds[t]);
    if (t == 1) {
        status |= tern_put_inline(net, next, 0, &to->small[0], from->small[0], 4);
        status |= tern_put_inline(net, next, 0, &to->large, from->large, 8);
    }
    uint32_t *stored = (uint32_t *)tern_at_peer(net, next, &to->stored[t]);
    if (stored) { /* the last thing before the barrier */
        *stored = from->stored[t];
    } else {
        status |= tern_put_inline(net, next, 0, &to->stored[t], from->stored[t], 4);
    }
    return status;
}

/* What a plain get brought is here when it returns: it is looked at, and then overwritten. */
TERN_DEVICE int get_at_once(const struct tour_args *p, int next)
{
    struct tour_box *to = p->got, *early = p->early;
    const struct tour_box *from = p->box;
    int t = tid(), w = warp(), status;
    status = tern_get(&p->net, next, 0, to->cells[0][t], from->cells[0][t], CELL);
    bring(early->cells[0][t], to->cells[0][t], CELL, 0, 1);
    status |= tern_get_warp(&p->net, next, 0, to->strips[0][w], from->strips[0][w], STRIP);
    bring(early->strips[0][w], to->strips[0][w], STRIP, lane(), 32);
    status |= tern_get_block(&p->net, next, 0, to->sheets[0], from->sheets[0], SHEET);
    bring(early->sheets[0], to->sheets[0], SHEET, t, nthr());
    return status;
}

TERN_DEVICE int get_all(const struct tour_args *p, struct tern_bulk *bulk, int next)
{
    const struct tern_net *net = &p->net;
    struct tour_box *to = p->got;
    const struct tour_box *from = p->box;
    int t = tid(), w = warp(), status;
    status = get_at_once(p, next);
    status |= tern_get_nbi(net, next, 0, to->cells[1][t], from->cells[1][t], CELL);
    status |= tern_get_nbi_warp(net, next, 0, to->strips[1][w], from->strips[1][w], STRIP);
    status |= tern_get_nbi_block(net, next, 0, to->sheets[1], from->sheets[1], SHEET);
    status |= tern_get_bulk_warp(net, bulk, next, 0, to->strips[2][w], from->strips[2][w], STRIP);
    status |= tern_get_bulk_block(net, bulk, next, 0, to->sheets[2], from->sheets[2], SHEET);
    /* Every way to say it; the last one is the one that covers all. */
    status |= tern_quiet(net, next, 0) | tern_quiet(net, next, TERN_ALL_QUEUES) | tern_quiet(net, -1, 0);
    return status | tern_quiet_all(net);
}

/* Two sheets by a thread, two by a warp, two by the block; then two flags that come after them all. */
TERN_DEVICE int signal_all(const struct tour_args *p, int next)
{
    const struct tern_net *net = &p->net;
    struct tour_box *to = p->box;
    const struct tour_box *from = p->from;
    int status = 0;
    if (tid() == 40) {
        status |= signal_cleared(p, next);
        status |= tern_put_signal_nbi(net, next, 0, to->signalled[1][0], from->signalled[1][0], SHEET,
                                      &to->flags[1], 8, TERN_SIGNAL_ADD, 1);
    }
    if (warp() == 1) {
        status |= signal_cleared_warp(p, next);
        status |= tern_put_signal_nbi_warp(net, next, 0, to->signalled[1][1], from->signalled[1][1], SHEET,
                                           &to->flags[3], 8, TERN_SIGNAL_ADD, 1);
    }
    status |= signal_cleared_block(p, next);
    status |= tern_put_signal_nbi_block(net, next, 0, to->signalled[1][2], from->signalled[1][2], SHEET,
                                        &to->flags[5], 8, TERN_SIGNAL_ADD, 1);
    if (tid() == 3) {
        status |= tern_put_inline(net, next, 0, &to->small[1], from->small[1], 4);
        status |= tern_fence(net, next, 0);
        status |= tern_signal_add(net, next, 0, &to->narrow_flags[0], 1, 4);
        status |= tern_fence(net, -1, TERN_ALL_QUEUES) | tern_fence_all(net);
        status |= tern_signal_set(net, next, 0, &to->narrow_flags[1], p->round, 4);
    }
    return status;
}

TERN_DEVICE int wait_all(const struct tour_args *p)
{
    const struct tour_box *box = p->box;
    int status = 0;
    if (tid() == 70) {
        for (int i = 0; i < 6 && status == 0; i++) { /* one deadline, if the rank before is lost */
            status = tern_wait(&p->net, &box->flags[i], TERN_COMPARE_GE, p->round, 8, 0);
        }
        if (status == 0) {
            status = tern_wait(&p->net, &box->narrow_flags[0], TERN_COMPARE_EQ, p->round, 4, 0);
        }
        while (status == 0 && !tern_test(&box->narrow_flags[1], TERN_COMPARE_EQ, p->round, 4)) {
            spin();
        }
    }
    return sync_block_or(status) ? TERN_TIMEOUT : TERN_OK;
}

TERN_KERNEL(net_tour, struct tour_args, p)
{
    int next = (p->net.rank + 1) % p->net.num_ranks;
    struct tern_bulk bulk;
    int status, met;
    tern_bulk_open(&bulk, shared_memory(), TOUR_SHARED);
    status = put_all(p, &bulk, next);
    /* Without the barrier, the wait, what is to come may still be on its way: it is not looked at. */
    met = tern_barrier_block(&p->net, &p->team);
    if (met == TERN_OK) { /* what a thread of the rank before has stored comes to another of this */
        p->got->stored[tid()] = p->box->stored[TOUR_THREADS - 1 - tid()];
    }
    status |= met;
    status |= get_all(p, &bulk, next);
    status |= signal_all(p, next);
    met = wait_all(p);
    if (met == TERN_OK) {
        copy_seen(p->seen, p->box);
    }
    status |= met;
    sync_block();
    if (warp() == 0) { /* all have read: the next round may come */
        status |= tern_barrier_warp(&p->net, &p->team);
    }
    if (tid() == 0) { /* no rank sees this one's mark before it has read, or not at all */
        status |= tern_put_inline(&p->net, next, 0, &p->box->mark, p->round, 4);
        met = tern_barrier(&p->net, &p->team);
        status |= met != TERN_OK || p->box->mark == (uint32_t)p->round ? met : TERN_MISMATCH;
    }
    p->status[tid()] |= status;
}

/* If the compiler took the calls' accesses for other types', it might leave stores out and keep what stood
 * there before. */
TERN_DEVICE int types_turn(const struct types_args *p, int turn)
{
    const struct tern_net *net = &p->net;
    float *from = p->from, *got = p->got;
    float *box = p->box + (1 << turn);
    int status;
    for (int i = 0; i < TYPES_NUMBERS; i++) {
        got[i] = -2;
        from[i] = p->first + (float)(turn * TYPES_NUMBERS + i);
    }
    status = tern_put(net, net->rank, 0, box, from, TYPES_NUMBERS * sizeof(float));
    status |= tern_get(net, net->rank, 0, got, box, TYPES_NUMBERS * sizeof(float));
    for (int i = 0; i < TYPES_NUMBERS; i++) {
        p->seen[turn * TYPES_NUMBERS + i] = got[i];
    }
    return status;
}

TERN_KERNEL(net_types, struct types_args, p)
{
    if (tid() == 0) {
        *p->status = types_turn(p, 0) | types_turn(p, 1) | types_turn(p, 2);
    }
}
