/* SPDX-License-Identifier: Apache-2.0
 *
 * The mlx5 provider as struct nic_provider.
 *
 * All memory is registered in strict order: a program may keep a signal word anywhere in a window, and a
 * relaxed atomic could pass the data that it speaks of. */
#include "core/core.h"
#include "net/nic_provider.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static_assert(sizeof(struct nic_region) >= sizeof(struct mlx5_region_card), "a card fits");

static struct mlx5_provider *of(const struct nic_provider *p) { return (struct mlx5_provider *)p->state; }

static void close_it(struct nic_provider *p)
{
    terni_mlx5_close(of(p));
    p->state = NULL;
}

static uint32_t card_bytes(const struct nic_provider *p) { return terni_mlx5_card_bytes(of(p)); }
static void card(const struct nic_provider *p, void *bytes) { terni_mlx5_card(of(p), bytes); }

static enum tern_status connect_all(struct nic_provider *p, const void *cards, void *const *links,
                                    void *const *wires)
{
    (void)links;
    (void)wires;
    return terni_mlx5_connect(of(p), cards);
}

static enum tern_status add(struct nic_provider *p, void *memory, uint64_t bytes, struct nic_region *region)
{
    struct mlx5_region_card c;
    TERN_TRY(terni_mlx5_register(of(p), memory, bytes, MLX5_REGION_DEVICE | MLX5_REGION_SIGNALS, &c));
    memset(region, 0, sizeof *region);
    memcpy(region, &c, sizeof c);
    return TERN_OK;
}

static enum tern_status import(struct nic_provider *p, int peer, const struct nic_region *region,
                               void *mapped)
{
    struct mlx5_region_card c;
    (void)mapped;
    memcpy(&c, region, sizeof c);
    return terni_mlx5_import(of(p), peer, &c);
}

static void remove_own(struct nic_provider *p, const void *memory) { terni_mlx5_deregister(of(p), memory); }
static void forget(struct nic_provider *p, int peer, uint64_t addr) { terni_mlx5_forget(of(p), peer, addr); }
static enum tern_status refresh(struct nic_provider *p) { return terni_mlx5_refresh(of(p)); }
static const struct net_queue *queues(const struct nic_provider *p) { return terni_mlx5_queues(of(p)); }

/* It is no work of the device. */
static enum tern_status nothing(struct nic_provider *p)
{
    (void)p;
    return TERN_OK;
}

static int explain(struct nic_provider *p, int peer, uint32_t index, char *text, size_t text_bytes)
{
    struct devx_qp_state s;
    text[0] = '\0';
    if (terni_mlx5_inspect(of(p), peer, index, &s) == TERN_OK) {
        snprintf(text, text_bytes, "the NIC says state %u of queue pair 0x%06x", s.state,
                 terni_mlx5_queue(of(p), peer, index)->qpn);
    }
    return 0;
}

static const struct nic_provider_ops ops = {close_it, card_bytes, card,   connect_all, add,
                                            import,   remove_own, forget, refresh,     nothing,
                                            nothing,  queues,     explain};

/* What packets say, by the environment; what is wrong in it fails whoever asked for NICs. */
static enum tern_status read_packets(struct mlx5_config *c)
{
    uint64_t gid_index, traffic_class, service_level;
    TERN_TRY(terni_env_uint(TERN_ENV_NIC_TRAFFIC_CLASS, 255, &traffic_class));
    TERN_TRY(terni_env_uint(TERN_ENV_NIC_SERVICE_LEVEL, 15, &service_level));
    c->traffic_class = (uint32_t)traffic_class;
    c->service_level = (uint32_t)service_level;
    if (terni_env(TERN_ENV_NIC_GID_INDEX)[0] != '\0') {
        TERN_TRY(terni_env_uint(TERN_ENV_NIC_GID_INDEX, 255, &gid_index));
        c->gid_index = (int)gid_index;
    }
    return TERN_OK;
}

/* A line in the log for each NIC, and for the queues. */
static void tell(const struct mlx5_provider *p, int rank)
{
    char text[(MLX5_MAX_NICS + 1) * 192], *rest = NULL;
    (void)terni_mlx5_print(p, text, sizeof text);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        TERN_LOG(TERN_LOG_INFO, "rank %d uses %s", rank, line);
    }
}

enum tern_status terni_nic_open_mlx5(const struct nic_config *config, struct nic_provider *p)
{
    const struct nic_settings *s = &terni_nic_settings;
    struct mlx5_provider *state = NULL;
    struct mlx5_config c;
    terni_mlx5_config_init(&c, config->machine, config->rank, config->num_ranks);
    c.verbs = s->verbs;
    c.root = s->root != NULL ? s->root : c.root;
    c.nics = terni_env(TERN_ENV_NICS);
    TERN_TRY(read_packets(&c));
    TERN_TRY(terni_nic_wants_records(&c.records));
    c.local_index = config->local_index;
    c.num_local = config->num_local;
    c.wanted = config->wanted;
    c.num_nics = (int)config->num_nics;
    c.num_queues = config->num_queues;
    c.num_blocks = s->num_blocks != 0 ? s->num_blocks : c.num_blocks;
    c.batch_blocks = s->batch_blocks != 0 ? s->batch_blocks : c.batch_blocks;
    c.cq_ring = s->cq_ring;
    c.force_dump = s->dump;
    c.doorbell = s->host_rings ? MLX5_DOORBELL_HOST : c.doorbell;
    c.abort = config->abort;
    c.lost = config->lost;
    c.copies = config->copies;
    c.timeout_ns = config->timeout_ns;
    TERN_TRY(terni_mlx5_open(&c, &state));
    tell(state, config->rank);
    p->ops = &ops;
    p->state = state;
    return TERN_OK;
}
