/* SPDX-License-Identifier: Apache-2.0
 *
 * Networks that fail under operations across domains, high throughput and low latency: a NIC whose queue
 * pairs go to error in the middle of one, and a link so slow that the deadline passes. Every rank ends within
 * the deadline, with a record that names a rank; an object whose queues have failed refuses a reset and says
 * why, and another on the same communicator is right. Over NICs in software, by loads and stores and by
 * packets. */
#include "erring.h"
#include "ll_stage.h"
#include "patience.h"

#include "net/nic_provider.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS = 6, GROUP = 2, CULPRIT = 3, DEADLINE_MS = 1500, SANITIZED_MS = 4000 };
enum { LEAD_MS = 30, SHORT_MS = 700, SLOW_MS = 1000, FAST_NS = 1000 };
enum { DRAG_MS = 350, DRAG_DEADLINE_MS = 1600, MANY_TOKENS = 200 };
enum { LONG_NS = 300000000, LEAVE_MS = 5000 };

static const double slack = 6.0; /* seconds past the deadline, for a machine with other things to do */

static uint32_t deadline_ms(const struct test *t) { return t->scale < 100 ? SANITIZED_MS : DEADLINE_MS; }

/* A modelled link is at most a second slow, so that the deadline is less. */
static const char too_short[] = "with a sanitizer sound operations need more than so short a deadline";
static const char of_gpus[] = "NICs of a GPU are one kernel, which speaks no packets and has one model";

static int on_cpu(void)
{
    const char *machine = getenv("TERN_MACHINE");
    return machine == NULL || strcmp(machine, "cuda") != 0;
}

static void wait_ms(long ms)
{
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* ---- What every rank learns ---- */

/* Who waits for the culprit, or cannot reach it, names it; the culprit cannot reach another. */
static int check_record(const struct tern_ep *ep, int rank, int num_ranks, int *about)
{
    struct tern_fault f = TERN_FAULT_INIT;
    char text[512], name[16];

    OK(tern_fault_get((struct tern_ep *)ep, &f));
    tern_fault_text(&f, text, sizeof text);
    snprintf(name, sizeof name, "rank %d", f.peer);
    CHECK(f.rank == rank && (f.status == TERN_TIMEOUT || f.status == TERN_DISCONNECTED), "rank %d: %s", rank,
          text);
    CHECK(f.peer >= 0 && f.peer < num_ranks && f.peer != f.reporter && strstr(text, name) != NULL,
          "rank %d: peer %d, reporter %d: %s", rank, f.peer, f.reporter, text);
    *about += f.peer == CULPRIT || f.reporter == CULPRIT;
    return 0;
}

static void show_record(struct tern_ep *ep, int rank)
{
    struct tern_fault f = TERN_FAULT_INIT;
    char text[512] = "";

    if (tern_fault_get(ep, &f) == TERN_OK) {
        tern_fault_text(&f, text, sizeof text);
    }
    test_note(__FILE__, __LINE__, "rank %d: %s", rank, text);
}

/* An operation that somebody's network has failed. */
struct trial {
    struct tern_ep **eps;
    int num_ranks, operation;
    uint32_t timeout_ms;
    int is_direct; /* every rank waits for every other: nobody is late who waits himself */
    double begin;
    int (*issue)(struct trial *t, int rank); /* the operation on a rank; what the call returns */
    void *on;
};

static int ends(enum tern_status status, int rank)
{
    CHECK(status == TERN_TIMEOUT || status == TERN_DISCONNECTED, "rank %d: %s: %s", rank,
          tern_status_string(status), tern_last_error());
    return 0;
}

/* A rank may have had all of the operation before it could hear of anything; then it hears in the next. */
static int all_end(struct trial *t)
{
    int done[TERN_MAX_RANKS], about = 0;

    for (int r = 0; r < t->num_ranks; r++) {
        enum tern_status status = tern_ep_synchronize(t->eps[r]);
        done[r] = status == TERN_OK;
        PASS(done[r] ? TEST_PASSED : ends(status, r));
    }
    CHECK(test_seconds() - t->begin < t->timeout_ms * 1.25e-3 + slack, "it took %.1f s",
          test_seconds() - t->begin);
    for (int r = 0; r < t->num_ranks; r++) {
        OK((enum tern_status)(done[r] ? t->issue(t, r) : TERN_OK));
    }
    for (int r = 0; r < t->num_ranks; r++) {
        PASS(done[r] ? ends(tern_ep_synchronize(t->eps[r]), r) : TEST_PASSED);
    }
    for (int r = 0; r < t->num_ranks; r++) {
        PASS(check_record(t->eps[r], r, t->num_ranks, &about));
    }
    for (int r = 0; t->is_direct && about != t->num_ranks && r < t->num_ranks; r++) {
        show_record(t->eps[r], r);
    }
    CHECK(!t->is_direct || about == t->num_ranks, "%d records of %d are about rank %d", about, t->num_ranks,
          CULPRIT);
    return 0;
}

/* The operation, with the culprit's queue pairs failing while all other ranks are in it and wait. */
static int stop_in_the_middle(struct trial *t)
{
    t->begin = test_seconds();
    for (int r = 0; r < t->num_ranks; r++) {
        OK((enum tern_status)(r == CULPRIT ? TERN_OK : t->issue(t, r)));
    }
    wait_ms(LEAD_MS);
    PASS(erring_stop(t->eps[CULPRIT]));
    OK((enum tern_status)t->issue(t, CULPRIT));
    PASS(all_end(t));
    REFUSES(tern_ep_reset_all(t->num_ranks, t->eps), TERN_DISCONNECTED, "has failed with syndrome");
    return 0;
}

/* What the culprit sends is under way for longer than the deadline; then its link is as before. */
static int slow_down(struct trial *t)
{
    t->begin = test_seconds();
    PASS(erring_delay(t->eps[CULPRIT], SLOW_MS * 1000000ull));
    for (int r = 0; r < t->num_ranks; r++) {
        OK((enum tern_status)t->issue(t, r));
    }
    PASS(all_end(t));
    PASS(erring_delay(t->eps[CULPRIT], FAST_NS));
    /* A reset wants all that is under way to arrive and to be acknowledged, with the same deadline. */
    wait_ms(2 * SLOW_MS + LEAD_MS);
    return 0;
}

/* Each message of the culprit's comes before the deadline, but all of them do not. Its rail peers go on from
 * one to the next, and so does it, from credit to credit; domain-mates of either, who have all they want,
 * wait for them and are the first to give up. Every record is of the link: mates ask before they blame. */
static int drag_on(struct trial *t)
{
    t->begin = test_seconds();
    PASS(erring_delay(t->eps[CULPRIT], DRAG_MS * 1000000ull));
    for (int r = 0; r < t->num_ranks; r++) {
        OK((enum tern_status)t->issue(t, r));
    }
    t->is_direct = 1;
    PASS(all_end(t));
    PASS(erring_delay(t->eps[CULPRIT], FAST_NS));
    wait_ms(4 * DRAG_MS + LEAD_MS);
    return 0;
}

/* ---- High throughput ---- */

static void cut_scene(struct scene *s, const struct test *t, uint64_t seed)
{
    scene_init(s, RANKS, seed);
    s->world.domain_ranks = GROUP;
    s->free_running = 1;
    s->config.domain_ranks = GROUP;
    s->config.transport = TERN_TRANSPORT_SOFTNIC;
    s->config.net_queues = 2;
    s->config.timeout_ms = deadline_ms(t);
}

static int routes_of(struct scene *s)
{
    scene_refill(s, 0);
    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batches[0], s->eps, 0));
    return world_ep_synchronize(&s->world, s->eps);
}

/* What comes before the operation. */
static int prepare(struct scene *s)
{
    uint32_t timeout_ms = scene_patience(s, PATIENCE_MS);
    int result = routes_of(s);

    scene_patience(s, timeout_ms);
    return result;
}

static int issue(struct trial *t, int rank)
{
    struct scene *s = (struct scene *)t->on;

    return t->operation == TERN_OP_DISPATCH ? dispatch_issue_rank(&s->dispatches[0], rank, 0)
                                            : combine_issue_rank(&s->combines[0], rank, 0);
}

static struct trial trial_of(struct scene *s, int operation)
{
    struct trial t = {s->eps, RANKS, operation, s->config.timeout_ms, 0, 0, issue, s};
    return t;
}

/* Nobody's queues are as they were: a new object has new ones. */
static int go_on(struct scene *s)
{
    batch_close(&s->batches[0]);
    world_ep_close(&s->world, s->eps);
    PASS(world_ep_open(&s->world, &s->config, s->eps));
    PASS(scene_round(s, 0));
    batch_close(&s->batches[0]);
    return scene_round(s, 0);
}

static int stopped(struct scene *s, int operation)
{
    struct trial t = trial_of(s, operation);

    PASS(scene_open(s));
    PASS(prepare(s));
    PASS(stop_in_the_middle(&t));
    return go_on(s);
}

static void choose(int by_packets)
{
    memset(&terni_nic_settings, 0, sizeof terni_nic_settings);
    if (by_packets) {
        terni_softnic_wire_err(&terni_nic_settings.wire, 1);
    }
}

static int stop_in(struct test *t, int operation)
{
    if (!on_cpu()) {
        return test_skip(t, "%s", of_gpus);
    }
    test_quiet();
    for (int i = 0; i < (t->scale < 100 ? 2 : 4); i++) {
        struct batch_shape shape = scene_shape(
            RANKS, operation == TERN_OP_DISPATCH ? TERN_LAYOUT_RANK : TERN_LAYOUT_EXPERT, ROUTING_UNIFORM);
        struct scene s;
        int result;
        choose(i % 2);
        cut_scene(&s, t, 70 + (uint64_t)i);
        shape.equal_tokens = 1;
        scene_add(&s, &shape, 0);
        result = stopped(&s, operation);
        scene_fini(&s);
        choose(0);
        CHECK(result == 0, "%s", i % 2 ? "by packets" : "by loads and stores");
    }
    return 0;
}

static int slow(struct scene *s, int operation, int (*how)(struct trial *t))
{
    struct trial t = trial_of(s, operation);

    PASS(scene_open(s));
    PASS(prepare(s));
    PASS(how(&t));
    batch_close(&s->batches[0]);
    scene_patience(s, PATIENCE_MS);
    OK(tern_ep_reset_all(RANKS, s->eps));
    return scene_round(s, 0);
}

static int slow_once(const struct test *t, int operation, int (*how)(struct trial *t))
{
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    struct scene s;
    int result;

    test_quiet();
    choose(0);
    terni_nic_settings.rates.latency_ns = FAST_NS;
    cut_scene(&s, t, 80);
    s.config.timeout_ms = SHORT_MS;
    if (how == drag_on) {
        s.config.timeout_ms = DRAG_DEADLINE_MS;
        s.config.net_queues = 1;
        s.config.net_ring_bytes = 1; /* of few messages: many come one after the other */
        s.config.max_tokens = shape.max_tokens = MANY_TOKENS;
    }
    shape.equal_tokens = 1;
    scene_add(&s, &shape, 0);
    result = slow(&s, operation, how);
    scene_fini(&s);
    choose(0);
    return result;
}

/* On a machine with other things to do a rank may not come to speak within so short times: that may happen
 * once, but not again and again. */
static int slow_in(struct test *t, int operation, int (*how)(struct trial *t))
{
    int result = 1, tries = how == drag_on ? 4 : 1;

    if (!on_cpu()) {
        return test_skip(t, "%s", of_gpus);
    }
    if (t->scale < 100) {
        return test_skip(t, "%s", too_short);
    }
    for (int i = 0; i < tries && result != 0; i++) {
        result = slow_once(t, operation, how);
    }
    return result;
}

/* ---- Low latency ---- */

static int issue_ll(struct trial *t, int rank)
{
    return ll_stage_issue_for((struct ll_stage *)t->on, 1, t->operation, TERN_LL_BOTH, rank);
}

static struct trial ll_trial_of(struct ll_stage *x, int operation)
{
    struct trial t = {x->scene.eps, STAGE_RANKS, operation, x->scene.config.timeout_ms, 1, 0, issue_ll, x};
    return t;
}

static int dispatched_ll(struct ll_stage *x, int operation)
{
    ll_stage_redraw(x);
    PASS(world_upload(&x->scene.world));
    if (operation == TERN_OP_LL_COMBINE) {
        PASS(ll_dispatch_issue(&x->batches[1], TERN_LL_BOTH, 0));
    }
    return world_ep_synchronize(&x->scene.world, x->scene.eps);
}

static int prepare_ll(struct ll_stage *x, int operation)
{
    uint32_t timeout_ms = scene_patience(&x->scene, PATIENCE_MS);
    int result = dispatched_ll(x, operation);

    scene_patience(&x->scene, timeout_ms);
    return result;
}

static int go_on_ll(struct ll_stage *x)
{
    batch_close(&x->scene.batches[0]);
    world_ep_close(&x->scene.world, x->scene.eps);
    PASS(world_ep_open(&x->scene.world, &x->scene.config, x->scene.eps));
    return ll_stage_recover(x);
}

static int stopped_ll(struct ll_stage *x, int operation)
{
    struct trial t = ll_trial_of(x, operation);

    PASS(prepare_ll(x, operation));
    PASS(stop_in_the_middle(&t));
    return go_on_ll(x);
}

static int stopped_dispatch_body(struct ll_stage *x) { return stopped_ll(x, TERN_OP_LL_DISPATCH); }
static int stopped_combine_body(struct ll_stage *x) { return stopped_ll(x, TERN_OP_LL_COMBINE); }

static int stop_in_ll(struct test *t, int (*body)(struct ll_stage *))
{
    if (!on_cpu()) {
        return test_skip(t, "%s", of_gpus);
    }
    test_quiet();
    for (int by_packets = 0; by_packets < 2; by_packets++) {
        int result;
        choose(by_packets);
        result = ll_stage_run_cut(t, body, deadline_ms(t), 0, STAGE_BY_NIC);
        choose(0);
        CHECK(result == 0, "%s", by_packets ? "by packets" : "by loads and stores");
    }
    return 0;
}

static int slow_ll(struct ll_stage *x, int operation)
{
    struct trial t = ll_trial_of(x, operation);

    PASS(prepare_ll(x, operation));
    PASS(slow_down(&t));
    return ll_stage_recover(x);
}

static int slow_dispatch_body(struct ll_stage *x) { return slow_ll(x, TERN_OP_LL_DISPATCH); }
static int slow_combine_body(struct ll_stage *x) { return slow_ll(x, TERN_OP_LL_COMBINE); }

static int slow_in_ll(struct test *t, int (*body)(struct ll_stage *), uint32_t timeout_ms)
{
    int result;

    if (!on_cpu()) {
        return test_skip(t, "%s", of_gpus);
    }
    if (t->scale < 100 && timeout_ms == SHORT_MS) {
        return test_skip(t, "%s", too_short);
    }
    test_quiet();
    choose(0);
    terni_nic_settings.rates.latency_ns = FAST_NS;
    result = ll_stage_run_cut(t, body, timeout_ms, 0, STAGE_BY_NIC);
    choose(0);
    return result;
}

static int slow_dispatch(struct test *t) { return slow_in(t, TERN_OP_DISPATCH, slow_down); }
static int slow_combine(struct test *t) { return slow_in(t, TERN_OP_COMBINE, slow_down); }
static int drag_dispatch(struct test *t) { return slow_in(t, TERN_OP_DISPATCH, drag_on); }
static int drag_combine(struct test *t) { return slow_in(t, TERN_OP_COMBINE, drag_on); }
static int slow_ll_dispatch(struct test *t) { return slow_in_ll(t, slow_dispatch_body, SHORT_MS); }
static int slow_ll_combine(struct test *t) { return slow_in_ll(t, slow_combine_body, SHORT_MS); }
static int stop_dispatch(struct test *t) { return stop_in(t, TERN_OP_DISPATCH); }
static int stop_combine(struct test *t) { return stop_in(t, TERN_OP_COMBINE); }
static int stop_ll_dispatch(struct test *t) { return stop_in_ll(t, stopped_dispatch_body); }
static int stop_ll_combine(struct test *t) { return stop_in_ll(t, stopped_combine_body); }

/* ---- The end of a rank ---- */

/* A rank that has sent, synchronised and closed: all it sent arrives, though it is long under way. */
static int leave_body(struct ll_stage *x)
{
    struct tern_ep **eps = x->scene.eps;
    double begin;

    PASS(prepare_ll(x, TERN_OP_LL_DISPATCH));
    PASS(erring_delay(eps[CULPRIT], LONG_NS));
    for (int r = 0; r < STAGE_RANKS; r++) {
        uint32_t phase = r == CULPRIT ? TERN_LL_SEND : TERN_LL_BOTH;
        OK((enum tern_status)ll_stage_issue_for(x, 1, TERN_OP_LL_DISPATCH, phase, r));
    }
    begin = test_seconds();
    OK(tern_ep_synchronize(eps[CULPRIT]));
    CHECK(test_seconds() - begin > LONG_NS * 0.9e-9, "synchronised after %.3f s", test_seconds() - begin);
    tern_ep_close(eps[CULPRIT]);
    eps[CULPRIT] = NULL;
    for (int r = 0; r < STAGE_RANKS; r++) {
        OK(r == CULPRIT ? TERN_OK : tern_ep_synchronize(eps[r]));
    }
    return 0;
}

static int leave(struct test *t) { return slow_in_ll(t, leave_body, LEAVE_MS); }

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "queue pairs fail in a dispatch", stop_dispatch);
    test_run(&t, "queue pairs fail in a combine", stop_combine);
    test_run(&t, "queue pairs fail in a low-latency dispatch", stop_ll_dispatch);
    test_run(&t, "queue pairs fail in a low-latency combine", stop_ll_combine);
    test_run(&t, "a link is too slow for a dispatch", slow_dispatch);
    test_run(&t, "a link is too slow for a combine", slow_combine);
    test_run(&t, "a link drags on in a dispatch, while others have finished", drag_dispatch);
    test_run(&t, "a link drags on in a combine, while others have finished", drag_combine);
    test_run(&t, "a link is too slow for a low-latency dispatch", slow_ll_dispatch);
    test_run(&t, "a link is too slow for a low-latency combine", slow_ll_combine);
    test_run(&t, "what a rank sent arrives after it has synchronised and closed", leave);
    return test_end(&t);
}
