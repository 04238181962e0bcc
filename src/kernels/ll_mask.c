/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks in the order of a stream: one rank, or all, is masked, or taken in again, or the masks are told. */
#include "kernels/kernels.h"
#include "kernels/ll_args.h"
#include "simt/simt.h"

TERN_KERNEL(ll_mask, struct ll_mask_args, p)
{
    uint64_t *heard = (uint64_t *)(p->own + p->masks.heard);
    for (int r = tid(); r < p->num_ranks; r += nthr()) {
        struct ll_peer *peer = &p->masks.peers[r];
        if (p->action == LL_MASK_GET) {
            p->out[r] = peer->known || ld_relaxed_sys_u64(&heard[r]) ? 1 : 0;
        } else if (p->rank == -1 || p->rank == r) {
            uint32_t set = p->action == LL_MASK_SET;
            peer->known = set;
            peer->told = set; /* the host has asked for it itself */
            peer->knows = 0;  /* of a mask that is heard of later */
            if (!set) {
                st_relaxed_sys_u64(&heard[r], 0);
                st_release_sys_u64(&p->masks.news[r].written, 0); /* pairs with read_record in ep_fault.c */
            }
            st_release_sys_u64(&p->masks.view[r], set); /* pairs with tern_ll_mask_peek */
        }
    }
}
