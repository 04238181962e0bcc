/* SPDX-License-Identifier: Apache-2.0
 *
 * The dialect on the cpu machine. Every GPU thread is a fiber; `simt_self` is the one that runs. Functions
 * that must see other fibers move, or that the sanitizers must be told of, are in the executor (executor.c,
 * warp.c, bulk.c); the rest is inline. */
#ifndef TERN_FIBER_H
#define TERN_FIBER_H

#include <string.h>

#define TERN_DEVICE static inline __attribute__((always_inline, unused))
#define TERN_APART  static __attribute__((noinline, unused))
#define TERN_UNROLL
#define TERN_ROLLED
#define TERN_POPC(x)  __builtin_popcount(x)
#define TERN_FFS(x)   __builtin_ffs((int)(x))
#define TERN_BSWAP(x) __builtin_bswap32(x)
#define TERN_RESTRICT __restrict__
#define TERN_HAS_BULK 1

#define TERN_KERNEL(name, type, p)                                                                           \
    static void name##_body(const type *p);                                                                  \
    void tern_cpu_##name(const void *args);                                                                  \
    void tern_cpu_##name(const void *args) { name##_body((const type *)args); }                              \
    static void name##_body(const type *p)

/* With a C++ name too, where there is C++ (ptx.h). */
#define TERN_KERNEL_AS(space, function, name, type, p) TERN_KERNEL(name, type, p)

#ifdef TERN_HOST_THREAD
#include "simt/thread.h"
#else

/* The part of a fiber that kernels read. The executor's own struct begins with it. */
struct simt_thread {
    int tid, bid, nthr, nblk;
    char *shared;
    int fenced;        /* a system fence since the last load that acquires: what st_fenced relies on */
    uint32_t releases; /* stores and additions that release, so far */
    uint32_t atomics;  /* others, but those between threads of a block */
};
/* A fiber stays on its worker's thread. The model of access is the compiler's: a library with static TLS
 * cannot be loaded late into a program whose libraries have used up the room for it. */
extern _Thread_local struct simt_thread *simt_self;

#define tid()           (simt_self->tid)
#define bid()           (simt_self->bid)
#define nthr()          (simt_self->nthr)
#define nblk()          (simt_self->nblk)
#define lane()          (simt_self->tid & 31)
#define warp()          (simt_self->tid >> 5)
#define nwarps()        (simt_self->nthr >> 5)
#define shared_memory() (simt_self->shared)

/* Blocking, in the executor. A barrier orders the accesses of those it joins. */
void sync_warp(void);
void sync_block(void);
int sync_block_or(int v);
void sync_part(int threads);
int sync_part_or(int threads, int v);
uint32_t simt_ballot(int v);
uint64_t simt_shfl(uint64_t v, int src);
uint32_t match_any_u32(uint32_t v);
void spin(void);
/* A chance for another fiber to run, taken at random: before and after every access that others observe. */
void simt_point(void);
uint64_t clock_ns(void);
TERN_DEVICE const char *computed_once(const char *p) { return p; }
void simt_no_fence(void); /* ends the program */

void fence_proxy_async(void);
void fence_proxy_async_global(void);
void fence_proxy_async_shared(void);
void mbar_init(uint64_t *bar, uint32_t count);
void mbar_inval(uint64_t *bar);
void fence_mbar_init(void);
void mbar_expect(uint64_t *bar, uint32_t bytes);
int mbar_test(uint64_t *bar, uint32_t parity);
TERN_DEVICE int mbar_poll(uint64_t *bar, uint32_t parity) { return mbar_test(bar, parity); }
void bulk_load(void *shared, const void *global, uint32_t bytes, uint64_t *bar);
void bulk_store(void *global, const void *shared, uint32_t bytes);
void bulk_store_words(void *global, const void *shared, uint32_t bytes);
void bulk_prefetch(const void *global, uint32_t bytes);
void bulk_commit(void);
void bulk_wait_read(int n);
void bulk_wait(int n);

/* What st_fenced relies on, as far as it is seen without ThreadSanitizer: an acquire brings what a fence made
 * before it does not pass on. That of a load, or in shared memory: another atomic between fence and store may
 * be of something that the store is not to pass on, as a claim of the record of a fault is. */
TERN_DEVICE void simt_acquired(void) { simt_self->fenced = 0; }
#ifdef TERN_THREAD_SANITIZER
#define SIMT_TELLS_FENCES 1 /* to ThreadSanitizer, which does not know them: fence.c */
void simt_fenced(void);
void simt_release_fenced(void *word);
#else
TERN_DEVICE void simt_fenced(void) { simt_self->fenced = 1; }
#endif
TERN_DEVICE void simt_check_fence(void)
{
    if (!simt_self->fenced) {
        simt_no_fence();
    }
}

/* For whoever counts what kernels do (executor_stats). */
TERN_DEVICE void simt_released(void) { simt_self->releases++; }
TERN_DEVICE void simt_atomic(void) { simt_self->atomics++; }

TERN_DEVICE uint32_t warp_ballot(int v) { return simt_ballot(v); }
TERN_DEVICE uint32_t shfl_u32(uint32_t v, int src) { return (uint32_t)simt_shfl(v, src); }
TERN_DEVICE uint64_t shfl_u64(uint64_t v, int src) { return simt_shfl(v, src); }

#endif

TERN_DEVICE float bits_f32(uint32_t v)
{
    float f;
    memcpy(&f, &v, 4);
    return f;
}

TERN_DEVICE uint32_t f32_bits(float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    return u;
}

TERN_DEVICE int warp_any(int v) { return warp_ballot(v) != 0; }
TERN_DEVICE int warp_all(int v) { return warp_ballot(v) == 0xffffffffu; }
TERN_DEVICE uint32_t shfl_xor_u32(uint32_t v, int mask) { return shfl_u32(v, lane() ^ mask); }
TERN_DEVICE float shfl_f32(float v, int src) { return bits_f32(shfl_u32(f32_bits(v), src)); }
TERN_DEVICE float shfl_xor_f32(float v, int mask) { return shfl_f32(v, lane() ^ mask); }

/* TERN_WEAKEN_RELEASE is set by one test only, which expects ThreadSanitizer to report the race. */
#ifdef TERN_WEAKEN_RELEASE
#define TERN_ORDER_RELEASE __ATOMIC_RELAXED
#else
#define TERN_ORDER_RELEASE __ATOMIC_RELEASE
#endif

TERN_DEVICE uint32_t atom_add_cta_u32(uint32_t *p, uint32_t v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

TERN_DEVICE uint32_t atom_cas_cta_u32(uint32_t *p, uint32_t expected, uint32_t v)
{
    simt_point();
    (void)__atomic_compare_exchange_n(p, &expected, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

/* An acquire: what it brings, a fence made before does not pass on. */
TERN_DEVICE uint32_t atom_add_acqrel_cta_u32(uint32_t *p, uint32_t v)
{
    simt_point();
    simt_acquired();
    return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}

TERN_DEVICE uint32_t atom_add_acqrel_cta_global_u32(uint32_t *p, uint32_t v)
{
    simt_atomic();
    simt_point();
    simt_acquired();
    return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}

TERN_DEVICE uint32_t atom_add_acqrel_gpu_u32(uint32_t *p, uint32_t v)
{
    simt_atomic();
    simt_point();
    return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}

TERN_DEVICE uint64_t atom_add_acqrel_gpu_u64(uint64_t *p, uint64_t v)
{
    simt_atomic();
    simt_point();
    return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}

TERN_DEVICE uint32_t atom_cas_acqrel_gpu_u32(uint32_t *p, uint32_t expected, uint32_t desired)
{
    simt_atomic();
    simt_point();
    __atomic_compare_exchange_n(p, &expected, desired, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return expected;
}

TERN_DEVICE uint64_t atom_cas_acqrel_gpu_u64(uint64_t *p, uint64_t expected, uint64_t desired)
{
    simt_atomic();
    simt_point();
    __atomic_compare_exchange_n(p, &expected, desired, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return expected;
}

/* Scopes make no difference here. */
TERN_DEVICE uint32_t atom_cas_acqrel_sys_u32(uint32_t *p, uint32_t expected, uint32_t desired)
{
    return atom_cas_acqrel_gpu_u32(p, expected, desired);
}

TERN_DEVICE uint64_t atom_cas_acqrel_sys_u64(uint64_t *p, uint64_t expected, uint64_t desired)
{
    return atom_cas_acqrel_gpu_u64(p, expected, desired);
}

TERN_DEVICE uint32_t atom_add_acqrel_sys_u32(uint32_t *p, uint32_t v)
{
    return atom_add_acqrel_gpu_u32(p, v);
}

TERN_DEVICE uint64_t atom_add_acqrel_sys_u64(uint64_t *p, uint64_t v)
{
    return atom_add_acqrel_gpu_u64(p, v);
}

TERN_DEVICE uint32_t atom_swap_acqrel_sys_u32(uint32_t *p, uint32_t v)
{
    simt_atomic();
    simt_point();
    return __atomic_exchange_n(p, v, __ATOMIC_ACQ_REL);
}

TERN_DEVICE uint64_t atom_swap_acqrel_sys_u64(uint64_t *p, uint64_t v)
{
    simt_atomic();
    simt_point();
    return __atomic_exchange_n(p, v, __ATOMIC_ACQ_REL);
}

TERN_DEVICE void red_max_release_gpu_u64(uint64_t *p, uint64_t v)
{
    simt_atomic();
    uint64_t seen;
    simt_point();
    seen = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (seen < v && !__atomic_compare_exchange_n(p, &seen, v, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
}

TERN_DEVICE void red_max_relaxed_gpu_u64(uint64_t *p, uint64_t v)
{
    simt_atomic();
    uint64_t seen;
    simt_point();
    seen = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (seen < v && !__atomic_compare_exchange_n(p, &seen, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

TERN_DEVICE void atom_max_cta_u64(uint64_t *p, uint64_t v)
{
    uint64_t seen = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (seen < v && !__atomic_compare_exchange_n(p, &seen, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

TERN_DEVICE uint64_t atom_add_relaxed_gpu_u64(uint64_t *p, uint64_t v)
{
    simt_atomic();
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

/* Words of any rank's memory. Nobody's order depends on these, everybody may look between them. */
#define FIBER_ATOM(name, builtin, bits)                                                                      \
    TERN_DEVICE uint##bits##_t name##_u##bits(uint##bits##_t *p, uint##bits##_t v)                           \
    {                                                                                                        \
        simt_atomic();                                                                                       \
        simt_point();                                                                                        \
        return builtin(p, v, __ATOMIC_RELAXED);                                                              \
    }
FIBER_ATOM(atom_add_relaxed_sys, __atomic_fetch_add, 32)
FIBER_ATOM(atom_add_relaxed_sys, __atomic_fetch_add, 64)
FIBER_ATOM(atom_and_relaxed_sys, __atomic_fetch_and, 32)
FIBER_ATOM(atom_and_relaxed_sys, __atomic_fetch_and, 64)
FIBER_ATOM(atom_or_relaxed_sys, __atomic_fetch_or, 32)
FIBER_ATOM(atom_or_relaxed_sys, __atomic_fetch_or, 64)
FIBER_ATOM(atom_xor_relaxed_sys, __atomic_fetch_xor, 32)
FIBER_ATOM(atom_xor_relaxed_sys, __atomic_fetch_xor, 64)
FIBER_ATOM(atom_swap_relaxed_sys, __atomic_exchange_n, 32)
FIBER_ATOM(atom_swap_relaxed_sys, __atomic_exchange_n, 64)
#undef FIBER_ATOM

TERN_DEVICE uint32_t atom_cas_relaxed_sys_u32(uint32_t *p, uint32_t expected, uint32_t desired)
{
    simt_atomic();
    simt_point();
    __atomic_compare_exchange_n(p, &expected, desired, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

TERN_DEVICE uint64_t atom_cas_relaxed_sys_u64(uint64_t *p, uint64_t expected, uint64_t desired)
{
    simt_atomic();
    simt_point();
    __atomic_compare_exchange_n(p, &expected, desired, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

TERN_DEVICE uint64_t atom_cas_relaxed_gpu_u64(uint64_t *p, uint64_t expected, uint64_t desired)
{
    return atom_cas_relaxed_sys_u64(p, expected, desired);
}

TERN_DEVICE void red_add_release_sys_u32(uint32_t *p, uint32_t v)
{
    simt_released();
    simt_point();
    (void)__atomic_fetch_add(p, v, TERN_ORDER_RELEASE);
    simt_point();
}

TERN_DEVICE void red_add_release_sys_u64(uint64_t *p, uint64_t v)
{
    simt_released();
    simt_point();
    (void)__atomic_fetch_add(p, v, TERN_ORDER_RELEASE);
    simt_point();
}

TERN_DEVICE uint64_t ld_acquire_sys_u64(const uint64_t *p)
{
    simt_point();
    simt_acquired();
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

TERN_DEVICE uint64_t ld_relaxed_sys_u64(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }

/* The host stores such words, between two steps of kernels: there is no other schedule to be tried. */
TERN_DEVICE uint64_t ld_published_sys_u64(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

TERN_DEVICE void st_release_sys_u64(uint64_t *p, uint64_t v)
{
    simt_released();
    simt_point();
    __atomic_store_n(p, v, TERN_ORDER_RELEASE);
    simt_point();
}

TERN_DEVICE void st_release_gpu_u64(uint64_t *p, uint64_t v) { st_release_sys_u64(p, v); }

TERN_DEVICE uint32_t ld_acquire_sys_u32(const uint32_t *p)
{
    simt_point();
    simt_acquired();
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

TERN_DEVICE uint32_t ld_relaxed_sys_u32(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }

TERN_DEVICE void st_release_sys_u32(uint32_t *p, uint32_t v)
{
    simt_released();
    simt_point();
    __atomic_store_n(p, v, TERN_ORDER_RELEASE);
    simt_point();
}

TERN_DEVICE void st_relaxed_sys_u32(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }

/* Two accesses whose order makes them one to whoever looks at the tag. It is the processor's and the
 * compiler's alone, told to no sanitizer: a GPU's access orders nothing either. */
TERN_DEVICE void simt_in_order(void)
{
#ifdef __x86_64__
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* the processor keeps the order of stores, and of loads */
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

TERN_DEVICE void st_tagged_sys(uint64_t *p, uint64_t data, uint64_t tag)
{
    simt_point();
    __atomic_store_n(p, data, __ATOMIC_RELAXED);
    simt_in_order();
    __atomic_store_n(p + 1, tag, __ATOMIC_RELAXED);
}

TERN_DEVICE uint64_t ld_tag_sys(const uint64_t *p, uint64_t *data)
{
    uint64_t tag = __atomic_load_n(p + 1, __ATOMIC_RELAXED);
    simt_in_order();
    *data = __atomic_load_n(p, __ATOMIC_RELAXED);
    return tag;
}

TERN_DEVICE int ld_tagged_sys(const uint64_t *p, uint64_t tag, uint64_t *data)
{
    return ld_tag_sys(p, data) == tag;
}

TERN_DEVICE void st_words_sys(void *p, struct vec16 v)
{
    uint32_t *to = (uint32_t *)p;
    for (int i = 0; i < 4; i++) {
        if (i % 2 == 0) {
            simt_point();
        }
        __atomic_store_n(to + i, v.w[i], __ATOMIC_RELAXED);
    }
}

TERN_DEVICE struct vec16 ld_words_sys(const void *p)
{
    const uint32_t *from = (const uint32_t *)p;
    struct vec16 v;
    for (int i = 0; i < 4; i++) {
        v.w[i] = __atomic_load_n(from + i, __ATOMIC_RELAXED);
    }
    return v;
}

TERN_DEVICE void st_relaxed_sys_u64(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }

/* That there is a fence before the store is looked at everywhere. Where ThreadSanitizer is told of fences the
 * store hands on what the last one of this thread covers, and no more; elsewhere it is a release. */
#ifdef SIMT_TELLS_FENCES
#define FIBER_ST_FENCED(bits)                                                                                \
    TERN_DEVICE void st_fenced_sys_u##bits(uint##bits##_t *p, uint##bits##_t v)                              \
    {                                                                                                        \
        simt_check_fence();                                                                                  \
        simt_released();                                                                                     \
        simt_point();                                                                                        \
        if (TERN_ORDER_RELEASE == __ATOMIC_RELEASE) {                                                        \
            simt_release_fenced(p);                                                                          \
        }                                                                                                    \
        st_relaxed_sys_u##bits(p, v);                                                                        \
        simt_point();                                                                                        \
    }
#define FIBER_ATOM_FENCED(name, builtin)                                                                     \
    TERN_DEVICE uint64_t name##_fenced_sys_u64(uint64_t *p, uint64_t v)                                      \
    {                                                                                                        \
        simt_check_fence();                                                                                  \
        simt_atomic();                                                                                       \
        simt_point();                                                                                        \
        if (TERN_ORDER_RELEASE == __ATOMIC_RELEASE) {                                                        \
            simt_release_fenced(p);                                                                          \
        }                                                                                                    \
        return builtin(p, v, __ATOMIC_RELAXED);                                                              \
    }
#else
#define FIBER_ST_FENCED(bits)                                                                                \
    TERN_DEVICE void st_fenced_sys_u##bits(uint##bits##_t *p, uint##bits##_t v)                              \
    {                                                                                                        \
        simt_check_fence();                                                                                  \
        st_release_sys_u##bits(p, v);                                                                        \
    }
#define FIBER_ATOM_FENCED(name, builtin)                                                                     \
    TERN_DEVICE uint64_t name##_fenced_sys_u64(uint64_t *p, uint64_t v)                                      \
    {                                                                                                        \
        simt_check_fence();                                                                                  \
        return name##_acqrel_sys_u64(p, v);                                                                  \
    }
#endif
FIBER_ST_FENCED(64)
FIBER_ST_FENCED(32)
FIBER_ATOM_FENCED(atom_add, __atomic_fetch_add)
FIBER_ATOM_FENCED(atom_swap, __atomic_exchange_n)
TERN_DEVICE void st_register_sys_u64(uint64_t *p, uint64_t v) { st_fenced_sys_u64(p, v); }
#undef FIBER_ST_FENCED
#undef FIBER_ATOM_FENCED

/* Other stores and loads get no order by it, as ThreadSanitizer sees them: a kernel that needs a fence
 * between relaxed accesses is reported. */
TERN_DEVICE void fence_acqrel_sys(void) { simt_fenced(); }

/* An exchange, not a fence, which ThreadSanitizer does not know: it orders as much on the hosts there are. */
TERN_DEVICE void fence_sc_sys(void)
{
    uint32_t word = 0;
    (void)__atomic_exchange_n(&word, 1, __ATOMIC_SEQ_CST);
}

TERN_DEVICE void fence_compiler(void) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

TERN_DEVICE struct vec16 ld_vec16(const void *p)
{
    struct vec16 v;
    memcpy(&v, __builtin_assume_aligned(p, 16), 16);
    return v;
}

TERN_DEVICE struct vec16 ld_stream_vec16(const void *p) { return ld_vec16(p); }

TERN_DEVICE void st_vec16(void *p, struct vec16 v) { memcpy(__builtin_assume_aligned(p, 16), &v, 16); }

TERN_DEVICE void st_stream_vec16(void *p, struct vec16 v) { st_vec16(p, v); }

/* Round to nearest, ties to even; NaN becomes 0x7fff as the GPU has it. */
TERN_DEVICE uint32_t simt_bf16(float v)
{
    uint32_t u = f32_bits(v);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return 0x7fffu;
    }
    return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

TERN_DEVICE uint32_t cvt_bf16x2(float lo, float hi) { return simt_bf16(lo) | simt_bf16(hi) << 16; }

/* As the GPU: of +0 and -0 the first, of two NaNs 0x7fff. In the high half of a word. */
TERN_DEVICE uint32_t simt_max_bf16(uint32_t a, uint32_t b)
{
    const float x = bits_f32(a), y = bits_f32(b);
    if (x > y) {
        return a;
    }
    if (y >= x) {
        return x == y ? a & b : b;
    }
    return x == x ? a : y == y ? b : 0x7fff0000u;
}

TERN_DEVICE uint32_t max_bf16x2(uint32_t a, uint32_t b)
{
    return simt_max_bf16(a & 0xffff0000u, b & 0xffff0000u) | simt_max_bf16(a << 16, b << 16) >> 16;
}

uint32_t simt_e4m3(float v);
TERN_DEVICE uint32_t cvt_e4m3x4(float a, float b, float c, float d)
{
    return simt_e4m3(a) | simt_e4m3(b) << 8 | simt_e4m3(c) << 16 | simt_e4m3(d) << 24;
}

#endif
