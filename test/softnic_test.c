/* SPDX-License-Identifier: Apache-2.0
 *
 * The software NIC by itself: entries that no operation of a queue pair writes, laid into the ring by hand.
 * Inline data of all lengths that goes around the ring's end, results at odd addresses, copies of every
 * alignment, operations of no bytes, an immediate that nobody receives. */
#include "net/mlx5_cqe.h"
#include "queue_rig.h"

#include <string.h>

enum { BLOCKS = 16, QPN = 0x400 };

/* Posts everything before `next`. */
static int serve(struct queue_rig *r, uint64_t next)
{
    r->s->records[0].words[DOORBELL_RECORD_SEND] = doorbell_record((uint32_t)next);
    r->s->doorbells[0] = doorbell_value(QPN, (uint32_t)next);
    return queue_rig_serve(r, next);
}

static int completed(const struct queue_rig *r, uint32_t n, uint64_t idx, uint32_t opcode, uint32_t syndrome)
{
    const uint32_t *cqe = r->s->queues[0].cqes + n * CQE_WORDS;
    CHECK(cqe_is_written(cqe[CQE_WORD_TAIL], n, BLOCKS) && cqe_tail_idx(cqe[CQE_WORD_TAIL]) == (idx & 0xffff),
          "completion %u is of index 0x%04x", n, cqe_tail_idx(cqe[CQE_WORD_TAIL]));
    CHECK(cqe_syndrome(cqe[CQE_WORD_SYNDROME]) == syndrome &&
              cqe_is_error(cqe[CQE_WORD_TAIL]) == (syndrome != 0) &&
              cqe_wqe_opcode(cqe[CQE_WORD_QPN]) == opcode && cqe_qpn(cqe[CQE_WORD_QPN]) == QPN,
          "completion %u of opcode 0x%02x: opcode 0x%02x, syndrome 0x%02x, not 0x%02x", n, opcode,
          cqe_wqe_opcode(cqe[CQE_WORD_QPN]), cqe_syndrome(cqe[CQE_WORD_SYNDROME]), syndrome);
    return TEST_PASSED;
}

/* Of 1 to 28 bytes, and of a warp: 32 to 256 bytes in up to five blocks. */
static int inline_data(struct queue_rig *r, struct rng *rng)
{
    unsigned char wanted[256];
    uint32_t bytes = rng_below(rng, 2) ? rng_between(rng, 1, 28) : 32u << rng_below(rng, 4), blocks;
    uint64_t to = 1000 + rng_below(rng, 32);
    rng_bytes(rng, wanted, sizeof(wanted));
    if (bytes <= WQE_MAX_INLINE_BYTES) {
        struct wqe_inline_args a = {QPN, WQE_CE_ALWAYS, queue_rig_remote(to), wqe_key_of(r->rkeys[0]), bytes,
                                    {0}};
        memcpy(a.words, wanted, bytes);
        wqe_write_inline(&r->s->queues[0].ring, (uint32_t)r->shape.first, &a);
        blocks = 1;
    } else {
        struct wqe_inline_warp_args a = {QPN, WQE_CE_ALWAYS, queue_rig_remote(to), wqe_key_of(r->rkeys[0]),
                                         bytes / 32};
        for (uint32_t i = 0; i < 32; i++) {
            uint64_t value = 0;
            memcpy(&value, wanted + i * a.element_bytes, a.element_bytes);
            wqe_write_inline_lane(&r->s->queues[0].ring, (uint32_t)r->shape.first, &a, i, value);
        }
        blocks = wqe_blocks(wqe_inline_segments(bytes));
    }
    PASS(serve(r, r->shape.first + blocks));
    PASS(completed(r, 0, r->shape.first, WQE_RDMA_WRITE, SYNDROME_NONE));
    CHECK(memcmp(r->remote + to, wanted, bytes) == 0 && r->remote[to - 1] == 0 && r->remote[to + bytes] == 0,
          "%u bytes inline at index 0x%llx arrive wrong", bytes, (unsigned long long)r->shape.first);
    return TEST_PASSED;
}

/* A WRITE or READ between any two addresses. */
static int copies(struct queue_rig *r, struct rng *rng)
{
    uint32_t bytes = rng_between(rng, 1, rng_below(rng, 2) ? 40 : 3000), is_read = rng_below(rng, 2);
    uint64_t here = 64 + rng_below(rng, 33), there = 64 + rng_below(rng, 33);
    struct wqe_rdma_args a = {QPN,
                              WQE_CE_ALWAYS,
                              queue_rig_remote(there),
                              queue_rig_local(r, here),
                              wqe_key_of(r->rkeys[0]),
                              wqe_key_of(r->lkeys[0]),
                              bytes,
                              0};
    const char *to = is_read ? r->local + here : r->remote + there;
    const char *from = is_read ? r->remote + there : r->local + here;
    rng_bytes(rng, is_read ? r->remote + there : r->local + here, bytes);
    (is_read ? wqe_read : wqe_write)(&r->s->queues[0].ring, (uint32_t)r->shape.first, &a);
    PASS(serve(r, r->shape.first + 1));
    PASS(completed(r, 0, r->shape.first, is_read ? WQE_RDMA_READ : WQE_RDMA_WRITE, SYNDROME_NONE));
    CHECK(memcmp(to, from, bytes) == 0 && to[-1] == 0 && to[bytes] == 0, "%u bytes from %llu to %llu", bytes,
          (unsigned long long)(is_read ? there : here), (unsigned long long)(is_read ? here : there));
    return TEST_PASSED;
}

/* An old value that lands at an odd address; then nothing to write; then an immediate, which ends the
 * queue. */
static int odd_ends(struct queue_rig *r, struct rng *rng)
{
    const struct wqe_ring *ring = &r->s->queues[0].ring;
    uint32_t first = (uint32_t)r->shape.first;
    struct wqe_atomic_args amo = {QPN,
                                  WQE_CE_ALWAYS,
                                  queue_rig_remote(8),
                                  queue_rig_local(r, 5),
                                  wqe_key_of(r->rkeys[0]),
                                  wqe_key_of(r->lkeys[0]),
                                  wqe_amo_of(AMO_ADD, 8, 1, 0)};
    struct wqe_rdma_args nothing = {QPN, WQE_CE_ALWAYS, 0, 0, {0}, {0}, 0, 77};
    struct wqe_nop_args nop = {QPN, WQE_CE_ALWAYS};
    uint64_t old = rng_next(rng) - 1, seen;
    memcpy(r->remote + 8, &old, 8);
    wqe_atomic(ring, first, &amo);
    wqe_write(ring, first + 1, &nothing);
    wqe_nop(ring, first + 2, &nop);
    wqe_write_imm(ring, first + 3, &nothing);
    wqe_nop(ring, first + 4, &nop);
    PASS(serve(r, r->shape.first + 5));
    PASS(completed(r, 0, first, WQE_ATOMIC_FA, SYNDROME_NONE));
    PASS(completed(r, 1, first + 1, WQE_RDMA_WRITE, SYNDROME_NONE));
    PASS(completed(r, 2, first + 2, WQE_NOP, SYNDROME_NONE));
    PASS(completed(r, 3, first + 3, WQE_RDMA_WRITE_IMM, SYNDROME_RNR_RETRY));
    PASS(completed(r, 4, first + 4, WQE_NOP, SYNDROME_FLUSHED));
    memcpy(&seen, r->local + 5, 8);
    CHECK(seen == old && r->local[4] == 0 && r->local[13] == 0, "the old value is 0x%llx",
          (unsigned long long)seen);
    memcpy(&seen, r->remote + 8, 8);
    CHECK(seen == old + 1, "the word is 0x%llx", (unsigned long long)seen);
    return TEST_PASSED;
}

static int repeat(struct test *t, int count, int (*body)(struct queue_rig *r, struct rng *rng))
{
    int last = test_scaled(t, count);
    for (int seed = 1; seed <= last; seed++) {
        struct rng rng = {(uint64_t)seed};
        struct queue_shape shape = {0};
        struct queue_rig r;
        int result;
        shape.blocks = shape.num_cqes = BLOCKS;
        shape.first = 0x10000u - rng_between(&rng, 1, BLOCKS); /* near the end of the ring, and of 16 bits */
        shape.hold_one_in = rng_below(&rng, 2);
        result = queue_rig_open(&r, (uint64_t)seed, &shape);
        result = result ? result : body(&r, &rng);
        queue_rig_close(&r);
        if (result) {
            test_note(__FILE__, __LINE__, "seed %d", seed);
            return result;
        }
    }
    return TEST_PASSED;
}

static int test_inline(struct test *t) { return repeat(t, 100, inline_data); }
static int test_copies(struct test *t) { return repeat(t, 100, copies); }
static int test_odd_ends(struct test *t) { return repeat(t, 20, odd_ends); }

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "inline data around the end of the ring", test_inline);
    test_run(&t, "copies of every alignment", test_copies);
    test_run(&t, "odd results, no bytes, an immediate", test_odd_ends);
    return test_end(&t);
}
