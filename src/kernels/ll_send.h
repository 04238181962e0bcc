/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch, sending. The last block counts all tokens and tells every peer how many rows and
 * choices come; each other block has a run of consecutive tokens. It counts what comes before its run
 * (across domains, all tokens), which makes slots, and takes token after token: all its warps read and cast
 * the row into shared memory, the first one writes the header, and one copy for each rank that the token goes
 * to leaves from there; for ranks of other domains, into the out-box (ll_send_far.h). With few tokens a block
 * has one or none, so latency is all: what needs neither the epoch nor the counts, the first row and its ids,
 * is read before either is known.
 *
 * Shared memory: | counters [E + R] | slots [LL_STAGES][R] | across domains [R + 1], [E + 1] | railed (1 +
 * LL_STAGES) x [D] | across domains [LL_NEAR] queue pairs | stages |.
 * Stage i is written again two barriers after its copies were started; between the two their word was sent,
 * hence they had ended. */
#ifndef TERN_LL_SEND_H
#define TERN_LL_SEND_H

#include "kernels/cast.h"
#include "kernels/ll_send_rail.h"

/* A program that is wrong on purpose, for test/tsan_awake.sh, is without it. */
#ifdef TERN_TEST_NO_LL_DISPATCH_PROXY
#define LL_DISPATCH_PROXY_FENCE() ((void)0)
#define LL_DISPATCH_STAGE_FENCE() ((void)0)
#else
#define LL_DISPATCH_PROXY_FENCE() fence_proxy_async_global()
#define LL_DISPATCH_STAGE_FENCE() fence_proxy_async_shared()
#endif

/* Whether the last thread of a sending block has heard that the others leave this rank out. */
TERN_DEVICE int ll_is_evicted(const struct op_frame *f, const struct ll_lane *l)
{
    return ll_has_masks(l) && tid() == nthr() - 1 && ll_heard(f, l, f->rank);
}

/* All threads of a sending block: a barrier; 0 if it is to send no more. A rank that was stopped for so long
 * that it is evicted would write to buffers that others use by now. */
TERN_DEVICE int ll_sync_sender(const struct ll_lane *l, int evicted)
{
    if (ll_has_masks(l)) {
        return !sync_block_or(evicted);
    }
    sync_block();
    return 1;
}

/* Word w of what rank d is told. */
TERN_DEVICE uint32_t ll_entry_value(const struct ll_sender *s, uint32_t d, uint32_t w)
{
    const struct ll_dispatch_args *p = s->p;
    if (w == LL_ENTRY_SIGNATURE) {
        return (uint32_t)p->f.message.signature;
    }
    if (w == LL_ENTRY_ROWS) {
        return s->counters[p->num_experts + d];
    }
    uint32_t e = 2 * (w - LL_ENTRY_CHOICES);
    const uint32_t *choices = s->counters + d * p->experts_a_rank + e;
    return choices[0] | (e + 1 < p->experts_a_rank ? choices[1] << 16 : 0);
}

/* All threads of the last block, counted and past ll_enter: this rank is in, and so many rows and choices are
 * on their way. The fence that makes the stores below releases is in ll_prepare. */
TERN_DEVICE void ll_announce_counts(const struct ll_sender *s)
{
    const struct ll_dispatch_args *p = s->p;
    uint32_t words = LL_ENTRY_WORDS(p->experts_a_rank);
    uint32_t step = nthr() < LL_ANNOUNCERS ? (uint32_t)nthr() : LL_ANNOUNCERS;
    TERN_ROLLED
    for (int d = 0; s->turn < LL_ANNOUNCERS && d < p->f.num_ranks; d++) {
        if (ll_gone(&p->f, &p->lane, d) || ll_is_far(&p->f, d)) {
            continue;
        }
        uint64_t *to = ll_entry(&p->lane, ll_heap(s, d), s->epoch, p->f.rank);
        TERN_ROLLED
        for (uint32_t w = (uint32_t)s->turn; w < words; w += step) {
            OP_STORE_READY(to + w, op_tagged(s->epoch, ll_entry_value(s, (uint32_t)d, w)));
        }
    }
}

/* All threads of the last block: the same for far ranks, each of which one warp tells; and behind it, where
 * its rows of the combine go, and railed how many messages go to its domain. */
TERN_DEVICE void ll_announce_far(const struct ll_sender *s)
{
    const struct ll_dispatch_args *p = s->p;
    uint32_t words = LL_ENTRY_WORDS(p->experts_a_rank);
    for (int d = warp(); d < p->f.num_ranks; d += nwarps()) {
        if (ll_gone(&p->f, &p->lane, d) || !ll_is_far(&p->f, d)) {
            continue;
        }
        uint64_t *out = ll_entry_out(&p->f, &p->lane, s->epoch, d);
        uint32_t rows = LL_WITH_RAIL ? ll_far_begins(s)[ll_domain_of(&p->f, (uint32_t)d) + 1] /* still */
                                     : ll_entry_value(s, (uint32_t)d, LL_ENTRY_ROWS);
        for (uint32_t w = 1 + (uint32_t)lane(); w < words; w += 32) {
            out[w] = op_tagged(s->epoch, ll_entry_value(s, (uint32_t)d, w));
        }
        if (lane() == 0) {
            out[words] = op_tagged(s->epoch, ll_home_place(s, d));
        }
        if (LL_WITH_RAIL && lane() == 0) {
            out[words + 1] = op_tagged(s->epoch, rows);
        }
        sync_warp();
        ll_put_entry(&p->f, &p->lane, s->epoch, d, rows, words + 1 + LL_WITH_RAIL,
                     ll_entry_value(s, (uint32_t)d, LL_ENTRY_SIGNATURE));
    }
}

/* The first warp, some time before ll_study_token. */
TERN_DEVICE struct ll_token ll_load_token(const struct ll_sender *s, uint32_t t)
{
    const struct ll_dispatch_args *p = s->p;
    uint64_t c = (uint64_t)t * p->topk + (uint32_t)lane();
    struct ll_token token = {-1, 0, 0, {0, 0}};
    if (warp() == 0 && t < s->end && (uint32_t)lane() < p->topk) {
        token.id = ll_valid_id(p, id_at(p->topk_idx, p->idx_bytes, c));
        token.weight = p->weights ? f32_bits(p->weights[c]) : 0;
    }
    return token;
}

/* The first warp: what is known of the token's choices, and that it has no slots yet. */
TERN_DEVICE void ll_study_choices(struct ll_sender *s, uint32_t stage)
{
    const struct ll_dispatch_args *p = s->p;
    int32_t *slots = s->slots + stage * (uint32_t)p->f.num_ranks;
    s->token.rank = s->token.id >= 0 ? (uint32_t)s->token.id / p->experts_a_rank : 0;
    s->token.first = ll_firsts_of(p, s->token.id, s->token.rank, (uint32_t)lane());
    for (int d = lane(); d < p->f.num_ranks; d += 32) {
        slots[d] = -1;
    }
}

/* Likewise, and what the token's header has whatever its slots are. */
TERN_DEVICE void ll_study_token(struct ll_sender *s, uint32_t t, uint32_t stage)
{
    const struct ll_dispatch_args *p = s->p;
    int32_t *header = (int32_t *)(s->stages + stage * p->row_bytes);
    uint32_t k = (uint32_t)lane();
    ll_study_choices(s, stage);
    if (k == 0) {
        header[LL_HEADER_TOKEN] = (int32_t)t;
        if (LL_WITH_RAIL) {
            header[LL_HEADER_MESSAGE(p->topk)] = 0; /* who spreads the row knows it */
        }
    }
    if (k < p->topk) {
        header[LL_HEADER_IDS + k] = s->token.id;
        header[LL_HEADER_IDS + 2 * p->topk + k] = (int32_t)s->token.weight;
    }
    sync_warp();
}

/* The first warp, when what comes before is counted: the token's slots for its copies, this rank's own note
 * of its ids for combine, and the slot of a lane's choice. */
TERN_DEVICE int32_t ll_take_slots(const struct ll_sender *s, uint32_t t, uint32_t stage)
{
    const struct ll_dispatch_args *p = s->p;
    int32_t *slots = s->slots + stage * (uint32_t)p->f.num_ranks;
    uint32_t k = (uint32_t)lane();
    int32_t id = s->token.id;
    uint32_t rank = s->token.rank;
    int32_t slot = id >= 0 ? (int32_t)s->counters[id] : 0;
    int sent = id >= 0 && !ll_gone(&p->f, &p->lane, (int)rank);
    sync_warp(); /* the choices of one expert have one slot */
    if (id >= 0 && s->token.first.of_expert) {
        s->counters[id]++;
    }
    if (sent && s->token.first.of_rank) {
        slots[rank] = (int32_t)s->counters[p->num_experts + rank]++;
    }
    if (k < p->topk) {
        p->lane.ids[(uint64_t)t * p->topk + k] = sent ? id : -1;
    }
    if (LL_WITH_RAIL) {
        ll_number_messages(s, stage);
        ll_note_slot(s, t, slot, ll_staged_messages(s, stage));
    } else if (LL_WITH_FAR) {
        ll_note_slot(s, t, slot, slots);
    }
    return slot;
}

/* Likewise, and the slots in the token's header. */
TERN_DEVICE void ll_give_slots(const struct ll_sender *s, uint32_t t, uint32_t stage)
{
    const struct ll_dispatch_args *p = s->p;
    int32_t *header = (int32_t *)(s->stages + stage * p->row_bytes);
    int32_t slot = ll_take_slots(s, t, stage);
    if ((uint32_t)lane() < p->topk) {
        header[LL_HEADER_IDS + p->topk + (uint32_t)lane()] = slot;
    }
    sync_warp();
}

/* All threads of the block: `bytes` of global memory into a stage. */
TERN_DEVICE void ll_load_row(char *stage, const char *from, uint32_t bytes)
{
    uint32_t step = (uint32_t)nthr() * 16;
    for (uint32_t i0 = (uint32_t)tid() * 16; i0 < bytes; i0 += LL_AT_ONCE * step) {
        struct vec16 v[LL_AT_ONCE];
        TERN_UNROLL
        for (int a = 0; a < LL_AT_ONCE; a++) {
            if (i0 + (uint32_t)a * step < bytes) {
                v[a] = ld_stream_vec16(from + i0 + (uint32_t)a * step);
            }
        }
        TERN_UNROLL
        for (int a = 0; a < LL_AT_ONCE; a++) {
            if (i0 + (uint32_t)a * step < bytes) {
                st_vec16(stage + i0 + (uint32_t)a * step, v[a]);
            }
        }
    }
}

/* All threads of the block: a stage to where it goes, in the plain variant. */
TERN_DEVICE void ll_store_row(char *to, const char *stage, uint32_t bytes)
{
    for (uint32_t i = (uint32_t)tid() * 16; i < bytes; i += (uint32_t)nthr() * 16) {
        st_vec16(to + i, ld_vec16(stage + i));
    }
}

/* One warp: two blocks of 128 channels, half a warp each, 8 channels a lane from c on. */
TERN_DEVICE void ll_cast_blocks(const struct ll_sender *s, char *row, uint32_t c, struct vec16 v)
{
    const struct ll_dispatch_args *p = s->p;
    const float amax = bf16_lo(amax_halves(amax_lanes(amax_vec16(v))));
    const struct block_scale scale = block_scale_of(amax, p->cast);
    if (c < p->hidden) {
        cast_store(row, c, v, scale.factor);
    }
    if (c < p->hidden && (lane() & 15) == 0) {
        cast_store_scale(row + p->payload_bytes, c / 128, scale.stored, p->cast);
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
    for (int i = bulk ? s->turn : 0; i < p->f.num_ranks; i += bulk ? nthr() : 1) {
        int d = ll_rank_of_copy(s, i);
        if (ll_is_far(&p->f, d)) {
            continue;
        }
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
    if (s->turn >= p->f.num_ranks) {
        return;
    }
    OP_FENCE(); /* pairs with the acquire in ll_await: the row comes before its word */
    for (int i = s->turn; i < p->f.num_ranks; i += nthr()) {
        int d = ll_rank_of_copy(s, i);
        if (slots[d] >= 0 && !ll_is_far(&p->f, d)) {
            uint64_t place = ll_place_of(&p->lane, (uint32_t)p->f.rank, (uint32_t)slots[d]);
            OP_STORE_DONE(ll_arrival(&p->lane, ll_heap(s, d), s->epoch, place), ll_arrived(s->epoch));
        }
    }
}

/* All threads, first of all. */
TERN_DEVICE void ll_prepare_fences(const struct ll_sender *s, const int bulk)
{
    if (s->announces && s->turn < LL_ANNOUNCERS) {
        /* Makes the stores in ll_announce_counts releases; pairs with the acquires in ll_await. They say that
         * this rank's earlier kernels are over, and hold what else they say; so the fence need not wait for
         * anything of this kernel. */
        OP_FENCE();
    }
    if (bulk && s->begin < s->end && s->turn < s->p->f.num_ranks) {
        LL_DISPATCH_PROXY_FENCE(); /* what others read of the buffers comes before this thread's copies */
    }
}

/* All threads, before ll_enter: all that needs no epoch. A block's first row is in its stage, cast, and what
 * comes before the block's tokens is counted; the loads of both are on their way together. */
TERN_DEVICE void ll_prepare(struct ll_sender *s, const int bulk)
{
    ll_prepare_fences(s, bulk);
    struct ll_tally_ids ids = ll_first_tally_ids(s);
    s->token = ll_load_token(s, s->begin);
    ll_clear_counters(s);
    if (LL_WITH_FAR) {
        ll_clear_begins(s);
    }
    if (s->begin < s->end) {
        ll_write_row(s, s->begin, 0);
        if (warp() == 0) {
            ll_study_token(s, s->begin, 0);
        }
    }
    sync_block();
    ll_tally(s, ids);
}

/* All threads of the block, which has announced: counters have what comes before its tokens. */
TERN_DEVICE void ll_begin_tokens(const struct ll_sender *s)
{
    if (nblk() == 1) { /* who counted all, and sends all */
        sync_block();
        ll_clear_counters(s);
        sync_block();
    }
}

/* All threads of a block that sends no more: its tokens from t on have not left, and the combine is to know
 * of none of their choices; what an earlier dispatch noted is not of this one's rows. */
TERN_DEVICE void ll_forget_tokens(const struct ll_sender *s, uint32_t t)
{
    const struct ll_dispatch_args *p = s->p;
    const uint64_t end = (uint64_t)s->end * p->topk;
    TERN_ROLLED
    for (uint64_t c = (uint64_t)t * p->topk + (uint32_t)tid(); c < end; c += (uint32_t)nthr()) {
        p->lane.ids[c] = -1;
    }
}

/* All threads of a block with tokens. */
TERN_DEVICE void ll_send_tokens(struct ll_sender *s, const int bulk)
{
    uint32_t stage = 0, before = LL_STAGES - 1;
    int started = 0;
    if (LL_WITH_FAR && warp() == nwarps() - 1) { /* a barrier before the first row is put into the out-box */
        ll_scan(ll_far_begins(s), (uint32_t)s->p->f.num_ranks);
    }
    for (uint32_t t = s->begin; t < s->end; t++) {
        int evicted = ll_is_evicted(&s->p->f, &s->p->lane); /* on its way while the row is read */
        if (TERN_RARE(t > s->begin)) {                      /* not with few tokens, when time counts most */
            ll_write_row(s, t, stage);
            if (warp() == 0) {
                ll_study_token(s, t, stage);
            }
        }
        if (warp() == 0) {
            ll_give_slots(s, t, stage);
        }
        s->token = ll_load_token(s, t + 1);
        if (bulk) {
            LL_DISPATCH_STAGE_FENCE(); /* the stage comes before the copies */
        }
        if (TERN_RARE(!ll_sync_sender(&s->p->lane, evicted))) {
            started = 0; /* not even the word of the row before: its place may be another's by now */
            ll_forget_tokens(s, t);
            break;
        }
        if (bulk) {
            ll_start(s, stage, 1);
        }
        if (LL_WITH_RAIL) {
            ll_start_rails(s, stage);
        } else if (LL_WITH_FAR) {
            ll_start_far(s, s->slots + stage * (uint32_t)s->p->f.num_ranks,
                         s->stages + stage * s->p->row_bytes);
        }
        if (bulk) {
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
        bulk_wait(0); /* of the threads that started copies, which are those that tell */
    } else {
        sync_block();
    }
    if (started) {
        ll_tell(s, before);
    }
}

/* All threads, after ll_prepare and ll_enter. The last warp, which waits for copies, comes back some time
 * after the others, which can begin to receive. */
TERN_DEVICE void ll_dispatch_send(struct ll_sender *s, const int bulk)
{
    if (s->announces) {
        ll_announce_counts(s);
    }
    if (LL_WITH_FAR && s->announces) {
        ll_place_homes(s);
        ll_announce_far(s);
    }
    ll_begin_tokens(s);
    if (s->begin < s->end) {
        ll_send_tokens(s, bulk);
    }
}

#endif
