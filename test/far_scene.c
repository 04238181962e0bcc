/* SPDX-License-Identifier: Apache-2.0
 *
 * See far_scene.h. */
#include "far_scene.h"

#include <stdlib.h>
#include <string.h>

void far_draw(struct far_case *c, uint64_t seed, int domains, int domain_ranks, uint32_t max_tokens)
{
    static const uint32_t alignments[] = {0, 1, 8, 128};
    struct rng r = {seed * 0x2545f4914f6cdd1du};

    memset(c, 0, sizeof *c);
    c->seed = seed;
    c->num_ranks = domains * domain_ranks;
    c->domain_ranks = domain_ranks;
    c->shape.num_experts = (uint32_t)c->num_ranks * rng_between(&r, 1, 6);
    c->shape.topk = rng_one_in(&r, 8) ? rng_between(&r, 17, 40) : rng_between(&r, 1, 10);
    c->shape.idx_bytes = rng_one_in(&r, 2) ? 4 : 8;
    c->shape.layout = rng_one_in(&r, 2) ? TERN_LAYOUT_RANK : TERN_LAYOUT_EXPERT;
    c->shape.alignment = c->shape.layout == TERN_LAYOUT_EXPERT ? alignments[rng_below(&r, 4)] : 0;
    c->shape.max_tokens = rng_between(&r, 1, max_tokens);
    c->shape.routing = (int)rng_below(&r, NUM_ROUTINGS);
}

static void config_of(const struct far_case *c, struct tern_ep_config *config)
{
    struct tern_ep_config init = TERN_EP_CONFIG_INIT;

    *config = init;
    config->num_experts = c->shape.num_experts;
    config->max_topk = c->shape.topk;
    config->max_tokens = c->shape.max_tokens + 1;
    config->max_row_bytes = 64;
    config->max_routes = 3;
    config->staging_bytes = TERN_STAGING_NONE;
    config->domain_ranks = c->by_proxy ? 0 : (uint32_t)c->domain_ranks;
    config->num_sms = 1 + (uint32_t)(c->seed % 4);
}

void far_begin(struct far_scene *s, const struct far_case *c)
{
    memset(s, 0, sizeof *s);
    s->c = c;
    s->rng.state = c->seed + 5;
    world_init(&s->world, c->num_ranks, -1);
    s->world.num_lanes = 1;
    s->world.domain_ranks = c->domain_ranks;
    s->world.forces_domains = c->by_proxy;
    s->eps = (struct tern_ep **)test_take((size_t)c->num_ranks, sizeof *s->eps);
    batch_init(&s->batch, &s->world, &c->shape, &s->rng);
    batch_init(&s->other, &s->world, &c->shape, &s->rng);
}

int far_open(struct far_scene *s, uint32_t timeout_ms)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_ep_config ep;

    config.timeout_ms = timeout_ms;
    config.cpu_seed = s->c->by_proxy ? 0 : s->c->seed + 1;
    config_of(s->c, &ep);
    PASS(world_open(&s->world, NULL, &config));
    return world_ep_open(&s->world, &ep, s->eps);
}

void far_end(struct far_scene *s)
{
    batch_fini(&s->batch);
    batch_fini(&s->other);
    world_ep_close(&s->world, s->eps);
    world_fini(&s->world);
    free(s->eps);
}
