/* SPDX-License-Identifier: Apache-2.0
 *
 * An id is 128 plain bytes, yet its root must hold the socket that already listens at its address. Until rank
 * 0 opens, the socket waits in a list of this process, found by the cookie. An id that is never opened holds
 * one socket until the process ends. A forked child inherits list and sockets, so rank 0 may be a child. */
#include "comm/listener.h"
#include "comm/id.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct listener {
    struct listener *next;
    int fd;
    unsigned char cookie[TERN_COOKIE_BYTES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct listener *kept; /* under lock */

enum tern_status terni_listener_keep(const unsigned char *cookie, int fd)
{
    struct listener *l = (struct listener *)malloc(sizeof *l);
    if (l == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %zu bytes", sizeof *l);
    }
    l->fd = fd;
    memcpy(l->cookie, cookie, sizeof l->cookie);
    pthread_mutex_lock(&lock);
    l->next = kept;
    kept = l;
    pthread_mutex_unlock(&lock);
    return TERN_OK;
}

int terni_listener_take(const unsigned char *cookie)
{
    struct listener *found = NULL;
    int fd = -1;
    pthread_mutex_lock(&lock);
    for (struct listener **at = &kept; *at != NULL; at = &(*at)->next) {
        if (memcmp((*at)->cookie, cookie, TERN_COOKIE_BYTES) == 0) {
            found = *at;
            *at = found->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    if (found != NULL) {
        fd = found->fd;
        free(found);
    }
    return fd;
}

/* Whether fd listens on `port`: TERN_ID_FD may be stale, and whatever has that number then is not ours. */
static int listens_on(int fd, unsigned port)
{
    struct address a = {.bytes = sizeof a.storage};
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;
    int is_listening = 0;
    socklen_t bytes = sizeof is_listening;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &bytes) != 0 || !is_listening ||
        getsockname(fd, (struct sockaddr *)&a.storage, &a.bytes) != 0) {
        return 0;
    }
    memcpy(&v6, &a.storage, sizeof v6);
    memcpy(&v4, &a.storage, sizeof v4);
    return (a.storage.ss_family == AF_INET6 && ntohs(v6.sin6_port) == port) ||
           (a.storage.ss_family == AF_INET && ntohs(v4.sin_port) == port);
}

enum tern_status terni_id_take_listener(const struct tern_id *id, int *fd)
{
    struct id_fields fields;
    struct address address, bound;
    uint64_t inherited;
    int kept_fd;
    TERN_TRY(terni_id_read(id, &fields, &address));
    kept_fd = terni_listener_take(fields.cookie);
    if (kept_fd >= 0) {
        *fd = kept_fd;
        return TERN_OK;
    }
    if (fields.flags & TERN_ID_NAMED) {
        return terni_listen_everywhere(fields.port, fd);
    }
    if (fields.flags & TERN_ID_AGREED) {
        return terni_listen(&address, &bound, fd);
    }
    if (terni_env(TERN_ENV_ID_FD)[0] != '\0') {
        TERN_TRY(terni_env_uint(TERN_ENV_ID_FD, INT32_MAX, &inherited));
        if (listens_on((int)inherited, fields.port)) {
            *fd = (int)inherited;
            return TERN_OK;
        }
    }
    return TERN_FAIL(
        TERN_BAD_STATE,
        "this process does not listen on port %u of the id: rank 0 must be where tern_id_create was "
        "called, and an id opens one communicator",
        fields.port);
}
