/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks: a rank that misses a deadline is left out, and the operation goes on
 * (docs/decisions/007-low-latency.md).
 *
 * Whoever gives up on a rank writes so into the windows of all, the culprit's first: it is evicted, sends and
 * waits no more, and only counts operations. A block reads the words of all ranks once, beside the epoch.
 * Before a rank is blamed it is looked whether it says that it waits for somebody itself.
 *
 * What came of a lost sender may be read by several warps, and may still come while they give it up. So the
 * first who gives up anything in an operation marks the operation as doubtful; from then on every warp asks
 * for a verdict on the row, or on the source's counts, which the first who asks decides for all. Everybody
 * looks at the mark after he has seen a word arrive, beside his loads of the row. Who sees no mark has seen a
 * word that was there before the mark, hence whoever gives a verdict sees that word too. No fence orders the
 * reader's two looks: the mark lies in the memory of the one device that reads it, and whoever sets it lets
 * LL_GRACE_NS pass before the first verdict. */
#ifndef TERN_LL_MASK_H
#define TERN_LL_MASK_H

#include "kernels/ll_far.h" /* before op.h: it says how words are set */

#include "kernels/op.h"

enum {
    LL_CLEAR,
    LL_NEWS,
    LL_KNOWN
}; /* what a block knows of a rank: NEWS may have come while others began */
enum { LL_ABANDON, LL_HERE, LL_LOST }; /* how a wait ended */
enum { OP_LOST = OP_EXPIRED + 1 };     /* a verdict of ll_patient beside those of op_patient */
enum { LL_ROUNDS = 4, LL_GRACE_NS = 5000 };

/* Kernels for objects without masks are compiled without the code for them, which is most of a kernel: less
 * of it lies between the instructions that run. */
#ifndef LL_WITH_MASKS
#define LL_WITH_MASKS 1
#endif

TERN_DEVICE int ll_has_masks(const struct ll_lane *l) { return TERN_RARE(LL_WITH_MASKS && l->masks.heard); }

/* Of the block, in shared memory: the longest wait for each rank. */
TERN_DEVICE uint64_t *ll_waited(const struct ll_lane *l) { return (uint64_t *)(shared_memory() + l->watch); }

/* Likewise: LL_CLEAR, LL_NEWS or LL_KNOWN of each rank. */
TERN_DEVICE uint32_t *ll_seen(const struct op_frame *f, const struct ll_lane *l)
{
    return (uint32_t *)(ll_waited(l) + f->num_ranks);
}

/* Whether somebody has told this rank to leave out rank r. */
TERN_DEVICE int ll_heard(const struct op_frame *f, const struct ll_lane *l, int r)
{
    /* Relaxed: what is read on the strength of it has words of its own. Pairs with ll_evict in any rank. */
    return ld_relaxed_sys_u64(op_own_word(f, l->masks.heard, r)) != 0;
}

/* All are to leave out rank r, as the word says. r knows it no later than those to whom it would send, and
 * who would not wait for it; unless it is far, when nothing orders what it is told. mates: near ranks, too.
 * Far ranks that are left out themselves need not know, and may be dead. */
TERN_DEVICE void ll_tell_all(const struct op_frame *f, const struct ll_lane *l, int r, uint64_t word,
                             int mates)
{
    ll_set_word(f, r, l->masks.heard, r, word);
    OP_FENCE();
    for (int d = 0; d < f->num_ranks; d++) {
        if (ll_is_far(f, d) ? !ll_heard(f, l, d) : mates || d == f->rank) {
            ll_set_word(f, d, l->masks.heard, r, word);
        }
    }
}

/* Across domains, one thread of a block that leaves rank r out from now on, as a rank has said that may be
 * unable to tell r: r itself is told. So nobody sends less to a rank that does not know why, and would give
 * up on whom it misses. If r is near, all are told, for the mates of whoever spoke have not been. */
TERN_DEVICE void ll_hand_on(const struct op_frame *f, const struct ll_lane *l, int r, uint64_t word)
{
    uint32_t *knows = &l->masks.peers[r].knows;
    uint32_t domain = ll_domain_of(f, (uint32_t)r);
    if (ld_relaxed_sys_u32(knows) || ll_domain_of(f, (uint32_t)ABORT_REPORTER(word)) == domain) {
        return;
    }
    /* Pairs with itself in the other blocks: one of them does it. */
    if (atom_cas_acqrel_gpu_u32(knows, 0, 1) != 0) {
        return;
    }
    if (!ll_is_far(f, r)) {
        ll_tell_all(f, l, r, word, 1);
    } else if (!route_try_word(&ll_far_of(f)->net, r, op_own_word(f, l->masks.heard, r), word)) {
        st_relaxed_sys_u32(knows, 0); /* the next operation tries again */
    }
}

/* All threads, before the block's first barrier. */
TERN_DEVICE void ll_look_round(const struct op_frame *f, const struct ll_lane *l)
{
    for (int r = tid(); TERN_RARE(l->wait_ns) && r < f->num_ranks; r += nthr()) {
        ll_waited(l)[r] = 0;
    }
    for (int r = tid(); ll_has_masks(l) && r < f->num_ranks; r += nthr()) {
        uint32_t known = l->masks.peers[r].known;
        /* Both on their way at once. Relaxed, as in ll_heard. */
        uint64_t heard = ld_relaxed_sys_u64(op_own_word(f, l->masks.heard, r));
        ll_seen(f, l)[r] = known ? LL_KNOWN : heard ? LL_NEWS : LL_CLEAR;
        if (LL_WITH_FAR && TERN_RARE(heard) && r != f->rank) {
            ll_hand_on(f, l, r, heard);
        }
    }
}

/* What the block knows of rank r since then; an evicted rank does without all. */
TERN_DEVICE uint32_t ll_gone(const struct op_frame *f, const struct ll_lane *l, int r)
{
    if (ll_has_masks(l)) {
        uint32_t it = ll_seen(f, l)[r], self = ll_seen(f, l)[f->rank];
        return it > self ? it : self;
    }
    return LL_CLEAR;
}

/* The host learns that, and why, rank note->peer is masked. */
TERN_DEVICE void ll_tell_host(const struct op_frame *f, const struct ll_lane *l, const struct op_note *note)
{
    /* Pairs with itself in other threads: one of them has the record. */
    if (atom_cas_acqrel_gpu_u32(&l->masks.peers[note->peer].told, 0, 1) == 0) {
        op_fill_record(f, &l->masks.news[note->peer], note, clock_ns() | 1); /* another number every time */
        st_release_sys_u64(&l->masks.view[note->peer], 1); /* pairs with tern_ll_mask_peek */
    }
}

/* Likewise, of a rank that others have masked. */
TERN_DEVICE void ll_pass_on(const struct op_frame *f, const struct ll_lane *l, uint64_t epoch, int r)
{
    uint64_t word = ld_relaxed_sys_u64(op_own_word(f, l->masks.heard, r));
    struct op_note note = {
        ABORT_STATUS(word), ABORT_AWAITED(word), r, ABORT_REPORTER(word), epoch, epoch, 0, 0, 0, 0};
    if (word) {
        ll_tell_host(f, l, &note);
    }
}

/* One thread, once every block has looked round: the next operation knows what this block has found new. */
TERN_DEVICE void ll_learn(const struct op_frame *f, const struct ll_lane *l, uint64_t epoch)
{
    for (int r = 0; r < f->num_ranks; r++) {
        if (ll_seen(f, l)[r] == LL_NEWS) {
            ll_pass_on(f, l, epoch, r);
            l->masks.peers[r].known = 1;
        }
    }
}

/* Rank note->peer has missed the deadline: every rank leaves it out. Near ranks are not told of a far one,
 * which may only be out of this rank's own reach: then they go on with it, and without this rank. If not,
 * they miss it themselves, or are told from its domain (ll_hand_on). */
TERN_DEVICE void ll_evict(const struct op_frame *f, const struct ll_lane *l, const struct op_note *note)
{
    uint64_t word = ABORT_WORD(note->peer, f->rank, note->status, note->awaited);
    ll_tell_host(f, l, note);
    ll_tell_all(f, l, note->peer, word, !ll_is_far(f, note->peer));
}

/* One wait, begun with zeros. */
struct ll_patience {
    struct op_patience op;
    uint64_t alive; /* what the peer last said when the wait began, or its last round */
    uint64_t said;  /* elapsed when this rank last said that it waits */
    uint32_t rounds;
};

TERN_DEVICE void ll_say_alive(const struct op_frame *f, const struct ll_lane *l)
{
    uint64_t now = clock_ns();
    for (int d = 0; d < f->num_ranks; d++) {
        ll_set_word(f, d, l->masks.alive, f->rank, now);
    }
}

/* op_patient, and with masks OP_LOST: the peer need not be waited for. A peer that says that it waits is
 * given another round, for those it waits for will be blamed by itself; but not for ever, for two may wait
 * for each other. */
TERN_DEVICE int ll_patient(const struct op_frame *f, const struct ll_lane *l, struct ll_patience *w,
                           struct op_note *note)
{
    int verdict = op_patient(f, &w->op, note);
    if (!ll_has_masks(l) || w->op.looks % 64 != 0 || verdict == OP_GIVEN_UP) {
        return verdict;
    }
    if (ll_heard(f, l, f->rank) || ll_heard(f, l, note->peer)) {
        ll_pass_on(f, l, note->epoch, f->rank);
        ll_pass_on(f, l, note->epoch, note->peer);
        return OP_LOST;
    }
    uint64_t alive = ld_relaxed_sys_u64(op_own_word(f, l->masks.alive, note->peer));
    w->alive = w->op.looks == 64 ? alive : w->alive;
    if (note->elapsed_ns - w->said > f->timeout_ns / 4) {
        w->said = note->elapsed_ns;
        ll_say_alive(f, l);
    }
    if (verdict == OP_EXPIRED && alive != w->alive && w->rounds < LL_ROUNDS) {
        w->alive = alive;
        w->rounds++;
        w->said = 0;
        w->op.begin = 0; /* op_patient begins anew */
        return OP_WAIT_ON;
    }
    return verdict;
}

/* ---- Verdicts ---- */

/* Before anything of a lost sender is given up, by the thread that does it. */
TERN_DEVICE void ll_raise_doubt(const struct ll_lane *l, uint64_t epoch)
{
    st_relaxed_sys_u64(&l->state->doubt, epoch);
    fence_sc_sys(); /* the mark comes before the look at the word that follows; see the top */
    uint64_t begin = clock_ns();
    while (clock_ns() - begin < LL_GRACE_NS) {
        spin();
    }
}

/* After a word was seen to have arrived. */
TERN_DEVICE int ll_doubts(const struct ll_lane *l, uint64_t epoch)
{
    return ld_relaxed_sys_u64(&l->state->doubt) == epoch;
}

/* Whether what the verdict is about takes part; `here`: the asker has seen it arrive. */
TERN_DEVICE int ll_settle(uint64_t *verdict, uint64_t epoch, int here)
{
    uint64_t mine = epoch << 1 | (uint64_t)here;
    /* Pairs with the exchange below in whoever decided: what he saw arrive has arrived here too. */
    uint64_t seen = ld_acquire_sys_u64(verdict);
    while (seen >> 1 != epoch) {
        uint64_t before = atom_cas_acqrel_gpu_u64(verdict, seen, mine);
        seen = before == seen ? mine : before;
    }
    return (int)(seen & 1);
}

/* ---- Waiting times ---- */

/* The waiting thread, which has looked more than once. */
TERN_DEVICE void ll_note_wait(const struct ll_lane *l, int peer, uint64_t begin)
{
    atom_max_cta_u64(&ll_waited(l)[peer], clock_ns() - begin);
}

/* The operation's longest wait for rank r is what has been added to wait_ns[r]: each block adds by how much
 * it makes it longer. The tag comes again after 2^24 operations, which could only lose one of these. */
TERN_DEVICE void ll_add_wait(const struct ll_lane *l, uint64_t epoch, int r)
{
    const uint64_t most = (1ull << 40) - 1, tag = epoch << 40;
    uint64_t ns = ll_waited(l)[r] < most ? ll_waited(l)[r] : most;
    uint64_t seen = ld_relaxed_sys_u64(&l->waits[r]);
    for (;;) {
        uint64_t before = (seen & ~most) == tag ? seen & most : 0;
        if (ns <= before) {
            return;
        }
        /* Pairs with itself in the other blocks: each adds by how much it makes the maximum longer. */
        uint64_t now = atom_cas_acqrel_gpu_u64(&l->waits[r], seen, tag | ns);
        if (now == seen) {
            atom_add_relaxed_gpu_u64(&l->wait_ns[r], ns - before);
            return;
        }
        seen = now;
    }
}

#endif
