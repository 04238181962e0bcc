/* SPDX-License-Identifier: Apache-2.0
 *
 * See ep_inter.h: what dispatch and combine across domains have in common on the host. */
#include "ep/ep_inter.h"

#include <string.h>

#include "ep/ep_rail.h"

struct inter_message terni_inter_message(uint32_t payload_bytes, uint32_t topk)
{
    struct inter_message m;
    m.weights_offset = (uint32_t)align_up(payload_bytes, 16);
    m.trailer_offset = (uint32_t)align_up(m.weights_offset + topk * sizeof(float), 16);
    m.stride = (uint32_t)align_up(m.trailer_offset + sizeof(struct rail_trailer), RAIL_UNIT);
    return m;
}

void terni_inter_rail(const struct tern_ep *ep, uint32_t stride, struct rail_args *rail)
{
    const struct ep_layout *l = &ep->layout;
    char *window = ep->heap->bases[ep->comm->rank];
    terni_ep_world(ep, &rail->world);
    rail->num_channels = ep->shape.net_streams;
    rail->put_queues = terni_tuning_put_queues(ep->shape.net_streams, ep->shape.net_queues);
    rail->credit_queues = ep->shape.net_queues - rail->put_queues;
    rail->ring_bytes = ep->shape.ring_bytes;
    rail->hold = ep->shape.ring_hold;
    rail->stride = stride;
    rail->chunk = terni_rail_chunk(rail->ring_bytes, stride,
                                   (ep->shape.max_tokens + rail->num_channels - 1) / rail->num_channels);
    terni_rail_place(rail, window + l->rails, window + l->rail_words, ep->device_memory + l->rail_state);
}

uint32_t terni_inter_streams(const struct tern_ep *ep)
{
    return (ep->shape.num_domains - 1) * ep->shape.net_streams;
}

enum tern_status terni_inter_rows_fit(const struct machine_info *info, const struct ep_shape *shape, int bulk)
{
    struct inter_message message =
        terni_inter_message(shape->max_row_bytes + TERN_MAX_PAYLOADS * 16u, shape->max_topk);
    struct inter_geometry g;
    return terni_tuning_dispatch_inter(info, bulk, 0, message.stride,
                                       terni_place_table(shape, EP_MAX_COLUMNS), &g);
}

/* Ranks of one cpu machine's process share a worker, but not processors. */
static int processors(const struct tern_comm *comm, uint32_t transport)
{
    const struct machine_info *info = &comm->machine->info;
    return info->kind == TERN_MACHINE_CPU ? info->num_sms : terni_pgas_num_sms(comm, transport);
}

enum tern_status terni_inter_check_roles(const struct tern_comm *comm, const struct ep_shape *shape)
{
    int most = processors(comm, shape->transport);
    return most >= INTER_ROLES
               ? TERN_OK
               : TERN_FAIL(
                     TERN_UNSUPPORTED,
                     "an operation across domains has %d roles, with a processor each; this rank has %d",
                     INTER_ROLES, most);
}

uint32_t terni_inter_blocks(const struct tern_ep *ep, uint32_t num_sms, uint32_t fewest)
{
    uint32_t wanted = num_sms ? num_sms : ep->shape.num_sms;
    return (uint32_t)terni_tuning_blocks(wanted < fewest ? fewest : wanted, 0,
                                         processors(ep->comm, ep->shape.transport));
}

enum tern_status terni_inter_check_warps(const struct tern_ep *ep, uint32_t warps)
{
    uint32_t streams = terni_inter_streams(ep);
    if (streams > warps * 32) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "%u streams to each of %u other domains are %u; %u warps can look after %u: raise "
                         "num_sms, or lower net_queues or net_ring_bytes",
                         ep->shape.net_streams, ep->shape.num_domains - 1, streams, warps, warps * 32);
    }
    return TERN_OK;
}
