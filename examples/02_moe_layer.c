/* SPDX-License-Identifier: Apache-2.0
 *
 * A whole mixture-of-experts layer on four ranks, of one process or (tern-run -n 4) a process each: gate,
 * dispatch, experts, combine, compared bit for bit with the same layer computed densely. The gate chooses two
 * of eight experts; expert e is a toy that multiplies by (e + 1) / 8. Rows arrive grouped by expert. */
#include "example.h"
enum { RANKS = 4, EXPERTS = 8, SHARE = EXPERTS / RANKS, TOPK = 2 };
enum { TOKENS = 32, HIDDEN = 128, ROW_BYTES = 2 * HIDDEN };
/* The model: what every token is, where the gate sends it, what an expert makes of it. */
static uint16_t token_at(int rank, int t, int i) { return bf16((float)((rank * 7 + t * 3 + i) % 32 - 16)); }
static int gate_expert(int rank, int t, int k) { return (rank + t * 5 + k * 3) % EXPERTS; }
static float gate_weight(int t, int k) { return 0.5f + (float)(k == 0 ? t % 4 : -(t % 4)) / 8.0f; }
static uint16_t expert(int e, float w, uint16_t x) { return bf16(w * (float)(e + 1) / 8 * bf16_value(x)); }
struct rank {
    int me;
    struct tern_comm *comm;
    struct tern_ep *ep;
    struct tern_route *route;
    struct tern_stream *stream;
    struct tern_route_counts counts;     /* what this rank receives */
    struct tern_rows tokens, rows, sums; /* in: device; received: window; out: device */
    void *experts;                       /* the gate's choice, in */
    float *weights, *row_weights;        /* in: device; received: window */
};

static void prepare(struct rank *r)
{
    uint16_t tokens[TOKENS][HIDDEN];
    int64_t experts[TOKENS][TOPK];
    float weights[TOKENS][TOPK];
    r->counts.size = sizeof(r->counts);
    r->tokens.row_bytes = r->rows.row_bytes = r->sums.row_bytes = ROW_BYTES;
    must(tern_stream_open(r->comm, &r->stream)); /* ranks on one GPU may not share its default stream */
    for (int t = 0; t < TOKENS; t++) {
        for (int k = 0; k < TOPK; k++) {
            experts[t][k] = gate_expert(r->me, t, k);
            weights[t][k] = gate_weight(t, k);
        }
        for (int i = 0; i < HIDDEN; i++) {
            tokens[t][i] = token_at(r->me, t, i);
        }
    }
    r->tokens.data = put(r->comm, tokens, sizeof(tokens));
    r->sums.data = take(r->comm, TERN_MEMORY_DEVICE, sizeof(tokens));
    r->weights = (float *)put(r->comm, weights, sizeof(weights));
    r->experts = put(r->comm, experts, sizeof(experts));
}

static void route(struct rank *r)
{
    struct tern_route_args args = {.size = sizeof(args),
                                   .topk_idx = r->experts,
                                   .num_tokens = TOKENS,
                                   .topk = TOPK,
                                   .layout = TERN_LAYOUT_EXPERT};
    must(tern_route_open(r->ep, &args, r->stream, &r->route));
}

static void dispatch(struct rank *r)
{
    struct tern_dispatch_args args = {.size = sizeof(args), .in = &r->tokens, .out = &r->rows, .num_in = 1};
    must(tern_route_wait(r->route, &r->counts));
    r->rows.data = take(r->comm, TERN_MEMORY_WINDOW, r->counts.num_rows * ROW_BYTES);
    r->row_weights = (float *)take(r->comm, TERN_MEMORY_WINDOW, r->counts.num_rows * sizeof(float));
    args.out_rows = r->counts.num_rows;
    args.topk_weights = r->weights;
    args.out_topk_weights = r->row_weights;
    must(tern_dispatch(r->route, &args, r->stream));
}

/* In a model: two grouped matrix multiplications on the device. Here: a loop over a copy of the rows. */
static void run_experts(struct rank *r)
{
    size_t num = r->counts.num_rows;
    uint16_t *rows = (uint16_t *)malloc(num * ROW_BYTES + 1);
    float *weights = (float *)malloc(num * sizeof(float) + 1);
    must(tern_ep_synchronize(r->ep));
    copy(r->comm, rows, r->rows.data, num * ROW_BYTES);
    copy(r->comm, weights, r->row_weights, num * sizeof(float));
    for (int e = 0; e < SHARE; e++) {
        int begin = r->counts.expert_offsets[e], end = begin + r->counts.expert_counts[e];
        for (int i = begin * HIDDEN; i < end * HIDDEN; i++) {
            rows[i] = expert(r->me * SHARE + e, weights[i / HIDDEN], rows[i]);
        }
    }
    copy(r->comm, r->rows.data, rows, num * ROW_BYTES);
    free(weights);
    free(rows);
}

static void combine(struct rank *r)
{
    struct tern_combine_args args = {.size = sizeof(args), .in = r->rows, .out = r->sums};
    args.in_rows = r->counts.num_rows;
    must(tern_combine(r->route, &args, r->stream));
}

/* Elements that differ from the dense layer. */
static int compare(struct rank *r)
{
    uint16_t sums[TOKENS * HIDDEN];
    int wrong = 0;
    must(tern_ep_synchronize(r->ep));
    copy(r->comm, sums, r->sums.data, sizeof(sums));
    for (int i = 0; i < TOKENS * HIDDEN; i++) {
        uint16_t x = token_at(r->me, i / HIDDEN, i % HIDDEN);
        float sum = 0;
        for (int k = 0; k < TOPK; k++) {
            sum += bf16_value(expert(gate_expert(r->me, i / HIDDEN, k), gate_weight(i / HIDDEN, k), x));
        }
        wrong += sums[i] != bf16(sum);
    }
    return wrong;
}

int main(void)
{
    void (*const steps[5])(struct rank *) = {prepare, route, dispatch, run_experts, combine};
    struct tern_ep_config config = ep_config(EXPERTS, TOPK, TOKENS, ROW_BYTES);
    struct tern_comm *comms[RANKS];
    struct tern_ep *eps[RANKS];
    static struct rank ranks[RANKS]; /* zeroed */
    int wrong = 0, each[RANKS], first, here = open_ranks(RANKS, &config, comms, eps, &first);
    for (int i = 0; i < here; i++) {
        ranks[i].me = first + i;
        ranks[i].comm = comms[i];
        ranks[i].ep = eps[i];
    }
    for (int i = 0; i < 5 * here; i++) { /* a step of every rank, then the next step */
        steps[i / here](&ranks[i % here]);
    }
    for (int i = 0; i < here; i++) {
        wrong += compare(&ranks[i]);
    }
    if (here < RANKS) { /* a process knows its own tokens only */
        must(tern_comm_allgather(comms[0], &wrong, each, sizeof(wrong)));
        wrong = each[0] + each[1] + each[2] + each[3];
    }
    if (first == 0) {
        printf("moe layer on %d ranks: %d of %d elements wrong\n", RANKS, wrong, RANKS * TOKENS * HIDDEN);
    }
    for (int i = 0; i < here; i++) {
        tern_route_close(ranks[i].route);
        tern_ep_close(eps[i]);
        tern_stream_close(comms[i], ranks[i].stream);
        tern_comm_close(comms[i]);
    }
    return wrong == 0 ? 0 : 1;
}
