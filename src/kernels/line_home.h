/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine across domains, blocks at home: an item is one of this rank's own tokens, in ascending order. Its
 * rows are those of this domain, which are added apart and rounded, and its letters, the messages that bring
 * the sums of other domains; all sums are added in the order of domains. What follows are its weights, a lane
 * a choice, and that its letters have been read. The loader starts the rows of its domain before it waits for
 * letters. */
#ifndef TERN_LINE_HOME_H
#define TERN_LINE_HOME_H

#include "kernels/combine_line.h"
#include "kernels/take.h"

/* A lane's domain, as the loader knows it: the stream of its last letter, and how far that is known to have
 * come. */
struct home_domain {
    struct rail_letter letter;
    uint64_t seen;
    int knows; /* the two are of a stream */
};

/* The letter that brings message i of this lane's domain; what it has in common with the last is kept. */
TERN_DEVICE void home_letter(const struct line *l, struct home_domain *d, uint32_t i)
{
    const struct combine_inter_args *p = l->m.p;
    uint32_t c = rail_channel(&p->rail, i);
    if (d->knows && d->letter.stream % p->rail.num_channels == c) {
        d->letter.j = rail_place_in_channel(&p->rail, i);
    } else {
        uint32_t e = (uint32_t)lane();
        d->letter = rail_letter_of(&p->rail, rail_index(&p->rail, e), i, (uint32_t)p->far.num_out[e]);
        d->seen = 0;
        d->knows = 1;
    }
}

/* Until it is here; where it lies, 0: the operation is to be abandoned. */
TERN_DEVICE const char *home_await(const struct line *l, struct home_domain *d)
{
    const struct rail_args *p = &l->m.p->rail;
    uint64_t end = rail_end(p, &d->letter.s, d->letter.j + 1);
    if (d->seen < end) {
        d->seen = RAIL_LOAD(p->tails + d->letter.stream);
        if (d->seen < end && !rail_await(&l->m.rail, &d->letter)) {
            return 0;
        }
        RAIL_PROXY_FENCE();
    }
    return rail_letter_at(p, &d->letter);
}

/* A token's rows, in lanes, and how many there are. */
struct home_rows {
    const char *own, *letter;
    uint32_t num_own, own_before, letters; /* letters: which lanes have one */
    int domain;
};

/* Steps of one chunk: of rows of this domain, or of letters. All lanes. */
TERN_DEVICE void home_load_own(struct line *l, const struct home_rows *r, uint32_t chunk)
{
    uint32_t last = r->own_before + 1 != r->num_own ? 0
                    : r->letters != 0               ? LINE_TURN
                                                    : LINE_TURN | LINE_FOLD | LINE_LAST;
    const char *from = r->own ? r->own + (uint64_t)chunk * l->slots_bytes : 0;
    if (r->num_own != 0) {
        line_load(l, r->own != 0, from, line_bytes(l, chunk), chunk, LINE_OWN | last);
    } else if (r->letters == 0) {
        line_load(l, lane() == 0, 0, 0, chunk, LINE_TURN | LINE_LAST);
    }
}

TERN_DEVICE void home_load_letters(struct line *l, const struct home_rows *r, uint32_t chunk)
{
    uint32_t below = r->letters & ((1u << lane()) - 1), above = r->letters >> lane() >> 1;
    uint32_t others = below >> r->domain; /* letters of domains above this one, before the lane's */
    uint32_t flags = LINE_LETTER | (below == 0 && r->num_own == 0 ? LINE_TURN : 0);
    const char *from = r->letter ? r->letter + (uint64_t)chunk * l->slots_bytes : 0;
    if (r->letters == 0) {
        return;
    }
    flags |= lane() > r->domain && others == 0 ? LINE_FOLD : 0;
    flags |= above == 0 ? LINE_LAST : 0;
    flags |= above == 0 && lane() < r->domain ? LINE_BEHIND : 0;
    line_load(l, r->letter != 0, from, line_bytes(l, chunk), chunk, flags);
}

/* One token. 0: abandoned. All lanes of the loader. */
TERN_DEVICE int home_token(struct line *l, struct home_domain *d, uint32_t t)
{
    const struct combine_inter_args *p = l->m.p;
    uint32_t domains = (uint32_t)p->rail.world.num_domains;
    int32_t message =
        (uint32_t)lane() < domains ? p->far.message_of[(uint64_t)t * domains + (uint32_t)lane()] : -1;
    struct target g = target_of(&l->m.s.map, t, (uint32_t)lane());
    struct home_rows r;
    r.own = g.rank >= 0 ? row_address(&l->m.s, g) : 0;
    r.letter = 0;
    r.letters = warp_ballot(message >= 0);
    r.domain = p->rail.world.domain;
    uint32_t own = warp_ballot(r.own != 0);
    r.num_own = (uint32_t)TERN_POPC(own);
    r.own_before = (uint32_t)popc_before(own, lane());
    struct line_item *item = line_begin_item(l);
    if (lane() == 0) {
        item->n.token = t;
        item->over = 0;
    }
    item->message[lane()] = message;
    item->weights[lane()] = line_weights_at(l, g);
    sync_warp();
    home_load_own(l, &r, 0);
    int ok = 1;
    if (message >= 0) {
        home_letter(l, d, (uint32_t)message);
        r.letter = home_await(l, d);
        ok = r.letter != 0;
    }
    item->letter[lane()] = r.letter;
    if (warp_any(!ok)) {
        return 0;
    }
    home_load_letters(l, &r, 0);
    for (uint32_t chunk = 1; chunk < l->chunks; chunk++) {
        home_load_own(l, &r, chunk);
        home_load_letters(l, &r, chunk);
    }
    line_post(l);
    return 1;
}

/* How tokens are cut into runs: `long_runs` of `run` tokens each, then single ones, as many as would be a
 * run for every line, since whoever had a run of the last would have several when the others have none. */
struct home_runs {
    uint32_t run, long_runs, single;
};

TERN_DEVICE uint32_t home_lines(const struct line *l) { return (uint32_t)nblk() * l->m.p->num_lines; }

TERN_DEVICE struct home_runs home_runs_of(const struct line *l)
{
    const uint32_t num = l->m.p->c.num_tokens, run = l->m.s.run, last = home_lines(l) * run;
    struct home_runs r = {run, num > last ? (num - last) / run : 0, 0};
    r.single = num - r.long_runs * run;
    return r;
}

/* The first token of a run. */
TERN_DEVICE uint32_t home_first(const struct home_runs *r, uint32_t run)
{
    return run < r->long_runs ? run * r->run : r->long_runs * r->run + (run - r->long_runs);
}

/* Lines take runs of tokens: one that waits for a letter that is late has what others have done meanwhile
 * behind it, and would be the last. They are taken in ascending order, and so what rail_home.h says of
 * waiting holds. Lines that have forwarded all have none by their number, and are never late. 0: abandoned.
 * All lanes of the loader. */
TERN_DEVICE int home_loads(struct line *l)
{
    const struct puller *s = &l->m.s;
    const struct home_runs r = home_runs_of(l);
    const uint32_t runs = r.long_runs + r.single;
    struct home_domain d = {{{0, 0, 0, 0, 0}, 0, 0}, 0, 0};
    struct taker taker = taker_of(&l->m.p->c.f, s->blocks, 1, runs);
    int ok = 1, joins = !combine_is_home(l->m.p);
    taker.warps = home_lines(l);
    taker.mine = joins ? runs : 1;
    for (uint32_t run = joins ? take_next(&taker) : s->block; ok && run < runs; run = take_next(&taker)) {
        uint32_t t = home_first(&r, run), end = home_first(&r, run + 1);
        for (; ok && t < end; t++) {
            ok = !line_has_failed(l) && home_token(l, &d, t);
        }
    }
    line_end(l);
    return ok;
}

/* ---- The closer ---- */

/* Whether the letters of `num` items are what they should be, a lane a letter. All lanes. */
TERN_DEVICE int home_check(const struct line *l, uint32_t num)
{
    const struct combine_inter_args *p = l->m.p;
    uint32_t domains = (uint32_t)p->rail.world.num_domains;
    int ok = 1;
    for (uint32_t x = (uint32_t)lane(); x < num * domains; x += 32) {
        const struct line_item *item = l->items + l->place + x / domains;
        const char *at = item->letter[x % domains];
        ok &= at == 0 ||
              inter_matches(&l->m.rail, (const struct rail_trailer *)(const void *)(at + p->trailer_offset),
                            (int)(x % domains), (uint32_t)item->message[x % domains]);
    }
    return !warp_any(!ok);
}

/* Weights of `num` tokens. All lanes. */
TERN_DEVICE void home_tails(const struct line *l, uint32_t num)
{
    const struct combine_inter_args *p = l->m.p;
    uint32_t topk = p->c.topk, j = (uint32_t)lane() / topk, k = (uint32_t)lane() % topk;
    if (j >= num) {
        return;
    }
    const struct line_item *item = l->items + l->place + j;
    float own = line_add_weights(l, item, k, l->m.s.map.num_targets), sum = 0.0f;
    for (int e = 0; e < p->rail.world.num_domains; e++) {
        const char *at = item->letter[e];
        if (e == p->rail.world.domain) {
            sum += own;
        } else if (at) {
            sum += ((const float *)(const void *)(at + p->weights_offset))[k];
        }
    }
    p->c.out_weights[(uint64_t)item->n.token * topk + k] = sum;
}

/* A lane's letters of `num` items: `count` of one domain and chunk, of which `message` is one; 0: another
 * lane says these, or there are none. */
struct home_read {
    uint32_t count;
    int32_t message;
    int domain;
};

/* `pair`: of an item and a domain. */
TERN_DEVICE struct home_read home_read_of(const struct line *l, uint32_t num, uint32_t pair)
{
    uint32_t domains = (uint32_t)l->m.p->rail.world.num_domains, chunk = l->m.p->rail.chunk;
    uint32_t mine = pair / domains, e = pair % domains;
    struct home_read r = {0, mine < num ? l->items[l->place + mine].message[e] : -1, (int)e};
    for (uint32_t j = 0; j < num && r.message >= 0; j++) {
        int32_t other = l->items[l->place + j].message[e];
        if (other >= 0 && (uint32_t)other / chunk == (uint32_t)r.message / chunk) {
            r.count++;
            r.message = j < mine ? -1 : r.message; /* the first of them says it */
        }
    }
    r.count = r.message >= 0 ? r.count : 0;
    return r;
}

/* A chunk that is complete then, and not kept, is released by the poster, as that is some ways to memory and
 * back, one after the other. 0: the operation is to be abandoned. All lanes. */
TERN_DEVICE int home_say(struct line *l, const struct home_read *r)
{
    const struct combine_inter_args *p = l->m.p;
    struct rail_piece piece = {0, 0, 0, 0, 0, 0};
    int ok = 1, whole = 0;
    if (r->count != 0) {
        struct rail_letter letter = rail_letter_of(&p->rail, rail_index(&p->rail, (uint32_t)r->domain),
                                                   (uint32_t)r->message, (uint32_t)p->far.num_out[r->domain]);
        whole = !rail_is_kept(&p->rail, &letter.s, letter.j / p->rail.chunk) &&
                rail_complete(&p->rail, &letter, r->count, 1);
        piece.stream = letter.stream;
        piece.first = letter.j;
        piece.num = letter.s.num;
    }
    for (uint32_t left = warp_ballot(whole); left; left &= left - 1) {
        ok &= poster_leave(&l->post, TERN_FFS(left) - 1, POSTER_RELEASE, &piece);
    }
    return ok;
}

/* `num` items are done. 0: as above. All lanes. */
TERN_DEVICE int home_finish(struct line *l, uint32_t num, int ok)
{
    uint32_t pairs = num * (uint32_t)l->m.p->rail.world.num_domains;
    for (uint32_t first = 0; first < pairs; first += 32) {
        struct home_read r = home_read_of(l, num, first + (uint32_t)lane());
        ok = ok && home_say(l, &r);
    }
    for (; num != 0; num--) {
        line_close(l, ok);
    }
    return ok;
}

/* 0: the operation is to be abandoned. All lanes of the closer. */
TERN_DEVICE int home_closes(struct line *l)
{
    const struct combine_inter_args *p = l->m.p;
    int ok = 1;
    for (;;) {
        uint32_t num = line_take(l, 32 / p->c.topk);
        int over = l->items[l->place + num - 1].over;
        num -= (uint32_t)over;
        ok = ok && home_check(l, num);
        if (ok && p->c.out_weights) {
            home_tails(l, num);
        }
        for (uint32_t j = 0; j < num; j++) {
            line_await(l->done + l->place + j, l->place_lap);
        }
        sync_warp();
        ok = home_finish(l, num, ok);
        if (over) {
            return ok;
        }
    }
}

#endif
