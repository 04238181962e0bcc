/* SPDX-License-Identifier: Apache-2.0
 *
 * What is particular to networks over queue pairs: memory that NICs do not reach, rings that are full and
 * counters past 16 bits, a queue that fails, opening that fails at every step, closing in any order. What all
 * transports have in common is in the other net tests; which of them AUTO takes is in net_choice_test.c. */
#include "net_scene.h"

#include "kernels/kernels.h"
#include "mock_nic.h"
#include "net/nic_provider.h"
#include "pgas/pgas_nics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Memory that NICs do not reach ---- */

static int local_body(struct host_scene *s)
{
    static const uint32_t kinds[] = {NET_REQUEST_PUT, NET_REQUEST_GET, NET_REQUEST_PUT_SIGNAL};
    for (int i = 0; i < 6; i++) {
        struct net_request q;
        memset(&q, 0, sizeof q);
        q.kind = kinds[i % 3];
        q.flags = i < 3 ? NET_REQUEST_PLAIN : 0;
        q.peer = 3;
        q.remote = device(s, s->box[0], 0);
        q.local = device(s, s->local[0], 0);
        q.bytes = 64;
        q.word = device(s, s->words[0], 0);
        q.width = 8;
        q.value = 1;
        PASS(kernel_refuses(s, &q, TERN_INVALID_ARGUMENT, "queue 0 to rank 3 its own memory at"));
        CHECK(strstr(tern_last_error(), "in no window: NICs reach nothing else") != NULL, "\"%s\"",
              tern_last_error());
    }
    /* Nothing is lost by it. */
    OK(tern_net_put(s->rig.networks[0], 3, 0, device(s, s->box[0], 0), device(s, s->box[0], 0), 64));
    memcpy(image(s, s->box[3], 0), image(s, s->box[0], 0), 64);
    return world_verify(&s->rig.world, "what is refused moves nothing");
}

static int local_memory(struct test *t)
{
    (void)t;
    return in_scene(NULL, local_body);
}

/* ---- Queues that fail ---- */

/* What has not grown yet is refused before it is handed over; a key that its NIC does not know ends the
 * queue, and no other. */
static int fail_body(struct host_scene *s)
{
    struct tern_network *n = s->rig.networks[0];
    char *own = s->rig.views[0].heap.own, *box = (char *)device(s, s->box[0], 0);
    uint64_t bytes = terni_heap_bytes(n->comm->heap);
    const struct net_queue *queues = (const struct net_queue *)s->rig.views[0].queues + 2 * n->num_queues;
    uint64_t there;
    CHECK(bytes + 64 <= s->rig.views[0].heap.bytes, "the window has no room to grow");
    PASS(put_ends(s, s->box[0], 1, own + bytes - 64, 128, TERN_INVALID_ARGUMENT, "the windows do not have"));
    PASS(put_ends(s, s->box[0], 1, box, 100, TERN_OK, ""));
    /* Of the piece of the window of tern_alloc in which the box is; both queues may share it. */
    there = (uint64_t)(uintptr_t)box + (uint64_t)(n->comm->heap->owners[2] - n->comm->heap->owners[0]);
    ((struct net_range *)(uintptr_t)queue_range(&queues[1].remote, there))->key = wqe_key_of(0x424242);
    PASS(put_ends(s, s->box[0], 1, box, 100, TERN_INVALID_ARGUMENT,
                  "queue 1 to rank 2 has failed with syndrome 0x13, remote access error"));
    PASS(put_ends(s, s->box[0], 1, box, 100, TERN_INVALID_ARGUMENT, "queue 1 to rank 2"));
    REFUSES(tern_net_atomic(n, 2, 1, device(s, s->words[0], 0), TERN_AMO_ADD, 8, 1, 0, NULL),
            TERN_INVALID_ARGUMENT, "queue 1 to rank 2");
    REFUSES(tern_net_quiet(n, 2, 1), TERN_INVALID_ARGUMENT, "queue 1 to rank 2");
    REFUSES(tern_net_quiet(n, 2, -1), TERN_INVALID_ARGUMENT, "queue 1 to rank 2");
    REFUSES(tern_net_quiet(n, -1, -1), TERN_INVALID_ARGUMENT, "queue 1 to rank 2");
    OK(tern_net_quiet(n, 2, 0));
    OK(tern_net_quiet(n, -1, 0));
    OK(tern_net_put(n, 3, 1, box, box, 100)); /* to another peer by the same index */
    return 0;
}

/* Of cases in which the test itself looks into tables of queues, or writes there. */
static int skip_on_cuda(struct test *t)
{
    return net_rig_on_cuda() ? test_skip(t, "tables of queues are in the GPU's memory") : TEST_PASSED;
}

static int failures(struct test *t)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    PASS(skip_on_cuda(t));
    config.num_queues = 2;
    return in_scene_with_room(&config, fail_body);
}

/* Of a collapsed queue. Relaxed: nothing is read on the strength of it. */
static uint32_t last_completed(const struct net_queue *q)
{
    return cqe_tail_idx(__atomic_load_n(q->cqes + CQE_WORD_TAIL, __ATOMIC_RELAXED));
}

/* Puts that are posted while the NIC rests, the first of them with a key that it does not know. */
static int post_wrongly(struct host_scene *s, struct net_queue *q)
{
    enum { PUTS = 3 };
    struct net_shape shape = {GROUP_THREAD, 1, 32, 1};
    struct nic_provider *p = &s->rig.networks[0]->nics->provider;
    uint64_t box = (uint64_t)(uintptr_t)device(s, s->box[0], 0);
    uint64_t end = q->state->reserved + PUTS;
    OK(p->ops->pause(p));
    ((struct net_range *)(uintptr_t)queue_range(&q->local, box))->key = wqe_key_of(0x424242);
    net_rig_clear(&s->rig);
    for (int i = 0; i < PUTS; i++) {
        struct net_request *request = net_rig_add(&s->rig, 0);
        request->kind = NET_REQUEST_PUT;
        request->peer = 2;
        request->remote = device(s, s->box[0], 0);
        request->local = device(s, s->box[0], 0);
        request->bytes = 64;
    }
    PASS(net_rig_launch(&s->rig, 0, &shape, NULL));
    PASS(world_synchronize(&s->rig.world));
    OK(p->ops->resume(p));
    for (int i = 0; (last_completed(q) + 1 - end) % 65536 != 0; i++) {
        CHECK(i < 1000, "the NIC has come to %u", last_completed(q));
        /* A NIC that is a kernel runs while a thread waits. */
        (void)tern_net_wait(s->rig.networks[0], device(s, s->words[0], 0), 8, TERN_COMPARE_EQ, 77, 5);
    }
    return 0;
}

/* Where all completions overwrite one entry, the first error is gone when a kernel looks too late. A NIC in
 * software still knows it, and then nobody calls the peer lost; of others it is most likely. */
static int overwritten_body(struct host_scene *s)
{
    struct tern_network *n = s->rig.networks[0];
    struct net_queue *q = (struct net_queue *)(uintptr_t)s->rig.views[0].queues + 2;
    CHECK((q->flags & NET_QUEUE_CQ_RING) == 0, "the scene's seed gives another kind of queue");
    if (net_rig_way()->nics == TERN_TRANSPORT_MLX5) {
        q->state->error = TERN_QUEUE_ERROR_SEEN | SYNDROME_FLUSHED;
        REFUSES(tern_net_put(n, 2, 0, device(s, s->box[0], 0), device(s, s->box[0], 0), 64),
                TERN_DISCONNECTED,
                "what failed first was overwritten, and is most likely that the peer is lost");
        return 0;
    }
    PASS(post_wrongly(s, q));
    REFUSES(tern_net_quiet(n, 2, 0), TERN_DISCONNECTED, "failed with syndrome 0x05, work request flushed");
    CHECK(strstr(tern_last_error(), "syndrome 0x04, local protection error: there is no lkey 0x00424242") &&
              !strstr(tern_last_error(), "lost"),
          "\"%s\"", tern_last_error());
    REFUSES(tern_net_wait(n, device(s, s->words[0], 0), 8, TERN_COMPARE_EQ, 77, 50), TERN_TIMEOUT,
            "; queue 0 to rank 2 has failed with syndrome 0x05: syndrome 0x04");
    CHECK(!strstr(tern_last_error(), "is lost"), "\"%s\"", tern_last_error());
    return 0;
}

static int overwritten(struct test *t)
{
    PASS(skip_on_cuda(t));
    return in_scene(NULL, overwritten_body);
}

/* ---- Many threads, full rings, 16 bits ---- */

enum { CROWD = 96, EACH = 40, TURNS = 20 }; /* CROWD * EACH * TURNS > 65536 */

static int turns; /* TURNS, or fewer */

static int crowd_body(struct host_scene *s)
{
    struct net_shape shape = {GROUP_THREAD, 1, CROWD, EACH};
    uint64_t wanted = 0, seen = 0;
    OK(tern_net_atomic(s->rig.networks[0], 3, 0, device(s, s->words[0], 0), TERN_AMO_SET, 8, 0, 0, NULL));
    net_rig_clear(&s->rig);
    for (int i = 0; i < CROWD * EACH; i++) {
        struct net_request *q = net_rig_add(&s->rig, 0);
        q->kind = NET_REQUEST_SIGNAL;
        q->op = TERN_SIGNAL_ADD;
        q->peer = 3;
        q->width = 8;
        q->remote = device(s, s->words[0], 0);
        q->value = 1 + (uint64_t)(i % 7);
        wanted += q->value * (uint64_t)turns;
    }
    for (int turn = 0; turn < turns; turn++) {
        PASS(net_rig_launch(&s->rig, 0, &shape, NULL));
    }
    PASS(net_rig_collect(&s->rig));
    PASS(net_rig_all(&s->rig, TERN_OK));
    OK(tern_net_atomic(s->rig.networks[0], 3, 0, device(s, s->words[0], 0), TERN_AMO_FETCH, 8, 0, 0, &seen));
    CHECK(seen == wanted, "the word is %llu, not %llu", (unsigned long long)seen, (unsigned long long)wanted);
    if (!net_rig_on_cuda()) { /* there the tables of queues are in the GPU's memory */
        const struct net_queue *q = (const struct net_queue *)s->rig.views[0].queues + 3;
        CHECK(q->state->consumed > 65536 || turns < TURNS, "the queue is at %llu only",
              (unsigned long long)q->state->consumed);
    }
    return 0;
}

static int crowds(struct test *t)
{
    turns = test_scaled(t, TURNS);
    return in_scene(NULL, crowd_body);
}

/* ---- Opening and closing ---- */

/* Two networks, whose ranks close in any order, some between windows that come and go. */
static int close_randomly(struct tern_comm **comms, uint64_t seed)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_network *networks[2][RANKS];
    struct rng rng = {seed};
    void *mine[RANKS];
    config.transport = net_rig_transport();
    for (int i = 0; i < 2; i++) {
        OK(tern_net_open_all(RANKS, comms, &config, networks[i]));
    }
    for (int left = 2 * RANKS; left > 0; left--) {
        int at = (int)rng_below(&rng, 2 * RANKS);
        while (networks[at / RANKS][at % RANKS] == NULL) {
            at = (at + 1) % (2 * RANKS);
        }
        tern_net_close(networks[at / RANKS][at % RANKS]);
        networks[at / RANKS][at % RANKS] = NULL;
        if (rng_one_in(&rng, 3)) {
            for (int r = 0; r < RANKS; r++) {
                OK(tern_alloc(comms[r], TERN_MEMORY_DEVICE, 4096, &mine[r]));
            }
            OK(tern_window_adopt_all(RANKS, comms, mine, 4096));
            for (int r = 0; r < RANKS; r++) {
                tern_window_release(comms[r], mine[r]);
                tern_free(comms[r], mine[r]);
            }
        }
    }
    return 0;
}

static int closing(struct test *t)
{
    for (uint64_t seed = 1; seed <= (uint64_t)net_rig_scaled(t, 30); seed++) {
        struct tern_comm *comms[RANKS];
        int result;
        PASS(open_comms(comms));
        result = close_randomly(comms, seed);
        close_comms(comms);
        CHECK(result == 0, "seed %llu", (unsigned long long)seed);
    }
    return 0;
}

/* A call of the libraries fails, another one each time: no rank has a network, and nothing is left. */
static int fail_each(struct test *t, struct tern_comm **comms)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_network *networks[RANKS];
    int calls, tries = 0, failed = 0;
    config.transport = TERN_TRANSPORT_MLX5;
    (void)mock_nic_fail(0);
    OK(tern_net_open_all(RANKS, comms, &config, networks));
    calls = mock_nic_fail(0);
    for (int r = 0; r < RANKS; r++) {
        tern_net_close(networks[r]);
    }
    for (int at = 1; at <= calls; at += 1 + calls / test_scaled(t, 200), tries++) {
        enum tern_status status;
        (void)mock_nic_fail(at);
        status = tern_net_open_all(RANKS, comms, &config, networks);
        (void)mock_nic_fail(0);
        for (int r = 0; status == TERN_OK && r < RANKS; r++) { /* another way was taken */
            tern_net_close(networks[r]);
        }
        failed += status != TERN_OK;
    }
    CHECK(failed > 0, "no call of %d that failed was noticed", calls);
    test_detail(t, "%d of %d calls, %d ended the opening", tries, calls, failed);
    return 0;
}

static int opening_fails(struct test *t)
{
    struct tern_comm *comms[RANKS];
    char complaint[256];
    int result;
    if (!mock_nic_open(1, 1)) {
        return test_skip(t, "this build has no rdma-core, or there is no place for files");
    }
    result = open_comms(comms);
    if (result == 0) {
        result = fail_each(t, comms);
        close_comms(comms);
    }
    CHECK(mock_nic_close(complaint) || result != 0, "%s", complaint);
    return result;
}

/* NICs in software that are kernels, one of which the machine does not launch. */
static const struct machine_ops *true_ops;
static int launches_left;

static enum tern_status launch_some(struct machine *m, const struct launch *l, struct tern_stream *stream)
{
    int is_nic = l->kernel == (int)TERN_KERNEL_softnic || l->kernel == (int)TERN_KERNEL_softnic_rc;
    return is_nic && --launches_left == 0 ? TERN_FAIL(TERN_OUT_OF_MEMORY, "no launch")
                                          : true_ops->launch(m, l, stream);
}

/* Each rank goes on until it fails itself, as ranks with threads of their own do. All end alike. */
static int open_alone(struct tern_comm **comms, const struct tern_net_config *config)
{
    struct tern_network *networks[RANKS] = {NULL};
    enum tern_status status[RANKS] = {TERN_OK};
    char sentences[RANKS][TERN_SENTENCE_BYTES] = {""};
    for (int step = 0; step < NET_OPEN_STEPS; step++) {
        for (int r = 0; r < RANKS; r++) {
            if (status[r] == TERN_OK) {
                status[r] = terni_network_open_step(comms[r], config, 0, step, &networks[r]);
                snprintf(sentences[r], sizeof sentences[r], "%.200s", tern_last_error());
            }
        }
    }
    for (int r = 0; r < RANKS; r++) {
        terni_network_close(networks[r]);
    }
    for (int r = 0; r < RANKS; r++) {
        CHECK(status[r] == TERN_OUT_OF_MEMORY && strcmp(sentences[r], "rank 2: no launch") == 0,
              "rank %d ended with %d, \"%s\"", r, status[r], sentences[r]);
    }
    return 0;
}

/* Then it opens, and all works. */
static int fail_to_run(struct tern_comm **comms)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_network *networks[RANKS];
    struct machine_ops ops = *comms[0]->machine->ops;
    void *words[RANKS];
    int result;
    true_ops = comms[0]->machine->ops;
    ops.launch = launch_some;
    config.transport = TERN_TRANSPORT_SOFTNIC;
    launches_left = 3; /* one a rank, in order */
    for (int r = 0; r < RANKS; r++) {
        comms[r]->machine->ops = &ops;
    }
    result = open_alone(comms, &config);
    for (int r = 0; r < RANKS; r++) {
        comms[r]->machine->ops = true_ops;
    }
    PASS(result);
    CHECK(launches_left <= 0, "no launch has failed");
    for (int r = 0; r < RANKS; r++) {
        OK(tern_alloc(comms[r], TERN_MEMORY_WINDOW, 8, &words[r]));
    }
    OK(tern_net_open_all(RANKS, comms, &config, networks));
    OK(tern_net_signal(networks[0], 2, 0, words[0], TERN_SIGNAL_SET, 8, 7));
    OK(tern_net_wait(networks[2], words[2], 8, TERN_COMPARE_EQ, 7, 0));
    for (int r = 0; r < RANKS; r++) {
        tern_net_close(networks[r]);
    }
    return 0;
}

static int running_fails(struct test *t)
{
    (void)t;
    for (int has_packets = 0; has_packets < 2; has_packets++) {
        struct tern_comm *comms[RANKS];
        int result;
        PASS(open_comms(comms));
        terni_nic_settings.runner = SOFTNIC_KERNEL;
        if (has_packets) {
            terni_softnic_wire_err(&terni_nic_settings.wire, 0);
        }
        result = fail_to_run(comms);
        close_comms(comms);
        memset(&terni_nic_settings, 0, sizeof terni_nic_settings);
        CHECK(result == 0, "%s packets", has_packets ? "with" : "without");
    }
    return 0;
}

/* ---- A signal that comes late ---- */

/* Rank 0's NIC holds still while a team meets: rank 0 passes, the others give up on it. Its signals come when
 * another team has the place. */
static int hold_signals(struct host_scene *s, struct tern_net_team *views)
{
    struct nic_provider *nic = &s->rig.networks[0]->nics->provider;
    OK(nic->ops->pause(nic));
    for (int r = 0; r < RANKS; r++) {
        OK(tern_net_barrier_on_stream(s->rig.networks[r], &views[r], lane_of(s, r)));
    }
    OK(tern_net_synchronize(s->rig.networks[0], lane_of(s, 0)));
    for (int r = 1; r < RANKS; r++) {
        REFUSES(tern_net_synchronize(s->rig.networks[r], lane_of(s, r)), TERN_TIMEOUT, "from rank 0 within");
    }
    return 0;
}

static int meet_without(struct host_scene *s, struct tern_net_team *views)
{
    struct nic_provider *nic = &s->rig.networks[0]->nics->provider;
    OK(nic->ops->resume(nic));
    OK(tern_net_quiet(s->rig.networks[0], -1, -1)); /* the late signals are there */
    for (int r = 1; r < RANKS; r++) {
        OK(tern_net_barrier_on_stream(s->rig.networks[r], &views[r], lane_of(s, r)));
    }
    for (int r = 1; r < RANKS; r++) {
        REFUSES(tern_net_synchronize(s->rig.networks[r], lane_of(s, r)), TERN_TIMEOUT, "from rank 0 within");
    }
    for (int round = 0; round < 3; round++) {
        for (int r = 0; r < RANKS; r++) {
            OK(tern_net_barrier_on_stream(s->rig.networks[r], &views[r], lane_of(s, r)));
        }
        for (int r = 0; r < RANKS; r++) {
            OK(tern_net_synchronize(s->rig.networks[r], lane_of(s, r)));
        }
    }
    return 0;
}

static int reopen_body(struct host_scene *s)
{
    struct tern_team *teams[RANKS], *others[RANKS];
    struct tern_net_team views[RANKS], first[RANKS];
    int result;
    PASS(open_teams(s, TERN_TEAM_WORLD, teams, first));
    PASS(hold_signals(s, first));
    memcpy(views, first, sizeof views);
    for (int r = 0; r < RANKS; r++) {
        tern_net_team_close(s->rig.networks[r], &first[r]);
    }
    memcpy(first, views, sizeof views);
    PASS(open_teams(s, TERN_TEAM_WORLD, others, views));
    CHECK(views[0].words == first[0].words, "another place");
    result = meet_without(s, views);
    for (int r = 0; r < RANKS; r++) {
        tern_net_team_close(s->rig.networks[r], &views[r]);
        tern_team_close(others[r]);
        tern_team_close(teams[r]);
    }
    return result;
}

/* By NICs that can be held, and whose memory is reached without them. */
static int reopens(struct test *t)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    if (net_rig_way()->nics != TERN_TRANSPORT_SOFTNIC || net_rig_way()->packets != RIG_NO_PACKETS) {
        test_detail(t, "no NIC here can be held");
        return TEST_SKIPPED;
    }
    config.timeout_ms = 2000;
    return in_scene(&config, reopen_body);
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "opening that fails", opening_fails);
    test_run(&t, "NICs of which one does not run", running_fails);
    net_rig_nic_cases(&t, "local memory that NICs do not reach", local_memory);
    net_rig_nic_cases(&t, "queues that fail", failures);
    net_rig_nic_cases(&t, "an error that others have overwritten", overwritten);
    net_rig_nic_cases(&t, "a crowd on a small ring, past 16 bits", crowds);
    net_rig_nic_cases(&t, "closing in any order", closing);
    net_rig_nic_cases(&t, "a signal of a team that had the place before", reopens);
    return test_end(&t);
}
