/* SPDX-License-Identifier: Apache-2.0
 *
 * The stage of scene.h: fixed small sizes, seeded content, no staging unless it is needed. */
#include "scene.h"

#include "patience.h"

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
    s->arena = ARENA_WINDOW;
}

void scene_leave_windows(struct scene *s)
{
    s->arena = ARENA_DEVICE;
    s->config.staging_bytes = 0;
}

void scene_add(struct scene *s, const struct batch_shape *shape, uint64_t capacity)
{
    int i = s->num_batches++;

    batch_init(&s->batches[i], &s->world, shape, &s->rng);
    dispatch_plain(&s->dispatches[i], &s->batches[i], s->row_bytes, capacity, s->arena);
    combine_plain(&s->combines[i], &s->batches[i], s->row_bytes, capacity, s->arena);
}

int scene_open(struct scene *s)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;

    config.cpu_seed = s->free_running ? 0 : s->rng.state | 1;
    config.timeout_ms = 60000;
    PASS(world_open(&s->world, NULL, &config));
    return world_ep_open(&s->world, &s->config, s->eps);
}

static int refuse(struct scene *s, enum tern_status status, const char *text)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_comm *comms[TERN_MAX_RANKS];
    int r;

    PASS(world_open(&s->world, NULL, &config));
    for (r = 0; r < s->world.num_ranks; r++) {
        comms[r] = s->world.members[r].comm;
    }
    REFUSES(tern_ep_open_all(s->world.num_ranks, comms, &s->config, s->eps), status, text);
    return 0;
}

int scene_refused(struct scene *s, enum tern_status status, const char *text)
{
    int result = refuse(s, status, text);

    scene_fini(s);
    return result;
}

void scene_refill(struct scene *s, int i)
{
    dispatch_fill(&s->dispatches[i], &s->rng);
    combine_fill(&s->combines[i], &s->rng);
}

uint32_t scene_patience(struct scene *s, uint32_t timeout_ms)
{
    uint32_t before = 0;

    for (int r = 0; r < s->world.num_ranks; r++) {
        if (s->eps[r]) { /* a process has its own rank's alone */
            before = patience_set(s->eps[r], timeout_ms);
        }
    }
    return before;
}

static int one_round(struct scene *s, int i)
{
    scene_refill(s, i);
    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batches[i], s->eps, 0));
    PASS(batch_check_counts(&s->batches[i]));
    PASS(dispatch_check(&s->dispatches[i], s->eps, 0));
    return combine_check(&s->combines[i], s->eps, 0);
}

int scene_round(struct scene *s, int i)
{
    uint32_t timeout_ms = scene_patience(s, PATIENCE_MS);
    int result = one_round(s, i);

    scene_patience(s, timeout_ms);
    return result;
}

int scene_then(struct scene *s, int (*body)(struct scene *))
{
    int result = 0;

    if (scene_open(s) || scene_round(s, 0) || body(s)) {
        result = TEST_FAILED;
    }
    scene_fini(s);
    return result;
}

static int issue_any(struct scene *s, int operation)
{
    int i = operation / 2;

    return operation % 2 ? combine_issue(&s->combines[i], 0) : dispatch_issue(&s->dispatches[i], 0);
}

/* Operations of all batches in a random order that all ranks share. */
static int shuffled_round(struct scene *s)
{
    int order[2 * MAX_BATCHES];

    for (int i = 0; i < s->num_batches; i++) {
        scene_refill(s, i);
        order[2 * i] = 2 * i;
        order[2 * i + 1] = 2 * i + 1;
    }
    rng_shuffle(&s->rng, order, 2 * s->num_batches);
    PASS(world_upload(&s->world));
    for (int i = 0; i < 2 * s->num_batches; i++) {
        PASS(issue_any(s, order[i]));
    }
    for (int i = 0; i < s->num_batches; i++) {
        dispatch_expect(&s->dispatches[i]);
        combine_expect(&s->combines[i]);
    }
    PASS(world_ep_synchronize(&s->world, s->eps));
    return world_verify(&s->world, "routes interleaved");
}

int scene_interleave(struct scene *s, int rounds)
{
    PASS(scene_open(s));
    PASS(world_upload(&s->world));
    for (int i = 0; i < s->num_batches; i++) {
        PASS(batch_open(&s->batches[i], s->eps, 0));
    }
    for (int round = 0; round < rounds; round++) {
        PASS(shuffled_round(s));
    }
    for (int i = 0; i < s->num_batches; i++) {
        PASS(batch_check_view(&s->batches[i]));
    }
    return 0;
}

int scene_side_by_side(struct scene *s, int rounds)
{
    int r, round;

    PASS(scene_open(s));
    PASS(world_ep_open(&s->world, &s->config, s->more_eps));
    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batches[0], s->eps, 1));
    PASS(batch_open(&s->batches[1], s->more_eps, 2));
    for (round = 0; round < rounds; round++) {
        scene_refill(s, 0);
        scene_refill(s, 1);
        PASS(world_upload(&s->world));
        for (r = 0; r < s->world.num_ranks; r++) {
            /* Ranks may issue work of different objects in different orders. */
            int first = (r + round) % 2;
            PASS(dispatch_issue_rank(&s->dispatches[first], r, 1 + first));
            PASS(dispatch_issue_rank(&s->dispatches[!first], r, 1 + !first));
            PASS(combine_issue_rank(&s->combines[!first], r, 1 + !first));
            PASS(combine_issue_rank(&s->combines[first], r, 1 + first));
        }
        dispatch_expect(&s->dispatches[0]);
        dispatch_expect(&s->dispatches[1]);
        combine_expect(&s->combines[0]);
        combine_expect(&s->combines[1]);
        PASS(world_ep_synchronize(&s->world, s->eps));
        PASS(world_ep_synchronize(&s->world, s->more_eps));
        PASS(world_verify(&s->world, "two objects side by side"));
    }
    return 0;
}

/* Rank r's tokens of batch 0, on the device and in staging. */
static struct place scene_tokens(const struct scene *s, int r)
{
    return s->dispatches[0].ranks[r].in[0].place;
}

/* Within a capture of `lane`, behind the route: tokens come by lane 3, and the dispatch runs after that. */
static int scene_branch(struct scene *s, int r, int lane)
{
    struct member *m = &s->world.members[r];
    struct place in = scene_tokens(s, r);
    struct arena *a = &m->arenas[in.arena];
    for (int i = 2 * r; i < 2 * r + 2; i++) {
        OK(tern_event_open(m->comm, &s->events[i]));
    }
    OK(tern_event_record(m->comm, s->events[2 * r], m->lanes[lane]));
    OK(tern_event_wait(m->comm, s->events[2 * r], m->lanes[3]));
    OK(tern_copy(m->comm, a->device + in.offset, a->staging + in.offset, in.bytes, m->lanes[3]));
    OK(tern_event_record(m->comm, s->events[2 * r + 1], m->lanes[3]));
    s->dispatches[0].ranks[r].after = s->events[2 * r + 1];
    return 0;
}

/* Route, dispatch and combine of batch 0, all ranks. */
static int scene_capture(struct scene *s, int lane)
{
    for (int r = 0; r < s->world.num_ranks; r++) {
        struct member *m = &s->world.members[r];
        struct tern_route_args args = batch_args(&s->batches[0], r);
        OK(tern_graph_begin(m->comm, m->lanes[lane]));
        OK(tern_route_update(s->batches[0].routes[r], &args, m->lanes[lane]));
        PASS(s->branches ? scene_branch(s, r, lane) : 0);
        PASS(dispatch_issue_rank(&s->dispatches[0], r, lane));
        s->dispatches[0].ranks[r].after = NULL;
        PASS(combine_issue_rank(&s->combines[0], r, lane));
        OK(tern_graph_end(m->comm, m->lanes[lane], &s->graphs[r]));
    }
    return 0;
}

int scene_replay(struct scene *s, int lane, int rounds)
{
    PASS(scene_open(s));
    scene_refill(s, 0);
    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batches[0], s->eps, 0));
    PASS(world_ep_synchronize(&s->world, s->eps));
    PASS(scene_capture(s, lane));
    PASS(world_verify(&s->world, "a capture, which must run nothing"));
    for (int round = 0; round < rounds; round++) {
        batch_redraw(&s->batches[0], round % NUM_ROUTINGS, &s->rng);
        scene_refill(s, 0);
        PASS(world_upload(&s->world));
        for (int r = 0; r < s->world.num_ranks; r++) {
            struct member *m = &s->world.members[r];
            struct place in = scene_tokens(s, r);
            if (s->branches) { /* the graph brings them again */
                OK(tern_fill(m->comm, m->arenas[in.arena].device + in.offset, 0xee, in.bytes,
                             m->lanes[lane]));
            }
            OK(tern_graph_launch(m->comm, s->graphs[r], m->lanes[lane]));
        }
        dispatch_expect(&s->dispatches[0]);
        combine_expect(&s->combines[0]);
        PASS(world_ep_synchronize(&s->world, s->eps));
        PASS(world_verify(&s->world, "a replayed graph"));
        if (round % 3 == 2) { /* calls outside the graph fit between replays */
            scene_refill(s, 0);
            PASS(dispatch_check(&s->dispatches[0], s->eps, lane));
        }
    }
    return 0;
}

int scene_add_static(struct scene *s, uint32_t layout, int equal)
{
    struct batch_shape shape = scene_shape(s->world.num_ranks, layout, ROUTING_UNIFORM);
    uint64_t rows;

    shape.equal_tokens = equal;
    OK(tern_ep_max_rows(&s->config, s->world.num_ranks, (int)layout, shape.alignment, &rows));
    scene_add(s, &shape, rows);
    return 0;
}

int scene_static(struct scene *s, int ranks, uint32_t layout, uint64_t seed, int equal)
{
    scene_init(s, ranks, seed);
    return scene_add_static(s, layout, equal);
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
