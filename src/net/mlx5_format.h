/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers and byte order of the mlx5 data path: what a GPU writes for a NIC to read.
 *
 * A send queue is a ring of basic blocks of 64 bytes. A work queue entry (WQE) is a run of segments of 16
 * bytes that begins at a block; its length in segments is called DS, and it may wrap from the ring's end to
 * its start. Indices count blocks: software keeps them in 32 bits or more, the control segment has the low
 * 16.
 *
 * Everything is big-endian on the wire, both machines are little-endian. Words that go into an entry are
 * swapped by to_be32 where the entry is built; only memory keys are kept swapped, as a type of their own,
 * because each is used in many entries. Names leave the prefix MLX5_ to infiniband/mlx5dv.h: a file may
 * include both. */
#ifndef TERN_MLX5_FORMAT_H
#define TERN_MLX5_FORMAT_H

#include "simt/simt.h"

#if !defined(__CUDACC__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the formats of the mlx5 data path are written for little-endian machines"
#endif

enum {
    WQE_BLOCK_BYTES = 64,
    WQE_SEGMENT_BYTES = 16,
    WQE_BLOCK_SEGMENTS = 4,
    WQE_MAX_SEGMENTS = 63,       /* DS has six bits */
    WQE_MAX_BLOCKS = 16,         /* of one entry */
    WQE_MAX_RING_BLOCKS = 32768, /* so that 16 bits tell whether an index is ahead or behind */
    WQE_MAX_BYTES = 1 << 30,     /* of one message: log_msg_max of the queue pair is 30 */
    WQE_INLINE_HEADER_BYTES = 4, /* payload follows it at once, padded to a whole segment */
    WQE_MAX_INLINE_BYTES = 28,   /* that still fit into one block */
    WQE_MAX_QPN = (1 << 24) - 1,
};

/* Bit 31 of the first word of the third segment: payload follows instead of an address. */
#define TERN_WQE_INLINE 0x80000000u

/* The key that never names memory. */
#define TERN_WQE_INVALID_KEY 0x100u

enum {
    WQE_NOP = 0x00,
    WQE_RDMA_WRITE = 0x08,
    WQE_RDMA_WRITE_IMM = 0x09,
    WQE_RDMA_READ = 0x10,
    WQE_ATOMIC_CS = 0x11, /* compare and swap */
    WQE_ATOMIC_FA = 0x12, /* fetch and add */
    WQE_MASKED_CS = 0x14,
    WQE_MASKED_FA = 0x15,
    WQE_DUMP = 0x23, /* the NIC reads local bytes and drops them */
};

/* Opcode modifier: 0, except in masked atomics, where it tells the size of the operand. */
enum { WQE_OPMOD_MASKED_4 = 0x08, WQE_OPMOD_MASKED_8 = 0x09 };

/* The byte fm_ce_se. An error completes with an entry in the completion queue whatever CE says. */
enum {
    WQE_SOLICITED = 0x02,
    WQE_CE_ON_ERROR = 0 << 2,
    WQE_CE_ON_FIRST_ERROR = 1 << 2,
    WQE_CE_ALWAYS = 2 << 2,
    WQE_CE_EVENT = 3 << 2, /* always, and an event */
    WQE_FM_NONE = 0 << 5,
    WQE_FM_SMALL = 1 << 5,  /* initiator small fence */
    WQE_FM_FENCE = 2 << 5,  /* starts when earlier READs and atomics have their answers */
    WQE_FM_STRONG = 3 << 5, /* strong ordering */
    WQE_FM_FENCE_SMALL = 4 << 5,
};

TERN_DEVICE uint32_t to_be32(uint32_t value) { return TERN_BSWAP(value); }
TERN_DEVICE uint32_t from_be32(uint32_t raw) { return TERN_BSWAP(raw); }
TERN_DEVICE uint64_t from_be64(uint32_t first, uint32_t second)
{
    return (uint64_t)from_be32(first) << 32 | from_be32(second);
}

/* The two words of a 64-bit field, in the order in which they lie in memory. */
TERN_DEVICE uint32_t to_be64_first(uint64_t value) { return to_be32((uint32_t)(value >> 32)); }
TERN_DEVICE uint32_t to_be64_second(uint64_t value) { return to_be32((uint32_t)value); }

/* A memory key as entries hold it: swapped once, when memory is registered or a peer's key arrives. */
struct wqe_key {
    uint32_t raw;
};

TERN_DEVICE struct wqe_key wqe_key_of(uint32_t key)
{
    struct wqe_key swapped;
    swapped.raw = to_be32(key);
    return swapped;
}

/* ---- Doorbells ----
 *
 * A queue pair has a record of two words, of which SEND is the low 16 bits of the next free block's index,
 * and shares a register with others, into which eight bytes are stored at once. The index in the register is
 * that of the next free block too in our stores; a driver that stores the head of its last entry there, with
 * opcode and length, is understood as well, as the record is what counts. A queue pair without one is rung at
 * another place (MLX5_RECORDLESS_AT), and there the index has to be that of the next free block. */
enum { DOORBELL_RECORD_RECEIVE, DOORBELL_RECORD_SEND };

TERN_DEVICE uint32_t doorbell_record(uint32_t next_idx) { return to_be32(next_idx & 0xffffu); }
TERN_DEVICE uint32_t doorbell_record_idx(uint32_t record) { return from_be32(record) & 0xffffu; }

TERN_DEVICE uint64_t doorbell_value(uint32_t qpn, uint32_t next_idx)
{
    return (uint64_t)to_be32(qpn << 8) << 32 | to_be32((next_idx & 0xffffu) << 8);
}
TERN_DEVICE uint32_t doorbell_idx(uint64_t value) { return from_be32((uint32_t)value) >> 8 & 0xffffu; }
TERN_DEVICE uint32_t doorbell_qpn(uint64_t value) { return from_be32((uint32_t)(value >> 32)) >> 8; }

#endif
