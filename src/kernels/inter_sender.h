/* SPDX-License-Identifier: Apache-2.0
 *
 * A warp of dispatch across domains (dispatch_inter_body.h), and its stages, if it has some: as inside a
 * domain, with other numbers of them for each role. */
#ifndef TERN_INTER_SENDER_H
#define TERN_INTER_SENDER_H

#include "kernels/inter_line.h"

#include "kernels/dispatch_body.h"

/* What the forward block says of a message (dispatch_forward.h). */
struct forward_said {
    struct inter_entry e;
    struct forward_target t; /* this lane's, of the first 32 */
    int32_t base;            /* that its slot counts from */
    int32_t expert;          /* of choice lane() */
};

enum forward_asked { FORWARD_NOT_ASKED, FORWARD_ASKED, FORWARD_HAS_BASES };

/* A warp of the second or third role. */
struct inter_sender {
    const struct dispatch_inter_args *p;
    struct sender s; /* its stages, and where outputs are */
    struct inter_line line;
    struct poster_producer post; /* by bulk copies: who hands over what it has for the network */
    struct stage_note *notes;    /* [num_stages] */
    uint32_t num_stages;         /* of this warp */
    uint32_t *taken;             /* forwarders: of this lane's stream, by the warps of a team */
    struct forward_said said;    /* likewise: of the next message in a stage, as far as it is */
    enum forward_asked asked;
    uint32_t tokens;         /* rails: lane i has what message i of the piece in hand is of, */
    float weights;           /* and weight i of those of its messages that were asked for last */
    uint32_t block, blocks;  /* of the role */
    uint32_t loaded, stored; /* messages: begun, and brought to their end */
    uint32_t urgent;         /* rails: so many are of pieces that leave before more is loaded */
    enum rail_found found;   /* of the last look for one */
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
    w.loaded = w.stored = w.urgent = 0;
    w.asked = FORWARD_NOT_ASKED;
    w.tokens = 0;
    w.weights = 0.0f;
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
    w.taken = (uint32_t *)(void *)(shared_memory() + p->taken_offset) +
              (uint32_t)warp() % p->forward_teams * 32 + (uint32_t)lane();
    inter_take_stages(&w, forwards ? p->forward_stages : p->d.num_stages);
    w.s.first = w.block * p->d.num_senders + (uint32_t)warp();
    w.s.step = w.blocks * p->d.num_senders;
    return w;
}

TERN_DEVICE char *inter_stage(const struct inter_sender *w, uint32_t stage)
{
    return w->s.stages + stage * w->p->d.stage_bytes;
}

#endif
