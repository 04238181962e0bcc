/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine across domains: lines of warps that have one thing to do each. A block has some, which have nothing
 * to do with each other: what a loader or a closer does for one item takes microseconds, most of which it
 * waits for memory, and so others are on their way meanwhile.
 *
 *   loader   one warp: posts items, the sums that the block makes one after the other, and starts a bulk copy
 *            for each row of an item, whole, or a chunk of it after the other if it is long
 *   adders   each has a piece of a chunk's columns and adds it of every row, in order; what it has at the
 *            end of an item it writes
 *   closer   one warp: weights, as many items' at once as its lanes can take, and what follows an item
 *   poster   one warp of the block, for all lines: hands pieces to the network (rail_poster.h)
 *
 * What an item is, the two kinds of block say: line_forward.h, line_home.h. A row goes through a slot,
 * an item through a place; both are rings in shared memory with a barrier for each way round:
 *
 *   full[slot]     the loader, and the bytes        ->  adders
 *   empty[slot]    every adder has read it          ->  loader
 *   posted[place]  the loader: the item is written  ->  closer
 *   done[place]    every adder has written its part ->  closer
 *   closed[place]                                   ->  loader
 *
 * So a line has as many rows on their way as it has slots, whoever they belong to, and nobody waits for what
 * it does not need: not for the next piece of a stream, not for weights. Only the loader waits for other
 * ranks; the closer may wait for the poster, and that for room in a queue. Behind the last item, or when the
 * operation is abandoned, come a step and an item that say so.
 *
 * Shared memory: | place table | line 0 | line 1 | ... | poster | arguments |; a line: | slots | full, empty,
 * posted, done, closed, failed | steps | items |. */
#ifndef TERN_COMBINE_LINE_H
#define TERN_COMBINE_LINE_H

#include "kernels/combine_mix.h"
#include "kernels/rail_poster.h"

/* What a step is, in bits. */
enum {
    LINE_OWN = 1,     /* a row of this domain */
    LINE_TURN = 2,    /* home: then no more come of this domain, and the sum of all domains begins */
    LINE_FOLD = 4,    /* then this domain's is added to that */
    LINE_LETTER = 8,  /* then the sum of another domain */
    LINE_BEHIND = 16, /* then that of this domain, if it is the last one */
    LINE_LAST = 32,   /* of its item's chunk */
    LINE_OVER = 64    /* no more items */
};

/* A line, as a thread of it sees it. */
struct line {
    struct mixer m;
    struct poster_producer post;
    char *slots;
    uint64_t *full, *empty, *posted, *done, *closed;
    uint32_t *failed; /* an operation of the closer has: there will be no more items */
    struct line_step *steps;
    struct line_item *items;
    uint32_t slots_bytes;    /* a slot's */
    uint32_t chunks;         /* of an item, of slots_bytes */
    uint32_t adders, worker; /* this warp's number in the line: an adder's, or then the loader, the closer */
    uint32_t slot, slot_lap; /* the next one; how often all have been */
    uint32_t place, place_lap; /* likewise */
};

/* All threads of the block may call; the last warp is the poster, and of no line. home: not one that
 * forwards. */
TERN_DEVICE struct line line_of(const struct combine_inter_args *p, const struct op_table *table,
                                uint64_t epoch, int home)
{
    struct line l;
    uint32_t slots = p->c.num_stages, number = (uint32_t)warp() / (p->c.num_pullers + 2);
    struct poster poster = poster_at(shared_memory() + p->poster_offset, p->num_lines);
    char *shared = shared_memory() + p->c.table_bytes + number * p->line_bytes;
    l.m = mixer_of(p, table, epoch, 1, home);
    l.adders = p->c.num_pullers;
    l.worker = (uint32_t)warp() % (l.adders + 2);
    l.m.s.block = home ? l.m.s.block + number * l.m.s.blocks /* few items are spread over the blocks */
                       : rail_first_stream(&p->rail, l.m.s.block, l.m.s.blocks, number, p->num_lines);
    l.m.s.blocks *= p->num_lines;
    l.m.s.run = mix_run(p, l.m.s.blocks);
    l.slots_bytes = l.adders * p->c.chunk_bytes;
    l.chunks = (p->c.row_bytes + l.slots_bytes - 1) / l.slots_bytes;
    l.slots = shared;
    l.full = (uint64_t *)(void *)(shared + p->bars_offset);
    l.empty = l.full + slots;
    l.posted = l.empty + slots;
    l.done = l.posted + LINE_ITEMS;
    l.closed = l.done + LINE_ITEMS;
    l.failed = (uint32_t *)(void *)(l.closed + LINE_ITEMS);
    l.steps = (struct line_step *)(void *)(l.failed + 2);
    l.items = (struct line_item *)(void *)(l.steps + slots);
    l.slot = l.slot_lap = l.place = l.place_lap = 0;
    l.post = poster_producer_of(&poster, number);
    return l;
}

TERN_DEVICE int line_is_poster(const struct line *l)
{
    return (uint32_t)warp() == l->m.p->num_lines * (l->adders + 2);
}

/* All threads; then they synchronise. again: the line has been in use, and nobody has it any more. */
TERN_DEVICE void line_init(const struct line *l, int again)
{
    const uint32_t slots = l->m.p->c.num_stages;
    if (lane() != 0 || l->worker != 0) {
        return;
    }
    if (line_is_poster(l)) {
        poster_init(&l->post.to);
        return;
    }
    for (uint32_t i = 0; again && i < 2 * slots + 3 * LINE_ITEMS; i++) {
        mbar_inval(l->full + i);
    }
    for (uint32_t i = 0; i < slots; i++) {
        mbar_init(l->full + i, 1);
        mbar_init(l->empty + i, l->adders);
    }
    for (uint32_t i = 0; i < LINE_ITEMS; i++) {
        mbar_init(l->posted + i, 1);
        mbar_init(l->done + i, l->adders);
        mbar_init(l->closed + i, 1);
    }
    *l->failed = 0;
    fence_mbar_init();
}

TERN_DEVICE void line_await(uint64_t *bar, uint32_t lap)
{
    while (!mbar_test(bar, lap & 1)) {
        spin();
    }
}

/* One thread, with what its warp has done synchronised. */
TERN_DEVICE void line_arrive(uint64_t *bar) { mbar_expect(bar, 0); }

TERN_DEVICE void line_next_place(struct line *l)
{
    l->place = l->place + 1 == LINE_ITEMS ? 0 : l->place + 1;
    l->place_lap += l->place == 0;
}

TERN_DEVICE void line_pass(struct line *l, uint32_t num)
{
    l->slot += num;
    l->slot_lap += l->slot >= l->m.p->c.num_stages;
    l->slot -= l->slot >= l->m.p->c.num_stages ? l->m.p->c.num_stages : 0;
}

/* ---- The loader ---- */

/* Until the next place is free. All lanes. */
TERN_DEVICE struct line_item *line_begin_item(struct line *l)
{
    if (l->place_lap > 0) {
        line_await(l->closed + l->place, l->place_lap - 1);
    }
    sync_warp();
    return l->items + l->place;
}

/* The item that the lanes have written is there for the closer. All lanes. */
TERN_DEVICE void line_post(struct line *l)
{
    sync_warp();
    if (lane() == 0) {
        line_arrive(l->posted + l->place);
    }
    line_next_place(l);
}

/* Lanes that have a step take the next slots, in order, and start their copies: `bytes` from `from`, or no
 * copy. All lanes. */
TERN_DEVICE void line_load(struct line *l, int has, const char *from, uint32_t bytes, uint32_t chunk,
                           uint32_t flags)
{
    uint32_t which = warp_ballot(has), num = (uint32_t)TERN_POPC(which), slots = l->m.p->c.num_stages;
    uint32_t mine = (uint32_t)popc_before(which, lane());
    TERN_ROLLED
    for (uint32_t first = 0; first < num; first += slots) {
        if (has && mine - first < slots) {
            uint32_t slot = l->slot + mine - first, lap = l->slot_lap;
            lap += slot >= slots;
            slot -= slot >= slots ? slots : 0;
            if (lap > 0) {
                line_await(l->empty + slot, lap - 1);
            }
            struct line_step step = {l->place, chunk, flags, 0};
            l->steps[slot] = step;
            mbar_expect(l->full + slot, bytes);
            if (bytes != 0) {
                bulk_load(l->slots + slot * l->slots_bytes, from, bytes, l->full + slot);
            }
        }
        sync_warp();
        line_pass(l, num - first < slots ? num - first : slots);
    }
}

/* Bytes of a chunk of a row. */
TERN_DEVICE uint32_t line_bytes(const struct line *l, uint32_t chunk)
{
    uint32_t left = l->m.p->c.row_bytes - chunk * l->slots_bytes;
    return left < l->slots_bytes ? left : l->slots_bytes;
}

/* Where the weights of an item's row lie that a lane has, for the closer; none: NULL. */
TERN_DEVICE const float *line_weights_at(const struct line *l, struct target g)
{
    const struct place *from = l->m.s.table.places + COMBINE_WEIGHTS * l->m.p->c.f.num_ranks;
    return g.rank >= 0 && from[g.rank].base
               ? (const float *)(const void *)(from[g.rank].base + g.row * from[g.rank].stride)
               : 0;
}

/* Nothing more comes. All lanes. */
TERN_DEVICE void line_end(struct line *l)
{
    struct line_item *item = line_begin_item(l);
    line_load(l, lane() == 0, 0, 0, 0, LINE_OVER);
    if (lane() == 0) {
        item->over = 1;
    }
    line_post(l);
}

/* Whether the closer has failed: there is no use in more. All lanes. */
TERN_DEVICE int line_has_failed(const struct line *l)
{
    return warp_any(lane() == 0 && atom_add_cta_u32(l->failed, 0) != 0);
}

/* ---- Adders ---- */

/* This warp's part of the row in a slot. All lanes. */
TERN_DEVICE void line_add_row(const struct line *l, struct accumulator *a, uint32_t bytes)
{
    const char *from = l->slots + l->slot * l->slots_bytes + l->worker * l->m.p->c.chunk_bytes;
    add_row(a, from + lane() * 16, bytes, 0);
}

/* What an adder has at hand. The rows of this domain are added before any letter, so that one sum in FP32 is
 * under way at a time; rounded, as it is added, the first takes half the registers. */
struct line_sum {
    struct accumulator sum;
    struct vec16 own[COMBINE_VECS]; /* home: this domain's, behind LINE_TURN */
};

TERN_DEVICE void line_turn(const struct line *l, struct line_sum *s, uint32_t token, uint32_t chunk)
{
    TERN_UNROLL
    for (int q = 0; q < COMBINE_VECS; q++) {
        s->own[q] = sum_round(s->sum.sum[q]);
    }
    begin_sum(&l->m.s, &s->sum, token, chunk);
}

TERN_DEVICE void line_fold(struct line_sum *s)
{
    TERN_UNROLL
    for (int q = 0; q < COMBINE_VECS; q++) {
        sum_add(s->sum.sum[q], s->own[q]);
    }
}

/* This warp's part of an item's sum. `chunk`: of chunk_bytes. All lanes. */
TERN_DEVICE void line_write(const struct line *l, const struct accumulator *a, const struct line_item *item,
                            uint32_t chunk, const int home)
{
    if (home) {
        end_sum(&l->m.s, a, item->n.token, chunk);
        return;
    }
    TERN_UNROLL
    for (int q = 0; q < COMBINE_VECS; q++) {
        uint32_t i = (uint32_t)(q * 512 + lane() * 16);
        if (i < chunk_size(&l->m.s, chunk)) {
            st_vec16(item->n.at + (size_t)chunk * l->m.p->c.chunk_bytes + i, sum_round(a->sum[q]));
        }
    }
}

/* All lanes of an adder, to the end. */
TERN_DEVICE void line_add(struct line *l, const int home)
{
    struct line_sum s;
    mix_begin(&s.sum);
    for (;;) {
        line_await(l->full + l->slot, l->slot_lap);
        sync_warp();
        struct line_step step = l->steps[l->slot];
        if ((step.flags & LINE_OVER) != 0) {
            return;
        }
        const struct line_item *item = l->items + step.place;
        uint32_t chunk = step.chunk * l->adders + l->worker;
        uint32_t bytes = chunk < l->m.s.chunks ? chunk_size(&l->m.s, chunk) : 0;
        if ((step.flags & LINE_OWN) != 0) {
            line_add_row(l, &s.sum, bytes);
        }
        if (home && (step.flags & LINE_TURN) != 0 && bytes != 0) {
            line_turn(l, &s, item->n.token, chunk);
        }
        if (home && (step.flags & LINE_FOLD) != 0) {
            line_fold(&s);
        }
        if (home && (step.flags & LINE_LETTER) != 0) {
            line_add_row(l, &s.sum, bytes);
        }
        if (home && (step.flags & LINE_BEHIND) != 0) {
            line_fold(&s);
        }
        /* These reads of the slot and its step come before what is put there next. */
        fence_proxy_async_shared();
        sync_warp();
        if (lane() == 0) {
            line_arrive(l->empty + l->slot);
        }
        if ((step.flags & LINE_LAST) != 0) {
            if (bytes != 0) {
                line_write(l, &s.sum, item, chunk, home);
            }
            mix_begin(&s.sum);
            sync_warp();
            if (lane() == 0 && step.chunk + 1 == l->chunks) {
                line_arrive(l->done + step.place);
            }
        }
        line_pass(l, 1);
    }
}

/* ---- The closer ---- */

/* How many items are posted one behind the other, up to `most`; waits for the first. All lanes. */
TERN_DEVICE uint32_t line_take(const struct line *l, uint32_t most)
{
    uint32_t num = 0, place = l->place, lap = l->place_lap & 1;
    while (num < most && place < LINE_ITEMS) { /* those behind the ring's end are for the next time */
        int is = num == 0                        ? mbar_test(l->posted + place, lap)
                 : l->items[place - 1].over != 0 ? 0
                                                 : mbar_poll(l->posted + place, lap);
        if (!warp_any(!is)) {
            num++;
            place++;
        } else if (num == 0) {
            spin();
        } else {
            break;
        }
    }
    sync_warp(); /* what a lane has seen posted, all may read */
    return num;
}

/* Sum of the weights that this domain has for choice k of an item of so many targets, in their order. */
TERN_DEVICE float line_add_weights(const struct line *l, const struct line_item *item, uint32_t k,
                                   uint32_t num_targets)
{
    int one = l->m.p->c.layout != 0; /* row: of each choice its own weight alone */
    uint32_t begin = one ? k : 0, end = one ? k + 1 : num_targets;
    float sum = 0.0f;
    TERN_ROLLED
    for (uint32_t i = begin; i < end; i += WEIGHTS_AT_ONCE) {
        float value[WEIGHTS_AT_ONCE];
        const float *from[WEIGHTS_AT_ONCE];
        TERN_UNROLL
        for (uint32_t x = 0; x < WEIGHTS_AT_ONCE; x++) {
            from[x] = i + x < end ? item->weights[i + x] : 0;
            value[x] = 0.0f;
            if (from[x]) {
                value[x] = from[x][one ? 0 : k];
            }
        }
        TERN_UNROLL
        for (uint32_t x = 0; x < WEIGHTS_AT_ONCE; x++) {
            sum = from[x] ? sum + value[x] : sum;
        }
    }
    return sum;
}

/* Until the item is done. All lanes. */
TERN_DEVICE struct line_item *line_await_done(const struct line *l)
{
    line_await(l->done + l->place, l->place_lap);
    sync_warp();
    return l->items + l->place;
}

/* The item's place is free. ok: what followed it went well. All lanes. */
TERN_DEVICE void line_close(struct line *l, int ok)
{
    sync_warp(); /* all lanes have read it */
    if (lane() == 0) {
        if (!ok) {
            atom_add_cta_u32(l->failed, 1);
        }
        line_arrive(l->closed + l->place);
    }
    line_next_place(l);
}

#endif
