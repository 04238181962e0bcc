/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets for the boot: addresses, and links that move whole frames without ever blocking. Who owns a link
 * polls its descriptor under a deadline and calls terni_link_send and terni_link_recv when it is ready; short
 * reads and writes are remembered in the link. Every descriptor is nonblocking and closed on exec. */
#ifndef TERN_SOCKET_H
#define TERN_SOCKET_H

#include "core/core.h"

#include <sys/socket.h>

struct pollfd;

struct address {
    struct sockaddr_storage storage;
    socklen_t bytes;
};

enum { TERN_ADDRESS_TEXT = 80 };
/* "10.0.0.1:4000" or "[::1]:4000". */
void terni_address_print(const struct address *a, char text[TERN_ADDRESS_TEXT]);
void terni_address_loopback(struct address *a); /* IPv4, port 0 */
void terni_address_clear_port(struct address *a);
int terni_address_is_loopback(const struct address *a);
/* An IPv4 address that an IPv6 socket tells as ::ffff:10.0.0.1 becomes one of IPv4. */
void terni_address_unmap(struct address *a);
/* Port 0 takes any free one; *bound is what it became. */
enum tern_status terni_listen(const struct address *a, struct address *bound, int *fd);
/* At all addresses of this host, of both IP versions where it has both. */
enum tern_status terni_listen_everywhere(unsigned port, int *fd);
void terni_socket_tune(int fd); /* small messages leave at once */

/* Whether a connection leads back to its own socket: a system that gives a caller the very port that it
 * calls, where nobody listens, connects it so. */
int terni_is_self_connection(int fd);
void terni_socket_abort(int fd); /* closes it with a reset: its port is free at once */

/* Whether such an errno of socket, connect or accept is for want of descriptors, memory or ports here. */
int terni_is_shortage(int error);
/* *fd: the connection of one who waits; -1: nobody does. Fails for a shortage, of this rank's. */
enum tern_status terni_accept(int listen_fd, int rank, int *fd);

/* Milliseconds until `deadline_ns`, rounded up, for poll; 0 once it has passed. */
int terni_poll_ms(uint64_t deadline_ns);
/* poll that counts an interrupting signal as nothing ready. */
enum tern_status terni_poll(struct pollfd *fds, int num_fds, int ms);

struct frame {
    uint32_t type;
    uint32_t value;    /* of the type: rank, status, milliseconds */
    uint64_t sequence; /* number of the exchange it belongs to */
    uint64_t bytes;    /* that follow */
};

enum link_event {
    LINK_AGAIN,  /* nothing more for now */
    LINK_HEADER, /* in.* is complete: the owner checks it and sets in_data for in.bytes bytes, then reads on
                  */
    LINK_FRAME,  /* header and data are complete; the next read begins a new frame */
    LINK_CLOSED  /* the peer has gone; stays so */
};

struct link {
    int fd; /* -1: none */
    int is_closed;
    struct frame in;
    char *in_data;
    uint64_t in_done; /* bytes of header and data */
    int in_told;      /* LINK_HEADER was returned for this frame */
    struct frame out;
    const char *out_data;
    uint64_t out_done;
};

void terni_link_init(struct link *l, int fd);
void terni_link_close(struct link *l);
/* Begins a frame; the last one must have gone out. `data` stays the caller's and valid until then. */
void terni_link_put(struct link *l, uint32_t type, uint32_t value, uint64_t sequence, const void *data,
                    uint64_t bytes);
int terni_link_is_sending(const struct link *l);
/* Sends what the socket takes. An error closes the link for sending only: what the peer said before it left
 * can still be read. */
void terni_link_send(struct link *l);
enum link_event terni_link_recv(struct link *l);

#endif
