/* SPDX-License-Identifier: Apache-2.0
 *
 * See ll_worlds.h. */
#include "ll_worlds.h"

#include "erring.h"
#include "tern/tern_net.h"

#include <stdlib.h>
#include <string.h>

#ifdef TERN_THREAD_SANITIZER
enum { MAX_RANKS = 8 };
#else
enum { MAX_RANKS = 66 };
#endif
enum { MAX_GPU_RANKS = 16 }; /* that are on one device at once */

/* Many ranks have few tokens of few channels. */
static void shrink(struct ll_case *c)
{
    if (c->num_ranks > 8) {
        c->shape.batch.max_tokens = c->shape.batch.max_tokens > 6 ? 6 : c->shape.batch.max_tokens;
        c->shape.hidden = c->shape.hidden > 384 ? 384 : c->shape.hidden;
    }
    if (c->num_ranks > 16) {
        c->rounds = 1;
        c->shape.batch.num_experts = 2 * (uint32_t)c->num_ranks;
        c->config.num_experts = c->shape.batch.num_experts;
    }
}

void ll_world_draw(const struct test *t, const struct ll_world *w, uint64_t seed, struct ll_case *c)
{
    ll_case_draw(c, seed, w->ranks[0], t->scale < 100);
    shrink(c);
    ll_case_cut(c, w->ranks[1],
                w->carrier == BY_NIC     ? TERN_TRANSPORT_SOFTNIC
                : w->carrier == BY_PROXY ? TERN_TRANSPORT_PROXY
                                         : TERN_TRANSPORT_AUTO);
    if (w->carrier == BY_FORCE) {
        c->forces_domains = 1;
        c->config.domain_ranks = 0;
        c->deterministic = 0;
    }
    if (w->is_railed) {
        ll_case_rail(c);
    }
}

static int run_seed(const struct test *t, const struct ll_world *w, uint64_t seed)
{
    struct ll_case c;

    ll_world_draw(t, w, seed, &c);
    return ll_case_run(&c, -1, NULL);
}

/* Seeds from 1 to `count`, scaled, or those that the test was asked for. Skips what is too much for
 * ThreadSanitizer, or for one GPU. */
static int run_world(struct test *t, const struct ll_world *w, int count)
{
    const char *machine = getenv("TERN_MACHINE");

    if (w->ranks[0] > MAX_RANKS) {
        return test_skip(t, "ThreadSanitizer follows 8128 fibers, and %d ranks may have more", w->ranks[0]);
    }
    if (machine && strcmp(machine, "cuda") == 0 && w->ranks[0] > MAX_GPU_RANKS) {
        return test_skip(t, "%d ranks do not fit on one device at once", w->ranks[0]);
    }
    uint64_t first = t->has_seeds ? t->seeds[0] : 1;
    uint64_t last = t->has_seeds ? t->seeds[1] : (uint64_t)test_scaled(t, count);
    for (uint64_t seed = first; seed <= last; seed++) {
        PASS(run_seed(t, w, seed));
    }
    test_detail(t, "seeds %llu-%llu", (unsigned long long)first, (unsigned long long)last);
    return 0;
}

/* ---- Cases that all worlds have ---- */

struct grouped {
    int ranks, domain_ranks;
    enum ll_carrier carrier;
    int count; /* seeds */
};

/* The worlds of one test case. */
struct group {
    const char *name;
    struct grouped worlds[5];
};

static const struct group groups[] = {
    {"2 x 2 ranks", {{4, 2, BY_STORES, 60}}},
    {"2 x 8 ranks", {{16, 8, BY_STORES, 8}}},
    {"4 x 4 ranks", {{16, 4, BY_STORES, 8}}},
    {"3 x 5 ranks", {{15, 5, BY_STORES, 8}}},
    {"8 x 8 ranks", {{64, 8, BY_STORES, 1}}},
    /* Seeds enough for a row of every rank. */
    {"a domain, and domains, of more than a warp has lanes", {{66, 33, BY_STORES, 8}, {40, 1, BY_STORES, 4}}},
    {"2 x 1, 5 x 1, 3 x 2 and 2 x 4 ranks",
     {{2, 1, BY_STORES, 15}, {5, 1, BY_STORES, 15}, {6, 2, BY_STORES, 15}, {8, 4, BY_STORES, 15}}},
    {"by the proxy",
     {{4, 2, BY_PROXY, 8},
      {6, 2, BY_PROXY, 4},
      {4, 2, BY_FORCE, 8},
      {2, 1, BY_FORCE, 8},
      {8, 4, BY_FORCE, 4}}},
    {"by software NICs", {{4, 2, BY_NIC, 8}, {5, 1, BY_NIC, 4}, {6, 2, BY_NIC, 4}}},
};

/* Of the test case that runs. */
static const struct group *group;
static int rails;

static int run_group(struct test *t)
{
    enum { MOST = sizeof group->worlds / sizeof *group->worlds };
    for (int i = 0; i < MOST && group->worlds[i].ranks; i++) {
        const struct grouped *g = &group->worlds[i];
        struct ll_world w = {{g->ranks, g->domain_ranks}, g->carrier, rails};
        PASS(run_world(t, &w, g->count));
    }
    return 0;
}

static int erring_body(struct test *t, uint64_t seed, const int world[2])
{
    struct ll_world w = {{world[0], world[1]}, BY_NIC, rails};
    return run_seed(t, &w, seed);
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

void ll_world_cases(struct test *t, int is_railed)
{
    rails = is_railed;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        group = &groups[i];
        test_run(t, group->name, run_group);
    }
    test_run(t, "by packets over a network that errs", by_packets);
    test_run(t, "by packets with adaptive routing", by_adaptive);
}
