/* SPDX-License-Identifier: Apache-2.0
 *
 * What a rank does for its peers: requests that reach it as messages are checked against its memory keys and
 * carried out by the one thread of its proxy, which is what makes atomics atomic among all peers, whatever
 * width and operation. Both engines send these frames; libfabric's does so for what providers cannot do. */
#ifndef TERN_SERVE_H
#define TERN_SERVE_H

#include "net/amo.h"
#include "net/engine.h"
#include "net/stage.h"

/* A request or its answer, as it travels. All ranks have the same byte order; the hello is checked. */
struct wire_frame {
    uint32_t kind;  /* WIRE_* */
    uint32_t tag;   /* the requester's */
    uint32_t key;   /* answer: the syndrome */
    uint32_t how;   /* amo | width << 8 */
    uint64_t addr;  /* as the owner addresses it */
    uint64_t bytes; /* WRITE, READ; answer: that follow */
    uint64_t value; /* ATOMIC, STORE; answer: the old value */
    uint64_t compare;
};
enum { WIRE_HELLO = 0x4e524e45, WIRE_WRITE = 1, WIRE_READ, WIRE_ATOMIC, WIRE_STORE, WIRE_ANSWER, WIRE_BYE };

/* A ring has a byte for it: what a peer says beyond that is nonsense. */
enum { WIRE_MAX_SYNDROME = 0xff };

enum { SERVE_PD = 1 };

struct serve {
    struct stage *stage;
    struct key_table keys;    /* entries of malloc */
    unsigned char *is_staged; /* [keys.capacity] of the registration at this place */
};

void terni_serve_init(struct serve *s, struct stage *stage);
void terni_serve_close(struct serve *s); /* also one that is zeroed */
/* Fills card->key. */
enum tern_status terni_serve_add(struct serve *s, struct region *card);
void terni_serve_remove(struct serve *s, const struct region *card);

/* A request in progress. */
struct served {
    uint32_t syndrome; /* not SYNDROME_NONE: refused; the bytes of a WRITE are thrown away */
    char *at;          /* WRITE: where the bytes go; READ: where they are; memory of the host */
    char *staged;      /* the machine's memory, if `at` is the buffer */
    uint64_t old;
};

/* Fills the frame of a request from the operation. */
void terni_serve_request(const struct engine_op *op, struct wire_frame *frame);
/* Carries out everything but a WRITE, of which it tells where the bytes go. `buffer` of STAGE_BYTES is used
 * for staged memory only, and may be NULL if there is none; a refusal names `peer` in the log. */
void terni_serve_begin(struct serve *s, const struct wire_frame *frame, int peer, char *buffer,
                       struct served *served);
/* The bytes of a WRITE are there. */
void terni_serve_end(struct serve *s, const struct wire_frame *frame, struct served *served);
/* Whether the request needs the buffer. */
int terni_serve_is_staged(const struct serve *s, uint32_t key);

#endif
