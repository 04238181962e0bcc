/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch, receiving: rows that were announced and never came, because their sender is lost. A
 * row is here as a whole or not at all, which its verdict says (ll_mask.h). In the slab, where a missing row
 * would have gone was in its header; so the places of the rows that came are looked for, and the others
 * cleared. */
#ifndef TERN_LL_MISSING_H
#define TERN_LL_MISSING_H

#include "kernels/ll_counts.h"

enum { LL_PIECE_VECS = LL_PIECE / 512 }; /* of the bytes that a warp copies at once */
enum { LL_NOTES = 1 << 20 };             /* the piece of what goes with a row */

/* Row i of rank s, on this side of the wire. A far rank's have no gaps between them, unless a near rank has
 * spread them. */
TERN_DEVICE const char *ll_row_from(const struct ll_receiver *r, uint32_t s, uint32_t i)
{
    const struct ll_lane *l = &r->p->lane;
    if (!LL_WITH_RAIL && ll_is_far(&r->p->f, (int)s)) {
        return ll_buffer(l, r->p->f.own, r->epoch) + ll_place_of(l, s, 0) * l->row_stride +
               (uint64_t)i * r->p->row_bytes;
    }
    return ll_buffer(l, r->p->f.own, r->epoch) + ll_place_of(l, s, i) * l->row_stride;
}

/* Among arrival words and verdicts, the one of row i of rank s: its own, or if it came from a far rank that
 * of the chunk's first row. So a row of a chunk is here, or missing, with all others. */
TERN_DEVICE uint64_t ll_word_of(const struct ll_receiver *r, uint32_t s, uint32_t i)
{
    int chunk = !LL_WITH_RAIL && ll_is_far(&r->p->f, (int)s);
    return ll_place_of(&r->p->lane, s, chunk ? i & ~(LL_CHUNK - 1u) : i);
}

/* One warp: the verdict on row i of rank s, which has arrived or whose sender is lost. */
TERN_DEVICE int ll_is_row_here(const struct ll_receiver *r, uint32_t s, uint32_t i)
{
    uint64_t place = ll_word_of(r, s, i);
    int here = ll_judge_row(&r->p->f, &r->p->lane, r->epoch, place,
                            ll_arrival(&r->p->lane, r->p->f.own, r->epoch, place));
    return warp_all(here);
}

/* One warp: this piece of a row of the slab that nobody fills, which would have been this push; with
 * LL_NOTES, what goes with the row. */
TERN_DEVICE void ll_clear_piece(const struct ll_receiver *r, uint32_t piece, uint32_t expert,
                                uint32_t position, uint32_t push)
{
    const struct ll_dispatch_args *p = r->p;
    const struct vec16 zero = {{0, 0, 0, 0}};
    uint64_t rows = (uint64_t)(uint32_t)p->f.num_ranks * p->max_tokens;
    char *to = p->out + (expert * rows + position) * p->payload_bytes;
    uint32_t begin = piece == LL_NOTES ? p->payload_bytes : piece * LL_PIECE;
    uint32_t end = begin + LL_PIECE < p->payload_bytes ? begin + LL_PIECE : p->payload_bytes;
    for (uint32_t i = begin + (uint32_t)lane() * 16; i < end; i += 512) {
        st_vec16(to + i, zero);
    }
    for (uint32_t w = (uint32_t)lane(); piece == LL_NOTES && w < p->scale_bytes / 4; w += 32) {
        p->out_scales[((uint64_t)expert * (p->scale_bytes / 4) + w) * rows + position] = 0;
    }
    if (piece == LL_NOTES && lane() == 0) {
        struct ll_push nowhere = {0, -1, 0, 0};
        p->lane.pushes[push] = nowhere;
        if (p->out_source) {
            p->out_source[expert * rows + position] = -1;
        }
    }
    for (uint32_t k = (uint32_t)lane(); piece == LL_NOTES && p->by_rank && k < p->topk; k += 32) {
        if (p->out_topk_idx) {
            p->out_topk_idx[(uint64_t)position * p->topk + k] = -1;
        }
        if (p->out_topk_weights) {
            p->out_topk_weights[(uint64_t)position * p->topk + k] = 0.0f;
        }
    }
}

/* One warp: slot of row i of rank s at this expert, if the row is here and has one there; else -1. */
TERN_DEVICE int32_t ll_slot_at(const struct ll_receiver *r, uint32_t s, uint32_t i, uint32_t expert)
{
    const struct ll_dispatch_args *p = r->p;
    const int32_t *header = (const int32_t *)ll_row_from(r, s, i);
    uint64_t place = ll_word_of(r, s, i);
    if (!ll_judge_row(&p->f, &p->lane, r->epoch, place, ll_arrival(&p->lane, p->f.own, r->epoch, place))) {
        return -1;
    }
    for (uint32_t k = 0; k < p->topk; k++) {
        if (header[LL_HEADER_IDS + k] == p->f.rank * (int32_t)p->experts_a_rank + (int32_t)expert) {
            return header[LL_HEADER_IDS + p->topk + k];
        }
    }
    return -1;
}

/* One warp: a piece of all rows of the slab that rank s announced and did not fill. Only the rows that came
 * say which they fill; an expert's rows go up with the source's. */
TERN_DEVICE void ll_clear_missing(const struct ll_receiver *r, uint32_t piece, uint32_t s)
{
    const struct ll_dispatch_args *p = r->p;
    uint32_t rows = r->rows_before[s + 1] - r->rows_before[s];
    for (uint32_t e = 0; e < p->experts_a_rank; e++) {
        uint32_t begin = r->begins[s * p->experts_a_rank + e];
        uint32_t end = (int)s + 1 < p->f.num_ranks ? r->begins[(s + 1) * p->experts_a_rank + e]
                                                   : r->slab_before[e + 1] - r->slab_before[e];
        for (uint32_t i0 = 0; i0 < rows; i0 += 32) {
            uint32_t i = i0 + (uint32_t)lane();
            int32_t slot = i < rows ? ll_slot_at(r, s, i, e) : -1;
            uint32_t filled = r->begins[s * p->experts_a_rank + e] + (uint32_t)slot;
            for (uint32_t left = warp_ballot(slot >= 0); left; left &= left - 1) {
                uint32_t next = shfl_u32(filled, TERN_FFS(left) - 1);
                for (; begin < next; begin++) {
                    ll_clear_piece(r, piece, e, begin,
                                   LL_WITH_FAR ? ll_push_number(r, s, e, begin) : r->slab_before[e] + begin);
                }
                begin = next + 1;
            }
        }
        for (; begin < end; begin++) {
            ll_clear_piece(r, piece, e, begin,
                           LL_WITH_FAR ? ll_push_number(r, s, e, begin) : r->slab_before[e] + begin);
        }
    }
}

/* One warp, with a piece of a row that is not here. In the slab the source's first such row stands for
 * all. */
TERN_DEVICE void ll_do_without(const struct ll_receiver *r, uint32_t number, uint32_t piece, uint32_t s,
                               uint32_t i)
{
    const struct ll_dispatch_args *p = r->p;
    int first = 1;
    if (p->by_rank) {
        ll_clear_piece(r, piece, 0, s * p->max_tokens + i, number);
        return;
    }
    for (uint32_t before = 0; first && before < i; before++) {
        first = ll_is_row_here(r, s, before);
    }
    if (piece == LL_NOTES) {
        int32_t *plan = p->lane.plan + (uint64_t)number * (LL_PLAN_ROWS + 2 * p->topk);
        for (uint32_t i = (uint32_t)lane(); i < LL_PLAN_ROWS + p->topk; i += 32) {
            plan[i] = -1; /* no rank, no token, no rows */
        }
    }
    if (first) {
        ll_clear_missing(r, piece, s);
    }
}

#endif
