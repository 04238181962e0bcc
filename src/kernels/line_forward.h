/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine across domains, blocks that forward: an item is a message, the sum of a token's rows of this
 * domain, and what follows it are its weights and trailer; behind the last of a piece the piece leaves
 * by the poster. The loader takes pieces of up to 32 streams. */
#ifndef TERN_LINE_FORWARD_H
#define TERN_LINE_FORWARD_H

#include "kernels/combine_line.h"

/* How many targets a message may have in this domain; as many messages as the lanes have room for are looked
 * up together, since that is ways to memory one after the other. */
TERN_DEVICE uint32_t forward_width(const struct line *l)
{
    uint32_t targets = l->m.s.map.num_targets, topk = l->m.p->c.topk;
    return targets < topk ? targets : topk;
}

/* This lane's target: number lane % width of the message lane / width behind n, of `left`. */
TERN_DEVICE struct target forward_target(const struct line *l, const struct stage_note *n, uint32_t width,
                                         uint32_t left)
{
    struct target g = {-1, 0};
    uint32_t behind = (uint32_t)lane() / width;
    if (behind < left && behind < 32 / width) {
        struct stage_note its = *n;
        its.number += behind;
        struct inter_entry e = mix_entry(&l->m, &its);
        g = inter_target(&e, &l->m.s.map, (uint32_t)lane() % width);
    }
    return g;
}

/* Rows of a message, whose targets those lanes have that are its own. All lanes. */
TERN_DEVICE void forward_load(struct line *l, struct line_item *item, struct target g, int own)
{
    const char *row = own && g.rank >= 0 ? row_address(&l->m.s, g) : 0;
    uint32_t which = warp_ballot(row != 0);
    uint32_t mine = (uint32_t)popc_before(which, lane()), num = (uint32_t)TERN_POPC(which);
    uint32_t flags = mine + 1 >= num ? LINE_LAST : 0;
    if (own) {
        item->weights[(uint32_t)lane() % forward_width(l)] = line_weights_at(l, g);
    }
    flags |= num != 0 ? LINE_OWN : 0; /* if no rank has room for its rows, a step without one */
    TERN_ROLLED
    for (uint32_t chunk = 0; chunk < l->chunks; chunk++) {
        const char *from = row ? row + (uint64_t)chunk * l->slots_bytes : 0;
        line_load(l, num != 0 ? row != 0 : lane() == 0, from, num != 0 ? line_bytes(l, chunk) : 0, chunk,
                  flags);
    }
}

/* 0: abandoned. All lanes of the loader. */
TERN_DEVICE int forward_loads(struct line *l)
{
    const struct combine_inter_args *p = l->m.p;
    int ok = inter_await_blocks(&l->m.rail, &p->far, l->m.s.block, l->m.s.blocks);
    uint32_t width = forward_width(l);
    enum rail_found found = RAIL_FAILED;
    if (ok) {
        struct inter_line q = inter_line_of(&l->m.rail, l->m.s.block, l->m.s.blocks, p->far.num_in, 1);
        struct stage_note n = {0};
        struct target g = {-1, 0};
        while (!line_has_failed(l) && (found = inter_next(&q, 1, &n)) == RAIL_PIECE) {
            uint32_t x = (q.given - 1) % (32 / width);
            if (x == 0) {
                g = forward_target(l, &n, width, n.num - (q.given - 1));
            }
            struct line_item *item = line_begin_item(l);
            if (lane() == 0) {
                item->n = n;
                item->over = 0;
            }
            sync_warp(); /* any lane may have the step by which adders come to the item */
            forward_load(l, item, g, (uint32_t)lane() / width == x);
            line_post(l);
        }
    }
    line_end(l);
    return found == RAIL_OVER;
}

/* Behind the rows of `num` messages: weights and trailers, a lane a choice. All lanes. */
TERN_DEVICE void forward_tails(const struct line *l, uint32_t num)
{
    const struct combine_args *c = &l->m.p->c;
    uint32_t j = (uint32_t)lane() / c->topk, k = (uint32_t)lane() % c->topk;
    if (j < num) {
        const struct line_item *item = l->items + l->place + j;
        const struct stage_note *n = &item->n;
        ((float *)(void *)(n->at + l->m.p->weights_offset))[k] =
            line_add_weights(l, item, k, forward_width(l));
        if (k == 0) {
            struct rail_trailer *t = (struct rail_trailer *)(void *)(n->at + l->m.p->trailer_offset);
            t->tag = inter_tag(&c->f, n->number);
        }
    }
}

/* 0: the operation is to be abandoned. All lanes of the closer. */
TERN_DEVICE int forward_closes(struct line *l)
{
    int ok = 1;
    for (;;) {
        uint32_t num = line_take(l, 32 / l->m.p->c.topk);
        int over = l->items[l->place + num - 1].over;
        num -= (uint32_t)over;
        forward_tails(l, num);
        sync_warp();
        for (; num != 0; num--) {
            struct stage_note n = line_await_done(l)->n;
            ok = ok && (!n.last || inter_leave_put(&l->post, &n));
            line_close(l, ok);
        }
        if (over) {
            return ok;
        }
    }
}

#endif
