/* SPDX-License-Identifier: Apache-2.0
 *
 * The ranks of `tern-bench nic`: an area to send from and one to receive in, a software NIC each, and the
 * kernel by which rank 0 posts to rank 1, or every other rank does, each to a part of its area. NICs of ranks
 * that do not post run and have nothing to do. */
#ifndef TERN_BENCH_NIC_RANKS_H
#define TERN_BENCH_NIC_RANKS_H

#include "drive_nic_args.h"
#include "net/softnic_provider.h"
#include "party.h"

struct nic_seat {
    struct softnic_provider *nic;
    char *from, *to;
    struct softnic_link *link; /* behind it, NIC_WORDS_AT, the words of signals */
    uint64_t *result, *device_result;
    struct tern_event *begin, *end;
};

struct nic_ranks {
    struct party *party;
    const struct options *options;
    uint64_t area;
    uint64_t peer_to, peer_words;          /* rank 1's, as it names them */
    struct nic_seat seats[TERN_MAX_RANKS]; /* [num_local] */
    char *copy;                            /* of an area, for the host */
};

/* One measurement. */
struct nic_shot {
    uint32_t kind, ops, bytes; /* drive_nic_args */
    int blocks, warps;
    int from_all; /* all ranks but 1 post: not NIC_TRIP */
};

/* What it took each sender, in place of its rank; of ranks that do not send 0. */
struct nic_took {
    double us[TERN_MAX_RANKS];
};

uint64_t nic_area(const struct party *party);
uint64_t nic_heap_bytes(const struct party *party);
/* COLLECTIVE, all of them. The party is open. */
enum tern_status nic_ranks_open(struct nic_ranks *n, struct party *party, const struct options *options);
void nic_ranks_close(struct nic_ranks *n);
/* NICs with such a wire. */
enum tern_status nic_start(struct nic_ranks *n, const struct softnic_rates *rates);
void nic_end(struct nic_ranks *n);
/* How much of the receiver's area is each sender's. */
uint64_t nic_part(const struct nic_ranks *n, const struct nic_shot *shot);
/* us[k]: of sample k, by events around the slowest sender's kernel, or of one trip by the device's clock.
 * *took: mean values; or NULL. */
enum tern_status nic_time(struct nic_ranks *n, const struct nic_shot *shot, double *us,
                          struct nic_took *took);
/* Once, into poisoned memory, and compares: the first `bytes` of each part have come, the rest is poison. */
enum tern_status nic_check(struct nic_ranks *n, const struct nic_shot *shot, uint64_t bytes,
                           struct tally *tally);

#endif
