/* SPDX-License-Identifier: Apache-2.0
 *
 * What a software NIC has on its way over a modelled wire: bytes of a put are there before anything tells of
 * them, and what tells of them comes at its time. Keys that go meanwhile, and errors in front of a put, end
 * as if nothing had been early. */
#include "net/mlx5_cqe.h"
#include "queue_rig.h"

#include <string.h>
#include <time.h>

enum { DATA = 1000, FLAG = 40 * 1024, FAR = 8 * 1024 };
#define LATENCY_NS 1000000000ull

static int nic_warps;

/* One queue, over a wire so slow that the NIC is stopped while everything is on its way. */
static int begin(struct queue_rig *r)
{
    struct queue_shape shape = {0};
    shape.blocks = 16;
    shape.nic_warps = nic_warps;
    shape.rates.latency_ns = LATENCY_NS;
    PASS(queue_rig_open(r, 1, &shape));
    memset(r->local, 0x3c, DATA);
    return TEST_PASSED;
}

/* A put that is on its way, of which queue and memory know nothing yet. */
static int check_on_its_way(const struct queue_rig *r)
{
    const struct softnic_qp *qp = &r->s->qps[0];
    CHECK(qp->num_taken != 0 && qp->num_arrived == 0, "%llu taken, %llu arrived: this machine is too slow",
          (unsigned long long)qp->num_taken, (unsigned long long)qp->num_arrived);
    return TEST_PASSED;
}

static int is_moved(const struct queue_rig *r, uint64_t at)
{
    return memcmp(r->remote + at, r->local, DATA) == 0;
}

/* Runs the NIC until all that it has taken is complete. */
static int land(struct queue_rig *r)
{
    const struct timespec nap = {0, LATENCY_NS / 20};
    const struct softnic_qp *qp = &r->s->qps[0];
    for (int tries = 0; tries < 1000; tries++) {
        PASS(queue_rig_serve(r, qp->fetched));
        if (qp->num_ended == qp->num_taken) {
            return TEST_PASSED;
        }
        nanosleep(&nap, NULL);
    }
    CHECK(0, "%llu of %llu have not ended", (unsigned long long)(qp->num_taken - qp->num_ended),
          (unsigned long long)qp->num_taken);
}

static int hand_over(struct queue_rig *r)
{
    static struct queue_step steps[32];
    memset(steps, 0, sizeof steps);
    steps[0].kind = STEP_PUT_SIGNAL;
    steps[0].remote = queue_rig_remote(64);
    steps[0].local = queue_rig_local(r, 0);
    steps[0].bytes = DATA;
    steps[0].signal = queue_rig_remote(FLAG);
    steps[0].amo = NET_AMO_SET;
    steps[0].value = 7;
    PASS(queue_rig_drive(r, steps, 1, 1, 32, ~0u, RIG_PATIENCE_NS));
    PASS(queue_rig_wait(r));
    return queue_rig_serve(r, r->s->states[0].ready);
}

static int early(struct queue_rig *r)
{
    PASS(begin(r));
    PASS(hand_over(r));
    PASS(check_on_its_way(r));
    CHECK(is_moved(r, 64), "bytes wait for the end of the wire");
    CHECK(queue_rig_word(r->remote, FLAG) == 0, "the word is %llu before its time",
          (unsigned long long)queue_rig_word(r->remote, FLAG));
    PASS(land(r));
    CHECK(queue_rig_word(r->remote, FLAG) == 7, "the word is %llu",
          (unsigned long long)queue_rig_word(r->remote, FLAG));
    CHECK(r->s->qps[0].state == SOFTNIC_READY && r->s->qps[0].num_overwritten == 0,
          "the queue pair is in error, or an entry was overwritten");
    return TEST_PASSED;
}

/* The word's key, looked up early, goes while it is on its way. */
static int key_goes(struct queue_rig *r)
{
    PASS(begin(r));
    PASS(hand_over(r));
    PASS(check_on_its_way(r));
    OK(terni_key_table_remove(&r->s->remote_keys, r->rkeys[1]));
    PASS(land(r));
    CHECK(queue_rig_word(r->remote, FLAG) == 0, "a word of memory that is no longer registered is %llu",
          (unsigned long long)queue_rig_word(r->remote, FLAG));
    CHECK(r->s->qps[0].state == SOFTNIC_ERROR && r->s->qps[0].refusal.syndrome == SYNDROME_REMOTE_ACCESS,
          "syndrome 0x%02x", r->s->qps[0].refusal.syndrome);
    return TEST_PASSED;
}

/* Entries that are written by hand, up to `end`. */
static int ring(struct queue_rig *r, uint32_t end)
{
    struct queue_shared *s = r->s;
    s->records[0].words[DOORBELL_RECORD_SEND] = doorbell_record(end);
    s->doorbells[0] = doorbell_value(s->queues[0].qpn, end);
    return queue_rig_serve(r, end);
}

static void lay_put(struct queue_rig *r, uint32_t idx, uint64_t to)
{
    const struct net_queue *q = &r->s->queues[0];
    struct wqe_rdma_args a = {q->qpn,
                              WQE_CE_ALWAYS,
                              queue_rig_remote(to),
                              queue_rig_local(r, 0),
                              wqe_key_of(r->rkeys[0]),
                              wqe_key_of(r->lkeys[0]),
                              DATA};
    wqe_rdma(&q->ring, idx, &a, WQE_RDMA_WRITE, 0);
}

/* Behind an entry that is refused nothing is done, not early either. */
static int behind_error(struct queue_rig *r)
{
    struct wqe_nop_args wrong = {0, WQE_CE_ALWAYS};
    PASS(begin(r));
    lay_put(r, 0, 64);
    PASS(ring(r, 1));
    CHECK(is_moved(r, 64), "bytes wait for the end of the wire");
    wrong.qpn = r->s->queues[0].qpn + 1;
    wqe_nop(&r->s->queues[0].ring, 1, &wrong);
    PASS(ring(r, 2));
    lay_put(r, 2, FAR);
    PASS(ring(r, 3));
    PASS(check_on_its_way(r));
    CHECK(!is_moved(r, FAR), "a put behind an entry that is refused is early");
    PASS(land(r));
    CHECK(!is_moved(r, FAR) && r->s->qps[0].state == SOFTNIC_ERROR,
          "a put behind an entry that was refused was done");
    return TEST_PASSED;
}

/* By the engine alone, and with a herald (net/softnic_herald.h). */
static int with_rig(int (*body)(struct queue_rig *r))
{
    int result = TEST_PASSED;
    for (nic_warps = 2; nic_warps <= 4 && result == TEST_PASSED; nic_warps += 2) {
        struct queue_rig rig = {0};
        result = body(&rig);
        queue_rig_close(&rig);
    }
    return result;
}

/* Words of a NIC that goes on meanwhile, several under way: each is raised once, by whoever. */
static int goes_on(struct queue_rig *r)
{
    enum { WORDS = 40, APART = 1024 };
    static struct queue_step steps[32 * WORDS];
    struct queue_shape shape = {0};
    shape.blocks = 64;
    shape.nic_warps = nic_warps;
    shape.rates.latency_ns = 100000;
    shape.rates.bytes_per_s = shape.rates.receive_bytes_per_s = 1000000000;
    PASS(queue_rig_open(r, 1, &shape));
    memset(r->local, 0x3c, DATA);
    memset(steps, 0, sizeof steps);
    for (uint64_t i = 0; i < WORDS; i++) {
        struct queue_step *s = &steps[i];
        s->kind = STEP_PUT_SIGNAL;
        s->remote = queue_rig_remote(64 + i % 8 * APART);
        s->local = queue_rig_local(r, 0);
        s->bytes = DATA;
        s->signal = queue_rig_remote(FLAG + 8 * (i % 8));
        s->amo = NET_AMO_ADD;
        s->width = 8;
        s->value = i + 1;
    }
    PASS(queue_rig_nic(r));
    PASS(queue_rig_drive(r, steps, WORDS, 1, 32, ~0u, RIG_PATIENCE_NS));
    PASS(queue_rig_wait(r));
    PASS(queue_rig_nic_end(r));
    PASS(queue_rig_serve(r, r->s->states[0].ready));
    PASS(land(r));
    for (uint64_t i = 0; i < 8; i++) {
        uint64_t sum = 5 * (i + 1) + 8 * (1 + 2 + 3 + 4);
        CHECK(is_moved(r, 64 + i * APART), "bytes of word %llu have not come", (unsigned long long)i);
        CHECK(queue_rig_word(r->remote, FLAG + 8 * i) == sum, "word %llu is %llu, not %llu",
              (unsigned long long)i, (unsigned long long)queue_rig_word(r->remote, FLAG + 8 * i),
              (unsigned long long)sum);
    }
    CHECK((r->s->qps[0].num_heralded != 0) == (nic_warps > 2), "%llu words had a herald, of %d warps",
          (unsigned long long)r->s->qps[0].num_heralded, nic_warps);
    return TEST_PASSED;
}

static int row_goes_on(struct test *t)
{
    (void)t;
    return with_rig(goes_on);
}

static int row_early(struct test *t)
{
    (void)t;
    return with_rig(early);
}

static int row_key(struct test *t)
{
    (void)t;
    return with_rig(key_goes);
}

static int row_error(struct test *t)
{
    (void)t;
    return with_rig(behind_error);
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "bytes are there before their word, which comes at its time", row_early);
    test_run(&t, "a key that goes while its word is on its way", row_key);
    test_run(&t, "a put behind an entry that is refused", row_error);
    test_run(&t, "words of a NIC that goes on, by its engine and by a herald", row_goes_on);
    return test_end(&t);
}
