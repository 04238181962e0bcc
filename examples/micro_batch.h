/* SPDX-License-Identifier: Apache-2.0
 *
 * The ranks of 04_overlap and their micro-batches: tokens, gate, buffers, and what the layers make of them
 * when they are computed densely. Attention and experts give back what they get, so that a layer is x = the
 * sum of weight * x over the gate's choices, in FP32, rounded to BF16. */
#ifndef TERN_MICRO_BATCH_H
#define TERN_MICRO_BATCH_H

#include "stand_in.h"
#include "timeline.h"

enum { RANKS = 2, EXPERTS = 8, TOPK = 2, TOKENS = 16, HIDDEN = 256, ROW_BYTES = 2 * HIDDEN };
enum { SLAB_ROWS = EXPERTS / RANKS * RANKS * TOKENS };
enum { SCHEDULES = 3 };

struct batch {
    int rank, number;
    void *tokens, *ids, *state; /* state: of the tokens, layer after layer */
    void *hidden;               /* what attention makes of it, for dispatch */
    void *slab, *results;       /* experts read one and write the other */
    float *weights;
    int32_t *counts; /* rows of each local expert */
};

struct rank {
    struct tern_comm *comm;
    struct tern_ep *ep;
    struct tern_stream *stream;
    struct stand_in work;
    struct batch batches[2];
    struct tern_event *events[SCHEDULES][MOST_STEPS + 1];
};

static inline uint16_t token_at(const struct batch *b, int t, int i)
{
    return bf16((float)((b->rank * 7 + b->number * 5 + t * 3 + i) % 32 - 16));
}

static inline int64_t gate_expert(const struct batch *b, int t, int k)
{
    return (b->rank + b->number + t * 5 + k * 3) % EXPERTS;
}

static inline float gate_weight(int t, int k) { return 0.25f + (float)((t + 2 * k) % 5) / 8; }

static inline void batch_open(struct batch *b, struct tern_comm *comm, int rank, int number)
{
    static uint16_t tokens[TOKENS][HIDDEN];
    int64_t ids[TOKENS][TOPK];
    float weights[TOKENS][TOPK];
    b->rank = rank;
    b->number = number;
    for (int t = 0; t < TOKENS; t++) {
        for (int k = 0; k < TOPK; k++) {
            ids[t][k] = gate_expert(b, t, k);
            weights[t][k] = gate_weight(t, k);
        }
        for (int i = 0; i < HIDDEN; i++) {
            tokens[t][i] = token_at(b, t, i);
        }
    }
    b->tokens = put(comm, tokens, sizeof(tokens));
    b->ids = put(comm, ids, sizeof(ids));
    b->weights = (float *)put(comm, weights, sizeof(weights));
    b->state = take(comm, TERN_MEMORY_DEVICE, sizeof(tokens));
    b->hidden = take(comm, TERN_MEMORY_DEVICE, sizeof(tokens));
    b->slab = take(comm, TERN_MEMORY_DEVICE, (size_t)SLAB_ROWS * ROW_BYTES);
    b->results = take(comm, TERN_MEMORY_DEVICE, (size_t)SLAB_ROWS * ROW_BYTES);
    b->counts = (int32_t *)take(comm, TERN_MEMORY_DEVICE, EXPERTS / RANKS * sizeof(int32_t));
}

static inline int batch_compare(const struct batch *b, struct tern_comm *comm, int layers)
{
    static uint16_t state[TOKENS][HIDDEN];
    int wrong = 0;
    copy(comm, state, b->state, sizeof(state));
    for (int i = 0; i < TOKENS * HIDDEN; i++) {
        int t = i / HIDDEN;
        uint16_t x = token_at(b, t, i % HIDDEN);
        for (int layer = 0; layer < layers; layer++) {
            float sum = 0;
            for (int k = 0; k < TOPK; k++) {
                sum += gate_weight(t, k) * bf16_value(x);
            }
            x = bf16(sum);
        }
        wrong += state[t][i % HIDDEN] != x;
    }
    return wrong;
}

static inline void rank_open(struct rank *r, struct tern_comm *comm, struct tern_ep *ep, int rank)
{
    r->comm = comm;
    r->ep = ep;
    must(tern_stream_open(comm, &r->stream));
    stand_in_open(&r->work, comm, HIDDEN, r->stream);
    for (int b = 0; b < 2; b++) {
        batch_open(&r->batches[b], comm, rank, b);
    }
    for (int i = 0; i < SCHEDULES * (MOST_STEPS + 1); i++) {
        must(tern_event_open(comm, &r->events[i / (MOST_STEPS + 1)][i % (MOST_STEPS + 1)]));
    }
}

/* The tokens again, and NaN where experts read and write: nothing right is left over from before. */
static inline void rank_restart(struct rank *r)
{
    for (int i = 0; i < 2; i++) {
        struct batch *b = &r->batches[i];
        must(tern_fill(r->comm, b->slab, 0xff, (size_t)SLAB_ROWS * ROW_BYTES, r->stream));
        must(tern_fill(r->comm, b->results, 0xff, (size_t)SLAB_ROWS * ROW_BYTES, r->stream));
        must(tern_copy(r->comm, b->state, b->tokens, TOKENS * ROW_BYTES, r->stream));
    }
    must(tern_stream_synchronize(r->comm, r->stream));
}

/* When all that was issued is done: elements that differ from `layers` dense layers. */
static inline int rank_compare(struct rank *r, int layers)
{
    must(tern_ep_synchronize(r->ep));
    must(tern_stream_synchronize(r->comm, r->stream));
    return batch_compare(&r->batches[0], r->comm, layers) + batch_compare(&r->batches[1], r->comm, layers);
}

static inline void rank_close(struct rank *r)
{
    for (int i = 0; i < SCHEDULES * (MOST_STEPS + 1); i++) {
        tern_event_close(r->comm, r->events[i / (MOST_STEPS + 1)][i % (MOST_STEPS + 1)]);
    }
    stand_in_close(&r->work, r->stream);
    tern_ep_close(r->ep);
    tern_stream_close(r->comm, r->stream);
    tern_comm_close(r->comm);
}

#endif
