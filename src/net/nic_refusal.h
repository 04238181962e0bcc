/* SPDX-License-Identifier: Apache-2.0
 *
 * Why a NIC refuses an operation: one list of reasons, each with the syndrome that software sees in the
 * completion, and a sentence for people, which a NIC of silicon does not give.
 *
 * Where an operation is refused may be a GPU, so a refusal is three numbers there, and a sentence once the
 * host asks for it. */
#ifndef TERN_NIC_REFUSAL_H
#define TERN_NIC_REFUSAL_H

#include "net/mlx5_cqe.h"

/* X(name, syndrome, sentence of two numbers of 64 bits: what was seen, what it should have been) */
#define REFUSAL_LIST(X)                                                                                      \
    X(NOT_POSTED, SYNDROME_LOCAL_QP_OPERATION, "the entry takes %llu blocks, but %llu are posted")           \
    X(OPCODE, SYNDROME_LOCAL_QP_OPERATION, "opcode 0x%02llx, in control word 0x%08llx, is not supported")    \
    X(OPMOD, SYNDROME_LOCAL_QP_OPERATION, "opcode modifier 0x%02llx does not go with opcode 0x%02llx")       \
    X(INDEX, SYNDROME_LOCAL_QP_OPERATION, "the control segment says index 0x%04llx at index 0x%04llx")       \
    X(QPN, SYNDROME_LOCAL_QP_OPERATION, "the control segment says queue pair 0x%06llx in queue 0x%06llx")    \
    X(DS, SYNDROME_LOCAL_QP_OPERATION, "the control segment says %llu segments, the operation has %llu")     \
    X(FENCE, SYNDROME_LOCAL_QP_OPERATION, "fence mode %llu is more than %llu")                               \
    X(RESERVED, SYNDROME_LOCAL_QP_OPERATION, "reserved bits are 0x%08llx in word %llu of the entry")         \
    X(INLINE, SYNDROME_LOCAL_QP_OPERATION, "data is inline (length word 0x%08llx) with opcode 0x%02llx")     \
    X(NO_BYTES, SYNDROME_LOCAL_LENGTH, "the data segment, length word 0x%08llx, has %llu bytes")             \
    X(LONG, SYNDROME_LOCAL_LENGTH, "%llu bytes are more than a message's %llu")                              \
    X(OPERAND, SYNDROME_LOCAL_LENGTH, "the result has %llu bytes of memory and needs %llu")                  \
    X(LKEY, SYNDROME_LOCAL_PROTECTION, "there is no lkey 0x%08llx (place 0x%llx of the table)")              \
    X(LOCAL_PD, SYNDROME_LOCAL_PROTECTION, "the lkey is of protection domain %llu, the queue pair of %llu")  \
    X(LOCAL_BEFORE, SYNDROME_LOCAL_PROTECTION, "address 0x%llx lies before its registration, 0x%llx")        \
    X(LOCAL_BEYOND, SYNDROME_LOCAL_PROTECTION, "local access at 0x%llx ends 0x%llx bytes too far")           \
    X(LOCAL_RIGHT, SYNDROME_LOCAL_ACCESS, "the lkey grants 0x%llx, to write there takes 0x%llx")             \
    X(RKEY, SYNDROME_REMOTE_ACCESS, "there is no rkey 0x%08llx (place 0x%llx of the table)")                 \
    X(REMOTE_PD, SYNDROME_REMOTE_ACCESS, "the rkey is of protection domain %llu, the queue pair of %llu")    \
    X(REMOTE_BEFORE, SYNDROME_REMOTE_ACCESS, "remote address 0x%llx lies before its registration, 0x%llx")   \
    X(REMOTE_BEYOND, SYNDROME_REMOTE_ACCESS, "remote access at 0x%llx ends 0x%llx bytes too far")            \
    X(REMOTE_RIGHT, SYNDROME_REMOTE_ACCESS, "the rkey grants 0x%llx, the operation takes 0x%llx")            \
    X(ALIGNMENT, SYNDROME_REMOTE_INVALID_REQUEST, "remote address 0x%llx of an atomic of %llu bytes")

enum {
    REFUSED_NOTHING = 0,
#define REFUSAL_ENUM(name, syndrome, text) REFUSED_##name,
    REFUSAL_LIST(REFUSAL_ENUM)
#undef REFUSAL_ENUM
        REFUSED_COUNT
};

struct nic_refusal {
    uint32_t syndrome; /* SYNDROME_* */
    uint32_t reason;   /* REFUSED_* */
    uint64_t seen, wanted;
};

/* Fills the refusal; returns its syndrome. */
TERN_DEVICE uint32_t nic_refuse(struct nic_refusal *r, uint32_t reason, uint64_t seen, uint64_t wanted)
{
    r->reason = reason;
    r->seen = seen;
    r->wanted = wanted;
    r->syndrome = SYNDROME_NONE;
    switch (reason) {
#define REFUSAL_CASE(name, code, text)                                                                       \
    case REFUSED_##name:                                                                                     \
        r->syndrome = code;                                                                                  \
        break;
        REFUSAL_LIST(REFUSAL_CASE)
#undef REFUSAL_CASE
    }
    return r->syndrome;
}

enum { REFUSAL_TEXT_BYTES = 192 };

/* The sentence, cut where `size` ends; returns `text`. */
const char *terni_refusal_text(const struct nic_refusal *r, char *text, size_t size);

#endif
