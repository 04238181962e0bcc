/* SPDX-License-Identifier: Apache-2.0
 *
 * Many senders to one receiver, as a hot expert's rank has them: chunks of the sizes that dispatch posts,
 * each a put and the signal behind it, with as many of a stream on their way as a ring of dispatch has. On a
 * modelled link of 50 GB/s every queue keeps moving: no sender has less than half of its fair share, and all
 * together have nine tenths of the link. In the model's own time, so the figures are the same everywhere. */
#include "model_rig.h"

#include <stdlib.h>
#include <string.h>

enum { SENDERS = CARDS, STREAMS = SENDERS * QUEUES, ON_THEIR_WAY = 4, STEP_NS = 20, LIMIT_NS = 4000000 };
enum { FULL_BYTES = 1 << 16 }; /* as RAIL_CHUNK_BYTES */
#define LINK_BYTES_PER_S 50000000000ull
#define AREA             (HEAP / STREAMS / 64 * 64)

struct stream {
    uint64_t tickets[ON_THEIR_WAY];
    uint64_t posted, done; /* chunks */
};

struct burst {
    struct wire *wire;
    struct stream streams[STREAMS]; /* of sender s: s * QUEUES on */
    uint64_t bytes, num;            /* of a chunk; chunks of a stream */
    uint64_t start_ns[SENDERS];
};

/* The words that signals add to are the last of the receiver's memory. */
static uint64_t word_of(const struct burst *b, int stream)
{
    return at(b->wire->from + HEAP - 8 * (STREAMS - stream));
}

/* As a warp of dispatch does: gives what it may, and sees what has been given back. */
static void turn(struct burst *b, int sender, uint32_t queue)
{
    int number = sender * QUEUES + (int)queue;
    struct stream *s = &b->streams[number];
    while (s->done < s->posted && model_is_done(b->wire, sender, queue, s->tickets[s->done % ON_THEIR_WAY])) {
        s->done++;
    }
    for (; s->posted < b->num && s->posted - s->done < ON_THEIR_WAY; s->posted++) {
        s->tickets[s->posted % ON_THEIR_WAY] =
            queue_put_signal(&b->wire->cards[sender].lines[queue].queue, at(b->wire->to) + number * AREA,
                             at(b->wire->from), b->bytes, word_of(b, number), 8, 1, NET_AMO_ADD);
    }
}

static uint64_t bytes_of(const struct burst *b, int sender)
{
    uint64_t chunks = 0;
    for (int q = 0; q < QUEUES; q++) {
        chunks += b->streams[sender * QUEUES + q].done;
    }
    return chunks * b->bytes;
}

/* Until somebody has sent all, from when all have begun and have chunks through; then to the end. */
struct seen {
    uint64_t begin_ns, end_ns, last_ns;
    uint64_t before[SENDERS], after[SENDERS];
};

static void look(const struct burst *b, uint64_t ns, struct seen *seen)
{
    int all_begun = 1, somebody_ended = 0, all_ended = 1;
    for (int s = 0; s < SENDERS; s++) {
        uint64_t bytes = bytes_of(b, s);
        all_begun &= bytes >= ON_THEIR_WAY * b->bytes;
        somebody_ended |= bytes == QUEUES * b->num * b->bytes;
        all_ended &= bytes == QUEUES * b->num * b->bytes;
    }
    for (int s = 0; s < SENDERS; s++) {
        seen->before[s] = all_begun && seen->begin_ns == 0 ? bytes_of(b, s) : seen->before[s];
        seen->after[s] = somebody_ended && seen->end_ns == 0 ? bytes_of(b, s) : seen->after[s];
    }
    seen->begin_ns = all_begun && seen->begin_ns == 0 ? ns : seen->begin_ns;
    seen->end_ns = somebody_ended && seen->end_ns == 0 ? ns : seen->end_ns;
    seen->last_ns = all_ended && seen->last_ns == 0 ? ns : seen->last_ns;
}

static int run(struct burst *b, struct seen *seen)
{
    memset(seen, 0, sizeof *seen);
    for (uint64_t ns = STEP_NS; seen->last_ns == 0; ns += STEP_NS) {
        CHECK(ns < LIMIT_NS, "not done after %d ns", LIMIT_NS);
        for (int s = 0; s < SENDERS; s++) {
            for (uint32_t q = 0; ns >= b->start_ns[s] && q < QUEUES; q++) {
                turn(b, s, q);
            }
            model_work(&b->wire->cards[s], BEGIN + ns);
        }
        look(b, ns, seen);
    }
    for (int i = 0; i < STREAMS; i++) {
        uint64_t signals;
        memcpy(&signals, (const void *)(uintptr_t)word_of(b, i), sizeof signals);
        CHECK(signals - 0x5a5a5a5a5a5a5a5aull == b->num, "stream %d: %llu signals", i,
              (unsigned long long)signals);
    }
    return 0;
}

/* Of the time in which all send, and of the whole. */
static int judge(struct test *t, const struct burst *b, const struct seen *seen)
{
    double link = LINK_BYTES_PER_S * 1e-9, ns = (double)(seen->end_ns - seen->begin_ns), sum = 0, least = 1e9;
    double all = (double)(STREAMS * b->num * b->bytes) / link;
    CHECK(seen->begin_ns != 0 && seen->end_ns > seen->begin_ns, "they never sent together");
    for (int s = 0; s < SENDERS; s++) {
        double share = (double)(seen->after[s] - seen->before[s]) / (ns * link / SENDERS);
        least = share < least ? share : least;
        sum += share / SENDERS;
    }
    test_detail(t, "chunks of %llu bytes: %.0f %% of the link, the least sender %.0f %% of its share",
                (unsigned long long)b->bytes, 100 * sum, 100 * least);
    CHECK(least >= 0.5, "a sender has %.2f of its fair share", least);
    CHECK(sum >= 0.9 && sum <= 1.02, "together they have %.3f of the link", sum);
    CHECK(all >= 0.9 * (double)(seen->last_ns - b->start_ns[0]), "%.0f ns of data took %llu", all,
          (unsigned long long)seen->last_ns);
    return 0;
}

/* apart_ns: from when one sender begins until the next does. */
static int burst(struct test *t, uint64_t bytes, uint64_t num, uint64_t apart_ns)
{
    const struct softnic_rates rates = {LINK_BYTES_PER_S, LINK_BYTES_PER_S, 0, 2000};
    struct burst *b = (struct burst *)test_take(1, sizeof *b);
    struct seen seen;
    int result;
    b->bytes = bytes;
    b->num = num;
    for (int s = 0; s < SENDERS; s++) {
        b->start_ns[s] = apart_ns * (uint64_t)s;
    }
    result = model_open(&b->wire, &rates);
    result = result == 0 ? run(b, &seen) : result;
    result = result == 0 ? judge(t, b, &seen) : result;
    free(b->wire);
    free(b);
    return result;
}

/* A message of 7168 channels: FP8 with scales and ids, BF16, and a full chunk; headers included. */
static int fp8(struct test *t) { return burst(t, 7168 + 224 + 256, 400, 0); }
static int bf16(struct test *t) { return burst(t, 2 * 7168 + 256, 200, 0); }
static int full(struct test *t) { return burst(t, FULL_BYTES, 48, 0); }
static int one_by_one(struct test *t) { return burst(t, 2 * 7168 + 256, 400, 3000); }

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "7 senders, FP8 messages", fp8);
    test_run(&t, "7 senders, BF16 messages", bf16);
    test_run(&t, "7 senders, full chunks", full);
    test_run(&t, "7 senders that begin one after the other", one_by_one);
    return test_end(&t);
}
