/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch, receiving. Once a block knows where everything goes (ll_counts.h), its warps take
 * pieces of rows in turn, wait for the row's own word and copy the piece to the row's place at each of its
 * experts here. Rows of the slab: by expert, source rank, token. By rank a row has one place, that of the
 * buffer it came in: nothing is expanded, and the slab is as that of one expert.
 *
 * What goes with a row is a piece too, LL_NOTES: what combine must know, scales, sources, ids and weights. */
#ifndef TERN_LL_RECEIVE_H
#define TERN_LL_RECEIVE_H

#include "kernels/ll_counts.h"
#include "kernels/ll_missing.h"
#include "kernels/ll_spread.h"

/* What a lane knows of a row's header: the token, and of the choice that it looks after the rest. */
struct ll_head {
    int32_t token, id, slot;
    uint32_t weight, message;
};

/* `notes`: also what only they need. */
TERN_DEVICE struct ll_head ll_head_of(const struct ll_dispatch_args *p, const int32_t *header, int notes)
{
    struct ll_head h = {0, -1, 0, 0, 0};
    uint32_t k = (uint32_t)lane();
    if (k < p->topk) {
        h.id = header[LL_HEADER_IDS + k];
        h.slot = p->by_rank ? 0 : header[LL_HEADER_IDS + p->topk + k];
        h.weight = notes ? (uint32_t)header[LL_HEADER_IDS + 2 * p->topk + k] : 0;
    }
    if (notes) {
        h.token = header[LL_HEADER_TOKEN];
    }
    if (LL_WITH_RAIL && notes) {
        h.message = (uint32_t)header[LL_HEADER_MESSAGE(p->topk)];
    }
    return h;
}

/* What a lane knows of the row's choice that it looks after. */
struct ll_choice {
    int local;  /* its expert is here */
    int placed; /* the row has a place on its account; by rank the first local choice, for all of them */
    uint32_t expert, position;
};

/* `place`: the row's in its buffer. */
TERN_DEVICE struct ll_choice ll_choice_of(const struct ll_receiver *r, struct ll_head h, uint32_t s,
                                          uint32_t place)
{
    const struct ll_dispatch_args *p = r->p;
    int32_t expert = h.id - p->f.rank * (int32_t)p->experts_a_rank;
    struct ll_choice c;
    c.local = h.id >= 0 && expert >= 0 && expert < (int32_t)p->experts_a_rank;
    if (p->by_rank) {
        c.placed = TERN_FFS(warp_ballot(c.local)) - 1 == lane();
        c.expert = 0;
        c.position = place;
        return c;
    }
    c.placed = is_first((uint32_t)h.id, (uint32_t)lane(), p->topk) && c.local;
    c.expert = c.local ? (uint32_t)expert : 0;
    c.position = c.local ? (uint32_t)h.slot + r->begins[s * p->experts_a_rank + c.expert] : 0;
    return c;
}

/* Row of the slab. */
TERN_DEVICE uint32_t ll_slab_row(const struct ll_dispatch_args *p, struct ll_choice c)
{
    return c.expert * (uint32_t)p->f.num_ranks * p->max_tokens + c.position;
}

/* By rank: for the caller's experts, which of them the row is for and with what weights. */
TERN_DEVICE void ll_write_choices(const struct ll_receiver *r, struct ll_head h, uint32_t place,
                                  struct ll_choice c)
{
    const struct ll_dispatch_args *p = r->p;
    uint32_t k = (uint32_t)lane();
    uint64_t at = (uint64_t)place * p->topk + k;
    if (k < p->topk && p->out_topk_idx) {
        int32_t expert = h.id - p->f.rank * (int32_t)p->experts_a_rank;
        p->out_topk_idx[at] = c.local ? expert : -1;
    }
    if (k < p->topk && p->out_topk_weights) {
        p->out_topk_weights[at] = bits_f32(c.local ? h.weight : 0);
    }
}

/* Where a row of a combine goes that this rank makes of a received row of rank s: to its token's home, to the
 * place of choice k; or railed, if it is summed, to who adds it for the home. */
TERN_DEVICE struct ll_push ll_push_home(const struct ll_receiver *r, struct ll_head h, uint32_t s, uint32_t k)
{
    const struct ll_dispatch_args *p = r->p;
    struct ll_push to = {0, (int32_t)s, h.token * (int32_t)p->topk + (int32_t)k, 0};
    if (p->summed && ll_is_far(&p->f, (int)s)) {
        uint32_t here = (uint32_t)(p->f.rank - ll_far_of(&p->f)->first);
        to.rank = ll_relay_of(&p->f, (int)s);
        to.place = (int32_t)ll_part_place(&p->f, &p->lane, ll_domain_of(&p->f, s), h.message, here);
    }
    return to;
}

/* What combine must know of a received row, so that it can add the rows of the slab that stand for it: the
 * `number`-th that it will send home. */
TERN_DEVICE void ll_write_plan(const struct ll_receiver *r, struct ll_head h, uint32_t number, uint32_t s,
                               struct ll_choice c)
{
    const struct ll_dispatch_args *p = r->p;
    int32_t *plan = p->lane.plan + (uint64_t)number * (LL_PLAN_ROWS + 2 * p->topk);
    uint32_t k = (uint32_t)lane();
    if (LL_WITH_RAIL) {
        uint32_t first = (uint32_t)TERN_FFS(warp_ballot(c.local)) - 1;
        struct ll_push to = ll_push_home(r, h, s, first);
        if (k == 0) {
            plan[LL_PLAN_RANK] = to.rank;
            plan[LL_PLAN_TOKEN] = to.place;
        }
    } else if (k == 0) {
        plan[LL_PLAN_RANK] = (int32_t)s;
        plan[LL_PLAN_TOKEN] = h.token;
    }
    if (k < p->topk) {
        plan[LL_PLAN_ROWS + k] = !c.local ? -1 : (int32_t)ll_slab_row(p, c);
        plan[LL_PLAN_ROWS + p->topk + k] = (int32_t)h.weight;
    }
}

/* Which push a row of the slab is. */
TERN_DEVICE uint32_t ll_push_of(const struct ll_receiver *r, uint32_t number, uint32_t s, struct ll_choice c)
{
    if (r->p->by_rank) {
        return number;
    }
    return LL_WITH_FAR ? ll_push_number(r, s, c.expert, c.position) : r->slab_before[c.expert] + c.position;
}

/* Likewise, and what the caller may want to know. `index`: of a lane whose choice is placed, ll_push_of. */
TERN_DEVICE void ll_note_row(const struct ll_receiver *r, struct ll_head h, uint32_t number, uint32_t index,
                             uint32_t s, struct ll_choice c)
{
    const struct ll_dispatch_args *p = r->p;
    if (p->by_rank) {
        ll_write_choices(r, h, c.position, c);
    } else {
        ll_write_plan(r, h, number, s, c);
    }
    if (c.placed) {
        uint32_t row = ll_slab_row(p, c);
        struct ll_push push = {0, (int32_t)s, h.token * (int32_t)p->topk + lane(), 0};
        if (LL_WITH_RAIL) {
            push = ll_push_home(r, h, s, (uint32_t)lane());
        }
        push.row = (int32_t)row;
        p->lane.pushes[index] = push;
        if (p->out_source) {
            p->out_source[row] = h.token;
        }
    }
}

/* LL_AT_ONCE scales a lane, of words w, w + 32, ..., to each expert's rows that a lane in `hits` names: word
 * after word, each with all rows together. */
TERN_DEVICE void ll_store_scales(const struct ll_receiver *r, const uint32_t *scale, uint32_t w,
                                 uint32_t hits, struct ll_choice c)
{
    const struct ll_dispatch_args *p = r->p;
    uint64_t rows = (uint64_t)(uint32_t)p->f.num_ranks * p->max_tokens;
    uint32_t words = p->scale_bytes / 4;
    for (uint32_t left = hits; left; left &= left - 1) {
        int src = TERN_FFS(left) - 1;
        uint32_t *to =
            p->out_scales + (uint64_t)shfl_u32(c.expert, src) * words * rows + shfl_u32(c.position, src);
        TERN_UNROLL
        for (uint32_t a = 0; a < LL_AT_ONCE; a++) {
            if (w + a * 32 < words) {
                to[(w + a * 32) * rows] = scale[a];
            }
        }
    }
}

TERN_DEVICE void ll_write_scales(const struct ll_receiver *r, const uint32_t *scales, uint32_t hits,
                                 struct ll_choice c)
{
    uint32_t words = r->p->scale_bytes / 4;
    for (uint32_t w0 = 0; w0 < words; w0 += LL_AT_ONCE * 32) {
        uint32_t w = w0 + (uint32_t)lane(), scale[LL_AT_ONCE];
        TERN_UNROLL
        for (uint32_t a = 0; a < LL_AT_ONCE; a++) {
            scale[a] = w + a * 32 < words ? scales[w + a * 32] : 0;
        }
        ll_store_scales(r, scale, w, hits, c);
    }
}

/* A piece of a row: lane l holds bytes [q * 512 + l * 16, + 16) of it in v[q]. */
struct ll_piece {
    struct vec16 v[LL_PIECE_VECS];
};

TERN_DEVICE void ll_load_piece(struct ll_piece *piece, const char *from, uint32_t bytes)
{
    TERN_UNROLL
    for (int q = 0; q < LL_PIECE_VECS; q++) {
        uint32_t i = (uint32_t)(q * 512 + lane() * 16);
        if (i < bytes) {
            piece->v[q] = ld_stream_vec16(from + i);
        }
    }
}

/* To the same place in each row of the slab that a lane in `hits` names. */
TERN_DEVICE void ll_store_piece(const struct ll_dispatch_args *p, const struct ll_piece *piece,
                                uint32_t begin, uint32_t hits, uint32_t row)
{
    for (uint32_t left = hits; left; left &= left - 1) {
        char *to = p->out + (uint64_t)shfl_u32(row, TERN_FFS(left) - 1) * p->payload_bytes + begin;
        TERN_UNROLL
        for (int q = 0; q < LL_PIECE_VECS; q++) {
            uint32_t i = (uint32_t)(q * 512 + lane() * 16);
            if (i < p->payload_bytes - begin) {
                st_vec16(to + i, piece->v[q]);
            }
        }
    }
}

/* One warp: a piece of row i of rank s, which a combine has as `number`, is here; 0: its verdict says no. */
TERN_DEVICE int ll_expand_piece(const struct ll_receiver *r, uint32_t number, uint32_t piece, uint32_t s,
                                uint32_t i)
{
    const struct ll_dispatch_args *p = r->p;
    const char *at = ll_row_from(r, s, i);
    struct ll_piece v;
    uint32_t begin = piece * LL_PIECE;
    if (piece != LL_NOTES) {
        ll_load_piece(&v, at + p->header_bytes + begin, p->payload_bytes - begin); /* beside the header */
    }
    int doubts = ll_has_masks(&p->lane) && lane() == 0 && ll_doubts(&p->lane, r->epoch); /* and beside both */
    struct ll_head head = ll_head_of(p, (const int32_t *)(const void *)at, piece == LL_NOTES);
    struct ll_choice c = ll_choice_of(r, head, s, s * p->max_tokens + i);
    if (ll_has_masks(&p->lane) && warp_any(doubts) && !ll_is_row_here(r, s, i)) {
        return 0;
    }
    uint32_t hits = warp_ballot(c.placed);
    if (piece != LL_NOTES) {
        ll_store_piece(p, &v, begin, hits, ll_slab_row(p, c));
    } else {
        ll_note_row(r, head, number, c.placed ? ll_push_of(r, number, s, c) : 0, s, c);
        ll_write_scales(r, (const uint32_t *)(at + p->header_bytes + p->payload_bytes), hits, c);
    }
    return 1;
}

/* One warp: a piece of that row. 0: abandon. */
TERN_DEVICE int ll_take_piece(const struct ll_receiver *r, uint32_t piece, struct ll_taken t)
{
    const struct ll_dispatch_args *p = r->p;
    const uint32_t s = t.s, i = t.i;
    uint32_t data;
    int end = LL_HERE, here = 1;
    if (lane() == 0) {
        end = ll_await_by(&p->f, &p->lane, r->epoch, r->begin, OP_AWAIT_DONE,
                          LL_WITH_RAIL && ll_is_far(&p->f, (int)s), ll_bringer(&p->f, (int)s),
                          ll_arrival(&p->lane, p->f.own, r->epoch, ll_word_of(r, s, i)), &data);
    }
    if (TERN_RARE(!warp_all(end == LL_HERE))) {
        if (!ll_has_masks(&p->lane) || shfl_u32((uint32_t)end, 0) == LL_ABANDON) {
            return 0;
        }
        ll_raise_doubt(&p->lane, r->epoch);
        here = ll_is_row_here(r, s, i);
    }
    sync_warp(); /* what lane 0 has acquired is there for all lanes */
    if (TERN_RARE(!here || !ll_expand_piece(r, t.number, piece, s, i))) {
        ll_do_without(r, t.number, piece, s, i);
    }
    return 1;
}

/* The block's first `threads` threads. */
TERN_DEVICE void ll_dispatch_receive(const struct ll_dispatch_args *p, uint64_t epoch, int threads)
{
    struct ll_receiver r = ll_receiver_of(p, epoch, threads);
    uint32_t pieces = (p->payload_bytes + LL_PIECE - 1) / LL_PIECE + 1; /* the last one LL_NOTES */
    int ok = ll_learn_places(&r) && (!LL_WITH_RAIL || ll_spread(&r));
    uint32_t units = ok ? r.rows_before[p->f.num_ranks] * pieces : 0;
    for (uint32_t u = (uint32_t)(warp() * nblk() + bid()); ok && u < units;
         u += (uint32_t)(nblk() * threads / 32)) {
        uint32_t piece = u % pieces;
        ok = ll_take_piece(&r, piece == pieces - 1 ? LL_NOTES : piece, ll_taken_of(&r, u / pieces));
    }
}

#endif
