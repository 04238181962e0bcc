/* SPDX-License-Identifier: Apache-2.0
 *
 * Doorbells rung by the host, for GPUs that cannot reach a NIC's register (NET_QUEUE_RELAY).
 *
 * Kernels write entries as usual and publish, in memory of the host, how far they are whole. A thread here
 * polls these words and writes record and register. It reads no entry and no completion, and knows nothing
 * but the index: what it has rung is never more than what is ready. */
#ifndef TERN_RELAY_H
#define TERN_RELAY_H

#include "tern/tern.h"

/* One queue pair. */
struct relay_line {
    const uint64_t *published; /* net_queue.relay, as the host addresses it */
    uint32_t *record;          /* two words */
    uint64_t *doorbell;
    uint32_t qpn;
    uint64_t rung; /* index that the NIC was told last: the queue's first, to begin with */
};

/* Rings wherever something new is published; how many doorbells that were. */
uint32_t terni_relay_step(struct relay_line *lines, uint32_t num);

struct relay;
/* A thread that does so until it is closed. The lines are its own meanwhile. */
enum tern_status terni_relay_open(struct relay_line *lines, uint32_t num, struct relay **relay);
/* What is published before the call has been rung when it returns. NULL: nothing to do. */
void terni_relay_close(struct relay *relay);

#endif
