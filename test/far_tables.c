/* SPDX-License-Identifier: Apache-2.0
 *
 * Apart from the tests, whose places are others than those of the kernels. */
#include "far_tables.h"

#include "ep/ep.h"

void far_tables_of(const struct tern_route *route, struct far_tables *t)
{
    const struct tern_ep *ep = route->ep;
    struct route_far far;

    terni_route_far(route, &far);
    t->message_of = far.message_of;
    t->token_of = far.token_of;
    t->num_out = far.num_out;
    t->num_in = far.num_in;
    t->bases = far.bases;
    t->blocks = far.blocks;
    t->run = far.run;
    t->block_ints = far.block_ints;
    t->max_tokens = far.max_tokens;
    t->entry_ints = far.entry_ints;
    t->domains = ep->shape.num_domains;
    t->keys = route->layout == TERN_LAYOUT_RANK ? ep->shape.domain_ranks : ep->shape.domain_experts;
}

enum tern_status far_await_block(const struct tern_route *route, int e, uint64_t run)
{
    struct inter_world world;
    struct pgas_call call = {route->ep->network, -1, 0, NULL, 1};
    struct pgas_wait wait = {NULL, sizeof(uint64_t), TERN_COMPARE_GE, run, 30000};

    terni_ep_world(route->ep, &world);
    wait.word = world.block_tails + e;
    return terni_pgas_wait(&call, &wait);
}

uint64_t *far_abort_of(const struct tern_route *route)
{
    const struct tern_ep *ep = route->ep;

    return (uint64_t *)(void *)(ep->heap->bases[ep->comm->rank] + ep->layout.abort);
}

uint64_t far_verdict(int culprit, int reporter)
{
    return ABORT_WORD(culprit, reporter, TERN_TIMEOUT, TERN_AWAIT_READY);
}
