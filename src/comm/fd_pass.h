/* SPDX-License-Identifier: Apache-2.0
 *
 * Handing file descriptors between the processes of one host. */
#ifndef TERN_FD_PASS_H
#define TERN_FD_PASS_H

#include "comm/part.h"

/* A socket on which this rank will receive descriptors; named after `self`. */
enum tern_status terni_fd_listen(const struct part_name *self, int *listen_fd);
/* Sends send_fd to every rank with is_peer[r] and receives theirs into fds[r] (the caller's then; others stay
 * -1). Every one of them must have listened before any calls this. On failure no descriptor is left open. */
enum tern_status terni_fd_exchange(const struct part_name *self, int num_ranks, const unsigned char *is_peer,
                                   int listen_fd, int send_fd, uint32_t timeout_ms, int *fds);

#endif
