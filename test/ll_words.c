/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the signals of low latency are: see ll_words.h. */
#include "ll_words.h"

#include "ep/ep.h"

uint64_t *ll_words_arrivals(const struct tern_ep *ep, uint32_t lane, uint64_t epoch)
{
    const struct ep_layout *l = &ep->layout;
    char *window = ep->heap->bases[ep->comm->rank];

    return (uint64_t *)(void *)(window + l->ll_arrivals + (2 * lane + (epoch & 1)) * l->ll.arrival_bytes);
}
