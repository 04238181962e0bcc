/* SPDX-License-Identifier: Apache-2.0
 *
 * Four ranks with a network, and on each of them a box and some words in a window, and local memory: what the
 * tests of the host's calls begin with. */
#ifndef TERN_TEST_NET_SCENE_H
#define TERN_TEST_NET_SCENE_H

#include "net_rig.h"

enum { RANKS = 4, BYTES = 5000 };

struct host_scene {
    struct net_rig rig;
    struct place box[RANKS], words[RANKS], local[RANKS];
};

/* Runs the body in a scene of its own. config: NULL for defaults. */
int in_scene(const struct tern_net_config *config, int (*body)(struct host_scene *s));
/* The same where windows may grow. */
int in_scene_with_room(const struct tern_net_config *config, int (*body)(struct host_scene *s));

/* Communicators of RANKS on the cpu machine, without a network. 0, or TEST_FAILED. */
int open_comms(struct tern_comm **comms);
void close_comms(struct tern_comm **comms);

void *device(const struct host_scene *s, struct place p, size_t offset);
char *image(const struct host_scene *s, struct place p, size_t offset);
/* The stream on which the rank's requests run. */
struct tern_stream *lane_of(const struct host_scene *s, int r);
/* A team of this kind and its device team on every rank. */
int open_teams(struct host_scene *s, int kind, struct tern_team **teams, struct tern_net_team *views);
/* One request by rank 0's kernel, by a thread, a warp and a block, is refused there, and the host is told. */
int kernel_refuses(struct host_scene *s, const struct net_request *q, int status, const char *text);

/* A put of `local` by rank 0's kernel to rank 2 ends with this status, and the host is told. */
int put_ends(struct host_scene *s, struct place local, uint32_t queue, char *remote, uint64_t bytes,
             int status, const char *text);

#endif
