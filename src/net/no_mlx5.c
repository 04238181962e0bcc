/* SPDX-License-Identifier: Apache-2.0
 *
 * The place of the mlx5 provider in a build without the headers of rdma-core. */
#include "net/nic_provider.h"

enum tern_status terni_nic_open_mlx5(const struct nic_config *config, struct nic_provider *p)
{
    (void)config;
    (void)p;
    return TERN_FAIL(TERN_UNSUPPORTED,
                     "this build of Tern cannot use RDMA NICs: it was made without rdma-core");
}

enum tern_status terni_mlx5_probe(const struct mlx5_verbs *verbs, const char *name, int port)
{
    (void)verbs;
    (void)port;
    return TERN_FAIL(TERN_UNSUPPORTED, "%s cannot be used: this build of Tern was made without rdma-core",
                     name);
}

const char *terni_mlx5_describe(void)
{
    return "not in this build (no infiniband/mlx5dv.h when it was made)";
}
