/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that a NIC reads or writes. Memory of a GPU reaches a NIC's driver in one of two ways: as a dma-buf,
 * or by its address if nvidia-peermem is loaded. Which of them works is known only by trying; the sentence of
 * a failure tells both. Memory of the host goes by its address. */
#include "net/mlx5_nic.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum tern_status terni_mlx5_block_open(struct machine *m, uint64_t bytes, int on_device, struct mlx5_block *b)
{
    uint64_t room = bytes + MLX5_BLOCK_ALIGN;
    void *device = NULL;
    uintptr_t skip;

    if (on_device) {
        TERN_TRY(m->ops->alloc(m, room, &b->allocated));
        device = b->allocated;
    } else {
        TERN_TRY(m->ops->host_alloc(m, room, &b->allocated, &device));
    }
    skip = (MLX5_BLOCK_ALIGN - (uintptr_t)device % MLX5_BLOCK_ALIGN) % MLX5_BLOCK_ALIGN;
    b->memory = (char *)device + skip;
    b->host = on_device ? NULL : (char *)b->allocated + skip;
    b->bytes = bytes;
    if (on_device) { /* the host's is zeroed */
        TERN_TRY(m->ops->fill(m, b->memory, 0, bytes, m->ops->own_stream(m)));
        return m->ops->stream_synchronize(m, m->ops->own_stream(m));
    }
    return TERN_OK;
}

void terni_mlx5_block_close(struct machine *m, struct mlx5_block *b)
{
    if (b->allocated != NULL) {
        if (b->host != NULL) {
            m->ops->host_free(m, b->allocated);
        } else {
            m->ops->free(m, b->allocated);
        }
    }
    memset(b, 0, sizeof *b);
}

/* What stands in the way of memory of a GPU: how it failed as a dma-buf, and by address with this errno. */
static enum tern_status no_way(const struct mlx5_nic *nic, const void *memory, uint64_t bytes,
                               const char *dmabuf, int address)
{
    return TERN_FAIL(TERN_UNSUPPORTED,
                     "%s cannot reach %llu bytes of device memory at %p: as a dma-buf: %s; by address: %s, "
                     "nvidia-peermem is %s",
                     nic->name, (unsigned long long)bytes, memory, dmabuf, strerror(address),
                     terni_nic_has_peermem(nic->root) ? "loaded" : "not loaded");
}

/* A dma-buf of the memory, or -1 and why not. */
static int open_dmabuf(struct mlx5_nic *nic, void *memory, uint64_t bytes, uint64_t *offset, char *reason,
                       size_t reason_bytes)
{
    int fd = -1;
    if (nic->machine->ops->dmabuf(nic->machine, memory, bytes, &fd, offset) != TERN_OK) {
        snprintf(reason, reason_bytes, "%s", tern_last_error());
        return -1;
    }
    return fd;
}

static struct mlx5dv_devx_umem *dmabuf_umem(struct mlx5_nic *nic, struct mlx5_block *b, char *reason,
                                            size_t reason_bytes)
{
    struct mlx5dv_devx_umem_in in;
    struct mlx5dv_devx_umem *umem;
    uint64_t offset = 0;
    int fd = open_dmabuf(nic, b->memory, b->bytes, &offset, reason, reason_bytes);
    if (fd < 0) {
        return NULL;
    }
    memset(&in, 0, sizeof in);
    in.addr = (void *)(uintptr_t)offset; /* with a dma-buf, an offset in it */
    in.size = b->bytes;
    in.access = IBV_ACCESS_LOCAL_WRITE;
    in.pgsz_bitmap = MLX5_BLOCK_ALIGN | MLX5_PAGE;
    in.comp_mask = MLX5DV_UMEM_MASK_DMABUF;
    in.dmabuf_fd = fd;
    umem = nic->v->umem_reg_ex(nic->context, &in);
    if (umem == NULL) {
        snprintf(reason, reason_bytes, "%s", strerror(errno));
    }
    close(fd); /* the registration holds the memory by itself */
    return umem;
}

enum tern_status terni_mlx5_block_register(struct mlx5_nic *nic, struct mlx5_block *b)
{
    char reason[160] = "";
    if (b->host == NULL) {
        b->umem = dmabuf_umem(nic, b, reason, sizeof reason);
    }
    if (b->umem == NULL) {
        b->umem = nic->v->umem_reg(nic->context, terni_mlx5_block_named(b), b->bytes, IBV_ACCESS_LOCAL_WRITE);
    }
    if (b->umem == NULL && b->host == NULL) {
        return no_way(nic, b->memory, b->bytes, reason, errno);
    }
    if (b->umem == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "%s: %llu bytes at %p for rings cannot be registered: %m",
                         nic->name, (unsigned long long)b->bytes, (void *)b->memory);
    }
    return TERN_OK;
}

enum tern_status terni_mlx5_block_place(struct mlx5_nic *nic, uint64_t bytes, enum mlx5_memory where,
                                        struct mlx5_block *b)
{
    int on_device = where != MLX5_MEMORY_HOST;
    enum tern_status status = terni_mlx5_block_open(nic->machine, bytes, on_device, b);
    if (status == TERN_OK) {
        status = terni_mlx5_block_register(nic, b);
    }
    if (status == TERN_UNSUPPORTED && where == MLX5_MEMORY_AUTO) {
        TERN_LOG(TERN_LOG_INFO, "rings are in memory of the host: %s", tern_last_error());
        terni_mlx5_block_close(nic->machine, b);
        return terni_mlx5_block_place(nic, bytes, MLX5_MEMORY_HOST, b);
    }
    return status;
}

void terni_mlx5_block_unplace(struct mlx5_nic *nic, struct mlx5_block *b)
{
    if (b->umem != NULL) {
        MLX5_WARN(nic, nic->v->umem_dereg(b->umem), "memory of rings");
    }
    terni_mlx5_block_close(nic->machine, b);
}

enum tern_status terni_mlx5_mr_open(struct mlx5_nic *nic, void *memory, uint64_t bytes, int on_device,
                                    uint32_t access, struct ibv_mr **mr)
{
    uint64_t at = (uint64_t)(uintptr_t)memory, offset = 0;
    char reason[160] = "";
    *mr = NULL;
    if (on_device) {
        int fd = open_dmabuf(nic, memory, bytes, &offset, reason, sizeof reason);
        if (fd >= 0) {
            *mr = nic->v->reg_dmabuf_mr(nic->pd, offset, bytes, at, fd, (int)access);
            if (*mr == NULL) {
                snprintf(reason, sizeof reason, "%s", strerror(errno));
            }
            close(fd);
        }
    }
    if (*mr == NULL) {
        *mr = nic->v->reg_mr_iova2(nic->pd, memory, bytes, at, access);
    }
    if (*mr == NULL && on_device) {
        return no_way(nic, memory, bytes, reason, errno);
    }
    if (*mr == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "%s: %llu bytes at %p cannot be registered: %m", nic->name,
                         (unsigned long long)bytes, memory);
    }
    return TERN_OK;
}

void terni_mlx5_mr_close(struct mlx5_nic *nic, struct ibv_mr *mr)
{
    if (mr != NULL) {
        MLX5_WARN(nic, nic->v->dereg_mr(mr), "a memory region");
    }
}
