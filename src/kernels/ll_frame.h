/* SPDX-License-Identifier: Apache-2.0
 *
 * The frame of a low-latency operation. It differs from op.h: nobody says where outputs are, since rows go to
 * buffers at known places, and nobody says that it is done, since every row's own word says so.
 *
 *   rank s                                       rank d
 *   fence, tagged entry words -> d               ld.acquire until all ranks' words have the tag: of dispatch
 *                                                every block, of combine one warp
 *   row -> d's buffer; fence, tagged word        whoever wants the row: ld.acquire of its word
 *
 * Rows in words, of few tokens, have no words of their own, and entries then one warp awaits (ll_in_words.h,
 * ll_ids.h); nor have rows over blanks, of some more (ll_blanks.h). What keeps a buffer from being written
 * while it is read is in ll_args.h. */
#ifndef TERN_LL_FRAME_H
#define TERN_LL_FRAME_H

#include "kernels/ll_mask.h"

TERN_DEVICE uint64_t *ll_entry(const struct ll_lane *l, char *heap, uint64_t epoch, int from)
{
    uint64_t *copy = (uint64_t *)(heap + l->entries + (epoch & 1) * l->entry_bytes);
    return copy + (uint64_t)from * l->entry_words;
}

TERN_DEVICE uint64_t *ll_arrival(const struct ll_lane *l, char *heap, uint64_t epoch, uint64_t i)
{
    return (uint64_t *)(heap + l->arrivals + (epoch & 1) * l->arrival_bytes) + i;
}

/* Dispatch's row i of rank s, among arrival words and in the buffer. */
TERN_DEVICE uint64_t ll_place_of(const struct ll_lane *l, uint32_t s, uint32_t i)
{
    return s * l->source_rows + i;
}

TERN_DEVICE char *ll_buffer(const struct ll_lane *l, char *heap, uint64_t epoch)
{
    return heap + l->buffers + (epoch & 1) * l->buffer_bytes;
}

enum { LL_AT_ONCE = 2 }; /* loads that a thread has on their way, to hide the latency of each */

/* What a block reads first of all, so that it comes while the block does what needs none of it. */
struct ll_glance {
    uint64_t epoch; /* of this operation */
    int stopped;    /* the last thread: the object has a fault */
};

/* All threads, before the block's first barrier. */
TERN_DEVICE struct ll_glance ll_look(const struct op_frame *f, const struct ll_lane *l)
{
    struct ll_glance g = {l->state->epoch + 1, 0};
    if (tid() == nthr() - 1) {
        g.stopped = op_aborted(f);
    }
    ll_look_round(f, l);
    return g;
}

/* All threads, a barrier. *ok is 0 if the object has a fault. */
TERN_DEVICE void ll_enter(const struct op_frame *f, const struct ll_glance *g, int *ok)
{
    *ok = !sync_block_or(TERN_RARE(g->stopped) && op_stopped(f, g->epoch, OP_AWAIT_READY));
}

/* Every block of a kernel that receives, before it does: the last one raises the state's epoch, which all
 * have read by then; the next kernel in the stream reads it, no other. Here and not at the start, where all
 * warps of the block would soon wait at a barrier for the answer to the atomic: now they wait for peers. */
TERN_DEVICE void ll_raise(const struct op_frame *f, const struct ll_lane *l, uint64_t epoch)
{
    if (tid() == nthr() - 1) {
        /* Pairs with itself in the other blocks: their reads of the epoch, with the barrier in ll_enter, come
         * before its change. */
        if (atom_add_acqrel_gpu_u32(&l->state->entered, 1) == (uint32_t)nblk() - 1) {
            l->state->entered = 0;
            l->state->epoch = epoch;
            if (ll_has_masks(l)) {
                ll_learn(f, l, epoch);
            }
        }
    }
}

/* What a row's word becomes: all of the epoch, its low half where other words have their tag. A row's word
 * may rest for long, if batches are mostly small; so it never looks new again. */
TERN_DEVICE uint64_t ll_arrived(uint64_t epoch) { return op_tagged(epoch, (uint32_t)(epoch >> 32)); }

/* A row by its arrival word, the i-th of the copy. Not here: only after ll_raise_doubt. */
TERN_DEVICE int ll_judge_row(const struct op_frame *f, const struct ll_lane *l, uint64_t epoch, uint64_t i,
                             const uint64_t *word)
{
    /* Pairs with the fence and store of the sender's arrival word, as in ll_await. */
    return ll_settle(&l->masks.verdicts[(uint64_t)f->num_ranks + i], epoch,
                     ld_acquire_sys_u64(word) == ll_arrived(epoch));
}

/* When this thread's receive phase begins, if anybody asks. */
TERN_DEVICE uint64_t ll_begin(const struct ll_lane *l) { return TERN_RARE(l->wait_ns) ? clock_ns() : 0; }

/* All threads of the block, at the end of a receiving phase. */
TERN_DEVICE void ll_leave(const struct op_frame *f, const struct ll_lane *l, uint64_t epoch)
{
    if (tid() == 0) { /* which receives, also where some threads only send */
        /* Whoever gave up on this rank has told its host so, and must not be proved wrong. */
        op_stopped(f, epoch, OP_AWAIT_DONE);
    }
    if (TERN_RARE(l->wait_ns)) {
        sync_block();
        for (int r = tid(); r < f->num_ranks; r += nthr()) {
            ll_add_wait(l, epoch, r);
        }
    }
}

/* Of a lane, in stamps: the host takes off what the window's own layout adds. */
TERN_DEVICE uint32_t ll_number(const struct ll_lane *l)
{
    return (uint32_t)(l->entries / (2 * l->entry_bytes));
}

/* All threads of the block, last of all. begin: when it began. */
TERN_DEVICE void ll_stamp(const struct op_frame *f, const struct ll_lane *l, uint64_t epoch, uint64_t begin)
{
#ifdef TERN_STAMPS
    sync_block();
#endif
    if (tid() == 0) {
        stamp_block(f, ll_number(l), epoch, begin);
    }
}

/* Railed: a far rank has not sent what its domain has for this one. If a rank of that domain is not even in,
 * it is the one that is waited for. */
TERN_DEVICE void ll_look_behind(const struct op_frame *f, const struct ll_lane *l, struct op_note *note)
{
    int first = ll_on_rail(f, (int)ll_domain_of(f, (uint32_t)note->peer), 0);
    for (int s = first; s < first + ll_far_of(f)->num_near; s++) {
        if (!op_has_tag(ld_relaxed_sys_u64(ll_entry(l, f->own, note->epoch, s)), note->epoch)) {
            note->peer = s;
            return;
        }
    }
}

/* The deadline of a wait has passed: the object's operations end, or the peer is masked. */
TERN_DEVICE int ll_expire(const struct op_frame *f, const struct ll_lane *l, struct op_note *note)
{
    if (LL_WITH_RAIL && note->awaited == OP_AWAIT_DONE && ll_is_far(f, note->peer)) {
        ll_look_behind(f, l, note);
    }
    if (!op_has_tag(ld_relaxed_sys_u64(ll_entry(l, f->own, note->epoch, note->peer)), note->epoch)) {
        note->awaited = OP_AWAIT_READY; /* whose row is awaited is not even in */
    }
    TERN_ROLLED
    for (int s = 0; note->awaited == OP_AWAIT_READY && s < f->num_ranks; s++) {
        if (!ll_gone(f, l, s) &&
            !op_has_tag(ld_relaxed_sys_u64(ll_entry(l, f->own, note->epoch, s)), note->epoch)) {
            op_note_late(f, note, s);
        }
    }
    op_note_late(f, note, note->peer);
    if (ll_has_masks(l)) {
        ll_evict(f, l, note);
        return LL_LOST;
    }
    op_fault(f, note);
    return LL_ABANDON;
}

/* How much longer than the deadline a wait across domains may take.
 *
 * A rank that has not entered the operation may wait in the one before, for the culprit, and is about to say
 * so; it began later than this one if messages came late. So it is given an eighth more, and a quarter if
 * several have not entered, as it may then wait an eighth longer itself. Whoever has entered, and whose row
 * does not come, waits for nobody; but railed, any may wait there for any, which may itself be for a relay
 * (ll_await_by). */
TERN_DEVICE uint64_t ll_more_patience(const struct op_frame *f, const struct ll_lane *l, uint64_t epoch,
                                      int relayed, int peer)
{
    int absent = 0, is_in = 1;
    TERN_ROLLED
    for (int s = 0; s < f->num_ranks; s++) {
        int in = op_has_tag(ld_relaxed_sys_u64(ll_entry(l, f->own, epoch, s)), epoch);
        absent += !in;
        is_in = s == peer ? in : is_in;
    }
    if (!LL_WITH_RAIL && is_in) {
        return 0;
    }
    return absent > 1 ? f->timeout_ns / 4 : relayed || absent ? f->timeout_ns / 8 : 0;
}

/* Waits for a tagged word (OP_AWAIT_READY) or a row's word (OP_AWAIT_DONE) of rank `peer`: LL_HERE, LL_LOST
 * (leave the peer out), or LL_ABANDON (which is 0). relayed: the peer only hands on, or adds, what others
 * have sent it; it waits for them, and has an eighth of the deadline more to say so itself. */
TERN_DEVICE int ll_await_by(const struct op_frame *f, const struct ll_lane *l, uint64_t epoch, uint64_t begin,
                            int awaited, int relayed, int peer, const uint64_t *word, uint32_t *data)
{
    struct ll_patience patience = {{0}, 0, 0, 0};
    int end = LL_HERE;
    for (;;) {
        /* Pairs with the fence and store in ll_announce_counts, ll_announce_combine, ll_say_in, or of a row's
         * word: the row is here; and what the peer's earlier kernels read has been read. */
        uint64_t seen = ld_acquire_sys_u64(word);
        *data = (uint32_t)seen;
        if (awaited == OP_AWAIT_READY ? op_has_tag(seen, epoch) : seen == ll_arrived(epoch)) {
            break;
        }
        struct op_note note = {OP_STATUS_TIMEOUT, awaited, peer, f->rank, epoch, epoch, seen >> 32, 0, 0, 0};
        int verdict = ll_patient(f, l, &patience, &note);
        if (LL_WITH_FAR && TERN_RARE(verdict == OP_EXPIRED) &&
            note.elapsed_ns <= f->timeout_ns + ll_more_patience(f, l, epoch, relayed, peer)) {
            continue;
        }
        if (TERN_RARE(verdict != OP_WAIT_ON)) {
            end = verdict == OP_LOST ? LL_LOST : verdict == OP_EXPIRED ? ll_expire(f, l, &note) : LL_ABANDON;
            break;
        }
    }
    op_waited(f, &patience.op, ll_number(l), end == LL_HERE);
    if (TERN_RARE(l->wait_ns) && patience.op.looks > 0) {
        ll_note_wait(l, peer, begin);
    }
    return end;
}

TERN_DEVICE int ll_await(const struct op_frame *f, const struct ll_lane *l, uint64_t epoch, uint64_t begin,
                         int awaited, int peer, const uint64_t *word, uint32_t *data)
{
    return ll_await_by(f, l, epoch, begin, awaited, 0, peer, word, data);
}

/* Of a combine, the warp that speaks and listens for this rank: no other has fewer rows, or weights. */
TERN_DEVICE int ll_is_speaker(void) { return bid() == nblk() - 1 && warp() == nwarps() - 1; }

/* One warp of a rank: every rank is in, in the same operation, or masked; 0: abandon. */
TERN_DEVICE int ll_await_entries(const struct op_frame *f, const struct ll_lane *l, uint64_t epoch,
                                 uint64_t begin)
{
    int ok = 1;
    for (int s = lane(); ok && s < f->num_ranks; s += 32) {
        uint32_t signature = 0;
        int end = ll_gone(f, l, s) ? LL_LOST
                                   : ll_await(f, l, epoch, begin, OP_AWAIT_READY, s,
                                              ll_entry(l, f->own, epoch, s), &signature);
        ok = end == LL_LOST || (end == LL_HERE && op_matches(f, epoch, s, signature));
    }
    return warp_all(ok);
}

#endif
