/* SPDX-License-Identifier: Apache-2.0
 *
 * Networks under test: the ranks of a world with one each, and requests that a rank's kernel performs in
 * groups of threads (kernels/net_args.h). Requests are added while nothing runs; a launch waits for nobody,
 * so that one thread launches for all ranks. */
#ifndef TERN_TEST_NET_RIG_H
#define TERN_TEST_NET_RIG_H

#include "pgas/pgas.h"
#include "procs.h"
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

/* By what ranks reach each other. NULL as engine: no proxy. */
struct net_way {
    const char *name, *engine; /* TERN_PROXY */
    const char *domain_size;   /* TERN_DOMAIN_SIZE; NULL: one domain, and no loads and stores in it */
    uint32_t nics;             /* 0, or by queue pairs: TERN_TRANSPORT_MLX5 of the mock, or _SOFTNIC */
    int packets;               /* RIG_*: those of software NICs are connected by a network that errs */
};
enum { RIG_NO_PACKETS, RIG_PACKETS, RIG_ADAPTIVE };

/* The case over loads and stores, and then over each way of the proxy and of NICs; skips those whose engine
 * is not here. */
void net_rig_cases(struct test *t, const char *name, int (*body)(struct test *t));
/* The same over the ways of the proxy alone; of NICs alone; of those by packets alone. */
void net_rig_proxy_cases(struct test *t, const char *name, int (*body)(struct test *t));
/* Of NICs that notice when a peer's is gone: all but those that reach its memory themselves. */
void net_rig_cut_cases(struct test *t, const char *name, int (*body)(struct test *t));
void net_rig_packet_cases(struct test *t, const char *name, int (*body)(struct test *t));
void net_rig_nic_cases(struct test *t, const char *name, int (*body)(struct test *t));
/* The same where ranks are processes, which fork from one that has not used libfabric: procs_run in the
 * environment of each way of the proxy; or of these and by software NICs; or by packets. */
struct net_way_procs {
    int num_ranks, victim; /* as of procs_run, likewise the next */
    double seconds;
    int (*body)(int rank, struct procs_page *page, void *user);
};
void net_rig_procs(struct test *t, const char *name, const struct net_way_procs *procs);
void net_rig_packet_procs(struct test *t, const char *name, const struct net_way_procs *procs);
void net_rig_proxy_procs(struct test *t, const char *name, const struct net_way_procs *procs);
/* Of the running case. */
const struct net_way *net_rig_way(void);
/* As test_scaled, and a small part of that by the proxy, where an operation takes a thread's turn. */
int net_rig_scaled(const struct test *t, int count);
/* Networks that are asked for get this transport. */
uint32_t net_rig_transport(void);
/* Where memory is that kernels may name as their own: windows, where NICs reach nothing else. */
int net_rig_local_arena(void);
/* Whether the cases are asked to run on GPUs; whether a proxy reaches any peer. */
int net_rig_on_cuda(void);
int net_rig_goes_by_proxy(void);

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
/* What the ranks' proxies have done for each other is visible to this thread, also to ThreadSanitizer,
 * which does not look into the network. Waits for nothing that is under way. */
void net_rig_see(struct net_rig *rig);
/* Waits for all ranks and for what their kernels issued, and brings their results. */
int net_rig_collect(struct net_rig *rig);
/* Every request of every rank has this status. */
int net_rig_all(const struct net_rig *rig, int status);

#endif
