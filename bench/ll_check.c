/* SPDX-License-Identifier: Apache-2.0
 *
 * The #wrong column of `tern-bench ll`. Outputs are poisoned, a pair runs once more as it was timed, and
 * every element is compared bit for bit with what the reference (src/ref) makes of the same arguments,
 * pointed at host memory. Slabs are large and mostly unused, on the host as on the device: their memory is
 * only reserved, and the rows in use are filled by formula. The row behind each run of rows must still be
 * poison. What counts are added to is zero before, and not poison. A masked rank has nothing to be compared.
 * One thread a rank. */
#include "bench_ll.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { POISON = 0xa5 };

/* The inputs of one lane of all ranks, and the arguments that point there. */
struct ll_wanted {
    const struct ll_shape *shape;
    uint32_t lane;
    void *tokens[TERN_MAX_RANKS], *made[TERN_MAX_RANKS]; /* [num_ranks] */
    struct tern_ll_dispatch_args dispatch[TERN_MAX_RANKS];
    struct tern_ll_combine_args combine[TERN_MAX_RANKS];
};

struct check {
    struct ll_bench *b;
    struct ll_wanted wanted;
    struct tally tallies[TERN_MAX_RANKS][NUM_LL_OPERATIONS]; /* [num_local] */
};

/* Pages of zeros that take no memory until they are written. */
static void *reserve(uint64_t bytes)
{
    void *p =
        mmap(NULL, bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void release(void *p, uint64_t bytes)
{
    if (p) {
        munmap(p, bytes + 1);
    }
}

/* ---- Inputs ---- */

/* Of rank r. */
static enum tern_status make_inputs(void *user, int r)
{
    struct ll_wanted *w = (struct ll_wanted *)user;
    const struct ll_shape *s = w->shape;
    const struct routing *g = &s->routing;
    static const struct tern_ll_combine_args init = TERN_LL_COMBINE_ARGS_INIT;
    int at_dispatch = s->options->ll.weights == TERN_LL_WEIGHTS_AT_DISPATCH;
    const float *weights = g->weights + (uint64_t)r * g->tokens * g->topk;
    uint64_t row_bytes = 2 * (uint64_t)s->hidden;
    w->tokens[r] = reserve(ll_tensor_bytes(s, LT_TOKENS));
    w->made[r] = reserve(ll_tensor_bytes(s, LT_MADE));
    if (!w->tokens[r] || !w->made[r]) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for the inputs of rank %d", r);
    }
    for (uint32_t t = 0; t < g->tokens; t++) {
        ll_fill_row(s, w->lane, r, LT_TOKENS, t, (char *)w->tokens[r] + t * row_bytes);
    }
    for (uint32_t k = 0; k < ll_num_runs(s); k++) {
        struct ll_run run = ll_run(s, r, k);
        for (uint64_t row = run.first; row < run.first + run.num; row++) {
            ll_fill_row(s, w->lane, r, LT_MADE, row, (char *)w->made[r] + row * row_bytes);
        }
    }
    w->dispatch[r] = ll_dispatch_shape(s);
    w->dispatch[r].in = w->tokens[r];
    w->dispatch[r].topk_weights = at_dispatch ? weights : NULL;
    w->combine[r] = init;
    w->combine[r].in = w->made[r];
    w->combine[r].compression = s->options->ll.compression;
    w->combine[r].topk_weights = at_dispatch ? NULL : weights;
    return TERN_OK;
}

static void free_inputs(struct ll_wanted *w)
{
    for (int r = 0; r < w->shape->routing.num_ranks; r++) {
        release(w->tokens[r], ll_tensor_bytes(w->shape, LT_TOKENS));
        release(w->made[r], ll_tensor_bytes(w->shape, LT_MADE));
        w->tokens[r] = w->made[r] = NULL;
    }
}

/* ---- Outputs ---- */

/* What one rank's thread expects, by tensor. */
struct expected {
    const struct ll_shape *shape;
    int rank;
    void *tensors[NUM_LL_TENSORS];
    enum ll_tensor compared;
};

static const enum ll_tensor outputs[] = {LT_SLAB,    LT_SCALES,      LT_COUNTS,     LT_RANGES, LT_SOURCES,
                                         LT_ROW_IDS, LT_ROW_WEIGHTS, LT_SUM_COUNTS, LT_SUMS};
enum { NUM_OUTPUTS = sizeof(outputs) / sizeof(outputs[0]) };

static void free_expected(struct expected *x)
{
    for (int k = 0; k < (int)NUM_OUTPUTS; k++) {
        release(x->tensors[outputs[k]], ll_tensor_bytes(x->shape, outputs[k]));
    }
}

/* The outputs of this rank by the reference; the row behind each run is poison. */
static enum tern_status make_expected(const struct ll_wanted *w, struct expected *x)
{
    struct tern_ll_dispatch_args dispatch[TERN_MAX_RANKS];
    struct tern_ll_combine_args combine[TERN_MAX_RANKS];
    for (int k = 0; k < (int)NUM_OUTPUTS; k++) {
        uint64_t bytes = ll_tensor_bytes(x->shape, outputs[k]);
        x->tensors[outputs[k]] = bytes ? reserve(bytes) : NULL;
        if (bytes && !x->tensors[outputs[k]]) {
            return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for the outputs of rank %d", x->rank);
        }
    }
    memcpy(dispatch, w->dispatch, sizeof(dispatch));
    memcpy(combine, w->combine, sizeof(combine));
    dispatch[x->rank].out = x->tensors[LT_SLAB];
    dispatch[x->rank].out_scales = x->tensors[LT_SCALES];
    dispatch[x->rank].out_counts = (int32_t *)x->tensors[LT_COUNTS];
    dispatch[x->rank].out_ranges = (int64_t *)x->tensors[LT_RANGES];
    dispatch[x->rank].out_source = (int32_t *)x->tensors[LT_SOURCES];
    dispatch[x->rank].out_topk_idx = (int32_t *)x->tensors[LT_ROW_IDS];
    dispatch[x->rank].out_topk_weights = (float *)x->tensors[LT_ROW_WEIGHTS];
    dispatch[x->rank].sum_counts = (int64_t *)x->tensors[LT_SUM_COUNTS];
    combine[x->rank].out = x->tensors[LT_SUMS];
    terni_ref_ll_dispatch(&x->shape->ref, dispatch, x->rank);
    terni_ref_ll_combine(&x->shape->ref, dispatch, combine, x->rank);
    return TERN_OK;
}

static void copy_row(void *user, uint64_t row, void *at)
{
    struct expected *x = (struct expected *)user;
    uint32_t bytes = ll_row_bytes(x->shape, x->compared);
    memcpy(at, (char *)x->tensors[x->compared] + row * bytes, bytes);
}

static void poison_row(void *user, uint64_t row, void *at)
{
    struct expected *x = (struct expected *)user;
    (void)row;
    memset(at, POISON, ll_row_bytes(x->shape, x->compared));
}

static uint32_t element_bytes(const struct ll_shape *s, enum ll_tensor t)
{
    return t == LT_SUMS                                            ? 2
           : t == LT_SLAB && s->options->ll.cast == TERN_CAST_NONE ? 2
           : t == LT_SLAB                                          ? 1
           : t == LT_RANGES || t == LT_SUM_COUNTS                  ? 8
                                                                   : 4;
}

/* The rows of a run and, if there is room for one more, the poison behind it. */
static enum tern_status compare_run(struct pieces *p, struct expected *x, void *device, struct ll_run run,
                                    struct tally *tally)
{
    uint32_t element = element_bytes(x->shape, x->compared);
    struct piece_rows rows = {device, ll_row_bytes(x->shape, x->compared), run.first, run.num};
    TERN_TRY(pieces_compare(p, &rows, element, copy_row, x, tally));
    rows.first += rows.num;
    rows.num = run.num < run.room ? 1 : 0;
    return pieces_compare(p, &rows, element, poison_row, x, tally);
}

/* A tensor that lies in slabs, run by run; scales, words of one kind after the other in each slab. */
static enum tern_status compare_slabs(struct pieces *p, struct expected *x, void *device, struct tally *tally)
{
    const struct ll_shape *s = x->shape;
    uint32_t words = x->compared == LT_SCALES ? s->scale_words : 1;
    for (uint32_t k = 0; k < ll_num_runs(s); k++) {
        struct ll_run run = ll_run(s, x->rank, k);
        uint64_t slab = run.first / s->slab_rows, within = run.first % s->slab_rows;
        for (uint32_t word = 0; word < words; word++) {
            run.first = (slab * words + word) * s->slab_rows + within;
            TERN_TRY(compare_run(p, x, device, run, tally));
        }
    }
    return TERN_OK;
}

static enum tern_status compare_tensor(struct pieces *p, struct expected *x, void *device,
                                       struct tally *tally)
{
    const struct ll_shape *s = x->shape;
    uint64_t num;
    switch (x->compared) {
    case LT_SUMS:
        num = s->routing.tokens;
        break;
    case LT_COUNTS:
    case LT_RANGES:
    case LT_SUM_COUNTS:
        num = ll_tensor_bytes(s, x->compared) / ll_row_bytes(s, x->compared);
        break;
    default:
        return compare_slabs(p, x, device, tally);
    }
    struct ll_run all = {0, num, num};
    return compare_run(p, x, device, all, tally);
}

static enum tern_status compare_rank(void *user, int i)
{
    struct check *c = (struct check *)user;
    struct ll_seat *seat = &c->b->seats[i];
    struct expected x = {&c->b->shape, seat->rank, {NULL}, LT_SLAB};
    struct pieces p;
    if (seat->rank == (int)c->b->shape.options->ll.mask) {
        return TERN_OK;
    }
    TERN_TRY(pieces_open(&p, seat->comm, seat->stream));
    enum tern_status status = make_expected(&c->wanted, &x);
    for (int k = 0; status == TERN_OK && k < (int)NUM_OUTPUTS; k++) {
        enum ll_operation op = outputs[k] == LT_SUMS ? LL_OP_COMBINE : LL_OP_DISPATCH;
        x.compared = outputs[k];
        if (x.tensors[x.compared]) {
            status =
                compare_tensor(&p, &x, seat->lanes[c->wanted.lane].tensors[x.compared], &c->tallies[i][op]);
        }
    }
    free_expected(&x);
    pieces_close(&p);
    return status;
}

/* ---- The run ---- */

static enum tern_status poison(struct ll_bench *b)
{
    for (int i = 0; i < b->party->num_local; i++) {
        struct ll_seat *seat = &b->seats[i];
        for (uint32_t lane = 0; lane < b->shape.options->ll.lanes; lane++) {
            for (int k = 0; k < (int)NUM_OUTPUTS; k++) {
                uint64_t bytes = ll_tensor_bytes(&b->shape, outputs[k]);
                int byte = outputs[k] == LT_SUM_COUNTS ? 0 : POISON;
                if (bytes != 0) {
                    TERN_TRY(tern_fill(seat->comm, seat->lanes[lane].tensors[outputs[k]], byte, bytes,
                                       seat->stream));
                }
            }
        }
    }
    return TERN_OK;
}

static enum tern_status run_once(struct ll_bench *b)
{
    for (int i = 0; i < b->party->num_local; i++) {
        TERN_TRY(ll_issue(b, i, UNIT_PAIR));
    }
    return ll_synchronize(b);
}

/* --corrupt: the first row in use, or the first sum, of the first rank that takes part. */
static enum tern_status corrupt(struct ll_bench *b)
{
    const struct ll_shape *s = &b->shape;
    int rank = s->options->ll.mask == 0, i = rank - b->party->first;
    int is_sum = s->options->corrupt == CORRUPT_COMBINE;
    int is_asked = is_sum || s->options->corrupt == CORRUPT_DISPATCH;
    enum ll_tensor t = is_sum ? LT_SUMS : LT_SLAB;
    struct ll_run run = {0, is_sum ? s->routing.tokens : 0, 0};
    if (!is_asked || i < 0 || i >= b->party->num_local) {
        return TERN_OK;
    }
    for (uint32_t k = 0; !is_sum && run.num == 0 && k < ll_num_runs(s); k++) {
        run = ll_run(s, rank, k);
    }
    if (run.num == 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--corrupt: rank %d has no row to corrupt", rank);
    }
    return pieces_flip(b->seats[i].comm, b->seats[i].stream,
                       (char *)b->seats[i].lanes[0].tensors[t] + run.first * ll_row_bytes(s, t));
}

static enum tern_status check_lane(struct check *c, uint32_t lane)
{
    c->wanted.lane = lane;
    enum tern_status status = party_each(c->b->party->num_ranks, make_inputs, &c->wanted);
    if (status == TERN_OK) {
        status = party_each(c->b->party->num_local, compare_rank, c);
    }
    free_inputs(&c->wanted);
    return status;
}

static enum tern_status check_all(struct check *c, struct tally tallies[NUM_LL_OPERATIONS])
{
    TERN_TRY(poison(c->b));
    TERN_TRY(run_once(c->b));
    TERN_TRY(corrupt(c->b));
    for (uint32_t lane = 0; lane < c->b->shape.options->ll.lanes; lane++) {
        TERN_TRY(check_lane(c, lane));
    }
    return party_tally(c->b->party, c->tallies[0], NUM_LL_OPERATIONS, tallies);
}

enum tern_status ll_check(struct ll_bench *b, struct tally tallies[NUM_LL_OPERATIONS])
{
    struct check *c = (struct check *)calloc(1, sizeof(*c));
    if (!c) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for the results of %d ranks", b->party->num_ranks);
    }
    c->b = b;
    c->wanted.shape = &b->shape;
    enum tern_status status = check_all(c, tallies);
    free(c);
    return status;
}
