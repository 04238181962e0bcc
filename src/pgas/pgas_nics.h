/* SPDX-License-Identifier: Apache-2.0
 *
 * What a network has to do with its NICs (pgas_queue.c). */
#ifndef TERN_PGAS_NICS_H
#define TERN_PGAS_NICS_H

#include "comm/carrier.h"
#include "net/nic_provider.h"

struct pgas_nics {
    struct carrier carrier; /* first: a carrier is its pgas_nics */
    struct nic_provider provider;
    unsigned char *wanted;  /* [num_ranks] ranks that are reached so */
    char *bounce;           /* device memory: a struct net_bounce_state, then the area */
    struct net_queue *calm; /* device memory: the queues without an abort word (terni_pgas_nics_calm) */
};

/* What its NICs have sent if they speak packets; else, and without a network (NULL) or NICs, zeros. */
enum tern_status terni_pgas_nics_traffic(const struct tern_network *n, struct softnic_traffic *traffic);

#endif
