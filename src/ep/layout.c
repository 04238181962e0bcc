/* SPDX-License-Identifier: Apache-2.0
 *
 * See layout.h. All sizes are 64-bit; the limits below keep row numbers in 31 bits, which is what kernels
 * index with, and every product in 64. */
#include "ep/layout.h"

#include <string.h>

#include "kernels/ep_args.h"

enum {
    ALIGNMENT = 256, /* of every array: whole cache lines and DMA granules */
    MAX_EXPERTS = 1 << 14,
    MAX_TOKENS = 1 << 24,
    MAX_ROW_BYTES = 1 << 20,
    MAX_ROUTES = 1 << 10,
    MAX_ALIGNMENT = 1 << 16,
    DEFAULT_ROUTES = 4,
    DEFAULT_SMS = 24
};
static const uint64_t max_row_count = (1ull << 31) - 1;

static enum tern_status check_range(const char *field, uint64_t value, uint64_t low, uint64_t high)
{
    if (value < low || value > high) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s is %llu; it must be %llu to %llu", field,
                         (unsigned long long)value, (unsigned long long)low, (unsigned long long)high);
    }
    return TERN_OK;
}

/* Staging for one operation with every optional output, each column's rows 16-byte aligned. */
static uint64_t worst_staging(const struct ep_shape *s)
{
    uint64_t row =
        align_up(s->max_row_bytes, 16) + (uint64_t)EP_MAX_COLUMNS * 16 + (uint64_t)s->max_topk * 12 + 8;
    return s->max_rows * row + (uint64_t)EP_MAX_COLUMNS * ALIGNMENT;
}

enum tern_status terni_shape_init(const struct tern_ep_config *config, int num_ranks, struct ep_shape *shape)
{
    struct ep_shape s;
    memset(&s, 0, sizeof(s));
    if (num_ranks < 1 || num_ranks > TERN_MAX_RANKS) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "num_ranks is %d; it must be 1 to %d", num_ranks,
                         TERN_MAX_RANKS);
    }
    TERN_TRY(check_range("num_experts", config->num_experts, 1, MAX_EXPERTS));
    if (config->num_experts % (uint32_t)num_ranks != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "num_experts is %u; it must be a multiple of the %d ranks",
                         config->num_experts, num_ranks);
    }
    TERN_TRY(check_range("max_topk", config->max_topk, 1, TERN_MAX_TOPK));
    TERN_TRY(check_range("max_tokens", config->max_tokens, 1, MAX_TOKENS));
    TERN_TRY(check_range("max_row_bytes", config->max_row_bytes, 1, MAX_ROW_BYTES));
    TERN_TRY(check_range("max_routes", config->max_routes, 0, MAX_ROUTES));
    TERN_TRY(check_range("num_sms", config->num_sms, 0, 1024));
    TERN_TRY(check_range("transfer", config->transfer, 0, TERN_TRANSFER_PLAIN));
    TERN_TRY(check_range("copy_engine", config->copy_engine, 0, 1));
    TERN_TRY(check_range("reserved", config->reserved, 0, 0));
    s.num_ranks = (uint32_t)num_ranks;
    s.num_experts = config->num_experts;
    s.experts_a_rank = config->num_experts / (uint32_t)num_ranks;
    s.max_topk = config->max_topk;
    s.max_tokens = config->max_tokens;
    s.max_row_bytes = config->max_row_bytes;
    s.max_routes = config->max_routes ? config->max_routes : DEFAULT_ROUTES;
    s.num_sms = config->num_sms ? config->num_sms : DEFAULT_SMS;
    s.timeout_ms = config->timeout_ms;
    s.transfer = config->transfer;
    s.copy_engine = config->copy_engine;
    s.max_rows = (uint64_t)s.num_ranks * s.max_tokens;
    if (s.max_rows * s.max_topk > max_row_count) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "%u ranks x %u tokens x %u choices are %llu rows; one rank can hold %llu",
                         s.num_ranks, s.max_tokens, s.max_topk, (unsigned long long)(s.max_rows * s.max_topk),
                         (unsigned long long)max_row_count);
    }
    if (config->staging_bytes == TERN_STAGING_NONE) {
        s.staging_bytes = 0;
    } else if (config->staging_bytes == 0) {
        s.staging_bytes = align_up(worst_staging(&s), ALIGNMENT);
    } else {
        TERN_TRY(check_range("staging_bytes", config->staging_bytes, 1, 1ull << 46));
        s.staging_bytes = align_up(config->staging_bytes, ALIGNMENT);
    }
    *shape = s;
    return TERN_OK;
}

static uint64_t take(uint64_t *cursor, uint64_t bytes)
{
    uint64_t at = *cursor;
    *cursor = align_up(at + bytes, ALIGNMENT);
    return at;
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

static void layout_route(const struct ep_shape *s, struct route_layout *l)
{
    uint64_t at = 0;
    l->token_rows = take(&at, (uint64_t)s->max_tokens * larger(s->num_ranks, s->max_topk) * sizeof(int32_t));
    l->ids = take(&at, (uint64_t)s->max_tokens * s->max_topk * sizeof(int32_t));
    l->rank_sets = take(&at, (uint64_t)s->max_tokens * sizeof(struct ep_rank_set));
    l->bases = take(&at, larger(s->num_ranks, s->num_experts) * sizeof(int32_t));
    l->rank_offsets = take(&at, (s->num_ranks + 1ull) * sizeof(int32_t));
    l->expert_counts = take(&at, s->experts_a_rank * sizeof(int32_t));
    l->expert_offsets = take(&at, (s->experts_a_rank + 1ull) * sizeof(int32_t));
    l->num_rows = take(&at, sizeof(int32_t));
    l->overflow = take(&at, sizeof(uint64_t));
    l->bytes = at;
}

static void layout_route_host(const struct ep_shape *s, struct route_host_layout *l)
{
    uint64_t at = 0;
    l->ticket = take(&at, sizeof(uint64_t));
    l->epoch = take(&at, sizeof(uint64_t));
    l->bad_id = take(&at, sizeof(struct ep_record));
    l->num_rows = take(&at, 2 * sizeof(int32_t));
    l->rank_counts = take(&at, s->num_ranks * sizeof(int32_t));
    l->expert_counts = take(&at, s->experts_a_rank * sizeof(int32_t));
    l->expert_offsets = take(&at, (s->experts_a_rank + 1ull) * sizeof(int32_t));
    l->bytes = at;
}

void terni_layout_init(const struct ep_shape *s, struct ep_layout *layout)
{
    struct ep_layout l;
    memset(&l, 0, sizeof(l));

    uint64_t at = 0;
    l.done = take(&at, (uint64_t)s->num_ranks * EP_MAX_BLOCKS * sizeof(uint64_t));
    l.abort = take(&at, sizeof(uint64_t));
    l.message = take(&at, 2ull * s->num_ranks * MESSAGE_WORDS * sizeof(uint64_t));
    l.counts = take(&at, 2ull * s->num_ranks * (s->num_ranks + (uint64_t)s->num_experts) * sizeof(uint64_t));
    l.pieces = take(&at, (uint64_t)s->num_ranks * EP_MAX_PIECES * sizeof(uint64_t));
    l.control_bytes = at;
    l.staging = take(&at, s->staging_bytes);
    l.window_bytes = at;

    layout_route(s, &l.route);
    at = 0;
    l.state = take(&at, sizeof(struct ep_state));
    l.cells = take(&at, ROUTE_MAX_WORKERS * (s->num_ranks + (uint64_t)s->num_experts) * sizeof(uint64_t));
    l.finished = take(&at, ROUTE_MAX_WORKERS * sizeof(uint64_t));
    l.state_bytes = at;
    l.routes = take(&at, s->max_routes * l.route.bytes);
    l.device_bytes = at;

    layout_route_host(s, &l.route_host);
    at = 0;
    l.record = take(&at, sizeof(struct ep_record));
    l.latest = take(&at, sizeof(uint64_t));
    l.route_hosts = take(&at, s->max_routes * l.route_host.bytes);
    l.host_bytes = at;

    *layout = l;
}

enum tern_status terni_shape_max_rows(const struct ep_shape *s, int layout, uint32_t alignment,
                                      uint64_t *rows)
{
    if (layout != TERN_LAYOUT_RANK && layout != TERN_LAYOUT_EXPERT) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "layout is %d; see enum tern_layout", layout);
    }
    TERN_TRY(check_range("expert_alignment", alignment, 0, MAX_ALIGNMENT));
    if (layout == TERN_LAYOUT_RANK) {
        *rows = s->max_rows;
        return TERN_OK;
    }
    /* Duplicate ids are legal: every choice of every token may fall on one rank. Each expert that has a row
     * adds less than one alignment of padding, and there are no more such experts than choices. */
    uint64_t align = alignment ? alignment : 1;
    uint64_t choices = s->max_rows * s->max_topk;
    uint64_t padded = choices < s->experts_a_rank ? choices : s->experts_a_rank;
    *rows = choices + padded * (align - 1);
    return TERN_OK;
}
