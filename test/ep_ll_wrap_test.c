/* SPDX-License-Identifier: Apache-2.0
 *
 * Low latency after 2^32 operations in a lane, when the tags of words come again. The test sets the epoch
 * that the ranks' kernels count in their device memory; nobody can wait for it. In one domain, and railed;
 * and of few tokens, whose rows go in words that have all of the epoch. */
#include "ll_words.h"
#include "support.h"

#include <string.h>

#include "ep/ep_ll.h"

enum { RANKS = 4, SHARE = 2, TOPK = RANKS, TOKENS = 20, FEW = 6, SEEDS = 24, HIDDEN = 64 };
enum { EXPERTS = SHARE * RANKS, SLAB_ROWS = EXPERTS * TOKENS, GROUP = 2 };
static const uint64_t half = 1ull << 32; /* the epoch whose tag is that of a word never written */

struct lane_user {
    int is_railed, by_words; /* by_words: rows have arrival words, however few they are */
    uint32_t most;           /* tokens of a dispatch */
    int shift;               /* which they are */
    struct tern_comm *comms[RANKS];
    struct tern_ep *eps[RANKS];
    struct tern_stream *streams[RANKS];
    void *ids[RANKS], *in[RANKS], *slab[RANKS], *home[RANKS];
    float *weights[RANKS];
    int32_t *counts[RANKS];
};

static uint16_t token_at(const struct lane_user *u, int r, int t, int i)
{
    return (uint16_t)(0x3f00 + r * 80 + (t + u->shift) % TOKENS * 4 + i % 4);
}

static int take(struct lane_user *u, int r, size_t bytes, const void *from, void **memory)
{
    OK(tern_alloc(u->comms[r], TERN_MEMORY_DEVICE, bytes, memory));
    if (from) {
        OK(tern_copy(u->comms[r], *memory, from, bytes, u->streams[r]));
        OK(tern_stream_synchronize(u->comms[r], u->streams[r]));
    }
    return 0;
}

static void fill_rows(const struct lane_user *u, int r, uint16_t *in)
{
    for (int i = 0; i < TOKENS * HIDDEN; i++) {
        in[i] = token_at(u, r, i / HIDDEN, i % HIDDEN);
    }
}

/* Choice k of every token is an expert of rank k; only choice 0 has weight, or all have as much. */
static int fill(struct lane_user *u, int r)
{
    int64_t ids[TOKENS][TOPK];
    uint16_t in[TOKENS * HIDDEN];
    size_t in_bytes = TOKENS * HIDDEN * 2;
    float weights[TOKENS][TOPK];
    void *memory;

    for (int t = 0; t < TOKENS; t++) {
        for (int k = 0; k < TOPK; k++) {
            ids[t][k] = SHARE * k + t % SHARE;
            weights[t][k] = k == 0;
        }
    }
    fill_rows(u, r, in);
    OK(tern_stream_open(u->comms[r], &u->streams[r]));
    PASS(take(u, r, sizeof ids, ids, &u->ids[r]));
    PASS(take(u, r, in_bytes, in, &u->in[r]));
    PASS(take(u, r, (size_t)SLAB_ROWS * HIDDEN * 2, NULL, &u->slab[r]));
    PASS(take(u, r, in_bytes, NULL, &u->home[r]));
    PASS(take(u, r, sizeof weights, weights, &memory));
    u->weights[r] = (float *)memory;
    PASS(take(u, r, SHARE * sizeof(int32_t), NULL, &memory));
    u->counts[r] = (int32_t *)memory;
    return 0;
}

static int open_ranks(struct lane_user *u, uint64_t seed)
{
    struct tern_comm_config comm = TERN_COMM_CONFIG_INIT;
    struct tern_ep_config config = TERN_EP_CONFIG_INIT;

    comm.cpu_seed = seed;
    config.num_experts = EXPERTS;
    config.max_topk = TOPK;
    config.max_tokens = TOKENS;
    config.max_row_bytes = 2 * HIDDEN;
    config.ll_tokens = TOKENS;
    config.ll_hidden = HIDDEN;
    config.ll_rail = (uint32_t)u->is_railed;
    config.domain_ranks = u->is_railed ? GROUP : 0;
    OK(tern_comm_open_all(RANKS, &comm, u->comms));
    OK(tern_ep_open_all(RANKS, u->comms, &config, u->eps));
    for (int r = 0; r < RANKS; r++) {
        if (u->by_words) {
            ll_words_forbid(u->eps[r]);
        }
        PASS(fill(u, r));
    }
    return 0;
}

static int set_epoch(struct lane_user *u, uint64_t epoch)
{
    for (int r = 0; r < RANKS; r++) {
        struct ll_lane lane = terni_ll_lane(u->eps[r], 0);
        OK(tern_copy(u->comms[r], &lane.state->epoch, &epoch, sizeof epoch, u->streams[r]));
        OK(tern_stream_synchronize(u->comms[r], u->streams[r]));
    }
    return 0;
}

/* A dispatch of so many tokens a rank and a combine of what came; two epochs. */
static int round_trip(struct lane_user *u, uint32_t tokens)
{
    for (int i = 0; i < 2 * RANKS; i++) {
        struct tern_ll_dispatch_args d = TERN_LL_DISPATCH_ARGS_INIT;
        struct tern_ll_combine_args c = TERN_LL_COMBINE_ARGS_INIT;
        int r = i % RANKS;
        d.in = u->in[r];
        d.topk_idx = u->ids[r];
        d.num_tokens = tokens;
        d.max_tokens = u->most;
        d.topk = TOPK;
        d.hidden = HIDDEN;
        d.out = u->slab[r];
        d.out_counts = u->counts[r];
        c.in = u->slab[r];
        d.weights = u->is_railed ? TERN_LL_WEIGHTS_AT_DISPATCH : TERN_LL_WEIGHTS_AT_COMBINE;
        d.topk_weights = u->is_railed ? u->weights[r] : NULL;
        c.topk_weights = u->is_railed ? NULL : u->weights[r];
        c.out = u->home[r];
        if (i < RANKS) {
            OK(tern_ll_dispatch(u->eps[r], &d, u->streams[r]));
        } else {
            OK(tern_ll_combine(u->eps[r], &c, u->streams[r]));
        }
    }
    for (int r = 0; r < RANKS; r++) {
        OK(tern_ep_synchronize(u->eps[r]));
    }
    return 0;
}

static int verify(struct lane_user *u)
{
    for (int r = 0; r < RANKS; r++) {
        uint16_t home[TOKENS * HIDDEN];
        OK(tern_copy(u->comms[r], home, u->home[r], TOKENS * HIDDEN * 2, u->streams[r]));
        OK(tern_stream_synchronize(u->comms[r], u->streams[r]));
        for (int i = 0; i < (int)u->most * HIDDEN; i++) {
            uint16_t wanted = token_at(u, r, i / HIDDEN, i % HIDDEN);
            CHECK(home[i] == wanted, "rank %d, token %d, channel %d: %04x, expected %04x", r, i / HIDDEN,
                  i % HIDDEN, home[i], wanted);
        }
    }
    return 0;
}

/* A batch without tokens first, so that words of rows are as they were when the object was opened; the next
 * dispatch, or the combine behind it, has the epoch whose tag they seem to have. */
static int cross(struct lane_user *u, uint64_t first)
{
    PASS(set_epoch(u, first - 1));
    PASS(round_trip(u, 0));
    PASS(round_trip(u, u->most));
    PASS(verify(u));
    PASS(round_trip(u, u->most));
    return verify(u);
}

static int shift_tokens(struct lane_user *u, int shift)
{
    u->shift = shift;
    for (int r = 0; r < RANKS; r++) {
        uint16_t in[TOKENS * HIDDEN];
        fill_rows(u, r, in);
        OK(tern_copy(u->comms[r], u->in[r], in, TOKENS * HIDDEN * 2, u->streams[r]));
        OK(tern_stream_synchronize(u->comms[r], u->streams[r]));
    }
    return 0;
}

/* Of lap 2 most places have rows of lap 0, 2^33 operations ago, of other tokens. */
static int come_again(struct lane_user *u, uint64_t first)
{
    for (int lap = 0; lap < 3; lap++) {
        PASS(shift_tokens(u, 1 + lap));
        PASS(set_epoch(u, (uint64_t)lap * half + first - 1));
        PASS(round_trip(u, lap == 1 ? 1 : u->most)); /* the other places rest */
    }
    return verify(u);
}

static void close_ranks(struct lane_user *u)
{
    for (int r = 0; r < RANKS; r++) {
        tern_ep_close(u->eps[r]);
        tern_stream_close(u->comms[r], u->streams[r]);
    }
    for (int r = 0; r < RANKS; r++) {
        tern_comm_close(u->comms[r]);
    }
}

static int every_seed(struct test *t, int is_railed, int by_words, uint32_t most, uint64_t first)
{
    int result = 0;

    for (int seed = 1; result == 0 && seed <= test_scaled(t, SEEDS); seed++) {
        struct lane_user u;
        memset(&u, 0, sizeof u);
        u.is_railed = is_railed;
        u.by_words = by_words;
        u.most = most;
        test_detail(t, "seed %d", seed);
        result = open_ranks(&u, (uint64_t)seed);
        result = result ? result : cross(&u, first);
        result = result || most != FEW ? result : come_again(&u, first);
        close_ranks(&u);
    }
    return result;
}

static int at_dispatch(struct test *t) { return every_seed(t, 0, 1, TOKENS, half - 2); }

static int at_combine(struct test *t) { return every_seed(t, 0, 1, TOKENS, half - 3); }

static int railed_dispatch(struct test *t) { return every_seed(t, 1, 0, TOKENS, half - 2); }

static int railed_combine(struct test *t) { return every_seed(t, 1, 0, TOKENS, half - 3); }

static int few_dispatch(struct test *t) { return every_seed(t, 0, 0, FEW, half - 2); }

static int few_combine(struct test *t) { return every_seed(t, 0, 0, FEW, half - 3); }

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "a dispatch whose tag is 0", at_dispatch);
    test_run(&t, "a combine whose tag is 0", at_combine);
    test_run(&t, "a railed dispatch whose tag is 0", railed_dispatch);
    test_run(&t, "a railed combine whose tag is 0", railed_combine);
    test_run(&t, "a dispatch of few tokens whose tag is 0, and comes again", few_dispatch);
    test_run(&t, "a combine of few tokens whose tag is 0, and comes again", few_combine);
    return test_end(&t);
}
