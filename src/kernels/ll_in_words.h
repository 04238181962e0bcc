/* SPDX-License-Identifier: Apache-2.0
 *
 * Low latency for few tokens: rows in words. Each 8 bytes of a row travel with the operation's epoch in one
 * access of 16, so whoever sees the epoch has the bytes. A row needs no word of its own behind it, and its
 * sender neither waits for its copies nor for a fence, which is most of what a row's way takes. It has twice
 * the bytes: for batches whose bytes do not count (LL_WORD_TOKENS).
 *
 * Rows in words have buffers of their own, in two copies, as all others (ll_args.h): what lay there before
 * has an older epoch. All of it, not a tag of 32 bits, for a place may rest as long as batches are smaller.
 *
 * Such operations have kernels of their own, which all ranks choose by what they know in common (ep_ll.c).
 * Those have no masks: there is no verdict on a row that is here in part. */
#ifndef TERN_LL_IN_WORDS_H
#define TERN_LL_IN_WORDS_H

#include "kernels/ll_frame.h"

/* Row `place` of the buffer in this heap; `row_bytes`: distance between rows that are not in words. */
TERN_DEVICE char *ll_words_at(const struct ll_lane *l, char *heap, uint64_t epoch, uint64_t place,
                              uint64_t row_bytes)
{
    return heap + l->words + (epoch & 1) * l->word_bytes + l->all_id_bytes + 2 * place * row_bytes;
}

/* Where the 8 bytes are that have byte `at` of a row. */
TERN_DEVICE uint64_t *ll_word_at(const char *row, uint32_t at)
{
    return (uint64_t *)(uintptr_t)(row + 2 * (uint64_t)(at & ~7u));
}

/* ---- Sending ---- */

/* All threads of the block: a row from shared memory, from byte `from` on, which begins a word. */
TERN_DEVICE void ll_store_words(char *row, const char *stage, uint32_t from, uint32_t bytes, uint64_t epoch)
{
    for (uint32_t i = from + (uint32_t)tid() * 8; i < bytes; i += (uint32_t)nthr() * 8) {
        st_tagged_sys(ll_word_at(row, i), *(const uint64_t *)(const void *)(stage + i), epoch);
    }
}

/* Whose word a lane carries when a warp's lanes hold 16 bytes each, at `at` of a row: those of a pair of
 * lanes go together, first the even one's two words, then the odd one's. So that accesses of a warp leave no
 * gaps of a sector. */
TERN_DEVICE uint32_t ll_pair_word(uint32_t at, int which)
{
    uint32_t odd = (uint32_t)lane() & 1;
    return at - 16 * odd + 16 * (uint32_t)which + 8 * odd;
}

/* ---- Receiving ---- */

/* A wait for words of rank `peer`. */
struct ll_words {
    const struct op_frame *f;
    const struct ll_lane *l;
    uint64_t epoch, begin;
    int peer;
    struct ll_patience patience;
};

TERN_DEVICE struct ll_words ll_words_of(const struct op_frame *f, const struct ll_lane *l, uint64_t epoch,
                                        uint64_t begin, int peer)
{
    struct ll_words w = {f, l, epoch, begin, peer, {{0}, 0, 0, 0}};
    return w;
}

/* One thread, after a look in vain. 0: abandon. */
TERN_DEVICE int ll_words_wait(struct ll_words *w)
{
    struct op_note note = {
        OP_STATUS_TIMEOUT, OP_AWAIT_DONE, w->peer, w->f->rank, w->epoch, w->epoch, 0, 0, 0, 0};
    int verdict = ll_patient(w->f, w->l, &w->patience, &note);
    if (TERN_RARE(verdict == OP_EXPIRED)) {
        /* A rank of another shape is in, and sends less than this one waits for, or something else. */
        uint64_t entry = ld_relaxed_sys_u64(ll_entry(w->l, w->f->own, w->epoch, w->peer));
        if (!op_has_tag(entry, w->epoch) || op_matches(w->f, w->epoch, w->peer, (uint32_t)entry)) {
            (void)ll_expire(w->f, w->l, &note);
        }
    }
    return verdict == OP_WAIT_ON;
}

/* All lanes, after a look: 1: every lane has seen what it looks for; 0: look again; -1: abandon. */
TERN_DEVICE int ll_words_here(struct ll_words *w, int here)
{
    if (warp_all(here)) {
        return 1;
    }
    return warp_all(lane() != 0 || ll_words_wait(w)) ? 0 : -1;
}

/* The thread that waited, when the wait is over. */
TERN_DEVICE void ll_words_waited(const struct ll_words *w, int came)
{
    op_waited(w->f, &w->patience.op, ll_number(w->l), came);
    if (TERN_RARE(w->l->wait_ns) && w->patience.op.looks > 0) {
        ll_note_wait(w->l, w->peer, w->begin);
    }
}

/* One lane: the word at `at` of a row, if it wants one. 1: it is here. */
TERN_DEVICE int ll_look_word(const char *row, uint32_t at, int wants, uint64_t epoch, uint64_t *word)
{
    *word = 0;
    return !wants || ld_tagged_sys(ll_word_at(row, at), epoch, word);
}

/* All lanes: both words of a pair's turn. */
TERN_DEVICE int ll_look_pair(const char *row, uint32_t at, uint32_t bytes, uint64_t epoch, uint64_t *pair)
{
    uint32_t first = ll_pair_word(at, 0), second = ll_pair_word(at, 1);
    int here = ll_look_word(row, first, first < bytes, epoch, &pair[0]);
    return ll_look_word(row, second, second < bytes, epoch, &pair[1]) && here;
}

/* All lanes: a lane's 16 bytes, of words that are here. */
TERN_DEVICE struct vec16 ll_of_pair(const uint64_t *pair)
{
    int odd = lane() & 1;
    uint64_t other = shfl_u64(odd ? pair[0] : pair[1], lane() ^ 1);
    uint64_t low = odd ? other : pair[0], high = odd ? pair[1] : other;
    struct vec16 v = {{(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)}};
    return v;
}

/* The half of a word that has byte `at`. */
TERN_DEVICE uint32_t ll_half(uint64_t word, uint32_t at) { return (uint32_t)(word >> 8 * (at & 4)); }

#endif
