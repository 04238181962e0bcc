/* SPDX-License-Identifier: Apache-2.0
 *
 * What one shape of low latency is, without a device: its options checked, which rows of slabs are in use and
 * how large every tensor is. All of it is the reference's, so that checks and byte counts need no
 * exchange. */
#include "bench_ll.h"

#include <stdlib.h>
#include <string.h>

struct tern_ep_config ll_config(const struct options *o, uint32_t tokens)
{
    struct tern_ep_config config = TERN_EP_CONFIG_INIT;
    config.num_experts = o->experts;
    config.max_topk = o->topk;
    config.max_tokens = 1; /* of high throughput, which has no part in this */
    config.max_row_bytes = 16;
    config.staging_bytes = TERN_STAGING_NONE;
    config.transfer = o->transfer;
    config.ll_tokens = tokens != 0 ? tokens : 1;
    config.ll_hidden = o->hidden;
    config.ll_lanes = o->ll.lanes;
    config.ll_mask = o->ll.mask != NO_MASK;
    config.ll_rail = o->ll.rail;
    config.domain_ranks = o->net.domain_size;
    config.net_queues = o->net.queues;
    return config;
}

/* What the library would refuse is refused before memory is taken for it. */
static enum tern_status check_options(const struct options *o, int num_ranks, uint32_t tokens)
{
    struct tern_ep_config config = ll_config(o, tokens);
    struct tern_ep_sizes sizes = TERN_EP_SIZES_INIT;
    uint32_t step = o->ll.cast == TERN_CAST_NONE ? 8 : 16;
    if (o->hidden % step != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--hidden %u is not a multiple of %u, with --cast %s",
                         o->hidden, step, options_word(COMMAND_LL, "--cast", o->ll.cast));
    }
    if (o->ll.layout == TERN_LL_BY_RANK && o->ll.weights != TERN_LL_WEIGHTS_AT_DISPATCH) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--layout rank needs --weights dispatch, not %s",
                         o->ll.weights == TERN_LL_WEIGHTS_AHEAD ? "ahead" : "combine");
    }
    if (o->ll.weights == TERN_LL_WEIGHTS_AHEAD && o->ll.mask != NO_MASK) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "--weights ahead with --mask %u: it is for objects without masks", o->ll.mask);
    }
    if (o->ll.weights == TERN_LL_WEIGHTS_AHEAD && o->net.domain_size != 0 &&
        o->net.domain_size != (uint32_t)num_ranks) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--weights ahead with --domain-size %u: it is for one domain",
                         o->net.domain_size);
    }
    if (o->ll.mask != NO_MASK && num_ranks == 1) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--mask %u: the only rank cannot be left out", o->ll.mask);
    }
    if (o->ll.mask != NO_MASK && o->ll.mask >= (uint32_t)num_ranks) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--mask %u: ranks are 0 to %d", o->ll.mask, num_ranks - 1);
    }
    if (o->ll.rail && o->net.domain_size == 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--rail needs --domain-size");
    }
    if (o->ll.rail && o->net.domain_size == (uint32_t)num_ranks) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--rail with --domain-size %u: %d ranks are one domain",
                         o->net.domain_size, num_ranks);
    }
    if (o->ll.rail && o->ll.mask != NO_MASK) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--rail with --mask %u: railed objects have no masks",
                         o->ll.mask);
    }
    return tern_ep_get_sizes(&config, num_ranks, &sizes);
}

/* Rank of the expert that choice `at` of a rank's tokens names; -1: none, or one that is left out. */
static int rank_of(const struct ll_shape *s, int source, size_t at)
{
    return s->ref.row_of[source][at] < 0 ? -1 : (int)(s->routing.topk_idx[source][at] / s->experts_here);
}

/* Tokens of each source that go to each group of so many ranks: [num_ranks, num_ranks / size]. */
static enum tern_status count_tokens(const struct ll_shape *s, int size, uint32_t **counts)
{
    const struct routing *g = &s->routing;
    size_t groups = (size_t)(g->num_ranks / size);
    *counts = (uint32_t *)calloc((size_t)g->num_ranks * groups, sizeof(**counts));
    if (!*counts) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for pairs of %d ranks", g->num_ranks);
    }
    for (int source = 0; source < g->num_ranks; source++) {
        for (size_t at = 0; at < (size_t)g->tokens * g->topk; at++) {
            int rank = rank_of(s, source, at), is_new = rank >= 0;
            for (size_t before = at - at % g->topk; is_new && before < at; before++) {
                int other = rank_of(s, source, before);
                is_new = other < 0 || other / size != rank / size;
            }
            if (is_new) {
                (*counts)[(size_t)source * groups + (size_t)(rank / size)]++;
            }
        }
    }
    return TERN_OK;
}

uint32_t ll_pairs(const struct ll_shape *s, int source, int rank)
{
    return s->pairs[(size_t)source * (size_t)s->routing.num_ranks + (size_t)rank];
}

uint32_t ll_messages(const struct ll_shape *s, int source, int domain)
{
    return s->messages[source * (s->routing.num_ranks / s->ref.rail_ranks) + domain];
}

enum tern_status ll_shape_open(struct ll_shape *s, const struct options *o, int num_ranks, uint32_t tokens)
{
    memset(s, 0, sizeof(*s));
    s->options = o;
    s->hidden = o->hidden;
    s->experts_here = o->experts / (uint32_t)num_ranks;
    s->row_bytes = o->ll.cast == TERN_CAST_NONE ? 2 * o->hidden : o->hidden;
    s->scale_words = o->ll.cast == TERN_CAST_NONE ? 0 : terni_ref_scale_bytes(o->ll.cast, o->hidden) / 4;
    s->num_slabs = o->ll.layout == TERN_LL_BY_RANK ? 1 : s->experts_here;
    s->max_tokens = tokens != 0 ? tokens : 1;
    s->slab_rows = (uint64_t)num_ranks * s->max_tokens;
    TERN_TRY(check_options(o, num_ranks, tokens));
    TERN_TRY(routing_open(o, num_ranks, tokens, &s->routing));
    terni_ref_ll_init(&s->ref, &s->routing.world, s->max_tokens);
    if (o->ll.mask != NO_MASK) {
        s->masked[o->ll.mask] = 1;
        terni_ref_ll_mask(&s->ref, s->masked);
    }
    s->ref.rail_ranks = o->ll.rail ? (int)o->net.domain_size : 0;
    enum tern_status status = count_tokens(s, 1, &s->pairs);
    if (status == TERN_OK && o->ll.rail) {
        status = count_tokens(s, s->ref.rail_ranks, &s->messages);
    }
    if (status != TERN_OK) {
        ll_shape_close(s);
    }
    return status;
}

void ll_shape_close(struct ll_shape *s)
{
    terni_ref_ll_fini(&s->ref);
    free(s->pairs);
    free(s->messages);
    routing_close(&s->routing);
}

static int by_rank(const struct ll_shape *s) { return s->options->ll.layout == TERN_LL_BY_RANK; }

uint32_t ll_num_runs(const struct ll_shape *s)
{
    return by_rank(s) ? (uint32_t)s->routing.num_ranks : s->experts_here;
}

struct ll_run ll_run(const struct ll_shape *s, int rank, uint32_t number)
{
    const struct routing *g = &s->routing;
    size_t expert = (size_t)rank * s->experts_here + number;
    uint64_t room = by_rank(s) ? s->max_tokens : s->slab_rows;
    struct ll_run run = {number * room, 0, room};
    if (by_rank(s)) {
        run.num = ll_pairs(s, (int)number, rank);
        return run;
    }
    for (int source = 0; source < g->num_ranks; source++) {
        run.num += (uint64_t)s->ref.counts[expert * (size_t)g->num_ranks + (size_t)source];
    }
    return run;
}

uint32_t ll_row_bytes(const struct ll_shape *s, enum ll_tensor t)
{
    switch (t) {
    case LT_IDS:
        return s->routing.topk * (uint32_t)sizeof(int64_t);
    case LT_WEIGHTS:
        return s->routing.topk * (uint32_t)sizeof(float);
    case LT_SLAB:
        return s->row_bytes;
    case LT_SCALES:
        return s->scale_words != 0 ? 4 : 0;
    case LT_COUNTS:
        return 4;
    case LT_RANGES:
        return s->options->meta && !by_rank(s) ? 8 : 0;
    case LT_SOURCES:
        return s->options->meta ? 4 : 0;
    case LT_ROW_IDS:
    case LT_ROW_WEIGHTS:
        return s->options->meta && by_rank(s) ? s->routing.topk * 4 : 0;
    case LT_SUM_COUNTS:
    case LT_WAITS:
        return s->options->ll.statistics ? 8 : 0;
    case LT_TOKENS:
    case LT_MADE:
    case LT_SUMS:
    case NUM_LL_TENSORS:
        break;
    }
    return 2 * s->hidden;
}

static uint64_t num_rows(const struct ll_shape *s, enum ll_tensor t)
{
    switch (t) {
    case LT_SLAB:
    case LT_SOURCES:
    case LT_ROW_IDS:
    case LT_ROW_WEIGHTS:
    case LT_MADE:
        return s->num_slabs * s->slab_rows;
    case LT_SCALES:
        return s->num_slabs * s->slab_rows * s->scale_words;
    case LT_COUNTS:
        return ll_num_runs(s);
    case LT_RANGES:
        return (uint64_t)s->experts_here * (uint64_t)s->routing.num_ranks;
    case LT_SUM_COUNTS:
        return s->experts_here;
    case LT_WAITS:
        return NUM_LL_OPERATIONS * (uint64_t)s->routing.num_ranks;
    default:
        return s->max_tokens; /* an empty tensor has room for a row: it needs an address */
    }
}

uint64_t ll_tensor_bytes(const struct ll_shape *s, enum ll_tensor t)
{
    return num_rows(s, t) * ll_row_bytes(s, t);
}

struct tern_ll_dispatch_args ll_dispatch_shape(const struct ll_shape *s)
{
    struct tern_ll_dispatch_args a = TERN_LL_DISPATCH_ARGS_INIT;
    a.idx_bytes = sizeof(int64_t);
    a.num_tokens = s->routing.tokens;
    a.topk = s->routing.topk;
    a.max_tokens = s->max_tokens;
    a.hidden = s->hidden;
    a.cast = s->options->ll.cast;
    a.weights = s->options->ll.weights;
    a.layout = s->options->ll.layout;
    a.num_sms = s->sms;
    return a;
}
