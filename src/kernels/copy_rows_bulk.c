/* SPDX-License-Identifier: Apache-2.0
 *
 * The same by bulk copies: lane 0 of each warp brings pieces through the warp's ring of stages in shared
 * memory, so that a processor has as much on its way as its warps have stages. Pieces of all columns go to
 * the warps by turns, and all lanes look for the next one. Columns that bulk copies cannot take go by loads
 * and stores. */
#include "kernels/bulk_ring.h"
#include "kernels/copy_runs.h"
#include "kernels/kernels.h"

/* All lanes of each warp. */
TERN_DEVICE void copy_bulk(const struct copy_args *p)
{
    struct copy_walk walk = copy_walk_of(p, p->stage_bytes, COPY_WHOLE);
    struct copy_one one;
    struct bulk_ring ring = {0};
    if (lane() == 0) {
        ring = bulk_ring_of(shared_memory() + (uint32_t)warp() * p->warp_bytes, COPY_STAGES, p->stage_bytes);
    }
    while (copy_walk_take(&walk, &one)) {
        if (lane() == 0) {
            bulk_ring_put(&ring, one.dst, one.src, one.bytes);
        }
        sync_warp();
    }
    if (lane() == 0) {
        bulk_ring_finish(&ring);
    }
}

TERN_DEVICE void copy_all(const struct copy_args *p)
{
    copy_columns_plain(p, COPY_OTHERS);
    copy_bulk(p);
    sync_warp();
    sync_block();
    if (tid() == 0 && p->ticket) {
        /* Pairs with wait_word in terni_ep_wait, as op_tell_host's. */
        st_release_sys_u64(p->latest + bid(), p->ticket);
    }
}

TERN_KERNEL(copy_rows_bulk, struct copy_args, p)
{
    if (TERN_HAS_BULK) { /* elsewhere it is never launched, and need not be compiled */
        copy_all(p);
    }
}
