/* SPDX-License-Identifier: Apache-2.0
 *
 * Low latency and words that get lost: every rank has sent, its kernel has ended, and then the words that say
 * so are wiped from one rank's window, as if they had never come. Whoever waits for such a row must not take
 * it, nor anything after it, for what lies in the buffer is not known. The deadline must name the sender.
 * With masks all goes on, without exactly the rows that the word stands for. Rows over blanks have no such
 * words: there any word of theirs may be the one that is lost.
 *
 * Windows are host memory on the cpu machine only. */
#include "ll_batch.h"
#include "ll_words.h"
#include "scene.h"

#include <string.h>

enum { RANKS = 4, SENDER = 0, VICTIM = 1, FAR_VICTIM = 2, LOST_TOKENS = 64, MOST_WARPS = 32 };

struct stage {
    struct scene scene;
    struct ll_batch batch;
};

static int stage_open(struct stage *x, uint32_t timeout_ms, uint32_t domain_ranks, uint32_t compression)
{
    struct ll_shape s;

    memset(x, 0, sizeof *x);
    memset(&s, 0, sizeof s);
    scene_init(&x->scene, RANKS, 31);
    s.batch = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    s.batch.max_tokens = LOST_TOKENS;
    s.hidden = 64;
    s.cast = TERN_CAST_FP8;
    s.compression = compression;
    ll_batch_init(&x->batch, &x->scene.world, x->scene.eps, &s, &x->scene.rng);
    for (int r = 0; r < RANKS; r++) {
        x->batch.ranks[r].num_sms = 1;
    }
    ll_config_add(&x->scene.config, &s, 1);
    x->scene.config.timeout_ms = timeout_ms;
    x->scene.config.domain_ranks = domain_ranks;
    x->scene.config.ll_mask = domain_ranks != 0;
    return scene_open(&x->scene);
}

static void stage_close(struct stage *x)
{
    ll_batch_fini(&x->batch);
    scene_fini(&x->scene);
}

/* Wipes arrival words begin .. end - 1 of the lane's operation number `epoch` from the victim's window.
 * Returns how many had come. */
static int lose(struct stage *x, uint64_t epoch, uint32_t begin, uint32_t end)
{
    uint64_t *words = ll_words_arrivals(x->scene.eps[VICTIM], 0, epoch);
    int lost = 0;

    for (uint32_t i = begin; i < end; i++) {
        lost += __atomic_exchange_n(&words[i], 0, __ATOMIC_RELAXED) >> 32 == epoch;
    }
    return lost;
}

/* The victim has given up, says whose row it missed, and has written nothing into its output. only_sender: no
 * other's row was lost. */
static int check_victim(struct stage *x, int operation, int only_sender, struct place output)
{
    struct tern_fault f = TERN_FAULT_INIT;
    const unsigned char *seen;

    REFUSES(tern_ep_synchronize(x->scene.eps[VICTIM]), TERN_TIMEOUT, "did not finish");
    OK(tern_fault_get(x->scene.eps[VICTIM], &f));
    CHECK(f.operation == operation && f.reporter == VICTIM && f.awaited == TERN_AWAIT_DONE,
          "operation %d, reporter %d, awaited %d", f.operation, f.reporter, f.awaited);
    CHECK(!only_sender || f.peer == SENDER, "rank %d is to blame", f.peer);
    seen = (const unsigned char *)world_peek(&x->scene.world, VICTIM, world_device(&x->scene.world, output),
                                             output.bytes);
    CHECK(seen, "no output");
    for (size_t i = 0; i < output.bytes; i++) {
        CHECK(seen[i] == POISON, "byte %zu of %zu was written", i, output.bytes);
    }
    return 0;
}

static int begin(struct stage *x)
{
    test_quiet();
    ll_batch_redraw_ids(&x->batch, ROUTING_UNIFORM, &x->scene.rng); /* every rank has all its tokens */
    PASS(world_upload(&x->scene.world));
    PASS(ll_dispatch_issue(&x->batch, TERN_LL_SEND, 0));
    return world_ep_synchronize(&x->scene.world, x->scene.eps);
}

/* Rows of the sender come first in the order of rows: each warp of the one block begins with one of them. */
static int lost_dispatch_body(struct stage *x)
{
    for (int r = 0; r < RANKS; r++) {
        ll_words_forbid(x->scene.eps[r]);
    }
    PASS(begin(x));
    CHECK(lose(x, 1, SENDER * LOST_TOKENS, (SENDER + 1) * LOST_TOKENS) >= MOST_WARPS, "too few rows");
    PASS(ll_dispatch_issue(&x->batch, TERN_LL_RECEIVE, 0));
    return check_victim(x, TERN_OP_LL_DISPATCH, 1, x->batch.ranks[VICTIM].out);
}

/* Every rank's rows of a combine are home. */
static int send_home(struct stage *x)
{
    PASS(begin(x));
    PASS(ll_dispatch_issue(&x->batch, TERN_LL_RECEIVE, 0));
    PASS(ll_combine_issue(&x->batch, TERN_LL_SEND, 0));
    return world_ep_synchronize(&x->scene.world, x->scene.eps);
}

/* Likewise the first tokens, of which each misses all its rows. */
static int lost_combine_body(struct stage *x)
{
    uint32_t topk = x->batch.shape.batch.topk;

    for (int r = 0; r < RANKS; r++) {
        ll_words_forbid(x->scene.eps[r]);
    }
    PASS(send_home(x));
    CHECK(lose(x, 2, 0, MOST_WARPS * topk) >= MOST_WARPS, "too few rows");
    PASS(ll_combine_issue(&x->batch, TERN_LL_RECEIVE, 0));
    return check_victim(x, TERN_OP_LL_COMBINE, 0, x->batch.ranks[VICTIM].home);
}

/* Of rows over blanks, which have no words: all of them. */
static int lost_blanks_body(struct stage *x)
{
    PASS(send_home(x));
    CHECK(ll_words_lose_blanks(x->scene.eps[VICTIM], 0, 2) >= MOST_WARPS, "too few words");
    PASS(ll_combine_issue(&x->batch, TERN_LL_RECEIVE, 0));
    return check_victim(x, TERN_OP_LL_COMBINE, 0, x->batch.ranks[VICTIM].home);
}

static int lost_places_body(struct stage *x)
{
    PASS(begin(x));
    CHECK(ll_words_lose_blanks(x->scene.eps[VICTIM], 0, 1) >= MOST_WARPS, "too few words");
    PASS(ll_dispatch_issue(&x->batch, TERN_LL_RECEIVE, 0));
    return check_victim(x, TERN_OP_LL_DISPATCH, 0, x->batch.ranks[VICTIM].out);
}

/* One word of one row, of a dispatch (epoch 1) or of a combine (2); then a reset, and all is as if it had not
 * been. */
static int lose_one(struct stage *x, int epoch, uint64_t number)
{
    struct ll_batch *b = &x->batch;

    PASS(epoch == 1 ? begin(x) : send_home(x));
    PASS(ll_words_lose_one(x->scene.eps[VICTIM], 0, (uint64_t)epoch, number));
    PASS(epoch == 1 ? ll_dispatch_issue(b, TERN_LL_RECEIVE, 0) : ll_combine_issue(b, TERN_LL_RECEIVE, 0));
    REFUSES(tern_ep_synchronize(x->scene.eps[VICTIM]), TERN_TIMEOUT, "did not finish");
    OK(tern_ep_reset_all(RANKS, x->scene.eps));
    PASS(world_upload(&x->scene.world));
    PASS(ll_dispatch_issue(b, TERN_LL_BOTH, 0));
    PASS(ll_combine_issue(b, TERN_LL_BOTH, 0));
    ll_expect_dispatch(b);
    ll_expect_combine(b);
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    return world_verify(&x->scene.world, "after a reset");
}

/* The first row's words: of its notes the first choice, key, token, first weight, first scale; of its first
 * piece the first choice, key, and four channels side by side, or eight bytes. */
static int lost_word_body(struct stage *x)
{
    uint64_t topk = x->batch.shape.batch.topk, notes = 2 * topk + 2;
    uint64_t scales = 8; /* a sector of them */
    uint64_t piece = notes + scales, payload = piece + topk + 1;
    uint64_t of_dispatch[] = {0,       topk,        topk + 1,    topk + 2,   notes, piece, piece + topk,
                              payload, payload + 1, payload + 2, payload + 3};

    for (size_t i = 0; i < sizeof of_dispatch / sizeof *of_dispatch; i++) {
        PASS(lose_one(x, 1, of_dispatch[i]));
    }
    for (uint64_t i = 0; i < 4; i++) {
        PASS(lose_one(x, 2, i));
    }
    return 0;
}

/* Rows that the sender's chunk number `chunk` has for the far victim weigh nothing in the reference. Returns
 * how many it has. */
static uint32_t weigh_nothing(struct stage *x, uint32_t chunk)
{
    const struct batch *b = &x->batch.batch;
    float *weights = (float *)world_image(&x->scene.world, b->weights[FAR_VICTIM]);
    int experts = (int)(b->shape.num_experts / RANKS);
    uint32_t topk = b->shape.topk, slot = 0, lost = 0;

    for (int e = SENDER * experts; e < (SENDER + 1) * experts; e++) {
        for (uint32_t t = 0; t < b->num_tokens[FAR_VICTIM]; t++) {
            uint32_t hits = 0;
            for (uint32_t c = t * topk; c < (t + 1) * topk; c++) {
                int is_it = b->ids[FAR_VICTIM][c] == e;
                hits += (uint32_t)is_it;
                if (is_it && slot / (uint32_t)ll_words_chunk() == chunk) {
                    weights[c] = 0.0f;
                }
            }
            lost += hits && slot / (uint32_t)ll_words_chunk() == chunk;
            slot += hits > 0;
        }
    }
    return lost;
}

/* The second chunk of what a far rank sends home. */
static int lost_chunk_body(struct stage *x)
{
    struct place home = x->batch.ranks[FAR_VICTIM].home;
    const void *seen;
    uint64_t masks[2];

    PASS(begin(x));
    PASS(ll_dispatch_issue(&x->batch, TERN_LL_RECEIVE, 0));
    PASS(ll_combine_issue(&x->batch, TERN_LL_SEND, 0));
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    CHECK(__atomic_exchange_n(
              ll_words_home(x->scene.eps[FAR_VICTIM], 0, 2, x->scene.eps[SENDER], (uint32_t)ll_words_chunk()),
              0, __ATOMIC_RELAXED) >>
                  32 ==
              2,
          "the chunk has not come");
    PASS(ll_combine_issue(&x->batch, TERN_LL_RECEIVE, 0));
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    OK(tern_ll_mask_peek(x->scene.eps[FAR_VICTIM], masks));
    CHECK(masks[0] == 1u << SENDER, "masks are 0x%llx", (unsigned long long)masks[0]);
    CHECK(weigh_nothing(x, 1) == (uint32_t)ll_words_chunk(), "there is no second chunk");
    ll_expect_dispatch(&x->batch);
    ll_expect_combine(&x->batch);
    seen = world_peek(&x->scene.world, FAR_VICTIM, world_device(&x->scene.world, home), home.bytes);
    CHECK(seen != NULL && memcmp(seen, world_image(&x->scene.world, home), home.bytes) == 0,
          "other sums than without the rows of that chunk");
    return 0;
}

static int with_stage(struct test *t, int (*body)(struct stage *), uint32_t domain_ranks,
                      uint32_t compression)
{
    struct stage x;
    int cpu = scene_on_cpu();
    int result;

    if (cpu != 1) {
        return cpu < 0 ? cpu : test_skip(t, "windows are not host memory");
    }
    result = stage_open(&x, t->scale < 100 ? 3000 : 700, domain_ranks, compression);
    result = result ? result : body(&x);
    stage_close(&x);
    return result;
}

static int lost_dispatch(struct test *t) { return with_stage(t, lost_dispatch_body, 0, TERN_LL_PLAIN); }
static int lost_places(struct test *t) { return with_stage(t, lost_places_body, 0, TERN_LL_PLAIN); }
static int lost_word(struct test *t) { return with_stage(t, lost_word_body, 0, TERN_LL_PLAIN); }
static int lost_combine(struct test *t) { return with_stage(t, lost_combine_body, 0, TERN_LL_PLAIN); }
static int lost_blanks(struct test *t) { return with_stage(t, lost_blanks_body, 0, TERN_LL_PLAIN); }
static int lost_chunk(struct test *t)
{
    PASS(with_stage(t, lost_chunk_body, RANKS / 2, TERN_LL_PLAIN));
    return with_stage(t, lost_chunk_body, RANKS / 2, TERN_LL_LOG10);
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "rows of a dispatch whose words never came", lost_dispatch);
    test_run(&t, "rows of a dispatch over blanks that never came", lost_places);
    test_run(&t, "rows of a combine whose words never came", lost_combine);
    test_run(&t, "rows of a combine over blanks that never came", lost_blanks);
    test_run(&t, "single words of rows over blanks that never came", lost_word);
    test_run(&t, "a chunk of a combine whose word never came, with masks", lost_chunk);
    return test_end(&t);
}
