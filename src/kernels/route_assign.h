/* SPDX-License-Identifier: Apache-2.0
 *
 * The second half of a route worker: with the sums of the workers before it each (token, rank), or each
 * choice, gets its slot. Slots follow token order, then choice order, whatever the number of blocks and
 * warps. */
#ifndef TERN_ROUTE_ASSIGN_H
#define TERN_ROUTE_ASSIGN_H

#include "kernels/route_count.h"

/* The block's sums, for the settler and for the workers after this one. A column is one thread's here and in
 * look_back. */
TERN_DEVICE void tell_sums(const struct route_args *p, uint64_t epoch)
{
    for (uint32_t c = (uint32_t)tid(); c < num_columns(p); c += (uint32_t)nthr()) {
        uint32_t sum = 0;
        for (int w = 0; w < nwarps(); w++) {
            sum += counters(p, w)[c];
        }
        st_relaxed_sys_u64(route_cell(p, bid(), c), op_tagged(epoch, sum));
    }
}

TERN_DEVICE int is_message_column(const struct route_args *p, uint32_t c)
{
    return ROUTE_DOMAINS(p) && c >= (uint32_t)ROUTE_RANKS(p) + p->num_experts;
}

/* The counters of the columns that slots are counted in become each warp's first slot. 0: abandon. */
TERN_DEVICE int look_back(const struct route_args *p, uint64_t epoch)
{
    int ok = 1;
    for (uint32_t c = (uint32_t)tid(); ok && c < num_columns(p); c += (uint32_t)nthr()) {
        if (p->layout == (c < (uint32_t)ROUTE_RANKS(p)) && !is_message_column(p, c)) {
            continue; /* pairs in expert layout, choices in rank layout */
        }
        struct route_column column = worker_column(p, c, bid());
        struct route_sum sum;
        ok = sum_column(&p->f, epoch, &column, 0, &sum);
        for (int w = 0; w < nwarps(); w++) {
            uint32_t n = counters(p, w)[c];
            counters(p, w)[c] = sum.all;
            sum.all += n;
        }
    }
    return !sync_block_or(!ok);
}

/* Rank layout: token_rows[t][d] = slot of token t at rank d, or -1, for ranks d0 .. d0 + width - 1 and up to
 * 32 tokens from t0 on. Lane l holds what concerns rank d0 + l; rows are written coalesced. All lanes. */
TERN_DEVICE void assign_group(const struct route_args *p, const struct ep_rank_set *set, uint32_t t0,
                              uint32_t tokens, int d0, uint32_t width)
{
    uint32_t *next = counters(p, warp()) + d0;
    uint32_t mine = lanes_by_rank(set, d0, width);
    uint32_t first = (uint32_t)lane() < width ? next[lane()] : 0;
    uint32_t by_width = reciprocal(width);
    for (uint32_t i0 = 0; i0 < tokens * width; i0 += 32) {
        uint32_t token = quotient(i0 + (uint32_t)lane(), by_width);
        uint32_t d = i0 + (uint32_t)lane() - token * width;
        uint32_t hits = shfl_u32(mine, (int)d);
        uint32_t slot = shfl_u32(first, (int)d) + (uint32_t)popc_before(hits, (int)(token & 31));
        if (token < tokens) {
            uint64_t row = (uint64_t)(t0 + token) * (uint32_t)ROUTE_RANKS(p) + (uint32_t)d0;
            p->route.token_rows[row + d] = hits >> token & 1 ? (int32_t)slot : -1;
        }
    }
    if ((uint32_t)lane() < width) {
        next[lane()] = first + (uint32_t)TERN_POPC(mine);
    }
}

TERN_DEVICE void assign_pairs(const struct route_args *p)
{
    struct route_run r = warp_run(p);
    for (uint32_t t0 = r.begin; t0 < r.end; t0 += 32) {
        uint32_t tokens = r.end - t0 < 32 ? r.end - t0 : 32;
        struct ep_rank_set set = {0, 0};
        if ((uint32_t)lane() < tokens) {
            set = p->route.rank_sets[t0 + (uint32_t)lane()];
        }
        for (int d0 = 0; d0 < ROUTE_RANKS(p); d0 += 32) {
            assign_group(p, &set, t0, tokens, d0, ranks_at_once(p, d0));
        }
    }
}

/* Lanes whose id, of so many bits, is this lane's; nothing of use to lanes without one. A vote a bit: a match
 * costs a warp less, but the warps of a processor take turns at it. All lanes. */
TERN_DEVICE uint32_t lanes_with_id(int32_t id, int bits)
{
    uint32_t same = warp_ballot(id >= 0);
    for (int b = 0; b < bits; b++) {
        uint32_t ones = warp_ballot(id >> b & 1);
        same &= id >> b & 1 ? ones : ~ones;
    }
    return same;
}

/* Slot of this lane's choice of expert `id` (-1: none), in lane order. All lanes. */
TERN_DEVICE int32_t take_slot(uint32_t *next, int32_t id, int bits)
{
    uint32_t same = lanes_with_id(id, bits);
    uint32_t slot = id >= 0 ? next[id] + (uint32_t)popc_before(same, lane()) : 0;
    sync_warp();
    if (id >= 0 && popc_before(same, lane()) == 0) {
        next[id] += (uint32_t)TERN_POPC(same);
    }
    sync_warp();
    return id >= 0 ? (int32_t)slot : -1;
}

/* Expert layout: token_rows[t][k] = slot of the choice in its expert, or -1. */
TERN_DEVICE void assign_choices(const struct route_args *p)
{
    uint32_t *next = counters(p, warp()) + ROUTE_RANKS(p);
    struct route_run r = warp_run(p);
    uint64_t end = (uint64_t)r.end * p->topk;
    int bits = 0;
    while (p->num_experts > 1u << bits) {
        bits++;
    }
    for (uint64_t i0 = (uint64_t)r.begin * p->topk; i0 < end; i0 += 32 * IDS_AT_ONCE) {
        uint64_t mine = i0 + (uint32_t)lane();
        int32_t *kept = id_buffer(p) + lane(); /* each lane has its own words */
        TERN_UNROLL
        for (uint32_t a = 0; a < IDS_AT_ONCE; a++) {
            kept[a * 32] = mine + a * 32 < end ? p->route.ids[mine + a * 32] : -1;
        }
        for (uint32_t a = 0; a < IDS_AT_ONCE && i0 + a * 32 < end; a++) {
            int32_t slot = take_slot(next, kept[a * 32], bits);
            if (mine + a * 32 < end) {
                p->route.token_rows[mine + a * 32] = slot;
            }
        }
    }
}

#endif
