/* SPDX-License-Identifier: Apache-2.0
 *
 * Traces. Four ranks route, dispatch and combine, and do so with low latency; one of them comes late to
 * every operation, and that is whom tern-trace names. Then what goes wrong: files that are not whole, a
 * ring that is too small, folders and disks that take nothing. The kernels here have time stamps, unlike
 * the library's. One file, because what goes wrong is shown on traces that the first cases' scene leaves.
 *
 * test/trace.sh looks closer at the traces that the first three cases leave where TERN_TRACE says. */
#include "ep/trace_file.h"
#include "support.h"

#include <dirent.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANKS = 4, LATE = 2, EXPERTS = 8, TOPK = 2, TOKENS = 24, HIDDEN = 128, ROW_BYTES = 2 * HIDDEN };
enum { FEW = 8 }; /* tokens of low latency whose rows go in words */
enum { DELAY_MS = 1000, OPERATIONS = 5, MAX_PATH = 512 };

static char tool[MAX_PATH];
static uint32_t ll_tokens = TOKENS; /* of low latency */
static uint32_t ll_weights = TERN_LL_WEIGHTS_AT_COMBINE;

struct rank {
    struct tern_comm *comm;
    struct tern_ep *ep;
    struct tern_stream *stream;
    struct tern_route *route;
    void *ids, *tokens, *rows, *sums, *slabs;
    int32_t *counts;
    float *weights;
};

static int prepare(struct rank *r, int me)
{
    int64_t ids[TOKENS][TOPK];
    size_t slabs = (size_t)EXPERTS / RANKS * RANKS * TOKENS * ROW_BYTES;
    for (int t = 0; t < TOKENS; t++) {
        ids[t][0] = (me + t) % EXPERTS;
        ids[t][1] = (me + t + EXPERTS / 2) % EXPERTS;
    }
    OK(tern_stream_open(r->comm, &r->stream));
    OK(tern_alloc(r->comm, TERN_MEMORY_DEVICE, sizeof(ids), &r->ids));
    OK(tern_alloc(r->comm, TERN_MEMORY_DEVICE, TOKENS * ROW_BYTES, &r->tokens));
    OK(tern_alloc(r->comm, TERN_MEMORY_WINDOW, (size_t)RANKS * TOKENS * ROW_BYTES, &r->rows));
    OK(tern_alloc(r->comm, TERN_MEMORY_DEVICE, TOKENS * ROW_BYTES, &r->sums));
    OK(tern_alloc(r->comm, TERN_MEMORY_DEVICE, slabs, &r->slabs));
    OK(tern_alloc(r->comm, TERN_MEMORY_DEVICE, EXPERTS * sizeof(int32_t), (void **)&r->counts));
    OK(tern_alloc(r->comm, TERN_MEMORY_DEVICE, TOKENS * TOPK * sizeof(float), (void **)&r->weights));
    OK(tern_copy(r->comm, r->ids, ids, sizeof(ids), r->stream));
    OK(tern_fill(r->comm, r->tokens, 0x3f, TOKENS * ROW_BYTES, r->stream));
    OK(tern_fill(r->comm, r->weights, 0, TOKENS * TOPK * sizeof(float), r->stream));
    return tern_stream_synchronize(r->comm, r->stream) == TERN_OK ? 0 : TEST_FAILED;
}

static enum tern_status issue(struct rank *r, int operation)
{
    struct tern_route_args route = TERN_ROUTE_ARGS_INIT;
    struct tern_dispatch_args out = TERN_DISPATCH_ARGS_INIT;
    struct tern_combine_args home = TERN_COMBINE_ARGS_INIT;
    struct tern_ll_dispatch_args ll_out = TERN_LL_DISPATCH_ARGS_INIT;
    struct tern_ll_combine_args ll_home = TERN_LL_COMBINE_ARGS_INIT;
    struct tern_rows tokens = {r->tokens, ROW_BYTES, 0, 0, 0}, rows = {r->rows, ROW_BYTES, 0, 0, 0};
    struct tern_rows sums = {r->sums, ROW_BYTES, 0, 0, 0};
    switch (operation) {
    case 0:
        route.topk_idx = r->ids;
        route.num_tokens = TOKENS;
        route.topk = TOPK;
        return r->route ? tern_route_update(r->route, &route, r->stream)
                        : tern_route_open(r->ep, &route, r->stream, &r->route);
    case 1:
        out.in = &tokens;
        out.num_in = 1;
        out.out = &rows;
        out.out_rows = RANKS * TOKENS;
        return tern_dispatch(r->route, &out, r->stream);
    case 2:
        home.in = rows;
        home.in_rows = RANKS * TOKENS;
        home.out = sums;
        return tern_combine(r->route, &home, r->stream);
    case 3:
        ll_out.in = r->tokens;
        ll_out.topk_idx = r->ids;
        ll_out.num_tokens = ll_tokens;
        ll_out.topk = TOPK;
        ll_out.hidden = HIDDEN;
        ll_out.weights = ll_weights;
        ll_out.out = r->slabs;
        ll_out.out_counts = r->counts;
        return tern_ll_dispatch(r->ep, &ll_out, r->stream);
    default:
        ll_home.in = r->slabs;
        ll_home.topk_weights = r->weights;
        ll_home.out = r->sums;
        return tern_ll_combine(r->ep, &ll_home, r->stream);
    }
}

/* Every operation in turn; one rank comes delay_ms after the others. */
static int round_trip(struct rank *ranks, int delay_ms)
{
    for (int operation = 0; operation < OPERATIONS; operation++) {
        for (int r = 0; r < RANKS; r++) {
            if (r != LATE) {
                OK(issue(&ranks[r], operation));
            }
        }
        usleep((useconds_t)delay_ms * 1000);
        OK(issue(&ranks[LATE], operation));
        for (int r = 0; r < RANKS; r++) {
            OK(tern_ep_synchronize(ranks[r].ep));
        }
    }
    return 0;
}

static int open_ranks(struct rank *ranks, uint32_t timeout_ms)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_ep_config shape = TERN_EP_CONFIG_INIT;
    struct tern_comm *comms[RANKS];
    struct tern_ep *eps[RANKS];
    config.machine = TERN_MACHINE_CPU;
    config.heap_bytes = 1 << 20;
    config.timeout_ms = timeout_ms;
    shape.num_experts = EXPERTS;
    shape.max_topk = TOPK;
    shape.max_tokens = TOKENS;
    shape.max_row_bytes = ROW_BYTES;
    shape.ll_tokens = ll_tokens;
    shape.ll_hidden = HIDDEN;
    shape.num_sms = 2;
    memset(ranks, 0, RANKS * sizeof(*ranks));
    OK(tern_comm_open_all(RANKS, &config, comms));
    OK(tern_ep_open_all(RANKS, comms, &shape, eps));
    for (int r = 0; r < RANKS; r++) {
        ranks[r].comm = comms[r];
        ranks[r].ep = eps[r];
        PASS(prepare(&ranks[r], r));
    }
    return 0;
}

static void close_ranks(struct rank *ranks)
{
    for (int r = 0; r < RANKS; r++) {
        if (ranks[r].route) {
            tern_route_close(ranks[r].route);
        }
        tern_ep_close(ranks[r].ep);
        tern_stream_close(ranks[r].comm, ranks[r].stream);
        tern_comm_close(ranks[r].comm);
    }
}

/* A world that opens, goes `rounds` times round and closes. */
static int run(int rounds, int delay_ms)
{
    struct rank ranks[RANKS];
    PASS(open_ranks(ranks, 60000));
    for (int i = 0; i < rounds; i++) {
        PASS(round_trip(ranks, delay_ms));
    }
    close_ranks(ranks);
    return 0;
}

/* A folder of its own for TERN_TRACE. */
static int take_folder(char folder[MAX_PATH])
{
    static int number;
    snprintf(folder, MAX_PATH, "/tmp/tern-trace-test-%d-%d", (int)getpid(), number++);
    CHECK(mkdir(folder, 0777) == 0, "no folder %s", folder);
    CHECK(setenv("TERN_TRACE", folder, 1) == 0, "setenv failed");
    return 0;
}

static void drop_folder(const char *folder)
{
    char command[MAX_PATH + 16];
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    if (system(command) != 0) {
        test_note(__FILE__, __LINE__, "%s failed", command);
    }
}

/* What tern-trace says, standard error included; its exit status. */
static int ask(const char *options, const char *path, char *text, size_t bytes)
{
    char command[3 * MAX_PATH];
    snprintf(command, sizeof(command), "'%s' %s '%s' 2>&1", tool, options, path);
    FILE *out = popen(command, "r");
    size_t n = out ? fread(text, 1, bytes - 1, out) : 0;
    text[n] = '\0';
    int status = out ? pclose(out) : -1;
    return status >= 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int names_late(struct test *t)
{
    static char text[1 << 16];
    char folder[MAX_PATH];
    const char *given = getenv("TERN_TRACE");
    int rank = -1;
    double ms = 0;
    if (!given) {
        PASS(take_folder(folder));
    }
    PASS(run(1, DELAY_MS));
    CHECK(ask("--summary", given ? given : folder, text, sizeof(text)) == 0, "tern-trace fails: %s", text);
    const char *at = strstr(text, "most waited for: rank ");
    CHECK(at && sscanf(at, "most waited for: rank %d, %lf ms", &rank, &ms) == 2, "nobody is named:\n%s",
          text);
    CHECK(rank == LATE, "rank %d is named, not %d:\n%s", rank, LATE, text);
    /* Three ranks waited in each operation. */
    CHECK(ms > 0.9 * DELAY_MS * OPERATIONS * (RANKS - 1), "only %.3f ms:\n%s", ms, text);
    test_detail(t, "%.0f ms", ms);
    if (!given) {
        drop_folder(folder);
        unsetenv("TERN_TRACE");
    }
    return 0;
}

/* The same by the kernels of few tokens. */
static int names_late_of_few(struct test *t)
{
    ll_tokens = FEW;
    int result = names_late(t);
    ll_tokens = TOKENS;
    return result;
}

/* The same where weights go ahead: a combine is two kernels. */
static int names_late_ahead(struct test *t)
{
    ll_weights = TERN_LL_WEIGHTS_AHEAD;
    int result = names_late(t);
    ll_weights = TERN_LL_WEIGHTS_AT_COMBINE;
    return result;
}

/* The path of some rank's file. */
static int find_file(const char *folder, int rank, char path[MAX_PATH])
{
    char prefix[32];
    DIR *dir = opendir(folder);
    struct dirent *d;
    int found = 0;
    snprintf(prefix, sizeof(prefix), "tern.%d.", rank);
    while (dir && !found && (d = readdir(dir)) != NULL) {
        found = strncmp(d->d_name, prefix, strlen(prefix)) == 0;
        snprintf(path, MAX_PATH, "%.200s/%.200s", folder, d->d_name);
    }
    closedir(dir);
    CHECK(found, "rank %d left nothing in %s", rank, folder);
    return 0;
}

static int refuses(const char *folder, const char *path, const char *reason)
{
    static char text[1 << 16];
    CHECK(ask("", folder, text, sizeof(text)) == 1, "it is taken");
    CHECK(strstr(text, path) && strstr(text, reason), "it does not name %s and %s: %.300s", path, reason,
          text);
    return 0;
}

/* Overwrites `bytes` bytes of the file from `at` on. */
static int damage(const char *path, long at, const void *with, size_t bytes)
{
    FILE *file = fopen(path, "r+b");
    CHECK(file && fseek(file, at, SEEK_SET) == 0 && fwrite(with, 1, bytes, file) == bytes, "cannot write %s",
          path);
    CHECK(fclose(file) == 0, "cannot write %s", path);
    return 0;
}

static int refuses_files(struct test *t)
{
    static const uint32_t version = 7;
    static const uint64_t late = UINT64_MAX, unlikely = UINT64_C(1) << 62;
    static const int32_t many = 32768;
    char folder[MAX_PATH], path[MAX_PATH];
    struct stat s;
    (void)t;
    PASS(take_folder(folder));
    PASS(run(1, 0));
    PASS(find_file(folder, 1, path));
    CHECK(stat(path, &s) == 0, "no %s", path);
    PASS(damage(path, (long)s.st_size, "x", 1));
    PASS(refuses(folder, path, "too long"));
    CHECK(truncate(path, s.st_size) == 0, "cannot truncate");
    PASS(damage(path, s.st_size - 24, &unlikely, sizeof(unlikely)));
    PASS(refuses(folder, path, "to 4611686018427387904"));
    PASS(damage(path, s.st_size - 32, &late, sizeof(late)));
    PASS(refuses(folder, path, "makes no sense: from 18446744073709551615"));
    CHECK(truncate(path, s.st_size - 1) == 0, "cannot truncate");
    PASS(refuses(folder, path, "truncated"));
    CHECK(truncate(path, 100) == 0, "cannot truncate");
    PASS(refuses(folder, path, "truncated: 100 bytes"));
    PASS(find_file(folder, 2, path));
    PASS(damage(path, offsetof(struct trace_header, num_ranks), &many, sizeof(many)));
    PASS(refuses(path, path, "rank 2 of 32768"));
    PASS(damage(path, 8, &version, sizeof(version)));
    PASS(refuses(path, path, "version 7"));
    PASS(damage(path, 0, "FOREIGN!", 8));
    PASS(refuses(path, path, "no trace of Tern"));
    drop_folder(folder);
    unsetenv("TERN_TRACE");
    return 0;
}

/* The latest events are kept, and what went is counted. */
static int drops_oldest(struct test *t)
{
    static char text[1 << 16];
    char folder[MAX_PATH];
    unsigned long long events = 0, dropped = 0;
    PASS(take_folder(folder));
    setenv("TERN_TRACE_EVENTS", "64", 1);
    PASS(run(6, 0));
    unsetenv("TERN_TRACE_EVENTS");
    CHECK(ask("--summary", folder, text, sizeof(text)) == 0, "tern-trace fails: %s", text);
    const char *at = strstr(text, "rank 0, object 0: ");
    CHECK(at && sscanf(at, "rank 0, object 0: %llu events, %llu dropped", &events, &dropped) == 2,
          "no counts: %s", text);
    CHECK(events <= 64 && events > 32 && dropped > 0, "%llu events, %llu dropped", events, dropped);
    test_detail(t, "%llu kept, %llu dropped", events, dropped);
    drop_folder(folder);
    unsetenv("TERN_TRACE");
    return 0;
}

static char said[4096];

static void hear(enum tern_log_level level, const char *file, int line, const char *text, void *user)
{
    size_t n = strlen(said);
    (void)level, (void)file, (void)line, (void)user;
    snprintf(said + n, sizeof(said) - n, "%s\n", text);
}

/* A folder that cannot be, and a disk that is full when the object is closed: the operations are as good
 * as ever. */
static int goes_on_without(struct test *t)
{
    struct rlimit before, full;
    struct rank ranks[RANKS];
    char folder[MAX_PATH], path[MAX_PATH];
    struct stat s;
    (void)t;
    tern_log_set(hear, NULL);
    setenv("TERN_TRACE", "/dev/null/folder", 1);
    said[0] = '\0';
    PASS(run(1, 0));
    CHECK(strstr(said, "/dev/null/folder/tern.0.") && strstr(said, "Not a directory"), "it says: %s", said);
    PASS(take_folder(folder));
    said[0] = '\0';
    PASS(open_ranks(ranks, 60000));
    PASS(round_trip(ranks, 0));
    signal(SIGXFSZ, SIG_IGN);
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0, "getrlimit failed");
    full = before;
    full.rlim_cur = 300;
    CHECK(setrlimit(RLIMIT_FSIZE, &full) == 0, "setrlimit failed");
    close_ranks(ranks);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0, "setrlimit failed");
    CHECK(strstr(said, folder) && strstr(said, "File too large"), "it says: %s", said);
    PASS(find_file(folder, 3, path));
    CHECK(stat(path, &s) == 0 && s.st_size < 300 && strstr(path, ".part") == NULL, "%s is left", path);
    tern_log_set(NULL, NULL);
    drop_folder(folder);
    unsetenv("TERN_TRACE");
    return 0;
}

/* The host hears of a fault: what led to it is in the file before the object is closed. */
static int tells_of_faults(struct test *t)
{
    static char text[1 << 20];
    char folder[MAX_PATH];
    struct rank ranks[RANKS];
    (void)t;
    test_quiet();
    PASS(take_folder(folder));
    PASS(open_ranks(ranks, 200));
    for (int r = 0; r < RANKS; r++) {
        if (r != LATE) {
            OK(issue(&ranks[r], 0));
        }
    }
    REFUSES(tern_ep_synchronize(ranks[0].ep), TERN_TIMEOUT, "");
    CHECK(ask("", folder, text, sizeof(text)) == 0, "tern-trace fails: %.300s", text);
    CHECK(strstr(text, "wait rank 2: its entry or counts (in vain)"), "no wait in vain: %.300s", text);
    close_ranks(ranks);
    drop_folder(folder);
    unsetenv("TERN_TRACE");
    return 0;
}

/* A made file of a rank that is on a host of its own. */
static int make_file(const char *folder, int rank, int num_ranks, uint64_t num_dropped,
                     const struct stamp_event *events, uint64_t num)
{
    struct trace_header h;
    char path[MAX_PATH + 32];
    memset(&h, 0, sizeof(h));
    memcpy(h.magic, TRACE_MAGIC, sizeof(h.magic));
    h.version = TRACE_VERSION;
    h.header_bytes = sizeof(h);
    h.event_bytes = sizeof(events[0]);
    h.rank = rank;
    h.num_ranks = num_ranks;
    h.host = (uint64_t)rank + 1;
    h.num_events = num;
    h.num_dropped = num_dropped;
    h.written = TRACE_AT_CLOSE;
    snprintf(h.host_name, sizeof(h.host_name), "host%d", rank);
    snprintf(h.device_name, sizeof(h.device_name), "a\n\x7f\xc3\"b");
    snprintf(path, sizeof(path), "%s/tern.%d.trace", folder, rank);
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(&h, sizeof(h), 1, file) == 1 && fwrite(events, sizeof(events[0]), num, file) == num,
          "cannot write %s", path);
    CHECK(fclose(file) == 0, "cannot write %s", path);
    return 0;
}

/* Rank 0 or 1, whose clock is `ahead` of true time. In even operations rank 1 begins 20 us late, in odd ones
 * rank 0; the other waits for it until 2 us after. has_lost: the file has lost the oldest operation's first
 * block, and there is a later one. */
static int make_pair(const char *folder, int rank, uint64_t ahead, int has_lost)
{
    enum { EPOCHS = 6 };
    struct stamp_event events[2 * EPOCHS];
    uint64_t num = 0;
    memset(events, 0, sizeof(events));
    for (uint32_t i = 0; i < EPOCHS; i++) {
        int is_late = rank == (i % 2 == 0);
        uint64_t start = 1000000 * (i + 1), begin = ahead + start + (is_late ? 20000 : 0);
        struct stamp_event block = {begin, ahead + start + 50000, num + 1, i + 1, -1, 0,
                                    2,     STAMP_BLOCK,           0,       0};
        struct stamp_event wait = {begin + 1000,
                                   ahead + start + 22000,
                                   num + 2,
                                   i + 1,
                                   (int16_t)(1 - rank),
                                   0,
                                   2,
                                   TERN_AWAIT_READY,
                                   STAMP_CAME,
                                   0};
        events[num++] = block;
        if (!is_late) {
            events[num++] = wait;
        }
    }
    if (has_lost) {
        events[0].begin += 500000;
        events[0].end += 500000;
    }
    return make_file(folder, rank, 2, (uint64_t)has_lost, events, num);
}

static int aligns_pair(struct test *t, int has_lost)
{
    static const char form[] = "clock of rank 1 (host1) shifted by %lf ms against that of rank 0, which "
                               "waits bound to %lf ms either way";
    static char text[1 << 16];
    char folder[MAX_PATH];
    double by = 0, half = 0;
    PASS(take_folder(folder));
    PASS(make_pair(folder, 0, 0, 0));
    PASS(make_pair(folder, 1, 5000000000u, has_lost));
    CHECK(ask("--summary", folder, text, sizeof(text)) == 0, "tern-trace fails: %s", text);
    CHECK(sscanf(text, form, &by, &half) == 2, "no shift: %s", text);
    CHECK(by > -5000.0021 && by < -4999.9979 && half > 0.0019 && half < 0.0021, "by %f +- %f ms", by, half);
    /* Each waited three times 21 us. */
    CHECK(strstr(text, "rank 0 waited 0.063 ms for rank 1, most in dispatch: 0.063 ms for its entry"),
          "other sums: %s", text);
    CHECK(ask("", folder, text, sizeof(text)) == 0, "tern-trace fails: %s", text);
    CHECK(strstr(text, "rank 1 on host1, a____b"), "names as they are in the file: %.300s", text);
    test_detail(t, "%.3f ms, to %.3f ms", by, half);
    drop_folder(folder);
    unsetenv("TERN_TRACE");
    return 0;
}

static int aligns_clocks(struct test *t) { return aligns_pair(t, 0); }

static int aligns_without_first_blocks(struct test *t) { return aligns_pair(t, 1); }

/* Of three ranks, each has waited for the one before it, in an operation of these two, until 1 ms before that
 * one began. No two of them contradict each other; all three do. */
static int tells_of_contradiction(struct test *t)
{
    enum { MS = 1000000, CLOCKS = 3 };
    static char text[1 << 16];
    char folder[MAX_PATH];
    (void)t;
    PASS(take_folder(folder));
    for (int r = 0; r < CLOCKS; r++) {
        int before = (r + CLOCKS - 1) % CLOCKS, after = (r + 1) % CLOCKS;
        struct stamp_event events[] = {
            {5 * MS, 20 * MS, 1, (uint32_t)r, -1, 0, 2, STAMP_BLOCK, 0, 0},
            {6 * MS, 9 * MS, 2, (uint32_t)r, (int16_t)before, 0, 2, TERN_AWAIT_READY, STAMP_CAME, 0},
            {10 * MS, 20 * MS, 3, (uint32_t)after, -1, 1, 2, STAMP_BLOCK, 0, 0},
        };
        PASS(make_file(folder, r, CLOCKS, 0, events, sizeof(events) / sizeof(events[0])));
    }
    CHECK(ask("--summary", folder, text, sizeof(text)) == 0, "tern-trace fails: %s", text);
    CHECK(strstr(text, "warning: waits contradict each other by 3.000000 ms"), "no warning: %s", text);
    CHECK(
        strstr(text, "clock of rank 1 (host1) shifted by 1.000 ms against that of rank 0: waits contradict"),
        "another shift: %s", text);
    CHECK(strstr(text, "clock of rank 2 (host2) shifted by -1.000 ms"), "another shift: %s", text);
    CHECK(!strstr(text, "bound"), "bounds that are none: %s", text);
    drop_folder(folder);
    unsetenv("TERN_TRACE");
    return 0;
}

/* Counts blocks of routes; before and after a reset they have equal epochs, but not in one file. */
static int count_routes(const char *folder, const char *name, int *num_routes, uint32_t *written)
{
    char path[2 * MAX_PATH];
    struct trace_header h;
    struct stamp_event e;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    CHECK(file && fread(&h, sizeof(h), 1, file) == 1, "cannot read %s", path);
    *num_routes = 0;
    while (fread(&e, sizeof(e), 1, file) == 1) {
        *num_routes += e.what == STAMP_BLOCK && e.operation == TERN_OP_ROUTE && e.block == 0;
    }
    fclose(file);
    *written = h.written;
    return 0;
}

static int parts_at_resets(struct test *t)
{
    static char text[1 << 16];
    char folder[MAX_PATH];
    struct rank ranks[RANKS];
    struct tern_ep *eps[RANKS];
    int num_files[2] = {0, 0};
    struct dirent *d;
    (void)t;
    PASS(take_folder(folder));
    PASS(open_ranks(ranks, 60000));
    PASS(round_trip(ranks, 0));
    PASS(round_trip(ranks, 0));
    for (int r = 0; r < RANKS; r++) {
        tern_route_close(ranks[r].route);
        ranks[r].route = NULL;
        eps[r] = ranks[r].ep;
    }
    OK(tern_ep_reset_all(RANKS, eps));
    PASS(round_trip(ranks, 0));
    close_ranks(ranks);
    DIR *dir = opendir(folder);
    while (dir && (d = readdir(dir)) != NULL) {
        int is_after = strstr(d->d_name, "-1.trace") != NULL, num_routes;
        uint32_t written;
        if (d->d_name[0] == '.') {
            continue;
        }
        PASS(count_routes(folder, d->d_name, &num_routes, &written));
        CHECK(num_routes == (is_after ? 1 : 2), "%d routes in %s", num_routes, d->d_name);
        CHECK(written == (is_after ? TRACE_AT_CLOSE : TRACE_AT_RESET), "%s was written at %u", d->d_name,
              written);
        num_files[is_after]++;
    }
    closedir(dir);
    CHECK(num_files[0] == RANKS && num_files[1] == RANKS, "%d and %d files", num_files[0], num_files[1]);
    CHECK(ask("--summary", folder, text, sizeof(text)) == 0, "tern-trace fails: %s", text);
    CHECK(strstr(text, "rank 3, object 0: ") && strstr(text, "rank 3, object 1: "), "it says: %s", text);
    drop_folder(folder);
    unsetenv("TERN_TRACE");
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;
    const char *slash = strrchr(argv[0], '/');
    snprintf(tool, sizeof(tool), "%.*s/../bin/tern-trace", slash ? (int)(slash - argv[0]) : 1,
             slash ? argv[0] : ".");
    test_begin(&t, argc, argv);
    test_run(&t, "the late rank is the one that was waited for", names_late);
    test_run(&t, "the same of low latency of few tokens", names_late_of_few);
    test_run(&t, "the same where weights go ahead of a combine", names_late_ahead);
    test_run(&t, "files that are not whole, or not of Tern, are refused by name", refuses_files);
    test_run(&t, "a small ring keeps the latest events and counts the others", drops_oldest);
    test_run(&t, "no folder, no room: the operations go on", goes_on_without);
    test_run(&t, "clocks of two hosts are shifted until waits fit", aligns_clocks);
    test_run(&t, "a first block that the ring dropped misleads no clock", aligns_without_first_blocks);
    test_run(&t, "clocks that contradict each other are told of", tells_of_contradiction);
    test_run(&t, "what comes after a reset goes to a file of its own", parts_at_resets);
    test_run(&t, "a fault leaves its trace before the object is closed", tells_of_faults);
    return test_end(&t);
}
