/* SPDX-License-Identifier: Apache-2.0
 *
 * A job that loses a rank in the middle of its operations and goes on without it, in the same processes.
 * Ranks are processes, domains of two, with the proxy between them. One is killed; every other rank's
 * operation ends in a fault within the deadline; what they had opened closes, and whoever is left shrinks
 * the communicator, opens a new object on it, and its route, dispatch and combine give the reference's
 * bits. */
#include "ep_case.h"
#include "procs.h"

#include "tern/tern_net.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 24, TOPK = 4, ROW_BYTES = 512, ROUNDS_BEFORE = 3, MOST_ROUNDS = 1000, CASES = 3 };
enum { WINDOW_BYTES = 64 << 20 };

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { DEADLINE_MS = 12000 };
#else
enum { DEADLINE_MS = 5000 };
#endif
static const double slack = 8.0; /* seconds past the deadline, for a machine with other things to do */

struct plan {
    int num_ranks, victim;
    int whole_domains; /* else domains of one, over the network alone */
};

/* What a rank runs until one is lost. */
struct job {
    struct tern_comm *comm;
    struct tern_stream *stream;
    struct tern_ep *ep;
    struct tern_route *route;
    struct tern_route_args ids;
    struct tern_dispatch_args dispatch;
    struct tern_combine_args combine;
    struct tern_rows tokens, rows, sums;
};

static int job_take(struct job *j, uint64_t max_rows)
{
    static int64_t chosen[TOKENS][TOPK];
    int rank = tern_comm_rank(j->comm), experts = 4 * tern_comm_size(j->comm);
    void *topk_idx;

    for (int t = 0; t < TOKENS; t++) {
        for (int k = 0; k < TOPK; k++) { /* at four ranks far apart */
            chosen[t][k] = (rank + t + k * experts / TOPK) % experts;
        }
    }
    OK(tern_alloc(j->comm, TERN_MEMORY_DEVICE, sizeof chosen, &topk_idx));
    OK(tern_alloc(j->comm, TERN_MEMORY_DEVICE, TOKENS * ROW_BYTES, &j->tokens.data));
    OK(tern_alloc(j->comm, TERN_MEMORY_WINDOW, max_rows * ROW_BYTES, &j->rows.data));
    OK(tern_alloc(j->comm, TERN_MEMORY_DEVICE, TOKENS * ROW_BYTES, &j->sums.data));
    OK(tern_copy(j->comm, topk_idx, chosen, sizeof chosen, j->stream));
    OK(tern_fill(j->comm, j->tokens.data, 0x3f, TOKENS * ROW_BYTES, j->stream));
    OK(tern_stream_synchronize(j->comm, j->stream));
    j->tokens.row_bytes = j->rows.row_bytes = j->sums.row_bytes = ROW_BYTES;
    j->ids.topk_idx = topk_idx;
    j->ids.num_tokens = TOKENS;
    j->ids.topk = TOPK;
    j->dispatch.in = &j->tokens;
    j->dispatch.num_in = 1;
    j->dispatch.out = &j->rows;
    j->dispatch.out_rows = max_rows;
    j->combine.in = j->rows;
    j->combine.in_rows = max_rows;
    j->combine.out = j->sums;
    return 0;
}

static int job_open(struct job *j, const struct tern_id *id, int rank, int num_ranks)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_ep_config ep = TERN_EP_CONFIG_INIT;
    struct tern_route_args ids = TERN_ROUTE_ARGS_INIT;
    struct tern_dispatch_args dispatch = TERN_DISPATCH_ARGS_INIT;
    struct tern_combine_args combine = TERN_COMBINE_ARGS_INIT;
    uint64_t max_rows;

    memset(j, 0, sizeof *j);
    j->ids = ids;
    j->dispatch = dispatch;
    j->combine = combine;
    ep.num_experts = 4 * (uint32_t)num_ranks;
    ep.max_topk = TOPK;
    ep.max_tokens = TOKENS;
    ep.max_row_bytes = ROW_BYTES;
    OK(tern_ep_max_rows(&ep, num_ranks, TERN_LAYOUT_RANK, 1, &max_rows));
    config.machine = TERN_MACHINE_CPU;
    config.timeout_ms = DEADLINE_MS;
    config.heap_bytes = max_rows * ROW_BYTES + 65536;
    OK(tern_comm_open(id, rank, num_ranks, &config, &j->comm));
    OK(tern_stream_open(j->comm, &j->stream));
    PASS(job_take(j, max_rows));
    OK(tern_ep_open(j->comm, &ep, &j->ep));
    OK(tern_route_open(j->ep, &j->ids, j->stream, &j->route));
    return 0;
}

static int issue(struct job *j)
{
    OK(tern_route_update(j->route, &j->ids, j->stream));
    OK(tern_dispatch(j->route, &j->dispatch, j->stream));
    OK(tern_combine(j->route, &j->combine, j->stream));
    return 0;
}

/* Rounds until the victim is gone; it goes with operations under way. */
static int run_until_lost(struct job *j, int victim)
{
    int rank = tern_comm_rank(j->comm);
    enum tern_status status = TERN_OK;
    struct tern_fault f = TERN_FAULT_INIT;
    double begin = 0;
    int round = 0;

    for (; status == TERN_OK && round < MOST_ROUNDS; round++) {
        begin = test_seconds();
        PASS(issue(j));
        if (rank == victim && round == ROUNDS_BEFORE) {
            raise(SIGKILL);
        }
        status = tern_ep_synchronize(j->ep);
    }
    /* What the victim sent last may still have been on its way. */
    CHECK(round >= ROUNDS_BEFORE, "rank %d failed in round %d: %s", rank, round, tern_last_error());
    CHECK(status == TERN_TIMEOUT || status == TERN_DISCONNECTED, "rank %d: %s: %s", rank,
          tern_status_string(status), tern_last_error());
    CHECK(test_seconds() - begin < DEADLINE_MS * 1.25e-3 + slack, "rank %d: it took %.1f s", rank,
          test_seconds() - begin);
    OK(tern_fault_get(j->ep, &f));
    /* Who waits for one that waits for the victim may lose patience first; then that one hears of itself. */
    CHECK(f.rank == rank && f.peer >= 0 && f.peer != f.reporter,
          "rank %d: a record of rank %d about rank %d by rank %d", rank, f.rank, f.peer, f.reporter);
    return 0;
}

/* All but the communicator, which the shrinking needs; its windows go with it. */
static void job_close(struct job *j)
{
    tern_route_close(j->route);
    tern_ep_close(j->ep);
    tern_stream_close(j->comm, j->stream);
}

/* Random cases by the reference on the ranks that are left. A communicator serves one, and then the next is a
 * shrunk one again, of which nobody was lost. */
static int go_on(struct tern_comm *comm, int domain_ranks)
{
    struct ep_limits limits = {tern_comm_size(comm), TERN_MAX_RANKS, 40, 1024, 4 << 20};

    for (uint64_t seed = 1; seed <= CASES; seed++) {
        struct tern_comm *next = NULL;
        struct ep_case c;
        if (seed < CASES) {
            OK(tern_comm_shrink(comm, NULL, NULL, &next));
        }
        ep_case_draw(&c, seed, &limits);
        ep_case_cut(&c, domain_ranks, TERN_TRANSPORT_AUTO);
        PASS(ep_case_run_on(&c, comm));
        comm = next;
    }
    return 0;
}

static int body(int rank, struct procs_page *page, void *user)
{
    const struct plan *plan = (const struct plan *)user;
    struct tern_shrink_args args = TERN_SHRINK_ARGS_INIT;
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    int mate = plan->victim ^ 1, left = plan->num_ranks - (plan->whole_domains ? 2 : 1);
    struct tern_comm *shrunk = NULL;
    struct job j;

    test_quiet();
    setenv("TERN_DOMAIN_SIZE", "2", 1);
    PASS(job_open(&j, &page->id, rank, plan->num_ranks));
    PASS(run_until_lost(&j, plan->victim));
    job_close(&j);
    config.machine = TERN_MACHINE_CPU;
    config.heap_bytes = WINDOW_BYTES;
    args.config = &config;
    args.whole_domains = (uint32_t)plan->whole_domains;
    OK(tern_comm_shrink(j.comm, &args, NULL, &shrunk));
    tern_comm_close(j.comm);
    if (plan->whole_domains && rank == mate) {
        CHECK(!shrunk, "rank %d goes on without its domain", rank);
        return 0;
    }
    CHECK(tern_comm_size(shrunk) == left, "%d ranks are left, not %d", tern_comm_size(shrunk), left);
    return go_on(shrunk, plan->whole_domains ? 2 : 1);
}

static int run(int num_ranks, int victim, int whole_domains)
{
    struct plan plan = {num_ranks, victim, whole_domains};

    return procs_run(num_ranks, victim, 120, body, &plan);
}

static int two_by_two(struct test *t)
{
    (void)t;
    return run(4, 3, 0);
}

static int root(struct test *t)
{
    (void)t;
    return run(4, 0, 0);
}

static int three_by_two(struct test *t)
{
    (void)t;
    return run(6, 2, 1);
}

static int root_domain(struct test *t)
{
    (void)t;
    return run(6, 0, 1);
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "2 x 2 ranks lose one, and 3 go on as 3 x 1", two_by_two);
    test_run(&t, "2 x 2 ranks lose rank 0, and 3 go on as 3 x 1", root);
    test_run(&t, "3 x 2 ranks lose one, and go on as 2 x 2", three_by_two);
    test_run(&t, "3 x 2 ranks lose rank 0, and go on as 2 x 2", root_domain);
    return test_end(&t);
}
