/* SPDX-License-Identifier: Apache-2.0
 *
 * Asynchronous bulk copies and mbarriers. An issued copy waits in a list; at random later moments the engine
 * reads its source into a staging buffer, and later still writes its destination. Any order among copies,
 * however late: only what the program waited for may be relied upon.
 *
 * An mbarrier is a word in shared memory: | tx, signed | pending | count | parity |. A phase is complete when
 * no arrival is pending and tx is zero; the word then re-arms itself with `count` and flips its parity.
 *
 * The order that ThreadSanitizer is told, which is that of the async proxy and no more:
 *
 *   A copy runs in two contexts of its own, one for each memory, shared and global, that it reads or writes.
 *   When issued, each comes after the clock in `proxies` of its block that is of the same memory, and not
 *   after the fiber that issues it. Into such a clock release:
 *     1. the start of the block: earlier kernels' writes may be copied without a fence;
 *     2. fence_proxy_async, or the one of this memory alone: what the calling fiber did, and what it was
 *        ordered after;
 *     3. a successful mbar_test, bulk_wait or bulk_wait_read, in the name of what the copies that it found
 *        complete did to this memory: a copy comes after one whose end somebody of the block has waited for.
 *
 * So an ordinary write (one's own, or a peer's that was acquired) followed by a copy without a fence, or with
 * one of the other memory, is a race, and so is a copy into a buffer from which another copy, not waited for,
 * still reads. Completion goes the other way: a load releases into its mbarrier and mbar_test acquires from
 * there, after mbar_expect's release too; a store releases into a clock of its fiber and group when read and
 * another when written, bulk_wait_read acquires the one and bulk_wait both. One approximation: a fence counts
 * for all of the block from the moment it is made, before any barrier hands it on; other schedules show what
 * that hides. */
#include "simt/executor.h"

#include <stdlib.h>
#include <string.h>

enum {
    COUNT_BITS = 20,
    COUNT_SHIFT = 1,
    PENDING_SHIFT = 21,
    TX_SHIFT = 41,
    MAX_TX = (1 << 20) - 1 /* what the GPU's word holds */
};
#define COUNT_MASK ((1ull << COUNT_BITS) - 1)

/* Clocks of an mbarrier's phase with this parity: everything, and what copies did to one memory alone. */
static char *phase_clock(uint64_t *bar, uint32_t parity) { return (char *)bar + 4 * parity; }

static char *copies_clock(uint64_t *bar, uint32_t parity, int space)
{
    return (char *)bar + 4 * parity + 1 + space;
}

static int in_shared(const struct block *b, const void *p, uint64_t bytes)
{
    uintptr_t low = (uintptr_t)b->shared, at = (uintptr_t)p;
    return at >= low && bytes <= b->shared_bytes && at - low <= b->shared_bytes - bytes;
}

/* In which accesses to this memory are handed on from copies to later ones of the block. */
static void enter_engine(struct fiber *f, int space)
{
    struct block *b = f->block;

    if (b->engines[space] == NULL) {
        b->engines[space] = terni_context_take(f->executor);
    }
    order_enter(b->engines[space]);
}

/* ---- mbarriers ---- */

static void check_bar(struct fiber *f, const uint64_t *bar, const char *call)
{
    struct block *b = f->block;

    for (int i = 0; i < b->num_bars; i++) {
        if (b->bars[i] == bar) {
            return;
        }
    }
    terni_fiber_bug(f, "%s of thread %d: no mbarrier at shared memory + %lld", call, f->thread.tid,
                    (long long)((intptr_t)bar - (intptr_t)b->shared));
}

void mbar_init(uint64_t *bar, uint32_t count)
{
    struct fiber *f = current_fiber();
    struct block *b = f->block;

    if (((uintptr_t)bar & 7u) != 0 || !in_shared(b, bar, sizeof(*bar)) || count < 1 || count > COUNT_MASK) {
        terni_fiber_bug(f, "mbar_init of thread %d: count %u, at shared memory + %lld of %u bytes",
                        f->thread.tid, count, (long long)((intptr_t)bar - (intptr_t)b->shared),
                        b->shared_bytes);
    }
    *bar = (uint64_t)count << COUNT_SHIFT | (uint64_t)count << PENDING_SHIFT;
    for (int i = 0; i < b->num_bars; i++) {
        if (b->bars[i] == bar) {
            terni_fiber_bug(f, "mbar_init of thread %d: there is a barrier at shared memory + %lld",
                            f->thread.tid, (long long)((intptr_t)bar - (intptr_t)b->shared));
        }
    }
    if (b->num_bars == b->max_bars) {
        int max = b->max_bars == 0 ? 8 : 2 * b->max_bars;
        order_enter(f->executor->context);
        b->bars =
            (uint64_t **)terni_executor_need(realloc(b->bars, (size_t)max * sizeof(*b->bars)), "mbarriers");
        b->max_bars = max;
        order_enter(f->context);
    }
    b->bars[b->num_bars++] = bar;
}

void mbar_inval(uint64_t *bar)
{
    struct fiber *f = current_fiber();
    struct block *b = f->block;

    for (int i = 0; i < b->num_bars; i++) {
        if (b->bars[i] == bar) {
            b->bars[i] = b->bars[--b->num_bars];
            return;
        }
    }
    terni_fiber_bug(f, "mbar_inval of thread %d: no barrier at shared memory + %lld", f->thread.tid,
                    (long long)((intptr_t)bar - (intptr_t)b->shared));
}

void fence_mbar_init(void) { fence_proxy_async_shared(); }

/* One more or no more arrival, and tx; then completes the phase if nothing is missing. Returns 0 if there was
 * an arrival too many, or tx left its range. */
static int bar_advance(struct executor *x, uint64_t *bar, uint32_t arrivals, int64_t tx_change)
{
    uint64_t word = *bar;
    uint64_t count = word >> COUNT_SHIFT & COUNT_MASK;
    uint64_t pending = word >> PENDING_SHIFT & COUNT_MASK;
    int64_t tx = ((int64_t)word >> TX_SHIFT) + tx_change;
    uint64_t parity = word & 1u;

    if (arrivals > pending || tx > MAX_TX || tx < -MAX_TX) {
        return 0;
    }
    pending -= arrivals;
    if (pending == 0 && tx == 0) {
        parity ^= 1u;
        pending = count;
        x->quiet = 0;
    }
    *bar = (uint64_t)tx << TX_SHIFT | pending << PENDING_SHIFT | count << COUNT_SHIFT | parity;
    return 1;
}

void mbar_expect(uint64_t *bar, uint32_t bytes)
{
    struct fiber *f = current_fiber();

    check_bar(f, bar, "mbar_expect");
    f->executor->stats.bar_arrivals++;
    order_release(phase_clock(bar, (uint32_t)*bar & 1u)); /* pairs with the acquire of mbar_test */
    if (!bar_advance(f->executor, bar, 1, bytes)) {
        terni_fiber_bug(f, "mbar_expect of thread %d: an arrival too many, or more than %d bytes to come",
                        f->thread.tid, MAX_TX);
    }
}

int mbar_test(uint64_t *bar, uint32_t parity)
{
    struct fiber *f = current_fiber();

    check_bar(f, bar, "mbar_test");
    parity &= 1u;
    if ((*bar & 1u) == parity) {
        spin();
        return 0;
    }
    order_acquire(phase_clock(bar, parity)); /* pairs with the releases of mbar_expect and of the copies */
    for (int space = 0; space < SPACE_COUNT; space++) {
        enter_engine(f, space);
        order_acquire(copies_clock(bar, parity, space));
        order_release(&f->block->proxies[space]);
    }
    order_enter(f->context);
    return 1;
}

/* ---- Issue ---- */

/* Their releases pair with the acquires in issue(). */
void fence_proxy_async(void)
{
    struct fiber *f = current_fiber();

    f->executor->stats.proxy_fences++;
    order_release(&f->block->proxies[SPACE_SHARED]);
    order_release(&f->block->proxies[SPACE_GLOBAL]);
}

static void fence_of(enum space space)
{
    struct fiber *f = current_fiber();

    f->executor->stats.proxy_fences++;
    order_release(&f->block->proxies[space]);
}

void fence_proxy_async_global(void) { fence_of(SPACE_GLOBAL); }

void fence_proxy_async_shared(void) { fence_of(SPACE_SHARED); }

static void check_copy(struct fiber *f, const char *call, const void *shared, const void *global,
                       uint32_t bytes)
{
    struct block *b = f->block;
    long long offset = (long long)((intptr_t)shared - (intptr_t)b->shared);

    if ((((uintptr_t)shared | (uintptr_t)global | bytes) & 15u) != 0) {
        terni_fiber_bug(f, "%s of thread %d: shared memory + %lld, global %p, %u bytes: not multiples of 16",
                        call, f->thread.tid, offset, global, bytes);
    }
    if (!in_shared(b, shared, bytes)) {
        terni_fiber_bug(f, "%s of thread %d: %u bytes at shared memory + %lld, which has %u", call,
                        f->thread.tid, bytes, offset, b->shared_bytes);
    }
    if (is_poisoned(global, bytes)) {
        terni_fiber_bug(f, "%s of thread %d: %u bytes at %p are not all allocated", call, f->thread.tid,
                        bytes, global);
    }
}

/* An op in the pending list, in new contexts that come after the block's proxy clocks. */
static struct bulk_op *issue(struct fiber *f, void *dst, const void *src, uint32_t bytes)
{
    struct executor *x = f->executor;
    struct bulk_op *op;

    order_enter(x->context); /* the executor's own memory */
    if (x->num_pending == x->max_pending) {
        int max = x->max_pending == 0 ? 64 : 2 * x->max_pending;
        x->pending = (struct bulk_op **)terni_executor_need(
            realloc(x->pending, (size_t)max * sizeof(struct bulk_op *)), "bulk copies");
        x->max_pending = max;
    }
    op = x->free_ops;
    if (op != NULL) {
        x->free_ops = op->next;
    } else {
        op = (struct bulk_op *)terni_executor_need(malloc(sizeof(*op)), "a bulk copy");
    }
    op->block = f->block;
    op->fiber = NULL;
    op->bar = NULL;
    op->group = 0;
    op->dst = (char *)dst;
    op->src = (const char *)src;
    op->bytes = bytes;
    op->staging = NULL;
    op->in_words = 0;
    op->next = NULL;
    for (int space = 0; space < SPACE_COUNT; space++) {
        op->contexts[space] = terni_context_take(x);
        order_enter(op->contexts[space]);
        order_acquire(&f->block->proxies[space]);
    }
    order_enter(f->context);
    x->pending[x->num_pending++] = op;
    return op;
}

void bulk_load(void *shared, const void *global, uint32_t bytes, uint64_t *bar)
{
    struct fiber *f = current_fiber();

    check_copy(f, "bulk_load", shared, global, bytes);
    check_bar(f, bar, "bulk_load");
    issue(f, shared, global, bytes)->bar = bar;
    f->block->pending_loads++;
    f->executor->stats.bulk_loads++;
    f->executor->stats.bulk_load_bytes += bytes;
}

static struct bulk_op *issue_store(const char *call, void *global, const void *shared, uint32_t bytes)
{
    struct fiber *f = current_fiber();
    struct bulk_op *op;

    check_copy(f, call, shared, global, bytes);
    op = issue(f, global, shared, bytes);
    op->fiber = f;
    op->group = f->groups;
    op->next = f->stores;
    f->stores = op;
    f->open_stores++;
    f->executor->stats.bulk_stores++;
    f->executor->stats.bulk_store_bytes += bytes;
    return op;
}

void bulk_store(void *global, const void *shared, uint32_t bytes)
{
    issue_store("bulk_store", global, shared, bytes);
}

void bulk_store_words(void *global, const void *shared, uint32_t bytes)
{
    struct bulk_op *op = issue_store("bulk_store_words", global, shared, bytes);
    struct executor *x = op->fiber->executor;

    op->in_words = 1;
    op->cut = draw_below(x, bytes / sizeof(uint32_t)) + 1;
    op->end_first = (int)draw_below(x, 2);
}

/* Memory is near enough here; only that the hint could be followed is seen to. */
void bulk_prefetch(const void *global, uint32_t bytes)
{
    struct fiber *f = current_fiber();

    if ((((uintptr_t)global | bytes) & 15u) != 0 || is_poisoned(global, bytes)) {
        terni_fiber_bug(f, "bulk_prefetch of thread %d: %u bytes at %p: no multiples of 16, or not there",
                        f->thread.tid, bytes, global);
    }
}

void bulk_commit(void)
{
    struct fiber *f = current_fiber();
    f->groups++;
    f->open_stores = 0;
    f->executor->stats.bulk_groups++;
}

/* ---- Waiting for stores ---- */

static int groups_done(const struct fiber *f)
{
    for (const struct bulk_op *op = f->stores; op != NULL; op = op->next) {
        if (op->group < f->wait_limit && !(f->waits_read && op->staging != NULL)) {
            return 0;
        }
    }
    return 1;
}

/* Acquires what the groups that are waited for did to this memory, and hands it to later copies of the block.
 */
static void acquire_groups(struct fiber *f, enum space space)
{
    char *clocks = space == SPACE_SHARED ? f->read_clock : f->write_clock;
    uint64_t *acquired = space == SPACE_SHARED ? &f->groups_read : &f->groups_written;
    uint64_t first = *acquired;

    if (first >= f->wait_limit) {
        return;
    }
    *acquired = f->wait_limit;
    if (f->wait_limit - first > SIMT_GROUP_CLOCKS) {
        first = f->wait_limit - SIMT_GROUP_CLOCKS;
    }
    for (uint64_t g = first; g < f->wait_limit; g++) {
        order_acquire(&clocks[g % SIMT_GROUP_CLOCKS]);
    }
    enter_engine(f, space);
    for (uint64_t g = first; g < f->wait_limit; g++) {
        order_acquire(&clocks[g % SIMT_GROUP_CLOCKS]);
    }
    order_release(&f->block->proxies[space]);
    order_enter(f->context);
}

static void wait_groups(int n, int waits_read)
{
    struct fiber *f = current_fiber();

    f->executor->stats.bulk_waits++;
    if (n < 0 || n > 7) {
        terni_fiber_bug(f, "bulk_wait of thread %d: %d groups, not 0 to 7", f->thread.tid, n);
    }
    if (f->groups <= (uint64_t)n) {
        return;
    }
    f->wait_limit = f->groups - (uint64_t)n;
    f->waits_read = waits_read;
    if (!groups_done(f)) {
        f->warp->ready &= ~(1u << f->lane);
        f->warp->at_bulk |= 1u << f->lane;
        terni_fiber_yield(f);
    }
    acquire_groups(f, SPACE_SHARED);
    if (!waits_read) {
        acquire_groups(f, SPACE_GLOBAL);
    }
}

void bulk_wait_read(int n) { wait_groups(n, 1); }

void bulk_wait(int n) { wait_groups(n, 0); }

void terni_bulk_check_exit(struct fiber *f)
{
    if (f->open_stores != 0) {
        terni_fiber_bug(f, "thread %d has ended with %d bulk stores that it did not commit", f->thread.tid,
                        f->open_stores);
    }
    if (f->stores != NULL) {
        terni_fiber_bug(f, "thread %d has ended before its bulk stores were %s", f->thread.tid,
                        f->stores->staging == NULL ? "read" : "written");
    }
}

/* ---- The engine ---- */

static void wake_if_done(struct fiber *f)
{
    uint32_t bit = 1u << f->lane;

    if ((f->warp->at_bulk & bit) != 0 && groups_done(f)) {
        f->warp->at_bulk &= ~bit;
        terni_warp_wake(f->warp, bit);
    }
}

static void read_source(struct executor *x, struct bulk_op *op)
{
    op->staging = (char *)terni_executor_need(malloc((size_t)op->bytes + 1), "the staging of a bulk copy");
    order_enter(op->contexts[op->fiber != NULL ? SPACE_SHARED : SPACE_GLOBAL]);
    order_copy_in(op->staging, op->src, op->bytes);
    if (op->fiber != NULL) {
        order_release(&op->fiber->read_clock[op->group % SIMT_GROUP_CLOCKS]);
    }
    order_enter(x->context);
    if (op->fiber != NULL) {
        wake_if_done(op->fiber);
    }
}

static void complete_load(struct executor *x, struct bulk_op *op)
{
    uint32_t parity = (uint32_t)*op->bar & 1u;

    for (int space = 0; space < SPACE_COUNT; space++) {
        order_enter(op->contexts[space]);
        order_release(phase_clock(op->bar, parity)); /* pairs with the acquire of mbar_test */
        order_release(copies_clock(op->bar, parity, space));
    }
    order_enter(x->context);
    op->block->pending_loads--;
    if (!bar_advance(x, op->bar, 0, -(int64_t)op->bytes)) {
        terni_report(x, op->block, "an mbarrier received over a million bytes that nobody expects");
    }
}

static void complete_store(struct executor *x, struct bulk_op *op)
{
    struct bulk_op **link = &op->fiber->stores;

    order_enter(op->contexts[SPACE_GLOBAL]);
    order_release(&op->fiber->write_clock[op->group % SIMT_GROUP_CLOCKS]); /* pairs with bulk_wait */
    order_enter(x->context);
    while (*link != op) {
        link = &(*link)->next;
    }
    *link = op->next;
    wake_if_done(op->fiber);
}

/* Words [begin, end) of a store. */
static void write_words(struct bulk_op *op, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end; i++) {
        __atomic_store_n((uint32_t *)(void *)op->dst + i, ((const uint32_t *)(const void *)op->staging)[i],
                         __ATOMIC_RELAXED);
    }
}

/* A store in words is written in two steps: in front of its cut and behind it, either of them first. Returns
 * whether this was the second. */
static int write_part(struct bulk_op *op)
{
    uint32_t words = op->bytes / (uint32_t)sizeof(uint32_t);
    int is_first = op->in_words == 1, takes_end = is_first == op->end_first;

    write_words(op, takes_end ? op->cut : 0, takes_end ? words : op->cut);
    op->in_words = 2;
    return !is_first;
}

/* Moves one pending copy, chosen at random, one step further. */
void terni_bulk_step(struct executor *x)
{
    uint32_t i = draw_below(x, (uint32_t)x->num_pending);
    struct bulk_op *op = x->pending[i];

    x->quiet = 0;
    if (op->staging == NULL) {
        read_source(x, op);
        return;
    }
    order_enter(op->contexts[op->fiber != NULL ? SPACE_GLOBAL : SPACE_SHARED]);
    if (op->in_words == 0) {
        order_copy_out(op->dst, op->staging, op->bytes);
    } else if (!write_part(op)) {
        order_enter(x->context);
        return;
    }
    order_enter(x->context);
    free(op->staging);
    if (op->fiber != NULL) {
        complete_store(x, op);
    } else {
        complete_load(x, op);
    }
    terni_context_give(x, op->contexts[SPACE_SHARED]);
    terni_context_give(x, op->contexts[SPACE_GLOBAL]);
    x->pending[i] = x->pending[--x->num_pending];
    op->next = x->free_ops;
    x->free_ops = op;
}

void terni_bulk_destroy(struct executor *x)
{
    while (x->free_ops != NULL) {
        struct bulk_op *op = x->free_ops;
        x->free_ops = op->next;
        free(op);
    }
    free(x->pending);
}
