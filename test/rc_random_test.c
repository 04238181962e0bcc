/* SPDX-License-Identifier: Apache-2.0
 *
 * Reliable connections against a naive reference: random programs of up to three queue pairs over links that
 * lose, double, delay and reorder packets. Each seed draws MTU, window, PSNs near the wrap, modes and faults.
 * Completions come in order with the syndromes of the reference, what is complete is there, immediates arrive
 * once and in order, both memories end as the reference's, and a word that all queue pairs add to has the
 * sum. */
#include "rc_program.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS = 3000000 };

struct totals {
    uint64_t steps, sent, dropped, duplicated, delayed, reordered, resent, duplicates, operations, flushed;
    uint64_t wrapped;
};

static struct rc_faults some_faults(struct rng *r, uint64_t seed)
{
    static const uint32_t strength[] = {0, 200, 2000, 9000};
    struct rc_faults f = {0};
    f.seed = seed;
    f.drop = strength[rng_below(r, 4)];
    f.duplicate = strength[rng_below(r, 4)];
    f.delay = strength[rng_below(r, 4)];
    f.reorder = strength[rng_below(r, 4)] * 4;
    f.max_delay = 1 + rng_below(r, 300);
    f.latency = rng_below(r, 20);
    f.kinds = rng_one_in(r, 4) ? 1u << rng_below(r, RC_NUM_KINDS) : 0;
    return f;
}

static struct rc_rig_options some_options(uint64_t seed, int adaptive)
{
    static const uint32_t windows[] = {1, 2, 5, 16, 64}, reads[] = {1, 3, RC_MAX_READS};
    struct rc_rig_options o = rc_rig_defaults(seed);
    struct rng r = {seed ^ 0x5eed0f5eed};
    o.config.mtu = (uint32_t)RC_MIN_MTU << rng_below(&r, 5);
    o.config.window = windows[rng_below(&r, 5)];
    o.config.max_reads = reads[rng_below(&r, 3)];
    o.config.first_psn = rng_one_in(&r, 2) ? RC_PSN_MASK - rng_below(&r, 40) : rng_below(&r, 1u << 24);
    o.config.retry_count = 100000;
    o.config.adaptive = (uint32_t)adaptive;
    o.requests = some_faults(&r, rng_next(&r));
    o.answers = some_faults(&r, rng_next(&r));
    o.requests.overtake = (uint32_t)adaptive;
    o.modes = (rng_one_in(&r, 3) ? RC_RELAXED : 0u) | (rng_one_in(&r, 3) ? RC_CST : 0u);
    o.num_pairs = (int)rng_between(&r, 1, RC_RIG_PAIRS);
    return o;
}

static int all_over(const struct rc_program *programs, const struct rc_rig *rig)
{
    for (int i = 0; i < rig->num_pairs; i++) {
        if (!rc_program_is_over(&programs[i], rig)) {
            return 0;
        }
    }
    return 1;
}

static int run(struct rc_program *programs, struct rc_rig *rig)
{
    for (int n = 0; n < STEPS; n++) {
        for (int i = 0; i < rig->num_pairs; i++) {
            PASS(rc_program_turn(&programs[i], rig));
        }
        if (all_over(programs, rig)) {
            return TEST_PASSED;
        }
        rc_rig_step(rig);
        CHECK(!rig->is_broken, "the requester contradicts itself");
    }
    CHECK(0, "not over after %d steps", STEPS);
}

static int check_end(const struct rc_program *programs, struct rc_rig *rig, const struct rc_model *model)
{
    rc_memory_land(&rig->home.memory);
    rc_memory_land(&rig->away.memory);
    CHECK(rc_rig_word(&rig->away, RC_PROGRAM_COUNTER) ==
              rc_rig_word(&(struct rc_side){.bytes = (char *)(uintptr_t)model->away}, RC_PROGRAM_COUNTER),
          "the word that all add to is %llu",
          (unsigned long long)rc_rig_word(&rig->away, RC_PROGRAM_COUNTER));
    for (int i = 0; i < rig->num_pairs; i++) {
        PASS(rc_program_check(&programs[i], rig, model));
    }
    return TEST_PASSED;
}

static void add_up(struct totals *t, const struct rc_rig *rig)
{
    const struct rc_link *links[] = {&rig->requests, &rig->answers};
    t->steps += rig->now;
    for (int i = 0; i < 2; i++) {
        t->sent += links[i]->num_sent;
        t->dropped += links[i]->num_dropped;
        t->duplicated += links[i]->num_duplicated;
        t->delayed += links[i]->num_delayed;
        t->reordered += links[i]->num_reordered;
    }
    for (int i = 0; i < rig->num_pairs; i++) {
        const struct rc_pair *p = &rig->pairs[i];
        t->resent += p->q.num_resent;
        t->duplicates += p->s.num_duplicates;
        t->operations += p->num_done;
        t->flushed += p->q.state == RC_ERROR;
        t->wrapped += (p->q.acked >> 24) > (rc_first_number(p->q.config.first_psn) >> 24);
    }
}

static int one_seed(uint64_t seed, int adaptive, int may_fail, struct totals *t)
{
    struct rc_rig_options o = some_options(seed, adaptive);
    struct rc_program *programs = (struct rc_program *)test_take(RC_RIG_PAIRS, sizeof(*programs));
    struct rc_model *model = (struct rc_model *)test_take(1, sizeof(*model));
    struct rc_rig rig;
    int result;
    rc_rig_open(&rig, &o);
    memcpy(model->home, rig.home.bytes, sizeof(model->home));
    memcpy(model->away, rig.away.bytes, sizeof(model->away));
    for (int i = 0; i < rig.num_pairs; i++) {
        rc_program_open(&programs[i], &rig, i, model, may_fail);
    }
    result = run(programs, &rig);
    if (result == TEST_PASSED) {
        result = check_end(programs, &rig, model);
    }
    if (result != TEST_PASSED) {
        test_note(__FILE__, __LINE__, "seed %llu", (unsigned long long)seed);
    }
    add_up(t, &rig);
    for (int i = 0; i < rig.num_pairs; i++) {
        rc_program_close(&programs[i]);
    }
    rc_rig_close(&rig);
    free(programs);
    free(model);
    return result;
}

static int many_seeds(struct test *t, int count, int adaptive, int may_fail)
{
    struct totals totals = {0};
    uint64_t first = t->has_seeds ? t->seeds[0] : 1, last = t->has_seeds ? t->seeds[1] : (uint64_t)count;
    for (uint64_t seed = first; seed <= last; seed++) {
        PASS(one_seed(seed, adaptive, may_fail, &totals));
    }
    test_detail(t,
                "%llu operations, %llu packets: %llu lost, %llu doubled, %llu delayed, %llu overtaken; "
                "%llu wraps, %llu errors",
                (unsigned long long)totals.operations, (unsigned long long)totals.sent,
                (unsigned long long)totals.dropped, (unsigned long long)totals.duplicated,
                (unsigned long long)totals.delayed, (unsigned long long)totals.reordered,
                (unsigned long long)totals.wrapped, (unsigned long long)totals.flushed);
    CHECK(count < 100 || t->has_seeds ||
              (totals.dropped && totals.duplicated && totals.delayed && totals.reordered && totals.wrapped &&
               totals.resent && totals.duplicates && (totals.flushed != 0) == may_fail),
          "a fault was never tried");
    return TEST_PASSED;
}

static int in_order(struct test *t) { return many_seeds(t, test_scaled(t, 2000), 0, 0); }
static int adaptive(struct test *t) { return many_seeds(t, test_scaled(t, 2000), 1, 0); }
static int with_errors(struct test *t) { return many_seeds(t, test_scaled(t, 1500), 0, 1); }
static int adaptive_with_errors(struct test *t) { return many_seeds(t, test_scaled(t, 500), 1, 1); }

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "programs end as the reference's, packets in order", in_order);
    test_run(&t, "the same with adaptive routing", adaptive);
    test_run(&t, "one operation in error, those behind it flushed", with_errors);
    test_run(&t, "one operation in error, with adaptive routing", adaptive_with_errors);
    return test_end(&t);
}
