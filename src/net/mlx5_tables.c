/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels see of a provider, in memory of the device. Two blocks, because one changes under kernels:
 *
 *     states   struct net_queue_state of every queue: the kernels' own, set once
 *     tables   struct net_queue of every queue, [num_ranks][num_queues]
 *              keys of own memory,              [num_nics][MLX5_MAX_REGIONS]
 *              keys of peers' memory,           [num_ranks][MLX5_MAX_NICS][MLX5_MAX_REGIONS]
 *
 * The tables are built in a copy of the host's and brought over as a whole. And relay words, which the host
 * polls where it rings for kernels. */
#include "net/mlx5_nic.h"

#include <stdlib.h>
#include <string.h>

struct offsets {
    uint64_t queues, local, remote, end;
};

static uint64_t num_queues(const struct mlx5_provider *p)
{
    return (uint64_t)p->config.num_ranks * p->config.num_queues;
}

static struct offsets offsets_of(const struct mlx5_provider *p)
{
    const uint64_t keys = MLX5_MAX_REGIONS * sizeof(struct net_range);
    struct offsets o;
    o.queues = 0;
    o.local = o.queues + num_queues(p) * sizeof(struct net_queue);
    o.remote = o.local + (uint64_t)p->num_nics * keys;
    o.end = o.remote + (uint64_t)p->config.num_ranks * MLX5_MAX_NICS * keys;
    return o;
}

static uint64_t local_at(const struct mlx5_provider *p, int nic)
{
    return offsets_of(p).local + (uint64_t)nic * MLX5_MAX_REGIONS * sizeof(struct net_range);
}

static uint64_t remote_at(const struct mlx5_provider *p, int peer, int nic)
{
    return offsets_of(p).remote +
           ((uint64_t)peer * MLX5_MAX_NICS + (uint64_t)nic) * MLX5_MAX_REGIONS * sizeof(struct net_range);
}

/* ---- Keys ---- */

static void put_ranges(struct mlx5_provider *p, const struct mlx5_region *regions, int num, int nic,
                       uint64_t at)
{
    struct net_range *ranges = (struct net_range *)(p->tables_copy + at);
    memset(ranges, 0, MLX5_MAX_REGIONS * sizeof *ranges);
    for (int i = 0; i < num; i++) {
        ranges[i].addr = regions[i].addr;
        ranges[i].bytes = regions[i].bytes;
        ranges[i].key = wqe_key_of(regions[i].keys[nic]);
    }
}

static struct net_ranges ranges_at(const struct mlx5_provider *p, uint64_t at, int num)
{
    struct net_ranges ranges;
    ranges.ranges = (const struct net_range *)(p->tables.memory + at);
    ranges.num = (uint64_t)num;
    return ranges;
}

/* ---- Queues ---- */

static void put_doorbell(const struct mlx5_provider *p, const struct mlx5_nic *nic, const struct mlx5_qp *qp,
                         uint64_t number, struct net_queue *q)
{
    if (nic->host_rings) {
        q->flags |= NET_QUEUE_RELAY;
        q->relay = (uint64_t *)(p->relays.memory + number * MLX5_LINE);
        return;
    }
    q->record = (uint32_t *)(nic->records.memory + qp->record);
    q->doorbell = qp->doorbell->kernel;
}

static enum tern_status put_queue(struct mlx5_provider *p, int peer, uint32_t index)
{
    const struct mlx5_qp *qp = terni_mlx5_qp_of(p, peer, index);
    const struct mlx5_nic *nic = &p->nics[qp->nic];
    const struct mlx5_peer *to = &p->peers[peer];
    uint64_t number = (uint64_t)peer * p->config.num_queues + index;
    struct net_queue *q = (struct net_queue *)(p->tables_copy + offsets_of(p).queues) + number;

    memset(q, 0, sizeof *q);
    q->ring = wqe_ring_of(nic->rings.memory + qp->ring, p->config.num_blocks);
    q->qpn = qp->qpn;
    q->flags = (p->config.cq_ring ? NET_QUEUE_CQ_RING : 0) |
               (p->config.force_dump || !p->machine->info.nic_writes_ordered ? NET_QUEUE_DUMP : 0);
    put_doorbell(p, nic, qp, number, q);
    q->cqes = (uint32_t *)(nic->rings.memory + qp->cqes);
    q->num_cqes = p->config.cq_ring ? p->config.num_blocks : 1;
    q->message_bytes = nic->log_max_message < 30 ? 1u << nic->log_max_message : WQE_MAX_BYTES;
    q->batch_blocks = p->config.batch_blocks;
    q->results_lkey = wqe_key_of(nic->results_mr->lkey);
    q->results = (uint64_t *)(nic->results.memory + qp->results);
    q->results_addr = (uint64_t)(uintptr_t)(terni_mlx5_block_named(&nic->results) + qp->results);
    q->local = ranges_at(p, local_at(p, qp->nic), p->num_regions);
    if (to->num_nics > 0) { /* connected: its queue of this index is on that NIC */
        q->remote = ranges_at(p, remote_at(p, peer, (int)index % to->num_nics), to->num_regions);
    }
    q->abort = p->config.abort;
    q->timeout_ns = p->config.timeout_ns;
    q->state = (struct net_queue_state *)p->states.memory + number;
    return terni_queue_check(q);
}

enum tern_status terni_mlx5_refresh(struct mlx5_provider *p)
{
    const struct machine_ops *ops = p->machine->ops;
    struct tern_stream *s = ops->own_stream(p->machine);
    for (int i = 0; i < p->num_nics; i++) {
        put_ranges(p, p->regions, p->num_regions, i, local_at(p, i));
    }
    for (int peer = 0; peer < p->config.num_ranks; peer++) {
        const struct mlx5_peer *to = &p->peers[peer];
        for (int i = 0; i < to->num_nics; i++) {
            put_ranges(p, to->regions, to->num_regions, i, remote_at(p, peer, i));
        }
        for (uint32_t q = 0; to->is_wanted && q < p->config.num_queues; q++) {
            TERN_TRY(put_queue(p, peer, q));
        }
    }
    TERN_TRY(ops->copy(p->machine, p->tables.memory, p->tables_copy, p->tables.bytes, s));
    return ops->stream_synchronize(p->machine, s);
}

/* ---- Open and close ---- */

static enum tern_status set_states(struct mlx5_provider *p)
{
    const struct machine_ops *ops = p->machine->ops;
    struct tern_stream *s = ops->own_stream(p->machine);
    struct net_queue_state *states = (struct net_queue_state *)calloc(num_queues(p), sizeof *states);
    enum tern_status status;
    if (states == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %llu queues",
                         (unsigned long long)num_queues(p));
    }
    for (uint64_t i = 0; i < num_queues(p); i++) {
        terni_queue_state_init(&states[i], 0);
    }
    status = ops->copy(p->machine, p->states.memory, states, num_queues(p) * sizeof *states, s);
    if (status == TERN_OK) {
        status = ops->stream_synchronize(p->machine, s);
    }
    free(states);
    return status;
}

enum tern_status terni_mlx5_tables_open(struct mlx5_provider *p)
{
    struct machine *m = p->machine;
    TERN_TRY(terni_mlx5_block_open(m, num_queues(p) * sizeof(struct net_queue_state), 1, &p->states));
    TERN_TRY(terni_mlx5_block_open(m, offsets_of(p).end, 1, &p->tables));
    TERN_TRY(terni_mlx5_block_open(m, num_queues(p) * MLX5_LINE, 0, &p->relays));
    p->tables_copy = (char *)calloc(1, offsets_of(p).end);
    if (p->tables_copy == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for the tables of %llu queues",
                         (unsigned long long)num_queues(p));
    }
    TERN_TRY(set_states(p));
    return terni_mlx5_refresh(p);
}

void terni_mlx5_tables_close(struct mlx5_provider *p)
{
    terni_mlx5_block_close(p->machine, &p->states);
    terni_mlx5_block_close(p->machine, &p->tables);
    terni_mlx5_block_close(p->machine, &p->relays);
    free(p->tables_copy);
    p->tables_copy = NULL;
}

const struct net_queue *terni_mlx5_queues(const struct mlx5_provider *p)
{
    return (const struct net_queue *)(p->tables.memory + offsets_of(p).queues);
}

const struct net_queue *terni_mlx5_queue(const struct mlx5_provider *p, int peer, uint32_t index)
{
    if (peer < 0 || peer >= p->config.num_ranks || !p->peers[peer].is_wanted ||
        index >= p->config.num_queues) {
        return NULL;
    }
    return (const struct net_queue *)(p->tables_copy + offsets_of(p).queues) +
           ((uint64_t)peer * p->config.num_queues + index);
}
