/* SPDX-License-Identifier: Apache-2.0
 *
 * Route: what one table of expert ids means for every rank. Each block but the last is a worker, with a run
 * of consecutive tokens that its warps share out again; the last one is the settler.
 *
 *   worker   count    (token, rank) pairs and choices an expert, warp by warp (route_count.h)
 *            tell     the settler, and the workers after this one, the block's sums
 *            assign   each (token, rank), or each choice, its slot: what the workers and warps before have,
 *                     plus its place in the warp's run
 *   settler  announce this rank to its peers, publish the sums over workers, and with every rank's counts
 *            settle where this rank's slots begin and what it receives (route_settle.h)
 *
 * A block waits only for blocks before it, so that blocks which start in order make progress even one by one.
 * Slots follow token order, then choice order, whatever the number of blocks and warps. */
#include "kernels/kernels.h"
#include "kernels/route_assign.h"
#include "kernels/route_settle.h"

/* All threads of a block before the last. */
TERN_DEVICE void work(const struct route_args *p, uint64_t epoch, uint64_t begin)
{
    count(p, epoch);
    tell_sums(p, epoch);
    if (look_back(p, epoch)) {
        if (p->layout == 0) {
            assign_pairs(p);
        } else {
            assign_choices(p);
        }
    }
    sync_block();
    if (tid() == 0) {
        stamp_block(&p->f, 0, epoch, begin);
        /* Pairs with the acquire in await_worker (route_settle.h). */
        st_release_sys_u64(p->finished + bid(), epoch);
    }
}

TERN_KERNEL(route, struct route_args, p)
{
    uint64_t begin = stamp_now(), epoch = op_epoch(&p->f);
    if (bid() < nblk() - 1) {
        work(p, epoch, begin);
    } else {
        settle(p, epoch, begin);
    }
}
