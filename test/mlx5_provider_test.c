/* SPDX-License-Identifier: Apache-2.0
 *
 * The mlx5 provider on the mock: what it asks a NIC for, what it takes from a host that lacks something, and
 * that nothing is left whatever fails. The mock's own strictness is in mlx5_mock.h. One file, because all
 * cases are variations of one life of a provider, from open to close. */
#include "mlx5_rig.h"
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if TERN_HAVE_VERBS

#include "comm/comm.h"
#include "net/nic_place.h"
#include "net/queue_build.h"

/* ---- Cases on a rig ---- */

static int on_rig(struct test *t, int num_ranks, int is_roce, int (*body)(struct mlx5_rig *rig))
{
    struct mlx5_rig *rig = (struct mlx5_rig *)test_take(1, sizeof *rig);
    char complaint[256];
    int result = rig_open(rig, num_ranks, is_roce, 1) ? body(rig) : test_skip(t, "no files, or no executor");
    if (!rig_close(rig, complaint) && result == TEST_PASSED) {
        test_note(__FILE__, __LINE__, "%s", complaint);
        result = TEST_FAILED;
    }
    free(rig);
    return result;
}

/* All queues of all ranks are ready, connected in pairs, and can be driven. */
static int check_ready(struct mlx5_rig *rig, int wanted)
{
    static struct softnic_qp qps[64];
    CHECK(mock_softnic_qps(qps, 64) == wanted, "%d queue pairs are connected, not %d; %s",
          mock_softnic_qps(qps, 64), wanted, rig->mock.complaint);
    for (int r = 0; r < rig->num_ranks; r++) {
        for (int peer = 0; peer < rig->num_ranks; peer++) {
            for (uint32_t q = 0; q < rig->configs[r].num_queues; q++) {
                const struct net_queue *queue = terni_mlx5_queue(rig->providers[r], peer, q);
                struct devx_qp_state state;
                if (peer == r) {
                    CHECK(queue == NULL, "rank %d has a queue to itself", r);
                    continue;
                }
                OK(terni_queue_check(queue));
                OK(terni_mlx5_inspect(rig->providers[r], peer, q, &state));
                CHECK(state.state == DEVX_RTS, "rank %d, peer %d, queue %u: state %u", r, peer, q,
                      state.state);
                CHECK(memcmp(queue,
                             terni_mlx5_queues(rig->providers[r]) +
                                 (uint32_t)peer * rig->configs[r].num_queues + q,
                             sizeof *queue) == 0,
                      "kernels see another queue");
            }
        }
    }
    return TEST_PASSED;
}

static int infiniband_body(struct mlx5_rig *rig)
{
    for (int r = 0; r < rig->num_ranks; r++) {
        rig->configs[r].num_queues = 3;
    }
    OK(rig_providers(rig));
    return check_ready(rig, 4 * 3 * 3);
}

static int infiniband(struct test *t) { return on_rig(t, 4, 0, infiniband_body); }

static int subnets_body(struct mlx5_rig *rig)
{
    memset(rig->mock.devices[1].gids[0].raw, 0x21, 8); /* another subnet prefix: through a router */
    OK(rig_providers(rig));
    return check_ready(rig, 2);
}

static int subnets(struct test *t) { return on_rig(t, 2, 0, subnets_body); }

/* By the network's deadline: eight tries take three quarters of it at most, where that is long enough. */
static int patience_body(struct mlx5_rig *rig)
{
    static const uint64_t deadlines_ms[] = {100, 3000, 30000, 600000};
    static const uint32_t wanted[] = {14, 16, 19, 20};
    for (int r = 0; r < 4; r++) {
        rig->configs[r].timeout_ns = deadlines_ms[r] * 1000000;
    }
    OK(rig_providers(rig));
    for (int r = 0; r < 4; r++) {
        uint32_t qpn = terni_mlx5_queue(rig->providers[r], (r + 1) % 4, 0)->qpn;
        uint32_t seen = mock_find_qp(&rig->mock.devices[r], qpn)->ack_timeout;
        CHECK(seen == wanted[r], "with a deadline of %llu ms an acknowledgement has 4.096 us times 2^%u",
              (unsigned long long)deadlines_ms[r], seen);
    }
    return TEST_PASSED;
}

static int patience(struct test *t) { return on_rig(t, 4, 0, patience_body); }

/* ---- RoCE: which GID, which UDP ports ---- */

/* Kernels of rank 0 ring for queue q to rank 1 where the NIC looks. */
static int rings_at(struct mlx5_rig *rig, uint32_t q, const struct mlx5dv_devx_obj *qp)
{
    const struct net_queue *queue = terni_mlx5_queue(rig->providers[0], 1, q);
    char *at = queue->flags & NET_QUEUE_NO_RECORD ? (char *)qp->uar->base.base_addr + MOCK_RECORDLESS_AT
                                                  : (char *)qp->uar->base.reg_addr;
    return (queue->flags & NET_QUEUE_NO_RECORD) == (qp->has_no_record ? NET_QUEUE_NO_RECORD : 0) &&
           queue->doorbell == (uint64_t *)(void *)at;
}

static int roce_body(struct mlx5_rig *rig)
{
    enum { QUEUES = 8 };
    uint32_t ports[QUEUES];
    for (int r = 0; r < 2; r++) {
        rig->configs[r].num_queues = QUEUES;
    }
    OK(rig_providers(rig));
    PASS(check_ready(rig, 2 * QUEUES));
    for (uint32_t q = 0; q < QUEUES; q++) {
        uint32_t near = terni_mlx5_queue(rig->providers[0], 1, q)->qpn;
        uint32_t far = terni_mlx5_queue(rig->providers[1], 0, q)->qpn;
        ports[q] = mock_find_qp(&rig->mock.devices[0], near)->udp_sport;
        CHECK(ports[q] == mock_find_qp(&rig->mock.devices[1], far)->udp_sport, "queue %u has two ports", q);
        /* Two registers share a page, which is mapped once; kernels ring for each queue by its own. */
        CHECK(rings_at(rig, q, mock_find_qp(&rig->mock.devices[0], near)), "queue %u has another register",
              q);
        for (uint32_t p = 0; p < q; p++) {
            CHECK(ports[p] != ports[q], "queues %u and %u share UDP port %u", p, q, ports[q]);
        }
    }
    return TEST_PASSED;
}

static int roce(struct test *t) { return on_rig(t, 2, 1, roce_body); }

static int gids_body(struct mlx5_rig *rig)
{
    struct mlx5_config *c = &rig->configs[0];
    struct mock_device *d = &rig->mock.devices[0];
    char text[512];
    /* A mapped IPv4 address is preferred; the card begins with 16 bytes and then the first NIC's GID. */
    static const int wanted[] = {4, 3};
    for (int i = 0; i < 2; i++) {
        unsigned char card[4096];
        OK(terni_mlx5_open(c, &rig->providers[0]));
        CHECK(terni_mlx5_card_bytes(rig->providers[0]) <= sizeof card, "the card is too long");
        terni_mlx5_card(rig->providers[0], card);
        CHECK(memcmp(card + 16, d->gids[wanted[i]].raw, 16) == 0, "step %d: not GID %d", i, wanted[i]);
        CHECK(terni_mlx5_print(rig->providers[0], text, sizeof text) < (int)sizeof text &&
                  strstr(text, "mlx5_0, port 1 (RoCE v2), at no known distance"),
              "%s", text);
        terni_mlx5_close(rig->providers[0]);
        rig->providers[0] = NULL;
        memset(d->gids[4].raw, 0, 16);
    }
    memset(d->gids[3].raw, 0, 16);
    REFUSES(terni_mlx5_open(c, &rig->providers[0]), TERN_UNSUPPORTED,
            "none of 8 GIDs of mlx5_0, port 1, is a routable one of RoCE v2");
    c->gid_index = 2;
    REFUSES(terni_mlx5_open(c, &rig->providers[0]), TERN_INVALID_ARGUMENT,
            "GID 2 of mlx5_0, port 1, is not of RoCE v2");
    c->gid_index = 5;
    REFUSES(terni_mlx5_open(c, &rig->providers[0]), TERN_INVALID_ARGUMENT, "has no GID 5");
    c->gid_index = 0; /* link-local, if it is asked for */
    OK(terni_mlx5_open(c, &rig->providers[0]));
    return TEST_PASSED;
}

static int gids(struct test *t) { return on_rig(t, 1, 1, gids_body); }

/* ---- What a NIC or a host lacks ---- */

static int lacking_body(struct mlx5_rig *rig)
{
    struct mock_device *d = &rig->mock.devices[0], whole = *d;
    struct mlx5_provider *p = NULL;
    const struct {
        uint32_t *cap, value;
        const char *sentence;
    } cases[] = {
        {&d->cqe_version, 0, "lacks: completions of version 1"},
        {&d->has_rc, 0, "lacks: reliable connections"},
        {&d->has_overrun, 0, "lacks: completion queues that may overrun"},
        {&d->has_atomic, 0, "lacks: atomics"},
        {&d->atomic_operations, 3, "lacks: masked compare-swap and fetch-add"},
        {&d->atomic_sizes, 8, "lacks: atomics of 4 and 8 bytes"},
        {&d->atomic_endian, 0, "lacks: atomics of 8 bytes in the host's byte order"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t before = *cases[i].cap;
        *cases[i].cap = cases[i].value;
        REFUSES(terni_mlx5_open(&rig->configs[0], &p), TERN_UNSUPPORTED, cases[i].sentence);
        REFUSES(terni_mlx5_probe(&mock_verbs, "mlx5_0", 1), TERN_UNSUPPORTED, cases[i].sentence);
        *cases[i].cap = before;
    }
    OK(terni_mlx5_probe(&mock_verbs, "mlx5_0", 1));
    d->has_rc = d->cqe_version = 0;
    REFUSES(terni_mlx5_open(&rig->configs[0], &p), TERN_UNSUPPORTED,
            "completions of version 1, reliable connections");
    d->has_rc = d->cqe_version = 1;
    d->max_reads_in = 0;
    REFUSES(terni_mlx5_open(&rig->configs[0], &p), TERN_UNSUPPORTED, "outstanding READs");
    d->max_reads_in = whole.max_reads_in;
    d->max_blocks = 32;
    REFUSES(terni_mlx5_open(&rig->configs[0], &p), TERN_UNSUPPORTED,
            "a send ring of 64 blocks; mlx5_0 has at most 32");
    d->max_blocks = whole.max_blocks;
    d->is_active = 0;
    REFUSES(terni_mlx5_open(&rig->configs[0], &p), TERN_UNSUPPORTED, "port 1 of mlx5_0 is not active");
    d->is_active = 1;
    d->is_mlx5 = 0;
    REFUSES(terni_mlx5_open(&rig->configs[0], &p), TERN_UNSUPPORTED, "mlx5_0 is no mlx5 device");
    d->is_mlx5 = 1;
    rig->mock.uar_kinds = 0;
    rig->configs[0].num_ranks = 2;
    REFUSES(terni_mlx5_open(&rig->configs[0], &p), TERN_OUT_OF_MEMORY, "has no register page");
    rig->configs[0].nics = "mlx5_0:2";
    REFUSES(terni_mlx5_open(&rig->configs[0], &p), TERN_INVALID_ARGUMENT, "mlx5_0 has no port 2");
    return TEST_PASSED;
}

static int lacking(struct test *t) { return on_rig(t, 1, 0, lacking_body); }

/* Whatever clocks it has, and whether or not it tells of those of RoCE, queue pairs are made. */
static int clocks_body(struct mlx5_rig *rig)
{
    for (uint32_t clocks = 0; clocks < 9; clocks++) {
        for (int r = 0; r < 2; r++) {
            rig->mock.devices[r].clocks = clocks % 3;
            rig->mock.devices[r].roce_clocks = clocks / 3;
        }
        OK(rig_providers(rig));
        PASS(check_ready(rig, 2));
        for (int r = 0; r < 2; r++) {
            terni_mlx5_close(rig->providers[r]);
            rig->providers[r] = NULL;
        }
    }
    return TEST_PASSED;
}

static int clocks(struct test *t)
{
    PASS(on_rig(t, 2, 0, clocks_body));
    return on_rig(t, 2, 1, clocks_body);
}

static int no_nic_body(struct mlx5_rig *rig)
{
    struct mlx5_provider *p = NULL;
    rig->mock.has_list = 0;
    REFUSES(terni_mlx5_open(&rig->configs[0], &p), TERN_UNSUPPORTED, "libibverbs lists no device");
    rig->mock.has_list = 1;
    rig->mock.num_devices = 0;
    REFUSES(terni_mlx5_open(&rig->configs[0], &p), TERN_UNSUPPORTED, "does not list mlx5_0, but 0 other");
    rig->configs[0].nics = "";
    rig->configs[0].root = "/nowhere";
    REFUSES(terni_mlx5_open(&rig->configs[0], &p), TERN_UNSUPPORTED, "this host has no RDMA NIC");
    rig->configs[0].num_queues = 65;
    REFUSES(terni_mlx5_open(&rig->configs[0], &p), TERN_INVALID_ARGUMENT,
            "num_queues of NICs is 65; it is 1 to 64");
    rig->configs[0].num_queues = 1;
    rig->configs[0].num_blocks = 96;
    REFUSES(terni_mlx5_open(&rig->configs[0], &p), TERN_INVALID_ARGUMENT, "96 blocks: it is a power of two");
    return TEST_PASSED;
}

static int no_nic(struct test *t) { return on_rig(t, 1, 0, no_nic_body); }

/* The libraries of this host, where a NIC of the tree is unknown; where they are missing, that is said. */
static int real_body(struct mlx5_rig *rig)
{
    const struct mlx5_verbs *verbs = NULL;
    enum tern_status status = terni_mlx5_verbs(&verbs);
    struct mlx5_provider *p = NULL;
    rig->configs[0].verbs = NULL;
    if (status != TERN_OK) {
        CHECK(status == TERN_UNSUPPORTED && strstr(tern_last_error(), "RDMA NICs cannot be used"), "%s",
              tern_last_error());
        CHECK(strstr(terni_mlx5_describe(), "not all here"), "%s", terni_mlx5_describe());
        REFUSES(terni_mlx5_open(&rig->configs[0], &p), TERN_UNSUPPORTED, "RDMA NICs cannot be used");
        return TEST_PASSED;
    }
    CHECK(strstr(terni_mlx5_describe(), "are here"), "%s", terni_mlx5_describe());
#define PRESENT(member, result, arguments, library, symbol, version)                                         \
    CHECK(verbs->member != NULL, "no %s", symbol);
    MLX5_VERBS(PRESENT)
#undef PRESENT
    REFUSES(terni_mlx5_open(&rig->configs[0], &p), TERN_UNSUPPORTED,
            "libibverbs"); /* mlx5_0 is in the tree alone */
    return TEST_PASSED;
}

static int real(struct test *t)
{
    struct nic_place found[NIC_MAX];
    return terni_nic_scan("", "", found) > 0 ? test_skip(t, "this host has RDMA NICs of its own")
                                             : on_rig(t, 1, 0, real_body);
}

/* ---- Where rings are and who rings ---- */

struct form {
    int is_gpu, peermem, dmabuf, io_refused;
    enum mlx5_memory memory;
    enum mlx5_doorbell doorbell;
    int on_device, relay; /* what comes out; -1: refused */
    const char *sentence;
};

static const struct form forms[] = {
    {0, 1, 0, 0, MLX5_MEMORY_AUTO, MLX5_DOORBELL_AUTO, 1, 0, NULL},
    {0, 1, 0, 0, MLX5_MEMORY_HOST, MLX5_DOORBELL_AUTO, 0, 0, NULL},
    {1, 1, 0, 0, MLX5_MEMORY_AUTO, MLX5_DOORBELL_AUTO, 1, 0, NULL},
    {1, 0, 1, 0, MLX5_MEMORY_AUTO, MLX5_DOORBELL_AUTO, 1, 0, NULL},
    {1, 0, 1, 0, MLX5_MEMORY_DEVICE, MLX5_DOORBELL_KERNEL, 1, 0, NULL},
    {1, 0, 0, 0, MLX5_MEMORY_AUTO, MLX5_DOORBELL_AUTO, 0, 0, NULL},
    {1, 0, 0, 0, MLX5_MEMORY_DEVICE, MLX5_DOORBELL_AUTO, -1, 0,
     "as a dma-buf: no dma-buf, as the test wants it; by address: Bad address, nvidia-peermem is not loaded"},
    {1, 0, 1, 1, MLX5_MEMORY_AUTO, MLX5_DOORBELL_AUTO, 1, 1, NULL},
    {1, 0, 0, 1, MLX5_MEMORY_AUTO, MLX5_DOORBELL_AUTO, 0, 1, NULL},
    {0, 1, 0, 0, MLX5_MEMORY_AUTO, MLX5_DOORBELL_HOST, 1, 1, NULL},
    {0, 1, 0, 1, MLX5_MEMORY_AUTO, MLX5_DOORBELL_KERNEL, -1, 0, "registers are not mapped"},
};

static int check_form(struct mlx5_rig *rig, const struct form *f)
{
    const struct net_queue *q = terni_mlx5_queue(rig->providers[0], 1, 0);
    struct mlx5dv_devx_obj *qp = mock_find_qp(&rig->mock.devices[0], q->qpn);
    double begin = test_seconds();
    char text[512];
    terni_mlx5_print(rig->providers[0], text, sizeof text);
    CHECK(strstr(text, f->on_device ? "memory of the device" : "memory of the host"), "%s", text);
    CHECK(strstr(text, f->relay ? "the host rings" : "the kernel rings"), "%s", text);
    CHECK(((q->flags & NET_QUEUE_RELAY) != 0) == f->relay, "flags 0x%x", q->flags);
    if (!f->relay) {
        CHECK(q->relay == NULL && q->record != NULL && q->doorbell != NULL, "a queue rung in no way");
        return TEST_PASSED;
    }
    /* What a kernel publishes is rung, in this queue's record and register. */
    __atomic_store_n(q->relay, 0x21, __ATOMIC_RELEASE);
    while (__atomic_load_n((uint64_t *)qp->uar->base.reg_addr, __ATOMIC_ACQUIRE) !=
           doorbell_value(q->qpn, 0x21)) {
        CHECK(test_seconds() - begin < 30, "nobody rings");
        usleep(1000);
    }
    CHECK(((const uint32_t *)(const void *)qp->record)[DOORBELL_RECORD_SEND] == doorbell_record(0x21),
          "the record is not the queue's");
    return TEST_PASSED;
}

static int forms_body(struct mlx5_rig *rig)
{
    static int next;
    const struct form *f = &forms[next++];
    rig->is_gpu = f->is_gpu;
    rig->mock.peermem = f->peermem;
    rig->mock.dmabuf = f->dmabuf;
    rig->io_refused = f->io_refused;
    for (int r = 0; r < rig->num_ranks; r++) {
        rig->configs[r].memory = f->memory;
        rig->configs[r].doorbell = f->doorbell;
    }
    if (f->on_device < 0) {
        REFUSES(rig_providers(rig), TERN_UNSUPPORTED, f->sentence);
        return TEST_PASSED;
    }
    OK(rig_providers(rig));
    PASS(check_ready(rig, 2));
    return check_form(rig, f);
}

static int all_forms(struct test *t)
{
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        int result = on_rig(t, 2, 0, forms_body);
        if (result != TEST_PASSED) {
            test_note(__FILE__, __LINE__, "form %zu", i);
            return result;
        }
    }
    test_detail(t, "%zu forms", sizeof forms / sizeof forms[0]);
    return TEST_PASSED;
}

/* ---- Doorbell records ---- */

static const struct without {
    uint32_t has_more, no_records;
    int wants, num_queues;
    enum mlx5_doorbell doorbell;
    int num_without; /* of rank 0's queues to rank 1, the first ones; what comes out */
} withouts[] = {
    {1, 1, 0, 1, MLX5_DOORBELL_AUTO, 1}, {1, 0, 0, 1, MLX5_DOORBELL_AUTO, 0},
    {0, 1, 0, 1, MLX5_DOORBELL_AUTO, 0}, {1, 1, 1, 1, MLX5_DOORBELL_AUTO, 0},
    {1, 1, 0, 1, MLX5_DOORBELL_HOST, 0}, {1, 1, 0, 4, MLX5_DOORBELL_AUTO, 2}, /* the mock refuses the third */
};

static int without_body(struct mlx5_rig *rig)
{
    static size_t next;
    const struct without *w = &withouts[next++];
    char text[512];
    rig->mock.devices[0].has_more = w->has_more;
    rig->mock.devices[0].no_records = w->no_records;
    for (int r = 0; r < rig->num_ranks; r++) {
        rig->configs[r].records = w->wants;
        rig->configs[r].num_queues = (uint32_t)w->num_queues;
        rig->configs[r].doorbell = w->doorbell;
    }
    OK(rig_providers(rig));
    PASS(check_ready(rig, 2 * w->num_queues));
    terni_mlx5_print(rig->providers[0], text, sizeof text);
    CHECK((strstr(text, "without doorbell records") != NULL) == (w->num_without > 0), "%s", text);
    for (int q = 0; q < w->num_queues; q++) {
        const struct net_queue *queue = terni_mlx5_queue(rig->providers[0], 1, (uint32_t)q);
        CHECK(((queue->flags & NET_QUEUE_NO_RECORD) != 0) == (q < w->num_without), "queue %d: flags 0x%x", q,
              queue->flags);
    }
    return TEST_PASSED;
}

static int without_records(struct test *t)
{
    for (size_t i = 0; i < sizeof withouts / sizeof withouts[0]; i++) {
        int result = on_rig(t, 2, 0, without_body);
        if (result != TEST_PASSED) {
            test_note(__FILE__, __LINE__, "case %zu", i);
            return result;
        }
    }
    return TEST_PASSED;
}

/* ---- Memory ---- */

static uint32_t access_of(struct mlx5_rig *rig, int device, uint32_t key)
{
    return rig->mock.devices[device].key_entries[(key >> 8) - KEY_FIRST_PLACE].access;
}

/* Of a list as a queue names it. */
static int num_ranges(uint64_t list) { return (int)((const struct net_ranges *)(uintptr_t)list)->num; }

static int regions_body(struct mlx5_rig *rig)
{
    enum { BYTES = 8192 };
    const uint32_t all = KEY_LOCAL_WRITE | KEY_REMOTE_WRITE | KEY_REMOTE_READ | KEY_REMOTE_ATOMIC;
    static char data[BYTES], signals[BYTES];
    struct mlx5_region_card cards[2];
    struct mlx5_provider *p0, *p1;
    const struct net_range *range;
    const struct net_queue *q;
    OK(rig_providers(rig));
    p0 = rig->providers[0];
    p1 = rig->providers[1];
    OK(terni_mlx5_register(p1, data, BYTES, 0, &cards[0]));
    OK(terni_mlx5_register(p1, signals, BYTES, MLX5_REGION_SIGNALS, &cards[1]));
    CHECK(access_of(rig, 1, cards[0].rkeys[0]) == (all | KEY_RELAXED_ORDERING), "data: access 0x%x",
          access_of(rig, 1, cards[0].rkeys[0]));
    CHECK(access_of(rig, 1, cards[1].rkeys[0]) == all, "signals: access 0x%x",
          access_of(rig, 1, cards[1].rkeys[0]));
    REFUSES(terni_mlx5_register(p1, data + BYTES - 1, 1, 0, &cards[0]), TERN_INVALID_ARGUMENT, "overlap");
    REFUSES(terni_mlx5_register(p1, data, 0, 0, &cards[0]), TERN_INVALID_ARGUMENT, "0 bytes");
    OK(terni_mlx5_import(p0, 1, &cards[0]));
    OK(terni_mlx5_import(p0, 1, &cards[1]));
    REFUSES(terni_mlx5_import(p0, 1, &cards[1]), TERN_INVALID_ARGUMENT, "overlap");
    REFUSES(terni_mlx5_import(p0, 0, &cards[1]), TERN_BAD_STATE, "is not connected");
    OK(terni_mlx5_refresh(p0));
    OK(terni_mlx5_refresh(p1));
    q = terni_mlx5_queue(p0, 1, 0);
    CHECK(num_ranges(q->remote) == 2 && num_ranges(q->local) == 0, "%d remote ranges", num_ranges(q->remote));
    range = queue_range(&q->remote, (uint64_t)(uintptr_t)signals + BYTES - 1);
    CHECK(range != NULL && range->addr == (uint64_t)(uintptr_t)signals && range->bytes == BYTES &&
              range->key.raw == wqe_key_of(cards[1].rkeys[0]).raw,
          "the second range is another");
    q = terni_mlx5_queue(p1, 0, 0);
    CHECK(num_ranges(q->local) == 2 && queue_range(&q->local, (uint64_t)(uintptr_t)data) != NULL,
          "no local ranges");
    terni_mlx5_forget(p0, 1, cards[0].addr);
    terni_mlx5_deregister(p1, data);
    OK(terni_mlx5_refresh(p0));
    OK(terni_mlx5_refresh(p1));
    CHECK(num_ranges(terni_mlx5_queue(p0, 1, 0)->remote) == 1 && num_ranges(q->local) == 1 &&
              queue_range(&q->local, (uint64_t)(uintptr_t)signals) != NULL,
          "the range that went is still there");
    return TEST_PASSED;
}

static int regions(struct test *t) { return on_rig(t, 2, 0, regions_body); }

/* So many that lists grow several times, in an order that is not that of addresses; then every second
 * goes. */
enum { MANY = 200, EACH = 16 };

static char *many_at(char *memory, int i) { return memory + (size_t)(i * 77 % MANY) * 2 * EACH; }

static int check_many(const struct mlx5_rig *rig, char *memory, const struct mlx5_region_card *cards)
{
    const struct net_queue *q0 = terni_mlx5_queue(rig->providers[0], 1, 0);
    const struct net_queue *q1 = terni_mlx5_queue(rig->providers[1], 0, 0);
    for (int i = 0; i < MANY; i++) {
        uint64_t at = (uint64_t)(uintptr_t)many_at(memory, i);
        const struct net_range *there = queue_range(&q0->remote, at + EACH - 1);
        const struct net_range *here = queue_range(&q1->local, at);
        CHECK((there == NULL) == (cards[i].bytes == 0) && (here == NULL) == (there == NULL),
              "range %d is there, or not", i);
        CHECK(there == NULL || (there->key.raw == wqe_key_of(cards[i].rkeys[0]).raw && there->addr == at),
              "range %d has another's key", i);
        CHECK(queue_range(&q0->remote, at + EACH) == NULL, "something is behind range %d", i);
    }
    CHECK(queue_range(&q0->remote, (uint64_t)(uintptr_t)memory - 1) == NULL, "something is before all");
    return TEST_PASSED;
}

static int many_body(struct mlx5_rig *rig)
{
    static char area[2 * MANY * EACH + 1], *memory = area + 1;
    static struct mlx5_region_card cards[MANY];
    OK(rig_providers(rig));
    for (int i = 0; i < MANY; i++) {
        OK(terni_mlx5_register(rig->providers[1], many_at(memory, i), EACH, 0, &cards[i]));
        OK(terni_mlx5_import(rig->providers[0], 1, &cards[i]));
        OK(terni_mlx5_refresh(rig->providers[0]));
        OK(terni_mlx5_refresh(rig->providers[1]));
    }
    PASS(check_many(rig, memory, cards));
    for (int i = 0; i < MANY; i += 2) {
        terni_mlx5_forget(rig->providers[0], 1, cards[i].addr);
        terni_mlx5_deregister(rig->providers[1], many_at(memory, i));
        cards[i].bytes = 0;
    }
    OK(terni_mlx5_refresh(rig->providers[0]));
    OK(terni_mlx5_refresh(rig->providers[1]));
    return check_many(rig, memory, cards);
}

static int many(struct test *t) { return on_rig(t, 2, 0, many_body); }

/* ---- Several NICs ---- */

/* Lines that say that a rank's NICs are not atomic with each other. */
static void count_told(enum tern_log_level level, const char *file, int line, const char *text, void *user)
{
    (void)file;
    (void)line;
    *(int *)user += level == TERN_LOG_INFO && strstr(text, "mlx5_0 are not atomic with those of its other");
}

static int spread_body(struct mlx5_rig *rig)
{
    int num_told = 0;
    static char memory[4096];
    struct mlx5_region_card card;
    rig->configs[0].nics = "mlx5_0,mlx5_1";
    rig->configs[1].nics = "mlx5_2,mlx5_3,mlx5_1"; /* mlx5_1 serves both */
    for (int r = 0; r < 2; r++) {
        rig->configs[r].num_queues = 5;
        rig->mock.devices[r + 1].atomic_cap = rig->mock.devices[3].atomic_cap = IBV_ATOMIC_GLOB;
    }
    setenv("TERN_LOG", "info", 1);
    tern_log_set(count_told, &num_told);
    OK(rig_providers(rig));
    unsetenv("TERN_LOG");
    test_quiet();
    CHECK(num_told == 1, "%d lines of rank 0's NICs", num_told);
    PASS(check_ready(rig, 10));
    OK(terni_mlx5_register(rig->providers[1], memory, sizeof memory, 0, &card));
    CHECK(card.num_nics == 3, "%u NICs", card.num_nics);
    OK(terni_mlx5_import(rig->providers[0], 1, &card));
    OK(terni_mlx5_refresh(rig->providers[0]));
    for (uint32_t q = 0; q < 5; q++) {
        const struct net_queue *queue = terni_mlx5_queue(rig->providers[0], 1, q);
        static const int far[] = {2, 3, 1, 2, 3};
        struct mlx5dv_devx_obj *qp = mock_find_qp(&rig->mock.devices[q % 2], queue->qpn);
        CHECK(qp != NULL && qp->user_index == 5 + q, "queue %u is not on mlx5_%u", q, q % 2);
        CHECK(qp->remote == &rig->mock.devices[far[q]], "queue %u goes to %s", q, qp->remote->name);
        CHECK(queue_range(&queue->remote, card.addr)->key.raw == wqe_key_of(card.rkeys[q % 3]).raw,
              "queue %u has another NIC's key", q);
    }
    return TEST_PASSED;
}

static int spread(struct test *t) { return on_rig(t, 2, 1, spread_body); }

/* ---- Cards ---- */

static int mismatch_body(struct mlx5_rig *rig)
{
    static const unsigned char none[2] = {0, 0};
    rig->configs[0].num_queues = 2;
    OK(terni_mlx5_open(&rig->configs[0], &rig->providers[0]));
    rig->configs[1].num_queues = 2;
    rig->configs[1].wanted = none;
    OK(terni_mlx5_open(&rig->configs[1], &rig->providers[1]));
    REFUSES(rig_connect(rig), TERN_MISMATCH, "rank 0 wants queues to rank 1, which wants none");
    return TEST_PASSED;
}

static int links_body(struct mlx5_rig *rig)
{
    rig->mock.devices[1].is_roce = 1;
    rig->configs[1].gid_index = 0;
    rig->mock.devices[1].gids[0].type = IBV_GID_TYPE_ROCE_V2;
    REFUSES(rig_providers(rig), TERN_MISMATCH, "mlx5_0 is on InfiniBand, but NIC 0 of rank 1 is on Ethernet");
    return TEST_PASSED;
}

static int garbage_body(struct mlx5_rig *rig)
{
    unsigned char cards[8192] = {0};
    OK(terni_mlx5_open(&rig->configs[0], &rig->providers[0]));
    REFUSES(terni_mlx5_connect(rig->providers[0], cards), TERN_MISMATCH, "rank 1 sent no card of NICs");
    return TEST_PASSED;
}

static int unreachable_body(struct mlx5_rig *rig)
{
    OK(terni_mlx5_open(&rig->configs[0], &rig->providers[0]));
    OK(terni_mlx5_open(&rig->configs[1], &rig->providers[1]));
    memset(&rig->mock.devices[1].gids[4], 0, sizeof rig->mock.devices[1].gids[4]);
    memset(&rig->mock.devices[1].gids[2], 0, sizeof rig->mock.devices[1].gids[2]);
    REFUSES(rig_connect(rig), TERN_DISCONNECTED, "finds no way to rank 1 at 10.0.0.2");
    return TEST_PASSED;
}

static int cards(struct test *t)
{
    PASS(on_rig(t, 2, 0, mismatch_body));
    PASS(on_rig(t, 2, 0, links_body));
    PASS(on_rig(t, 2, 0, garbage_body));
    return on_rig(t, 2, 1, unreachable_body);
}

/* Cards and key cards by the bootstrap's own allgather. */
static int boot_body(struct mlx5_rig *rig)
{
    struct boot *boots[2];
    enum tern_status status = TERN_OK;
    char *received = NULL;
    uint32_t bytes;
    OK(terni_mlx5_open(&rig->configs[0], &rig->providers[0]));
    OK(terni_mlx5_open(&rig->configs[1], &rig->providers[1]));
    OK(terni_board_open(2, boots));
    bytes = terni_mlx5_card_bytes(rig->providers[0]);
    received = (char *)test_take(3, bytes);
    for (int r = 0; r < 2; r++) {
        terni_mlx5_card(rig->providers[r], received + 2 * (size_t)bytes);
        status =
            status == TERN_OK ? boots[r]->ops->post(boots[r], received + 2 * (size_t)bytes, bytes) : status;
    }
    for (int r = 0; r < 2; r++) {
        status = status == TERN_OK ? boots[r]->ops->wait(boots[r], received, bytes, 1000) : status;
        status = status == TERN_OK ? terni_mlx5_connect(rig->providers[r], received) : status;
    }
    for (int r = 0; r < 2; r++) {
        boots[r]->ops->close(boots[r]);
    }
    free(received);
    OK(status);
    EXPECT(terni_mlx5_connect(rig->providers[0], NULL), TERN_BAD_STATE);
    return check_ready(rig, 2);
}

static int by_boot(struct test *t) { return on_rig(t, 2, 0, boot_body); }

/* ---- Faults ---- */

static int inspect_body(struct mlx5_rig *rig)
{
    struct devx_qp_state state;
    const struct net_queue *q;
    rig->configs[0].records = 1;
    OK(rig_providers(rig));
    q = terni_mlx5_queue(rig->providers[0], 1, 0);
    q->record[DOORBELL_RECORD_SEND] = doorbell_record(0x1234);
    OK(terni_mlx5_inspect(rig->providers[0], 1, 0, &state));
    CHECK(state.state == DEVX_RTS && state.sw_counter == 0x1234, "state %u, record %x", state.state,
          state.sw_counter);
    q = terni_mlx5_queue(rig->providers[1], 0, 0);
    *q->doorbell = doorbell_value(q->qpn, 0x4321);
    OK(terni_mlx5_inspect(rig->providers[1], 0, 0, &state));
    CHECK((q->flags & NET_QUEUE_NO_RECORD) && state.sw_counter == 0x4321, "flags 0x%x, register %x", q->flags,
          state.sw_counter);
    EXPECT(terni_mlx5_inspect(rig->providers[0], 0, 0, &state), TERN_INVALID_ARGUMENT);
    return TEST_PASSED;
}

static int inspected(struct test *t) { return on_rig(t, 2, 0, inspect_body); }

/* All that a provider does in its life. */
static enum tern_status live(struct mlx5_rig *rig)
{
    static char data[4096], signals[64];
    struct mlx5_region_card cards[2][2];
    struct devx_qp_state state;
    TERN_TRY(rig_providers(rig));
    for (int r = 0; r < 2; r++) {
        TERN_TRY(terni_mlx5_register(rig->providers[r], data, sizeof data, 0, &cards[r][0]));
        TERN_TRY(terni_mlx5_register(rig->providers[r], signals, sizeof signals, MLX5_REGION_SIGNALS,
                                     &cards[r][1]));
    }
    for (int r = 0; r < 2; r++) {
        TERN_TRY(terni_mlx5_import(rig->providers[r], !r, &cards[!r][0]));
        TERN_TRY(terni_mlx5_import(rig->providers[r], !r, &cards[!r][1]));
        TERN_TRY(terni_mlx5_refresh(rig->providers[r]));
    }
    return terni_mlx5_inspect(rig->providers[0], 1, 0, &state);
}

static int fail_at, num_calls, num_survived;

static int failing_body(struct mlx5_rig *rig)
{
    enum tern_status status;
    char sentence[512];
    rig->is_gpu = rig->mock.dmabuf = 1;
    rig->configs[0].nics = "mlx5_0,mlx5_1";
    rig->configs[0].num_queues = rig->configs[1].num_queues = 3;
    rig->mock.fail_at = fail_at;
    status = live(rig);
    snprintf(sentence, sizeof sentence, "%s", tern_last_error());
    num_calls = rig->mock.calls;
    num_survived += status == TERN_OK;
    CHECK(fail_at == 0 ? status == TERN_OK : 1, "it fails by itself: %s", sentence);
    CHECK(status == TERN_OK || strlen(sentence) > 20, "call %d, %s: \"%s\"", fail_at, rig->mock.failed,
          sentence);
    CHECK(status == TERN_OK || strstr(sentence, "as the test wants it") || strstr(sentence, "mlx5_") ||
              strstr(sentence, "lists no device"),
          "call %d, %s: \"%s\" names nothing", fail_at, rig->mock.failed, sentence);
    return TEST_PASSED;
}

/* Every call that can fail does so once, those of closing too. */
static int failing(struct test *t)
{
    int calls, of_closing = 0;
    for (int is_roce = 0; is_roce < 2; is_roce++) {
        fail_at = 0;
        PASS(on_rig(t, 2, is_roce, failing_body));
        calls = num_calls;
        for (fail_at = 1; fail_at <= calls + 64; fail_at++) {
            num_survived = 0;
            PASS(on_rig(t, 2, is_roce, failing_body));
            of_closing += num_survived;
        }
    }
    test_detail(t, "%d calls; %d have a substitute, or are of closing", calls, of_closing);
    return TEST_PASSED;
}

#else

static int missing(struct test *t) { return test_skip(t, "this build has no rdma-core"); }

#endif

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
#if TERN_HAVE_VERBS
    test_run(&t, "queues of four ranks on InfiniBand", infiniband);
    test_run(&t, "two subnets", subnets);
    test_run(&t, "how long a peer may be silent", patience);
    test_run(&t, "RoCE v2, a UDP port for each queue", roce);
    test_run(&t, "which GID", gids);
    test_run(&t, "what a NIC lacks is said", lacking);
    test_run(&t, "free running and real time clocks", clocks);
    test_run(&t, "no NIC is no fault", no_nic);
    test_run(&t, "the libraries of this host", real);
    test_run(&t, "where rings are, and who rings", all_forms);
    test_run(&t, "doorbell records, where a NIC can do without", without_records);
    test_run(&t, "memory, relaxed and strict", regions);
    test_run(&t, "two hundred ranges, and half of them", many);
    test_run(&t, "several NICs at both ends", spread);
    test_run(&t, "cards that do not fit", cards);
    test_run(&t, "cards by the bootstrap", by_boot);
    test_run(&t, "inspect", inspected);
    test_run(&t, "every call fails once", failing);
#else
    test_run(&t, "the mlx5 provider", missing);
#endif
    return test_end(&t);
}
