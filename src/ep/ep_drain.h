/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch whose rows leave staging while others still arrive: the host's half (kernels/dispatch_drain.h has
 * the other). */
#ifndef TERN_EP_DRAIN_H
#define TERN_EP_DRAIN_H

#include "ep/ep.h"
#include "ep/tuning.h"

/* After the shape's transfer has been chosen: whether this rank can, if its object is to. */
enum tern_status terni_drain_check(const struct tern_ep *ep);
/* Whether this route's dispatches drain: alike on all ranks. */
int terni_drain_is(const struct tern_route *route);
/* Launches the kernel that leaves; k->d is filled but for the geometry. Nothing is left to be copied. */
enum tern_status terni_drain_launch(struct tern_route *route, uint32_t num_sms, const struct staging *staging,
                                    struct dispatch_drain_args *k, struct tern_stream *stream);

#endif
