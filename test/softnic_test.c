/* SPDX-License-Identifier: Apache-2.0
 *
 * The software NIC by itself: entries that no operation of a queue pair writes, laid into the ring by hand.
 * Inline data of all lengths that goes around the ring's end, results at odd addresses, copies of every
 * alignment, operations of no bytes, an immediate that nobody receives; and a ring full of operations on the
 * same bytes, which the NIC finds together. */
#include "net/mlx5_cqe.h"
#include "queue_rig.h"

#include <string.h>

enum { BLOCKS = 16, LONG_BLOCKS = 64, QPN = 0x400 };

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
    CHECK(cqe_is_written(cqe[CQE_WORD_TAIL], n, (uint32_t)r->shape.num_cqes) &&
              cqe_tail_idx(cqe[CQE_WORD_TAIL]) == (idx & 0xffff),
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
                              bytes};
    const char *to = is_read ? r->local + here : r->remote + there;
    const char *from = is_read ? r->remote + there : r->local + here;
    rng_bytes(rng, is_read ? r->remote + there : r->local + here, bytes);
    wqe_rdma(&r->s->queues[0].ring, (uint32_t)r->shape.first, &a, is_read ? WQE_RDMA_READ : WQE_RDMA_WRITE,
             0);
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
    struct wqe_rdma_args nothing = {QPN, WQE_CE_ALWAYS, 0, 0, {0}, {0}, 0};
    struct wqe_nop_args nop = {QPN, WQE_CE_ALWAYS};
    uint64_t old = rng_next(rng) - 1, seen;
    memcpy(r->remote + 8, &old, 8);
    wqe_atomic(ring, first, &amo);
    wqe_rdma(ring, first + 1, &nothing, WQE_RDMA_WRITE, 0);
    wqe_nop(ring, first + 2, &nop);
    wqe_rdma(ring, first + 3, &nothing, WQE_RDMA_WRITE_IMM, 77);
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

/* ---- Many at once ---- */

enum { NEAR = 1024, NEAR_BYTES = 600 }; /* where they all are, in both heaps */

/* One of any kind at index `idx`, between bytes that others touch too; also done to copies of the heaps. */
static void lay_any(struct queue_rig *r, struct rng *rng, uint32_t idx, char *local, char *remote)
{
    const struct wqe_ring *ring = &r->s->queues[0].ring;
    uint32_t bytes = rng_below(rng, 2) ? 8 : rng_between(rng, 1, 200), is_word = bytes == 8;
    uint64_t here = NEAR + rng_below(rng, NEAR_BYTES - bytes),
             there = NEAR + rng_below(rng, NEAR_BYTES - bytes);
    uint32_t kind = rng_below(rng, 4);
    here = is_word ? here / 8 * 8 : here;
    there = is_word || kind == 3 ? there / 8 * 8 : there;
    if (kind == 0 && is_word) {
        struct wqe_inline_args a = {QPN, WQE_CE_ALWAYS, queue_rig_remote(there), wqe_key_of(r->rkeys[0]), 8,
                                    {0}};
        memcpy(a.words, local + here, 8);
        memset(a.words, (int)idx, 4);
        memcpy(remote + there, a.words, 8);
        wqe_write_inline(ring, idx, &a);
    } else if (kind == 3) {
        struct wqe_atomic_args a = {QPN,
                                    WQE_CE_ALWAYS,
                                    queue_rig_remote(there),
                                    queue_rig_local(r, here),
                                    wqe_key_of(r->rkeys[0]),
                                    wqe_key_of(r->lkeys[0]),
                                    wqe_amo_of(AMO_ADD, 8, 77 + idx, 0)};
        uint64_t word;
        memcpy(&word, remote + there, 8);
        memcpy(local + here, &word, 8);
        word += 77 + idx;
        memcpy(remote + there, &word, 8);
        wqe_atomic(ring, idx, &a);
    } else {
        struct wqe_rdma_args a = {QPN,
                                  WQE_CE_ALWAYS,
                                  queue_rig_remote(there),
                                  queue_rig_local(r, here),
                                  wqe_key_of(r->rkeys[0]),
                                  wqe_key_of(r->lkeys[0]),
                                  bytes};
        if (kind == 1) {
            memcpy(local + here, remote + there, bytes);
            wqe_rdma(ring, idx, &a, WQE_RDMA_READ, 0);
        } else {
            memcpy(remote + there, local + here, bytes);
            wqe_rdma(ring, idx, &a, WQE_RDMA_WRITE, 0);
        }
    }
}

/* The ring is full when the NIC begins: whatever it does together, it is as if one came after the other. */
static int together(struct queue_rig *r, struct rng *rng)
{
    char local[NEAR + NEAR_BYTES], remote[NEAR + NEAR_BYTES];
    rng_bytes(rng, r->local + NEAR, NEAR_BYTES);
    rng_bytes(rng, r->remote + NEAR, NEAR_BYTES);
    memcpy(local, r->local, sizeof(local));
    memcpy(remote, r->remote, sizeof(remote));
    for (uint32_t i = 0; i < BLOCKS; i++) {
        lay_any(r, rng, (uint32_t)r->shape.first + i, local, remote);
    }
    PASS(serve(r, r->shape.first + BLOCKS));
    CHECK(memcmp(local, r->local, sizeof(local)) == 0, "what comes back is not as one after the other");
    CHECK(memcmp(remote, r->remote, sizeof(remote)) == 0, "what is there is not as one after the other");
    CHECK(r->s->qps[0].num_done == (r->shape.num_cqes != 0 ? BLOCKS : 1), "%llu completions",
          (unsigned long long)r->s->qps[0].num_done);
    return TEST_PASSED;
}

/* More than the NIC brings near at once, of entries of one and of five blocks: wherever a long one lies in
 * what it has brought, it goes on with what is posted and with nothing else. */
static int long_ones(struct queue_rig *r, struct rng *rng)
{
    const struct wqe_ring *ring = &r->s->queues[0].ring;
    const struct wqe_nop_args nop = {QPN, WQE_CE_ON_ERROR}, last = {QPN, WQE_CE_ALWAYS};
    const uint32_t first = (uint32_t)r->shape.first, most = LONG_BLOCKS - 6;
    uint64_t wanted[32] = {0};
    uint32_t i = 0, num = 0;
    while (i < most) {
        if (rng_below(rng, 3) == 0) {
            wqe_nop(ring, first + i++, &nop);
            continue;
        }
        struct wqe_inline_warp_args a = {QPN, WQE_CE_ON_ERROR, queue_rig_remote(1024),
                                         wqe_key_of(r->rkeys[0]), 8};
        num++;
        for (uint32_t lane = 0; lane < 32; lane++) {
            wanted[lane] = rng_next(rng);
            wqe_write_inline_lane(ring, first + i, &a, lane, wanted[lane]);
        }
        i += wqe_blocks(wqe_inline_segments(sizeof wanted));
    }
    wqe_nop(ring, first + i++, &last);
    PASS(serve(r, r->shape.first + i));
    PASS(completed(r, 0, r->shape.first + i - 1, WQE_NOP, SYNDROME_NONE));
    CHECK(num == 0 || memcmp(r->remote + 1024, wanted, sizeof wanted) == 0,
          "%u long entries: the last is not there", num);
    CHECK(r->s->qps[0].fetched == r->shape.first + i, "fetched up to 0x%llx, posted up to 0x%llx",
          (unsigned long long)r->s->qps[0].fetched, (unsigned long long)(r->shape.first + i));
    return TEST_PASSED;
}

/* ---- Runs ---- */

/* Of `together` the NIC's block has several warps, and half of the runs a collapsed queue. */
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
        shape.hold_one_in = body == together ? 0 : rng_below(&rng, 2);
        if (body == long_ones) {
            shape.blocks = shape.num_cqes = LONG_BLOCKS;
        }
        if (body == together) {
            shape.num_cqes = rng_below(&rng, 2) * BLOCKS;
            shape.nic_warps = 4;
        }
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
static int test_long_ones(struct test *t) { return repeat(t, 60, long_ones); }
static int test_together(struct test *t) { return repeat(t, 60, together); }

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "inline data around the end of the ring", test_inline);
    test_run(&t, "copies of every alignment", test_copies);
    test_run(&t, "odd results, no bytes, an immediate", test_odd_ends);
    test_run(&t, "entries of several blocks, more than come near at once", test_long_ones);
    test_run(&t, "a ring full of operations on the same bytes", test_together);
    return test_end(&t);
}
