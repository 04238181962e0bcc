/* SPDX-License-Identifier: Apache-2.0
 *
 * Atomics: which of the NIC's four forms carries an operation, and what each form does to memory.
 *
 * The NIC knows fetch-and-add and compare-and-swap, plain on 8 bytes and masked on 4 or 8. Masked FA adds
 * fields: a set bit in the boundary ends a field, no carry leaves it. Masked CS compares the bits of one mask
 * and writes those of another. With these:
 *
 *     inc, add, fetch   FA of 1, v, 0          and   CS, writes where v has 0, compares nothing
 *     xor               FA, boundary all ones  or    CS, writes where v has 1, compares nothing
 *     set, swap         CS, writes all, compares nothing
 *     cas               CS, writes and compares all
 *
 * The target works on its memory in its own byte order. The old value comes back in four bytes big-endian, in
 * eight as the target holds it: so NICs do whose requests of 8 bytes are in host order, which is the mode we
 * ask for. */
#ifndef TERN_MLX5_ATOMIC_H
#define TERN_MLX5_ATOMIC_H

#include "net/mlx5_format.h"

enum { AMO_INC, AMO_ADD, AMO_FETCH, AMO_XOR, AMO_AND, AMO_OR, AMO_SET, AMO_SWAP, AMO_CAS, AMO_COUNT };

struct wqe_amo {
    uint32_t opcode;       /* WQE_ATOMIC_* or WQE_MASKED_* */
    uint32_t bytes;        /* 8; masked: 4 or 8 */
    uint64_t swap_add;     /* below 2^32 where bytes is 4, and so are the others */
    uint64_t compare;      /* CS only */
    uint64_t mask;         /* masked CS: bits written; masked FA: the boundary */
    uint64_t compare_mask; /* masked CS only */
};

TERN_DEVICE uint32_t wqe_atomic_is_masked(uint32_t opcode)
{
    return opcode == WQE_MASKED_CS || opcode == WQE_MASKED_FA;
}

TERN_DEVICE uint32_t wqe_atomic_is_cs(uint32_t opcode)
{
    return opcode == WQE_ATOMIC_CS || opcode == WQE_MASKED_CS;
}

TERN_DEVICE uint32_t wqe_amo_opmod(const struct wqe_amo *a)
{
    return !wqe_atomic_is_masked(a->opcode) ? 0u : a->bytes == 4 ? WQE_OPMOD_MASKED_4 : WQE_OPMOD_MASKED_8;
}

/* Segments of the whole entry: the operands of a masked CS of 8 bytes fill two, all others one. */
TERN_DEVICE uint32_t wqe_atomic_segments(uint32_t opcode, uint32_t bytes)
{
    return opcode == WQE_MASKED_CS && bytes == 8 ? 5u : 4u;
}

/* Of a word of 4 or 8 bytes. Plain forms are taken where they serve: only 8 bytes have them. */
TERN_DEVICE struct wqe_amo wqe_amo_of(uint32_t amo, uint32_t bytes, uint64_t operand, uint64_t compare)
{
    uint64_t all = bytes == 4 ? 0xffffffffull : ~0ull;
    uint32_t plain = bytes == 8;
    struct wqe_amo a;
    a.bytes = bytes;
    a.compare = 0;
    a.mask = 0;
    a.compare_mask = 0;
    if (amo == AMO_INC || amo == AMO_ADD || amo == AMO_FETCH) {
        a.opcode = plain ? WQE_ATOMIC_FA : WQE_MASKED_FA;
        a.swap_add = amo == AMO_INC ? 1 : amo == AMO_ADD ? operand & all : 0;
    } else if (amo == AMO_XOR) {
        a.opcode = WQE_MASKED_FA;
        a.swap_add = operand & all;
        a.mask = all;
    } else if (amo == AMO_CAS && plain) {
        a.opcode = WQE_ATOMIC_CS;
        a.swap_add = operand;
        a.compare = compare;
    } else {
        a.opcode = WQE_MASKED_CS;
        a.swap_add = operand & all;
        a.mask = amo == AMO_AND ? ~operand & all : amo == AMO_OR ? operand & all : all;
        if (amo == AMO_CAS) {
            a.compare = compare & all;
            a.compare_mask = all;
        }
    }
    return a;
}

/* What the target's memory holds afterwards. */
TERN_DEVICE uint64_t wqe_amo_apply(const struct wqe_amo *a, uint64_t old)
{
    uint64_t all = a->bytes == 4 ? 0xffffffffull : ~0ull, fields, ends;
    switch (a->opcode) {
    case WQE_ATOMIC_FA:
        return old + a->swap_add;
    case WQE_ATOMIC_CS:
        return old == a->compare ? a->swap_add : old;
    case WQE_MASKED_FA:
        /* With the fields' last bits left out nothing is carried over them; they are added by themselves,
         * and what was carried into them is in the first sum. */
        fields = (old & ~a->mask) + (a->swap_add & ~a->mask);
        ends = (old ^ a->swap_add) & a->mask;
        return (fields ^ ends) & all;
    default:
        return ((old ^ a->compare) & a->compare_mask) != 0 ? old : (old & ~a->mask) | (a->swap_add & a->mask);
    }
}

/* Between the old value and the little-endian word that the NIC writes for it at home; its own inverse. */
TERN_DEVICE uint64_t wqe_amo_result(uint32_t bytes, uint64_t value)
{
    return bytes == 4 ? to_be32((uint32_t)value) : value;
}

#endif
