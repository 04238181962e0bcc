/* SPDX-License-Identifier: Apache-2.0
 *
 * Low latency with ranks as processes: random cases against the reference, and a rank that is killed between
 * the phases of a dispatch. */
#include "ll_case.h"
#include "procs.h"
#include "scene.h"

#include "tern/tern_net.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

static int run_case(int rank, struct procs_page *page, void *user)
{
    const struct ll_case *c = (const struct ll_case *)user;

    return ll_case_run(c, rank, &page->id);
}

/* On GPUs a case costs seconds of driver start in every process. */
enum { GPU_CASES_PER_CENT = 15 };

static int run_cases(struct test *t, int num_ranks, int rail_ranks, int count)
{
    const char *machine = getenv("TERN_MACHINE");
    int gpu = machine && strcmp(machine, "cuda") == 0;
    uint64_t first = 7000 + 100 * (uint64_t)num_ranks;
    uint64_t last = first + (uint64_t)test_scaled(t, gpu ? count * GPU_CASES_PER_CENT / 100 : count) - 1;
    int result = 0;

    for (uint64_t seed = first; seed <= last && !result; seed++) {
        struct ll_case c;
        ll_case_draw(&c, seed, num_ranks, t->scale < 100);
        if (rail_ranks != 0) {
            ll_case_cut(&c, rail_ranks, TERN_TRANSPORT_AUTO);
            ll_case_rail(&c);
        }
        result = procs_run(num_ranks, -1, 120, run_case, &c);
    }
    test_detail(t, "seeds %llu-%llu", (unsigned long long)first, (unsigned long long)last);
    return result;
}

static int two(struct test *t) { return run_cases(t, 2, 0, 20); }
static int four(struct test *t) { return run_cases(t, 4, 0, 20); }
static int cut(struct test *t) { return run_cases(t, 4, 2, 12); }

/* ---- Death ---- */

enum { RANKS = 4, VICTIM = 2 };

/* What the victim has sent is received; in the combine it is missed, masked, and left out, and so in all that
 * follows, without another wait. */
static int go_on_without(struct ll_batch *b, const struct tern_ep_config *config, int rank, struct rng *r)
{
    static const unsigned char masked[TERN_MAX_RANKS] = {0, 0, 1};
    struct world *w = b->batch.world;
    struct tern_fault f = TERN_FAULT_INIT;
    uint64_t seen[2];
    double begin;

    PASS(ll_combine_issue(b, TERN_LL_BOTH, 0));
    PASS(world_ep_synchronize(w, b->eps));
    ll_expect_masks(b, masked, 1);
    ll_expect_combine(b);
    PASS(world_verify(w, "a combine without one who died"));
    OK(tern_ll_mask_peek(b->eps[rank], seen));
    CHECK(seen[0] == 1u << VICTIM, "rank %d sees 0x%llx", rank, (unsigned long long)seen[0]);
    OK(tern_ll_mask_fault(b->eps[rank], VICTIM, &f));
    CHECK(f.peer == VICTIM && f.operation == TERN_OP_LL_COMBINE, "rank %d: operation %d, peer %d", rank,
          f.operation, f.peer);
    begin = test_seconds();
    for (int round = 0; round < 4; round++) {
        ll_batch_redraw_ids(b, ROUTING_UNIFORM, r);
        ll_expect_masks(b, masked, 0);
        PASS(world_upload(w));
        PASS(ll_dispatch_issue(b, TERN_LL_BOTH, 0));
        PASS(ll_combine_issue(b, TERN_LL_BOTH, 0));
        ll_expect_dispatch(b);
        ll_expect_combine(b);
        PASS(world_ep_synchronize(w, b->eps));
        PASS(world_verify(w, "a round without one who died"));
    }
    /* Each would take a deadline at least. */
    CHECK(test_seconds() - begin < config->timeout_ms * 3e-3, "four rounds take %.1f s",
          test_seconds() - begin);
    return 0;
}

/* Railed, its rail's rows are spread by nobody in its domain: who waits for one names it in the dispatch,
 * and whoever is done with that by then in the combine, or hears of it. */
static int fail_without(struct ll_batch *b, const struct tern_ep_config *config, int rank, double begin)
{
    enum tern_status status = tern_ep_synchronize(b->eps[rank]);
    struct tern_fault f = TERN_FAULT_INIT;

    if (status == TERN_OK && rank / 2 != VICTIM / 2) {
        PASS(ll_combine_issue(b, TERN_LL_BOTH, 0));
        status = tern_ep_synchronize(b->eps[rank]);
    }
    CHECK(status == TERN_TIMEOUT && strstr(tern_last_error(), "rank 2"), "rank %d: %s, %s", rank,
          tern_status_string(status), tern_last_error());
    OK(tern_fault_get(b->eps[rank], &f));
    CHECK(f.peer == VICTIM, "rank %d blames rank %d", rank, f.peer);
    CHECK(test_seconds() - begin < 2 * config->timeout_ms * 1e-3 + 6.0, "rank %d ends after %.1f s", rank,
          test_seconds() - begin);
    return 0;
}

/* What the victim has sent is received; in the combine it is missed, and named. */
static int live_or_die(struct ll_batch *b, const struct tern_ep_config *config, int rank,
                       struct procs_page *page, struct rng *r)
{
    struct tern_comm_config comm = TERN_COMM_CONFIG_INIT;
    struct world *w = b->batch.world;
    double begin;

    PASS(world_open(w, &page->id, &comm));
    PASS(world_ep_open(w, config, b->eps));
    PASS(world_upload(w));
    PASS(ll_dispatch_issue(b, TERN_LL_SEND, 0));
    PASS(world_ep_synchronize(w, b->eps));
    if (rank == VICTIM) {
        raise(SIGKILL);
    }
    begin = test_seconds();
    PASS(ll_dispatch_issue(b, TERN_LL_RECEIVE, 0));
    if (config->ll_rail) {
        return fail_without(b, config, rank, begin);
    }
    PASS(world_ep_synchronize(w, b->eps));
    ll_expect_dispatch(b);
    PASS(world_verify(w, "a dispatch from one who died"));
    if (config->ll_mask) {
        return go_on_without(b, config, rank, r);
    }
    PASS(ll_combine_issue(b, TERN_LL_BOTH, 0));
    REFUSES(tern_ep_synchronize(b->eps[rank]), TERN_TIMEOUT, "rank 2");
    CHECK(test_seconds() - begin < config->timeout_ms * 1e-3 + 6.0, "rank %d ends after %.1f s", rank,
          test_seconds() - begin);
    return 0;
}

struct death {
    const struct test *t;
    uint32_t ll_mask;
    int is_railed; /* in two domains */
    uint32_t weights;
};

static int mortal(int rank, struct procs_page *page, void *user)
{
    const struct death *death = (const struct death *)user;
    struct tern_ep_config config = TERN_EP_CONFIG_INIT;
    struct tern_ep *eps[RANKS] = {NULL};
    struct rng r = {71};
    struct ll_shape shape;
    struct world w;
    struct ll_batch b;
    int result;

    test_quiet();
    memset(&shape, 0, sizeof shape);
    shape.batch = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    shape.hidden = 256;
    shape.weights = death->weights;
    config.num_experts = shape.batch.num_experts;
    config.max_topk = shape.batch.topk;
    config.max_tokens = 1;
    config.max_row_bytes = 16;
    config.timeout_ms = death->t->scale < 100 ? 4000 : 1200;
    config.ll_mask = death->ll_mask;
    config.domain_ranks = death->is_railed ? 2 : 0;
    shape.railed = death->is_railed;
    ll_config_add(&config, &shape, 1);
    world_init(&w, RANKS, rank);
    ll_batch_init(&b, &w, eps, &shape, &r);
    ll_batch_redraw_ids(&b, ROUTING_UNIFORM, &r);
    result = live_or_die(&b, &config, rank, page, &r);
    ll_batch_fini(&b);
    world_ep_close(&w, eps);
    world_fini(&w);
    return result;
}

static int die(struct test *t, uint32_t ll_mask, int is_railed, uint32_t weights)
{
    struct death death = {t, ll_mask, is_railed, weights};

    return procs_run(RANKS, VICTIM, 60, mortal, &death);
}

static int killed(struct test *t) { return die(t, 0, 0, TERN_LL_WEIGHTS_AT_COMBINE); }
static int masked(struct test *t) { return die(t, 1, 0, TERN_LL_WEIGHTS_AT_COMBINE); }
static int railed(struct test *t) { return die(t, 0, 1, TERN_LL_WEIGHTS_AT_COMBINE); }
static int killed_ahead(struct test *t) { return die(t, 0, 0, TERN_LL_WEIGHTS_AHEAD); }

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "a rank killed between send and receive is named", killed);
    test_run(&t, "a rank killed between send and receive is masked, and the others go on", masked);
    test_run(&t, "a rank killed before its weights go ahead of a combine is named", killed_ahead);
    test_run(&t, "a rank killed between send and receive, railed, is named by all", railed);
    test_run(&t, "random cases, ranks in 2 processes", two);
    test_run(&t, "random cases, ranks in 4 processes", four);
    test_run(&t, "random railed cases, ranks in 4 processes", cut);
    return test_end(&t);
}
