/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside a heap: what opening it (heap.c) and growing it (grow.c) share. */
#ifndef TERN_HEAP_H
#define TERN_HEAP_H

#include "comm/comm.h"
#include "comm/carrier.h"
#include "comm/trade.h"

/* Between the steps of growing. */
struct growth {
    struct trade trade;
    uint64_t bytes;  /* to be added, whole granules */
    uint64_t before; /* bytes of memory that every part had */
    struct carrier_parcels parcels;
};

struct heap_state {
    struct part *
        *references;       /* [num_ranks]: parts of this process that are mapped here, this rank's included */
    struct share *imports; /* [num_ranks]: parts of other processes, as mapped here */
    struct trade trade;    /* while it opens */
    struct growth *growth; /* while it grows */
};

/* This rank's part. */
struct share *terni_heap_own(struct heap *heap);

#endif
