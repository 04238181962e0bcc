/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine of rows that their ranks push, by asynchronous bulk copies (combine_push.h). */
#include "kernels/combine_push.h"
#include "kernels/kernels.h"

/* A block that pushes: pushers, the teller, and warps that pull weights for all blocks, if wanted. */
TERN_DEVICE void push_block(const struct combine_push_args *a, struct pusher *q, struct puller *s)
{
    uint32_t others = (uint32_t)nwarps() - a->num_pushers - 1;
    uint32_t w = (uint32_t)warp();
    if (w < a->num_pushers) {
        if (lane() == 0) {
            push_rows(q);
        }
        sync_warp();
    } else if (w == a->num_pushers) {
        push_tell(a, s->epoch);
    } else if (a->c.out_weights) {
        s->block = push_blocks_before(a, (uint32_t)bid()) * others + w - a->num_pushers - 1;
        s->blocks = a->push_blocks * others;
        pull_weights(s);
    }
}

TERN_DEVICE void combine_push_body(const struct combine_push_args *a)
{
    const struct combine_args *p = &a->c;
    uint64_t begin = stamp_now(), epoch = op_epoch(&p->f);
    struct op_table table = op_table_at(shared_memory(), COMBINE_COLUMNS, p->f.num_ranks);
    struct pusher q = {0};
    int pushes = push_is_mine(a);
    if (bid() == 0) {
        op_announce(&p->f, epoch, MESSAGE_COLUMNS + 2 * COMBINE_COLUMNS);
    }
    if (pushes && lane() == 0 && (uint32_t)warp() < a->num_pushers) {
        q = pusher_of(a);
        push_box_init(a);
    }
    int ok = op_await(&p->f, epoch, &table);
    op_take_own(&p->f, &table, p->own);
    if (ok) {
        /* The peers' reads of what staging held before, seen through their ready signals, come before
         * asynchronous writes there. */
        fence_proxy_async_global();
        struct puller s = puller_of(p, &table, epoch);
        s.push = a;
        s.block = (uint32_t)bid() - push_blocks_before(a, (uint32_t)bid());
        s.blocks = (uint32_t)nblk() - a->push_blocks;
        if (pushes) {
            push_block(a, &q, &s);
        } else if ((uint32_t)warp() < p->num_pullers) {
            ok = pull_bulk(&s, 1);
        }
    }
    op_leave(&p->f, epoch, &table, ok, begin);
}

TERN_KERNEL(combine_push_bulk, struct combine_push_args, a)
{
    if (TERN_HAS_BULK) { /* elsewhere it is never launched, and need not be compiled */
        combine_push_body(a);
    }
}
