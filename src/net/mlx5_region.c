/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and its keys: of this rank, registered with each of its NICs, and of its peers, as their cards say.
 * Tables are lists in the order of arrival: an EP object has one or two ranges; the first is used most. */
#include "net/mlx5_nic.h"

#include <string.h>

static int overlap(const struct mlx5_region *r, uint64_t addr, uint64_t bytes)
{
    return addr < r->addr + r->bytes && r->addr < addr + bytes;
}

static enum tern_status check_range(const struct mlx5_region *regions, int num, int rank, uint64_t addr,
                                    uint64_t bytes)
{
    if (bytes == 0 || bytes - 1 > UINT64_MAX - addr) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "rank %d: a registration of %llu bytes at 0x%llx", rank,
                         (unsigned long long)bytes, (unsigned long long)addr);
    }
    for (int i = 0; i < num; i++) {
        if (overlap(&regions[i], addr, bytes)) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT,
                             "rank %d: %llu bytes at 0x%llx overlap the %llu registered at 0x%llx", rank,
                             (unsigned long long)bytes, (unsigned long long)addr,
                             (unsigned long long)regions[i].bytes, (unsigned long long)regions[i].addr);
        }
    }
    if (num == MLX5_MAX_REGIONS) {
        return TERN_FAIL(TERN_NO_SPACE, "rank %d has %d ranges of memory registered, which is the most", rank,
                         MLX5_MAX_REGIONS);
    }
    return TERN_OK;
}

static void close_region(struct mlx5_provider *p, struct mlx5_region *r)
{
    for (int i = 0; i < p->num_nics; i++) {
        terni_mlx5_mr_close(&p->nics[i], r->mrs[i]);
    }
    memset(r, 0, sizeof *r);
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
    struct mlx5_region *r = &p->regions[p->num_regions];
    uint64_t addr = (uint64_t)(uintptr_t)memory;
    enum tern_status status;
    TERN_TRY(check_range(p->regions, p->num_regions, p->config.rank, addr, bytes));
    memset(r, 0, sizeof *r);
    r->addr = addr;
    r->bytes = bytes;
    status = open_region(p, r, memory, flags);
    if (status != TERN_OK) {
        close_region(p, r);
        return status;
    }
    p->num_regions++;
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
    struct mlx5_region *r;
    if (!from->is_wanted || !p->is_connected) {
        return TERN_FAIL(TERN_BAD_STATE, "rank %d is not connected to rank %d", p->config.rank, peer);
    }
    if (card->num_nics != (uint32_t)from->num_nics) {
        return TERN_FAIL(TERN_MISMATCH, "rank %d has keys of %u NICs, but connected with %d", peer,
                         card->num_nics, from->num_nics);
    }
    TERN_TRY(check_range(from->regions, from->num_regions, peer, card->addr, card->bytes));
    r = &from->regions[from->num_regions++];
    memset(r, 0, sizeof *r);
    r->addr = card->addr;
    r->bytes = card->bytes;
    memcpy(r->keys, card->rkeys, sizeof r->keys);
    return TERN_OK;
}

/* The place of the range that begins there, -1: none. */
static int find(const struct mlx5_region *regions, int num, uint64_t addr)
{
    for (int i = 0; i < num; i++) {
        if (regions[i].addr == addr) {
            return i;
        }
    }
    return -1;
}

static void remove_at(struct mlx5_region *regions, int *num, int at)
{
    (*num)--;
    memmove(&regions[at], &regions[at + 1], (size_t)(*num - at) * sizeof *regions);
    memset(&regions[*num], 0, sizeof *regions);
}

void terni_mlx5_deregister(struct mlx5_provider *p, const void *memory)
{
    int at = find(p->regions, p->num_regions, (uint64_t)(uintptr_t)memory);
    if (at >= 0) {
        close_region(p, &p->regions[at]);
        remove_at(p->regions, &p->num_regions, at);
    }
}

void terni_mlx5_forget(struct mlx5_provider *p, int peer, uint64_t addr)
{
    struct mlx5_peer *from = &p->peers[peer];
    int at = find(from->regions, from->num_regions, addr);
    if (at >= 0) {
        remove_at(from->regions, &from->num_regions, at);
    }
}
