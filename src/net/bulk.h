/* SPDX-License-Identifier: Apache-2.0
 *
 * Put and get by bulk copies, through shared memory that the caller lends: a call of its own, because only
 * the caller knows what shared memory its kernel can spare. Lane 0 of every warp moves pieces through a ring
 * of its own, with up to three loads ahead of the store; the warps of a block cut what they move into equal
 * runs. One thread keeps a warp's share of the link busy, and the others have their registers to themselves.
 *
 *     shared memory: rows[warps][BULK_STAGES][piece], then an mbarrier (8 bytes) for each of them
 *
 * Where bulk copies cannot go, loads and stores do: on devices without them, on routes that are not p2p, for
 * ends that are not equally misaligned to 16 bytes, before the first and after the last multiple of 16, and
 * if the shared memory is too small for a piece of 128 bytes. What is asked for is always moved. */
#ifndef TERN_BULK_H
#define TERN_BULK_H

#include "net/route.h"

enum { BULK_STAGES = 4 };

/* Each thread's, in registers: what it knows of its warp's ring. */
struct tern_bulk {
    char *rows;
    uint64_t *bars;
    uint32_t piece; /* bytes of a stage; 0: loads and stores */
    uint32_t turn;  /* of lane 0: pieces that the ring has had */
};

/* All threads of the block, once for this memory. */
TERN_DEVICE void bulk_open(struct tern_bulk *b, void *shared, uint32_t shared_bytes)
{
    uint32_t rings = (uint32_t)nwarps() * BULK_STAGES, each = shared_bytes / rings;
    b->piece = TERN_HAS_BULK && each >= 136 ? (each - 8) / 128 * 128 : 0;
    b->rows = (char *)shared + (uint64_t)warp() * BULK_STAGES * b->piece;
    b->bars = (uint64_t *)(void *)((char *)shared + (uint64_t)rings * b->piece) + warp() * BULK_STAGES;
    b->turn = 0;
    if (TERN_HAS_BULK && b->piece != 0 && lane() == 0) {
        for (int i = 0; i < BULK_STAGES; i++) {
            mbar_init(&b->bars[i], 1);
        }
        fence_mbar_init(); /* the same lane alone uses them */
    }
}

/* Piece j of `bytes` from src on, into its stage. */
TERN_DEVICE void bulk_fetch(const struct tern_bulk *b, const char *src, uint64_t bytes, uint64_t j)
{
    uint64_t at = j * b->piece, left = bytes - at;
    uint32_t stage = (b->turn + (uint32_t)j) % BULK_STAGES;
    uint32_t size = left < b->piece ? (uint32_t)left : b->piece;
    mbar_expect(&b->bars[stage], size);
    bulk_load(b->rows + (uint64_t)stage * b->piece, src + at, size, &b->bars[stage]);
}

/* One lane; everything a multiple of 16. It is in place when this returns. */
TERN_DEVICE void bulk_run(struct tern_bulk *b, char *dst, const char *src, uint64_t bytes)
{
    uint64_t num = (bytes + b->piece - 1) / b->piece;
    /* What the group wrote or saw by ordinary accesses comes before these copies: the source, and whatever
     * the caller did with the shared memory. */
    fence_proxy_async_global();
    fence_proxy_async_shared();
    for (uint64_t j = 0; j < BULK_STAGES - 1 && j < num; j++) {
        bulk_fetch(b, src, bytes, j);
    }
    for (uint64_t j = 0; j < num; j++) {
        uint32_t turn = b->turn + (uint32_t)j, stage = turn % BULK_STAGES;
        uint64_t at = j * b->piece, left = bytes - at;
        while (!mbar_test(&b->bars[stage], turn / BULK_STAGES & 1)) {
            spin();
        }
        bulk_store(dst + at, b->rows + (uint64_t)stage * b->piece,
                   left < b->piece ? (uint32_t)left : b->piece);
        bulk_commit();
        if (j + BULK_STAGES - 1 < num) {
            bulk_wait_read(1); /* the store before this one has read the next load's stage */
            bulk_fetch(b, src, bytes, j + BULK_STAGES - 1);
        }
    }
    b->turn += (uint32_t)num;
    bulk_wait(0); /* then the group's barrier: a signal of any of its threads comes after */
}

/* A warp or a block, as p2p_copy. */
TERN_DEVICE void bulk_copy(struct net_group g, struct tern_bulk *b, char *dst, const char *src,
                           uint64_t bytes)
{
    uint64_t before = (0u - (uint64_t)(uintptr_t)dst) & 15, whole, run, first;
    if (b->piece == 0 || p2p_unit(dst, src) != 16 || bytes < before + 16) {
        p2p_copy(g, dst, src, bytes);
        return;
    }
    whole = (bytes - before) / 16 * 16;
    run = whole / (g.count / 32) / 128 * 128 + 128; /* so that the warps' runs cover it */
    first = g.kind == GROUP_BLOCK ? (uint64_t)warp() * run : 0;
    if (TERN_HAS_BULK && lane() == 0 && first < whole) {
        bulk_run(b, dst + before + first, src + before + first, run < whole - first ? run : whole - first);
    }
    p2p_copy_narrow(g, dst, src, before, 1);
    p2p_copy_narrow(g, dst + before + whole, src + before + whole, bytes - before - whole, 1);
}

/* As route_put and route_get, by a warp or a block. */
TERN_DEVICE int route_put_bulk(const struct tern_net *net, struct net_group g, struct tern_bulk *b, int peer,
                               uint32_t queue, void *dst, const void *src, uint64_t bytes)
{
    struct net_target t = net_find(net, g, peer, queue, dst, bytes, 0);
    if (t.status == TERN_OK && t.route != NET_ROUTE_P2P) {
        return route_put(net, g, peer, queue, dst, src, bytes, 1);
    }
    if (t.status == TERN_OK) {
        group_sync(g);
        bulk_copy(g, b, t.address, (const char *)src, bytes);
        group_sync(g);
    }
    return t.status;
}

TERN_DEVICE int route_get_bulk(const struct tern_net *net, struct net_group g, struct tern_bulk *b, int peer,
                               uint32_t queue, void *dst, const void *src, uint64_t bytes)
{
    struct net_target t = net_find(net, g, peer, queue, src, bytes, 0);
    if (t.status == TERN_OK && t.route != NET_ROUTE_P2P) {
        return route_get(net, g, peer, queue, dst, src, bytes, 1);
    }
    if (t.status == TERN_OK) {
        group_sync(g); /* nobody reads the destination any more */
        bulk_copy(g, b, (char *)dst, t.address, bytes);
        group_sync(g);
    }
    return t.status;
}

#endif
