/* SPDX-License-Identifier: Apache-2.0
 *
 * Where rows live: the targets of one token. A target is a (rank, row): in rank layout the token's row at
 * each rank that owns one of its experts, in expert layout the row of each choice. Lane i looks after target
 * i. */
#ifndef TERN_PLACE_H
#define TERN_PLACE_H

#include "kernels/op.h"

struct target {
    int rank; /* -1: none */
    int64_t row;
};

/* What the targets of a token are derived from. */
struct target_map {
    const int32_t *token_rows, *ids, *bases;
    const uint64_t *capacities;
    uint32_t layout, topk, experts_a_rank, num_targets; /* num_targets: a token; R or K */
    /* Of the ranks in `capacities`: the first one's number among all, the last one's among them; and the
     * columns of token_rows. */
    uint32_t first_rank, last_rank, columns;
};

TERN_DEVICE struct target_map target_map_of(const struct op_frame *f, const struct op_table *table,
                                            const struct route_memory *route, uint32_t layout, uint32_t topk,
                                            uint32_t num_experts)
{
    struct target_map m;
    m.token_rows = route->token_rows;
    m.ids = route->ids;
    m.bases = route->bases;
    m.capacities = table->capacities;
    m.layout = layout;
    m.topk = topk;
    m.experts_a_rank = num_experts / (uint32_t)f->num_ranks;
    m.num_targets = layout == 0 ? (uint32_t)f->num_ranks : topk;
    m.first_rank = 0;
    m.last_rank = UINT32_MAX; /* every id is of a rank of the frame */
    m.columns = m.num_targets;
    return m;
}

/* The same for a route over all domains: targets of the own one alone, by their ranks there. */
TERN_DEVICE struct target_map target_map_in_domain(const struct op_frame *f, const struct op_table *table,
                                                   const struct route_memory *route, uint32_t layout,
                                                   uint32_t topk, uint32_t num_experts, uint32_t num_ranks)
{
    struct target_map m = target_map_of(f, table, route, layout, topk, num_experts);
    m.experts_a_rank = num_experts / num_ranks;
    m.first_rank = (uint32_t)f->first_rank;
    m.last_rank = (uint32_t)f->num_ranks - 1;
    m.columns = layout == 0 ? num_ranks : topk;
    return m;
}

/* Slot of target i of token t among the rows of its rank, or its expert; -1 if i is past the last one, or the
 * token has no such row. Peers need not be in. */
TERN_DEVICE int32_t target_slot(const struct target_map *m, uint32_t t, uint32_t i)
{
    if (i < m->num_targets) {
        return m->token_rows[(uint64_t)t * m->columns + (m->layout == 0 ? m->first_rank + i : i)];
    }
    return -1;
}

/* The target in that slot; none if there is none, or the rank has no room. */
TERN_DEVICE struct target target_in(const struct target_map *m, uint32_t t, uint32_t i, int32_t slot)
{
    struct target g = {-1, 0};
    if (slot >= 0) {
        uint32_t key = m->layout == 0 ? m->first_rank + i : (uint32_t)m->ids[(uint64_t)t * m->topk + i];
        uint32_t rank = m->layout == 0 ? i : key / m->experts_a_rank - m->first_rank;
        if (rank <= m->last_rank) {
            g.row = (int64_t)slot + m->bases[key];
            g.rank = (uint64_t)g.row < m->capacities[rank] ? (int)rank : -1;
        }
    }
    return g;
}

/* Target i of token t. */
TERN_DEVICE struct target target_of(const struct target_map *m, uint32_t t, uint32_t i)
{
    struct target none = {-1, 0};
    return i < m->num_targets ? target_in(m, t, i, target_slot(m, t, i)) : none;
}

#endif
