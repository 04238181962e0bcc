/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernel of rail_test and its host share: one operation on the streams of a rank. */
#ifndef TERN_TEST_RAIL_KERNEL_H
#define TERN_TEST_RAIL_KERNEL_H

#include "kernels/rail_args.h"

/* Warps that send or read, and a poster. */
enum { RAIL_TEST_WARPS = 2, RAIL_TEST_THREADS = (RAIL_TEST_WARPS + 1) * 32, RAIL_TEST_PARTS = 2 };

struct rail_test_args {
    struct op_frame f;
    struct rail_args rail;
    uint64_t number;           /* of the operation, from 1 */
    uint32_t bulk, home;       /* form; who reads: by tokens, or in the order of the streams */
    uint32_t posts;            /* pieces leave by a poster */
    uint32_t stops;            /* this rank reads nothing */
    uint32_t readers;          /* blocks that read, behind the one that sends */
    uint32_t num_tokens;       /* of home */
    const int32_t *slots;      /* [tokens][D - 1] message of the domain of that index, or -1 */
    const uint32_t *to, *from; /* [D - 1] messages */
    uint32_t max_messages;
    uint32_t *seen;    /* [D - 1][max_messages] how often each message was read */
    uint32_t *wrong;   /* words that were not what they should be */
    uint32_t *left;    /* blocks that have left the operation */
    uint32_t *results; /* [2] of who sent and who read: 1 if all went well */
};

/* Word w of message i from one rank to another. */
#define RAIL_TEST_WORD(from, to, number, i, w)                                                               \
    ((uint32_t)(from)*2654435761u + (uint32_t)(to)*40503u + (uint32_t)(number)*97u +                         \
     (uint32_t)(i)*1000003u + (uint32_t)(w))

#ifndef __CUDACC__
void tern_cpu_rail_operation(const void *args);
#else
#define TERN_THREADS_rail_operation RAIL_TEST_THREADS
#endif

#endif
