/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch across domains. A token goes once to each other domain that it has targets in, to this rank's rail
 * peer there, who places it. Blocks have roles:
 *
 *   own         what dispatch does inside a domain, for targets of the own one (dispatch_body.h)
 *   rails       a warp brings a token's payloads into a stage, casts them if asked, adds weights, and copies
 *               the stage into its slot of a ring; a piece of messages leaves together (rail.h). The first
 *               are loaded before all ranks are in
 *   forwarders  a warp brings a message out of the ring that it arrived in into a stage, and sends it from
 *               there to each target's final row, as the forward block says (dispatch_forward.h)
 *
 * What the warps of a block have for the network, pieces and chunks that have been read, its last warp hands
 * over (rail_poster.h).
 *
 * A message is a stage: payloads, and behind them weights[topk] and a trailer. Loads run ahead of stores by
 * as many stages as there are; a warp that has messages in its stages does not wait for credits or arrivals,
 * so that whoever waits for those messages gets them. All blocks run at once.
 *
 * Shared memory is as inside a domain, with other numbers of stages for each role; behind it, what forwarders
 * have taken, the arguments that the poster reads, its boxes and queue pairs, and a note for each stage. */
#ifndef TERN_DISPATCH_INTER_BODY_H
#define TERN_DISPATCH_INTER_BODY_H

#include "kernels/dispatch_forward.h"

/* ---- Rails ---- */

/* So many messages' weights are known at a time; 0: none, as a message has more than there are lanes. */
TERN_DEVICE uint32_t rail_group(const struct dispatch_args *d) { return 32 / d->topk; }

/* Which tokens a piece's messages are of, on one way to memory for 32 of them. n: of the first message. All
 * lanes. */
TERN_DEVICE void rail_ask_tokens(struct inter_sender *w, const struct stage_note *n)
{
    const int32_t *tokens =
        w->p->far.token_of + (uint64_t)inter_domain(&w->p->rail, n) * w->p->far.max_tokens + n->number;
    w->tokens = (uint32_t)lane() < n->num ? (uint32_t)tokens[lane()] : 0;
}

/* The weights of messages i and behind it, as many as a group has, likewise. All lanes. */
TERN_DEVICE void rail_ask_weights(struct inter_sender *w, const struct stage_note *n, uint32_t i)
{
    const struct dispatch_args *d = &w->p->d;
    uint32_t mine = (uint32_t)lane() / d->topk, k = (uint32_t)lane() - mine * d->topk;
    uint32_t token = shfl_u32(w->tokens, (int)((i + mine) & 31));
    int has = d->weights && mine < rail_group(d) && i + mine < n->num && i + mine < 32;
    w->weights = has ? d->weights[(uint64_t)token * d->topk + k] : 0.0f;
}

/* The token of message i of the piece in hand. All lanes. */
TERN_DEVICE uint32_t rail_token(const struct inter_sender *w, const struct stage_note *n, uint32_t i)
{
    uint64_t row = (uint64_t)inter_domain(&w->p->rail, n) * w->p->far.max_tokens;
    return i < 32 ? shfl_u32(w->tokens, (int)i) : (uint32_t)w->p->far.token_of[row + n->number];
}

/* Weights and trailer of a message, the i-th of its piece, into its stage. All lanes. */
TERN_DEVICE void rail_add_tail(const struct inter_sender *w, char *at, const struct stage_note *n, uint32_t i)
{
    const struct dispatch_args *d = &w->p->d;
    float *weights = (float *)(void *)(at + w->p->weights_offset);
    uint32_t group = rail_group(d);
    int known = group != 0 && i < 32;
    uint32_t first = known ? i % group * d->topk : 0;
    float weight = shfl_f32(w->weights, (int)((first + (uint32_t)lane()) & 31));
    for (uint32_t k = (uint32_t)lane(); k < d->topk; k += 32) {
        weights[k] = known ? weight : d->weights ? d->weights[(uint64_t)n->token * d->topk + k] : 0.0f;
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
    uint32_t i = w->line.given - 1;
    uint32_t group = rail_group(&w->p->d);
    if (i == 0) {
        rail_ask_tokens(w, &n);
    }
    if (group != 0 && i < 32 && i % group == 0) {
        rail_ask_weights(w, &n, i);
    }
    n.token = rail_token(w, &n, i);
    if (lane() == 0) {
        w->notes[stage] = n;
    }
    load_token(&w->s, n.token, stage, bulk);
    if (bulk) {
        expect_token(&w->s, n.token);
    }
    rail_add_tail(w, inter_stage(w, stage), &n, i);
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
        return inter_leave_put(&w->post, &n);
    }
    sync_warp();
    return inter_put(&w->line.rail, &n);
}

/* ---- Both ---- */

/* Loads as many messages as there are stages for; may wait for the first, if none is in a stage. With two
 * stages both have a load on its way, and a stage is awaited until its store has read it; with more the
 * latest store is not awaited, and one stage is its once there is one. All lanes. */
TERN_DEVICE void inter_load(struct inter_sender *w, int forwards, int waits, const int bulk)
{
    uint32_t num = w->num_stages;
    const uint32_t latest = num > 2 && w->stored != 0;
    while (w->found == RAIL_PIECE && w->loaded - w->stored + latest < num) {
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
        if (ok && w->stored >= w->urgent) {
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

/* How many warps of a block have streams; the first stream of one of them, whose next one is as far behind as
 * there are such warps in all blocks. */
TERN_DEVICE uint32_t inter_workers(const struct inter_sender *w, int forwards)
{
    return forwards ? w->p->forward_teams : w->p->d.num_senders;
}

TERN_DEVICE uint32_t inter_first_stream(const struct inter_sender *w, const struct rail_args *rail,
                                        uint32_t worker, int forwards)
{
    return forwards ? worker * w->blocks + w->block
                    : rail_first_stream(rail, w->block, w->blocks, worker, w->p->d.num_senders);
}

/* A warp's streams, and its stages; those of forwarders once their forward blocks are here. 0: the operation
 * is to be abandoned. All lanes of one that has some. */
TERN_DEVICE int inter_begin(struct inter_sender *w, const struct rail *r, int forwards, const int bulk)
{
    const struct dispatch_inter_args *p = w->p;
    uint32_t workers = inter_workers(w, forwards), step = w->blocks * workers;
    uint32_t index =
        inter_first_stream(w, r->p, forwards ? (uint32_t)warp() % workers : (uint32_t)warp(), forwards);
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

/* The arguments that a poster reads, in shared memory. */
TERN_DEVICE struct rail_args *inter_near_rail(const struct dispatch_inter_args *p)
{
    return (struct rail_args *)(void *)(shared_memory() + p->rail_offset);
}

/* The poster's warp: a stream of the block's for each lane, as warps have them in inter_begin. */
TERN_DEVICE void inter_prepare_poster(const struct inter_sender *w, const struct rail *r, int forwards)
{
    uint32_t workers = inter_workers(w, forwards), turn = (uint32_t)lane() / workers;
    uint32_t first = inter_first_stream(w, r->p, (uint32_t)lane() % workers, forwards);
    poster_prepare(&w->post.to, r, inter_near_rail(w->p), first + turn * w->blocks * workers,
                   forwards ? POSTER_RELEASE : POSTER_PUT);
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
        ok = poster_serve(w->post.to.shared, w->post.to.num_boxes);
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
    if (bulk && (uint32_t)bid() >= p->roles.own) { /* then the block synchronises, in op_await */
        inter_bring_near(inter_near_rail(p), &p->rail, sizeof(p->rail));
        if (tid() == 0) {
            poster_init(&w.post.to);
        }
        if (!sends) {
            inter_prepare_poster(&w, &rail, forwards);
        }
    }
    if (forwards && (uint32_t)warp() < p->forward_teams) {
        *w.taken = 0; /* likewise */
    }
    if (rails) {
        (void)inter_begin(&w, &rail, 0, bulk);
        /* What there is room for; nothing leaves before all are in. If the route was abandoned, what it says
         * of tokens is nothing to go by, and the operation is, too. */
        if (bulk && !warp_any(op_aborted(f))) {
            inter_load(&w, 0, 0, bulk);
            w.urgent = w.line.given == w.line.piece.num ? w.loaded : w.loaded - w.line.given;
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
