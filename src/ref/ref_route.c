/* SPDX-License-Identifier: Apache-2.0
 *
 * What one rank receives: the loops stand in the order in which rows lie, and every row is appended. */
#include "ref/ref.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Zeroed; never NULL. */
static void *take(size_t count, size_t bytes)
{
    void *memory = calloc(count ? count : 1, bytes);

    if (!memory) {
        fprintf(stderr, "the reference gets no %zu x %zu bytes\n", count, bytes);
        abort();
    }
    return memory;
}

static int64_t id_of(const struct ref_world *world, int source, uint32_t token, uint32_t choice)
{
    int64_t id = world->topk_idx[source][(size_t)token * world->topk + choice];

    return id >= 0 && id < (int64_t)world->num_experts ? id : -1;
}

/* Choices of a token that rank `rank` owns. */
static int choices_at(const struct ref_world *world, int rank, int source, uint32_t token)
{
    int64_t share = world->num_experts / (uint32_t)world->num_ranks;
    int found = 0;
    uint32_t k;

    for (k = 0; k < world->topk; k++) {
        int64_t id = id_of(world, source, token, k);
        found += id >= 0 && id / share == rank;
    }
    return found;
}

static void append(struct ref_route *route, int rank, uint32_t token, int choice)
{
    struct ref_row *row = &route->rows[route->num_rows++];

    row->rank = rank;
    row->token = rank < 0 ? -1 : (int32_t)token;
    row->choice = choice;
}

static void by_rank(struct ref_route *route, const struct ref_world *world)
{
    int source;
    uint32_t t;

    for (source = 0; source < world->num_ranks; source++) {
        route->rank_offsets[source] = (int32_t)route->num_rows;
        for (t = 0; t < world->num_tokens[source]; t++) {
            if (choices_at(world, route->rank, source, t)) {
                route->row_of[source][t] = (int64_t)route->num_rows;
                append(route, source, t, -1);
            }
        }
    }
    route->rank_offsets[source] = (int32_t)route->num_rows;
}

static void by_expert(struct ref_route *route, const struct ref_world *world, uint32_t alignment)
{
    uint32_t share = world->num_experts / (uint32_t)world->num_ranks;
    uint32_t e, t, k;
    int source;

    for (e = 0; e < share; e++) {
        route->expert_offsets[e] = (int32_t)route->num_rows;
        for (source = 0; source < world->num_ranks; source++) {
            for (t = 0; t < world->num_tokens[source]; t++) {
                for (k = 0; k < world->topk; k++) {
                    if (id_of(world, source, t, k) == (int64_t)route->rank * share + e) {
                        route->row_of[source][(size_t)t * world->topk + k] = (int64_t)route->num_rows;
                        append(route, source, t, (int)k);
                    }
                }
            }
        }
        while (route->num_rows % alignment) {
            append(route, -1, 0, -1);
        }
    }
    route->expert_offsets[e] = (int32_t)route->num_rows;
}

static void count(struct ref_route *route, const struct ref_world *world)
{
    int64_t share = world->num_experts / (uint32_t)world->num_ranks;
    int source;
    uint32_t t, k;

    for (source = 0; source < world->num_ranks; source++) {
        for (t = 0; t < world->num_tokens[source]; t++) {
            route->rank_counts[source] += choices_at(world, route->rank, source, t) > 0;
            for (k = 0; k < world->topk; k++) {
                int64_t id = id_of(world, source, t, k);
                if (id >= 0 && id / share == route->rank) {
                    route->expert_counts[id % share]++;
                }
            }
        }
        route->num_tokens += (uint64_t)route->rank_counts[source];
    }
}

void terni_ref_route_init(struct ref_route *route, const struct ref_world *world, uint32_t layout,
                          uint32_t expert_alignment, int rank)
{
    size_t share = world->num_experts / (uint32_t)world->num_ranks;
    uint32_t alignment = expert_alignment ? expert_alignment : 1;
    uint64_t most;
    size_t e, i;
    int source;

    memset(route, 0, sizeof *route);
    route->rank = rank;
    route->layout = layout;
    route->rank_counts = (int32_t *)take((size_t)world->num_ranks, sizeof(int32_t));
    route->expert_counts = (int32_t *)take(share, sizeof(int32_t));
    route->row_of = (int64_t **)take((size_t)world->num_ranks, sizeof(int64_t *));
    for (source = 0; source < world->num_ranks; source++) {
        size_t entries = (size_t)world->num_tokens[source] * (layout == TERN_LAYOUT_RANK ? 1 : world->topk);
        route->row_of[source] = (int64_t *)take(entries, sizeof(int64_t));
        for (i = 0; i < entries; i++) {
            route->row_of[source][i] = -1;
        }
    }
    count(route, world);
    most = route->num_tokens;
    for (e = 0; e < share && layout == TERN_LAYOUT_EXPERT; e++) {
        most += (uint64_t)route->expert_counts[e] + alignment;
    }
    route->rows = (struct ref_row *)take(most, sizeof *route->rows);
    if (layout == TERN_LAYOUT_RANK) {
        route->rank_offsets = (int32_t *)take((size_t)world->num_ranks + 1, sizeof(int32_t));
        by_rank(route, world);
    } else {
        route->expert_offsets = (int32_t *)take(share + 1, sizeof(int32_t));
        by_expert(route, world, alignment);
    }
}

void terni_ref_route_fini(struct ref_route *route, const struct ref_world *world)
{
    int source;

    for (source = 0; route->row_of && source < world->num_ranks; source++) {
        free(route->row_of[source]);
    }
    free(route->row_of);
    free(route->rows);
    free(route->rank_counts);
    free(route->rank_offsets);
    free(route->expert_counts);
    free(route->expert_offsets);
    memset(route, 0, sizeof *route);
}

int64_t terni_ref_route_row(const struct ref_route *route, const struct ref_world *world, int source,
                            uint32_t token, uint32_t choice)
{
    if (route->layout == TERN_LAYOUT_RANK) {
        return route->row_of[source][token];
    }
    return route->row_of[source][(size_t)token * world->topk + choice];
}
