/* SPDX-License-Identifier: Apache-2.0
 *
 * Who has called at a door and has not said yet who it is. With the house full further callers wait in the
 * socket's queue, and only a guest that was silent for long makes room for them: nobody who speaks is sent
 * away unheard, and nobody who is silent keeps others out. */
#ifndef TERN_LOBBY_H
#define TERN_LOBBY_H

#include "comm/socket.h"

enum { TERN_MOST_GUESTS = 64, TERN_GUEST_BYTES = 160 };

struct guest {
    struct link link;
    uint64_t patience_end_ns;
    unsigned char said[TERN_GUEST_BYTES]; /* the data of its frame */
};

struct lobby {
    int num;
    struct guest guests[TERN_MOST_GUESTS]; /* oldest first */
};

int terni_lobby_is_full(const struct lobby *l);
/* Lets in all who wait at door_fd, rank's, as long as there is room. */
enum tern_status terni_lobby_accept(struct lobby *l, int door_fd, int rank);
/* Reads guest i's data to where they belong. */
enum link_event terni_lobby_recv(struct lobby *l, int i);
/* Those after it move. Its socket is closed, or the caller's now. */
void terni_lobby_drop(struct lobby *l, int i, int keeps_socket);
/* Whether the oldest has to make room. Who asks hears it once more, and drops it if the house stays full. */
int terni_lobby_waits_too_long(const struct lobby *l);
void terni_lobby_close(struct lobby *l);

#endif
