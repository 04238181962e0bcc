/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of libibverbs and libmlx5 that the provider calls, as a table. Tern is not linked with these
 * libraries: it looks for them when a NIC is wanted, so that it runs where they are not installed. A test
 * hands over a table of its own, and all of the provider runs on that.
 *
 * Symbols are asked for with the version whose behaviour we know: libibverbs keeps old ones under the same
 * names. Types come from the headers of rdma-core 44 or later (Debian: libibverbs-dev). Where these are
 * missing at build time, no_mlx5.c is built in place of all mlx5_*.c. */
#ifndef TERN_MLX5_VERBS_H
#define TERN_MLX5_VERBS_H

#include "core/core.h"

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

/* X(member, result, arguments, library, symbol, version). The last may be missing in an old rdma-core. */
#define MLX5_VERBS(X)                                                                                        \
    X(get_device_list, struct ibv_device **, (int *), VERBS, "ibv_get_device_list", "IBVERBS_1.1")           \
    X(free_device_list, void, (struct ibv_device **), VERBS, "ibv_free_device_list", "IBVERBS_1.1")          \
    X(close_device, int, (struct ibv_context *), VERBS, "ibv_close_device", "IBVERBS_1.1")                   \
    X(query_device, int, (struct ibv_context *, struct ibv_device_attr *), VERBS, "ibv_query_device",        \
      "IBVERBS_1.1")                                                                                         \
    /* Fills the structure up to link_layer. */                                                              \
    X(query_port, int, (struct ibv_context *, uint8_t, struct ibv_port_attr *), VERBS, "ibv_query_port",     \
      "IBVERBS_1.1")                                                                                         \
    X(query_gid_ex, int,                                                                                     \
      (struct ibv_context *, uint32_t, uint32_t, struct ibv_gid_entry *, uint32_t, size_t), VERBS,           \
      "_ibv_query_gid_ex", "IBVERBS_1.11")                                                                   \
    X(alloc_pd, struct ibv_pd *, (struct ibv_context *), VERBS, "ibv_alloc_pd", "IBVERBS_1.1")               \
    X(dealloc_pd, int, (struct ibv_pd *), VERBS, "ibv_dealloc_pd", "IBVERBS_1.1")                            \
    X(create_ah, struct ibv_ah *, (struct ibv_pd *, struct ibv_ah_attr *), VERBS, "ibv_create_ah",           \
      "IBVERBS_1.1")                                                                                         \
    X(destroy_ah, int, (struct ibv_ah *), VERBS, "ibv_destroy_ah", "IBVERBS_1.1")                            \
    /* This one knows relaxed ordering, and leaves it out where the kernel does not. */                      \
    X(reg_mr_iova2, struct ibv_mr *, (struct ibv_pd *, void *, size_t, uint64_t, unsigned), VERBS,           \
      "ibv_reg_mr_iova2", "IBVERBS_1.8")                                                                     \
    X(reg_dmabuf_mr, struct ibv_mr *, (struct ibv_pd *, uint64_t, size_t, uint64_t, int, int), VERBS,        \
      "ibv_reg_dmabuf_mr", "IBVERBS_1.12")                                                                   \
    X(dereg_mr, int, (struct ibv_mr *), VERBS, "ibv_dereg_mr", "IBVERBS_1.1")                                \
    X(is_supported, bool, (struct ibv_device *), MLX5, "mlx5dv_is_supported", "MLX5_1.8")                    \
    X(open_device, struct ibv_context *, (struct ibv_device *, struct mlx5dv_context_attr *), MLX5,          \
      "mlx5dv_open_device", "MLX5_1.7")                                                                      \
    X(init_obj, int, (struct mlx5dv_obj *, uint64_t), MLX5, "mlx5dv_init_obj", "MLX5_1.2")                   \
    X(query_eqn, int, (struct ibv_context *, uint32_t, uint32_t *), MLX5, "mlx5dv_devx_query_eqn",           \
      "MLX5_1.7")                                                                                            \
    X(alloc_uar, struct mlx5dv_devx_uar *, (struct ibv_context *, uint32_t), MLX5, "mlx5dv_devx_alloc_uar",  \
      "MLX5_1.7")                                                                                            \
    X(free_uar, void, (struct mlx5dv_devx_uar *), MLX5, "mlx5dv_devx_free_uar", "MLX5_1.7")                  \
    X(umem_reg, struct mlx5dv_devx_umem *, (struct ibv_context *, void *, size_t, uint32_t), MLX5,           \
      "mlx5dv_devx_umem_reg", "MLX5_1.7")                                                                    \
    X(umem_reg_ex, struct mlx5dv_devx_umem *, (struct ibv_context *, struct mlx5dv_devx_umem_in *), MLX5,    \
      "mlx5dv_devx_umem_reg_ex", "MLX5_1.19")                                                                \
    X(umem_dereg, int, (struct mlx5dv_devx_umem *), MLX5, "mlx5dv_devx_umem_dereg", "MLX5_1.7")              \
    X(general_cmd, int, (struct ibv_context *, const void *, size_t, void *, size_t), MLX5,                  \
      "mlx5dv_devx_general_cmd", "MLX5_1.7")                                                                 \
    X(obj_create, struct mlx5dv_devx_obj *, (struct ibv_context *, const void *, size_t, void *, size_t),    \
      MLX5, "mlx5dv_devx_obj_create", "MLX5_1.7")                                                            \
    X(obj_query, int, (struct mlx5dv_devx_obj *, const void *, size_t, void *, size_t), MLX5,                \
      "mlx5dv_devx_obj_query", "MLX5_1.7")                                                                   \
    X(obj_modify, int, (struct mlx5dv_devx_obj *, const void *, size_t, void *, size_t), MLX5,               \
      "mlx5dv_devx_obj_modify", "MLX5_1.7")                                                                  \
    X(obj_destroy, int, (struct mlx5dv_devx_obj *), MLX5, "mlx5dv_devx_obj_destroy", "MLX5_1.7")

struct mlx5_verbs {
#define MEMBER(name, result, arguments, library, symbol, version) result(*name) arguments;
    MLX5_VERBS(MEMBER)
#undef MEMBER
};

/* The table of the installed libraries, loaded once and never unloaded (they may have threads and handlers
 * of their own). TERN_UNSUPPORTED says which library or symbol is missing. Any thread. */
enum tern_status terni_mlx5_verbs(const struct mlx5_verbs **verbs);

#endif
