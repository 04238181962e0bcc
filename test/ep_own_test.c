/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's own rows, where tensors are in no window, in rank layout and one domain: kernels find them in the
 * tensors, and the copies from and to staging leave them out. So that none is lost, or kept from before, they
 * are met here by graphs, resets, several routes, streams and processes, and judged byte by byte. And so that
 * they are not copied again one day, staging is looked at. */
#include "procs.h"
#include "scene.h"
#include "staging.h"

#include <string.h>

enum { RANKS = 3 };

static void own_scene(struct scene *s, uint64_t seed)
{
    scene_init(s, RANKS, seed);
    scene_leave_windows(s);
}

/* ---- Processes ---- */

static int rounds_apart(struct scene *s, const struct tern_id *id, int rounds)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    int i;

    config.timeout_ms = 20000;
    PASS(world_open(&s->world, id, &config));
    PASS(world_ep_open(&s->world, &s->config, s->eps));
    for (i = 0; i < rounds; i++) {
        PASS(scene_round(s, 0));
        batch_close(&s->batches[0]);
    }
    OK(tern_comm_barrier(s->world.members[s->world.self].comm)); /* nobody closes what a peer still reads */
    return 0;
}

static int process(int rank, struct procs_page *page, void *user)
{
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_MIXED);
    struct scene s;
    int result;

    own_scene(&s, 40);
    s.world.self = rank;
    scene_add(&s, &shape, 0);
    result = rounds_apart(&s, &page->id, test_scaled((const struct test *)user, 4));
    scene_fini(&s);
    return result;
}

static int processes(struct test *t) { return procs_run(RANKS, -1, 90, process, t); }

/* ---- A graph ---- */

static int graph(struct test *t)
{
    struct scene s;
    int result;

    own_scene(&s, 50);
    result = scene_add_static(&s, TERN_LAYOUT_RANK, 1);
    result = result ? result : scene_replay(&s, 1, test_scaled(t, 15));
    result = result ? result : batch_check_view(&s.batches[0]);
    scene_fini(&s);
    return result;
}

/* ---- Routes ---- */

static int routes(struct test *t)
{
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    struct scene s;
    int i, result;

    own_scene(&s, 60);
    for (i = 0; i < MAX_BATCHES; i++) {
        shape.routing = i ? ROUTING_MIXED : ROUTING_UNIFORM;
        scene_add(&s, &shape, 0);
    }
    result = scene_interleave(&s, test_scaled(t, 6));
    scene_fini(&s);
    return result;
}

/* ---- Streams ---- */

static int streams(struct test *t)
{
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    struct scene s;
    int result;

    own_scene(&s, 70);
    scene_add(&s, &shape, 0);
    scene_add(&s, &shape, 0);
    result = scene_side_by_side(&s, test_scaled(t, 6));
    scene_fini(&s);
    return result;
}

/* ---- A reset, after an operation for which the last rank never came ---- */

static int issue(struct scene *s, int combines, int rank)
{
    return combines ? combine_issue_rank(&s->combines[0], rank, 0)
                    : dispatch_issue_rank(&s->dispatches[0], rank, 0);
}

static int fail_and_reset(struct scene *s, int combines)
{
    int r;

    scene_refill(s, 0);
    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batches[0], s->eps, 0));
    PASS(world_ep_synchronize(&s->world, s->eps));
    for (r = 0; r < RANKS - 1; r++) {
        PASS(issue(s, combines, r));
    }
    for (r = 0; r < RANKS - 1; r++) {
        EXPECT(tern_ep_synchronize(s->eps[r]), TERN_TIMEOUT);
    }
    batch_close(&s->batches[0]);
    OK(tern_ep_reset_all(RANKS, s->eps));
    return 0;
}

static int again(struct scene *s)
{
    PASS(scene_open(s));
    for (int combines = 0; combines < 2; combines++) {
        PASS(scene_round(s, 0));
        batch_close(&s->batches[0]);
        PASS(fail_and_reset(s, combines));
        PASS(scene_round(s, 0));
        batch_close(&s->batches[0]);
    }
    return 0;
}

static int reset(struct test *t)
{
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    struct scene s;
    int result;

    test_quiet();
    own_scene(&s, 80);
    s.config.timeout_ms = t->scale < 100 ? 4000 : 1200; /* what a sanitizer build needs on a busy machine */
    shape.equal_tokens = 1;
    scene_add(&s, &shape, 0);
    result = again(&s);
    scene_fini(&s);
    return result;
}

/* ---- What staging holds after an operation: rows of others, and else what it held before ---- */

static int poison_staging(struct scene *s)
{
    for (int r = 0; r < RANKS; r++) {
        struct member *m = &s->world.members[r];
        uint64_t bytes;
        unsigned char *at = staging_of(s->eps[r], &bytes);
        OK(tern_fill(m->comm, at, POISON, bytes, m->lanes[0]));
        OK(tern_stream_synchronize(m->comm, m->lanes[0]));
    }
    return 0;
}

/* One tensor's rows, dense in both, of which `own` are from own[0] to own[1] and others up to own[2]. */
static int look_at(struct scene *s, struct place tensor, uint64_t offset, uint64_t capacity,
                   const uint64_t *own)
{
    uint64_t bytes, row = tensor.bytes / capacity, r, i;
    unsigned char *at = staging_of(s->eps[tensor.rank], &bytes) + offset;
    const unsigned char *image = (const unsigned char *)world_image(&s->world, tensor);
    const unsigned char *staged = (const unsigned char *)world_peek(&s->world, tensor.rank, at, tensor.bytes);

    CHECK(staged, "rank %d: no staging", tensor.rank);
    for (r = 0; r < capacity; r++) {
        int is_own = r >= own[0] && r < own[1], is_sent = r < own[2] && !is_own;
        for (i = r * row; i < (r + 1) * row; i++) {
            CHECK(staged[i] == (is_sent ? image[i] : POISON),
                  "rank %d, staging at %llu: row %d of %d, %s, has byte 0x%02x, expected 0x%02x", tensor.rank,
                  (unsigned long long)offset, (int)r, (int)own[2],
                  is_sent  ? "another's"
                  : is_own ? "its own"
                           : "nobody's",
                  staged[i], is_sent ? image[i] : POISON);
        }
    }
    return 0;
}

/* So many tensors of a rank, in the order in which they take staging. */
static int look(struct scene *s, const struct place *tensors, int num, uint64_t capacity)
{
    int rank = tensors[0].rank, i;
    struct tern_route_view v = TERN_ROUTE_VIEW_INIT;
    const int32_t *offsets;
    uint64_t own[3], at = 0;

    OK(tern_route_get_view(s->batches[0].routes[rank], &v));
    offsets = (const int32_t *)world_peek(&s->world, rank, v.rank_offsets, (RANKS + 1) * sizeof *offsets);
    CHECK(offsets, "rank %d: no offsets", rank);
    own[0] = (uint64_t)offsets[rank];
    own[1] = (uint64_t)offsets[rank + 1];
    own[2] = (uint64_t)offsets[RANKS];
    CHECK(own[0] < own[1] && own[1] - own[0] < own[2] && own[2] < capacity,
          "rank %d has no own rows, or no others, or no room", rank);
    for (i = 0; i < num; i++) {
        PASS(look_at(s, tensors[i], at, capacity, own));
        at += (tensors[i].bytes + STAGING_UNIT - 1) / STAGING_UNIT * STAGING_UNIT;
    }
    return 0;
}

static int stay_where_they_are(struct scene *s)
{
    const struct dispatch *d = &s->dispatches[0];
    const struct combine *c = &s->combines[0];

    PASS(scene_open(s));
    scene_refill(s, 0);
    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batches[0], s->eps, 0));
    PASS(world_ep_synchronize(&s->world, s->eps));
    PASS(poison_staging(s));
    PASS(dispatch_check(&s->dispatches[0], s->eps, 0));
    for (int r = 0; r < RANKS; r++) {
        const struct place tensors[] = {d->ranks[r].out[0].place, d->ranks[r].out_idx,
                                        d->ranks[r].out_weights, d->ranks[r].out_source};
        PASS(look(s, tensors, 4, d->ranks[r].out_rows));
    }
    PASS(poison_staging(s));
    PASS(combine_check(&s->combines[0], s->eps, 0));
    for (int r = 0; r < RANKS; r++) {
        const struct place tensors[] = {c->ranks[r].in.place, c->ranks[r].in_weights};
        PASS(look(s, tensors, 2, c->ranks[r].in_rows));
    }
    return 0;
}

static int unstaged(struct test *t)
{
    static const uint32_t transfers[] = {TERN_TRANSFER_AUTO, TERN_TRANSFER_PLAIN};
    int i, result = 0;

    (void)t;
    for (i = 0; i < 2 && !result; i++) {
        struct scene s;
        own_scene(&s, 90);
        s.config.transfer = transfers[i];
        result = scene_add_static(&s, TERN_LAYOUT_RANK, 1);
        result = result ? result : stay_where_they_are(&s);
        scene_fini(&s);
    }
    return result;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "own rows in no window, ranks as processes", processes); /* first: forks */
    test_run(&t, "own rows in no window, a graph replayed with other ids and rows", graph);
    test_run(&t, "own rows in no window, three routes in any order", routes);
    test_run(&t, "own rows in no window, two objects on streams of their own", streams);
    test_run(&t, "own rows in no window, after a fault and a reset", reset);
    test_run(&t, "own rows in no window are not in staging, others' are", unstaged);
    return test_end(&t);
}
