/* SPDX-License-Identifier: Apache-2.0
 *
 * The bounce area: how the host's calls move local memory that NICs do not reach. It serves one operation at
 * a time, and not the next before the NIC is through with it. */
#include "net_scene.h"

#include "kernels/kernels.h"
#include "pgas/pgas_nics.h"

#include <stdlib.h>
#include <string.h>

/* ---- What it is for ---- */

/* More than the bounce area has, by two streams at once, which take turns; and back. */
enum { LONG = 700001 };

static int bounce_on(struct host_scene *s, char *window, char *here, char *back)
{
    struct tern_network *n = s->rig.networks[0];
    struct member *m = &s->rig.world.members[0];
    for (int lane = 0; lane < 2; lane++) {
        OK(tern_net_put_on_stream(n, 3, 0, window + lane * LONG, here + lane * LONG, LONG, m->lanes[lane]));
        OK(tern_net_get_on_stream(n, 3, 0, back + lane * LONG, window + lane * LONG, LONG, m->lanes[lane]));
    }
    for (int lane = 0; lane < 2; lane++) {
        OK(tern_net_synchronize(n, m->lanes[lane]));
    }
    CHECK(memcmp(here, back, 2 * LONG) == 0, "other bytes have come back");
    memset(back, 0, 2 * LONG);
    OK(tern_net_get(n, 3, 0, back + 1, window, LONG));
    CHECK(memcmp(here, back + 1, LONG) == 0, "other bytes have come by a call that blocks");
    return 0;
}

static int bounce_body(struct host_scene *s)
{
    struct tern_comm *comms[RANKS];
    void *windows[RANKS], *host = NULL;
    int result;
    for (int r = 0; r < RANKS; r++) {
        comms[r] = s->rig.world.members[r].comm;
    }
    OK(tern_heap_grow_all(RANKS, comms, 2 * LONG));
    for (int r = 0; r < RANKS; r++) {
        OK(tern_alloc(comms[r], TERN_MEMORY_WINDOW, 2 * LONG, &windows[r]));
    }
    OK(tern_alloc(comms[0], TERN_MEMORY_HOST, 4 * LONG, &host));
    for (int i = 0; i < 2 * LONG; i++) {
        ((unsigned char *)host)[i] = (unsigned char)(i * 2654435761u >> 13);
    }
    result = bounce_on(s, (char *)windows[0], (char *)host, (char *)host + 2 * LONG);
    for (int r = 0; r < RANKS; r++) {
        tern_free(comms[r], windows[r]);
    }
    tern_free(comms[0], host);
    return result;
}

static int moves(struct test *t)
{
    static struct host_scene s;
    int result;
    (void)t;
    memset(&s, 0, sizeof s);
    net_rig_init(&s.rig, RANKS);
    s.rig.world.grows = 1;
    (void)world_take(&s.rig.world, 0, ARENA_WINDOW, 64, "something");
    result = net_rig_open(&s.rig, NULL, 3);
    result = result ? result : bounce_body(&s);
    net_rig_close(&s.rig);
    return result;
}

/* ---- NICs that stand still ---- */

enum { DEADLINE_MS = 500 };

/* Host memory of rank 0, each byte `value`. */
static int take_host(struct host_scene *s, int value, void **host)
{
    OK(tern_alloc(s->rig.world.members[0].comm, TERN_MEMORY_HOST, BYTES, host));
    memset(*host, value, BYTES);
    return 0;
}

/* Rank r's word, seen by a stream of that rank. */
static int word_is(struct host_scene *s, int r, uint64_t expected)
{
    const uint64_t *seen = (const uint64_t *)world_peek(&s->rig.world, r, device(s, s->words[r], 0), 8);
    CHECK(seen && *seen == expected, "rank %d's word is %llu", r, seen ? (unsigned long long)*seen : 0ull);
    return 0;
}

static int box_is(struct host_scene *s, int r, int value)
{
    const unsigned char *seen =
        (const unsigned char *)world_peek(&s->rig.world, r, device(s, s->box[r], 0), BYTES);
    for (int i = 0; seen && i < BYTES; i++) {
        CHECK(seen[i] == value, "byte %d of rank %d's box is %d, not %d", i, r, seen[i], value);
    }
    return seen ? 0 : TEST_FAILED;
}

/* Its turn does not come before the deadline: no signal without the bytes. */
static int taken_body(struct host_scene *s)
{
    struct tern_network *n = s->rig.networks[0];
    struct net_bounce bounce;
    uint32_t taken = 1, given = 0;
    void *host;
    PASS(take_host(s, 7, &host));
    OK(tern_net_signal(n, 3, 0, device(s, s->words[0], 0), TERN_SIGNAL_SET, 8, 1));
    PASS(word_is(s, 3, 1));
    terni_pgas_bounce(n, &bounce);
    OK(tern_copy(n->comm, &bounce.state->lock, &taken, sizeof taken, lane_of(s, 0)));
    OK(tern_net_put_signal_on_stream(n, 3, 0, device(s, s->box[0], 0), host, BYTES, device(s, s->words[0], 0),
                                     TERN_SIGNAL_SET, 8, 2, lane_of(s, 0)));
    REFUSES(tern_net_synchronize(n, lane_of(s, 0)), TERN_TIMEOUT, "rank 3");
    OK(tern_copy(n->comm, &bounce.state->lock, &given, sizeof given, lane_of(s, 0)));
    OK(tern_stream_synchronize(n->comm, lane_of(s, 0))); /* what follows is on other streams */
    OK(tern_net_quiet(n, -1, -1));
    PASS(word_is(s, 3, 1));
    OK(tern_net_put_signal(n, 3, 0, device(s, s->box[0], 0), host, BYTES, device(s, s->words[0], 0),
                           TERN_SIGNAL_SET, 8, 3));
    PASS(word_is(s, 3, 3));
    PASS(box_is(s, 3, 7));
    tern_free(n->comm, host);
    return 0;
}

/* The NIC has what it has not moved when the call gives up: the next call does not write over it. */
static int held_body(struct host_scene *s)
{
    struct tern_network *n = s->rig.networks[0];
    struct nic_provider *nic = &n->nics->provider;
    void *first, *second;
    PASS(take_host(s, 7, &first));
    PASS(take_host(s, 9, &second));
    OK(nic->ops->pause(nic));
    REFUSES(tern_net_put(n, 3, 0, device(s, s->box[0], 0), first, BYTES), TERN_TIMEOUT,
            "queue 0 carries to rank 3");
    REFUSES(tern_net_put(n, 2, 0, device(s, s->box[0], 0), second, BYTES), TERN_TIMEOUT,
            "queue 0 carries to rank 3");
    OK(nic->ops->resume(nic));
    OK(tern_net_quiet(n, -1, -1));
    PASS(box_is(s, 3, 7));
    OK(tern_net_put(n, 2, 0, device(s, s->box[0], 0), second, BYTES));
    PASS(box_is(s, 2, 9));
    PASS(box_is(s, 3, 7));
    tern_free(n->comm, second);
    tern_free(n->comm, first);
    return 0;
}

static int stands(struct test *t, int (*body)(struct host_scene *s))
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    if (net_rig_way()->nics != TERN_TRANSPORT_SOFTNIC || net_rig_way()->packets != RIG_NO_PACKETS) {
        test_detail(t, "no NIC here can be held");
        return TEST_SKIPPED;
    }
    config.timeout_ms = DEADLINE_MS;
    return in_scene(&config, body);
}

static int taken(struct test *t)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    (void)t;
    config.timeout_ms = DEADLINE_MS;
    return in_scene(&config, taken_body);
}

static int held(struct test *t) { return stands(t, held_body); }

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    net_rig_nic_cases(&t, "long puts and gets of the host by a bounce area", moves);
    net_rig_nic_cases(&t, "a put with a signal whose turn does not come", taken);
    net_rig_nic_cases(&t, "what a NIC still has when a call gives up", held);
    return test_end(&t);
}
