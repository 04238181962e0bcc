/* SPDX-License-Identifier: Apache-2.0
 *
 * The TCP engine: needs no library and no privilege, and works wherever ranks could meet. Requests and
 * answers are frames (serve.h) over one connection a pair; the peer's proxy carries them out, so an answer
 * means that the bytes are in its memory. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* ppoll */
#endif
#include "net/tcp_engine.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FAREWELL_MS = 100 };
#define TCP_MAX_BYTES (4ull << 20) /* of an operation: a peer that answers none for a deadline is lost */

static struct tcp_engine *tcp_of(struct engine *e) { return (struct tcp_engine *)e; }

static enum engine_post tcp_post(struct engine *e, struct engine_op *op)
{
    struct wire *w = tcp_of(e)->wires[op->peer];
    int is_staged_read = op->kind == ENGINE_READ && op->there.is_staged;
    struct wire_frame frame;
    if (w->state != WIRE_UP || w->is_deaf || (is_staged_read && w->is_reading)) {
        return ENGINE_AGAIN;
    }
    terni_serve_request(op, &frame);
    if (!terni_wire_put(w, &frame, op->local, op->kind == ENGINE_WRITE ? op->bytes : 0)) {
        return ENGINE_AGAIN;
    }
    w->ops[op->tag] = op;
    w->is_reading |= is_staged_read;
    return ENGINE_POSTED;
}

/* What to poll for; returns the number of entries. Guests come first, then peers in order. */
static int list_fds(struct tcp_engine *t)
{
    int n = 0;
    t->fds[n].fd = t->num_guests < t->max_guests ? t->listen_fd : -1;
    t->fds[n++].events = POLLIN;
    for (int i = 0; i < t->num_guests; i++) {
        t->fds[n].fd = t->guests[i].fd;
        t->fds[n++].events = POLLIN;
    }
    for (int r = 0; r < t->base.num_ranks; r++) {
        const struct wire *w = t->wires[r];
        t->fds[n].fd = w != NULL ? w->fd : -1;
        t->fds[n].events = (short)(w == NULL                  ? 0
                                   : w->state == WIRE_CALLING ? POLLOUT
                                   : w->is_blocked            ? POLLIN | POLLOUT
                                                              : POLLIN);
        n++;
    }
    return n;
}

static void attend_peer(struct tcp_engine *t, int r, int events)
{
    struct wire *w = t->wires[r];
    if (w->state == WIRE_CALLING) {
        terni_wire_called(t, r);
        return;
    }
    if (events & POLLOUT) {
        w->is_blocked = 0;
    }
    if (events & (POLLIN | POLLERR | POLLHUP)) {
        terni_wire_read(t, r);
    }
}

static struct engine_op *tcp_poll(struct engine *e, int *busy)
{
    struct tcp_engine *t = tcp_of(e);
    struct engine_op *ended;
    int n, num_guests = t->num_guests;
    for (int r = 0; r < e->num_ranks; r++) {
        if (t->wires[r] != NULL && t->wires[r]->state >= WIRE_GREETING && t->wires[r]->num_out > 0) {
            terni_wire_send(t, r);
        }
    }
    n = list_fds(t);
    if (terni_poll(t->fds, n, 0) != TERN_OK) {
        return NULL; /* logged; the deadlines of whoever waits go on */
    }
    for (int r = 0; r < e->num_ranks; r++) {
        int events = t->fds[1 + num_guests + r].revents;
        if (events != 0) {
            *busy = 1;
            attend_peer(t, r, events);
        }
    }
    /* From the last, because a guest that leaves moves those after it. */
    for (int i = num_guests - 1; i >= 0; i--) {
        if (t->fds[1 + i].revents != 0) {
            terni_guest_hear(t, i);
        }
    }
    terni_guests_make_room(t);
    if (t->fds[0].revents != 0) {
        terni_guests_accept(t);
    }
    if (t->num_up == e->num_ranks - 1) {
        terni_guests_end(t);
    }
    *t->last_ended = NULL;
    ended = t->ended;
    t->ended = NULL;
    t->last_ended = &t->ended;
    return ended;
}

static void tcp_rest(struct engine *e, uint64_t ns)
{
    struct tcp_engine *t = tcp_of(e);
    struct timespec limit = {0, (long)ns};
    (void)ppoll(t->fds, (nfds_t)list_fds(t), &limit, NULL);
}

static int tcp_is_connected(const struct engine *e, int peer)
{
    const struct wire *w = ((const struct tcp_engine *)e)->wires[peer];
    return w != NULL && w->state == WIRE_UP;
}

static void tcp_drop(struct engine *e, int peer)
{
    terni_wire_lose(tcp_of(e), peer, e->peers[peer].lost, "%s", e->peers[peer].text);
}

static enum tern_status tcp_card(struct engine *e, void *card)
{
    const struct tcp_engine *t = tcp_of(e);
    memset(card, 0, ENGINE_CARD_BYTES);
    memcpy(card, &t->bound, sizeof t->bound);
    return TERN_OK;
}

/* Memory is reached through the peer's own thread: nothing to register with a socket. */
static enum tern_status tcp_add(struct engine *e, struct own_region *r)
{
    (void)e;
    (void)r;
    return TERN_OK;
}

/* What is queued goes out first, so that a peer whose request was served hears so. */
static void say_farewell(struct tcp_engine *t, int r, uint64_t deadline_ns)
{
    struct wire *w = t->wires[r];
    struct wire_frame bye = {.kind = WIRE_BYE};
    char nothing[4096];
    if (w->state != WIRE_UP || !terni_wire_put(w, &bye, NULL, 0)) {
        return;
    }
    for (;;) {
        struct pollfd fd = {.fd = w->fd, .events = POLLOUT};
        w->is_blocked = 0;
        terni_wire_send(t, r);
        if (w->num_out == 0 || terni_clock_ns() >= deadline_ns) {
            break;
        }
        (void)terni_poll(&fd, 1, terni_poll_ms(deadline_ns));
    }
    /* Closing with unread bytes resets the connection, which could overtake the farewell. */
    shutdown(w->fd, SHUT_WR);
    while (recv(w->fd, nothing, sizeof nothing, MSG_DONTWAIT) > 0) {
    }
}

static void tcp_close(struct engine *e)
{
    struct tcp_engine *t = tcp_of(e);
    uint64_t deadline_ns = terni_clock_ns() + FAREWELL_MS * 1000000ull;
    for (int r = 0; t->wires != NULL && r < e->num_ranks; r++) {
        if (t->wires[r] != NULL) {
            say_farewell(t, r, deadline_ns);
            if (t->wires[r]->fd >= 0) {
                close(t->wires[r]->fd);
            }
            free(t->wires[r]->kept);
            free(t->wires[r]);
        }
    }
    terni_guests_end(t);
    terni_engine_fini(e);
    free(t->wires);
    free(t->guests);
    free(t->fds);
    free(t);
}

static const struct engine_ops tcp_ops = {
    .close = tcp_close,
    .card = tcp_card,
    .connect = terni_tcp_engine_connect,
    .is_connected = tcp_is_connected,
    .add = tcp_add,
    .remove = terni_tcp_engine_remove,
    .post = tcp_post,
    .poll = tcp_poll,
    .rest = tcp_rest,
    .drop = tcp_drop,
};

enum tern_status terni_tcp_engine_open(const struct engine_config *config, struct engine **engine)
{
    size_t n = (size_t)config->num_ranks;
    enum tern_status status;
    struct tcp_engine *t = (struct tcp_engine *)calloc(1, sizeof *t);
    if (t == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a TCP engine");
    }
    t->listen_fd = -1;
    t->last_ended = &t->ended;
    t->max_guests = config->num_ranks + WIRE_MAX_STRANGERS;
    t->base.max_bytes = TCP_MAX_BYTES;
    t->base.max_staged_bytes = STAGE_BYTES;
    memcpy(t->cookie, config->cookie, sizeof t->cookie);
    status = terni_engine_init(&t->base, &tcp_ops, config->rank, config->num_ranks, "tcp");
    if (status == TERN_OK) {
        t->wires = (struct wire **)calloc(n, sizeof *t->wires);
        t->guests = (struct wire_guest *)calloc((size_t)t->max_guests, sizeof *t->guests);
        t->fds = (struct pollfd *)calloc(1 + (size_t)t->max_guests + n, sizeof *t->fds);
        status = t->wires != NULL && t->guests != NULL && t->fds != NULL
                     ? terni_listen(config->own, &t->bound, &t->listen_fd)
                     : TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %zu connections", n);
    }
    if (status != TERN_OK) {
        tcp_close(&t->base);
        return status;
    }
    *engine = &t->base;
    return TERN_OK;
}
