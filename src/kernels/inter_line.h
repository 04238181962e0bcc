/* SPDX-License-Identifier: Apache-2.0
 *
 * What dispatch and combine across domains share: which streams a warp looks after, the messages of its
 * pieces one by one, tables of the route, the end of the operation. */
#ifndef TERN_INTER_LINE_H
#define TERN_INTER_LINE_H

/* Frames number ranks from the domain's first here, and a rank's end is awaited longer than what it may
 * itself await of another domain (fault.h, inter_fault.h). */
#define OP_FIRST_RANK(f)                      ((f)->first_rank)
#define OP_AWAITS_ON(f, of, elapsed_ns, said) inter_awaits_on(f, of, elapsed_ns, said)
#define OP_EXCUSES(f, note, said)             inter_excuses(f, note, said)

#include "kernels/fault.h"

/* Whether the end of rank `of` is still awaited. It is no proof of guilt that it has not come: that rank may
 * wait for another domain itself, and its patience begins anew with every message. So when the deadline has
 * passed it is seen when that rank last said so, and a quarter later whether it has said it again. */
TERN_DEVICE int inter_awaits_on(const struct op_frame *f, int of, uint64_t elapsed_ns, uint64_t *said)
{
    if (of == f->rank) {
        return elapsed_ns <= 2 * f->timeout_ns;
    }
    if (*said == 0) {
        /* Relaxed: see inter_says. 1 is before all times of a clock: that rank has never said it, or this one
         * looks so late that whatever was said in this operation has to do. */
        *said = ld_relaxed_sys_u64(op_word(f, of, f->abort_offset, OP_SAID_WORD));
        *said = *said == 0 || elapsed_ns > f->timeout_ns + f->timeout_ns / 8 ? 1 : *said;
    }
    return elapsed_ns <= f->timeout_ns + f->timeout_ns / 4;
}

/* 1: rank note->peer waits for one of another domain, and the note is as if it had told itself. `said`: of
 * inter_awaits_on. */
TERN_DEVICE int inter_excuses(const struct op_frame *f, struct op_note *note, uint64_t said)
{
    /* Relaxed: see inter_says. */
    uint64_t word = ld_relaxed_sys_u64(op_word(f, note->peer, f->abort_offset, OP_WAITS_WORD));
    uint64_t again = ld_relaxed_sys_u64(op_word(f, note->peer, f->abort_offset, OP_SAID_WORD));
    if (note->peer == f->rank || again <= said || word >> 48 != (note->epoch & 0xffffu)) {
        return 0;
    }
    op_note_word(f, note, word);
    op_note_late(f, note, note->peer);
    return 1;
}

#include "kernels/place.h"
#include "kernels/rail_home.h"
#include "kernels/rail_poster.h"

/* All threads; then they synchronise. A copy of arguments in shared memory, for functions that are
 * called: those would read a kernel's own from memory, and again behind each acquire. Whole words. */
TERN_DEVICE void inter_bring_near(void *to, const void *from, uint64_t bytes)
{
    for (uint64_t i = (uint64_t)tid(); i < bytes / 8; i += (uint64_t)nthr()) {
        ((uint64_t *)to)[i] = ((const uint64_t *)from)[i];
    }
}

/* A warp's streams and the piece in its hands. */
struct inter_line {
    struct rail rail;
    struct rail_hand hand;
    struct rail_piece piece;
    char *ring;      /* of the piece's stream, where its messages are written */
    uint32_t given;  /* messages of the piece that were gone through */
    uint32_t number; /* of its first message in the operation: a piece is of one chunk */
};

/* All lanes: the forward blocks of this lane's stream, which is one of w, w + step, ..., are here. 0: the
 * operation is to be abandoned. */
TERN_DEVICE int inter_await_blocks(const struct rail *r, const struct route_far *far, uint32_t w,
                                   uint32_t step)
{
    uint32_t stream = w + (uint32_t)lane() * step;
    int ok = 1;
    if (stream < rail_streams(r->p)) {
        int e = rail_far_end(r->p, stream);
        ok = inter_await(r->f, &r->p->world.net, r->epoch, e, OP_AWAIT_BLOCK, r->p->world.block_tails + e,
                         *far->run);
    }
    ok = !warp_any(!ok);
    sync_warp(); /* what a lane has seen through the word is there for all */
    return ok;
}

/* Streams w, w + step, ... are this warp's, a lane each; `counts` of each domain's messages. All lanes. */
TERN_DEVICE struct inter_line inter_line_of(const struct rail *r, uint32_t w, uint32_t step,
                                            const int32_t *counts, int sends)
{
    const struct rail_piece none = {0, 0, 0, 0, 0, 0};
    struct inter_line q;
    uint32_t stream = w + (uint32_t)lane() * step, num = 0;
    if (stream < rail_streams(r->p)) {
        int e = rail_far_end(r->p, stream);
        num = rail_share(r->p, (uint32_t)counts[e], stream % r->p->num_channels);
    }
    q.rail = *r;
    q.hand = rail_hand_of(r->p, num != 0 ? stream : 0, num, sends);
    q.piece = none;
    q.ring = 0;
    q.given = 0;
    q.number = 0;
    return q;
}

/* All lanes: the next message of any piece, to be written. */
TERN_DEVICE enum rail_found inter_next(struct inter_line *q, int waits, struct stage_note *n)
{
    const struct rail_args *p = q->rail.p;
    if (q->given == q->piece.num) {
        enum rail_found found = rail_take(&q->rail, &q->hand, waits, &q->piece);
        if (found != RAIL_PIECE) {
            return found;
        }
        q->ring = rail_out_ring(&q->rail, q->piece.stream);
        q->given = 0;
        q->number = rail_number(p, q->piece.stream % p->num_channels, q->piece.first);
    }
    n->stream = q->piece.stream;
    n->num = q->piece.num;
    n->offset = q->piece.offset;
    n->bytes = q->piece.bytes;
    n->end = q->piece.end;
    n->number = q->number + q->given;
    n->at = q->ring + n->offset + (uint64_t)q->given * p->stride;
    n->token = 0;
    n->last = ++q->given == n->num;
    return RAIL_PIECE;
}

TERN_DEVICE struct rail_piece inter_piece(const struct stage_note *n)
{
    struct rail_piece piece = {n->stream, 0, n->num, n->offset, n->bytes, n->end};
    return piece;
}

/* All lanes, after the last message of a piece: it leaves. */
TERN_DEVICE int inter_put(const struct rail *r, const struct stage_note *n)
{
    struct rail_piece piece = inter_piece(n);
    return rail_put(r, group_of(GROUP_WARP), &piece);
}

/* The same, by the block's poster. */
TERN_DEVICE int inter_leave_put(struct poster_producer *w, const struct stage_note *n)
{
    struct rail_piece piece = inter_piece(n);
    return poster_leave(w, 0, POSTER_PUT, &piece);
}

/* The domain a message of this stream comes from, or goes to. */
TERN_DEVICE uint32_t inter_domain(const struct rail_args *p, const struct stage_note *n)
{
    return (uint32_t)rail_far_end(p, n->stream);
}

TERN_DEVICE uint64_t inter_tag(const struct op_frame *f, uint32_t number)
{
    return f->message.signature + number;
}

/* One thread: whether domain e does the same. */
TERN_DEVICE int inter_matches(const struct rail *r, const struct rail_trailer *t, int e, uint32_t number)
{
    uint64_t wanted = inter_tag(r->f, number);
    if (t->tag == wanted) {
        return 1;
    }
    struct op_note note = {OP_STATUS_MISMATCH,
                           OP_AWAIT_MATCH,
                           rail_note(r->f, e),
                           r->f->rank,
                           r->epoch,
                           wanted,
                           t->tag,
                           0,
                           0,
                           0};
    op_fault(r->f, &note);
    return 0;
}

/* ---- Forward blocks ---- */

/* One message's targets in this domain, and where they count from. */
struct inter_entry {
    int32_t token;
    uint32_t num; /* targets to look at; in expert layout some are none */
    const int32_t *experts, *bases;
    const struct forward_target *targets;
};

TERN_DEVICE struct inter_entry inter_entry_of(const struct route_far *far, uint32_t domain, uint32_t number,
                                              uint32_t layout, uint32_t topk, uint32_t keys)
{
    struct inter_entry e;
    const int32_t *at = far->blocks + domain * far->block_ints + (uint64_t)number * far->entry_ints;
    const struct forward_entry *head = (const struct forward_entry *)(const void *)at;
    e.token = head->token;
    e.num = layout == 0 ? (uint32_t)head->num_targets : topk;
    e.experts = at + sizeof(struct forward_entry) / sizeof(int32_t);
    e.targets = (const struct forward_target *)(const void *)(e.experts + topk);
    e.bases = far->bases + (uint64_t)domain * keys;
    return e;
}

/* The target that t is, whose base that is; none as in target_of. */
TERN_DEVICE struct target inter_target_at(const struct target_map *m, struct forward_target t, int32_t base)
{
    struct target g = {-1, 0};
    if (t.slot >= 0) {
        int rank = m->layout == 0 ? t.key : (int)((uint32_t)t.key / m->experts_a_rank);
        g.row = (int64_t)t.slot + base;
        g.rank = (uint64_t)g.row < m->capacities[rank] ? rank : -1;
    }
    return g;
}

/* Target i. */
TERN_DEVICE struct target inter_target(const struct inter_entry *e, const struct target_map *m, uint32_t i)
{
    struct forward_target t = {0, -1};
    if (i < e->num) {
        t = e->targets[i];
    }
    return inter_target_at(m, t, t.slot >= 0 ? e->bases[t.key] : 0);
}

/* Ranks, or experts, of the domain that targets name. */
TERN_DEVICE uint32_t inter_keys(const struct target_map *m, int num_ranks)
{
    return m->layout == 0 ? (uint32_t)num_ranks : (uint32_t)num_ranks * m->experts_a_rank;
}

/* ---- The end ---- */

/* All threads of every block, as op_leave: streams begin the next operation behind what this one moved. */
TERN_DEVICE void inter_leave(const struct rail *r, const struct op_table *table, const int32_t *to,
                             const int32_t *from, int ok, uint64_t begin)
{
    ok = op_await_all(r->f, r->epoch, table, ok, begin);
    if (bid() != 0) {
        return;
    }
    for (uint32_t s = (uint32_t)tid(); ok && s < rail_streams(r->p); s += (uint32_t)nthr()) {
        int e = rail_far_end(r->p, s);
        rail_advance(r->p, s, (uint32_t)to[e], (uint32_t)from[e]);
    }
    if (!ok && tid() == 0) {
        inter_tell(r->f, &r->p->world);
    }
    sync_block();
    if (tid() == 0) {
        stamp_block(r->f, 0, r->epoch, begin);
        op_finish(r->f, r->epoch);
    }
}

#endif
