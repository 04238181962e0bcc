/* SPDX-License-Identifier: Apache-2.0
 *
 * Low latency across domains, and a rank that does not come, or comes with something else: every rank, near
 * it or far, names it within the deadline, and a reset makes all as new. Masks of far ranks are in
 * ep_ll_mask_test.c. */
#include "ll_stage.h"

#include <stdio.h>
#include <string.h>

enum { CULPRIT = 3, DEADLINE_MS = 700, SANITIZED_MS = 3000 };

static const double slack = 6.0; /* seconds past the deadline, for a machine with other things to do */

static uint32_t deadline_ms(const struct test *t) { return t->scale < 100 ? SANITIZED_MS : DEADLINE_MS; }

/* By loads and stores, railed, and by the proxy. */
static int all(struct test *t, int (*body)(struct ll_stage *), uint32_t timeout_ms)
{
    PASS(ll_stage_run_cut(t, body, timeout_ms, 0, STAGE_CUT));
    PASS(ll_stage_run_railed(t, body, timeout_ms, STAGE_CUT));
    return ll_stage_run_cut(t, body, timeout_ms, 0, STAGE_BY_PROXY);
}

static int check_survivor(struct ll_stage *x, int rank, int operation, int *noticed)
{
    struct tern_fault f = TERN_FAULT_INIT;

    REFUSES(tern_ep_synchronize(x->scene.eps[rank]), TERN_TIMEOUT, "rank 3 ");
    OK(tern_fault_get(x->scene.eps[rank], &f));
    CHECK(f.operation == operation && f.peer == CULPRIT && f.awaited == TERN_AWAIT_READY,
          "rank %d: operation %d, rank %d is to blame, awaited %d", rank, f.operation, f.peer, f.awaited);
    if (f.reporter == rank) {
        CHECK(f.late[0] == 1u << CULPRIT, "rank %d: late ranks are 0x%llx", rank,
              (unsigned long long)f.late[0]);
        CHECK(f.elapsed_ns >= (uint64_t)x->scene.config.timeout_ms * 900000, "gave up after %llu ns",
              (unsigned long long)f.elapsed_ns);
        *noticed += 1;
    }
    return 0;
}

static int issue_others(struct ll_stage *x, int operation, uint32_t phase)
{
    for (int r = 0; r < STAGE_RANKS; r++) {
        if (r != CULPRIT) {
            OK((enum tern_status)ll_stage_issue_for(x, 1, operation, phase, r));
        }
    }
    return 0;
}

/* Rank 3 leaves out `operation`, whole or from its receive phase on, and does all before it. */
static int absent(struct ll_stage *x, int operation, uint32_t phase)
{
    double begin;
    int noticed = 0;

    test_quiet();
    ll_stage_redraw(x);
    PASS(world_upload(&x->scene.world));
    if (operation == TERN_OP_LL_COMBINE) {
        PASS(ll_dispatch_issue(&x->batches[1], TERN_LL_BOTH, 0));
        PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    }
    PASS(issue_others(x, operation, phase));
    for (int r = 0; r < STAGE_RANKS && phase == TERN_LL_SEND; r++) {
        OK(tern_ep_synchronize(x->scene.eps[r])); /* sending waits for nobody */
    }
    begin = test_seconds();
    if (phase == TERN_LL_SEND) {
        PASS(issue_others(x, operation, TERN_LL_RECEIVE));
    }
    for (int r = 0; r < STAGE_RANKS; r++) {
        PASS(r == CULPRIT ? TEST_PASSED : check_survivor(x, r, operation, &noticed));
    }
    CHECK(noticed, "no rank noticed by itself");
    CHECK(test_seconds() - begin < x->scene.config.timeout_ms * 1.25e-3 + slack, "it took %.1f s",
          test_seconds() - begin);
    PASS(ll_stage_hear(x, 1, operation, TERN_LL_BOTH, CULPRIT));
    return ll_stage_recover(x);
}

static int absent_dispatch_body(struct ll_stage *x) { return absent(x, TERN_OP_LL_DISPATCH, TERN_LL_BOTH); }
static int absent_send_body(struct ll_stage *x) { return absent(x, TERN_OP_LL_DISPATCH, TERN_LL_SEND); }
static int absent_combine_body(struct ll_stage *x) { return absent(x, TERN_OP_LL_COMBINE, TERN_LL_BOTH); }
static int absent_home_body(struct ll_stage *x) { return absent(x, TERN_OP_LL_COMBINE, TERN_LL_SEND); }

static int absent_dispatch(struct test *t) { return all(t, absent_dispatch_body, deadline_ms(t)); }
static int absent_send(struct test *t) { return all(t, absent_send_body, deadline_ms(t)); }
static int absent_combine(struct test *t) { return all(t, absent_combine_body, deadline_ms(t)); }
static int absent_home(struct test *t) { return all(t, absent_home_body, deadline_ms(t)); }

/* ---- A rank that does something else ---- */

static int check_mismatch(struct ll_stage *x)
{
    int told = 0;

    for (int r = 0; r < STAGE_RANKS; r++) {
        EXPECT(tern_ep_synchronize(x->scene.eps[r]), TERN_MISMATCH);
        told += strstr(tern_last_error(), "rank 3 ") != NULL;
    }
    CHECK(told, "no rank names rank 3");
    return ll_stage_recover(x);
}

static int other_shape_body(struct ll_stage *x)
{
    test_quiet();
    ll_stage_redraw(x);
    PASS(world_upload(&x->scene.world));
    for (int r = 0; r < STAGE_RANKS; r++) {
        struct tern_ll_dispatch_args d = ll_dispatch_args(&x->batches[1], r, 1);
        d.hidden -= r == CULPRIT ? 16 : 0;
        OK(tern_ll_dispatch(x->scene.eps[r], &d, x->scene.world.members[r].lanes[0]));
    }
    return check_mismatch(x);
}

static int other_compression_body(struct ll_stage *x)
{
    test_quiet();
    ll_stage_redraw(x);
    PASS(world_upload(&x->scene.world));
    PASS(ll_dispatch_issue(&x->batches[1], TERN_LL_BOTH, 0));
    for (int r = 0; r < STAGE_RANKS; r++) {
        struct tern_ll_combine_args c = ll_combine_args(&x->batches[1], r, 1);
        c.compression = r == CULPRIT ? TERN_LL_LOG10 : TERN_LL_FP8;
        OK(tern_ll_combine(x->scene.eps[r], &c, x->scene.world.members[r].lanes[0]));
    }
    return check_mismatch(x);
}

static int other_shape(struct test *t) { return all(t, other_shape_body, 60000); }
static int other_compression(struct test *t) { return all(t, other_compression_body, 60000); }

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "a rank that never dispatches", absent_dispatch);
    test_run(&t, "a rank that never sends, the others in two phases", absent_send);
    test_run(&t, "a rank that never combines", absent_combine);
    test_run(&t, "a rank that never combines, the others in two phases", absent_home);
    test_run(&t, "a rank with another shape", other_shape);
    test_run(&t, "a rank with another compression", other_compression);
    return test_end(&t);
}
