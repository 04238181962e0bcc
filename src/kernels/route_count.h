/* SPDX-License-Identifier: Apache-2.0
 *
 * The first half of a route worker: it reads its tokens' ids, checks them, keeps them, and counts what its
 * warps have of every column.
 *
 * A warp walks its run in groups of 32 tokens. Ids are read and written coalesced, an id a lane, and pass
 * through a small buffer so that lane t then has all ids of token t.
 *
 * Shared memory: counters[warps][R + E], pairs before choices, across domains + D of messages; then
 * buffers[warps]. */
#ifndef TERN_ROUTE_COUNT_H
#define TERN_ROUTE_COUNT_H

#include "kernels/ids.h"
#include "kernels/route_words.h"

enum {
    IDS_AT_ONCE = 8, /* choices of a token that pass through the buffer together */
    BUFFER_WORDS = ROUTE_BUFFER_BYTES / 4,
    BUFFER_ROW = BUFFER_WORDS / 32, /* odd, so that lanes reading a column meet no bank twice */
    BAD_ID = -2
};

/* Quotients by a number that stays the same. Exact while dividend times divisor is at most 2^31. */
TERN_DEVICE uint32_t reciprocal(uint32_t divisor) { return (0x80000000u + divisor - 1) / divisor; }

TERN_DEVICE uint32_t quotient(uint32_t n, uint32_t reciprocal_of_divisor)
{
    return (uint32_t)((uint64_t)n * reciprocal_of_divisor >> 31);
}

/* Consecutive tokens. */
struct route_run {
    uint32_t begin, end;
};

/* Part i of n of a run. */
TERN_DEVICE struct route_run part_of(struct route_run whole, uint32_t i, uint32_t n)
{
    uint32_t num = whole.end - whole.begin;
    uint32_t each = (num + n - 1) / n;
    struct route_run r;
    r.begin = each * i < num ? whole.begin + each * i : whole.end;
    r.end = r.begin + each < whole.end ? r.begin + each : whole.end;
    return r;
}

/* This warp's tokens. */
TERN_DEVICE struct route_run warp_run(const struct route_args *p)
{
    struct route_run all = {0, p->num_tokens};
    struct route_run block = part_of(all, (uint32_t)bid(), (uint32_t)nblk() - 1);
    return part_of(block, (uint32_t)warp(), (uint32_t)nwarps());
}

/* Warp w's counters. */
TERN_DEVICE uint32_t *counters(const struct route_args *p, int w)
{
    return (uint32_t *)shared_memory() + (uint32_t)w * num_columns(p);
}

TERN_DEVICE int32_t *id_buffer(const struct route_args *p)
{
    return (int32_t *)counters(p, nwarps()) + warp() * BUFFER_WORDS;
}

TERN_DEVICE int is_id(const struct route_args *p, int64_t id)
{
    return id >= -1 && id < (int64_t)p->num_experts;
}

/* An id out of range is recorded as this rank's bad argument. Nobody waits for the record, so peers go on
 * undisturbed. */
TERN_DEVICE void record_bad_id(const struct route_args *p, uint64_t epoch, uint64_t at, int64_t id)
{
    /* Pairs with itself in other threads: the first one writes the record. */
    if (atom_add_acqrel_gpu_u32(&p->f.state->bad_ids, 1) == 0) {
        /* Nobody is late: topk goes there. */
        struct op_note note = {OP_STATUS_INVALID,
                               OP_AWAIT_EXPERT_ID,
                               p->f.rank,
                               p->f.rank,
                               epoch,
                               at,
                               (uint64_t)id,
                               0,
                               p->topk,
                               0};
        /* A host that reads an earlier run's record now sees that it is being rewritten. */
        st_relaxed_sys_u64(&p->host.bad_id->written, 0);
        fence_acqrel_sys(); /* pairs with the acquires in read_record (ep_fault.c) */
        op_fill_record(&p->f, p->host.bad_id, &note, epoch);
    }
}

/* Choices k0 .. k0 + width - 1 of some consecutive tokens: at most IDS_AT_ONCE ids a lane. */
struct id_piece {
    uint64_t at; /* of the first id in the table */
    uint32_t num, width;
    uint32_t by_width; /* its reciprocal */
    uint32_t skip;     /* ids of a token that are not in the piece */
};

/* Where id i of the piece is, from its first. */
TERN_DEVICE uint32_t id_offset(const struct id_piece *piece, uint32_t i)
{
    return i + quotient(i, piece->by_width) * piece->skip;
}

TERN_DEVICE void report_bad_ids(const struct route_args *p, uint64_t epoch, const struct id_piece *piece)
{
    for (uint32_t i = (uint32_t)lane(); i < piece->num; i += 32) {
        uint64_t at = piece->at + id_offset(piece, i);
        int64_t id = id_at(p->topk_idx, p->idx_bytes, at);
        if (!is_id(p, id)) {
            record_bad_id(p, epoch, at, id);
        }
    }
}

/* Id a * 32 + lane of the piece, for every a; BAD_ID for one out of range, -1 past the end. */
TERN_DEVICE void load_ids(const struct route_args *p, const struct id_piece *piece, int32_t ids[IDS_AT_ONCE])
{
    if (p->idx_bytes == 8) {
        const int64_t *table = (const int64_t *)p->topk_idx + piece->at;
        TERN_UNROLL
        for (uint32_t a = 0; a < IDS_AT_ONCE; a++) {
            uint32_t i = a * 32 + (uint32_t)lane();
            int64_t id = i < piece->num ? table[id_offset(piece, i)] : -1;
            ids[a] = is_id(p, id) ? (int32_t)id : BAD_ID;
        }
    } else {
        const int32_t *table = (const int32_t *)p->topk_idx + piece->at;
        TERN_UNROLL
        for (uint32_t a = 0; a < IDS_AT_ONCE; a++) {
            uint32_t i = a * 32 + (uint32_t)lane();
            int32_t id = i < piece->num ? table[id_offset(piece, i)] : -1;
            ids[a] = is_id(p, id) ? id : BAD_ID;
        }
    }
}

/* The ids of a piece: checked, kept, counted by expert, and left in the warp's buffer. All lanes. */
TERN_DEVICE void take_ids(const struct route_args *p, uint64_t epoch, const struct id_piece *piece)
{
    int32_t *keep = p->route.ids + piece->at;
    int32_t *buffer = id_buffer(p);
    uint32_t *choices = counters(p, warp()) + ROUTE_RANKS(p);
    int32_t ids[IDS_AT_ONCE];
    int bad = 0;
    load_ids(p, piece, ids);
    TERN_UNROLL
    for (uint32_t a = 0; a < IDS_AT_ONCE; a++) {
        uint32_t i = a * 32 + (uint32_t)lane();
        int32_t id = ids[a] == BAD_ID ? -1 : ids[a];
        bad |= ids[a] == BAD_ID;
        if (i < piece->num) {
            keep[id_offset(piece, i)] = id;
            buffer[i + quotient(i, piece->by_width) * (BUFFER_ROW - piece->width)] = id;
        }
        if (id >= 0) {
            atom_add_cta_u32(choices + id, 1);
        }
    }
    if (bad) {
        report_bad_ids(p, epoch, piece);
    }
}

/* Adds the ranks that this lane's token names in the buffer. */
TERN_DEVICE struct ep_rank_set add_ranks(const struct route_args *p, struct ep_rank_set set, uint32_t width,
                                         uint32_t by_experts)
{
    for (uint32_t k = 0; k < width; k++) {
        int32_t id = id_buffer(p)[lane() * BUFFER_ROW + (int)k];
        if (id >= 0) {
            uint32_t rank = quotient((uint32_t)id, by_experts);
            set.low |= rank < 64 ? 1ull << rank : 0;
            set.high |= rank < 64 ? 0 : 1ull << (rank & 63);
        }
    }
    return set;
}

/* For lane l < width: the lanes whose set has rank d0 + l. All lanes. */
TERN_DEVICE uint32_t lanes_by_rank(const struct ep_rank_set *set, int d0, uint32_t width)
{
    uint32_t mine = 0;
    for (uint32_t i = 0; i < width; i++) {
        uint32_t d = (uint32_t)d0 + i;
        uint32_t hits = warp_ballot((int)((d < 64 ? set->low >> d : set->high >> (d & 63)) & 1));
        mine = i == (uint32_t)lane() ? hits : mine;
    }
    return mine;
}

/* The ranks from d0 on that a warp handles at once. */
TERN_DEVICE uint32_t ranks_at_once(const struct route_args *p, int d0)
{
    return (uint32_t)(ROUTE_RANKS(p) - d0 < 32 ? ROUTE_RANKS(p) - d0 : 32);
}

#ifdef ROUTE_ACROSS
/* Other domains that have ranks of the set. */
TERN_DEVICE struct ep_rank_set domains_of(const struct route_args *p, const struct ep_rank_set *set)
{
    uint32_t size = (uint32_t)p->f.num_ranks;
    uint64_t ones = ~0ull >> (64 - size); /* two domains or more: at most 64 ranks each */
    struct ep_rank_set domains = {0, 0};
    for (uint32_t e = 0; e < p->num_domains; e++) {
        uint32_t first = e * size;
        uint64_t low = first < 64 ? ones << first : 0;
        uint64_t high = first >= 64 ? ones << (first - 64) : first ? ones >> (64 - first) : 0;
        if ((int)first != p->f.first_rank && ((set->low & low) | (set->high & high))) {
            domains.low |= e < 64 ? 1ull << e : 0;
            domains.high |= e < 64 ? 0 : 1ull << (e & 63);
        }
    }
    return domains;
}

TERN_DEVICE uint32_t domains_at_once(const struct route_args *p, uint32_t e0)
{
    return p->num_domains - e0 < 32 ? p->num_domains - e0 : 32;
}

/* Messages of up to 32 tokens, whose ranks the lanes have. All lanes. */
TERN_DEVICE void count_messages(const struct route_args *p, const struct ep_rank_set *set)
{
    struct ep_rank_set domains = domains_of(p, set);
    for (uint32_t e0 = 0; e0 < p->num_domains; e0 += 32) {
        uint32_t width = domains_at_once(p, e0);
        uint32_t mine = lanes_by_rank(&domains, (int)e0, width);
        if ((uint32_t)lane() < width) {
            counters(p, warp())[(uint32_t)ROUTE_RANKS(p) + p->num_experts + e0 + (uint32_t)lane()] +=
                (uint32_t)TERN_POPC(mine);
        }
    }
}
#endif

/* One group of up to 32 tokens. All lanes. */
TERN_DEVICE void count_group(const struct route_args *p, uint64_t epoch, uint32_t t0, uint32_t tokens,
                             uint32_t by_experts)
{
    struct ep_rank_set set = {0, 0};
    for (uint32_t k0 = 0; k0 < p->topk; k0 += IDS_AT_ONCE) {
        uint32_t width = p->topk - k0 < IDS_AT_ONCE ? p->topk - k0 : IDS_AT_ONCE;
        struct id_piece piece = {(uint64_t)t0 * p->topk + k0, tokens * width, width, reciprocal(width),
                                 p->topk - width};
        take_ids(p, epoch, &piece);
        sync_warp();
        if ((uint32_t)lane() < tokens) {
            set = add_ranks(p, set, width, by_experts);
        }
        sync_warp();
    }
    if ((uint32_t)lane() < tokens) {
        p->route.rank_sets[t0 + (uint32_t)lane()] = set;
    }
    for (int d0 = 0; d0 < ROUTE_RANKS(p); d0 += 32) {
        uint32_t width = ranks_at_once(p, d0);
        uint32_t mine = lanes_by_rank(&set, d0, width);
        if ((uint32_t)lane() < width) {
            counters(p, warp())[d0 + lane()] += (uint32_t)TERN_POPC(mine);
        }
    }
#ifdef ROUTE_ACROSS
    count_messages(p, &set);
#endif
}

/* All threads of a worker. Afterwards each warp's counters are there for all. */
TERN_DEVICE void count(const struct route_args *p, uint64_t epoch)
{
    struct route_run r = warp_run(p);
    uint32_t by_experts = reciprocal(p->num_experts / (uint32_t)ROUTE_RANKS(p));
    uint32_t words = (uint32_t)nwarps() * num_columns(p);
    for (uint32_t i = (uint32_t)tid(); i < words; i += (uint32_t)nthr()) {
        ((uint32_t *)shared_memory())[i] = 0;
    }
    sync_block();
    for (uint32_t t0 = r.begin; t0 < r.end; t0 += 32) {
        count_group(p, epoch, t0, r.end - t0 < 32 ? r.end - t0 : 32, by_experts);
    }
    sync_block();
}

#endif
