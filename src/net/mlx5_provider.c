/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens and closes a provider as a whole: NICs by distance, then the memory of their queues, then the queues,
 * then what kernels see of them. When a step fails, close takes back those before it. */
#include "net/mlx5_nic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_BLOCKS = 1024, DEFAULT_BATCH = 32 };

void terni_mlx5_config_init(struct mlx5_config *c, struct machine *machine, int rank, int num_ranks)
{
    memset(c, 0, sizeof *c);
    c->machine = machine;
    c->root = "";
    c->nics = "";
    c->rank = rank;
    c->num_ranks = num_ranks;
    c->num_local = 1;
    c->num_queues = 1;
    c->num_blocks = DEFAULT_BLOCKS;
    c->batch_blocks = DEFAULT_BATCH;
    c->timeout_ns = 30000000000ull;
    c->gid_index = -1;
}

static enum tern_status check_config(const struct mlx5_config *c)
{
    const struct {
        const char *name;
        int64_t value, low, high;
    } ranges[] = {
        {"num_ranks", c->num_ranks, 1, 65536},
        {"rank", c->rank, 0, (int64_t)c->num_ranks - 1},
        {"num_nics", c->num_nics, 0, MLX5_MAX_NICS},
        {"num_local", c->num_local, 1, 65536},
        {"local_index", c->local_index, 0, (int64_t)c->num_local - 1},
        {"num_queues", c->num_queues, 1, MLX5_MAX_QUEUES},
        {"num_blocks", c->num_blocks, MLX5_PAGE / WQE_BLOCK_BYTES, WQE_MAX_RING_BLOCKS},
        {"batch_blocks", c->batch_blocks, 1, WQE_MAX_RING_BLOCKS},
        {"gid_index", c->gid_index, -1, 255},
        {"traffic_class", c->traffic_class, 0, 255},
        {"service_level", c->service_level, 0, 15},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s of NICs is %lld; it is %lld to %lld", ranges[i].name,
                             (long long)ranges[i].value, (long long)ranges[i].low, (long long)ranges[i].high);
        }
    }
    if ((c->num_blocks & (c->num_blocks - 1)) != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "a send ring of %u blocks: it is a power of two",
                         c->num_blocks);
    }
    return TERN_OK;
}

static enum tern_status open_peers(struct mlx5_provider *p)
{
    const struct mlx5_config *c = &p->config;
    p->peers = (struct mlx5_peer *)calloc((size_t)c->num_ranks, sizeof *p->peers);
    if (p->peers == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %d peers", c->num_ranks);
    }
    p->regions.entry_bytes = sizeof(struct mlx5_region);
    for (int r = 0; r < c->num_ranks; r++) {
        struct mlx5_peer *peer = &p->peers[r];
        peer->regions.entry_bytes = sizeof(struct mlx5_region);
        peer->is_wanted = c->wanted != NULL ? c->wanted[r] != 0 : r != c->rank;
        if (!peer->is_wanted) {
            continue;
        }
        p->num_wanted++;
        peer->qps = (struct mlx5_qp *)calloc(c->num_queues, sizeof *peer->qps);
        if (peer->qps == NULL) {
            return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %u queues to rank %d", c->num_queues, r);
        }
    }
    return TERN_OK;
}

/* It is so with all NICs of today: no warning, but who misses an addition finds it here. */
static void tell_of_atomics(const struct mlx5_provider *p)
{
    for (int i = 0; p->num_nics > 1 && i < p->num_nics; i++) {
        if (p->nics[i].atomic_cap != IBV_ATOMIC_GLOB) {
            TERN_LOG(
                TERN_LOG_INFO,
                "rank %d: atomics of %s are not atomic with those of its other NICs; a word here is to be "
                "changed by queues of one number modulo %d",
                p->config.rank, p->nics[i].name, p->num_nics);
            return;
        }
    }
}

static enum tern_status open_nics(struct mlx5_provider *p)
{
    struct mlx5_config *c = &p->config;
    struct nic_wish wish = {c->nics, c->num_nics, c->local_index, c->num_local};
    struct nic_place found[NIC_MAX];
    int chosen[NIC_MAX], num_chosen = 0;
    int num_found = terni_nic_scan(c->root, p->machine->info.pci, found);
    TERN_TRY(terni_nic_choose(found, num_found, &wish, chosen, &num_chosen));
    if (num_chosen > MLX5_MAX_NICS) {
        TERN_LOG(TERN_LOG_WARN, "rank %d uses the first %d of %d NICs", c->rank, MLX5_MAX_NICS, num_chosen);
        num_chosen = MLX5_MAX_NICS;
    }
    if (num_chosen > (int)c->num_queues) { /* the last ones could fail, and serve nobody */
        TERN_LOG(TERN_LOG_WARN, "rank %d uses the first %u of %d NICs: it has %u queues to a peer", c->rank,
                 c->num_queues, num_chosen, c->num_queues);
        num_chosen = (int)c->num_queues;
    }
    for (int i = 0; i < num_chosen; i++) {
        struct mlx5_nic *nic = &p->nics[i];
        nic->v = p->v;
        nic->machine = p->machine;
        nic->root = p->root;
        nic->distance = found[chosen[i]].distance;
        memcpy(nic->name, found[chosen[i]].name, sizeof nic->name);
        p->num_nics = i + 1;
        TERN_TRY(terni_mlx5_nic_open(nic, found[chosen[i]].port, c->gid_index));
        if (nic->port.is_roce && c->service_level > 7) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT,
                             "service level %u (TERN_NIC_SERVICE_LEVEL); %s is on Ethernet, where it is a "
                             "priority, 0 to 7",
                             c->service_level, nic->name);
        }
        if (c->num_blocks > 1u << nic->log_max_blocks) {
            return TERN_FAIL(TERN_UNSUPPORTED, "a send ring of %u blocks; %s has at most %u", c->num_blocks,
                             nic->name, 1u << nic->log_max_blocks);
        }
    }
    tell_of_atomics(p);
    return TERN_OK;
}

static enum tern_status open_all(struct mlx5_provider *p)
{
    TERN_TRY(open_peers(p));
    TERN_TRY(open_nics(p));
    for (int i = 0; i < p->num_nics; i++) {
        TERN_TRY(terni_mlx5_places_open(p, i));
    }
    for (int peer = 0; peer < p->config.num_ranks; peer++) {
        for (uint32_t q = 0; p->peers[peer].is_wanted && q < p->config.num_queues; q++) {
            TERN_TRY(terni_mlx5_qp_open(p, peer, q));
        }
    }
    return terni_mlx5_tables_open(p);
}

enum tern_status terni_mlx5_open(const struct mlx5_config *config, struct mlx5_provider **provider)
{
    const struct mlx5_verbs *v = config->verbs;
    struct mlx5_provider *p;
    enum tern_status status;
    TERN_TRY(check_config(config));
    if (v == NULL) {
        TERN_TRY(terni_mlx5_verbs(&v));
    }
    p = (struct mlx5_provider *)calloc(1, sizeof *p);
    if (p == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for NICs");
    }
    p->config = *config;
    p->v = v;
    p->machine = config->machine;
    snprintf(p->root, sizeof p->root, "%s", config->root);
    status = open_all(p);
    if (status != TERN_OK) {
        terni_mlx5_close(p);
        return status;
    }
    p->config.nics = p->config.root = NULL; /* the caller's; not looked at again */
    p->config.wanted = NULL;
    *provider = p;
    return TERN_OK;
}

static void close_queues(struct mlx5_provider *p)
{
    for (int r = 0; p->peers != NULL && r < p->config.num_ranks; r++) {
        for (uint32_t q = 0; p->peers[r].qps != NULL && q < p->config.num_queues; q++) {
            terni_mlx5_qp_close(p, terni_mlx5_qp_of(p, r, q));
        }
        free(p->peers[r].qps);
        terni_region_list_close(&p->peers[r].regions);
    }
    free(p->peers);
}

void terni_mlx5_close(struct mlx5_provider *p)
{
    if (p == NULL) {
        return;
    }
    terni_mlx5_relay_close(p);
    /* What was begun on memory that goes now: a step that failed did not wait for the one before it. */
    if (p->machine->ops->stream_synchronize(p->machine, p->machine->ops->own_stream(p->machine)) != TERN_OK) {
        TERN_LOG(TERN_LOG_WARN, "%s", tern_last_error());
    }
    close_queues(p);
    while (p->regions.num > 0) { /* the last first: nothing has to move */
        const struct region_span *span =
            (const struct region_span *)terni_region_at(&p->regions, p->regions.num - 1);
        terni_mlx5_deregister(p, (const void *)(uintptr_t)span->addr);
    }
    terni_region_list_close(&p->regions);
    for (int i = 0; i < p->num_nics; i++) {
        struct mlx5_nic *nic = &p->nics[i];
        terni_mlx5_block_unplace(nic, &nic->records);
        terni_mlx5_block_unplace(nic, &nic->rings);
        terni_mlx5_registers_close(nic);
        terni_mlx5_mr_close(nic, nic->results_mr);
        terni_mlx5_block_close(p->machine, &nic->results);
        terni_mlx5_nic_close(nic);
    }
    terni_mlx5_tables_close(p);
    free(p);
}

struct printed {
    char *text;
    size_t left;
    int needed;
};

static void add(struct printed *t, int n)
{
    size_t used = n <= 0 ? 0 : (size_t)n < t->left ? (size_t)n : t->left > 0 ? t->left - 1 : 0;
    t->needed += n > 0 ? n : 0;
    t->text += used;
    t->left -= used;
}

/* How many of a NIC's queue pairs have no doorbell record, which it may not have room for. */
static void add_recordless(struct printed *t, const struct mlx5_provider *p, int nic)
{
    unsigned num = 0, all = 0;
    for (int r = 0; r < p->config.num_ranks; r++) {
        for (uint32_t q = (uint32_t)nic; p->peers[r].is_wanted && q < p->config.num_queues;
             q += (uint32_t)p->num_nics) {
            num += p->peers[r].qps[q].has_no_record != 0;
            all++;
        }
    }
    if (num != 0) {
        add(t, snprintf(t->text, t->left, ", %u of %u queue pairs without doorbell records", num, all));
    }
}

int terni_mlx5_print(const struct mlx5_provider *p, char *text, size_t text_bytes)
{
    struct printed t = {text, text_bytes, 0};
    for (int i = 0; i < p->num_nics; i++) {
        const struct mlx5_nic *nic = &p->nics[i];
        add(&t, snprintf(t.text, t.left, "%s, port %d (%s), %s; rings in memory of the %s, the %s rings",
                         nic->name, nic->port.number, nic->port.is_roce ? "RoCE v2" : "InfiniBand",
                         terni_nic_distance_text(nic->distance), nic->rings.host == NULL ? "device" : "host",
                         nic->host_rings ? "host" : "kernel"));
        add_recordless(&t, p, i);
        add(&t, snprintf(t.text, t.left, "\n"));
    }
    add(&t, snprintf(t.text, t.left, "%d peers, %u queues of %u blocks for each\n", p->num_wanted,
                     p->config.num_queues, p->config.num_blocks));
    return t.needed;
}
