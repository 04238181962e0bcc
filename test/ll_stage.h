/* SPDX-License-Identifier: Apache-2.0
 *
 * A scene for tests of low latency: four ranks, a batch of low latency in each of four lanes, every batch of
 * another form, and beside them the operations of one route. */
#ifndef TERN_TEST_LL_STAGE_H
#define TERN_TEST_LL_STAGE_H

#include "ll_batch.h"
#include "scene.h"

/* Batch i is in lane i. */
enum { STAGE_RANKS = 4, STAGE_BATCHES = 4, STAGE_BY_RANK = 3, STAGE_TOKENS = 20, STAGE_FEW = 7 };

/* How ranks are cut into domains, if they are, by twos or each by itself, and what reaches other domains'
 * memory: loads and stores, the proxy, where nobody can address it, or NICs in software. */
enum stage_cut {
    STAGE_WHOLE,
    STAGE_CUT,
    STAGE_BY_PROXY,
    STAGE_BY_NIC,
    STAGE_EACH_BY_PROXY,
    STAGE_EACH_BY_NIC
};

struct ll_stage {
    struct scene scene;
    struct ll_batch batches[STAGE_BATCHES];
};

/* Opens a stage, calls the body, closes the stage. */
int ll_stage_run(struct test *t, int (*body)(struct ll_stage *), uint32_t timeout_ms);
/* With STAGE_FEW tokens at most in all lanes but 2: their rows go in words. */
int ll_stage_run_few(struct test *t, int (*body)(struct ll_stage *), uint32_t timeout_ms);
/* With ll_mask; the cpu machine works while the host does something else. */
int ll_stage_run_masked(struct test *t, int (*body)(struct ll_stage *), uint32_t timeout_ms);
/* As cut, with ll_mask or without. */
int ll_stage_run_cut(struct test *t, int (*body)(struct ll_stage *), uint32_t timeout_ms, int masked,
                     enum stage_cut cut);
/* Likewise, railed. */
int ll_stage_run_railed(struct test *t, int (*body)(struct ll_stage *), uint32_t timeout_ms,
                        enum stage_cut cut);

/* Draws all inputs and outputs anew; uploads nothing. */
void ll_stage_redraw(struct ll_stage *x);
/* Issues all phases of all lanes in a random order, on random streams, with a route, a dispatch and a combine
 * anywhere between them; nothing waits for the host. */
int ll_stage_shuffle(struct ll_stage *x);
/* Waits for all of it and compares it with the reference. */
int ll_stage_judge(struct ll_stage *x, const char *step);
/* A body for the above: some rounds of both, with all objects reset between. */
int ll_stage_in_flight(struct ll_stage *x);
/* After a fault: a reset, and then all of it again, right. */
int ll_stage_recover(struct ll_stage *x);

/* One phase of one operation (TERN_OP_LL_DISPATCH or TERN_OP_LL_COMBINE) on one rank; what the call
 * returns. */
int ll_stage_issue_for(struct ll_stage *x, int lane, int operation, uint32_t phase, int rank);
/* A phase of an operation, or both, on the rank that the others have given up. It hears of it from another
 * rank: then, or, if it has all that it needs before the verdict has come to it, in what it does next. */
int ll_stage_hear(struct ll_stage *x, int lane, int operation, uint32_t phase, int rank);

#endif
