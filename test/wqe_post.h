/* SPDX-License-Identifier: Apache-2.0
 *
 * From the description of an operation to a call of its builder, in the dialect: the tests of the formats do
 * it on the host (wqe_rig.c) and in a kernel (wqe_kernel.c). Also the kernels' arguments. */
#ifndef TERN_TEST_WQE_POST_H
#define TERN_TEST_WQE_POST_H

#include "net/key_table.h"
#include "net/mlx5_decode.h"

struct wqe_case {
    struct wqe_op op; /* what the entry is to say */
    unsigned char payload[256];
    uint32_t qpn, idx;
};

enum { WQE_CASES = 16, TERN_THREADS_wqe_post = 32, TERN_THREADS_wqe_take = 32 };

/* What wqe_take made of a case. */
struct wqe_taken {
    struct wqe_op op;
    struct nic_refusal refusal;
    struct key_memory memory; /* of rkey and remote, for a WRITE */
    uint32_t completion[CQE_WORDS];
};

struct wqe_kernel_args {
    void *ring;
    uint32_t num_blocks;
    const struct wqe_case *cases; /* WQE_CASES */
    struct wqe_taken *taken;
    const struct key_table *keys;
    uint32_t *record; /* two words */
    uint64_t *doorbell;
};

void tern_cpu_wqe_post(const void *args);
void tern_cpu_wqe_take(const void *args);

TERN_DEVICE uint32_t wqe_case_flags(const struct wqe_op *op)
{
    return op->fence | op->complete | (op->solicited ? WQE_SOLICITED : 0u);
}

/* Little-endian, `count` of at most 8 bytes; what is beyond them is ones, which no builder may let
 * through. */
TERN_DEVICE uint64_t wqe_case_value(const unsigned char *bytes, uint32_t count)
{
    uint64_t value = ~0ull;
    for (uint32_t i = 0; i < count; i++) {
        value = (value & ~(0xffull << 8 * i)) | (uint64_t)bytes[i] << 8 * i;
    }
    return value;
}

/* A warp's inline data: every lane's part. */
TERN_DEVICE int wqe_case_is_warp(const struct wqe_op *op)
{
    return op->is_inline && op->bytes > WQE_MAX_INLINE_BYTES;
}

TERN_DEVICE void wqe_case_post_lane(const struct wqe_ring *ring, const struct wqe_case *c, uint32_t lane_idx)
{
    struct wqe_inline_warp_args args;
    args.qpn = c->qpn;
    args.fm_ce_se = wqe_case_flags(&c->op);
    args.remote = c->op.remote;
    args.rkey = wqe_key_of(c->op.rkey);
    args.element_bytes = c->op.bytes / 32;
    wqe_write_inline_lane(ring, c->idx, &args, lane_idx,
                          wqe_case_value(c->payload + lane_idx * args.element_bytes, args.element_bytes));
}

TERN_DEVICE void wqe_case_post_inline(const struct wqe_ring *ring, const struct wqe_case *c)
{
    struct wqe_inline_args args;
    args.qpn = c->qpn;
    args.fm_ce_se = wqe_case_flags(&c->op);
    args.remote = c->op.remote;
    args.rkey = wqe_key_of(c->op.rkey);
    args.bytes = c->op.bytes;
    TERN_UNROLL
    for (uint32_t i = 0; i < WQE_MAX_INLINE_BYTES / 4; i++) {
        uint32_t left = c->op.bytes > 4 * i ? c->op.bytes - 4 * i : 0;
        args.words[i] = left == 0 ? 0 : (uint32_t)wqe_case_value(c->payload + 4 * i, left < 4 ? left : 4);
        args.words[i] &= left >= 4 ? ~0u : (1u << 8 * left) - 1u;
    }
    wqe_write_inline(ring, c->idx, &args);
}

TERN_DEVICE void wqe_case_post_rdma(const struct wqe_ring *ring, const struct wqe_case *c)
{
    const uint32_t opcode = c->op.opcode;
    struct wqe_rdma_args args;
    args.qpn = c->qpn;
    args.fm_ce_se = wqe_case_flags(&c->op);
    args.remote = c->op.remote;
    args.local = c->op.local;
    args.rkey = wqe_key_of(c->op.rkey);
    args.lkey = wqe_key_of(c->op.lkey);
    args.bytes = c->op.bytes;
    wqe_rdma(ring, c->idx, &args, opcode, opcode == WQE_RDMA_WRITE_IMM ? c->op.imm : 0);
}

TERN_DEVICE void wqe_case_post_atomic(const struct wqe_ring *ring, const struct wqe_case *c)
{
    struct wqe_atomic_args args;
    args.qpn = c->qpn;
    args.fm_ce_se = wqe_case_flags(&c->op);
    args.remote = c->op.remote;
    args.local = c->op.local;
    args.rkey = wqe_key_of(c->op.rkey);
    args.lkey = wqe_key_of(c->op.lkey);
    args.op = c->op.amo;
    wqe_atomic(ring, c->idx, &args);
}

/* All but a warp's inline data. */
TERN_DEVICE void wqe_case_post(const struct wqe_ring *ring, const struct wqe_case *c)
{
    if (c->op.opcode == WQE_NOP) {
        struct wqe_nop_args args;
        args.qpn = c->qpn;
        args.fm_ce_se = wqe_case_flags(&c->op);
        wqe_nop(ring, c->idx, &args);
    } else if (c->op.opcode == WQE_DUMP) {
        struct wqe_dump_args args;
        args.qpn = c->qpn;
        args.fm_ce_se = wqe_case_flags(&c->op);
        args.lkey = wqe_key_of(c->op.lkey);
        args.bytes = c->op.bytes;
        args.local = c->op.local;
        wqe_dump(ring, c->idx, &args);
    } else if (c->op.amo.bytes != 0) {
        wqe_case_post_atomic(ring, c);
    } else if (c->op.is_inline) {
        wqe_case_post_inline(ring, c);
    } else {
        wqe_case_post_rdma(ring, c);
    }
}

#endif
