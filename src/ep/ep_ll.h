/* SPDX-License-Identifier: Apache-2.0
 *
 * What low-latency dispatch and combine share on the host. */
#ifndef TERN_EP_LL_H
#define TERN_EP_LL_H

#include "ep/ep.h"
#include "kernels/ll_far_args.h"

/* The lane's calls that a call in this phase on this stream continues, if `operation` may come next there.
 * `after` (or NULL) is awaited first: it may lead the stream into a capture. */
enum tern_status terni_ll_calls_for(struct tern_ep *ep, uint32_t lane, uint32_t phase, int operation,
                                    struct tern_event *after, struct tern_stream *stream,
                                    struct ep_lane_calls **out);
/* The call has been launched. */
void terni_ll_called(struct tern_ep *ep, struct ep_lane_calls *calls, uint32_t phase, int operation,
                     struct tern_stream *stream);
/* As kernels see it. The caller adds wait_ns and watch. */
struct ll_lane terni_ll_lane(const struct tern_ep *ep, uint32_t lane);
/* Whether rows of this dispatch go in words (kernels/ll_in_words.h): by what is the same on all ranks. */
int terni_ll_in_words(const struct ll_dispatch_args *dispatch);
uint32_t terni_ll_phases(uint32_t phase);
/* Rows that the slabs of this dispatch have room for. */
static inline uint64_t terni_ll_slab_rows(const struct ll_dispatch_args *dispatch)
{
    uint64_t slabs = dispatch->by_rank ? 1 : dispatch->experts_a_rank;
    return slabs * (uint32_t)dispatch->f.num_ranks * dispatch->max_tokens;
}
/* The frame of an operation: of all ranks, whatever their domains. */
void terni_ll_frame(struct tern_ep *ep, int operation, struct op_frame *frame);
/* What kernels of an object that spans domains are told of other domains. */
void terni_ll_far(const struct tern_ep *ep, uint32_t lane, struct ll_far *far);

/* For the ll_mask kernel any lane will do. */
struct ll_masks terni_ll_masks(const struct tern_ep *ep, uint32_t lane);

struct ll_launch {
    int operation;
    int bulk, plain;                /* kernels, of one domain or of several, as args is */
    uint32_t shared_bytes, num_sms; /* shared_bytes: where the watch begins, which comes on top */
    const void *args;
    uint32_t args_bytes;
    struct tern_event *record;
    const struct ll_ahead_args *ahead; /* of a kernel that brings weights before, or NULL */
};
enum tern_status terni_ll_launch(struct tern_ep *ep, const struct ll_launch *what,
                                 struct tern_stream *stream);

#endif
