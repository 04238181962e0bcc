/* SPDX-License-Identifier: Apache-2.0
 *
 * Builders of work queue entries: bytes written out here, and under random arguments the bytes of an
 * independent assembler, everywhere in rings of every size, with nothing else in the ring touched. Then what
 * the decoder makes of them: the same operation. */
#include "wqe_rig.h"

#include <string.h>

/* ---- Bytes by hand ---- */

enum { QPN = 0x123456, IDX = 0x3ffff, BLOCKS = 2 };

#define REMOTE  "1122334455667788 a1b2c3d4 00000000"
#define DATA(n) n " 0a0b0c0d 99aabbccddeeff00"

static int from_hex(const char *hex, unsigned char *bytes)
{
    int digits = 0;
    for (; *hex != 0; hex++) {
        unsigned nibble = (unsigned)(*hex <= '9' ? *hex - '0' : *hex - 'a' + 10);
        if (*hex == ' ') {
            continue;
        }
        bytes[digits / 2] = (unsigned char)(digits % 2 ? bytes[digits / 2] | nibble : nibble << 4);
        digits++;
    }
    return digits / 2;
}

/* The entry lies in block 1 of 2 and, if it is longer, continues in block 0. */
static int bytes_are(const struct vec16 *ring, const char *name, const char *hex)
{
    const unsigned char *memory = (const unsigned char *)ring;
    unsigned char wanted[128];
    int count = from_hex(hex, wanted);
    for (int i = 0; i < 128; i++) {
        unsigned seen = memory[(64 + i) % 128];
        unsigned want = i < count ? wanted[i] : RIG_FILL;
        CHECK(seen == want, "%s: byte %d is %02x, not %02x", name, i, seen, want);
    }
    return TEST_PASSED;
}

static struct wqe_amo amo_of(uint32_t amo, uint32_t bytes)
{
    return wqe_amo_of(amo, bytes, 0x0102030405060708, 0xf1f2f3f4f5f6f7f8);
}

static int writes_golden_bytes(struct test *t)
{
    static _Alignas(64) struct vec16 blocks[BLOCKS * WQE_BLOCK_SEGMENTS];
    static const struct {
        const char *name, *hex;
        uint32_t amo, bytes;
    } atomics[] = {
        {"inc 8",
         "00ffff12 12345604 00000008 00000000" REMOTE "0000000000000001 0000000000000000" DATA("00000008"),
         AMO_INC, 8},
        {"add 8",
         "00ffff12 12345604 00000008 00000000" REMOTE "0102030405060708 0000000000000000" DATA("00000008"),
         AMO_ADD, 8},
        {"fetch 8",
         "00ffff12 12345604 00000008 00000000" REMOTE "0000000000000000 0000000000000000" DATA("00000008"),
         AMO_FETCH, 8},
        {"xor 8",
         "09ffff15 12345604 00000008 00000000" REMOTE "0102030405060708 ffffffffffffffff" DATA("00000008"),
         AMO_XOR, 8},
        {"cas 8",
         "00ffff11 12345604 00000008 00000000" REMOTE "0102030405060708 f1f2f3f4f5f6f7f8" DATA("00000008"),
         AMO_CAS, 8},
        {"and 8",
         "09ffff14 12345605 00000008 00000000" REMOTE
         "0102030405060708 0000000000000000 fefdfcfbfaf9f8f7 0000000000000000" DATA("00000008"),
         AMO_AND, 8},
        {"or 8",
         "09ffff14 12345605 00000008 00000000" REMOTE
         "0102030405060708 0000000000000000 0102030405060708 0000000000000000" DATA("00000008"),
         AMO_OR, 8},
        {"set 8",
         "09ffff14 12345605 00000008 00000000" REMOTE
         "0102030405060708 0000000000000000 ffffffffffffffff 0000000000000000" DATA("00000008"),
         AMO_SET, 8},
        {"inc 4",
         "08ffff15 12345604 00000008 00000000" REMOTE "00000001 00000000 00000000 00000000" DATA("00000004"),
         AMO_INC, 4},
        {"add 4",
         "08ffff15 12345604 00000008 00000000" REMOTE "05060708 00000000 00000000 00000000" DATA("00000004"),
         AMO_ADD, 4},
        {"xor 4",
         "08ffff15 12345604 00000008 00000000" REMOTE "05060708 ffffffff 00000000 00000000" DATA("00000004"),
         AMO_XOR, 4},
        {"and 4",
         "08ffff14 12345604 00000008 00000000" REMOTE "05060708 00000000 faf9f8f7 00000000" DATA("00000004"),
         AMO_AND, 4},
        {"or 4",
         "08ffff14 12345604 00000008 00000000" REMOTE "05060708 00000000 05060708 00000000" DATA("00000004"),
         AMO_OR, 4},
        {"swap 4",
         "08ffff14 12345604 00000008 00000000" REMOTE "05060708 00000000 ffffffff 00000000" DATA("00000004"),
         AMO_SWAP, 4},
        {"cas 4",
         "08ffff14 12345604 00000008 00000000" REMOTE "05060708 f5f6f7f8 ffffffff ffffffff" DATA("00000004"),
         AMO_CAS, 4},
    };
    struct wqe_ring ring = wqe_ring_of(blocks, BLOCKS);
    for (size_t i = 0; i < sizeof(atomics) / sizeof(atomics[0]); i++) {
        struct wqe_atomic_args args = {QPN, WQE_CE_ALWAYS, 0x1122334455667788, 0x99aabbccddeeff00, {0}, {0},
                                       {0}};
        args.rkey = wqe_key_of(0xa1b2c3d4);
        args.lkey = wqe_key_of(0x0a0b0c0d);
        args.op = amo_of(atomics[i].amo, atomics[i].bytes);
        memset(blocks, RIG_FILL, sizeof(blocks));
        wqe_atomic(&ring, IDX, &args);
        PASS(bytes_are(blocks, atomics[i].name, atomics[i].hex));
    }
    test_detail(t, "%zu atomics", sizeof(atomics) / sizeof(atomics[0]));
    return TEST_PASSED;
}

static int writes_golden_moves(struct test *t)
{
    static _Alignas(64) struct vec16 blocks[BLOCKS * WQE_BLOCK_SEGMENTS];
    struct wqe_ring ring = wqe_ring_of(blocks, BLOCKS);
    struct wqe_nop_args nop = {QPN, WQE_CE_ALWAYS | WQE_FM_FENCE};
    struct wqe_dump_args dump = {QPN, WQE_FM_FENCE, {0}, 0x12345, 0x99aabbccddeeff00};
    struct wqe_rdma_args rdma = {QPN, WQE_SOLICITED, 0x1122334455667788, 0x99aabbccddeeff00, {0}, {0}, 65536};
    struct wqe_inline_args in = {QPN, WQE_CE_EVENT | WQE_FM_FENCE_SMALL, 0x1122334455667788, {0}, 5, {0}};
#define GOLDEN(call, hex)                                                                                    \
    memset(blocks, RIG_FILL, sizeof(blocks));                                                                \
    call;                                                                                                    \
    PASS(bytes_are(blocks, #call, hex))

    (void)t;
    in.rkey = rdma.rkey = wqe_key_of(0xa1b2c3d4);
    dump.lkey = rdma.lkey = wqe_key_of(0x0a0b0c0d);
    memcpy(in.words, "hello, remote world 1234", 24);
    GOLDEN(wqe_nop(&ring, IDX, &nop), "00ffff00 12345601 00000048 00000000");
    GOLDEN(wqe_dump(&ring, IDX, &dump), "00ffff23 12345602 00000040 00000000" DATA("00012345"));
    GOLDEN(wqe_rdma(&ring, IDX, &rdma, WQE_RDMA_WRITE, 0),
           "00ffff08 12345603 00000002 00000000" REMOTE DATA("00010000"));
    GOLDEN(wqe_rdma(&ring, IDX, &rdma, WQE_RDMA_WRITE_IMM, 0xcafef00d),
           "00ffff09 12345603 00000002 cafef00d" REMOTE DATA("00010000"));
    GOLDEN(wqe_rdma(&ring, IDX, &rdma, WQE_RDMA_READ, 0),
           "00ffff10 12345603 00000002 00000000" REMOTE DATA("00010000"));
    rdma.bytes = 0;
    GOLDEN(wqe_rdma(&ring, IDX, &rdma, WQE_RDMA_WRITE_IMM, 0xcafef00d),
           "00ffff09 12345602 00000002 cafef00d" REMOTE);
    GOLDEN(wqe_write_inline(&ring, IDX, &in),
           "00ffff08 12345603 0000008c 00000000" REMOTE "80000005 68656c6c 6f2c2072 656d6f74");
    in.bytes = 13;
    GOLDEN(wqe_write_inline(&ring, IDX, &in),
           "00ffff08 12345604 0000008c 00000000" REMOTE "8000000d 68656c6c 6f2c2072 656d6f74"
           "6520776f 726c6420 31323334 00000000");
#undef GOLDEN
    return TEST_PASSED;
}

/* ---- Bytes of the assembler, and back ---- */

static int agrees(struct wqe_rig *rig, int form, uint64_t seed)
{
    unsigned char wanted[RIG_MAX_BLOCKS * 64];
    struct wqe_source from = wqe_rig_source(rig);
    struct nic_refusal refusal;
    struct wqe_op seen;
    uint32_t syndrome;

    wqe_rig_post(rig);
    wqe_rig_expect(rig, wanted);
    for (uint32_t i = 0; i < rig->num_blocks * 64; i++) {
        CHECK(rig->memory[i] == wanted[i], "%s, seed %llu, index %08x, %u blocks: byte %u is %02x, not %02x",
              wqe_form_name(form), (unsigned long long)seed, rig->idx, rig->num_blocks, i, rig->memory[i],
              wanted[i]);
    }
    syndrome = wqe_decode(&from, &seen, &refusal);
    CHECK(syndrome == SYNDROME_NONE, "%s, seed %llu: refused, reason %u", wqe_form_name(form),
          (unsigned long long)seed, refusal.reason);
    CHECK(wqe_op_compare(&seen, &rig->op) == 0, "%s, seed %llu: decoded as something else",
          wqe_form_name(form), (unsigned long long)seed);
    for (uint32_t i = 0; seen.is_inline && i < seen.bytes; i++) {
        CHECK((unsigned char)*wqe_inline_payload(&from, i) == rig->payload[i],
              "%s, seed %llu: byte %u of the payload", wqe_form_name(form), (unsigned long long)seed, i);
    }
    return TEST_PASSED;
}

static int survives_round_trip(struct test *t)
{
    uint64_t first = t->has_seeds ? t->seeds[0] : 1;
    uint64_t last = t->has_seeds ? t->seeds[1] : (uint64_t)test_scaled(t, 4000);
    int wraps = 0, ends = 0;
    for (uint64_t seed = first; seed <= last; seed++) {
        struct rng r = {seed};
        for (int form = 0; form < FORM_COUNT; form++) {
            struct wqe_rig rig;
            int result;
            wqe_rig_open(&rig, form, &r);
            wraps += rig.idx % rig.num_blocks + rig.op.blocks > rig.num_blocks;
            ends += (rig.idx & 0xffff) + rig.op.blocks > 0x10000;
            result = agrees(&rig, form, seed);
            wqe_rig_close(&rig);
            PASS(result);
        }
    }
    if (!t->has_seeds) {
        CHECK(wraps > 0 && ends > 0, "%d entries wrapped, %d crossed 16 bits", wraps, ends);
    }
    test_detail(t, "%llu seeds, %d forms, %d entries wrap, %d cross the end of 16 bits",
                (unsigned long long)(last - first + 1), FORM_COUNT, wraps, ends);
    return TEST_PASSED;
}

/* ---- Atomics ---- */

static uint64_t plain_c(uint32_t amo, uint64_t old, uint64_t v, uint64_t compare)
{
    switch (amo) {
    case AMO_INC:
        return old + 1;
    case AMO_ADD:
        return old + v;
    case AMO_FETCH:
        return old;
    case AMO_XOR:
        return old ^ v;
    case AMO_AND:
        return old & v;
    case AMO_OR:
        return old | v;
    case AMO_CAS:
        return old == compare ? v : old;
    default:
        return v;
    }
}

/* A ripple of carries, bit by bit. */
static uint64_t slow_add(uint64_t old, uint64_t add, uint64_t boundary, int bits)
{
    uint64_t sum = 0, carry = 0;
    for (int i = 0; i < bits; i++) {
        uint64_t total = (old >> i & 1) + (add >> i & 1) + carry;
        sum |= (total & 1) << i;
        carry = boundary >> i & 1 ? 0 : total >> 1;
    }
    return sum;
}

static int atomics_mean_what_c_means(struct test *t)
{
    struct rng r = {0xa70};
    int rounds = test_scaled(t, 20000);
    for (int i = 0; i < rounds; i++) {
        uint32_t amo = (uint32_t)i % AMO_COUNT, bytes = i / AMO_COUNT % 2 ? 4 : 8;
        uint64_t all = bytes == 4 ? 0xffffffffu : ~0ull;
        uint64_t v = rng_next(&r), compare = rng_next(&r), old = rng_below(&r, 2) ? compare : rng_next(&r),
                 seen;
        struct wqe_amo a = wqe_amo_of(amo, bytes, v, compare), fields;
        old &= all;
        seen = wqe_amo_apply(&a, old);
        CHECK(seen == (plain_c(amo, old, v & all, compare & all) & all),
              "operation %u of %u bytes: 0x%llx becomes 0x%llx", amo, bytes, (unsigned long long)old,
              (unsigned long long)seen);
        memset(&fields, 0, sizeof(fields));
        fields.opcode = WQE_MASKED_FA;
        fields.bytes = bytes;
        fields.swap_add = v & all;
        fields.mask = rng_next(&r) & rng_next(&r) & all;
        CHECK(wqe_amo_apply(&fields, old) == slow_add(old, v & all, fields.mask, (int)bytes * 8),
              "fields of 0x%llx, boundary 0x%llx", (unsigned long long)old, (unsigned long long)fields.mask);
        fields.opcode = WQE_MASKED_CS;
        fields.compare = rng_below(&r, 2) ? old ^ (rng_next(&r) & rng_next(&r) & all) : old;
        fields.compare_mask = rng_next(&r) & rng_next(&r) & rng_next(&r) & all;
        seen = (old & fields.compare_mask) == (fields.compare & fields.compare_mask)
                   ? (old & ~fields.mask) | (v & fields.mask)
                   : old;
        CHECK(wqe_amo_apply(&fields, old) == seen, "masks on 0x%llx", (unsigned long long)old);
        CHECK(wqe_amo_result(bytes, wqe_amo_result(bytes, old)) == old, "result of 0x%llx",
              (unsigned long long)old);
    }
    CHECK(wqe_amo_result(4, 0x01020304) == 0x04030201 && wqe_amo_result(8, 0x01020304) == 0x01020304,
          "only results of four bytes are swapped");
    test_detail(t, "%d rounds", rounds);
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "atomics have the bytes written here", writes_golden_bytes);
    test_run(&t, "other operations have the bytes written here", writes_golden_moves);
    test_run(&t, "every form has the assembler's bytes and comes back", survives_round_trip);
    test_run(&t, "atomics do what the operation in C does", atomics_mean_what_c_means);
    return test_end(&t);
}
