/* SPDX-License-Identifier: Apache-2.0
 *
 * Bad arguments end in a status and a sentence with the value, and change nothing: after each group of
 * refusals a proper operation gives the right bytes. Also configurations on which ranks disagree. */
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
    BAD(tern_comm_open_all(0, &config, comms), "0");
    BAD(tern_comm_open_all(-3, &config, comms), "-3");
    BAD(tern_comm_open_all(1 << 20, &config, comms), "1048576");
    BAD(tern_comm_open_all(2, &config, NULL), "NULL");
    config.size = 3;
    BAD(tern_comm_open_all(2, &config, comms), "3");
    config.size = sizeof config;
    config.machine = 17;
    BAD(tern_comm_open_all(2, &config, comms), "17");
    CHECK(!comms[0] && !comms[1], "a failed tern_comm_open_all wrote its output");
    config.machine = 0;
    config.heap_bytes = 1 << 20;
    OK(tern_comm_open_all(1, &config, comms));
    REFUSES(tern_alloc(comms[0], TERN_MEMORY_WINDOW, (size_t)1 << 30, &memory), TERN_OUT_OF_MEMORY,
            "1073741824");
    BAD(tern_alloc(comms[0], (enum tern_memory)9, 64, &memory), "9");
    CHECK(!memory, "a failed tern_alloc wrote its output");
    tern_comm_close(comms[0]);
    tern_comm_close(NULL);
    return 0;
}

static int refuse_configs(struct scene *s)
{
    struct tern_comm *comm = s->world.members[0].comm;
    struct tern_ep_config good = s->config, c = good;
    struct tern_ep *ep = NULL;

    BAD(tern_ep_open(NULL, &c, &ep), "NULL");
    BAD(tern_ep_open(comm, NULL, &ep), "NULL");
    BAD(tern_ep_open(comm, &c, NULL), "NULL");
    c.size = 0;
    BAD(tern_ep_open(comm, &c, &ep), "0");
    c.size = 12;
    BAD(tern_ep_open(comm, &c, &ep), "12");
    c = good;
    c.num_experts = 7;
    BAD(tern_ep_open(comm, &c, &ep), "7");
    c = good;
    c.max_topk = 65;
    BAD(tern_ep_open(comm, &c, &ep), "65");
    c = good;
    c.max_tokens = 0;
    BAD(tern_ep_open(comm, &c, &ep), "max_tokens");
    c = good;
    c.max_row_bytes = 0;
    BAD(tern_ep_open(comm, &c, &ep), "max_row_bytes");
    c = good;
    c.transfer = 5;
    BAD(tern_ep_open(comm, &c, &ep), "5");
    CHECK(!ep, "a failed tern_ep_open wrote its output");
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
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "0");
    a.size = 11;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "11");
    a = good;
    a.topk_idx = NULL;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "NULL");
    a = good;
    a.topk_idx = (const char *)good.topk_idx + 3;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "aligned");
    a = good;
    a.idx_bytes = 2;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "2");
    a = good;
    a.num_tokens = 25;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "25");
    a = good;
    a.topk = 0;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "0");
    a.topk = 5;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "5");
    a = good;
    a.layout = 2;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "2");
    a.layout = 0x80000000u;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "layout");
    a.layout = TERN_LAYOUT_EXPERT;
    a.expert_alignment = 0xfffffffe;
    BAD(tern_route_open(s->eps[0], &a, lane, &route), "4294967294");
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
    BAD(tern_route_update(route, &a, lane), "3");
    a = batch_args(&s->batches[0], 0);
    a.layout = !a.layout;
    BAD(tern_route_update(route, &a, lane), "layout");
    BAD(tern_route_update(NULL, &a, lane), "NULL");
    BAD(tern_route_update(route, NULL, lane), "NULL");
    BAD(tern_route_wait(NULL, &counts), "NULL");
    BAD(tern_route_wait(route, NULL), "NULL");
    BAD(tern_route_get_view(NULL, &view), "NULL");
    BAD(tern_route_get_view(route, NULL), "NULL");
    counts.size = 4;
    BAD(tern_route_wait(route, &counts), "4");
    view.size = 5;
    BAD(tern_route_get_view(route, &view), "5");
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
    BAD_DISPATCH(s, d.a.size = 0, "0");
    BAD_DISPATCH(s, d.a.size = 21, "21");
    BAD_DISPATCH(s, d.a.in = NULL, "NULL");
    BAD_DISPATCH(s, d.a.out = NULL, "NULL");
    BAD_DISPATCH(s, d.a.num_in = 0, "0");
    BAD_DISPATCH(s, d.a.num_in = 9, "9");
    BAD_DISPATCH(s, d.a.cast = 4, "4");
    BAD_DISPATCH(s, d.in[0].data = NULL, "NULL");
    BAD_DISPATCH(s, d.out[0].data = NULL, "NULL");
    BAD_DISPATCH(s, d.in[0].row_bytes = 0, "0");
    BAD_DISPATCH(s, d.in[0].row_bytes = 136, "136");
    BAD_DISPATCH(s, d.in[0].elem_bytes = 7, "7");
    BAD_DISPATCH(s, d.in[0].data = (char *)d.in[0].data + 8, "16");
    BAD_DISPATCH(s, d.in[0].row_stride = 152, "152");
    BAD_DISPATCH(s, d.out[0].data = (char *)d.out[0].data + 4, "16");
    BAD_DISPATCH(s, d.out[0].row_bytes = 128, "128");
    BAD_DISPATCH(s, d.out[0].row_stride = 128, "128");
    BAD_DISPATCH(s, d.out[0].row_stride = -144, "-144");
    BAD_DISPATCH(s, (d.out[0].elem_bytes = 16, d.out[0].elem_stride = 32), "32");
    BAD_DISPATCH(s, (d.in[0].row_bytes = 160, d.out[0].row_bytes = 160), "160");
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
    BAD_COMBINE(s, a.size = 0, "0");
    BAD_COMBINE(s, a.size = 13, "13");
    BAD_COMBINE(s, a.in.data = NULL, "NULL");
    BAD_COMBINE(s, a.out.data = NULL, "NULL");
    BAD_COMBINE(s, a.in.row_bytes = 0, "0");
    BAD_COMBINE(s, a.in.row_bytes = 120, "120");
    BAD_COMBINE(s, a.out.row_bytes = 128, "128");
    BAD_COMBINE(s,
                (a.in.row_bytes = 192, a.out.row_bytes = 192, a.in.row_stride = 192, a.out.row_stride = 192),
                "192");
    BAD_COMBINE(s, a.in.data = (char *)a.in.data + 2, "16");
    BAD_COMBINE(s, a.in.row_stride = 150, "150");
    BAD_COMBINE(s, a.in.row_stride = 128, "128");
    BAD_COMBINE(s, a.out.data = (char *)a.out.data + 2, "16");
    BAD_COMBINE(s, a.out.row_stride = 151, "151");
    BAD_COMBINE(s, a.bias[1] = (const char *)a.bias[1] + 2, "bias[1]");
    return 0;
}

/* Without staging, tensors outside windows are refused. */
static int refuse_outsiders(struct scene *s)
{
    struct dispatching d;
    struct tern_combine_args c = combine_args(&s->combines[0], 0, 1);

    propose_dispatch(s, &d);
    d.out[0].data = s->world.members[0].arenas[ARENA_DEVICE].device;
    REFUSES(tern_dispatch(d.route, &d.a, d.lane), TERN_NO_SPACE, "window");
    c.in.data = s->world.members[0].arenas[ARENA_DEVICE].device;
    REFUSES(tern_combine(d.route, &c, d.lane), TERN_NO_SPACE, "window");
    return 0;
}

static int refuse_all(struct scene *s)
{
    PASS(scene_open(s));
    PASS(refuse_configs(s));
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
