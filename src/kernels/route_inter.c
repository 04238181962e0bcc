/* SPDX-License-Identifier: Apache-2.0
 *
 * Route across domains: as route.c, and for each other domain the messages to it are numbered and their
 * places there written down for the rank that will forward them.
 *
 *   worker   count, tell, assign as in one domain (route_count.h, route_assign.h), with a column more for
 * each
 *            domain; then messages and their entries (route_forward.h)
 *   settler  counts to mates and rail peers, bases, forward blocks (route_inter_settle.h)
 *
 * A block waits only for blocks before it. */
#define ROUTE_ACROSS     1
#define OP_FIRST_RANK(f) ((f)->first_rank)

#include "kernels/kernels.h"
#include "kernels/route_inter_settle.h"

/* All threads of a block before the last. */
TERN_DEVICE void work(const struct route_inter_args *p, uint64_t epoch, uint64_t run, uint64_t begin)
{
    count(&p->r, epoch);
    tell_sums(&p->r, epoch);
    if (look_back(&p->r, epoch)) {
        if (p->r.layout == 0) {
            assign_pairs(&p->r);
        } else {
            assign_choices(&p->r);
        }
        assign_messages(p, run);
    }
    sync_block();
    if (tid() == 0) {
        stamp_block(&p->r.f, 0, epoch, begin);
        /* Pairs with the acquire in await_worker (route_settle.h): entries, too, are written. */
        st_release_sys_u64(p->r.finished + bid(), epoch);
    }
}

TERN_KERNEL(route_inter, struct route_inter_args, p)
{
    uint64_t begin = stamp_now(), epoch = op_epoch(&p->r.f);
    uint64_t run = p->runs[0] + 1;
    if (bid() < nblk() - 1) {
        work(p, epoch, run, begin);
    } else {
        settle_across(p, epoch, run, begin);
    }
}
