/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of the kernel in which two NICs carry out operations (rc_kernel.c). */
#ifndef TERN_TEST_RC_KERNEL_H
#define TERN_TEST_RC_KERNEL_H

#include "net/rc_answer.h"
#include "net/rc_responder.h"

enum { TERN_THREADS_rc_pair = 32 };

/* Two blocks: block 0 is the NIC at home, block 1 the one at the target. */
struct rc_kernel_args {
    struct rc_requester *q;
    struct rc_responder *s;
    struct rc_memory *home, *away;
    struct rc_link *requests, *answers;
    uint32_t *syndromes; /* of every operation, in order */
    uint32_t num_ops;
    uint64_t *over;       /* set by block 0, ends block 1 */
    const uint64_t *flag; /* a word at the target that counts to num_flags: when it does, */
    uint64_t num_flags;
    const char *data; /* these are all data_byte */
    uint32_t data_bytes, data_byte;
    uint32_t *num_wrong; /* bytes that are not, as block 2 sees it */
};

void tern_cpu_rc_pair(const void *args);

#endif
