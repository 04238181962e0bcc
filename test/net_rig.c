/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening networks over a world, and the way of requests to kernels and back. */
#include "net_rig.h"

#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

void net_rig_init(struct net_rig *rig, int num_ranks)
{
    memset(rig, 0, sizeof *rig);
    world_init(&rig->world, num_ranks, -1);
    rig->world.num_lanes = 2;
}

static int open_rank(struct net_rig *rig, int r)
{
    struct tern_comm *comm = rig->world.members[r].comm;
    struct net_rank *at = &rig->ranks[r];
    size_t requests = RIG_REQUESTS * sizeof *at->requests, results = RIG_REQUESTS * sizeof *at->results;
    rig->views[r].size = sizeof rig->views[r];
    OK(tern_net_view(rig->networks[r], &rig->views[r]));
    OK(tern_alloc(comm, TERN_MEMORY_HOST, requests, (void **)&at->requests));
    OK(tern_alloc(comm, TERN_MEMORY_DEVICE, requests, (void **)&at->device_requests));
    OK(tern_alloc(comm, TERN_MEMORY_HOST, results, (void **)&at->results));
    OK(tern_alloc(comm, TERN_MEMORY_DEVICE, results, (void **)&at->device_results));
    OK(tern_fill(comm, at->device_results, 0, results, rig->world.members[r].lanes[0]));
    return 0;
}

int net_rig_open(struct net_rig *rig, const struct tern_net_config *config, uint64_t cpu_seed)
{
    struct tern_comm_config comm_config = TERN_COMM_CONFIG_INIT;
    struct tern_comm *comms[RIG_RANKS];
    comm_config.cpu_seed = cpu_seed;
    PASS(world_open(&rig->world, NULL, &comm_config));
    for (int r = 0; r < rig->world.num_ranks; r++) {
        comms[r] = rig->world.members[r].comm;
    }
    OK(tern_net_open_all(rig->world.num_ranks, comms, config, rig->networks));
    for (int r = 0; r < rig->world.num_ranks; r++) {
        PASS(open_rank(rig, r));
    }
    return world_synchronize(&rig->world);
}

static void give(struct tern_comm *comm, void *memory)
{
    if (memory != NULL) {
        tern_free(comm, memory);
    }
}

void net_rig_close(struct net_rig *rig)
{
    (void)world_synchronize(&rig->world); /* after a failure kernels may still wait, until their deadline */
    for (int r = 0; r < rig->world.num_ranks; r++) {
        struct tern_comm *comm = rig->world.members[r].comm;
        struct net_rank *at = &rig->ranks[r];
        if (comm != NULL) {
            tern_net_close(rig->networks[r]);
            give(comm, at->requests);
            give(comm, at->device_requests);
            give(comm, at->results);
            give(comm, at->device_results);
        }
        memset(at, 0, sizeof *at);
        rig->networks[r] = NULL;
    }
    world_fini(&rig->world);
}

int net_shape_groups(const struct net_shape *s)
{
    int threads = s->num_blocks * s->num_threads;
    return s->group == GROUP_THREAD ? threads : s->group == GROUP_WARP ? threads / 32 : s->num_blocks;
}

struct net_request *net_rig_add(struct net_rig *rig, int rank)
{
    struct net_rank *at = &rig->ranks[rank];
    struct net_request *q = &at->requests[at->num];
    if (at->num == RIG_REQUESTS) {
        abort();
    }
    memset(q, 0, sizeof *q);
    q->kind = NET_REQUEST_QUIET;
    q->peer = -1;
    q->result = &at->device_results[at->num++];
    return q;
}

void net_rig_clear(struct net_rig *rig)
{
    for (int r = 0; r < rig->world.num_ranks; r++) {
        rig->ranks[r].num = 0;
    }
}

int net_rig_launch(struct net_rig *rig, int rank, const struct net_shape *shape,
                   const struct tern_net_team *team)
{
    struct member *m = &rig->world.members[rank];
    struct net_rank *at = &rig->ranks[rank];
    struct net_args args;
    struct launch launch = {TERN_KERNEL_net_ops, shape->num_blocks, shape->num_threads, 0, &args,
                            sizeof args};
    memset(&args, 0, sizeof args);
    args.net = rig->views[rank];
    if (team != NULL) {
        args.team = *team;
    }
    args.requests = at->device_requests;
    args.num_requests = (uint32_t)at->num;
    args.num_each = (uint32_t)shape->each;
    args.group = shape->group;
    OK(tern_copy(m->comm, at->device_requests, at->requests, (size_t)at->num * sizeof *at->requests,
                 m->lanes[0]));
    OK(m->comm->machine->ops->launch(m->comm->machine, &launch, m->lanes[0]));
    return 0;
}

int net_rig_collect(struct net_rig *rig)
{
    for (int r = 0; r < rig->world.num_ranks; r++) {
        struct member *m = &rig->world.members[r];
        struct net_rank *at = &rig->ranks[r];
        OK(tern_copy(m->comm, at->results, at->device_results, (size_t)at->num * sizeof *at->results,
                     m->lanes[0]));
    }
    return world_synchronize(&rig->world);
}

int net_rig_all(const struct net_rig *rig, int status)
{
    for (int r = 0; r < rig->world.num_ranks; r++) {
        for (int i = 0; i < rig->ranks[r].num; i++) {
            CHECK(rig->ranks[r].results[i].status == status,
                  "rank %d, request %d of kind %u ended with %lld, not %d", r, i,
                  rig->ranks[r].requests[i].kind, (long long)rig->ranks[r].results[i].status, status);
        }
    }
    return 0;
}
