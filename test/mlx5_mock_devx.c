/* SPDX-License-Identifier: Apache-2.0
 *
 * The mock's firmware: reads mailboxes bit by bit, with offsets of its own, and keeps queues and their
 * states. What it refuses, it refuses as a NIC does: status and syndrome in the answer, EREMOTEIO. The
 * syndrome is the line in this file, so that a test that fails tells which condition it was. */
#include "mlx5_mock.h"

#if TERN_HAVE_VERBS

#include "devx_read.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { STATUS_BAD_PARAMETER = 3, IN_QPC = 0xc0, IN_PATH = IN_QPC + 0xc0, IN_CQC = 0x80 };
enum { RST, INIT, RTR, RTS };

static int refuse(void *out, size_t out_bytes, int line)
{
    if (out_bytes >= 16) {
        box_write(out, 0, 8, STATUS_BAD_PARAMETER);
        box_write(out, 0x20, 32, (uint64_t)line);
    }
    errno = EREMOTEIO;
    return EREMOTEIO;
}
#define REFUSE_UNLESS(condition)                                                                             \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            return refuse(out, out_bytes, __LINE__);                                                         \
        }                                                                                                    \
    } while (0)

/* ---- Capabilities ---- */

int mock_general_cmd(struct ibv_context *context, const void *in, size_t in_bytes, void *out,
                     size_t out_bytes)
{
    const struct mock_device *d = mock_context_object(context)->device;
    unsigned which;
    if (mock_fails("general_cmd")) {
        return EIO;
    }
    REFUSE_UNLESS(in_bytes == 16 && out_bytes == 16 + 4096 && box_read(in, 0, 16) == 0x100);
    which = (unsigned)box_read(in, 0x30, 16);
    memset(out, 0, out_bytes);
    if (which == 0x41 && !d->has_more) {
        mock_complain("%s has no further capabilities to be asked for", d->name);
    }
    if (which == 9 && !d->is_roce) {
        mock_complain("%s has no capabilities of RoCE to be asked for", d->name);
    }
    REFUSE_UNLESS(which == 1 || which == 7 || which == 9 || which == 0x41);
    if (which == 0x41) {
        box_write(out, 0x80 + 0x2e0 + 1, 1, d->no_records);
    } else if (which == 1) {
        box_write(out, 0x80 + 0x20, 1, d->has_more);
        box_write(out, 0x80 + 0x1c0 + 3, 5, d->log_max_message);
        box_write(out, 0x80 + 0x1e0 + 28, 4, d->cqe_version);
        box_write(out, 0x80 + 0x200 + 29, 1, (uint64_t)d->is_roce);
        box_write(out, 0x80 + 0x200 + 30, 1, d->has_atomic);
        box_write(out, 0x80 + 0x220, 1, d->has_overrun);
        box_write(out, 0x80 + 0x220 + 31, 1, d->has_rc);
        box_write(out, 0x80 + 0x440, 2, d->clocks);
    } else if (which == 9) {
        box_write(out, 0x80 + 30, 2, d->roce_clocks);
    } else {
        box_write(out, 0x80 + 0x40, 2, d->atomic_endian);
        box_write(out, 0x80 + 0x80 + 16, 16, d->atomic_operations);
        box_write(out, 0x80 + 0xa0 + 16, 16, d->atomic_sizes);
    }
    return 0;
}

/* ---- Memory of queues ---- */

static struct mock_umem *umem_of(const struct mock_device *d, uint64_t id)
{
    struct mock_object *o = mock_find(d, MOCK_UMEM, (uint32_t)id);
    return o != NULL ? (struct mock_umem *)((char *)o - offsetof(struct mock_umem, o)) : NULL;
}

/* [offset, offset + bytes) of a umem, for one user alone. */
static char *take(struct mock_umem *u, uint64_t offset, uint64_t bytes, uint64_t alignment, const void *user)
{
    if (offset % alignment != 0 || offset > u->bytes || bytes > u->bytes - offset ||
        u->num_used == MOCK_MAX_RANGES) {
        return NULL;
    }
    for (int i = 0; i < u->num_used; i++) {
        if (offset < u->used[i].end && u->used[i].first < offset + bytes) {
            return NULL;
        }
    }
    u->used[u->num_used].first = offset;
    u->used[u->num_used].end = offset + bytes;
    u->used[u->num_used++].user = user;
    return u->addr + offset;
}

static void give(struct mock_umem *u, const void *user)
{
    int kept = 0;
    for (int i = 0; u != NULL && i < u->num_used; i++) {
        if (u->used[i].user != user) {
            u->used[kept++] = u->used[i];
        }
    }
    if (u != NULL) {
        u->num_used = kept;
    }
}

static int is_all(const char *memory, uint64_t bytes, int value)
{
    for (uint64_t i = 0; i < bytes; i++) {
        if ((unsigned char)memory[i] != value) {
            return 0;
        }
    }
    return 1;
}

/* ---- Creation ---- */

static int create_cq(struct mlx5dv_devx_obj *q, struct mock_device *d, const void *in, void *out,
                     size_t out_bytes)
{
    struct mock_object *uar = mock_find(d, MOCK_UAR, (uint32_t)box_read(in, IN_CQC + 0x68, 24));
    q->ring_umem = umem_of(d, box_read(in, 0x2c0, 32));
    q->record_umem = umem_of(d, box_read(in, IN_CQC + 0x20, 32));
    q->log_size = (uint32_t)box_read(in, IN_CQC + 0x60 + 3, 5);
    q->collapsed = (int)box_read(in, IN_CQC + 0x0b, 1);
    REFUSE_UNLESS(box_read(in, 0x2e0, 1) == 1 && q->ring_umem != NULL);
    REFUSE_UNLESS(box_read(in, IN_CQC + 0x06, 1) == 1 && q->record_umem != NULL);
    REFUSE_UNLESS(uar != NULL && box_read(in, IN_CQC + 0xa0 + 24, 8) == 0x17);
    REFUSE_UNLESS(box_read(in, IN_CQC + 0x08, 3) == 0 && box_read(in, IN_CQC + 0x0e, 1) == 1);
    q->ring = take(q->ring_umem, box_read(in, 0x280, 64), 64ull << q->log_size, 4096, q);
    q->record = take(q->record_umem, box_read(in, IN_CQC + 0x1c0, 64), 8, 8, q);
    REFUSE_UNLESS(q->ring != NULL && q->record != NULL);
    if (!is_all(q->ring, 64ull << q->log_size, 0xff)) {
        mock_complain("a completion queue whose entries are not all 0xff");
    }
    mock_keep(&q->o, MOCK_CQ, d, d->next_number++);
    mock_refer(&q->o, uar);
    return 0;
}

static int create_qp(struct mlx5dv_devx_obj *q, struct mock_device *d, const void *in, void *out,
                     size_t out_bytes)
{
    struct mock_object *uar = mock_find(d, MOCK_UAR, (uint32_t)box_read(in, IN_QPC + 0x68, 24));
    struct mock_object *pd = mock_find(d, MOCK_PD, (uint32_t)box_read(in, IN_QPC + 0x28, 24));
    struct mock_object *cq = mock_find(d, MOCK_CQ, (uint32_t)box_read(in, IN_QPC + 0x3e8, 24));
    uint64_t clock = box_read(in, IN_QPC + 0x40 + 24, 2); /* 0: free running, 1: the default, 2: real time */
    uint32_t clocks = d->is_roce ? d->roce_clocks : d->clocks;
    q->ring_umem = umem_of(d, box_read(in, 0x840, 32));
    q->record_umem = umem_of(d, box_read(in, IN_QPC + 0x720, 32));
    q->log_size = (uint32_t)box_read(in, IN_QPC + 0x50 + 1, 4);
    REFUSE_UNLESS(uar != NULL && pd != NULL && cq != NULL);
    REFUSE_UNLESS(box_read(in, 0x860, 1) == 1 && q->ring_umem != NULL);
    REFUSE_UNLESS(box_read(in, IN_QPC + 0x683, 1) == 1 && q->record_umem != NULL);
    /* RC, migrated, no receive queue. */
    REFUSE_UNLESS(box_read(in, IN_QPC + 0x08, 8) == 0 && box_read(in, IN_QPC + 0x13, 2) == 3);
    REFUSE_UNLESS(box_read(in, IN_QPC + 0x565, 3) == 3);
    REFUSE_UNLESS(clocks == 0 ? clock == 0 : clocks == 1 ? clock != 0 : clock < 3);
    q->ring = take(q->ring_umem, box_read(in, 0x800, 64), 64ull << q->log_size, 4096, q);
    q->record = take(q->record_umem, box_read(in, IN_QPC + 0x500, 64), 8, 8, q);
    REFUSE_UNLESS(q->ring != NULL && q->record != NULL);
    q->cq = (struct mlx5dv_devx_obj *)cq; /* o is first */
    q->uar = (struct mock_uar *)((char *)uar - offsetof(struct mock_uar, o));
    q->has_no_record = box_read(in, IN_QPC + 0x80, 2) == 1;
    REFUSE_UNLESS(q->has_no_record || box_read(in, IN_QPC + 0x80, 2) == 0);
    if (q->has_no_record) {
        if (!d->no_records) {
            mock_complain("%s makes no queue pairs without records", d->name);
        }
        REFUSE_UNLESS(q->uar->page->recordless == NULL);
        q->uar->page->recordless = q;
    }
    q->pdn = pd->id;
    q->user_index = (uint32_t)box_read(in, IN_QPC + 0x88, 24);
    q->state = RST;
    mock_keep(&q->o, MOCK_QP, d, d->next_number++);
    mock_refer(&q->o, uar);
    mock_refer(&q->o, pd);
    mock_refer(&q->o, cq);
    return 0;
}

struct mlx5dv_devx_obj *mock_obj_create(struct ibv_context *context, const void *in, size_t in_bytes,
                                        void *out, size_t out_bytes)
{
    struct mock_object *c = mock_context_object(context);
    struct mlx5dv_devx_obj *q;
    uint64_t opcode = in_bytes == 272 && out_bytes == 16 ? box_read(in, 0, 16) : 0;
    int error = EINVAL;
    if (mock_fails("obj_create")) {
        return NULL;
    }
    q = (struct mlx5dv_devx_obj *)calloc(1, sizeof *q);
    q->o.memory = q;
    if (opcode == 0x400) {
        error = create_cq(q, c->device, in, out, out_bytes);
    } else if (opcode == 0x500) {
        error = create_qp(q, c->device, in, out, out_bytes);
    } else {
        refuse(out, out_bytes, __LINE__);
    }
    if (error != 0) {
        give(q->ring_umem, q);
        give(q->record_umem, q);
        free(q);
        return NULL;
    }
    mock_refer(&q->o, c);
    mock_refer(&q->o, &q->ring_umem->o);
    mock_refer(&q->o, &q->record_umem->o);
    box_write(out, 0x48, 24, q->o.id);
    return q;
}

int mock_obj_destroy(struct mlx5dv_devx_obj *q)
{
    struct mock_umem *ring = q->ring_umem, *record = q->record_umem;
    int fails = mock_fails("obj_destroy"), error;
    if (q->o.refs == 0) {
        give(ring, q);
        give(record, q);
    }
    if (q->o.refs == 0 && q->has_no_record) { /* whoever has the page next finds it as it was */
        memset(q->uar->page->memory + MOCK_RECORDLESS_AT, 0, 8);
        q->uar->page->recordless = NULL;
    }
    error = mock_drop(&q->o, q->o.kind == MOCK_QP ? "queue pair" : "completion queue");
    if (fails) {
        errno = EIO;
        return EIO;
    }
    return error;
}

/* ---- States ---- */

static int to_init(struct mlx5dv_devx_obj *q, const void *in, void *out, size_t out_bytes)
{
    REFUSE_UNLESS(box_read(in, IN_QPC + 0x13, 2) == 3);
    /* READ, WRITE and atomics from the peer, of up to 64 bits. */
    REFUSE_UNLESS(box_read(in, IN_QPC + 0x490, 3) == 7 && box_read(in, IN_QPC + 0x48c, 4) == 3);
    REFUSE_UNLESS(box_read(in, IN_PATH + 0x128, 8) >= 1 &&
                  (int)box_read(in, IN_PATH + 0x128, 8) <= q->o.device->num_ports);
    q->state = INIT;
    return 0;
}

static struct mock_device *by_lid(uint64_t lid)
{
    for (int i = 0; i < mock_now->num_devices; i++) {
        if (mock_now->devices[i].lid == lid && lid != 0) {
            return &mock_now->devices[i];
        }
    }
    return NULL;
}

/* The device that has the MAC and, of RoCE v2, the GID of the path. */
static struct mock_device *by_roce(const void *in)
{
    for (int i = 0; i < mock_now->num_devices; i++) {
        struct mock_device *d = &mock_now->devices[i];
        int has_mac = 1, has_gid = 0;
        for (unsigned b = 0; b < 6; b++) {
            has_mac = has_mac && box_read(in, IN_PATH + 0x130 + 8 * b, 8) == d->mac[b];
        }
        for (int g = 0; g < MOCK_MAX_GIDS; g++) {
            int equal = d->gids[g].type == IBV_GID_TYPE_ROCE_V2;
            for (unsigned b = 0; b < 16; b++) {
                equal = equal && box_read(in, IN_PATH + 0x80 + 8 * b, 8) == d->gids[g].raw[b];
            }
            has_gid = has_gid || equal;
        }
        if (has_mac && has_gid) {
            return d;
        }
    }
    return NULL;
}

static int to_rtr(struct mlx5dv_devx_obj *q, const void *in, void *out, size_t out_bytes)
{
    struct mock_device *d = q->o.device;
    const struct mock_packets *wanted = &mock_now->packets;
    uint64_t mtu = box_read(in, IN_QPC + 0x40, 3);
    REFUSE_UNLESS(mtu >= 1 && mtu <= d->mtu && box_read(in, IN_QPC + 0x43, 5) == 30);
    REFUSE_UNLESS(box_read(in, IN_QPC + 0xa8, 24) != 0);
    REFUSE_UNLESS(1 << box_read(in, IN_QPC + 0x488, 3) <= d->max_reads_in);
    REFUSE_UNLESS(box_read(in, IN_QPC + 0x4a3, 5) != 0); /* 0 would be 655 ms */
    REFUSE_UNLESS(box_read(in, IN_PATH + 0x128, 8) == 1);
    if (d->is_roce) {
        uint64_t source = box_read(in, IN_PATH + 0x48, 8);
        REFUSE_UNLESS(source < MOCK_MAX_GIDS && d->gids[source].type == IBV_GID_TYPE_ROCE_V2);
        REFUSE_UNLESS(box_read(in, IN_PATH + 0x58, 8) > 1 && box_read(in, IN_PATH + 0x110, 16) >= 0xc000);
        REFUSE_UNLESS(box_read(in, IN_PATH + 0x30, 16) == 0 && box_read(in, IN_PATH + 0x28, 1) == 0);
        REFUSE_UNLESS(wanted->gid_index < 0 || source == (uint64_t)wanted->gid_index);
        REFUSE_UNLESS(box_read(in, IN_PATH + 0x10a, 6) == wanted->traffic_class >> 2);
        REFUSE_UNLESS(box_read(in, IN_PATH + 0x121, 3) == wanted->service_level);
        q->udp_sport = (uint32_t)box_read(in, IN_PATH + 0x110, 16);
        q->remote = by_roce(in);
    } else {
        REFUSE_UNLESS(box_read(in, IN_PATH + 0x64, 8) == wanted->traffic_class);
        REFUSE_UNLESS(box_read(in, IN_PATH + 0x124, 4) == wanted->service_level);
        q->remote = by_lid(box_read(in, IN_PATH + 0x30, 16));
    }
    REFUSE_UNLESS(q->remote != NULL && mtu <= q->remote->mtu);
    q->remote_qpn = (uint32_t)box_read(in, IN_QPC + 0xa8, 24);
    q->state = RTR;
    return 0;
}

static int to_rts(struct mlx5dv_devx_obj *q, const void *in, void *out, size_t out_bytes)
{
    REFUSE_UNLESS(box_read(in, IN_QPC + 0x38d, 3) == 7 && box_read(in, IN_QPC + 0x390, 3) == 7);
    REFUSE_UNLESS(1 << box_read(in, IN_QPC + 0x388, 3) <= q->remote->max_reads_in);
    q->ack_timeout = (uint32_t)box_read(in, IN_PATH + 0x40, 5);
    REFUSE_UNLESS(q->ack_timeout >= 14);
    q->state = RTS;
    return 0;
}

int mock_obj_modify(struct mlx5dv_devx_obj *q, const void *in, size_t in_bytes, void *out, size_t out_bytes)
{
    uint64_t opcode = box_read(in, 0, 16);
    if (mock_fails("obj_modify")) {
        return EIO;
    }
    REFUSE_UNLESS(out_bytes == 16 && q->o.kind == MOCK_QP && box_read(in, 0x48, 24) == q->o.id);
    REFUSE_UNLESS(in_bytes == 272 && box_read(in, 0x80, 32) == 0);
    REFUSE_UNLESS(opcode - 0x502 == q->state &&
                  q->state < RTS); /* 502 from RST, 503 from INIT, 504 from RTR */
    return opcode == 0x502   ? to_init(q, in, out, out_bytes)
           : opcode == 0x503 ? to_rtr(q, in, out, out_bytes)
                             : to_rts(q, in, out, out_bytes);
}

static const char *mock_doorbell(const struct mlx5dv_devx_obj *q)
{
    return q->has_no_record ? q->uar->page->memory + MOCK_RECORDLESS_AT : (const char *)q->uar->base.reg_addr;
}

int mock_obj_query(struct mlx5dv_devx_obj *q, const void *in, size_t in_bytes, void *out, size_t out_bytes)
{
    if (mock_fails("obj_query")) {
        return EIO;
    }
    REFUSE_UNLESS(in_bytes == 16 && out_bytes == 272 && q->o.kind == MOCK_QP && box_read(in, 0, 16) == 0x50b);
    REFUSE_UNLESS(box_read(in, 0x48, 24) == q->o.id);
    memset(out, 0, out_bytes);
    box_write(out, IN_QPC + 0x00, 4, q->state);
    /* What the record says, or the register. */
    box_write(out, IN_QPC + 0x5b0, 16,
              q->has_no_record ? box_read(mock_doorbell(q), 8, 16) : box_read(q->record, 32 + 16, 16));
    return 0;
}

/* ---- For a software NIC ---- */

struct mlx5dv_devx_obj *mock_find_qp(const struct mock_device *device, uint32_t qpn)
{
    return (struct mlx5dv_devx_obj *)mock_find(device, MOCK_QP, qpn);
}

int mock_softnic_qp(const struct mlx5dv_devx_obj *q, struct softnic_qp *s)
{
    const struct mock_object *o = &q->o;
    const struct mlx5dv_devx_obj *peer = mock_find_qp(q->remote, q->remote_qpn);
    if (peer == NULL || peer->state < RTR || peer->state > RTS || peer->remote != o->device ||
        peer->remote_qpn != o->id) {
        return 0;
    }
    memset(s, 0, sizeof *s);
    s->ring = wqe_ring_of(q->ring, 1u << q->log_size);
    s->qpn = o->id;
    s->pd = q->pdn;
    s->remote_pd = peer->pdn;
    s->num_cqes = q->cq->collapsed ? 0 : 1u << q->cq->log_size;
    s->record = (const uint32_t *)q->record;
    s->has_no_record = q->has_no_record != 0;
    s->doorbell = (const uint64_t *)(const void *)mock_doorbell(q);
    s->cqes = (uint32_t *)q->cq->ring;
    s->keys = &o->device->keys;
    s->remote_keys = &q->remote->keys;
    return 1;
}

const struct mlx5dv_devx_obj *mock_peer_of(const struct mlx5dv_devx_obj *q)
{
    return mock_find_qp(q->remote, q->remote_qpn);
}

int mock_is_ready(const struct mlx5dv_devx_obj *q) { return q->o.kind == MOCK_QP && q->state == RTS; }

int mock_softnic_qps(struct softnic_qp *qps, int most)
{
    int num = 0;
    for (struct mock_object *o = mock_now->objects; o != NULL && num < most; o = o->next) {
        struct mlx5dv_devx_obj *q = (struct mlx5dv_devx_obj *)o;
        if (o->kind != MOCK_QP || !mock_is_ready(q)) {
            continue;
        }
        if (mock_softnic_qp(q, &qps[num])) {
            num++;
        } else {
            mock_complain("queue pair 0x%x of %s is connected to 0x%x of %s, which is not to it", o->id,
                          o->device->name, q->remote_qpn, q->remote->name);
        }
    }
    return num;
}

#endif
