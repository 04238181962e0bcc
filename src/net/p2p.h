/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on memory that this rank's device addresses itself: copies, stores and atomics. Nothing is
 * outstanding when one returns but stores on their way, which a release of the same thread, or of one that
 * has synchronised with it, keeps before itself.
 *
 * A copy goes in the widest unit for which both ends are equally misaligned, 16 bytes if it can, with bytes
 * before and after it. Several loads are on their way at once: over a link each takes a microsecond. */
#ifndef TERN_P2P_H
#define TERN_P2P_H

#include "net/amo.h"
#include "net/group.h"

/* Programs that are wrong on purpose, for test/tsan_awake.sh. */
#ifdef TERN_WEAKEN_SIGNAL
#define P2P_STORE_32(p, v) st_relaxed_sys_u32(p, v)
#define P2P_STORE_64(p, v) st_relaxed_sys_u64(p, v)
#define P2P_ADD_32(p, v)   ((void)atom_add_relaxed_sys_u32(p, v))
#define P2P_ADD_64(p, v)   ((void)atom_add_relaxed_sys_u64(p, v))
#else
/* Pair with the acquires in net_look (wait.h): what this thread wrote, or has seen written by those that it
 * has synchronised with, is there for who sees the word. */
#define P2P_STORE_32(p, v) st_release_sys_u32(p, v)
#define P2P_STORE_64(p, v) st_release_sys_u64(p, v)
/* Pair with the same. */
#define P2P_ADD_32(p, v)   red_add_release_sys_u32(p, v)
#define P2P_ADD_64(p, v)   red_add_release_sys_u64(p, v)
#endif

enum { P2P_AT_ONCE = 8 }; /* loads of 16 bytes that a thread has on their way */

/* `count` units of 16 bytes, both ends aligned. The last of them go together as well: one after the other
 * they would take as long as a whole copy of a page. */
TERN_DEVICE void p2p_copy_16(struct net_group g, char *dst, const char *src, uint64_t count)
{
    for (uint64_t i = g.index; i < count; i += (uint64_t)g.count * P2P_AT_ONCE) {
        struct vec16 v[P2P_AT_ONCE];
        uint64_t left = count - i;
        TERN_UNROLL
        for (uint32_t k = 0; k < P2P_AT_ONCE; k++) {
            if ((uint64_t)k * g.count < left) {
                v[k] = ld_vec16(src + (i + (uint64_t)k * g.count) * 16);
            }
        }
        TERN_UNROLL
        for (uint32_t k = 0; k < P2P_AT_ONCE; k++) {
            if ((uint64_t)k * g.count < left) {
                st_vec16(dst + (i + (uint64_t)k * g.count) * 16, v[k]);
            }
        }
    }
}

/* One unit. Memory that users give has types of their own, of which their compiler may conclude that no
 * uint64_t lies there: so it is read and written as bytes of known alignment, which is one load and store. */
TERN_DEVICE void p2p_move(char *dst, const char *src, uint32_t unit)
{
    if (unit == 8) {
        uint64_t v;
        memcpy(&v, __builtin_assume_aligned(src, 8), 8);
        memcpy(__builtin_assume_aligned(dst, 8), &v, 8);
    } else if (unit == 4) {
        uint32_t v;
        memcpy(&v, __builtin_assume_aligned(src, 4), 4);
        memcpy(__builtin_assume_aligned(dst, 4), &v, 4);
    } else {
        *dst = *src;
    }
}

/* `count` units of 1, 4 or 8 bytes, both ends aligned. */
TERN_DEVICE void p2p_copy_narrow(struct net_group g, char *dst, const char *src, uint64_t count,
                                 uint32_t unit)
{
    for (uint64_t i = g.index; i < count; i += g.count) {
        p2p_move(dst + i * unit, src + i * unit, unit);
    }
}

TERN_DEVICE uint32_t p2p_unit(const char *dst, const char *src)
{
    uint64_t apart = (uint64_t)(uintptr_t)dst ^ (uint64_t)(uintptr_t)src;
    return (apart & 15) == 0 ? 16 : (apart & 7) == 0 ? 8 : (apart & 3) == 0 ? 4 : 1;
}

/* All threads of the group. */
TERN_DEVICE void p2p_copy(struct net_group g, char *dst, const char *src, uint64_t bytes)
{
    uint32_t unit = p2p_unit(dst, src);
    uint64_t before = (0u - (uint64_t)(uintptr_t)dst) & (unit - 1), count;
    before = before < bytes ? before : bytes;
    count = (bytes - before) / unit;
    p2p_copy_narrow(g, dst, src, before, 1);
    if (unit == 16) {
        p2p_copy_16(g, dst + before, src + before, count);
    } else {
        p2p_copy_narrow(g, dst + before, src + before, count, unit);
    }
    before += count * unit;
    p2p_copy_narrow(g, dst + before, src + before, bytes - before, 1);
}

/* One thread, as the following. */
TERN_DEVICE void p2p_put_inline(char *dst, uint64_t value, uint32_t width)
{
    if (width == 4) {
        st_relaxed_sys_u32((uint32_t *)(void *)dst, (uint32_t)value);
    } else {
        st_relaxed_sys_u64((uint64_t *)(void *)dst, value);
    }
}

TERN_DEVICE void p2p_signal(char *word, uint64_t value, uint32_t width, int is_set)
{
    if (width == 4 && is_set) {
        P2P_STORE_32((uint32_t *)(void *)word, (uint32_t)value);
    } else if (width == 4) {
        P2P_ADD_32((uint32_t *)(void *)word, (uint32_t)value);
    } else if (is_set) {
        P2P_STORE_64((uint64_t *)(void *)word, value);
    } else {
        P2P_ADD_64((uint64_t *)(void *)word, value);
    }
}

TERN_DEVICE uint64_t p2p_atomic_32(uint32_t *p, uint32_t amo, uint32_t value, uint32_t compare)
{
    switch (amo) {
    case NET_AMO_ADD:
        return atom_add_relaxed_sys_u32(p, value);
    case NET_AMO_AND:
        return atom_and_relaxed_sys_u32(p, value);
    case NET_AMO_OR:
        return atom_or_relaxed_sys_u32(p, value);
    case NET_AMO_XOR:
        return atom_xor_relaxed_sys_u32(p, value);
    case NET_AMO_CAS:
        return atom_cas_relaxed_sys_u32(p, compare, value);
    case NET_AMO_FETCH:
        return ld_relaxed_sys_u32(p);
    default:
        return atom_swap_relaxed_sys_u32(p, value);
    }
}

TERN_DEVICE uint64_t p2p_atomic_64(uint64_t *p, uint32_t amo, uint64_t value, uint64_t compare)
{
    switch (amo) {
    case NET_AMO_ADD:
        return atom_add_relaxed_sys_u64(p, value);
    case NET_AMO_AND:
        return atom_and_relaxed_sys_u64(p, value);
    case NET_AMO_OR:
        return atom_or_relaxed_sys_u64(p, value);
    case NET_AMO_XOR:
        return atom_xor_relaxed_sys_u64(p, value);
    case NET_AMO_CAS:
        return atom_cas_relaxed_sys_u64(p, compare, value);
    case NET_AMO_FETCH:
        return ld_relaxed_sys_u64(p);
    default:
        return atom_swap_relaxed_sys_u64(p, value);
    }
}

/* The old value. */
TERN_DEVICE uint64_t p2p_atomic(char *word, uint32_t amo, uint32_t width, uint64_t value, uint64_t compare)
{
    return width == 4 ? p2p_atomic_32((uint32_t *)(void *)word, amo, (uint32_t)value, (uint32_t)compare)
                      : p2p_atomic_64((uint64_t *)(void *)word, amo, value, compare);
}

/* Stores before it are in place for whoever learns, by whatever way, that it has returned. */
TERN_DEVICE void p2p_flush(void)
{
    /* Pairs with what tells them: a store of this thread, or the end of the kernel. */
    fence_acqrel_sys();
}

#undef P2P_STORE_32
#undef P2P_STORE_64
#undef P2P_ADD_32
#undef P2P_ADD_64

#endif
