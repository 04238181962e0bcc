/* SPDX-License-Identifier: Apache-2.0
 *
 * Addresses, listening, accepting, and poll with deadlines. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* accept4 */
#endif
#include "comm/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void terni_address_print(const struct address *a, char text[TERN_ADDRESS_TEXT])
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (a->storage.ss_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, &a->storage, sizeof v6);
        inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof host);
        snprintf(text, TERN_ADDRESS_TEXT, "[%s]:%u", host, ntohs(v6.sin6_port));
    } else {
        struct sockaddr_in v4;
        memcpy(&v4, &a->storage, sizeof v4);
        inet_ntop(AF_INET, &v4.sin_addr, host, sizeof host);
        snprintf(text, TERN_ADDRESS_TEXT, "%s:%u", host, ntohs(v4.sin_port));
    }
}

void terni_address_loopback(struct address *a)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    memset(a, 0, sizeof *a);
    memcpy(&a->storage, &v4, sizeof v4);
    a->bytes = sizeof v4;
}

void terni_address_clear_port(struct address *a)
{
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;
    if (a->storage.ss_family == AF_INET6) {
        memcpy(&v6, &a->storage, sizeof v6);
        v6.sin6_port = 0;
        memcpy(&a->storage, &v6, sizeof v6);
    } else {
        memcpy(&v4, &a->storage, sizeof v4);
        v4.sin_port = 0;
        memcpy(&a->storage, &v4, sizeof v4);
    }
}

int terni_address_is_loopback(const struct address *a)
{
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;
    if (a->storage.ss_family == AF_INET6) {
        memcpy(&v6, &a->storage, sizeof v6);
        return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
    }
    memcpy(&v4, &a->storage, sizeof v4);
    return ntohl(v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

void terni_address_unmap(struct address *a)
{
    struct sockaddr_in6 v6;
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    memcpy(&v6, &a->storage, sizeof v6);
    if (a->storage.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
        v4.sin_port = v6.sin6_port;
        memcpy(&v4.sin_addr, &v6.sin6_addr.s6_addr[12], sizeof v4.sin_addr);
        memset(a, 0, sizeof *a);
        memcpy(&a->storage, &v4, sizeof v4);
        a->bytes = sizeof v4;
    }
}

enum tern_status terni_listen(const struct address *a, struct address *bound, int *fd)
{
    char text[TERN_ADDRESS_TEXT];
    enum tern_status status;
    struct address actual = {.bytes = sizeof actual.storage};
    int yes = 1, no = 0;
    int s = socket(a->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    terni_address_print(a, text);
    if (s < 0) {
        return TERN_FAIL(TERN_SYSTEM_ERROR, "no socket to listen on %s: %m", text);
    }
    /* A port that an earlier run used a moment ago must not be refused. */
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (a->storage.ss_family == AF_INET6) {
        setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no); /* the wildcard is of IPv4, too */
    }
    if (bind(s, (const struct sockaddr *)&a->storage, a->bytes) != 0) {
        status = TERN_FAIL(TERN_SYSTEM_ERROR, "cannot bind %s: %m", text);
        goto close_socket;
    }
    if (listen(s, SOMAXCONN) != 0) {
        status = TERN_FAIL(TERN_SYSTEM_ERROR, "cannot listen on %s: %m", text);
        goto close_socket;
    }
    if (getsockname(s, (struct sockaddr *)&actual.storage, &actual.bytes) != 0) {
        status = TERN_FAIL(TERN_SYSTEM_ERROR, "cannot learn the port of %s: %m", text);
        goto close_socket;
    }
    *bound = actual;
    *fd = s;
    return TERN_OK;

close_socket:
    close(s);
    return status;
}

enum tern_status terni_listen_everywhere(unsigned port, int *fd)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct address a = {.bytes = sizeof v6}, bound;
    int probe = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(&a.storage, &v6, sizeof v6);
    if (probe < 0) {
        memcpy(&a.storage, &v4, sizeof v4);
        a.bytes = sizeof v4;
    } else {
        close(probe);
    }
    return terni_listen(&a, &bound, fd);
}

void terni_socket_tune(int fd)
{
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

int terni_is_self_connection(int fd)
{
    struct address own = {.bytes = sizeof own.storage}, peer = {.bytes = sizeof peer.storage};
    return getsockname(fd, (struct sockaddr *)&own.storage, &own.bytes) == 0 &&
           getpeername(fd, (struct sockaddr *)&peer.storage, &peer.bytes) == 0 && own.bytes == peer.bytes &&
           memcmp(&own.storage, &peer.storage, own.bytes) == 0;
}

void terni_socket_abort(int fd)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

int terni_is_shortage(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM ||
           error == EADDRNOTAVAIL;
}

enum tern_status terni_accept(int listen_fd, int rank, int *fd)
{
    struct pollfd callers = {.fd = listen_fd, .events = POLLIN};
    int error;
    do {
        *fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    } while (*fd < 0 && (errno == EINTR || errno == ECONNABORTED));
    error = errno;
    /* It wants a descriptor before it looks whether anybody waits. */
    if (*fd < 0 && terni_is_shortage(error) && poll(&callers, 1, 0) > 0) {
        return TERN_FAIL(TERN_SYSTEM_ERROR, "rank %d cannot accept a connection: %s", rank, strerror(error));
    }
    return TERN_OK;
}

int terni_poll_ms(uint64_t deadline_ns)
{
    uint64_t now = terni_clock_ns();
    uint64_t ms = now < deadline_ns ? (deadline_ns - now + 999999) / 1000000 : 0;
    return ms < 1000000 ? (int)ms : 1000000;
}

enum tern_status terni_poll(struct pollfd *fds, int num_fds, int ms)
{
    if (poll(fds, (nfds_t)num_fds, ms) >= 0) {
        return TERN_OK;
    }
    if (errno != EINTR) {
        return TERN_FAIL(TERN_SYSTEM_ERROR, "poll of %d descriptors: %m", num_fds);
    }
    for (int i = 0; i < num_fds; i++) {
        fds[i].revents = 0;
    }
    return TERN_OK;
}
