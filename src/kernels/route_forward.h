/* SPDX-License-Identifier: Apache-2.0
 *
 * What a route worker does for other domains once slots are known: numbers the messages to each, in token
 * order, and writes their entries into the forward blocks that the settler sends. A warp numbers 32 tokens at
 * a time and then writes an entry with all its lanes, so that reads of a token's ids and slots, and the
 * entry, are coalesced. */
#ifndef TERN_ROUTE_FORWARD_H
#define TERN_ROUTE_FORWARD_H

#include "kernels/inter_args.h"
#include "kernels/route_assign.h"

/* Where the entries for domain e are made in this run. */
TERN_DEVICE char *block_out(const struct route_inter_args *p, uint64_t run, uint32_t e)
{
    return p->blocks_out + ((run & 1) * p->r.num_domains + e) * p->block_bytes;
}

/* This lane's choice k as an expert of domain e; -1: it is none. */
TERN_DEVICE int32_t expert_in(const struct route_inter_args *p, uint32_t e, uint32_t t, uint32_t k)
{
    uint32_t experts = p->r.num_experts / p->r.num_domains;
    int32_t id = k < p->r.topk ? p->r.route.ids[(uint64_t)t * p->r.topk + k] : -1;
    uint32_t expert = (uint32_t)id - e * experts;
    return id >= 0 && expert < experts ? (int32_t)expert : -1;
}

/* Choices of token t, and in expert layout their rows; how many of these are in domain e. All lanes. */
TERN_DEVICE uint32_t write_choices(const struct route_inter_args *p, int32_t *entry, uint32_t e, uint32_t t)
{
    uint32_t topk = p->r.topk, num = 0;
    for (uint32_t k0 = 0; k0 < topk; k0 += 32) {
        uint32_t k = k0 + (uint32_t)lane();
        int32_t expert = expert_in(p, e, t, k);
        int32_t *target = entry + 2 + topk + 2 * k;
        if (k < topk) {
            entry[2 + k] = expert;
        }
        if (k < topk && p->r.layout != 0) {
            target[0] = expert < 0 ? 0 : expert;
            target[1] = expert < 0 ? -1 : p->r.route.token_rows[(uint64_t)t * topk + k];
        }
        num += (uint32_t)TERN_POPC(warp_ballot(expert >= 0));
    }
    return num;
}

/* Rank layout: the ranks of domain e that token t goes to; how many. All lanes. */
TERN_DEVICE uint32_t write_ranks(const struct route_inter_args *p, int32_t *entry, uint32_t e, uint32_t t)
{
    uint32_t size = (uint32_t)p->r.f.num_ranks, num = 0;
    const int32_t *rows = p->r.route.token_rows + (uint64_t)t * (uint32_t)p->r.num_all + e * size;
    for (uint32_t j0 = 0; j0 < size; j0 += 32) {
        uint32_t j = j0 + (uint32_t)lane();
        int32_t slot = j < size ? rows[j] : -1;
        uint32_t hits = warp_ballot(slot >= 0);
        int32_t *target = entry + 2 + p->r.topk + 2 * (num + (uint32_t)popc_before(hits, lane()));
        if (slot >= 0) {
            target[0] = (int32_t)j;
            target[1] = slot;
        }
        num += (uint32_t)TERN_POPC(hits);
    }
    return num;
}

/* The entry of message `number` to domain e, which is token t. All lanes. */
TERN_DEVICE void write_entry(const struct route_inter_args *p, uint64_t run, uint32_t e, uint32_t t,
                             uint32_t number)
{
    int32_t *entry = (int32_t *)block_out(p, run, e) + (uint64_t)number * p->far.entry_ints;
    uint32_t num = write_choices(p, entry, e, t);
    if (p->r.layout == 0) {
        num = write_ranks(p, entry, e, t);
    }
    if (lane() < 2) {
        entry[lane()] = (int32_t)(lane() == 0 ? t : num);
    }
}

/* Messages of up to 32 tokens from t0 on to domains e0 .. e0 + width - 1; `mine`: of this lane's domain. All
 * lanes. */
TERN_DEVICE void number_group(const struct route_inter_args *p, uint32_t t0, uint32_t tokens, uint32_t e0,
                              uint32_t width, uint32_t mine, uint32_t first)
{
    uint32_t by_width = reciprocal(width);
    for (uint32_t i0 = 0; i0 < tokens * width; i0 += 32) {
        uint32_t token = quotient(i0 + (uint32_t)lane(), by_width);
        uint32_t e = i0 + (uint32_t)lane() - token * width;
        uint32_t hits = shfl_u32(mine, (int)(e & 31));
        uint32_t number = shfl_u32(first, (int)(e & 31)) + (uint32_t)popc_before(hits, (int)(token & 31));
        int is_sent = (int)(hits >> (token & 31) & 1);
        if (token < tokens) {
            p->far.message_of[(uint64_t)(t0 + token) * p->r.num_domains + e0 + e] =
                is_sent ? (int32_t)number : -1;
            if (is_sent) {
                p->far.token_of[(uint64_t)(e0 + e) * p->far.max_tokens + number] = (int32_t)(t0 + token);
            }
        }
    }
}

/* All messages of this warp's tokens, after their slots. */
TERN_DEVICE void assign_messages(const struct route_inter_args *p, uint64_t run)
{
    const struct route_args *r = &p->r;
    uint32_t *next = counters(r, warp()) + (uint32_t)r->num_all + r->num_experts;
    struct route_run tokens = warp_run(r);
    sync_warp(); /* the slots that lanes wrote are there for all */
    for (uint32_t t0 = tokens.begin; t0 < tokens.end; t0 += 32) {
        uint32_t num = tokens.end - t0 < 32 ? tokens.end - t0 : 32;
        struct ep_rank_set set = {0, 0};
        if ((uint32_t)lane() < num) {
            set = r->route.rank_sets[t0 + (uint32_t)lane()];
        }
        struct ep_rank_set domains = domains_of(r, &set);
        for (uint32_t e0 = 0; e0 < r->num_domains; e0 += 32) {
            uint32_t width = domains_at_once(r, e0);
            uint32_t mine = lanes_by_rank(&domains, (int)e0, width);
            uint32_t first = (uint32_t)lane() < width ? next[e0 + (uint32_t)lane()] : 0;
            number_group(p, t0, num, e0, width, mine, first);
            for (uint32_t e = 0; e < width; e++) {
                uint32_t number = shfl_u32(first, (int)e);
                for (uint32_t left = shfl_u32(mine, (int)e); left; left &= left - 1) {
                    write_entry(p, run, e0 + e, t0 + (uint32_t)TERN_FFS(left) - 1, number++);
                }
            }
            if ((uint32_t)lane() < width) {
                next[e0 + (uint32_t)lane()] = first + (uint32_t)TERN_POPC(mine);
            }
        }
    }
}

#endif
