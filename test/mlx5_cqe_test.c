/* SPDX-License-Identifier: Apache-2.0
 *
 * Completions, doorbells and what is said of errors: bytes by hand, fields back from bytes, whose an entry of
 * a completion ring is, and a sentence for every syndrome and refusal. */
#include "net/nic_refusal.h"
#include "support.h"

#include <stdio.h>
#include <string.h>

static struct cqe_args random_args(struct rng *r)
{
    struct cqe_args a;
    a.opcode = rng_below(r, 15);
    a.owner = rng_below(r, 2);
    a.idx = (uint32_t)rng_next(r);
    a.wqe_opcode = rng_below(r, 256);
    a.qpn = rng_below(r, 1u << 24);
    a.remote_qpn = rng_below(r, 1u << 24);
    a.user_index = rng_below(r, 1u << 24);
    a.imm = (uint32_t)rng_next(r);
    a.bytes = (uint32_t)rng_next(r);
    a.syndrome = rng_below(r, 256);
    a.vendor_syndrome = rng_below(r, 256);
    return a;
}

static int fields_come_back(struct test *t)
{
    struct rng r = {0xc9e};
    int rounds = test_scaled(t, 20000);
    for (int i = 0; i < rounds; i++) {
        struct cqe_args a = random_args(&r);
        uint32_t words[CQE_WORDS], tail;
        memset(words, 0xff, sizeof(words));
        cqe_fill(words, &a);
        CHECK(words[CQE_WORD_TAIL] == ~0u, "cqe_fill writes the tail, which is to come last");
        tail = cqe_tail(&a);
        CHECK(cqe_tail_idx(tail) == (a.idx & 0xffff) && cqe_tail_opcode(tail) == a.opcode &&
                  cqe_tail_owner(tail) == a.owner,
              "tail 0x%08x of index 0x%x, opcode %u, owner %u", tail, a.idx, a.opcode, a.owner);
        CHECK(cqe_is_error(tail) == (a.opcode == 13 || a.opcode == 14), "opcode %u", a.opcode);
        CHECK(cqe_syndrome(words[CQE_WORD_SYNDROME]) == a.syndrome &&
                  cqe_vendor_syndrome(words[CQE_WORD_SYNDROME]) == a.vendor_syndrome &&
                  cqe_qpn(words[CQE_WORD_QPN]) == a.qpn &&
                  cqe_wqe_opcode(words[CQE_WORD_QPN]) == a.wqe_opcode &&
                  from_be32(words[CQE_WORD_IMM]) == a.imm && from_be32(words[CQE_WORD_BYTES]) == a.bytes &&
                  from_be32(words[CQE_WORD_USER_INDEX]) == a.user_index &&
                  from_be32(words[CQE_WORD_REMOTE_QPN]) == a.remote_qpn,
              "round %d: a field does not come back", i);
    }
    test_detail(t, "%d entries", rounds);
    return TEST_PASSED;
}

static int has_the_bytes_written_here(struct test *t)
{
    static const unsigned char good[64] = {
        [24] = 0,    0x0a, 0x0b, 0x0c, /* remote QPN */
        [32] = 0,    0x00, 0x00, 0x05, /* user index */
        [36] = 0xca, 0xfe, 0xf0, 0x0d, /* immediate */
        [44] = 0x00, 0x01, 0x00, 0x00, /* bytes */
        [56] = 0x09, 0x12, 0x34, 0x56, /* opcode, QPN */
        [60] = 0xff, 0xfe, 0x00, 0x11, /* index, signature, opcode and owner */
    };
    static const unsigned char bad[64] = {
        [54] = 0x79, 0x13, 0x12, 0x00, 0x00, 0x01, 0x80, 0x00, 0x00, 0xd0,
    };
    struct cqe_args a = {
        CQE_RESPONDER_WRITE_IMM, 1, 0x7fffe, 0x09, 0x123456, 0x0a0b0c, 5, 0xcafef00d, 65536, 0, 0};
    struct cqe_args b = {CQE_REQUESTER_ERROR,    0,   0x8000, WQE_ATOMIC_FA, 1, 0, 0, 0, 0,
                         SYNDROME_REMOTE_ACCESS, 0x79};
    uint32_t words[CQE_WORDS];
    (void)t;
    cqe_fill(words, &a);
    words[CQE_WORD_TAIL] = cqe_tail(&a);
    CHECK(memcmp(words, good, 64) == 0, "a responder's completion differs");
    cqe_fill(words, &b);
    words[CQE_WORD_TAIL] = cqe_tail(&b);
    CHECK(memcmp(words, bad, 64) == 0, "an error differs");
    return TEST_PASSED;
}

/* A NIC goes round a ring of every size; software asks at each entry before and after it is written. */
static int ownership_goes_round(struct test *t)
{
    for (uint32_t num_cqes = 1; num_cqes <= 64; num_cqes *= 2) {
        uint32_t tails[64], first = 0u - 3 * num_cqes;
        for (uint32_t i = 0; i < num_cqes; i++) {
            tails[i] = ~0u;
        }
        /* Begins before 32 bits end, with a new queue; one that has gone round already is written over. */
        for (uint32_t k = 0; k < 8 * num_cqes; k++) {
            uint32_t n = first + k;
            struct cqe_args a = {CQE_REQUESTER, (n & num_cqes) != 0, k, 0, 0, 0, 0, 0, 0, 0, 0};
            CHECK(!cqe_is_written(tails[n % num_cqes], n, num_cqes), "entry %u of %u before its time", k,
                  num_cqes);
            tails[n % num_cqes] = cqe_tail(&a);
            CHECK(cqe_is_written(tails[n % num_cqes], n, num_cqes), "entry %u of %u is not seen", k,
                  num_cqes);
        }
    }
    test_detail(t, "rings of 1 to 64");
    return TEST_PASSED;
}

static int doorbells(struct test *t)
{
    static const unsigned char value_bytes[8] = {0x00, 0xff, 0xfe, 0x00, 0x12, 0x34, 0x56, 0x00};
    static const unsigned char record_bytes[4] = {0x00, 0x00, 0xff, 0xfe};
    uint64_t value = doorbell_value(0x123456, 0xabfffe), driver;
    uint32_t record = doorbell_record(0xabfffe);
    struct wqe_driver_head {
        uint32_t w[2];
    } head = {{0, 0}};
    (void)t;
    CHECK(memcmp(&value, value_bytes, 8) == 0, "doorbell 0x%016llx", (unsigned long long)value);
    CHECK(memcmp(&record, record_bytes, 4) == 0, "record 0x%08x", record);
    CHECK(doorbell_idx(value) == 0xfffe && doorbell_qpn(value) == 0x123456, "0x%x and 0x%x",
          doorbell_idx(value), doorbell_qpn(value));
    CHECK(doorbell_record_idx(record) == 0xfffe, "0x%x", doorbell_record_idx(record));
    /* A driver's: the head of a control segment, with opcode modifier, opcode and length. */
    head.w[0] = to_be32(0x09u << 24 | 0xfffe << 8 | 0x14);
    head.w[1] = to_be32(0x123456u << 8 | 5);
    memcpy(&driver, &head, 8);
    CHECK(doorbell_idx(driver) == 0xfffe && doorbell_qpn(driver) == 0x123456, "a driver's: 0x%x and 0x%x",
          doorbell_idx(driver), doorbell_qpn(driver));
    return TEST_PASSED;
}

static int says_what_is_wrong(struct test *t)
{
    static const int codes[] = {0x01, 0x02, 0x04, 0x05, 0x06, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x22};
    int known = 0;
    char texts[REFUSED_COUNT][REFUSAL_TEXT_BYTES];
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        CHECK(strcmp(terni_syndrome_text((uint32_t)codes[i]), "unknown syndrome") != 0, "0x%02x", codes[i]);
    }
    for (uint32_t code = 1; code < 256; code++) {
        known += strcmp(terni_syndrome_text(code), "unknown syndrome") != 0;
    }
    CHECK(known == 13, "%d syndromes have a text", known);
    for (uint32_t reason = 1; reason < REFUSED_COUNT; reason++) {
        struct nic_refusal refusal;
        char head[64];
        uint32_t syndrome = nic_refuse(&refusal, reason, ~0ull, ~0ull - 1);
        CHECK(syndrome != SYNDROME_NONE && strcmp(terni_syndrome_text(syndrome), "unknown syndrome") != 0,
              "reason %u has syndrome 0x%02x", reason, syndrome);
        terni_refusal_text(&refusal, texts[reason], REFUSAL_TEXT_BYTES);
        snprintf(head, sizeof(head), "syndrome 0x%02x, %s: ", syndrome, terni_syndrome_text(syndrome));
        CHECK(strncmp(texts[reason], head, strlen(head)) == 0 && strlen(texts[reason]) > strlen(head) + 10 &&
                  strlen(texts[reason]) < REFUSAL_TEXT_BYTES - 1,
              "\"%s\" of reason %u, with the longest numbers", texts[reason], reason);
        for (uint32_t other = 1; other < reason; other++) {
            CHECK(strcmp(texts[other], texts[reason]) != 0, "two reasons say \"%s\"", texts[reason]);
        }
    }
    test_detail(t, "%d syndromes, %d reasons", known, REFUSED_COUNT - 1);
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "completions have the bytes written here", has_the_bytes_written_here);
    test_run(&t, "every field of a completion comes back", fields_come_back);
    test_run(&t, "ownership goes round", ownership_goes_round);
    test_run(&t, "doorbells and records", doorbells);
    test_run(&t, "syndromes and refusals have their sentences", says_what_is_wrong);
    return test_end(&t);
}
