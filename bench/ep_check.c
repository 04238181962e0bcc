/* SPDX-License-Identifier: Apache-2.0
 *
 * The #wrong column. Outputs are poisoned, dispatch and combine run once more with what was timed, and every
 * element is compared bit for bit with what it should be. The reference (src/ref) says which row lies where
 * and what the casts are; the contents of a row come from their formula, so that nobody's input is needed.
 * Combine is a plain FP32 loop in the documented order, with several domains one for each and one over what
 * they send home. One thread a local rank. */
#include "bench_ep.h"
#include "fill.h"

#include <stdlib.h>
#include <string.h>

enum { POISON = 0xa5 };

struct check {
    struct bench *b;
    uint8_t *cast; /* cast only: [num_ranks, tokens] rows of E4M3 and then their scales */
    struct tally tallies[TERN_MAX_RANKS][NUM_OPERATIONS]; /* [num_local] */
};

/* Working memory of one rank's thread. */
struct scratch {
    const struct check *check;
    int rank;
    enum buffer buffer; /* whose rows are made */
    uint16_t *expert;   /* one row of BUF_EXPERTS */
    float *sum, *part;  /* [hidden] of the token; of what one of several domains adds */
};

/* ---- What should be there ---- */

/* The cast tokens of rank r. */
static enum tern_status cast_rank(void *user, int r)
{
    struct check *c = (struct check *)user;
    const struct shape *s = &c->b->shape;
    uint64_t bytes = s->hidden + s->scale_bytes, t;
    uint8_t *at = c->cast + (uint64_t)r * s->routing.tokens * bytes;
    uint16_t *token = (uint16_t *)malloc(2 * (size_t)s->hidden);
    if (token == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %u channels", s->hidden);
    }
    for (t = 0; t < s->routing.tokens; t++, at += bytes) {
        shape_fill_row(s, r, BUF_TOKENS, t, token);
        terni_ref_cast(TERN_CAST_FP8, token, s->hidden, at, at + s->hidden);
    }
    free(token);
    return TERN_OK;
}

static void make_token(const struct check *c, enum buffer b, const struct ref_row *from, void *at)
{
    const struct shape *s = &c->b->shape;
    uint64_t row = (uint64_t)from->rank * s->routing.tokens + (uint64_t)from->token;
    if (c->cast != NULL) {
        const uint8_t *bytes = c->cast + row * (s->hidden + s->scale_bytes);
        memcpy(at, b == BUF_ROWS ? bytes : bytes + s->hidden, shape_row_bytes(s, b));
    } else {
        shape_fill_row(s, from->rank, b == BUF_ROWS ? BUF_TOKENS : BUF_SCALES, (uint64_t)from->token, at);
    }
}

/* Ids and weights of a received row: in rank layout those of the token that are local, in expert layout the
 * weight of the one choice. */
static void make_meta(const struct shape *s, int rank, enum buffer b, const struct ref_row *from, void *at)
{
    const struct routing *g = &s->routing;
    uint64_t first = ((uint64_t)from->rank * g->tokens + (uint64_t)from->token) * g->topk;
    int64_t share = g->experts / (uint32_t)g->num_ranks;
    uint32_t k;
    if (s->options->layout == TERN_LAYOUT_EXPERT) {
        memcpy(at, &g->weights[first + (uint64_t)from->choice], sizeof(float));
        return;
    }
    for (k = 0; k < g->topk; k++) {
        int64_t id = g->ids[first + k];
        int here = id >= 0 && id / share == rank;
        if (b == BUF_ROW_IDS) {
            ((int64_t *)at)[k] = here ? id - rank * share : -1;
        } else {
            ((float *)at)[k] = here ? g->weights[first + k] : 0.0f;
        }
    }
}

/* Returns whether there is such a row. */
static int add_row(const struct shape *s, struct scratch *x, float *sum, int holder, int64_t row)
{
    uint32_t i;
    if (row < 0) {
        return 0;
    }
    shape_fill_row(s, holder, BUF_EXPERTS, (uint64_t)row, x->expert);
    for (i = 0; i < s->hidden; i++) {
        sum[i] += terni_ref_bf16_value(x->expert[i]);
    }
    return 1;
}

/* The rows that ranks from `first` on, as many as a domain has, hold of a token; how many there are. */
static int add_domain(const struct shape *s, struct scratch *x, float *sum, int first, uint32_t token)
{
    const struct routing *g = &s->routing;
    const int64_t *ids = g->ids + ((uint64_t)x->rank * g->tokens + token) * g->topk;
    int64_t share = g->experts / (uint32_t)g->num_ranks;
    int num = 0, end = first + (int)s->domain_ranks, r;
    uint32_t i;
    for (r = first; s->options->layout == TERN_LAYOUT_RANK && r < end; r++) {
        num += add_row(s, x, sum, r, terni_ref_route_row(&g->routes[r], &g->world, x->rank, token, 0));
    }
    for (i = 0; s->options->layout != TERN_LAYOUT_RANK && i < g->topk; i++) {
        int holder = ids[i] < 0 ? -1 : (int)(ids[i] / share);
        if (holder >= first && holder < end) {
            int64_t row = terni_ref_route_row(&g->routes[holder], &g->world, x->rank, token, i);
            num += add_row(s, x, sum, holder, row);
        }
    }
    return num;
}

/* With several domains each rounds what it adds, and only those that have a row send something. */
static void make_sum(const struct shape *s, struct scratch *x, uint32_t token, uint16_t *at)
{
    int all = s->routing.num_ranks, d;
    uint32_t i;
    memset(x->sum, 0, s->hidden * sizeof(float));
    for (d = 0; d < all; d += (int)s->domain_ranks) {
        float *sum = (int)s->domain_ranks == all ? x->sum : x->part;
        memset(sum, 0, s->hidden * sizeof(float));
        if (add_domain(s, x, sum, d, token) != 0 && sum == x->part) {
            for (i = 0; i < s->hidden; i++) {
                x->sum[i] += terni_ref_bf16_value(terni_ref_bf16(sum[i]));
            }
        }
    }
    for (i = 0; i < s->hidden; i++) {
        at[i] = terni_ref_bf16(x->sum[i]);
    }
}

/* Every choice's weight comes home as it left; a choice of no expert had none. */
static void make_sum_weights(const struct shape *s, int rank, uint32_t token, float *at)
{
    uint64_t first = ((uint64_t)rank * s->routing.tokens + token) * s->routing.topk;
    uint32_t k;
    for (k = 0; k < s->routing.topk; k++) {
        at[k] = s->routing.ids[first + k] < 0 ? 0.0f : s->routing.weights[first + k];
    }
}

static void make_row(void *user, uint64_t row, void *at)
{
    struct scratch *x = (struct scratch *)user;
    const struct shape *s = &x->check->b->shape;
    enum buffer b = x->buffer;
    const struct ref_row *from = b <= BUF_EXPERTS ? &s->routing.routes[x->rank].rows[row] : NULL;
    if (b == BUF_SUMS) {
        make_sum(s, x, (uint32_t)row, (uint16_t *)at);
    } else if (b == BUF_SUM_WEIGHTS) {
        make_sum_weights(s, x->rank, (uint32_t)row, (float *)at);
    } else if (b == BUF_SOURCES) {
        ((int32_t *)at)[0] = from->rank;
        ((int32_t *)at)[1] = from->token;
    } else if (from->rank < 0) { /* padding */
        memset(at, 0, shape_row_bytes(s, b));
    } else if (b == BUF_ROWS || b == BUF_ROW_SCALES) {
        make_token(x->check, b, from, at);
    } else {
        make_meta(s, x->rank, b, from, at);
    }
}

/* ---- What is there ---- */

static const struct {
    enum buffer buffer;
    enum operation operation;
} outputs[] = {
    {BUF_ROWS, OP_DISPATCH},        {BUF_ROW_SCALES, OP_DISPATCH}, {BUF_ROW_IDS, OP_DISPATCH},
    {BUF_ROW_WEIGHTS, OP_DISPATCH}, {BUF_SOURCES, OP_DISPATCH},    {BUF_SUMS, OP_COMBINE},
    {BUF_SUM_WEIGHTS, OP_COMBINE},
};
enum { NUM_OUTPUTS = sizeof(outputs) / sizeof(outputs[0]) };

static uint32_t element_bytes(const struct shape *s, enum buffer b)
{
    return b == BUF_ROWS      ? (s->options->dtype == DTYPE_BF16 ? 2 : 1)
           : b == BUF_SUMS    ? 2
           : b == BUF_ROW_IDS ? 8
                              : 4;
}

static enum tern_status compare_buffers(struct check *c, struct scratch *x, struct pieces *p, int i)
{
    struct seat *seat = &c->b->seats[i];
    const struct shape *s = &c->b->shape;
    int k;
    for (k = 0; k < (int)NUM_OUTPUTS; k++) {
        enum buffer b = outputs[k].buffer;
        struct piece_rows rows = {seat->buffers[b], shape_row_bytes(s, b), 0, shape_rows(s, seat->rank, b)};
        x->buffer = b;
        TERN_TRY(
            pieces_compare(p, &rows, element_bytes(s, b), make_row, x, &c->tallies[i][outputs[k].operation]));
    }
    return TERN_OK;
}

static enum tern_status compare_rank(void *user, int i)
{
    struct check *c = (struct check *)user;
    struct seat *seat = &c->b->seats[i];
    uint32_t hidden = c->b->shape.hidden;
    struct scratch x = {c, seat->rank, BUF_ROWS, NULL, NULL, NULL};
    struct pieces p;
    enum tern_status status;
    TERN_TRY(pieces_open(&p, seat->comm, seat->stream));
    x.expert = (uint16_t *)malloc(2 * (size_t)hidden);
    x.sum = (float *)malloc(2 * hidden * sizeof(float));
    x.part = x.sum != NULL ? x.sum + hidden : NULL;
    status = x.expert != NULL && x.sum != NULL
                 ? compare_buffers(c, &x, &p, i)
                 : TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for rows of %u channels", hidden);
    free(x.sum);
    free(x.expert);
    pieces_close(&p);
    return status;
}

static void check_counts(const struct ref_route *r, const struct tern_route_counts *seen, uint32_t ranks,
                         uint32_t experts, struct tally *tally)
{
    uint64_t wrong = (seen->num_rows != r->num_rows) + (seen->num_tokens != r->num_tokens);
    tally->compared += 2 + ranks + experts;
    wrong += pieces_count_wrong(seen->rank_counts, r->rank_counts, 4 * ranks, 4);
    wrong += pieces_count_wrong(seen->expert_counts, r->expert_counts, 4 * experts, 4);
    if (r->expert_offsets != NULL) {
        wrong += pieces_count_wrong(seen->expert_offsets, r->expert_offsets, 4 * experts + 4, 4);
        tally->compared += experts + 1;
    }
    tally->wrong += wrong;
}

static enum tern_status compare_counts(struct check *c)
{
    const struct routing *g = &c->b->shape.routing;
    int i;
    for (i = 0; i < c->b->party->num_local; i++) {
        TERN_TRY(bench_issue(&c->b->seats[i], OP_ROUTE));
    }
    for (i = 0; i < c->b->party->num_local; i++) {
        struct seat *seat = &c->b->seats[i];
        struct tern_route_counts seen = TERN_ROUTE_COUNTS_INIT;
        TERN_TRY(tern_route_wait(seat->route, &seen));
        check_counts(&g->routes[seat->rank], &seen, (uint32_t)g->num_ranks,
                     g->experts / (uint32_t)g->num_ranks, &c->tallies[i][OP_ROUTE]);
    }
    return TERN_OK;
}

/* ---- The run ---- */

static enum tern_status poison(struct bench *b)
{
    int i, k;
    for (i = 0; i < b->party->num_local; i++) {
        struct seat *seat = &b->seats[i];
        for (k = 0; k < (int)NUM_OUTPUTS; k++) {
            enum buffer buffer = outputs[k].buffer;
            uint64_t bytes = shape_rows(&b->shape, seat->rank, buffer) * shape_row_bytes(&b->shape, buffer);
            if (bytes != 0) {
                TERN_TRY(tern_fill(seat->comm, seat->buffers[buffer], POISON, bytes, seat->stream));
            }
        }
    }
    TERN_TRY(party_synchronize(b->party));
    return party_barrier(b->party); /* nobody writes into an output that is yet to be poisoned */
}

static enum tern_status run_once(struct bench *b)
{
    int i;
    for (i = 0; i < b->party->num_local; i++) {
        TERN_TRY(bench_issue(&b->seats[i], OP_DISPATCH));
    }
    for (i = 0; i < b->party->num_local; i++) {
        TERN_TRY(bench_issue(&b->seats[i], OP_COMBINE));
    }
    return bench_synchronize(b);
}

/* --corrupt: flips one bit of the first element that rank 0 has. */
static enum tern_status corrupt(struct bench *b)
{
    uint32_t asked = b->shape.options->corrupt;
    enum buffer target = asked == CORRUPT_COMBINE ? BUF_SUMS : BUF_ROWS;
    struct seat *seat = &b->seats[0];
    if ((asked != CORRUPT_DISPATCH && asked != CORRUPT_COMBINE) || seat->rank != 0) {
        return TERN_OK;
    }
    if (shape_rows(&b->shape, 0, target) == 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--corrupt: rank 0 has no row to corrupt");
    }
    return pieces_flip(seat->comm, seat->stream, seat->buffers[target]);
}

static enum tern_status check_all(struct check *c, struct tally tallies[NUM_OPERATIONS])
{
    TERN_TRY(poison(c->b));
    TERN_TRY(compare_counts(c));
    TERN_TRY(run_once(c->b));
    TERN_TRY(corrupt(c->b));
    if (c->cast != NULL) {
        TERN_TRY(party_each(c->b->party->num_ranks, cast_rank, c));
    }
    TERN_TRY(party_each(c->b->party->num_local, compare_rank, c));
    return party_tally(c->b->party, c->tallies[0], NUM_OPERATIONS, tallies);
}

enum tern_status bench_check(struct bench *b, struct tally tallies[NUM_OPERATIONS])
{
    struct check c;
    enum tern_status status;
    memset(&c, 0, sizeof(c));
    c.b = b;
    if (b->shape.options->dtype == DTYPE_CAST) {
        uint64_t tokens = (uint64_t)b->party->num_ranks * b->shape.routing.tokens;
        uint64_t bytes = tokens * (b->shape.hidden + b->shape.scale_bytes);
        c.cast = (uint8_t *)malloc(bytes + 1);
        if (c.cast == NULL) {
            return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %llu bytes of cast tokens",
                             (unsigned long long)bytes);
        }
    }
    status = check_all(&c, tallies);
    free(c.cast);
    return status;
}
