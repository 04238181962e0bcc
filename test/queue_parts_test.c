/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of queue pairs by themselves: completions as NICs write them, one by one, with every case that
 * pollers have been wrong about; how keys are found and requests cut; what a provider may not fill in. */
#include "net/mlx5_cqe.h"
#include "queue_rig.h"

#include <string.h>

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

/* A thread that has taken a completion has not told yet what it says, and the next one is there: more than a
 * ring lies between, and it must not be lost. */
static const struct look slow_thread[] = {
    {1, CQE_REQUESTER, 0, 0, FIRST + 15, FIRST + 16, "two rings ahead"},
    {2, CQE_REQUESTER_ERROR, 0, SYNDROME_FLUSHED, FIRST + 16, FIRST + 16, "an error"},
};

static int behind_a_slow_thread(struct queue_rig *r)
{
    r->s->states[0].completions = 1;
    return look_at(r, slow_thread, 2);
}

static int completions(struct test *t)
{
    (void)t;
    for (int i = 0; i < 3; i++) {
        struct queue_shape shape = {0};
        struct queue_rig r;
        int result;
        shape.blocks = 8;
        shape.num_cqes = i ? 8 : 0;
        shape.first = FIRST;
        result = queue_rig_open(&r, 1, &shape);
        if (result == TEST_PASSED) {
            result = i == 0   ? look_at(&r, collapsed, (int)(sizeof(collapsed) / sizeof(collapsed[0])))
                     : i == 1 ? look_at(&r, ring, (int)(sizeof(ring) / sizeof(ring[0])))
                              : behind_a_slow_thread(&r);
        }
        queue_rig_close(&r);
        PASS(result);
    }
    return TEST_PASSED;
}

/* ---- Looking up, cutting, checking ---- */

/* Lists of no range to five, of 16 bytes each at 32, 64 and so on, and every address around them. */
static int looking_up(struct test *t)
{
    struct {
        struct net_ranges head;
        struct net_range ranges[5];
    } list;
    (void)t;
    memset(&list, 0, sizeof list);
    for (uint64_t num = 0; num <= 5; num++) {
        list.head.num = num;
        for (uint64_t addr = 0; addr < 256; addr++) {
            uint64_t at = addr / 32;
            int is_there = at >= 1 && at <= num && addr % 32 < 16;
            const struct net_range *r = queue_range_in(&list.head, addr);
            CHECK(r == (is_there ? &list.ranges[at - 1] : NULL), "%llu ranges, address %llu: range %lld",
                  (unsigned long long)num, (unsigned long long)addr,
                  r == NULL ? -1ll : (long long)(r - list.ranges));
        }
        CHECK(queue_range_in(&list.head, ~0ull) == NULL, "something at the last address of all");
        if (num < 5) {
            list.ranges[num].addr = 32 * (num + 1);
            list.ranges[num].bytes = 16;
        }
    }
    return TEST_PASSED;
}

/* 5 GiB, over two registrations at either end: no memory is there, and none is touched. */
static int cutting(struct test *t)
{
    const uint64_t gib = 1ull << 30, remote = 0x100000000000ull, local = 0x200000000000ull;
    const struct queue_rig_list there = {
        .head = {.num = 2},
        .ranges = {{remote, 3 * gib - 5, {1}, 0}, {remote + 3 * gib - 5, 9 * gib, {2}, 0}}};
    const struct queue_rig_list here = {
        .head = {.num = 2}, .ranges = {{local, gib / 2, {3}, 0}, {local + gib / 2, 9 * gib, {4}, 0}}};
    const uint64_t wanted[] = {gib / 2, gib, gib, gib / 2 - 5, gib, gib, 5};
    struct net_queue q = {.message_bytes = WQE_MAX_BYTES,
                          .local = (uint64_t)(uintptr_t)&here.head,
                          .remote = (uint64_t)(uintptr_t)&there.head};
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
    q.flags |= 32;
    REFUSES(terni_queue_check(&q), TERN_INVALID_ARGUMENT, "flags 0x21");
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
    q.record = NULL;
    REFUSES(terni_queue_check(&q), TERN_INVALID_ARGUMENT, "no way to tell");
    q.flags |= NET_QUEUE_NO_RECORD;
    OK(terni_queue_check(&q));
    q.flags |= NET_QUEUE_RELAY;
    q.relay = good->doorbell;
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
    test_run(&t, "completions one by one", completions);
    test_run(&t, "addresses looked up in lists of ranges", looking_up);
    test_run(&t, "requests cut into messages", cutting);
    test_run(&t, "what a queue may not be", what_providers_fill_in);
    return test_end(&t);
}
