/* SPDX-License-Identifier: Apache-2.0
 *
 * Where kernels look: see ll_window.h. */
#include "ll_window.h"

#include "ep/ep.h"

static uint64_t *word_at(const struct tern_ep *ep, uint64_t offset)
{
    return (uint64_t *)(void *)(ep->heap->bases[ep->comm->rank] + offset);
}

uint64_t *ll_window_entry(const struct tern_ep *ep, uint64_t epoch, int from, int w)
{
    const struct ep_layout *l = &ep->layout;

    return word_at(ep, l->ll_entries + (epoch & 1) * l->ll.entry_bytes) + (uint64_t)from * l->ll.entry_words +
           (uint64_t)w;
}

uint64_t *ll_window_arrival(const struct tern_ep *ep, uint64_t epoch, uint64_t i)
{
    const struct ep_layout *l = &ep->layout;

    return word_at(ep, l->ll_arrivals + (epoch & 1) * l->ll.arrival_bytes) + i;
}
