/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency combine, "push". With weights at combine, every row of the slab goes to its token's rank as
 * it is; with weights given at dispatch, or that went ahead (ll_weights_ahead.c), a rank first adds what
 * its experts made of one received row, each with its weight, and one row goes home. By rank the caller
 * has made that one row, which goes as it is. With a compression (`codec`, ll_codec.h) rows are packed
 * before they go, and unpacked where they are added. How rows leave is in ll_pipe.h and ll_make.h, and of
 * few tokens in ll_combine_blanks.h. At home warps take pieces of tokens, wait for the words of the rows
 * that a token awaits (ll_awaited.h), add them in the order of choices and round once.
 *
 * After ll_enter no thread waits at a barrier of its block, unless times are to be noted. Entry words say
 * that a rank's earlier kernels are over, which the rows' own words do not; one warp of the rank sends and
 * awaits them, beside all rows. */
#ifndef TERN_LL_COMBINE_BODY_H
#define TERN_LL_COMBINE_BODY_H

#include "kernels/ll_awaited.h"
#include "kernels/ll_combine_blanks.h"
#include "kernels/ll_gather.h"
#include "kernels/ll_make.h"
#include "kernels/ll_pipe.h"

/* What a warp knows before it has entered. */
struct ll_outset {
    uint32_t dispatched, count; /* what is to be sent: rows */
    struct ll_push push;        /* the warp's first, or */
    struct ll_origin origin;    /* what its first unit is of */
    char *heap;                 /* the speaker: of rank lane(); and how many rows go there, if it is far */
    uint32_t away;
};

/* Rows go home as they are; the compiler knows it of most that do not. */
TERN_DEVICE int ll_as_they_are(const struct ll_combine_args *p, const int codec)
{
    return codec == LL_PLAIN && !p->adds_here;
}

/* Rows that go to rank d, if it is far; railed, none do. */
TERN_DEVICE uint32_t ll_rows_for(const struct ll_combine_args *p, int d)
{
    return LL_WITH_FAR && !LL_WITH_RAIL ? ll_far_of(&p->f)->homes[d].rows : 0;
}

/* Each warp of a sending block, before ll_enter: all loads are on their way with that of the epoch. */
TERN_DEVICE struct ll_outset ll_set_out(const struct ll_combine_args *p, const int codec, const int bulk)
{
    struct ll_outset s = {0, 0, {0, -1, 0, 0}, {-1, 0, -1, 0.0f}, NULL, 0};
    if (ll_is_speaker()) {
        /* Makes the entry words releases; pairs with the acquires in ll_await. They only say that this rank's
         * earlier kernels are over, so the fence comes while nothing is on its way that it would wait for. */
        OP_FENCE();
        s.heap = p->f.ep_bases[lane() < p->f.num_ranks ? lane() : 0];
        s.away = lane() < p->f.num_ranks ? ll_rows_for(p, lane()) : 0;
    }
    s.dispatched = p->lane.state->dispatched;
    s.count = (uint32_t)p->lane.totals[p->adds_here ? LL_TOTAL_ROWS : LL_TOTAL_PUSHES];
    if (LL_WITH_BLANKS) {
        s.origin = ll_prepare_blanks(p);
    } else if (ll_as_they_are(p, codec)) {
        s.push = ll_prepare_pipe(p, bulk);
    } else {
        s.origin = ll_prepare_make(p);
    }
    return s;
}

/* The speaker: this rank is in. */
TERN_DEVICE void ll_announce_combine(const struct ll_combine_args *p, uint64_t epoch,
                                     const struct ll_outset *s)
{
    for (int d = lane(); d < p->f.num_ranks; d += 32) {
        char *heap = d == lane() ? s->heap : p->f.ep_bases[d];
        if (ll_gone(&p->f, &p->lane, d)) {
            continue;
        }
        if (ll_is_far(&p->f, d)) {
            uint32_t rows = d == lane() ? s->away : ll_rows_for(p, d);
            ll_set_entry(&p->f, &p->lane, epoch, d, rows, (uint32_t)p->f.message.signature);
        } else {
            OP_STORE_READY(ll_entry(&p->lane, heap, epoch, p->f.rank),
                           op_tagged(epoch, (uint32_t)p->f.message.signature));
        }
    }
    sync_warp();
}

TERN_DEVICE void ll_combine_send(const struct ll_combine_args *p, uint64_t epoch, const struct ll_outset *s,
                                 const int codec, const int bulk)
{
    if (ll_is_speaker()) {
        ll_announce_combine(p, epoch, s);
    }
    if (LL_WITH_BLANKS) {
        ll_blanks_send(p, epoch, s->count, s->origin);
    } else if (ll_as_they_are(p, codec)) {
        ll_pipe_send(p, epoch, s->count, s->push, bulk);
    } else {
        ll_make_send(p, epoch, s->count, s->origin, codec, bulk);
    }
}

/* One warp: the LL_SUM of token t from `begin` on, of the rows that are present. */
TERN_DEVICE void ll_add_token(const struct ll_combine_args *p, uint64_t epoch, uint32_t t, uint32_t begin,
                              const struct ll_awaited *a, const int codec)
{
    const char *rows = ll_buffer(&p->lane, p->f.own, epoch) +
                       (LL_WITH_FAR ? 0 : (uint64_t)t * p->topk * p->lane.home_stride);
    char *to = p->out + (int64_t)t * p->out_stride;
    float sum[LL_SUM_VECS][8];
    ll_clear_sums(sum);
    for (uint32_t left = warp_ballot(a->present); left;) {
        struct ll_loaded loaded[LL_HITS];
        float weight[LL_HITS];
        uint32_t adds = left;
        TERN_UNROLL
        for (int h = 0; h < LL_HITS; h++) {
            if (left) {
                int k = TERN_FFS(left) - 1;
                weight[h] = shfl_f32(a->weight, k);
                ll_load_home(p, &loaded[h],
                             rows + (LL_WITH_FAR
                                         ? ll_awaited_at(p, a, k)
                                         : (uint64_t)shfl_u32((uint32_t)a->source, k) * p->lane.home_stride),
                             begin, codec);
                left &= left - 1;
            }
        }
        TERN_UNROLL
        for (int h = 0; h < LL_HITS; h++) {
            if (adds) {
                ll_add_home(p, sum, &loaded[h], begin, weight[h], codec);
                adds &= adds - 1;
            }
        }
    }
    TERN_UNROLL
    for (int q = 0; q < LL_SUM_VECS; q++) {
        uint32_t at = begin + ll_vec_at(q, codec);
        if (at < p->row_bytes) {
            st_vec16(to + at, sum_round(sum[q]));
        }
    }
}

/* When a warp's turn comes to receive: those that have sent least first, but for the one that has
 * ll_raise to do. */
TERN_DEVICE int ll_turn(void) { return warp() == nwarps() - 1 ? warp() : nwarps() - 2 - warp(); }

TERN_DEVICE void ll_combine_receive(const struct ll_combine_args *p, uint64_t epoch, const int codec)
{
    uint32_t pieces = (p->row_bytes + LL_SUM - 1) / LL_SUM;
    uint32_t units = p->num_tokens * pieces;
    uint64_t begin = ll_begin(&p->lane);
    int ok = !LL_WITH_RAIL || ll_gather(p, epoch, begin, ll_turn(), codec);
    ok = ok && (!ll_is_speaker() || ll_await_entries(&p->f, &p->lane, epoch, begin));
    for (uint32_t u = (uint32_t)(ll_turn() * nblk() + bid()); ok && u < units;
         u += (uint32_t)(nblk() * nwarps())) {
        struct ll_awaited a;
        if (LL_WITH_BLANKS) {
            ll_expect_rows(p, u / pieces, &a);
            ok = ll_add_blanks(p, epoch, begin, u / pieces, u % pieces * LL_SUM, &a);
            continue;
        }
        ok = ll_await_rows(p, epoch, begin, u / pieces, &a);
        for (int judged = 0, again = ok; again;) {
            int doubts = ll_has_masks(&p->lane) && lane() == 0 && ll_doubts(&p->lane, epoch);
            ll_add_token(p, epoch, u / pieces, u % pieces * LL_SUM, &a, codec);
            again = ll_has_masks(&p->lane) && warp_any(doubts) && !judged;
            if (again) {
                ll_judge_token(p, epoch, u / pieces, LL_HERE, &a);
                judged = 1;
            }
        }
    }
    ll_leave(&p->f, &p->lane, epoch);
}

/* All threads: whether what the lane's latest dispatch left here is what this combine was issued for. The
 * host cannot know, since a graph may have run between; and with another shape rows would go astray. */
TERN_DEVICE int ll_combine_fits(const struct ll_combine_args *p, uint64_t epoch, uint32_t dispatched)
{
    if (dispatched == p->dispatched) {
        return 1;
    }
    if (tid() == 0) {
        struct op_note note = {OP_STATUS_MISMATCH, OP_AWAIT_MATCH, p->f.rank, p->f.rank, epoch,
                               p->dispatched,      dispatched,     0,         0,         0};
        op_fault(&p->f, &note);
    }
    return 0;
}

TERN_DEVICE void ll_combine_body(const struct ll_combine_args *p, const int codec, const int bulk)
{
    int ok;
    uint64_t begin = stamp_now();
    struct ll_glance glance = ll_look(&p->f, &p->lane);
    uint64_t epoch = glance.epoch;
    struct ll_outset s = {0, 0, {0, -1, 0, 0}, {-1, 0, -1, 0.0f}, NULL, 0};
    if (p->phases & LL_SENDS) {
        s = ll_set_out(p, codec, bulk);
    }
    ll_enter(&p->f, &glance, &ok);
    if (ok && (p->phases & LL_SENDS)) {
        ok = ll_combine_fits(p, epoch, s.dispatched);
    }
    if (ok && (p->phases & LL_SENDS)) {
        ll_combine_send(p, epoch, &s, codec, bulk);
    }
    if (p->phases & LL_RECEIVES) {
        ll_raise(&p->f, &p->lane, epoch);
    }
    if (ok && (p->phases & LL_RECEIVES)) {
        ll_combine_receive(p, epoch, codec);
    }
    ll_stamp(&p->f, &p->lane, epoch, begin);
}

#endif
