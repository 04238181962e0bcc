/* SPDX-License-Identifier: Apache-2.0
 *
 * Windows of memory that the user allocated, and peer pointers: one rank writes by them and another reads,
 * with ranks driven by one thread, as threads and as processes; memory that cannot be adopted; domains that
 * cannot address each other; nothing left behind. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include "comm_scene.h"
#include "procs.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { page_bytes = 4096, num_ranks = 4 };
enum { window_bytes = 10000, from_page = 300 }; /* neither begins nor ends with a page */

static void close_all(struct tern_comm **comms, int num)
{
    for (int r = 0; r < num; r++) {
        tern_comm_close(comms[r]);
    }
}

/* The word of rank r for rank q, in the place that r has in q's memory. */
static uint64_t word_of(int r, int q) { return 1000 * (uint64_t)r + (uint64_t)q + 7; }

static size_t place_of(int r) { return (size_t)(window_bytes - 8) / 3 * (size_t)r / 8 * 8; }

static int write_words(const struct tern_comm *comm, char *memory)
{
    for (int q = 0; q < comm->num_ranks; q++) {
        void *place;
        uint64_t word = word_of(comm->rank, q);
        OK(tern_peer_pointer(comm, memory + place_of(comm->rank), q, &place));
        CHECK(place != NULL, "rank %d cannot reach rank %d", comm->rank, q);
        CHECK(q != comm->rank || place == memory + place_of(q), "a rank's own place is elsewhere");
        memcpy(place, &word, sizeof word);
    }
    return 0;
}

static int read_words(const struct tern_comm *comm, const char *memory)
{
    for (int r = 0; r < comm->num_ranks; r++) {
        uint64_t word;
        memcpy(&word, memory + place_of(r), sizeof word);
        CHECK(word == word_of(r, comm->rank), "rank %d finds %llu of rank %d", comm->rank,
              (unsigned long long)word, r);
    }
    return 0;
}

/* A released window is none, and no harm is done by releasing it again. */
static int check_released(struct tern_comm *comm, char *memory)
{
    void *place = comm;
    tern_window_release(comm, memory);
    REFUSES(tern_peer_pointer(comm, memory, 0, &place), TERN_INVALID_ARGUMENT, "is in no window of rank");
    CHECK(place == comm, "the output of a failure is untouched");
    tern_window_release(comm, memory);
    tern_window_release(comm, NULL);
    return 0;
}

/* ---- One thread ---- */

static int share_words(struct tern_comm **comms, void **memories)
{
    OK(tern_window_adopt_all(num_ranks, comms, memories, window_bytes));
    for (int r = 0; r < num_ranks; r++) {
        PASS(write_words(comms[r], (char *)memories[r]));
    }
    for (int r = 0; r < num_ranks; r++) {
        void *place;
        char *end = (char *)memories[r] + window_bytes;
        PASS(read_words(comms[r], (const char *)memories[r]));
        OK(tern_peer_pointer(comms[r], end - 1, (r + 1) % num_ranks, &place));
        CHECK(place == (char *)memories[(r + 1) % num_ranks] + window_bytes - 1, "the last byte");
        REFUSES(tern_peer_pointer(comms[r], end, r, &place), TERN_INVALID_ARGUMENT, "is in no window");
        REFUSES(tern_peer_pointer(comms[r], (char *)memories[r] - 1, r, &place), TERN_INVALID_ARGUMENT,
                "is in no window");
        CHECK(terni_heap_offset(comms[r]->heap, memories[r], 1) < 0, "adopted memory is none of the heap");
    }
    return 0;
}

static int refusals(struct tern_comm **comms, void **memories, char *other)
{
    void *wrong[num_ranks], *place, *window;
    REFUSES(tern_window_adopt_all(num_ranks, comms, memories, window_bytes), TERN_INVALID_ARGUMENT,
            "rank 0 cannot adopt a window of 10000 bytes: 10000 bytes at");
    for (int r = 0; r < num_ranks; r++) {
        wrong[r] = other + 64 * r;
    }
    wrong[2] = (char *)memories[2] - 63;
    REFUSES(tern_window_adopt_all(num_ranks, comms, wrong, 64), TERN_INVALID_ARGUMENT,
            "overlap the adopted window of 10000 at");
    CHECK(strncmp(tern_last_error(), "rank 2", 6) == 0, "\"%s\"", tern_last_error());
    wrong[2] = (char *)memories[2] + window_bytes - 1;
    REFUSES(tern_window_adopt_all(num_ranks, comms, wrong, 64), TERN_INVALID_ARGUMENT,
            "overlap the adopted window of 10000 at");
    wrong[2] = NULL;
    REFUSES(tern_window_adopt_all(num_ranks, comms, wrong, 64), TERN_INVALID_ARGUMENT, "64 bytes at (nil)");
    wrong[2] = other + 128;
    REFUSES(tern_window_adopt_all(num_ranks, comms, wrong, 0), TERN_INVALID_ARGUMENT, "0 bytes at");
    REFUSES(tern_window_adopt_all(num_ranks, comms, wrong, UINT64_MAX), TERN_INVALID_ARGUMENT,
            "are no memory");
    OK(tern_alloc(comms[1], TERN_MEMORY_WINDOW, 100, &window));
    wrong[1] = window;
    REFUSES(tern_window_adopt_all(num_ranks, comms, wrong, 64), TERN_INVALID_ARGUMENT,
            "lie in the window of tern_alloc");
    wrong[1] = other + 64;
    REFUSES(tern_window_adopt_all(num_ranks, comms, NULL, 64), TERN_INVALID_ARGUMENT, "memories is NULL");
    REFUSES(tern_window_adopt_all(2, comms, wrong, 64), TERN_INVALID_ARGUMENT, "comms[0] is rank 0 of 4");
    REFUSES(tern_window_adopt(NULL, other, 64), TERN_INVALID_ARGUMENT, "comm is NULL");
    REFUSES(tern_peer_pointer(comms[0], NULL, 0, &place), TERN_INVALID_ARGUMENT, "memory is NULL");
    REFUSES(tern_peer_pointer(comms[0], other, 0, NULL), TERN_INVALID_ARGUMENT, "pointer is NULL");
    REFUSES(tern_peer_pointer(comms[0], memories[0], num_ranks, &place), TERN_INVALID_ARGUMENT,
            "peer 4 is none of 4 ranks");
    REFUSES(tern_peer_pointer(comms[0], memories[0], -1, &place), TERN_INVALID_ARGUMENT, "peer -1");
    OK(tern_window_adopt_all(num_ranks, comms, wrong, 64)); /* as good as the first */
    return 0;
}

static int play_one_thread(struct tern_comm **comms, void **memories)
{
    char *other = (char *)test_take(1, 64 * num_ranks);
    int result = share_words(comms, memories);
    result = result ? result : refusals(comms, memories, other);
    for (int r = 0; r < num_ranks && result == 0; r++) {
        result = check_released(comms[r], (char *)memories[r]);
    }
    result = result ? result : share_words(comms, memories); /* adopted anew, `other` still is */
    free(other);
    return result;
}

static int one_thread(struct test *t)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comms[num_ranks];
    void *memories[num_ranks];
    int result;
    (void)t;
    for (int r = 0; r < num_ranks; r++) {
        memories[r] = (char *)test_take(1, window_bytes + 64) + 8 * r;
    }
    OK(tern_comm_open_all(num_ranks, &config, comms));
    result = play_one_thread(comms, memories);
    close_all(comms, num_ranks); /* with windows left */
    for (int r = 0; r < num_ranks; r++) {
        free((char *)memories[r] - 8 * r);
    }
    return result;
}

/* ---- Threads ---- */

static int play(struct tern_comm *comm, char *memory)
{
    OK(tern_window_adopt(comm, memory, window_bytes));
    PASS(write_words(comm, memory));
    OK(tern_comm_barrier(comm));
    PASS(read_words(comm, memory));
    OK(tern_comm_barrier(comm));
    return check_released(comm, memory);
}

static int thread_actor(struct actor *a)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    char *memory = (char *)test_take(1, window_bytes);
    int result;
    OK(tern_comm_open(&a->scene->id, a->rank, a->num_ranks, &config, &comm));
    result = play(comm, memory);
    tern_comm_close(comm);
    free(memory);
    return result;
}

static int threads(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    return run_threads(&scene, actors, 3, thread_actor);
}

/* ---- Processes ---- */

enum { file_bytes = 5 * page_bytes, skipped_bytes = page_bytes };

/* Memory that others can map: pages 1 to 4 of a memfd. */
static char *map_file(int fd, int flags)
{
    void *p = mmap(NULL, file_bytes - skipped_bytes, PROT_READ | PROT_WRITE, flags, fd, skipped_bytes);
    return p == MAP_FAILED ? NULL : (char *)p;
}

static int make_file(int *fd, char **mapped)
{
    *fd = memfd_create("user", MFD_CLOEXEC);
    CHECK(*fd >= 0 && ftruncate(*fd, file_bytes) == 0, "memfd_create: %m");
    *mapped = map_file(*fd, MAP_SHARED);
    CHECK(*mapped != NULL, "mmap: %m");
    return 0;
}

/* In other processes, the peers' mappings outlive rank 0's window and its mapping. */
static int outlive(struct tern_comm *comm, char *mapped)
{
    char *memory = mapped + from_page, byte = 0;
    void *place;
    int is_zero = comm->rank == 0;
    memory[0] = (char)(comm->rank + 65);
    OK(tern_window_adopt(comm, memory, window_bytes));
    OK(tern_comm_barrier(comm));
    OK(tern_peer_pointer(comm, memory, 0, &place));
    if (is_zero) {
        tern_window_release(comm, memory);
        munmap(mapped, file_bytes - skipped_bytes);
    }
    OK(tern_comm_barrier(comm));
    if (!is_zero) {
        memcpy(&byte, place, 1);
        CHECK(byte == 65, "rank 0's memory holds %d", byte);
        tern_window_release(comm, memory);
        munmap(mapped, file_bytes - skipped_bytes);
    }
    return 0;
}

/* One thread of a process counts, and the others wait: counting takes a descriptor. */
static void count_fds(struct actor *a, int *fds)
{
    pthread_barrier_wait(&a->scene->barrier);
    *fds = a->rank == 0 ? num_fds() : 0;
    pthread_barrier_wait(&a->scene->barrier);
}

static int process_actor(struct actor *a)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    char *mapped;
    int fd, before, after, mappings, rank = a->rank + a->num_ranks * (int)a->scene->timeout_ms;
    OK(tern_comm_open(&a->scene->id, rank, num_ranks, &config, &comm));
    PASS(make_file(&fd, &mapped));
    count_fds(a, &before);
    mappings = num_mappings("memfd:user");
    pthread_barrier_wait(&a->scene->barrier);
    for (int round = 0; round < 3; round++) {
        memset(mapped, 0, file_bytes - skipped_bytes);
        PASS(play(comm, mapped + from_page));
    }
    count_fds(a, &after);
    CHECK(after == before, "%d descriptors after adopting, %d before", after, before);
    CHECK(num_mappings("memfd:user") == mappings, "%d mappings of users' memory, %d before",
          num_mappings("memfd:user"), mappings);
    pthread_barrier_wait(&a->scene->barrier);
    PASS(a->num_ranks == 1 ? outlive(comm, mapped) : 0);
    OK(tern_comm_barrier(comm));
    close(fd);
    tern_comm_close(comm);
    return 0;
}

static int process_body(int process, struct procs_page *page, void *user)
{
    struct actor actors[max_ranks];
    struct scene scene = {.id = page->id, .timeout_ms = (uint32_t)process};
    return run_threads(&scene, actors, *(const int *)user, process_actor);
}

/* Every rank a process; then two ranks in each of two processes, which have peers of both kinds. */
static int processes(struct test *t)
{
    int ranks_a_process = 1;
    (void)t;
    PASS(procs_run(num_ranks, -1, 60, process_body, &ranks_a_process));
    ranks_a_process = 2;
    return procs_run(num_ranks / 2, -1, 60, process_body, &ranks_a_process);
}

/* Rank 1 gives memory that others cannot map, in one way after the other; the others give good memory. */
enum wrong { PRIVATE_MEMORY, ANONYMOUS, PRIVATE_MAPPING, CLOSED, READ_ONLY, TOO_LONG, SHORT_FILE, NUM_WRONG };

static int make_wrong(enum wrong wrong, int *fd, char **mapped)
{
    char path[64];
    int other;
    switch (wrong) {
    case PRIVATE_MEMORY:
        *mapped = (char *)mmap(NULL, file_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        break;
    case ANONYMOUS:
        *mapped = (char *)mmap(NULL, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        break;
    case PRIVATE_MAPPING:
        *mapped = map_file(*fd, MAP_PRIVATE);
        break;
    case CLOSED:
        close(*fd);
        *fd = -1;
        break;
    case READ_ONLY:
        snprintf(path, sizeof path, "/proc/self/fd/%d", *fd);
        other = open(path, O_RDONLY | O_CLOEXEC);
        CHECK(other >= 0, "open: %m");
        close(*fd);
        *fd = other;
        break;
    case TOO_LONG:
        *mapped += file_bytes - skipped_bytes - page_bytes - window_bytes / 2;
        break;
    default:
        CHECK(ftruncate(*fd, 2 * page_bytes) == 0, "ftruncate: %m");
        break;
    }
    CHECK(*mapped != MAP_FAILED && *mapped != NULL, "mmap: %m");
    return 0;
}

static int wrong_body(int rank, struct procs_page *page, void *user)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    int fds;
    (void)user;
    OK(tern_comm_open(&page->id, rank, 3, &config, &comm));
    for (int wrong = 0; wrong < NUM_WRONG; wrong++) {
        int is_one = rank == 1, fd;
        char *mapped;
        PASS(make_file(&fd, &mapped));
        PASS(is_one ? make_wrong((enum wrong)wrong, &fd, &mapped) : 0);
        fds = num_fds();
        REFUSES(tern_window_adopt(comm, mapped + from_page, window_bytes),
                wrong == SHORT_FILE ? TERN_INVALID_ARGUMENT : TERN_UNSUPPORTED, "rank 1");
        CHECK(strstr(tern_last_error(), wrong == SHORT_FILE ? "imported memory has 8192 bytes"
                                        : wrong == TOO_LONG
                                            ? "no one mapping"
                                            : "map a memfd (or a file of shared memory)") != NULL,
              "way %d: \"%s\"", wrong, tern_last_error());
        CHECK(num_fds() == fds, "way %d: %d descriptors after, %d before", wrong, num_fds(), fds);
        CHECK(comm->windows == NULL, "nothing is adopted");
        close(fd);
    }
    PASS(check_all(comm));
    tern_comm_close(comm);
    return 0;
}

static int wrong_memory(struct test *t)
{
    (void)t;
    return procs_run(3, -1, 60, wrong_body, NULL);
}

/* ---- Domains ---- */

static int check_domains(struct tern_comm **comms, void **memories)
{
    OK(tern_window_adopt_all(num_ranks, comms, memories, window_bytes));
    for (int r = 0; r < num_ranks; r++) {
        void *window, *places[2];
        OK(tern_alloc(comms[r], TERN_MEMORY_WINDOW, 5000, &window));
        for (int q = 0; q < num_ranks; q++) {
            places[0] = places[1] = comms;
            OK(tern_peer_pointer(comms[r], (char *)window + 4999, q, &places[0]));
            OK(tern_peer_pointer(comms[r], (char *)memories[r] + 1, q, &places[1]));
            CHECK((places[0] != NULL) == (q / 2 == r / 2) && (places[1] != NULL) == (q / 2 == r / 2),
                  "rank %d reaches rank %d or does not: %p, %p", r, q, places[0], places[1]);
        }
    }
    return 0;
}

static int domains(struct test *t)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comms[num_ranks];
    void *memories[num_ranks];
    enum tern_status status;
    int result;
    (void)t;
    setenv("TERN_DOMAIN_SIZE", "2", 1);
    status = tern_comm_open_all(num_ranks, &config, comms);
    unsetenv("TERN_DOMAIN_SIZE");
    OK(status);
    for (int r = 0; r < num_ranks; r++) {
        memories[r] = test_take(1, window_bytes);
    }
    result = check_domains(comms, memories);
    close_all(comms, num_ranks);
    for (int r = 0; r < num_ranks; r++) {
        free(memories[r]);
    }
    return result;
}

/* ---- EP ---- */

/* Outputs in adopted memory are in no window: without staging they are refused, as the header says. */
static int dispatch_to(struct tern_comm *comm, struct tern_ep *ep, char *memory)
{
    struct tern_route_args ids = TERN_ROUTE_ARGS_INIT;
    struct tern_dispatch_args args = TERN_DISPATCH_ARGS_INIT;
    struct tern_rows in = {memory, 64, 0, 0, 0}, out = {memory + 4096, 64, 0, 0, 0};
    struct tern_route *route;
    struct tern_stream *stream;
    int64_t choice = 0;
    OK(tern_stream_open(comm, &stream));
    ids.topk_idx = &choice;
    ids.num_tokens = ids.topk = 1;
    OK(tern_route_open(ep, &ids, stream, &route));
    args.in = &in;
    args.out = &out;
    args.num_in = 1;
    args.out_rows = 1;
    REFUSES(tern_dispatch(route, &args, stream), TERN_NO_SPACE, "is in no window");
    OK(tern_ep_synchronize(ep));
    tern_stream_close(comm, stream);
    return 0;
}

static int staged(struct test *t)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_ep_config shape = TERN_EP_CONFIG_INIT;
    struct tern_comm *comm;
    struct tern_ep *ep;
    void *memory = NULL;
    int result;
    (void)t;
    CHECK(posix_memalign(&memory, 256, 8192) == 0, "memory");
    OK(tern_comm_open_all(1, &config, &comm));
    shape.num_experts = shape.max_topk = shape.max_tokens = 1;
    shape.max_row_bytes = 64;
    shape.staging_bytes = TERN_STAGING_NONE;
    OK(tern_ep_open(comm, &shape, &ep));
    OK(tern_window_adopt(comm, memory, 8192));
    result = dispatch_to(comm, ep, (char *)memory);
    tern_ep_close(ep);
    tern_comm_close(comm);
    free(memory);
    return result;
}

/* ---- Nothing is left behind ---- */

static int leaks(struct test *t)
{
    static int (*const bodies[])(struct test * t) = {one_thread, threads, domains};
    return leaves_nothing(t, bodies, 3);
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    setenv("TERN_MACHINE", "cpu", 1);
    /* Processes first: their parent must not have started a machine. */
    test_run(&t, "processes", processes);
    test_run(&t, "memory that others cannot map", wrong_memory);
    test_run(&t, "one thread", one_thread);
    test_run(&t, "threads", threads);
    test_run(&t, "domains", domains);
    test_run(&t, "an operation's output", staged);
    test_run(&t, "leaks", leaks);
    return test_end(&t);
}
