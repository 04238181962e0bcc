/* SPDX-License-Identifier: Apache-2.0
 *
 * Low latency across domains: what goes to far ranks (ll_far.h). A combine's row, or a chunk of a dispatch's
 * (ll_chunk.h), is put from this rank's out-box to its place in the far rank's buffer, and behind it, by the
 * same queue, its arrival word is set: the far rank finds it as it finds a near rank's rows, by the same
 * words. So none waits for another on the network, and in whatever order it delivers them, rows are there
 * before their word.
 *
 * An out-box is written again two operations later. By then this rank has received the operation between, for
 * which it saw every rank enter it; each did so after it had received the one before, all rows of which had
 * arrived: whoever carried them has read them. Nobody waits for a put to complete. */
#ifndef TERN_LL_CARRY_H
#define TERN_LL_CARRY_H

#include "kernels/ll_frame.h"
#include "net/route_near.h"

/* In this rank's out-box. */
TERN_DEVICE char *ll_rows_out(const struct op_frame *f, uint64_t epoch)
{
    const struct ll_far *far = ll_far_of(f);
    return f->own + far->rows_out + (epoch & 1) * far->row_bytes;
}

/* The entry words that go to rank d. */
TERN_DEVICE uint64_t *ll_entry_out(const struct op_frame *f, const struct ll_lane *l, uint64_t epoch, int d)
{
    const struct ll_far *far = ll_far_of(f);
    return (uint64_t *)(f->own + far->entries_out + (epoch & 1) * far->entry_bytes) +
           (uint64_t)d * l->entry_words;
}

/* Nothing leads to rank d: it is masked, or the object's operations end. */
LL_DEVICE_RARE void ll_carry_failed(const struct op_frame *f, const struct ll_lane *l, uint64_t epoch, int d,
                                    int status)
{
    struct op_note note = {status, OP_AWAIT_TRANSPORT,         d, f->rank, epoch,
                           0,      (uint64_t)(int64_t)-status, 0, 0,       0};
    op_note_late(f, &note, d);
    if (ll_has_masks(l) && !ll_heard(f, l, d)) {
        ll_evict(f, l, &note);
    } else if (!ll_has_masks(l) && !op_aborted(f)) {
        op_fault(f, &note);
    }
}

/* One thread, after something was handed over for rank d. */
TERN_DEVICE void ll_carried(const struct op_frame *f, const struct ll_lane *l, uint64_t epoch, int d,
                            int status)
{
    if (TERN_RARE(status != TERN_OK)) {
        ll_carry_failed(f, l, epoch, d, status);
    }
}

/* Puts of a turn are spread over queues. */
TERN_DEVICE uint32_t ll_queue_of(const struct tern_net *net, uint32_t turn) { return turn % net->num_queues; }

/* One warp, whose stores are on their way: lane 0 looks up what putting rows for rank d takes, in case it is
 * this warp that will (ll_put_rows). */
TERN_DEVICE void ll_bring_near(const struct op_frame *f, int d, uint32_t turn, struct queue_near *near)
{
    const struct tern_net *net = &ll_far_of(f)->net;
    if (lane() == 0) {
        route_bring_near(net, d, ll_queue_of(net, turn), f->own, near);
    }
}

/* One warp: a row, or rows of a dispatch side by side, `bytes` at `from` in this rank's window, to the place
 * of rank d's buffer that is `to` in this rank's own; then their word, the i-th of d's arrivals. near: lane
 * 0's, of the same turn; or NULL. */
TERN_DEVICE void ll_put_rows(const struct op_frame *f, const struct ll_lane *l, uint64_t epoch, int d,
                             uint32_t turn, struct queue_near *near, char *to, const char *from,
                             uint32_t bytes, uint64_t i)
{
    const struct tern_net *net = &ll_far_of(f)->net;
    uint64_t *word = ll_arrival(l, f->own, epoch, i);
    /* Pairs with the acquire in ll_await: the rows come before their word. */
    int done = near != 0 && lane() == 0 &&
               route_near_put_signal(near, to, from, bytes, word, TERN_SIGNAL_SET, ll_arrived(epoch));
    if (near != 0 && warp_any(done)) {
        return;
    }
    int status = route_put_signal(net, group_of(GROUP_WARP), d, ll_queue_of(net, turn), to, from, bytes, word,
                                  sizeof(*word), TERN_SIGNAL_SET, ll_arrived(epoch), 0);
    if (lane() == 0) {
        ll_carried(f, l, epoch, d, status);
    }
    sync_warp();
}

/* Of an entry for rank d, which everybody waits for, with so many rows for d, or messages, in the same
 * operation: their chunks take queues from d on (`turn`), and this one is behind them, or the last that they
 * come to; of few chunks far away, as those for other ranks are near. */
TERN_DEVICE uint32_t ll_entry_queue(const struct tern_net *net, int d, uint32_t rows)
{
    const uint32_t chunks = (rows + LL_CHUNK - 1) / LL_CHUNK, last = net->num_queues - 1;
    const uint32_t taken = chunks < last ? chunks : last, half = net->num_queues / 2;
    return ((uint32_t)d + (taken > half ? taken : half)) % net->num_queues;
}

/* One thread: this rank is in, and its earlier kernels are over, says the first word of its entry at d. rows:
 * as of ll_entry_queue. */
TERN_DEVICE void ll_set_entry(const struct op_frame *f, const struct ll_lane *l, uint64_t epoch, int d,
                              uint32_t rows, uint32_t data)
{
    const struct tern_net *net = &ll_far_of(f)->net;
    uint64_t *own = ll_entry(l, f->own, epoch, f->rank);
    /* Pairs with the acquire in ll_await. */
    ll_carried(f, l, epoch, d,
               route_signal(net, d, ll_entry_queue(net, d, rows), own, sizeof(*own), TERN_SIGNAL_SET,
                            op_tagged(epoch, data)));
}

/* One warp: the same of a dispatch, with the words behind the first, which the warp has just written to
 * ll_entry_out. */
TERN_DEVICE void ll_put_entry(const struct op_frame *f, const struct ll_lane *l, uint64_t epoch, int d,
                              uint32_t rows, uint32_t words, uint32_t data)
{
    const struct tern_net *net = &ll_far_of(f)->net;
    uint64_t *own = ll_entry(l, f->own, epoch, f->rank);
    /* Pairs with the acquire in ll_await: the others are here when the first is. */
    int status = route_put_signal(net, group_of(GROUP_WARP), d, ll_entry_queue(net, d, rows), own + 1,
                                  ll_entry_out(f, l, epoch, d) + 1, (words - 1) * sizeof(*own), own,
                                  sizeof(*own), TERN_SIGNAL_SET, op_tagged(epoch, data), 0);
    if (lane() == 0) {
        ll_carried(f, l, epoch, d, status);
    }
    sync_warp();
}

#endif
