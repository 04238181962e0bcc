/* SPDX-License-Identifier: Apache-2.0
 *
 * A proxy carries requests of this rank's kernels to ranks that they cannot address, and serves those of
 * their kernels here: rings in host memory (ring.h), one thread, an engine below it (engine.h).
 *
 * Opening is collective in the way of boot: each rank opens, tells its card, and connects with everybody's;
 * the same for each piece of memory that is registered. Who exchanges the cards is the caller's business. */
#ifndef TERN_PROXY_H
#define TERN_PROXY_H

#include "net/engine.h"
#include "net/ring.h"

struct proxy;

struct proxy_config {
    struct machine *machine;
    struct engine *engine; /* the proxy's from then on, also if opening fails */
    int num_queues;        /* rings a peer */
    uint32_t depth;        /* requests a ring; a power of two */
    uint32_t timeout_ms;   /* a peer that answers nothing for so long is lost; likewise a full ring's wait */
    int stages_all;        /* treats all memory as a GPU's; for tests on the cpu machine */
    int takes_any; /* local memory that is not registered is the machine's, and staged; else refused */
};

/* What one rank tells the others, once. Plain bytes. */
struct proxy_card {
    char engine[32];
    uint32_t num_queues, version;
    unsigned char address[ENGINE_CARD_BYTES];
};

enum tern_status terni_proxy_open(const struct proxy_config *config, struct proxy **proxy);
/* No kernel may use a ring any more. Requests that are not complete never will be. Accepts NULL. */
void terni_proxy_close(struct proxy *p);
enum tern_status terni_proxy_card(struct proxy *p, struct proxy_card *card);
/* [num_ranks] cards. Starts the thread and does not wait for anybody; await does. */
enum tern_status terni_proxy_connect(struct proxy *p, const struct proxy_card *cards);
/* TERN_TIMEOUT names the ranks that are not connected, those below and above this one; a rank that is lost
 * comes before them, with its own status and sentence. */
enum tern_status terni_proxy_await(struct proxy *p, uint32_t timeout_ms);

/* Memory of this rank that its requests may name, and peers' if `access` (KEY_*) says so. on_device: of the
 * machine, not of the host. Every rank registers as many pieces, each tells its card. */
enum tern_status terni_proxy_register(struct proxy *p, void *memory, uint64_t bytes, uint32_t access,
                                      int on_device, struct region *card);
/* Ends the latest registration that begins there: peers' requests for it are refused from now on, requests of
 * this rank that are on their way fail, and what was imported with it is forgotten. */
enum tern_status terni_proxy_release(struct proxy *p, const void *memory);
/* [num_ranks] cards, one registration of every rank; requests may name it until this rank's own is released.
 * Where registrations overlap, the latest counts. */
enum tern_status terni_proxy_import(struct proxy *p, const struct region *cards);

/* The view for kernels, valid until the proxy closes. peer is not this rank. */
const struct net_ring *terni_proxy_ring(const struct proxy *p, int peer, int queue);
/* Every wait of this rank's kernels on rings ends now, and each later one. */
void terni_proxy_abort(struct proxy *p);
/* Whether and why the peer is lost: TERN_OK, or a status and a sentence. Any thread. */
enum tern_status terni_proxy_loss(struct proxy *p, int peer);
/* Likewise what was refused of a queue to it, or failed, which ended the queue; of several requests, the
 * first. */
enum tern_status terni_proxy_refusal(struct proxy *p, int peer, int queue);

/* What the thread has done so far; for tests and benchmarks. Any thread. */
struct proxy_counts {
    uint64_t requests, operations; /* taken from rings; posted to the engine */
    uint64_t deferred;             /* posts that the engine put off */
    uint64_t held;                 /* looks at an atomic that waited for earlier puts and gets */
    uint64_t rests;                /* sleeps of the thread */
};
void terni_proxy_counts(struct proxy *p, struct proxy_counts *counts);

#endif
