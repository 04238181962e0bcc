/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch across domains. A token goes once to each other domain that it has targets in, to this rank's rail
 * peer there, who places it. Blocks have roles:
 *
 *   own         what dispatch does inside a domain, for targets of the own one (dispatch_body.h)
 *   rails       a warp brings a token's payloads into a stage, casts them if asked, adds weights, and copies
 *               the stage into its slot of a ring; a piece of messages leaves together (rail.h). The first
 *               are loaded before all ranks are in
 *   forwarders  a warp brings a message out of the ring that it arrived in into a stage, gives its room back,
 *               and sends it from there to each target's final row, as the forward block says
 *
 * What the warps of a block have for the network, pieces and room, its last warp hands over (rail_poster.h).
 *
 * A message is a stage: payloads, and behind them weights[topk] and a trailer. Loads run ahead of stores by
 * as many stages as there are; a warp that has messages in its stages does not wait for credits or arrivals,
 * so that whoever waits for those messages gets them. All blocks run at once.
 *
 * Shared memory is as inside a domain, with other numbers of stages for each role; behind it, the poster's,
 * and a note for each stage. */
#ifndef TERN_DISPATCH_INTER_BODY_H
#define TERN_DISPATCH_INTER_BODY_H

#include "kernels/inter_line.h"

#include "kernels/dispatch_body.h"

/* A warp of the second or third role. */
struct inter_sender {
    const struct dispatch_inter_args *p;
    struct sender s; /* its stages, and where outputs are */
    struct inter_line line;
    struct poster_producer post; /* by bulk copies: who hands its pieces and credits over */
    struct stage_note *notes;    /* [num_stages] */
    uint32_t num_stages;         /* of this warp */
    uint32_t block, blocks;      /* of the role */
    uint32_t loaded, stored;     /* messages: begun, and brought to their end */
    enum rail_found found;       /* of the last look for one */
};

/* Forwarders cast nothing: they keep as many messages on their way as there is room for. */
TERN_DEVICE void inter_take_stages(struct inter_sender *w, uint32_t num_stages)
{
    const struct dispatch_args *d = &w->p->d;
    uint32_t index = (uint32_t)warp() * num_stages, all = d->num_senders * num_stages;
    w->num_stages = num_stages;
    w->s.stages = shared_memory() + d->table_bytes + index * d->stage_bytes;
    w->s.bars = (uint64_t *)(void *)(shared_memory() + d->table_bytes + all * d->stage_bytes) + index;
    w->notes = (struct stage_note *)(void *)(shared_memory() + w->p->notes_offset) + index;
}

TERN_DEVICE struct inter_sender inter_sender_of(const struct dispatch_inter_args *p,
                                                const struct op_table *table)
{
    struct inter_sender w;
    int forwards = (uint32_t)bid() >= p->roles.own + p->roles.rails;
    w.p = p;
    w.loaded = w.stored = 0;
    w.found = RAIL_PIECE;
    w.s = sender_of(&p->d, table);
    w.s.map = target_map_in_domain(&p->d.f, table, &p->d.route, p->d.layout, p->d.topk, p->d.num_experts,
                                   (uint32_t)p->rail.world.num_ranks);
    w.block = (uint32_t)bid();
    w.blocks = p->roles.own;
    if (w.block >= p->roles.own) {
        w.block -= p->roles.own;
        w.blocks = p->roles.rails;
    }
    if (forwards) {
        w.block -= p->roles.rails;
        w.blocks = p->roles.forwarders;
    }
    struct poster poster = poster_at(shared_memory() + p->poster_offset, p->d.num_senders);
    w.post = poster_producer_of(&poster, (uint32_t)warp());
    inter_take_stages(&w, forwards ? p->forward_stages : p->d.num_stages);
    w.s.first = w.block * p->d.num_senders + (uint32_t)warp();
    w.s.step = w.blocks * p->d.num_senders;
    return w;
}

TERN_DEVICE char *inter_stage(const struct inter_sender *w, uint32_t stage)
{
    return w->s.stages + stage * w->p->d.stage_bytes;
}

/* ---- Rails ---- */

/* Weights and trailer of a message, into its stage. All lanes. */
TERN_DEVICE void rail_add_tail(const struct inter_sender *w, char *at, const struct stage_note *n)
{
    const struct dispatch_args *d = &w->p->d;
    float *weights = (float *)(void *)(at + w->p->weights_offset);
    for (uint32_t k = (uint32_t)lane(); k < d->topk; k += 32) {
        weights[k] = d->weights ? d->weights[(uint64_t)n->token * d->topk + k] : 0.0f;
    }
    if (lane() == 0) {
        struct rail_trailer *t = (struct rail_trailer *)(void *)(at + w->p->trailer_offset);
        t->tag = inter_tag(&d->f, n->number);
        t->has_weights = d->weights != 0;
    }
}

/* Starts bringing the token of the next message into a stage. All lanes. */
TERN_DEVICE enum rail_found rail_load(struct inter_sender *w, uint32_t stage, int waits, const int bulk)
{
    struct stage_note n;
    enum rail_found found = inter_next(&w->line, waits, &n);
    if (found != RAIL_PIECE) {
        return found;
    }
    uint64_t row = (uint64_t)inter_domain(&w->p->rail, &n) * w->p->far.max_tokens;
    n.token = (uint32_t)w->p->far.token_of[row + n.number];
    if (lane() == 0) {
        w->notes[stage] = n;
    }
    load_token(&w->s, n.token, stage, bulk);
    if (bulk) {
        expect_token(&w->s, n.token);
    }
    rail_add_tail(w, inter_stage(w, stage), &n); /* its weights are a way to memory, too */
    return RAIL_PIECE;
}

/* A message that is loaded goes to its slot, and with the last of a piece the piece. 0: abandon. All lanes.
 * */
TERN_DEVICE int rail_store(struct inter_sender *w, uint32_t stage, uint32_t parity, const int bulk)
{
    char *at = inter_stage(w, stage);
    sync_warp();
    struct stage_note n = w->notes[stage];
    finish_stage(&w->s, n.token, stage, parity, bulk);
    if (bulk) {
        fence_proxy_async_shared();
        sync_warp();
        if (lane() == 0) {
            RAIL_PROXY_FENCE();
            bulk_store(n.at, at, w->p->rail.stride);
        }
        bulk_commit();
    } else {
        sync_warp();
        warp_copy(n.at, at, w->p->rail.stride);
    }
    if (!n.last) {
        return 1;
    }
    if (bulk) {
        bulk_wait(0);
        return inter_leave_letter(&w->post, POSTER_PUT, &n);
    }
    sync_warp();
    return inter_put(&w->line.rail, &n);
}

/* ---- Forwarders ---- */

/* Starts bringing the next message that has arrived into a stage. All lanes. */
TERN_DEVICE enum rail_found forward_load(struct inter_sender *w, uint32_t stage, int waits, const int bulk)
{
    struct stage_note n;
    enum rail_found found = inter_next(&w->line, waits, &n);
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
    return RAIL_PIECE;
}

/* What the forward block says of a message. It is asked for while the message is on its way into its stage,
 * and all at once, as each is a way to memory and back. */
struct forward_said {
    struct inter_entry e;
    struct target first; /* this lane's, of the first 32 */
    int32_t expert;      /* of choice lane() */
};

/* All lanes. */
TERN_DEVICE struct forward_said forward_ask(const struct inter_sender *w, const struct stage_note *n)
{
    const struct dispatch_args *d = &w->p->d;
    struct forward_said said;
    said.e = inter_entry_of(&w->p->far, (uint32_t)rail_far_end(&w->p->rail, n->stream), n->number, d->layout,
                            d->topk, inter_keys(&w->s.map, d->f.num_ranks));
    said.expert = d->layout == 0 && (uint32_t)lane() < d->topk ? said.e.experts[lane()] : -1;
    /* So many targets an entry has room for: read before it is known how many there are. */
    uint32_t room = (w->p->far.entry_ints - (uint32_t)(sizeof(struct forward_entry) / 4) - d->topk) / 2;
    struct forward_target t = {0, -1};
    if ((uint32_t)lane() < room) {
        t = said.e.targets[lane()];
    }
    t.slot = (uint32_t)lane() < said.e.num ? t.slot : -1;
    said.first = inter_target_of(&said.e, &w->s.map, t);
    return said;
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
    struct target g = i0 == 0 ? said->first : inter_target(e, &w->s.map, i0 + (uint32_t)lane());
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
    struct forward_said said = forward_ask(w, &n);
    while (bulk && !mbar_test(w->s.bars + stage, parity)) {
        spin();
    }
    int from = rail_far_end(&w->p->rail, n.stream);
    int ok = 1;
    if (lane() == 0) {
        ok = inter_matches(&w->line.rail,
                           (const struct rail_trailer *)(const void *)(at + w->p->trailer_offset), from,
                           n.number) &&
             (bulk || !n.last || rail_give_back(&w->line.rail, n.stream, n.bytes, n.end, n.left));
    }
    if (bulk && n.last) {
        ok &= inter_leave_letter(&w->post, POSTER_CREDIT, &n);
    }
    ok = !warp_any(!ok);
    for (uint32_t i0 = 0; ok && i0 < said.e.num; i0 += 32) {
        ok = forward_group(w, &said, at, i0, from, bulk);
    }
    if (bulk) {
        bulk_commit();
    }
    return ok;
}

/* ---- Both ---- */

/* Loads as many messages as there are stages for; may wait for the first, if none is in a stage. With two
 * stages both have a load on its way, and a stage is awaited until its store has read it; with more the
 * latest store is not awaited, and one stage is its. All lanes. */
TERN_DEVICE void inter_load(struct inter_sender *w, int forwards, int waits, const int bulk)
{
    uint32_t num = w->num_stages;
    while (w->found == RAIL_PIECE && w->loaded - w->stored + (num > 2) < num) {
        if (bulk) { /* the stores out of this stage have read it */
            if (num > 2) {
                bulk_wait_read(1);
            } else {
                bulk_wait_read(0);
            }
            fence_proxy_async_shared();
        }
        sync_warp();
        const int may_wait = waits && w->loaded == w->stored;
        w->found = forwards ? forward_load(w, w->loaded % num, may_wait, bulk)
                            : rail_load(w, w->loaded % num, may_wait, bulk);
        w->loaded += w->found == RAIL_PIECE;
    }
    w->found = w->found == RAIL_NOTHING ? RAIL_PIECE : w->found;
}

/* Messages go through the stages of a warp until there are no more; what is loaded is always brought to its
 * end, because loads must not outlive the block. 0: the operation is abandoned. */
TERN_DEVICE int inter_pipeline(struct inter_sender *w, int forwards, const int bulk)
{
    uint32_t num = w->num_stages;
    int ok = 1;
    for (;;) {
        if (ok) {
            inter_load(w, forwards, 1, bulk);
        }
        if (w->loaded == w->stored) {
            break;
        }
        ok &= forwards ? forward_store(w, w->stored % num, w->stored / num & 1, bulk)
                       : rail_store(w, w->stored % num, w->stored / num & 1, bulk);
        w->stored++;
    }
    if (bulk) {
        bulk_wait(0);
    }
    return ok && w->found == RAIL_OVER;
}

/* A warp's streams, and its stages; those of forwarders once their forward blocks are here. 0: the operation
 * is to be abandoned. All lanes of one that has some. */
TERN_DEVICE int inter_begin(struct inter_sender *w, const struct rail *r, int forwards, const int bulk)
{
    const struct dispatch_inter_args *p = w->p;
    uint32_t step = w->blocks * p->d.num_senders;
    uint32_t index = rail_first_stream(r->p, w->block, w->blocks, (uint32_t)warp(), p->d.num_senders);
    if (forwards && !inter_await_blocks(r, &p->far, index, step)) {
        return 0;
    }
    w->line = inter_line_of(r, index, step, forwards ? p->far.num_in : p->far.num_out, !forwards);
    if (bulk && lane() == 0) {
        for (uint32_t i = 0; i < w->num_stages; i++) {
            mbar_init(w->s.bars + i, 1);
        }
        fence_mbar_init();
    }
    sync_warp();
    return 1;
}

/* After rails have loaded messages that will not be sent. */
TERN_DEVICE void inter_abandon(const struct inter_sender *w)
{
    for (uint32_t i = 0; i < w->loaded; i++) {
        while (!mbar_test(w->s.bars + i, 0)) {
            spin();
        }
    }
}

/* Of the two roles on the network; rails have begun. All lanes of a warp that has stages. */
TERN_DEVICE int inter_work(struct inter_sender *w, const struct rail *r, int forwards, const int bulk)
{
    return (!forwards || inter_begin(w, r, forwards, bulk)) && inter_pipeline(w, forwards, bulk);
}

/* Blocks of these roles: warps with stages, and the poster. 0: the operation is to be abandoned. All threads.
 */
TERN_DEVICE int inter_far(struct inter_sender *w, const struct rail *r, int sends, int forwards,
                          const int bulk)
{
    int ok = 1;
    if (!bulk) {
        return !sends || inter_work(w, r, forwards, bulk);
    }
    if (sends) {
        ok = inter_work(w, r, forwards, bulk);
        poster_end(&w->post);
    } else {
        ok = poster_serve(r->p, r->f, r->epoch, w->post.to.shared, w->post.to.num_boxes);
    }
    return ok;
}

TERN_DEVICE void inter_own(const struct inter_sender *w, struct beginning *begun,
                           const struct op_table *table, int sends, const int bulk)
{
    if (!sends) {
        struct courier c = courier_of(&w->p->d, table);
        c.map = w->s.map;
        c.first = w->block;
        c.step = w->blocks;
        send_meta(&c, 0);
    } else if (bulk) {
        send_tokens_bulk(&w->s, begun);
    } else {
        send_tokens_plain(&w->s);
    }
}

TERN_DEVICE void dispatch_inter_body(const struct dispatch_inter_args *p, const int bulk)
{
    const struct op_frame *f = &p->d.f;
    uint64_t begin = stamp_now(), epoch = op_epoch(f);
    int num_columns = EP_COL_PAYLOADS + (int)p->d.num_out;
    struct op_table table = op_table_at(shared_memory(), num_columns, f->num_ranks);
    struct rail rail = {&p->rail, f, epoch};
    int sends = (uint32_t)warp() < p->d.num_senders;
    struct inter_sender w = inter_sender_of(p, &table);
    int begins = bulk && sends && (uint32_t)bid() < p->roles.own;
    int forwards = (uint32_t)bid() >= p->roles.own + p->roles.rails;
    int rails = sends && !forwards && (uint32_t)bid() >= p->roles.own;
    if (bid() == 0) {
        op_announce(f, epoch, MESSAGE_COLUMNS + 2 * num_columns);
    }
    struct beginning begun = {0};
    if (begins) {
        begun = begin_bulk(&w.s);
    }
    if (bulk && (uint32_t)bid() >= p->roles.own && tid() == 0) {
        poster_init(&w.post.to); /* then the block synchronises, in op_await */
    }
    if (rails) {
        (void)inter_begin(&w, &rail, 0, bulk);
        /* What there is room for; nothing leaves before all are in. If the route was abandoned, what it says
         * of tokens is nothing to go by, and the operation is, too. */
        if (bulk && !warp_any(op_aborted(f))) {
            inter_load(&w, 0, 0, bulk);
        }
    }
    int ok = op_await(f, epoch, &table) && !weights_missing(&p->d, &table, epoch);
    if (!ok && begins) {
        abandon_bulk(&w.s);
    }
    if (!ok && rails && bulk) {
        inter_abandon(&w);
    }
    if (ok && bulk) {
        /* What peers have read of their outputs, seen through their ready signals, comes before this block's
         * asynchronous writes there. */
        fence_proxy_async_global();
    }
    if (ok && (uint32_t)bid() < p->roles.own) {
        inter_own(&w, &begun, &table, sends, bulk);
    } else if (ok) {
        ok = inter_far(&w, &rail, sends, forwards, bulk);
    }
    if (ok) {
        fill_padding(&w.s);
    }
    if (ok && begins) {
        bulk_wait(0);
    }
    inter_leave(&rail, &table, p->far.num_out, p->far.num_in, ok, begin);
}

#endif
