/* SPDX-License-Identifier: Apache-2.0
 *
 * See tuning.h. On GPUs shared memory decides: a warp needs its ring of stages, and as many warps as fit keep
 * the links busy. On the cpu machine every thread is a fiber to be switched to, so that few are best.
 * docs/performance.md has the measurements behind the numbers. */
#include "ep/tuning.h"

#include "kernels/ep_args.h"

enum {
    CPU_WARPS = 2,
    GPU_WARPS = 16,      /* beside one for ids and weights */
    DISPATCH_WARPS = 20, /* all roles; as many as registers allow */
    ROUTE_WARPS = 16,
    ROUTE_TOKENS = 32, /* a warp, until there are as many workers as can be: one step */
    CPU_ROUTE_TOKENS = 4,
    CPU_ROUTE_WORKERS = 3,
    DISPATCH_STAGES = 4, /* three tokens in flight a warp */
    CAST_STAGES = 2,     /* casting waits on arithmetic: warps come before deep rings */
    COMBINE_STAGES = 3,
    COMBINE_WARPS = 16, /* adding waits on latency: likewise */
    KEEPERS = 8,        /* warps of a dispatch that keep own rows, with so few blocks: */
    KEEPER_BLOCKS = 15,
    CPU_KEEPERS = 1,
    CPU_KEEPER_BLOCKS = 1,
    PARTED_TOKENS = 4,  /* a warp; with more, combine does not cut tokens */
    DISPATCH_STAGE = 8, /* bytes beside a stage: its mbarrier */
    COMBINE_STAGE = 16, /* its mbarrier and its note */
    DISPATCH_LIST = 128 /* bytes a block: tokens of the warp that sends ids, weights and sources */
};

/* What a warp takes of shared memory. */
struct appetite {
    const char *what;
    uint32_t stages, fewest; /* wanted, and the least that works */
    uint32_t stage_bytes, block_bytes;
};

static uint32_t most_warps(const struct machine_info *info)
{
    return info->kind == TERN_MACHINE_CPU ? CPU_WARPS : GPU_WARPS;
}

int terni_tuning_blocks(uint32_t sms, uint32_t fallback, int most)
{
    uint32_t n = sms ? sms : fallback;
    n = n > (uint32_t)most ? (uint32_t)most : n;
    return n > EP_MAX_BLOCKS ? EP_MAX_BLOCKS : (int)n;
}

enum tern_status terni_tuning_route(const struct machine_info *info, uint32_t num_ranks, uint32_t num_experts,
                                    uint32_t num_tokens, struct geometry *g)
{
    uint32_t row = (num_ranks + num_experts) * 4 + ROUTE_BUFFER_BYTES;
    uint32_t settle = (num_ranks + 2 * num_experts) * 4;
    uint32_t most = ROUTE_MAX_WORKERS, warps = ROUTE_WARPS, tokens = ROUTE_TOKENS;
    if (info->kind == TERN_MACHINE_CPU) {
        most = CPU_ROUTE_WORKERS;
        warps = num_tokens > CPU_ROUTE_TOKENS ? CPU_WARPS : 1;
        tokens = CPU_ROUTE_TOKENS;
    }
    while (warps > 1 && warps * row > info->max_shared_bytes) {
        warps--;
    }
    uint32_t workers = (num_tokens + warps * tokens - 1) / (warps * tokens);
    workers = workers < 1 ? 1 : workers > most ? most : workers;
    g->num_blocks = (int)workers + 1;
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
    uint64_t fixed = (uint64_t)g->table_bytes + a->block_bytes;
    uint64_t room = info->max_shared_bytes > fixed ? info->max_shared_bytes - fixed : 0;
    uint32_t stages = a->stages;
    while (stages > a->fewest && (uint64_t)stages * a->stage_bytes > room) {
        stages--;
    }
    uint64_t a_warp = (uint64_t)stages * a->stage_bytes;
    if (a_warp > room) {
        return TERN_FAIL(
            TERN_UNSUPPORTED,
            "%s needs %llu bytes of shared memory for %u rows at once; %s has %llu: rows are too long",
            a->what, (unsigned long long)a_warp, stages, info->name, (unsigned long long)room);
    }
    warps = warps * a_warp > room ? (uint32_t)(room / a_warp) : warps;
    g->num_stages = stages;
    g->num_threads = (int)warps * 32;
    g->shared_bytes = (uint32_t)(fixed + warps * a_warp);
    return TERN_OK;
}

enum tern_status terni_tuning_dispatch(const struct machine_info *info, int bulk, int cast,
                                       uint32_t stage_bytes, uint32_t table_bytes, struct geometry *g)
{
    struct appetite a = {"dispatch", DISPATCH_STAGES, 2, stage_bytes + DISPATCH_STAGE, DISPATCH_LIST};
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

uint32_t terni_tuning_parts(uint32_t num_tokens, uint32_t chunks, uint32_t warps, uint32_t *part_chunks)
{
    uint64_t least = UINT64_MAX;
    uint32_t parts = 1;
    *part_chunks = chunks;
    for (uint32_t c = chunks; c > 0 && num_tokens < PARTED_TOKENS * warps; c--) {
        uint32_t n = (chunks + c - 1) / c;
        uint64_t most = ((uint64_t)num_tokens * n + warps - 1) / warps * c; /* chunks of the busiest warp */
        if (most < least) {
            least = most;
            parts = n;
            *part_chunks = c;
        }
    }
    return parts;
}

uint32_t terni_tuning_keepers(const struct machine_info *info, int num_blocks, uint32_t num_senders)
{
    uint32_t most = DISPATCH_WARPS - 1 - num_senders;
    if (info->kind == TERN_MACHINE_CPU) {
        return num_blocks <= CPU_KEEPER_BLOCKS ? CPU_KEEPERS : 0;
    }
    return num_blocks > KEEPER_BLOCKS ? 0 : most < KEEPERS ? most : KEEPERS;
}
