/* SPDX-License-Identifier: Apache-2.0
 *
 * The wire of a software NIC. Time is an argument of an engine's step, so here it goes on by one nanosecond
 * at a time, and when bytes are there and when operations complete is known exactly: latency, rates of bytes
 * and messages, queue pairs and senders that share a link. At the end, loosely, a thread with a real clock.
 * */
#include "model_rig.h"

#include "net/softnic_thread.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { PUTS = 16, PUT_BYTES = 1000 };

static uint64_t post(struct wire *w, int card, uint32_t queue, uint64_t place, uint64_t bytes)
{
    return queue_put(&w->cards[card].lines[queue].queue, at(w->to + place), at(w->from + place), bytes);
}

/* ---- One queue ---- */

/* Steps card 0 until bytes [last] and ticket are there; when that was, after `begin`. */
static int watch(struct wire *w, uint64_t begin, uint64_t last, uint64_t ticket, uint64_t *came,
                 uint64_t *ended)
{
    *came = *ended = 0;
    for (uint64_t ns = 0; *came == 0 || *ended == 0; ns++) {
        CHECK(ns < 200000, "nothing after %llu ns", (unsigned long long)ns);
        model_work(&w->cards[0], begin + ns);
        if (*came == 0 && w->to[last] != 0) {
            *came = ns;
        }
        if (*ended == 0 && model_is_done(w, 0, 0, ticket)) {
            *ended = ns;
        }
    }
    return TEST_PASSED;
}

static int latency_from(uint64_t begin)
{
    const struct softnic_rates rates = {0, 0, 0, 1500};
    struct wire *w = NULL;
    uint64_t came, ended;
    PASS(model_open(&w, &rates));
    PASS(watch(w, begin, 63, post(w, 0, 0, 0, 64), &came, &ended));
    free(w);
    CHECK(came == 1500 && ended == 3000, "there after %llu ns, complete after %llu", (unsigned long long)came,
          (unsigned long long)ended);
    return TEST_PASSED;
}

/* Also where ticks wrap, and where a clock begins. */
static int latency(struct test *t)
{
    (void)t;
    PASS(latency_from(BEGIN));
    PASS(latency_from((1ull << 56) - 700));
    PASS(latency_from((1ull << 55) - 700));
    return latency_from(1);
}

/* Each put behind the other, at 1 byte a ns; the words behind it at once with the last. */
static int rate(struct test *t)
{
    const struct softnic_rates rates = {1000000000, 0, 0, 700};
    struct wire *w = NULL;
    uint64_t ticket = 0, came, ended, done = 0;
    (void)t;
    PASS(model_open(&w, &rates));
    for (uint64_t i = 0; i < PUTS; i++) {
        ticket = post(w, 0, 0, i * PUT_BYTES, PUT_BYTES);
    }
    for (uint64_t ns = 0; ns < PUTS * PUT_BYTES + 700; ns++) {
        model_work(&w->cards[0], BEGIN + ns);
        done = ns < 700 ? 0 : (ns - 700) / PUT_BYTES; /* puts that must be there */
        CHECK(done == 0 || w->to[done * PUT_BYTES - 1] != 0, "put %llu is late at %llu ns",
              (unsigned long long)done, (unsigned long long)ns);
        CHECK(w->to[done * PUT_BYTES] == 0, "put %llu is early at %llu ns", (unsigned long long)done + 1,
              (unsigned long long)ns);
    }
    PASS(watch(w, BEGIN + PUTS * PUT_BYTES, PUTS * PUT_BYTES - 1, ticket, &came, &ended));
    CHECK(came == 700 && ended == 1400, "the last after %llu and %llu ns", (unsigned long long)came,
          (unsigned long long)ended);
    free(w);
    return TEST_PASSED;
}

/* Time in which nothing was sent is lost. */
static int no_credit(struct test *t)
{
    const struct softnic_rates rates = {1000000000, 0, 0, 0};
    struct wire *w = NULL;
    uint64_t came, ended;
    (void)t;
    PASS(model_open(&w, &rates));
    for (uint64_t i = 0; i < 3; i++) {
        PASS(watch(w, BEGIN + i * 100000, i * PUT_BYTES, post(w, 0, 0, i * PUT_BYTES, PUT_BYTES), &came,
                   &ended));
        CHECK(came == PUT_BYTES && ended == PUT_BYTES, "put %llu after %llu ns", (unsigned long long)i,
              (unsigned long long)came);
    }
    free(w);
    return TEST_PASSED;
}

static int messages(struct test *t)
{
    const struct softnic_rates rates = {0, 0, 2000000, 100};
    struct wire *w = NULL;
    uint64_t ticket = 0, came, ended;
    (void)t;
    PASS(model_open(&w, &rates));
    for (uint64_t i = 0; i < PUTS; i++) {
        ticket = queue_put_inline(&w->cards[0].lines[0].queue, at(w->to + 8 * i), 0x0101010101010101ull, 8);
    }
    PASS(watch(w, BEGIN, 8 * (PUTS - 1), ticket, &came, &ended));
    free(w);
    CHECK(came == 500 * PUTS + 100 && ended == 500 * PUTS + 200, "%d messages took %llu ns", PUTS,
          (unsigned long long)came);
    return TEST_PASSED;
}

/* Puts that the queues are given as soon as there is room, each to a word of its queue that it counts up, for
 * as long as 2000 messages take; the engine looks every so many ns. *error: of the rate that was seen. */
static int messages_at(uint64_t per_s, uint64_t every, double *error)
{
    const struct softnic_rates rates = {0, 0, per_s, 0};
    const uint64_t span = 2000 * 1000000000ull / per_s / every * every;
    uint64_t given[QUEUES] = {0}, came[QUEUES] = {0}, all = 0;
    struct wire *w = NULL;
    PASS(model_open(&w, &rates));
    for (uint64_t ns = 0; ns <= span; ns += every) {
        for (uint32_t k = 0; k < QUEUES; k++) {
            while (given[k] - came[k] < BLOCKS / 2) {
                queue_put_inline(&w->cards[0].lines[k].queue, at(w->to + 8 * k), ++given[k], 8);
            }
        }
        model_work(&w->cards[0], BEGIN + ns);
        memcpy(came, w->to, sizeof came);
    }
    for (uint32_t k = 0; k < QUEUES; k++) {
        all += came[k];
    }
    free(w);
    *error = (double)all * 1e9 / ((double)per_s * (double)span) - 1;
    return TEST_PASSED;
}

/* The rates of tern-bench's --nic-mops, over both queues of a NIC, hold within 3 %. */
static int messages_hold(struct test *t)
{
    static const struct {
        uint64_t millions, every;
    } cases[] = {{1, 1}, {1, 2000}, {3, 700}, {7, 1}, {33, 300}, {150, 50}, {333, 7}, {1000, 1}};
    double worst = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double error = 1;
        PASS(messages_at(cases[i].millions * 1000000, cases[i].every, &error));
        CHECK(error > -0.03 && error < 0.03, "%llu million a second, a look every %llu ns: %.2f %% off",
              (unsigned long long)cases[i].millions, (unsigned long long)cases[i].every, 100 * error);
        error = error < 0 ? -error : error;
        worst = error > worst ? error : worst;
    }
    test_detail(t, "%.2f %% off at most", 100 * worst);
    return TEST_PASSED;
}

/* A get is a round trip and its bytes; a put behind it arrives no earlier. */
static int gets(struct test *t)
{
    const struct softnic_rates rates = {1000000000, 1000000000, 0, 300};
    struct wire *w = NULL;
    uint64_t ticket, came, ended;
    (void)t;
    PASS(model_open(&w, &rates));
    ticket = queue_get(&w->cards[0].lines[0].queue, at(w->to), at(w->from), PUT_BYTES);
    post(w, 0, 0, 5000, 8);
    PASS(watch(w, BEGIN, 0, ticket, &came, &ended));
    CHECK(came == 600 + PUT_BYTES && ended == came, "a get took %llu ns and completed after %llu",
          (unsigned long long)came, (unsigned long long)ended);
    CHECK(w->to[5000] != 0, "the put behind it waits on");
    free(w);
    return TEST_PASSED;
}

/* The signal is not there before the data; a wait for what failed ends with its syndrome, after a trip. */
static int order(struct test *t)
{
    const struct softnic_rates rates = {1000000000, 0, 0, 400};
    struct wire *w = NULL;
    struct net_queue *q;
    uint64_t *word, ended = 0;
    (void)t;
    PASS(model_open(&w, &rates));
    q = &w->cards[0].lines[0].queue;
    word = (uint64_t *)(void *)(w->to + 8192);
    queue_put_signal(q, at(w->to), at(w->from), 4096, at(word), 8, 7, NET_AMO_ADD);
    for (uint64_t ns = 0; *word == 0; ns++) {
        model_work(&w->cards[0], BEGIN + ns);
        CHECK(*word == 0 || (w->to[4095] != 0 && ns == 4096 + 8 + 400), "a signal after %llu ns",
              (unsigned long long)ns);
        CHECK(ns < 10000, "no signal");
    }
    w->ranges[0].key = wqe_key_of(0x999900);
    queue_put(q, at(w->to + 16384), at(w->from), 8);
    post(w, 0, 0, 20000, 8);
    while (queue_poll(q) == NET_OK && ended < 10000) {
        model_work(&w->cards[0], BEGIN + 100000 + ended++);
    }
    CHECK(queue_poll(q) == net_failed(SYNDROME_LOCAL_PROTECTION) && ended == 8 + 800 + 1,
          "status 0x%x after %llu ns", queue_poll(q), (unsigned long long)ended);
    CHECK(w->to[16384] == 0 && w->to[20000] == 0, "what failed, or is behind it, was done");
    free(w);
    return TEST_PASSED;
}

/* ---- Several ---- */

/* Bytes of `num` puts of each of `cards` cards, by queues in turn, that are there after `ns`. */
static uint64_t arrived(const struct wire *w, int cards, uint64_t num)
{
    uint64_t puts = 0;
    for (uint64_t i = 0; i < (uint64_t)cards * num; i++) {
        puts += w->to[i * PUT_BYTES] != 0;
    }
    return puts;
}

static void post_all(struct wire *w, int cards, uint64_t num)
{
    for (int c = 0; c < cards; c++) {
        for (uint64_t i = 0; i < num; i++) {
            post(w, c, (uint32_t)i % QUEUES, ((uint64_t)c * num + i) * PUT_BYTES, PUT_BYTES);
        }
    }
}

/* All of what `cards` have posted comes at one byte a ns, never faster, never slower; nobody is left behind
 * by more than the puts that a queue pair may take ahead. */
static int share_between(struct wire *w, int cards, uint64_t every, uint64_t late)
{
    const uint64_t num = 40, all = (uint64_t)cards * num;
    post_all(w, cards, num);
    for (uint64_t ns = 0; ns <= all * PUT_BYTES + 500 + late; ns++) {
        uint64_t wanted = ns < 500 ? 0 : (ns - 500) / PUT_BYTES,
                 slack = every + late > 1 ? (every + late) / PUT_BYTES + 1 : 0;
        wanted = wanted < all ? wanted : all;
        model_tell(w, BEGIN + ns);
        for (int c = 0; ns % every == 0 && c < cards; c++) {
            model_work(&w->cards[c], BEGIN + ns);
        }
        if (ns % PUT_BYTES == 500 && ns > 500) {
            uint64_t puts = arrived(w, cards, num);
            CHECK(puts <= wanted + (late != 0) && puts + slack >= wanted, "%llu puts after %llu ns, not %llu",
                  (unsigned long long)puts, (unsigned long long)ns, (unsigned long long)wanted);
        }
        if (ns == all * PUT_BYTES / 2) {
            for (int c = 0; cards > 1 && c < cards; c++) {
                uint64_t mine = 0;
                for (uint64_t i = 0; i < num; i++) {
                    mine += w->to[((uint64_t)c * num + i) * PUT_BYTES] != 0;
                }
                CHECK(mine >= num / 2 - 5 && mine <= num / 2 + 5, "card %d has %llu of %llu puts through", c,
                      (unsigned long long)mine, (unsigned long long)(all / 2));
            }
        }
    }
    if (cards == 1) {
        CHECK(w->cards[0].link.sends == softnic_ticks(BEGIN + all * PUT_BYTES),
              "the link is free at another time");
    } else if (late == 0) {
        /* Clocks that are told are odd: a tick more or less. */
        CHECK(w->receiver.receives - softnic_ticks(BEGIN + 500 + all * PUT_BYTES + w->ahead) <= 1,
              "the receiver, too");
    }
    return TEST_PASSED;
}

static int share(int cards, const struct softnic_rates *rates, uint64_t every)
{
    struct wire *w = NULL;
    PASS(model_open(&w, rates));
    PASS(share_between(w, cards, every, 0));
    free(w);
    return TEST_PASSED;
}

/* Two queues of a NIC; also when the engine is away for 3 us at a time. */
static int shared(struct test *t)
{
    const struct softnic_rates rates = {1000000000, 0, 0, 500};
    (void)t;
    PASS(share(1, &rates, 1));
    return share(1, &rates, 3000);
}

/* Queues that always have something to send take turns, whatever the engine draws: of what has arrived no
 * queue has more than a turn above another, the first of which may be as long as the engine looks ahead. */
static int turns(struct test *t)
{
    const struct softnic_rates rates = {1000000000, 0, 0, 500};
    const uint64_t num = 40;
    uint64_t worst = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct wire *w = NULL;
        PASS(model_open(&w, &rates));
        w->cards[0].engine.random = 2 * seed + 1;
        post_all(w, 1, num);
        for (uint64_t ns = 0; ns <= num * PUT_BYTES + 500; ns++) {
            model_work(&w->cards[0], BEGIN + ns);
            if (ns % PUT_BYTES == 500) {
                uint64_t of[QUEUES] = {0}, apart;
                for (uint64_t i = 0; i < num; i++) {
                    of[i % QUEUES] += w->to[i * PUT_BYTES] != 0;
                }
                apart = of[0] > of[1] ? of[0] - of[1] : of[1] - of[0];
                worst = apart > worst ? apart : worst;
            }
        }
        CHECK(arrived(w, 1, num) == num, "seed %llu: some are missing", (unsigned long long)seed);
        free(w);
    }
    test_detail(t, "%llu puts apart at most", (unsigned long long)worst);
    CHECK(worst <= 11, "%llu puts apart", (unsigned long long)worst);
    return TEST_PASSED;
}

/* A word waits for what its own queue has sent, and not for another's; a put that is longer waits for all. */
static int overtaking(struct test *t)
{
    const struct softnic_rates rates = {1000000000, 1000000000, 0, 500};
    enum { WORD = 8, BEFORE = 6, LONG = 200 };
    (void)t;
    for (uint32_t k = 0; k < 2; k++) {
        const uint64_t places[] = {(uint64_t)BEFORE * PUT_BYTES, (uint64_t)(BEFORE + 1) * PUT_BYTES};
        const uint64_t words_begin = BEGIN + 100000;
        struct wire *w = NULL;
        uint64_t came, ended, ticket;
        PASS(model_open(&w, &rates));
        /* Both queues have used the wire before. */
        for (uint32_t i = 0; i < 2; i++) {
            PASS(watch(w, BEGIN + 20000 * i, places[1] + 8 * i, post(w, 0, i, places[1] + 8 * i, WORD), &came,
                       &ended));
        }
        for (uint64_t i = 0; i < BEFORE; i++) {
            (void)post(w, 0, 0, i * PUT_BYTES, PUT_BYTES);
        }
        for (uint64_t ns = 0; ns < 100; ns++) {
            model_work(&w->cards[0], words_begin + ns);
        }
        const uint64_t bytes = k == 0 ? WORD : LONG, queued = (uint64_t)BEFORE * PUT_BYTES;
        ticket = post(w, 0, 1, places[0], bytes);
        PASS(watch(w, words_begin + 100, places[0], ticket, &came, &ended));
        CHECK(k == 0 ? came <= 500 + LONG : came >= queued + 500 - 100, "%llu bytes came after %llu ns",
              (unsigned long long)bytes, (unsigned long long)came);
        ticket = post(w, 0, 0, places[1] + 64, WORD);
        uint64_t begin = words_begin + 101 + ended, left = words_begin + queued;
        PASS(watch(w, begin, places[1] + 64, ticket, &came, &ended));
        CHECK(begin + came >= left + 500, "a word overtook its own queue by %llu ns",
              (unsigned long long)(left + 500 - begin - came));
        free(w);
    }
    return TEST_PASSED;
}

static int incast(struct test *t)
{
    const struct softnic_rates rates = {1000000000, 1000000000, 0, 500};
    (void)t;
    PASS(share(2, &rates, 1));
    return share(3, &rates, 1);
}

/* Clocks hundreds of microseconds apart, which no message waits for; also ticks that wrap between them. What
 * the receiver tells of its own is as old as it likes. */
static int clocks(struct test *t)
{
    const struct softnic_rates rates = {1000000000, 1000000000, 0, 500};
    static const uint64_t apart[][3] = {
        {300000, 0, 150000}, {0, 400000, 900000}, {1ull << 55, 70000, 0}, {70000, (1ull << 55) - BEGIN, 7}};
    (void)t;
    for (size_t i = 0; i < sizeof apart / sizeof apart[0]; i++) {
        for (uint64_t stale = 0; stale <= 900; stale += 300) {
            struct wire *w = NULL;
            PASS(model_open(&w, &rates));
            model_part_clocks(w, apart[i][0], &apart[i][1], stale);
            PASS(share_between(w, 2, 1, stale));
            free(w);
        }
    }
    return TEST_PASSED;
}

/* Of a peer that has not told its clock the receiving side is free; then it is taken like any other. */
static int clock_untold(struct test *t)
{
    const struct softnic_rates rates = {0, 1000000000, 0, 500};
    const uint64_t ahead[CARDS] = {0};
    struct wire *w = NULL;
    uint64_t came, ended;
    (void)t;
    PASS(model_open(&w, &rates));
    model_part_clocks(w, 800000, ahead, 0);
    PASS(watch(w, BEGIN, PUT_BYTES - 1, post(w, 0, 0, 0, PUT_BYTES), &came, &ended));
    CHECK(came == 500 && w->receiver.receives == 0, "there after %llu ns", (unsigned long long)came);
    model_tell(w, BEGIN + 5000);
    PASS(watch(w, BEGIN + 5000, 2 * PUT_BYTES - 1, post(w, 0, 0, PUT_BYTES, PUT_BYTES), &came, &ended));
    CHECK(came == 500 + PUT_BYTES && w->receiver.receives - softnic_ticks(BEGIN + 805500 + PUT_BYTES) <= 1,
          "there after %llu ns", (unsigned long long)came);
    free(w);
    return TEST_PASSED;
}

/* After a rest, in which clocks have drifted apart, the first message hears of it before it takes the
 * receiver: else it would take it up to a time that has not come, or is long over. */
static int clock_after_rest(struct test *t)
{
    const struct softnic_rates rates = {0, 1000000000, 0, 500};
    const uint64_t ahead[CARDS] = {0}, rest = 2000000000;
    (void)t;
    for (int faster = 0; faster < 2; faster++) {
        struct wire *w = NULL;
        uint64_t came, ended, now = BEGIN;
        PASS(model_open(&w, &rates));
        model_part_clocks(w, 800000, ahead, 0);
        for (uint64_t i = 0; i < 2; i++, now += rest, w->ahead += faster ? 90000 : -90000ull) {
            model_tell(w, now);
            PASS(watch(w, now, (i + 1) * PUT_BYTES - 1, post(w, 0, 0, i * PUT_BYTES, PUT_BYTES), &came,
                       &ended));
            CHECK(came == 500 + PUT_BYTES &&
                      w->receiver.receives - softnic_ticks(now + w->ahead + 500 + PUT_BYTES) <= 1,
                  "put %llu there after %llu ns, the receiver taken for %lld ns more", (unsigned long long)i,
                  (unsigned long long)came,
                  (long long)(w->receiver.receives - softnic_ticks(now + w->ahead + came)) / SOFTNIC_TICKS);
        }
        free(w);
    }
    return TEST_PASSED;
}

/* A clock that falls behind is followed within what clocks may drift; news that are old change nothing. */
static int drift(struct test *t)
{
    struct softnic_clock k = {0, 0};
    const uint64_t second = softnic_ticks(1000000000);
    uint64_t now = second, error = 0;
    softnic_hear(&k, 0, now);
    CHECK(k.heard_at == 0, "what was not told was heard");
    for (int i = 0; i < 1000; i++) { /* a millisecond each; 40 parts in a million, heard after 0 to 9 us */
        uint64_t age = softnic_ticks((uint64_t)(i % 10) * 1000);
        uint64_t ahead = second - (now - second) / 25000, old = now - age;
        softnic_hear(&k, old + second - (old - second) / 25000, now);
        CHECK(i == 0 || !softnic_is_due(k.ahead, ahead + softnic_ticks(600)), "too far ahead, step %d", i);
        error = ahead - k.ahead > error && (int64_t)(ahead - k.ahead) > 0 ? ahead - k.ahead : error;
        now += second / 1000;
    }
    test_detail(t, "%llu ns behind at most", (unsigned long long)(error / SOFTNIC_TICKS));
    CHECK(error < softnic_ticks(600), "%llu ticks behind", (unsigned long long)error);
    return TEST_PASSED;
}

/* ---- Numbers ---- */

static int accuracy(struct test *t)
{
    static const uint64_t speeds[] = {1000000, 330000000, 1000000000, 12500000000ull, 50000000000ull};
    static const uint64_t sizes[] = {8, 100, 4096, 1 << 20, 1 << 30};
    double worst = 0;
    for (size_t s = 0; s < sizeof speeds / sizeof speeds[0]; s++) {
        for (size_t b = 0; b < sizeof sizes / sizeof sizes[0]; b++) {
            const struct softnic_rates rates = {speeds[s], 0, 0, 0};
            struct softnic_link link = {0, 0, 0, 0};
            struct softnic_model m;
            uint32_t used = 0;
            double wanted = 100.0 * (double)sizes[b] / (double)speeds[s] * 1e9, error;
            OK(terni_softnic_model(&rates, &m));
            for (int i = 0; i < 100; i++) {
                struct softnic_crossing c = softnic_crossing_of(&link, NULL, 1);
                softnic_add(&m, &c, sizes[b], 0);
                softnic_cross(&m, &c, softnic_ticks(BEGIN), &used);
            }
            error = (double)(link.sends - softnic_ticks(BEGIN)) / SOFTNIC_TICKS / wanted - 1;
            error = error < 0 ? -error : error;
            worst = error > worst ? error : worst;
        }
    }
    test_detail(t, "%.3f %% off at most", 100 * worst);
    CHECK(worst < 0.002, "a rate is %.3f %% off", 100 * worst);
    return TEST_PASSED;
}

static int bounds(struct test *t)
{
    static const struct softnic_rates bad[] = {
        {999999, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 10, 0}, {0, 0, 0, 2000000000}, {1ull << 60, 0, 0, 0}};
    struct softnic_model m;
    (void)t;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        REFUSES(terni_softnic_model(&bad[i], &m), TERN_INVALID_ARGUMENT, "of a software NIC is");
    }
    return TEST_PASSED;
}

/* ---- A thread and a real clock ---- */

static int in_real_time(struct test *t)
{
    const struct softnic_rates rates = {100000000, 0, 0, 2000000}; /* 10 ns a byte, 2 ms */
    struct softnic_thread *thread = NULL;
    struct wire *w = NULL;
    uint64_t begin, ticket = 0, took;
    PASS(model_open(&w, &rates));
    OK(terni_softnic_thread_open(&w->cards[0].args, &thread));
    begin = clock_ns();
    for (int i = 0; i < 4; i++) {
        ticket = post(w, 0, 0, (uint64_t)i * 65536, 65536);
    }
    while (!model_is_done(w, 0, 0, ticket) && clock_ns() - begin < 20000000000ull) {
        sched_yield();
    }
    took = clock_ns() - begin;
    __atomic_store_n(&w->cards[0].stop, 1, __ATOMIC_RELAXED);
    terni_softnic_thread_join(thread);
    CHECK(memcmp(w->from, w->to, 4 * 65536) == 0, "other bytes");
    free(w);
    test_detail(t, "%.1f ms, 6.6 asked for", (double)took / 1e6);
    CHECK(took >= 6621440 && took < 1500000000, "4 puts took %llu ns", (unsigned long long)took);
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "latency: not a nanosecond early or late", latency);
    test_run(&t, "puts of one queue at the rate of the link", rate);
    test_run(&t, "a link that was idle has nothing saved", no_credit);
    test_run(&t, "messages a second", messages);
    test_run(&t, "rates of messages, within 3 %", messages_hold);
    test_run(&t, "gets are a round trip and their bytes", gets);
    test_run(&t, "a signal behind its data, and an error in flight", order);
    test_run(&t, "queues of a NIC share its link", shared);
    test_run(&t, "queues of a NIC take turns", turns);
    test_run(&t, "few bytes do not wait for other queues", overtaking);
    test_run(&t, "senders share a receiver's link", incast);
    test_run(&t, "senders and receiver with clocks of their own", clocks);
    test_run(&t, "a receiver that has not told its clock", clock_untold);
    test_run(&t, "a clock that is heard again after a rest", clock_after_rest);
    test_run(&t, "clocks that drift", drift);
    test_run(&t, "rates and sizes", accuracy);
    test_run(&t, "rates that are refused", bounds);
    test_run(&t, "in a thread, with a real clock", in_real_time);
    return test_end(&t);
}
