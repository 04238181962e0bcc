/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels of the tests do with rings (ring_kernel.c): each thread goes through a list of steps that the
 * host wrote, and says how each went. */
#ifndef TERN_TEST_RING_STEPS_H
#define TERN_TEST_RING_STEPS_H

#include "net/ring.h"

enum ring_step_kind {
    STEP_NOTHING,
    STEP_PUT,
    STEP_PUT_INLINE,
    STEP_GET,
    STEP_ATOMIC,
    STEP_FETCH, /* the old value to `local` */
    STEP_SIGNAL,
    STEP_PUT_SIGNAL, /* signal word: `compare` */
    STEP_FLUSH,      /* this thread's latest request, which was on that ring */
    STEP_FLUSH_ALL,  /* whatever anybody posted there */
    STEP_AWAIT,      /* until the local word is at least `value` */
    STEP_FILL        /* `bytes` of byte `value` at `local` */
};

struct ring_step {
    uint32_t kind, ring; /* index into the rings */
    uint64_t remote;
    char *local;
    uint64_t bytes, value, compare;
    uint32_t amo, width;
    uint64_t ticket; /* of a request */
    uint32_t end;    /* of a wait: status of net_wait.h */
    uint32_t unused;
};

struct ring_steps_args {
    const struct net_ring *rings;
    struct ring_step *steps; /* [threads of the grid][num_steps] */
    uint32_t num_steps;
    uint64_t timeout_ns; /* of a wait */
};

#ifndef __CUDACC__
void tern_cpu_ring_steps(const void *args);
#else
#define TERN_THREADS_ring_steps 256
#endif

#endif
