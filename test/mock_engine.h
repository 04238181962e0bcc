/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine that does what a test says: it takes operations or puts them off, completes them in any order, in
 * error or never, and looks that the proxy keeps the order that engines do not. */
#ifndef TERN_TEST_MOCK_ENGINE_H
#define TERN_TEST_MOCK_ENGINE_H

#include "net/engine.h"

#include <pthread.h>

enum { MOCK_MAX_OPS = 256 };

/* What it saw. */
struct mock_seen {
    int num_taken, num_completed, num_rests, num_drops;
    int order_broken; /* an atomic came while earlier puts or gets of its ring were out */
    uint64_t longest; /* bytes of an operation */
};

struct mock_engine {
    struct engine base;
    pthread_mutex_t lock;
    /* Set by the test, under the lock. */
    int takes;          /* operations that it takes before it puts off; -1: all */
    int completes;      /* likewise that it completes */
    int backwards;      /* the latest first */
    int refuses_one_in; /* puts off at random; 0: never */
    uint32_t syndrome;  /* of the next completion */
    int silent_peer;    /* completes nothing of this one; -1: none */
    int heard_peer;     /* bytes of this one come all the time; -1: of none */
    uint32_t absent;    /* a bit for each peer that is not connected */
    struct mock_seen seen;
    int num_out;
    uint64_t random;
    struct engine_op *out[MOCK_MAX_OPS]; /* in order of posting */
};

struct mock_engine *mock_engine_new(int rank, int num_ranks);
/* The thread sees it at its next poll. */
void mock_engine_set(struct mock_engine *m, int takes, int completes);
struct mock_seen mock_engine_look(struct mock_engine *m);

#endif
