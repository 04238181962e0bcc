/* SPDX-License-Identifier: Apache-2.0
 *
 * The frame of every operation: announce (tell the peers where this rank's outputs are), await (all have),
 * work, leave (tell them that it is finished, and wait for theirs). A wait that passes its deadline writes
 * one record, tells every peer, and makes the kernel leave; nothing traps.
 *
 *   rank s                                        rank d
 *   message -> d's window, st.release ready[s]    ld.acquire ready[s], reads message
 *   rows -> d's outputs                           ...
 *   last block: st.release done[s]                last block: ld.acquire done[s]; kernel ends; stream goes on
 */
#ifndef TERN_OP_H
#define TERN_OP_H

#include "kernels/ep_args.h"
#include "simt/simt.h"

/* Two programs that are wrong on purpose, for test/tsan_awake.sh: one release store weakened in each. */
#ifdef TERN_WEAKEN_READY
#define OP_SIGNAL_READY st_relaxed_sys_u64
#else
#define OP_SIGNAL_READY st_release_sys_u64
#endif
#ifdef TERN_WEAKEN_DONE
#define OP_SIGNAL_DONE st_relaxed_sys_u64
#else
#define OP_SIGNAL_DONE st_release_sys_u64
#endif

enum {
    OP_AWAIT_READY = 1,
    OP_AWAIT_DONE = 2,
    OP_AWAIT_MATCH = 3,
    OP_AWAIT_EXPERT_ID = 4,
    OP_AWAIT_WEIGHTS = 5
};
enum { OP_STATUS_INVALID = -1, OP_STATUS_MISMATCH = -10, OP_STATUS_TIMEOUT = -11 };

TERN_DEVICE uint64_t *op_word(const struct op_frame *f, int rank, uint64_t offset, int i)
{
    return (uint64_t *)(f->ep_bases[rank] + offset) + i;
}

TERN_DEVICE struct ep_message *op_message(const struct op_frame *f, int rank, uint64_t epoch, int from)
{
    return (struct ep_message *)(f->ep_bases[rank] + f->message_offset) +
           (epoch & 1) * (uint64_t)f->num_ranks + from;
}

/* The count row that `from` sends to `rank`: [num_ranks] pairs a destination, then [num_experts] choices. */
TERN_DEVICE int32_t *op_counts(const struct op_frame *f, int rank, uint64_t epoch, int from, uint32_t columns)
{
    return (int32_t *)(f->ep_bases[rank] + f->counts_offset) +
           ((epoch & 1) * (uint64_t)f->num_ranks + from) * (uint64_t)columns;
}

TERN_DEVICE int op_aborted(const struct op_frame *f)
{
    /* Relaxed: nothing is read on the strength of it. Pairs with op_tell in any rank. */
    return ld_relaxed_sys_u64(op_word(f, f->rank, f->abort_offset, 0)) != 0;
}

/* What a record says; the rest it takes from the frame. */
struct op_note {
    int status, awaited, peer, reporter;
    uint64_t epoch, expected, seen, elapsed_ns;
    uint64_t late_low, late_high; /* ranks 0..63 and 64..127 */
};

/* By the one thread that has the claim to r. */
TERN_DEVICE void op_fill_record(const struct op_frame *f, struct ep_record *r, const struct op_note *n,
                                uint64_t written)
{
    r->status = n->status;
    r->operation = f->operation;
    r->awaited = n->awaited;
    r->rank = f->rank;
    r->peer = n->peer;
    r->reporter = n->reporter;
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
    uint64_t word = ABORT_WORD(n->peer, f->rank, n->status);
    for (int d = 0; d < f->num_ranks; d++) {
        st_relaxed_sys_u64(op_word(f, d, f->abort_offset, 0), word);
    }
}

/* This rank's own discovery: record it, then stop everybody. */
TERN_DEVICE void op_fault(const struct op_frame *f, const struct op_note *n)
{
    op_write_record(f, n);
    op_tell(f, n);
}

/* A peer's discovery reached this rank by its abort word. */
TERN_DEVICE void op_hear(const struct op_frame *f, struct op_note *n)
{
    uint64_t word = ld_relaxed_sys_u64(op_word(f, f->rank, f->abort_offset, 0));
    n->status = ABORT_STATUS(word);
    n->peer = ABORT_CULPRIT(word);
    n->reporter = ABORT_REPORTER(word);
    op_write_record(f, n);
}

/* 1 if somebody gave up; then there is a record, so that no abandoned operation looks like a success. */
TERN_DEVICE int op_stopped(const struct op_frame *f, uint64_t epoch, int awaited)
{
    if (!op_aborted(f)) {
        return 0;
    }
    struct op_note note = {0, awaited, 0, 0, epoch, epoch, 0, 0, 0, 0};
    op_hear(f, &note);
    return 1;
}

/* Waits until this rank's words[peer] reaches `value`; 0 if the operation is to be abandoned. `offset` is
 * ready_offset or done_offset. Pairs with the release stores in op_announce and op_leave: what the peer wrote
 * before them is visible afterwards. */
TERN_DEVICE int op_wait(const struct op_frame *f, uint64_t offset, int peer, uint64_t value, int awaited)
{
    const uint64_t *word = op_word(f, f->rank, offset, peer);
    /* Pairs with the releases named above, as does the load in the loop. */
    uint64_t seen = ld_acquire_sys_u64(word);
    uint64_t begin = 0;
    for (uint32_t n = 0; seen < value; n++) {
        if (n % 64 == 63) {
            uint64_t now = clock_ns();
            begin = begin ? begin : now;
            struct op_note note = {OP_STATUS_TIMEOUT, awaited, peer, f->rank, value, value, seen,
                                   now - begin,       0,       0};
            if (op_aborted(f)) {
                op_hear(f, &note);
                return 0;
            }
            if (note.elapsed_ns > f->timeout_ns) {
                for (int s = 0; s < f->num_ranks; s++) {
                    uint64_t bit = (uint64_t)(ld_relaxed_sys_u64(op_word(f, f->rank, offset, s)) < value)
                                   << (s & 63);
                    note.late_low |= s < 64 ? bit : 0;
                    note.late_high |= s < 64 ? 0 : bit;
                }
                op_fault(f, &note);
                return 0;
            }
        }
        spin();
        seen = ld_acquire_sys_u64(word); /* pairs with the same releases */
    }
    return 1;
}

/* The epoch of this operation. Every block reads it before the last block raises it in op_leave. */
TERN_DEVICE uint64_t op_epoch(const struct op_frame *f) { return f->state->epoch + 1; }

/* Threads of one block: this rank is in; its message of so many columns, and all that the block wrote to
 * peers so far, precede. */
TERN_DEVICE void op_announce(const struct op_frame *f, uint64_t epoch, int num_columns)
{
    int words =
        (int)(offsetof(struct ep_message, columns) / 8) + num_columns * (int)(sizeof(struct ep_place) / 8);
    for (int d = tid(); d < f->num_ranks; d += nthr()) {
        const uint64_t *from = (const uint64_t *)&f->message;
        uint64_t *to = (uint64_t *)op_message(f, d, epoch, f->rank);
        for (int i = 0; i < words; i++) {
            to[i] = from[i];
        }
        /* Pairs with the acquire in op_wait(READY): without it the peer may read an older message. */
        OP_SIGNAL_READY(op_word(f, d, f->ready_offset, f->rank), epoch);
    }
}

/* All threads of the block: every rank is in, in the same operation. 0: abandon. */
TERN_DEVICE int op_await(const struct op_frame *f, uint64_t epoch)
{
    int failed = op_stopped(f, epoch, OP_AWAIT_READY);
    for (int s = tid(); !failed && s < f->num_ranks; s += nthr()) {
        if (!op_wait(f, f->ready_offset, s, epoch, OP_AWAIT_READY)) {
            failed = 1;
        } else {
            uint64_t theirs = op_message(f, f->rank, epoch, s)->signature;
            if (theirs != f->message.signature) {
                struct op_note note = {OP_STATUS_MISMATCH,   OP_AWAIT_MATCH, s, f->rank, epoch,
                                       f->message.signature, theirs,         0, 0,       0};
                op_fault(f, &note);
                failed = 1;
            }
        }
    }
    return !sync_block_or(failed);
}

/* All threads of every block, each having completed its own copies. The last block to come tells every peer
 * and waits for them; the others are gone by then and their processors free. */
TERN_DEVICE void op_leave(const struct op_frame *f, uint64_t epoch)
{
    int last = 0;
    sync_block();
    if (tid() == 0) {
        /* Blocks chain through this atomic, which pairs with itself in the other blocks: each one's writes,
         * in memory of any rank, precede the last block's done signals. The fences pair with each other
         * across blocks; they are of system scope because some of those writes went to peers. */
        fence_acqrel_sys();
        last = atom_add_acqrel_gpu_u32(&f->state->blocks_done, 1) == (uint32_t)nblk() - 1;
        fence_acqrel_sys(); /* pairs with the fence above in earlier blocks */
    }
    if (!sync_block_or(last)) {
        return;
    }
    int failed = sync_block_or(op_stopped(f, epoch, OP_AWAIT_DONE));
    for (int d = tid(); !failed && d < f->num_ranks; d += nthr()) {
        /* Pairs with op_wait(DONE) at the peer: without it rows may be read before they are there, or
         * buffers reused while they are still read. */
        OP_SIGNAL_DONE(op_word(f, d, f->done_offset, f->rank), epoch);
    }
    for (int s = tid(); !failed && s < f->num_ranks; s += nthr()) {
        failed = !op_wait(f, f->done_offset, s, epoch, OP_AWAIT_DONE);
    }
    sync_block();
    if (tid() == 0) {
        f->state->blocks_done = 0;
        f->state->epoch = epoch;
    }
}

#endif
