/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening networks over a world, and the way of requests to kernels and back. */
#include "net_rig.h"

#include "kernels/kernels.h"
#include "mock_nic.h"
#include "pgas/pgas_nics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const struct net_way p2p = {"loads and stores", NULL, NULL, 0, 0};
static const struct net_way ways[] = {
    {"by the proxy, TCP", "tcp", NULL, 0, 0},
    {"by the proxy, libfabric's tcp;ofi_rxm", "fabric:tcp;ofi_rxm", NULL, 0, 0},
    {"by the proxy, libfabric's shm", "fabric:shm", NULL, 0, 0},
    {"domains of two, TCP", "tcp", "2", 0, 0},
    {"domains of two, libfabric's tcp;ofi_rxm", "fabric:tcp;ofi_rxm", "2", 0, 0},
};
static const struct net_way nic_ways[] = {
    {"by NICs of the mock", NULL, NULL, TERN_TRANSPORT_MLX5, RIG_NO_PACKETS},
    {"by software NICs", NULL, NULL, TERN_TRANSPORT_SOFTNIC, RIG_NO_PACKETS},
    {"domains of two, NICs of the mock", NULL, "2", TERN_TRANSPORT_MLX5, RIG_NO_PACKETS},
    {"domains of two, all by software NICs", NULL, "2", TERN_TRANSPORT_SOFTNIC, RIG_NO_PACKETS},
    {"by packets of software NICs", NULL, NULL, TERN_TRANSPORT_SOFTNIC, RIG_PACKETS},
    {"by packets with adaptive routing", NULL, NULL, TERN_TRANSPORT_SOFTNIC, RIG_ADAPTIVE},
};
static const struct net_way *way = &p2p;
static struct softnic_traffic traffic; /* of the running case, of networks that are closed */
static int (*case_body)(struct test *t);
static const struct net_way_procs *case_procs; /* else NULL */

const struct net_way *net_rig_way(void) { return way; }

uint32_t net_rig_transport(void)
{
    if (way->nics == TERN_TRANSPORT_SOFTNIC || (way->nics != 0 && way->domain_size == NULL)) {
        return way->nics;
    }
    return way->engine != NULL && way->domain_size == NULL ? TERN_TRANSPORT_PROXY : TERN_TRANSPORT_AUTO;
}

int net_rig_on_cuda(void)
{
    const char *machine = getenv("TERN_MACHINE");
    return machine != NULL && strcmp(machine, "cuda") == 0;
}

int net_rig_goes_by_proxy(void) { return way->engine != NULL; }

int net_rig_local_arena(void) { return way->nics != 0 ? ARENA_WINDOW : ARENA_DEVICE; }

int net_rig_scaled(const struct test *t, int count)
{
    int part = way->engine != NULL ? count / 20 : way->nics != 0 ? count / 8 : count;
    return test_scaled(t, part > 1 ? part : 1);
}

/* Whether the engine is to be had, as a network of one rank finds. */
static int has_engine(void)
{
    struct tern_comm_config comm_config = TERN_COMM_CONFIG_INIT;
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_comm *comm = NULL;
    struct tern_network *network = NULL;
    enum tern_status status;
    comm_config.machine = TERN_MACHINE_CPU;
    config.transport = TERN_TRANSPORT_PROXY;
    if (tern_comm_open_all(1, &comm_config, &comm) != TERN_OK) {
        return 1; /* the case itself will say so */
    }
    status = tern_net_open_all(1, &comm, &config, &network);
    tern_net_close(network);
    tern_comm_close(comm);
    return status != TERN_UNSUPPORTED;
}

static int probe_body(int rank, struct procs_page *page, void *user)
{
    (void)rank;
    (void)page;
    *(int *)user = has_engine();
    return 0;
}

/* The same, asked by a process of its own. */
static int has_engine_elsewhere(void)
{
    int *has = (int *)mmap(NULL, sizeof *has, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int answer;
    if (has == MAP_FAILED || procs_run(1, -1, 30, probe_body, has) != 0) {
        return 1; /* as above */
    }
    answer = *has;
    munmap(has, sizeof *has);
    return answer;
}

static int run_body(struct test *t)
{
    const struct net_way_procs *p = case_procs;
    return p == NULL ? case_body(t) : procs_run(p->num_ranks, p->victim, p->seconds, p->body, NULL);
}

static int run_way(struct test *t)
{
    int result;
    setenv("TERN_PROXY", way->engine, 1);
    if (case_procs != NULL ? !has_engine_elsewhere() : !has_engine()) {
        result = test_skip(t, "there is no %s here", way->engine);
    } else {
        if (way->domain_size != NULL) {
            setenv("TERN_DOMAIN_SIZE", way->domain_size, 1);
        }
        result = run_body(t);
    }
    unsetenv("TERN_DOMAIN_SIZE");
    unsetenv("TERN_PROXY");
    return result;
}

enum { ENOUGH_PACKETS = 4000 }; /* to see each fault of a network */

static void count_packets(const struct tern_network *n)
{
    struct softnic_traffic t;
    if (way->packets && n != NULL && n->nics != NULL &&
        terni_softnic_traffic((struct softnic_provider *)n->nics->provider.state, &t) == TERN_OK) {
        traffic.sent += t.sent;
        traffic.lost += t.lost;
        traffic.doubled += t.doubled;
        traffic.delayed += t.delayed;
        traffic.reordered += t.reordered;
    }
}

/* Nothing is left of the case: no thread, no descriptor, nothing that the mock gave. */
static int run_nics(struct test *t)
{
    int threads = test_threads(-1), fds = test_files("/proc/self/fd"), result;
    int is_mock = way->nics == TERN_TRANSPORT_MLX5, on_cuda = net_rig_on_cuda(), errs;
    char complaint[256];
    if (on_cuda && (is_mock || case_procs != NULL)) {
        return test_skip(t, is_mock ? "the mock reads memory of the host"
                                    : "ranks on one GPU have NICs there if they share a process");
    }
    if (on_cuda && way->packets) {
        return test_skip(t, "packets are of the cpu machine so far");
    }
    if (on_cuda && getenv("TERN_TEST_SANITIZER")) {
        /* test/memcheck.sh says why. */
        return test_skip(t, "under compute-sanitizer kernels wait for a NIC that is a kernel");
    }
#ifdef TERN_THREAD_SANITIZER
    if (way->packets && case_procs != NULL) {
        /* A peer's NIC, in its process, knows that memory is ready; the own one hears of it by packets. */
        return test_skip(t, "ThreadSanitizer does not see what another process orders");
    }
#endif
    if (is_mock && !mock_nic_open(way->domain_size != NULL, 1)) {
        return test_skip(t, "this build has no rdma-core, or there is no place for files");
    }
    if (way->packets) {
        terni_softnic_wire_err(&terni_nic_settings.wire, way->packets == RIG_ADAPTIVE);
    }
    memset(&traffic, 0, sizeof traffic);
    setenv("TERN_PROXY", "none", 1); /* what goes by it would be refused */
    if (way->domain_size != NULL) {
        setenv("TERN_DOMAIN_SIZE", way->domain_size, 1);
    }
    result = run_body(t);
    errs = terni_nic_settings.wire.requests.drop != 0; /* the case may have wished otherwise */
    unsetenv("TERN_DOMAIN_SIZE");
    unsetenv("TERN_PROXY");
    memset(&terni_nic_settings, 0, sizeof terni_nic_settings);
    if (is_mock && !mock_nic_close(complaint) && result == TEST_PASSED) {
        test_note(__FILE__, __LINE__, "%s", complaint);
        return TEST_FAILED;
    }
    CHECK(result != TEST_PASSED || !errs || traffic.sent < ENOUGH_PACKETS ||
              (traffic.lost != 0 && traffic.doubled != 0 && traffic.delayed != 0 && traffic.reordered != 0),
          "the network has not erred: of %llu packets %llu lost, %llu doubled, %llu delayed, %llu reordered",
          (unsigned long long)traffic.sent, (unsigned long long)traffic.lost,
          (unsigned long long)traffic.doubled, (unsigned long long)traffic.delayed,
          (unsigned long long)traffic.reordered);
    CHECK(result != TEST_PASSED || on_cuda || /* where drivers have threads and files of their own */
              (test_threads(threads) <= threads && test_files("/proc/self/fd") == fds),
          "%d threads, %d before; %d descriptors, %d before", test_files("/proc/self/task"), threads,
          test_files("/proc/self/fd"), fds);
    return result;
}

static void run_nic_way(struct test *t, const char *name, const struct net_way *w)
{
    char text[128];
    way = w;
    snprintf(text, sizeof text, "%s, %s", name, way->name);
    test_run(t, text, run_nics);
    way = &p2p;
}

void net_rig_nic_cases(struct test *t, const char *name, int (*body)(struct test *t))
{
    case_body = body;
    for (size_t i = 0; i < sizeof nic_ways / sizeof nic_ways[0]; i++) {
        run_nic_way(t, name, &nic_ways[i]);
    }
}

void net_rig_packet_procs(struct test *t, const char *name, const struct net_way_procs *procs)
{
    case_procs = procs;
    net_rig_packet_cases(t, name, NULL);
    case_procs = NULL;
}

void net_rig_cut_cases(struct test *t, const char *name, int (*body)(struct test *t))
{
    case_body = body;
    for (size_t i = 0; i < sizeof nic_ways / sizeof nic_ways[0]; i++) {
        if (nic_ways[i].nics == TERN_TRANSPORT_MLX5 || nic_ways[i].packets) {
            run_nic_way(t, name, &nic_ways[i]);
        }
    }
}

void net_rig_packet_cases(struct test *t, const char *name, int (*body)(struct test *t))
{
    case_body = body;
    for (size_t i = 0; i < sizeof nic_ways / sizeof nic_ways[0]; i++) {
        if (nic_ways[i].packets) {
            run_nic_way(t, name, &nic_ways[i]);
        }
    }
}

void net_rig_proxy_cases(struct test *t, const char *name, int (*body)(struct test *t))
{
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        char text[128];
        way = &ways[i];
        case_body = body;
        snprintf(text, sizeof text, "%s, %s", name, way->name);
        test_run(t, text, run_way);
    }
    way = &p2p;
}

void net_rig_proxy_procs(struct test *t, const char *name, const struct net_way_procs *procs)
{
    case_procs = procs;
    net_rig_proxy_cases(t, name, NULL);
    case_procs = NULL;
}

void net_rig_procs(struct test *t, const char *name, const struct net_way_procs *procs)
{
    net_rig_proxy_procs(t, name, procs);
    case_procs = procs;
    for (size_t i = 0; i < sizeof nic_ways / sizeof nic_ways[0]; i++) {
        if (nic_ways[i].nics == TERN_TRANSPORT_SOFTNIC && nic_ways[i].domain_size == NULL) {
            run_nic_way(t, name, &nic_ways[i]);
        }
    }
    case_procs = NULL;
}

void net_rig_cases(struct test *t, const char *name, int (*body)(struct test *t))
{
    test_run(t, name, body);
    net_rig_proxy_cases(t, name, body);
    net_rig_nic_cases(t, name, body);
}

void net_rig_init(struct net_rig *rig, int num_ranks)
{
    memset(rig, 0, sizeof *rig);
    world_init(&rig->world, num_ranks, -1);
    rig->world.num_lanes = 2;
}

static int open_rank(struct net_rig *rig, int r)
{
    struct tern_comm *comm = rig->world.members[r].comm;
    struct net_rank *at = &rig->ranks[r];
    size_t requests = RIG_REQUESTS * sizeof *at->requests, results = RIG_REQUESTS * sizeof *at->results;
    rig->views[r].size = sizeof rig->views[r];
    OK(tern_net_view(rig->networks[r], &rig->views[r]));
    OK(tern_alloc(comm, TERN_MEMORY_HOST, requests, (void **)&at->requests));
    OK(tern_alloc(comm, TERN_MEMORY_DEVICE, requests, (void **)&at->device_requests));
    OK(tern_alloc(comm, TERN_MEMORY_HOST, results, (void **)&at->results));
    OK(tern_alloc(comm, TERN_MEMORY_DEVICE, results, (void **)&at->device_results));
    OK(tern_fill(comm, at->device_results, 0, results, rig->world.members[r].lanes[0]));
    return 0;
}

/* Rings of few blocks, entries in either kind of completion queue, whoever rings, by the seed. */
static void shape_nics(uint64_t seed)
{
    struct rng rng = {seed + 1};
    struct nic_settings *s = &terni_nic_settings;
    uint32_t least = way->nics == TERN_TRANSPORT_MLX5 ? 64 : NET_QUEUE_MIN_BLOCKS;
    if (way->nics == 0) {
        return;
    }
    s->num_blocks = least << rng_below(&rng, 3);
    s->batch_blocks = 1u << rng_below(&rng, 4);
    s->cq_ring = (int)rng_below(&rng, 2);
    s->dump = (int)rng_below(&rng, 2);
    s->host_rings = rng_one_in(&rng, 4);
    s->hold_one_in = rng_below(&rng, 4);
    s->seed = seed;
    /* All NICs as one kernel, where the mock has none. */
    s->runner = way->nics == TERN_TRANSPORT_SOFTNIC && rng_one_in(&rng, 2) ? SOFTNIC_KERNEL : SOFTNIC_AUTO;
    s->nic_blocks = 1 + rng_below(&rng, 3);
    s->records = rng_one_in(&rng, 3);
}

int net_rig_open(struct net_rig *rig, const struct tern_net_config *config, uint64_t cpu_seed)
{
    struct tern_comm_config comm_config = TERN_COMM_CONFIG_INIT;
    struct tern_net_config net_config = TERN_NET_CONFIG_INIT;
    struct tern_comm *comms[RIG_RANKS];
    comm_config.cpu_seed = cpu_seed;
    net_config = config != NULL ? *config : net_config;
    net_config.transport = net_rig_transport();
    shape_nics(cpu_seed);
    PASS(world_open(&rig->world, NULL, &comm_config));
    for (int r = 0; r < rig->world.num_ranks; r++) {
        comms[r] = rig->world.members[r].comm;
    }
    OK(tern_net_open_all(rig->world.num_ranks, comms, &net_config, rig->networks));
    for (int r = 0; r < rig->world.num_ranks; r++) {
        PASS(open_rank(rig, r));
    }
    return world_synchronize(&rig->world);
}

static void give(struct tern_comm *comm, void *memory)
{
    if (memory != NULL) {
        tern_free(comm, memory);
    }
}

void net_rig_close(struct net_rig *rig)
{
    (void)world_synchronize(&rig->world); /* after a failure kernels may still wait, until their deadline */
    for (int r = 0; r < rig->world.num_ranks; r++) {
        struct tern_comm *comm = rig->world.members[r].comm;
        struct net_rank *at = &rig->ranks[r];
        if (comm != NULL) {
            count_packets(rig->networks[r]);
            tern_net_close(rig->networks[r]);
            give(comm, at->requests);
            give(comm, at->device_requests);
            give(comm, at->results);
            give(comm, at->device_results);
        }
        memset(at, 0, sizeof *at);
        rig->networks[r] = NULL;
    }
    world_fini(&rig->world);
}

int net_shape_groups(const struct net_shape *s)
{
    int threads = s->num_blocks * s->num_threads;
    return s->group == GROUP_THREAD ? threads : s->group == GROUP_WARP ? threads / 32 : s->num_blocks;
}

struct net_request *net_rig_add(struct net_rig *rig, int rank)
{
    struct net_rank *at = &rig->ranks[rank];
    struct net_request *q = &at->requests[at->num];
    if (at->num == RIG_REQUESTS) {
        abort();
    }
    memset(q, 0, sizeof *q);
    q->kind = NET_REQUEST_QUIET;
    q->peer = -1;
    q->result = &at->device_results[at->num++];
    return q;
}

void net_rig_clear(struct net_rig *rig)
{
    for (int r = 0; r < rig->world.num_ranks; r++) {
        rig->ranks[r].num = 0;
    }
}

/* As a call that waits for the device does: kernels that stay end, and go on where they were. */
static void hold_residents(void)
{
    if (way->nics == TERN_TRANSPORT_SOFTNIC) {
        terni_residents_hold();
        terni_residents_hold();
        terni_residents_release();
        terni_residents_release();
    }
}

int net_rig_launch(struct net_rig *rig, int rank, const struct net_shape *shape,
                   const struct tern_net_team *team)
{
    struct member *m = &rig->world.members[rank];
    struct net_rank *at = &rig->ranks[rank];
    struct net_args args;
    struct launch launch = {TERN_KERNEL_net_ops, shape->num_blocks, shape->num_threads, 0, &args,
                            sizeof args};
    memset(&args, 0, sizeof args);
    args.net = rig->views[rank];
    if (team != NULL) {
        args.team = *team;
    }
    args.requests = at->device_requests;
    args.num_requests = (uint32_t)at->num;
    args.num_each = (uint32_t)shape->each;
    args.group = shape->group;
    OK(tern_copy(m->comm, at->device_requests, at->requests, (size_t)at->num * sizeof *at->requests,
                 m->lanes[0]));
    OK(m->comm->machine->ops->launch(m->comm->machine, &launch, m->lanes[0]));
    hold_residents();
    return 0;
}

void net_rig_see(struct net_rig *rig)
{
    for (int r = 0; r < rig->world.num_ranks; r++) {
        terni_pgas_proxy_sees(rig->networks[r]);
    }
}

int net_rig_collect(struct net_rig *rig)
{
    PASS(world_synchronize(&rig->world));
    for (int r = 0; r < rig->world.num_ranks; r++) {
        OK(tern_net_quiet(rig->networks[r], -1, -1));
    }
    net_rig_see(rig);
    for (int r = 0; r < rig->world.num_ranks; r++) {
        struct member *m = &rig->world.members[r];
        struct net_rank *at = &rig->ranks[r];
        OK(tern_copy(m->comm, at->results, at->device_results, (size_t)at->num * sizeof *at->results,
                     m->lanes[0]));
    }
    return world_synchronize(&rig->world);
}

int net_rig_all(const struct net_rig *rig, int status)
{
    for (int r = 0; r < rig->world.num_ranks; r++) {
        for (int i = 0; i < rig->ranks[r].num; i++) {
            CHECK(rig->ranks[r].results[i].status == status,
                  "rank %d, request %d of kind %u ended with %lld, not %d", r, i,
                  rig->ranks[r].requests[i].kind, (long long)rig->ranks[r].results[i].status, status);
        }
    }
    return 0;
}
