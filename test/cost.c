/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters of the executor that no schedule, compiler or processor changes. A barrier counts once for the
 * warp or block, a copy once, a fence or a wait once a thread. */
#include "cost.h"
#include "simt/executor.h"

struct counter {
    const char *name;
    size_t offset; /* in struct executor_stats */
};

#define AT(member) offsetof(struct executor_stats, member)

static const struct counter counters[COST_COUNTERS] = {
    {"grids", AT(grids)},
    {"blocks", AT(blocks)},
    {"threads", AT(threads)},
    {"sync_block", AT(joins[PRIMITIVE_SYNC_BLOCK])},
    {"sync_block_or", AT(joins[PRIMITIVE_SYNC_BLOCK_OR])},
    {"sync_part", AT(joins[PRIMITIVE_SYNC_PART])},
    {"sync_part_or", AT(joins[PRIMITIVE_SYNC_PART_OR])},
    {"sync_warp", AT(joins[PRIMITIVE_SYNC_WARP])},
    {"ballot", AT(joins[PRIMITIVE_BALLOT])},
    {"shfl", AT(joins[PRIMITIVE_SHFL])},
    {"match", AT(joins[PRIMITIVE_MATCH])},
    {"bulk_loads", AT(bulk_loads)},
    {"bulk_load_bytes", AT(bulk_load_bytes)},
    {"bulk_stores", AT(bulk_stores)},
    {"bulk_store_bytes", AT(bulk_store_bytes)},
    {"bulk_groups", AT(bulk_groups)},
    {"bulk_waits", AT(bulk_waits)},
    {"bar_arrivals", AT(bar_arrivals)},
    {"proxy_fences", AT(proxy_fences)},
};

const char *cost_name(int counter) { return counters[counter].name; }

void cost_read(const struct tern_stream *stream, uint64_t counts[COST_COUNTERS])
{
    struct executor_stats stats;
    int i;

    terni_executor_stats(stream->executor, &stats);
    for (i = 0; i < COST_COUNTERS; i++) {
        counts[i] = *(const uint64_t *)(const void *)((const char *)&stats + counters[i].offset);
    }
}
