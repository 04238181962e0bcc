/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch: both phases in one kernel, or one of them. */
#ifndef TERN_LL_DISPATCH_BODY_H
#define TERN_LL_DISPATCH_BODY_H

#include "kernels/ll_receive.h"
#include "kernels/ll_send.h"

/* All threads but those that start copies and have to wait for them; or all, if these are all. */
TERN_DEVICE int ll_receivers(const struct ll_dispatch_args *p, const int bulk)
{
    int threads = nthr() - (p->f.num_ranks + 31) / 32 * 32;
    return bulk && (p->phases & LL_SENDS) && threads > 0 ? threads : nthr();
}

TERN_DEVICE void ll_dispatch_body(const struct ll_dispatch_args *p, const int bulk)
{
    int ok;
    uint64_t begin = stamp_now();
    struct ll_glance glance = ll_look(&p->f, &p->lane);
    uint64_t epoch = glance.epoch;
    struct ll_sender sender = ll_sender_of(p, epoch);
    if (p->phases & LL_SENDS) {
        ll_prepare(&sender, bulk);
    }
    ll_enter(&p->f, &glance, &ok);
    if (ok && (p->phases & LL_SENDS)) {
        ll_dispatch_send(&sender, bulk);
    }
    if (p->phases & LL_RECEIVES) {
        ll_raise(&p->f, &p->lane, epoch);
    }
    if (ok && (p->phases & LL_RECEIVES)) {
        int threads = ll_receivers(p, bulk);
        if (tid() < threads) {
            ll_dispatch_receive(p, epoch, threads);
        }
        ll_leave(&p->f, &p->lane, epoch);
    }
    ll_stamp(&p->f, &p->lane, epoch, begin);
}

#endif
