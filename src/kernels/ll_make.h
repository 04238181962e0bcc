/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency combine, rows that are made before they go home: sums of what the experts here made of one
 * received row, each with its weight, in the order of choices, in FP32 and rounded once; and rows that travel
 * packed (ll_codec.h). A row has a stage in shared memory. The block's warps take units of its rows, a row's
 * one after the other, each whenever it is free; whoever completes a row sends it. So a row is made by as
 * many warps as it has units, and its way home, with the fence before its word, holds up one of them.
 *
 * Shared memory: | stages | next unit | of each stage: units made, rows sent from it |. The two counters only
 * grow: row r of the block is in stage r % stages, and is whole when so many units were made there as r /
 * stages + 1 rows have; the stage is its when r / stages rows have been sent from there. */
#ifndef TERN_LL_MAKE_H
#define TERN_LL_MAKE_H

#include "kernels/ll_codec.h"
#include "kernels/ll_ship.h"
#include "kernels/ll_sum.h"
#include "kernels/sum.h"

/* Of a row that is packed as it is, a unit is two of a sum's: nothing else hides the latency of its loads. */
enum { LL_UNIT_SUMS = 2 };

/* What a lane knows of a row that is to be made. */
struct ll_origin {
    int32_t rank, index; /* where it goes; of a sum the index is of the token's first choice */
    int32_t row;  /* of the caller's tensor; of a sum, for the choice that the lane looks after, or -1 */
    float weight; /* of that choice */
};

struct ll_maker {
    const struct ll_combine_args *p;
    uint64_t epoch;
    uint32_t *words;
    uint32_t units; /* of a row */
};

TERN_DEVICE struct ll_maker ll_maker_of(const struct ll_combine_args *p, uint64_t epoch)
{
    uint32_t unit = p->adds_here ? LL_SUM : LL_UNIT_SUMS * LL_SUM;
    struct ll_maker m = {p, epoch, (uint32_t *)(shared_memory() + p->words_offset),
                         (p->row_bytes + unit - 1) / unit};
    return m;
}

/* The block's row so and so, among all. */
TERN_DEVICE uint32_t ll_number_of(uint32_t row) { return (uint32_t)bid() + row * (uint32_t)nblk(); }

TERN_DEVICE uint32_t *ll_stage_word(const struct ll_maker *m, uint32_t row, int which)
{
    return m->words + LL_MAKE_STAGES + row % m->p->stages * LL_MAKE_WORDS + which;
}

TERN_DEVICE struct ll_origin ll_origin_of(const struct ll_combine_args *p, uint32_t number)
{
    struct ll_origin o = {-1, 0, -1, 0.0f};
    if (!p->adds_here) {
        struct ll_push push = p->lane.pushes[number];
        o.rank = push.rank;
        o.index = push.place;
        o.row = push.row;
        return o;
    }
    const int32_t *plan = p->lane.plan + (uint64_t)number * (LL_PLAN_ROWS + 2 * p->topk);
    o.rank = plan[LL_PLAN_RANK];
    o.index = LL_WITH_RAIL ? plan[LL_PLAN_TOKEN] : plan[LL_PLAN_TOKEN] * (int32_t)p->topk;
    if ((uint32_t)lane() < p->topk) {
        o.row = plan[LL_PLAN_ROWS + lane()];
        o.weight = bits_f32((uint32_t)plan[LL_PLAN_ROWS + p->topk + (uint32_t)lane()]);
    }
    return o;
}

/* One warp: pieces of 16 bytes, at ll_vec_at in the LL_SUM from `begin` on, of the sum of one received row.
 * Loads of some rows are on their way before the first is added. */
TERN_DEVICE void ll_sum_here(const struct ll_combine_args *p, struct ll_origin o, uint32_t begin,
                             struct vec16 *out, const int codec)
{
    float sum[LL_SUM_VECS][8];
    ll_clear_sums(sum);
    for (uint32_t left = warp_ballot(o.row >= 0); left;) {
        struct vec16 v[LL_HITS][LL_SUM_VECS];
        float weight[LL_HITS];
        uint32_t adds = left;
        TERN_UNROLL
        for (int h = 0; h < (codec == LL_PLAIN ? LL_HITS : LL_PACKED_HITS); h++) {
            if (left) {
                int k = TERN_FFS(left) - 1;
                uint32_t row = shfl_u32((uint32_t)o.row, k);
                weight[h] = shfl_f32(o.weight, k);
                ll_load_vecs(v[h], p->in + (uint64_t)row * p->row_bytes + begin, p->row_bytes - begin, codec);
                left &= left - 1;
            }
        }
        TERN_UNROLL
        for (int h = 0; h < (codec == LL_PLAIN ? LL_HITS : LL_PACKED_HITS); h++) {
            if (adds) {
                ll_add_vecs(sum, v[h], weight[h]);
                adds &= adds - 1;
            }
        }
    }
    TERN_UNROLL
    for (int q = 0; q < LL_SUM_VECS; q++) {
        out[q] = sum_round(sum[q]);
    }
}

/* One warp: until its stage is this row's. */
TERN_DEVICE void ll_await_stage(const struct ll_maker *m, uint32_t row)
{
    uint32_t sent = row / m->p->stages;
    if (sent > 0 && lane() == 0) {
        /* Pairs with ll_send_made: the row before has been read. */
        while (atom_add_acqrel_cta_u32(ll_stage_word(m, row, LL_MAKE_FREED), 0) != sent) {
            spin();
        }
    }
    sync_warp();
}

/* One warp: a unit of a row into its stage. */
TERN_DEVICE void ll_make_unit(const struct ll_maker *m, struct ll_origin o, uint32_t row, uint32_t unit,
                              const int codec)
{
    const struct ll_combine_args *p = m->p;
    char *stage = shared_memory() + row % p->stages * p->stage_bytes;
    struct vec16 v[LL_UNIT_SUMS][LL_SUM_VECS];
    if (codec == LL_PLAIN || p->adds_here) {
        ll_sum_here(p, o, unit * LL_SUM, v[0], codec);
        ll_await_stage(m, row);
        ll_put_vecs(p, stage, unit * LL_SUM, v[0], codec);
        return;
    }
    const char *from = p->in + (uint64_t)(uint32_t)o.row * p->row_bytes;
    uint32_t begin = unit * LL_UNIT_SUMS * LL_SUM;
    TERN_UNROLL
    for (uint32_t i = 0; i < LL_UNIT_SUMS; i++) {
        uint32_t at = begin + i * LL_SUM;
        ll_load_vecs(v[i], from + at, at < p->row_bytes ? p->row_bytes - at : 0, codec);
    }
    ll_await_stage(m, row);
    TERN_UNROLL
    for (uint32_t i = 0; i < LL_UNIT_SUMS; i++) {
        ll_put_vecs(p, stage, begin + i * LL_SUM, v[i], codec);
    }
}

/* The warp that completed a row for a far rank: frees its stage, and the row goes home with its chunk. */
TERN_DEVICE void ll_ship_made(const struct ll_maker *m, int32_t rank, uint32_t row)
{
    const struct ll_combine_args *p = m->p;
    const char *stage = shared_memory() + row % p->stages * p->stage_bytes;
    char *slot = ll_take_slot(p, m->epoch, ll_number_of(row));
    sync_warp(); /* after ll_count_made, for all lanes */
    for (uint32_t i = (uint32_t)lane() * 16; i < p->sent_bytes; i += 512) {
        st_vec16(slot + i, ld_vec16(stage + i));
    }
    sync_warp();
    if (lane() == 0) {
        atom_add_acqrel_cta_u32(ll_stage_word(m, row, LL_MAKE_FREED), 1); /* pairs with ll_await_stage */
    }
    ll_ship(p, m->epoch, rank, ll_number_of(row), slot);
}

/* The warp that completed a row: sends it home, unless it goes nowhere, and frees its stage. */
TERN_DEVICE void ll_send_made(const struct ll_maker *m, struct ll_parcel to, uint32_t row, const int bulk)
{
    const struct ll_combine_args *p = m->p;
    const char *stage = shared_memory() + row % p->stages * p->stage_bytes;
    char *at = ll_home_at(p, m->epoch, &to);
    if (to.rank >= 0 && !bulk) {
        sync_warp(); /* after ll_count_made, for all lanes */
        for (uint32_t i = (uint32_t)lane() * 16; i < p->sent_bytes; i += 512) {
            st_vec16(at + i, ld_vec16(stage + i));
        }
        sync_warp(); /* with the fence in ll_tell_home: the row comes before its word */
    }
    if (lane() == 0) {
        if (to.rank >= 0 && bulk) {
            LL_COMBINE_PROXY_FENCE(); /* what others read of the buffer before comes before the copy */
            bulk_store(at, stage, p->sent_bytes);
            bulk_commit();
            bulk_wait_read(0);
        }
        atom_add_acqrel_cta_u32(ll_stage_word(m, row, LL_MAKE_FREED), 1); /* pairs with ll_await_stage */
        if (to.rank >= 0 && bulk) {
            ll_finish_home(p, m->epoch, &to);
        } else if (to.rank >= 0 && !ll_is_out(p)) {
            ll_tell_home(p, m->epoch, &to);
        }
    }
    sync_warp();
}

/* One warp, with a unit of a row in the stage: counts it. 1: it was the row's last, and lane 0 has what other
 * warps made of it; the others behind a warp barrier. */
TERN_DEVICE int ll_count_made(const struct ll_maker *m, uint32_t row, const int bulk)
{
    uint32_t whole = (row / m->p->stages + 1) * m->units;
    int last = 0;
    if (bulk) {
        LL_COMBINE_STAGE_FENCE(); /* the stage comes before the copy */
    }
    sync_warp();
    if (lane() == 0) {
        /* Pairs with itself in other warps: their parts of the stage come before the copy too. */
        last = atom_add_acqrel_cta_u32(ll_stage_word(m, row, LL_MAKE_MADE), 1) + 1 == whole;
    }
    return (int)shfl_u32((uint32_t)last, 0);
}

/* Each warp. `o`: of its first unit, if there is one. */
TERN_DEVICE void ll_make_send(const struct ll_combine_args *p, uint64_t epoch, uint32_t count,
                              struct ll_origin o, const int codec, const int bulk)
{
    struct ll_maker m = ll_maker_of(p, epoch);
    uint32_t rows = (uint32_t)bid() < count ? (count - (uint32_t)bid() - 1) / (uint32_t)nblk() + 1 : 0;
    uint32_t units = rows * m.units; /* of a KiB at least, and in this device's memory: below 2^32 */
    uint32_t unit = (uint32_t)warp();
    while (unit < units) {
        uint32_t row = unit / m.units, next = 0;
        struct ll_parcel to = {ll_goes_home(p, o.rank) ? o.rank : -1, o.index, NULL};
        struct ll_origin later = o;
        to.heap = LL_WITH_FAR ? NULL : p->f.ep_bases[to.rank >= 0 ? to.rank : 0];
        int out = ll_is_warp_out(p);
        if (lane() == 0) {
            next = atom_add_cta_u32(&m.words[LL_MAKE_NEXT], 1);
        }
        next = shfl_u32(next, 0);
        if (next < units) { /* on its way while this unit is made */
            later = ll_origin_of(p, ll_number_of(next / m.units));
        }
        uint32_t hits = warp_ballot(o.row >= 0);
        to.index += p->adds_here && !LL_WITH_RAIL ? TERN_FFS(hits) - 1 : 0;
        if (to.rank >= 0) {
            ll_make_unit(&m, o, row, unit - row * m.units, codec);
        } else {
            ll_await_stage(&m, row); /* counts are of whole rows, also of one that never came */
        }
        if (ll_count_made(&m, row, bulk)) {
            to.rank = out ? -1 : to.rank;
            if (ll_ships(p, to.rank)) {
                ll_ship_made(&m, to.rank, row);
            } else {
                if (LL_WITH_FAR) { /* not before: registers are scarce */
                    to.heap = p->f.ep_bases[to.rank >= 0 ? to.rank : 0];
                }
                ll_send_made(&m, to, row, bulk);
            }
        }
        unit = next;
        o = later;
    }
}

/* Each warp, before ll_enter: clears the words, and reads what its first unit is of. */
TERN_DEVICE struct ll_origin ll_prepare_make(const struct ll_combine_args *p)
{
    struct ll_maker m = ll_maker_of(p, 0);
    struct ll_origin o = {-1, 0, -1, 0.0f};
    uint64_t number = ll_number_of((uint32_t)warp() / m.units);
    uint64_t received = (uint64_t)(uint32_t)p->f.num_ranks * p->lane.source_rows;
    uint32_t here = p->topk < p->experts_a_rank ? p->topk : p->experts_a_rank;
    for (uint32_t i = (uint32_t)tid(); i < LL_MAKE_STAGES + p->stages * LL_MAKE_WORDS;
         i += (uint32_t)nthr()) {
        m.words[i] = i == LL_MAKE_NEXT ? (uint32_t)nwarps() : 0;
    }
    if (number < (p->adds_here ? received : received * here)) { /* has memory */
        o = ll_origin_of(p, (uint32_t)number);
    }
    return o;
}

#endif
