/* SPDX-License-Identifier: Apache-2.0
 *
 * The bodies of drive_move and drive_bulk: all ranks move pieces to, or from, all their peers at once.
 * Consecutive operations of a rank go to different peers; a group takes every n-th. */
#ifndef TERN_BENCH_DRIVE_EACH_H
#define TERN_BENCH_DRIVE_EACH_H

#include "drive_args.h"

struct drive_op {
    int peer;
    uint32_t queue;
    char *remote, *local;
};

TERN_DEVICE uint32_t drive_peers(const struct drive_args *p)
{
    return p->net.num_ranks > 1 ? (uint32_t)p->net.num_ranks - 1 : 1;
}

/* Operation t of this rank. `remote` is the peer's by this rank's addresses. */
TERN_DEVICE struct drive_op drive_op(const struct drive_args *p, uint32_t t)
{
    uint32_t peers = drive_peers(p);
    uint64_t at = (uint64_t)(t / peers) * p->bytes, theirs, mine;
    struct drive_op o;
    o.peer = (int)(((uint32_t)p->net.rank + 1 + t % peers) % (uint32_t)p->net.num_ranks);
    o.queue = t % p->net.num_queues;
    theirs = (uint64_t)p->net.rank * p->area + at;
    mine = (uint64_t)o.peer * p->area + at;
    o.remote = (p->pull ? p->from : p->to) + theirs;
    o.local = (p->pull ? p->to : p->from) + mine;
    return o;
}

TERN_DEVICE void drive_end(const struct drive_args *p, int status)
{
    if (status != TERN_OK) {
        st_relaxed_sys_u64(&p->result[0], (uint64_t)(uint32_t)-status);
    }
}

#endif
