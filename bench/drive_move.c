/* SPDX-License-Identifier: Apache-2.0
 *
 * Puts and gets by threads, warps or blocks, and what is under way then, which is nothing over loads and
 * stores: the kernel ends when all is complete. */
#define TERN_DIALECT
#include "tern/tern_device.h"

#include "drive_each.h"
#include "kernels/kernels.h"

TERN_DEVICE void move_as(const struct drive_args *p, const int scope)
{
    struct net_group g = group_of(scope);
    uint32_t total = p->ops * drive_peers(p), each = (uint32_t)nthr() / g.count;
    int status = TERN_OK;
    for (uint32_t t = (uint32_t)bid() * each + (uint32_t)tid() / g.count; t < total;
         t += (uint32_t)nblk() * each) {
        struct drive_op o = drive_op(p, t);
        int s = p->pull ? route_get(&p->net, g, o.peer, o.queue, o.local, o.remote, p->bytes, 0)
                        : route_put(&p->net, g, o.peer, o.queue, o.remote, o.local, p->bytes, 0);
        status = status != TERN_OK ? status : s;
    }
    if (g.index == 0 && route_leaves_any(&p->net)) {
        int s = route_quiet(&p->net, -1, TERN_ALL_QUEUES);
        status = status != TERN_OK ? status : s;
    }
    drive_end(p, status);
}

TERN_KERNEL(drive_move, struct drive_args, p)
{
    if (p->scope == GROUP_THREAD) {
        move_as(p, GROUP_THREAD);
    } else if (p->scope == GROUP_WARP) {
        move_as(p, GROUP_WARP);
    } else {
        move_as(p, GROUP_BLOCK);
    }
}
