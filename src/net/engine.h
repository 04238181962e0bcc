/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine moves bytes for a proxy: tcp_engine.c, fabric_engine.c. What it promises, and no more:
 *
 *   - an operation completes when it has taken effect in the peer's memory (delivery-complete);
 *   - stores and atomics to one peer take effect in the order of posting; nothing else has an order;
 *   - post may say "not now", and has then done nothing;
 *   - a peer that is lost ends all of its operations, now or when they are polled next.
 *
 * The proxy's thread is the only one that calls an engine after it has connected. What comes from peers is
 * served in poll, so a rank that does not poll does not answer. */
#ifndef TERN_ENGINE_H
#define TERN_ENGINE_H

#include "machine/machine.h"
#include "net/key_table.h"

struct serve;

enum { ENGINE_CARD_BYTES = 256, ENGINE_TEXT_BYTES = 200, ENGINE_WINDOW = 64 };

/* A registration as its owner tells the others. Plain bytes. */
struct region {
    uint64_t base, bytes; /* as the owner addresses it */
    uint64_t rma_key;     /* of the engine, where it writes memory by itself */
    uint32_t key;         /* of serve.h */
    uint32_t access;      /* KEY_* */
    uint32_t is_staged;   /* not memory that the owner's processor can address */
    uint32_t unused;
};

static inline int terni_region_holds(const struct region *r, const void *at)
{
    return at != NULL && (uint64_t)(uintptr_t)at - r->base < r->bytes;
}

/* The same at its owner. */
struct own_region {
    struct region card;
    void *handle; /* the engine's */
    void *desc;   /* likewise: what names the memory in an operation */
};

enum engine_kind {
    ENGINE_WRITE,
    ENGINE_READ,
    ENGINE_ATOMIC,
    ENGINE_STORE /* as an atomic SET, but it takes the right to write */
};

/* One operation: the engine's from a post that took it until poll returns it. */
struct engine_op {
    enum engine_kind kind;
    int peer;
    uint32_t tag; /* its place among the peer's operations, below ENGINE_WINDOW */
    uint64_t remote;
    struct region there;
    char *local; /* WRITE, READ: memory of the host */
    void *desc;  /* its own_region's */
    uint64_t bytes;
    uint32_t amo, width; /* ATOMIC, STORE */
    uint64_t value, compare;

    uint32_t syndrome; /* how it ended: SYNDROME_* */
    uint64_t old;      /* ATOMIC */

    void *owner;     /* the poster's, likewise what follows */
    uint64_t ticket; /* its request */
    uint64_t result; /* ATOMIC: 1 + the word for the old value, or 0 */
    char *stage;     /* the buffer that `local` is; NULL: none */
    char *staged;    /* the memory that it stands for */
    int is_revoked;  /* the memory is registered no more: nothing is brought there */

    void *context[8]; /* the engine's; first in what libfabric may use */
    struct engine_op *next;
};

enum engine_post { ENGINE_POSTED, ENGINE_AGAIN };

struct engine;
struct engine_ops {
    /* Peers are told, if that goes without waiting. Operations that are not complete never will be, and
     * registrations that are left end when nothing moves any more. */
    void (*close)(struct engine *e);
    /* This rank's address, ENGINE_CARD_BYTES, for all others. */
    enum tern_status (*card)(struct engine *e, void *card);
    /* [num_ranks] cards. Begins; poll goes on with it, until is_connected. */
    enum tern_status (*connect)(struct engine *e, const unsigned char *cards);
    int (*is_connected)(const struct engine *e, int peer);
    enum tern_status (*add)(struct engine *e, struct own_region *r);
    /* The engine touches the memory no more; operations on their way end nevertheless. Of a provider's own
     * operations of this rank that is the provider's promise. */
    void (*remove)(struct engine *e, struct own_region *r);
    enum engine_post (*post)(struct engine *e, struct engine_op *op);
    /* Serves peers, and moves on. Operations that have ended, linked by next; NULL if there are none. *busy
     * is set if anything at all happened. */
    struct engine_op *(*poll)(struct engine *e, int *busy);
    /* Nothing to do: sleeps, at most so long, less if a peer stirs. */
    void (*rest)(struct engine *e, uint64_t ns);
    /* The proxy gives a peer up. Operations that the engine cannot take back stay its own until it closes. */
    void (*drop)(struct engine *e, int peer);
};

/* What the proxy knows of a peer. */
struct engine_peer {
    enum tern_status lost; /* TERN_OK: it is not */
    int has_left;          /* lost, because it closed in good order */
    uint64_t heard_ns;     /* when bytes last came from it, where the engine sees that; 0: none have */
    char text[ENGINE_TEXT_BYTES];
};

struct engine {
    const struct engine_ops *ops;
    struct serve *serve; /* the proxy's, set before connect */
    int rank, num_ranks;
    uint64_t max_bytes;        /* of one WRITE or READ */
    uint64_t max_staged_bytes; /* likewise if memory at either end is staged; at most STAGE_BYTES */
    char name[32];
    struct engine_peer *peers; /* [num_ranks] */
};

enum tern_status terni_engine_init(struct engine *e, const struct engine_ops *ops, int rank, int num_ranks,
                                   const char *name);
void terni_engine_fini(struct engine *e);
/* The first reason stays. */
void terni_engine_lose(struct engine *e, int peer, enum tern_status status, const char *format, ...)
    TERN_PRINTF(4, 5);

/* What an engine is opened with. */
struct address;
struct engine_config {
    int rank, num_ranks;
    const struct address *own;   /* on which this rank listens, port 0 */
    const unsigned char *cookie; /* 16 bytes that all ranks have and nobody else */
    const char *provider;        /* of libfabric: "tcp;ofi_rxm", "shm", "efa", ... */
};
enum tern_status terni_tcp_engine_open(const struct engine_config *config, struct engine **engine);
/* TERN_UNSUPPORTED: built without libfabric's headers, there is no library, or it has no such provider. */
enum tern_status terni_fabric_engine_open(const struct engine_config *config, struct engine **engine);
/* One line on what the build and this machine have of libfabric. */
const char *terni_fabric_describe(void);

#endif
