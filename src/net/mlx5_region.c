/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and its keys: of this rank, registered with each of its NICs, and of its peers, as their cards
 * say. */
#include "net/mlx5_nic.h"

#include <string.h>

static struct mlx5_region *region_at(const struct region_list *list, int at)
{
    return (struct mlx5_region *)terni_region_at(list, at);
}

static void close_region(struct mlx5_provider *p, struct mlx5_region *r)
{
    for (int i = 0; i < p->num_nics; i++) {
        terni_mlx5_mr_close(&p->nics[i], r->mrs[i]);
    }
}

static enum tern_status open_region(struct mlx5_provider *p, struct mlx5_region *r, void *memory,
                                    uint32_t flags)
{
    uint32_t access =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    if (!(flags & MLX5_REGION_SIGNALS)) {
        access |= IBV_ACCESS_RELAXED_ORDERING;
    }
    for (int i = 0; i < p->num_nics; i++) {
        TERN_TRY(terni_mlx5_mr_open(&p->nics[i], memory, r->bytes, (flags & MLX5_REGION_DEVICE) != 0, access,
                                    &r->mrs[i]));
        r->keys[i] = r->mrs[i]->lkey;
    }
    return TERN_OK;
}

enum tern_status terni_mlx5_register(struct mlx5_provider *p, void *memory, uint64_t bytes, uint32_t flags,
                                     struct mlx5_region_card *card)
{
    uint64_t addr = (uint64_t)(uintptr_t)memory;
    struct mlx5_region *r;
    enum tern_status status;
    void *entry;
    TERN_TRY(terni_region_add(&p->regions, p->config.rank, addr, bytes, &entry));
    r = (struct mlx5_region *)entry;
    status = open_region(p, r, memory, flags);
    if (status != TERN_OK) {
        close_region(p, r);
        terni_region_remove(&p->regions, p->regions.num - 1);
        return status;
    }
    memset(card, 0, sizeof *card);
    card->addr = addr;
    card->bytes = bytes;
    card->num_nics = (uint32_t)p->num_nics;
    for (int i = 0; i < p->num_nics; i++) {
        card->rkeys[i] = r->mrs[i]->rkey;
    }
    return TERN_OK;
}

enum tern_status terni_mlx5_import(struct mlx5_provider *p, int peer, const struct mlx5_region_card *card)
{
    struct mlx5_peer *from = &p->peers[peer];
    void *entry;
    if (!from->is_wanted || !p->is_connected) {
        return TERN_FAIL(TERN_BAD_STATE, "rank %d is not connected to rank %d", p->config.rank, peer);
    }
    if (card->num_nics != (uint32_t)from->num_nics) {
        return TERN_FAIL(TERN_MISMATCH, "rank %d has keys of %u NICs, but connected with %d", peer,
                         card->num_nics, from->num_nics);
    }
    TERN_TRY(terni_region_add(&from->regions, peer, card->addr, card->bytes, &entry));
    memcpy(((struct mlx5_region *)entry)->keys, card->rkeys, sizeof card->rkeys);
    return TERN_OK;
}

void terni_mlx5_deregister(struct mlx5_provider *p, const void *memory)
{
    int at = terni_region_find(&p->regions, (uint64_t)(uintptr_t)memory);
    if (at >= 0) {
        close_region(p, region_at(&p->regions, at));
        terni_region_remove(&p->regions, at);
    }
}

void terni_mlx5_forget(struct mlx5_provider *p, int peer, uint64_t addr)
{
    struct region_list *list = &p->peers[peer].regions;
    int at = terni_region_find(list, addr);
    if (at >= 0) {
        terni_region_remove(list, at);
    }
}
