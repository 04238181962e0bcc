/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch of some tokens, whose rows go over blanks (ll_blanks.h). Counts go as in
 * ll_dispatch_body.h, and say where rows belong; but who sends a row waits for nothing but its own counts,
 * and for the end of its copies only when it has nothing else to do. */
#ifndef TERN_LL_DISPATCH_BLANKS_H
#define TERN_LL_DISPATCH_BLANKS_H

#include "kernels/ll_in_words.h"
#include "kernels/ll_receive.h"
#include "kernels/ll_row_blanks.h"

/* ---- Sending ---- */

/* The place of this rank's row `slot` in this heap. */
TERN_DEVICE char *ll_place_at(const struct ll_sender *s, char *heap, int32_t slot)
{
    const struct ll_dispatch_args *p = s->p;
    uint64_t place = (uint64_t)(uint32_t)p->f.rank * p->max_tokens + (uint32_t)slot;
    return ll_places(&p->lane, heap, s->epoch) + place * ll_place_stride(p->row_bytes);
}

/* All threads, after the stage is whole. */
TERN_DEVICE void ll_start_over(const struct ll_sender *s, uint32_t stage, const int bulk)
{
    const struct ll_dispatch_args *p = s->p;
    const int32_t *slots = s->slots + stage * (uint32_t)p->f.num_ranks;
    const char *from = s->stages + stage * p->row_bytes;
    for (int i = bulk ? s->turn : 0; i < p->f.num_ranks; i += bulk ? nthr() : 1) {
        int d = ll_rank_of_copy(s, i);
        if (slots[d] >= 0 && bulk) {
            bulk_store_words(ll_place_at(s, ll_heap(s, d), slots[d]), from, p->row_bytes);
        } else if (slots[d] >= 0) {
            char *to = ll_place_at(s, p->f.ep_bases[d], slots[d]);
            for (uint32_t b = (uint32_t)tid() * 16; b < p->row_bytes; b += (uint32_t)nthr() * 16) {
                st_words_sys(to + b, ld_vec16(from + b));
            }
        }
    }
    if (bulk) {
        bulk_commit();
    }
}

/* All threads, before ll_enter: all that needs no epoch, as ll_prepare. Returns whether the block's first row
 * needs another key, as far as this thread knows. */
TERN_DEVICE int ll_prepare_over(struct ll_sender *s, const int bulk)
{
    int odd = 0;
    ll_prepare_fences(s, bulk);
    struct ll_tally_ids ids = ll_first_tally_ids(s);
    s->token = ll_load_token(s, s->begin);
    ll_clear_counters(s);
    if (s->begin < s->end) {
        odd = ll_put_row(s, s->begin, 0);
        if (warp() == 0) {
            odd |= ll_put_heads(s, s->begin, 0);
        }
    }
    sync_block();
    ll_tally(s, ids);
    return odd;
}

/* All threads of a block with tokens. A stage is written again two barriers after its copies were started,
 * between which they were read. */
TERN_DEVICE void ll_send_over(struct ll_sender *s, int odd, const int bulk)
{
    uint32_t stage = 0;
    for (uint32_t t = s->begin; t < s->end; t++) {
        if (TERN_RARE(t > s->begin)) { /* not with few tokens, when time counts most */
            odd = ll_put_row(s, t, stage);
            if (warp() == 0) {
                odd |= ll_put_heads(s, t, stage);
            }
        }
        if (warp() == 0) {
            ll_put_slots(s, t, stage);
        }
        s->token = ll_load_token(s, t + 1);
        if (bulk) {
            LL_DISPATCH_STAGE_FENCE(); /* the stage comes before the copies */
        }
        if (TERN_RARE(sync_block_or(odd))) {
            ll_change_key(s, stage);
            if (bulk) {
                LL_DISPATCH_STAGE_FENCE(); /* likewise */
            }
            sync_block();
        }
        ll_start_over(s, stage, bulk);
        if (bulk) {
            bulk_wait_read(1);
        }
        stage = stage == LL_STAGES - 1 ? 0 : stage + 1;
    }
}

/* All threads, after ll_prepare_over and ll_enter. */
TERN_DEVICE void ll_dispatch_send_over(struct ll_sender *s, int odd, const int bulk)
{
    if (s->announces) {
        ll_announce_counts(s);
    }
    ll_begin_tokens(s);
    if (s->begin < s->end) {
        ll_send_over(s, odd, bulk);
    }
}

/* ---- Receiving ---- */

/* What a lane has seen of a piece's head. */
struct ll_seen {
    uint32_t choice, key, token, weight; /* token and weight: of notes */
};

/* 1: it is here, as far as this lane wants it. */
TERN_DEVICE int ll_look_head(const struct ll_dispatch_args *p, const char *head, int notes,
                             struct ll_seen *seen)
{
    const uint32_t *words = (const uint32_t *)(const void *)head;
    uint32_t k = (uint32_t)lane();
    seen->key = ld_relaxed_sys_u32(words + p->topk);
    seen->choice = k < p->topk ? ld_relaxed_sys_u32(words + k) : ~0u;
    seen->token = notes ? ld_relaxed_sys_u32(words + ll_token_word(p)) : ~0u;
    seen->weight = notes && k < p->topk ? ld_relaxed_sys_u32(words + ll_weight_word(p) + k) : ~0u;
    return seen->key && seen->choice && seen->token && seen->weight;
}

/* All lanes, when all have seen the head. */
TERN_DEVICE void ll_blank_head(const struct ll_dispatch_args *p, char *head, int notes)
{
    uint32_t *words = (uint32_t *)(void *)head;
    uint32_t all = notes ? ll_weight_word(p) + p->topk : p->topk + 1;
    sync_warp(); /* words are not all zeroed by the lane that has loaded them */
    for (uint32_t w = (uint32_t)lane(); w < all; w += 32) {
        st_relaxed_sys_u32(words + w, 0);
    }
}

TERN_DEVICE struct ll_head ll_head_seen(const struct ll_dispatch_args *p, const struct ll_seen *seen)
{
    struct ll_head h = {0, -1, 0, 0, 0};
    uint32_t choice = seen->choice ^ seen->key;
    if ((uint32_t)lane() < p->topk) {
        h.id = (choice & 0xffffu) == LL_NO_EXPERT ? -1 : (int32_t)(choice & 0xffffu);
        h.slot = (int32_t)(choice >> 16);
        h.weight = seen->weight ^ seen->key;
    }
    h.token = (int32_t)(seen->token ^ seen->key);
    return h;
}

/* LL_AT_ONCE scales a lane, of words w, w + 32, ...; 1: they are here. */
TERN_DEVICE int ll_look_scale_words(const struct ll_dispatch_args *p, const char *row, uint32_t w,
                                    uint32_t *scale)
{
    const uint32_t *words = (const uint32_t *)(const void *)(row + LL_NOTES_BYTES(p->topk));
    int here = 1;
    TERN_UNROLL
    for (uint32_t a = 0; a < LL_AT_ONCE; a++) {
        scale[a] = w + a * 32 < ll_scale_words(p) ? ld_relaxed_sys_u32(words + w + a * 32) : ~0u;
        here &= scale[a] != 0;
    }
    return here;
}

/* All lanes: LL_AT_ONCE scales of each from word w0 on; 0: abandon. */
TERN_DEVICE int ll_take_scale_words(const struct ll_receiver *r, struct ll_words *wait, char *row,
                                    uint32_t w0, uint32_t key, struct ll_choice c)
{
    const struct ll_dispatch_args *p = r->p;
    uint32_t *words = (uint32_t *)(void *)(row + LL_NOTES_BYTES(p->topk));
    uint32_t w = w0 + (uint32_t)lane(), scale[LL_AT_ONCE];
    int end = 0;
    while (end == 0) {
        end = ll_words_here(wait, ll_look_scale_words(p, row, w, scale));
    }
    TERN_UNROLL
    for (uint32_t a = 0; a < LL_AT_ONCE; a++) {
        scale[a] ^= key;
        if (end > 0 && w + a * 32 < ll_scale_words(p)) {
            st_relaxed_sys_u32(words + w + a * 32, 0);
        }
    }
    if (end > 0) {
        ll_store_scales(r, scale, w, warp_ballot(c.placed), c);
    }
    return end > 0;
}

/* A row that a warp takes a piece of. */
struct ll_over_row {
    char *at;
    uint32_t s, place, number;
};

/* All lanes: what goes with the row. 0: abandon. */
TERN_DEVICE int ll_take_notes_over(const struct ll_receiver *r, const struct ll_over_row *row)
{
    const struct ll_dispatch_args *p = r->p;
    struct ll_words wait = ll_words_of(&p->f, &p->lane, r->epoch, r->begin, (int)row->s);
    struct ll_seen seen;
    int end = 0, ok;
    while (end == 0) {
        end = ll_words_here(&wait, ll_look_head(p, row->at, 1, &seen));
    }
    ok = end > 0;
    if (ok) {
        struct ll_head head = ll_head_seen(p, &seen);
        struct ll_choice c = ll_choice_of(r, head, row->s, row->place);
        ll_note_row(r, head, row->number, c.placed ? ll_push_of(r, row->number, row->s, c) : 0, row->s, c);
        ll_blank_head(p, row->at, 1);
        for (uint32_t w0 = 0; ok && w0 < ll_scale_words(p); w0 += LL_AT_ONCE * 32) {
            ok = ll_take_scale_words(r, &wait, row->at, w0, seen.key, c);
        }
    }
    if (lane() == 0) {
        ll_words_waited(&wait, ok);
    }
    return ok;
}

/* One lane: its parts of a piece, of which so many bytes are left; 1: they are here. */
TERN_DEVICE int ll_look_piece(struct ll_piece *piece, const char *from, uint32_t left)
{
    int here = 1;
    TERN_UNROLL
    for (int q = 0; q < LL_PIECE_VECS; q++) {
        uint32_t i = (uint32_t)(q * 512 + lane() * 16);
        if (i < left) {
            piece->v[q] = ld_words_sys(from + i);
            here &= !ll_has_blank(piece->v[q]);
        }
    }
    return here;
}

/* All lanes: looks at a piece of the payload, with its head. */
TERN_DEVICE int ll_look_payload_over(const struct ll_dispatch_args *p, const char *head, uint32_t left,
                                     struct ll_piece *piece, struct ll_seen *seen)
{
    int here = ll_look_piece(piece, head + LL_HEAD_BYTES(p->topk), left);
    return ll_look_head(p, head, 0, seen) && here;
}

/* All lanes: until it is here, which it was not at first. Apart from the rest: what waits has registers of
 * its own. 0: abandon. */
TERN_DEVICE int ll_await_payload_over(const struct ll_receiver *r, uint32_t s, const char *head,
                                      uint32_t left, struct ll_piece *piece, struct ll_seen *seen)
{
    struct ll_words wait = ll_words_of(&r->p->f, &r->p->lane, r->epoch, r->begin, (int)s);
    int end = 0;
    while (end == 0) {
        end = ll_words_here(&wait, ll_look_payload_over(r->p, head, left, piece, seen));
    }
    if (lane() == 0) {
        ll_words_waited(&wait, end > 0);
    }
    return end > 0;
}

/* All lanes: a piece of the payload. 0: abandon. */
TERN_DEVICE int ll_take_payload_over(const struct ll_receiver *r, const struct ll_over_row *row,
                                     uint32_t number)
{
    const struct ll_dispatch_args *p = r->p;
    char *head = row->at + ll_head_at(p, (int)number), *from = head + LL_HEAD_BYTES(p->topk);
    uint32_t begin = number * LL_PIECE, left = p->payload_bytes - begin;
    struct ll_piece piece;
    struct ll_seen seen;
    int here = ll_look_payload_over(p, head, left, &piece, &seen);
    if (TERN_RARE(!warp_all(here)) && !ll_await_payload_over(r, row->s, head, left, &piece, &seen)) {
        return 0;
    }
    struct ll_choice c = ll_choice_of(r, ll_head_seen(p, &seen), row->s, row->place);
    TERN_UNROLL
    for (int q = 0; q < LL_PIECE_VECS; q++) {
        piece.v[q] = ll_with_key(piece.v[q], seen.key);
    }
    ll_store_piece(p, &piece, begin, warp_ballot(c.placed), ll_slab_row(p, c));
    ll_blank_head(p, head, 0);
    for (uint32_t i = (uint32_t)lane() * 16; i < LL_PIECE && i < left; i += 512) {
        ll_put_blank(from + i);
    }
    return 1;
}

/* One warp: a piece of a row, or what goes with it. 0: abandon. */
TERN_DEVICE int ll_take_over(const struct ll_receiver *r, uint32_t piece, struct ll_taken t)
{
    const struct ll_dispatch_args *p = r->p;
    struct ll_over_row row;
    row.s = t.s;
    row.place = t.s * p->max_tokens + t.i;
    row.number = t.number;
    row.at = ll_places(&p->lane, p->f.own, r->epoch) + row.place * ll_place_stride(p->row_bytes);
    return piece == LL_NOTES ? ll_take_notes_over(r, &row) : ll_take_payload_over(r, &row, piece);
}

/* All threads. */
TERN_DEVICE void ll_receive_over(const struct ll_dispatch_args *p, uint64_t epoch)
{
    struct ll_receiver r = ll_receiver_of(p, epoch, nthr());
    uint32_t pieces = LL_PIECES(p->payload_bytes) + 1; /* the last one LL_NOTES */
    int ok = ll_learn_places(&r);
    uint32_t units = ok ? r.rows_before[p->f.num_ranks] * pieces : 0;
    for (uint32_t u = (uint32_t)(warp() * nblk() + bid()); ok && u < units;
         u += (uint32_t)(nblk() * nwarps())) {
        uint32_t piece = u % pieces;
        ok = ll_take_over(&r, piece == pieces - 1 ? LL_NOTES : piece, ll_taken_of(&r, u / pieces));
    }
}

/* ---- Both ---- */

TERN_DEVICE void ll_dispatch_over(const struct ll_dispatch_args *p, const int bulk)
{
    int ok, odd = 0;
    uint64_t begin = stamp_now();
    struct ll_glance glance = ll_look(&p->f, &p->lane);
    uint64_t epoch = glance.epoch;
    struct ll_sender sender = ll_sender_of(p, epoch);
    if (p->phases & LL_SENDS) {
        odd = ll_prepare_over(&sender, bulk);
    }
    ll_enter(&p->f, &glance, &ok);
    if (ok && (p->phases & LL_SENDS)) {
        ll_dispatch_send_over(&sender, odd, bulk);
    }
    if (p->phases & LL_RECEIVES) {
        ll_raise(&p->f, &p->lane, epoch);
    }
    if (ok && (p->phases & LL_RECEIVES)) {
        ll_receive_over(p, epoch);
        ll_leave(&p->f, &p->lane, epoch);
    }
    if (bulk) {
        /* Their ends mean nothing to takers; but nothing of them, no gap either, is to come behind this
         * kernel, when a reset may have zeroed the places, or a later operation has laid them out anew. */
        bulk_wait(0);
    }
    ll_stamp(&p->f, &p->lane, epoch, begin);
}

#endif
