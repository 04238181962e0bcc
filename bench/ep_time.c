/* SPDX-License-Identifier: Apache-2.0
 *
 * How operations are timed. With the device's own events, on every rank; the slowest rank counts.
 *
 * Alone: rounds of route, dispatch, combine are issued without waiting, with an event between operations.
 * Every operation waits for its peers, so ranks leave one nearly together and begin the next nearly together:
 * what an event pair sees is the operation and not how long the host took to launch other ranks. The first
 * round of a chain absorbs that and is dropped.
 *
 * In a row: many of one operation between two events, divided. This is the period that a model sees when the
 * launch is hidden, and what compares with kernel times. */
#include "bench_ep.h"

#include <stdlib.h>

enum { IN_A_ROW = 16, ROW_SAMPLES = 5 };

static enum tern_status record(struct seat *seat, int event)
{
    return tern_event_record(seat->comm, seat->events[event], seat->stream);
}

/* One chain of so many rounds on every local rank. */
static enum tern_status issue_chain(struct bench *b, int rounds)
{
    int round, i, op;
    for (i = 0; i < b->party->num_local; i++) {
        TERN_TRY(record(&b->seats[i], 0));
    }
    for (round = 0; round < rounds; round++) {
        for (op = 0; op < NUM_OPERATIONS; op++) {
            for (i = 0; i < b->party->num_local; i++) {
                TERN_TRY(bench_issue(&b->seats[i], (enum operation)op));
                TERN_TRY(record(&b->seats[i], round * NUM_OPERATIONS + op + 1));
            }
        }
    }
    return bench_synchronize(b);
}

/* The slowest rank's microseconds between two events. */
static enum tern_status slowest(struct bench *b, int begin, int end, double *us)
{
    float local[TERN_MAX_RANKS], all[TERN_MAX_RANKS], most = 0;
    int i;
    for (i = 0; i < b->party->num_local; i++) {
        struct seat *seat = &b->seats[i];
        TERN_TRY(tern_event_elapsed(seat->comm, seat->events[begin], seat->events[end], &local[i]));
    }
    TERN_TRY(party_gather(b->party, local, all, sizeof(float)));
    for (i = 0; i < b->party->num_ranks; i++) {
        most = all[i] > most ? all[i] : most;
    }
    *us = 1e3 * (double)most;
    return TERN_OK;
}

/* times[op * num + n]: iterations n of each operation and of whole rounds. */
static enum tern_status time_alone(struct bench *b, uint32_t num, double *times)
{
    uint32_t n = 0;
    int round, op;
    while (n < num) {
        int rounds = num - n < CHAIN_ROUNDS - 1 ? (int)(num - n) + 1 : CHAIN_ROUNDS;
        progress_step(b->progress, "chain", n, num);
        TERN_TRY(party_barrier(b->party));
        TERN_TRY(issue_chain(b, rounds));
        for (round = 1; round < rounds; round++, n++) {
            int first = round * NUM_OPERATIONS;
            for (op = 0; op < NUM_OPERATIONS; op++) {
                TERN_TRY(slowest(b, first + op, first + op + 1, &times[(uint32_t)op * num + n]));
            }
            TERN_TRY(slowest(b, first, first + NUM_OPERATIONS, &times[NUM_OPERATIONS * num + n]));
        }
    }
    return TERN_OK;
}

static enum tern_status time_in_a_row(struct bench *b, enum operation op, uint32_t repeats, double *us)
{
    uint32_t k;
    int i;
    TERN_TRY(party_barrier(b->party));
    for (k = 0; k <= repeats; k++) { /* the first is before the clock starts */
        for (i = 0; i < b->party->num_local; i++) {
            TERN_TRY(bench_issue(&b->seats[i], op));
            if (k == 0) {
                TERN_TRY(record(&b->seats[i], 0));
            }
        }
    }
    for (i = 0; i < b->party->num_local; i++) {
        TERN_TRY(record(&b->seats[i], 1));
    }
    TERN_TRY(bench_synchronize(b));
    TERN_TRY(slowest(b, 0, 1, us));
    *us /= repeats;
    return TERN_OK;
}

static enum tern_status warm_up(struct bench *b)
{
    uint32_t n;
    int i, op;
    for (n = 0; n < b->shape.options->warmup; n++) {
        for (op = 0; op < NUM_OPERATIONS; op++) {
            for (i = 0; i < b->party->num_local; i++) {
                TERN_TRY(bench_issue(&b->seats[i], (enum operation)op));
            }
        }
        TERN_TRY(bench_synchronize(b)); /* bounds what is queued on one device by one thread */
    }
    return TERN_OK;
}

enum tern_status bench_time(struct bench *b, struct timing *timing)
{
    uint32_t num = b->shape.options->iters, repeats = num < IN_A_ROW ? num : IN_A_ROW;
    int samples = num < ROW_SAMPLES ? 1 : ROW_SAMPLES, op, k;
    double *times = (double *)calloc((size_t)num * (NUM_OPERATIONS + 1), sizeof(double));
    enum tern_status status = TERN_OK;
    if (times == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for the times of %u iterations", num);
    }
    status = warm_up(b);
    if (status == TERN_OK) {
        status = time_alone(b, num, times);
    }
    for (op = 0; status == TERN_OK && op <= NUM_OPERATIONS; op++) {
        timing->alone[op] = stats_of(times + (size_t)op * num, num);
    }
    for (op = 0; status == TERN_OK && op < NUM_OPERATIONS; op++) {
        double us[ROW_SAMPLES] = {0};
        for (k = 0; status == TERN_OK && k < samples; k++) {
            progress_step(b->progress, "in a row", (uint32_t)(op * samples + k),
                          (uint32_t)(NUM_OPERATIONS * samples));
            status = time_in_a_row(b, (enum operation)op, repeats, &us[k]);
        }
        timing->in_a_row[op] = stats_of(us, (size_t)samples).p50;
    }
    progress_clear(b->progress);
    free(times);
    return status;
}
