/* SPDX-License-Identifier: Apache-2.0
 *
 * How operations are timed: with the device's own events, on every rank; the slowest rank counts. What a step
 * is (one operation, or several without an event in between) is its issuer's business.
 *
 * Alone: rounds of all steps are issued without waiting, with an event between steps. Every operation waits
 * for its peers, so ranks leave one nearly together and begin the next nearly together: what an event pair
 * sees is the operation and not how long the host took to launch other ranks. The first round of a chain
 * absorbs that and is dropped.
 *
 * In a row: the same steps many times between two events, divided. This is the period that a model sees when
 * the launch is hidden, and what compares with kernel times. */
#ifndef TERN_BENCH_ROUNDS_H
#define TERN_BENCH_ROUNDS_H

#include "party.h"
#include "progress.h"
#include "stats.h"

/* Steps of a round at most, rounds of a chain, and the events around them. */
enum { ROUNDS_MAX_STEPS = 8, ROUNDS_A_CHAIN = 6, ROUNDS_EVENTS = ROUNDS_A_CHAIN * ROUNDS_MAX_STEPS + 1 };
/* Repetitions in a row, unless fewer iterations are asked for, and samples of them. */
enum { ROUNDS_IN_A_ROW = 16, ROUNDS_SAMPLES = 5 };

struct rounds {
    struct party *party;
    struct progress *progress;
    /* Local, asynchronous: one step of local rank i, on its stream. */
    enum tern_status (*issue)(void *user, int i, int step);
    /* COLLECTIVE. Until all that was issued has run; a fault of any local rank is returned. */
    enum tern_status (*synchronize)(void *user);
    void *user;
    struct tern_event *events[TERN_MAX_RANKS][ROUNDS_EVENTS]; /* [num_local], during rounds_run */
};

/* Does what the calls below need before and after, and in between work(r, result). */
enum tern_status rounds_run(struct rounds *r, enum tern_status (*work)(struct rounds *r, void *result),
                            void *result);

/* COLLECTIVE, all of them. Rounds of these steps without a clock. */
enum tern_status rounds_warm_up(struct rounds *r, const int *steps, int num_steps, uint32_t num);
/* In microseconds, over `num` rounds: stats[k] of steps[k], stats[num_steps] of the whole round. */
enum tern_status rounds_alone(struct rounds *r, const int *steps, int num_steps, uint32_t num,
                              struct stats *stats);
/* Microseconds of one of the operations of which a step holds `times` in a row, median of the samples that
 * `num` iterations are worth. */
enum tern_status rounds_in_a_row(struct rounds *r, int step, uint32_t times, uint32_t num, double *us);

#endif
