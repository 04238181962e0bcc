/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators whole and sound: ranks as processes, as threads and driven by one thread; windows, domains,
 * memory and streams; and that nothing is left behind. comm_fault_test.c has what goes wrong. */
#include "comm/id.h"
#include "comm_scene.h"
#include "procs.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- Processes ---- */

static int process_body(int rank, struct procs_page *page, void *user)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    char text[4096];
    (void)user;
    OK(tern_comm_open(&page->id, rank, 4, &config, &comm));
    PASS(check_all(comm));
    CHECK(tern_comm_describe(comm, text, sizeof text) < (int)sizeof text, "description");
    CHECK(strstr(text, "4 ranks, 1 host, 4 processes, 1 domain") != NULL, "%s", text);
    CHECK(tern_comm_num_sms(comm) == comm->machine->info.num_sms, "a process has its processors to itself");
    tern_comm_close(comm);
    return 0;
}

static int processes(struct test *t)
{
    (void)t;
    return procs_run(4, -1, 60, process_body, NULL);
}

static int mixed_actor(struct actor *a)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    int rank = a->rank + 2 * (int)a->scene->timeout_ms; /* the process */
    OK(tern_comm_open(&a->scene->id, rank, 4, &config, &comm));
    PASS(check_all(comm));
    tern_comm_close(comm);
    return 0;
}

static int mixed_body(int process, struct procs_page *page, void *user)
{
    struct actor actors[2];
    struct scene scene = {.id = page->id, .timeout_ms = (uint32_t)process};
    (void)user;
    return run_threads(&scene, actors, 2, mixed_actor);
}

static int processes_of_threads(struct test *t)
{
    (void)t;
    return procs_run(2, -1, 60, mixed_body, NULL);
}

/* ---- Threads, IPv4 and IPv6 ---- */

static int threads_on(const char *interface)
{
    static const int sizes[] = {1, 2, 3, 8};
    struct actor actors[max_ranks];
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct scene scene = {.timeout_ms = 20000};
        OK(tern_id_create(interface, &scene.id));
        PASS(run_threads(&scene, actors, sizes[i], open_and_check));
    }
    return 0;
}

static int threads_v4(struct test *t)
{
    (void)t;
    return threads_on("127.0.0.1");
}

static int has_v6(void)
{
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int is_bound = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return is_bound;
}

static int threads_v6(struct test *t)
{
    return has_v6() ? threads_on("::1") : test_skip(t, "no IPv6 loopback");
}

/* Rank 0 comes last: with an agreed address the others find nobody at first. */
static int late_root_actor(struct actor *a)
{
    if (a->rank == 0) {
        nap_ms(250);
    }
    return open_and_check(a);
}

static int agreed_address(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene = {.timeout_ms = 20000};
    struct id_fields f;
    struct address a;
    char address[64];
    int fd;
    (void)t;
    OK(tern_id_create("127.0.0.1", &scene.id)); /* to learn a free port */
    OK(terni_id_read(&scene.id, &f, &a));
    OK(terni_id_take_listener(&scene.id, &fd));
    close(fd);
    snprintf(address, sizeof address, "127.0.0.1:%u/job", f.port);
    OK(tern_id_from_address(address, &scene.id));
    return run_threads(&scene, actors, 3, late_root_actor);
}

/* The agreed host is a name that each rank takes for another address of rank 0's host. */
static int named_host_actor(struct actor *a)
{
    static const char *const hosts[] = {"localhost", "localhost", "127.0.0.1", "127.0.1.1", "[::1]"};
    struct scene own = *a->scene;
    struct actor self = *a;
    struct id_fields f;
    struct address where;
    char text[64];
    OK(terni_id_read(&a->scene->id, &f, &where));
    snprintf(text, sizeof text, "%s:%u/job", hosts[a->rank], f.port);
    OK(tern_id_from_address(text, &own.id));
    self.scene = &own;
    return open_and_check(&self);
}

static int named_host(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene = {.timeout_ms = 20000};
    struct tern_id named;
    int fd;
    if (tern_id_from_address("localhost:1/job", &named) != TERN_OK) {
        return test_skip(t, "localhost does not resolve here: %s", tern_last_error());
    }
    OK(tern_id_create("127.0.0.1", &scene.id)); /* to learn a free port */
    OK(terni_id_take_listener(&scene.id, &fd));
    close(fd);
    return run_threads(&scene, actors, has_v6() ? 5 : 4, named_host_actor);
}

/* ---- All ranks in one thread ---- */

static int check_actor(struct actor *a)
{
    PASS(check_all(a->scene->comms[a->rank]));
    return 0;
}

static void close_all(struct tern_comm **comms, int num_ranks)
{
    for (int r = 0; r < num_ranks; r++) {
        tern_comm_close(comms[r]);
    }
}

static int open_all_sizes(struct test *t)
{
    struct tern_comm_config config = config_of(20000);
    struct actor actors[max_ranks];
    int step = t->scale < 100 ? 5 : 1;
    for (int n = 1; n <= max_ranks; n += step) {
        struct scene scene;
        int result, sms;
        memset(&scene, 0, sizeof scene);
        OK(tern_comm_open_all(n, &config, scene.comms));
        sms = scene.comms[0]->machine->info.num_sms / n;
        result = run_threads(&scene, actors, n, check_actor);
        CHECK(tern_comm_num_sms(scene.comms[n - 1]) == (sms > 0 ? sms : 1), "%d ranks share a device", n);
        close_all(scene.comms, n);
        PASS(result);
    }
    return 0;
}

static int forced_domains(struct test *t)
{
    static const int wanted[] = {0, 0, 1, 1, 2};
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comms[5];
    char text[4096];
    int needed;
    enum tern_status status;
    (void)t;
    setenv("TERN_DOMAIN_SIZE", "2", 1);
    status = tern_comm_open_all(5, &config, comms);
    unsetenv("TERN_DOMAIN_SIZE");
    OK(status);
    for (int r = 0; r < 5; r++) {
        for (int q = 0; q < 5; q++) {
            CHECK(comms[r]->domain_of[q] == wanted[q], "rank %d: domain of %d is %d", r, q,
                  comms[r]->domain_of[q]);
            CHECK((comms[r]->heap->bases[q] != NULL) == (wanted[q] == wanted[r]), "rank %d: base of %d", r,
                  q);
        }
    }
    needed = tern_comm_describe(comms[0], NULL, 0);
    CHECK(tern_comm_describe(comms[0], text, sizeof text) == needed && (int)strlen(text) == needed,
          "length %d", needed);
    CHECK(strstr(text, "5 ranks, 1 host, 1 process, 3 domains") != NULL, "%s", text);
    CHECK(tern_comm_describe(comms[0], text, 10) == needed && strlen(text) == 9, "cut to 9 characters");
    close_all(comms, 5);
    return 0;
}

/* Several heaps on one communicator; memory lives until the last who maps it has closed. */
static int heaps_and_order(struct test *t)
{
    struct comm_child child = {0, NULL};
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comms[3];
    struct heap *heaps[3];
    (void)t;
    OK(tern_comm_open_all(3, &config, comms));
    for (int r = 0; r < 3; r++) {
        OK(terni_heap_begin(comms[r], 1ull << 52, &heaps[r]));
    }
    for (int r = 0; r < 3; r++) {
        REFUSES(terni_heap_end(comms[r], heaps[r]), TERN_OUT_OF_MEMORY,
                "rank 0 has no window of 4503599627370496 bytes");
        terni_heap_close(heaps[r]);
    }
    for (int r = 0; r < 3; r++) {
        OK(terni_heap_begin(comms[r], 4096, &heaps[r]));
    }
    for (int r = 0; r < 3; r++) {
        OK(terni_heap_end(comms[r], heaps[r]));
        CHECK(heaps[r]->bases[r] != comms[r]->heap->bases[r], "another heap");
    }
    terni_heap_close(heaps[1]);
    heaps[0]->bases[1][4095] = 77; /* rank 1 has closed */
    CHECK(heaps[2]->bases[1][4095] == 77, "the part of rank 1 lives on");
    terni_heap_close(heaps[0]);
    tern_comm_close(comms[0]);
    CHECK(heaps[2]->bases[0][0] == 0, "the part of rank 0 lives on");
    terni_heap_close(heaps[2]);
    terni_comm_adopt(comms[1], &child);
    tern_comm_close(comms[1]); /* refused */
    terni_comm_disown(comms[1], &child);
    OK(tern_fill(comms[1], comms[1]->heap->bases[1], 3, 64, NULL));
    tern_comm_close(comms[2]);
    tern_comm_close(comms[1]);
    return 0;
}

static int memory_and_streams(struct test *t)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    struct tern_stream *stream;
    struct tern_event *events[2];
    struct tern_graph *graph;
    void *window, *device, *host;
    float ms = -1;
    (void)t;
    OK(tern_comm_open_all(1, &config, &comm));
    REFUSES(tern_alloc(comm, TERN_MEMORY_WINDOW, heap_bytes + 1, &window), TERN_OUT_OF_MEMORY,
            "1048577 bytes: 1048576 are free, the largest block has 1048576");
    REFUSES(tern_alloc(comm, (enum tern_memory)9, 1, &window), TERN_INVALID_ARGUMENT, "kind 9");
    OK(tern_alloc(comm, TERN_MEMORY_WINDOW, heap_bytes, &window));
    OK(tern_alloc(comm, TERN_MEMORY_DEVICE, 5000, &device));
    OK(tern_alloc(comm, TERN_MEMORY_HOST, 5000, &host));
    CHECK(((uintptr_t)window | (uintptr_t)device | (uintptr_t)host) % 256 == 0, "alignment");
    OK(tern_stream_open(comm, &stream));
    OK(tern_event_open(comm, &events[0]));
    OK(tern_event_open(comm, &events[1]));
    OK(tern_event_record(comm, events[0], stream));
    OK(tern_fill(comm, window, 0x11, 5000, stream));
    OK(tern_copy(comm, device, window, 5000, stream));
    OK(tern_copy(comm, host, device, 5000, stream));
    OK(tern_event_record(comm, events[1], stream));
    OK(tern_event_wait(comm, events[1], NULL));
    OK(tern_stream_synchronize(comm, stream));
    CHECK(((char *)host)[0] == 0x11 && ((char *)host)[4999] == 0x11, "copied through three kinds");
    OK(tern_event_elapsed(comm, events[0], events[1], &ms));
    CHECK(ms >= 0, "%g ms", (double)ms);
    OK(tern_graph_begin(comm, stream));
    OK(tern_fill(comm, host, 0x22, 5000, stream));
    OK(tern_graph_end(comm, stream, &graph));
    OK(tern_graph_launch(comm, graph, stream));
    OK(tern_stream_synchronize(comm, stream));
    CHECK(((char *)host)[4999] == 0x22, "the graph ran");
    REFUSES(tern_copy(comm, NULL, device, 1, stream), TERN_INVALID_ARGUMENT, "dst is NULL");
    OK(tern_copy(comm, NULL, NULL, 0, stream));
    REFUSES(tern_stream_open(NULL, &stream), TERN_INVALID_ARGUMENT, "comm is NULL");
    REFUSES(tern_event_record(comm, NULL, stream), TERN_INVALID_ARGUMENT, "event is NULL");
    tern_graph_close(comm, graph);
    tern_event_close(comm, events[0]);
    tern_event_close(comm, events[1]);
    tern_stream_close(comm, stream);
    tern_free(comm, window);
    tern_free(comm, window); /* twice: an error in the log, no harm */
    tern_free(comm, host);
    OK(tern_alloc(comm, TERN_MEMORY_WINDOW, heap_bytes, &window));
    tern_comm_close(comm); /* frees `device` and `window` */
    return 0;
}

/* A stream that is another communicator's, or closed, is none of this one's: a line in the log, no harm. */
static int strange_streams(struct test *t)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comms[2];
    struct tern_stream *stream;
    char byte = 0;
    (void)t;
    OK(tern_comm_open_all(2, &config, comms));
    OK(tern_stream_open(comms[0], &stream));
    tern_stream_close(comms[1], stream);
    OK(tern_fill(comms[0], &byte, 5, 1, stream));
    OK(tern_stream_synchronize(comms[0], stream));
    CHECK(byte == 5, "the stream is as it was");
    tern_stream_close(comms[0], stream);
    tern_stream_close(comms[0], stream);
    close_all(comms, 2);
    return 0;
}

/* Objects of one communicator may live in several threads: their streams and their number must hold. */
static int streams_actor(struct actor *a)
{
    struct tern_comm *comm = a->scene->comms[0];
    struct tern_stream *streams[3];
    struct tern_stream *latest;
    struct comm_child child = {0, NULL};
    char bytes[3][64];
    for (int round = 0; round < 100; round++) {
        terni_comm_adopt(comm, &child);
        for (int i = 0; i < 3; i++) {
            OK(tern_stream_open(comm, &streams[i]));
            OK(tern_fill(comm, bytes[i], round + i, sizeof bytes[i], streams[i]));
            terni_child_used(&child, streams[i]);
            CHECK(terni_child_stream(&child, &latest) && latest == streams[i], "the latest stream");
        }
        for (int i = 0; i < 3; i++) {
            OK(tern_stream_synchronize(comm, streams[(i + round) % 3]));
            tern_stream_close(comm, streams[(i + round) % 3]);
        }
        CHECK(bytes[0][0] == round && bytes[2][63] == round + 2, "round %d ran", round);
        CHECK(!terni_child_stream(&child, &latest), "a closed stream is still the child's latest");
        terni_comm_disown(comm, &child);
    }
    return 0;
}

static int streams_of_threads(struct test *t)
{
    struct tern_comm_config config = config_of(20000);
    struct actor actors[max_ranks];
    struct scene scene;
    int result, windows = num_windows();
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_comm_open_all(1, &config, scene.comms));
    result = run_threads(&scene, actors, 4, streams_actor);
    tern_comm_close(scene.comms[0]);
    PASS(result);
    CHECK(num_windows() == windows, "all children are gone, so that the communicator closes");
    return 0;
}

static int bad_arguments(struct test *t)
{
    struct tern_comm_config config = config_of(1000);
    struct tern_comm *comms[2];
    struct tern_id id;
    struct {
        struct tern_comm_config config;
        uint64_t more;
    } longer = {config, 1};
    (void)t;
    memset(&id, 0, sizeof id);
    REFUSES(tern_comm_open(NULL, 0, 1, &config, comms), TERN_INVALID_ARGUMENT, "id is NULL");
    REFUSES(tern_comm_open(&id, 0, 1, &config, comms), TERN_INVALID_ARGUMENT, "no id");
    REFUSES(tern_comm_open(&id, 3, 3, &config, comms), TERN_INVALID_ARGUMENT, "rank 3 is none of 3");
    REFUSES(tern_comm_open_all(0, &config, comms), TERN_INVALID_ARGUMENT, "num_ranks is 0");
    REFUSES(tern_comm_open_all(5000, &config, comms), TERN_INVALID_ARGUMENT, "5000");
    REFUSES(tern_comm_open_all(1, &config, NULL), TERN_INVALID_ARGUMENT, "comms is NULL");
    config.size = 8;
    REFUSES(tern_comm_open_all(1, &config, comms), TERN_INVALID_ARGUMENT, "config->size is 8");
    REFUSES(tern_comm_open_all(1, &config, comms), TERN_INVALID_ARGUMENT, "use its _INIT macro");
    longer.config.size = sizeof longer;
    REFUSES(tern_comm_open_all(1, &longer.config, comms), TERN_UNSUPPORTED, "is not zero");
    longer.more = 0;
    OK(tern_comm_open_all(1, &longer.config, comms));
    REFUSES(tern_comm_allgather(comms[0], &id, &id, (1 << 20) + 1), TERN_INVALID_ARGUMENT, "1048577");
    REFUSES(tern_comm_allgather(comms[0], NULL, &id, 1), TERN_INVALID_ARGUMENT, "send is NULL");
    tern_comm_close(comms[0]);
    tern_comm_close(NULL);
    config = config_of(1000);
    config.machine = 7;
    REFUSES(tern_comm_open_all(1, &config, comms), TERN_INVALID_ARGUMENT, "machine 7");
    config.machine = TERN_MACHINE_CPU;
    config.device = TERN_DEVICE_ORDINAL(3);
    REFUSES(tern_comm_open_all(1, &config, comms), TERN_INVALID_ARGUMENT, "TERN_DEVICE_ORDINAL(3)");
    return 0;
}

/* ---- Nothing is left behind ---- */

static int leak_body(int process, struct procs_page *page, void *user)
{
    int fds = num_fds(), windows = num_windows();
    PASS(process_body(process, page, user));
    CHECK(num_fds() <= fds, "%d descriptors after, %d before", num_fds(), fds);
    CHECK(num_windows() == windows, "%d windows after, %d before", num_windows(), windows);
    return 0;
}

/* However many heaps are open, no descriptor is: a process may have hundreds of peers. A communicator has its
 * connections and the socket where it would hear a roll call. */
static int descriptors_body(int rank, struct procs_page *page, void *user)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    struct heap *heaps[8];
    int before = num_fds(), sockets = rank == 0 ? 4 : 2;
    (void)user;
    before -= rank == 0; /* the listener of the id, which opening uses up */
    OK(tern_comm_open(&page->id, rank, 4, &config, &comm));
    CHECK(num_fds() == before + sockets, "%d descriptors, %d before opening", num_fds(), before);
    for (int i = 0; i < 8; i++) {
        OK(terni_heap_begin(comm, 4096, &heaps[i]));
        OK(terni_heap_end(comm, heaps[i]));
        CHECK(num_fds() == before + sockets, "%d descriptors with %d heaps", num_fds(), i + 1);
        heaps[i]->bases[(rank + 1) % 4][rank] = (char)(i + 1);
    }
    OK(tern_comm_barrier(comm));
    for (int i = 0; i < 8; i++) {
        CHECK(heaps[i]->bases[rank][(rank + 3) % 4] == i + 1, "the memory of heap %d is shared", i);
        terni_heap_close(heaps[i]);
    }
    tern_comm_close(comm);
    CHECK(num_fds() == before, "%d descriptors after, %d before", num_fds(), before);
    return 0;
}

static int heaps_hold_no_descriptors(struct test *t)
{
    (void)t;
    return procs_run(4, -1, 60, descriptors_body, NULL);
}

static int leaks_of_processes(struct test *t)
{
    (void)t;
    return procs_run(4, -1, 60, leak_body, NULL);
}

static int leaks_of_threads(struct test *t)
{
    static int (*const bodies[])(struct test * t) = {threads_v4, forced_domains, heaps_and_order,
                                                     memory_and_streams};
    return leaves_nothing(t, bodies, 4);
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    setenv("TERN_MACHINE", "cpu", 1);
    /* Processes first: their parent must not have started a machine. */
    test_run(&t, "processes", processes);
    test_run(&t, "processes_of_threads", processes_of_threads);
    test_run(&t, "leaks_of_processes", leaks_of_processes);
    test_run(&t, "heaps_hold_no_descriptors", heaps_hold_no_descriptors);
    test_run(&t, "threads_v4", threads_v4);
    test_run(&t, "threads_v6", threads_v6);
    test_run(&t, "agreed_address", agreed_address);
    test_run(&t, "an agreed name, which ranks take for several addresses", named_host);
    test_run(&t, "open_all_sizes", open_all_sizes);
    test_run(&t, "forced_domains", forced_domains);
    test_run(&t, "heaps_and_order", heaps_and_order);
    test_run(&t, "memory_and_streams", memory_and_streams);
    test_run(&t, "strange_streams", strange_streams);
    test_run(&t, "streams_of_threads", streams_of_threads);
    test_run(&t, "bad_arguments", bad_arguments);
    test_run(&t, "leaks_of_threads", leaks_of_threads);
    return test_end(&t);
}
