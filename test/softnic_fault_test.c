/* SPDX-License-Identifier: Apache-2.0
 *
 * What networks and NICs do wrong, as kernels see it: each case is one fault of the software NIC that speaks
 * packets, and ends at the waits of real operations as it should, with the syndrome that silicon would give.
 * Where an order is not promised it must fail for some seed, or a NIC that is too kind would hide mistakes.
 *
 * Those last are races on purpose, and are left out under ThreadSanitizer. One table of faults, so one
 * file. */
#include "net/mlx5_cqe.h"
#include "softnic_scene.h"

#include <string.h>

enum { DATA = 1500, FLAG = 40 * 1024, OTHER = 8 * 1024, SEEDS = 40 };
#define ALWAYS (~0ull)

/* ---- Packets that do not arrive ---- */

/* Late success; nothing twice, and old values as they were told. */
static int lost(struct softnic_scene *w, uint64_t seed)
{
    struct rc_faults drop = {0};
    drop.nth_fault = seed % 2 ? RC_FAULT_DROP : RC_FAULT_DUPLICATE;
    drop.nth_first = 1 + seed % 5;
    drop.nth_last = drop.nth_first + 1 + seed % 3;
    drop.max_delay = 40;
    w->net.requests = w->net.answers = drop;
    PASS(nics_begin(w, seed));
    rng_bytes(&(struct rng){seed}, w->rig.local, DATA);
    nics_add(w, 0, STEP_PUT, 64, 0, DATA);
    for (uint64_t i = 0; i < 6; i++) {
        nics_add(w, 0, STEP_FETCH, FLAG, 0, 0);
    }
    nics_add(w, 0, STEP_FLUSH_ALL, 0, 0, 0);
    PASS(nics_go(w));
    for (int i = 0; i < 8; i++) {
        PASS(nics_ends(w, 0, i, NET_OK));
        CHECK(i == 0 || i == 7 || w->steps[0][i].old == (uint64_t)i - 1, "fetch %d gives %llu", i,
              (unsigned long long)w->steps[0][i].old);
    }
    CHECK(queue_rig_word(w->rig.remote, FLAG) == 6 && memcmp(w->rig.remote + 64, w->rig.local, DATA) == 0,
          "the counter is %llu, or data differ", (unsigned long long)queue_rig_word(w->rig.remote, FLAG));
    CHECK(w->rig.net->requests[0][1].num_dropped + w->rig.net->requests[0][1].num_duplicated >= 2,
          "seed %llu: there was no fault", (unsigned long long)seed);
    return queue_rig_check_idle(&w->rig);
}

static int row_lost(struct test *t) { return nics_each_seed(t, SEEDS, lost); }

/* 0x15 on the oldest, 0x05 behind it; waits and later operations are told the first. */
static int black_hole(struct softnic_scene *w, uint64_t seed)
{
    const uint32_t *cqe;
    w->shape.num_cqes = 8;
    w->net.config.retry_count = 2;
    w->net.requests.nth_fault = RC_FAULT_DROP;
    w->net.requests.nth_first = 1;
    w->net.requests.nth_last = ALWAYS;
    PASS(nics_begin(w, seed));
    nics_add(w, 0, STEP_PUT, 64, 0, DATA);
    nics_add(w, 0, STEP_PUT, 64, 0, 8);
    nics_add(w, 0, STEP_SIGNAL, FLAG, 0, 0);
    nics_add(w, 0, STEP_FLUSH, 0, 0, 0);
    nics_add(w, 0, STEP_PUT, 64, 0, 8);
    nics_add(w, 0, STEP_FETCH, FLAG, 0, 0);
    PASS(nics_go(w));
    PASS(queue_rig_serve(&w->rig, w->rig.s->states[0].ready));
    for (int i = 3; i < 6; i++) {
        PASS(nics_ends(w, 0, i, net_failed(SYNDROME_TRANSPORT_RETRY)));
    }
    cqe = w->rig.s->queues[0].cqes;
    CHECK(cqe_syndrome(cqe[CQE_WORD_SYNDROME]) == SYNDROME_TRANSPORT_RETRY &&
              cqe_syndrome(cqe[CQE_WORDS + CQE_WORD_SYNDROME]) == SYNDROME_FLUSHED &&
              cqe_syndrome(cqe[2 * CQE_WORDS + CQE_WORD_SYNDROME]) == SYNDROME_FLUSHED,
          "syndromes 0x%02x 0x%02x 0x%02x", cqe_syndrome(cqe[CQE_WORD_SYNDROME]),
          cqe_syndrome(cqe[CQE_WORDS + CQE_WORD_SYNDROME]),
          cqe_syndrome(cqe[2 * CQE_WORDS + CQE_WORD_SYNDROME]));
    CHECK(w->rig.s->qps[0].state == SOFTNIC_ERROR && w->rig.net->qps[0][0].requester.state == RC_ERROR,
          "the queue pair is not in error");
    return TEST_PASSED;
}

static int row_black_hole(struct test *t) { return nics_each_seed(t, 8, black_hole); }

/* The peer has the signal, and whoever sent it is told that it failed. */
static int answer_lost(struct softnic_scene *w, uint64_t seed)
{
    w->net.config.retry_count = 2;
    w->net.answers.kinds = 1u << RC_ATOMIC_ANSWER;
    w->net.answers.drop = RC_CERTAIN;
    PASS(nics_begin(w, seed));
    nics_add(w, 0, STEP_SIGNAL, FLAG, 0, 0);
    nics_add(w, 0, STEP_FLUSH, 0, 0, 0);
    nics_look(w, 1, STEP_AWAIT, w->rig.remote + FLAG, 0, 1);
    PASS(nics_go(w));
    PASS(nics_ends(w, 0, 1, net_failed(SYNDROME_TRANSPORT_RETRY)));
    PASS(nics_ends(w, 1, 0, NET_OK));
    CHECK(queue_rig_word(w->rig.remote, FLAG) == 1, "the word is %llu",
          (unsigned long long)queue_rig_word(w->rig.remote, FLAG));
    return TEST_PASSED;
}

static int row_answer_lost(struct test *t) { return nics_each_seed(t, 8, answer_lost); }

/* ---- Refusals of the other side ---- */

static int no_receive(struct softnic_scene *w, uint64_t seed)
{
    w->net.config.rnr_retry = 3;
    PASS(nics_begin(w, seed));
    nics_add(w, 0, STEP_PUT_IMM, 64, 0, 8);
    nics_add(w, 0, STEP_FLUSH, 0, 0, 0);
    PASS(nics_go(w));
    return nics_ends(w, 0, 1, net_failed(SYNDROME_RNR_RETRY));
}

/* The receive entry comes once the first refusal has been sent. */
static int late_receive(struct softnic_scene *w, uint64_t seed)
{
    struct queue_shared *s;
    const uint32_t *cqe;
    PASS(nics_begin(w, seed));
    s = w->rig.s;
    memset(w->rig.local, 0x21, 8);
    nics_add(w, 0, STEP_PUT_IMM, 64, 0, 8)->value = 0xabcd1234u;
    nics_add(w, 0, STEP_FLUSH, 0, 0, 0);
    nics_look(w, 1, STEP_AWAIT, &w->rig.net->answers[0][1].next, 0, 1);
    nics_look(w, 1, STEP_STORE, s->peer_records[0].words, 0, doorbell_record(1)); /* receive, and send of 0 */
    PASS(nics_go(w));
    PASS(nics_ends(w, 0, 1, NET_OK));
    cqe = w->rig.net->qps[1][0].receive_cqes;
    CHECK(w->rig.net->qps[0][0].requester.num_resent != 0, "nothing was late");
    CHECK(cqe_is_written(cqe[CQE_WORD_TAIL], 0, NET_RECEIVES) &&
              cqe_tail_opcode(cqe[CQE_WORD_TAIL]) == CQE_RESPONDER_WRITE_IMM &&
              from_be32(cqe[CQE_WORD_IMM]) == 0xabcd1234u && from_be32(cqe[CQE_WORD_BYTES]) == 8 &&
              w->rig.remote[64] == 0x21,
          "the receiver is told 0x%08x", from_be32(cqe[CQE_WORD_IMM]));
    return queue_rig_check_idle(&w->rig);
}

static int row_not_ready(struct test *t)
{
    PASS(nics_each_seed(t, 8, no_receive));
    return nics_each_seed(t, 8, late_receive);
}

/* Two keys, two rights and a range, of either side. */
static int protection(struct softnic_scene *w, uint64_t seed)
{
    static const uint32_t syndromes[] = {SYNDROME_REMOTE_ACCESS, SYNDROME_REMOTE_ACCESS,
                                         SYNDROME_REMOTE_ACCESS, SYNDROME_LOCAL_PROTECTION,
                                         SYNDROME_LOCAL_ACCESS};
    uint32_t which = (uint32_t)(seed % 5);
    struct queue_shared *s;
    PASS(nics_begin(w, seed));
    s = w->rig.s;
    if (which == 0) {
        s->remote_list.ranges[0].key = wqe_key_of(w->rig.rkeys[0] + 1);
    } else if (which == 1) {
        s->remote_entries[0].bytes = 64 + 39;
    } else if (which == 2) {
        s->remote_entries[0].access = KEY_REMOTE_READ;
    } else if (which == 3) {
        s->local_list.ranges[0].key = wqe_key_of(w->rig.lkeys[0] + 1);
    } else {
        s->entries[0].access = 0;
    }
    nics_add(w, 0, which == 4 ? STEP_GET : STEP_PUT, 64, 64, 40);
    nics_add(w, 0, STEP_FLUSH, 0, 0, 0);
    nics_add(w, 0, STEP_FETCH, FLAG, 0, 0);
    PASS(nics_go(w));
    PASS(nics_ends(w, 0, 1, net_failed(syndromes[which])));
    PASS(nics_ends(w, 0, 2, net_failed(syndromes[which])));
    CHECK((w->rig.net->qps[1][0].requester.state == RC_ERROR) == (which < 3),
          "case %u: the queue pair at the target is%s in error", which, which < 3 ? " not" : "");
    return TEST_PASSED;
}

static int row_protection(struct test *t) { return nics_each_seed(t, 20, protection); }

/* Entries that were spoilt between their handing over and the NIC. */
static int malformed(struct softnic_scene *w, uint64_t seed)
{
    static const struct {
        uint32_t byte;
        char value;
    } spoilt[] = {{3, 0x0a}, {7, 9}, {2, 0x55}, {6, 0x11}}; /* opcode, DS, index, queue pair */
    const uint32_t which = (uint32_t)(seed % 4);
    PASS(nics_begin(w, seed));
    nics_add(w, 0, STEP_PUT, 64, 0, 8);
    nics_add(w, 0, STEP_PUT, OTHER, 0, 8);
    PASS(nics_drive(w, SCENE_SHORT_NS));
    w->rig.rings[WQE_BLOCK_BYTES + spoilt[which].byte] = spoilt[which].value;
    memset(w->rig.local, 0x77, 8);
    w->steps[0][0].kind = STEP_NOTHING;
    w->steps[0][1].kind = STEP_NOTHING;
    w->num[0] = 2;
    nics_add(w, 0, STEP_FLUSH_ALL, 0, 0, 0);
    PASS(nics_go(w));
    PASS(nics_ends(w, 0, 2, net_failed(SYNDROME_LOCAL_QP_OPERATION)));
    CHECK(w->rig.remote[64] == 0x77 && w->rig.remote[OTHER] == 0, "what was before it is not there");
    return TEST_PASSED;
}

static int row_malformed(struct test *t) { return nics_each_seed(t, 12, malformed); }

/* ---- Orders ---- */

/* Data and a flag; the data is DATA bytes of a pattern. Somebody waits for the flag and looks. */
static int litmus_run(struct softnic_scene *w, uint64_t seed, uint32_t flag_kind, uint32_t flag_queue,
                      int relaxed)
{
    struct queue_step *s;
    w->net.requests.reorder = RC_CERTAIN / 3;
    w->net.requests.latency = 3;
    w->net.requests.drop = seed % 2 ? 2000 : 0;
    w->net.config.retry_count = 1000;
    PASS(nics_begin(w, seed));
    if (relaxed) {
        w->rig.s->remote_entries[1].access |= KEY_RELAXED_ORDERING;
    }
    nics_add(w, 0, STEP_FILL, 0, 0, DATA)->value = seed;
    nics_add(w, 0, STEP_PUT, 0, 0, DATA);
    s = nics_add(w, 0, flag_kind, FLAG, 0, 0);
    s->queue = flag_queue;
    nics_add(w, 0, STEP_FLUSH_ALL, 0, 0, 0);
    nics_look(w, 1, STEP_AWAIT, w->rig.remote + FLAG, 0, 1);
    nics_look(w, 1, STEP_EXPECT, w->rig.remote, DATA, seed);
    PASS(nics_go(w));
    PASS(nics_ends(w, 0, 3, NET_OK));
    return nics_ends(w, 1, 0, NET_OK);
}

struct litmus {
    const char *name;
    uint32_t flag_kind, flag_queue, adaptive, modes;
    int relaxed, is_promised;
};

static int litmus(struct test *t, const struct litmus *l)
{
    int seeds = l->is_promised ? test_scaled(t, SEEDS) : SEEDS, stale = 0;
#ifdef TERN_THREAD_SANITIZER
    if (!l->is_promised) {
        return TEST_PASSED;
    }
#endif
    for (int seed = 1; seed <= seeds; seed++) {
        struct softnic_scene *w = nics_take();
        int result;
        w->net.config.adaptive = w->net.requests.overtake = l->adaptive;
        w->net.modes[1] = l->modes;
        result = litmus_run(w, (uint64_t)seed, l->flag_kind, l->flag_queue, l->relaxed);
        stale += w->steps[1][1].old != 0;
        PASS(nics_leave(w, result));
        CHECK(!l->is_promised || !stale, "%s: stale, seed %d", l->name, seed);
    }
    CHECK(l->is_promised || (stale > 0 && stale < seeds), "%s: %d of %d seeds are stale", l->name, stale,
          seeds);
    test_detail(t, "%d of %d seeds stale", stale, seeds);
    return TEST_PASSED;
}

static int row_between_queues(struct test *t)
{
    static const struct litmus l = {"data, then an atomic of another queue", STEP_SIGNAL, 1, 0, 0, 0, 0};
#ifdef TERN_THREAD_SANITIZER
    return test_skip(t, "a race on purpose");
#endif
    return litmus(t, &l);
}

static int row_adaptive(struct test *t)
{
    static const struct litmus all[] = {
        {"data, then an atomic", STEP_SIGNAL, 0, 0, 0, 0, 1},
        {"data, then a flag by WRITE", STEP_PUT_INLINE, 0, 0, 0, 0, 1},
        {"adaptive routing: data, then an atomic", STEP_SIGNAL, 0, 1, 0, 0, 1},
        {"adaptive routing, late memory: data, then an atomic", STEP_SIGNAL, 0, 1, RC_RELAXED, 0, 1},
        {"adaptive routing: data, then a flag by WRITE", STEP_PUT_INLINE, 0, 1, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        PASS(litmus(t, &all[i]));
    }
    return TEST_PASSED;
}

static int row_relaxed(struct test *t)
{
    static const struct litmus strict = {"strict word", STEP_SIGNAL, 0, 0, RC_RELAXED, 0, 1};
    static const struct litmus relaxed = {"relaxed word", STEP_SIGNAL, 0, 0, RC_RELAXED, 1, 0};
    PASS(litmus(t, &strict));
    return litmus(t, &relaxed);
}

/* A get and a fetch that come home, with the queue's DUMPs or without. */
static int home(struct softnic_scene *w, uint64_t seed, int dump)
{
    w->shape.late = 1;
    w->net.answers.latency = 10;
    PASS(nics_begin(w, seed));
    if (!dump) {
        w->rig.s->queues[0].flags &= ~(uint32_t)NET_QUEUE_DUMP;
    }
    memset(w->rig.remote, 0x55, DATA);
    nics_add(w, 0, STEP_GET, 0, 64, DATA);
    nics_add(w, 0, STEP_FLUSH, 0, 0, 0);
    nics_add(w, 0, STEP_FETCH, 0, 0, 0)->amo = NET_AMO_FETCH;
    PASS(nics_go(w));
    PASS(nics_ends(w, 0, 1, NET_OK));
    PASS(nics_ends(w, 0, 2, NET_OK));
    CHECK((memcmp(w->rig.local + 64, w->rig.remote, DATA) == 0) == dump &&
              (w->steps[0][2].old == 0x5555555555555555ull) == dump,
          "with%s DUMP: fetched 0x%llx", dump ? "" : "out", (unsigned long long)w->steps[0][2].old);
    return TEST_PASSED;
}

static int with_dump(struct softnic_scene *w, uint64_t seed) { return home(w, seed, 1); }
static int without_dump(struct softnic_scene *w, uint64_t seed) { return home(w, seed, 0); }

static int row_cst(struct test *t)
{
    PASS(nics_each_seed(t, 8, with_dump));
    return nics_each_seed(t, 8, without_dump);
}

/* ---- Between a queue and its NIC ---- */

/* Ten puts by each of 32 threads; all arrive, nothing is overwritten. */
static int many(struct softnic_scene *w, uint64_t seed)
{
    PASS(nics_begin(w, seed));
    rng_bytes(&(struct rng){seed}, w->rig.local, 32 * 10 * 32);
    for (int thread = 0; thread < 32; thread++) {
        for (int i = 0; i < 10; i++) {
            uint64_t at = (uint64_t)(thread * 10 + i) * 32;
            nics_add(w, thread, STEP_PUT, at, at, 32);
        }
        nics_add(w, thread, STEP_FLUSH, 0, 0, 0);
    }
    PASS(nics_go(w));
    for (int thread = 0; thread < 32; thread++) {
        PASS(nics_ends(w, thread, 10, NET_OK));
    }
    CHECK(memcmp(w->rig.local, w->rig.remote, 32 * 10 * 32) == 0, "seed %llu: data differ",
          (unsigned long long)seed);
    return queue_rig_check_idle(&w->rig);
}

static int held(struct softnic_scene *w, uint64_t seed)
{
    w->shape.hold_one_in = 2;
    w->shape.blocks = 16;
    PASS(many(w, seed));
    CHECK(w->rig.s->qps[0].num_done < 320, "seed %llu: no completion was skipped", (unsigned long long)seed);
    return TEST_PASSED;
}

static int row_held(struct test *t) { return nics_each_seed(t, 6, held); }

static int counters(struct softnic_scene *w, uint64_t seed)
{
    w->shape.first = seed % 2 ? 65530 : 0xfffffff9ull;
    w->shape.num_cqes = seed % 4 < 2 ? 8 : 0;
    PASS(many(w, seed));
    CHECK(w->rig.s->states[0].consumed == w->shape.first + 320, "320 entries, and consumed is %llu",
          (unsigned long long)w->rig.s->states[0].consumed);
    CHECK(seed % 8 == 0 || w->rig.net->qps[0][0].requester.acked > 2ull << 24, "PSNs did not wrap");
    return TEST_PASSED;
}

static int row_counters(struct test *t) { return nics_each_seed(t, 8, counters); }

/* Somebody else writes record and register: the register long before the record, later the record alone,
 * later one register for both. */
static int stale_record(struct softnic_scene *w, uint64_t seed)
{
    struct queue_shared *s;
    w->shape.relay = 1;
    PASS(nics_begin(w, seed));
    s = w->rig.s;
    memset(w->rig.local, 0x5c, 24);
    for (uint64_t i = 0; i < 3; i++) {
        nics_add(w, 0, STEP_PUT, 8 * i, 0, 8);
    }
    PASS(nics_drive(w, SCENE_SHORT_NS));
    CHECK(s->relays[0] == 3, "%llu entries were published", (unsigned long long)s->relays[0]);
    s->doorbells[0] = doorbell_value(0x400, 1);
    PASS(queue_rig_serve(&w->rig, 0));
    CHECK(s->qps[0].fetched == 0 && w->rig.remote[0] == 0, "an entry was taken that no record names");
    s->records[0].words[DOORBELL_RECORD_SEND] = doorbell_record(1);
    PASS(queue_rig_serve(&w->rig, 1));
    s->records[0].words[DOORBELL_RECORD_SEND] = doorbell_record(3);
    PASS(queue_rig_serve(&w->rig, 1));
    CHECK(s->qps[0].fetched == 1, "an entry was taken that no doorbell tells of");
    s->doorbells[0] = doorbell_value(0x400, 3);
    PASS(queue_rig_serve(&w->rig, 3));
    CHECK(memcmp(w->rig.remote, w->rig.local, 24) == 0, "data are not there");
    memset(w->steps, 0, sizeof(w->steps));
    nics_add(w, 0, STEP_FLUSH_ALL, 0, 0, 0);
    PASS(nics_go(w));
    return nics_ends(w, 0, 0, NET_OK);
}

static int row_stale_record(struct test *t) { return nics_each_seed(t, 4, stale_record); }

/* Nobody serves the ring, and it fills up: who wants room is told so in time. Then a slow NIC comes. */
static int full_ring(struct softnic_scene *w, uint64_t seed)
{
    w->shape.blocks = NET_QUEUE_MIN_BLOCKS;
    w->shape.timeout_ns = SCENE_SHORT_NS;
    w->net.requests.latency = w->net.answers.latency = 100;
    PASS(nics_begin(w, seed));
    for (uint64_t i = 0; i < 5; i++) {
        nics_add(w, 0, STEP_PUT, 8 * i, 0, 8);
    }
    PASS(nics_drive(w, SCENE_SHORT_NS));
    PASS(nics_ends(w, 0, 3, NET_OK));
    PASS(nics_ends(w, 0, 4, NET_TIMED_OUT));
    queue_rig_close(&w->rig);
    memset(w->steps, 0, sizeof(w->steps));
    w->shape.timeout_ns = 0;
    return many(w, seed);
}

static int row_full_ring(struct test *t) { return nics_each_seed(t, 4, full_ring); }

/* Time is the device's: a flush waits as long as packets travel, there and back. */
static int by_clock(struct softnic_scene *w, uint64_t seed)
{
    double before;
    w->net.by_clock = 1;
    w->net.requests.latency = w->net.answers.latency = 3000000; /* ns */
    w->net.config.timeout = RIG_PATIENCE_NS;
    PASS(nics_begin(w, seed));
    nics_add(w, 0, STEP_PUT, 64, 0, DATA);
    nics_add(w, 0, STEP_FLUSH, 0, 0, 0);
    before = test_seconds();
    PASS(nics_go(w));
    CHECK(test_seconds() - before >= 0.006, "there and back in %.1f ms", 1e3 * (test_seconds() - before));
    return nics_ends(w, 0, 1, NET_OK);
}

static int row_by_clock(struct test *t) { return nics_each_seed(t, 2, by_clock); }

/* ---- Ends that go away ---- */

/* In the midst of things a queue pair errs by itself: what is posted is flushed; another one goes on. */
static int spontaneous(struct softnic_scene *w, uint64_t seed)
{
    const int peer = seed % 2 == 0;
    struct softnic_rc_qp *qp;
    char *sign;
    w->net.config.retry_count = 2;
    PASS(nics_begin(w, seed));
    qp = &w->rig.net->qps[peer][0];
    sign = w->rig.local + FLAG;
    nics_add(w, 0, STEP_PUT, 64, 0, DATA);
    nics_add(w, 0, STEP_FLUSH, 0, 0, 0);
    nics_look(w, 0, STEP_STORE, sign, 0, 1);
    nics_look(w, 1, STEP_AWAIT, sign, 0, 1);
    nics_look(w, 1, STEP_STORE, &qp->is_broken, 0, 1);
    nics_look(w, 1, STEP_STORE, sign + 8, 0, 1);
    nics_look(w, 0, STEP_AWAIT, sign + 8, 0, 1);
    for (int i = 0; i < 3; i++) { /* one of them comes after the NIC has noticed */
        nics_add(w, 0, STEP_PUT, 64, 0, DATA);
        nics_add(w, 0, STEP_FLUSH, 0, 0, 0);
    }
    nics_add(w, 0, STEP_PUT, OTHER, 0, 8)->queue = 1;
    nics_add(w, 0, STEP_FLUSH, 0, 0, 0)->queue = 1;
    PASS(nics_go(w));
    PASS(nics_ends(w, 0, 1, NET_OK));
    PASS(nics_ends(w, 0, 9, net_failed(peer ? SYNDROME_TRANSPORT_RETRY : SYNDROME_FLUSHED)));
    return nics_ends(w, 0, 11, NET_OK);
}

/* A peer that is not there: an error, or whichever of deadline and abort word comes first. */
static int dead_peer(struct softnic_scene *w, uint64_t seed)
{
    const uint32_t which = (uint32_t)(seed % 3);
    static const uint32_t wanted[] = {NET_FAILED | SYNDROME_TRANSPORT_RETRY << 8, NET_TIMED_OUT, NET_ABORTED};
    w->shape.peer_is_dead = 1;
    w->net.config.retry_count = which == 0 ? 2 : 0x7fffffffu;
    PASS(nics_begin(w, seed));
    nics_add(w, 0, STEP_PUT, 64, 0, DATA);
    nics_add(w, 0, STEP_FLUSH, 0, 0, 0);
    if (which == 2) {
        nics_look(w, 1, STEP_AWAIT, &w->rig.net->requests[0][1].next, 0, 4);
        nics_look(w, 1, STEP_STORE, &w->rig.s->abort, 0, 1);
    }
    PASS(queue_rig_nic(&w->rig));
    PASS(nics_drive(w, which == 1 ? SCENE_SHORT_NS : RIG_PATIENCE_NS));
    return nics_ends(w, 0, 1, wanted[which]);
}

static int row_gone(struct test *t)
{
    PASS(nics_each_seed(t, 12, spontaneous));
    return nics_each_seed(t, 9, dead_peer);
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "packets lost or doubled, below the budget: late success, nothing twice", row_lost);
    test_run(&t, "black hole: 0x15 on the oldest, 0x05 behind it", row_black_hole);
    test_run(&t, "atomic applied, its answer lost for ever: 0x15", row_answer_lost);
    test_run(&t, "no receive entry: late, or 0x16", row_not_ready);
    test_run(&t, "bad rkey, range, right: 0x13; bad lkey: 0x04, 0x11", row_protection);
    test_run(&t, "malformed entry: 0x02", row_malformed);
    test_run(&t, "reorder between queue pairs", row_between_queues);
    test_run(&t, "reorder inside a queue pair: data then atomic, data then flag", row_adaptive);
    test_run(&t, "an atomic passes writes, in memory with relaxed ordering", row_relaxed);
    test_run(&t, "what comes home is late: with DUMP and without", row_cst);
    test_run(&t, "completions delayed and skipped", row_held);
    test_run(&t, "counters near 2^16 and 2^32, PSNs near 2^24", row_counters);
    test_run(&t, "stale record, doorbell delayed and merged", row_stale_record);
    test_run(&t, "slow NIC, full ring", row_full_ring);
    test_run(&t, "slow links, by the clock", row_by_clock);
    test_run(&t, "queue pair in error by itself, dead peer", row_gone);
    return test_end(&t);
}
