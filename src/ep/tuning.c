/* SPDX-License-Identifier: Apache-2.0
 *
 * See tuning.h. On GPUs shared memory decides: a warp needs its ring of stages, and as many warps as fit keep
 * the links busy. On the cpu machine every thread is a fiber to be switched to, so that few are best. */
#include "ep/tuning.h"

#include <string.h>

#include "ep/layout.h"
#include "kernels/kernels.h"
#include "kernels/ll_far_args.h"

enum {
    PARTED_TOKENS = 4,  /* a warp; with more, combine does not cut tokens */
    DISPATCH_STAGE = 8, /* bytes beside a stage: its mbarrier */
    COMBINE_STAGE = 16, /* its mbarrier and its note */
    INTER_WARPS = 7,    /* of a block of dispatch across domains, beside one for ids or the poster */
    INTER_STAGES = 4,   /* of such a warp, where rows are short: its first piece is loaded at once */
    MIX_WARPS = 8,      /* of combine, where warps are by themselves */
    DRAIN_SENDERS = 9,  /* warps of a block that sends where others drain: for registers */
    DRAIN_WARPS = 6,    /* of a block that drains, with so many stages each */
    DRAIN_STAGES = 5,
    DRAIN_STAGE = 7168,     /* bytes */
    DRAIN_SLICE = 65536,    /* bytes that one of them takes at once */
    HELP_FEWEST_STAGES = 4, /* of a sender that has sent all and helps, if there is room */
    HELP_STAGES = 8,
    CPU_DRAIN_WARPS = 4,
    CPU_DRAIN_STAGE = 64,
    CPU_DRAIN_SLICE = 1024,
    PUSH_BLOCKS = 9, /* of combine that push: with fewer a link is not full, with more adders wait */
    PUSHERS = 6,     /* warps of such a block, with so many stages each */
    PUSH_STAGES = 4,
    PUSH_STAGE = 7168, /* bytes */
    CPU_PUSH_WARPS = 4,
    CPU_PUSHERS = 2,
    CPU_PUSH_STAGES = 3,
    CPU_PUSH_STAGE = 256,
    LINES = 3,       /* of a block of combine across domains, where warps are in lines */
    LINE_ADDERS = 3, /* of a line: with the two others, and a poster, 512 threads a block */
    LINE_SLOTS = 32,
    LINE_UNIT = 128,       /* bytes: what begins in shared memory begins at a multiple */
    LINE_FEWEST_SLOTS = 8, /* of a line, or there are fewer lines */
    MOST_STREAMS = 96,     /* unless there are more queues */
    DISPATCH_LIST = 128,   /* bytes a courier: tokens whose ids, weights and sources it sends */
    USUAL_ROW = 14336      /* bytes; what a device that is not in the table is computed for */
};

enum { LL_FAR_WARPS = 12 }; /* of a block of low latency across domains */
_Static_assert((int)LL_FAR_WARPS <= (int)LL_NEAR, "a warp of a dispatch has a queue pair at hand");
_Static_assert((int)INTER_WARPS <= (int)POSTER_MAX_PRODUCERS && (int)LINES <= (int)POSTER_MAX_PRODUCERS,
               "a poster looks after so many");
_Static_assert((LINES * (LINE_ADDERS + 2) + 1) * 32 <= (int)TERN_THREADS_combine_inter_bulk,
               "lines and their poster fit in a block");
_Static_assert(PUSH_STAGES >= 2 && CPU_PUSH_STAGES >= 2 && (int)PUSH_STAGES + 6 < (int)PUSH_NOTES &&
                   PUSHERS <= 32,
               "what pushers do is behind no more than six copies, and a lane looks after each");

/* ThreadSanitizer follows 8128 fibers: there combine has as few as it can. */
#ifdef TERN_THREAD_SANITIZER
enum { CPU_LINES = 1, CPU_ADDERS = 1 };
#else
enum { CPU_LINES = 2, CPU_ADDERS = 2 };
#endif

/* What was measured to be best on one kind of device. */
struct tuned {
    enum tern_machine kind;
    int capability;
    uint32_t warps;           /* of dispatch and combine, beside one for ids and weights */
    uint32_t dispatch_stages; /* a warp has one token fewer than this on its way */
    uint32_t cast_stages;     /* the same with a cast, which waits on arithmetic: more warps, less deep */
    uint32_t combine_stages;  /* adding waits on latency: likewise */
    uint32_t inter_stages;    /* of dispatch across domains: more warps, less deep */
    uint32_t mix_warps, mix_stages;       /* of combine across domains, warps by themselves */
    uint32_t lines, line_adders;          /* likewise, where warps are in lines: of a block, of a line */
    uint32_t line_slots, line_piece;      /* of a line: rows, or parts of them, on their way; of an adder */
    uint32_t route_fewest, route_warps;   /* of a block of route */
    uint32_t route_tokens, route_workers; /* a warp, in one step; at most */
};

/* One row a device; microseconds of 4 x H200, 4096 tokens of 7168 BF16 channels, top-8, 24 SMs, p50
 * (docs/performance.md has the conditions):
 *   dispatch_stages  2: 498   3: 502   4: 497   6: 496
 *   cast_stages      2 with 7 warps: 322   4 with 3 warps: 767   (stages held BF16 rows then)
 *   combine          of all ranks' KiB: 4 stages, 12 warps: 523   3, 16: 509   2, 16: 513   5, 10: 525
 *                    on two H100 3, 16: 195, 8 SMs 372; of two rows' 2 KiB 2, 16: 195, 8 SMs 299
 *                    3, 16: 211, 8 SMs 306   2, 12: 199, 8 SMs 327   3, 10: 198, 8 SMs 329
 *   mix              as many warps as registers allow, stages for the shared memory that they leave
 *   route            16 warps, 8 workers: 20   1 block of 32 warps: 50 */
static const struct tuned tuned_devices[] = {
    {TERN_MACHINE_CPU, 0, 2, 4, 2, 2, 4, 2, 3, CPU_LINES, CPU_ADDERS, 5, 1024, 1, 2, 4, 3},
    {TERN_MACHINE_CUDA, 90, 16, 4, 2, 2, 2, MIX_WARPS, 13, LINES, LINE_ADDERS, LINE_SLOTS, LINE_PIECE, 16, 16,
     32, ROUTE_MAX_WORKERS},
};

static uint32_t clamp(uint32_t value, uint32_t low, uint32_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* A device that nobody measured: as deep as three warps of dispatch can be. */
static struct tuned computed(const struct machine_info *info)
{
    struct tuned t = tuned_devices[1]; /* but for what shared memory decides */
    t.kind = info->kind;
    t.capability = info->compute_capability;
    t.dispatch_stages = clamp(info->max_shared_bytes / (3 * USUAL_ROW), 2, 4);
    return t;
}

static struct tuned tuned_of(const struct machine_info *info)
{
    for (size_t i = 0; i < sizeof(tuned_devices) / sizeof(tuned_devices[0]); i++) {
        const struct tuned *t = &tuned_devices[i];
        if (t->kind == info->kind && t->capability == info->compute_capability) {
            return *t;
        }
    }
    return computed(info);
}

/* What a warp takes of shared memory. */
struct appetite {
    const char *what;
    uint32_t stages, fewest; /* wanted, and the least that works */
    uint32_t stage_bytes, block_bytes;
};

int terni_tuning_blocks(uint32_t sms, uint32_t fallback, int most)
{
    uint32_t n = sms ? sms : fallback;
    n = n > (uint32_t)most ? (uint32_t)most : n;
    return n > EP_MAX_BLOCKS ? EP_MAX_BLOCKS : (int)n;
}

/* Shared memory of the settler: route_settle.h, route_inter_settle.h. */
static uint32_t settler_bytes(const struct ep_shape *s)
{
    uint32_t keys = s->domain_ranks > s->domain_experts ? s->domain_ranks : s->domain_experts;
    uint32_t across = s->num_domains > 1 ? keys + s->experts_a_rank : 0;
    return (s->num_ranks + 2 * s->num_experts + across) * 4;
}

enum tern_status terni_tuning_route(const struct machine_info *info, const struct ep_shape *shape,
                                    uint32_t num_tokens, struct geometry *g)
{
    uint32_t num_ranks = shape->num_ranks, num_experts = shape->num_experts, num_sms = shape->num_sms;
    uint32_t domains = shape->num_domains > 1 ? shape->num_domains : 0;
    uint32_t row = (num_ranks + num_experts + domains) * 4 + ROUTE_BUFFER_BYTES;
    uint32_t settle = settler_bytes(shape);
    struct tuned tuned = tuned_of(info);
    uint32_t tokens = tuned.route_tokens;
    uint32_t warps = clamp((num_tokens + tokens - 1) / tokens, tuned.route_fewest, tuned.route_warps);
    while (warps > 1 && warps * row > info->max_shared_bytes) {
        warps--;
    }
    uint32_t most = num_sms > 2 ? num_sms - 1 : 1; /* workers, beside the settler */
    most = most < tuned.route_workers ? most : tuned.route_workers;
    uint32_t workers = clamp((num_tokens + warps * tokens - 1) / (warps * tokens), 1, most);
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

/* Of a warp, by bulk copies: no more than its lanes can keep in mind, whatever is measured or computed. */
static uint32_t dispatch_stages(const struct tuned *t, int cast)
{
    return clamp(cast ? t->cast_stages : t->dispatch_stages, 2, DISPATCH_MAX_STAGES);
}

enum tern_status terni_tuning_dispatch(const struct machine_info *info, int bulk, int cast,
                                       uint32_t stage_bytes, uint32_t table_bytes, uint32_t couriers,
                                       struct geometry *g)
{
    struct tuned tuned = tuned_of(info);
    struct appetite a = {"dispatch", dispatch_stages(&tuned, cast), 2, stage_bytes + DISPATCH_STAGE,
                         couriers * DISPATCH_LIST};
    if (!bulk) {
        a.stages = a.fewest = 1;
    }
    g->table_bytes = table_bytes;
    return fit(info, &a, tuned.warps, g);
}

enum tern_status terni_tuning_combine(const struct machine_info *info, int bulk, uint32_t stage_bytes,
                                      uint32_t table_bytes, struct geometry *g)
{
    struct tuned tuned = tuned_of(info);
    struct appetite a = {"combine", tuned.combine_stages, 2, stage_bytes + COMBINE_STAGE, 0};
    g->table_bytes = table_bytes;
    if (!bulk) {
        g->num_stages = 1;
        g->num_threads = (int)tuned.warps * 32;
        g->shared_bytes = table_bytes;
        return TERN_OK;
    }
    while (a.stages > 2 &&
           (uint64_t)tuned.warps * a.stages * a.stage_bytes + table_bytes > info->max_shared_bytes) {
        a.stages--;
    }
    return fit(info, &a, tuned.warps, g);
}

/* H200, 24 SMs, BF16, p50 of rows in windows, pulled and pushed: two GPUs, 4096 tokens 194 and 202 us,
 * 8192 372 and 363, 16384 719 and 686; of 4096 channels 8192 tokens 271 and 250, of 2048 219 and 186. Three
 * GPUs, 2048 tokens 197 and 199, 4096 366 and 356; four, 2048 268 and 267, 4096 507 and 490; eight 864 and
 * 854. With several peers what is added is more than what is pushed, and narrower rows lose: four GPUs, 4096
 * tokens of 4096 channels 301 and 324, of 2048 195 and 237. Of tensors in no window two GPUs, 4096 227 and
 * 206; four 597 and 501; eight 1021 and 864. 128 tokens, four GPUs, in windows 35 and 47. With 16 SMs, two
 * H100, 4096 in tensors 242 and 289. */
enum {
    PUSH_FROM_TOKENS = 4096,
    PUSH_FROM_TOKENS_OF_TWO = 8192,
    PUSH_FROM_ROW = 12288, /* bytes, with several peers: between 8 KiB (+23 us) and 14 (-17), rounded up */
    PUSH_FROM_SMS = 24
};
int terni_tuning_pushes_by(int num_blocks) { return num_blocks >= (int)PUSH_FROM_SMS; }

int terni_tuning_pushes(const struct ep_shape *s)
{
    const uint32_t tokens = s->num_ranks > 2 ? PUSH_FROM_TOKENS : PUSH_FROM_TOKENS_OF_TWO;
    const uint32_t row = s->num_ranks > 2 ? PUSH_FROM_ROW : 1;
    return s->num_ranks > 1 && s->max_tokens >= tokens && s->max_row_bytes >= row &&
           terni_tuning_pushes_by((int)s->num_sms);
}

/* Two H100, 4096 tokens, 24 SMs, p50 with 8 blocks that push 222 us, 9: 203, 10: 213, 12: 246; 48 SMs, 10:
 * 193, 18: 218. 9 pushers of 3 stages instead of 6 of 4 with 8 blocks 215 for 220, with 9 210 for 203. */
enum tern_status terni_tuning_push(const struct machine_info *info, uint32_t stage_bytes,
                                   uint32_t table_bytes, int num_blocks, struct push_geometry *x)
{
    struct tuned tuned = tuned_of(info);
    int cpu = info->kind == TERN_MACHINE_CPU;
    struct appetite a = {"combine", 2, 2, stage_bytes + COMBINE_STAGE, 0};
    x->all.table_bytes = table_bytes;
    TERN_TRY(fit(info, &a, cpu ? CPU_PUSH_WARPS : tuned.warps, &x->all));
    x->push_blocks = clamp((uint32_t)num_blocks * 3 / 8, 1, PUSH_BLOCKS);
    x->num_pushers = cpu ? CPU_PUSHERS : PUSHERS;
    x->num_stages = cpu ? CPU_PUSH_STAGES : PUSH_STAGES;
    x->stage_bytes = cpu ? CPU_PUSH_STAGE : PUSH_STAGE;
    uint32_t beside =
        x->num_stages * (uint32_t)sizeof(uint64_t) + PUSH_NOTES * (uint32_t)sizeof(struct push_note);
    x->warp_bytes = (uint32_t)align_up(x->num_stages * x->stage_bytes + beside, 128);
    x->boxes_offset = table_bytes + x->num_pushers * x->warp_bytes;
    uint32_t pushing = x->boxes_offset + x->num_pushers * (uint32_t)sizeof(struct push_box);
    uint32_t warps = (uint32_t)x->all.num_threads / 32; /* of the adders */
    if (pushing > info->max_shared_bytes || warps < x->num_pushers + 2) {
        return TERN_FAIL(
            TERN_UNSUPPORTED,
            "combine_push is 1: a block that pushes takes %u bytes of shared memory and %u warps; %s "
            "has %u bytes, and for what is added %u warps",
            pushing, x->num_pushers + 2, info->name, info->max_shared_bytes, warps);
    }
    x->all.shared_bytes = x->all.shared_bytes > pushing ? x->all.shared_bytes : pushing;
    return TERN_OK;
}

/* What senders' stages leave to helpers: four stages each, or fewer helpers than senders. Barriers of the
 * senders are behind their stages, and stay what they are. */
static void help(struct drain_geometry *x, uint32_t stage_bytes, uint32_t unit)
{
    uint32_t room = x->num_senders * x->all.num_stages * stage_bytes;
    x->helpers = clamp(room / (HELP_FEWEST_STAGES * unit), 1, x->num_senders);
    x->help_bytes = room / x->helpers & ~127u;
    x->help_stages = clamp(x->help_bytes / unit, 0, HELP_STAGES);
    x->helpers = x->help_stages < 2 ? 0 : x->helpers;
}

/* Half of the blocks drain: a processor copies 38 GB/s, and stores 48 where it sends. Four H200, 4096 tokens,
 * 24 SMs, p50 with 8 blocks that drain 535 us, 10: 511, 12: 506; FP8 325, 303, 297. Without the senders' help
 * behind the last row 640 with 8. 12 blocks, slices of 64 KiB 505, of 256 KiB 510. With one peer half of what
 * is sent are own rows, which no link slows: two H200, 8: 220, 10: 211, 12: 233. */
enum tern_status terni_tuning_drain(const struct machine_info *info, int cast, uint32_t stage_bytes,
                                    uint32_t table_bytes, uint32_t num_ranks, int num_blocks,
                                    struct drain_geometry *x)
{
    uint32_t wanted = info->kind == TERN_MACHINE_CPU ? CPU_DRAIN_STAGE : DRAIN_STAGE;
    uint32_t counters = (uint32_t)align_up(DRAIN_PHASES * sizeof(uint32_t), 128);
    const uint32_t beside = RING_BESIDE;
    uint32_t couriers;
    x->num_drainers = info->kind == TERN_MACHINE_CPU ? CPU_DRAIN_WARPS : DRAIN_WARPS;
    TERN_TRY(
        terni_tuning_dispatch(info, 1, cast, stage_bytes, table_bytes + counters, x->num_drainers, &x->all));
    x->num_senders = clamp((uint32_t)x->all.num_threads / 32, 1, DRAIN_SENDERS);
    couriers = x->num_drainers > x->num_senders + 1 ? x->num_drainers - x->num_senders - 1 : 0;
    couriers = couriers < DISPATCH_COURIERS ? DISPATCH_COURIERS : couriers;
    x->all.num_threads = (int)(x->num_senders + couriers + 1) * 32; /* the last warp is the teller */
    x->drain_blocks =
        num_blocks ? clamp((uint32_t)num_blocks * (num_ranks > 2 ? 6 : 5) / 12, 1, (uint32_t)num_blocks - 1)
                   : 0;
    x->counters_offset = table_bytes;
    x->num_stages = DRAIN_STAGES;
    uint32_t room = (info->max_shared_bytes - x->all.table_bytes) / x->num_drainers & ~127u;
    if (room / DRAIN_STAGES < beside + 16) {
        return TERN_FAIL(
            TERN_UNSUPPORTED,
            "dispatch_drain is 1: %u warps of a block that drains have %u bytes of shared memory "
            "each beside tables, on %s, which is too few",
            x->num_drainers, room, info->name);
    }
    x->ring_bytes = clamp(room / DRAIN_STAGES - beside, 0, wanted) & ~15u;
    x->warp_bytes = (uint32_t)align_up(DRAIN_STAGES * (x->ring_bytes + beside), 128);
    help(x, stage_bytes, x->ring_bytes + beside);
    x->slice_bytes = info->kind == TERN_MACHINE_CPU ? CPU_DRAIN_SLICE : DRAIN_SLICE;
    uint32_t draining = x->all.table_bytes + x->num_drainers * x->warp_bytes;
    x->all.shared_bytes = x->all.shared_bytes > draining ? x->all.shared_bytes : draining;
    return TERN_OK;
}

/* Kernels across domains keep more in registers, so their blocks have fewer warps. */
static uint32_t inter_warps(const struct tuned *t) { return t->warps < INTER_WARPS ? t->warps : INTER_WARPS; }

/* Of a forwarder's warp: it casts nothing, so that it has as many as one without a cast, if there is room. */
static uint32_t forward_stages(const struct machine_info *info, uint32_t wanted, const struct appetite *a,
                               const struct geometry *g)
{
    uint32_t room = info->max_shared_bytes - g->table_bytes - a->block_bytes;
    return clamp(room / ((uint32_t)g->num_threads / 32 * a->stage_bytes), g->num_stages, wanted);
}

/* Of a warp that casts nothing: where rows are short, all of a stream's first piece. */
static uint32_t inter_stages(const struct machine_info *info, const struct tuned *t, const struct appetite *a,
                             uint32_t table_bytes)
{
    uint64_t fixed = (uint64_t)table_bytes + a->block_bytes;
    uint64_t room = info->max_shared_bytes > fixed ? info->max_shared_bytes - fixed : 0;
    uint32_t stages = t->inter_stages;
    while (stages < INTER_STAGES && (uint64_t)inter_warps(t) * (stages + 1) * a->stage_bytes <= room) {
        stages++;
    }
    return stages;
}

uint32_t terni_tuning_poster_bytes(uint32_t producers)
{
    return POSTER_DESK_BYTES + producers * POSTER_PRODUCER_BYTES + POSTER_NEAR_BYTES;
}

enum tern_status terni_tuning_dispatch_inter(const struct machine_info *info, int bulk, int cast,
                                             uint32_t stage_bytes, uint32_t table_bytes,
                                             struct inter_geometry *g)
{
    struct tuned tuned = tuned_of(info);
    uint32_t beside = DISPATCH_STAGE + (uint32_t)sizeof(struct stage_note);
    uint32_t poster = terni_tuning_poster_bytes(inter_warps(&tuned));
    uint32_t taken = inter_warps(&tuned) * FORWARD_TAKEN_BYTES;
    struct appetite a = {"dispatch", 1, bulk ? 2 : 1, stage_bytes + beside,
                         DISPATCH_LIST + poster + taken + (uint32_t)sizeof(struct rail_args)};
    uint32_t most = bulk ? inter_stages(info, &tuned, &a, table_bytes) : 1;
    a.stages = bulk && cast ? tuned.cast_stages : most;
    g->all.table_bytes = table_bytes;
    TERN_TRY(fit(info, &a, inter_warps(&tuned), &g->all));
    g->forward_stages = bulk ? forward_stages(info, most, &a, &g->all) : 1;
    uint32_t more = g->forward_stages - g->all.num_stages, warps = (uint32_t)g->all.num_threads / 32;
    g->all.shared_bytes += more * warps * a.stage_bytes;
    g->notes_offset = g->all.shared_bytes - warps * g->forward_stages * (uint32_t)sizeof(struct stage_note);
    g->poster_offset = g->notes_offset - poster;
    g->rail_offset = g->poster_offset - (uint32_t)sizeof(struct rail_args);
    g->taken_offset = g->rail_offset - taken;
    return TERN_OK;
}

enum tern_status terni_tuning_combine_inter(const struct machine_info *info, int bulk, uint32_t most_warps,
                                            uint32_t stage_bytes, uint32_t table_bytes, struct geometry *g)
{
    struct tuned tuned = tuned_of(info);
    uint32_t warps = tuned.mix_warps < most_warps ? tuned.mix_warps : most_warps;
    uint32_t beside = COMBINE_STAGE + (uint32_t)sizeof(struct stage_note);
    struct appetite a = {"combine", tuned.mix_stages, 2, (bulk ? stage_bytes : 0) + beside, 0};
    a.stages = bulk ? a.stages : 1;
    a.fewest = bulk ? a.fewest : 1;
    g->table_bytes = table_bytes;
    while (a.stages > a.fewest &&
           (uint64_t)warps * a.stages * a.stage_bytes + table_bytes > info->max_shared_bytes) {
        a.stages--;
    }
    return fit(info, &a, warps, g);
}

enum tern_status terni_tuning_combine_line(const struct machine_info *info, uint32_t row_bytes,
                                           uint32_t table_bytes, struct line_geometry *x)
{
    struct tuned tuned = tuned_of(info);
    struct geometry *g = &x->all;
    uint32_t piece = clamp(row_bytes, 1, tuned.line_piece), pieces = (row_bytes + piece - 1) / piece;
    uint32_t poster = terni_tuning_poster_bytes(tuned.lines);
    uint32_t fixed = table_bytes + poster + (uint32_t)sizeof(struct combine_inter_args);
    uint32_t room = info->max_shared_bytes > fixed ? info->max_shared_bytes - fixed : 0;
    x->piece = piece;
    x->adders = clamp(pieces, 1, tuned.line_adders);
    uint32_t slot = x->adders * piece + LINE_SLOT_BYTES;
    x->lines = tuned.lines;
    while (x->lines > 1 && room / x->lines < LINE_BYTES + LINE_FEWEST_SLOTS * slot) {
        x->lines--;
    }
    room = room / x->lines / LINE_UNIT * LINE_UNIT;
    g->num_stages = room > LINE_BYTES ? clamp((room - LINE_BYTES) / slot, 0, tuned.line_slots) : 0;
    g->num_threads = (int)(x->lines * (x->adders + 2) + 1) * 32; /* the last warp is the poster */
    g->table_bytes = table_bytes;
    x->bars_offset = g->num_stages * x->adders * piece;
    x->line_bytes =
        (uint32_t)align_up(x->bars_offset + LINE_BYTES + g->num_stages * LINE_SLOT_BYTES, LINE_UNIT);
    x->poster_offset = table_bytes + x->lines * x->line_bytes;
    x->args_offset = x->poster_offset + poster;
    g->shared_bytes = x->args_offset + (uint32_t)sizeof(struct combine_inter_args);
    if (g->num_stages < 2) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "combine across domains needs %u bytes of shared memory a block; %s has %u",
                         fixed + LINE_BYTES + 2 * slot, info->name, info->max_shared_bytes);
    }
    return TERN_OK;
}

/* Three for each warp of dispatch's rails, a third of the blocks; two or one where that is many. 12 SMs,
 * modelled network: BF16 1378 us with 56, 1360 with 84, FP8 820 and 797. Two warps can look after all, where
 * an operation has few blocks. */
uint32_t terni_tuning_streams(uint32_t num_blocks, uint32_t num_domains)
{
    uint32_t senders = clamp(num_blocks / 3 * INTER_WARPS, 1, MOST_STREAMS);
    uint32_t streams = senders * clamp(MOST_STREAMS / senders, 1, 3);
    return (streams + num_domains - 2) / (num_domains - 1);
}

/* A credit takes as long to post as a put, and there are two for three puts: so puts have half of the queues
 * to three quarters, as many as streams share most evenly, since the wire is shared by queues. 4 H200, 12
 * SMs, combine in a row: 14 of 42 for credits 1331 us, 28 of 56 1323, 4 of 32 2050; by queues that both share
 * 1341. */
uint32_t terni_tuning_put_queues(uint32_t num_streams, uint32_t num_queues)
{
    uint32_t best = num_queues, least = ~0u;
    for (uint32_t n = (num_queues + 1) / 2; n <= num_queues - num_queues / 4; n++) {
        uint32_t unused = (num_streams + n - 1) / n * n - num_streams;
        best = unused <= least ? n : best;
        least = unused < least ? unused : least;
    }
    return best;
}

/* With one other domain home adds three rows of a token for two that a forwarder adds, and it alone folds.
 * With half of the blocks each, forwarders waited four fifths of the time (2 x H200, 12 SMs, modelled
 * network: 2.58 ms, with 5 forwarders 1.93, with 4 2.10, with 3 2.62; by loads and stores, where nothing is
 * put, 1.67 with 6 and 1.29 with 4). Since forwarders help at home when they are done, 5 of 12 are best: in a
 * row 1303 us, with 4 and 6 1312, with 3 1403. With more domains forwarders have more messages a token.
 * No more forwarders than let the line with most streams have fewest. `lines`: of a block. */
struct inter_roles terni_tuning_line_roles(uint32_t num_streams, uint32_t num_domains, uint32_t lines,
                                           uint32_t num_blocks)
{
    struct inter_roles r = {0, 0, 0};
    uint32_t most = clamp(num_domains == 2 ? num_blocks * 5 / 12 : num_blocks / 2, 1, num_blocks) * lines;
    uint32_t each = (num_streams + most - 1) / most;
    r.forwarders = ((num_streams + each - 1) / each + lines - 1) / lines;
    r.own = num_blocks - r.forwarders;
    return r;
}

/* A rail moves a message within this rank's memory; a forwarder moves it to, or adds, some rows of its
 * domain, as own senders and home do with this rank's tokens. Own senders wait for nobody, so that they are
 * done first, and forwarders begin last (12 SMs: own 540 us with 4 blocks, 1080 with 2, of 1360). Warps
 * beyond the streams would find nothing to do. `warps`: of a block. */
struct inter_roles terni_tuning_roles(uint32_t num_streams, uint32_t warps, uint32_t num_blocks,
                                      int has_rails)
{
    struct inter_roles r = {0, 0, 0};
    uint32_t most = (num_streams + warps - 1) / warps;
    r.rails = has_rails ? clamp(num_blocks / 3, 1, most) : 0;
    r.forwarders = clamp(has_rails ? num_blocks * 5 / 12 : num_blocks / 2, 1, most);
    r.own = num_blocks - r.rails - r.forwarders;
    return r;
}

enum tern_status terni_tuning_low_latency(const struct machine_info *info, const struct ep_shape *shape,
                                          uint32_t shared_bytes, struct geometry *g)
{
    memset(g, 0, sizeof(*g));
    g->num_threads =
        (int)terni_tuning_ll_depth(info, shape).warps * 32; /* all warps of a block cast one token */
    g->shared_bytes = shared_bytes;
    if (shared_bytes > info->max_shared_bytes) {
        return TERN_FAIL(
            TERN_UNSUPPORTED,
            "low latency needs %u bytes of shared memory a block; %s has %u: rows are too long, or "
            "experts too many",
            shared_bytes, info->name, info->max_shared_bytes);
    }
    return TERN_OK;
}

struct ll_depth terni_tuning_ll_depth(const struct machine_info *info, const struct ep_shape *shape)
{
    /* On GPUs a warp has a usual row whole on its way. On the cpu machine rings are short, so that they go
     * round. */
    struct ll_depth cpu = {2, 256, 3, 2, info->max_shared_bytes},
                    gpu = {16, 2048, 8, 8, info->max_shared_bytes};
    if (shape->num_domains > 1) {
        gpu.warps = LL_FAR_WARPS; /* whose threads hold what goes to the network beside all else */
    }
    return info->kind == TERN_MACHINE_CPU ? cpu : gpu;
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
