/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch, receiving: what comes, and where it goes. Every block learns from all ranks' entry
 * words where each (expert, source) begins in the slab. */
#ifndef TERN_LL_COUNTS_H
#define TERN_LL_COUNTS_H

#include "kernels/ll_taken.h"

/* Word w of rank s's entry is so. */
TERN_DEVICE void ll_take_count(const struct ll_receiver *r, uint32_t s, uint32_t w, uint32_t value)
{
    if (w == LL_ENTRY_ROWS) {
        r->rows_before[s + 1] = value;
    } else if (w >= LL_ENTRY_CHOICES) {
        uint32_t e = 2 * (w - LL_ENTRY_CHOICES);
        uint32_t *begins = r->begins + s * r->p->experts_a_rank + e;
        begins[0] = value & 0xffffu;
        if (e + 1 < r->p->experts_a_rank) {
            begins[1] = value >> 16;
        }
        if (LL_WITH_FAR) {
            uint32_t *before = ll_choices_before(r, s) + e;
            before[1] = value & 0xffffu;
            if (e + 1 < r->p->experts_a_rank) {
                before[2] = value >> 16;
            }
        }
    }
}

/* The word that says that word w of rank s's entry is here. A near rank's says so itself; a far one puts the
 * others before it sets the first. */
TERN_DEVICE uint32_t ll_entry_sign(const struct ll_dispatch_args *p, uint32_t s, uint32_t w)
{
    return ll_is_far(&p->f, (int)s) ? (uint32_t)LL_ENTRY_SIGNATURE : w;
}

/* All receiving threads: every rank is in, in the same operation, with these counts, or masked, with none; 0:
 * abandon. If a rank was lost over it, the counts wait for ll_recount: the operation is doubtful. */
TERN_DEVICE int ll_await_counts(const struct ll_receiver *r)
{
    const struct ll_dispatch_args *p = r->p;
    uint32_t words = LL_ENTRY_WORDS(ll_experts_counted(p));
    int ok = 1;
    for (uint32_t i = (uint32_t)tid(); ok && i < words * (uint32_t)p->f.num_ranks;
         i += (uint32_t)r->threads) {
        uint32_t s = i / words, w = i % words, value = 0;
        uint32_t sign = ll_entry_sign(p, s, w);
        uint32_t gone = ll_gone(&p->f, &p->lane, (int)s);
        const uint64_t *entry = ll_entry(&p->lane, p->f.own, r->epoch, (int)s);
        int end = gone ? LL_LOST
                       : ll_await(&p->f, &p->lane, r->epoch, r->begin, OP_AWAIT_READY, (int)s, entry + sign,
                                  &value);
        if (end == LL_HERE && sign != w) {
            value = (uint32_t)entry[w]; /* acquired with the first */
        }
        if (ll_has_masks(&p->lane) && end == LL_LOST && gone != LL_KNOWN) {
            ll_raise_doubt(&p->lane, r->epoch);
        }
        ok = end != LL_ABANDON;
        if (end == LL_HERE && w == LL_ENTRY_SIGNATURE) {
            ok = op_matches(&p->f, r->epoch, (int)s, value);
        }
        ll_take_count(r, s, w, end == LL_HERE ? value : 0);
    }
    return !sync_part_or(r->threads, !ok);
}

/* All receiving threads: what counts, now that the operation is doubtful. A source has sent all its words, or
 * none. */
TERN_DEVICE void ll_recount(const struct ll_receiver *r)
{
    const struct ll_dispatch_args *p = r->p;
    uint32_t words = LL_ENTRY_WORDS(ll_experts_counted(p));
    sync_part(r->threads); /* the places made of earlier counts have been read */
    for (int s = warp(); s < p->f.num_ranks; s += r->threads / 32) {
        const uint64_t *entry = ll_entry(&p->lane, p->f.own, r->epoch, s);
        int known = ll_gone(&p->f, &p->lane, s) == LL_KNOWN;
        int here = !known;
        for (uint32_t w = (uint32_t)lane(); here && w < words; w += 32) {
            uint32_t sign = ll_entry_sign(p, (uint32_t)s, w);
            /* Pairs with ll_announce_counts at the source, as in ll_await. */
            uint64_t seen = ld_acquire_sys_u64(&entry[sign]);
            here = op_has_tag(seen, r->epoch) &&
                   (sign != LL_ENTRY_SIGNATURE || (uint32_t)seen == (uint32_t)p->f.message.signature);
        }
        here = warp_all(here);
        here = !known && ll_settle(&p->lane.masks.verdicts[s], r->epoch, here);
        for (uint32_t w = (uint32_t)lane(); w < words; w += 32) {
            /* Relaxed: this thread has acquired the word above. */
            ll_take_count(r, (uint32_t)s, w, here ? (uint32_t)ld_relaxed_sys_u64(&entry[w]) : 0);
        }
    }
    sync_part(r->threads);
}

/* All receiving threads: choices an expert become places in the slab; block 0 gives the caller its counts and
 * ranges. */
TERN_DEVICE void ll_place_experts(const struct ll_receiver *r)
{
    const struct ll_dispatch_args *p = r->p;
    uint32_t ranks = (uint32_t)p->f.num_ranks, experts = ll_experts_counted(p);
    for (uint32_t e = (uint32_t)tid(); e < experts; e += (uint32_t)r->threads) {
        uint32_t sum = 0;
        TERN_ROLLED
        for (uint32_t s = 0; s < ranks; s++) {
            uint32_t count = r->begins[s * p->experts_a_rank + e];
            r->begins[s * p->experts_a_rank + e] = sum;
            if (bid() == 0 && p->out_ranges) {
                p->out_ranges[(uint64_t)e * ranks + s] = (int64_t)((uint64_t)sum << 32 | count);
            }
            sum += count;
        }
        r->slab_before[e + 1] = sum;
        if (bid() == 0 && !p->by_rank) {
            p->out_counts[e] = (int32_t)sum;
        }
    }
}

/* All receiving threads: counts become places. 1: they are in doubt. */
TERN_DEVICE int ll_place(const struct ll_receiver *r)
{
    const struct ll_dispatch_args *p = r->p;
    uint32_t ranks = (uint32_t)p->f.num_ranks;
    int doubts = ll_has_masks(&p->lane) && tid() == r->threads - 1 && ll_doubts(&p->lane, r->epoch);
    ll_place_experts(r);
    if (LL_WITH_FAR) {
        ll_order_choices(r);
    }
    if (LL_WITH_RAIL) {
        ll_count_messages(r);
    }
    if (!LL_WITH_FAR && warp() == r->threads / 32 - 1) {
        ll_find_even(r);
    }
    for (uint32_t s = (uint32_t)tid(); bid() == 0 && p->by_rank && s < ranks; s += (uint32_t)r->threads) {
        p->out_counts[s] = (int32_t)r->rows_before[s + 1];
    }
    sync_part(r->threads);
    if (warp() == 0) {
        ll_scan(r->slab_before, ll_experts_counted(p));
        if (LL_WITH_RAIL) {
            ll_scan(ll_messages(r), ll_far_of(&p->f)->rail.num_domains);
        }
    }
    if (warp() == r->threads / 32 - 1) {
        if (LL_WITH_FAR) {
            ll_order_ranks(r);
        }
        ll_scan(r->rows_before, ranks);
    }
    if (ll_has_masks(&p->lane)) {
        doubts = sync_part_or(r->threads, doubts);
    } else {
        sync_part(r->threads);
    }
    if (bid() == 0 && tid() == 0) {
        uint32_t received = r->rows_before[ranks];
        p->lane.state->dispatched = p->traces;
        p->lane.totals[LL_TOTAL_ROWS] = (int32_t)received;
        p->lane.totals[LL_TOTAL_PUSHES] =
            (int32_t)(p->by_rank ? received : r->slab_before[p->experts_a_rank]);
    }
    if (LL_WITH_FAR && bid() == 0) {
        ll_note_homes(r);
    }
    return doubts;
}

/* All receiving threads of block 0, when places are known: adds to the caller's sums, without waiting for
 * what they were. */
TERN_DEVICE void ll_add_counts(const struct ll_receiver *r)
{
    const struct ll_dispatch_args *p = r->p;
    for (uint32_t e = (uint32_t)tid(); p->sum_counts && e < p->experts_a_rank; e += (uint32_t)r->threads) {
        atom_add_relaxed_gpu_u64((uint64_t *)&p->sum_counts[e], r->slab_before[e + 1] - r->slab_before[e]);
    }
}

/* All receiving threads: where everything goes. 0: abandon. */
TERN_DEVICE int ll_learn_places(const struct ll_receiver *r)
{
    int ok = ll_await_counts(r);
    for (int recounts = 0; ok && TERN_RARE(ll_place(r)) && recounts == 0; recounts++) {
        ll_recount(r);
    }
    if (ok && bid() == 0) {
        ll_add_counts(r);
    }
    return ok;
}

#endif
