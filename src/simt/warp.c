/* SPDX-License-Identifier: Apache-2.0
 *
 * What threads of a warp or a block do together. A lane that must wait leaves the ready set and comes back
 * when the last participant arrives; nothing polls. All warp primitives are one operation, warp_join: leave a
 * value, wait for all 32 lanes, look at the others' values.
 *
 * Phases alternate between two sets of values and two clocks. A lane that has left phase k may join k + 1
 * while another still reads the values of k, but nobody can join k + 2 before all have joined k + 1.
 *
 * Only sync_warp orders memory: votes, shuffles and matches hand values on and nothing else, as on a GPU, and
 * ThreadSanitizer reports what relies on more.
 *
 * Lanes that wait in different primitives, or for a lane that has exited, wait for ever on a GPU; here they
 * are reported at once. */
#include "simt/executor.h"

#define ALL_LANES 0xffffffffu

const char *terni_primitive_name(enum primitive p)
{
    switch (p) {
    case PRIMITIVE_SYNC_WARP:
        return "sync_warp";
    case PRIMITIVE_BALLOT:
        return "ballot";
    case PRIMITIVE_SHFL:
        return "shfl";
    case PRIMITIVE_MATCH:
        return "match_any";
    case PRIMITIVE_SYNC_BLOCK:
        return "sync_block";
    case PRIMITIVE_SYNC_BLOCK_OR:
        return "sync_block_or";
    case PRIMITIVE_SYNC_PART:
        return "sync_part";
    case PRIMITIVE_SYNC_PART_OR:
        return "sync_part_or";
    case PRIMITIVE_NONE:
        break;
    }
    return "nothing";
}

void terni_warp_check(struct fiber *f)
{
    struct warp *w = f->warp;

    /* Those at the block barrier wait for those in the warp primitive, which wait for the former. */
    if (w->joined != 0 && (w->ready | w->at_bulk) == 0) {
        terni_fiber_bug(f, "deadlock: no lane of warp %d can go on", w->idx);
    }
}

/* Returns which of the two sets holds this phase's values. */
static uint32_t warp_join(enum primitive p, uint64_t value)
{
    struct fiber *f = current_fiber();
    struct warp *w = f->warp;
    uint32_t set = w->phase & 1u;
    uint32_t bit = 1u << f->lane;

    if (w->joined == 0) {
        w->primitive = p;
        w->bits[set] = 0;
    } else if (w->primitive != p) {
        terni_fiber_bug(f, "divergence: lane %d of warp %d calls %s while others wait in %s", f->lane, w->idx,
                        terni_primitive_name(p), terni_primitive_name(w->primitive));
    }
    if (w->exited != 0) {
        terni_fiber_bug(f, "deadlock: lane %d of warp %d calls %s after other lanes have exited", f->lane,
                        w->idx, terni_primitive_name(p));
    }
    w->slots[set][f->lane] = value;
    if (value != 0) {
        w->bits[set] |= bit;
    }
    if (p == PRIMITIVE_SYNC_WARP) {
        order_release(&w->clock[set]);
    }
    w->joined |= bit;
    if (w->joined == ALL_LANES) {
        w->joined = 0;
        w->phase++;
        f->executor->stats.joins[p]++;
        f->executor->quiet = 0;
        terni_warp_wake(w, ALL_LANES);
    } else {
        w->ready &= ~bit;
        terni_warp_check(f);
        terni_fiber_yield(f);
    }
    if (p == PRIMITIVE_SYNC_WARP) {
        order_acquire(&w->clock[set]);
    }
    return set;
}

void sync_warp(void) { warp_join(PRIMITIVE_SYNC_WARP, 0); }

uint32_t simt_ballot(int v)
{
    uint32_t set = warp_join(PRIMITIVE_BALLOT, v != 0);
    return current_fiber()->warp->bits[set];
}

uint64_t simt_shfl(uint64_t v, int src)
{
    uint32_t set = warp_join(PRIMITIVE_SHFL, v);
    return current_fiber()->warp->slots[set][src & (SIMT_LANES - 1)];
}

uint32_t match_any_u32(uint32_t v)
{
    uint32_t set = warp_join(PRIMITIVE_MATCH, v);
    const uint64_t *slots = current_fiber()->warp->slots[set];
    uint32_t mask = 0;

    for (int i = 0; i < SIMT_LANES; i++) {
        mask |= (uint32_t)(slots[i] == v) << i;
    }
    return mask;
}

/* The block's first `threads` threads, which are all for `whole`. */
static int block_join(struct barrier *j, enum primitive p, int threads, int v)
{
    struct fiber *f = current_fiber();
    struct block *b = f->block;
    uint32_t set = j->phase & 1u;

    if (j->joined == 0) {
        j->primitive = p;
        j->any[set] = 0;
    } else if (j->primitive != p) {
        terni_fiber_bug(f, "divergence: thread %d calls %s while others wait in %s", f->thread.tid,
                        terni_primitive_name(p), terni_primitive_name(j->primitive));
    }
    if (j->joined == 0) {
        j->threads = threads;
    }
    if (threads != j->threads || threads % SIMT_LANES != 0 || f->thread.tid >= threads) {
        terni_fiber_bug(f, "thread %d calls %s of %d threads", f->thread.tid, terni_primitive_name(p),
                        threads);
    }
    if (j == &b->whole && b->live != threads) {
        terni_fiber_bug(f, "deadlock: thread %d calls %s after other threads have exited", f->thread.tid,
                        terni_primitive_name(p));
    }
    j->any[set] |= v != 0;
    order_release(&j->clock[set]);
    if (++j->joined == threads) {
        j->joined = 0;
        j->phase++;
        f->executor->stats.joins[p]++;
        f->executor->quiet = 0;
        for (int i = 0; i < threads / SIMT_LANES; i++) {
            b->warps[i].at_block = 0;
            terni_warp_wake(&b->warps[i], ALL_LANES);
        }
    } else {
        f->warp->ready &= ~(1u << f->lane);
        f->warp->at_block |= 1u << f->lane;
        terni_warp_check(f);
        terni_fiber_yield(f);
    }
    order_acquire(&j->clock[set]);
    return j->any[set];
}

static int whole_join(enum primitive p, int v)
{
    struct fiber *f = current_fiber();
    return block_join(&f->block->whole, p, f->thread.nthr, v);
}

void sync_block(void) { whole_join(PRIMITIVE_SYNC_BLOCK, 0); }

int sync_block_or(int v) { return whole_join(PRIMITIVE_SYNC_BLOCK_OR, v); }

void sync_part(int threads) { block_join(&current_fiber()->block->part, PRIMITIVE_SYNC_PART, threads, 0); }

int sync_part_or(int threads, int v)
{
    return block_join(&current_fiber()->block->part, PRIMITIVE_SYNC_PART_OR, threads, v);
}

void spin(void)
{
    struct fiber *f = current_fiber();
    f->executor->quiet++;
    terni_fiber_yield(f);
}

void simt_point(void)
{
    struct fiber *f = current_fiber();
    if ((draw(f->executor) & 7u) == 0) {
        terni_fiber_yield(f);
    }
}

uint64_t clock_ns(void) { return terni_clock_ns(); }
