/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the TCP engine: what its handshake (tcp_engine_open.c), its streams (tcp_stream.c) and its
 * operations (tcp_engine.c) share. One connection a pair of ranks; the higher rank calls. */
#ifndef TERN_TCP_ENGINE_H
#define TERN_TCP_ENGINE_H

#include "comm/socket.h"
#include "net/serve.h"

#include <poll.h>

enum { WIRE_MAX_OUT = 2 * ENGINE_WINDOW + 4, WIRE_BUFFER_BYTES = 16384, WIRE_MAX_STRANGERS = 32 };

enum wire_state { WIRE_NONE, WIRE_CALLING, WIRE_GREETING, WIRE_UP, WIRE_LOST };

/* A frame on its way out, with the bytes behind it where they are. */
struct wire_out {
    struct wire_frame frame;
    const char *data;
    uint64_t bytes;
};

/* The connection to one peer. Each side has at most ENGINE_WINDOW requests out, so each queues at most so
 * many of its own and as many answers: there is always room, and reading never waits for writing. */
struct wire {
    int fd;
    enum wire_state state;
    int is_blocked; /* the socket takes no more: poll says when */
    int is_deaf;    /* the peer takes nothing any more: nothing is sent, what it said is still read */

    struct wire_out out[WIRE_MAX_OUT]; /* a queue from `first` on */
    int first_out, num_out;
    uint64_t out_done; /* bytes of the first that have gone */
    char *kept;        /* the bytes of one that had begun when its memory was released; NULL: none was */

    char buffer[WIRE_BUFFER_BYTES]; /* [begin, end) is read and not looked at */
    uint32_t begin, end;
    int has_frame;
    struct wire_frame frame; /* being received: header, then its bytes */
    char *sink;              /* where they go; NULL: nowhere */
    uint64_t sink_bytes, sink_done;
    struct served served;

    struct engine_op *ops[ENGINE_WINDOW]; /* by tag: posted, not answered */
    int is_reading;                       /* a READ of staged memory is out: the peer has one buffer for it */
};

/* A caller who has not said who it is. */
struct wire_guest {
    int fd;
    uint32_t done;
    struct wire_frame hello;
    uint64_t patience_end_ns; /* with the house full, one that is silent for longer makes room */
};

struct tcp_engine {
    struct engine base;
    int listen_fd; /* -1: not any more */
    struct address bound;
    unsigned char cookie[16];
    struct wire **wires;       /* [num_ranks]; NULL before connect, and its own */
    struct pollfd *fds;        /* the listener, guests, wires */
    struct wire_guest *guests; /* [max_guests] oldest first: all peers and some strangers */
    int num_guests, max_guests;
    int num_up; /* of the peers; this rank listens until all are */
    struct engine_op *ended, **last_ended;
};

/* tcp_engine_open.c */
void terni_wire_hello(struct tcp_engine *t, int r);
int terni_wire_greets(struct tcp_engine *t, int r, const struct wire_frame *hello);
void terni_wire_called(struct tcp_engine *t, int r); /* the socket of a call is ready, or has failed */
void terni_guests_accept(struct tcp_engine *t);
void terni_guest_hear(struct tcp_engine *t, int i);
void terni_guests_make_room(struct tcp_engine *t);
/* Nobody is waited for any more: no guest is heard, and nobody can call. */
void terni_guests_end(struct tcp_engine *t);
enum tern_status terni_tcp_engine_connect(struct engine *e, const unsigned char *cards);

/* tcp_release.c */
void terni_tcp_engine_remove(struct engine *e, struct own_region *region);

/* tcp_stream.c */
/* Queues a frame; 0 if a peer that keeps no window has filled the queue. */
int terni_wire_put(struct wire *w, const struct wire_frame *frame, const char *data, uint64_t bytes);
void terni_wire_send(struct tcp_engine *t, int r);
void terni_wire_read(struct tcp_engine *t, int r);
void terni_wire_lose(struct tcp_engine *t, int r, enum tern_status status, const char *format, ...)
    TERN_PRINTF(4, 5);

#endif
