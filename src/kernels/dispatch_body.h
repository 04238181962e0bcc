/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch, "place once": every warp takes tokens in turn, brings a token's payloads into shared memory once
 * and sends them from there to each target's final row. No queue, no credit, nobody at the receiver. The
 * bodies take `bulk` as a constant: asynchronous bulk copies through a ring of stages, or loads and stores.
 *
 * Shared memory: | place table | stages of warp 0, 1, ... | barriers of warp 0, 1, ... | lists of warp 0, 1,
 * ... | A stage holds one token: its payload columns one after the other, each 16-byte aligned, then cast
 * scales. A list holds the targets of the token that is being sent, so that lanes can take (target, choice)
 * pairs.
 *
 * Bulk pipeline of a warp with S stages: token j is loaded into stage j % S. Before token j + S - 1 goes into
 * stage (j - 1) % S, every lane has waited until its copies of token j - 1 have read that stage. */
#ifndef TERN_DISPATCH_BODY_H
#define TERN_DISPATCH_BODY_H

#include "kernels/cast.h"
#include "kernels/place.h"

/* A target on a warp's list. */
struct listed {
    int32_t rank, row;
    uint32_t choice; /* of the token; expert layout */
    uint32_t reserved;
};

/* One warp's view of its pipeline. */
struct sender {
    const struct dispatch_args *p;
    struct target_map map;
    char *stages;
    uint64_t *bars;
    struct listed *list;
    uint32_t touched; /* lanes read or write stages themselves, so that bulk copies need a proxy fence */
    uint32_t odd;     /* some column cannot leave as a bulk copy */
    uint32_t meta;    /* somebody wants ids, weights or sources */
};

TERN_DEVICE struct sender sender_of(const struct dispatch_args *p, int num_columns)
{
    struct sender s;
    uint32_t stages_bytes = p->num_stages * p->stage_bytes;
    s.p = p;
    s.map = target_map_of(&p->f, &p->route, p->layout, p->topk, p->num_experts, num_columns);
    s.stages = shared_memory() + p->table_bytes + (uint32_t)warp() * stages_bytes;
    s.bars = (uint64_t *)(shared_memory() + p->table_bytes + (uint32_t)nwarps() * stages_bytes) +
             (uint32_t)warp() * p->num_stages;
    s.list =
        (struct listed *)(shared_memory() + p->table_bytes +
                          (uint32_t)nwarps() * (stages_bytes + p->num_stages * (uint32_t)sizeof(uint64_t))) +
        warp() * 32;
    s.odd = 0;
    s.meta = 0;
    for (uint32_t c = 0; c < p->num_out; c++) {
        s.odd |= !p->out[c].whole;
    }
    s.touched = p->cast != CAST_NONE || s.odd;
    for (uint32_t c = 0; c < p->num_in; c++) {
        s.touched |= !p->in[c].whole;
    }
    for (int i = EP_COL_IDS * p->f.num_ranks; i < EP_MAX_COLUMNS * p->f.num_ranks; i++) {
        s.meta |= place_table()[i].base != 0;
    }
    return s;
}

/* Copies `bytes` with the lanes of one warp, in the widest unit that both ends and the size allow. */
TERN_DEVICE void warp_copy(char *dst, const char *src, uint32_t bytes)
{
    uint64_t either = (uint64_t)(uintptr_t)dst | (uint64_t)(uintptr_t)src | bytes;
    if ((either & 15) == 0) {
        for (uint32_t i = (uint32_t)lane() * 16; i < bytes; i += 512) {
            st_vec16(dst + i, ld_vec16(src + i));
        }
    } else if ((either & 3) == 0) {
        for (uint32_t i = (uint32_t)lane() * 4; i < bytes; i += 128) {
            *(uint32_t *)(dst + i) = *(const uint32_t *)(src + i);
        }
    } else {
        for (uint32_t i = (uint32_t)lane(); i < bytes; i += 32) {
            dst[i] = src[i];
        }
    }
}

/* Gathers a row of strided elements. */
TERN_DEVICE void gather(char *dst, const struct column_in *c, const char *row)
{
    if (c->elem_bytes == 4 && (((uint64_t)(uintptr_t)row | (uint64_t)c->elem_stride) & 3) == 0) {
        for (uint32_t i = (uint32_t)lane(); i < c->row_bytes / 4; i += 32) {
            ((uint32_t *)dst)[i] = *(const uint32_t *)(row + (int64_t)i * c->elem_stride);
        }
        return;
    }
    for (uint32_t i = (uint32_t)lane(); i < c->row_bytes; i += 32) {
        dst[i] = row[(int64_t)(i / c->elem_bytes) * c->elem_stride + i % c->elem_bytes];
    }
}

/* Starts bringing token t into stage number `stage`. All lanes. */
TERN_DEVICE void load_token(const struct sender *s, uint32_t t, uint32_t stage, const int bulk)
{
    const struct dispatch_args *p = s->p;
    char *to = s->stages + stage * p->stage_bytes;
    uint32_t bytes = 0;
    for (uint32_t c = 0; bulk && c < p->num_in; c++) {
        bytes += p->in[c].whole ? p->in[c].row_bytes : 0;
    }
    if (bulk && lane() == 0) {
        mbar_expect(s->bars + stage, bytes);
    }
    for (uint32_t c = 0; c < p->num_in; c++) {
        const struct column_in *in = &p->in[c];
        const char *row = in->data + (int64_t)t * in->row_stride;
        if (!in->whole) {
            gather(to + in->stage_offset, in, row);
        } else if (!bulk) {
            warp_copy(to + in->stage_offset, row, in->row_bytes);
        } else if (lane() == 0) {
            bulk_load(to + in->stage_offset, row, in->row_bytes, s->bars + stage);
        }
    }
}

/* Waits until the stage is whole, casts if asked, and makes it ready to be sent from. All lanes. */
TERN_DEVICE void finish_stage(const struct sender *s, uint32_t stage, uint32_t parity, const int bulk)
{
    const struct dispatch_args *p = s->p;
    char *at = s->stages + stage * p->stage_bytes;
    while (bulk && !mbar_test(s->bars + stage, parity)) {
        spin();
    }
    sync_warp();
    if (p->cast != CAST_NONE) {
        cast_row(at, at + p->out[1].stage_offset, p->in[0].row_bytes / 2, p->scale_bytes, p->cast);
    }
    if (bulk && s->touched) {
        fence_proxy_async();
        sync_warp();
    }
}

/* Rank layout: choice k of token t for one target, local or not. */
TERN_DEVICE void send_choice(const struct sender *s, uint32_t t, uint32_t k, struct listed g)
{
    const struct dispatch_args *p = s->p;
    int num_ranks = p->f.num_ranks;
    struct place ids = place_table()[EP_COL_IDS * num_ranks + g.rank];
    struct place weights = place_table()[EP_COL_WEIGHTS * num_ranks + g.rank];
    int32_t first = g.rank * (int32_t)s->map.experts_a_rank;
    int32_t id = p->route.ids[(uint64_t)t * p->topk + k];
    int local = id >= first && id < first + (int32_t)s->map.experts_a_rank;
    char *at = ids.base + g.row * ids.stride + (uint64_t)k * p->idx_bytes;
    if (ids.base && p->idx_bytes == 8) {
        *(int64_t *)at = local ? id - first : -1;
    } else if (ids.base) {
        *(int32_t *)at = local ? id - first : -1;
    }
    if (weights.base && p->weights) {
        ((float *)(weights.base + g.row * weights.stride))[k] =
            local ? p->weights[(uint64_t)t * p->topk + k] : 0.0f;
    }
}

/* Ids, weights and sources of token t for the listed targets. All lanes. */
TERN_DEVICE void send_meta(const struct sender *s, uint32_t t, uint32_t num_listed)
{
    const struct dispatch_args *p = s->p;
    for (uint32_t i = (uint32_t)lane(); p->layout == 0 && i < num_listed * p->topk; i += 32) {
        send_choice(s, t, i % p->topk, s->list[i / p->topk]);
    }
    if ((uint32_t)lane() < num_listed) {
        struct listed g = s->list[lane()];
        struct place weights = place_table()[EP_COL_WEIGHTS * p->f.num_ranks + g.rank];
        struct place source = place_table()[EP_COL_SOURCE * p->f.num_ranks + g.rank];
        if (p->layout != 0 && weights.base && p->weights) {
            *(float *)(weights.base + g.row * weights.stride) = p->weights[(uint64_t)t * p->topk + g.choice];
        }
        if (source.base) {
            *(uint64_t *)(source.base + g.row * source.stride) = (uint64_t)t << 32 | (uint32_t)p->f.rank;
        }
    }
}

/* Sends whole columns of this lane's target: one bulk copy each, straight to the final row. */
TERN_DEVICE void send_whole(const struct sender *s, const char *stage, struct target g)
{
    const struct dispatch_args *p = s->p;
    for (uint32_t c = 0; c < p->num_out; c++) {
        struct place at = place_table()[p->out[c].column * (uint32_t)p->f.num_ranks + (uint32_t)g.rank];
        if (p->out[c].whole && at.base) {
            bulk_store(at.base + g.row * at.stride, stage + p->out[c].stage_offset, p->out[c].row_bytes);
        }
    }
}

/* Sends the columns of a target that bulk copies cannot take. All lanes, one target. */
TERN_DEVICE void send_odd(const struct sender *s, const char *stage, struct listed g, const int bulk)
{
    const struct dispatch_args *p = s->p;
    for (uint32_t c = 0; c < p->num_out; c++) {
        struct place at = place_table()[p->out[c].column * (uint32_t)p->f.num_ranks + (uint32_t)g.rank];
        if ((!p->out[c].whole || !bulk) && at.base) {
            warp_copy(at.base + g.row * at.stride, stage + p->out[c].stage_offset, p->out[c].row_bytes);
        }
    }
}

/* Sends a finished stage to all targets of token t. In rank layout lanes start at a rank that differs from
 * token to token, so that peers are interleaved and no link sees every warp at once. */
TERN_DEVICE void send_token(const struct sender *s, uint32_t t, uint32_t stage, const int bulk)
{
    const struct dispatch_args *p = s->p;
    const char *at = s->stages + stage * p->stage_bytes;
    uint32_t n = s->map.num_targets;
    uint32_t rotation = p->layout == 0 ? (t + (uint32_t)p->f.rank) % n : 0;
    for (uint32_t i0 = 0; i0 < n; i0 += 32) {
        uint32_t i = i0 + (uint32_t)lane();
        uint32_t turned = i + rotation < n ? i + rotation : i + rotation - n;
        struct target g = target_of(&s->map, t, i < n ? turned : n);
        if (bulk && g.rank >= 0) {
            send_whole(s, at, g);
        }
        if (!bulk || s->odd || s->meta) {
            uint32_t hits = warp_ballot(g.rank >= 0);
            uint32_t num_listed = (uint32_t)TERN_POPC(hits);
            if (g.rank >= 0) {
                struct listed l = {g.rank, (int32_t)g.row, turned, 0};
                s->list[popc_before(hits, lane())] = l;
            }
            sync_warp();
            for (uint32_t j = 0; (!bulk || s->odd) && j < num_listed; j++) {
                send_odd(s, at, s->list[j], bulk);
            }
            send_meta(s, t, num_listed);
            sync_warp();
        }
    }
}

TERN_DEVICE void send_tokens_bulk(const struct sender *s)
{
    const struct dispatch_args *p = s->p;
    uint32_t first = (uint32_t)(bid() * nwarps() + warp());
    uint32_t step = (uint32_t)(nblk() * nwarps());
    uint32_t ahead = p->num_stages - 1;
    if (lane() == 0) {
        for (uint32_t i = 0; i < p->num_stages; i++) {
            mbar_init(s->bars + i, 1);
        }
        fence_mbar_init();
    }
    sync_warp();
    for (uint32_t j = 0; j < ahead && first + j * step < p->num_tokens; j++) {
        load_token(s, first + j * step, j, 1);
    }
    uint32_t stage = 0, parity = 0;
    for (uint32_t t = first; t < p->num_tokens; t += step) {
        finish_stage(s, stage, parity, 1);
        send_token(s, t, stage, 1);
        bulk_commit();
        if (t + ahead * step < p->num_tokens) {
            bulk_wait_read(1);
            if (s->touched) {
                fence_proxy_async();
            }
            sync_warp();
            load_token(s, t + ahead * step, stage == 0 ? ahead : stage - 1, 1);
        }
        stage = stage == ahead ? 0 : stage + 1;
        parity ^= stage == 0;
    }
    bulk_wait(0);
}

TERN_DEVICE void send_tokens_plain(const struct sender *s)
{
    const struct dispatch_args *p = s->p;
    uint32_t step = (uint32_t)(nblk() * nwarps());
    for (uint32_t t = (uint32_t)(bid() * nwarps() + warp()); t < p->num_tokens; t += step) {
        load_token(s, t, 0, 0);
        finish_stage(s, 0, 0, 0);
        send_token(s, t, 0, 0);
        sync_warp();
    }
}

TERN_DEVICE void fill_row(const struct dispatch_args *p, int64_t row)
{
    for (int c = 0; c < EP_MAX_COLUMNS; c++) {
        struct place at = place_table()[c * p->f.num_ranks + p->f.rank];
        int value = c == EP_COL_SOURCE ? -1 : 0;
        for (uint32_t i = (uint32_t)lane(); at.base && i < p->column_bytes[c]; i += 32) {
            at.base[row * at.stride + i] = (char)value;
        }
    }
}

/* This rank's own rows that no peer writes: zeros between experts' groups, -1 in the ids past the last row.
 */
TERN_DEVICE void fill_padding(const struct sender *s)
{
    const struct dispatch_args *p = s->p;
    int64_t capacity = (int64_t)s->map.capacities[p->f.rank];
    int64_t first = bid() * nwarps() + warp();
    int64_t step = nblk() * nwarps();
    for (uint32_t e = 0; p->zero_padding && e < s->map.experts_a_rank; e++) {
        int64_t end = p->route.expert_offsets[e + 1] < capacity ? p->route.expert_offsets[e + 1] : capacity;
        for (int64_t r = p->route.expert_offsets[e] + p->route.expert_counts[e] + first; r < end; r += step) {
            fill_row(p, r);
        }
    }
    struct place ids = place_table()[EP_COL_IDS * p->f.num_ranks + p->f.rank];
    for (int64_t r = p->route.num_rows[0] + first; p->fill_ids && r < capacity; r += step) {
        for (uint32_t k = (uint32_t)lane(); k < p->topk * p->idx_bytes / 4; k += 32) {
            ((int32_t *)(ids.base + r * ids.stride))[k] = -1;
        }
    }
    if (bid() == 0 && tid() == 0) {
        int64_t over = p->route.num_rows[0] - capacity;
        p->route.overflow[0] = over > 0 ? (uint64_t)over : 0;
    }
}

/* 1 if a peer wants weights and this rank was given none: the peer's rows would lack them. All threads. */
TERN_DEVICE int weights_missing(const struct dispatch_args *p, uint64_t epoch)
{
    int missing = 0;
    for (int r = tid(); !p->weights && p->num_tokens > 0 && r < p->f.num_ranks; r += nthr()) {
        if (place_table()[EP_COL_WEIGHTS * p->f.num_ranks + r].base) {
            struct op_note note = {OP_STATUS_MISMATCH, OP_AWAIT_WEIGHTS, r, p->f.rank, epoch, 0, 0, 0, 0, 0};
            op_fault(&p->f, &note);
            missing = 1;
        }
    }
    return sync_block_or(missing);
}

TERN_DEVICE void dispatch_body(const struct dispatch_args *p, const int bulk)
{
    uint64_t epoch = op_epoch(&p->f);
    if (bid() == 0) {
        op_announce(&p->f, epoch, EP_MAX_COLUMNS);
    }
    if (op_await(&p->f, epoch)) {
        if (bulk) {
            /* The peers' reads of what their outputs held before, seen through their ready signals, come
             * before this block's asynchronous writes there. */
            fence_proxy_async();
        }
        place_fill(&p->f, epoch, EP_MAX_COLUMNS);
        if (!weights_missing(p, epoch)) {
            struct sender s = sender_of(p, EP_MAX_COLUMNS);
            if (bulk) {
                send_tokens_bulk(&s);
            } else {
                send_tokens_plain(&s);
            }
            fill_padding(&s);
        }
    }
    op_leave(&p->f, epoch);
}

#endif
