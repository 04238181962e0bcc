/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency combine across domains: rows that go home to far ranks (ll_carry.h). The warp that sends such a
 * row writes it into a slot of this rank's out-box and puts it from there. Mostly every row that can be has a
 * slot of its own. If that would take too much memory, slots are dealt out to warps, and a warp that has used
 * all of its own waits until what it has put has arrived: the queue that it uses is quiet to all far ranks.
 * Slots that were used in an operation before are free, as everything in out-boxes is. */
#ifndef TERN_LL_SHIP_H
#define TERN_LL_SHIP_H

#include "kernels/ll_carry.h"
#include "kernels/ll_home.h"

/* Among the warps of all blocks. */
TERN_DEVICE uint32_t ll_warp_number(void) { return (uint32_t)(warp() * nblk() + bid()); }

/* One warp: whether a row for this rank, which may be -1, goes by the network. */
TERN_DEVICE int ll_ships(const struct ll_combine_args *p, int32_t rank)
{
    return LL_WITH_FAR && rank >= 0 && ll_is_far(&p->f, rank) && ll_goes_home(p, rank);
}

/* One warp: all that it has put has arrived at all far ranks that are not lost. */
LL_DEVICE_RARE void ll_await_shipped(const struct ll_combine_args *p, uint64_t epoch)
{
    const struct tern_net *net = &ll_far_of(&p->f)->net;
    uint32_t queue = ll_warp_number() % net->num_queues;
    for (int d = lane(); d < p->f.num_ranks; d += 32) {
        if (ll_is_far(&p->f, d) && !ll_gone(&p->f, &p->lane, d)) {
            ll_carried(&p->f, &p->lane, epoch, d, route_quiet_range(net, d, d + 1, queue, queue + 1));
        }
    }
    sync_warp();
}

/* One warp: a slot that nobody reads, for row `number`. *used: of the warp's own slots, so many. */
TERN_DEVICE char *ll_take_slot(const struct ll_combine_args *p, uint64_t epoch, uint32_t number,
                               uint32_t *used)
{
    const struct ll_far *far = ll_far_of(&p->f);
    uint32_t warps = (uint32_t)(nblk() * nwarps()), slot = number;
    if (far->recycles) {
        if (*used == far->slots / warps) {
            ll_await_shipped(p, epoch);
            *used = 0;
        }
        slot = (*used)++ * warps + ll_warp_number();
    }
    return ll_rows_out(&p->f, epoch) + (uint64_t)slot * p->lane.home_stride;
}

/* One warp, which has written the row's `sent_bytes` to the slot: it goes home, unless this rank is out. */
TERN_DEVICE void ll_ship(const struct ll_combine_args *p, uint64_t epoch, int32_t rank, int32_t index,
                         const char *slot)
{
    struct ll_parcel there = {rank, index, p->f.own}; /* by this rank's own address of the same place */
    if (!ll_is_warp_out(p)) {
        ll_put_rows(&p->f, &p->lane, epoch, rank, ll_warp_number(), ll_home_at(p, epoch, &there), slot,
                    p->sent_bytes, (uint64_t)(uint32_t)index);
    }
}

#endif
