/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws and runs a random case of low latency. A case whose slabs would be too large loses tokens and
 * channels until it fits. */
#include "ll_case.h"
#include "ll_words.h"

#include "tern/tern_net.h"

#include <stdlib.h>
#include <string.h>

static uint32_t by_magnitude(struct rng *r, uint32_t first, uint32_t last)
{
    uint32_t high = first;

    while (high < last && !rng_one_in(r, 6)) {
        high *= 2;
    }
    return rng_between(r, first, high < last ? high : last);
}

static void draw_shape(struct ll_case *c, int num_ranks, int small, struct rng *r)
{
    static const int ranks[] = {1, 2, 2, 3, 4, 4, 5, 8};
    struct ll_shape *s = &c->shape;
    uint64_t most = small ? 1u << 20 : rng_one_in(r, 30) ? 48u << 20 : 6u << 20;
    uint32_t step;

    c->num_ranks = rng_one_in(r, 6) ? (int)rng_between(r, 1, 16) : ranks[rng_below(r, 8)];
    c->num_ranks = small && c->num_ranks > 4 ? 4 : c->num_ranks;
    c->num_ranks = num_ranks ? num_ranks : c->num_ranks;
    s->batch.num_experts = (uint32_t)c->num_ranks * rng_between(r, 1, rng_one_in(r, 8) ? 40 : 8);
    s->batch.topk = rng_one_in(r, 3) ? rng_between(r, 1, 16) : rng_one_in(r, 20) ? 32 : rng_between(r, 1, 8);
    s->batch.idx_bytes = rng_one_in(r, 2) ? 4 : 8;
    s->batch.max_tokens = rng_one_in(r, 12) ? rng_between(r, 60, 150) : by_magnitude(r, 1, 48);
    s->batch.routing = rng_one_in(r, 3) ? (int)rng_below(r, NUM_ROUTINGS) : (int)rng_below(r, 2);
    s->cast = rng_below(r, 4);
    s->weights = rng_below(r, 2);
    s->layout = s->weights == TERN_LL_WEIGHTS_AT_DISPATCH ? rng_below(r, 2) : TERN_LL_BY_EXPERT;
    s->compression = rng_below(r, 3);
    s->strided = rng_one_in(r, 2);
    s->wild = rng_one_in(r, 2);
    step = s->cast == TERN_CAST_NONE ? 8 : 16;
    s->hidden = rng_one_in(r, 8) ? 7168 : rng_one_in(r, 8) ? 8192 : by_magnitude(r, 64, 8192);
    s->hidden = small && s->hidden > 512 ? 512 : s->hidden / step * step;
    while ((uint64_t)s->batch.num_experts * s->batch.max_tokens * s->hidden * 2 * (uint64_t)c->num_ranks >
           most) {
        if (s->batch.max_tokens > 2 && (s->hidden < 128 || rng_one_in(r, 2))) {
            s->batch.max_tokens /= 2;
        } else if (s->hidden >= 128) {
            s->hidden = s->hidden / 2 / step * step;
        } else {
            break;
        }
    }
}

void ll_case_draw(struct ll_case *c, uint64_t seed, int num_ranks, int small)
{
    struct tern_ep_config init = TERN_EP_CONFIG_INIT;
    struct rng r = {seed * 0x2545f4914f6cdd1du + 5};

    memset(c, 0, sizeof *c);
    c->seed = seed;
    c->deterministic = 1;
    c->without_words = seed % 3 == 0;
    draw_shape(c, num_ranks, small, &r);
    c->rounds = (int)rng_between(&r, 1, 3);
    c->config = init;
    c->config.num_experts = c->shape.batch.num_experts;
    c->config.max_topk = c->shape.batch.topk;
    c->config.max_tokens = 4;
    c->config.max_row_bytes = 256;
    c->config.staging_bytes = TERN_STAGING_NONE;
    c->config.transfer = rng_one_in(&r, 3) ? TERN_TRANSFER_PLAIN : TERN_TRANSFER_AUTO;
    ll_config_add(&c->config, &c->shape, rng_below(&r, 4));
    c->shape.lane = rng_below(&r, c->config.ll_lanes ? c->config.ll_lanes : 2);
    c->config.ll_mask = rng_below(&r, 2);
    c->config.max_topk += rng_one_in(&r, 4) && c->config.max_topk < 30 ? rng_below(&r, 3) : 0;
    c->config.ll_tokens += rng_one_in(&r, 4) ? rng_below(&r, 5) : 0;
    c->config.ll_hidden += rng_one_in(&r, 4) ? 8 * rng_below(&r, 9) : 0;
}

void ll_case_over_blanks(struct ll_case *c)
{
    c->shape.compression = TERN_LL_PLAIN;
    c->config.ll_mask = 0;
    c->without_words = 0;
}

void ll_case_ahead(struct ll_case *c)
{
    c->shape.weights = TERN_LL_WEIGHTS_AHEAD;
    c->shape.layout = TERN_LL_BY_EXPERT;
    c->config.ll_mask = 0;
}

void ll_case_cut(struct ll_case *c, int domain_ranks, uint32_t transport)
{
    struct rng r = {c->seed + 55}; /* of its own: the other draws stay what they are */

    c->domain_ranks = domain_ranks;
    c->config.domain_ranks = (uint32_t)domain_ranks;
    c->config.transport = transport;
    c->config.net_queues = rng_one_in(&r, 3) ? 0 : rng_between(&r, 1, 5);
    c->config.net_ring_bytes = !rng_one_in(&r, 3); /* 1: few slots in the out-box, which are used again */
    c->deterministic = transport == TERN_TRANSPORT_AUTO;
}

void ll_case_rail(struct ll_case *c)
{
    struct rng r = {c->seed + 77};

    c->shape.railed = 1;
    c->config.ll_rail = 1;
    c->config.ll_mask = 0;
    if (!rng_one_in(&r, 4)) {
        c->shape.weights = TERN_LL_WEIGHTS_AT_DISPATCH;
        c->shape.layout = rng_below(&r, 2);
    }
}

static int operation(struct ll_batch *b, int (*issue)(struct ll_batch *, uint32_t, int), struct rng *r)
{
    if (rng_one_in(r, 2)) {
        return issue(b, TERN_LL_BOTH, 0);
    }
    PASS(issue(b, TERN_LL_SEND, 0));
    return issue(b, TERN_LL_RECEIVE, 0);
}

/* Nobody is in an operation. */
static int rest(struct ll_batch *b)
{
    struct world *w = b->batch.world;

    PASS(world_ep_synchronize(w, b->eps));
    if (w->self >= 0) {
        OK(tern_comm_barrier(w->members[w->self].comm));
    }
    return 0;
}

static void draw_masks(unsigned char *masked, int num_ranks, struct rng *r)
{
    memset(masked, 0, TERN_MAX_RANKS);
    for (int i = 0; i < num_ranks; i++) {
        masked[i] = (unsigned char)rng_one_in(r, num_ranks > 4 ? 4 : 3);
    }
}

/* Takes all ranks in again, and masks some before the dispatch in every other round. */
static int mask_round(struct ll_batch *b, struct rng *r)
{
    unsigned char masked[TERN_MAX_RANKS] = {0};

    PASS(rest(b));
    PASS(ll_mask_issue(b, masked, 0));
    PASS(rest(b));
    if (rng_one_in(r, 2)) {
        draw_masks(masked, b->batch.world->num_ranks, r);
        PASS(ll_mask_issue(b, masked, 0));
    }
    ll_expect_masks(b, masked, 0);
    return 0;
}

/* Between a dispatch and its combine some more ranks are lost. */
static int mask_more(struct ll_batch *b, struct rng *r)
{
    unsigned char masked[TERN_MAX_RANKS];

    draw_masks(masked, b->batch.world->num_ranks, r);
    for (int i = 0; i < TERN_MAX_RANKS; i++) {
        masked[i] |= b->masked[i];
    }
    PASS(ll_mask_issue(b, masked, 0));
    ll_expect_masks(b, masked, 1);
    return 0;
}

/* Nobody is in an operation: rows have left nothing behind, not even what nobody looks at. */
static int check_blanks(const struct ll_batch *b)
{
    for (int i = 0; i < b->batch.world->num_ranks; i++) {
        uint64_t left;
        PASS(ll_words_left(b->eps[i], b->shape.lane, &left));
        CHECK(left == 0, "rank %d: %llu words are left where rows have been", i, (unsigned long long)left);
    }
    return 0;
}

/* `combines`: 0 to 2. */
static int one_round(const struct ll_case *c, struct ll_batch *b, int routing, int combines, struct rng *r)
{
    struct world *w = b->batch.world;

    ll_batch_redraw(b, routing, r);
    PASS(world_upload(w));
    if (c->config.ll_mask) {
        PASS(mask_round(b, r));
    }
    PASS(operation(b, ll_dispatch_issue, r));
    ll_expect_dispatch(b);
    for (int i = 0; i < combines; i++) {
        if (c->config.ll_mask && rng_one_in(r, 3)) {
            PASS(mask_more(b, r));
        }
        PASS(operation(b, ll_combine_issue, r));
    }
    if (combines) {
        ll_expect_combine(b);
    }
    PASS(world_ep_synchronize(w, b->eps));
    PASS(w->self >= 0 ? 0 : check_blanks(b));
    return world_verify(w, c->rounds > 1 ? "a round of several" : "the one round");
}

static int steps(const struct ll_case *c, const struct tern_id *id, struct world *w, struct ll_batch *b,
                 struct rng *r)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;

    config.timeout_ms = 60000;
    config.cpu_seed = c->deterministic ? c->seed + 1 : 0;
    PASS(world_open(w, id, &config));
    PASS(world_ep_open(w, &c->config, b->eps));
    for (int i = 0; i < w->num_ranks && c->without_words; i++) {
        if (b->eps[i] != NULL) {
            ll_words_forbid(b->eps[i]);
        }
    }
    for (int i = 0; i < c->rounds; i++) {
        int routing = i == 0 ? c->shape.batch.routing : (int)rng_below(r, NUM_ROUTINGS);
        PASS(one_round(c, b, routing, rng_one_in(r, 5) ? 0 : rng_one_in(r, 6) ? 2 : 1, r));
    }
    return 0;
}

static int run_case(const struct ll_case *c, int self, const struct tern_id *id, struct tern_comm *comm)
{
    const struct ll_shape *s = &c->shape;
    struct world w;
    struct ll_batch b;
    struct rng r = {c->seed + 1};
    struct tern_ep **eps = (struct tern_ep **)test_take((size_t)c->num_ranks, sizeof(struct tern_ep *));
    int result;

    world_init(&w, c->num_ranks, self);
    if (comm != NULL) {
        w.members[self].comm = comm;
    }
    w.num_lanes = 1;
    w.domain_ranks = c->domain_ranks;
    w.forces_domains = c->forces_domains;
    ll_batch_init(&b, &w, eps, s, &r);
    result = steps(c, id, &w, &b, &r);
    if (result) {
        test_note(
            __FILE__, __LINE__,
            "seed %llu: %d ranks, %u experts, top-%u int%u, %u of %u tokens, %u of %u channels, cast %u, "
            "weights %u, layout %u, compression %u, lane %u of %u, routing %d, transfer %u, masks %u, %d "
            "rounds, domains of %d, transport %u%s, %u queues%s%s",
            (unsigned long long)c->seed, c->num_ranks, s->batch.num_experts, s->batch.topk,
            8 * s->batch.idx_bytes, s->batch.max_tokens, c->config.ll_tokens, s->hidden, c->config.ll_hidden,
            s->cast, s->weights, s->layout, s->compression, s->lane, c->config.ll_lanes, s->batch.routing,
            c->config.transfer, c->config.ll_mask, c->rounds, c->domain_ranks, c->config.transport,
            c->forces_domains ? " by force" : "", c->config.net_queues, c->config.ll_rail ? ", railed" : "",
            c->without_words ? ", no words" : "");
    }
    ll_batch_fini(&b);
    world_ep_close(&w, eps);
    world_fini(&w);
    free(eps);
    return result;
}

int ll_case_run(const struct ll_case *c, int self, const struct tern_id *id)
{
    return run_case(c, self, id, NULL);
}

int ll_case_run_seeds(struct test *t, uint64_t first, uint64_t last, void (*change)(struct ll_case *c))
{
    int failures = 0;
    uint64_t seed;

    for (seed = first; seed <= last && failures < 3; seed++) {
        struct ll_case c;
        ll_case_draw(&c, seed, 0, t->scale < 100);
        change(&c);
        failures += ll_case_run(&c, -1, NULL) != 0;
    }
    test_detail(t, "seeds %llu-%llu", (unsigned long long)first, (unsigned long long)seed - 1);
    return failures ? TEST_FAILED : TEST_PASSED;
}

int ll_case_run_on(const struct ll_case *c, struct tern_comm *comm)
{
    return run_case(c, tern_comm_rank(comm), NULL, comm);
}
