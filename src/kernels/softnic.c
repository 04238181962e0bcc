/* SPDX-License-Identifier: Apache-2.0
 *
 * Software NICs (net/softnic.h), one or several. A block is an engine of one of them: its first thread takes
 * the engine's steps, all threads help it: they bring entries near, and make the copies, of which a list is
 * handed to them in shared memory. The engine also has its queue pairs there while it runs, if they are few:
 * memory of the device is ten times as far away. */
#include "kernels/kernels.h"
#include "net/softnic_engine.h"

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

/* One thread, until something is asked for, or the NIC is to end: then SOFTNIC_NOTHING. *looks: since the
 * stop word was read. */
TERN_DEVICE int find(struct softnic_engine *e, struct softnic_work *w, int is_timed, uint32_t *looks)
{
    for (;;) {
        int found;
        if (w->asked == SOFTNIC_NOTHING && *looks >= LOOKS_A_STOP) {
            *looks = 0;
            if (ld_relaxed_sys_u64(e->args->stop) != 0) {
                return SOFTNIC_NOTHING;
            }
        }
        found = softnic_step(e, w, is_timed ? clock_ns() : 0);
        *looks += found == SOFTNIC_NOTHING ? 1 : LOOKS_A_FIND;
        if (found == SOFTNIC_ENTRIES || found == SOFTNIC_COPIES) {
            return found;
        }
        if (found == SOFTNIC_NOTHING) {
            spin();
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

/* All threads. What a step asks for. While a second warp raises words, which is fences and ways to peers and
 * back, the first one looks ahead; the entries of both are decoded by lanes of the first. */
TERN_DEVICE void help(struct softnic_engine *e, struct softnic_work *w, int found, int is_timed)
{
    const uint32_t rounds = found == SOFTNIC_COPIES ? w->hand.list.rounds : 0;
    const int looks_ahead = rounds != 0 && nwarps() > 1, raiser = looks_ahead ? 1 : 0;
    if (found == SOFTNIC_COPIES) {
        softnic_do_list(&w->hand.list, (uint32_t)tid(), (uint32_t)nthr(), 32);
        sync_block(); /* words come behind what all have copied */
    }
    if (rounds != 0 && warp() == raiser) {
        raise_words(w, rounds);
    }
    if (warp() == 0 && (found == SOFTNIC_ENTRIES || looks_ahead)) {
        if (looks_ahead && tid() == 0 && !w->is_ahead) {
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
        if (tid() == 0) {
            s->found = find(e, &s->work, is_timed, &looks);
        }
        sync_block();
        int found = s->found;
        if (found == SOFTNIC_NOTHING) {
            return;
        }
        help(e, &s->work, found, is_timed);
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
