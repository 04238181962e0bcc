/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency combine, rows that go home as they are: every warp is a pipeline of its own. Rows are dealt out
 * to warps of all blocks in turn. By bulk copies one lane does it all: it loads a row in chunks into its
 * warp's ring of stages, and stores each chunk as it lands. So all rows of a block are on their way at once,
 * and what one row waits for, its last copy and the fence before its word, delays no other. Rows for ranks of
 * other domains go first, by all lanes, since the network is the slower (ll_ship.h).
 *
 * Shared memory: | chunks of warp 0, 1, ... | mbarriers of warp 0, 1, ... | */
#ifndef TERN_LL_PIPE_H
#define TERN_LL_PIPE_H

#include "kernels/ll_copy.h"
#include "kernels/ll_ship.h"

/* A lane's view of its warp's ring. Stages are filled and emptied in turn. */
struct ll_ring {
    char *stages;
    uint64_t *bars;  /* one a stage */
    uint32_t chunks; /* of a row */
    uint32_t fill, empty,
        parity; /* the next stage to be filled; to be emptied, and the parity of its mbarrier */
};

TERN_DEVICE struct ll_ring ll_ring_of(const struct ll_combine_args *p)
{
    struct ll_ring r;
    uint32_t first = (uint32_t)warp() * p->stages;
    r.stages = shared_memory() + first * p->stage_bytes;
    r.bars = (uint64_t *)(shared_memory() + p->words_offset) + first;
    r.chunks = (p->row_bytes + p->stage_bytes - 1) / p->stage_bytes;
    r.fill = 0;
    r.empty = 0;
    r.parity = 0;
    return r;
}

/* The warp's first row from `u` on that goes home, and its push; `count` or more if there is none. `push` is
 * that of u already if `known`. */
TERN_DEVICE uint32_t ll_find_push(const struct ll_combine_args *p, uint32_t u, uint32_t count, int known,
                                  struct ll_push *push)
{
    for (; u < count; u += (uint32_t)(nblk() * nwarps())) {
        if (!known) {
            *push = p->lane.pushes[u];
        }
        if (ll_goes_home(p, push->rank) && !ll_ships(p, push->rank)) {
            break;
        }
        known = 0;
    }
    return u;
}

TERN_DEVICE const char *ll_push_from(const struct ll_combine_args *p, const struct ll_push *push)
{
    return p->in + (uint64_t)(uint32_t)push->row * p->row_bytes;
}

TERN_DEVICE struct ll_parcel ll_push_to(const struct ll_combine_args *p, const struct ll_push *push)
{
    struct ll_parcel to = {push->rank, push->place, p->f.ep_bases[push->rank]};
    return to;
}

TERN_DEVICE uint32_t ll_chunk_bytes(const struct ll_combine_args *p, uint32_t chunk)
{
    uint32_t left = p->row_bytes - chunk * p->stage_bytes;
    return left < p->stage_bytes ? left : p->stage_bytes;
}

/* One lane: this chunk of a row into the ring, whose next stage is free. */
TERN_DEVICE void ll_fill_stage(const struct ll_combine_args *p, struct ll_ring *r, const char *row,
                               uint32_t chunk)
{
    uint32_t bytes = ll_chunk_bytes(p, chunk);
    mbar_expect(r->bars + r->fill, bytes);
    bulk_load(r->stages + r->fill * p->stage_bytes, row + (uint64_t)chunk * p->stage_bytes, bytes,
              r->bars + r->fill);
    r->fill = r->fill == p->stages - 1 ? 0 : r->fill + 1;
}

/* One lane: as much of a row as the ring has stages, all of which are free. */
TERN_DEVICE void ll_begin_row(const struct ll_combine_args *p, struct ll_ring *r, const char *row)
{
    for (uint32_t c = 0; c < r->chunks && c < p->stages; c++) {
        ll_fill_stage(p, r, row, c);
    }
}

/* One lane: the row that was begun, chunk by chunk, to `at`; NULL: nowhere. */
TERN_DEVICE void ll_pass_row(const struct ll_combine_args *p, struct ll_ring *r, const char *row, char *at)
{
    for (uint32_t c = 0; c < r->chunks; c++) {
        while (!mbar_test(r->bars + r->empty, r->parity)) {
            spin();
        }
        if (at) {
            bulk_store(at + (uint64_t)c * p->stage_bytes, r->stages + r->empty * p->stage_bytes,
                       ll_chunk_bytes(p, c));
            bulk_commit();
        }
        r->empty = r->empty == p->stages - 1 ? 0 : r->empty + 1;
        r->parity ^= r->empty == 0;
        if (c > 0 && c - 1 + p->stages < r->chunks) {
            bulk_wait_read(1); /* the stage of the chunk before is free */
            ll_fill_stage(p, r, row, c - 1 + p->stages);
        }
    }
}

/* One lane of each warp. `push`: the warp's first, if it has one; `near`: across domains, the first that is
 * not for a far rank. The next row is loaded into the ring while the wire still has the one before. */
TERN_DEVICE void ll_pipe_bulk(const struct ll_combine_args *p, uint64_t epoch, uint32_t near, uint32_t count,
                              struct ll_push push)
{
    struct ll_ring ring = ll_ring_of(p);
    uint32_t u = LL_WITH_FAR ? ll_find_push(p, near, count, near == ll_warp_number(), &push)
                             : ll_find_push(p, (uint32_t)(warp() * nblk() + bid()), count, 1, &push);
    int out = 0;
    if (u < count) {
        ll_begin_row(p, &ring, ll_push_from(p, &push));
        /* What others read of the buffers before comes before the copies. */
        LL_COMBINE_PROXY_FENCE();
    }
    while (u < count) {
        struct ll_parcel to = ll_push_to(p, &push); /* all on their way while the row is loaded */
        const char *row = ll_push_from(p, &push);
        out = ll_is_out(p);
        u = ll_find_push(p, u + (uint32_t)(nblk() * nwarps()), count, 0, &push);
        ll_pass_row(p, &ring, row, out ? NULL : ll_home_at(p, epoch, &to));
        if (out) {
            return;
        }
        if (u < count) {
            bulk_wait_read(0); /* all stages are free */
            ll_begin_row(p, &ring, ll_push_from(p, &push));
        }
        ll_finish_home(p, epoch, &to);
    }
}

/* Each warp, likewise by loads and stores. */
TERN_DEVICE void ll_pipe_plain(const struct ll_combine_args *p, uint64_t epoch, uint32_t near, uint32_t count,
                               struct ll_push push)
{
    uint32_t step = (uint32_t)(nblk() * nwarps());
    uint32_t u = LL_WITH_FAR ? ll_find_push(p, near, count, near == ll_warp_number(), &push)
                             : ll_find_push(p, (uint32_t)(warp() * nblk() + bid()), count, 1, &push);
    while (u < count) {
        struct ll_parcel to = ll_push_to(p, &push);
        const char *row = ll_push_from(p, &push);
        if (ll_is_warp_out(p)) {
            return;
        }
        u = ll_find_push(p, u + step, count, 0, &push);
        ll_copy_wide(ll_home_at(p, epoch, &to), row, p->row_bytes);
        sync_warp(); /* with the fence in ll_tell_home: the row comes before its word */
        if (lane() == 0 && !ll_is_out(p)) {
            ll_tell_home(p, epoch, &to);
        }
    }
}

/* Each warp: its rows for far ranks; `push`: its first. Returns its first row behind them. */
TERN_DEVICE uint32_t ll_pipe_far(const struct ll_combine_args *p, uint64_t epoch, struct ll_push push)
{
    uint32_t away = ll_rows_away(p), step = (uint32_t)(nblk() * nwarps()), u = ll_warp_number();
    while (u < away) {
        struct ll_push it = push;
        if (u + step < away) {
            push = p->lane.pushes[u + step]; /* on its way meanwhile */
        }
        if (ll_goes_home(p, it.rank)) {
            char *slot = ll_take_slot(p, epoch, u);
            ll_copy_wide(slot, ll_push_from(p, &it), p->row_bytes);
            ll_ship(p, epoch, it.rank, u, slot);
        }
        u += step;
    }
    return u;
}

/* Each warp, before ll_enter: its ring is ready, and its first push on the way. */
TERN_DEVICE struct ll_push ll_prepare_pipe(const struct ll_combine_args *p, const int bulk)
{
    struct ll_push push = {0, -1, 0, 0};
    uint64_t u = (uint64_t)(warp() * nblk() + bid());
    uint32_t here = p->topk < p->experts_a_rank ? p->topk : p->experts_a_rank;
    if (u < (uint64_t)(uint32_t)p->f.num_ranks * p->lane.source_rows * here) { /* has memory */
        push = p->lane.pushes[u];
    }
    if (bulk && lane() == 0) {
        struct ll_ring ring = ll_ring_of(p);
        for (uint32_t i = 0; i < p->stages; i++) {
            mbar_init(ring.bars + i, 1);
        }
        fence_mbar_init();
    }
    return push;
}

TERN_DEVICE void ll_pipe_send(const struct ll_combine_args *p, uint64_t epoch, uint32_t count,
                              struct ll_push push, const int bulk)
{
    uint32_t near = LL_WITH_RAIL ? ll_warp_number() : LL_WITH_FAR ? ll_pipe_far(p, epoch, push) : 0;
    if (!bulk) {
        ll_pipe_plain(p, epoch, near, count, push);
    } else if (lane() == 0) {
        ll_pipe_bulk(p, epoch, near, count, push);
    }
    sync_warp();
}

#endif
