/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws a random case. Most are small, so that many schedules fit into the time; sizes are drawn by
 * magnitude, and a case whose outputs would be too large loses tokens and channels until it fits. */
#include "ep_case.h"

#include <stdio.h>
#include <string.h>

struct ep_limits ep_case_limits(const struct test *t)
{
    struct ep_limits full = {0, 16, 300, 8192, 64u << 20};
    struct ep_limits small = {0, 4, 12, 512, 1u << 20};

    return t->scale >= 100 ? full : small;
}

/* first to last, every magnitude equally likely. */
static uint32_t by_magnitude(struct rng *r, uint32_t first, uint32_t last)
{
    uint32_t high = first;

    while (high < last && !rng_one_in(r, 6)) {
        high *= 2;
    }
    return rng_between(r, first, high < last ? high : last);
}

static void draw_ranks(struct ep_case *c, const struct ep_limits *limits, struct rng *r)
{
    static const int common[] = {1, 2, 2, 3, 4, 4, 5, 8};

    c->num_ranks = limits->num_ranks;
    if (!c->num_ranks) {
        c->num_ranks = rng_one_in(r, 5) ? (int)rng_between(r, 1, 16) : common[rng_below(r, 8)];
        c->num_ranks = c->num_ranks > limits->max_ranks ? limits->max_ranks : c->num_ranks;
    }
}

static void draw_shape(struct ep_case *c, const struct ep_limits *limits, struct rng *r)
{
    static const uint32_t alignments[] = {0, 1, 8, 128};
    struct batch_shape *s = &c->shape;

    s->num_experts = (uint32_t)c->num_ranks * rng_between(r, 1, 8);
    s->topk = rng_one_in(r, 40)  ? rng_between(r, 17, TERN_MAX_TOPK)
              : rng_one_in(r, 3) ? rng_between(r, 1, 16)
                                 : rng_between(r, 1, 8);
    s->idx_bytes = rng_one_in(r, 2) ? 4 : 8;
    s->layout = rng_one_in(r, 2) ? TERN_LAYOUT_RANK : TERN_LAYOUT_EXPERT;
    s->alignment = s->layout == TERN_LAYOUT_EXPERT ? alignments[rng_below(r, 4)] : 0;
    s->routing = rng_one_in(r, 3) ? (int)rng_below(r, NUM_ROUTINGS) : (int)rng_below(r, 2);
    s->max_tokens = rng_one_in(r, 12) ? rng_between(r, 100, 300) : by_magnitude(r, 3, 96);
    s->max_tokens = s->max_tokens > limits->max_tokens ? limits->max_tokens : s->max_tokens;
}

/* Channels that make rows of a multiple of 16 bytes at `bytes` a channel. */
static uint32_t draw_hidden(const struct ep_limits *limits, uint32_t bytes, struct rng *r)
{
    static const uint32_t models[] = {64, 128, 2048, 4096, 7168, 8192};
    uint32_t step = 16 / bytes;
    uint32_t hidden = rng_one_in(r, 4) ? models[rng_below(r, 6)] : by_magnitude(r, 64, 8192);

    hidden = hidden > limits->max_hidden ? limits->max_hidden : hidden;
    return (hidden + step - 1) / step * step;
}

static void draw_cargo(struct ep_case *c, const struct ep_limits *limits, struct rng *r)
{
    static const uint32_t odd[] = {1, 3, 4, 12, 16, 20, 48, 80};
    static const uint32_t casts[] = {TERN_CAST_FP8, TERN_CAST_FP8_POW2, TERN_CAST_FP8_UE8M0};
    uint32_t hidden = draw_hidden(limits, 1, r);
    uint32_t i;

    c->cargo = (enum cargo)rng_below(r, NUM_CARGOES);
    c->cast = TERN_CAST_NONE;
    c->num_in = 1;
    c->row_bytes[0] = 2 * hidden;
    c->combine_bytes = 2 * hidden;
    if (c->cargo == CARGO_BF16) {
        hidden = draw_hidden(limits, 2, r); /* 72 channels are a row of 144 bytes, an odd multiple of 16 */
        c->row_bytes[0] = 2 * hidden;
        c->combine_bytes = 2 * hidden;
    } else if (c->cargo == CARGO_FP8_SCALES || c->cargo == CARGO_FP8_PACKED) {
        c->num_in = 2;
        c->row_bytes[0] = hidden;
        c->row_bytes[1] =
            terni_ref_scale_bytes(c->cargo == CARGO_FP8_SCALES ? TERN_CAST_FP8 : TERN_CAST_FP8_UE8M0, hidden);
    } else if (c->cargo == CARGO_CAST) {
        c->cast = casts[rng_below(r, 3)];
        c->num_in = rng_one_in(r, 3) ? 2 : 1;
        c->row_bytes[1] = odd[rng_below(r, 8)];
    } else {
        c->num_in = rng_between(r, 2, 6);
        c->row_bytes[0] = 16 * rng_between(r, 1, 12);
        for (i = 1; i < c->num_in; i++) {
            c->row_bytes[i] = odd[rng_below(r, 8)];
        }
    }
}

/* Bytes of all payloads of one row, before or after the cast, whichever is more. */
static uint32_t row_bytes(const struct ep_case *c)
{
    uint32_t in = 0, out, i;

    for (i = 0; i < c->num_in; i++) {
        in += c->row_bytes[i];
    }
    out = in;
    if (c->cast != TERN_CAST_NONE) {
        out = in - c->row_bytes[0] / 2 + terni_ref_scale_bytes(c->cast, c->row_bytes[0] / 2);
    }
    in = in > out ? in : out;
    return in > c->combine_bytes ? in : c->combine_bytes;
}

/* Half the tokens or half the channels; 0 if there is nothing left to take. */
static int shrink(struct ep_case *c, struct rng *r)
{
    int narrow = c->combine_bytes >= 256; /* 64 channels stay */

    if (c->shape.max_tokens > 4 && (!narrow || rng_one_in(r, 2))) {
        c->shape.max_tokens /= 2;
        return 1;
    }
    if (!narrow) {
        return 0;
    }
    c->combine_bytes = c->combine_bytes / 64 * 32;
    if (c->cargo != CARGO_MANY) {
        c->row_bytes[0] = c->row_bytes[0] / 64 * 32;
    }
    if (c->cargo == CARGO_FP8_SCALES || c->cargo == CARGO_FP8_PACKED) {
        c->row_bytes[0] = c->combine_bytes / 2;
        c->row_bytes[1] = terni_ref_scale_bytes(
            c->cargo == CARGO_FP8_SCALES ? TERN_CAST_FP8 : TERN_CAST_FP8_UE8M0, c->row_bytes[0]);
    }
    return 1;
}

/* The most rows a rank can receive, by the plainest bound. */
static uint64_t rows_bound(const struct ep_case *c)
{
    uint64_t tokens = (uint64_t)c->num_ranks * c->shape.max_tokens;
    uint64_t padding = (uint64_t)c->shape.num_experts / (uint32_t)c->num_ranks * (c->shape.alignment + 1);

    return c->shape.layout == TERN_LAYOUT_RANK ? tokens : tokens * c->shape.topk + padding;
}

static void draw_config(struct ep_case *c, struct rng *r)
{
    struct tern_ep_config *e = &c->config;
    struct tern_ep_config init = TERN_EP_CONFIG_INIT;
    uint64_t rows = 0;

    *e = init;
    e->num_experts = c->shape.num_experts;
    e->max_topk = c->shape.topk + (rng_one_in(r, 4) ? rng_below(r, 4) : 0);
    e->max_tokens = c->shape.max_tokens + (rng_one_in(r, 3) ? rng_below(r, 9) : 0);
    e->max_row_bytes = row_bytes(c);
    e->max_routes = rng_below(r, 3);
    e->num_sms = rng_one_in(r, 4) ? 0 : rng_between(r, 1, 4);
    e->transfer = rng_one_in(r, 3) ? TERN_TRANSFER_PLAIN : TERN_TRANSFER_AUTO;
    if (c->windows_only) {
        e->staging_bytes = TERN_STAGING_NONE;
    } else if (c->shape.layout == TERN_LAYOUT_EXPERT || rng_one_in(r, 2)) {
        (void)tern_ep_max_rows(e, c->num_ranks, (int)c->shape.layout, c->shape.alignment, &rows);
        e->staging_bytes = rows * (e->max_row_bytes + 12ull * e->max_topk + 512) + 65536;
    }
}

static void draw_engine(struct ep_case *c)
{
    struct rng r = {c->seed + 99}; /* of its own: the other draws stay what they are */

    c->copy_engine = c->shape.layout == TERN_LAYOUT_RANK && rng_one_in(&r, 3);
    c->config.copy_engine = c->copy_engine || rng_one_in(&r, 8);
    if (c->copy_engine && c->config.staging_bytes) {
        c->config.staging_bytes = (uint64_t)c->num_ranks * (c->config.max_tokens + 1ull) *
                                      (c->config.max_row_bytes + 12ull * c->config.max_topk + 512) +
                                  65536;
    }
}

/* On the cpu machine ranks of one process have two processors each, if there are no more. */
enum { PUSHING_RANKS = 8 };

/* Half of the cases in rank layout with bulk copies. */
static void draw_push(struct ep_case *c)
{
    struct rng r = {c->seed + 77};
    uint64_t need = (uint64_t)c->num_ranks * c->config.max_tokens *
                        (c->config.max_row_bytes + 4ull * c->config.max_topk) +
                    65536;

    c->pushes = !c->copy_engine && c->shape.layout == TERN_LAYOUT_RANK &&
                c->config.transfer != TERN_TRANSFER_PLAIN && c->num_ranks <= PUSHING_RANKS &&
                rng_one_in(&r, 2);
    c->config.combine_push = c->pushes ? TERN_PUSH_ALWAYS : TERN_PUSH_NEVER;
    if (c->pushes && (c->windows_only || (c->config.staging_bytes && c->config.staging_bytes < need))) {
        c->config.staging_bytes = need;
    }
}

/* Likewise. */
static void draw_drain(struct ep_case *c)
{
    struct rng r = {c->seed + 66};

    c->drains = c->shape.layout == TERN_LAYOUT_RANK && c->config.transfer != TERN_TRANSFER_PLAIN &&
                c->num_ranks <= PUSHING_RANKS && rng_one_in(&r, 2);
    c->config.dispatch_drain = (uint32_t)c->drains;
}

void ep_case_draw(struct ep_case *c, uint64_t seed, const struct ep_limits *limits)
{
    struct rng r = {seed * 0x2545f4914f6cdd1du};
    uint64_t bytes = rng_one_in(&r, 40) ? limits->max_bytes : limits->max_bytes / 8;

    memset(c, 0, sizeof *c);
    c->seed = seed;
    draw_ranks(c, limits, &r);
    draw_shape(c, limits, &r);
    draw_cargo(c, limits, &r);
    c->room = (enum room)rng_below(&r, 3);
    c->windows_only = rng_one_in(&r, 3);
    c->num_biases = (int)rng_below(&r, 3);
    c->weights = !rng_one_in(&r, 4);
    c->deterministic = 1;
    while (rows_bound(c) * row_bytes(c) * (uint64_t)c->num_ranks > bytes && shrink(c, &r)) {
    }
    draw_config(c, &r);
    draw_engine(c);
    draw_push(c);
    draw_drain(c);
}

void ep_case_cut(struct ep_case *c, int domain_ranks, uint32_t transport)
{
    struct rng r = {c->seed + 55};

    c->domain_ranks = domain_ranks;
    c->copy_engine = 0;
    c->config.copy_engine = 0;
    c->pushes = 0;
    c->config.combine_push = TERN_PUSH_NEVER;
    c->drains = 0;
    c->config.dispatch_drain = 0;
    c->config.domain_ranks = (uint32_t)domain_ranks;
    c->config.transport = transport;
    c->config.net_queues = rng_one_in(&r, 3) ? 0 : rng_between(&r, 1, 5);
    /* Mostly rings of few messages, so that they go round. */
    c->config.net_ring_bytes =
        rng_one_in(&r, 4) ? 0 : rng_between(&r, 1, 16) * (c->config.max_row_bytes + 512ull);
}

void ep_case_text(const struct ep_case *c, char *text, size_t text_bytes)
{
    static const char *const rooms[] = {"exact", "static", "short"};
    static const char *const cargoes[] = {"bf16", "fp8+scales", "fp8+packed", "many", "cast"};
    static const char *const routings[] = {"uniform", "mixed", "one expert", "one rank", "none"};

    snprintf(
        text, text_bytes,
        "seed %llu: %d ranks, %u experts, top-%u int%u, up to %u tokens, %s layout, alignment %u, routing "
        "%s, "
        "room %s, cargo %s, cast %u, %u payloads, row[0] %u bytes, combine %u bytes, %d biases, weights %d, "
        "windows only %d, copy engine %d, pushes %d, drains %d, sms %u, transfer %u, max row %u bytes, "
        "domains of %d, "
        "%u queues, "
        "rings of "
        "%llu bytes",
        (unsigned long long)c->seed, c->num_ranks, c->shape.num_experts, c->shape.topk,
        8 * c->shape.idx_bytes, c->shape.max_tokens, c->shape.layout == TERN_LAYOUT_RANK ? "rank" : "expert",
        c->shape.alignment, routings[c->shape.routing], rooms[c->room], cargoes[c->cargo], c->cast, c->num_in,
        c->row_bytes[0], c->combine_bytes, c->num_biases, c->weights, c->windows_only, c->copy_engine,
        c->pushes, c->drains, c->config.num_sms, c->config.transfer, c->config.max_row_bytes, c->domain_ranks,
        c->config.net_queues, (unsigned long long)c->config.net_ring_bytes);
}
