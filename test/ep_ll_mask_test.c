/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks: ranks that stop are left out and the others go on, also those that wait for one who waits himself;
 * the one left out learns of it and comes back; masks are set, told and cleared in a stream and in a graph.
 * And how long each rank was waited for. All of it in one domain and in two, where half of the others are far
 * from the rank that is lost. Random masks are in ll_case.c, rows that are lost on their way in
 * ep_ll_mask_rows_test.c.
 *
 * One long file, because all cases share the stage, the culprit and the judgement of what the others see. */
#include "ll_stage.h"
#include "ll_words.h"

#include <string.h>
#include <time.h>

enum { CULPRIT = 3 };

static const unsigned char culprit_masked[TERN_MAX_RANKS] = {0, 0, 0, 1};
static const unsigned char none_masked[TERN_MAX_RANKS] = {0};

static void sleep_ms(uint32_t ms)
{
    struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};

    nanosleep(&t, NULL);
}

/* In one domain and in two, where what is sent is there when the sender's kernel has ended. */
static int at_once(struct test *t, int (*body)(struct ll_stage *), uint32_t timeout_ms)
{
    PASS(ll_stage_run_masked(t, body, timeout_ms));
    return ll_stage_run_cut(t, body, timeout_ms, 1, STAGE_CUT);
}

/* And by the proxy, which carries it later. */
static int everywhere(struct test *t, int (*body)(struct ll_stage *), uint32_t timeout_ms)
{
    PASS(at_once(t, body, timeout_ms));
    return ll_stage_run_cut(t, body, timeout_ms, 1, STAGE_BY_PROXY);
}

static int issue(struct ll_stage *x, int lane, int operation, uint32_t phase, int only_culprit)
{
    for (int r = 0; r < STAGE_RANKS; r++) {
        if ((r == CULPRIT) == only_culprit) {
            OK((enum tern_status)ll_stage_issue_for(x, lane, operation, phase, r));
        }
    }
    return 0;
}

/* All ranks but the culprit, or the culprit alone. */
static int synchronize(struct ll_stage *x, int only_culprit)
{
    for (int r = 0; r < STAGE_RANKS; r++) {
        if ((r == CULPRIT) == only_culprit) {
            OK(tern_ep_synchronize(x->scene.eps[r]));
        }
    }
    return 0;
}

/* Whom rank r has masked, by its device. */
static int told(struct ll_stage *x, int r, const unsigned char *masked)
{
    struct world *w = &x->scene.world;
    int32_t *out = (int32_t *)world_device(w, x->batches[0].ranks[r].mask);
    const int32_t *seen;

    OK(tern_ll_mask_get(x->scene.eps[r], out, w->members[r].lanes[0]));
    OK(tern_ep_synchronize(x->scene.eps[r]));
    seen = (const int32_t *)world_peek(w, r, out, STAGE_RANKS * sizeof(int32_t));
    CHECK(seen, "rank %d: no masks", r);
    for (int i = 0; i < STAGE_RANKS; i++) {
        CHECK(seen[i] == masked[i], "rank %d tells %d of rank %d", r, seen[i], i);
    }
    return 0;
}

/* The culprit is masked everywhere, and everybody can say why. */
static int check_views(struct ll_stage *x, int operation)
{
    int noticed = 0;

    for (int r = 0; r < STAGE_RANKS; r++) {
        struct tern_fault f = TERN_FAULT_INIT;
        char text[256];
        uint64_t seen[2] = {9, 9};
        OK(tern_ll_mask_peek(x->scene.eps[r], seen));
        CHECK(seen[0] == 1u << CULPRIT && seen[1] == 0, "rank %d sees 0x%llx", r,
              (unsigned long long)seen[0]);
        PASS(told(x, r, culprit_masked));
        OK(tern_ll_mask_fault(x->scene.eps[r], CULPRIT, &f));
        tern_fault_text(&f, text, sizeof text);
        CHECK(f.status == TERN_TIMEOUT && f.peer == CULPRIT && f.rank == r && f.reporter != CULPRIT,
              "rank %d: %s", r, text);
        CHECK(strstr(text, "rank 3 ") && strstr(text, "low-latency"), "rank %d: %s", r, text);
        if (f.reporter == r) {
            CHECK(f.operation == operation && f.late[0] == 1u << CULPRIT &&
                      f.elapsed_ns >= (uint64_t)x->scene.config.timeout_ms * 900000,
                  "rank %d: operation %d, late 0x%llx, %llu ns", r, f.operation,
                  (unsigned long long)f.late[0], (unsigned long long)f.elapsed_ns);
            noticed++;
        }
        CHECK((strstr(text, "(this one)") != NULL) == (r == CULPRIT), "rank %d: %s", r, text);
        REFUSES(tern_ll_mask_fault(x->scene.eps[r], 0, &f), TERN_BAD_STATE, "no deadline has masked rank 0");
        EXPECT(tern_fault_get(x->scene.eps[r], &f), TERN_BAD_STATE);
    }
    CHECK(noticed, "no rank noticed by itself");
    return 0;
}

static int expect_batch(struct ll_stage *x, int lane, const char *step)
{
    ll_expect_dispatch(&x->batches[lane]);
    ll_expect_combine(&x->batches[lane]);
    return world_verify(&x->scene.world, step);
}

/* More rounds without the culprit: nobody waits, whoever is masked runs alone. */
static int rounds_without(struct ll_stage *x)
{
    double begin = test_seconds();

    for (int round = 0; round < 4; round++) {
        int lane = round % STAGE_BATCHES;
        ll_stage_redraw(x);
        ll_expect_masks(&x->batches[lane], culprit_masked, 0);
        PASS(world_upload(&x->scene.world));
        PASS(issue(x, lane, TERN_OP_LL_DISPATCH, TERN_LL_BOTH, 0));
        PASS(issue(x, lane, TERN_OP_LL_COMBINE, TERN_LL_BOTH, 0));
        PASS(synchronize(x, 0));
        PASS(issue(x, lane, TERN_OP_LL_DISPATCH, TERN_LL_BOTH, 1));
        PASS(issue(x, lane, TERN_OP_LL_COMBINE, TERN_LL_BOTH, 1));
        PASS(synchronize(x, 1));
        PASS(expect_batch(x, lane, "a round without the rank that was lost"));
    }
    /* Each would wait for a deadline at least. */
    CHECK(test_seconds() - begin < x->scene.config.timeout_ms * 2e-3, "four rounds took %.2f s",
          test_seconds() - begin);
    return 0;
}

/* All ranks are idle: everything with everybody, high throughput too. */
static int rejoin(struct ll_stage *x)
{
    PASS(ll_mask_issue(&x->batches[0], none_masked, 0));
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    for (int r = 0; r < STAGE_RANKS; r++) {
        struct tern_fault f = TERN_FAULT_INIT;
        uint64_t seen[2] = {9, 9};
        OK(tern_ll_mask_peek(x->scene.eps[r], seen));
        CHECK(seen[0] == 0, "rank %d still sees 0x%llx", r, (unsigned long long)seen[0]);
        EXPECT(tern_ll_mask_fault(x->scene.eps[r], CULPRIT, &f), TERN_BAD_STATE);
        PASS(told(x, r, none_masked));
    }
    ll_stage_redraw(x);
    PASS(world_upload(&x->scene.world));
    PASS(ll_stage_shuffle(x));
    return ll_stage_judge(x, "after the lost rank has come back");
}

/* What is expected of the survivors; the culprit has not touched its outputs. */
static void expect_survivors(struct ll_stage *x, int operation)
{
    struct ll_batch *b = &x->batches[1];
    const struct ll_member *m = &b->ranks[CULPRIT];
    struct world *w = &x->scene.world;

    if (operation == TERN_OP_LL_DISPATCH) {
        ll_expect_masks(b, culprit_masked, 0);
    }
    ll_expect_dispatch(b);
    ll_expect_masks(b, culprit_masked, 1);
    ll_expect_combine(b);
    world_poison(w, m->home);
    if (operation == TERN_OP_LL_DISPATCH) {
        world_poison(w, m->counts);
        world_poison(w, m->ranges);
    }
}

/* The culprit comes to what it has left out: it waits for nobody. */
static int catch_up(struct ll_stage *x, int operation, uint32_t phase)
{
    double begin = test_seconds();

    if (operation == TERN_OP_LL_DISPATCH) {
        PASS(issue(x, 1, TERN_OP_LL_DISPATCH, phase, 1));
    }
    if (phase == TERN_LL_SEND) {
        PASS(issue(x, 1, TERN_OP_LL_DISPATCH, TERN_LL_RECEIVE, 1));
    }
    PASS(issue(x, 1, TERN_OP_LL_COMBINE, TERN_LL_BOTH, 1));
    PASS(synchronize(x, 1));
    CHECK(test_seconds() - begin < x->scene.config.timeout_ms * 1e-3, "the lost rank waits for %.2f s",
          test_seconds() - begin);
    return 0;
}

/* The culprit leaves out `operation`, whole or its receive phase too, and all after it, until the others are
 * done with the round. */
static int absent(struct ll_stage *x, int operation, uint32_t phase)
{
    ll_stage_redraw(x);
    PASS(world_upload(&x->scene.world));
    if (operation == TERN_OP_LL_COMBINE) {
        PASS(ll_dispatch_issue(&x->batches[1], TERN_LL_BOTH, 0));
    }
    PASS(issue(x, 1, operation, phase, 0));
    if (phase == TERN_LL_SEND) {
        PASS(issue(x, 1, operation, TERN_LL_RECEIVE, 0));
    }
    if (operation == TERN_OP_LL_DISPATCH) {
        PASS(issue(x, 1, TERN_OP_LL_COMBINE, TERN_LL_BOTH, 0));
    }
    PASS(synchronize(x, 0));
    expect_survivors(x, operation);
    PASS(world_verify(&x->scene.world, "a round that lost a rank"));
    PASS(catch_up(x, operation, phase));
    PASS(check_views(x, operation));
    PASS(rounds_without(x));
    return rejoin(x);
}

/* And once more, after the rank has come back. */
static int absent_dispatch_body(struct ll_stage *x)
{
    test_quiet();
    PASS(absent(x, TERN_OP_LL_DISPATCH, TERN_LL_BOTH));
    batch_close(&x->scene.batches[0]);
    return absent(x, TERN_OP_LL_DISPATCH, TERN_LL_BOTH);
}

static int absent_send_body(struct ll_stage *x)
{
    test_quiet();
    return absent(x, TERN_OP_LL_DISPATCH, TERN_LL_SEND);
}

static int absent_combine_body(struct ll_stage *x)
{
    test_quiet();
    return absent(x, TERN_OP_LL_COMBINE, TERN_LL_BOTH);
}

static uint32_t deadline_ms(const struct test *t) { return t->scale < 100 ? 4000 : 1000; }
static int absent_dispatch(struct test *t) { return everywhere(t, absent_dispatch_body, deadline_ms(t)); }
static int absent_send(struct test *t) { return everywhere(t, absent_send_body, deadline_ms(t)); }
static int absent_combine(struct test *t) { return everywhere(t, absent_combine_body, deadline_ms(t)); }

/* ---- Who waits is not to blame ---- */

/* Rank 0 never gets one of the culprit's rows, and comes to wait for it when the others, who have all of
 * them, have been waiting for rank 0 in the combine for a third of the deadline: theirs passes first. */
static int chain_body(struct ll_stage *x)
{
    uint64_t *words;
    int lost = 0;

    if (scene_on_cpu() != 1) { /* windows are not host memory */
        return 0;
    }
    test_quiet();
    for (int i = 0; i < STAGE_BATCHES; i++) {
        ll_batch_redraw_ids(&x->batches[i], ROUTING_UNIFORM, &x->scene.rng);
    }
    PASS(world_upload(&x->scene.world));
    PASS(ll_dispatch_issue(&x->batches[0], TERN_LL_SEND, 0));
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    words = ll_words_arrivals(x->scene.eps[0], 0, 1) + CULPRIT * STAGE_TOKENS;
    for (int i = 0; i < STAGE_TOKENS; i++) {
        lost += __atomic_exchange_n(&words[i], 0, __ATOMIC_RELAXED) != 0;
    }
    CHECK(lost, "nothing is lost");
    for (int r = 1; r < STAGE_RANKS; r++) {
        OK((enum tern_status)ll_stage_issue_for(x, 0, TERN_OP_LL_DISPATCH, TERN_LL_RECEIVE, r));
    }
    for (int r = 1; r < CULPRIT; r++) {
        OK((enum tern_status)ll_stage_issue_for(x, 0, TERN_OP_LL_COMBINE, TERN_LL_BOTH, r));
    }
    sleep_ms(x->scene.config.timeout_ms / 3);
    OK((enum tern_status)ll_stage_issue_for(x, 0, TERN_OP_LL_DISPATCH, TERN_LL_RECEIVE, 0));
    OK((enum tern_status)ll_stage_issue_for(x, 0, TERN_OP_LL_COMBINE, TERN_LL_BOTH, 0));
    for (int r = 0; r < CULPRIT; r++) {
        OK(tern_ep_synchronize(x->scene.eps[r]));
        PASS(told(x, r, culprit_masked));
    }
    return 0;
}

static int chain(struct test *t) { return at_once(t, chain_body, deadline_ms(t)); }

/* ---- In a stream ---- */

/* A graph that masks two ranks, has a round without them, tells who is masked, and takes them in again. All
 * ranks do so at once, so that between two replays nobody is in an operation. */
static int capture(struct ll_stage *x, const unsigned char *masked)
{
    struct ll_batch *b = &x->batches[1];

    for (int r = 0; r < STAGE_RANKS; r++) {
        struct member *m = &x->scene.world.members[r];
        struct tern_ll_dispatch_args d = ll_dispatch_args(b, r, 1);
        struct tern_ll_combine_args c = ll_combine_args(b, r, 1);
        struct tern_ep *ep = x->scene.eps[r];
        OK(tern_graph_begin(m->comm, m->lanes[1]));
        for (int i = 0; i < STAGE_RANKS; i++) {
            if (masked[i]) {
                OK(tern_ll_mask_set(ep, i, 1, m->lanes[1]));
            }
        }
        OK(tern_ll_dispatch(ep, &d, m->lanes[1]));
        OK(tern_ll_mask_get(ep, (int32_t *)world_device(&x->scene.world, b->ranks[r].mask), m->lanes[1]));
        OK(tern_ll_combine(ep, &c, m->lanes[1]));
        OK(tern_ll_mask_set(ep, -1, 0, m->lanes[1]));
        OK(tern_graph_end(m->comm, m->lanes[1], &x->scene.graphs[r]));
    }
    return 0;
}

static int replay(struct ll_stage *x, const unsigned char *masked, int round)
{
    struct ll_batch *b = &x->batches[1];
    struct world *w = &x->scene.world;

    ll_batch_redraw_ids(b, round % NUM_ROUTINGS, &x->scene.rng);
    ll_expect_masks(b, masked, 0);
    PASS(world_upload(w));
    for (int r = 0; r < STAGE_RANKS; r++) {
        int32_t *image = (int32_t *)world_image(w, b->ranks[r].mask);
        OK(tern_graph_launch(w->members[r].comm, x->scene.graphs[r], w->members[r].lanes[1]));
        for (int i = 0; i < STAGE_RANKS; i++) {
            image[i] = masked[i];
        }
    }
    PASS(world_synchronize(w));
    for (int r = 0; r < STAGE_RANKS; r++) {
        uint64_t seen[2] = {9, 9};
        OK(tern_ll_mask_peek(x->scene.eps[r], seen));
        CHECK(seen[0] == 0 && seen[1] == 0, "rank %d sees 0x%llx", r, (unsigned long long)seen[0]);
    }
    return expect_batch(x, 1, "a replayed graph with masks");
}

static int graph_body(struct ll_stage *x)
{
    static const unsigned char masked[TERN_MAX_RANKS] = {0, 1, 0, 1};

    ll_stage_redraw(x);
    PASS(capture(x, masked));
    for (int round = 0; round < 6; round++) {
        PASS(replay(x, masked, round));
        if (round % 2) { /* and everybody beside it */
            ll_batch_redraw_ids(&x->batches[1], ROUTING_UNIFORM, &x->scene.rng);
            PASS(world_upload(&x->scene.world));
            PASS(ll_dispatch_issue(&x->batches[1], TERN_LL_BOTH, 1));
            PASS(ll_combine_issue(&x->batches[1], TERN_LL_BOTH, 1));
            PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
            PASS(expect_batch(x, 1, "calls beside a graph with masks"));
        }
    }
    return 0;
}

static int graph(struct test *t) { return everywhere(t, graph_body, 60000); }

/* Words of operation `epoch` in the window of rank `at` that rank `from` wrote, or of its rows. */
static int words_from(const struct ll_stage *x, uint64_t epoch, int at, int from)
{
    const uint64_t *entry = ll_words_entry(x->scene.eps[at], 1, epoch, from);
    int words = 0;

    for (int w = 0; w < 2 + 4; w++) {
        words += entry[w] >> 32 == epoch;
    }
    return words;
}

static int arrivals_at(const struct ll_stage *x, uint64_t epoch, int at)
{
    const uint64_t *arrivals = ll_words_arrivals(x->scene.eps[at], 1, epoch);
    int words = 0;

    for (int i = 0; i < STAGE_RANKS * STAGE_TOKENS; i++) {
        words += arrivals[i] >> 32 == epoch;
    }
    return words;
}

/* Nothing goes to a masked rank, nothing comes from it; everything else does. */
static int silence_body(struct ll_stage *x)
{
    if (scene_on_cpu() != 1) { /* windows are not host memory */
        return 0;
    }
    for (int i = 0; i < STAGE_BATCHES; i++) {
        ll_batch_redraw_ids(&x->batches[i], ROUTING_UNIFORM, &x->scene.rng);
    }
    PASS(world_upload(&x->scene.world));
    for (uint64_t epoch = 1; epoch <= 4;
         epoch++) { /* the mask comes once before a dispatch, once before a combine */
        int masked = epoch > 1;
        if (epoch == 2) {
            PASS(ll_mask_issue(&x->batches[1], culprit_masked, 0));
        }
        PASS(epoch % 2 ? ll_dispatch_issue(&x->batches[1], TERN_LL_BOTH, 0)
                       : ll_combine_issue(&x->batches[1], TERN_LL_BOTH, 0));
        PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
        for (int at = 0; at < STAGE_RANKS; at++) {
            for (int from = 0; from < STAGE_RANKS; from++) {
                int silent = masked && (at == CULPRIT || from == CULPRIT);
                int words = words_from(x, epoch, at, from);
                CHECK((words == 0) == silent, "operation %d: %d words from rank %d to rank %d", (int)epoch,
                      words, from, at);
            }
            CHECK((arrivals_at(x, epoch, at) == 0) == (masked && at == CULPRIT),
                  "operation %d: %d rows for rank %d", (int)epoch, arrivals_at(x, epoch, at), at);
        }
    }
    return 0;
}

static int silence(struct test *t) { return everywhere(t, silence_body, 60000); }

/* A reset takes everybody in. */
static int reset_body(struct ll_stage *x)
{
    test_quiet();
    PASS(ll_mask_issue(&x->batches[0], culprit_masked, 0));
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    for (int r = 0; r < STAGE_RANKS; r++) {
        uint64_t seen[2];
        OK(tern_ll_mask_peek(x->scene.eps[r], seen));
        CHECK(seen[0] == 1u << CULPRIT, "rank %d sees 0x%llx", r, (unsigned long long)seen[0]);
    }
    OK(tern_ep_reset_all(STAGE_RANKS, x->scene.eps));
    return rejoin(x);
}

static int reset(struct test *t) { return everywhere(t, reset_body, 60000); }

/* ---- Time ---- */

enum { LATE_MS = 600, BEFORE = 1000 };

/* What rank 0 has waited, with BEFORE there from the start. */
static int check_waits(struct ll_stage *x, uint64_t *device, uint64_t least, uint64_t most, const char *what)
{
    const uint64_t *seen = (const uint64_t *)world_peek(&x->scene.world, 0, device, STAGE_RANKS * 8);

    CHECK(seen, "no times");
    for (int r = 0; r < STAGE_RANKS; r++) {
        uint64_t low = BEFORE + (r == CULPRIT ? least : 0);
        uint64_t high = BEFORE + (r == CULPRIT ? most : least / 2);
        CHECK(seen[r] >= low && seen[r] <= high, "%s: waited %llu ns for rank %d; expected %llu to %llu",
              what, (unsigned long long)seen[r], r, (unsigned long long)low, (unsigned long long)high);
    }
    return 0;
}

static int set_waits(struct ll_stage *x, uint64_t *device)
{
    struct member *m = &x->scene.world.members[0];
    uint64_t *host = (uint64_t *)m->scratch;

    for (int r = 0; r < STAGE_RANKS; r++) {
        host[r] = BEFORE;
    }
    OK(tern_copy(m->comm, device, host, STAGE_RANKS * 8, m->lanes[0]));
    OK(tern_stream_synchronize(m->comm, m->lanes[0]));
    return 0;
}

/* Rank 0 receives while the culprit has not sent yet; of times that a busy machine adds, half the lateness is
 * allowed for. */
static int waits_of(struct ll_stage *x, int lane, int operation, uint64_t *device)
{
    const uint64_t late = LATE_MS * 1000000ull;
    struct tern_stream *stream = x->scene.world.members[0].lanes[0];
    struct tern_ll_dispatch_args d = ll_dispatch_args(&x->batches[lane], 0, 1);
    struct tern_ll_combine_args c = ll_combine_args(&x->batches[lane], 0, 1);
    double begin;

    PASS(set_waits(x, device));
    PASS(issue(x, lane, operation, TERN_LL_SEND, 0));
    PASS(synchronize(x, 0));
    d.wait_ns = c.wait_ns = device;
    d.phase = c.phase = TERN_LL_RECEIVE;
    begin = test_seconds();
    OK(operation == TERN_OP_LL_DISPATCH ? tern_ll_dispatch(x->scene.eps[0], &d, stream)
                                        : tern_ll_combine(x->scene.eps[0], &c, stream));
    sleep_ms(LATE_MS);
    PASS(issue(x, lane, operation, TERN_LL_SEND, 1));
    OK(tern_ep_synchronize(x->scene.eps[0]));
    PASS(check_waits(x, device, late / 2, (uint64_t)((test_seconds() - begin) * 1e9),
                     operation == TERN_OP_LL_DISPATCH ? "dispatch" : "combine"));
    for (int r = 1; r < STAGE_RANKS; r++) {
        OK((enum tern_status)ll_stage_issue_for(x, lane, operation, TERN_LL_RECEIVE, r));
    }
    return world_ep_synchronize(&x->scene.world, x->scene.eps);
}

/* Nothing has to be waited for. */
static int no_waits(struct ll_stage *x, uint64_t *device)
{
    struct tern_ll_dispatch_args d = ll_dispatch_args(&x->batches[1], 0, 1);

    PASS(set_waits(x, device));
    PASS(ll_dispatch_issue(&x->batches[1], TERN_LL_SEND, 0));
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    d.phase = TERN_LL_RECEIVE;
    d.wait_ns = device;
    OK(tern_ll_dispatch(x->scene.eps[0], &d, x->scene.world.members[0].lanes[0]));
    for (int r = 1; r < STAGE_RANKS; r++) {
        OK((enum tern_status)ll_stage_issue_for(x, 1, TERN_OP_LL_DISPATCH, TERN_LL_RECEIVE, r));
    }
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    return check_waits(x, device, 0, 0, "when all was there");
}

static int waits_body(struct ll_stage *x)
{
    struct tern_comm *comm = x->scene.world.members[0].comm;
    void *device = NULL;
    int result;

    OK(tern_alloc(comm, TERN_MEMORY_DEVICE, STAGE_RANKS * 8, &device));
    for (int i = 0; i < STAGE_BATCHES; i++) {
        ll_batch_redraw_ids(&x->batches[i], ROUTING_UNIFORM, &x->scene.rng);
    }
    result = world_upload(&x->scene.world);
    result = result ? result : waits_of(x, 1, TERN_OP_LL_DISPATCH, (uint64_t *)device);
    result = result ? result : waits_of(x, 1, TERN_OP_LL_COMBINE, (uint64_t *)device);
    if (result == 0 && x->batches[0].shape.batch.max_tokens == STAGE_FEW) { /* lane 0 compresses nothing */
        result = ll_dispatch_issue(&x->batches[0], TERN_LL_BOTH, 0);
        result = result ? result : waits_of(x, 0, TERN_OP_LL_COMBINE, (uint64_t *)device);
    }
    result = result ? result : no_waits(x, (uint64_t *)device);
    tern_free(comm, device);
    return result;
}

static int waits(struct test *t) { return at_once(t, waits_body, 60000); }
static int waits_of_few(struct test *t) { return ll_stage_run_few(t, waits_body, 60000); }

/* ---- Refusals ---- */

static int refusals_body(struct ll_stage *x)
{
    struct tern_ep *ep = x->scene.eps[0];
    struct tern_stream *stream = x->scene.world.members[0].lanes[0];
    struct tern_fault f = TERN_FAULT_INIT;

    test_quiet();
    REFUSES(tern_ll_mask_set(ep, 4, 1, stream), TERN_INVALID_ARGUMENT, "rank is 4; it must be -1 to 3");
    REFUSES(tern_ll_mask_set(ep, -2, 1, stream), TERN_INVALID_ARGUMENT, "rank is -2");
    REFUSES(tern_ll_mask_set(NULL, 0, 1, stream), TERN_INVALID_ARGUMENT, "ep is NULL");
    REFUSES(tern_ll_mask_get(ep, NULL, stream), TERN_INVALID_ARGUMENT, "out is NULL");
    REFUSES(tern_ll_mask_get(ep, (int32_t *)2, stream), TERN_INVALID_ARGUMENT, "4-byte aligned");
    REFUSES(tern_ll_mask_peek(ep, NULL), TERN_INVALID_ARGUMENT, "ranks is NULL");
    REFUSES(tern_ll_mask_fault(ep, -1, &f), TERN_INVALID_ARGUMENT, "rank is -1; it must be 0 to 3");
    return 0;
}

static int refusals(struct test *t) { return ll_stage_run_masked(t, refusals_body, 60000); }

static int without_body(struct ll_stage *x)
{
    static const char *const text = "opened with ll_mask 0";
    struct tern_ep *ep = x->scene.eps[0];
    struct tern_stream *stream = x->scene.world.members[0].lanes[0];
    struct tern_fault f = TERN_FAULT_INIT;
    struct tern_ep_config c = x->scene.config;
    struct tern_ep_sizes with = TERN_EP_SIZES_INIT, bare = TERN_EP_SIZES_INIT;
    uint64_t seen[2];
    int32_t out[STAGE_RANKS];

    test_quiet();
    REFUSES(tern_ll_mask_set(ep, 0, 1, stream), TERN_BAD_STATE, text);
    REFUSES(tern_ll_mask_get(ep, out, stream), TERN_BAD_STATE, text);
    REFUSES(tern_ll_mask_peek(ep, seen), TERN_BAD_STATE, text);
    REFUSES(tern_ll_mask_fault(ep, 0, &f), TERN_BAD_STATE, text);
    OK(tern_ep_get_sizes(&c, STAGE_RANKS, &bare));
    c.ll_mask = 1;
    OK(tern_ep_get_sizes(&c, STAGE_RANKS, &with));
    CHECK(with.device_bytes > bare.device_bytes, "masks take nothing");
    c.ll_mask = 2;
    REFUSES(tern_ep_get_sizes(&c, STAGE_RANKS, &with), TERN_INVALID_ARGUMENT, "ll_mask is 2");
    c.ll_mask = 1;
    c.ll_tokens = c.ll_hidden = c.ll_lanes = 0;
    REFUSES(tern_ep_get_sizes(&c, STAGE_RANKS, &with), TERN_INVALID_ARGUMENT, "ll_mask without ll_tokens");
    return 0;
}

static int without(struct test *t) { return ll_stage_run(t, without_body, 60000); }

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "a rank that never dispatches is left out, and comes back", absent_dispatch);
    test_run(&t, "likewise, the others in two phases", absent_send);
    test_run(&t, "a rank that never combines is left out, and comes back", absent_combine);
    test_run(&t, "a rank that waits for the lost one is not blamed", chain);
    test_run(&t, "masks set, told and cleared in a graph", graph);
    test_run(&t, "nothing goes to a masked rank or comes from it", silence);
    test_run(&t, "a reset takes all ranks in", reset);
    test_run(&t, "how long a rank was waited for", waits);
    test_run(&t, "refused arguments", refusals);
    test_run(&t, "an object without masks", without);
    test_run(&t, "times waited, of few tokens and without masks", waits_of_few);
    return test_end(&t);
}
