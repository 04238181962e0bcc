/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch, receiving: in which order a combine will send home what comes. In one domain as rows
 * lie in the slab, or were taken (ll_taken.h). Across domains rows for far ranks come first, rank by rank,
 * each rank's in the order of its slots (ll_far_args.h): so rows of one chunk have consecutive numbers, which
 * a combine deals out to warps of different blocks, and lie one behind the other in the out-box. Rows for
 * near ranks follow, likewise.
 *
 * With weights at combine a rank's rows are numbered by expert: choices before [R][L + 1] has how many of
 * rank s are for the experts before e, in shared memory; order [R + 1] how many are of ranks before. */
#ifndef TERN_LL_ORDER_H
#define TERN_LL_ORDER_H

#include "kernels/ll_far.h"
#include "kernels/ll_receiver.h"

TERN_DEVICE uint32_t *ll_order(const struct ll_receiver *r)
{
    return r->slab_before + r->p->experts_a_rank + 1;
}

TERN_DEVICE uint32_t *ll_choices_before(const struct ll_receiver *r, uint32_t s)
{
    return ll_order(r) + r->p->f.num_ranks + 1 + s * (r->p->experts_a_rank + 1);
}

/* All receiving threads, when choices are counted, and a barrier before ll_order_ranks. */
TERN_DEVICE void ll_order_choices(const struct ll_receiver *r)
{
    for (int s = warp(); !r->p->summed && s < r->p->f.num_ranks; s += r->threads / 32) {
        ll_scan(ll_choices_before(r, (uint32_t)s), r->p->experts_a_rank);
    }
}

/* One warp, while rows_before still has rows; a barrier before they are used. */
TERN_DEVICE void ll_order_ranks(const struct ll_receiver *r)
{
    const struct ll_dispatch_args *p = r->p;
    for (uint32_t s = (uint32_t)lane(); s < (uint32_t)p->f.num_ranks; s += 32) {
        ll_order(r)[ll_turn_of(&p->f, s) + 1] =
            p->summed ? r->rows_before[s + 1] : ll_choices_before(r, s)[p->experts_a_rank];
    }
    sync_warp();
    ll_scan(ll_order(r), (uint32_t)p->f.num_ranks);
}

/* The words of far rank s's entry that are for far ranks. */
TERN_DEVICE const uint64_t *ll_far_entry(const struct ll_receiver *r, int s)
{
    return ll_entry(&r->p->lane, r->p->f.own, r->epoch, s) + LL_ENTRY_WORDS(r->p->experts_a_rank);
}

/* Railed, [D + 1]: messages that come to this rank from domains before. */
TERN_DEVICE uint32_t *ll_messages(const struct ll_receiver *r)
{
    return ll_choices_before(r, (uint32_t)r->p->f.num_ranks);
}

/* All receiving threads, past ll_await_counts, and a barrier before they are scanned. */
TERN_DEVICE void ll_count_messages(const struct ll_receiver *r)
{
    const struct op_frame *f = &r->p->f;
    const struct ll_rail *rail = &ll_far_of(f)->rail;
    for (uint32_t e = (uint32_t)tid(); e < rail->num_domains; e += (uint32_t)r->threads) {
        /* Relaxed: another thread has acquired the first word of the entry, before a barrier. */
        ll_messages(r)[e + 1] =
            e == rail->domain
                ? 0
                : (uint32_t)ld_relaxed_sys_u64(ll_far_entry(r, ll_on_rail(f, (int)e, f->rank)) + 1);
    }
}

/* All receiving threads of block 0, scanned: what a combine that is summed has to know of them. */
TERN_DEVICE void ll_note_rails(const struct ll_receiver *r)
{
    const struct op_frame *f = &r->p->f;
    const struct ll_far *far = ll_far_of(f);
    const uint32_t *messages = ll_messages(r);
    for (uint32_t e = (uint32_t)tid(); e < far->rail.num_domains; e += (uint32_t)r->threads) {
        struct ll_far_home home = {messages[e], messages[e + 1] - messages[e], 0, 0};
        if (e != far->rail.domain) {
            home.there = (uint32_t)ld_relaxed_sys_u64(ll_far_entry(r, ll_on_rail(f, (int)e, f->rank)));
        }
        far->homes[e] = home;
    }
    if (tid() == 0) {
        r->p->lane.totals[LL_TOTAL_AWAY] = (int32_t)messages[far->rail.num_domains];
    }
}

/* All receiving threads of block 0: what the combine has to know of far ranks. */
TERN_DEVICE void ll_note_homes(const struct ll_receiver *r)
{
    const struct ll_dispatch_args *p = r->p;
    const struct ll_far *far = ll_far_of(&p->f);
    if (LL_WITH_RAIL && p->summed) {
        ll_note_rails(r);
        return;
    }
    for (int s = tid(); s < p->f.num_ranks; s += r->threads) {
        const uint64_t *entry = ll_far_entry(r, s);
        const uint32_t *order = ll_order(r) + ll_turn_of(&p->f, (uint32_t)s);
        /* Relaxed: another thread has acquired the first word of the entry, before a barrier. */
        struct ll_far_home home = {order[0], order[1] - order[0], (uint32_t)ld_relaxed_sys_u64(entry), 0};
        far->homes[s] = home;
    }
    if (tid() == 0) {
        p->lane.totals[LL_TOTAL_AWAY] = (int32_t)ll_order(r)[p->f.num_ranks - far->num_near];
    }
}

/* Received row `number`, which is of rank s, among the rows that go home if one does for each received. */
TERN_DEVICE uint32_t ll_row_number(const struct ll_receiver *r, uint32_t s, uint32_t number)
{
    return LL_WITH_FAR && r->p->summed ? ll_order(r)[ll_turn_of(&r->p->f, s)] + number - r->rows_before[s]
                                       : number;
}

/* Likewise the row at this position of an expert, which is of rank s, if all rows of the slab go home. */
TERN_DEVICE uint32_t ll_push_number(const struct ll_receiver *r, uint32_t s, uint32_t expert,
                                    uint32_t position)
{
    if (LL_WITH_FAR && !r->p->summed) {
        return ll_order(r)[ll_turn_of(&r->p->f, s)] + ll_choices_before(r, s)[expert] + position -
               r->begins[s * r->p->experts_a_rank + expert];
    }
    return r->slab_before[expert] + position;
}

#endif
