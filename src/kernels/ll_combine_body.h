/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency combine, "push". With weights at combine, every row of the slab goes to its token's rank as it
 * is; with weights given at dispatch, a rank first adds what its experts made of one received row, each with
 * its weight, in the order of choices, in FP32 and rounded once, and one row goes home. By rank the caller
 * has made that one row, which goes as it is. At home warps take pieces of tokens, wait for the words of the
 * rows that a token awaits, add them in the order of choices and round once.
 *
 * Sending, a block takes one row at a time through shared memory, in LL_STAGES stages as dispatch does. With
 * a compression (`codec`, ll_codec.h) rows are packed on their way into the stage, and unpacked where they
 * are added. */
#ifndef TERN_LL_COMBINE_BODY_H
#define TERN_LL_COMBINE_BODY_H

#include "kernels/ll_codec.h"
#include "kernels/ll_frame.h"
#include "kernels/sum.h"

/* A program that is wrong on purpose, for test/tsan_awake.sh, is without it. */
#ifdef TERN_TEST_NO_LL_COMBINE_PROXY
#define LL_COMBINE_PROXY_FENCE() ((void)0)
#else
#define LL_COMBINE_PROXY_FENCE() fence_proxy_async()
#endif

/* Bytes of a token, in BF16, that a warp adds at once; whole blocks of 128 channels. */
enum { LL_SUM_VECS = 2, LL_SUM = LL_SUM_VECS * 512 };

TERN_DEVICE void ll_add_weighted(float *sum, struct vec16 v, float weight)
{
    TERN_UNROLL
    for (int i = 0; i < 4; i++) {
        sum[2 * i] += weight * bf16_lo(v.w[i]);
        sum[2 * i + 1] += weight * bf16_hi(v.w[i]);
    }
}

/* Where a row goes. */
struct ll_parcel {
    int32_t rank, index; /* index: token * K + k there; rank -1: nowhere, the row never came */
    char *heap;          /* of that rank, loaded while the row is on its way into the stage */
};

/* One thread: LL_AT_ONCE pieces of 16 bytes, from `begin` on, of the sum of one received row. */
TERN_DEVICE void ll_sum_here(const struct ll_combine_args *p, const int32_t *plan, uint32_t begin,
                             uint32_t step, float sum[][8])
{
    TERN_UNROLL
    for (int a = 0; a < LL_AT_ONCE; a++) {
        TERN_UNROLL
        for (int i = 0; i < 8; i++) {
            sum[a][i] = 0.0f;
        }
    }
    for (uint32_t k = 0; k < p->topk; k++) {
        int32_t row = plan[LL_PLAN_ROWS + k];
        if (row < 0) {
            continue;
        }
        const char *from = p->in + (uint64_t)row * p->row_bytes + begin;
        float weight = bits_f32((uint32_t)plan[LL_PLAN_ROWS + p->topk + k]);
        struct vec16 v[LL_AT_ONCE];
        TERN_UNROLL
        for (int a = 0; a < LL_AT_ONCE; a++) {
            struct vec16 zero = {{0, 0, 0, 0}};
            uint32_t at = (uint32_t)a * step;
            v[a] = begin + at < p->row_bytes ? ld_stream_vec16(from + at) : zero;
        }
        TERN_UNROLL
        for (int a = 0; a < LL_AT_ONCE; a++) {
            ll_add_weighted(sum[a], v[a], weight);
        }
    }
}

/* All threads: into the stage, the sum of what the experts here made of received row `number`. */
TERN_DEVICE struct ll_parcel ll_pack_sum(const struct ll_combine_args *p, uint32_t number, char *stage,
                                         const int codec)
{
    const int32_t *plan = p->lane.plan + (uint64_t)number * (LL_PLAN_ROWS + 2 * p->topk);
    struct ll_parcel to = {plan[LL_PLAN_RANK], -1, p->f.ep_bases[plan[LL_PLAN_RANK]]};
    float sum[LL_AT_ONCE][8];
    for (uint32_t k = 0; k < p->topk && to.index < 0; k++) {
        if (plan[LL_PLAN_ROWS + k] >= 0) {
            to.index = plan[LL_PLAN_TOKEN] * (int32_t)p->topk + (int32_t)k;
        }
    }
    if (codec != LL_PLAIN) {
        for (uint32_t i = (uint32_t)warp() * LL_SUM; i < p->row_bytes; i += (uint32_t)nwarps() * LL_SUM) {
            ll_sum_here(p, plan, i + ll_lane_at(), LL_HALF_BLOCK, sum);
            struct vec16 v[LL_AT_ONCE] = {sum_round(sum[0]), sum_round(sum[1])};
            ll_encode(stage, p->blocks, (i + ll_lane_at()) / 256, v, codec);
        }
        return to;
    }
    uint32_t step = (uint32_t)nthr() * 16;
    for (uint32_t i = (uint32_t)tid() * 16; i < p->row_bytes; i += LL_AT_ONCE * step) {
        ll_sum_here(p, plan, i, step, sum);
        TERN_UNROLL
        for (int a = 0; a < LL_AT_ONCE; a++) {
            if (i + (uint32_t)a * step < p->row_bytes) {
                st_vec16(stage + i + (uint32_t)a * step, sum_round(sum[a]));
            }
        }
    }
    return to;
}

/* All threads: a row into the stage, packed. */
TERN_DEVICE void ll_encode_row(const struct ll_combine_args *p, const char *from, char *stage,
                               const int codec)
{
    for (uint32_t i = (uint32_t)warp() * LL_SUM; i < p->row_bytes; i += (uint32_t)nwarps() * LL_SUM) {
        uint32_t at = i + ll_lane_at();
        struct vec16 v[LL_SUM_VECS];
        TERN_UNROLL
        for (int q = 0; q < LL_SUM_VECS; q++) {
            struct vec16 zero = {{0, 0, 0, 0}};
            uint32_t begin = at + (uint32_t)q * LL_HALF_BLOCK;
            v[q] = begin < p->row_bytes ? ld_stream_vec16(from + begin) : zero;
        }
        ll_encode(stage, p->blocks, at / 256, v, codec);
    }
}

/* All threads: into the stage, the caller's row that goes home as push `number`. */
TERN_DEVICE struct ll_parcel ll_pack_row(const struct ll_combine_args *p, uint32_t number, char *stage,
                                         const int codec)
{
    const struct ll_push *push = &p->lane.pushes[number];
    struct ll_parcel to = {push->rank, push->place, p->f.ep_bases[push->rank]};
    const char *from = p->in + (uint64_t)(uint32_t)push->row * p->row_bytes;
    if (codec == LL_PLAIN) {
        ll_load_row(stage, from, p->row_bytes);
    } else {
        ll_encode_row(p, from, stage, codec);
    }
    return to;
}

/* Whether number so and so has come and its rank is there. */
TERN_DEVICE int ll_goes_home(const struct ll_combine_args *p, uint32_t number)
{
    int32_t rank = p->adds_here ? p->lane.plan[(uint64_t)number * (LL_PLAN_ROWS + 2 * p->topk) + LL_PLAN_RANK]
                                : p->lane.pushes[number].rank;
    return rank >= 0 && !ll_gone(&p->f, &p->lane, rank);
}

/* One thread: the row is there. What it copied itself has ended; what the block stored is behind a
 * barrier. */
TERN_DEVICE void ll_tell_home(const struct ll_combine_args *p, uint64_t epoch, struct ll_parcel to)
{
    OP_FENCE(); /* pairs with the acquire in ll_await: the row comes before its word */
    OP_STORE_DONE(ll_arrival(&p->lane, to.heap, epoch, (uint32_t)to.index), ll_arrived(epoch));
}

/* All threads of one block: this rank is in. */
TERN_DEVICE void ll_announce_combine(const struct ll_combine_args *p, uint64_t epoch)
{
    char *heap = p->f.ep_bases[tid() < p->f.num_ranks ? tid() : 0]; /* on its way before the fence */
    OP_FENCE(); /* makes the stores below releases; pairs with the acquires in ll_await */
    for (int d = tid(); d < p->f.num_ranks; d += nthr()) {
        heap = d == tid() ? heap : p->f.ep_bases[d];
        if (!ll_gone(&p->f, &p->lane, d)) {
            OP_STORE_READY(ll_entry(&p->lane, heap, epoch, p->f.rank),
                           op_tagged(epoch, (uint32_t)p->f.message.signature));
        }
    }
}

TERN_DEVICE void ll_combine_send(const struct ll_combine_args *p, uint64_t epoch, const int codec,
                                 const int bulk)
{
    uint32_t count = (uint32_t)p->lane.totals[p->adds_here ? 0 : 1];
    uint32_t stage = 0;
    struct ll_parcel before = {-1, 0, NULL};
    if (bid() == nblk() - 1) { /* which has no more rows than any other */
        ll_announce_combine(p, epoch);
    }
    for (uint32_t u = (uint32_t)bid(); u < count; u += (uint32_t)nblk()) {
        char *from = shared_memory() + stage * p->sent_bytes;
        if (ll_has_masks(&p->lane) && !ll_goes_home(p, u)) {
            continue;
        }
        int evicted = ll_is_evicted(&p->f, &p->lane); /* on its way while the row is read */
        struct ll_parcel to = p->adds_here ? ll_pack_sum(p, u, from, codec) : ll_pack_row(p, u, from, codec);
        char *at = ll_buffer(&p->lane, to.heap, epoch) + (uint64_t)(uint32_t)to.index * p->lane.home_stride;
        if (bulk) {
            /* The stage, and what others read of the buffer before, come before the copy. */
            LL_COMBINE_PROXY_FENCE();
        }
        if (!ll_sync_sender(&p->lane, evicted)) {
            before.rank = -1; /* not even the word of the row before: its place may be another's by now */
            break;
        }
        if (bulk && tid() == 0) {
            bulk_store(at, from, p->sent_bytes);
            bulk_commit();
            bulk_wait(1);
        }
        if (tid() == 0 && before.rank >= 0) {
            ll_tell_home(p, epoch, before);
        }
        if (!bulk) {
            ll_store_row(at, from, p->sent_bytes);
        }
        before = to;
        stage = stage == LL_STAGES - 1 ? 0 : stage + 1;
    }
    if (bulk && tid() == 0) {
        bulk_wait(0);
    }
    sync_block();
    if (tid() == 0 && before.rank >= 0) {
        ll_tell_home(p, epoch, before);
    }
}

/* All threads: every rank is in, in the same operation, or masked; 0: abandon. */
TERN_DEVICE int ll_await_entries(const struct ll_combine_args *p, uint64_t epoch, uint64_t begin)
{
    int ok = 1;
    for (int s = tid(); ok && s < p->f.num_ranks; s += nthr()) {
        uint32_t signature = 0;
        int end = ll_gone(&p->f, &p->lane, s) ? LL_LOST
                                              : ll_await(&p->f, &p->lane, epoch, begin, OP_AWAIT_READY, s,
                                                         ll_entry(&p->lane, p->f.own, epoch, s), &signature);
        ok = end == LL_LOST || (end == LL_HERE && op_matches(&p->f, epoch, s, signature));
    }
    return !sync_block_or(!ok);
}

/* What a lane knows of the token's choice that it looks after. */
struct ll_awaited {
    int present;   /* the choice takes part in the sum */
    int source;    /* the choice in whose name its row comes */
    int32_t owner; /* the rank it comes from; -1: none comes for this choice */
    float weight;
};

/* One warp: the verdicts on the rows of token t, each of which has arrived, or its rank is lost. */
TERN_DEVICE void ll_judge_token(const struct ll_combine_args *p, uint64_t epoch, uint32_t t, int end,
                                struct ll_awaited *a)
{
    uint64_t c = (uint64_t)t * p->topk + (uint32_t)lane();
    int here = 0;
    if (a->owner >= 0 && ll_gone(&p->f, &p->lane, a->owner) != LL_KNOWN) {
        if (end == LL_LOST) {
            ll_raise_doubt(&p->lane, epoch);
        }
        here = ll_judge_row(&p->f, &p->lane, epoch, c, ll_arrival(&p->lane, p->f.own, epoch, c));
    }
    a->present = shfl_u32((uint32_t)here, a->source) && a->present;
    sync_warp(); /* what each lane has acquired is there for all lanes */
}

/* One warp: every row of token t is here, or left out; 0: abandon. */
TERN_DEVICE int ll_await_rows(const struct ll_combine_args *p, uint64_t epoch, uint64_t begin, uint32_t t,
                              struct ll_awaited *a)
{
    uint32_t k = (uint32_t)lane();
    uint64_t c = (uint64_t)t * p->topk + k;
    int32_t id = k < p->topk ? p->lane.ids[c] : -1;
    int32_t rank = id >= 0 ? id / (int32_t)p->experts_a_rank : -1;
    uint32_t data;
    int end = LL_HERE;
    a->source = TERN_FFS(match_any_u32((uint32_t)(p->summed ? rank : id))) - 1;
    a->present = id >= 0 && (!p->summed || a->source == lane());
    a->weight = a->present && !p->summed ? p->weights[c] : 1.0f;
    a->owner = a->source == lane() ? rank : -1;
    if (a->owner >= 0) {
        end = ll_gone(&p->f, &p->lane, rank) == LL_KNOWN
                  ? LL_LOST
                  : ll_await(&p->f, &p->lane, epoch, begin, OP_AWAIT_DONE, rank,
                             ll_arrival(&p->lane, p->f.own, epoch, c), &data);
    }
    if (!warp_all(end == LL_HERE)) {
        if (warp_any(end == LL_ABANDON)) {
            return 0;
        }
        ll_judge_token(p, epoch, t, end, a);
    }
    sync_warp(); /* what each lane has acquired is there for all lanes */
    return 1;
}

/* One lane: its channels of one row into their sums; `left` bytes of it are from the warp's first on. */
TERN_DEVICE void ll_add_plain(const struct ll_combine_args *p, float sum[][8], const char *from,
                              uint32_t left, float weight)
{
    TERN_UNROLL
    for (int q = 0; q < LL_SUM_VECS; q++) {
        if ((uint32_t)(q * 512 + lane() * 16) < left) {
            struct vec16 v = ld_stream_vec16(from + q * 512);
            if (p->summed) {
                sum_add(sum[q], v);
            } else {
                ll_add_weighted(sum[q], v, weight);
            }
        }
    }
}

/* The same of a packed row. A block's last channels may be past the row's end; nobody stores their sums. */
TERN_DEVICE void ll_add_coded(const struct ll_combine_args *p, float sum[][8], const char *row,
                              uint32_t begin, float weight, const int codec)
{
    uint32_t block = (begin + ll_lane_at()) / 256;
    if (block >= p->blocks) {
        return;
    }
    struct ll_coded coded = ll_fetch(row, p->blocks, block, codec);
    TERN_UNROLL
    for (int q = 0; q < LL_SUM_VECS; q++) {
        float y[8];
        ll_decode(y, &coded, q, codec);
        TERN_UNROLL
        for (int i = 0; i < 8; i++) {
            sum[q][i] += weight * y[i]; /* rows that are sums already have weight 1 */
        }
    }
}

/* Where a lane's LL_SUM_VECS pieces of 16 bytes lie in the LL_SUM of BF16 that a warp adds. */
TERN_DEVICE uint32_t ll_vec_at(int q, const int codec)
{
    return codec == LL_PLAIN ? (uint32_t)(q * 512 + lane() * 16) : ll_lane_at() + (uint32_t)q * LL_HALF_BLOCK;
}

TERN_DEVICE void ll_add_token(const struct ll_combine_args *p, uint64_t epoch, uint32_t t, uint32_t begin,
                              const struct ll_awaited *a, const int codec)
{
    const char *rows = ll_buffer(&p->lane, p->f.own, epoch) + (uint64_t)t * p->topk * p->lane.home_stride +
                       (codec == LL_PLAIN ? begin + lane() * 16 : 0);
    char *to = p->out + (int64_t)t * p->out_stride + begin + ll_vec_at(0, codec);
    uint32_t left = p->row_bytes - begin;
    float sum[LL_SUM_VECS][8];
    TERN_UNROLL
    for (int q = 0; q < LL_SUM_VECS; q++) {
        TERN_UNROLL
        for (int i = 0; i < 8; i++) {
            sum[q][i] = 0.0f;
        }
    }
    for (uint32_t hits = warp_ballot(a->present); hits; hits &= hits - 1) {
        int k = TERN_FFS(hits) - 1;
        float weight = shfl_f32(a->weight, k);
        const char *row = rows + (uint64_t)shfl_u32((uint32_t)a->source, k) * p->lane.home_stride;
        if (codec == LL_PLAIN) {
            ll_add_plain(p, sum, row, left, weight);
        } else {
            ll_add_coded(p, sum, row, begin, weight, codec);
        }
    }
    TERN_UNROLL
    for (int q = 0; q < LL_SUM_VECS; q++) {
        if (ll_vec_at(q, codec) < left) {
            st_vec16(to + q * (codec == LL_PLAIN ? 512 : LL_HALF_BLOCK), sum_round(sum[q]));
        }
    }
}

TERN_DEVICE void ll_combine_receive(const struct ll_combine_args *p, uint64_t epoch, const int codec)
{
    uint32_t pieces = (p->row_bytes + LL_SUM - 1) / LL_SUM;
    uint32_t units = p->num_tokens * pieces;
    uint64_t begin = ll_begin(&p->lane);
    int ok = ll_await_entries(p, epoch, begin);
    for (uint32_t u = (uint32_t)(warp() * nblk() + bid()); ok && u < units;
         u += (uint32_t)(nblk() * nwarps())) {
        struct ll_awaited a;
        ok = ll_await_rows(p, epoch, begin, u / pieces, &a);
        for (int judged = 0, again = ok; again;) {
            int doubts = ll_has_masks(&p->lane) && lane() == 0 && ll_doubts(&p->lane, epoch);
            ll_add_token(p, epoch, u / pieces, u % pieces * LL_SUM, &a, codec);
            again = ll_has_masks(&p->lane) && warp_any(doubts) && !judged;
            if (again) {
                ll_judge_token(p, epoch, u / pieces, LL_HERE, &a);
                judged = 1;
            }
        }
    }
    ll_leave(&p->f, &p->lane, epoch);
}

/* All threads: whether what the lane's latest dispatch left here is what this combine was issued for. The
 * host cannot know, since a graph may have run between; and with another shape rows would go astray. */
TERN_DEVICE int ll_combine_fits(const struct ll_combine_args *p, uint64_t epoch, uint32_t dispatched)
{
    if (dispatched == p->dispatched) {
        return 1;
    }
    if (tid() == 0) {
        struct op_note note = {OP_STATUS_MISMATCH, OP_AWAIT_MATCH, p->f.rank, p->f.rank, epoch,
                               p->dispatched,      dispatched,     0,         0,         0};
        op_fault(&p->f, &note);
    }
    return 0;
}

TERN_DEVICE void ll_combine_body(const struct ll_combine_args *p, const int codec, const int bulk)
{
    int ok;
    uint32_t dispatched = p->lane.state->dispatched; /* on its way with the epoch */
    struct ll_glance glance = ll_look(&p->f, &p->lane);
    uint64_t epoch = glance.epoch;
    ll_enter(&p->f, &glance, &ok);
    if (ok && (p->phases & LL_SENDS)) {
        ok = ll_combine_fits(p, epoch, dispatched);
    }
    if (ok && (p->phases & LL_SENDS)) {
        ll_combine_send(p, epoch, codec, bulk);
    }
    if (p->phases & LL_RECEIVES) {
        ll_raise(&p->f, &p->lane, epoch);
    }
    if (ok && (p->phases & LL_RECEIVES)) {
        ll_combine_receive(p, epoch, codec);
    }
}

#endif
