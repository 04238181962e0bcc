/* SPDX-License-Identifier: Apache-2.0
 *
 * What the reference says of combine across domains, by sums that anybody can do: values so chosen that the
 * order of additions and the place of each rounding show. */
#include "ref/ref.h"
#include "support.h"

#include <math.h>
#include <string.h>

enum { RANKS = 4, CHANNELS = 8 };

/* One token, of rank 1, that has chosen the expert of every rank; the ranks' rows and weights. */
struct one_token {
    uint16_t rows[RANKS][CHANNELS], bias[CHANNELS], out[CHANNELS];
    float weights[RANKS][RANKS], sums[RANKS]; /* of row, choice */
    uint64_t in_rows[RANKS];
    int has_bias;
};

static void fill(uint16_t *row, float value)
{
    int c;

    for (c = 0; c < CHANNELS; c++) {
        row[c] = terni_ref_bf16(value);
    }
}

static void combine(struct one_token *x, uint32_t layout, int domain_ranks)
{
    static const int64_t ids[RANKS] = {0, 1, 2, 3};
    static const uint32_t num_tokens[RANKS] = {0, 1, 0, 0};
    const int64_t *tables[RANKS] = {ids, ids, ids, ids};
    struct ref_world world = {RANKS, RANKS, RANKS, 8, num_tokens, tables, domain_ranks};
    struct ref_route routes[RANKS];
    struct tern_combine_args args[RANKS];
    int r;

    for (r = 0; r < RANKS; r++) {
        struct tern_combine_args init = TERN_COMBINE_ARGS_INIT;
        terni_ref_route_init(&routes[r], &world, layout, 1, r);
        args[r] = init;
        args[r].in.data = x->rows[r];
        args[r].in.row_bytes = sizeof x->rows[r];
        args[r].in_rows = x->in_rows[r];
        args[r].in_weights = x->weights[r];
    }
    args[1].out.data = x->out;
    args[1].out.row_bytes = sizeof x->out;
    args[1].bias[1] = x->has_bias ? x->bias : NULL;
    args[1].out_weights = x->sums;
    terni_ref_combine(&world, routes, args, 1);
    for (r = 0; r < RANKS; r++) {
        terni_ref_route_fini(&routes[r], &world);
    }
}

static void begin(struct one_token *x, const float values[RANKS])
{
    int r;

    memset(x, 0, sizeof *x);
    for (r = 0; r < RANKS; r++) {
        fill(x->rows[r], values[r]);
        x->in_rows[r] = 1;
    }
}

/* BF16 has 8 bits: 257 lies between 256 and 258, and goes to the even one of them. */
static int test_rounding(struct test *t)
{
    static const float values[RANKS] = {1, 1, 256, 1};
    static const struct {
        int domain_ranks;
        float sum;
    } expected[] = {{0, 260}, {4, 260}, {2, 258}, {1, 260}};
    struct one_token x;
    uint32_t layout;
    size_t i;

    (void)t;
    for (layout = TERN_LAYOUT_RANK; layout <= TERN_LAYOUT_EXPERT; layout++) {
        for (i = 0; i < sizeof expected / sizeof expected[0]; i++) {
            begin(&x, values);
            combine(&x, layout, expected[i].domain_ranks);
            CHECK(terni_ref_bf16_value(x.out[CHANNELS - 1]) == expected[i].sum,
                  "layout %u, domains of %d: %g, expected %g", layout, expected[i].domain_ranks,
                  (double)terni_ref_bf16_value(x.out[CHANNELS - 1]), (double)expected[i].sum);
        }
    }
    return 0;
}

/* A zero's sign shows whether something was added to it. */
static int test_nothing(struct test *t)
{
    static const float zeros[RANKS] = {-0.0f, -0.0f, -0.0f, -0.0f};
    struct one_token x;

    (void)t;
    begin(&x, zeros);
    fill(x.bias, -0.0f);
    x.has_bias = 1;
    combine(&x, TERN_LAYOUT_RANK, 2);
    CHECK(x.out[0] == 0x8000, "domains that have nothing but -0 bring 0x%04x", x.out[0]);
    x.in_rows[2] = x.in_rows[3] = 0;
    combine(&x, TERN_LAYOUT_EXPERT, 2);
    CHECK(x.out[0] == 0x8000, "a domain without rows brings 0x%04x", x.out[0]);
    x.has_bias = 0;
    combine(&x, TERN_LAYOUT_RANK, 2);
    CHECK(x.out[0] == 0, "without a bias sums begin with 0, not 0x%04x", x.out[0]);
    return 0;
}

/* FP32 has 24 bits: 1e8 + 1 is 1e8. */
static int test_weights(struct test *t)
{
    static const float zeros[RANKS] = {0}, weights[RANKS] = {1e8f, 1, -1e8f, 1};
    struct one_token x;
    int r;

    (void)t;
    begin(&x, zeros);
    for (r = 0; r < RANKS; r++) {
        x.weights[r][0] = weights[r];
    }
    combine(&x, TERN_LAYOUT_RANK, 4);
    CHECK(x.sums[0] == 1, "in one domain %g", (double)x.sums[0]);
    combine(&x, TERN_LAYOUT_RANK, 2);
    CHECK(x.sums[0] == 0, "in two domains %g", (double)x.sums[0]);
    combine(&x, TERN_LAYOUT_EXPERT, 2);
    CHECK(x.sums[2] == -1e8f, "a weight by expert is copied, not %g", (double)x.sums[2]);
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "combine rounds what each domain brings", test_rounding);
    test_run(&t, "a domain without rows adds nothing", test_nothing);
    test_run(&t, "weights are added domain by domain", test_weights);
    return test_end(&t);
}
