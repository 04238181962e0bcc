/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of queue pairs. Kernels and the NIC reach all of it; the host reaches a part, where the stop
 * word is and, if a thread of the host rings, what it reads and writes. It is filled once, before anything
 * runs: device memory in a copy of the host's. */
#include "net/softnic_parts.h"

#include <stdlib.h>
#include <string.h>

static uint64_t round_up(uint64_t bytes) { return (bytes + SOFTNIC_LINE - 1) / SOFTNIC_LINE * SOFTNIC_LINE; }

/* Bytes of each queue pair's part of an array. */
struct strides {
    uint64_t ring, cqes, results, state;
};

static struct strides strides_of(const struct softnic_provider *p)
{
    struct strides s;
    s.ring = (uint64_t)p->config.num_blocks * WQE_BLOCK_BYTES;
    s.cqes = (uint64_t)terni_softnic_num_cqes(p) * CQE_BYTES;
    s.results = round_up(NET_QUEUE_RESULT_WORDS * sizeof(uint64_t));
    s.state = round_up(sizeof(struct net_queue_state));
    return s;
}

struct softnic_share terni_softnic_share(const struct softnic_provider *p, char *device, uint32_t place)
{
    const struct strides s = strides_of(p);
    struct softnic_share share;
    share.ring = wqe_ring_of(device + p->at.rings + place * s.ring, p->config.num_blocks);
    share.cqes = (uint32_t *)(void *)(device + p->at.cqes + place * s.cqes);
    share.results = (uint64_t *)(void *)(device + p->at.results + place * s.results);
    share.state = (struct net_queue_state *)(void *)(device + p->at.states + place * s.state);
    return share;
}

static void lay_out(struct softnic_provider *p)
{
    const struct softnic_config *c = &p->config;
    const struct strides s = strides_of(p);
    struct softnic_places *at = &p->at;
    uint64_t num = p->num_places, device = 0, host = 0, *bells = c->relay ? &host : &device;
    at->rings = terni_softnic_reserve(&device, num, s.ring);
    at->cqes = terni_softnic_reserve(&device, num, s.cqes);
    at->results = terni_softnic_reserve(&device, num, s.results);
    at->states = terni_softnic_reserve(&device, num, s.state);
    at->qps = terni_softnic_reserve(&device, num, sizeof(struct softnic_qp));
    at->flights = terni_softnic_reserve(&device, p->is_modelled ? num * SOFTNIC_FLIGHTS : 0,
                                        sizeof(struct softnic_flight));
    at->late = terni_softnic_reserve(&device, c->dump ? num : 0, sizeof(struct softnic_late));
    at->watch = terni_softnic_reserve(&device, c->watch ? num * c->num_blocks : 0, 8);
    at->link = terni_softnic_reserve(&device, c->num_nics, sizeof(struct softnic_link));
    at->stop = terni_softnic_reserve(&host, 1, 8);
    at->relays = terni_softnic_reserve(&host, c->relay ? num : 0, SOFTNIC_LINE);
    at->records = terni_softnic_reserve(bells, num, SOFTNIC_LINE);
    at->doorbells = terni_softnic_reserve(bells, num, SOFTNIC_LINE);
    at->device_bytes = device;
    at->host_bytes = host;
}

char *terni_softnic_record(const struct softnic_provider *p, uint32_t place)
{
    return (p->config.relay ? p->host_device : p->device) + p->at.records + (uint64_t)place * SOFTNIC_LINE;
}

char *terni_softnic_doorbell(const struct softnic_provider *p, uint32_t place)
{
    return (p->config.relay ? p->host_device : p->device) + p->at.doorbells + (uint64_t)place * SOFTNIC_LINE;
}

static void fill_qp(const struct softnic_provider *p, int peer, uint32_t index, struct softnic_qp *qps)
{
    const struct softnic_config *c = &p->config;
    const uint32_t place = terni_softnic_place(p, peer, index);
    const struct softnic_share share = terni_softnic_share(p, p->device, place);
    struct softnic_qp *qp = &qps[place];
    qp->ring = share.ring;
    qp->qpn = 1 + place;
    qp->pd = qp->remote_pd = SOFTNIC_PD;
    qp->num_cqes = c->cq_ring ? c->num_blocks : 0;
    qp->record = (const uint32_t *)(void *)terni_softnic_record(p, place);
    qp->has_no_record = !terni_softnic_has_records(p);
    qp->doorbell = (const uint64_t *)(void *)terni_softnic_doorbell(p, place);
    qp->cqes = share.cqes;
    qp->keys = terni_softnic_keys(p, -1);
    qp->remote_keys = terni_softnic_keys(p, peer);
    if (c->watch) {
        qp->watch = (uint64_t *)(void *)(p->device + p->at.watch) + (uint64_t)place * c->num_blocks;
    }
    if (c->dump) {
        qp->late = (struct softnic_late *)(void *)(p->device + p->at.late) + place;
    }
    if (p->is_modelled) {
        qp->flights =
            (struct softnic_flight *)(void *)(p->device + p->at.flights) + (uint64_t)place * SOFTNIC_FLIGHTS;
        qp->link = c->link != NULL ? c->link : (struct softnic_link *)(void *)(p->device + p->at.link);
        qp->link += index % c->num_nics;
    }
}

/* Device memory as it is to begin with. */
static enum tern_status fill(struct softnic_provider *p)
{
    char *copy = (char *)calloc(1, p->at.device_bytes);
    enum tern_status status;
    if (copy == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %u queues", p->num_places);
    }
    memset(copy + p->at.cqes, 0xff, p->num_places * strides_of(p).cqes);
    for (int peer = 0; peer < p->config.num_ranks; peer++) {
        for (uint32_t i = 0; p->peers[peer].is_wanted && i < p->config.num_queues; i++) {
            terni_queue_state_init(terni_softnic_share(p, copy, terni_softnic_place(p, peer, i)).state, 0);
            fill_qp(p, peer, i, (struct softnic_qp *)(void *)(copy + p->at.qps));
        }
    }
    status = terni_softnic_copy(p, p->device, copy, p->at.device_bytes);
    free(copy);
    return status;
}

enum tern_status terni_softnic_memory_open(struct softnic_provider *p)
{
    struct machine *m = p->machine;
    void *memory = NULL, *device = NULL;
    lay_out(p);
    TERN_TRY(m->ops->alloc(m, p->at.device_bytes, &memory));
    p->device = (char *)memory;
    TERN_TRY(m->ops->host_alloc(m, p->at.host_bytes, &memory, &device));
    p->host = (char *)memory;
    p->host_device = (char *)device;
    return fill(p);
}

void terni_softnic_memory_close(struct softnic_provider *p)
{
    struct machine *m = p->machine;
    if (p->device != NULL) {
        m->ops->free(m, p->device);
    }
    if (p->host != NULL) {
        m->ops->host_free(m, p->host);
    }
}

enum tern_status terni_softnic_copy(const struct softnic_provider *p, void *dst, const void *src,
                                    uint64_t bytes)
{
    const struct machine_ops *ops = p->machine->ops;
    struct tern_stream *s = ops->own_stream(p->machine);
    TERN_TRY(ops->copy(p->machine, dst, src, bytes, s));
    return ops->stream_synchronize(p->machine, s);
}

enum tern_status terni_softnic_read_qps(struct softnic_provider *p, struct softnic_qp **qps)
{
    enum tern_status status;
    *qps = (struct softnic_qp *)calloc((size_t)p->num_places + 1, sizeof **qps);
    if (*qps == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %u queue pairs", p->num_places);
    }
    status = terni_softnic_copy(p, *qps, p->device + p->at.qps, p->num_places * sizeof **qps);
    if (status != TERN_OK) {
        free(*qps);
        *qps = NULL;
    }
    return status;
}

enum tern_status terni_softnic_write_qps(struct softnic_provider *p, const struct softnic_qp *qps)
{
    return terni_softnic_copy(p, p->device + p->at.qps, qps, p->num_places * sizeof *qps);
}
