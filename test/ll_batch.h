/* SPDX-License-Identifier: Apache-2.0
 *
 * A low-latency batch under test: the ids and weights of a struct batch, and the tensors of one dispatch and
 * one combine in one lane. What "experts" make of the slab is drawn, not computed. */
#ifndef TERN_TEST_LL_BATCH_H
#define TERN_TEST_LL_BATCH_H

#include "batch.h"

struct ll_shape {
    struct batch_shape batch; /* layout and alignment stay 0; equal_tokens 1: ranks then draw fewer */
    uint32_t lane, hidden, cast, weights, compression;
    uint32_t layout; /* enum tern_ll_layout; by rank, some ranks give weights and some do not */
    int strided, wild;
    int railed; /* with ll_rail: the reference adds as the world's domains do */
};

struct ll_member {
    struct place in, out, scales, counts, ranges, source, local, local_weights, sums, made, home, mask;
    int weighted; /* by rank: gives weights */
    int64_t in_stride, home_stride;
    uint32_t num_sms;
};

struct ll_batch {
    struct ll_shape shape;
    struct batch batch;
    struct tern_ep **eps;
    struct ref_ll ref;
    struct ll_member *ranks;
    unsigned char masked[TERN_MAX_RANKS];
};

/* `eps` may still be closed. */
void ll_batch_init(struct ll_batch *b, struct world *w, struct tern_ep **eps, const struct ll_shape *shape,
                   struct rng *r);
/* New numbers of tokens, ids, weights and rows in the images; outputs poisoned. */
void ll_batch_redraw(struct ll_batch *b, int routing, struct rng *r);
/* The same ranks keep their numbers of tokens: what a captured graph allows. */
void ll_batch_redraw_ids(struct ll_batch *b, int routing, struct rng *r);
void ll_batch_fini(struct ll_batch *b);
struct tern_ll_dispatch_args ll_dispatch_args(const struct ll_batch *b, int rank, int device);
struct tern_ll_combine_args ll_combine_args(const struct ll_batch *b, int rank, int device);
/* On all local ranks, on that lane of the world; `phase` is an enum tern_ll_phase. */
int ll_dispatch_issue(struct ll_batch *b, uint32_t phase, int lane);
int ll_combine_issue(struct ll_batch *b, uint32_t phase, int lane);
/* Masks these ranks on all ranks, or takes them in again, in stream order; then the ranks tell whom they have
 * masked, which goes into the images. What is expected of a dispatch changes with ll_expect_masks. */
int ll_mask_issue(struct ll_batch *b, const unsigned char *masked, int lane);
/* The reference leaves them out too, from the dispatch on or, `combine`, from the combine on. */
void ll_expect_masks(struct ll_batch *b, const unsigned char *masked, int combine);
/* Outputs into the images. */
void ll_expect_dispatch(struct ll_batch *b);
void ll_expect_combine(struct ll_batch *b);
/* What an object needs for this shape, beside what it has for high throughput. */
void ll_config_add(struct tern_ep_config *config, const struct ll_shape *shape, uint32_t lanes);

#endif
