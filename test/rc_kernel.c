/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine in a kernel: one thread of block 0 is the requester's NIC, one of block 1 the responder's, and
 * one of block 2 a kernel at the target that waits for a word and then reads what it announces. Where there
 * is nvcc, make check compiles it for GPUs too, and test/spills.sh looks at what became of it. */
#include "rc_kernel.h"

TERN_DEVICE void home_nic(const struct rc_kernel_args *p)
{
    struct rc_completion done;
    uint64_t now = 0;
    while (p->q->retired < p->num_ops) {
        struct rc_packet *packet = rc_link_peek(p->answers, ++now);
        if (packet != NULL) {
            rc_requester_take(p->q, p->home, packet, now);
            rc_link_release(p->answers);
        }
        rc_requester_work(p->q, p->home, p->requests, now);
        if (rc_requester_peek(p->q, &done)) {
            p->syndromes[p->q->retired] = done.syndrome;
            rc_requester_retire(p->q);
        }
        spin();
    }
    st_release_sys_u64(p->over, 1); /* pairs with block 1's acquire */
}

TERN_DEVICE void away_nic(const struct rc_kernel_args *p)
{
    uint64_t now = 0;
    while (ld_acquire_sys_u64(p->over) == 0) { /* pairs with block 0's release */
        struct rc_packet *packet = rc_link_peek(p->requests, ++now);
        rc_responder_work(p->s, p->away, p->answers, now);
        if (packet != NULL && rc_responder_take(p->s, p->away, packet, p->answers, now)) {
            rc_link_release(p->requests);
        }
        rc_memory_work(p->away);
        spin();
    }
}

TERN_DEVICE void observer(const struct rc_kernel_args *p)
{
    uint32_t wrong = 0;
    /* Pairs with the NIC's write of the word, which comes after the data's. */
    while (ld_acquire_sys_u64(p->flag) != p->num_flags) {
        spin();
    }
    for (uint32_t i = 0; i < p->data_bytes; i++) {
        wrong += (unsigned char)p->data[i] != p->data_byte;
    }
    *p->num_wrong = wrong;
}

TERN_KERNEL(rc_pair, struct rc_kernel_args, p)
{
    if (tid() == 0) {
        if (bid() == 0) {
            home_nic(p);
        } else if (bid() == 1) {
            away_nic(p);
        } else {
            observer(p);
        }
    }
}
