/* SPDX-License-Identifier: Apache-2.0
 *
 * Two sources of ids. They are drawn (draw.c), or come from a file: an array [layer, token, choice], of which
 * rank r takes the r-th block of consecutive tokens. */
#include "routing.h"

#include "draw.h"
#include "fill.h"
#include "utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_TOPK = 8, DEFAULT_EXPERTS = 256 };

static enum tern_status check_file(const struct options *o, const struct npy *ids)
{
    if (!npy_is_integer(ids) || ids->num_dims != 3) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "%s: %s with %d dimensions; routing is integers with 3 (layer, token, choice)",
                         o->routing, npy_type_name(ids->type), ids->num_dims);
    }
    if (o->layer >= ids->dims[0]) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--layer %u: %s has %llu layers", o->layer, o->routing,
                         (unsigned long long)ids->dims[0]);
    }
    if (ids->dims[2] < 1 || ids->dims[2] > TERN_MAX_TOPK) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s has %llu choices a token; 1 to %d are possible",
                         o->routing, (unsigned long long)ids->dims[2], (int)TERN_MAX_TOPK);
    }
    if (o->topk != 0 && o->topk != ids->dims[2]) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--topk %u: %s has %llu choices a token", o->topk, o->routing,
                         (unsigned long long)ids->dims[2]);
    }
    return TERN_OK;
}

/* The experts that a file is known to have: one more than the largest id in it. Nobody may have been sent to
 * those behind. */
static enum tern_status file_experts(const char *path, const struct npy *ids, uint32_t *experts)
{
    int64_t most = -1;
    uint64_t i;
    for (i = 0; i < ids->count; i++) {
        int64_t id = npy_get_int(ids, i);
        if (id < -1 || id >= MAX_EXPERTS) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s: element %llu is %lld, which is no expert", path,
                             (unsigned long long)i, (long long)id);
        }
        most = id > most ? id : most;
    }
    if (most < 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s names no expert in %llu elements", path,
                         (unsigned long long)ids->count);
    }
    *experts = (uint32_t)most + 1;
    return TERN_OK;
}

static enum tern_status settle_file(struct options *o, const struct npy *ids)
{
    uint32_t experts = 0;
    TERN_TRY(check_file(o, ids));
    TERN_TRY(file_experts(o->routing, ids, &experts));
    if (o->experts != 0 && o->experts < experts) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--experts %u: the ids in %s are those of %u experts or more",
                         o->experts, o->routing, experts);
    }
    o->topk = (uint32_t)ids->dims[2];
    o->experts = o->experts != 0 ? o->experts : experts;
    return TERN_OK;
}

enum tern_status routing_settle(struct options *o, int num_ranks)
{
    if (o->routing != NULL) {
        struct npy ids;
        enum tern_status status;
        TERN_TRY(npy_load(o->routing, &ids));
        status = settle_file(o, &ids);
        npy_free(&ids);
        TERN_TRY(status);
        if (o->skew > 100) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "--skew %u: the ids come from %s", o->skew, o->routing);
        }
    } else if (o->weights != NULL) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--weights %s without a routing file", o->weights);
    } else if (o->layer != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--layer %u without a routing file", o->layer);
    }
    o->topk = o->topk != 0 ? o->topk : DEFAULT_TOPK;
    o->experts = o->experts != 0 ? o->experts : DEFAULT_EXPERTS;
    if (o->experts % (uint32_t)num_ranks != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--experts %u is not a multiple of %d ranks", o->experts,
                         num_ranks);
    }
    if (o->topk > o->experts) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--topk %u of --experts %u: a token's experts differ",
                         o->topk, o->experts);
    }
    return TERN_OK;
}

static enum tern_status draw(const struct options *o, struct routing *g)
{
    struct draw d = {o->seed, (uint32_t)g->num_ranks, g->tokens, g->topk, g->experts, o->skew};
    return draw_ids(&d, g->ids);
}

static enum tern_status read_ids(const struct options *o, struct routing *g)
{
    uint64_t need = (uint64_t)g->num_ranks * g->tokens, begin, i;
    struct npy ids;
    TERN_TRY(npy_load(o->routing, &ids));
    if (need > ids.dims[1]) {
        enum tern_status status =
            TERN_FAIL(TERN_INVALID_ARGUMENT, "%d ranks with %u tokens need %llu; %s has %llu", g->num_ranks,
                      g->tokens, (unsigned long long)need, o->routing, (unsigned long long)ids.dims[1]);
        npy_free(&ids);
        return status;
    }
    begin = o->layer * ids.dims[1] * ids.dims[2];
    for (i = 0; i < need * g->topk; i++) {
        g->ids[i] = npy_get_int(&ids, begin + i);
    }
    npy_free(&ids);
    return TERN_OK;
}

static void draw_weights(const struct options *o, struct routing *g)
{
    int r;
    for (r = 0; r < g->num_ranks; r++) {
        uint32_t num = g->tokens * g->topk;
        fill_f32(fill_begin(o->seed, FILL_WEIGHTS, (uint64_t)r, 0), g->weights + (uint64_t)r * num, num);
    }
}

static enum tern_status read_weights(const struct options *o, struct routing *g)
{
    enum tern_status status = TERN_OK;
    uint64_t i, each, num = (uint64_t)g->num_ranks * g->tokens * g->topk;
    struct npy w;
    TERN_TRY(npy_load(o->weights, &w));
    if (w.num_dims != 3 || npy_is_integer(&w) || o->layer >= w.dims[0] || w.dims[1] == 0 ||
        w.dims[2] != g->topk) {
        status = TERN_FAIL(TERN_INVALID_ARGUMENT,
                           "%s: %s with %d dimensions; weights are floats [more than %u, 1 or more, %u]",
                           o->weights, npy_type_name(w.type), w.num_dims, o->layer, g->topk);
    }
    each = w.dims[1] * w.dims[2];
    for (i = 0; status == TERN_OK && i < num; i++) {
        /* A file with fewer tokens starts again: only the numbers matter, the ids decide where they go. */
        g->weights[i] = npy_get_float(&w, o->layer * each + i % each);
    }
    npy_free(&w);
    return status;
}

static enum tern_status take_memory(struct routing *g)
{
    uint64_t num = (uint64_t)g->num_ranks * g->tokens * g->topk + 1;
    size_t ranks = (size_t)g->num_ranks;
    g->ids = (int64_t *)malloc(num * sizeof(*g->ids));
    g->weights = (float *)malloc(num * sizeof(*g->weights));
    g->num_tokens = (uint32_t *)calloc(ranks, sizeof(*g->num_tokens));
    g->topk_idx = (const int64_t **)calloc(ranks, sizeof(*g->topk_idx));
    g->routes = (struct ref_route *)calloc(ranks, sizeof(*g->routes));
    if (g->ids == NULL || g->weights == NULL || g->num_tokens == NULL || g->topk_idx == NULL ||
        g->routes == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for the ids of %d ranks with %u tokens", g->num_ranks,
                         g->tokens);
    }
    return TERN_OK;
}

static enum tern_status fill_routing(const struct options *o, struct routing *g)
{
    int r;
    TERN_TRY(take_memory(g));
    TERN_TRY(o->routing != NULL ? read_ids(o, g) : draw(o, g));
    if (o->weights != NULL) {
        TERN_TRY(read_weights(o, g));
    } else {
        draw_weights(o, g);
    }
    for (r = 0; r < g->num_ranks; r++) {
        g->num_tokens[r] = g->tokens;
        g->topk_idx[r] = g->ids + (uint64_t)r * g->tokens * g->topk;
    }
    g->world.num_ranks = g->num_ranks;
    g->world.num_experts = g->experts;
    g->world.topk = g->topk;
    g->world.idx_bytes = 8;
    g->world.num_tokens = g->num_tokens;
    g->world.topk_idx = g->topk_idx;
    for (r = 0; r < g->num_ranks; r++) {
        terni_ref_route_init(&g->routes[r], &g->world, o->layout, o->align, r);
    }
    return TERN_OK;
}

enum tern_status routing_open(const struct options *o, int num_ranks, uint32_t tokens,
                              struct routing *routing)
{
    enum tern_status status;
    memset(routing, 0, sizeof(*routing));
    routing->num_ranks = num_ranks;
    routing->tokens = tokens;
    routing->topk = o->topk;
    routing->experts = o->experts;
    status = fill_routing(o, routing);
    if (status != TERN_OK) {
        routing_close(routing);
    }
    return status;
}

void routing_close(struct routing *g)
{
    int r;
    for (r = 0; g->routes != NULL && r < g->num_ranks; r++) {
        if (g->routes[r].rows != NULL) {
            terni_ref_route_fini(&g->routes[r], &g->world);
        }
    }
    free(g->routes);
    free(g->topk_idx);
    free(g->num_tokens);
    free(g->weights);
    free(g->ids);
    memset(g, 0, sizeof(*g));
}

void routing_name(const struct options *o, char *text, size_t text_bytes)
{
    const char *name = o->routing != NULL ? strrchr(o->routing, '/') : NULL;
    char begin[8];
    if (o->routing == NULL) {
        snprintf(text, text_bytes, o->skew > 100 ? "skew%u" : "uniform", o->skew);
        return;
    }
    name = name != NULL ? name + 1 : o->routing;
    utf8_print(begin, sizeof(begin), "%.*s", (int)strcspn(name, "._"), name);
    snprintf(text, text_bytes, "%s.%u", begin, o->layer % 100000);
}

enum tern_status routing_note(struct report *report, const struct options *o)
{
    /* A path may be long, and then loses its end. */
    return report_note(report, "routing", "%u experts, layer %u, seed %u, skew %u, %s", o->experts, o->layer,
                       o->seed, o->skew, o->routing != NULL ? o->routing : "drawn");
}

static uint64_t count_rows(const struct ref_route *route, int from)
{
    uint64_t i, num = 0;
    for (i = 0; i < route->num_rows; i++) {
        num += from < 0 ? route->rows[i].rank >= 0 : route->rows[i].rank == from;
    }
    return num;
}

uint64_t routing_rows(const struct routing *g, int rank) { return count_rows(&g->routes[rank], -1); }

uint64_t routing_own_rows(const struct routing *g, int rank) { return count_rows(&g->routes[rank], rank); }

/* The domains that a token of `rank` goes to, but for its own: a bit each in *domains, which holds one for
 * every rank that there can be. */
static void domains_of(const struct routing *g, int rank, uint32_t token, uint32_t domain_ranks,
                       unsigned char *domains)
{
    const int64_t *ids = g->topk_idx[rank] + (size_t)token * g->topk;
    int64_t share = g->experts / (uint32_t)g->num_ranks;
    memset(domains, 0, TERN_MAX_RANKS);
    for (uint32_t k = 0; k < g->topk; k++) {
        if (ids[k] >= 0) {
            domains[ids[k] / share / domain_ranks] = 1;
        }
    }
    domains[(uint32_t)rank / domain_ranks] = 0;
}

/* What rank r sends lands at the rank that has its place in the other domain. */
struct routing_crossing routing_cross(const struct routing *g, uint32_t domain_ranks)
{
    uint64_t sent[TERN_MAX_RANKS] = {0}, came[TERN_MAX_RANKS] = {0};
    struct routing_crossing c = {0, 0};
    unsigned char domains[TERN_MAX_RANKS];
    uint32_t num_domains = (uint32_t)g->num_ranks / domain_ranks;
    for (int r = 0; r < g->num_ranks; r++) {
        for (uint32_t t = 0; t < g->tokens; t++) {
            domains_of(g, r, t, domain_ranks, domains);
            for (uint32_t d = 0; d < num_domains; d++) {
                sent[r] += domains[d];
                came[d * domain_ranks + (uint32_t)r % domain_ranks] += domains[d];
            }
        }
    }
    for (int r = 0; r < g->num_ranks; r++) {
        uint64_t most = sent[r] > came[r] ? sent[r] : came[r];
        c.all += sent[r];
        c.most = most > c.most ? most : c.most;
    }
    return c;
}
