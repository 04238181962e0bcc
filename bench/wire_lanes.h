/* SPDX-License-Identifier: Apache-2.0
 *
 * All-to-all by 16-byte loads and stores, the body of wire_store and wire_load: what a kernel without bulk
 * copies can put on the wire. Four loads are in flight before the first store, since the latency of one would
 * otherwise set the pace. */
#ifndef TERN_BENCH_WIRE_LANES_H
#define TERN_BENCH_WIRE_LANES_H

#include "wire_peer.h"

enum { WIRE_AHEAD = 4 };

TERN_DEVICE void wire_lanes_to(const struct wire_args *p, int peer, const int pull)
{
    /* Blocks as in wire_args.h: a push writes to the peer, a pull reads there. */
    const char *from = p->from[pull ? peer : p->rank] + (uint64_t)(pull ? p->rank : peer) * p->bytes;
    char *to = p->to[pull ? p->rank : peer] + (uint64_t)(pull ? peer : p->rank) * p->bytes;
    uint64_t step = (uint64_t)nblk() * (uint64_t)nthr() * 16;
    uint64_t i = ((uint64_t)bid() * (uint64_t)nthr() + (uint64_t)tid()) * 16;
    for (; i + (WIRE_AHEAD - 1) * step < p->bytes; i += WIRE_AHEAD * step) {
        struct vec16 v[WIRE_AHEAD];
        TERN_UNROLL
        for (int j = 0; j < WIRE_AHEAD; j++) {
            v[j] = ld_stream_vec16(from + i + (uint64_t)j * step);
        }
        TERN_UNROLL
        for (int j = 0; j < WIRE_AHEAD; j++) {
            st_vec16(to + i + (uint64_t)j * step, v[j]);
        }
    }
    for (; i < p->bytes; i += step) {
        st_vec16(to + i, ld_stream_vec16(from + i));
    }
}

TERN_DEVICE void wire_lanes(const struct wire_args *p, const int pull)
{
    for (int i = 0; i < wire_num_peers(p); i++) {
        wire_lanes_to(p, wire_peer(p, i), pull);
    }
}

#endif
