/* SPDX-License-Identifier: Apache-2.0
 *
 * Two ranks, one token each, one round trip.
 *
 * Rank 0 sends its token to expert 1, which rank 1 owns, and rank 1 sends its token to expert 0. Each rank
 * receives the other's token, "runs its expert" by doing nothing to it, and combine brings every token home.
 *
 *     ./01_hello_two_ranks                  one process drives both ranks
 *     tern-run -n 2 ./01_hello_two_ranks    two processes, one rank each
 *
 * The calls are the same in both cases; only how the communicators are opened differs. */
#include "example.h"

enum { RANKS = 2, HIDDEN = 64, ROW_BYTES = 2 * HIDDEN };

/* Everything that one rank owns. Rows that peers write or read lie in its window. */
struct rank {
    struct tern_comm *comm;
    struct tern_ep *ep;
    struct tern_route *route;
    struct tern_stream *stream;
    uint16_t *token;    /* [HIDDEN] BF16, what goes out */
    uint16_t *received; /* [1, HIDDEN], in the window */
    uint16_t *home;     /* [HIDDEN], what came back */
    int64_t *expert;    /* [1, 1] */
};

/* Device memory and the token: channel i of rank r's token has the bits 0x3f80 + r * 16 + i % 16. */
static void prepare(struct rank *r, int me)
{
    uint16_t token[HIDDEN];
    int64_t expert = 1 - me;
    must(tern_stream_open(r->comm, &r->stream)); /* ranks on one GPU may not share its default stream */
    for (int i = 0; i < HIDDEN; i++) {
        token[i] = (uint16_t)(0x3f80 + me * 16 + i % 16);
    }
    r->token = (uint16_t *)put(r->comm, token, ROW_BYTES);
    r->received = (uint16_t *)take(r->comm, TERN_MEMORY_WINDOW, ROW_BYTES);
    r->home = (uint16_t *)take(r->comm, TERN_MEMORY_DEVICE, ROW_BYTES);
    r->expert = (int64_t *)put(r->comm, &expert, sizeof(expert));
}

/* Issues all three operations; nothing here waits for the other rank. */
static void issue(struct rank *r)
{
    struct tern_route_args route = TERN_ROUTE_ARGS_INIT;
    struct tern_dispatch_args dispatch = TERN_DISPATCH_ARGS_INIT;
    struct tern_combine_args combine = TERN_COMBINE_ARGS_INIT;
    struct tern_rows in = {r->token, ROW_BYTES, 0, 0, 0};
    struct tern_rows out = {r->received, ROW_BYTES, 0, 0, 0};
    struct tern_rows home = {r->home, ROW_BYTES, 0, 0, 0};
    route.topk_idx = r->expert;
    route.num_tokens = 1;
    route.topk = 1;
    must(tern_route_open(r->ep, &route, r->stream, &r->route));
    dispatch.in = &in;
    dispatch.out = &out;
    dispatch.num_in = 1;
    dispatch.out_rows = 1; /* each rank receives one token */
    must(tern_dispatch(r->route, &dispatch, r->stream));
    combine.in = out;
    combine.in_rows = 1;
    combine.out = home;
    must(tern_combine(r->route, &combine, r->stream));
}

/* Whether the other's token came here and the own one came home. */
static int check(struct rank *r, int me)
{
    uint16_t received[HIDDEN], home[HIDDEN];
    int good = 1;
    must(tern_ep_synchronize(r->ep));
    copy(r->comm, received, r->received, ROW_BYTES);
    copy(r->comm, home, r->home, ROW_BYTES);
    for (int i = 0; i < HIDDEN; i++) {
        good &= received[i] == 0x3f80 + (1 - me) * 16 + i % 16;
        good &= home[i] == 0x3f80 + me * 16 + i % 16;
    }
    return good;
}

int main(void)
{
    struct tern_ep_config config = TERN_EP_CONFIG_INIT;
    struct tern_comm *comms[RANKS];
    struct tern_ep *eps[RANKS];
    struct rank ranks[RANKS];
    int first, here, good = 1;
    config.num_experts = 2;
    config.max_topk = 1;
    config.max_tokens = 1;
    config.max_row_bytes = ROW_BYTES;
    here = open_ranks(RANKS, &config, comms, eps, &first);
    for (int i = 0; i < here; i++) {
        ranks[i].comm = comms[i];
        ranks[i].ep = eps[i];
        prepare(&ranks[i], first + i);
    }
    for (int i = 0; i < here; i++) {
        issue(&ranks[i]);
    }
    for (int i = 0; i < here; i++) {
        good &= check(&ranks[i], first + i);
    }
    if (first == 0) {
        printf("hello from %d ranks: the tokens %s\n", RANKS, good ? "met and came home" : "were lost");
    }
    if (here < RANKS) { /* nobody closes what a peer still uses */
        must(tern_comm_barrier(ranks[0].comm));
    }
    for (int i = 0; i < here; i++) {
        tern_route_close(ranks[i].route);
        tern_ep_close(ranks[i].ep);
        tern_stream_close(ranks[i].comm, ranks[i].stream);
        tern_comm_close(ranks[i].comm);
    }
    return good ? 0 : 1;
}
