/* SPDX-License-Identifier: Apache-2.0
 *
 * Times of `tern-bench ep`: route, dispatch and combine in rounds, then each of them in a row. */
#include "bench_ep.h"

static enum tern_status issue(void *user, int i, int step)
{
    struct bench *b = (struct bench *)user;
    return bench_issue(&b->seats[i], (enum operation)step);
}

static enum tern_status synchronize(void *user) { return bench_synchronize((struct bench *)user); }

static enum tern_status time_all(struct rounds *r, void *result)
{
    const struct options *o = ((struct bench *)r->user)->shape.options;
    struct timing *timing = (struct timing *)result;
    static const int steps[NUM_OPERATIONS] = {OP_ROUTE, OP_DISPATCH, OP_COMBINE};
    TERN_TRY(rounds_warm_up(r, steps, NUM_OPERATIONS, o->warmup));
    TERN_TRY(rounds_alone(r, steps, NUM_OPERATIONS, o->iters, timing->alone));
    for (int op = 0; op < NUM_OPERATIONS; op++) {
        TERN_TRY(rounds_in_a_row(r, steps[op], 1, o->iters, &timing->in_a_row[op]));
    }
    return TERN_OK;
}

enum tern_status bench_time(struct bench *b, struct timing *timing)
{
    struct rounds r = {b->party, b->progress, issue, synchronize, b, {{NULL}}};
    return rounds_run(&r, time_all, timing);
}
