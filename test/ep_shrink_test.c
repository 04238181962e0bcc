/* SPDX-License-Identifier: Apache-2.0
 *
 * A job that loses a rank in the middle of its operations and goes on without it, in the same processes.
 * Ranks are processes, domains of two with the proxy between them, or domains of two or one with NICs in
 * software, that copy, or speak packets over a network that errs. One is killed; every other rank's
 * operation ends in a fault within the deadline, and of them some name the one that is lost; what they had
 * opened closes, and whoever is left shrinks the communicator, opens a new object on it, and its route,
 * dispatch and combine, or those of low latency, give the reference's bits. */
#include "ep_case.h"
#include "ll_case.h"
#include "procs.h"
#include "shrink_job.h"

#include "tern/tern_net.h"

#include <stdlib.h>
#include <string.h>

enum { CASES = 3, WINDOW_BYTES = 64 << 20 };

#if defined(TERN_THREAD_SANITIZER) || defined(TERN_ASAN)
enum { DEADLINE_MS = 12000 };
#else
enum { DEADLINE_MS = 5000 };
#endif
/* Under ThreadSanitizer the threads of many processors take longer than that. */
#ifdef TERN_THREAD_SANITIZER
enum { SMS = 4 };
#else
enum { SMS = 0 };
#endif

struct plan {
    struct job_plan job;
    int whole_domains;   /* else domains of one go on, over the network alone */
    const char *softnic; /* TERN_SOFTNIC; NULL: there are no NICs, domains are cut, and the proxy carries */
};

/* One random case by the reference. */
static int run_case(const struct plan *plan, uint64_t seed, struct tern_comm *comm)
{
    struct ep_limits limits = {tern_comm_size(comm), TERN_MAX_RANKS, 40, 1024, 4 << 20};
    int domain_ranks = plan->whole_domains ? 2 : 1;
    struct ep_case c;
    struct ll_case ll;

    if (plan->job.low_latency) {
        ll_case_draw(&ll, seed, tern_comm_size(comm), 1);
        ll_case_cut(&ll, domain_ranks, plan->job.transport);
        return ll_case_run_on(&ll, comm);
    }
    ep_case_draw(&c, seed, &limits);
    ep_case_cut(&c, domain_ranks, plan->job.transport);
    return ep_case_run_on(&c, comm);
}

/* On the ranks that are left. A communicator serves one case, and then the next is a shrunk one again, of
 * which nobody was lost. */
static int go_on(const struct plan *plan, struct tern_comm *comm)
{
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        struct tern_comm *next = NULL;
        if (seed < CASES) {
            OK(tern_comm_shrink(comm, NULL, NULL, &next));
        }
        PASS(run_case(plan, seed, comm));
        comm = next;
    }
    return 0;
}

static void choose_network(const struct plan *plan)
{
    if (plan->softnic == NULL) {
        setenv("TERN_DOMAIN_SIZE", "2", 1);
    } else {
        setenv("TERN_SOFTNIC", plan->softnic, 1);
    }
}

/* All that are left have marked whom they blame, before any of them came so far. */
static int check_blame(const struct plan *plan, const struct procs_page *page)
{
    int named = 0;

    for (int r = 0; r < plan->job.num_ranks; r++) {
        named += page->marks[r] == 1 + plan->job.victim;
    }
    CHECK(named > 0, "no rank names rank %d", plan->job.victim);
    return 0;
}

static int body(int rank, struct procs_page *page, void *user)
{
    const struct plan *plan = (const struct plan *)user;
    struct tern_shrink_args args = TERN_SHRINK_ARGS_INIT;
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    int victim = plan->job.victim, left = plan->job.num_ranks - (plan->whole_domains ? 2 : 1), blamed;
    struct tern_comm *shrunk = NULL;
    uint64_t packets;
    struct job j;

    test_quiet();
    choose_network(plan);
    PASS(job_open(&j, &plan->job, &page->id, rank));
    PASS(job_run(&j, &blamed));
    page->marks[rank] = 1 + blamed;
    PASS(job_packets(&j, &packets));
    CHECK((packets != 0) == (plan->softnic && *plan->softnic), "%llu packets were sent",
          (unsigned long long)packets);
    job_close(&j);
    config.machine = TERN_MACHINE_CPU;
    config.heap_bytes = WINDOW_BYTES;
    args.config = &config;
    args.whole_domains = (uint32_t)plan->whole_domains;
    OK(tern_comm_shrink(j.comm, &args, NULL, &shrunk));
    tern_comm_close(j.comm);
    PASS(check_blame(plan, page));
    if (plan->whole_domains && rank == (victim ^ 1)) {
        CHECK(!shrunk, "rank %d goes on without its domain", rank);
        return 0;
    }
    CHECK(tern_comm_size(shrunk) == left, "%d ranks are left, not %d", tern_comm_size(shrunk), left);
    return go_on(plan, shrunk);
}

static int run(int num_ranks, int victim, int whole_domains)
{
    struct plan plan = {
        {num_ranks, victim, 0, 0, TERN_TRANSPORT_AUTO, DEADLINE_MS, 1, SMS}, whole_domains, NULL};

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

/* ---- By NICs in software ---- */

struct loss {
    uint32_t domain_ranks;
    int victim, low_latency, fate;
};

/* Domains of two lose their last rank, those of one the first: in the middle of a dispatch or combine.
 * Whoever sends to it or waits for it then has nothing but the network to know it by, so NICs that copy, and
 * know nothing, lose it before the first word of the round. */
static int by_nics(const struct test *t, const char *softnic)
{
    static const struct loss losses[] = {{2, 3, 0, 1}, {1, 0, 1, 3}, {2, 3, 1, 2}, {1, 0, 0, 4}};

    for (int i = 0; i < (t->scale < 100 ? 2 : 4); i++) {
        const struct loss *x = &losses[i];
        struct plan plan = {{4, x->victim, x->low_latency, x->domain_ranks, TERN_TRANSPORT_SOFTNIC,
                             DEADLINE_MS, *softnic ? x->fate : 0, 0},
                            0,
                            softnic};
        int result = procs_run(4, x->victim, 120, body, &plan);
        if (result) {
            test_note(__FILE__, __LINE__, "domains of %u, %s", x->domain_ranks,
                      x->low_latency ? "low latency" : "high throughput");
            return result;
        }
    }
    return 0;
}

/* What a NIC copies out of an out-box is written again after a word that the peer's NIC, another process's,
 * has set: ThreadSanitizer does not see that order. By packets the rank's own NIC sets such words. */
static int copies(struct test *t)
{
#ifdef TERN_THREAD_SANITIZER
    return test_skip(t, "ThreadSanitizer does not see order that comes from another process");
#else
    return by_nics(t, "");
#endif
}

static int packets(struct test *t) { return by_nics(t, "packets:5"); }

static int adaptive(struct test *t) { return by_nics(t, "adaptive:6"); }

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "2 x 2 ranks lose one, and 3 go on as 3 x 1", two_by_two);
    test_run(&t, "2 x 2 ranks lose rank 0, and 3 go on as 3 x 1", root);
    test_run(&t, "3 x 2 ranks lose one, and go on as 2 x 2", three_by_two);
    test_run(&t, "3 x 2 ranks lose rank 0, and go on as 2 x 2", root_domain);
    test_run(&t, "2 x 2 and 4 x 1 ranks by NICs in software", copies);
    test_run(&t, "2 x 2 and 4 x 1 ranks by packets over a network that errs", packets);
    test_run(&t, "2 x 2 and 4 x 1 ranks by packets with adaptive routing", adaptive);
    return test_end(&t);
}
