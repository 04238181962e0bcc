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

enum { SOFTNIC_AT_ONCE = 16 }; /* loads of 16 bytes that a thread has on their way: 7 warps have 56 KiB */

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

/* Bytes from `begin` on, in `num` units of 1, 4 or 8, both ends aligned: thread `index` of `count`. */
TERN_DEVICE void softnic_copy_units(const struct softnic_copy *c, uint64_t begin, uint64_t num, uint32_t unit,
                                    uint32_t index, uint32_t count)
{
    TERN_ROLLED
    for (uint64_t i = index; i < num; i += count) {
        p2p_move(c->to + begin + i * unit, softnic_from(c, begin + i * unit), unit);
    }
}

/* `num` units of 16 bytes, both ends aligned. What a thread copies is on its way together, as far as it
 * goes: the way is longer than the copy. */
TERN_DEVICE void softnic_copy_16(char *to, const char *from, uint64_t num, uint32_t index, uint32_t count)
{
    TERN_ROLLED
    for (uint64_t i = index; i < num; i += (uint64_t)count * SOFTNIC_AT_ONCE) {
        struct vec16 v[SOFTNIC_AT_ONCE];
        const char *source = from + i * 16;
        char *target = to + i * 16;
        uint64_t left = num - i;
        TERN_UNROLL
        for (uint32_t k = 0; k < SOFTNIC_AT_ONCE; k++) {
            if (k * count < left) {
                v[k] = ld_vec16(source + (uint64_t)(k * count) * 16);
            }
        }
        TERN_UNROLL
        for (uint32_t k = 0; k < SOFTNIC_AT_ONCE; k++) {
            if (k * count < left) {
                st_vec16(target + (uint64_t)(k * count) * 16, v[k]);
            }
        }
    }
}

/* Inline data goes in units of 4 bytes, else of 1; a unit never crosses the end of a ring, where the data
 * begins at a multiple of 4. */
TERN_DEVICE uint32_t softnic_unit(const struct softnic_copy *c)
{
    uint32_t unit = p2p_unit(c->to, softnic_from(c, 0));
    if (c->mask != ~0ull) {
        unit = unit >= 4 && (uintptr_t)c->to % 4 == 0 ? 4 : 1;
    }
    return unit;
}

/* Thread `index` of `count`: what is before the first whole unit, the units, what is behind them. */
TERN_DEVICE void softnic_do_copy(const struct softnic_copy *c, uint32_t index, uint32_t count)
{
    const uint32_t unit = softnic_unit(c), shift = (uint32_t)TERN_FFS(unit) - 1u;
    uint64_t before = (0u - (uint64_t)(uintptr_t)c->to) & (unit - 1), behind;
    before = before < c->bytes ? before : c->bytes;
    behind = before + ((c->bytes - before) >> shift << shift);
    TERN_ROLLED
    for (int part = 0; part < 3; part++) {
        uint64_t begin = part == 0 ? 0 : part == 1 ? before : behind;
        uint64_t end = part == 0 ? before : part == 1 ? behind : c->bytes;
        if (part == 1 && unit == 16) {
            softnic_copy_16(c->to + begin, softnic_from(c, begin), (end - begin) >> 4, index, count);
        } else if (begin != end) {
            softnic_copy_units(c, begin, (end - begin) >> (part == 1 ? shift : 0), part == 1 ? unit : 1,
                               index, count);
        }
    }
}

TERN_DEVICE int softnic_is_word(const struct softnic_copy *c)
{
    return (c->bytes == 4 || c->bytes == 8) && (uintptr_t)c->to % c->bytes == 0;
}

/* Whole; what is to be seen before it is released by whoever tells of it. */
TERN_DEVICE void softnic_store_word(char *to, uint64_t bytes, uint64_t value)
{
    p2p_put_inline(to, value, (uint32_t)bytes);
}

/* The source may be a word that atomics raise: read whole, if it is aligned. Nobody raises a ring. */
TERN_DEVICE uint64_t softnic_load_word(const struct softnic_copy *c)
{
    const char *from = softnic_from(c, 0);
    uint64_t value = 0;
    if (c->mask == ~0ull && (uintptr_t)from % c->bytes == 0) {
        /* Pairs with the words of any NIC (softnic_raise): what is read next is not older. */
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
    TERN_ROLLED
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
    uint32_t form;                              /* of the last word: SOFTNIC_* below */
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
    TERN_ROLLED
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
    TERN_ROLLED
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

/* What words of one round have in common. */
enum { SOFTNIC_ALONE, SOFTNIC_SUM, SOFTNIC_SET };

/* Whether none of the last round's is this one. */
TERN_DEVICE int softnic_is_new_in_round(const struct softnic_list *l, const struct softnic_word *w)
{
    TERN_ROLLED
    for (uint32_t i = l->num_words; i != 0 && l->words[i - 1].round == l->rounds - 1; i--) {
        const struct softnic_word *other = &l->words[i - 1];
        if (softnic_meet(softnic_span_of(w->word, w->bytes), softnic_span_of(other->word, other->bytes))) {
            return 0;
        }
    }
    return 1;
}

/* There is room: a batch has no more entries. Words come one after the other, each in a round of its own,
 * for one may be what the next is the signal of. Words that are added to, or such that are set, whose old
 * values go to the same place, where nobody looks for them, are signals: they share a round, and of the
 * values the last stays. Nothing tells in which order they came, unless one word is set twice. */
TERN_DEVICE void softnic_append_word(struct softnic_list *l, const struct softnic_word *w, uint32_t form)
{
    struct softnic_word *last = &l->words[l->num_words == 0 ? 0 : l->num_words - 1];
    int joins = form != SOFTNIC_ALONE && l->form == form && last->to == w->to && last->bytes == w->bytes;
    if (joins && (form == SOFTNIC_SUM || softnic_is_new_in_round(l, w))) {
        last->drops = 1;
    } else {
        l->rounds++;
    }
    softnic_widen(&l->touched, softnic_span_of(w->word, w->bytes));
    if (w->to != NULL) {
        softnic_widen(&l->touched, softnic_result(w));
    }
    l->form = form;
    l->words[l->num_words] = *w;
    l->words[l->num_words++].round = l->rounds - 1;
}

TERN_DEVICE void softnic_clear(struct softnic_list *l)
{
    l->num = l->num_words = l->rounds = l->form = 0;
    l->reads = l->writes = l->touched = softnic_span_of(NULL, 0);
}

/* Thread `index` of a block of `count`, in warps of `lanes`. Words first, so that all lanes are at theirs at
 * the same time: nobody waits for them, and what is to be seen after them is released by the thread that made
 * the list. */
TERN_DEVICE void softnic_do_list(const struct softnic_list *l, uint32_t index, uint32_t count, uint32_t lanes)
{
    const uint32_t num = l->num;
    TERN_ROLLED
    for (uint32_t i = index; i < num; i += count) {
        const struct softnic_copy *c = &l->copies[i];
        if (softnic_is_word(c)) {
            softnic_store_word(c->to, c->bytes, softnic_load_word(c));
        }
    }
    TERN_ROLLED
    for (uint32_t i = 0; i < num; i++) {
        const struct softnic_copy *c = &l->copies[i];
        int by_all = num == 1 || c->bytes > SOFTNIC_WARP_BYTES;
        if (!softnic_is_word(c) && (by_all || i % (count / lanes) == index / lanes)) {
            softnic_do_copy(c, by_all ? index : index % lanes, by_all ? count : lanes);
        }
    }
}

#endif
