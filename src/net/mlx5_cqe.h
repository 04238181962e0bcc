/* SPDX-License-Identifier: Apache-2.0
 *
 * Completion queue entries (CQE) of 64 bytes, as a NIC writes them and software reads them.
 *
 * The last word holds the index of the work queue entry and the opcode, from which the owner is told: whoever
 * writes an entry stores the other fifteen words first and this one last, with release order; whoever reads
 * loads this one first. Loading it whole gives index and opcode of the same entry, which two loads do not
 * when entries overwrite each other in one slot (a collapsed queue). */
#ifndef TERN_MLX5_CQE_H
#define TERN_MLX5_CQE_H

#include "net/mlx5_format.h"

enum { CQE_BYTES = 64, CQE_WORDS = 16 };

/* Words of an entry. */
enum {
    CQE_WORD_REMOTE_QPN = 6, /* responder's */
    CQE_WORD_USER_INDEX = 8,
    CQE_WORD_IMM = 9,
    CQE_WORD_BYTES = 11,
    CQE_WORD_SYNDROME =
        13,             /* of errors: hardware syndrome, its type, vendor syndrome, syndrome, a byte each */
    CQE_WORD_QPN = 14,  /* opcode of the work queue entry [31:24], QPN [23:0] */
    CQE_WORD_TAIL = 15, /* BE16 index, signature, and a byte: opcode [7:4], format, SE [1], owner [0] */
};

/* Opcodes of a CQE. */
enum {
    CQE_REQUESTER = 0,
    CQE_RESPONDER_WRITE_IMM = 1,
    CQE_RESPONDER_SEND = 2,
    CQE_RESPONDER_SEND_IMM = 3,
    CQE_RESPONDER_SEND_INVALIDATE = 4,
    CQE_REQUESTER_ERROR = 13,
    CQE_RESPONDER_ERROR = 14,
    CQE_INVALID = 15, /* nothing has been written yet: software fills a new queue with 0xff */
};

/* X(name, value, what it means) */
#define TERN_SYNDROME_LIST(X)                                                                                \
    X(SYNDROME_LOCAL_LENGTH, 0x01, "local length error")                                                     \
    X(SYNDROME_LOCAL_QP_OPERATION, 0x02, "local queue pair operation error")                                 \
    X(SYNDROME_LOCAL_PROTECTION, 0x04, "local protection error")                                             \
    X(SYNDROME_FLUSHED, 0x05, "work request flushed after an earlier error")                                 \
    X(SYNDROME_MW_BIND, 0x06, "memory window bind error")                                                    \
    X(SYNDROME_BAD_RESPONSE, 0x10, "bad response")                                                           \
    X(SYNDROME_LOCAL_ACCESS, 0x11, "local access error")                                                     \
    X(SYNDROME_REMOTE_INVALID_REQUEST, 0x12, "remote invalid request error")                                 \
    X(SYNDROME_REMOTE_ACCESS, 0x13, "remote access error")                                                   \
    X(SYNDROME_REMOTE_OPERATION, 0x14, "remote operation error")                                             \
    X(SYNDROME_TRANSPORT_RETRY, 0x15, "transport retry counter exceeded")                                    \
    X(SYNDROME_RNR_RETRY, 0x16, "receiver-not-ready retry counter exceeded")                                 \
    X(SYNDROME_REMOTE_ABORTED, 0x22, "remote aborted error")

enum {
    SYNDROME_NONE = 0,
#define SYNDROME_ENUM(name, value, text) name = value,
    TERN_SYNDROME_LIST(SYNDROME_ENUM)
#undef SYNDROME_ENUM
};

/* ---- Writing ---- */

struct cqe_args {
    uint32_t opcode;     /* CQE_* */
    uint32_t owner;      /* 0 or 1: number of times the ring has been gone round, lowest bit */
    uint32_t idx;        /* first block of the work queue entry that completes */
    uint32_t wqe_opcode; /* its opcode */
    uint32_t qpn;
    uint32_t remote_qpn; /* responder only */
    uint32_t user_index;
    uint32_t imm; /* CQE_RESPONDER_WRITE_IMM, CQE_RESPONDER_SEND_IMM; in host order */
    uint32_t bytes;
    uint32_t syndrome, vendor_syndrome; /* errors only */
};

/* All words but the tail. */
TERN_DEVICE void cqe_fill(uint32_t *words, const struct cqe_args *p)
{
    int i;
    for (i = 0; i < CQE_WORD_TAIL; i++) {
        words[i] = 0;
    }
    words[CQE_WORD_REMOTE_QPN] = to_be32(p->remote_qpn);
    words[CQE_WORD_USER_INDEX] = to_be32(p->user_index);
    words[CQE_WORD_IMM] = to_be32(p->imm);
    words[CQE_WORD_BYTES] = to_be32(p->bytes);
    words[CQE_WORD_SYNDROME] = to_be32(p->vendor_syndrome << 8 | p->syndrome);
    words[CQE_WORD_QPN] = to_be32(p->wqe_opcode << 24 | p->qpn);
}

TERN_DEVICE uint32_t cqe_tail(const struct cqe_args *p)
{
    return to_be32((p->idx & 0xffffu) << 16 | p->opcode << 4 | p->owner);
}

/* ---- Reading, from words as they lie in memory ---- */

TERN_DEVICE uint32_t cqe_tail_idx(uint32_t tail) { return from_be32(tail) >> 16; }
TERN_DEVICE uint32_t cqe_tail_opcode(uint32_t tail) { return from_be32(tail) >> 4 & 15u; }
TERN_DEVICE uint32_t cqe_tail_owner(uint32_t tail) { return from_be32(tail) & 1u; }

/* Whether entry n, counted from the start of time, of a ring of `num_cqes` (a power of two) has been
 * written. */
TERN_DEVICE int cqe_is_written(uint32_t tail, uint32_t n, uint32_t num_cqes)
{
    return cqe_tail_opcode(tail) != CQE_INVALID && cqe_tail_owner(tail) == ((n & num_cqes) != 0);
}

TERN_DEVICE int cqe_is_error(uint32_t tail)
{
    uint32_t opcode = cqe_tail_opcode(tail);
    return opcode == CQE_REQUESTER_ERROR || opcode == CQE_RESPONDER_ERROR;
}

TERN_DEVICE uint32_t cqe_syndrome(uint32_t word) { return from_be32(word) & 0xffu; }
TERN_DEVICE uint32_t cqe_vendor_syndrome(uint32_t word) { return from_be32(word) >> 8 & 0xffu; }
TERN_DEVICE uint32_t cqe_qpn(uint32_t word) { return from_be32(word) & 0xffffffu; }
TERN_DEVICE uint32_t cqe_wqe_opcode(uint32_t word) { return from_be32(word) >> 24; }

/* What a syndrome means; of an unknown one that it is unknown. Host only (nic_refusal.c). */
const char *terni_syndrome_text(uint32_t syndrome);

#endif
