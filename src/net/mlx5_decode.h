/* SPDX-License-Identifier: Apache-2.0
 *
 * The front of a software NIC: the bytes of a work queue entry in, an operation or a refusal out.
 *
 * It takes what the builders of mlx5_wqe.h write, and what differs from that in any bit that is not payload
 * is either another operation or refused. A NIC of silicon is more lenient: it ignores reserved bits, takes
 * other operations and several data segments. Here such an entry is the mistake of whoever built it, and a
 * test is to see it.
 *
 * Every segment is loaded once, so that what was checked is what is used even if the entry changes meanwhile.
 * Nothing is read beyond the blocks that are posted, or outside the ring. The text is dialect: a NIC that is
 * a kernel of a GPU decodes with it too. */
#ifndef TERN_MLX5_DECODE_H
#define TERN_MLX5_DECODE_H

#include "net/mlx5_wqe.h"
#include "net/nic_refusal.h"

/* The next entry of a queue pair. */
struct wqe_source {
    struct wqe_ring ring;
    uint32_t qpn;
    uint32_t idx;
    uint32_t posted; /* blocks from idx to the producer's index */
};

struct wqe_op {
    uint32_t opcode;
    uint32_t fence;     /* WQE_FM_* */
    uint32_t complete;  /* WQE_CE_* */
    uint32_t solicited; /* 0 or 1 */
    uint32_t segments, blocks;
    uint32_t imm;        /* WQE_RDMA_WRITE_IMM */
    uint32_t rkey, lkey; /* in host order */
    uint64_t remote, local;
    uint32_t bytes;     /* that move */
    uint32_t is_inline; /* the payload is in the entry: wqe_inline_payload */
    struct wqe_amo amo; /* atomics */
};

/* Whether the operation has a completion queue entry: errors always have. */
TERN_DEVICE int wqe_op_completes(const struct wqe_op *op, uint32_t syndrome)
{
    return syndrome != 0 || op->complete == WQE_CE_ALWAYS || op->complete == WQE_CE_EVENT;
}

/* Byte i of an inline payload. */
TERN_DEVICE const char *wqe_inline_payload(const struct wqe_source *from, uint32_t i)
{
    return wqe_byte(&from->ring, from->idx, 2 * WQE_SEGMENT_BYTES + WQE_INLINE_HEADER_BYTES + i);
}

TERN_DEVICE struct vec16 wqe_load(const struct wqe_source *from, uint32_t k)
{
    return ld_vec16(wqe_segment(&from->ring, from->idx, k));
}

TERN_DEVICE int wqe_opcode_is_atomic(uint32_t opcode)
{
    return opcode == WQE_ATOMIC_CS || opcode == WQE_ATOMIC_FA || wqe_atomic_is_masked(opcode);
}

TERN_DEVICE int wqe_opcode_is_rdma(uint32_t opcode)
{
    return opcode == WQE_RDMA_WRITE || opcode == WQE_RDMA_WRITE_IMM || opcode == WQE_RDMA_READ;
}

/* First word of the control segment. */
TERN_DEVICE uint32_t decode_operation(const struct wqe_source *from, uint32_t word, struct wqe_op *op,
                                      struct nic_refusal *r)
{
    uint32_t opmod = word >> 24, idx = word >> 8 & 0xffffu;
    op->opcode = word & 0xffu;
    if (!wqe_opcode_is_rdma(op->opcode) && !wqe_opcode_is_atomic(op->opcode) && op->opcode != WQE_NOP &&
        op->opcode != WQE_DUMP) {
        return nic_refuse(r, REFUSED_OPCODE, op->opcode, word);
    }
    if (wqe_atomic_is_masked(op->opcode) ? opmod != WQE_OPMOD_MASKED_4 && opmod != WQE_OPMOD_MASKED_8
                                         : opmod != 0) {
        return nic_refuse(r, REFUSED_OPMOD, opmod, op->opcode);
    }
    if (idx != (from->idx & 0xffffu)) {
        return nic_refuse(r, REFUSED_INDEX, idx, from->idx & 0xffffu);
    }
    if (wqe_opcode_is_atomic(op->opcode)) {
        op->amo.opcode = op->opcode;
        op->amo.bytes = opmod == WQE_OPMOD_MASKED_4 ? 4 : 8;
    }
    return SYNDROME_NONE;
}

/* Signature, stream and fm_ce_se, as the third word of the control segment has them. */
TERN_DEVICE uint32_t decode_flags(uint32_t word, struct wqe_op *op, struct nic_refusal *r)
{
    uint32_t reserved = word & 0xffffff11u;
    if (reserved != 0) {
        return nic_refuse(r, REFUSED_RESERVED, reserved, 2);
    }
    op->fence = word & 7u << 5;
    op->complete = word & 3u << 2;
    op->solicited = (word & WQE_SOLICITED) != 0;
    if (op->fence > WQE_FM_FENCE_SMALL) {
        return nic_refuse(r, REFUSED_FENCE, op->fence >> 5, WQE_FM_FENCE_SMALL >> 5);
    }
    return SYNDROME_NONE;
}

TERN_DEVICE uint32_t decode_control(const struct wqe_source *from, struct wqe_op *op, struct nic_refusal *r)
{
    uint32_t ring_blocks = wqe_ring_blocks(&from->ring), word, syndrome;
    uint32_t posted = from->posted < ring_blocks ? from->posted : ring_blocks;
    struct vec16 control;
    if (posted == 0) {
        return nic_refuse(r, REFUSED_NOT_POSTED, 1, 0);
    }
    control = wqe_load(from, 0);
    syndrome = decode_operation(from, from_be32(control.w[0]), op, r);
    if (syndrome != SYNDROME_NONE) {
        return syndrome;
    }
    word = from_be32(control.w[1]);
    if (word >> 8 != from->qpn) {
        return nic_refuse(r, REFUSED_QPN, word >> 8, from->qpn);
    }
    if ((word & 0xc0u) != 0) {
        return nic_refuse(r, REFUSED_RESERVED, word & 0xc0u, 1);
    }
    op->segments = word & WQE_MAX_SEGMENTS;
    op->blocks = wqe_blocks(op->segments);
    if (op->blocks > posted) {
        return nic_refuse(r, REFUSED_NOT_POSTED, op->blocks, posted);
    }
    syndrome = decode_flags(from_be32(control.w[2]), op, r);
    if (syndrome != SYNDROME_NONE) {
        return syndrome;
    }
    op->imm = from_be32(control.w[3]);
    if (op->imm != 0 && op->opcode != WQE_RDMA_WRITE_IMM) {
        return nic_refuse(r, REFUSED_RESERVED, op->imm, 3);
    }
    return SYNDROME_NONE;
}

TERN_DEVICE uint32_t decode_remote(const struct wqe_source *from, struct wqe_op *op, struct nic_refusal *r)
{
    struct vec16 remote = wqe_load(from, 1);
    op->remote = from_be64(remote.w[0], remote.w[1]);
    op->rkey = from_be32(remote.w[2]);
    return remote.w[3] == 0 ? SYNDROME_NONE : nic_refuse(r, REFUSED_RESERVED, from_be32(remote.w[3]), 7);
}

/* Segment k: where data is, or that it follows. */
TERN_DEVICE uint32_t decode_data(const struct wqe_source *from, uint32_t k, struct wqe_op *op,
                                 struct nic_refusal *r)
{
    struct vec16 data = wqe_load(from, k);
    uint32_t word = from_be32(data.w[0]);
    op->is_inline = (word & TERN_WQE_INLINE) != 0;
    op->bytes = word & ~TERN_WQE_INLINE;
    if (op->is_inline && op->opcode != WQE_RDMA_WRITE) {
        return nic_refuse(r, REFUSED_INLINE, word, op->opcode);
    }
    if (op->bytes == 0) {
        return nic_refuse(r, REFUSED_NO_BYTES, word, 0);
    }
    if (op->bytes > WQE_MAX_BYTES) {
        return nic_refuse(r, REFUSED_LONG, op->bytes, WQE_MAX_BYTES);
    }
    if (!op->is_inline) {
        op->lkey = from_be32(data.w[1]);
        op->local = from_be64(data.w[2], data.w[3]);
    }
    return SYNDROME_NONE;
}

TERN_DEVICE uint32_t decode_segments(const struct wqe_op *op, uint32_t wanted, struct nic_refusal *r)
{
    return op->segments == wanted ? SYNDROME_NONE : nic_refuse(r, REFUSED_DS, op->segments, wanted);
}

TERN_DEVICE uint32_t decode_rdma(const struct wqe_source *from, struct wqe_op *op, struct nic_refusal *r)
{
    uint32_t syndrome;
    if (op->segments < 2) {
        return decode_segments(op, 3, r);
    }
    syndrome = decode_remote(from, op, r);
    if (syndrome != SYNDROME_NONE || op->segments == 2) {
        return syndrome;
    }
    syndrome = decode_data(from, 2, op, r);
    if (syndrome != SYNDROME_NONE) {
        return syndrome;
    }
    return decode_segments(op, op->is_inline ? wqe_inline_segments(op->bytes) : 3, r);
}

TERN_DEVICE uint32_t decode_operands(const struct wqe_source *from, struct wqe_amo *a, struct nic_refusal *r)
{
    struct vec16 first = wqe_load(from, 2);
    uint64_t second;
    if (a->bytes == 4) {
        a->swap_add = from_be32(first.w[0]);
        second = from_be32(first.w[1]);
    } else {
        a->swap_add = from_be64(first.w[0], first.w[1]);
        second = from_be64(first.w[2], first.w[3]);
    }
    if (a->opcode == WQE_MASKED_FA) {
        a->mask = second;
    } else if (wqe_atomic_is_cs(a->opcode)) {
        a->compare = second;
    } else if (second != 0) {
        return nic_refuse(r, REFUSED_RESERVED, second, 10);
    }
    if (a->bytes == 4 && a->opcode == WQE_MASKED_CS) {
        a->mask = from_be32(first.w[2]);
        a->compare_mask = from_be32(first.w[3]);
    } else if (a->bytes == 4 && (first.w[2] | first.w[3]) != 0) {
        return nic_refuse(r, REFUSED_RESERVED, from_be64(first.w[2], first.w[3]), 10);
    } else if (a->opcode == WQE_MASKED_CS) {
        struct vec16 masks = wqe_load(from, 3);
        a->mask = from_be64(masks.w[0], masks.w[1]);
        a->compare_mask = from_be64(masks.w[2], masks.w[3]);
    }
    return SYNDROME_NONE;
}

TERN_DEVICE uint32_t decode_atomic(const struct wqe_source *from, struct wqe_op *op, struct nic_refusal *r)
{
    uint32_t segments = wqe_atomic_segments(op->opcode, op->amo.bytes), syndrome;
    syndrome = decode_segments(op, segments, r);
    if (syndrome == SYNDROME_NONE) {
        syndrome = decode_remote(from, op, r);
    }
    if (syndrome == SYNDROME_NONE) {
        syndrome = decode_operands(from, &op->amo, r);
    }
    if (syndrome == SYNDROME_NONE) {
        syndrome = decode_data(from, segments - 1, op, r);
    }
    if (syndrome == SYNDROME_NONE && op->bytes != op->amo.bytes) {
        syndrome = nic_refuse(r, REFUSED_OPERAND, op->bytes, op->amo.bytes);
    }
    return syndrome;
}

/* SYNDROME_NONE and the operation, whose unused fields are zero. Or the syndrome, why in *r, and in *op
 * nothing to rely on but the opcode, which the completion names. */
TERN_DEVICE uint32_t wqe_decode(const struct wqe_source *from, struct wqe_op *op, struct nic_refusal *r)
{
    const struct wqe_op nothing = {0};
    uint32_t syndrome;
    *op = nothing;
    nic_refuse(r, REFUSED_NOTHING, 0, 0);
    syndrome = decode_control(from, op, r);
    if (syndrome != SYNDROME_NONE) {
        return syndrome;
    }
    switch (op->opcode) {
    case WQE_NOP:
        /* Drivers write one or two segments; the second holds nothing. */
        return op->segments == 2 ? SYNDROME_NONE : decode_segments(op, 1, r);
    case WQE_DUMP:
        syndrome = decode_segments(op, 2, r);
        return syndrome != SYNDROME_NONE ? syndrome : decode_data(from, 1, op, r);
    case WQE_RDMA_WRITE:
    case WQE_RDMA_WRITE_IMM:
    case WQE_RDMA_READ:
        return decode_rdma(from, op, r);
    default:
        return decode_atomic(from, op, r);
    }
}

#endif
