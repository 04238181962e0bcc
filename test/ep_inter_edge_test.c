/* SPDX-License-Identifier: Apache-2.0
 *
 * Across domains over links that carry loads and stores, but no atomics, as PCIe does: routes, dispatches and
 * combines go on as ever. Where nothing leads to another domain: no object opens. And a combine that asks for
 * fewer processors than its streams need: it is refused before anything of it runs. */
#include "cost.h"
#include "scene.h"

#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 6, GROUP = 2 };

/* As scene_open, on communicators whose ranks were told that no link carries atomics. */
static int open_without_atomics(struct scene *s)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    config.cpu_seed = s->rng.state | 1;
    config.timeout_ms = 60000;
    PASS(world_open(&s->world, NULL, &config));
    for (int a = 0; a < RANKS; a++) {
        for (int b = 0; b < RANKS; b++) {
            s->world.members[a].comm->lacks_atomics[b] = a != b;
        }
    }
    return world_ep_open(&s->world, &s->config, s->eps);
}

static int rounds_without_atomics(struct scene *s)
{
    PASS(open_without_atomics(s));
    PASS(scene_round(s, 0));
    batch_close(&s->batches[0]);
    OK(tern_ep_reset_all(RANKS, s->eps)); /* positions begin at 0 again */
    PASS(scene_round(s, 0));
    batch_close(&s->batches[0]);
    return scene_round(s, 0);
}

static int without_atomics(struct test *t)
{
    int rounds = test_scaled(t, 6), result = 0;
    for (int i = 0; i < rounds && !result; i++) {
        struct batch_shape shape =
            scene_shape(RANKS, i % 2 ? TERN_LAYOUT_EXPERT : TERN_LAYOUT_RANK, ROUTING_UNIFORM);
        struct scene s;
        scene_init(&s, RANKS, 500 + (uint64_t)i);
        s.world.domain_ranks = GROUP;
        s.config.domain_ranks = GROUP;
        s.config.net_queues = 1 + (uint32_t)i % 3;
        s.config.net_ring_bytes = 1; /* the least there is: words go on often */
        scene_add(&s, &shape, 0);
        result = rounds_without_atomics(&s);
        scene_fini(&s);
    }
    return result;
}

static int refuse_to_open(struct scene *s)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_comm *comms[RANKS];
    PASS(world_open(&s->world, NULL, &config));
    for (int r = 0; r < RANKS; r++) {
        comms[r] = s->world.members[r].comm;
    }
    REFUSES(tern_ep_open_all(RANKS, comms, &s->config, s->eps), TERN_UNSUPPORTED,
            "nothing leads from rank 0 to rank 2");
    s->config.ll_tokens = 4;
    s->config.ll_hidden = 512;
    REFUSES(tern_ep_open_all(RANKS, comms, &s->config, s->eps), TERN_UNSUPPORTED,
            "nothing leads from rank 0 to rank 2");
    unsetenv("TERN_PROXY"); /* the communicator is as good as ever */
    OK(tern_ep_open_all(RANKS, comms, &s->config, s->eps));
    return 0;
}

static int nothing_leads(struct test *t)
{
    struct scene s;
    int result;
    (void)t;
    test_quiet();
    scene_init(&s, RANKS, 600);
    s.world.domain_ranks = GROUP;
    s.world.forces_domains = 1;
    setenv("TERN_PROXY", "none", 1);
    result = refuse_to_open(&s);
    unsetenv("TERN_PROXY");
    scene_fini(&s);
    return result;
}

/* Kernels that the executor has begun, all of them over. */
static uint64_t kernels_so_far(const struct scene *s)
{
    uint64_t counts[COST_COUNTERS], grids = 0;
    cost_read(s->world.members[0].lanes[0], counts);
    for (int i = 0; i < COST_COUNTERS; i++) {
        grids = strcmp(cost_name(i), "grids") == 0 ? counts[i] : grids;
    }
    return grids;
}

static int refuse_combine(struct scene *s)
{
    struct tern_combine_args args;
    uint64_t before, after;
    PASS(scene_open(s));
    scene_refill(s, 0);
    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batches[0], s->eps, 0));
    PASS(world_ep_synchronize(&s->world, s->eps));
    PASS(world_synchronize(&s->world));
    before = kernels_so_far(s);
    args = combine_args(&s->combines[0], 0, 1);
    args.num_sms = 2;
    REFUSES(tern_combine(s->batches[0].routes[0], &args, s->world.members[0].lanes[0]), TERN_UNSUPPORTED,
            "raise num_sms");
    PASS(world_synchronize(&s->world));
    after = kernels_so_far(s);
    CHECK(before > 0 && after == before, "%llu kernels ran, %llu before", (unsigned long long)after,
          (unsigned long long)before);
    return combine_check(&s->combines[0], s->eps, 0);
}

static int too_few_processors(struct test *t)
{
    struct batch_shape shape = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    struct scene s;
    int result;
    if (!scene_on_cpu()) {
        return test_skip(t, "the executor of the cpu machine counts kernels");
    }
    test_quiet();
    scene_init(&s, RANKS, 700);
    s.world.domain_ranks = GROUP;
    s.config.domain_ranks = GROUP;
    s.config.net_queues = 64;
    s.config.num_sms = 8;
    s.config.staging_bytes = 0;
    batch_init(&s.batches[s.num_batches++], &s.world, &shape, &s.rng);
    dispatch_plain(&s.dispatches[0], &s.batches[0], s.row_bytes, 0, ARENA_DEVICE);
    combine_plain(&s.combines[0], &s.batches[0], s.row_bytes, 0, ARENA_DEVICE);
    result = refuse_combine(&s);
    scene_fini(&s);
    return result;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "links without atomics", without_atomics);
    test_run(&t, "nothing leads to another domain", nothing_leads);
    test_run(&t, "a combine with too few processors", too_few_processors);
    return test_end(&t);
}
