/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels have asked of the cpu machine's executor, and of proxies and NICs, by name. Apart from
 * cost_test.c, because the executor's own header cannot be read beside world.h. */
#ifndef TERN_TEST_COST_H
#define TERN_TEST_COST_H

#include "tern/tern.h"

/* The executor's, then the networks'. */
enum {
    COST_GRIDS,
    COST_BLOCKS,
    COST_THREADS,
    COST_SYNC_BLOCK,
    COST_SYNC_BLOCK_OR,
    COST_SYNC_PART,
    COST_SYNC_PART_OR,
    COST_SYNC_WARP,
    COST_BALLOT,
    COST_SHFL,
    COST_MATCH,
    COST_BULK_LOADS,
    COST_BULK_LOAD_BYTES,
    COST_BULK_STORES,
    COST_BULK_STORE_BYTES,
    COST_BULK_GROUPS,
    COST_BULK_WAITS,
    COST_BAR_ARRIVALS,
    COST_PROXY_FENCES,
    COST_RELEASES,
    COST_ATOMICS,
    COST_REQUESTS, /* to proxies */
    COST_ENTRIES,  /* blocks of them, to NICs */
    COST_COUNTERS
};

const char *cost_name(int counter);
/* The executor's, since that of this stream began; the others are 0. Every stream of it is synchronised. */
void cost_read(const struct tern_stream *stream, uint64_t counts[COST_COUNTERS]);
/* The networks', since these objects have opened; the executor's stay. */
void cost_read_networks(struct tern_ep **eps, int num_ranks, uint64_t counts[COST_COUNTERS]);

#endif
