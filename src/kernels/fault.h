/* SPDX-License-Identifier: Apache-2.0
 *
 * How a wait ends that should not go on: patience with a deadline, the one record a rank writes for its host,
 * and the verdict that it tells its peers. Nothing traps. */
#ifndef TERN_FAULT_H
#define TERN_FAULT_H

#include "kernels/stamp.h"

enum {
    OP_AWAIT_READY = 1,
    OP_AWAIT_DONE = 2,
    OP_AWAIT_MATCH = 3,
    OP_AWAIT_EXPERT_ID = 4,
    OP_AWAIT_WEIGHTS = 5,
    OP_AWAIT_ROWS = 6,
    OP_AWAIT_COUNTS = 7,
    OP_AWAIT_BLOCK = 8,
    OP_AWAIT_CREDIT = 9,
    OP_AWAIT_CHUNK = 10,
    OP_AWAIT_TRANSPORT = 11
};
enum { OP_STATUS_INVALID = -1, OP_STATUS_MISMATCH = -10, OP_STATUS_TIMEOUT = -11 };

/* Ranks are numbered from the domain's first in a frame and in notes, where those of other domains may be
 * negative; records and abort words have the communicator's numbers. A kernel that is for one domain alone
 * knows the difference: none. */
#ifndef OP_FIRST_RANK
#define OP_FIRST_RANK(f) ((void)(f), 0)
#endif

/* Whether a wait for the last word of rank `of` goes on past the deadline. Across domains it does, for a
 * while: who waits for a rank that waits for another domain is not to be the first to speak; least of all
 * about its own blocks, which have a rank to name when they give up. */
#ifndef OP_AWAITS_ON
#define OP_AWAITS_ON(f, of, elapsed_ns, said) ((void)(said), 0)
#endif

/* Whether a rank whose last word did not come waits itself, for somebody whom the note then names. */
#ifndef OP_EXCUSES
#define OP_EXCUSES(f, note, said) 0
#endif
/* Beside a rank's abort word: whom it waits for, likewise, and when it last said so (inter_fault.h). */
enum { OP_WAITS_WORD = 1, OP_SAID_WORD = 2 };

TERN_DEVICE uint64_t *op_word(const struct op_frame *f, int rank, uint64_t offset, int i)
{
    return (uint64_t *)(f->ep_bases[rank] + offset) + i;
}

/* In this rank's own window, without a load for the address. */
TERN_DEVICE uint64_t *op_own_word(const struct op_frame *f, uint64_t offset, int i)
{
    return (uint64_t *)(f->own + offset) + i;
}

/* How a rank tells another that somebody gave up. Ranks that are not addressed are told otherwise. */
#ifndef OP_SET_WORD
#define OP_SET_WORD(f, rank, offset, i, value) st_relaxed_sys_u64(op_word(f, rank, offset, i), value)
#endif

TERN_DEVICE int op_aborted(const struct op_frame *f)
{
    /* Relaxed: nothing is read on the strength of it. Pairs with op_tell in any rank. */
    return ld_relaxed_sys_u64(op_own_word(f, f->abort_offset, 0)) != 0;
}

/* What a record says; the rest it takes from the frame. */
struct op_note {
    int status, awaited, peer;
    int reporter; /* this rank, or the one for whom it acts */
    uint64_t epoch, expected, seen, elapsed_ns;
    uint64_t late_low, late_high; /* ranks 0..63 and 64..127 of the communicator */
};

TERN_DEVICE void op_note_late(const struct op_frame *f, struct op_note *n, int late)
{
    int rank = late + OP_FIRST_RANK(f);
    uint64_t bit = 1ull << (rank & 63);
    n->late_low |= rank < 64 ? bit : 0;
    n->late_high |= rank < 64 ? 0 : bit;
}

/* By the one thread that has the claim to r. */
TERN_DEVICE void op_fill_record(const struct op_frame *f, struct ep_record *r, const struct op_note *n,
                                uint64_t written)
{
    r->status = n->status;
    r->operation = f->operation;
    r->awaited = n->awaited;
    r->rank = f->rank + OP_FIRST_RANK(f);
    r->peer = n->peer + OP_FIRST_RANK(f);
    r->reporter = n->reporter + OP_FIRST_RANK(f);
    r->block = bid();
    r->warp = warp();
    r->epoch = n->epoch;
    r->expected = n->expected;
    r->seen = n->seen;
    r->elapsed_ns = n->elapsed_ns;
    r->late[0] = n->late_low;
    r->late[1] = n->late_high;
    /* Pairs with the acquire in read_record (ep_fault.c): the host reads the rest only after it sees this
     * word. */
    st_release_sys_u64(&r->written, written);
}

TERN_DEVICE void op_write_record(const struct op_frame *f, const struct op_note *n)
{
    /* Pairs with itself in other threads: one of them wins the record. */
    if (atom_cas_acqrel_gpu_u32(&f->state->fault_claim, 0, 1) == 0) {
        op_fill_record(f, f->record, n, 1);
    }
}

/* Every rank learns who was late, so that nobody blames a rank that is itself waiting. */
TERN_DEVICE void op_tell(const struct op_frame *f, const struct op_note *n)
{
    int culprit = n->peer + OP_FIRST_RANK(f), reporter = n->reporter + OP_FIRST_RANK(f);
    uint64_t word = ABORT_WORD(culprit, reporter, n->status, n->awaited);
    for (int d = 0; d < f->num_ranks; d++) {
        OP_SET_WORD(f, d, f->abort_offset, 0, word);
    }
}

/* This rank's own discovery: record it, then stop everybody. */
TERN_DEVICE void op_fault(const struct op_frame *f, const struct op_note *n)
{
    op_write_record(f, n);
    op_tell(f, n);
}

/* What a rank has said in a word like the abort word. */
TERN_DEVICE void op_note_word(const struct op_frame *f, struct op_note *n, uint64_t word)
{
    n->status = ABORT_STATUS(word);
    n->awaited = ABORT_AWAITED(word);
    n->peer = ABORT_CULPRIT(word) - OP_FIRST_RANK(f);
    n->reporter = ABORT_REPORTER(word) - OP_FIRST_RANK(f);
}

/* A peer's discovery reached this rank by its abort word. */
TERN_DEVICE void op_hear(const struct op_frame *f, struct op_note *n)
{
    op_note_word(f, n, ld_relaxed_sys_u64(op_own_word(f, f->abort_offset, 0)));
    op_write_record(f, n);
}

/* 1 if somebody gave up; then there is a record, so that no abandoned operation looks like a success. */
TERN_DEVICE int op_stopped(const struct op_frame *f, uint64_t epoch, int awaited)
{
    if (TERN_RARE(op_aborted(f))) {
        struct op_note note = {0, awaited, 0, 0, epoch, epoch, 0, 0, 0, 0};
        op_hear(f, &note);
        return 1;
    }
    return 0;
}

/* One thread of block b, which has done all that it does. */
TERN_DEVICE void op_tell_host(const struct op_frame *f, int b)
{
    if (f->ticket) {
        /* Pairs with wait_word in terni_ep_wait: whoever has seen those of all blocks that say it may zero or
         * free what the operation used. */
        st_release_sys_u64(f->latest + b, f->ticket);
    }
}

/* The last that an operation does. One thread. */
TERN_DEVICE void op_finish(const struct op_frame *f, uint64_t epoch)
{
    f->state->epoch = epoch;
    f->state->taken = 0; /* no block claims any more; or, after a fault, a reset zeroes it then */
    op_tell_host(f, 0);
}

/* One wait. Begins with zeros; op_patient is asked after every look that found nothing, op_waited told of
 * the end. */
struct op_patience {
    uint64_t begin;
    uint32_t looks;
    uint32_t lost; /* the peer, when it was last looked for (inter_fault.h) */
#ifdef TERN_STAMPS
    struct stamp_wait stamp;
#endif
};
enum { OP_WAIT_ON, OP_GIVEN_UP, OP_EXPIRED };

/* OP_GIVEN_UP: a peer stopped the operation, and that is on record. OP_EXPIRED: the deadline has passed; the
 * note has everything but who else is late, and the caller faults with it. */
TERN_DEVICE int op_patient(const struct op_frame *f, struct op_patience *w, struct op_note *note)
{
    w->looks++;
#ifdef TERN_STAMPS
    stamp_wait_on(f, &w->stamp, note->peer + OP_FIRST_RANK(f), note->awaited, note->epoch);
#endif
    spin();
    if (w->looks % 64 != 0) {
        return OP_WAIT_ON;
    }
    uint64_t now = clock_ns();
    w->begin = w->begin ? w->begin : now;
    note->elapsed_ns = now - w->begin;
    if (TERN_RARE(op_aborted(f))) {
        op_hear(f, note);
        return OP_GIVEN_UP;
    }
    return note->elapsed_ns > f->timeout_ns ? OP_EXPIRED : OP_WAIT_ON;
}

/* The wait is over: what was awaited has come, or not. lane: of low latency. */
TERN_DEVICE void op_waited(const struct op_frame *f, const struct op_patience *w, uint32_t lane, int came)
{
#ifdef TERN_STAMPS
    stamp_waited(f, &w->stamp, lane, came ? STAMP_CAME : STAMP_WITHOUT);
#else
    (void)f, (void)w, (void)lane, (void)came;
#endif
}

#endif
