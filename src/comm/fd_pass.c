/* SPDX-License-Identifier: Apache-2.0
 *
 * Every rank listens on an abstract unix socket, connects to each peer's and sends one packet with its name
 * and its descriptor; then it accepts the same from each, and answers each with a byte. One loop under one
 * deadline does both sides. A call that ends without its answer is made again: a peer that is there takes the
 * packet then, and one that has left refuses the call at once, so that others hear of it before the deadline.
 * Abstract names leave no files behind. Anyone in the network namespace can connect to them: nothing is read
 * from another user, because reading a packet installs its descriptors here; a packet counts only if it
 * carries the communicator's cookie and one descriptor, and those of any other are closed. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* struct ucred */
#endif
#include "comm/fd_pass.h"
#include "comm/comm.h"
#include "comm/socket.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

enum { max_guests = 256, retry_ms = 2 };

struct exchange {
    const struct part_name *self;
    const unsigned char *is_peer;
    int num_ranks, listen_fd, send_fd;
    unsigned char *is_sent; /* and answered */
    int *calls;             /* connections on which an answer is to come; -1: none */
    int *fds;
    struct pollfd *polled; /* 1 + max_guests + num_ranks */
    int num_unsent, num_unreceived;
    int num_ended, num_strange; /* calls without an answer; guests without a packet of ours */
    int num_held;               /* of the latest calls: Linux took no descriptor */
    int num_guests;
    int guests[max_guests]; /* accepted, packet not read yet; oldest first */
};

static socklen_t socket_name(const struct part_name *name, int rank, struct sockaddr_un *a)
{
    uint64_t cookie[2];
    int n;
    memset(a, 0, sizeof *a);
    memcpy(cookie, name->cookie, sizeof cookie);
    a->sun_family = AF_UNIX;
    /* sun_path[0] stays 0: an abstract name. */
    n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "tern/%016llx%016llx/%u/%d",
                 (unsigned long long)cookie[0], (unsigned long long)cookie[1], name->heap, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

enum tern_status terni_fd_listen(const struct part_name *self, int *listen_fd)
{
    struct sockaddr_un a;
    socklen_t bytes = socket_name(self, self->rank, &a);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return TERN_FAIL(TERN_SYSTEM_ERROR, "no unix socket: %m");
    }
    if (bind(fd, (const struct sockaddr *)&a, bytes) != 0 || listen(fd, SOMAXCONN) != 0) {
        TERN_FAIL(TERN_SYSTEM_ERROR, "cannot listen on unix socket @%s: %m", a.sun_path + 1);
        close(fd);
        return TERN_SYSTEM_ERROR;
    }
    *listen_fd = fd;
    return TERN_OK;
}

union control {
    struct cmsghdr header; /* for its alignment */
    char bytes[CMSG_SPACE(sizeof(int))];
};

/* One packet on a fresh connection never fills its buffer. */
static enum tern_status send_packet(int socket_fd, const struct part_name *self, int send_fd)
{
    struct part_name name = *self;
    struct iovec data = {.iov_base = &name, .iov_len = sizeof name};
    union control control;
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    struct cmsghdr *header;
    memset(&control, 0, sizeof control);
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof send_fd);
    memcpy(CMSG_DATA(header), &send_fd, sizeof send_fd);
    return sendmsg(socket_fd, &message, MSG_NOSIGNAL) == (ssize_t)sizeof name ? TERN_OK : TERN_SYSTEM_ERROR;
}

static enum tern_status call(struct exchange *x, int rank)
{
    struct sockaddr_un a;
    socklen_t bytes = socket_name(x->self, rank, &a);
    enum tern_status status = TERN_OK;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return TERN_FAIL(TERN_SYSTEM_ERROR, "no unix socket: %m");
    }
    if (connect(fd, (const struct sockaddr *)&a, bytes) == 0) {
        if (send_packet(fd, x->self, x->send_fd) == TERN_OK) {
            x->calls[rank] = fd;
            return TERN_OK;
        }
        if (errno == ETOOMANYREFS) { /* until others of this user have read theirs */
            x->num_held++;
        } else if (errno != EPIPE && errno != ECONNRESET) { /* else it has hung up already */
            status = TERN_FAIL(TERN_SYSTEM_ERROR, "cannot send a window's descriptor to rank %d: %m", rank);
        }
    } else if (errno == ECONNREFUSED) {
        status = TERN_FAIL(TERN_DISCONNECTED, "rank %d left while windows were exchanged", rank);
    } else if (errno != EAGAIN && errno != EINTR) { /* EAGAIN: its queue is full for a moment */
        status = TERN_FAIL(TERN_SYSTEM_ERROR, "cannot connect to unix socket @%s: %m", a.sun_path + 1);
    }
    close(fd);
    return status;
}

/* What a call is told. The kernel looks for a packet, then whether the connection has ended: of a packet and
 * an end that come between, it reports the end. So an end is one only if it is reported twice. */
enum { answer_here, answer_due, answer_lost };

static int look_for_answer(int socket_fd)
{
    for (int look = 0; look < 2; look++) {
        char answer;
        ssize_t got = recv(socket_fd, &answer, sizeof answer, 0);
        if (got == (ssize_t)sizeof answer) {
            return answer_here;
        }
        if (got < 0) {
            return errno == EAGAIN || errno == EINTR ? answer_due : answer_lost;
        }
    }
    return answer_lost;
}

/* Takes the answers that are here, and calls those that have none to come. */
static enum tern_status send_all(struct exchange *x)
{
    x->num_held = 0;
    for (int r = 0; r < x->num_ranks; r++) {
        int found;
        if (!x->is_peer[r] || x->is_sent[r]) {
            continue;
        }
        if (x->calls[r] < 0) {
            TERN_TRY(call(x, r));
            continue;
        }
        found = look_for_answer(x->calls[r]);
        if (found == answer_due) {
            continue;
        }
        close(x->calls[r]);
        x->calls[r] = -1;
        x->is_sent[r] = found == answer_here;
        x->num_unsent -= x->is_sent[r];
        x->num_ended += !x->is_sent[r];
    }
    return TERN_OK;
}

static int is_same_user(int socket_fd)
{
    struct ucred from;
    socklen_t from_bytes = sizeof from;
    return getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &from, &from_bytes) == 0 && from.uid == geteuid();
}

/* The one descriptor that came with the message; -1, and none left open, if there was not exactly one:
 * padding makes room for more in a buffer for one. */
static int take_descriptor(struct msghdr *message)
{
    int taken = -1, num_taken = 0;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(message); h != NULL; h = CMSG_NXTHDR(message, h)) {
        size_t bytes = h->cmsg_len - CMSG_LEN(0);
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        for (size_t at = 0; at + sizeof taken <= bytes; at += sizeof taken) {
            if (taken >= 0) {
                close(taken);
            }
            memcpy(&taken, CMSG_DATA(h) + at, sizeof taken);
            num_taken++;
        }
    }
    if (num_taken > 1) {
        close(taken);
    }
    return num_taken == 1 ? taken : -1;
}

/* Whether a peer whose packet is still to come is called so. */
static int is_awaited(const struct exchange *x, const struct part_name *name)
{
    return name->rank >= 0 && name->rank < x->num_ranks && x->is_peer[name->rank] && x->fds[name->rank] < 0 &&
           name->heap == x->self->heap && memcmp(name->cookie, x->self->cookie, sizeof name->cookie) == 0;
}

/* *rank: whose packet waits on socket_fd, and *fd its descriptor. -1: nothing there yet, -2: no packet of
 * ours will come. */
static enum tern_status recv_packet(const struct exchange *x, int socket_fd, int *rank, int *fd)
{
    struct part_name name;
    struct iovec data = {.iov_base = &name, .iov_len = sizeof name};
    union control control;
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    int received;
    ssize_t got;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    got = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC);
    *rank = -1;
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return TERN_OK;
    }
    received = got >= 0 ? take_descriptor(&message) : -1;
    if (got == (ssize_t)sizeof name && is_awaited(x, &name)) {
        if (CMSG_FIRSTHDR(&message) == NULL && (message.msg_flags & MSG_CTRUNC) != 0) { /* it had one */
            return TERN_FAIL(TERN_SYSTEM_ERROR, "rank %d has no descriptor left for rank %d's window",
                             x->self->rank, name.rank);
        }
        if (received >= 0) {
            *rank = name.rank;
            *fd = received;
            return TERN_OK;
        }
    }
    if (received >= 0) {
        close(received);
    }
    *rank = -2;
    return TERN_OK;
}

static void drop_guest(struct exchange *x, int i)
{
    close(x->guests[i]);
    x->num_guests--;
    memmove(&x->guests[i], &x->guests[i + 1], (size_t)(x->num_guests - i) * sizeof x->guests[0]);
}

static enum tern_status accept_guests(struct exchange *x)
{
    while (x->num_guests < max_guests) {
        int fd;
        TERN_TRY(terni_accept(x->listen_fd, x->self->rank, &fd));
        if (fd < 0) {
            return TERN_OK;
        }
        if (is_same_user(fd)) {
            x->guests[x->num_guests++] = fd;
        } else {
            close(fd);
        }
    }
    return TERN_OK;
}

static enum tern_status receive(struct exchange *x)
{
    TERN_TRY(accept_guests(x));
    for (int i = x->num_guests - 1; i >= 0; i--) {
        int rank, fd;
        TERN_TRY(recv_packet(x, x->guests[i], &rank, &fd));
        if (rank >= 0) {
            char answer = 1;
            ssize_t sent = send(x->guests[i], &answer, sizeof answer, MSG_NOSIGNAL);
            x->fds[rank] = fd;
            x->num_unreceived--;
            (void)sent; /* a first byte fits; a peer that is gone needs none */
        }
        x->num_strange += rank == -2;
        if (rank != -1) {
            drop_guest(x, i);
        }
    }
    if (x->num_guests == max_guests) {
        drop_guest(x, 0); /* silent for longest; a peer says its packet right after it connects */
    }
    return TERN_OK;
}

/* Until something comes. A call that could not be made, or has ended, is due again soon. */
static enum tern_status wait_for_any(struct exchange *x, uint64_t deadline_ns)
{
    int n = 0, num_calls = 0, ms = terni_poll_ms(deadline_ns);
    x->polled[n++].fd = x->listen_fd;
    for (int i = 0; i < x->num_guests; i++) {
        x->polled[n++].fd = x->guests[i];
    }
    for (int r = 0; r < x->num_ranks; r++) {
        if (x->calls[r] >= 0) {
            x->polled[n++].fd = x->calls[r];
            num_calls++;
        }
    }
    for (int i = 0; i < n; i++) {
        x->polled[i].events = POLLIN;
    }
    return terni_poll(x->polled, n, num_calls < x->num_unsent && ms > retry_ms ? retry_ms : ms);
}

static enum tern_status fail_late(struct exchange *x, uint32_t timeout_ms)
{
    char sentence[TERN_SENTENCE_BYTES], held[144] = "";
    int num_silent = 0, num_deaf = 0;
    for (int r = 0; r < x->num_ranks; r++) { /* is_sent now says who is late */
        int is_silent = x->is_peer[r] && x->fds[r] < 0, is_deaf = x->is_peer[r] && !x->is_sent[r];
        num_silent += is_silent;
        num_deaf += is_deaf;
        x->is_sent[r] = (unsigned char)(is_silent || is_deaf);
    }
    if (x->num_held > 0) {
        snprintf(held, sizeof held,
                 "; %d ranks were not called, as this user has more descriptors on their way than the limit "
                 "of open files",
                 x->num_held);
    }
    terni_late_print(x->is_sent, NULL, x->num_ranks, timeout_ms, sentence);
    return TERN_FAIL(TERN_TIMEOUT,
                     "%s with their windows (%d sent none, %d took none; %d calls ended, %d callers were "
                     "strangers%s)",
                     sentence, num_silent, num_deaf, x->num_ended, x->num_strange, held);
}

static enum tern_status run(struct exchange *x, uint32_t timeout_ms)
{
    uint64_t deadline_ns = terni_clock_ns() + (uint64_t)timeout_ms * 1000000;
    for (;;) {
        TERN_TRY(send_all(x));
        TERN_TRY(receive(x));
        if (x->num_unsent == 0 && x->num_unreceived == 0) {
            return TERN_OK;
        }
        if (terni_clock_ns() >= deadline_ns) {
            return fail_late(x, timeout_ms);
        }
        TERN_TRY(wait_for_any(x, deadline_ns));
    }
}

static void end(struct exchange *x, int is_failed)
{
    while (x->num_guests > 0) {
        drop_guest(x, x->num_guests - 1);
    }
    for (int r = 0; r < x->num_ranks; r++) {
        if (x->calls[r] >= 0) {
            close(x->calls[r]);
        }
        if (is_failed && x->fds[r] >= 0) {
            close(x->fds[r]);
            x->fds[r] = -1;
        }
    }
}

enum tern_status terni_fd_exchange(const struct part_name *self, int num_ranks, const unsigned char *is_peer,
                                   int listen_fd, int send_fd, uint32_t timeout_ms, int *fds)
{
    struct exchange x = {.self = self,
                         .is_peer = is_peer,
                         .num_ranks = num_ranks,
                         .listen_fd = listen_fd,
                         .send_fd = send_fd,
                         .fds = fds};
    enum tern_status status;
    size_t n = (size_t)num_ranks;
    x.is_sent = (unsigned char *)calloc(n, 1);
    x.calls = (int *)calloc(n, sizeof *x.calls);
    x.polled = (struct pollfd *)calloc(1 + max_guests + n, sizeof *x.polled);
    for (int r = 0; r < num_ranks; r++) {
        fds[r] = -1;
        x.num_unsent += is_peer[r];
        x.num_unreceived += is_peer[r];
    }
    if (x.is_sent == NULL || x.calls == NULL || x.polled == NULL) {
        status = TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory to hand windows to %d ranks", num_ranks);
    } else {
        memset(x.calls, -1, n * sizeof *x.calls);
        status = run(&x, timeout_ms);
        end(&x, status != TERN_OK);
    }
    free(x.polled);
    free(x.calls);
    free(x.is_sent);
    return status;
}
