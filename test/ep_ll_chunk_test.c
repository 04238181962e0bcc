/* SPDX-License-Identifier: Apache-2.0
 *
 * Low latency across domains hands rows of one far rank over together, on their way out and on their way
 * home: as many work entries as there are chunks and no more, whatever blocks the rows come from, and with
 * the same bits as in the reference. A combine with more rows than its out-box has room for puts each by
 * itself, and signals once a chunk. */
#include "ll_batch.h"
#include "ll_words.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 6, GROUP = 2, EXPERTS = 2, TOPK = 3, TOKENS = 90, HIDDEN = 128, ROUNDS = 3 };
/* A rank gets 16 of these processors. Not more, for ThreadSanitizer follows no more fibers. */
#define SMS "96"
/* Of a queue: a put takes one; a signal, which is an atomic with masks, two and a NOP. */
enum { PUT_BLOCKS = 1, SIGNAL_BLOCKS = 3, BLOCKS = PUT_BLOCKS + SIGNAL_BLOCKS };

/* What a round is like. */
struct way {
    uint32_t num_sms, cast, compression, weights, layout, tokens;
    uint64_t ring_bytes; /* 0: as many as all rows want */
    int in_phases, is_railed;
};

struct chunks {
    struct way way;
    struct world world;
    struct ll_batch batch;
    struct tern_ep *eps[RANKS];
    struct tern_ep_config config;
    struct rng rng;
    uint64_t posted[RANKS][TERN_MAX_RANKS];
};

/* Of a rank that has room for so few rows. */
enum { FEW = 16 };

static int is_far(int a, int b) { return a / GROUP != b / GROUP; }

/* Rows of rank s for rank d. */
static uint32_t rows_for(const struct ll_batch *b, int s, int d)
{
    const struct batch *ids = &b->batch;
    uint32_t rows = 0;

    for (uint32_t t = 0; t < ids->num_tokens[s]; t++) {
        int goes = 0;
        for (uint32_t k = 0; k < TOPK; k++) {
            int64_t id = ids->ids[s][t * TOPK + k];
            goes |= id >= 0 && id / EXPERTS == d;
        }
        rows += (uint32_t)goes;
    }
    return rows;
}

/* Tokens of rank s that have a choice in the domain of rank d. */
static uint32_t messages_for(const struct ll_batch *b, int s, int d)
{
    const struct batch *ids = &b->batch;
    uint32_t messages = 0;

    for (uint32_t t = 0; t < ids->num_tokens[s]; t++) {
        int goes = 0;
        for (uint32_t k = 0; k < TOPK; k++) {
            int64_t id = ids->ids[s][t * TOPK + k];
            goes |= id >= 0 && id / EXPERTS / GROUP == d / GROUP;
        }
        messages += (uint32_t)goes;
    }
    return messages;
}

/* What rank s puts for rank d in a dispatch: railed, a message for each token that has a choice in d's
 * domain, if d has the same place in its domain as s. */
static uint32_t rows_out(const struct chunks *x, int s, int d)
{
    if (!x->way.is_railed) {
        return rows_for(&x->batch, s, d);
    }
    return s % GROUP == d % GROUP ? messages_for(&x->batch, s, d) : 0;
}

/* Rows that rank s sends home to rank d: one for each row received, or for each expert that one is for;
 * railed and summed, one for each message. */
static uint32_t rows_home(const struct chunks *x, int s, int d)
{
    const struct batch *ids = &x->batch.batch;
    uint32_t rows = 0;

    if (x->way.weights == TERN_LL_WEIGHTS_AT_DISPATCH && x->way.is_railed) {
        return rows_out(x, d, s);
    }
    if (x->way.weights == TERN_LL_WEIGHTS_AT_DISPATCH) {
        return rows_for(&x->batch, d, s);
    }
    for (uint32_t t = 0; t < ids->num_tokens[d]; t++) {
        for (int e = s * EXPERTS; e < (s + 1) * EXPERTS; e++) {
            int goes = 0;
            for (uint32_t k = 0; k < TOPK; k++) {
                goes |= ids->ids[d][t * TOPK + k] == e;
            }
            rows += (uint32_t)goes;
        }
    }
    return rows;
}

/* Whether rank s puts rows by themselves. */
static int is_full(const struct chunks *x, int s)
{
    uint32_t rows = 0;

    for (int d = 0; d < RANKS; d++) {
        rows += is_far(s, d) ? rows_home(x, s, d) : 0;
    }
    return x->way.ring_bytes != 0 && !x->way.is_railed && rows > FEW;
}

/* Since the last look: a put and a signal for each chunk, and for the entry words one of each, of a combine a
 * signal only. */
static int check_posted(struct chunks *x, int is_combine, uint32_t *most_rows)
{
    uint32_t chunk = (uint32_t)ll_words_chunk();

    for (int s = 0; s < RANKS; s++) {
        uint64_t now[TERN_MAX_RANKS];
        int alone = is_combine && is_full(x, s);
        PASS(ll_words_posted(x->eps[s], now));
        for (int d = 0; d < RANKS; d++) {
            uint32_t rows = is_combine ? rows_home(x, s, d) : rows_out(x, s, d);
            uint32_t count = (rows + chunk - 1) / chunk;
            uint64_t wanted = SIGNAL_BLOCKS * (count + 1) + PUT_BLOCKS * (alone ? rows : count);
            wanted = is_far(s, d) ? wanted + (is_combine ? 0 : PUT_BLOCKS) : 0;
            CHECK(now[d] - x->posted[s][d] == wanted,
                  "%s: rank %d has posted %llu blocks for %u rows to rank %d, expected %llu",
                  is_combine ? "combine" : "dispatch", s, (unsigned long long)(now[d] - x->posted[s][d]),
                  rows, d, (unsigned long long)wanted);
            *most_rows = is_far(s, d) && rows > *most_rows ? rows : *most_rows;
        }
    }
    return 0;
}

static int note_posted(struct chunks *x)
{
    for (int s = 0; s < RANKS; s++) {
        PASS(ll_words_posted(x->eps[s], x->posted[s]));
    }
    return 0;
}

/* An operation, whole or in phases, and what it has posted. */
static int issue(struct chunks *x, int (*body)(struct ll_batch *, uint32_t, int), int is_combine)
{
    uint32_t rows = 0;

    PASS(note_posted(x));
    if (x->way.in_phases) {
        PASS(body(&x->batch, TERN_LL_SEND, 0));
        PASS(body(&x->batch, TERN_LL_RECEIVE, 0));
    } else {
        PASS(body(&x->batch, TERN_LL_BOTH, 0));
    }
    PASS(world_ep_synchronize(&x->world, x->eps));
    PASS(check_posted(x, is_combine, &rows));
    CHECK(rows > 2 * (uint32_t)ll_words_chunk(), "no rank has more than %u rows for another", rows);
    return 0;
}

static int rounds(struct chunks *x, int num_sms, int count)
{
    struct tern_comm_config comm = TERN_COMM_CONFIG_INIT;
    struct ll_batch *b = &x->batch;

    comm.timeout_ms = 60000;
    PASS(world_open(&x->world, NULL, &comm));
    CHECK(tern_comm_num_sms(x->world.members[0].comm) >= num_sms, "%d blocks, and %d processors a rank",
          num_sms, tern_comm_num_sms(x->world.members[0].comm));
    PASS(world_ep_open(&x->world, &x->config, x->eps));
    for (int round = 0; round < count; round++) {
        ll_batch_redraw_ids(b, round == 1 ? ROUTING_MIXED : ROUTING_UNIFORM, &x->rng);
        PASS(world_upload(&x->world));
        PASS(issue(x, ll_dispatch_issue, 0));
        ll_expect_dispatch(b);
        PASS(issue(x, ll_combine_issue, 1));
        ll_expect_combine(b);
        PASS(world_verify(&x->world, "a round of dispatch and combine"));
    }
    return 0;
}

static int run(struct test *t, struct way way)
{
    static const struct tern_ep_config defaults = TERN_EP_CONFIG_INIT;
    struct chunks *x = (struct chunks *)test_take(1, sizeof *x);
    struct ll_shape shape;
    int result;

    memset(&shape, 0, sizeof shape);
    shape.batch.num_experts = EXPERTS * RANKS;
    shape.batch.topk = TOPK;
    x->way = way;
    shape.batch.max_tokens = way.tokens;
    shape.batch.equal_tokens = 1;
    shape.batch.idx_bytes = 8;
    shape.hidden = HIDDEN;
    shape.cast = way.cast;
    shape.compression = way.compression;
    shape.weights = way.weights;
    shape.layout = way.layout;
    shape.railed = way.is_railed;
    x->rng.state = 90 + way.num_sms;
    x->config = defaults;
    x->config.num_experts = shape.batch.num_experts;
    x->config.max_topk = TOPK;
    x->config.max_tokens = 1;
    x->config.max_row_bytes = 16;
    x->config.domain_ranks = GROUP;
    x->config.transport = TERN_TRANSPORT_SOFTNIC;
    x->config.net_queues = 3;
    x->config.net_ring_bytes = way.ring_bytes;
    ll_config_add(&x->config, &shape, 1);
    world_init(&x->world, RANKS, -1);
    x->world.num_lanes = 1;
    x->world.domain_ranks = GROUP;
    ll_batch_init(&x->batch, &x->world, x->eps, &shape, &x->rng);
    for (int r = 0; r < RANKS; r++) {
        x->batch.ranks[r].num_sms = way.num_sms;
    }
    result = rounds(x, (int)way.num_sms, t->scale < 100 ? 1 : ROUNDS);
    ll_batch_fini(&x->batch);
    world_ep_close(&x->world, x->eps);
    world_fini(&x->world);
    free(x);
    return result;
}

static int one_block(struct test *t)
{
    static const struct way way = {.num_sms = 1, .tokens = TOKENS};

    return run(t, way);
}

static int some_blocks(struct test *t)
{
    static const struct way fp8 = {
        .num_sms = 2, .cast = TERN_CAST_FP8, .compression = TERN_LL_FP8, .tokens = TOKENS};
    static const struct way phases = {.num_sms = 5, .tokens = TOKENS, .in_phases = 1};

    PASS(run(t, fp8));
    return run(t, phases);
}

/* 15 blocks send, 6 tokens each: a chunk has rows of several. */
static int many_blocks(struct test *t)
{
    static const struct way way = {
        .num_sms = 16, .cast = TERN_CAST_FP8, .compression = TERN_LL_LOG10, .tokens = TOKENS};

    return run(t, way);
}

static int sums(struct test *t)
{
    static const struct way whole = {.num_sms = 2, .weights = TERN_LL_WEIGHTS_AT_DISPATCH, .tokens = TOKENS};
    struct way packed = whole, by_rank = whole;

    packed.compression = TERN_LL_LOG10;
    by_rank.layout = TERN_LL_BY_RANK;
    by_rank.in_phases = 1;
    by_rank.num_sms = t->scale < 100 ? 2 : 16;
    PASS(run(t, whole));
    PASS(run(t, packed));
    return run(t, by_rank);
}

static int little_room(struct test *t)
{
    static const struct way way = {.num_sms = 2, .tokens = TOKENS, .ring_bytes = 1};
    struct way packed = way, summed = way;

    packed.compression = TERN_LL_FP8;
    summed.weights = TERN_LL_WEIGHTS_AT_DISPATCH;
    PASS(run(t, way));
    PASS(run(t, packed));
    return run(t, summed);
}

/* One message a (token, domain), by one rank of each domain, instead of a row a (token, rank). */
static int railed(struct test *t)
{
    static const struct way way = {.num_sms = 2, .tokens = TOKENS, .is_railed = 1};
    struct way by_choice = way, by_expert = way, by_rank = way;

    by_choice.cast = TERN_CAST_FP8;
    by_choice.num_sms = 1;
    by_expert.weights = by_rank.weights = TERN_LL_WEIGHTS_AT_DISPATCH;
    by_expert.compression = TERN_LL_LOG10;
    by_expert.in_phases = 1;
    by_rank.layout = TERN_LL_BY_RANK;
    by_rank.num_sms = t->scale < 100 ? 2 : 16;
    PASS(run(t, by_choice));
    PASS(run(t, by_expert));
    return run(t, by_rank);
}

/* However little room is asked for, sums of railed objects leave together. */
static int railed_little_room(struct test *t)
{
    static const struct way way = {.num_sms = 2,
                                   .tokens = TOKENS,
                                   .weights = TERN_LL_WEIGHTS_AT_DISPATCH,
                                   .ring_bytes = 1,
                                   .is_railed = 1};

    return run(t, way);
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    setenv("TERN_CPU_SMS", SMS, 1);
    test_run(&t, "a chunk is one put and one signal: by one block", one_block);
    test_run(&t, "by blocks that have many rows, whole and in phases", some_blocks);
    test_run(&t, "by blocks that have fewer rows than a chunk", many_blocks);
    test_run(&t, "sums on their way home", sums);
    test_run(&t, "an out-box with less room than there are rows", little_room);
    test_run(&t, "railed: one message a token and domain", railed);
    test_run(&t, "railed, with little room asked for", railed_little_room);
    return test_end(&t);
}
