/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters of what kernels do that no compiler or processor changes, and no schedule unless they wait. A
 * barrier counts once for the warp or block, a copy once, a fence, a wait, a release or an atomic once a
 * thread. Of requests and entries only those are counted whose place a kernel has reserved: how fast a thread
 * of the host takes them makes no difference. */
#include "cost.h"
#include "ep/ep.h"
#include "net/queue.h"
#include "net/ring.h"
#include "simt/executor.h"

#include <string.h>

struct counter {
    const char *name;
    size_t offset; /* in struct executor_stats */
};

#define AT(member) offsetof(struct executor_stats, member)

static const struct counter counters[COST_REQUESTS] = {
    [COST_GRIDS] = {"grids", AT(grids)},
    [COST_BLOCKS] = {"blocks", AT(blocks)},
    [COST_THREADS] = {"threads", AT(threads)},
    [COST_SYNC_BLOCK] = {"sync_block", AT(joins[PRIMITIVE_SYNC_BLOCK])},
    [COST_SYNC_BLOCK_OR] = {"sync_block_or", AT(joins[PRIMITIVE_SYNC_BLOCK_OR])},
    [COST_SYNC_PART] = {"sync_part", AT(joins[PRIMITIVE_SYNC_PART])},
    [COST_SYNC_PART_OR] = {"sync_part_or", AT(joins[PRIMITIVE_SYNC_PART_OR])},
    [COST_SYNC_WARP] = {"sync_warp", AT(joins[PRIMITIVE_SYNC_WARP])},
    [COST_BALLOT] = {"ballot", AT(joins[PRIMITIVE_BALLOT])},
    [COST_SHFL] = {"shfl", AT(joins[PRIMITIVE_SHFL])},
    [COST_MATCH] = {"match", AT(joins[PRIMITIVE_MATCH])},
    [COST_BULK_LOADS] = {"bulk_loads", AT(bulk_loads)},
    [COST_BULK_LOAD_BYTES] = {"bulk_load_bytes", AT(bulk_load_bytes)},
    [COST_BULK_STORES] = {"bulk_stores", AT(bulk_stores)},
    [COST_BULK_STORE_BYTES] = {"bulk_store_bytes", AT(bulk_store_bytes)},
    [COST_BULK_GROUPS] = {"bulk_groups", AT(bulk_groups)},
    [COST_BULK_WAITS] = {"bulk_waits", AT(bulk_waits)},
    [COST_BAR_ARRIVALS] = {"bar_arrivals", AT(bar_arrivals)},
    [COST_PROXY_FENCES] = {"proxy_fences", AT(proxy_fences)},
    [COST_RELEASES] = {"releases", AT(releases)},
    [COST_ATOMICS] = {"atomics", AT(atomics)},
};

const char *cost_name(int counter)
{
    return counter < COST_REQUESTS    ? counters[counter].name
           : counter == COST_REQUESTS ? "requests"
                                      : "entries";
}

/* Handed over by kernels of this object since it has opened: no thread of the host counts here. */
static void read_network(const struct tern_ep *ep, uint64_t counts[COST_COUNTERS])
{
    const struct tern_network *n = ep->network;
    const struct net_ring *rings = n ? (const struct net_ring *)n->view.rings : NULL;
    const struct net_queue *queues = n ? (const struct net_queue *)n->view.queues : NULL;
    uint32_t i, num = n ? (uint32_t)ep->comm->num_ranks * n->num_queues : 0;

    for (i = 0; i < num; i++) {
        counts[COST_REQUESTS] += rings && rings[i].state ? rings[i].state->reserved : 0;
        counts[COST_ENTRIES] += queues && queues[i].state ? queues[i].state->reserved : 0;
    }
}

void cost_read(const struct tern_stream *stream, uint64_t counts[COST_COUNTERS])
{
    struct executor_stats stats;
    int i;

    memset(counts, 0, COST_COUNTERS * sizeof *counts);
    terni_executor_stats(stream->executor, &stats);
    for (i = 0; i < COST_REQUESTS; i++) {
        counts[i] = *(const uint64_t *)(const void *)((const char *)&stats + counters[i].offset);
    }
}

void cost_read_networks(struct tern_ep **eps, int num_ranks, uint64_t counts[COST_COUNTERS])
{
    int i;

    counts[COST_REQUESTS] = counts[COST_ENTRIES] = 0;
    for (i = 0; i < num_ranks; i++) {
        read_network(eps[i], counts);
    }
}
