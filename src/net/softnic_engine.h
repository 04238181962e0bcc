/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine of a software NIC: one thread that takes step after step, and whoever copies for it. It draws a
 * queue pair, and does there what is due, for up to SOFTNIC_BATCH entries. Without a model an entry is done
 * and completed when it is taken. With one it is first a flight:
 *
 *     taken  ->  arrives: keys are looked up, bytes move, atomics happen  ->  completes
 *
 * each at its time (softnic_model.h) and in the order of the queue pair. An engine never waits for a time: it
 * looks at other queue pairs meanwhile, and takes further entries of this one, up to SOFTNIC_FLIGHTS. Keys
 * count when an operation arrives, and until it completes its slot is not software's: an inline payload is
 * read from there.
 *
 * What is dear is the way to other memory and back, and a fence waits for it: so entries of a look share one
 * reading of the doorbell, one reservation of the wire, copies that are under way together (softnic_move.h)
 * and, in a collapsed queue, one completion. */
#ifndef TERN_SOFTNIC_ENGINE_H
#define TERN_SOFTNIC_ENGINE_H

#include "net/softnic_complete.h"
#include "net/softnic_move.h"

/* An engine of `count` has each count'th queue pair. */
struct softnic_engine {
    const struct softnic_args *args;
    struct softnic_qp *qps; /* the first; the next is `step` behind */
    uint32_t step, num;     /* num may be 0 */
    uint64_t random;
};

TERN_DEVICE struct softnic_engine softnic_engine_of(const struct softnic_args *args, uint32_t index,
                                                    uint32_t count)
{
    struct softnic_engine e;
    e.args = args;
    e.qps = args->qps + index;
    e.step = count;
    e.num = index < args->num_qps ? (args->num_qps - index - 1) / count + 1 : 0;
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

enum {
    SOFTNIC_NOTHING, /* was to be done where it looked */
    SOFTNIC_WORKED,
    SOFTNIC_COPIES /* hand.list is to be done now, copies before words; then softnic_copied is called */
};

/* Of what is posted so much comes near at once: a batch of entries of a block, and what decoding reads of the
 * last of them if it is longer. A ring of a power of two holds it. */
enum { SOFTNIC_BRING = SOFTNIC_BATCH + 1, SOFTNIC_NEAR_BLOCKS = 2 * SOFTNIC_BATCH };

/* What a step leaves for the next, or for whoever copies; all 0 to begin with. */
struct softnic_work {
    struct softnic_qp *qp;
    uint32_t num, done; /* entries that are done together, and how many are, but for copies */
    struct softnic_hand hand;
    struct vec16 near[SOFTNIC_NEAR_BLOCKS * WQE_BLOCK_SEGMENTS] __attribute__((aligned(WQE_BLOCK_BYTES)));
    struct softnic_flight flights[SOFTNIC_BATCH]; /* without a model */
};

/* One of several that complete now. Where all completions overwrite one entry, it is held for one that
 * follows to take its place, unless it tells of an error. */
TERN_DEVICE void softnic_end(struct softnic_engine *e, struct softnic_qp *qp, const struct softnic_flight *f)
{
    int hold = e->args->hold_one_in != 0 && softnic_draw(e, e->args->hold_one_in) == 0;
    hold |= qp->num_cqes == 0 && f->syndrome == SYNDROME_NONE;
    softnic_complete(qp, f->idx, &f->op, &f->refusal, f->syndrome, hold);
}

/* All of them have: what the last left is written, or held for longer. */
TERN_DEVICE void softnic_end_all(struct softnic_engine *e, struct softnic_qp *qp)
{
    if (e->args->hold_one_in == 0 || (qp->num_cqes == 0 && softnic_draw(e, e->args->hold_one_in) != 0)) {
        softnic_release(qp);
    }
}

/* Copies what is posted, as far as it is to be decoded now; the index where the copies end. Loads of several
 * blocks are under way together. */
TERN_DEVICE uint64_t softnic_bring(struct softnic_work *w)
{
    enum { AT_ONCE = 4, SEGMENTS = AT_ONCE * WQE_BLOCK_SEGMENTS };
    const struct softnic_qp *qp = w->qp;
    const struct wqe_ring near = wqe_ring_of(w->near, SOFTNIC_NEAR_BLOCKS), ring = qp->ring;
    uint64_t num = qp->posted - qp->fetched;
    uint32_t first = (uint32_t)qp->fetched;
    num = num < SOFTNIC_BRING ? num : (uint64_t)SOFTNIC_BRING;
    for (uint32_t i = 0; i < num; i += AT_ONCE) {
        struct vec16 v[SEGMENTS];
        TERN_UNROLL
        for (uint32_t k = 0; k < SEGMENTS; k++) {
            if (i + k / WQE_BLOCK_SEGMENTS < num) {
                v[k] = ld_vec16(wqe_segment(&ring, first + i, k));
            }
        }
        TERN_UNROLL
        for (uint32_t k = 0; k < SEGMENTS; k++) {
            if (i + k / WQE_BLOCK_SEGMENTS < num) {
                st_vec16(wqe_segment(&near, first + i, k), v[k]);
            }
        }
    }
    return qp->fetched + num;
}

/* Whether the next entry is near, as far as it has to be. A long one before it may have ended past `end`. */
TERN_DEVICE int softnic_is_near(const struct softnic_qp *qp, uint64_t end)
{
    return qp->fetched < end && (end - qp->fetched >= 2 || end == qp->posted);
}

TERN_DEVICE void softnic_begin(struct softnic_work *w, struct softnic_flight *f)
{
    f->syndrome = softnic_fetch(w->qp, wqe_ring_of(w->near, SOFTNIC_NEAR_BLOCKS), &f->op, &f->refusal);
    f->idx = w->qp->fetched - f->op.blocks;
}

TERN_DEVICE struct softnic_flight *softnic_flight_of(const struct softnic_qp *qp, uint64_t number)
{
    return &qp->flights[number & (SOFTNIC_FLIGHTS - 1)];
}

/* A kernel's block has these in shared memory (kernels/softnic.c), if its engine has no more queue pairs. */
enum { SOFTNIC_NEAR_QPS = 2 };
struct softnic_shared {
    struct softnic_args args; /* of the block's NIC */
    struct softnic_work work;
    int found; /* SOFTNIC_*, what the block is to do */
    uint32_t reserved;
    struct softnic_qp qps[SOFTNIC_NEAR_QPS];
    struct softnic_flight flights[SOFTNIC_NEAR_QPS][SOFTNIC_FLIGHTS];
};
enum { SOFTNIC_SHARED_BYTES = sizeof(struct softnic_shared) };

/* ---- Doing what is due ---- */

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
    } else if (syndrome == SYNDROME_NONE) {
        syndrome = softnic_do(qp, &w->hand, f->idx, &f->op, &f->refusal);
    }
    return syndrome;
}

/* From entry `done` on. */
TERN_DEVICE int softnic_go_on(struct softnic_engine *e, struct softnic_work *w)
{
    struct softnic_qp *qp = w->qp;
    for (; w->done < w->num; w->done++) {
        struct softnic_flight *f =
            qp->flights != NULL ? softnic_flight_of(qp, qp->num_arrived + w->done) : &w->flights[w->done];
        uint32_t syndrome = softnic_arrive(w, f);
        if (syndrome == SOFTNIC_LATER) {
            return SOFTNIC_COPIES;
        }
        f->syndrome = syndrome;
        qp->has_failed |= syndrome != SYNDROME_NONE;
    }
    if (w->hand.list.num != 0 || w->hand.list.num_words != 0) {
        return SOFTNIC_COPIES;
    }
    if (qp->flights != NULL) {
        qp->num_arrived += w->num;
        return SOFTNIC_WORKED;
    }
    for (uint32_t i = 0; i < w->num; i++) {
        softnic_end(e, qp, &w->flights[i]);
    }
    softnic_end_all(e, qp);
    return SOFTNIC_WORKED;
}

/* ---- Without a model ---- */

TERN_DEVICE int softnic_step_at_once(struct softnic_engine *e, struct softnic_work *w)
{
    struct softnic_qp *qp = w->qp;
    uint64_t end;
    if (softnic_look(qp) == 0) {
        softnic_release(qp);
        return SOFTNIC_NOTHING;
    }
    end = softnic_bring(w);
    for (w->num = 0; w->num < SOFTNIC_BATCH && softnic_is_near(qp, end); w->num++) {
        softnic_begin(w, &w->flights[w->num]);
    }
    w->done = 0;
    return softnic_go_on(e, w);
}

/* ---- With one ---- */

/* Whether it goes over the wire, and its bytes do not come back. */
TERN_DEVICE int softnic_is_sent(const struct softnic_flight *f)
{
    return f->syndrome == SYNDROME_NONE && f->op.opcode != WQE_NOP && f->op.opcode != WQE_DUMP &&
           f->op.opcode != WQE_RDMA_READ;
}

/* Flights from `first` to `end` leave together; until here they have what the crossing needs up to them in
 * place of times. */
TERN_DEVICE void softnic_leave(const struct softnic_model *m, struct softnic_qp *qp,
                               struct softnic_crossing *c, uint64_t now, uint64_t first, uint64_t end)
{
    softnic_cross(m, c, now, &qp->links_used);
    for (; first != end; first++) {
        struct softnic_flight *f = softnic_flight_of(qp, first);
        if (softnic_is_sent(f)) {
            f->when.arrives = softnic_comes(m, c, f->when.arrives, f->when.completes);
            f->when.completes = f->when.arrives + m->latency;
        }
    }
}

/* Takes what is posted, as far as the sender is not taken too far ahead. A read goes alone, as its time is
 * the peer's. */
TERN_DEVICE int softnic_take_off(struct softnic_engine *e, struct softnic_work *w, uint64_t now)
{
    struct softnic_qp *qp = w->qp;
    const struct softnic_model *m = &e->args->model;
    struct softnic_crossing c = softnic_crossing_of(qp->link, qp->peer_link, 1);
    const uint64_t first = qp->num_taken, room = qp->num_ended + SOFTNIC_FLIGHTS - first;
    const uint64_t most = first + (room < SOFTNIC_BATCH ? room : (uint64_t)SOFTNIC_BATCH);
    struct softnic_flight *f = NULL;
    uint64_t until, end;
    if (room == 0 || softnic_look(qp) == 0) {
        return 0;
    }
    until = softnic_sends_until(qp->link, now);
    if (!softnic_is_due(now + m->ahead, until)) {
        return 0;
    }
    end = softnic_bring(w);
    while (qp->num_taken != most && softnic_is_near(qp, end) &&
           softnic_is_due(now + m->ahead, until + c.sends)) {
        f = softnic_flight_of(qp, qp->num_taken++);
        softnic_begin(w, f);
        f->when.arrives = f->when.completes = now;
        if (softnic_is_sent(f)) {
            softnic_add(m, &c, f->op.bytes, m->message);
            f->when.arrives = c.sends;
            f->when.completes = c.receives;
        } else if (f->syndrome == SYNDROME_NONE && f->op.opcode == WQE_RDMA_READ) {
            break;
        }
    }
    softnic_leave(m, qp, &c, now, first, qp->num_taken);
    if (f->syndrome == SYNDROME_NONE && f->op.opcode == WQE_RDMA_READ) {
        f->when = softnic_plan_read(m, qp->link, qp->peer_link, now, f->op.bytes, &qp->links_used);
    }
    return 1;
}

/* Flights whose bytes have come, and whose time it is to complete. */
TERN_DEVICE int softnic_land_all(struct softnic_engine *e, struct softnic_qp *qp, uint64_t now)
{
    uint64_t num = 0, most = qp->num_arrived - qp->num_ended;
    while (num < most && softnic_is_due(now, softnic_flight_of(qp, qp->num_ended + num)->when.completes)) {
        num++;
    }
    for (uint64_t i = 0; i < num; i++) {
        softnic_end(e, qp, softnic_flight_of(qp, qp->num_ended));
        qp->num_ended++;
    }
    if (num != 0) {
        softnic_end_all(e, qp);
    }
    return num != 0;
}

TERN_DEVICE int softnic_step_in_time(struct softnic_engine *e, struct softnic_work *w, uint64_t now)
{
    struct softnic_qp *qp = w->qp;
    int worked = softnic_land_all(e, qp, now);
    uint64_t under_way;
    worked |= softnic_take_off(e, w, now);
    under_way = qp->num_taken - qp->num_arrived;
    w->num = w->done = 0;
    while (w->num < under_way && w->num < SOFTNIC_BATCH &&
           softnic_is_due(now, softnic_flight_of(qp, qp->num_arrived + w->num)->when.arrives)) {
        w->num++;
    }
    if (w->num != 0) {
        return softnic_go_on(e, w);
    }
    if (!worked) {
        softnic_release(qp);
    }
    return worked ? SOFTNIC_WORKED : SOFTNIC_NOTHING;
}

/* ---- Either ---- */

/* The last step's list, by one thread alone. */
TERN_DEVICE void softnic_do_alone(struct softnic_work *w)
{
    const struct softnic_list *l = &w->hand.list;
    softnic_do_list(l, 0, 1, 1);
    for (uint32_t round = 0; round < l->rounds; round++) {
        softnic_do_round(w->qp, l, round, 0, 1);
    }
}

/* One look at one queue pair; the engine has some. `now` in ns. */
TERN_DEVICE int softnic_step(struct softnic_engine *e, struct softnic_work *w, uint64_t now)
{
    w->qp = e->qps + softnic_draw(e, e->num) * e->step;
    return w->qp->flights != NULL ? softnic_step_in_time(e, w, softnic_ticks(now))
                                  : softnic_step_at_once(e, w);
}

/* The last step's list is done, words too, by threads that this one has synchronised with. */
TERN_DEVICE int softnic_copied(struct softnic_engine *e, struct softnic_work *w)
{
    softnic_clear(&w->hand.list);
    return softnic_go_on(e, w);
}

#endif
