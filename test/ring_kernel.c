/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of a list, done by the threads of a kernel. The cpu machine runs it in tests of the proxy; where
 * there is nvcc, make check compiles it for GPUs too, and test/spills.sh looks at what became of it. */
#include "ring_steps.h"

/* Until the word is at least `value`. */
TERN_DEVICE uint32_t await_word(const struct net_ring *r, const uint64_t *word, uint64_t value,
                                uint64_t deadline)
{
    struct net_patience patience = net_patience_of(r->abort, deadline);
    /* Pairs with change_word (serve.c), in the proxy that raises it. */
    while (ld_acquire_sys_u64(word) < value) {
        uint32_t status = net_patient(&patience);
        if (status != NET_OK) {
            return status;
        }
    }
    return NET_OK;
}

TERN_DEVICE void do_step(const struct ring_steps_args *p, struct ring_step *s, uint64_t *last)
{
    const struct net_ring *r = &p->rings[s->ring];
    uint64_t deadline = clock_ns() + p->timeout_ns;
    uint64_t ticket = *last, old = 0;
    switch (s->kind) {
    case STEP_PUT:
        ticket = ring_put(r, s->remote, (uint64_t)(uintptr_t)s->local, s->bytes);
        break;
    case STEP_PUT_INLINE:
        ticket = ring_put_inline(r, s->remote, s->value, s->width);
        break;
    case STEP_GET:
        ticket = ring_get(r, (uint64_t)(uintptr_t)s->local, s->remote, s->bytes);
        break;
    case STEP_ATOMIC:
        ticket = ring_atomic(r, s->remote, s->amo, s->width, s->value, s->compare);
        break;
    case STEP_FETCH:
        s->end = ring_fetch(r, s->remote, s->amo, s->width, s->value, s->compare, deadline, &old);
        if (s->width == 4) {
            *(uint32_t *)s->local = (uint32_t)old;
        } else {
            *(uint64_t *)s->local = old;
        }
        break;
    case STEP_PUT_SIGNAL:
        ticket = ring_put(r, s->remote, (uint64_t)(uintptr_t)s->local, s->bytes);
        if (net_ticket_status(ticket) == NET_OK) {
            ticket = ring_atomic(r, s->compare, s->amo, 8, s->value, 0);
        }
        break;
    case STEP_SIGNAL:
        ticket = ring_atomic(r, s->remote, s->amo, 8, s->value, 0);
        break;
    case STEP_FLUSH:
        s->end = ring_flush(r, ticket, deadline);
        break;
    case STEP_FLUSH_ALL:
        s->end = ring_flush_all(r, deadline);
        break;
    case STEP_AWAIT:
        s->end = await_word(r, (const uint64_t *)s->local, s->value, deadline);
        break;
    case STEP_FILL:
        for (uint64_t i = 0; i < s->bytes; i++) {
            s->local[i] = (char)s->value;
        }
        break;
    default:
        break;
    }
    s->ticket = ticket;
    *last = ticket;
}

TERN_KERNEL(ring_steps, struct ring_steps_args, p)
{
    struct ring_step *mine = p->steps + (uint64_t)(bid() * nthr() + tid()) * p->num_steps;
    uint64_t last = 0;
    for (uint32_t i = 0; i < p->num_steps; i++) {
        do_step(p, &mine[i], &last);
    }
}
