/* SPDX-License-Identifier: Apache-2.0
 *
 * From a request to entries of a queue pair: which keys its addresses have, how it is cut into messages, and
 * which entries stand for an operation.
 *
 * The last entry of every reservation asks for a completion, and is one block long, so that its index plus
 * one is what has been consumed. What is longer, or must be followed by a DUMP, leaves the asking to the
 * entry behind it. */
#ifndef TERN_QUEUE_BUILD_H
#define TERN_QUEUE_BUILD_H

#include "net/amo.h"
#include "net/queue.h"

/* ---- Keys ---- */

/* The list that a queue's `local` or `remote` names. It is used before this thread lets others run, see
 * key_lists.h. */
TERN_DEVICE const struct net_ranges *queue_list(const uint64_t *word)
{
    /* Pairs with the store in terni_key_lists_publish. */
    return (const struct net_ranges *)(uintptr_t)ld_published_sys_u64(word);
}

/* The range that holds addr, or NULL. */
TERN_DEVICE const struct net_range *queue_range_in(const struct net_ranges *list, uint64_t addr)
{
    const struct net_range *ranges = net_ranges_first(list);
    /* Those below `low` begin at or before addr, or none does; from `high` on they begin behind it. */
    uint64_t low = 1, high;
    /* There is a first in any list, and often it is all: nothing is read before it. */
    if (addr - ranges->addr < ranges->bytes) {
        return ranges;
    }
    high = list->num;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (ranges[middle].addr <= addr) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return addr - ranges[low - 1].addr < ranges[low - 1].bytes ? &ranges[low - 1] : NULL;
}

TERN_DEVICE const struct net_range *queue_range(const uint64_t *word, uint64_t addr)
{
    return queue_range_in(queue_list(word), addr);
}

/* One message. */
struct queue_piece {
    uint64_t remote, local;
    struct wqe_key rkey, lkey;
    uint32_t bytes;
};

/* Both of a queue, and then the first range of both, before any is looked at: they are on their way
 * together. */
struct queue_lists {
    const struct net_ranges *there, *here;
    struct net_range first_there, first_here;
    uint32_t message_bytes; /* of the queue */
};

TERN_DEVICE struct queue_lists queue_lists_of(const struct net_queue *q)
{
    struct queue_lists l;
    l.there = queue_list(&q->remote);
    l.here = queue_list(&q->local);
    l.message_bytes = q->message_bytes;
    l.first_there = *net_ranges_first(l.there);
    l.first_here = *net_ranges_first(l.here);
    return l;
}

/* Whether their first ranges hold two addresses there and one here. */
TERN_DEVICE int queue_lists_begin_with(const struct queue_lists *l, uint64_t remote, uint64_t local,
                                       uint64_t signal)
{
    return remote - l->first_there.addr < l->first_there.bytes &&
           signal - l->first_there.addr < l->first_there.bytes &&
           local - l->first_here.addr < l->first_here.bytes;
}

/* The range that holds addr, of the list that begins with `first`; 0: none does. */
TERN_DEVICE int queue_range_from(const struct net_ranges *list, const struct net_range *first, uint64_t addr,
                                 struct net_range *range)
{
    *range = *first;
    if (TERN_RARE(addr - first->addr >= first->bytes)) {
        const struct net_range *r = queue_range_in(list, addr);
        if (r == NULL) {
            return 0;
        }
        *range = *r;
    }
    return 1;
}

/* The first message of a request; 0 if no key names where it begins. */
TERN_DEVICE int queue_cut_in(const struct queue_lists *lists, uint64_t remote, uint64_t local, uint64_t bytes,
                             struct queue_piece *piece)
{
    struct net_range r, l;
    uint64_t most = lists->message_bytes;
    if (!queue_range_from(lists->there, &lists->first_there, remote, &r) ||
        !queue_range_from(lists->here, &lists->first_here, local, &l)) {
        return 0;
    }
    most = bytes < most ? bytes : most;
    most = r.addr + r.bytes - remote < most ? r.addr + r.bytes - remote : most;
    most = l.addr + l.bytes - local < most ? l.addr + l.bytes - local : most;
    piece->remote = remote;
    piece->local = local;
    piece->rkey = r.key;
    piece->lkey = l.key;
    piece->bytes = (uint32_t)most;
    return 1;
}

TERN_DEVICE int queue_cut(const struct net_queue *q, uint64_t remote, uint64_t local, uint64_t bytes,
                          struct queue_piece *piece)
{
    const struct queue_lists lists = queue_lists_of(q);
    return queue_cut_in(&lists, remote, local, bytes, piece);
}

/* ---- Entries ---- */

TERN_DEVICE void queue_build_rdma(const struct queue_fixed *q, uint64_t idx, uint32_t opcode,
                                  const struct queue_piece *piece, uint32_t fm_ce_se)
{
    struct wqe_rdma_args args;
    args.qpn = q->qpn;
    args.fm_ce_se = fm_ce_se;
    args.remote = piece->remote;
    args.local = piece->local;
    args.rkey = piece->rkey;
    args.lkey = piece->lkey;
    args.bytes = piece->bytes;
    wqe_rdma(&q->ring, (uint32_t)idx, &args, opcode, 0);
}

/* Completes when earlier READs and atomics have, and their data has been pushed into memory. */
TERN_DEVICE void queue_build_dump(const struct queue_fixed *q, uint64_t idx)
{
    struct wqe_dump_args args;
    args.qpn = q->qpn;
    args.fm_ce_se = WQE_CE_ALWAYS | WQE_FM_FENCE;
    args.lkey = q->results_lkey;
    args.bytes = 8;
    args.local = q->results_addr + 8 * NET_QUEUE_OF_NOBODY;
    wqe_dump(&q->ring, (uint32_t)idx, &args);
}

/* An atomic with what has to follow it. */
struct queue_amo {
    struct wqe_amo op;
    uint64_t remote;
    struct wqe_key rkey;
    uint32_t blocks; /* of the operation itself */
    uint32_t dump;   /* 1: its result is to be pushed */
    uint32_t nop;    /* 1: it has several blocks, and none after it that could complete */
};

/* On a word that the key names. */
TERN_DEVICE struct queue_amo queue_amo_by(const struct net_queue *q, struct wqe_key rkey, uint64_t remote,
                                          uint32_t amo, uint32_t width, uint64_t value, uint64_t compare,
                                          int fetch)
{
    struct queue_amo a;
    uint32_t form = amo == NET_AMO_ADD     ? AMO_ADD
                    : amo == NET_AMO_AND   ? AMO_AND
                    : amo == NET_AMO_OR    ? AMO_OR
                    : amo == NET_AMO_XOR   ? AMO_XOR
                    : amo == NET_AMO_CAS   ? AMO_CAS
                    : amo == NET_AMO_FETCH ? AMO_FETCH
                                           : AMO_SWAP;
    a.op = wqe_amo_of(form, width, value, compare);
    a.remote = remote;
    a.rkey = rkey;
    a.blocks = wqe_blocks(wqe_atomic_segments(a.op.opcode, width));
    a.dump = fetch && (q->flags & NET_QUEUE_DUMP);
    a.nop = a.blocks > 1 && !a.dump;
    return a;
}

/* 0 if no key names the word. */
TERN_DEVICE int queue_amo_of(const struct net_queue *q, uint64_t remote, uint32_t amo, uint32_t width,
                             uint64_t value, uint64_t compare, int fetch, struct queue_amo *a)
{
    const struct net_range *r = queue_range(&q->remote, remote);
    if (r == NULL) {
        return 0;
    }
    *a = queue_amo_by(q, r->key, remote, amo, width, value, compare, fetch);
    return 1;
}

TERN_DEVICE uint32_t queue_amo_blocks(const struct queue_amo *a) { return a->blocks + a->dump + a->nop; }

/* The old value goes to result word `word`. */
TERN_DEVICE void queue_build_amo(const struct queue_fixed *q, uint64_t idx, const struct queue_amo *a,
                                 uint32_t word)
{
    struct wqe_atomic_args args;
    args.qpn = q->qpn;
    args.fm_ce_se = a->dump | a->nop ? WQE_CE_ON_ERROR : WQE_CE_ALWAYS;
    args.remote = a->remote;
    args.local = q->results_addr + 8 * word;
    args.rkey = a->rkey;
    args.lkey = q->results_lkey;
    args.op = a->op;
    wqe_atomic(&q->ring, (uint32_t)idx, &args);
    if (a->dump) {
        queue_build_dump(q, idx + a->blocks);
    } else if (a->nop) {
        struct wqe_nop_args nop;
        nop.qpn = q->qpn;
        nop.fm_ce_se = WQE_CE_ALWAYS;
        wqe_nop(&q->ring, (uint32_t)(idx + a->blocks), &nop);
    }
}

#endif
