/* SPDX-License-Identifier: Apache-2.0
 *
 * Route: what one table of expert ids means for every rank. One block a rank.
 *
 *   count    every warp owns a run of consecutive tokens and counts its (token, rank) pairs and its choices
 *            an expert
 *   publish  totals over warps go to every peer, then the ready signal; warps keep their exclusive prefix
 *   assign   each (token, rank), or each choice, gets its slot: prefix of its warp plus its place in the
 * warp's run. Meanwhile the peers' counts arrive settle   with every rank's counts: where this rank's slots
 * begin at every destination, and what this rank receives; the host gets its copy last
 *
 * A warp walks its run in groups of 32 tokens. Ids are read and written coalesced, an id a lane, and pass
 * through a small buffer so that lane t then has all ids of token t. Slots follow token order, then choice
 * order, whatever the number of warps.
 *
 * Shared memory: pairs[warps][R], choices[warps][E], buffers[warps]; in settle total[E], before[E] instead.
 */
#include "kernels/kernels.h"
#include "kernels/op.h"

enum {
    IDS_AT_ONCE = 8, /* choices of a token that pass through the buffer together */
    BUFFER_WORDS = ROUTE_BUFFER_BYTES / 4,
    BUFFER_ROW = BUFFER_WORDS / 32 /* odd, so that lanes reading a column meet no bank twice */
};

/* One warp's tokens. */
struct run {
    uint32_t begin, end;
};

TERN_DEVICE struct run run_of(const struct route_args *p)
{
    struct run r;
    uint32_t each = (p->num_tokens + (uint32_t)nwarps() - 1) / (uint32_t)nwarps();
    uint32_t begin = each * (uint32_t)warp();
    r.begin = begin < p->num_tokens ? begin : p->num_tokens;
    r.end = r.begin + each < p->num_tokens ? r.begin + each : p->num_tokens;
    return r;
}

TERN_DEVICE uint32_t *warp_pairs(const struct route_args *p, int w)
{
    return (uint32_t *)shared_memory() + w * p->f.num_ranks;
}

TERN_DEVICE uint32_t *warp_choices(const struct route_args *p, int w)
{
    return (uint32_t *)shared_memory() + nwarps() * p->f.num_ranks + w * (int)p->num_experts;
}

TERN_DEVICE int32_t *warp_buffer(const struct route_args *p)
{
    return (int32_t *)shared_memory() + nwarps() * (p->f.num_ranks + (int)p->num_experts) +
           warp() * BUFFER_WORDS;
}

TERN_DEVICE int64_t raw_id(const struct route_args *p, uint64_t i)
{
    return p->idx_bytes == 8 ? ((const int64_t *)p->topk_idx)[i] : ((const int32_t *)p->topk_idx)[i];
}

/* An id out of range is recorded as this rank's bad argument and counts as -1. Nobody waits for the record,
 * so peers go on undisturbed. */
TERN_DEVICE int32_t checked_id(const struct route_args *p, uint64_t epoch, uint64_t i, int64_t id)
{
    if (id < -1 || id >= (int64_t)p->num_experts) {
        /* Pairs with itself in other threads: the first one writes the record. */
        if (atom_add_acqrel_gpu_u32(&p->f.state->bad_ids, 1) == 0) {
            struct op_note note = {
                OP_STATUS_INVALID, OP_AWAIT_EXPERT_ID, p->f.rank, p->f.rank, epoch, i, (uint64_t)id, 0, 0, 0};
            /* A host that reads an earlier run's record now sees that it is being rewritten. */
            st_relaxed_sys_u64(&p->host.bad_id->written, 0);
            fence_acqrel_sys(); /* pairs with the acquires in read_record (ep_fault.c) */
            op_fill_record(&p->f, p->host.bad_id, &note, epoch);
        }
        return -1;
    }
    return (int32_t)id;
}

TERN_DEVICE void clear_counters(const struct route_args *p)
{
    int words = nwarps() * (p->f.num_ranks + (int)p->num_experts);
    for (int i = tid(); i < words; i += nthr()) {
        ((uint32_t *)shared_memory())[i] = 0;
    }
    if (tid() == 0) {
        p->f.state->bad_ids = 0;
    }
    sync_block();
}

/* Ids k0 .. k0 + width - 1 of `tokens` tokens from t0 on: checked, kept, counted by expert, and left in the
 * warp's buffer. All lanes. */
TERN_DEVICE void take_ids(const struct route_args *p, uint64_t epoch, uint32_t t0, uint32_t tokens,
                          uint32_t k0, uint32_t width)
{
    int64_t raw[IDS_AT_ONCE];
    uint32_t num = tokens * width;
    TERN_UNROLL
    for (uint32_t a = 0; a < IDS_AT_ONCE; a++) {
        uint32_t i = a * 32 + (uint32_t)lane();
        raw[a] = i < num ? raw_id(p, (uint64_t)(t0 + i / width) * p->topk + k0 + i % width) : -1;
    }
    TERN_UNROLL
    for (uint32_t a = 0; a < IDS_AT_ONCE; a++) {
        uint32_t i = a * 32 + (uint32_t)lane();
        if (i < num) {
            uint64_t at = (uint64_t)(t0 + i / width) * p->topk + k0 + i % width;
            int32_t id = checked_id(p, epoch, at, raw[a]);
            p->route.ids[at] = id;
            warp_buffer(p)[i / width * BUFFER_ROW + i % width] = id;
            if (id >= 0) {
                atom_add_cta_u32(warp_choices(p, warp()) + id, 1);
            }
        }
    }
}

/* Adds the ranks that this lane's token names in the buffer. */
TERN_DEVICE struct ep_rank_set add_ranks(const struct route_args *p, struct ep_rank_set set, uint32_t width)
{
    uint32_t experts_a_rank = p->num_experts / (uint32_t)p->f.num_ranks;
    for (uint32_t k = 0; k < width; k++) {
        int32_t id = warp_buffer(p)[lane() * BUFFER_ROW + (int)k];
        if (id >= 0) {
            uint32_t rank = (uint32_t)id / experts_a_rank;
            set.low |= rank < 64 ? 1ull << rank : 0;
            set.high |= rank < 64 ? 0 : 1ull << (rank - 64);
        }
    }
    return set;
}

/* Lanes whose set has `rank`. All lanes. */
TERN_DEVICE uint32_t lanes_with(const struct ep_rank_set *set, int rank)
{
    return warp_ballot((int)((rank < 64 ? set->low >> rank : set->high >> (rank - 64)) & 1));
}

TERN_DEVICE void count(const struct route_args *p, uint64_t epoch)
{
    struct run r = run_of(p);
    clear_counters(p);
    for (uint32_t t0 = r.begin; t0 < r.end; t0 += 32) {
        uint32_t tokens = r.end - t0 < 32 ? r.end - t0 : 32;
        struct ep_rank_set set = {0, 0};
        for (uint32_t k0 = 0; k0 < p->topk; k0 += IDS_AT_ONCE) {
            uint32_t width = p->topk - k0 < IDS_AT_ONCE ? p->topk - k0 : IDS_AT_ONCE;
            take_ids(p, epoch, t0, tokens, k0, width);
            sync_warp();
            if ((uint32_t)lane() < tokens) {
                set = add_ranks(p, set, width);
            }
            sync_warp();
        }
        if ((uint32_t)lane() < tokens) {
            p->route.rank_sets[t0 + (uint32_t)lane()] = set;
        }
        for (int d = 0; d < p->f.num_ranks; d++) {
            uint32_t hits = lanes_with(&set, d);
            if (lane() == (d & 31)) {
                warp_pairs(p, warp())[d] += (uint32_t)TERN_POPC(hits);
            }
        }
    }
    sync_block();
}

/* Column c of pairs (c < R) or choices: exclusive prefix over warps in place; the total goes to every peer.
 */
TERN_DEVICE void publish(const struct route_args *p, uint64_t epoch)
{
    int num_ranks = p->f.num_ranks;
    uint32_t columns = (uint32_t)num_ranks + p->num_experts;
    for (uint32_t c = (uint32_t)tid(); c < columns; c += (uint32_t)nthr()) {
        uint32_t sum = 0;
        for (int w = 0; w < nwarps(); w++) {
            uint32_t *at = c < (uint32_t)num_ranks ? warp_pairs(p, w) + c
                                                   : warp_choices(p, w) + (c - (uint32_t)num_ranks);
            uint32_t n = *at;
            *at = sum;
            sum += n;
        }
        for (int d = 0; d < num_ranks; d++) {
            op_counts(&p->f, d, epoch, p->f.rank, columns)[c] = (int32_t)sum;
        }
    }
    sync_block();
    op_announce(&p->f, epoch, 0);
}

/* Rank layout: token_rows[t][d] = slot of token t at rank d, or -1, for ranks d0 .. d0 + width - 1 and up to
 * 32 tokens from t0 on. Lane l holds what concerns rank d0 + l; rows are written coalesced. All lanes. */
TERN_DEVICE void assign_group(const struct route_args *p, const struct ep_rank_set *set, uint32_t t0,
                              uint32_t tokens, int d0, uint32_t width)
{
    uint32_t *next = warp_pairs(p, warp()) + d0;
    uint32_t mine = 0;
    for (uint32_t d = 0; d < width; d++) {
        uint32_t hits = lanes_with(set, d0 + (int)d);
        mine = d == (uint32_t)lane() ? hits : mine;
    }
    uint32_t first = (uint32_t)lane() < width ? next[lane()] : 0;
    for (uint32_t i0 = 0; i0 < tokens * width; i0 += 32) {
        uint32_t i = i0 + (uint32_t)lane();
        uint32_t token = i / width;
        uint32_t hits = shfl_u32(mine, (int)(i % width));
        uint32_t slot = shfl_u32(first, (int)(i % width)) + (uint32_t)popc_before(hits, (int)(token & 31));
        if (token < tokens) {
            p->route
                .token_rows[(uint64_t)(t0 + token) * (uint32_t)p->f.num_ranks + (uint32_t)d0 + i % width] =
                hits >> token & 1 ? (int32_t)slot : -1;
        }
    }
    if ((uint32_t)lane() < width) {
        next[lane()] = first + (uint32_t)TERN_POPC(mine);
    }
}

TERN_DEVICE void assign_pairs(const struct route_args *p)
{
    struct run r = run_of(p);
    for (uint32_t t0 = r.begin; t0 < r.end; t0 += 32) {
        uint32_t tokens = r.end - t0 < 32 ? r.end - t0 : 32;
        struct ep_rank_set set = {0, 0};
        if ((uint32_t)lane() < tokens) {
            set = p->route.rank_sets[t0 + (uint32_t)lane()];
        }
        for (int d0 = 0; d0 < p->f.num_ranks; d0 += 32) {
            assign_group(p, &set, t0, tokens, d0,
                         (uint32_t)(p->f.num_ranks - d0 < 32 ? p->f.num_ranks - d0 : 32));
        }
    }
}

/* Expert layout: token_rows[t][k] = slot of the choice in its expert, or -1. Lanes that hold the same expert
 * find each other by match and take consecutive slots. */
TERN_DEVICE void assign_choices(const struct route_args *p)
{
    uint32_t *next = warp_choices(p, warp());
    struct run r = run_of(p);
    uint64_t end = (uint64_t)r.end * p->topk;
    for (uint64_t i0 = (uint64_t)r.begin * p->topk; i0 < end; i0 += 32) {
        uint64_t i = i0 + (uint32_t)lane();
        int32_t id = i < end ? p->route.ids[i] : -1;
        uint32_t same = match_any_u32((uint32_t)id);
        uint32_t slot = id >= 0 ? next[id] + (uint32_t)popc_before(same, lane()) : 0;
        if (i < end) {
            p->route.token_rows[i] = id >= 0 ? (int32_t)slot : -1;
        }
        sync_warp();
        if (id >= 0 && popc_before(same, lane()) == 0) {
            next[id] += (uint32_t)TERN_POPC(same);
        }
        sync_warp();
    }
}

/* Sum of v over this lane and the lanes before it. All lanes. */
TERN_DEVICE int32_t scan_warp(int32_t v)
{
    TERN_UNROLL
    for (int step = 1; step < 32; step *= 2) {
        int32_t other = (int32_t)shfl_u32((uint32_t)v, (lane() - step) & 31);
        v += lane() >= step ? other : 0;
    }
    return v;
}

/* First row of every source at this rank. One warp. */
TERN_DEVICE void settle_sources(const struct route_args *p, uint64_t epoch)
{
    int num_ranks = p->f.num_ranks;
    uint32_t columns = (uint32_t)num_ranks + p->num_experts;
    int32_t carry = 0;
    for (int s0 = 0; s0 < num_ranks; s0 += 32) {
        int s = s0 + lane();
        int32_t n = s < num_ranks ? op_counts(&p->f, p->f.rank, epoch, s, columns)[p->f.rank] : 0;
        int32_t end = carry + scan_warp(n);
        if (s < num_ranks) {
            p->host.rank_counts[s] = n;
            p->route.rank_offsets[s] = end - n;
        }
        carry = (int32_t)shfl_u32((uint32_t)end, 31);
    }
    if (lane() == 0) {
        p->route.rank_offsets[num_ranks] = carry;
        p->host.num_rows[1] = carry;
        if (p->layout == 0) {
            p->route.num_rows[0] = carry;
            p->host.num_rows[0] = carry;
        }
    }
}

/* Rank layout: first row of this rank's slots at every destination. */
TERN_DEVICE void settle_bases(const struct route_args *p, uint64_t epoch)
{
    uint32_t columns = (uint32_t)p->f.num_ranks + p->num_experts;
    for (int d = tid(); p->layout == 0 && d < p->f.num_ranks; d += nthr()) {
        int32_t base = 0;
        for (int s = 0; s < p->f.rank; s++) {
            base += op_counts(&p->f, p->f.rank, epoch, s, columns)[d];
        }
        p->route.bases[d] = base;
    }
}

/* Offsets of the experts of rank d, and in expert layout this rank's bases there. One warp. */
TERN_DEVICE void settle_rank(const struct route_args *p, int d, const int32_t *total, const int32_t *before)
{
    uint32_t local = p->num_experts / (uint32_t)p->f.num_ranks;
    int32_t align = (int32_t)p->alignment;
    int32_t carry = 0;
    for (uint32_t i0 = 0; i0 < local; i0 += 32) {
        uint32_t i = i0 + (uint32_t)lane();
        uint32_t e = (uint32_t)d * local + i;
        int32_t n = i < local ? total[e] : 0;
        int32_t padded = (n + align - 1) / align * align;
        int32_t end = carry + scan_warp(padded);
        if (i < local && p->layout == 1) {
            p->route.bases[e] = end - padded + before[e];
        }
        if (i < local && d == p->f.rank) {
            p->route.expert_counts[i] = n;
            p->host.expert_counts[i] = n;
            p->route.expert_offsets[i] = end - padded;
            p->host.expert_offsets[i] = end - padded;
        }
        carry = (int32_t)shfl_u32((uint32_t)end, 31);
    }
    if (lane() == 0 && d == p->f.rank) {
        p->route.expert_offsets[local] = carry;
        p->host.expert_offsets[local] = carry;
        if (p->layout == 1) {
            p->route.num_rows[0] = carry;
            p->host.num_rows[0] = carry;
        }
    }
}

TERN_DEVICE void settle_experts(const struct route_args *p, uint64_t epoch)
{
    uint32_t columns = (uint32_t)p->f.num_ranks + p->num_experts;
    int32_t *total = (int32_t *)shared_memory();
    int32_t *before = total + p->num_experts;
    for (uint32_t e = (uint32_t)tid(); e < p->num_experts; e += (uint32_t)nthr()) {
        int32_t sum = 0, mine = 0;
        for (int s = 0; s < p->f.num_ranks; s++) {
            mine = s == p->f.rank ? sum : mine;
            sum += op_counts(&p->f, p->f.rank, epoch, s, columns)[(uint32_t)p->f.num_ranks + e];
        }
        total[e] = sum;
        before[e] = mine;
    }
    sync_block();
    for (int d = warp(); d < p->f.num_ranks; d += nwarps()) {
        if (p->layout == 1 || d == p->f.rank) {
            settle_rank(p, d, total, before);
        }
    }
}

TERN_KERNEL(route, struct route_args, p)
{
    uint64_t epoch = op_epoch(&p->f);
    count(p, epoch);
    publish(p, epoch);
    if (p->layout == 0) {
        assign_pairs(p);
    } else {
        assign_choices(p);
    }
    if (op_await(&p->f, epoch)) { /* also: the counters of assign are no longer in use */
        if (warp() == 0) {
            settle_sources(p, epoch);
        }
        settle_bases(p, epoch);
        settle_experts(p, epoch);
    }
    sync_block();
    if (tid() == 0) {
        p->route.overflow[0] = 0;
        p->f.state->epoch = epoch;
        p->host.epoch[0] = epoch;
        if (p->ticket) {
            /* Pairs with wait_word in terni_route_wait, also after a fault: the host looks at the record
             * then. */
            st_release_sys_u64(p->host.ticket, p->ticket);
        }
    }
}
