/* SPDX-License-Identifier: Apache-2.0
 *
 * Times of `tern-bench ll`: dispatch and combine with an event between them, the pair of them without, phases
 * apart, and each operation in a row. Every figure is of one batch: where lanes go together, their time is
 * divided by their number. */
#include "bench_ll.h"

#include <math.h>

static enum tern_status issue(void *user, int i, int step)
{
    return ll_issue((struct ll_bench *)user, i, step);
}

static enum tern_status synchronize(void *user) { return ll_synchronize((struct ll_bench *)user); }

static void divide(struct stats *s, double by)
{
    s->p10 /= by;
    s->p50 /= by;
    s->p90 /= by;
    s->p99 /= by;
    s->best /= by;
    s->worst /= by;
}

/* The units one after the other in rounds, with an event between them. */
static enum tern_status time_units(struct rounds *r, const struct options *o, const int *units, int num_units,
                                   struct ll_timing *timing)
{
    struct stats stats[ROUNDS_MAX_STEPS + 1];
    TERN_TRY(rounds_warm_up(r, units, num_units, o->warmup));
    TERN_TRY(rounds_alone(r, units, num_units, o->iters, stats));
    for (int k = 0; k < num_units; k++) {
        divide(&stats[k], o->ll.lanes);
        timing->alone[units[k]] = stats[k];
    }
    return TERN_OK;
}

static enum tern_status time_in_a_row(struct rounds *r, const struct options *o, int unit, double *us)
{
    TERN_TRY(rounds_in_a_row(r, o->ll.graph ? UNIT_MANY + unit : unit, o->ll.graph ? ROUNDS_IN_A_ROW : 1,
                             o->iters, us));
    *us /= o->ll.lanes;
    return TERN_OK;
}

static enum tern_status time_all(struct rounds *r, void *result)
{
    const struct options *o = ((struct ll_bench *)r->user)->shape.options;
    struct ll_timing *timing = (struct ll_timing *)result;
    static const int whole[] = {UNIT_DISPATCH, UNIT_COMBINE}, pair[] = {UNIT_PAIR};
    static const int phases[] = {UNIT_DISPATCH_SEND, UNIT_DISPATCH_RECEIVE, UNIT_COMBINE_SEND,
                                 UNIT_COMBINE_RECEIVE};
    TERN_TRY(time_units(r, o, whole, 2, timing));
    TERN_TRY(time_units(r, o, pair, 1, timing));
    if (o->ll.hook) {
        TERN_TRY(time_units(r, o, phases, 4, timing));
    }
    for (int unit = 0; unit < NUM_UNITS; unit++) {
        timing->in_a_row[unit] = NAN;
        if (unit <= UNIT_PAIR) {
            TERN_TRY(time_in_a_row(r, o, unit, &timing->in_a_row[unit]));
        }
    }
    return TERN_OK;
}

enum tern_status ll_time(struct ll_bench *b, struct ll_timing *timing)
{
    struct rounds r = {b->party, b->progress, issue, synchronize, b, {{NULL}}};
    TERN_TRY(rounds_run(&r, time_all, timing));
    timing->waited[LL_OP_DISPATCH] = timing->waited[LL_OP_COMBINE] = NAN;
    return b->shape.options->ll.statistics ? ll_time_waits(b, timing->waited) : TERN_OK;
}
