/* SPDX-License-Identifier: Apache-2.0
 *
 * A batch of the software NIC taken by a warp, beside the same batch taken by a thread (together_kernel.h):
 * flights, their times over a modelled wire or without one, what is left of the wire, what is remembered of
 * the ring's blocks, and the list of what has arrived are the same, or the warp has done nothing. Entries are
 * random, near each other, mostly puts and signals. */
#include <string.h>

#include "queue_rig.h"
#include "together_kernel.h"

enum { QPN = 0x400, NEAR = 2048, NEAR_BYTES = 4000, OLD_VALUES = NEAR + NEAR_BYTES };

struct draw {
    uint32_t form;   /* of signals: AMO_ADD, AMO_SET, or both if 0 */
    uint32_t spread; /* bytes that all are within */
    uint32_t odd;    /* one in so many entries is out of the ordinary */
    int is_odd;      /* one was */
    uint32_t width;  /* of signals: 4, 8, or both if 0 */
};

static uint64_t address(struct rng *rng, const struct draw *d, uint32_t bytes, uint32_t step)
{
    return NEAR + rng_below(rng, (d->spread - bytes) / step) * step;
}

/* A put that is none: its data come back, lie in the entry, wait for what was before, or lie in no window. */
static void lay_odd(struct queue_rig *r, struct rng *rng, struct draw *d, struct wqe_rdma_args *a,
                    uint32_t idx)
{
    const struct wqe_ring *ring = &r->s->queues[0].ring;
    d->is_odd = 1;
    switch (rng_below(rng, 4)) {
    case 0:
        wqe_rdma(ring, idx, a, WQE_RDMA_READ, 0);
        return;
    case 1: {
        struct wqe_inline_args in = {QPN, WQE_CE_ALWAYS, a->remote, a->rkey, 8, {7, 8}};
        wqe_write_inline(ring, idx, &in);
        return;
    }
    case 2:
        a->fm_ce_se |= WQE_FM_FENCE;
        wqe_rdma(ring, idx, a, WQE_RDMA_WRITE, 0);
        return;
    default:
        a->remote = queue_rig_remote(RIG_HEAP_BYTES);
        wqe_rdma(ring, idx, a, WQE_RDMA_WRITE, 0);
    }
}

/* Blocks of the next entry. */
static uint32_t lay(struct queue_rig *r, struct rng *rng, struct draw *d, uint32_t idx)
{
    const struct wqe_ring *ring = &r->s->queues[0].ring;
    uint32_t kind = rng_below(rng, 8), bytes = rng_between(rng, 1, rng_below(rng, 3) ? 64 : 1000);
    if (kind == 0) {
        struct wqe_nop_args nop = {QPN, WQE_CE_ALWAYS};
        wqe_nop(ring, idx, &nop);
        return 1;
    }
    if (kind < 5) {
        struct wqe_rdma_args a = {QPN,
                                  WQE_CE_ON_ERROR,
                                  queue_rig_remote(address(rng, d, bytes, 1)),
                                  queue_rig_local(r, address(rng, d, bytes, 1)),
                                  wqe_key_of(r->rkeys[0]),
                                  wqe_key_of(r->lkeys[0]),
                                  bytes};
        if (rng_one_in(rng, d->odd)) {
            lay_odd(r, rng, d, &a, idx);
        } else {
            wqe_rdma(ring, idx, &a, WQE_RDMA_WRITE, 0);
        }
        return 1;
    }
    uint32_t form = d->form ? d->form : rng_below(rng, 2) ? AMO_ADD : AMO_SET;
    uint32_t width = d->width ? d->width : rng_below(rng, 2) ? 4 : 8;
    struct wqe_atomic_args amo = {
        QPN,
        WQE_CE_ON_ERROR,
        queue_rig_remote(address(rng, d, 8, 8)),
        queue_rig_local(r, rng_one_in(rng, d->odd) ? OLD_VALUES + 8 : OLD_VALUES),
        wqe_key_of(r->rkeys[0]),
        wqe_key_of(r->lkeys[0]),
        wqe_amo_of(form, width, width == 8 ? rng_next(rng) : rng_below(rng, ~0u), 0)};
    wqe_atomic(ring, idx, &amo);
    return wqe_blocks(wqe_atomic_segments(amo.op.opcode, width));
}

/* A wire that was never used, is free, or is taken for a while; flights from anywhere in their ring on. */
static int fill(struct queue_rig *r, struct rng *rng, struct together_side *side)
{
    struct softnic_rates rates = {50000000000ull, 50000000000ull, 0, 2000};
    uint64_t now = softnic_ticks(1000000), before = rng_below(rng, 1000);
    memset(side, 0, sizeof *side);
    OK(terni_softnic_model(&rates, &side->args.model));
    side->args.qps = &side->qp;
    side->args.num_qps = 1;
    side->random = 1;
    side->qp = r->s->qps[0];
    side->qp.watch = rng_below(rng, 2) ? side->watch : NULL;
    side->qp.flights = rng_below(rng, 4) ? side->flights : NULL;
    if (side->qp.flights == NULL) {
        memset(&side->args.model, 0, sizeof side->args.model);
    }
    side->qp.link = side->qp.flights != NULL ? &side->link : NULL;
    side->qp.peer_link = side->qp.flights != NULL && rng_below(rng, 4) ? &side->peer_link : NULL;
    side->qp.has_other_clock = side->qp.peer_link != NULL && rng_below(rng, 2);
    side->clock = 1000000 + rng_below(rng, 5);
    if (side->qp.has_other_clock && rng_below(rng, 4)) {
        side->peer_link.clock = now + softnic_ticks(rng_below(rng, 800000)) - softnic_ticks(400000);
        side->qp.peer_clock.ahead = side->peer_link.clock - now + rng_below(rng, 9) - 4;
        side->qp.peer_clock.heard_at = rng_below(rng, 3) ? now - rng_below(rng, 100000) : 0;
    }
    side->qp.num_taken = side->qp.num_arrived = side->qp.num_ended = before;
    if (rng_below(rng, 3)) {
        side->qp.links_used = 3;
        side->link.sends = now + softnic_ticks(rng_below(rng, 4000)) - softnic_ticks(2000);
        side->peer_link.receives = now + softnic_ticks(rng_below(rng, 8000)) - softnic_ticks(4000);
    }
    return TEST_PASSED;
}

static const struct softnic_flight *flight_at(const struct together_side *side, uint64_t number)
{
    return side->qp.flights != NULL ? &side->flights[number % SOFTNIC_FLIGHTS]
                                    : &side->work.flights[number % SOFTNIC_FREE_FLIGHTS];
}

static int same_flights(const struct together_side *a, const struct together_side *b, uint64_t first)
{
    CHECK(a->qp.num_taken == b->qp.num_taken && a->qp.fetched == b->qp.fetched &&
              a->qp.links_used == b->qp.links_used && a->qp.sends_until == b->qp.sends_until,
          "taken %llu and %llu, fetched 0x%llx and 0x%llx", (unsigned long long)a->qp.num_taken,
          (unsigned long long)b->qp.num_taken, (unsigned long long)a->qp.fetched,
          (unsigned long long)b->qp.fetched);
    CHECK(a->link.sends == b->link.sends && a->peer_link.receives == b->peer_link.receives,
          "the wire is taken until %llu, %llu, not %llu, %llu", (unsigned long long)a->link.sends,
          (unsigned long long)a->peer_link.receives, (unsigned long long)b->link.sends,
          (unsigned long long)b->peer_link.receives);
    CHECK(a->link.clock == b->link.clock && a->qp.peer_clock.ahead == b->qp.peer_clock.ahead &&
              a->qp.peer_clock.heard_at == b->qp.peer_clock.heard_at,
          "the peer's clock is ahead by %lld, not %lld; the own one told as %llu, not %llu",
          (long long)a->qp.peer_clock.ahead, (long long)b->qp.peer_clock.ahead,
          (unsigned long long)a->link.clock, (unsigned long long)b->link.clock);
    CHECK(memcmp(a->watch, b->watch, sizeof a->watch) == 0, "other blocks are remembered");
    for (; first != b->qp.num_taken; first++) {
        const struct softnic_flight *f = flight_at(a, first), *g = flight_at(b, first);
        CHECK(f->idx == g->idx && f->syndrome == SYNDROME_NONE && f->op.opcode == g->op.opcode &&
                  f->op.remote == g->op.remote && f->op.local == g->op.local && f->op.bytes == g->op.bytes &&
                  f->op.blocks == g->op.blocks && f->op.complete == g->op.complete &&
                  memcmp(&f->op.amo, &g->op.amo, sizeof f->op.amo) == 0,
              "flight %llu is of entry 0x%llx, opcode 0x%02x, syndrome 0x%02x, not 0x%llx, 0x%02x",
              (unsigned long long)first, (unsigned long long)f->idx, f->op.opcode, f->syndrome,
              (unsigned long long)g->idx, g->op.opcode);
        CHECK(f->when.arrives == g->when.arrives && f->when.completes == g->when.completes,
              "flight %llu arrives at %llu, not %llu", (unsigned long long)first,
              (unsigned long long)f->when.arrives, (unsigned long long)g->when.arrives);
    }
    return TEST_PASSED;
}

/* Copies may have come early, and then those of entries that have not arrived yet, too. */
static int same_list(const struct together_side *a, const struct together_side *b, int is_early)
{
    const struct softnic_list *l = &a->work.hand.list, *m = &b->work.hand.list;
    const struct softnic_list *copies = is_early ? &a->early : l;
    CHECK(is_early ? l->num == 0 && copies->num >= m->num : l->num == m->num, "%u copies, %u early, not %u",
          l->num, copies->num, m->num);
    CHECK(l->num_words == m->num_words && l->rounds == m->rounds, "%u words, %u rounds; not %u, %u",
          l->num_words, l->rounds, m->num_words, m->rounds);
    for (uint32_t i = 0; i < m->num; i++) {
        const struct softnic_copy *c = &copies->copies[i], *d = &m->copies[i];
        CHECK(c->to == d->to && c->from == d->from && c->at == d->at && c->mask == d->mask &&
                  c->bytes == d->bytes,
              "copy %u is another", i);
    }
    for (uint32_t i = 0; i < m->num_words; i++) {
        const struct softnic_word *v = &l->words[i], *w = &m->words[i];
        CHECK(v->op - &flight_at(a, 0)->op == w->op - &flight_at(b, 0)->op && v->word == w->word &&
                  v->to == w->to && v->bytes == w->bytes && v->round == w->round && v->drops == w->drops,
              "word %u is another", i);
    }
    return TEST_PASSED;
}

struct counts {
    int taken, left, made, apart, early;
};

/* What the thread has listed of all that has arrived, in one list, a warp lists, too. */
static int compare(const struct together_side *a, const struct together_side *b, uint64_t first,
                   uint64_t fetched, const uint32_t *results, const struct draw *d, struct counts *n)
{
    const struct softnic_list *m = &b->work.hand.list;
    int is_whole = b->work.num != 0 && b->work.done == b->work.num && m->rounds <= 1;
    n->taken += results[0] != 0;
    n->left += results[0] == 0;
    if (!results[0]) {
        CHECK(d->is_odd, "a batch without anything odd was not taken");
        CHECK(a->qp.num_taken == first && a->qp.fetched == fetched, "what was not taken was moved");
        return TEST_PASSED;
    }
    PASS(same_flights(a, b, first));
    n->made += results[1] != 0 && m->num + m->num_words > 0;
    n->apart += results[1] == 0;
    n->early += results[2] != 0 && a->early.num != 0 && b->work.num != 0;
    if (!results[1]) {
        CHECK(d->is_odd || !is_whole, "%u that arrive together were not listed", b->work.num);
        return TEST_PASSED;
    }
    if (b->work.num == 0) { /* nothing that moves, and the thread is through */
        CHECK(a->work.hand.list.num == 0 && a->work.hand.list.num_words == 0, "a list of nothing");
        return TEST_PASSED;
    }
    CHECK(a->work.num == b->work.num && a->work.done == b->work.done, "%u listed of %u, not %u of %u",
          a->work.done, a->work.num, b->work.done, b->work.num);
    return same_list(a, b, results[2] != 0);
}

static int one(struct queue_rig *r, struct rng *rng, struct counts *n)
{
    struct draw d = {rng_below(rng, 3) == 0 ? 0
                     : rng_below(rng, 2)    ? AMO_ADD
                                            : AMO_SET,
                     rng_below(rng, 2) ? 1500 : NEAR_BYTES, rng_below(rng, 2) ? 1000 : 12, 0,
                     rng_below(rng, 4)   ? 8
                     : rng_below(rng, 2) ? 4
                                         : 0};
    struct together_args args;
    struct launch launch = {0, 1, 32, 0, &args, sizeof args};
    uint64_t first, fetched, end = r->shape.first, most = rng_between(rng, 1, SOFTNIC_BATCH);
    void *memory;
    int result;
    while (end < r->shape.first + most) {
        end += lay(r, rng, &d, (uint32_t)end);
    }
    OK(r->m->ops->alloc(r->m, TOGETHER_ENGINES * sizeof *args.sides + 3 * sizeof *args.results, &memory));
    memset(&args, 0, sizeof args);
    args.sides = (struct together_side *)memory;
    args.results = (uint32_t *)(void *)(args.sides + TOGETHER_ENGINES);
    args.is_early = rng_below(rng, 2);
    args.now = softnic_ticks(1000000);
    args.then = args.now + softnic_ticks(rng_below(rng, 6000));
    memcpy(args.keys[0], r->lkeys, sizeof args.keys[0]);
    memcpy(args.keys[1], r->rkeys, sizeof args.keys[1]);
    r->s->records[0].words[DOORBELL_RECORD_SEND] = doorbell_record((uint32_t)end);
    r->s->doorbells[0] = doorbell_value(QPN, (uint32_t)end);
    uint64_t seed = rng_next(rng);
    for (int i = 0; i < TOGETHER_ENGINES; i++) {
        struct rng same = {seed};
        PASS(fill(r, &same, &args.sides[i]));
    }
    first = args.sides[TOGETHER_WARP].qp.num_taken;
    fetched = args.sides[TOGETHER_WARP].qp.fetched;
    OK(terni_cpu_launch_function(r->m, tern_cpu_together, "together", &launch, r->app));
    PASS(queue_rig_wait(r));
    result = compare(&args.sides[TOGETHER_WARP], &args.sides[TOGETHER_THREAD], first, fetched, args.results,
                     &d, n);
    r->m->ops->free(r->m, memory);
    return result;
}

static int batches(struct test *t)
{
    struct counts n = {0, 0, 0, 0, 0};
    int last = test_scaled(t, 1000);
    for (int seed = 1; seed <= last; seed++) {
        struct rng rng = {(uint64_t)seed};
        struct queue_shape shape = {0};
        struct queue_rig r;
        int result;
        shape.blocks = TOGETHER_BLOCKS;
        shape.first =
            0x10000u - rng_between(&rng, 1, TOGETHER_BLOCKS); /* near the end of the ring, and of 16 bits */
        result = queue_rig_open(&r, (uint64_t)seed, &shape);
        result = result ? result : one(&r, &rng, &n);
        queue_rig_close(&r);
        if (result) {
            test_note(__FILE__, __LINE__, "seed %d", seed);
            return result;
        }
    }
    /* None of the ways is left out. */
    CHECK(n.taken > last / 2 && n.left > 0 && n.made > last / 10 && n.apart > last / 20 &&
              n.early > last / 50,
          "of %d batches %d taken, %d left, %d listed, %d not, %d early", last, n.taken, n.left, n.made,
          n.apart, n.early);
    test_detail(t, "of %d batches %d taken, %d listed, of %d puts early", last, n.taken, n.made, n.early);
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "a batch by a warp is as by a thread", batches);
    return test_end(&t);
}
