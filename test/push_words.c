/* SPDX-License-Identifier: Apache-2.0
 *
 * See push_words.h. */
#include "push_words.h"

#include "ep/ep.h"

uint64_t push_latest(const struct tern_ep *ep)
{
    uint64_t num = (uint64_t)ep->shape.num_ranks * terni_push_words(&ep->shape), latest = 0, i;
    const uint64_t *words =
        (const uint64_t *)(const void *)(ep->heap->bases[ep->comm->rank] + ep->layout.pushed);

    for (i = 0; i < num; i++) {
        latest = words[i] > latest ? words[i] : latest;
    }
    return latest;
}

void push_forbid(struct tern_ep *ep, int forbid) { ep->shape.combine_push = !forbid; }

/* The words of the copy engine's pieces, which nobody uses meanwhile. */
void push_mislead(struct tern_ep *ep, int mislead)
{
    static uint64_t right;

    if (mislead) {
        right = ep->layout.pushed;
        ep->layout.pushed = ep->layout.pieces;
    } else {
        ep->layout.pushed = right;
    }
}
