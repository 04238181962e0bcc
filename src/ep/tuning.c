/* SPDX-License-Identifier: Apache-2.0
 *
 * See tuning.h. On GPUs shared memory decides: a warp needs its ring of stages, and as many warps as fit keep
 * the links busy. On the cpu machine every thread is a fiber to be switched to, so that few are best.
 * docs/performance.md has the measurements behind the numbers. */
#include "ep/tuning.h"

#include "kernels/ep_args.h"

enum {
    CPU_WARPS = 2,
    GPU_WARPS = 16, /* combine may add one for weights */
    ROUTE_WARPS = 32,
    ROUTE_TOKENS = 8,    /* fewest a warp */
    DISPATCH_STAGES = 4, /* three tokens in flight a warp */
    CAST_STAGES = 2,     /* casting waits on arithmetic: warps come before deep rings */
    COMBINE_STAGES = 4,
    COMBINE_WARPS = 12, /* adding waits on latency: likewise */
    DISPATCH_STAGE = 8, /* bytes beside a stage: its mbarrier */
    COMBINE_STAGE = 16, /* its mbarrier and its note */
    DISPATCH_WARP = 512 /* bytes beside a warp's stages: the list of a token's targets */
};

/* What a warp takes of shared memory. */
struct appetite {
    const char *what;
    uint32_t stages, fewest; /* wanted, and the least that works */
    uint32_t stage_bytes, warp_bytes;
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
    uint32_t row = (num_ranks + num_experts) * 4 + ROUTE_BUFFER_BYTES;
    uint32_t settle = num_experts * 8;
    uint32_t warps = info->kind == TERN_MACHINE_CPU ? CPU_WARPS : ROUTE_WARPS;
    while (warps > 1 && (warps * row > info->max_shared_bytes || (warps - 1) * ROUTE_TOKENS >= num_tokens)) {
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

/* As many of `warps` as fit with the stages that they want; with fewer stages if not even one does. */
static enum tern_status fit(const struct machine_info *info, const struct appetite *a, uint32_t warps,
                            struct geometry *g)
{
    uint64_t room = info->max_shared_bytes > g->table_bytes ? info->max_shared_bytes - g->table_bytes : 0;
    uint32_t stages = a->stages;
    while (stages > a->fewest && (uint64_t)stages * a->stage_bytes + a->warp_bytes > room) {
        stages--;
    }
    uint64_t a_warp = (uint64_t)stages * a->stage_bytes + a->warp_bytes;
    if (a_warp > room) {
        return TERN_FAIL(
            TERN_UNSUPPORTED,
            "%s needs %llu bytes of shared memory for %u rows at once; %s has %llu: rows are too long",
            a->what, (unsigned long long)a_warp, stages, info->name, (unsigned long long)room);
    }
    warps = warps * a_warp > room ? (uint32_t)(room / a_warp) : warps;
    g->num_stages = stages;
    g->num_threads = (int)warps * 32;
    g->shared_bytes = g->table_bytes + (uint32_t)(warps * a_warp);
    return TERN_OK;
}

enum tern_status terni_tuning_dispatch(const struct machine_info *info, int bulk, int cast,
                                       uint32_t stage_bytes, uint32_t table_bytes, struct geometry *g)
{
    struct appetite a = {"dispatch", DISPATCH_STAGES, 2, stage_bytes + DISPATCH_STAGE, DISPATCH_WARP};
    if (!bulk) {
        a.stages = a.fewest = 1;
    } else if (cast) {
        a.stages = CAST_STAGES;
    }
    g->table_bytes = table_bytes;
    return fit(info, &a, most_warps(info), g);
}

enum tern_status terni_tuning_combine(const struct machine_info *info, int bulk, uint32_t stage_bytes,
                                      uint32_t table_bytes, struct geometry *g)
{
    struct appetite a = {"combine", COMBINE_STAGES, 2, stage_bytes + COMBINE_STAGE, 0};
    g->table_bytes = table_bytes;
    if (!bulk) {
        g->num_stages = 1;
        g->num_threads = (int)most_warps(info) * 32;
        g->shared_bytes = table_bytes;
        return TERN_OK;
    }
    while (a.stages > 2 &&
           (uint64_t)COMBINE_WARPS * a.stages * a.stage_bytes + table_bytes > info->max_shared_bytes) {
        a.stages--;
    }
    return fit(info, &a, most_warps(info), g);
}
