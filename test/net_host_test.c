/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's operations, blocking, on a stream and in a graph; waits and barriers that miss their deadline,
 * and what the host is told; refusals; and what a kernel's view knows of windows that came later. */
#include "net_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, BYTES = 5000 };

struct host_scene {
    struct net_rig rig;
    struct place box[RANKS], words[RANKS], local[RANKS];
};

static int open_scene(struct host_scene *s, const struct tern_net_config *config)
{
    memset(s, 0, sizeof *s);
    net_rig_init(&s->rig, RANKS);
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

static void *device(const struct host_scene *s, struct place p, size_t offset)
{
    return (char *)world_device(&s->rig.world, p) + offset;
}

static char *image(const struct host_scene *s, struct place p, size_t offset)
{
    return (char *)world_image(&s->rig.world, p) + offset;
}

static struct tern_stream *lane_of(const struct host_scene *s, int r)
{
    return s->rig.world.members[r].lanes[0];
}

static int in_scene(const struct tern_net_config *config, int (*body)(struct host_scene *s))
{
    static struct host_scene s;
    int result = open_scene(&s, config);
    result = result ? result : body(&s);
    net_rig_close(&s.rig);
    return result;
}

static int in_image(const struct host_scene *s, struct place p, size_t offset, uint64_t value, size_t width)
{
    memcpy(image(s, p, offset), &value, width);
    return 0;
}

/* ---- Operations ---- */

static int blocking_body(struct host_scene *s)
{
    uint64_t old = 0, seen = 0;
    for (int r = 0; r < RANKS; r++) {
        struct tern_network *n = s->rig.networks[r];
        int to = (r + 1) % RANKS;
        OK(tern_net_put(n, to, 0, device(s, s->box[r], 3), device(s, s->local[r], 1), 2001));
        memcpy(image(s, s->box[to], 3), image(s, s->local[r], 1), 2001);
        OK(tern_net_signal(n, to, 0, device(s, s->words[r], 0), TERN_SIGNAL_ADD, 8, 1ull << 40));
        OK(tern_net_signal(n, to, 0, device(s, s->words[r], 8), TERN_SIGNAL_SET, 4, 7));
        OK(tern_net_atomic(n, to, 0, device(s, s->words[r], 16), TERN_AMO_ADD, 8, 5, 0, NULL));
        OK(tern_net_atomic(n, to, 0, device(s, s->words[r], 16), TERN_AMO_CAS, 8, 9, 5, &old));
        OK(tern_net_atomic(n, to, 0, device(s, s->words[r], 16), TERN_AMO_FETCH, 8, 0, 0, &seen));
        CHECK(old == 5 && seen == 9, "5 became %llu, and then %llu", (unsigned long long)old,
              (unsigned long long)seen);
        OK(tern_net_quiet(n, to, 0));
        OK(tern_net_quiet(n, -1, -1));
        OK(tern_net_wait(s->rig.networks[to], device(s, s->words[to], 0), 8, TERN_COMPARE_GE, 1ull << 40, 0));
        OK(tern_net_wait(s->rig.networks[to], device(s, s->words[to], 8), 4, TERN_COMPARE_EQ, 7, 1));
        in_image(s, s->words[to], 0, 1ull << 40, 8);
        in_image(s, s->words[to], 8, 7, 4);
        in_image(s, s->words[to], 16, 9, 8);
    }
    for (int r = 0; r < RANKS; r++) {
        OK(tern_net_get(s->rig.networks[r], r, 0, device(s, s->local[r], 2500), device(s, s->box[r], 3),
                        2001));
        memcpy(image(s, s->local[r], 2500), image(s, s->box[r], 3), 2001);
    }
    return world_verify(&s->rig.world, "calls that block");
}

static int blocking(struct test *t)
{
    (void)t;
    return in_scene(NULL, blocking_body);
}

/* One turn of rank r: gives to the next, waits for the one before, takes what came. */
static int issue_turn(struct host_scene *s, int r)
{
    struct tern_network *n = s->rig.networks[r];
    struct tern_stream *stream = lane_of(s, r);
    int to = (r + 1) % RANKS, from = (r + RANKS - 1) % RANKS;
    OK(tern_net_put_on_stream(n, to, 0, device(s, s->box[r], 0), device(s, s->local[r], 0), 1000, stream));
    OK(tern_net_signal_on_stream(n, to, 0, device(s, s->words[r], 0), TERN_SIGNAL_ADD, 8, 1, stream));
    OK(tern_net_wait_on_stream(n, device(s, s->words[r], 0), 8, TERN_COMPARE_GE, 1, 0, stream));
    OK(tern_net_get_on_stream(n, r, 0, device(s, s->local[r], 1000), device(s, s->box[r], 0), 1000, stream));
    OK(tern_net_signal_on_stream(n, r, 0, device(s, s->words[r], 0), TERN_SIGNAL_SET, 8, 0, stream));
    OK(tern_net_atomic_on_stream(n, from, 0, device(s, s->words[r], 12), TERN_AMO_ADD, 4, 3, 0,
                                 device(s, s->local[r], 4096), stream));
    OK(tern_net_quiet_on_stream(n, -1, -1, stream));
    return 0;
}

/* Other rows than in the turn before. */
static int refill(struct host_scene *s, uint32_t turn)
{
    for (int r = 0; r < RANKS; r++) {
        struct rng rng = {turn * 100 + (uint64_t)r};
        rng_bytes(&rng, image(s, s->local[r], 0), 1000);
    }
    return world_upload(&s->rig.world);
}

static void expect_turn(struct host_scene *s, uint32_t turn)
{
    for (int r = 0; r < RANKS; r++) {
        int from = (r + RANKS - 1) % RANKS;
        uint32_t before = 3 * (turn - 1);
        memcpy(image(s, s->box[r], 0), image(s, s->local[from], 0), 1000);
        memcpy(image(s, s->local[r], 1000), image(s, s->local[from], 0), 1000);
        memcpy(image(s, s->local[r], 4096), &before, 4);
        in_image(s, s->words[r], 12, (uint64_t)3 * turn, 4);
    }
}

static int stream_body(struct host_scene *s)
{
    struct tern_graph *graphs[RANKS];
    for (int r = 0; r < RANKS; r++) {
        PASS(issue_turn(s, r));
    }
    for (int r = 0; r < RANKS; r++) {
        OK(tern_net_synchronize(s->rig.networks[r], lane_of(s, r)));
    }
    expect_turn(s, 1);
    PASS(world_verify(&s->rig.world, "on streams"));
    for (int r = 0; r < RANKS; r++) {
        struct tern_comm *comm = s->rig.world.members[r].comm;
        OK(tern_graph_begin(comm, lane_of(s, r)));
        PASS(issue_turn(s, r));
        OK(tern_graph_end(comm, lane_of(s, r), &graphs[r]));
    }
    for (uint32_t turn = 2; turn < 5; turn++) {
        PASS(refill(s, turn));
        for (int r = 0; r < RANKS; r++) {
            OK(tern_graph_launch(s->rig.world.members[r].comm, graphs[r], lane_of(s, r)));
        }
        for (int r = 0; r < RANKS; r++) {
            OK(tern_net_synchronize(s->rig.networks[r], lane_of(s, r)));
        }
        expect_turn(s, turn);
        PASS(world_verify(&s->rig.world, "in a graph"));
    }
    for (int r = 0; r < RANKS; r++) {
        tern_graph_close(s->rig.world.members[r].comm, graphs[r]);
    }
    return 0;
}

static int on_streams(struct test *t)
{
    (void)t;
    return in_scene(NULL, stream_body);
}

/* Every comparison, of words below, at and above the number, with the highest bit set or not. */
static int compare_body(struct host_scene *s)
{
    static const uint64_t numbers[] = {0, 1, 0x7fffffff, 0x80000000u, 0xffffffffu, 1ull << 63};
    struct tern_network *n = s->rig.networks[0];
    for (int i = 0; i < 36; i++) {
        for (uint32_t width = 4; width <= 8; width += 4) {
            uint64_t a = numbers[i / 6], b = numbers[i % 6];
            OK(tern_net_signal(n, 0, 0, device(s, s->words[0], 24), TERN_SIGNAL_SET, width, a));
            a = width == 4 ? (uint32_t)a : a;
            b = width == 4 ? (uint32_t)b : b;
            int holds[] = {a == b, a != b, a >= b, a > b, a <= b, a < b};
            for (int k = TERN_COMPARE_EQ; k <= TERN_COMPARE_LT; k++) {
                EXPECT(tern_net_wait(n, device(s, s->words[0], 24), width, k, b, 1),
                       holds[k] ? TERN_OK : TERN_TIMEOUT);
            }
        }
    }
    return 0;
}

static int comparisons(struct test *t)
{
    (void)t;
    return in_scene(NULL, compare_body);
}

/* ---- Deadlines ---- */

static int late_body(struct host_scene *s)
{
    struct tern_network *n = s->rig.networks[2];
    char where[64];
    int offset = (int)((char *)device(s, s->words[2], 32) - (char *)s->rig.views[2].heap.own);
    snprintf(where, sizeof where, "offset %d of its window is 0, not >= 3", offset);
    REFUSES(tern_net_wait(n, device(s, s->words[2], 32), 8, TERN_COMPARE_GE, 3, 20), TERN_TIMEOUT, where);
    CHECK(strstr(tern_last_error(), "rank 2: the word of 8 bytes") != NULL, "\"%s\"", tern_last_error());
    /* The same by a kernel: the stream goes on, and who synchronises is told, once. */
    OK(tern_net_wait_on_stream(n, device(s, s->words[2], 32), 8, TERN_COMPARE_GE, 3, 20, lane_of(s, 2)));
    OK(tern_net_signal_on_stream(n, 1, 0, device(s, s->words[2], 40), TERN_SIGNAL_SET, 4, 1, lane_of(s, 2)));
    REFUSES(tern_net_synchronize(n, lane_of(s, 2)), TERN_TIMEOUT, where);
    OK(tern_net_synchronize(n, lane_of(s, 2)));
    OK(tern_net_wait(s->rig.networks[1], device(s, s->words[1], 40), 4, TERN_COMPARE_EQ, 1, 0));
    /* Nothing is broken by it: the next failure is told, and a word that comes late has come. */
    OK(tern_net_wait_on_stream(n, device(s, s->words[2], 36), 4, TERN_COMPARE_NE, 0, 20, lane_of(s, 2)));
    REFUSES(tern_net_synchronize(n, lane_of(s, 2)), TERN_TIMEOUT, "is 0, not != 0");
    OK(tern_net_signal(s->rig.networks[0], 2, 0, device(s, s->words[0], 32), TERN_SIGNAL_SET, 8, 3));
    OK(tern_net_wait(n, device(s, s->words[2], 32), 8, TERN_COMPARE_GE, 3, 0));
    return 0;
}

static int deadlines(struct test *t)
{
    (void)t;
    return in_scene(NULL, late_body);
}

static int open_teams(struct host_scene *s, int kind, struct tern_team **teams, struct tern_net_team *views)
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

/* Ranks 1 and 3 come late to round 3; those who waited come again, and all pass. */
static int late_to_barrier(struct host_scene *s, struct tern_net_team *views)
{
    for (int round = 1; round <= 2; round++) {
        for (int r = 0; r < RANKS; r++) {
            OK(tern_net_barrier_on_stream(s->rig.networks[r], &views[r], lane_of(s, r)));
        }
    }
    for (int r = 0; r < RANKS; r++) {
        OK(tern_net_synchronize(s->rig.networks[r], lane_of(s, r)));
    }
    for (int r = 0; r < RANKS; r += 2) {
        OK(tern_net_barrier_on_stream(s->rig.networks[r], &views[r], lane_of(s, r)));
    }
    for (int r = 0; r < RANKS; r += 2) {
        REFUSES(tern_net_synchronize(s->rig.networks[r], lane_of(s, r)), TERN_TIMEOUT,
                "no signal of round 3 of the barrier of a team of 4 ranks from rank 1, 3 within");
        CHECK(strstr(tern_last_error(), "has come to 2)") != NULL, "\"%s\"", tern_last_error());
    }
    for (int r = 0; r < RANKS; r++) {
        OK(tern_net_barrier_on_stream(s->rig.networks[r], &views[r], lane_of(s, r)));
    }
    for (int r = 0; r < RANKS; r++) {
        OK(tern_net_synchronize(s->rig.networks[r], lane_of(s, r)));
    }
    return 0;
}

static int late_barrier_body(struct host_scene *s)
{
    struct tern_team *teams[RANKS];
    struct tern_net_team views[RANKS];
    PASS(open_teams(s, TERN_TEAM_WORLD, teams, views));
    int result = late_to_barrier(s, views);
    for (int r = 0; r < RANKS; r++) {
        tern_net_team_close(s->rig.networks[r], &views[r]);
        tern_team_close(teams[r]);
    }
    return result;
}

static int late_barrier(struct test *t)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    (void)t;
    config.timeout_ms = 300;
    return in_scene(&config, late_barrier_body);
}

static int abort_body(struct host_scene *s)
{
    for (int r = 0; r < RANKS; r++) { /* these wait for what never comes */
        OK(tern_net_wait_on_stream(s->rig.networks[r], device(s, s->words[r], 48), 8, TERN_COMPARE_EQ, 1, 0,
                                   lane_of(s, r)));
    }
    OK(tern_net_abort(s->rig.networks[3]));
    for (int r = 0; r < RANKS; r++) {
        REFUSES(tern_net_synchronize(s->rig.networks[r], lane_of(s, r)), TERN_DISCONNECTED,
                "rank 3 called tern_net_abort");
        REFUSES(tern_net_wait(s->rig.networks[r], device(s, s->words[r], 48), 8, TERN_COMPARE_EQ, 1, 0),
                TERN_DISCONNECTED, "rank 3 called tern_net_abort");
        OK(tern_net_wait(s->rig.networks[r], device(s, s->words[r], 48), 8, TERN_COMPARE_EQ, 0, 0));
    }
    return 0;
}

static int aborts(struct test *t)
{
    (void)t;
    return in_scene(NULL, abort_body);
}

/* ---- Refusals ---- */

static int host_refusals(struct host_scene *s)
{
    struct tern_network *n = s->rig.networks[0];
    void *box = device(s, s->box[0], 0), *word = device(s, s->words[0], 0),
         *local = device(s, s->local[0], 0);
    REFUSES(tern_net_put(n, RANKS, 0, box, local, 8), TERN_INVALID_ARGUMENT, "peer 4");
    REFUSES(tern_net_put(n, 0, 2, box, local, 8), TERN_INVALID_ARGUMENT, "queue 2, where the network has 2");
    REFUSES(tern_net_put(n, 0, 0, local, box, 8), TERN_INVALID_ARGUMENT, "is in no window");
    REFUSES(tern_net_get(n, 0, 0, box, local, 8), TERN_INVALID_ARGUMENT, "is in no window");
    REFUSES(tern_net_put(n, 0, 0, box, local, 1ull << 40), TERN_INVALID_ARGUMENT, "is in no window");
    REFUSES(tern_net_put(NULL, 0, 0, box, local, 8), TERN_INVALID_ARGUMENT, "network");
    REFUSES(tern_net_put(n, 0, 0, NULL, local, 8), TERN_INVALID_ARGUMENT, "remote");
    REFUSES(tern_net_signal(n, 0, 0, word, 2, 8, 1), TERN_INVALID_ARGUMENT, "signal 2");
    REFUSES(tern_net_signal(n, 0, 0, word, TERN_SIGNAL_ADD, 2, 1), TERN_INVALID_ARGUMENT, "width is 2");
    REFUSES(tern_net_signal(n, 0, 0, (char *)word + 4, TERN_SIGNAL_ADD, 8, 1), TERN_INVALID_ARGUMENT,
            "8-byte aligned");
    REFUSES(tern_net_atomic(n, 0, 0, word, 8, 8, 1, 0, NULL), TERN_INVALID_ARGUMENT, "amo 8");
    REFUSES(tern_net_wait(n, word, 8, 6, 1, 0), TERN_INVALID_ARGUMENT, "compare 6");
    REFUSES(tern_net_quiet(n, -2, -1), TERN_INVALID_ARGUMENT, "peer -2");
    REFUSES(tern_net_quiet(n, 0, 2), TERN_INVALID_ARGUMENT, "queue 2");
    return world_verify(&s->rig.world, "refusals move nothing");
}

/* One request by rank 0's kernel, refused there; its record is told. */
static int kernel_refuses(struct host_scene *s, const struct net_request *q, int status, const char *text)
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

static int device_refusals(struct host_scene *s)
{
    static const uint32_t all[] = {NET_REQUEST_PUT,    NET_REQUEST_GET,    NET_REQUEST_PUT_SIGNAL,
                                   NET_REQUEST_SIGNAL, NET_REQUEST_ATOMIC, NET_REQUEST_PUT_INLINE};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct net_request good = {all[i], 8, TERN_SIGNAL_ADD, 1, 1, 0, NULL, NULL, 8, NULL, 1, 0, 0, NULL},
                           q;
        good.remote = device(s, s->words[0], 0);
        good.word = device(s, s->words[0], 8);
        good.local = device(s, s->local[0], 0);
        q = good;
        q.peer = RANKS;
        PASS(kernel_refuses(s, &q, TERN_INVALID_ARGUMENT, "operated on rank 4 by a queue, one of which"));
        q.peer = -1;
        PASS(kernel_refuses(s, &q, TERN_INVALID_ARGUMENT, "does not exist"));
        q = good;
        q.queue = 2;
        PASS(kernel_refuses(s, &q, TERN_INVALID_ARGUMENT, "does not exist"));
        q = good;
        q.remote = device(s, s->local[0], 0);
        PASS(kernel_refuses(s, &q, TERN_INVALID_ARGUMENT, "in no window"));
        q = good;
        if (all[i] == NET_REQUEST_PUT_SIGNAL) {
            q.word = (char *)q.word + 4;
            PASS(kernel_refuses(s, &q, TERN_INVALID_ARGUMENT, "misaligned"));
        } else if (all[i] != NET_REQUEST_PUT && all[i] != NET_REQUEST_GET) {
            q.remote = (char *)q.remote + 4;
            PASS(kernel_refuses(s, &q, TERN_INVALID_ARGUMENT, "misaligned"));
        }
    }
    return world_verify(&s->rig.world, "refusals in kernels move nothing");
}

static int refusal_body(struct host_scene *s)
{
    PASS(host_refusals(s));
    return device_refusals(s);
}

static void nothing(const void *args) { (void)args; }

static int launch_refusals(struct tern_comm *comm)
{
    struct tern_kernel kernel = {"absent", NULL, NULL};
    struct tern_launch_args args = TERN_LAUNCH_ARGS_INIT;
    args.args = &kernel;
    args.args_bytes = sizeof kernel;
    args.num_blocks = 1;
    args.num_threads = 32;
    REFUSES(tern_launch(comm, &kernel, &args, NULL), TERN_UNSUPPORTED,
            "kernel absent was not compiled for the");
    kernel.cpu = nothing;
    kernel.cuda = (void (*)(void))nothing; /* refused before it is looked at */
    args.num_threads = 33;
    REFUSES(tern_launch(comm, &kernel, &args, NULL), TERN_INVALID_ARGUMENT, "1 blocks of 33 threads");
    args.num_threads = 32;
    args.num_blocks = 0;
    REFUSES(tern_launch(comm, &kernel, &args, NULL), TERN_INVALID_ARGUMENT, "0 blocks of 32 threads");
    args.num_blocks = 1;
    args.args_bytes = 4001;
    REFUSES(tern_launch(comm, &kernel, &args, NULL), TERN_INVALID_ARGUMENT, "4001");
    args.args = NULL;
    REFUSES(tern_launch(comm, &kernel, &args, NULL), TERN_INVALID_ARGUMENT, "arguments");
    return 0;
}

static int refusals(struct test *t)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_comm *comms[2];
    struct tern_network *networks[2];
    (void)t;
    config.num_queues = 2;
    PASS(in_scene(&config, refusal_body));
    OK(tern_comm_open_all(2, NULL, comms));
    config.num_queues = TERN_NET_MAX_QUEUES + 1;
    REFUSES(tern_net_open_all(2, comms, &config, networks), TERN_INVALID_ARGUMENT, "num_queues");
    config.num_queues = 0;
    config.transport = 2;
    REFUSES(tern_net_open_all(2, comms, &config, networks), TERN_INVALID_ARGUMENT, "transport");
    PASS(launch_refusals(comms[0]));
    tern_comm_close(comms[0]);
    tern_comm_close(comms[1]);
    return 0;
}

/* ---- Windows that come later ---- */

/* Through a kernel of rank 0: 8 bytes to the same place of rank 1. */
static int kernel_puts(struct host_scene *s, void *remote, int status)
{
    struct net_shape shape = {GROUP_THREAD, 1, 32, 1};
    struct net_request *q;
    net_rig_clear(&s->rig);
    q = net_rig_add(&s->rig, 0);
    q->kind = NET_REQUEST_PUT;
    q->peer = 1;
    q->remote = remote;
    q->local = device(s, s->local[0], 0);
    q->bytes = 8;
    PASS(net_rig_launch(&s->rig, 0, &shape, NULL));
    PASS(net_rig_collect(&s->rig));
    PASS(net_rig_all(&s->rig, status));
    return 0;
}

static int has_come(struct host_scene *s, const void *at)
{
    const void *seen = world_peek(&s->rig.world, 1, at, 8);
    CHECK(seen != NULL && memcmp(seen, image(s, s->local[0], 0), 8) == 0, "nothing has come");
    return 0;
}

static int adopt_later(struct host_scene *s, struct tern_comm **comms, void **mine)
{
    for (int r = 0; r < RANKS; r++) {
        OK(tern_alloc(comms[r], TERN_MEMORY_DEVICE, 4096, &mine[r]));
    }
    OK(tern_window_adopt_all(RANKS, comms, mine, 4096));
    PASS(kernel_puts(s, (char *)mine[0] + 8, TERN_INVALID_ARGUMENT)); /* the view is older */
    REFUSES(tern_net_synchronize(s->rig.networks[0], lane_of(s, 0)), TERN_INVALID_ARGUMENT, "in no window");
    OK(tern_net_view(s->rig.networks[0], &s->rig.views[0]));
    PASS(kernel_puts(s, (char *)mine[0] + 8, TERN_OK));
    PASS(has_come(s, (char *)mine[1] + 8));
    OK(tern_net_put(s->rig.networks[0], 1, 0, (char *)mine[0] + 4088, device(s, s->local[0], 0), 8));
    PASS(has_come(s, (char *)mine[1] + 4088));
    REFUSES(tern_net_wait(s->rig.networks[1], (char *)mine[1] + 16, 8, TERN_COMPARE_EQ, 1, 1), TERN_TIMEOUT,
            "offset 16 of its adopted window");
    for (int r = 0; r < RANKS; r++) {
        tern_window_release(comms[r], mine[r]);
    }
    OK(tern_net_view(s->rig.networks[0], &s->rig.views[0]));
    PASS(kernel_puts(s, mine[0], TERN_INVALID_ARGUMENT));
    REFUSES(tern_net_synchronize(s->rig.networks[0], lane_of(s, 0)), TERN_INVALID_ARGUMENT, "in no window");
    return 0;
}

static int windows_body(struct host_scene *s)
{
    struct tern_comm *comms[RANKS];
    void *later[RANKS], *mine[RANKS] = {NULL};
    int result;
    for (int r = 0; r < RANKS; r++) {
        comms[r] = s->rig.world.members[r].comm;
    }
    OK(tern_heap_grow_all(RANKS, comms, 1 << 20));
    for (int r = 0; r < RANKS; r++) {
        OK(tern_alloc(comms[r], TERN_MEMORY_WINDOW, 900000, &later[r]));
    }
    PASS(kernel_puts(s, (char *)later[0] + 800000, TERN_OK)); /* by a view that is older */
    PASS(has_come(s, (char *)later[1] + 800000));
    result = adopt_later(s, comms, mine);
    for (int r = 0; r < RANKS; r++) {
        if (mine[r] != NULL) {
            tern_free(comms[r], mine[r]);
        }
        tern_free(comms[r], later[r]);
    }
    return result;
}

static int windows(struct test *t)
{
    static struct host_scene s;
    int result;
    (void)t;
    memset(&s, 0, sizeof s);
    net_rig_init(&s.rig, RANKS);
    s.rig.world.grows = 1;
    for (int r = 0; r < RANKS; r++) {
        s.local[r] = world_take(&s.rig.world, r, ARENA_DEVICE, 64, "local memory");
        memset(world_image(&s.rig.world, s.local[r]), 0x3c + r, 64);
    }
    result = net_rig_open(&s.rig, NULL, 3);
    result = result ? result : world_upload(&s.rig.world);
    result = result ? result : windows_body(&s);
    net_rig_close(&s.rig);
    return result;
}

/* ---- Domains and teams ---- */

static int domain_body(struct host_scene *s)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_comm *comms[RANKS];
    struct tern_network *more[RANKS];
    struct tern_team *teams[RANKS];
    struct tern_net_team views[RANKS];
    struct net_request q = {NET_REQUEST_SIGNAL, 8, 0, 0, 2, 0, NULL, NULL, 8, NULL, 1, 0, 0, NULL};
    for (int r = 0; r < RANKS; r++) {
        comms[r] = s->rig.world.members[r].comm;
    }
    REFUSES(tern_net_put(s->rig.networks[1], 2, 0, device(s, s->box[1], 0), device(s, s->local[1], 0), 8),
            TERN_UNSUPPORTED, "nothing leads from rank 1 to rank 2");
    q.remote = device(s, s->words[0], 0);
    PASS(kernel_refuses(s, &q, TERN_UNSUPPORTED, "operated on rank 2, to which nothing leads"));
    OK(tern_net_put(s->rig.networks[0], 1, 0, device(s, s->box[0], 0), device(s, s->local[0], 0), 8));
    config.transport = TERN_TRANSPORT_P2P;
    REFUSES(tern_net_open_all(RANKS, comms, &config, more), TERN_UNSUPPORTED, "TERN_TRANSPORT_P2P");
    PASS(open_teams(s, TERN_TEAM_DOMAIN, teams, views));
    for (int r = 0; r < RANKS; r++) {
        CHECK(views[r].num_ranks == 2 && views[r].rank == r % 2, "rank %d is %d of %d", r, views[r].rank,
              views[r].num_ranks);
        OK(tern_net_barrier_on_stream(s->rig.networks[r], &views[r], lane_of(s, r)));
    }
    for (int r = 0; r < RANKS; r++) {
        OK(tern_net_synchronize(s->rig.networks[r], lane_of(s, r)));
        tern_net_team_close(s->rig.networks[r], &views[r]);
        tern_team_close(teams[r]);
    }
    return 0;
}

static int domains(struct test *t)
{
    int result;
    (void)t;
    setenv("TERN_DOMAIN_SIZE", "2", 1);
    result = in_scene(NULL, domain_body);
    unsetenv("TERN_DOMAIN_SIZE");
    return result;
}

/* Two places: a third team finds none, and takes the one that a closed team leaves, with rounds from 1. */
static int places_body(struct host_scene *s)
{
    struct tern_team *teams[3][RANKS];
    struct tern_net_team views[3][RANKS], extra[RANKS];
    for (int i = 0; i < 2; i++) {
        PASS(open_teams(s, TERN_TEAM_WORLD, teams[i], views[i]));
    }
    memset(extra, 0, sizeof extra);
    for (int r = 0; r < RANKS; r++) {
        extra[r].size = sizeof extra[r];
    }
    REFUSES(tern_net_team_open_all(RANKS, s->rig.networks, teams[0], extra), TERN_NO_SPACE,
            "none of the 2 places");
    for (int round = 0; round < 6; round++) { /* side by side: on one stream in turn, but not all alike */
        for (int r = 0; r < RANKS; r++) {
            for (int i = 0; i < 2; i++) {
                OK(tern_net_barrier_on_stream(s->rig.networks[r], &views[i][r],
                                              s->rig.world.members[r].lanes[i]));
            }
        }
    }
    for (int r = 0; r < RANKS; r++) {
        OK(tern_net_synchronize(s->rig.networks[r], s->rig.world.members[r].lanes[0]));
        OK(tern_net_synchronize(s->rig.networks[r], s->rig.world.members[r].lanes[1]));
        tern_net_team_close(s->rig.networks[r], &views[0][r]);
    }
    PASS(open_teams(s, TERN_TEAM_RAIL, teams[2], views[2]));
    PASS(world_synchronize(&s->rig.world));
    for (int r = 0; r < RANKS; r++) {
        const uint64_t *word = (const uint64_t *)world_peek(&s->rig.world, r, views[2][r].words, 8);
        CHECK(word != NULL && *word == 0, "a word of a new team begins with a round");
        tern_net_team_close(s->rig.networks[r], &views[1][r]);
        tern_net_team_close(s->rig.networks[r], &views[2][r]);
        for (int i = 0; i < 3; i++) {
            tern_team_close(teams[i][r]);
        }
    }
    return 0;
}

static int places(struct test *t)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    (void)t;
    config.num_teams = 2;
    return in_scene(&config, places_body);
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "operations that block", blocking);
    test_run(&t, "operations on streams and in graphs", on_streams);
    test_run(&t, "comparisons", comparisons);
    test_run(&t, "waits that miss their deadline", deadlines);
    test_run(&t, "a barrier that misses its deadline", late_barrier);
    test_run(&t, "giving up", aborts);
    test_run(&t, "refusals", refusals);
    test_run(&t, "windows that come later", windows);
    test_run(&t, "domains", domains);
    test_run(&t, "places for teams", places);
    return test_end(&t);
}
