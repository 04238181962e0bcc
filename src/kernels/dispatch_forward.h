/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch across domains, blocks that forward. The warps of a block share its streams, and take the
 * messages that have arrived one by one: a stream's last chunk is then not one warp's, and no warp has more
 * streams than another. Who takes a message raises a word in shared memory, `taken`; who reads the last one
 * of a chunk that is not kept says that it may go back (rail_home.h), which the block's poster sees to. A
 * lane looks after a stream; with more streams than a block has lanes in a warp its warps are in teams, each
 * with streams of its own.
 *
 * A warp that has messages in its stages does not wait for others, and takes a message only when a stage is
 * free: so what has been taken is read, and given back or kept, whatever comes. */
#ifndef TERN_DISPATCH_FORWARD_H
#define TERN_DISPATCH_FORWARD_H

#include "kernels/inter_sender.h"

/* ---- Whose messages are ---- */

/* Whether the next message of this lane's stream that no warp has taken is here; looks: as far as the word
 * says, not as it said last. */
TERN_DEVICE int forward_ready(const struct rail_args *p, struct rail_hand *h, uint32_t *taken,
                              const int looks)
{
    if (h->s.num == 0) {
        return 0;
    }
    h->taken = atom_add_cta_u32(taken, 0);
    if (h->taken == h->s.num) {
        return 0;
    }
    h->wanted = rail_end(p, &h->s, h->taken + 1);
    if (looks && h->seen < h->wanted) {
        h->seen = RAIL_LOAD(h->word);
    }
    return h->seen >= h->wanted;
}

/* All lanes: the message that lane src has seen is this warp's. 0: another one was faster. */
TERN_DEVICE int forward_claim(struct inter_sender *w, int src, struct stage_note *n)
{
    const struct rail_args *p = &w->p->rail;
    struct rail_hand *h = &w->line.hand;
    uint32_t j = h->taken, offset = 0, kept = 0;
    int mine = 0;
    if (lane() == src) {
        mine = atom_cas_cta_u32(w->taken, j, j + 1) == j;
        offset = rail_offset(p, &h->s, j);
        kept = (uint32_t)rail_is_kept(p, &h->s, j / p->chunk);
    }
    h->turn = (uint32_t)(src + 1) & 31;
    if (!shfl_u32((uint32_t)mine, src)) {
        return 0;
    }
    n->stream = shfl_u32(h->stream, src);
    n->place = shfl_u32(j, src);
    n->num = shfl_u32(h->s.num, src);
    n->kept = shfl_u32(kept, src);
    n->at = rail_arrived_ring(p, n->stream) + shfl_u32(offset, src);
    n->number = rail_number(p, n->stream % p->num_channels, n->place);
    return 1;
}

/* All lanes: the next message of the team's streams, as rail_take. */
TERN_DEVICE enum rail_found forward_take(struct inter_sender *w, int waits, struct stage_note *n)
{
    const struct rail *r = &w->line.rail;
    struct rail_hand *h = &w->line.hand;
    const struct op_patience anew = {0};
    struct op_patience patience = anew;
    for (;;) {
        const uint32_t was = h->taken;
        /* To look is a way to memory: while there are messages that are known to be here, nobody does. */
        uint32_t ready = warp_ballot(forward_ready(r->p, h, w->taken, 0));
        ready = ready != 0 ? ready : warp_ballot(forward_ready(r->p, h, w->taken, 1));
        if (ready != 0) {
            uint32_t later = ready >> h->turn << h->turn;
            sync_warp(); /* what the lane has seen through the word, all may read */
            if (forward_claim(w, TERN_FFS(later != 0 ? later : ready) - 1, n)) {
                op_waited(r->f, &patience, 0, (int)(ready >> lane() & 1));
                return RAIL_PIECE;
            }
            continue;
        }
        if (!waits && warp_any(h->taken < h->s.num)) {
            return RAIL_NOTHING;
        }
        if (warp_any(h->taken != was)) { /* what another warp took has come all the same */
            op_waited(r->f, &patience, 0, (int)(h->taken != was));
            patience = anew;
        }
        if (!warp_any(h->taken < h->s.num)) {
            return RAIL_OVER;
        }
        if (!rail_wait_on(r, h, &patience)) {
            return RAIL_FAILED;
        }
    }
}

/* With the last message of a chunk the chunk's room goes back, unless it is kept. before: lane 0's, how many
 * of the chunk had been read before. 0: abandon. All lanes. */
TERN_DEVICE int forward_release(struct inter_sender *w, const struct stage_note *n, uint32_t before,
                                const int bulk)
{
    const struct rail_args *p = &w->p->rail;
    const struct rail_piece piece = {n->stream, n->place, n->num, 0, 0, 0};
    before = shfl_u32(before, 0);
    if (n->kept || before + 1 < rail_chunk_messages(p, n->num, n->place / p->chunk)) {
        return 1;
    }
    if (bulk) {
        return poster_leave(&w->post, 0, POSTER_RELEASE, &piece);
    }
    struct rail_letter l = {rail_stream_of(p, p->taken[n->stream], n->num), n->stream, n->place};
    return !warp_any(lane() == 0 && !rail_release(&w->line.rail, &l, 1, 0));
}

/* ---- Where they go ---- */

/* What the forward block says of a message. It is asked for while the message before goes to its targets, or,
 * if there is none, behind the bulk copy that brings the message itself, as it is two ways to memory, the one
 * behind the other. All lanes. */
TERN_DEVICE struct forward_said forward_ask(const struct inter_sender *w, const struct stage_note *n)
{
    const struct dispatch_args *d = &w->p->d;
    struct forward_said said;
    said.e = inter_entry_of(&w->p->far, (uint32_t)rail_far_end(&w->p->rail, n->stream), n->number, d->layout,
                            d->topk, inter_keys(&w->s.map, d->f.num_ranks));
    said.expert = d->layout == 0 && (uint32_t)lane() < d->topk ? said.e.experts[lane()] : -1;
    /* So many targets an entry has room for: read before it is known how many there are. */
    uint32_t room = (w->p->far.entry_ints - (uint32_t)(sizeof(struct forward_entry) / 4) - d->topk) / 2;
    const struct forward_target none = {0, -1};
    said.t = none;
    if ((uint32_t)lane() < room) {
        said.t = said.e.targets[lane()];
    }
    said.base = 0;
    return said;
}

/* Starts bringing the next message that has arrived into a stage. All lanes. */
TERN_DEVICE enum rail_found forward_load(struct inter_sender *w, uint32_t stage, int waits, const int bulk)
{
    struct stage_note n = {0};
    enum rail_found found = forward_take(w, waits, &n);
    if (found != RAIL_PIECE) {
        return found;
    }
    if (lane() == 0) {
        w->notes[stage] = n;
    }
    if (!bulk) {
        warp_copy(inter_stage(w, stage), n.at, w->p->rail.stride);
    } else if (lane() == 0) {
        RAIL_PROXY_FENCE();
        mbar_expect(w->s.bars + stage, w->p->rail.stride);
        bulk_load(inter_stage(w, stage), n.at, w->p->rail.stride, w->s.bars + stage);
    }
    if (w->loaded == w->stored) {
        w->said = forward_ask(w, &n);
        w->asked = FORWARD_ASKED;
    }
    return RAIL_PIECE;
}

/* The second way, of what has come on the first. All lanes. */
TERN_DEVICE void forward_ask_bases(struct forward_said *said)
{
    said->t.slot = (uint32_t)lane() < said->e.num ? said->t.slot : -1;
    if (said->t.slot >= 0) {
        said->base = said->e.bases[said->t.key];
    }
}

/* Rank layout: ids, weights and source of the row of one target. All lanes. */
TERN_DEVICE void forward_choices(const struct inter_sender *w, const struct forward_said *said,
                                 const char *at, int has_weights, struct target g)
{
    const struct dispatch_args *d = &w->p->d;
    const float *weight = (const float *)(const void *)(at + w->p->weights_offset);
    struct place ids = w->s.table->places[EP_COL_IDS * d->f.num_ranks + g.rank];
    struct place weights = w->s.table->places[EP_COL_WEIGHTS * d->f.num_ranks + g.rank];
    int32_t first = g.rank * (int32_t)w->s.map.experts_a_rank;
    int32_t end = first + (int32_t)w->s.map.experts_a_rank;
    for (uint32_t k = (uint32_t)lane(); k < d->topk && (ids.base || weights.base); k += 32) {
        int32_t id = k < 32 ? said->expert : said->e.experts[k];
        int local = id >= first && id < end;
        char *to = ids.base + g.row * ids.stride + (uint64_t)k * d->idx_bytes;
        if (ids.base && d->idx_bytes == 8) {
            *(int64_t *)(void *)to = local ? id - first : -1;
        } else if (ids.base) {
            *(int32_t *)(void *)to = local ? id - first : -1;
        }
        if (weights.base && has_weights) {
            ((float *)(void *)(weights.base + g.row * weights.stride))[k] = local ? weight[k] : 0.0f;
        }
    }
}

/* The source of this lane's target i, and in expert layout its weight. */
TERN_DEVICE void forward_source(const struct inter_sender *w, const struct inter_entry *e, const char *at,
                                int has_weights, struct target g, uint32_t i, uint64_t rank)
{
    const struct dispatch_args *d = &w->p->d;
    struct place source = w->s.table->places[EP_COL_SOURCE * d->f.num_ranks + g.rank];
    struct place weights = w->s.table->places[EP_COL_WEIGHTS * d->f.num_ranks + g.rank];
    if (source.base) {
        *(uint64_t *)(void *)(source.base + g.row * source.stride) =
            (uint64_t)(uint32_t)e->token << 32 | rank;
    }
    if (d->layout != 0 && weights.base && has_weights) {
        *(float *)(void *)(weights.base + g.row * weights.stride) =
            ((const float *)(const void *)(at + w->p->weights_offset))[i];
    }
}

/* 0 if this lane's target wants weights and the source was given none. */
TERN_DEVICE int forward_has_weights(const struct inter_sender *w, int has_weights, struct target g, int e)
{
    const struct dispatch_args *d = &w->p->d;
    if (g.rank < 0 || has_weights || !w->s.table->places[EP_COL_WEIGHTS * d->f.num_ranks + g.rank].base) {
        return 1;
    }
    int source = rail_note(&d->f, e); /* as if it had looked */
    struct op_note note = {
        OP_STATUS_MISMATCH, OP_AWAIT_WEIGHTS, g.rank, source, w->line.rail.epoch, 0, 0, 0, 0, 0};
    op_fault(&d->f, &note);
    return 0;
}

/* To targets i0 .. i0 + 31. 0: abandon. All lanes. */
TERN_DEVICE int forward_group(const struct inter_sender *w, const struct forward_said *said, const char *at,
                              uint32_t i0, int from, const int bulk)
{
    const struct inter_entry *e = &said->e;
    const struct rail_trailer *t = (const struct rail_trailer *)(const void *)(at + w->p->trailer_offset);
    uint64_t rank = (uint64_t)rail_peer(&w->p->d.f, from);
    int has_weights = (int)t->has_weights;
    struct target g = i0 == 0 ? inter_target_at(&w->s.map, said->t, said->base)
                              : inter_target(e, &w->s.map, i0 + (uint32_t)lane());
    if (warp_any(!forward_has_weights(w, has_weights, g, from))) {
        return 0;
    }
    if (g.rank >= 0) {
        if (bulk) {
            send_whole(&w->s, at, g);
        }
        forward_source(w, e, at, has_weights, g, i0 + (uint32_t)lane(), rank);
    }
    int singly = !bulk || w->s.odd || w->p->d.layout == 0;
    for (uint32_t left = singly ? warp_ballot(g.rank >= 0) : 0; left; left &= left - 1) {
        int src = TERN_FFS(left) - 1;
        struct target one;
        one.rank = (int)shfl_u32((uint32_t)g.rank, src);
        one.row = (int64_t)shfl_u64((uint64_t)g.row, src);
        if (!bulk || w->s.odd) {
            send_odd(&w->s, at, one, bulk);
        }
        if (w->p->d.layout == 0) {
            forward_choices(w, said, at, has_weights, one);
        }
    }
    return 1;
}

/* A message that is in its stage goes to its targets. 0: abandon. All lanes. */
TERN_DEVICE int forward_store(struct inter_sender *w, uint32_t stage, uint32_t parity, const int bulk)
{
    const char *at = inter_stage(w, stage);
    sync_warp();
    struct stage_note n = w->notes[stage];
    struct forward_said said, next;
    const int goes_on = w->loaded - w->stored > 1;
    said = w->said;
    if (w->asked == FORWARD_ASKED) {
        forward_ask_bases(&said);
    }
    while (bulk && !mbar_test(w->s.bars + stage, parity)) {
        spin();
    }
    next = said;
    if (goes_on) {
        struct stage_note behind = w->notes[(w->stored + 1) % w->num_stages];
        next = forward_ask(w, &behind);
    }
    uint32_t before = lane() == 0 && !n.kept ? rail_count_in_block(&w->p->rail, n.stream, n.place) : 0;
    int from = rail_far_end(&w->p->rail, n.stream), ok = 1;
    if (lane() == 0) {
        ok = inter_matches(&w->line.rail,
                           (const struct rail_trailer *)(const void *)(at + w->p->trailer_offset), from,
                           n.number);
    }
    ok = !warp_any(!ok);
    for (uint32_t i0 = 0; ok && i0 < said.e.num; i0 += 32) {
        ok = forward_group(w, &said, at, i0, from, bulk);
    }
    if (bulk) {
        bulk_commit();
    }
    if (goes_on) {
        forward_ask_bases(&next);
    }
    w->said = next;
    w->asked = FORWARD_HAS_BASES;
    return forward_release(w, &n, before, bulk) && ok;
}

#endif
