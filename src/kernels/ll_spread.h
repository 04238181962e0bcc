/* SPDX-License-Identifier: Apache-2.0
 *
 * Railed low-latency dispatch, receiving: messages of other domains' ranks on this rank's rail, whose rows
 * it spreads in its domain (ll_far_args.h). Warps take a message for one rank of the domain each, in turn:
 * they wait for its word, and copy the row to the place of that rank's buffer that a near source's would
 * have, with the same arrival word behind it. So whoever receives finds all rows alike, this rank's own
 * too.
 *
 * It comes before this rank waits for any row, and itself waits for sources only, whose sending waits for
 * nobody: hence no circle. A buffer so written by a near rank in the name of a far one is as free as if the
 * far rank wrote: the near one is in the same operation. */
#ifndef TERN_LL_SPREAD_H
#define TERN_LL_SPREAD_H

#include "kernels/ll_copy.h"
#include "kernels/ll_order.h"
#include "kernels/ll_rail.h"

/* A program that is wrong on purpose, for test/tsan_awake.sh, sets words of rows without order. */
#ifdef TERN_TEST_RELAXED_LL_RAIL
#define LL_STORE_SPREAD st_relaxed_sys_u64
#else
#define LL_STORE_SPREAD OP_STORE_DONE
#endif

/* Who is to blame if a row of rank s does not come: it itself, or railed, if it is far, the near rank that
 * spreads it, unless that is this one. */
TERN_DEVICE int ll_bringer(const struct op_frame *f, int s)
{
    int relay = LL_WITH_RAIL && ll_is_far(f, s) ? ll_relay_of(f, s) : s;
    return relay == f->rank ? s : relay;
}

/* One warp: a message that has arrived, of rank s, to near rank d, which has `slot` for it. */
TERN_DEVICE void ll_spread_row(const struct ll_receiver *r, int s, uint32_t m, const char *message, int d,
                               uint32_t slot)
{
    const struct ll_dispatch_args *p = r->p;
    char *heap = p->f.ep_bases[d];
    uint64_t place = ll_place_of(&p->lane, (uint32_t)s, slot);
    char *to = ll_buffer(&p->lane, heap, r->epoch) + place * p->lane.row_stride;
    uint32_t word = LL_HEADER_MESSAGE(p->topk);
    ll_copy_wide(to, message, p->row_bytes);
    if ((uint32_t)lane() == word / 4 % 32) { /* which has stored the 16 bytes that it is in */
        ((int32_t *)to)[word] = (int32_t)m;
    }
    sync_warp();
    if (lane() == 0) {
        OP_FENCE(); /* pairs with the acquire in ll_await: the row comes before its word */
        LL_STORE_SPREAD(ll_arrival(&p->lane, heap, r->epoch, place), ll_arrived(r->epoch));
    }
}

/* One warp: message m of domain e, for the d-th rank of this one; 0: abandon. */
TERN_DEVICE int ll_spread_message(const struct ll_receiver *r, uint32_t e, uint32_t m, uint32_t d)
{
    const struct ll_dispatch_args *p = r->p;
    int s = ll_on_rail(&p->f, (int)e, p->f.rank), end = LL_HERE;
    uint32_t data;
    if (lane() == 0) {
        end = ll_await(&p->f, &p->lane, r->epoch, r->begin, OP_AWAIT_DONE, s,
                       ll_arrival(&p->lane, p->f.own, r->epoch, ll_message_word(p, e, m)), &data);
    }
    if (TERN_RARE(!warp_all(end == LL_HERE))) {
        return 0;
    }
    sync_warp(); /* what lane 0 has acquired is there for all lanes */
    const char *message = ll_message_at(p, r->epoch, e, m);
    int32_t slot = ((const int32_t *)(message + p->row_bytes))[d];
    if (p->summed && lane() == 0) {
        ll_tail_of(&p->f, &p->lane, e, m)[d] = slot;
    }
    if (slot >= 0) {
        ll_spread_row(r, s, m, message, ll_far_of(&p->f)->first + (int)d, (uint32_t)slot);
    }
    return 1;
}

/* Each receiving warp: its part of all messages; 0: abandon. */
TERN_DEVICE int ll_spread(const struct ll_receiver *r)
{
    const struct ll_far *far = ll_far_of(&r->p->f);
    const uint32_t *messages = ll_messages(r);
    uint32_t near = (uint32_t)far->num_near, units = messages[far->rail.num_domains] * near, e = 0;
    int ok = 1;
    for (uint32_t u = (uint32_t)(warp() * nblk() + bid()); ok && u < units;
         u += (uint32_t)(nblk() * r->threads / 32)) {
        while (messages[e + 1] <= u / near) {
            e++;
        }
        ok = ll_spread_message(r, e, u / near - messages[e], u % near);
    }
    return ok;
}

#endif
