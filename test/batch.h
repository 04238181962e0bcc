/* SPDX-License-Identifier: Apache-2.0
 *
 * One batch of tokens under test: its ids and weights on every rank, what the reference says of it, and its
 * route on every local rank; and the operations on it. An operation is prepared (its buffers taken), filled
 * (random inputs, poisoned outputs), issued on all local ranks, and expected (the reference does it to the
 * images); then world_verify judges. */
#ifndef TERN_TEST_BATCH_H
#define TERN_TEST_BATCH_H

#include "world.h"

/* How ids are drawn. */
enum routing {
    ROUTING_UNIFORM,
    ROUTING_MIXED,
    ROUTING_ONE_EXPERT,
    ROUTING_ONE_RANK,
    ROUTING_NONE,
    NUM_ROUTINGS
};

struct batch_shape {
    uint32_t num_experts, topk, idx_bytes, layout, alignment;
    uint32_t max_tokens; /* ranks draw 0 to this */
    int equal_tokens;    /* every rank has max_tokens */
    int routing;         /* enum routing */
};

struct batch {
    struct world *world;
    struct batch_shape shape;
    struct ref_world ref;
    uint32_t *num_tokens;       /* [num_ranks] */
    int64_t **ids;              /* [num_ranks] */
    struct ref_route *expected; /* [num_ranks] */
    struct place *idx, *weights;
    struct tern_route **routes;
};

void batch_init(struct batch *b, struct world *w, const struct batch_shape *shape, struct rng *r);
/* New ids and weights for the same numbers of tokens; the images change, the devices do not. */
void batch_redraw(struct batch *b, int routing, struct rng *r);
/* After ids were changed by hand: brings images and expectation in line with them. */
void batch_changed(struct batch *b);
void batch_fini(struct batch *b);
struct tern_route_args batch_args(const struct batch *b, int rank);
int batch_open(struct batch *b, struct tern_ep **eps, int lane);
int batch_update(struct batch *b, int lane);
/* Waits for the host's counts on every local rank, and compares. */
int batch_check_counts(struct batch *b);
/* Compares the device's view. */
int batch_check_view(struct batch *b);
void batch_close(struct batch *b);

/* Rows in a buffer. */
struct payload {
    struct place place;
    struct tern_rows rows; /* data is filled in later */
};

/* What one rank gives to a dispatch. */
struct sender {
    struct payload in[TERN_MAX_PAYLOADS], out[TERN_MAX_PAYLOADS + 1];
    uint64_t out_rows;
    struct place out_idx, out_weights, out_source;
    int has_weights;
    uint32_t zero_padding, num_sms;
    struct tern_event *after, *record;
};

struct dispatch {
    struct batch *batch;
    uint32_t cast, num_in, num_out;
    int wild;             /* any BF16 pattern may be drawn */
    struct sender *ranks; /* [num_ranks] */
};

void dispatch_init(struct dispatch *d, struct batch *b, uint32_t cast, uint32_t num_in);
/* Dense rows in and out; what ranks and payloads get beyond that is the caller's to add. */
struct payload payload_take(struct world *w, int rank, int arena, uint64_t rows, uint32_t row_bytes,
                            int64_t row_stride, const char *name);
/* Every rank: one dense payload of row_bytes in, room for capacity rows (0: what the reference counts) in
 * `arena`, and all optional outputs of the layout. */
void dispatch_plain(struct dispatch *d, struct batch *b, uint32_t row_bytes, uint64_t capacity, int arena);
void dispatch_fill(struct dispatch *d, struct rng *r);
/* Poisons the outputs' images. */
void dispatch_poison(struct dispatch *d);
/* Arguments with host (image) or device pointers; `in` and `out` hold what they point at. */
struct tern_dispatch_args dispatch_args(const struct dispatch *d, int rank, int device, struct tern_rows *in,
                                        struct tern_rows *out);
int dispatch_issue_rank(struct dispatch *d, int rank, int lane);
int dispatch_issue(struct dispatch *d, int lane);
void dispatch_expect(struct dispatch *d);
/* Compares the overflow that each local route reports with what the reference had no room for. */
int dispatch_check_overflow(struct dispatch *d);
void dispatch_fini(struct dispatch *d);

/* What one rank gives to a combine. */
struct gatherer {
    struct payload in, out;
    uint64_t in_rows;
    struct place in_weights, out_weights, bias[2];
    uint32_t num_sms;
    struct tern_event *after, *record;
};

struct combine {
    uint32_t copy_engine;
    struct batch *batch;
    int wild;
    struct gatherer *ranks;
};

void combine_init(struct combine *c, struct batch *b);
/* Every rank: dense rows in and out, weights and both biases. capacity as in dispatch_plain. */
void combine_plain(struct combine *c, struct batch *b, uint32_t row_bytes, uint64_t capacity, int arena);
void combine_fill(struct combine *c, struct rng *r);
void combine_poison(struct combine *c);
struct tern_combine_args combine_args(const struct combine *c, int rank, int device);
int combine_issue_rank(struct combine *c, int rank, int lane);
int combine_issue(struct combine *c, int lane);
void combine_expect(struct combine *c);
void combine_fini(struct combine *c);

/* Upload, issue, expect, synchronize, verify. `eps` tells of faults. */
int dispatch_check(struct dispatch *d, struct tern_ep **eps, int lane);
int combine_check(struct combine *c, struct tern_ep **eps, int lane);

#endif
