/* SPDX-License-Identifier: Apache-2.0
 *
 * Static shapes: route, dispatch and combine captured once in a graph and replayed with other expert ids.
 *
 * Nothing in the graph waits for the host. The receive buffer has room for the worst case (tern_ep_max_rows),
 * the real number of rows stays on the device (tern_route_get_view), and what changes from step to step is
 * only what lies in memory: here the host writes new ids before each replay; in a model a router kernel does.
 *
 * Every expert is the identity, so combine must bring home each token times its number of ranks. */
#include "example.h"

enum { RANKS = 2, EXPERTS = 8, TOPK = 2, TOKENS = 16, HIDDEN = 64, ROW_BYTES = 2 * HIDDEN, STEPS = 5 };

struct rank {
    int me;
    struct tern_comm *comm;
    struct tern_ep *ep;
    struct tern_route *route;
    struct tern_stream *stream;
    struct tern_graph *graph;
    struct tern_route_view view;
    struct tern_rows tokens, rows, sums;
    int64_t *ids;
};

static uint16_t token_at(int rank, int t, int i) { return bf16((float)((rank * 5 + t + i) % 64 + 1)); }

/* A different table every step; in some steps both choices lie on one rank. */
static int64_t id_at(int step, int r, int t, int k) { return (r + t + step * (t + 3 * k) + k) % EXPERTS; }

static void write_ids(struct rank *r, int step)
{
    int64_t ids[TOKENS][TOPK];
    for (int t = 0; t < TOKENS; t++) {
        for (int k = 0; k < TOPK; k++) {
            ids[t][k] = id_at(step, r->me, t, k);
        }
    }
    must(tern_copy(r->comm, r->ids, ids, sizeof(ids), r->stream));
    must(tern_stream_synchronize(r->comm, r->stream));
}

static void prepare(struct rank *r, uint64_t max_rows)
{
    uint16_t tokens[TOKENS][HIDDEN];
    for (int t = 0; t < TOKENS; t++) {
        for (int i = 0; i < HIDDEN; i++) {
            tokens[t][i] = token_at(r->me, t, i);
        }
    }
    must(tern_stream_open(r->comm, &r->stream));
    r->tokens.data = put(r->comm, tokens, sizeof(tokens));
    r->rows.data = take(r->comm, TERN_MEMORY_WINDOW, max_rows * ROW_BYTES);
    r->sums.data = take(r->comm, TERN_MEMORY_DEVICE, sizeof(tokens));
    r->ids = (int64_t *)take(r->comm, TERN_MEMORY_DEVICE, TOKENS * TOPK * sizeof(int64_t));
    r->tokens.row_bytes = r->rows.row_bytes = r->sums.row_bytes = ROW_BYTES;
    write_ids(r, 0);
}

/* The route is opened once outside the graph; the graph updates it. */
static void capture(struct rank *r, uint64_t max_rows)
{
    struct tern_route_args route = TERN_ROUTE_ARGS_INIT;
    struct tern_dispatch_args dispatch = TERN_DISPATCH_ARGS_INIT;
    struct tern_combine_args combine = TERN_COMBINE_ARGS_INIT;
    route.topk_idx = r->ids;
    route.num_tokens = TOKENS;
    route.topk = TOPK;
    must(tern_route_open(r->ep, &route, r->stream, &r->route));
    r->view.size = sizeof(r->view);
    must(tern_route_get_view(r->route, &r->view));
    dispatch.in = &r->tokens;
    dispatch.out = &r->rows;
    dispatch.num_in = 1;
    dispatch.out_rows = max_rows;
    combine.in = r->rows;
    combine.in_rows = max_rows;
    combine.out = r->sums;
    must(tern_graph_begin(r->comm, r->stream));
    must(tern_route_update(r->route, &route, r->stream));
    must(tern_dispatch(r->route, &dispatch, r->stream));
    must(tern_combine(r->route, &combine, r->stream));
    must(tern_graph_end(r->comm, r->stream, &r->graph));
}

/* Elements that are not token times ranks; adds the rows that the device says came. */
static int compare(struct rank *r, int step, int *num_rows)
{
    uint16_t sums[TOKENS][HIDDEN];
    int32_t rows;
    int wrong = 0;
    must(tern_stream_synchronize(r->comm,
                                 r->stream)); /* the EP object knows nothing of the graph's launches */
    must(tern_ep_synchronize(r->ep));
    copy(r->comm, sums, r->sums.data, sizeof(sums));
    copy(r->comm, &rows, r->view.num_rows, sizeof(rows));
    *num_rows += rows;
    for (int t = 0; t < TOKENS; t++) {
        int share = EXPERTS / RANKS;
        int two = id_at(step, r->me, t, 0) / share != id_at(step, r->me, t, 1) / share;
        for (int i = 0; i < HIDDEN; i++) {
            wrong += sums[t][i] != bf16((float)(1 + two) * bf16_value(token_at(r->me, t, i)));
        }
    }
    return wrong;
}

int main(void)
{
    struct tern_ep_config config = ep_config(EXPERTS, TOPK, TOKENS, ROW_BYTES);
    struct tern_comm *comms[RANKS];
    struct tern_ep *eps[RANKS];
    struct rank ranks[RANKS];
    uint64_t max_rows = 0;
    int wrong = 0, num_rows = 0;
    must(tern_ep_max_rows(&config, RANKS, TERN_LAYOUT_RANK, 1, &max_rows));
    must(tern_comm_open_all(RANKS, NULL, comms));
    must(tern_ep_open_all(RANKS, comms, &config, eps));
    memset(ranks, 0, sizeof(ranks));
    for (int r = 0; r < RANKS; r++) {
        ranks[r].me = r;
        ranks[r].comm = comms[r];
        ranks[r].ep = eps[r];
        prepare(&ranks[r], max_rows);
    }
    for (int r = 0; r < RANKS; r++) {
        capture(&ranks[r], max_rows);
    }
    /* In each step every rank's launch, then every rank's check. */
    for (int i = 0; i < 2 * STEPS * RANKS; i++) {
        struct rank *r = &ranks[i % RANKS];
        int step = i / RANKS / 2;
        if (i / RANKS % 2 == 0) {
            write_ids(r, step);
            must(tern_graph_launch(r->comm, r->graph, r->stream));
        } else {
            wrong += compare(r, step, &num_rows);
        }
    }
    printf("%d replays on %d ranks: %d rows moved, %d elements wrong\n", STEPS, RANKS, num_rows, wrong);
    for (int r = 0; r < RANKS; r++) {
        tern_graph_close(ranks[r].comm, ranks[r].graph);
        tern_route_close(ranks[r].route);
        tern_ep_close(ranks[r].ep);
        tern_stream_close(ranks[r].comm, ranks[r].stream);
        tern_comm_close(ranks[r].comm);
    }
    return wrong == 0 ? 0 : 1;
}
