/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory in many pieces, by every transport: a window that grows two hundred times, as many windows adopted;
 * operations on the first, the middle and the last of them, from and to, across pieces, and on those that are
 * left when others have gone; growth while kernels use what there was; a view that has the network's own
 * window in the place of tern_alloc's. */
#include "net_scene.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 64, APART = 192, FAR = 3 /* the rank that is operated on */ };

struct many {
    struct host_scene *s;
    struct tern_comm *comms[RANKS];
    int num;            /* growths, and windows adopted */
    uint64_t growth;    /* bytes of one */
    uint64_t first;     /* of the heap, before any */
    char *areas[RANKS]; /* where adopted windows lie, `APART` bytes each */
};

/* The far rank's word at `there`, by way of `here`. */
static int word_is(const struct many *m, char *there, char *here, uint64_t expected)
{
    uint64_t word = 0;
    OK(tern_net_get(m->s->rig.networks[0], FAR, 0, here, there, sizeof word));
    OK(terni_pgas_move(m->s->rig.networks[0], &word, here, sizeof word));
    CHECK(word == expected, "the word at %p is %llu, not %llu", (void *)there, (unsigned long long)word,
          (unsigned long long)expected);
    return 0;
}

/* From rank 0 to `there` of the far rank and back, by way of `here`, both of windows; an atomic behind it. */
static int move(const struct many *m, char *there, char *here, uint64_t bytes, uint64_t seed)
{
    struct tern_network *n = m->s->rig.networks[0];
    struct rng rng = {seed};
    char sent[2 * PIECE], seen[2 * PIECE];
    uint64_t old = 0;
    rng_bytes(&rng, sent, bytes);
    memset(seen, 0, sizeof seen);
    OK(terni_pgas_move(n, here, sent, bytes));
    OK(tern_net_put(n, FAR, 0, there, here, bytes));
    OK(terni_pgas_move(n, here, seen, bytes));
    OK(tern_net_get(n, FAR, 0, here, there, bytes));
    OK(terni_pgas_move(n, seen, here, bytes));
    CHECK(memcmp(sent, seen, bytes) == 0, "other bytes have come back from %p", (void *)there);
    OK(tern_net_put_inline(n, FAR, 0, there, seed, 8));
    OK(tern_net_quiet(n, FAR, 0));
    OK(tern_net_atomic(n, FAR, 0, there, TERN_AMO_ADD, 8, 5, 0, &old));
    CHECK(old == seed, "an atomic at %p has seen %llu, not %llu", (void *)there, (unsigned long long)old,
          (unsigned long long)seed);
    return word_is(m, there, here, seed + 5);
}

/* Of rank 0: the far rank's are at the same places. */
static char *grown(const struct many *m, int i)
{
    return m->s->rig.views[0].heap.own + m->first + (uint64_t)i * m->growth;
}
static char *adopted(const struct many *m, int rank, int i) { return m->areas[rank] + (size_t)i * APART; }

static int operate(const struct many *m)
{
    int at[] = {0, m->num / 2, m->num - 1};
    for (int i = 0; i < 3; i++) {
        char *there = grown(m, at[i]), *window = adopted(m, 0, at[i]);
        char *here = grown(m, at[(i + 1) % 3]);
        PASS(move(m, there, here + PIECE, PIECE, 1000 + (uint64_t)i));
        PASS(move(m, window, here + PIECE, PIECE, 2000 + (uint64_t)i));
        PASS(move(m, there + PIECE, window, PIECE, 3000 + (uint64_t)i));
        if (at[i] > 0) {
            PASS(move(m, there - PIECE, here + PIECE, 2 * PIECE, 4000 + (uint64_t)i));
        }
        REFUSES(tern_net_put(m->s->rig.networks[0], FAR, 0, window + 8, there, PIECE), TERN_INVALID_ARGUMENT,
                "");
    }
    return 0;
}

static int adopt(const struct many *m, int i)
{
    void *windows[RANKS];
    for (int r = 0; r < RANKS; r++) {
        windows[r] = adopted(m, r, i);
    }
    OK(tern_window_adopt_all(RANKS, (struct tern_comm **)m->comms, windows, PIECE));
    return 0;
}

/* Every second goes, the first of them last; what is left can be used, and what has gone cannot. */
static int release(const struct many *m)
{
    int last = (m->num - 1) / 2 * 2, step = m->num < 4 ? 2 : m->num / 4 * 2; /* a GPU's granules leave few */
    for (int i = last; i >= 0; i -= 2) {
        for (int r = 0; r < RANKS; r++) {
            tern_window_release(m->comms[r], adopted(m, r, i));
        }
    }
    for (int i = 1; i < m->num; i += step) {
        PASS(move(m, adopted(m, 0, i), grown(m, i), PIECE, 5000 + (uint64_t)i));
    }
    REFUSES(tern_net_put(m->s->rig.networks[0], FAR, 0, adopted(m, 0, last), grown(m, 0), 8),
            TERN_INVALID_ARGUMENT, "");
    return 0;
}

static int grow_and_adopt(struct many *m)
{
    for (int i = 0; i < m->num; i++) {
        OK(tern_heap_grow_all(RANKS, m->comms, m->growth));
        PASS(adopt(m, m->num - 1 - i));
    }
    for (int r = 0; r < RANKS; r++) {
        OK(tern_net_view(m->s->rig.networks[r], &m->s->rig.views[r]));
    }
    return 0;
}

static int begin(struct many *m, struct host_scene *s, int num)
{
    const struct heap *heap = s->rig.world.members[0].comm->heap;
    uint64_t room = heap->max_bytes - terni_heap_bytes(heap);
    memset(m, 0, sizeof *m);
    m->s = s;
    m->first = terni_heap_bytes(heap);
    m->growth = s->rig.world.members[0].comm->machine->info.share_granule;
    m->num = room / m->growth < (uint64_t)num ? (int)(room / m->growth) : num;
    CHECK(m->num >= 1, "no room for growth");
    for (int r = 0; r < RANKS; r++) {
        m->comms[r] = s->rig.world.members[r].comm;
    }
    return 0;
}

static int many_body(struct host_scene *s)
{
    struct many m;
    int result;
    PASS(begin(&m, s, 200));
    for (int r = 0; r < RANKS; r++) {
        void *memory = NULL;
        OK(tern_alloc(m.comms[r], TERN_MEMORY_DEVICE, (size_t)m.num * APART, &memory));
        m.areas[r] = (char *)memory;
    }
    result = grow_and_adopt(&m);
    result = result ? result : operate(&m);
    result = result ? result : release(&m);
    for (int r = 0; r < RANKS; r++) {
        for (int i = 0; i < m.num; i++) {
            tern_window_release(m.comms[r], adopted(&m, r, i));
        }
        tern_free(m.comms[r], m.areas[r]);
    }
    return result;
}

static int many(struct test *t)
{
    (void)t;
    return in_scene_with_room(NULL, many_body);
}

/* ---- While kernels run ---- */

enum { MEANWHILE = 40, THREADS = 128 };

static int puts_each; /* of a thread */

static int meanwhile_body(struct host_scene *s)
{
    struct net_shape shape = {GROUP_THREAD, 2, THREADS / 2, puts_each};
    struct many m;
    PASS(begin(&m, s, MEANWHILE));
    for (int r = 0; r < RANKS; r++) {
        for (int i = 0; i < THREADS * puts_each; i++) {
            struct net_request *q = net_rig_add(&s->rig, r);
            q->kind = NET_REQUEST_PUT;
            q->flags = NET_REQUEST_PLAIN;
            q->peer = (r + 1) % RANKS;
            q->remote = device(s, s->box[r], 2504 + 8 * (size_t)(i / puts_each));
            q->local = device(s, s->box[r], 0);
            q->bytes = 8;
        }
        PASS(net_rig_launch(&s->rig, r, &shape, NULL));
    }
    for (int i = 0; i < m.num; i++) {
        OK(tern_heap_grow_all(RANKS, m.comms, m.growth));
    }
    PASS(net_rig_collect(&s->rig));
    return net_rig_all(&s->rig, TERN_OK);
}

/* That all end well is what this is for: one that found half a list would name a key of another range, or
 * none, and one that found a list which was freed, what is there now. */
static int meanwhile(struct test *t)
{
    puts_each = net_rig_scaled(t, RIG_REQUESTS) / THREADS;
    puts_each = puts_each > 0 ? puts_each : 1;
    return in_scene_with_room(NULL, meanwhile_body);
}

/* ---- The own window alone ---- */

enum { OWN_AT = PGAS_TEAMS }; /* words of teams, of which there are none */

static struct net_request *own_put(struct host_scene *s)
{
    char *own = s->rig.networks[0]->heap->bases[0] + OWN_AT;
    struct net_request *q = net_rig_add(&s->rig, 0);
    q->kind = NET_REQUEST_PUT_SIGNAL;
    q->peer = FAR;
    q->remote = own + 16;
    q->local = own;
    q->bytes = 16;
    q->word = own + 32;
    q->width = 8;
    q->op = TERN_SIGNAL_SET;
    q->value = 77;
    return q;
}

static int own_body(struct host_scene *s)
{
    struct net_shape shape = {GROUP_WARP, 1, 32, 1};
    struct tern_network *n = s->rig.networks[0];
    const char *own = n->heap->bases[0] + OWN_AT, *far_own = s->rig.networks[FAR]->heap->bases[FAR] + OWN_AT;
    struct net_request q;
    uint64_t sent[2] = {0x1234567812345678, 0x8765432187654321}, seen[3] = {0};
    for (int r = 0; r < RANKS; r++) {
        const struct tern_net *view = &s->rig.views[r];
        const struct heap *heap = s->rig.networks[r]->heap;
        OK(terni_network_own_view(s->rig.networks[r], &s->rig.views[r]));
        CHECK(view->heap.own == heap->bases[r] && view->heap.bytes == heap->bytes, "%p and %llu bytes",
              (void *)view->heap.own, (unsigned long long)view->heap.bytes);
        CHECK(view->near_bases[r - view->first_near] == heap->bases[r], "another base nearby");
    }
    OK(terni_pgas_move(n, (void *)(uintptr_t)own, sent, sizeof sent));
    q = *own_put(s);
    PASS(net_rig_launch(&s->rig, 0, &shape, NULL));
    PASS(net_rig_collect(&s->rig));
    PASS(net_rig_all(&s->rig, TERN_OK));
    OK(terni_pgas_move(s->rig.networks[FAR], seen, far_own + 16, sizeof seen));
    CHECK(seen[0] == sent[0] && seen[1] == sent[1] && seen[2] == 77, "%llx, %llx and %llu have arrived",
          (unsigned long long)seen[0], (unsigned long long)seen[1], (unsigned long long)seen[2]);
    /* That of tern_alloc is in no table. */
    q.remote = device(s, s->box[0], 0);
    PASS(kernel_refuses(s, &q, TERN_INVALID_ARGUMENT, ""));
    q.remote = q.local;
    q.word = device(s, s->words[0], 0);
    return kernel_refuses(s, &q, TERN_INVALID_ARGUMENT, "");
}

static int own(struct test *t)
{
    (void)t;
    return in_scene(NULL, own_body);
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    net_rig_cases(&t, "two hundred growths and windows adopted", many);
    net_rig_cases(&t, "growth while kernels run", meanwhile);
    net_rig_cases(&t, "a view of the own window", own);
    return test_end(&t);
}
