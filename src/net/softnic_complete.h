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

/* What became of `op`, the entry at `idx`, is held. 0: it has no completion. */
TERN_DEVICE int softnic_hold(struct softnic_qp *qp, uint64_t idx, const struct wqe_op *op,
                             const struct nic_refusal *r, uint32_t syndrome)
{
    if (!wqe_op_completes(op, syndrome)) {
        return 0;
    }
    if (syndrome != SYNDROME_NONE && qp->state == SOFTNIC_READY) {
        qp->state = SOFTNIC_ERROR;
        qp->refusal = *r;
        qp->refusal.syndrome = syndrome;
    }
    qp->held.idx = idx;
    qp->held.blocks = op->blocks;
    qp->held.wqe_opcode = op->opcode;
    qp->held.bytes = op->bytes;
    qp->held.syndrome = syndrome;
    qp->held.vendor_syndrome = syndrome == SYNDROME_FLUSHED ? (uint32_t)REFUSED_NOTHING : r->reason;
    qp->is_held = 1;
    return 1;
}

/* Whether the one that is held may not give its place to another: in a ring none is lost, and no error
 * anywhere. */
TERN_DEVICE int softnic_must_release(const struct softnic_qp *qp)
{
    return qp->is_held && (qp->num_cqes != 0 || qp->held.syndrome != SYNDROME_NONE);
}

#endif
