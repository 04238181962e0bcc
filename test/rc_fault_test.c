/* SPDX-License-Identifier: Apache-2.0
 *
 * What goes wrong on a wire or at its ends, one thing at a time and by name, and how it must end: late and
 * once, or with the syndrome that a NIC of silicon gives. The random programs of rc_random_test mix it all.
 * */
#include "rc_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 200000, WORD = 40 * 1024, RESULT = 41 * 1024 };

/* ---- A mixed run of operations, each checked ---- */

enum { MIX_BYTES = 1000, MIX_OPS = 8 };

/* The second READ brings home what the first WRITE wrote. Three adds, of 1, 10 and 100. */
static void post_mix(struct rc_rig *rig)
{
    struct wqe_op ops[MIX_OPS];
    ops[0] = rc_op_write(rig, 0, 0, MIX_BYTES);
    ops[1] = rc_op_add(rig, WORD, RESULT, 1);
    ops[2] = rc_op_read(rig, 8192, 8192, MIX_BYTES);
    ops[3] = rc_op_add(rig, WORD, RESULT + 8, 10);
    ops[4] = rc_op_imm(rig, 2048, 2048, MIX_BYTES, 77);
    ops[5] = rc_op_read(rig, 0, 12288, MIX_BYTES);
    ops[6] = rc_op_add(rig, WORD, RESULT + 16, 100);
    ops[7] = rc_op_write(rig, 4096, 4096, 8);
    rc_rig_set_word(&rig->away, WORD, 5000);
    for (int i = 0; i < MIX_OPS; i++) {
        rc_rig_post(rig, 0, &ops[i], NULL);
    }
}

static int check_mix(struct rc_rig *rig, const char *what)
{
    const struct rc_pair *p = &rig->pairs[0];
    const char *home = rig->home.bytes, *away = rig->away.bytes;
    struct rc_receive receive = {0, 0};
    CHECK(rc_rig_run(rig, STEPS), "%s: %u of %d operations complete", what, p->num_done, MIX_OPS);
    for (int i = 0; i < MIX_OPS; i++) {
        CHECK(p->done[i].syndrome == SYNDROME_NONE, "%s: operation %d ends with 0x%02x", what, i,
              p->done[i].syndrome);
    }
    CHECK(memcmp(home, away, MIX_BYTES) == 0 && memcmp(home + 2048, away + 2048, MIX_BYTES) == 0 &&
              memcmp(home + 4096, away + 4096, 8) == 0,
          "%s: what was written is not there", what);
    CHECK(memcmp(home + 8192, away + 8192, MIX_BYTES) == 0 && memcmp(home + 12288, away, MIX_BYTES) == 0,
          "%s: what was read is not here", what);
    CHECK(rc_rig_word(&rig->away, WORD) == 5111, "%s: the word is %llu", what,
          (unsigned long long)rc_rig_word(&rig->away, WORD));
    CHECK(rc_rig_word(&rig->home, RESULT) == 5000 && rc_rig_word(&rig->home, RESULT + 8) == 5001 &&
              rc_rig_word(&rig->home, RESULT + 16) == 5011,
          "%s: a fetch brought another value", what);
    CHECK(rc_responder_fetch(&rig->pairs[0].s, &receive) && receive.imm == 77 && receive.bytes == MIX_BYTES,
          "%s: the immediate is %u", what, receive.imm);
    CHECK(!rc_responder_fetch(&rig->pairs[0].s, &receive), "%s: the immediate came twice", what);
    return TEST_PASSED;
}

static int run_mix(const struct rc_rig_options *o, const char *what, struct rc_rig *rig)
{
    int result;
    rc_rig_open(rig, o);
    rc_responder_give(&rig->pairs[0].s);
    post_mix(rig);
    result = check_mix(rig, what);
    rc_rig_close(rig); /* numbers stay readable in links; memory does not */
    return result;
}

/* ---- Nothing wrong ---- */

static int nothing_is_sent_twice(struct test *t)
{
    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 200); seed++) {
        struct rc_rig_options o = rc_rig_defaults(seed);
        struct rc_rig rig;
        o.config.mtu = 256u << seed % 5;
        o.config.timeout = 5000;
        PASS(run_mix(&o, "no fault", &rig));
        /* Four parts of 1000 bytes, thrice written, twice asked for by one packet, three atomics. */
        uint32_t parts = (MIX_BYTES + o.config.mtu - 1) / o.config.mtu;
        CHECK(rig.requests.num_sent == 2 * parts + 1 + 2 + 3, "MTU %u: %llu requests", o.config.mtu,
              (unsigned long long)rig.requests.num_sent);
        CHECK(rig.answers.num_sent >= 2 * parts + 3 + 3 && rig.answers.num_sent <= 4 * parts + 4,
              "MTU %u: %llu answers", o.config.mtu, (unsigned long long)rig.answers.num_sent);
    }
    return TEST_PASSED;
}

/* ---- Below the budget: late, and once ---- */

struct nth_row {
    const char *name;
    int answers; /* the link of answers */
    uint32_t kind, fault;
    uint64_t most; /* packets of that kind there are, at least */
};

static const struct nth_row nth_rows[] = {
    {"drop WRITE", 0, RC_WRITE, RC_FAULT_DROP, 9},
    {"drop READ", 0, RC_READ, RC_FAULT_DROP, 2},
    {"drop ATOMIC", 0, RC_ATOMIC, RC_FAULT_DROP, 3},
    {"drop ACK", 1, RC_ACK, RC_FAULT_DROP, 3},
    {"drop READ answer", 1, RC_READ_ANSWER, RC_FAULT_DROP, 8},
    {"drop ATOMIC answer", 1, RC_ATOMIC_ANSWER, RC_FAULT_DROP, 3},
    {"duplicate WRITE", 0, RC_WRITE, RC_FAULT_DUPLICATE, 9},
    {"duplicate READ", 0, RC_READ, RC_FAULT_DUPLICATE, 2},
    {"duplicate ATOMIC", 0, RC_ATOMIC, RC_FAULT_DUPLICATE, 3},
    {"duplicate ACK", 1, RC_ACK, RC_FAULT_DUPLICATE, 3},
    {"duplicate READ answer", 1, RC_READ_ANSWER, RC_FAULT_DUPLICATE, 8},
    {"duplicate ATOMIC answer", 1, RC_ATOMIC_ANSWER, RC_FAULT_DUPLICATE, 3},
    {"delay WRITE", 0, RC_WRITE, RC_FAULT_DELAY, 9},
    {"delay READ", 0, RC_READ, RC_FAULT_DELAY, 2},
    {"delay ATOMIC", 0, RC_ATOMIC, RC_FAULT_DELAY, 3},
    {"delay ACK", 1, RC_ACK, RC_FAULT_DELAY, 3},
    {"delay READ answer", 1, RC_READ_ANSWER, RC_FAULT_DELAY, 8},
    {"delay ATOMIC answer", 1, RC_ATOMIC_ANSWER, RC_FAULT_DELAY, 3},
};

static int one_nth(const struct nth_row *row, uint64_t nth, uint32_t adaptive, uint64_t seed)
{
    struct rc_rig_options o = rc_rig_defaults(seed);
    struct rc_faults *f = row->answers ? &o.answers : &o.requests;
    struct rc_rig rig;
    const struct rc_link *link = row->answers ? &rig.answers : &rig.requests;
    char what[64];
    f->kinds = 1u << row->kind;
    f->nth_fault = row->fault;
    f->nth_first = f->nth_last = nth;
    f->max_delay = 1000; /* beyond the timeout: what is sent again comes first */
    o.config.adaptive = o.requests.overtake = adaptive;
    o.requests.reorder = adaptive ? RC_CERTAIN / 4 : 0;
    snprintf(what, sizeof(what), "%s %llu, seed %llu", row->name, (unsigned long long)nth,
             (unsigned long long)seed);
    PASS(run_mix(&o, what, &rig));
    CHECK(link->num_dropped + link->num_duplicated + link->num_delayed == 1, "%s did not happen", what);
    return TEST_PASSED;
}

static int one_packet_at_a_time(struct test *t)
{
    int count = 0;
    for (size_t i = 0; i < sizeof(nth_rows) / sizeof(nth_rows[0]); i++) {
        for (uint64_t nth = 1; nth <= nth_rows[i].most; nth++) {
            for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 20); seed++, count += 2) {
                PASS(one_nth(&nth_rows[i], nth, 0, seed));
                PASS(one_nth(&nth_rows[i], nth, 1, seed));
            }
        }
    }
    test_detail(t, "%d runs", count);
    return TEST_PASSED;
}

/* Every packet twice, and much later once more than that. */
static int everything_doubled(struct test *t)
{
    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 200); seed++) {
        struct rc_rig_options o = rc_rig_defaults(seed);
        struct rc_rig rig;
        o.requests.duplicate = o.answers.duplicate = RC_CERTAIN;
        o.requests.max_delay = o.answers.max_delay = 600;
        o.config.retry_count = 1000;
        PASS(run_mix(&o, "duplicate all", &rig));
        CHECK(rig.requests.num_duplicated == rig.requests.num_sent, "a packet came once");
    }
    return TEST_PASSED;
}

/* All of what is asked for is known at once, and every answer is lost: each atomic is told what it was told.
 * */
static int answers_are_replayed(struct test *t)
{
    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 200); seed++) {
        struct rc_rig_options o = rc_rig_defaults(seed);
        struct rc_rig rig;
        int result = TEST_PASSED;
        o.config.window = 64;
        o.config.max_reads = RC_MAX_READS;
        o.answers.kinds = 1u << RC_ATOMIC_ANSWER;
        o.answers.nth_fault = RC_FAULT_DROP;
        o.answers.nth_first = 1;
        o.answers.nth_last = RC_MAX_READS;
        rc_rig_open(&rig, &o);
        rc_rig_set_word(&rig.away, WORD, 0);
        for (uint32_t i = 0; i < RC_MAX_READS; i++) {
            struct wqe_op add = rc_op_add(&rig, WORD, RESULT + 8 * i, 1ull << i);
            rc_rig_post(&rig, 0, &add, NULL);
        }
        if (!rc_rig_run(&rig, STEPS) || rc_rig_word(&rig.away, WORD) != (1u << RC_MAX_READS) - 1) {
            result = TEST_FAILED;
        }
        for (uint32_t i = 0; i < RC_MAX_READS; i++) {
            if (rc_rig_word(&rig.home, RESULT + 8 * i) != (1ull << i) - 1) {
                result = TEST_FAILED;
            }
        }
        rc_rig_close(&rig);
        CHECK(result == TEST_PASSED && rig.answers.num_dropped == RC_MAX_READS && rig.requests.num_sent == 32,
              "seed %llu: an atomic was applied twice, or told something else", (unsigned long long)seed);
    }
    return TEST_PASSED;
}

/* ---- Above the budget ---- */

static int ends_with(const struct rc_pair *p, const uint32_t *syndromes, uint32_t count, const char *what)
{
    CHECK(p->num_done == count, "%s: %u completions", what, p->num_done);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(p->done[i].syndrome == syndromes[i], "%s: operation %u ends with 0x%02x, not 0x%02x", what, i,
              p->done[i].syndrome, syndromes[i]);
        CHECK(p->done[i].syndrome == SYNDROME_NONE || p->done[i].has_cqe, "%s: error %u is silent", what, i);
    }
    CHECK((p->q.state == RC_ERROR) == (syndromes[count - 1] != SYNDROME_NONE), "%s: in error: %u", what,
          p->q.state);
    return TEST_PASSED;
}

/* Two operations arrive, a third and those behind it do not: requests vanish from then on. */
static int black_hole(struct test *t)
{
    static const uint32_t wanted[] = {0, 0, SYNDROME_TRANSPORT_RETRY, SYNDROME_FLUSHED, SYNDROME_FLUSHED};
    for (uint32_t retries = 0; retries <= 7; retries++) {
        struct rc_rig_options o = rc_rig_defaults(retries + 1);
        struct rc_rig rig;
        struct wqe_op ops[5];
        uint64_t late;
        int result = TEST_PASSED;
        o.config.retry_count = retries;
        o.config.window = 1;
        o.requests.nth_fault = RC_FAULT_DROP;
        o.requests.nth_first = 3;
        o.requests.nth_last = ~0ull;
        rc_rig_open(&rig, &o);
        for (uint32_t i = 0; i < 5; i++) {
            ops[i] = rc_op_write(&rig, 256 * i, 256 * i, 256);
            ops[i].complete = WQE_CE_ON_ERROR;
            rc_rig_post(&rig, 0, &ops[i], NULL);
        }
        rc_rig_run(&rig, STEPS);
        result = ends_with(&rig.pairs[0], wanted, 5, "black hole");
        late = rig.pairs[0].done[2].at - rig.pairs[0].done[1].at;
        rc_rig_close(&rig);
        PASS(result);
        CHECK(rig.requests.num_dropped == retries + 1, "%u retries: %llu packets", retries,
              (unsigned long long)rig.requests.num_dropped);
        CHECK(late >= (retries + 1) * o.config.timeout && late < (retries + 2) * o.config.timeout,
              "%u retries took %llu", retries, (unsigned long long)late);
    }
    (void)t;
    return TEST_PASSED;
}

/* The signal has been seen at the target although its sender is told that it failed. */
static int answer_lost_for_ever(struct test *t)
{
    static const uint32_t wanted[] = {0, SYNDROME_TRANSPORT_RETRY, SYNDROME_FLUSHED};
    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 50); seed++) {
        struct rc_rig_options o = rc_rig_defaults(seed);
        struct rc_rig rig;
        struct wqe_op ops[3];
        uint64_t word, result;
        int verdict;
        o.answers.kinds = 1u << RC_ATOMIC_ANSWER;
        o.answers.drop = RC_CERTAIN;
        rc_rig_open(&rig, &o);
        rc_rig_set_word(&rig.away, WORD, 7);
        rc_rig_set_word(&rig.home, RESULT, 99);
        ops[0] = rc_op_write(&rig, 0, 0, 5000);
        ops[1] = rc_op_add(&rig, WORD, RESULT, 1);
        ops[2] = rc_op_dump(&rig);
        for (int i = 0; i < 3; i++) {
            rc_rig_post(&rig, 0, &ops[i], NULL);
        }
        rc_rig_run(&rig, STEPS);
        verdict = ends_with(&rig.pairs[0], wanted, 3, "answer lost");
        word = rc_rig_word(&rig.away, WORD);
        result = rc_rig_word(&rig.home, RESULT);
        rc_rig_close(&rig);
        PASS(verdict);
        CHECK(word == 8 && result == 99, "the word is %llu, the result %llu", (unsigned long long)word,
              (unsigned long long)result);
    }
    return TEST_PASSED;
}

/* ---- Receiver not ready ---- */

static int not_ready(struct test *t)
{
    static const uint32_t fails[] = {0, SYNDROME_RNR_RETRY, SYNDROME_FLUSHED}, succeeds[] = {0, 0, 0};
    for (uint32_t budget = 0; budget <= RC_RNR_FOREVER; budget++) {
        for (int give = 0; give <= 1; give++) {
            struct rc_rig_options o = rc_rig_defaults(budget * 2 + (uint32_t)give + 1);
            struct rc_receive receive = {0, 0};
            struct rc_rig rig;
            struct wqe_op ops[3];
            int lasts = give || budget == RC_RNR_FOREVER, verdict;
            o.config.rnr_retry = budget;
            o.config.timeout = 5000;
            rc_rig_open(&rig, &o);
            ops[0] = rc_op_write(&rig, 0, 0, 300);
            ops[1] = rc_op_imm(&rig, 512, 512, 600, 0x1234567);
            ops[2] = rc_op_write(&rig, 2048, 2048, 300);
            for (int i = 0; i < 3; i++) {
                rc_rig_post(&rig, 0, &ops[i], NULL);
            }
            if (give) {
                rc_responder_give(&rig.pairs[0].s);
            }
            if (!rc_rig_run(&rig, 3000) && lasts) { /* it never gives up, and needs only this */
                rc_responder_give(&rig.pairs[0].s);
                rc_rig_run(&rig, STEPS);
            }
            verdict = ends_with(&rig.pairs[0], lasts ? succeeds : fails, 3, "not ready");
            if (verdict == TEST_PASSED && lasts &&
                (!rc_responder_fetch(&rig.pairs[0].s, &receive) || receive.imm != 0x1234567 ||
                 memcmp(rig.home.bytes + 512, rig.away.bytes + 512, 600) != 0)) {
                verdict = TEST_FAILED;
            }
            if (verdict == TEST_PASSED && !lasts &&
                (rig.pairs[0].q.num_resent != budget ||
                 memcmp(rig.home.bytes + 2048, rig.away.bytes + 2048, 300) == 0)) {
                verdict = TEST_FAILED;
            }
            rc_rig_close(&rig);
            CHECK(verdict == TEST_PASSED, "budget %u, %s", budget, give ? "an entry" : "no entry");
        }
    }
    (void)t;
    return TEST_PASSED;
}

/* ---- Protection ---- */

enum {
    BAD_RKEY,
    BAD_REACH,
    BAD_RIGHT,
    BAD_ALIGNMENT,
    BAD_LKEY,
    BAD_LOCAL_REACH,
    BAD_LOCAL_RIGHT,
    BAD_WQE,
    NUM_BAD
};

static struct wqe_op bad_op(const struct rc_rig *rig, int bad)
{
    struct wqe_op op = rc_op_write(rig, 0, 0, 700);
    switch (bad) {
    case BAD_RKEY:
        op.rkey += 1;
        break;
    case BAD_REACH: /* its first packets would be in range */
        op = rc_op_write(rig, RC_RIG_BYTES - 699, 0, 700);
        break;
    case BAD_RIGHT:
        op.rkey = rig->away.read_only_key;
        break;
    case BAD_ALIGNMENT:
        op = rc_op_add(rig, 12, 0, 1);
        break;
    case BAD_LKEY:
        op.lkey += 1;
        break;
    case BAD_LOCAL_REACH:
        op = rc_op_write(rig, 0, RC_RIG_BYTES - 699, 700);
        break;
    case BAD_LOCAL_RIGHT:
        op = rc_op_read(rig, 0, 0, 700);
        op.lkey = rig->home.read_only_key;
        break;
    default:
        op.opcode = 0xff;
        break;
    }
    return op;
}

static int one_bad(int bad, uint64_t seed, uint64_t lost_naks)
{
    static const uint32_t syndromes[NUM_BAD] = {0x13, 0x13, 0x13, 0x12, 0x04, 0x04, 0x11, 0x02};
    struct rc_rig_options o = rc_rig_defaults(seed);
    uint32_t wanted[] = {0, 0, syndromes[bad], SYNDROME_FLUSHED, SYNDROME_FLUSHED};
    struct rc_rig rig;
    struct wqe_op ops[5];
    int verdict, remote = bad <= BAD_ALIGNMENT;
    char *before;
    o.answers.kinds = 1u << RC_NAK;
    o.answers.nth_fault = RC_FAULT_DROP;
    o.answers.nth_first = lost_naks != 0;
    o.answers.nth_last = lost_naks;
    rc_rig_open(&rig, &o);
    ops[0] = rc_op_write(&rig, 4096, 4096, 600);
    ops[1] = rc_op_read(&rig, 8192, 8192, 600);
    ops[2] = bad_op(&rig, bad);
    ops[3] = rc_op_write(&rig, 16384, 16384, 600);
    ops[4] = rc_op_add(&rig, WORD, RESULT, 1);
    before = (char *)test_take(1, RC_RIG_SIDE);
    memcpy(before, rig.away.bytes, RC_RIG_SIDE);
    memcpy(before + 4096, rig.home.bytes + 4096, 600);
    for (int i = 0; i < 5; i++) {
        rc_rig_post(&rig, 0, &ops[i], NULL);
    }
    rc_rig_run(&rig, STEPS);
    verdict = ends_with(&rig.pairs[0], wanted, 5, "protection");
    if (memcmp(before, rig.away.bytes, RC_RIG_SIDE) != 0) {
        test_note(__FILE__, __LINE__, "the target was touched");
        verdict = TEST_FAILED;
    }
    if (rig.pairs[0].s.state != (remote ? RC_REFUSED : RC_SERVING) ||
        (remote && rig.answers.num_dropped != lost_naks)) {
        test_note(__FILE__, __LINE__, "the responder's state is %u", rig.pairs[0].s.state);
        verdict = TEST_FAILED;
    }
    rc_rig_close(&rig);
    free(before);
    CHECK(verdict == TEST_PASSED, "wrong %d, seed %llu", bad, (unsigned long long)seed);
    return TEST_PASSED;
}

static int protection(struct test *t)
{
    for (int bad = 0; bad < NUM_BAD; bad++) {
        for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 50); seed++) {
            PASS(one_bad(bad, seed, seed % 4));
        }
    }
    return TEST_PASSED;
}

/* A registration ends while its bytes are on their way. */
static int keys_taken_away(struct test *t)
{
    static const uint32_t remote[] = {SYNDROME_REMOTE_ACCESS}, local[] = {SYNDROME_LOCAL_PROTECTION};
    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 50); seed++) {
        for (int kind = 0; kind < 4; kind++) {
            struct rc_rig_options o = rc_rig_defaults(seed);
            struct rc_rig rig;
            struct wqe_op op;
            struct rc_side *side;
            int verdict;
            rc_rig_open(&rig, &o);
            op = (kind & 1 ? rc_op_read : rc_op_write)(&rig, 0, 0, 16 * 1024);
            side = kind & 2 ? &rig.home : &rig.away;
            rc_rig_post(&rig, 0, &op, NULL);
            for (int i = 0; i < 20; i++) {
                rc_rig_step(&rig);
            }
            if (terni_key_table_remove(&side->keys, side->key) != TERN_OK) {
                return TEST_FAILED;
            }
            rc_rig_run(&rig, STEPS);
            verdict = ends_with(&rig.pairs[0], kind & 2 ? local : remote, 1, kind & 1 ? "READ" : "WRITE");
            rc_rig_close(&rig);
            PASS(verdict);
        }
    }
    return TEST_PASSED;
}

/* ---- Ends that stop ---- */

static int stopped(struct test *t)
{
    static const uint32_t flushed[] = {SYNDROME_FLUSHED, SYNDROME_FLUSHED, SYNDROME_FLUSHED};
    static const uint32_t silent[] = {SYNDROME_TRANSPORT_RETRY, SYNDROME_FLUSHED, SYNDROME_FLUSHED};
    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 50); seed++) {
        for (int at_home = 0; at_home <= 1; at_home++) {
            struct rc_rig_options o = rc_rig_defaults(seed);
            struct rc_rig rig;
            int verdict;
            rc_rig_open(&rig, &o);
            for (uint32_t i = 0; i < 3; i++) {
                struct wqe_op op = (i == 1 ? rc_op_read : rc_op_write)(&rig, 8192 * i, 8192 * i, 8192);
                rc_rig_post(&rig, 0, &op, NULL);
            }
            for (int i = 0; i < 10; i++) {
                rc_rig_step(&rig);
            }
            if (at_home) {
                rc_requester_stop(&rig.pairs[0].q);
            } else {
                rc_responder_stop(&rig.pairs[0].s);
            }
            rc_rig_run(&rig, STEPS);
            verdict = ends_with(&rig.pairs[0], at_home ? flushed : silent, 3, "stopped");
            if (verdict == TEST_PASSED) { /* and what is posted then is flushed at once */
                struct wqe_op op = rc_op_dump(&rig);
                rc_rig_post(&rig, 0, &op, NULL);
                rc_rig_step(&rig);
                verdict = rig.pairs[0].num_done == 4 && rig.pairs[0].done[3].syndrome == SYNDROME_FLUSHED
                              ? TEST_PASSED
                              : TEST_FAILED;
            }
            rc_rig_close(&rig);
            CHECK(verdict == TEST_PASSED, "seed %llu", (unsigned long long)seed);
        }
    }
    return TEST_PASSED;
}

/* A queue pair has both ends: when one errs the other does, and a refusal goes on being told. */
static int both_ends_err(struct test *t)
{
    struct rc_config c = rc_rig_defaults(1).config;
    struct rc_requester q;
    struct rc_responder s;
    struct rc_entry entries[2];
    for (int i = 0; i < 4; i++) {
        uint32_t state = i == 3 ? RC_STOPPED : i & 1 ? RC_REFUSED : RC_SERVING;
        rc_requester_init(&q, &c, entries, 2);
        rc_responder_init(&s, &c, NULL, 0);
        s.state = state;
        if (i == 2) {
            rc_requester_stop(&q);
        }
        rc_couple(&q, &s);
        CHECK((q.state == RC_ERROR) == (i != 0) && s.state == (i == 2 ? RC_STOPPED : state),
              "case %d: %u and %u", i, q.state, s.state);
    }
    (void)t;
    return TEST_PASSED;
}

/* An answer that is too short, or of another kind than was asked for. */
static int wrong_answers(struct test *t)
{
    static const uint32_t kinds[] = {RC_READ_ANSWER, RC_ATOMIC_ANSWER, RC_READ_ANSWER, RC_ACK};
    static const uint32_t wanted[] = {SYNDROME_BAD_RESPONSE, SYNDROME_TRANSPORT_RETRY};
    for (int kind = 0; kind < 4;
         kind++) { /* the last: of a packet that was never sent, which means nothing */
        struct rc_rig_options o = rc_rig_defaults(1);
        struct rc_rig rig;
        struct rc_packet *answer;
        struct wqe_op op;
        int verdict;
        rc_rig_open(&rig, &o);
        op = kind >= 2 ? rc_op_write(&rig, 0, 0, 256) : rc_op_read(&rig, 0, 0, 256);
        rc_rig_post(&rig, 0, &op, NULL);
        rc_responder_stop(&rig.pairs[0].s);
        while (rig.requests.num_sent == 0) {
            rc_rig_step(&rig);
        }
        answer = rc_link_slot(&rig.answers);
        rc_packet_clear(answer, kinds[kind], rc_rig_qpn(0), kind == 3 ? 3 : 0);
        answer->payload_bytes = kind == 1 || kind == 3 ? 0 : 255;
        rc_link_send(&rig.answers, rig.now);
        rc_rig_run(&rig, kind == 3 ? STEPS : 100);
        verdict = ends_with(&rig.pairs[0], &wanted[kind == 3], 1, "wrong answer");
        rc_rig_close(&rig);
        PASS(verdict);
    }
    (void)t;
    return TEST_PASSED;
}

/* ---- Limits ---- */

static int one_limit(uint64_t seed, uint32_t reads, uint32_t window)
{
    struct rc_rig_options o = rc_rig_defaults(seed);
    struct rc_rig rig;
    uint32_t most_reads = 0;
    uint64_t most = 0;
    int over;
    o.config.max_reads = reads;
    o.config.window = window;
    o.requests.latency = o.answers.latency = 40;
    rc_rig_open(&rig, &o);
    for (uint32_t i = 0; i < RC_RIG_ENTRIES; i++) {
        struct wqe_op op =
            i % 4 == 3 ? rc_op_write(&rig, 64 * i, 64 * i, 40) : rc_op_add(&rig, WORD, RESULT + 8 * i, 1);
        rc_rig_post(&rig, 0, &op, NULL);
    }
    for (int i = 0; i < 4000; i++) {
        const struct rc_requester *q = &rig.pairs[0].q;
        uint32_t waiting = 0;
        rc_rig_step(&rig);
        for (uint64_t k = q->acked_entry; k < q->begun; k++) {
            waiting += wqe_opcode_is_atomic(rc_entry_at(q, k)->op.opcode) != 0;
        }
        most_reads = waiting > most_reads ? waiting : most_reads;
        most = q->next - q->acked > most ? q->next - q->acked : most;
    }
    over = rig.pairs[0].num_done == RC_RIG_ENTRIES;
    rc_rig_close(&rig);
    CHECK(over && most_reads <= reads && most <= window, "%u atomics at once of %u, %llu packets of %u",
          most_reads, reads, (unsigned long long)most, window);
    CHECK(reads + 4 > window ? most == window : most_reads == reads, "%u atomics, %llu packets: too few",
          most_reads, (unsigned long long)most);
    return TEST_PASSED;
}

static int limits(struct test *t)
{
    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 20); seed++) {
        PASS(one_limit(seed, 1, 64));
        PASS(one_limit(seed, 5, 64));
        PASS(one_limit(seed, RC_MAX_READS, 3));
    }
    return TEST_PASSED;
}

/* ---- Numbers that wrap ---- */

static int numbers_wrap(struct test *t)
{
    for (uint32_t before = 0; before < 24; before++) {
        for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 20); seed++) {
            struct rc_rig_options o = rc_rig_defaults(seed);
            struct rc_rig rig;
            o.config.first_psn = RC_PSN_MASK - before;
            o.requests.drop = o.answers.drop = seed % 2 ? 6000 : 0;
            PASS(run_mix(&o, "wrap", &rig));
        }
        CHECK(rc_widen(5, (1ull << 24) - 3) == (1ull << 24) + 5 &&
                  rc_widen(RC_PSN_MASK, 1ull << 24) == RC_PSN_MASK &&
                  rc_widen(0x7fffff, 1ull << 30) == (1ull << 30) + 0x7fffff &&
                  rc_widen(0x800000, 1ull << 30) == (1ull << 30) - 0x800000,
              "a PSN means another packet");
    }
    return TEST_PASSED;
}

/* ---- Configurations ---- */

static int refuses_configurations(struct test *t)
{
    const struct rc_config good = rc_rig_defaults(1).config;
    struct rc_config c;
    test_quiet();
    OK(terni_rc_check_config(&good));
#define REFUSED(field, value, text)                                                                          \
    do {                                                                                                     \
        c = good;                                                                                            \
        c.field = (value);                                                                                   \
        REFUSES(terni_rc_check_config(&c), TERN_INVALID_ARGUMENT, text);                                     \
    } while (0)
    REFUSED(mtu, 128, "MTU of 128");
    REFUSED(mtu, 8192, "MTU of 8192");
    REFUSED(mtu, 1500, "MTU of 1500");
    REFUSED(qpn, 1u << 24, "0x1000000");
    REFUSED(peer_qpn, 1u << 24, "0x1000000");
    REFUSED(pd, 1u << 24, "16777216");
    REFUSED(first_psn, 1u << 24, "0x1000000");
    REFUSED(window, 0, "window of 0");
    REFUSED(window, RC_MAX_WINDOW + 1, "window of 2097153");
    REFUSED(max_reads, 0, "0 READs");
    REFUSED(max_reads, RC_MAX_READS + 1, "17 READs");
    REFUSED(timeout, 0, "timeout of 0");
#undef REFUSED
    c = good;
    c.adaptive = 1;
    c.window = RC_ADAPTIVE_WINDOW + 1;
    REFUSES(terni_rc_check_config(&c), TERN_INVALID_ARGUMENT, "with adaptive routing");
    (void)t;
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "no fault: every packet once, none more than needed", nothing_is_sent_twice);
    test_run(&t, "one packet of each kind lost, doubled or delayed: late success, once",
             one_packet_at_a_time);
    test_run(&t, "every packet doubled: nothing takes effect twice", everything_doubled);
    test_run(&t, "all answers to atomics lost: told again what they were told", answers_are_replayed);
    test_run(&t, "black hole: 0x15 on the oldest after its retries, 0x05 behind it", black_hole);
    test_run(&t, "atomic applied, its answer lost for ever: 0x15", answer_lost_for_ever);
    test_run(&t, "no receive entry: late, or 0x16 after its retries", not_ready);
    test_run(&t, "refused: 0x13 and 0x12 of the target, 0x04, 0x11 and 0x02 at home", protection);
    test_run(&t, "a key taken away under way", keys_taken_away);
    test_run(&t, "an end that is stopped: 0x05 at once, or silence and 0x15", stopped);
    test_run(&t, "both ends of a queue pair err together", both_ends_err);
    test_run(&t, "answers that do not fit: 0x10", wrong_answers);
    test_run(&t, "limits of outstanding READs and packets", limits);
    test_run(&t, "packet numbers wrap at any place of a run", numbers_wrap);
    test_run(&t, "impossible configurations are refused", refuses_configurations);
    return test_end(&t);
}
