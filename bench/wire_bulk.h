/* SPDX-License-Identifier: Apache-2.0
 *
 * All-to-all by bulk copies, the body of wire_push and wire_pull. Lane 0 of every warp moves rows through its
 * own ring of WIRE_STAGES buffers in shared memory: up to three loads run ahead of the row that is being
 * stored. Consecutive rows go to different peers, which measured faster than one peer after the other.
 *
 * Shared memory: rows[warps][WIRE_STAGES][row_bytes], then an mbarrier (8 bytes) for each of them. */
#ifndef TERN_BENCH_WIRE_BULK_H
#define TERN_BENCH_WIRE_BULK_H

#include "wire_peer.h"

/* What one lane moves: rows first, first + step, ... of the `num` rows of all peers. */
struct wire_lane {
    char *rows;
    uint64_t *bars;
    uint64_t first, step, num;
    int pull;
};

TERN_DEVICE uint64_t wire_min(uint64_t a, uint64_t b) { return a < b ? a : b; }

TERN_DEVICE struct wire_lane wire_lane_init(const struct wire_args *p, int pull)
{
    struct wire_lane l;
    uint64_t total = p->bytes / p->row_bytes * (uint64_t)wire_num_peers(p);
    uint64_t ring = (uint64_t)WIRE_STAGES * p->row_bytes;
    l.rows = shared_memory() + (uint64_t)warp() * ring;
    l.bars = (uint64_t *)(void *)(shared_memory() + (uint64_t)nwarps() * ring) + warp() * WIRE_STAGES;
    l.first = (uint64_t)bid() * (uint64_t)nwarps() + (uint64_t)warp();
    l.step = (uint64_t)nblk() * (uint64_t)nwarps();
    l.num = l.first < total ? (total - l.first - 1) / l.step + 1 : 0;
    l.pull = pull;
    for (int i = 0; i < WIRE_STAGES; i++) {
        mbar_init(&l.bars[i], 1);
    }
    fence_mbar_init();
    return l;
}

/* Where row j of the lane lies. `own`: in this rank's area, block of the peer (a push's source, a pull's
 * destination); otherwise in the peer's area, block of this rank. */
TERN_DEVICE char *wire_row(const struct wire_args *p, const struct wire_lane *l, char *const *areas, int own,
                           uint64_t j)
{
    uint64_t t = l->first + j * l->step;
    uint64_t peers = (uint64_t)wire_num_peers(p);
    int peer = wire_peer(p, (int)(t % peers));
    int holder = own ? p->rank : peer, block = own ? peer : p->rank;
    return areas[holder] + (uint64_t)block * p->bytes + t / peers * p->row_bytes;
}

TERN_DEVICE void wire_load(const struct wire_args *p, const struct wire_lane *l, uint64_t j)
{
    uint32_t stage = (uint32_t)(j % WIRE_STAGES);
    mbar_expect(&l->bars[stage], p->row_bytes);
    bulk_load(l->rows + (uint64_t)stage * p->row_bytes, wire_row(p, l, p->from, !l->pull, j), p->row_bytes,
              &l->bars[stage]);
}

/* Nonzero once row j has come; 0 if the deadline passed first. */
TERN_DEVICE int wire_await(const struct wire_args *p, const struct wire_lane *l, uint64_t j,
                           uint64_t begin_ns)
{
    while (!mbar_test(&l->bars[j % WIRE_STAGES], (uint32_t)(j / WIRE_STAGES & 1))) {
        spin();
        if (wire_late(p, begin_ns)) {
            return 0;
        }
    }
    return 1;
}

TERN_DEVICE void wire_bulk(const struct wire_args *p, const int pull)
{
    struct wire_lane l;
    uint64_t begin_ns = clock_ns();
    if (lane() != 0) {
        return;
    }
    l = wire_lane_init(p, pull);
    for (uint64_t j = 0; j < wire_min(WIRE_STAGES - 1, l.num); j++) {
        wire_load(p, &l, j);
    }
    for (uint64_t j = 0; j < l.num; j++) {
        if (!wire_await(p, &l, j, begin_ns)) {
            break;
        }
        bulk_store(wire_row(p, &l, p->to, pull, j), l.rows + j % WIRE_STAGES * p->row_bytes, p->row_bytes);
        bulk_commit();
        if (j + WIRE_STAGES - 1 < l.num) {
            /* The buffer of the next load was read by the store before this one. */
            bulk_wait_read(1);
            wire_load(p, &l, j + WIRE_STAGES - 1);
        }
    }
    bulk_wait(0);
}

#endif
