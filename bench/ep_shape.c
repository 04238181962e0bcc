/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and arguments of one shape. Row counts are known before any rank is open, because every process has
 * the whole routing; so the window is sized exactly, and the counts that the route kernel gives are checked
 * against it rather than believed. */
#include "bench_ep.h"
#include "fill.h"
#include "pgas/pgas.h"
#include "transport.h"

#include <string.h>

enum { SLACK_BYTES = 4 << 20 };

uint32_t cast_of(const struct options *o) { return o->dtype == DTYPE_CAST ? TERN_CAST_FP8 : TERN_CAST_NONE; }

/* All but what the machine and the routing decide. */
static struct tern_ep_config config_of(const struct options *o, uint32_t tokens)
{
    struct tern_ep_config config = TERN_EP_CONFIG_INIT;
    config.num_experts = o->experts;
    config.max_topk = o->topk;
    config.max_tokens = tokens != 0 ? tokens : 1;
    config.max_row_bytes = 2 * o->hidden; /* combine's rows; dispatch's are no larger */
    config.transfer = o->transfer;
    config.staging_bytes = TERN_STAGING_NONE;
    config.domain_ranks = o->net.domain_size;
    config.net_queues = o->net.queues;
    return config;
}

/* What the library would refuse is refused before memory is taken for it. */
static enum tern_status check_config(const struct options *o, int num_ranks, uint32_t tokens)
{
    struct tern_ep_config config = config_of(o, tokens);
    struct tern_ep_sizes sizes = TERN_EP_SIZES_INIT;
    return tern_ep_get_sizes(&config, num_ranks, &sizes);
}

enum tern_status shape_open(struct shape *s, const struct options *o, int num_ranks, uint32_t tokens)
{
    memset(s, 0, sizeof(*s));
    s->options = o;
    s->hidden = o->hidden;
    s->row_bytes = o->dtype == DTYPE_BF16 ? 2 * o->hidden : o->hidden;
    s->scale_bytes = o->dtype == DTYPE_BF16 ? 0 : terni_ref_scale_bytes(TERN_CAST_FP8, o->hidden);
    if (s->row_bytes % 16 != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--hidden %u makes rows of %u bytes, not a multiple of 16",
                         o->hidden, s->row_bytes);
    }
    TERN_TRY(check_config(o, num_ranks, tokens));
    return routing_open(o, num_ranks, tokens, &s->routing);
}

void shape_close(struct shape *s) { routing_close(&s->routing); }

static int in_window(enum buffer b) { return b >= BUF_ROWS && b <= BUF_EXPERTS; }

uint64_t shape_rows(const struct shape *s, int rank, enum buffer b)
{
    return b >= BUF_ROWS && b <= BUF_EXPERTS ? s->routing.routes[rank].num_rows : s->routing.tokens;
}

uint32_t shape_row_bytes(const struct shape *s, enum buffer b)
{
    const struct options *o = s->options;
    uint32_t topk = s->routing.topk;
    int by_rank = o->layout == TERN_LAYOUT_RANK;
    switch (b) {
    case BUF_TOKENS:
        return o->dtype == DTYPE_FP8 ? s->hidden : 2 * s->hidden;
    case BUF_SCALES:
        return o->dtype == DTYPE_FP8 ? s->scale_bytes : 0;
    case BUF_IDS:
        return topk * (uint32_t)sizeof(int64_t);
    case BUF_WEIGHTS:
        return topk * (uint32_t)sizeof(float);
    case BUF_ROWS:
        return s->row_bytes;
    case BUF_ROW_SCALES:
        return s->scale_bytes;
    case BUF_ROW_IDS:
        return o->meta && by_rank ? topk * (uint32_t)sizeof(int64_t) : 0;
    case BUF_ROW_WEIGHTS:
        return o->meta ? (by_rank ? topk : 1) * (uint32_t)sizeof(float) : 0;
    case BUF_SOURCES:
        return o->meta ? 2 * (uint32_t)sizeof(int32_t) : 0;
    case BUF_EXPERTS:
    case BUF_SUMS:
        return 2 * s->hidden;
    case BUF_SUM_WEIGHTS:
        return o->meta ? topk * (uint32_t)sizeof(float) : 0;
    case NUM_BUFFERS:
        break;
    }
    return 0;
}

/* Bytes to allocate; 0 if the options do not want the buffer. An empty one has room for a row: it needs an
 * address. */
static uint64_t buffer_bytes(const struct shape *s, int rank, enum buffer b)
{
    uint64_t rows = shape_rows(s, rank, b);
    return (rows != 0 ? rows : 1) * shape_row_bytes(s, b);
}

uint64_t shape_heap_bytes(const struct shape *s)
{
    uint64_t most = 0;
    int r, b;
    for (r = 0; r < s->routing.num_ranks; r++) {
        uint64_t sum = 0;
        for (b = 0; b < NUM_BUFFERS; b++) {
            if (in_window((enum buffer)b)) {
                sum += buffer_bytes(s, r, (enum buffer)b) + 512; /* alignment */
            }
        }
        most = sum > most ? sum : most;
    }
    return most;
}

/* ---- Open ---- */

static enum tern_status open_eps(struct bench *b)
{
    const struct shape *s = &b->shape;
    struct tern_ep_config config = config_of(s->options, s->routing.tokens);
    struct tern_ep *eps[TERN_MAX_RANKS];
    int i;
    config.num_sms = s->sms;
    config.transport = s->transport;
    config.dispatch_drain = s->options->drain;
    if (s->options->tensor) {
        config.staging_bytes = shape_heap_bytes(s) + SLACK_BYTES;
    }
    if (s->options->combine == COMBINE_AUTO) {
        /* Without its usual staging an object does not push. */
        int may_push = s->options->layout == TERN_LAYOUT_RANK && (int)s->domain_ranks == b->party->num_ranks;
        config.staging_bytes = may_push ? 0 : config.staging_bytes;
    } else if (s->options->combine != COMBINE_PULL) {
        uint64_t rows = (uint64_t)b->party->num_ranks * config.max_tokens;
        config.staging_bytes =
            (s->options->tensor ? config.staging_bytes : 0) + rows * config.max_row_bytes + SLACK_BYTES;
    }
    config.copy_engine = s->options->combine == COMBINE_ENGINE;
    config.combine_push = s->options->combine == COMBINE_AUTO   ? TERN_PUSH_AUTO
                          : s->options->combine == COMBINE_PUSH ? TERN_PUSH_ALWAYS
                                                                : TERN_PUSH_NEVER;
    TERN_TRY(party_open_eps(b->party, &config, eps));
    for (i = 0; i < b->party->num_local; i++) {
        b->seats[i].ep = eps[i];
    }
    return TERN_OK;
}

static enum tern_status take_buffers(struct bench *b, struct seat *seat)
{
    int k;
    for (k = 0; k < NUM_BUFFERS; k++) {
        uint64_t bytes = buffer_bytes(&b->shape, seat->rank, (enum buffer)k);
        int window = in_window((enum buffer)k) && !b->shape.options->tensor;
        if (bytes != 0) {
            TERN_TRY(tern_alloc(seat->comm, window ? TERN_MEMORY_WINDOW : TERN_MEMORY_DEVICE, bytes,
                                &seat->buffers[k]));
        }
    }
    return TERN_OK;
}

static struct tern_rows rows_at(void *data, uint32_t bytes)
{
    struct tern_rows rows = {data, bytes, 0, 0, 0};
    return rows;
}

static void fill_args(const struct shape *s, struct seat *seat)
{
    static const struct tern_route_args route_init = TERN_ROUTE_ARGS_INIT;
    static const struct tern_dispatch_args dispatch_init = TERN_DISPATCH_ARGS_INIT;
    static const struct tern_combine_args combine_init = TERN_COMBINE_ARGS_INIT;
    const struct options *o = s->options;
    void **buf = seat->buffers;
    seat->route_args = route_init;
    seat->route_args.topk_idx = buf[BUF_IDS];
    seat->route_args.idx_bytes = sizeof(int64_t);
    seat->route_args.num_tokens = s->routing.tokens;
    seat->route_args.topk = s->routing.topk;
    seat->route_args.layout = o->layout;
    seat->route_args.expert_alignment = o->align;

    seat->in[0] = rows_at(buf[BUF_TOKENS], shape_row_bytes(s, BUF_TOKENS));
    seat->in[1] = rows_at(buf[BUF_SCALES], s->scale_bytes);
    seat->out[0] = rows_at(buf[BUF_ROWS], s->row_bytes);
    seat->out[1] = rows_at(buf[BUF_ROW_SCALES], s->scale_bytes);
    seat->dispatch = dispatch_init;
    seat->dispatch.in = seat->in;
    seat->dispatch.out = seat->out;
    seat->dispatch.num_in = o->dtype == DTYPE_FP8 ? 2 : 1;
    seat->dispatch.cast = cast_of(o);
    seat->dispatch.out_rows = seat->num_rows;
    seat->dispatch.zero_padding = o->align > 1;
    seat->dispatch.num_sms = s->sms;
    seat->combine = combine_init;
    seat->combine.in = rows_at(buf[BUF_EXPERTS], 2 * s->hidden);
    seat->combine.in_rows = seat->num_rows;
    seat->combine.out = rows_at(buf[BUF_SUMS], 2 * s->hidden);
    seat->combine.num_sms = s->sms;
    seat->combine.copy_engine = s->options->combine == COMBINE_ENGINE;
    if (o->meta) {
        seat->dispatch.topk_weights = (const float *)buf[BUF_WEIGHTS];
        seat->dispatch.out_topk_idx = buf[BUF_ROW_IDS];
        seat->dispatch.out_topk_weights = (float *)buf[BUF_ROW_WEIGHTS];
        seat->dispatch.out_source = (int32_t *)buf[BUF_SOURCES];
        seat->combine.in_weights = (const float *)buf[BUF_ROW_WEIGHTS];
        seat->combine.out_weights = (float *)buf[BUF_SUM_WEIGHTS];
    }
}

void shape_fill_row(const struct shape *s, int rank, enum buffer b, uint64_t row, void *at)
{
    uint64_t seed = s->options->seed;
    if (b == BUF_TOKENS && s->options->dtype == DTYPE_FP8) {
        fill_e4m3(fill_begin(seed, FILL_TOKENS, (uint64_t)rank, row), (uint8_t *)at, s->hidden);
    } else if (b == BUF_TOKENS) {
        fill_bf16(fill_begin(seed, FILL_TOKENS, (uint64_t)rank, row), (uint16_t *)at, s->hidden);
    } else if (b == BUF_SCALES) {
        fill_f32(fill_begin(seed, FILL_SCALES, (uint64_t)rank, row), (float *)at, s->scale_bytes / 4);
    } else {
        fill_bf16(fill_begin(seed, FILL_EXPERTS, (uint64_t)rank, row), (uint16_t *)at, s->hidden);
    }
}

/* One buffer of one rank, as what makes its rows sees it. */
struct filled {
    const struct shape *shape;
    int rank;
    enum buffer buffer;
};

static void make_row(void *user, uint64_t row, void *at)
{
    const struct filled *f = (const struct filled *)user;
    shape_fill_row(f->shape, f->rank, f->buffer, row, at);
}

static enum tern_status fill_buffer(struct pieces *p, const struct shape *s, struct seat *seat, enum buffer b)
{
    struct filled filled = {s, seat->rank, b};
    struct piece_rows rows = {seat->buffers[b], shape_row_bytes(s, b), 0, shape_rows(s, seat->rank, b)};
    return pieces_fill(p, &rows, make_row, &filled);
}

static enum tern_status fill_inputs(void *user, int i)
{
    struct bench *b = (struct bench *)user;
    const struct shape *s = &b->shape;
    struct seat *seat = &b->seats[i];
    uint64_t first = (uint64_t)seat->rank * s->routing.tokens * s->routing.topk;
    enum tern_status status = TERN_OK;
    struct pieces pieces;
    if (s->routing.tokens != 0) {
        TERN_TRY(tern_copy(seat->comm, seat->buffers[BUF_IDS], s->routing.ids + first,
                           buffer_bytes(s, seat->rank, BUF_IDS), seat->stream));
        TERN_TRY(tern_copy(seat->comm, seat->buffers[BUF_WEIGHTS], s->routing.weights + first,
                           buffer_bytes(s, seat->rank, BUF_WEIGHTS), seat->stream));
        TERN_TRY(tern_stream_synchronize(seat->comm, seat->stream));
    }
    TERN_TRY(pieces_open(&pieces, seat->comm, seat->stream));
    status = fill_buffer(&pieces, s, seat, BUF_TOKENS);
    if (status == TERN_OK) {
        status = fill_buffer(&pieces, s, seat, BUF_SCALES);
    }
    if (status == TERN_OK) {
        status = fill_buffer(&pieces, s, seat, BUF_EXPERTS);
    }
    pieces_close(&pieces);
    return status;
}

static enum tern_status open_routes(struct bench *b)
{
    int i;
    for (i = 0; i < b->party->num_local; i++) {
        struct seat *seat = &b->seats[i];
        TERN_TRY(tern_route_open(seat->ep, &seat->route_args, seat->stream, &seat->route));
    }
    for (i = 0; i < b->party->num_local; i++) {
        struct seat *seat = &b->seats[i];
        struct tern_route_counts counts = TERN_ROUTE_COUNTS_INIT;
        TERN_TRY(tern_route_wait(seat->route, &counts));
        if (counts.num_rows != seat->num_rows) {
            return TERN_FAIL(TERN_INTERNAL_ERROR, "rank %d: the route gives %llu rows, the reference %llu",
                             seat->rank, (unsigned long long)counts.num_rows,
                             (unsigned long long)seat->num_rows);
        }
    }
    return TERN_OK;
}

static enum tern_status open_seat(struct bench *b, int i)
{
    struct seat *seat = &b->seats[i];
    seat->comm = b->party->comms[i];
    seat->stream = b->party->streams[i];
    seat->rank = b->party->first + i;
    seat->num_rows = b->shape.routing.routes[seat->rank].num_rows;
    TERN_TRY(take_buffers(b, seat));
    fill_args(&b->shape, seat);
    return TERN_OK;
}

/* NICs in software take some of what a rank may use. */
static enum tern_status choose_sms(struct bench *b)
{
    struct shape *s = &b->shape;
    uint32_t most = (uint32_t)terni_pgas_num_sms(b->party->comms[0], s->transport);
    TERN_TRY(ep_sms(s->options, b->party, &s->sms));
    if ((int)s->domain_ranks < b->party->num_ranks && s->sms > most) {
        if (s->options->sms != 0) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT,
                             "--sms %u: beside the NICs of its device a rank may use %u", s->sms, most);
        }
        s->sms = most;
    }
    return TERN_OK;
}

static enum tern_status open_all(struct bench *b)
{
    int i;
    TERN_TRY(transport_domains(b->shape.options, b->party, &b->shape.domain_ranks));
    TERN_TRY(choose_sms(b));
    b->shape.routing.world.domain_ranks = (int)b->shape.domain_ranks;
    for (i = 0; i < b->party->num_local; i++) {
        TERN_TRY(open_seat(b, i));
    }
    TERN_TRY(open_eps(b));
    TERN_TRY(party_each(b->party->num_local, fill_inputs, b));
    return open_routes(b);
}

enum tern_status bench_open(struct bench *b)
{
    enum tern_status status;
    memset(b->seats, 0, sizeof(b->seats));
    status = open_all(b);
    if (status != TERN_OK) {
        bench_close(b);
    }
    return status;
}

void bench_close(struct bench *b)
{
    int i, k;
    for (i = 0; i < b->party->num_local; i++) {
        tern_route_close(b->seats[i].route);
        tern_ep_close(b->seats[i].ep);
    }
    for (i = 0; i < b->party->num_local; i++) {
        struct seat *seat = &b->seats[i];
        for (k = 0; k < NUM_BUFFERS; k++) {
            if (seat->buffers[k] != NULL) {
                tern_free(seat->comm, seat->buffers[k]);
            }
        }
    }
    memset(b->seats, 0, sizeof(b->seats));
}

/* ---- Run ---- */

enum tern_status bench_issue(struct seat *seat, enum operation operation)
{
    switch (operation) {
    case OP_ROUTE:
        return tern_route_update(seat->route, &seat->route_args, seat->stream);
    case OP_DISPATCH:
        return tern_dispatch(seat->route, &seat->dispatch, seat->stream);
    default:
        if (seat->combine.copy_engine) { /* the engine's copies need the counts on the host */
            struct tern_route_counts counts = TERN_ROUTE_COUNTS_INIT;
            TERN_TRY(tern_route_wait(seat->route, &counts));
        }
        return tern_combine(seat->route, &seat->combine, seat->stream);
    }
}

enum tern_status bench_synchronize(struct bench *b)
{
    int i;
    for (i = 0; i < b->party->num_local; i++) {
        TERN_TRY(tern_ep_synchronize(b->seats[i].ep));
    }
    return party_synchronize(b->party);
}
