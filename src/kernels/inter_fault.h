/* SPDX-License-Identifier: Apache-2.0
 *
 * Waits for what other domains' ranks do, and how a fault travels between domains.
 *
 * A rank has one abort word, whoever sets it. Inside a domain who finds a fault sets all ranks' words
 * (fault.h). When a rank leaves an operation that was abandoned, it passes the word on, to its rail peers by
 * the network and to those of its domain that have none: so every rank in an operation learns of it from its
 * domain or from its rail peer, whichever is in one, too. The word has the communicator's numbers, as records
 * have.
 *
 * Waits across domains have an eighth more patience than the deadline, so that a rank that does not come is
 * named by those who wait for it in its own domain, and not the one that waits for it there. And who waits so
 * says it, beside its own abort word: domain-mates that have finished, a quarter past the deadline, ask
 * before they blame it (inter_line.h). Without, a link that dies or drags on in mid-operation would be laid
 * to whoever waits at its ends: their patience begins anew with every message, that of their mates does not.
 * Of a link a record names both ends, whoever tells: the one that is awaited, and the one that reports it.
 *
 * A rank that the network knows to be lost is named at once, by who waits for it: not first, after a
 * deadline, a rank that itself waits for the lost one in its own domain. */
#ifndef TERN_INTER_FAULT_H
#define TERN_INTER_FAULT_H

#include "kernels/inter_args.h"
#include "kernels/op.h"
#include "net/route.h"

/* The rank of domain e that has this rank's place there: as the network numbers it, and as notes do. */
TERN_DEVICE int rail_peer(const struct op_frame *f, int e) { return e * f->num_ranks + f->rank; }
TERN_DEVICE int rail_note(const struct op_frame *f, int e) { return rail_peer(f, e) - f->first_rank; }

/* This rank waits for note->peer, in this operation: said at every look at the clock, with the time, by which
 * mates see that it still does. */
TERN_DEVICE void inter_says(const struct op_frame *f, const struct op_note *note)
{
    uint64_t word = ABORT_WORD(note->peer + OP_FIRST_RANK(f), note->reporter + OP_FIRST_RANK(f),
                               OP_STATUS_TIMEOUT, note->awaited);
    /* Relaxed: nothing is read on the strength of it. Pair with inter_awaits_on, inter_excuses in a mate. */
    st_relaxed_sys_u64(op_own_word(f, f->abort_offset, OP_WAITS_WORD), word | note->epoch << 48);
    st_relaxed_sys_u64(op_own_word(f, f->abort_offset, OP_SAID_WORD), clock_ns());
}

/* After an operation on the rail peer in domain e. All threads that took part, or one; the first of them
 * tells. 0: the operation is to be abandoned. */
TERN_DEVICE int inter_carried(const struct op_frame *f, uint64_t epoch, int e, int status, int tells)
{
    if (TERN_RARE(status != TERN_OK) && tells) {
        struct op_note note = {
            status, OP_AWAIT_TRANSPORT, rail_note(f, e), f->rank, epoch, 0, (uint64_t)(int64_t)-status, 0, 0,
            0};
        op_fault(f, &note);
    }
    return status == TERN_OK;
}

/* Whether the network knows that a rank is lost: by what this one has handed over to it. */
TERN_APART int inter_has_lost(const struct tern_net *net, int peer)
{
    for (uint32_t q = 0; q < net->num_queues; q++) {
        route_look(net, peer, q);
    }
    return route_has_lost(net, peer);
}

/* After a look that found nothing. 0: the operation is to be abandoned. Who is lost is found so twice before
 * it is named: what it sent before that may have come meanwhile. */
TERN_DEVICE int inter_wait_on(const struct op_frame *f, const struct tern_net *net,
                              struct op_patience *patience, struct op_note *note)
{
    int verdict = op_patient(f, patience, note);
    if (TERN_RARE(note->elapsed_ns > f->timeout_ns / 64)) {
        int peer = note->peer + OP_FIRST_RANK(f);
        inter_says(f, note);
        if (verdict != OP_GIVEN_UP && inter_has_lost(net, peer)) {
            if (patience->lost) {
                return inter_carried(f, note->epoch, peer / f->num_ranks, TERN_DISCONNECTED, 1);
            }
            patience->lost = 1;
        }
    }
    if (verdict == OP_EXPIRED && note->elapsed_ns <= f->timeout_ns + f->timeout_ns / 8) {
        return 1;
    }
    if (verdict == OP_EXPIRED) {
        op_note_late(f, note, note->peer);
        op_fault(f, note);
    }
    return verdict == OP_WAIT_ON;
}

/* Until the word is at least `wanted`; 0 if the operation is to be abandoned. What the rail peer in domain e
 * put before it raised the word is here then. */
TERN_DEVICE int inter_await(const struct op_frame *f, const struct tern_net *net, uint64_t epoch, int e,
                            int awaited, const uint64_t *word, uint64_t wanted)
{
    struct op_patience patience = {0};
    for (;;) {
        /* Pairs with the peer's put and signal (net/route.h). */
        uint64_t seen = ld_acquire_sys_u64(word);
        if (seen >= wanted) {
            op_waited(f, &patience, 0, 1);
            return 1;
        }
        struct op_note note = {
            OP_STATUS_TIMEOUT, awaited, rail_note(f, e), f->rank, epoch, wanted, seen, 0, 0, 0};
        if (!inter_wait_on(f, net, &patience, &note)) {
            op_waited(f, &patience, 0, 0);
            return 0;
        }
    }
}

/* The same for a warp: one lane looks. */
TERN_DEVICE int inter_await_warp(const struct op_frame *f, const struct tern_net *net, uint64_t epoch, int e,
                                 int awaited, const uint64_t *word, uint64_t wanted)
{
    int ok = lane() != 0 || inter_await(f, net, epoch, e, awaited, word, wanted);
    ok = !warp_any(!ok);
    sync_warp(); /* what one has seen through the word is there for all */
    return ok;
}

/* One thread, at the end of an operation that was abandoned. */
TERN_DEVICE void inter_tell(const struct op_frame *f, const struct inter_world *w)
{
    uint64_t *own = op_own_word(f, f->abort_offset, 0);
    uint64_t word = ld_relaxed_sys_u64(own);
    for (int d = 0; word && d < f->num_ranks; d++) {
        uint64_t *theirs = op_word(f, d, f->abort_offset, 0);
        if (ld_relaxed_sys_u64(theirs) == 0) {
            st_relaxed_sys_u64(theirs, word);
        }
    }
    for (int e = 0; word && e < w->num_domains; e++) {
        if (e != w->domain) {
            /* If it does not arrive, the peer's deadline does. */
            (void)route_signal(&w->net, rail_peer(f, e), 0, own, sizeof(*own), TERN_SIGNAL_SET, word);
        }
    }
}

#endif
