/* SPDX-License-Identifier: Apache-2.0
 *
 * Every operation of kernels against a plain reference: random requests by all ranks at once, performed by
 * threads, warps and blocks, in many schedules; afterwards every byte of every window, every sink and every
 * old value is what memcpy and net_amo_apply say. What runs side by side is chosen so that its order does not
 * show: pieces of an area that touch but do not overlap, words that belong to one group, and words that all
 * change by one commuting operation. */
#include "net_rig.h"

#include <assert.h>
#include <string.h>

static_assert((int)TERN_AMO_ADD == (int)NET_AMO_ADD && (int)TERN_AMO_AND == (int)NET_AMO_AND &&
                  (int)TERN_AMO_OR == (int)NET_AMO_OR && (int)TERN_AMO_XOR == (int)NET_AMO_XOR &&
                  (int)TERN_AMO_SWAP == (int)NET_AMO_SWAP && (int)TERN_AMO_CAS == (int)NET_AMO_CAS &&
                  (int)TERN_AMO_SET == (int)NET_AMO_SET && (int)TERN_AMO_FETCH == (int)NET_AMO_FETCH,
              "kernels and hosts number atomics alike");

enum { CASES = 400, MAX_EACH = 12, MAX_GROUPS = 96, NUM_WORDS = 96, SLACK = 64 };

struct ops_case {
    struct net_rig rig;
    struct rng rng;
    int num_ranks;
    size_t area_bytes;
    struct place area[RIG_RANKS], source[RIG_RANKS], words[RIG_RANKS]; /* windows */
    struct place more[RIG_RANKS], sink[RIG_RANKS], olds[RIG_RANKS];    /* device memory */
    struct net_shape shapes[RIG_RANKS];
    int filled[RIG_RANKS][MAX_GROUPS];                     /* requests of each group so far */
    uint64_t wanted[RIG_RANKS][MAX_GROUPS * MAX_EACH];     /* old values */
    unsigned char asked[RIG_RANKS][MAX_GROUPS * MAX_EACH]; /* whether they count */
    int num_olds[RIG_RANKS];
    int num_requests[NET_REQUEST_COUNT];
};

static void draw(struct ops_case *c, uint64_t seed)
{
    c->rng.state = seed;
    c->num_ranks = (int)rng_between(&c->rng, 1, 5);
    c->area_bytes =
        rng_one_in(&c->rng, 6) ? rng_between(&c->rng, 1, 1 << 19) : rng_between(&c->rng, 1, 40000);
    net_rig_init(&c->rig, c->num_ranks);
    c->rig.world.grows = rng_one_in(&c->rng, 3);
    for (int r = 0; r < c->num_ranks; r++) {
        static const int kinds[] = {GROUP_THREAD, GROUP_WARP, GROUP_BLOCK};
        struct net_shape *s = &c->shapes[r];
        s->group = kinds[rng_below(&c->rng, 3)];
        s->num_blocks = s->group == GROUP_BLOCK ? (int)rng_between(&c->rng, 1, 4) : 1;
        s->num_threads = 32 * (int)rng_between(&c->rng, 1, 3);
        s->each = (int)rng_between(&c->rng, 1, MAX_EACH);
    }
}

/* Places are alike on all ranks: addresses are symmetric. */
static void take_places(struct ops_case *c)
{
    for (int r = 0; r < c->num_ranks; r++) {
        struct world *w = &c->rig.world;
        c->words[r] = world_take(w, r, ARENA_WINDOW, NUM_WORDS * 8, "words");
        c->source[r] = world_take(w, r, ARENA_WINDOW, c->area_bytes + SLACK, "the source in the window");
        c->area[r] = world_take(w, r, ARENA_WINDOW, c->area_bytes, "the area");
        c->more[r] = world_take(w, r, net_rig_local_arena(), c->area_bytes + SLACK, "the other source");
        c->sink[r] = world_take(w, r, net_rig_local_arena(), c->area_bytes, "the sink");
        c->olds[r] = world_take(w, r, ARENA_DEVICE, (size_t)MAX_GROUPS * MAX_EACH * 8, "old values");
    }
    for (int r = 0; r < c->num_ranks; r++) {
        rng_bytes(&c->rng, world_image(&c->rig.world, c->words[r]), c->words[r].bytes);
        rng_bytes(&c->rng, world_image(&c->rig.world, c->source[r]), c->source[r].bytes);
        rng_bytes(&c->rng, world_image(&c->rig.world, c->more[r]), c->more[r].bytes);
    }
}

/* The next request of this group of this rank; NULL if it has as many as it may. */
static struct net_request *next_of(struct ops_case *c, int rank, int group)
{
    const struct net_shape *s = &c->shapes[rank];
    if (c->filled[rank][group] == s->each) {
        return NULL;
    }
    return &c->rig.ranks[rank].requests[group * s->each + c->filled[rank][group]++];
}

/* Of any rank and group that has room; 0 after some tries in vain. */
static int pick(struct ops_case *c, int *rank, int *group)
{
    for (int i = 0; i < 20; i++) {
        *rank = (int)rng_below(&c->rng, (uint32_t)c->num_ranks);
        *group = (int)rng_below(&c->rng, (uint32_t)net_shape_groups(&c->shapes[*rank]));
        if (c->filled[*rank][*group] < c->shapes[*rank].each) {
            return 1;
        }
    }
    return 0;
}

static size_t draw_bytes(struct rng *r)
{
    switch (rng_below(r, 8)) {
    case 0:
        return rng_below(r, 4);
    case 1:
    case 2:
        return rng_below(r, 64);
    case 3:
        return 16 * rng_below(r, 600);
    case 4:
        return rng_below(r, 1 << 17);
    default:
        return rng_below(r, 3000);
    }
}

static void *image_at(const struct ops_case *c, struct place p, size_t offset)
{
    return (char *)world_image(&c->rig.world, p) + offset;
}

static void *device_at(const struct ops_case *c, struct place p, size_t offset)
{
    return (char *)world_device(&c->rig.world, p) + offset;
}

static void set_word(struct ops_case *c, int owner, size_t offset, uint32_t width, uint32_t amo,
                     uint64_t value, uint64_t compare, uint64_t *old)
{
    void *at = image_at(c, c->words[owner], offset);
    uint64_t word = 0;
    memcpy(&word, at, width); /* little-endian, like the machines */
    *old = word;
    word = net_amo_apply(amo, width, word, value, compare);
    memcpy(at, &word, width);
}

/* Words 0 to 23: all groups change word i by one operation, of 4 bytes where i is odd. */
static void draw_shared_word(struct ops_case *c, size_t *offset, uint32_t *width, uint32_t *amo)
{
    static const uint32_t amos[] = {NET_AMO_ADD, NET_AMO_AND, NET_AMO_OR, NET_AMO_XOR};
    uint32_t i = rng_below(&c->rng, 24);
    *width = i % 2 ? 4 : 8;
    *offset = i * 8 + (i % 2 && rng_below(&c->rng, 2) ? 4 : 0);
    *amo = amos[i / 2 % 4];
}

/* A cell that nobody else touches is put to, or left; likewise in the sink of `owner`. */
static void add_put(struct ops_case *c, int owner, size_t offset, size_t bytes)
{
    size_t from = rng_below(&c->rng, (uint32_t)(c->area_bytes + SLACK - bytes + 1)), at;
    uint32_t width, amo;
    uint64_t old;
    int rank, group;
    if (!pick(c, &rank, &group)) {
        return;
    }
    struct place source = rng_below(&c->rng, 2) ? c->source[rank] : c->more[rank];
    struct net_request *q = next_of(c, rank, group);
    q->kind = rng_below(&c->rng, 2) ? NET_REQUEST_PUT : NET_REQUEST_PUT_SIGNAL;
    q->peer = owner;
    q->remote = device_at(c, c->area[rank], offset);
    q->local = device_at(c, source, from);
    q->bytes = bytes;
    q->flags = rng_below(&c->rng, 2) && q->kind == NET_REQUEST_PUT ? NET_REQUEST_PLAIN : 0;
    memcpy(image_at(c, c->area[owner], offset), image_at(c, source, from), bytes);
    if (q->kind == NET_REQUEST_PUT_SIGNAL) {
        do {
            draw_shared_word(c, &at, &width, &amo);
        } while (amo != NET_AMO_ADD);
        q->op = TERN_SIGNAL_ADD;
        q->width = width;
        q->value = rng_next(&c->rng);
        q->word = device_at(c, c->words[rank], at);
        set_word(c, owner, at, width, NET_AMO_ADD, q->value, 0, &old);
    }
    c->num_requests[q->kind]++;
}

static void add_get(struct ops_case *c, int rank, size_t offset, size_t bytes)
{
    size_t from = rng_below(&c->rng, (uint32_t)(c->area_bytes + SLACK - bytes + 1));
    int group = (int)rng_below(&c->rng, (uint32_t)net_shape_groups(&c->shapes[rank]));
    int peer = (int)rng_below(&c->rng, (uint32_t)c->num_ranks);
    struct net_request *q = next_of(c, rank, group);
    if (q == NULL) {
        return;
    }
    q->kind = NET_REQUEST_GET;
    q->peer = peer;
    q->remote = device_at(c, c->source[rank], from);
    q->local = device_at(c, c->sink[rank], offset);
    q->bytes = bytes;
    q->flags = rng_below(&c->rng, 2) ? NET_REQUEST_PLAIN : 0;
    memcpy(image_at(c, c->sink[rank], offset), image_at(c, c->source[peer], from), bytes);
    c->num_requests[q->kind]++;
}

static void add_copies(struct ops_case *c, int owner)
{
    size_t at = rng_below(&c->rng, 64), in_sink = at;
    while (at < c->area_bytes) {
        size_t bytes = draw_bytes(&c->rng), left = c->area_bytes - at;
        bytes = bytes < left ? bytes : left;
        if (!rng_one_in(&c->rng, 4)) {
            add_put(c, owner, at, bytes);
        }
        at += bytes + !bytes;
    }
    while (in_sink < c->area_bytes) {
        size_t bytes = draw_bytes(&c->rng), left = c->area_bytes - in_sink;
        bytes = bytes < left ? bytes : left;
        add_get(c, owner, in_sink, bytes);
        in_sink += bytes + !bytes;
    }
}

static void want_old(struct ops_case *c, int rank, struct net_request *q, uint64_t old)
{
    size_t i = (size_t)(q - c->rig.ranks[rank].requests);
    c->wanted[rank][i] = old;
    c->asked[rank][i] = 1;
    if (rng_below(&c->rng, 2)) {
        size_t at = (size_t)c->num_olds[rank]++ * 8;
        q->num_old_bytes = q->width;
        q->local = device_at(c, c->olds[rank], at);
        memcpy(image_at(c, c->olds[rank], at), &old, q->width);
    }
}

/* Words 24 and up: one group's own, where order shows: each change is complete before the next. */
static void add_own_words(struct ops_case *c, int owner, uint32_t i)
{
    uint32_t width = rng_below(&c->rng, 2) ? 4 : 8;
    size_t offset = i * 8 + (width == 4 && rng_below(&c->rng, 2) ? 4 : 0);
    int rank, group;
    if (!pick(c, &rank, &group)) {
        return;
    }
    for (struct net_request *q; !rng_one_in(&c->rng, 5) && (q = next_of(c, rank, group)) != NULL;) {
        uint64_t old;
        q->peer = owner;
        q->remote = device_at(c, c->words[rank], offset);
        q->width = width;
        q->value = rng_next(&c->rng);
        q->op = rng_below(&c->rng, NET_AMO_COUNT);
        q->flags = NET_REQUEST_PLAIN;
        q->kind = rng_below(&c->rng, 4)   ? NET_REQUEST_ATOMIC
                  : rng_below(&c->rng, 2) ? NET_REQUEST_PUT_INLINE
                                          : NET_REQUEST_SIGNAL;
        memcpy(&q->compare, image_at(c, c->words[owner], offset), width);
        q->compare ^= rng_below(&c->rng, 2) ? 0 : rng_next(&c->rng);
        if (q->kind == NET_REQUEST_SIGNAL) {
            q->op = q->op % 2 ? TERN_SIGNAL_SET : TERN_SIGNAL_ADD;
            set_word(c, owner, offset, width, q->op == TERN_SIGNAL_SET ? NET_AMO_SET : NET_AMO_ADD, q->value,
                     0, &old);
        } else if (q->kind == NET_REQUEST_PUT_INLINE) {
            set_word(c, owner, offset, width, NET_AMO_SET, q->value, 0, &old);
        } else {
            set_word(c, owner, offset, width, q->op, q->value, q->compare, &old);
            want_old(c, rank, q, old);
        }
        c->num_requests[q->kind]++;
    }
}

static void add_shared_word(struct ops_case *c)
{
    int rank, group;
    size_t offset;
    uint32_t amo;
    uint64_t old;
    if (!pick(c, &rank, &group)) {
        return;
    }
    struct net_request *q = next_of(c, rank, group);
    q->kind = NET_REQUEST_ATOMIC;
    q->peer = (int)rng_below(&c->rng, (uint32_t)c->num_ranks);
    draw_shared_word(c, &offset, &q->width, &amo);
    q->op = amo;
    q->remote = device_at(c, c->words[rank], offset);
    q->value = rng_next(&c->rng);
    q->flags = rng_below(&c->rng, 2) ? NET_REQUEST_NO_OLD : 0;
    set_word(c, q->peer, offset, q->width, amo, q->value, 0, &old);
    c->num_requests[q->kind]++;
}

/* Looks at what nobody changes, in this rank's own source. */
static void add_look(struct ops_case *c)
{
    int rank, group;
    if (!pick(c, &rank, &group)) {
        return;
    }
    struct net_request *q = next_of(c, rank, group);
    size_t i = (size_t)(q - c->rig.ranks[rank].requests);
    q->kind = rng_below(&c->rng, 2) ? NET_REQUEST_WAIT : NET_REQUEST_TEST;
    q->width = rng_below(&c->rng, 2) ? 4 : 8;
    q->remote = device_at(c, c->source[rank], 8);
    memcpy(&q->value, image_at(c, c->source[rank], 8), q->width);
    c->wanted[rank][i] = q->kind == NET_REQUEST_WAIT ? q->value : 1;
    if (q->kind == NET_REQUEST_TEST && rng_below(&c->rng, 2)) {
        q->value++;
        c->wanted[rank][i] = 0;
    }
    q->op = TERN_COMPARE_EQ;
    c->asked[rank][i] = 1;
    c->num_requests[q->kind]++;
}

static int check_olds(const struct ops_case *c)
{
    for (int r = 0; r < c->num_ranks; r++) {
        for (int i = 0; i < c->rig.ranks[r].num; i++) {
            const struct net_result *got = &c->rig.ranks[r].results[i];
            CHECK(!c->asked[r][i] || got->value == c->wanted[r][i],
                  "rank %d, request %d of kind %u, op %u: %llx, expected %llx", r, i,
                  c->rig.ranks[r].requests[i].kind, c->rig.ranks[r].requests[i].op,
                  (unsigned long long)got->value, (unsigned long long)c->wanted[r][i]);
        }
    }
    return 0;
}

static int run(struct ops_case *c, uint64_t seed)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    config.num_queues = rng_between(&c->rng, 1, 4);
    config.num_nics = rng_between(&c->rng, 0, config.num_queues); /* where there are any */
    take_places(c);
    PASS(net_rig_open(&c->rig, &config, seed));
    for (int r = 0; r < c->num_ranks; r++) {
        for (int i = net_shape_groups(&c->shapes[r]) * c->shapes[r].each; i > 0; i--) {
            struct net_request *q = net_rig_add(&c->rig, r);
            q->queue = rng_below(&c->rng, config.num_queues);
            q->kind = rng_below(&c->rng, 2) ? NET_REQUEST_QUIET : NET_REQUEST_FENCE;
        }
    }
    PASS(world_upload(&c->rig.world));
    for (int r = 0; r < c->num_ranks; r++) {
        add_copies(c, r);
    }
    for (uint32_t i = 24; i < NUM_WORDS; i++) {
        for (int r = 0; r < c->num_ranks; r++) {
            add_own_words(c, r, i);
        }
        add_shared_word(c);
        add_look(c);
    }
    for (int r = 0; r < c->num_ranks; r++) {
        PASS(net_rig_launch(&c->rig, r, &c->shapes[r], NULL));
    }
    PASS(net_rig_collect(&c->rig));
    PASS(net_rig_all(&c->rig, TERN_OK));
    PASS(check_olds(c));
    for (int r = 0; r < c->num_ranks; r++) {
        OK(tern_net_synchronize(c->rig.networks[r], NULL));
    }
    return world_verify(&c->rig.world, "random requests");
}

static int random_requests(struct test *t)
{
    uint64_t first = t->has_seeds ? t->seeds[0] : 1;
    uint64_t last = t->has_seeds ? t->seeds[1] : (uint64_t)net_rig_scaled(t, CASES);
    static struct ops_case c;
    int num[NET_REQUEST_COUNT] = {0}, result = 0;
    if (net_rig_on_cuda() && net_rig_goes_by_proxy()) {
        return test_skip(
            t,
            "words are changed by the proxy and by kernels of their own rank, which a GPU does not make one");
    }
    for (uint64_t seed = first; result == 0 && seed <= last; seed++) {
        memset(&c, 0, sizeof c);
        draw(&c, seed);
        result = run(&c, seed);
        net_rig_close(&c.rig);
        for (int k = 0; k < NET_REQUEST_COUNT; k++) {
            num[k] += c.num_requests[k];
        }
        CHECK(result == 0, "seed %llu", (unsigned long long)seed);
    }
    test_detail(t, "%d puts, %d with signal, %d gets, %d inline, %d signals, %d atomics, %d looks",
                num[NET_REQUEST_PUT], num[NET_REQUEST_PUT_SIGNAL], num[NET_REQUEST_GET],
                num[NET_REQUEST_PUT_INLINE], num[NET_REQUEST_SIGNAL], num[NET_REQUEST_ATOMIC],
                num[NET_REQUEST_WAIT] + num[NET_REQUEST_TEST]);
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    net_rig_cases(&t, "random requests against the reference", random_requests);
    return test_end(&t);
}
