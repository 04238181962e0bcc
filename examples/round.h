/* SPDX-License-Identifier: Apache-2.0
 *
 * A round for examples that are about something else: each token goes to one expert, the identity, and home
 * again, so that it comes back as it was. */
#ifndef TERN_EXAMPLE_ROUND_H
#define TERN_EXAMPLE_ROUND_H

#include "example.h"

enum { ROUND_EXPERTS = 12, ROUND_TOKENS = 16, ROUND_HIDDEN = 64, ROUND_ROW_BYTES = 2 * ROUND_HIDDEN };

struct round {
    int rank;
    struct tern_comm *comm;
    struct tern_ep *ep;
    struct tern_stream *stream;
    struct tern_route *route;
    struct tern_rows tokens, rows, sums;
    uint64_t max_rows;
    void *ids;
};

static inline struct tern_ep_config round_config(uint32_t timeout_ms)
{
    struct tern_ep_config config = ep_config(ROUND_EXPERTS, 1, ROUND_TOKENS, ROUND_ROW_BYTES);
    config.timeout_ms = timeout_ms; /* what a rank waits for another one */
    return config;
}

static inline void round_prepare(struct round *r, struct tern_comm *comm, struct tern_ep *ep)
{
    const struct tern_ep_config config = round_config(0);
    int64_t ids[ROUND_TOKENS];
    uint16_t tokens[ROUND_TOKENS][ROUND_HIDDEN];
    memset(r, 0, sizeof *r);
    r->rank = tern_comm_rank(comm);
    r->comm = comm;
    r->ep = ep;
    for (int t = 0; t < ROUND_TOKENS; t++) {
        ids[t] = (r->rank + 5 * t) % ROUND_EXPERTS;
        for (int i = 0; i < ROUND_HIDDEN; i++) {
            tokens[t][i] = bf16((float)(r->rank + t + i + 1));
        }
    }
    must(tern_stream_open(comm, &r->stream));
    must(tern_ep_max_rows(&config, tern_comm_size(comm), TERN_LAYOUT_RANK, 1, &r->max_rows));
    r->tokens.data = put(comm, tokens, sizeof tokens);
    r->rows.data = take(comm, TERN_MEMORY_WINDOW, r->max_rows * ROUND_ROW_BYTES);
    r->sums.data = take(comm, TERN_MEMORY_DEVICE, sizeof tokens);
    r->ids = put(comm, ids, sizeof ids);
    r->tokens.row_bytes = r->rows.row_bytes = r->sums.row_bytes = ROUND_ROW_BYTES;
}

/* Only issues the work: what goes wrong on the device is told later, or by the first call behind it. */
static inline enum tern_status round_issue(struct round *r)
{
    struct tern_route_args route = TERN_ROUTE_ARGS_INIT;
    struct tern_dispatch_args dispatch = TERN_DISPATCH_ARGS_INIT;
    struct tern_combine_args combine = TERN_COMBINE_ARGS_INIT;
    enum tern_status status;
    route.topk_idx = r->ids;
    route.num_tokens = ROUND_TOKENS;
    route.topk = 1;
    dispatch.in = &r->tokens;
    dispatch.out = &r->rows;
    dispatch.num_in = 1;
    combine.in = r->rows;
    dispatch.out_rows = combine.in_rows = r->max_rows;
    combine.out = r->sums;
    status = tern_route_open(r->ep, &route, r->stream, &r->route);
    status = status != TERN_OK ? status : tern_dispatch(r->route, &dispatch, r->stream);
    return status != TERN_OK ? status : tern_combine(r->route, &combine, r->stream);
}

static inline int round_is_right(struct round *r)
{
    uint16_t tokens[ROUND_TOKENS][ROUND_HIDDEN], sums[ROUND_TOKENS][ROUND_HIDDEN];
    copy(r->comm, tokens, r->tokens.data, sizeof tokens);
    copy(r->comm, sums, r->sums.data, sizeof sums);
    return memcmp(tokens, sums, sizeof sums) == 0;
}

/* The object first, then all else; not while a peer waits for this rank. */
static inline void round_close(struct round *r)
{
    tern_route_close(r->route);
    tern_ep_close(r->ep);
    tern_stream_close(r->comm, r->stream);
    tern_comm_close(r->comm);
}

#endif
