/* SPDX-License-Identifier: Apache-2.0
 *
 * Low latency: two ranks with a few tokens each, one dispatch and one combine. There is no route before them:
 * dispatch reads the gate's choice itself, and its rows lie in slabs of a fixed shape, one slab an expert. Of
 * a slab, the first `counts` rows are written. Everything is ordinary device memory; there is no window.
 *
 *     ./05_low_latency                  one process drives both ranks
 *     tern-run -n 2 ./05_low_latency    two processes, one rank each
 *
 * The gate chooses two of four experts with the weights 1/4 and 3/4, and experts leave rows as they are. So
 * every token comes home as it went, 1/4 x + 3/4 x = x, without rounding. */
#include "example.h"

enum { RANKS = 2, EXPERTS = 4, SHARE = EXPERTS / RANKS, TOPK = 2 };
enum { TOKENS = 8, HIDDEN = 64, SLAB_ROWS = RANKS * TOKENS }; /* every token of every rank may come */

static const float gate_weights[TOPK] = {0.25f, 0.75f};

struct rank {
    int me;
    struct tern_comm *comm;
    struct tern_ep *ep;
    struct tern_stream *stream;
    void *tokens, *sums; /* [TOKENS, HIDDEN] BF16 */
    void *ids;           /* [TOKENS, TOPK] */
    float *weights;      /* likewise */
    void *slabs;         /* [SHARE, SLAB_ROWS, HIDDEN] BF16 */
    int32_t *counts;     /* [SHARE] */
};

static uint16_t token_at(int rank, int t, int i) { return bf16((float)(rank * 100 + t * 8 + i % 8)); }

/* Token t of either rank goes to experts t and t + 1, in a ring. */
static void prepare(struct rank *r)
{
    uint16_t tokens[TOKENS][HIDDEN];
    int64_t ids[TOKENS][TOPK];
    float weights[TOKENS][TOPK];
    for (int t = 0; t < TOKENS; t++) {
        for (int k = 0; k < TOPK; k++) {
            ids[t][k] = (t + k) % EXPERTS;
            weights[t][k] = gate_weights[k];
        }
        for (int i = 0; i < HIDDEN; i++) {
            tokens[t][i] = token_at(r->me, t, i);
        }
    }
    must(tern_stream_open(r->comm, &r->stream)); /* ranks on one GPU may not share its default stream */
    r->tokens = put(r->comm, tokens, sizeof(tokens));
    r->ids = put(r->comm, ids, sizeof(ids));
    r->weights = (float *)put(r->comm, weights, sizeof(weights));
    r->sums = take(r->comm, TERN_MEMORY_DEVICE, sizeof(tokens));
    r->slabs = take(r->comm, TERN_MEMORY_DEVICE, SHARE * SLAB_ROWS * HIDDEN * sizeof(uint16_t));
    r->counts = (int32_t *)take(r->comm, TERN_MEMORY_DEVICE, SHARE * sizeof(int32_t));
}

/* Issues both operations; nothing here waits for the other rank. */
static void issue(struct rank *r)
{
    struct tern_ll_dispatch_args dispatch = TERN_LL_DISPATCH_ARGS_INIT;
    struct tern_ll_combine_args combine = TERN_LL_COMBINE_ARGS_INIT;
    dispatch.in = r->tokens;
    dispatch.topk_idx = r->ids;
    dispatch.num_tokens = TOKENS;
    dispatch.topk = TOPK;
    dispatch.hidden = HIDDEN;
    dispatch.out = r->slabs;
    dispatch.out_counts = r->counts;
    must(tern_ll_dispatch(r->ep, &dispatch, r->stream));
    /* Here the experts compute, on the same stream: expert e on the first counts[e] rows of slab e. */
    combine.in = r->slabs;
    combine.topk_weights = r->weights;
    combine.out = r->sums;
    must(tern_ll_combine(r->ep, &combine, r->stream));
}

/* Whether the experts got their rows and the tokens came home. */
static int check(struct rank *r)
{
    uint16_t sums[TOKENS][HIDDEN];
    int32_t counts[SHARE];
    int good = 1;
    must(tern_ep_synchronize(r->ep)); /* TERN_TIMEOUT if the other rank was late */
    copy(r->comm, sums, r->sums, sizeof(sums));
    copy(r->comm, counts, r->counts, sizeof(counts));
    for (int e = 0; e < SHARE; e++) { /* each expert is named by every second token of each rank */
        good &= counts[e] == RANKS * TOKENS * TOPK / EXPERTS;
    }
    for (int i = 0; i < TOKENS * HIDDEN; i++) {
        good &= sums[i / HIDDEN][i % HIDDEN] == token_at(r->me, i / HIDDEN, i % HIDDEN);
    }
    return good;
}

int main(void)
{
    struct tern_ep_config config = TERN_EP_CONFIG_INIT;
    struct tern_comm *comms[RANKS];
    struct tern_ep *eps[RANKS];
    struct rank ranks[RANKS];
    int first, here, good = 1, each[RANKS];
    config.num_experts = EXPERTS;
    config.max_topk = TOPK;
    config.ll_tokens = TOKENS;
    config.ll_hidden = HIDDEN;
    here = open_ranks(RANKS, &config, comms, eps, &first);
    for (int i = 0; i < here; i++) {
        ranks[i].me = first + i;
        ranks[i].comm = comms[i];
        ranks[i].ep = eps[i];
        prepare(&ranks[i]);
    }
    for (int i = 0; i < here; i++) {
        issue(&ranks[i]);
    }
    for (int i = 0; i < here; i++) {
        good &= check(&ranks[i]);
    }
    if (here < RANKS) { /* a process knows its own tokens only */
        must(tern_comm_allgather(comms[0], &good, each, sizeof(good)));
        good = each[0] & each[1];
    }
    if (first == 0) {
        printf("low latency on %d ranks: the tokens %s\n", RANKS, good ? "came home" : "were lost");
    }
    for (int i = 0; i < here; i++) {
        tern_ep_close(ranks[i].ep);
        tern_stream_close(ranks[i].comm, ranks[i].stream);
        tern_comm_close(ranks[i].comm);
    }
    return good ? 0 : 1;
}
