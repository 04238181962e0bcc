/* SPDX-License-Identifier: Apache-2.0
 *
 * How a software NIC reads and writes memory, and the ways in which a bus may make that late.
 *
 * Words of 4 and 8 aligned bytes are written at once and after everything that was written before: a kernel
 * that polls one may rely on what it announces. Longer data has no such order in itself. Atomics are
 * compare-and-swaps, so that queue pairs may be served by several threads of one device.
 *
 * Two modes make a machine as unkind as it may be, so that tests see what relies on luck:
 *
 *     RC_RELAXED  what a peer WRITEs is posted, and lands later and in order. An atomic first waits for all
 *                 of it, as PCIe orders it; one whose memory is registered with relaxed ordering may not.
 *     RC_CST      what a READ or a fetch brings home is posted and stays so until the NIC itself reads from
 *                 there: a DUMP (or a WRITE from the same bytes) makes it land.
 *
 * A posted write finds its place by address: who removes a registration lets everything land first. */
#ifndef TERN_RC_MEMORY_H
#define TERN_RC_MEMORY_H

#include "net/key_table.h"
#include "net/rc_packet.h"

enum { RC_RELAXED = 1 << 0, RC_CST = 1 << 1 };

/* ---- Words ---- */

#ifdef __CUDACC__
/* Pairs with the polling thread's acquire: what this thread wrote before is there when the word is. */
TERN_DEVICE void nic_store_u64(void *p, uint64_t v) { st_release_sys_u64((uint64_t *)p, v); }
TERN_DEVICE void nic_store_u32(void *p, uint32_t v) { st_release_sys_u32((uint32_t *)p, v); } /* the same */
/* Pairs with the release of whoever wrote the word. */
TERN_DEVICE uint64_t nic_load_u64(const void *p) { return ld_acquire_sys_u64((const uint64_t *)p); }
TERN_DEVICE uint32_t nic_load_u32(const void *p) { return ld_acquire_sys_u32((const uint32_t *)p); }
/* Returns what was there. Pairs with the polling thread's acquire, as the stores do. */
TERN_DEVICE uint64_t nic_cas_u64(void *p, uint64_t expected, uint64_t desired)
{
    return atom_cas_acqrel_sys_u64((uint64_t *)p, expected, desired); /* pairs with the same */
}
TERN_DEVICE uint32_t nic_cas_u32(void *p, uint32_t expected, uint32_t desired)
{
    return atom_cas_acqrel_sys_u32((uint32_t *)p, expected, desired); /* pairs with the same */
}
#else
/* Not the dialect's words, which need a fiber: a NIC may be a thread of the host.
 * Pairs with the polling thread's acquire: what this thread wrote before is there when the word is. */
TERN_DEVICE void nic_store_u64(void *p, uint64_t v) { __atomic_store_n((uint64_t *)p, v, __ATOMIC_RELEASE); }
TERN_DEVICE void nic_store_u32(void *p, uint32_t v)
{
    __atomic_store_n((uint32_t *)p, v, __ATOMIC_RELEASE); /* pairs with the same */
}
/* Pairs with the release of whoever wrote the word. */
TERN_DEVICE uint64_t nic_load_u64(const void *p)
{
    return __atomic_load_n((const uint64_t *)p, __ATOMIC_ACQUIRE); /* pairs with the same */
}
TERN_DEVICE uint32_t nic_load_u32(const void *p)
{
    return __atomic_load_n((const uint32_t *)p, __ATOMIC_ACQUIRE); /* pairs with the same */
}
/* Returns what was there. Pairs with the polling thread's acquire, as the stores do. */
TERN_DEVICE uint64_t nic_cas_u64(void *p, uint64_t expected, uint64_t desired)
{
    /* Pairs with the same. */
    __atomic_compare_exchange_n((uint64_t *)p, &expected, desired, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return expected;
}
TERN_DEVICE uint32_t nic_cas_u32(void *p, uint32_t expected, uint32_t desired)
{
    /* Pairs with the same. */
    __atomic_compare_exchange_n((uint32_t *)p, &expected, desired, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return expected;
}
#endif

TERN_DEVICE int nic_is_word(const void *p, uint32_t bytes)
{
    return (bytes == 4 || bytes == 8) && (uintptr_t)p % bytes == 0;
}

/* Between memory and a packet, in either direction; a word at `from` or `to` is taken or given whole. */
TERN_DEVICE void nic_copy(char *to, const char *from, uint32_t bytes)
{
    uint32_t at = 0;
    if (nic_is_word(to, bytes) && nic_is_word(from, bytes)) {
        if (bytes == 8) {
            nic_store_u64(to, nic_load_u64(from));
        } else {
            nic_store_u32(to, nic_load_u32(from));
        }
        return;
    }
    if ((((uintptr_t)to | (uintptr_t)from) & 15u) == 0) {
        for (; at + 16 <= bytes; at += 16) {
            st_vec16(to + at, ld_vec16(from + at));
        }
    }
    for (; at < bytes; at++) {
        to[at] = from[at];
    }
}

/* ---- Writes on their way ---- */

struct rc_posted {
    char *to;
    uint64_t bytes;
    /* the data follows */
};

/* A ring of the caller's memory. When it is full the oldest lands. */
struct rc_posts {
    char *slots;
    uint32_t capacity;   /* a power of two; 0 if the mode is never on */
    uint32_t slot_bytes; /* rc_post_bytes */
    uint64_t first, next;
};

/* One for each NIC; all its queue pairs use it. */
struct rc_memory {
    const struct key_table *keys;
    uint32_t modes; /* RC_RELAXED, RC_CST */
    uint32_t reserved;
    uint64_t random; /* not 0; whether an atomic passes is drawn from it */
    struct rc_posts writes, results;
};

TERN_DEVICE size_t rc_post_bytes(uint32_t mtu) { return sizeof(struct rc_posted) + mtu; }

/* xorshift64: small, and the same on every machine. */
TERN_DEVICE uint64_t rc_draw(uint64_t *random)
{
    uint64_t x = *random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    *random = x;
    return x >> 11;
}

TERN_DEVICE struct rc_posted *rc_post_at(const struct rc_posts *posts, uint64_t idx)
{
    return (struct rc_posted *)(void *)(posts->slots +
                                        (size_t)(idx & (posts->capacity - 1)) * posts->slot_bytes);
}

/* Everything before `end`. */
TERN_DEVICE void rc_land_until(struct rc_posts *posts, uint64_t end)
{
    for (; posts->first < end; posts->first++) {
        struct rc_posted *post = rc_post_at(posts, posts->first);
        nic_copy(post->to, (const char *)(post + 1), (uint32_t)post->bytes);
    }
}

/* What is on its way to these bytes, and all that was posted before it. */
TERN_DEVICE void rc_land_overlap(struct rc_posts *posts, const char *at, uint64_t bytes)
{
    uint64_t end = posts->first, i;
    for (i = posts->first; i < posts->next; i++) {
        const struct rc_posted *post = rc_post_at(posts, i);
        if (post->to < at + bytes && at < post->to + post->bytes) {
            end = i + 1;
        }
    }
    rc_land_until(posts, end);
}

TERN_DEVICE void rc_memory_post(struct rc_posts *posts, char *to, const char *from, uint32_t bytes)
{
    struct rc_posted *post;
    if (posts->next - posts->first == posts->capacity) {
        rc_land_until(posts, posts->first + 1);
    }
    post = rc_post_at(posts, posts->next);
    post->to = to;
    post->bytes = bytes;
    nic_copy((char *)(post + 1), from, bytes);
    posts->next++;
}

/* ---- What the engine does with memory ---- */

/* Everything, of both kinds: a DUMP, a strict atomic's order, the end of a registration. */
TERN_DEVICE void rc_memory_land(struct rc_memory *m)
{
    rc_land_until(&m->writes, m->writes.next);
    rc_land_until(&m->results, m->results.next);
}

/* Time passes: the oldest write of a peer lands. Returns whether there was one. */
TERN_DEVICE int rc_memory_work(struct rc_memory *m)
{
    if (m->writes.first == m->writes.next) {
        return 0;
    }
    rc_land_until(&m->writes, m->writes.first + 1);
    return 1;
}

/* A peer's WRITE. */
TERN_DEVICE void rc_memory_write(struct rc_memory *m, char *to, const char *from, uint32_t bytes)
{
    if ((m->modes & RC_RELAXED) != 0 && bytes != 0) {
        rc_memory_post(&m->writes, to, from, bytes);
    } else {
        nic_copy(to, from, bytes);
    }
}

/* Data that an operation of ours brought home. */
TERN_DEVICE void rc_memory_result(struct rc_memory *m, char *to, const char *from, uint32_t bytes)
{
    if ((m->modes & RC_CST) != 0 && bytes != 0) {
        rc_memory_post(&m->results, to, from, bytes);
    } else {
        nic_copy(to, from, bytes);
    }
}

/* The NIC reads; it sees what it has written. */
TERN_DEVICE void rc_memory_read(struct rc_memory *m, char *to, const char *from, uint32_t bytes)
{
    rc_land_overlap(&m->writes, from, bytes);
    rc_land_overlap(&m->results, from, bytes);
    nic_copy(to, from, bytes);
}

/* A peer's READ pushes what peers have written before it, as PCIe orders it; where memory is registered with
 * relaxed ordering nobody may rely on that. */
TERN_DEVICE void rc_memory_push(struct rc_memory *m, const struct key_memory *memory)
{
    if (!memory->relaxed) {
        rc_land_until(&m->writes, m->writes.next);
    }
}

/* What a READ that is asked for again reads may be written meanwhile, by whoever the first answer told that
 * it is over; then nobody wants this one. */
#ifdef TERN_THREAD_SANITIZER
__attribute__((no_sanitize("thread"), noinline, unused)) static void
rc_memory_read_again(struct rc_memory *m, char *to, const char *from, uint32_t bytes)
{
    volatile const char *bare = from; /* no call that the sanitizer intercepts */
    rc_land_overlap(&m->writes, from, bytes);
    rc_land_overlap(&m->results, from, bytes);
    for (uint32_t i = 0; i < bytes; i++) {
        to[i] = bare[i];
    }
}
#else
TERN_DEVICE void rc_memory_read_again(struct rc_memory *m, char *to, const char *from, uint32_t bytes)
{
    rc_memory_read(m, to, from, bytes);
}
#endif

/* Returns the old value. `memory` is what key_lookup said of the word. */
TERN_DEVICE uint64_t rc_memory_atomic(struct rc_memory *m, const struct key_memory *memory,
                                      const struct wqe_amo *amo)
{
    uint64_t old, seen;
    rc_land_overlap(&m->writes, memory->host, amo->bytes);
    rc_land_overlap(&m->results, memory->host, amo->bytes);
    if (!memory->relaxed || (rc_draw(&m->random) & 1) != 0) {
        rc_land_until(&m->writes, m->writes.next);
    }
    seen = amo->bytes == 4 ? nic_load_u32(memory->host) : nic_load_u64(memory->host);
    do {
        old = seen;
        seen = amo->bytes == 4 ? nic_cas_u32(memory->host, (uint32_t)old, (uint32_t)wqe_amo_apply(amo, old))
                               : nic_cas_u64(memory->host, old, wqe_amo_apply(amo, old));
    } while (seen != old);
    return old;
}

#endif
