/* SPDX-License-Identifier: Apache-2.0
 *
 * All ranks of one process in several domains, with two batches and an EP object: the stage for tests of
 * routes across domains. */
#ifndef TERN_TEST_FAR_SCENE_H
#define TERN_TEST_FAR_SCENE_H

#include "batch.h"

struct far_case {
    uint64_t seed;
    int num_ranks, domain_ranks;
    int by_proxy; /* TERN_DOMAIN_SIZE cuts domains, and the proxy carries; else config.domain_ranks does */
    struct batch_shape shape;
};

struct far_scene {
    const struct far_case *c;
    struct world world;
    struct rng rng;
    struct batch batch, other; /* the second in other slots of other ranks */
    struct tern_ep **eps;
};

/* Everything but how large the world is, from the seed. */
void far_draw(struct far_case *c, uint64_t seed, int domains, int domain_ranks, uint32_t max_tokens);
void far_begin(struct far_scene *s, const struct far_case *c);
int far_open(struct far_scene *s, uint32_t timeout_ms);
void far_end(struct far_scene *s);

#endif
