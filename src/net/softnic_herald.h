/* SPDX-License-Identifier: Apache-2.0
 *
 * Both sides of a software NIC's words that are raised at their time (softnic_due.h): a warp of the engine
 * that hands them over, and the herald, the block's last warp, a lane a word.
 *
 * Words of a queue pair may be raised in any order, though none is due before what comes before it: so those
 * that are under way are of one form, and none is set twice; and nothing before them is left to be done but
 * such words. What orders puts before their signal is a fence of the herald, which it has as a word is handed
 * over and not when its time has come. */
#ifndef TERN_SOFTNIC_HERALD_H
#define TERN_SOFTNIC_HERALD_H

#include "net/softnic_together.h"

/* ---- The engine's side ---- */

/* Whether an entry before may be raised beside, or behind, this one. */
TERN_DEVICE int herald_is_like(const struct softnic_flight *f, const struct softnic_flight *before)
{
    const int sets = softnic_is_set(&f->op.amo);
    return before->word == NULL || (before->old == f->old && softnic_is_set(&before->op.amo) == sets &&
                                    !(sets && before->word == f->word));
}

/* Whether the flight is a word that may be handed over, with those before it; then *due is when, as few bytes
 * that overtake other queue pairs' do not overtake what is before them in their own. */
TERN_DEVICE int herald_takes(struct softnic_work *w, const struct softnic_flight *f, uint64_t number,
                             uint64_t *due)
{
    int takes = f->op.bytes == SOFTNIC_DUE_BYTES && softnic_form(&f->op.amo) != SOFTNIC_ALONE &&
                (uintptr_t)f->old % SOFTNIC_DUE_BYTES == 0;
    *due = f->when.arrives;
    TERN_ROLLED
    for (uint64_t k = w->qp->num_arrived; takes && k != number; k++) {
        const struct softnic_flight *before = softnic_flight_of(w, k);
        takes = herald_is_like(f, before);
        *due = softnic_later(*due, before->when.arrives);
    }
    return takes;
}

/* All lanes: whether all before flight `first` is done, or handed over. */
TERN_DEVICE int herald_is_next(struct softnic_work *w, uint64_t first)
{
    int next = 1;
    for (uint64_t k = w->qp->num_arrived + (uint64_t)lane(); k < first; k += 32) {
        const struct softnic_flight *f = softnic_flight_of(w, k);
        next = next && f->syndrome == SYNDROME_NONE && (together_is_idle(f) || f->due != 0);
    }
    return warp_all(next);
}

/* Bit number n of those that are set. */
TERN_DEVICE uint32_t herald_bit(uint32_t bits, uint32_t n)
{
    for (; n != 0; n--) {
        bits &= bits - 1;
    }
    return (uint32_t)TERN_FFS(bits) - 1;
}

/* One warp, when the copies of `num` flights from `first` on, of an early list, have been made by threads
 * that it has synchronised with: all their words, or none. */
TERN_DEVICE void herald_hand_over(struct softnic_work *w, uint64_t first, uint32_t num)
{
    struct softnic_due *due = w->due;
    struct softnic_flight *f = (uint32_t)lane() < num ? softnic_flight_of(w, first + (uint32_t)lane()) : NULL;
    const int is_word = f != NULL && f->word != NULL;
    const uint32_t words = warp_ballot(is_word);
    uint64_t arrives = 0;
    if (due == NULL || words == 0 || !herald_is_next(w, first)) {
        return;
    }
    const int is_left = is_word && !herald_takes(w, f, first + (uint32_t)lane(), &arrives);
    /* Pairs with softnic_due_collect: whoever had the slot has read it. */
    const uint32_t is_free = warp_ballot(
        lane() < SOFTNIC_DUE && atom_add_acqrel_cta_u32(&due->states[lane()], 0) == SOFTNIC_DUE_FREE);
    if (warp_any(is_left) || TERN_POPC(words) > TERN_POPC(is_free)) {
        return;
    }
    if (is_word) {
        const uint32_t slot = herald_bit(is_free, (uint32_t)popc_before(words, lane()));
        const struct softnic_due_word word = {(uint64_t *)(void *)f->word, f->op.amo.swap_add, arrives, 0,
                                              (uint64_t)softnic_is_set(&f->op.amo)};
        due->words[slot] = word;
        f->due = slot + 1;
        /* Pairs with herald_look: the word, and the copies that it tells of. */
        (void)atom_add_acqrel_cta_u32(&due->states[slot], SOFTNIC_DUE_HANDED);
    }
    sync_warp(); /* all have been handed over */
    if (lane() == 0) {
        w->qp->num_heralded += (uint32_t)TERN_POPC(words);
        (void)atom_add_acqrel_cta_u32(&due->told, 1); /* pairs with herald_await: all states */
    }
}

/* The NIC has ended, and the herald with it: what was raised has arrived, the rest is as if it had never been
 * handed over. One thread a queue pair. */
TERN_DEVICE void herald_settle(struct softnic_due *due, struct softnic_qp *qp)
{
    TERN_ROLLED
    for (uint64_t k = qp->num_arrived; qp->flights != NULL && k != qp->num_taken; k++) {
        struct softnic_flight *f = &qp->flights[k & (SOFTNIC_FLIGHTS - 1)];
        if (f->due != 0 && !softnic_due_collect(due, f)) {
            f->due = 0;
        }
    }
}

/* ---- The herald ---- */

/* What a lane has: its word is to be raised, or has been, and the engine is to be told. */
enum { HERALD_NOTHING, HERALD_WORD, HERALD_RAISED };

/* A lane of its own: a word has been handed over to it. */
TERN_DEVICE int herald_look(struct softnic_due *due)
{
    /* Pairs with herald_hand_over. */
    if (atom_add_acqrel_cta_u32(&due->states[lane()], 0) != SOFTNIC_DUE_HANDED) {
        return HERALD_NOTHING;
    }
    fence_acqrel_sys(); /* with the atomics in herald_raise; pairs with whoever waits for the word */
    return HERALD_WORD;
}

TERN_DEVICE void herald_raise(struct softnic_due_word *d)
{
    const uint64_t old =
        d->sets ? atom_swap_fenced_sys_u64(d->word, d->value) : atom_add_fenced_sys_u64(d->word, d->value);
    d->old = wqe_amo_result(SOFTNIC_DUE_BYTES, old);
}

/* Later, when nobody waits for it: what others put before the old value is not newer than what is read once
 * that is known. */
TERN_DEVICE void herald_tell(struct softnic_due *due)
{
    fence_acqrel_sys(); /* behind the atomic an acquire; pairs with whoever raised the word before */
    /* Pairs with softnic_due_collect. */
    (void)atom_add_acqrel_cta_u32(&due->states[lane()], SOFTNIC_DUE_RAISED - SOFTNIC_DUE_HANDED);
}

/* The last lane, which has no words: until some have been handed over since *seen, or the NIC ends; only one
 * look if others have something to do. Returns `ends`. */
TERN_DEVICE uint32_t herald_await(struct softnic_due *due, int is_busy, uint32_t *seen)
{
    uint32_t ends, told;
    for (;;) {
        ends = atom_add_cta_u32(&due->ends, 0);
        told = atom_add_acqrel_cta_u32(&due->told, 0); /* pairs with herald_hand_over */
        if (is_busy || ends != 0 || told != *seen) {
            break;
        }
        spin();
    }
    *seen = told;
    return ends;
}

/* One warp, until the NIC ends. Words that are due come first: the fences of what is new, and of what has
 * been raised, hold up all lanes. */
TERN_DEVICE void herald_serve(struct softnic_due *due)
{
    uint32_t seen = 0, told = 0, ends = 0;
    int has = HERALD_NOTHING;
    for (;;) {
        const int is_busy = warp_any(has != HERALD_NOTHING);
        if (lane() == SOFTNIC_DUE) {
            ends = herald_await(due, is_busy, &told);
        }
        ends = shfl_u32(ends, SOFTNIC_DUE);
        told = shfl_u32(told, SOFTNIC_DUE);
        sync_warp(); /* what was handed over before the last lane saw it */
        if (ends != 0) {
            return;
        }
        if (has == HERALD_WORD && softnic_is_due(softnic_ticks(clock_ns()), due->words[lane()].arrives)) {
            herald_raise(&due->words[lane()]);
            has = HERALD_RAISED;
        } else if (has == HERALD_RAISED) {
            herald_tell(due);
            has = HERALD_NOTHING;
        } else if (has == HERALD_NOTHING && lane() < SOFTNIC_DUE && told != seen) {
            has = herald_look(due);
        }
        seen = told;
        spin();
    }
}

#endif
