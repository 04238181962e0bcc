/* SPDX-License-Identifier: Apache-2.0
 *
 * Words of a software NIC that are raised when their time comes, whatever its engine is at then: a warp that
 * does nothing else has them (softnic_herald.h), of signals whose puts, and all before them in the queue
 * pair, have been copied, or handed over like them. The engine is late by what it does at the time, a copy,
 * or the way to the wire's words and back, five to ten microseconds of a wire's two.
 *
 *   state: free  ->  the engine: handed over  ->  the herald: raised  ->  the engine, as it arrives: free */
#ifndef TERN_SOFTNIC_DUE_H
#define TERN_SOFTNIC_DUE_H

#include "net/softnic_list.h"

enum { SOFTNIC_DUE = 31 /* a lane each, but the last */, SOFTNIC_DUE_BYTES = 8 /* of a word */ };
enum { SOFTNIC_DUE_FREE, SOFTNIC_DUE_HANDED, SOFTNIC_DUE_RAISED };

struct softnic_due_word {
    uint64_t *word;
    uint64_t value, arrives; /* the latter ticks */
    uint64_t old;            /* once it has been raised */
    uint64_t sets;           /* else it is added to */
};

/* In shared memory; all 0 to begin with. */
struct softnic_due {
    struct softnic_due_word words[SOFTNIC_DUE];
    uint32_t states[SOFTNIC_DUE];
    uint32_t told; /* changes when words have been handed over */
    uint32_t ends; /* not 0: the NIC ends, and what has not been raised will be when it is started again */
};

/* A flight that was handed over. 0: it has not been raised yet. Else all that it does has happened. */
TERN_DEVICE int softnic_due_collect(struct softnic_due *due, struct softnic_flight *f)
{
    const uint32_t slot = f->due - 1;
    uint32_t *state = &due->states[slot];
    /* Pairs with herald_tell: the old value can be read. */
    if (atom_add_acqrel_cta_u32(state, 0) != SOFTNIC_DUE_RAISED) {
        return 0;
    }
    softnic_store_word(f->old, SOFTNIC_DUE_BYTES, due->words[slot].old);
    /* Pairs with herald_hand_over, which fills the slot again: its value has been read. */
    (void)atom_add_acqrel_cta_u32(state, 0u - SOFTNIC_DUE_RAISED);
    f->due = 0;
    f->word = f->old = NULL;
    f->is_moved = 1;
    return 1;
}

#endif
