/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency combine across domains: rows that go home to far ranks. Of all that go home they have the first
 * numbers (ll_order.h), and the out-box has room for row `number` behind those before it. The warp that sends
 * a row writes it there and counts it, and who counts a chunk's last one puts the chunk (ll_chunk.h). What
 * was there an operation before has been read, as everything in out-boxes.
 *
 * If there are more rows than the out-box has room for, which takes ranks that receive several times what
 * they send, every warp has one slot there, from which it puts row after row. It waits until a row has
 * arrived, which frees the slot, and counts it then; so who counts a chunk's last one only signals. */
#ifndef TERN_LL_SHIP_H
#define TERN_LL_SHIP_H

#include "kernels/ll_chunk.h"
#include "kernels/ll_home.h"

/* Among the warps of all blocks. */
TERN_DEVICE uint32_t ll_warp_number(void) { return (uint32_t)(warp() * nblk() + bid()); }

/* One warp: whether a row for this rank, which may be -1, goes by the network; railed, none does. */
TERN_DEVICE int ll_ships(const struct ll_combine_args *p, int32_t rank)
{
    return LL_WITH_FAR && !LL_WITH_RAIL && rank >= 0 && ll_is_far(&p->f, rank) && ll_goes_home(p, rank);
}

/* Rows that go to far ranks. */
TERN_DEVICE uint32_t ll_rows_away(const struct ll_combine_args *p)
{
    return LL_WITH_FAR ? (uint32_t)p->lane.totals[LL_TOTAL_AWAY] : 0;
}

/* A row for a far rank, and its chunk. */
struct ll_shipped {
    uint32_t slot, first, rows; /* at that rank; of the chunk */
    uint32_t there;             /* place of that rank's first row there */
    uint32_t turn;
    uint64_t *count;
};

TERN_DEVICE struct ll_shipped ll_shipped_of(const struct ll_combine_args *p, int32_t rank, uint32_t number)
{
    const struct ll_far *far = ll_far_of(&p->f);
    struct ll_far_home home = far->homes[rank];
    struct ll_shipped s;
    s.slot = number - home.begin;
    s.first = ll_chunk_of(s.slot);
    s.rows = ll_chunk_rows(home.rows, s.first);
    s.there = home.there;
    s.turn = s.slot / LL_CHUNK + (uint32_t)rank;
    /* One rank's chunks are LL_CHUNK rows apart; where two ranks meet, their turns keep theirs apart. */
    s.count = far->chunks + (home.begin + s.first) / LL_CHUNK + ll_turn_of(&p->f, (uint32_t)rank);
    return s;
}

/* One warp, whose row fills the slot that ll_take_slot gave it: as its chunk is complete, it leaves. */
TERN_DEVICE void ll_ship_chunk(const struct ll_combine_args *p, uint64_t epoch, int32_t rank,
                               const struct ll_shipped *s, const char *slot)
{
    uint64_t place = ll_far_of(&p->f)->near_places + s->there;
    /* By this rank's own address of the same place. */
    char *to = ll_buffer(&p->lane, p->f.own, epoch) + place * p->lane.home_stride;
    if (ll_count_row(s->count, s->rows) && !ll_is_warp_out(p)) {
        ll_put_rows(&p->f, &p->lane, epoch, rank, s->turn, 0, to + (uint64_t)s->first * p->sent_bytes,
                    slot - (s->slot - s->first) * p->sent_bytes, s->rows * p->sent_bytes, place + s->first);
    }
}

/* The same, of a row that leaves by itself. */
LL_DEVICE_RARE void ll_ship_alone(const struct ll_combine_args *p, uint64_t epoch, int32_t rank,
                                  const struct ll_shipped *s, const char *slot)
{
    const struct tern_net *net = &ll_far_of(&p->f)->net;
    uint64_t place = ll_far_of(&p->f)->near_places + s->there;
    char *to = ll_buffer(&p->lane, p->f.own, epoch) + place * p->lane.home_stride;
    uint32_t queue = s->turn % net->num_queues;
    if (ll_is_warp_out(p)) {
        return;
    }
    int status = route_put(net, group_of(GROUP_WARP), rank, queue, to + (uint64_t)s->slot * p->sent_bytes,
                           slot, p->sent_bytes, 0);
    if (lane() == 0) {
        int quiet = route_quiet_range(net, rank, rank + 1, queue, queue + 1);
        status = status == TERN_OK ? quiet : status;
        ll_carried(&p->f, &p->lane, epoch, rank, status);
    }
    /* What has not arrived is not counted. */
    if (shfl_u32((uint32_t)(status == TERN_OK), 0) && ll_count_row(s->count, s->rows) && !ll_is_warp_out(p) &&
        lane() == 0) {
        /* Pairs with the acquire in ll_await: rows that others have counted come before the word too. */
        uint64_t *word = ll_arrival(&p->lane, p->f.own, epoch, place + s->first);
        ll_carried(&p->f, &p->lane, epoch, rank,
                   route_signal(net, rank, queue, word, sizeof(*word), TERN_SIGNAL_SET, ll_arrived(epoch)));
    }
    sync_warp();
}

/* Whether rows leave by themselves. */
TERN_DEVICE int ll_ships_alone(const struct ll_combine_args *p)
{
    const struct ll_far *far = ll_far_of(&p->f);
    return TERN_RARE(far->recycles && ll_rows_away(p) > far->slots);
}

/* One warp: where row `number` leaves from. */
TERN_DEVICE char *ll_take_slot(const struct ll_combine_args *p, uint64_t epoch, uint32_t number)
{
    uint32_t slot = ll_ships_alone(p) ? ll_warp_number() : number;
    return ll_rows_out(&p->f, epoch) + (uint64_t)slot * p->sent_bytes;
}

/* One warp, which has written the row's `sent_bytes` to the slot: it goes home, with its chunk. */
TERN_DEVICE void ll_ship(const struct ll_combine_args *p, uint64_t epoch, int32_t rank, uint32_t number,
                         const char *slot)
{
    struct ll_shipped s = ll_shipped_of(p, rank, number);
    ll_open_chunk(s.count, epoch);
    if (ll_ships_alone(p)) {
        ll_ship_alone(p, epoch, rank, &s, slot);
    } else {
        ll_ship_chunk(p, epoch, rank, &s, slot);
    }
}

#endif
