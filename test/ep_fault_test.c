/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that never come, come late, do something else, or die: every other rank ends with a status and a
 * record within the deadline, and a reset makes the object as new. Rank 3 of 4 is the culprit, or the last of
 * many. One long file, because all cases share the culprit's scene and the check of what the others
 * report. */
#include "procs.h"
#include "scene.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { RANKS = 4, CULPRIT = 3 };

/* The deadline of a wait: what a sanitizer build needs on a busy machine. */
static uint32_t deadline_ms(const struct test *t) { return t->scale < 100 ? 4000 : 1200; }

static const double slack = 6.0; /* seconds past the deadline, for a machine with other things to do */

static void fault_scene(struct scene *s, const struct test *t, uint32_t layout, uint64_t seed)
{
    struct batch_shape shape = scene_shape(RANKS, layout, ROUTING_UNIFORM);

    test_quiet();
    scene_init(s, RANKS, seed);
    s->config.timeout_ms = deadline_ms(t);
    scene_add(s, &shape, 0);
}

/* A rank's record: what was going on, and who is to blame. */
static int check_record(struct scene *s, int rank, int operation)
{
    struct tern_fault f = TERN_FAULT_INIT;
    char text[512];
    int length;

    OK(tern_fault_get(s->eps[rank], &f));
    length = tern_fault_text(&f, text, sizeof text);
    CHECK(length > 0 && length < (int)sizeof text && length == (int)strlen(text),
          "rank %d: tern_fault_text says %d bytes of \"%s\"", rank, length, text);
    CHECK(tern_fault_text(&f, NULL, 0) == length, "rank %d: the length of the text depends on the buffer",
          rank);
    CHECK(strstr(text, "rank 3"), "rank %d: \"%s\" does not name rank 3", rank, text);
    CHECK(f.status == TERN_TIMEOUT, "rank %d: status %d: %s", rank, f.status, text);
    CHECK(f.operation == operation, "rank %d: operation %d, expected %d: %s", rank, f.operation, operation,
          text);
    CHECK(f.rank == rank && f.peer == CULPRIT, "rank %d: a record of rank %d about rank %d: %s", rank, f.rank,
          f.peer, text);
    if (f.reporter == rank) {
        CHECK(f.awaited == TERN_AWAIT_READY, "rank %d: awaited %d: %s", rank, f.awaited, text);
        CHECK(f.late[0] >> CULPRIT & 1 && !(f.late[0] >> rank & 1), "rank %d: late ranks are 0x%llx: %s",
              rank, (unsigned long long)f.late[0], text);
        CHECK(f.seen < f.expected && f.elapsed_ns >= (uint64_t)s->config.timeout_ms * 900000,
              "rank %d: seen %llu of %llu after %llu ns", rank, (unsigned long long)f.seen,
              (unsigned long long)f.expected, (unsigned long long)f.elapsed_ns);
        return 1;
    }
    return 0;
}

/* All ranks but the culprit have issued an operation. */
static int check_survivors(struct scene *s, int operation, double begin)
{
    int noticed = 0;
    int r, one;

    for (r = 0; r < RANKS; r++) {
        if (r != CULPRIT) {
            EXPECT(tern_ep_synchronize(s->eps[r]), TERN_TIMEOUT);
            EXPECT(tern_ep_synchronize(s->eps[r]), TERN_TIMEOUT); /* it stays */
            CHECK(strstr(tern_last_error(), "rank 3 "), "\"%s\" does not name rank 3", tern_last_error());
        }
    }
    CHECK(test_seconds() - begin < s->config.timeout_ms * 1e-3 + slack, "it took %.1f s",
          test_seconds() - begin);
    for (r = 0; r < RANKS; r++) {
        one = r == CULPRIT ? 0 : check_record(s, r, operation);
        if (one < 0) {
            return TEST_FAILED;
        }
        noticed += one;
    }
    CHECK(noticed, "no rank noticed by itself");
    return 0;
}

/* After a fault, by the book; then everything works. */
static int recover(struct scene *s)
{
    struct tern_fault f = TERN_FAULT_INIT;
    int r;

    batch_close(&s->batches[0]);
    OK(tern_ep_reset_all(RANKS, s->eps));
    for (r = 0; r < RANKS; r++) {
        OK(tern_ep_synchronize(s->eps[r]));
        EXPECT(tern_fault_get(s->eps[r], &f), TERN_BAD_STATE);
    }
    PASS(scene_round(s, 0));
    batch_close(&s->batches[0]);
    return scene_round(s, 0);
}

static int issue_one(struct scene *s, int operation, int rank)
{
    struct tern_route_args args = batch_args(&s->batches[0], rank);

    if (operation == TERN_OP_ROUTE) {
        OK(tern_route_open(s->eps[rank], &args, s->world.members[rank].lanes[0],
                           &s->batches[0].routes[rank]));
        return 0;
    }
    return operation == TERN_OP_DISPATCH ? dispatch_issue_rank(&s->dispatches[0], rank, 0)
                                         : combine_issue_rank(&s->combines[0], rank, 0);
}

static int prepare(struct scene *s, int operation)
{
    PASS(scene_open(s));
    scene_refill(s, 0);
    PASS(world_upload(&s->world));
    if (operation != TERN_OP_ROUTE) {
        PASS(batch_open(&s->batches[0], s->eps, 0));
        PASS(world_ep_synchronize(&s->world, s->eps));
    }
    return 0;
}

/* ---- Never ---- */

static int absent_from(struct scene *s, int operation)
{
    struct tern_route_counts counts = TERN_ROUTE_COUNTS_INIT;
    double begin;
    int r;

    PASS(prepare(s, operation));
    begin = test_seconds();
    for (r = 0; r < RANKS; r++) {
        if (r != CULPRIT) {
            PASS(issue_one(s, operation, r));
        }
    }
    for (r = 0; r < RANKS && operation == TERN_OP_ROUTE; r++) {
        if (r != CULPRIT) {
            EXPECT(tern_route_wait(s->batches[0].routes[r], &counts), TERN_TIMEOUT);
            CHECK(!counts.num_rows && !counts.rank_counts, "rank %d: a failed tern_route_wait wrote counts",
                  r);
        }
    }
    PASS(check_survivors(s, operation, begin));
    return recover(s);
}

static int absent(struct test *t, int operation)
{
    struct scene s;
    int result;

    fault_scene(&s, t, operation == TERN_OP_COMBINE ? TERN_LAYOUT_EXPERT : TERN_LAYOUT_RANK,
                30 + (uint64_t)operation);
    result = absent_from(&s, operation);
    scene_fini(&s);
    return result;
}

static int absent_route(struct test *t) { return absent(t, TERN_OP_ROUTE); }
static int absent_dispatch(struct test *t) { return absent(t, TERN_OP_DISPATCH); }
static int absent_combine(struct test *t) { return absent(t, TERN_OP_COMBINE); }

/* The ranks that are late are two words in the record; the culprit is in the second. */
enum { MANY = 66, LAST = MANY - 1 };

static int absent_among_many(struct scene *s)
{
    int noticed = 0;
    int r;

    PASS(prepare(s, TERN_OP_DISPATCH));
    for (r = 0; r < LAST; r++) {
        PASS(issue_one(s, TERN_OP_DISPATCH, r));
    }
    for (r = 0; r < LAST; r++) {
        struct tern_fault f = TERN_FAULT_INIT;
        REFUSES(tern_ep_synchronize(s->eps[r]), TERN_TIMEOUT, "rank 65 ");
        OK(tern_fault_get(s->eps[r], &f));
        CHECK(f.peer == LAST, "rank %d blames rank %d", r, f.peer);
        if (f.reporter == r) {
            CHECK(f.late[0] == 0 && f.late[1] == 1ull << (LAST - 64),
                  "rank %d: late ranks are 0x%llx, 0x%llx", r, (unsigned long long)f.late[0],
                  (unsigned long long)f.late[1]);
            CHECK(strstr(tern_last_error(), "late ranks: 65"), "\"%s\" does not list rank 65",
                  tern_last_error());
            noticed++;
        }
    }
    CHECK(noticed, "no rank noticed by itself");
    return 0;
}

static int absent_past_64(struct test *t)
{
    struct batch_shape shape = scene_shape(MANY, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    int cpu = scene_on_cpu();
    struct scene s;
    int result;

    if (cpu != 1) {
        return cpu < 0 ? cpu : test_skip(t, "%d ranks do not fit on one device at once", MANY);
    }
#ifdef TERN_THREAD_SANITIZER
    return test_skip(t, "%d ranks have more fibers than ThreadSanitizer takes threads", MANY);
#endif
    test_quiet();
    shape.max_tokens = 1;
    scene_init(&s, MANY, 66);
    s.world.num_lanes = 1;
    s.config.num_sms = 1;
    s.config.timeout_ms = deadline_ms(t);
    scene_add(&s, &shape, 0);
    result = absent_among_many(&s);
    scene_fini(&s);
    return result;
}

/* ---- Late ---- */

static void pause_ms(long milliseconds)
{
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};

    nanosleep(&time, NULL);
}

static int late_but_in_time(struct scene *s)
{
    int operation, r;

    PASS(prepare(s, TERN_OP_DISPATCH));
    for (operation = TERN_OP_DISPATCH; operation <= TERN_OP_COMBINE; operation++) {
        for (r = 0; r < RANKS; r++) {
            pause_ms(r == CULPRIT ? (long)s->config.timeout_ms / 4 : 0);
            PASS(issue_one(s, operation, r));
        }
    }
    dispatch_expect(&s->dispatches[0]);
    combine_expect(&s->combines[0]);
    PASS(world_ep_synchronize(&s->world, s->eps));
    return world_verify(&s->world, "a late rank");
}

static int late(struct test *t)
{
    struct scene s;
    int result;

    fault_scene(&s, t, TERN_LAYOUT_RANK, 40);
    s.free_running = 1;
    result = late_but_in_time(&s);
    scene_fini(&s);
    return result;
}

static int too_late_for(struct scene *s)
{
    double begin;
    int r;

    PASS(prepare(s, TERN_OP_DISPATCH));
    begin = test_seconds();
    for (r = 0; r < RANKS; r++) {
        if (r != CULPRIT) {
            PASS(issue_one(s, TERN_OP_DISPATCH, r));
        }
    }
    PASS(check_survivors(s, TERN_OP_DISPATCH, begin));
    /* The others have gone: the late rank is told, and ends as well. */
    begin = test_seconds();
    PASS(issue_one(s, TERN_OP_DISPATCH, CULPRIT));
    EXPECT(tern_ep_synchronize(s->eps[CULPRIT]), TERN_TIMEOUT);
    CHECK(test_seconds() - begin < s->config.timeout_ms * 1e-3 + slack, "it took %.1f s",
          test_seconds() - begin);
    return recover(s);
}

static int too_late(struct test *t)
{
    struct scene s;
    int result;

    fault_scene(&s, t, TERN_LAYOUT_EXPERT, 41);
    result = too_late_for(&s);
    scene_fini(&s);
    return result;
}

/* ---- Something else ---- */

/* The culprit differs from the rest: everyone fails, and who noticed by itself names a rank of the other
 * camp. */
static int check_mismatch(struct scene *s, double begin)
{
    int named = 0;
    int r;

    for (r = 0; r < RANKS; r++) {
        enum tern_status status = tern_ep_synchronize(s->eps[r]);
        struct tern_fault f = TERN_FAULT_INIT;
        CHECK(status == TERN_MISMATCH || status == TERN_TIMEOUT, "rank %d: %s", r,
              tern_status_string(status));
        OK(tern_fault_get(s->eps[r], &f));
        if (f.awaited == TERN_AWAIT_MATCH && f.reporter == r) {
            CHECK(f.status == TERN_MISMATCH, "rank %d: a mismatch with status %d", r, f.status);
            CHECK((r == CULPRIT) != (f.peer == CULPRIT), "rank %d blames rank %d", r, f.peer);
            CHECK(f.seen != f.expected, "rank %d: seen and expected are equal", r);
            named++;
        }
    }
    CHECK(named, "no record says what did not match");
    CHECK(test_seconds() - begin < s->config.timeout_ms * 1e-3 + slack, "it took %.1f s",
          test_seconds() - begin);
    return 0;
}

static int other_operation(struct scene *s)
{
    double begin;
    int r;

    PASS(prepare(s, TERN_OP_DISPATCH));
    begin = test_seconds();
    for (r = 0; r < RANKS; r++) {
        PASS(issue_one(s, r == CULPRIT ? TERN_OP_COMBINE : TERN_OP_DISPATCH, r));
    }
    PASS(check_mismatch(s, begin));
    return recover(s);
}

static int other_sizes(struct scene *s)
{
    struct sender *culprit = &s->dispatches[0].ranks[CULPRIT];
    double begin;

    PASS(prepare(s, TERN_OP_DISPATCH));
    culprit->in[0].rows.row_bytes -= 16;
    culprit->out[0].rows.row_bytes -= 16;
    begin = test_seconds();
    PASS(dispatch_issue(&s->dispatches[0], 0));
    culprit->in[0].rows.row_bytes += 16;
    culprit->out[0].rows.row_bytes += 16;
    PASS(check_mismatch(s, begin));
    return recover(s);
}

static int mismatch(struct test *t)
{
    struct scene s;
    int result;

    fault_scene(&s, t, TERN_LAYOUT_RANK, 50);
    result = other_operation(&s);
    scene_fini(&s);
    if (!result) {
        fault_scene(&s, t, TERN_LAYOUT_EXPERT, 51);
        result = other_sizes(&s);
        scene_fini(&s);
    }
    return result;
}

/* ---- An id out of range ---- */

/* The rank that gave it is told; for everybody the choice counts as none. */
static int bad_id_at(struct scene *s, int64_t id)
{
    struct batch *b = &s->batches[0];
    struct tern_route_counts counts = TERN_ROUTE_COUNTS_INIT;
    struct tern_fault f = TERN_FAULT_INIT;
    int64_t at = (int64_t)b->num_tokens[1] * b->shape.topk - 2;
    char text[128];

    snprintf(text, sizeof text, "expert id %lld of token %d, choice %d is outside -1 .. 15", (long long)id,
             (int)b->num_tokens[1] - 1, (int)b->shape.topk - 2);
    b->ids[1][at] = id;
    batch_changed(b);
    PASS(world_upload(&s->world));
    PASS(batch_open(b, s->eps, 0));
    PASS(world_synchronize(&s->world));
    REFUSES(tern_route_wait(b->routes[1], &counts), TERN_INVALID_ARGUMENT, text);
    CHECK(counts.num_rows == b->expected[1].num_rows, "rank 1 receives %llu rows, expected %llu",
          (unsigned long long)counts.num_rows, (unsigned long long)b->expected[1].num_rows);
    OK(tern_fault_get(s->eps[1], &f));
    CHECK(f.awaited == TERN_AWAIT_EXPERT_ID && f.peer == 1 && f.expected == (uint64_t)at &&
              f.seen == (uint64_t)id,
          "the record has awaited %d, peer %d, index %llu, id %lld", f.awaited, f.peer,
          (unsigned long long)f.expected, (long long)f.seen);
    CHECK(f.topk == b->shape.topk && f.num_experts == 16 && !f.late[0] && !f.late[1],
          "the record has topk %u, %u experts, late ranks 0x%llx", f.topk, f.num_experts,
          (unsigned long long)f.late[0]);
    OK(tern_route_wait(b->routes[0], &counts));
    CHECK(counts.num_rows == b->expected[0].num_rows, "rank 0 receives %llu rows, expected %llu",
          (unsigned long long)counts.num_rows, (unsigned long long)b->expected[0].num_rows);
    PASS(dispatch_issue(&s->dispatches[0], 0));
    dispatch_expect(&s->dispatches[0]);
    PASS(world_ep_synchronize(&s->world, s->eps));
    PASS(world_verify(&s->world, "dispatch after an id out of range"));
    batch_close(b);
    return 0;
}

static int bad_ids(struct scene *s)
{
    PASS(scene_open(s));
    scene_refill(s, 0);
    PASS(bad_id_at(s, 16));
    dispatch_poison(&s->dispatches[0]);
    PASS(bad_id_at(s, -7));
    dispatch_poison(&s->dispatches[0]);
    PASS(bad_id_at(s, 4294967299)); /* 3, to whoever looks at half of it */
    s->batches[0].ids[1][(size_t)s->batches[0].num_tokens[1] * s->batches[0].shape.topk - 2] = -1;
    batch_changed(&s->batches[0]);
    return scene_round(s, 0);
}

static int expert_ids(struct test *t)
{
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    struct scene s;
    int result;

    (void)t;
    test_quiet();
    shape.equal_tokens = 1;
    scene_init(&s, RANKS, 60);
    scene_add(&s, &shape, RANKS * MAX_TOKENS);
    result = bad_ids(&s);
    scene_fini(&s);
    return result;
}

/* ---- Sentences ---- */

static int says(const struct tern_fault *f, const char *wanted)
{
    char text[512];

    tern_fault_text(f, text, sizeof text);
    CHECK(!strcmp(text, wanted), "\"%s\" should be \"%s\"", text, wanted);
    return 0;
}

/* The record's own words: pure, so that every kind of fault can be had. */
static int sentences(struct test *t)
{
    struct tern_fault f = TERN_FAULT_INIT;

    (void)t;
    f.operation = TERN_OP_DISPATCH;
    f.awaited = TERN_AWAIT_READY;
    f.epoch = 2;
    f.peer = 3;
    f.expected = 2;
    f.seen = 1;
    f.elapsed_ns = 1500000;
    f.late[0] = 1u << 3;
    f.late[1] = 1;
    PASS(says(
        &f,
        "rank 0, dispatch (operation number 2): rank 3 did not arrive within 1.5 ms (signal 1, expected 2, "
        "block 0, warp 0); late ranks: 3 64"));
    f.awaited = TERN_AWAIT_MATCH;
    PASS(says(
        &f,
        "rank 0, dispatch (operation number 2): rank 3 is in another operation, route or shape (signature "
        "0000000000000001, here 0000000000000002); compare topk, layout, alignment, idx_bytes, payload "
        "sizes and cast of both ranks"));
    f.reporter = 1;
    PASS(says(
        &f,
        "rank 0, dispatch (operation number 2): rank 1 reported that rank 3 is in another operation, route "
        "or shape; compare topk, layout, alignment, idx_bytes, payload sizes and cast of both ranks"));
    f.awaited = TERN_AWAIT_DONE;
    PASS(says(&f,
              "rank 0, dispatch (operation number 2): rank 1 reported that rank 3 did not finish in time"));
    f.reporter = 0;
    f.operation = TERN_OP_ROUTE;
    f.awaited = TERN_AWAIT_EXPERT_ID;
    f.peer = 0;
    f.expected = 5;
    f.seen = 99;
    PASS(says(&f, "rank 0, route (operation number 2): expert id 99 at index 5 of topk_idx is out of range"));
    f.topk = 2;
    f.num_experts = 8;
    return says(&f,
                "rank 0, route (operation number 2): expert id 99 of token 2, choice 1 is outside -1 .. 7");
}

/* ---- Death ---- */

enum { VICTIM = 2, MARK_DEATH = 0 };

static enum tern_status one_round(struct batch *b, struct dispatch *d, struct tern_ep *ep, int rank)
{
    struct tern_stream *lane = b->world->members[rank].lanes[0];
    struct tern_rows in[TERN_MAX_PAYLOADS], out[TERN_MAX_PAYLOADS + 1];
    struct tern_dispatch_args args = dispatch_args(d, rank, 1, in, out);
    struct tern_route_args route = batch_args(b, rank);
    enum tern_status status;

    status = b->routes[rank] ? tern_route_update(b->routes[rank], &route, lane)
                             : tern_route_open(ep, &route, lane, &b->routes[rank]);
    status = status == TERN_OK ? tern_dispatch(b->routes[rank], &args, lane) : status;
    return status == TERN_OK ? tern_ep_synchronize(ep) : status;
}

static int live_or_die(struct scene *s, int rank, struct procs_page *page)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_fault f = TERN_FAULT_INIT;
    enum tern_status status = TERN_OK;
    double begin = test_seconds();
    int n;

    PASS(world_open(&s->world, &page->id, &config));
    PASS(world_ep_open(&s->world, &s->config, s->eps));
    scene_refill(s, 0);
    PASS(world_upload(&s->world));
    for (n = 0; status == TERN_OK && test_seconds() < begin + 60; n++) {
        if (rank == VICTIM && n == 5) {
            page->marks[MARK_DEATH] = test_seconds();
            raise(SIGKILL);
        }
        status = one_round(&s->batches[0], &s->dispatches[0], s->eps[rank], rank);
    }
    CHECK(status == TERN_TIMEOUT, "rank %d ends with %s: %s", rank, tern_status_string(status),
          tern_last_error());
    CHECK(test_seconds() - page->marks[MARK_DEATH] < s->config.timeout_ms * 1e-3 + slack,
          "rank %d ends %.1f s after the death", rank, test_seconds() - page->marks[MARK_DEATH]);
    CHECK(strstr(tern_last_error(), "rank 2"), "\"%s\" does not name rank 2", tern_last_error());
    OK(tern_fault_get(s->eps[rank], &f));
    CHECK(f.peer == VICTIM, "rank %d blames rank %d", rank, f.peer);
    return 0;
}

static int mortal(int rank, struct procs_page *page, void *user)
{
    const struct test *t = (const struct test *)user;
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    struct scene s;
    int result;

    test_quiet();
    scene_init(&s, RANKS, 70);
    s.world.self = rank;
    s.config.timeout_ms = deadline_ms(t);
    scene_add(&s, &shape, 0);
    result = live_or_die(&s, rank, page);
    scene_fini(&s);
    return result;
}

static int death(struct test *t) { return procs_run(RANKS, VICTIM, 90, mortal, t); }

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "a killed process is named by the others", death); /* first: forks before Tern has threads */
    test_run(&t, "a rank that never routes is named", absent_route);
    test_run(&t, "a rank that never dispatches is named", absent_dispatch);
    test_run(&t, "a rank that never combines is named", absent_combine);
    test_run(&t, "a rank past the first 64 is named", absent_past_64);
    test_run(&t, "a rank that is late, but in time, changes nothing", late);
    test_run(&t, "a rank that is too late ends as well", too_late);
    test_run(&t, "ranks in different operations or sizes", mismatch);
    test_run(&t, "expert ids out of range", expert_ids);
    test_run(&t, "sentences of faults", sentences);
    return test_end(&t);
}
