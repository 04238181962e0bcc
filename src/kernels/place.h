/* SPDX-License-Identifier: Apache-2.0
 *
 * Where rows live: the table of every rank's outputs in shared memory, made once an operation from the
 * messages, and the targets of one token. A target is a (rank, row): in rank layout the token's row at each
 * rank that owns one of its experts, in expert layout the row of each choice. Lane i looks after target i. */
#ifndef TERN_PLACE_H
#define TERN_PLACE_H

#include "kernels/op.h"

/* table[c * num_ranks + rank] for the columns in use, then capacities[rank]. */
TERN_DEVICE struct place *place_table(void) { return (struct place *)shared_memory(); }

TERN_DEVICE uint64_t *place_capacities(int num_columns, int num_ranks)
{
    return (uint64_t *)(place_table() + num_columns * num_ranks);
}

TERN_DEVICE char *place_address(const struct op_frame *f, int rank, uint64_t offset)
{
    if (offset == PLACE_NONE) {
        return 0;
    }
    return offset & PLACE_USER_HEAP ? f->user_bases[rank] + (offset & ~PLACE_USER_HEAP)
                                    : f->ep_bases[rank] + offset;
}

/* All threads of the block, after op_await: columns[c] of every message into row c of the table. */
TERN_DEVICE void place_fill(const struct op_frame *f, uint64_t epoch, int num_columns)
{
    int num_ranks = f->num_ranks;
    for (int i = tid(); i < num_columns * num_ranks; i += nthr()) {
        int c = i / num_ranks;
        int rank = i % num_ranks;
        const struct ep_place *at = &op_message(f, f->rank, epoch, rank)->columns[c];
        place_table()[i].base = place_address(f, rank, at->offset);
        place_table()[i].stride = at->stride;
    }
    for (int rank = tid(); rank < num_ranks; rank += nthr()) {
        place_capacities(num_columns, num_ranks)[rank] = op_message(f, f->rank, epoch, rank)->num_rows;
    }
    sync_block();
}

struct target {
    int rank; /* -1: none */
    int64_t row;
};

/* What the targets of a token are derived from. */
struct target_map {
    const int32_t *token_rows, *ids, *bases;
    const uint64_t *capacities;
    uint32_t layout, topk, experts_a_rank, num_targets; /* num_targets: a token; R or K */
};

/* num_columns: of the place table. */
TERN_DEVICE struct target_map target_map_of(const struct op_frame *f, const struct route_memory *route,
                                            uint32_t layout, uint32_t topk, uint32_t num_experts,
                                            int num_columns)
{
    struct target_map m;
    m.token_rows = route->token_rows;
    m.ids = route->ids;
    m.bases = route->bases;
    m.capacities = place_capacities(num_columns, f->num_ranks);
    m.layout = layout;
    m.topk = topk;
    m.experts_a_rank = num_experts / (uint32_t)f->num_ranks;
    m.num_targets = layout == 0 ? (uint32_t)f->num_ranks : topk;
    return m;
}

/* Target i of token t; none if i is past the last one, the token has no such row, or the rank no room. */
TERN_DEVICE struct target target_of(const struct target_map *m, uint32_t t, uint32_t i)
{
    struct target g = {-1, 0};
    if (i < m->num_targets) {
        int64_t slot = m->token_rows[(uint64_t)t * m->num_targets + i];
        if (slot >= 0) {
            uint32_t key = m->layout == 0 ? i : (uint32_t)m->ids[(uint64_t)t * m->topk + i];
            uint32_t rank = m->layout == 0 ? i : key / m->experts_a_rank;
            g.row = slot + m->bases[key];
            g.rank = (uint64_t)g.row < m->capacities[rank] ? (int)rank : -1;
        }
    }
    return g;
}

#endif
