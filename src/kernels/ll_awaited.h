/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency combine, at home: which rows a token awaits, where they lie and by which word they come. A near
 * rank's row has the place of its token's choice. A far rank's has one among all that this rank gives to
 * other domains, as its dispatch has noted; there the word of the first row of a chunk, and the verdict on
 * it, stand for all (ll_far_args.h). Railed, one row comes for all choices in a domain. */
#ifndef TERN_LL_AWAITED_H
#define TERN_LL_AWAITED_H

#include "kernels/ll_chunk.h"

/* What a lane knows of the token's choice that it looks after. */
struct ll_awaited {
    int present;   /* the choice takes part in the sum */
    int source;    /* the choice in whose name its row comes */
    int32_t owner; /* the rank it comes from; -1: none comes for this choice */
    float weight;
    /* Across domains. Of a far rank's row: place of that rank's first one, and its slot. */
    uint32_t place, slot;
};

/* One lane: `c`, choice `source` of its token, is what the row from this rank stands for. */
TERN_DEVICE void ll_find_awaited(const struct ll_combine_args *p, uint32_t c, int32_t id, int32_t rank,
                                 struct ll_awaited *a)
{
    const struct ll_far *far = ll_far_of(&p->f);
    a->place = c;
    a->slot = 0;
    if (LL_WITH_RAIL) {
        if (id >= 0 && ll_is_far(&p->f, rank)) {
            a->place = (uint32_t)far->near_places + far->places[ll_domain_of(&p->f, (uint32_t)rank)];
            a->slot = (uint32_t)far->numbers[c];
        }
        return;
    }
    if (id >= 0 && ll_is_far(&p->f, rank)) {
        uint32_t first = far->places[p->summed ? (uint32_t)rank : (uint32_t)rank * p->experts_a_rank];
        a->place = (uint32_t)far->near_places + first;
        a->slot = far->places[p->summed ? rank : id] + (uint32_t)far->numbers[c] - first;
    }
}

/* Across domains: the word of a lane's row, among arrivals. */
TERN_DEVICE uint64_t ll_awaited_word(const struct ll_awaited *a) { return a->place + ll_chunk_of(a->slot); }

/* One warp: across domains, the row that stands for choice k, in the buffer. */
TERN_DEVICE uint64_t ll_awaited_at(const struct ll_combine_args *p, const struct ll_awaited *a, int k)
{
    return (uint64_t)shfl_u32(a->place, k) * p->lane.home_stride +
           (uint64_t)shfl_u32(a->slot, k) * p->sent_bytes;
}

/* One warp: the verdicts on the rows of token t, each of which has arrived, or its rank is lost. */
TERN_DEVICE void ll_judge_token(const struct ll_combine_args *p, uint64_t epoch, uint32_t t, int end,
                                struct ll_awaited *a)
{
    uint64_t c = (uint64_t)t * p->topk + (uint32_t)lane(), word = LL_WITH_FAR ? ll_awaited_word(a) : c;
    int here = 0;
    if (a->owner >= 0 && ll_gone(&p->f, &p->lane, a->owner) != LL_KNOWN) {
        if (end == LL_LOST) {
            ll_raise_doubt(&p->lane, epoch);
        }
        here = ll_judge_row(&p->f, &p->lane, epoch, word, ll_arrival(&p->lane, p->f.own, epoch, word));
    }
    a->present = shfl_u32((uint32_t)here, a->source) && a->present;
    sync_warp(); /* what each lane has acquired is there for all lanes */
}

/* One warp: what token t awaits. */
TERN_DEVICE void ll_expect_rows(const struct ll_combine_args *p, uint32_t t, struct ll_awaited *a)
{
    uint32_t k = (uint32_t)lane();
    uint64_t c = (uint64_t)t * p->topk + k;
    int32_t id = k < p->topk ? p->lane.ids[c] : -1;
    int32_t rank = id >= 0 ? id / (int32_t)p->experts_a_rank : -1;
    if (LL_WITH_RAIL && id >= 0 && ll_is_far(&p->f, rank)) { /* all rows of a domain come as its relay's */
        rank = ll_on_rail(&p->f, (int)ll_domain_of(&p->f, (uint32_t)rank), p->f.rank);
    }
    a->source = TERN_FFS(match_any_u32((uint32_t)(p->summed ? rank : id))) - 1;
    a->present = id >= 0 && (!p->summed || a->source == lane());
    a->weight = a->present && !p->summed ? p->weights[c] : 1.0f;
    a->owner = a->source == lane() ? rank : -1;
    if (LL_WITH_FAR) {
        ll_find_awaited(p, t * p->topk + (uint32_t)a->source, id, rank, a);
    }
}

/* One warp: every row of token t is here, or left out; 0: abandon. */
TERN_DEVICE int ll_await_rows(const struct ll_combine_args *p, uint64_t epoch, uint64_t begin, uint32_t t,
                              struct ll_awaited *a)
{
    uint64_t c = (uint64_t)t * p->topk + (uint32_t)lane();
    uint32_t data;
    int end = LL_HERE;
    ll_expect_rows(p, t, a);
    if (a->owner >= 0) {
        end = ll_gone(&p->f, &p->lane, a->owner) == LL_KNOWN
                  ? LL_LOST
                  : ll_await_by(&p->f, &p->lane, epoch, begin, OP_AWAIT_DONE,
                                LL_WITH_RAIL && ll_is_far(&p->f, a->owner), a->owner,
                                ll_arrival(&p->lane, p->f.own, epoch, LL_WITH_FAR ? ll_awaited_word(a) : c),
                                &data);
    }
    if (TERN_RARE(!warp_all(end == LL_HERE))) {
        if (!ll_has_masks(&p->lane) || warp_any(end == LL_ABANDON)) {
            return 0;
        }
        ll_judge_token(p, epoch, t, end, a);
    }
    sync_warp(); /* what each lane has acquired is there for all lanes */
    return 1;
}

#endif
