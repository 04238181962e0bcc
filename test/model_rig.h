/* SPDX-License-Identifier: Apache-2.0
 *
 * NICs in software whose time is an argument: cards with some queues each that all send to one receiver, and
 * engines that work when they are told what time it is. So when bytes are there is known exactly. Who
 * includes this is compiled with the dialect of simt/thread.h. */
#ifndef TERN_TEST_MODEL_RIG_H
#define TERN_TEST_MODEL_RIG_H

#define TERN_HOST_THREAD
#include "core/core.h"
#include "net/queue_ops.h"
#include "net/softnic_engine.h"
#include "support.h"

enum { CARDS = 7, QUEUES = 2, BLOCKS = 64, PD = 1, HEAP = 1 << 20 };
#define BEGIN 1000000ull /* ns */

/* One queue of one NIC. */
struct line {
    _Alignas(64) char ring[BLOCKS * WQE_BLOCK_BYTES];
    _Alignas(64) uint32_t cqe[CQE_WORDS];
    _Alignas(64) uint32_t record[2];
    uint64_t doorbell, results[NET_QUEUE_RESULT_WORDS];
    struct net_queue_state state;
    struct net_queue queue;
    struct softnic_flight flights[SOFTNIC_FLIGHTS];
};

struct card {
    struct softnic_qp qps[QUEUES];
    struct line lines[QUEUES];
    struct softnic_link link;
    struct softnic_args args;
    struct softnic_engine engine;
    uint64_t stop;
    uint64_t ahead, now; /* ns: of the time that the test says; by its own clock */
};

struct wire {
    _Alignas(64) char from[HEAP];
    char to[HEAP];
    struct net_ranges list; /* of one: */
    struct net_range ranges[1];
    struct key_entry entries[4];
    struct key_table keys;
    struct softnic_link receiver;
    uint64_t ahead, stale; /* ns: the receiver's clock, and how old is what it tells at most */
    uint64_t told;         /* ns: when it did so last */
    int has_clocks;
    struct card cards[CARDS];
};

static inline uint64_t at(const void *p) { return (uint64_t)(uintptr_t)p; }

/* All cards, with a model of these rates; to be freed. */
int model_open(struct wire **wire, const struct softnic_rates *rates);
/* Clocks of their own, so many ns ahead of what model_work and model_tell are told; cards: [2], of the first
 * two. */
void model_part_clocks(struct wire *w, uint64_t receiver, const uint64_t *cards, uint64_t stale);
/* The receiver tells of its clock, if it has one of its own, once in `stale` ns. */
void model_tell(struct wire *w, uint64_t now);
/* All that a card does at this time. */
void model_work(struct card *c, uint64_t now);
/* Whether the card has been told that the operation is complete. */
int model_is_done(struct wire *w, int card, uint32_t queue, uint64_t ticket);

#endif
