/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside a proxy: what its thread (proxy.c), its opening (proxy_open.c) and its rings (proxy_ring.c) share.
 * Everything here is the thread's alone once it runs, but for what is marked. */
#ifndef TERN_PROXY_PARTS_H
#define TERN_PROXY_PARTS_H

#include "net/proxy.h"
#include "net/serve.h"

#include <pthread.h>

/* Neighbouring requests of a ring that are one operation, or several where registrations, staging or the
 * engine end a piece. Its slots are in use until the engine has taken all of it. */
struct ring_run {
    struct ring_slot request; /* the first; of puts, `bytes` of all */
    uint32_t count;           /* requests; 0: there is no run */
    uint64_t posted;          /* bytes */
    struct engine_op *op;     /* prepared and put off by the engine; NULL: none */
};

/* Why requests fail, for the host: under proxy.lock. The first reason stays. */
struct proxy_failure {
    enum tern_status status;
    char text[ENGINE_TEXT_BYTES];
};

/* A ring as the host has it. */
struct ring_side {
    struct net_ring view; /* constant */
    struct ring_slot *slots;
    struct ring_words *words;
    uint16_t *left;    /* [depth] operations that request n, at n & (depth - 1), waits for */
    uint64_t consumed; /* requests */
    uint64_t done;     /* requests */
    uint32_t moves;    /* puts and gets that are out: an atomic waits for them */
    uint32_t syndrome; /* of its failure; the peer's loss counts more than what was refused before */
    struct ring_run run;
    struct proxy_failure refusal; /* lock */
};

struct proxy_peer {
    struct engine_op ops[ENGINE_WINDOW];
    struct engine_op *free;
    int num_out;
    int num_staged;            /* operations with a buffer */
    uint64_t since_ns;         /* it has something to do and nothing has come back since; 0: nothing to do */
    int is_lost;               /* its rings have been told */
    struct proxy_failure loss; /* lock */
};

/* Something that the thread does for a host thread that waits for it. */
struct errand {
    enum tern_status (*run)(struct proxy *p, void *arg);
    void *arg;
    enum tern_status status;
    char text[256];
    int is_done;
};

struct proxy {
    struct machine *machine;
    struct engine *engine;
    struct stage stage;
    struct serve serve;
    int rank, num_ranks, num_queues;
    uint32_t depth, timeout_ms;
    int stages_all, takes_any;
    int max_staged; /* a peer's share of the buffers: one that is silent keeps none of another's */

    void *host_memory, *device_memory; /* slots and words of all rings, abort and lost; their states */
    uint64_t *abort, *lost;            /* words that kernels see */
    struct ring_side *rings;           /* [num_ranks * num_queues], peer major */
    struct proxy_peer *peers;
    struct own_region *own; /* [num_own] the latest last; likewise: */
    struct region *there;   /* [num_there][num_ranks] */
    int num_own, num_there;
    uint64_t now_ns; /* as the thread saw last */
    int first_ring;  /* turn about, so that no ring starves */
    struct proxy_counts counts;

    pthread_t thread;
    int has_thread;
    pthread_mutex_t lock;
    pthread_cond_t settled;
    struct errand *errand; /* lock */
    int wanted;            /* atomic: there is an errand, or stop */
    int stop;              /* lock */
};

static inline int terni_num_rings(const struct proxy *p) { return p->num_ranks * p->num_queues; }

/* proxy_ring.c */
/* Takes requests as far as the engine goes along. Whether anything happened. */
int terni_ring_advance(struct proxy *p, struct ring_side *ring);
/* An operation has ended. */
void terni_ring_complete(struct proxy *p, struct engine_op *op);
/* The engine has lost a peer: all of its rings fail. */
void terni_rings_lose(struct proxy *p, int peer);
/* Memory of this rank is registered no more: operations that use it will fail, and nothing that was prepared
 * and put off is posted as it was. */
void terni_rings_revoke(struct proxy *p, const struct region *own);
/* proxy.c */
enum tern_status terni_proxy_start(struct proxy *p);
void terni_proxy_stop(struct proxy *p);
void terni_proxy_note(struct proxy *p, struct proxy_failure *f, enum tern_status status, const char *text);

#endif
