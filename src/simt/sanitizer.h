/* SPDX-License-Identifier: Apache-2.0
 *
 * What the executor tells the sanitizers. ThreadSanitizer sees every fiber, stream and bulk copy as a context
 * of its own; order between contexts exists only where order_release and order_acquire say so, on a clock
 * (any address that is used for nothing else). AddressSanitizer is told which stack is in use.
 *
 * Files of the executor are compiled without -fsanitize=thread but with -DTERN_TSAN=1: their own accesses,
 * which the one worker thread makes for all contexts, are then invisible, as they should be. Calls that
 * ThreadSanitizer intercepts (malloc, free, memcpy, mutexes) do count: they are made in the context that
 * order_enter chose, and a block of memory is freed in a context that is ordered after its users. */
#ifndef TERN_SANITIZER_H
#define TERN_SANITIZER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define TERN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TERN_ASAN 1
#endif
#endif

#ifdef TERN_TSAN
#include <sanitizer/tsan_interface.h>

static inline void order_release(char *clock) { __tsan_release(clock); }
static inline void order_acquire(char *clock) { __tsan_acquire(clock); }
static inline void *order_current(void) { return __tsan_get_current_fiber(); }
/* The new context begins with everything that the current one is ordered after. */
static inline void *order_create(void) { return __tsan_create_fiber(0); }
static inline void order_destroy(void *context) { __tsan_destroy_fiber(context); }
/* Accesses from here on are those of `context`; flag 1: without ordering it after what came before. */
static inline void order_enter(void *context) { __tsan_switch_to_fiber(context, 1); }

void __tsan_read_range(void *p, unsigned long bytes); /* which gcc and clang call, but no header has */
void __tsan_write_range(void *p, unsigned long bytes);

static inline void copy_unseen(void *dst, const void *src, size_t bytes)
{
    /* Volatile, or the compiler would call memcpy, which is watched. */
    volatile uint64_t *to = (volatile uint64_t *)dst;
    const uint64_t *from = (const uint64_t *)src;

    for (size_t i = 0; i < bytes / 8; i++) {
        to[i] = from[i];
    }
}
static inline void order_copy_in(void *dst, const void *src, size_t bytes)
{
    __tsan_read_range((void *)(uintptr_t)src, bytes);
    copy_unseen(dst, src, bytes);
}
static inline void order_copy_out(void *dst, const void *src, size_t bytes)
{
    __tsan_write_range(dst, bytes);
    copy_unseen(dst, src, bytes);
}
#else
static inline void order_release(char *clock) { (void)clock; }
static inline void order_acquire(char *clock) { (void)clock; }
static inline void *order_current(void) { return NULL; }
static inline void *order_create(void) { return NULL; }
static inline void order_destroy(void *context) { (void)context; }
static inline void order_enter(void *context) { (void)context; }
/* The halves of a copy through memory of the executor's own: the first is an access to the source, the second
 * one to the destination, which may be made in different contexts. Multiples of 8 bytes, aligned. */
static inline void order_copy_in(void *dst, const void *src, size_t bytes) { memcpy(dst, src, bytes); }
static inline void order_copy_out(void *dst, const void *src, size_t bytes) { memcpy(dst, src, bytes); }
#endif

#ifdef TERN_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

/* Before a switch to the stack [low, low + bytes); *fake keeps the leaving context's frames, NULL drops them.
 */
static inline void stack_leave(void **fake, const void *low, size_t bytes)
{
    __sanitizer_start_switch_fiber(fake, low, bytes);
}
/* After a switch: `fake` is what stack_leave kept for the arriving context; tells which stack was left. */
static inline void stack_arrive(void *fake, const void **low, size_t *bytes)
{
    __sanitizer_finish_switch_fiber(fake, low, bytes);
}
static inline void stack_clean(void *low, size_t bytes) { __asan_unpoison_memory_region(low, bytes); }
static inline int is_poisoned(const void *p, size_t bytes)
{
    return bytes != 0 && __asan_region_is_poisoned((void *)(size_t)p, bytes) != NULL;
}
#else
static inline void stack_leave(void **fake, const void *low, size_t bytes)
{
    (void)fake;
    (void)low;
    (void)bytes;
}
static inline void stack_arrive(void *fake, const void **low, size_t *bytes)
{
    (void)fake;
    (void)low;
    (void)bytes;
}
static inline void stack_clean(void *low, size_t bytes)
{
    (void)low;
    (void)bytes;
}
static inline int is_poisoned(const void *p, size_t bytes)
{
    (void)p;
    (void)bytes;
    return 0;
}
#endif

#endif
