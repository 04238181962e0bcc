/* SPDX-License-Identifier: Apache-2.0
 *
 * A queue pair as kernels drive it: plain numbers and addresses, filled by a provider on the host. Whose NIC
 * reads the entries and writes the completions, silicon or software, is not in here and makes no difference.
 *
 * Three counters of 64 bits tell how far the queue is. They count blocks of the send ring from the queue's
 * first on, never wrap, and are kept apart from what is constant:
 *
 *                 consumed                   ready            reserved
 *     ... free ------|-- written, with the NIC --|-- being built --|------- free ...
 *                    `---------------- at most the ring's blocks --'
 *
 * reserved  slots given to threads. Raised only as far as there is room, so nobody waits while holding slots
 * ready     entries are whole up to here, and the NIC has been told, or will be by a thread that has reserved
 *           what comes next: threads finish in the order in which they reserved, and who finds `ready` where
 *           its own slots begin has the doorbell
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
    /* Behind them, for old values that nobody wants: of signals, and of all else. */
    NET_QUEUE_OF_NOBODY = NET_QUEUE_NUM_RESULTS,
    NET_QUEUE_OF_SIGNALS = NET_QUEUE_NUM_RESULTS + 1,
    NET_QUEUE_RESULT_WORDS = NET_QUEUE_NUM_RESULTS + 2,
};

/* net_queue.flags */
enum {
    /* Every completion has an entry of its own in a ring, with an owner bit. Otherwise all overwrite entry 0
     * (a collapsed queue). */
    NET_QUEUE_CQ_RING = 1 << 0,
    /* Kernels cannot reach the doorbell: they publish the index in *relay, and a thread of the host writes
     * record and doorbell (relay.h). */
    NET_QUEUE_RELAY = 1 << 1,
    /* Data that the NIC writes into this GPU may become visible after its completion: READs and fetching
     * atomics are followed by a DUMP that waits for them and pushes their data before it. */
    NET_QUEUE_DUMP = 1 << 2,
    /* The NIC takes the index from the register, and there is no record to store before it. */
    NET_QUEUE_NO_RECORD = 1 << 3,
    /* The peer has several NICs, and what this one has written there may become visible after what another
     * writes later: a quiet ends with a READ. */
    NET_QUEUE_FAR_NICS = 1 << 4,
};

/* Addresses that one key names. A request that crosses from one range into another becomes two messages. */
struct net_range {
    uint64_t addr, bytes;
    struct wqe_key key;
    uint32_t reserved; /* 0 */
};

/* This, then `num` struct net_range, sorted by address. They do not overlap. Kernels search them; a list is
 * never changed, another takes its place (key_lists.h). Behind 0 there is one of no bytes, so that the first
 * can be looked at before `num` is known. */
struct net_ranges {
    uint64_t num;
};

TERN_DEVICE const struct net_range *net_ranges_first(const struct net_ranges *list)
{
    return (const struct net_range *)(const void *)(list + 1);
}

/* What kernels change; in memory of the GPU whose kernels drive the queue. See terni_queue_state_init. */
struct net_queue_state {
    uint64_t reserved, ready, consumed;
    uint64_t completions;  /* NET_QUEUE_CQ_RING: entries of the completion queue that were taken */
    uint64_t error;        /* 0, or the first error completion that was seen: QUEUE_ERROR_* */
    uint64_t results_busy; /* bit i: result word i is in use */
    /* Of a result word whose wait was given up: the ticket after which the NIC writes it no more; else 0. */
    uint64_t result_until[NET_QUEUE_NUM_RESULTS];
};

/* net_queue_state.error: who looks after the fact finds syndrome, vendor syndrome, index and opcode. */
#define TERN_QUEUE_ERROR_SEEN (1ull << 63)

TERN_DEVICE uint32_t queue_error_syndrome(uint64_t error) { return (uint32_t)error & 0xffu; }
TERN_DEVICE uint32_t queue_error_vendor_syndrome(uint64_t error) { return (uint32_t)(error >> 8) & 0xffu; }
TERN_DEVICE uint32_t queue_error_idx(uint64_t error) { return (uint32_t)(error >> 16) & 0xffffu; }
TERN_DEVICE uint32_t queue_error_wqe_opcode(uint64_t error) { return (uint32_t)(error >> 32) & 0xffu; }

/* Constant while kernels use it, but for `local` and `remote`. All addresses are as kernels see them, unless
 * it says otherwise. */
struct net_queue {
    struct wqe_ring ring; /* NET_QUEUE_MIN_BLOCKS to WQE_MAX_RING_BLOCKS, a power of two */
    uint32_t qpn;
    uint32_t flags;     /* NET_QUEUE_* */
    uint32_t *record;   /* two words, DOORBELL_RECORD_*; not used with NET_QUEUE_RELAY or _NO_RECORD */
    uint64_t *doorbell; /* the register, 8 bytes at once; not used with NET_QUEUE_RELAY */
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
    /* NET_QUEUE_RESULT_WORDS words, of which DUMP reads the one of nobody. In memory of this GPU, aligned to
     * 8. */
    uint64_t *results;
    uint64_t results_addr; /* as results_lkey knows them */
    /* Addresses of struct net_ranges: what keys of this rank's memory and of the peer's are. Words, because
     * the host stores others there as memory comes and goes; see queue_range. */
    uint64_t local, remote;
    const uint64_t *abort; /* not 0: all waits end; or NULL */
    uint64_t timeout_ns;   /* of waits that are given no deadline: for room in the ring and for old values */
    struct net_queue_state *state;
    /* Or NULL: how many queues of this rank have been seen to lose their peer, a word of its device's
     * memory. A table of queues has it for the rank itself, too. */
    uint64_t *lost;
};

/* What writing entries and telling of them takes of a queue, read at once when slots have been reserved: that
 * acquired, which emptied L1, and one after the other these would each come from L2. */
struct queue_fixed {
    struct wqe_ring ring;
    uint32_t qpn, flags, batch_blocks;
    uint32_t *record;
    uint64_t *doorbell, *relay;
    struct wqe_key results_lkey;
    uint64_t results_addr;
    struct net_queue_state *state;
};

TERN_DEVICE struct queue_fixed queue_fixed_of(const struct net_queue *q)
{
    struct queue_fixed f;
    f.ring = q->ring;
    f.qpn = q->qpn;
    f.flags = q->flags;
    f.batch_blocks = q->batch_blocks;
    f.record = q->record;
    f.doorbell = q->doorbell;
    f.relay = q->relay;
    f.results_lkey = q->results_lkey;
    f.results_addr = q->results_addr;
    f.state = q->state;
    return f;
}

/* A queue that is at hand (queue_near.h). */
struct queue_near {
    const struct net_queue *queue; /* NULL: none is */
    struct queue_fixed fixed;
    struct net_range there, here; /* of the memory that it is for */
    uint64_t reserved, consumed;  /* the latest that was seen here */
    uint32_t message_bytes, unused;
    uint64_t way; /* what an address in a window here becomes at the peer, less itself (route_near.h) */
};

/* Host (queue.c). Of a queue whose first entry has index `first`; with NIC counters of 0, that is 0. */
void terni_queue_state_init(struct net_queue_state *state, uint64_t first);
/* TERN_INVALID_ARGUMENT and a sentence if a member is outside what is promised above. Follows no pointer. */
enum tern_status terni_queue_check(const struct net_queue *q);

#endif
