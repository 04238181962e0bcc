/* SPDX-License-Identifier: Apache-2.0
 *
 * Low latency and ranks that do not come, come with something else, or name experts that do not exist: who is
 * told what, and that a reset mends it. */
#include "ll_stage.h"

#include <string.h>

enum { CULPRIT = 3 };

static int check_survivors(struct ll_stage *x, int operation)
{
    int noticed = 0;

    for (int r = 0; r < STAGE_RANKS; r++) {
        struct tern_fault f = TERN_FAULT_INIT;
        if (r == CULPRIT) {
            continue;
        }
        REFUSES(tern_ep_synchronize(x->scene.eps[r]), TERN_TIMEOUT, "rank 3 ");
        OK(tern_fault_get(x->scene.eps[r], &f));
        CHECK(f.operation == operation && f.peer == CULPRIT, "rank %d: operation %d, rank %d is to blame", r,
              f.operation, f.peer);
        CHECK(strstr(tern_last_error(), "low-latency"), "\"%s\" does not say low-latency", tern_last_error());
        CHECK(f.awaited == TERN_AWAIT_READY, "rank %d awaited %d", r, f.awaited);
        if (f.reporter == r) {
            CHECK(f.late[0] == 1u << CULPRIT, "rank %d: late ranks are 0x%llx", r,
                  (unsigned long long)f.late[0]);
            CHECK(f.elapsed_ns >= (uint64_t)x->scene.config.timeout_ms * 900000, "gave up after %llu ns",
                  (unsigned long long)f.elapsed_ns);
            noticed++;
        }
    }
    CHECK(noticed, "no rank noticed by itself");
    return 0;
}

/* Rank 3 leaves out `operation` in a lane, whole or from its receive phase on, and does all before it. */
static int absent_in(struct ll_stage *x, int lane, int operation, uint32_t phase)
{
    test_quiet();
    ll_stage_redraw(x);
    PASS(world_upload(&x->scene.world));
    if (operation == TERN_OP_LL_COMBINE) {
        PASS(ll_dispatch_issue(&x->batches[lane], TERN_LL_BOTH, 0));
    }
    for (int r = 0; r < STAGE_RANKS; r++) {
        if (r != CULPRIT) {
            OK((enum tern_status)ll_stage_issue_for(x, lane, operation, phase, r));
        }
    }
    for (int r = 0; r < STAGE_RANKS && phase == TERN_LL_SEND; r++) {
        if (r != CULPRIT) {
            OK(tern_ep_synchronize(x->scene.eps[r])); /* sending waits for nobody */
            OK((enum tern_status)ll_stage_issue_for(x, lane, operation, TERN_LL_RECEIVE, r));
        }
    }
    PASS(check_survivors(x, operation));
    return ll_stage_recover(x);
}

static int absent(struct ll_stage *x, int operation, uint32_t phase)
{
    return absent_in(x, 1, operation, phase);
}

static int absent_dispatch_body(struct ll_stage *x) { return absent(x, TERN_OP_LL_DISPATCH, TERN_LL_BOTH); }
static int absent_send_body(struct ll_stage *x) { return absent(x, TERN_OP_LL_DISPATCH, TERN_LL_SEND); }
static int absent_combine_body(struct ll_stage *x) { return absent(x, TERN_OP_LL_COMBINE, TERN_LL_BOTH); }
static int absent_home_body(struct ll_stage *x) { return absent(x, TERN_OP_LL_COMBINE, TERN_LL_SEND); }

/* Whose rows are not compressed, so that few go in words. */
static int absent_plain_combine_body(struct ll_stage *x)
{
    return absent_in(x, 0, TERN_OP_LL_COMBINE, TERN_LL_BOTH);
}
static int absent_plain_home_body(struct ll_stage *x)
{
    return absent_in(x, 0, TERN_OP_LL_COMBINE, TERN_LL_SEND);
}

static uint32_t deadline_ms(const struct test *t) { return t->scale < 100 ? 3000 : 700; }
static int absent_dispatch(struct test *t) { return ll_stage_run(t, absent_dispatch_body, deadline_ms(t)); }
static int absent_send(struct test *t) { return ll_stage_run(t, absent_send_body, deadline_ms(t)); }
static int absent_combine(struct test *t) { return ll_stage_run(t, absent_combine_body, deadline_ms(t)); }
static int absent_home(struct test *t) { return ll_stage_run(t, absent_home_body, deadline_ms(t)); }

static int few_absent_dispatch(struct test *t)
{
    return ll_stage_run_few(t, absent_dispatch_body, deadline_ms(t));
}
static int few_absent_send(struct test *t) { return ll_stage_run_few(t, absent_send_body, deadline_ms(t)); }
static int few_absent_combine(struct test *t)
{
    return ll_stage_run_few(t, absent_plain_combine_body, deadline_ms(t));
}
static int few_absent_home(struct test *t)
{
    return ll_stage_run_few(t, absent_plain_home_body, deadline_ms(t));
}

/* That rank 3 differs. */
static int all_are_told(struct ll_stage *x)
{
    int told = 0;

    for (int r = 0; r < STAGE_RANKS; r++) {
        EXPECT(tern_ep_synchronize(x->scene.eps[r]), TERN_MISMATCH);
        told += strstr(tern_last_error(), "rank 3 ") != NULL;
    }
    CHECK(told, "no rank names rank 3");
    return ll_stage_recover(x);
}

/* Rank 3 names another shape than the others, in lane 1. */
static int differ(struct ll_stage *x, uint32_t hidden, uint32_t layout)
{
    test_quiet();
    ll_stage_redraw(x);
    PASS(world_upload(&x->scene.world));
    for (int r = 0; r < STAGE_RANKS; r++) {
        struct tern_ll_dispatch_args d = ll_dispatch_args(&x->batches[1], r, 1);
        if (r == CULPRIT) {
            d.hidden = hidden;
            d.layout = layout;
            d.out_ranges = layout == TERN_LL_BY_EXPERT ? d.out_ranges : NULL;
        }
        OK(tern_ll_dispatch(x->scene.eps[r], &d, x->scene.world.members[r].lanes[0]));
    }
    return all_are_told(x);
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
    return all_are_told(x);
}

static int other_compression(struct test *t) { return ll_stage_run(t, other_compression_body, 60000); }

static int other_shape_body(struct ll_stage *x)
{
    return differ(x, x->batches[1].shape.hidden - 16, TERN_LL_BY_EXPERT);
}

/* Rank 3 has a choice fewer a token, which are as many words of ids. */
static int other_topk(struct ll_stage *x, uint32_t num_sms)
{
    test_quiet();
    ll_stage_redraw(x);
    PASS(world_upload(&x->scene.world));
    for (int r = 0; r < STAGE_RANKS; r++) {
        struct tern_ll_dispatch_args d = ll_dispatch_args(&x->batches[1], r, 1);
        d.topk -= r == CULPRIT;
        d.num_sms = num_sms;
        OK(tern_ll_dispatch(x->scene.eps[r], &d, x->scene.world.members[r].lanes[0]));
    }
    return all_are_told(x);
}

static int other_topk_body(struct ll_stage *x) { return other_topk(x, 4); }
static int other_topk_one_block_body(struct ll_stage *x) { return other_topk(x, 1); }

static int other_layout_body(struct ll_stage *x)
{
    return differ(x, x->batches[1].shape.hidden, TERN_LL_BY_RANK);
}

static int other_layout(struct test *t) { return ll_stage_run(t, other_layout_body, 60000); }
static int other_shape(struct test *t) { return ll_stage_run(t, other_shape_body, 60000); }
static int few_other_shape(struct test *t) { return ll_stage_run_few(t, other_shape_body, 60000); }
static int few_other_topk(struct test *t)
{
    PASS(ll_stage_run_few(t, other_topk_body, 60000));
    return ll_stage_run_few(t, other_topk_one_block_body, deadline_ms(t));
}
static int few_other_layout(struct test *t) { return ll_stage_run_few(t, other_layout_body, 60000); }

static int bad_ids_body(struct ll_stage *x)
{
    struct ll_batch *b = &x->batches[0];
    struct tern_fault f = TERN_FAULT_INIT;

    test_quiet();
    ll_batch_redraw_ids(b, ROUTING_UNIFORM, &x->scene.rng); /* every rank has all its tokens */
    b->batch.ids[1][7] = 16;
    batch_changed(&b->batch);
    terni_ref_ll_fini(&b->ref);
    terni_ref_ll_init(&b->ref, &b->batch.ref, b->shape.batch.max_tokens);
    PASS(world_upload(&x->scene.world));
    PASS(ll_dispatch_issue(b, TERN_LL_BOTH, 0));
    PASS(ll_combine_issue(b, TERN_LL_BOTH, 0));
    ll_expect_dispatch(b);
    ll_expect_combine(b);
    OK(tern_ep_synchronize(x->scene.eps[0]));
    REFUSES(tern_ep_synchronize(x->scene.eps[1]), TERN_INVALID_ARGUMENT, "expert id 16 of token 1, choice 3");
    OK(tern_ep_synchronize(x->scene.eps[1])); /* told once */
    OK(tern_fault_get(x->scene.eps[1], &f));
    CHECK(f.awaited == TERN_AWAIT_EXPERT_ID && f.seen == 16, "awaited %d, seen %llu", f.awaited,
          (unsigned long long)f.seen);
    return world_verify(&x->scene.world, "an id out of range counts as -1");
}

static int bad_ids(struct test *t) { return ll_stage_run(t, bad_ids_body, 60000); }
static int few_bad_ids(struct test *t) { return ll_stage_run_few(t, bad_ids_body, 60000); }

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "a rank that never dispatches", absent_dispatch);
    test_run(&t, "a rank that never sends, the others in two phases", absent_send);
    test_run(&t, "a rank that never combines", absent_combine);
    test_run(&t, "a rank that never combines, the others in two phases", absent_home);
    test_run(&t, "a rank with another shape", other_shape);
    test_run(&t, "a rank with another layout", other_layout);
    test_run(&t, "a rank with another compression", other_compression);
    test_run(&t, "an id out of range", bad_ids);
    test_run(&t, "of few tokens: a rank that never dispatches", few_absent_dispatch);
    test_run(&t, "of few tokens: a rank that never sends, the others in two phases", few_absent_send);
    test_run(&t, "of few tokens: a rank that never combines", few_absent_combine);
    test_run(&t, "of few tokens: a rank that never combines, the others in two phases", few_absent_home);
    test_run(&t, "of few tokens: a rank with another shape", few_other_shape);
    test_run(&t, "of few tokens: a rank with another layout", few_other_layout);
    test_run(&t, "of few tokens: an id out of range", few_bad_ids);
    test_run(&t, "of few tokens: a rank with another top-k", few_other_topk);
    return test_end(&t);
}
