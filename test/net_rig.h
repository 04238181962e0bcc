/* SPDX-License-Identifier: Apache-2.0
 *
 * Networks under test: the ranks of a world with one each, and requests that a rank's kernel performs in
 * groups of threads (kernels/net_args.h). Requests are added while nothing runs; a launch waits for nobody,
 * so that one thread launches for all ranks. */
#ifndef TERN_TEST_NET_RIG_H
#define TERN_TEST_NET_RIG_H

#include "pgas/pgas.h"
#include "world.h"

enum { RIG_RANKS = 8, RIG_REQUESTS = 4096 };

/* The requests of one rank and what became of them; as the kernel has them, and as the test does. */
struct net_rank {
    struct net_request *requests, *device_requests;
    struct net_result *results, *device_results;
    int num;
};

struct net_rig {
    struct world world;
    struct tern_network *networks[RIG_RANKS];
    struct tern_net views[RIG_RANKS];
    struct net_rank ranks[RIG_RANKS];
};

/* How a rank's requests are cut. */
struct net_shape {
    int group; /* GROUP_* */
    int num_blocks, num_threads;
    int each; /* requests a group */
};

void net_rig_init(struct net_rig *rig, int num_ranks);
/* After places have been taken: all ranks, by this thread. cpu_seed 0: free running. */
int net_rig_open(struct net_rig *rig, const struct tern_net_config *config, uint64_t cpu_seed);
/* Leaves nothing but the world's images. */
void net_rig_close(struct net_rig *rig);

int net_shape_groups(const struct net_shape *s);
/* Zeroed, a QUIET of all until the caller says otherwise; its result is results[index]. */
struct net_request *net_rig_add(struct net_rig *rig, int rank);
/* Forgets the requests of all ranks. */
void net_rig_clear(struct net_rig *rig);
/* On the rank's lane 0. team: NULL, or for BARRIER. */
int net_rig_launch(struct net_rig *rig, int rank, const struct net_shape *shape,
                   const struct tern_net_team *team);
/* Waits for all ranks and brings their results. */
int net_rig_collect(struct net_rig *rig);
/* Every request of every rank has this status. */
int net_rig_all(const struct net_rig *rig, int status);

#endif
