/* SPDX-License-Identifier: Apache-2.0
 *
 * See layout.h. All sizes are 64-bit; the limits below keep row numbers in 31 bits, which is what kernels
 * index with, and every product in 64. */
#include "ep/layout_parts.h"

#include <string.h>

#include "ep/ep_rail.h"
#include "ep/tuning.h"
#include "kernels/inter_args.h"
#include "kernels/ll_args.h"
#include "pgas/pgas.h"

enum {
    MAX_EXPERTS = 1 << 14,
    MAX_TOKENS = 1 << 24,
    MAX_ROUTES = 1 << 10,
    MAX_ALIGNMENT = 1 << 16,
    DEFAULT_ROUTES = 4,
    DEFAULT_SMS = 24,
    DEFAULT_QUEUES = 8, /* to a rail peer; no more than MOST_QUEUES to all, if one to each is less */
    MOST_QUEUES = 40,
    DEFAULT_RING_BYTES =
        4 << 20,    /* to a rail peer, one way, or four chunks for each stream if that is more */
    LEAST_RING = 4, /* messages that a ring of a stream has room for */
    USUAL_RING = 8,
    LEAST_MESSAGES = 4 /* that a stream carries in an operation that is full */
};

/* Staging for one operation with every optional output, each column's rows 16-byte aligned. */
static uint64_t worst_staging(const struct ep_shape *s)
{
    uint64_t row =
        align_up(s->max_row_bytes, 16) + (uint64_t)EP_MAX_COLUMNS * 16 + (uint64_t)s->max_topk * 12 + 8;
    return s->max_rows * row + (uint64_t)EP_MAX_COLUMNS * ALIGNMENT;
}

/* Of rows of routes, unless the object is for low latency alone. */
static enum tern_status init_routes(const struct tern_ep_config *config, struct ep_shape *s)
{
    if (config->ll_tokens && !config->max_tokens && !config->max_row_bytes && !config->max_routes) {
        return TERN_OK;
    }
    TERN_TRY(terni_check_range("max_tokens", config->max_tokens, 1, MAX_TOKENS));
    TERN_TRY(terni_check_range("max_row_bytes", config->max_row_bytes, 1, MAX_ROW_BYTES));
    TERN_TRY(terni_check_range("max_routes", config->max_routes, 0, MAX_ROUTES));
    s->max_tokens = config->max_tokens;
    s->max_row_bytes = config->max_row_bytes;
    s->max_routes = config->max_routes ? config->max_routes : DEFAULT_ROUTES;
    return TERN_OK;
}

static uint64_t longest_message(const struct ep_shape *s)
{
    return align_up(s->max_row_bytes, 16) + (EP_MAX_COLUMNS + 3) * 16 + s->max_topk * sizeof(float) +
           RAIL_UNIT;
}

/* A stream that is sent is one warp's, so that warps without a stream would be idle: as many as warps look
 * after, but no more than there are messages and room for, and one for each queue at least. given:
 * net_ring_bytes, or 0. */
static void init_streams(uint64_t given, struct ep_shape *s)
{
    uint64_t ring = (given ? LEAST_RING : USUAL_RING) * longest_message(s);
    uint64_t streams = terni_tuning_streams(s->num_sms, s->num_domains);
    streams = lesser(streams, (s->max_tokens + LEAST_MESSAGES - 1ull) / LEAST_MESSAGES);
    s->net_ring_bytes =
        given ? given : larger(DEFAULT_RING_BYTES, streams * RAIL_USUAL_CHUNKS * RAIL_CHUNK_BYTES);
    /* Where rows are so long that rings limit the streams, few warps look after them. */
    uint64_t room =
        !given && ring > RAIL_USUAL_CHUNKS * RAIL_CHUNK_BYTES ? s->net_ring_bytes / 2 : s->net_ring_bytes;
    s->net_streams = (uint32_t)larger(lesser(streams, room / ring), s->net_queues);
}

/* Of one stream: its part of net_ring_bytes, by default no more than all messages of an operation. */
static enum tern_status ring_of(int is_given, struct ep_shape *s)
{
    uint64_t longest = longest_message(s);
    uint64_t each = s->net_ring_bytes / s->net_streams;
    uint64_t all = (s->max_tokens + s->net_streams - 1ull) / s->net_streams * longest;
    each = !is_given && each > all + RAIL_CHUNK_BYTES ? all + RAIL_CHUNK_BYTES : each;
    each = larger(each, LEAST_RING * longest);
    if (each > 1u << 30) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "net_ring_bytes is %llu; with %u streams each has %llu bytes of it, and can have %u",
                         (unsigned long long)s->net_ring_bytes, s->net_streams, (unsigned long long)each,
                         1u << 30);
    }
    s->ring_bytes = (uint32_t)align_up(each, RAIL_UNIT);
    /* Half of it is enough to begin with: for a chunk, which is a quarter, or a message (LEAST_RING), and for
     * less than a message that stays empty. But who has room for a whole operation keeps it. */
    uint64_t hold = all < s->ring_bytes ? s->ring_bytes - all : s->ring_bytes;
    s->ring_hold = (uint32_t)lesser(hold, s->ring_bytes / 2);
    return TERN_OK;
}

uint64_t terni_push_staging(const struct ep_shape *s, uint32_t row_bytes)
{
    return align_up((uint64_t)s->num_ranks * s->max_tokens * row_bytes, ALIGNMENT);
}

uint32_t terni_push_words(const struct ep_shape *s)
{
    return s->combine_push ? (s->max_tokens + PUSH_ROWS - 1) / PUSH_ROWS : 0;
}

/* Where staging is less than what an operation with tensors in no window could want, one might be refused for
 * what pushed rows take of it. */
static int push_suits(const struct tern_ep_config *config, const struct ep_shape *s)
{
    return s->max_routes > 0 && config->staging_bytes == 0 && s->num_domains == 1 &&
           s->num_ranks <= PUSH_MAX_RANKS && terni_tuning_pushes(s);
}

/* Rows of combine that are pushed need areas in staging, and a lane for each rank looks for them. */
static enum tern_status check_push(const struct ep_shape *s)
{
    uint64_t need = terni_push_staging(s, s->max_row_bytes);
    if (s->push_wish != TERN_PUSH_ALWAYS || s->max_routes == 0) { /* low latency has none */
        return TERN_OK;
    }
    if (s->num_domains > 1 || s->num_ranks > PUSH_MAX_RANKS) {
        return TERN_FAIL(
            TERN_UNSUPPORTED,
            "combine_push is 1, with %u ranks in %u domains; rows are pushed in one domain of %d "
            "ranks at most",
            s->num_ranks, s->num_domains, PUSH_MAX_RANKS);
    }
    if (need > s->staging_bytes) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "combine_push is 1: rows of %u bytes of %u ranks x %u tokens need %llu bytes of "
                         "staging; staging_bytes is %llu",
                         s->max_row_bytes, s->num_ranks, s->max_tokens, (unsigned long long)need,
                         (unsigned long long)s->staging_bytes);
    }
    return TERN_OK;
}

static enum tern_status check_drain(const struct ep_shape *s)
{
    if (s->dispatch_drain && s->num_domains > 1) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "dispatch_drain is 1, with %u ranks in %u domains; rows are drained in one domain",
                         s->num_ranks, s->num_domains);
    }
    return TERN_OK;
}

/* What there is in other domains, and how it is reached. */
static enum tern_status init_domains(const struct tern_ep_config *config, uint32_t domain_ranks,
                                     struct ep_shape *s)
{
    TERN_TRY(terni_check_range("domain_ranks", domain_ranks, 0, s->num_ranks));
    TERN_TRY(terni_check_range("transport", config->transport, TERN_TRANSPORT_AUTO, TERN_TRANSPORT_SOFTNIC));
    TERN_TRY(terni_check_range("net_queues", config->net_queues, 0, TERN_NET_MAX_QUEUES));
    TERN_TRY(terni_check_range("net_ring_bytes", config->net_ring_bytes, 0, 1ull << 40));
    s->domain_ranks = domain_ranks ? domain_ranks : s->num_ranks;
    if (s->num_ranks % s->domain_ranks != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "domain_ranks is %u; it must be a divisor of the %u ranks",
                         s->domain_ranks, s->num_ranks);
    }
    s->num_domains = s->num_ranks / s->domain_ranks;
    s->domain_experts = s->num_experts / s->num_domains;
    if (s->num_domains == 1) {
        s->ll_rail = 0;
        return TERN_OK; /* no network */
    }
    if (config->copy_engine) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "copy_engine is %u, with %u domains; across domains it is not supported yet",
                         config->copy_engine, s->num_domains);
    }
    /* Routes have rail peers to send to, low latency has all ranks of other domains. */
    uint32_t peers = s->max_routes > 0 ? s->num_domains - 1 : s->num_ranks - s->domain_ranks;
    uint32_t queues = MOST_QUEUES / peers;
    queues = queues < 1 ? 1 : queues < DEFAULT_QUEUES ? queues : DEFAULT_QUEUES;
    s->transport = config->transport;
    s->net_queues = config->net_queues ? config->net_queues : queues;
    init_streams(config->net_ring_bytes, s);
    s->limits_out = config->net_ring_bytes != 0;
    return s->max_routes > 0 ? ring_of(config->net_ring_bytes != 0, s) : TERN_OK;
}

enum tern_status terni_shape_init(const struct tern_ep_config *config, int num_ranks, uint32_t domain_ranks,
                                  struct ep_shape *shape)
{
    struct ep_shape s;
    memset(&s, 0, sizeof(s));
    if (num_ranks < 1 || num_ranks > TERN_MAX_RANKS) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "num_ranks is %d; it must be 1 to %d", num_ranks,
                         TERN_MAX_RANKS);
    }
    TERN_TRY(terni_check_range("num_experts", config->num_experts, 1, MAX_EXPERTS));
    if (config->num_experts % (uint32_t)num_ranks != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "num_experts is %u; it must be a multiple of the %d ranks",
                         config->num_experts, num_ranks);
    }
    TERN_TRY(terni_check_range("max_topk", config->max_topk, 1, TERN_MAX_TOPK));
    TERN_TRY(init_routes(config, &s));
    TERN_TRY(terni_check_range("num_sms", config->num_sms, 0, 1024));
    TERN_TRY(terni_check_range("transfer", config->transfer, 0, TERN_TRANSFER_PLAIN));
    TERN_TRY(terni_check_range("copy_engine", config->copy_engine, 0, 1));
    TERN_TRY(terni_check_range("combine_push", config->combine_push, TERN_PUSH_AUTO, TERN_PUSH_NEVER));
    TERN_TRY(terni_check_range("dispatch_drain", config->dispatch_drain, 0, 1));
    TERN_TRY(terni_check_range("reserved", config->reserved, 0, 0));
    s.num_ranks = (uint32_t)num_ranks;
    s.num_experts = config->num_experts;
    s.experts_a_rank = config->num_experts / (uint32_t)num_ranks;
    s.max_topk = config->max_topk;
    s.num_sms = config->num_sms ? config->num_sms : DEFAULT_SMS;
    s.timeout_ms = config->timeout_ms;
    s.transfer = config->transfer;
    s.copy_engine = config->copy_engine;
    s.push_wish = config->combine_push;
    s.dispatch_drain = s.max_routes > 0 ? config->dispatch_drain : 0;
    s.max_rows = (uint64_t)s.num_ranks * s.max_tokens;
    if (s.max_rows * s.max_topk > MAX_ROWS) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "%u ranks x %u tokens x %u choices are %llu rows; one rank can hold %llu",
                         s.num_ranks, s.max_tokens, s.max_topk, (unsigned long long)(s.max_rows * s.max_topk),
                         (unsigned long long)MAX_ROWS);
    }
    if (config->staging_bytes == TERN_STAGING_NONE || s.max_routes == 0) {
        s.staging_bytes = 0;
    } else if (config->staging_bytes == 0) {
        s.staging_bytes = align_up(worst_staging(&s), ALIGNMENT);
    } else {
        TERN_TRY(terni_check_range("staging_bytes", config->staging_bytes, 1, 1ull << 46));
        s.staging_bytes = align_up(config->staging_bytes, ALIGNMENT);
    }
    TERN_TRY(terni_shape_init_ll(config, &s));
    TERN_TRY(init_domains(config, domain_ranks, &s));
    TERN_TRY(check_push(&s));
    s.combine_push = s.push_wish == TERN_PUSH_ALWAYS
                         ? s.max_routes > 0
                         : s.push_wish == TERN_PUSH_AUTO && push_suits(config, &s);
    TERN_TRY(check_drain(&s));
    *shape = s;
    return TERN_OK;
}

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
    if (s->num_domains > 1) {
        uint64_t keys = larger(s->domain_ranks, s->domain_experts);
        l->message_of = take(&at, (uint64_t)s->max_tokens * s->num_domains * sizeof(int32_t));
        l->token_of = take(&at, (uint64_t)s->max_tokens * s->num_domains * sizeof(int32_t));
        l->num_out = take(&at, s->num_domains * sizeof(int32_t));
        l->num_in = take(&at, s->num_domains * sizeof(int32_t));
        l->far_bases = take(&at, s->num_domains * keys * sizeof(int32_t));
        l->run = take(&at, sizeof(uint64_t));
    }
    l->bytes = at;
}

uint32_t terni_entry_ints(const struct ep_shape *s, uint32_t layout, uint32_t topk)
{
    uint32_t targets = layout == TERN_LAYOUT_RANK && s->domain_ranks < topk ? s->domain_ranks : topk;
    uint64_t bytes =
        sizeof(struct forward_entry) + topk * sizeof(int32_t) + targets * sizeof(struct forward_target);
    return (uint32_t)(align_up(bytes, 16) / sizeof(int32_t));
}

/* What the network writes, and what it reads from here: of routes. */
static void layout_net(const struct ep_shape *s, struct ep_layout *l, uint64_t *at)
{
    uint64_t entry = terni_entry_ints(s, TERN_LAYOUT_EXPERT, s->max_topk) * sizeof(int32_t);
    if (s->num_domains == 1 || s->max_routes == 0) {
        return;
    }
    l->row_bytes =
        align_up(sizeof(struct rail_row) + (s->domain_ranks + (uint64_t)s->domain_experts) * sizeof(uint32_t),
                 ALIGNMENT);
    l->block_bytes = align_up(s->max_tokens * entry, ALIGNMENT);
    l->rows_in = take(at, 2ull * s->num_domains * l->row_bytes);
    l->rows_out = take(at, 2ull * s->num_domains * l->row_bytes);
    l->blocks_in = take(at, (uint64_t)s->max_routes * s->num_domains * l->block_bytes);
    l->blocks_out = take(at, 2ull * s->num_domains * l->block_bytes);
    l->rails = take(at, terni_rail_ring_bytes(s->num_domains, s->net_streams, s->ring_bytes));
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
    uint64_t far = s->num_domains > 1 ? s->num_domains : 0;

    uint64_t at =
        s->num_domains > 1 ? align_up(terni_pgas_own_bytes((int)s->num_ranks, EP_NET_TEAMS), ALIGNMENT) : 0;
    l.control = at;
    l.done = take(&at, (uint64_t)s->domain_ranks * EP_MAX_BLOCKS * sizeof(uint64_t));
    l.abort = take(&at, 3 * sizeof(uint64_t)); /* and whom the rank waits for (kernels/inter_fault.h) */
    l.message = take(&at, 2ull * s->domain_ranks * MESSAGE_WORDS * sizeof(uint64_t));
    l.counts =
        take(&at, 2ull * s->num_ranks * (s->domain_ranks + (uint64_t)s->domain_experts) * sizeof(uint64_t));
    l.pieces = take(&at, (uint64_t)s->num_ranks * EP_MAX_PIECES * sizeof(uint64_t));
    l.pushed = take(&at, (uint64_t)s->num_ranks * terni_push_words(s) * sizeof(uint64_t));
    uint64_t phases = s->dispatch_drain ? (uint64_t)s->num_ranks * DRAIN_PHASES : 0;
    l.drained = take(&at, phases * EP_MAX_BLOCKS * sizeof(uint64_t));
    l.ends = take(&at, phases * sizeof(uint64_t));
    terni_layout_lane(s, &l.ll);
    l.ll_entries = take(&at, s->ll_lanes * 2 * l.ll.entry_bytes);
    l.ll_arrivals = take(&at, s->ll_lanes * 2 * l.ll.arrival_bytes);
    l.ll_words = take(&at, s->ll_lanes * 2 * l.ll.word_bytes);   /* here, as a reset zeroes them, */
    l.ll_blanks = take(&at, s->ll_lanes * 2 * l.ll.blank_bytes); /* and these, */
    l.ll_ahead = take(&at, s->ll_lanes * 2 * l.ll.ahead_bytes);  /* and these */
    l.ll_heard = take(&at, s->ll_mask * s->num_ranks * sizeof(uint64_t));
    l.ll_alive = take(&at, s->ll_mask * s->num_ranks * sizeof(uint64_t));
    l.row_tails = take(&at, far * sizeof(uint64_t));
    l.block_tails = take(&at, far * sizeof(uint64_t));
    l.rail_words = take(&at, far ? terni_rail_word_bytes(s->num_domains, s->net_streams) : 0);
    l.control_bytes = at - l.control;
    l.net_bytes = at;
    layout_net(s, &l, &at);
    l.ll_entries_out = take(&at, far ? s->ll_lanes * 2 * l.ll.entry_bytes : 0);
    l.ll_rows_out = take(&at, s->ll_lanes * 2 * l.ll.rows_out_bytes);
    l.net_bytes = at - l.net_bytes;
    l.ll_buffers = take(&at, s->ll_lanes * 2 * l.ll.buffer_bytes);
    l.staging = take(&at, s->staging_bytes);
    l.window_bytes = at;

    layout_route(s, &l.route);
    at = 0;
    l.state = take(&at, sizeof(struct ep_state));
    l.cells =
        take(&at, ROUTE_MAX_WORKERS * (s->num_ranks + (uint64_t)s->num_experts + far) * sizeof(uint64_t));
    l.finished = take(&at, ROUTE_MAX_WORKERS * sizeof(uint64_t));
    l.runs = take(&at, far ? sizeof(uint64_t) : 0);
    l.rail_state = take(&at, far ? terni_rail_state_bytes(s->num_domains, s->net_streams) : 0);
    l.ll_states = take(&at, s->ll_lanes * sizeof(struct ll_state));
    l.ll_waits = take(&at, s->ll_lanes * l.ll.wait_bytes);
    l.ll_peers = take(&at, s->ll_mask * s->num_ranks * sizeof(struct ll_peer));
    l.ll_verdicts = take(&at, s->ll_lanes * l.ll.verdict_bytes);
    l.ll_chunks = take(&at, s->ll_lanes * l.ll.chunk_bytes);
    l.state_bytes = at;
    l.routes = take(&at, s->max_routes * l.route.bytes);
    l.ll_lanes = take(&at, s->ll_lanes * l.ll.bytes);
    l.device_bytes = at;

    layout_route_host(s, &l.route_host);
    at = 0;
    l.record = take(&at, sizeof(struct ep_record));
    l.latest = take(&at, EP_MAX_BLOCKS * sizeof(uint64_t));
    l.route_hosts = take(&at, s->max_routes * l.route_host.bytes);
    l.ll_bad_ids = take(&at, s->ll_lanes * sizeof(struct ep_record));
    l.ll_news = take(&at, s->ll_mask * s->num_ranks * sizeof(struct ep_record));
    l.ll_view = take(&at, s->ll_mask * s->num_ranks * sizeof(uint64_t));
    l.host_bytes = at;

    *layout = l;
}

enum tern_status terni_shape_max_rows(const struct ep_shape *s, int layout, uint32_t alignment,
                                      uint64_t *rows)
{
    if (layout != TERN_LAYOUT_RANK && layout != TERN_LAYOUT_EXPERT) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "layout is %d; see enum tern_layout", layout);
    }
    TERN_TRY(terni_check_range("expert_alignment", alignment, 0, MAX_ALIGNMENT));
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
