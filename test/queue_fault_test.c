/* SPDX-License-Identifier: Apache-2.0
 *
 * How waits on queue pairs end when it does not go well: completions in error, of any entry, in collapsed and
 * ring completion queues; entries behind them; deadlines and the abort word; requests that name no memory.
 * And that the software NIC sees what software does wrong. Both NICs: that which moves memory, and those that
 * speak packets. One file, because every case is a script of steps that all run on the same queues. */
#include "net/mlx5_cqe.h"
#include "queue_rig.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_STEPS = 16 };
#define SHORT_NS 30000000ull

/* One thread's steps; run returns when they are done. */
struct script {
    struct queue_step steps[32 * MAX_STEPS]; /* of a warp; others than the first do nothing */
    uint32_t num;
};

static struct queue_step *add(struct script *c, uint32_t kind, uint32_t queue, uint64_t remote,
                              uint64_t local, uint64_t bytes)
{
    struct queue_step *s = &c->steps[c->num++];
    memset(s, 0, sizeof(*s));
    s->kind = kind;
    s->queue = queue;
    s->remote = remote;
    s->local = local;
    s->bytes = bytes;
    s->amo = NET_AMO_ADD;
    s->width = 8;
    return s;
}

static int run(struct queue_rig *r, struct script *c, uint64_t timeout_ns)
{
    memset(c->steps + c->num, 0, (size_t)(32 - 1) * c->num * sizeof(c->steps[0]));
    PASS(queue_rig_drive(r, c->steps, c->num, 1, 32, ~0u, timeout_ns));
    return queue_rig_wait(r);
}

/* Every other world has NICs that speak packets. */
static const struct softnic_net_shape *net_of(int i)
{
    static struct softnic_net_shape net;
    net = softnic_net_kind(1);
    net.requests.reorder = RC_CERTAIN / 4;
    return i % 2 ? &net : NULL;
}

/* ---- Completions in error ---- */

struct fault {
    const char *name;
    uint32_t syndrome;
};

enum { BAD_RKEY, BAD_LKEY, NO_LOCAL_WRITE, NO_REMOTE_WRITE, BEYOND, MISALIGNED, MALFORMED, NUM_FAULTS };

static const struct fault faults[NUM_FAULTS] = {
    {"an rkey that names nothing", SYNDROME_REMOTE_ACCESS},
    {"an lkey that names nothing", SYNDROME_LOCAL_PROTECTION},
    {"an lkey that may not be written", SYNDROME_LOCAL_ACCESS},
    {"an rkey that may not be written", SYNDROME_REMOTE_ACCESS},
    {"a range that ends too early", SYNDROME_REMOTE_ACCESS},
    {"an atomic that is not aligned", SYNDROME_REMOTE_INVALID_REQUEST},
    {"an entry of another queue pair", SYNDROME_LOCAL_QP_OPERATION},
};

/* Breaks what a fault is about, and adds the step that finds out. */
static void provoke(struct queue_rig *r, int fault, struct script *c)
{
    struct queue_shared *s = r->s;
    uint64_t remote = queue_rig_remote(64), local = queue_rig_local(r, 64);
    uint32_t kind = STEP_PUT, bytes = 40;
    switch (fault) {
    case BAD_RKEY:
        s->remote_list.ranges[0].key = wqe_key_of(TERN_WQE_INVALID_KEY);
        break;
    case BAD_LKEY:
        s->local_list.ranges[0].key = wqe_key_of(r->lkeys[0] + 1);
        break;
    case NO_LOCAL_WRITE:
        s->entries[0].access = 0;
        kind = STEP_GET;
        break;
    case NO_REMOTE_WRITE:
        s->remote_entries[0].access = KEY_REMOTE_READ;
        break;
    case BEYOND:
        s->remote_entries[0].bytes = 64 + 39;
        break;
    case MISALIGNED:
        remote += 4;
        kind = STEP_ATOMIC;
        break;
    default:
        s->queues[0].qpn++;
        kind = STEP_PUT;
        break;
    }
    add(c, kind, 0, remote, local, bytes);
}

/* Steps 0 to 2 succeed, 3 fails, 4 waits for it, 5 and 6 are refused, 7 works on another queue. */
static int after_fault(struct queue_rig *r, int fault, struct script *c)
{
    const struct net_queue_state *state = &r->s->states[0];
    const struct softnic_qp *qp = &r->s->qps[0];
    uint32_t wanted = net_failed(faults[fault].syndrome);
    CHECK(c->steps[1].status == NET_OK, "%s: before it: status 0x%x", faults[fault].name, c->steps[1].status);
    for (int i = 4; i < 8; i++) {
        CHECK(c->steps[i].status == wanted, "%s: step %d ends with status 0x%x, not 0x%x", faults[fault].name,
              i, c->steps[i].status, wanted);
    }
    CHECK(c->steps[9].status == NET_OK, "%s: the other queue: status 0x%x", faults[fault].name,
          c->steps[9].status);
    CHECK(queue_error_syndrome(state->error) == faults[fault].syndrome &&
              queue_error_vendor_syndrome(state->error) == qp->refusal.reason &&
              queue_error_idx(state->error) == ((c->steps[3].ticket - 1) & 0xffff),
          "%s: the record of the error is 0x%llx", faults[fault].name, (unsigned long long)state->error);
    CHECK(qp->state == SOFTNIC_ERROR && qp->refusal.syndrome == faults[fault].syndrome &&
              qp->num_overwritten == 0,
          "%s: the NIC has syndrome 0x%02x", faults[fault].name, qp->refusal.syndrome);
    return TEST_PASSED;
}

/* A queue that has failed is at hand, and takes nothing all the same; the other one does. */
static void add_near(struct queue_rig *r, struct script *c, uint64_t at)
{
    for (uint32_t q = 0; q < 2; q++) {
        struct queue_step *s = add(c, STEP_PUT_SIGNAL, q, queue_rig_remote(at), queue_rig_local(r, at), 40);
        s->signal = queue_rig_remote(at + 40);
        s->amo = NET_AMO_ADD;
        s->value = 1 + q;
        s->near = STEP_NEAR;
        add(c, STEP_FLUSH, q, 0, 0, 0);
    }
}

static int after_near(struct queue_rig *r, int fault, struct script *c)
{
    const struct queue_step *s = &c->steps[10];
    uint64_t word;
    CHECK(s[0].status == net_failed(faults[fault].syndrome) && s[0].near == STEP_WAS_NEAR &&
              s[1].status == s[0].status && s[3].status == NET_OK,
          "%s: statuses 0x%x, 0x%x, 0x%x, near %u", faults[fault].name, s[0].status, s[1].status, s[3].status,
          s[0].near);
    memcpy(&word, r->remote + RIG_HEAP_BYTES / 2 + 40, 8);
    CHECK(word == 2, "%s: signals of both queues add up to %llu", faults[fault].name,
          (unsigned long long)word);
    return TEST_PASSED;
}

static int one_fault(struct queue_rig *r, int fault, struct script *c)
{
    uint64_t far = RIG_HEAP_BYTES / 2;
    memset(c, 0, sizeof(*c));
    add(c, STEP_PUT, 0, queue_rig_remote(far), queue_rig_local(r, far), 40);
    add(c, STEP_FLUSH, 0, 0, 0, 0);
    add(c, STEP_PUT, 0, queue_rig_remote(far), queue_rig_local(r, far), 40);
    if (fault == MALFORMED) {
        c->num = 2;
        PASS(run(r, c, RIG_PATIENCE_NS));
        add(c, STEP_NOTHING, 0, 0, 0, 0);
        c->steps[0].kind = STEP_NOTHING;
        c->steps[1].kind = STEP_NOTHING;
    }
    provoke(r, fault, c);
    add(c, STEP_FLUSH, 0, 0, 0, 0);
    add(c, STEP_PUT, 0, queue_rig_remote(far), queue_rig_local(r, far), 40);
    add(c, STEP_FETCH, 0, queue_rig_remote(far), 0, 0);
    add(c, STEP_FLUSH, 0, 0, 0, 0);
    add(c, STEP_PUT, 1, queue_rig_remote(far), queue_rig_local(r, far), 40);
    add(c, STEP_FLUSH, 1, 0, 0, 0);
    add_near(r, c, far);
    PASS(run(r, c, RIG_PATIENCE_NS));
    PASS(queue_rig_nic_end(r)); /* what it knows is its own until then */
    PASS(after_fault(r, fault, c));
    return after_near(r, fault, c);
}

static int errors_end_waits(struct test *t)
{
    static struct script c;
    struct rng r = {77};
    int runs = test_scaled(t, 8);
    for (int i = 0; i < runs * NUM_FAULTS; i++) {
        struct queue_shape shape = {0};
        struct queue_rig rig;
        int result;
        shape.num_queues = 2;
        shape.blocks = 8;
        shape.num_cqes = i / NUM_FAULTS % 2 ? 8 : 0;
        /* Where there is no record the doorbell has to name the right queue pair, or nobody looks. */
        shape.no_record = i % NUM_FAULTS != MALFORMED && (i + i / NUM_FAULTS / 2) % 2;
        shape.net = net_of(i / NUM_FAULTS / 2);
        shape.first = rng_below(&r, 2) ? 65533 : 0xfffffffdull;
        shape.hold_one_in = rng_below(&r, 3);
        result = queue_rig_open(&rig, rng_next(&r), &shape);
        result = result ? result : queue_rig_nic(&rig);
        result = result ? result : one_fault(&rig, i % NUM_FAULTS, &c);
        queue_rig_close(&rig);
        PASS(result);
    }
    return TEST_PASSED;
}

/* ---- Entries behind an error ---- */

/* Handed over before anybody knows: NIC off, one bad entry among good ones, NIC on. */
static int flushed_behind(struct queue_rig *r, struct script *c)
{
    const uint32_t *cqe = r->s->queues[0].cqes;
    uint64_t near = queue_rig_remote(64);
    memset(c, 0, sizeof(*c));
    for (int i = 0; i < 6; i++) {
        add(c, STEP_PUT, 0, near + 8 * (uint64_t)i, queue_rig_local(r, i == 2 ? RIG_HEAP_BYTES - 64 : 64), 8);
    }
    c->steps[5].kind = STEP_SIGNAL; /* two blocks and a NOP */
    c->steps[5].amo = NET_AMO_SET;
    c->steps[5].value = 5;
    r->s->local_list.ranges[1].key = wqe_key_of(r->lkeys[1] + 1);
    memset(r->local + 64, 0x3c, 8);
    PASS(run(r, c, RIG_PATIENCE_NS));
    PASS(queue_rig_nic(r));
    c->num = 0;
    add(c, STEP_FLUSH_ALL, 0, 0, 0, 0);
    PASS(run(r, c, RIG_PATIENCE_NS));
    PASS(queue_rig_nic_end(r));
    PASS(queue_rig_serve(r, r->s->states[0].ready)); /* the flush did not wait for the rest */
    CHECK(net_status_kind(c->steps[0].status) == NET_FAILED, "the flush ends with 0x%x", c->steps[0].status);
    CHECK(r->remote[64 + 8] == 0x3c && r->remote[64 + 24] == 0 && r->remote[64 + 40] == 0,
          "an entry behind the error was done, or one before it was not");
    if (r->shape.num_cqes == 0) {
        CHECK(cqe_syndrome(cqe[CQE_WORD_SYNDROME]) == SYNDROME_FLUSHED,
              "the last completion has syndrome 0x%02x", cqe_syndrome(cqe[CQE_WORD_SYNDROME]));
        return TEST_PASSED;
    }
    CHECK(r->s->qps[0].num_done == 7, "%llu completions", (unsigned long long)r->s->qps[0].num_done);
    for (uint32_t i = 0; i < 7; i++, cqe += CQE_WORDS) {
        uint32_t wanted = i < 2 ? SYNDROME_NONE : i == 2 ? SYNDROME_LOCAL_PROTECTION : SYNDROME_FLUSHED;
        CHECK(cqe_is_error(cqe[CQE_WORD_TAIL]) == (wanted != 0) &&
                  cqe_syndrome(cqe[CQE_WORD_SYNDROME]) == wanted,
              "completion %u has syndrome 0x%02x, not 0x%02x", i, cqe_syndrome(cqe[CQE_WORD_SYNDROME]),
              wanted);
    }
    CHECK(c->steps[0].status == net_failed(SYNDROME_LOCAL_PROTECTION), "the flush ends with 0x%x",
          c->steps[0].status);
    return TEST_PASSED;
}

static int entries_behind(struct test *t)
{
    static struct script c;
    (void)t;
    for (uint32_t i = 0; i < 4; i++) {
        struct queue_shape shape = {0};
        struct queue_rig rig;
        int result;
        shape.blocks = 16;
        shape.net = net_of((int)i / 2);
        shape.num_cqes = i % 2 ? 16 : 0;
        shape.hold_one_in = i % 2; /* late, every one of them: in a ring none may be lost */
        result = queue_rig_open(&rig, 5 + i, &shape);
        result = result ? result : flushed_behind(&rig, &c);
        queue_rig_close(&rig);
        PASS(result);
    }
    return TEST_PASSED;
}

/* Many threads, one of which errs: all that fail tell the same syndrome, which is the one on record. */
static int all_agree(struct queue_rig *r, struct rng *rng)
{
    enum { PUTS = 3, EACH = PUTS + 1 };
    struct queue_step *steps = (struct queue_step *)test_take(32 * EACH, sizeof(*steps));
    uint32_t bad = rng_below(rng, 32), failed = 0, differ = 0, wanted;
    for (uint32_t i = 0; i < 32 * EACH; i++) {
        steps[i].kind = i % EACH < PUTS ? STEP_PUT : STEP_FLUSH;
        steps[i].remote = queue_rig_remote(16 * i);
        steps[i].local = queue_rig_local(r, i == bad * EACH ? RIG_HEAP_BYTES - 16 : 16 * i);
        steps[i].bytes = 16;
    }
    r->s->local_list.ranges[1].key = wqe_key_of(r->lkeys[1] + 1);
    if (queue_rig_nic(r) || queue_rig_drive(r, steps, EACH, 1, 32, ~0u, RIG_PATIENCE_NS) ||
        queue_rig_wait(r)) {
        free(steps);
        return TEST_FAILED;
    }
    wanted = net_failed(queue_error_syndrome(r->s->states[0].error));
    for (uint32_t i = 0; i < 32 * EACH; i++) {
        failed += steps[i].status != NET_OK;
        differ += steps[i].status != NET_OK && steps[i].status != wanted;
    }
    free(steps);
    CHECK(failed > 0 && differ == 0, "seed %llu: %u steps failed, %u of them not with 0x%x",
          (unsigned long long)r->seed, failed, differ, wanted);
    return TEST_PASSED;
}

static int one_syndrome(struct test *t)
{
    int last = test_scaled(t, 150);
    for (int seed = 1; seed <= last; seed++) {
        struct queue_shape shape = {0};
        struct rng rng = {(uint64_t)seed};
        struct queue_rig rig;
        int result;
        shape.blocks = 4u << rng_below(&rng, 4);
        shape.num_cqes = rng_one_in(&rng, 4) ? shape.blocks : 0;
        shape.net = net_of(seed);
        result = queue_rig_open(&rig, (uint64_t)seed, &shape);
        result = result ? result : all_agree(&rig, &rng);
        queue_rig_close(&rig);
        PASS(result);
    }
    return TEST_PASSED;
}

/* ---- Deadlines, the abort word, refusals ---- */

/* No NIC: the ring fills up, waits for room and for completions end. Then there is one, and nothing was
 * lost. */
static int deadline_and_after(struct queue_rig *r, struct script *c)
{
    memset(c, 0, sizeof(*c));
    memset(r->local, 0x77, 64);
    for (uint64_t i = 0; i < 5; i++) {
        add(c, STEP_PUT, 0, queue_rig_remote(8 * i), queue_rig_local(r, 0), 8);
    }
    add(c, STEP_FLUSH_ALL, 0, 0, 0, 0);
    PASS(run(r, c, SHORT_NS));
    CHECK(c->steps[3].status == NET_OK && c->steps[4].status == NET_TIMED_OUT &&
              c->steps[5].status == NET_TIMED_OUT,
          "statuses 0x%x 0x%x 0x%x", c->steps[3].status, c->steps[4].status, c->steps[5].status);
    PASS(queue_rig_nic(r));
    c->num = 0;
    add(c, STEP_PUT, 0, queue_rig_remote(32), queue_rig_local(r, 0), 8);
    add(c, STEP_FLUSH, 0, 0, 0, 0);
    PASS(run(r, c, RIG_PATIENCE_NS));
    PASS(queue_rig_nic_end(r));
    CHECK(c->steps[1].status == NET_OK, "afterwards: status 0x%x", c->steps[1].status);
    CHECK(memcmp(r->remote, r->local, 40) == 0, "what was handed over before is not there");
    return queue_rig_check_idle(r);
}

/* More waits for an old value are given up than there are words: what the NIC has written since is used
 * again, and what it has not is not. */
static int words_come_back(struct queue_rig *r, struct script *c)
{
    uint64_t value = 0x5151515151515151;
    memcpy(r->remote, &value, 8);
    for (int i = 0; i < NET_QUEUE_NUM_RESULTS + 3; i++) {
        memset(c, 0, sizeof(*c));
        add(c, STEP_FETCH, 0, queue_rig_remote(0), 0, 0)->amo = NET_AMO_FETCH;
        PASS(run(r, c, SHORT_NS));
        CHECK(c->steps[0].status == NET_TIMED_OUT, "fetch %d: status 0x%x", i, c->steps[0].status);
        if (i < NET_QUEUE_NUM_RESULTS) {
            uint64_t until = r->s->states[0].result_until[i];
            CHECK(until > r->s->states[0].consumed, "word %d is given away until %llu, of %llu", i,
                  (unsigned long long)until, (unsigned long long)r->s->states[0].consumed);
        }
        c->num = 0;
        add(c, STEP_FLUSH_ALL, 0, 0, 0, 0);
        PASS(queue_rig_nic(r));
        PASS(run(r, c, RIG_PATIENCE_NS));
        PASS(queue_rig_nic_end(r));
    }
    c->num = 0;
    add(c, STEP_FETCH, 0, queue_rig_remote(0), 0, 0)->amo = NET_AMO_FETCH;
    PASS(queue_rig_nic(r));
    PASS(run(r, c, RIG_PATIENCE_NS));
    PASS(queue_rig_nic_end(r));
    CHECK(c->steps[0].status == NET_OK && c->steps[0].old == value, "status 0x%x, 0x%llx", c->steps[0].status,
          (unsigned long long)c->steps[0].old);
    return TEST_PASSED;
}

/* Nobody answers and there is no deadline, but somebody raises the word. */
static int aborted(struct queue_rig *r, struct script *c)
{
    const struct timespec moment = {0, 2000000};
    memset(c, 0, sizeof(*c));
    for (uint64_t i = 0; i < 4; i++) {
        add(c, STEP_PUT, 0, queue_rig_remote(8 * i), queue_rig_local(r, 0), 8);
    }
    add(c, STEP_FLUSH, 0, 0, 0, 0);
    add(c, STEP_PUT, 0, queue_rig_remote(0), queue_rig_local(r, 0), 8);
    add(c, STEP_FETCH, 0, queue_rig_remote(0), 0, 0);
    r->s->queues[0].timeout_ns = TERN_NET_NO_DEADLINE;
    PASS(queue_rig_drive(r, c->steps, c->num, 1, 32, ~0u, TERN_NET_NO_DEADLINE));
    nanosleep(&moment, NULL);
    __atomic_store_n(&r->s->abort, 1, __ATOMIC_RELEASE);
    PASS(queue_rig_wait(r));
    CHECK(c->steps[4].status == NET_ABORTED && c->steps[5].status == NET_ABORTED &&
              c->steps[6].status == NET_ABORTED,
          "statuses 0x%x 0x%x 0x%x", c->steps[4].status, c->steps[5].status, c->steps[6].status);
    CHECK(r->s->states[0].results_busy == 0, "a result word nobody waits for is kept");
    return TEST_PASSED;
}

/* Addresses that no range has; flushing such a ticket gives the reason again, though all else succeeded. */
static int refused(struct queue_rig *r, struct script *c)
{
    uint64_t nowhere = queue_rig_remote(RIG_HEAP_BYTES), remote = queue_rig_remote(0),
             local = queue_rig_local(r, 0);
    static const uint32_t kinds[] = {STEP_PUT,   STEP_GET,    STEP_PUT_INLINE, STEP_ATOMIC,
                                     STEP_FETCH, STEP_SIGNAL, STEP_PUT_SIGNAL};
    memset(c, 0, sizeof(*c));
    for (int i = 0; i < 7; i++) {
        add(c, kinds[i], 0, nowhere, local, 8)->signal = remote;
    }
    add(c, STEP_PUT_SIGNAL, 0, remote, local, 8)->signal = nowhere;
    c->steps[6].near = c->steps[7].near = STEP_NEAR;
    add(c, STEP_PUT, 0, remote, local + RIG_HEAP_BYTES, 8);
    add(c, STEP_FLUSH, 0, 0, 0, 0);
    add(c, STEP_PUT, 0, remote, local, 8);
    add(c, STEP_FLUSH, 0, 0, 0, 0);
    PASS(queue_rig_nic(r));
    PASS(run(r, c, RIG_PATIENCE_NS));
    PASS(queue_rig_nic_end(r));
    for (int i = 0; i < 10; i++) {
        CHECK(c->steps[i].status == NET_REFUSED, "step %d ends with status 0x%x", i, c->steps[i].status);
    }
    CHECK(c->steps[11].status == NET_OK, "status 0x%x", c->steps[11].status);
    return queue_rig_check_idle(r);
}

static int with_rig(int (*body)(struct queue_rig *r, struct script *c), uint64_t timeout_ns)
{
    static struct script c;
    for (uint32_t i = 0; i < 4; i++) {
        struct queue_shape shape = {0};
        struct queue_rig rig;
        int result;
        shape.net = net_of((int)i / 2);
        shape.num_cqes = i % 2 ? 4 : 0;
        shape.first = 65534;
        shape.timeout_ns = timeout_ns;
        shape.free_running = body == aborted;
        result = queue_rig_open(&rig, 21 + i, &shape);
        result = result ? result : body(&rig, &c);
        queue_rig_close(&rig);
        PASS(result);
    }
    return TEST_PASSED;
}

static int deadlines(struct test *t)
{
    (void)t;
    return with_rig(deadline_and_after, SHORT_NS);
}

static int words_back(struct test *t)
{
    (void)t;
    return with_rig(words_come_back, SHORT_NS);
}

static int abort_word(struct test *t)
{
    (void)t;
    return with_rig(aborted, 0);
}

static int refusals(struct test *t)
{
    (void)t;
    return with_rig(refused, 0);
}

/* ---- What the NIC sees ---- */

/* A late result without a DUMP is not there; a slot that changes before its completion is noticed, and so are
 * a ring that has too much posted and another queue pair's doorbell. */
static int nic_notices(struct queue_rig *r, struct script *c)
{
    struct softnic_qp *qp = &r->s->qps[0];
    memset(c, 0, sizeof(*c));
    memset(r->remote, 0x55, 8);
    r->s->queues[0].flags &= ~(uint32_t)NET_QUEUE_DUMP;
    add(c, STEP_GET, 0, queue_rig_remote(0), queue_rig_local(r, 0), 8);
    add(c, STEP_FLUSH, 0, 0, 0, 0);
    add(c, STEP_FETCH, 0, queue_rig_remote(0), 0, 0)->amo = NET_AMO_FETCH;
    PASS(queue_rig_nic(r));
    PASS(run(r, c, RIG_PATIENCE_NS));
    PASS(queue_rig_nic_end(r));
    CHECK(r->local[0] == 0x55 && c->steps[2].old == 0, "the NIC has no late results: 0x%llx",
          (unsigned long long)c->steps[2].old);
    PASS(queue_rig_check_idle(r));
    /* Completed last, but as if not reported yet. */
    r->rings[(qp->reported - 1) % r->shape.blocks * WQE_BLOCK_BYTES + 60] ^= 1;
    qp->reported--;
    c->num = 0;
    add(c, STEP_PUT, 0, queue_rig_remote(0), queue_rig_local(r, 0), 8);
    add(c, STEP_FLUSH, 0, 0, 0, 0);
    PASS(queue_rig_nic(r));
    PASS(run(r, c, RIG_PATIENCE_NS));
    PASS(queue_rig_nic_end(r));
    CHECK(qp->num_overwritten == 1, "%llu blocks overwritten", (unsigned long long)qp->num_overwritten);
    qp->reported -= r->shape.blocks;
    r->s->queues[0].qpn++;
    c->num = 0;
    add(c, STEP_PUT, 0, queue_rig_remote(0), queue_rig_local(r, 0), 8);
    add(c, STEP_FLUSH, 0, 0, 0, 0);
    PASS(queue_rig_nic(r));
    PASS(run(r, c, RIG_PATIENCE_NS));
    PASS(queue_rig_nic_end(r));
    CHECK(qp->num_overruns == 1 && qp->num_wrong_bells == 1, "%llu overruns, %llu wrong doorbells",
          (unsigned long long)qp->num_overruns, (unsigned long long)qp->num_wrong_bells);
    return TEST_PASSED;
}

static int nic_sees(struct test *t)
{
    static struct script c;
    struct queue_shape shape = {0};
    struct queue_rig rig;
    int result;
    (void)t;
    shape.late = 1;
    result = queue_rig_open(&rig, 3, &shape);
    result = result ? result : nic_notices(&rig, &c);
    queue_rig_close(&rig);
    return result;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "a completion in error ends every wait", errors_end_waits);
    test_run(&t, "entries behind an error are flushed", entries_behind);
    test_run(&t, "many threads, one syndrome", one_syndrome);
    test_run(&t, "deadlines leave a queue as it was", deadlines);
    test_run(&t, "old values that nobody waits for", words_back);
    test_run(&t, "the abort word ends every wait", abort_word);
    test_run(&t, "requests that name no memory", refusals);
    test_run(&t, "the software NIC sees what is wrong", nic_sees);
    return test_end(&t);
}
