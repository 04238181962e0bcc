/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch, "drain": some blocks bring rows from staging to this rank's tensors while others still arrive,
 * where a copy behind the kernel would have to wait for the last (copy_rows_bulk.c).
 *
 * In rank layout the rows that a source has here are one run, in the order of its tokens. A source cuts its
 * tokens into phases, and says at the beginning how many of its rows are of each phase and those before it.
 * Warps send tokens in ascending order, so that a block has sent all of a phase once every warp of it has
 * come to a token of a later one and its copies before that are written; the last warp tells the peers. The
 * last phase has no words of its own: the block's done word says as much.
 *
 *   warp of a block that sends      the last one of them      drainer, in the peer
 *   copies of the phase; bulk_wait
 *   counter + 1, acq_rel            counter is full;
 *                                   fence, word = epoch       ld.acquire the words of all blocks;
 *                                                             copies of the phase's rows
 *
 * Blocks that send are the first of the launch and wait for no drainer, so that no rank waits for a drainer
 * without a processor. Peers do not wait for drainers: they say that they are done to their own rank alone.
 *
 * Shared memory of a drainer: | place table | rings of warp 0, 1, ... | */
#ifndef TERN_DISPATCH_DRAIN_H
#define TERN_DISPATCH_DRAIN_H

#include "kernels/bulk_ring.h"
#include "kernels/copy_runs.h"
#include "kernels/place.h"

/* Whether kernels that are compiled behind this one drain. */
#ifndef DISPATCH_HAS_DRAIN
#define DISPATCH_HAS_DRAIN 0
#endif
#define DRAIN_LAST 0x80000000u /* beside a number of rows: the source has no phase behind this one */
#define DRAIN_NONE 0x7fffffffu /* for a number of rows: as many as in the phases before */

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

/* What a warp has told of. */
struct drain_teller {
    const struct dispatch_drain_args *a;
    uint64_t epoch;
    uint32_t phase; /* the first that it has not counted */
};

TERN_DEVICE struct drain_teller drain_teller_of(const struct dispatch_args *p, uint64_t epoch)
{
    struct drain_teller t = {drain_of(p), epoch, 0};
    return t;
}

TERN_DEVICE uint32_t *drain_counters(const struct dispatch_drain_args *a)
{
    return (uint32_t *)(void *)(shared_memory() + a->counters_offset);
}

/* Before the block synchronises. */
TERN_DEVICE void drain_counters_init(const struct dispatch_drain_args *a)
{
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
TERN_DEVICE void drain_count(struct drain_teller *t)
{
    const struct op_frame *f = &t->a->d.f;
    uint32_t before = 0;
    sync_warp();
    if (lane() == 0) {
        /* Pairs with itself: the last warp has what all others wrote before theirs. */
        before = atom_add_acqrel_cta_u32(drain_counters(t->a) + t->phase, 1);
    }
    before = shfl_u32(before, 0);
    sync_warp();
    for (int d = lane(); before + 1 == (uint32_t)nwarps() && d < f->num_ranks; d += 32) {
        if (d != f->rank) {
            OP_FENCE(); /* pairs with the acquire in op_await_rows at the peer, which then reads the rows */
            OP_STORE_DRAINED(drain_word(t->a, f->ep_bases[d], f->rank, t->phase, bid()), t->epoch);
        }
    }
    t->phase++;
}

/* This warp's tokens before t are where they belong. All lanes. */
TERN_DEVICE void drain_passed(struct drain_teller *t, uint32_t token)
{
    uint32_t now = token / t->a->phase_tokens;
    while (t->phase < now) {
        drain_count(t);
    }
}

/* All of them are. */
TERN_DEVICE void drain_passed_all(struct drain_teller *t)
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

/* Phases' ends, shared out among blocks; a lane a rank. One warp of each block. */
TERN_DEVICE void drain_send_ends(const struct dispatch_drain_args *a, uint64_t epoch)
{
    const struct op_frame *f = &a->d.f;
    for (uint32_t k = (uint32_t)bid(); k < a->num_phases; k += a->num_blocks) {
        int last = k + 1 == a->num_phases;
        uint32_t end = last ? a->d.num_tokens : (k + 1) * a->phase_tokens;
        for (int d = lane(); d < f->num_ranks; d += 32) {
            if (d != f->rank) {
                uint32_t rows = drain_rows_before(&a->d, d, k * a->phase_tokens, end);
                st_relaxed_sys_u64(drain_end(a, f->ep_bases[d], f->rank, k),
                                   op_tagged(epoch, rows | (last ? DRAIN_LAST : 0)));
            }
        }
    }
    sync_warp();
}

/* ---- Drainers ---- */

struct drainer {
    const struct dispatch_drain_args *a;
    const struct op_table *table;
    uint64_t epoch;
    struct bulk_ring ring;   /* of lane 0 */
    int64_t next, warps;     /* piece of this warp, from the beginning of a run on; warps that drain */
    struct ep_rank_set over; /* sources whose last phase is here */
};

/* How many rows rank s sends before phase k; all phases before it have been awaited. */
TERN_DEVICE uint32_t drain_begin(const struct dispatch_drain_args *a, int s, uint32_t k)
{
    while (k-- > 0) {
        uint32_t rows = (uint32_t)ld_relaxed_sys_u64(drain_end(a, a->d.f.own, s, k));
        if (rows != DRAIN_NONE) {
            return rows;
        }
    }
    return 0;
}

TERN_DEVICE int drain_is_over(const struct drainer *r, int s)
{
    return (int)((s < 64 ? r->over.low : r->over.high) >> (s & 63) & 1);
}

/* Waits until phase k of rank s is here. All lanes; 0: abandon. */
TERN_DEVICE int drain_await(struct drainer *r, int s, uint32_t k, struct row_range *rows)
{
    const struct dispatch_drain_args *a = r->a;
    const struct op_frame *f = &a->d.f;
    uint64_t end = 0, seen;
    uint32_t begin = drain_begin(a, s, k);
    int64_t first = a->d.route.rank_offsets[s], most = (int64_t)a->copies.capacity;
    int ok = 1;
    if (lane() == 0) {
        ok = op_await_rows(f, r->epoch, s, drain_end(a, f->own, s, k), r->epoch, 1, &end);
    }
    end = shfl_u64(end, 0);
    ok = !warp_any(!ok);
    for (int b = lane(); ok && b < (int)r->table->blocks[s]; b += 32) {
        ok = (uint32_t)end & DRAIN_LAST
                 ? op_await_done(f, r->epoch, r->table, s, b)
                 : op_await_rows(f, r->epoch, s, drain_word(a, f->own, s, k, b), r->epoch, 0, &seen);
    }
    ok = !warp_any(!ok);
    sync_warp();
    fence_proxy_async_global(); /* the rows, seen through the words, come before asynchronous reads */
    uint32_t num = (uint32_t)end & ~DRAIN_LAST;
    rows->begin = first + begin;
    rows->end = first + (num == DRAIN_NONE ? begin : num);
    rows->end = rows->end < most ? rows->end : most;
    if ((uint32_t)end & DRAIN_LAST) {
        r->over.low |= s < 64 ? 1ull << s : 0;
        r->over.high |= s < 64 ? 0 : 1ull << (s - 64);
    }
    return ok;
}

/* This warp's share of a column. All lanes. */
TERN_DEVICE void drain_column(struct drainer *r, const struct copy_column *c, struct row_range rows)
{
    int whole = copy_is_whole(c);
    uint32_t most = whole ? r->a->ring_bytes : COPY_PIECE;
    struct copy_run run = run_of(c, rows, most);
    for (; r->next < run.all; r->next += r->warps) {
        struct copy_one one = piece_of(&run, r->next, most);
        if (!whole) {
            copy_piece(one.dst, one.src, one.bytes);
        } else if (lane() == 0) {
            bulk_ring_put(&r->ring, one.dst, one.src, one.bytes);
        }
    }
    r->next -= run.all;
}

/* All warps of a block that drains. Phases of all sources by turns, those of the next rank first. */
TERN_DEVICE int drain(const struct dispatch_args *p, const struct op_table *table, uint64_t epoch)
{
    const struct dispatch_drain_args *a = drain_of(p);
    uint32_t block = (uint32_t)bid() - a->num_blocks;
    int ok = 1;
    if ((uint32_t)warp() >= a->num_drainers) {
        return 1;
    }
    struct drainer r = {0};
    r.a = a;
    r.table = table;
    r.epoch = epoch;
    r.next = block * a->num_drainers + (uint32_t)warp();
    r.warps = ((uint32_t)nblk() - a->num_blocks) * a->num_drainers;
    if (lane() == 0) {
        r.ring = bulk_ring_of(shared_memory() + p->table_bytes + (uint32_t)warp() * a->warp_bytes,
                              a->num_stages, a->ring_bytes);
    }
    for (uint32_t k = 0; ok && k < DRAIN_PHASES; k++) {
        for (int i = 1; ok && i < p->f.num_ranks; i++) {
            int s = (p->f.rank + i) % p->f.num_ranks;
            struct row_range rows;
            if (drain_is_over(&r, s)) {
                continue;
            }
            ok = drain_await(&r, s, k, &rows);
            for (uint32_t c = 0; ok && c < a->copies.num_columns; c++) {
                drain_column(&r, &a->copies.columns[c], rows);
            }
        }
    }
    if (lane() == 0) {
        bulk_ring_finish(&r.ring); /* also after a fault: copies must not outlive the block */
    }
    sync_warp();
    return ok;
}

/* All threads of a block that sends. Block 0 waits for the drainers of this rank when all peers are done:
 * what is left then is not theirs to be late with. */
TERN_DEVICE void drain_leave(const struct dispatch_args *p, const struct op_table *table, uint64_t epoch,
                             int ok, uint64_t begin)
{
    const struct op_frame *f = &p->f;
    int well = op_await_all(f, epoch, table, ok, begin), done = 1;
    if (bid() != 0) {
        return;
    }
    for (int b = (int)dispatch_blocks(p) + tid(); well && done && b < nblk(); b += nthr()) {
        done = op_await_done(f, epoch, table, f->rank, b);
    }
    done = !sync_block_or(!done);
    for (int b = tid(); !done && b < nblk(); b += nthr()) {
        op_await_own(f, epoch, b);
    }
    sync_block();
    if (tid() == 0) {
        stamp_block(f, 0, epoch, begin);
        op_finish(f, epoch);
    }
}

#endif
