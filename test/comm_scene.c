/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads as ranks; checks of a sound communicator. */
#include "comm_scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct tern_comm_config config_of(uint32_t timeout_ms)
{
    struct tern_comm_config c = TERN_COMM_CONFIG_INIT;
    c.machine = TERN_MACHINE_CPU;
    c.heap_bytes = heap_bytes;
    c.timeout_ms = timeout_ms;
    return c;
}

void nap_ms(int ms)
{
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

static void *act(void *user)
{
    struct actor *a = (struct actor *)user;
    double begin = test_seconds();
    a->result = a->act(a);
    a->seconds = test_seconds() - begin;
    return NULL;
}

int run_threads(struct scene *scene, struct actor *actors, int num_ranks, int (*body)(struct actor *a))
{
    pthread_t threads[max_ranks];
    int result = 0;
    pthread_barrier_init(&scene->barrier, NULL, (unsigned)num_ranks);
    for (int r = 0; r < num_ranks; r++) {
        memset(&actors[r], 0, sizeof actors[r]);
        actors[r].scene = scene;
        actors[r].rank = r;
        actors[r].num_ranks = num_ranks;
        actors[r].act = body;
        pthread_create(&threads[r], NULL, act, &actors[r]);
    }
    for (int r = 0; r < num_ranks; r++) {
        pthread_join(threads[r], NULL);
        result = result != 0 ? result : actors[r].result;
    }
    pthread_barrier_destroy(&scene->barrier);
    return result;
}

void note_status(struct actor *a, enum tern_status status)
{
    a->status = status;
    snprintf(a->text, sizeof a->text, "%s", tern_last_error());
}

int same_sentence(const struct actor *actors, int num_ranks, enum tern_status status, const char *text)
{
    for (int r = 0; r < num_ranks; r++) {
        CHECK(actors[r].status == status && strstr(actors[r].text, text) != NULL,
              "rank %d: %s: \"%s\", not \"%s\"", r, tern_status_string(actors[r].status), actors[r].text,
              text);
        CHECK(actors[r].seconds * 1000 < deadline_ms + slack_ms, "rank %d took %.1f s", r, actors[r].seconds);
    }
    return 0;
}

/* ---- What a sound communicator can do ---- */

static int check_allgather(struct tern_comm *comm, size_t bytes)
{
    int n = tern_comm_size(comm), rank = tern_comm_rank(comm);
    unsigned char *send = (unsigned char *)test_take(1, bytes + 1);
    unsigned char *recv = (unsigned char *)test_take((size_t)n, bytes + 1);
    int num_wrong = 0;
    enum tern_status status;
    memset(send, 1 + rank, bytes);
    status = tern_comm_allgather(comm, send, recv, bytes);
    for (int r = 0; r < n && bytes > 0; r++) {
        const unsigned char *row = recv + (size_t)r * bytes;
        num_wrong += row[0] != 1 + r || memcmp(row, row + 1, bytes - 1) != 0;
    }
    free(send);
    free(recv);
    CHECK(status == TERN_OK && num_wrong == 0, "allgather of %zu bytes: %s, %d wrong", bytes,
          tern_last_error(), num_wrong);
    return 0;
}

/* Every rank writes its word into a slot of every peer's window, through the addresses that kernels use. */
static int check_windows(struct tern_comm *comm)
{
    int n = tern_comm_size(comm), rank = tern_comm_rank(comm);
    void *memory;
    uint64_t *mine;
    int64_t offset;
    OK(tern_alloc(comm, TERN_MEMORY_WINDOW, sizeof(uint64_t) * max_ranks, &memory));
    mine = (uint64_t *)memory;
    offset = terni_heap_offset(comm->heap, mine, sizeof(uint64_t) * max_ranks);
    CHECK(offset >= 0 && offset % 256 == 0, "window at offset %lld", (long long)offset);
    OK(tern_comm_barrier(comm));
    for (int r = 0; r < n; r++) {
        CHECK(comm->heap->bases[r] != NULL && comm->heap->device_bases[r] == comm->heap->bases[r],
              "base of rank %d", r);
        ((uint64_t *)(comm->heap->bases[r] + offset))[rank] = (uint64_t)(1000 * rank + r);
    }
    OK(tern_comm_barrier(comm));
    for (int r = 0; r < n; r++) {
        CHECK(mine[r] == (uint64_t)(1000 * r + rank), "rank %d finds %llu of rank %d", rank,
              (unsigned long long)mine[r], r);
    }
    OK(tern_comm_barrier(comm));
    tern_free(comm, memory);
    return 0;
}

int check_all(struct tern_comm *comm)
{
    static const size_t sizes[] = {0, 1, 24, 4097, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        PASS(check_allgather(comm, sizes[i]));
    }
    return check_windows(comm);
}

int open_and_check(struct actor *a)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    OK(tern_comm_open(&a->scene->id, a->rank, a->num_ranks, &config, &comm));
    CHECK(tern_comm_rank(comm) == a->rank && tern_comm_size(comm) == a->num_ranks, "rank and size");
    CHECK(tern_comm_machine(comm) == TERN_MACHINE_CPU, "machine");
    PASS(check_all(comm));
    tern_comm_close(comm);
    return 0;
}

int call_port(const struct address *a)
{
    int fd = socket(a->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&a->storage, a->bytes) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

int leave_fds(int num)
{
    enum { most = 256 };
    struct rlimit limit;
    int taken[most], n = 0;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit: %m");
    limit.rlim_cur = limit.rlim_cur < most ? limit.rlim_cur : most;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit: %m");
    while (n < most && (taken[n] = dup(0)) >= 0) {
        n++;
    }
    CHECK(n >= num, "only %d descriptors are left", n);
    for (int i = 0; i < num; i++) {
        close(taken[i]);
    }
    return 0;
}

int num_fds(void) { return test_files("/proc/self/fd"); }

/* Mappings of at least half a window: thread stacks come and go, windows must not. */
int num_windows(void)
{
    unsigned long begin, end;
    char line[512];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        n += sscanf(line, "%lx-%lx", &begin, &end) == 2 && strstr(line, "rw-s") != NULL &&
             end - begin >= heap_bytes / 2;
    }
    if (f != NULL) {
        fclose(f);
    }
    return n;
}

int num_mappings(const char *name)
{
    char line[512];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        n += strstr(line, name) != NULL;
    }
    if (f != NULL) {
        fclose(f);
    }
    return n;
}

int leaves_nothing(struct test *t, int (*const bodies[])(struct test *t), int num_bodies)
{
    int fds, windows;
    PASS(bodies[0](t)); /* what stays for good is there after this */
    fds = num_fds();
    windows = num_windows();
    for (int i = 0; i < num_bodies; i++) {
        PASS(bodies[i](t));
    }
    CHECK(num_fds() == fds, "%d descriptors after, %d before", num_fds(), fds);
    CHECK(num_windows() == windows, "%d windows after, %d before", num_windows(), windows);
    return 0;
}
