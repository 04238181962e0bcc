/* SPDX-License-Identifier: Apache-2.0
 *
 * Random cases of low-latency dispatch and combine whose ranks are cut into domains: the same bits as in the
 * reference, whatever the layout, casts, compression, masks, phases, slots of the out-box, queues and
 * schedules; then lanes in flight with high-throughput operations between them. `ep_ll_inter_test --seeds N`
 * replays a seed in all worlds. */
#include "erring.h"
#include "ll_case.h"
#include "ll_stage.h"

#include "tern/tern_net.h"

#include <stdlib.h>
#include <string.h>

/* Ranks, and ranks of a domain. */
static const int worlds[][2] = {{4, 2}, {16, 8}, {16, 4}, {15, 5}, {64, 8}, {2, 1}, {5, 1}, {6, 2}, {8, 4}};

#ifdef __SANITIZE_THREAD__
enum { MAX_RANKS = 8 };
#else
enum { MAX_RANKS = 64 };
#endif

/* Who carries what goes to other domains. */
enum carrier { BY_STORES, BY_NIC, BY_PROXY, BY_FORCE };

/* Many ranks have few tokens of few channels. */
static void shrink(struct ll_case *c, const int world[2])
{
    if (world[0] > 8) {
        c->shape.batch.max_tokens = c->shape.batch.max_tokens > 6 ? 6 : c->shape.batch.max_tokens;
        c->shape.hidden = c->shape.hidden > 384 ? 384 : c->shape.hidden;
    }
    if (world[0] > 16) {
        c->rounds = 1;
        c->shape.batch.num_experts = 2 * (uint32_t)world[0];
        c->config.num_experts = c->shape.batch.num_experts;
    }
}

static int run_seed(struct test *t, uint64_t seed, const int world[2], enum carrier carrier)
{
    struct ll_case c;

    ll_case_draw(&c, seed, world[0], t->scale < 100);
    shrink(&c, world);
    ll_case_cut(&c, world[1],
                carrier == BY_NIC     ? TERN_TRANSPORT_SOFTNIC
                : carrier == BY_PROXY ? TERN_TRANSPORT_PROXY
                                      : TERN_TRANSPORT_AUTO);
    if (carrier == BY_FORCE) { /* nobody can address other domains, and threads of the host carry */
        c.forces_domains = 1;
        c.config.domain_ranks = 0;
        c.deterministic = 0;
    }
    return ll_case_run(&c, -1, NULL);
}

static int run_world(struct test *t, const int world[2], enum carrier carrier, int count)
{
    if (world[0] > MAX_RANKS) {
        return test_skip(t, "ThreadSanitizer follows 8128 fibers, and %d ranks may have more", world[0]);
    }
    uint64_t first = t->has_seeds ? t->seeds[0] : 1;
    uint64_t last = t->has_seeds ? t->seeds[1] : (uint64_t)test_scaled(t, count);
    for (uint64_t seed = first; seed <= last; seed++) {
        PASS(run_seed(t, seed, world, carrier));
    }
    test_detail(t, "seeds %llu-%llu", (unsigned long long)first, (unsigned long long)last);
    return 0;
}

static int two_by_two(struct test *t) { return run_world(t, worlds[0], BY_STORES, 60); }
static int two_by_eight(struct test *t) { return run_world(t, worlds[1], BY_STORES, 8); }
static int four_by_four(struct test *t) { return run_world(t, worlds[2], BY_STORES, 8); }
static int three_by_five(struct test *t) { return run_world(t, worlds[3], BY_STORES, 8); }

static int eight_by_eight(struct test *t)
{
    const char *machine = getenv("TERN_MACHINE");

    if (machine && strcmp(machine, "cuda") == 0) {
        return test_skip(t, "64 ranks do not fit on one device at once");
    }
    return run_world(t, worlds[4], BY_STORES, 1);
}

static int others(struct test *t)
{
    for (int i = 5; i < 9; i++) {
        PASS(run_world(t, worlds[i], BY_STORES, 15));
    }
    return 0;
}

static int by_proxy(struct test *t)
{
    PASS(run_world(t, worlds[0], BY_PROXY, 8));
    PASS(run_world(t, worlds[7], BY_PROXY, 4));
    PASS(run_world(t, worlds[0], BY_FORCE, 8));
    PASS(run_world(t, worlds[5], BY_FORCE, 8));
    return run_world(t, worlds[8], BY_FORCE, 4);
}

static int by_nics(struct test *t)
{
    PASS(run_world(t, worlds[0], BY_NIC, 8));
    PASS(run_world(t, worlds[6], BY_NIC, 4));
    return run_world(t, worlds[7], BY_NIC, 4);
}

/* ---- By packets over a network that errs ---- */

static int erring_body(struct test *t, uint64_t seed, const int world[2])
{
    return run_seed(t, seed, world, BY_NIC);
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

/* ---- Several lanes ---- */

static int in_flight_body(struct ll_stage *x)
{
    for (int round = 0; round < 6; round++) {
        ll_stage_redraw(x);
        PASS(world_upload(&x->scene.world));
        PASS(ll_stage_shuffle(x));
        PASS(ll_stage_judge(x, "lanes in flight with high throughput between"));
        batch_close(&x->scene.batches[0]);
        if (round == 3) { /* words and places begin anew */
            OK(tern_ep_reset_all(STAGE_RANKS, x->scene.eps));
        }
    }
    return 0;
}

static int in_flight(struct test *t)
{
    PASS(ll_stage_run_cut(t, in_flight_body, 60000, 0, STAGE_CUT));
    PASS(ll_stage_run_cut(t, in_flight_body, 60000, 1, STAGE_CUT));
    return ll_stage_run_cut(t, in_flight_body, 60000, 0, STAGE_BY_PROXY);
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
    test_run(&t, "2 x 1, 5 x 1, 3 x 2 and 2 x 4 ranks", others);
    test_run(&t, "by the proxy", by_proxy);
    test_run(&t, "by software NICs", by_nics);
    test_run(&t, "by packets over a network that errs", by_packets);
    test_run(&t, "by packets with adaptive routing", by_adaptive);
    test_run(&t, "lanes in flight across domains", in_flight);
    return test_end(&t);
}
