/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's NICs, of whatever make: queue pairs that its kernels drive, and keys of memory. Both providers
 * have this shape by themselves (mlx5_provider.h, softnic_provider.h); here it is a table of functions, so
 * that who uses it need not know which one it has.
 *
 *     open                      queue pairs; nothing is said to anybody yet
 *     card, connect             every rank's card, brought by an allgather of the caller
 *     add, import, refresh      memory, as often as it comes; remove, forget, refresh as it goes
 *     queues                    for kernels
 *     close                     no kernel uses the queues any more */
#ifndef TERN_NIC_PROVIDER_H
#define TERN_NIC_PROVIDER_H

#include "machine/machine.h"
#include "net/mlx5_provider.h"
#include "net/softnic_provider.h"

/* A rank's own range, as peers need to know it. */
struct nic_region {
    uint64_t addr, bytes; /* as the owner addresses it; no bytes: there is none */
    uint32_t keys[12];    /* the provider's own */
};

struct nic_provider;
struct nic_provider_ops {
    void (*close)(struct nic_provider *p);
    /* Equal bytes on all ranks. */
    uint32_t (*card_bytes)(const struct nic_provider *p);
    void (*card)(const struct nic_provider *p, void *card);
    /* links, wires: [num_ranks] each one's nic_config.link and .wire, as this rank addresses it, or NULL. */
    enum tern_status (*connect)(struct nic_provider *p, const void *cards, void *const *links,
                                void *const *wires);
    enum tern_status (*add)(struct nic_provider *p, void *memory, uint64_t bytes, struct nic_region *region);
    /* mapped: where this rank addresses it, or NULL. */
    enum tern_status (*import)(struct nic_provider *p, int peer, const struct nic_region *region,
                               void *mapped);
    void (*remove)(struct nic_provider *p, const void *memory);
    void (*forget)(struct nic_provider *p, int peer, uint64_t addr);
    enum tern_status (*refresh)(struct nic_provider *p);
    /* Around what waits for all work of the device; counted. */
    enum tern_status (*pause)(struct nic_provider *p);
    enum tern_status (*resume)(struct nic_provider *p);
    /* In device memory: [num_ranks][num_queues]. */
    const struct net_queue *(*queues)(const struct nic_provider *p);
    /* One sentence's worth on a queue that has failed, "" if there is no more to say than its syndrome. 1: it
     * is what failed first, though a completion may since tell that all behind it was flushed. */
    int (*explain)(struct nic_provider *p, int peer, uint32_t index, char *text, size_t text_bytes);
};
struct nic_provider {
    const struct nic_provider_ops *ops;
    void *state; /* struct mlx5_provider, struct softnic_provider */
};

/* What a network wants of either. */
struct nic_config {
    struct machine *machine;
    int rank, num_ranks, local_index, num_local;
    int ranks_on_device;         /* this one included */
    const unsigned char *wanted; /* [num_ranks] */
    uint32_t num_nics;           /* 0: as the provider chooses */
    uint32_t num_queues;
    const uint64_t *abort; /* as struct net_queue */
    uint64_t timeout_ns;
    uint64_t *lost; /* likewise */
    /* Not 0 while somebody may use a copy of struct net_queue that key lists are not published to. */
    const int *copies;
    void *link; /* two zeroed words of a window a NIC */
    void *wire; /* terni_nic_wire_bytes of one, aligned to 64 */
};

/* What a program could not ask for, but tests and benchmarks can: all 0 is what the providers choose. Set
 * while no network is open. */
struct nic_settings {
    const struct mlx5_verbs *verbs; /* in place of the libraries */
    const char *root;               /* before "/sys" */
    uint32_t num_blocks, batch_blocks;
    enum softnic_runner runner;
    uint32_t nic_blocks; /* of a software NIC that is a kernel */
    int cq_ring, dump, host_rings;
    int records; /* as TERN_NIC_RECORDS */
    struct softnic_rates rates;
    /* Of NICs in software, in place of what TERN_SOFTNIC says. By packets a peer that is silent for three
     * quarters of the network's deadline, or less, is lost, so that waits end by that: retry_count is not
     * looked at, each try is to wait twice as long as the one before (backoff). */
    struct softnic_wire wire;
    uint32_t hold_one_in;
    uint64_t seed;
};
extern struct nic_settings terni_nic_settings;
/* Whether queue pairs have doorbell records though the NIC could do without. */
enum tern_status terni_nic_wants_records(int *wants);
/* Whether TERN_SOFTNIC and TERN_NIC_RECORDS are what they can be. */
enum tern_status terni_nic_check_environment(void);
/* What NICs in software want of a window; the same on all ranks. */
enum tern_status terni_nic_wire_bytes(int num_ranks, uint32_t num_nics, uint64_t *bytes);

/* TERN_UNSUPPORTED: no NIC of the kind that Tern can use; the sentence says why. On success *p is filled. */
enum tern_status terni_nic_open_mlx5(const struct nic_config *config, struct nic_provider *p);
enum tern_status terni_nic_open_softnic(const struct nic_config *config, struct nic_provider *p);
/* What a NIC in software by packets has done; zeros of any other. */
enum tern_status terni_nic_traffic(const struct nic_provider *p, struct softnic_traffic *traffic);
/* Blocks, hence processors, of a software NIC that is a kernel. */
int terni_nic_blocks(int ranks_on_device);

#endif
