/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations whose tensors lie in memory that the heap grew by, in several pieces: random cases as in
 * ep_random_test, with ranks in one process and as processes. Kernels write and read across the borders of
 * pieces, through the addresses that peers got before there was memory. And operations that run while another
 * thread grows the heap. */
#include "ep_case.h"
#include "procs.h"

#include <pthread.h>
#include <string.h>

enum { CASES = 60, PROCESS_CASES = 4, RANKS = 3 };

static int body(int rank, struct procs_page *page, void *user)
{
    struct ep_case c = *(const struct ep_case *)user;

    return ep_case_run(&c, rank, &page->id);
}

static int processes(struct test *t)
{
    struct ep_limits limits = ep_case_limits(t);
    uint64_t seed;

    limits.num_ranks = RANKS;
    for (seed = 1; seed <= (uint64_t)test_scaled(t, PROCESS_CASES); seed++) {
        struct ep_case c;
        ep_case_draw(&c, seed, &limits);
        c.deterministic = 0;
        c.windows_grow = 1;
        PASS(procs_run(RANKS, -1, 120, body, &c));
    }
    return 0;
}

static int one_process(struct test *t)
{
    struct ep_limits limits = ep_case_limits(t);
    uint64_t seed;

    for (seed = 1; seed <= (uint64_t)test_scaled(t, CASES); seed++) {
        struct ep_case c;
        ep_case_draw(&c, seed, &limits);
        c.windows_grow = 1;
        PASS(ep_case_run(&c, -1, NULL));
    }
    return 0;
}

/* ---- Growing while operations run ---- */

enum { DISPATCHES = 40, MEANWHILE_GROWTHS = 12, TOKENS = 32, ROW_BYTES = 256 };

struct meanwhile {
    struct tern_comm *comm;
    struct tern_ep *ep;
    struct tern_stream *stream;
    struct tern_rows in, out;
    void *ids, *host;
    int result;
};

/* Rows of 0x3f travel to this rank itself, into a window; `out` is poisoned before. */
static int dispatch_often(struct meanwhile *x)
{
    struct tern_route_args route_args = TERN_ROUTE_ARGS_INIT;
    struct tern_dispatch_args args = TERN_DISPATCH_ARGS_INIT;
    struct tern_route *route;

    route_args.topk_idx = x->ids;
    route_args.num_tokens = TOKENS;
    route_args.topk = 1;
    OK(tern_route_open(x->ep, &route_args, x->stream, &route));
    args.in = &x->in;
    args.out = &x->out;
    args.num_in = 1;
    args.out_rows = TOKENS;
    for (int i = 0; i < DISPATCHES; i++) {
        OK(tern_fill(x->comm, x->out.data, 0x11, TOKENS * ROW_BYTES, x->stream));
        OK(tern_dispatch(route, &args, x->stream));
        OK(tern_copy(x->comm, x->host, x->out.data, TOKENS * ROW_BYTES, x->stream));
        OK(tern_stream_synchronize(x->comm, x->stream));
        for (int b = 0; b < TOKENS * ROW_BYTES; b++) {
            CHECK(((unsigned char *)x->host)[b] == 0x3f, "dispatch %d: byte %d", i, b);
        }
    }
    OK(tern_ep_synchronize(x->ep));
    tern_route_close(route);
    return 0;
}

static void *dispatcher(void *user)
{
    struct meanwhile *x = (struct meanwhile *)user;

    x->result = dispatch_often(x);
    return NULL;
}

static int prepare(struct meanwhile *x)
{
    struct tern_ep_config shape = TERN_EP_CONFIG_INIT;

    shape.num_experts = shape.max_topk = 1;
    shape.max_tokens = TOKENS;
    shape.max_row_bytes = ROW_BYTES;
    shape.staging_bytes = TERN_STAGING_NONE;
    x->in.row_bytes = x->out.row_bytes = ROW_BYTES;
    OK(tern_stream_open(x->comm, &x->stream));
    OK(tern_ep_open(x->comm, &shape, &x->ep));
    OK(tern_alloc(x->comm, TERN_MEMORY_DEVICE, TOKENS * sizeof(int64_t), &x->ids));
    OK(tern_alloc(x->comm, TERN_MEMORY_DEVICE, TOKENS * ROW_BYTES, &x->in.data));
    OK(tern_alloc(x->comm, TERN_MEMORY_WINDOW, TOKENS * ROW_BYTES, &x->out.data));
    OK(tern_alloc(x->comm, TERN_MEMORY_HOST, TOKENS * ROW_BYTES, &x->host));
    OK(tern_fill(x->comm, x->ids, 0, TOKENS * sizeof(int64_t), x->stream));
    OK(tern_fill(x->comm, x->in.data, 0x3f, TOKENS * ROW_BYTES, x->stream));
    OK(tern_stream_synchronize(x->comm, x->stream));
    return 0;
}

/* An EP object in one thread, growth in another: the object looks for its windows in the heap that grows. */
static int grow_meanwhile(struct meanwhile *x)
{
    pthread_t thread;
    int result = 0;

    PASS(prepare(x));
    CHECK(pthread_create(&thread, NULL, dispatcher, x) == 0, "no thread");
    for (int i = 0; i < MEANWHILE_GROWTHS && result == 0; i++) {
        enum tern_status status = tern_heap_grow(x->comm, 1 << 16);
        result = status == TERN_OK ? 0 : TEST_FAILED;
    }
    pthread_join(thread, NULL);
    CHECK(result == 0, "growth: %s", tern_last_error());
    return x->result;
}

static int meanwhile(struct test *t)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct meanwhile x;
    int result;

    (void)t;
    memset(&x, 0, sizeof x);
    config.heap_bytes = 1 << 16;
    config.heap_max_bytes = 1ull << 26;
    OK(tern_comm_open_all(1, &config, &x.comm));
    result = grow_meanwhile(&x);
    tern_ep_close(x.ep);
    tern_comm_close(x.comm);
    return result;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    /* Processes first: their parent must not have started a machine. */
    test_run(&t, "operations in grown windows, processes", processes);
    test_run(&t, "operations in grown windows, one process", one_process);
    test_run(&t, "operations while the heap grows", meanwhile);
    return test_end(&t);
}
