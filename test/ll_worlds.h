/* SPDX-License-Identifier: Apache-2.0
 *
 * Worlds of several domains for random cases of low latency: how ranks are cut, who carries what goes to
 * other domains, and whether it is railed; and what ep_ll_inter_test and ep_ll_rail_test both run in them. */
#ifndef TERN_TEST_LL_WORLDS_H
#define TERN_TEST_LL_WORLDS_H

#include "ll_case.h"

/* Who carries what goes to other domains; by force: nobody can address them, and threads of the host do. */
enum ll_carrier { BY_STORES, BY_NIC, BY_PROXY, BY_FORCE };

/* Ranks, and ranks of a domain. */
struct ll_world {
    int ranks[2];
    enum ll_carrier carrier;
    int is_railed;
};

/* Test cases with the bits of the reference in worlds of every kind, railed or not: small and large ones, by
 * all carriers, by packets over networks that err. */
void ll_world_cases(struct test *t, int is_railed);

/* A case of that world, small where ranks are many, ready for ll_case_run. */
void ll_world_draw(const struct test *t, const struct ll_world *world, uint64_t seed, struct ll_case *c);

#endif
