/* SPDX-License-Identifier: Apache-2.0
 *
 * What hosts and kernels share about low latency across domains (docs/decisions/017-low-latency-far.md). The
 * frame of such an operation is of all R ranks, by the communicator's numbers; those of this rank's domain
 * are near: it addresses their memory, and they have its rows as in one domain. To the others, which are far,
 * rows go by put and signal, from out-boxes in this rank's window into the same places of theirs, where they
 * are received like rows of near ranks. Out-boxes are in the lane, in two copies as its buffers:
 *
 *   entries_out[2][R][2 + L/2]  dispatch: entry words on their way to rank d
 *   rows_out[2]                 dispatch: [T] tokens' rows, each of which is the same to all ranks
 *                               combine: [slots] rows on their way home, the lane's home_stride apart */
#ifndef TERN_LL_FAR_ARGS_H
#define TERN_LL_FAR_ARGS_H

#include "kernels/ll_args.h"
#include "tern/tern_net.h"

struct ll_far {
    struct tern_net net;             /* its record is NULL: the object has one of its own */
    uint64_t entries_out, rows_out;  /* offsets in an EP heap */
    uint64_t entry_bytes, row_bytes; /* of one copy */
    int32_t first, num_near;         /* ranks of this one's domain: first, ..., first + num_near - 1 */
    uint32_t slots, recycles;        /* recycles: a combine may have more rows to send than there are slots */
};

struct ll_dispatch_inter_args {
    struct ll_far far;
    struct ll_dispatch_args d;
};

struct ll_combine_inter_args {
    struct ll_far far;
    struct ll_combine_args c;
};

/* What both begin with: whoever has the frame finds what is far. */
struct ll_far_frame {
    struct ll_far far;
    struct op_frame f;
};

#endif
