/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch, sending. The last block counts all tokens and tells every peer how many rows and
 * choices come; each other block has a run of consecutive tokens. It counts what comes before its run, which
 * makes slots, and takes token after token: all its warps read and cast the row into shared memory, the first
 * one writes the header, and one copy for each rank that the token goes to leaves from there. With few tokens
 * a block has one or none, so latency is all: what needs neither the epoch nor the counts, the first row and
 * its ids, is read before either is known.
 *
 * Shared memory: | counters [E + R] | slots [LL_STAGES][R] | stages |. Stage i is written again two barriers
 * after its copies were started; between the two their word was sent, hence they had ended. */
#ifndef TERN_LL_SEND_H
#define TERN_LL_SEND_H

#include "kernels/cast.h"
#include "kernels/ll_frame.h"

/* A program that is wrong on purpose, for test/tsan_awake.sh, is without it. */
#ifdef TERN_TEST_NO_LL_DISPATCH_PROXY
#define LL_DISPATCH_PROXY_FENCE() ((void)0)
#else
#define LL_DISPATCH_PROXY_FENCE() fence_proxy_async()
#endif

/* What the first warp's lanes know of a token's choices. */
struct ll_token {
    int32_t id;
    uint32_t weight; /* bits of the float */
};

struct ll_sender {
    const struct ll_dispatch_args *p;
    uint64_t epoch;
    uint32_t begin, end;   /* tokens of this block */
    struct ll_token token; /* the next one */
    uint32_t *counters;    /* [E] choices, then [R] rows */
    int32_t *slots;        /* [LL_STAGES][R]: of the staged token at each rank, or -1 */
    char *stages;
    char *heap; /* of rank tid(), loaded long before its row is whole */
};

TERN_DEVICE struct ll_sender ll_sender_of(const struct ll_dispatch_args *p)
{
    struct ll_sender s;
    uint32_t senders = nblk() > 1 ? (uint32_t)nblk() - 1 : 1;
    uint32_t b = (uint32_t)bid() < senders ? (uint32_t)bid() : senders;
    s.p = p;
    s.epoch = 0;                           /* not yet known */
    s.begin = p->num_tokens * b / senders; /* below 2^13 tokens, 2^8 blocks */
    s.end = p->num_tokens * (b < senders ? b + 1 : senders) / senders;
    s.token.id = -1;
    s.token.weight = 0;
    s.counters = (uint32_t *)shared_memory();
    s.slots = (int32_t *)(s.counters + p->num_experts + (uint32_t)p->f.num_ranks);
    s.stages = shared_memory() + p->stage_offset;
    s.heap = p->f.ep_bases[tid() < p->f.num_ranks ? tid() : 0];
    return s;
}

TERN_DEVICE int64_t ll_raw_id(const struct ll_dispatch_args *p, uint64_t c)
{
    return p->idx_bytes == 8 ? ((const int64_t *)p->topk_idx)[c] : ((const int32_t *)p->topk_idx)[c];
}

TERN_DEVICE int32_t ll_id(const struct ll_dispatch_args *p, uint64_t c)
{
    int64_t id = ll_raw_id(p, c);
    return id >= 0 && id < (int64_t)p->num_experts ? (int32_t)id : -1;
}

/* The first id out of range since the object was opened or reset goes on record; it counts as -1. */
TERN_DEVICE void ll_report_id(const struct ll_sender *s, uint64_t c)
{
    const struct ll_dispatch_args *p = s->p;
    int64_t id = ll_raw_id(p, c);
    if (id < -1 || id >= (int64_t)p->num_experts) {
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

/* All threads. A barrier later, ll_count can begin. */
TERN_DEVICE void ll_clear_counters(const struct ll_sender *s)
{
    const struct ll_dispatch_args *p = s->p;
    for (uint32_t i = (uint32_t)tid(); i < p->num_experts + (uint32_t)p->f.num_ranks; i += (uint32_t)nthr()) {
        s->counters[i] = 0;
    }
}

/* All threads: adds what tokens 0 .. end - 1 have, once an expert and once a rank of each token. */
TERN_DEVICE void ll_count(const struct ll_sender *s, uint32_t end, const int reports)
{
    const struct ll_dispatch_args *p = s->p;
    for (uint32_t c = (uint32_t)tid(); c < end * p->topk; c += (uint32_t)nthr()) {
        int32_t id = ll_id(p, c);
        int32_t rank = id >= 0 ? id / (int32_t)p->experts_a_rank : 0;
        int32_t low = rank * (int32_t)p->experts_a_rank;
        int new_expert = id >= 0, new_rank = id >= 0;
        for (uint32_t i = c - c % p->topk; i < c; i++) {
            int32_t other = ll_id(p, i);
            new_expert &= other != id;
            new_rank &= other < low || other >= low + (int32_t)p->experts_a_rank;
        }
        if (new_expert) {
            atom_add_cta_u32(&s->counters[id], 1);
        }
        if (new_rank) {
            atom_add_cta_u32(&s->counters[p->num_experts + (uint32_t)rank], 1);
        }
        if (reports) {
            ll_report_id(s, c);
        }
    }
    sync_block();
}

TERN_DEVICE char *ll_heap(const struct ll_sender *s, int d)
{
    return d == tid() ? s->heap : s->p->f.ep_bases[d];
}

/* All threads of the last block: this rank is in, and so many rows and choices are on their way. */
TERN_DEVICE void ll_announce_counts(const struct ll_sender *s)
{
    const struct ll_dispatch_args *p = s->p;
    uint32_t words = LL_ENTRY_CHOICES + p->experts_a_rank;
    ll_count(s, p->num_tokens, 1);
    uint32_t first = (uint32_t)tid() / words;
    char *heap =
        p->f.ep_bases[first < (uint32_t)p->f.num_ranks ? first : 0]; /* on its way before the fence */
    OP_FENCE(); /* makes the stores below releases; pairs with the acquires in ll_await */
    for (uint32_t i = (uint32_t)tid(); i < words * (uint32_t)p->f.num_ranks; i += (uint32_t)nthr()) {
        uint32_t d = i / words, w = i % words;
        uint32_t value = (uint32_t)p->f.message.signature;
        if (w == LL_ENTRY_ROWS) {
            value = s->counters[p->num_experts + d];
        } else if (w >= LL_ENTRY_CHOICES) {
            value = s->counters[d * p->experts_a_rank + w - LL_ENTRY_CHOICES];
        }
        if (!ll_gone(&p->f, &p->lane, (int)d)) {
            heap = d == first ? heap : p->f.ep_bases[d];
            uint64_t *to = ll_entry(&p->lane, heap, s->epoch, p->f.rank) + w;
            OP_STORE_READY(to, op_tagged(s->epoch, value));
        }
    }
    sync_block();
}

/* The first warp, some time before ll_write_header. */
TERN_DEVICE struct ll_token ll_load_token(const struct ll_sender *s, uint32_t t)
{
    const struct ll_dispatch_args *p = s->p;
    uint64_t c = (uint64_t)t * p->topk + (uint32_t)lane();
    struct ll_token token = {-1, 0};
    if (warp() == 0 && t < s->end && (uint32_t)lane() < p->topk) {
        token.id = ll_id(p, c);
        token.weight = p->weights ? f32_bits(p->weights[c]) : 0;
    }
    return token;
}

/* The first warp: the token's slots, its header, and this rank's own note of its ids for combine. */
TERN_DEVICE void ll_write_header(const struct ll_sender *s, uint32_t t, uint32_t stage)
{
    const struct ll_dispatch_args *p = s->p;
    int32_t *header = (int32_t *)(s->stages + stage * p->row_bytes);
    int32_t *slots = s->slots + stage * (uint32_t)p->f.num_ranks;
    uint32_t k = (uint32_t)lane();
    uint64_t c = (uint64_t)t * p->topk + k;
    int32_t id = s->token.id;
    int32_t rank = id >= 0 ? id / (int32_t)p->experts_a_rank : -1;
    int first_of_id = TERN_FFS(match_any_u32((uint32_t)id)) - 1;
    int first_of_rank = TERN_FFS(match_any_u32((uint32_t)rank)) - 1;
    int32_t slot = id >= 0 ? (int32_t)s->counters[id] : 0;
    int sent = id >= 0 && !ll_gone(&p->f, &p->lane, rank);
    for (int d = lane(); d < p->f.num_ranks; d += 32) {
        slots[d] = -1;
    }
    sync_warp();
    if (id >= 0 && first_of_id == lane()) {
        s->counters[id]++;
    }
    if (sent && first_of_rank == lane()) {
        slots[rank] = (int32_t)s->counters[p->num_experts + (uint32_t)rank]++;
    }
    if (k == 0) {
        header[LL_HEADER_TOKEN] = (int32_t)t;
    }
    if (k < p->topk) {
        header[LL_HEADER_IDS + k] = id;
        header[LL_HEADER_IDS + p->topk + k] = slot;
        header[LL_HEADER_IDS + 2 * p->topk + k] = (int32_t)s->token.weight;
        p->lane.ids[c] = sent ? id : -1;
    }
    sync_warp();
}

/* One warp: two blocks of 128 channels, half a warp each, 8 channels a lane from c on. */
TERN_DEVICE void ll_cast_blocks(const struct ll_sender *s, char *row, uint32_t c, struct vec16 v)
{
    const struct ll_dispatch_args *p = s->p;
    float amax = amax_vec16(v);
    TERN_UNROLL
    for (int step = 8; step > 0; step >>= 1) {
        amax = abs_max(amax, shfl_xor_f32(amax, step));
    }
    if (c < p->hidden) {
        cast_store(row, row + p->payload_bytes, c, v, block_scale_of(amax, p->cast), p->cast);
    }
}

/* All warps: the row, cast if asked, behind the header. */
TERN_DEVICE void ll_write_row(const struct ll_sender *s, uint32_t t, uint32_t stage)
{
    const struct ll_dispatch_args *p = s->p;
    const char *from = p->in + (int64_t)t * p->in_stride;
    char *row = s->stages + stage * p->row_bytes + p->header_bytes;
    char *scales = row + p->payload_bytes;
    uint32_t step = (uint32_t)nwarps() * 256;
    if (p->cast == CAST_NONE) {
        ll_load_row(row, from, p->payload_bytes);
        return;
    }
    for (uint32_t i = (p->hidden + 127) / 128 + (uint32_t)tid();
         p->cast == CAST_FP8_UE8M0 && i < p->scale_bytes; i += (uint32_t)nthr()) {
        scales[i] = 0;
    }
    for (uint32_t c0 = (uint32_t)warp() * 256; c0 < p->hidden; c0 += LL_AT_ONCE * step) {
        struct vec16 v[LL_AT_ONCE];
        TERN_UNROLL
        for (int a = 0; a < LL_AT_ONCE; a++) {
            uint32_t c = c0 + (uint32_t)a * step + (uint32_t)lane() * 8;
            struct vec16 zero = {{0, 0, 0, 0}};
            v[a] = c < p->hidden ? ld_stream_vec16(from + (uint64_t)c * 2) : zero;
        }
        TERN_UNROLL
        for (int a = 0; a < LL_AT_ONCE; a++) {
            ll_cast_blocks(s, row, c0 + (uint32_t)a * step + (uint32_t)lane() * 8, v[a]);
        }
    }
}

/* In the buffer of the rank whose heap this is. */
TERN_DEVICE char *ll_row_at(const struct ll_sender *s, char *heap, int32_t slot)
{
    const struct ll_dispatch_args *p = s->p;
    uint64_t place = ll_place_of(&p->lane, (uint32_t)p->f.rank, (uint32_t)slot);
    return ll_buffer(&p->lane, heap, s->epoch) + place * p->lane.row_stride;
}

/* All threads, after the stage is whole. */
TERN_DEVICE void ll_start(const struct ll_sender *s, uint32_t stage, const int bulk)
{
    const struct ll_dispatch_args *p = s->p;
    const int32_t *slots = s->slots + stage * (uint32_t)p->f.num_ranks;
    const char *from = s->stages + stage * p->row_bytes;
    for (int d = bulk ? tid() : 0; d < p->f.num_ranks; d += bulk ? nthr() : 1) {
        if (slots[d] >= 0 && bulk) {
            bulk_store(ll_row_at(s, ll_heap(s, d), slots[d]), from, p->row_bytes);
        } else if (slots[d] >= 0) {
            ll_store_row(ll_row_at(s, p->f.ep_bases[d], slots[d]), from, p->row_bytes);
        }
    }
    if (bulk) {
        bulk_commit();
    }
}

/* The threads that started copies from this stage, these having ended; for the plain variant, any threads
 * after a barrier: tells each rank that its row is there. */
TERN_DEVICE void ll_tell(const struct ll_sender *s, uint32_t stage)
{
    const struct ll_dispatch_args *p = s->p;
    const int32_t *slots = s->slots + stage * (uint32_t)p->f.num_ranks;
    if (tid() >= p->f.num_ranks) {
        return;
    }
    OP_FENCE(); /* pairs with the acquire in ll_await: the row comes before its word */
    for (int d = tid(); d < p->f.num_ranks; d += nthr()) {
        if (slots[d] >= 0) {
            uint64_t i = ll_place_of(&p->lane, (uint32_t)p->f.rank, (uint32_t)slots[d]);
            OP_STORE_DONE(ll_arrival(&p->lane, ll_heap(s, d), s->epoch, i), ll_arrived(s->epoch));
        }
    }
}

/* All threads, before the block's first barrier: clears counters, and reads what can be read by then. */
TERN_DEVICE void ll_prepare(struct ll_sender *s)
{
    ll_clear_counters(s);
    s->token = ll_load_token(s, s->begin);
    if (s->begin < s->end) {
        ll_write_row(s, s->begin, 0);
    }
}

/* All threads of a block with tokens. */
TERN_DEVICE void ll_send_tokens(struct ll_sender *s, const int bulk)
{
    uint32_t stage = 0, before = LL_STAGES - 1;
    int started = 0;
    ll_count(s, s->begin, 0);
    for (uint32_t t = s->begin; t < s->end; t++) {
        int evicted = ll_is_evicted(&s->p->f, &s->p->lane); /* on its way while the row is read */
        if (warp() == 0) {
            ll_write_header(s, t, stage);
        }
        s->token = ll_load_token(s, t + 1);
        if (t > s->begin) {
            ll_write_row(s, t, stage);
        }
        if (bulk) {
            /* The stage, and what others read of the buffer before, come before the copies. */
            LL_DISPATCH_PROXY_FENCE();
        }
        if (!ll_sync_sender(&s->p->lane, evicted)) {
            started = 0; /* not even the word of the row before: its place may be another's by now */
            break;
        }
        if (bulk) {
            ll_start(s, stage, 1);
            bulk_wait(1);
        }
        if (started) {
            ll_tell(s, before);
        }
        started = 1;
        if (!bulk) {
            ll_start(s, stage, 0);
        }
        before = stage;
        stage = stage == LL_STAGES - 1 ? 0 : stage + 1;
    }
    if (bulk) {
        bulk_wait(0);
    }
    sync_block();
    if (started) {
        ll_tell(s, before);
    }
    sync_block();
}

/* All threads, after ll_prepare and a barrier. */
TERN_DEVICE void ll_dispatch_send(struct ll_sender *s, uint64_t epoch, const int bulk)
{
    s->epoch = epoch;
    if (bid() == nblk() - 1) {
        ll_announce_counts(s);
    }
    if (nblk() == 1) { /* who counted all counts anew */
        ll_clear_counters(s);
        sync_block();
    }
    if (s->begin < s->end) {
        ll_send_tokens(s, bulk);
    }
}

#endif
