/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of the kernels that drive tern_device.h's calls for `tern-bench put` and its like (drive_*.c).
 * Areas are those of wire_args.h: a block of `area` bytes for each rank in `from` and in `to`. Beside them
 * every rank has a few words in its window:
 *
 *     words[DRIVE_WORD]      what ranks 0 and 1 raise in turn, or rank 0 fetches from rank 1
 *     words[DRIVE_CELLS ..]  [2][num_ranks] what each rank left before a barrier, by the round's parity
 *
 * A word takes another value in every round, drawn from the seed; whoever waits, waits until it is not the
 * last one, and what it is then is what the host checks. */
#ifndef TERN_BENCH_DRIVE_ARGS_H
#define TERN_BENCH_DRIVE_ARGS_H

#include "tern/tern.h"
#include "net/amo.h"

enum { DRIVE_WORD = 0, DRIVE_CELLS = 32, DRIVE_WORDS = DRIVE_CELLS + 2 * 128 };

/* What raises the word of drive_ping. */
enum drive_kind { DRIVE_INLINE, DRIVE_SIGNAL_ADD, DRIVE_SIGNAL_SET, DRIVE_ATOMIC, DRIVE_PUT_SIGNAL };

struct drive_args {
    struct tern_net net;
    struct tern_net_team team;
    char *from, *to; /* this rank's */
    uint64_t *words;
    uint64_t *log;    /* what was seen, if somebody asks: of each round a word, of a barrier one a rank */
    uint64_t *result; /* device, [2]: a status that was not TERN_OK; ns of `rounds` rounds */
    uint64_t area, bytes, seed;
    uint32_t ops;    /* drive_move, drive_bulk: to each peer, one behind the other in the blocks */
    uint32_t rounds; /* of the others, after one that is not timed */
    uint32_t kind, width, amo;
    uint32_t shared_bytes; /* drive_bulk */
    int32_t scope;         /* of net/group.h */
    int32_t pull;          /* get */
};

/* The word after round i; before the first, of round -1, it is the seed. */
TERN_DEVICE uint64_t drive_value(uint64_t seed, uint32_t width, int64_t i)
{
    return net_amo_word(width, seed ^ (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u);
}

/* Operand and compare of fetch i, which depend on what fetch i - 1 returned. Every other compare is that
 * word, which then is there if the compare before it failed. */
TERN_DEVICE uint64_t drive_operand(uint64_t seed, int64_t i, uint64_t old)
{
    return drive_value(seed, 8, i) + old;
}

TERN_DEVICE uint64_t drive_compare(int64_t i, uint64_t old) { return (i & 1) != 0 ? old : ~old; }

#endif
