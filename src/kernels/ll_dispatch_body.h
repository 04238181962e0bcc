/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch: both phases in one kernel, or one of them. */
#ifndef TERN_LL_DISPATCH_BODY_H
#define TERN_LL_DISPATCH_BODY_H

#include "kernels/ll_receive.h"
#include "kernels/ll_send.h"

TERN_DEVICE void ll_dispatch_body(const struct ll_dispatch_args *p, const int bulk)
{
    int ok;
    struct ll_sender sender = ll_sender_of(p);
    if (p->phases & LL_SENDS) {
        ll_prepare(&sender);
    }
    uint64_t epoch = ll_enter(&p->f, &p->lane, &ok);
    if (ok && (p->phases & LL_SENDS)) {
        ll_dispatch_send(&sender, epoch, bulk);
    }
    if (p->phases & LL_RECEIVES) {
        ll_raise(&p->f, &p->lane, epoch);
    }
    if (ok && (p->phases & LL_RECEIVES)) {
        ll_dispatch_receive(p, epoch);
    }
}

#endif
