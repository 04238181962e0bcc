/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine of `tern-bench wire`, used by `tern-bench ep` too: every rank moves bytes to its peers, all at
 * once, and the slowest rank's time counts. The kernels are wire_*.c; nothing of Tern's own protocol takes
 * part. */
#ifndef TERN_BENCH_WIRE_H
#define TERN_BENCH_WIRE_H

#include "party.h"
#include "report.h"

enum mover {
    MOVE_STORE,  /* all-to-all by 16-byte stores */
    MOVE_LOAD,   /* all-to-all by 16-byte loads, read by the destination */
    MOVE_PUSH,   /* all-to-all by bulk copies, written by the source */
    MOVE_PULL,   /* all-to-all by bulk copies, read by the destination */
    MOVE_ENGINE, /* the machine's own copy, to the next rank */
    MOVE_LOCAL   /* the machine's own copy, within a rank */
};

struct probe {
    enum mover mover;
    uint32_t row_bytes; /* of one bulk copy; 0 for the others */
    int sms;            /* of kernels */
    int warps;          /* of a block; 0: what is best */
};

/* What one local rank has. */
struct wire_seat {
    char *from, *to;         /* areas in the window */
    uint64_t *result;        /* as the host addresses it */
    uint64_t *device_result; /* as the kernel does */
    void *turns;             /* device memory, struct wire_turns */
    struct tern_event *begin, *end;
};

struct wire {
    struct party *party;
    uint64_t bytes; /* for one peer */
    uint64_t seed;
    uint64_t *offsets; /* [num_ranks][2] of the source and destination areas in each rank's window */
    struct wire_seat seats[TERN_MAX_RANKS]; /* [num_local] */
};

/* Bytes that fit the machine, for one peer; a multiple of 14336. */
uint64_t wire_default_bytes(enum tern_machine machine, int num_ranks);
/* Window memory that wire_open takes on every rank. */
uint64_t wire_heap_bytes(int num_ranks, uint64_t bytes);
/* COLLECTIVE. What moves bytes or flags is for ranks that all address each other. */
enum tern_status wire_open(struct wire *w, struct party *party, uint64_t bytes, uint64_t seed);
void wire_close(struct wire *w);

/* Whether the machine has this mover. */
int wire_can(const struct wire *w, enum mover mover);
/* Bytes that one rank sends (a local copy: copies) in one round. */
uint64_t wire_round_bytes(const struct wire *w, enum mover mover);
/* COLLECTIVE. us[s]: the slowest rank's time of one round in sample s, each of `repeats` rounds in a row. */
enum tern_status wire_time(struct wire *w, const struct probe *probe, int samples, int repeats, double *us);
/* COLLECTIVE. Until no rank moves: every destination is poisoned. */
enum tern_status wire_poison(struct wire *w);
/* COLLECTIVE, after everybody has moved. Ranks below num_ranks have given each other the first `bytes` of
 * their blocks; whatever else lies in the destinations must still be poison. Counts bytes over all ranks. */
enum tern_status wire_compare(struct wire *w, int num_ranks, uint64_t bytes, struct tally *tally);
/* Local. Flips one bit of the first block that a peer below num_ranks has given to rank 0. */
enum tern_status wire_flip(struct wire *w, int num_ranks);
/* COLLECTIVE. Moves once into poisoned destinations and counts the bytes that differ, over all ranks; with
 * `corrupt` a bit of one is flipped before. */
enum tern_status wire_verify(struct wire *w, const struct probe *probe, int corrupt, struct tally *tally);
/* COLLECTIVE. The same of a probe that others are compared with: TERN_INTERNAL_ERROR if a byte differs. */
enum tern_status wire_prove(struct wire *w, const struct probe *probe, int corrupt);
/* COLLECTIVE. One-way latency of a flag between ranks 0 and 1, at least two ranks; us[FLAG_*]. */
enum { FLAG_RELEASED, FLAG_BARE, FLAG_KINDS };
enum tern_status wire_ping(struct wire *w, uint32_t rounds, double us[FLAG_KINDS]);
/* COLLECTIVE. The best all-to-all bulk push (stores where there is none) over a few SM counts, in GB/s a
 * rank; with --check it is proved after all are timed. */
enum tern_status wire_best(struct wire *w, const struct options *options, double *gb_s);

/* COLLECTIVE. wire_open, wire_best, wire_close; 0 where some ranks do not address each other. */
enum tern_status wire_measure(struct party *party, const struct options *options, double *gb_s);

/* The note "wire", for those who put their figures beside it. */
enum tern_status wire_note(struct report *report, const struct party *party, double gb_s);

/* The subcommand. */
enum tern_status wire_run(const struct options *options, struct report *report, struct tally *tally);

#endif
