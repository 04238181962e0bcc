/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch across domains on the host: a stage is a message, blocks have roles. */
#include <string.h>

#include "ep/ep_inter.h"
#include "kernels/kernels.h"

enum tern_status terni_inter_dispatch(struct tern_route *route, uint32_t num_sms, uint32_t payload_bytes,
                                      const struct dispatch_args *d, struct tern_stream *stream)
{
    struct tern_ep *ep = route->ep;
    int bulk = ep->shape.transfer == TERN_TRANSFER_BULK;
    struct inter_message message = terni_inter_message(payload_bytes, d->topk);
    struct dispatch_inter_args k;
    struct inter_geometry g;
    uint32_t num_blocks = terni_inter_blocks(ep, num_sms, INTER_ROLES);
    memset(&k, 0, sizeof(k));
    k.d = *d;
    k.d.stage_bytes = message.stride;
    k.weights_offset = message.weights_offset;
    k.trailer_offset = message.trailer_offset;
    terni_inter_rail(ep, message.stride, &k.rail);
    TERN_TRY(terni_tuning_dispatch_inter(&ep->machine->info, bulk, d->cast != TERN_CAST_NONE, message.stride,
                                         terni_place_table(&ep->shape, EP_COL_PAYLOADS + d->num_out), &g));
    k.d.num_stages = g.all.num_stages;
    k.forward_stages = g.forward_stages;
    k.d.table_bytes = g.all.table_bytes;
    k.d.num_senders = (uint32_t)g.all.num_threads / 32;
    k.notes_offset = g.notes_offset;
    k.poster_offset = g.poster_offset;
    k.roles = terni_tuning_roles(terni_inter_streams(ep), k.d.num_senders, num_blocks, 1);
    TERN_TRY(terni_inter_check_warps(ep, k.roles.rails * k.d.num_senders));
    TERN_TRY(terni_inter_check_warps(ep, k.roles.forwarders * k.d.num_senders));
    uint32_t lanes = k.roles.forwarders * 32;
    k.forward_teams = (terni_inter_streams(ep) + lanes - 1) / lanes;
    k.taken_offset = g.taken_offset;
    k.rail_offset = g.rail_offset;
    k.d.f.message.num_blocks = num_blocks;
    terni_route_far(route, &k.far);
    const struct launch l = {bulk ? TERN_KERNEL_dispatch_inter_bulk : TERN_KERNEL_dispatch_inter_plain,
                             (int)num_blocks,
                             g.all.num_threads + 32,
                             g.all.shared_bytes,
                             &k,
                             sizeof(k)};
    return terni_ep_launch(ep, &l, k.d.f.ticket, stream);
}
