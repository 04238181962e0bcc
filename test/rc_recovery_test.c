/* SPDX-License-Identifier: Apache-2.0
 *
 * How soon a connection recovers and how little it sends for that: what the memory at the end does not show.
 * And the responder by hand, packet by packet: what it places, acknowledges and never does twice. */
#include "rc_rig.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS = 200000, LONG = 2500, PARTS = 10, WORD = 40 * 1024, FLAG = 50 * 1024, NEVER = 1000000 };

static struct rc_rig_options patient(uint64_t seed)
{
    struct rc_rig_options o = rc_rig_defaults(seed);
    o.config.timeout = NEVER;
    o.config.window = 64;
    return o;
}

/* The fault hits packet `nth` of those to come. */
static void hit(struct rc_link *link, uint32_t kind, uint32_t fault, uint64_t nth)
{
    link->faults.kinds = 1u << kind;
    link->faults.nth_fault = fault;
    link->faults.nth_first = link->faults.nth_last = link->num_hit + nth;
}

static int run_one(struct rc_rig *rig, const struct wqe_op *op, uint64_t within)
{
    uint64_t start = rig->now;
    rc_rig_post(rig, 0, op, NULL);
    return rc_rig_run(rig, STEPS) && rig->now - start < within &&
           rig->pairs[0].done[rig->pairs[0].num_done - 1].syndrome == SYNDROME_NONE;
}

/* ---- What the other side tells ---- */

/* Twice in one connection, at another place each time: a WRITE whose packet is lost, a READ whose answer
 * is. */
static int losses_are_told(struct test *t)
{
    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 40); seed++) {
        struct rc_rig_options o = patient(seed);
        uint64_t lost = 2 + seed % 7, writes = 0, reads = 0;
        struct rc_rig rig;
        int good = 1;
        rc_rig_open(&rig, &o);
        for (int round = 0; round < 3 && good; round++) {
            struct wqe_op write = rc_op_write(&rig, 0, 0, LONG), read = rc_op_read(&rig, 4096, 4096, LONG);
            uint64_t before = rig.requests.num_sent;
            hit(&rig.requests, RC_WRITE, RC_FAULT_DROP, lost);
            good = run_one(&rig, &write, NEVER);
            writes = rig.requests.num_sent - before;
            before = rig.requests.num_sent;
            hit(&rig.answers, RC_READ_ANSWER, RC_FAULT_DROP, lost);
            good = good && run_one(&rig, &read, NEVER);
            reads = rig.requests.num_sent - before;
            good = good && writes <= 2 * PARTS - lost + 1 && reads == 2;
        }
        rc_rig_close(&rig);
        CHECK(good, "seed %llu: a loss waits for the timer, or takes %llu and %llu packets",
              (unsigned long long)seed, (unsigned long long)writes, (unsigned long long)reads);
    }
    return TEST_PASSED;
}

/* Only WRITEs overtake, and what must not be overtaken waits: nothing comes that has to be sent again. */
static int holding_saves_packets(struct test *t)
{
    uint64_t overtaken = 0;
    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 100); seed++) {
        struct rc_rig_options o = patient(seed);
        struct rc_rig rig;
        int over;
        o.config.adaptive = o.requests.overtake = 1;
        o.requests.reorder = RC_CERTAIN / 2;
        rc_rig_open(&rig, &o);
        rc_responder_give(&rig.pairs[0].s);
        for (uint32_t i = 0; i < 6; i++) {
            struct wqe_op op = i == 1   ? rc_op_add(&rig, WORD, WORD, 1)
                               : i == 3 ? rc_op_imm(&rig, 16384, 16384, LONG, 1)
                               : i == 5 ? rc_op_read(&rig, 24576, 24576, LONG)
                                        : rc_op_write(&rig, 4096 * i, 4096 * i, LONG);
            rc_rig_post(&rig, 0, &op, NULL);
        }
        over = rc_rig_run(&rig, STEPS);
        overtaken += rig.requests.num_reordered;
        over = over && rig.pairs[0].q.num_resent == 0 && rig.requests.num_sent == 4 * PARTS + 2;
        rc_rig_close(&rig);
        CHECK(over, "seed %llu: %llu packets", (unsigned long long)seed,
              (unsigned long long)rig.requests.num_sent);
    }
    CHECK(overtaken > 0, "nothing was overtaken");
    return TEST_PASSED;
}

/* A message of many packets in a window of few: acknowledgements come in time. */
static int narrow_windows_flow(struct test *t)
{
    for (uint32_t window = 1; window <= 12; window++) {
        for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 10); seed++) {
            struct rc_rig_options o = patient(seed);
            struct wqe_op op;
            struct rc_rig rig;
            int good;
            o.config.window = window;
            rc_rig_open(&rig, &o);
            op = rc_op_write(&rig, 0, 0, LONG);
            good = run_one(&rig, &op, NEVER) && rig.requests.num_sent == PARTS;
            rc_rig_close(&rig);
            CHECK(good, "window %u: %llu packets", window, (unsigned long long)rig.requests.num_sent);
        }
    }
    return TEST_PASSED;
}

/* ---- Budgets ---- */

/* One retry each: enough for any number of losses with progress between them. */
static int progress_renews_budgets(struct test *t)
{
    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 20); seed++) {
        struct rc_rig_options o = rc_rig_defaults(seed);
        struct rc_receive receive;
        struct rc_rig rig;
        int good = 1;
        o.config.retry_count = o.config.rnr_retry = 1;
        rc_rig_open(&rig, &o);
        for (uint32_t i = 0; i < 5 && good; i++) {
            struct wqe_op write = rc_op_write(&rig, 0, 0, 8), imm = rc_op_imm(&rig, 0, 0, 8, i);
            uint64_t resent;
            hit(&rig.requests, RC_WRITE, RC_FAULT_DROP, 1);
            good = run_one(&rig, &write, 3 * o.config.timeout);
            resent = rig.pairs[0].q.num_resent;
            rc_rig_post(&rig, 0, &imm, NULL);
            while (good && rig.pairs[0].q.num_resent == resent && rig.pairs[0].q.state == RC_READY) {
                rc_rig_step(&rig);
            }
            rc_responder_give(&rig.pairs[0].s);
            good = good && rc_rig_run(&rig, STEPS) &&
                   rig.pairs[0].done[2 * i + 1].syndrome == SYNDROME_NONE &&
                   rc_responder_fetch(&rig.pairs[0].s, &receive) && receive.imm == i;
        }
        rc_rig_close(&rig);
        CHECK(good, "seed %llu: the budget is used up", (unsigned long long)seed);
    }
    return TEST_PASSED;
}

/* The same answer twice is one. */
static int double_naks_count_once(struct test *t)
{
    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 20); seed++) {
        struct rc_rig_options o = rc_rig_defaults(seed);
        struct rc_rig rig;
        struct wqe_op imm;
        int good;
        o.config.rnr_retry = 1;
        o.answers.kinds = 1u << RC_NAK;
        o.answers.duplicate = RC_CERTAIN;
        rc_rig_open(&rig, &o);
        imm = rc_op_imm(&rig, 0, 0, 8, 1);
        rc_rig_post(&rig, 0, &imm, NULL);
        while (rig.answers.num_sent == 0) {
            rc_rig_step(&rig);
        }
        rc_responder_give(&rig.pairs[0].s);
        good = rc_rig_run(&rig, STEPS) && rig.pairs[0].done[0].syndrome == SYNDROME_NONE;
        rc_rig_close(&rig);
        CHECK(good, "seed %llu", (unsigned long long)seed);
    }
    return TEST_PASSED;
}

/* ---- Late memory ---- */

/* An atomic that may pass earlier writes never passes those to its own word. */
static int atomics_see_their_word(struct test *t)
{
    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 100); seed++) {
        struct rc_rig_options o = rc_rig_defaults(seed);
        struct wqe_op write, add;
        struct rc_rig rig;
        uint64_t word, told;
        int over;
        o.modes = RC_RELAXED;
        rc_rig_open(&rig, &o);
        rc_rig_set_word(&rig.home, 0, 700);
        write = rc_op_write(&rig, FLAG, 0, 8);
        add = rc_op_add(&rig, FLAG, WORD, 1);
        rc_rig_post(&rig, 0, &write, NULL);
        rc_rig_post(&rig, 0, &add, NULL);
        over = rc_rig_run(&rig, STEPS);
        rc_memory_land(&rig.away.memory);
        word = rc_rig_word(&rig.away, FLAG);
        told = rc_rig_word(&rig.home, WORD);
        rc_rig_close(&rig);
        CHECK(over && word == 701 && told == 700, "seed %llu: the word is %llu, its adder was told %llu",
              (unsigned long long)seed, (unsigned long long)word, (unsigned long long)told);
    }
    return TEST_PASSED;
}

/* ---- The responder by hand ---- */

/* A WRITE of 8 bytes of `byte` in packet `number`, and what is answered: its kind and number, or -1. */
static int give_write(struct rc_rig *rig, uint32_t number, int byte, uint32_t rkey, uint32_t *answered)
{
    struct rc_packet *packet = rc_link_slot(&rig->requests), *answer;
    int kind;
    rc_packet_clear(packet, RC_WRITE, rc_rig_qpn(0), number);
    packet->flags = RC_ASK_ACK;
    packet->rkey = rkey;
    packet->remote = RC_RIG_AWAY + 8 * number;
    packet->bytes = packet->payload_bytes = 8;
    memset(rc_payload(packet), byte, 8);
    rc_responder_take(&rig->pairs[0].s, &rig->away.memory, packet, &rig->answers, 1);
    answer = rc_link_peek(&rig->answers, 1);
    if (answer == NULL) {
        return -1;
    }
    kind = (int)answer->kind;
    *answered = answer->psn;
    rc_link_release(&rig->answers);
    return kind;
}

#define GIVES(number, byte, rkey, kind, psn)                                                                 \
    do {                                                                                                     \
        uint32_t answered_ = 0;                                                                              \
        int seen_ = give_write(rig, number, byte, rkey, &answered_);                                         \
        CHECK(seen_ == (kind) && answered_ == (psn), "packet %d: answer of kind %d, number %u", number,      \
              seen_, answered_);                                                                             \
    } while (0)

#define HOLDS(number, byte)                                                                                  \
    CHECK(rig->away.bytes[8 * (number)] == (byte), "packet %d left %d there", number,                        \
          rig->away.bytes[8 * (number)])

static int by_hand_in_order(struct rc_rig *rig)
{
    const uint32_t key = rig->away.key;
    rig->away.bytes[8 * 2] = 99;
    GIVES(0, 1, key, RC_ACK, 0);
    GIVES(2, 1, key, RC_NAK, 1);
    GIVES(3, 1, key, -1, 0); /* said once */
    HOLDS(2, 99);
    GIVES(0, 2, key, RC_ACK, 0); /* a duplicate */
    HOLDS(0, 1);
    GIVES(1, 1, key, RC_ACK, 1);
    GIVES(3, 1, key, RC_NAK, 2); /* said anew */
    GIVES(2, 1, key + 1, RC_NAK, 2);
    CHECK(rig->pairs[0].s.state == RC_REFUSED, "a wrong key passes");
    GIVES(2, 3, key, RC_NAK, 2); /* not even when it is right */
    GIVES(5, 3, key, RC_NAK, 2);
    HOLDS(2, 99);
    GIVES(1, 3, key, RC_ACK, 1);
    HOLDS(1, 1);
    return TEST_PASSED;
}

static int by_hand_adaptive(struct rc_rig *rig)
{
    const uint32_t key = rig->away.key;
    memset(rig->away.bytes, 99, 1024);
    GIVES(2, 1, key, -1, 0);
    GIVES(3, 1, key, -1, 0);
    HOLDS(2, 1);
    GIVES(2, 2, key, -1, 0); /* once */
    HOLDS(2, 1);
    GIVES(RC_ADAPTIVE_WINDOW, 1, key, RC_NAK, 0); /* too far ahead */
    HOLDS(RC_ADAPTIVE_WINDOW, 99);
    GIVES(RC_ADAPTIVE_WINDOW - 1, 1, key, -1, 0);
    HOLDS(RC_ADAPTIVE_WINDOW - 1, 1);
    GIVES(0, 1, key, RC_ACK, 0);
    GIVES(5, 1, key + 1, -1, 0); /* refused in its turn */
    CHECK(rig->pairs[0].s.state == RC_SERVING, "refused too early");
    GIVES(1, 1, key, RC_ACK, 3); /* and 2 and 3 */
    GIVES(3, 2, key, RC_ACK, 3);
    HOLDS(3, 1);
    GIVES(4, 1, key, RC_ACK, 4);
    GIVES(5, 1, key + 1, RC_NAK, 5);
    CHECK(rig->pairs[0].s.state == RC_REFUSED, "a wrong key passes");
    return TEST_PASSED;
}

static int by_hand(struct test *t)
{
    for (uint32_t adaptive = 0; adaptive <= 1; adaptive++) {
        struct rc_rig_options o = patient(1);
        struct rc_rig rig;
        int result;
        o.config.adaptive = adaptive;
        rc_rig_open(&rig, &o);
        result = (adaptive ? by_hand_adaptive : by_hand_in_order)(&rig);
        rc_rig_close(&rig);
        PASS(result);
    }
    (void)t;
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "losses are told, and cost no more than what was lost and what follows", losses_are_told);
    test_run(&t, "adaptive routing without loss sends nothing twice", holding_saves_packets);
    test_run(&t, "narrow windows flow", narrow_windows_flow);
    test_run(&t, "progress renews the budgets of retries", progress_renews_budgets);
    test_run(&t, "the same refusal twice counts once", double_naks_count_once);
    test_run(&t, "an atomic sees all writes to its word", atomics_see_their_word);
    test_run(&t, "the responder, packet by packet", by_hand);
    return test_end(&t);
}
