/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the softnic provider share:
 *
 *     softnic_provider.c   open, cards, close
 *     softnic_memory.c     what queue pairs are made of, and where it lies
 *     softnic_tables.c     registrations; keys and queues as kernels and the NIC read them
 *     softnic_packets.c    what a NIC that speaks packets has more
 *     softnic_run.c        starts and ends the NIC
 *
 * Whatever is opened is zeroed before, and closing it is allowed when it is half open. */
#ifndef TERN_SOFTNIC_PARTS_H
#define TERN_SOFTNIC_PARTS_H

#include "net/key_lists.h"
#include "net/mlx5_cqe.h"
#include "net/relay.h"
#include "net/softnic_fleet.h"
#include "net/softnic_provider.h"

enum { SOFTNIC_LINE = 64, SOFTNIC_PD = 1 };

struct softnic_region {
    uint64_t addr, bytes; /* as struct region_span */
    uint32_t key;
};

/* Memory that one key table names: of this rank, or of a peer. */
struct softnic_memory {
    struct region_list regions; /* of struct softnic_region */
    struct key_table keys;      /* the host's, entries of malloc */
};

struct softnic_peer {
    int is_wanted, has_other_clock;
    uint32_t order; /* among wanted peers */
    struct softnic_memory memory;
};

/* Of the memory that queue pairs are made of (softnic_memory.c): for each place one of each. */
struct softnic_places {
    uint64_t rings, cqes, results, states, qps, flights, late, watch, link; /* device memory */
    uint64_t records, doorbells; /* device memory, or where the host rings the host's */
    uint64_t relays, stop;       /* the host's */
    uint64_t device_bytes, host_bytes;
};

struct softnic_provider {
    struct softnic_config config; /* without the caller's array */
    struct machine *machine;
    struct softnic_model model;
    uint32_t num_places, num_peers; /* queues; wanted ranks */
    int is_modelled, is_connected, num_pauses, is_running;
    struct softnic_peer *peers; /* [num_ranks] */
    struct softnic_memory own;
    uint32_t results_key;
    struct softnic_places at;
    char *device;             /* places.device_bytes */
    char *host, *host_device; /* places.host_bytes, by host and by device */
    char *tables, *tables_copy;
    struct key_block *keys; /* lists for kernels, entries for the NIC; the newest */
    struct relay_line *lines;
    struct relay *relay;
    char *cards;                                      /* of packets; device memory */
    int is_kernel;                                    /* else threads */
    struct softnic_member crew;                       /* as a kernel */
    struct tern_stream *stream;                       /* as a kernel that speaks packets, its own */
    struct softnic_thread *threads[SOFTNIC_MAX_NICS]; /* else */
};

/* ---- Places: all queues of a rank, those of its first NIC before the others'. The number of a queue pair is
 * 1 + its place, here and where a peer works it out ---- */

struct softnic_seat { /* of a rank among the peers of another */
    uint32_t num_peers, order;
};

/* Queues to each peer that are on this NIC. */
static inline uint32_t terni_softnic_nic_queues(const struct softnic_config *c, uint32_t nic)
{
    return (c->num_queues + c->num_nics - 1 - nic) / c->num_nics;
}

/* Place of the NIC's first queue. */
static inline uint32_t terni_softnic_nic_first(const struct softnic_config *c, uint32_t nic,
                                               uint32_t num_peers)
{
    uint32_t queues = 0;
    for (uint32_t k = 0; k < nic; k++) {
        queues += terni_softnic_nic_queues(c, k);
    }
    return queues * num_peers;
}

static inline uint32_t terni_softnic_place_at(const struct softnic_config *c, struct softnic_seat seat,
                                              uint32_t index)
{
    uint32_t nic = index % c->num_nics;
    return terni_softnic_nic_first(c, nic, seat.num_peers) + seat.order * terni_softnic_nic_queues(c, nic) +
           index / c->num_nics;
}

static inline uint32_t terni_softnic_place(const struct softnic_provider *p, int peer, uint32_t index)
{
    struct softnic_seat seat = {p->num_peers, p->peers[peer].order};
    return terni_softnic_place_at(&p->config, seat, index);
}

/* Where an array begins behind *end, which moves on. */
static inline uint64_t terni_softnic_reserve(uint64_t *end, uint64_t num, uint64_t bytes)
{
    uint64_t at = *end;
    *end += (num * bytes + SOFTNIC_LINE - 1) / SOFTNIC_LINE * SOFTNIC_LINE;
    return at;
}

/* What one queue pair has of device memory that kernels use, too. */
struct softnic_share {
    struct wqe_ring ring;
    uint32_t *cqes;
    uint64_t *results; /* NET_QUEUE_RESULT_WORDS */
    struct net_queue_state *state;
};

/* softnic_memory.c */
enum tern_status terni_softnic_memory_open(struct softnic_provider *p);
void terni_softnic_memory_close(struct softnic_provider *p);
/* Whether the NIC reads records of what is sent. */
static inline int terni_softnic_has_records(const struct softnic_provider *p)
{
    return p->config.records || p->config.relay;
}
/* As kernels and the NIC address it. */
char *terni_softnic_record(const struct softnic_provider *p, uint32_t place);
char *terni_softnic_doorbell(const struct softnic_provider *p, uint32_t place);
/* In `device`: provider.device, or a copy of it. */
struct softnic_share terni_softnic_share(const struct softnic_provider *p, char *device, uint32_t place);
/* The NIC's own state of all queue pairs, to and from host memory; *qps is the caller's to free, NULL after a
 * failure. It does not run. */
enum tern_status terni_softnic_read_qps(struct softnic_provider *p, struct softnic_qp **qps);
enum tern_status terni_softnic_write_qps(struct softnic_provider *p, const struct softnic_qp *qps);
/* Done on return. */
enum tern_status terni_softnic_copy(const struct softnic_provider *p, void *dst, const void *src,
                                    uint64_t bytes);

static inline uint32_t terni_softnic_num_cqes(const struct softnic_provider *p)
{
    return p->config.cq_ring ? p->config.num_blocks : 1;
}

/* softnic_tables.c */
enum tern_status terni_softnic_tables_open(struct softnic_provider *p);
/* Once the queue pairs have their memory. */
enum tern_status terni_softnic_tables_fill(struct softnic_provider *p);
void terni_softnic_tables_close(struct softnic_provider *p);
/* A key table as the NIC addresses it; peer -1: of own memory. */
const struct key_table *terni_softnic_keys(const struct softnic_provider *p, int peer);

/* softnic_run.c */
enum tern_status terni_softnic_run_open(struct softnic_provider *p);
void terni_softnic_run_close(struct softnic_provider *p);

#endif
