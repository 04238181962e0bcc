/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory keys: what a lookup gives or why not, against a list that is searched naively while registrations
 * come and go at random; neighbours that must not join; edges of the address space; keys that outlive their
 * registration; arguments refused. */
#include "net/key_table.h"
#include "support.h"

#include <stdlib.h>
#include <string.h>

enum { CAPACITY = 13, MAX_STALE = 64 };

static struct key_entry entries[CAPACITY];

static struct key_registration simple(uint64_t addr, uint64_t bytes, uint32_t access)
{
    struct key_registration g = {addr, bytes, (void *)(uintptr_t)0x70000000, 1, access};
    return g;
}

static uint32_t look(const struct key_table *table, uint32_t use, uint32_t key, uint64_t addr, uint64_t bytes,
                     struct key_memory *memory, struct nic_refusal *r)
{
    struct key_request q = {use, key, 1, addr, bytes};
    return key_lookup(table, &q, memory, r);
}

/* ---- A naive second table ---- */

struct model {
    struct key_registration g[CAPACITY];
    uint32_t key[CAPACITY];
    int live;
    uint32_t stale[MAX_STALE]; /* keys removed lately */
    int num_stale;
};

static uint32_t model_right(uint32_t use)
{
    return use == KEY_USE_GATHER    ? 0
           : use == KEY_USE_SCATTER ? 1
           : use == KEY_USE_WRITE   ? 2
           : use == KEY_USE_READ    ? 4
                                    : 8;
}

/* The syndrome that a request must end with. */
static uint32_t model_syndrome(const struct model *m, const struct key_request *q, char **host)
{
    int local = q->use <= KEY_USE_SCATTER;
    *host = NULL;
    if (q->bytes == 0) {
        return 0;
    }
    for (int i = 0; i < m->live; i++) {
        const struct key_registration *g = &m->g[i];
        if (m->key[i] != q->key) {
            continue;
        }
        /* In 128 bits nothing wraps. */
        if (g->pd != q->pd || q->addr < g->addr ||
            (unsigned __int128)q->addr + q->bytes > (unsigned __int128)g->addr + g->bytes) {
            break;
        }
        if ((g->access & model_right(q->use)) != model_right(q->use)) {
            return local ? 0x11 : 0x13;
        }
        if (q->use == KEY_USE_ATOMIC && q->addr % q->bytes != 0) {
            return 0x12;
        }
        *host = (char *)g->host + (q->addr - g->addr);
        return 0;
    }
    return local ? 0x04 : 0x13;
}

static struct key_registration draw_registration(struct rng *r)
{
    struct key_registration g;
    g.addr = rng_one_in(r, 8) ? 0ull - rng_between(r, 1, 4096) : rng_below(r, 64) * 64ull + 0x1000;
    g.bytes = rng_between(r, 1, 512);
    if (g.bytes - 1 > UINT64_MAX - g.addr) {
        g.bytes = UINT64_MAX - g.addr + 1;
    }
    g.host = (void *)(uintptr_t)(0x10000u + rng_below(r, 1u << 20));
    g.pd = rng_between(r, 1, 2);
    g.access = rng_below(r, 16) | (rng_below(r, 2) ? KEY_RELAXED_ORDERING : 0);
    if (g.access & (KEY_REMOTE_WRITE | KEY_REMOTE_ATOMIC)) {
        g.access |= KEY_LOCAL_WRITE;
    }
    return g;
}

static struct key_request draw_request(struct rng *r, const struct model *m)
{
    struct key_request q;
    q.use = rng_below(r, 5);
    q.pd = rng_between(r, 1, 2);
    q.bytes = q.use == KEY_USE_ATOMIC ? rng_between(r, 1, 2) * 4 : rng_below(r, 600);
    q.addr = rng_below(r, 8192);
    q.key = (uint32_t)rng_next(r) >> rng_below(r, 32);
    if (m->live != 0 && !rng_one_in(r, 8)) { /* around the edges of one that is there */
        uint32_t i = rng_below(r, (uint32_t)m->live);
        const struct key_registration *g = &m->g[i];
        q.key = m->key[i];
        q.pd = rng_one_in(r, 8) ? q.pd : g->pd;
        q.addr = g->addr + (rng_below(r, 2) ? rng_below(r, 20) - 4ull : g->bytes - rng_below(r, 20));
        q.bytes = rng_one_in(r, 3) ? g->addr + g->bytes - q.addr : q.bytes;
        q.bytes = rng_one_in(r, 50) ? 0ull - rng_below(r, 1000) : q.bytes; /* past the end of addresses */
        if (q.use == KEY_USE_ATOMIC) {
            q.bytes = rng_between(r, 1, 2) * 4;
        }
    } else if (m->num_stale != 0 && rng_below(r, 2)) {
        q.key = m->stale[rng_below(r, (uint32_t)m->num_stale)];
    }
    return q;
}

/* One registration more or less. */
static int change(struct key_table *table, struct model *m, struct rng *r)
{
    if (rng_below(r, 2)) {
        struct key_registration g = draw_registration(r);
        uint32_t key = 0;
        if (m->live == CAPACITY) {
            REFUSES(terni_key_table_add(table, &g, &key), TERN_NO_SPACE, "all 13 memory keys");
            return TEST_PASSED;
        }
        OK(terni_key_table_add(table, &g, &key));
        CHECK(key >= 0x200, "key 0x%x", key);
        for (int i = 0; i < m->live; i++) {
            CHECK(m->key[i] != key, "key 0x%x twice", key);
        }
        m->key[m->live] = key;
        m->g[m->live++] = g;
    } else if (m->live != 0) {
        int i = (int)rng_below(r, (uint32_t)m->live);
        OK(terni_key_table_remove(table, m->key[i]));
        REFUSES(terni_key_table_remove(table, m->key[i]), TERN_INVALID_ARGUMENT, "no memory key");
        m->stale[m->num_stale < MAX_STALE ? m->num_stale++ : (int)rng_below(r, MAX_STALE)] = m->key[i];
        m->key[i] = m->key[--m->live];
        m->g[i] = m->g[m->live];
    }
    CHECK(table->num_live == (uint32_t)m->live, "%u live, not %d", table->num_live, m->live);
    return TEST_PASSED;
}

static int agrees_with_a_list(struct test *t)
{
    struct rng r = {0x6e75};
    struct model m;
    struct key_table table;
    int rounds = test_scaled(t, 200000), counts[256] = {0};
    memset(&m, 0, sizeof(m));
    test_quiet();
    OK(terni_key_table_init(&table, entries, CAPACITY));
    for (int i = 0; i < rounds; i++) {
        struct key_request q;
        struct key_memory memory;
        struct nic_refusal refusal;
        uint32_t wanted, seen;
        char *host;
        if (i % 16 == 0) {
            PASS(change(&table, &m, &r));
        }
        q = draw_request(&r, &m);
        wanted = model_syndrome(&m, &q, &host);
        seen = key_lookup(&table, &q, &memory, &refusal);
        counts[wanted]++;
        CHECK(seen == wanted && memory.host == host,
              "round %d: use %u of key 0x%x, %llu bytes at 0x%llx: syndrome 0x%02x, not 0x%02x", i, q.use,
              q.key, (unsigned long long)q.bytes, (unsigned long long)q.addr, seen, wanted);
        CHECK(seen == SYNDROME_NONE || refusal.syndrome == seen, "round %d: the refusal says 0x%02x", i,
              refusal.syndrome);
    }
    CHECK(counts[0] && counts[0x04] && counts[0x11] && counts[0x12] && counts[0x13], "a syndrome never came");
    test_detail(t, "%d lookups: %d granted, %d, %d, %d, %d refused with 04, 11, 12, 13", rounds, counts[0],
                counts[0x04], counts[0x11], counts[0x12], counts[0x13]);
    return TEST_PASSED;
}

/* ---- By hand ---- */

/* Two registrations side by side: each byte belongs to one, and nothing may lie in both. */
static int neighbours_do_not_join(struct test *t)
{
    struct key_table table;
    struct key_registration low = simple(0x1000, 0x100, 7), high = simple(0x1100, 0x100, 7);
    struct key_memory memory;
    struct nic_refusal r;
    uint32_t keys[2];
    (void)t;
    OK(terni_key_table_init(&table, entries, CAPACITY));
    OK(terni_key_table_add(&table, &low, &keys[0]));
    OK(terni_key_table_add(&table, &high, &keys[1]));
    CHECK(look(&table, KEY_USE_WRITE, keys[0], 0x10ff, 1, &memory, &r) == 0, "last byte");
    CHECK((uintptr_t)memory.host == 0x700000ff, "is at %p", (void *)memory.host);
    CHECK(look(&table, KEY_USE_WRITE, keys[0], 0x10ff, 2, &memory, &r) == 0x13 &&
              r.reason == REFUSED_REMOTE_BEYOND && r.wanted == 1,
          "one byte too far: reason %u, by %llu", r.reason, (unsigned long long)r.wanted);
    CHECK(look(&table, KEY_USE_GATHER, keys[0], 0x1100, 1, &memory, &r) == 0x04 &&
              r.reason == REFUSED_LOCAL_BEYOND,
          "the neighbour's first byte: reason %u", r.reason);
    CHECK(look(&table, KEY_USE_READ, keys[1], 0x10ff, 1, &memory, &r) == 0x13 &&
              r.reason == REFUSED_REMOTE_BEFORE,
          "the neighbour's last byte: reason %u", r.reason);
    CHECK(memory.host == NULL, "a refusal gives memory");
    CHECK(look(&table, KEY_USE_READ, keys[1], 0x1100, 0x100, &memory, &r) == 0, "all of the second");
    CHECK(look(&table, KEY_USE_WRITE, 0xdead, 5, 0, &memory, &r) == 0 && memory.host == NULL,
          "the key of nothing is looked at");
    return TEST_PASSED;
}

static int rights_are_separate(struct test *t)
{
    static const struct {
        uint32_t access, granted; /* a bit a use */
    } rights[] = {
        {0, 1 << KEY_USE_GATHER},
        {KEY_LOCAL_WRITE, 1 << KEY_USE_GATHER | 1 << KEY_USE_SCATTER},
        {KEY_REMOTE_READ, 1 << KEY_USE_GATHER | 1 << KEY_USE_READ},
        {KEY_LOCAL_WRITE | KEY_REMOTE_WRITE, 1 << KEY_USE_GATHER | 1 << KEY_USE_SCATTER | 1 << KEY_USE_WRITE},
        {KEY_LOCAL_WRITE | KEY_REMOTE_ATOMIC | KEY_RELAXED_ORDERING,
         1 << KEY_USE_GATHER | 1 << KEY_USE_SCATTER | 1 << KEY_USE_ATOMIC},
    };
    static const uint32_t refused[] = {0x04, 0x11, 0x13, 0x13, 0x13};
    struct key_table table;
    (void)t;
    OK(terni_key_table_init(&table, entries, CAPACITY));
    for (size_t i = 0; i < sizeof(rights) / sizeof(rights[0]); i++) {
        struct key_registration g = simple(0x1000, 64, rights[i].access);
        uint32_t key;
        OK(terni_key_table_add(&table, &g, &key));
        for (uint32_t use = KEY_USE_GATHER; use <= KEY_USE_ATOMIC; use++) {
            struct key_memory memory;
            struct nic_refusal r;
            uint32_t wanted = rights[i].granted >> use & 1 ? 0 : refused[use];
            CHECK(look(&table, use, key, 0x1008, 8, &memory, &r) == wanted, "access 0x%x, use %u: reason %u",
                  rights[i].access, use, r.reason);
            CHECK(wanted != 0 || memory.relaxed == (rights[i].access >= KEY_RELAXED_ORDERING),
                  "access 0x%x: relaxed is %u", rights[i].access, memory.relaxed);
            CHECK(look(&table, use, key, 0x1004, 8, &memory, &r) ==
                      (wanted == 0 && use == KEY_USE_ATOMIC ? 0x12 : wanted),
                  "use %u, 8 bytes at a multiple of 4: reason %u", use, r.reason);
        }
    }
    return TEST_PASSED;
}

/* A place is given out 256 times before a key of it comes again, and others are given out in between. */
static int old_keys_stay_dead(struct test *t)
{
    enum { PLACES = 3, TIMES = 256 * PLACES };
    static uint32_t keys[TIMES];
    struct key_table table;
    struct key_registration g = simple(0x1000, 64, KEY_LOCAL_WRITE);
    uint32_t again;
    OK(terni_key_table_init(&table, entries, PLACES));
    for (int i = 0; i < TIMES; i++) {
        struct key_memory memory;
        struct nic_refusal r;
        OK(terni_key_table_add(&table, &g, &keys[i]));
        for (int k = 0; k < i; k++) {
            CHECK(keys[k] != keys[i], "key 0x%x after %d registrations", keys[i], i - k);
            CHECK(look(&table, KEY_USE_GATHER, keys[k], 0x1000, 1, &memory, &r) == 0x04, "0x%x lives",
                  keys[k]);
        }
        OK(terni_key_table_remove(&table, keys[i]));
        again = (keys[i] & ~0xffu) | ((keys[i] + 1) & 0xffu); /* the place's next key, which nobody has yet */
        CHECK(look(&table, KEY_USE_GATHER, again, 0x1000, 1, &memory, &r) == 0x04 && r.reason == REFUSED_LKEY,
              "0x%x lives before its time: reason %u", again, r.reason);
    }
    OK(terni_key_table_add(&table, &g, &again));
    CHECK(again == keys[0], "key 0x%x comes after all others", again);
    test_detail(t, "%d registrations of %d places", TIMES, PLACES);
    return TEST_PASSED;
}

/* From no place at all, several times as large: keys stay what they are, also one that was given back. */
static int extends(struct test *t)
{
    enum { TIMES = 200 };
    struct key_table table;
    uint32_t keys[TIMES], most = 0;
    (void)t;
    memset(&table, 0, sizeof table);
    for (int i = 0; i < TIMES; i++) {
        struct key_registration g = simple(0x1000 + 64 * (uint64_t)i, 64, KEY_LOCAL_WRITE);
        OK(terni_key_table_extend(&table));
        CHECK(table.capacity >= most, "%u places, and %u before", table.capacity, most);
        most = table.capacity;
        OK(terni_key_table_add(&table, &g, &keys[i]));
        if (i == 20) {
            OK(terni_key_table_remove(&table, keys[3]));
            OK(terni_key_table_extend(&table));
            CHECK(table.capacity == most, "a table with room has become larger");
        }
    }
    for (int i = 0; i < TIMES; i++) {
        struct key_memory memory;
        struct nic_refusal r;
        uint32_t syndrome = look(&table, KEY_USE_GATHER, keys[i], 0x1000 + 64 * (uint64_t)i, 64, &memory, &r);
        CHECK(syndrome == (i == 3 ? 0x04u : 0), "key 0x%x: syndrome 0x%02x", keys[i], syndrome);
    }
    free(table.entries);
    return TEST_PASSED;
}

static int refuses_arguments(struct test *t)
{
    struct key_table table;
    struct key_registration g = simple(0x1000, 0, KEY_LOCAL_WRITE);
    uint32_t key = 77;
    (void)t;
    test_quiet();
    REFUSES(terni_key_table_init(&table, entries, 0), TERN_INVALID_ARGUMENT, "table of 0");
    REFUSES(terni_key_table_init(&table, entries, 1u << 24), TERN_INVALID_ARGUMENT, "16777216");
    OK(terni_key_table_init(&table, entries, 1));
    REFUSES(terni_key_table_add(&table, &g, &key), TERN_INVALID_ARGUMENT, "no bytes at 0x1000");
    g = simple(UINT64_MAX - 9, 11, KEY_LOCAL_WRITE);
    REFUSES(terni_key_table_add(&table, &g, &key), TERN_INVALID_ARGUMENT, "end of addresses");
    g = simple(0x1000, 64, KEY_REMOTE_WRITE);
    REFUSES(terni_key_table_add(&table, &g, &key), TERN_INVALID_ARGUMENT, "access 0x2 lets peers");
    g = simple(0x1000, 64, KEY_REMOTE_ATOMIC | KEY_REMOTE_READ);
    REFUSES(terni_key_table_add(&table, &g, &key), TERN_INVALID_ARGUMENT, "access 0xc lets peers");
    g = simple(0x1000, 64, 1u << 4);
    REFUSES(terni_key_table_add(&table, &g, &key), TERN_INVALID_ARGUMENT, "access 0x10");
    g = simple(0x1000, 64, 0);
    g.pd = 1u << 24;
    REFUSES(terni_key_table_add(&table, &g, &key), TERN_INVALID_ARGUMENT, "domain 16777216");
    CHECK(key == 77 && table.num_live == 0, "a refused registration left key %u", key);
    g = simple(UINT64_MAX - 9, 10, 0); /* the last bytes there are */
    OK(terni_key_table_add(&table, &g, &key));
    REFUSES(terni_key_table_add(&table, &g, &key), TERN_NO_SPACE, "all 1 memory keys");
    for (uint32_t none = 0; none < 0x300; none++) {
        if (none != key) {
            EXPECT(terni_key_table_remove(&table, none), TERN_INVALID_ARGUMENT);
        }
    }
    EXPECT(terni_key_table_remove(&table, ~0u), TERN_INVALID_ARGUMENT);
    OK(terni_key_table_remove(&table, key));
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "lookups agree with a list while registrations come and go", agrees_with_a_list);
    test_run(&t, "neighbouring registrations do not join", neighbours_do_not_join);
    test_run(&t, "rights are separate, and atomics aligned", rights_are_separate);
    test_run(&t, "keys that were removed stay dead", old_keys_stay_dead);
    test_run(&t, "tables that grow", extends);
    test_run(&t, "impossible registrations are refused", refuses_arguments);
    return test_end(&t);
}
