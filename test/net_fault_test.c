/* SPDX-License-Identifier: Apache-2.0
 *
 * What cannot be done: waits and barriers that miss their deadline, and what the host is told of them; giving
 * up; refusals by the host and in kernels, which move nothing. One file, because every case is one more thing
 * that goes wrong in the same scene. */
#include "net_scene.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- Deadlines ---- */

/* After a while, from another thread. */
static void *come_late(void *scene)
{
    struct host_scene *s = (struct host_scene *)scene;
    struct timespec while_ns = {0, 50000000};
    nanosleep(&while_ns, NULL);
    (void)tern_net_signal(s->rig.networks[3], 2, 0, device(s, s->words[3], 56), TERN_SIGNAL_ADD, 8, 1);
    return NULL;
}

/* Longer than the wait of any one kernel. */
static int wait_for_long(struct host_scene *s)
{
    struct tern_network *n = s->rig.networks[2];
    double begin = test_seconds();
    enum tern_status status;
    pthread_t thread;
    EXPECT(tern_net_wait(n, device(s, s->words[2], 56), 8, TERN_COMPARE_EQ, 1, 60), TERN_TIMEOUT);
    CHECK(test_seconds() - begin >= 0.06, "60 ms are over after %.1f", 1e3 * (test_seconds() - begin));
    CHECK(pthread_create(&thread, NULL, come_late, s) == 0, "no thread");
    status = tern_net_wait(n, device(s, s->words[2], 56), 8, TERN_COMPARE_EQ, 1, 0);
    pthread_join(thread, NULL);
    OK(status);
    return 0;
}

static int late_body(struct host_scene *s)
{
    struct tern_network *n = s->rig.networks[2];
    char where[64];
    int offset = (int)((char *)device(s, s->words[2], 32) - (char *)s->rig.views[2].heap.own);
    snprintf(where, sizeof where, "offset %d of its window is 0, not >= 3", offset);
    REFUSES(tern_net_wait(n, device(s, s->words[2], 32), 8, TERN_COMPARE_GE, 3, 20), TERN_TIMEOUT, where);
    CHECK(strstr(tern_last_error(), "rank 2: the word of 8 bytes") != NULL, "\"%s\"", tern_last_error());
    /* The same by a kernel: the stream goes on, and who synchronises is told, once. */
    OK(tern_net_wait_on_stream(n, device(s, s->words[2], 32), 8, TERN_COMPARE_GE, 3, 20, lane_of(s, 2)));
    OK(tern_net_signal_on_stream(n, 1, 0, device(s, s->words[2], 40), TERN_SIGNAL_SET, 4, 1, lane_of(s, 2)));
    REFUSES(tern_net_synchronize(n, lane_of(s, 2)), TERN_TIMEOUT, where);
    OK(tern_net_synchronize(n, lane_of(s, 2)));
    OK(tern_net_wait(s->rig.networks[1], device(s, s->words[1], 40), 4, TERN_COMPARE_EQ, 1, 0));
    /* Nothing is broken by it: the next failure is told, and a word that comes late has come. */
    OK(tern_net_wait_on_stream(n, device(s, s->words[2], 36), 4, TERN_COMPARE_NE, 0, 20, lane_of(s, 2)));
    REFUSES(tern_net_synchronize(n, lane_of(s, 2)), TERN_TIMEOUT, "is 0, not != 0");
    OK(tern_net_signal(s->rig.networks[0], 2, 0, device(s, s->words[0], 32), TERN_SIGNAL_SET, 8, 3));
    OK(tern_net_wait(n, device(s, s->words[2], 32), 8, TERN_COMPARE_GE, 3, 0));
    return wait_for_long(s);
}

static int deadlines(struct test *t)
{
    (void)t;
    return in_scene(NULL, late_body);
}

/* Ranks 1 and 3 come late to round 3; those who waited come again, and all pass. */
static int late_to_barrier(struct host_scene *s, struct tern_net_team *views)
{
    for (int round = 1; round <= 2; round++) {
        for (int r = 0; r < RANKS; r++) {
            OK(tern_net_barrier_on_stream(s->rig.networks[r], &views[r], lane_of(s, r)));
        }
    }
    for (int r = 0; r < RANKS; r++) {
        OK(tern_net_synchronize(s->rig.networks[r], lane_of(s, r)));
    }
    for (int r = 0; r < RANKS; r += 2) {
        OK(tern_net_barrier_on_stream(s->rig.networks[r], &views[r], lane_of(s, r)));
    }
    for (int r = 0; r < RANKS; r += 2) {
        REFUSES(tern_net_synchronize(s->rig.networks[r], lane_of(s, r)), TERN_TIMEOUT,
                "no signal of round 3 of the barrier of a team of 4 ranks from rank 1, 3 within");
        CHECK(strstr(tern_last_error(), "has come to 2)") != NULL, "\"%s\"", tern_last_error());
    }
    for (int r = 0; r < RANKS; r++) {
        OK(tern_net_barrier_on_stream(s->rig.networks[r], &views[r], lane_of(s, r)));
    }
    for (int r = 0; r < RANKS; r++) {
        OK(tern_net_synchronize(s->rig.networks[r], lane_of(s, r)));
    }
    return 0;
}

static int late_barrier_body(struct host_scene *s)
{
    struct tern_team *teams[RANKS];
    struct tern_net_team views[RANKS];
    PASS(open_teams(s, TERN_TEAM_WORLD, teams, views));
    int result = late_to_barrier(s, views);
    for (int r = 0; r < RANKS; r++) {
        tern_net_team_close(s->rig.networks[r], &views[r]);
        tern_team_close(teams[r]);
    }
    return result;
}

static int late_barrier(struct test *t)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    (void)t;
    config.timeout_ms = 2000;
    return in_scene(&config, late_barrier_body);
}

static const struct machine_ops *machine_ops;
static int num_stores;

/* The first of all fails. */
static enum tern_status store(struct machine *m, uint64_t *at, uint64_t value, struct tern_stream *stream)
{
    return num_stores++ == 0 ? TERN_FAIL(TERN_OUT_OF_MEMORY, "no store")
                             : machine_ops->store(m, at, value, stream);
}

/* One that cannot be told is no reason to let the others wait. */
static int abort_in_part(struct host_scene *s)
{
    struct machine *m = s->rig.networks[3]->machine;
    struct machine_ops ops = *m->ops;
    enum tern_status status;
    int untold = 0; /* the first that is told by a store */
    while (s->rig.networks[3]->routes[untold] != NET_ROUTE_P2P) {
        untold++;
    }
    machine_ops = m->ops;
    num_stores = 0;
    ops.store = store;
    m->ops = &ops;
    status = tern_net_abort(s->rig.networks[3]);
    m->ops = machine_ops;
    EXPECT(status, TERN_OUT_OF_MEMORY);
    for (int r = 0; r < RANKS; r++) {
        EXPECT(tern_net_wait(s->rig.networks[r], device(s, s->words[r], 48), 8, TERN_COMPARE_EQ, 1, 20),
               r == untold ? TERN_TIMEOUT : TERN_DISCONNECTED);
    }
    return 0;
}

static int abort_body(struct host_scene *s)
{
    for (int r = 0; r < RANKS; r++) { /* these wait for what never comes */
        OK(tern_net_wait_on_stream(s->rig.networks[r], device(s, s->words[r], 48), 8, TERN_COMPARE_EQ, 1, 0,
                                   lane_of(s, r)));
    }
    OK(tern_net_abort(s->rig.networks[3]));
    for (int r = 0; r < RANKS; r++) {
        REFUSES(tern_net_synchronize(s->rig.networks[r], lane_of(s, r)), TERN_DISCONNECTED,
                "rank 3 called tern_net_abort");
        REFUSES(tern_net_wait(s->rig.networks[r], device(s, s->words[r], 48), 8, TERN_COMPARE_EQ, 1, 0),
                TERN_DISCONNECTED, "rank 3 called tern_net_abort");
        OK(tern_net_wait(s->rig.networks[r], device(s, s->words[r], 48), 8, TERN_COMPARE_EQ, 0, 0));
    }
    return 0;
}

enum { FULL_THREADS = 128, FULL_EACH = 28, FULL_BYTES = BYTES / FULL_THREADS };

/* Rank 3 gives up while its own kernel still puts as fast as rings take it: that they are full keeps nobody
 * from being told. */
static int abort_when_full(struct host_scene *s)
{
    struct net_shape shape = {GROUP_THREAD, FULL_THREADS / 32, 32, FULL_EACH};
    net_rig_clear(&s->rig);
    for (int i = 0; i < FULL_THREADS * FULL_EACH; i++) {
        struct net_request *q = net_rig_add(&s->rig, 3);
        q->kind = NET_REQUEST_PUT;
        q->peer = 1;
        q->remote = device(s, s->box[3], (size_t)(i / FULL_EACH) * FULL_BYTES); /* each thread its own */
        q->local = q->remote;
        q->bytes = FULL_BYTES;
    }
    OK(tern_net_wait_on_stream(s->rig.networks[1], device(s, s->words[1], 48), 8, TERN_COMPARE_EQ, 1, 0,
                               lane_of(s, 1)));
    PASS(net_rig_launch(&s->rig, 3, &shape, NULL));
    OK(tern_net_abort(s->rig.networks[3]));
    REFUSES(tern_net_synchronize(s->rig.networks[1], lane_of(s, 1)), TERN_DISCONNECTED,
            "rank 3 called tern_net_abort");
    return world_synchronize(&s->rig.world);
}

static int aborts(struct test *t)
{
    (void)t;
    PASS(in_scene(NULL, abort_in_part));
    PASS(in_scene(NULL, abort_when_full));
    return in_scene(NULL, abort_body);
}

/* ---- Refusals ---- */

/* Words of 0, 3 and 16 bytes. */
static int width_refusals(struct host_scene *s)
{
    static const uint32_t widths[] = {0, 3, 16};
    struct tern_network *n = s->rig.networks[0];
    struct tern_stream *stream = lane_of(s, 0);
    void *word = device(s, s->words[0], 0), *local = device(s, s->local[0], 0);
    for (int i = 0; i < 3; i++) {
        uint32_t width = widths[i];
        REFUSES(tern_net_signal_on_stream(n, 0, 0, word, TERN_SIGNAL_SET, width, 1, stream),
                TERN_INVALID_ARGUMENT, "a word has 4 or 8 bytes");
        REFUSES(tern_net_atomic_on_stream(n, 0, 0, word, TERN_AMO_ADD, width, 1, 0, local, stream),
                TERN_INVALID_ARGUMENT, "a word has 4 or 8 bytes");
        REFUSES(tern_net_wait_on_stream(n, word, width, TERN_COMPARE_EQ, 1, 1, stream), TERN_INVALID_ARGUMENT,
                "a word has 4 or 8 bytes");
        REFUSES(tern_net_atomic(n, 0, 0, word, TERN_AMO_ADD, width, 1, 0, NULL), TERN_INVALID_ARGUMENT,
                "a word has 4 or 8 bytes");
    }
    REFUSES(tern_net_atomic_on_stream(n, 0, 0, word, TERN_AMO_ADD, 8, 1, 0, (char *)local + 4, stream),
            TERN_INVALID_ARGUMENT, "old is at");
    return 0;
}

/* Of no bytes nobody asks where they lie, but whose they are. */
static int no_bytes(struct host_scene *s)
{
    struct tern_network *n = s->rig.networks[0];
    struct net_shape shape = {GROUP_WARP, 1, 64, 1};
    net_rig_clear(&s->rig);
    OK(tern_net_put(n, 1, 0, NULL, NULL, 0));
    OK(tern_net_get(n, 1, 0, NULL, device(s, s->local[0], 0), 0));
    REFUSES(tern_net_put(n, RANKS, 0, NULL, NULL, 0), TERN_INVALID_ARGUMENT, "peer 4");
    for (int i = 0; i < 2; i++) {
        struct net_request *q = net_rig_add(&s->rig, 0);
        q->kind = i == 0 ? NET_REQUEST_PUT : NET_REQUEST_GET;
        q->peer = 1;
    }
    PASS(net_rig_launch(&s->rig, 0, &shape, NULL));
    PASS(net_rig_collect(&s->rig));
    return net_rig_all(&s->rig, TERN_OK);
}

static int host_refusals(struct host_scene *s)
{
    struct tern_network *n = s->rig.networks[0];
    void *box = device(s, s->box[0], 0), *word = device(s, s->words[0], 0),
         *local = device(s, s->local[0], 0);
    REFUSES(tern_net_put(n, RANKS, 0, box, local, 8), TERN_INVALID_ARGUMENT, "peer 4");
    REFUSES(tern_net_put(n, 0, 2, box, local, 8), TERN_INVALID_ARGUMENT, "queue 2, where the network has 2");
    REFUSES(tern_net_put(n, 0, 0, local, box, 8), TERN_INVALID_ARGUMENT, "is in no window");
    REFUSES(tern_net_get(n, 0, 0, box, local, 8), TERN_INVALID_ARGUMENT, "is in no window");
    REFUSES(tern_net_put(n, 0, 0, box, local, 1ull << 40), TERN_INVALID_ARGUMENT, "where its window has");
    REFUSES(tern_net_put(n, 0, 0, box, local, SIZE_MAX), TERN_INVALID_ARGUMENT, "where its window has");
    REFUSES(tern_net_get(n, 0, 0, local, box, SIZE_MAX - 7), TERN_INVALID_ARGUMENT, "where its window has");
    REFUSES(tern_net_put(NULL, 0, 0, box, local, 8), TERN_INVALID_ARGUMENT, "network");
    REFUSES(tern_net_put(n, 0, 0, NULL, local, 8), TERN_INVALID_ARGUMENT, "remote");
    REFUSES(tern_net_signal(n, 0, 0, word, 2, 8, 1), TERN_INVALID_ARGUMENT, "signal 2");
    REFUSES(tern_net_signal(n, 0, 0, word, TERN_SIGNAL_ADD, 2, 1), TERN_INVALID_ARGUMENT, "width is 2");
    REFUSES(tern_net_signal(n, 0, 0, (char *)word + 4, TERN_SIGNAL_ADD, 8, 1), TERN_INVALID_ARGUMENT,
            "8-byte aligned");
    REFUSES(tern_net_atomic(n, 0, 0, word, 8, 8, 1, 0, NULL), TERN_INVALID_ARGUMENT, "amo 8");
    REFUSES(tern_net_wait(n, word, 8, 6, 1, 0), TERN_INVALID_ARGUMENT, "compare 6");
    REFUSES(tern_net_quiet(n, -2, -1), TERN_INVALID_ARGUMENT, "peer -2");
    REFUSES(tern_net_quiet(n, 0, 2), TERN_INVALID_ARGUMENT, "queue 2");
    return world_verify(&s->rig.world, "refusals move nothing");
}

/* What is no width, no operation, no signal, no comparison; and a word that is misaligned, waited for. */
static int word_refusals(struct host_scene *s, const struct net_request *good)
{
    static const uint32_t widths[] = {0, 3, 16};
    struct net_request q = *good;
    for (int i = 0; i < 3; i++) {
        q.width = widths[i];
        PASS(kernel_refuses(s, &q, TERN_INVALID_ARGUMENT, "of which one does not exist"));
    }
    q = *good;
    q.op = q.kind == NET_REQUEST_ATOMIC ? TERN_AMO_FETCH + 1
           : q.kind == NET_REQUEST_WAIT ? TERN_COMPARE_LT + 1
                                        : TERN_SIGNAL_SET + 1;
    if (q.kind != NET_REQUEST_PUT_INLINE) {
        PASS(kernel_refuses(s, &q, TERN_INVALID_ARGUMENT, "of which one does not exist"));
    }
    return 0;
}

static int device_refusals(struct host_scene *s)
{
    static const uint32_t all[] = {NET_REQUEST_PUT,    NET_REQUEST_GET,    NET_REQUEST_PUT_SIGNAL,
                                   NET_REQUEST_SIGNAL, NET_REQUEST_ATOMIC, NET_REQUEST_PUT_INLINE};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct net_request good = {all[i], 8, TERN_SIGNAL_ADD, 1, 1, 0, NULL, NULL, 8, NULL, 1, 0, 0, NULL,
                                   0,      0},
                           q;
        good.remote = device(s, s->words[0], 0);
        good.word = device(s, s->words[0], 8);
        good.local = device(s, s->local[0], 0);
        q = good;
        q.peer = RANKS;
        PASS(kernel_refuses(s, &q, TERN_INVALID_ARGUMENT, "operated on rank 4 by a queue, one of which"));
        q.peer = -1;
        PASS(kernel_refuses(s, &q, TERN_INVALID_ARGUMENT, "does not exist"));
        q = good;
        q.queue = 2;
        PASS(kernel_refuses(s, &q, TERN_INVALID_ARGUMENT, "does not exist"));
        q = good;
        q.remote = device(s, s->local[0], 0);
        PASS(kernel_refuses(s, &q, TERN_INVALID_ARGUMENT, "in no window"));
        q = good;
        q = good;
        if (all[i] != NET_REQUEST_PUT && all[i] != NET_REQUEST_GET) {
            PASS(word_refusals(s, &good));
        }
        if (all[i] <= NET_REQUEST_PUT_SIGNAL && all[i] != NET_REQUEST_PUT_INLINE) {
            q.bytes = 1ull << 40;
            PASS(kernel_refuses(s, &q, TERN_INVALID_ARGUMENT, "in no window"));
            q.bytes = ~0ull;
            PASS(kernel_refuses(s, &q, TERN_INVALID_ARGUMENT, "in no window"));
            q = good;
        }
        if (all[i] == NET_REQUEST_PUT_SIGNAL) {
            q.word = (char *)q.word + 4;
            PASS(kernel_refuses(s, &q, TERN_INVALID_ARGUMENT, "misaligned"));
        } else if (all[i] != NET_REQUEST_PUT && all[i] != NET_REQUEST_GET) {
            q.remote = (char *)q.remote + 4;
            PASS(kernel_refuses(s, &q, TERN_INVALID_ARGUMENT, "misaligned"));
        }
    }
    struct net_request wait = {
        NET_REQUEST_WAIT, 8, TERN_COMPARE_EQ, 0, 0, 0, NULL, NULL, 0, NULL, 1, 0, 1, NULL, 0, 0};
    wait.remote = device(s, s->words[0], 0);
    PASS(word_refusals(s, &wait));
    return world_verify(&s->rig.world, "refusals in kernels move nothing");
}

static int refusal_body(struct host_scene *s)
{
    PASS(host_refusals(s));
    PASS(width_refusals(s));
    PASS(no_bytes(s));
    return device_refusals(s);
}

/* ---- Rings that fail ---- */

/* Kernels know how far the window may grow, not how far it has.
 * What the proxy refuses ends the queue it came by, and no other; calls that block say so by themselves. */
static int ring_body(struct host_scene *s)
{
    struct tern_network *n = s->rig.networks[0];
    char *own = s->rig.views[0].heap.own, *box = (char *)device(s, s->box[0], 0);
    uint64_t bytes = terni_heap_bytes(n->comm->heap);
    PASS(put_ends(s, s->local[0], 1, box, 100, TERN_OK, ""));
    CHECK(bytes + 64 <= s->rig.views[0].heap.bytes, "the window has no room to grow");
    PASS(put_ends(s, s->local[0], 1, own + bytes - 64, 128, TERN_INVALID_ARGUMENT,
                  "queue 1 to rank 2: a put of"));
    CHECK(strstr(tern_last_error(), "the peer has registered nothing there") != NULL, "\"%s\"",
          tern_last_error());
    PASS(put_ends(s, s->local[0], 1, box, 100, TERN_INVALID_ARGUMENT, "queue 1 to rank 2"));
    PASS(put_ends(s, s->local[0], 0, box, 100, TERN_OK, ""));
    REFUSES(tern_net_put(n, 2, 1, box, device(s, s->local[0], 0), 8), TERN_INVALID_ARGUMENT,
            "queue 1 to rank 2");
    REFUSES(tern_net_atomic(n, 2, 1, device(s, s->words[0], 0), TERN_AMO_ADD, 8, 1, 0, NULL),
            TERN_INVALID_ARGUMENT, "queue 1 to rank 2");
    REFUSES(tern_net_quiet(n, 2, 1), TERN_INVALID_ARGUMENT, "queue 1 to rank 2");
    REFUSES(tern_net_quiet(n, 2, -1), TERN_INVALID_ARGUMENT, "queue 1 to rank 2");
    REFUSES(tern_net_quiet(n, -1, 1), TERN_INVALID_ARGUMENT, "queue 1 to rank 2");
    REFUSES(tern_net_quiet(n, -1, -1), TERN_INVALID_ARGUMENT, "queue 1 to rank 2");
    OK(tern_net_quiet(n, 2, 0));
    OK(tern_net_quiet(n, -1, 0));
    OK(tern_net_quiet(n, 3, -1));
    OK(tern_net_signal(n, 2, 0, device(s, s->words[0], 0), TERN_SIGNAL_ADD, 8, 1));
    return 0;
}

static const void *bad_source;

static enum tern_status copy(struct machine *m, void *dst, const void *src, size_t bytes,
                             struct tern_stream *stream)
{
    return src == bad_source ? TERN_FAIL(TERN_DEVICE_ERROR, "no copy")
                             : machine_ops->copy(m, dst, src, bytes, stream);
}

/* The proxy cannot copy what a put names: the queue is lost, and it was the device. */
static int ring_without_copy(struct host_scene *s)
{
    struct machine *m = s->rig.networks[0]->machine;
    struct machine_ops ops = *m->ops;
    int result;
    machine_ops = m->ops;
    bad_source = device(s, s->local[0], 0);
    ops.copy = copy;
    m->ops = &ops;
    result = put_ends(s, s->local[0], 1, (char *)device(s, s->box[0], 0), 100, TERN_DEVICE_ERROR,
                      "queue 1 to rank 2: a put of 100 bytes");
    m->ops = machine_ops;
    PASS(result);
    CHECK(strstr(tern_last_error(), "no copy") != NULL, "\"%s\"", tern_last_error());
    REFUSES(tern_net_quiet(s->rig.networks[0], 2, 1), TERN_DEVICE_ERROR, "no copy");
    return put_ends(s, s->local[0], 0, (char *)device(s, s->box[0], 0), 100, TERN_OK, "");
}

/* Who gives up tells others by any queue that there is; and says whom it could not tell. */
static int dead_queues(struct host_scene *s)
{
    char *own = s->rig.views[0].heap.own;
    uint64_t bytes = terni_heap_bytes(s->rig.networks[0]->comm->heap);
    PASS(put_ends(s, s->local[0], 0, own + bytes - 64, 128, TERN_INVALID_ARGUMENT,
                  "queue 0 to rank 2: a put of"));
    OK(tern_net_wait_on_stream(s->rig.networks[2], device(s, s->words[2], 48), 8, TERN_COMPARE_EQ, 1, 0,
                               lane_of(s, 2)));
    OK(tern_net_abort(s->rig.networks[0]));
    REFUSES(tern_net_synchronize(s->rig.networks[2], lane_of(s, 2)), TERN_DISCONNECTED,
            "rank 0 called tern_net_abort");
    return 0;
}

static int no_queue(struct host_scene *s)
{
    char *own = s->rig.views[0].heap.own;
    uint64_t bytes = terni_heap_bytes(s->rig.networks[0]->comm->heap);
    for (uint32_t q = 0; q < 2; q++) {
        PASS(put_ends(s, s->local[0], q, own + bytes - 64, 128, TERN_INVALID_ARGUMENT, "a put of"));
    }
    REFUSES(tern_net_abort(s->rig.networks[0]), TERN_INVALID_ARGUMENT,
            "rank 0 gives up, and rank 2 could not be told");
    REFUSES(tern_net_wait(s->rig.networks[3], device(s, s->words[3], 48), 8, TERN_COMPARE_EQ, 1, 0),
            TERN_DISCONNECTED, "rank 0 called tern_net_abort");
    return 0;
}

static int rings(struct test *t)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    (void)t;
    config.num_queues = 2;
    PASS(in_scene_with_room(&config, dead_queues));
    PASS(in_scene_with_room(&config, no_queue));
    PASS(in_scene(&config, ring_without_copy));
    return in_scene_with_room(&config, ring_body);
}

static void nothing(const void *args) { (void)args; }

static int launch_refusals(struct tern_comm *comm)
{
    struct tern_kernel kernel = {"absent", NULL, NULL};
    struct tern_launch_args args = TERN_LAUNCH_ARGS_INIT;
    args.args = &kernel;
    args.args_bytes = sizeof kernel;
    args.num_blocks = 1;
    args.num_threads = 32;
    REFUSES(tern_launch(comm, &kernel, &args, NULL), TERN_UNSUPPORTED,
            "kernel absent was not compiled for the");
    kernel.cpu = nothing;
    kernel.cuda = (void (*)(void))nothing; /* refused before it is looked at */
    args.num_threads = 33;
    REFUSES(tern_launch(comm, &kernel, &args, NULL), TERN_INVALID_ARGUMENT, "1 blocks of 33 threads");
    args.num_threads = 1056;
    REFUSES(tern_launch(comm, &kernel, &args, NULL), TERN_INVALID_ARGUMENT, "1 blocks of 1056 threads");
    args.num_threads = 32;
    args.num_blocks = 0;
    REFUSES(tern_launch(comm, &kernel, &args, NULL), TERN_INVALID_ARGUMENT, "0 blocks of 32 threads");
    args.num_blocks = 1;
    args.args_bytes = 4001;
    REFUSES(tern_launch(comm, &kernel, &args, NULL), TERN_INVALID_ARGUMENT, "4001");
    args.args = NULL;
    REFUSES(tern_launch(comm, &kernel, &args, NULL), TERN_INVALID_ARGUMENT, "arguments");
    return 0;
}

static int refusals(struct test *t)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_comm *comms[2];
    struct tern_network *networks[2];
    (void)t;
    config.num_queues = 2;
    PASS(in_scene(&config, refusal_body));
    OK(tern_comm_open_all(2, NULL, comms));
    config.num_queues = TERN_NET_MAX_QUEUES + 1;
    REFUSES(tern_net_open_all(2, comms, &config, networks), TERN_INVALID_ARGUMENT, "num_queues");
    config.num_queues = 0;
    config.transport = TERN_TRANSPORT_SOFTNIC + 1;
    REFUSES(tern_net_open_all(2, comms, &config, networks), TERN_INVALID_ARGUMENT, "transport");
    PASS(launch_refusals(comms[0]));
    tern_comm_close(comms[0]);
    tern_comm_close(comms[1]);
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    net_rig_cases(&t, "waits that miss their deadline", deadlines);
    net_rig_cases(&t, "a barrier that misses its deadline", late_barrier);
    net_rig_cases(&t, "giving up", aborts);
    net_rig_cases(&t, "refusals", refusals);
    net_rig_proxy_cases(&t, "rings that fail", rings);
    return test_end(&t);
}
