/* SPDX-License-Identifier: Apache-2.0
 *
 * The frame of every operation: announce (tell the peers where this rank's outputs are), await (all have),
 * work, leave (tell them that it is finished, and wait for theirs).
 *
 *   rank s                                        rank d
 *   fence, tagged words -> d's window             ld.acquire until every word has the epoch's tag
 *   rows -> d's outputs                           ...
 *   each block: fence, done[s][block] = epoch     block 0: ld.acquire done[s][*]; kernel ends; stream goes on
 *
 * Words of a message carry their own tag, so that nothing is sent twice and no store waits for another's
 * arrival: a peer has the message as soon as it has its words. */
#ifndef TERN_OP_H
#define TERN_OP_H

#include "kernels/fault.h"

/* Programs that are wrong on purpose, for test/tsan_awake.sh: the stores of one signal weakened in each, or
 * the fence before them left out. */
#ifdef TERN_WEAKEN_READY
#define OP_STORE_READY st_relaxed_sys_u64
#else
#define OP_STORE_READY st_fenced_sys_u64
#endif
#ifdef TERN_TEST_NO_SYSTEM_FENCE
#define OP_FENCE() ((void)0)
#else
/* Pairs with the acquires of op_receive, op_await_done and await_rows in the peers. */
#define OP_FENCE() fence_acqrel_sys()
#endif
#ifdef TERN_WEAKEN_DONE
#define OP_STORE_DONE st_relaxed_sys_u64
#else
#define OP_STORE_DONE st_fenced_sys_u64
#endif
#ifdef TERN_WEAKEN_DRAINED
#define OP_STORE_DRAINED st_relaxed_sys_u64
#else
#define OP_STORE_DRAINED st_fenced_sys_u64
#endif
#ifdef TERN_WEAKEN_PUSHED
#define OP_STORE_PUSHED st_relaxed_sys_u64
#else
#define OP_STORE_PUSHED st_fenced_sys_u64
#endif

/* In a done word of this rank's own: the block has ended, and gave up. Its epoch is there as well. */
#define OP_GAVE_UP (1ull << 63)

/* What a block learns from the messages, in its shared memory. */
struct op_table {
    struct place *places; /* [num_columns][num_ranks] */
    uint64_t *capacities; /* [num_ranks] rows */
    uint64_t *blocks;     /* [num_ranks] of the peer's launch */
    int num_columns;
};

TERN_DEVICE struct op_table op_table_at(char *memory, int num_columns, int num_ranks)
{
    struct op_table t;
    t.places = (struct place *)memory;
    t.capacities = (uint64_t *)(t.places + num_columns * num_ranks);
    t.blocks = t.capacities + num_ranks;
    t.num_columns = num_columns;
    return t;
}

/* What `from` sends, in the window that begins at `heap`. */
TERN_DEVICE uint64_t *op_message(const struct op_frame *f, char *heap, uint64_t epoch, int from)
{
    return (uint64_t *)(heap + f->message_offset) + ((int)(epoch & 1) * f->num_ranks + from) * MESSAGE_WORDS;
}

/* The count row that `from` sends: [num_ranks] pairs a destination, then [num_experts] choices. */
TERN_DEVICE uint64_t *op_counts(const struct op_frame *f, char *heap, uint64_t epoch, int from,
                                uint32_t columns)
{
    return (uint64_t *)(heap + f->counts_offset) +
           ((epoch & 1) * (uint64_t)f->num_ranks + (uint64_t)from) * columns;
}

TERN_DEVICE uint64_t *op_done(const struct op_frame *f, char *heap, int from, int block)
{
    return (uint64_t *)(heap + f->done_offset) + from * EP_MAX_BLOCKS + block;
}

/* The epoch of this operation. Every block reads it before block 0 raises it in op_leave. */
TERN_DEVICE uint64_t op_epoch(const struct op_frame *f) { return f->state->epoch + 1; }

/* A word that says by its tag which operation it belongs to. Tags return after 2^32 operations: a word is
 * mistaken only if nobody has written it for exactly so many. */
TERN_DEVICE uint64_t op_tagged(uint64_t epoch, uint32_t data) { return epoch << 32 | data; }

TERN_DEVICE int op_has_tag(uint64_t word, uint64_t epoch)
{
    return (uint32_t)(word >> 32) == (uint32_t)epoch;
}

/* The first warp of one block, others pass: this rank is in; the first so many values of its message, and
 * all that the kernels before it in the stream wrote or read, precede. One warp, because a fence takes the
 * longer the more of them have one; storing several words a lane takes less. */
TERN_DEVICE void op_announce(const struct op_frame *f, uint64_t epoch, int num_values)
{
    const uint64_t *values = (const uint64_t *)&f->message;
    int words = 2 * num_values;
    int i = lane();
    if (warp() != 0) {
        return;
    }
    char *heap = f->ep_bases[i / words < f->num_ranks ? i / words : 0]; /* on its way before the fence */
    OP_FENCE(); /* makes the stores below releases; pairs with the acquires in op_receive */
    while (i < words * f->num_ranks) {
        int w = i % words;
        uint32_t half = (uint32_t)(values[w >> 1] >> (32 * (w & 1)));
        OP_STORE_READY(op_message(f, heap, epoch, f->rank) + w, op_tagged(epoch, half));
        i += 32;
        heap = f->ep_bases[i / words < f->num_ranks ? i / words : 0];
    }
}

/* Waits for a value of rank `peer` in two neighbouring tagged words; 0 if the operation is to be
 * abandoned. */
TERN_DEVICE int op_receive(const struct op_frame *f, uint64_t epoch, int peer, const uint64_t *words,
                           uint64_t *value)
{
    struct op_patience patience = {0};
    int stamps = words == op_message(f, f->own, epoch, peer); /* its first value's, for all */
    for (;;) {
        /* First, as a load behind an acquire begins only when that is here. It says itself all it says. */
        uint64_t high = ld_relaxed_sys_u64(words + 1);
        /* Pairs with the fence and stores of op_announce: what the peer's earlier kernels wrote is visible
         * afterwards, and what they read has been read. */
        uint64_t low = ld_acquire_sys_u64(words);
        if (op_has_tag(low, epoch) && op_has_tag(high, epoch)) {
            *value = high << 32 | (uint32_t)low;
            if (stamps) {
                op_waited(f, &patience, 0, 1);
            }
            return 1;
        }
        struct op_note note = {
            OP_STATUS_TIMEOUT, OP_AWAIT_READY, peer, f->rank, epoch, epoch, low >> 32, 0, 0, 0};
        int verdict = op_patient(f, &patience, &note);
        if (verdict == OP_EXPIRED) {
            for (int s = 0; s < f->num_ranks; s++) {
                if (!op_has_tag(ld_relaxed_sys_u64(op_message(f, f->own, epoch, s)), epoch)) {
                    op_note_late(f, &note, s);
                }
            }
            op_fault(f, &note);
        }
        if (verdict != OP_WAIT_ON) {
            op_waited(f, &patience, 0, 0);
            return 0;
        }
    }
}

/* Whether rank s is in the same operation, by its signature. */
TERN_DEVICE int op_matches(const struct op_frame *f, uint64_t epoch, int s, uint64_t signature)
{
    if (signature == f->message.signature) {
        return 1;
    }
    struct op_note note = {OP_STATUS_MISMATCH,   OP_AWAIT_MATCH, s, f->rank, epoch,
                           f->message.signature, signature,      0, 0,       0};
    op_fault(f, &note);
    return 0;
}

/* Puts value v of rank s's message into the table; 0 if s is in another operation. */
TERN_DEVICE int op_take(const struct op_frame *f, uint64_t epoch, const struct op_table *t, int s, int v,
                        uint64_t value, char *ep_base, char *user_base)
{
    if (v == MESSAGE_SIGNATURE) {
        return op_matches(f, epoch, s, value);
    }
    if (v == MESSAGE_NUM_ROWS) {
        t->capacities[s] = value;
    } else if (v == MESSAGE_NUM_BLOCKS) {
        t->blocks[s] = value;
    } else if (v >= MESSAGE_COLUMNS) {
        struct place *at = &t->places[(v - MESSAGE_COLUMNS) / 2 * f->num_ranks + s];
        if ((v - MESSAGE_COLUMNS) & 1) {
            at->stride = (int64_t)value;
        } else {
            char *heap = value & PLACE_USER_HEAP ? user_base : ep_base;
            at->base = value == PLACE_NONE ? 0 : heap + (value & ~PLACE_USER_HEAP);
        }
    }
    return 1;
}

/* All threads of the block: every rank is in, in the same operation, and the table is filled. Without a table
 * (NULL), only the signatures are looked at. 0: abandon. */
TERN_DEVICE int op_await(const struct op_frame *f, uint64_t epoch, const struct op_table *t)
{
    int values = t ? MESSAGE_COLUMNS + 2 * t->num_columns : 1;
    /* One thread looks whether the others have given up on a rank that comes late. */
    int failed = tid() == nthr() - 1 && op_stopped(f, epoch, OP_AWAIT_READY);
    for (int i = tid(); !failed && i < values * f->num_ranks; i += nthr()) {
        int s = i / values;
        int v = i % values;
        char *ep_base = f->ep_bases[s]; /* on their way while the wait goes on */
        char *user_base = f->user_bases[s];
        uint64_t value;
        failed = !op_receive(f, epoch, s, op_message(f, f->own, epoch, s) + 2 * v, &value) ||
                 !op_take(f, epoch, t, s, v, value, ep_base, user_base);
    }
    return !sync_block_or(failed);
}

/* All threads of the block, after op_await: where this rank's own rows are, if that is not what it has told
 * its peers. */
TERN_DEVICE void op_take_own(const struct op_frame *f, const struct op_table *t, const struct place *own)
{
    int any = 0;
    for (int c = 0; c < t->num_columns; c++) {
        any |= own[c].base != 0;
    }
    if (!any) {
        return;
    }
    for (int c = tid(); c < t->num_columns; c += nthr()) {
        if (own[c].base) {
            t->places[c * f->num_ranks + f->rank] = own[c];
        }
    }
    sync_block();
}

/* Waits for a word of rank s that says that rows are here, or how many: one of at least `expected`, or if
 * `tagged` one of this operation. 0 if the operation is to be abandoned. */
TERN_DEVICE int op_await_rows(const struct op_frame *f, uint64_t epoch, int s, const uint64_t *word,
                              uint64_t expected, const int tagged, uint64_t *seen)
{
    struct op_patience patience = {0};
    for (;;) {
        /* Pairs with the release of the stream's store in terni_engine_push, or with push_tell's, or with the
         * fence in drain_tell; what is tagged says itself all that it says. */
        *seen = ld_acquire_sys_u64(word);
        if (tagged ? op_has_tag(*seen, epoch) : *seen >= expected) {
            op_waited(f, &patience, 0, 1);
            return 1;
        }
        struct op_note note = {OP_STATUS_TIMEOUT, OP_AWAIT_ROWS, s, f->rank, epoch, expected, *seen, 0, 0, 0};
        int verdict = op_patient(f, &patience, &note);
        if (verdict == OP_EXPIRED) {
            op_note_late(f, &note, s);
            op_fault(f, &note);
        }
        if (verdict != OP_WAIT_ON) {
            op_waited(f, &patience, 0, 0);
            return 0;
        }
    }
}

/* Waits until block b of rank s has finished; 0 if the operation is to be abandoned, also where a block of
 * this rank has: the abort word, which is asked rarely, may not have been seen yet. */
TERN_DEVICE int op_await_done(const struct op_frame *f, uint64_t epoch, const struct op_table *t, int s,
                              int b)
{
    const uint64_t *word = op_done(f, f->own, s, b);
    struct op_patience patience = {0};
    uint64_t said = 0;
    for (;;) {
        /* Pairs with the fence and store in op_tell_all, or op_leave_quietly: that block's rows are here; or
         * its reads are over. */
        uint64_t seen = ld_acquire_sys_u64(word);
        if (seen >= epoch) { /* or it gave up, this epoch or an earlier one */
            op_waited(f, &patience, 0, 1);
            return seen < OP_GAVE_UP;
        }
        struct op_note note = {OP_STATUS_TIMEOUT, OP_AWAIT_DONE, s, f->rank, epoch, epoch, seen, 0, 0, 0};
        int verdict = op_patient(f, &patience, &note);
        if (verdict == OP_EXPIRED && OP_AWAITS_ON(f, s, note.elapsed_ns, &said)) {
            continue;
        }
        if (verdict == OP_EXPIRED) {
            for (int r = 0, excused = OP_EXCUSES(f, &note, said); !excused && r < f->num_ranks; r++) {
                int late = 0; /* whoever waits for a peer is not: some blocks tell their own rank later */
                for (uint64_t i = 0; (r != f->rank || s == r) && i < t->blocks[r]; i++) {
                    late |= ld_relaxed_sys_u64(op_done(f, f->own, r, (int)i)) < epoch;
                }
                if (late) {
                    op_note_late(f, &note, r);
                }
            }
            op_fault(f, &note);
        }
        if (verdict != OP_WAIT_ON) {
            op_waited(f, &patience, 0, 0);
            return 0;
        }
    }
}

/* After a fault, until block b of this rank has said its done word too, for it must not read the epoch after
 * it was raised, and claims nothing any more then; nothing else follows from the word. It sees the abort word
 * and says it at once, unless it has no processor; then the deadline ends this. */
TERN_DEVICE void op_await_own(const struct op_frame *f, uint64_t epoch, int b)
{
    uint64_t begin = clock_ns();
    /* Pairs with the store to the own window in op_tell_all, or with op_leave_quietly's. */
    while ((ld_acquire_sys_u64(op_done(f, f->own, f->rank, b)) & ~OP_GAVE_UP) < epoch &&
           clock_ns() - begin < f->timeout_ns) {
        spin();
    }
}

/* All threads of a block, each having completed its own copies: tells every peer, and with `own` this rank as
 * well; after a fault this rank alone. ok: nothing was abandoned; the result is that too. */
TERN_DEVICE int op_tell_all(const struct op_frame *f, uint64_t epoch, int ok, const int own)
{
    char *heap = f->ep_bases[tid() < f->num_ranks ? tid() : 0]; /* on its way before the fence */
    sync_block();
    if (tid() < f->num_ranks) {
        /* With the barrier above, what any thread of this block wrote or read precedes the stores below. */
        OP_FENCE();
    }
    /* While the fences run: whoever gave up on this rank has told its host so, and must not be proved
     * wrong. */
    ok = ok && !(tid() == nthr() - 1 && op_stopped(f, epoch, OP_AWAIT_DONE));
    ok = !sync_block_or(!ok);
    for (int d = tid(); ok && d < f->num_ranks; d += nthr()) {
        heap = d == tid() ? heap : f->ep_bases[d];
        if (own || d != f->rank) {
            /* Pairs with op_await_done at the peer: without it rows may be read before they are there, or
             * buffers reused while they are still read. Of this rank, with op_await_own as well. */
            OP_STORE_DONE(op_done(f, heap, f->rank, bid()), epoch);
        }
    }
    if (own && !ok && tid() == 0) {
        OP_STORE_DONE(op_done(f, f->own, f->rank, bid()), epoch | OP_GAVE_UP); /* pairs with the same */
    }
    sync_block(); /* whoever sees this block's ticket comes after its stores to peers */
    return ok;
}

/* All threads of block 0: all blocks of all peers are done, and with `own` those of this rank. */
TERN_DEVICE int op_hear_all(const struct op_frame *f, uint64_t epoch, const struct op_table *t, int ok,
                            const int own)
{
    for (int s = warp(); ok && s < f->num_ranks; s += nwarps()) {
        int blocks = own || s != f->rank ? (int)t->blocks[s] : 0;
        for (int b = lane(); ok && b < blocks; b += 32) {
            ok = op_await_done(f, epoch, t, s, b);
        }
    }
    return !sync_block_or(!ok);
}

/* All threads of block 0, after a fault: until the other blocks have ended. */
TERN_DEVICE void op_hear_own(const struct op_frame *f, uint64_t epoch, int ok)
{
    for (int b = 1 + tid(); !ok && b < nblk(); b += nthr()) {
        op_await_own(f, epoch, b);
    }
    sync_block();
}

/* All threads of every block, each having completed its own copies; ok: nothing was abandoned. Each block
 * tells every rank, or after a fault its own. Block 0 waits for all blocks of all ranks; the others are
 * gone by then and their processors free. 1 in every thread of block 0 if all went well: it finishes.
 * begin: when the block began, for its stamp. */
TERN_DEVICE int op_await_all(const struct op_frame *f, uint64_t epoch, const struct op_table *t, int ok,
                             uint64_t begin)
{
    ok = op_tell_all(f, epoch, ok, 1);
    if (bid() != 0) {
        if (tid() == 0) {
            stamp_block(f, 0, epoch, begin);
            op_tell_host(f, bid());
        }
        return 0;
    }
    ok = op_hear_all(f, epoch, t, ok, 1);
    op_hear_own(f, epoch, ok);
    return ok;
}

/* All threads of a block whose work no peer waits for: it tells this rank's first block alone. */
TERN_DEVICE void op_leave_quietly(const struct op_frame *f, uint64_t epoch, uint64_t begin)
{
    sync_block();
    if (tid() == 0) {
        OP_FENCE(); /* pairs with op_await_done of this rank */
        OP_STORE_DONE(op_done(f, f->own, f->rank, bid()), epoch);
        stamp_block(f, 0, epoch, begin);
        op_tell_host(f, bid());
    }
}

/* The same, and the end of the operation. */
TERN_DEVICE void op_leave(const struct op_frame *f, uint64_t epoch, const struct op_table *t, int ok,
                          uint64_t begin)
{
    (void)op_await_all(f, epoch, t, ok, begin);
    if (bid() == 0 && tid() == 0) {
        stamp_block(f, 0, epoch, begin);
        op_finish(f, epoch);
    }
}

#endif
