/* SPDX-License-Identifier: Apache-2.0
 *
 * What ThreadSanitizer is told of a fence and of the relaxed store behind it, which it does not know. The
 * store hands on what its thread had done, and was ordered after, at its last fence: not what it has acquired
 * since, by a word, an atomic or a barrier, nor what it wrote since. So a fiber that stores so has a second
 * context, which acquires its clock of fences and nothing else, and releases into the words.
 *
 * One approximation: what an earlier store of any thread to the word handed on stays with the word. */
#include "simt/executor.h"

#ifdef TERN_TSAN

void simt_fenced(void)
{
    struct fiber *f = current_fiber();

    f->thread.fenced = 1;
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* for the processor */
    order_release(&f->fence_clock);
}

/* Before the store: whoever sees its value acquires this. */
void simt_release_fenced(void *word)
{
    struct fiber *f = current_fiber();

    if (f->fence_context == NULL) {
        f->fence_context = terni_context_create(f->executor);
    }
    order_enter(f->fence_context);
    order_acquire(&f->fence_clock);
    order_release((char *)word);
    order_enter(f->context);
}

#endif
