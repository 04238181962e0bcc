/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening the TCP boot. Rank 0 accepts whoever comes and reads hellos from all of them at once, so that a
 * port scanner, a stranger with another cookie or a client that says nothing is dropped without holding up
 * anybody. The other ranks connect, say hello and wait for the welcome. With an id from tern_id_create the
 * port has listened since before the id existed: a refusal means that rank 0 has gone. With an agreed address
 * it may mean that rank 0 is not there yet, or that an earlier job still holds the port: they try again until
 * the deadline. Of an agreed name they try all addresses in turn, each for two seconds at most. */
#include "comm/lobby.h"
#include "comm/tcp.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { first_pause_ms = 5, last_pause_ms = 200, way_ms = 2000 };

static_assert(sizeof(struct hello) <= TERN_GUEST_BYTES, "a guest may say as much");

struct door {
    struct tcp *tcp;
    const unsigned char *cookie;
    int listen_fd;
    struct lobby lobby; /* have not said a valid hello yet */
    int *polled;        /* [num_ranks] */
};

/* Sends a failure to a guest that will not be seated, and everybody else the same. */
static enum tern_status turn_away(struct door *d, struct guest *g)
{
    struct tcp *t = d->tcp;
    terni_link_put(&g->link, TERN_FRAME_VERDICT, (uint32_t)t->verdict, 0, t->sentence, strlen(t->sentence));
    terni_link_send(&g->link);
    return t->verdict;
}

/* Guest i has said hello with the right cookie: it becomes a rank, or the opening fails with its reason. */
static enum tern_status seat(struct door *d, int i)
{
    struct tcp *t = d->tcp;
    struct guest *g = &d->lobby.guests[i];
    struct hello hello;
    int num_ranks = t->boot.num_ranks;
    int root = terni_boot_name(&t->boot, 0);
    uint32_t r = g->link.in.value;
    uint32_t name = r < (uint32_t)num_ranks ? (uint32_t)terni_boot_name(&t->boot, (int)r) : r;
    memcpy(&hello, g->said, sizeof hello);
    if (hello.version != tern_version()) {
        terni_tcp_judge(t, TERN_MISMATCH, "rank %u has version %08x where rank %d has %08x", name,
                        hello.version, root, tern_version());
        return turn_away(d, g);
    }
    if (hello.num_ranks != (uint32_t)num_ranks) {
        terni_tcp_judge(t, TERN_MISMATCH, "rank %u expects %u ranks where rank %d expects %d", name,
                        hello.num_ranks, root, num_ranks);
        return turn_away(d, g);
    }
    if (r >= (uint32_t)num_ranks) {
        terni_tcp_judge(t, TERN_MISMATCH, "a caller says that it is rank %u of %d", r, num_ranks);
        return turn_away(d, g);
    }
    if (t->has_arrived[r]) {
        terni_tcp_judge(t, TERN_MISMATCH, "two callers say that they are rank %u of %d", name, num_ranks);
        return turn_away(d, g);
    }
    t->links[r] = g->link;
    t->has_arrived[r] = 1;
    terni_lobby_drop(&d->lobby, i, 1);
    return TERN_OK;
}

static enum tern_status accept_guests(struct door *d)
{
    if (terni_lobby_accept(&d->lobby, d->listen_fd, terni_boot_name(&d->tcp->boot, 0)) != TERN_OK) {
        return terni_tcp_judge(d->tcp, TERN_SYSTEM_ERROR, "%s", tern_last_error());
    }
    return TERN_OK;
}

/* Reads guest i's hello; it may be no guest any more afterwards. */
static enum tern_status hear(struct door *d, int i)
{
    const struct guest *g = &d->lobby.guests[i];
    struct hello hello;
    for (;;) {
        switch (terni_lobby_recv(&d->lobby, i)) {
        case LINK_AGAIN:
            return TERN_OK;
        case LINK_HEADER:
            if (g->link.in.type != TERN_FRAME_HELLO || g->link.in.bytes != sizeof hello) {
                TERN_LOG(TERN_LOG_INFO, "dropped a connection that does not speak Tern's protocol");
                terni_lobby_drop(&d->lobby, i, 0);
                return TERN_OK;
            }
            break;
        case LINK_FRAME:
            memcpy(&hello, g->said, sizeof hello);
            if (memcmp(hello.cookie, d->cookie, TERN_COOKIE_BYTES) != 0) {
                TERN_LOG(TERN_LOG_INFO, "dropped a connection with another cookie");
                terni_lobby_drop(&d->lobby, i, 0);
                return TERN_OK;
            }
            return seat(d, i);
        case LINK_CLOSED:
            terni_lobby_drop(&d->lobby, i, 0);
            return TERN_OK;
        }
    }
}

static int is_complete(const struct tcp *t)
{
    return memchr(t->has_arrived, 0, (size_t)t->boot.num_ranks) == NULL;
}

/* Who asks is answered when nobody is left in the socket's queue, and no guest has more to say. */
static enum tern_status answer(struct door *d)
{
    int num_before;
    do {
        for (int i = d->lobby.num - 1; i >= 0; i--) {
            TERN_TRY(hear(d, i));
        }
        num_before = d->lobby.num;
        TERN_TRY(accept_guests(d));
    } while (d->lobby.num > num_before);
    return is_complete(d->tcp) || terni_lobby_is_full(&d->lobby)
               ? TERN_OK
               : terni_tcp_judge_late(d->tcp, d->tcp->asked_ms);
}

/* The door, ranks that are seated, guests: no entry without a descriptor, of which a process may have no more
 * than poll takes entries. Returns how many ranks; whose they are in d->polled. */
static int list_polled(struct door *d, struct pollfd *fds)
{
    const struct tcp *t = d->tcp;
    int num_seated = 0;
    fds[0].fd = terni_lobby_is_full(&d->lobby) ? -1 : d->listen_fd;
    fds[0].events = POLLIN;
    for (int r = 1; r < t->boot.num_ranks; r++) {
        if (t->links[r].fd >= 0) {
            d->polled[num_seated++] = r;
            fds[num_seated].fd = t->links[r].fd;
            fds[num_seated].events = POLLIN;
        }
    }
    for (int i = 0; i < d->lobby.num; i++) {
        fds[1 + num_seated + i].fd = d->lobby.guests[i].link.fd;
        fds[1 + num_seated + i].events = POLLIN;
    }
    return num_seated;
}

/* One round of the door: waits for news, then hears guests and seated ranks. */
static enum tern_status attend(struct door *d, uint64_t deadline_ns, struct pollfd *fds)
{
    struct tcp *t = d->tcp;
    int num_polled_guests = d->lobby.num, num_seated = list_polled(d, fds);
    struct pollfd *guest_fds = fds + 1 + num_seated;
    if (terni_lobby_is_full(&d->lobby) && d->lobby.guests[0].patience_end_ns < deadline_ns) {
        deadline_ns = d->lobby.guests[0].patience_end_ns;
    }
    if (terni_poll(fds, 1 + num_seated + num_polled_guests, terni_poll_ms(deadline_ns)) != TERN_OK) {
        return terni_tcp_judge(t, TERN_SYSTEM_ERROR, "%s", tern_last_error());
    }
    for (int k = 0; k < num_seated; k++) {
        if (fds[1 + k].revents != 0) {
            TERN_TRY(terni_tcp_root_input(t, d->polled[k]));
        }
    }
    /* From the last, because a guest that leaves moves those after it. */
    for (int i = num_polled_guests - 1; i >= 0; i--) {
        if (guest_fds[i].revents != 0) {
            TERN_TRY(hear(d, i));
        }
    }
    if (terni_lobby_waits_too_long(&d->lobby)) {
        TERN_TRY(hear(d, 0));
        if (terni_lobby_is_full(&d->lobby)) {
            terni_lobby_drop(&d->lobby, 0, 0);
        }
    }
    if (fds[0].revents != 0) {
        TERN_TRY(accept_guests(d));
    }
    return t->is_asked && !is_complete(t) ? answer(d) : TERN_OK;
}

static enum tern_status receive_all(struct tcp *t, const unsigned char *cookie, int listen_fd,
                                    uint32_t timeout_ms)
{
    uint64_t deadline_ns = terni_clock_ns() + (uint64_t)timeout_ms * 1000000;
    enum tern_status status = TERN_OK;
    struct pollfd *fds = (struct pollfd *)calloc((size_t)t->boot.num_ranks + TERN_MOST_GUESTS, sizeof *fds);
    struct door *d = (struct door *)calloc(1, sizeof *d);
    if (d != NULL) {
        d->polled = (int *)calloc((size_t)t->boot.num_ranks, sizeof *d->polled);
    }
    if (fds == NULL || d == NULL || d->polled == NULL) {
        status = TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory to receive %d ranks", t->boot.num_ranks);
        goto free_door;
    }
    d->tcp = t;
    d->cookie = cookie;
    d->listen_fd = listen_fd;
    t->has_arrived[0] = 1;
    while (status == TERN_OK && !is_complete(t)) {
        status = attend(d, deadline_ns, fds);
        if (status == TERN_OK && !is_complete(t) && terni_clock_ns() >= deadline_ns) {
            status = terni_tcp_judge_late(t, timeout_ms);
        }
    }
    if (status == TERN_OK) {
        terni_tcp_root_scatter(t, deadline_ns + TERN_GRACE_NS, timeout_ms);
    }
    terni_lobby_close(&d->lobby);

free_door:
    if (d != NULL) {
        free(d->polled);
    }
    free(d);
    free(fds);
    return status;
}

static enum tern_status open_root(struct tcp *t, const struct tern_id *id, const struct id_fields *fields,
                                  uint32_t timeout_ms)
{
    enum tern_status status;
    int listen_fd;
    TERN_TRY(terni_id_take_listener(id, &listen_fd));
    status = receive_all(t, fields->cookie, listen_fd, timeout_ms);
    /* Shut down, not only closed: a parent process may hold the same socket, and late callers must be refused
     * rather than wait in its queue. */
    shutdown(listen_fd, SHUT_RDWR);
    close(listen_fd);
    return status;
}

/* Waits for a connection that has begun; *error is what became of it, 0 if it stands. */
static enum tern_status wait_connected(int fd, uint64_t deadline_ns, int *error)
{
    struct pollfd wait_fd = {.fd = fd, .events = POLLOUT};
    socklen_t error_bytes = sizeof *error;
    do {
        TERN_TRY(terni_poll(&wait_fd, 1, terni_poll_ms(deadline_ns)));
    } while (wait_fd.revents == 0 && terni_clock_ns() < deadline_ns);
    *error = ETIMEDOUT;
    if (wait_fd.revents != 0) {
        getsockopt(fd, SOL_SOCKET, SO_ERROR, error, &error_bytes);
    }
    return TERN_OK;
}

/* Connects to rank 0 before the deadline: *fd, or -1 with the reason, an errno, in *error. It fails where
 * this rank is to blame. */
static enum tern_status connect_before(const struct boot *boot, const struct address *a, uint64_t deadline_ns,
                                       int *fd, int *error)
{
    int rank = terni_boot_name(boot, boot->rank), root = terni_boot_name(boot, 0);
    *fd = socket(a->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    *error = *fd < 0 ? errno : 0;
    if (*error == EAFNOSUPPORT) {
        return TERN_OK; /* this host has not the IP version of that address; a name may have others */
    }
    if (*fd < 0) {
        return TERN_FAIL(TERN_SYSTEM_ERROR, "rank %d has no socket to call rank %d: %m", rank, root);
    }
    if (connect(*fd, (const struct sockaddr *)&a->storage, a->bytes) != 0) {
        *error = errno;
    }
    if ((*error == EINPROGRESS || *error == EINTR) && wait_connected(*fd, deadline_ns, error) != TERN_OK) {
        close(*fd);
        return TERN_FAIL(TERN_SYSTEM_ERROR, "rank %d cannot wait for rank %d: %s", rank, root,
                         tern_last_error());
    }
    if (*error == 0 && terni_is_self_connection(*fd)) {
        terni_socket_abort(*fd); /* rank 0 may be about to listen there */
        *error = ECONNREFUSED;
        *fd = -1;
        return TERN_OK;
    }
    if (*error != 0) {
        close(*fd);
        *fd = -1;
        return TERN_OK;
    }
    terni_socket_tune(*fd);
    return TERN_OK;
}

static void pause_ms(uint64_t deadline_ns, int ms)
{
    int left_ms = terni_poll_ms(deadline_ns);
    poll(NULL, 0, ms < left_ms ? ms : left_ms);
}

static enum tern_status open_peer(struct tcp *t, const struct id_fields *fields, uint32_t timeout_ms)
{
    uint64_t deadline_ns = terni_clock_ns() + (uint64_t)timeout_ms * 1000000;
    int may_come_later = (fields->flags & TERN_ID_AGREED) != 0;
    struct address ways[TERN_MAX_WAYS];
    char root[TERN_ADDRESS_TEXT];
    int root_name = terni_boot_name(&t->boot, 0), num_ways, way = 0, ms = first_pause_ms;
    struct hello hello = {.version = tern_version(), .num_ranks = (uint32_t)t->boot.num_ranks};
    TERN_TRY(terni_id_ways(fields, ways, &num_ways));
    memcpy(hello.cookie, fields->cookie, sizeof hello.cookie);
    for (;;) {
        uint64_t way_end_ns = terni_clock_ns() + way_ms * 1000000ull;
        const char *reason;
        int fd, error;
        way_end_ns = num_ways > 1 && way_end_ns < deadline_ns ? way_end_ns : deadline_ns;
        terni_address_print(&ways[way], root);
        TERN_TRY(connect_before(&t->boot, &ways[way], way_end_ns, &fd, &error));
        if (fd < 0) {
            reason = strerror(error);
        } else {
            terni_link_init(&t->links[0], fd);
            terni_link_put(&t->links[0], TERN_FRAME_HELLO, (uint32_t)t->boot.rank, 0, &hello, sizeof hello);
            switch (terni_tcp_peer_wait(t, deadline_ns, timeout_ms)) {
            case PEER_RESULT:
                return TERN_OK;
            case PEER_VERDICT:
                return TERN_FAIL(t->verdict, "%s", t->sentence);
            case PEER_SILENT:
                terni_tcp_leave(t, timeout_ms);
                return TERN_FAIL(TERN_TIMEOUT, "rank %d at %s did not arrive within %u ms", root_name, root,
                                 timeout_ms);
            case PEER_GONE:
                break;
            }
            terni_link_close(&t->links[0]);
            reason = "it closed the connection";
        }
        if (!may_come_later) {
            return TERN_FAIL(TERN_DISCONNECTED, "rank %d at %s did not welcome rank %d: %s", root_name, root,
                             terni_boot_name(&t->boot, t->boot.rank), reason);
        }
        if (terni_clock_ns() >= deadline_ns) {
            return TERN_FAIL(TERN_TIMEOUT, "rank %d at %s did not arrive within %u ms: %s", root_name, root,
                             timeout_ms, reason);
        }
        way = (way + 1) % num_ways;
        if (way == 0) {
            pause_ms(deadline_ns, ms);
            ms = ms < last_pause_ms ? ms * 2 : ms;
        }
    }
}

static struct tcp *tcp_new(int rank, int num_ranks, const int *names)
{
    int num_links = rank == 0 ? num_ranks : 1;
    struct tcp *t = (struct tcp *)calloc(1, sizeof *t);
    if (t == NULL) {
        return NULL;
    }
    t->boot.ops = &terni_tcp_ops;
    t->boot.rank = rank;
    t->boot.num_ranks = num_ranks;
    t->boot.names = names;
    t->links = (struct link *)calloc((size_t)num_links, sizeof *t->links);
    t->fds = (struct pollfd *)calloc((size_t)num_links, sizeof *t->fds);
    t->has_arrived = (unsigned char *)calloc((size_t)num_links, 1);
    t->took_none = (unsigned char *)calloc((size_t)num_links, 1);
    for (int i = 0; t->links != NULL && i < num_links; i++) {
        terni_link_init(&t->links[i], -1);
    }
    if (t->links == NULL || t->fds == NULL || t->has_arrived == NULL || t->took_none == NULL) {
        terni_tcp_close(&t->boot);
        return NULL;
    }
    return t;
}

enum tern_status terni_tcp_open(const struct tern_id *id, int rank, int num_ranks, const int *names,
                                uint32_t timeout_ms, struct boot **boot)
{
    struct id_fields fields;
    struct address address;
    enum tern_status status;
    struct tcp *t;
    TERN_TRY(terni_id_read(id, &fields, &address));
    t = tcp_new(rank, num_ranks, names);
    if (t == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for connections of %d ranks", num_ranks);
    }
    status = rank == 0 ? open_root(t, id, &fields, timeout_ms) : open_peer(t, &fields, timeout_ms);
    if (status != TERN_OK) {
        terni_tcp_close(&t->boot);
        return status;
    }
    *boot = &t->boot;
    return TERN_OK;
}
