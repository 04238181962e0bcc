/* SPDX-License-Identifier: Apache-2.0
 *
 * Software NICs that speak packets (net/softnic_rc.h), connected to each other: the first lane of a warp is a
 * card. The engine copies by one thread; for rates there is kernels/softnic.c. */
#include "kernels/kernels.h"
#include "net/softnic_rc.h"

TERN_KERNEL(softnic_rc, struct softnic_rc_args, p)
{
    uint32_t i = (uint32_t)(bid() * nwarps() + warp());
    if (lane() != 0 || i >= p->num_cards || p->cards[i].num_qps == 0) {
        return;
    }
    while (ld_relaxed_sys_u64(p->stop) == 0) {
        uint64_t now = p->looks != NULL ? atom_add_relaxed_gpu_u64(p->looks, 1) : clock_ns();
        if (!softnic_card_work(&p->cards[i], now)) {
            spin();
        }
    }
}
