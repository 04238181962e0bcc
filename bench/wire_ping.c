/* SPDX-License-Identifier: Apache-2.0
 *
 * One-way latency of a flag: ranks 0 and 1 raise a word in each other's window in turn, by a release, as who
 * has written something before it would, or bare, by a relaxed store. The clock starts after the first round,
 * which also absorbs that the two kernels do not start at the same moment. */
#include "kernels/kernels.h"
#include "wire_peer.h"

/* Nonzero once the own flag has `value`; 0 if the deadline passed first. */
TERN_DEVICE int await_flag(const struct wire_args *p, uint64_t value, uint64_t begin_ns)
{
    /* Pairs with the release in raise_flag by the other rank. */
    while (ld_acquire_sys_u64((const uint64_t *)(const void *)p->to[p->rank]) < value) {
        spin();
        if (wire_late(p, begin_ns)) {
            return 0;
        }
    }
    return 1;
}

TERN_DEVICE void raise_flag(const struct wire_args *p, uint64_t value)
{
    uint64_t *theirs = (uint64_t *)(void *)p->to[p->rank ^ 1];
    if (p->is_bare) {
        st_relaxed_sys_u64(theirs, value);
    } else {
        st_release_sys_u64(theirs, value); /* pairs with await_flag on the other rank */
    }
}

TERN_KERNEL(wire_ping, struct wire_args, p)
{
    uint64_t begin_ns = clock_ns(), first_ns = begin_ns;
    if (tid() != 0 || bid() != 0) {
        return;
    }
    for (uint32_t i = 0; i <= p->rounds; i++) {
        uint64_t value = i + 1; /* both flags are 0 before */
        if (p->rank == 0) {
            raise_flag(p, value);
        }
        if (!await_flag(p, value, begin_ns)) {
            return;
        }
        if (p->rank == 1) {
            raise_flag(p, value);
        }
        if (i == 0) {
            first_ns = clock_ns();
        }
    }
    st_relaxed_sys_u64(&p->result[1], clock_ns() - first_ns);
}
