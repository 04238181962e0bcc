/* SPDX-License-Identifier: Apache-2.0
 *
 * Which orders may be relied on, and which only seem to hold. Data and a flag are sent in some way; after
 * every moment somebody looks, and whoever sees the flag must see all of the data. What is promised is seen
 * stale by no seed; what is not promised must be seen stale by some, or a model that is too kind would hide
 * mistakes. */
#include "rc_rig.h"

#include <stdlib.h>
#include <string.h>

enum { DATA = 2000, FLAG = 40 * 1024, RELAXED_FLAG = 50 * 1024, ONE = 30 * 1024, STEPS = 100000 };

enum litmus_way {
    WAY_ATOMIC,         /* WRITE, then an atomic on the flag */
    WAY_ATOMIC_RELAXED, /* the flag lies in memory with relaxed ordering */
    WAY_WRITE,          /* WRITE, then a WRITE of the flag */
    WAY_IMM,            /* WRITE, then a WRITE_IMM, whose arrival is the flag */
    WAY_OTHER_QUEUE,    /* WRITE, then an atomic by another queue pair */
    WAY_AFTER,          /* the same, once the WRITE has completed */
};

struct litmus {
    const char *name;
    enum litmus_way way;
    uint32_t adaptive, modes;
    int is_promised;
};

static const struct litmus litmuses[] = {
    {"data then atomic", WAY_ATOMIC, 0, 0, 1},
    {"data then flag by WRITE", WAY_WRITE, 0, 0, 1},
    {"data then immediate", WAY_IMM, 0, 0, 1},
    {"data then atomic of another queue pair", WAY_OTHER_QUEUE, 0, 0, 0},
    {"data, completion, atomic of another queue pair", WAY_AFTER, 0, 0, 1},
    {"adaptive routing: data then atomic", WAY_ATOMIC, 1, 0, 1},
    {"adaptive routing: data then flag by WRITE", WAY_WRITE, 1, 0, 0},
    {"adaptive routing: data then immediate", WAY_IMM, 1, 0, 1},
    {"late memory: data then atomic", WAY_ATOMIC, 0, RC_RELAXED, 1},
    {"late memory: data then atomic, relaxed ordering", WAY_ATOMIC_RELAXED, 0, RC_RELAXED, 0},
    {"late memory: data then flag by WRITE", WAY_WRITE, 0, RC_RELAXED, 1},
    {"late memory: data then immediate", WAY_IMM, 0, RC_RELAXED, 1},
    {"late memory, adaptive routing: data then atomic", WAY_ATOMIC, 1, RC_RELAXED, 1},
};

static void litmus_post(struct rc_rig *rig, enum litmus_way way)
{
    struct wqe_op data = rc_op_write(rig, 0, 0, DATA), flag = rc_op_write(rig, FLAG, ONE, 8);
    int pair = way == WAY_OTHER_QUEUE || way == WAY_AFTER;
    if (way == WAY_IMM) {
        flag = rc_op_imm(rig, FLAG, ONE, 8, 1);
    } else if (way != WAY_WRITE) {
        flag = rc_op_add(rig, way == WAY_ATOMIC_RELAXED ? RELAXED_FLAG : FLAG, ONE + 8, 1);
    }
    rc_rig_post(rig, 0, &data, NULL);
    if (way == WAY_AFTER) {
        rc_rig_run(rig, STEPS);
    }
    rc_rig_post(rig, pair, &flag, NULL);
}

/* 1: somebody saw the flag and not the data. */
static int litmus_is_stale(const struct litmus *l, uint64_t seed)
{
    struct rc_rig_options o = rc_rig_defaults(seed);
    struct rc_receive receive;
    struct rc_rig rig;
    int stale = 0, seen = 0;
    o.config.adaptive = o.requests.overtake = l->adaptive;
    o.requests.reorder = RC_CERTAIN / 4;
    o.requests.drop = o.answers.drop = seed % 2 ? 3000 : 0;
    o.config.retry_count = 1000;
    o.modes = l->modes;
    o.num_pairs = 2;
    rc_rig_open(&rig, &o);
    rc_rig_set_word(&rig.home, ONE, 1);
    rc_rig_set_word(&rig.away, FLAG, 0);
    rc_rig_set_word(&rig.away, RELAXED_FLAG, 0);
    rc_responder_give(&rig.pairs[0].s);
    litmus_post(&rig, l->way);
    for (int i = 0; i < STEPS && !seen; i++) {
        rc_rig_step(&rig);
        seen = l->way == WAY_IMM
                   ? rc_responder_fetch(&rig.pairs[0].s, &receive)
                   : rc_rig_word(&rig.away, l->way == WAY_ATOMIC_RELAXED ? RELAXED_FLAG : FLAG) != 0;
    }
    stale = memcmp(rig.home.bytes, rig.away.bytes, DATA) != 0;
    rc_rig_close(&rig);
    return seen ? stale : -1;
}

static int flags_and_data(struct test *t)
{
    int seeds = test_scaled(t, 400), least = seeds;
    for (size_t i = 0; i < sizeof(litmuses) / sizeof(litmuses[0]); i++) {
        const struct litmus *l = &litmuses[i];
        int stale = 0;
        for (int seed = 1; seed <= seeds; seed++) {
            int verdict = litmus_is_stale(l, (uint64_t)seed);
            CHECK(verdict >= 0, "%s: the flag never came, seed %d", l->name, seed);
            CHECK(!verdict || !l->is_promised, "%s: stale, seed %d", l->name, seed);
            stale += verdict;
        }
        CHECK(l->is_promised || stale > 0, "%s: %d seeds, and not one is stale", l->name, seeds);
        least = !l->is_promised && stale < least ? stale : least;
    }
    test_detail(t, "%d ways, %d seeds each; what is not promised is stale in %d of them or more",
                (int)(sizeof(litmuses) / sizeof(litmuses[0])), seeds, least);
    return TEST_PASSED;
}

/* ---- Data that comes home ---- */

enum home_way { HOME_PLAIN, HOME_DUMP, HOME_DUMP_UNFENCED, HOME_WRITE_BACK };

/* A READ and a fetch; 1: when the last operation has completed, what they brought is not there. */
static int home_is_stale(enum home_way way, uint32_t modes, uint64_t seed)
{
    struct rc_rig_options o = rc_rig_defaults(seed);
    struct wqe_op read, fetch, last;
    struct rc_rig rig;
    int stale;
    o.modes = modes;
    o.answers.latency = 20;
    rc_rig_open(&rig, &o);
    rc_rig_set_word(&rig.away, FLAG, 1234);
    read = rc_op_read(&rig, 0, 0, DATA);
    fetch = rc_op_add(&rig, FLAG, ONE, 0);
    last = rc_op_dump(&rig);
    last.fence = way == HOME_DUMP_UNFENCED ? WQE_FM_NONE : WQE_FM_FENCE;
    if (way == HOME_WRITE_BACK) { /* what is sent is what came, wherever it is */
        last = rc_op_write(&rig, 4096, 0, DATA);
        last.fence = WQE_FM_FENCE;
    }
    rc_rig_post(&rig, 0, &read, NULL);
    rc_rig_post(&rig, 0, &fetch, NULL);
    if (way != HOME_PLAIN) {
        rc_rig_post(&rig, 0, &last, NULL);
    }
    if (!rc_rig_run(&rig, STEPS)) {
        rc_rig_close(&rig);
        return -1;
    }
    stale = way == HOME_WRITE_BACK
                ? memcmp(rig.away.bytes + 4096, rig.away.bytes, DATA) != 0
                : memcmp(rig.home.bytes, rig.away.bytes, DATA) != 0 || rc_rig_word(&rig.home, ONE) != 1234;
    rc_rig_close(&rig);
    return stale;
}

static int data_comes_home(struct test *t)
{
    static const struct {
        const char *name;
        enum home_way way;
        uint32_t modes;
        int is_promised;
    } rows[] = {
        {"READ", HOME_PLAIN, 0, 1},
        {"CST: READ", HOME_PLAIN, RC_CST, 0},
        {"CST: READ, DUMP with fence", HOME_DUMP, RC_CST, 1},
        {"CST: READ, DUMP without fence", HOME_DUMP_UNFENCED, RC_CST, 0},
        {"CST: READ, fence, WRITE of the same bytes", HOME_WRITE_BACK, RC_CST, 1},
    };
    int seeds = test_scaled(t, 200);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int stale = 0;
        for (int seed = 1; seed <= seeds; seed++) {
            int verdict = home_is_stale(rows[i].way, rows[i].modes, (uint64_t)seed);
            CHECK(verdict >= 0 && (!verdict || !rows[i].is_promised), "%s: stale, seed %d", rows[i].name,
                  seed);
            stale += verdict;
        }
        CHECK(rows[i].is_promised || stale > 0, "%s: not one of %d seeds is stale", rows[i].name, seeds);
    }
    return TEST_PASSED;
}

/* ---- Fences ---- */

/* READ, then a WRITE to the same place: the READ is asked for again when its answer is lost, and then reads
 * what was written. 1: it did. Also where the WRITE sends what the READ brings. */
static int is_overtaken(uint32_t fence, int at_home, uint64_t seed)
{
    struct rc_rig_options o = rc_rig_defaults(seed);
    struct wqe_op read, write;
    struct rc_rig rig;
    char before[DATA];
    int overtaken;
    o.answers.kinds = 1u << RC_READ_ANSWER;
    o.answers.nth_fault = RC_FAULT_DROP;
    o.answers.nth_first = o.answers.nth_last = 1 + seed % 8;
    rc_rig_open(&rig, &o);
    memcpy(before, rig.away.bytes, DATA);
    read = rc_op_read(&rig, 0, 0, DATA);
    write = at_home ? rc_op_write(&rig, 4096, 0, DATA) : rc_op_write(&rig, 0, 4096, DATA);
    write.fence = fence;
    rc_rig_post(&rig, 0, &read, NULL);
    rc_rig_post(&rig, 0, &write, NULL);
    if (!rc_rig_run(&rig, STEPS)) {
        rc_rig_close(&rig);
        return -1;
    }
    overtaken = memcmp(at_home ? rig.away.bytes + 4096 : rig.home.bytes, before, DATA) != 0;
    rc_rig_close(&rig);
    return overtaken;
}

static int fences_wait(struct test *t)
{
    static const int waits[] = {0, 0, 1, 1, 1}; /* by number of the mode */
    int seeds = test_scaled(t, 100);
    for (uint32_t mode = 0; mode < 5; mode++) {
        for (int at_home = 0; at_home <= 1; at_home++) {
            int overtaken = 0;
            for (int seed = 1; seed <= seeds; seed++) {
                int verdict = is_overtaken(mode << 5, at_home, (uint64_t)seed);
                CHECK(verdict >= 0 && (!verdict || !waits[mode]), "mode %u: overtaken, seed %d", mode, seed);
                overtaken += verdict;
            }
            CHECK(waits[mode] || overtaken > 0, "mode %u: not one of %d seeds is overtaken", mode, seeds);
        }
    }
    return TEST_PASSED;
}

/* Only STRONG waits for WRITEs: without it the next WRITE has been sent before the first is acknowledged. */
static int strong_waits_for_all(struct test *t)
{
    for (uint32_t mode = 0; mode < 5; mode++) {
        struct rc_rig_options o = rc_rig_defaults(mode + 1);
        struct rc_rig rig;
        struct wqe_op op;
        int verdict = TEST_PASSED;
        o.answers.latency = 500;
        o.config.timeout = 10000;
        rc_rig_open(&rig, &o);
        op = rc_op_write(&rig, 0, 0, 8);
        rc_rig_post(&rig, 0, &op, NULL);
        op.fence = mode << 5;
        rc_rig_post(&rig, 0, &op, NULL);
        for (int i = 0; i < 200; i++) {
            rc_rig_step(&rig);
        }
        verdict = rig.requests.num_sent == (mode << 5 == WQE_FM_STRONG ? 1 : 2) ? TEST_PASSED : TEST_FAILED;
        rc_rig_close(&rig);
        CHECK(verdict == TEST_PASSED, "mode %u: %llu packets", mode,
              (unsigned long long)rig.requests.num_sent);
    }
    (void)t;
    return TEST_PASSED;
}

/* ---- Queue pairs ---- */

/* Two queue pairs begin at once; each must be the first to end for some seed. */
static int queues_have_no_order(struct test *t)
{
    int first[2] = {0, 0}, seeds = test_scaled(t, 200);
    for (int seed = 1; seed <= seeds; seed++) {
        struct rc_rig_options o = rc_rig_defaults((uint64_t)seed);
        struct rc_rig rig;
        o.requests.reorder = RC_CERTAIN / 2;
        o.num_pairs = 2;
        rc_rig_open(&rig, &o);
        for (int i = 0; i < 2; i++) {
            struct wqe_op op = rc_op_write(&rig, 0, 0, DATA);
            rc_rig_post(&rig, i, &op, NULL);
        }
        while (rig.pairs[0].num_done + rig.pairs[1].num_done == 0) {
            rc_rig_step(&rig);
        }
        first[0] += (int)rig.pairs[0].num_done;
        first[1] += (int)rig.pairs[1].num_done;
        rc_rig_close(&rig);
    }
    CHECK(first[0] > seeds / 10 && first[1] > seeds / 10, "first %d and %d times", first[0], first[1]);
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "flags and data", flags_and_data);
    test_run(&t, "data that comes home, and DUMP", data_comes_home);
    test_run(&t, "fences wait for answers, and nothing else does", fences_wait);
    test_run(&t, "the strong fence waits for everything", strong_waits_for_all);
    test_run(&t, "queue pairs have no order", queues_have_no_order);
    return test_end(&t);
}
