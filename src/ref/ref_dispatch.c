/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch by the reference: for each row of the receiver, fetch its token from its source rank. */
#include "ref/ref.h"

#include <stdlib.h>
#include <string.h>

/* Copies one token of a strided input into dense bytes. */
static void gather(const struct tern_rows *rows, uint32_t token, unsigned char *dense)
{
    uint32_t elem = rows->elem_bytes ? rows->elem_bytes : rows->row_bytes;
    int64_t row_stride = rows->row_stride ? rows->row_stride : (int64_t)rows->row_bytes;
    int64_t elem_stride = rows->elem_stride ? rows->elem_stride : (int64_t)elem;
    uint32_t i;

    for (i = 0; i < rows->row_bytes / elem; i++) {
        const char *from = (const char *)rows->data + (int64_t)token * row_stride + (int64_t)i * elem_stride;
        memcpy(dense + (size_t)i * elem, from, elem);
    }
}

static unsigned char *row_at(const struct tern_rows *rows, uint64_t row)
{
    int64_t stride = rows->row_stride ? rows->row_stride : (int64_t)rows->row_bytes;

    return (unsigned char *)rows->data + (int64_t)row * stride;
}

static void place_payloads(const struct tern_dispatch_args *to, uint64_t row,
                           const struct tern_dispatch_args *from, uint32_t token)
{
    uint32_t moved = to->cast != TERN_CAST_NONE; /* outputs between in[i] and out[i] for i > 0 */
    uint32_t i;

    for (i = 0; i < from->num_in; i++) {
        unsigned char *dense = (unsigned char *)malloc(from->in[i].row_bytes + 1);
        if (!dense) {
            abort();
        }
        gather(&from->in[i], token, dense);
        if (i == 0 && moved) {
            terni_ref_cast(to->cast, (const uint16_t *)(void *)dense, from->in[0].row_bytes / 2,
                           row_at(&to->out[0], row), row_at(&to->out[1], row));
        } else {
            memcpy(row_at(&to->out[i ? i + moved : 0], row), dense, from->in[i].row_bytes);
        }
        free(dense);
    }
}

static void store_id(const struct ref_world *world, void *ids, uint64_t position, int64_t id)
{
    if (world->idx_bytes == 4) {
        ((int32_t *)ids)[position] = (int32_t)id;
    } else {
        ((int64_t *)ids)[position] = id;
    }
}

/* Ids and weights of one row in rank layout. */
static void place_choices(const struct ref_world *world, const struct ref_route *route,
                          const struct tern_dispatch_args *to, uint64_t row,
                          const struct tern_dispatch_args *from)
{
    const struct ref_row *origin = &route->rows[row];
    int64_t share = world->num_experts / (uint32_t)world->num_ranks;
    uint32_t k;

    for (k = 0; k < world->topk; k++) {
        size_t at = (size_t)origin->token * world->topk + k;
        int64_t local = world->topk_idx[origin->rank][at] - (int64_t)route->rank * share;
        if (local < 0 || local >= share) {
            local = -1;
        }
        if (to->out_topk_idx) {
            store_id(world, to->out_topk_idx, row * world->topk + k, local);
        }
        if (to->out_topk_weights) {
            to->out_topk_weights[row * world->topk + k] = local < 0 ? 0.0f : from->topk_weights[at];
        }
    }
}

static void place_padding(const struct tern_dispatch_args *to, uint64_t row)
{
    uint32_t num_out = to->num_in + (to->cast != TERN_CAST_NONE);
    uint32_t i;

    for (i = 0; i < num_out; i++) {
        memset(row_at(&to->out[i], row), 0, to->out[i].row_bytes);
    }
    if (to->out_topk_weights) {
        to->out_topk_weights[row] = 0.0f;
    }
    if (to->out_source) {
        to->out_source[2 * row] = -1;
        to->out_source[2 * row + 1] = -1;
    }
}

static void place_row(const struct ref_world *world, const struct ref_route *route,
                      const struct tern_dispatch_args *args, uint64_t row)
{
    const struct tern_dispatch_args *to = &args[route->rank];
    const struct ref_row *origin = &route->rows[row];
    const struct tern_dispatch_args *from = &args[origin->rank];

    place_payloads(to, row, from, (uint32_t)origin->token);
    if (route->layout == TERN_LAYOUT_RANK) {
        place_choices(world, route, to, row, from);
    } else if (to->out_topk_weights) {
        to->out_topk_weights[row] =
            from->topk_weights[(size_t)origin->token * world->topk + (size_t)origin->choice];
    }
    if (to->out_source) {
        to->out_source[2 * row] = origin->rank;
        to->out_source[2 * row + 1] = origin->token;
    }
}

uint64_t terni_ref_dispatch(const struct ref_world *world, const struct ref_route *route,
                            const struct tern_dispatch_args *args)
{
    const struct tern_dispatch_args *to = &args[route->rank];
    uint64_t row;
    uint32_t k;

    for (row = 0; row < route->num_rows && row < to->out_rows; row++) {
        if (route->rows[row].rank >= 0) {
            place_row(world, route, args, row);
        } else if (to->zero_padding) {
            place_padding(to, row);
        }
    }
    for (; route->layout == TERN_LAYOUT_RANK && to->out_topk_idx && row < to->out_rows; row++) {
        for (k = 0; k < world->topk; k++) {
            store_id(world, to->out_topk_idx, row * world->topk + k, -1);
        }
    }
    return route->num_rows > to->out_rows ? route->num_rows - to->out_rows : 0;
}
