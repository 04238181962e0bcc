/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens a NIC with DevX: the device by its name, what it can do, a protection domain and its number, the
 * event queue that completion queues must name, a port. */
#include "net/mlx5_nic.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static enum tern_status open_named(struct mlx5_nic *nic, struct ibv_device **list, int count)
{
    struct mlx5dv_context_attr attr;
    int i = 0;
    while (i < count && strcmp(list[i]->name, nic->name) != 0) {
        i++;
    }
    if (i == count) {
        return TERN_FAIL(TERN_UNSUPPORTED, "libibverbs does not list %s, but %d other devices", nic->name,
                         count);
    }
    if (!nic->v->is_supported(list[i])) {
        return TERN_FAIL(TERN_UNSUPPORTED, "%s is no mlx5 device", nic->name);
    }
    memset(&attr, 0, sizeof attr);
    attr.flags = MLX5DV_CONTEXT_FLAGS_DEVX;
    nic->context = nic->v->open_device(list[i], &attr);
    if (nic->context == NULL) {
        return TERN_FAIL(TERN_UNSUPPORTED, "%s cannot be opened for DevX: %m", nic->name);
    }
    return TERN_OK;
}

static enum tern_status open_context(struct mlx5_nic *nic)
{
    struct ibv_device **list;
    enum tern_status status;
    int count = 0;
    errno = 0;
    list = nic->v->get_device_list(&count);
    if (list == NULL) { /* so a host without RDMA answers */
        return TERN_FAIL(TERN_UNSUPPORTED, "libibverbs lists no device: %s",
                         errno != 0 ? strerror(errno) : "there is none");
    }
    status = open_named(nic, list, count);
    nic->v->free_device_list(list);
    return status;
}

static enum tern_status open_pd(struct mlx5_nic *nic)
{
    struct mlx5dv_obj object;
    struct mlx5dv_pd pd;
    int error;
    nic->pd = nic->v->alloc_pd(nic->context);
    if (nic->pd == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "%s gives no protection domain: %m", nic->name);
    }
    memset(&object, 0, sizeof object);
    memset(&pd, 0, sizeof pd);
    object.pd.in = nic->pd;
    object.pd.out = &pd;
    error = nic->v->init_obj(&object, MLX5DV_OBJ_PD);
    if (error != 0) {
        return TERN_FAIL(TERN_DEVICE_ERROR, "%s: the protection domain has no number: %s", nic->name,
                         strerror(error));
    }
    nic->pdn = pd.pdn;
    return TERN_OK;
}

enum tern_status terni_mlx5_nic_open(struct mlx5_nic *nic, int port, int gid_index)
{
    int error;
    TERN_TRY(open_context(nic));
    TERN_TRY(terni_mlx5_caps_check(nic));
    TERN_TRY(terni_mlx5_port_open(nic, port, gid_index));
    TERN_TRY(open_pd(nic));
    error = nic->v->query_eqn(nic->context, 0, &nic->eqn);
    if (error != 0) {
        return TERN_FAIL(TERN_DEVICE_ERROR, "%s has no event queue: %s", nic->name, strerror(error));
    }
    return TERN_OK;
}

void terni_mlx5_nic_close(struct mlx5_nic *nic)
{
    if (nic->pd != NULL) {
        MLX5_WARN(nic, nic->v->dealloc_pd(nic->pd), "its protection domain");
    }
    if (nic->context != NULL) {
        MLX5_WARN(nic, nic->v->close_device(nic->context), "the device");
    }
    nic->pd = NULL;
    nic->context = NULL;
}

enum tern_status terni_mlx5_probe(const struct mlx5_verbs *verbs, const char *name, int port)
{
    struct mlx5_nic nic;
    enum tern_status status;
    if (verbs == NULL) {
        TERN_TRY(terni_mlx5_verbs(&verbs));
    }
    memset(&nic, 0, sizeof nic);
    nic.v = verbs;
    snprintf(nic.name, sizeof nic.name, "%s", name);
    status = terni_mlx5_nic_open(&nic, port, -1);
    terni_mlx5_nic_close(&nic);
    return status;
}

const char *terni_mlx5_describe(void)
{
    const struct mlx5_verbs *verbs;
    return terni_mlx5_verbs(&verbs) == TERN_OK ? "built with rdma-core; libibverbs and libmlx5 are here"
                                               : "built with rdma-core; its libraries are not all here";
}
