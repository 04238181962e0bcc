/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks as processes that share window memory: random cases against the reference. Every process draws all
 * ranks' images from the seed and judges its own. */
#include "ep_case.h"
#include "procs.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static int run_case(int rank, struct procs_page *page, void *user)
{
    const struct ep_case *c = (const struct ep_case *)user;

    return ep_case_run(c, rank, &page->id);
}

/* On GPUs a case costs seconds of driver start in every process. */
enum { GPU_CASES_PER_CENT = 15 };

static int run_cases(struct test *t, int num_ranks, int count)
{
    const char *machine = getenv("TERN_MACHINE");
    int scaled =
        test_scaled(t, machine && strcmp(machine, "cuda") == 0 ? count * GPU_CASES_PER_CENT / 100 : count);
    struct ep_limits limits = ep_case_limits(t);
    uint64_t first = t->has_seeds ? t->seeds[0] : 5000 + 100 * (uint64_t)num_ranks;
    uint64_t last = t->has_seeds ? t->seeds[1] : first + (uint64_t)scaled - 1;
    uint64_t seed;
    int result = 0;

    limits.num_ranks = num_ranks;
    limits.max_bytes /= 4;
    for (seed = first; seed <= last && !result; seed++) {
        struct ep_case c;
        ep_case_draw(&c, seed, &limits);
        c.deterministic = (int)(seed % 2); /* the other half runs while hosts do something else */
        result = procs_run(num_ranks, -1, 120, run_case, &c);
    }
    test_detail(t, "seeds %llu-%llu", (unsigned long long)first, (unsigned long long)seed - 1);
    return result;
}

static int two(struct test *t) { return run_cases(t, 2, 20); }
static int four(struct test *t) { return run_cases(t, 4, 40); }
static int eight(struct test *t) { return run_cases(t, 8, 20); }

enum { POOR_RANKS = 3, POOR = 1 };

/* Rank 1 may take no more than it has. */
static int limit_memory(struct rlimit *before)
{
    struct rlimit poor;

    CHECK(getrlimit(RLIMIT_AS, before) == 0, "getrlimit failed");
    poor = *before;
    poor.rlim_cur = (rlim_t)1 << 20;
    CHECK(setrlimit(RLIMIT_AS, &poor) == 0, "setrlimit failed");
    return 0;
}

/* An object opens everywhere or nowhere, and the reason reaches everybody; the communicator stays as it
 * was. */
static int poor_body(int rank, struct procs_page *page, void *user)
{
    struct tern_comm_config machine = TERN_COMM_CONFIG_INIT;
    struct tern_ep_config config = TERN_EP_CONFIG_INIT;
    struct tern_comm *comm;
    struct tern_ep *ep;
    struct rlimit before;

    (void)user;
    test_quiet();
    machine.machine = TERN_MACHINE_CPU; /* the limit is on the host's memory */
    config.num_experts = POOR_RANKS;
    config.max_topk = 2;
    config.max_tokens = 4096;
    config.max_row_bytes = 4096;
    OK(tern_comm_open(&page->id, rank, POOR_RANKS, &machine, &comm));
    if (rank == POOR) {
        PASS(limit_memory(&before));
    }
    REFUSES(tern_ep_open(comm, &config, &ep), TERN_OUT_OF_MEMORY, rank == POOR ? "bytes" : "rank 1");
    if (rank == POOR) {
        CHECK(setrlimit(RLIMIT_AS, &before) == 0, "setrlimit failed");
    }
    OK(tern_ep_open(comm, &config, &ep));
    tern_ep_close(ep);
    tern_comm_close(comm);
    return 0;
}

#if defined(TERN_THREAD_SANITIZER) || defined(TERN_ASAN)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static int poor(struct test *t)
{
    if (SANITIZED) {
        return test_skip(t, "sanitizers need more address space than a limit leaves");
    }
    return procs_run(POOR_RANKS, -1, 60, poor_body, NULL);
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "random cases, ranks in 2 processes", two);
    test_run(&t, "random cases, ranks in 4 processes", four);
    test_run(&t, "random cases, ranks in 8 processes", eight);
    test_run(&t, "a rank without memory", poor);
    return test_end(&t);
}
