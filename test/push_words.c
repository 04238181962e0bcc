/* SPDX-License-Identifier: Apache-2.0
 *
 * See push_words.h. */
#include "push_words.h"

#include "ep/ep.h"
#include "simt/executor.h"

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

void push_crowd(struct tern_comm *comm, int times)
{
    static int right;

    if (times > 1) {
        right = comm->ranks_on_device;
    }
    comm->ranks_on_device = right * times;
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

uint64_t drain_latest(const struct tern_ep *ep)
{
    uint64_t num = ep->shape.dispatch_drain ? (uint64_t)ep->shape.num_ranks * DRAIN_PHASES : 0, latest = 0, i;
    const uint64_t *ends =
        (const uint64_t *)(const void *)(ep->heap->bases[ep->comm->rank] + ep->layout.ends);

    for (i = 0; i < num; i++) {
        latest = ends[i] >> 32 > latest ? ends[i] >> 32 : latest;
    }
    return latest;
}

/* Likewise. */
void drain_mislead(struct tern_ep *ep, enum drain_lie lie)
{
    static uint64_t ends, words, done;
    static uint32_t timeout_ms;
    const uint64_t unused = EP_MAX_BLOCKS / 2 * sizeof(uint64_t); /* words of blocks that there are not */

    if (lie == DRAIN_HIDES_NOTHING) {
        ep->layout.ends = ends;
        ep->layout.drained = words;
        ep->layout.done = done;
        ep->shape.timeout_ms = timeout_ms;
        return;
    }
    ends = ep->layout.ends;
    words = ep->layout.drained;
    done = ep->layout.done;
    timeout_ms = ep->shape.timeout_ms;
    if (lie == DRAIN_HIDES_ENDS) {
        ep->layout.ends = ep->layout.pieces;
    } else if (lie == DRAIN_HIDES_WORDS) {
        ep->layout.drained += unused;
    } else {
        ep->layout.done = ep->layout.drained + unused;
        ep->shape.timeout_ms *= 20;
    }
}

void drain_let_reside(int num_blocks) { terni_grid_resident = num_blocks; }
