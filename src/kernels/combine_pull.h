/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine, "pull": every warp takes this rank's own tokens in turn, reads the token's rows out of the peers'
 * windows, adds them in FP32 in target order (ranks ascending, or choices ascending) onto the biases, rounds
 * once and writes the token. The peers only keep their rows still until this rank is done.
 *
 * A token is cut into chunks of chunk_bytes, and a chunk's rows into batches of at most batch_rows. A warp
 * takes a part of a token at a time: all of its chunks if there are many tokens, fewer if warps would be left
 * without work. One step of the bulk pipeline is one batch: step n uses stage n % num_stages. The loader runs
 * num_stages - 1 steps ahead of the adder; both are the same warp, so that what the loader knows of a step
 * travels in the stage's note.
 *
 * With the copy engine the rows come to staging of this rank's own, in pieces whose arrival a word tells; the
 * loader awaits a row's piece and then reads it there. Likewise rows that their ranks push (combine_push.h).
 *
 * Shared memory: | place table | stages of warp 0, 1, ... | barriers and notes of warp 0, 1, ... |
 * A stage holds batch_rows pieces of chunk_bytes. */
#ifndef TERN_COMBINE_PULL_H
#define TERN_COMBINE_PULL_H

#include "kernels/place.h"
#include "kernels/sum.h"

/* 0 in kernels whose rows no copy engine brings. */
#ifndef COMBINE_HAS_ENGINE
#define COMBINE_HAS_ENGINE 1
#endif

/* 1 in the kernel whose rows their ranks push. */
#ifndef COMBINE_HAS_PUSH
#define COMBINE_HAS_PUSH 0
#endif

/* Units one behind the other that a warp has, in kernels that have runs of them. */
#ifndef COMBINE_RUN
#define COMBINE_RUN(s) 1u
#endif

/* What a warp adds at a time, in a kernel that has no measure of its own. */
#ifndef COMBINE_PIECE
#define COMBINE_PIECE COMBINE_CHUNK
#endif
enum { COMBINE_VECS = COMBINE_PIECE / 512 };

struct puller {
    const struct combine_args *p;
    struct op_table table;
    struct target_map map;
    char *stages;
    uint64_t *bars;         /* [num_stages], then as many notes */
    uint32_t chunks;        /* a row */
    uint32_t units;         /* parts of all tokens */
    uint32_t block, blocks; /* that pull */
    uint32_t run;           /* what COMBINE_RUN is where it is not 1 */
    uint64_t epoch;
    const struct combine_push_args *push; /* in that kernel */
};

/* A chunk's sums: lane l holds bytes [q * 512 + l * 16, + 16) of it in sum[q]. */
struct accumulator {
    float sum[COMBINE_VECS][8];
};

TERN_DEVICE struct puller puller_of(const struct combine_args *p, const struct op_table *table,
                                    uint64_t epoch)
{
    struct puller s;
    uint32_t stage_bytes = p->batch_rows * p->chunk_bytes;
    s.p = p;
    s.table = *table;
    s.map = target_map_of(&p->f, table, &p->route, p->layout, p->topk, p->num_experts);
    s.stages = shared_memory() + p->table_bytes + (uint32_t)warp() * p->num_stages * stage_bytes;
    s.bars = (uint64_t *)(shared_memory() + p->table_bytes + p->num_pullers * p->num_stages * stage_bytes) +
             (uint32_t)warp() * 2 * p->num_stages;
    s.chunks = (p->row_bytes + p->chunk_bytes - 1) / p->chunk_bytes;
    s.units = p->num_tokens * p->parts;
    s.block = (uint32_t)bid();
    s.blocks = (uint32_t)nblk();
    s.run = 1;
    s.epoch = epoch;
    s.push = 0;
    return s;
}

/* Pulling warps of all blocks take work in turn. */
TERN_DEVICE uint32_t first_of(const struct puller *s)
{
    return (s->block * s->p->num_pullers + (uint32_t)warp()) * COMBINE_RUN(s);
}

TERN_DEVICE uint32_t gap_of(const struct puller *s) { return s->blocks * s->p->num_pullers; }

/* The warp's unit after u. */
TERN_DEVICE uint32_t unit_after(const struct puller *s, uint32_t u)
{
    return u + 1 + ((u + 1) % COMBINE_RUN(s) != 0 ? 0 : (gap_of(s) - 1) * COMBINE_RUN(s));
}

TERN_DEVICE uint32_t chunk_size(const struct puller *s, uint32_t chunk)
{
    uint32_t left = s->p->row_bytes - chunk * s->p->chunk_bytes;
    return left < s->p->chunk_bytes ? left : s->p->chunk_bytes;
}

/* Chunks of unit u, which is part u % parts of token u / parts. */
struct chunk_range {
    uint32_t begin, end;
};

TERN_DEVICE struct chunk_range chunks_of(const struct puller *s, uint32_t u)
{
    struct chunk_range c;
    c.begin = u % s->p->parts * s->p->part_chunks;
    c.end = c.begin + s->p->part_chunks < s->chunks ? c.begin + s->p->part_chunks : s->chunks;
    return c;
}

/* Slot of a target among its source's rows for this rank. */
TERN_DEVICE uint32_t slot_of(const struct puller *s, struct target g)
{
    return (uint32_t)g.row - (uint32_t)s->map.bases[g.rank];
}

TERN_DEVICE const char *row_address(const struct puller *s, struct target g)
{
    const struct engine_args *e = &s->p->engine;
    struct place at = s->table.places[g.rank];
    if (COMBINE_HAS_PUSH && g.rank == s->p->f.rank) {
        return s->push->rows + g.row * s->push->stride;
    }
    if (COMBINE_HAS_PUSH) {
        return s->push->staged + (uint64_t)g.rank * s->push->area_bytes +
               (uint64_t)slot_of(s, g) * s->p->row_bytes;
    }
    if (!COMBINE_HAS_ENGINE) {
        return at.base + g.row * at.stride;
    }
    if (e->run && g.rank == s->p->f.rank) {
        return e->own + g.row * (int64_t)s->p->row_bytes;
    }
    if (e->run) {
        return e->staged + (uint64_t)g.rank * e->area_bytes + (uint64_t)slot_of(s, g) * s->p->row_bytes;
    }
    return at.base + g.row * at.stride;
}

/* Waits until rows of rank `rank` are in staging, as a word says; 0 if the operation is to be abandoned. */
TERN_DEVICE int await_rows(const struct puller *s, int rank, const uint64_t *word, uint64_t expected)
{
    uint64_t seen;
    if (!op_await_rows(&s->p->f, s->epoch, rank, word, expected, 0, &seen)) {
        return 0;
    }
    fence_proxy_async_global(); /* the rows, seen through the word, come before asynchronous reads */
    return 1;
}

/* Waits until the row is here, if others bring it; 0 if the operation is to be abandoned. Pieces of a copy
 * engine come in order: the first *arrived are known to be here. */
TERN_DEVICE int await_row(const struct puller *s, struct target g, uint32_t *arrived)
{
    const struct op_frame *f = &s->p->f;
    const struct engine_args *e = &s->p->engine;
    if (COMBINE_HAS_PUSH && g.rank >= 0 && g.rank != f->rank) {
        uint64_t unit = (uint64_t)g.rank * s->push->rank_words + slot_of(s, g) / PUSH_ROWS;
        return await_rows(s, g.rank, op_own_word(f, s->push->words_offset, 0) + unit, s->epoch);
    }
    if (!COMBINE_HAS_ENGINE || !e->run || g.rank < 0 || g.rank == f->rank) {
        return 1;
    }
    uint32_t piece = slot_of(s, g) / e->piece_rows;
    if (piece < *arrived) {
        return 1;
    }
    if (!await_rows(s, g.rank, op_own_word(f, f->pieces_offset, g.rank * EP_MAX_PIECES + (int)piece),
                    e->run)) {
        return 0;
    }
    *arrived = piece + 1;
    return 1;
}

TERN_DEVICE void begin_sum(const struct puller *s, struct accumulator *a, uint32_t t, uint32_t chunk)
{
    const struct combine_args *p = s->p;
    uint64_t at = (uint64_t)t * p->row_bytes + chunk * p->chunk_bytes;
    /* -0 plus x is x for every x, so a sum that begins with a bias keeps the bias' own zero. */
    const int biased = p->bias[0] || p->bias[1];
    float none = biased ? -0.0f : 0.0f;
    TERN_UNROLL
    for (int q = 0; q < COMBINE_VECS; q++) {
        TERN_UNROLL
        for (int c = 0; c < 8; c++) {
            a->sum[q][c] = none;
        }
    }
    if (!biased) {
        return;
    }
    TERN_UNROLL
    for (int q = 0; q < COMBINE_VECS; q++) {
        uint32_t i = (uint32_t)(q * 512 + lane() * 16);
        TERN_UNROLL
        for (int b = 0; b < 2; b++) {
            if (p->bias[b] && i < chunk_size(s, chunk)) {
                sum_add(a->sum[q], ld_stream_vec16(p->bias[b] + at + i));
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
            st_vec16(to + i, sum_round(a->sum[q]));
        }
    }
}

/* What the loader tells the adder about a step. */
TERN_DEVICE uint64_t note_of(uint32_t rows, int last) { return (uint64_t)rows << 1 | (uint64_t)last; }

/* Where the loader is, and this lane's rows of its token: targets lane, lane + 32, ... in groups. */
enum { PULL_MAX_GROUPS = EP_MAX_RANKS / 32 };
struct loader {
    uint32_t unit, chunk, end, batch;
    uint32_t valid;                     /* targets of the token */
    uint32_t position[PULL_MAX_GROUPS]; /* among the valid ones, in order; none: UINT32_MAX */
    const char *address[PULL_MAX_GROUPS];
    uint32_t arrived; /* of one group: pieces of the target's rank that have come by copy engine */
    int failed;       /* the operation is abandoned: whatever is added is of no use */
    int32_t slot;     /* where rows are pushed: of its target in the unit, asked for one ahead */
};

/* This lane's target in group i, or none. All lanes. */
TERN_DEVICE void loader_add(const struct puller *s, struct loader *l, const int i, struct target g)
{
    uint32_t hits = warp_ballot(g.rank >= 0);
    l->position[i] = g.rank >= 0 ? l->valid + (uint32_t)popc_before(hits, lane()) : UINT32_MAX;
    l->address[i] = g.rank >= 0 ? row_address(s, g) : 0;
    l->valid += (uint32_t)TERN_POPC(hits);
}

/* Slot of this lane's target in unit u, of one group; -1: none. */
TERN_DEVICE int32_t loader_slot(const struct puller *s, uint32_t u)
{
    return u < s->units ? target_slot(&s->map, u / s->p->parts, (uint32_t)lane()) : -1;
}

TERN_DEVICE void loader_begin_unit(const struct puller *s, struct loader *l, const int groups)
{
    struct chunk_range c = chunks_of(s, l->unit);
    l->chunk = c.begin;
    l->end = c.end;
    l->batch = 0;
    l->valid = 0;
    TERN_UNROLL
    for (int i = 0; i < groups; i++) {
        struct target g = {-1, 0};
        if (COMBINE_HAS_PUSH) {
            uint32_t t = l->unit / s->p->parts;
            g = target_in(&s->map, t, (uint32_t)lane(), l->slot);
            l->slot = loader_slot(s, unit_after(s, l->unit));
        } else if (l->unit < s->units) {
            g = target_of(&s->map, l->unit / s->p->parts, (uint32_t)(i * 32 + lane()));
        }
        uint32_t none = 0; /* with more groups, registers are worth more than a look at a word */
        if (l->failed || !await_row(s, g, groups == 1 ? &l->arrived : &none)) {
            l->failed = 1;
            g.rank = -1;
        }
        loader_add(s, l, i, g);
    }
}

/* Starts a batch of the loader's chunk into a stage and moves the loader on, to the next chunk if the batch
 * is the last of its own. All lanes. */
TERN_DEVICE void load_batch(const struct puller *s, struct loader *l, uint32_t stage, const int groups)
{
    const struct combine_args *p = s->p;
    uint32_t bytes = chunk_size(s, l->chunk);
    uint32_t first = l->batch * p->batch_rows;
    uint32_t rows = l->valid - first < p->batch_rows ? l->valid - first : p->batch_rows;
    int last = first + rows == l->valid;
    char *to = s->stages + stage * p->batch_rows * p->chunk_bytes;
    if (lane() == 0) {
        s->bars[p->num_stages + stage] = note_of(rows, last);
        mbar_expect(s->bars + stage, rows * bytes);
    }
    TERN_UNROLL
    for (int i = 0; i < groups; i++) {
        uint32_t n = l->position[i] - first;
        if (n < rows) {
            bulk_load(to + n * p->chunk_bytes, l->address[i] + l->chunk * p->chunk_bytes, bytes,
                      s->bars + stage);
        }
    }
    l->batch = last ? 0 : l->batch + 1;
    l->chunk += (uint32_t)last;
}

/* The next step of the loader's units; 0 if there is none. All lanes. */
TERN_DEVICE uint32_t load_step(const struct puller *s, struct loader *l, uint32_t stage, const int groups)
{
    if (l->unit >= s->units) {
        return 0;
    }
    load_batch(s, l, stage, groups);
    if (l->chunk == l->end) {
        l->unit = unit_after(s, l->unit);
        loader_begin_unit(s, l, groups);
    }
    return 1;
}

/* A row's chunk of so many bytes in shared memory, from this lane's on. All of it is on its way before the
 * first is added; what is behind it are zeros, which are written nowhere. whole: COMBINE_PIECE bytes. */
TERN_DEVICE void add_row(struct accumulator *a, const char *from, uint32_t bytes, const int whole)
{
    const struct vec16 none = {{0, 0, 0, 0}};
    struct vec16 row[COMBINE_VECS];
    TERN_UNROLL
    for (int q = 0; q < COMBINE_VECS; q++) {
        row[q] = none;
        if (whole || (uint32_t)(q * 512 + lane() * 16) < bytes) {
            row[q] = ld_vec16(from + q * 512);
        }
    }
    TERN_UNROLL
    for (int q = 0; q < COMBINE_VECS; q++) {
        sum_add(a->sum[q], row[q]);
    }
}

TERN_DEVICE void add_rows(const struct puller *s, struct accumulator *a, uint32_t rows, uint32_t bytes,
                          uint32_t stage)
{
    const struct combine_args *p = s->p;
    const char *from = s->stages + stage * p->batch_rows * p->chunk_bytes + lane() * 16;
    TERN_ROLLED
    for (uint32_t r = 0; r < rows && bytes == COMBINE_PIECE; r++) {
        add_row(a, from, bytes, 1);
        from += COMBINE_PIECE;
    }
    TERN_ROLLED
    for (uint32_t r = 0; r < rows && bytes != COMBINE_PIECE; r++) {
        add_row(a, from, bytes, 0);
        from += p->chunk_bytes;
    }
}

/* The adder's step: until its rows have come, and adds them. 1 if they are the chunk's last. All lanes. */
TERN_DEVICE int add_stage(const struct puller *s, struct accumulator *a, uint32_t bytes, uint32_t stage,
                          uint32_t parity)
{
    while (!mbar_test(s->bars + stage, parity)) {
        spin();
    }
    sync_warp();
    uint64_t note = s->bars[s->p->num_stages + stage];
    add_rows(s, a, (uint32_t)(note >> 1), bytes, stage);
    return (int)(note & 1);
}

/* The adder is done with its stage and goes on to the next. All lanes. */
TERN_DEVICE void pass_stage(const struct puller *s, uint32_t *stage, uint32_t *parity)
{
    /* These reads of the stage and its note come before what the loader puts there next. */
    fence_proxy_async_shared();
    sync_warp();
    *stage = *stage == s->p->num_stages - 1 ? 0 : *stage + 1;
    *parity ^= *stage == 0;
}

/* All lanes. */
TERN_DEVICE void puller_init_bars(const struct puller *s)
{
    if (lane() == 0) {
        for (uint32_t i = 0; i < s->p->num_stages; i++) {
            mbar_init(s->bars + i, 1);
        }
        fence_mbar_init();
    }
    sync_warp();
}

/* 0 if the operation is abandoned. */
TERN_DEVICE int pull_bulk(const struct puller *s, const int groups)
{
    const struct combine_args *p = s->p;
    uint32_t ahead = p->num_stages - 1;
    puller_init_bars(s);
    struct loader l;
    l.unit = first_of(s);
    l.failed = 0;
    l.arrived = 0;
    l.slot = COMBINE_HAS_PUSH ? loader_slot(s, l.unit) : -1;
    loader_begin_unit(s, &l, groups);
    for (uint32_t n = 0; n < ahead; n++) {
        load_step(s, &l, n, groups);
    }
    struct accumulator a;
    uint32_t stage = 0, parity = 0;
    int first = 1;
    for (uint32_t u = first_of(s); u < s->units; u = unit_after(s, u)) {
        struct chunk_range c = chunks_of(s, u);
        uint32_t t = u / p->parts;
        for (uint32_t chunk = c.begin; chunk < c.end; chunk += (uint32_t)first) {
            load_step(s, &l, stage == 0 ? ahead : stage - 1, groups);
            if (first) {
                begin_sum(s, &a, t, chunk);
            }
            first = add_stage(s, &a, chunk_size(s, chunk), stage, parity);
            if (first) {
                end_sum(s, &a, t, chunk);
            }
            pass_stage(s, &stage, &parity);
        }
    }
    return !l.failed;
}

/* 0 if the operation is abandoned. */
TERN_DEVICE int pull_plain(const struct puller *s)
{
    const struct combine_args *p = s->p;
    uint64_t units = (uint64_t)p->num_tokens * s->chunks;
    int failed = 0;
    for (uint64_t unit = first_of(s); unit < units; unit += gap_of(s)) {
        uint32_t t = (uint32_t)(unit / s->chunks);
        uint32_t chunk = (uint32_t)(unit % s->chunks);
        struct accumulator a;
        begin_sum(s, &a, t, chunk);
        for (uint32_t i0 = 0; i0 < s->map.num_targets; i0 += 32) {
            struct target g = target_of(&s->map, t, i0 + (uint32_t)lane());
            uint32_t arrived = 0;
            if (failed || !await_row(s, g, &arrived)) {
                failed = 1;
                g.rank = -1;
            }
            sync_warp();
            for (uint32_t left = warp_ballot(g.rank >= 0); left; left &= left - 1) {
                int src = TERN_FFS(left) - 1;
                struct target one;
                one.rank = (int)shfl_u32((uint32_t)g.rank, src);
                one.row = (int64_t)shfl_u64((uint64_t)g.row, src);
                const char *from = row_address(s, one) + (size_t)chunk * p->chunk_bytes;
                TERN_UNROLL
                for (int q = 0; q < COMBINE_VECS; q++) {
                    uint32_t i = (uint32_t)(q * 512 + lane() * 16);
                    if (i < chunk_size(s, chunk)) {
                        sum_add(a.sum[q], ld_stream_vec16(from + i));
                    }
                }
            }
        }
        end_sum(s, &a, t, chunk);
    }
    return !failed;
}

#endif
