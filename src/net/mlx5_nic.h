/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the mlx5 provider share: a NIC, the memory that it reads and writes, a queue pair.
 *
 * Whatever is opened is one of these structures, zeroed before. Closing one that is half open or zeroed is
 * allowed, so that a function that opens leaves the cleaning up to whoever closes the whole.
 *
 * Order at the end: queue pairs, completion queues, the umems of their memory, doorbell registers, memory
 * regions, protection domain, device. Each refers to some of those after it. */
#ifndef TERN_MLX5_NIC_H
#define TERN_MLX5_NIC_H

#include "net/key_lists.h"
#include "net/mlx5_provider.h"
#include "net/mlx5_verbs.h"
#include "net/nic_place.h"
#include "net/relay.h"

/* Memory of the provider's own, zeroed; a umem if a NIC finds rings in it (mlx5_block.c). */
enum { MLX5_BLOCK_ALIGN = 65536, MLX5_PAGE = 4096, MLX5_LINE = 64 };
struct mlx5_block {
    char *memory;    /* as kernels address it, aligned to MLX5_BLOCK_ALIGN */
    char *host;      /* as the host does; NULL: memory of the device */
    void *allocated; /* to free */
    uint64_t bytes;
    struct mlx5dv_devx_umem *umem;
};

/* A doorbell register (mlx5_doorbell.c). */
struct mlx5_register {
    struct mlx5dv_devx_uar *uar;
    void *mapped;     /* the page of registers that the machine mapped for it, NULL: another's or none */
    uint64_t *kernel; /* as kernels address it; NULL: they cannot */
};

/* Where kernels ring for queue pairs without records: at another place of the register's UAR, which is a page
 * of the NIC, of which a page of the host may have several. */
enum { MLX5_RECORDLESS_AT = 0x600 };
static inline uint64_t *terni_mlx5_recordless(const struct mlx5_register *r)
{
    uintptr_t reg = (uintptr_t)r->uar->reg_addr, uar = reg & ~(uintptr_t)(MLX5_PAGE - 1);
    return r->kernel + ((intptr_t)(uar + MLX5_RECORDLESS_AT) - (intptr_t)reg) / 8;
}

struct mlx5_port {
    int number, is_roce;
    uint32_t mtu; /* code of libibverbs */
    uint32_t lid;
    uint32_t gid_index;
    unsigned char gid[16];
};

enum { MLX5_MAX_REGISTERS = 16 };

struct mlx5_nic {
    const struct mlx5_verbs *v;
    struct machine *machine;
    const char *root;
    char name[NIC_NAME_BYTES];
    enum nic_distance distance;
    struct ibv_context *context;
    struct ibv_pd *pd;
    uint32_t pdn, eqn;
    uint32_t log_max_message, log_max_blocks;
    uint32_t log_reads_in, log_reads_out; /* what it serves, and what it may have outstanding */
    enum ibv_atomic_cap atomic_cap;
    int no_records; /* it can make queue pairs, or more of them, without a record (NET_QUEUE_NO_RECORD) */
    uint32_t timestamps; /* DEVX_TIMESTAMPS_FREE or DEFAULT, of queue pairs; nobody reads any */
    struct mlx5_port port;
    struct mlx5dv_devx_uar *cq_uar; /* named by completion queues, never rung */
    struct mlx5_register registers[MLX5_MAX_REGISTERS];
    int num_registers, host_rings;
    struct mlx5_block rings, records, results;
    struct ibv_mr *results_mr;
};

/* One direction of one queue: what this rank posts to a peer (mlx5_queue.c). */
struct mlx5_qp {
    int nic; /* index; valid with qp */
    struct mlx5dv_devx_obj *cq, *qp;
    struct mlx5_register *doorbell;
    int has_no_record;
    uint64_t ring, cqes;      /* in the NIC's rings */
    uint64_t record;          /* in its records */
    uint64_t results;         /* in its results */
    uint32_t cqn, qpn, state; /* DEVX_RST ... */
};

struct mlx5_region {
    uint64_t addr, bytes;              /* as struct region_span */
    uint32_t keys[MLX5_MAX_NICS];      /* own: of each NIC; a peer's: of each of the peer's NICs */
    struct ibv_mr *mrs[MLX5_MAX_NICS]; /* own */
};

struct mlx5_peer {
    int is_wanted, num_nics;    /* num_nics: of the peer, once connected */
    struct mlx5_qp *qps;        /* [num_queues] */
    struct region_list regions; /* of struct mlx5_region: of its memory */
};

struct mlx5_provider {
    struct mlx5_config config; /* without the caller's pointers to names */
    const struct mlx5_verbs *v;
    struct machine *machine;
    char root[NIC_PATH_BYTES];
    int num_nics;
    struct mlx5_nic nics[MLX5_MAX_NICS];
    int num_wanted, is_connected;
    struct mlx5_peer *peers;                  /* [num_ranks] */
    struct region_list regions;               /* of struct mlx5_region: own */
    struct mlx5_block states, tables, relays; /* as kernels read them: see mlx5_tables.c */
    struct relay_line *lines;                 /* of queues that the host rings for */
    struct relay *relay;
    char *tables_copy;      /* the host's, of the same layout */
    struct key_block *keys; /* lists for kernels, the newest */
};

/* mlx5_block.c. Memory of the device, or of the host, that kernels reach as well. */
enum tern_status terni_mlx5_block_open(struct machine *m, uint64_t bytes, int on_device,
                                       struct mlx5_block *b);
void terni_mlx5_block_close(struct machine *m, struct mlx5_block *b);
/* How a NIC's driver names it. */
static inline char *terni_mlx5_block_named(const struct mlx5_block *b)
{
    return b->host != NULL ? b->host : b->memory;
}
/* Lets the NIC use it for rings and records. */
enum tern_status terni_mlx5_block_register(struct mlx5_nic *nic, struct mlx5_block *b);
/* Both at once; MLX5_MEMORY_AUTO takes memory of the device if the NIC can, else the host's. */
enum tern_status terni_mlx5_block_place(struct mlx5_nic *nic, uint64_t bytes, enum mlx5_memory where,
                                        struct mlx5_block *b);
void terni_mlx5_block_unplace(struct mlx5_nic *nic, struct mlx5_block *b);
/* A memory region over it, or over any memory: access as ibv_reg_mr. */
enum tern_status terni_mlx5_mr_open(struct mlx5_nic *nic, void *memory, uint64_t bytes, int on_device,
                                    uint32_t access, struct ibv_mr **mr);
void terni_mlx5_mr_close(struct mlx5_nic *nic, struct ibv_mr *mr);

/* mlx5_device.c. Up to a protection domain and a port that is up; name, v, machine, root are set before. */
enum tern_status terni_mlx5_nic_open(struct mlx5_nic *nic, int port, int gid_index);
void terni_mlx5_nic_close(struct mlx5_nic *nic);
/* mlx5_caps.c. Fills what the NIC can do, or says what it lacks. */
enum tern_status terni_mlx5_caps_check(struct mlx5_nic *nic);
/* mlx5_port.c */
enum tern_status terni_mlx5_port_open(struct mlx5_nic *nic, int port, int gid_index);

/* mlx5_doorbell.c */
enum tern_status terni_mlx5_registers_open(struct mlx5_nic *nic, int count, enum mlx5_doorbell who);
void terni_mlx5_registers_close(struct mlx5_nic *nic);

/* mlx5_queue.c. All queues of a NIC: places in its memory, then one by one. */
enum tern_status terni_mlx5_places_open(struct mlx5_provider *p, int nic);
enum tern_status terni_mlx5_qp_open(struct mlx5_provider *p, int peer, uint32_t index);
void terni_mlx5_qp_close(struct mlx5_provider *p, struct mlx5_qp *qp);
/* A command on it; `what` is its opcode's mailbox. */
enum tern_status terni_mlx5_qp_modify(struct mlx5_nic *nic, struct mlx5_qp *qp, const uint32_t *in,
                                      size_t words, uint32_t state);

/* mlx5_tables.c */
enum tern_status terni_mlx5_tables_open(struct mlx5_provider *p);
/* What connecting has changed. */
enum tern_status terni_mlx5_tables_fill(struct mlx5_provider *p);
void terni_mlx5_tables_close(struct mlx5_provider *p);

/* mlx5_relay.c. The thread that rings, if one is needed. */
enum tern_status terni_mlx5_relay_open(struct mlx5_provider *p);
void terni_mlx5_relay_close(struct mlx5_provider *p);

/* Why the firmware refused, from its answer. */
enum tern_status terni_mlx5_refused(const struct mlx5_nic *nic, const uint32_t *in, const uint32_t *out);
/* Destruction cannot be refused usefully: what fails is leaked, and logged. */
#define MLX5_WARN(nic, call, what)                                                                           \
    do {                                                                                                     \
        if ((call) != 0) {                                                                                   \
            TERN_LOG(TERN_LOG_WARN, "%s: %s was not given back: %m", (nic)->name, (what));                   \
        }                                                                                                    \
    } while (0)

static inline struct mlx5_qp *terni_mlx5_qp_of(const struct mlx5_provider *p, int peer, uint32_t index)
{
    return &p->peers[peer].qps[index];
}

#endif
