/* SPDX-License-Identifier: Apache-2.0
 *
 * The mlx5 provider from end to end: it makes and connects queue pairs on the mock, the mock hands what the
 * mailboxes said to a software NIC, or to one for each device, with a network between that loses packets and
 * takes them in any order; kernels post what the provider gave them, and data arrive at the peer. A
 * wrong offset of a ring, a record, a register, a key or a number anywhere on the way moves nothing, or the
 * wrong bytes. */
#include "kernels/kernels.h"
#include "mlx5_rig.h"
#include "net/softnic_engine.h"
#include "net/softnic_fleet.h"
#include "queue_steps.h"
#include "simt/executor.h"
#include "softnic_net.h"
#include "support.h"

#include <stdlib.h>
#include <string.h>

#if TERN_HAVE_VERBS

enum {
    RANKS = 2,
    AREA = 1536,
    MAX_QUEUES = 4,
    ROUNDS = 12,
    STEPS = 6 * ROUNDS + 1,
    SEEDS = 12,
    THREADS = 32
};

/* One rank's memory: what it sends, where the peer's things arrive, what it gets back; and signal words. */
struct heap {
    char out[MAX_QUEUES][AREA], in[MAX_QUEUES][AREA], back[MAX_QUEUES][AREA];
};

struct world {
    struct mlx5_rig rig;
    struct heap heaps[RANKS];
    uint64_t words[RANKS][2 * MAX_QUEUES];          /* signals, counters */
    struct queue_step steps[RANKS][THREADS][STEPS]; /* threads without a queue have nothing to do */
    struct softnic_qp qps[RANKS * MAX_QUEUES];
    struct softnic_net *net; /* or NULL: one NIC moves memory */
    struct tern_stream *nic, *apps[RANKS];
    uint32_t num_queues;
    uint64_t stop, seed;
    struct rng random;
};

static struct queue_step *next_step(struct world *w, int rank, uint32_t q, int *at, enum step_kind kind)
{
    struct queue_step *s = &w->steps[rank][q][(*at)++];
    s->kind = kind;
    s->queue = q; /* of those to the peer */
    return s;
}

static uint64_t at(const void *p) { return (uint64_t)(uintptr_t)p; }

/* A thread of a rank on a queue of its own: fills, puts with a signal, adds and reads a counter of the peer,
 * gets back what it put and compares. */
static void plan(struct world *w, int rank, uint32_t q)
{
    struct heap *mine = &w->heaps[rank], *theirs = &w->heaps[!rank];
    int i = 0;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        uint64_t bytes = 1 + rng_below(&w->random, AREA),
                 first = rng_below(&w->random, AREA - (uint32_t)bytes + 1);
        struct queue_step *s = next_step(w, rank, q, &i, STEP_FILL);
        s->local = at(mine->out[q] + first);
        s->bytes = bytes;
        s->value = w->seed * 1000 + round;
        s = next_step(w, rank, q, &i, STEP_PUT_SIGNAL);
        s->local = at(mine->out[q] + first);
        s->remote = at(theirs->in[q] + first);
        s->bytes = bytes;
        s->signal = at(&w->words[!rank][q]);
        s->value = round;
        s->amo = NET_AMO_ADD;
        s = next_step(w, rank, q, &i, STEP_FETCH);
        s->remote = at(&w->words[!rank][MAX_QUEUES + q]);
        s->amo = NET_AMO_ADD;
        s->width = 8;
        s->value = 0x100000001ull * round;
        s = next_step(w, rank, q, &i, STEP_GET);
        s->local = at(mine->back[q] + first);
        s->remote = at(theirs->in[q] + first);
        s->bytes = bytes;
        next_step(w, rank, q, &i, STEP_FLUSH);
        s = next_step(w, rank, q, &i, STEP_EXPECT);
        s->local = at(mine->back[q] + first);
        s->bytes = bytes;
        s->value = w->seed * 1000 + round;
    }
    next_step(w, rank, q, &i, STEP_FLUSH_ALL);
}

static int register_all(struct world *w)
{
    struct mlx5_region_card cards[RANKS][2];
    for (int r = 0; r < RANKS; r++) {
        OK(terni_mlx5_register(w->rig.providers[r], &w->heaps[r], sizeof w->heaps[r], 0, &cards[r][0]));
        OK(terni_mlx5_register(w->rig.providers[r], w->words[r], sizeof w->words[r], MLX5_REGION_SIGNALS,
                               &cards[r][1]));
    }
    for (int r = 0; r < RANKS; r++) {
        OK(terni_mlx5_import(w->rig.providers[r], !r, &cards[!r][0]));
        OK(terni_mlx5_import(w->rig.providers[r], !r, &cards[!r][1]));
        OK(terni_mlx5_refresh(w->rig.providers[r]));
    }
    return TEST_PASSED;
}

static uint32_t device_of(const struct world *w, const struct key_table *keys)
{
    uint32_t i = 0;
    while (keys != &w->rig.mock.devices[i].keys) {
        i++;
    }
    return i;
}

/* A card for each device, and queue pairs connected as the mailboxes say. */
static void open_net(struct world *w, int num_qps)
{
    struct softnic_net_shape s = softnic_net_kind(w->seed);
    const struct key_table *keys[MOCK_MAX_DEVICES];
    const uint32_t psn = RC_PSN_MASK - rng_below(&w->random, 50);
    s.config.adaptive = s.requests.overtake = rng_below(&w->random, 2);
    s.requests.drop = s.requests.duplicate = RC_CERTAIN / 40;
    s.requests.reorder = RC_CERTAIN / 4;
    s.requests.max_delay = 50;
    s.answers = s.requests;
    s.hold_one_in = 3;
    for (int i = 0; i < w->rig.mock.num_devices; i++) {
        keys[i] = &w->rig.mock.devices[i].keys;
        s.modes[i] = w->rig.configs[0].force_dump ? RC_CST | RC_RELAXED : RC_RELAXED;
    }
    w->net = softnic_net_open(&s, (uint32_t)w->rig.mock.num_devices, keys);
    for (int i = 0; i < num_qps; i++) {
        uint32_t card = device_of(w, w->qps[i].keys);
        softnic_net_add(w->net, card, device_of(w, w->qps[i].remote_keys), &w->qps[i],
                        mock_find_qp(&w->rig.mock.devices[card], w->qps[i].qpn)->remote_qpn, psn);
    }
}

static int launch_nic(struct world *w, struct machine *m, int num_qps)
{
    struct softnic_args nic = {w->qps, (uint32_t)num_qps, 3, w->seed, &w->stop, {0, 0, 0, 0, 0}};
    struct softnic_crew crew;
    struct launch launch = {TERN_KERNEL_softnic, 2, 32, 0, &crew, sizeof crew};
    memset(&crew, 0, sizeof crew);
    softnic_crew_add(&crew, &nic, 2, rng_one_in(&w->random, 2) ? m->info.max_shared_bytes : 0);
    launch.shared_bytes = softnic_crew_bytes(&crew);
    OK(m->ops->stream_open(m, &w->nic));
    if (rng_one_in(&w->random, 2)) {
        struct softnic_rc_args rc;
        struct launch cards = {TERN_KERNEL_softnic_rc, 1, 32 * MOCK_MAX_DEVICES, 0, &rc, sizeof rc};
        open_net(w, num_qps);
        rc = softnic_net_args(w->net, &w->stop);
        OK(m->ops->launch(m, &cards, w->nic));
    } else {
        OK(m->ops->launch(m, &launch, w->nic));
    }
    return TEST_PASSED;
}

static int launch_all(struct world *w)
{
    int num_qps = mock_softnic_qps(w->qps, RANKS * MAX_QUEUES);
    CHECK(num_qps == RANKS * (int)w->num_queues, "%d queue pairs: %s", num_qps, w->rig.mock.complaint);
    PASS(launch_nic(w, w->rig.machines[0], num_qps));
    for (int r = 0; r < RANKS; r++) {
        struct machine *m = w->rig.machines[r];
        struct queue_drive_args drive = {terni_mlx5_queues(w->rig.providers[r]) +
                                             (uint32_t)!r * w->num_queues,
                                         w->num_queues,
                                         STEPS,
                                         &w->steps[r][0][0],
                                         ~0u,
                                         60000000000ull};
        struct launch app = {0, 1, THREADS, 0, &drive, sizeof drive};
        OK(m->ops->stream_open(m, &w->apps[r]));
        OK(terni_cpu_launch_function(m, tern_cpu_queue_drive, "queue_drive", &app, w->apps[r]));
    }
    return TEST_PASSED;
}

static void settle(struct world *w)
{
    for (int r = 0; r < RANKS; r++) {
        if (w->apps[r] != NULL) {
            (void)w->rig.machines[r]->ops->stream_synchronize(w->rig.machines[r], w->apps[r]);
        }
    }
    __atomic_store_n(&w->stop, 1, __ATOMIC_RELEASE);
    if (w->nic != NULL) {
        (void)w->rig.machines[0]->ops->stream_synchronize(w->rig.machines[0], w->nic);
    }
}

/* Every status, every byte that came back, every old value, and the words at the end. */
static int check_queue(struct world *w, int rank, uint32_t q)
{
    uint64_t round = 0, sum = 0;
    for (int i = 0; i < STEPS; i++) {
        const struct queue_step *s = &w->steps[rank][q][i];
        CHECK(s->status == NET_OK, "seed %llu, rank %d, queue %u, step %d (kind %u): status 0x%x",
              (unsigned long long)w->seed, rank, q, i, s->kind, s->status);
        if (s->kind == STEP_EXPECT) {
            CHECK(s->old == 0, "seed %llu, rank %d, queue %u, step %d: %llu of %llu bytes are wrong",
                  (unsigned long long)w->seed, rank, q, i, (unsigned long long)s->old,
                  (unsigned long long)s->bytes);
        }
        if (s->kind == STEP_FETCH) {
            CHECK(s->old == sum * 0x100000001ull, "seed %llu, rank %d, queue %u, step %d: old 0x%llx",
                  (unsigned long long)w->seed, rank, q, i, (unsigned long long)s->old);
            sum += ++round;
        }
    }
    CHECK(w->words[!rank][q] == ROUNDS * (ROUNDS + 1) / 2, "signal %llu",
          (unsigned long long)w->words[!rank][q]);
    CHECK(w->words[!rank][MAX_QUEUES + q] == sum * 0x100000001ull, "counter 0x%llx",
          (unsigned long long)w->words[!rank][MAX_QUEUES + q]);
    CHECK(memcmp(w->heaps[rank].out[q], w->heaps[!rank].in[q], AREA) == 0,
          "seed %llu, rank %d, queue %u: other bytes arrived", (unsigned long long)w->seed, rank, q);
    return TEST_PASSED;
}

static int check_all(struct world *w)
{
    for (int r = 0; r < RANKS; r++) {
        for (uint32_t q = 0; q < w->num_queues; q++) {
            PASS(check_queue(w, r, q));
        }
    }
    for (uint32_t i = 0; i < RANKS * w->num_queues; i++) {
        const struct softnic_qp *qp = &w->qps[i];
        CHECK(qp->state == SOFTNIC_READY && qp->num_overruns == 0 && qp->fetched == qp->posted,
              "seed %llu: the NIC's queue pair 0x%x is in state %u", (unsigned long long)w->seed, qp->qpn,
              qp->state);
    }
    return TEST_PASSED;
}

/* One form a seed: links, completion queues, who rings, where rings are, how many NICs and queues. */
static void shape(struct world *w, int is_relay)
{
    struct rng *r = &w->random;
    int ring = rng_one_in(r, 2), dump = rng_one_in(r, 2), gpu = rng_one_in(r, 2);
    w->num_queues = rng_between(r, 1, MAX_QUEUES);
    w->rig.is_gpu = gpu;
    w->rig.mock.dmabuf = 1;
    w->rig.mock.peermem = !gpu || rng_one_in(r, 2);
    w->rig.io_refused = is_relay;
    for (int i = 0; i < RANKS; i++) {
        struct mlx5_config *c = &w->rig.configs[i];
        c->num_queues = w->num_queues;
        c->cq_ring = ring;
        c->force_dump = dump;
        c->batch_blocks = 1u << rng_below(r, 4);
    }
    if (rng_one_in(r, 2)) {
        w->rig.configs[0].nics = "mlx5_0,mlx5_3";
        w->rig.configs[1].nics = "mlx5_1,mlx5_2,mlx5_0";
    }
}

static int run(struct world *w)
{
    OK(rig_providers(&w->rig));
    PASS(register_all(w));
    for (int r = 0; r < RANKS; r++) {
        for (uint32_t q = 0; q < w->num_queues; q++) {
            plan(w, r, q);
        }
    }
    return launch_all(w);
}

static int one(struct test *t, uint64_t seed, int is_relay)
{
    struct world *w = (struct world *)test_take(1, sizeof *w);
    char complaint[256];
    int result;
    w->seed = seed;
    w->random.state = seed;
    if (!rig_open(&w->rig, RANKS, (int)(seed & 1), seed)) {
        result = test_skip(t, "no files, or no executor");
    } else {
        shape(w, is_relay);
        result = run(w);
        settle(w);
        result = result == TEST_PASSED ? check_all(w) : result;
    }
    if (!rig_close(&w->rig, complaint) && result == TEST_PASSED) {
        test_note(__FILE__, __LINE__, "seed %llu: %s", (unsigned long long)seed, complaint);
        result = TEST_FAILED;
    }
    softnic_net_close(w->net);
    free(w);
    return result;
}

static int all(struct test *t, int is_relay)
{
    uint64_t first = t->has_seeds ? t->seeds[0] : 1;
    uint64_t last = t->has_seeds ? t->seeds[1] : (uint64_t)test_scaled(t, SEEDS);
    for (uint64_t seed = first; seed <= last; seed++) {
        PASS(one(t, seed, is_relay));
    }
    test_detail(t, "seeds %llu to %llu", (unsigned long long)first, (unsigned long long)last);
    return TEST_PASSED;
}

static int by_kernels(struct test *t) { return all(t, 0); }
static int by_host(struct test *t) { return all(t, 1); }

#else

static int by_kernels(struct test *t) { return test_skip(t, "this build has no rdma-core"); }
#define by_host by_kernels

#endif

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "provider, mock and software NIC move data; kernels ring", by_kernels);
    test_run(&t, "and with doorbells rung by the host", by_host);
    return test_end(&t);
}
