/* SPDX-License-Identifier: Apache-2.0
 *
 * The lobby of a door. */
#include "comm/lobby.h"

#include <string.h>

static const uint64_t patience_ns = 1000 * 1000000ull;

int terni_lobby_is_full(const struct lobby *l) { return l->num == TERN_MOST_GUESTS; }

enum tern_status terni_lobby_accept(struct lobby *l, int door_fd, int rank)
{
    while (!terni_lobby_is_full(l)) {
        int fd;
        TERN_TRY(terni_accept(door_fd, rank, &fd));
        if (fd < 0) {
            return TERN_OK;
        }
        terni_socket_tune(fd);
        l->guests[l->num].patience_end_ns = terni_clock_ns() + patience_ns;
        terni_link_init(&l->guests[l->num++].link, fd);
    }
    return TERN_OK;
}

enum link_event terni_lobby_recv(struct lobby *l, int i)
{
    struct guest *guest = &l->guests[i];
    guest->link.in_data = (char *)guest->said; /* it may have moved since its header was read */
    return terni_link_recv(&guest->link);
}

void terni_lobby_drop(struct lobby *l, int i, int keeps_socket)
{
    if (!keeps_socket) {
        terni_link_close(&l->guests[i].link);
    }
    l->num--;
    memmove(&l->guests[i], &l->guests[i + 1], (size_t)(l->num - i) * sizeof l->guests[0]);
}

int terni_lobby_waits_too_long(const struct lobby *l)
{
    return terni_lobby_is_full(l) && terni_clock_ns() >= l->guests[0].patience_end_ns;
}

void terni_lobby_close(struct lobby *l)
{
    while (l->num > 0) {
        terni_lobby_drop(l, l->num - 1, 0);
    }
}
