/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency combine with weights that go ahead of its rows (TERN_LL_WEIGHTS_AHEAD): a kernel before the
 * combine's own, in the same operation. Each rank sends the weight of every choice to the rank that has the
 * expert, and takes those of its own experts' rows into its plan (ll_args.h), from which the combine makes
 * sums as if dispatch had brought them. Home keeps the order of its tokens, so a weight's place there is that
 * of its choice.
 *
 *   home                                       the expert's rank
 *   word: LL_AHEAD_HERE | weight -> [s][c]     ld.relaxed until it is not 0; the plan; the word is 0 again
 *
 * A word speaks for itself, as those of rows over blanks do, and so does what lets two copies be enough: who
 * takes a word puts the 0 back before its combine ends, and peers write there two operations later, after
 * they have seen this rank enter the next one.
 *
 * This kernel says that the rank is in, as who waits for weights needs it to know whom the wait is for, and
 * ends when all ranks are in; the combine says and awaits it once more. So a rank whose rows a combine
 * awaits in vain, as that one waits for weights itself, waits for one that is in; and it gives up first, as
 * for weights of a rank that is in it has an eighth of the deadline less. It raises no epoch: the combine
 * does. */
#define LL_WITH_MASKS 0
#include "kernels/kernels.h"
#include "kernels/ll_in_words.h"

#define LL_AHEAD_HERE (1ull << 32)

/* The word for choice c of rank s, in the heap of the rank that has the expert. */
TERN_DEVICE uint64_t *ahead_word(const struct ll_combine_args *p, char *heap, uint64_t epoch, int s,
                                 uint64_t c)
{
    uint64_t choices = p->lane.source_rows * p->topk;
    return (uint64_t *)(heap + p->lane.ahead + (epoch & 1) * p->lane.ahead_bytes) + (uint32_t)s * choices + c;
}

/* The speaker, behind a fence that makes the entry words releases: this rank's earlier kernels are over. */
TERN_DEVICE void ahead_announce(const struct ll_combine_args *p, uint64_t epoch)
{
    for (int d = lane(); d < p->f.num_ranks; d += 32) {
        OP_STORE_READY(ll_entry(&p->lane, p->f.ep_bases[d], epoch, p->f.rank),
                       op_tagged(epoch, (uint32_t)p->f.message.signature));
    }
}

/* All threads. */
TERN_DEVICE void ahead_send(const struct ll_combine_args *p, uint64_t epoch)
{
    uint64_t choices = (uint64_t)p->num_tokens * p->topk;
    for (uint64_t c = (uint64_t)(uint32_t)bid() * (uint32_t)nthr() + (uint32_t)tid(); c < choices;
         c += (uint64_t)(uint32_t)nblk() * (uint32_t)nthr()) {
        int32_t id = p->lane.ids[c];
        uint64_t word = LL_AHEAD_HERE | f32_bits(p->weights[c]); /* beside the id */
        if (id >= 0) {
            char *heap = p->f.ep_bases[id / (int32_t)p->experts_a_rank];
            st_relaxed_sys_u64(ahead_word(p, heap, epoch, p->f.rank, c), word);
        }
    }
}

/* One warp, after a look in vain: rank s is in. 0: abandon. */
TERN_DEVICE int ahead_await_rank(const struct ll_combine_args *p, uint64_t epoch, uint64_t began, int s)
{
    uint32_t signature; /* which ll_await_entries looks at */
    int end = LL_HERE;
    if (lane() == 0) {
        end = ll_await(&p->f, &p->lane, epoch, began, OP_AWAIT_READY, s,
                       ll_entry(&p->lane, p->f.own, epoch, s), &signature);
    }
    return warp_all(end == LL_HERE);
}

/* This lane: whether the word is here, if it wants one. */
TERN_DEVICE int ahead_look(const uint64_t *word, int wants, uint64_t *seen)
{
    if (wants && *seen == 0) {
        /* Relaxed, as all that is wanted is in the word. Pairs with ahead_send. */
        *seen = ld_relaxed_sys_u64(word);
    }
    return !wants || *seen != 0;
}

/* One warp: the weights of one received row. 0: abandon. */
TERN_DEVICE int ahead_take(const struct ll_ahead_args *a, uint64_t epoch, uint64_t began, uint32_t number)
{
    const struct ll_combine_args *p = &a->c;
    int32_t *plan = p->lane.plan + (uint64_t)number * (LL_PLAN_ROWS + 2 * p->topk);
    uint32_t k = (uint32_t)lane();
    int s = plan[LL_PLAN_RANK], wants = k < p->topk && plan[LL_PLAN_ROWS + (k < p->topk ? k : 0)] >= 0;
    uint64_t first = (uint64_t)(uint32_t)plan[LL_PLAN_TOKEN] * p->topk, seen = 0;
    uint64_t *word = ahead_word(p, p->f.own, epoch, s, first + k);
    struct ll_words w = ll_words_of(&a->hasty, &p->lane, epoch, began, s);
    int end = warp_all(ahead_look(word, wants, &seen)) ? 1 : ahead_await_rank(p, epoch, began, s) - 1;
    while (end == 0) {
        end = ll_words_here(&w, ahead_look(word, wants, &seen));
    }
    if (lane() == 0) {
        ll_words_waited(&w, end > 0);
    }
    if (wants && end > 0) {
        plan[LL_PLAN_ROWS + p->topk + k] = (int32_t)(uint32_t)seen;
        st_relaxed_sys_u64(word, 0);
    }
    return end > 0;
}

TERN_KERNEL_AS(tern_ll, weights_ahead, ll_weights_ahead, struct ll_ahead_args, a)
{
    const struct ll_combine_args *p = &a->c;
    uint64_t begin = stamp_now();
    struct ll_glance glance = ll_look(&p->f, &p->lane);
    /* Else the combine was issued for another dispatch, and says so itself. */
    int fits = p->lane.state->dispatched == p->dispatched, ok;
    uint32_t rows = (uint32_t)p->lane.totals[LL_TOTAL_ROWS];
    uint64_t began = ll_begin(&p->lane);
    if (ll_is_speaker()) {
        OP_FENCE(); /* pairs with the acquires in ll_await; nothing is on its way that it would wait for */
    }
    ll_enter(&p->f, &glance, &ok);
    if (ok && fits) {
        if (ll_is_speaker()) {
            ahead_announce(p, glance.epoch);
        }
        ahead_send(p, glance.epoch);
    }
    for (uint32_t i = (uint32_t)(warp() * nblk() + bid()); ok && fits && i < rows;
         i += (uint32_t)(nblk() * nwarps())) {
        ok = ahead_take(a, glance.epoch, began, i);
    }
    if (ok && fits && ll_is_speaker()) {
        (void)ll_await_entries(&p->f, &p->lane, glance.epoch, began);
    }
    ll_leave(&p->f, &p->lane, glance.epoch);
    ll_stamp(&p->f, &p->lane, glance.epoch, begin);
}
