/* SPDX-License-Identifier: Apache-2.0
 *
 * Lanes of low-latency operations: who may do what there next, and the launch. The order in a lane (send,
 * receive, send, ...) is what lets two copies of its buffers be enough, so it is enforced here. */
#include "ep/ep_ll.h"

#include "ep/tuning.h"
#include "kernels/kernels.h"

static const char *name_of(int operation)
{
    return operation == TERN_OP_LL_DISPATCH ? "dispatch" : "combine";
}

enum tern_status terni_ll_lane_for(struct tern_ep *ep, uint32_t lane, uint32_t phase, int operation,
                                   struct ep_lane **out)
{
    if (ep->shape.ll_lanes == 0) {
        return TERN_FAIL(TERN_BAD_STATE, "the object was opened with ll_tokens 0, without low latency");
    }
    if (lane >= ep->shape.ll_lanes) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "lane is %u; the object has %u", lane, ep->shape.ll_lanes);
    }
    if (phase > TERN_LL_RECEIVE) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "phase is %u; see enum tern_ll_phase", phase);
    }
    struct ep_lane *l = &ep->lanes[lane];
    if (phase == TERN_LL_RECEIVE && l->sent != operation) {
        return TERN_FAIL(TERN_BAD_STATE, "lane %u has sent no %s that is to be received", lane,
                         name_of(operation));
    }
    if (phase != TERN_LL_RECEIVE && l->sent != TERN_OP_NONE) {
        return TERN_FAIL(TERN_BAD_STATE, "lane %u has sent a %s that must be received first", lane,
                         name_of(l->sent));
    }
    if (phase != TERN_LL_RECEIVE && operation == TERN_OP_LL_COMBINE && !l->dispatched) {
        return TERN_FAIL(TERN_BAD_STATE, "lane %u has dispatched nothing that could be combined", lane);
    }
    *out = l;
    return TERN_OK;
}

struct ll_lane terni_ll_lane(const struct tern_ep *ep, uint32_t lane)
{
    const struct ep_layout *l = &ep->layout;
    char *own = ep->device_memory + l->ll_lanes + lane * l->ll.bytes;
    struct ll_lane k;
    k.entries = l->ll_entries + lane * 2 * l->ll.entry_bytes;
    k.arrivals = l->ll_arrivals + lane * 2 * l->ll.arrival_bytes;
    k.buffers = l->ll_buffers + lane * 2 * l->ll.buffer_bytes;
    k.entry_words = l->ll.entry_words;
    k.entry_bytes = l->ll.entry_bytes;
    k.arrival_bytes = l->ll.arrival_bytes;
    k.buffer_bytes = l->ll.buffer_bytes;
    k.state = (struct ll_state *)(ep->device_memory + l->ll_states) + lane;
    k.bad_id = (struct ep_record *)(ep->host_memory_device + l->ll_bad_ids) + lane;
    k.ids = (int32_t *)(own + l->ll.ids);
    k.totals = (int32_t *)(own + l->ll.totals);
    k.plan = (int32_t *)(own + l->ll.plan);
    k.pushes = (struct ll_push *)(own + l->ll.pushes);
    return k;
}

uint32_t terni_ll_phases(uint32_t phase)
{
    return phase == TERN_LL_SEND      ? LL_SENDS
           : phase == TERN_LL_RECEIVE ? LL_RECEIVES
                                      : (uint32_t)LL_SENDS | (uint32_t)LL_RECEIVES;
}

enum tern_status terni_ll_launch(struct tern_ep *ep, const struct ll_launch *what, struct tern_stream *stream)
{
    int most = tern_comm_num_sms(ep->comm);
    struct geometry g;
    struct launch l;
    TERN_TRY(terni_tuning_low_latency(&ep->machine->info, what->shared_bytes, &g));
    l.kernel = ep->shape.transfer == TERN_TRANSFER_BULK ? what->bulk : what->plain;
    l.num_blocks = terni_tuning_blocks(what->num_sms, (uint32_t)most, most);
    l.num_threads = g.num_threads;
    l.shared_bytes = g.shared_bytes;
    l.args = what->args;
    l.args_bytes = what->args_bytes;
    TERN_TRY(terni_ep_begin(ep, stream, what->after));
    enum tern_status status = ep->machine->ops->launch(ep->machine, &l, stream);
    if (status == TERN_OK) {
        terni_ep_issued_without(ep, stream);
    }
    return terni_ep_end(ep, status, 0, stream, what->record);
}
