/* SPDX-License-Identifier: Apache-2.0
 *
 * The front end of a software NIC: what has been posted to a queue pair, and its next entry.
 *
 * The record is what counts, if there is one. The register says that there is work, and up to where at least:
 * a record that has not got there yet is stale and looked at again. Drivers that store the last entry's own
 * index in the register are understood, because the record is never behind that.
 *
 * With qp->watch every block is remembered as it was when it was fetched, and looked at again when its
 * completion is written: until then it is not software's to overwrite. */
#ifndef TERN_SOFTNIC_FRONT_H
#define TERN_SOFTNIC_FRONT_H

#include "net/softnic.h"

/* Blocks that are posted and not fetched. Without a record of what is sent the register is what counts; to
 * begin with it is nobody's. */
TERN_DEVICE uint32_t softnic_look(struct softnic_qp *qp)
{
    uint64_t bell;
    uint32_t told, ahead;
    if (qp->has_no_record) {
        /* Pairs with queue_tell's store of it: the entries before can be read. */
        bell = ld_acquire_sys_u64(qp->doorbell);
        told = doorbell_qpn(bell) == qp->qpn ? doorbell_idx(bell) : (uint32_t)qp->posted;
    } else {
        /* Both at once: each is a way to memory and back. */
        bell = ld_relaxed_sys_u64(qp->doorbell);
        /* Pairs with queue_tell's store of the record: the entries before it can be read. The register alone
         * is not relied on for that. */
        told = doorbell_record_idx(ld_acquire_sys_u32(qp->record + DOORBELL_RECORD_SEND));
    }
    if (bell != qp->bell || doorbell_idx(bell) != (qp->posted & 0xffffu)) {
        qp->num_wrong_bells += bell != qp->bell && doorbell_qpn(bell) != qp->qpn;
        qp->bell = bell;
        ahead = (told - (uint32_t)qp->posted) & 0xffffu;
        if (ahead <= softnic_blocks(qp)) { /* else it went backwards */
            qp->posted += ahead;
        }
        qp->num_overruns += qp->posted - qp->reported > softnic_blocks(qp);
    }
    return (uint32_t)(qp->posted - qp->fetched);
}

TERN_DEVICE uint64_t softnic_fingerprint(const struct wqe_source *from, uint32_t block)
{
    uint64_t h = 0x9e3779b97f4a7c15ull;
    TERN_ROLLED
    for (uint32_t k = 0; k < WQE_BLOCK_SEGMENTS; k++) {
        struct vec16 v = wqe_load(from, block * WQE_BLOCK_SEGMENTS + k);
        h = (h ^ v.w[0] ^ (uint64_t)v.w[1] << 32) * 0xbf58476d1ce4e5b9ull;
        h = (h ^ h >> 29 ^ v.w[2] ^ (uint64_t)v.w[3] << 32) * 0x94d049bb133111ebull;
    }
    return h ^ h >> 31;
}

TERN_DEVICE struct wqe_source softnic_source(const struct softnic_qp *qp, uint64_t idx)
{
    struct wqe_source from;
    from.ring = qp->ring;
    from.qpn = qp->qpn;
    from.idx = (uint32_t)idx;
    from.posted = (uint32_t)(qp->posted - idx);
    return from;
}

TERN_DEVICE void softnic_remember(struct softnic_qp *qp, uint64_t idx, uint32_t blocks)
{
    struct wqe_source from = softnic_source(qp, idx);
    TERN_ROLLED
    for (uint32_t i = 0; qp->watch != NULL && i < blocks; i++) {
        qp->watch[(idx + i) & (softnic_blocks(qp) - 1)] = softnic_fingerprint(&from, i);
    }
}

/* Slots from the last completion to `end` are about to become software's. */
TERN_DEVICE void softnic_compare(struct softnic_qp *qp, uint64_t end)
{
    struct wqe_source from = softnic_source(qp, qp->reported);
    uint32_t blocks = (uint32_t)(end - qp->reported);
    TERN_ROLLED
    for (uint32_t i = 0; qp->watch != NULL && i < blocks; i++) {
        qp->num_overwritten +=
            qp->watch[(qp->reported + i) & (softnic_blocks(qp) - 1)] != softnic_fingerprint(&from, i);
    }
}

/* What the entry at idx says, which is not before those that are taken. SYNDROME_NONE and the operation, or
 * why not. `ring` is the queue pair's, or has copies of the entry's first two blocks where that ring would
 * have them. */
TERN_DEVICE uint32_t softnic_read(const struct softnic_qp *qp, struct wqe_ring ring, uint64_t idx,
                                  struct wqe_op *op, struct nic_refusal *r)
{
    struct wqe_source from = softnic_source(qp, idx);
    from.ring = ring;
    from.posted = from.posted < softnic_blocks(qp) ? from.posted : softnic_blocks(qp);
    return wqe_decode(&from, op, r);
}

/* Takes the next entry, of which softnic_look saw a block, with what softnic_read said of it. If that was no
 * operation, op->opcode and op->blocks are what the entry claims, so that those behind it can be flushed. */
TERN_DEVICE uint32_t softnic_take_entry(struct softnic_qp *qp, struct wqe_op *op, uint32_t syndrome)
{
    uint64_t posted = qp->posted - qp->fetched;
    posted = posted < softnic_blocks(qp) ? posted : softnic_blocks(qp);
    if (op->blocks == 0 || op->blocks > posted) {
        op->blocks = 1;
    }
    softnic_remember(qp, qp->fetched, op->blocks);
    qp->fetched += op->blocks;
    return qp->state == SOFTNIC_ERROR ? (uint32_t)SYNDROME_FLUSHED : syndrome;
}

#endif
