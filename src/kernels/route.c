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
 * Slots follow token order (then choice order), whatever the number of warps: the output is deterministic.
 *
 * Shared memory: pairs[warps][R], choices[warps][E], both uint32; then in settle totals[E], before[E]. */
#include "kernels/kernels.h"
#include "kernels/op.h"

/* Ranks that a token's ids name, up to 128. */
struct rank_set {
    uint64_t low, high;
};

TERN_DEVICE int rank_set_has(const struct rank_set *s, int rank)
{
    return (int)((rank < 64 ? s->low >> rank : s->high >> (rank - 64)) & 1);
}

struct run {
    uint32_t begin, end; /* tokens of one warp */
};

TERN_DEVICE struct run warp_run(const struct route_args *p)
{
    uint32_t each = (p->num_tokens + (uint32_t)nwarps() - 1) / (uint32_t)nwarps();
    struct run r;
    r.begin = each * (uint32_t)warp() < p->num_tokens ? each * (uint32_t)warp() : p->num_tokens;
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

/* An id as given; out of range it is recorded as this rank's bad argument and counts as -1. Nobody waits for
 * the record, so peers go on undisturbed. */
TERN_DEVICE int32_t read_id(const struct route_args *p, uint64_t epoch, uint64_t i)
{
    int64_t id = p->idx_bytes == 8 ? ((const int64_t *)p->topk_idx)[i] : ((const int32_t *)p->topk_idx)[i];
    if (id < -1 || id >= (int64_t)p->num_experts) {
        /* Pairs with itself in other threads: the first one writes the record. */
        if (atom_add_acqrel_gpu_u32(&p->f.state->bad_ids, 1) == 0) {
            struct op_note note = {
                OP_STATUS_INVALID, OP_AWAIT_EXPERT_ID, p->f.rank, p->f.rank, epoch, i, (uint64_t)id, 0, 0, 0};
            op_fill_record(&p->f, p->bad_id, &note, p->ticket);
        }
        return -1;
    }
    return (int32_t)id;
}

/* Writes the sanitised ids of token t and counts them. */
TERN_DEVICE void count_token(const struct route_args *p, uint64_t epoch, uint32_t t)
{
    uint32_t experts_a_rank = p->num_experts / (uint32_t)p->f.num_ranks;
    struct rank_set seen = {0, 0};
    for (uint32_t k = 0; k < p->topk; k++) {
        uint64_t i = (uint64_t)t * p->topk + k;
        int32_t id = read_id(p, epoch, i);
        p->route.ids[i] = id;
        if (id >= 0) {
            uint32_t rank = (uint32_t)id / experts_a_rank;
            atom_add_cta_u32(warp_choices(p, warp()) + id, 1);
            if (!rank_set_has(&seen, (int)rank)) {
                atom_add_cta_u32(warp_pairs(p, warp()) + rank, 1);
            }
            seen.low |= rank < 64 ? 1ull << rank : 0;
            seen.high |= rank < 64 ? 0 : 1ull << (rank - 64);
        }
    }
}

TERN_DEVICE void count(const struct route_args *p, uint64_t epoch)
{
    int words = nwarps() * (p->f.num_ranks + (int)p->num_experts);
    for (int i = tid(); i < words; i += nthr()) {
        ((uint32_t *)shared_memory())[i] = 0;
    }
    if (tid() == 0) {
        p->f.state->bad_ids = 0;
    }
    sync_block();
    struct run r = warp_run(p);
    for (uint32_t t = r.begin + (uint32_t)lane(); t < r.end; t += 32) {
        count_token(p, epoch, t);
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
    op_announce(&p->f, epoch);
}

/* Rank layout: token_rows[t][d] = slot of token t at rank d, or -1. */
TERN_DEVICE void assign_pairs(const struct route_args *p)
{
    int num_ranks = p->f.num_ranks;
    uint32_t experts_a_rank = p->num_experts / (uint32_t)num_ranks;
    uint32_t *next = warp_pairs(p, warp());
    struct run r = warp_run(p);
    for (uint32_t t0 = r.begin; t0 < r.end; t0 += 32) {
        uint32_t t = t0 + (uint32_t)lane();
        struct rank_set set = {0, 0};
        for (uint32_t k = 0; t < r.end && k < p->topk; k++) {
            int32_t id = p->route.ids[(uint64_t)t * p->topk + k];
            if (id >= 0) {
                uint32_t rank = (uint32_t)id / experts_a_rank;
                set.low |= rank < 64 ? 1ull << rank : 0;
                set.high |= rank < 64 ? 0 : 1ull << (rank - 64);
            }
        }
        for (int g = 0; g < num_ranks; g += 32) {
            uint32_t mine = 0;
            for (int d = g; d < g + 32 && d < num_ranks; d++) {
                int hit = rank_set_has(&set, d);
                uint32_t hits = warp_ballot(hit);
                if (t < r.end) {
                    p->route.token_rows[(uint64_t)t * (uint32_t)num_ranks + (uint32_t)d] =
                        hit ? (int32_t)next[d] + popc_before(hits, lane()) : -1;
                }
                mine = d - g == lane() ? hits : mine;
            }
            sync_warp();
            if (g + lane() < num_ranks) {
                next[g + lane()] += (uint32_t)TERN_POPC(mine);
            }
            sync_warp();
        }
    }
}

/* Expert layout: token_rows[t][k] = slot of the choice in its expert, or -1. */
TERN_DEVICE void assign_choices(const struct route_args *p)
{
    uint32_t *next = warp_choices(p, warp());
    struct run r = warp_run(p);
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

/* Where rows begin, from everybody's counts. */
TERN_DEVICE void settle_pairs(const struct route_args *p, uint64_t epoch)
{
    int num_ranks = p->f.num_ranks;
    uint32_t columns = (uint32_t)num_ranks + p->num_experts;
    for (int d = tid(); d < num_ranks; d += nthr()) {
        int32_t base = 0;
        for (int s = 0; s < p->f.rank; s++) {
            base += op_counts(&p->f, p->f.rank, epoch, s, columns)[d];
        }
        if (p->layout == 0) {
            p->route.bases[d] = base;
        }
    }
    if (tid() == 0) {
        int32_t sum = 0;
        for (int s = 0; s < num_ranks; s++) {
            int32_t n = op_counts(&p->f, p->f.rank, epoch, s, columns)[p->f.rank];
            p->route.rank_offsets[s] = sum;
            p->host.rank_counts[s] = n;
            sum += n;
        }
        p->route.rank_offsets[num_ranks] = sum;
        p->host.num_rows[1] = sum;
        if (p->layout == 0) {
            p->route.num_rows[0] = sum;
            p->host.num_rows[0] = sum;
        }
    }
}

TERN_DEVICE void settle_experts(const struct route_args *p, uint64_t epoch)
{
    uint32_t columns = (uint32_t)p->f.num_ranks + p->num_experts;
    uint32_t local = p->num_experts / (uint32_t)p->f.num_ranks;
    int32_t *total = (int32_t *)shared_memory();
    int32_t *before = total + p->num_experts;
    sync_block(); /* the counters that assign used lie in the same memory */
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
    for (int d = tid(); d < p->f.num_ranks; d += nthr()) {
        int32_t offset = 0;
        for (uint32_t i = 0; i < local; i++) {
            uint32_t e = (uint32_t)d * local + i;
            if (p->layout == 1) {
                p->route.bases[e] = offset + before[e];
            }
            if (d == p->f.rank) {
                p->route.expert_counts[i] = total[e];
                p->host.expert_counts[i] = total[e];
                p->route.expert_offsets[i] = offset;
                p->host.expert_offsets[i] = offset;
            }
            offset += (total[e] + (int32_t)p->alignment - 1) / (int32_t)p->alignment * (int32_t)p->alignment;
        }
        if (d == p->f.rank) {
            p->route.expert_offsets[local] = offset;
            p->host.expert_offsets[local] = offset;
            if (p->layout == 1) {
                p->route.num_rows[0] = offset;
                p->host.num_rows[0] = offset;
            }
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
    if (op_await(&p->f, epoch)) {
        settle_pairs(p, epoch);
        settle_experts(p, epoch);
    }
    sync_block();
    if (tid() == 0) {
        p->route.overflow[0] = 0;
        p->f.state->epoch = epoch;
        /* Pairs with wait_word in terni_route_wait, also after a fault: the host looks at the record then. */
        st_release_sys_u64(p->host.ticket, p->ticket);
    }
}
