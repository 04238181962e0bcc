/* SPDX-License-Identifier: Apache-2.0
 *
 * A machine that fails while an operation is being issued. If its kernel was not launched, nothing has
 * happened and the call may be made again; if it was, the failure ends the object's operations, because a
 * caller who made the call again would run ahead of the peers. A reset makes the object as new either way.
 *
 * The failure is put into the machine's table of operations, where rank 0 looks them up. */
#include "comm/comm.h"
#include "ll_stage.h"
#include "scene.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 2, DEADLINE_MS = 1500 };

/* What fails, once, when it is called the next time but `later`. */
static struct fuse {
    const struct machine_ops *real;
    struct machine_ops ops;
    int launch, event_record, copy;
    int leads, captured; /* the event that is awaited next leads its stream into a capture; it has */
} fuse;

static int burns(int *later) { return *later >= 0 && (*later)-- == 0; }

static enum tern_status bad_launch(struct machine *m, const struct launch *l, struct tern_stream *s)
{
    return burns(&fuse.launch) ? TERN_FAIL(TERN_SYSTEM_ERROR, "no launch today") : fuse.real->launch(m, l, s);
}

static enum tern_status bad_record(struct machine *m, struct tern_event *e, struct tern_stream *s)
{
    return burns(&fuse.event_record) ? TERN_FAIL(TERN_SYSTEM_ERROR, "no record today")
                                     : fuse.real->event_record(m, e, s);
}

static enum tern_status bad_copy(struct machine *m, void *dst, const void *src, size_t bytes,
                                 struct tern_stream *s)
{
    return burns(&fuse.copy) ? TERN_FAIL(TERN_SYSTEM_ERROR, "no copy today")
                             : fuse.real->copy(m, dst, src, bytes, s);
}

static enum tern_status leading_wait(struct machine *m, struct tern_event *e, struct tern_stream *s)
{
    fuse.captured |= fuse.leads;
    return fuse.real->event_wait(m, e, s);
}

static int led_capturing(struct machine *m, struct tern_stream *s)
{
    return fuse.captured || fuse.real->stream_capturing(m, s);
}

static void fuse_insert(struct machine *m)
{
    fuse.real = m->ops;
    fuse.ops = *fuse.real;
    fuse.ops.launch = bad_launch;
    fuse.ops.event_record = bad_record;
    fuse.ops.copy = bad_copy;
    fuse.ops.event_wait = leading_wait;
    fuse.ops.stream_capturing = led_capturing;
    fuse.leads = fuse.captured = 0;
    fuse.launch = fuse.event_record = fuse.copy = -1;
    m->ops = &fuse.ops;
}

static void fuse_remove(struct machine *m) { m->ops = fuse.real; }

/* ---- High throughput ---- */

static enum tern_status issue(struct scene *s, int operation, int rank, struct tern_event *record)
{
    struct tern_stream *lane = s->world.members[rank].lanes[0];
    struct tern_rows in[TERN_MAX_PAYLOADS], out[TERN_MAX_PAYLOADS + 1];
    struct tern_route *route = s->batches[0].routes[rank];

    if (operation == TERN_OP_ROUTE) {
        struct tern_route_args a = batch_args(&s->batches[0], rank);
        a.record = record;
        return tern_route_update(route, &a, lane);
    }
    if (operation == TERN_OP_DISPATCH) {
        struct tern_dispatch_args a = dispatch_args(&s->dispatches[0], rank, 1, in, out);
        a.record = record;
        return tern_dispatch(route, &a, lane);
    }
    struct tern_combine_args a = combine_args(&s->combines[0], rank, 1);
    a.record = record;
    return tern_combine(route, &a, lane);
}

/* A launch that fails has not happened: made again, the call completes with the peer's. */
static int launch_fails(struct scene *s, int operation)
{
    fuse.launch = 0;
    REFUSES(issue(s, operation, 0, NULL), TERN_SYSTEM_ERROR, "no launch today");
    for (int r = 0; r < RANKS; r++) {
        OK(issue(s, operation, r, NULL));
    }
    for (int r = 0; r < RANKS; r++) {
        OK(tern_ep_synchronize(s->eps[r]));
    }
    return 0;
}

/* The kernel runs, so the peer succeeds; here every later call fails until a reset. */
static int ended_until_reset(struct scene *s, int operation)
{
    OK(tern_ep_synchronize(s->eps[1]));
    EXPECT(issue(s, operation, 0, NULL), TERN_SYSTEM_ERROR);
    EXPECT(tern_ep_synchronize(s->eps[0]), TERN_SYSTEM_ERROR);
    batch_close(&s->batches[0]);
    OK(tern_ep_reset_all(RANKS, s->eps));
    return scene_round(s, 0);
}

static int record_fails(struct scene *s, int operation)
{
    struct tern_event *event;

    OK(tern_event_open(s->world.members[0].comm, &event));
    fuse.event_record = 0;
    OK(issue(s, operation, 1, NULL));
    REFUSES(issue(s, operation, 0, event), TERN_SYSTEM_ERROR,
            "no record today; the operation is issued, and the object's last until a reset");
    REFUSES(tern_ep_synchronize(s->eps[0]), TERN_SYSTEM_ERROR, "no record today");
    tern_event_close(s->world.members[0].comm, event);
    return ended_until_reset(s, operation);
}

/* Half of the rows have gone by copy engine: the peer waits in vain, and both know why. */
static int copy_fails(struct scene *s)
{
    s->combines[0].copy_engine = 1;
    fuse.copy = 0;
    OK(issue(s, TERN_OP_COMBINE, 1, NULL));
    REFUSES(issue(s, TERN_OP_COMBINE, 0, NULL), TERN_SYSTEM_ERROR, "no copy today");
    EXPECT(issue(s, TERN_OP_DISPATCH, 0, NULL), TERN_SYSTEM_ERROR);
    REFUSES(tern_ep_synchronize(s->eps[1]), TERN_TIMEOUT, "rank 0 ");
    s->combines[0].copy_engine = 0;
    batch_close(&s->batches[0]);
    OK(tern_ep_reset_all(RANKS, s->eps));
    return scene_round(s, 0);
}

/* `after` leads the stream into a capture: there the copy engine's counts would be those of now for ever. */
static int engine_is_led(struct scene *s)
{
    struct tern_comm *comm = s->world.members[0].comm;
    struct tern_combine_args a;
    struct tern_event *event;

    OK(tern_event_open(comm, &event));
    OK(issue(s, TERN_OP_DISPATCH, 1, NULL));
    OK(issue(s, TERN_OP_DISPATCH, 0, event));
    s->combines[0].copy_engine = 1;
    a = combine_args(&s->combines[0], 0, 1);
    a.after = event;
    fuse.leads = 1;
    REFUSES(tern_combine(s->batches[0].routes[0], &a, s->world.members[0].lanes[0]), TERN_UNSUPPORTED,
            "captured");
    fuse.leads = fuse.captured = 0;
    PASS(combine_check(&s->combines[0], s->eps, 0)); /* nothing has been issued */
    s->combines[0].copy_engine = 0;
    tern_event_close(comm, event);
    return 0;
}

/* The rows are in staging, and the kernel that brings them to tensors in no window is not launched: as with
 * an event that cannot be recorded. */
static int staged_copy_fails(struct scene *s)
{
    PASS(scene_open(s));
    PASS(scene_round(s, 0));
    fuse_insert(s->world.members[0].comm->machine);
    fuse.launch = 1;
    OK(issue(s, TERN_OP_DISPATCH, 1, NULL));
    REFUSES(issue(s, TERN_OP_DISPATCH, 0, NULL), TERN_SYSTEM_ERROR, "no launch today");
    fuse_remove(s->world.members[0].comm->machine);
    return ended_until_reset(s, TERN_OP_DISPATCH);
}

/* Rank 0's rows, as a stream sees them that waits for nobody. */
static int rows_are_there(struct scene *s, int lane)
{
    struct member *m = &s->world.members[0];
    struct place place = s->dispatches[0].ranks[0].out[0].place;
    void *seen = malloc(place.bytes);

    CHECK(seen, "%zu bytes", place.bytes);
    OK(tern_copy(m->comm, seen, world_device(&s->world, place), place.bytes, m->lanes[lane]));
    OK(tern_stream_synchronize(m->comm, m->lanes[lane]));
    int differs = memcmp(seen, world_image(&s->world, place), place.bytes);
    free(seen);
    CHECK(!differs, "the object is said to be done, and its rows are not there");
    return 0;
}

/* Copies out of staging that leave no ticket are known by an event behind them: a call that fails later must
 * not make the object forget it. */
static int copies_stay_known(struct scene *s)
{
    s->config.transfer = TERN_TRANSFER_PLAIN;
    s->config.copy_engine = 0;
    PASS(scene_open(s));
    PASS(scene_round(s, 0));
    dispatch_poison(&s->dispatches[0]);
    PASS(world_upload(&s->world));
    PASS(dispatch_issue(&s->dispatches[0], 0));
    fuse_insert(s->world.members[0].comm->machine);
    fuse.launch = 0;
    REFUSES(issue(s, TERN_OP_ROUTE, 0, NULL), TERN_SYSTEM_ERROR, "no launch today");
    fuse_remove(s->world.members[0].comm->machine);
    dispatch_expect(&s->dispatches[0]);
    OK(tern_ep_synchronize(s->eps[0]));
    PASS(rows_are_there(s, 1));
    PASS(world_ep_synchronize(&s->world, s->eps));
    return world_verify(&s->world, "copies behind a dispatch");
}

/* A capture, launched or not, has runs of the route that the host does not see: where they have other counts,
 * operations outside wait for a run outside. */
static int counts_differ(struct scene *s)
{
    struct tern_graph *graphs[RANKS];

    PASS(scene_open(s));
    PASS(scene_round(s, 0));
    for (int r = 0; r < RANKS; r++) {
        struct member *m = &s->world.members[r];
        struct tern_route_args fewer = batch_args(&s->batches[0], r);
        fewer.num_tokens /= 2;
        OK(tern_graph_begin(m->comm, m->lanes[1]));
        OK(tern_route_update(s->batches[0].routes[r], &fewer, m->lanes[1]));
        OK(tern_graph_end(m->comm, m->lanes[1], &graphs[r]));
        REFUSES(issue(s, TERN_OP_DISPATCH, r, NULL), TERN_BAD_STATE, "is in a graph, with num_tokens");
        REFUSES(issue(s, TERN_OP_COMBINE, r, NULL), TERN_BAD_STATE, "is in a graph, with num_tokens");
    }
    PASS(batch_update(&s->batches[0], 0));
    PASS(dispatch_check(&s->dispatches[0], s->eps, 0));
    PASS(combine_check(&s->combines[0], s->eps, 0));
    for (int r = 0; r < RANKS; r++) {
        tern_graph_close(s->world.members[r].comm, graphs[r]);
    }
    return 0;
}

/* Ranks that reset different objects have reset none. */
static int resets_cross(struct scene *s)
{
    struct tern_comm *comms[RANKS];
    struct tern_ep *others[RANKS], *crossed[RANKS];

    PASS(scene_open(s));
    for (int r = 0; r < RANKS; r++) {
        comms[r] = s->world.members[r].comm;
    }
    OK(tern_ep_open_all(RANKS, comms, &s->config, others));
    crossed[0] = s->eps[0];
    crossed[1] = others[1];
    REFUSES(tern_ep_reset_all(RANKS, crossed), TERN_MISMATCH, "resets EP object");
    OK(tern_ep_reset_all(RANKS, others));
    OK(tern_ep_reset_all(RANKS, s->eps));
    PASS(scene_round(s, 0));
    for (int r = 0; r < RANKS; r++) {
        tern_ep_close(others[r]);
    }
    return 0;
}

static int failures(struct scene *s)
{
    static const int operations[] = {TERN_OP_ROUTE, TERN_OP_DISPATCH, TERN_OP_COMBINE};

    PASS(scene_open(s));
    PASS(scene_round(s, 0));
    fuse_insert(s->world.members[0].comm->machine);
    for (int i = 0; i < 3; i++) {
        PASS(launch_fails(s, operations[i]));
        PASS(record_fails(s, operations[i]));
    }
    PASS(engine_is_led(s));
    PASS(copy_fails(s));
    fuse_remove(s->world.members[0].comm->machine);
    return 0;
}

static int run_scene(struct test *t, int arena, int (*body)(struct scene *s))
{
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    struct scene s;
    int result;

    test_quiet();
    shape.equal_tokens = 1;
    scene_init(&s, RANKS, 60 + (uint64_t)t->number);
    s.config.timeout_ms = DEADLINE_MS;
    s.config.copy_engine = 1;
    s.arena = arena;
    s.config.staging_bytes = (uint64_t)RANKS * MAX_TOKENS * 1024;
    scene_add(&s, &shape, (uint64_t)RANKS * MAX_TOKENS);
    result = body(&s);
    scene_fini(&s);
    return result;
}

static int high_throughput(struct test *t) { return run_scene(t, ARENA_WINDOW, failures); }

static int out_of_staging(struct test *t) { return run_scene(t, ARENA_DEVICE, staged_copy_fails); }

static int known_copies(struct test *t) { return run_scene(t, ARENA_DEVICE, copies_stay_known); }

static int mixed_counts(struct test *t) { return run_scene(t, ARENA_WINDOW, counts_differ); }

static int crossed_resets(struct test *t) { return run_scene(t, ARENA_WINDOW, resets_cross); }

/* ---- Low latency ---- */

static enum tern_status dispatch_all(struct ll_stage *x, struct tern_event *record)
{
    enum tern_status status = TERN_OK;

    for (int r = x->scene.world.num_ranks - 1; r >= 0 && status == TERN_OK; r--) {
        struct tern_ll_dispatch_args a = ll_dispatch_args(&x->batches[0], r, 1);
        a.record = r == 0 ? record : NULL;
        status = tern_ll_dispatch(x->scene.eps[r], &a, x->scene.world.members[r].lanes[0]);
    }
    return status;
}

static int low_latency_body(struct ll_stage *x)
{
    struct tern_comm *comm = x->scene.world.members[0].comm;
    struct tern_fault fault = TERN_FAULT_INIT;
    struct tern_event *event;

    OK(tern_event_open(comm, &event));
    PASS(world_upload(&x->scene.world));
    fuse_insert(comm->machine);
    fuse.event_record = 0;
    REFUSES(dispatch_all(x, event), TERN_SYSTEM_ERROR, "no record today");
    for (int r = 1; r < x->scene.world.num_ranks; r++) {
        OK(tern_ep_synchronize(x->scene.eps[r]));
    }
    EXPECT(tern_ep_synchronize(x->scene.eps[0]), TERN_SYSTEM_ERROR);
    OK(tern_fault_get(x->scene.eps[0], &fault));
    CHECK(fault.operation == TERN_OP_LL_DISPATCH && fault.peer == 0, "operation %d, rank %d", fault.operation,
          fault.peer);
    fuse_remove(comm->machine);
    tern_event_close(comm, event);
    OK(tern_ep_reset_all(x->scene.world.num_ranks, x->scene.eps));
    batch_close(&x->scene.batches[0]);
    ll_stage_redraw(x);
    PASS(world_upload(&x->scene.world));
    PASS(ll_stage_shuffle(x));
    return ll_stage_judge(x, "after a reset");
}

/* Weights that go ahead have a kernel of their own. If it is not launched the call may be made again; if it
 * is, and the combine's is not, the peer has its weights, and waits for rows in vain. */
static int ahead_fails(struct scene *s, struct ll_batch *b)
{
    struct machine *m = s->world.members[0].comm->machine;
    struct tern_ll_combine_args a = ll_combine_args(b, 0, 1);
    struct tern_stream *lane = s->world.members[0].lanes[0];

    PASS(world_upload(&s->world));
    fuse_insert(m);
    for (int later = 0; later < 2; later++) {
        PASS(ll_dispatch_issue(b, TERN_LL_BOTH, 0));
        PASS(world_ep_synchronize(&s->world, s->eps));
        fuse.launch = later;
        REFUSES(tern_ll_combine(s->eps[0], &a, lane), TERN_SYSTEM_ERROR, "no launch today");
        if (later == 0) {
            PASS(ll_combine_issue(b, TERN_LL_BOTH, 0));
            PASS(world_ep_synchronize(&s->world, s->eps));
        }
    }
    fuse_remove(m);
    EXPECT(tern_ll_combine(s->eps[0], &a, lane), TERN_SYSTEM_ERROR);
    a = ll_combine_args(b, 1, 1);
    OK(tern_ll_combine(s->eps[1], &a, s->world.members[1].lanes[0]));
    REFUSES(tern_ep_synchronize(s->eps[1]), TERN_TIMEOUT, "rank 0 ");
    OK(tern_ep_reset_all(RANKS, s->eps));
    PASS(world_upload(&s->world));
    PASS(ll_dispatch_issue(b, TERN_LL_BOTH, 0));
    PASS(ll_combine_issue(b, TERN_LL_BOTH, 0));
    ll_expect_dispatch(b);
    ll_expect_combine(b);
    PASS(world_ep_synchronize(&s->world, s->eps));
    return world_verify(&s->world, "after a reset");
}

static int weights_ahead(struct test *t)
{
    struct ll_shape shape;
    struct scene s;
    struct ll_batch b;
    int result;

    (void)t;
    test_quiet();
    memset(&shape, 0, sizeof shape);
    scene_init(&s, RANKS, 71);
    shape.batch = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    shape.batch.max_tokens = 8;
    shape.hidden = 64;
    shape.weights = TERN_LL_WEIGHTS_AHEAD;
    ll_batch_init(&b, &s.world, s.eps, &shape, &s.rng);
    ll_config_add(&s.config, &shape, 1);
    s.config.timeout_ms = DEADLINE_MS;
    ll_batch_redraw_ids(&b, ROUTING_UNIFORM, &s.rng);
    result = scene_open(&s);
    result = result ? result : ahead_fails(&s, &b);
    ll_batch_fini(&b);
    scene_fini(&s);
    return result;
}

static int low_latency(struct test *t) { return ll_stage_run(t, low_latency_body, 60000); }

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "route, dispatch and combine while the machine fails", high_throughput);
    test_run(&t, "dispatch into tensors while the machine fails", out_of_staging);
    test_run(&t, "copies behind a dispatch, and a call that fails", known_copies);
    test_run(&t, "a route whose runs in graphs have other counts", mixed_counts);
    test_run(&t, "resets of different objects", crossed_resets);
    test_run(&t, "low latency while the machine fails", low_latency);
    test_run(&t, "weights that go ahead while the machine fails", weights_ahead);
    return test_end(&t);
}
