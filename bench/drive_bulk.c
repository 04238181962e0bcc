/* SPDX-License-Identifier: Apache-2.0
 *
 * Puts and gets by bulk copies, by warps or blocks. */
#define TERN_DIALECT
#include "tern/tern_device.h"

#include "drive_each.h"
#include "kernels/kernels.h"

TERN_DEVICE void bulk_as(const struct drive_args *p, const int scope)
{
    struct net_group g = group_of(scope);
    uint32_t total = p->ops * drive_peers(p), each = (uint32_t)nthr() / g.count;
    struct tern_bulk bulk;
    int status = TERN_OK;
    tern_bulk_open(&bulk, shared_memory(), p->shared_bytes);
    for (uint32_t t = (uint32_t)bid() * each + (uint32_t)tid() / g.count; t < total;
         t += (uint32_t)nblk() * each) {
        struct drive_op o = drive_op(p, t);
        int s = p->pull ? route_get_bulk(&p->net, g, &bulk, o.peer, o.queue, o.local, o.remote, p->bytes)
                        : route_put_bulk(&p->net, g, &bulk, o.peer, o.queue, o.remote, o.local, p->bytes);
        status = status != TERN_OK ? status : s;
    }
    drive_end(p, status);
}

TERN_KERNEL(drive_bulk, struct drive_args, p)
{
    if (p->scope == GROUP_WARP) {
        bulk_as(p, GROUP_WARP);
    } else {
        bulk_as(p, GROUP_BLOCK);
    }
}
