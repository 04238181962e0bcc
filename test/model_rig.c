/* SPDX-License-Identifier: Apache-2.0
 *
 * See model_rig.h. */
#include "model_rig.h"

#include <stdlib.h>
#include <string.h>

static void open_line(struct wire *w, struct card *c, uint32_t i)
{
    struct line *l = &c->lines[i];
    struct net_queue *q = &l->queue;
    struct softnic_qp *p = &c->qps[i];
    memset(l->cqe, 0xff, sizeof l->cqe);
    terni_queue_state_init(&l->state, 0);
    q->ring = p->ring = wqe_ring_of(l->ring, BLOCKS);
    q->qpn = p->qpn = 1 + i;
    q->record = l->record;
    q->doorbell = &l->doorbell;
    q->cqes = p->cqes = l->cqe;
    q->num_cqes = 1;
    q->message_bytes = WQE_MAX_BYTES;
    q->batch_blocks = 1;
    q->results_lkey = w->ranges[0].key;
    q->results = l->results;
    q->results_addr = at(l->results);
    q->local = q->remote = at(&w->list);
    q->timeout_ns = 1000000000;
    q->state = &l->state;
    p->pd = p->remote_pd = PD;
    p->record = l->record;
    p->doorbell = &l->doorbell;
    p->keys = p->remote_keys = &w->keys;
    p->flights = l->flights;
    p->link = &c->link;
    p->peer_link = &w->receiver;
}

/* Everything is one registration: the test is of time. */
int model_open(struct wire **wire, const struct softnic_rates *rates)
{
    struct wire *w = (struct wire *)aligned_alloc(64, (sizeof *w + 63) / 64 * 64);
    struct key_registration all = {0, sizeof *w, NULL, PD,
                                   KEY_LOCAL_WRITE | KEY_REMOTE_WRITE | KEY_REMOTE_READ | KEY_REMOTE_ATOMIC};
    uint32_t key;
    CHECK(w != NULL, "no memory");
    *wire = w;
    memset(w, 0, sizeof *w);
    memset(w->from, 0x5a, sizeof w->from);
    all.addr = at(w);
    all.host = w;
    OK(terni_key_table_init(&w->keys, w->entries, 4));
    OK(terni_key_table_add(&w->keys, &all, &key));
    w->list.num = 1;
    w->ranges[0].addr = at(w);
    w->ranges[0].bytes = sizeof *w;
    w->ranges[0].key = wqe_key_of(key);
    for (int i = 0; i < CARDS; i++) {
        struct card *c = &w->cards[i];
        c->args.qps = c->qps;
        c->args.num_qps = QUEUES;
        c->args.seed = 1 + (uint64_t)i;
        c->args.stop = &c->stop;
        OK(terni_softnic_model(rates, &c->args.model));
        c->engine = softnic_engine_of(&c->args, 0, 1);
        c->engine.clock = &c->now;
        for (uint32_t q = 0; q < QUEUES; q++) {
            open_line(w, c, q);
        }
    }
    return TEST_PASSED;
}

void model_part_clocks(struct wire *w, uint64_t receiver, const uint64_t *cards, uint64_t stale)
{
    w->has_clocks = 1;
    w->ahead = receiver;
    w->stale = stale;
    for (int i = 0; i < CARDS; i++) {
        w->cards[i].ahead = i < 2 ? cards[i] : 0;
        for (uint32_t q = 0; q < QUEUES; q++) {
            w->cards[i].qps[q].has_other_clock = 1;
        }
    }
}

void model_tell(struct wire *w, uint64_t now)
{
    if (w->has_clocks && now - w->told >= w->stale) {
        w->told = now;
        w->receiver.clock = softnic_ticks(now + w->ahead) | 1;
    }
}

/* All that a card does at this time: idle looks in a row are enough to have drawn every queue pair. */
void model_work(struct card *c, uint64_t now)
{
    struct softnic_work work;
    memset(&work, 0, sizeof work);
    c->now = now + c->ahead;
    for (int idle = 0; idle < 12;) {
        int found = softnic_step_alone(&c->engine, &work, c->now);
        idle = found == SOFTNIC_NOTHING ? idle + 1 : 0;
    }
}

int model_is_done(struct wire *w, int card, uint32_t queue, uint64_t ticket)
{
    const struct net_queue *q = &w->cards[card].lines[queue].queue;
    return queue_poll(q) == NET_OK && q->state->consumed >= ticket;
}
