/* SPDX-License-Identifier: Apache-2.0
 *
 * A queue pair as kernels drive it: plain numbers and addresses, filled by a provider on the host. Whose NIC
 * reads the entries and writes the completions, silicon or software, is not in here and makes no difference.
 *
 * Four counters of 64 bits tell how far the queue is. They count blocks of the send ring from the queue's
 * first on, never wrap, and are kept apart from what is constant:
 *
 *                 consumed         posted          ready        reserved
 *     ... free ------|-- with the NIC --|-- written --|-- being built --|------- free ...
 *                    `----------------- at most the ring's blocks ------'
 *
 * reserved  slots given to threads. Raised only as far as there is room, so nobody waits while holding slots
 * ready     entries are whole up to here: threads finish in the order in which they reserved
 * posted    the NIC has been told
 * consumed  the NIC has completed them, and the slots may be written again
 *
 * queue_core.h has what moves the counters, queue_ops.h the operations. A ticket (net_wait.h) is the value of
 * `consumed` from which on an operation, and all before it in this queue, are complete. */
#ifndef TERN_QUEUE_H
#define TERN_QUEUE_H

#include "tern/tern.h"
#include "net/mlx5_wqe.h"
#include "net/net_wait.h"

enum {
    NET_QUEUE_MIN_BLOCKS = 4, /* the longest reservation: data, and a signal of two blocks with its NOP */
    /* With NET_QUEUE_CQ_RING: two rings lie within what 16 bits tell (queue_poll_ring). */
    NET_QUEUE_MAX_CQ_RING_BLOCKS = WQE_MAX_RING_BLOCKS / 2,
    NET_QUEUE_NUM_RESULTS = 64, /* words for old values that are on their way */
};

/* net_queue.flags */
enum {
    /* Every completion has an entry of its own in a ring, with an owner bit. Otherwise all overwrite entry 0
     * (a collapsed queue). */
    NET_QUEUE_CQ_RING = 1 << 0,
    /* Kernels cannot reach the doorbell: they publish `posted` in *relay, and a thread of the host writes
     * record and doorbell (relay.h). */
    NET_QUEUE_RELAY = 1 << 1,
    /* Data that the NIC writes into this GPU may become visible after its completion: READs and fetching
     * atomics are followed by a DUMP that waits for them and pushes their data before it. */
    NET_QUEUE_DUMP = 1 << 2,
};

/* Addresses that one key names. A request that crosses from one range into another becomes two messages. */
struct net_range {
    uint64_t addr, bytes;
    struct wqe_key key;
    uint32_t reserved; /* 0 */
};

/* Searched from the front: the range that is used most comes first. Ranges do not overlap. May grow between
 * kernels: entries behind `num` are written, then num. */
struct net_ranges {
    const struct net_range *ranges; /* kernels read them */
    uint64_t num;
};

/* What kernels change; in memory of the GPU whose kernels drive the queue. See terni_queue_state_init. */
struct net_queue_state {
    uint64_t reserved, ready, posted, consumed;
    uint64_t completions;  /* NET_QUEUE_CQ_RING: entries of the completion queue that were taken */
    uint64_t error;        /* 0, or the first error completion that was seen: QUEUE_ERROR_* */
    uint64_t results_busy; /* bit i: result word i is in use */
    uint32_t lock;         /* 1: a thread writes record and doorbell */
    uint32_t reserved_word;
    /* Of a result word whose wait was given up: the ticket after which the NIC writes it no more; else 0. */
    uint64_t result_until[NET_QUEUE_NUM_RESULTS];
};

/* net_queue_state.error: who looks after the fact finds syndrome, vendor syndrome, index and opcode. */
#define QUEUE_ERROR_SEEN (1ull << 63)

TERN_DEVICE uint32_t queue_error_syndrome(uint64_t error) { return (uint32_t)error & 0xffu; }
TERN_DEVICE uint32_t queue_error_vendor_syndrome(uint64_t error) { return (uint32_t)(error >> 8) & 0xffu; }
TERN_DEVICE uint32_t queue_error_idx(uint64_t error) { return (uint32_t)(error >> 16) & 0xffffu; }
TERN_DEVICE uint32_t queue_error_wqe_opcode(uint64_t error) { return (uint32_t)(error >> 32) & 0xffu; }

/* Constant while kernels use it. All addresses are as kernels see them, unless it says otherwise. */
struct net_queue {
    struct wqe_ring ring; /* NET_QUEUE_MIN_BLOCKS to WQE_MAX_RING_BLOCKS, a power of two */
    uint32_t qpn;
    uint32_t flags;     /* NET_QUEUE_* */
    uint32_t *record;   /* two words, DOORBELL_RECORD_*; not used with NET_QUEUE_RELAY */
    uint64_t *doorbell; /* the register, 8 bytes at once; likewise */
    uint64_t *relay;    /* NET_QUEUE_RELAY: memory that the host polls, 0 or the first index to begin with */
    /* Entries of CQE_WORDS words, all 0xff to begin with. The completion queue ignores overrun and no
     * consumer index is ever written to it; that it never runs over follows from num_cqes. */
    uint32_t *cqes;
    uint32_t num_cqes;      /* NET_QUEUE_CQ_RING: a power of two, at least the ring's blocks; else 1 */
    uint32_t message_bytes; /* of one message at most, up to WQE_MAX_BYTES; longer ones are split */
    /* A thread that finds newer reservations leaves the doorbell to them, unless its own entries cross a
     * multiple of this number of blocks. A power of two. */
    uint32_t batch_blocks;
    struct wqe_key results_lkey;
    /* NET_QUEUE_NUM_RESULTS words for old values and one for what nobody wants, which DUMP reads too. In
     * memory of this GPU, aligned to 8. */
    uint64_t *results;
    uint64_t results_addr; /* as results_lkey knows them */
    struct net_ranges local, remote;
    const uint64_t *abort; /* not 0: all waits end; or NULL */
    uint64_t timeout_ns;   /* of waits that are given no deadline: for room in the ring and for old values */
    struct net_queue_state *state;
};

/* Host (queue.c). Of a queue whose first entry has index `first`; with NIC counters of 0, that is 0. */
void terni_queue_state_init(struct net_queue_state *state, uint64_t first);
/* TERN_INVALID_ARGUMENT and a sentence if a member is outside what is promised above. Follows no pointer. */
enum tern_status terni_queue_check(const struct net_queue *q);

#endif
