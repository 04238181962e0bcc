/* SPDX-License-Identifier: Apache-2.0
 *
 * Which warp runs next. A random choice at every step explores little: every rank then advances at nearly the
 * same pace, and what breaks when one is a thousand steps late stays hidden. So the choice follows a policy
 * that changes at random: all alike, some grids starved, some warps starved, one warp in bursts; and copies
 * move at once or very late. Who starves depends on numbers given in order, never on addresses, or a seed
 * would not replay. */
#include "simt/executor.h"

#include <stdlib.h>

#define SLICE_RESUMES 512 /* between two looks at what hosts want */
#define REPICKS       6   /* before a starving warp runs after all */

static void policy_change(struct executor *x)
{
    x->policy.kind = (enum policy_kind)draw_below(x, POLICY_COUNT);
    x->policy.salt = draw(x);
    x->policy.bulk_period = 1u << draw_below(x, 9);
    x->policy.left = 64u << draw_below(x, 7);
    x->policy.last = NULL;
}

/* One in four starves. */
static int starves(uint32_t id, uint32_t salt)
{
    uint32_t h = (id ^ salt) * 0x9e3779b1u;
    return h >> 30 == 0;
}

static struct warp *pick(struct executor *x)
{
    uint32_t n = (uint32_t)x->num_ready;
    struct warp *w = x->ready[draw_below(x, n)];

    if (x->policy.left-- == 0) {
        policy_change(x);
    }
    switch (x->policy.kind) {
    case POLICY_STARVE_GRIDS:
        for (int i = 0; i < REPICKS && starves(w->block->grid->id, x->policy.salt); i++) {
            w = x->ready[draw_below(x, n)];
        }
        break;
    case POLICY_STARVE_WARPS:
        for (int i = 0; i < REPICKS && starves(w->id, x->policy.salt); i++) {
            w = x->ready[draw_below(x, n)];
        }
        break;
    case POLICY_BURST:
        if (x->policy.last != NULL && (draw(x) & 7u) != 0) {
            w = x->policy.last;
        }
        x->policy.last = w;
        break;
    default:
        break;
    }
    return w;
}

void terni_warp_wake(struct warp *w, uint32_t lanes)
{
    struct executor *x = w->block->grid->executor;

    w->ready |= lanes;
    if (w->ready_idx >= 0) {
        return;
    }
    if (x->num_ready == x->max_ready) {
        int max = x->max_ready == 0 ? 64 : 2 * x->max_ready;
        void *context = order_current();
        order_enter(x->context); /* the list is the executor's own */
        x->ready = (struct warp **)terni_executor_need(realloc(x->ready, (size_t)max * sizeof(struct warp *)),
                                                       "the list of warps");
        x->max_ready = max;
        order_enter(context);
    }
    w->ready_idx = x->num_ready;
    x->ready[x->num_ready++] = w;
}

static void retire(struct executor *x, struct warp *w)
{
    struct warp *moved = x->ready[--x->num_ready];

    x->ready[w->ready_idx] = moved;
    moved->ready_idx = w->ready_idx;
    w->ready_idx = -1;
    if (x->policy.last == w) {
        x->policy.last = NULL;
    }
}

/* Resumes each ready lane once, beginning at a random one. */
static void run_warp(struct executor *x, struct warp *w)
{
    uint32_t first = draw(x) & (SIMT_LANES - 1);
    uint32_t todo = w->ready >> first | (uint32_t)((uint64_t)w->ready << (SIMT_LANES - first));

    x->stats.picks++;
    x->stats.resumes += (uint32_t)__builtin_popcount(todo);
    x->stats.trace = (x->stats.trace ^ w->id ^ (uint64_t)w->ready << 32 ^ first) * 0x9e3779b97f4a7c15ull;
    while (todo != 0) {
        struct fiber *f = w->fibers[((uint32_t)__builtin_ctz(todo) + first) & (SIMT_LANES - 1)];
        todo &= todo - 1;
        if (todo != 0) {
            struct fiber *next = w->fibers[((uint32_t)__builtin_ctz(todo) + first) & (SIMT_LANES - 1)];
            terni_fiber_prefetch(next);
        }
        terni_fiber_resume(f);
    }
    if (w->ready == 0) {
        retire(x, w);
        if (w->block->live == 0) {
            terni_block_close(w->block);
        }
    }
}

void terni_slice_run(struct executor *x)
{
    uint64_t end = x->stats.resumes + SLICE_RESUMES;

    terni_streams_advance(x);
    while (x->stats.resumes < end) {
        if (x->num_pending != 0 && (x->num_ready == 0 || draw_below(x, x->policy.bulk_period) == 0)) {
            terni_bulk_step(x);
        }
        if (x->num_ready != 0) {
            run_warp(x, pick(x));
        } else if (x->num_pending == 0) {
            break;
        }
    }
    if (x->live_fibers != 0 && x->num_ready == 0 && x->num_pending == 0) {
        terni_report(x, NULL, "deadlock: every thread waits in a barrier");
    }
}
