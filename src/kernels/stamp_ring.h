/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels with time stamps leave for their host (stamp.h), and it writes to a file (ep/trace_file.h):
 * a ring of a rank's latest events, in device memory. An event is a block of an operation, from its begin
 * to its end, or a wait for a rank that was not over at the first look. */
#ifndef TERN_STAMP_RING_H
#define TERN_STAMP_RING_H

#include <stdint.h>

enum { STAMP_BLOCK = 0 }; /* what: the block itself; else what a wait was for, OP_AWAIT_* */
/* outcome: the wait is over because it came; or it ended without, by a fault, a mask, or other news. */
enum { STAMP_CAME = 0, STAMP_WITHOUT = 1 };

struct stamp_event {
    uint64_t begin, end; /* ns of clock_ns */
    uint32_t number;     /* among the ring's events, from 1; another one: the slot was being written */
    uint32_t epoch;      /* of the operation; of low latency in its lane */
    int16_t peer;        /* whom a wait was for, of the communicator; -1: nobody */
    uint16_t block;
    uint8_t operation; /* enum tern_operation */
    uint8_t what, outcome;
    uint8_t lane; /* of low latency; else 0 */
};

struct stamp_ring {
    uint64_t claimed;  /* events, ever; the latest `capacity` are here */
    uint64_t capacity; /* a power of two */
    uint64_t reserved[2];
    /* struct stamp_event [capacity] */
};

#endif
