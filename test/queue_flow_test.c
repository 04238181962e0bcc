/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pairs in use: data and the signal that passes no data, in rings that are always full; doorbells rung
 * by the host, early, merged, and as drivers ring them; a NIC that stops, learns of new memory and goes
 * on. */
#include "net/relay.h"
#include "queue_rig.h"

#include <stdlib.h>
#include <string.h>

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

/* A thread that stops the NIC after two of five rounds of pair 0. */
static void lay_stop(struct queue_rig *r, struct queue_step *steps)
{
    steps[0].kind = STEP_AWAIT;
    steps[0].local = (uint64_t)(uintptr_t)r->remote + SIGNALS;
    steps[0].value = 2;
    steps[1].kind = STEP_STORE;
    steps[1].local = (uint64_t)(uintptr_t)&r->s->stop;
    steps[1].value = 1;
}

/* The NIC ends while kernels use it, and another run goes on where it was. */
static int run_on(struct queue_rig *r)
{
    uint64_t midway;
    OK(r->m->ops->stream_synchronize(r->m, r->nic));
    midway = r->s->qps[0].fetched;
    PASS(queue_rig_nic(r));
    PASS(queue_rig_wait(r));
    PASS(queue_rig_nic_end(r));
    CHECK(midway > r->shape.first && midway < r->s->qps[0].fetched,
          "seed %llu: the NIC stopped at %llu of %llu", (unsigned long long)r->seed,
          (unsigned long long)midway, (unsigned long long)r->s->qps[0].fetched);
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
    if (how == RESTARTED) {
        lay_stop(r, steps_of(steps, PAIRS));
    }
    if (how == RELAYED) {
        OK(terni_relay_open(lines, r->shape.num_queues, &relay));
    }
    result = queue_rig_nic(r);
    result = result ? result : queue_rig_drive(r, steps, ROUNDS * ROUND_STEPS, 2, 32, ~0u, RIG_PATIENCE_NS);
    result = result || how != RESTARTED ? result : run_on(r);
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
        shape.no_record = how != RELAYED && seed % 2 != 0;
        shape.first = rng_below(&rng, 2) ? 65534 : 0xfffffffcull;
        shape.nic_warps = (int)rng_between(&rng, 1, 3);
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

/* Without a record the register is all: what it says of another queue pair is nothing, and a second doorbell
 * that is as far as the first changes nothing. */
static int ring_without(struct queue_rig *r)
{
    uint32_t qpn = r->s->queues[0].qpn, first = (uint32_t)r->shape.first;
    uint64_t *doorbell = &r->s->doorbells[0];
    struct queue_shared *s = r->s;
    s->queues[0].doorbell = &s->peer_doorbell; /* nobody's: entries are posted, and the test rings */
    PASS(queue_rig_nic(r));
    PASS(post_one(r, 0));
    __atomic_store_n(doorbell, doorbell_value(qpn + 1, first + 1), __ATOMIC_RELEASE);
    PASS(flush_with(r, 3000000, NET_TIMED_OUT));
    __atomic_store_n(doorbell, doorbell_value(qpn, first + 1), __ATOMIC_RELEASE);
    PASS(flush_with(r, RIG_PATIENCE_NS, NET_OK));
    PASS(post_one(r, 0));
    PASS(post_one(r, 0));
    __atomic_store_n(doorbell, doorbell_value(qpn, first + 3), __ATOMIC_RELEASE);
    PASS(flush_with(r, RIG_PATIENCE_NS, NET_OK));
    __atomic_store_n(doorbell, doorbell_value(qpn, first + 3), __ATOMIC_RELEASE);
    PASS(queue_rig_nic_end(r));
    CHECK(s->qps[0].num_wrong_bells == 1 && s->qps[0].num_overruns == 0 && s->qps[0].fetched == first + 3ull,
          "%llu wrong doorbells, %llu overruns, %llu entries", (unsigned long long)s->qps[0].num_wrong_bells,
          (unsigned long long)s->qps[0].num_overruns, (unsigned long long)(s->qps[0].fetched - first));
    return TEST_PASSED;
}

/* Kernels ring nowhere that the NIC looks, or do not ring: the test does. */
static int with_bells(struct queue_shape shape, int (*body)(struct queue_rig *))
{
    struct queue_rig r;
    int result;
    shape.first = 65535;
    result = queue_rig_open(&r, 4, &shape);
    result = result ? result : body(&r);
    queue_rig_close(&r);
    return result;
}

static int no_record(struct test *t)
{
    struct queue_shape shape = {0};
    (void)t;
    shape.no_record = 1;
    return with_bells(shape, ring_without);
}

static int other_doorbells(struct test *t)
{
    struct queue_shape shape = {0};
    (void)t;
    shape.relay = 1;
    return with_bells(shape, ring_by_hand);
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
    struct queue_rig_list upper = {{1}, {{0, 0, {0}, 0}}};
    uint32_t key;
    memset(r->local, 0x21, 100);
    OK(terni_key_table_remove(&s->remote_keys, r->rkeys[0]));
    upper.ranges[0] = s->remote_list.ranges[1];
    s->queues[0].remote = (uint64_t)(uintptr_t)&upper.head;
    PASS(run_put(r, across, NET_REFUSED));
    PASS(run_put(r, r->shape.remote_cut, NET_OK));
    OK(terni_key_table_add(&s->remote_keys, &g, &key));
    s->remote_list.ranges[0].key = wqe_key_of(key);
    s->queues[0].remote = (uint64_t)(uintptr_t)&s->remote_list.head;
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
    test_run(&t, "a register without a record, of this queue pair and of another", no_record);
    test_run(&t, "memory that comes later", growth);
    return test_end(&t);
}
