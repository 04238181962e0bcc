/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a route's tables about other domains are, for tests that look at them (kernels/inter_args.h says what
 * they are). Device addresses. */
#ifndef TERN_TEST_FAR_TABLES_H
#define TERN_TEST_FAR_TABLES_H

#include "tern/tern.h"

struct far_tables {
    const int32_t *message_of, *token_of, *num_out, *num_in, *bases, *blocks;
    const uint64_t *run;
    uint64_t block_ints;
    uint32_t max_tokens, entry_ints;
    uint32_t domains, keys; /* [domains][keys] bases */
};

void far_tables_of(const struct tern_route *route, struct far_tables *tables);

/* Until the forward block of domain e that belongs to `run` is here. */
enum tern_status far_await_block(const struct tern_route *route, int e, uint64_t run);

/* The abort word of the route's object on this rank, and what is in it when `reporter` has found `culprit`
 * late. */
uint64_t *far_abort_of(const struct tern_route *route);
uint64_t far_verdict(int culprit, int reporter);

#endif
