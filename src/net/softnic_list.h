/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies that a software NIC has to make, and in any order: none writes what another reads or writes. One
 * thread makes the list, all threads of its block do what is in it. Several that are small go to a warp each,
 * so that their loads are under way together; words to a lane each.
 *
 * Behind the copies, words that others wait for (softnic_move.h), in rounds of a lane each. */
#ifndef TERN_SOFTNIC_LIST_H
#define TERN_SOFTNIC_LIST_H

#include "net/p2p.h"
#include "net/softnic.h"

/* Words are behind a fence of the same thread, so that relaxed is enough. On the processor they are as
 * strong themselves: it costs nothing there, and ThreadSanitizer knows no fences. */
#ifdef __CUDACC__
#define SOFTNIC_STORE_32(p, v)  st_relaxed_sys_u32(p, v)
#define SOFTNIC_STORE_64(p, v)  st_relaxed_sys_u64(p, v)
#define SOFTNIC_ADD_32(p, v)    atom_add_relaxed_sys_u32(p, v)
#define SOFTNIC_ADD_64(p, v)    atom_add_relaxed_sys_u64(p, v)
#define SOFTNIC_CAS_32(p, c, v) atom_cas_relaxed_sys_u32(p, c, v)
#define SOFTNIC_CAS_64(p, c, v) atom_cas_relaxed_sys_u64(p, c, v)
#else
#define SOFTNIC_STORE_32(p, v)  st_release_sys_u32(p, v)         /* pairs with them */
#define SOFTNIC_STORE_64(p, v)  st_release_sys_u64(p, v)         /* pairs with them */
#define SOFTNIC_ADD_32(p, v)    atom_add_acqrel_sys_u32(p, v)    /* pairs with them */
#define SOFTNIC_ADD_64(p, v)    atom_add_acqrel_sys_u64(p, v)    /* pairs with them */
#define SOFTNIC_CAS_32(p, c, v) atom_cas_acqrel_sys_u32(p, c, v) /* pairs with them */
#define SOFTNIC_CAS_64(p, c, v) atom_cas_acqrel_sys_u64(p, c, v) /* pairs with them */
#endif

/* Byte i comes from from + ((at + i) & mask): plain memory has a mask of ones, inline data that of its
 * ring. */
struct softnic_copy {
    char *to;
    const char *from;
    uint64_t at, mask;
    uint64_t bytes; /* 0: nothing is left to be copied */
};

TERN_DEVICE const char *softnic_from(const struct softnic_copy *c, uint64_t i)
{
    return c->from + ((c->at + i) & c->mask);
}

/* Inline data: units of 4 bytes, else of 1; a unit never crosses the end of a ring, where the data begins
 * at a multiple of 4. */
TERN_DEVICE void softnic_copy_inline(const struct softnic_copy *c, uint32_t index, uint32_t count)
{
    uint64_t both = (uint64_t)(uintptr_t)c->to | (uint64_t)(uintptr_t)softnic_from(c, 0);
    uint64_t unit = both % 4 == 0 ? 4 : 1, units = c->bytes / unit;
    for (uint64_t i = index; i < units; i += count) {
        p2p_move(c->to + i * unit, softnic_from(c, i * unit), (uint32_t)unit);
    }
    for (uint64_t i = units * unit + index; i < c->bytes; i += count) {
        c->to[i] = *softnic_from(c, i);
    }
}

/* Thread `index` of `count`. */
TERN_DEVICE void softnic_do_copy(const struct softnic_copy *c, uint32_t index, uint32_t count)
{
    struct net_group g;
    if (c->mask != ~0ull) {
        softnic_copy_inline(c, index, count);
        return;
    }
    g.kind = GROUP_BLOCK;
    g.index = index;
    g.count = count;
    p2p_copy(g, c->to, softnic_from(c, 0), c->bytes);
}

TERN_DEVICE int softnic_is_word(const struct softnic_copy *c)
{
    return (c->bytes == 4 || c->bytes == 8) && (uintptr_t)c->to % c->bytes == 0;
}

/* Behind a fence of the same thread. */
TERN_DEVICE void softnic_store_word(char *to, uint64_t bytes, uint64_t value)
{
    if (bytes == 4) {
        SOFTNIC_STORE_32((uint32_t *)(void *)to, (uint32_t)value);
    } else {
        SOFTNIC_STORE_64((uint64_t *)(void *)to, value);
    }
}

/* The source may be a word that atomics raise: read whole, if it is aligned. Nobody raises a ring. */
TERN_DEVICE uint64_t softnic_load_word(const struct softnic_copy *c)
{
    const char *from = softnic_from(c, 0);
    uint64_t value = 0;
    if (c->mask == ~0ull && (uintptr_t)from % c->bytes == 0) {
        /* Pairs with the words of any NIC (softnic_do_round): what is read next is not older. */
        return c->bytes == 4 ? ld_acquire_sys_u32((const uint32_t *)(const void *)from)
                             : ld_acquire_sys_u64((const uint64_t *)(const void *)from);
    }
    if (c->mask != ~0ull) {
        uint32_t low, high = 0; /* inline data begins at a multiple of 4, and its ring ends at one */
        memcpy(&low, __builtin_assume_aligned(from, 4), 4);
        if (c->bytes == 8) {
            memcpy(&high, __builtin_assume_aligned(softnic_from(c, 4), 4), 4);
        }
        return low | (uint64_t)high << 32;
    }
    for (uint32_t i = 0; i < c->bytes; i++) {
        value |= (uint64_t)(unsigned char)from[i] << 8 * i;
    }
    return value;
}

/* ---- Several ---- */

/* Up to here a warp alone is no slower than a block whose other warps have nothing else to do. */
enum { SOFTNIC_WARP_BYTES = 16384 };

struct softnic_span {
    uint64_t begin, end; /* equal: nothing */
};

/* An atomic, or a word to be stored, that others wait for: it comes after the copies. */
struct softnic_word {
    const struct wqe_op *op; /* NULL: a store of `value` */
    char *word, *to;         /* the old value goes there */
    uint64_t value;
    uint32_t bytes;
    uint32_t round;
    uint32_t drops; /* the old value: that of one in the same round goes there */
    uint32_t reserved;
};

struct softnic_list {
    uint32_t num, num_words, rounds;
    uint32_t is_sum;                            /* the last word is an addition */
    struct softnic_span reads, writes, touched; /* around all copies; around all words */
    struct softnic_copy copies[SOFTNIC_BATCH];
    struct softnic_word words[SOFTNIC_BATCH];
};

TERN_DEVICE struct softnic_span softnic_span_of(const char *p, uint64_t bytes)
{
    struct softnic_span s;
    s.begin = (uint64_t)(uintptr_t)p;
    s.end = s.begin + bytes;
    return s;
}

TERN_DEVICE struct softnic_span softnic_result(const struct softnic_word *w)
{
    return softnic_span_of(w->to, w->to != NULL ? w->bytes : 0);
}

TERN_DEVICE int softnic_meet(struct softnic_span a, struct softnic_span b)
{
    return a.begin < b.end && b.begin < a.end;
}

TERN_DEVICE void softnic_widen(struct softnic_span *all, struct softnic_span s)
{
    if (all->begin == all->end) {
        *all = s;
    }
    all->begin = s.begin < all->begin ? s.begin : all->begin;
    all->end = s.end > all->end ? s.end : all->end;
}

/* Of inline data nothing: no operation writes a ring. */
TERN_DEVICE struct softnic_span softnic_reads(const struct softnic_copy *c)
{
    return softnic_span_of(c->from, c->mask == ~0ull ? c->bytes : 0);
}

TERN_DEVICE struct softnic_span softnic_writes(const struct softnic_copy *c)
{
    return softnic_span_of(c->to, c->bytes);
}

/* Whether nobody can tell that it is done before the words that come before it. */
TERN_DEVICE int softnic_is_apart_from_words(const struct softnic_list *l, const struct softnic_copy *c)
{
    struct softnic_span reads = softnic_reads(c), writes = softnic_writes(c);
    if (!softnic_meet(reads, l->touched) && !softnic_meet(writes, l->touched)) {
        return 1;
    }
    for (uint32_t i = 0; i < l->num_words; i++) {
        const struct softnic_word *w = &l->words[i];
        struct softnic_span word = softnic_span_of(w->word, w->bytes);
        struct softnic_span to = softnic_result(w);
        if (softnic_meet(writes, word) || softnic_meet(reads, word) || softnic_meet(writes, to) ||
            softnic_meet(reads, to)) {
            return 0;
        }
    }
    return 1;
}

/* Whether the order of `c` and the copies of the list cannot be told. */
TERN_DEVICE int softnic_is_apart(const struct softnic_list *l, const struct softnic_copy *c)
{
    struct softnic_span reads = softnic_reads(c), writes = softnic_writes(c);
    if (!softnic_meet(writes, l->writes) && !softnic_meet(writes, l->reads) &&
        !softnic_meet(reads, l->writes)) {
        return 1;
    }
    for (uint32_t i = 0; i < l->num; i++) {
        const struct softnic_copy *other = &l->copies[i];
        if (softnic_meet(writes, softnic_writes(other)) || softnic_meet(writes, softnic_reads(other)) ||
            softnic_meet(reads, softnic_writes(other))) {
            return 0;
        }
    }
    return 1;
}

/* 0: not before the list has been done. */
TERN_DEVICE int softnic_append(struct softnic_list *l, const struct softnic_copy *c)
{
    if (l->num == SOFTNIC_BATCH || !softnic_is_apart(l, c) || !softnic_is_apart_from_words(l, c)) {
        return 0;
    }
    softnic_widen(&l->reads, softnic_reads(c));
    softnic_widen(&l->writes, softnic_writes(c));
    l->copies[l->num++] = *c;
    return 1;
}

/* There is room: a batch has no more entries. `is_sum`: it adds. Words come one after the other, each in a
 * round of its own, for one may be what the next is the signal of. Additions whose old values go to the same
 * place, where nobody looks for them, are signals: they share a round, and of the values the last stays. */
TERN_DEVICE void softnic_append_word(struct softnic_list *l, const struct softnic_word *w, int is_sum)
{
    struct softnic_word *last = &l->words[l->num_words == 0 ? 0 : l->num_words - 1];
    int joins = is_sum && l->is_sum && last->to == w->to && last->bytes == w->bytes;
    if (joins) {
        last->drops = 1;
    } else {
        l->rounds++;
    }
    softnic_widen(&l->touched, softnic_span_of(w->word, w->bytes));
    if (w->to != NULL) {
        softnic_widen(&l->touched, softnic_result(w));
    }
    l->is_sum = (uint32_t)is_sum;
    l->words[l->num_words] = *w;
    l->words[l->num_words++].round = l->rounds - 1;
}

TERN_DEVICE void softnic_clear(struct softnic_list *l)
{
    l->num = l->num_words = l->rounds = l->is_sum = 0;
    l->reads = l->writes = l->touched = softnic_span_of(NULL, 0);
}

/* A word that nobody waits for: what is to be seen after it is released by the thread that made the list. */
TERN_DEVICE void softnic_move_word(const struct softnic_copy *c)
{
    p2p_put_inline(c->to, softnic_load_word(c), (uint32_t)c->bytes);
}

/* Thread `index` of a block of `count`, in warps of `lanes`. Words first, so that all lanes are at theirs at
 * the same time. */
TERN_DEVICE void softnic_do_list(const struct softnic_list *l, uint32_t index, uint32_t count, uint32_t lanes)
{
    const uint32_t num = l->num;
    for (uint32_t i = index; i < num; i += count) {
        struct softnic_copy c = l->copies[i];
        if (softnic_is_word(&c)) {
            softnic_move_word(&c);
        }
    }
    for (uint32_t i = 0; i < num; i++) {
        struct softnic_copy c = l->copies[i];
        if (softnic_is_word(&c)) {
            continue;
        }
        if (num == 1 || c.bytes > SOFTNIC_WARP_BYTES) {
            softnic_do_copy(&c, index, count);
        } else if (i % (count / lanes) == index / lanes) {
            softnic_do_copy(&c, index % lanes, lanes);
        }
    }
}

#endif
