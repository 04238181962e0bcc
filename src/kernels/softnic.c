/* SPDX-License-Identifier: Apache-2.0
 *
 * Software NICs (net/softnic.h), one or several. A block is an engine of one of them: its first thread takes
 * the engine's steps, all threads make the copies, of which a list is handed to them in shared memory. The
 * engine also has its queue pairs there while it runs, if they are few: memory of the device is ten times as
 * far away. */
#include "kernels/kernels.h"
#include "net/softnic_engine.h"

/* The stop word may be the host's, at the other end of a bus: it is read once in so many looks. */
enum { LOOKS_A_STOP = 128 };

TERN_DEVICE void move_block(void *to, const void *from, uint64_t bytes)
{
    struct net_group g;
    g.kind = GROUP_BLOCK;
    g.index = (uint32_t)tid();
    g.count = (uint32_t)nthr();
    p2p_copy(g, (char *)to, (const char *)from, bytes);
}

/* All threads. The engine's queue pairs come near, with what they have under way. */
TERN_DEVICE void fetch(struct softnic_engine *e, struct softnic_shared *s)
{
    for (uint32_t i = 0; i < e->num; i++) {
        const struct softnic_qp *qp = e->qps + i * e->step;
        move_block(&s->qps[i], qp, sizeof(*qp));
        if (qp->flights != NULL) {
            move_block(s->flights[i], qp->flights, sizeof(s->flights[i]));
        }
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
    for (uint32_t i = 0; i < e->num; i++) {
        if (s->qps[i].flights != NULL) {
            move_block(s->qps[i].flights, s->flights[i], sizeof(s->flights[i]));
        }
        move_block(&e->qps[i * e->step], &s->qps[i], sizeof(s->qps[i]));
    }
}

/* One thread, until a list is to be done, or the NIC is to end: then SOFTNIC_NOTHING. */
TERN_DEVICE int find(struct softnic_engine *e, struct softnic_work *w, int is_timed)
{
    for (uint32_t looks = 0;; looks++) {
        int found;
        if (looks % LOOKS_A_STOP == 0 && ld_relaxed_sys_u64(e->args->stop) != 0) {
            return SOFTNIC_NOTHING;
        }
        found = softnic_step(e, w, is_timed ? clock_ns() : 0);
        if (found == SOFTNIC_COPIES) {
            return found;
        }
        if (found == SOFTNIC_NOTHING) {
            spin();
        }
    }
}

TERN_DEVICE void serve(struct softnic_engine *e, struct softnic_shared *s)
{
    int is_timed = e->qps->flights != NULL, found = SOFTNIC_WORKED;
    for (;;) {
        if (tid() == 0) {
            s->found = found == SOFTNIC_COPIES ? found : find(e, &s->work, is_timed);
        }
        sync_block();
        if (s->found == SOFTNIC_NOTHING) {
            return;
        }
        uint32_t rounds = s->work.hand.list.rounds;
        softnic_do_list(&s->work.hand.list, (uint32_t)tid(), (uint32_t)nthr(), 32);
        sync_block(); /* the first warp goes on with what all have copied */
        for (uint32_t round = 0; warp() == 0 && round < rounds; round++) {
            softnic_do_round(s->work.qp, &s->work.hand.list, round, (uint32_t)lane(), 32);
            sync_warp();
        }
        if (tid() == 0) {
            found = softnic_copied(e, &s->work);
        }
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
