/* SPDX-License-Identifier: Apache-2.0
 *
 * What ends a reliable connection, one thing at a time and by name, with the syndrome that a NIC of silicon
 * gives: on the oldest operation that is not over, with those behind it flushed, and what came before it
 * done. One file, because all cases are one thing that goes wrong on the same pair, judged in the same
 * way. */
#include "rc_rig.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS = 200000, WORD = 40 * 1024, RESULT = 41 * 1024 };

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
static int swallow(uint32_t backoff)
{
    static const uint32_t wanted[] = {0, 0, SYNDROME_TRANSPORT_RETRY, SYNDROME_FLUSHED, SYNDROME_FLUSHED};
    for (uint32_t retries = 0; retries <= (backoff ? 3 : 7); retries++) {
        uint32_t waits = backoff ? (2u << retries) - 1 : retries + 1;
        struct rc_rig_options o = rc_rig_defaults(retries + 1);
        struct rc_rig rig;
        struct wqe_op ops[5];
        uint64_t late;
        int result = TEST_PASSED;
        o.config.retry_count = retries;
        o.config.backoff = backoff;
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
        CHECK(late >= waits * o.config.timeout && late < (waits + 1) * o.config.timeout,
              "%u retries took %llu", retries, (unsigned long long)late);
    }
    return TEST_PASSED;
}

static int black_hole(struct test *t)
{
    (void)t;
    PASS(swallow(0));
    return swallow(1);
}

/* Nobody takes packets any more. A queue pair that has sent some, and fills the link with them, ends as in a
 * black hole; and so does one that finds no room for its first. */
static int full_link(struct test *t)
{
    struct rc_rig_options o = rc_rig_defaults(1);
    struct rc_rig rig;
    uint32_t ends[2];
    (void)t;
    o.num_pairs = 2;
    o.config.retry_count = 3;
    o.config.window = RC_RIG_PACKETS;
    rc_rig_open(&rig, &o);
    for (int i = 0; i < 2; i++) {
        struct wqe_op op = rc_op_write(&rig, 0, 0, RC_RIG_PACKETS * 256);
        rc_rig_post(&rig, i, &op, NULL);
    }
    while (rc_requester_work(&rig.pairs[0].q, &rig.home.memory, &rig.requests, 1)) {
    }
    for (uint64_t now = 2; now < 6 * o.config.timeout; now++) {
        (void)rc_requester_work(&rig.pairs[0].q, &rig.home.memory, &rig.requests, now);
        (void)rc_requester_work(&rig.pairs[1].q, &rig.home.memory, &rig.requests, now);
    }
    for (int i = 0; i < 2; i++) {
        struct rc_completion done;
        ends[i] = rc_requester_peek(&rig.pairs[i].q, &done) ? done.syndrome : SYNDROME_NONE;
    }
    CHECK(rig.pairs[1].q.next == rig.pairs[1].q.acked, "the second queue pair has sent something");
    rc_rig_close(&rig);
    CHECK(ends[0] == SYNDROME_TRANSPORT_RETRY && ends[1] == SYNDROME_TRANSPORT_RETRY,
          "they ended with 0x%02x and 0x%02x", ends[0], ends[1]);
    return TEST_PASSED;
}

/* Somebody else's packets, as many as there is room for. */
static void fill_link(struct rc_link *link, uint64_t now)
{
    struct rc_packet *packet;
    while ((packet = rc_link_slot(link)) != NULL) {
        rc_packet_clear(packet, RC_WRITE, rc_rig_qpn(RC_RIG_PAIRS), 1);
        packet->payload_bytes = 0;
        rc_link_send(link, now);
    }
}

/* The link is full at every look of queue pair 0, for many times as long as it may be silent; a packet is
 * taken from it only every `every`, and the place is another's at once. */
static void keep_full(struct rc_rig *rig, uint64_t every, uint64_t *now, uint64_t end)
{
    for (; *now < end; ++*now) {
        if (*now % every == 0 && rc_link_peek(&rig->requests, *now) != NULL) {
            rc_link_release(&rig->requests);
        }
        fill_link(&rig->requests, *now);
        (void)rc_requester_work(&rig->pairs[0].q, &rig->home.memory, &rig->requests, *now);
    }
}

/* A full link that moves is no silence, whether the queue pair waits for its first turn or, with a packet
 * that was lost, to send it again: retries are counted when something was sent, and with room all is as ever.
 * One that has stopped moving is. */
static int full_but_moving(struct test *t)
{
    struct rc_rig_options o = rc_rig_defaults(2);
    const uint64_t long_ns = 40 * o.config.timeout;
    struct rc_rig rig;
    struct rc_requester *q;
    struct rc_completion done;
    struct wqe_op op;
    uint32_t retries[2], ended[2], last;
    uint64_t now = 1;
    (void)t;
    o.config.retry_count = 3;
    rc_rig_open(&rig, &o);
    q = &rig.pairs[0].q;
    op = rc_op_write(&rig, 0, 0, 256);
    fill_link(&rig.requests, now);
    rc_rig_post(&rig, 0, &op, NULL);
    keep_full(&rig, o.config.timeout - 1, &now, long_ns);
    retries[0] = q->retries;
    ended[0] = q->state == RC_ERROR || q->next != q->acked;
    for (int i = 0; i < 4 && rc_link_peek(&rig.requests, now) != NULL;
         i++) { /* its turn; nobody will answer */
        rc_link_release(&rig.requests);
    }
    (void)rc_requester_work(q, &rig.home.memory, &rig.requests, now);
    ended[1] = q->next == q->acked;
    keep_full(&rig, o.config.timeout - 1, &now, 2 * long_ns);
    retries[1] = q->retries;
    ended[1] |= q->state == RC_ERROR;
    keep_full(&rig, ~0ull, &now, 2 * long_ns + 5 * o.config.timeout);
    last = rc_requester_peek(q, &done) ? done.syndrome : SYNDROME_NONE;
    rc_rig_close(&rig);
    CHECK(retries[0] == 0 && !ended[0], "before the first packet: %u retries, ended: %u", retries[0],
          ended[0]);
    CHECK(retries[1] == 1 && !ended[1], "behind a lost packet: %u retries, ended: %u", retries[1], ended[1]);
    CHECK(last == SYNDROME_TRANSPORT_RETRY, "a link that stands still: 0x%02x", last);
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
    test_run(&t, "black hole: 0x15 on the oldest after its retries, 0x05 behind it", black_hole);
    test_run(&t, "a link that nobody empties", full_link);
    test_run(&t, "a link that is full, and moves", full_but_moving);
    test_run(&t, "atomic applied, its answer lost for ever: 0x15", answer_lost_for_ever);
    test_run(&t, "no receive entry: late, or 0x16 after its retries", not_ready);
    test_run(&t, "refused: 0x13 and 0x12 of the target, 0x04, 0x11 and 0x02 at home", protection);
    test_run(&t, "a key taken away under way", keys_taken_away);
    test_run(&t, "an end that is stopped: 0x05 at once, or silence and 0x15", stopped);
    test_run(&t, "both ends of a queue pair err together", both_ends_err);
    test_run(&t, "answers that do not fit: 0x10", wrong_answers);
    test_run(&t, "impossible configurations are refused", refuses_configurations);
    return test_end(&t);
}
