/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the libfabric engine: what finding the library (fabric_library.c), messages (fabric_letter.c) and
 * operations (fabric_engine.c) share.
 *
 * Puts and gets between memory of hosts are RDMA of the provider, with delivery-complete. Everything else is
 * a message to the peer's proxy and its answer: atomics, which some providers lack, others do in part, and
 * none does in a GPU's memory without its own CUDA support; inline puts; and whatever is staged. */
#ifndef TERN_FABRIC_H
#define TERN_FABRIC_H

#include "net/serve.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

/* The library's functions; all others are called through its objects. */
struct fabric_library {
    int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags,
                   const struct fi_info *hints, struct fi_info **info);
    void (*freeinfo)(struct fi_info *info);
    struct fi_info *(*dupinfo)(const struct fi_info *info);
    int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
    const char *(*strerror)(int error);
    uint32_t (*version)(void);
};
/* NULL, and a sentence: there is no library, or it is not the one that it should be. */
const struct fabric_library *terni_fabric_library(void);

enum {
    LETTER_BYTES = 32 * 1024, /* of payload */
    NUM_LETTERS_IN = 64,
    NUM_ANSWERS = 64,
    NUM_REQUESTS = 64, /* shared out among peers, but */
    LEAST_REQUESTS = 2 /* for each, however many there are */
};

/* How a message begins. */
struct letter_head {
    unsigned char cookie[16];
    uint32_t rank; /* the sender */
    uint32_t reserved;
    struct wire_frame frame;
};

struct letter {
    struct fi_context2 context; /* first: what a completion brings back */
    char *memory;               /* head, then payload */
    uint64_t bytes;             /* of both */
    int peer;                   /* that it goes to */
    int is_answer;
    struct letter *next; /* free, unsent or unposted */
};

/* What waits for a letter to answer in: of a read the request, of anything else the answer, which it has
 * already. */
struct parked {
    struct parked *next;
    struct wire_frame frame;
    int peer, is_read;
};

struct fabric_peer {
    fi_addr_t addr;
    int is_here;                          /* its hello has come */
    uint32_t greeting;                    /* WIRE_HELLO or WIRE_BYE is to be sent; 0: neither */
    int num_requests;                     /* letters that carry requests to it */
    int num_parked;                       /* of its requests */
    struct engine_op *ops[ENGINE_WINDOW]; /* messages that are not answered, by tag */
    struct letter *unsent, **last_unsent;
};

/* Handle of an own_region. */
struct fabric_region {
    struct fid_mr *mr;
    struct fabric_region *next;
};

/* What the library has for one endpoint; NULL: not made. */
struct fabric_objects {
    const struct fabric_library *lib;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
};

struct fabric_engine {
    struct engine base;
    struct fabric_objects its;
    struct fid_mr *letters_mr; /* NULL: the provider wants none */
    void *letters_desc;
    uint64_t mr_mode;
    unsigned char cookie[16];
    void *letters_memory;
    struct machine *machine; /* whose host memory that is */
    struct letter *letters;  /* [num_letters] those that are received into, requests, answers */
    int num_letters;
    int max_requests; /* a peer's share: one that takes nothing holds none of another's */
    struct letter *free_requests, *free_answers;
    struct letter *unposted;              /* to receive into, which the provider has not taken yet */
    struct parked *parked, **last_parked; /* in the order of requests */
    struct fabric_peer *peers;            /* [num_ranks] */
    struct fabric_region *regions;
    int close_error; /* of its endpoint; -FI_EBUSY: a region may be bound to it */
    struct engine_op *ended, **last_ended;
    struct fabric_engine *next_open; /* of this process (fabric_leave.c) */
    struct kept *kept;               /* likewise: where its objects will be; NULL where none is */
};

/* fabric_leave.c: enter when all is made; farewell to peers before anything is closed, and the endpoint's
 * end; that once more when no region is left; leave last. All but the first also where enter was not
 * reached. */
enum tern_status terni_fabric_enter(struct fabric_engine *f);
void terni_fabric_farewell(struct fabric_engine *f);
int terni_fabric_end_endpoint(struct fabric_engine *f); /* 0: it lives on, and may write to its buffers */
void terni_fabric_leave(struct fabric_engine *f);

/* fabric_letter.c */
enum tern_status terni_letters_open(struct fabric_engine *f);
void terni_letters_close(struct fabric_engine *f);
struct letter *terni_letter_of(struct fabric_engine *f, const void *context); /* NULL: it is an operation's */
enum engine_post terni_letter_request(struct fabric_engine *f, struct engine_op *op);
void terni_letter_sent(struct fabric_engine *f, struct letter *l);
void terni_letter_arrived(struct fabric_engine *f, struct letter *l, uint64_t bytes);
void terni_letter_receive(struct fabric_engine *f, struct letter *l); /* gives it to the provider */
/* Sends what waits, greetings too, answers what is parked, and gives the provider what it had no room for.
 * Whether anything happened. */
int terni_letters_advance(struct fabric_engine *f);
void terni_letters_drop(struct fabric_engine *f, int peer);
/* No answer is to bring bytes there any more. */
void terni_letters_release(struct fabric_engine *f, const struct region *gone);
/* fabric_engine.c */
void terni_fabric_end(struct fabric_engine *f, struct engine_op *op, uint32_t syndrome);

#endif
