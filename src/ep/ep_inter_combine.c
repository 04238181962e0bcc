/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine across domains on the host: blocks have roles. The copy engine plays no part. */
#include <string.h>

#include "ep/ep_inter.h"
#include "kernels/kernels.h"

enum { FEWEST_BLOCKS = 2, MIX_BATCH_BYTES = 8 * COMBINE_MIX_CHUNK };

/* A block is some lines of warps. A line's loader looks after 32 streams at most: *fits is whether these do.
 */
static enum tern_status prepare_line(const struct tern_ep *ep, struct inter_combine *x, int *fits)
{
    struct combine_inter_args *k = &x->k;
    struct line_geometry g;
    x->kernel = TERN_KERNEL_combine_inter_bulk;
    TERN_TRY(terni_tuning_combine_line(&ep->machine->info, k->c.row_bytes,
                                       terni_place_table(&ep->shape, COMBINE_COLUMNS), &g));
    x->geometry = g.all;
    k->c.num_stages = g.all.num_stages;
    k->c.table_bytes = g.all.table_bytes;
    k->c.chunk_bytes = g.piece;
    k->c.num_pullers = g.adders;
    k->num_lines = g.lines;
    k->line_bytes = g.line_bytes;
    k->bars_offset = g.bars_offset;
    k->args_offset = g.args_offset;
    k->poster_offset = g.poster_offset;
    k->roles =
        terni_tuning_line_roles(terni_inter_streams(ep), ep->shape.num_domains, g.lines, x->num_blocks);
    *fits = terni_inter_streams(ep) <= k->roles.forwarders * g.lines * 32;
    return TERN_OK;
}

/* Every warp is one by itself; with few tokens each takes parts of them. */
static enum tern_status prepare_warps(const struct tern_ep *ep, struct inter_combine *x, int bulk)
{
    struct combine_inter_args *k = &x->k;
    struct geometry *g = &x->geometry;
    uint32_t most_threads = bulk ? TERN_THREADS_combine_inter_wide_bulk : TERN_THREADS_combine_inter_plain;
    terni_combine_steps(ep, &k->c, COMBINE_MIX_CHUNK, MIX_BATCH_BYTES);
    uint32_t chunks = (k->c.row_bytes + k->c.chunk_bytes - 1) / k->c.chunk_bytes;
    x->kernel = bulk ? TERN_KERNEL_combine_inter_wide_bulk : TERN_KERNEL_combine_inter_plain;
    TERN_TRY(terni_tuning_combine_inter(&ep->machine->info, bulk, most_threads / 32,
                                        k->c.batch_rows * k->c.chunk_bytes,
                                        terni_place_table(&ep->shape, COMBINE_COLUMNS), g));
    k->c.num_stages = g->num_stages;
    k->c.table_bytes = g->table_bytes;
    k->c.num_pullers = (uint32_t)g->num_threads / 32;
    k->notes_offset =
        g->shared_bytes - k->c.num_pullers * k->c.num_stages * (uint32_t)sizeof(struct stage_note);
    k->roles = terni_tuning_roles(terni_inter_streams(ep), k->c.num_pullers, x->num_blocks, 0);
    k->c.parts =
        terni_tuning_parts(k->c.num_tokens, chunks, k->roles.own * k->c.num_pullers, &k->c.part_chunks);
    return terni_inter_check_warps(ep, k->roles.forwarders * k->c.num_pullers);
}

enum tern_status terni_inter_combine_prepare(struct tern_route *route, uint32_t num_sms,
                                             const struct combine_args *c, struct inter_combine *x)
{
    struct tern_ep *ep = route->ep;
    int bulk = ep->shape.transfer == TERN_TRANSFER_BULK;
    struct inter_message message = terni_inter_message(c->row_bytes, c->topk);
    struct combine_inter_args *k = &x->k;
    int narrow = c->topk <= 32 && ep->shape.domain_ranks <= 32 && ep->shape.num_domains <= 32;
    int fits = 0;
    memset(x, 0, sizeof(*x));
    k->c = *c;
    k->weights_offset = message.weights_offset;
    k->trailer_offset = message.trailer_offset;
    terni_inter_rail(ep, message.stride, &k->rail);
    x->num_blocks = terni_inter_blocks(ep, num_sms, FEWEST_BLOCKS);
    k->c.parts = 1;
    k->c.part_chunks = (c->row_bytes + c->chunk_bytes - 1) / c->chunk_bytes;
    if (bulk && narrow) {
        TERN_TRY(prepare_line(ep, x, &fits));
    }
    if (!fits) {
        TERN_TRY(prepare_warps(ep, x, bulk));
    }
    k->c.f.message.num_blocks = x->num_blocks;
    terni_route_far(route, &k->far);
    return TERN_OK;
}

enum tern_status terni_inter_combine(struct tern_ep *ep, struct inter_combine *x, uint64_t ticket,
                                     struct tern_stream *stream)
{
    x->k.c.f.ticket = ticket;
    const struct launch l = {x->kernel, (int)x->num_blocks, x->geometry.num_threads, x->geometry.shared_bytes,
                             &x->k,     sizeof(x->k)};
    return terni_ep_launch(ep, &l, ticket, stream);
}
