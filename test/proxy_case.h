/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs for rings, and what they must leave behind. Threads of every rank put, get, change words
 * and raise counters at random peers. Each thread has places of its own at every rank, so what they hold in
 * the end follows from the program alone; counters belong to all, who only add.
 *
 *     source    never written: what peers get
 *     outbox    a part a thread: filled by the thread, put from
 *     inbox     a part a (rank, thread): put to
 *     landing   a part a thread: gets and results of atomics
 *     words     a part a (rank, thread): changed by atomics and inline puts
 *     counters  8 bytes each, for all */
#ifndef TERN_TEST_PROXY_CASE_H
#define TERN_TEST_PROXY_CASE_H

#include "proxy_rig.h"

struct proxy_case {
    int num_ranks, num_threads, num_steps;
    uint64_t seed;
    unsigned char *image[RIG_MAX_RANKS]; /* of the window, as it must be */
};

/* Images before anything has run. */
void proxy_case_init(struct proxy_case *c, int num_ranks, int num_threads, int num_steps, uint64_t seed);
void proxy_case_fini(struct proxy_case *c);
/* Writes the image into the window of every rank that is here. */
void proxy_case_upload(const struct proxy_case *c, struct proxy_rig *rig);
/* Draws the program of every rank; steps of those that are here, and into the images what comes of it. */
void proxy_case_draw(struct proxy_case *c, struct proxy_rig *rig);
/* All waits of a rank's threads ended well. */
int proxy_case_ended(const struct proxy_case *c, const struct proxy_rig *rig, int rank);
/* A rank's window is as its image; after all ranks have ended. */
int proxy_case_compare(const struct proxy_case *c, const struct proxy_rig *rig, int rank);

#endif
