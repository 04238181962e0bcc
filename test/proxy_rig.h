/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks with couriers, for tests of the proxy: all of one process, driven by one thread, or one of several
 * processes. */
#ifndef TERN_TEST_PROXY_RIG_H
#define TERN_TEST_PROXY_RIG_H

#include "comm/courier.h"
#include "ring_steps.h"
#include "support.h"

enum { RIG_MAX_RANKS = 8, RIG_QUEUES = 2, RIG_WINDOW_BYTES = 1 << 20 };

struct proxy_member {
    struct tern_comm *comm;
    struct courier *courier;
    char *window;           /* this rank's part of the symmetric heap */
    uint64_t *peers_window; /* [num_ranks] where it begins, as its owner addresses it */
    struct net_ring *rings; /* [num_ranks * RIG_QUEUES] for kernels */
    struct ring_step *steps;
    struct tern_stream *stream;
};

struct proxy_rig {
    int num_ranks;
    int self; /* the one rank of this process; -1: all are */
    struct courier_config config;
    struct proxy_member members[RIG_MAX_RANKS];
};

/* Defaults: the TCP engine, rings of 64, 20 s. */
void proxy_rig_init(struct proxy_rig *rig, int num_ranks, const char *engine);
/* The cpu machine from `seed`, all ranks here. TEST_SKIPPED, with the reason as the test's detail, where the
 * engine is not to be had. What is open is closed by proxy_rig_close in any case. */
int proxy_rig_open(struct test *t, struct proxy_rig *rig, uint64_t seed);
/* Likewise for the rank of this process; TERN_UNSUPPORTED where the engine is not to be had. */
enum tern_status proxy_rig_join(struct proxy_rig *rig, int rank, const struct tern_id *id,
                                uint32_t timeout_ms);
void proxy_rig_close(struct proxy_rig *rig);
int proxy_rig_is_here(const struct proxy_rig *rig, int rank);

/* Room for num_threads lists of num_steps, zeroed; the rank's earlier ones are gone. */
struct ring_step *proxy_rig_steps(struct proxy_rig *rig, int rank, int num_threads, int num_steps);
/* Launches them, in blocks of 32 threads. Nobody waits. */
enum tern_status proxy_rig_launch(struct proxy_rig *rig, int rank, int num_threads, int num_steps,
                                  uint64_t timeout_ns);
enum tern_status proxy_rig_wait(struct proxy_rig *rig, int rank);
uint32_t proxy_rig_ring(int peer, int queue); /* index into the rings */
/* The address of a place in a rank's window, for requests. */
uint64_t proxy_rig_at(const struct proxy_rig *rig, int rank, uint64_t offset);

#endif
