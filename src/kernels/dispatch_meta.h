/* SPDX-License-Identifier: Apache-2.0
 *
 * Ids, weights and sources of dispatched rows, by the warps of each block behind those that send payloads:
 * the couriers. In rank layout they also send thin columns, payloads of a few bytes a row.
 *
 * In rank layout the rows that consecutive tokens have at one rank are consecutive, so what 32 tokens send to
 * one rank is three runs of memory there, written coalesced: on a link, a few large packets instead of some
 * small ones a row. In expert layout a choice has a row of its own, anywhere. */
#ifndef TERN_DISPATCH_META_H
#define TERN_DISPATCH_META_H

#include "kernels/dispatch_drain.h"

enum { META_AT_ONCE = 4, THIN_AT_ONCE = 8 }; /* choices a lane has on their way; pieces of thin rows */

TERN_DEVICE int dispatch_is_thin(const struct dispatch_args *p, uint32_t column)
{
    return (int)(p->thin >> column & 1);
}

struct courier {
    const struct dispatch_args *p;
    const struct op_table *table;
    struct target_map map;
    uint32_t *tokens;     /* [32] in shared memory: those that have a row at the rank in hand */
    uint32_t first, step; /* runs of tokens are shared out among the couriers of all blocks */
};

TERN_DEVICE struct courier courier_of(const struct dispatch_args *p, const struct op_table *table)
{
    struct courier c;
    uint32_t index = (uint32_t)warp() - p->num_senders,
             each = (uint32_t)nwarps() - p->num_senders - DISPATCH_HAS_DRAIN;
    c.p = p;
    c.table = table;
    c.map = target_map_of(&p->f, table, &p->route, p->layout, p->topk, p->num_experts);
    c.tokens = (uint32_t *)(shared_memory() + p->table_bytes +
                            p->num_senders * p->num_stages * (p->stage_bytes + (uint32_t)sizeof(uint64_t))) +
               32 * index;
    c.first = (uint32_t)bid() * each + index;
    c.step = dispatch_blocks(p) * each;
    return c;
}

TERN_DEVICE struct place meta_place(const struct courier *c, int column, int rank)
{
    return c->table->places[column * c->p->f.num_ranks + rank];
}

TERN_DEVICE uint64_t source_of(const struct courier *c, uint32_t t)
{
    return (uint64_t)t << 32 | (c->map.first_rank + (uint32_t)c->p->f.rank);
}

/* Rank layout: ids and weights of `num` rows from `row` on at rank d; those of c->tokens. All lanes. */
TERN_DEVICE void send_choices(const struct courier *c, int d, int64_t row, uint32_t num)
{
    const struct dispatch_args *p = c->p;
    struct place ids = meta_place(c, EP_COL_IDS, d);
    struct place weights = meta_place(c, EP_COL_WEIGHTS, d);
    int32_t first = ((int32_t)c->map.first_rank + d) * (int32_t)c->map.experts_a_rank;
    int32_t end = first + (int32_t)c->map.experts_a_rank;
    if (!weights.base && !ids.base) {
        return;
    }
    for (uint32_t i0 = (uint32_t)lane(); i0 < num * p->topk; i0 += 32 * META_AT_ONCE) {
        int32_t id[META_AT_ONCE];
        float weight[META_AT_ONCE];
        TERN_UNROLL
        for (uint32_t a = 0; a < META_AT_ONCE; a++) {
            uint32_t i = i0 + a * 32;
            uint64_t at = i < num * p->topk ? (uint64_t)c->tokens[i / p->topk] * p->topk + i % p->topk : 0;
            id[a] = p->route.ids[at];
            weight[a] = weights.base && p->weights ? p->weights[at] : 0.0f;
        }
        TERN_UNROLL
        for (uint32_t a = 0; a < META_AT_ONCE; a++) {
            uint32_t i = i0 + a * 32;
            int64_t r = row + i / p->topk;
            uint32_t k = i % p->topk;
            int local = id[a] >= first && id[a] < end;
            char *to = ids.base + r * ids.stride + (uint64_t)k * p->idx_bytes;
            if (i < num * p->topk && ids.base && p->idx_bytes == 8) {
                *(int64_t *)to = local ? id[a] - first : -1;
            } else if (i < num * p->topk && ids.base) {
                *(int32_t *)to = local ? id[a] - first : -1;
            }
            if (i < num * p->topk && weights.base && p->weights) {
                ((float *)(weights.base + r * weights.stride))[k] = local ? weight[a] : 0.0f;
            }
        }
    }
}

/* Rank layout: rows of a thin column, likewise. */
TERN_DEVICE void send_thin(const struct courier *c, uint32_t column, int d, int64_t row, uint32_t num)
{
    const struct column_in *in = &c->p->in[column];
    struct place to = meta_place(c, (int)c->p->out[column].column, d);
    uint32_t units = in->row_bytes / 16;
    if (!to.base) {
        return;
    }
    for (uint32_t i0 = (uint32_t)lane(); i0 < num * units; i0 += 32 * THIN_AT_ONCE) {
        struct vec16 v[THIN_AT_ONCE];
        TERN_UNROLL
        for (uint32_t a = 0; a < THIN_AT_ONCE; a++) {
            uint32_t i = i0 + a * 32 < num * units ? i0 + a * 32 : 0;
            v[a] = ld_vec16(in->data + (int64_t)c->tokens[i / units] * in->row_stride + i % units * 16);
        }
        TERN_UNROLL
        for (uint32_t a = 0; a < THIN_AT_ONCE; a++) {
            uint32_t i = i0 + a * 32;
            if (i < num * units) {
                st_vec16(to.base + (row + i / units) * to.stride + i % units * 16, v[a]);
            }
        }
    }
}

/* Rank layout: what tokens t0 .. t0 + 31 send to rank d. All lanes. */
TERN_DEVICE void send_run(const struct courier *c, uint32_t t0, int d)
{
    uint32_t t = t0 + (uint32_t)lane();
    struct target g = {-1, 0};
    if (t < c->p->num_tokens) {
        g = target_of(&c->map, t, (uint32_t)d);
    }
    uint32_t hits = warp_ballot(g.rank >= 0);
    uint32_t num = (uint32_t)TERN_POPC(hits);
    if (hits == 0) {
        return;
    }
    int64_t row = (int64_t)shfl_u64((uint64_t)g.row, TERN_FFS(hits) - 1);
    if (g.rank >= 0) {
        struct place source = meta_place(c, EP_COL_SOURCE, d);
        c->tokens[popc_before(hits, lane())] = t;
        if (source.base) {
            *(uint64_t *)(source.base + g.row * source.stride) = source_of(c, t);
        }
    }
    sync_warp();
    send_choices(c, d, row, num);
    for (uint32_t k = 0; k < c->p->num_in; k++) {
        if (dispatch_is_thin(c->p, k)) {
            send_thin(c, k, d, row, num);
        }
    }
    sync_warp();
}

/* Expert layout: the weight and the source of choice k of token t. */
TERN_DEVICE void send_choice(const struct courier *c, uint32_t t, uint32_t k)
{
    const struct dispatch_args *p = c->p;
    struct target g = target_of(&c->map, t, k);
    if (g.rank >= 0) {
        struct place weights = meta_place(c, EP_COL_WEIGHTS, g.rank);
        struct place source = meta_place(c, EP_COL_SOURCE, g.rank);
        if (weights.base && p->weights) {
            *(float *)(weights.base + g.row * weights.stride) = p->weights[(uint64_t)t * p->topk + k];
        }
        if (source.base) {
            *(uint64_t *)(source.base + g.row * source.stride) = source_of(c, t);
        }
    }
}

/* A courier of every block; `progress` where others drain. */
TERN_DEVICE void send_meta(const struct courier *c, struct drain_progress *progress)
{
    const struct dispatch_args *p = c->p;
    uint32_t num_ranks = (uint32_t)p->f.num_ranks;
    int wanted = p->thin != 0;
    for (int i = lane(); i < EP_COL_PAYLOADS * p->f.num_ranks; i += 32) {
        wanted |= c->table->places[i].base != 0;
    }
    if (!warp_any(wanted)) {
        return;
    }
    if (p->layout == 0) {
        uint32_t runs = (p->num_tokens + 31) / 32 * num_ranks;
        for (uint32_t i = c->first; i < runs; i += c->step) {
            /* Ranks that run at once begin with different peers. */
            uint32_t d = (i + (uint32_t)p->f.rank) % num_ranks;
            if (DISPATCH_HAS_DRAIN) {
                drain_passed(progress, i / num_ranks * 32);
            }
            send_run(c, i / num_ranks * 32, (int)d);
        }
        return;
    }
    uint64_t choices = (uint64_t)p->num_tokens * p->topk;
    for (uint64_t i = (uint64_t)c->first * 32 + (uint32_t)lane(); i < choices; i += (uint64_t)c->step * 32) {
        send_choice(c, (uint32_t)(i / p->topk), (uint32_t)(i % p->topk));
    }
}

#endif
