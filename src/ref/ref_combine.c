/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine by the reference: for each token of one rank, add its rows in the documented order in FP32 and
 * round once. A term is a row of the token at some rank: in rank layout the i-th term is rank i's, in expert
 * layout the i-th choice's.
 *
 * With several domains the terms of each are added first, by themselves, and rounded: that is what a domain
 * sends home. Then those are added, lowest domain first. A domain without a term adds nothing. */
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

static int domain_size(const struct ref_world *world)
{
    return world->domain_ranks ? world->domain_ranks : world->num_ranks;
}

static int is_term_of(const struct ref_world *world, const struct term *term, int domain)
{
    return term->row >= 0 && term->owner / domain_size(world) == domain;
}

static float channel_of(const struct tern_combine_args *args, const struct term *term, uint32_t c)
{
    return terni_ref_bf16_value(channels_of(&args[term->owner].in, (uint64_t)term->row)[c]);
}

/* What one of several domains sends home of channel c; *any: whether it does. */
static float partial_of(const struct ref_world *world, const struct tern_combine_args *args,
                        const struct term *terms, uint32_t num_terms, int domain, uint32_t c, int *any)
{
    float sum = 0.0f;
    uint32_t i;

    *any = 0;
    for (i = 0; i < num_terms; i++) {
        if (is_term_of(world, &terms[i], domain)) {
            float value = channel_of(args, &terms[i], c);
            sum = *any ? sum + value : value;
            *any = 1;
        }
    }
    return terni_ref_bf16_value(terni_ref_bf16(sum));
}

static float sum_of_biases(const struct tern_combine_args *mine, uint32_t token, uint32_t c)
{
    uint32_t hidden = mine->out.row_bytes / 2;
    float sum = 0.0f;
    uint32_t i;

    for (i = 0; i < 2; i++) {
        if (mine->bias[i]) {
            float bias = terni_ref_bf16_value(((const uint16_t *)mine->bias[i])[(size_t)token * hidden + c]);
            sum = i == 0 || !mine->bias[0] ? bias : sum + bias; /* begins with a bias if there is one */
        }
    }
    return sum;
}

static void combine_row(const struct ref_world *world, const struct tern_combine_args *args, int rank,
                        uint32_t token, const struct term *terms, uint32_t num_terms)
{
    const struct tern_combine_args *mine = &args[rank];
    int num_domains = world->num_ranks / domain_size(world);
    uint32_t c, i;
    int d, any;

    for (c = 0; c < mine->out.row_bytes / 2; c++) {
        float sum = sum_of_biases(mine, token, c);
        for (i = 0; num_domains == 1 && i < num_terms; i++) {
            if (terms[i].row >= 0) {
                sum += channel_of(args, &terms[i], c);
            }
        }
        for (d = 0; num_domains > 1 && d < num_domains; d++) {
            float partial = partial_of(world, args, terms, num_terms, d, c, &any);
            sum = any ? sum + partial : sum;
        }
        channels_of(&mine->out, token)[c] = terni_ref_bf16(sum);
    }
}

static void combine_weights(const struct ref_world *world, uint32_t layout,
                            const struct tern_combine_args *args, int rank, uint32_t token,
                            const struct term *terms)
{
    float *out = args[rank].out_weights + (size_t)token * world->topk;
    int size = domain_size(world);
    uint32_t k;
    int d, r;

    for (k = 0; k < world->topk; k++) {
        out[k] = 0.0f;
        if (layout == TERN_LAYOUT_EXPERT) {
            if (terms[k].row >= 0) {
                out[k] = args[terms[k].owner].in_weights[terms[k].row];
            }
            continue;
        }
        for (d = 0; d < world->num_ranks / size; d++) {
            float sum = 0.0f;
            for (r = d * size; r < (d + 1) * size; r++) {
                if (terms[r].row >= 0) {
                    sum += args[r].in_weights[(size_t)terms[r].row * world->topk + k];
                }
            }
            out[k] += sum;
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
        combine_row(world, args, rank, t, terms, num_terms);
        if (args[rank].out_weights) {
            combine_weights(world, layout, args, rank, t, terms);
        }
    }
}
