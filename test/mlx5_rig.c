/* SPDX-License-Identifier: Apache-2.0
 *
 * Machines of the rig are cpu machines some of whose operations stop here on their way; see mlx5_rig.h. */
#include "mlx5_rig.h"

#if TERN_HAVE_VERBS

#include "support.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct mlx5_rig *rig_now;
static const struct machine_ops *real_ops;
static struct machine_ops rig_ops;

static enum tern_status rig_alloc(struct machine *m, size_t bytes, void **memory)
{
    if (mock_fails("alloc")) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory, as the test wants it");
    }
    TERN_TRY(real_ops->alloc(m, bytes, memory));
    rig_now->num_live++;
    if (rig_now->is_gpu) {
        mock_device_memory((char *)*memory, bytes);
    }
    return TERN_OK;
}

static void rig_free(struct machine *m, void *memory)
{
    rig_now->num_live -= memory != NULL;
    mock_device_memory_gone((const char *)memory);
    real_ops->free(m, memory);
}

static enum tern_status rig_host_alloc(struct machine *m, size_t bytes, void **host, void **device)
{
    if (mock_fails("host_alloc")) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory, as the test wants it");
    }
    TERN_TRY(real_ops->host_alloc(m, bytes, host, device));
    rig_now->num_live++;
    return TERN_OK;
}

static void rig_host_free(struct machine *m, void *host)
{
    rig_now->num_live -= host != NULL;
    real_ops->host_free(m, host);
}

static void **find_page(const void *registers)
{
    int i = 0;
    while (i < MOCK_MAX_PAGES - 1 && rig_now->pages[i] != registers) {
        i++;
    }
    return &rig_now->pages[i];
}

static int count_fds(void)
{
    int num = 0;
    for (int fd = 0; fd < 1024; fd++) {
        num += fcntl(fd, F_GETFD) >= 0;
    }
    return num;
}

static enum tern_status rig_io_map(struct machine *m, void *registers, size_t bytes, void **device)
{
    if (mock_fails("io_map") || rig_now->io_refused) {
        return TERN_FAIL(TERN_UNSUPPORTED, "registers are not mapped, as the test wants it");
    }
    if ((uintptr_t)registers % 4096 != 0 || bytes % 4096 != 0) {
        mock_complain("%zu bytes of registers at %p are no pages", bytes, registers);
    }
    for (int i = 0; i < MOCK_MAX_PAGES; i++) { /* CUDA refuses a page that it has */
        if (rig_now->pages[i] == registers) {
            return TERN_FAIL(TERN_BAD_STATE, "registers at %p are mapped twice", registers);
        }
    }
    *find_page(NULL) = registers;
    rig_now->num_live++;
    return real_ops->io_map(m, registers, bytes, device);
}

static void rig_io_unmap(struct machine *m, void *registers)
{
    *find_page(registers) = NULL;
    rig_now->num_live--;
    real_ops->io_unmap(m, registers);
}

static enum tern_status rig_dmabuf(struct machine *m, void *memory, uint64_t bytes, int *fd, uint64_t *offset)
{
    (void)m;
    *fd = mock_fails("dmabuf") ? -1 : mock_dmabuf((char *)memory, bytes, offset);
    return *fd >= 0 ? TERN_OK : TERN_FAIL(TERN_UNSUPPORTED, "no dma-buf, as the test wants it");
}

static enum tern_status rig_fill(struct machine *m, void *dst, int byte, size_t bytes, struct tern_stream *s)
{
    return mock_fails("fill") ? TERN_FAIL(TERN_DEVICE_ERROR, "no fill, as the test wants it")
                              : real_ops->fill(m, dst, byte, bytes, s);
}

static enum tern_status rig_copy(struct machine *m, void *dst, const void *src, size_t bytes,
                                 struct tern_stream *s)
{
    return mock_fails("copy") ? TERN_FAIL(TERN_DEVICE_ERROR, "no copy, as the test wants it")
                              : real_ops->copy(m, dst, src, bytes, s);
}

static void take_over(struct machine *m)
{
    real_ops = m->ops;
    rig_ops = *m->ops;
    rig_ops.alloc = rig_alloc;
    rig_ops.free = rig_free;
    rig_ops.host_alloc = rig_host_alloc;
    rig_ops.host_free = rig_host_free;
    rig_ops.io_map = rig_io_map;
    rig_ops.io_unmap = rig_io_unmap;
    rig_ops.dmabuf = rig_dmabuf;
    rig_ops.fill = rig_fill;
    rig_ops.copy = rig_copy;
    m->ops = &rig_ops;
}

int rig_open(struct mlx5_rig *rig, int num_ranks, int is_roce, uint64_t seed)
{
    static const char *const names[RIG_MAX_RANKS] = {"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"};
    memset(rig, 0, sizeof *rig);
    rig->num_fds = count_fds();
    mock_open(&rig->mock, MOCK_MAX_DEVICES, is_roce);
    rig_now = rig;
    if (!nic_tree_open(rig->root) || !nic_tree_mlx5(rig->root, is_roce) ||
        terni_executor_open(seed, &rig->executor) != TERN_OK) {
        return 0;
    }
    for (int r = 0; r < num_ranks; r++) {
        struct mlx5_config *c = &rig->configs[r];
        if (terni_cpu_open(rig->executor, &rig->machines[r]) != TERN_OK) {
            return 0;
        }
        take_over(rig->machines[r]);
        rig->num_ranks = r + 1;
        terni_mlx5_config_init(c, rig->machines[r], r, num_ranks);
        c->verbs = &mock_verbs;
        c->root = rig->root;
        c->nics = names[r];
        c->local_index = r;
        c->num_local = num_ranks;
        c->num_blocks = 64;
    }
    return 1;
}

enum tern_status rig_connect(struct mlx5_rig *rig)
{
    uint32_t bytes = terni_mlx5_card_bytes(rig->providers[0]);
    char *cards = (char *)test_take((size_t)rig->num_ranks, bytes);
    enum tern_status status = TERN_OK;
    for (int r = 0; r < rig->num_ranks; r++) {
        terni_mlx5_card(rig->providers[r], cards + (size_t)r * bytes);
    }
    for (int r = 0; status == TERN_OK && r < rig->num_ranks; r++) {
        status = terni_mlx5_connect(rig->providers[r], cards);
    }
    free(cards);
    return status;
}

enum tern_status rig_providers(struct mlx5_rig *rig)
{
    for (int r = 0; r < rig->num_ranks; r++) {
        TERN_TRY(terni_mlx5_open(&rig->configs[r], &rig->providers[r]));
    }
    return rig_connect(rig);
}

int rig_close(struct mlx5_rig *rig, char complaint[256])
{
    int is_clean;
    for (int r = 0; r < rig->num_ranks; r++) {
        terni_mlx5_close(rig->providers[r]);
        rig->machines[r]->ops->close(rig->machines[r]);
    }
    if (rig->executor != NULL) {
        terni_executor_release(rig->executor);
    }
    if (rig->num_live != 0) {
        mock_complain("%d pieces of machine memory or mapped pages are left", rig->num_live);
    }
    if (rig->root[0] != '\0') {
        nic_tree_close(rig->root);
    }
    if (count_fds() != rig->num_fds) {
        mock_complain("%d descriptors are open, %d were", count_fds(), rig->num_fds);
    }
    is_clean = mock_close(&rig->mock);
    memcpy(complaint, rig->mock.complaint, 256);
    return is_clean;
}

#endif
