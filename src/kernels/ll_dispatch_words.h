/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch of few tokens, whose rows go in words (ll_in_words.h). Beside ll_dispatch_body.h
 * neither side counts before it does anything else: a row's place on its way is its token's, and ranks tell
 * each other ids (ll_ids.h). So a rank's ids and its rows are on their way as soon as they are read, and
 * beside each other.
 *
 * A row on its way has weights in its header, and nothing else that is looked at. */
#ifndef TERN_LL_DISPATCH_WORDS_H
#define TERN_LL_DISPATCH_WORDS_H

#include "kernels/ll_ids.h"
#include "kernels/ll_receive.h"
#include "kernels/ll_send.h"

/* ---- Sending ---- */

/* Where weights begin in a row, and from where on it is sent: whole words. */
TERN_DEVICE uint32_t ll_weights_at(const struct ll_dispatch_args *p)
{
    return (uint32_t)sizeof(uint32_t) * (LL_HEADER_IDS + 2 * p->topk);
}

/* Where a token goes: a lane a choice. */
struct ll_bound {
    char *heap;  /* of the choice's rank */
    uint32_t to; /* lanes that are the first of their rank; the same in all lanes */
};

/* All lanes of each warp. The first one notes the token's ids for combine. */
TERN_DEVICE struct ll_bound ll_bind(const struct ll_sender *s, uint32_t t)
{
    const struct ll_dispatch_args *p = s->p;
    uint32_t k = (uint32_t)lane();
    uint64_t c = (uint64_t)t * p->topk + k;
    int32_t id = k < p->topk ? ll_valid_id(p, id_at(p->topk_idx, p->idx_bytes, c)) : -1;
    uint32_t rank = id >= 0 ? (uint32_t)id / p->experts_a_rank : 0;
    struct ll_firsts first = ll_firsts_of(p, id, rank, k);
    struct ll_bound b = {p->f.ep_bases[rank], warp_ballot(id >= 0 && first.of_rank)};
    if (warp() == 0 && k < p->topk) {
        p->lane.ids[c] = id;
    }
    return b;
}

/* All threads: token t into a stage. */
TERN_DEVICE void ll_stage_words(const struct ll_sender *s, uint32_t t, uint32_t stage)
{
    const struct ll_dispatch_args *p = s->p;
    char *row = s->stages + stage * p->row_bytes;
    uint32_t at = ll_weights_at(p);
    ll_write_row(s, t, stage);
    for (uint32_t i = at / 8 * 8 + 4 * (uint32_t)tid(); i < p->header_bytes; i += 4 * (uint32_t)nthr()) {
        uint32_t k = (i - at) / 4;
        *(float *)(void *)(row + i) =
            i >= at && k < p->topk && p->weights ? p->weights[(uint64_t)t * p->topk + k] : 0.0f;
    }
}

/* All threads, before ll_enter: the block's first token is staged, its ids are known, or this rank's are. */
TERN_DEVICE struct ll_bound ll_prepare_few(const struct ll_ids *w, const struct ll_sender *s)
{
    struct ll_bound b = {NULL, 0};
    if (s->announces) {
        ll_read_ids(w, s);
    }
    if (s->begin < s->end) {
        b = ll_bind(s, s->begin);
        ll_stage_words(s, s->begin, 0);
    }
    return b;
}

/* All threads of a block with tokens, the first of them staged. A stage is written again a barrier after all
 * have read it. */
TERN_DEVICE void ll_send_words(const struct ll_sender *s, struct ll_bound b)
{
    const struct ll_dispatch_args *p = s->p;
    uint32_t stage = 0, from = ll_weights_at(p) / 8 * 8;
    for (uint32_t t = s->begin; t < s->end; t++, stage ^= 1) {
        if (t > s->begin) {
            b = ll_bind(s, t);
            ll_stage_words(s, t, stage);
            sync_block();
        }
        for (uint32_t left = b.to; left; left &= left - 1) {
            char *heap = (char *)(uintptr_t)shfl_u64((uint64_t)(uintptr_t)b.heap, TERN_FFS(left) - 1);
            uint64_t place = (uint64_t)(uint32_t)p->f.rank * p->lane.word_rows + t;
            ll_store_words(ll_words_at(&p->lane, heap, s->epoch, place, p->lane.row_stride),
                           s->stages + stage * p->row_bytes, from, p->row_bytes, s->epoch);
        }
    }
}

/* ---- Receiving ---- */

/* Bytes of a row that a warp takes: there are more warps than pieces. */
enum { LL_FEW_VECS = 1, LL_FEW_PIECE = LL_FEW_VECS * 512 };

/* A row that a warp takes a piece of. */
struct ll_few_row {
    const char *at;
    uint32_t s, t;
    struct ll_head head;
    struct ll_choice c;
};

/* All lanes: what the ids say of the row, in `all` of them if its pushes are wanted, too. The head lacks the
 * weight. Returns which push a lane's choice is, if it is placed. */
TERN_DEVICE uint32_t ll_find_row(const struct ll_ids *w, struct ll_few_row *row, uint32_t all)
{
    const struct ll_dispatch_args *p = w->r.p;
    uint32_t group = p->topk <= 8 ? 8 : p->topk <= 16 ? 16 : 32, k = (uint32_t)lane() % group;
    uint32_t low = (uint32_t)p->f.rank * p->experts_a_rank, before = ll_ids_before(w, row->s, row->t);
    uint32_t raw = k < p->topk ? w->all[before + k] : (uint32_t)LL_NO_CHOICE;
    uint32_t expert = raw & ~(uint32_t)LL_AGAIN;
    int is_mine = (uint32_t)lane() < p->topk;
    struct ll_places at = {0, 0};
    row->c.local = is_mine && expert - low < p->experts_a_rank;
    row->c.expert = p->by_rank || !row->c.local ? 0 : expert - low;
    row->head.token = (int32_t)row->t;
    row->head.id = row->c.local ? (int32_t)expert : -1;
    if (p->by_rank) {
        row->c.placed = TERN_FFS(warp_ballot(row->c.local)) - 1 == lane();
        row->c.position = row->s * p->max_tokens + ll_rows_before(w, row->s, row->s, row->t);
        return 0;
    }
    at = ll_find_places(w, expert, before, all > before ? all : before, group);
    /* Ranks that differ in shape misread each other's ids, and only one warp of a rank finds it out. Whatever
     * ids say, nothing is written past the slab, or the pushes. */
    uint32_t rows = (uint32_t)p->f.num_ranks * p->max_tokens;
    uint32_t here = p->topk < p->experts_a_rank ? p->topk : p->experts_a_rank;
    int fits = at.position < rows && at.below + at.position < rows * here;
    row->c.placed = row->c.local && !(raw & LL_AGAIN) && fits;
    row->c.position = at.position;
    return at.below + at.position;
}

/* Scales w0 + lane(), + 32, ... of a row. 1: this lane's are here. */
TERN_DEVICE int ll_look_scales(const struct ll_dispatch_args *p, const char *row, uint64_t epoch, uint32_t w0,
                               uint32_t *scale)
{
    int here = 1;
    TERN_UNROLL
    for (uint32_t a = 0; a < LL_AT_ONCE; a++) {
        uint32_t i = w0 + (uint32_t)lane() + a * 32, at = p->header_bytes + p->payload_bytes + 4 * i;
        uint64_t word;
        here &= ll_look_word(row, at, i < p->scale_bytes / 4, epoch, &word);
        scale[a] = ll_half(word, at);
    }
    return here;
}

/* All lanes: the row's scales. 0: abandon. */
TERN_DEVICE int ll_take_scales(const struct ll_ids *w, struct ll_words *wait, struct ll_few_row *row)
{
    const struct ll_dispatch_args *p = w->r.p;
    uint32_t scale[LL_AT_ONCE], hits;
    int here = ll_look_scales(p, row->at, w->r.epoch, 0, scale), end = 1; /* while the place is found */
    (void)ll_find_row(w, row, 0);
    hits = warp_ballot(row->c.placed);
    for (uint32_t w0 = 0; end > 0 && w0 < p->scale_bytes / 4; w0 += LL_AT_ONCE * 32) {
        here = w0 == 0 ? here : ll_look_scales(p, row->at, w->r.epoch, w0, scale);
        end = ll_words_here(wait, here);
        while (end == 0) {
            end = ll_words_here(wait, ll_look_scales(p, row->at, w->r.epoch, w0, scale));
        }
        if (end > 0) {
            ll_store_scales(&w->r, scale, w0 + (uint32_t)lane(), hits, row->c);
        }
    }
    return end > 0;
}

/* All lanes: what combine and the caller want to know of the row. 0: abandon. */
TERN_DEVICE int ll_take_notes(const struct ll_ids *w, struct ll_words *wait, struct ll_few_row *row)
{
    const struct ll_dispatch_args *p = w->r.p;
    uint32_t k = (uint32_t)lane(), at = ll_weights_at(p) + 4 * k;
    uint64_t word;
    int here = ll_look_word(row->at, at, k < p->topk, w->r.epoch, &word);
    uint32_t number = ll_rows_before(w, 0, row->s, row->t);
    uint32_t index = ll_find_row(w, row, (uint32_t)p->f.num_ranks * w->tokens * w->width);
    int end = ll_words_here(wait, here);
    while (end == 0) {
        end = ll_words_here(wait, ll_look_word(row->at, at, k < p->topk, w->r.epoch, &word));
    }
    row->head.weight = ll_half(word, at);
    if (end > 0) {
        ll_note_row(&w->r, row->head, number, p->by_rank ? number : index, row->s, row->c);
    }
    return end > 0;
}

/* Looks at a piece of a row's payload. 1: this lane's part is here. */
TERN_DEVICE int ll_look_payload(const struct ll_dispatch_args *p, const char *row, uint64_t epoch,
                                uint32_t begin, uint64_t pairs[][2])
{
    int here = 1;
    TERN_UNROLL
    for (int q = 0; q < LL_FEW_VECS; q++) {
        uint32_t at = p->header_bytes + begin + (uint32_t)(q * 512 + lane() * 16);
        here &= ll_look_pair(row, at, p->header_bytes + p->payload_bytes, epoch, pairs[q]);
    }
    return here;
}

/* All lanes: LL_FEW_PIECE bytes of the row from `begin` on. 0: abandon. */
TERN_DEVICE int ll_take_payload(const struct ll_ids *w, struct ll_words *wait, struct ll_few_row *row,
                                uint32_t begin)
{
    const struct ll_dispatch_args *p = w->r.p;
    uint64_t pairs[LL_FEW_VECS][2];
    struct vec16 v[LL_FEW_VECS];
    int here =
        ll_look_payload(p, row->at, w->r.epoch, begin, pairs); /* on its way while the place is found */
    (void)ll_find_row(w, row, 0);
    int end = ll_words_here(wait, here);
    while (end == 0) {
        end = ll_words_here(wait, ll_look_payload(p, row->at, w->r.epoch, begin, pairs));
    }
    TERN_UNROLL
    for (int q = 0; q < LL_FEW_VECS; q++) {
        v[q] = ll_of_pair(pairs[q]);
    }
    uint32_t slab_row = ll_slab_row(p, row->c);
    for (uint32_t left = end > 0 ? warp_ballot(row->c.placed) : 0; left; left &= left - 1) {
        char *to = p->out + (uint64_t)shfl_u32(slab_row, TERN_FFS(left) - 1) * p->payload_bytes + begin;
        TERN_UNROLL
        for (int q = 0; q < LL_FEW_VECS; q++) {
            uint32_t i = (uint32_t)(q * 512 + lane() * 16);
            if (i < p->payload_bytes - begin) {
                st_vec16(to + i, v[q]);
            }
        }
    }
    return end > 0;
}

/* One warp: a piece of what token t of rank s sends here, if it does. The first ones are of the payload; then
 * come scales, if there are any, and notes. 0: abandon. */
TERN_DEVICE int ll_take_few(const struct ll_ids *w, uint32_t piece, uint32_t s, uint32_t t)
{
    const struct ll_dispatch_args *p = w->r.p;
    if (!ll_comes_here(w, s, t)) {
        return 1;
    }
    struct ll_words wait = ll_words_of(&p->f, &p->lane, w->r.epoch, w->r.begin, (int)s);
    struct ll_few_row row = {0};
    int ok;
    row.s = s;
    row.t = t;
    row.at = ll_words_at(&p->lane, p->f.own, w->r.epoch, s * p->lane.word_rows + t, p->lane.row_stride);
    if (piece * LL_FEW_PIECE < p->payload_bytes) {
        ok = ll_take_payload(w, &wait, &row, piece * LL_FEW_PIECE);
    } else if (p->scale_bytes > 0 && (piece - 1) * LL_FEW_PIECE < p->payload_bytes) {
        ok = ll_take_scales(w, &wait, &row);
    } else {
        ok = ll_take_notes(w, &wait, &row);
    }
    if (lane() == 0) {
        ll_words_waited(&wait, ok);
    }
    return ok;
}

/* All threads. Where there are enough blocks, the first one counts for the caller, and the last one, which
 * has told and is still at its fence, only awaits what others say of themselves. The others take rows. */
TERN_DEVICE void ll_receive_words(const struct ll_ids *w)
{
    const struct ll_dispatch_args *p = w->r.p;
    uint32_t pieces = (p->payload_bytes + LL_FEW_PIECE - 1) / LL_FEW_PIECE + (p->scale_bytes > 0) + 1;
    uint32_t units = (uint32_t)p->f.num_ranks * w->tokens * pieces;
    int first = nblk() > 1, blocks = nblk() > 2 ? nblk() - 2 : 1;
    int counts = bid() == 0, speaks = bid() == nblk() - 1, takes = bid() >= first && bid() < first + blocks;
    int ok = 1;
    if (counts) {
        ll_clear_counts(w);
    }
    if (counts || takes) {
        ok = ll_await_ids(w);
    }
    if (ok && counts) {
        ll_count_all(w);
    }
    for (uint32_t u = (uint32_t)(warp() * blocks + bid() - first); ok && takes && u < units;
         u += (uint32_t)(blocks * nwarps())) {
        uint32_t row = u / pieces;
        ok = ll_take_few(w, u % pieces, row / w->tokens, row % w->tokens);
    }
    if (ok && speaks && warp() == nwarps() - 1) {
        (void)ll_await_entries(&p->f, &p->lane, w->r.epoch, w->r.begin);
    }
}

/* ---- Both ---- */

TERN_DEVICE void ll_few_body(const struct ll_dispatch_args *p)
{
    int ok;
    uint64_t begin = stamp_now();
    struct ll_glance glance = ll_look(&p->f, &p->lane);
    uint64_t epoch = glance.epoch;
    struct ll_sender s = ll_sender_of(p, epoch);
    struct ll_ids w = ll_ids_of(p, epoch);
    struct ll_bound b = {NULL, 0};
    if (p->phases & LL_SENDS) {
        b = ll_prepare_few(&w, &s);
    }
    ll_enter(&p->f, &glance, &ok);
    if (ok && (p->phases & LL_SENDS) && s.announces) {
        ll_announce_ids(&w, &s);
    }
    if (ok && (p->phases & LL_SENDS)) {
        ll_send_words(&s, b);
    }
    if (p->phases & LL_RECEIVES) {
        ll_raise(&p->f, &p->lane, epoch);
    }
    if (ok && (p->phases & LL_RECEIVES)) {
        w.r.begin = ll_begin(&p->lane);
        ll_receive_words(&w);
        ll_leave(&p->f, &p->lane, epoch);
    }
    ll_stamp(&p->f, &p->lane, epoch, begin);
}

#endif
