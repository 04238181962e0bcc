/* SPDX-License-Identifier: Apache-2.0
 *
 * Queues whose doorbells kernels cannot reach: the host's thread polls a word of each and rings. */
#include "net/mlx5_nic.h"

#include <stdlib.h>

static void fill_line(const struct mlx5_provider *p, int peer, uint32_t index, struct relay_line *line)
{
    const struct mlx5_qp *qp = terni_mlx5_qp_of(p, peer, index);
    uint64_t number = (uint64_t)peer * p->config.num_queues + index;

    line->published = (const uint64_t *)(p->relays.host + number * MLX5_LINE);
    line->record = (uint32_t *)(p->nics[qp->nic].records.host + qp->record);
    line->doorbell = (uint64_t *)qp->doorbell->uar->reg_addr;
    line->qpn = qp->qpn;
    line->rung = 0;
}

enum tern_status terni_mlx5_relay_open(struct mlx5_provider *p)
{
    uint64_t most = (uint64_t)p->num_wanted * p->config.num_queues;
    uint32_t num = 0;

    p->lines = (struct relay_line *)calloc(most + 1, sizeof *p->lines);
    if (p->lines == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory to ring for %llu queues",
                         (unsigned long long)most);
    }
    for (int peer = 0; peer < p->config.num_ranks; peer++) {
        for (uint32_t q = 0; p->peers[peer].is_wanted && q < p->config.num_queues; q++) {
            if (p->nics[terni_mlx5_qp_of(p, peer, q)->nic].host_rings) {
                fill_line(p, peer, q, &p->lines[num++]);
            }
        }
    }
#ifndef __x86_64__
    if (num > 0) { /* what the relay does between record and register orders stores to memory alone there */
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "kernels cannot ring %u queues, and the host does it on x86-64 only", num);
    }
#endif
    return num > 0 ? terni_relay_open(p->lines, num, &p->relay) : TERN_OK;
}

void terni_mlx5_relay_close(struct mlx5_provider *p)
{
    terni_relay_close(p->relay);
    free(p->lines);
    p->relay = NULL;
    p->lines = NULL;
}
