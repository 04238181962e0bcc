/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a launch: a grid starts blocks, a block starts warps of fibers, and each ends when its parts
 * have. Blocks start in a random order, and no more at once than the processors of the machine would hold, so
 * that a kernel which counts on more blocks being resident than a GPU keeps does not work here either.
 *
 * Shared memory begins as random bytes and is allocated anew for every block, in the block's engine context:
 * its fibers come after that through the clock `begin`, and it is freed after them through the clock `end`.
 */
#include "simt/executor.h"

#include <stdlib.h>

#define SM_THREADS      2048 /* resident on one processor */
#define SM_BLOCKS       32
#define SM_SHARED_BYTES (228 * 1024) /* with 1 KiB a block that the GPU takes for itself */

int terni_grid_resident = 0;

static int resident_limit(const struct op *op, int num_sms)
{
    int by_threads = SM_THREADS / op->num_threads;
    int by_shared = (int)(SM_SHARED_BYTES / (op->shared_bytes + 1024));
    int blocks = by_threads < by_shared ? by_threads : by_shared;
    int most = num_sms * (blocks < SM_BLOCKS ? blocks : SM_BLOCKS);

    return terni_grid_resident && terni_grid_resident < most ? terni_grid_resident : most;
}

static void shared_open(struct executor *x, struct block *b)
{
    void *memory = NULL;

    b->engines[SPACE_SHARED] = terni_context_take(x);
    order_enter(b->engines[SPACE_SHARED]);
    order_acquire(&b->grid->begin);
    if (b->shared_bytes != 0) {
        if (posix_memalign(&memory, 128, b->shared_bytes) != 0) {
            memory = NULL;
        }
        b->shared = (char *)terni_executor_need(memory, "the shared memory of a block");
        uint64_t poison = (uint64_t)draw(x) << 32 | draw(x) | 1;
        for (uint32_t i = 0; i < b->shared_bytes; i++) {
            if ((i & 7u) == 0) {
                poison = poison * 0x5851f42d4c957f2dull + 0x14057b7ef767814full;
            }
            b->shared[i] = (char)(poison >> 8 * (i & 7u));
        }
    }
    order_release(&b->begin);
    order_release(&b->proxies[SPACE_SHARED]);
    order_release(&b->proxies[SPACE_GLOBAL]);
    order_enter(x->context);
}

static void warp_open(struct executor *x, struct block *b, int idx)
{
    struct warp *w = &b->warps[idx];

    w->block = b;
    w->idx = idx;
    w->id = x->next_warp_id++;
    w->ready_idx = -1;
    for (int lane = 0; lane < SIMT_LANES; lane++) {
        struct fiber *f = terni_fiber_take(x);
        f->thread.tid = idx * SIMT_LANES + lane;
        f->thread.bid = b->bid;
        f->thread.nthr = b->grid->op->num_threads;
        f->thread.nblk = b->grid->op->num_blocks;
        f->thread.shared = b->shared;
        f->thread.fenced = 0;
        f->thread.releases = f->thread.atomics = 0;
        f->block = b;
        f->warp = w;
        f->lane = lane;
        w->fibers[lane] = f;
    }
    terni_warp_wake(w, 0xffffffffu);
}

static void block_open(struct grid *g)
{
    struct executor *x = g->executor;
    struct op *op = g->op;
    size_t num_warps = (size_t)op->num_threads / SIMT_LANES;
    size_t bytes = sizeof(struct block) + num_warps * sizeof(struct warp);
    struct block *b = (struct block *)terni_executor_need(calloc(1, bytes), "a block");

    b->grid = g;
    b->bid = (int)((g->first + (int64_t)g->started * g->stride) % op->num_blocks);
    g->started++;
    b->num_warps = (int)num_warps;
    b->live = op->num_threads;
    b->shared_bytes = op->shared_bytes;
    b->next = g->blocks;
    if (g->blocks != NULL) {
        g->blocks->prev = b;
    }
    g->blocks = b;
    shared_open(x, b);
    x->live_fibers += b->live;
    x->stats.blocks++;
    x->stats.threads += (uint64_t)op->num_threads;
    for (int i = 0; i < b->num_warps; i++) {
        warp_open(x, b, i);
    }
}

static int common_divisor(int a, int b)
{
    while (b != 0) {
        int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void terni_grid_start(struct tern_stream *s, struct op *op)
{
    struct executor *x = s->executor;
    struct grid *g = (struct grid *)terni_executor_need(calloc(1, sizeof(*g)), "a grid");
    int limit = resident_limit(op, s->num_sms);

    g->executor = x;
    g->stream = s;
    g->op = op;
    g->id = x->next_grid_id++;
    g->first = (int)draw_below(x, (uint32_t)op->num_blocks);
    do {
        g->stride = 1 + (int)draw_below(x, (uint32_t)op->num_blocks);
    } while (common_divisor(op->num_blocks, g->stride) != 1);
    if (terni_grid_resident) {
        g->first = 0;
        g->stride = 1;
    }
    g->next = x->grids;
    if (x->grids != NULL) {
        x->grids->prev = g;
    }
    x->grids = g;
    s->grid = g;
    x->stats.grids++;

    order_enter(s->context);
    order_acquire(&op->clock);
    order_acquire(&s->clock);
    order_release(&g->begin);
    order_enter(x->context);
    while (g->started < op->num_blocks && g->started < limit) {
        block_open(g);
    }
}

static void grid_close(struct grid *g)
{
    struct executor *x = g->executor;

    if (g->prev != NULL) {
        g->prev->next = g->next;
    } else {
        x->grids = g->next;
    }
    if (g->next != NULL) {
        g->next->prev = g->prev;
    }
    terni_stream_launched(g);
    free(g);
}

void terni_block_close(struct block *b)
{
    struct grid *g = b->grid;
    struct executor *x = g->executor;

    if (b->pending_loads != 0) {
        terni_report(x, b, "the block has ended before its bulk loads have");
    }
    order_enter(b->engines[SPACE_SHARED]);
    order_acquire(&b->end);
    free(b->shared);
    order_enter(x->context);
    terni_context_give(x, b->engines[SPACE_SHARED]);
    if (b->engines[SPACE_GLOBAL] != NULL) {
        terni_context_give(x, b->engines[SPACE_GLOBAL]);
    }
    if (b->prev != NULL) {
        b->prev->next = b->next;
    } else {
        g->blocks = b->next;
    }
    if (b->next != NULL) {
        b->next->prev = b->prev;
    }
    free(b->bars);
    free(b);
    g->ended++;
    if (g->started < g->op->num_blocks) {
        block_open(g);
    } else if (g->ended == g->op->num_blocks) {
        grid_close(g);
    }
}

void terni_fiber_ended(struct fiber *f)
{
    struct warp *w = f->warp;
    struct executor *x = f->executor;

    w->ready &= ~(1u << f->lane);
    w->exited |= 1u << f->lane;
    w->block->live--;
    x->live_fibers--;
    x->stats.releases += f->thread.releases;
    x->stats.atomics += f->thread.atomics;
    x->quiet = 0;
    terni_fiber_give(f);
}
