/* SPDX-License-Identifier: Apache-2.0
 *
 * The link by itself: what goes in comes out, in the order that is allowed, as often as the faults say; the
 * same seed errs in the same way; a full link takes nothing; and a thread may send while another receives. */
#include "net/rc_link.h"
#include "support.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { CAPACITY = 16, MTU = 256, QUEUES = 3, PACKETS = 400 };

static void *link_open(struct rc_link *link, const struct rc_faults *faults)
{
    void *slots = aligned_alloc(64, CAPACITY * rc_packet_bytes(MTU));
    if (slots == NULL) {
        abort();
    }
    rc_link_init(link, slots, CAPACITY, MTU, faults);
    return slots;
}

/* Packet i carries its number in its data too. Returns 0 if there is no room. */
static int send_one(struct rc_link *link, uint32_t qpn, uint32_t i, uint32_t flags, uint64_t now)
{
    struct rc_packet *packet = rc_link_slot(link);
    if (packet == NULL) {
        return 0;
    }
    rc_packet_clear(packet, RC_WRITE, qpn, i);
    packet->flags = flags;
    packet->payload_bytes = i % (MTU + 1);
    memset(rc_payload(packet), (int)(i * 7), packet->payload_bytes);
    rc_link_send(link, now);
    return 1;
}

static int is_whole(const struct rc_packet *packet)
{
    const char *payload = rc_payload_of(packet);
    for (uint32_t i = 0; i < packet->payload_bytes; i++) {
        if (payload[i] != (char)(packet->psn * 7)) {
            return 0;
        }
    }
    return packet->payload_bytes == packet->psn % (MTU + 1);
}

/* What became of PACKETS of each queue pair. */
struct tally {
    uint32_t count[QUEUES][PACKETS]; /* times that it arrived */
    int32_t last[QUEUES];
    uint32_t backwards, changes_of_queue;
    uint64_t hash;
};

static int receive_all(struct rc_link *link, struct tally *t, uint64_t now, struct rng *r)
{
    struct rc_packet *packet;
    static uint32_t before;
    while (!rng_one_in(r, 4) && (packet = rc_link_peek(link, now)) != NULL) {
        uint32_t queue = packet->to_qpn - 1;
        CHECK(packet == rc_link_peek(link, now), "another packet before the first was released");
        CHECK(is_whole(packet) && packet->due <= now && queue < QUEUES, "packet %u has changed", packet->psn);
        t->count[queue][packet->psn]++;
        t->backwards += (int32_t)packet->psn < t->last[queue];
        t->last[queue] = (int32_t)packet->psn;
        t->changes_of_queue += queue < before;
        before = queue;
        t->hash = t->hash * 31 + packet->psn * QUEUES + queue;
        rc_link_release(link);
    }
    return TEST_PASSED;
}

static int run(const struct rc_faults *faults, uint32_t flags, struct tally *t, struct rc_link *link)
{
    struct rng r = {faults->seed + 77};
    uint32_t sent[QUEUES] = {0};
    void *slots = link_open(link, faults);
    int result = TEST_PASSED;
    memset(t, 0, sizeof(*t));
    for (uint64_t now = 1; now < 40000 && result == TEST_PASSED; now++) {
        uint32_t queue = rng_below(&r, QUEUES);
        if (sent[queue] < PACKETS) {
            sent[queue] += (uint32_t)send_one(link, queue + 1, sent[queue], flags, now);
        }
        result = receive_all(link, t, now, &r);
    }
    if (sent[0] + sent[1] + sent[2] != QUEUES * PACKETS || link->first != link->next) {
        result = TEST_FAILED;
    }
    free(slots);
    CHECK(result == TEST_PASSED, "seed %llu: packets are stuck", (unsigned long long)faults->seed);
    return TEST_PASSED;
}

static uint64_t arrivals(const struct tally *t, uint32_t least, uint32_t most)
{
    uint64_t n = 0;
    for (int q = 0; q < QUEUES; q++) {
        for (int i = 0; i < PACKETS; i++) {
            n += t->count[q][i];
            if (t->count[q][i] < least || t->count[q][i] > most) {
                return ~0ull;
            }
        }
    }
    return n;
}

static int faults_do_what_they_say(struct test *t)
{
    const uint64_t all = QUEUES * PACKETS;
    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 20); seed++) {
        struct rc_faults f = {0};
        struct rc_link link;
        struct tally tally;
        f.seed = seed;
        PASS(run(&f, 0, &tally, &link));
        CHECK(arrivals(&tally, 1, 1) == all && tally.backwards == 0, "no fault");
        f.drop = RC_CERTAIN / 8;
        PASS(run(&f, 0, &tally, &link));
        CHECK(arrivals(&tally, 0, 1) == all - link.num_dropped && tally.backwards == 0 &&
                  link.num_dropped > 100 && link.num_dropped < 200,
              "%llu lost", (unsigned long long)link.num_dropped);
        f.drop = 0;
        f.duplicate = RC_CERTAIN / 8;
        PASS(run(&f, 0, &tally, &link));
        CHECK(arrivals(&tally, 1, 2) == all + link.num_duplicated && link.num_duplicated > 100 &&
                  tally.backwards == 0,
              "%llu doubled", (unsigned long long)link.num_duplicated);
        f.max_delay = 20; /* of doubles, for which nobody waits */
        PASS(run(&f, 0, &tally, &link));
        CHECK(arrivals(&tally, 1, 2) == all + link.num_duplicated && tally.backwards > 20, "%u late doubles",
              tally.backwards);
        f.duplicate = 0;
        f.delay = RC_CERTAIN / 8;
        PASS(run(&f, 0, &tally, &link));
        CHECK(arrivals(&tally, 1, 1) == all && link.num_delayed > 100 && tally.backwards == 0, "%llu delayed",
              (unsigned long long)link.num_delayed);
        f.delay = 0;
        f.latency = 10;
        f.reorder = RC_CERTAIN / 2;
        PASS(run(&f, 0, &tally, &link));
        CHECK(arrivals(&tally, 1, 1) == all && link.num_reordered > 50 && tally.backwards == 0,
              "%llu reordered", (unsigned long long)link.num_reordered);
        f.overtake = 1;
        PASS(run(&f, RC_IMM, &tally, &link));
        CHECK(tally.backwards == 0, "a WRITE with immediate has overtaken");
        PASS(run(&f, 0, &tally, &link));
        CHECK(arrivals(&tally, 1, 1) == all && tally.backwards > 20, "%u overtaken", tally.backwards);
    }
    return TEST_PASSED;
}

static int faults_choose(struct test *t)
{
    struct rc_faults f = {0};
    struct rc_link link;
    struct tally tally;
    f.seed = 5;
    f.qpn = 2;
    f.nth_fault = RC_FAULT_DROP;
    f.nth_first = 3;
    f.nth_last = 5;
    PASS(run(&f, 0, &tally, &link));
    for (int q = 0; q < QUEUES; q++) {
        for (int i = 0; i < PACKETS; i++) {
            uint32_t wanted = !(q == 1 && i >= 2 && i <= 4);
            CHECK(tally.count[q][i] == wanted, "packet %d of queue pair %d came %u times", i, q + 1,
                  tally.count[q][i]);
        }
    }
    f.kinds = 1u << RC_READ;
    PASS(run(&f, 0, &tally, &link));
    CHECK(link.num_dropped == 0 && link.num_hit == 0, "a WRITE was lost for a READ");
    (void)t;
    return TEST_PASSED;
}

static int same_seed_same_faults(struct test *t)
{
    uint64_t hashes[3];
    struct rc_faults f = {0};
    struct rc_link link;
    struct tally tally;
    f.drop = f.duplicate = f.delay = f.reorder = RC_CERTAIN / 8;
    f.max_delay = 30;
    f.overtake = 1;
    for (int i = 0; i < 3; i++) {
        f.seed = i == 2 ? 8 : 9;
        PASS(run(&f, 0, &tally, &link));
        hashes[i] = tally.hash;
    }
    CHECK(hashes[0] == hashes[1] && hashes[0] != hashes[2], "seeds and faults do not go together");
    (void)t;
    return TEST_PASSED;
}

static int full_link_waits(struct test *t)
{
    struct rc_faults f = {0};
    struct rc_link link;
    void *slots = link_open(&link, &f);
    uint32_t n = 0;
    while (send_one(&link, 1, n, 0, 0)) {
        n++;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct rc_packet *packet = rc_link_peek(&link, 0);
        if (packet == NULL || packet->psn != i || !is_whole(packet)) {
            n = 0;
            break;
        }
        rc_link_release(&link);
    }
    free(slots);
    CHECK(n == CAPACITY - 1, "a link of %d packets held %u", CAPACITY, n); /* and room for a double */
    (void)t;
    return TEST_PASSED;
}

/* ---- Two threads ---- */

struct across {
    struct rc_link link;
    uint32_t count;
};

static void *sender(void *arg)
{
    struct across *a = (struct across *)arg;
    for (uint32_t i = 0; i < a->count;) {
        if (send_one(&a->link, 1, i, 0, 1)) {
            i++;
        } else {
            sched_yield();
        }
    }
    return NULL;
}

static int threads_share(struct test *t)
{
    struct rc_faults f = {0};
    struct across a;
    void *slots = link_open(&a.link, &f);
    pthread_t thread;
    uint32_t i = 0, good = 1;
    a.count = (uint32_t)test_scaled(t, 100000);
    if (pthread_create(&thread, NULL, sender, &a) != 0) {
        abort();
    }
    while (i < a.count) {
        struct rc_packet *packet = rc_link_peek(&a.link, 1);
        if (packet == NULL) {
            sched_yield();
            continue;
        }
        good &= packet->psn == (i & RC_PSN_MASK) && is_whole(packet);
        rc_link_release(&a.link);
        i++;
    }
    pthread_join(thread, NULL);
    free(slots);
    CHECK(good, "a packet has changed between two threads");
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "faults do what they say, and nothing else", faults_do_what_they_say);
    test_run(&t, "faults choose by queue pair, kind and number", faults_choose);
    test_run(&t, "the same seed gives the same faults", same_seed_same_faults);
    test_run(&t, "a full link takes nothing", full_link_waits);
    test_run(&t, "two threads, one link", threads_share);
    return test_end(&t);
}
