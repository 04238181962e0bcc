/* SPDX-License-Identifier: Apache-2.0
 *
 * The mlx5 provider: one rank's ConnectX NICs, the queue pairs that its kernels drive on them, and the keys
 * of its memory. What kernels get is plain: an array of struct net_queue, one for each peer and queue index.
 *
 * It was written from public formats and runs in tests against a mock of the two libraries. It has never run
 * on a NIC.
 *
 *     open                   NICs, memory, queue pairs: nothing is said to anybody yet
 *     card, connect          every rank's card, brought by an allgather of the caller, to every rank
 *     register, key card,    memory: likewise, as often as memory comes, then refresh
 *     import, refresh
 *     queues                 for kernels
 *     inspect                after a fault: why a queue stands still
 *     close
 *
 * Where kernels cannot reach a doorbell, a thread of the provider rings (relay.h), from connect to close.
 *
 * Queue index i of a pair of ranks is on NIC i modulo their number at either end, so several NICs share the
 * load by index. One thread at a time calls these functions for one provider. */
#ifndef TERN_MLX5_PROVIDER_H
#define TERN_MLX5_PROVIDER_H

#include "machine/machine.h"
#include "net/devx_command.h"
#include "net/queue.h"

struct mlx5_provider;
struct mlx5_verbs;

enum { MLX5_MAX_NICS = 8, MLX5_MAX_QUEUES = 64 };

/* Where rings are. */
enum mlx5_memory { MLX5_MEMORY_AUTO, MLX5_MEMORY_DEVICE, MLX5_MEMORY_HOST };
/* Who stores into the doorbell register. */
enum mlx5_doorbell { MLX5_DOORBELL_AUTO, MLX5_DOORBELL_KERNEL, MLX5_DOORBELL_HOST };

struct mlx5_config {
    struct machine *machine;
    const struct mlx5_verbs *verbs; /* NULL: the libraries of the host */
    const char *root;               /* before "/sys"; "" */
    int rank, num_ranks;
    const unsigned char *wanted; /* [num_ranks] peers that need queues; NULL: all but this rank */
    /* NICs, as nic_place.h chooses them. */
    const char *nics; /* TERN_NICS */
    int num_nics, local_index, num_local;
    /* Queues. */
    uint32_t num_queues; /* for each peer */
    uint32_t num_blocks; /* of a send ring, a power of two */
    uint32_t batch_blocks;
    int cq_ring; /* a completion for each operation, instead of a collapsed queue */
    int force_dump;
    enum mlx5_memory memory;
    enum mlx5_doorbell doorbell;
    int records;           /* queue pairs have doorbell records though the NIC can do without */
    const uint64_t *abort; /* as struct net_queue */
    uint64_t timeout_ns;
    uint64_t *lost;    /* likewise */
    const int *copies; /* as struct nic_config; may be NULL */
    /* Packets. */
    int gid_index; /* -1: chosen */
    uint32_t traffic_class, service_level;
};

/* One queue of 1024 blocks for each peer, everything else as the host suggests. */
void terni_mlx5_config_init(struct mlx5_config *config, struct machine *machine, int rank, int num_ranks);

/* TERN_UNSUPPORTED: no library, no NIC, or none that can do what Tern needs; the sentence says what. */
enum tern_status terni_mlx5_open(const struct mlx5_config *config, struct mlx5_provider **provider);
/* No kernel uses its queues any more. Accepts NULL. */
void terni_mlx5_close(struct mlx5_provider *p);

/* What peers must know; equal bytes on every rank of one configuration. */
uint32_t terni_mlx5_card_bytes(const struct mlx5_provider *p);
void terni_mlx5_card(const struct mlx5_provider *p, void *card);
/* `cards`: of all ranks in order. Once. Afterwards what was posted goes to the peers; a peer may only be
 * written to when it has connected as well: the caller's barrier. TERN_MISMATCH names what does not fit. */
enum tern_status terni_mlx5_connect(struct mlx5_provider *p, const void *cards);

/* ---- Memory ---- */

enum {
    MLX5_REGION_DEVICE = 1 << 0, /* memory of the machine's device, not of the host */
    /* Words that say that data have come: a NIC must not let their writes pass earlier ones. Data are
     * registered with relaxed ordering. */
    MLX5_REGION_SIGNALS = 1 << 1,
};
struct mlx5_region_card {
    uint64_t addr, bytes; /* as the owner addresses it, and its peers name it */
    uint32_t num_nics;
    uint32_t rkeys[MLX5_MAX_NICS]; /* of the owner's NICs, in their order */
    uint32_t reserved;
};
/* Memory with every NIC of this rank. Ranges of one rank do not overlap. `card` is for the peers. */
enum tern_status terni_mlx5_register(struct mlx5_provider *p, void *memory, uint64_t bytes, uint32_t flags,
                                     struct mlx5_region_card *card);
/* A peer's card: its memory can be named from now on, after refresh. */
enum tern_status terni_mlx5_import(struct mlx5_provider *p, int peer, const struct mlx5_region_card *card);
/* Own memory, by where it begins; no kernel names it any more, here or at a peer. Peers forget it alike. */
void terni_mlx5_deregister(struct mlx5_provider *p, const void *memory);
void terni_mlx5_forget(struct mlx5_provider *p, int peer, uint64_t addr);
/* Brings keys, as they are now, to where kernels read them. Kernels may use the queues meanwhile: each
 * operation finds all keys as they were or as they are. May wait for all work of the device. */
enum tern_status terni_mlx5_refresh(struct mlx5_provider *p);

/* ---- For kernels ---- */

/* In device memory: [num_ranks][num_queues]; all zero where a peer is not wanted. */
const struct net_queue *terni_mlx5_queues(const struct mlx5_provider *p);
/* The host's copy of one; NULL: the peer has none. */
const struct net_queue *terni_mlx5_queue(const struct mlx5_provider *p, int peer, uint32_t index);

/* ---- After a fault ---- */

enum tern_status terni_mlx5_inspect(struct mlx5_provider *p, int peer, uint32_t index,
                                    struct devx_qp_state *state);

/* ---- For people: tern-info, and the log ---- */

/* One line on libraries: in this build, on this host. */
const char *terni_mlx5_describe(void);
/* What one NIC is not able to do, by the sentence of a status that is not TERN_OK. */
enum tern_status terni_mlx5_probe(const struct mlx5_verbs *verbs, const char *name, int port);
/* Several lines on what the provider uses; returns the characters needed, like snprintf. */
int terni_mlx5_print(const struct mlx5_provider *p, char *text, size_t text_bytes);

#endif
