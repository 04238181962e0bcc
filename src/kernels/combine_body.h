/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine, "pull": every warp takes pieces of this rank's own tokens in turn, reads the token's rows out of the
 * peers' windows, adds them in FP32 in target order (ranks ascending, or choices ascending) onto the biases,
 * rounds once and writes the token. Nobody pushes; the peers only keep their rows still until this rank is done.
 *
 * Work unit: (token, chunk of chunk_bytes). A token's rows come in batches of at most batch_rows, so that one
 * unit is a fixed number of steps, and step n uses stage n % num_stages.
 *
 * Shared memory: | place table | stages of warp 0, 1, ... | barriers of warp 0, 1, ... |
 * A stage holds batch_rows pieces of chunk_bytes. */
#ifndef TERN_COMBINE_BODY_H
#define TERN_COMBINE_BODY_H

#include "kernels/place.h"

enum { COMBINE_VECS = COMBINE_CHUNK / 512 };

struct puller {
    const struct combine_args *p;
    struct target_map map;
    char *stages;
    uint64_t *bars;
    uint32_t chunks;  /* a row */
    uint32_t batches; /* a unit */
};

/* A chunk's sums: lane l holds bytes [q * 512 + l * 16, + 16) of it in sum[q]. */
struct accumulator {
    float sum[COMBINE_VECS][8];
};

TERN_DEVICE struct puller puller_of(const struct combine_args *p)
{
    struct puller s;
    uint32_t stage_bytes = p->batch_rows * p->chunk_bytes;
    s.p = p;
    s.map.token_rows = p->route.token_rows;
    s.map.ids = p->route.ids;
    s.map.bases = p->route.bases;
    s.map.capacities = place_capacities(COMBINE_COLUMNS, p->f.num_ranks);
    s.map.layout = p->layout;
    s.map.topk = p->topk;
    s.map.experts_a_rank = p->num_experts / (uint32_t)p->f.num_ranks;
    s.map.num_targets = p->layout == 0 ? (uint32_t)p->f.num_ranks : p->topk;
    s.stages = shared_memory() + p->table_bytes + (uint32_t)warp() * p->num_stages * stage_bytes;
    s.bars = (uint64_t *)(shared_memory() + p->table_bytes + (uint32_t)nwarps() * p->num_stages * stage_bytes) +
             (uint32_t)warp() * p->num_stages;
    s.chunks = (p->row_bytes + p->chunk_bytes - 1) / p->chunk_bytes;
    s.batches = (s.map.num_targets + p->batch_rows - 1) / p->batch_rows;
    return s;
}

TERN_DEVICE uint32_t chunk_size(const struct puller *s, uint32_t chunk)
{
    uint32_t left = s->p->row_bytes - chunk * s->p->chunk_bytes;
    return left < s->p->chunk_bytes ? left : s->p->chunk_bytes;
}

TERN_DEVICE const char *row_address(struct target g)
{
    struct place at = place_table()[g.rank];
    return at.base + g.row * at.stride;
}

TERN_DEVICE void add_vec16(float *sum, struct vec16 v)
{
    TERN_UNROLL
    for (int i = 0; i < 4; i++) {
        sum[2 * i] += bf16_lo(v.w[i]);
        sum[2 * i + 1] += bf16_hi(v.w[i]);
    }
}

TERN_DEVICE void begin_sum(const struct puller *s, struct accumulator *a, uint32_t t, uint32_t chunk)
{
    const struct combine_args *p = s->p;
    uint64_t at = (uint64_t)t * p->row_bytes + chunk * p->chunk_bytes;
    /* -0 plus x is x for every x, so a sum that begins with a bias keeps the bias' own zero. */
    float none = p->bias[0] || p->bias[1] ? -0.0f : 0.0f;
    TERN_UNROLL
    for (int q = 0; q < COMBINE_VECS; q++) {
        uint32_t i = (uint32_t)(q * 512 + lane() * 16);
        TERN_UNROLL
        for (int c = 0; c < 8; c++) {
            a->sum[q][c] = none;
        }
        TERN_UNROLL
        for (int b = 0; b < 2; b++) {
            if (p->bias[b] && i < chunk_size(s, chunk)) {
                add_vec16(a->sum[q], ld_stream_vec16(p->bias[b] + at + i));
            }
        }
    }
}

TERN_DEVICE void end_sum(const struct puller *s, const struct accumulator *a, uint32_t t, uint32_t chunk)
{
    const struct combine_args *p = s->p;
    char *to = p->out + (int64_t)t * p->out_stride + chunk * p->chunk_bytes;
    TERN_UNROLL
    for (int q = 0; q < COMBINE_VECS; q++) {
        uint32_t i = (uint32_t)(q * 512 + lane() * 16);
        if (i < chunk_size(s, chunk)) {
            struct vec16 v;
            TERN_UNROLL
            for (int c = 0; c < 4; c++) {
                v.w[c] = cvt_bf16x2(a->sum[q][2 * c], a->sum[q][2 * c + 1]);
            }
            st_vec16(to + i, v);
        }
    }
}

/* Which of a token's valid targets, counted in order, are in batch b: [b * batch_rows, (b + 1) * batch_rows). */
struct batch {
    uint32_t first, end;
};

TERN_DEVICE struct batch batch_of(const struct puller *s, uint32_t b)
{
    struct batch r;
    r.first = b * s->p->batch_rows;
    r.end = r.first + s->p->batch_rows;
    return r;
}

/* Starts pulling one batch of a unit into a stage. All lanes. */
TERN_DEVICE void load_batch(const struct puller *s, uint32_t unit, uint32_t b, uint32_t stage)
{
    const struct combine_args *p = s->p;
    uint32_t t = unit / s->chunks;
    uint32_t chunk = unit % s->chunks;
    uint32_t bytes = chunk_size(s, chunk);
    struct batch want = batch_of(s, b);
    char *to = s->stages + (size_t)stage * p->batch_rows * p->chunk_bytes;
    uint32_t valid = 0;
    for (uint32_t i0 = 0; i0 < s->map.num_targets; i0 += 32) {
        struct target g = target_of(&s->map, t, i0 + (uint32_t)lane());
        uint32_t hits = warp_ballot(g.rank >= 0);
        uint32_t n = valid + (uint32_t)popc_before(hits, lane());
        if (g.rank >= 0 && n >= want.first && n < want.end) {
            bulk_load(to + (size_t)(n - want.first) * p->chunk_bytes, row_address(g) + (size_t)chunk * p->chunk_bytes,
                      bytes, s->bars + stage);
        }
        valid += (uint32_t)TERN_POPC(hits);
    }
    if (lane() == 0) {
        uint32_t rows = valid > want.first ? valid - want.first : 0;
        mbar_expect(s->bars + stage, (rows < p->batch_rows ? rows : p->batch_rows) * bytes);
    }
}

/* Valid targets of a token. All lanes. */
TERN_DEVICE uint32_t count_targets(const struct puller *s, uint32_t t)
{
    uint32_t valid = 0;
    for (uint32_t i0 = 0; i0 < s->map.num_targets; i0 += 32) {
        valid += (uint32_t)TERN_POPC(warp_ballot(target_of(&s->map, t, i0 + (uint32_t)lane()).rank >= 0));
    }
    return valid;
}

TERN_DEVICE void add_batch(const struct puller *s, struct accumulator *a, uint32_t unit, uint32_t b, uint32_t stage)
{
    const struct combine_args *p = s->p;
    const char *from = s->stages + (size_t)stage * p->batch_rows * p->chunk_bytes;
    uint32_t valid = count_targets(s, unit / s->chunks);
    uint32_t bytes = chunk_size(s, unit % s->chunks);
    struct batch want = batch_of(s, b);
    uint32_t rows = valid > want.first ? valid - want.first : 0;
    rows = rows < p->batch_rows ? rows : p->batch_rows;
    for (uint32_t r = 0; r < rows; r++) {
        TERN_UNROLL
        for (int q = 0; q < COMBINE_VECS; q++) {
            uint32_t i = (uint32_t)(q * 512 + lane() * 16);
            if (i < bytes) {
                add_vec16(a->sum[q], ld_vec16(from + r * p->chunk_bytes + i));
            }
        }
    }
}

TERN_DEVICE void pull_bulk(const struct puller *s)
{
    const struct combine_args *p = s->p;
    uint32_t units = p->num_tokens * s->chunks;
    uint32_t first = (uint32_t)(bid() * nwarps() + warp());
    uint32_t gap = (uint32_t)(nblk() * nwarps());
    uint32_t steps = first < units ? ((units - first - 1) / gap + 1) * s->batches : 0;
    uint32_t ahead = p->num_stages - 1;
    if (lane() == 0) {
        for (uint32_t i = 0; i < p->num_stages; i++) {
            mbar_init(s->bars + i, 1);
        }
        fence_mbar_init();
    }
    sync_warp();
    for (uint32_t n = 0; n < ahead && n < steps; n++) {
        load_batch(s, first + n / s->batches * gap, n % s->batches, n);
    }
    struct accumulator a;
    uint32_t stage = 0, parity = 0;
    for (uint32_t n = 0; n < steps; n++) {
        uint32_t unit = first + n / s->batches * gap;
        uint32_t b = n % s->batches;
        uint32_t next = n + ahead;
        if (next < steps) {
            load_batch(s, first + next / s->batches * gap, next % s->batches, stage == 0 ? ahead : stage - 1);
        }
        if (b == 0) {
            begin_sum(s, &a, unit / s->chunks, unit % s->chunks);
        }
        while (!mbar_test(s->bars + stage, parity)) {
            spin();
        }
        sync_warp();
        add_batch(s, &a, unit, b, stage);
        if (b == s->batches - 1) {
            end_sum(s, &a, unit / s->chunks, unit % s->chunks);
        }
        /* These reads of the stage come before the bulk loads that will overwrite it. */
        fence_proxy_async();
        sync_warp();
        stage = stage == ahead ? 0 : stage + 1;
        parity ^= stage == 0;
    }
}

TERN_DEVICE void pull_plain(const struct puller *s)
{
    const struct combine_args *p = s->p;
    uint32_t units = p->num_tokens * s->chunks;
    uint32_t gap = (uint32_t)(nblk() * nwarps());
    for (uint32_t unit = (uint32_t)(bid() * nwarps() + warp()); unit < units; unit += gap) {
        uint32_t t = unit / s->chunks;
        uint32_t chunk = unit % s->chunks;
        struct accumulator a;
        begin_sum(s, &a, t, chunk);
        for (uint32_t i0 = 0; i0 < s->map.num_targets; i0 += 32) {
            struct target g = target_of(&s->map, t, i0 + (uint32_t)lane());
            for (uint32_t left = warp_ballot(g.rank >= 0); left; left &= left - 1) {
                int src = TERN_FFS(left) - 1;
                struct target one;
                one.rank = (int)shfl_u32((uint32_t)g.rank, src);
                one.row = (int64_t)shfl_u64((uint64_t)g.row, src);
                const char *from = row_address(one) + (size_t)chunk * p->chunk_bytes;
                TERN_UNROLL
                for (int q = 0; q < COMBINE_VECS; q++) {
                    uint32_t i = (uint32_t)(q * 512 + lane() * 16);
                    if (i < chunk_size(s, chunk)) {
                        add_vec16(a.sum[q], ld_stream_vec16(from + i));
                    }
                }
            }
        }
        end_sum(s, &a, t, chunk);
    }
}

/* The top-k weights of one token; lane k has choice k. */
TERN_DEVICE void pull_weights(const struct puller *s, uint32_t t)
{
    const struct combine_args *p = s->p;
    const struct place *from = place_table() + COMBINE_WEIGHTS * p->f.num_ranks;
    for (uint32_t k = (uint32_t)lane(); k < p->topk; k += 32) {
        float sum = 0.0f;
        for (uint32_t i = p->layout == 0 ? 0 : k; i < (p->layout == 0 ? s->map.num_targets : k + 1); i++) {
            struct target g = target_of(&s->map, t, i);
            if (g.rank >= 0 && from[g.rank].base) {
                const float *row = (const float *)(from[g.rank].base + g.row * from[g.rank].stride);
                sum += row[p->layout == 0 ? k : 0];
            }
        }
        p->out_weights[(uint64_t)t * p->topk + k] = sum;
    }
}

TERN_DEVICE void combine_body(const struct combine_args *p, const int bulk)
{
    uint64_t epoch = op_epoch(&p->f);
    if (bid() == 0) {
        op_announce(&p->f, epoch);
    }
    if (op_await(&p->f, epoch)) {
        if (bulk) {
            /* The peers' rows, seen through their ready signals, come before asynchronous reads. */
            fence_proxy_async();
        }
        place_fill(&p->f, epoch, COMBINE_COLUMNS);
        struct puller s = puller_of(p);
        if (bulk) {
            pull_bulk(&s);
        } else {
            pull_plain(&s);
        }
        uint32_t gap = (uint32_t)(nblk() * nwarps());
        for (uint32_t t = (uint32_t)(bid() * nwarps() + warp()); p->out_weights && t < p->num_tokens; t += gap) {
            pull_weights(&s, t);
        }
    }
    op_leave(&p->f, epoch);
}

#endif
