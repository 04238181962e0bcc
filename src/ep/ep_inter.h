/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch and combine on objects that span domains: what their launches have beside those inside a domain.
 * */
#ifndef TERN_EP_INTER_H
#define TERN_EP_INTER_H

#include "ep/ep.h"
#include "ep/tuning.h"
#include "kernels/rail_args.h"

/* Of a dispatch, whose blocks have one each; a combine has fewer. */
enum { INTER_ROLES = 3 };

/* Where a message has what behind its payload: weights, trailer; and all of it. */
struct inter_message {
    uint32_t weights_offset, trailer_offset, stride;
};
struct inter_message terni_inter_message(uint32_t payload_bytes, uint32_t topk);
/* Streams, for messages of so many bytes, of which every ring has room for some (layout.c). */
void terni_inter_rail(const struct tern_ep *ep, uint32_t stride, struct rail_args *rail);
/* While the object opens: whether the longest rows fit, `bulk` or not; whether the roles have a processor
 * each. */
enum tern_status terni_inter_rows_fit(const struct machine_info *info, const struct ep_shape *shape,
                                      int bulk);
enum tern_status terni_inter_check_roles(const struct tern_comm *comm, const struct ep_shape *shape);
/* Of a launch whose blocks all run at once: as many as asked for, and at least `fewest`. */
uint32_t terni_inter_blocks(const struct tern_ep *ep, uint32_t num_sms, uint32_t fewest);
/* To all rail peers, one way. */
uint32_t terni_inter_streams(const struct tern_ep *ep);
/* Whether `warps` can look after all streams. */
enum tern_status terni_inter_check_warps(const struct tern_ep *ep, uint32_t warps);

/* Geometry, roles and launch, with everything else in d; payload_bytes of a message. */
enum tern_status terni_inter_dispatch(struct tern_route *route, uint32_t num_sms, uint32_t payload_bytes,
                                      const struct dispatch_args *d, struct tern_stream *stream);

/* A combine: what its kernel takes, and how it is launched once its rows are staged. */
struct inter_combine {
    struct combine_inter_args k;
    struct geometry geometry;
    uint32_t num_blocks;
    int kernel; /* enum terni_kernel */
};
/* What a warp of combine takes at a time: chunks of rows, and as many of a token's rows as make a batch. */
void terni_combine_steps(const struct tern_ep *ep, struct combine_args *k, uint32_t chunk, uint32_t batch);
/* Geometry and roles, with everything else in c: all that can be refused. */
enum tern_status terni_inter_combine_prepare(struct tern_route *route, uint32_t num_sms,
                                             const struct combine_args *c, struct inter_combine *x);
enum tern_status terni_inter_combine(struct tern_ep *ep, struct inter_combine *x, uint64_t ticket,
                                     struct tern_stream *stream);

#endif
