/* SPDX-License-Identifier: Apache-2.0
 *
 * Which peers a rank moves bytes to, in the dialect. Rank r begins with r + 1, so that at any moment the
 * ranks load different receivers. */
#ifndef TERN_BENCH_WIRE_PEER_H
#define TERN_BENCH_WIRE_PEER_H

#include "simt/simt.h"
#include "wire_args.h"

TERN_DEVICE int wire_num_peers(const struct wire_args *p) { return p->num_ranks > 1 ? p->num_ranks - 1 : 1; }

TERN_DEVICE int wire_peer(const struct wire_args *p, int i) { return (p->rank + 1 + i) % p->num_ranks; }

/* Called by whoever waits; nonzero once the deadline has passed, and then the host learns of it. */
TERN_DEVICE int wire_late(const struct wire_args *p, uint64_t begin_ns)
{
    if (clock_ns() - begin_ns < p->deadline_ns) {
        return 0;
    }
    st_relaxed_sys_u64(&p->result[0], 1);
    return 1;
}

#endif
