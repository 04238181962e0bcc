/* SPDX-License-Identifier: Apache-2.0
 *
 * Worlds of several domains for random cases of low latency: how ranks are cut, who carries what goes to
 * other domains, and whether it is railed. */
#ifndef TERN_TEST_LL_WORLDS_H
#define TERN_TEST_LL_WORLDS_H

#include "ll_case.h"

#ifdef __SANITIZE_THREAD__
enum { LL_MAX_RANKS = 8 };
#else
enum { LL_MAX_RANKS = 66 };
#endif

/* Who carries what goes to other domains; by force: nobody can address them, and threads of the host do. */
enum ll_carrier { BY_STORES, BY_NIC, BY_PROXY, BY_FORCE };

/* Ranks, and ranks of a domain. */
struct ll_world {
    int ranks[2];
    enum ll_carrier carrier;
    int is_railed;
};

/* A case of that world, small where ranks are many, ready for ll_case_run. */
void ll_world_draw(const struct test *t, const struct ll_world *world, uint64_t seed, struct ll_case *c);
int ll_world_seed(const struct test *t, const struct ll_world *world, uint64_t seed);
/* Seeds from 1 to `count`, scaled, or those that the test was asked for. Skips what is too much for
 * ThreadSanitizer, or for one GPU. */
int ll_world_run(struct test *t, const struct ll_world *world, int count);

#endif
