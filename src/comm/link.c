/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames over a nonblocking stream socket: a header of fixed size, then as many bytes as it says. The
 * counters in_done and out_done run over header and data together, so a transfer may stop at any byte. */
#include "comm/socket.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

void terni_link_init(struct link *l, int fd)
{
    memset(l, 0, sizeof *l);
    l->fd = fd;
    l->out_done = sizeof l->out; /* a frame of no data that has gone out */
}

void terni_link_close(struct link *l)
{
    if (l->fd >= 0) {
        close(l->fd);
    }
    terni_link_init(l, -1);
    l->is_closed = 1;
}

void terni_link_put(struct link *l, uint32_t type, uint32_t value, uint64_t sequence, const void *data,
                    uint64_t bytes)
{
    l->out.type = type;
    l->out.value = value;
    l->out.sequence = sequence;
    l->out.bytes = bytes;
    l->out_data = (const char *)data;
    l->out_done = 0;
}

int terni_link_is_sending(const struct link *l) { return l->out_done < sizeof l->out + l->out.bytes; }

void terni_link_send(struct link *l)
{
    while (terni_link_is_sending(l)) {
        struct iovec parts[2];
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 0};
        uint64_t data_done = l->out_done > sizeof l->out ? l->out_done - sizeof l->out : 0;
        ssize_t sent;
        if (l->out_done < sizeof l->out) {
            parts[message.msg_iovlen].iov_base = (char *)&l->out + l->out_done;
            parts[message.msg_iovlen++].iov_len = sizeof l->out - l->out_done;
        }
        if (data_done < l->out.bytes) {
            parts[message.msg_iovlen].iov_base = (char *)(uintptr_t)(l->out_data + data_done);
            parts[message.msg_iovlen++].iov_len = l->out.bytes - data_done;
        }
        sent = sendmsg(l->fd, &message, MSG_NOSIGNAL);
        if (sent >= 0) {
            l->out_done += (uint64_t)sent;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if (errno != EINTR) {
            l->out_done = sizeof l->out + l->out.bytes; /* dropped; reading will find the peer gone */
        }
    }
}

enum link_event terni_link_recv(struct link *l)
{
    for (;;) {
        char *to;
        uint64_t want;
        ssize_t got;
        if (l->is_closed) {
            return LINK_CLOSED;
        }
        if (l->in_done < sizeof l->in) {
            to = (char *)&l->in + l->in_done;
            want = sizeof l->in - l->in_done;
        } else if (!l->in_told) {
            l->in_told = 1;
            return LINK_HEADER;
        } else if (l->in_done < sizeof l->in + l->in.bytes) {
            to = l->in_data + (l->in_done - sizeof l->in);
            want = sizeof l->in + l->in.bytes - l->in_done;
        } else {
            l->in_done = 0;
            l->in_told = 0;
            return LINK_FRAME;
        }
        got = recv(l->fd, to, want, 0);
        if (got > 0) {
            l->in_done += (uint64_t)got;
        } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return LINK_AGAIN;
        } else if (got == 0 || errno != EINTR) {
            l->is_closed = 1;
        }
    }
}
