/* SPDX-License-Identifier: Apache-2.0
 *
 * What route, dispatch and combine cost on the cpu machine, those of low latency too, in units that no clock
 * measures. test/cost.sh compares the figures with test/cost.expected; it runs this program in two other
 * ways:
 *
 *     cost_test --counts           a line for every case and operation, with the executor's counters
 *     cost_test --rounds CASE N    N rounds of one case and nothing else, for callgrind
 *
 * On its own the program shows that the figures mean something: results are right while they are taken, and
 * every schedule gives the same ones, so that they can be compared exactly. */
#include "cost.h"
#include "ll_batch.h"
#include "scene.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, EXPERTS = 64, TOPK = 8, ROW_BYTES = 1024, SMS = 4, SCHEDULES = 3, FIRST_SCHEDULE = 11 };
enum { OP_ROUTE, OP_DISPATCH, OP_COMBINE, NUM_OPS };

static const char *const op_names[NUM_OPS] = {"route", "dispatch", "combine"};

struct cost_case {
    const char *name;
    uint32_t layout, tokens;
    uint32_t low_latency; /* `layout` is then an enum tern_ll_layout, and there is no route */
    uint32_t cast, weights;
};

static const struct cost_case cases[] = {
    {"rank-256", TERN_LAYOUT_RANK, 256, 0, 0, 0},
    {"rank-1", TERN_LAYOUT_RANK, 1, 0, 0, 0},
    {"expert-256", TERN_LAYOUT_EXPERT, 256, 0, 0, 0},
    {"expert-1", TERN_LAYOUT_EXPERT, 1, 0, 0, 0},
    {"ll-expert-32", TERN_LL_BY_EXPERT, 32, 1, TERN_CAST_NONE, TERN_LL_WEIGHTS_AT_COMBINE},
    {"ll-expert-1", TERN_LL_BY_EXPERT, 1, 1, TERN_CAST_NONE, TERN_LL_WEIGHTS_AT_COMBINE},
    {"ll-summed-32", TERN_LL_BY_EXPERT, 32, 1, TERN_CAST_FP8, TERN_LL_WEIGHTS_AT_DISPATCH},
    {"ll-rank-32", TERN_LL_BY_RANK, 32, 1, TERN_CAST_FP8, TERN_LL_WEIGHTS_AT_DISPATCH},
};

enum { NUM_CASES = sizeof cases / sizeof *cases };

struct costs {
    uint64_t counts[NUM_OPS][COST_COUNTERS];
};

/* What a case takes: a scene with a batch, or for low latency with none, and this one. */
struct stage {
    struct scene scene;
    struct ll_batch ll;
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
    ll_batch_init(&x->ll, &x->scene.world, x->scene.eps, &ll, &x->scene.rng);
    for (r = 0; r < RANKS; r++) {
        x->ll.ranks[r].num_sms = SMS;
    }
    ll_config_add(&x->scene.config, &ll, 1);
    x->scene.rng.state = 257; /* whatever has been drawn so far */
    ll_batch_redraw_ids(&x->ll, ROUTING_UNIFORM, &x->scene.rng);
}

/* The ids are the same for every schedule. */
static void stage(struct stage *x, const struct cost_case *c, uint32_t tokens, uint64_t schedule)
{
    struct batch_shape shape = {EXPERTS, TOPK, 8, 0, 0, 0, 1, ROUTING_UNIFORM};
    struct scene *s = &x->scene;

    memset(x, 0, sizeof *x);
    shape.max_tokens = tokens;
    scene_init(s, RANKS, 256);
    s->config.num_experts = EXPERTS;
    s->config.max_topk = TOPK;
    s->config.max_tokens = tokens;
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

/* What has been asked of the executor since `counts` were read; reads them anew. */
static void take(const struct scene *s, uint64_t counts[COST_COUNTERS], uint64_t spent[COST_COUNTERS])
{
    uint64_t before[COST_COUNTERS];
    int i;

    memcpy(before, counts, sizeof before);
    cost_read(s->world.members[0].lanes[0], counts);
    for (i = 0; i < COST_COUNTERS; i++) {
        spent[i] = counts[i] - before[i];
    }
}

/* One operation of each kind on all ranks; the route is open. */
static int measure(struct scene *s, struct costs *costs)
{
    uint64_t counts[COST_COUNTERS];

    PASS(world_upload(&s->world));
    cost_read(s->world.members[0].lanes[0], counts);
    PASS(batch_update(&s->batches[0], 0));
    PASS(world_ep_synchronize(&s->world, s->eps));
    take(s, counts, costs->counts[OP_ROUTE]);
    PASS(dispatch_issue(&s->dispatches[0], 0));
    PASS(world_ep_synchronize(&s->world, s->eps));
    take(s, counts, costs->counts[OP_DISPATCH]);
    PASS(combine_issue(&s->combines[0], 0));
    PASS(world_ep_synchronize(&s->world, s->eps));
    take(s, counts, costs->counts[OP_COMBINE]);
    return 0;
}

static int measure_low_latency(struct stage *x, struct costs *costs)
{
    struct scene *s = &x->scene;
    uint64_t counts[COST_COUNTERS];

    PASS(world_upload(&s->world));
    cost_read(s->world.members[0].lanes[0], counts);
    PASS(ll_dispatch_issue(&x->ll, TERN_LL_BOTH, 0));
    PASS(world_ep_synchronize(&s->world, s->eps));
    take(s, counts, costs->counts[OP_DISPATCH]);
    PASS(ll_combine_issue(&x->ll, TERN_LL_BOTH, 0));
    PASS(world_ep_synchronize(&s->world, s->eps));
    take(s, counts, costs->counts[OP_COMBINE]);
    ll_expect_dispatch(&x->ll); /* every time, for the sums */
    return 0;
}

static int run_low_latency(struct stage *x, int rounds, struct costs *costs)
{
    int i;

    PASS(scene_open(&x->scene));
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

static int cost_of(const struct cost_case *c, uint32_t tokens, uint64_t schedule, int rounds,
                   struct costs *costs)
{
    struct stage x;
    int result;

    memset(costs, 0, sizeof *costs);
    stage(&x, c, tokens, schedule);
    result = c->low_latency ? run_low_latency(&x, rounds, costs) : run(&x, rounds, costs);
    ll_batch_fini(&x.ll);
    scene_fini(&x.scene);
    return result;
}

/* ---- For cost.sh ---- */

static int print_counts(void)
{
    struct costs costs;
    int i, op, n;

    for (i = 0; i < NUM_CASES; i++) {
        if (cost_of(&cases[i], cases[i].tokens, FIRST_SCHEDULE, 1, &costs)) {
            return 1;
        }
        for (op = cases[i].low_latency ? OP_DISPATCH : OP_ROUTE; op < NUM_OPS; op++) {
            printf("%s %s", cases[i].name, op_names[op]);
            for (n = 0; n < COST_COUNTERS; n++) {
                if (costs.counts[op][n]) {
                    printf(" %s=%" PRIu64, cost_name(n), costs.counts[op][n]);
                }
            }
            printf("\n");
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
            return cost_of(&cases[i], cases[i].tokens, FIRST_SCHEDULE, rounds, &costs) != 0;
        }
    }
    fprintf(stderr, "cost_test: there is no case %s\n", name);
    return 2;
}

/* ---- By itself ---- */

static int same_counts(const struct cost_case *c, const struct costs *a, const struct costs *b)
{
    int op, n;

    for (op = 0; op < NUM_OPS; op++) {
        for (n = 0; n < COST_COUNTERS; n++) {
            CHECK(a->counts[op][n] == b->counts[op][n],
                  "%s, %s: %s is %" PRIu64 " in one schedule and %" PRIu64 " in another", c->name,
                  op_names[op], cost_name(n), a->counts[op][n], b->counts[op][n]);
        }
    }
    return 0;
}

static int schedules(struct test *t)
{
    struct costs first, other;
    int i, n, count = t->scale < 100 ? 2 : SCHEDULES;

    for (i = 0; i < NUM_CASES; i++) {
        uint32_t tokens = (uint32_t)test_scaled(t, (int)cases[i].tokens);
        PASS(cost_of(&cases[i], tokens, FIRST_SCHEDULE, 1, &first));
        CHECK(first.counts[OP_DISPATCH][0] == RANKS, "%s: dispatch has started %" PRIu64 " grids on %d ranks",
              cases[i].name, first.counts[OP_DISPATCH][0], RANKS);
        for (n = 1; n < count; n++) {
            PASS(cost_of(&cases[i], tokens, FIRST_SCHEDULE + (uint64_t)n, 1, &other));
            PASS(same_counts(&cases[i], &first, &other));
        }
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
