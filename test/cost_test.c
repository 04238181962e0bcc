/* SPDX-License-Identifier: Apache-2.0
 *
 * What route, dispatch and combine cost on the cpu machine, those of low latency too, inside a domain and
 * across domains, in units that no clock measures. test/cost.sh compares the figures with test/cost.expected;
 * it runs this program in two other ways:
 *
 *     cost_test --counts           a line for every case and operation, with the executor's counters
 *     cost_test --rounds CASE N    N rounds of one case and nothing else, for callgrind
 *
 * On its own the program shows that the figures mean something: results are right while they are taken, and
 * every schedule gives the same ones, so that they can be compared exactly. Across domains warps of dispatch
 * and combine do other work while they wait, and credits of chunks that are read at once go together: there
 * some counters, which trait_of names, are the same about, and some are of no use. */
#include "cost.h"
#include "ll_batch.h"
#include "ll_words.h"
#include "scene.h"

#include "tern/tern_net.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, EXPERTS = 64, TOPK = 8, ROW_BYTES = 1024, SMS = 4, SCHEDULES = 3, FIRST_SCHEDULE = 11 };
enum { OP_ROUTE, OP_DISPATCH, OP_COMBINE, NUM_OPS };
enum { ABOUT = 10 }; /* a counter that is the same about differs by less than a part in so many */

static const char *const op_names[NUM_OPS] = {"route", "dispatch", "combine"};

/* Low latency: rows that go as those of many tokens do; railed; or as so few go, in words and over blanks. */
enum { MANY = 1, RAILED, BLANK };

/* Who carries what goes to another domain. */
enum carrier { BY_STORES, BY_PROXY, BY_NIC };

struct cost_case {
    const char *name;
    uint32_t layout, tokens;
    uint32_t low_latency; /* or 0; `layout` is then an enum tern_ll_layout, and there is no route */
    uint32_t cast, weights;
    uint32_t group; /* ranks of a domain; 0: there is one */
    enum carrier carrier;
};

static const struct cost_case cases[] = {
    {"rank-256", TERN_LAYOUT_RANK, 256, 0, 0, 0, 0, BY_STORES},
    {"rank-1", TERN_LAYOUT_RANK, 1, 0, 0, 0, 0, BY_STORES},
    {"expert-256", TERN_LAYOUT_EXPERT, 256, 0, 0, 0, 0, BY_STORES},
    {"expert-1", TERN_LAYOUT_EXPERT, 1, 0, 0, 0, 0, BY_STORES},
    {"ll-expert-32", TERN_LL_BY_EXPERT, 32, MANY, TERN_CAST_NONE, TERN_LL_WEIGHTS_AT_COMBINE, 0, BY_STORES},
    {"ll-expert-1", TERN_LL_BY_EXPERT, 1, BLANK, TERN_CAST_NONE, TERN_LL_WEIGHTS_AT_COMBINE, 0, BY_STORES},
    {"ll-summed-2", TERN_LL_BY_EXPERT, 2, BLANK, TERN_CAST_FP8, TERN_LL_WEIGHTS_AT_DISPATCH, 0, BY_STORES},
    {"ll-summed-32", TERN_LL_BY_EXPERT, 32, MANY, TERN_CAST_FP8, TERN_LL_WEIGHTS_AT_DISPATCH, 0, BY_STORES},
    {"ll-blank-32", TERN_LL_BY_EXPERT, 32, BLANK, TERN_CAST_FP8, TERN_LL_WEIGHTS_AT_DISPATCH, 0, BY_STORES},
    {"ll-ahead-32", TERN_LL_BY_EXPERT, 32, BLANK, TERN_CAST_FP8, TERN_LL_WEIGHTS_AHEAD, 0, BY_STORES},
    {"ll-rank-32", TERN_LL_BY_RANK, 32, MANY, TERN_CAST_FP8, TERN_LL_WEIGHTS_AT_DISPATCH, 0, BY_STORES},
    {"far-rank-64", TERN_LAYOUT_RANK, 64, 0, 0, 0, 2, BY_STORES},
    {"far-rank-1", TERN_LAYOUT_RANK, 1, 0, 0, 0, 2, BY_STORES},
    {"far-expert-64", TERN_LAYOUT_EXPERT, 64, 0, 0, 0, 2, BY_STORES},
    {"far-alone-64", TERN_LAYOUT_RANK, 64, 0, 0, 0, 1, BY_STORES},
    {"far-ll-expert-32", TERN_LL_BY_EXPERT, 32, MANY, TERN_CAST_NONE, TERN_LL_WEIGHTS_AT_COMBINE, 2,
     BY_STORES},
    {"far-ll-summed-32", TERN_LL_BY_EXPERT, 32, MANY, TERN_CAST_FP8, TERN_LL_WEIGHTS_AT_DISPATCH, 2,
     BY_STORES},
    {"far-ll-rank-32", TERN_LL_BY_RANK, 32, MANY, TERN_CAST_FP8, TERN_LL_WEIGHTS_AT_DISPATCH, 2, BY_STORES},
    {"proxy-rank-64", TERN_LAYOUT_RANK, 64, 0, 0, 0, 2, BY_PROXY},
    {"proxy-ll-expert-32", TERN_LL_BY_EXPERT, 32, MANY, TERN_CAST_NONE, TERN_LL_WEIGHTS_AT_COMBINE, 2,
     BY_PROXY},
    {"proxy-ll-rank-32", TERN_LL_BY_RANK, 32, MANY, TERN_CAST_FP8, TERN_LL_WEIGHTS_AT_DISPATCH, 2, BY_PROXY},
    {"nic-rank-64", TERN_LAYOUT_RANK, 64, 0, 0, 0, 2, BY_NIC},
    {"nic-ll-expert-32", TERN_LL_BY_EXPERT, 32, MANY, TERN_CAST_NONE, TERN_LL_WEIGHTS_AT_COMBINE, 2, BY_NIC},
    {"nic-ll-rank-32", TERN_LL_BY_RANK, 32, MANY, TERN_CAST_FP8, TERN_LL_WEIGHTS_AT_DISPATCH, 2, BY_NIC},
    {"rail-expert-32", TERN_LL_BY_EXPERT, 32, RAILED, TERN_CAST_NONE, TERN_LL_WEIGHTS_AT_COMBINE, 2,
     BY_STORES},
    {"rail-summed-32", TERN_LL_BY_EXPERT, 32, RAILED, TERN_CAST_FP8, TERN_LL_WEIGHTS_AT_DISPATCH, 2,
     BY_STORES},
    {"rail-rank-32", TERN_LL_BY_RANK, 32, RAILED, TERN_CAST_FP8, TERN_LL_WEIGHTS_AT_DISPATCH, 2, BY_STORES},
    {"nic-rail-rank-32", TERN_LL_BY_RANK, 32, RAILED, TERN_CAST_FP8, TERN_LL_WEIGHTS_AT_DISPATCH, 2, BY_NIC},
};

enum { NUM_CASES = sizeof cases / sizeof *cases };

/* How a counter of an operation can be compared. */
enum trait { EXACT, SAME_ABOUT, OF_NO_USE };

static enum trait trait_of(const struct cost_case *c, int op, int counter)
{
    uint32_t looks = c->group && !c->low_latency && op != OP_ROUTE; /* for other work, while it waits */
    uint32_t words = c->low_latency == BLANK;
    enum trait credits = looks && op == OP_COMBINE ? SAME_ABOUT : EXACT;

    if (c->carrier != BY_STORES && counter < COST_REQUESTS) {
        return OF_NO_USE; /* how kernels wait for threads of the host is of the machine */
    }
    if (counter == COST_ATOMICS && op == OP_DISPATCH && !c->low_latency && !c->group) {
        return SAME_ABOUT; /* a warp that stops early asks for one token fewer */
    }
    switch (counter) {
    case COST_BALLOT: /* in words, one a look */
    case COST_SHFL:   /* a poster finds letters in more or fewer rounds */
    case COST_MATCH:
    case COST_ATOMICS:
        return looks || (words && counter != COST_ATOMICS) ? OF_NO_USE : EXACT;
    case COST_SYNC_WARP:
    case COST_BULK_WAITS:
    case COST_PROXY_FENCES:
        return looks ? SAME_ABOUT : EXACT;
    case COST_RELEASES:
    case COST_REQUESTS:
    case COST_ENTRIES:
        return credits;
    default:
        return EXACT;
    }
}

struct costs {
    uint64_t counts[NUM_OPS][COST_COUNTERS];
};

/* What a case takes: a scene with a batch, or for low latency with none, and this one. */
struct stage {
    struct scene scene;
    struct ll_batch ll;
    int forbids_words;
};

static void stage_low_latency(struct stage *x, const struct cost_case *c, const struct batch_shape *shape)
{
    struct ll_shape ll;
    int r;

    memset(&ll, 0, sizeof ll);
    ll.batch = *shape;
    ll.hidden = ROW_BYTES / 2;
    ll.layout = c->layout;
    ll.cast = c->cast;
    ll.weights = c->weights;
    ll.railed = c->low_latency == RAILED;
    x->forbids_words = c->low_latency == MANY;
    ll_batch_init(&x->ll, &x->scene.world, x->scene.eps, &ll, &x->scene.rng);
    for (r = 0; r < RANKS; r++) {
        x->ll.ranks[r].num_sms = SMS;
    }
    ll_config_add(&x->scene.config, &ll, 1);
    x->scene.rng.state = 257; /* whatever has been drawn so far */
    ll_batch_redraw_ids(&x->ll, ROUTING_UNIFORM, &x->scene.rng);
}

static void stage_domains(struct scene *s, const struct cost_case *c)
{
    static const uint32_t transports[] = {TERN_TRANSPORT_AUTO, TERN_TRANSPORT_PROXY, TERN_TRANSPORT_SOFTNIC};

    s->world.domain_ranks = (int)c->group;
    s->config.domain_ranks = c->group;
    s->config.transport = transports[c->carrier];
    s->free_running = c->carrier != BY_STORES;
}

/* The ids are the same for every schedule. */
static void stage(struct stage *x, const struct cost_case *c, uint64_t schedule)
{
    struct batch_shape shape = {EXPERTS, TOPK, 8, 0, 0, 0, 1, ROUTING_UNIFORM};
    struct scene *s = &x->scene;

    memset(x, 0, sizeof *x);
    shape.max_tokens = c->tokens;
    scene_init(s, RANKS, 256);
    stage_domains(s, c);
    s->config.num_experts = EXPERTS;
    s->config.max_topk = TOPK;
    s->config.max_tokens = c->tokens;
    s->config.max_row_bytes = ROW_BYTES;
    s->config.num_sms = SMS;
    s->row_bytes = ROW_BYTES;
    if (c->low_latency) {
        stage_low_latency(x, c, &shape);
    } else {
        shape.layout = c->layout;
        shape.alignment = c->layout == TERN_LAYOUT_EXPERT ? 8 : 0;
        scene_add(s, &shape, 0);
    }
    s->rng.state = schedule;
}

static void read_counts(struct scene *s, uint64_t counts[COST_COUNTERS])
{
    cost_read(s->world.members[0].lanes[0], counts);
    cost_read_networks(s->eps, RANKS, counts);
}

/* What has been asked of the executor since `counts` were read; reads them anew, when the kernels have ended:
 * an operation is over before that. */
static int take(struct scene *s, uint64_t counts[COST_COUNTERS], uint64_t spent[COST_COUNTERS])
{
    uint64_t before[COST_COUNTERS];
    int i;

    PASS(world_ep_synchronize(&s->world, s->eps));
    PASS(world_synchronize(&s->world));
    memcpy(before, counts, sizeof before);
    read_counts(s, counts);
    for (i = 0; i < COST_COUNTERS; i++) {
        spent[i] = counts[i] - before[i];
    }
    return 0;
}

/* One operation of each kind on all ranks; the route is open. */
static int measure(struct scene *s, struct costs *costs)
{
    uint64_t counts[COST_COUNTERS];

    PASS(world_upload(&s->world));
    read_counts(s, counts);
    PASS(batch_update(&s->batches[0], 0));
    PASS(take(s, counts, costs->counts[OP_ROUTE]));
    PASS(dispatch_issue(&s->dispatches[0], 0));
    PASS(take(s, counts, costs->counts[OP_DISPATCH]));
    PASS(combine_issue(&s->combines[0], 0));
    return take(s, counts, costs->counts[OP_COMBINE]);
}

static int measure_low_latency(struct stage *x, struct costs *costs)
{
    struct scene *s = &x->scene;
    uint64_t counts[COST_COUNTERS];

    PASS(world_upload(&s->world));
    read_counts(s, counts);
    PASS(ll_dispatch_issue(&x->ll, TERN_LL_BOTH, 0));
    PASS(take(s, counts, costs->counts[OP_DISPATCH]));
    PASS(ll_combine_issue(&x->ll, TERN_LL_BOTH, 0));
    PASS(take(s, counts, costs->counts[OP_COMBINE]));
    ll_expect_dispatch(&x->ll); /* every time, for the sums */
    return 0;
}

static int run_low_latency(struct stage *x, int rounds, struct costs *costs)
{
    int i;

    PASS(scene_open(&x->scene));
    for (i = 0; i < RANKS && x->forbids_words; i++) {
        ll_words_forbid(x->scene.eps[i]);
    }
    for (i = 0; i < rounds; i++) {
        PASS(measure_low_latency(x, costs));
    }
    ll_expect_combine(&x->ll);
    return world_verify(&x->scene.world, "the measured round");
}

static int run(struct stage *x, int rounds, struct costs *costs)
{
    struct scene *s = &x->scene;
    int i;

    PASS(scene_open(s));
    scene_refill(s, 0);
    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batches[0], s->eps, 0));
    for (i = 0; i < rounds; i++) {
        PASS(measure(s, costs));
    }
    dispatch_expect(&s->dispatches[0]);
    combine_expect(&s->combines[0]);
    return world_verify(&s->world, "the measured round");
}

static int cost_of(const struct cost_case *c, uint64_t schedule, int rounds, struct costs *costs)
{
    struct stage x;
    int result;

    memset(costs, 0, sizeof *costs);
    stage(&x, c, schedule);
    result = c->low_latency ? run_low_latency(&x, rounds, costs) : run(&x, rounds, costs);
    ll_batch_fini(&x.ll);
    scene_fini(&x.scene);
    return result;
}

/* ---- For cost.sh ---- */

static void print_operation(const struct cost_case *c, int op, const uint64_t counts[COST_COUNTERS])
{
    int n;

    printf("%s %s", c->name, op_names[op]);
    for (n = 0; n < COST_COUNTERS; n++) {
        enum trait trait = trait_of(c, op, n);
        if (counts[n] && trait != OF_NO_USE) {
            printf(" %s%c%" PRIu64, cost_name(n), trait == EXACT ? '=' : '~', counts[n]);
        }
    }
    printf("\n");
}

static int print_counts(void)
{
    struct costs costs;
    int i, op;

    for (i = 0; i < NUM_CASES; i++) {
        if (cost_of(&cases[i], FIRST_SCHEDULE, 1, &costs)) {
            return 1;
        }
        for (op = cases[i].low_latency ? OP_DISPATCH : OP_ROUTE; op < NUM_OPS; op++) {
            print_operation(&cases[i], op, costs.counts[op]);
        }
    }
    return 0;
}

static int run_rounds(const char *name, int rounds)
{
    struct costs costs;
    int i;

    for (i = 0; i < NUM_CASES; i++) {
        if (!strcmp(cases[i].name, name)) {
            return cost_of(&cases[i], FIRST_SCHEDULE, rounds, &costs) != 0;
        }
    }
    fprintf(stderr, "cost_test: there is no case %s\n", name);
    return 2;
}

/* ---- By itself ---- */

static int is_same(enum trait trait, uint64_t a, uint64_t b)
{
    uint64_t apart = a < b ? b - a : a - b;

    return trait == OF_NO_USE || (trait == EXACT ? a == b : apart * ABOUT <= a);
}

static int same_counts(const struct cost_case *c, const struct costs *a, const struct costs *b)
{
    int op, n;

    for (op = 0; op < NUM_OPS; op++) {
        for (n = 0; n < COST_COUNTERS; n++) {
            CHECK(is_same(trait_of(c, op, n), a->counts[op][n], b->counts[op][n]),
                  "%s, %s: %s is %" PRIu64 " in one schedule and %" PRIu64 " in another", c->name,
                  op_names[op], cost_name(n), a->counts[op][n], b->counts[op][n]);
        }
    }
    return 0;
}

/* As many schedules of a case as `count`, against the first one. */
static int schedules_of(const struct cost_case *c, int count)
{
    struct costs first, other;
    int n;

    PASS(cost_of(c, FIRST_SCHEDULE, 1, &first));
    CHECK(c->carrier != BY_STORES || first.counts[OP_DISPATCH][COST_GRIDS] == RANKS,
          "%s: dispatch has started %" PRIu64 " grids on %d ranks", c->name,
          first.counts[OP_DISPATCH][COST_GRIDS], RANKS);
    for (n = 1; n < count; n++) {
        PASS(cost_of(c, FIRST_SCHEDULE + 2 * (uint64_t)n, 1, &other));
        PASS(same_counts(c, &first, &other));
    }
    return 0;
}

static int schedules(struct test *t)
{
    int i;

    for (i = 0; i < NUM_CASES; i++) {
        struct cost_case c = cases[i];
        if (!c.group) { /* across domains few tokens leave more of what a schedule decides */
            c.tokens = (uint32_t)test_scaled(t, (int)c.tokens);
        }
        PASS(schedules_of(&c, t->scale < 100 ? 2 : SCHEDULES));
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;

    /* The figures are of one machine with one way to move rows, whatever else the environment asks for. */
    setenv("TERN_MACHINE", "cpu", 1);
    setenv("TERN_CPU_SMS", "16", 1);
    setenv("TERN_TRANSFER", "bulk", 1);
    unsetenv("TERN_DOMAIN_SIZE");
    unsetenv("TERN_SOFTNIC");
    if (argc == 2 && !strcmp(argv[1], "--counts")) {
        return print_counts();
    }
    if (argc == 4 && !strcmp(argv[1], "--rounds")) {
        return run_rounds(argv[2], atoi(argv[3]));
    }
    test_begin(&t, argc, argv);
    test_run(&t, "every schedule asks the same of the executor", schedules);
    return test_end(&t);
}
