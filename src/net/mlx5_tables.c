/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels see of a provider, in memory of the device:
 *
 *     states   struct net_queue_state of every queue: the kernels' own, set once
 *     tables   struct net_queue of every queue, [num_ranks][num_queues]
 *     keys     lists of own memory, one a NIC; of each peer's, one for each of its NICs (key_lists.h)
 *
 * Tables are built in a copy of the host's and brought over as a whole when queues are connected; lists are
 * made anew when memory comes or goes, and tables told of them. And relay words, which the host polls where
 * it rings for kernels. */
#include "net/mlx5_nic.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static uint64_t num_queues(const struct mlx5_provider *p)
{
    return (uint64_t)p->config.num_ranks * p->config.num_queues;
}

static uint64_t tables_bytes(const struct mlx5_provider *p)
{
    return num_queues(p) * sizeof(struct net_queue);
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
    if (qp->has_no_record) {
        q->flags |= NET_QUEUE_NO_RECORD;
        q->doorbell = terni_mlx5_recordless(qp->doorbell);
    }
}

static struct net_queue *queue_of(const struct mlx5_provider *p, int peer, uint32_t index)
{
    return (struct net_queue *)(void *)p->tables_copy + ((uint64_t)peer * p->config.num_queues + index);
}

static enum tern_status put_queue(struct mlx5_provider *p, int peer, uint32_t index)
{
    const struct mlx5_qp *qp = terni_mlx5_qp_of(p, peer, index);
    const struct mlx5_nic *nic = &p->nics[qp->nic];
    uint64_t number = (uint64_t)peer * p->config.num_queues + index;
    struct net_queue *q = queue_of(p, peer, index);

    q->ring = wqe_ring_of(nic->rings.memory + qp->ring, p->config.num_blocks);
    q->qpn = qp->qpn;
    q->flags = (p->config.cq_ring ? NET_QUEUE_CQ_RING : 0) |
               (p->config.force_dump || !p->machine->info.nic_writes_ordered ? NET_QUEUE_DUMP : 0) |
               (p->peers[peer].num_nics > 1 ? NET_QUEUE_FAR_NICS : 0);
    put_doorbell(p, nic, qp, number, q);
    q->cqes = (uint32_t *)(nic->rings.memory + qp->cqes);
    q->num_cqes = p->config.cq_ring ? p->config.num_blocks : 1;
    q->message_bytes = nic->log_max_message < 30 ? 1u << nic->log_max_message : WQE_MAX_BYTES;
    q->batch_blocks = p->config.batch_blocks;
    q->results_lkey = wqe_key_of(nic->results_mr->lkey);
    q->results = (uint64_t *)(nic->results.memory + qp->results);
    q->results_addr = (uint64_t)(uintptr_t)(terni_mlx5_block_named(&nic->results) + qp->results);
    q->abort = p->config.abort;
    q->timeout_ns = p->config.timeout_ns;
    q->lost = p->config.lost;
    q->state = (struct net_queue_state *)p->states.memory + number;
    return terni_queue_check(q);
}

/* ---- Keys ---- */

/* Before a peer is connected nothing of it is known, and one empty list will do. */
static int num_lists(const struct mlx5_peer *to) { return to->num_nics > 0 ? to->num_nics : 1; }

static uint64_t list_of_nic(struct key_block *b, const struct region_list *regions, int nic)
{
    return terni_key_block_list(b, regions,
                                offsetof(struct mlx5_region, keys) + (size_t)nic * sizeof(uint32_t));
}

/* A block of all lists as they are now, on the device; the copy of the tables names them. */
static enum tern_status put_keys(struct mlx5_provider *p, struct key_block **block)
{
    uint64_t bytes = (uint64_t)p->num_nics * terni_key_list_share(p->regions.num);
    uint64_t own[MLX5_MAX_NICS], theirs[MLX5_MAX_NICS];
    struct key_block *b = NULL;
    for (int peer = 0; peer < p->config.num_ranks; peer++) {
        const struct mlx5_peer *to = &p->peers[peer];
        bytes += (uint64_t)num_lists(to) * terni_key_list_share(to->regions.num);
    }
    TERN_TRY(terni_key_block_open(p->machine, bytes, &b));
    for (int i = 0; i < p->num_nics; i++) {
        own[i] = list_of_nic(b, &p->regions, i);
    }
    for (int peer = 0; peer < p->config.num_ranks; peer++) {
        const struct mlx5_peer *to = &p->peers[peer];
        for (int i = 0; i < num_lists(to); i++) {
            theirs[i] = list_of_nic(b, &to->regions, i);
        }
        for (uint32_t i = 0; to->is_wanted && i < p->config.num_queues; i++) {
            struct net_queue *q = queue_of(p, peer, i);
            q->local = own[terni_mlx5_qp_of(p, peer, i)->nic];
            q->remote = theirs[(int)i % num_lists(to)]; /* its queue of this index is on that NIC */
        }
    }
    return terni_key_block_send(p->machine, b, block);
}

enum tern_status terni_mlx5_refresh(struct mlx5_provider *p)
{
    struct key_block *fresh = NULL;
    enum tern_status status;
    TERN_TRY(put_keys(p, &fresh));
    status = terni_key_lists_publish(p->machine, (struct net_queue *)(void *)p->tables.memory,
                                     queue_of(p, 0, 0), (uint64_t)p->config.num_ranks * p->config.num_queues);
    terni_key_block_replace(p->machine, &p->keys, fresh, status, p->config.copies);
    return status;
}

/* Whole: no kernel uses the queues yet. */
enum tern_status terni_mlx5_tables_fill(struct mlx5_provider *p)
{
    const struct machine_ops *ops = p->machine->ops;
    struct tern_stream *s = ops->own_stream(p->machine);
    struct key_block *fresh = NULL;
    for (int peer = 0; peer < p->config.num_ranks; peer++) {
        if (peer == p->config.rank) {
            queue_of(p, peer, 0)->lost = p->config.lost;
        }
        for (uint32_t q = 0; p->peers[peer].is_wanted && q < p->config.num_queues; q++) {
            TERN_TRY(put_queue(p, peer, q));
        }
    }
    TERN_TRY(put_keys(p, &fresh));
    terni_key_block_replace(p->machine, &p->keys, fresh, TERN_OK, p->config.copies);
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
    TERN_TRY(terni_mlx5_block_open(m, tables_bytes(p), 1, &p->tables));
    TERN_TRY(terni_mlx5_block_open(m, num_queues(p) * MLX5_LINE, 0, &p->relays));
    p->tables_copy = (char *)calloc(1, tables_bytes(p));
    if (p->tables_copy == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for the tables of %llu queues",
                         (unsigned long long)num_queues(p));
    }
    TERN_TRY(set_states(p));
    return terni_mlx5_tables_fill(p);
}

void terni_mlx5_tables_close(struct mlx5_provider *p)
{
    terni_mlx5_block_close(p->machine, &p->states);
    terni_mlx5_block_close(p->machine, &p->tables);
    terni_mlx5_block_close(p->machine, &p->relays);
    terni_key_block_close(p->machine, p->keys);
    p->keys = NULL;
    free(p->tables_copy);
    p->tables_copy = NULL;
}

const struct net_queue *terni_mlx5_queues(const struct mlx5_provider *p)
{
    return (const struct net_queue *)(void *)p->tables.memory;
}

const struct net_queue *terni_mlx5_queue(const struct mlx5_provider *p, int peer, uint32_t index)
{
    if (peer < 0 || peer >= p->config.num_ranks || !p->peers[peer].is_wanted ||
        index >= p->config.num_queues) {
        return NULL;
    }
    return queue_of(p, peer, index);
}
