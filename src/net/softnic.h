/* SPDX-License-Identifier: Apache-2.0
 *
 * A NIC in software: it reads the entries that kernels write into send rings, does what they say and writes
 * completions, byte for byte as an mlx5 NIC would be asked and would answer. It is a kernel itself
 * (kernels/softnic.c), so that it runs in the executor and on a GPU.
 *
 *     doorbell, record --> softnic_front.h   what is posted, decoded
 *                          softnic_model.h   when it would arrive over a wire, if one is modelled
 *                          softnic_move.h    keys looked up, atomics done
 *                          softnic_list.h    bytes moved
 *     completion queue <-- softnic_complete.h
 *
 * softnic_engine.h puts them together, for a kernel and for a thread of the host (softnic_thread.h).
 *
 * It does what kernels of ours post: RDMA WRITE, with an immediate or without, READ, atomics, NOP and DUMP.
 * Every other opcode, SEND among them, is refused (mlx5_decode.h).
 *
 * The middle moves data by loads and stores, in order but for writes that pass atomics. It loses nothing: a
 * queue pair here is connected to memory, not to another queue pair. softnic_rc.h is a NIC whose middle sends
 * packets.
 *
 * A block is an engine, and a queue pair belongs to one engine. It takes queue pairs in random order, so that
 * no order between them can be relied on by accident. Everything it knows is in struct softnic_qp once it has
 * been stopped; while it runs it has that at hand, and keys that it has looked up. Started again it goes on
 * where it was, and between the two the host may change keys and add queue pairs. */
#ifndef TERN_SOFTNIC_H
#define TERN_SOFTNIC_H

#include "net/key_table.h"
#include "net/mlx5_decode.h"
#include "net/softnic_model.h"

enum { SOFTNIC_LATE_BYTES = 64 };

/* The end of a READ, or an atomic's old value, that the NIC has completed but not yet pushed into memory. */
struct softnic_late {
    char *to;
    uint64_t bytes; /* 0: nothing is late */
    char data[SOFTNIC_LATE_BYTES];
};

/* An entry that has been done. */
struct softnic_done {
    uint64_t idx;
    uint32_t blocks, wqe_opcode, bytes;
    uint32_t syndrome, vendor_syndrome;
};

enum { SOFTNIC_READY, SOFTNIC_ERROR };

/* An entry between its being taken and its completion. */
struct softnic_flight {
    struct wqe_op op;
    struct nic_refusal refusal;
    uint64_t idx;
    struct softnic_times when;
    uint32_t syndrome;
    uint32_t is_moved;      /* a put's bytes are there before it arrives, or a word has been raised */
    uint32_t due, reserved; /* of a word that is raised by the herald: 1 + its place (softnic_due.h) */
    char *word, *old;       /* a word whose keys have been looked up since the NIC was started; or NULL */
};
enum { SOFTNIC_FLIGHTS = 64 }; /* of a queue pair, a power of two */
enum { SOFTNIC_BATCH = 16 };   /* entries that are taken, or arrive, in one look at a queue pair */

struct softnic_qp {
    /* As in struct net_queue, and as the NIC addresses them. qpn is not 0: a register of zeros rings for
     * none. The record begins as doorbell_record of the first index. */
    struct wqe_ring ring;
    uint32_t qpn;
    uint32_t pd, remote_pd;
    uint32_t num_cqes;                /* 0: collapsed, all completions overwrite one entry */
    uint32_t has_no_record, reserved; /* of what is sent (NET_QUEUE_NO_RECORD) */
    const uint32_t *record;
    const uint64_t *doorbell;
    uint32_t *cqes;
    const struct key_table *keys, *remote_keys;
    /* A word for each block of the ring, where it is to be seen that no slot is overwritten before its
     * completion; or NULL. */
    uint64_t *watch;
    struct softnic_late *late; /* not NULL: results are late, and a DUMP brings them */
    /* [SOFTNIC_FLIGHTS]; NULL: no wire is modelled, every operation is done when it is taken. */
    struct softnic_flight *flights;
    /* Somebody else's, while the NIC does not run: not 0, the peer's end is gone and answers nothing. */
    uint64_t is_cut;
    struct softnic_link *link, *peer_link; /* with flights: this NIC's; the peer's, or NULL */
    uint64_t has_other_clock;              /* the peer, with a peer_link */

    /* The NIC's own. Indices of blocks, all `first` to begin with; the rest 0. */
    uint64_t posted;   /* told of */
    uint64_t fetched;  /* decoded and done */
    uint64_t reported; /* completions written: slots before may be overwritten */
    uint64_t bell;     /* last seen in the register */
    uint64_t num_done; /* completions written */
    uint32_t state;    /* SOFTNIC_* */
    uint32_t is_held;  /* a completion that is not written yet */
    struct softnic_done held;
    struct nic_refusal refusal;                 /* the first */
    uint64_t num_taken, num_arrived, num_ended; /* flights */
    uint32_t has_failed;                        /* one that has arrived */
    uint32_t links_used;                        /* softnic_cross's bits */
    uint64_t sends_until;                       /* its last message has left: ticks; 0: none yet */
    struct softnic_clock peer_clock;            /* if it is another */
    /* What software did wrong; the NIC goes on. */
    uint64_t num_overwritten; /* blocks that changed before they were completed */
    uint64_t num_overruns;    /* times that more was posted than the ring holds */
    uint64_t num_wrong_bells; /* doorbells of another queue pair */
    uint64_t num_heralded;    /* words that were handed over to the herald (softnic_herald.h), ever */
};

struct softnic_args {
    struct softnic_qp *qps;
    uint32_t num_qps;
    /* So many completions wait for a later look; a collapsed queue may skip them. 0: none */
    uint32_t hold_one_in;
    uint64_t seed;
    const uint64_t *stop; /* not 0: the NIC ends, after the entry it is at */
    struct softnic_model model;
};

/* Arguments of the kernel (kernels/softnic.c): several NICs, whose blocks lie one behind the other. */
enum { SOFTNIC_MAX_FLEET = 48 };
struct softnic_crew {
    uint32_t num;
    uint32_t near;                    /* queue pairs of an engine for which a block has shared memory */
    uint32_t ends[SOFTNIC_MAX_FLEET]; /* the block behind the last of each */
    struct softnic_args nics[SOFTNIC_MAX_FLEET];
};

TERN_DEVICE uint32_t softnic_blocks(const struct softnic_qp *qp) { return wqe_ring_blocks(&qp->ring); }

#endif
