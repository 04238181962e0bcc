/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks with an mlx5 provider each, in one thread: machines whose memory plays that of GPUs if a test wants
 * that, a tree in place of /sys, the mock in place of the libraries, and an allgather of cards. */
#ifndef TERN_TEST_MLX5_RIG_H
#define TERN_TEST_MLX5_RIG_H

#if TERN_HAVE_VERBS

#include "mlx5_mock.h"
#include "net/mlx5_provider.h"
#include "nic_tree.h"

enum { RIG_MAX_RANKS = 4 };

struct mlx5_rig {
    struct mock mock;
    char root[NIC_TREE_ROOT_BYTES];
    int num_ranks;
    struct executor *executor;
    struct machine *machines[RIG_MAX_RANKS];
    struct mlx5_config configs[RIG_MAX_RANKS];
    struct mlx5_provider *providers[RIG_MAX_RANKS];
    int is_gpu;                  /* device memory is of a GPU: what is reachable, the mock says */
    int io_refused;              /* registers cannot be mapped for kernels */
    void *pages[MOCK_MAX_PAGES]; /* of registers, mapped for kernels */
    int num_fds;                 /* open when the rig was */
    int num_live;                /* pieces of machine memory, and mapped pages of registers */
};

/* 1, or 0 where there is no place for files. Rank r of the host has NIC mlx5_r; configs may be changed until
 * rig_providers. seed: of the executor. */
int rig_open(struct mlx5_rig *rig, int num_ranks, int is_roce, uint64_t seed);
/* Opens all providers and connects them. What fails says so. */
enum tern_status rig_providers(struct mlx5_rig *rig);
enum tern_status rig_connect(struct mlx5_rig *rig);
/* 1: nothing was left, and the mock has no complaint; else *complaint tells. */
int rig_close(struct mlx5_rig *rig, char complaint[256]);

#endif
#endif
