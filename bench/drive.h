/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine of `tern-bench put`, get, atomic, signal, pingpong and barrier: a network on the ranks of a run,
 * and the kernels drive_*.c on it. Memory, events and raw limits are those of `tern-bench wire`, so that what
 * a call of tern_device.h reaches stands beside what the same processors reach without it. */
#ifndef TERN_BENCH_DRIVE_H
#define TERN_BENCH_DRIVE_H

#include "drive_args.h"
#include "stats.h"
#include "transport.h"
#include "wire.h"

/* One measurement. Fields of args that a rank decides are filled in when it is launched. */
struct shot {
    int kernel;
    int blocks, warps;
    int repeats;   /* launches in a row */
    int num_ranks; /* that take part: 1, 2 or all */
    int wants_log;
    uint32_t shared_bytes;
    struct drive_args args;
};

struct drive_seat {
    struct tern_network *network;
    struct tern_net view;
    struct tern_team *team;
    struct tern_net_team members;
    uint64_t *words; /* DRIVE_WORDS in the window */
    uint64_t *log;   /* device memory, DRIVE_LOG words */
};

enum { DRIVE_LOG = 1 << 13 };

struct drive {
    const struct options *options;
    struct party *party;
    struct carriage carriage;
    struct wire wire;
    struct drive_seat seats[TERN_MAX_RANKS]; /* [num_local] */
};

/* ---- drive_open.c ---- */

/* Of one block of an area, the same on all ranks: of settled options, before --sms is what this rank has. */
uint64_t drive_area(const struct party *party, const struct options *options);
uint64_t drive_heap_bytes(const struct party *party, uint64_t area);
/* COLLECTIVE. The party is open, and has so much window memory. */
enum tern_status drive_open(struct drive *d, struct party *party, const struct options *options,
                            uint64_t area);
/* `status`, of what ran on it, or what transport_drop makes of it. */
enum tern_status drive_close(struct drive *d, enum tern_status status);

/* ---- drive_time.c ---- */

/* COLLECTIVE. us[k]: the slowest rank's time of one launch in sample k, by events around `repeats` of them.
 */
enum tern_status drive_by_events(struct drive *d, const struct shot *shot, double *us);
/* COLLECTIVE. us[k]: of one round in sample k by the device's clock, of the slowest rank that has taken part;
 * words begin as drive_value says. */
enum tern_status drive_by_clock(struct drive *d, const struct shot *shot, double *us);
/* COLLECTIVE. Cuts the operations and launches of a sample, or by_clock its rounds, so that all samples take
 * no more than --row-ms, as far as a few of each allow. */
enum tern_status drive_fit(struct drive *d, struct shot *shot, int by_clock);
/* Local. Words become what they are before round 0. */
enum tern_status drive_reset(struct drive *d);
/* COLLECTIVE. Once: of all ranks that take part, waits for them and passes their failures on. */
enum tern_status drive_once(struct drive *d, const struct shot *shot);

/* ---- drive_check.c ---- */

/* COLLECTIVE. Moves once into poisoned destinations, then --corrupt flips a bit, and compares them all: the
 * first `bytes` of the blocks that ranks below shot->num_ranks give each other, and poison elsewhere. */
enum tern_status drive_check_blocks(struct drive *d, const struct shot *shot, uint64_t bytes,
                                    struct tally *tally);
/* COLLECTIVE. Runs once with a log and compares what every rank saw in every round. */
enum tern_status drive_check_log(struct drive *d, const struct shot *shot, struct tally *tally);

/* ---- bench_drive.c ---- */

enum tern_status drive_run(const struct options *options, struct report *report, struct tally *tally);

#endif
