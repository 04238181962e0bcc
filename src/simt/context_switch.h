/* SPDX-License-Identifier: Apache-2.0
 *
 * Switching stacks: a few lines of assembly for x86-64 and aarch64, ucontext elsewhere (or with
 * -DTERN_UCONTEXT). Only what a call must preserve is kept; floating-point modes are not, because kernels do
 * not change them. */
#ifndef TERN_CONTEXT_SWITCH_H
#define TERN_CONTEXT_SWITCH_H

#if !defined(TERN_UCONTEXT) && ((defined(__x86_64__) && defined(__LP64__)) || defined(__aarch64__))
struct stack_context {
    void *sp;
};
#else
#ifndef TERN_UCONTEXT
#define TERN_UCONTEXT 1
#endif
#include <ucontext.h>
struct stack_context {
    ucontext_t state;
};
#endif

/* Makes a context that runs entry() on the stack [low, high) when first switched to. high is 16-byte aligned;
 * entry never returns. */
void terni_context_init(struct stack_context *c, char *low, char *high, void (*entry)(void));
void terni_context_switch(struct stack_context *from, struct stack_context *to);

#endif
