/* SPDX-License-Identifier: Apache-2.0
 *
 * Builders of work queue entries: each writes one entry into a ring, from the block of an index on.
 *
 *     operation                       segments (16 bytes each)                       DS  blocks
 *     NOP                             control                                         1  1
 *     DUMP                            control, data                                   2  1
 *     WRITE, WRITE_IMM, READ          control, remote, data                           3  1
 *       of no bytes                   control, remote                                 2  1
 *     WRITE inline, 1 to 28 bytes     control, remote, inline                      3, 4  1
 *     WRITE inline, a warp's words    control, remote, inline, of 1/2/4/8 bytes  5/7/11/19  2/2/3/5
 *     atomic                          control, remote, operands, data                 4  1
 *       masked CS of 8 bytes          control, remote, operands (two), data           5  2
 *
 * A completion tells the index of an entry's first block. So an entry of several blocks asks for none and a
 * NOP behind it does, whose index plus one is what has been consumed.
 *
 * Builders only store, in no promised order: that slots are free, that the stores come before the doorbell
 * and that somebody rings it is the queue's business. */
#ifndef TERN_MLX5_WQE_H
#define TERN_MLX5_WQE_H

#include "net/mlx5_atomic.h"
#include "net/mlx5_format.h"

struct wqe_ring {
    struct vec16 *segments; /* aligned to a block */
    uint32_t segment_mask;  /* segments in the ring, a power of two, minus one */
};

TERN_DEVICE struct wqe_ring wqe_ring_of(void *blocks, uint32_t num_blocks)
{
    struct wqe_ring ring;
    ring.segments = (struct vec16 *)blocks;
    ring.segment_mask = num_blocks * WQE_BLOCK_SEGMENTS - 1u;
    return ring;
}

TERN_DEVICE uint32_t wqe_ring_blocks(const struct wqe_ring *ring)
{
    return (ring->segment_mask + 1u) / WQE_BLOCK_SEGMENTS;
}

/* Segment k of the entry at idx. */
TERN_DEVICE struct vec16 *wqe_segment(const struct wqe_ring *ring, uint32_t idx, uint32_t k)
{
    return ring->segments + ((idx * WQE_BLOCK_SEGMENTS + k) & ring->segment_mask);
}

/* Byte `offset` of the entry at idx. */
TERN_DEVICE char *wqe_byte(const struct wqe_ring *ring, uint32_t idx, uint32_t offset)
{
    return (char *)wqe_segment(ring, idx, offset / WQE_SEGMENT_BYTES) + offset % WQE_SEGMENT_BYTES;
}

TERN_DEVICE uint32_t wqe_blocks(uint32_t num_segments)
{
    return (num_segments + WQE_BLOCK_SEGMENTS - 1u) / WQE_BLOCK_SEGMENTS;
}

/* ---- Segments ---- */

TERN_DEVICE void wqe_put(const struct wqe_ring *ring, uint32_t idx, uint32_t k, uint32_t w0, uint32_t w1,
                         uint32_t w2, uint32_t w3)
{
    struct vec16 segment;
    segment.w[0] = w0;
    segment.w[1] = w1;
    segment.w[2] = w2;
    segment.w[3] = w3;
    st_vec16(wqe_segment(ring, idx, k), segment);
}

/* Bytes 8 to 10, signature and stream, stay zero. `imm` in host order. */
TERN_DEVICE void wqe_put_control(const struct wqe_ring *ring, uint32_t idx, uint32_t opmod, uint32_t opcode,
                                 uint32_t qpn, uint32_t num_segments, uint32_t fm_ce_se, uint32_t imm)
{
    wqe_put(ring, idx, 0, to_be32(opmod << 24 | (idx & 0xffffu) << 8 | opcode),
            to_be32(qpn << 8 | num_segments), fm_ce_se << 24, to_be32(imm));
}

TERN_DEVICE void wqe_put_remote(const struct wqe_ring *ring, uint32_t idx, uint64_t addr, struct wqe_key rkey)
{
    wqe_put(ring, idx, 1, to_be64_first(addr), to_be64_second(addr), rkey.raw, 0);
}

TERN_DEVICE void wqe_put_data(const struct wqe_ring *ring, uint32_t idx, uint32_t k, uint32_t bytes,
                              struct wqe_key lkey, uint64_t addr)
{
    wqe_put(ring, idx, k, to_be32(bytes), lkey.raw, to_be64_first(addr), to_be64_second(addr));
}

/* ---- Nothing ---- */

struct wqe_nop_args {
    uint32_t qpn;
    uint32_t fm_ce_se; /* WQE_CE_*, WQE_FM_*, WQE_SOLICITED; likewise below */
};

TERN_DEVICE void wqe_nop(const struct wqe_ring *ring, uint32_t idx, const struct wqe_nop_args *p)
{
    wqe_put_control(ring, idx, 0, WQE_NOP, p->qpn, 1, p->fm_ce_se, 0);
}

struct wqe_dump_args {
    uint32_t qpn;
    uint32_t fm_ce_se;
    struct wqe_key lkey;
    uint32_t bytes; /* 1 to WQE_MAX_BYTES */
    uint64_t local;
};

TERN_DEVICE void wqe_dump(const struct wqe_ring *ring, uint32_t idx, const struct wqe_dump_args *p)
{
    wqe_put_control(ring, idx, 0, WQE_DUMP, p->qpn, 2, p->fm_ce_se, 0);
    wqe_put_data(ring, idx, 1, p->bytes, p->lkey, p->local);
}

/* ---- WRITE and READ ---- */

struct wqe_rdma_args {
    uint32_t qpn;
    uint32_t fm_ce_se;
    uint64_t remote, local; /* addresses, of the registrations that the keys name */
    struct wqe_key rkey, lkey;
    uint32_t bytes; /* 0 to WQE_MAX_BYTES; 0: local and lkey are not looked at */
};

/* WQE_RDMA_WRITE, _WRITE_IMM or _READ; imm: of the second, in host order, else 0.
 * A data segment of no bytes could mean 2^31: an entry that moves nothing has none. */
TERN_DEVICE void wqe_rdma(const struct wqe_ring *ring, uint32_t idx, const struct wqe_rdma_args *p,
                          uint32_t opcode, uint32_t imm)
{
    wqe_put_control(ring, idx, 0, opcode, p->qpn, p->bytes == 0 ? 2u : 3u, p->fm_ce_se, imm);
    wqe_put_remote(ring, idx, p->remote, p->rkey);
    if (p->bytes != 0) {
        wqe_put_data(ring, idx, 2, p->bytes, p->lkey, p->local);
    }
}

/* ---- WRITE inline ---- */

TERN_DEVICE uint32_t wqe_inline_segments(uint32_t bytes)
{
    return 2u + (WQE_INLINE_HEADER_BYTES + bytes + WQE_SEGMENT_BYTES - 1u) / WQE_SEGMENT_BYTES;
}

struct wqe_inline_args {
    uint32_t qpn;
    uint32_t fm_ce_se;
    uint64_t remote;
    struct wqe_key rkey;
    uint32_t bytes; /* 1 to WQE_MAX_INLINE_BYTES */
    uint32_t
        words[WQE_MAX_INLINE_BYTES / 4]; /* the payload as it lies in memory; what follows it is not sent */
};

TERN_DEVICE void wqe_write_inline(const struct wqe_ring *ring, uint32_t idx, const struct wqe_inline_args *p)
{
    uint32_t num_segments = wqe_inline_segments(p->bytes);
    wqe_put_control(ring, idx, 0, WQE_RDMA_WRITE, p->qpn, num_segments, p->fm_ce_se, 0);
    wqe_put_remote(ring, idx, p->remote, p->rkey);
    wqe_put(ring, idx, 2, to_be32(TERN_WQE_INLINE | p->bytes), p->words[0], p->words[1], p->words[2]);
    if (num_segments == 4) {
        wqe_put(ring, idx, 3, p->words[3], p->words[4], p->words[5], p->words[6]);
    }
}

struct wqe_inline_warp_args {
    uint32_t qpn;
    uint32_t fm_ce_se;
    uint64_t remote; /* lane i's element goes to remote + i * element_bytes */
    struct wqe_key rkey;
    uint32_t element_bytes; /* 1, 2, 4 or 8 */
};

/* One lane's part of the entry: all 32 lanes of a warp make the call, each with its value. Elements begin
 * four bytes into a segment, so those of 8 bytes are stored in halves, of which the second may be at the
 * ring's start. */
TERN_DEVICE void wqe_write_inline_lane(const struct wqe_ring *ring, uint32_t idx,
                                       const struct wqe_inline_warp_args *p, uint32_t lane_idx,
                                       uint64_t value)
{
    uint32_t payload = 2 * WQE_SEGMENT_BYTES + WQE_INLINE_HEADER_BYTES;
    uint32_t bytes = 32u * p->element_bytes, at = payload + lane_idx * p->element_bytes;
    if (lane_idx == 0) {
        wqe_put_control(ring, idx, 0, WQE_RDMA_WRITE, p->qpn, wqe_inline_segments(bytes), p->fm_ce_se, 0);
        wqe_put_remote(ring, idx, p->remote, p->rkey);
        *(uint32_t *)wqe_byte(ring, idx, payload - WQE_INLINE_HEADER_BYTES) =
            to_be32(TERN_WQE_INLINE | bytes);
    }
    switch (p->element_bytes) {
    case 1:
        *(uint8_t *)wqe_byte(ring, idx, at) = (uint8_t)value;
        break;
    case 2:
        *(uint16_t *)wqe_byte(ring, idx, at) = (uint16_t)value;
        break;
    case 8:
        *(uint32_t *)wqe_byte(ring, idx, at + 4) = (uint32_t)(value >> 32);
        *(uint32_t *)wqe_byte(ring, idx, at) = (uint32_t)value;
        break;
    default:
        *(uint32_t *)wqe_byte(ring, idx, at) = (uint32_t)value;
    }
    /* Header and payload are 4 bytes past a whole segment, whatever the element: three words of padding. */
    if (lane_idx < 3) {
        *(uint32_t *)wqe_byte(ring, idx, payload + bytes + 4 * lane_idx) = 0;
    }
}

/* ---- Atomics ---- */

struct wqe_atomic_args {
    uint32_t qpn;
    uint32_t fm_ce_se;
    uint64_t remote, local; /* remote aligned to op.bytes; the old value is written to local */
    struct wqe_key rkey, lkey;
    struct wqe_amo op; /* wqe_amo_of, or any masks */
};

/* The operands; returns the number of the segment behind them. */
TERN_DEVICE uint32_t wqe_put_operands(const struct wqe_ring *ring, uint32_t idx, const struct wqe_amo *a)
{
    uint64_t second = a->opcode == WQE_MASKED_FA ? a->mask : wqe_atomic_is_cs(a->opcode) ? a->compare : 0;
    if (a->bytes == 4) {
        wqe_put(ring, idx, 2, to_be32((uint32_t)a->swap_add), to_be32((uint32_t)second),
                a->opcode == WQE_MASKED_CS ? to_be32((uint32_t)a->mask) : 0,
                a->opcode == WQE_MASKED_CS ? to_be32((uint32_t)a->compare_mask) : 0);
        return 3;
    }
    wqe_put(ring, idx, 2, to_be64_first(a->swap_add), to_be64_second(a->swap_add), to_be64_first(second),
            to_be64_second(second));
    if (a->opcode != WQE_MASKED_CS) {
        return 3;
    }
    wqe_put(ring, idx, 3, to_be64_first(a->mask), to_be64_second(a->mask), to_be64_first(a->compare_mask),
            to_be64_second(a->compare_mask));
    return 4;
}

TERN_DEVICE void wqe_atomic(const struct wqe_ring *ring, uint32_t idx, const struct wqe_atomic_args *p)
{
    wqe_put_control(ring, idx, wqe_amo_opmod(&p->op), p->op.opcode, p->qpn,
                    wqe_atomic_segments(p->op.opcode, p->op.bytes), p->fm_ce_se, 0);
    wqe_put_remote(ring, idx, p->remote, p->rkey);
    wqe_put_data(ring, idx, wqe_put_operands(ring, idx, &p->op), p->op.bytes, p->lkey, p->local);
}

#endif
