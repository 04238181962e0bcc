/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels of an object that spans domains are told: who is where, and where a route's tables about other
 * domains lie. */
#include "ep/ep.h"

#include <string.h>

static char *window_of(const struct tern_ep *ep) { return ep->heap->bases[ep->comm->rank]; }

void terni_ep_world(const struct tern_ep *ep, struct inter_world *w)
{
    char *window = window_of(ep);
    memset(w, 0, sizeof *w);
    w->net = ep->net;
    w->net.record = NULL; /* faults of the object have a record of their own */
    w->num_ranks = (int32_t)ep->shape.num_ranks;
    w->num_domains = (int32_t)ep->shape.num_domains;
    w->domain = ep->comm->rank / (int)ep->shape.domain_ranks;
    w->domain_ranks = (int32_t)ep->shape.domain_ranks;
    w->row_tails = (uint64_t *)(void *)(window + ep->layout.row_tails);
    w->block_tails = (uint64_t *)(void *)(window + ep->layout.block_tails);
}

void terni_route_far(const struct tern_route *route, struct route_far *far)
{
    const struct tern_ep *ep = route->ep;
    const struct route_layout *l = &ep->layout.route;
    char *at = ep->device_memory + ep->layout.routes + (uint64_t)route->slot * l->bytes;
    uint64_t blocks = (uint64_t)route->slot * ep->shape.num_domains * ep->layout.block_bytes;
    memset(far, 0, sizeof *far);
    far->message_of = (int32_t *)(void *)(at + l->message_of);
    far->token_of = (int32_t *)(void *)(at + l->token_of);
    far->num_out = (int32_t *)(void *)(at + l->num_out);
    far->num_in = (int32_t *)(void *)(at + l->num_in);
    far->bases = (int32_t *)(void *)(at + l->far_bases);
    far->run = (uint64_t *)(void *)(at + l->run);
    far->blocks = (const int32_t *)(void *)(window_of(ep) + ep->layout.blocks_in + blocks);
    far->block_ints = ep->layout.block_bytes / sizeof(int32_t);
    far->max_tokens = ep->shape.max_tokens;
    far->entry_ints = terni_entry_ints(&ep->shape, route->layout, route->topk);
}

void terni_route_inter(const struct tern_route *route, struct route_inter_args *k)
{
    const struct tern_ep *ep = route->ep;
    char *window = window_of(ep);
    terni_ep_world(ep, &k->world);
    terni_route_far(route, &k->far);
    k->r.num_all = (int32_t)ep->shape.num_ranks;
    k->r.num_domains = ep->shape.num_domains;
    k->runs = (uint64_t *)(void *)(ep->device_memory + ep->layout.runs);
    k->rows_in = window + ep->layout.rows_in;
    k->rows_out = window + ep->layout.rows_out;
    k->blocks_in = window + ep->layout.blocks_in;
    k->blocks_out = window + ep->layout.blocks_out;
    k->row_bytes = ep->layout.row_bytes;
    k->block_bytes = ep->layout.block_bytes;
    k->slot = (uint32_t)route->slot;
}
