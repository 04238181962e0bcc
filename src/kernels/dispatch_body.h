/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch, "place once": every warp takes tokens (take.h), brings a token's payloads into shared memory once
 * and sends them from there to each target's final row. No queue, no credit, nobody at the receiver. The
 * bodies take `bulk` as a constant: asynchronous bulk copies through a ring of stages, or loads and stores.
 * The block's last warps are couriers, who send ids, weights and sources meanwhile (dispatch_meta.h).
 *
 * Shared memory: | place table | stages of warp 0, 1, ... | barriers of warp 0, 1, ... | list of courier 0,
 * 1, ... | A stage holds one token: its payload columns one after the other, each 16-byte aligned, then cast
 * scales. With a cast, the first column is the FP8 row.
 *
 * Bulk pipeline of a warp with S stages: its token j is loaded into stage j % S. Before token j + S - 1 goes
 * into stage (j - 1) % S, every lane has waited until its copies of token j - 1 have read that stage. The
 * first loads start before the peers are awaited: they touch nothing but this rank's own memory. */
#ifndef TERN_DISPATCH_BODY_H
#define TERN_DISPATCH_BODY_H

#include "kernels/cast.h"
#include "kernels/copy.h"
#include "kernels/dispatch_meta.h"
#include "kernels/take.h"

/* One warp's view of its pipeline. */
struct sender {
    const struct dispatch_args *p;
    const struct op_table *table;
    struct target_map map;
    char *stages;
    uint64_t *bars;
    uint32_t first, step; /* its first tokens; by loads and stores, all of them */
    uint32_t touched;     /* lanes read or write stages themselves, so that bulk copies need a proxy fence */
    uint32_t odd;         /* some column cannot leave as a bulk copy */
};

TERN_DEVICE struct sender sender_of(const struct dispatch_args *p, const struct op_table *table)
{
    struct sender s;
    uint32_t stages_bytes = p->num_stages * p->stage_bytes;
    s.p = p;
    s.table = table;
    s.map = target_map_of(&p->f, table, &p->route, p->layout, p->topk, p->num_experts);
    s.stages = shared_memory() + p->table_bytes + (uint32_t)warp() * stages_bytes;
    s.bars = (uint64_t *)(shared_memory() + p->table_bytes + p->num_senders * stages_bytes) +
             (uint32_t)warp() * p->num_stages;
    s.first = (uint32_t)bid() * p->num_senders + (uint32_t)warp();
    s.step = dispatch_blocks(p) * p->num_senders;
    s.odd = 0;
    for (uint32_t c = 0; c < p->num_out; c++) {
        s.odd |= !p->out[c].whole;
    }
    s.touched = p->cast != CAST_NONE || s.odd;
    for (uint32_t c = 0; c < p->num_in; c++) {
        s.touched |= !p->in[c].whole;
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
    } else {
        copy_narrow(dst, src, bytes, (either & 3) == 0);
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

/* All lanes, with bulk copies: token t comes soon. A row that is to be cast is read from memory only when it
 * is cast (finish_stage); it shall be near by then. */
TERN_DEVICE void expect_token(const struct sender *s, uint32_t t)
{
    const struct dispatch_args *p = s->p;
    if (p->cast != CAST_NONE && lane() == 0) {
        bulk_prefetch(p->in[0].data + (int64_t)t * p->in[0].row_stride, p->in[0].row_bytes);
    }
}

/* Starts bringing token t into stage number `stage`. All lanes. */
TERN_DEVICE void load_token(const struct sender *s, uint32_t t, uint32_t stage, const int bulk)
{
    const struct dispatch_args *p = s->p;
    char *to = s->stages + stage * p->stage_bytes;
    uint32_t bytes = 0;
    /* A row that is to be cast is read when it is cast. */
    uint32_t first = p->cast == CAST_NONE ? 0 : 1;
    for (uint32_t c = first; bulk && c < p->num_in; c++) {
        bytes += p->in[c].whole && !dispatch_is_thin(p, c) ? p->in[c].row_bytes : 0;
    }
    if (bulk && lane() == 0) {
        mbar_expect(s->bars + stage, bytes);
    }
    for (uint32_t c = first; c < p->num_in; c++) {
        const struct column_in *in = &p->in[c];
        if (dispatch_is_thin(p, c)) {
            continue;
        }
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

/* Waits until the stage is whole, casts token t into it if asked, and makes it ready to be sent from. All
 * lanes. */
TERN_DEVICE void finish_stage(const struct sender *s, uint32_t t, uint32_t stage, uint32_t parity,
                              const int bulk)
{
    const struct dispatch_args *p = s->p;
    char *at = s->stages + stage * p->stage_bytes;
    while (bulk && !mbar_test(s->bars + stage, parity)) {
        spin();
    }
    sync_warp();
    if (p->cast != CAST_NONE) {
        cast_row(p->in[0].data + (int64_t)t * p->in[0].row_stride, at, at + p->out[1].stage_offset,
                 p->in[0].row_bytes / 2, p->scale_bytes, p->cast);
    }
    if (bulk && s->touched) {
        fence_proxy_async_shared();
        sync_warp();
    }
}

/* Where output c of rank `rank` lies. */
TERN_DEVICE struct place output_of(const struct sender *s, uint32_t c, int rank)
{
    return s->table->places[s->p->out[c].column * (uint32_t)s->p->f.num_ranks + (uint32_t)rank];
}

/* Sends whole columns of this lane's target straight to the final row. */
TERN_DEVICE void send_whole(const struct sender *s, const char *stage, struct target g)
{
    const struct dispatch_args *p = s->p;
    for (uint32_t c = 0; c < p->num_out; c++) {
        struct place at = output_of(s, c, g.rank);
        if (p->out[c].whole && at.base && !dispatch_is_thin(p, c)) {
            bulk_store(at.base + g.row * at.stride, stage + p->out[c].stage_offset, p->out[c].row_bytes);
        }
    }
}

/* Sends the columns of a target that bulk copies cannot take. All lanes, one target. */
TERN_DEVICE void send_odd(const struct sender *s, const char *stage, struct target g, const int bulk)
{
    const struct dispatch_args *p = s->p;
    for (uint32_t c = 0; c < p->num_out; c++) {
        struct place at = output_of(s, c, g.rank);
        if ((!p->out[c].whole || !bulk) && at.base) {
            warp_copy(at.base + g.row * at.stride, stage + p->out[c].stage_offset, p->out[c].row_bytes);
        }
    }
}

/* This lane's target of token t, from target i0 on; num_targets: none. In rank layout lanes start at a rank
 * that differs from token to token, so that peers are interleaved and no link sees every warp at once. */
TERN_DEVICE uint32_t turned(const struct sender *s, uint32_t t, uint32_t i0)
{
    uint32_t n = s->map.num_targets, i = i0 + (uint32_t)lane();
    uint32_t rotation = s->p->layout == 0 ? (t + (uint32_t)s->p->f.rank) % n : 0;
    return i >= n ? n : i + rotation < n ? i + rotation : i + rotation - n;
}

/* Slot of this lane's first target of token t, if there is such a token. */
TERN_DEVICE int32_t first_slot(const struct sender *s, uint32_t t)
{
    return t < s->p->num_tokens ? target_slot(&s->map, t, turned(s, t, 0)) : -1;
}

/* Sends a finished stage to all targets of token t; slot: first_slot. */
TERN_DEVICE void send_token(const struct sender *s, uint32_t t, int32_t slot, uint32_t stage, const int bulk)
{
    const struct dispatch_args *p = s->p;
    const char *at = s->stages + stage * p->stage_bytes;
    for (uint32_t i0 = 0; i0 < s->map.num_targets; i0 += 32) {
        uint32_t i = turned(s, t, i0);
        struct target g = target_in(&s->map, t, i, i0 == 0 ? slot : target_slot(&s->map, t, i));
        if (bulk && g.rank >= 0) {
            send_whole(s, at, g);
        }
        for (uint32_t left = !bulk || s->odd ? warp_ballot(g.rank >= 0) : 0; left; left &= left - 1) {
            int src = TERN_FFS(left) - 1;
            struct target one;
            one.rank = (int)shfl_u32((uint32_t)g.rank, src);
            one.row = (int64_t)shfl_u64((uint64_t)g.row, src);
            send_odd(s, at, one, bulk);
        }
    }
}

/* What a warp has begun before its peers are in. */
struct beginning {
    struct taker taker;
    struct drain_progress progress; /* where others drain */
    int32_t slot;                   /* first_slot of the next token */
};

/* Starts the first loads. */
TERN_DEVICE struct beginning begin_bulk(const struct sender *s)
{
    struct beginning b;
    uint32_t ahead = s->p->num_stages - 1;
    if (lane() == 0) {
        for (uint32_t i = 0; i < s->p->num_stages; i++) {
            mbar_init(s->bars + i, 1);
        }
        fence_mbar_init();
    }
    sync_warp();
    for (uint32_t j = 0; j < ahead && s->first + j * s->step < s->p->num_tokens; j++) {
        load_token(s, s->first + j * s->step, j, 1);
        expect_token(s, s->first + j * s->step);
    }
    b.taker = taker_of(&s->p->f, s->step, ahead, s->p->num_tokens);
    b.slot = first_slot(s, s->first);
    return b;
}

/* After begin_bulk, if nothing is to be sent: loads must not outlive the block. */
TERN_DEVICE void abandon_bulk(const struct sender *s)
{
    uint32_t ahead = s->p->num_stages - 1;
    for (uint32_t j = 0; j < ahead && s->first + j * s->step < s->p->num_tokens; j++) {
        while (!mbar_test(s->bars + j, 0)) {
            spin();
        }
    }
}

/* Behind it, copies may still be under way: bulk_wait. */
TERN_DEVICE void send_tokens_bulk(const struct sender *s, struct beginning *b)
{
    const struct dispatch_args *p = s->p;
    uint32_t ahead = p->num_stages - 1;
    uint32_t stage = 0, parity = 0;
    /* Lane i knows the token in stage i; there are DISPATCH_MAX_STAGES at most. */
    uint32_t token = (uint32_t)lane() < ahead ? s->first + (uint32_t)lane() * s->step : UINT32_MAX;
    uint32_t t = s->first;
    while (t < p->num_tokens) {
        uint32_t next = take_next(&b->taker), into = stage == 0 ? ahead : stage - 1;
        if (next < p->num_tokens) {
            expect_token(s, next);
        }
        finish_stage(s, t, stage, parity, 1);
        send_token(s, t, b->slot, stage, 1);
        bulk_commit();
        if (DISPATCH_HAS_DRAIN) {
            /* Ways to peers and back take longer than the reading that is awaited below. */
            bulk_wait(DRAIN_UNDER_WAY);
            drain_sent(&b->progress, t);
        }
        if (next < p->num_tokens) {
            bulk_wait_read(1);
            if (s->touched) {
                fence_proxy_async_shared();
            }
            sync_warp();
            load_token(s, next, into, 1);
        }
        token = (uint32_t)lane() == into ? next : token;
        stage = stage == ahead ? 0 : stage + 1;
        parity ^= stage == 0;
        t = shfl_u32(token, (int)stage);
        b->slot = first_slot(s, t);
    }
}

TERN_DEVICE void send_tokens_plain(const struct sender *s)
{
    const struct dispatch_args *p = s->p;
    for (uint32_t t = s->first; t < p->num_tokens; t += s->step) {
        load_token(s, t, 0, 0);
        finish_stage(s, t, 0, 0, 0);
        send_token(s, t, first_slot(s, t), 0, 0);
        sync_warp();
    }
}

/* Bytes of -1 or 0, sixteen at once as far as they are aligned. All lanes. */
TERN_DEVICE void fill_bytes(char *to, uint32_t bytes, int value)
{
    uint32_t word = (uint32_t)value, wide = ((uintptr_t)to & 15) == 0 ? bytes & ~15u : 0;
    struct vec16 v = {{word, word, word, word}};
    for (uint32_t i = (uint32_t)lane() * 16; i < wide; i += 512) {
        st_vec16(to + i, v);
    }
    for (uint32_t i = wide + (uint32_t)lane(); i < bytes; i += 32) {
        to[i] = (char)value;
    }
}

TERN_DEVICE void fill_row(const struct sender *s, int64_t row)
{
    const struct dispatch_args *p = s->p;
    for (int c = 0; c < s->table->num_columns; c++) {
        struct place at = s->table->places[c * p->f.num_ranks + p->f.rank];
        if (at.base) {
            fill_bytes(at.base + row * at.stride, p->column_bytes[c], c == EP_COL_SOURCE ? -1 : 0);
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
    int64_t step = (int64_t)dispatch_blocks(p) * nwarps();
    for (uint32_t e = 0; p->zero_padding && e < s->map.experts_a_rank; e++) {
        int64_t end = p->route.expert_offsets[e + 1] < capacity ? p->route.expert_offsets[e + 1] : capacity;
        for (int64_t r = p->route.expert_offsets[e] + p->route.expert_counts[e] + first; r < end; r += step) {
            fill_row(s, r);
        }
    }
    struct place ids = s->table->places[EP_COL_IDS * p->f.num_ranks + p->f.rank];
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
TERN_DEVICE int weights_missing(const struct dispatch_args *p, const struct op_table *table, uint64_t epoch)
{
    int missing = 0;
    if (p->weights || p->num_tokens == 0) {
        return 0;
    }
    for (int r = tid(); r < p->f.num_ranks; r += nthr()) {
        if (table->places[EP_COL_WEIGHTS * p->f.num_ranks + r].base) {
            struct op_note note = {OP_STATUS_MISMATCH, OP_AWAIT_WEIGHTS, r, p->f.rank, epoch, 0, 0, 0, 0, 0};
            op_fault(&p->f, &note);
            missing = 1;
        }
    }
    return sync_block_or(missing);
}

TERN_DEVICE void dispatch_body(const struct dispatch_args *p, const int bulk)
{
    uint64_t begin = stamp_now();
    uint64_t epoch = op_epoch(&p->f);
    int num_columns = EP_COL_PAYLOADS + (int)p->num_out;
    struct op_table table = op_table_at(shared_memory(), num_columns, p->f.num_ranks);
    struct sender s = sender_of(p, &table);
    int drains = DISPATCH_HAS_DRAIN && dispatch_drains(p);
    int sends = (uint32_t)warp() < p->num_senders && !drains;
    if (DISPATCH_HAS_DRAIN && !drains) {
        drain_enter(drain_of(p));
    }
    if (bid() == 0) {
        op_announce(&p->f, epoch, MESSAGE_COLUMNS + 2 * num_columns);
        sync_block(); /* its fences take the longer the more loads are on their way */
    }
    struct beginning begun = {0};
    if (bulk && sends) {
        begun = begin_bulk(&s);
    }
    int ok = op_await(&p->f, epoch, &table) && !weights_missing(p, &table, epoch);
    op_take_own(&p->f, &table, p->own);
    if (!ok && bulk && sends) {
        abandon_bulk(&s);
    }
    if (ok && bulk) {
        /* The peers' reads of what their outputs held before, seen through their ready signals, come before
         * this block's asynchronous writes there. */
        fence_proxy_async_global();
    }
    if (DISPATCH_HAS_DRAIN) {
        begun.progress = drain_progress_of(p);
    }
    if (drains) {
        ok = ok && drain(p, &table, epoch);
    } else if (ok && drain_is_teller()) {
        drain_tell(drain_of(p), epoch);
    } else if (ok && !sends) {
        struct courier c = courier_of(p, &table);
        if (DISPATCH_HAS_DRAIN && (uint32_t)warp() == p->num_senders) {
            drain_send_ends(drain_of(p), epoch);
        }
        send_meta(&c, &begun.progress);
    } else if (ok && bulk) {
        send_tokens_bulk(&s, &begun);
    } else if (ok) {
        send_tokens_plain(&s);
    }
    if (DISPATCH_HAS_DRAIN && ok && !drains && !drain_is_teller()) { /* padding is no peer's concern */
        bulk_wait(0);
        drain_passed_all(&begun.progress);
    }
    if (ok && !drains) {
        fill_padding(&s); /* while the last copies are under way */
    }
    if (ok && bulk && sends) {
        bulk_wait(0);
    }
    if (drains) {
        op_leave_quietly(&p->f, epoch, begin);
    } else if (DISPATCH_HAS_DRAIN) {
        drain_leave(p, &table, epoch, ok, begin);
    } else {
        op_leave(&p->f, epoch, &table, ok, begin);
    }
}

#endif
