/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch of few tokens: ranks tell each other their tokens' ids instead of counts of them. So
 * nobody counts before he tells, and whoever knows all ids knows every row's place: it is the number of rows
 * before it that name the expert. Ids travel four to a word (ll_in_words.h), a token in whole words; blocks
 * that receive keep those of all ranks in shared memory:
 *
 *   | ids of rank 0, 1, ... [R][T][width] | this rank's own [T][width], in the block that tells them | */
#ifndef TERN_LL_IDS_H
#define TERN_LL_IDS_H

#include "kernels/ll_counts.h"
#include "kernels/ll_sender.h"
#include "kernels/ll_in_words.h"

/* A choice on its way: its expert, or LL_NO_CHOICE; with LL_AGAIN if its token has named that before. */
enum { LL_NO_CHOICE = 0x7fff, LL_AGAIN = 0x8000 };

struct ll_ids {
    struct ll_receiver r;
    uint16_t *all, *own;
    uint32_t tokens; /* of a source: the most that there may be */
    uint32_t width;  /* ids of a token, those of no choice at its end included */
    uint32_t words;  /* of a source */
};

TERN_DEVICE struct ll_ids ll_ids_of(const struct ll_dispatch_args *p, uint64_t epoch)
{
    struct ll_ids w;
    w.r = ll_receiver_of(p, epoch, nthr());
    w.tokens = p->max_tokens;
    w.width = LL_ID_WORDS(p->topk) * LL_WORD_IDS;
    w.words = LL_ID_WORDS(p->topk) * p->max_tokens;
    w.all = (uint16_t *)(void *)(shared_memory() + p->ids_offset);
    w.own = w.all + (uint32_t)p->f.num_ranks * w.tokens * w.width;
    return w;
}

/* What rank s tells, in this heap. */
TERN_DEVICE uint64_t *ll_id_words(const struct ll_lane *l, char *heap, uint64_t epoch, int s)
{
    return (uint64_t *)(void *)(heap + l->words + (epoch & 1) * l->word_bytes +
                                (uint64_t)(uint32_t)s * l->id_bytes);
}

/* ---- Telling ---- */

/* All threads of the block that tells, a barrier before it does. */
TERN_DEVICE void ll_read_ids(const struct ll_ids *w, const struct ll_sender *s)
{
    const struct ll_dispatch_args *p = s->p;
    uint32_t a_warp = 32 / p->topk, j = (uint32_t)lane() / p->topk, k = (uint32_t)lane() % p->topk;
    for (uint32_t t0 = (uint32_t)warp() * a_warp; t0 < w->tokens; t0 += a_warp * (uint32_t)nwarps()) {
        uint32_t t = t0 + j;
        uint64_t c = (uint64_t)t0 * p->topk + (uint32_t)lane();
        int64_t raw = j < a_warp && t < p->num_tokens ? id_at(p->topk_idx, p->idx_bytes, c) : -1;
        int32_t id = ll_valid_id(p, raw);
        struct ll_firsts first = ll_firsts_of(p, id, 0, k);
        if (j < a_warp && t < w->tokens) {
            w->own[t * w->width + k] =
                (uint16_t)(id < 0 ? LL_NO_CHOICE : (uint32_t)id | (first.of_expert ? 0u : LL_AGAIN));
        }
        ll_report_id(s, c, raw);
    }
    for (uint32_t i = (uint32_t)tid(); i < w->tokens * w->width; i += (uint32_t)nthr()) {
        if (i % w->width >= p->topk) {
            w->own[i] = LL_NO_CHOICE;
        }
    }
}

/* The last warp of that block, past ll_enter: this rank is in. That concerns the operations that follow: so
 * one warp of each rank awaits it, and its fence, which takes a microsecond or two, holds up no ids. */
TERN_DEVICE void ll_say_in(const struct ll_sender *s)
{
    const struct ll_dispatch_args *p = s->p;
    /* Makes the stores releases, which say that this rank's earlier kernels are over; pairs with the acquire
     * in ll_await. */
    OP_FENCE();
    for (int d = lane(); d < p->f.num_ranks; d += 32) {
        OP_STORE_READY(ll_entry(&p->lane, p->f.ep_bases[d], s->epoch, p->f.rank) + LL_ENTRY_SIGNATURE,
                       op_tagged(s->epoch, (uint32_t)p->f.message.signature));
    }
}

/* All threads of that block, likewise: this rank's ids. */
TERN_DEVICE void ll_announce_ids(const struct ll_ids *w, const struct ll_sender *s)
{
    const struct ll_dispatch_args *p = s->p;
    const uint64_t *own = (const uint64_t *)(const void *)w->own;
    uint32_t ranks = (uint32_t)p->f.num_ranks, step = nthr() > 32 ? (uint32_t)nthr() - 32 : 32;
    uint32_t counts = LL_ENTRY_WORDS(p->experts_a_rank) - LL_ENTRY_ROWS;
    if (warp() == nwarps() - 1) {
        ll_say_in(s);
    }
    for (uint32_t i = (uint32_t)tid(); (uint32_t)tid() < step && i < w->words * ranks; i += step) {
        char *heap = p->f.ep_bases[ll_rank_of_copy(s, (int)(i / w->words))];
        uint32_t u = i % w->words;
        st_tagged_sys(ll_id_words(&p->lane, heap, s->epoch, p->f.rank) + 2 * u, own[u], s->epoch);
    }
    /* Nobody reads counts now. But their tags have 32 bits, so no dispatch leaves them as they are. */
    for (uint32_t i = (uint32_t)tid(); (uint32_t)tid() < step && i < counts * ranks; i += step) {
        uint64_t *entry = ll_entry(&p->lane, p->f.ep_bases[i / counts], s->epoch, p->f.rank);
        st_relaxed_sys_u64(entry + LL_ENTRY_ROWS + i % counts, op_tagged(s->epoch, 0));
    }
}

/* ---- Hearing ---- */

/* One thread: word u of rank s; 0: abandon. */
TERN_DEVICE int ll_await_id_word(const struct ll_ids *w, uint32_t s, uint32_t u)
{
    const struct ll_dispatch_args *p = w->r.p;
    const uint64_t *at = ll_id_words(&p->lane, p->f.own, w->r.epoch, (int)s) + 2 * u;
    struct ll_words wait = ll_words_of(&p->f, &p->lane, w->r.epoch, w->r.begin, (int)s);
    uint64_t word;
    int ok = 1;
    while (ok && !ld_tagged_sys(at, w->r.epoch, &word)) {
        ok = ll_words_wait(&wait);
    }
    ll_words_waited(&wait, ok);
    if (ok) {
        ((uint64_t *)(void *)w->all)[s * w->words + u] = word;
    }
    return ok;
}

/* All threads: the ids of all ranks are in shared memory; 0: abandon. */
TERN_DEVICE int ll_await_ids(const struct ll_ids *w)
{
    int ok = 1;
    for (uint32_t i = (uint32_t)tid(); ok && i < w->words * (uint32_t)w->r.p->f.num_ranks;
         i += (uint32_t)nthr()) {
        ok = ll_await_id_word(w, i / w->words, i % w->words);
    }
    return !sync_block_or(!ok);
}

/* ---- What follows ---- */

/* How many ids come before this row's. */
TERN_DEVICE uint32_t ll_ids_before(const struct ll_ids *w, uint32_t s, uint32_t t)
{
    return (s * w->tokens + t) * w->width;
}

/* Of a lane's expert: how many rows before a certain one name it, and how many choices of all rows are of
 * experts here with smaller numbers; no choice twice. */
struct ll_places {
    uint32_t position, below;
};

/* All lanes, as many groups of them as the lanes' experts go into a warp, each of which looks at another part
 * of the ids. `expert`: of lane() modulo the group; `end`: ids before the row; `all`: ids to look at. */
TERN_DEVICE struct ll_places ll_find_places(const struct ll_ids *w, uint32_t expert, uint32_t end,
                                            uint32_t all, uint32_t group)
{
    const uint64_t *words = (const uint64_t *)(const void *)w->all;
    uint32_t low = (uint32_t)w->r.p->f.rank * w->r.p->experts_a_rank;
    struct ll_places at = {0, 0};
    for (uint32_t u = (uint32_t)lane() / group; u < all / LL_WORD_IDS; u += 32 / group) {
        uint64_t word = words[u];
        uint32_t before = u < end / LL_WORD_IDS;
        TERN_UNROLL
        for (int j = 0; j < LL_WORD_IDS; j++) {
            uint32_t id = (uint32_t)(word >> 16 * j) & 0xffffu;
            at.position += before & (id == expert);
            at.below += id - low < expert - low;
        }
    }
    for (uint32_t step = group; step < 32; step *= 2) {
        at.position += shfl_u32(at.position, lane() ^ (int)step);
        at.below += shfl_u32(at.below, lane() ^ (int)step);
    }
    return at;
}

/* One thread: whether token t of rank s names an expert here. */
TERN_DEVICE int ll_comes_here(const struct ll_ids *w, uint32_t s, uint32_t t)
{
    const struct ll_dispatch_args *p = w->r.p;
    const uint64_t *words = (const uint64_t *)(const void *)(w->all + ll_ids_before(w, s, t));
    uint32_t low = (uint32_t)p->f.rank * p->experts_a_rank;
    int here = 0;
    for (uint32_t u = 0; u < w->width / LL_WORD_IDS; u++) {
        uint64_t word = words[u];
        TERN_UNROLL
        for (int j = 0; j < LL_WORD_IDS; j++) {
            here |= ((uint32_t)(word >> 16 * j) & 0xffffu) - low < p->experts_a_rank;
        }
    }
    return here;
}

/* One warp: rows that come here of ranks from s0 on, before token t of rank s. */
TERN_DEVICE uint32_t ll_rows_before(const struct ll_ids *w, uint32_t s0, uint32_t s, uint32_t t)
{
    uint32_t sum = 0, end = s * w->tokens + t;
    for (uint32_t i0 = s0 * w->tokens; i0 < end; i0 += 32) {
        uint32_t i = i0 + (uint32_t)lane();
        sum += (uint32_t)TERN_POPC(warp_ballot(i < end && ll_comes_here(w, i / w->tokens, i % w->tokens)));
    }
    return sum;
}

/* All threads of block 0, a barrier before ll_count_all. */
TERN_DEVICE void ll_clear_counts(const struct ll_ids *w)
{
    const struct ll_dispatch_args *p = w->r.p;
    for (uint32_t i = (uint32_t)tid(); i < p->num_experts; i += (uint32_t)nthr()) {
        w->r.begins[i] = 0;
    }
    for (int s = tid(); s <= p->f.num_ranks; s += nthr()) {
        w->r.rows_before[s] = 0;
    }
}

/* All threads of block 0: the caller's counts and ranges, and what combine must know. */
TERN_DEVICE void ll_count_all(const struct ll_ids *w)
{
    const struct ll_dispatch_args *p = w->r.p;
    uint32_t ranks = (uint32_t)p->f.num_ranks, low = (uint32_t)p->f.rank * p->experts_a_rank;
    uint32_t a_source = w->tokens * w->width;
    for (uint32_t i = (uint32_t)tid(); i < ranks * a_source; i += (uint32_t)nthr()) {
        uint32_t e = w->all[i] - low;
        if (e < p->experts_a_rank) {
            atom_add_cta_u32(&w->r.begins[i / a_source * p->experts_a_rank + e], 1);
        }
    }
    for (uint32_t i = (uint32_t)tid(); i < ranks * w->tokens; i += (uint32_t)nthr()) {
        if (ll_comes_here(w, i / w->tokens, i % w->tokens)) {
            atom_add_cta_u32(&w->r.rows_before[i / w->tokens + 1], 1);
        }
    }
    sync_block();
    (void)ll_place(&w->r);
    ll_add_counts(&w->r);
}

#endif
