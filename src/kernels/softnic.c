/* SPDX-License-Identifier: Apache-2.0
 *
 * Software NICs (net/softnic.h), one or several. A block is an engine of one of them: its first thread takes
 * the engine's steps, the other lanes of its warp help with entries (net/softnic_together.h), and all threads
 * but the herald's (net/softnic_herald.h) make the copies, of which a list is handed to them in shared
 * memory. The engine also has its queue pairs there while it runs, if there is room for all: memory of the
 * device is ten times as far away. */
#include "kernels/kernels.h"
#include "net/softnic_herald.h"

/* The stop word may be the host's, at the other end of a bus: it is read once in so many looks, of which one
 * that has found something counts as several, as it takes as long. */
enum { LOOKS_A_STOP = 128, LOOKS_A_FIND = 16 };

/* Of so many warps one may be the herald. */
enum { HERALD_FROM = 3 };

/* All threads, without a barrier. Of structures, which are of whole words. */
TERN_DEVICE void move(void *to, const void *from, uint64_t bytes)
{
    uint64_t *t = (uint64_t *)to;
    const uint64_t *f = (const uint64_t *)from;
    TERN_ROLLED
    for (uint64_t i = (uint64_t)tid(); i < bytes / 8; i += (uint64_t)nthr()) {
        t[i] = f[i];
    }
}

enum { FLIGHTS_BYTES = SOFTNIC_FLIGHTS * sizeof(struct softnic_flight) };

TERN_DEVICE struct softnic_qp *near_qps(struct softnic_shared *s)
{
    return (struct softnic_qp *)(void *)(s + 1);
}

TERN_DEVICE struct softnic_flight *near_flights(struct softnic_shared *s, uint32_t num, uint32_t i)
{
    return (struct softnic_flight *)(void *)(near_qps(s) + num) + (uint64_t)i * SOFTNIC_FLIGHTS;
}

/* All threads. The engine's queue pairs come near, with what they have under way. */
TERN_DEVICE void fetch(struct softnic_engine *e, struct softnic_shared *s)
{
    struct softnic_qp *qps = near_qps(s);
    TERN_ROLLED
    for (uint32_t i = 0; i < e->num; i++) {
        const struct softnic_qp *qp = e->qps + i * e->step;
        move(&qps[i], qp, sizeof(*qp));
        move(near_flights(s, e->num, i), qp->flights, qp->flights != NULL ? (uint64_t)FLIGHTS_BYTES : 0);
    }
    sync_block();
    for (uint32_t i = (uint32_t)tid(); i < e->num; i += (uint32_t)nthr()) {
        qps[i].flights = qps[i].flights != NULL ? near_flights(s, e->num, i) : NULL;
    }
    e->qps = qps;
    e->step = 1;
}

/* All threads. And go back, to where `e` has them. */
TERN_DEVICE void put_back(const struct softnic_engine *e, struct softnic_shared *s)
{
    struct softnic_qp *qps = near_qps(s);
    for (uint32_t i = (uint32_t)tid(); i < e->num; i += (uint32_t)nthr()) {
        qps[i].flights = e->qps[i * e->step].flights;
    }
    sync_block();
    TERN_ROLLED
    for (uint32_t i = 0; i < e->num; i++) {
        struct softnic_flight *flights = qps[i].flights;
        move(flights, near_flights(s, e->num, i), flights != NULL ? (uint64_t)FLIGHTS_BYTES : 0);
        move(&e->qps[i * e->step], &qps[i], sizeof(qps[i]));
    }
}

/* One warp, with entries to be taken: brings and decodes them, unless that has been done, and takes them.
 * Returns what the step is told. */
TERN_DEVICE uint32_t take(struct softnic_engine *e, struct softnic_work *w, int found, uint64_t now)
{
    if (found == SOFTNIC_ENTRIES) {
        softnic_bring(w, (uint32_t)lane(), 32);
        sync_warp();
        softnic_decode(w, (uint32_t)lane(), 32);
        sync_warp();
    }
    return softnic_take_together(e, w, now) ? SOFTNIC_TAKEN : SOFTNIC_ENTRIES;
}

/* One warp: takes entries, or lets them arrive. 1: a list is made, of copies or words. */
TERN_DEVICE int go_on(struct softnic_engine *e, struct softnic_work *w, int found, uint64_t now)
{
    const struct softnic_qp *qp = w->qp;
    const int arrives = found == SOFTNIC_ARRIVALS;
    const uint64_t first = arrives ? qp->num_arrived : qp->num_taken;
    uint32_t asked = arrives ? (uint32_t)SOFTNIC_ARRIVED : take(e, w, found, now);
    if (arrives && qp->flights != NULL && softnic_arrive_moved(w)) {
        asked = SOFTNIC_COPIES;
    } else if (arrives || (asked == SOFTNIC_TAKEN && qp->flights != NULL)) {
        const uint32_t num = arrives ? w->num : (uint32_t)(qp->num_taken - first);
        if (softnic_list_together(w, first, num, !arrives)) {
            asked = arrives ? SOFTNIC_COPIES : SOFTNIC_MOVED;
        }
    }
    const int lists = asked == SOFTNIC_COPIES || (asked == SOFTNIC_MOVED && w->hand.list.num != 0);
    const uint32_t early = asked == SOFTNIC_MOVED ? (uint32_t)(qp->num_taken - first) : 0;
    if (!lists && early != 0) {
        herald_hand_over(w, first, early);
    }
    if (lane() == 0) {
        w->asked = asked;
        w->num_early = lists ? early : 0;
    }
    sync_warp(); /* all have looked at the list, which the next step may clear */
    return lists;
}

/* What a look of the first lane has found: SOFTNIC_*; NOTHING, the NIC is to end. */
struct look {
    uint32_t found;
    uint64_t now;
};

/* The first lane of the first warp, until there is something for the others, or the NIC is to end. *looks:
 * since the stop word was read. */
TERN_DEVICE struct look look_for_work(struct softnic_engine *e, struct softnic_work *w, int is_timed,
                                      uint32_t *looks)
{
    struct look k = {SOFTNIC_NOTHING, 0};
    for (;;) {
        if (w->asked == SOFTNIC_NOTHING && *looks >= LOOKS_A_STOP) {
            *looks = 0;
            if (ld_relaxed_sys_u64(e->args->stop) != 0) {
                k.found = SOFTNIC_NOTHING;
                return k;
            }
        }
        k.now = is_timed ? clock_ns() : 0;
        k.found = (uint32_t)softnic_step(e, w, k.now);
        if (k.found == SOFTNIC_NOTHING) {
            *looks += 1;
            spin();
            continue;
        }
        if (k.found == SOFTNIC_WORKED || k.found == SOFTNIC_COPIES) {
            *looks += LOOKS_A_FIND;
        }
        if (k.found != SOFTNIC_WORKED) {
            return k;
        }
    }
}

/* The first warp, until there are copies to be made: SOFTNIC_COPIES, or the NIC is to end:
 * SOFTNIC_NOTHING. */
TERN_DEVICE int find(struct softnic_engine *e, struct softnic_work *w, int is_timed, uint32_t *looks)
{
    for (;;) {
        struct look k = {SOFTNIC_NOTHING, 0};
        if (lane() == 0) {
            k = look_for_work(e, w, is_timed, looks);
        }
        k.found = shfl_u32(k.found, 0);
        k.now = shfl_u64(k.now, 0);
        sync_warp(); /* what the steps left is there for all */
        if (k.found == SOFTNIC_NOTHING || k.found == SOFTNIC_COPIES) {
            return (int)k.found;
        }
        if (go_on(e, w, (int)k.found, softnic_ticks(k.now))) {
            return SOFTNIC_COPIES;
        }
    }
}

/* One warp. */
TERN_DEVICE void raise_words(const struct softnic_work *w, uint32_t rounds)
{
    TERN_ROLLED
    for (uint32_t round = 0; round < rounds; round++) {
        softnic_do_round(w->qp, &w->hand.list, round, (uint32_t)lane(), 32);
        sync_warp();
    }
}

/* Threads of the block's first `warps`. The copies of the list; then its words. While a second warp raises
 * those, which is fences and ways to peers and back, the first one looks ahead. Words that are not due yet go
 * to the herald. */
TERN_DEVICE void help(struct softnic_engine *e, struct softnic_work *w, int is_timed, int warps)
{
    const uint32_t rounds = w->hand.list.rounds, early = w->num_early;
    const int looks_ahead = rounds != 0 && warps > 1, raiser = looks_ahead ? 1 : 0;
    softnic_do_list(&w->hand.list, (uint32_t)tid(), (uint32_t)warps * 32, 32);
    sync_part(32 * warps); /* words come behind what all have copied */
    if (warp() == 0 && early != 0) {
        herald_hand_over(w, w->qp->num_taken - early, early);
        if (lane() == 0) {
            w->num_early = 0; /* the next list may be of others */
        }
    }
    if (rounds != 0 && warp() == raiser) {
        raise_words(w, rounds);
    }
    if (warp() == 0 && looks_ahead) {
        if (tid() == 0 && !w->is_ahead) {
            w->is_ahead = (uint32_t)softnic_find_entries(e, w, softnic_ticks(is_timed ? clock_ns() : 0));
            w->num_near = w->is_ahead ? w->num_near : 0;
            w->num_first = w->is_ahead ? w->num_first : 0;
        }
        sync_warp();
        softnic_bring(w, (uint32_t)lane(), 32);
        sync_warp();
        softnic_decode(w, (uint32_t)lane(), 32);
    }
    sync_part(32 * warps);
}

/* All threads, before anything is done: keys may have changed. */
TERN_DEVICE void forget(struct softnic_engine *e)
{
    TERN_ROLLED
    for (uint32_t i = 0; i < e->num; i++) {
        struct softnic_flight *flights = e->qps[i * e->step].flights;
        for (uint32_t k = (uint32_t)tid(); flights != NULL && k < SOFTNIC_FLIGHTS; k += (uint32_t)nthr()) {
            flights[k].word = NULL;
            flights[k].due = 0;
        }
    }
}

/* The block's first `warps`. */
TERN_DEVICE void serve(struct softnic_engine *e, struct softnic_shared *s, int is_timed, int warps)
{
    uint32_t looks = LOOKS_A_STOP;
    for (;;) {
        if (warp() == 0) {
            int found = find(e, &s->work, is_timed, &looks);
            if (lane() == 0) {
                s->found = found;
            }
        }
        sync_part(32 * warps);
        int found = s->found;
        if (found == SOFTNIC_NOTHING) {
            break;
        }
        help(e, &s->work, is_timed, warps);
    }
    if (tid() == 0) {
        (void)atom_add_cta_u32(&s->due.ends, 1);
    }
}

/* All threads. With a wire that is modelled the last warp is the herald, if enough others are left. */
TERN_DEVICE void run(struct softnic_engine *e, struct softnic_shared *s)
{
    const int is_timed = e->qps->flights != NULL, has_herald = is_timed && nwarps() >= HERALD_FROM;
    const int warps = nwarps() - has_herald;
    if (tid() == 0) {
        s->work.due = has_herald ? &s->due : NULL;
    }
    sync_block();
    if (warp() < warps) {
        serve(e, s, is_timed, warps);
    } else {
        herald_serve(&s->due);
    }
    sync_block();
    for (uint32_t i = (uint32_t)tid(); has_herald && i < e->num; i += (uint32_t)nthr()) {
        herald_settle(&s->due, e->qps + i * e->step);
    }
    sync_block();
}

/* All threads. Which engine of which NIC this block is. */
TERN_DEVICE struct softnic_engine muster(const struct softnic_crew *crew, struct softnic_shared *s)
{
    uint32_t block = (uint32_t)bid(), first = 0, nic = 0;
    while (nic + 1 < crew->num && block >= crew->ends[nic]) {
        first = crew->ends[nic++];
    }
    if (tid() == 0) {
        s->args = crew->nics[nic];
    }
    sync_block();
    return softnic_engine_of(&s->args, block - first, crew->ends[nic] - first);
}

TERN_KERNEL(softnic, struct softnic_crew, p)
{
    const struct softnic_near nothing = {0};
    struct softnic_shared *s = (struct softnic_shared *)(void *)shared_memory();
    struct softnic_engine e = muster(p, s), far = e;
    if (e.num == 0) {
        return;
    }
    const struct softnic_due none = {0};
    if (tid() == 0) {
        s->due = none;
        s->work.asked = SOFTNIC_NOTHING;
        s->work.is_ahead = s->work.num_early = 0;
        s->work.num = s->work.done = 0;
        s->work.has_warp = 1;
        s->work.hand.local = s->work.hand.remote = nothing;
        softnic_clear(&s->work.hand.list);
    }
    if (e.num <= p->near) {
        fetch(&e, s);
        sync_block();
    }
    forget(&e);
    sync_block();
    run(&e, s);
    if (e.num <= p->near) {
        put_back(&far, s);
    }
}
