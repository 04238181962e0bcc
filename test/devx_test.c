/* SPDX-License-Identifier: Apache-2.0
 *
 * Mailboxes of DevX: the table of fields for itself (no overlaps, within bounds, what is set is read, and by
 * another reader), then each command against bytes that are written out here. */
#include "devx_read.h"
#include "net/devx_command.h"
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct row {
    const char *name;
    enum devx_field field;
};

struct structure {
    const char *name;
    uint32_t bits;
    const struct row *rows;
    int num_rows;
};

#define ROW(name, offset, bits) {#name, DEVX_##name},
#define ROWS(name, bits)        static const struct row name##_rows[] = {DEVX_##name##_FIELDS(ROW)};
DEVX_STRUCTURES(ROWS)
#define STRUCTURE(name, bits) {#name, bits, name##_rows, (int)(sizeof name##_rows / sizeof name##_rows[0])},
static const struct structure structures[] = {DEVX_STRUCTURES(STRUCTURE)};
enum { NUM_STRUCTURES = sizeof structures / sizeof structures[0] };

static int fields_lie_apart(struct test *t)
{
    int count = 0;
    for (int s = 0; s < NUM_STRUCTURES; s++) {
        unsigned char *owner = (unsigned char *)test_take(structures[s].bits, 1);
        for (int i = 0; i < structures[s].num_rows; i++) {
            const struct row *row = &structures[s].rows[i];
            struct devx_place p = devx_place(row->field);
            CHECK(p.bits > 0 && p.offset + p.bits <= structures[s].bits, "%s ends at bit 0x%x of 0x%x",
                  row->name, p.offset + p.bits, structures[s].bits);
            CHECK(p.bits == 64 ? p.offset % 32 == 0 : p.offset / 32 == (p.offset + p.bits - 1) / 32,
                  "%s crosses a word", row->name);
            for (uint32_t bit = p.offset; bit < (uint32_t)p.offset + p.bits; bit++) {
                CHECK(owner[bit] == 0, "%s: bit 0x%x is another field's as well", row->name, bit);
                owner[bit] = 1;
            }
            count++;
        }
        free(owner);
    }
    CHECK(count == DEVX_FIELD_COUNT, "%d fields of %d", count, DEVX_FIELD_COUNT);
    test_detail(t, "%d fields of %d structures", count, NUM_STRUCTURES);
    return TEST_PASSED;
}

/* Bits [first, first + bits) of an input that holds nothing else. */
static int is_free(const struct structure *s, uint32_t first, uint32_t bits)
{
    for (int i = 0; i < s->num_rows; i++) {
        struct devx_place p = devx_place(s->rows[i].field);
        if (p.offset < first + bits && first < (uint32_t)p.offset + p.bits) {
            return 0;
        }
    }
    return 1;
}

static const struct structure *structure_of(const char *name)
{
    for (int s = 0; s < NUM_STRUCTURES; s++) {
        if (strcmp(structures[s].name, name) == 0) {
            return &structures[s];
        }
    }
    return NULL;
}

/* A context lies where no field of the mailbox around it is, and the mailbox ends behind it. */
static int structures_nest(struct test *t)
{
    static const struct {
        const char *outer, *inner;
        uint32_t at, outer_words;
    } nests[] = {
        {"CREATE_CQ", "CQC", DEVX_CQC_AT, DEVX_CREATE_CQ_WORDS},
        {"CREATE_QP", "QPC", DEVX_QPC_AT, DEVX_QP_WORDS},
        {"QPC", "PATH", DEVX_PATH_AT, 0x740 / 32},
        {"OUT", "CAPS", DEVX_CAPS_AT, DEVX_CAPS_WORDS},
        {"OUT", "MORE", DEVX_CAPS_AT, DEVX_CAPS_WORDS},
        {"OUT", "ATOMIC", DEVX_CAPS_AT, DEVX_CAPS_WORDS},
        {"OUT", "ROCE", DEVX_CAPS_AT, DEVX_CAPS_WORDS},
        {"IN", "QPC", DEVX_QPC_AT, DEVX_QP_WORDS},
        {"IN", "CQC", DEVX_CQC_AT, DEVX_CREATE_CQ_WORDS},
    };
    (void)t;
    for (size_t i = 0; i < sizeof nests / sizeof nests[0]; i++) {
        const struct structure *outer = structure_of(nests[i].outer), *inner = structure_of(nests[i].inner);
        CHECK(is_free(outer, nests[i].at, inner->bits), "%s in %s", inner->name, outer->name);
        CHECK(nests[i].at + inner->bits <= nests[i].outer_words * 32, "%s goes past the end of %s",
              inner->name, outer->name);
    }
    return TEST_PASSED;
}

/* What is set is read back, by us and bit by bit, and nothing beside it moves. */
static int set_is_get(struct test *t)
{
    int rounds = test_scaled(t, 200);
    struct rng r = {0xdec};
    for (int round = 0; round < rounds; round++) {
        for (int f = 0; f < DEVX_FIELD_COUNT; f++) {
            struct devx_place p = devx_place((enum devx_field)f);
            uint32_t box[DEVX_CAPS_WORDS], before[DEVX_CAPS_WORDS], base = 32 * rng_below(&r, 4);
            uint64_t value = rng_next(&r) >> (64 - p.bits);
            rng_bytes(&r, box, sizeof box);
            memcpy(before, box, sizeof box);
            devx_set(box, base, (enum devx_field)f, value);
            CHECK(devx_get(box, base, (enum devx_field)f) == value, "field %d of round %d", f, round);
            CHECK(box_read(box, base + p.offset, p.bits) == value, "field %d of round %d, bit by bit", f,
                  round);
            box_write(box, base + p.offset, p.bits, box_read(before, base + p.offset, p.bits));
            CHECK(memcmp(box, before, sizeof box) == 0, "field %d of round %d moves others", f, round);
        }
    }
    test_detail(t, "%d fields, %d times", DEVX_FIELD_COUNT, rounds);
    return TEST_PASSED;
}

/* ---- Golden mailboxes: words that are not zero, as a hexadecimal dump shows them ---- */

struct word {
    unsigned at; /* byte */
    uint32_t value;
};

static int is_golden(const char *name, const uint32_t *in, unsigned words, const struct word *golden,
                     int count)
{
    int next = 0;
    for (unsigned w = 0; w < words; w++) {
        uint32_t value = (uint32_t)box_read(in, w * 32, 32), wanted = 0;
        if (next < count && golden[next].at == w * 4) {
            wanted = golden[next++].value;
        }
        CHECK(value == wanted, "%s: byte 0x%03x is %08x, wanted %08x", name, w * 4, value, wanted);
    }
    CHECK(next == count, "%s: %d words of %d", name, next, count);
    return TEST_PASSED;
}
#define GOLDEN(name, in, golden)                                                                             \
    PASS(is_golden(name, in, sizeof(in) / 4, golden, (int)(sizeof(golden) / sizeof(golden[0]))))

static int golden_heads(struct test *t)
{
    static const struct word device[] = {{0x00, 0x01000000}, {0x04, 0x00000001}};
    static const struct word atomic[] = {{0x00, 0x01000000}, {0x04, 0x00000007}};
    static const struct word roce[] = {{0x00, 0x01000000}, {0x04, 0x00000009}};
    static const struct word more[] = {{0x00, 0x01000000}, {0x04, 0x00000041}};
    static const struct word query[] = {{0x00, 0x050b0000}, {0x08, 0x00000001}};
    uint32_t in[DEVX_HEAD_WORDS];
    (void)t;
    terni_devx_query_caps(in, DEVX_QUERY_DEVICE);
    GOLDEN("QUERY_HCA_CAP of the device", in, device);
    terni_devx_query_caps(in, DEVX_QUERY_ATOMIC);
    GOLDEN("QUERY_HCA_CAP of atomics", in, atomic);
    terni_devx_query_caps(in, DEVX_QUERY_ROCE);
    GOLDEN("QUERY_HCA_CAP of RoCE", in, roce);
    terni_devx_query_caps(in, DEVX_QUERY_MORE);
    GOLDEN("QUERY_HCA_CAP of what is further", in, more);
    terni_devx_query_qp(in, 1);
    GOLDEN("QUERY_QP", in, query);
    return TEST_PASSED;
}

static int golden_create_cq(struct test *t)
{
    static const struct word golden[] = {
        {0x000, 0x04000000}, {0x010, 0x02120000}, /* record in a umem; cc, oi */
        {0x014, 0x00000012}, {0x01c, 0x0a000345}, /* its umem; 2^10 entries, register page */
        {0x024, 0x00000017},                      /* event queue */
        {0x04c, 0x00000048},                      /* record at */
        {0x050, 0x00000001}, {0x054, 0x23456000}, {0x058, 0x00000011}, /* ring: at, in umem */
        {0x05c, 0x80000000},
    };
    struct devx_cq cq = {{0x11, 0x123456000}, {0x12, 0x48}, 10, 0x345, 0x17, 1};
    uint32_t in[DEVX_CREATE_CQ_WORDS];
    (void)t;
    terni_devx_create_cq(in, &cq);
    /* cqc begins at byte 0x10: dbr_addr is its byte 0x38, so 0x48 and 0x4c; eqn its 0x14 + 3 bytes. */
    GOLDEN("CREATE_CQ", in, golden);
    return TEST_PASSED;
}

static int golden_create_qp(struct test *t)
{
    struct word golden[] = {
        {0x000, 0x05000000}, {0x018, 0x00001800},                      /* RC, migrated */
        {0x01c, 0x00000777},                                           /* protection domain */
        {0x020, 0x00005000},                                           /* 2^10 blocks */
        {0x024, 0x00000345}, {0x028, 0x00000029},                      /* register page, user index */
        {0x094, 0x000000c5},                                           /* completion queue */
        {0x0bc, 0x00000140},                                           /* record at */
        {0x0c4, 0x03000000},                                           /* no receive queue */
        {0x0e8, 0x10000000}, {0x0fc, 0x00000012},                      /* record in a umem: this one */
        {0x104, 0x00020000}, {0x108, 0x00000011}, {0x10c, 0x80000000}, /* ring: at, in umem */
    };
    struct devx_qp qp = {{0x11, 0x20000}, {0x12, 0x140}, 10, 0x777, 0xc5, 0x345, 0x29, 0, 0};
    uint32_t in[DEVX_QP_WORDS];
    (void)t;
    terni_devx_create_qp(in, &qp);
    GOLDEN("CREATE_QP", in, golden);
    qp.has_no_record = 1;
    golden[5].value |= 0x40000000; /* no record of what is sent */
    terni_devx_create_qp(in, &qp);
    GOLDEN("CREATE_QP without a record", in, golden);
    qp.timestamps = DEVX_TIMESTAMPS_DEFAULT;
    golden[3].value |= 0x40;
    terni_devx_create_qp(in, &qp);
    GOLDEN("CREATE_QP with the default timestamps", in, golden);
    return TEST_PASSED;
}

static void fill_link(struct devx_link *link, int is_roce, int has_grh)
{
    static const unsigned char gid[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 7, 9};
    static const unsigned char mac[6] = {0x02, 0x11, 0x22, 0x33, 0x44, 0x55};
    memset(link, 0, sizeof *link);
    link->qpn = 0x000101;
    link->remote_qpn = 0x00beef;
    link->mtu = 5;
    link->ack_timeout = 20;
    link->log_reads_in = 4;
    link->log_reads_out = 3;
    link->path.is_roce = is_roce;
    link->path.port = 2;
    link->path.pkey_index = 1;
    link->path.sl = 3;
    link->path.traffic_class = 0x6a;
    link->path.source_index = 5;
    link->path.hop_limit = 64;
    memcpy(link->path.rgid, gid, sizeof gid);
    link->path.rlid = 0x1234;
    link->path.has_grh = has_grh;
    link->path.flow_label = 0x54321;
    memcpy(link->path.rmac, mac, sizeof mac);
    link->path.udp_sport = 0xc3a5;
}

static int golden_states(struct test *t)
{
    static const struct word init[] = {
        {0x000, 0x05020000}, {0x008, 0x00000101}, {0x018, 0x00001800}, /* migrated */
        {0x030, 0x00000001}, {0x054, 0x00020000},                      /* P_Key, port */
        {0x0a8, 0x0003e000}, /* atomics of 64 bits; READ, WRITE and atomics from the peer */
    };
    static const struct word rts[] = {
        {0x000, 0x05040000},
        {0x008, 0x00000101},
        {0x038, 0xa0000000}, /* timeout 20 */
        {0x088, 0x0067e000}, /* 2^3 READs out, 7 tries, RNR tries without end */
    };
    struct devx_link link;
    uint32_t in[DEVX_QP_WORDS];
    (void)t;
    fill_link(&link, 1, 0);
    terni_devx_rst2init(in, &link);
    GOLDEN("RST2INIT", in, init);
    terni_devx_rtr2rts(in, &link);
    GOLDEN("RTR2RTS", in, rts);
    return TEST_PASSED;
}

static int golden_rtr(struct test *t)
{
    static const struct word roce[] = {
        {0x000, 0x05030000}, {0x008, 0x00000101}, {0x020, 0xbe000000}, /* MTU 4096, messages of 2^30 bytes */
        {0x02c, 0x0000beef}, {0x030, 0x00000001},                      /* remote, P_Key */
        {0x038, 0x00050040},                                           /* own GID, hops */
        {0x048, 0x0000ffff}, {0x04c, 0xc0a80709},                      /* the peer's GID */
        {0x050, 0x001ac3a5},                                           /* DSCP, UDP port */
        {0x054, 0x30020211}, {0x058, 0x22334455},                      /* priority, port, MAC */
        {0x0a8, 0x00800000}, {0x0ac, 0x0c000000},                      /* 2^4 READs in, RNR timer */
    };
    static const struct word subnet[] = {
        {0x000, 0x05030000}, {0x008, 0x00000101}, {0x020, 0xbe000000},
        {0x02c, 0x0000beef}, {0x030, 0x00000001}, {0x034, 0x00001234}, /* LID */
        {0x03c, 0x06a00000}, {0x054, 0x03020000},                      /* traffic class; SL, port */
        {0x0a8, 0x00800000}, {0x0ac, 0x0c000000},
    };
    static const struct word routed[] = {
        {0x000, 0x05030000}, {0x008, 0x00000101}, {0x020, 0xbe000000}, {0x02c, 0x0000beef},
        {0x030, 0x00000001}, {0x034, 0x00801234}, {0x038, 0x00050040}, /* GRH, LID; own GID, hops */
        {0x03c, 0x06a54321},                                           /* traffic class, flow label */
        {0x048, 0x0000ffff}, {0x04c, 0xc0a80709}, {0x054, 0x03020000}, {0x0a8, 0x00800000},
        {0x0ac, 0x0c000000},
    };
    struct devx_link link;
    uint32_t in[DEVX_QP_WORDS];
    (void)t;
    fill_link(&link, 1, 0);
    terni_devx_init2rtr(in, &link);
    GOLDEN("INIT2RTR, RoCE v2", in, roce);
    fill_link(&link, 0, 0);
    terni_devx_init2rtr(in, &link);
    GOLDEN("INIT2RTR, one subnet", in, subnet);
    fill_link(&link, 0, 1);
    terni_devx_init2rtr(in, &link);
    GOLDEN("INIT2RTR, through a router", in, routed);
    return TEST_PASSED;
}

static int state_is_read(struct test *t)
{
    uint32_t out[DEVX_QP_WORDS] = {0};
    struct devx_qp_state state;
    (void)t;
    box_write(out, 0xc0 + 0x000, 4, 6);
    box_write(out, 0xc0 + 0x5a0, 16, 0xfedc);
    box_write(out, 0xc0 + 0x5b0, 16, 0x1234);
    terni_devx_read_qp(out, &state);
    CHECK(state.state == DEVX_ERR && state.hw_counter == 0xfedc && state.sw_counter == 0x1234,
          "state %u, counters %x and %x", state.state, state.hw_counter, state.sw_counter);
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "fields lie apart and within bounds", fields_lie_apart);
    test_run(&t, "structures lie where their mailboxes have room", structures_nest);
    test_run(&t, "what is set is read, and nothing else moves", set_is_get);
    test_run(&t, "short commands are as written here", golden_heads);
    test_run(&t, "CREATE_CQ is as written here", golden_create_cq);
    test_run(&t, "CREATE_QP is as written here", golden_create_qp);
    test_run(&t, "RST2INIT and RTR2RTS are as written here", golden_states);
    test_run(&t, "INIT2RTR is as written here, on every kind of path", golden_rtr);
    test_run(&t, "the answer to QUERY_QP is read", state_is_read);
    return test_end(&t);
}
