/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine, "push": some blocks bring this rank's rows to their tokens' ranks, into staging there, and the
 * others add what has come (combine_pull.h). A link takes more of what is pushed than of what is pulled, as
 * no request has to go the other way first, and rows need be in no window.
 *
 * In rank layout the rows that a rank holds for another are one run, in the order of that rank's tokens. They
 * go in units of PUSH_ROWS rows, to the peers in turn, so that ranks send to different ones at any time and
 * rows come about in the order in which they are added. Once a unit's copies have been written, its word in
 * the peer's window gets the epoch: a warp of the block does that for the others, as a fence takes as long as
 * some copies, and one is enough for all units that are there by then.
 *
 *   pusher, one lane              teller, a lane a pusher           adder, in the peer
 *   copies of a unit; bulk_wait
 *   its word's place into the box
 *   box.left + 1, acq_rel         box.left; fence, word = epoch     ld.acquire word; copies of its rows
 *                                 box.told + 1
 *
 * Units are claimed by who has room, and block 0 pushes. So nobody waits for a block of a peer that has no
 * processor yet: the peer's others bring what it would have.
 *
 * Shared memory of a block that pushes: | place table | pushers' stages, barriers and notes | boxes | */
#ifndef TERN_COMBINE_PUSH_H
#define TERN_COMBINE_PUSH_H

#define COMBINE_HAS_ENGINE 0
#define COMBINE_HAS_PUSH   1
#include "kernels/combine_weights.h"

enum {
    PUSH_LATE = 6 /* copies that are begun behind a unit before its own are awaited */
};
#define PUSH_OVER 0x80000000u /* in a box: its pusher leaves nothing more */

struct pusher {
    const struct combine_push_args *a;
    char *stages;
    uint64_t *bars;
    struct push_note *notes;
    struct push_box *box;
    uint32_t left;    /* in the box so far */
    int64_t capacity; /* of this rank's rows */
    uint32_t units;   /* of all peers together, as many of each */
    uint32_t claim;   /* asked for one unit ahead */
    const char *from; /* of the unit at hand: the next byte here, and there */
    char *to;
    uint64_t *word;
    uint64_t run;  /* bytes left of rows that lie together */
    uint32_t more; /* rows behind them */
};

/* ---- Who pushes ---- */

/* How many of the blocks before this one push. They are spread among the others, as processors side by side
 * share a way to the link; the first is block 0. */
TERN_DEVICE uint32_t push_blocks_before(const struct combine_push_args *a, uint32_t block)
{
    return (block * a->push_blocks + (uint32_t)nblk() - 1) / (uint32_t)nblk();
}

TERN_DEVICE int push_is_mine(const struct combine_push_args *a)
{
    uint32_t block = (uint32_t)bid();
    return push_blocks_before(a, block + 1) != push_blocks_before(a, block);
}

/* ---- Pushers ---- */

TERN_DEVICE void pusher_ask(struct pusher *s)
{
    s->claim = (uint32_t)atom_add_relaxed_gpu_u64(&s->a->c.f.state->taken, 1);
}

/* This rank's first row for rank d, of those that there are. */
TERN_DEVICE int64_t pusher_row(const struct pusher *s, int d)
{
    int64_t row = s->a->c.route.rank_offsets[d];
    return row < s->capacity ? row : s->capacity;
}

/* One lane of each pusher; peers need not be in. */
TERN_DEVICE struct pusher pusher_of(const struct combine_push_args *a)
{
    const struct combine_args *p = &a->c;
    char *area = shared_memory() + p->table_bytes + (uint32_t)warp() * a->warp_bytes;
    int64_t most = 0;
    struct pusher s = {0};
    s.a = a;
    s.stages = area;
    s.bars = (uint64_t *)(void *)(area + a->num_stages * a->stage_bytes);
    s.notes = (struct push_note *)(void *)(s.bars + a->num_stages);
    s.box = (struct push_box *)(void *)(shared_memory() + a->boxes_offset) + warp();
    s.capacity = (int64_t)p->f.message.num_rows;
    pusher_ask(&s);
    for (int d = 0; d < p->f.num_ranks; d++) {
        int64_t num = pusher_row(&s, d + 1) - pusher_row(&s, d);
        most = d != p->f.rank && num > most ? num : most;
    }
    s.units = (uint32_t)((most + PUSH_ROWS - 1) / PUSH_ROWS) * (uint32_t)(p->f.num_ranks - 1);
    return s;
}

/* The next unit that has rows; 0 if there is none. */
TERN_DEVICE int pusher_take(struct pusher *s)
{
    const struct combine_push_args *a = s->a;
    const struct op_frame *f = &a->c.f;
    uint32_t peers = (uint32_t)f->num_ranks - 1, row_bytes = a->c.row_bytes;
    while (s->claim < s->units) {
        uint32_t unit = s->claim / peers;
        int d = (f->rank + 1 + (int)(s->claim % peers)) % f->num_ranks;
        int64_t slot = (int64_t)unit * PUSH_ROWS, row = pusher_row(s, d) + slot;
        int64_t num = pusher_row(s, d + 1) - row;
        pusher_ask(s);
        if (num > 0) {
            int dense = a->stride == (int64_t)row_bytes;
            char *window = f->ep_bases[d];
            num = num < PUSH_ROWS ? num : PUSH_ROWS;
            s->from = a->rows + row * a->stride;
            s->to =
                window + a->staged_offset + (uint64_t)f->rank * a->area_bytes + (uint64_t)slot * row_bytes;
            s->word =
                (uint64_t *)(void *)(window + a->words_offset) + (uint64_t)f->rank * a->rank_words + unit;
            s->run = (uint64_t)row_bytes * (dense ? (uint64_t)num : 1);
            s->more = dense ? 0 : (uint32_t)num - 1;
            return 1;
        }
    }
    return 0;
}

/* Begins the load of step n; 0 if there is none. */
TERN_DEVICE uint32_t pusher_load(struct pusher *s, uint32_t n)
{
    const struct combine_push_args *a = s->a;
    if (s->run == 0 && !pusher_take(s)) {
        return 0;
    }
    uint32_t stage = n % a->num_stages, bytes = s->run < a->stage_bytes ? (uint32_t)s->run : a->stage_bytes;
    mbar_expect(s->bars + stage, bytes);
    bulk_load(s->stages + stage * a->stage_bytes, s->from, bytes, s->bars + stage);
    s->notes[n % PUSH_NOTES].to = s->to;
    s->notes[n % PUSH_NOTES].bytes = bytes;
    s->from += bytes;
    s->to += bytes;
    s->run -= bytes;
    if (s->run == 0 && s->more != 0) {
        s->more--;
        s->run = a->c.row_bytes;
        s->from += a->stride - (int64_t)a->c.row_bytes;
    }
    s->notes[n % PUSH_NOTES].word = s->run == 0 ? s->word : 0;
    return 1;
}

/* Step n's copy has been written, as have all before it: if it was its unit's last, the teller may know. */
TERN_DEVICE void pusher_leave(struct pusher *s, uint32_t n)
{
    uint64_t *word = s->notes[n % PUSH_NOTES].word;
    if (word) {
        /* Pairs with the teller's: it has read the word that was here. */
        while (s->left - atom_add_acqrel_cta_u32(&s->box->told, 0) >= PUSH_WORDS) {
            spin();
        }
        s->box->words[s->left % PUSH_WORDS] = word;
        s->left++;
        (void)atom_add_acqrel_cta_u32(&s->box->left, 1); /* pairs with push_tell's */
    }
}

/* The same lane, until all units are claimed and its own are where they belong. Step n uses stage
 * n % num_stages; before a stage is loaded anew all copies but the latest have been read from theirs. */
TERN_DEVICE void push_rows(struct pusher *s)
{
    const struct combine_push_args *a = s->a;
    uint32_t loaded = 0, sent = 0, more = 1;
    for (uint32_t i = 0; i < a->num_stages; i++) {
        mbar_init(s->bars + i, 1);
    }
    fence_mbar_init();
    for (;;) {
        while (more && loaded - sent + 2 <= a->num_stages) {
            if (loaded >= a->num_stages) {
                bulk_wait_read(1);
            }
            more = pusher_load(s, loaded);
            loaded += more;
        }
        if (loaded == sent) {
            break;
        }
        uint32_t stage = sent % a->num_stages;
        const struct push_note *note = s->notes + sent % PUSH_NOTES;
        while (!mbar_test(s->bars + stage, sent / a->num_stages & 1)) {
            spin();
        }
        bulk_store(note->to, s->stages + stage * a->stage_bytes, note->bytes);
        bulk_commit();
        sent++;
        if (sent > PUSH_LATE && s->notes[(sent - 1 - PUSH_LATE) % PUSH_NOTES].word) {
            bulk_wait(6); /* PUSH_LATE, which has to be written out */
            pusher_leave(s, sent - 1 - PUSH_LATE);
        }
    }
    bulk_wait(0);
    for (uint32_t n = sent > PUSH_LATE ? sent - PUSH_LATE : 0; n < sent; n++) {
        pusher_leave(s, n);
    }
    (void)atom_add_acqrel_cta_u32(&s->box->left, PUSH_OVER); /* likewise: pairs with push_tell's */
}

/* ---- The teller ---- */

/* One lane of each pusher, before the block synchronises. */
TERN_DEVICE void push_box_init(const struct combine_push_args *a)
{
    struct push_box *box = (struct push_box *)(void *)(shared_memory() + a->boxes_offset) + warp();
    box->left = 0;
    box->told = 0;
}

/* One warp of the block, until all pushers have left their last. */
TERN_DEVICE void push_tell(const struct combine_push_args *a, uint64_t epoch)
{
    int mine = (uint32_t)lane() < a->num_pushers;
    struct push_box *box =
        (struct push_box *)(void *)(shared_memory() + a->boxes_offset) + (mine ? lane() : 0);
    uint32_t told = 0, left = 0;
    while (warp_any(mine && (left & PUSH_OVER) == 0)) {
        left = mine ? atom_add_acqrel_cta_u32(&box->left, 0) : 0; /* pairs with pusher_leave's */
        uint32_t num = (left & ~PUSH_OVER) - told;
        if (num != 0) {
            OP_FENCE(); /* with what the atomics order: pairs with the acquire in await_rows at the peer */
            for (uint32_t i = 0; i < num; i++) {
                OP_STORE_PUSHED(box->words[(told + i) % PUSH_WORDS], epoch);
            }
            told += num;
            (void)atom_add_acqrel_cta_u32(&box->told, num); /* pairs with pusher_leave's look at it */
        }
        sync_warp();
        spin();
    }
}

#endif
