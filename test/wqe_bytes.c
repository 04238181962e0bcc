/* SPDX-License-Identifier: Apache-2.0
 *
 * The slow way to write a work queue entry. Numbers are written out, not taken from the headers under
 * test. */
#include "wqe_bytes.h"

#include <string.h>

static void put(unsigned char *to, int bytes, uint64_t value)
{
    for (int i = 0; i < bytes; i++) {
        to[i] = (unsigned char)(value >> 8 * (bytes - 1 - i));
    }
}

static size_t put_operands(const struct wqe_amo *a, unsigned char *at)
{
    int n = (int)a->bytes;
    put(at, n, a->swap_add);
    switch (a->opcode) {
    case 0x11:
        put(at + 8, 8, a->compare);
        return 16;
    case 0x14:
        put(at + n, n, a->compare);
        put(at + 2 * n, n, a->mask);
        put(at + 3 * n, n, a->compare_mask);
        return (size_t)(4 * n);
    case 0x15:
        put(at + n, n, a->mask);
        return 16;
    default:
        return 16;
    }
}

static void put_data(const struct wqe_op *op, unsigned char *at)
{
    put(at, 4, op->bytes);
    put(at + 4, 4, op->lkey);
    put(at + 8, 8, op->local);
}

size_t wqe_assemble(const struct wqe_op *op, uint32_t qpn, uint32_t idx, const void *payload,
                    unsigned char *entry)
{
    int atomic = op->opcode >= 0x11 && op->opcode <= 0x15, masked = op->opcode >= 0x14 && atomic;
    size_t at = 16;
    memset(entry, 0, (size_t)op->segments * 16);
    entry[0] = masked ? (op->amo.bytes == 4 ? 0x08 : 0x09) : 0;
    put(entry + 1, 2, idx & 0xffff);
    entry[3] = (unsigned char)op->opcode;
    put(entry + 4, 3, qpn);
    entry[7] = (unsigned char)op->segments;
    entry[11] = (unsigned char)(op->fence | op->complete | op->solicited << 1);
    put(entry + 12, 4, op->imm);
    if (op->opcode != 0x00 && op->opcode != 0x23) {
        put(entry + 16, 8, op->remote);
        put(entry + 24, 4, op->rkey);
        at = 32;
    }
    if (op->is_inline) {
        put(entry + 32, 4, 0x80000000u | op->bytes);
        memcpy(entry + 36, payload, op->bytes);
    } else if (atomic) {
        at += put_operands(&op->amo, entry + at);
        put_data(op, entry + at);
    } else if (op->bytes != 0) {
        put_data(op, entry + at);
    }
    return (size_t)op->segments * 16;
}

size_t wqe_padding(const struct wqe_op *op)
{
    return op->is_inline ? 36 + op->bytes : op->opcode == 0 ? 16 : (size_t)op->segments * 16;
}

int wqe_op_compare(const struct wqe_op *a, const struct wqe_op *b)
{
    return a->opcode != b->opcode || a->fence != b->fence || a->complete != b->complete ||
           a->solicited != b->solicited || a->segments != b->segments || a->blocks != b->blocks ||
           a->imm != b->imm || a->rkey != b->rkey || a->lkey != b->lkey || a->remote != b->remote ||
           a->local != b->local || a->bytes != b->bytes || a->is_inline != b->is_inline ||
           a->amo.opcode != b->amo.opcode || a->amo.bytes != b->amo.bytes ||
           a->amo.swap_add != b->amo.swap_add || a->amo.compare != b->amo.compare ||
           a->amo.mask != b->amo.mask || a->amo.compare_mask != b->amo.compare_mask;
}
