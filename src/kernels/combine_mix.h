/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine across domains: what its two roles share, and the first of them, forwarders. A warp takes pieces
 * of its streams home; for each message it pulls the token's rows out of the windows of this domain, as
 * pull_bulk does, adds them, and puts the rounded sum, weights and trailer into the message's place in a
 * ring (rail_out_ring). The loader runs ahead of the adder, through as many stages as there are; with
 * something in them it only looks for the next piece. */
#ifndef TERN_COMBINE_MIX_H
#define TERN_COMBINE_MIX_H

#include "kernels/inter_line.h"

#define COMBINE_HAS_ENGINE 0
#define COMBINE_RUN(s)     ((s)->run)
#ifndef COMBINE_PIECE
#define COMBINE_PIECE COMBINE_MIX_CHUNK
#endif

#include "kernels/combine_weights.h"

/* A warp of either role. */
struct mixer {
    const struct combine_inter_args *p;
    struct puller s;
    struct rail rail;
    uint32_t keys;
};

/* Tokens one behind the other that a warp of home takes, as many as their messages are in one chunk,
 * unless some warps would have more to do than others then. */
TERN_DEVICE uint32_t mix_run(const struct combine_inter_args *p, uint32_t warps)
{
    uint32_t each = p->c.num_tokens / (warps * 8);
    return each == 0 ? 1 : each < p->rail.chunk ? each : p->rail.chunk;
}

/* Whether this block is at home from the first. */
TERN_DEVICE int combine_is_home(const struct combine_inter_args *p)
{
    return (uint32_t)bid() >= p->roles.forwarders;
}

TERN_DEVICE struct mixer mixer_of(const struct combine_inter_args *p, const struct op_table *table,
                                  uint64_t epoch, const int bulk, int home)
{
    struct mixer m;
    m.p = p;
    m.s = puller_of(&p->c, table, epoch);
    m.s.map = target_map_in_domain(&p->c.f, table, &p->c.route, p->c.layout, p->c.topk, p->c.num_experts,
                                   (uint32_t)p->rail.world.num_ranks);
    m.s.block = (uint32_t)bid() - (combine_is_home(p) ? p->roles.forwarders : 0);
    m.s.blocks = home ? (uint32_t)nblk() - p->roles.forwarders : p->roles.forwarders;
    m.s.run = bulk && p->c.parts == 1 ? mix_run(p, m.s.blocks * p->c.num_pullers) : 1;
    m.rail.p = &p->rail;
    m.rail.f = &p->c.f;
    m.rail.epoch = epoch;
    m.keys = inter_keys(&m.s.map, p->c.f.num_ranks);
    return m;
}

/* ---- Sums ---- */

/* Of a domain: -0 plus x is x for every x, so a domain without rows adds nothing at home. */
TERN_DEVICE void mix_begin(struct accumulator *a)
{
    TERN_UNROLL
    for (int q = 0; q < COMBINE_VECS; q++) {
        TERN_UNROLL
        for (int c = 0; c < 8; c++) {
            a->sum[q][c] = -0.0f;
        }
    }
}

/* Adds a chunk of a row that this lane can read. */
TERN_DEVICE void mix_add(const struct puller *s, struct accumulator *a, const char *row, uint32_t chunk)
{
    TERN_UNROLL
    for (int q = 0; q < COMBINE_VECS; q++) {
        uint32_t i = (uint32_t)(q * 512 + lane() * 16);
        if (i < chunk_size(s, chunk)) {
            sum_add(a->sum[q], ld_stream_vec16(row + (size_t)chunk * s->p->chunk_bytes + i));
        }
    }
}

/* ---- Forwarders ---- */

TERN_DEVICE struct inter_entry mix_entry(const struct mixer *m, const struct stage_note *n)
{
    return inter_entry_of(&m->p->far, inter_domain(&m->p->rail, n), n->number, m->p->c.layout, m->p->c.topk,
                          m->keys);
}

/* Sum of choice k's weights of targets begin .. begin + WEIGHTS_AT_ONCE - 1, in order, onto `sum`. */
TERN_DEVICE float mix_add_weights(const struct mixer *m, const struct inter_entry *e, uint32_t k,
                                  uint32_t begin, uint32_t end, float sum)
{
    const struct combine_args *c = &m->p->c;
    const struct place *from = m->s.table.places + COMBINE_WEIGHTS * c->f.num_ranks;
    float value[WEIGHTS_AT_ONCE];
    int there[WEIGHTS_AT_ONCE];
    TERN_UNROLL
    for (uint32_t i = 0; i < WEIGHTS_AT_ONCE; i++) {
        struct target g = {-1, 0};
        if (begin + i < end) {
            g = inter_target(e, &m->s.map, begin + i);
        }
        there[i] = g.rank >= 0 && from[g.rank].base;
        value[i] = 0.0f;
        if (there[i]) {
            value[i] = ((const float *)(const void *)(from[g.rank].base +
                                                      g.row * from[g.rank].stride))[c->layout == 0 ? k : 0];
        }
    }
    TERN_UNROLL
    for (uint32_t i = 0; i < WEIGHTS_AT_ONCE; i++) {
        sum = there[i] ? sum + value[i] : sum;
    }
    return sum;
}

/* Behind the row of a message: weights and trailer. All lanes. */
TERN_DEVICE void mix_tail(const struct mixer *m, const struct stage_note *n)
{
    const struct combine_args *c = &m->p->c;
    struct inter_entry e = mix_entry(m, n);
    float *weights = (float *)(void *)(n->at + m->p->weights_offset);
    int wanted = 0;
    for (int r = lane(); r < c->f.num_ranks; r += 32) {
        wanted |= m->s.table.places[COMBINE_WEIGHTS * c->f.num_ranks + r].base != 0;
    }
    wanted = warp_any(wanted);
    for (uint32_t k = (uint32_t)lane(); k < c->topk; k += 32) {
        uint32_t begin = c->layout == 0 ? 0 : k, end = c->layout == 0 ? e.num : k + 1;
        float sum = 0.0f;
        for (uint32_t i = begin; wanted && i < end; i += WEIGHTS_AT_ONCE) {
            sum = mix_add_weights(m, &e, k, i, end, sum);
        }
        weights[k] = sum;
    }
    if (lane() == 0) {
        struct rail_trailer *t = (struct rail_trailer *)(void *)(n->at + m->p->trailer_offset);
        t->tag = inter_tag(&c->f, n->number);
    }
}

/* A chunk of a message's sum goes to its slot; behind the last one its tail, and then the piece. 0: abandon.
 * All lanes. */
TERN_DEVICE int mix_end(const struct mixer *m, const struct accumulator *a, const struct stage_note *n)
{
    TERN_UNROLL
    for (int q = 0; q < COMBINE_VECS; q++) {
        uint32_t i = (uint32_t)(q * 512 + lane() * 16);
        if (i < chunk_size(&m->s, n->chunk)) {
            st_vec16(n->at + (size_t)n->chunk * m->p->c.chunk_bytes + i, sum_round(a->sum[q]));
        }
    }
    if (n->chunk + 1 < m->s.chunks) {
        return 1;
    }
    mix_tail(m, n);
    sync_warp();
    return !n->last || inter_put(&m->rail, n);
}

/* The loader's next message. All lanes. */
TERN_DEVICE enum rail_found mix_take(const struct mixer *m, struct inter_line *q, int waits, struct loader *l,
                                     struct stage_note *n, const int groups)
{
    enum rail_found found = inter_next(q, waits, n);
    if (found != RAIL_PIECE) {
        return found;
    }
    struct inter_entry e = mix_entry(m, n);
    l->chunk = 0;
    l->batch = 0;
    l->valid = 0;
    TERN_UNROLL
    for (int i = 0; i < groups; i++) {
        loader_add(&m->s, l, i, inter_target(&e, &m->s.map, (uint32_t)(i * 32 + lane())));
    }
    return RAIL_PIECE;
}

/* Steps go through the stages of a warp; what is loaded is always brought to its end. 0: abandoned. */
TERN_DEVICE int mix_bulk(const struct mixer *m, struct inter_line *q, const int groups)
{
    const struct combine_args *p = &m->p->c;
    struct stage_note *notes = (struct stage_note *)(void *)(shared_memory() + m->p->notes_offset) +
                               (uint32_t)warp() * p->num_stages;
    uint32_t loaded = 0, added = 0, num = p->num_stages;
    enum rail_found found = RAIL_PIECE;
    struct stage_note next = {0};
    struct loader l = {0};
    struct accumulator a;
    int ok = 1, first = 1;
    l.chunk = m->s.chunks; /* no message yet */
    for (;;) {
        while (found == RAIL_PIECE && ok && loaded - added < num) {
            if (l.chunk == m->s.chunks) {
                found = mix_take(m, q, loaded == added, &l, &next, groups);
            }
            if (found == RAIL_PIECE) {
                next.chunk = l.chunk;
                if (lane() == 0) {
                    notes[loaded % num] = next;
                }
                load_batch(&m->s, &l, loaded % num, groups);
                loaded++;
            }
        }
        if (loaded == added) {
            break;
        }
        uint32_t stage = added % num;
        if (first) {
            mix_begin(&a);
        }
        while (!mbar_test(m->s.bars + stage, added / num & 1)) {
            spin();
        }
        sync_warp();
        const struct stage_note *n = notes + stage;
        uint64_t rows = m->s.bars[num + stage];
        add_rows(&m->s, &a, (uint32_t)(rows >> 1), chunk_size(&m->s, n->chunk), stage);
        first = (int)(rows & 1);
        if (first) {
            ok &= mix_end(m, &a, n);
        }
        /* These reads of the stage and its notes come before what is put there next. */
        fence_proxy_async_shared();
        sync_warp();
        added++;
        found = found == RAIL_NOTHING ? RAIL_PIECE : found;
    }
    return ok && found == RAIL_OVER;
}

TERN_DEVICE int mix_plain(const struct mixer *m, struct inter_line *q)
{
    struct stage_note n = {0};
    enum rail_found found = inter_next(q, 1, &n);
    int ok = 1;
    while (ok && found == RAIL_PIECE) {
        struct inter_entry e = mix_entry(m, &n);
        for (n.chunk = 0; n.chunk < m->s.chunks && ok; n.chunk++) {
            struct accumulator a;
            mix_begin(&a);
            for (uint32_t i = 0; i < e.num; i++) {
                struct target g = inter_target(&e, &m->s.map, i); /* the same in all lanes */
                if (g.rank >= 0) {
                    mix_add(&m->s, &a, row_address(&m->s, g), n.chunk);
                }
            }
            ok = mix_end(m, &a, &n);
        }
        found = ok ? inter_next(q, 1, &n) : found;
    }
    return ok && found == RAIL_OVER;
}

TERN_DEVICE int mix_forward(const struct mixer *m, const int bulk, const int groups)
{
    const struct combine_inter_args *p = m->p;
    uint32_t w = (uint32_t)warp() * m->s.blocks + m->s.block; /* few streams are spread over the blocks */
    uint32_t step = m->s.blocks * p->c.num_pullers;
    if (!inter_await_blocks(&m->rail, &p->far, w, step)) {
        return 0;
    }
    struct inter_line q = inter_line_of(&m->rail, w, step, p->far.num_in, 1);
    if (!bulk) {
        return mix_plain(m, &q);
    }
    puller_init_bars(&m->s);
    return mix_bulk(m, &q, groups);
}

#endif
