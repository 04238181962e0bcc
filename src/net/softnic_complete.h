/* SPDX-License-Identifier: Apache-2.0
 *
 * The back end of a software NIC: completions, in the order of the entries.
 *
 * A completion may be held back for a while, as interrupt moderation and busy buses do. In a ring all are
 * written in the end; in a collapsed queue one that is overtaken is never seen, which is why software may not
 * count completions there.
 *
 * After the first error the queue pair is in error: every entry that follows completes as flushed, whether it
 * asked for a completion or not. */
#ifndef TERN_SOFTNIC_COMPLETE_H
#define TERN_SOFTNIC_COMPLETE_H

#include "net/softnic_front.h"

TERN_DEVICE void softnic_store_cqe(uint32_t *cqe, const struct cqe_args *args)
{
    uint32_t words[CQE_WORDS];
    cqe_fill(words, args);
    /* Relaxed: a thread that polls may read them while a later completion overwrites them. */
    TERN_UNROLL
    for (int i = 0; i < CQE_WORD_TAIL; i++) {
        st_relaxed_sys_u32(cqe + i, words[i]);
    }
    /* Pairs with queue_poll's acquire: all that the NIC read and wrote for these entries lies before. */
    st_release_sys_u32(cqe + CQE_WORD_TAIL, cqe_tail(args));
}

TERN_DEVICE void softnic_write_cqe(struct softnic_qp *qp, const struct softnic_done *d)
{
    uint32_t *cqe = qp->cqes;
    struct cqe_args args;
    args.opcode = d->syndrome != SYNDROME_NONE ? CQE_REQUESTER_ERROR : CQE_REQUESTER;
    args.owner = 0;
    args.idx = (uint32_t)d->idx;
    args.wqe_opcode = d->wqe_opcode;
    args.qpn = qp->qpn;
    args.remote_qpn = args.user_index = args.imm = 0;
    args.bytes = d->bytes;
    args.syndrome = d->syndrome;
    args.vendor_syndrome = d->vendor_syndrome;
    if (qp->num_cqes != 0) {
        cqe += (qp->num_done & (qp->num_cqes - 1u)) * CQE_WORDS;
        args.owner = (qp->num_done & qp->num_cqes) != 0;
    }
    softnic_compare(qp, d->idx + d->blocks);
    softnic_store_cqe(cqe, &args);
    qp->reported = d->idx + d->blocks;
    qp->num_done++;
}

/* The completion that was held back, if one was. */
TERN_DEVICE void softnic_release(struct softnic_qp *qp)
{
    if (qp->is_held) {
        softnic_write_cqe(qp, &qp->held);
        qp->is_held = 0;
    }
}

/* What became of `op`, the entry at `idx`. `hold`: not before the next look at this queue pair. */
TERN_DEVICE void softnic_complete(struct softnic_qp *qp, uint64_t idx, const struct wqe_op *op,
                                  const struct nic_refusal *r, uint32_t syndrome, int hold)
{
    struct softnic_done d;
    d.idx = idx;
    d.blocks = op->blocks;
    d.wqe_opcode = op->opcode;
    d.bytes = op->bytes;
    d.syndrome = syndrome;
    d.vendor_syndrome = syndrome == SYNDROME_FLUSHED ? (uint32_t)REFUSED_NOTHING : r->reason;
    if (!wqe_op_completes(op, syndrome)) {
        return;
    }
    if (syndrome != SYNDROME_NONE && qp->state == SOFTNIC_READY) {
        qp->state = SOFTNIC_ERROR;
        qp->refusal = *r;
        qp->refusal.syndrome = syndrome;
    }
    if (qp->num_cqes != 0) {
        softnic_release(qp); /* in a ring none is lost */
    }
    qp->is_held = 0;
    if (hold) {
        qp->held = d;
        qp->is_held = 1;
    } else {
        softnic_write_cqe(qp, &d);
    }
}

#endif
