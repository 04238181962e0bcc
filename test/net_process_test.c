/* SPDX-License-Identifier: Apache-2.0
 *
 * Networks of ranks that are processes, or threads with a communicator each: opening is judged by all ranks
 * together, device teams find a place among members of several teams, and rows go round. */
#include "comm_scene.h"
#include "net_rig.h"

#include <string.h>

enum { RANKS = 3, WORDS = 512, LAPS = 20 };

/* This rank's part in a network of all. */
struct part {
    struct tern_comm *comm;
    struct tern_network *network;
    struct tern_stream *stream;
    struct tern_team *world, *pair; /* pair: ranks 0 and 1; NULL on rank 2 */
    struct tern_net_team worlds, pairs;
    uint64_t *row, *inbox, *flag; /* windows but for row */
    uint64_t *host;               /* [WORDS] */
};

/* Rank 1 alone asks for something else, then for something that does not exist. */
static int refused_together(const struct part *p)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_network *none = NULL;
    int rank = tern_comm_rank(p->comm);
    config.num_queues = rank == 1 ? 3 : 2;
    REFUSES(tern_net_open(p->comm, &config, &none), TERN_MISMATCH, "num_queues of the network is");
    config.num_queues = rank == 1 ? 65 : 2;
    REFUSES(tern_net_open(p->comm, &config, &none), TERN_INVALID_ARGUMENT, "rank 1: num_queues");
    CHECK(none == NULL, "a network that is refused");
    return 0;
}

static int open_part(struct part *p)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_net_team none = TERN_NET_TEAM_INIT;
    p->worlds = p->pairs = none;
    PASS(refused_together(p));
    config.num_teams = 2;
    config.transport = net_rig_transport();
    OK(tern_net_open(p->comm, &config, &p->network));
    OK(tern_stream_open(p->comm, &p->stream));
    OK(tern_alloc(p->comm, TERN_MEMORY_WINDOW, WORDS * 8, (void **)&p->inbox));
    OK(tern_alloc(p->comm, TERN_MEMORY_WINDOW, 8, (void **)&p->flag));
    OK(tern_alloc(p->comm, TERN_MEMORY_DEVICE, WORDS * 8, (void **)&p->row));
    OK(tern_alloc(p->comm, TERN_MEMORY_HOST, WORDS * 8, (void **)&p->host));
    OK(tern_fill(p->comm, p->flag, 0, 8, p->stream));
    OK(tern_stream_synchronize(p->comm, p->stream));
    terni_pgas_proxy_sees(p->network);
    OK(tern_team_open(p->comm, TERN_TEAM_WORLD, &p->world));
    OK(tern_team_split(p->world, 0, 1, 2, &p->pair));
    if (p->pair != NULL) { /* first, so that they have a place taken which rank 2 has free */
        OK(tern_net_team_open(p->network, p->pair, &p->pairs));
    }
    OK(tern_net_team_open(p->network, p->world, &p->worlds));
    return 0;
}

/* A row to the next rank, one from the one before, and then all meet. */
static int run_lap(struct part *p, uint64_t lap)
{
    int rank = tern_comm_rank(p->comm), next = (rank + 1) % RANKS, before = (rank + RANKS - 1) % RANKS;
    for (uint64_t i = 0; i < WORDS; i++) {
        p->host[i] = lap << 32 | (uint64_t)rank << 16 | i;
    }
    OK(tern_copy(p->comm, p->row, p->host, WORDS * 8, p->stream));
    OK(tern_net_put_on_stream(p->network, next, 0, p->inbox, p->row, WORDS * 8, p->stream));
    OK(tern_net_signal_on_stream(p->network, next, 0, p->flag, TERN_SIGNAL_ADD, 8, 1, p->stream));
    OK(tern_net_wait_on_stream(p->network, p->flag, 8, TERN_COMPARE_GE, lap, 0, p->stream));
    OK(tern_net_get_on_stream(p->network, rank, 0, p->host, p->inbox, WORDS * 8, p->stream));
    if (p->pair != NULL) {
        OK(tern_net_barrier_on_stream(p->network, &p->pairs, p->stream));
    }
    OK(tern_net_barrier_on_stream(p->network, &p->worlds, p->stream));
    OK(tern_net_synchronize(p->network, p->stream));
    for (uint64_t i = 0; i < WORDS; i++) {
        CHECK(p->host[i] == (lap << 32 | (uint64_t)before << 16 | i), "lap %llu, word %llu is %llx",
              (unsigned long long)lap, (unsigned long long)i, (unsigned long long)p->host[i]);
    }
    return 0;
}

/* All in the place that the pair leaves: rank 2 has never been to a round there, the others to LAPS. */
static int meet_again(struct part *p)
{
    struct tern_net_team again = TERN_NET_TEAM_INIT;
    if (p->pair != NULL) {
        tern_net_team_close(p->network, &p->pairs);
    }
    OK(tern_net_team_open(p->network, p->world, &again));
    CHECK(again.words < p->worlds.words, "not the place that the pair has left");
    for (int i = 0; i < 3; i++) {
        OK(tern_net_barrier_on_stream(p->network, &again, p->stream));
    }
    OK(tern_net_synchronize(p->network, p->stream));
    OK(tern_comm_barrier(p->comm));
    return 0;
}

static int run_part(struct part *p)
{
    PASS(open_part(p));
    for (uint64_t lap = 1; lap <= LAPS; lap++) {
        PASS(run_lap(p, lap));
    }
    return meet_again(p);
}

static int whole_part(const struct tern_id *id, int rank)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct part p;
    int result;
    memset(&p, 0, sizeof p);
    config.heap_bytes = 1 << 20;
    OK(tern_comm_open(id, rank, RANKS, &config, &p.comm));
    result = run_part(&p);
    tern_team_close(p.pair);
    tern_team_close(p.world);
    tern_net_close(p.network);
    if (p.stream != NULL) {
        tern_stream_close(p.comm, p.stream);
    }
    tern_comm_close(p.comm);
    return result;
}

static int process_body(int rank, struct procs_page *page, void *user)
{
    (void)user;
    return whole_part(&page->id, rank);
}

static int processes(struct test *t)
{
    (void)t;
    return procs_run(RANKS, -1, 120, process_body, NULL);
}

static int thread_body(struct actor *a) { return whole_part(&a->scene->id, a->rank); }

static int threads(struct test *t)
{
    static struct scene scene;
    static struct actor actors[RANKS];
    if (net_rig_way()->nics == TERN_TRANSPORT_MLX5) {
        return test_skip(t, "the mock is for one thread");
    }
    OK(tern_id_create(NULL, &scene.id));
    return run_threads(&scene, actors, RANKS, thread_body);
}

int main(int argc, char **argv)
{
    static const struct net_way_procs all = {RANKS, -1, 120, process_body};
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "ranks as processes", processes);
    net_rig_procs(&t, "ranks as processes", &all);
    net_rig_cases(&t, "ranks as threads", threads);
    return test_end(&t);
}
