/* SPDX-License-Identifier: Apache-2.0
 *
 * Lanes of low-latency operations: who may do what there next, and the launch. The order in a lane (send,
 * receive, send, ...) is what lets two copies of its buffers be enough, so it is enforced here. */
#include "ep/ep_ll.h"

#include <string.h>

#include "ep/tuning.h"
#include "kernels/kernels.h"

static const char *name_of(int operation)
{
    return operation == TERN_OP_LL_DISPATCH ? "dispatch" : "combine";
}

static enum tern_status check_next(const struct ep_lane_calls *c, uint32_t lane, uint32_t phase,
                                   int operation, uint64_t capture)
{
    if (phase == TERN_LL_RECEIVE && c->sent != operation) {
        return TERN_FAIL(TERN_BAD_STATE, "lane %u has sent no %s that is to be received%s", lane,
                         name_of(operation), capture ? " by a captured call" : "");
    }
    /* What another capture left open may have been thrown away with it. */
    if (phase != TERN_LL_RECEIVE && c->sent != TERN_OP_NONE && c->capture == capture) {
        return TERN_FAIL(TERN_BAD_STATE, "lane %u has sent a %s that must be received first", lane,
                         name_of(c->sent));
    }
    if (phase != TERN_LL_RECEIVE && operation == TERN_OP_LL_COMBINE && !c->dispatched) {
        return TERN_FAIL(TERN_BAD_STATE, "lane %u has dispatched nothing that could be combined%s", lane,
                         capture ? " by a captured call" : "");
    }
    return TERN_OK;
}

enum tern_status terni_ll_calls_for(struct tern_ep *ep, uint32_t lane, uint32_t phase, int operation,
                                    struct tern_event *after, struct tern_stream *stream,
                                    struct ep_lane_calls **out)
{
    const struct machine_ops *ops = ep->machine->ops;
    if (ep->shape.ll_lanes == 0) {
        return TERN_FAIL(TERN_BAD_STATE, "the object has no low-latency operations: it was opened with "
                                         "ll_tokens 0; give ll_tokens and ll_hidden when it is opened");
    }
    if (lane >= ep->shape.ll_lanes) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "lane is %u; the object has %u (ll_lanes), numbered from 0",
                         lane, ep->shape.ll_lanes);
    }
    if (phase > TERN_LL_RECEIVE) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "phase is %u; see enum tern_ll_phase", phase);
    }
    if (after) {
        TERN_TRY(ops->event_wait(ep->machine, after, stream));
    }
    uint64_t capture = ops->stream_capture(ep->machine, stream);
    struct ep_lane_calls *c = capture ? &ep->lanes[lane].captured : &ep->lanes[lane].issued;
    TERN_TRY(check_next(c, lane, phase, operation, capture));
    *out = c;
    return TERN_OK;
}

void terni_ll_called(struct tern_ep *ep, struct ep_lane_calls *calls, uint32_t phase, int operation,
                     struct tern_stream *stream)
{
    calls->sent = phase == TERN_LL_SEND ? operation : TERN_OP_NONE;
    calls->capture = ep->machine->ops->stream_capture(ep->machine, stream);
    if (operation == TERN_OP_LL_DISPATCH) {
        calls->dispatched = phase != TERN_LL_SEND;
    }
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
    k.source_rows = ep->shape.ll_tokens;
    k.row_stride = l->ll.row_stride;
    k.home_stride = l->ll.home_stride;
    k.words = l->ll_words + lane * 2 * l->ll.word_bytes;
    k.word_bytes = l->ll.word_bytes;
    k.word_rows = ep->no_words ? 0 : l->ll.word_rows;
    k.id_bytes = l->ll.id_bytes;
    k.all_id_bytes = l->ll.all_id_bytes;
    k.blanks = l->ll_blanks + lane * 2 * l->ll.blank_bytes;
    k.blank_bytes = ep->no_words ? 0 : l->ll.blank_bytes;
    k.ahead = l->ll_ahead + lane * 2 * l->ll.ahead_bytes;
    k.ahead_bytes = l->ll.ahead_bytes;
    k.state = (struct ll_state *)(ep->device_memory + l->ll_states) + lane;
    k.bad_id = (struct ep_record *)(ep->host_memory_device + l->ll_bad_ids) + lane;
    k.ids = (int32_t *)(own + l->ll.ids);
    k.totals = (int32_t *)(own + l->ll.totals);
    k.plan = (int32_t *)(own + l->ll.plan);
    k.pushes = (struct ll_push *)(own + l->ll.pushes);
    k.masks = terni_ll_masks(ep, lane);
    k.wait_ns = NULL;
    k.waits = (uint64_t *)(ep->device_memory + l->ll_waits + lane * l->ll.wait_bytes);
    k.watch = 0;
    return k;
}

void terni_ll_frame(struct tern_ep *ep, int operation, struct op_frame *frame)
{
    terni_ep_frame(ep, operation, frame);
    frame->rank = ep->comm->rank;
    frame->num_ranks = ep->comm->num_ranks;
    frame->first_rank = 0;
    frame->ep_bases = ep->heap->device_bases;
    frame->user_bases = ep->comm->heap->device_bases;
}

void terni_ll_far(const struct tern_ep *ep, uint32_t lane, struct ll_far *far)
{
    const struct ep_layout *l = &ep->layout;
    char *own = ep->device_memory + l->ll_lanes + lane * l->ll.bytes;
    int domain_ranks = (int)ep->shape.domain_ranks;
    memset(far, 0, sizeof(*far));
    far->net = ep->net;
    far->net.record = NULL; /* faults of the object have a record of their own */
    far->entries_out = l->ll_entries_out + lane * 2 * l->ll.entry_bytes;
    far->rows_out = l->ll_rows_out + lane * 2 * l->ll.rows_out_bytes;
    far->entry_bytes = l->ll.entry_bytes;
    far->row_bytes = l->ll.rows_out_bytes;
    far->chunks = (uint64_t *)(ep->device_memory + l->ll_chunks + lane * l->ll.chunk_bytes);
    far->rank_chunks = l->ll.rank_chunks;
    far->numbers = (int32_t *)(own + l->ll.numbers);
    far->places = (uint32_t *)(own + l->ll.places);
    far->homes = (struct ll_far_home *)(own + l->ll.homes);
    far->near_places = (uint64_t)ep->shape.ll_tokens * ep->shape.max_topk;
    far->first = ep->comm->rank / domain_ranks * domain_ranks;
    far->num_near = domain_ranks;
    far->slots = l->ll.out_slots;
    far->recycles = l->ll.recycles;
    if (ep->shape.ll_rail) {
        far->rail.num_domains = ep->shape.num_domains;
        far->rail.domain = (uint32_t)(ep->comm->rank / domain_ranks);
        far->rail.tail_bytes = (uint32_t)l->ll.tail_bytes;
        far->rail.messages = l->ll.messages;
        far->rail.domain_bytes = l->ll.domain_bytes;
        far->rail.words = l->ll.message_words;
        far->rail.parts = l->ll.part_place;
        far->rail.tails = (int32_t *)(own + l->ll.tails);
    }
}

int terni_ll_in_words(const struct ll_dispatch_args *dispatch)
{
    uint64_t choices = (uint64_t)(uint32_t)dispatch->f.num_ranks * dispatch->max_tokens *
                       LL_ID_WORDS(dispatch->topk) * LL_WORD_IDS;
    return dispatch->max_tokens <= dispatch->lane.word_rows && choices <= LL_WORD_CHOICES;
}

uint32_t terni_ll_phases(uint32_t phase)
{
    return phase == TERN_LL_SEND      ? LL_SENDS
           : phase == TERN_LL_RECEIVE ? LL_RECEIVES
                                      : (uint32_t)LL_SENDS | (uint32_t)LL_RECEIVES;
}

/* Both kernels of an operation, `l` the second. If the first alone is there, whose words peers take, a caller
 * who made the call again would send them twice: the object's operations end, also if it was captured. */
static enum tern_status launch_both(struct tern_ep *ep, const struct ll_launch *what, const struct launch *l,
                                    struct tern_stream *stream)
{
    const struct machine_ops *ops = ep->machine->ops;
    struct launch first = *l;
    first.kernel = TERN_KERNEL_ll_weights_ahead;
    first.shared_bytes = terni_ll_watch_bytes(&ep->shape);
    first.args = what->ahead;
    first.args_bytes = sizeof(*what->ahead);
    TERN_TRY(ops->launch(ep->machine, &first, stream));
    terni_ep_issued_without(ep, stream); /* whoever waits for the object waits for this */
    enum tern_status status = ops->launch(ep->machine, l, stream);
    return status == TERN_OK ? TERN_OK : terni_ep_break(ep, what->operation, status);
}

enum tern_status terni_ll_launch(struct tern_ep *ep, const struct ll_launch *what, struct tern_stream *stream)
{
    /* NICs that are kernels have processors of their own. */
    int most = ep->network ? terni_pgas_num_sms(ep->comm, ep->shape.transport) : tern_comm_num_sms(ep->comm);
    struct geometry g;
    struct launch l;
    uint32_t shared_bytes = what->shared_bytes + terni_ll_watch_bytes(&ep->shape);
    terni_ll_mask_log(ep);
    TERN_TRY(terni_tuning_low_latency(&ep->machine->info, &ep->shape, shared_bytes, &g));
    l.kernel = ep->shape.transfer == TERN_TRANSFER_BULK ? what->bulk : what->plain;
    l.num_blocks = terni_tuning_blocks(what->num_sms, (uint32_t)most, most);
    l.num_threads = g.num_threads;
    l.shared_bytes = g.shared_bytes;
    l.args = what->args;
    l.args_bytes = what->args_bytes;
    TERN_TRY(terni_ep_begin(ep, stream, NULL));
    enum tern_status status =
        what->ahead ? launch_both(ep, what, &l, stream) : ep->machine->ops->launch(ep->machine, &l, stream);
    if (status == TERN_OK) {
        terni_ep_issued_without(ep, stream);
    }
    return terni_ep_end(ep, what->operation, status, 0, stream, what->record);
}
