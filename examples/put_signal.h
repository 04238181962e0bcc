/* SPDX-License-Identifier: Apache-2.0
 *
 * What host and kernel of 06_put_signal.c share. */
#ifndef TERN_PUT_SIGNAL_H
#define TERN_PUT_SIGNAL_H

#include "tern/tern.h"

enum { NUMBERS = 1000 };

/* One step of rank r: its row goes to the next rank, the row of the one before comes, both are added. */
struct ring_args {
    struct tern_net net;
    uint64_t step;   /* from 1 */
    float *row;      /* [NUMBERS], this rank's */
    float *inbox;    /* [NUMBERS] in a window: where the rank before puts its row */
    uint64_t *flag;  /* in a window: the step whose row is in the inbox */
    float *sum;      /* [NUMBERS] */
    int32_t *status; /* enum tern_status of the wait */
};

#endif
