/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pairs. All that a NIC reads and writes for them is in three blocks of memory:
 *
 *     rings    for each queue its send ring, then its completion queue, whole pages each
 *     records  a line of 64 bytes each: the doorbell record of the queue pair, that of the completion queue
 *     results  where old values of atomics come back, and what nobody wants
 *
 * Rings are in memory of the device if the NIC can reach that. Records are where the one who writes them is:
 * there as well if kernels ring, in memory of the host if a thread of the host does. */
#include "net/mlx5_nic.h"
#include "net/mlx5_cqe.h"

#include <string.h>

enum { RECORD_QP = 0, RECORD_CQ = 8, RESULTS_BYTES = NET_QUEUE_RESULT_WORDS * 8 };

static uint64_t round_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

static uint64_t ring_bytes(const struct mlx5_provider *p)
{
    return round_up((uint64_t)p->config.num_blocks * WQE_BLOCK_BYTES, MLX5_PAGE);
}

/* A collapsed queue has as many entries too, of which one is used: log_cq_size must be that of what may be
 * outstanding, and whether the device looks for memory behind all of them is not known. */
static uint64_t cq_bytes(const struct mlx5_provider *p)
{
    return round_up((uint64_t)p->config.num_blocks * CQE_BYTES, MLX5_PAGE);
}

/* Queues of one peer that are on this NIC. */
static uint32_t per_peer(const struct mlx5_provider *p, int nic)
{
    uint32_t num_nics = (uint32_t)p->num_nics;
    return (p->config.num_queues + num_nics - 1 - (uint32_t)nic) / num_nics;
}

static uint64_t num_places(const struct mlx5_provider *p, int nic)
{
    return (uint64_t)p->num_wanted * per_peer(p, nic);
}

/* The running number of a queue among those of its NIC. */
static uint64_t place_of(const struct mlx5_provider *p, int peer, uint32_t index)
{
    uint64_t before = 0;
    for (int r = 0; r < peer; r++) {
        before += p->peers[r].is_wanted != 0;
    }
    return before * per_peer(p, (int)(index % (uint32_t)p->num_nics)) + index / (uint32_t)p->num_nics;
}

static enum tern_status fill_cqs(struct mlx5_provider *p, struct mlx5_nic *nic, uint64_t count)
{
    const struct machine_ops *ops = p->machine->ops;
    struct tern_stream *s = ops->own_stream(p->machine);
    uint64_t stride = ring_bytes(p) + cq_bytes(p);
    for (uint64_t i = 0; i < count; i++) {
        TERN_TRY(ops->fill(p->machine, nic->rings.memory + i * stride + ring_bytes(p), 0xff, cq_bytes(p), s));
    }
    return ops->stream_synchronize(p->machine, s);
}

enum tern_status terni_mlx5_places_open(struct mlx5_provider *p, int index)
{
    struct mlx5_nic *nic = &p->nics[index];
    uint64_t count = num_places(p, index);
    uint32_t registers = per_peer(p, index);
    if (count == 0) {
        return TERN_OK;
    }
    registers = registers < MLX5_MAX_REGISTERS ? registers : MLX5_MAX_REGISTERS;
    TERN_TRY(terni_mlx5_registers_open(nic, (int)registers, p->config.doorbell));
    TERN_TRY(
        terni_mlx5_block_place(nic, count * (ring_bytes(p) + cq_bytes(p)), p->config.memory, &nic->rings));
    TERN_TRY(fill_cqs(p, nic, count));
    TERN_TRY(terni_mlx5_block_place(
        nic, count * MLX5_LINE,
        nic->host_rings || nic->rings.host != NULL ? MLX5_MEMORY_HOST : MLX5_MEMORY_DEVICE, &nic->records));
    TERN_TRY(terni_mlx5_block_open(p->machine, count * round_up(RESULTS_BYTES, MLX5_LINE),
                                   nic->rings.host == NULL, &nic->results));
    return terni_mlx5_mr_open(nic, terni_mlx5_block_named(&nic->results), nic->results.bytes,
                              nic->results.host == NULL, IBV_ACCESS_LOCAL_WRITE, &nic->results_mr);
}

static enum tern_status create(struct mlx5_nic *nic, const uint32_t *in, size_t words, uint32_t *number,
                               struct mlx5dv_devx_obj **object)
{
    uint32_t out[DEVX_HEAD_WORDS] = {0};
    *object = nic->v->obj_create(nic->context, in, words * sizeof *in, out, sizeof out);
    if (*object == NULL) {
        return terni_mlx5_refused(nic, in, out);
    }
    *number = (uint32_t)devx_get(out, 0, DEVX_OUT_NUMBER);
    return TERN_OK;
}

static uint32_t log2_exact(uint32_t n) { return (uint32_t)__builtin_ctz(n); }

static enum tern_status create_cq(struct mlx5_provider *p, struct mlx5_nic *nic, struct mlx5_qp *qp)
{
    uint32_t in[DEVX_CREATE_CQ_WORDS];
    struct devx_cq cq;
    memset(&cq, 0, sizeof cq);
    cq.ring.umem_id = nic->rings.umem->umem_id;
    cq.ring.offset = qp->cqes;
    cq.record.umem_id = nic->records.umem->umem_id;
    cq.record.offset = qp->record + RECORD_CQ;
    cq.log_entries = log2_exact(p->config.num_blocks);
    cq.uar_page = nic->cq_uar->page_id;
    cq.eqn = nic->eqn;
    cq.collapsed = !p->config.cq_ring;
    terni_devx_create_cq(in, &cq);
    return create(nic, in, DEVX_CREATE_CQ_WORDS, &qp->cqn, &qp->cq);
}

/* Without a record, if the NIC has still room for such a queue pair: a record would take a fence of the
 * system before each doorbell. A host that rings has none to save. */
static enum tern_status create_qp(struct mlx5_provider *p, struct mlx5_nic *nic, struct mlx5_qp *qp,
                                  uint32_t user_index)
{
    uint32_t in[DEVX_QP_WORDS];
    struct devx_qp a;
    memset(&a, 0, sizeof a);
    a.ring.umem_id = nic->rings.umem->umem_id;
    a.ring.offset = qp->ring;
    a.record.umem_id = nic->records.umem->umem_id;
    a.record.offset = qp->record + RECORD_QP;
    a.log_blocks = log2_exact(p->config.num_blocks);
    a.pd = nic->pdn;
    a.cqn = qp->cqn;
    a.uar_page = qp->doorbell->uar->page_id;
    a.user_index = user_index;
    a.timestamps = nic->timestamps;
    a.has_no_record = nic->no_records && !nic->host_rings && !p->config.records;
    terni_devx_create_qp(in, &a);
    enum tern_status status = create(nic, in, DEVX_QP_WORDS, &qp->qpn, &qp->qp);
    if (status != TERN_OK && a.has_no_record) {
        TERN_LOG(TERN_LOG_INFO, "further queue pairs have doorbell records: %s", tern_last_error());
        nic->no_records = a.has_no_record = 0;
        terni_devx_create_qp(in, &a);
        status = create(nic, in, DEVX_QP_WORDS, &qp->qpn, &qp->qp);
    }
    qp->has_no_record = a.has_no_record;
    return status;
}

enum tern_status terni_mlx5_qp_open(struct mlx5_provider *p, int peer, uint32_t index)
{
    struct mlx5_qp *qp = terni_mlx5_qp_of(p, peer, index);
    uint64_t place = place_of(p, peer, index);
    struct mlx5_nic *nic;
    qp->nic = (int)(index % (uint32_t)p->num_nics);
    nic = &p->nics[qp->nic];
    qp->doorbell = &nic->registers[index / (uint32_t)p->num_nics % (uint32_t)nic->num_registers];
    qp->ring = place * (ring_bytes(p) + cq_bytes(p));
    qp->cqes = qp->ring + ring_bytes(p);
    qp->record = place * MLX5_LINE;
    qp->results = place * round_up(RESULTS_BYTES, MLX5_LINE);
    qp->state = DEVX_RST;
    TERN_TRY(create_cq(p, nic, qp));
    return create_qp(p, nic, qp, (uint32_t)peer * p->config.num_queues + index);
}

enum tern_status terni_mlx5_qp_modify(struct mlx5_nic *nic, struct mlx5_qp *qp, const uint32_t *in,
                                      size_t words, uint32_t state)
{
    uint32_t out[DEVX_HEAD_WORDS] = {0};
    if (nic->v->obj_modify(qp->qp, in, words * sizeof *in, out, sizeof out) != 0) {
        return terni_mlx5_refused(nic, in, out);
    }
    qp->state = state;
    return TERN_OK;
}

void terni_mlx5_qp_close(struct mlx5_provider *p, struct mlx5_qp *qp)
{
    struct mlx5_nic *nic = &p->nics[qp->nic];
    if (qp->qp != NULL) {
        MLX5_WARN(nic, nic->v->obj_destroy(qp->qp), "a queue pair");
    }
    if (qp->cq != NULL) {
        MLX5_WARN(nic, nic->v->obj_destroy(qp->cq), "a completion queue");
    }
    qp->qp = qp->cq = NULL;
}
