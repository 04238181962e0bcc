/* SPDX-License-Identifier: Apache-2.0
 *
 * Posts to queue pairs. Operation k of all goes to place k of the areas, round and round. */
#include "drive_nic_args.h"
#include "kernels/kernels.h"
#include "net/queue_ops.h"

TERN_DEVICE uint64_t place_of(const struct drive_nic_args *p, uint64_t k)
{
    return k % (p->area / p->bytes) * p->bytes;
}

TERN_DEVICE void note(const struct drive_nic_args *p, uint32_t status)
{
    if (status != NET_OK) {
        st_relaxed_sys_u64(&p->result[0], status);
    }
}

/* By warp w. */
TERN_DEVICE uint64_t post(const struct drive_nic_args *p, const struct net_queue *q, uint32_t w, uint64_t k)
{
    uint64_t at = place_of(p, k);
    if (p->kind == NIC_PAIR) {
        return queue_put_signal(q, p->to + at, p->from + at, p->bytes, p->words + w % DRIVE_NIC_WORDS * 8, 8,
                                1, NET_AMO_ADD);
    }
    if (p->kind == NIC_PUT) {
        return queue_put(q, p->to + at, p->from + at, p->bytes);
    }
    return queue_put_inline(q, p->to + at, *(const uint64_t *)(uintptr_t)(p->from + at), 8);
}

/* Waits for each. */
TERN_DEVICE void trips(const struct drive_nic_args *p)
{
    uint64_t begin = 0;
    uint32_t status = NET_OK;
    for (uint32_t i = 0; i <= p->ops && status == NET_OK; i++) {
        status = queue_flush(p->queues, post(p, p->queues, 0, i), clock_ns() + p->timeout_ns);
        begin = i == 0 ? clock_ns() : begin;
    }
    st_relaxed_sys_u64(&p->result[1], clock_ns() - begin);
    note(p, status);
}

TERN_KERNEL(drive_nic, struct drive_nic_args, p)
{
    uint32_t w = (uint32_t)(bid() * nwarps() + warp()), num = (uint32_t)(nblk() * nwarps());
    const struct net_queue *q = &p->queues[w % p->num_queues];
    uint64_t ticket = 0;
    if (p->kind == NIC_TRIP) {
        if (w == 0 && lane() == 0) {
            trips(p);
        }
        return;
    }
    for (uint32_t i = 0; i < p->ops; i++) {
        uint64_t k = (uint64_t)i * num + w;
        if (p->kind == NIC_PUT_WARP) {
            uint64_t at = place_of(p, k * 32 + (uint32_t)lane());
            ticket = queue_put_warp(q, p->to + at, p->from + at, p->bytes);
        } else if (lane() == 0) {
            ticket = post(p, q, w, k);
        }
    }
    if (lane() == 0) {
        note(p, queue_flush(q, ticket, clock_ns() + p->timeout_ns));
    }
}
