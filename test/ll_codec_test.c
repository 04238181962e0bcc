/* SPDX-License-Identifier: Apache-2.0
 *
 * Compressed rows: what the kernels' codec makes of every BF16 value among many ranges, against the
 * reference; how far the reference may be off, against bounds; and the figures of docs/numerics.md, which the
 * last case measures and prints. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ep/layout.h"
#include "kernels/ll_codec.h"
#include "ref/ref.h"
#include "simt/executor.h"
#include "support.h"

/* ---- The kernels' codec: rows there and back, one warp a row ---- */

struct codec_args {
    const char *in;
    char *coded;
    float *out;
    uint32_t rows, codec, channels, row_bytes;
};

static void there_and_back(const struct codec_args *p, uint32_t row, const int codec)
{
    const char *in = p->in + (size_t)row * p->channels * 2;
    char *coded = p->coded + (size_t)row * p->row_bytes;
    uint32_t blocks = (p->channels + 127) / 128;

    for (uint32_t c = ll_lane_at() / 2; c < p->channels + ll_lane_at() / 2; c += 512) {
        struct vec16 v[2];
        memset(v, 0, sizeof v);
        for (uint32_t q = 0; q < 2; q++) {
            if (c + q * 64 < p->channels) {
                v[q] = ld_vec16(in + (size_t)(c + q * 64) * 2);
            }
        }
        ll_encode(coded, blocks, c / 128, v, codec);
    }
    sync_warp();
    for (uint32_t c = ll_lane_at() / 2; c < p->channels; c += 512) {
        struct ll_coded k = ll_fetch(coded, blocks, c / 128, codec);
        for (uint32_t q = 0; q < 2; q++) {
            float y[8];
            ll_decode(y, &k, (int)q, codec);
            if (c + q * 64 < p->channels) {
                memcpy(p->out + (size_t)row * p->channels + c + q * 64, y, sizeof y);
            }
        }
    }
}

TERN_KERNEL(codec_rows, struct codec_args, p)
{
    for (uint32_t row = (uint32_t)(bid() * nwarps() + warp()); row < p->rows;
         row += (uint32_t)(nblk() * nwarps())) {
        if (p->codec == LL_FP8) {
            there_and_back(p, row, LL_FP8);
        } else {
            there_and_back(p, row, LL_LOG10);
        }
    }
}

static uint32_t bits_of(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, 4);
    return bits;
}

/* Equal bits; NaN is NaN. */
static int same(float a, float b) { return bits_of(a) == bits_of(b) || (isnan(a) && isnan(b)); }

/* `in` in memory of the machine; `out` gets what the kernel makes of it. */
static int run_codec(struct machine *m, uint32_t compression, const uint16_t *in, uint32_t rows,
                     uint32_t channels, float *out)
{
    struct codec_args args = {(const char *)in, NULL, out, rows, compression, channels, 0};
    struct launch launch = {0, 2, 128, 0, &args, sizeof args};
    void *coded = NULL;

    args.row_bytes = terni_ll_sent_bytes(compression, channels);
    OK(m->ops->alloc(m, (size_t)rows * args.row_bytes, &coded));
    memset(coded, 0xa5, (size_t)rows * args.row_bytes);
    args.coded = (char *)coded;
    OK(terni_cpu_launch_function(m, tern_cpu_codec_rows, "codec_rows", &launch, NULL));
    OK(m->ops->stream_synchronize(m, NULL));
    m->ops->free(m, coded);
    return 0;
}

static int compare_rows(uint32_t compression, const uint16_t *in, uint32_t rows, uint32_t channels,
                        const float *out)
{
    float *wanted = (float *)test_take(channels, sizeof *wanted);
    int wrong = 0;

    for (uint32_t r = 0; r < rows && !wrong; r++) {
        terni_ref_compress(compression, in + (size_t)r * channels, channels, wanted);
        for (uint32_t c = 0; c < channels && !wrong; c++) {
            float got = out[(size_t)r * channels + c];
            wrong = !same(got, wanted[c]);
            if (wrong) {
                test_note(__FILE__, __LINE__,
                          "compression %u, row %u of %u channels, %u: %04x gives %08x, not %08x", compression,
                          r, channels, c, in[(size_t)r * channels + c], bits_of(got), bits_of(wanted[c]));
            }
        }
    }
    free(wanted);
    return wrong ? TEST_FAILED : 0;
}

static int codec_equals_reference(const uint16_t *values, uint32_t rows, uint32_t channels)
{
    struct executor *x;
    struct machine *m;
    size_t count = (size_t)rows * channels;
    void *in = NULL, *out = NULL;
    int result = 0;

    OK(terni_executor_open(1, &x));
    OK(terni_cpu_open(x, &m));
    OK(m->ops->alloc(m, count * 2 + 16, &in));
    OK(m->ops->alloc(m, count * 4 + 16, &out));
    memcpy(in, values, count * 2);
    for (uint32_t compression = TERN_LL_FP8; compression <= TERN_LL_LOG10 && !result; compression++) {
        result = run_codec(m, compression, (const uint16_t *)in, rows, channels, (float *)out);
        result = result ? result : compare_rows(compression, values, rows, channels, (const float *)out);
    }
    m->ops->free(m, in);
    m->ops->free(m, out);
    m->ops->close(m);
    terni_executor_release(x);
    return result;
}

/* ---- Every value among many ranges ---- */

enum { CHUNK = 128, KEPT = 3 }; /* the first three channels of a chunk make its range */

/* What surrounds a value: the largest and smallest magnitude of its chunk, and a value beside them. */
struct range {
    uint16_t high, low, beside;
};

/* Whole chunks of this range that together hold every pattern it admits, with both signs. Returns how many;
 * writes them if `to` is not NULL. */
static uint32_t fill_chunks(struct range range, uint16_t *to)
{
    uint32_t last = range.beside >= 0x7f80 ? 0x7fff : range.high;
    uint32_t chunks = 0, at = CHUNK;

    for (uint32_t p = range.low; p <= last; p++) {
        if (p > range.high && p < 0x7f80) {
            continue;
        }
        for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
            if (at == CHUNK) {
                chunks++;
                at = KEPT;
            }
            if (to) {
                uint16_t *chunk = to + (size_t)(chunks - 1) * CHUNK;
                chunk[0] = range.high;
                chunk[1] = range.low | 0x8000;
                chunk[2] = range.beside;
                chunk[at] = (uint16_t)(p | sign);
                for (uint32_t i = at + 1; i < CHUNK; i++) {
                    chunk[i] = range.low;
                }
            }
            at++;
        }
    }
    return chunks;
}

static const uint16_t highs[] = {0x0001, 0x0050, 0x0080, 0x00ff, 0x1234,
                                 0x3f80, 0x3fff, 0x4049, 0x7f00, 0x7f7f};
static const uint16_t spans[] = {0,    1,    2,    77,   128,  509,  510,  511,
                                 1000, 1024, 2047, 4095, 4096, 4097, 4500, 0x7f7e};
static const uint16_t besides[] = {0x0000, 0x8000, 0x7f80, 0xffc0};

static uint32_t range_count(void) { return sizeof highs / 2 * (sizeof spans / 2) * (sizeof besides / 2); }

/* Ranges with a low above high - span where that is below 1 would be the same again: 0 is returned. */
static int range_at(uint32_t i, struct range *range)
{
    uint16_t span = spans[i / (sizeof highs / 2) % (sizeof spans / 2)];

    range->high = highs[i % (sizeof highs / 2)];
    range->beside = besides[i / (sizeof highs / 2) / (sizeof spans / 2)];
    range->low = (uint16_t)(range->high - span);
    return range->high > span;
}

/* Calls `body` with the chunks of every range, or at a small scale of some. */
static int for_ranges(const struct test *t, int (*body)(struct range, const uint16_t *, uint32_t))
{
    int result = 0;

    for (uint32_t i = 0; i < range_count() && !result; i += t->scale < 100 ? 23 : 1) {
        struct range range;
        if (!range_at(i, &range) || (t->scale < 100 && range.high - range.low > 5000)) {
            continue;
        }
        uint32_t chunks = fill_chunks(range, NULL);
        uint16_t *values = (uint16_t *)test_take((size_t)chunks * CHUNK, 2);
        fill_chunks(range, values);
        result = body(range, values, chunks);
        free(values);
        if (result) {
            test_note(__FILE__, __LINE__, "range %04x to %04x beside %04x", range.low, range.high,
                      range.beside);
        }
    }
    return result;
}

static int range_equals(struct range range, const uint16_t *values, uint32_t chunks)
{
    (void)range;
    return codec_equals_reference(values, chunks, CHUNK);
}

static int every_value(struct test *t) { return for_ranges(t, range_equals); }

/* Rows of several chunks, of which the last is short, with anything in them. */
static int rows_of_any_length(struct test *t)
{
    enum { ROWS = 6, MOST = 1100 };
    uint16_t *values = (uint16_t *)test_take((size_t)ROWS * MOST, 2);
    struct rng r = {77};
    int result = 0;

    for (int i = 0; i < test_scaled(t, 150) && !result; i++) {
        uint32_t channels = rng_between(&r, 1, MOST / 8) * 8;
        rng_bf16(&r, values, (size_t)ROWS * channels, i % 3);
        for (uint32_t c = 0; c < ROWS * channels; c++) {
            values[c] = i % 3 == 2 && c / channels % 2 ? (uint16_t)rng_next(&r) : values[c];
            values[c] = i % 7 == 3 ? values[c] & 0x8000 : values[c]; /* nothing but zeros */
        }
        result = codec_equals_reference(values, ROWS, channels);
    }
    free(values);
    return result;
}

/* ---- Bounds ---- */

/* By LOG10, of one value; `octaves`: between the ends of its range. */
static int within_bounds(struct range range, double octaves, uint16_t in, float out)
{
    double value = (double)terni_ref_bf16_value(in), high = (double)terni_ref_bf16_value(range.high);
    double size = fabs(value), error = fabs((double)out - value);
    int special = range.beside >> 7 == 0xff || range.beside >> 7 == 0x1ff;
    double step = (octaves < 32 ? octaves : 32) / (special ? 508 : 510);

    if ((in & 0x7fff) >= 0x7f80) {
        return same(out, terni_ref_bf16_value(in));
    }
    if ((in & 0x7fff) == 0 || (in & 0x7fff) == range.high || ((in & 0x7fff) == range.low && octaves <= 32)) {
        return same(out, terni_ref_bf16_value(in));
    }
    if (!isfinite(out) || (out != 0 && (out < 0) != (value < 0)) || fabs((double)out) > high) {
        return 0;
    }
    if (size < ldexp(high, -32)) {
        return error <= ldexp(high, -32);
    }
    /* Below the normal numbers steps do not shrink any more. */
    return error <=
           (step / 2 * (1 + step / 4) + 0.0004) * (size < 0x1p-126 ? 0x1p-126 * 1.35 : size * 0.7072);
}

static int range_within(struct range range, const uint16_t *values, uint32_t chunks)
{
    double octaves =
        log2((double)terni_ref_bf16_value(range.high)) - log2((double)terni_ref_bf16_value(range.low));
    float out[CHUNK];
    uint32_t before = 0;

    octaves = range.low < 0x80 ? (range.high - range.low) / 128.0 + 0.1 : octaves + 0.02;
    for (uint32_t k = 0; k < chunks; k++) {
        const uint16_t *in = values + (size_t)k * CHUNK;
        terni_ref_compress(TERN_LL_LOG10, in, CHUNK, out);
        for (uint32_t c = 0; c < CHUNK; c++) {
            CHECK(within_bounds(range, octaves, in[c], out[c]), "%04x comes out as %.9g (%08x)", in[c],
                  (double)out[c], bits_of(out[c]));
            uint32_t after = bits_of(out[c]) & 0x7fffffffu;
            if (c > KEPT && (in[c] & 0x7fff) >= (in[c - 1] & 0x7fff)) {
                CHECK(after >= before, "%04x comes out smaller than %04x", in[c], in[c - 1]);
            }
            before = after;
        }
    }
    return 0;
}

static int bounds(struct test *t) { return for_ranges(t, range_within); }

/* ---- Bytes ---- */

static int bytes(struct test *t)
{
    (void)t;
    for (uint32_t hidden = 8; hidden <= 16384; hidden += 8) {
        uint32_t most = terni_ll_sent_bytes(TERN_LL_LOG10, hidden);
        CHECK(terni_ll_sent_bytes(TERN_LL_PLAIN, hidden) == 2 * hidden, "%u channels plain", hidden);
        CHECK(most % 16 == 0 && most >= (hidden + 127) / 128 * 164, "%u channels in %u bytes", hidden, most);
        CHECK(terni_ll_sent_bytes(TERN_LL_FP8, hidden) <= most, "FP8 is longer with %u channels", hidden);
        CHECK(most >= terni_ll_sent_bytes(TERN_LL_LOG10, hidden - 8), "%u channels in fewer bytes", hidden);
    }
    CHECK(terni_ll_sent_bytes(TERN_LL_FP8, 7168) == 7392, "a row of 7168 as FP8");
    CHECK(terni_ll_sent_bytes(TERN_LL_LOG10, 7168) == 9184, "a row of 7168 as LOG10");
    return 0;
}

/* ---- Accuracy ---- */

enum { HIDDEN = 7168, TOPK = 8, TOKENS = 12 };

static double uniform(struct rng *r) { return ((double)(rng_next(r) >> 11) + 0.5) * 0x1p-53; }

static double normal(struct rng *r)
{
    double radius = sqrt(-2 * log(uniform(r)));
    return radius * cos(6.283185307179586 * uniform(r));
}

static double draw_normal(struct rng *r) { return normal(r); }
static double draw_uniform(struct rng *r) { return 2 * uniform(r) - 1; }
static double draw_heavy(struct rng *r)
{
    return normal(r) / sqrt((pow(normal(r), 2) + pow(normal(r), 2)) / 2);
}
static double draw_tiny(struct rng *r) { return ldexp(normal(r), -60); }
static double draw_huge(struct rng *r) { return ldexp(normal(r), 60); }
static double draw_wide(struct rng *r) { return exp2(40 * uniform(r) - 20) * (uniform(r) < 0.5 ? -1 : 1); }

struct data {
    const char *name;
    double (*draw)(struct rng *r);
    double most_fp8, most_log10; /* calc_diff of rows */
};

/* 1 - 2 xy / (x^2 + y^2), in which the scale of the data cancels. */
struct difference {
    double xy, xx, yy, squares, worst;
    uint64_t count;
};

static void differ(struct difference *d, double wanted, double got)
{
    d->xy += wanted * got;
    d->xx += wanted * wanted;
    d->yy += got * got;
    if (wanted != 0) {
        double relative = fabs(got / wanted - 1);
        d->squares += relative * relative;
        d->worst = relative > d->worst ? relative : d->worst;
        d->count++;
    }
}

static double calc_diff(const struct difference *d) { return 1 - 2 * d->xy / (d->xx + d->yy); }

/* Rows of one compression: each by itself, and weighted sums of eight against exact ones. */
struct accuracy {
    struct difference row, sum;
};

static void measure_token(uint32_t compression, double (*draw)(struct rng *), struct rng *r,
                          struct accuracy *a)
{
    static double exact[HIDDEN];
    static float sum[HIDDEN], arrived[HIDDEN];
    static uint16_t row[HIDDEN];

    memset(exact, 0, sizeof exact);
    memset(sum, 0, sizeof sum);
    for (int k = 0; k < TOPK; k++) {
        float weight = (float)((0.5 + uniform(r)) / TOPK);
        for (int c = 0; c < HIDDEN; c++) {
            row[c] = terni_ref_bf16((float)draw(r));
        }
        terni_ref_compress(compression, row, HIDDEN, arrived);
        for (int c = 0; c < HIDDEN; c++) {
            double value = (double)terni_ref_bf16_value(row[c]);
            float product = weight * arrived[c];
            differ(&a->row, value, (double)arrived[c]);
            exact[c] += (double)weight * value;
            sum[c] += product;
        }
    }
    for (int c = 0; c < HIDDEN; c++) {
        differ(&a->sum, exact[c], (double)terni_ref_bf16_value(terni_ref_bf16(sum[c])));
    }
}

static int accuracy(struct test *t)
{
    /* Tiny values are below the floor that FP8's scale has: nothing is left of them. */
    static const struct data kinds[] = {
        {"normal", draw_normal, 5e-4, 7e-6},      {"uniform", draw_uniform, 5e-4, 7e-6},
        {"heavy-tailed", draw_heavy, 5e-4, 2e-5}, {"2^-60 normal", draw_tiny, 2, 7e-6},
        {"2^60 normal", draw_huge, 5e-4, 7e-6},   {"2^-20 to 2^20", draw_wide, 5e-4, 7e-5}};

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        for (uint32_t compression = TERN_LL_PLAIN; compression <= TERN_LL_LOG10; compression++) {
            static const char *const names[] = {"PLAIN", "FP8", "LOG10"};
            double most = compression == TERN_LL_FP8 ? kinds[i].most_fp8 : kinds[i].most_log10;
            struct accuracy a;
            struct rng r = {i + 1};
            memset(&a, 0, sizeof a);
            for (int token = 0; token < test_scaled(t, TOKENS); token++) {
                measure_token(compression, kinds[i].draw, &r, &a);
            }
            printf("# %-14s %-6s row: max %.2e rms %.2e diff %.2e; sum of %d: diff %.2e\n", kinds[i].name,
                   names[compression], a.row.worst, sqrt(a.row.squares / (double)a.row.count),
                   calc_diff(&a.row), TOPK, calc_diff(&a.sum));
            CHECK(calc_diff(&a.row) <= (compression == TERN_LL_PLAIN ? 0 : most), "calc_diff %g of %s",
                  calc_diff(&a.row), kinds[i].name);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "every BF16 value among many ranges, as the reference has it", every_value);
    test_run(&t, "rows of any length and content, as the reference has them", rows_of_any_length);
    test_run(&t, "the logarithmic format keeps its bounds", bounds);
    test_run(&t, "bytes of a row", bytes);
    test_run(&t, "accuracy", accuracy);
    return test_end(&t);
}
