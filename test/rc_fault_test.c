/* SPDX-License-Identifier: Apache-2.0
 *
 * What a wire does to single packets, by name: lost, doubled or late below the budget of retries, it ends
 * late and well, and nothing takes effect twice. Without faults nothing is sent twice; limits hold; numbers
 * wrap. What ends in an error is in rc_error_test, and rc_random_test mixes it all. */
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

/* All of what is asked for is known at once, and every answer is lost: each atomic is told what it was
 * told. */
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

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "no fault: every packet once, none more than needed", nothing_is_sent_twice);
    test_run(&t, "one packet of each kind lost, doubled or delayed: late success, once",
             one_packet_at_a_time);
    test_run(&t, "every packet doubled: nothing takes effect twice", everything_doubled);
    test_run(&t, "all answers to atomics lost: told again what they were told", answers_are_replayed);
    test_run(&t, "limits of outstanding READs and packets", limits);
    test_run(&t, "packet numbers wrap at any place of a run", numbers_wrap);
    return test_end(&t);
}
