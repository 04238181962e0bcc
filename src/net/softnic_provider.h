/* SPDX-License-Identifier: Apache-2.0
 *
 * The softnic provider: one rank's software NIC, the queue pairs that its kernels drive on it, and the keys
 * of its memory. What kernels get is what the mlx5 provider gives them: an array of struct net_queue, one
 * for each peer and queue index.
 *
 *     config_init, open      memory and queue pairs; nothing runs yet
 *     card, connect          every rank's card, brought by an allgather of the caller; then the NIC runs
 *     register, region card, memory: as often as memory comes; the card goes to every peer, which says where
 *     import, refresh        it has mapped that memory; then refresh. Likewise deregister, forget, refresh
 *     queues                 for kernels, with queue_ops.h
 *     pause, resume          around what must not happen while it runs: see below
 *     abort, inspect         after a fault
 *     close                  when no kernel uses the queues, in any order among ranks
 *
 * The NIC moves data by loads and stores, or speaks packets over a network that errs (softnic_wire).
 * Without packets import tells it where this rank has mapped the peer's memory.
 * Kernels are not told; they name the peer's addresses by struct net_queue, as with a NIC of silicon. A
 * rank's NIC writes memory of peers until it is paused or closed: peers give memory back after that, or
 * after a barrier behind their last operation.
 *
 * Who runs it: on the cpu machine a thread of the host for each NIC, on the cuda machine nic_blocks blocks of
 * a resident kernel, which all NICs of the process on that device share (softnic_fleet.h). Either can be a
 * kernel on the cpu machine too, where it is as deterministic as the executor (SOFTNIC_KERNEL).
 *
 * A RESIDENT KERNEL NEVER ENDS BY ITSELF. Calls of machine_ops that may wait for all work of the device end
 * all of the process meanwhile (machine/resident.h). What the program itself calls waits for ever:
 * cudaDeviceSynchronize, cudaFree, cudaHostFree, cudaMalloc that has to free first, loading a module, the
 * first kernel on a new stream that is not of stream_open, copies and kernels on the legacy default stream.
 * Kernels of the user run beside it as long as its blocks leave them processors, and
 * CUDA_DEVICE_MAX_CONNECTIONS leaves their streams hardware queues: streams that share one with the NIC's
 * wait for it. machine_ops.settle and close are called when NICs of that machine are closed.
 *
 * One thread at a time calls these functions for one provider. */
#ifndef TERN_SOFTNIC_PROVIDER_H
#define TERN_SOFTNIC_PROVIDER_H

#include "machine/machine.h"
#include "net/queue.h"
#include "net/rc_link.h"
#include "net/softnic.h"

struct softnic_provider;

enum { SOFTNIC_MAX_NICS = 8, SOFTNIC_MAX_QUEUES = 64 };

enum softnic_runner {
    SOFTNIC_AUTO,   /* by the machine */
    SOFTNIC_THREAD, /* of the host; cpu machine */
    SOFTNIC_KERNEL
};

/* NICs that speak packets to each other (softnic_rc.h) over links that lose, double, delay and reorder them,
 * in place of loads and stores. The same on all ranks. Such a NIC is one thread that copies by itself: it is
 * for what may happen on a network, not for rates. A peer whose NIC does not answer ends queues with
 * SYNDROME_TRANSPORT_RETRY. */
struct softnic_wire {
    struct rc_config config;            /* time in ns; numbers and pd are the provider's. mtu 0: no packets */
    struct rc_faults requests, answers; /* of what comes to a rank; seeds are the provider's */
};
/* Packets of 1 KiB, sent again after 4 ms; no faults, and retry_count 0. */
void terni_softnic_wire_init(struct softnic_wire *wire);
/* The same, of 256 bytes and on a network that errs in all ways at once: it loses, doubles and delays
 * packets, and reorders them between queue pairs; with adaptive routing, WRITEs inside one too. */
void terni_softnic_wire_err(struct softnic_wire *wire, int is_adaptive);

struct softnic_config {
    struct machine *machine;
    int rank, num_ranks;
    const unsigned char *wanted; /* [num_ranks] peers that need queues; NULL: all but this rank */
    /* Queue index i of a pair of ranks is on NIC i modulo their number, at either end. */
    uint32_t num_nics; /* of this rank, the same on all */
    /* Queues. */
    uint32_t num_queues; /* for each peer */
    uint32_t num_blocks; /* of a send ring, a power of two */
    uint32_t batch_blocks;
    int cq_ring; /* a completion for each operation, instead of a collapsed queue */
    /* NET_QUEUE_DUMP; and then results are late until a DUMP, so that one that is missing shows. */
    int dump;
    int relay;             /* a thread of the host rings for kernels */
    int records;           /* the NIC needs doorbell records, as the relay does; else a register is enough */
    const uint64_t *abort; /* as struct net_queue */
    uint64_t timeout_ns;
    uint64_t *lost;    /* likewise */
    const int *copies; /* as struct nic_config; may be NULL */
    /* The wire. All 0: none is modelled. */
    struct softnic_rates rates;
    /* [num_nics] zeroed, as this rank's NICs address them, where peers' NICs reach them too (a window).
     * NULL: the provider's own; then peers cannot share this NIC's receiving side (see connect). */
    struct softnic_link *link;
    struct softnic_wire wire;
    void *wire_memory; /* as `link`, terni_softnic_wire_bytes of it, aligned to 64; NULL without packets */
    /* The NIC. */
    enum softnic_runner runner;
    int nic_blocks, nic_warps; /* SOFTNIC_KERNEL: engines, and warps of each */
    uint64_t seed;
    uint32_t hold_one_in; /* as struct softnic_args */
    int watch; /* looks whether slots are overwritten before their completion (softnic_state.num_wrong) */
};

/* A queue of 1024 blocks for each peer, no wire, 8 blocks of 8 warps. */
void terni_softnic_config_init(struct softnic_config *config, struct machine *machine, int rank,
                               int num_ranks);

enum tern_status terni_softnic_open(const struct softnic_config *config, struct softnic_provider **provider);
/* Ends the NIC; no kernel uses its queues any more. Peers' NICs may still run. Accepts NULL. */
void terni_softnic_close(struct softnic_provider *p);

/* What peers must know; equal bytes on every rank. */
uint32_t terni_softnic_card_bytes(const struct softnic_provider *p);
void terni_softnic_card(const struct softnic_provider *p, void *card);
/* 0 without packets. */
uint64_t terni_softnic_wire_bytes(const struct softnic_wire *wire, int num_ranks, uint32_t num_nics);
/* `cards`: of all ranks in order. Once. links[r]: rank r's config.link, as this rank's NIC addresses it, or
 * NULL where it is not reached; `links` NULL: none is. Messages to a peer without a link find its receiving
 * side always free. wires[r]: likewise its config.wire_memory, which packets need. TERN_MISMATCH names what
 * does not fit. */
enum tern_status terni_softnic_connect(struct softnic_provider *p, const void *cards,
                                       struct softnic_link *const *links, void *const *wires);

/* ---- Memory ---- */

struct softnic_region_card {
    uint64_t addr, bytes; /* as the owner addresses it, and its peers name it */
    uint32_t key;         /* that packets carry */
    uint32_t reserved;
};
/* Ranges of one rank do not overlap. `card` is for the peers. */
enum tern_status terni_softnic_register(struct softnic_provider *p, void *memory, uint64_t bytes,
                                        struct softnic_region_card *card);
/* A peer's card; `mapped`: its first byte, as this rank's NIC addresses it. Packets do without. */
enum tern_status terni_softnic_import(struct softnic_provider *p, int peer,
                                      const struct softnic_region_card *card, void *mapped);
/* Own memory, by where it begins; no kernel names it any more, here or at a peer. Peers forget it alike.
 * The NIC knows it until refresh. */
void terni_softnic_deregister(struct softnic_provider *p, const void *memory);
void terni_softnic_forget(struct softnic_provider *p, int peer, uint64_t addr);
/* Brings keys, as they are now, to where kernels and the NIC read them. Kernels may use the queues meanwhile:
 * each operation finds all keys as they were or as they are. What the NIC has not done yet it does with the
 * new ones. May wait for all work of the device. */
enum tern_status terni_softnic_refresh(struct softnic_provider *p);

/* ---- For kernels ---- */

/* In device memory: [num_ranks][num_queues]; all zero where a peer is not wanted. */
const struct net_queue *terni_softnic_queues(const struct softnic_provider *p);
/* The host's copy of one; NULL: the peer has none. */
const struct net_queue *terni_softnic_queue(const struct softnic_provider *p, int peer, uint32_t index);

/* ---- The NIC ---- */

/* Ends it between two entries, and waits for that; what has been posted stays posted. Pauses are counted: it
 * runs again after as many calls of resume. Kernels may run meanwhile, and wait. */
enum tern_status terni_softnic_pause(struct softnic_provider *p);
enum tern_status terni_softnic_resume(struct softnic_provider *p);

/* ---- After a fault ---- */

/* All queue pairs go to the error state: what has not completed does so with SYNDROME_FLUSHED. */
enum tern_status terni_softnic_abort(struct softnic_provider *p);

struct softnic_state {
    uint32_t nic, reserved;
    uint64_t posted, fetched, reported; /* as struct softnic_qp */
    uint32_t is_error;
    uint32_t num_wrong; /* what software did wrong: overwritten slots, overruns, doorbells of others */
    struct nic_refusal refusal;
};
/* Packets that this rank's NIC has sent and what became of them, and those that it took out of order; times
 * that it sent again. */
struct softnic_traffic {
    uint64_t sent, lost, doubled, delayed, reordered, resent;
};
/* Of this rank's NICs since they were opened; zeros without packets. */
enum tern_status terni_softnic_traffic(struct softnic_provider *p, struct softnic_traffic *traffic);
enum tern_status terni_softnic_inspect(struct softnic_provider *p, int peer, uint32_t index,
                                       struct softnic_state *state);

#endif
