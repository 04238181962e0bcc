/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows that are lost on their way: a rank that died while it sent. It is played by one that sends everything,
 * after which some of the words that say so are taken back at one receiver. That one waits, masks the sender,
 * and must use exactly what came. In some rounds the words come after all, while it gives them up: then every
 * row must be there as a whole or not at all. */
#include "ll_batch.h"
#include "ll_words.h"
#include "scene.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, CULPRIT = 3, HERE = 0, TOKENS = 20, TOPK = 4, CHOICES = TOKENS * TOPK };

struct loss {
    struct scene scene;
    struct ll_batch batch;
    uint64_t epoch;    /* of the lane's running operation */
    int lost[CHOICES]; /* the culprit's rows (dispatch), or places of rows (combine), that are taken back */
    uint64_t *words[CHOICES], values[CHOICES];
    int num_lost;
};

struct form {
    uint32_t hidden, cast, weights, layout;
};

static int loss_open(struct loss *x, uint64_t seed, const struct form *form, uint32_t timeout_ms)
{
    struct ll_shape s;

    memset(x, 0, sizeof *x);
    memset(&s, 0, sizeof s);
    scene_init(&x->scene, RANKS, seed);
    s.batch = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    s.batch.max_tokens = TOKENS;
    s.hidden = form->hidden;
    s.cast = form->cast;
    s.weights = form->weights;
    s.layout = form->layout;
    ll_batch_init(&x->batch, &x->scene.world, x->scene.eps, &s, &x->scene.rng);
    for (int r = 0; r < RANKS; r++) {
        struct ll_member *m = &x->batch.ranks[r];
        m->num_sms = 6;
        if (!m->source.arena) {
            m->source =
                world_take(&x->scene.world, r, ARENA_DEVICE, (size_t)4 * RANKS * TOKENS * 4, "out_source");
        }
    }
    ll_config_add(&x->scene.config, &s, 1);
    x->scene.config.ll_mask = 1;
    x->scene.config.timeout_ms = timeout_ms;
    x->scene.free_running = 1;
    PASS(scene_open(&x->scene));
    for (int r = 0; r < RANKS; r++) {
        ll_words_spoil(x->scene.eps[r], 0);
    }
    ll_batch_redraw_ids(&x->batch, ROUTING_UNIFORM, &x->scene.rng);
    return world_upload(&x->scene.world);
}

static void loss_close(struct loss *x)
{
    ll_batch_fini(&x->batch);
    scene_fini(&x->scene);
}

static int64_t id_of(const struct loss *x, int rank, int token, int k)
{
    return x->batch.batch.ids[rank][token * TOPK + k];
}

static int owner_of(const struct loss *x, int rank, int token, int k)
{
    int64_t id = id_of(x, rank, token, k);

    return id < 0 ? -1 : (int)(id / 4);
}

/* A word in the window of the receiver, which the culprit has written. */
static void take_back(struct loss *x, int what, uint64_t *word)
{
    x->lost[x->num_lost] = what;
    x->words[x->num_lost] = word;
    x->values[x->num_lost] = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    x->num_lost++;
    __atomic_store_n(word, 0, __ATOMIC_RELEASE);
}

static uint64_t *arrival_at(const struct loss *x, uint64_t i)
{
    return ll_words_arrivals(x->scene.eps[HERE], 0, x->epoch) + i;
}

/* The words come after all, as soon as the receiver has given up the first. */
static int bring(struct loss *x)
{
    uint64_t seen[2] = {0, 0};
    double begin = test_seconds();

    while (!seen[0]) {
        OK(tern_ll_mask_peek(x->scene.eps[HERE], seen));
        CHECK(test_seconds() - begin < 60, "nobody is masked");
    }
    for (int i = x->num_lost - 1; i >= 0; i--) {
        __atomic_store_n(x->words[i], x->values[i], __ATOMIC_RELEASE);
    }
    return 0;
}

static int issue_on(struct loss *x, int r, int operation, uint32_t phase)
{
    struct tern_ll_dispatch_args d = ll_dispatch_args(&x->batch, r, 1);
    struct tern_ll_combine_args c = ll_combine_args(&x->batch, r, 1);
    struct tern_stream *stream = x->scene.world.members[r].lanes[0];

    d.phase = c.phase = phase;
    OK(operation == TERN_OP_LL_DISPATCH ? tern_ll_dispatch(x->scene.eps[r], &d, stream)
                                        : tern_ll_combine(x->scene.eps[r], &c, stream));
    return 0;
}

static int receive(struct loss *x, int operation, int brings)
{
    PASS(issue_on(x, HERE, operation, TERN_LL_RECEIVE));
    if (brings) {
        PASS(bring(x));
    }
    OK(tern_ep_synchronize(x->scene.eps[HERE]));
    for (int r = 0; r < RANKS; r++) {
        if (r != HERE) {
            PASS(issue_on(x, r, operation, TERN_LL_RECEIVE));
        }
    }
    return world_ep_synchronize(&x->scene.world, x->scene.eps);
}

/* Every rank, the culprit too, has heard of the mask, and only that one was masked. */
static int check_masked(struct loss *x)
{
    for (int r = 0; r < RANKS; r++) {
        uint64_t seen[2];
        OK(tern_ll_mask_peek(x->scene.eps[r], seen));
        CHECK(seen[0] == 1u << CULPRIT, "rank %d sees 0x%llx", r, (unsigned long long)seen[0]);
    }
    return 0;
}

/* An operation in which nobody waits: the deadline is short. */
static int whole(struct loss *x, int (*issue)(struct ll_batch *, uint32_t, int))
{
    PASS(issue(&x->batch, TERN_LL_SEND, 0));
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    PASS(issue(&x->batch, TERN_LL_RECEIVE, 0));
    return world_ep_synchronize(&x->scene.world, x->scene.eps);
}

/* The culprit's combine is alone; the others leave it out. */
static int combine_without(struct loss *x, const char *step)
{
    unsigned char masked[TERN_MAX_RANKS] = {0, 0, 0, 1};

    PASS(whole(x, ll_combine_issue));
    ll_expect_masks(&x->batch, masked, 1);
    ll_expect_combine(&x->batch);
    PASS(check_masked(x));
    return world_verify(&x->scene.world, step);
}

/* ---- Rows of a dispatch ---- */

/* Whether the culprit's token t goes to the receiver. */
static int goes_here(const struct loss *x, int t)
{
    int goes = 0;

    for (int k = 0; k < TOPK; k++) {
        goes |= owner_of(x, CULPRIT, t, k) == HERE;
    }
    return goes;
}

/* Of the culprit's rows for the receiver, which are in the order of tokens, one in `every` is lost. */
static void lose_rows(struct loss *x, uint32_t every)
{
    uint64_t j = 0;

    for (int t = 0; t < TOKENS; t++) {
        int goes = goes_here(x, t);
        if (goes && rng_one_in(&x->scene.rng, every)) {
            take_back(x, t, arrival_at(x, (uint64_t)CULPRIT * TOKENS + j));
        }
        j += (uint64_t)goes;
    }
}

static void forget_row(struct loss *x, size_t row)
{
    const struct ll_batch *b = &x->batch;
    const struct ll_member *m = &b->ranks[HERE];
    struct world *w = b->batch.world;
    uint32_t cast = b->shape.cast;
    size_t bytes = b->shape.hidden * (cast == TERN_CAST_NONE ? 2u : 1u);
    size_t words = cast == TERN_CAST_NONE ? 0 : terni_ref_scale_bytes(cast, b->shape.hidden) / 4;
    size_t slab = (size_t)RANKS * TOKENS;

    memset((char *)world_image(w, m->out) + row * bytes, 0, bytes);
    ((int32_t *)world_image(w, m->source))[row] = -1;
    for (size_t k = 0; k < TOPK && m->local.bytes; k++) {
        ((int32_t *)world_image(w, m->local))[row * TOPK + k] = -1;
    }
    if (m->local_weights.bytes) {
        memset((char *)world_image(w, m->local_weights) + row * TOPK * 4, 0, (size_t)TOPK * 4);
    }
    for (size_t i = 0; i < words; i++) {
        ((uint32_t *)world_image(w, m->scales))[(row / slab * words + i) * slab + row % slab] = 0;
    }
}

/* Row of the receiver's output that holds the culprit's token t on account of choice k. */
static size_t row_at(const struct loss *x, int t, int k)
{
    size_t expert = (size_t)(id_of(x, CULPRIT, t, k) - 4 * HERE), row = (size_t)CULPRIT * TOKENS;

    if (x->batch.shape.layout == TERN_LL_BY_EXPERT) {
        return expert * RANKS * TOKENS + (size_t)x->batch.ref.row_of[CULPRIT][t * TOPK + k];
    }
    for (int i = 0; i < t; i++) {
        row += (size_t)goes_here(x, i);
    }
    return row;
}

/* What is expected without the culprit's row of token t; 1 unless `sources`, of the receiver, says that it
 * came. */
static int forget_token(struct loss *x, int t, const int32_t *sources)
{
    for (int k = 0; k < TOPK; k++) {
        if (owner_of(x, CULPRIT, t, k) != HERE) {
            continue;
        }
        if (sources && sources[row_at(x, t, k)] != -1) {
            return 0;
        }
        forget_row(x, row_at(x, t, k));
    }
    return 1;
}

static int rows_lost(struct loss *x, uint32_t every, int brings, int *forgotten)
{
    const struct ll_member *m = &x->batch.ranks[HERE];
    struct world *w = &x->scene.world;
    static int32_t sources[4 * RANKS * TOKENS]; /* by rank: a quarter of them */

    x->epoch = 1;
    PASS(ll_dispatch_issue(&x->batch, TERN_LL_SEND, 0));
    PASS(world_ep_synchronize(w, x->scene.eps));
    lose_rows(x, every);
    CHECK(x->num_lost > 0, "nothing to lose");
    PASS(receive(x, TERN_OP_LL_DISPATCH, brings));
    ll_expect_dispatch(&x->batch);
    if (brings) {
        const void *seen = world_peek(w, HERE, world_device(w, m->source), m->source.bytes);
        CHECK(seen, "no sources");
        memcpy(sources, seen, m->source.bytes);
    }
    for (int i = 0; i < x->num_lost; i++) {
        *forgotten += forget_token(x, x->lost[i], brings ? sources : NULL);
    }
    PASS(world_verify(w, "a dispatch of which rows were lost"));
    return combine_without(x, "the combine after rows were lost");
}

static int cpu_only(struct test *t)
{
    int cpu = scene_on_cpu();

    return cpu < 0 ? cpu : cpu ? 0 : test_skip(t, "the host reaches the windows of the cpu machine only");
}

static const struct form forms[] = {
    {2600, TERN_CAST_NONE, TERN_LL_WEIGHTS_AT_COMBINE, TERN_LL_BY_EXPERT},
    {4112, TERN_CAST_FP8, TERN_LL_WEIGHTS_AT_DISPATCH, TERN_LL_BY_EXPERT},
    {2896, TERN_CAST_FP8, TERN_LL_WEIGHTS_AT_DISPATCH, TERN_LL_BY_RANK},
    {6144, TERN_CAST_FP8_UE8M0, TERN_LL_WEIGHTS_AT_COMBINE, TERN_LL_BY_EXPERT},
    {1400, TERN_CAST_NONE, TERN_LL_WEIGHTS_AT_DISPATCH, TERN_LL_BY_EXPERT}};
enum { FORMS = sizeof forms / sizeof *forms };

static int rows(struct test *t)
{
    int forgotten = 0, result = cpu_only(t);

    test_quiet();
    for (int i = 0; i < test_scaled(t, 10) && !result; i++) {
        struct loss x;
        result = loss_open(&x, 300 + (uint64_t)i, &forms[i % FORMS], t->scale < 100 ? 700 : 150);
        result = result ? result : rows_lost(&x, i < FORMS ? 2 : 1, 0, &forgotten);
        loss_close(&x);
    }
    test_detail(t, "%d rows", forgotten);
    return result;
}

static int rows_late(struct test *t)
{
    int forgotten = 0, lost = 0, result = cpu_only(t);

    test_quiet();
    for (int i = 0; i < test_scaled(t, 25) && !result; i++) {
        struct loss x;
        result = loss_open(&x, 400 + (uint64_t)i, &forms[i % FORMS], t->scale < 100 ? 500 : 100);
        result = result ? result : rows_lost(&x, 1, 1, &forgotten);
        lost += x.num_lost;
        loss_close(&x);
    }
    if (!result) {
        test_detail(t, "%d of %d rows came too late", forgotten, lost);
    }
    return result;
}

/* ---- Counts of a dispatch ---- */

/* One word of the culprit's counts is lost: none of its rows count here. It is the last source, so that the
 * places of others' rows stay. */
static int counts_lost(struct loss *x, int word)
{
    unsigned char masked[TERN_MAX_RANKS] = {0, 0, 0, 1};
    struct tern_ll_dispatch_args args[RANKS];

    x->epoch = 1;
    PASS(ll_dispatch_issue(&x->batch, TERN_LL_SEND, 0));
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    take_back(x, 0, ll_words_entry(x->scene.eps[HERE], 0, x->epoch, CULPRIT) + word);
    PASS(receive(x, TERN_OP_LL_DISPATCH, 0));
    for (int r = 0; r < RANKS; r++) {
        args[r] = ll_dispatch_args(&x->batch, r, 0);
    }
    for (int r = 0; r < RANKS; r++) {
        terni_ref_ll_mask(&x->batch.ref, r == HERE ? masked : NULL);
        terni_ref_ll_dispatch(&x->batch.ref, args, r);
    }
    terni_ref_ll_mask(&x->batch.ref, NULL);
    PASS(world_verify(&x->scene.world, "a dispatch of which a count was lost"));
    return combine_without(x, "the combine after a count was lost");
}

static int counts(struct test *t)
{
    static const int form_of[] = {0, 2, 1, 3, 4, 0}; /* by rank nobody waits for the choices */
    int result = cpu_only(t);

    test_quiet();
    for (int i = 0; i < test_scaled(t, 6) && !result; i++) {
        struct loss x;
        result = loss_open(&x, 500 + (uint64_t)i, &forms[form_of[i]], t->scale < 100 ? 700 : 150);
        result = result ? result : counts_lost(&x, i % 4); /* signature, rows, twice choices of two experts */
        loss_close(&x);
    }
    return result;
}

/* ---- Rows of a combine ---- */

/* Whether choice k stands for a row of its own that comes home. */
static int stands_for_row(const struct loss *x, int t, int k)
{
    int summed = x->batch.shape.weights == TERN_LL_WEIGHTS_AT_DISPATCH;

    for (int i = 0; i < k; i++) {
        if (summed ? owner_of(x, HERE, t, i) == owner_of(x, HERE, t, k)
                   : id_of(x, HERE, t, i) == id_of(x, HERE, t, k)) {
            return 0;
        }
    }
    return owner_of(x, HERE, t, k) == CULPRIT;
}

/* No more than one row a token, so that there are only two right sums. */
static void lose_homeward(struct loss *x, uint32_t every)
{
    for (int t = 0; t < TOKENS; t++) {
        for (int k = TOPK - 1; k >= 0; k--) {
            if (stands_for_row(x, t, k) && rng_one_in(&x->scene.rng, every)) {
                take_back(x, t * TOPK + k, arrival_at(x, (uint64_t)(t * TOPK + k)));
                break;
            }
        }
    }
}

/* The reference no longer has the row that stands for this choice. */
static void forget_homeward(struct loss *x, int place)
{
    int summed = x->batch.shape.weights == TERN_LL_WEIGHTS_AT_DISPATCH;
    int t = place / TOPK;

    for (int k = 0; k < TOPK; k++) {
        if (summed ? owner_of(x, HERE, t, k) == CULPRIT
                   : id_of(x, HERE, t, k) == id_of(x, HERE, t, place % TOPK)) {
            x->batch.ref.row_of[HERE][t * TOPK + k] = -1;
        }
    }
}

/* Tokens whose sums have all that came late are expected as they would be anyway. */
static int take_whole_sums(struct loss *x, const unsigned char *with)
{
    const struct ll_member *m = &x->batch.ranks[HERE];
    struct world *w = &x->scene.world;
    size_t row = 2 * (size_t)x->batch.shape.hidden;
    char *image = (char *)world_image(w, m->home);
    int sums = 0;

    for (int i = 0; i < x->num_lost; i++) {
        size_t at = (size_t)(x->lost[i] / TOPK) * row;
        const void *seen = world_peek(w, HERE, (char *)world_device(w, m->home) + at, row);
        if (seen && memcmp(seen, image + at, row) != 0 && memcmp(seen, with + at, row) == 0) {
            memcpy(image + at, with + at, row);
            sums++;
        }
    }
    return sums;
}

static int homeward_lost(struct loss *x, int brings, int *in_time)
{
    struct world *w = &x->scene.world;
    const struct place *home = &x->batch.ranks[HERE].home;
    unsigned char *with = (unsigned char *)test_take(1, home->bytes);

    PASS(whole(x, ll_dispatch_issue));
    PASS(ll_combine_issue(&x->batch, TERN_LL_SEND, 0));
    PASS(world_ep_synchronize(w, x->scene.eps));
    x->epoch = 2;
    lose_homeward(x, brings ? 1 : 2);
    PASS(receive(x, TERN_OP_LL_COMBINE, brings));
    PASS(check_masked(x));
    ll_expect_dispatch(&x->batch);
    ll_expect_combine(&x->batch);
    memcpy(with, world_image(w, *home), home->bytes);
    for (int i = 0; i < x->num_lost; i++) {
        forget_homeward(x, x->lost[i]);
    }
    ll_expect_combine(&x->batch);
    if (brings) {
        *in_time += take_whole_sums(x, with);
    }
    free(with);
    return world_verify(w, "a combine of which rows were lost");
}

static int homeward(struct test *t)
{
    int result = cpu_only(t), in_time = 0;

    test_quiet();
    for (int i = 0; i < test_scaled(t, 10) && !result; i++) {
        struct loss x;
        result = loss_open(&x, 600 + (uint64_t)i, &forms[i % FORMS], t->scale < 100 ? 700 : 150);
        result = result ? result : homeward_lost(&x, 0, &in_time);
        loss_close(&x);
    }
    return result;
}

static int homeward_late(struct test *t)
{
    int result = cpu_only(t), in_time = 0, lost = 0;

    test_quiet();
    for (int i = 0; i < test_scaled(t, 25) && !result; i++) {
        struct loss x;
        result = loss_open(&x, 700 + (uint64_t)i, &forms[i % FORMS], t->scale < 100 ? 500 : 100);
        result = result ? result : homeward_lost(&x, 1, &in_time);
        lost += x.num_lost;
        loss_close(&x);
    }
    if (!result) {
        test_detail(t, "%d of %d rows came in time", in_time, lost);
    }
    return result;
}

/* ---- The notes of who is left out ---- */

/* The culprit hears while it sends that it is left out, before the first row of each of its blocks has left:
 * its combine is to know of no token, above all not what an earlier dispatch noted. */
static int notes_dropped(struct loss *x)
{
    const struct tern_ep *culprit = x->scene.eps[CULPRIT];
    const int32_t *ids = ll_words_ids(culprit, 0);
    int noted = 0;

    PASS(whole(x, ll_dispatch_issue));
    PASS(whole(x, ll_combine_issue));
    for (int i = 0; i < CHOICES; i++) {
        noted += ids[i] >= 0;
    }
    CHECK(noted > 0, "the first dispatch noted no id");
    __atomic_store_n(ll_words_heard(culprit, CULPRIT), 1, __ATOMIC_RELAXED);
    PASS(issue_on(x, CULPRIT, TERN_OP_LL_DISPATCH, TERN_LL_SEND));
    OK(tern_ep_synchronize(x->scene.eps[CULPRIT]));
    for (int i = 0; i < CHOICES; i++) {
        CHECK(ids[i] == -1, "token %d: choice %d is still noted as expert %d", i / TOPK, i % TOPK, ids[i]);
    }
    return 0;
}

static int notes(struct test *t)
{
    struct loss x;
    int result = cpu_only(t);

    if (result) {
        return result;
    }
    test_quiet();
    result = loss_open(&x, 800, &forms[0], 2000);
    result = result ? result : notes_dropped(&x);
    loss_close(&x);
    return result;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "some rows of a dispatch are lost", rows);
    test_run(&t, "rows of a dispatch come while they are given up", rows_late);
    test_run(&t, "a count of a dispatch is lost", counts);
    test_run(&t, "some rows of a combine are lost", homeward);
    test_run(&t, "rows of a combine come while they are given up", homeward_late);
    test_run(&t, "who is left out while it sends notes nothing that it has not sent", notes);
    return test_end(&t);
}
