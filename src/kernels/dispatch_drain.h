/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch, "drain": some blocks bring rows from staging to this rank's tensors while others still arrive,
 * where a copy behind the kernel would have to wait for the last (copy_rows_bulk.c).
 *
 * In rank layout the rows that a source has here are one run, in the order of its tokens. A source cuts its
 * tokens into phases, and says at the beginning how many of its rows are of each phase and those before it.
 * Warps send tokens in ascending order, so that a block has sent all of a phase once every warp of it has
 * come to a token of a later one and its copies before that are written; the teller, its last warp, which
 * sends nothing, tells the peers. The last phase has no words of its own: the block's done word says as much.
 *
 *   warp of a block that sends      its teller                drainer, in the peer
 *   copies of the phase; bulk_wait
 *   counter + 1, acq_rel            counter is full;
 *                                   fence, word = epoch       ld.acquire the words of all blocks;
 *                                                             copies of the phase's rows
 *
 * A phase's rows are taken in slices, by a counter for each source, so that whoever has room takes the next
 * one. Blocks that send tell the peers that they are done and then take slices too. They are the first of the
 * launch and tell before they wait for any row, so that no rank waits for a drainer without a processor.
 * Peers do not wait for what is copied here: all blocks but the first tell their own rank, whose block 0
 * waits.
 *
 * Shared memory of a drainer: | place table | rings of warp 0, 1, ... |; the ring of a sender that takes
 * slices is where its stages were. */
#ifndef TERN_DISPATCH_DRAIN_H
#define TERN_DISPATCH_DRAIN_H

#include "kernels/bulk_ring.h"
#include "kernels/copy_runs.h"
#include "kernels/place.h"

/* Whether kernels that are compiled behind this one drain. */
#ifndef DISPATCH_HAS_DRAIN
#define DISPATCH_HAS_DRAIN 0
#endif
#define DRAIN_LAST      0x80000000u /* beside a number of rows: the source has no phase behind this one */
#define DRAIN_UNDER_WAY 2           /* tokens of a warp whose copies it does not await yet */
#define DRAIN_NONE      0x7fffffffu /* for a number of rows: as many as in the phases before */

TERN_DEVICE const struct dispatch_drain_args *drain_of(const struct dispatch_args *p)
{
    return (const struct dispatch_drain_args *)(const void *)p; /* whose first member it is */
}

/* Blocks of the launch that send. */
TERN_DEVICE uint32_t dispatch_blocks(const struct dispatch_args *p)
{
    return DISPATCH_HAS_DRAIN ? drain_of(p)->num_blocks : (uint32_t)nblk();
}

TERN_DEVICE int dispatch_drains(const struct dispatch_args *p)
{
    return (uint32_t)bid() >= dispatch_blocks(p);
}

/* ---- Blocks that send ---- */

/* How far a warp has come. */
struct drain_progress {
    const struct dispatch_drain_args *a;
    uint32_t phase; /* the first that it has not counted */
    uint32_t sent;  /* tokens */
    uint32_t token; /* lane i: the latest one whose number of those sent is i, modulo 32 */
};

TERN_DEVICE struct drain_progress drain_progress_of(const struct dispatch_args *p)
{
    struct drain_progress t = {drain_of(p), 0, 0, 0};
    return t;
}

TERN_DEVICE uint32_t *drain_counters(const struct dispatch_drain_args *a)
{
    return (uint32_t *)(void *)(shared_memory() + a->counters_offset);
}

/* A block that sends has begun; before it synchronises. */
TERN_DEVICE void drain_enter(const struct dispatch_drain_args *a)
{
    if (tid() == 0) {
        (void)atom_add_relaxed_gpu_u64(&a->d.f.state->begun, 1);
    }
    for (int k = tid(); k < DRAIN_PHASES; k += nthr()) {
        drain_counters(a)[k] = 0;
    }
}

/* In the window of rank d: the word by which block b of rank s says that it has sent phase k. */
TERN_DEVICE uint64_t *drain_word(const struct dispatch_drain_args *a, char *window, int s, uint32_t k, int b)
{
    return (uint64_t *)(void *)(window + a->words_offset) + ((uint64_t)s * DRAIN_PHASES + k) * EP_MAX_BLOCKS +
           (uint64_t)b;
}

/* Likewise how many rows rank s sends in phases 0 .. k; tagged. */
TERN_DEVICE uint64_t *drain_end(const struct dispatch_drain_args *a, char *window, int s, uint32_t k)
{
    return (uint64_t *)(void *)(window + a->ends_offset) + (uint64_t)s * DRAIN_PHASES + k;
}

/* What this warp had to send in the next phase is written. All lanes, each having awaited its own copies. */
TERN_DEVICE void drain_count(struct drain_progress *t)
{
    sync_warp();
    if (lane() == 0) {
        (void)atom_add_acqrel_cta_u32(drain_counters(t->a) + t->phase, 1); /* pairs with drain_tell's */
    }
    t->phase++;
}

TERN_DEVICE int drain_is_teller(void) { return DISPATCH_HAS_DRAIN && warp() == nwarps() - 1; }

/* The teller: tells the peers of each phase that all other warps of the block have counted. */
TERN_DEVICE void drain_tell(const struct dispatch_drain_args *a, uint64_t epoch)
{
    const struct op_frame *f = &a->d.f;
    for (uint32_t k = 0; k + 1 < a->num_phases; k++) {
        for (int all = 0; !all;) {
            /* Pairs with drain_count's: the teller has what all others wrote before theirs. */
            uint32_t now = lane() == 0 ? atom_add_acqrel_cta_u32(drain_counters(a) + k, 0) : 0;
            all = shfl_u32(now, 0) + 1 == (uint32_t)nwarps();
            if (!all) {
                spin();
            }
        }
        sync_warp();
        for (int d = lane(); d < f->num_ranks; d += 32) {
            if (d != f->rank) {
                /* Pairs with the acquire in op_await_rows at the peer, which then reads the rows. */
                OP_FENCE();
                OP_STORE_DRAINED(drain_word(a, f->ep_bases[d], f->rank, k, bid()), epoch);
            }
        }
    }
}

/* This warp's tokens before t are where they belong. All lanes. */
TERN_DEVICE void drain_passed(struct drain_progress *t, uint32_t token)
{
    uint32_t now = token / t->a->phase_tokens;
    while (t->phase < now) {
        drain_count(t);
    }
}

/* A token's copies have begun, and those of all but the latest DRAIN_UNDER_WAY are where they belong. */
TERN_DEVICE void drain_sent(struct drain_progress *t, uint32_t token)
{
    t->token = (uint32_t)lane() == t->sent % 32 ? token : t->token;
    t->sent++;
    if (t->sent > DRAIN_UNDER_WAY) {
        drain_passed(t, shfl_u32(t->token, (int)((t->sent - DRAIN_UNDER_WAY) % 32)));
    }
}

/* All of them are. */
TERN_DEVICE void drain_passed_all(struct drain_progress *t)
{
    while (t->phase + 1 < t->a->num_phases) {
        drain_count(t);
    }
}

/* Rows of tokens below `end` at rank d, if one of them is of a token from `begin` on: a row's slot is the
 * number of those before it. */
TERN_DEVICE uint32_t drain_rows_before(const struct dispatch_args *p, int d, uint32_t begin, uint32_t end)
{
    enum { AT_ONCE = 16 };
    uint32_t num_ranks = (uint32_t)p->f.num_ranks;
    while (end > begin) {
        int32_t slots[AT_ONCE], most = -1;
        TERN_UNROLL
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            slots[i] = -1;
            if (i < end - begin) {
                slots[i] = p->route.token_rows[(uint64_t)(end - 1 - i) * num_ranks + (uint32_t)d];
            }
        }
        TERN_UNROLL
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            most = slots[i] > most ? slots[i] : most;
        }
        if (most >= 0) {
            return (uint32_t)most + 1;
        }
        end = end - begin > AT_ONCE ? end - AT_ONCE : begin;
    }
    return DRAIN_NONE;
}

/* Phases' ends, shared out among blocks; a lane a rank. Behind the last phase there are others without rows,
 * so that whoever asks for one hears so. One warp of each block. */
TERN_DEVICE void drain_send_ends(const struct dispatch_drain_args *a, uint64_t epoch)
{
    const struct op_frame *f = &a->d.f;
    for (uint32_t k = (uint32_t)bid(); k < DRAIN_PHASES; k += a->num_blocks) {
        int last = k + 1 >= a->num_phases;
        uint32_t begin = k < a->num_phases ? k * a->phase_tokens : a->d.num_tokens;
        uint32_t end = last ? a->d.num_tokens : begin + a->phase_tokens;
        for (int d = lane(); d < f->num_ranks; d += 32) {
            if (d != f->rank) {
                uint32_t rows = drain_rows_before(&a->d, d, begin, end);
                st_relaxed_sys_u64(drain_end(a, f->ep_bases[d], f->rank, k),
                                   op_tagged(epoch, rows | (last ? DRAIN_LAST : 0)));
            }
        }
    }
    sync_warp();
}

/* ---- Whoever drains ---- */

struct drainer {
    const struct dispatch_drain_args *a;
    const struct op_table *table;
    uint64_t epoch;
    struct bulk_ring ring;   /* of lane 0 */
    struct ep_rank_set over; /* sources that have no slices any more, counted from the next rank on */
    int source;              /* of the latest slice; -1: there was none */
    uint32_t phase;          /* likewise */
    struct row_range rows;   /* likewise, of its phase */
    int64_t next;            /* piece of this slice, from the beginning of a run on */
};

TERN_DEVICE struct drainer drainer_of(const struct dispatch_drain_args *a, const struct op_table *table,
                                      uint64_t epoch, char *memory, uint32_t num_stages)
{
    struct drainer r = {0};
    r.a = a;
    r.table = table;
    r.epoch = epoch;
    r.source = -1;
    if (lane() == 0) {
        r.ring = bulk_ring_of(memory, num_stages, a->ring_bytes);
    }
    return r;
}

/* What became of a slice that was taken, or of what it waits for. */
enum drain_result { DRAIN_ABANDON, DRAIN_OVER, DRAIN_GOES_ON };

/* Phase k of rank s: which rows it has. Lane i looks at the i-th phase before it, as one without rows does
 * not say where it begins. All lanes. */
TERN_DEVICE enum drain_result drain_find(struct drainer *r, int s, uint32_t k, int *last)
{
    const struct dispatch_drain_args *a = r->a;
    const struct op_frame *f = &a->d.f;
    uint64_t end = 0; /* before the first phase there are no rows */
    int ok = 1;
    if ((uint32_t)lane() <= k) {
        ok = op_await_rows(f, r->epoch, s, drain_end(a, f->own, s, k - (uint32_t)lane()), r->epoch, 1, &end);
    }
    ok = !warp_any(!ok);
    sync_warp();
    if (!ok) {
        return DRAIN_ABANDON;
    }
    uint32_t num = (uint32_t)end & ~DRAIN_LAST, known = warp_ballot(num != DRAIN_NONE);
    uint32_t begin = shfl_u32(num, TERN_FFS(known & ~1u) - 1);
    int64_t first = a->d.route.rank_offsets[s], most = (int64_t)a->copies.capacity;
    *last = (shfl_u32((uint32_t)end, 0) & DRAIN_LAST) != 0;
    num = shfl_u32(num, 0);
    r->rows.begin = first + begin;
    r->rows.end = first + (num == DRAIN_NONE ? begin : num);
    r->rows.end = r->rows.end < most ? r->rows.end : most;
    return num != DRAIN_NONE ? DRAIN_GOES_ON : *last ? DRAIN_OVER : DRAIN_GOES_ON;
}

/* Waits until phase k of rank s is here. All lanes. */
TERN_DEVICE enum drain_result drain_await(struct drainer *r, int s, uint32_t k)
{
    const struct dispatch_drain_args *a = r->a;
    const struct op_frame *f = &a->d.f;
    uint64_t seen;
    int last = 0, ok = 1;
    enum drain_result found = drain_find(r, s, k, &last);
    r->source = found == DRAIN_GOES_ON ? s : -1;
    r->phase = k;
    if (found != DRAIN_GOES_ON) {
        return found;
    }
    for (int b = lane(); ok && r->rows.begin < r->rows.end && b < (int)r->table->blocks[s]; b += 32) {
        ok = last ? op_await_done(f, r->epoch, r->table, s, b)
                  : op_await_rows(f, r->epoch, s, drain_word(a, f->own, s, k, b), r->epoch, 0, &seen);
    }
    ok = !warp_any(!ok);
    sync_warp();
    fence_proxy_async_global(); /* the rows, seen through the words, come before asynchronous reads */
    return ok ? DRAIN_GOES_ON : DRAIN_ABANDON;
}

/* This slice's share of a column. All lanes. */
TERN_DEVICE void drain_column(struct drainer *r, const struct copy_column *c)
{
    int whole = copy_is_whole(c);
    uint32_t most = whole ? r->a->ring_bytes : COPY_PIECE;
    struct copy_run run = run_of(c, r->rows, most);
    for (; r->next < run.all; r->next += r->a->num_slices) {
        struct copy_one one = piece_of(&run, r->next, most);
        if (!whole) {
            copy_piece(one.dst, one.src, one.bytes);
        } else if (lane() == 0) {
            bulk_ring_put(&r->ring, one.dst, one.src, one.bytes);
        }
    }
    r->next -= run.all;
}

/* Takes a slice of rank s and copies it. All lanes. */
TERN_DEVICE enum drain_result drain_slice(struct drainer *r, int s)
{
    const struct dispatch_drain_args *a = r->a;
    uint32_t claim = 0;
    if (lane() == 0) {
        claim = (uint32_t)atom_add_relaxed_gpu_u64(&a->d.f.state->slices[s], 1);
    }
    claim = shfl_u32(claim, 0);
    uint32_t phase = claim / a->num_slices;
    if (phase >= DRAIN_PHASES) {
        return DRAIN_OVER;
    }
    if (s != r->source || phase != r->phase) {
        enum drain_result awaited = drain_await(r, s, phase);
        if (awaited != DRAIN_GOES_ON) {
            return awaited;
        }
    }
    r->next = claim % a->num_slices;
    for (uint32_t c = 0; c < a->copies.num_columns; c++) {
        drain_column(r, &a->copies.columns[c]);
    }
    return DRAIN_GOES_ON;
}

TERN_DEVICE int drain_is_over(const struct drainer *r, uint32_t i)
{
    return (int)((i < 64 ? r->over.low : r->over.high) >> (i & 63) & 1);
}

/* Slices of the sources first, first + step, ... by turns, until none has any more. All lanes; 0: abandon. */
TERN_DEVICE int drain_sources(struct drainer *r, uint32_t first, uint32_t step)
{
    const struct op_frame *f = &r->a->d.f;
    uint32_t peers = (uint32_t)f->num_ranks - 1;
    int some = 1;
    while (some) {
        some = 0;
        for (uint32_t i = first; i < peers; i += step) {
            int s = (int)(((uint32_t)f->rank + 1 + i) % (uint32_t)f->num_ranks);
            if (drain_is_over(r, i)) {
                continue;
            }
            enum drain_result result = drain_slice(r, s);
            if (result == DRAIN_ABANDON) {
                return 0;
            }
            some |= result == DRAIN_GOES_ON;
            r->over.low |= result == DRAIN_OVER && i < 64 ? 1ull << i : 0;
            r->over.high |= result == DRAIN_OVER && i >= 64 ? 1ull << (i - 64) : 0;
        }
    }
    return 1;
}

/* Its copies are where they belong. All lanes; also after a fault, as copies must not outlive the block. */
TERN_DEVICE void drain_end_copies(struct drainer *r)
{
    if (lane() == 0) {
        bulk_ring_finish(&r->ring);
    }
    sync_warp();
}

/* All warps of a block that drains: each keeps to some sources, so that it need not await all phases of all,
 * and then takes what is left of the others. */
TERN_DEVICE int drain(const struct dispatch_args *p, const struct op_table *table, uint64_t epoch)
{
    const struct dispatch_drain_args *a = drain_of(p);
    uint32_t blocks = (uint32_t)nblk() - a->num_blocks, peers = (uint32_t)p->f.num_ranks - 1;
    uint32_t all = blocks * a->num_drainers, me = (uint32_t)warp() * blocks + (uint32_t)bid() - a->num_blocks;
    if ((uint32_t)warp() >= a->num_drainers || peers == 0) {
        return 1;
    }
    struct drainer r = drainer_of(
        a, table, epoch, shared_memory() + p->table_bytes + (uint32_t)warp() * a->warp_bytes, a->num_stages);
    int ok = drain_sources(&r, all > peers ? me % peers : me, all > peers ? peers : all) &&
             drain_sources(&r, 0, 1);
    drain_end_copies(&r);
    return ok;
}

/* A warp of a block that has sent all it had, and told the peers so, in the memory of stages. It waits for
 * rows of peers, who may wait for a block of this rank that has no processor: so it helps only if all that
 * send have begun. */
TERN_DEVICE int drain_help(const struct dispatch_args *p, const struct op_table *table, uint64_t epoch)
{
    const struct dispatch_drain_args *a = drain_of(p);
    char *memory = shared_memory() + p->table_bytes + (uint32_t)warp() * a->help_bytes;
    uint64_t begun = lane() == 0 ? atom_add_relaxed_gpu_u64(&p->f.state->begun, 0) : 0;
    if (shfl_u64(begun, 0) < a->num_blocks) {
        return 1;
    }
    fence_proxy_async_shared(); /* what lanes wrote or read in stages comes before copies into them */
    sync_warp();
    struct drainer r = drainer_of(a, table, epoch, memory, a->help_stages);
    int ok = drain_sources(&r, 0, 1);
    drain_end_copies(&r);
    return ok;
}

/* All threads of a block that sends. Peers are told before it helps. Block 0 waits for the other blocks of
 * this rank when all peers are done: what is left then is not theirs to be late with. */
TERN_DEVICE void drain_leave(const struct dispatch_args *p, const struct op_table *table, uint64_t epoch,
                             int ok, uint64_t begin)
{
    const struct op_frame *f = &p->f;
    ok = op_tell_all(f, epoch, ok, 0);
    if (ok && (uint32_t)warp() < drain_of(p)->helpers) {
        ok = drain_help(p, table, epoch);
    }
    if (bid() != 0) {
        op_leave_quietly(f, epoch, begin);
        return;
    }
    ok = !sync_block_or(!ok);
    ok = op_hear_all(f, epoch, table, ok, 0);
    for (int b = 1 + tid(); ok && b < nblk(); b += nthr()) {
        ok = op_await_done(f, epoch, table, f->rank, b);
    }
    ok = !sync_block_or(!ok);
    op_hear_own(f, epoch, ok);
    for (int s = tid(); s < f->num_ranks; s += nthr()) {
        f->state->slices[s] = 0; /* nobody takes one any more; or, after a fault, a reset zeroes it then */
    }
    sync_block();
    if (tid() == 0) {
        f->state->begun = 0;
        stamp_block(f, 0, epoch, begin);
        op_finish(f, epoch);
    }
}

#endif
