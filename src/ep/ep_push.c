/* SPDX-License-Identifier: Apache-2.0
 *
 * See ep_push.h. Rows go from callers' memory, whatever that is, to areas of the peers' staging, one a
 * source. */
#include "ep/ep_push.h"

static enum tern_status check(const struct tern_ep *ep)
{
    struct push_geometry x;
    TERN_TRY(terni_ep_check_roles(ep, "combine_push", PUSH_FEWEST_BLOCKS));
    return terni_tuning_push(&ep->machine->info, COMBINE_BATCH_BYTES,
                             terni_place_table(&ep->shape, COMBINE_COLUMNS), PUSH_FEWEST_BLOCKS, &x);
}

enum tern_status terni_push_check(const struct tern_ep *ep)
{
    return ep->shape.combine_push && ep->shape.push_wish == TERN_PUSH_ALWAYS ? check(ep) : TERN_OK;
}

int terni_push_lacks(const struct tern_ep *ep)
{
    int blocks = terni_tuning_blocks(0, ep->shape.num_sms, tern_comm_num_sms(ep->comm));
    return ep->shape.combine_push && ep->shape.push_wish == TERN_PUSH_AUTO &&
           (!terni_tuning_pushes_by(blocks) || check(ep) != TERN_OK);
}

int terni_push_is(const struct tern_route *route, const struct tern_combine_args *a)
{
    return route->ep->shape.combine_push && !route->ep->no_push && route->layout == TERN_LAYOUT_RANK &&
           !a->copy_engine;
}

enum tern_status terni_push_prepare(const struct tern_route *route, const struct tern_combine_args *a,
                                    struct combine_push_args *k, struct geometry *g)
{
    const struct tern_ep *ep = route->ep;
    uint32_t table = terni_place_table(&ep->shape, COMBINE_COLUMNS);
    struct push_geometry x;
    int blocks = terni_tuning_blocks(a->num_sms, ep->shape.num_sms, tern_comm_num_sms(ep->comm));
    blocks = blocks < PUSH_FEWEST_BLOCKS ? PUSH_FEWEST_BLOCKS : blocks;
    TERN_TRY(terni_tuning_push(&ep->machine->info, k->c.batch_rows * k->c.chunk_bytes, table, blocks, &x));
    k->rows = (const char *)a->in.data;
    k->stride = a->in.row_stride ? a->in.row_stride : (int64_t)a->in.row_bytes;
    k->staged_offset = ep->layout.staging;
    k->staged = ep->heap->bases[ep->comm->rank] + k->staged_offset;
    k->area_bytes = (uint64_t)ep->shape.max_tokens * a->in.row_bytes;
    k->words_offset = ep->layout.pushed;
    k->rank_words = terni_push_words(&ep->shape);
    k->push_blocks = x.push_blocks;
    k->num_pushers = x.num_pushers;
    k->num_stages = x.num_stages;
    k->stage_bytes = x.stage_bytes;
    k->warp_bytes = x.warp_bytes;
    k->boxes_offset = x.boxes_offset;
    k->c.num_stages = x.all.num_stages;
    k->c.table_bytes = x.all.table_bytes;
    k->c.num_pullers = (uint32_t)x.all.num_threads / 32;
    k->c.f.message.num_blocks = (uint64_t)blocks;
    x.all.num_blocks = blocks;
    *g = x.all;
    return TERN_OK;
}
