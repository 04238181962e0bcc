/* SPDX-License-Identifier: Apache-2.0
 *
 * The public calls of tern.h on low-latency operations. */
#include "ep/ep.h"

enum tern_status tern_ll_dispatch(struct tern_ep *ep, const struct tern_ll_dispatch_args *args,
                                  struct tern_stream *stream)
{
    TERN_TRY(terni_check_pointer("ep", ep));
    TERN_TRY(terni_check_struct("args", args, sizeof(*args)));
    if (args->reserved != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "args->reserved is %u, not 0", args->reserved);
    }
    return terni_ll_dispatch(ep, args, stream);
}

enum tern_status tern_ll_combine(struct tern_ep *ep, const struct tern_ll_combine_args *args,
                                 struct tern_stream *stream)
{
    TERN_TRY(terni_check_pointer("ep", ep));
    TERN_TRY(terni_check_struct("args", args, sizeof(*args)));
    return terni_ll_combine(ep, args, stream);
}

enum tern_status tern_ll_mask_set(struct tern_ep *ep, int rank, int masked, struct tern_stream *stream)
{
    TERN_TRY(terni_check_pointer("ep", ep));
    return terni_ll_mask_set(ep, rank, masked, stream);
}

enum tern_status tern_ll_mask_get(struct tern_ep *ep, int32_t *out, struct tern_stream *stream)
{
    TERN_TRY(terni_check_pointer("ep", ep));
    TERN_TRY(terni_check_pointer("out", out));
    return terni_ll_mask_get(ep, out, stream);
}

enum tern_status tern_ll_mask_peek(struct tern_ep *ep, uint64_t ranks[2])
{
    TERN_TRY(terni_check_pointer("ep", ep));
    TERN_TRY(terni_check_pointer("ranks", ranks));
    return terni_ll_mask_peek(ep, ranks);
}

enum tern_status tern_ll_mask_fault(struct tern_ep *ep, int rank, struct tern_fault *fault)
{
    TERN_TRY(terni_check_pointer("ep", ep));
    TERN_TRY(terni_check_struct("fault", fault, sizeof(*fault)));
    return terni_ll_mask_fault(ep, rank, fault);
}
