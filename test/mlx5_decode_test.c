/* SPDX-License-Identifier: Apache-2.0
 *
 * The decoder of work queue entries: each field wrong in turn, with the syndrome and the reason that it must
 * have; every single bit of every form, which is payload or padding or makes a difference; entries that claim
 * more than is posted; inline data of every length. */
#include "wqe_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- One field ---- */

struct wrong {
    int form;
    int offset, bytes; /* of the field */
    uint64_t value;    /* big-endian there */
    uint32_t reason, syndrome;
};

static const struct wrong wrongs[] = {
    {FORM_WRITE, 0, 1, 0x08, REFUSED_OPMOD, 0x02},
    {FORM_NOP, 0, 1, 0x01, REFUSED_OPMOD, 0x02},
    {FORM_FA, 0, 1, 0x09, REFUSED_OPMOD, 0x02},
    {FORM_MASKED_FA_4, 0, 1, 0x00, REFUSED_OPMOD, 0x02},
    {FORM_MASKED_CS_8, 0, 1, 0x0a, REFUSED_OPMOD, 0x02},
    {FORM_WRITE, 3, 1, 0x0a, REFUSED_OPCODE, 0x02}, /* SEND */
    {FORM_WRITE, 3, 1, 0x0f, REFUSED_OPCODE, 0x02}, /* WAIT */
    {FORM_FA, 3, 1, 0x13, REFUSED_OPCODE, 0x02},
    {FORM_READ, 3, 1, 0x25, REFUSED_OPCODE, 0x02}, /* UMR */
    {FORM_NOP, 3, 1, 0xff, REFUSED_OPCODE, 0x02},
    {FORM_NOP, 7, 1, 0, REFUSED_DS, 0x02},
    {FORM_NOP, 7, 1, 3, REFUSED_DS, 0x02},
    {FORM_DUMP, 7, 1, 1, REFUSED_DS, 0x02},
    {FORM_DUMP, 7, 1, 3, REFUSED_DS, 0x02},
    {FORM_WRITE, 7, 1, 0, REFUSED_DS, 0x02},
    {FORM_NOP, 3, 1, 0x08, REFUSED_DS, 0x02}, /* a WRITE of one segment, with anything behind it */
    {FORM_READ, 7, 1, 1, REFUSED_DS, 0x02},
    {FORM_WRITE_IMM, 7, 1, 4, REFUSED_DS, 0x02},
    {FORM_FA, 7, 1, 3, REFUSED_DS, 0x02},
    {FORM_CS, 7, 1, 2, REFUSED_DS, 0x02},
    {FORM_MASKED_CS_4, 7, 1, 3, REFUSED_DS, 0x02},
    {FORM_MASKED_CS_8, 7, 1, 4, REFUSED_DS, 0x02},
    {FORM_MASKED_CS_8, 7, 1, 6, REFUSED_DS, 0x02},
    {FORM_INLINE_WARP, 7, 1, 3, REFUSED_DS, 0x02},
    {FORM_WRITE, 7, 1, 5, REFUSED_NOT_POSTED, 0x02},
    {FORM_NOP, 7, 1, 63, REFUSED_NOT_POSTED, 0x02},
    {FORM_WRITE, 7, 1, 0x43, REFUSED_RESERVED, 0x02},
    {FORM_WRITE, 7, 1, 0x83, REFUSED_RESERVED, 0x02},
    {FORM_WRITE, 8, 1, 0x01, REFUSED_RESERVED, 0x02},  /* signature */
    {FORM_WRITE, 9, 1, 0x01, REFUSED_RESERVED, 0x02},  /* stream */
    {FORM_WRITE, 10, 1, 0x80, REFUSED_RESERVED, 0x02}, /* stream */
    {FORM_WRITE, 11, 1, 0x10, REFUSED_RESERVED, 0x02},
    {FORM_WRITE, 11, 1, 0x01, REFUSED_RESERVED, 0x02},
    {FORM_WRITE, 11, 1, 0xa0, REFUSED_FENCE, 0x02},
    {FORM_FA, 11, 1, 0xe8, REFUSED_FENCE, 0x02},
    {FORM_WRITE, 12, 4, 1, REFUSED_RESERVED, 0x02}, /* an immediate that the operation has not */
    {FORM_READ, 12, 4, 0x80000000, REFUSED_RESERVED, 0x02},
    {FORM_NOP, 12, 4, 1, REFUSED_RESERVED, 0x02},
    {FORM_WRITE, 28, 4, 1, REFUSED_RESERVED, 0x02},
    {FORM_INLINE, 28, 4, 0x01000000, REFUSED_RESERVED, 0x02},
    {FORM_MASKED_FA_8, 28, 4, 1, REFUSED_RESERVED, 0x02},
    {FORM_FA, 40, 8, 1, REFUSED_RESERVED, 0x02}, /* the word that only CS compares with */
    {FORM_FA, 40, 8, 0x8000000000000000, REFUSED_RESERVED, 0x02},
    {FORM_MASKED_FA_4, 40, 8, 1, REFUSED_RESERVED, 0x02},
    {FORM_MASKED_FA_4, 40, 8, 0x8000000000000000, REFUSED_RESERVED, 0x02},
    {FORM_READ, 32, 4, 0x80000004, REFUSED_INLINE, 0x02},
    {FORM_WRITE_IMM, 32, 4, 0x80000004, REFUSED_INLINE, 0x02},
    {FORM_DUMP, 16, 4, 0x80000004, REFUSED_INLINE, 0x02},
    {FORM_FA, 48, 4, 0x80000008, REFUSED_INLINE, 0x02},
    {FORM_WRITE, 32, 4, 0x8000000d, REFUSED_DS, 0x02}, /* inline, one byte more than a segment holds */
    {FORM_INLINE_WARP, 32, 4, 0x80000001, REFUSED_DS, 0x02},
    {FORM_WRITE, 32, 4, 0, REFUSED_NO_BYTES, 0x01},
    {FORM_INLINE, 32, 4, 0x80000000, REFUSED_NO_BYTES, 0x01},
    {FORM_DUMP, 16, 4, 0, REFUSED_NO_BYTES, 0x01},
    {FORM_FA, 48, 4, 0, REFUSED_NO_BYTES, 0x01},
    {FORM_WRITE, 32, 4, 0x40000001, REFUSED_LONG, 0x01},
    {FORM_READ, 32, 4, 0x7fffffff, REFUSED_LONG, 0x01},
    {FORM_INLINE, 32, 4, 0xffffffff, REFUSED_LONG, 0x01},
    {FORM_DUMP, 16, 4, 0x40000001, REFUSED_LONG, 0x01},
    {FORM_CS, 48, 4, 4, REFUSED_OPERAND, 0x01},
    {FORM_MASKED_FA_4, 48, 4, 8, REFUSED_OPERAND, 0x01},
    {FORM_MASKED_CS_4, 48, 4, 5, REFUSED_OPERAND, 0x01},
    {FORM_MASKED_CS_8, 64, 4, 16, REFUSED_OPERAND, 0x01},
};

static int is_refused(const struct wqe_source *from, uint32_t reason, uint32_t syndrome, const char *name,
                      int number)
{
    struct nic_refusal r;
    struct wqe_op op;
    char text[REFUSAL_TEXT_BYTES], head[32];
    uint32_t seen = wqe_decode(from, &op, &r);
    CHECK(seen == syndrome && r.syndrome == syndrome && r.reason == reason,
          "%s, number %d: syndrome 0x%02x, reason %u, not 0x%02x and %u", name, number, seen, r.reason,
          syndrome, reason);
    snprintf(head, sizeof(head), "syndrome 0x%02x, ", syndrome);
    terni_refusal_text(&r, text, sizeof(text));
    CHECK(strncmp(text, head, strlen(head)) == 0 && strlen(text) < sizeof(text) - 1, "%s: \"%s\"", name,
          text);
    return TEST_PASSED;
}

static int wrong_field(const struct wrong *w, int number, struct rng *r)
{
    struct wqe_rig rig;
    struct wqe_source from;
    int result;
    wqe_rig_open(&rig, w->form, r);
    wqe_rig_post(&rig);
    for (int i = 0; i < w->bytes; i++) {
        *wqe_rig_byte(&rig, (size_t)(w->offset + i)) = (unsigned char)(w->value >> 8 * (w->bytes - 1 - i));
    }
    from = wqe_rig_source(&rig);
    result = is_refused(&from, w->reason, w->syndrome, wqe_form_name(w->form), number);
    wqe_rig_close(&rig);
    return result;
}

static int refuses_wrong_fields(struct test *t)
{
    int count = (int)(sizeof(wrongs) / sizeof(wrongs[0])), rounds = test_scaled(t, 100);
    struct rng r = {0x3e11};
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < count; i++) {
            PASS(wrong_field(&wrongs[i], i, &r));
        }
    }
    test_detail(t, "%d fields, %d times", count, rounds);
    return TEST_PASSED;
}

/* What the queue knows and the entry does not: whose it is, where it is and how much is there. */
static int refuses_wrong_places(struct test *t)
{
    struct rng r = {0x91ace};
    int rounds = test_scaled(t, 50);
    for (int i = 0; i < rounds * FORM_COUNT; i++) {
        int form = i % FORM_COUNT, result = TEST_PASSED;
        const char *name = wqe_form_name(form);
        struct wqe_rig rig;
        struct wqe_source right, from;
        wqe_rig_open(&rig, form, &r);
        wqe_rig_post(&rig);
        right = from = wqe_rig_source(&rig);
        from.qpn ^= 1u << rng_below(&r, 24);
        result |= is_refused(&from, REFUSED_QPN, 0x02, name, 0);
        from = right;
        from.idx += rig.num_blocks << rng_below(&r, 4); /* the same slots, another time round */
        result |= is_refused(&from, REFUSED_INDEX, 0x02, name, 1);
        from = right;
        from.posted--;
        result |= is_refused(&from, REFUSED_NOT_POSTED, 0x02, name, 2);
        from.posted = 0;
        result |= is_refused(&from, REFUSED_NOT_POSTED, 0x02, name, 3);
        /* Longer than the ring, whatever is said to be posted. */
        *wqe_rig_byte(&rig, 7) = (unsigned char)(rig.num_blocks < 16 ? 4 * rig.num_blocks + 1 : 0);
        from.posted = 65535;
        result |= is_refused(&from, rig.num_blocks < 16 ? REFUSED_NOT_POSTED : REFUSED_DS, 0x02, name, 4);
        /* What is not posted is not looked at. */
        *wqe_rig_byte(&rig, 3) = 0xff;
        from.posted = 0;
        result |= is_refused(&from, REFUSED_NOT_POSTED, 0x02, name, 5);
        wqe_rig_close(&rig);
        PASS(result);
    }
    test_detail(t, "%d entries", rounds * FORM_COUNT);
    return TEST_PASSED;
}

/* ---- Every bit ---- */

static int one_bit(struct wqe_rig *rig, int form, size_t bit)
{
    size_t byte = bit / 8, padding = wqe_padding(&rig->op);
    int payload = rig->op.is_inline && byte >= 36 && byte < padding;
    struct wqe_source from = wqe_rig_source(rig);
    struct nic_refusal refusal;
    struct wqe_op op;
    uint32_t syndrome;

    *wqe_rig_byte(rig, byte) ^= (unsigned char)(1u << bit % 8);
    syndrome = wqe_decode(&from, &op, &refusal);
    if (payload || byte >= padding) {
        CHECK(syndrome == SYNDROME_NONE && wqe_op_compare(&op, &rig->op) == 0,
              "%s: bit %zu of byte %zu is payload or padding, and counts", wqe_form_name(form), bit % 8,
              byte);
    } else {
        CHECK(syndrome != SYNDROME_NONE || wqe_op_compare(&op, &rig->op) != 0,
              "%s: bit %zu of byte %zu makes no difference", wqe_form_name(form), bit % 8, byte);
    }
    *wqe_rig_byte(rig, byte) ^= (unsigned char)(1u << bit % 8);
    return TEST_PASSED;
}

static int every_bit_counts(struct test *t)
{
    struct rng r = {0xb17};
    int rounds = test_scaled(t, 50), bits = 0;
    for (int i = 0; i < rounds * FORM_COUNT; i++) {
        struct wqe_rig rig;
        int result = TEST_PASSED;
        wqe_rig_open(&rig, i % FORM_COUNT, &r);
        wqe_rig_post(&rig);
        for (size_t bit = 0; bit < (size_t)rig.op.segments * 128 && result == TEST_PASSED; bit++, bits++) {
            result = one_bit(&rig, i % FORM_COUNT, bit);
        }
        wqe_rig_close(&rig);
        PASS(result);
    }
    test_detail(t, "%d bits", bits);
    return TEST_PASSED;
}

/* ---- Inline data of every length, and a NOP of two segments, which only drivers write ---- */

static int takes_what_drivers_write(struct test *t)
{
    enum { BLOCKS = 16, LONGEST = 61 * 16 - 4 };
    unsigned char *memory = (unsigned char *)aligned_alloc(64, BLOCKS * 64);
    unsigned char entry[WQE_MAX_ENTRY_BYTES], payload[LONGEST];
    int result = TEST_PASSED;
    for (uint32_t bytes = 0; bytes <= LONGEST && result == TEST_PASSED; bytes++) {
        uint32_t idx = 0xfff0 + bytes;
        struct wqe_op op = {0}, seen;
        struct wqe_source from = {wqe_ring_of(memory, BLOCKS), 7, idx, BLOCKS};
        struct nic_refusal r;
        size_t count;
        op.opcode = bytes != 0 ? WQE_RDMA_WRITE : WQE_NOP;
        op.is_inline = bytes != 0;
        op.bytes = bytes;
        op.segments = bytes != 0 ? 2 + (bytes + 4 + 15) / 16 : 2;
        op.blocks = (op.segments + 3) / 4;
        memset(payload, (int)bytes, sizeof(payload));
        count = wqe_assemble(&op, 7, idx, payload, entry);
        for (size_t i = 0; i < count; i++) {
            memory[(idx * 64 + i) % (BLOCKS * 64)] = entry[i];
        }
        if (wqe_decode(&from, &seen, &r) != SYNDROME_NONE || wqe_op_compare(&op, &seen) != 0) {
            test_note(__FILE__, __LINE__, "%u bytes inline: reason %u", bytes, r.reason);
            result = TEST_FAILED;
        }
    }
    free(memory);
    test_detail(t, "0 to %d bytes", LONGEST);
    return result;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "a wrong field is refused, with its syndrome", refuses_wrong_fields);
    test_run(&t, "an entry of another queue, time or length is refused", refuses_wrong_places);
    test_run(&t, "every bit is payload, or makes a difference", every_bit_counts);
    test_run(&t, "inline data of every length is taken", takes_what_drivers_write);
    return test_end(&t);
}
