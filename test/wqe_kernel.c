/* SPDX-License-Identifier: Apache-2.0
 *
 * The formats in kernels: one writes entries with every builder and rings, one is a NIC that decodes them,
 * looks a key up and completes. mlx5_kernel_test runs both on the cpu machine; where there is nvcc, make
 * check compiles them for GPUs too, and test/spills.sh looks at what became of them. */
#include "wqe_post.h"

TERN_KERNEL(wqe_post, struct wqe_kernel_args, p)
{
    struct wqe_ring ring = wqe_ring_of(p->ring, p->num_blocks);
    for (int i = 0; i < WQE_CASES; i++) {
        const struct wqe_case *c = &p->cases[i];
        if (wqe_case_is_warp(&c->op)) {
            wqe_case_post_lane(&ring, c, (uint32_t)lane());
        } else if (lane() == i) {
            wqe_case_post(&ring, c);
        }
    }
    if (tid() == 0) {
        const struct wqe_case *last = &p->cases[WQE_CASES - 1];
        p->record[DOORBELL_RECORD_SEND] = doorbell_record(last->idx + last->op.blocks);
        *p->doorbell = doorbell_value(last->qpn, last->idx + last->op.blocks);
    }
}

/* A lane an entry. */
TERN_KERNEL(wqe_take, struct wqe_kernel_args, p)
{
    if (lane() < WQE_CASES) {
        const struct wqe_case *c = &p->cases[lane()];
        struct wqe_taken *out = &p->taken[lane()];
        struct wqe_source from;
        struct wqe_op op;
        struct nic_refusal refusal;
        struct key_request request;
        struct key_memory memory;
        struct cqe_args done;
        from.ring = wqe_ring_of(p->ring, p->num_blocks);
        from.qpn = doorbell_qpn(*p->doorbell);
        from.idx = c->idx;
        from.posted = (doorbell_record_idx(p->record[DOORBELL_RECORD_SEND]) - c->idx) & 0xffffu;
        wqe_decode(&from, &op, &refusal);
        request.use = KEY_USE_WRITE;
        request.key = op.rkey;
        request.pd = 1;
        request.addr = op.remote;
        request.bytes = op.bytes;
        key_lookup(p->keys, &request, &memory, &refusal);
        done.opcode = CQE_REQUESTER_ERROR;
        done.owner = 1;
        done.idx = c->idx;
        done.wqe_opcode = op.opcode;
        done.qpn = from.qpn;
        done.remote_qpn = done.user_index = done.imm = done.bytes = 0;
        done.syndrome = refusal.syndrome;
        done.vendor_syndrome = refusal.reason;
        cqe_fill(out->completion, &done);
        out->completion[CQE_WORD_TAIL] = cqe_tail(&done);
        out->op = op;
        out->refusal = refusal;
        out->memory = memory;
    }
}
