/* SPDX-License-Identifier: Apache-2.0
 *
 * Barriers of all ranks, one after the other. If the host wants a log, each rank leaves a value at every
 * other before the barrier and writes down what it finds after it: cells alternate, so that a rank that is a
 * round ahead touches others. */
#define TERN_DIALECT
#include "tern/tern_device.h"

#include "drive_args.h"
#include "kernels/kernels.h"

TERN_DEVICE uint64_t *cells_of(const struct drive_args *p, int64_t i)
{
    return &p->words[DRIVE_CELLS + (i & 1) * p->net.num_ranks];
}

TERN_DEVICE int leave(const struct drive_args *p, struct net_group g, int64_t i)
{
    int status = TERN_OK;
    for (int r = (int)g.index; r < p->net.num_ranks && status == TERN_OK; r += (int)g.count) {
        status = tern_put_inline(&p->net, r, 0, &cells_of(p, i)[p->net.rank],
                                 drive_value(p->seed + (uint64_t)p->net.rank, 8, i), 8);
    }
    return status;
}

TERN_DEVICE void write_down(const struct drive_args *p, struct net_group g, int64_t i)
{
    for (int r = (int)g.index; r < p->net.num_ranks; r += (int)g.count) {
        p->log[i * p->net.num_ranks + r] = ld_relaxed_sys_u64(&cells_of(p, i)[r]);
    }
}

TERN_DEVICE void barrier_as(const struct drive_args *p, const int scope)
{
    struct net_group g = group_of(scope);
    uint64_t first_ns = 0;
    int status = TERN_OK;
    for (int64_t i = 0; i <= p->rounds && status == TERN_OK; i++) {
        int left = p->log ? leave(p, g, i) : TERN_OK;
        status = route_barrier(&p->net, &p->team, g);
        status = status != TERN_OK || !group_or(g, left) ? status : TERN_INVALID_ARGUMENT;
        if (p->log && status == TERN_OK) {
            write_down(p, g, i);
        }
        first_ns = i == 0 ? clock_ns() : first_ns;
    }
    if (g.index == 0) {
        uint64_t ns = clock_ns() - first_ns;
        st_relaxed_sys_u64(&p->result[0], (uint64_t)(uint32_t)-status);
        st_relaxed_sys_u64(&p->result[1], ns);
    }
}

TERN_KERNEL(drive_barrier, struct drive_args, p)
{
    if (p->scope == GROUP_THREAD) {
        if (tid() == 0) {
            barrier_as(p, GROUP_THREAD);
        }
    } else if (p->scope == GROUP_WARP) {
        barrier_as(p, GROUP_WARP);
    } else {
        barrier_as(p, GROUP_BLOCK);
    }
}
