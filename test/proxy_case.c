/* SPDX-License-Identifier: Apache-2.0
 *
 * Drawing programs, and their reference: what each step does to the images, one after the other. */
#include "proxy_case.h"

#include <stdlib.h>
#include <string.h>

enum {
    SOURCE_AT = 0,
    SOURCE_BYTES = 128 << 10,
    OUTBOX_AT = SOURCE_AT + SOURCE_BYTES,
    OUTBOX_BYTES = 128 << 10,
    INBOX_AT = OUTBOX_AT + OUTBOX_BYTES,
    INBOX_BYTES = 384 << 10,
    LANDING_AT = INBOX_AT + INBOX_BYTES,
    LANDING_BYTES = 256 << 10,
    WORDS_AT = LANDING_AT + LANDING_BYTES,
    WORDS_BYTES = 64 << 10,
    COUNTERS_AT = WORDS_AT + WORDS_BYTES,
    NUM_COUNTERS = 4
};

void proxy_case_init(struct proxy_case *c, int num_ranks, int num_threads, int num_steps, uint64_t seed)
{
    struct rng rng = {seed};
    c->num_ranks = num_ranks;
    c->num_threads = num_threads;
    c->num_steps = num_steps;
    c->seed = seed;
    for (int r = 0; r < num_ranks; r++) {
        c->image[r] = (unsigned char *)test_take(1, RIG_WINDOW_BYTES);
        rng_bytes(&rng, c->image[r], RIG_WINDOW_BYTES);
    }
}

void proxy_case_fini(struct proxy_case *c)
{
    for (int r = 0; r < c->num_ranks; r++) {
        free(c->image[r]);
    }
}

void proxy_case_upload(const struct proxy_case *c, struct proxy_rig *rig)
{
    for (int r = 0; r < c->num_ranks; r++) {
        if (proxy_rig_is_here(rig, r)) {
            memcpy(rig->members[r].window, c->image[r], RIG_WINDOW_BYTES);
        }
    }
}

/* One thread's program while it is drawn. */
struct drawing {
    struct proxy_case *c;
    const struct proxy_rig *rig;
    struct rng rng;
    int rank, thread, queue;
    uint64_t outbox, landing; /* bytes of its parts that are used */
    uint64_t inbox[RIG_MAX_RANKS];
    int open_peer; /* that its latest ticket is of */
};

static uint64_t part(uint64_t bytes, int parts) { return bytes / (uint64_t)parts & ~63ull; }

/* The place of this thread at rank `peer`, in an area with a part for every thread of every rank. */
static uint64_t place_at_peer(const struct drawing *d, uint64_t area, uint64_t bytes)
{
    int parts = d->c->num_ranks * d->c->num_threads;
    return area + part(bytes, parts) * (uint64_t)(d->rank * d->c->num_threads + d->thread);
}

static uint64_t place_here(const struct drawing *d, uint64_t area, uint64_t bytes)
{
    return area + part(bytes, d->c->num_threads) * (uint64_t)d->thread;
}

static char *here(const struct drawing *d, uint64_t offset)
{
    return (char *)(uintptr_t)proxy_rig_at(d->rig, d->rank, offset);
}

static int draw_peer(struct drawing *d)
{
    int peer = (int)rng_below(&d->rng, (uint32_t)d->c->num_ranks - 1);
    return peer + (peer >= d->rank);
}

/* Most are small, some take more than one piece of the inbox at once. */
static uint64_t draw_bytes(struct drawing *d, uint64_t room)
{
    uint64_t most = rng_one_in(&d->rng, 4) ? 2048 : 40;
    return room == 0 ? 0 : 1 + rng_below(&d->rng, (uint32_t)(room < most ? room : most));
}

/* Fills a new part of the outbox, and puts it into what is left of the inbox: two steps. */
static int draw_put(struct drawing *d, struct ring_step *s, int peer)
{
    uint64_t box = part(OUTBOX_BYTES, d->c->num_threads);
    uint64_t slot = part(INBOX_BYTES, d->c->num_ranks * d->c->num_threads);
    uint64_t bytes =
        draw_bytes(d, box - d->outbox < slot - d->inbox[peer] ? box - d->outbox : slot - d->inbox[peer]);
    uint64_t from = place_here(d, OUTBOX_AT, OUTBOX_BYTES) + d->outbox;
    uint64_t to = place_at_peer(d, INBOX_AT, INBOX_BYTES) + d->inbox[peer];
    if (bytes == 0) {
        return 0;
    }
    s[0].kind = STEP_FILL;
    s[0].local = here(d, from);
    s[0].bytes = bytes;
    s[0].value = rng_next(&d->rng) & 0xff;
    s[1].kind = STEP_PUT;
    s[1].local = here(d, from);
    s[1].remote = proxy_rig_at(d->rig, peer, to);
    s[1].bytes = bytes;
    memset(d->c->image[d->rank] + from, (int)s[0].value, bytes);
    memcpy(d->c->image[peer] + to, d->c->image[d->rank] + from, bytes);
    d->outbox += bytes;
    d->inbox[peer] += bytes;
    return 2;
}

static int draw_get(struct drawing *d, struct ring_step *s, int peer)
{
    uint64_t bytes = draw_bytes(d, part(LANDING_BYTES, d->c->num_threads) - d->landing);
    uint64_t from = rng_below(&d->rng, SOURCE_BYTES - 4096);
    uint64_t to = place_here(d, LANDING_AT, LANDING_BYTES) + d->landing;
    if (bytes == 0) {
        return 0;
    }
    s->kind = STEP_GET;
    s->local = here(d, to);
    s->remote = proxy_rig_at(d->rig, peer, SOURCE_AT + from);
    s->bytes = bytes;
    memcpy(d->c->image[d->rank] + to, d->c->image[peer] + SOURCE_AT + from, bytes);
    d->landing += bytes;
    return 1;
}

/* A word of the thread's own at the peer. Half of the operations ask for the old value. */
static int draw_word(struct drawing *d, struct ring_step *s, int peer)
{
    uint32_t width = rng_one_in(&d->rng, 2) ? 4 : 8;
    uint64_t words = part(WORDS_BYTES, d->c->num_ranks * d->c->num_threads);
    uint64_t at =
        place_at_peer(d, WORDS_AT, WORDS_BYTES) + rng_below(&d->rng, (uint32_t)(words / width)) * width;
    uint64_t old = 0, next, room = part(LANDING_BYTES, d->c->num_threads);
    uint64_t to = (d->landing + 7) & ~7ull;
    s->kind = STEP_ATOMIC;
    s->remote = proxy_rig_at(d->rig, peer, at);
    s->amo = rng_below(&d->rng, NET_AMO_COUNT);
    s->width = width;
    memcpy(&old, d->c->image[peer] + at, width);
    s->value = rng_next(&d->rng);
    s->compare = rng_one_in(&d->rng, 2) ? old : rng_next(&d->rng);
    next = net_amo_apply(s->amo, width, old, s->value, s->compare);
    memcpy(d->c->image[peer] + at, &next, width);
    if (rng_one_in(&d->rng, 2) && to + 8 <= room) {
        s->kind = STEP_FETCH;
        s->local = here(d, place_here(d, LANDING_AT, LANDING_BYTES) + to);
        memcpy(d->c->image[d->rank] + place_here(d, LANDING_AT, LANDING_BYTES) + to, &old, width);
        d->landing = to + width;
    }
    return 1;
}

static int draw_signal(struct drawing *d, struct ring_step *s, int peer)
{
    uint64_t at = COUNTERS_AT + 8 * rng_below(&d->rng, NUM_COUNTERS), value;
    s->kind = STEP_SIGNAL;
    s->remote = proxy_rig_at(d->rig, peer, at);
    s->amo = NET_AMO_ADD;
    s->value = rng_next(&d->rng);
    memcpy(&value, d->c->image[peer] + at, 8);
    value += s->value;
    memcpy(d->c->image[peer] + at, &value, 8);
    return 1;
}

/* In the place of a put. */
static int draw_inline(struct drawing *d, struct ring_step *s, int peer)
{
    uint32_t width = rng_one_in(&d->rng, 2) ? 4 : 8;
    uint64_t slot = part(INBOX_BYTES, d->c->num_ranks * d->c->num_threads);
    uint64_t at = (d->inbox[peer] + width - 1) & ~(uint64_t)(width - 1);
    if (at + width > slot) {
        return 0;
    }
    d->inbox[peer] = at + width;
    at += place_at_peer(d, INBOX_AT, INBOX_BYTES);
    s->kind = STEP_PUT_INLINE;
    s->remote = proxy_rig_at(d->rig, peer, at);
    s->value = rng_next(&d->rng);
    s->width = width;
    memcpy(d->c->image[peer] + at, &s->value, width);
    return 1;
}

/* One or two steps; 0: nothing came of it. */
static int draw_step(struct drawing *d, struct ring_step *s, int room)
{
    int peer = draw_peer(d), n = 0;
    switch (rng_below(&d->rng, 10)) {
    case 0:
    case 1:
    case 2:
        n = room >= 2 ? draw_put(d, s, peer) : 0;
        break;
    case 3:
    case 4:
        n = draw_get(d, s, peer);
        break;
    case 5:
    case 6:
        n = draw_word(d, s, peer);
        break;
    case 7:
        n = draw_signal(d, s, peer);
        break;
    case 8:
        n = draw_inline(d, s, peer);
        break;
    default:
        s->kind = d->open_peer >= 0 ? STEP_FLUSH : STEP_NOTHING;
        s->ring = proxy_rig_ring(d->open_peer >= 0 ? d->open_peer : 0, d->queue);
        return 1;
    }
    for (int i = 0; i < n; i++) {
        s[i].ring = proxy_rig_ring(peer, d->queue);
    }
    d->open_peer = n > 0 && s->kind != STEP_FETCH ? peer : d->open_peer;
    return n;
}

static void draw_thread(struct drawing *d, struct ring_step *steps)
{
    int last = d->c->num_steps - d->c->num_ranks;
    for (int i = 0; i < last;) {
        memset(&steps[i], 0, 2 * sizeof steps[i]); /* a step that came to nothing leaves no trace */
        i += draw_step(d, &steps[i], last - i);
    }
    for (int r = 0; r < d->c->num_ranks; r++) {
        memset(&steps[last + r], 0, sizeof steps[0]);
        steps[last + r].kind = r != d->rank ? STEP_FLUSH_ALL : STEP_NOTHING;
        steps[last + r].ring = proxy_rig_ring(r, d->queue);
    }
}

void proxy_case_draw(struct proxy_case *c, struct proxy_rig *rig)
{
    struct ring_step *scrap = (struct ring_step *)test_take((size_t)c->num_steps + 1, sizeof *scrap);
    for (int r = 0; r < c->num_ranks; r++) {
        struct ring_step *steps =
            proxy_rig_is_here(rig, r) ? proxy_rig_steps(rig, r, c->num_threads, c->num_steps) : NULL;
        for (int t = 0; t < c->num_threads; t++) {
            struct drawing d = {c, rig, {c->seed * 1000003 + (uint64_t)(r * c->num_threads + t)},
                                r, t,   t % RIG_QUEUES,
                                0, 0,   {0},
                                -1};
            draw_thread(&d, scrap);
            if (steps != NULL) {
                memcpy(steps + (size_t)t * (size_t)c->num_steps, scrap, (size_t)c->num_steps * sizeof *scrap);
            }
        }
    }
    free(scrap);
}

int proxy_case_ended(const struct proxy_case *c, const struct proxy_rig *rig, int rank)
{
    for (int i = 0; i < c->num_threads * c->num_steps; i++) {
        const struct ring_step *s = &rig->members[rank].steps[i];
        CHECK(s->end == NET_OK, "seed %llu: rank %d, step %d of thread %d (kind %u) ended with 0x%x",
              (unsigned long long)c->seed, rank, i % c->num_steps, i / c->num_steps, s->kind, s->end);
    }
    return TEST_PASSED;
}

int proxy_case_compare(const struct proxy_case *c, const struct proxy_rig *rig, int rank)
{
    const unsigned char *seen = (const unsigned char *)rig->members[rank].window;
    for (size_t i = 0; i < RIG_WINDOW_BYTES; i++) {
        CHECK(seen[i] == c->image[rank][i], "seed %llu: byte 0x%zx of rank %d's window is %02x, not %02x",
              (unsigned long long)c->seed, i, rank, seen[i], c->image[rank][i]);
    }
    return TEST_PASSED;
}
