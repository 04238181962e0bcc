/* SPDX-License-Identifier: Apache-2.0
 *
 * See tuning.h. On GPUs shared memory decides: a warp needs its ring of stages, and as many warps as fit keep
 * the links busy. On the cpu machine every thread is a fiber to be switched to, so that few are best. */
#include "ep/tuning.h"

enum {
    GPU_WARPS = 16, /* combine may add one for weights */
    CPU_WARPS = 2,
    DISPATCH_STAGES =
        4, /* three tokens in flight a warp; anchors: 3 warps x 4 stages of 14336 B fill the wire at 8 SMs */
    COMBINE_WARPS = 12, /* adding waits on latency, so that many warps come before deep rings */
    COMBINE_STAGES = 4,
    BARRIER_BYTES = 16 /* of a stage: the mbarrier, and a word beside it */
};

static uint32_t most_warps(const struct machine_info *info)
{
    return info->kind == TERN_MACHINE_CPU ? CPU_WARPS : GPU_WARPS;
}

int terni_tuning_blocks(uint32_t sms, uint32_t fallback, int most)
{
    uint32_t n = sms ? sms : fallback;
    return n > (uint32_t)most ? most : (int)n;
}

enum tern_status terni_tuning_route(const struct machine_info *info, uint32_t num_ranks, uint32_t num_experts,
                                    uint32_t num_tokens, struct geometry *g)
{
    uint32_t row = (num_ranks + num_experts) * 4;
    uint32_t settle = num_experts * 8;
    uint32_t warps = info->kind == TERN_MACHINE_CPU ? CPU_WARPS : GPU_WARPS;
    while (warps > 1 && (warps * row > info->max_shared_bytes || (warps - 1) * 32 >= num_tokens)) {
        warps--;
    }
    g->num_blocks = 1;
    g->num_threads = (int)warps * 32;
    g->num_stages = 0;
    g->table_bytes = 0;
    g->shared_bytes = warps * row > settle ? warps * row : settle;
    if (g->shared_bytes > info->max_shared_bytes) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "%u experts on %u ranks need %u bytes of shared memory a block; %s has %u",
                         num_experts, num_ranks, g->shared_bytes, info->name, info->max_shared_bytes);
    }
    return TERN_OK;
}

static enum tern_status fit(const struct machine_info *info, const char *what, uint32_t stages,
                            uint32_t fewest, uint32_t warps, uint32_t stage_bytes, struct geometry *g)
{
    uint32_t room = info->max_shared_bytes > g->table_bytes ? info->max_shared_bytes - g->table_bytes : 0;
    uint64_t a_stage = (uint64_t)stage_bytes + BARRIER_BYTES;
    while (stages > fewest && stages * a_stage > room) {
        stages--;
    }
    if (stages * a_stage > room) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "%s of %u bytes a row: %u stages need %llu bytes of shared memory; %s has %u", what,
                         stage_bytes, stages, (unsigned long long)(stages * a_stage), info->name, room);
    }
    if (warps * stages * a_stage > room) {
        warps = (uint32_t)(room / (stages * a_stage));
    }
    g->num_stages = stages;
    g->num_threads = (int)warps * 32;
    g->shared_bytes = g->table_bytes + (uint32_t)(warps * stages * a_stage);
    return TERN_OK;
}

enum tern_status terni_tuning_dispatch(const struct machine_info *info, int bulk, uint32_t stage_bytes,
                                       uint32_t table_bytes, struct geometry *g)
{
    g->table_bytes = table_bytes;
    return fit(info, "dispatch", bulk ? DISPATCH_STAGES : 1, bulk ? 2 : 1, most_warps(info), stage_bytes, g);
}

enum tern_status terni_tuning_combine(const struct machine_info *info, int bulk, uint32_t stage_bytes,
                                      uint32_t table_bytes, struct geometry *g)
{
    g->table_bytes = table_bytes;
    if (!bulk) {
        g->num_stages = 1;
        g->num_threads = (int)most_warps(info) * 32;
        g->shared_bytes = table_bytes;
        return TERN_OK;
    }
    uint32_t room = info->max_shared_bytes > table_bytes ? info->max_shared_bytes - table_bytes : 0;
    uint32_t stages = COMBINE_STAGES;
    while (stages > 2 && (uint64_t)COMBINE_WARPS * stages * (stage_bytes + BARRIER_BYTES) > room) {
        stages--;
    }
    return fit(info, "combine", stages, 2, most_warps(info), stage_bytes, g);
}
