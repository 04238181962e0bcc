/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes are pure functions: they grow with every argument, hold in 64 bits, refuse what cannot be, and their
 * worst case is enough for the worst routing that the reference can be given. So are geometries and who
 * pushes. Needs no machine. Over 500 lines, as each of many functions has a sweep of its own. */
#include "ep/tuning.h"
#include "ref/ref.h"
#include "support.h"

#include <stdlib.h>
#include <string.h>

static struct tern_ep_config draw_config(struct rng *r, int *num_ranks)
{
    struct tern_ep_config c = TERN_EP_CONFIG_INIT;

    *num_ranks = (int)rng_between(r, 1, 128);
    c.num_experts = (uint32_t)*num_ranks * rng_between(r, 1, 16);
    c.max_topk = rng_between(r, 1, 64);
    c.max_tokens = rng_between(r, 1, 8192);
    c.max_row_bytes = rng_between(r, 1, 32768);
    c.max_routes = rng_below(r, 9);
    c.num_sms = rng_below(r, 100);
    c.staging_bytes = rng_one_in(r, 3)   ? TERN_STAGING_NONE
                      : rng_one_in(r, 2) ? rng_between(r, 1, 1 << 30)
                                         : 0;
    return c;
}

/* ---- Monotone ---- */

static int compare_sizes(const struct tern_ep_sizes *a, const struct tern_ep_sizes *b, const char *field)
{
    CHECK(a->window_bytes <= b->window_bytes && a->device_bytes <= b->device_bytes &&
              a->host_bytes <= b->host_bytes && a->staging_bytes <= b->staging_bytes &&
              a->max_rows <= b->max_rows,
          "a size shrinks as %s grows", field);
    return 0;
}

enum { NUM_FIELDS = 6 };

/* Makes one argument larger; its name. */
static const char *enlarge(struct rng *r, int field, struct tern_ep_config *c, int *num_ranks)
{
    switch (field) {
    case 0:
        c->num_experts += (uint32_t)*num_ranks * rng_between(r, 1, 4);
        return "num_experts";
    case 1:
        c->max_topk += rng_below(r, 65 - c->max_topk);
        return "max_topk";
    case 2:
        c->max_tokens += rng_below(r, 1000);
        return "max_tokens";
    case 3:
        c->max_row_bytes += rng_below(r, 1000);
        return "max_row_bytes";
    case 4:
        c->max_routes = (c->max_routes ? c->max_routes : 4) + rng_below(r, 4);
        return "max_routes";
    default:
        c->num_experts = c->num_experts / (uint32_t)*num_ranks * 128; /* as many a rank */
        *num_ranks = 128;
        return "num_ranks";
    }
}

static int monotone(struct test *t)
{
    struct rng r = {1};
    int i, rounds = test_scaled(t, 20000);

    for (i = 0; i < rounds; i++) {
        struct tern_ep_sizes small = TERN_EP_SIZES_INIT, large = TERN_EP_SIZES_INIT;
        uint64_t rows = 0, more_rows = 0;
        uint32_t alignment = rng_below(&r, 257);
        int layout = (int)rng_below(&r, 2);
        int ranks;
        struct tern_ep_config c = draw_config(&r, &ranks);
        const char *field;
        OK(tern_ep_get_sizes(&c, ranks, &small));
        OK(tern_ep_max_rows(&c, ranks, layout, alignment, &rows));
        CHECK(small.max_rows == (uint64_t)ranks * c.max_tokens, "max_rows is %llu for %d ranks of %u tokens",
              (unsigned long long)small.max_rows, ranks, c.max_tokens);
        CHECK(small.staging_bytes <= small.window_bytes, "staging is a part of the window");
        CHECK(layout != TERN_LAYOUT_RANK || rows == small.max_rows, "rank layout has %llu rows, not %llu",
              (unsigned long long)rows, (unsigned long long)small.max_rows);
        field = enlarge(&r, i % NUM_FIELDS, &c, &ranks);
        OK(tern_ep_get_sizes(&c, ranks, &large));
        OK(tern_ep_max_rows(&c, ranks, layout, alignment, &more_rows));
        PASS(compare_sizes(&small, &large, field));
        CHECK(rows <= more_rows, "max_rows shrinks as %s grows", field);
        OK(tern_ep_max_rows(&c, ranks, TERN_LAYOUT_EXPERT, alignment + 1, &rows));
        OK(tern_ep_max_rows(&c, ranks, TERN_LAYOUT_EXPERT, alignment ? alignment : 1, &more_rows));
        CHECK(more_rows <= rows, "max_rows shrinks as the alignment grows to %u", alignment + 1);
    }
    test_detail(t, "%d configurations", rounds);
    return 0;
}

/* ---- 64 bits: what is accepted is at least what the rows alone take; anything may be refused, nothing wraps
 * ---- */

static int huge(struct test *t)
{
    struct rng r = {2};
    int i, accepted = 0, rounds = test_scaled(t, 20000);

    for (i = 0; i < rounds; i++) {
        struct tern_ep_sizes sizes = TERN_EP_SIZES_INIT;
        struct tern_ep_config c = TERN_EP_CONFIG_INIT;
        int ranks = 1 << rng_below(&r, 8);
        double rows, staged;
        c.num_experts = (uint32_t)ranks << rng_below(&r, 12);
        c.max_topk = 1u << rng_below(&r, 7);
        c.max_tokens = (uint32_t)(rng_next(&r) >> (32 + rng_below(&r, 32)));
        c.max_row_bytes = (uint32_t)(rng_next(&r) >> (32 + rng_below(&r, 32)));
        c.max_routes = (uint32_t)(rng_next(&r) >> (32 + rng_below(&r, 32)));
        if (tern_ep_get_sizes(&c, ranks, &sizes) != TERN_OK) {
            continue;
        }
        accepted++;
        rows = (double)ranks * c.max_tokens;
        staged = rows * c.max_row_bytes;
        CHECK((double)sizes.max_rows == rows, "max_rows is %llu, not %.0f",
              (unsigned long long)sizes.max_rows, rows);
        CHECK((double)sizes.staging_bytes >= staged, "staging of %llu bytes is below %.0f",
              (unsigned long long)sizes.staging_bytes, staged);
        CHECK((double)sizes.window_bytes >= staged, "a window of %llu bytes is below %.0f",
              (unsigned long long)sizes.window_bytes, staged);
        CHECK((double)sizes.device_bytes >= 4.0 * c.max_routes * c.max_tokens * c.max_topk,
              "device memory of %llu bytes does not hold %u routes", (unsigned long long)sizes.device_bytes,
              c.max_routes);
    }
    CHECK(accepted > rounds / 50, "only %d of %d large configurations are accepted", accepted, rounds);
    test_detail(t, "%d of %d accepted", accepted, rounds);
    return 0;
}

/* 128 ranks of 4096 tokens of 14336 bytes, 512 experts, top-8: more than 32 bits, and legal. */
static int beyond_32_bits(struct test *t)
{
    struct tern_ep_config c = TERN_EP_CONFIG_INIT;
    struct tern_ep_sizes sizes = TERN_EP_SIZES_INIT;

    (void)t;
    c.num_experts = 512;
    c.max_topk = 8;
    c.max_tokens = 4096;
    c.max_row_bytes = 14336;
    OK(tern_ep_get_sizes(&c, 128, &sizes));
    CHECK(sizes.staging_bytes >= 128ull * 4096 * 14336, "staging is %llu bytes",
          (unsigned long long)sizes.staging_bytes);
    c.staging_bytes = TERN_STAGING_NONE;
    OK(tern_ep_get_sizes(&c, 128, &sizes));
    CHECK(sizes.staging_bytes == 0, "no staging takes %llu bytes", (unsigned long long)sizes.staging_bytes);
    c.staging_bytes = 1000000;
    OK(tern_ep_get_sizes(&c, 128, &sizes));
    CHECK(sizes.staging_bytes >= 1000000 && sizes.staging_bytes < 1100000,
          "1000000 bytes of staging became %llu", (unsigned long long)sizes.staging_bytes);
    return 0;
}

/* ---- Several domains ---- */

static int domains(struct test *t)
{
    struct rng r = {3};
    int i, rounds = test_scaled(t, 2000);

    for (i = 0; i < rounds; i++) {
        struct tern_ep_sizes whole = TERN_EP_SIZES_INIT, cut = TERN_EP_SIZES_INIT, more = TERN_EP_SIZES_INIT;
        int ranks;
        struct tern_ep_config c = draw_config(&r, &ranks);
        OK(tern_ep_get_sizes(&c, ranks, &whole));
        CHECK(whole.net_bytes == 0, "one domain takes %llu bytes for others",
              (unsigned long long)whole.net_bytes);
        ranks = ranks < 2 ? 2 : ranks / 2 * 2;
        c.num_experts = (uint32_t)ranks * 4;
        c.domain_ranks = (uint32_t)ranks / 2;
        OK(tern_ep_get_sizes(&c, ranks, &cut));
        CHECK(cut.net_bytes > 8ull * c.max_tokens * c.max_topk && cut.net_bytes < cut.window_bytes,
              "a route's tables for another domain take %llu bytes of %llu",
              (unsigned long long)cut.net_bytes, (unsigned long long)cut.window_bytes);
        c.max_tokens += rng_below(&r, 1000);
        c.max_topk += rng_below(&r, 65 - c.max_topk);
        c.domain_ranks = 1;
        OK(tern_ep_get_sizes(&c, ranks, &more));
        PASS(compare_sizes(&cut, &more, "max_tokens, max_topk or the number of domains"));
        CHECK(cut.net_bytes <= more.net_bytes, "what is for other domains shrinks");
    }
    return 0;
}

/* Few warps of a role are without a stream, and every queue has one; the memory stays what it is to be; a
 * warp looks after 32 streams at most. */
static int streams_of(uint32_t num_domains, uint32_t row_bytes, uint32_t num_sms)
{
    struct tern_ep_config c = TERN_EP_CONFIG_INIT;
    struct inter_roles roles, lines;
    struct ep_shape s;
    uint32_t all;
    c.num_experts = 32 * num_domains;
    c.max_topk = 8;
    c.max_tokens = 4096;
    c.max_row_bytes = row_bytes;
    c.num_sms = num_sms;
    OK(terni_shape_init(&c, 8 * (int)num_domains, 8, &s));
    all = s.net_streams * (num_domains - 1);
    roles = terni_tuning_roles(all, 7, s.num_sms, 1);
    lines = terni_tuning_line_roles(all, num_domains, 3, s.num_sms);
    CHECK(all + 7 > 7 * roles.rails && s.net_streams >= s.net_queues && all <= 96 + num_domains,
          "%u SMs, %u domains, rows of %u bytes: %u streams for %u blocks of rails, %u of forwarders",
          s.num_sms, num_domains, row_bytes, all, roles.rails, roles.forwarders);
    CHECK(roles.own >= 1 && roles.rails >= 1 && roles.forwarders >= 1 && lines.forwarders >= 1 &&
              lines.own >= 1,
          "%u SMs: %u, %u, %u blocks of dispatch, %u, %u of combine", s.num_sms, roles.own, roles.rails,
          roles.forwarders, lines.forwarders, lines.own);
    CHECK(roles.own + roles.rails + roles.forwarders == s.num_sms &&
              lines.own + lines.forwarders == s.num_sms,
          "%u SMs: %u, %u, %u blocks of dispatch, %u, %u of combine", s.num_sms, roles.own, roles.rails,
          roles.forwarders, lines.forwarders, lines.own);
    CHECK(all <= 32 * 7 * roles.rails && all <= 32 * 7 * roles.forwarders && all <= 32 * 3 * lines.forwarders,
          "%u SMs: %u streams", s.num_sms, all);
    CHECK(s.ring_bytes >= 8 * row_bytes && s.ring_bytes * (uint64_t)s.net_streams < 25 << 20,
          "%u streams have rings of %u bytes", s.net_streams, s.ring_bytes);
    c.max_tokens = 6; /* nothing for more than two streams */
    c.net_queues = 1;
    OK(terni_shape_init(&c, 8 * (int)num_domains, 8, &s));
    CHECK(s.net_streams == 2, "6 tokens go by %u streams", s.net_streams);
    return 0;
}

static int streams(struct test *t)
{
    static const uint32_t domains[] = {2, 3, 4, 8, 16}, rows[] = {512, 2048, 7424, 14336};
    static const uint32_t sms[] = {0, 3, 4, 5, 7, 12, 13, 14, 15, 20, 24, 32, 48, 132};
    (void)t;
    for (size_t i = 0; i < 4 * 5; i++) {
        for (size_t k = 0; k < sizeof sms / sizeof *sms; k++) {
            PASS(streams_of(domains[i % 5], rows[i / 5], sms[k]));
        }
    }
    return 0;
}

/* ---- Refused ---- */

#define BAD_CONFIG(change, ranks, text)                                                                      \
    do {                                                                                                     \
        struct tern_ep_config c = good;                                                                      \
        struct tern_ep_sizes sizes = TERN_EP_SIZES_INIT;                                                     \
        uint64_t rows = 0;                                                                                   \
        change;                                                                                              \
        REFUSES(tern_ep_get_sizes(&c, ranks, &sizes), TERN_INVALID_ARGUMENT, text);                          \
        REFUSES(tern_ep_max_rows(&c, ranks, TERN_LAYOUT_RANK, 1, &rows), TERN_INVALID_ARGUMENT, text);       \
        CHECK(!sizes.window_bytes && !sizes.max_rows && !rows, "a refused call wrote its output");           \
    } while (0)

static int refused(struct test *t)
{
    struct tern_ep_config good = TERN_EP_CONFIG_INIT;
    struct tern_ep_sizes sizes = TERN_EP_SIZES_INIT;
    uint64_t rows = 0;

    (void)t;
    test_quiet();
    good.num_experts = 32;
    good.max_topk = 8;
    good.max_tokens = 64;
    good.max_row_bytes = 1024;
    BAD_CONFIG((void)c, 0, "0");
    BAD_CONFIG((void)c, -5, "-5");
    BAD_CONFIG((void)c, 129, "129");
    BAD_CONFIG((void)c, 5, "32");
    BAD_CONFIG(c.num_experts = 0, 4, "0");
    BAD_CONFIG(c.num_experts = 33, 4, "33");
    BAD_CONFIG(c.max_topk = 0, 4, "0");
    BAD_CONFIG(c.max_topk = 65, 4, "65");
    BAD_CONFIG(c.max_tokens = 0, 4, "0");
    BAD_CONFIG(c.max_tokens = 0xffffffff, 4, "4294967295");
    BAD_CONFIG(c.max_row_bytes = 0, 4, "0");
    BAD_CONFIG(c.max_row_bytes = 0xffffffff, 4, "4294967295");
    BAD_CONFIG(c.max_routes = 0xffffffff, 4, "4294967295");
    BAD_CONFIG(c.transfer = 3, 4, "3");
    BAD_CONFIG(c.domain_ranks = 3, 4, "domain_ranks is 3");
    BAD_CONFIG(c.domain_ranks = 5, 4, "domain_ranks is 5");
    BAD_CONFIG(c.transport = 9, 4, "transport is 9");
    BAD_CONFIG(c.net_queues = 65, 4, "net_queues is 65");
    BAD_CONFIG(c.net_ring_bytes = UINT64_MAX, 4, "net_ring_bytes is 18446744073709551615");
    BAD_CONFIG(c.size = 0, 4, "0");
    BAD_CONFIG(c.size = 7, 4, "7");
    REFUSES(tern_ep_get_sizes(NULL, 4, &sizes), TERN_INVALID_ARGUMENT, "NULL");
    REFUSES(tern_ep_get_sizes(&good, 4, NULL), TERN_INVALID_ARGUMENT, "NULL");
    REFUSES(tern_ep_max_rows(NULL, 4, 0, 1, &rows), TERN_INVALID_ARGUMENT, "NULL");
    REFUSES(tern_ep_max_rows(&good, 4, 0, 1, NULL), TERN_INVALID_ARGUMENT, "NULL");
    REFUSES(tern_ep_max_rows(&good, 4, 2, 1, &rows), TERN_INVALID_ARGUMENT, "2");
    REFUSES(tern_ep_max_rows(&good, 4, -1, 1, &rows), TERN_INVALID_ARGUMENT, "-1");
    sizes.size = 9;
    REFUSES(tern_ep_get_sizes(&good, 4, &sizes), TERN_INVALID_ARGUMENT, "9");
    return 0;
}

/* ---- Enough for the worst routing ---- */

struct worst {
    struct tern_ep_config config;
    int num_ranks;
    uint32_t alignment;
};

/* Every token of every rank goes to rank 0. `spread` choices go to experts in turn, the rest to the last one,
 * so that expert counts can be just above a multiple of the alignment. */
static uint64_t adversary(const struct worst *w, uint32_t layout, uint32_t spread)
{
    uint32_t share = w->config.num_experts / (uint32_t)w->num_ranks;
    size_t ids_a_rank = (size_t)w->config.max_tokens * w->config.max_topk;
    uint32_t *num_tokens = (uint32_t *)test_take((size_t)w->num_ranks, sizeof *num_tokens);
    int64_t *ids = (int64_t *)test_take((size_t)w->num_ranks * ids_a_rank, sizeof *ids);
    const int64_t **tables = (const int64_t **)test_take((size_t)w->num_ranks, sizeof *tables);
    struct ref_world world = {
        w->num_ranks, w->config.num_experts, w->config.max_topk, 8, num_tokens, tables, 0};
    struct ref_route route;
    uint64_t rows;
    size_t i;
    int s;

    for (s = 0; s < w->num_ranks; s++) {
        num_tokens[s] = w->config.max_tokens;
        tables[s] = ids + (size_t)s * ids_a_rank;
    }
    for (i = 0; i < (size_t)w->num_ranks * ids_a_rank; i++) {
        ids[i] = i < spread ? (int64_t)(i % share) : share - 1;
    }
    terni_ref_route_init(&route, &world, layout, w->alignment, 0);
    rows = route.num_rows;
    terni_ref_route_fini(&route, &world);
    free(num_tokens);
    free(ids);
    free(tables);
    return rows;
}

static int sufficient(struct test *t)
{
    struct rng r = {3};
    int i, rounds = test_scaled(t, 400);
    uint32_t layout, spread;

    for (i = 0; i < rounds; i++) {
        struct tern_ep_config init = TERN_EP_CONFIG_INIT;
        struct worst w;
        uint64_t most, rows, worst_rows = 0;
        w.config = init;
        w.num_ranks = (int)rng_between(&r, 1, 6);
        w.alignment = rng_one_in(&r, 3) ? 128 : rng_between(&r, 0, 17);
        w.config.num_experts = (uint32_t)w.num_ranks * rng_between(&r, 1, 9);
        w.config.max_topk = rng_between(&r, 1, 9);
        w.config.max_tokens = rng_between(&r, 1, 9);
        w.config.max_row_bytes = 16;
        for (layout = TERN_LAYOUT_RANK; layout <= TERN_LAYOUT_EXPERT; layout++) {
            OK(tern_ep_max_rows(&w.config, w.num_ranks, (int)layout, w.alignment, &most));
            for (spread = 0; spread < 40; spread++) {
                rows = adversary(&w, layout, spread);
                worst_rows = rows > worst_rows ? rows : worst_rows;
                CHECK(rows <= most,
                      "%llu rows come, max_rows says %llu: %d ranks, %u experts, top-%u, %u tokens, "
                      "layout %u, alignment %u, %u spread",
                      (unsigned long long)rows, (unsigned long long)most, w.num_ranks, w.config.num_experts,
                      w.config.max_topk, w.config.max_tokens, layout, w.alignment, spread);
            }
            CHECK(layout != TERN_LAYOUT_EXPERT || most < worst_rows + 2 * (uint64_t)(w.alignment + 1) * 9,
                  "max_rows says %llu where %llu can come", (unsigned long long)most,
                  (unsigned long long)worst_rows);
        }
    }
    test_detail(t, "%d configurations against 80 routings each", rounds);
    return 0;
}

/* Rows of a low-latency combine on such a device, between 64 ranks in so many domains. */
static int check_low_latency(const struct machine_info *info, uint32_t row_bytes, uint32_t num_domains)
{
    struct ll_depth depth;
    struct ep_shape shape;
    struct ll_room chunks, rows;

    memset(&shape, 0, sizeof shape);
    shape.num_ranks = 64;
    shape.num_domains = num_domains;
    depth = terni_tuning_ll_depth(info, &shape);
    chunks = terni_ll_chunk_room(&shape, &depth, row_bytes);
    rows = terni_ll_row_room(&shape, &depth, row_bytes);
    CHECK(chunks.bytes + terni_ll_watch_bytes(&shape) <= info->max_shared_bytes && chunks.bytes % 8 == 0 &&
              chunks.stages >= (row_bytes > chunks.stage_bytes ? 2u : 1u) && chunks.stage_bytes % 16 == 0,
          "a combine of %u bytes in %u: %u chunks of %u, %u bytes", row_bytes, info->max_shared_bytes,
          chunks.stages, chunks.stage_bytes, chunks.bytes);
    CHECK(rows.bytes + terni_ll_watch_bytes(&shape) <= info->max_shared_bytes && rows.bytes % 8 == 0 &&
              rows.stages >= 1 && rows.stage_bytes >= row_bytes && rows.stage_bytes % 16 == 0,
          "a combine of %u bytes in %u: %u rows of %u, %u bytes", row_bytes, info->max_shared_bytes,
          rows.stages, rows.stage_bytes, rows.bytes);
    return 0;
}

/* What is in shared memory behind stages lies one behind the other. */
static int check_places(const struct inter_geometry *g, uint32_t row_bytes)
{
    uint32_t warps = (uint32_t)g->all.num_threads / 32, stages = warps * g->forward_stages;
    uint32_t rail = g->taken_offset + warps * FORWARD_TAKEN_BYTES;
    CHECK(g->taken_offset >= g->all.table_bytes + stages * (row_bytes + (uint32_t)sizeof(uint64_t)) &&
              g->rail_offset >= rail && g->rail_offset % sizeof(uint64_t) == 0 &&
              g->poster_offset >= g->rail_offset + sizeof(struct rail_args) &&
              g->notes_offset >= g->poster_offset + terni_tuning_poster_bytes(warps) &&
              g->all.shared_bytes >= g->notes_offset + stages * sizeof(struct stage_note),
          "%u warps, %u stages of %u bytes: taken at %u, arguments %u, poster %u, notes %u, of %u", warps,
          stages, row_bytes, g->taken_offset, g->rail_offset, g->poster_offset, g->notes_offset,
          g->all.shared_bytes);
    return 0;
}

/* Across domains on such a device; a forwarder of casts has the stages of one without, where they fit. */
static int check_inter(const struct machine_info *info, uint32_t row_bytes, int bulk)
{
    struct inter_geometry plain, cast;
    uint32_t warps, note = sizeof(struct stage_note) + 8;
    OK(terni_tuning_dispatch_inter(info, bulk, 0, row_bytes, 2048, &plain));
    OK(terni_tuning_dispatch_inter(info, bulk, 1, row_bytes, 2048, &cast));
    warps = (uint32_t)cast.all.num_threads / 32;
    PASS(check_places(&plain, row_bytes));
    PASS(check_places(&cast, row_bytes));
    CHECK(cast.all.shared_bytes <= info->max_shared_bytes &&
              cast.all.shared_bytes >= 2048 + warps * cast.forward_stages * (row_bytes + note) &&
              plain.forward_stages == plain.all.num_stages && cast.forward_stages >= cast.all.num_stages,
          "%d threads, %u stages, %u of forwarders, %u bytes", cast.all.num_threads, cast.all.num_stages,
          cast.forward_stages, cast.all.shared_bytes);
    CHECK(cast.forward_stages >= plain.forward_stages ||
              cast.all.shared_bytes + warps * (row_bytes + note) > info->max_shared_bytes,
          "%u stages of forwarders, %u without a cast, and %u bytes of %u", cast.forward_stages,
          plain.forward_stages, cast.all.shared_bytes, info->max_shared_bytes);
    return 0;
}

/* Any capability and 48 to 228 KiB of shared memory: rows of a usual size always have room. */
static int unlisted(struct test *t)
{
    static const int capabilities[] = {70, 80, 86, 89, 90, 100, 103, 120, 999};
    static const uint32_t rows[] = {128, 4096, 7424, 14336};
    struct tern_ep_config config = TERN_EP_CONFIG_INIT;
    struct machine_info info;
    struct ep_shape shape;
    struct geometry g;
    size_t c, r;
    int count = 0, bulk;

    config.num_experts = 256;
    config.max_topk = 8;
    config.max_tokens = 4096;
    config.max_row_bytes = 14336;
    OK(terni_shape_init(&config, 8, 0, &shape));
    memset(&info, 0, sizeof info);
    info.kind = TERN_MACHINE_CUDA;
    for (c = 0; c < sizeof capabilities / sizeof capabilities[0]; c++) {
        for (info.max_shared_bytes = 48u << 10; info.max_shared_bytes <= 228u << 10;
             info.max_shared_bytes += 4u << 10) {
            info.compute_capability = capabilities[c];
            for (r = 0; r < sizeof rows / sizeof rows[0]; r++, count++) {
                PASS(check_low_latency(&info, rows[r], 1));
                PASS(check_low_latency(&info, rows[r], 8));
                for (bulk = 0; bulk < 2; bulk++) {
                    PASS(check_inter(&info, rows[r], bulk));
                    OK(terni_tuning_dispatch(&info, bulk, 0, rows[r], 2048, 1, &g));
                    CHECK(g.shared_bytes <= info.max_shared_bytes && g.num_threads >= 32 &&
                              g.num_threads <= 512 && g.num_stages >= (bulk ? 2u : 1u),
                          "dispatch on capability %d with %u bytes: %d threads, %u stages, %u bytes",
                          info.compute_capability, info.max_shared_bytes, g.num_threads, g.num_stages,
                          g.shared_bytes);
                    OK(terni_tuning_combine(&info, bulk, rows[r] / 2, 1024, &g));
                    CHECK(g.shared_bytes <= info.max_shared_bytes && g.num_threads >= 32 &&
                              g.num_threads <= 512,
                          "combine on capability %d with %u bytes: %d threads, %u bytes",
                          info.compute_capability, info.max_shared_bytes, g.num_threads, g.shared_bytes);
                }
            }
            OK(terni_tuning_route(&info, &shape, 4096, &g));
            CHECK(g.num_blocks >= 2 && g.num_threads <= 512 && g.shared_bytes <= info.max_shared_bytes,
                  "route on capability %d: %d blocks of %d threads", info.compute_capability, g.num_blocks,
                  g.num_threads);
        }
    }
    test_detail(t, "%d devices and rows", count);
    return 0;
}

/* Which shapes push if that is left to the library; ep_push_test opens objects. */
static int pushes(struct test *t)
{
    static const struct {
        uint32_t max_tokens, max_row_bytes, num_sms;
        int ranks, domain_ranks, pushes;
    } all[] = {
        {4096, 12288, 24, 32, 0, 1}, {4096, 12288, 24, 33, 0, 0}, {4096, 12288, 24, 32, 16, 0},
        {4096, 12288, 24, 32, 1, 0}, {16384, 4096, 32, 8, 0, 0},  {16384, 12288, 132, 8, 0, 1},
        {8191, 12288, 24, 2, 0, 0},  {8192, 1, 24, 2, 0, 1},      {4096, 12287, 24, 3, 0, 0},
        {4096, 12288, 24, 3, 0, 1},  {16384, 12288, 16, 8, 0, 0}, {16384, 12288, 132, 1, 0, 0},
    };
    size_t i;

    for (i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct tern_ep_config config = TERN_EP_CONFIG_INIT;
        struct ep_shape shape;

        config.num_experts = (uint32_t)all[i].ranks;
        config.max_topk = 1;
        config.max_tokens = all[i].max_tokens;
        config.max_row_bytes = all[i].max_row_bytes;
        config.num_sms = all[i].num_sms;
        OK(terni_shape_init(&config, all[i].ranks, all[i].domain_ranks, &shape));
        CHECK((int)shape.combine_push == all[i].pushes, "shape %zu pushes: %u", i, shape.combine_push);
        config.combine_push = TERN_PUSH_NEVER;
        OK(terni_shape_init(&config, all[i].ranks, all[i].domain_ranks, &shape));
        CHECK(!shape.combine_push, "shape %zu pushes, and was told not to", i);
    }
    test_detail(t, "%zu shapes", i);
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "sizes grow with every argument", monotone);
    test_run(&t, "what shapes push if that is left to the library", pushes);
    test_run(&t, "sizes of huge configurations do not wrap", huge);
    test_run(&t, "sizes above 32 bits", beyond_32_bits);
    test_run(&t, "sizes across domains", domains);
    test_run(&t, "streams across domains", streams);
    test_run(&t, "configurations that cannot be are refused by value", refused);
    test_run(&t, "devices that nobody measured get a geometry", unlisted);
    test_run(&t, "the worst case is enough for the worst routing", sufficient);
    return test_end(&t);
}
