/* SPDX-License-Identifier: Apache-2.0
 *
 * Railed low latency: where messages lie that come to a rank for its domain, and where rows of a combine that
 * it adds for others do (ll_far_args.h). */
#ifndef TERN_LL_RAIL_H
#define TERN_LL_RAIL_H

#include "kernels/ll_chunk.h"

TERN_DEVICE uint32_t ll_message_bytes(const struct ll_dispatch_args *p)
{
    return p->row_bytes + ll_far_of(&p->f)->rail.tail_bytes;
}

/* Message m of domain e's rank on this rail, in the buffer. */
TERN_DEVICE char *ll_message_at(const struct ll_dispatch_args *p, uint64_t epoch, uint32_t e, uint32_t m)
{
    const struct ll_rail *rail = &ll_far_of(&p->f)->rail;
    return ll_buffer(&p->lane, p->f.own, epoch) + rail->messages + e * rail->domain_bytes +
           (uint64_t)m * ll_message_bytes(p);
}

/* Its arrival word: its chunk's first message has one for all. */
TERN_DEVICE uint64_t ll_message_word(const struct ll_dispatch_args *p, uint32_t e, uint32_t m)
{
    return ll_far_of(&p->f)->rail.words + (uint64_t)e * p->lane.source_rows + ll_chunk_of(m);
}

/* Its first slot in what a dispatch notes of messages: at the first rank of this domain. */
TERN_DEVICE int32_t *ll_tail_of(const struct op_frame *f, const struct ll_lane *l, uint32_t e, uint32_t m)
{
    const struct ll_far *far = ll_far_of(f);
    return far->rail.tails + ((uint64_t)e * l->source_rows + m) * (uint32_t)far->num_near;
}

/* Place, at who adds, of the row that the d-th rank of its domain has made of what this message brought. */
TERN_DEVICE uint64_t ll_part_place(const struct op_frame *f, const struct ll_lane *l, uint32_t e, uint32_t m,
                                   uint32_t d)
{
    const struct ll_far *far = ll_far_of(f);
    return far->rail.parts + ((uint64_t)e * l->source_rows + m) * (uint32_t)far->num_near + d;
}

#endif
