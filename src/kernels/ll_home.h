/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency combine, sending: where a row goes, and what is told when it is there. Rows that go home as
 * they are have a pipeline a warp (ll_pipe.h); rows that are made here, as sums or packed, come from the
 * whole block (ll_make.h). Neither meets at a barrier of the block. */
#ifndef TERN_LL_HOME_H
#define TERN_LL_HOME_H

#include "kernels/ll_frame.h"

/* A program that is wrong on purpose, for test/tsan_awake.sh, is without it. */
#ifdef TERN_TEST_NO_LL_COMBINE_PROXY
#define LL_COMBINE_PROXY_FENCE() ((void)0)
#define LL_COMBINE_STAGE_FENCE() ((void)0)
#else
#define LL_COMBINE_PROXY_FENCE() fence_proxy_async_global()
#define LL_COMBINE_STAGE_FENCE() fence_proxy_async_shared()
#endif

/* Where a row goes. */
struct ll_parcel {
    int32_t rank, index; /* index: token * K + k there; rank -1: nowhere, the row never came */
    char *heap;          /* of that rank */
};

/* Once ll_enter is over: the parcel has an addressee, and he is there. */
TERN_DEVICE int ll_goes_home(const struct ll_combine_args *p, int32_t rank)
{
    return !ll_has_masks(&p->lane) || (rank >= 0 && !ll_gone(&p->f, &p->lane, rank));
}

/* Whether the others leave this rank out. One that was stopped for so long would write to buffers that others
 * use by now: it is asked before a row is sent, and before its word is. */
TERN_DEVICE int ll_is_out(const struct ll_combine_args *p)
{
    return ll_has_masks(&p->lane) && ll_heard(&p->f, &p->lane, p->f.rank);
}

/* One warp: the same, and all lanes learn the same. */
TERN_DEVICE int ll_is_warp_out(const struct ll_combine_args *p)
{
    return ll_has_masks(&p->lane) && warp_any(ll_is_out(p));
}

TERN_DEVICE char *ll_home_at(const struct ll_combine_args *p, uint64_t epoch, const struct ll_parcel *to)
{
    return ll_buffer(&p->lane, to->heap, epoch) + (uint64_t)(uint32_t)to->index * p->lane.home_stride;
}

/* One thread: the row is there. What it copied itself has ended; what its warp stored is behind a barrier of
 * the warp. */
TERN_DEVICE void ll_tell_home(const struct ll_combine_args *p, uint64_t epoch, const struct ll_parcel *to)
{
    OP_FENCE(); /* pairs with the acquire in ll_await: the row comes before its word */
    OP_STORE_DONE(ll_arrival(&p->lane, to->heap, epoch, (uint32_t)to->index), ll_arrived(epoch));
}

/* One lane: its bulk copies to this address end, and the row's word follows. A fence at system scope takes
 * microseconds while copies are on the wire; it holds up nobody but this warp. */
TERN_DEVICE void ll_finish_home(const struct ll_combine_args *p, uint64_t epoch, const struct ll_parcel *to)
{
    int out = ll_is_out(p); /* on its way while the copies end */
    bulk_wait(0);
    if (!out) {
        ll_tell_home(p, epoch, to);
    }
}

#endif
