/* SPDX-License-Identifier: Apache-2.0
 *
 * Which way a network takes to ranks in other domains, when NICs are missing, fail, or are told what their
 * packets say, or write to a device that does not order it: on the cpu machine, with the mock of mlx5 behind
 * which a software NIC moves the data. */
#include "net_scene.h"

#include "mock_nic.h"
#include "pgas/pgas.h"
#include "procs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- What packets say ---- */

/* *calls: of the mock's libraries until it was open. */
static enum tern_status open_and_close(struct tern_comm **comms, uint32_t transport, int *calls)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_network *networks[RANKS];
    enum tern_status status;
    config.transport = transport;
    status = tern_net_open_all(RANKS, comms, &config, networks);
    *calls = mock_nic_fail(0);
    for (int r = 0; status == TERN_OK && r < RANKS; r++) {
        tern_net_close(networks[r]);
    }
    return status;
}

static void say(const char *gid_index, const char *traffic_class, const char *service_level)
{
    setenv("TERN_NIC_GID_INDEX", gid_index, 1);
    setenv("TERN_NIC_TRAFFIC_CLASS", traffic_class, 1);
    setenv("TERN_NIC_SERVICE_LEVEL", service_level, 1);
}

/* The mock reads them back from the address paths. What is out of range is a mistake, not a NIC's failure:
 * AUTO takes no other way for it. */
static int packets_body(struct tern_comm **comms, int is_roce)
{
    static const struct {
        const char *gid_index, *traffic_class, *service_level, *sentence;
    } wrong[] = {
        {"256", "0", "0", "TERN_NIC_GID_INDEX=256"},
        {"-1", "0", "0", "TERN_NIC_GID_INDEX=-1"},
        {"7", "0", "0", "has no GID 7"},
        {"", "256", "0", "TERN_NIC_TRAFFIC_CLASS=256"},
        {"", "0", "16", "TERN_NIC_SERVICE_LEVEL=16"},
    };
    int calls;
    mock_nic_expect(is_roce ? 0 : -1, 0x6a, 5);
    say(is_roce ? "0" : "", "0x6a", "5");
    OK(open_and_close(comms, TERN_TRANSPORT_MLX5, &calls));
    OK(open_and_close(comms, TERN_TRANSPORT_AUTO, &calls));
    mock_nic_expect(-1, 0, 0);
    say("", "", "");
    OK(open_and_close(comms, TERN_TRANSPORT_MLX5, &calls));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        say(wrong[i].gid_index, wrong[i].traffic_class, wrong[i].service_level);
        REFUSES(open_and_close(comms, TERN_TRANSPORT_MLX5, &calls), TERN_INVALID_ARGUMENT, wrong[i].sentence);
        REFUSES(open_and_close(comms, TERN_TRANSPORT_AUTO, &calls), TERN_INVALID_ARGUMENT, wrong[i].sentence);
    }
    say("", "", "0");
    setenv("TERN_NIC_RECORDS", "2", 1);
    REFUSES(open_and_close(comms, TERN_TRANSPORT_MLX5, &calls), TERN_INVALID_ARGUMENT, "TERN_NIC_RECORDS=2");
    REFUSES(open_and_close(comms, TERN_TRANSPORT_SOFTNIC, &calls), TERN_INVALID_ARGUMENT,
            "TERN_NIC_RECORDS=2");
    REFUSES(open_and_close(comms, TERN_TRANSPORT_AUTO, &calls), TERN_INVALID_ARGUMENT, "TERN_NIC_RECORDS=2");
    unsetenv("TERN_NIC_RECORDS");
    say("", "", "9");
    mock_nic_expect(-1, 0, 9);
    if (is_roce) {
        REFUSES(open_and_close(comms, TERN_TRANSPORT_MLX5, &calls), TERN_INVALID_ARGUMENT, "service level 9");
    } else {
        OK(open_and_close(comms, TERN_TRANSPORT_MLX5, &calls));
    }
    return 0;
}

static int num_lines;

static void count_lines(enum tern_log_level level, const char *file, int line, const char *text, void *user)
{
    (void)file;
    (void)line;
    num_lines +=
        level == TERN_LOG_INFO && strncmp(text, "rank ", 5) == 0 && strstr(text, (const char *)user) != NULL;
}

static void count_left_out(enum tern_log_level level, const char *file, int line, const char *text,
                           void *user)
{
    (void)file;
    (void)line;
    num_lines += level == TERN_LOG_WARN && strstr(text, (const char *)user) != NULL;
}

/* The log says at which NIC and link a rank is, and how many queues it has there. */
static int told_body(struct tern_comm **comms, int is_roce)
{
    char nic[] = " uses mlx5_0, port 1 (InfiniBand), ", roce[] = " uses mlx5_0, port 1 (RoCE v2), ";
    int calls;
    num_lines = 0;
    say("", "", "");
    mock_nic_expect(-1, 0, 0);
    setenv("TERN_LOG", "info", 1);
    tern_log_set(count_lines, is_roce ? roce : nic);
    OK(open_and_close(comms, TERN_TRANSPORT_MLX5, &calls));
    CHECK(num_lines == 1, "%d lines%s", num_lines, is_roce ? roce : nic);
    for (int wants = 0; wants < 2; wants++) {
        char without[] = " queue pairs without doorbell records";
        num_lines = 0;
        setenv("TERN_NIC_RECORDS", wants ? "1" : "0", 1);
        tern_log_set(count_lines, without);
        OK(open_and_close(comms, TERN_TRANSPORT_MLX5, &calls));
        CHECK((num_lines > 0) == !wants, "TERN_NIC_RECORDS=%d: %d lines%s", wants, num_lines, without);
    }
    return 0;
}

static int on_link(struct test *t, int is_roce)
{
    struct tern_comm *comms[RANKS];
    char complaint[256];
    int result;
    if (!mock_nic_open(is_roce, 1)) {
        return test_skip(t, "this build has no rdma-core, or there is no place for files");
    }
    setenv("TERN_DOMAIN_SIZE", "2", 1);
    setenv("TERN_PROXY", "none", 1);
    result = open_comms(comms);
    if (result == 0) {
        result = packets_body(comms, is_roce);
        result = result == 0 ? told_body(comms, is_roce) : result;
        unsetenv("TERN_LOG");
        test_quiet();
        close_comms(comms);
    }
    unsetenv("TERN_NIC_GID_INDEX");
    unsetenv("TERN_NIC_TRAFFIC_CLASS");
    unsetenv("TERN_NIC_SERVICE_LEVEL");
    unsetenv("TERN_NIC_RECORDS");
    unsetenv("TERN_PROXY");
    unsetenv("TERN_DOMAIN_SIZE");
    CHECK(mock_nic_close(complaint) || result != 0, "%s", complaint);
    return result;
}

static int on_infiniband(struct test *t) { return on_link(t, 0); }
static int on_roce(struct test *t) { return on_link(t, 1); }

/* ---- Which transport ---- */

static int routes_are(struct tern_comm **comms, enum net_route inside, enum net_route outside)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_network *networks[RANKS];
    int result = 0;
    OK(tern_net_open_all(RANKS, comms, &config, networks));
    for (int r = 0; r < RANKS; r++) {
        for (int to = 0; to < RANKS; to++) {
            unsigned wanted = (unsigned)(r / 2 == to / 2 ? inside : outside);
            if (networks[r]->routes[to] != wanted) {
                test_note(__FILE__, __LINE__, "from rank %d to rank %d by route %u, not %u", r, to,
                          networks[r]->routes[to], wanted);
                result = TEST_FAILED;
            }
        }
    }
    for (int r = 0; r < RANKS; r++) {
        tern_net_close(networks[r]);
    }
    return result;
}

/* AUTO in domains of two: NICs if all have one, else the proxy, else nothing. */
static int auto_body(struct tern_comm **comms)
{
    PASS(routes_are(comms, NET_ROUTE_P2P, NET_ROUTE_QUEUE));
    setenv("TERN_PROXY", "tcp", 1);
    PASS(routes_are(comms, NET_ROUTE_P2P, NET_ROUTE_QUEUE));
    setenv("TERN_NICS", "none", 1);
    PASS(routes_are(comms, NET_ROUTE_P2P, NET_ROUTE_RING));
    setenv("TERN_NICS", "0=mlx5_0;1=mlx5_1;2=none;3=mlx5_3", 1);
    PASS(routes_are(comms, NET_ROUTE_P2P, NET_ROUTE_RING));
    setenv("TERN_PROXY", "none", 1);
    return routes_are(comms, NET_ROUTE_P2P, NET_ROUTE_NONE);
}

/* Ranks of the cpu machine in domains of two, with the mock's NICs and no proxy. */
static int with_mock(struct test *t, int (*body)(struct tern_comm **comms))
{
    struct tern_comm *comms[RANKS];
    char complaint[256];
    int result;
    if (!mock_nic_open(0, 1)) {
        return test_skip(t, "this build has no rdma-core, or there is no place for files");
    }
    setenv("TERN_DOMAIN_SIZE", "2", 1);
    setenv("TERN_PROXY", "none", 1);
    result = open_comms(comms);
    if (result == 0) {
        result = body(comms);
        test_quiet();
        close_comms(comms);
    }
    unsetenv("TERN_NICS");
    unsetenv("TERN_PROXY");
    unsetenv("TERN_DOMAIN_SIZE");
    CHECK(mock_nic_close(complaint), "%s", complaint);
    return result;
}

static int chooses_body(struct tern_comm **comms)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_network *networks[RANKS];
    int result = auto_body(comms);
    setenv("TERN_NICS", "mlx5_7", 1);
    config.transport = TERN_TRANSPORT_MLX5;
    if (tern_net_open_all(RANKS, comms, &config, networks) == TERN_OK ||
        strstr(tern_last_error(), "rank 0: ") == NULL || strstr(tern_last_error(), "mlx5_7") == NULL) {
        test_note(__FILE__, __LINE__, "a NIC that is not there: \"%s\"", tern_last_error());
        result = TEST_FAILED;
    }
    return result;
}

static int chooses(struct test *t) { return with_mock(t, chooses_body); }

/* A default network has a queue for each NIC that any rank's list names; one that says how many leaves out
 * NICs without a queue, and the log says so. */
static int named_body(struct tern_comm **comms)
{
    static const struct {
        const char *names;
        uint32_t num_queues, wanted;
        int is_told;
    } cases[] = {
        {"mlx5_0,mlx5_1", 0, 2, 0},  {"0=mlx5_0,mlx5_1;1=mlx5_3,mlx5_0,mlx5_1;2=mlx5_2,;3=mlx5_3", 0, 3, 0},
        {"^mlx5_0,mlx5_1", 0, 1, 0}, {"mlx5_0,mlx5_1", 1, 1, 1},
        {"mlx5_0,mlx5_1", 5, 5, 0},
    };
    char told[] = " uses the first 1 of 2 NICs";
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tern_net_config config = TERN_NET_CONFIG_INIT;
        struct tern_network *networks[RANKS];
        config.transport = i % 2 != 0 ? TERN_TRANSPORT_MLX5 : TERN_TRANSPORT_AUTO;
        config.num_queues = cases[i].num_queues;
        setenv("TERN_NICS", cases[i].names, 1);
        num_lines = 0;
        tern_log_set(count_left_out, told);
        OK(tern_net_open_all(RANKS, comms, &config, networks));
        for (int r = 0; r < RANKS; r++) {
            uint32_t num = networks[r]->num_queues;
            tern_net_close(networks[r]);
            CHECK(num == cases[i].wanted, "TERN_NICS=%s: rank %d has %u queues", cases[i].names, r, num);
        }
        CHECK(num_lines == cases[i].is_told * RANKS, "TERN_NICS=%s: %d lines", cases[i].names, num_lines);
    }
    return 0;
}

static int named(struct test *t) { return with_mock(t, named_body); }

static int num_warnings;

static void count_warnings(enum tern_log_level level, const char *file, int line, const char *text,
                           void *user)
{
    (void)file;
    (void)line;
    (void)user;
    num_warnings += level == TERN_LOG_WARN && strstr(text, "goes without NICs: rank ") != NULL;
}

/* How the rank in the other domain is reached, the same from all; -1: not so. */
static int common_route(struct tern_network **networks)
{
    int common = networks[0]->routes[RANKS - 1];
    for (int r = 0; r < RANKS; r++) {
        common = networks[r]->routes[RANKS - 1 - r] == common ? common : -1;
    }
    return common;
}

/* Opens while call `at` fails: how that leads to the other domain. */
static int open_failing(struct tern_comm **comms, int at, int *route)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_network *networks[RANKS];
    enum tern_status status;
    num_warnings = 0;
    (void)mock_nic_fail(at);
    status = tern_net_open_all(RANKS, comms, &config, networks);
    (void)mock_nic_fail(0);
    CHECK(status == TERN_OK, "call %d: \"%s\"", at, tern_last_error());
    *route = common_route(networks);
    for (int r = 0; r < RANKS; r++) {
        tern_net_close(networks[r]);
    }
    return 0;
}

/* A call of the libraries fails, another one each time: the network opens, by NICs or by the proxy, all ranks
 * alike. The last call registers memory: a warning says why NICs are not taken. */
static int fall_back_each(struct test *t, struct tern_comm **comms)
{
    int calls, route, tries = 0, fell = 0;
    (void)mock_nic_fail(0);
    OK(open_and_close(comms, TERN_TRANSPORT_AUTO, &calls));
    for (int at = 1; at <= calls; at += 1 + calls / test_scaled(t, 100), tries++) {
        PASS(open_failing(comms, at, &route));
        CHECK(route == NET_ROUTE_RING || (route == NET_ROUTE_QUEUE && num_warnings == 0),
              "call %d of %d: route %d and %d warnings", at, calls, route, num_warnings);
        fell += route == NET_ROUTE_RING;
    }
    PASS(open_failing(comms, calls, &route));
    CHECK(route == NET_ROUTE_RING && num_warnings == RANKS, "the last call: route %d and %d warnings", route,
          num_warnings);
    CHECK(fell > 0, "no call of %d that failed was noticed", calls);
    test_detail(t, "%d of %d calls, %d times the proxy", tries, calls, fell);
    return 0;
}

/* One rank's device does not order what NICs write: no rank takes its NIC, and the sentence says whose it is
 * and why. */
static int fall_back_unordered(struct test *t, struct tern_comm **comms)
{
    struct machine_info *info = &comms[2]->machine->info;
    char wanted[256];
    int route, calls;
    (void)t;
    snprintf(wanted, sizeof wanted, "rank 2: device %d (%s) does not order what a NIC writes", info->device,
             info->name);
    info->nic_writes_ordered = 0;
    PASS(open_failing(comms, 0, &route));
    CHECK(route == NET_ROUTE_RING && num_warnings == RANKS, "route %d and %d warnings", route, num_warnings);
    REFUSES(open_and_close(comms, TERN_TRANSPORT_MLX5, &calls), TERN_UNSUPPORTED, wanted);
    OK(open_and_close(comms, TERN_TRANSPORT_SOFTNIC, &calls)); /* writes as kernels do */
    info->nic_writes_ordered = 1;
    PASS(open_failing(comms, 0, &route));
    CHECK(route == NET_ROUTE_QUEUE && num_warnings == 0, "route %d and %d warnings", route, num_warnings);
    return 0;
}

/* In domains of two, with NICs and a proxy. */
static int with_both(struct test *t, int (*body)(struct test *t, struct tern_comm **comms))
{
    struct tern_comm *comms[RANKS];
    char complaint[256];
    int result;
    if (!mock_nic_open(0, 1)) {
        return test_skip(t, "this build has no rdma-core, or there is no place for files");
    }
    setenv("TERN_DOMAIN_SIZE", "2", 1);
    setenv("TERN_PROXY", "tcp", 1);
    tern_log_set(count_warnings, NULL);
    result = open_comms(comms);
    if (result == 0) {
        result = body(t, comms);
        close_comms(comms);
    }
    test_quiet();
    unsetenv("TERN_PROXY");
    unsetenv("TERN_DOMAIN_SIZE");
    CHECK(mock_nic_close(complaint) || result != 0, "%s", complaint);
    return result;
}

static int falls_back(struct test *t) { return with_both(t, fall_back_each); }
static int unordered(struct test *t) { return with_both(t, fall_back_unordered); }

/* Ranks that share neither process nor domain. */
static int apart_body(int rank, struct procs_page *page, void *user)
{
    struct tern_comm_config comm_config = TERN_COMM_CONFIG_INIT;
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_network *network = NULL;
    struct tern_comm *comm;
    (void)user;
    comm_config.heap_bytes = 1 << 20;
    comm_config.machine = TERN_MACHINE_CPU;
    OK(tern_comm_open(&page->id, rank, 2, &comm_config, &comm));
    config.transport = TERN_TRANSPORT_SOFTNIC;
    REFUSES(tern_net_open(comm, &config, &network), TERN_UNSUPPORTED,
            "in another process and another domain");
    config.transport = TERN_TRANSPORT_MLX5;
    REFUSES(tern_net_open(comm, &config, &network), TERN_UNSUPPORTED, "rank 0: ");
    tern_comm_close(comm);
    return 0;
}

static int apart(struct test *t)
{
    int result;
    (void)t;
    setenv("TERN_DOMAIN_SIZE", "1", 1);
    setenv("TERN_NICS", "none", 1);
    result = procs_run(2, -1, 60, apart_body, NULL);
    unsetenv("TERN_NICS");
    unsetenv("TERN_DOMAIN_SIZE");
    return result;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "ranks that software NICs do not join", apart);
    test_run(&t, "which way AUTO takes", chooses);
    test_run(&t, "queues for the NICs that are named", named);
    test_run(&t, "NICs that fail, and AUTO", falls_back);
    test_run(&t, "a device that does not order what NICs write", unordered);
    test_run(&t, "what packets say on InfiniBand", on_infiniband);
    test_run(&t, "what packets say on RoCE", on_roce);
    return test_end(&t);
}
