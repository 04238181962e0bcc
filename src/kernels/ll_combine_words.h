/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency combine of few tokens, whose rows come home in words (ll_in_words.h). Rows that go as they are
 * and rows that are made of several go alike: a warp takes LL_SUM of a row, makes it and sends it, and nobody
 * waits for the rest of the row. At home a warp looks for the words of all rows that its piece of a token is
 * the sum of. */
#ifndef TERN_LL_COMBINE_WORDS_H
#define TERN_LL_COMBINE_WORDS_H

#include "kernels/ll_awaited.h"
#include "kernels/ll_make.h"
#include "kernels/ll_in_words.h"

/* ---- Sending ---- */

TERN_DEVICE uint32_t ll_units_of(const struct ll_combine_args *p)
{
    return (p->row_bytes + LL_SUM - 1) / LL_SUM;
}

/* Each warp, before ll_enter: what its first unit is of. */
TERN_DEVICE struct ll_origin ll_prepare_words(const struct ll_combine_args *p)
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
TERN_DEVICE void ll_make_words(const struct ll_combine_args *p, struct ll_origin o, uint32_t begin,
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
TERN_DEVICE void ll_words_send(const struct ll_combine_args *p, uint64_t epoch, uint32_t count,
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
        ll_make_words(p, it, begin, v);
        char *to = ll_words_at(&p->lane, heap, epoch, (uint32_t)it.index, p->lane.home_stride);
        TERN_UNROLL
        for (int q = 0; q < LL_SUM_VECS; q++) {
            ll_store_pairs(to, begin + ll_vec_at(q, LL_PLAIN), v[q], p->row_bytes, epoch);
        }
    }
}

/* ---- At home ---- */

/* A piece of a row that comes home, as it was looked at last. */
struct ll_coming {
    uint64_t pairs[LL_SUM_VECS][2];
    int here;
};

/* All lanes: where choice k's row is. */
TERN_DEVICE const char *ll_coming_at(const struct ll_combine_args *p, uint64_t epoch, uint32_t t,
                                     const struct ll_awaited *a, int k)
{
    uint32_t source = shfl_u32((uint32_t)a->source, k);
    return ll_words_at(&p->lane, p->f.own, epoch, (uint64_t)t * p->topk + source, p->lane.home_stride);
}

/* All lanes: looks at it. */
TERN_DEVICE void ll_look_home(const struct ll_combine_args *p, uint64_t epoch, const char *row,
                              uint32_t begin, struct ll_coming *c)
{
    c->here = 1;
    TERN_UNROLL
    for (int q = 0; q < LL_SUM_VECS; q++) {
        c->here &= ll_look_pair(row, begin + ll_vec_at(q, LL_PLAIN), p->row_bytes, epoch, c->pairs[q]);
    }
}

/* All lanes: until choice k's row is here, which was not. 0: abandon. */
TERN_DEVICE int ll_await_home(const struct ll_combine_args *p, uint64_t epoch, uint64_t began, uint32_t t,
                              uint32_t begin, const struct ll_awaited *a, int k, struct ll_coming *c)
{
    int owner = (int)shfl_u32((uint32_t)a->owner, (int)shfl_u32((uint32_t)a->source, k)), end = 0;
    const char *row = ll_coming_at(p, epoch, t, a, k);
    struct ll_words w = ll_words_of(&p->f, &p->lane, epoch, began, owner);
    while (end == 0) { /* the first look may be as old as the wait for the row before */
        ll_look_home(p, epoch, row, begin, c);
        end = ll_words_here(&w, c->here);
    }
    if (lane() == 0) {
        ll_words_waited(&w, end > 0);
    }
    return end > 0;
}

/* One warp: the LL_SUM of token t from `begin` on. First all rows are looked at, as far as a lane has
 * registers. 0: abandon. */
TERN_DEVICE int ll_add_words(const struct ll_combine_args *p, uint64_t epoch, uint64_t began, uint32_t t,
                             uint32_t begin, const struct ll_awaited *a)
{
    char *to = p->out + (int64_t)t * p->out_stride;
    float sum[LL_SUM_VECS][8];
    int ok = 1;
    ll_clear_sums(sum);
    for (uint32_t left = warp_ballot(a->present); ok && left;) {
        struct ll_coming c[LL_HITS];
        uint32_t adds = left;
        TERN_UNROLL
        for (int h = 0; h < LL_HITS; h++) {
            if (left) {
                ll_look_home(p, epoch, ll_coming_at(p, epoch, t, a, TERN_FFS(left) - 1), begin, &c[h]);
                left &= left - 1;
            }
        }
        TERN_UNROLL
        for (int h = 0; h < LL_HITS; h++) {
            if (ok && adds) {
                int k = TERN_FFS(adds) - 1;
                struct vec16 v[LL_SUM_VECS];
                if (TERN_RARE(!warp_all(c[h].here))) {
                    ok = ll_await_home(p, epoch, began, t, begin, a, k, &c[h]);
                }
                TERN_UNROLL
                for (int q = 0; q < LL_SUM_VECS; q++) {
                    v[q] = ll_of_pair(c[h].pairs[q]);
                }
                ll_add_vecs(sum, v, shfl_f32(a->weight, k));
                adds &= adds - 1;
            }
        }
    }
    TERN_UNROLL
    for (int q = 0; q < LL_SUM_VECS; q++) {
        uint32_t at = begin + ll_vec_at(q, LL_PLAIN);
        if (ok && at < p->row_bytes) {
            st_vec16(to + at, sum_round(sum[q]));
        }
    }
    return ok;
}

#endif
