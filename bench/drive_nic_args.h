/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernel of `tern-bench nic` is to do: warps post to queue pairs in turn, each to one, and wait for
 * their last operation. */
#ifndef TERN_BENCH_DRIVE_NIC_ARGS_H
#define TERN_BENCH_DRIVE_NIC_ARGS_H

#include "net/queue.h"

enum drive_nic_kind {
    NIC_PUT,      /* one at a time */
    NIC_PUT_WARP, /* a lane each, one doorbell: queue_put_warp */
    NIC_PAIR,     /* one at a time, with a signal behind it: queue_put_signal */
    NIC_INLINE,   /* of 8 bytes */
    NIC_TRIP      /* by one thread, each waited for */
};

enum { DRIVE_NIC_WORDS = 16 };

struct drive_nic_args {
    const struct net_queue *queues; /* to the peer */
    uint32_t num_queues, kind;
    uint32_t ops;      /* of a warp; NIC_PUT_WARP: of a lane */
    uint32_t bytes;    /* of one */
    uint64_t from, to; /* areas of `area` bytes; `to` as the peer names it */
    uint64_t area;
    uint64_t words; /* DRIVE_NIC_WORDS, as the peer names them, for signals of a warp each in turn */
    uint64_t timeout_ns;
    uint64_t *result; /* [0] a status that is not 0, [1] ns of NIC_TRIP without its first */
};

#endif
