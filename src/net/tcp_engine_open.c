/* SPDX-License-Identifier: Apache-2.0
 *
 * How the TCP engine's connections come up, while its proxy's thread goes round already. A rank calls all
 * ranks below it and is called by those above. Both say hello, with the cookie that only ranks of one
 * communicator have: a stranger is dropped. A peer may be late to say it, the deadline is that of whoever
 * waits for connections; but with the house full, one that has said nothing for a while makes room. */
#include "net/tcp_engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PATIENCE_MS = 1000 };

static void fill_hello(const struct tcp_engine *t, struct wire_frame *hello)
{
    memset(hello, 0, sizeof *hello);
    hello->kind = WIRE_HELLO;
    hello->tag = (uint32_t)t->base.rank;
    hello->key = (uint32_t)t->base.num_ranks;
    hello->how = tern_version();
    memcpy(&hello->value, t->cookie, 8);
    memcpy(&hello->compare, t->cookie + 8, 8);
}

void terni_wire_hello(struct tcp_engine *t, int r)
{
    struct wire_frame hello;
    fill_hello(t, &hello);
    (void)terni_wire_put(t->wires[r], &hello, NULL, 0); /* the first in an empty queue */
    terni_wire_send(t, r);
}

/* Whether this is how rank `r` of this communicator would say hello. */
static int is_hello(const struct tcp_engine *t, uint32_t r, const struct wire_frame *hello)
{
    struct wire_frame wanted;
    fill_hello(t, &wanted);
    wanted.tag = r;
    return memcmp(hello, &wanted, sizeof wanted) == 0;
}

int terni_wire_greets(struct tcp_engine *t, int r, const struct wire_frame *hello)
{
    if (!is_hello(t, (uint32_t)r, hello)) {
        terni_wire_lose(t, r, TERN_MISMATCH, "something else than rank %d answers at its address", r);
        return 0;
    }
    t->wires[r]->state = WIRE_UP;
    t->num_up++;
    return 1;
}

void terni_wire_called(struct tcp_engine *t, int r)
{
    struct wire *w = t->wires[r];
    int error = 0;
    socklen_t bytes = sizeof error;
    getsockopt(w->fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) {
        terni_wire_lose(t, r, TERN_DISCONNECTED, "rank %d cannot be reached: %s", r, strerror(error));
        return;
    }
    terni_socket_tune(w->fd);
    w->state = WIRE_GREETING;
    terni_wire_hello(t, r);
}

static void drop_guest(struct tcp_engine *t, int i, int keeps_socket)
{
    if (!keeps_socket) {
        close(t->guests[i].fd);
    }
    t->num_guests--;
    memmove(&t->guests[i], &t->guests[i + 1], (size_t)(t->num_guests - i) * sizeof t->guests[0]);
}

/* This rank has no descriptor for a peer that calls. All that would call yet are lost to it, and hear so by
 * the door that closes, instead of by their deadlines. */
static void turn_away(struct tcp_engine *t)
{
    char why[ENGINE_TEXT_BYTES];
    snprintf(why, sizeof why, "%s", tern_last_error());
    for (int r = t->base.rank + 1; r < t->base.num_ranks; r++) {
        if (t->wires[r]->state == WIRE_NONE) {
            terni_wire_lose(t, r, TERN_SYSTEM_ERROR, "%s", why);
        }
    }
    terni_guests_end(t);
}

void terni_guests_accept(struct tcp_engine *t)
{
    while (t->num_guests < t->max_guests) {
        struct wire_guest *g = &t->guests[t->num_guests];
        int fd;
        if (terni_accept(t->listen_fd, t->base.rank, &fd) != TERN_OK) {
            turn_away(t);
            return;
        }
        if (fd < 0) {
            return;
        }
        terni_socket_tune(fd);
        memset(g, 0, sizeof *g);
        g->fd = fd;
        g->patience_end_ns = terni_clock_ns() + PATIENCE_MS * 1000000ull;
        t->num_guests++;
    }
}

void terni_guest_hear(struct tcp_engine *t, int i)
{
    struct wire_guest *g = &t->guests[i];
    ssize_t got = recv(g->fd, (char *)&g->hello + g->done, sizeof g->hello - g->done, 0);
    uint32_t r = g->hello.tag;
    struct wire *w;
    if (got > 0) {
        g->done += (uint32_t)got;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (got > 0 && g->done < sizeof g->hello) {
        return;
    }
    w = got > 0 && r > (uint32_t)t->base.rank && r < (uint32_t)t->base.num_ranks ? t->wires[r] : NULL;
    if (w == NULL || w->state != WIRE_NONE || !is_hello(t, r, &g->hello)) {
        TERN_LOG(TERN_LOG_INFO, "rank %d's proxy dropped a caller that is no rank it waits for",
                 t->base.rank);
        drop_guest(t, i, 0);
        return;
    }
    w->fd = g->fd;
    w->state = WIRE_UP;
    t->num_up++;
    drop_guest(t, i, 1);
    terni_wire_hello(t, (int)r);
}

void terni_guests_make_room(struct tcp_engine *t)
{
    if (t->num_guests == t->max_guests && terni_clock_ns() > t->guests[0].patience_end_ns) {
        drop_guest(t, 0, 0);
    }
}

void terni_guests_end(struct tcp_engine *t)
{
    while (t->num_guests > 0) {
        drop_guest(t, t->num_guests - 1, 0);
    }
    if (t->listen_fd >= 0) {
        close(t->listen_fd);
    }
    t->listen_fd = -1;
}

static enum tern_status call_peer(struct tcp_engine *t, int r, const struct address *a)
{
    struct wire *w = t->wires[r];
    char text[TERN_ADDRESS_TEXT];
    w->fd = socket(a->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (w->fd < 0) {
        return TERN_FAIL(TERN_SYSTEM_ERROR, "no socket for the connection to rank %d: %m", r);
    }
    w->state = WIRE_CALLING;
    if (connect(w->fd, (const struct sockaddr *)&a->storage, a->bytes) != 0 && errno != EINPROGRESS &&
        errno != EINTR) {
        int error = errno;
        terni_address_print(a, text);
        if (terni_is_shortage(error)) {
            return TERN_FAIL(TERN_SYSTEM_ERROR, "rank %d has no connection to rank %d at %s: %s",
                             t->base.rank, r, text, strerror(error));
        }
        return TERN_FAIL(TERN_DISCONNECTED, "rank %d at %s cannot be reached: %s", r, text, strerror(error));
    }
    return TERN_OK;
}

enum tern_status terni_tcp_engine_connect(struct engine *e, const unsigned char *cards)
{
    struct tcp_engine *t = (struct tcp_engine *)e;
    for (int r = 0; r < e->num_ranks; r++) {
        struct address a;
        if (r == e->rank) {
            continue;
        }
        t->wires[r] = (struct wire *)calloc(1, sizeof *t->wires[r]);
        if (t->wires[r] == NULL) {
            return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for the connection to rank %d", r);
        }
        t->wires[r]->fd = -1;
        if (r < e->rank) {
            memcpy(&a, cards + (size_t)r * ENGINE_CARD_BYTES, sizeof a);
            if (a.bytes > sizeof a.storage) {
                return TERN_FAIL(TERN_MISMATCH, "rank %d tells an address of %u bytes", r, a.bytes);
            }
            TERN_TRY(call_peer(t, r, &a));
        }
    }
    return TERN_OK;
}
