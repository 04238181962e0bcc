/* SPDX-License-Identifier: Apache-2.0
 *
 * libibverbs and libmlx5 in the test's own process: a table of functions in place of the libraries', with
 * devices that a test describes. What the provider asks for is done as strictly as a NIC and its kernel
 * would, or more: mailboxes are read bit by bit by another reader, every umem, register, number and address
 * must exist and belong to the same device, ranges of memory must not overlap, queue pairs change their
 * states in order and only with what the state needs, objects go before what they refer to.
 *
 * A fault that a library would answer with an error is answered so. What is wrong in a way no library would
 * notice becomes the complaint, and so does what is left at the end.
 *
 * mlx5_mock.c has devices, memory and registers, mlx5_mock_devx.c the commands. One mock at a time; the calls
 * of one thread. */
#ifndef TERN_TEST_MLX5_MOCK_H
#define TERN_TEST_MLX5_MOCK_H

#if TERN_HAVE_VERBS

#include "net/key_table.h"
#include "net/mlx5_verbs.h"
#include "net/softnic.h"

enum {
    MOCK_MAX_DEVICES = 4,
    MOCK_MAX_GIDS = 8,
    MOCK_MAX_KEYS = 2048,
    MOCK_MAX_RANGES = 256,
    MOCK_MAX_PAGES = 128
};

struct mock_gid {
    unsigned char raw[16];
    int type; /* enum ibv_gid_type; all zero bytes: an empty place */
};

/* A device, as a test describes it; mock_device_init has one that works. */
struct mock_device {
    const char *name;
    int is_mlx5, is_roce, is_active, num_ports;
    uint32_t lid, mtu;
    struct mock_gid gids[MOCK_MAX_GIDS];
    unsigned char mac[6];
    uint32_t cqe_version, atomic_operations, atomic_sizes, atomic_endian, has_rc, has_atomic, has_overrun;
    uint32_t has_more; /* further capabilities can be asked for */
    enum ibv_atomic_cap atomic_cap;
    uint32_t no_records; /* of these: queue pairs without records */
    /* Clocks of timestamps, as it tells and as queue pairs may ask for, on InfiniBand and on RoCE. */
    uint32_t clocks, roce_clocks; /* 0: it has no such field, 1: real time only, 2: either */
    uint32_t log_max_message;
    int max_reads_in, max_reads_out, max_blocks;
    /* The mock's own. */
    struct ibv_device base;
    struct key_table keys;
    struct key_entry key_entries[MOCK_MAX_KEYS];
    uint32_t next_number;
};

/* What every packet is to say. */
struct mock_packets {
    int gid_index; /* its sender's; -1: any */
    uint32_t traffic_class, service_level;
};

enum mock_kind { MOCK_CONTEXT, MOCK_PD, MOCK_AH, MOCK_MR, MOCK_UAR, MOCK_UMEM, MOCK_CQ, MOCK_QP, MOCK_KINDS };

/* What every object has; its parents live at least as long. */
enum { MOCK_MAX_PARENTS = 6 };
struct mock_object {
    enum mock_kind kind;
    uint32_t id; /* umem_id, page_id, key, cqn, qpn, pdn */
    int refs;
    struct mock_device *device;
    struct mock_object *parents[MOCK_MAX_PARENTS];
    struct mock_object *next;
    void *memory; /* to free with it */
};

struct mock_umem {
    struct mlx5dv_devx_umem base;
    struct mock_object o;
    char *addr;
    uint64_t bytes;
    struct mock_range {
        uint64_t first, end;
        const void *user;
    } used[MOCK_MAX_RANGES];
    int num_used;
};

/* Two registers each, and a place to ring for a queue pair that has no record: a software NIC sees memory and
 * not each store to it, so that only one can be rung there. */
enum { MOCK_RECORDLESS_AT = 0x600 };
struct mock_page {
    char *memory;
    struct mock_object *context;
    int taken; /* bit i: register i */
    const struct mlx5dv_devx_obj *recordless;
};

struct mock_uar {
    struct mlx5dv_devx_uar base;
    struct mock_object o;
    struct mock_page *page;
    int place;
};

/* What the commands made: a completion queue or a queue pair. */
struct mlx5dv_devx_obj {
    struct mock_object o;
    struct mock_umem *ring_umem, *record_umem;
    char *ring, *record;
    uint32_t log_size;
    int collapsed;
    /* Of a queue pair. */
    struct mlx5dv_devx_obj *cq;
    struct mock_uar *uar;
    uint32_t pdn, user_index, state, remote_qpn, udp_sport, ack_timeout;
    int has_no_record; /* it is rung at MOCK_RECORDLESS_AT of its page */
    struct mock_device *remote;
};

struct mock {
    struct mock_device devices[MOCK_MAX_DEVICES];
    int num_devices;
    int has_list;       /* 0: ibv_get_device_list answers NULL, as where there is no RDMA */
    uint32_t uar_kinds; /* bit 0: BF, 1: NC, 31: dedicated */
    int peermem;        /* memory of a device may be registered by address */
    int dmabuf;         /* and as a dma-buf */
    struct mock_packets packets;
    int fail_at; /* this call fails, counted from 1; 0: none */
    /* Results. */
    int calls;
    const char *failed; /* the function that was made to fail */
    char complaint[256];
    int num_made[MOCK_KINDS], num_live;
    /* The mock's own. */
    struct mock_object *objects;
    uint32_t next_id;
    struct {
        char *memory;
        uint64_t bytes;
    } device_ranges[MOCK_MAX_RANGES]; /* memory of a GPU */
    int num_device_ranges;
    struct {
        uint64_t inode;
        char *memory;
        uint64_t bytes;
    } dmabufs[MOCK_MAX_RANGES];
    int num_dmabufs;
    struct mock_page pages[MOCK_MAX_PAGES];
};

/* The mock that the table works on. */
extern struct mock *mock_now;
extern const struct mlx5_verbs mock_verbs;

/* Two devices on InfiniBand, or RoCE, that can do everything. */
void mock_open(struct mock *m, int num_devices, int is_roce);
/* What is left is a complaint. 1: there was none. */
int mock_close(struct mock *m);

void mock_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* 1: this call is the one that fails; errno is EIO. Also for calls that are not the libraries'. */
int mock_fails(const char *function);
/* This is memory of a GPU from now on; is not any more. */
void mock_device_memory(char *memory, uint64_t bytes);
void mock_device_memory_gone(const char *memory);
/* A dma-buf of whole pages of it, or -1; `memory` is `*offset` into it. */
int mock_dmabuf(char *memory, uint64_t bytes, uint64_t *offset);

/* Queue pairs that are ready to send, and whose peer is, for a software NIC: at most `most`; how many. */
int mock_softnic_qps(struct softnic_qp *qps, int most);
/* One that is ready to send; 0: its peer is not there, or not connected to it. */
int mock_is_ready(const struct mlx5dv_devx_obj *q);
/* The queue pair that it was connected to; NULL: it is gone. */
const struct mlx5dv_devx_obj *mock_peer_of(const struct mlx5dv_devx_obj *q);
int mock_softnic_qp(const struct mlx5dv_devx_obj *q, struct softnic_qp *s);
/* By device and number, NULL: there is none. */
struct mlx5dv_devx_obj *mock_find_qp(const struct mock_device *device, uint32_t qpn);

/* ---- Between the mock's files ---- */

struct mock_object *mock_find(const struct mock_device *device, enum mock_kind kind, uint32_t id);
void mock_keep(struct mock_object *o, enum mock_kind kind, struct mock_device *device, uint32_t id);
void mock_refer(struct mock_object *o, struct mock_object *parent);
/* 0, or EBUSY with a complaint. Frees the object's memory. */
int mock_drop(struct mock_object *o, const char *what);
struct mock_object *mock_context_object(struct ibv_context *context);

struct mlx5dv_devx_obj *mock_obj_create(struct ibv_context *context, const void *in, size_t in_bytes,
                                        void *out, size_t out_bytes);
int mock_obj_query(struct mlx5dv_devx_obj *obj, const void *in, size_t in_bytes, void *out, size_t out_bytes);
int mock_obj_modify(struct mlx5dv_devx_obj *obj, const void *in, size_t in_bytes, void *out,
                    size_t out_bytes);
int mock_obj_destroy(struct mlx5dv_devx_obj *obj);
int mock_general_cmd(struct ibv_context *context, const void *in, size_t in_bytes, void *out,
                     size_t out_bytes);

#endif
#endif
