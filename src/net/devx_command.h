/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands that make a queue pair of an mlx5 device and bring it to work, as mailboxes: functions from
 * plain structures to words, which touch no device. What is not set is zero.
 *
 * There is none for destruction: with DevX the kernel writes that one when an object is created, and sends it
 * when the object goes. */
#ifndef TERN_DEVX_COMMAND_H
#define TERN_DEVX_COMMAND_H

#include "net/devx_field.h"

#include <stddef.h>

enum devx_opcode {
    DEVX_QUERY_HCA_CAP = 0x100,
    DEVX_CREATE_CQ = 0x400,
    DEVX_CREATE_QP = 0x500,
    DEVX_RST2INIT = 0x502,
    DEVX_INIT2RTR = 0x503,
    DEVX_RTR2RTS = 0x504,
    DEVX_QUERY_QP = 0x50b,
};

/* Of QUERY_HCA_CAP: what is in force now. */
enum devx_caps {
    DEVX_QUERY_DEVICE = 0 << 1 | 1,
    DEVX_QUERY_ATOMIC = 3 << 1 | 1,
    DEVX_QUERY_ROCE = 4 << 1 | 1,
    DEVX_QUERY_MORE = 0x20 << 1 | 1
};

/* Bits of ATOMIC_OPERATIONS. */
enum {
    DEVX_ATOMIC_CS = 1 << 0,
    DEVX_ATOMIC_FA = 1 << 1,
    DEVX_ATOMIC_MASKED_CS = 1 << 2,
    DEVX_ATOMIC_MASKED_FA = 1 << 3,
};

/* QPC_STATE. */
enum { DEVX_RST = 0, DEVX_INIT = 1, DEVX_RTR = 2, DEVX_RTS = 3, DEVX_ERR = 6 };

enum {
    DEVX_SERVICE_RC = 0,
    DEVX_MIGRATED = 3,
    DEVX_RQ_NONE = 3,
    DEVX_TIMESTAMPS_FREE = 0,    /* from the free running clock; what firmware without the field has */
    DEVX_TIMESTAMPS_DEFAULT = 1, /* from the one that the device is set to */
    DEVX_NO_SEND_RECORD = 1,     /* software rings, and the NIC takes the index from that */
    DEVX_ATOMIC_MODE_64 = 3,     /* up to 64 bits */
    DEVX_LOG_MESSAGE_MAX = 30,
    DEVX_MIN_RNR_NAK = 12,     /* 0.64 ms */
    DEVX_RETRY_COUNT = 7,      /* the most: eight tries */
    DEVX_RNR_RETRY = 7,        /* without end */
    DEVX_MIN_ACK_TIMEOUT = 14, /* 4.096 us times 2^14: a try waits 67 ms at least */
    DEVX_MAX_ACK_TIMEOUT = 20, /* likewise 4.3 s */
    DEVX_HOP_LIMIT = 64,
};

/* Memory in a umem. */
struct devx_memory {
    uint32_t umem_id;
    uint64_t offset;
};

struct devx_cq {
    struct devx_memory ring;   /* of completions of 64 bytes */
    struct devx_memory record; /* 8 bytes */
    uint32_t log_entries;
    uint32_t uar_page, eqn;
    int collapsed; /* every completion goes to entry 0 */
};

struct devx_qp {
    struct devx_memory ring; /* of basic blocks of 64 bytes */
    struct devx_memory record;
    uint32_t log_blocks;
    uint32_t pd, cqn, uar_page, user_index;
    int has_no_record; /* of what is sent */
    uint32_t timestamps;
};

/* How packets get to the peer. */
struct devx_path {
    int is_roce;
    uint32_t port, pkey_index, sl;
    uint32_t traffic_class;
    uint32_t source_index; /* of the own GID in the port's table */
    uint32_t hop_limit;
    unsigned char rgid[16]; /* of the peer, network order */
    /* InfiniBand */
    uint32_t rlid;
    int has_grh; /* the peer is in another subnet */
    uint32_t flow_label;
    /* RoCE v2 */
    unsigned char rmac[6];
    uint32_t udp_sport; /* switches spread queue pairs over paths by it */
};

struct devx_link {
    uint32_t qpn, remote_qpn;
    uint32_t mtu;           /* code of libibverbs: 1 is 256 bytes, 5 is 4096 */
    uint32_t log_reads_in;  /* READs and atomics that the peer may have outstanding here */
    uint32_t log_reads_out; /* and this queue pair at the peer */
    uint32_t ack_timeout;   /* DEVX_MIN_ACK_TIMEOUT to DEVX_MAX_ACK_TIMEOUT */
    struct devx_path path;
};

void terni_devx_query_caps(uint32_t in[DEVX_HEAD_WORDS], enum devx_caps which);
void terni_devx_create_cq(uint32_t in[DEVX_CREATE_CQ_WORDS], const struct devx_cq *cq);
void terni_devx_create_qp(uint32_t in[DEVX_QP_WORDS], const struct devx_qp *qp);
void terni_devx_rst2init(uint32_t in[DEVX_QP_WORDS], const struct devx_link *link);
void terni_devx_init2rtr(uint32_t in[DEVX_QP_WORDS], const struct devx_link *link);
void terni_devx_rtr2rts(uint32_t in[DEVX_QP_WORDS], const struct devx_link *link);
void terni_devx_query_qp(uint32_t in[DEVX_HEAD_WORDS], uint32_t qpn);

/* What QUERY_QP answers, as far as one looks for why a queue stands still. */
struct devx_qp_state {
    uint32_t state;                  /* DEVX_RST ... */
    uint32_t hw_counter, sw_counter; /* of blocks: fetched by the NIC, and as the doorbell said */
};
void terni_devx_read_qp(const uint32_t out[DEVX_QP_WORDS], struct devx_qp_state *state);

const char *terni_devx_opcode_name(uint32_t opcode);

#endif
