/* SPDX-License-Identifier: Apache-2.0
 *
 * What a software NIC does for an operation: finds its memory through the keys, and moves bytes there.
 *
 * One thread finds out and does what is small; a larger copy is left to the warp. A naturally aligned word of
 * 4 or 8 bytes that is the whole message is written by one store, after everything that went before it in the
 * queue pair, so that it can be waited for. Atomics are compare-and-swaps of system scope: engines of this
 * NIC and of others are atomic with each other, whatever device they run on. Loads and stores of kernels are
 * not meant to be: a word that NICs raise is raised by NICs only. */
#ifndef TERN_SOFTNIC_MOVE_H
#define TERN_SOFTNIC_MOVE_H

#include "net/softnic.h"

/* Byte i comes from from + ((at + i) & mask): plain memory has a mask of ones, inline data that of its
 * ring. */
struct softnic_copy {
    char *to;
    const char *from;
    uint64_t at, mask;
    uint64_t bytes; /* 0: nothing is left to be copied */
};

TERN_DEVICE const char *softnic_from(const struct softnic_copy *c, uint64_t i)
{
    return c->from + ((c->at + i) & c->mask);
}

/* Lane lane_idx of num. Units of 16 bytes, else of 4, else of 1, as both sides are aligned; a unit never
 * crosses the end of a ring, whose segments have 16 bytes and whose inline data begins at a multiple of 4. */
TERN_DEVICE void softnic_do_copy(const struct softnic_copy *c, uint32_t lane_idx, uint32_t num)
{
    uint64_t both = (uint64_t)(uintptr_t)c->to | (uint64_t)(uintptr_t)softnic_from(c, 0);
    uint64_t unit = both % 16 == 0 && c->mask == ~0ull ? 16 : both % 4 == 0 ? 4 : 1, units = c->bytes / unit;
    for (uint64_t i = lane_idx; i < units; i += num) {
        if (unit == 16) {
            st_vec16(c->to + i * 16, ld_vec16(softnic_from(c, i * 16)));
        } else if (unit == 4) {
            *(uint32_t *)(void *)(c->to + i * 4) = *(const uint32_t *)(const void *)softnic_from(c, i * 4);
        } else {
            c->to[i] = *softnic_from(c, i);
        }
    }
    for (uint64_t i = units * unit + lane_idx; i < c->bytes; i += num) {
        c->to[i] = *softnic_from(c, i);
    }
}

TERN_DEVICE int softnic_is_word(const struct softnic_copy *c)
{
    return (c->bytes == 4 || c->bytes == 8) && (uintptr_t)c->to % c->bytes == 0;
}

TERN_DEVICE void softnic_store_word(char *to, uint64_t bytes, uint64_t value)
{
    /* Pairs with whoever waits for the word: what this queue pair moved before can be read. */
    if (bytes == 4) {
        st_release_sys_u32((uint32_t *)(void *)to, (uint32_t)value);
    } else {
        st_release_sys_u64((uint64_t *)(void *)to, value); /* pairs with the same */
    }
}

/* The source may be a word that atomics raise: read whole, if it is aligned. */
TERN_DEVICE uint64_t softnic_load_word(const struct softnic_copy *c)
{
    const char *from = softnic_from(c, 0);
    uint64_t value = 0;
    if ((uintptr_t)from % c->bytes == 0) {
        /* Pairs with softnic_store_word and softnic_amo of any NIC: what is read next is not older. */
        return c->bytes == 4 ? ld_acquire_sys_u32((const uint32_t *)(const void *)from)
                             : ld_acquire_sys_u64((const uint64_t *)(const void *)from);
    }
    for (uint32_t i = 0; i < c->bytes; i++) {
        value |= (uint64_t)(unsigned char)*softnic_from(c, i) << 8 * i;
    }
    return value;
}

/* ---- Results that are late ---- */

TERN_DEVICE void softnic_land(struct softnic_late *late)
{
    struct softnic_copy c;
    c.to = late->to;
    c.from = late->data;
    c.at = 0;
    c.mask = ~0ull;
    c.bytes = late->bytes;
    softnic_do_copy(&c, 0, 1);
    late->bytes = 0;
}

/* Keeps the end of what is to be copied; what was kept before lands first, so that results keep their
 * order. */
TERN_DEVICE void softnic_delay(struct softnic_late *late, struct softnic_copy *c)
{
    struct softnic_copy end = *c;
    softnic_land(late);
    late->bytes = c->bytes < SOFTNIC_LATE_BYTES ? c->bytes : (uint64_t)SOFTNIC_LATE_BYTES;
    c->bytes -= late->bytes;
    late->to = c->to + c->bytes;
    end.at += c->bytes;
    end.to = late->data;
    end.bytes = late->bytes;
    softnic_do_copy(&end, 0, 1);
}

/* ---- Operations ---- */

TERN_DEVICE uint64_t softnic_amo(char *word, const struct wqe_amo *a)
{
    uint64_t old, seen;
    if (a->bytes == 4) {
        uint32_t *p = (uint32_t *)(void *)word;
        for (old = ld_relaxed_sys_u32(p);; old = seen) {
            /* Pairs with whoever waits for the word, as in softnic_store_word. */
            seen = atom_cas_acqrel_sys_u32(p, (uint32_t)old, (uint32_t)wqe_amo_apply(a, old));
            if (seen == old) {
                return old;
            }
        }
    } else {
        uint64_t *p = (uint64_t *)(void *)word;
        for (old = ld_relaxed_sys_u64(p);; old = seen) {
            /* Pairs with the same. */
            seen = atom_cas_acqrel_sys_u64(p, old, wqe_amo_apply(a, old));
            if (seen == old) {
                return old;
            }
        }
    }
}

TERN_DEVICE uint32_t softnic_find(const struct softnic_qp *qp, uint32_t use, const struct wqe_op *op,
                                  struct key_memory *memory, struct nic_refusal *r)
{
    int local = use == KEY_USE_GATHER || use == KEY_USE_SCATTER;
    struct key_request q;
    q.use = use;
    q.key = local ? op->lkey : op->rkey;
    q.pd = local ? qp->pd : qp->remote_pd;
    q.addr = local ? op->local : op->remote;
    q.bytes = op->bytes;
    return key_lookup(local ? qp->keys : qp->remote_keys, &q, memory, r);
}

/* Both ends of an operation; the local one first, as a NIC finds out before it sends anything. */
TERN_DEVICE uint32_t softnic_find_both(const struct softnic_qp *qp, const struct wqe_op *op,
                                       struct key_memory *local, struct key_memory *remote,
                                       struct nic_refusal *r)
{
    int is_write = op->opcode == WQE_RDMA_WRITE, is_read = op->opcode == WQE_RDMA_READ;
    uint32_t syndrome = SYNDROME_NONE;
    local->host = remote->host = NULL;
    if (op->opcode == WQE_NOP) {
        return SYNDROME_NONE;
    }
    if (op->opcode == WQE_RDMA_WRITE_IMM) {
        return SYNDROME_RNR_RETRY; /* the other end is memory, and has nothing to receive with */
    }
    if (!op->is_inline) {
        syndrome = softnic_find(qp, is_write || op->opcode == WQE_DUMP ? KEY_USE_GATHER : KEY_USE_SCATTER, op,
                                local, r);
    }
    if (syndrome != SYNDROME_NONE || op->opcode == WQE_DUMP) {
        return syndrome;
    }
    return softnic_find(qp,
                        is_write  ? KEY_USE_WRITE
                        : is_read ? KEY_USE_READ
                                  : KEY_USE_ATOMIC,
                        op, remote, r);
}

/* Does what is small, at once; what is left of a copy is in *c, for the warp. `idx` is the entry's. */
TERN_DEVICE uint32_t softnic_do(const struct softnic_qp *qp, uint64_t idx, const struct wqe_op *op,
                                struct softnic_copy *c, struct nic_refusal *r)
{
    struct key_memory local, remote;
    uint32_t syndrome = softnic_find_both(qp, op, &local, &remote, r);
    c->bytes = 0;
    if (syndrome != SYNDROME_NONE) {
        return syndrome;
    }
    if (op->opcode == WQE_DUMP && qp->late != NULL) {
        softnic_land(qp->late);
    }
    if (op->opcode == WQE_NOP || op->opcode == WQE_DUMP) {
        return SYNDROME_NONE;
    }
    c->mask = ~0ull;
    c->at = 0;
    c->bytes = op->bytes;
    if (wqe_opcode_is_atomic(op->opcode)) {
        uint64_t old = wqe_amo_result(op->amo.bytes, softnic_amo(remote.host, &op->amo));
        c->bytes = 0;
        if (qp->late != NULL) {
            softnic_land(qp->late);
            qp->late->to = local.host;
            qp->late->bytes = op->bytes;
            *(uint64_t *)(void *)qp->late->data = old;
        } else if ((uintptr_t)local.host % op->bytes == 0) {
            softnic_store_word(local.host, op->bytes, old);
        } else {
            for (uint32_t i = 0; i < op->bytes; i++) {
                local.host[i] = (char)(old >> 8 * i);
            }
        }
        return SYNDROME_NONE;
    }
    if (op->opcode == WQE_RDMA_READ) {
        c->to = local.host;
        c->from = remote.host;
    } else {
        c->to = remote.host;
        c->from = op->is_inline ? (const char *)qp->ring.segments : local.host;
    }
    if (op->is_inline) {
        c->at = idx * WQE_BLOCK_BYTES + 2 * WQE_SEGMENT_BYTES + WQE_INLINE_HEADER_BYTES;
        c->mask = (uint64_t)softnic_blocks(qp) * WQE_BLOCK_BYTES - 1;
    }
    if (op->opcode == WQE_RDMA_READ && qp->late != NULL) {
        softnic_delay(qp->late, c);
    } else if (softnic_is_word(c)) {
        softnic_store_word(c->to, c->bytes, softnic_load_word(c));
        c->bytes = 0;
    }
    return SYNDROME_NONE;
}

#endif
