/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the fields of DevX mailboxes are. A mailbox is what the firmware of a NIC is told, or answers: an
 * array of big-endian words, in which every field has an offset and a width in bits. Bit 0 is the highest of
 * word 0, and no field of up to 32 bits crosses a word.
 *
 * The list is ours, because rdma-core does not install its own, and holds what Tern uses and nothing else.
 * A structure within a mailbox (the context of a queue, the path in it) has its own list, with offsets from
 * its own beginning; the place where it begins is a field as well (`*_AT`, a structure), given to get and
 * set as `base`. */
#ifndef TERN_DEVX_FIELD_H
#define TERN_DEVX_FIELD_H

#include <assert.h>
#include <stdint.h>

/* What every command begins with, and its answer. */
#define DEVX_IN_FIELDS(X)                                                                                    \
    X(IN_OPCODE, 0x000, 16)                                                                                  \
    X(IN_MODIFIER, 0x030, 16)                                                                                \
    X(IN_QPN, 0x048, 24) /* of commands on a queue pair */

#define DEVX_OUT_FIELDS(X)                                                                                   \
    X(OUT_STATUS, 0x000, 8)                                                                                  \
    X(OUT_SYNDROME, 0x020, 32)                                                                               \
    X(OUT_NUMBER, 0x048, 24) /* of the completion queue or queue pair that was created */

/* The input of CREATE_CQ, after what every command begins with. */
#define DEVX_CREATE_CQ_FIELDS(X)                                                                             \
    X(CREATE_CQ_UMEM_OFFSET, 0x280, 64)                                                                      \
    X(CREATE_CQ_UMEM_ID, 0x2c0, 32)                                                                          \
    X(CREATE_CQ_UMEM_VALID, 0x2e0, 1)

/* Completion queue context. */
#define DEVX_CQC_FIELDS(X)                                                                                   \
    X(CQC_DBR_UMEM_VALID, 0x006, 1)                                                                          \
    X(CQC_COLLAPSED, 0x00b, 1)                                                                               \
    X(CQC_OVERRUN_IGNORED, 0x00e, 1)                                                                         \
    X(CQC_DBR_UMEM_ID, 0x020, 32)                                                                            \
    X(CQC_LOG_SIZE, 0x063, 5)                                                                                \
    X(CQC_UAR_PAGE, 0x068, 24)                                                                               \
    X(CQC_EQN, 0x0b8, 8)                                                                                     \
    X(CQC_DBR_ADDRESS, 0x1c0, 64) /* an offset in the umem, where that is valid */

/* The input of CREATE_QP, likewise. */
#define DEVX_CREATE_QP_FIELDS(X)                                                                             \
    X(CREATE_QP_UMEM_OFFSET, 0x800, 64)                                                                      \
    X(CREATE_QP_UMEM_ID, 0x840, 32)                                                                          \
    X(CREATE_QP_UMEM_VALID, 0x860, 1)

/* Queue pair context, without its path. */
#define DEVX_QPC_FIELDS(X)                                                                                   \
    X(QPC_STATE, 0x000, 4)                                                                                   \
    X(QPC_SERVICE, 0x008, 8)                                                                                 \
    X(QPC_MIGRATION, 0x013, 2)                                                                               \
    X(QPC_PD, 0x028, 24)                                                                                     \
    X(QPC_MTU, 0x040, 3)                                                                                     \
    X(QPC_LOG_MESSAGE_MAX, 0x043, 5)                                                                         \
    X(QPC_LOG_SQ_SIZE, 0x051, 4)                                                                             \
    X(QPC_TIMESTAMPS, 0x058, 2)                                                                              \
    X(QPC_UAR_PAGE, 0x068, 24)                                                                               \
    X(QPC_SEND_RECORD_MODE, 0x080, 2)                                                                        \
    X(QPC_USER_INDEX, 0x088, 24)                                                                             \
    X(QPC_REMOTE_QPN, 0x0a8, 24)                                                                             \
    X(QPC_LOG_ACK_REQ_FREQ, 0x380, 4)                                                                        \
    X(QPC_LOG_SRA_MAX, 0x388, 3)                                                                             \
    X(QPC_RETRY_COUNT, 0x38d, 3)                                                                             \
    X(QPC_RNR_RETRY, 0x390, 3)                                                                               \
    X(QPC_NEXT_SEND_PSN, 0x3c8, 24)                                                                          \
    X(QPC_CQN_SEND, 0x3e8, 24)                                                                               \
    X(QPC_LOG_RRA_MAX, 0x488, 3)                                                                             \
    X(QPC_ATOMIC_MODE, 0x48c, 4)                                                                             \
    X(QPC_REMOTE_READ, 0x490, 1)                                                                             \
    X(QPC_REMOTE_WRITE, 0x491, 1)                                                                            \
    X(QPC_REMOTE_ATOMIC, 0x492, 1)                                                                           \
    X(QPC_MIN_RNR_NAK, 0x4a3, 5)                                                                             \
    X(QPC_NEXT_RECEIVE_PSN, 0x4a8, 24)                                                                       \
    X(QPC_DBR_ADDRESS, 0x500, 64)                                                                            \
    X(QPC_RQ_TYPE, 0x565, 3)                                                                                 \
    X(QPC_HW_SQ_COUNTER, 0x5a0, 16)                                                                          \
    X(QPC_SW_SQ_COUNTER, 0x5b0, 16)                                                                          \
    X(QPC_DBR_UMEM_VALID, 0x683, 1)                                                                          \
    X(QPC_DBR_UMEM_ID, 0x720, 32)

/* Address path. */
#define DEVX_PATH_FIELDS(X)                                                                                  \
    X(PATH_PKEY_INDEX, 0x010, 16)                                                                            \
    X(PATH_GRH, 0x028, 1)                                                                                    \
    X(PATH_RLID, 0x030, 16)                                                                                  \
    X(PATH_ACK_TIMEOUT, 0x040, 5)                                                                            \
    X(PATH_SOURCE_INDEX, 0x048, 8)                                                                           \
    X(PATH_HOP_LIMIT, 0x058, 8)                                                                              \
    X(PATH_TCLASS, 0x064, 8)                                                                                 \
    X(PATH_FLOW_LABEL, 0x06c, 20)                                                                            \
    X(PATH_RGID_FIRST, 0x080, 64)                                                                            \
    X(PATH_RGID_SECOND, 0x0c0, 64)                                                                           \
    X(PATH_DSCP, 0x10a, 6)                                                                                   \
    X(PATH_UDP_SPORT, 0x110, 16)                                                                             \
    X(PATH_ETH_PRIO, 0x121, 3)                                                                               \
    X(PATH_SL, 0x124, 4)                                                                                     \
    X(PATH_PORT, 0x128, 8)                                                                                   \
    X(PATH_RMAC_FIRST, 0x130, 16)                                                                            \
    X(PATH_RMAC_SECOND, 0x140, 32)

/* Capabilities, of the device, further ones, of its atomics, and of RoCE. */
#define DEVX_CAPS_FIELDS(X)                                                                                  \
    X(CAPS_HAS_MORE, 0x020, 1) /* MORE can be asked for */                                                   \
    X(CAPS_LOG_MAX_MESSAGE, 0x1c3, 5)                                                                        \
    X(CAPS_CQE_VERSION, 0x1fc, 4)                                                                            \
    X(CAPS_ROCE, 0x21d, 1) /* ROCE can be asked for */                                                       \
    X(CAPS_ATOMIC, 0x21e, 1)                                                                                 \
    X(CAPS_CQ_OVERRUN_IGNORED, 0x220, 1)                                                                     \
    X(CAPS_RC, 0x23f, 1)                                                                                     \
    X(CAPS_TIMESTAMPS, 0x440, 2) /* of send queues; 0: from the free running clock alone, or old firmware */

#define DEVX_MORE_FIELDS(X)                                                                                  \
    X(MORE_NO_SEND_RECORD, 0x2e1, 1) /* queue pairs without a record of what is sent */

#define DEVX_ATOMIC_FIELDS(X)                                                                                \
    X(ATOMIC_HOST_ENDIAN_8, 0x040, 2) /* 1: results of 8 bytes in the order of the host */                   \
    X(ATOMIC_OPERATIONS, 0x090, 16)                                                                          \
    X(ATOMIC_SIZES, 0x0b0, 16) /* bit n: operands of 2^n bytes */

#define DEVX_ROCE_FIELDS(X) X(ROCE_TIMESTAMPS, 0x01e, 2) /* of queue pairs, likewise */

/* X(structure's list, bits of the structure). */
#define DEVX_STRUCTURES(X)                                                                                   \
    X(IN, 0x080)                                                                                             \
    X(OUT, 0x080)                                                                                            \
    X(CREATE_CQ, 0x880)                                                                                      \
    X(CQC, 0x200)                                                                                            \
    X(CREATE_QP, 0x880)                                                                                      \
    X(QPC, 0x740)                                                                                            \
    X(PATH, 0x160)                                                                                           \
    X(CAPS, 0x8000)                                                                                          \
    X(MORE, 0x8000)                                                                                          \
    X(ATOMIC, 0x8000)                                                                                        \
    X(ROCE, 0x8000)

enum devx_field {
#define DEVX_ENUM(name, offset, bits) DEVX_##name,
#define DEVX_ALL(name, bits)          DEVX_##name##_FIELDS(DEVX_ENUM)
    DEVX_STRUCTURES(DEVX_ALL)
#undef DEVX_ALL
#undef DEVX_ENUM
        DEVX_FIELD_COUNT
};

/* Bits from the beginning of a mailbox, or of the structure around. */
enum {
    DEVX_CQC_AT = 0x080,  /* in the input of CREATE_CQ */
    DEVX_QPC_AT = 0x0c0,  /* in all inputs with a queue pair context, and in the output of QUERY_QP */
    DEVX_PATH_AT = 0x0c0, /* in a queue pair context */
    DEVX_CAPS_AT = 0x080, /* in the output of QUERY_HCA_CAP */
};

/* Words of 32 bits. */
enum {
    DEVX_HEAD_WORDS = 4, /* a command without a body, the answer to a creation or change */
    DEVX_CREATE_CQ_WORDS = 68,
    DEVX_QP_WORDS = 68, /* CREATE_QP, all changes of state that bring a context, the answer to QUERY_QP */
    DEVX_CAPS_WORDS = 4 + 1024,
};

struct devx_place {
    uint16_t offset, bits;
};

static inline struct devx_place devx_place(enum devx_field field)
{
    static const struct devx_place places[DEVX_FIELD_COUNT] = {
#define DEVX_ROW(name, offset, bits) {offset, bits},
#define DEVX_ALL(name, bits)         DEVX_##name##_FIELDS(DEVX_ROW)
        DEVX_STRUCTURES(DEVX_ALL)
#undef DEVX_ALL
#undef DEVX_ROW
    };
    return places[field];
}

/* The 32 bits or fewer at `offset`. */
static inline uint32_t devx_get_bits(const uint32_t *box, uint32_t offset, uint32_t bits)
{
    uint32_t word = __builtin_bswap32(box[offset / 32]);
    return (uint32_t)((uint64_t)word >> (32 - offset % 32 - bits)) & (bits == 32 ? ~0u : (1u << bits) - 1);
}

static inline void devx_set_bits(uint32_t *box, uint32_t offset, uint32_t bits, uint32_t value)
{
    uint32_t shift = 32 - offset % 32 - bits, mask = (bits == 32 ? ~0u : (1u << bits) - 1) << shift;
    uint32_t word = __builtin_bswap32(box[offset / 32]);
    box[offset / 32] = __builtin_bswap32((word & ~mask) | (value << shift));
}

/* `base`: where the field's structure begins in the mailbox. A value that does not fit is our mistake: what
 * comes from outside is checked before it comes here. */
static inline void devx_set(uint32_t *box, uint32_t base, enum devx_field field, uint64_t value)
{
    struct devx_place p = devx_place(field);
    assert(p.bits == 64 || value >> p.bits == 0);
    if (p.bits == 64) {
        devx_set_bits(box, base + p.offset, 32, (uint32_t)(value >> 32));
        devx_set_bits(box, base + p.offset + 32, 32, (uint32_t)value);
    } else {
        devx_set_bits(box, base + p.offset, p.bits, (uint32_t)value);
    }
}

static inline uint64_t devx_get(const uint32_t *box, uint32_t base, enum devx_field field)
{
    struct devx_place p = devx_place(field);
    if (p.bits == 64) {
        return (uint64_t)devx_get_bits(box, base + p.offset, 32) << 32 |
               devx_get_bits(box, base + p.offset + 32, 32);
    }
    return devx_get_bits(box, base + p.offset, p.bits);
}

#endif
