/* SPDX-License-Identifier: Apache-2.0
 *
 * Posters: a warp of a block hands to the network what the others would: puts of pieces, and releases of
 * chunks that have been read (rail_home.h), which are credits. To hand over takes ten to twenty
 * microseconds, of fences and ways to memory and back that come one after the other, but all lanes of a warp
 * can do it at the same time, and those that fill pieces, or read them, go on meanwhile.
 *
 * A letter goes through a box in shared memory, of which every producer, a warp, has POSTER_BOXES in turn:
 *
 *   full[box]    the producer: the letter is written, and what it is about  ->  the poster
 *   empty[box]   the letter is with the network                            ->  the producer
 *
 * A lane of the poster looks after a box, and all that are full go together; but the letters of a stream
 * that one producer has, in the order in which they were left, and what is for one way (poster_way) one
 * letter after the other, as lanes that wait for each other would be slow. Releases of a stream come from
 * several producers and blocks, in any order (rail_home.h). A producer's last letters, one a box, say that
 * nothing more comes. When a letter cannot be handed over the rest is taken and dropped, and producers are
 * told; so nobody ever waits for a poster for longer than it waits for room in a queue. */
#ifndef TERN_RAIL_POSTER_H
#define TERN_RAIL_POSTER_H

#include "kernels/poster_post.h"

/* Shared memory: | desk | full | empty | letters | near |. */
struct poster {
    char *shared;
    uint32_t num_boxes;
};

/* One of the warps whose letters it takes. */
struct poster_producer {
    struct poster to;
    uint32_t first;    /* of its boxes */
    uint32_t box, lap; /* the next one, from 0; how often all have been */
};

TERN_DEVICE struct poster poster_at(char *shared, uint32_t producers)
{
    struct poster p = {shared, producers * POSTER_BOXES};
    return p;
}

TERN_DEVICE struct poster_desk *poster_desk_of(const struct poster *p)
{
    return (struct poster_desk *)(void *)p->shared;
}

TERN_DEVICE uint32_t *poster_failed(const struct poster *p) { return &poster_desk_of(p)->failed; }

TERN_DEVICE uint64_t *poster_full(const struct poster *p, uint32_t box)
{
    return (uint64_t *)(void *)(p->shared + sizeof(struct poster_desk)) + box;
}

TERN_DEVICE uint64_t *poster_empty(const struct poster *p, uint32_t box)
{
    return poster_full(p, p->num_boxes + box);
}

TERN_DEVICE struct poster_letter *poster_letter_in(const struct poster *p, uint32_t box)
{
    return (struct poster_letter *)(void *)poster_full(p, 2 * p->num_boxes) + box;
}

/* One thread, before the block synchronises. */
TERN_DEVICE void poster_init(const struct poster *p)
{
    for (uint32_t i = 0; i < p->num_boxes; i++) {
        mbar_init(poster_full(p, i), 1);
        mbar_init(poster_empty(p, i), 1);
    }
    *poster_failed(p) = 0;
    fence_mbar_init();
}

/* All lanes of the poster, before the first letter. rail: of `r`, best near (inter_line.h). Each has a stream
 * that the block has letters of, or one beyond all, for queue pairs at hand. */
TERN_DEVICE void poster_prepare(const struct poster *p, const struct rail *r, const struct rail_args *rail,
                                uint32_t stream, uint32_t what)
{
    struct poster_desk *d = poster_desk_of(p);
    struct queue_near *near = (struct queue_near *)(void *)poster_letter_in(p, p->num_boxes);
    if (lane() == 0) {
        d->rail = rail;
        d->f = r->f;
        d->epoch = r->epoch;
        d->near = near;
    }
    poster_lay_out(r->p, near, stream, what);
}

TERN_DEVICE struct poster_producer poster_producer_of(const struct poster *p, uint32_t number)
{
    struct poster_producer w = {*p, number * POSTER_BOXES, 0, 0};
    return w;
}

TERN_DEVICE void poster_next(struct poster_producer *w)
{
    w->box = w->box + 1 == POSTER_BOXES ? 0 : w->box + 1;
    w->lap += w->box == 0;
}

/* ---- Producers ---- */

/* All lanes, each of which has completed what the letter is about, which is lane src's. 0: an earlier letter
 * could not be handed over, and the operation is to be abandoned. */
TERN_DEVICE int poster_leave(struct poster_producer *w, int src, uint32_t what,
                             const struct rail_piece *piece)
{
    uint32_t box = w->first + w->box;
    int ok = 1;
    sync_warp();
    if (lane() == src) {
        while (w->lap > 0 && !mbar_test(poster_empty(&w->to, box), (w->lap - 1) & 1)) {
            spin();
        }
        struct poster_letter letter = {*piece, what, 0};
        *poster_letter_in(&w->to, box) = letter;
        ok = atom_add_cta_u32(poster_failed(&w->to), 0) == 0;
        mbar_expect(poster_full(&w->to, box), 0);
    }
    poster_next(w);
    return (int)shfl_u32((uint32_t)ok, src);
}

/* Nothing more comes from this warp. All lanes. */
TERN_DEVICE void poster_end(struct poster_producer *w)
{
    const struct rail_piece none = {0, 0, 0, 0, 0, 0};
    for (uint32_t i = 0; i < POSTER_BOXES; i++) {
        (void)poster_leave(w, 0, POSTER_END, &none);
    }
}

/* ---- The poster ---- */

/* So often a poster that has a letter looks for others: a microsecond, of ten that it is away then. */
enum { POSTER_LINGERS = 12 };

/* No stream: of a box in which no letter has been seen yet, or none that is about a stream. */
#define POSTER_NO_STREAM (~0u)

/* Whether no letter of this lane's stream was left before its own and is still here. `number`: of the letter
 * that the lane's box has, or will have next, as its producer counts them. A smaller number of the same
 * producer that has not been seen is there all the same: producers fill boxes in order, and lanes look one
 * after the other. All lanes. */
TERN_DEVICE int poster_is_oldest(uint32_t number, uint32_t stream)
{
    int oldest = stream != POSTER_NO_STREAM;
    for (uint32_t k = 1; k < POSTER_BOXES; k++) {
        int other = lane() / POSTER_BOXES * POSTER_BOXES + (int)(((uint32_t)lane() + k) % POSTER_BOXES);
        uint32_t its = shfl_u32(number, other), where = shfl_u32(stream, other);
        oldest &= its > number || (where != POSTER_NO_STREAM && where != stream);
    }
    return oldest;
}

/* Until all producers have said that nothing more comes. 0: the operation is to be abandoned. All lanes. A
 * function of its own: it would take registers from the other warps' code. Behind poster_prepare. */
TERN_APART int poster_serve(char *shared, uint32_t num_boxes)
{
    const struct poster p = {shared, num_boxes};
    uint32_t box = (uint32_t)lane(), lap = 0, turn = 0;
    int over = box >= num_boxes;
    while (!warp_all(over)) {
        int has = !over && mbar_poll(poster_full(&p, box), lap & 1);
        if (!warp_any(has)) {
            spin();
            continue;
        }
        /* Producers began together, and letters that are not seen now wait for those that are. */
        TERN_ROLLED
        for (uint32_t i = 0; i < POSTER_LINGERS; i++) {
            has = has || (!over && mbar_poll(poster_full(&p, box), lap & 1));
        }
        struct poster_letter *letter = poster_letter_in(&p, box);
        int ends = has && letter->what == POSTER_END;
        uint32_t stream = has && !ends ? letter->piece.stream : POSTER_NO_STREAM;
        int goes = poster_is_oldest(lap * POSTER_BOXES + box % POSTER_BOXES, stream);
        uint32_t way = goes ? poster_way(poster_desk_of(&p), stream, letter->what) : ~box;
        uint32_t same = match_any_u32(way), later = same >> turn << turn;
        goes = TERN_FFS(later != 0 ? later : same) - 1 == lane() && goes;
        if (goes && atom_add_cta_u32(poster_failed(&p), 0) == 0) {
            int end = poster_hand_over_near(poster_desk_of(&p), letter, way);
            if (end == POSTER_NOT_NEAR) {
                end = poster_hand_over(poster_desk_of(&p), letter);
            }
            if (end == POSTER_FAILED) {
                atom_add_cta_u32(poster_failed(&p), 1);
            }
        }
        if (goes || ends) {
            over = ends;
            lap++;
            mbar_expect(poster_empty(&p, box), 0);
        }
        turn = (turn + POSTER_BOXES) & 31; /* another producer is first where several have one way */
        sync_warp();
    }
    return atom_add_cta_u32(poster_failed(&p), 0) == 0;
}

#endif
