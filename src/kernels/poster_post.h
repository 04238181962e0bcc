/* SPDX-License-Identifier: Apache-2.0
 *
 * Posters: how one lane hands a letter over (rail_poster.h). Most go by a queue pair that the poster has at
 * hand (queue_near.h), which it brought near when it had nothing to do yet. Each has a place there, which
 * several queue pairs may have to share (poster_way), and letters for one place go one after the other, so
 * that a lane has the place to itself. What goes by loads and stores, or to a proxy, or finds a ring full or
 * a queue that has failed, goes as from anybody. */
#ifndef TERN_POSTER_POST_H
#define TERN_POSTER_POST_H

#include <assert.h>

#include "kernels/rail_home.h"
#include "net/route_near.h"

/* What a poster is about. In shared memory: a thread that serves keeps little in registers. */
struct poster_desk {
    const struct rail_args *rail;
    const struct op_frame *f;
    uint64_t epoch;
    struct queue_near *near; /* [POSTER_NEAR] */
    uint32_t failed, reserved;
};

static_assert(sizeof(struct poster_desk) == POSTER_DESK_BYTES, "a poster's shared memory has room for it");

TERN_DEVICE struct rail poster_rail(const struct poster_desk *d)
{
    const struct rail r = {d->rail, d->f, d->epoch};
    return r;
}

/* The rank that a letter goes to, by which queue; the number of that queue pair, and its place. */
struct poster_target {
    int peer;
    uint32_t queue, number, place;
};

TERN_DEVICE struct poster_target poster_target_of(const struct rail_args *p, uint32_t stream, uint32_t what)
{
    struct poster_target t;
    uint32_t e = (uint32_t)rail_far_end(p, stream), queues = p->put_queues + p->credit_queues;
    t.peer = rail_far_rank(p, (int)e);
    t.queue = what == POSTER_PUT ? rail_put_queue(p, stream) : rail_credit_queue(p, stream);
    t.number = e * queues + t.queue;
    t.place = t.number % POSTER_NEAR;
    return t;
}

/* All lanes: queue pairs of a stream each, or of none if it is beyond all. */
TERN_DEVICE void poster_lay_out(const struct rail_args *p, struct queue_near *near, uint32_t stream,
                                uint32_t what)
{
    const int has = stream < rail_streams(p);
    const struct poster_target t = poster_target_of(p, has ? stream : 0, what);
    if (lane() < POSTER_NEAR) {
        near[lane()].queue = 0;
    }
    sync_warp();
    if (TERN_FFS(match_any_u32(has ? t.place : POSTER_NEAR + (uint32_t)lane())) - 1 == lane() && has) {
        route_bring_near(&p->world.net, t.peer, t.queue, p->arrived, near + t.place);
    }
    sync_warp();
}

/* Letters of one way go one after the other. Ways are: of a stream, over loads and stores, which set words;
 * behind all streams, of a place; behind those, of a queue pair that has no place, or a peer that a proxy
 * leads to. A place is whose queue pair is in it. A put does not take it from another: what a block puts by
 * is known from the beginning. A credit does, as lines that forward give none until they have put all. */
TERN_DEVICE uint32_t poster_way(const struct poster_desk *d, uint32_t stream, uint32_t what)
{
    const struct rail_args *p = d->rail;
    const struct poster_target t = poster_target_of(p, stream, what);
    const struct queue_near *near = d->near + t.place;
    if (!route_is_near(&p->world.net, near, t.peer, t.queue)) {
        uint32_t route = net_route_to(&p->world.net, t.peer);
        if (route == NET_ROUTE_P2P) {
            return stream;
        }
        if (route != NET_ROUTE_QUEUE || (what == POSTER_PUT && near->queue != 0)) {
            return rail_streams(p) + POSTER_NEAR + t.number;
        }
    }
    return rail_streams(p) + t.place;
}

enum poster_outcome { POSTER_FAILED, POSTER_DONE, POSTER_NOT_NEAR };

/* One lane, by the queue pair at hand: bytes of a piece, or, of a credit, none, and the word that says so
 * goes on. */
TERN_DEVICE int poster_post(const struct poster_desk *d, const struct poster_letter *letter,
                            struct queue_near *near)
{
    const struct rail_args *p = d->rail;
    const struct rail_piece *piece = &letter->piece;
    const uint32_t there = rail_at_peer(p, piece->stream);
    const int is_put = letter->what == POSTER_PUT;
    const char *dst = rail_arrived_ring(p, there) + piece->offset;
    const char *src = rail_send_ring(p, piece->stream) + piece->offset;
    const uint64_t *word = (is_put ? p->tails : p->credits) + there;
    return route_near_put_signal(near, dst, src, is_put ? (uint64_t)piece->num * p->stride : 0, word,
                                 TERN_SIGNAL_ADD, piece->bytes)
               ? POSTER_DONE
               : POSTER_NOT_NEAR;
}

/* The letter of a release. */
TERN_DEVICE struct rail_letter poster_read(const struct rail_args *p, const struct rail_piece *piece)
{
    const struct rail_letter l = {rail_stream_of(p, p->taken[piece->stream], piece->num), piece->stream,
                                  piece->first};
    return l;
}

/* The letter's queue pair is in its place, if one leads there. */
TERN_APART void poster_bring_near(const struct rail_args *p, struct queue_near *near, struct poster_target t)
{
    route_bring_near(&p->world.net, t.peer, t.queue, p->arrived, near);
}

/* One lane, whose letter has this way. A release that gives something back becomes a credit. */
TERN_APART int poster_hand_over_near(const struct poster_desk *d, struct poster_letter *letter, uint32_t way)
{
    const struct rail r = poster_rail(d);
    struct rail_piece *piece = &letter->piece;
    if (way - rail_streams(r.p) >= POSTER_NEAR) { /* also of a stream */
        return POSTER_NOT_NEAR;
    }
    const struct poster_target t = poster_target_of(r.p, piece->stream, letter->what);
    struct queue_near *near = d->near + t.place;
    if (!route_is_near(&r.p->world.net, near, t.peer, t.queue)) {
        poster_bring_near(r.p, near, t);
    }
    if (near->queue == 0) {
        return POSTER_NOT_NEAR;
    }
    if (letter->what == POSTER_RELEASE) {
        const struct rail_letter l = poster_read(r.p, piece);
        (void)rail_release(&r, &l, 1, piece); /* hands nothing over, so that nothing fails */
        if (piece->bytes == 0) {
            return POSTER_DONE;
        }
        letter->what = POSTER_CREDIT;
    }
    return poster_post(d, letter, near);
}

/* One lane: any other. */
TERN_APART int poster_hand_over(const struct poster_desk *d, const struct poster_letter *letter)
{
    const struct rail r = poster_rail(d);
    const struct rail_piece *piece = &letter->piece;
    int ok;
    if (letter->what == POSTER_RELEASE) {
        const struct rail_letter l = poster_read(r.p, piece);
        ok = rail_release(&r, &l, 1, 0);
    } else {
        ok = letter->what == POSTER_PUT ? rail_put(&r, group_of(GROUP_THREAD), piece)
                                        : rail_credit(&r, piece->stream, piece->bytes, piece->end);
    }
    return ok ? POSTER_DONE : POSTER_FAILED;
}

#endif
