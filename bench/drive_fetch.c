/* SPDX-License-Identifier: Apache-2.0
 *
 * Atomics that bring the old value home, one after the other, by one thread of rank 0 on a word of rank 1:
 * there and back, each after the one before it has come home. */
#define TERN_DIALECT
#include "tern/tern_device.h"

#include "drive_args.h"
#include "kernels/kernels.h"

TERN_KERNEL(drive_fetch, struct drive_args, p)
{
    uint64_t old = 0, first_ns = 0;
    int status = TERN_OK;
    if (tid() != 0) {
        return;
    }
    /* The width is never 0, which the compiler does not know: each round ends when the old value is home. */
    for (int64_t i = 0; i <= p->rounds && status == TERN_OK && (old | p->width) != 0; i++) {
        status = tern_atomic_fetch(&p->net, 1, 0, &p->words[DRIVE_WORD], p->amo,
                                   drive_operand(p->seed, i, old), drive_compare(i, old), p->width, &old);
        if (p->log) {
            p->log[i] = old;
        }
        if (i == 0) {
            first_ns = clock_ns();
        }
    }
    st_relaxed_sys_u64(&p->result[0], (uint64_t)(uint32_t)-status);
    st_relaxed_sys_u64(&p->result[1], clock_ns() - first_ns);
}
