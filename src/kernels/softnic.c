/* SPDX-License-Identifier: Apache-2.0
 *
 * Software NICs (net/softnic.h), one or several. A block is an engine of one of them: its first thread takes
 * the engine's steps, the other lanes of its warp help with entries (net/softnic_together.h), and all threads
 * make the copies, of which a list is handed to them in shared memory. The engine also has its queue pairs
 * there while it runs, if they are few: memory of the device is ten times as far away. */
#include "kernels/kernels.h"
#include "net/softnic_together.h"

/* The stop word may be the host's, at the other end of a bus: it is read once in so many looks, of which one
 * that has found something counts as several, as it takes as long. */
enum { LOOKS_A_STOP = 128, LOOKS_A_FIND = 16 };

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

/* All threads. The engine's queue pairs come near, with what they have under way. */
TERN_DEVICE void fetch(struct softnic_engine *e, struct softnic_shared *s)
{
    TERN_ROLLED
    for (uint32_t i = 0; i < e->num; i++) {
        const struct softnic_qp *qp = e->qps + i * e->step;
        move(&s->qps[i], qp, sizeof(*qp));
        move(s->flights[i], qp->flights, qp->flights != NULL ? sizeof(s->flights[i]) : 0);
    }
    sync_block();
    for (uint32_t i = (uint32_t)tid(); i < e->num; i += (uint32_t)nthr()) {
        s->qps[i].flights = s->qps[i].flights != NULL ? s->flights[i] : NULL;
    }
    e->qps = s->qps;
    e->step = 1;
}

/* All threads. And go back, to where `e` has them. */
TERN_DEVICE void put_back(const struct softnic_engine *e, struct softnic_shared *s)
{
    for (uint32_t i = (uint32_t)tid(); i < e->num; i += (uint32_t)nthr()) {
        s->qps[i].flights = e->qps[i * e->step].flights;
    }
    sync_block();
    TERN_ROLLED
    for (uint32_t i = 0; i < e->num; i++) {
        move(s->qps[i].flights, s->flights[i], s->qps[i].flights != NULL ? sizeof(s->flights[i]) : 0);
        move(&e->qps[i * e->step], &s->qps[i], sizeof(s->qps[i]));
    }
}

/* One warp, with entries to be taken: brings and decodes them, unless that has been done, and takes them. */
TERN_DEVICE void take(struct softnic_engine *e, struct softnic_work *w, int found, uint64_t now)
{
    if (found == SOFTNIC_ENTRIES) {
        softnic_bring(w, (uint32_t)lane(), 32);
        sync_warp();
        softnic_decode(w, (uint32_t)lane(), 32);
        sync_warp();
    }
    uint32_t asked = softnic_take_together(e, w, now) ? SOFTNIC_TAKEN : SOFTNIC_ENTRIES;
    if (lane() == 0) {
        w->asked = asked;
    }
    sync_warp();
}

/* One warp, with entries that have arrived: 1, the list is made. */
TERN_DEVICE int arrive(struct softnic_work *w)
{
    uint32_t asked = softnic_arrive_together(w) ? SOFTNIC_COPIES : SOFTNIC_ARRIVED;
    if (lane() == 0) {
        w->asked = asked;
    }
    sync_warp();
    return asked == SOFTNIC_COPIES;
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
        if (k.found == SOFTNIC_ARRIVALS && arrive(w)) {
            return SOFTNIC_COPIES;
        }
        if (k.found != SOFTNIC_ARRIVALS) {
            take(e, w, (int)k.found, softnic_ticks(k.now));
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

/* All threads. The copies of the list; then its words. While a second warp raises those, which is fences and
 * ways to peers and back, the first one looks ahead. */
TERN_DEVICE void help(struct softnic_engine *e, struct softnic_work *w, int is_timed)
{
    const uint32_t rounds = w->hand.list.rounds;
    const int looks_ahead = rounds != 0 && nwarps() > 1, raiser = looks_ahead ? 1 : 0;
    softnic_do_list(&w->hand.list, (uint32_t)tid(), (uint32_t)nthr(), 32);
    sync_block(); /* words come behind what all have copied */
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
    sync_block();
}

TERN_DEVICE void serve(struct softnic_engine *e, struct softnic_shared *s)
{
    const int is_timed = e->qps->flights != NULL;
    uint32_t looks = LOOKS_A_STOP;
    for (;;) {
        if (warp() == 0) {
            int found = find(e, &s->work, is_timed, &looks);
            if (lane() == 0) {
                s->found = found;
            }
        }
        sync_block();
        int found = s->found;
        if (found == SOFTNIC_NOTHING) {
            return;
        }
        help(e, &s->work, is_timed);
    }
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
    if (tid() == 0) {
        s->work.asked = SOFTNIC_NOTHING;
        s->work.is_ahead = 0;
        s->work.has_warp = 1;
        s->work.hand.local = s->work.hand.remote = nothing;
        softnic_clear(&s->work.hand.list);
    }
    if (e.num <= SOFTNIC_NEAR_QPS) {
        fetch(&e, s);
    }
    sync_block();
    serve(&e, s);
    if (e.num <= SOFTNIC_NEAR_QPS) {
        put_back(&far, s);
    }
}
