/* SPDX-License-Identifier: Apache-2.0
 *
 * Fibers: stacks, and going from the scheduler to a fiber and back. Stacks come from slabs without guard
 * pages (the kernel allows 65,530 mappings, and 32 thousand fibers live at once); instead the lowest bytes of
 * a stack must still be zero when its fiber ends. Fibers are never returned before the executor closes,
 * because a ThreadSanitizer context is slow to make; the stack and its context stay together, so that one
 * user of a stack is ordered after the one before.
 *
 *     low                                                                  high
 *     | zeros (canary) | ........................ stack <- | struct fiber | pad |
 *
 * The pad differs from fiber to fiber: without it the busy ends of all stacks would fall into one set of each
 * cache. */
#include "simt/executor.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Addresses; memory only for what is touched. One call of tern_device.h takes 15 KiB of a program's kernel
 * that is compiled without optimization; with AddressSanitizer's zones around every variable, a kernel that
 * makes all calls takes more than 64. */
#if defined(TERN_ASAN) || defined(TERN_TSAN)
#define STACK_BYTES (256 * 1024)
#define SLAB_FIBERS 16
#else
#define STACK_BYTES (64 * 1024)
#define SLAB_FIBERS 64
#endif
#define CANARY_BYTES 128
#define PAD_STEP     128
#define PADS         16

struct slab {
    struct slab *next;
    char *base;
};

_Thread_local struct simt_thread *simt_self;

static void check_canary(struct fiber *f)
{
    const uint64_t *word = (const uint64_t *)(void *)f->stack_low;

    for (size_t i = 0; i < CANARY_BYTES / sizeof(*word); i++) {
        if (word[i] != 0) {
            char text[120];
            snprintf(text, sizeof(text), "thread %d has overflown its stack of %d bytes", f->thread.tid,
                     STACK_BYTES);
            terni_report(f->executor, f->block, text);
        }
    }
}

/* Where every fiber begins, anew for every kernel. */
static void fiber_main(void)
{
    struct fiber *f = current_fiber();

    stack_arrive(NULL, &f->executor->scheduler_low, &f->executor->scheduler_bytes);
    order_acquire(&f->block->begin);
    f->block->grid->op->function(f->block->grid->op->args);
    terni_bulk_check_exit(f);
    if (f->warp->joined != 0 || f->block->whole.joined != 0) {
        f->warp->ready &= ~(1u << f->lane);
        f->warp->exited |= 1u << f->lane;
        terni_fiber_bug(f, "thread %d has ended while others wait for it in a barrier", f->thread.tid);
    }
    order_release(&f->block->end);
    order_release(&f->block->grid->stream->clock);
    f->fate = FIBER_ENDED;
    terni_fiber_yield(f);
    abort(); /* an ended fiber is not resumed */
}

void terni_fiber_resume(struct fiber *f)
{
    struct executor *x = f->executor;

    simt_self = &f->thread;
    order_enter(f->context);
    stack_leave(&x->scheduler_fake_stack, f->stack_low, (size_t)(f->stack_high - f->stack_low));
    terni_context_switch(&x->scheduler, &f->stack);
    stack_arrive(x->scheduler_fake_stack, NULL, NULL);
    if (f->fate == FIBER_LIVES) {
        return;
    }
    if (f->fate == FIBER_FAULTY) {
        order_acquire(&x->bug_clock);
        terni_report(x, f->block, x->bug_text);
    }
    check_canary(f);
    terni_fiber_ended(f);
}

void terni_fiber_yield(struct fiber *f)
{
    struct executor *x = f->executor;

    order_enter(x->context);
    stack_leave(f->fate == FIBER_ENDED ? NULL : &f->fake_stack, x->scheduler_low, x->scheduler_bytes);
    terni_context_switch(&f->stack, &x->scheduler);
    stack_arrive(f->fake_stack, &x->scheduler_low, &x->scheduler_bytes);
}

static void slab_add(struct executor *x)
{
    struct slab *slab = (struct slab *)terni_executor_need(malloc(sizeof(*slab)), "a slab of stacks");
    size_t bytes = (size_t)SLAB_FIBERS * STACK_BYTES;
    void *base =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    slab->base = (char *)terni_executor_need(base == MAP_FAILED ? NULL : base, "a slab of stacks");
    slab->next = x->slabs;
    x->slabs = slab;
    for (int i = SLAB_FIBERS - 1; i >= 0; i--) {
        char *low = slab->base + (size_t)i * STACK_BYTES;
        size_t pad = x->num_fibers % PADS * PAD_STEP;
        size_t end = (STACK_BYTES - pad - sizeof(struct fiber)) & ~(size_t)63;
        struct fiber *f = (struct fiber *)(void *)(low + end);

        f->executor = x;
        f->stack_low = low;
        f->stack_high = low + end;
        f->next_free = x->free_fibers;
        x->free_fibers = f;
        x->num_fibers++;
    }
}

struct fiber *terni_fiber_take(struct executor *x)
{
    struct fiber *f;

    if (x->free_fibers == NULL) {
        slab_add(x);
    }
    f = x->free_fibers;
    x->free_fibers = f->next_free;
    if (f->context == NULL) {
        f->context = terni_context_create(x);
    }
    f->fate = FIBER_LIVES;
    f->stores = NULL;
    f->groups = 0;
    f->groups_read = 0;
    f->groups_written = 0;
    f->open_stores = 0;
    f->fake_stack = NULL;
    stack_clean(f->stack_low, (size_t)(f->stack_high - f->stack_low));
    terni_context_init(&f->stack, f->stack_low, f->stack_high, fiber_main);
    return f;
}

void terni_fiber_give(struct fiber *f)
{
    f->next_free = f->executor->free_fibers;
    f->executor->free_fibers = f;
}

void terni_fibers_destroy(struct executor *x)
{
    for (struct fiber *f = x->free_fibers; f != NULL; f = f->next_free) {
        if (f->context != NULL) {
            order_destroy(f->context);
        }
        if (f->fence_context != NULL) {
            order_destroy(f->fence_context);
        }
    }
    while (x->slabs != NULL) {
        struct slab *slab = x->slabs;
        x->slabs = slab->next;
        stack_clean(slab->base, (size_t)SLAB_FIBERS * STACK_BYTES);
        munmap(slab->base, (size_t)SLAB_FIBERS * STACK_BYTES);
        free(slab);
    }
    x->free_fibers = NULL;
}
