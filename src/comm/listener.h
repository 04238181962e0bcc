/* SPDX-License-Identifier: Apache-2.0
 *
 * Listening sockets on their way from tern_id_create to tern_comm_open. */
#ifndef TERN_LISTENER_H
#define TERN_LISTENER_H

#include "core/core.h"

/* Takes over fd on success. */
enum tern_status terni_listener_keep(const unsigned char *cookie, int fd);
/* The socket kept for `cookie`, now the caller's; -1 if there is none. */
int terni_listener_take(const unsigned char *cookie);

#endif
