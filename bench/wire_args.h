/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of the four kernels that measure what the machine's memory and links can do (wire_*.c). Every
 * rank has a source area and a destination area in its window, each one block of `bytes` for every rank:
 *
 *     push   own source, block of the peer  ->  the peer's destination, own block
 *     pull   the peer's source, own block   ->  own destination, block of the peer
 *
 * With one rank the only peer is the rank itself. */
#ifndef TERN_BENCH_WIRE_ARGS_H
#define TERN_BENCH_WIRE_ARGS_H

#include <stdint.h>

enum { WIRE_MAX_RANKS = 128, WIRE_STAGES = 4 };

/* One buffer of a lane's ring: an mbarrier, and the row that it holds. */
struct wire_stage {
    uint64_t bar, row;
};

/* What the warps of one round share: rows that were taken, and warps that have no more to take. Zero between
 * rounds. */
struct wire_turns {
    uint64_t taken, over;
};

struct wire_args {
    char *from[WIRE_MAX_RANKS]; /* rank r's source area as this rank addresses it */
    char *to[WIRE_MAX_RANKS];   /* rank r's destination area, likewise; the flag words of wire_ping */
    uint64_t bytes;             /* for one peer; a multiple of row_bytes */
    uint64_t deadline_ns;       /* of every wait, from the start of the kernel */
    struct wire_turns *turns;   /* device memory, of wire_push and wire_pull */
    uint64_t *result;   /* device, [2]: nonzero if a wait passed its deadline; ns of wire_ping's rounds */
    uint32_t row_bytes; /* of one bulk copy; a multiple of 16 */
    uint32_t rounds;    /* wire_ping; */
    uint32_t is_bare;   /* there: the flag orders nothing */
    int32_t rank, num_ranks;
};

#endif
