/* SPDX-License-Identifier: Apache-2.0
 *
 * The receiving end of streams whose messages many warps read, each where its tokens ask for them. A chunk
 * goes back to its sender when all its messages have been read, and chunks go back in order; but for an
 * operation's last ones, which are kept for the next to give back (rail_is_kept).
 *
 * Every message is read in `parts` parts, by whoever. The reader that completes a chunk counts it as
 * pending; who finds no other pending looks after all that follow, until none is left: one thread at a
 * time owns the stream's release, and no completed chunk is left lying.
 *
 * Nobody waits in a circle if warps take tokens in ascending order and have said what they finished before
 * they wait for the next: of the smallest token that is not finished anywhere, the chunk that brings it
 * needs the room of chunks whose tokens are all smaller, so finished, so given back, but for less than
 * RAIL_HOLD of the ring, or what an operation before has held (rail_args.hold). A ring has room for two
 * chunks: with what is left at its end unused, which is less than a message, a chunk takes less than the
 * rest, and where something is held, no more than that leaves. A run of tokens that a warp has asked for
 * comes behind the one that it is in. */
#ifndef TERN_RAIL_HOME_H
#define TERN_RAIL_HOME_H

#include "kernels/rail.h"

/* A message of another domain, as one thread reads it. */
struct rail_letter {
    struct rail_stream s;
    uint32_t stream, j;
};

/* Message i of `total` from the domain of index x. */
TERN_DEVICE struct rail_letter rail_letter_of(const struct rail_args *p, uint32_t x, uint32_t i,
                                              uint32_t total)
{
    struct rail_letter l;
    uint32_t c = rail_channel(p, i);
    l.stream = x * p->num_channels + c;
    l.j = rail_place_in_channel(p, i);
    l.s = rail_stream_of(p, p->taken[l.stream], rail_share(p, total, c));
    return l;
}

TERN_DEVICE const char *rail_letter_at(const struct rail_args *p, const struct rail_letter *l)
{
    return rail_arrived_ring(p, l->stream) + rail_offset(p, &l->s, l->j);
}

/* One thread: whether the message is here. */
TERN_DEVICE int rail_has_come(const struct rail_args *p, const struct rail_letter *l)
{
    return RAIL_LOAD(p->tails + l->stream) >= rail_end(p, &l->s, l->j + 1);
}

/* One thread: until it is. 0: the operation is to be abandoned. */
TERN_DEVICE int rail_await(const struct rail *r, const struct rail_letter *l)
{
    return inter_await(r->f, &r->p->world.net, r->epoch, rail_far_end(r->p, l->stream), OP_AWAIT_CHUNK,
                       r->p->tails + l->stream, rail_end(r->p, &l->s, l->j + 1));
}

/* Messages of chunk k of a stream that has `num`. */
TERN_DEVICE uint32_t rail_chunk_messages(const struct rail_args *p, uint32_t num, uint32_t k)
{
    uint32_t left = num - k * p->chunk;
    return left < p->chunk ? left : p->chunk;
}

/* Parts of them. */
TERN_DEVICE uint32_t rail_chunk_parts(const struct rail_args *p, const struct rail_stream *s, uint32_t k,
                                      uint32_t parts)
{
    return rail_chunk_messages(p, s->num, k) * parts;
}

/* The owner of the release, who knows that the letter's chunk is complete: gives back what is from the first
 * on, if it is enough; later: or adds it to that, for who gives it back afterwards. */
TERN_DEVICE int rail_release_ready(const struct rail *r, const struct rail_letter *l, uint32_t parts,
                                   struct rail_piece *later)
{
    const struct rail_args *p = r->p;
    struct rail_release *e = p->releases + l->stream;
    uint32_t first = e->next, k = first;
    while (k * p->chunk < l->s.num) {
        uint32_t *count = &e->counts[k % RAIL_MAX_CHUNKS];
        uint32_t wanted = rail_chunk_parts(p, &l->s, k, parts);
        /* Most look in vain, which needs no order: who completes a chunk says afterwards that it is pending.
         * The addition pairs with those of readers in rail_complete. */
        if (k != l->j / p->chunk &&
            (ld_relaxed_sys_u32(count) < wanted || atom_add_acqrel_gpu_u32(count, 0) < wanted)) {
            break;
        }
        *count = 0; /* chunk k + RAIL_MAX_CHUNKS comes after the credit of this one */
        k++;
    }
    if (k == first) {
        return 1;
    }
    int last = k * p->chunk >= l->s.num;
    uint64_t end = rail_end(p, &l->s, last ? l->s.num : k * p->chunk);
    e->next = k;
    uint32_t due = rail_due(p, l->stream, (uint32_t)(end - rail_end(p, &l->s, first * p->chunk)),
                            rail_left(p, &l->s, end));
    if (later != 0 && due != 0) {
        later->bytes += due;
        later->end = end;
        return 1;
    }
    return due == 0 || rail_credit(r, l->stream, due, end);
}

/* One thread, with what its warp has read synchronised: `num` parts of messages of the letter's chunk have
 * been read, each of which has `parts`. 1 if these were the last: it is to be released. Not of one that is
 * kept. */
TERN_DEVICE int rail_complete(const struct rail_args *p, const struct rail_letter *l, uint32_t num,
                              uint32_t parts)
{
    uint32_t k = l->j / p->chunk;
    /* Pairs with itself: who owns the release comes after all reads of the chunk. */
    uint32_t before = atom_add_acqrel_gpu_u32(&p->releases[l->stream].counts[k % RAIL_MAX_CHUNKS], num);
    return before + num >= rail_chunk_parts(p, &l->s, k, parts);
}

/* A program that is wrong on purpose, for test/tsan_awake.sh, counts without order. */
#ifdef TERN_TEST_RELAXED_FORWARD
#define RAIL_COUNT_IN_BLOCK atom_add_cta_u32
#else
#define RAIL_COUNT_IN_BLOCK atom_add_acqrel_cta_global_u32
#endif

/* Likewise, of message j, which has one part, of a stream that threads of one block alone read: how many of
 * its chunk had been read before. */
TERN_DEVICE uint32_t rail_count_in_block(const struct rail_args *p, uint32_t stream, uint32_t j)
{
    uint32_t *count = &p->releases[stream].counts[j / p->chunk % RAIL_MAX_CHUNKS];
    return RAIL_COUNT_IN_BLOCK(count, 1); /* pairs with itself, as there */
}

/* The same thread, or one that it has synchronised with. 0: the operation is to be abandoned. */
TERN_DEVICE int rail_release(const struct rail *r, const struct rail_letter *l, uint32_t parts,
                             struct rail_piece *later)
{
    struct rail_release *e = r->p->releases + l->stream;
    /* Pairs with itself: the one that adds to nothing owns the release until it has taken all away. */
    uint32_t pending = 1;
    if (atom_add_acqrel_gpu_u32(&e->pending, 1) != 0) {
        return 1;
    }
    int ok = 1;
    while (pending != 0) {
        ok &= rail_release_ready(r, l, parts, later);
        pending = atom_add_acqrel_gpu_u32(&e->pending, 0u - pending) - pending; /* pairs with the same */
    }
    return ok;
}

/* Both. */
TERN_DEVICE int rail_finish(const struct rail *r, const struct rail_letter *l, uint32_t num, uint32_t parts)
{
    return rail_is_kept(r->p, &l->s, l->j / r->p->chunk) || !rail_complete(r->p, l, num, parts) ||
           rail_release(r, l, parts, 0);
}

#endif
