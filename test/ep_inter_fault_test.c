/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank that does not come to a dispatch or a combine, seen from its own domain and from others: every other
 * rank ends within the deadline, with a record that names a rank, and a reset makes all as new. Ranks of two
 * domains that do different things: both ends learn it. A rank without the weights that one of another domain
 * wants: it is named, and not the one that acts for it there. A combine that is abandoned stops loading
 * rows, and a dispatch behind a route that was abandoned begins none. */
#include "cost.h"
#include "scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 6, GROUP = 2, CULPRIT = 3, DEADLINE_MS = 2500, SANITIZED_MS = 4000 };

static const double slack = 6.0; /* seconds past the deadline, for a machine with other things to do */

static void cut_scene(struct scene *s, const struct test *t, uint64_t seed, int by_proxy)
{
    struct batch_shape shape =
        scene_shape(RANKS, seed % 2 ? TERN_LAYOUT_EXPERT : TERN_LAYOUT_RANK, ROUTING_UNIFORM);

    test_quiet();
    scene_init(s, RANKS, seed);
    s->world.domain_ranks = GROUP;
    s->world.forces_domains = by_proxy;
    s->free_running = 1;
    s->config.domain_ranks = by_proxy ? 0 : GROUP;
    s->config.net_queues = 2;
    s->config.timeout_ms = t->scale < 100 ? SANITIZED_MS : DEADLINE_MS;
    shape.equal_tokens = 1;
    scene_add(s, &shape, 0);
}

static int prepare(struct scene *s)
{
    PASS(scene_open(s));
    scene_refill(s, 0);
    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batches[0], s->eps, 0));
    return world_ep_synchronize(&s->world, s->eps);
}

static int issue(struct scene *s, int operation, int rank)
{
    return operation == TERN_OP_DISPATCH ? dispatch_issue_rank(&s->dispatches[0], rank, 0)
                                         : combine_issue_rank(&s->combines[0], rank, 0);
}

/* Whoever waits for the culprit names it; another may name a rank that waits itself, but only as one that is
 * late too. */
static int check_record(const struct scene *s, int rank, int operation, int *named)
{
    struct tern_fault f = TERN_FAULT_INIT;
    char text[512], name[16];

    OK(tern_fault_get(s->eps[rank], &f));
    tern_fault_text(&f, text, sizeof text);
    snprintf(name, sizeof name, "rank %d", f.peer);
    CHECK(f.rank == rank && f.operation == operation && f.status == TERN_TIMEOUT, "rank %d: %s", rank, text);
    CHECK(f.peer >= 0 && f.peer < RANKS && f.peer != rank, "rank %d: peer %d: %s", rank, f.peer, text);
    CHECK(strstr(text, name), "rank %d: \"%s\" does not name %s", rank, text, name);
    *named += f.peer == CULPRIT;
    return 0;
}

static int absent_from(struct scene *s, int operation)
{
    int named = 0;
    double begin;

    PASS(prepare(s));
    begin = test_seconds();
    for (int r = 0; r < RANKS; r++) {
        PASS(r == CULPRIT ? TEST_PASSED : issue(s, operation, r));
    }
    for (int r = 0; r < RANKS; r++) {
        if (r != CULPRIT) {
            EXPECT(tern_ep_synchronize(s->eps[r]), TERN_TIMEOUT);
        }
    }
    CHECK(test_seconds() - begin < s->config.timeout_ms * 1.25e-3 + slack, "it took %.1f s",
          test_seconds() - begin);
    for (int r = 0; r < RANKS; r++) {
        PASS(r == CULPRIT ? TEST_PASSED : check_record(s, r, operation, &named));
    }
    CHECK(named >= RANKS / 2, "%d ranks of %d name rank %d", named, RANKS - 1, CULPRIT);
    PASS(issue(s, operation, CULPRIT)); /* too late: it finds the verdict */
    EXPECT(tern_ep_synchronize(s->eps[CULPRIT]), TERN_TIMEOUT);
    batch_close(&s->batches[0]);
    OK(tern_ep_reset_all(RANKS, s->eps));
    PASS(scene_round(s, 0));
    batch_close(&s->batches[0]);
    return scene_round(s, 0);
}

static int absent(struct test *t, int operation)
{
    for (int i = 0; i < 4; i++) {
        struct scene s;
        int result;
        cut_scene(&s, t, 30 + (uint64_t)i, i / 2);
        result = absent_from(&s, operation);
        scene_fini(&s);
        CHECK(!result, "%s", i / 2 ? "by the proxy" : "over loads and stores");
    }
    return 0;
}

static int absent_dispatch(struct test *t) { return absent(t, TERN_OP_DISPATCH); }
static int absent_combine(struct test *t) { return absent(t, TERN_OP_COMBINE); }

/* Domain 1 dispatches where the others combine: their messages do not match. */
static int differ(struct scene *s)
{
    int mismatches = 0;

    PASS(prepare(s));
    for (int r = 0; r < RANKS; r++) {
        PASS(issue(s, r / GROUP == 1 ? TERN_OP_DISPATCH : TERN_OP_COMBINE, r));
    }
    for (int r = 0; r < RANKS; r++) {
        struct tern_fault f = TERN_FAULT_INIT;
        enum tern_status status = tern_ep_synchronize(s->eps[r]);
        CHECK(status == TERN_MISMATCH || status == TERN_TIMEOUT, "rank %d: %s", r,
              tern_status_string(status));
        OK(tern_fault_get(s->eps[r], &f));
        mismatches += f.awaited == TERN_AWAIT_MATCH && f.peer / GROUP != f.reporter / GROUP;
    }
    CHECK(mismatches == RANKS, "%d ranks of %d heard of different operations", mismatches, RANKS);
    batch_close(&s->batches[0]);
    OK(tern_ep_reset_all(RANKS, s->eps));
    return scene_round(s, 0);
}

static int different(struct test *t)
{
    for (int i = 0; i < 2; i++) {
        struct scene s;
        int result;
        cut_scene(&s, t, 40 + (uint64_t)i, i);
        result = differ(&s);
        scene_fini(&s);
        PASS(result);
    }
    return 0;
}

/* The culprit has no weights, and this rank wants some. Its domain-mate, who acts for the culprit there, has
 * weights. */
enum { WANTS = 4 };

static void forget_weights(struct scene *s)
{
    for (int r = 0; r < RANKS; r++) {
        struct sender *sender = &s->dispatches[0].ranks[r];
        sender->has_weights = r != CULPRIT;
        if (r != WANTS) {
            memset(&sender->out_weights, 0, sizeof sender->out_weights);
        }
    }
}

static int check_forgetful(const struct scene *s, int rank)
{
    enum tern_status status = tern_ep_synchronize(s->eps[rank]);
    struct tern_fault f = TERN_FAULT_INIT;
    char text[512];

    if (status == TERN_OK && rank / GROUP != WANTS / GROUP) {
        return 0; /* all that concerned its domain went well */
    }
    CHECK(status == TERN_MISMATCH, "rank %d: %s", rank, tern_status_string(status));
    OK(tern_fault_get(s->eps[rank], &f));
    tern_fault_text(&f, text, sizeof text);
    CHECK(f.awaited == TERN_AWAIT_WEIGHTS && f.peer == WANTS && f.reporter == CULPRIT, "rank %d: %s", rank,
          text);
    CHECK(strstr(text, rank == CULPRIT ? "topk_weights is NULL here" : "rank 3 has no topk_weights"),
          "rank %d: %s", rank, text);
    return 0;
}

static int forget(struct scene *s)
{
    PASS(prepare(s));
    PASS(dispatch_issue(&s->dispatches[0], 0));
    for (int r = 0; r < RANKS; r++) {
        PASS(check_forgetful(s, r));
    }
    return 0;
}

static int forgotten_weights(struct test *t)
{
    for (int i = 0; i < 4; i++) {
        struct scene s;
        int result;
        cut_scene(&s, t, 50 + (uint64_t)i, i / 2);
        forget_weights(&s);
        result = forget(&s);
        scene_fini(&s);
        PASS(result);
    }
    return 0;
}

/* ---- A rank that is alone in its domain gives up, in a block that is not the first ---- */

/* Nobody else there could tell the other domain. */
static int tells(struct scene *s)
{
    struct sender *senders = s->dispatches[0].ranks;
    enum tern_status status;
    double begin;

    senders[0].has_weights = 0;
    senders[1].has_weights = 1;
    memset(&senders[0].out_weights, 0, sizeof senders[0].out_weights);
    PASS(prepare(s));
    begin = test_seconds();
    PASS(dispatch_issue(&s->dispatches[0], 0));
    EXPECT(tern_ep_synchronize(s->eps[1]), TERN_MISMATCH);
    status = tern_ep_synchronize(s->eps[0]);
    if (status == TERN_OK) { /* all that it had to do was done; it hears at the next */
        PASS(issue(s, TERN_OP_COMBINE, 0));
        status = tern_ep_synchronize(s->eps[0]);
    }
    CHECK(status == TERN_MISMATCH, "%s: %s", tern_status_string(status), tern_last_error());
    CHECK(test_seconds() - begin < 1e-3 * s->config.timeout_ms, "after %.1f s", test_seconds() - begin);
    return 0;
}

static int lonely(struct test *t)
{
    struct batch_shape shape = scene_shape(2, TERN_LAYOUT_RANK, ROUTING_UNIFORM);

    test_quiet();
    shape.equal_tokens = 1;
    for (int i = 0; i < test_scaled(t, 20); i++) {
        struct scene s;
        int result;
        scene_init(&s, 2, 60 + (uint64_t)i);
        s.world.domain_ranks = 1;
        s.config.domain_ranks = 1;
        s.config.net_queues = 2;
        s.config.timeout_ms = t->scale < 100 ? SANITIZED_MS : DEADLINE_MS;
        s.config.max_tokens = shape.max_tokens = 4 + (uint32_t)i % 4;
        scene_add(&s, &shape, 0);
        result = tells(&s);
        scene_fini(&s);
        PASS(result);
    }
    return 0;
}

/* ---- Domain 0 alone comes to a combine: nearly all of its tokens have sums in other domains ---- */

enum { MANY_TOKENS = 200 };

static int loads_so_far(struct scene *s, uint64_t *loads)
{
    uint64_t counts[COST_COUNTERS];
    PASS(world_synchronize(&s->world));
    cost_read(s->world.members[0].lanes[0], counts);
    for (int i = 0; i < COST_COUNTERS; i++) {
        *loads = strcmp(cost_name(i), "bulk_loads") == 0 ? counts[i] : *loads;
    }
    return 0;
}

static int alone(struct scene *s)
{
    uint64_t before = 0, after = 0;

    PASS(prepare(s));
    PASS(loads_so_far(s, &before));
    for (int r = 0; r < GROUP; r++) {
        PASS(issue(s, TERN_OP_COMBINE, r));
    }
    for (int r = 0; r < GROUP; r++) {
        EXPECT(tern_ep_synchronize(s->eps[r]), TERN_TIMEOUT);
    }
    PASS(loads_so_far(s, &after));
    CHECK(after > before && after - before < MANY_TOKENS / 2,
          "%llu loads for the first of %d tokens of each of %d ranks", (unsigned long long)(after - before),
          MANY_TOKENS, GROUP);
    return 0;
}

/* One batch of many tokens a rank, by bulk copies. */
static void many_tokens(struct scene *s, const struct test *t, uint64_t seed)
{
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);

    test_quiet();
    scene_init(s, RANKS, seed);
    s->world.domain_ranks = GROUP;
    s->free_running = 1;
    s->config.domain_ranks = GROUP;
    s->config.net_queues = 1;
    s->config.transfer = TERN_TRANSFER_BULK;
    s->config.max_tokens = shape.max_tokens = MANY_TOKENS;
    s->config.timeout_ms = t->scale < 100 ? SANITIZED_MS : DEADLINE_MS;
    shape.equal_tokens = 1;
    scene_add(s, &shape, 0);
}

static int abandoned(struct test *t)
{
    struct scene s;
    int result, on_cpu = scene_on_cpu();

    if (!on_cpu) {
        return test_skip(t, "the executor of the cpu machine counts loads");
    }
    many_tokens(&s, t, 60);
    s.config.net_ring_bytes = 1; /* forwarders have room for few sums */
    result = alone(&s);
    scene_fini(&s);
    return result;
}

/* ---- A dispatch right behind a route that is abandoned: what the route says is of the one before, which had
 * more tokens, and rails, which load before all are in, may not go by it ---- */

static int behind_route(struct scene *s)
{
    uint64_t before = 0, after = 0;

    PASS(scene_open(s));
    PASS(scene_round(s, 0));
    batch_close(&s->batches[0]);
    scene_refill(s, 1);
    PASS(world_upload(&s->world));
    PASS(loads_so_far(s, &before));
    for (int r = 0; r < RANKS; r++) {
        struct tern_route_args args = batch_args(&s->batches[1], r);
        if (r != CULPRIT) {
            OK(tern_route_open(s->eps[r], &args, s->world.members[r].lanes[0], &s->batches[1].routes[r]));
            PASS(dispatch_issue_rank(&s->dispatches[1], r, 0));
        }
    }
    for (int r = 0; r < RANKS; r++) {
        if (r != CULPRIT) {
            EXPECT(tern_ep_synchronize(s->eps[r]), TERN_TIMEOUT);
        }
    }
    PASS(loads_so_far(s, &after));
    CHECK(after - before <= RANKS, "%llu loads of a token of each of %d ranks",
          (unsigned long long)(after - before), RANKS - 1);
    batch_close(&s->batches[1]);
    OK(tern_ep_reset_all(RANKS, s->eps));
    return scene_round(s, 1);
}

static int abandoned_route(struct test *t)
{
    struct batch_shape one = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    struct scene s;
    int result, on_cpu = scene_on_cpu();

    if (!on_cpu) {
        return test_skip(t, "the executor of the cpu machine counts loads");
    }
    many_tokens(&s, t, 61);
    one.max_tokens = 1;
    one.equal_tokens = 1;
    scene_add(&s, &one, 0);
    result = behind_route(&s);
    scene_fini(&s);
    return result;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "a rank of another domain is absent from dispatch", absent_dispatch);
    test_run(&t, "a rank of another domain is absent from combine", absent_combine);
    test_run(&t, "domains in different operations", different);
    test_run(&t, "weights that a rank of another domain forgot", forgotten_weights);
    test_run(&t, "a rank alone in its domain gives up", lonely);
    test_run(&t, "an abandoned combine stops loading", abandoned);
    test_run(&t, "a dispatch right behind an abandoned route", abandoned_route);
    return test_end(&t);
}
