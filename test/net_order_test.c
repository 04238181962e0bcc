/* SPDX-License-Identifier: Apache-2.0
 *
 * Order: who has seen a signal has the puts before it, by whatever group they were made; who has left a
 * barrier has what all members put before they came. Messages travel round a ring and through teams of all
 * kinds while schedules vary; ThreadSanitizer sees the same edges (test/tsan_awake.sh weakens one of them).
 * */
#include "net_rig.h"

#include <string.h>

enum { MAX_BYTES = 3000, MAX_ROUNDS = 12, NUM_QUEUES = 3 };

static const int kinds[] = {GROUP_THREAD, GROUP_WARP, GROUP_BLOCK};

static void *device_at(const struct net_rig *rig, struct place p, size_t offset)
{
    return (char *)world_device(&rig->world, p) + offset;
}

static void *image_at(const struct net_rig *rig, struct place p, size_t offset)
{
    return (char *)world_image(&rig->world, p) + offset;
}

/* ---- Messages round a ring ---- */

struct ring {
    struct net_rig rig;
    struct rng rng;
    int num_ranks, num_rounds;
    size_t bytes, skew; /* of a message; of its place, so that alignment varies */
    uint32_t width;
    struct place from[RIG_RANKS], box[RIG_RANKS], arrived[RIG_RANKS], taken[RIG_RANKS], log[RIG_RANKS];
};

static void draw_ring(struct ring *g, uint64_t seed)
{
    g->rng.state = seed;
    g->num_ranks = (int)rng_between(&g->rng, 2, 5);
    g->num_rounds = (int)rng_between(&g->rng, 2, MAX_ROUNDS);
    g->bytes = rng_between(&g->rng, 1, MAX_BYTES);
    g->skew = rng_below(&g->rng, 16);
    g->width = rng_below(&g->rng, 2) ? 4 : 8;
    net_rig_init(&g->rig, g->num_ranks);
    for (int r = 0; r < g->num_ranks; r++) {
        struct world *w = &g->rig.world;
        size_t all = g->bytes * (size_t)g->num_rounds;
        g->box[r] = world_take(w, r, ARENA_WINDOW, g->bytes + g->skew, "the box");
        g->arrived[r] = world_take(w, r, ARENA_WINDOW, 8, "arrived");
        g->taken[r] = world_take(w, r, ARENA_WINDOW, 8, "taken");
        g->from[r] = world_take(w, r, net_rig_local_arena(), all, "what is sent");
        g->log[r] = world_take(w, r, net_rig_local_arena(), all, "what has come");
    }
    for (int r = 0; r < g->num_ranks; r++) {
        rng_bytes(&g->rng, world_image(&g->rig.world, g->from[r]), g->from[r].bytes);
        memset(image_at(&g->rig, g->arrived[r], 0), 0, 8);
        memset(image_at(&g->rig, g->taken[r], 0), 0, 8);
    }
}

static struct net_request *add(struct ring *g, int rank, uint32_t kind, int peer)
{
    struct net_request *q = net_rig_add(&g->rig, rank);
    q->kind = kind;
    q->peer = peer;
    q->width = g->width;
    return q;
}

static void add_wait(struct ring *g, int rank, struct place word, int round)
{
    struct net_request *q = add(g, rank, NET_REQUEST_WAIT, rank);
    q->remote = device_at(&g->rig, word, 0);
    q->op = TERN_COMPARE_GE;
    q->value = (uint64_t)round;
}

/* By a signal with the put, or after it. */
static void add_send(struct ring *g, int rank, int round)
{
    int next = (rank + 1) % g->num_ranks, is_joint = (int)rng_below(&g->rng, 2);
    struct net_request *q = add(g, rank, is_joint ? NET_REQUEST_PUT_SIGNAL : NET_REQUEST_PUT, next);
    q->remote = device_at(&g->rig, g->box[rank], g->skew);
    q->local = device_at(&g->rig, g->from[rank], (size_t)(round - 1) * g->bytes);
    q->bytes = g->bytes;
    q->word = device_at(&g->rig, g->arrived[rank], 0);
    if (!is_joint) {
        q = add(g, rank, NET_REQUEST_SIGNAL, next);
        q->remote = device_at(&g->rig, g->arrived[rank], 0);
    }
    q->op = rng_below(&g->rng, 2) ? TERN_SIGNAL_SET : TERN_SIGNAL_ADD;
    q->value = q->op == TERN_SIGNAL_SET ? (uint64_t)round : 1;
}

/* A rank sends once the next one has taken what came before, and says so to the one before itself. */
static void add_round(struct ring *g, int rank, int round)
{
    int before = (rank + g->num_ranks - 1) % g->num_ranks;
    struct net_request *q;
    add_wait(g, rank, g->taken[rank], round - 1);
    add_send(g, rank, round);
    add_wait(g, rank, g->arrived[rank], round);
    q = add(g, rank, NET_REQUEST_GET, rank);
    q->remote = device_at(&g->rig, g->box[rank], g->skew);
    q->local = device_at(&g->rig, g->log[rank], (size_t)(round - 1) * g->bytes);
    q->bytes = g->bytes;
    q = add(g, rank, NET_REQUEST_SIGNAL, before);
    q->remote = device_at(&g->rig, g->taken[rank], 0);
    q->op = TERN_SIGNAL_ADD;
    q->value = 1;
}

static void expect_ring(struct ring *g)
{
    for (int r = 0; r < g->num_ranks; r++) {
        int before = (r + g->num_ranks - 1) % g->num_ranks;
        uint64_t rounds = (uint64_t)g->num_rounds;
        memcpy(image_at(&g->rig, g->log[r], 0), image_at(&g->rig, g->from[before], 0), g->log[r].bytes);
        memcpy(image_at(&g->rig, g->box[r], g->skew),
               image_at(&g->rig, g->from[before], g->log[r].bytes - g->bytes), g->bytes);
        memcpy(image_at(&g->rig, g->arrived[r], 0), &rounds, 8);
        memcpy(image_at(&g->rig, g->taken[r], 0), &rounds, 8);
    }
}

static int run_ring(struct ring *g, uint64_t seed)
{
    PASS(net_rig_open(&g->rig, NULL, seed));
    PASS(world_upload(&g->rig.world));
    for (int r = 0; r < g->num_ranks; r++) {
        struct net_shape shape = {kinds[rng_below(&g->rng, 3)], 1, 32 * (int)rng_between(&g->rng, 1, 4), 0};
        for (int round = 1; round <= g->num_rounds; round++) {
            add_round(g, r, round);
        }
        shape.each = g->rig.ranks[r].num; /* all by one group */
        PASS(net_rig_launch(&g->rig, r, &shape, NULL));
    }
    PASS(net_rig_collect(&g->rig));
    PASS(net_rig_all(&g->rig, TERN_OK));
    expect_ring(g);
    return world_verify(&g->rig.world, "messages round a ring");
}

static int messages(struct test *t)
{
    uint64_t first = t->has_seeds ? t->seeds[0] : 1;
    uint64_t last = t->has_seeds ? t->seeds[1] : (uint64_t)net_rig_scaled(t, 300);
    static struct ring g;
    for (uint64_t seed = first; seed <= last; seed++) {
        int result;
        memset(&g, 0, sizeof g);
        draw_ring(&g, seed);
        result = run_ring(&g, seed);
        net_rig_close(&g.rig);
        CHECK(result == 0, "seed %llu", (unsigned long long)seed);
    }
    return 0;
}

/* ---- Barriers ---- */

struct crowd {
    struct net_rig rig;
    struct rng rng;
    int num_ranks, num_rounds;
    struct tern_team *parents[RIG_RANKS], *teams[RIG_RANKS];
    struct tern_net_team views[RIG_RANKS];
    struct place from[RIG_RANKS], box[RIG_RANKS], log[RIG_RANKS]; /* of CELL bytes a rank, and a round */
};

enum { CELL = 1000, TEAM_SPLIT = 4, TEAM_KINDS };

/* World, domain, node, rail, or a strided split of the world. */
static int open_teams(struct crowd *w, int kind)
{
    struct tern_comm *comms[RIG_RANKS];
    for (int r = 0; r < w->num_ranks; r++) {
        comms[r] = w->rig.world.members[r].comm;
        w->views[r].size = sizeof w->views[r];
    }
    if (kind < TEAM_SPLIT) {
        OK(tern_team_open_all(w->num_ranks, comms, kind, w->teams));
    } else {
        int start = w->num_ranks > 1 ? (int)rng_below(&w->rng, 2) : 0,
            stride = (int)rng_between(&w->rng, 1, 3);
        int most = (w->num_ranks - 1 - start) / stride + 1;
        OK(tern_team_open_all(w->num_ranks, comms, TERN_TEAM_WORLD, w->parents));
        OK(tern_team_split_all(w->num_ranks, w->parents, start, stride,
                               (int)rng_between(&w->rng, 1, (uint32_t)most), w->teams));
    }
    OK(tern_net_team_open_all(w->num_ranks, w->rig.networks, w->teams, w->views));
    return 0;
}

static void close_teams(struct crowd *w)
{
    for (int r = 0; r < w->num_ranks; r++) {
        if (w->views[r].words != NULL) {
            tern_net_team_close(w->rig.networks[r], &w->views[r]);
        }
        tern_team_close(w->teams[r]);
        tern_team_close(w->parents[r]);
        w->teams[r] = w->parents[r] = NULL;
    }
}

static void add_barrier(struct crowd *w, int r) { net_rig_add(&w->rig, r)->kind = NET_REQUEST_BARRIER; }

/* Every member puts its cell of the round to every other's box, all meet, each keeps one of the boxes, which
 * are alike then, all meet. */
static void add_lap(struct crowd *w, int r, int round)
{
    size_t row = (size_t)w->num_ranks * CELL;
    struct net_request *q;
    for (int i = 0; i < w->views[r].num_ranks; i++) {
        int peer = tern_team_translate(w->teams[r], i, NULL);
        q = net_rig_add(&w->rig, r);
        q->kind = NET_REQUEST_PUT;
        q->peer = peer;
        q->queue = rng_below(&w->rng, NUM_QUEUES); /* a barrier completes what all of them carry */
        q->remote = device_at(&w->rig, w->box[r], (size_t)r * CELL);
        q->local = device_at(&w->rig, w->from[r], (size_t)round * CELL);
        q->bytes = CELL;
        memcpy(image_at(&w->rig, w->log[peer], (size_t)round * row + (size_t)r * CELL),
               image_at(&w->rig, w->from[r], (size_t)round * CELL), CELL);
        memcpy(image_at(&w->rig, w->box[peer], (size_t)r * CELL),
               image_at(&w->rig, w->from[r], (size_t)round * CELL), CELL);
    }
    add_barrier(w, r);
    q = net_rig_add(&w->rig, r);
    q->kind = NET_REQUEST_GET;
    q->peer =
        tern_team_translate(w->teams[r], (int)rng_below(&w->rng, (uint32_t)w->views[r].num_ranks), NULL);
    q->flags = NET_REQUEST_PLAIN;
    q->remote = device_at(&w->rig, w->box[r], 0);
    q->local = device_at(&w->rig, w->log[r], (size_t)round * row);
    q->bytes = row;
    for (int i = 0; i <= round % 3; i++) { /* also one behind the other */
        add_barrier(w, r);
    }
}

static int run_laps(struct crowd *w)
{
    net_rig_clear(&w->rig);
    for (int r = 0; r < w->num_ranks; r++) {
        world_poison(&w->rig.world, w->box[r]);
        world_poison(&w->rig.world, w->log[r]);
    }
    PASS(world_upload(&w->rig.world));
    for (int r = 0; r < w->num_ranks; r++) {
        for (int round = 0; round < w->num_rounds && w->teams[r] != NULL; round++) {
            add_lap(w, r, round);
        }
    }
    for (int r = 0; r < w->num_ranks; r++) {
        struct net_shape shape = {kinds[rng_below(&w->rng, 3)], 1, 32 * (int)rng_between(&w->rng, 1, 3),
                                  w->rig.ranks[r].num};
        if (w->teams[r] != NULL) {
            PASS(net_rig_launch(&w->rig, r, &shape, &w->views[r]));
        }
    }
    PASS(net_rig_collect(&w->rig));
    PASS(net_rig_all(&w->rig, TERN_OK));
    return world_verify(&w->rig.world, "laps between barriers");
}

static int run_crowd(struct crowd *w, uint64_t seed)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    config.num_teams = 2;
    config.num_queues = NUM_QUEUES;
    PASS(net_rig_open(&w->rig, &config, seed));
    for (int kind = 0; kind < TEAM_KINDS; kind++) {
        int result = open_teams(w, kind);
        result = result ? result : run_laps(w);
        result = result ? result : run_laps(w); /* rounds go on where they were */
        for (int i = 0; result == 0 && i < 5; i++) {
            for (int r = 0; r < w->num_ranks; r++) {
                if (w->teams[r] != NULL) {
                    OK(tern_net_barrier_on_stream(w->rig.networks[r], &w->views[r],
                                                  w->rig.world.members[r].lanes[0]));
                }
            }
        }
        for (int r = 0; result == 0 && r < w->num_ranks; r++) {
            OK(tern_net_synchronize(w->rig.networks[r], w->rig.world.members[r].lanes[0]));
        }
        close_teams(w);
        CHECK(result == 0, "teams of kind %d", kind);
    }
    return 0;
}

static int barriers(struct test *t)
{
    uint64_t first = t->has_seeds ? t->seeds[0] : 1;
    uint64_t last = t->has_seeds ? t->seeds[1] : (uint64_t)net_rig_scaled(t, 60);
    static struct crowd w;
#ifdef TERN_THREAD_SANITIZER
    if (net_rig_goes_by_proxy() && net_rig_way()->domain_size != NULL) {
        /* A get's answer is read by its owner's proxy, and then a rank of the owner's domain, which has heard
         * of it by way of two other sockets, stores to the same bytes. */
        return test_skip(t, "ThreadSanitizer does not see the order that a connection gives two threads");
    }
#endif
    for (uint64_t seed = first; seed <= last; seed++) {
        int result;
        memset(&w, 0, sizeof w);
        w.rng.state = seed;
        w.num_ranks = (int)rng_between(&w.rng, 1, 6);
        w.num_rounds = (int)rng_between(&w.rng, 1, MAX_ROUNDS);
        net_rig_init(&w.rig, w.num_ranks);
        for (int r = 0; r < w.num_ranks; r++) {
            size_t row = (size_t)w.num_ranks * CELL;
            w.box[r] = world_take(&w.rig.world, r, ARENA_WINDOW, row, "the box");
            w.from[r] = world_take(&w.rig.world, r, net_rig_local_arena(), MAX_ROUNDS * CELL, "what is sent");
            w.log[r] = world_take(&w.rig.world, r, net_rig_local_arena(), MAX_ROUNDS * row, "what has come");
            rng_bytes(&w.rng, world_image(&w.rig.world, w.from[r]), w.from[r].bytes);
        }
        result = run_crowd(&w, seed);
        close_teams(&w);
        net_rig_close(&w.rig);
        CHECK(result == 0, "seed %llu: %d ranks, %d rounds", (unsigned long long)seed, w.num_ranks,
              w.num_rounds);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    net_rig_cases(&t, "messages round a ring", messages);
    net_rig_cases(&t, "barriers of teams", barriers);
    return test_end(&t);
}
