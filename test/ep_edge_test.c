/* SPDX-License-Identifier: Apache-2.0
 *
 * The edges of an operation's life: a rank that comes just at the deadline, ids out of range in several
 * routes and in graphs, a graph beside direct runs of one route, sizes that overflow, weights that one rank
 * forgot. Three ranks in one process; every rank sends each token to every rank, so what must arrive is known
 * by heart. */
#include "patience.h"
#include "support.h"

#include <string.h>
#include <time.h>

enum {
    RANKS = 3,
    EXPERTS = 3,
    TOPK = 3,
    TOKENS = 4,
    CHANNELS = 64,
    ROW = 2 * CHANNELS,
    ROWS = RANKS * TOKENS
};
enum { DEADLINE_MS = 60 };

struct edge {
    struct tern_comm *comms[RANKS];
    struct tern_ep *eps[RANKS];
    struct tern_stream *streams[RANKS];
    struct tern_route *routes[RANKS];
    int64_t *ids[RANKS], *bad_ids[RANKS];
    uint16_t *in[RANKS], *out[RANKS];
    float *weights[RANKS];
};

static uint16_t value_at(int rank, int token) { return (uint16_t)(0x3f80 + rank * 16 + token); }

static int put(struct edge *e, int r, void *to, const void *from, size_t bytes)
{
    OK(tern_copy(e->comms[r], to, from, bytes, e->streams[r]));
    OK(tern_stream_synchronize(e->comms[r], e->streams[r]));
    return 0;
}

static int fill_rank(struct edge *e, int r)
{
    int64_t ids[TOKENS][TOPK];
    uint16_t rows[TOKENS][CHANNELS];
    float weights[TOKENS][TOPK];
    for (int t = 0; t < TOKENS; t++) {
        for (int k = 0; k < TOPK; k++) {
            ids[t][k] = k;
            weights[t][k] = 1.0f;
        }
        for (int c = 0; c < CHANNELS; c++) {
            rows[t][c] = value_at(r, t);
        }
    }
    OK(tern_stream_open(e->comms[r], &e->streams[r]));
    OK(tern_alloc(e->comms[r], TERN_MEMORY_DEVICE, sizeof(ids), (void **)&e->ids[r]));
    OK(tern_alloc(e->comms[r], TERN_MEMORY_DEVICE, sizeof(ids), (void **)&e->bad_ids[r]));
    OK(tern_alloc(e->comms[r], TERN_MEMORY_DEVICE, sizeof(rows), (void **)&e->in[r]));
    OK(tern_alloc(e->comms[r], TERN_MEMORY_DEVICE, sizeof(weights), (void **)&e->weights[r]));
    OK(tern_alloc(e->comms[r], TERN_MEMORY_WINDOW, ROWS * ROW, (void **)&e->out[r]));
    PASS(put(e, r, e->ids[r], ids, sizeof(ids)));
    PASS(put(e, r, e->in[r], rows, sizeof(rows)));
    PASS(put(e, r, e->weights[r], weights, sizeof(weights)));
    ids[1][2] = EXPERTS + 700 + r;
    return put(e, r, e->bad_ids[r], ids, sizeof(ids));
}

static int edge_open(struct edge *e, uint64_t seed)
{
    struct tern_comm_config comm = TERN_COMM_CONFIG_INIT;
    struct tern_ep_config ep = TERN_EP_CONFIG_INIT;
    memset(e, 0, sizeof(*e));
    comm.cpu_seed = seed;
    ep.num_experts = EXPERTS;
    ep.max_topk = TOPK;
    ep.max_tokens = TOKENS;
    ep.max_row_bytes = ROW;
    ep.timeout_ms = PATIENCE_MS;
    OK(tern_comm_open_all(RANKS, &comm, e->comms));
    OK(tern_ep_open_all(RANKS, e->comms, &ep, e->eps));
    for (int r = 0; r < RANKS; r++) {
        PASS(fill_rank(e, r));
    }
    return 0;
}

static void edge_close(struct edge *e)
{
    for (int r = 0; r < RANKS; r++) {
        if (e->comms[r]) {
            tern_ep_close(e->eps[r]);
            tern_free(e->comms[r], e->ids[r]);
            tern_free(e->comms[r], e->bad_ids[r]);
            tern_free(e->comms[r], e->in[r]);
            tern_free(e->comms[r], e->weights[r]);
            tern_free(e->comms[r], e->out[r]);
            tern_stream_close(e->comms[r], e->streams[r]);
            tern_comm_close(e->comms[r]);
        }
    }
}

static int route_on(struct edge *e, int r, const int64_t *ids, struct tern_route **route)
{
    struct tern_route_args a = TERN_ROUTE_ARGS_INIT;
    a.topk_idx = ids;
    a.num_tokens = TOKENS;
    a.topk = TOPK;
    if (*route) {
        OK(tern_route_update(*route, &a, e->streams[r]));
    } else {
        OK(tern_route_open(e->eps[r], &a, e->streams[r], route));
    }
    return 0;
}

static struct tern_dispatch_args dispatch_args(struct edge *e, int r, struct tern_rows *in,
                                               struct tern_rows *out)
{
    struct tern_dispatch_args a = TERN_DISPATCH_ARGS_INIT;
    memset(in, 0, sizeof(*in));
    memset(out, 0, sizeof(*out));
    in->data = e->in[r];
    out->data = e->out[r];
    in->row_bytes = out->row_bytes = ROW;
    a.in = in;
    a.out = out;
    a.num_in = 1;
    a.out_rows = ROWS;
    return a;
}

static int dispatch_on(struct edge *e, int r)
{
    struct tern_rows in, out;
    struct tern_dispatch_args a = dispatch_args(e, r, &in, &out);
    OK(tern_dispatch(e->routes[r], &a, e->streams[r]));
    return 0;
}

/* Every token of every rank has arrived at rank r. */
static int arrived(struct edge *e, int r)
{
    uint16_t rows[ROWS * CHANNELS];
    PASS(put(e, r, rows, e->out[r], sizeof(rows)));
    for (int i = 0; i < ROWS * CHANNELS; i++) {
        uint16_t wanted = value_at(i / CHANNELS / TOKENS, i / CHANNELS % TOKENS);
        CHECK(rows[i] == wanted, "rank %d, row %d: 0x%04x, expected 0x%04x", r, i / CHANNELS, rows[i],
              wanted);
    }
    return 0;
}

static void pause_us(long us)
{
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

/* After a fault. */
static int again(struct edge *e)
{
    for (int r = 0; r < RANKS; r++) {
        tern_route_close(e->routes[r]);
    }
    OK(tern_ep_reset_all(RANKS, e->eps));
    return 0;
}

static void deadline(struct edge *e, uint32_t timeout_ms)
{
    for (int r = 0; r < RANKS; r++) {
        patience_set(e->eps[r], timeout_ms);
    }
}

/* The last rank enters within two milliseconds of the deadline. Whoever reports success has all its rows. */
static int one_late_round(struct edge *e, int round, int *failed)
{
    int outcomes[RANKS];
    deadline(e, PATIENCE_MS);
    for (int r = 0; r < RANKS; r++) {
        OK(tern_fill(e->comms[r], e->out[r], 0xee, ROWS * ROW, e->streams[r]));
        OK(tern_stream_synchronize(e->comms[r], e->streams[r]));
        e->routes[r] = NULL;
    }
    for (int r = 0; r < RANKS; r++) {
        PASS(route_on(e, r, e->ids[r], &e->routes[r]));
    }
    for (int r = 0; r < RANKS; r++) {
        OK(tern_ep_synchronize(e->eps[r]));
    }
    deadline(e, DEADLINE_MS);
    for (int r = 0; r < RANKS; r++) {
        pause_us(r == RANKS - 1 ? DEADLINE_MS * 1000 - 2000 + round % 21 * 200 : 0);
        PASS(dispatch_on(e, r));
    }
    *failed = 0;
    for (int r = 0; r < RANKS; r++) {
        outcomes[r] = tern_ep_synchronize(e->eps[r]);
        *failed += outcomes[r] != TERN_OK;
        CHECK(outcomes[r] == TERN_OK || outcomes[r] == TERN_TIMEOUT, "rank %d: %s", r, tern_last_error());
    }
    for (int r = 0; r < RANKS; r++) {
        if (outcomes[r] == TERN_OK) {
            PASS(arrived(e, r));
        }
    }
    if (*failed) {
        return again(e);
    }
    for (int r = 0; r < RANKS; r++) {
        tern_route_close(e->routes[r]);
    }
    return 0;
}

static int near_deadline(struct test *t)
{
    struct edge e;
    int rounds = test_scaled(t, 63), timeouts = 0, result;
    test_quiet();
    result = edge_open(&e, 0);
    for (int i = 0; i < rounds && !result; i++) {
        int failed = 0;
        result = one_late_round(&e, i, &failed);
        timeouts += failed > 0;
    }
    test_detail(t, "%d of %d rounds timed out", timeouts, rounds);
    edge_close(&e);
    return result;
}

/* Two routes with bad ids: each wait says so, with its own value; a third is good. */
static int bad_ids_in_two(struct edge *e)
{
    struct tern_route *a[RANKS] = {NULL}, *b[RANKS] = {NULL}, *c[RANKS] = {NULL};
    struct tern_route_counts counts = TERN_ROUTE_COUNTS_INIT;
    for (int r = 0; r < RANKS; r++) {
        PASS(route_on(e, r, r == 1 ? e->bad_ids[r] : e->ids[r], &a[r]));
        PASS(route_on(e, r, r == 1 ? e->bad_ids[r] : e->ids[r], &b[r]));
        PASS(route_on(e, r, e->ids[r], &c[r]));
    }
    REFUSES(tern_route_wait(a[1], &counts), TERN_INVALID_ARGUMENT, "704");
    REFUSES(tern_route_wait(b[1], &counts), TERN_INVALID_ARGUMENT, "704");
    OK(tern_route_wait(c[1], &counts));
    CHECK(counts.num_rows == ROWS, "%llu rows", (unsigned long long)counts.num_rows);
    OK(tern_route_wait(a[0], &counts));
    CHECK(counts.num_rows == ROWS, "rank 0: %llu rows; the other choices of the token still count",
          (unsigned long long)counts.num_rows);
    PASS(route_on(e, 0, e->ids[0], &a[0]));
    PASS(route_on(e, 1, e->ids[1], &a[1]));
    PASS(route_on(e, 2, e->ids[2], &a[2]));
    OK(tern_route_wait(a[1], &counts));
    OK(tern_ep_synchronize(e->eps[1]));
    return 0;
}

/* A graph with a bad id says so at every replay; a direct run beside it has its own ticket. */
static int bad_ids_in_graph(struct edge *e)
{
    struct tern_graph *graphs[RANKS];
    struct tern_route *routes[RANKS] = {NULL};
    struct tern_route_counts counts = TERN_ROUTE_COUNTS_INIT;
    for (int r = 0; r < RANKS; r++) {
        OK(tern_graph_begin(e->comms[r], e->streams[r]));
        PASS(route_on(e, r, r == 2 ? e->bad_ids[r] : e->ids[r], &routes[r]));
        OK(tern_graph_end(e->comms[r], e->streams[r], &graphs[r]));
    }
    EXPECT(tern_route_wait(routes[0], &counts), TERN_BAD_STATE);
    for (int replay = 0; replay < 3; replay++) {
        for (int r = 0; r < RANKS; r++) {
            OK(tern_graph_launch(e->comms[r], graphs[r], e->streams[r]));
        }
        for (int r = 0; r < RANKS; r++) {
            OK(tern_stream_synchronize(e->comms[r], e->streams[r]));
        }
        OK(tern_ep_synchronize(e->eps[0]));
        REFUSES(tern_ep_synchronize(e->eps[2]), TERN_INVALID_ARGUMENT, "705");
        OK(tern_ep_synchronize(e->eps[2]));
    }
    for (int r = 0; r < RANKS; r++) { /* a direct run, and a replay over it before anybody has waited */
        PASS(route_on(e, r, e->ids[r], &routes[r]));
        OK(tern_graph_launch(e->comms[r], graphs[r], e->streams[r]));
    }
    OK(tern_route_wait(routes[0], &counts));
    for (int r = 0; r < RANKS; r++) {
        OK(tern_stream_synchronize(e->comms[r], e->streams[r]));
        tern_graph_close(e->comms[r], graphs[r]);
    }
    /* The latest run of rank 2 met the bad id, the direct one did not, and its counts are the host's. */
    REFUSES(tern_route_wait(routes[2], &counts), TERN_INVALID_ARGUMENT, "705");
    CHECK(counts.num_rows == ROWS && counts.expert_counts[0] == ROWS && counts.rank_counts[2] == TOKENS,
          "after a replay: %llu rows, %d choices, %d rows of rank 2", (unsigned long long)counts.num_rows,
          counts.expert_counts[0], counts.rank_counts[2]);
    return 0;
}

static int refusals(struct edge *e)
{
    struct tern_rows in, out;
    struct tern_dispatch_args a = dispatch_args(e, 0, &in, &out);
    struct tern_route_args route = TERN_ROUTE_ARGS_INIT;
    struct {
        struct tern_route_args known;
        uint64_t later;
    } longer = {TERN_ROUTE_ARGS_INIT, 1};
    out.row_stride = (int64_t)1 << 58;
    a.out_rows = 65;
    REFUSES(tern_dispatch(e->routes[0], &a, e->streams[0]), TERN_INVALID_ARGUMENT, "288230376151711744");
    route.reserved = 9;
    REFUSES(tern_route_open(e->eps[0], &route, e->streams[0], &e->routes[0]), TERN_INVALID_ARGUMENT, "9");
    longer.known.size = sizeof(longer);
    EXPECT(tern_route_open(e->eps[0], &longer.known, e->streams[0], &e->routes[0]), TERN_UNSUPPORTED);
    return 0;
}

/* Rank 0 asks for weights; rank 1 has tokens and none: both are named in a mismatch, and nothing hangs. */
static int forgotten_weights(struct edge *e)
{
    struct tern_fault fault = TERN_FAULT_INIT;
    float *wanted;
    OK(tern_alloc(e->comms[0], TERN_MEMORY_WINDOW, ROWS * TOPK * sizeof(float), (void **)&wanted));
    for (int r = 0; r < RANKS; r++) {
        struct tern_rows in, out;
        struct tern_dispatch_args a = dispatch_args(e, r, &in, &out);
        a.topk_weights = r == 1 ? NULL : e->weights[r];
        a.out_topk_weights = r == 0 ? wanted : NULL;
        OK(tern_dispatch(e->routes[r], &a, e->streams[r]));
    }
    EXPECT(tern_ep_synchronize(e->eps[1]), TERN_MISMATCH);
    OK(tern_fault_get(e->eps[1], &fault));
    CHECK(fault.awaited == TERN_AWAIT_WEIGHTS && fault.peer == 0, "awaited %d, peer %d", fault.awaited,
          fault.peer);
    for (int r = 0; r < RANKS; r++) {
        EXPECT(tern_ep_synchronize(e->eps[r]), TERN_MISMATCH);
        CHECK(strstr(tern_last_error(), r == 1 ? "topk_weights is NULL here" : "rank 1 has no topk_weights"),
              "rank %d says: %s", r, tern_last_error());
        tern_route_close(e->routes[r]);
    }
    tern_free(e->comms[0], wanted);
    return 0;
}

static int records(struct test *t)
{
    struct edge e;
    int result = edge_open(&e, 77);
    (void)t;
    test_quiet();
    result = result ? result : bad_ids_in_two(&e);
    edge_close(&e);
    result = result ? result : edge_open(&e, 78);
    result = result ? result : bad_ids_in_graph(&e);
    edge_close(&e);
    return result;
}

static int sizes_and_weights(struct test *t)
{
    struct edge e;
    int result = edge_open(&e, 79);
    (void)t;
    test_quiet();
    for (int r = 0; r < RANKS && !result; r++) {
        result = route_on(&e, r, e.ids[r], &e.routes[r]);
    }
    result = result ? result : refusals(&e);
    result = result ? result : forgotten_weights(&e);
    edge_close(&e);
    return result;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "a rank that comes at the deadline", near_deadline);
    test_run(&t, "ids out of range in two routes and in a graph", records);
    test_run(&t, "sizes that overflow, and weights that a rank forgot", sizes_and_weights);
    return test_end(&t);
}
