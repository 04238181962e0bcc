/* SPDX-License-Identifier: Apache-2.0
 *
 * terni_context_switch pushes the callee-saved registers, stores the stack pointer in *from, loads the one of
 * *to and pops. A new context's stack is laid out as if it had been switched away from at the first
 * instruction of entry(). */
#include "simt/context_switch.h"

#include <stdint.h>

#ifndef TERN_UCONTEXT

#if defined(__x86_64__)
__asm__(".text\n"
        ".p2align 4\n"
        ".globl terni_context_switch\n"
        ".hidden terni_context_switch\n"
        ".type terni_context_switch, @function\n"
        "terni_context_switch:\n"
        "    push %rbp\n"
        "    push %rbx\n"
        "    push %r12\n"
        "    push %r13\n"
        "    push %r14\n"
        "    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov (%rsi), %rsp\n"
        "    pop %r15\n"
        "    pop %r14\n"
        "    pop %r13\n"
        "    pop %r12\n"
        "    pop %rbx\n"
        "    pop %rbp\n"
        "    ret\n"
        ".size terni_context_switch, . - terni_context_switch\n");

void terni_context_init(struct stack_context *c, char *low, char *high, void (*entry)(void))
{
    uint64_t *sp = (uint64_t *)(void *)high;

    (void)low;
    *--sp = 0; /* entry's return address: the end for whoever walks the stack */
    *--sp = (uint64_t)(uintptr_t)entry;
    for (int i = 0; i < 6; i++) {
        *--sp = 0;
    }
    c->sp = sp;
}
#else
__asm__(".text\n"
        ".p2align 4\n"
        ".globl terni_context_switch\n"
        ".hidden terni_context_switch\n"
        ".type terni_context_switch, %function\n"
        "terni_context_switch:\n"
        "    sub sp, sp, #160\n"
        "    stp x29, x30, [sp]\n"
        "    stp x19, x20, [sp, #16]\n"
        "    stp x21, x22, [sp, #32]\n"
        "    stp x23, x24, [sp, #48]\n"
        "    stp x25, x26, [sp, #64]\n"
        "    stp x27, x28, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n"
        "    str x9, [x0]\n"
        "    ldr x9, [x1]\n"
        "    mov sp, x9\n"
        "    ldp x29, x30, [sp]\n"
        "    ldp x19, x20, [sp, #16]\n"
        "    ldp x21, x22, [sp, #32]\n"
        "    ldp x23, x24, [sp, #48]\n"
        "    ldp x25, x26, [sp, #64]\n"
        "    ldp x27, x28, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size terni_context_switch, . - terni_context_switch\n");

void terni_context_init(struct stack_context *c, char *low, char *high, void (*entry)(void))
{
    uint64_t *sp = (uint64_t *)(void *)high - 20;

    (void)low;
    for (int i = 0; i < 20; i++) {
        sp[i] = 0;
    }
    sp[1] = (uint64_t)(uintptr_t)entry; /* x30, where ret goes */
    c->sp = sp;
}
#endif

#else

#include <stdlib.h>

void terni_context_init(struct stack_context *c, char *low, char *high, void (*entry)(void))
{
    if (getcontext(&c->state) != 0) {
        abort(); /* cannot fail on any system that has it */
    }
    c->state.uc_stack.ss_sp = low;
    c->state.uc_stack.ss_size = (size_t)(high - low);
    c->state.uc_link = NULL;
    makecontext(&c->state, entry, 0);
}

void terni_context_switch(struct stack_context *from, struct stack_context *to)
{
    swapcontext(&from->state, &to->state);
}

#endif
