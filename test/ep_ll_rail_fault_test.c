/* SPDX-License-Identifier: Apache-2.0
 *
 * Railed low latency, and a rank that sends but never comes to its receive phase, in which it would spread
 * its rail's rows to its domain, or add its domain's rows for its rail. Who waits for that names it within
 * the deadline, nobody names anyone else, and a reset makes all as new. Then a rank that never sends rows of
 * a combine to its mate, who is to add them and has not waited long: whoever waits for the sums names the one
 * behind the mate. Then a rank that stops before any phase of a dispatch and its combine, while the others go
 * on as far as they can: all name it. */
#include "ll_stage.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Ranks 2 and 3 are a domain; rank 3 has the rail of rank 1. */
enum { CULPRIT = 3, MATE = 2, RAIL_PEER = 1 };
enum { DEADLINE_MS = 700, SANITIZED_MS = 3000, PARTED_MS = 2000 }; /* the last: where parts of it matter */

static const double slack = 6.0; /* seconds past the deadline, for a machine with other things to do */

/* All but the culprit. */
static int receive(struct ll_stage *x, int lane, int operation)
{
    for (int r = 0; r < STAGE_RANKS; r++) {
        if (r != CULPRIT) {
            OK((enum tern_status)ll_stage_issue_for(x, lane, operation, TERN_LL_RECEIVE, r));
        }
    }
    return 0;
}

/* The one who waits has a record of its own; another is done, or has heard of it. */
static int check_survivor(struct ll_stage *x, int rank, int operation, int waits)
{
    enum tern_status status = tern_ep_synchronize(x->scene.eps[rank]);
    struct tern_fault f = TERN_FAULT_INIT;

    CHECK(status == TERN_TIMEOUT || (status == TERN_OK && rank != waits), "rank %d: %s", rank,
          tern_status_string(status));
    if (status == TERN_OK) {
        return 0;
    }
    CHECK(strstr(tern_last_error(), "rank 3 "), "rank %d: %s", rank, tern_last_error());
    OK(tern_fault_get(x->scene.eps[rank], &f));
    CHECK(f.operation == operation && f.peer == CULPRIT && f.awaited == TERN_AWAIT_DONE,
          "rank %d: operation %d, rank %d is to blame, awaited %d", rank, f.operation, f.peer, f.awaited);
    CHECK(f.reporter == waits, "rank %d: rank %d has reported", rank, f.reporter);
    CHECK(f.elapsed_ns >= (uint64_t)x->scene.config.timeout_ms * 900000, "gave up after %llu ns",
          (unsigned long long)f.elapsed_ns);
    return 0;
}

static int absent(struct ll_stage *x, int lane, int operation)
{
    int waits = operation == TERN_OP_LL_DISPATCH ? MATE : RAIL_PEER;
    struct ll_batch *b = &x->batches[lane];
    double begin;

    test_quiet();
    ll_stage_redraw(x);
    for (int s = 0; s < STAGE_RANKS; s++) {
        b->batch.num_tokens[s] = STAGE_TOKENS;
    }
    ll_batch_redraw_ids(b, ROUTING_UNIFORM, &x->scene.rng); /* all go everywhere */
    PASS(world_upload(&x->scene.world));
    if (operation == TERN_OP_LL_COMBINE) {
        PASS(ll_dispatch_issue(b, TERN_LL_BOTH, 0));
    }
    PASS(operation == TERN_OP_LL_DISPATCH ? ll_dispatch_issue(b, TERN_LL_SEND, 0)
                                          : ll_combine_issue(b, TERN_LL_SEND, 0));
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps)); /* sending waits for nobody */
    begin = test_seconds();
    PASS(receive(x, lane, operation));
    for (int r = 0; r < STAGE_RANKS; r++) {
        PASS(r == CULPRIT ? TEST_PASSED : check_survivor(x, r, operation, waits));
    }
    CHECK(test_seconds() - begin < x->scene.config.timeout_ms * 1.25e-3 + slack, "it took %.1f s",
          test_seconds() - begin);
    PASS(ll_stage_hear(x, lane, operation, TERN_LL_RECEIVE, CULPRIT));
    return ll_stage_recover(x);
}

/* Lanes with weights at dispatch, by expert and by rank. */
static int spread_body(struct ll_stage *x) { return absent(x, 1, TERN_OP_LL_DISPATCH); }
static int spread_by_rank_body(struct ll_stage *x) { return absent(x, STAGE_BY_RANK, TERN_OP_LL_DISPATCH); }
static int add_body(struct ll_stage *x) { return absent(x, 1, TERN_OP_LL_COMBINE); }
static int add_by_rank_body(struct ll_stage *x) { return absent(x, STAGE_BY_RANK, TERN_OP_LL_COMBINE); }

static int run(struct test *t, int (*body)(struct ll_stage *), enum stage_cut cut)
{
    return ll_stage_run_railed(t, body, t->scale < 100 ? SANITIZED_MS : DEADLINE_MS, cut);
}

static int spread(struct test *t)
{
    PASS(run(t, spread_body, STAGE_CUT));
    return run(t, spread_by_rank_body, STAGE_BY_NIC);
}

static int add(struct test *t)
{
    PASS(run(t, add_body, STAGE_CUT));
    return run(t, add_by_rank_body, STAGE_BY_PROXY);
}

/* ---- Behind a relay ---- */

enum { HOME = RAIL_PEER, RELAY = CULPRIT, NEAR = 0, EXPERTS = 4 };

/* Sums for the home are of rows of the relay's mate. What the home adds for its rail is by turns its own
 * alone, and of its near rank too: of its two warps the second, which also asks who is in, waits for that
 * rank first, while the other one is done and waits for the relay. */
static void draw_behind(struct ll_batch *b, struct rng *rng)
{
    uint32_t topk = b->shape.batch.topk;
    for (int s = 0; s < STAGE_RANKS; s++) {
        b->batch.num_tokens[s] = STAGE_TOKENS;
    }
    ll_batch_redraw_ids(b, ROUTING_UNIFORM, rng);
    for (uint32_t i = 0; i < STAGE_RANKS * STAGE_TOKENS * topk; i++) {
        uint32_t s = i / (STAGE_TOKENS * topk), t = i / topk % STAGE_TOKENS, k = i % topk;
        int64_t id = s != RELAY ? EXPERTS * MATE : k == 0 ? EXPERTS * HOME : EXPERTS * NEAR;
        b->batch.ids[s][t * topk + k] = k == 0 || (k == 1 && s == RELAY && t % 2) ? id : -1;
    }
    batch_changed(&b->batch);
    b->ranks[HOME].num_sms = 1; /* one block */
}

/* The mate never sends. When the deadline of the home's first warp has passed, half of the relay's has not;
 * nor has that of the second warp, which the near rank has kept waiting. */
static int behind(struct ll_stage *x, int lane)
{
    struct ll_batch *b = &x->batches[lane];
    uint32_t half = x->scene.config.timeout_ms / 2;
    struct timespec t = {half / 1000, half % 1000 * 1000000L};

    test_quiet();
    ll_stage_redraw(x);
    draw_behind(b, &x->scene.rng);
    PASS(world_upload(&x->scene.world));
    PASS(ll_dispatch_issue(b, TERN_LL_BOTH, 0));
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    OK((enum tern_status)ll_stage_issue_for(x, lane, TERN_OP_LL_COMBINE, TERN_LL_SEND, RELAY));
    OK((enum tern_status)ll_stage_issue_for(x, lane, TERN_OP_LL_COMBINE, TERN_LL_BOTH, HOME));
    nanosleep(&t, NULL);
    OK((enum tern_status)ll_stage_issue_for(x, lane, TERN_OP_LL_COMBINE, TERN_LL_RECEIVE, RELAY));
    OK((enum tern_status)ll_stage_issue_for(x, lane, TERN_OP_LL_COMBINE, TERN_LL_BOTH, NEAR));
    for (int r = 0; r < STAGE_RANKS; r++) {
        struct tern_fault f = TERN_FAULT_INIT;
        if (r != MATE) {
            REFUSES(tern_ep_synchronize(x->scene.eps[r]), TERN_TIMEOUT, "rank 2");
            OK(tern_fault_get(x->scene.eps[r], &f));
            CHECK(f.peer == MATE && f.awaited == TERN_AWAIT_READY && f.operation == TERN_OP_LL_COMBINE,
                  "rank %d: operation %d, peer %d, awaited %d", r, f.operation, f.peer, f.awaited);
        }
    }
    return ll_stage_recover(x);
}

static int behind_body(struct ll_stage *x) { return behind(x, 1); }
static int behind_by_rank_body(struct ll_stage *x) { return behind(x, STAGE_BY_RANK); }

/* The cpu machine works while the host sleeps. */
static int behind_relay(struct test *t)
{
    uint32_t timeout_ms = t->scale < 100 ? SANITIZED_MS : PARTED_MS;
    PASS(ll_stage_run_railed(t, behind_body, timeout_ms, STAGE_BY_NIC));
    return ll_stage_run_railed(t, behind_by_rank_body, timeout_ms, STAGE_BY_PROXY);
}

/* ---- Anybody, anywhere ---- */

enum { RANKS = 6, STEPS = 4, RUNS = 6 };

struct halted {
    struct world world;
    struct ll_batch batch;
    struct tern_ep *eps[RANKS];
    struct tern_ep_config config;
    struct rng rng;
    int culprit, steps; /* it takes so many */
};

/* Dispatch and combine in two phases each; the culprit stops. */
static int go_as_far(struct halted *h)
{
    for (int i = 0; i < STEPS * RANKS; i++) {
        int r = i % RANKS, step = i / RANKS;
        struct tern_ll_dispatch_args d = ll_dispatch_args(&h->batch, r, 1);
        struct tern_ll_combine_args c = ll_combine_args(&h->batch, r, 1);
        struct tern_stream *stream = h->world.members[r].lanes[0];
        d.phase = c.phase = step % 2 ? TERN_LL_RECEIVE : TERN_LL_SEND;
        if (r != h->culprit || step < h->steps) {
            OK(step < 2 ? tern_ll_dispatch(h->eps[r], &d, stream) : tern_ll_combine(h->eps[r], &c, stream));
        }
    }
    return 0;
}

/* Unless it stops behind its last send, nobody comes through. */
static int all_name(struct halted *h)
{
    int named = 0;
    double begin = test_seconds();

    for (int r = 0; r < RANKS; r++) {
        struct tern_fault f = TERN_FAULT_INIT;
        enum tern_status status = r == h->culprit ? TERN_OK : tern_ep_synchronize(h->eps[r]);
        if (r == h->culprit || (status == TERN_OK && h->steps == STEPS - 1)) {
            continue;
        }
        CHECK(status == TERN_TIMEOUT, "rank %d: %s", r, tern_status_string(status));
        OK(tern_fault_get(h->eps[r], &f));
        CHECK(f.peer == h->culprit, "rank %d: %s", r, tern_last_error());
        named++;
    }
    CHECK(named, "nobody missed it");
    CHECK(test_seconds() - begin < h->config.timeout_ms * 1.5e-3 + slack, "it took %.1f s",
          test_seconds() - begin);
    return 0;
}

static int halt(struct halted *h)
{
    struct tern_comm_config comm = TERN_COMM_CONFIG_INIT;
    struct ll_batch *b = &h->batch;

    PASS(world_open(&h->world, NULL, &comm));
    PASS(world_ep_open(&h->world, &h->config, h->eps));
    ll_batch_redraw_ids(b, ROUTING_UNIFORM, &h->rng);
    PASS(world_upload(&h->world));
    PASS(go_as_far(h));
    PASS(all_name(h));
    OK(tern_ep_reset_all(RANKS, h->eps));
    h->steps = STEPS;
    PASS(world_upload(&h->world));
    PASS(go_as_far(h));
    ll_expect_dispatch(b);
    ll_expect_combine(b);
    PASS(world_ep_synchronize(&h->world, h->eps));
    return world_verify(&h->world, "after a reset");
}

static int run_seed(const struct test *t, uint64_t seed)
{
    static const struct tern_ep_config defaults = TERN_EP_CONFIG_INIT;
    struct halted *h = (struct halted *)test_take(1, sizeof *h);
    struct ll_shape shape;
    int result;

    test_quiet();
    memset(&shape, 0, sizeof shape);
    shape.batch = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    shape.hidden = 272;
    shape.weights = TERN_LL_WEIGHTS_AT_DISPATCH;
    shape.layout = (uint32_t)seed / STEPS % 2;
    shape.railed = 1;
    h->rng.state = 700 + seed;
    h->culprit = (int)rng_below(&h->rng, RANKS);
    h->steps = (int)(seed % STEPS);
    h->config = defaults;
    h->config.num_experts = shape.batch.num_experts;
    h->config.max_topk = shape.batch.topk;
    h->config.max_tokens = 1;
    h->config.max_row_bytes = 16;
    h->config.domain_ranks = rng_one_in(&h->rng, 2) ? 2 : 3;
    h->config.timeout_ms = t->scale < 100 ? SANITIZED_MS : DEADLINE_MS;
    ll_config_add(&h->config, &shape, 1);
    world_init(&h->world, RANKS, -1);
    h->world.domain_ranks = (int)h->config.domain_ranks;
    ll_batch_init(&h->batch, &h->world, h->eps, &shape, &h->rng);
    result = halt(h);
    if (result) {
        test_note(__FILE__, __LINE__, "seed %llu: rank %d, %d steps, domains of %u", (unsigned long long)seed,
                  h->culprit, (int)(seed % STEPS), h->config.domain_ranks);
    }
    ll_batch_fini(&h->batch);
    world_ep_close(&h->world, h->eps);
    world_fini(&h->world);
    free(h);
    return result;
}

static int anywhere(struct test *t)
{
    uint64_t first = t->has_seeds ? t->seeds[0] : 1;
    uint64_t last = t->has_seeds ? t->seeds[1] : t->scale < 100 ? 3 : RUNS;

    for (uint64_t seed = first; seed <= last; seed++) {
        PASS(run_seed(t, seed));
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "a rank that never spreads its rail's rows", spread);
    test_run(&t, "a rank that never adds for its rail", add);
    test_run(&t, "a rank that never sends to its mate, which has begun to wait late", behind_relay);
    test_run(&t, "a rank that stops anywhere is named by all", anywhere);
    return test_end(&t);
}
