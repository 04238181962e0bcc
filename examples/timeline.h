/* SPDX-License-Identifier: Apache-2.0
 *
 * A schedule of steps for two micro-batches, with an event before, between and after them, and its picture in
 * bars of text: when each step ran, one row a batch. */
#ifndef TERN_TIMELINE_H
#define TERN_TIMELINE_H

#include "example.h"

enum { TIMELINE_COLUMNS = 100, MOST_STEPS = 32 };

struct step {
    char letter; /* what is done, and its bar */
    int batch;   /* 0 or 1 */
    uint32_t phase;
};
struct schedule {
    int num;
    struct step steps[MOST_STEPS];
};

static inline void add(struct schedule *s, char letter, int batch, uint32_t phase)
{
    s->steps[s->num].letter = letter;
    s->steps[s->num].batch = batch;
    s->steps[s->num++].phase = phase;
}

static inline float elapsed(struct tern_comm *comm, struct tern_event *begin, struct tern_event *end)
{
    float milliseconds;
    must(tern_event_elapsed(comm, begin, end, &milliseconds));
    return milliseconds;
}

/* Milliseconds that the steps of this letter took on average; step i lies between events i and i + 1. */
static inline float step_time(const struct schedule *s, struct tern_comm *comm, struct tern_event **events,
                              char letter)
{
    float sum = 0, num = 0;
    for (int i = 0; i < s->num; i++) {
        if (s->steps[i].letter == letter) {
            sum += elapsed(comm, events[i], events[i + 1]);
            num++;
        }
    }
    return sum / num;
}

/* Columns from begin to end, as parts of the whole; at least one. */
static inline void timeline_bar(char *row, char letter, float begin, float end)
{
    int first = (int)(begin * TIMELINE_COLUMNS), last = (int)(end * TIMELINE_COLUMNS);
    first = first < TIMELINE_COLUMNS ? first : TIMELINE_COLUMNS - 1;
    for (int c = first; c == first || (c < last && c < TIMELINE_COLUMNS); c++) {
        row[c] = letter;
    }
}

static inline void timeline_legend(struct tern_comm *comm, const char *stand_in)
{
    printf("a attention, D dispatch, e experts, C combine (%s stand in for a and e), - peers' rows awaited, "
           "blank: the device is at the other batch, or done\n",
           stand_in);
    if (tern_comm_machine(comm) == TERN_MACHINE_CPU) {
        printf("caution: on the cpu machine all ranks' kernels and copies share its cores: these times say "
               "nothing of overlap\n");
    }
}

/* `whole` milliseconds fill the columns. Between a batch's send phase
 * and its next step, the receive phase, it awaits its peers' rows: '-'. */
static inline void timeline_print(const struct schedule *s, struct tern_comm *comm,
                                  struct tern_event **events, float whole)
{
    char rows[2][TIMELINE_COLUMNS + 1];
    float sent[2];
    memset(rows, ' ', sizeof(rows));
    for (int i = 0; i < s->num; i++) {
        const struct step *step = &s->steps[i];
        float begin = elapsed(comm, events[0], events[i]) / whole;
        float end = elapsed(comm, events[0], events[i + 1]) / whole;
        if (step->phase == TERN_LL_RECEIVE) {
            timeline_bar(rows[step->batch], '-', sent[step->batch], begin);
        }
        timeline_bar(rows[step->batch], step->letter, begin, end);
        sent[step->batch] = end;
    }
    for (int b = 0; b < 2; b++) {
        rows[b][TIMELINE_COLUMNS] = 0;
        printf("  %c |%s|\n", 'A' + b, rows[b]);
    }
}

#endif
