/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of queue pairs share: kernels on one side, a software NIC on the other, and two heaps, the
 * kernels' own and the peer's, that only the NIC carries anything between. */
#ifndef TERN_TEST_QUEUE_RIG_H
#define TERN_TEST_QUEUE_RIG_H

#include "simt/executor.h"
#include "net/softnic.h"
#include "queue_steps.h"
#include "softnic_net.h"
#include "support.h"

enum { RIG_QUEUES = 4, RIG_HEAP_BYTES = 64 * 1024, RIG_KEYS = 8, RIG_PD = 7, RIG_PEER_PD = 9 };

/* Peers' addresses differ from where the memory is, as they do between processes. */
#define RIG_REMOTE_ADDR 0x700000000000ull

/* Of waits that are not meant to end so: long, so that a busy machine does not fail a test. */
#define RIG_PATIENCE_NS 60000000000ull

/* What a world is to be; zero: the smallest. */
struct queue_shape {
    uint32_t num_queues;
    uint32_t blocks;        /* of a send ring */
    uint32_t num_cqes;      /* 0: collapsed */
    uint32_t batch_blocks;  /* 0: 1 */
    uint32_t message_bytes; /* 0: WQE_MAX_BYTES */
    uint32_t hold_one_in;
    int late;                   /* results are late, and NET_QUEUE_DUMP is set */
    int relay;                  /* NET_QUEUE_RELAY */
    int no_record;              /* NET_QUEUE_NO_RECORD, not with `relay` */
    int free_running;           /* kernels run while the host does not wait; seeds do not replay then */
    uint64_t first;             /* index */
    uint64_t timeout_ns;        /* 0: RIG_PATIENCE_NS */
    int nic_blocks, nic_warps;  /* 0: 1 */
    struct softnic_rates rates; /* of a modelled wire; all 0: none */
    /* Not NULL: the NICs speak packets. Then `late` is a mode of the first card, where the queues are; the
     * second one has the remote heap. */
    const struct softnic_net_shape *net;
    int peer_is_dead; /* the second card does nothing */
    /* The ends of the heaps are registrations of their own: what crosses is two messages. */
    uint64_t local_cut, remote_cut; /* 0: in the middle */
};

/* A list of keys: a heap's two halves, in the order of their addresses. */
struct queue_rig_list {
    struct net_ranges head;
    struct net_range ranges[2];
};

/* Shared with kernels; in memory of the machine. */
struct queue_shared {
    struct net_queue queues[RIG_QUEUES];
    struct softnic_qp qps[RIG_QUEUES];
    struct softnic_qp peer_qps[RIG_QUEUES]; /* of the second card; nobody posts there */
    struct softnic_flight flights[RIG_QUEUES][SOFTNIC_FLIGHTS];
    struct softnic_link link, peer_link;
    struct softnic_late late[RIG_QUEUES];
    struct net_queue_state states[RIG_QUEUES];
    uint64_t results[RIG_QUEUES][NET_QUEUE_RESULT_WORDS];
    struct {
        _Alignas(64) uint32_t words[2];
    } records[RIG_QUEUES], peer_records[RIG_QUEUES];
    _Alignas(64) unsigned char peer_ring[NET_QUEUE_MIN_BLOCKS * WQE_BLOCK_BYTES];
    _Alignas(64) uint32_t peer_cqe[CQE_WORDS];
    uint64_t doorbells[RIG_QUEUES], relays[RIG_QUEUES], peer_doorbell;
    struct queue_rig_list local_list, remote_list;
    struct key_table keys, remote_keys;
    struct key_entry entries[RIG_KEYS], remote_entries[RIG_KEYS];
    uint64_t stop, abort;
};

struct queue_rig {
    struct queue_shape shape;
    struct executor *x;
    struct machine *m;
    struct tern_stream *nic, *app;
    struct queue_shared *s;
    struct softnic_net *net; /* or NULL */
    char *local, *remote;    /* RIG_HEAP_BYTES each; where they are */
    char *rings, *cqes, *watch;
    uint64_t ring_bytes, cq_bytes; /* of one queue */
    uint32_t lkeys[2], rkeys[2], results_lkey;
    uint64_t seed;
    int nic_runs;
};

int queue_rig_open(struct queue_rig *r, uint64_t seed, const struct queue_shape *shape);
void queue_rig_close(struct queue_rig *r);
/* Starts the NIC; ends it and waits. */
int queue_rig_nic(struct queue_rig *r);
int queue_rig_nic_end(struct queue_rig *r);
/* Runs the NIC until it has done everything of queue 0 that comes before `next`, and written what it held
 * back. */
int queue_rig_serve(struct queue_rig *r, uint64_t next);
/* Launches threads that follow `steps`, num_steps each; waits for all that were launched. */
int queue_rig_drive(struct queue_rig *r, struct queue_step *steps, uint32_t num_steps, int num_blocks,
                    int num_threads, uint32_t warp_step, uint64_t timeout_ns);
int queue_rig_wait(struct queue_rig *r);
/* Eight bytes of a heap. */
uint64_t queue_rig_word(const char *heap, uint64_t i);
/* Every queue is idle and whole, and the NIC saw nothing wrong. */
int queue_rig_check_idle(const struct queue_rig *r);
/* The peer's address of byte i of the remote heap; this side's of the local one. */
uint64_t queue_rig_remote(uint64_t i);
uint64_t queue_rig_local(const struct queue_rig *r, uint64_t i);

#endif
