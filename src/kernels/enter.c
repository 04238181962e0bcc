/* SPDX-License-Identifier: Apache-2.0
 *
 * The first half of an operation's frame alone. The kernel that follows on the stream works and leaves. */
#include "kernels/kernels.h"
#include "kernels/op.h"

TERN_KERNEL(enter, struct enter_args, p)
{
    uint64_t begin = stamp_now(), epoch = op_epoch(&p->f);
    op_announce(&p->f, epoch, p->num_values);
    /* Whoever gives up has recorded it; the kernel that follows sees the abort word. What the host has issued
     * in between runs all the same. */
    (void)op_await(&p->f, epoch, 0);
    if (tid() == 0) {
        stamp_block(&p->f, 0, epoch, begin);
    }
}
