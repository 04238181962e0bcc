/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine of rows that their ranks push: the host's half (kernels/combine_push.h has the other). */
#ifndef TERN_EP_PUSH_H
#define TERN_EP_PUSH_H

#include "ep/ep.h"
#include "ep/tuning.h"

/* After the shape's transfer has been chosen: whether this rank can, if its object is to push. */
enum tern_status terni_push_check(const struct tern_ep *ep);
/* Where the object pushes by Tern's choice: whether it would be refused, or would be slower with as few
 * processors as this rank may use. Then no rank pushes. */
int terni_push_lacks(const struct tern_ep *ep);
/* Whether this combine's rows are pushed: alike on all ranks. */
int terni_push_is(const struct tern_route *route, const struct tern_combine_args *a);
/* Blocks, warps, shared memory, and what the kernel is to know of it all; the rest of k->c is filled. */
enum tern_status terni_push_prepare(const struct tern_route *route, const struct tern_combine_args *a,
                                    struct combine_push_args *k, struct geometry *g);

#endif
