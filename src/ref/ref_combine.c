/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine by the reference: for each token of one rank, add its rows in the documented order in FP32 and
 * round once. A term is a row of the token at some rank: in rank layout the i-th term is rank i's, in expert
 * layout the i-th choice's. */
#include "ref/ref.h"

#include <stddef.h>

struct term {
    int owner;   /* rank that holds the row */
    int64_t row; /* there, or -1: no such row, or past in_rows */
};

static struct term term_of(const struct ref_world *world, const struct ref_route *routes,
                           const struct tern_combine_args *args, int rank, uint32_t token, uint32_t i)
{
    int64_t share = world->num_experts / (uint32_t)world->num_ranks;
    struct term term = {(int)i, -1};

    if (routes[0].layout == TERN_LAYOUT_EXPERT) {
        int64_t id = world->topk_idx[rank][(size_t)token * world->topk + i];
        if (id < 0 || id >= (int64_t)world->num_experts) {
            return term;
        }
        term.owner = (int)(id / share);
    }
    term.row = terni_ref_route_row(&routes[term.owner], world, rank, token, i);
    if (term.row >= 0 && (uint64_t)term.row >= args[term.owner].in_rows) {
        term.row = -1;
    }
    return term;
}

static uint16_t *channels_of(const struct tern_rows *rows, uint64_t row)
{
    int64_t stride = rows->row_stride ? rows->row_stride : (int64_t)rows->row_bytes;

    return (uint16_t *)(void *)((char *)rows->data + (int64_t)row * stride);
}

static void combine_row(const struct tern_combine_args *args, int rank, uint32_t token,
                        const struct term *terms, uint32_t num_terms)
{
    const struct tern_combine_args *mine = &args[rank];
    uint32_t hidden = mine->out.row_bytes / 2;
    uint32_t c, i;

    for (c = 0; c < hidden; c++) {
        float sum = 0.0f;
        for (i = 0; i < 2; i++) {
            if (mine->bias[i]) {
                float bias =
                    terni_ref_bf16_value(((const uint16_t *)mine->bias[i])[(size_t)token * hidden + c]);
                sum = i == 0 || !mine->bias[0] ? bias : sum + bias; /* begins with a bias if there is one */
            }
        }
        for (i = 0; i < num_terms; i++) {
            if (terms[i].row >= 0) {
                sum += terni_ref_bf16_value(channels_of(&args[terms[i].owner].in, (uint64_t)terms[i].row)[c]);
            }
        }
        channels_of(&mine->out, token)[c] = terni_ref_bf16(sum);
    }
}

static void combine_weights(const struct ref_world *world, uint32_t layout,
                            const struct tern_combine_args *args, int rank, uint32_t token,
                            const struct term *terms)
{
    float *out = args[rank].out_weights + (size_t)token * world->topk;
    uint32_t k;
    int r;

    for (k = 0; k < world->topk; k++) {
        out[k] = 0.0f;
        if (layout == TERN_LAYOUT_EXPERT) {
            if (terms[k].row >= 0) {
                out[k] = args[terms[k].owner].in_weights[terms[k].row];
            }
            continue;
        }
        for (r = 0; r < world->num_ranks; r++) {
            if (terms[r].row >= 0) {
                out[k] += args[r].in_weights[(size_t)terms[r].row * world->topk + k];
            }
        }
    }
}

void terni_ref_combine(const struct ref_world *world, const struct ref_route *routes,
                       const struct tern_combine_args *args, int rank)
{
    struct term terms[TERN_MAX_RANKS]; /* TERN_MAX_TOPK is smaller */
    uint32_t layout = routes[rank].layout;
    uint32_t num_terms = layout == TERN_LAYOUT_RANK ? (uint32_t)world->num_ranks : world->topk;
    uint32_t t, i;

    for (t = 0; t < world->num_tokens[rank]; t++) {
        for (i = 0; i < num_terms; i++) {
            terms[i] = term_of(world, routes, args, rank, t, i);
        }
        combine_row(args, rank, t, terms, num_terms);
        if (args[rank].out_weights) {
            combine_weights(world, layout, args, rank, t, terms);
        }
    }
}
