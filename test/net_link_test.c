/* SPDX-License-Identifier: Apache-2.0
 *
 * A link that carries loads and stores, but no atomics: rank 0's to rank 2. Rank 0's machine is made to say
 * so. What needs an atomic there is refused, by the host and in kernels, and moves nothing; all else goes on,
 * and so does everything between ranks with another link. */
#include "net_scene.h"

#include <stdlib.h>
#include <string.h>

enum { CUT = 2, NUM_AMOS = TERN_AMO_FETCH + 1 };

#define NO_ATOMICS "to rank 2's device "

static int lacks_atomics(struct machine *m, const unsigned char uuid[16])
{
    (void)m;
    return uuid[0] == CUT;
}

/* Networks that were opened after rank 0 has looked at its links again. */
static int open_again(struct host_scene *s)
{
    struct tern_comm *comms[RANKS];
    for (int r = 0; r < RANKS; r++) {
        comms[r] = s->rig.world.members[r].comm;
        memset(comms[0]->cards[r].uuid, r, sizeof comms[0]->cards[r].uuid);
        tern_net_close(s->rig.networks[r]);
        s->rig.networks[r] = NULL;
    }
    terni_topology_build(comms[0]);
    OK(tern_net_open_all(RANKS, comms, NULL, s->rig.networks));
    for (int r = 0; r < RANKS; r++) {
        OK(tern_net_view(s->rig.networks[r], &s->rig.views[r]));
    }
    return 0;
}

static int run_cut(int (*body)(struct host_scene *s), struct host_scene *s)
{
    struct machine *m = s->rig.world.members[0].comm->machine;
    const struct machine_ops *true_ops = m->ops;
    struct machine_ops ops = *true_ops;
    int result;
    ops.lacks_atomics = lacks_atomics;
    m->ops = &ops;
    result = open_again(s);
    result = result ? result : body(s);
    m->ops = true_ops;
    return result;
}

static void expect(const struct host_scene *s, int rank, size_t offset, uint64_t value)
{
    memcpy(image(s, s->words[rank], offset), &value, 8);
}

/* ---- The host's calls ---- */

static int host_refused(struct host_scene *s)
{
    struct tern_network *n = s->rig.networks[0];
    struct tern_stream *stream = lane_of(s, 0);
    void *word = device(s, s->words[0], 0);
    for (int amo = 0; amo < NUM_AMOS; amo++) {
        if (amo != TERN_AMO_FETCH) {
            REFUSES(tern_net_atomic(n, CUT, 0, word, amo, 8, 1, 0, NULL), TERN_UNSUPPORTED, NO_ATOMICS);
            REFUSES(tern_net_atomic_on_stream(n, CUT, 0, word, amo, 4, 1, 0, NULL, stream), TERN_UNSUPPORTED,
                    NO_ATOMICS);
        }
    }
    REFUSES(tern_net_signal(n, CUT, 0, word, TERN_SIGNAL_ADD, 8, 1), TERN_UNSUPPORTED,
            "rank 0: the link from device 0");
    REFUSES(tern_net_signal_on_stream(n, CUT, 0, word, TERN_SIGNAL_ADD, 4, 1, stream), TERN_UNSUPPORTED,
            NO_ATOMICS);
    OK(tern_net_synchronize(n, stream));
    return world_verify(&s->rig.world, "atomics that the host refuses");
}

static int host_allowed(struct host_scene *s)
{
    struct tern_network *n = s->rig.networks[0];
    uint64_t seen = 0;
    OK(tern_net_put(n, CUT, 0, device(s, s->box[0], 1), device(s, s->local[0], 1), 3000));
    memcpy(image(s, s->box[CUT], 1), image(s, s->local[0], 1), 3000);
    OK(tern_net_get(n, CUT, 0, device(s, s->local[0], 3500), device(s, s->box[0], 1), 1000));
    memcpy(image(s, s->local[0], 3500), image(s, s->box[CUT], 1), 1000);
    OK(tern_net_signal(n, CUT, 0, device(s, s->words[0], 0), TERN_SIGNAL_SET, 8, 1ull << 33));
    OK(tern_net_atomic(n, CUT, 0, device(s, s->words[0], 0), TERN_AMO_FETCH, 8, 0, 0, &seen));
    CHECK(seen == 1ull << 33, "fetched %#llx", (unsigned long long)seen);
    expect(s, CUT, 0, 1ull << 33);
    for (int r = 0; r < RANKS; r++) {
        if (r != CUT) {
            OK(tern_net_atomic(n, r, 0, device(s, s->words[0], 8), TERN_AMO_ADD, 8, 3, 0, NULL));
            OK(tern_net_signal(n, r, 0, device(s, s->words[0], 8), TERN_SIGNAL_ADD, 8, 4));
            expect(s, r, 8, 7);
        }
    }
    /* Rank 2's own machine says nothing of the kind. */
    OK(tern_net_atomic(s->rig.networks[CUT], 0, 0, device(s, s->words[CUT], 16), TERN_AMO_ADD, 8, 5, 0,
                       NULL));
    expect(s, 0, 16, 5);
    return world_verify(&s->rig.world, "what the host does over a link without atomics");
}

static int host_body(struct host_scene *s)
{
    PASS(host_refused(s));
    return host_allowed(s);
}

/* ---- Kernels ---- */

/* What reaches word 3 of the peer, or its box. */
static struct net_request request(const struct host_scene *s, uint32_t kind, uint32_t op, int peer)
{
    struct net_request q = {kind, 8, op, 0, peer, 0, NULL, NULL, 64, NULL, 9, 0, 0, NULL, 0, 0};
    int is_data = kind == NET_REQUEST_PUT || kind == NET_REQUEST_GET || kind == NET_REQUEST_PUT_SIGNAL;
    q.word = device(s, s->words[0], 24);
    q.remote = is_data ? device(s, s->box[0], 0) : q.word;
    q.local = kind == NET_REQUEST_ATOMIC ? NULL : device(s, s->local[0], 0);
    return q;
}

static int kernels_refused(struct host_scene *s)
{
    struct net_request q;
    for (uint32_t amo = 0; amo < NUM_AMOS; amo++) {
        if (amo != TERN_AMO_FETCH) {
            q = request(s, NET_REQUEST_ATOMIC, amo, CUT);
            PASS(kernel_refuses(s, &q, TERN_UNSUPPORTED, NO_ATOMICS));
        }
    }
    q = request(s, NET_REQUEST_SIGNAL, TERN_SIGNAL_ADD, CUT);
    PASS(kernel_refuses(s, &q, TERN_UNSUPPORTED, "(block 0, warp "));
    q = request(s, NET_REQUEST_PUT_SIGNAL, TERN_SIGNAL_ADD, CUT);
    PASS(kernel_refuses(s, &q, TERN_UNSUPPORTED, NO_ATOMICS));
    return world_verify(&s->rig.world, "atomics that a kernel is refused");
}

static void add(struct host_scene *s, struct net_request q)
{
    struct net_request *added = net_rig_add(&s->rig, 0);
    q.result = added->result;
    *added = q;
}

static int kernels_allowed(struct host_scene *s)
{
    struct net_shape shape = {GROUP_WARP, 1, 32, 8};
    net_rig_clear(&s->rig);
    add(s, request(s, NET_REQUEST_PUT_SIGNAL, TERN_SIGNAL_SET, CUT));
    add(s, request(s, NET_REQUEST_ATOMIC, TERN_AMO_FETCH, CUT));
    add(s, request(s, NET_REQUEST_PUT_INLINE, 0, CUT));
    add(s, request(s, NET_REQUEST_SIGNAL, TERN_SIGNAL_SET, CUT));
    add(s, request(s, NET_REQUEST_GET, 0, CUT));
    add(s, request(s, NET_REQUEST_PUT, 0, CUT));
    add(s, request(s, NET_REQUEST_SIGNAL, TERN_SIGNAL_ADD, 1));
    add(s, request(s, NET_REQUEST_ATOMIC, TERN_AMO_ADD, 3));
    PASS(net_rig_launch(&s->rig, 0, &shape, NULL));
    PASS(net_rig_collect(&s->rig));
    PASS(net_rig_all(&s->rig, TERN_OK));
    CHECK(s->rig.ranks[0].results[1].value == 9, "fetched %llu",
          (unsigned long long)s->rig.ranks[0].results[1].value);
    memcpy(image(s, s->box[CUT], 0), image(s, s->local[0], 0), 64);
    for (int r = 1; r < RANKS; r++) {
        expect(s, r, 24, 9);
    }
    return world_verify(&s->rig.world, "what a kernel does over a link without atomics");
}

/* Barriers set words, and do without atomics. */
static int barriers(struct host_scene *s)
{
    struct tern_team *teams[RANKS];
    struct tern_net_team views[RANKS];
    PASS(open_teams(s, TERN_TEAM_WORLD, teams, views));
    for (int r = 0; r < RANKS; r++) {
        OK(tern_net_barrier_on_stream(s->rig.networks[r], &views[r], lane_of(s, r)));
    }
    for (int r = 0; r < RANKS; r++) {
        OK(tern_net_synchronize(s->rig.networks[r], lane_of(s, r)));
        tern_net_team_close(s->rig.networks[r], &views[r]);
        tern_team_close(teams[r]);
    }
    return 0;
}

static int kernel_body(struct host_scene *s)
{
    PASS(kernels_refused(s));
    PASS(kernels_allowed(s));
    return barriers(s);
}

/* ---- Who is told ---- */

static int describe_body(struct host_scene *s)
{
    for (int r = 0; r < RANKS; r++) {
        struct tern_comm *comm = s->rig.world.members[r].comm;
        char text[4096];
        int bytes = tern_comm_describe(comm, text, sizeof text);
        CHECK(bytes > 0 && bytes < (int)sizeof text, "%d bytes", bytes);
        CHECK((strstr(text, "rank 0: no atomics to rank 2:") != NULL) == (r == 0) &&
                  (strstr(text, "no atomics") != NULL) == (r == 0),
              "rank %d says \"%s\"", r, text);
    }
    return 0;
}

static int host_scene_body(struct host_scene *s) { return run_cut(host_body, s); }
static int kernel_scene_body(struct host_scene *s) { return run_cut(kernel_body, s); }
static int describe_scene_body(struct host_scene *s) { return run_cut(describe_body, s); }

static int host(struct test *t)
{
    (void)t;
    return in_scene(NULL, host_scene_body);
}

static int kernels(struct test *t)
{
    (void)t;
    return in_scene(NULL, kernel_scene_body);
}

static int describes(struct test *t)
{
    (void)t;
    return in_scene(NULL, describe_scene_body);
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "the host over a link without atomics", host);
    test_run(&t, "kernels over a link without atomics", kernels);
    test_run(&t, "who describes the communicator says so", describes);
    return test_end(&t);
}
