/* SPDX-License-Identifier: Apache-2.0
 *
 * All-to-all by 16-byte stores: what a kernel without bulk copies can put on the wire. Four loads are in
 * flight before the first store, since the latency of one would otherwise set the pace. */
#include "kernels/kernels.h"
#include "wire_peer.h"

enum { AHEAD = 4 };

TERN_DEVICE void store_to(const struct wire_args *p, int peer)
{
    const char *from = p->from[p->rank] + (uint64_t)peer * p->bytes;
    char *to = p->to[peer] + (uint64_t)p->rank * p->bytes;
    uint64_t step = (uint64_t)nblk() * (uint64_t)nthr() * 16;
    uint64_t i = ((uint64_t)bid() * (uint64_t)nthr() + (uint64_t)tid()) * 16;
    for (; i + (AHEAD - 1) * step < p->bytes; i += AHEAD * step) {
        struct vec16 v[AHEAD];
        TERN_UNROLL
        for (int j = 0; j < AHEAD; j++) {
            v[j] = ld_stream_vec16(from + i + (uint64_t)j * step);
        }
        TERN_UNROLL
        for (int j = 0; j < AHEAD; j++) {
            st_vec16(to + i + (uint64_t)j * step, v[j]);
        }
    }
    for (; i < p->bytes; i += step) {
        st_vec16(to + i, ld_stream_vec16(from + i));
    }
}

TERN_KERNEL(wire_store, struct wire_args, p)
{
    for (int i = 0; i < wire_num_peers(p); i++) {
        store_to(p, wire_peer(p, i));
    }
}
