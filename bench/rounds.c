/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops of rounds.h. */
#include "rounds.h"

#include <stdlib.h>
#include <string.h>

static enum tern_status open_events(struct rounds *r)
{
    for (int i = 0; i < r->party->num_local; i++) {
        for (int k = 0; k < ROUNDS_EVENTS; k++) {
            TERN_TRY(tern_event_open(r->party->comms[i], &r->events[i][k]));
        }
    }
    return TERN_OK;
}

enum tern_status rounds_run(struct rounds *r, enum tern_status (*work)(struct rounds *r, void *result),
                            void *result)
{
    memset(r->events, 0, sizeof(r->events));
    enum tern_status status = open_events(r);
    if (status == TERN_OK) {
        status = work(r, result);
    }
    for (int i = 0; i < r->party->num_local; i++) {
        for (int k = 0; k < ROUNDS_EVENTS; k++) {
            tern_event_close(r->party->comms[i], r->events[i][k]);
        }
    }
    return status;
}

/* On every local rank. */
static enum tern_status record(struct rounds *r, int event)
{
    for (int i = 0; i < r->party->num_local; i++) {
        TERN_TRY(tern_event_record(r->party->comms[i], r->events[i][event], r->party->streams[i]));
    }
    return TERN_OK;
}

static enum tern_status issue(struct rounds *r, int step)
{
    for (int i = 0; i < r->party->num_local; i++) {
        TERN_TRY(r->issue(r->user, i, step));
    }
    return TERN_OK;
}

/* One chain of so many rounds on every local rank, with an event behind every step. */
static enum tern_status issue_chain(struct rounds *r, const int *steps, int num_steps, int rounds)
{
    TERN_TRY(record(r, 0));
    for (int round = 0; round < rounds; round++) {
        for (int k = 0; k < num_steps; k++) {
            for (int i = 0; i < r->party->num_local; i++) {
                struct tern_event *event = r->events[i][round * num_steps + k + 1];
                TERN_TRY(r->issue(r->user, i, steps[k]));
                TERN_TRY(tern_event_record(r->party->comms[i], event, r->party->streams[i]));
            }
        }
    }
    return r->synchronize(r->user);
}

/* The slowest rank's microseconds between two events. */
static enum tern_status slowest(struct rounds *r, int begin, int end, double *us)
{
    float local[TERN_MAX_RANKS], all[TERN_MAX_RANKS], most = 0;
    for (int i = 0; i < r->party->num_local; i++) {
        TERN_TRY(tern_event_elapsed(r->party->comms[i], r->events[i][begin], r->events[i][end], &local[i]));
    }
    TERN_TRY(party_gather(r->party, local, all, sizeof(float)));
    for (int i = 0; i < r->party->num_ranks; i++) {
        most = all[i] > most ? all[i] : most;
    }
    *us = 1e3 * (double)most;
    return TERN_OK;
}

/* times[k * num + n]: iteration n of step k, and of the whole round as step num_steps. */
static enum tern_status time_alone(struct rounds *r, const int *steps, int num_steps, uint32_t num,
                                   double *times)
{
    uint32_t n = 0;
    while (n < num) {
        int rounds = num - n < ROUNDS_A_CHAIN - 1 ? (int)(num - n) + 1 : (int)ROUNDS_A_CHAIN;
        progress_step(r->progress, "chain", n, num);
        TERN_TRY(party_barrier(r->party));
        TERN_TRY(issue_chain(r, steps, num_steps, rounds));
        for (int round = 1; round < rounds; round++, n++) {
            int first = round * num_steps;
            for (int k = 0; k < num_steps; k++) {
                TERN_TRY(slowest(r, first + k, first + k + 1, &times[(uint32_t)k * num + n]));
            }
            TERN_TRY(slowest(r, first, first + num_steps, &times[(uint32_t)num_steps * num + n]));
        }
    }
    return TERN_OK;
}

enum tern_status rounds_alone(struct rounds *r, const int *steps, int num_steps, uint32_t num,
                              struct stats *stats)
{
    double *times = (double *)calloc((size_t)num * ((size_t)num_steps + 1), sizeof(*times));
    if (!times) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for the times of %u iterations", num);
    }
    enum tern_status status = time_alone(r, steps, num_steps, num, times);
    for (int k = 0; status == TERN_OK && k <= num_steps; k++) {
        stats[k] = stats_of(times + (size_t)k * num, num);
    }
    progress_clear(r->progress);
    free(times);
    return status;
}

static enum tern_status sample_in_a_row(struct rounds *r, int step, uint32_t repeats, double *us)
{
    TERN_TRY(party_barrier(r->party));
    TERN_TRY(issue(r, step)); /* the first is before the clock starts */
    TERN_TRY(record(r, 0));
    for (uint32_t n = 0; n < repeats; n++) {
        TERN_TRY(issue(r, step));
    }
    TERN_TRY(record(r, 1));
    TERN_TRY(r->synchronize(r->user));
    TERN_TRY(slowest(r, 0, 1, us));
    *us /= repeats;
    return TERN_OK;
}

enum tern_status rounds_in_a_row(struct rounds *r, int step, uint32_t times, uint32_t num, double *us)
{
    uint32_t most = num < ROUNDS_IN_A_ROW ? num : (uint32_t)ROUNDS_IN_A_ROW;
    uint32_t repeats = (most + times - 1) / times;
    uint32_t samples = num < ROUNDS_SAMPLES ? 1 : (uint32_t)ROUNDS_SAMPLES;
    double seen[ROUNDS_SAMPLES];
    for (uint32_t k = 0; k < samples; k++) {
        progress_step(r->progress, "in a row", k, samples);
        TERN_TRY(sample_in_a_row(r, step, repeats, &seen[k]));
    }
    progress_clear(r->progress);
    *us = stats_of(seen, samples).p50 / times;
    return TERN_OK;
}

enum tern_status rounds_warm_up(struct rounds *r, const int *steps, int num_steps, uint32_t num)
{
    for (uint32_t n = 0; n < num; n++) {
        for (int k = 0; k < num_steps; k++) {
            TERN_TRY(issue(r, steps[k]));
        }
        TERN_TRY(r->synchronize(r->user)); /* bounds what is queued on one device by one thread */
    }
    return TERN_OK;
}
