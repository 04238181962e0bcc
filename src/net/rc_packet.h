/* SPDX-License-Identifier: Apache-2.0
 *
 * Reliable connections (RC): what their two ends say to each other.
 *
 * A requester carries out the operations of one queue pair, a responder answers it at the target. Data is cut
 * into packets of one MTU; every packet has a packet sequence number (PSN) of 24 bits, and a READ has as many
 * as its answer has packets. An acknowledgement is of all packets up to its PSN. Both ends count packets in
 * 64 bits, which never wrap; only the wire has 24, widened by whoever receives them to the nearest count.
 *
 * Each packet of a WRITE says where its whole message goes and which part of it this is, so that it can be
 * checked and placed by itself, in whatever order packets arrive.
 *
 * Ours alone: nothing here is meant to be understood by a NIC of silicon. */
#ifndef TERN_RC_PACKET_H
#define TERN_RC_PACKET_H

#include "tern/tern.h"
#include "net/mlx5_decode.h"

#include <assert.h>

enum {
    RC_MIN_MTU = 256,
    RC_MAX_MTU = 4096,
    RC_PSN_MASK = (1 << 24) - 1,
    RC_MAX_READS = 16,       /* READs and atomics without an answer; so many answers a responder remembers */
    RC_MAX_WINDOW = 1 << 21, /* with the longest READ behind it, still less than half of all PSNs */
    RC_ADAPTIVE_WINDOW = 64, /* packets that may be placed ahead of a missing one */
    RC_RNR_FOREVER = 7,      /* retries for want of a receive entry without end, as with InfiniBand */
};

/* Kinds of packets; requests first. */
enum {
    RC_WRITE,
    RC_READ,
    RC_ATOMIC,
    RC_ACK,
    RC_NAK,
    RC_READ_ANSWER,   /* with data; also acknowledges what comes before */
    RC_ATOMIC_ANSWER, /* likewise */
    RC_NUM_KINDS
};

enum {
    RC_IMM = 1 << 0,     /* WRITE: the last packet of a WRITE_IMM */
    RC_ASK_ACK = 1 << 1, /* WRITE: an acknowledgement is wanted */
    RC_TWIN = 1 << 2,    /* the link's: a double */
};

/* Why a packet was not taken; `syndrome` tells more of RC_NAK_REFUSED. */
enum {
    RC_NAK_SEQUENCE = 1, /* psn is the one that is missing */
    RC_NAK_NOT_READY,    /* there is no receive entry (RNR) */
    RC_NAK_REFUSED,      /* for good */
};

/* The payload follows. */
struct rc_packet {
    uint64_t due; /* the link's: when it may arrive */
    uint32_t kind, flags;
    uint32_t to_qpn, psn;
    uint32_t payload_bytes;
    uint32_t nak; /* RC_NAK: why; of a refusal with these: */
    uint32_t syndrome, reason;
    uint64_t remote; /* requests: where the whole message goes or comes from, */
    uint32_t bytes;  /* how long it is, */
    uint32_t offset; /* and where in it the payload, or the answer to this READ, begins */
    uint64_t value;  /* RC_ATOMIC_ANSWER: the old one */
    uint32_t rkey;
    uint32_t imm;
    struct wqe_amo amo; /* RC_ATOMIC */
};

static_assert(sizeof(struct rc_packet) % 16 == 0, "payloads are aligned to 16 bytes");

/* Bytes of memory that a packet takes, with its payload. */
TERN_DEVICE size_t rc_packet_bytes(uint32_t mtu) { return sizeof(struct rc_packet) + mtu; }

TERN_DEVICE char *rc_payload(struct rc_packet *packet) { return (char *)(packet + 1); }
TERN_DEVICE const char *rc_payload_of(const struct rc_packet *packet) { return (const char *)(packet + 1); }

/* Of a message: at least one, so that an operation without bytes is acknowledged too. */
TERN_DEVICE uint32_t rc_num_packets(uint32_t bytes, uint32_t mtu)
{
    return bytes == 0 ? 1u : (uint32_t)(((uint64_t)bytes + mtu - 1) / mtu);
}

/* Of the packet that begins at `offset`. */
TERN_DEVICE uint32_t rc_part_bytes(uint32_t bytes, uint32_t offset, uint32_t mtu)
{
    return bytes - offset < mtu ? bytes - offset : mtu;
}

/* The number of a packet, counted in 64 bits, from which it is told what a PSN means: the first has one round
 * of PSNs below it, so that what comes before it has a number too. */
TERN_DEVICE uint64_t rc_first_number(uint32_t first_psn) { return (1ull << 24) + first_psn; }

/* The number nearest to `near` that has this PSN. */
TERN_DEVICE uint64_t rc_widen(uint32_t psn, uint64_t near)
{
    uint32_t ahead = (psn - (uint32_t)near) & RC_PSN_MASK;
    return ahead < (1u << 23) ? near + ahead : near + ahead - (1u << 24);
}

/* A packet that nothing has been said in. */
TERN_DEVICE void rc_packet_clear(struct rc_packet *packet, uint32_t kind, uint32_t to_qpn, uint64_t number)
{
    const struct rc_packet nothing = {0};
    *packet = nothing;
    packet->kind = kind;
    packet->to_qpn = to_qpn;
    packet->psn = (uint32_t)number & RC_PSN_MASK;
}

/* ---- What both ends are told ---- */

struct rc_config {
    uint32_t qpn, peer_qpn, pd;
    uint32_t mtu;         /* RC_MIN_MTU to RC_MAX_MTU, a power of two; the same at both ends */
    uint32_t first_psn;   /* of the requester's first packet, the responder's first expected one */
    uint32_t window;      /* packets without acknowledgement, 1 to RC_MAX_WINDOW */
    uint32_t max_reads;   /* READs and atomics without answer, 1 to RC_MAX_READS */
    uint32_t retry_count; /* times that a packet is sent again because nothing was heard */
    uint32_t rnr_retry;   /* times for want of a receive entry; RC_RNR_FOREVER */
    uint32_t adaptive;    /* not 0: WRITE packets may arrive in any order (adaptive routing) */
    uint32_t backoff;     /* not 0: each time in a row waits twice as long for it as the one before */
    uint32_t reserved;
    uint64_t timeout;   /* without progress, in units of `now` */
    uint64_t rnr_delay; /* before a try again */
};

/* TERN_INVALID_ARGUMENT with the value that is out of range. Host only (rc_config.c). */
enum tern_status terni_rc_check_config(const struct rc_config *config);

#endif
