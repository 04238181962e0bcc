/* SPDX-License-Identifier: Apache-2.0
 *
 * Doorbell registers. A NIC hands them out in pages of user access regions (UARs); which kind there is
 * differs with kernel and rdma-core, so the kinds are tried in turn. Two registers may lie in one page, and
 * a page is mapped for kernels once. If one cannot be mapped, all queues of the NIC are rung by the host. */
#include "net/mlx5_nic.h"

#include <string.h>
#include <unistd.h>

/* A register for this process alone, not combined by the processor: rdma-core 45 or later. Its header has a
 * name for it that older ones do not. */
#define UAR_DEDICATED (1u << 31)

static struct mlx5dv_devx_uar *alloc_uar(struct mlx5_nic *nic)
{
    static const uint32_t kinds[] = {UAR_DEDICATED, MLX5DV_UAR_ALLOC_TYPE_BF, MLX5DV_UAR_ALLOC_TYPE_NC};
    struct mlx5dv_devx_uar *uar = NULL;
    for (size_t i = 0; uar == NULL && i < sizeof kinds / sizeof kinds[0]; i++) {
        uar = nic->v->alloc_uar(nic->context, kinds[i]);
    }
    return uar;
}

static uintptr_t page_of(const void *reg) { return (uintptr_t)reg & ~(uintptr_t)(sysconf(_SC_PAGESIZE) - 1); }

/* What an earlier register of the same page was mapped to, else a mapping of its own. */
static enum tern_status map(struct mlx5_nic *nic, int i)
{
    struct mlx5_register *r = &nic->registers[i];
    uintptr_t page = page_of(r->uar->reg_addr), inner = (uintptr_t)r->uar->reg_addr - page;
    void *device;
    for (int j = 0; j < i; j++) {
        struct mlx5_register *other = &nic->registers[j];
        if (page_of(other->uar->reg_addr) == page) {
            r->kernel = other->kernel + ((char *)r->uar->reg_addr - (char *)other->uar->reg_addr) / 8;
            return TERN_OK;
        }
    }
    TERN_TRY(nic->machine->ops->io_map(nic->machine, (void *)page, (size_t)sysconf(_SC_PAGESIZE), &device));
    r->mapped = (void *)page;
    r->kernel = (uint64_t *)((char *)device + inner);
    return TERN_OK;
}

static void unmap_all(struct mlx5_nic *nic)
{
    for (int i = 0; i < nic->num_registers; i++) {
        if (nic->registers[i].mapped != NULL) {
            nic->machine->ops->io_unmap(nic->machine, nic->registers[i].mapped);
        }
        nic->registers[i].mapped = NULL;
        nic->registers[i].kernel = NULL;
    }
}

static enum tern_status map_all(struct mlx5_nic *nic)
{
    for (int i = 0; i < nic->num_registers; i++) {
        enum tern_status status = map(nic, i);
        if (status != TERN_OK) {
            unmap_all(nic);
            return status;
        }
    }
    return TERN_OK;
}

enum tern_status terni_mlx5_registers_open(struct mlx5_nic *nic, int count, enum mlx5_doorbell who)
{
    enum tern_status status;
    nic->cq_uar = nic->v->alloc_uar(nic->context, MLX5DV_UAR_ALLOC_TYPE_NC);
    if (nic->cq_uar == NULL) { /* any kind will do, it is only named */
        nic->cq_uar = nic->v->alloc_uar(nic->context, MLX5DV_UAR_ALLOC_TYPE_BF);
    }
    if (nic->cq_uar == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "%s has no register page for completion queues: %m", nic->name);
    }
    for (int i = 0; i < count; i++) {
        nic->registers[i].uar = alloc_uar(nic);
        if (nic->registers[i].uar == NULL) {
            return TERN_FAIL(TERN_OUT_OF_MEMORY, "%s has no doorbell register, the %dth of %d: %m", nic->name,
                             i + 1, count);
        }
        nic->num_registers = i + 1;
    }
    nic->host_rings = who == MLX5_DOORBELL_HOST;
    if (nic->host_rings) {
        return TERN_OK;
    }
    status = map_all(nic);
    if (status != TERN_OK && who == MLX5_DOORBELL_AUTO) {
        TERN_LOG(TERN_LOG_INFO, "the host rings for kernels on %s: %s", nic->name, tern_last_error());
        nic->host_rings = 1;
        return TERN_OK;
    }
    return status;
}

void terni_mlx5_registers_close(struct mlx5_nic *nic)
{
    unmap_all(nic);
    for (int i = 0; i < nic->num_registers; i++) {
        nic->v->free_uar(nic->registers[i].uar);
    }
    if (nic->cq_uar != NULL) {
        nic->v->free_uar(nic->cq_uar);
    }
    memset(nic->registers, 0, sizeof nic->registers);
    nic->num_registers = 0;
    nic->cq_uar = NULL;
}
