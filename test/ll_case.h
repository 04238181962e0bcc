/* SPDX-License-Identifier: Apache-2.0
 *
 * A random case of low latency: one to three rounds on one object with other tokens each time, whole or cut
 * in two, sometimes with the combine left out or done twice. Everything is drawn from one seed, which also
 * seeds the scheduler of the cpu machine, so ranks that run apart draw the same world. */
#ifndef TERN_TEST_LL_CASE_H
#define TERN_TEST_LL_CASE_H

#include "ll_batch.h"

struct ll_case {
    uint64_t seed;
    int num_ranks;
    struct ll_shape shape;
    struct tern_ep_config config;
    int rounds;
    int domain_ranks;   /* of each domain, a divisor of num_ranks; 0, unless ll_case_cut draws: one domain */
    int forces_domains; /* as in world.h */
    int deterministic;  /* the scheduler follows the seed alone */
    int without_words;  /* few tokens as many (ll_words.h) */
};

/* num_ranks 0: drawn. `small`: for sanitizers. */
void ll_case_draw(struct ll_case *c, uint64_t seed, int num_ranks, int small);
/* Rows go over blanks then, if their places fit. */
void ll_case_over_blanks(struct ll_case *c);
/* Weights go ahead of combines then. */
void ll_case_ahead(struct ll_case *c);
/* Cuts the ranks into domains of so many, whose network is drawn. */
void ll_case_cut(struct ll_case *c, int domain_ranks, uint32_t transport);
/* Railed then, after ll_case_cut: mostly with weights at dispatch, never with masks. */
void ll_case_rail(struct ll_case *c);
/* Opens rank `self` (-1: all), runs the case against the reference, closes. Prints the case if it fails. */
int ll_case_run(const struct ll_case *c, int self, const struct tern_id *id);
/* Of cases of these seeds, with all ranks, each changed after it is drawn; until three have failed. */
int ll_case_run_seeds(struct test *t, uint64_t first, uint64_t last, void (*change)(struct ll_case *c));
/* One case, for one rank on a communicator that is open, with windows that suffice; closes it, too. */
int ll_case_run_on(const struct ll_case *c, struct tern_comm *comm);

#endif
