/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening and closing a scene, and what its tests do more than once. */
#include "net_scene.h"

#include <string.h>

static int open_scene(struct host_scene *s, const struct tern_net_config *config, int grows)
{
    memset(s, 0, sizeof *s);
    net_rig_init(&s->rig, RANKS);
    s->rig.world.grows = grows;
    for (int r = 0; r < RANKS; r++) {
        struct rng rng = {(uint64_t)r + 77};
        s->box[r] = world_take(&s->rig.world, r, ARENA_WINDOW, BYTES, "the box");
        s->words[r] = world_take(&s->rig.world, r, ARENA_WINDOW, 64, "words");
        s->local[r] = world_take(&s->rig.world, r, ARENA_DEVICE, BYTES, "local memory");
        rng_bytes(&rng, world_image(&s->rig.world, s->local[r]), BYTES);
        memset(world_image(&s->rig.world, s->words[r]), 0, 64);
    }
    PASS(net_rig_open(&s->rig, config, 5));
    return world_upload(&s->rig.world);
}

void *device(const struct host_scene *s, struct place p, size_t offset)
{
    return (char *)world_device(&s->rig.world, p) + offset;
}

char *image(const struct host_scene *s, struct place p, size_t offset)
{
    return (char *)world_image(&s->rig.world, p) + offset;
}

struct tern_stream *lane_of(const struct host_scene *s, int r) { return s->rig.world.members[r].lanes[0]; }

static int run_scene(const struct tern_net_config *config, int grows, int (*body)(struct host_scene *s))
{
    static struct host_scene s;
    int result = open_scene(&s, config, grows);
    result = result ? result : body(&s);
    net_rig_close(&s.rig);
    return result;
}

int in_scene(const struct tern_net_config *config, int (*body)(struct host_scene *s))
{
    return run_scene(config, 0, body);
}

int in_scene_with_room(const struct tern_net_config *config, int (*body)(struct host_scene *s))
{
    return run_scene(config, 1, body);
}

int open_teams(struct host_scene *s, int kind, struct tern_team **teams, struct tern_net_team *views)
{
    struct tern_comm *comms[RANKS];
    for (int r = 0; r < RANKS; r++) {
        comms[r] = s->rig.world.members[r].comm;
        memset(&views[r], 0, sizeof views[r]);
        views[r].size = sizeof views[r];
    }
    OK(tern_team_open_all(RANKS, comms, kind, teams));
    OK(tern_net_team_open_all(RANKS, s->rig.networks, teams, views));
    return 0;
}

int kernel_refuses(struct host_scene *s, const struct net_request *q, int status, const char *text)
{
    for (int group = GROUP_THREAD; group <= GROUP_BLOCK; group++) {
        struct net_shape shape = {group, 1, 64, 1};
        struct net_request *added;
        struct net_result *result;
        net_rig_clear(&s->rig);
        added = net_rig_add(&s->rig, 0);
        result = added->result;
        *added = *q;
        added->result = result;
        PASS(net_rig_launch(&s->rig, 0, &shape, NULL));
        PASS(net_rig_collect(&s->rig));
        PASS(net_rig_all(&s->rig, status));
        REFUSES(tern_net_synchronize(s->rig.networks[0], lane_of(s, 0)), (enum tern_status)status, text);
    }
    return 0;
}

int put_ends(struct host_scene *s, struct place local, uint32_t queue, char *remote, uint64_t bytes,
             int status, const char *text)
{
    struct net_shape shape = {GROUP_BLOCK, 1, 64, 1};
    struct net_request *q;
    net_rig_clear(&s->rig);
    q = net_rig_add(&s->rig, 0);
    q->kind = NET_REQUEST_PUT;
    q->flags = NET_REQUEST_PLAIN;
    q->peer = 2;
    q->queue = queue;
    q->remote = remote;
    q->local = device(s, local, 0);
    q->bytes = bytes;
    PASS(net_rig_launch(&s->rig, 0, &shape, NULL));
    PASS(world_synchronize(&s->rig.world));
    if (status != TERN_OK) {
        REFUSES(tern_net_synchronize(s->rig.networks[0], lane_of(s, 0)), (enum tern_status)status, text);
    }
    OK(tern_net_synchronize(s->rig.networks[0], lane_of(s, 0)));
    const struct net_result *result = (const struct net_result *)world_peek(
        &s->rig.world, 0, s->rig.ranks[0].device_results, sizeof *result);
    CHECK(result != NULL && result->status == status, "the put ended with %lld, not %d",
          (long long)(result != NULL ? result->status : 1), status);
    return 0;
}

int open_comms(struct tern_comm **comms)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    config.heap_bytes = 1 << 20;
    config.machine = TERN_MACHINE_CPU;
    config.cpu_seed = 1;
    return tern_comm_open_all(RANKS, &config, comms) == TERN_OK ? 0 : TEST_FAILED;
}

void close_comms(struct tern_comm **comms)
{
    for (int r = 0; r < RANKS; r++) {
        tern_comm_close(comms[r]);
    }
}
