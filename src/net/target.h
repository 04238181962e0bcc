/* SPDX-License-Identifier: Apache-2.0
 *
 * The ways that lead to a peer, and where one operation goes by one of them: what route.h finds out and the
 * header of each way (p2p.h, ring_route.h, queue_route.h) takes. */
#ifndef TERN_TARGET_H
#define TERN_TARGET_H

#include "simt/simt.h"

/* LACKS_ATOMICS stands beside P2P in what kernels look up: the link carries loads and stores only. */
enum net_route {
    NET_ROUTE_NONE = 0,
    NET_ROUTE_P2P = 1,
    NET_ROUTE_RING = 2,
    NET_ROUTE_QUEUE = 3,
    NET_ROUTE_LACKS_ATOMICS = 0x80
};

struct net_ring;
struct net_queue;

struct net_target {
    int status;     /* TERN_OK, or why it goes nowhere */
    uint32_t route; /* without LACKS_ATOMICS, which is apart: */
    int lacks_atomics;
    char *address;               /* p2p: as this rank reaches it; else as the peer does. NULL: of no bytes */
    const struct net_ring *ring; /* of that route, likewise the next */
    const struct net_queue *queue;
};

/* As requests name it. */
TERN_DEVICE uint64_t target_remote(const struct net_target *t) { return (uint64_t)(uintptr_t)t->address; }

#endif
