/* SPDX-License-Identifier: Apache-2.0
 *
 * Random cases of route, dispatch and combine whose ranks are cut into domains: the same bits as in the
 * reference, whatever the layout, payloads, rings, queues and schedules. */
#include "ep_case.h"
#include "erring.h"
#include "mock_nic.h"

#include "tern/tern_net.h"

#include <stdlib.h>
#include <string.h>

/* Ranks, and ranks of a domain. */
static const int worlds[][2] = {{4, 2}, {16, 8}, {16, 4}, {15, 5}, {64, 8},
                                {2, 1}, {5, 1},  {6, 2},  {8, 4},  {33, 1}};

#ifdef TERN_THREAD_SANITIZER
enum { MAX_RANKS = 8 };
#else
enum { MAX_RANKS = 64 };
#endif

enum way { BY_MEMORY, BY_PROXY, BY_SOFTNIC, BY_MLX5, BY_MANY_QUEUES };

static int run_seed(struct test *t, uint64_t seed, const int world[2], enum way way)
{
    static const uint32_t transports[] = {TERN_TRANSPORT_AUTO, TERN_TRANSPORT_AUTO, TERN_TRANSPORT_SOFTNIC,
                                          TERN_TRANSPORT_MLX5, TERN_TRANSPORT_SOFTNIC};
    struct ep_limits limits = ep_case_limits(t);
    struct ep_case c;
    limits.num_ranks = world[0];
    limits.max_tokens = world[0] > 8 ? 40 : limits.max_tokens;
    limits.max_hidden = world[0] > 8 ? 1024 : limits.max_hidden;
    ep_case_draw(&c, seed, &limits);
    ep_case_cut(&c, world[1], transports[way]);
    c.config.net_queues = world[0] / world[1] > 32 ? 1 : c.config.net_queues; /* few warps look after all */
    if (way == BY_MANY_QUEUES) { /* posters have places for fewer, and credits wait for each other */
        c.config.net_queues = 32;
    }
    if (way ==
        BY_PROXY) { /* nobody can address other domains, and threads of the host carry what goes there */
        c.forces_domains = 1;
        c.config.domain_ranks = 0;
    }
    c.deterministic = way == BY_MEMORY; /* others are threads of the host, or another GPU kernel */
    return ep_case_run(&c, -1, NULL);
}

static int run_world(struct test *t, const int world[2], int count)
{
    if (world[0] > MAX_RANKS) {
        return test_skip(t, "ThreadSanitizer follows 8128 fibers, and %d ranks may have more", world[0]);
    }
    uint64_t first = t->has_seeds ? t->seeds[0] : 1;
    uint64_t last = t->has_seeds ? t->seeds[1] : (uint64_t)test_scaled(t, count);
    for (uint64_t seed = first; seed <= last; seed++) {
        PASS(run_seed(t, seed, world, BY_MEMORY));
    }
    return 0;
}

static int two_by_two(struct test *t) { return run_world(t, worlds[0], 60); }
static int two_by_eight(struct test *t) { return run_world(t, worlds[1], 12); }
static int four_by_four(struct test *t) { return run_world(t, worlds[2], 12); }
static int three_by_five(struct test *t) { return run_world(t, worlds[3], 12); }
static int run_many(struct test *t, const int world[2], int count)
{
    const char *machine = getenv("TERN_MACHINE");
    if (machine && strcmp(machine, "cuda") == 0) {
        return test_skip(t, "a GPU has no three processors for each of %d ranks", world[0]);
    }
    return run_world(t, world, count);
}
static int eight_by_eight(struct test *t) { return run_many(t, worlds[4], 2); }
/* More domains than a warp has lanes. */
static int thirty_three_by_one(struct test *t) { return run_many(t, worlds[9], 8); }
static int others(struct test *t)
{
    for (int i = 5; i < 9; i++) {
        PASS(run_world(t, worlds[i], 20));
    }
    return 0;
}

static int run_way(struct test *t, enum way way, int count)
{
    uint64_t first = t->has_seeds ? t->seeds[0] : 1;
    uint64_t last = t->has_seeds ? t->seeds[1] : (uint64_t)test_scaled(t, count);
    for (uint64_t seed = first; seed <= last; seed++) {
        const int *odd = worlds[MAX_RANKS < 15 ? 7 : 3];
        PASS(run_seed(t, seed, seed % 3 == 0 ? odd : worlds[seed % 3 == 1 ? 0 : 8], way));
    }
    return 0;
}

static int by_proxy(struct test *t) { return run_way(t, BY_PROXY, 15); }
static int by_softnic(struct test *t)
{
    return getenv("TERN_TEST_SANITIZER") /* test/memcheck.sh says why */
               ? test_skip(t, "under compute-sanitizer kernels wait for a NIC that is a kernel")
               : run_way(t, BY_SOFTNIC, 9);
}

static int by_many_queues(struct test *t)
{
    static const int world[] = {4, 2};
    uint64_t first = t->has_seeds ? t->seeds[0] : 1;
    uint64_t last = t->has_seeds ? t->seeds[1] : (uint64_t)test_scaled(t, 6);
    if (getenv("TERN_TEST_SANITIZER")) {
        return test_skip(t, "under compute-sanitizer kernels wait for a NIC that is a kernel");
    }
    for (uint64_t seed = first; seed <= last; seed++) {
        PASS(run_seed(t, seed, world, BY_MANY_QUEUES));
    }
    return 0;
}

static int by_mlx5(struct test *t)
{
    const char *machine = getenv("TERN_MACHINE");
    char complaint[256];
    int result;
    if (machine && strcmp(machine, "cuda") == 0) {
        return test_skip(t, "the mock reads memory of the host");
    }
    if (!mock_nic_open(0, 1)) {
        return test_skip(t, "this build has no rdma-core, or there is no place for files");
    }
    result = run_way(t, BY_MLX5, 4);
    if (!mock_nic_close(complaint) && result == TEST_PASSED) {
        test_note(__FILE__, __LINE__, "%s", complaint);
        return TEST_FAILED;
    }
    return result;
}

/* ---- By packets over a network that errs ---- */

static int erring_body(struct test *t, uint64_t seed, const int world[2])
{
    return run_seed(t, seed, world, BY_SOFTNIC);
}

static int by_packets(struct test *t)
{
    static const struct erring e = {0, 8, MAX_RANKS, erring_body};
    return erring_run(t, &e);
}

static int by_adaptive(struct test *t)
{
    static const struct erring e = {1, 8, MAX_RANKS, erring_body};
    return erring_run(t, &e);
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "2 x 2 ranks", two_by_two);
    test_run(&t, "2 x 8 ranks", two_by_eight);
    test_run(&t, "4 x 4 ranks", four_by_four);
    test_run(&t, "3 x 5 ranks", three_by_five);
    test_run(&t, "8 x 8 ranks", eight_by_eight);
    test_run(&t, "33 x 1 ranks", thirty_three_by_one);
    test_run(&t, "2 x 1, 5 x 1, 3 x 2 and 2 x 4 ranks", others);
    test_run(&t, "by the proxy", by_proxy);
    test_run(&t, "by NICs in software", by_softnic);
    test_run(&t, "by packets over a network that errs", by_packets);
    test_run(&t, "by packets with adaptive routing", by_adaptive);
    test_run(&t, "by the provider of real NICs, over a mock", by_mlx5);
    test_run(&t, "by NICs in software, by many queues", by_many_queues);
    return test_end(&t);
}
