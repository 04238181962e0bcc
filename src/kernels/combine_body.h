/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine in one domain: warps pull and add rows (combine_pull.h); if weights are wanted, the block's last
 * warp pulls them meanwhile (combine_weights.h). */
#ifndef TERN_COMBINE_BODY_H
#define TERN_COMBINE_BODY_H

#include "kernels/combine_weights.h"

TERN_DEVICE void combine_body(const struct combine_args *p, const int bulk)
{
    uint64_t begin = stamp_now();
    uint64_t epoch = op_epoch(&p->f);
    struct op_table table = op_table_at(shared_memory(), COMBINE_COLUMNS, p->f.num_ranks);
    if (bid() == 0 && !p->engine.run) { /* else the enter kernel has */
        op_announce(&p->f, epoch, MESSAGE_COLUMNS + 2 * COMBINE_COLUMNS);
    }
    int ok = op_await(&p->f, epoch, &table);
    op_take_own(&p->f, &table, p->own);
    if (ok) {
        if (bulk) {
            /* The peers' rows, seen through their ready signals, come before asynchronous reads. */
            fence_proxy_async_global();
        }
        struct puller s = puller_of(p, &table, epoch);
        if ((uint32_t)warp() >= p->num_pullers) {
            pull_weights(&s);
        } else if (bulk && s.map.num_targets <= 32) {
            ok = pull_bulk(&s, 1);
        } else if (bulk) {
            ok = pull_bulk(&s, PULL_MAX_GROUPS);
        } else {
            ok = pull_plain(&s);
        }
    }
    op_leave(&p->f, epoch, &table, ok, begin);
}

#endif
