/* SPDX-License-Identifier: Apache-2.0
 *
 * A scene for tests of low latency: see ll_stage.h. */
#include "ll_stage.h"
#include "patience.h"

#include <string.h>

enum { CUT_RANKS = 2 };

static void cut_stage(struct scene *s, enum stage_cut cut)
{
    const int each = cut == STAGE_EACH_BY_PROXY || cut == STAGE_EACH_BY_NIC, ranks = each ? 1 : CUT_RANKS;
    const int by_proxy = cut == STAGE_BY_PROXY || cut == STAGE_EACH_BY_PROXY;
    const int by_nic = cut == STAGE_BY_NIC || cut == STAGE_EACH_BY_NIC;
    if (cut == STAGE_WHOLE) {
        return;
    }
    s->world.domain_ranks = ranks;
    s->world.forces_domains = by_proxy;
    s->free_running |= by_proxy || by_nic;
    s->config.domain_ranks = by_proxy ? 0 : (uint32_t)ranks;
    s->config.net_queues = 2;
    s->config.transport = by_nic ? TERN_TRANSPORT_SOFTNIC : TERN_TRANSPORT_AUTO;
}

/* What low latency does beside its operations. */
enum extra { EXTRA_NONE, EXTRA_MASKS, EXTRA_RAILS, EXTRA_FEW };

static int ll_stage_open(struct ll_stage *x, uint64_t seed, uint32_t timeout_ms, enum extra extra,
                         enum stage_cut cut)
{
    static const uint32_t casts[STAGE_BATCHES] = {TERN_CAST_NONE, TERN_CAST_FP8, TERN_CAST_FP8_UE8M0,
                                                  TERN_CAST_NONE};
    static const uint32_t compressions[STAGE_BATCHES] = {TERN_LL_PLAIN, TERN_LL_FP8, TERN_LL_LOG10,
                                                         TERN_LL_LOG10};
    static const uint32_t hiddens[STAGE_BATCHES] = {72, 400, 1040, 264};
    struct batch_shape shape = scene_shape(STAGE_RANKS, TERN_LAYOUT_EXPERT, ROUTING_UNIFORM);

    uint32_t hidden = 0;

    memset(x, 0, sizeof *x);
    scene_init(&x->scene, STAGE_RANKS, seed);
    x->scene.free_running = extra == EXTRA_MASKS || extra == EXTRA_FEW;
    cut_stage(&x->scene, cut);
    scene_add(&x->scene, &shape, 0);
    for (uint32_t i = 0; i < STAGE_BATCHES; i++) {
        struct ll_shape s;
        memset(&s, 0, sizeof s);
        s.batch = scene_shape(STAGE_RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
        s.batch.max_tokens = extra == EXTRA_FEW && i != 2 ? STAGE_FEW : STAGE_TOKENS;
        s.lane = i;
        s.hidden = hiddens[i];
        s.cast = casts[i];
        s.weights = i % 2;
        s.layout = i == STAGE_BY_RANK ? TERN_LL_BY_RANK : TERN_LL_BY_EXPERT;
        s.compression = compressions[i];
        s.railed = extra == EXTRA_RAILS;
        ll_batch_init(&x->batches[i], &x->scene.world, x->scene.eps, &s, &x->scene.rng);
        ll_config_add(&x->scene.config, &s, STAGE_BATCHES);
        hidden = hidden > s.hidden ? hidden : s.hidden;
    }
    x->scene.config.ll_hidden = hidden;
    x->scene.config.ll_tokens = STAGE_TOKENS;
    x->scene.config.timeout_ms = timeout_ms;
    x->scene.config.ll_mask = extra == EXTRA_MASKS;
    return scene_open(&x->scene);
}

static void ll_stage_close(struct ll_stage *x)
{
    for (int i = 0; i < STAGE_BATCHES; i++) {
        ll_batch_fini(&x->batches[i]);
    }
    scene_fini(&x->scene);
}

static int run(struct test *t, int (*body)(struct ll_stage *), uint32_t timeout_ms, enum extra extra,
               enum stage_cut cut)
{
    struct ll_stage x;
    int result = ll_stage_open(&x, 900 + (uint64_t)t->number, timeout_ms, extra, cut);

    result = result ? result : body(&x);
    ll_stage_close(&x);
    return result;
}

int ll_stage_run(struct test *t, int (*body)(struct ll_stage *), uint32_t timeout_ms)
{
    return run(t, body, timeout_ms, EXTRA_NONE, STAGE_WHOLE);
}

int ll_stage_run_few(struct test *t, int (*body)(struct ll_stage *), uint32_t timeout_ms)
{
    return run(t, body, timeout_ms, EXTRA_FEW, STAGE_WHOLE);
}

int ll_stage_run_masked(struct test *t, int (*body)(struct ll_stage *), uint32_t timeout_ms)
{
    return run(t, body, timeout_ms, EXTRA_MASKS, STAGE_WHOLE);
}

int ll_stage_run_cut(struct test *t, int (*body)(struct ll_stage *), uint32_t timeout_ms, int masked,
                     enum stage_cut cut)
{
    return run(t, body, timeout_ms, masked ? EXTRA_MASKS : EXTRA_NONE, cut);
}

int ll_stage_run_railed(struct test *t, int (*body)(struct ll_stage *), uint32_t timeout_ms,
                        enum stage_cut cut)
{
    return run(t, body, timeout_ms, EXTRA_RAILS, cut);
}

void ll_stage_redraw(struct ll_stage *x)
{
    for (int i = 0; i < STAGE_BATCHES; i++) {
        ll_batch_redraw(&x->batches[i], i == 1 ? ROUTING_MIXED : ROUTING_UNIFORM, &x->scene.rng);
    }
    scene_refill(&x->scene, 0);
}

int ll_stage_judge(struct ll_stage *x, const char *step)
{
    for (int i = 0; i < STAGE_BATCHES; i++) {
        ll_expect_dispatch(&x->batches[i]);
        ll_expect_combine(&x->batches[i]);
    }
    dispatch_expect(&x->scene.dispatches[0]);
    combine_expect(&x->scene.combines[0]);
    PASS(world_ep_synchronize(&x->scene.world, x->scene.eps));
    return world_verify(&x->scene.world, step);
}

static int recover(struct ll_stage *x)
{
    OK(tern_ep_reset_all(STAGE_RANKS, x->scene.eps));
    batch_close(&x->scene.batches[0]);
    ll_stage_redraw(x);
    PASS(world_upload(&x->scene.world));
    PASS(ll_stage_shuffle(x));
    return ll_stage_judge(x, "after a reset");
}

int ll_stage_recover(struct ll_stage *x)
{
    uint32_t timeout_ms = scene_patience(&x->scene, PATIENCE_MS);
    int result = recover(x);

    scene_patience(&x->scene, timeout_ms);
    return result;
}

/* One phase of one operation of one lane. */
static int take_step(struct ll_stage *x, int lane, int step)
{
    struct ll_batch *b = &x->batches[lane];
    int stream = (int)rng_below(&x->scene.rng, NUM_LANES);
    uint32_t phase = step % 2 ? TERN_LL_RECEIVE : TERN_LL_SEND;

    return step < 2 ? ll_dispatch_issue(b, phase, stream) : ll_combine_issue(b, phase, stream);
}

int ll_stage_shuffle(struct ll_stage *x)
{
    struct scene *s = &x->scene;
    int steps[STAGE_BATCHES + 1] = {0};

    for (int left = 4 * STAGE_BATCHES + 3; left > 0;) {
        int who = (int)rng_below(&s->rng, STAGE_BATCHES + 1);
        if (steps[who] == (who == STAGE_BATCHES ? 3 : 4)) {
            continue;
        }
        if (who < STAGE_BATCHES) {
            PASS(take_step(x, who, steps[who]));
        } else if (steps[who] == 0) {
            PASS(batch_open(&s->batches[0], s->eps, (int)rng_below(&s->rng, NUM_LANES)));
        } else if (steps[who] == 1) {
            PASS(dispatch_issue(&s->dispatches[0], (int)rng_below(&s->rng, NUM_LANES)));
        } else {
            PASS(combine_issue(&s->combines[0], (int)rng_below(&s->rng, NUM_LANES)));
        }
        steps[who]++;
        left--;
    }
    return 0;
}

int ll_stage_issue_for(struct ll_stage *x, int lane, int operation, uint32_t phase, int rank)
{
    struct ll_batch *b = &x->batches[lane];
    struct tern_ll_dispatch_args d = ll_dispatch_args(b, rank, 1);
    struct tern_ll_combine_args c = ll_combine_args(b, rank, 1);
    struct tern_stream *stream = x->scene.world.members[rank].lanes[0];

    d.phase = phase;
    c.phase = phase;
    return operation == TERN_OP_LL_DISPATCH ? tern_ll_dispatch(x->scene.eps[rank], &d, stream)
                                            : tern_ll_combine(x->scene.eps[rank], &c, stream);
}

/* Nobody else is in the operations after the first: one of two is a dispatch, which waits for everybody. */
int ll_stage_hear(struct ll_stage *x, int lane, int operation, uint32_t phase, int rank)
{
    enum tern_status status = TERN_OK;
    struct tern_fault f = TERN_FAULT_INIT;

    for (int i = 0; i < 3 && status == TERN_OK; i++) {
        OK((enum tern_status)ll_stage_issue_for(x, lane, operation, phase, rank));
        status = tern_ep_synchronize(x->scene.eps[rank]);
        operation = operation == TERN_OP_LL_DISPATCH ? TERN_OP_LL_COMBINE : TERN_OP_LL_DISPATCH;
        phase = TERN_LL_BOTH;
    }
    CHECK(status == TERN_TIMEOUT, "rank %d: %s", rank, tern_status_string(status));
    OK(tern_fault_get(x->scene.eps[rank], &f));
    CHECK(f.reporter != rank, "rank %d has not been told: %s", rank, tern_last_error());
    return 0;
}

int ll_stage_in_flight(struct ll_stage *x)
{
    for (int round = 0; round < 6; round++) {
        ll_stage_redraw(x);
        PASS(world_upload(&x->scene.world));
        PASS(ll_stage_shuffle(x));
        PASS(ll_stage_judge(x, "lanes in flight with high throughput between"));
        batch_close(&x->scene.batches[0]);
        if (round == 3) { /* words and places begin anew */
            OK(tern_ep_reset_all(STAGE_RANKS, x->scene.eps));
        }
    }
    return 0;
}
