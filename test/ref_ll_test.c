/* SPDX-License-Identifier: Apache-2.0
 *
 * What the reference says of a railed low-latency combine, by sums that anybody can do: values so chosen that
 * the order of additions, the place of each rounding and each compression show. */
#include "ref/ref.h"
#include "support.h"

#include <string.h>

enum { RANKS = 6, TOPK = 6, CHANNELS = 128, HOME = 1 };

/* One token of one rank, with one expert a rank; what each rank's expert makes of it. */
struct one_token {
    float values[RANKS]; /* of the row of each rank, its first channel */
    int64_t ids[TOPK];   /* experts, hence ranks */
    float weights[TOPK];
    uint32_t layout, at, compression; /* `at`: enum tern_ll_weights */
};

/* The first channel is what is asked for; others are such that a compression loses some of them. */
static void fill(uint16_t *row, float value)
{
    for (int c = 0; c < CHANNELS; c++) {
        row[c] = terni_ref_bf16(c == 0 ? value : value / (float)c + (float)(c % 7));
    }
}

/* The token at home. */
static void combine(const struct one_token *x, int rail_ranks, uint16_t *out)
{
    static uint16_t rows[RANKS][RANKS * CHANNELS];
    static const uint32_t num_tokens[RANKS] = {[HOME] = 1};
    const int64_t *tables[RANKS] = {x->ids, x->ids, x->ids, x->ids, x->ids, x->ids};
    struct ref_world world = {RANKS, RANKS, TOPK, 8, num_tokens, tables, 0};
    struct tern_ll_dispatch_args sent[RANKS];
    struct tern_ll_combine_args args[RANKS];
    struct ref_ll ll;

    terni_ref_ll_init(&ll, &world, 1);
    ll.rail_ranks = rail_ranks;
    for (int r = 0; r < RANKS; r++) {
        struct tern_ll_dispatch_args d = TERN_LL_DISPATCH_ARGS_INIT;
        struct tern_ll_combine_args c = TERN_LL_COMBINE_ARGS_INIT;
        memset(rows[r], 0, sizeof rows[r]);
        fill(rows[r] + (x->layout == TERN_LL_BY_RANK ? HOME * CHANNELS : 0), x->values[r]);
        d.hidden = CHANNELS;
        d.layout = x->layout;
        d.weights = x->at;
        d.topk_weights = x->weights;
        c.in = rows[r];
        c.topk_weights = x->weights;
        c.compression = x->compression;
        c.out = out;
        sent[r] = d;
        args[r] = c;
    }
    terni_ref_ll_combine(&ll, sent, args, HOME);
    terni_ref_ll_fini(&ll);
}

/* Weights of 1, at dispatch. */
static struct one_token token(const float values[RANKS], const int64_t ids[TOPK])
{
    struct one_token x;

    memset(&x, 0, sizeof x);
    memcpy(x.values, values, sizeof x.values);
    memcpy(x.ids, ids, sizeof x.ids);
    for (int k = 0; k < TOPK; k++) {
        x.weights[k] = 1;
    }
    x.at = TERN_LL_WEIGHTS_AT_DISPATCH;
    return x;
}

#define EXPECT_SUM(x, rail_ranks, wanted)                                                                    \
    do {                                                                                                     \
        uint16_t row_[CHANNELS];                                                                             \
        combine(x, rail_ranks, row_);                                                                        \
        float sum_ = terni_ref_bf16_value(row_[0]);                                                          \
        CHECK(sum_ == (wanted), "domains of %d: %.9g, expected %.9g", rail_ranks, (double)sum_,              \
              (double)(wanted));                                                                             \
    } while (0)

/* BF16 has 8 bits: of numbers from 256 to 512 it has the even ones. An odd one goes to a multiple of 4. */
static int rounding(struct test *t)
{
    static const float values[RANKS] = {3, 1, 1, 256, 1, 1};
    static const int64_t all[TOPK] = {0, 1, 2, 3, 4, 5};
    static const int64_t few[TOPK] = {3, 4, 1, -1, -1, -1};
    struct one_token x = token(values, all);

    (void)t;
    for (x.layout = TERN_LL_BY_EXPERT; x.layout <= TERN_LL_BY_RANK; x.layout++) {
        EXPECT_SUM(&x, 0, 264.0f); /* 263 */
        EXPECT_SUM(&x, 6, 264.0f); /* all are near */
        EXPECT_SUM(&x, 3, 264.0f); /* 5, and 258 */
        EXPECT_SUM(&x, 2, 262.0f); /* 4, 257 as 256, and 2 */
        EXPECT_SUM(&x, 1, 264.0f); /* each row is its domain's */
        memcpy(x.ids, few, sizeof few);
        EXPECT_SUM(&x, 0, 258.0f);
        EXPECT_SUM(&x, 3, 256.0f); /* 257 is 256 as it leaves, and again at home */
        EXPECT_SUM(&x, 2, 258.0f); /* 256, 1 and 1 */
        memcpy(x.ids, all, sizeof all);
    }
    x.layout = TERN_LL_BY_EXPERT;
    x.at = TERN_LL_WEIGHTS_AT_COMBINE;
    memcpy(x.ids, few, sizeof few);
    EXPECT_SUM(&x, 3, 258.0f); /* every row goes home by itself */
    return 0;
}

/* FP32 has 24 bits: 2^25 + 1 is 2^25. */
static int order(struct test *t)
{
    static const float big = 33554432.0f;
    static const float values[RANKS] = {1, 1, 0, 33554432.0f, 1, -33554432.0f};
    static const int64_t first_far[TOPK] = {5, 0, 3, 1, -1, -1};
    static const int64_t last_far[TOPK] = {5, 3, 4, -1, -1, -1};
    static const int64_t near_first[TOPK] = {0, 3, 1, -1, -1, -1};
    struct one_token x = token(values, first_far);

    (void)t;
    EXPECT_SUM(&x, 0, 1.0f); /* -2^25, 1 lost, 2^25, 1 */
    EXPECT_SUM(&x, 3, 2.0f); /* the domain's sum 0 stands where its first choice does: 0, 1, 1 */
    memcpy(x.ids, last_far, sizeof last_far);
    EXPECT_SUM(&x, 0, 1.0f); /* as chosen: -2^25, 2^25, 1 */
    EXPECT_SUM(&x, 3, 0.0f); /* by rank: 2^25, 1 lost, -2^25 */
    memcpy(x.ids, near_first, sizeof near_first);
    EXPECT_SUM(&x, 3, big); /* 1 lost, twice */
    return 0;
}

/* A row as it is read where it arrives. */
static void travel(uint32_t compression, float value, float *arrived)
{
    uint16_t row[CHANNELS];

    fill(row, value);
    terni_ref_compress(compression, row, CHANNELS, arrived);
}

/* A rank's row is compressed, and so is its domain's sum. */
static int compression(struct test *t)
{
    static const float values[RANKS] = {0, 0, 0, 1.0625f, 0, 3.3125f};
    static const int64_t ids[TOPK] = {5, 3, -1, -1, -1, -1};
    struct one_token x = token(values, ids);

    (void)t;
    for (x.compression = TERN_LL_PLAIN; x.compression <= TERN_LL_LOG10; x.compression++) {
        float third[CHANNELS], fifth[CHANNELS], sent[CHANNELS];
        uint16_t sum[CHANNELS], wanted[CHANNELS], out[CHANNELS];
        travel(x.compression, values[3], third);
        travel(x.compression, values[5], fifth);
        for (int c = 0; c < CHANNELS; c++) {
            sum[c] = terni_ref_bf16(third[c] + fifth[c]);
        }
        combine(&x, 0, out);
        CHECK(memcmp(out, sum, sizeof out) == 0, "compression %u: direct", x.compression);
        terni_ref_compress(x.compression, sum, CHANNELS, sent);
        for (int c = 0; c < CHANNELS; c++) {
            wanted[c] = terni_ref_bf16(sent[c]);
        }
        CHECK((memcmp(wanted, sum, sizeof sum) != 0) == (x.compression != TERN_LL_PLAIN),
              "compression %u: whether it is done again does not show", x.compression);
        combine(&x, 3, out);
        CHECK(memcmp(out, wanted, sizeof out) == 0, "compression %u: railed", x.compression);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "a far domain's sum is rounded as it leaves", rounding);
    test_run(&t, "a far domain's rows are added by rank, where its first choice stands", order);
    test_run(&t, "a far domain's sum is compressed again", compression);
    return test_end(&t);
}
