/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine of a software NIC: one thread that takes step after step, and whoever helps it. It draws a queue
 * pair, and does there what is due, for up to SOFTNIC_BATCH entries. An entry is a flight:
 *
 *     taken  ->  arrives: keys are looked up, bytes have moved, atomics happen  ->  completes
 *
 * each at its time (softnic_model.h) and in the order of the queue pair, but for words that have a herald;
 * without a model all that is now, in one look. Bytes of a put may move before it arrives, where nobody can
 * tell (softnic_together.h). An engine never waits for a time: it looks at other queue pairs meanwhile, and
 * takes further entries of this one, up to SOFTNIC_FLIGHTS. Keys count when an operation arrives, or its
 * bytes move, and until it completes its slot is not software's: an inline payload is read from there.
 *
 * What is dear is the way to other memory and back, and a fence waits for it: so entries of a look share one
 * reading of the doorbell, one reservation of the wire, copies that are under way together (softnic_move.h)
 * and, in a collapsed queue, one completion. As dear is what one thread does alone, a microsecond for a few
 * hundred instructions: so entries are brought and decoded by many at once, each as if one began at every
 * block, and the step has each of its parts once, for a NIC's loop is not to be longer than what a processor
 * keeps of a kernel's instructions. */
#ifndef TERN_SOFTNIC_ENGINE_H
#define TERN_SOFTNIC_ENGINE_H

#include "net/softnic_complete.h"
#include "net/softnic_due.h"
#include "net/softnic_move.h"

/* An engine of `count` has each count'th queue pair. */
struct softnic_engine {
    const struct softnic_args *args;
    struct softnic_qp *qps; /* the first; the next is `step` behind */
    uint32_t step, num;     /* num may be 0 */
    uint64_t random;
    const uint64_t *clock; /* a test's, in ns; NULL: clock_ns */
};

TERN_DEVICE struct softnic_engine softnic_engine_of(const struct softnic_args *args, uint32_t index,
                                                    uint32_t count)
{
    struct softnic_engine e;
    e.args = args;
    e.qps = args->qps + index;
    e.step = count;
    e.num = index < args->num_qps ? (args->num_qps - index - 1) / count + 1 : 0;
    e.clock = NULL;
    e.random = (args->seed ^ index * 0x9e3779b97f4a7c15ull) | 1;
    return e;
}

/* Below n; xorshift64*. */
TERN_DEVICE uint32_t softnic_draw(struct softnic_engine *e, uint32_t n)
{
    uint64_t s = e->random;
    s ^= s >> 12;
    s ^= s << 25;
    s ^= s >> 27;
    e->random = s;
    return (uint32_t)((s * 0x2545f4914f6cdd1dull >> 32) * n >> 32);
}

/* What a step asks for; then the next one is taken. */
enum {
    SOFTNIC_NOTHING, /* and nothing was to be done where it looked */
    SOFTNIC_WORKED,  /* nothing */
    SOFTNIC_ENTRIES, /* softnic_bring; when all have, softnic_decode */
    SOFTNIC_COPIES,  /* softnic_do_list; when all have, rounds of words (softnic_do_round) */
    /* Only of whoever has a warp (softnic_together.h), which sets softnic_work.asked to what it has done, or
     * to what the step is to do itself. */
    SOFTNIC_DECODED, /* softnic_take_together: SOFTNIC_TAKEN, else SOFTNIC_ENTRIES */
    SOFTNIC_TAKEN,
    SOFTNIC_MOVED,    /* the same, and then copies of puts that arrive later, which have been made */
    SOFTNIC_ARRIVALS, /* softnic_arrive_moved or softnic_list_together: SOFTNIC_COPIES, which it has then
                         asked for; else SOFTNIC_ARRIVED */
    SOFTNIC_ARRIVED
};

/* Of what is posted so much comes near at once: a batch of entries of a block, and what decoding reads of the
 * last of them if it is longer. A ring of a power of two holds it. */
enum { SOFTNIC_BRING = SOFTNIC_BATCH + 1, SOFTNIC_NEAR_BLOCKS = 2 * SOFTNIC_BATCH };

/* Flights without a model: of a batch and the next. A power of two. */
enum { SOFTNIC_FREE_FLIGHTS = 2 * SOFTNIC_BATCH };

/* What a step leaves for the next, or for whoever helps; all 0 to begin with. */
struct softnic_work {
    struct softnic_qp *qp;
    uint32_t asked; /* SOFTNIC_*, by the last step */
    uint32_t num_near,
        num_first;      /* blocks that come near; of them, from the first on, entries may begin at */
    uint32_t num, done; /* entries that arrive together, and how many have, but for copies */
    uint32_t is_ahead;  /* the queue pair's next entries have been decoded already */
    uint32_t has_warp;  /* set by who has one */
    uint32_t num_early; /* of the flights that were taken last, copied ahead; from num_taken - num_early on */
    uint32_t all_moved; /* the entries that arrive have nothing to do */
    struct softnic_due *due; /* who raises words at their time; NULL: nobody */
    uint64_t until;          /* the NIC's sending side is taken */
    struct softnic_hand hand;
    struct vec16 near[SOFTNIC_NEAR_BLOCKS * WQE_BLOCK_SEGMENTS] __attribute__((aligned(WQE_BLOCK_BYTES)));
    struct softnic_flight flights[SOFTNIC_FREE_FLIGHTS]; /* without a model */
};

TERN_DEVICE struct softnic_flight *softnic_flight_of(struct softnic_work *w, uint64_t number)
{
    struct softnic_flight *flights = w->qp->flights;
    return flights != NULL ? &flights[number & (SOFTNIC_FLIGHTS - 1)]
                           : &w->flights[number & (SOFTNIC_FREE_FLIGHTS - 1)];
}

/* What a kernel's block has in shared memory (kernels/softnic.c). Behind it, if the engine has no more than
 * softnic_crew.near of them, its queue pairs, and then SOFTNIC_FLIGHTS of each. */
struct softnic_shared {
    struct softnic_args args; /* of the block's NIC */
    struct softnic_work work;
    struct softnic_due due;
    int found; /* SOFTNIC_*, what the block is to do */
    uint32_t reserved;
};
enum { SOFTNIC_NEAR_BYTES = sizeof(struct softnic_qp) + SOFTNIC_FLIGHTS * sizeof(struct softnic_flight) };

/* ---- Clocks ---- */

TERN_DEVICE uint64_t softnic_clock_now(const struct softnic_engine *e)
{
    return softnic_ticks(e->clock == NULL ? clock_ns() : *e->clock);
}

/* Where two clocks meet: what a peer needs of this one. */
TERN_DEVICE void softnic_tell(const struct softnic_qp *qp, uint64_t now)
{
    if (qp->has_other_clock) {
        st_relaxed_sys_u64(&qp->link->clock, now | 1);
    }
}

/* What the peer tells of its clock; 0: nothing, or it is the same one. One that nothing is sent to any more
 * may be gone, and its memory with it. */
TERN_DEVICE uint64_t softnic_ask(const struct softnic_qp *qp)
{
    const int asks = qp->has_other_clock && qp->state == SOFTNIC_READY && !qp->is_cut;
    return asks ? ld_relaxed_sys_u64(&qp->peer_link->clock) : 0;
}

/* Before a crossing at `now`. */
TERN_DEVICE int softnic_must_ask(const struct softnic_qp *qp, uint64_t now)
{
    return qp->has_other_clock && softnic_is_old(&qp->peer_clock, now);
}

TERN_DEVICE void softnic_hear_peer(const struct softnic_engine *e, struct softnic_qp *qp, uint64_t told)
{
    if (told != 0) {
        softnic_hear(&qp->peer_clock, told, softnic_clock_now(e));
    }
}

/* Messages to the peer. Its receiving side counts by a clock that has to be known: until it has told of it,
 * that side is free. */
TERN_DEVICE struct softnic_crossing softnic_crossing_to_peer(const struct softnic_qp *qp)
{
    struct softnic_crossing c = softnic_crossing_of(qp->link, qp->peer_link, 1);
    c.overtakes = 1;
    c.behind = qp->sends_until;
    if (qp->has_other_clock) {
        c.to = qp->peer_clock.heard_at != 0 ? c.to : NULL;
        c.to_ahead = qp->peer_clock.ahead;
    }
    return c;
}

/* ---- Taking ---- */

/* Whether there are entries that can be taken; then how much of them is to come near. */
TERN_DEVICE int softnic_find_entries(struct softnic_engine *e, struct softnic_work *w, uint64_t now)
{
    struct softnic_qp *qp = w->qp;
    const struct softnic_model *m = &e->args->model;
    softnic_tell(qp, now);
    const uint64_t room =
        qp->flights != NULL ? qp->num_ended + SOFTNIC_FLIGHTS - qp->num_taken : (uint64_t)SOFTNIC_BATCH;
    const uint64_t most = room < SOFTNIC_BATCH ? room : (uint64_t)SOFTNIC_BATCH;
    /* Before the look, whose loads are then under way at the same time. */
    const uint64_t taken = qp->flights != NULL ? ld_relaxed_sys_u64(&qp->link->sends) : 0;
    uint32_t num = softnic_look(qp);
    if (num == 0 || room == 0) {
        return 0;
    }
    if (!softnic_is_due(now + m->ahead, softnic_sends_until(qp->sends_until, now))) {
        return 0; /* it is not this one's turn again */
    }
    w->until = softnic_sends_until(taken, now);
    /* An entry is near if its first two blocks are, or there is only one. */
    w->num_near = num < SOFTNIC_BRING ? num : (uint32_t)SOFTNIC_BRING;
    w->num_first = w->num_near == num ? num : w->num_near - 1;
    w->num_first = w->num_first < most ? w->num_first : (uint32_t)most;
    return 1;
}

/* Copies what is posted, as far as it is to be decoded now. Thread `index` of `count`, as the following: what
 * a warp brings is on its way together. */
TERN_DEVICE void softnic_bring(struct softnic_work *w, uint32_t index, uint32_t count)
{
    enum { EACH = 3 }; /* of a warp: SOFTNIC_BRING blocks */
    const struct wqe_ring near = wqe_ring_of(w->near, SOFTNIC_NEAR_BLOCKS), ring = w->qp->ring;
    const uint32_t first = (uint32_t)w->qp->fetched, num = w->num_near * WQE_BLOCK_SEGMENTS;
    TERN_ROLLED
    for (uint32_t i = index; i < num; i += EACH * count) {
        struct vec16 v[EACH];
        TERN_UNROLL
        for (uint32_t k = 0; k < EACH; k++) {
            if (i + k * count < num) {
                v[k] = ld_vec16(wqe_segment(&ring, first, i + k * count));
            }
        }
        TERN_UNROLL
        for (uint32_t k = 0; k < EACH; k++) {
            if (i + k * count < num) {
                st_vec16(wqe_segment(&near, first, i + k * count), v[k]);
            }
        }
    }
}

/* All that may turn out to be entries, to the flights that they would be if those before had one block
 * each. */
TERN_DEVICE void softnic_decode(struct softnic_work *w, uint32_t index, uint32_t count)
{
    const struct softnic_qp *qp = w->qp;
    TERN_ROLLED
    for (uint32_t k = index; k < w->num_first; k += count) {
        struct softnic_flight *f = softnic_flight_of(w, qp->num_taken + k);
        f->is_moved = f->due = 0;
        f->word = f->old = NULL;
        f->syndrome =
            softnic_read(qp, wqe_ring_of(w->near, SOFTNIC_NEAR_BLOCKS), qp->fetched + k, &f->op, &f->refusal);
    }
}

/* Whether it goes over the wire, and its bytes do not come back. */
TERN_DEVICE int softnic_is_sent(const struct softnic_flight *f)
{
    return f->syndrome == SYNDROME_NONE && f->op.opcode != WQE_NOP && f->op.opcode != WQE_DUMP &&
           f->op.opcode != WQE_RDMA_READ;
}

/* Ticks of its NIC's sending side. */
TERN_DEVICE uint64_t softnic_needs(const struct softnic_model *m, const struct softnic_qp *qp,
                                   const struct softnic_flight *f)
{
    struct softnic_crossing c = softnic_crossing_of(qp->link, NULL, 1);
    if (softnic_is_sent(f)) {
        softnic_add(m, &c, f->op.bytes, m->message);
    }
    return c.sends;
}

/* Flights from `first` on leave together; until here they have what the crossing needs up to them in place of
 * times. */
TERN_DEVICE void softnic_leave(const struct softnic_model *m, struct softnic_work *w,
                               struct softnic_crossing *c, uint64_t now, uint64_t first)
{
    struct softnic_qp *qp = w->qp;
    softnic_cross(m, c, now, &qp->links_used);
    qp->sends_until = c->sends != 0 ? c->leaves + c->sends : qp->sends_until;
    TERN_ROLLED
    for (; first != qp->num_taken; first++) {
        struct softnic_flight *f = softnic_flight_of(w, first);
        if (softnic_is_sent(f)) {
            f->when.arrives = softnic_comes(m, c, f->when.arrives, f->when.completes);
            f->when.completes = f->when.arrives + m->latency;
        }
    }
}

/* Takes what has been decoded: the first, and what goes along. A read over a wire goes alone, as its time is
 * the peer's. */
TERN_DEVICE void softnic_take_off(struct softnic_engine *e, struct softnic_work *w, uint64_t now)
{
    struct softnic_qp *qp = w->qp;
    const struct softnic_model *m = &e->args->model;
    const uint64_t first = qp->num_taken;
    if (softnic_must_ask(qp, now)) {
        softnic_hear_peer(e, qp, softnic_ask(qp));
    }
    struct softnic_crossing c = softnic_crossing_to_peer(qp);
    struct softnic_flight *f = NULL;
    int is_read = 0;
    TERN_ROLLED
    for (uint32_t at = 0; at < w->num_first && !is_read; at += f->op.blocks) {
        const struct softnic_flight *decoded = softnic_flight_of(w, first + at);
        const uint64_t needs = softnic_needs(m, qp, decoded);
        if (at != 0 && !softnic_goes_along(m, now, w->until + c.sends, needs)) {
            break;
        }
        f = softnic_flight_of(w, qp->num_taken);
        if (f != decoded) {
            *f = *decoded;
        }
        f->idx = qp->fetched;
        f->syndrome = softnic_take_entry(qp, &f->op, f->syndrome);
        f->when.arrives = f->when.completes = now;
        qp->num_taken++;
        if (softnic_is_sent(f)) {
            softnic_add(m, &c, f->op.bytes, m->message);
            f->when.arrives = c.sends;
            f->when.completes = c.receives;
        }
        is_read = qp->flights != NULL && f->syndrome == SYNDROME_NONE && f->op.opcode == WQE_RDMA_READ;
    }
    const uint64_t told = softnic_ask(qp); /* for the next crossing */
    softnic_leave(m, w, &c, now, first);
    softnic_hear_peer(e, qp, told);
    if (is_read) {
        f->when = softnic_plan_read(m, qp->link, c.to, c.to_ahead, now, f->op.bytes, &qp->links_used);
    }
}

/* ---- Arriving ---- */

/* Flights whose time has come. */
TERN_DEVICE void softnic_find_arrivals(struct softnic_work *w, uint64_t now)
{
    const struct softnic_qp *qp = w->qp;
    const uint64_t under_way = qp->num_taken - qp->num_arrived;
    w->num = w->done = 0;
    w->all_moved = 1;
    TERN_ROLLED
    while (w->num < under_way && w->num < SOFTNIC_BATCH) {
        struct softnic_flight *f = softnic_flight_of(w, qp->num_arrived + w->num);
        if (!softnic_is_due(now, f->when.arrives) || (f->due != 0 && !softnic_due_collect(w->due, f))) {
            break;
        }
        w->all_moved = w->all_moved && f->is_moved;
        w->num++;
    }
}

/* SOFTNIC_LATER, or how it ended; an operation behind one that failed is not done. */
TERN_DEVICE uint32_t softnic_arrive(struct softnic_work *w, struct softnic_flight *f)
{
    struct softnic_qp *qp = w->qp;
    uint32_t syndrome = f->syndrome;
    if (qp->has_failed || qp->state == SOFTNIC_ERROR) {
        syndrome = SYNDROME_FLUSHED;
    } else if (syndrome == SYNDROME_NONE && qp->is_cut && f->op.opcode != WQE_NOP &&
               f->op.opcode != WQE_DUMP) {
        syndrome = f->refusal.syndrome = SYNDROME_TRANSPORT_RETRY;
    } else if (syndrome == SYNDROME_NONE && !f->is_moved) {
        syndrome = softnic_do(qp, &w->hand, f->idx, &f->op, &f->refusal);
    }
    return syndrome;
}

/* From entry `done` on. 0: the list is to be done first. */
TERN_DEVICE int softnic_arrive_all(struct softnic_work *w)
{
    struct softnic_qp *qp = w->qp;
    TERN_ROLLED
    for (; w->done < w->num; w->done++) {
        struct softnic_flight *f = softnic_flight_of(w, qp->num_arrived + w->done);
        uint32_t syndrome = softnic_arrive(w, f);
        if (syndrome == SOFTNIC_LATER) {
            return 0;
        }
        f->syndrome = syndrome;
        qp->has_failed |= syndrome != SYNDROME_NONE;
    }
    if (w->hand.list.num != 0 || w->hand.list.num_words != 0) {
        return 0;
    }
    qp->num_arrived += w->num;
    w->num = w->done = 0;
    return 1;
}

/* ---- Completing ---- */

/* Flights whose bytes have come, and whose time it is to complete. Where all completions overwrite one entry,
 * each gives its place to the next, unless it tells of an error. The last is written, or held until another
 * look; one that was, is written now. */
TERN_DEVICE int softnic_land_all(struct softnic_engine *e, struct softnic_work *w, uint64_t now)
{
    struct softnic_qp *qp = w->qp;
    int num = 0, is_over;
    TERN_ROLLED
    do {
        struct softnic_flight *f = softnic_flight_of(w, qp->num_ended);
        is_over = qp->num_ended == qp->num_arrived || !softnic_is_due(now, f->when.completes);
        if (softnic_must_release(qp) || (is_over && (num == 0 || e->args->hold_one_in == 0 ||
                                                     softnic_draw(e, e->args->hold_one_in) != 0))) {
            softnic_release(qp);
        }
        if (!is_over) {
            softnic_hold(qp, f->idx, &f->op, &f->refusal, f->syndrome);
            qp->num_ended++;
            num++;
        }
    } while (!is_over);
    return num != 0;
}

/* ---- Steps ---- */

/* An engine that looks ahead again and again would stay with one queue pair: so often it goes on. */
enum { SOFTNIC_STAYS_IN = 4 };

/* One look at one queue pair, or what is left of the last one when what it asked for has been done, by
 * threads that this one has synchronised with. The engine has some queue pairs. `now` in ns.
 *
 * While words of a list are on their way, the engine may look ahead: softnic_find_entries, then is_ahead if
 * there are some, bring, decode. Nothing is taken by that, and it may be forgotten. */
TERN_DEVICE int softnic_step(struct softnic_engine *e, struct softnic_work *w, uint64_t now)
{
    int worked = w->asked != SOFTNIC_NOTHING;
    now = softnic_ticks(now);
    if (w->asked == SOFTNIC_NOTHING && w->is_ahead &&
        (e->num == 1 || softnic_draw(e, SOFTNIC_STAYS_IN) != 0)) {
        w->asked = w->has_warp ? SOFTNIC_DECODED : SOFTNIC_ENTRIES;
    } else if (w->asked == SOFTNIC_NOTHING) {
        w->qp = e->qps + softnic_draw(e, e->num) * e->step;
        if (softnic_find_entries(e, w, now)) {
            w->asked = SOFTNIC_ENTRIES;
            return SOFTNIC_ENTRIES;
        }
    }
    if (w->asked != SOFTNIC_COPIES) {
        w->is_ahead = 0;
    }
    if (w->asked == SOFTNIC_DECODED) {
        return SOFTNIC_DECODED;
    }
    if (w->asked == SOFTNIC_ENTRIES) {
        softnic_take_off(e, w, now);
    }
    if (w->asked == SOFTNIC_COPIES || w->asked == SOFTNIC_MOVED) {
        softnic_clear(&w->hand.list);
    }
    if (w->asked != SOFTNIC_COPIES && w->asked != SOFTNIC_ARRIVED) {
        softnic_find_arrivals(w, now);
        if (w->num != 0 && !w->all_moved && w->has_warp) {
            w->asked = SOFTNIC_ARRIVALS;
            return SOFTNIC_ARRIVALS;
        }
    }
    worked |= w->num != 0;
    if (!softnic_arrive_all(w)) {
        w->asked = SOFTNIC_COPIES;
        return SOFTNIC_COPIES;
    }
    w->asked = SOFTNIC_NOTHING;
    worked |= softnic_land_all(e, w, now);
    return worked ? SOFTNIC_WORKED : SOFTNIC_NOTHING;
}

/* One look, and all that it asks for, by one thread alone: SOFTNIC_NOTHING, or SOFTNIC_WORKED. */
TERN_DEVICE int softnic_step_alone(struct softnic_engine *e, struct softnic_work *w, uint64_t now)
{
    const struct softnic_list *l = &w->hand.list;
    int found;
    while ((found = softnic_step(e, w, now)) == SOFTNIC_ENTRIES || found == SOFTNIC_COPIES) {
        if (found == SOFTNIC_ENTRIES) {
            softnic_bring(w, 0, 1);
            softnic_decode(w, 0, 1);
        } else {
            softnic_do_list(l, 0, 1, 1);
        }
        for (uint32_t round = 0; found == SOFTNIC_COPIES && round < l->rounds; round++) {
            softnic_do_round(w->qp, l, round, 0, 1);
        }
    }
    return found;
}

#endif
