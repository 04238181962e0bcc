/* SPDX-License-Identifier: Apache-2.0
 *
 * A round: every rank allocates and frees, then all grow or are refused, then all look at each other. */
#include "heap_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { first_bytes = 65536, most_bytes = 1 << 20, page_bytes = 4096 };

static int is_local(const struct heap_model *m, int r) { return m->self < 0 || m->self == r; }

/* For as many ranks as are local. */
static int exchange(struct heap_model *m, const uint64_t *mine, uint64_t *all)
{
    if (m->self < 0) {
        memcpy(all, mine, (size_t)m->num_ranks * sizeof *all);
        return 0;
    }
    OK(tern_comm_allgather(m->ranks[m->self].comm, &mine[m->self], all, sizeof *all));
    return 0;
}

static int meet(struct heap_model *m)
{
    if (m->self >= 0) {
        OK(tern_comm_barrier(m->ranks[m->self].comm));
    }
    return 0;
}

static int open_comms(struct heap_model *m, const struct tern_id *id)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comms[max_ranks];
    config.heap_bytes = first_bytes;
    config.heap_max_bytes = most_bytes;
    if (m->self >= 0) {
        OK(tern_comm_open(id, m->self, m->num_ranks, &config, &m->ranks[m->self].comm));
        return 0;
    }
    OK(tern_comm_open_all(m->num_ranks, &config, comms));
    for (int r = 0; r < m->num_ranks; r++) {
        m->ranks[r].comm = comms[r];
    }
    return 0;
}

static int start_rank(struct heap_model *m, int r, uint64_t seed)
{
    struct model_rank *k = &m->ranks[r];
    void *memory, *pointer;
    k->rng.state = seed * 1000 + (uint64_t)r;
    OK(tern_alloc(k->comm, TERN_MEMORY_WINDOW, max_ranks * sizeof *k->mailbox, &memory));
    memset(memory, 0, max_ranks * sizeof *k->mailbox);
    k->mailbox = (uint64_t *)memory;
    for (int q = 0; q < m->num_ranks; q++) {
        OK(tern_peer_pointer(k->comm, &k->mailbox[r], q, &pointer));
        k->at_peer[q] = (uint64_t *)pointer;
        k->bases[q] = k->comm->heap->bases[q];
        CHECK(q != r || k->at_peer[q] == &k->mailbox[r], "a rank's own place is elsewhere");
    }
    return 0;
}

int heap_model_open(struct heap_model *m, int num_ranks, int self, const struct tern_id *id, uint64_t seed)
{
    memset(m, 0, sizeof *m);
    m->num_ranks = num_ranks;
    m->self = self;
    m->rng.state = seed;
    m->bytes = first_bytes;
    PASS(open_comms(m, id));
    for (int r = 0; r < num_ranks; r++) {
        if (is_local(m, r)) {
            PASS(start_rank(m, r, seed));
        }
    }
    return meet(m);
}

static uint64_t rounded(uint64_t bytes) { return bytes == 0 ? 256 : (bytes + 255) / 256 * 256; }

static uint64_t taken(const struct model_rank *k)
{
    uint64_t bytes = rounded(max_ranks * sizeof *k->mailbox);
    for (int i = 0; i < k->num_blocks; i++) {
        bytes += rounded(k->blocks[i].bytes);
    }
    return bytes;
}

static int check_block(const struct model_block *b)
{
    for (size_t i = 0; i < b->bytes; i++) {
        CHECK(b->memory[i] == b->tag, "byte %zu of %zu is %02x, not %02x", i, b->bytes, b->memory[i], b->tag);
    }
    return 0;
}

static int free_one(struct model_rank *k, int i)
{
    PASS(check_block(&k->blocks[i]));
    tern_free(k->comm, k->blocks[i].memory);
    k->blocks[i] = k->blocks[--k->num_blocks];
    return 0;
}

static int take_one(struct heap_model *m, struct model_rank *k)
{
    uint32_t most = rng_one_in(&k->rng, 4) ? (uint32_t)m->bytes : 20000;
    struct model_block *b = &k->blocks[k->num_blocks];
    enum tern_status status;
    void *memory;
    b->bytes = rng_below(&k->rng, most);
    b->tag = (unsigned char)rng_next(&k->rng);
    status = tern_alloc(k->comm, TERN_MEMORY_WINDOW, b->bytes, &memory);
    if (status == TERN_OUT_OF_MEMORY) {
        char text[64];
        snprintf(text, sizeof text, "%llu are free", (unsigned long long)(m->bytes - taken(k)));
        CHECK(strstr(tern_last_error(), text) != NULL, "\"%s\" does not say \"%s\"", tern_last_error(), text);
        CHECK(strstr(tern_last_error(),
                     m->bytes < most_bytes ? "tern_heap_grow can add" : "heap_max_bytes what") != NULL,
              "\"%s\"", tern_last_error());
        return 0;
    }
    OK(status);
    b->memory = (unsigned char *)memory;
    CHECK(b->memory >= (unsigned char *)k->bases[k->comm->rank] &&
              b->memory + b->bytes <= (unsigned char *)k->bases[k->comm->rank] + m->bytes,
          "%zu bytes at %p are outside the window", b->bytes, memory);
    memset(b->memory, b->tag, b->bytes);
    k->num_blocks++;
    return 0;
}

static int play(struct heap_model *m, int r)
{
    struct model_rank *k = &m->ranks[r];
    for (uint32_t i = rng_below(&k->rng, 12); i > 0; i--) {
        if (k->num_blocks > 0 && (k->num_blocks == model_blocks || rng_one_in(&k->rng, 3))) {
            PASS(free_one(k, (int)rng_below(&k->rng, (uint32_t)k->num_blocks)));
        } else {
            PASS(take_one(m, k));
        }
    }
    return 0;
}

static enum tern_status call_grow(struct heap_model *m, uint64_t bytes)
{
    struct tern_comm *comms[max_ranks];
    if (m->self >= 0) {
        return tern_heap_grow(m->ranks[m->self].comm, bytes);
    }
    for (int r = 0; r < m->num_ranks; r++) {
        comms[r] = m->ranks[r].comm;
    }
    return tern_heap_grow_all(m->num_ranks, comms, bytes);
}

static int grow(struct heap_model *m)
{
    uint64_t bytes = rng_between(&m->rng, 1, rng_one_in(&m->rng, 4) ? most_bytes : 150000);
    if (bytes > most_bytes - m->bytes) {
        REFUSES(call_grow(m, bytes), TERN_OUT_OF_MEMORY, "raise heap_max_bytes");
        return 0;
    }
    OK(call_grow(m, bytes));
    m->bytes += (bytes + page_bytes - 1) / page_bytes * page_bytes;
    return 0;
}

/* The peers' blocks of `tags` and offsets, as this rank sees them. */
static int look(struct heap_model *m, int r, uint64_t round, const uint64_t *begins, const uint64_t *ends,
                const uint64_t *tags)
{
    struct model_rank *k = &m->ranks[r];
    const struct heap *h = k->comm->heap;
    CHECK(terni_heap_bytes(h) == m->bytes, "the window has %llu bytes, not %llu",
          (unsigned long long)terni_heap_bytes(h), (unsigned long long)m->bytes);
    for (int q = 0; q < m->num_ranks; q++) {
        void *first, *last;
        CHECK(h->bases[q] == k->bases[q] && h->device_bases[q] == k->bases[q], "the base of rank %d moved",
              q);
        CHECK(k->mailbox[q] == round, "rank %d finds %llu of rank %d in round %llu", r,
              (unsigned long long)k->mailbox[q], q, (unsigned long long)round);
        if (begins[q] == ends[q]) {
            continue;
        }
        OK(tern_peer_pointer(k->comm, h->bases[r] + begins[q], q, &first));
        OK(tern_peer_pointer(k->comm, h->bases[r] + ends[q] - 1, q, &last));
        CHECK(*(unsigned char *)first == tags[q] && *(unsigned char *)last == tags[q],
              "rank %d sees %02x and %02x in rank %d's block, not %02x", r, *(unsigned char *)first,
              *(unsigned char *)last, q, (unsigned)tags[q]);
    }
    return 0;
}

/* Every rank writes into all mailboxes by pointers of before the first growth, and shows its latest block. */
static int look_around(struct heap_model *m, uint64_t round)
{
    uint64_t mine[3][max_ranks] = {{0}}, all[3][max_ranks];
    for (int r = 0; r < m->num_ranks; r++) {
        struct model_rank *k = &m->ranks[r];
        const struct model_block *b = &k->blocks[k->num_blocks > 0 ? k->num_blocks - 1 : 0];
        for (int q = 0; q < m->num_ranks && is_local(m, r); q++) {
            *k->at_peer[q] = round;
        }
        if (is_local(m, r) && k->num_blocks > 0) {
            mine[0][r] = (uint64_t)(b->memory - (unsigned char *)k->bases[r]);
            mine[1][r] = mine[0][r] + b->bytes;
            mine[2][r] = b->tag;
        }
    }
    for (int i = 0; i < 3; i++) {
        PASS(exchange(m, mine[i], all[i]));
    }
    for (int r = 0; r < m->num_ranks; r++) {
        if (is_local(m, r)) {
            PASS(look(m, r, round, all[0], all[1], all[2]));
        }
    }
    return meet(m);
}

/* All is given back: the borders of growths are no borders of blocks. */
static int end_rank(struct heap_model *m, struct model_rank *k)
{
    void *memory;
    while (k->num_blocks > 0) {
        PASS(free_one(k, (int)rng_below(&k->rng, (uint32_t)k->num_blocks)));
    }
    tern_free(k->comm, k->mailbox);
    OK(tern_alloc(k->comm, TERN_MEMORY_WINDOW, m->bytes, &memory));
    memset(memory, 0x5a, m->bytes);
    tern_free(k->comm, memory);
    return 0;
}

int heap_model_run(struct heap_model *m, int num_rounds)
{
    for (int round = 1; round <= num_rounds; round++) {
        for (int r = 0; r < m->num_ranks; r++) {
            if (is_local(m, r)) {
                PASS(play(m, r));
            }
        }
        if (!rng_one_in(&m->rng, 3)) {
            PASS(grow(m));
        }
        PASS(look_around(m, (uint64_t)round));
    }
    for (int r = 0; r < m->num_ranks; r++) {
        if (is_local(m, r)) {
            PASS(end_rank(m, &m->ranks[r]));
        }
    }
    return meet(m);
}

void heap_model_close(struct heap_model *m)
{
    for (int r = 0; r < m->num_ranks; r++) {
        tern_comm_close(m->ranks[r].comm);
    }
}

const char *access_of(const void *p)
{
    static _Thread_local char access[8];
    unsigned long begin, end;
    char line[512];
    FILE *f = fopen("/proc/self/maps", "r");
    strcpy(access, "none");
    while (f != NULL && strcmp(access, "none") == 0 && fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "%lx-%lx %4s", &begin, &end, access) != 3 || (uintptr_t)p < begin ||
            (uintptr_t)p >= end) {
            strcpy(access, "none");
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return access;
}
