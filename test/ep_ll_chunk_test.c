/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch across domains hands rows of one far rank over together: as many work entries as there
 * are chunks and no more, whatever blocks the rows come from, and with the same bits as in the reference. */
#include "ll_batch.h"
#include "ll_words.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 6, GROUP = 2, EXPERTS = 2, TOPK = 3, TOKENS = 90, HIDDEN = 128, ROUNDS = 3 };
/* A rank gets 16 of these processors. Not more, for ThreadSanitizer follows no more fibers. */
#define SMS "96"
enum { BLOCKS = 4 }; /* of a queue: a put takes one; a signal, which is an atomic with masks, two and a NOP */

struct chunks {
    struct world world;
    struct ll_batch batch;
    struct tern_ep *eps[RANKS];
    struct tern_ep_config config;
    struct rng rng;
    uint64_t posted[RANKS][TERN_MAX_RANKS];
};

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

/* Since the last look: a put and a signal for each chunk, and one of each for the entry words. */
static int check_posted(struct chunks *x, uint32_t *most_rows)
{
    uint32_t chunk = (uint32_t)ll_words_chunk();

    for (int s = 0; s < RANKS; s++) {
        uint64_t now[TERN_MAX_RANKS];
        PASS(ll_words_posted(x->eps[s], now));
        for (int d = 0; d < RANKS; d++) {
            uint32_t rows = rows_for(&x->batch, s, d);
            uint64_t wanted = is_far(s, d) ? BLOCKS * ((rows + chunk - 1) / chunk + 1) : 0;
            CHECK(now[d] - x->posted[s][d] == wanted,
                  "rank %d has posted %llu blocks for %u rows to rank %d, expected %llu", s,
                  (unsigned long long)(now[d] - x->posted[s][d]), rows, d, (unsigned long long)wanted);
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

static int rounds(struct chunks *x, int num_sms, int in_phases)
{
    struct tern_comm_config comm = TERN_COMM_CONFIG_INIT;
    struct ll_batch *b = &x->batch;

    comm.timeout_ms = 60000;
    PASS(world_open(&x->world, NULL, &comm));
    CHECK(tern_comm_num_sms(x->world.members[0].comm) >= num_sms, "%d blocks, and %d processors a rank",
          num_sms, tern_comm_num_sms(x->world.members[0].comm));
    PASS(world_ep_open(&x->world, &x->config, x->eps));
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t rows = 0;
        ll_batch_redraw_ids(b, round == 1 ? ROUTING_MIXED : ROUTING_UNIFORM, &x->rng);
        PASS(world_upload(&x->world));
        PASS(note_posted(x));
        if (in_phases) {
            PASS(ll_dispatch_issue(b, TERN_LL_SEND, 0));
            PASS(ll_dispatch_issue(b, TERN_LL_RECEIVE, 0));
        } else {
            PASS(ll_dispatch_issue(b, TERN_LL_BOTH, 0));
        }
        PASS(world_ep_synchronize(&x->world, x->eps));
        PASS(check_posted(x, &rows));
        CHECK(rows > 2 * (uint32_t)ll_words_chunk(), "no rank has more than %u rows for another", rows);
        ll_expect_dispatch(b);
        PASS(ll_combine_issue(b, TERN_LL_BOTH, 0));
        ll_expect_combine(b);
        PASS(world_ep_synchronize(&x->world, x->eps));
        PASS(world_verify(&x->world, "a round of dispatch and combine"));
    }
    return 0;
}

static int run(uint32_t num_sms, uint32_t cast, uint32_t tokens, int in_phases)
{
    static const struct tern_ep_config defaults = TERN_EP_CONFIG_INIT;
    struct chunks *x = (struct chunks *)test_take(1, sizeof *x);
    struct ll_shape shape;
    int result;

    memset(&shape, 0, sizeof shape);
    shape.batch.num_experts = EXPERTS * RANKS;
    shape.batch.topk = TOPK;
    shape.batch.max_tokens = tokens;
    shape.batch.equal_tokens = 1;
    shape.batch.idx_bytes = 8;
    shape.hidden = HIDDEN;
    shape.cast = cast;
    x->rng.state = 90 + num_sms;
    x->config = defaults;
    x->config.num_experts = shape.batch.num_experts;
    x->config.max_topk = TOPK;
    x->config.max_tokens = 1;
    x->config.max_row_bytes = 16;
    x->config.domain_ranks = GROUP;
    x->config.transport = TERN_TRANSPORT_SOFTNIC;
    x->config.net_queues = 3;
    ll_config_add(&x->config, &shape, 1);
    world_init(&x->world, RANKS, -1);
    x->world.num_lanes = 1;
    x->world.domain_ranks = GROUP;
    ll_batch_init(&x->batch, &x->world, x->eps, &shape, &x->rng);
    for (int r = 0; r < RANKS; r++) {
        x->batch.ranks[r].num_sms = num_sms;
    }
    result = rounds(x, (int)num_sms, in_phases);
    ll_batch_fini(&x->batch);
    world_ep_close(&x->world, x->eps);
    world_fini(&x->world);
    free(x);
    return result;
}

static int one_block(struct test *t)
{
    (void)t;
    return run(1, TERN_CAST_NONE, TOKENS, 0);
}

static int some_blocks(struct test *t)
{
    (void)t;
    PASS(run(2, TERN_CAST_FP8, TOKENS, 0));
    return run(5, TERN_CAST_NONE, TOKENS, 1);
}

/* 15 blocks send, 6 tokens each: a chunk has rows of several. */
static int many_blocks(struct test *t)
{
    (void)t;
    return run(16, TERN_CAST_FP8, TOKENS, 0);
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    setenv("TERN_CPU_SMS", SMS, 1);
    test_run(&t, "a chunk is one put and one signal: by one block", one_block);
    test_run(&t, "by blocks that have many rows, whole and in phases", some_blocks);
    test_run(&t, "by blocks that have fewer rows than a chunk", many_blocks);
    return test_end(&t);
}
