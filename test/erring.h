/* SPDX-License-Identifier: Apache-2.0
 *
 * NICs in software that speak packets over a network that errs, under EP objects of tests: it loses, doubles,
 * delays and reorders packets, by a seed; how threads interleave no seed fixes. What the network did is
 * counted as objects close, so that a test can say that it has erred. */
#ifndef TERN_TEST_ERRING_H
#define TERN_TEST_ERRING_H

#include "support.h"

/* The cases that run on that network: `body` with 2 x 2, 3 x 5 and a drawn shape (ranks, then ranks of a
 * domain). */
struct erring {
    int is_adaptive; /* it reorders WRITEs inside a queue pair, too */
    int count;       /* seeds of each shape, unless the test was asked for some */
    int max_ranks;   /* above 8; else 3 x 2 in place of 3 x 5 */
    int (*body)(struct test *t, uint64_t seed, const int world[2]);
};

/* The network must have erred in every way meanwhile, if it had packets enough. Skipped on GPUs. */
int erring_run(struct test *t, const struct erring *e);

struct tern_ep;
/* Of an object that is about to close; NULL: nothing. */
void erring_count(const struct tern_ep *ep);
/* Puts all queue pairs of its NICs, in software, into error, as their driver might. */
int erring_stop(const struct tern_ep *ep);
/* The connection of its proxy to that of rank `peer`, by TCP: both find it closed. */
int erring_cut(const struct tern_ep *ep, int peer);
/* The first queues to rank `peer`, as who posts there sees it: they have failed, and refuse what comes. */
void erring_fail(const struct tern_ep *ep, int peer, uint32_t num_queues);
/* What they send from now on is under way for so long; the object has opened with a modelled wire. */
int erring_delay(const struct tern_ep *ep, uint64_t latency_ns);

#endif
