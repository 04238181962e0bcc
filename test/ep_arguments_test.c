/* SPDX-License-Identifier: Apache-2.0
 *
 * Bad arguments end in a status and a sentence with the value, and change nothing: after each group of
 * refusals a proper operation gives the right bytes. Also configurations on which ranks disagree, or that one
 * of them cannot have. */
#include "scene.h"

#include <pthread.h>
#include <string.h>

enum { RANKS = 2 };

#define BAD(call, text) REFUSES(call, TERN_INVALID_ARGUMENT, text)

/* ---- Objects ---- */

static int bad_comms(struct test *t)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_comm *comms[2] = {NULL, NULL};
    void *memory = NULL;

    (void)t;
    test_quiet();
    BAD(tern_comm_open_all(0, &config, comms), "num_ranks is 0");
    BAD(tern_comm_open_all(-3, &config, comms), "num_ranks is -3");
    BAD(tern_comm_open_all(1 << 20, &config, comms), "num_ranks is 1048576");
    BAD(tern_comm_open_all(2, &config, NULL), "NULL");
    config.size = 3;
    BAD(tern_comm_open_all(2, &config, comms), "config->size is 3");
    config.size = sizeof config;
    config.machine = 17;
    BAD(tern_comm_open_all(2, &config, comms), "machine 17");
    CHECK(!comms[0] && !comms[1], "a failed tern_comm_open_all wrote its output");
    config.machine = 0;
    config.heap_bytes = 1 << 20;
    OK(tern_comm_open_all(1, &config, comms));
    REFUSES(tern_alloc(comms[0], TERN_MEMORY_WINDOW, (size_t)1 << 30, &memory), TERN_OUT_OF_MEMORY,
            "1073741824");
    BAD(tern_alloc(comms[0], (enum tern_memory)9, 64, &memory), "kind 9");
    CHECK(!memory, "a failed tern_alloc wrote its output");
    tern_comm_close(comms[0]);
    tern_comm_close(NULL);
    return 0;
}

/* One value out of range; what all ranks have is not told as another rank's. */
#define BAD_CONFIG(s, change, text)                                                                          \
    do {                                                                                                     \
        struct tern_ep_config c = (s)->config;                                                               \
        struct tern_comm *comms[RANKS] = {(s)->world.members[0].comm, (s)->world.members[1].comm};           \
        struct tern_ep *eps[RANKS] = {NULL, NULL};                                                           \
        change;                                                                                              \
        BAD(tern_ep_open_all(RANKS, comms, &c, eps), text);                                                  \
        CHECK(strncmp(tern_last_error(), "rank", 4) != 0, "\"%s\" is about this rank", tern_last_error());   \
        CHECK(!eps[0] && !eps[1], "a failed tern_ep_open_all wrote its output");                             \
    } while (0)

static int refuse_configs(struct scene *s)
{
    struct tern_comm *comm = s->world.members[0].comm;
    struct tern_ep_config c = s->config;
    struct tern_ep *ep = NULL;

    BAD(tern_ep_open(NULL, &c, &ep), "a communicator is NULL");
    BAD(tern_ep_open(comm, NULL, &ep), "config is NULL");
    BAD(tern_ep_open(comm, &c, NULL), "eps is NULL");
    CHECK(!ep, "a failed tern_ep_open wrote its output");
    BAD_CONFIG(s, c.size = 0, "config->size is 0");
    BAD_CONFIG(s, c.size = 12, "config->size is 12");
    BAD_CONFIG(s, c.num_experts = 7, "num_experts is 7");
    BAD_CONFIG(s, c.max_topk = 65, "max_topk is 65");
    BAD_CONFIG(s, c.max_tokens = 0, "max_tokens is 0");
    BAD_CONFIG(s, c.max_row_bytes = 0, "max_row_bytes is 0");
    BAD_CONFIG(s, c.transfer = 5, "transfer is 5");
    BAD_CONFIG(s, c.combine_push = 7, "combine_push is 7");
    BAD_CONFIG(s, c.dispatch_drain = 3, "dispatch_drain is 3");
    BAD_CONFIG(s, c.reserved = 9, "reserved is 9");
    return 0;
}

/* Ranks that are not all of one communicator in order: refused before any of them is told. */
#define BAD_RANKS(num_ranks, first, second, text)                                                            \
    do {                                                                                                     \
        struct tern_comm *comms_[RANKS] = {first, second};                                                   \
        struct tern_ep *eps_[RANKS] = {NULL, NULL};                                                          \
        BAD(tern_ep_open_all(num_ranks, comms_, &good, eps_), text);                                         \
        CHECK(!eps_[0] && !eps_[1], "a failed tern_ep_open_all wrote its output");                           \
    } while (0)

static int refuse_ranks(struct scene *s)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_comm *ours[RANKS] = {s->world.members[0].comm, s->world.members[1].comm}, *others[RANKS];
    struct tern_ep_config good = s->config;

    config.heap_bytes = 1 << 20;
    OK(tern_comm_open_all(RANKS, &config, others));
    BAD_RANKS(0, NULL, NULL, "num_ranks is 0");
    BAD_RANKS(-2, ours[0], ours[1], "num_ranks is -2");
    BAD_RANKS(2, ours[0], NULL, "a communicator is NULL");
    BAD_RANKS(2, ours[1], ours[1], "comms[0] is rank 1 of 2; it must be rank 0 of 2");
    BAD_RANKS(2, ours[1], ours[0], "comms[0] is rank 1 of 2");
    BAD_RANKS(2, ours[0], ours[0], "comms[1] is rank 0 of 2; it must be rank 1 of 2");
    BAD_RANKS(2, ours[0], others[1], "comms[1] is of another communicator than comms[0]");
    tern_comm_close(others[0]);
    tern_comm_close(others[1]);
    return 0;
}

/* ---- Routes ---- */

static int refuse_routes(struct scene *s)
{
    struct tern_stream *lane = s->world.members[0].lanes[0];
    struct tern_route_args good = batch_args(&s->batches[0], 0), a = good;
    struct tern_route *route = NULL;

    BAD(tern_route_open(NULL, &a, lane, &route), "NULL");
    BAD(tern_route_open(s->eps[0], NULL, lane, &route), "NULL");
    BAD(tern_route_open(s->eps[0], &a, lane, NULL), "NULL");
    a.size = 0;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "args->size is 0");
    a.size = 11;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "args->size is 11");
    a = good;
    a.topk_idx = NULL;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "NULL");
    a = good;
    a.topk_idx = (const char *)good.topk_idx + 3;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "aligned");
    a = good;
    a.idx_bytes = 2;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "idx_bytes is 2");
    a = good;
    a.num_tokens = 25;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "num_tokens is 25");
    a = good;
    a.topk = 0;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "topk is 0");
    a.topk = 5;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "topk is 5");
    a = good;
    a.layout = 2;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "layout is 2");
    a.layout = 0x80000000u;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "layout is ");
    a.layout = TERN_LAYOUT_EXPERT;
    a.expert_alignment = 0xfffffffe;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "expert_alignment is 4294967294");
    CHECK(!route, "a failed tern_route_open wrote its output");
    return 0;
}

/* Of an open route: what tern_route_update refuses, and structures of the wrong size. */
static int refuse_route_uses(struct scene *s)
{
    struct tern_route *route = s->batches[0].routes[0];
    struct tern_stream *lane = s->world.members[0].lanes[0];
    struct tern_route_args a = batch_args(&s->batches[0], 0);
    struct tern_route_counts counts = TERN_ROUTE_COUNTS_INIT;
    struct tern_route_view view = TERN_ROUTE_VIEW_INIT;

    a.topk = 3;
    BAD(tern_route_update(route, &a, lane), "topk 4, layout 0, alignment 1, ids of 8 bytes, not 3, 0, 1, 8");
    a = batch_args(&s->batches[0], 0);
    a.layout = !a.layout;
    BAD(tern_route_update(route, &a, lane), "not 4, 1, 1, 8");
    BAD(tern_route_update(NULL, &a, lane), "NULL");
    BAD(tern_route_update(route, NULL, lane), "NULL");
    BAD(tern_route_wait(NULL, &counts), "NULL");
    BAD(tern_route_wait(route, NULL), "NULL");
    BAD(tern_route_get_view(NULL, &view), "NULL");
    BAD(tern_route_get_view(route, NULL), "NULL");
    counts.size = 4;
    BAD(tern_route_wait(route, &counts), "counts->size is 4");
    view.size = 5;
    BAD(tern_route_get_view(route, &view), "view->size is 5");
    tern_route_close(NULL);
    return 0;
}

/* ---- Dispatch ---- */

struct dispatching {
    struct tern_route *route;
    struct tern_stream *lane;
    struct tern_rows in[TERN_MAX_PAYLOADS], out[TERN_MAX_PAYLOADS + 1];
    struct tern_dispatch_args a;
};

static void propose_dispatch(struct scene *s, struct dispatching *d)
{
    memset(d, 0, sizeof *d);
    d->route = s->batches[0].routes[0];
    d->lane = s->world.members[0].lanes[0];
    d->a = dispatch_args(&s->dispatches[0], 0, 1, d->in, d->out);
}

/* One thing wrong at a time: `change` spoils a good proposal. */
#define BAD_DISPATCH(s, change, text)                                                                        \
    do {                                                                                                     \
        struct dispatching d;                                                                                \
        propose_dispatch(s, &d);                                                                             \
        change;                                                                                              \
        BAD(tern_dispatch(d.route, &d.a, d.lane), text);                                                     \
    } while (0)

static int refuse_dispatches(struct scene *s)
{
    struct tern_dispatch_args *none = NULL;
    struct dispatching g;

    propose_dispatch(s, &g);
    BAD(tern_dispatch(NULL, &g.a, g.lane), "NULL");
    BAD(tern_dispatch(g.route, none, g.lane), "NULL");
    BAD_DISPATCH(s, d.a.size = 0, "args->size is 0");
    BAD_DISPATCH(s, d.a.size = 21, "args->size is 21");
    BAD_DISPATCH(s, d.a.in = NULL, "NULL");
    BAD_DISPATCH(s, d.a.out = NULL, "NULL");
    BAD_DISPATCH(s, d.a.num_in = 0, "num_in is 0");
    BAD_DISPATCH(s, d.a.num_in = 9, "num_in is 9");
    BAD_DISPATCH(s, d.a.cast = 4, "cast is 4");
    BAD_DISPATCH(s, d.in[0].data = NULL, "NULL");
    BAD_DISPATCH(s, d.out[0].data = NULL, "NULL");
    BAD_DISPATCH(s, d.in[0].row_bytes = 0, "rows of 0 bytes in elements of 0");
    BAD_DISPATCH(s, d.in[0].row_bytes = 136, "in[0].row_bytes is 136");
    BAD_DISPATCH(s, d.in[0].elem_bytes = 7, "rows of 144 bytes in elements of 7");
    BAD_DISPATCH(s, d.in[0].data = (char *)d.in[0].data + 8, "in[0] is at 0x");
    BAD_DISPATCH(s, d.in[0].row_stride = 152, "rows 152 bytes apart");
    BAD_DISPATCH(s, d.out[0].data = (char *)d.out[0].data + 4, "out[0] is at 0x");
    BAD_DISPATCH(s, d.out[0].row_bytes = 128, "out[0].row_bytes is 128");
    BAD_DISPATCH(s, d.out[0].row_stride = 128, "out[0].row_stride is 128");
    BAD_DISPATCH(s, d.out[0].row_stride = -144, "out[0].row_stride is -144");
    BAD_DISPATCH(s, (d.out[0].elem_bytes = 16, d.out[0].elem_stride = 32), "out[0].elem_stride is 32");
    BAD_DISPATCH(s, (d.in[0].row_bytes = 160, d.out[0].row_bytes = 160), "160 bytes of payloads");
    BAD_DISPATCH(s, d.a.topk_weights = NULL, "NULL");
    return 0;
}

/* ---- Combine ---- */

#define BAD_COMBINE(s, change, text)                                                                         \
    do {                                                                                                     \
        struct tern_combine_args a = combine_args(&(s)->combines[0], 0, 1);                                  \
        change;                                                                                              \
        BAD(tern_combine((s)->batches[0].routes[0], &a, (s)->world.members[0].lanes[0]), text);              \
    } while (0)

static int refuse_combines(struct scene *s)
{
    struct tern_combine_args good = combine_args(&s->combines[0], 0, 1);
    struct tern_stream *lane = s->world.members[0].lanes[0];

    BAD(tern_combine(NULL, &good, lane), "NULL");
    BAD(tern_combine(s->batches[0].routes[0], NULL, lane), "NULL");
    BAD_COMBINE(s, a.size = 0, "args->size is 0");
    BAD_COMBINE(s, a.size = 13, "args->size is 13");
    BAD_COMBINE(s, a.in.data = NULL, "NULL");
    BAD_COMBINE(s, a.out.data = NULL, "NULL");
    BAD_COMBINE(s, a.in.row_bytes = 0, "in.row_bytes is 0");
    BAD_COMBINE(s, a.in.row_bytes = 120, "in.row_bytes is 120");
    BAD_COMBINE(s, a.out.row_bytes = 128, "out.row_bytes is 128");
    BAD_COMBINE(s,
                (a.in.row_bytes = 192, a.out.row_bytes = 192, a.in.row_stride = 192, a.out.row_stride = 192),
                "in.row_bytes is 192");
    BAD_COMBINE(s, a.in.data = (char *)a.in.data + 2, "in is at 0x");
    BAD_COMBINE(s, a.in.row_stride = 150, "rows of 144 bytes 150 apart");
    BAD_COMBINE(s, a.in.row_stride = 128, "rows of 144 bytes 128 apart");
    BAD_COMBINE(s, a.out.data = (char *)a.out.data + 2, "out is at 0x");
    BAD_COMBINE(s, a.out.row_stride = 151, "rows of 144 bytes 151 apart");
    BAD_COMBINE(s, a.bias[1] = (const char *)a.bias[1] + 2, "bias[1]");
    return 0;
}

/* Without staging, tensors outside windows are refused. */
static int refuse_outsiders(struct scene *s)
{
    struct dispatching d;
    struct tern_combine_args c = combine_args(&s->combines[0], 0, 1);

    propose_dispatch(s, &d);
    d.out[0].data = c.out.data;
    REFUSES(tern_dispatch(d.route, &d.a, d.lane), TERN_NO_SPACE,
            "raise staging_bytes or use tern_alloc(TERN_MEMORY_WINDOW)");
    c.in.data = d.in[0].data;
    c.in_rows = MAX_TOKENS;
    REFUSES(tern_combine(d.route, &c, d.lane), TERN_NO_SPACE, "window");
    return 0;
}

static int refuse_all(struct scene *s)
{
    PASS(scene_open(s));
    PASS(refuse_configs(s));
    PASS(refuse_ranks(s));
    PASS(refuse_routes(s));
    PASS(scene_round(s, 0));
    PASS(refuse_route_uses(s));
    PASS(refuse_dispatches(s));
    PASS(refuse_combines(s));
    PASS(refuse_outsiders(s));
    scene_refill(s, 0);
    PASS(dispatch_check(&s->dispatches[0], s->eps, 0));
    PASS(combine_check(&s->combines[0], s->eps, 0));
    return batch_check_view(&s->batches[0]);
}

static int bad_arguments(struct test *t)
{
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    struct scene s;
    int result;

    (void)t;
    test_quiet();
    shape.equal_tokens = 1;
    scene_init(&s, RANKS, 90);
    scene_add(&s, &shape, RANKS * MAX_TOKENS);
    result = refuse_all(&s);
    scene_fini(&s);
    return result;
}

/* ---- Ranks that disagree about a configuration ---- */

enum { DISAGREEING = 3 };

struct opener {
    pthread_t thread;
    struct tern_id id;
    int rank, result;
};

static int disagree(struct opener *o, struct tern_comm *comm)
{
    struct tern_ep_config c = TERN_EP_CONFIG_INIT;
    struct tern_ep *ep = NULL;

    c.num_experts = 6;
    c.max_topk = 2;
    c.max_tokens = o->rank == 1 ? 4711 : 815;
    c.max_row_bytes = 64;
    REFUSES(tern_ep_open(comm, &c, &ep), TERN_MISMATCH, "max_tokens");
    CHECK(strstr(tern_last_error(), "4711") && strstr(tern_last_error(), "815"),
          "rank %d: \"%s\" lacks one of the values", o->rank, tern_last_error());
    CHECK(!ep, "a failed tern_ep_open wrote its output");
    c.max_tokens = 815;
    c.num_experts = o->rank == 1 ? 7 : 6; /* what no rank can have, on one: the others are told, at once */
    BAD(tern_ep_open(comm, &c, &ep), "num_experts is 7; it must be a multiple of the 3 ranks");
    CHECK((strncmp(tern_last_error(), "rank 1: ", 8) == 0) == (o->rank != 1), "rank %d: \"%s\"", o->rank,
          tern_last_error());
    CHECK(!ep, "a failed tern_ep_open wrote its output");
    c.num_experts = 6;
    OK(tern_ep_open(comm, &c, &ep)); /* agreed at last */
    tern_ep_close(ep);
    return 0;
}

static int open_and_disagree(struct opener *o)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_comm *comm = NULL;
    int result;

    config.heap_bytes = 1 << 20;
    config.timeout_ms = 20000;
    OK(tern_comm_open(&o->id, o->rank, DISAGREEING, &config, &comm));
    result = disagree(o, comm);
    tern_comm_close(comm);
    return result;
}

static void *opener_main(void *user)
{
    struct opener *o = (struct opener *)user;

    o->result = open_and_disagree(o);
    return NULL;
}

static int disagreement(struct test *t)
{
    struct opener openers[DISAGREEING];
    int r, result = 0;

    (void)t;
    test_quiet();
    memset(openers, 0, sizeof openers);
    OK(tern_id_create(NULL, &openers[0].id));
    for (r = 0; r < DISAGREEING; r++) {
        openers[r].id = openers[0].id;
        openers[r].rank = r;
        openers[r].result = TEST_FAILED;
        CHECK(pthread_create(&openers[r].thread, NULL, opener_main, &openers[r]) == 0, "no thread %d", r);
    }
    for (r = 0; r < DISAGREEING; r++) {
        pthread_join(openers[r].thread, NULL);
        result = openers[r].result ? TEST_FAILED : result;
    }
    return result;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "communicators and memory refuse bad arguments", bad_comms);
    test_run(&t, "objects, routes, dispatch and combine refuse bad arguments", bad_arguments);
    test_run(&t, "ranks that disagree are told field and values", disagreement);
    return test_end(&t);
}
