/* SPDX-License-Identifier: Apache-2.0
 *
 * All-to-all by bulk copies, the body of wire_push and wire_pull. Lane 0 of every warp moves rows through its
 * own ring of WIRE_STAGES buffers in shared memory: up to three loads run ahead of the row that is being
 * stored. Consecutive rows go to different peers, which measured faster than one peer after the other. A
 * warp's first rows are its own by its number; all others it takes from a counter, as processors are not
 * equally fast, and shared out by number the slowest of them would be what is measured.
 *
 * Shared memory: rows[warps][WIRE_STAGES][row_bytes], then a struct wire_stage for each of them. */
#ifndef TERN_BENCH_WIRE_BULK_H
#define TERN_BENCH_WIRE_BULK_H

#include "wire_peer.h"

enum { WIRE_AHEAD_ROWS = WIRE_STAGES - 1 };

/* What one lane moves of the `total` rows of all peers. */
struct wire_lane {
    char *rows;
    struct wire_stage *stages;
    uint64_t first, step; /* by its number: first, first + step, ... up to WIRE_AHEAD_ROWS of them */
    uint64_t claim;       /* the row that it takes next; total or more: none */
    uint64_t total;
    int pull;
};

/* Asked for one row before it is needed, as the answer takes a way to memory and back. */
TERN_DEVICE void wire_ask(const struct wire_args *p, struct wire_lane *l)
{
    if (l->claim < l->total) {
        l->claim = l->step * WIRE_AHEAD_ROWS + atom_add_relaxed_gpu_u64(&p->turns->taken, 1);
    }
}

TERN_DEVICE struct wire_lane wire_lane_init(const struct wire_args *p, int pull)
{
    struct wire_lane l;
    uint64_t ring = (uint64_t)WIRE_STAGES * p->row_bytes;
    l.rows = shared_memory() + (uint64_t)warp() * ring;
    l.stages = (struct wire_stage *)(void *)(shared_memory() + (uint64_t)nwarps() * ring) +
               (uint64_t)warp() * WIRE_STAGES;
    l.first = (uint64_t)bid() * (uint64_t)nwarps() + (uint64_t)warp();
    l.step = (uint64_t)nblk() * (uint64_t)nwarps();
    l.total = p->bytes / p->row_bytes * (uint64_t)wire_num_peers(p);
    l.claim = l.step * WIRE_AHEAD_ROWS;
    l.pull = pull;
    wire_ask(p, &l);
    for (int i = 0; i < WIRE_STAGES; i++) {
        mbar_init(&l.stages[i].bar, 1);
    }
    fence_mbar_init();
    return l;
}

/* The row that the lane moves as its j-th; total or more: there is none, nor any after it. */
TERN_DEVICE uint64_t wire_next(const struct wire_args *p, struct wire_lane *l, uint64_t j)
{
    uint64_t row = j < WIRE_AHEAD_ROWS ? l->first + j * l->step : l->claim;
    if (j >= WIRE_AHEAD_ROWS) {
        wire_ask(p, l);
    }
    return row;
}

/* Where row t lies. `own`: in this rank's area, block of the peer (a push's source, a pull's destination);
 * otherwise in the peer's area, block of this rank. */
TERN_DEVICE char *wire_row(const struct wire_args *p, char *const *areas, int own, uint64_t t)
{
    uint64_t peers = (uint64_t)wire_num_peers(p);
    int peer = wire_peer(p, (int)(t % peers));
    int holder = own ? p->rank : peer, block = own ? peer : p->rank;
    return areas[holder] + (uint64_t)block * p->bytes + t / peers * p->row_bytes;
}

/* Begins the lane's j-th row; 0: there is none. */
TERN_DEVICE uint64_t wire_load(const struct wire_args *p, struct wire_lane *l, uint64_t j)
{
    uint32_t stage = (uint32_t)(j % WIRE_STAGES);
    uint64_t row = wire_next(p, l, j);
    if (row >= l->total) {
        return 0;
    }
    l->stages[stage].row = row;
    mbar_expect(&l->stages[stage].bar, p->row_bytes);
    bulk_load(l->rows + (uint64_t)stage * p->row_bytes, wire_row(p, p->from, !l->pull, row), p->row_bytes,
              &l->stages[stage].bar);
    return 1;
}

TERN_DEVICE int wire_has_come(const struct wire_lane *l, uint64_t j)
{
    return mbar_test(&l->stages[j % WIRE_STAGES].bar, (uint32_t)(j / WIRE_STAGES & 1));
}

/* Nonzero once the j-th row has come; 0 if the deadline passed first. */
TERN_DEVICE int wire_await(const struct wire_args *p, const struct wire_lane *l, uint64_t j,
                           uint64_t begin_ns)
{
    while (!wire_has_come(l, j)) {
        spin();
        if (wire_late(p, begin_ns)) {
            return 0;
        }
    }
    return 1;
}

/* Loads j up to `loaded` are not stored any more, and must not outlive the block, whose shared memory they
 * write. */
TERN_DEVICE void wire_abandon(const struct wire_lane *l, uint64_t j, uint64_t loaded)
{
    for (; j < loaded; j++) {
        while (!wire_has_come(l, j)) {
            spin();
        }
    }
}

/* The last warp of all makes the counters ready for the next round. */
TERN_DEVICE void wire_over(const struct wire_args *p, const struct wire_lane *l)
{
    /* Pairs with itself: every lane's last claim comes before it says so, and the last one's zeros behind. */
    if (atom_add_acqrel_gpu_u64(&p->turns->over, 1) + 1 == l->step) {
        p->turns->taken = p->turns->over = 0;
    }
}

TERN_DEVICE void wire_bulk(const struct wire_args *p, const int pull)
{
    struct wire_lane l;
    uint64_t begin_ns = clock_ns(), loaded = 0;
    if (lane() != 0) {
        return;
    }
    l = wire_lane_init(p, pull);
    while (loaded < WIRE_AHEAD_ROWS && wire_load(p, &l, loaded)) {
        loaded++;
    }
    for (uint64_t j = 0; j < loaded; j++) {
        if (!wire_await(p, &l, j, begin_ns)) {
            wire_abandon(&l, j, loaded);
            break;
        }
        bulk_store(wire_row(p, p->to, pull, l.stages[j % WIRE_STAGES].row),
                   l.rows + j % WIRE_STAGES * p->row_bytes, p->row_bytes);
        bulk_commit();
        /* The buffer of the next load was read by the store before this one. */
        bulk_wait_read(1);
        loaded += wire_load(p, &l, loaded);
    }
    wire_over(p, &l);
    bulk_wait(0);
}

#endif
