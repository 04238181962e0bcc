/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency combine of some tokens, whose rows come home over blanks (ll_blanks.h). Rows that go as they
 * are and rows that are made of several go alike: a warp takes LL_SUM of a row, makes it and stores it from
 * registers, and nobody waits for the rest of the row. At home a warp looks for its piece of all rows that a
 * token is the sum of. */
#ifndef TERN_LL_COMBINE_BLANKS_H
#define TERN_LL_COMBINE_BLANKS_H

#include "kernels/ll_awaited.h"
#include "kernels/ll_blanks.h"
#include "kernels/ll_in_words.h"
#include "kernels/ll_make.h"

/* ---- Sending ---- */

TERN_DEVICE uint32_t ll_units_of(const struct ll_combine_args *p)
{
    return (p->row_bytes + LL_SUM - 1) / LL_SUM;
}

/* Whether a token's places are its ranks', not its choices'. */
TERN_DEVICE int ll_is_place_a_rank(const struct ll_combine_args *p) { return p->token_places < p->topk; }

/* The place of a row of this rank's, for choice `index` of all. */
TERN_DEVICE uint32_t ll_blank_place(const struct ll_combine_args *p, uint32_t index)
{
    return ll_is_place_a_rank(p) ? index / p->topk * p->token_places + (uint32_t)p->f.rank : index;
}

/* Each warp, before ll_enter: what its first unit is of. */
TERN_DEVICE struct ll_origin ll_prepare_blanks(const struct ll_combine_args *p)
{
    struct ll_origin o = {-1, 0, -1, 0.0f};
    uint64_t row = (uint64_t)(warp() * nblk() + bid()) / ll_units_of(p);
    uint64_t received = (uint64_t)(uint32_t)p->f.num_ranks * p->lane.source_rows;
    uint32_t here = p->topk < p->experts_a_rank ? p->topk : p->experts_a_rank;
    if (row < (p->adds_here ? received : received * here)) { /* has memory */
        o = ll_origin_of(p, (uint32_t)row);
    }
    return o;
}

/* One warp: the LL_SUM from `begin` on of what goes home. */
TERN_DEVICE void ll_make_piece(const struct ll_combine_args *p, struct ll_origin o, uint32_t begin,
                               struct vec16 *v)
{
    if (p->adds_here) {
        ll_sum_here(p, o, begin, v, LL_PLAIN);
    } else {
        ll_load_vecs(v, p->in + (uint64_t)(uint32_t)o.row * p->row_bytes + begin, p->row_bytes - begin,
                     LL_PLAIN);
    }
}

/* Each warp. `o`: of its first unit, if there is one. */
TERN_DEVICE void ll_blanks_send(const struct ll_combine_args *p, uint64_t epoch, uint32_t count,
                                struct ll_origin o)
{
    uint32_t a_row = ll_units_of(p), units = count * a_row, step = (uint32_t)(nblk() * nwarps());
    for (uint32_t u = (uint32_t)(warp() * nblk() + bid()); u < units; u += step) {
        struct ll_origin it = o;
        char *heap = p->f.ep_bases[it.rank];
        uint32_t begin = u % a_row * LL_SUM;
        struct vec16 v[LL_SUM_VECS];
        if (u + step < units) { /* on its way while this unit is made */
            o = ll_origin_of(p, (u + step) / a_row);
        }
        it.index += p->adds_here ? TERN_FFS(warp_ballot(it.row >= 0)) - 1 : 0;
        ll_make_piece(p, it, begin, v);
        char *to = ll_places(&p->lane, heap, epoch) +
                   ll_blank_place(p, (uint32_t)it.index) * ll_place_stride(p->row_bytes) + begin;
        TERN_UNROLL
        for (int q = 0; q < LL_SUM_VECS; q++) {
            uint32_t at = ll_vec_at(q, LL_PLAIN);
            if (at < p->row_bytes - begin) {
                st_words_sys(to + at, ll_with_key(ll_other_nans(v[q]), LL_KEY));
            }
        }
    }
}

/* ---- At home ---- */

/* The piece of one row, as it was looked at last. */
struct ll_coming {
    struct vec16 v[LL_SUM_VECS];
    int here;
};

/* All lanes: which of the token's places choice k's row comes to. */
TERN_DEVICE uint32_t ll_home_place_of(const struct ll_combine_args *p, const struct ll_awaited *a, int k)
{
    uint32_t source = shfl_u32((uint32_t)a->source, k);
    return ll_is_place_a_rank(p) ? shfl_u32((uint32_t)a->owner, (int)source) : source;
}

/* A warp's piece of a token. */
struct ll_home_piece {
    char *first;   /* in the token's first place */
    uint32_t left; /* bytes of a row from the piece on */
    uint64_t stride;
};

/* All lanes: looks at the piece of the row that comes to this place. Past the row's end a lane has anything:
 * those sums are stored by nobody. */
TERN_DEVICE void ll_look_home(const struct ll_home_piece *home, uint32_t place, struct ll_coming *c)
{
    const char *row = home->first + place * home->stride;
    c->here = 1;
    TERN_UNROLL
    for (int q = 0; q < LL_SUM_VECS; q++) {
        uint32_t at = ll_vec_at(q, LL_PLAIN);
        if (at < home->left) {
            struct vec16 v = ld_words_sys(row + at);
            c->here &= !ll_has_blank(v);
            c->v[q] = ll_with_key(v, LL_KEY);
        }
    }
}

/* All lanes: until choice k's row is here, which was not. 0: abandon. */
TERN_DEVICE int ll_await_home(const struct ll_combine_args *p, uint64_t epoch, uint64_t began,
                              const struct ll_home_piece *home, const struct ll_awaited *a, int k,
                              struct ll_coming *c)
{
    uint32_t place = ll_home_place_of(p, a, k);
    int owner = (int)shfl_u32((uint32_t)a->owner, (int)shfl_u32((uint32_t)a->source, k)), end = 0;
    struct ll_words w = ll_words_of(&p->f, &p->lane, epoch, began, owner);
    while (end == 0) { /* the first look may be as old as the wait for the row before */
        ll_look_home(home, place, c);
        end = ll_words_here(&w, c->here);
    }
    if (lane() == 0) {
        ll_words_waited(&w, end > 0);
    }
    return end > 0;
}

/* All lanes: the piece of every row that has come for the token has been added. */
TERN_DEVICE void ll_blank_home(const struct ll_combine_args *p, const struct ll_home_piece *home,
                               const struct ll_awaited *a)
{
    for (uint32_t left = warp_ballot(a->owner >= 0); left; left &= left - 1) {
        char *row = home->first + ll_home_place_of(p, a, TERN_FFS(left) - 1) * home->stride;
        TERN_UNROLL
        for (int q = 0; q < LL_SUM_VECS; q++) {
            uint32_t at = ll_vec_at(q, LL_PLAIN);
            if (at < home->left) {
                ll_put_blank(row + at);
            }
        }
    }
}

/* One warp: the LL_SUM of token t from `begin` on. First all rows are looked at, as far as a lane has
 * registers. 0: abandon. */
TERN_DEVICE int ll_add_blanks(const struct ll_combine_args *p, uint64_t epoch, uint64_t began, uint32_t t,
                              uint32_t begin, const struct ll_awaited *a)
{
    uint64_t stride = ll_place_stride(p->row_bytes);
    struct ll_home_piece home = {ll_places(&p->lane, p->f.own, epoch) +
                                     (uint64_t)t * p->token_places * stride + begin,
                                 p->row_bytes - begin, stride};
    float sum[LL_SUM_VECS][8];
    int ok = 1;
    ll_clear_sums(sum);
    for (uint32_t left = warp_ballot(a->present); ok && left;) {
        struct ll_coming c[LL_HITS];
        uint32_t adds = left;
        TERN_UNROLL
        for (int h = 0; h < LL_HITS; h++) {
            if (left) {
                ll_look_home(&home, ll_home_place_of(p, a, TERN_FFS(left) - 1), &c[h]);
                left &= left - 1;
            }
        }
        TERN_UNROLL
        for (int h = 0; h < LL_HITS; h++) {
            if (ok && adds) {
                int k = TERN_FFS(adds) - 1;
                if (TERN_RARE(!warp_all(c[h].here))) {
                    ok = ll_await_home(p, epoch, began, &home, a, k, &c[h]);
                }
                ll_add_vecs(sum, c[h].v, shfl_f32(a->weight, k));
                adds &= adds - 1;
            }
        }
    }
    if (!ok) {
        return 0;
    }
    char *to = p->out + (int64_t)t * p->out_stride;
    TERN_UNROLL
    for (int q = 0; q < LL_SUM_VECS; q++) {
        uint32_t at = begin + ll_vec_at(q, LL_PLAIN);
        if (at < p->row_bytes) {
            st_vec16(to + at, sum_round(sum[q]));
        }
    }
    ll_blank_home(p, &home, a);
    return 1;
}

#endif
