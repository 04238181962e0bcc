/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch across domains: a token's row into the out-box, from where it leaves with others of
 * its chunk (ll_chunk.h). Consecutive slots belong to tokens of one block or of several. Every block knows
 * how many rows there are for each rank, hence of how many the last chunk is.
 *
 * Also what this rank has to know when rows come home: where each lies, among those of its far rank
 * (ll_far_args.h). A token's block has its number among those of its expert, or rank; the block that
 * announces knows how many there are of each, and tells every far rank where its rows begin. */
#ifndef TERN_LL_SEND_FAR_H
#define TERN_LL_SEND_FAR_H

#include "kernels/ll_chunk.h"
#include "kernels/ll_receiver.h" /* ll_scan */
#include "kernels/ll_sender.h"

/* One warp: `bytes`, a multiple of 16. */
TERN_DEVICE void ll_copy_row(char *to, const char *from, uint32_t bytes)
{
    for (uint32_t i = (uint32_t)lane() * 16; i < bytes; i += 512) {
        st_vec16(to + i, ld_vec16(from + i));
    }
}

/* This warp's. */
TERN_DEVICE struct queue_near *ll_near(const struct ll_sender *s)
{
    return (struct queue_near *)(void *)(s->stages - LL_NEAR_BYTES) + warp();
}

/* One warp: the row at `row` goes to far rank d, which has `slot` for it. */
TERN_DEVICE void ll_add_to_chunk(const struct ll_sender *s, int d, uint32_t slot, const char *row)
{
    const struct ll_dispatch_args *p = s->p;
    const struct ll_far *far = ll_far_of(&p->f);
    const uint32_t *begins = ll_far_begins(s);
    uint32_t first = ll_chunk_of(slot), rows = ll_chunk_rows(begins[d + 1] - begins[d], first);
    uint64_t *count = &far->chunks[(uint64_t)(uint32_t)d * far->rank_chunks + slot / LL_CHUNK];
    char *out = ll_rows_out(&p->f, s->epoch) + (uint64_t)(begins[d] + first) * p->row_bytes;
    uint32_t turn = slot / LL_CHUNK + (uint32_t)d;
    struct queue_near *near = ll_near(s);
    ll_open_chunk(count, s->epoch);
    ll_copy_row(out + (slot - first) * p->row_bytes, row, p->row_bytes);
    ll_bring_near(&p->f, d, turn, near);
    if (ll_count_row(count, rows)) {
        uint64_t place = ll_place_of(&p->lane, (uint32_t)p->f.rank, 0);
        char *to = ll_buffer(&p->lane, p->f.own, s->epoch) + place * p->lane.row_stride;
        ll_put_rows(&p->f, &p->lane, s->epoch, d, turn, near, to + (uint64_t)first * p->row_bytes, out,
                    rows * p->row_bytes, place + first);
    }
}

/* All warps, after the stage is whole: its row into the out-box, once for each far rank that it is for, a
 * warp each. slots[d]: at rank d, or -1. */
TERN_DEVICE void ll_start_far(const struct ll_sender *s, const int32_t *slots, const char *row)
{
    const struct op_frame *f = &s->p->f;
    int turn = 0;
    for (int d0 = 0; d0 < f->num_ranks; d0 += 32) {
        int d = d0 + lane();
        int32_t slot = d < f->num_ranks && ll_is_far(f, d) ? slots[d] : -1;
        for (uint32_t left = warp_ballot(slot >= 0); left; left &= left - 1) {
            int from = TERN_FFS(left) - 1;
            uint32_t there = shfl_u32((uint32_t)slot, from);
            if (turn == warp()) {
                ll_add_to_chunk(s, d0 + from, there, row);
            }
            turn = turn + 1 < nwarps() ? turn + 1 : 0;
        }
    }
}

/* The first warp, for the lane's choice of token t: `of_expert`, its number among those of its expert. slots:
 * as of ll_start_far; railed, of messages for domains. */
TERN_DEVICE void ll_note_slot(const struct ll_sender *s, uint32_t t, int32_t of_expert, const int32_t *slots)
{
    const struct ll_dispatch_args *p = s->p;
    uint32_t k = (uint32_t)lane();
    sync_warp(); /* the token's slots at ranks are there */
    if (k < p->topk) {
        uint32_t rank = s->token.rank;
        int32_t summed = LL_WITH_RAIL ? slots[ll_domain_of(&p->f, rank)] : slots[rank];
        ll_far_of(&p->f)->numbers[(uint64_t)t * p->topk + k] = p->summed ? summed : of_expert;
    }
}

/* All threads of the last block, counted and past ll_enter: where rows come home from each far expert, or
 * rank, or domain. */
TERN_DEVICE void ll_place_homes(const struct ll_sender *s)
{
    const struct ll_dispatch_args *p = s->p;
    uint32_t of_rank = p->summed ? 1 : p->experts_a_rank, n = of_rank * (uint32_t)p->f.num_ranks;
    const uint32_t *counts = s->counters + (p->summed ? p->num_experts : 0);
    uint32_t *places = ll_home_places(s);
    for (uint32_t i = (uint32_t)tid(); i < n; i += (uint32_t)nthr()) {
        if (LL_WITH_RAIL && p->summed) {
            places[i + 1] = ll_far_begins(s)[i + 1]; /* still how many: a row for each message */
        } else {
            places[i + 1] = ll_is_far(&p->f, (int)(i / of_rank)) ? counts[i] : 0;
        }
    }
    sync_block();
    if (warp() == 0) {
        ll_scan(places, n);
    }
    sync_block();
    for (uint32_t i = (uint32_t)tid(); i < n; i += (uint32_t)nthr()) {
        ll_far_of(&p->f)->places[i] = places[i];
    }
}

/* What far rank d is told of them: where its own begin. */
TERN_DEVICE uint32_t ll_home_place(const struct ll_sender *s, int d)
{
    if (LL_WITH_RAIL && s->p->summed) {
        return ll_home_places(s)[ll_domain_of(&s->p->f, (uint32_t)d)];
    }
    return ll_home_places(s)[(uint32_t)d * (s->p->summed ? 1 : s->p->experts_a_rank)];
}

#endif
