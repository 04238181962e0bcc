/* SPDX-License-Identifier: Apache-2.0
 *
 * A word for a peer that may be dead, or cut off from this rank: nobody waits for anything. */
#ifndef TERN_ROUTE_TRY_H
#define TERN_ROUTE_TRY_H

#include "net/route.h"

/* Whether a signal to this peer by this queue is taken without a wait: 1; 0: not now; -1: it has failed. */
TERN_DEVICE int route_takes(const struct tern_net *net, int peer, uint32_t queue)
{
    uint32_t route = net_route_to(net, peer);
    return route == NET_ROUTE_RING    ? ring_takes(net, peer, queue)
           : route == NET_ROUTE_QUEUE ? queue_takes(net, peer, queue)
                                      : 1;
}

/* One thread: sets 8 bytes by every queue that takes the signal, since one may have failed and not know it
 * yet. 0: none does now, but one may later. */
TERN_DEVICE int route_try_word(const struct tern_net *net, int peer, uint64_t *word, uint64_t value)
{
    int taken = 0, full = 0;
    TERN_ROLLED
    for (uint32_t q = 0; q < net->num_queues; q++) {
        int takes = route_takes(net, peer, q);
        full |= takes == 0;
        if (takes > 0) {
            taken |= route_signal(net, peer, q, word, sizeof(*word), TERN_SIGNAL_SET, value) == TERN_OK;
        }
    }
    return taken || !full;
}

#endif
