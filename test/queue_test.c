/* SPDX-License-Identifier: Apache-2.0
 *
 * Every operation of queue pairs against a reference, with a software NIC at the other end: random programs
 * of many threads, in which each thread has a piece of the peer's memory to itself, so that what must come
 * out is known whatever the schedule; rings that are always full, counters that pass 2^16 and 2^32,
 * completions that are late and skipped, results that are late. The NIC moves memory itself, at once or over
 * a wire that is modelled, whose bytes come before the words behind them, or is one of two that speak
 * packets, over links that lose, double, delay and reorder them, between queues and, with adaptive routing,
 * inside one. */
#include "queue_rig.h"

#include <stdlib.h>
#include <string.h>

/* A slice is a thread's; packets of 256 bytes want larger ones, for messages of several. */
enum { SLICE = 256, PACKET_SLICE = 1008, STEPS = 14, MAX_THREADS = 96, COUNTER = RIG_HEAP_BYTES - 64 };

/* What is under way, of each byte of a slice. */
enum { UNDER_PUT = 1, UNDER_GET = 2, UNDER_ATOMIC = 4 };

enum {
    HIT_LOST,
    HIT_DOUBLED,
    HIT_DELAYED,
    HIT_OVERTAKEN,
    NUM_HIT_FAULTS,
    HIT_NEAR = NUM_HIT_FAULTS,
    HIT_NOT_NEAR,
    HITS
};

/* What one thread does, and what must become of it. */
struct script {
    unsigned char source[PACKET_SLICE], remote[PACKET_SLICE], got[PACKET_SLICE];
    unsigned char under_way[PACKET_SLICE]; /* UNDER_* since the last flush */
    uint64_t old[STEPS];                   /* of fetches */
};

struct program {
    struct rng r;
    int num_blocks, num_threads, warp_step;
    uint32_t slice, most; /* bytes: of a slice, of a put or get */
    int is_packets;
    uint64_t *hits; /* HIT_* of all seeds */
    struct softnic_net_shape net;
    struct script *scripts;
    struct queue_step *steps;
};

static uint64_t word_at(const unsigned char *memory, uint64_t at, uint32_t width)
{
    uint64_t value = 0;
    memcpy(&value, memory + at, width);
    return value;
}

static uint64_t model_amo(struct script *c, uint64_t at, const struct queue_step *s, uint32_t amo,
                          uint32_t width)
{
    uint64_t old = word_at(c->remote, at, width), now = net_amo_apply(amo, width, old, s->value, s->compare);
    memcpy(c->remote + at, &now, width);
    return old;
}

/* Thread t's slices: one of the remote heap, and two of the local one, for what it puts and what it gets. */
static uint64_t remote_of(const struct program *p, int t) { return (uint64_t)t * p->slice; }
static uint64_t source_of(const struct program *p, int t) { return (uint64_t)t * p->slice * 2; }
static uint64_t got_of(const struct program *p, int t) { return source_of(p, t) + p->slice; }

/* What an operation must not meet under way. A READ whose answer is lost is done again, and sees what was
 * changed since; with adaptive routing a WRITE may overtake whatever else changes or reads its bytes. */
static int may_not_meet(const struct program *p, int under)
{
    return !p->is_packets || under == UNDER_GET           ? 0
           : under == UNDER_PUT && p->net.config.adaptive ? UNDER_PUT | UNDER_GET | UNDER_ATOMIC
                                                          : UNDER_GET;
}

static int meets(const struct program *p, const struct script *c, uint64_t at, uint64_t bytes, int under)
{
    int met = 0;
    for (uint64_t i = at; i < at + bytes; i++) {
        met |= c->under_way[i];
    }
    return (met & may_not_meet(p, under)) != 0;
}

static void goes(struct script *c, uint64_t at, uint64_t bytes, int under)
{
    for (uint64_t i = at; i < at + bytes; i++) {
        c->under_way[i] |= (unsigned char)under;
    }
}

/* The step waits instead, for everything of this thread. */
static void become_flush(struct script *c, struct queue_step *s)
{
    s->kind = STEP_FLUSH;
    memset(c->under_way, 0, sizeof(c->under_way));
}

static void draw_transfer(struct queue_rig *rig, struct program *p, int t, struct queue_step *s)
{
    struct script *c = &p->scripts[t];
    uint64_t bytes = rng_one_in(&p->r, 8) ? 0 : rng_one_in(&p->r, 4) ? 8 : rng_between(&p->r, 1, p->most);
    uint64_t from = rng_below(&p->r, p->slice - (uint32_t)bytes + 1),
             to = rng_below(&p->r, p->slice - (uint32_t)bytes + 1),
             signal = 8 * rng_below(&p->r, p->slice / 8);
    if (rng_below(&p->r, 2)) { /* aligned alike */
        to = (to & ~15ull) | (from & 15);
        to = to + bytes > p->slice ? from : to;
    }
    s->bytes = bytes;
    if (s->kind == STEP_GET) {
        s->remote = queue_rig_remote(remote_of(p, t) + from);
        s->local = queue_rig_local(rig, got_of(p, t) + to);
        memcpy(c->got + to, c->remote + from, bytes);
        goes(c, from, bytes, UNDER_GET);
        return;
    }
    if (meets(p, c, to, bytes, UNDER_PUT) ||
        (s->kind == STEP_PUT_SIGNAL && meets(p, c, signal, 8, UNDER_ATOMIC))) {
        become_flush(c, s);
        return;
    }
    s->remote = queue_rig_remote(remote_of(p, t) + to);
    s->local = queue_rig_local(rig, source_of(p, t) + from);
    memcpy(c->remote + to, c->source + from, bytes);
    goes(c, to, bytes, UNDER_PUT);
    if (s->kind == STEP_PUT_SIGNAL) {
        s->amo = rng_below(&p->r, 2) ? NET_AMO_ADD : NET_AMO_SET;
        s->near = rng_below(&p->r, 2) ? STEP_NEAR : STEP_NOT_NEAR;
        s->value = rng_next(&p->r);
        s->signal = queue_rig_remote(remote_of(p, t) + signal);
        model_amo(c, signal, s, s->amo, 8);
        goes(c, signal, 8, UNDER_ATOMIC);
    }
}

static void draw_word(struct program *p, int t, struct queue_step *s, uint64_t *old)
{
    struct script *c = &p->scripts[t];
    int under = s->kind == STEP_PUT_INLINE ? UNDER_PUT : UNDER_ATOMIC;
    uint64_t at;
    s->width = rng_below(&p->r, 2) && s->kind != STEP_SIGNAL ? 4 : 8;
    at = s->width * rng_below(&p->r, p->slice / s->width);
    if (meets(p, c, at, s->width, under)) {
        become_flush(c, s);
        return;
    }
    goes(c, at, s->width, under);
    s->remote = queue_rig_remote(remote_of(p, t) + at);
    s->value = rng_next(&p->r) >> rng_below(&p->r, 64);
    s->amo = s->kind == STEP_SIGNAL ? rng_below(&p->r, 2) ? NET_AMO_ADD : NET_AMO_SET
                                    : rng_below(&p->r, NET_AMO_COUNT);
    s->compare = rng_below(&p->r, 2) ? word_at(c->remote, at, s->width) : rng_next(&p->r);
    if (s->kind == STEP_PUT_INLINE) {
        memcpy(c->remote + at, &s->value, s->width);
    } else if (s->kind == STEP_FETCH && rng_one_in(&p->r, 4)) {
        s->remote = queue_rig_remote(COUNTER);
        s->amo = NET_AMO_ADD;
        s->width = 8;
        s->value = 1;
    } else {
        *old = model_amo(c, at, s, s->amo, s->width);
    }
}

static void draw_step(struct queue_rig *rig, struct program *p, int t, int i)
{
    struct queue_step *s = &p->steps[t * STEPS + i];
    static const uint32_t kinds[] = {STEP_PUT,    STEP_PUT,   STEP_PUT_INLINE, STEP_GET,        STEP_ATOMIC,
                                     STEP_ATOMIC, STEP_FETCH, STEP_SIGNAL,     STEP_PUT_SIGNAL, STEP_FLUSH};
    s->queue = i == 0 ? rng_below(&p->r, rig->shape.num_queues) : s[-1].queue;
    if (i == STEPS - 1) {
        s->kind = STEP_FLUSH_ALL;
        return;
    }
    if (i == p->warp_step) {
        s->queue = (uint32_t)(t / 32) % rig->shape.num_queues;
        s->kind = STEP_PUT;
    } else if (i > 0 && s[-1].kind == STEP_FLUSH && i - 1 != p->warp_step) {
        s->queue = rng_below(&p->r, rig->shape.num_queues); /* nothing of this thread is under way */
        s->kind = kinds[rng_below(&p->r, 9)];
    } else {
        s->kind = kinds[rng_below(&p->r, 10)];
    }
    if (s->kind == STEP_FLUSH) {
        become_flush(&p->scripts[t], s);
        return;
    }
    if (s->kind == STEP_PUT || s->kind == STEP_GET || s->kind == STEP_PUT_SIGNAL) {
        draw_transfer(rig, p, t, s);
    } else {
        draw_word(p, t, s, &p->scripts[t].old[i]);
    }
}

static void draw_program(struct queue_rig *rig, struct program *p)
{
    int count = p->num_blocks * p->num_threads;
    p->scripts = (struct script *)test_take((size_t)count, sizeof(*p->scripts));
    p->steps = (struct queue_step *)test_take((size_t)count * STEPS, sizeof(*p->steps));
    /* A warp's put comes first: its queue differs from that of the thread's other steps. */
    p->warp_step = rng_below(&p->r, 2) ? 0 : -1;
    for (int t = 0; t < count; t++) {
        struct script *c = &p->scripts[t];
        rng_bytes(&p->r, c->source, p->slice);
        rng_bytes(&p->r, c->remote, p->slice);
        memcpy(rig->local + source_of(p, t), c->source, p->slice);
        memcpy(rig->remote + remote_of(p, t), c->remote, p->slice);
        for (int i = 0; i < STEPS; i++) {
            draw_step(rig, p, t, i);
        }
    }
}

static struct queue_shape draw_shape(struct rng *r)
{
    static const uint64_t firsts[] = {0, 65530, 0x10000, 0xfffffff9ull, 0x123456789aull};
    struct queue_shape s = {0};
    s.num_queues = rng_between(r, 1, RIG_QUEUES);
    s.blocks = 4u << rng_below(r, 5);
    s.num_cqes = rng_below(r, 2) ? s.blocks << rng_below(r, 3) : 0;
    s.batch_blocks = 1u << rng_below(r, 6);
    s.message_bytes = rng_below(r, 2) ? rng_between(r, 7, 64) : 0;
    s.hold_one_in = rng_below(r, 4);
    s.late = rng_one_in(r, 4);
    s.first = firsts[rng_below(r, 5)];
    s.nic_blocks = (int)rng_between(r, 1, 2);
    s.nic_warps = (int)rng_between(r, 1, 3);
    if (rng_below(r, 2)) { /* entries are under way for long, beside others that touch what they do */
        s.rates.bytes_per_s = s.rates.receive_bytes_per_s = rng_below(r, 2) ? 100000000 : 0;
        s.rates.latency_ns = 1000 << rng_below(r, 7);
    }
    s.local_cut = 8 * rng_between(r, 1, 4000);
    s.remote_cut = 8 * rng_between(r, 1, 2000);
    return s;
}

/* Links err, but not for ever. */
static void draw_net(struct program *p)
{
    struct rng *r = &p->r;
    struct rc_faults *f = &p->net.requests;
    p->net = softnic_net_kind(1);
    p->net.config.adaptive = f->overtake = rng_below(r, 2);
    p->net.config.window = rng_between(r, 1, 32);
    p->net.config.max_reads = rng_between(r, 1, RC_MAX_READS);
    f->reorder = rng_below(r, 2) ? RC_CERTAIN / 4 : 0;
    f->drop = rng_below(r, 2) ? RC_CERTAIN / 30 : 0;
    f->duplicate = rng_below(r, 2) ? RC_CERTAIN / 30 : 0;
    f->delay = rng_below(r, 2) ? RC_CERTAIN / 30 : 0;
    f->latency = rng_below(r, 20);
    f->max_delay = rng_below(r, 200);
    p->net.answers = *f;
    p->net.modes[1] = rng_one_in(r, 3) ? RC_RELAXED : 0;
    p->slice = PACKET_SLICE;
    p->most = 700;
}

static int compare(const struct queue_rig *rig, const struct program *p)
{
    int count = p->num_blocks * p->num_threads;
    uint64_t counted = 0, sum = 0;
    for (int t = 0; t < count; t++) {
        const struct script *c = &p->scripts[t];
        for (int i = 0; i < STEPS; i++) {
            const struct queue_step *s = &p->steps[t * STEPS + i];
            CHECK(s->status == NET_OK, "seed %llu: thread %d step %d (kind %u) has status 0x%x",
                  (unsigned long long)rig->seed, t, i, s->kind, s->status);
            if (s->kind == STEP_FETCH && s->remote == queue_rig_remote(COUNTER)) {
                counted++;
                sum += s->old;
            } else if (s->kind == STEP_FETCH) {
                CHECK(s->old == c->old[i], "seed %llu: thread %d step %d fetches 0x%llx, not 0x%llx",
                      (unsigned long long)rig->seed, t, i, (unsigned long long)s->old,
                      (unsigned long long)c->old[i]);
            }
        }
        CHECK(memcmp(rig->remote + remote_of(p, t), c->remote, p->slice) == 0,
              "seed %llu: the peer's memory of thread %d differs", (unsigned long long)rig->seed, t);
        CHECK(memcmp(rig->local + got_of(p, t), c->got, p->slice) == 0,
              "seed %llu: what thread %d got differs", (unsigned long long)rig->seed, t);
    }
    /* 0, 1, 2, ... in some order. */
    CHECK(word_at((const unsigned char *)rig->remote, COUNTER, 8) == counted &&
              sum == counted * (counted - 1) / 2,
          "seed %llu: %llu fetches raise the counter to %llu", (unsigned long long)rig->seed,
          (unsigned long long)counted,
          (unsigned long long)word_at((const unsigned char *)rig->remote, COUNTER, 8));
    return queue_rig_check_idle(rig);
}

static void count_hits(const struct queue_rig *rig, const struct program *p)
{
    for (int i = 0; i < p->num_blocks * p->num_threads * STEPS; i++) {
        p->hits[HIT_NEAR] += p->steps[i].near == STEP_WAS_NEAR;
        p->hits[HIT_NOT_NEAR] += p->steps[i].near == STEP_NEAR;
    }
    for (int i = 0; i < 2 && p->is_packets; i++) {
        const struct rc_link *links[] = {&rig->net->requests[i][!i], &rig->net->answers[i][!i]};
        for (int k = 0; k < 2; k++) {
            p->hits[HIT_LOST] += links[k]->num_dropped;
            p->hits[HIT_DOUBLED] += links[k]->num_duplicated;
            p->hits[HIT_DELAYED] += links[k]->num_delayed;
            p->hits[HIT_OVERTAKEN] += links[k]->num_reordered;
        }
    }
}

static int play(struct queue_rig *rig, struct program *p)
{
    struct queue_shape shape = draw_shape(&p->r);
    p->num_blocks = (int)rng_between(&p->r, 1, 3);
    p->num_threads = rng_one_in(&p->r, 3) || p->num_blocks > 1 ? 32 : MAX_THREADS;
    p->slice = SLICE;
    p->most = 100;
    if (p->is_packets) {
        draw_net(p);
        p->num_blocks = 1;
        p->num_threads = 32;
        shape.net = &p->net;
    }
    shape.no_record = rig->seed % 2 != 0;
    PASS(queue_rig_open(rig, rig->seed, &shape));
    draw_program(rig, p);
    PASS(queue_rig_nic(rig));
    PASS(queue_rig_drive(rig, p->steps, STEPS, p->num_blocks, p->num_threads, (uint32_t)p->warp_step,
                         RIG_PATIENCE_NS));
    PASS(queue_rig_wait(rig));
    PASS(queue_rig_nic_end(rig));
    if (rig->net != NULL) {
        softnic_net_land(rig->net);
    }
    count_hits(rig, p);
    return compare(rig, p);
}

static int random_programs(struct test *t, int is_packets, int count)
{
    uint64_t first = t->has_seeds ? t->seeds[0] : 1,
             last = t->has_seeds ? t->seeds[1] : (uint64_t)test_scaled(t, count);
    uint64_t hits[HITS] = {0};
    int result = TEST_PASSED;
    for (uint64_t seed = first; seed <= last && result == TEST_PASSED; seed++) {
        struct queue_rig rig = {0};
        struct program p = {0};
        p.r.state = rig.seed = seed;
        p.is_packets = is_packets;
        p.hits = hits;
        result = play(&rig, &p);
        queue_rig_close(&rig);
        free(p.scripts);
        free(p.steps);
    }
    test_detail(t, "seeds %llu to %llu", (unsigned long long)first, (unsigned long long)last);
    if (is_packets && result == TEST_PASSED) {
        test_detail(t, "seeds %llu to %llu; packets: %llu lost, %llu doubled, %llu delayed, %llu overtaken",
                    (unsigned long long)first, (unsigned long long)last, (unsigned long long)hits[HIT_LOST],
                    (unsigned long long)hits[HIT_DOUBLED], (unsigned long long)hits[HIT_DELAYED],
                    (unsigned long long)hits[HIT_OVERTAKEN]);
        for (int i = 0; i < NUM_HIT_FAULTS && !t->has_seeds && last >= 20; i++) {
            CHECK(hits[i] != 0, "no seed has fault %d", i);
        }
    }
    CHECK(result != TEST_PASSED || t->has_seeds || last < 20 || (hits[HIT_NEAR] && hits[HIT_NOT_NEAR]),
          "%llu puts by what was at hand, %llu where that was not enough", (unsigned long long)hits[HIT_NEAR],
          (unsigned long long)hits[HIT_NOT_NEAR]);
    return result;
}

static int by_memory(struct test *t) { return random_programs(t, 0, 300); }
static int by_packets(struct test *t) { return random_programs(t, 1, 120); }

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "random programs, against a reference", by_memory);
    test_run(&t, "random programs over packets that are lost, doubled, late and out of order", by_packets);
    return test_end(&t);
}
