/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's part of a queue pair: its first state, and whether what a provider filled in can be driven. */
#include "net/queue.h"

#include "core/core.h"
#include "net/mlx5_cqe.h"

#include <string.h>

void terni_queue_state_init(struct net_queue_state *state, uint64_t first)
{
    memset(state, 0, sizeof(*state));
    state->reserved = state->ready = state->consumed = first;
}

static int is_power_of_two(uint64_t n) { return n != 0 && (n & (n - 1)) == 0; }

static int is_aligned(const void *p, uintptr_t to) { return p != NULL && (uintptr_t)p % to == 0; }

static enum tern_status check_sizes(const struct net_queue *q)
{
    uint64_t blocks = ((uint64_t)q->ring.segment_mask + 1) / WQE_BLOCK_SEGMENTS;

    if (!is_power_of_two(blocks) || blocks < NET_QUEUE_MIN_BLOCKS || blocks > WQE_MAX_RING_BLOCKS) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "a send ring of %llu blocks; it has a power of two from %d to %d",
                         (unsigned long long)blocks, NET_QUEUE_MIN_BLOCKS, WQE_MAX_RING_BLOCKS);
    }
    if ((q->flags & NET_QUEUE_CQ_RING) && blocks > NET_QUEUE_MAX_CQ_RING_BLOCKS) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "a ring of %llu blocks with a ring of completions; it has at most %d",
                         (unsigned long long)blocks, NET_QUEUE_MAX_CQ_RING_BLOCKS);
    }
    if (q->flags & NET_QUEUE_CQ_RING ? !is_power_of_two(q->num_cqes) || q->num_cqes < blocks
                                     : q->num_cqes != 1) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "%u completion queue entries for a ring of %llu blocks (flags 0x%x)", q->num_cqes,
                         (unsigned long long)blocks, q->flags);
    }
    if (q->message_bytes == 0 || q->message_bytes > WQE_MAX_BYTES) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "messages of at most %u bytes; a NIC takes 1 to %d",
                         q->message_bytes, WQE_MAX_BYTES);
    }
    if (!is_power_of_two(q->batch_blocks)) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "a doorbell for every %u blocks, which is no power of two",
                         q->batch_blocks);
    }
    if (q->qpn > WQE_MAX_QPN) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "queue pair number 0x%x has more than 24 bits", q->qpn);
    }
    return TERN_OK;
}

enum tern_status terni_queue_check(const struct net_queue *q)
{
    const uint32_t known =
        NET_QUEUE_CQ_RING | NET_QUEUE_RELAY | NET_QUEUE_DUMP | NET_QUEUE_NO_RECORD | NET_QUEUE_FAR_NICS;
    int has_record = (q->flags & NET_QUEUE_NO_RECORD) || is_aligned(q->record, 8);
    int rings = (q->flags & NET_QUEUE_RELAY) /* which writes records */
                    ? is_aligned(q->relay, 8) && !(q->flags & NET_QUEUE_NO_RECORD)
                    : has_record && is_aligned(q->doorbell, 8);

    if (q->flags & ~known) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "flags 0x%x of a queue have bits other than 0x%x", q->flags,
                         known);
    }
    TERN_TRY(check_sizes(q));
    if (!rings) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "queue 0x%06x has no way to tell the NIC (flags 0x%x)",
                         q->qpn, q->flags);
    }
    if (!is_aligned(q->ring.segments, WQE_BLOCK_BYTES) || !is_aligned(q->cqes, CQE_BYTES) ||
        !is_aligned(q->results, 8) || !is_aligned(q->state, 8)) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "queue 0x%06x: ring, completion queue, results or state is absent or not aligned",
                         q->qpn);
    }
    return TERN_OK;
}
