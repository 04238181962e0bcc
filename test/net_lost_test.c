/* SPDX-License-Identifier: Apache-2.0
 *
 * Networks by the proxy, and by packets of NICs in software, of ranks that are processes, when one of them is
 * killed: what the others want of it ends with a status and its name, at once or at a deadline, and they
 * reach each other as before, whatever a queue was refused before that. Ranks 0 and 1 are in one domain
 * where there are domains. NICs in software without packets do not notice; deadlines do. And networks by NICs
 * of one process, when one is closed: to the others that rank is lost. */
#include "comm_scene.h"
#include "kernels/kernels.h"
#include "net_scene.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROCS = 3, VICTIM = 2, TIMEOUT_MS = 3000, HEAP_BYTES = 2 << 20 /* a granule of cuda's */ };

struct survivor {
    struct tern_comm *comm;
    struct tern_network *network;
    struct tern_stream *stream;
    struct tern_team *team;
    struct tern_net_team view;
    uint64_t *words;
    char *row;
    int rank;
};

static int open_survivor(struct survivor *s, const struct tern_id *id, int rank, uint32_t transport)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_net_config net_config = TERN_NET_CONFIG_INIT;
    struct tern_net_team none = TERN_NET_TEAM_INIT;
    s->rank = rank;
    s->view = none;
    config.heap_bytes = HEAP_BYTES;
    config.heap_max_bytes = 2 * HEAP_BYTES;
    net_config.num_queues = 2;
    net_config.timeout_ms = TIMEOUT_MS;
    net_config.transport = transport;
    OK(tern_comm_open(id, rank, PROCS, &config, &s->comm));
    OK(tern_net_open(s->comm, &net_config, &s->network));
    OK(tern_stream_open(s->comm, &s->stream));
    OK(tern_alloc(s->comm, TERN_MEMORY_WINDOW, 4096, (void **)&s->words));
    OK(tern_alloc(s->comm, TERN_MEMORY_DEVICE, 4096, (void **)&s->row));
    OK(tern_fill(s->comm, s->words, 0, 4096, s->stream));
    OK(tern_fill(s->comm, s->row, 7, 4096, s->stream));
    OK(tern_stream_synchronize(s->comm, s->stream));
    terni_pgas_proxy_sees(s->network);
    OK(tern_team_open(s->comm, TERN_TEAM_WORLD, &s->team));
    OK(tern_net_team_open(s->network, s->team, &s->view));
    OK(tern_net_barrier_on_stream(s->network, &s->view, s->stream));
    OK(tern_net_synchronize(s->network, s->stream));
    OK(tern_comm_barrier(s->comm));
    return 0;
}

static void close_survivor(struct survivor *s)
{
    tern_team_close(s->team);
    tern_net_close(s->network);
    if (s->stream != NULL) {
        tern_stream_close(s->comm, s->stream);
    }
    if (s->comm != NULL) {
        tern_comm_close(s->comm);
    }
}

/* Ended by the loss, long before the deadline, and by name. */
static int is_lost(enum tern_status status, const char *what)
{
    CHECK(status == TERN_DISCONNECTED && strstr(tern_last_error(), "rank 2") != NULL &&
              strstr(tern_last_error(), "registered nothing") == NULL,
          "%s: %s: \"%s\"", what, tern_status_string(status), tern_last_error());
    return 0;
}

/* Rank 1 has asked nothing of the victim since it is gone, and finds out all the same. */
static int barrier_ends(struct survivor *s)
{
    double begin = test_seconds();
    OK(tern_net_barrier_on_stream(s->network, &s->view, s->stream));
    PASS(is_lost(tern_net_synchronize(s->network, s->stream), "the barrier"));
    CHECK(test_seconds() - begin < TIMEOUT_MS / 1e3, "the barrier took %.2f s", test_seconds() - begin);
    return 0;
}

static int puts_end(struct survivor *s)
{
    double end = test_seconds() + 20;
    enum tern_status status = TERN_OK;
    while (status == TERN_OK && test_seconds() < end) {
        status = tern_net_put(s->network, VICTIM, 1, s->words + 8, s->row, 1000);
    }
    return is_lost(status, "a put");
}

static int others_go_on(struct survivor *s)
{
    int other = 1 - s->rank;
    PASS(is_lost(tern_net_atomic(s->network, VICTIM, 0, s->words, TERN_AMO_ADD, 8, 1, 0, NULL), "an atomic"));
    PASS(is_lost(tern_net_quiet(s->network, -1, -1), "a quiet of all")); /* the atomic never completes */
    /* A word that only the victim would have raised: nobody knows whom it waits for, the sentence may. */
    REFUSES(tern_net_wait(s->network, s->words + 4, 8, TERN_COMPARE_GE, 1, 200), TERN_TIMEOUT, "rank 2");
    OK(tern_net_put(s->network, other, 0, s->words + 8, s->row, 1000));
    OK(tern_net_signal(s->network, other, 0, s->words, TERN_SIGNAL_ADD, 8, 1));
    OK(tern_net_wait(s->network, s->words, 8, TERN_COMPARE_EQ, 1, 20000));
    OK(tern_net_quiet(s->network, other, -1));
    return 0;
}

static void end_victim(const struct survivor *s, struct procs_page *page)
{
    if (s->rank == VICTIM) {
        page->marks[VICTIM] = 1;
        raise(SIGKILL);
    }
    for (int i = 0; i < 4000 && page->marks[VICTIM] == 0; i++) {
        usleep(5000);
    }
    usleep(200000); /* it is gone: no signal of the barrier to come reaches it */
}

/* Kernels know how far the window may grow, not how far it has: by the proxy, rank 0 loses a queue so before
 * it loses the peer, and that is not what it is told then. */
static int lose_queue(struct survivor *s)
{
    struct machine *m = s->comm->machine;
    struct net_args args;
    struct launch launch = {TERN_KERNEL_net_ops, 1, 32, 0, &args, sizeof args};
    memset(&args, 0, sizeof args);
    args.net.size = sizeof args.net;
    OK(tern_net_view(s->network, &args.net));
    args.one.kind = NET_REQUEST_PUT;
    args.one.flags = NET_REQUEST_PLAIN;
    args.one.peer = VICTIM;
    args.one.remote = (char *)args.net.heap.own + HEAP_BYTES;
    args.one.local = s->row;
    args.one.bytes = 64;
    args.num_requests = args.num_each = 1;
    args.group = GROUP_THREAD;
    OK(m->ops->launch(m, &launch, s->stream));
    REFUSES(tern_net_synchronize(s->network, s->stream), TERN_INVALID_ARGUMENT,
            "the peer has registered nothing there");
    return 0;
}

static int survive(struct survivor *s, struct procs_page *page)
{
    PASS(s->rank == 0 && net_rig_goes_by_proxy() ? lose_queue(s) : 0);
    OK(tern_comm_barrier(s->comm));
    end_victim(s, page);
    /* The shm provider takes answers in the order of its requests: a dead peer holds up the others. */
    int is_shm = net_rig_goes_by_proxy() && strstr(net_rig_way()->engine, "shm") != NULL;
    PASS(s->rank == 0 || is_shm ? puts_end(s) : 0);
    PASS(is_shm ? 0 : barrier_ends(s));
    PASS(is_shm ? 0 : others_go_on(s));
    page->marks[s->rank] = 1;
    for (int i = 0; i < 4000 && page->marks[1 - s->rank] == 0; i++) {
        usleep(5000); /* the other still needs this one */
    }
    return 0;
}

static int lost_body(int rank, struct procs_page *page, void *user)
{
    struct survivor s;
    int result;
    (void)user;
    memset(&s, 0, sizeof s);
    result = open_survivor(&s, &page->id, rank, net_rig_transport());
    result = result ? result : survive(&s, page);
    close_survivor(&s);
    return result;
}

/* ---- NICs in software without packets, which read and write its memory as if nothing had happened ---- */

/* A deadline tells, and names it. */
static int plain_ends(struct survivor *s)
{
    struct tern_network *n = s->network;
    int other = 1 - s->rank;
    uint64_t old = 1;
    double begin;
    OK(tern_net_put(n, VICTIM, 0, s->words + 8 + 128 * s->rank, s->row, 1000));
    OK(tern_net_get(n, VICTIM, 0, s->row + 2000, s->words + 8 + 128 * s->rank, 1000));
    CHECK(memcmp(s->row, s->row + 2000, 1000) == 0, "its memory is gone");
    OK(tern_net_atomic(n, VICTIM, 0, s->words + 1 + s->rank, TERN_AMO_ADD, 8, 1, 0, &old));
    CHECK(old == 0, "its word was %llu", (unsigned long long)old);
    begin = test_seconds();
    OK(tern_net_barrier_on_stream(n, &s->view, s->stream));
    REFUSES(tern_net_synchronize(n, s->stream), TERN_TIMEOUT, "of a team of 3 ranks from rank 2 within");
    CHECK(test_seconds() - begin >= TIMEOUT_MS * 0.9e-3, "after %.2f s", test_seconds() - begin);
    REFUSES(tern_net_wait(n, s->words + 4, 8, TERN_COMPARE_GE, 1, 100), TERN_TIMEOUT, "is 0, not >= 1");
    OK(tern_net_put(n, other, 0, s->words + 8, s->row, 64));
    OK(tern_net_signal(n, other, 0, s->words, TERN_SIGNAL_ADD, 8, 1));
    OK(tern_net_wait(n, s->words, 8, TERN_COMPARE_EQ, 1, 20000));
    return 0;
}

static int plain_body(int rank, struct procs_page *page, void *user)
{
    struct survivor s;
    int result;
    (void)user;
    memset(&s, 0, sizeof s);
    result = open_survivor(&s, &page->id, rank, TERN_TRANSPORT_SOFTNIC);
    if (result == 0) {
        end_victim(&s, page);
        result = plain_ends(&s);
        page->marks[rank] = 1;
        for (int i = 0; i < 4000 && page->marks[1 - rank] == 0; i++) {
            usleep(5000); /* the other still needs this one */
        }
    }
    close_survivor(&s);
    return result;
}

static int plain(struct test *t)
{
    if (getenv("TERN_MACHINE") != NULL && strcmp(getenv("TERN_MACHINE"), "cuda") == 0) {
        return test_skip(t, "software NICs of a GPU are one process's");
    }
    return procs_run(PROCS, VICTIM, 60, plain_body, NULL);
}

/* ---- In one process: rank 2 closes its network, whose queue pairs go with it ---- */

/* Rank 1 has asked nothing of it: its own signal, which does not arrive, tells. */
static int barrier_of_scene_ends(struct host_scene *s, struct tern_net_team *view)
{
    struct tern_network *n = s->rig.networks[1];
    double begin = test_seconds();
    OK(tern_net_barrier_on_stream(n, view, lane_of(s, 1)));
    REFUSES(tern_net_synchronize(n, lane_of(s, 1)), TERN_DISCONNECTED,
            "of a team of 4 ranks will come from rank 2; rank 2 is lost: queue 0 to it has failed with "
            "syndrome 0x"); /* a signal has two entries, and the second overwrites what the first tells */
    CHECK(test_seconds() - begin < TIMEOUT_MS / 1e3, "the barrier took %.2f s", test_seconds() - begin);
    REFUSES(tern_net_wait(n, device(s, s->words[1], 0), 8, TERN_COMPARE_GE, 1, 50), TERN_TIMEOUT,
            "rank 2 is lost");
    return 0;
}

/* From rank 0, by each queue, in a kernel and by calls. */
static int requests_of_scene_end(struct host_scene *s)
{
    struct tern_network *n = s->rig.networks[0];
    PASS(put_ends(s, s->box[0], 1, (char *)device(s, s->box[0], 0), 1000, TERN_DISCONNECTED,
                  "queue 1 to rank 2 has failed with syndrome 0x15, transport retry counter exceeded"));
    CHECK(strstr(tern_last_error(), "the peer is lost") != NULL, "\"%s\"", tern_last_error());
    PASS(put_ends(s, s->box[0], 1, (char *)device(s, s->box[0], 0), 1000, TERN_DISCONNECTED, "to rank 2"));
    REFUSES(tern_net_atomic(n, 2, 0, device(s, s->words[0], 0), TERN_AMO_ADD, 8, 1, 0, NULL),
            TERN_DISCONNECTED, "queue 0 to rank 2");
    REFUSES(tern_net_quiet(n, -1, -1), TERN_DISCONNECTED, "to rank 2");
    return 0;
}

static int others_of_scene_go_on(struct host_scene *s)
{
    for (int r = 0; r < 2; r++) {
        struct tern_network *n = s->rig.networks[r];
        OK(tern_net_put(n, 1 - r, 1, device(s, s->box[r], 0), device(s, s->box[r], 64), 64));
        OK(tern_net_signal(n, 1 - r, 1, device(s, s->words[r], 8), TERN_SIGNAL_ADD, 8, 1));
        OK(tern_net_wait(s->rig.networks[1 - r], device(s, s->words[1 - r], 8), 8, TERN_COMPARE_EQ, 1,
                         20000));
        OK(tern_net_quiet(n, 1 - r, -1));
    }
    return 0;
}

static int closed_body(struct host_scene *s)
{
    struct tern_team *teams[RANKS];
    struct tern_net_team views[RANKS];
    PASS(open_teams(s, TERN_TEAM_WORLD, teams, views));
    tern_net_team_close(s->rig.networks[2], &views[2]);
    tern_net_close(s->rig.networks[2]);
    s->rig.networks[2] = NULL;
    PASS(barrier_of_scene_ends(s, &views[1]));
    PASS(requests_of_scene_end(s));
    PASS(others_of_scene_go_on(s));
    for (int r = 0; r < RANKS; r++) {
        if (r != 2) {
            tern_net_team_close(s->rig.networks[r], &views[r]);
        }
        tern_team_close(teams[r]);
    }
    return 0;
}

static int closed(struct test *t)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    (void)t;
    config.num_queues = 2;
    config.timeout_ms = TIMEOUT_MS; /* of which a NIC's retries take two thirds */
    return in_scene(&config, closed_body);
}

int main(int argc, char **argv)
{
    static const struct net_way_procs all = {PROCS, VICTIM, 60, lost_body};
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    net_rig_proxy_procs(&t, "a killed peer", &all);
    net_rig_packet_procs(&t, "a killed peer", &all);
    test_run(&t, "a killed peer, by software NICs without packets", plain);
    net_rig_cut_cases(&t, "a peer that has closed", closed);
    return test_end(&t);
}
