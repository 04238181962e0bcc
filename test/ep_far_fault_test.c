/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects across domains where something is wrong: configurations and communicators that cannot be, and ranks
 * that come late or to another route. Every rank learns who it was, in whatever domain, and after a reset all
 * goes on. */
#include "comm/comm.h"
#include "far_scene.h"
#include "far_tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LATE_MS = 300 };

/* ---- What is refused ---- */

/* `of`: the domain of each rank, as far as the object can tell. */
static int refuse_domains(const int of[4], enum tern_status status, const char *text)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_ep_config ep = TERN_EP_CONFIG_INIT;
    struct tern_comm *comms[4];
    struct tern_ep *eps[4] = {NULL, NULL, NULL, NULL};
    int r;

    config.heap_bytes = 1 << 16;
    ep.num_experts = 4;
    ep.max_topk = 1;
    ep.max_tokens = 1;
    ep.max_row_bytes = 16;
    OK(tern_comm_open_all(4, &config, comms));
    for (r = 0; r < 4; r++) {
        memcpy(comms[r]->domain_of, of, 4 * sizeof *of);
    }
    REFUSES(tern_ep_open_all(4, comms, &ep, eps), status, text);
    for (r = 0; r < 4; r++) {
        CHECK(eps[r] == NULL, "a failed tern_ep_open_all wrote its output");
        tern_comm_close(comms[r]);
    }
    return 0;
}

static int shapes(struct test *t)
{
    static const int unequal[] = {0, 0, 0, 1}, in_turn[] = {0, 1, 0, 1}, behind[] = {0, 1, 1, 0};

    (void)t;
    PASS(refuse_domains(unequal, TERN_UNSUPPORTED,
                        "rank 0 is in a domain of 3 ranks, rank 3 in one of 1; domains of different size"));
    PASS(refuse_domains(in_turn, TERN_UNSUPPORTED,
                        "ranks 0 and 2 are in one domain of 2 ranks, and not all between them"));
    return refuse_domains(behind, TERN_UNSUPPORTED,
                          "ranks 0 and 3 are in one domain of 2 ranks, and not all between them");
}

/* A rank that asks for more than it can address, and what other domains do not have yet. */
static int refuse_configs(struct test *t)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_ep_config good = TERN_EP_CONFIG_INIT, c;
    struct tern_comm *comms[4];
    struct tern_ep *eps[4] = {NULL, NULL, NULL, NULL};
    int r;

    (void)t;
    config.heap_bytes = 1 << 16;
    good.num_experts = 4;
    good.max_topk = 1;
    good.max_tokens = 1;
    good.max_row_bytes = 16;
    good.domain_ranks = 2;
    setenv("TERN_DOMAIN_SIZE", "2", 1);
    OK(tern_comm_open_all(4, &config, comms));
    unsetenv("TERN_DOMAIN_SIZE");
    c = good;
    c.domain_ranks = 4;
    REFUSES(tern_ep_open_all(4, comms, &c, eps), TERN_INVALID_ARGUMENT,
            "domain_ranks is 4, but ranks 0 and 2 cannot address each other");
    c.domain_ranks = 3;
    REFUSES(tern_ep_open_all(4, comms, &c, eps), TERN_INVALID_ARGUMENT, "domain_ranks is 3");
    c = good;
    c.copy_engine = 1;
    REFUSES(tern_ep_open_all(4, comms, &c, eps), TERN_UNSUPPORTED, "copy_engine is 1, with 2 domains");
    c = good;
    c.transport = TERN_TRANSPORT_P2P;
    REFUSES(tern_ep_open_all(4, comms, &c, eps), TERN_UNSUPPORTED, "TERN_TRANSPORT_P2P");
    c = good;
    c.max_tokens = 0; /* low latency alone can be had, without rings of routes */
    c.max_row_bytes = 0;
    c.ll_tokens = 4;
    c.ll_hidden = 64;
    OK(tern_ep_open_all(4, comms, &c, eps));
    OK(tern_ep_reset_all(4, eps));
    for (r = 0; r < 4; r++) {
        tern_ep_close(eps[r]);
    }
    c = good;
    c.domain_ranks = 1; /* and smaller domains */
    OK(tern_ep_open_all(4, comms, &c, eps));
    for (r = 0; r < 4; r++) {
        tern_ep_close(eps[r]);
        tern_comm_close(comms[r]);
    }
    return 0;
}

static void close_eps(struct tern_ep **eps)
{
    for (int r = 0; r < 4; r++) {
        tern_ep_close(eps[r]);
        eps[r] = NULL;
    }
}

static void close_comms(int num_ranks, struct tern_comm **comms)
{
    for (int r = 0; r < num_ranks; r++) {
        tern_comm_close(comms[r]);
    }
}

/* Domains of two ranks; a message has many weights behind its payload. */
static struct tern_ep_config small(void)
{
    struct tern_ep_config c = TERN_EP_CONFIG_INIT;
    c.num_experts = 4;
    c.max_topk = 64;
    c.max_tokens = 1;
    c.max_row_bytes = 16;
    c.domain_ranks = 2;
    c.transfer = TERN_TRANSFER_PLAIN;
    return c;
}

/* The longest rows that `num_ranks` can have, two a domain. */
static int longest_rows(const struct tern_comm_config *config, int num_ranks, uint32_t *bytes)
{
    struct tern_ep *eps[4] = {NULL, NULL, NULL, NULL};
    struct tern_ep_config c = small();
    struct tern_comm *comms[4];

    OK(tern_comm_open_all(num_ranks, config, comms));
    for (*bytes = 232448; *bytes > 200000; *bytes -= 64) {
        c.max_row_bytes = *bytes;
        if (tern_ep_open_all(num_ranks, comms, &c, eps) == TERN_OK) {
            break;
        }
        CHECK(strstr(tern_last_error(), "rows are too long") != NULL, "%s", tern_last_error());
    }
    close_eps(eps);
    close_comms(num_ranks, comms);
    CHECK(*bytes > 200000, "no row is short enough: %s", tern_last_error());
    return 0;
}

/* What no operation could be given is refused when the object opens. Of a rank's processors; then rows that
 * just fit inside a domain, but not with what a message to another domain has behind them and what a block
 * keeps of its streams and of queue pairs: 8 KiB at most. */
static int refuse_early(struct test *t)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_ep *eps[4] = {NULL, NULL, NULL, NULL};
    struct tern_ep_config c = small();
    struct tern_comm *comms[4];
    uint32_t bytes, across;

    (void)t;
    config.heap_bytes = 1 << 16;
    config.machine = TERN_MACHINE_CPU;
    setenv("TERN_CPU_SMS", "2", 1);
    OK(tern_comm_open_all(4, &config, comms));
    unsetenv("TERN_CPU_SMS");
    REFUSES(tern_ep_open_all(4, comms, &c, eps), TERN_UNSUPPORTED,
            "an operation across domains has 3 roles, with a processor each; this rank has 2");
    c.domain_ranks = 4;
    OK(tern_ep_open_all(4, comms, &c, eps));
    close_eps(eps);
    close_comms(4, comms);
    PASS(longest_rows(&config, 2, &bytes));
    PASS(longest_rows(&config, 4, &across));
    CHECK(across < bytes && across >= bytes - 8192, "rows of %u bytes in a domain, of %u across", bytes,
          across);
    OK(tern_comm_open_all(4, &config, comms));
    c = small();
    c.max_row_bytes = bytes;
    REFUSES(tern_ep_open_all(4, comms, &c, eps), TERN_UNSUPPORTED, "rows are too long");
    close_comms(4, comms);
    return 0;
}

/* ---- Who is late ---- */

static int issue(struct far_scene *s, int rank)
{
    struct tern_route_args args = batch_args(&s->batch, rank);

    OK(tern_route_update(s->batch.routes[rank], &args, s->world.members[rank].lanes[0]));
    return 0;
}

/* Every rank's record is about `culprit`; one at least was written by a rank of another domain of its own. */
static int judge(struct far_scene *s, int culprit, enum tern_status status)
{
    char name[32];
    int r;

    snprintf(name, sizeof name, "rank %d", culprit);
    for (r = 0; r < s->world.num_ranks; r++) {
        struct tern_fault f = TERN_FAULT_INIT;
        REFUSES(tern_ep_synchronize(s->eps[r]), status, name);
        OK(tern_fault_get(s->eps[r], &f));
        CHECK(f.rank == r && f.peer == culprit && f.operation == TERN_OP_ROUTE,
              "rank %d: a record of rank %d about rank %d: %s", r, f.rank, f.peer, tern_last_error());
        CHECK(f.reporter >= 0 && f.reporter < s->world.num_ranks && f.reporter != culprit,
              "rank %d was told by rank %d", r, f.reporter);
        CHECK(f.reporter != r || f.late[0] == 1ull << culprit ||
                  r / s->c->domain_ranks == culprit / s->c->domain_ranks,
              "rank %d: late ranks are 0x%llx", r, (unsigned long long)f.late[0]);
    }
    return 0;
}

/* As new: routes are opened again, and the tables of the reset count from 1. */
static int go_on(struct far_scene *s)
{
    OK(tern_ep_reset_all(s->world.num_ranks, s->eps));
    batch_close(&s->batch);
    PASS(batch_open(&s->batch, s->eps, 0));
    PASS(batch_update(&s->batch, 0));
    PASS(batch_check_counts(&s->batch));
    return world_ep_synchronize(&s->world, s->eps);
}

static int come_late(struct far_scene *s, int culprit)
{
    double begin;
    int r;

    PASS(far_open(s, LATE_MS));
    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batch, s->eps, 0));
    PASS(batch_check_counts(&s->batch));
    PASS(world_ep_synchronize(&s->world, s->eps));
    begin = test_seconds();
    for (r = 0; r < s->world.num_ranks; r++) {
        PASS(r == culprit ? TEST_PASSED : issue(s, r));
    }
    for (r = 0; r < s->world.num_ranks; r++) {
        EXPECT(r == culprit ? TERN_TIMEOUT : tern_ep_synchronize(s->eps[r]), TERN_TIMEOUT);
    }
    CHECK(test_seconds() - begin < 20 * LATE_MS * 1e-3, "it took %.1f s", test_seconds() - begin);
    PASS(issue(s, culprit)); /* it finds the others' verdict */
    PASS(judge(s, culprit, TERN_TIMEOUT));
    return go_on(s);
}

struct cut {
    int domains, ranks, by_proxy;
};

static void begin_cut(struct far_scene *s, struct far_case *c, uint64_t seed, const struct cut *cut)
{
    far_draw(c, seed, cut->domains, cut->ranks, 20);
    c->by_proxy = cut->by_proxy;
    far_begin(s, c);
}

static int late(struct test *t)
{
    static const struct {
        struct cut cut;
        int culprit;
    } cases[] = {{{2, 2, 0}, 1}, {{2, 2, 1}, 2}, {{3, 2, 0}, 4}, {{4, 1, 0}, 0}, {{2, 4, 1}, 7}};
    size_t i;

    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct far_case c;
        struct far_scene s;
        int result;
        begin_cut(&s, &c, 77 + i, &cases[i].cut);
        result = come_late(&s, cases[i].culprit);
        far_end(&s);
        CHECK(!result, "rank %d of %d domains of %d%s", cases[i].culprit, cases[i].cut.domains,
              cases[i].cut.ranks, c.by_proxy ? ", by proxy" : "");
    }
    test_detail(t, "%d worlds", (int)i);
    return 0;
}

/* ---- How a verdict travels ---- */

/* One rank alone knows that all is over. It goes out; the others, long before their deadline, do as well. */
static int tell(struct far_scene *s, int first, int culprit)
{
    uint64_t *word;
    double begin;
    int r;

    PASS(far_open(s, 60000));
    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batch, s->eps, 0));
    PASS(world_ep_synchronize(&s->world, s->eps));
    word = (uint64_t *)s->world.members[first].scratch;
    *word = far_verdict(culprit, first);
    OK(tern_copy(s->world.members[first].comm, far_abort_of(s->batch.routes[first]), word, sizeof *word,
                 s->world.members[first].lanes[0]));
    PASS(world_synchronize(&s->world));
    begin = test_seconds();
    for (r = 0; r < s->world.num_ranks; r++) {
        PASS(issue(s, r));
    }
    for (r = 0; r < s->world.num_ranks; r++) {
        if (tern_ep_synchronize(s->eps[r]) == TERN_OK) { /* it had all of that route before it was told */
            PASS(issue(s, r));
        }
    }
    for (r = 0; r < s->world.num_ranks; r++) {
        struct tern_fault f = TERN_FAULT_INIT;
        EXPECT(tern_ep_synchronize(s->eps[r]), TERN_TIMEOUT);
        OK(tern_fault_get(s->eps[r], &f));
        CHECK(f.rank == r && f.peer == culprit && f.reporter == first, "rank %d: %s", r, tern_last_error());
    }
    CHECK(test_seconds() - begin < 20, "it took %.1f s", test_seconds() - begin);
    return go_on(s);
}

static int verdict(struct test *t)
{
    static const struct {
        struct cut cut;
        int first, culprit;
    } cases[] = {{{2, 2, 0}, 0, 3}, {{2, 2, 1}, 3, 0}, {{3, 3, 0}, 4, 8}};
    size_t i;

    (void)t;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct far_case c;
        struct far_scene s;
        int result;
        begin_cut(&s, &c, 177 + i, &cases[i].cut);
        result = tell(&s, cases[i].first, cases[i].culprit);
        far_end(&s);
        PASS(result);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "domains of different size, or not one after the other, are refused", shapes);
    test_run(&t, "what other domains cannot have is refused", refuse_configs);
    test_run(&t, "what no operation could be given is refused early", refuse_early);
    test_run(&t, "a rank that comes late is named in every domain", late);
    test_run(&t, "what one rank knows, all learn", verdict);
    return test_end(&t);
}
