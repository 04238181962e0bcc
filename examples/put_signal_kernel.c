/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel of 06_put_signal.c, in the dialect: a C compiler makes of it what the cpu machine runs, nvcc
 * what GPUs run. In CUDA C++ it would read
 *
 *     __global__ void ring(const __grid_constant__ struct ring_args p) { ... __syncthreads_or(...) ... }
 *
 * with the same calls of tern_device.h. */
#define TERN_DIALECT
#include "tern/tern_device.h"

#include "put_signal.h"

enum { TERN_THREADS_ring = 256 }; /* the most that a block is launched with */

TERN_KERNEL(ring, struct ring_args, p)
{
    int next = (p->net.rank + 1) % p->net.num_ranks;
    int status = tern_put_signal_block(&p->net, next, 0, p->inbox, p->row, NUMBERS * sizeof(float), p->flag,
                                       8, TERN_SIGNAL_SET, p->step);
    if (status == TERN_OK && tid() == 0) {
        status = tern_wait(&p->net, p->flag, TERN_COMPARE_GE, p->step, 8, 0);
    }
    /* What thread 0 has seen come, all threads see after a barrier of the block. */
    int failed = sync_block_or(status != TERN_OK);
    for (int i = tid(); i < NUMBERS && !failed; i += nthr()) {
        p->sum[i] = p->row[i] + p->inbox[i];
    }
    if (tid() == 0) {
        *p->status = status;
    }
}
