/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine across domains, blocks that forward: an item is a message, the sum of a token's rows of this
 * domain, and what follows it are its weights and trailer; behind the last of a piece the piece leaves
 * by the poster. The loader takes pieces of up to 32 streams. */
#ifndef TERN_LINE_FORWARD_H
#define TERN_LINE_FORWARD_H

#include "kernels/combine_line.h"

/* Rows of the loader's message. All lanes. */
TERN_DEVICE void forward_load(struct line *l, const struct stage_note *n)
{
    struct inter_entry e = mix_entry(&l->m, n);
    struct target g = inter_target(&e, &l->m.s.map, (uint32_t)lane());
    const char *row = g.rank >= 0 ? row_address(&l->m.s, g) : 0;
    uint32_t which = warp_ballot(row != 0);
    uint32_t mine = (uint32_t)popc_before(which, lane()), num = (uint32_t)TERN_POPC(which);
    uint32_t flags = (mine == 0 ? LINE_FIRST : 0) | (mine + 1 >= num ? LINE_LAST : 0);
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
    enum rail_found found = RAIL_FAILED;
    if (ok) {
        struct inter_line q = inter_line_of(&l->m.rail, l->m.s.block, l->m.s.blocks, p->far.num_in, 1);
        struct stage_note n = {0};
        while (!line_has_failed(l) && (found = inter_next(&q, 1, &n)) == RAIL_PIECE) {
            struct line_item *item = line_begin_item(l);
            if (lane() == 0) {
                item->n = n;
                item->over = 0;
            }
            sync_warp();
            forward_load(l, &item->n);
            line_post(l);
        }
    }
    line_end(l);
    return found == RAIL_OVER;
}

/* Behind the rows of `num` messages: weights and trailers, a lane a choice. All lanes. */
TERN_DEVICE void forward_tails(const struct line *l, uint32_t num, int wanted)
{
    const struct combine_args *c = &l->m.p->c;
    uint32_t j = (uint32_t)lane() / c->topk, k = (uint32_t)lane() % c->topk;
    if (j < num) {
        const struct stage_note *n = &l->items[l->place + j].n;
        struct inter_entry e = mix_entry(&l->m, n);
        uint32_t begin = c->layout == 0 ? 0 : k, end = c->layout == 0 ? e.num : k + 1;
        float sum = 0.0f;
        for (uint32_t i = begin; wanted && i < end; i += WEIGHTS_AT_ONCE) {
            sum = mix_add_weights(&l->m, &e, k, i, end, sum);
        }
        ((float *)(void *)(n->at + l->m.p->weights_offset))[k] = sum;
        if (k == 0) {
            struct rail_trailer *t = (struct rail_trailer *)(void *)(n->at + l->m.p->trailer_offset);
            t->tag = inter_tag(&c->f, n->number);
        }
    }
}

/* 0: the operation is to be abandoned. All lanes of the closer. */
TERN_DEVICE int forward_closes(struct line *l)
{
    const struct combine_args *c = &l->m.p->c;
    int ok = 1, wanted = 0;
    for (int r = lane(); r < c->f.num_ranks; r += 32) {
        wanted |= l->m.s.table.places[COMBINE_WEIGHTS * c->f.num_ranks + r].base != 0;
    }
    wanted = warp_any(wanted);
    for (;;) {
        uint32_t num = line_take(l, 32 / c->topk);
        int over = l->items[l->place + num - 1].over;
        num -= (uint32_t)over;
        forward_tails(l, num, wanted);
        sync_warp();
        for (; num != 0; num--) {
            struct stage_note n = line_await_done(l)->n;
            ok = ok && (!n.last || inter_leave_letter(&l->post, POSTER_PUT, &n));
            line_close(l, ok);
        }
        if (over) {
            poster_end(&l->post);
            return ok;
        }
    }
}

#endif
