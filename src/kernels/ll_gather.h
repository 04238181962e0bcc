/* SPDX-License-Identifier: Apache-2.0
 *
 * Railed low-latency combine: a domain's rows for a token of another one go home as their sum. The rank of
 * the domain that is on the home's rail has brought the token's message in the dispatch, and has noted
 * which ranks have a row of it: to it they send what they would send to a home of their domain. Its warps
 * take pieces of messages in turn, wait for those rows, add them in the order of ranks, round, pack as rows
 * are packed, and write the piece into the out-box, where messages lie one behind the other. Who writes a
 * chunk's last piece puts the chunk (ll_chunk.h).
 *
 * It comes before this rank waits for rows of its own tokens, and itself waits for rows that its domain
 * sends, which waits for nobody. */
#ifndef TERN_LL_GATHER_H
#define TERN_LL_GATHER_H

#include "kernels/ll_rail.h"
#include "kernels/ll_sum.h"
#include "kernels/sum.h"

/* Message m of domain e's rank on this rail, of which a piece is to be made. */
struct ll_gathered {
    struct ll_far_home home; /* of that rank */
    uint32_t e, m;
};

/* One warp: adds the rows that the domain's ranks from d0 on, 32 at most, have of it; 0: abandon. */
TERN_DEVICE int ll_add_parts(const struct ll_combine_args *p, uint64_t epoch, uint64_t since,
                             const struct ll_gathered *g, uint32_t d0, uint32_t begin, float sum[][8],
                             const int codec)
{
    const struct ll_far *far = ll_far_of(&p->f);
    uint32_t d = d0 + (uint32_t)lane(), data;
    uint64_t place = ll_part_place(&p->f, &p->lane, g->e, g->m, d0);
    int has = d < (uint32_t)far->num_near && ll_tail_of(&p->f, &p->lane, g->e, g->m)[d] >= 0;
    int end = LL_HERE;
    if (has) {
        end = ll_await(&p->f, &p->lane, epoch, since, OP_AWAIT_DONE, far->first + (int)d,
                       ll_arrival(&p->lane, p->f.own, epoch, place + (uint32_t)lane()), &data);
    }
    if (TERN_RARE(!warp_all(end == LL_HERE))) {
        return 0;
    }
    const char *rows = ll_buffer(&p->lane, p->f.own, epoch) + place * p->lane.home_stride;
    sync_warp(); /* what each lane has acquired is there for all lanes */
    for (uint32_t left = warp_ballot(has); left;) {
        struct ll_loaded loaded[LL_PACKED_HITS];
        uint32_t adds = left;
        TERN_UNROLL
        for (int h = 0; h < LL_PACKED_HITS; h++) {
            if (left) {
                ll_load_home(p, &loaded[h], rows + (uint64_t)(TERN_FFS(left) - 1) * p->lane.home_stride,
                             begin, codec);
                left &= left - 1;
            }
        }
        TERN_UNROLL
        for (int h = 0; h < LL_PACKED_HITS; h++) {
            if (adds) {
                ll_add_home(p, sum, &loaded[h], begin, 1.0f, codec);
                adds &= adds - 1;
            }
        }
    }
    return 1;
}

/* One warp: the piece that begins so many bytes into the row is in the out-box; home with its chunk, if it
 * was the last one. */
TERN_DEVICE void ll_send_part(const struct ll_combine_args *p, uint64_t epoch, const struct ll_gathered *g,
                              uint32_t pieces, const char *out)
{
    const struct ll_far *far = ll_far_of(&p->f);
    uint32_t first = ll_chunk_of(g->m), rows = ll_chunk_rows(g->home.rows, first);
    uint64_t *count = &far->chunks[g->e * far->rank_chunks + g->m / LL_CHUNK];
    uint64_t place = far->near_places + g->home.there;
    ll_open_chunk(count, epoch);
    if (ll_count_row(count, rows * pieces)) {
        /* By this rank's own address of the same place. */
        char *to = ll_buffer(&p->lane, p->f.own, epoch) + place * p->lane.home_stride;
        ll_put_rows(&p->f, &p->lane, epoch, ll_on_rail(&p->f, (int)g->e, p->f.rank), g->m / LL_CHUNK + g->e,
                    0, to + (uint64_t)first * p->sent_bytes, out - (uint64_t)(g->m - first) * p->sent_bytes,
                    rows * p->sent_bytes, place + first);
    }
}

/* One warp: the LL_SUM from `begin` on of the sum for a message; 0: abandon. */
TERN_DEVICE int ll_make_part(const struct ll_combine_args *p, uint64_t epoch, uint64_t since,
                             const struct ll_gathered *g, uint32_t begin, uint32_t pieces, const int codec)
{
    uint32_t near = (uint32_t)ll_far_of(&p->f)->num_near;
    char *out = ll_rows_out(&p->f, epoch) + (uint64_t)(g->home.begin + g->m) * p->sent_bytes;
    struct vec16 v[LL_SUM_VECS];
    float sum[LL_SUM_VECS][8];
    ll_clear_sums(sum);
    for (uint32_t d0 = 0; d0 < near; d0 += 32) {
        if (!ll_add_parts(p, epoch, since, g, d0, begin, sum, codec)) {
            return 0;
        }
    }
    TERN_UNROLL
    for (int q = 0; q < LL_SUM_VECS; q++) {
        struct vec16 zero = {{0, 0, 0, 0}};
        v[q] = begin + ll_vec_at(q, codec) < p->row_bytes ? sum_round(sum[q]) : zero; /* a block's rest */
    }
    ll_put_vecs(p, out, begin, v, codec);
    ll_send_part(p, epoch, g, pieces, out);
    return 1;
}

/* Each warp of a receiving block, the turn-th to receive: its part of all; 0: abandon. */
TERN_DEVICE int ll_gather(const struct ll_combine_args *p, uint64_t epoch, uint64_t since, int turn,
                          const int codec)
{
    const struct ll_far *far = ll_far_of(&p->f);
    uint32_t pieces = (p->row_bytes + LL_SUM - 1) / LL_SUM;
    uint32_t away = (uint32_t)p->lane.totals[LL_TOTAL_AWAY], domains = far->rail.num_domains;
    struct ll_gathered g = {far->homes[far->rail.domain], far->rail.domain, 0};
    uint32_t first = g.home.begin; /* of the next domain: none is from this one */
    int ok = 1;
    for (uint32_t u = (uint32_t)(turn * nblk() + bid()); ok && u < away * pieces;
         u += (uint32_t)(nblk() * nwarps())) {
        uint32_t number = u / pieces + first;
        number = number < away ? number : number - away;
        while (number - g.home.begin >= g.home.rows) { /* also of one before it */
            g.e = g.e + 1 < domains ? g.e + 1 : 0;
            g.home = far->homes[g.e];
        }
        g.m = number - g.home.begin;
        ok = ll_make_part(p, epoch, since, &g, u % pieces * LL_SUM, pieces, codec);
    }
    return ok;
}

#endif
