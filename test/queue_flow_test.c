/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pairs in use: data and the signal that passes no data, in rings that are always full; doorbells rung
 * by the host; a NIC that stops, learns of new memory and goes on; completions as NICs write them, one by
 * one, with every case that pollers have been wrong about; how requests are cut; what a provider may not fill
 * in. */
#include "net/mlx5_cqe.h"
#include "net/relay.h"
#include "queue_rig.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Message passing ---- */

enum { PAIRS = 4, ROUNDS = 5, ROUND_STEPS = 4, DATA_BYTES = 2048, SIGNALS = RIG_HEAP_BYTES - 1024 };
enum { BY_ADD, BY_SET, WITH_PUT, BY_WRITE, NUM_WAYS };

static struct queue_step *steps_of(struct queue_step *steps, int thread)
{
    return steps + thread * ROUNDS * ROUND_STEPS;
}

/* A producer fills, puts and signals; a consumer in another block waits, looks and answers. Addresses that
 * the consumer reads are of the peer's memory itself. */
static void lay_round(struct queue_rig *r, struct rng *rng, struct queue_step *made, struct queue_step *used,
                      int pair, uint32_t round)
{
    uint64_t data = (uint64_t)pair * DATA_BYTES, ready = SIGNALS + 16 * (uint64_t)pair, done = ready + 8;
    uint64_t bytes = rng_between(rng, 1, rng_below(rng, 2) ? 48 : DATA_BYTES), value = rng_next(rng);
    uint32_t way = rng_below(rng, NUM_WAYS), acks = r->shape.num_queues - 1;
    /* Set if the pair signals so; a counter either way. */
    uint32_t amo = way == BY_SET || rng_below(rng, 2) ? NET_AMO_SET : NET_AMO_ADD;
    uint64_t count = amo == NET_AMO_SET ? round + 1 : 1;
    struct queue_step fill = {
        .kind = STEP_FILL, .local = queue_rig_local(r, data), .bytes = bytes, .value = value};
    struct queue_step put = {
        .kind = STEP_PUT, .remote = queue_rig_remote(data), .local = fill.local, .bytes = bytes};
    struct queue_step signal = {
        .kind = STEP_SIGNAL, .remote = queue_rig_remote(ready), .amo = amo, .value = count};
    struct queue_step await = {
        .kind = STEP_AWAIT, .local = (uint64_t)(uintptr_t)r->remote + done, .value = round + 1};
    if (way == WITH_PUT) {
        put.kind = STEP_PUT_SIGNAL;
        put.signal = signal.remote;
        put.amo = amo;
        put.value = count;
        signal.kind = STEP_NOTHING;
    } else if (way == BY_WRITE) { /* this NIC writes in order; with adaptive routing one would not */
        signal.kind = STEP_PUT_INLINE;
        signal.width = 8;
        signal.value = round + 1;
    }
    made[0] = fill;
    made[1] = put;
    made[2] = signal;
    made[3] = await;
    used[0] = await;
    used[0].local = (uint64_t)(uintptr_t)r->remote + ready;
    used[1] = fill;
    used[1].kind = STEP_EXPECT;
    used[1].local = (uint64_t)(uintptr_t)r->remote + data;
    used[2] = (struct queue_step){
        .kind = STEP_SIGNAL, .queue = acks, .remote = queue_rig_remote(done), .amo = NET_AMO_ADD, .value = 1};
    used[3] = (struct queue_step){.kind = STEP_FLUSH, .queue = acks};
}

static int passed(const struct queue_rig *r, const struct queue_step *steps)
{
    for (int i = 0; i < 64 * ROUNDS * ROUND_STEPS; i++) {
        CHECK(steps[i].status == NET_OK, "seed %llu: thread %d step %d (kind %u): status 0x%x",
              (unsigned long long)r->seed, i / (ROUNDS * ROUND_STEPS), i % (ROUNDS * ROUND_STEPS),
              steps[i].kind, steps[i].status);
        CHECK(steps[i].kind != STEP_EXPECT || steps[i].old == 0,
              "seed %llu: %llu of %llu bytes are not there though the signal is", (unsigned long long)r->seed,
              (unsigned long long)steps[i].old, (unsigned long long)steps[i].bytes);
    }
    return TEST_PASSED;
}

enum { PLAIN, RELAYED, RESTARTED };

/* The NIC stops and goes on while kernels use it. */
static int run_with_restarts(struct queue_rig *r)
{
    const struct timespec moment = {0, 300000};
    for (int i = 0; i < 6; i++) {
        PASS(queue_rig_nic_end(r));
        nanosleep(&moment, NULL);
        PASS(queue_rig_nic(r));
        nanosleep(&moment, NULL);
    }
    return TEST_PASSED;
}

static int run_messages(struct queue_rig *r, struct rng *rng, int how, struct queue_step *steps)
{
    struct relay_line lines[RIG_QUEUES];
    struct relay *relay = NULL;
    int result;
    for (int pair = 0; pair < PAIRS; pair++) {
        for (uint32_t round = 0; round < ROUNDS; round++) {
            lay_round(r, rng, steps_of(steps, pair) + round * ROUND_STEPS,
                      steps_of(steps, 32 + pair) + round * ROUND_STEPS, pair, round);
        }
    }
    for (uint32_t i = 0; i < r->shape.num_queues; i++) {
        lines[i] = (struct relay_line){&r->s->relays[i], r->s->records[i].words, &r->s->doorbells[i],
                                       r->s->queues[i].qpn, r->shape.first};
    }
    if (how == RELAYED) {
        OK(terni_relay_open(lines, r->shape.num_queues, &relay));
    }
    result = queue_rig_nic(r);
    result = result ? result : queue_rig_drive(r, steps, ROUNDS * ROUND_STEPS, 2, 32, ~0u, RIG_PATIENCE_NS);
    result = result || how != RESTARTED ? result : run_with_restarts(r);
    result = result ? result : queue_rig_wait(r);
    /* Producers do not wait for their last signals; consumers do, and have seen them. */
    terni_relay_close(relay);
    result = result ? result : passed(r, steps);
    return result;
}

static int messages(struct test *t, int how, int count)
{
    uint64_t first = t->has_seeds ? t->seeds[0] : 1,
             last = t->has_seeds ? t->seeds[1] : (uint64_t)test_scaled(t, count);
    int result = TEST_PASSED;
    for (uint64_t seed = first; seed <= last && result == TEST_PASSED; seed++) {
        struct rng rng = {seed};
        struct queue_rig r;
        struct queue_shape shape = {0};
        struct queue_step *steps = (struct queue_step *)test_take(64 * ROUNDS * ROUND_STEPS, sizeof(*steps));
        shape.num_queues = rng_between(&rng, 1, 2);
        shape.blocks = 4u << rng_below(&rng, 3);
        shape.num_cqes = rng_below(&rng, 2) ? shape.blocks : 0;
        shape.batch_blocks = 1u << rng_below(&rng, 4);
        shape.message_bytes = rng_below(&rng, 2) ? rng_between(&rng, 100, 999) : 0;
        shape.hold_one_in = rng_below(&rng, 3);
        shape.relay = how == RELAYED;
        shape.first = rng_below(&rng, 2) ? 65534 : 0xfffffffcull;
        shape.nic_warps = (int)rng_between(&rng, 1, 2);
        result = queue_rig_open(&r, seed, &shape);
        result = result ? result : run_messages(&r, &rng, how, steps);
        queue_rig_close(&r);
        free(steps);
    }
    test_detail(t, "seeds %llu to %llu", (unsigned long long)first, (unsigned long long)last);
    return result;
}

static int message_passing(struct test *t) { return messages(t, PLAIN, 150); }
static int rung_by_the_host(struct test *t) { return messages(t, RELAYED, 40); }
static int nic_restarts(struct test *t) { return messages(t, RESTARTED, 20); }

/* What the host rings, word by word: from what is published, once, into the record's second word. */
static int relay_steps(struct test *t)
{
    uint64_t published[2] = {65535, 7}, doorbells[2] = {0, 0};
    uint32_t records[2][2] = {{0, 0}, {0, 0}};
    struct relay_line lines[2] = {{&published[0], records[0], &doorbells[0], 0x123456, 65535},
                                  {&published[1], records[1], &doorbells[1], 0x654321, 7}};
    (void)t;
    CHECK(terni_relay_step(lines, 2) == 0 && doorbells[0] == 0 && doorbells[1] == 0, "rang for nothing");
    published[0] = 65537;
    CHECK(terni_relay_step(lines, 2) == 1 && terni_relay_step(lines, 2) == 0, "did not ring once");
    CHECK(records[0][DOORBELL_RECORD_SEND] == doorbell_record(1) && records[0][DOORBELL_RECORD_RECEIVE] == 0,
          "the record is %08x %08x", records[0][0], records[0][1]);
    CHECK(doorbell_idx(doorbells[0]) == 1 && doorbell_qpn(doorbells[0]) == 0x123456 && doorbells[1] == 0,
          "the doorbell is 0x%llx", (unsigned long long)doorbells[0]);
    return TEST_PASSED;
}

/* ---- Doorbells of other kinds ---- */

static int post_one(struct queue_rig *r, uint64_t at)
{
    struct queue_step steps[32] = {{0}};
    steps[0].kind = STEP_PUT;
    steps[0].remote = queue_rig_remote(at);
    steps[0].local = queue_rig_local(r, 0);
    steps[0].bytes = 20;
    PASS(queue_rig_drive(r, steps, 1, 1, 32, ~0u, RIG_PATIENCE_NS));
    PASS(queue_rig_wait(r));
    CHECK(steps[0].status == NET_OK, "status 0x%x", steps[0].status);
    return TEST_PASSED;
}

static int flush_with(struct queue_rig *r, uint64_t timeout_ns, uint32_t wanted)
{
    struct queue_step steps[32] = {{0}};
    steps[0].kind = STEP_FLUSH_ALL;
    PASS(queue_rig_drive(r, steps, 1, 1, 32, ~0u, timeout_ns));
    PASS(queue_rig_wait(r));
    CHECK(steps[0].status == wanted, "status 0x%x, not 0x%x", steps[0].status, wanted);
    return TEST_PASSED;
}

/* The register is ahead of the record: the NIC waits for the record, and needs no second doorbell. Two
 * doorbells in one. The register has the head of the last entry, as drivers store it. */
static int ring_by_hand(struct queue_rig *r)
{
    uint32_t *record = r->s->records[0].words + DOORBELL_RECORD_SEND, qpn = r->s->queues[0].qpn;
    uint32_t first = (uint32_t)r->shape.first;
    uint64_t *doorbell = &r->s->doorbells[0];
    PASS(queue_rig_nic(r));
    PASS(post_one(r, 0));
    __atomic_store_n(doorbell, doorbell_value(qpn, first + 1), __ATOMIC_RELEASE);
    PASS(flush_with(r, 3000000, NET_TIMED_OUT));
    __atomic_store_n(record, doorbell_record(first + 1), __ATOMIC_RELEASE);
    PASS(flush_with(r, RIG_PATIENCE_NS, NET_OK));
    PASS(post_one(r, 0));
    PASS(post_one(r, 0));
    __atomic_store_n(record, doorbell_record(first + 3), __ATOMIC_RELEASE);
    __atomic_store_n(doorbell, doorbell_value(qpn, first + 3), __ATOMIC_RELEASE);
    PASS(flush_with(r, RIG_PATIENCE_NS, NET_OK));
    PASS(post_one(r, 0));
    __atomic_store_n(record, doorbell_record(first + 4), __ATOMIC_RELEASE);
    __atomic_store_n(doorbell,
                     (uint64_t)to_be32(qpn << 8 | 3) << 32 |
                         to_be32(((first + 3) & 0xffff) << 8 | WQE_RDMA_WRITE),
                     __ATOMIC_RELEASE);
    PASS(flush_with(r, RIG_PATIENCE_NS, NET_OK));
    PASS(queue_rig_nic_end(r));
    return queue_rig_check_idle(r);
}

static int other_doorbells(struct test *t)
{
    struct queue_shape shape = {0};
    struct queue_rig r;
    int result;
    (void)t;
    shape.relay = 1;
    shape.first = 65535;
    result = queue_rig_open(&r, 4, &shape);
    result = result ? result : ring_by_hand(&r);
    queue_rig_close(&r);
    return result;
}

/* ---- Growth ---- */

static int run_put(struct queue_rig *r, uint64_t at, uint32_t wanted)
{
    struct queue_step steps[32 * 2] = {{0}};
    steps[0].kind = STEP_PUT;
    steps[0].remote = queue_rig_remote(at);
    steps[0].local = queue_rig_local(r, 0);
    steps[0].bytes = 100;
    steps[1].kind = STEP_FLUSH;
    PASS(queue_rig_nic(r));
    PASS(queue_rig_drive(r, steps, 2, 1, 32, ~0u, RIG_PATIENCE_NS));
    PASS(queue_rig_wait(r));
    PASS(queue_rig_nic_end(r));
    CHECK(steps[1].status == wanted, "a put at %llu: status 0x%x, not 0x%x", (unsigned long long)at,
          steps[1].status, wanted);
    return TEST_PASSED;
}

/* Memory that is registered while the NIC is off is there when it is on again. */
static int grow(struct queue_rig *r)
{
    struct queue_shared *s = r->s;
    struct key_registration g = {queue_rig_remote(0), r->shape.remote_cut, r->remote, RIG_PEER_PD,
                                 KEY_LOCAL_WRITE | KEY_REMOTE_WRITE};
    uint64_t across = r->shape.remote_cut - 50;
    uint32_t key;
    memset(r->local, 0x21, 100);
    OK(terni_key_table_remove(&s->remote_keys, r->rkeys[0]));
    s->queues[0].remote.num = 1;
    PASS(run_put(r, across, NET_REFUSED));
    PASS(run_put(r, r->shape.remote_cut, NET_OK));
    OK(terni_key_table_add(&s->remote_keys, &g, &key));
    s->remote_ranges[1].key = wqe_key_of(key);
    s->queues[0].remote.num = 2;
    PASS(run_put(r, across, NET_OK));
    CHECK(memcmp(r->remote + across, r->local, 100) == 0 && r->remote[across - 1] == 0,
          "the bytes are not there");
    return queue_rig_check_idle(r);
}

static int growth(struct test *t)
{
    struct queue_shape shape = {0};
    struct queue_rig r;
    int result;
    (void)t;
    result = queue_rig_open(&r, 9, &shape);
    result = result ? result : grow(&r);
    queue_rig_close(&r);
    return result;
}

/* ---- Completions one by one ---- */

/* What is written into entry `at` of the completion queue, and what a look then finds. */
struct look {
    uint32_t at, opcode, owner, syndrome;
    uint64_t idx;      /* of the completed entry; its low 16 bits are written */
    uint64_t consumed; /* afterwards */
    const char *text;
};

enum { NOT_WRITTEN = 99 };
#define FIRST 0x1fffeull

static const struct look collapsed[] = {
    {0, NOT_WRITTEN, 0, 0, 0, FIRST, "nothing but 0xff, in a small queue"},
    {0, CQE_REQUESTER, 0, 0, FIRST, FIRST + 1, "the first"},
    {0, CQE_REQUESTER, 0, 0, FIRST, FIRST + 1, "the same again"},
    {0, CQE_REQUESTER, 1, 0, FIRST + 1, FIRST + 2,
     "the last before 2^17, and an owner bit that means nothing"},
    {0, CQE_REQUESTER, 0, 0, FIRST + 9, FIRST + 10, "a jump over 2^17 of a whole ring"},
    {0, CQE_REQUESTER, 0, 0, FIRST + 8, FIRST + 10, "an older one"},
    {0, CQE_REQUESTER, 0, 0, FIRST + 18, FIRST + 10, "more than a ring ahead"},
    {0, CQE_REQUESTER_ERROR, 0, SYNDROME_TRANSPORT_RETRY, FIRST + 11, FIRST + 10,
     "an error behind what is awaited"},
    {0, CQE_REQUESTER_ERROR, 0, SYNDROME_FLUSHED, FIRST + 12, FIRST + 10, "one that overwrites it"},
    {0, CQE_REQUESTER, 0, 0, FIRST + 12, FIRST + 10, "a success after it"},
};

static const struct look ring[] = {
    {0, NOT_WRITTEN, 0, 0, 0, FIRST, "nothing but 0xff"},
    {1, CQE_REQUESTER, 0, 0, FIRST + 1, FIRST, "the second before the first"},
    {0, CQE_REQUESTER, 1, 0, FIRST, FIRST, "an owner bit of the next time round"},
    {0, CQE_REQUESTER, 0, 0, FIRST, FIRST + 1, "the first"},
    {2, NOT_WRITTEN, 0, 0, 0, FIRST + 2, "the second, which is there"},
    {2, CQE_REQUESTER, 0, 0, FIRST + 5, FIRST + 6, "a jump over entries that asked for nothing"},
    {3, CQE_REQUESTER_ERROR, 0, SYNDROME_REMOTE_ACCESS, FIRST + 6, FIRST + 6, "an error"},
    {4, CQE_REQUESTER_ERROR, 0, SYNDROME_FLUSHED, FIRST + 7, FIRST + 6, "one behind it"},
};

static void write_cqe(const struct queue_rig *r, const struct look *l)
{
    uint32_t *cqe = r->s->queues[0].cqes + l->at * CQE_WORDS;
    struct cqe_args args = {0};
    if (l->opcode == NOT_WRITTEN) {
        return;
    }
    args.opcode = l->opcode;
    args.owner = l->owner;
    args.idx = (uint32_t)l->idx;
    args.wqe_opcode = WQE_RDMA_WRITE;
    args.qpn = r->s->queues[0].qpn;
    args.syndrome = l->syndrome;
    args.vendor_syndrome = 0x5a;
    cqe_fill(cqe, &args);
    cqe[CQE_WORD_TAIL] = cqe_tail(&args);
}

static int look_at(struct queue_rig *r, const struct look *looks, int num)
{
    uint32_t error = 0;
    for (int i = 0; i < num; i++) {
        const struct look *l = &looks[i];
        struct queue_step steps[32] = {{0}};
        write_cqe(r, l);
        error = error == 0 && l->syndrome != 0 ? net_failed(l->syndrome) : error;
        steps[0].kind = STEP_POLL;
        PASS(queue_rig_drive(r, steps, 1, 1, 32, ~0u, RIG_PATIENCE_NS));
        PASS(queue_rig_wait(r));
        CHECK(steps[0].old == l->consumed, "%s: 0x%llx is consumed, not 0x%llx", l->text,
              (unsigned long long)steps[0].old, (unsigned long long)l->consumed);
        CHECK(steps[0].status == error, "%s: status 0x%x, not 0x%x", l->text, steps[0].status, error);
    }
    CHECK(queue_error_vendor_syndrome(r->s->states[0].error) == 0x5a &&
              queue_error_wqe_opcode(r->s->states[0].error) == WQE_RDMA_WRITE,
          "the record of the error is 0x%llx", (unsigned long long)r->s->states[0].error);
    return TEST_PASSED;
}

static int completions(struct test *t)
{
    (void)t;
    for (int i = 0; i < 2; i++) {
        struct queue_shape shape = {0};
        struct queue_rig r;
        int result;
        shape.blocks = 8;
        shape.num_cqes = i ? 8 : 0;
        shape.first = FIRST;
        result = queue_rig_open(&r, 1, &shape);
        result = result ? result
                 : i    ? look_at(&r, ring, (int)(sizeof(ring) / sizeof(ring[0])))
                        : look_at(&r, collapsed, (int)(sizeof(collapsed) / sizeof(collapsed[0])));
        queue_rig_close(&r);
        PASS(result);
    }
    return TEST_PASSED;
}

/* ---- Cutting, checking ---- */

/* 5 GiB, over two registrations at either end: no memory is there, and none is touched. */
static int cutting(struct test *t)
{
    const uint64_t gib = 1ull << 30, remote = 0x100000000000ull, local = 0x200000000000ull;
    const struct net_range there[2] = {{remote + 3 * gib - 5, 9 * gib, {2}, 0},
                                       {remote, 3 * gib - 5, {1}, 0}};
    const struct net_range here[2] = {{local, gib / 2, {3}, 0}, {local + gib / 2, 9 * gib, {4}, 0}};
    const uint64_t wanted[] = {gib / 2, gib, gib, gib / 2 - 5, gib, gib, 5};
    struct net_queue q = {.message_bytes = WQE_MAX_BYTES, .local = {here, 2}, .remote = {there, 2}};
    uint64_t done = 0;
    (void)t;
    for (int i = 0; i < 7; i++) {
        struct queue_piece p;
        CHECK(queue_cut(&q, remote + done, local + done, 5 * gib - done, &p), "piece %d has no key", i);
        CHECK(p.bytes == wanted[i] && p.remote == remote + done && p.local == local + done,
              "piece %d has %u bytes", i, p.bytes);
        CHECK(p.rkey.raw == (done < 3 * gib - 5 ? 1 : 2) && p.lkey.raw == (done < gib / 2 ? 3 : 4),
              "piece %d has keys %u and %u", i, p.rkey.raw, p.lkey.raw);
        done += p.bytes;
    }
    CHECK(done == 5 * gib, "%llu bytes", (unsigned long long)done);
    return TEST_PASSED;
}

static int check_refuses(const struct net_queue *good)
{
    struct net_queue q = *good;
    OK(terni_queue_check(&q));
    q.ring.segment_mask = 2 * WQE_BLOCK_SEGMENTS - 1;
    REFUSES(terni_queue_check(&q), TERN_INVALID_ARGUMENT, "a send ring of 2 blocks");
    q = *good;
    q.ring.segment_mask = 65536 * WQE_BLOCK_SEGMENTS - 1;
    REFUSES(terni_queue_check(&q), TERN_INVALID_ARGUMENT, "a send ring of 65536 blocks");
    q = *good;
    q.flags |= 8;
    REFUSES(terni_queue_check(&q), TERN_INVALID_ARGUMENT, "flags 0x9");
    q = *good;
    q.num_cqes = 2;
    REFUSES(terni_queue_check(&q), TERN_INVALID_ARGUMENT, "2 completion queue entries");
    q.flags = 0;
    REFUSES(terni_queue_check(&q), TERN_INVALID_ARGUMENT, "2 completion queue entries");
    q = *good;
    q.ring.segment_mask = 32768 * WQE_BLOCK_SEGMENTS - 1;
    REFUSES(terni_queue_check(&q), TERN_INVALID_ARGUMENT, "at most 16384");
    q = *good;
    q.message_bytes = WQE_MAX_BYTES + 1u;
    REFUSES(terni_queue_check(&q), TERN_INVALID_ARGUMENT, "1073741825 bytes");
    q = *good;
    q.batch_blocks = 12;
    REFUSES(terni_queue_check(&q), TERN_INVALID_ARGUMENT, "every 12 blocks");
    q = *good;
    q.qpn = 1u << 24;
    REFUSES(terni_queue_check(&q), TERN_INVALID_ARGUMENT, "0x1000000");
    q = *good;
    q.doorbell = NULL;
    REFUSES(terni_queue_check(&q), TERN_INVALID_ARGUMENT, "no way to tell");
    q = *good;
    q.flags |= NET_QUEUE_RELAY;
    REFUSES(terni_queue_check(&q), TERN_INVALID_ARGUMENT, "no way to tell");
    q = *good;
    q.cqes += 1;
    REFUSES(terni_queue_check(&q), TERN_INVALID_ARGUMENT, "not aligned");
    return TEST_PASSED;
}

static int what_providers_fill_in(struct test *t)
{
    struct queue_shape shape = {0};
    struct queue_rig r;
    int result;
    (void)t;
    shape.num_cqes = 4;
    result = queue_rig_open(&r, 1, &shape);
    result = result ? result : check_refuses(&r.s->queues[0]);
    queue_rig_close(&r);
    return result;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "data, then the signal", message_passing);
    test_run(&t, "doorbells rung by the host", rung_by_the_host);
    test_run(&t, "a NIC that stops and goes on", nic_restarts);
    test_run(&t, "what the host rings", relay_steps);
    test_run(&t, "doorbells that are early, merged, of drivers", other_doorbells);
    test_run(&t, "memory that comes later", growth);
    test_run(&t, "completions one by one", completions);
    test_run(&t, "requests cut into messages", cutting);
    test_run(&t, "what a queue may not be", what_providers_fill_in);
    return test_end(&t);
}
