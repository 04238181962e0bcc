/* SPDX-License-Identifier: Apache-2.0
 *
 * The stage of scene.h: fixed small sizes, seeded content, no staging. */
#include "scene.h"

#include <stdlib.h>
#include <string.h>

int scene_on_cpu(void)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_comm *comm = NULL;
    enum tern_machine machine;

    config.heap_bytes = 1 << 20;
    OK(tern_comm_open_all(1, &config, &comm));
    machine = tern_comm_machine(comm);
    tern_comm_close(comm);
    return machine == TERN_MACHINE_CPU;
}

struct batch_shape scene_shape(int num_ranks, uint32_t layout, int routing)
{
    struct batch_shape s = {0, 4, 8, 0, 0, MAX_TOKENS, 0, ROUTING_UNIFORM};

    s.num_experts = 4 * (uint32_t)num_ranks;
    s.layout = layout;
    s.alignment = layout == TERN_LAYOUT_EXPERT ? 8 : 0;
    s.routing = routing;
    return s;
}

void scene_init(struct scene *s, int num_ranks, uint64_t seed)
{
    struct tern_ep_config config = TERN_EP_CONFIG_INIT;

    memset(s, 0, sizeof *s);
    s->rng.state = seed;
    world_init(&s->world, num_ranks, -1);
    s->eps = (struct tern_ep **)test_take((size_t)num_ranks, sizeof(void *));
    s->more_eps = (struct tern_ep **)test_take((size_t)num_ranks, sizeof(void *));
    s->graphs = (struct tern_graph **)test_take((size_t)num_ranks, sizeof(void *));
    s->events = (struct tern_event **)test_take(2 * (size_t)num_ranks, sizeof(void *));
    config.num_experts = 4 * (uint32_t)num_ranks;
    config.max_topk = 4;
    config.max_tokens = MAX_TOKENS;
    config.max_row_bytes = SCENE_ROW_BYTES;
    s->row_bytes = SCENE_ROW_BYTES;
    config.num_sms = 2;
    config.staging_bytes = TERN_STAGING_NONE;
    s->config = config;
}

void scene_add(struct scene *s, const struct batch_shape *shape, uint64_t capacity)
{
    int i = s->num_batches++;

    batch_init(&s->batches[i], &s->world, shape, &s->rng);
    dispatch_plain(&s->dispatches[i], &s->batches[i], s->row_bytes, capacity, ARENA_WINDOW);
    combine_plain(&s->combines[i], &s->batches[i], s->row_bytes, capacity, ARENA_WINDOW);
}

int scene_open(struct scene *s)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;

    config.cpu_seed = s->free_running ? 0 : s->rng.state | 1;
    config.timeout_ms = 60000;
    PASS(world_open(&s->world, NULL, &config));
    return world_ep_open(&s->world, &s->config, s->eps);
}

void scene_refill(struct scene *s, int i)
{
    dispatch_fill(&s->dispatches[i], &s->rng);
    combine_fill(&s->combines[i], &s->rng);
}

int scene_round(struct scene *s, int i)
{
    scene_refill(s, i);
    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batches[i], s->eps, 0));
    PASS(batch_check_counts(&s->batches[i]));
    PASS(dispatch_check(&s->dispatches[i], s->eps, 0));
    return combine_check(&s->combines[i], s->eps, 0);
}

int scene_static(struct scene *s, int ranks, uint32_t layout, uint64_t seed, int equal)
{
    struct batch_shape shape = scene_shape(ranks, layout, ROUTING_UNIFORM);
    uint64_t rows;

    scene_init(s, ranks, seed);
    shape.equal_tokens = equal;
    OK(tern_ep_max_rows(&s->config, ranks, (int)layout, shape.alignment, &rows));
    scene_add(s, &shape, rows);
    return 0;
}

void scene_fini(struct scene *s)
{
    int i, r;

    for (r = 0; r < s->world.num_ranks; r++) {
        struct tern_comm *comm = s->world.members[r].comm;
        for (i = 0; i < 2; i++) {
            if (s->events[2 * r + i]) {
                tern_event_close(comm, s->events[2 * r + i]);
            }
        }
        if (s->graphs[r]) {
            tern_graph_close(comm, s->graphs[r]);
        }
    }
    for (i = 0; i < s->num_batches; i++) {
        batch_fini(&s->batches[i]);
        dispatch_fini(&s->dispatches[i]);
        combine_fini(&s->combines[i]);
    }
    world_ep_close(&s->world, s->more_eps);
    world_ep_close(&s->world, s->eps);
    world_fini(&s->world);
    free(s->eps);
    free(s->more_eps);
    free(s->graphs);
    free(s->events);
}
