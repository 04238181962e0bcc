/* SPDX-License-Identifier: Apache-2.0
 *
 * What the threads of a test kernel do with queue pairs: lists of steps, one list a thread. */
#ifndef TERN_TEST_QUEUE_STEPS_H
#define TERN_TEST_QUEUE_STEPS_H

#include "net/queue_near.h"

enum step_kind {
    STEP_NOTHING,
    STEP_PUT,
    STEP_PUT_INLINE,
    STEP_GET,
    STEP_ATOMIC,
    STEP_FETCH,
    STEP_SIGNAL,
    STEP_PUT_SIGNAL,
    STEP_PUT_IMM,   /* with `value` as immediate data */
    STEP_FLUSH,     /* the last ticket of this thread */
    STEP_FLUSH_ALL, /* of all queues */
    STEP_POLL,      /* one look; `old` is what has been consumed then */
    STEP_FILL,      /* `bytes` at local with the pattern of `value` */
    STEP_EXPECT,    /* that this is what is there; `old` counts the bytes that differ */
    STEP_AWAIT,     /* the word at local is at least `value` */
    STEP_STORE,     /* `value` into the word at local */
    STEP_KINDS
};

enum { STEP_NOT_NEAR, STEP_NEAR, STEP_WAS_NEAR };

struct queue_step {
    uint32_t kind, queue;
    uint64_t remote, local, bytes;
    uint32_t amo, width;
    uint64_t value, compare;
    uint64_t signal; /* STEP_PUT_SIGNAL: its word */
    uint32_t near; /* likewise: STEP_NEAR, by what is at hand (queue_near.h); out: whether that was enough */
    /* Out. */
    uint64_t ticket, old;
    uint32_t status;
};

struct queue_drive_args {
    const struct net_queue *queues;
    uint32_t num_queues;
    uint32_t num_steps; /* of a thread */
    struct queue_step *steps;
    uint32_t warp_step;  /* at this one all lanes call queue_put_warp; ~0: never */
    uint64_t timeout_ns; /* of a flush; TERN_NET_NO_DEADLINE */
};

enum { TERN_THREADS_queue_drive = 256 };
void tern_cpu_queue_drive(const void *args);

TERN_DEVICE unsigned char step_pattern(uint64_t value, uint64_t i)
{
    return (unsigned char)((value * 0x9e3779b97f4a7c15ull + i * 0x2545f4914f6cdd1dull) >> 56);
}

#endif
