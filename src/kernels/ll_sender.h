/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch, before sending: which tokens a block has, and what comes before them, which makes
 * their slots. The last block counts all tokens, to announce them, and has none itself, unless it is the only
 * one. A warp counts whole tokens, a choice a lane.
 *
 * Blocks that have a token more than others are the last ones: rows leave for other domains in chunks of
 * consecutive tokens, and those of blocks with one token each keep the wire busy until the others come. */
#ifndef TERN_LL_SENDER_H
#define TERN_LL_SENDER_H

#include "kernels/ids.h"
#include "kernels/ll_frame.h"

/* Whether no choice of the token before this lane's has its expert, or its rank. */
struct ll_firsts {
    int of_expert, of_rank;
};

/* What the first warp's lanes know of a token's choices. */
struct ll_token {
    int32_t id;
    uint32_t weight; /* bits of the float */
    uint32_t rank;   /* that has the expert */
    struct ll_firsts first;
};

enum { LL_ANNOUNCERS = 64 }; /* threads: a fence takes the longer the more warps have one */

struct ll_sender {
    const struct ll_dispatch_args *p;
    uint64_t epoch;
    int announces;
    uint32_t begin, end;   /* tokens of this block */
    struct ll_token token; /* the next one */
    uint32_t *counters;    /* [E] choices, then [R] rows */
    int32_t *slots;        /* [LL_STAGES][R]: of the staged token at each rank, or -1 */
    char *stages;
    /* The block's threads counted from the last one: the first of them start copies and announce, since the
     * first warps have more of a row, and its header. */
    int turn;
    int first;   /* whom its first copy of a row is for: another for each block, and each rank */
    int heap_of; /* a rank that this thread is likely to write to, */
    char *heap;  /* and its heap, loaded long before it is needed */
};

/* Rank that copy `i` of a row is for. If every block of every rank began with the same one, all would write
 * to that one at first, then to the next: one rank's links would be full, and all others' empty. */
TERN_DEVICE int ll_rank_of_copy(const struct ll_sender *s, int i)
{
    int d = s->first + i;
    return d < s->p->f.num_ranks ? d : d - s->p->f.num_ranks;
}

TERN_DEVICE struct ll_sender ll_sender_of(const struct ll_dispatch_args *p, uint64_t epoch)
{
    struct ll_sender s;
    uint32_t senders = nblk() > 1 ? (uint32_t)nblk() - 1 : 1;
    uint32_t b = (uint32_t)bid() < senders ? (uint32_t)bid() : senders;
    uint32_t share = p->num_tokens / senders, with_share = senders - p->num_tokens % senders;
    s.p = p;
    s.epoch = epoch; /* on its way: nothing before ll_enter needs it */
    s.announces = bid() == nblk() - 1;
    s.begin = share * b + (b > with_share ? b - with_share : 0);
    s.end = b < senders ? s.begin + share + (b >= with_share) : s.begin;
    s.token.id = -1;
    s.token.weight = 0;
    s.token.rank = 0;
    s.counters = (uint32_t *)shared_memory();
    s.slots = (int32_t *)(s.counters + p->num_experts + (uint32_t)p->f.num_ranks);
    s.stages = shared_memory() + p->stage_offset;
    s.turn = nthr() - 1 - tid();
    s.first = (int)((uint32_t)(p->f.rank + bid()) % (uint32_t)p->f.num_ranks);
    s.heap_of = s.begin < s.end && s.turn < p->f.num_ranks ? ll_rank_of_copy(&s, s.turn) : 0;
    s.heap = p->f.ep_bases[s.heap_of];
    return s;
}

TERN_DEVICE char *ll_heap(const struct ll_sender *s, int d)
{
    return d == s->heap_of ? s->heap : s->p->f.ep_bases[d];
}

TERN_DEVICE int32_t ll_valid_id(const struct ll_dispatch_args *p, int64_t id)
{
    return id >= 0 && id < (int64_t)p->num_experts ? (int32_t)id : -1;
}

/* The first id out of range since the object was opened or reset goes on record; it counts as -1. */
TERN_DEVICE void ll_report_id(const struct ll_sender *s, uint64_t c, int64_t id)
{
    const struct ll_dispatch_args *p = s->p;
    if (TERN_RARE(id < -1 || id >= (int64_t)p->num_experts)) {
        /* Pairs with itself in other threads: one of them wins the record. */
        if (atom_cas_acqrel_gpu_u32(&p->lane.state->bad_ids, 0, 1) == 0) {
            struct op_note note = {OP_STATUS_INVALID, OP_AWAIT_EXPERT_ID,
                                   p->f.rank,         p->f.rank,
                                   s->epoch,          c,
                                   (uint64_t)id,      0,
                                   p->topk,           0};
            op_fill_record(&p->f, p->lane.bad_id, &note, s->epoch);
        }
    }
}

/* All threads. A barrier later, ll_tally can begin. */
TERN_DEVICE void ll_clear_counters(const struct ll_sender *s)
{
    const struct ll_dispatch_args *p = s->p;
    for (uint32_t i = (uint32_t)tid(); i < p->num_experts + (uint32_t)p->f.num_ranks; i += (uint32_t)nthr()) {
        s->counters[i] = 0;
    }
}

/* Across domains, [R + 1]: at first how many rows there are for each far rank, or railed for each domain, one
 * place further on; then where those rows begin in the out-box (ll_chunk.h). */
TERN_DEVICE uint32_t *ll_far_begins(const struct ll_sender *s)
{
    return (uint32_t *)s->slots + LL_STAGES * (uint32_t)s->p->f.num_ranks;
}

/* Behind them, [E + 1]: where rows of each far expert, or rank, lie when they come home (ll_send_far.h). */
TERN_DEVICE uint32_t *ll_home_places(const struct ll_sender *s)
{
    return ll_far_begins(s) + s->p->f.num_ranks + 1;
}

/* Railed, behind those: messages for each domain of the tokens before the block's, of which there are so many
 * for it; then [LL_STAGES] the numbers of the staged token's, or -1. */
TERN_DEVICE uint32_t *ll_messages_before(const struct ll_sender *s)
{
    return ll_home_places(s) + s->p->num_experts + 1;
}

TERN_DEVICE int32_t *ll_staged_messages(const struct ll_sender *s, uint32_t stage)
{
    return (int32_t *)ll_messages_before(s) + (1 + stage) * ll_far_of(&s->p->f)->rail.num_domains;
}

/* All threads, as ll_clear_counters. */
TERN_DEVICE void ll_clear_begins(const struct ll_sender *s)
{
    for (uint32_t e = (uint32_t)tid(); LL_WITH_RAIL && e < ll_far_of(&s->p->f)->rail.num_domains;
         e += (uint32_t)nthr()) {
        ll_messages_before(s)[e] = 0;
    }
    for (int d = tid(); d <= s->p->f.num_ranks; d += nthr()) {
        ll_far_begins(s)[d] = 0;
    }
}

/* Tokens that this block counts: the first so many. Across domains a block that sends counts all, since rows
 * for a far rank lie behind all those for the far ranks before it. */
TERN_DEVICE uint32_t ll_tallied(const struct ll_sender *s)
{
    if (LL_WITH_FAR && s->begin < s->end) {
        return s->p->num_tokens;
    }
    return s->announces ? s->p->num_tokens : s->begin < s->end ? s->begin : 0;
}

/* The id that this lane looks after if its warp counts tokens from t0 on; -1 if there is none. */
TERN_DEVICE int64_t ll_tally_id(const struct ll_sender *s, uint32_t t0)
{
    const struct ll_dispatch_args *p = s->p;
    uint32_t j = (uint32_t)lane() / p->topk;
    uint64_t c = (uint64_t)t0 * p->topk + (uint32_t)lane();
    return j < 32 / p->topk && t0 + j < ll_tallied(s) ? id_at(p->topk_idx, p->idx_bytes, c) : -1;
}

/* Ids of a warp's next two rounds: a round takes less than a load. */
struct ll_tally_ids {
    int64_t now, next;
};

/* Those of the first ones, loaded before they are needed. */
TERN_DEVICE struct ll_tally_ids ll_first_tally_ids(const struct ll_sender *s)
{
    uint32_t a_warp = 32 / s->p->topk;
    struct ll_tally_ids ids;
    ids.now = ll_tally_id(s, (uint32_t)warp() * a_warp);
    ids.next = ll_tally_id(s, ((uint32_t)warp() + (uint32_t)nwarps()) * a_warp);
    return ids;
}

/* All lanes, tokens side by side; this lane has the k-th choice of its token. As is_first in ids.h, for both
 * questions at once. */
TERN_DEVICE struct ll_firsts ll_firsts_of(const struct ll_dispatch_args *p, int32_t id, uint32_t rank,
                                          uint32_t k)
{
    struct ll_firsts first = {1, 1};
    uint32_t low = rank * p->experts_a_rank;
    for (uint32_t i = 1; i < p->topk; i++) {
        uint32_t other = shfl_u32((uint32_t)id, (lane() - (int)i) & 31);
        first.of_expert &= i > k || other != (uint32_t)id;
        first.of_rank &= i > k || other - low >= p->experts_a_rank; /* also of an id of -1 */
    }
    return first;
}

/* One warp, railed: likewise one message for each other domain that a token has choices in; this lane has one
 * of the `nth` token's, if it is `far`. */
TERN_DEVICE void ll_tally_messages(const struct ll_sender *s, uint32_t rank, uint32_t nth, int far,
                                   int before)
{
    uint32_t domains = ll_far_of(&s->p->f)->rail.num_domains;
    uint32_t e = far ? ll_domain_of(&s->p->f, rank) : 0;
    uint32_t key = far ? nth * domains + e : 32 * domains + (uint32_t)lane();
    if (TERN_FFS(match_any_u32(key)) - 1 == lane() && far) {
        atom_add_cta_u32(&ll_far_begins(s)[e + 1], 1);
        if (before) {
            atom_add_cta_u32(&ll_messages_before(s)[e], 1);
        }
    }
}

/* One warp: adds what whole tokens have, one expert and one rank of each once. */
TERN_DEVICE void ll_tally_round(const struct ll_sender *s, uint32_t t0, int64_t raw)
{
    const struct ll_dispatch_args *p = s->p;
    int32_t id = ll_valid_id(p, raw);
    uint32_t rank = id >= 0 ? (uint32_t)id / p->experts_a_rank : 0;
    struct ll_firsts first = ll_firsts_of(p, id, rank, (uint32_t)lane() % p->topk);
    int counts = !LL_WITH_FAR || s->announces || t0 + (uint32_t)lane() / p->topk < s->begin;
    if (id >= 0 && first.of_expert && counts) {
        atom_add_cta_u32(&s->counters[id], 1);
    }
    if (id >= 0 && first.of_rank && counts) {
        atom_add_cta_u32(&s->counters[p->num_experts + rank], 1);
    }
    if (LL_WITH_RAIL) {
        uint32_t nth = (uint32_t)lane() / p->topk;
        ll_tally_messages(s, rank, nth, id >= 0 && ll_is_far(&p->f, (int)rank), t0 + nth < s->begin);
    } else if (LL_WITH_FAR && id >= 0 && first.of_rank && ll_is_far(&p->f, (int)rank)) {
        atom_add_cta_u32(&ll_far_begins(s)[rank + 1], 1);
    }
    if (s->announces) {
        ll_report_id(s, (uint64_t)t0 * p->topk + (uint32_t)lane(), raw);
    }
}

/* All threads, with ll_first_tally_ids. A barrier later, counters have what the tokens so counted have. */
TERN_DEVICE void ll_tally(const struct ll_sender *s, struct ll_tally_ids ids)
{
    uint32_t a_warp = 32 / s->p->topk, step = a_warp * (uint32_t)nwarps();
    TERN_ROLLED
    for (uint32_t t0 = (uint32_t)warp() * a_warp; t0 < ll_tallied(s); t0 += step) {
        int64_t next = ll_tally_id(s, t0 + 2 * step); /* on its way while two rounds are counted */
        ll_tally_round(s, t0, ids.now);
        ids.now = ids.next;
        ids.next = next;
    }
}

#endif
