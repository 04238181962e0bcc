/* SPDX-License-Identifier: Apache-2.0
 *
 * Every call of tern_device.h, from a kernel as users write them, launched by tern_launch, in many schedules:
 * each rank fills the next one's box, by threads, warps and the block, several rounds without the host
 * between. */
#include "net_kernel.h"
#include "net_rig.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TOUR_RANKS = 4, MAX_TOUR_ROUNDS = 4 };

TERN_KERNEL_DECLARE(net_tour);
static const struct tern_kernel net_tour = TERN_KERNEL_INIT(net_tour);

struct tour {
    struct net_rig rig;
    struct rng rng;
    int num_ranks, num_rounds;
    struct tern_team *teams[MAX_TOUR_RANKS];
    struct tern_net_team views[MAX_TOUR_RANKS];
    struct place from[MAX_TOUR_RANKS], box[MAX_TOUR_RANKS], seen[MAX_TOUR_RANKS], got[MAX_TOUR_RANKS];
    struct place early[MAX_TOUR_RANKS];
    struct place olds[MAX_TOUR_RANKS], status[MAX_TOUR_RANKS];
};

static void take_places(struct tour *g)
{
    for (int r = 0; r < g->num_ranks; r++) {
        struct world *w = &g->rig.world;
        size_t rounds = (size_t)g->num_rounds;
        g->box[r] = world_take(w, r, ARENA_WINDOW, sizeof(struct tour_box), "the box");
        g->from[r] =
            world_take(w, r, net_rig_local_arena(), rounds * sizeof(struct tour_box), "what is given");
        g->seen[r] = world_take(w, r, ARENA_DEVICE, rounds * sizeof(struct tour_box), "what was seen");
        g->got[r] =
            world_take(w, r, net_rig_local_arena(), rounds * sizeof(struct tour_box), "what was fetched");
        g->early[r] =
            world_take(w, r, ARENA_DEVICE, rounds * sizeof(struct tour_box), "what was there at once");
        g->olds[r] = world_take(w, r, ARENA_DEVICE, rounds * TOUR_THREADS * 8, "tickets");
        g->status[r] = world_take(w, r, ARENA_DEVICE, TOUR_THREADS * 4, "statuses");
    }
    for (int r = 0; r < g->num_ranks; r++) {
        struct world *w = &g->rig.world;
        rng_bytes(&g->rng, world_image(w, g->from[r]), g->from[r].bytes);
        memset(world_image(w, g->box[r]), 0, sizeof(struct tour_box));
        memset(world_image(w, g->got[r]), 0, g->got[r].bytes);
        memset(world_image(w, g->early[r]), 0, g->early[r].bytes);
        memset(world_image(w, g->status[r]), 0, g->status[r].bytes);
    }
}

static int launch(struct tour *g, int r, int round)
{
    struct tern_launch_args args = TERN_LAUNCH_ARGS_INIT;
    struct world *w = &g->rig.world;
    struct tour_args p;
    memset(&p, 0, sizeof p);
    p.net = g->rig.views[r];
    p.team = g->views[r];
    p.from = (struct tour_box *)world_device(w, g->from[r]) + round;
    p.box = (struct tour_box *)world_device(w, g->box[r]);
    p.seen = (struct tour_box *)world_device(w, g->seen[r]) + round;
    p.got = (struct tour_box *)world_device(w, g->got[r]) + round;
    p.early = (struct tour_box *)world_device(w, g->early[r]) + round;
    p.olds = (uint64_t *)world_device(w, g->olds[r]) + (size_t)round * TOUR_THREADS;
    p.status = (int32_t *)world_device(w, g->status[r]);
    p.round = (uint64_t)round + 1;
    args.num_blocks = 1;
    args.num_threads = TOUR_THREADS;
    args.args = &p;
    args.args_bytes = sizeof p;
    args.shared_bytes = TOUR_SHARED;
    OK(tern_launch(w->members[r].comm, &net_tour, &args, w->members[r].lanes[0]));
    return 0;
}

/* What rank r has seen of the one before it in this round. */
static void expect_box(struct tour *g, int r, int round)
{
    struct world *w = &g->rig.world;
    int before = (r + g->num_ranks - 1) % g->num_ranks;
    const struct tour_box *mine = (const struct tour_box *)world_image(w, g->from[r]) + round;
    struct tour_box *seen = (struct tour_box *)world_image(w, g->seen[r]) + round;
    struct tour_box *got = (struct tour_box *)world_image(w, g->got[r]) + round;
    struct tour_box *early = (struct tour_box *)world_image(w, g->early[r]) + round;
    uint64_t rounds = (uint64_t)round + 1;
    *seen = tour_box_of((struct tour_box *)world_image(w, g->from[before]) + round, rounds);
    for (int t = 0; t < TOUR_THREADS; t++) {
        got->stored[t] = seen->stored[TOUR_THREADS - 1 - t];
    }
    memcpy(got->cells, mine->cells, sizeof got->cells); /* from the next rank's box */
    memcpy(got->strips, mine->strips, sizeof got->strips);
    memcpy(got->sheets, mine->sheets, sizeof got->sheets);
    memcpy(early->cells[0], mine->cells[0], sizeof early->cells[0]);
    memcpy(early->strips[0], mine->strips[0], sizeof early->strips[0]);
    memcpy(early->sheets[0], mine->sheets[0], sizeof early->sheets[0]);
    *(struct tour_box *)world_image(w, g->box[r]) = *seen;
    ((struct tour_box *)world_image(w, g->box[r]))->mark = (uint32_t)rounds;
}

/* Each ticket of a round once, in whatever order; then the image takes them as they are. */
static int check_tickets(struct tour *g, int r)
{
    size_t count = (size_t)g->num_rounds * TOUR_THREADS;
    const uint64_t *olds =
        (const uint64_t *)world_peek(&g->rig.world, r, world_device(&g->rig.world, g->olds[r]), count * 8);
    unsigned char taken[MAX_TOUR_ROUNDS * TOUR_THREADS] = {0};
    CHECK(olds != NULL, "no tickets");
    for (size_t i = 0; i < count; i++) {
        CHECK(olds[i] < count && olds[i] / TOUR_THREADS == i / TOUR_THREADS && !taken[olds[i]],
              "rank %d, round %zu: ticket %llu", r, i / TOUR_THREADS, (unsigned long long)olds[i]);
        taken[olds[i]] = 1;
    }
    memcpy(world_image(&g->rig.world, g->olds[r]), olds, count * 8);
    return 0;
}

static int run_tour(struct tour *g, uint64_t seed)
{
    struct tern_comm *comms[MAX_TOUR_RANKS];
    PASS(net_rig_open(&g->rig, NULL, seed));
    for (int r = 0; r < g->num_ranks; r++) {
        comms[r] = g->rig.world.members[r].comm;
        g->views[r].size = sizeof g->views[r];
    }
    OK(tern_team_open_all(g->num_ranks, comms, TERN_TEAM_WORLD, g->teams));
    OK(tern_net_team_open_all(g->num_ranks, g->rig.networks, g->teams, g->views));
    PASS(world_upload(&g->rig.world));
    for (int r = 0; r < g->num_ranks; r++) {
        for (int round = 0; round < g->num_rounds; round++) {
            PASS(launch(g, r, round));
        }
    }
    PASS(world_synchronize(&g->rig.world));
    net_rig_see(&g->rig);
    for (int r = 0; r < g->num_ranks; r++) {
        OK(tern_net_synchronize(g->rig.networks[r], g->rig.world.members[r].lanes[0]));
        PASS(check_tickets(g, r));
        for (int round = 0; round < g->num_rounds; round++) {
            expect_box(g, r, round);
        }
    }
    return world_verify(&g->rig.world, "a tour of the calls");
}

static int tours(struct test *t)
{
    uint64_t first = t->has_seeds ? t->seeds[0] : 1;
    uint64_t last = t->has_seeds ? t->seeds[1] : (uint64_t)net_rig_scaled(t, 120);
    static struct tour g;
    for (uint64_t seed = first; seed <= last; seed++) {
        int result;
        memset(&g, 0, sizeof g);
        g.rng.state = seed;
        g.num_ranks = (int)rng_between(&g.rng, 1, MAX_TOUR_RANKS);
        g.num_rounds = (int)rng_between(&g.rng, 1, MAX_TOUR_ROUNDS);
        net_rig_init(&g.rig, g.num_ranks);
        take_places(&g);
        result = run_tour(&g, seed);
        for (int r = 0; r < g.num_ranks; r++) {
            tern_team_close(g.teams[r]);
        }
        net_rig_close(&g.rig);
        CHECK(result == 0, "seed %llu: %d ranks, %d rounds", (unsigned long long)seed, g.num_ranks,
              g.num_rounds);
    }
    return 0;
}

/* ---- Users' types ---- */

TERN_KERNEL_DECLARE(net_types);

static int run_types(struct net_rig *rig, const struct place *at)
{
    const struct tern_kernel kernel = TERN_KERNEL_INIT(net_types);
    struct tern_launch_args args = TERN_LAUNCH_ARGS_INIT;
    struct world *w = &rig->world;
    struct types_args p;
    memset(&p, 0, sizeof p);
    p.net = rig->views[0];
    p.box = (float *)world_device(w, at[0]);
    p.seen = (float *)world_device(w, at[1]);
    p.status = (int32_t *)world_device(w, at[2]);
    p.from = (float *)world_device(w, at[3]);
    p.got = (float *)world_device(w, at[4]);
    p.first = 1000;
    args.num_blocks = 1;
    args.num_threads = 32;
    args.args = &p;
    args.args_bytes = sizeof p;
    OK(tern_launch(w->members[0].comm, &kernel, &args, w->members[0].lanes[0]));
    PASS(world_synchronize(w));
    const float *seen = (const float *)world_peek(w, 0, p.seen, TYPES_SHIFTS * TYPES_NUMBERS * sizeof(float));
    for (int i = 0; i < TYPES_SHIFTS * TYPES_NUMBERS; i++) {
        CHECK(seen != NULL && seen[i] == 1000 + (float)i, "number %d is %g", i, (double)seen[i]);
    }
    return 0;
}

static int types(struct test *t)
{
    static struct net_rig rig;
    struct place at[5];
    int result;
    (void)t;
    net_rig_init(&rig, 1);
    for (int i = 0; i < 5; i++) {
        at[i] = world_take(&rig.world, 0, i == 0 ? ARENA_WINDOW : ARENA_DEVICE, 256, "numbers");
        memset(world_image(&rig.world, at[i]), 0, 256);
    }
    result = net_rig_open(&rig, NULL, 9);
    result = result ? result : world_upload(&rig.world);
    result = result ? result : run_types(&rig, at);
    net_rig_close(&rig);
    return result;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    net_rig_cases(&t, "every call of the device header", tours);
    test_run(&t, "memory of users' types", types);
    return test_end(&t);
}
