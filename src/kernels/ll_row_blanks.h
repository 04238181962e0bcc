/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch over blanks (ll_blanks.h): a row as it is made in shared memory and as it travels.
 *
 *   | notes: head, scales | head, piece of the payload | head, piece | ...
 *
 * A piece of the payload has a head of its own, so that whoever takes it needs nothing else of the row, and
 * puts back all the blanks that it took. A head's words: each choice's expert and slot in 16 bits each, the
 * key; of notes also the token and the weights. The key travels as it is, all else changed by it, and gaps
 * behind heads, and behind the row, travel as blanks, which nobody looks at. */
#ifndef TERN_LL_ROW_BLANKS_H
#define TERN_LL_ROW_BLANKS_H

#include "kernels/cast.h"
#include "kernels/ll_blanks.h"
#include "kernels/ll_send.h"

enum { LL_NO_EXPERT = 0xffff };

/* ---- Layout ---- */

TERN_DEVICE uint32_t ll_token_word(const struct ll_dispatch_args *p) { return p->topk + 1; }

TERN_DEVICE uint32_t ll_weight_word(const struct ll_dispatch_args *p) { return p->topk + 2; }

/* Where the head of a piece begins, or of notes, which are piece -1. */
TERN_DEVICE uint32_t ll_head_at(const struct ll_dispatch_args *p, int piece)
{
    return piece < 0 ? 0
                     : LL_NOTES_BYTES(p->topk) + LL_SCALES_BYTES(p->scale_bytes) +
                           (uint32_t)piece * (LL_PIECE + LL_HEAD_BYTES(p->topk));
}

/* Byte i of the payload, counted from where the row begins. */
TERN_DEVICE uint32_t ll_payload_at(const struct ll_dispatch_args *p, uint32_t i)
{
    return ll_head_at(p, (int)(i / LL_PIECE)) + LL_HEAD_BYTES(p->topk) + i % LL_PIECE;
}

TERN_DEVICE uint32_t ll_scale_words(const struct ll_dispatch_args *p)
{
    return LL_SCALES_BYTES(p->scale_bytes) / 4;
}

/* ---- Making ---- */

/* These return whether a word of theirs would be blank on its way, or might be. */

/* One thread. */
TERN_DEVICE int ll_put_words(char *at, struct vec16 v)
{
    v = ll_with_key(v, LL_KEY);
    st_vec16(at, v);
    return ll_has_blank(v);
}

/* All threads: the payload as it is. */
TERN_DEVICE int ll_put_payload(const struct ll_dispatch_args *p, char *row, const char *from)
{
    uint32_t step = (uint32_t)nthr() * 16;
    int odd = 0;
    for (uint32_t i0 = (uint32_t)tid() * 16; i0 < p->payload_bytes; i0 += LL_AT_ONCE * step) {
        struct vec16 v[LL_AT_ONCE];
        TERN_UNROLL
        for (int a = 0; a < LL_AT_ONCE; a++) {
            if (i0 + (uint32_t)a * step < p->payload_bytes) {
                v[a] = ld_stream_vec16(from + i0 + (uint32_t)a * step);
            }
        }
        TERN_UNROLL
        for (int a = 0; a < LL_AT_ONCE; a++) {
            if (i0 + (uint32_t)a * step < p->payload_bytes) {
                odd |= ll_put_words(row + ll_payload_at(p, i0 + (uint32_t)a * step), v[a]);
            }
        }
    }
    return odd;
}

/* One lane: a scale. Of exponents four are a word, which one lane does not see: any that could be of such a
 * word counts. */
TERN_DEVICE int ll_put_scale(const struct ll_dispatch_args *p, char *scales, uint32_t block, uint32_t stored)
{
    cast_store_scale(scales, block, ~stored, p->cast);
    return stored == (p->cast == CAST_FP8_UE8M0 ? 0xffu : LL_KEY);
}

/* One warp: two blocks of 128 channels, half a warp each, 8 channels a lane from c on. */
TERN_DEVICE int ll_put_blocks(const struct ll_dispatch_args *p, char *row, uint32_t c, struct vec16 v)
{
    const float amax = bf16_lo(amax_halves(amax_lanes(amax_vec16(v))));
    const struct block_scale scale = block_scale_of(amax, p->cast);
    int odd = 0;
    if (c < p->hidden) {
        uint32_t *to = (uint32_t *)(void *)(row + ll_payload_at(p, c)), words[2];
        cast_vec16(words, v, scale.factor);
        to[0] = words[0] ^ LL_KEY;
        to[1] = words[1] ^ LL_KEY;
        odd = to[0] == 0 || to[1] == 0;
    }
    if (c < p->hidden && (lane() & 15) == 0) {
        odd |= ll_put_scale(p, row + LL_NOTES_BYTES(p->topk), c / 128, scale.stored);
    }
    return odd;
}

/* All warps: payload and scales of token t. */
TERN_DEVICE int ll_put_row(const struct ll_sender *s, uint32_t t, uint32_t stage)
{
    const struct ll_dispatch_args *p = s->p;
    const char *from = p->in + (int64_t)t * p->in_stride;
    char *row = s->stages + stage * p->row_bytes;
    uint32_t step = (uint32_t)nwarps() * 256, blocks = (p->hidden + 127) / 128;
    int odd = 0;
    if (p->cast == CAST_NONE) {
        return ll_put_payload(p, row, from);
    }
    for (uint32_t i = (p->cast == CAST_FP8_UE8M0 ? blocks : 4 * blocks) + (uint32_t)tid();
         i < LL_SCALES_BYTES(p->scale_bytes); i += (uint32_t)nthr()) {
        row[LL_NOTES_BYTES(p->topk) + i] = (char)0xff; /* a zero */
    }
    for (uint32_t c0 = (uint32_t)warp() * 256; c0 < p->hidden; c0 += LL_AT_ONCE * step) {
        struct vec16 v[LL_AT_ONCE];
        TERN_UNROLL
        for (int a = 0; a < LL_AT_ONCE; a++) {
            uint32_t c = c0 + (uint32_t)a * step + (uint32_t)lane() * 8;
            struct vec16 zero = {{0, 0, 0, 0}};
            v[a] = c < p->hidden ? ld_stream_vec16(from + (uint64_t)c * 2) : zero;
        }
        TERN_UNROLL
        for (int a = 0; a < LL_AT_ONCE; a++) {
            odd |= ll_put_blocks(p, row, c0 + (uint32_t)a * step + (uint32_t)lane() * 8, v[a]);
        }
    }
    return odd;
}

/* One warp: a head's gap and the row's. */
TERN_DEVICE void ll_put_gaps(const struct ll_dispatch_args *p, uint32_t *row)
{
    uint32_t end = ll_payload_at(p, p->payload_bytes - 4) / 4 + 1;
    for (int piece = -1; piece < (int)LL_PIECES(p->payload_bytes); piece++) {
        uint32_t used = piece < 0 ? ll_weight_word(p) + p->topk : p->topk + 1;
        uint32_t all = (piece < 0 ? LL_NOTES_BYTES(p->topk) : LL_HEAD_BYTES(p->topk)) / 4;
        for (uint32_t w = used + (uint32_t)lane(); w < all; w += 32) {
            row[ll_head_at(p, piece) / 4 + w] = 0;
        }
    }
    if (end + (uint32_t)lane() < p->row_bytes / 4) { /* less than a sector */
        row[end + (uint32_t)lane()] = 0;
    }
}

/* The first warp: what heads have whatever the token's slots are. */
TERN_DEVICE int ll_put_heads(struct ll_sender *s, uint32_t t, uint32_t stage)
{
    const struct ll_dispatch_args *p = s->p;
    uint32_t *row = (uint32_t *)(void *)(s->stages + stage * p->row_bytes);
    uint32_t k = (uint32_t)lane();
    ll_study_choices(s, stage);
    ll_put_gaps(p, row);
    for (int piece = lane() - 1; piece < (int)LL_PIECES(p->payload_bytes); piece += 32) {
        row[ll_head_at(p, piece) / 4 + p->topk] = LL_KEY;
    }
    if (k == 0) {
        row[ll_token_word(p)] = t ^ LL_KEY;
    }
    if (k < p->topk) {
        row[ll_weight_word(p) + k] = s->token.weight ^ LL_KEY;
    }
    sync_warp();
    return k < p->topk && s->token.weight == LL_KEY;
}

/* The first warp, when what comes before is counted: the token's slots, in heads and for its copies. */
TERN_DEVICE void ll_put_slots(const struct ll_sender *s, uint32_t t, uint32_t stage)
{
    const struct ll_dispatch_args *p = s->p;
    uint32_t *row = (uint32_t *)(void *)(s->stages + stage * p->row_bytes);
    uint32_t slot = (uint32_t)ll_take_slots(s, t, stage), k = (uint32_t)lane();
    uint32_t choice = slot << 16 | (s->token.id >= 0 ? (uint32_t)s->token.id : (uint32_t)LL_NO_EXPERT);
    for (int piece = -1; k < p->topk && piece < (int)LL_PIECES(p->payload_bytes); piece++) {
        row[ll_head_at(p, piece) / 4 + k] = choice ^ LL_KEY; /* never 0: slots have 13 bits */
    }
    sync_warp();
}

/* All threads of the block, a barrier after the stage is whole, if a word of it is blank or may be: another
 * key. Of the changes 1, 2, ... the first that is no word of the row, as it is now, leaves no blank. */
TERN_DEVICE void ll_change_key(const struct ll_sender *s, uint32_t stage)
{
    const struct ll_dispatch_args *p = s->p;
    uint32_t *row = (uint32_t *)(void *)(s->stages + stage * p->row_bytes), words = p->row_bytes / 4;
    uint32_t change = 0;
    int has = 1;
    while (has) {
        change++;
        has = 0;
        for (uint32_t i = (uint32_t)tid(); i < words; i += (uint32_t)nthr()) {
            has |= row[i] == change;
        }
        has = sync_block_or(has);
    }
    for (uint32_t i = (uint32_t)tid(); i < words; i += (uint32_t)nthr()) {
        row[i] ^= change; /* keys too */
    }
    sync_block();
    if (warp() == 0) {
        ll_put_gaps(p, row);
    }
}

#endif
