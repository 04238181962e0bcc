/* SPDX-License-Identifier: Apache-2.0
 *
 * How connections of TCP engines come up, and do not: engines of one process, which the test itself polls,
 * strangers, and a process that has no descriptor or no port left. */
#include "comm/socket.h"
#include "comm_scene.h"
#include "mock_engine.h"
#include "net/proxy.h"
#include "procs.h"
#include "simt/executor.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 3 };

static int connect_error; /* connect fails with it; 0: it does what it should */

/* In place of the C library's. */
int connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    if (connect_error != 0) {
        errno = connect_error;
        return -1;
    }
    return (int)syscall(SYS_connect, fd, address, bytes);
}

struct engines {
    int num;
    struct engine *list[MOST];
    unsigned char cards[MOST][ENGINE_CARD_BYTES];
};

static enum tern_status open_engine(int rank, int num_ranks, struct engine **e)
{
    static const unsigned char cookie[16] = {1, 2, 3};
    struct address own;
    struct engine_config config = {rank, num_ranks, &own, cookie, NULL};
    terni_address_loopback(&own);
    return terni_tcp_engine_open(&config, e);
}

static int open_engines(struct engines *s, int num)
{
    memset(s, 0, sizeof *s);
    for (; s->num < num; s->num++) {
        OK(open_engine(s->num, num, &s->list[s->num]));
        OK(s->list[s->num]->ops->card(s->list[s->num], s->cards[s->num]));
    }
    return TEST_PASSED;
}

static void close_engines(struct engines *s)
{
    for (int r = 0; r < s->num; r++) {
        s->list[r]->ops->close(s->list[r]);
    }
}

/* Whether anything happened. */
static int poll_once(struct engine *e)
{
    int busy = 0;
    (void)e->ops->poll(e, &busy);
    return busy;
}

/* Polls both until a is connected to b, a has lost b, or the time is over. */
static void poll_pair(struct engines *s, int a, int b, double seconds)
{
    double end = test_seconds() + seconds;
    while (test_seconds() < end && s->list[a]->peers[b].lost == TERN_OK &&
           !s->list[a]->ops->is_connected(s->list[a], b)) {
        poll_once(s->list[a]);
        poll_once(s->list[b]);
        nap_ms(1);
    }
}

/* Rank 1 is lost to one that has no descriptor for its call, by a sentence that says so; no call is looked at
 * again and again. */
static int no_descriptor_body(int rank, struct procs_page *page, void *user)
{
    struct engines s;
    const struct engine_peer *seen;
    (void)rank;
    (void)page;
    (void)user;
    PASS(open_engines(&s, 2));
    seen = &s.list[0]->peers[1];
    OK(s.list[0]->ops->connect(s.list[0], s.cards[0]));
    OK(s.list[1]->ops->connect(s.list[1], s.cards[0]));
    PASS(leave_fds(0));
    poll_pair(&s, 0, 1, 5);
    CHECK(seen->lost == TERN_SYSTEM_ERROR &&
              strcmp(seen->text, "rank 0 cannot accept a connection: Too many open files") == 0,
          "rank 1 is %s to rank 0: \"%s\"", tern_status_string(seen->lost), seen->text);
    CHECK(!poll_once(s.list[0]), "rank 0 still has something to do");
    poll_pair(&s, 1, 0, 5);
    CHECK(s.list[1]->peers[0].lost == TERN_DISCONNECTED, "rank 0 is %s to rank 1",
          tern_status_string(s.list[1]->peers[0].lost));
    close_engines(&s);
    return TEST_PASSED;
}
static int no_descriptor(struct test *t)
{
    (void)t;
    return procs_run(1, -1, 30, no_descriptor_body, NULL);
}

/* What a connection lacks here is no fault of the peer's; what is in its way is told of the peer. */
static int no_way_body(struct engines *s, int error)
{
    struct engine *e = s->list[1];
    enum tern_status status = error == EADDRNOTAVAIL ? TERN_SYSTEM_ERROR : TERN_DISCONNECTED, ended;
    struct address where;
    char text[TERN_ADDRESS_TEXT], wanted[200];
    memcpy(&where, s->cards[0], sizeof where);
    terni_address_print(&where, text);
    snprintf(wanted, sizeof wanted,
             status == TERN_SYSTEM_ERROR ? "rank 1 has no connection to rank 0 at %s: %s"
                                         : "rank 0 at %s cannot be reached: %s",
             text, strerror(error));
    connect_error = error;
    ended = e->ops->connect(e, s->cards[0]);
    connect_error = 0;
    CHECK(ended == status && strcmp(tern_last_error(), wanted) == 0, "%s: \"%s\", not \"%s\"",
          tern_status_string(ended), tern_last_error(), wanted);
    return TEST_PASSED;
}
static int no_way(struct test *t)
{
    static const int errors[] = {EADDRNOTAVAIL, EHOSTUNREACH};
    (void)t;
    for (int i = 0; i < 2; i++) {
        struct engines s;
        int result = open_engines(&s, 2);
        result = result ? result : no_way_body(&s, errors[i]);
        close_engines(&s);
        PASS(result);
    }
    return TEST_PASSED;
}

/* Silent strangers, more than rank 0 entertains at once, come before rank 1. */
static int strangers_body(struct engines *s, int *fds, int num)
{
    struct address where;
    memcpy(&where, s->cards[0], sizeof where);
    for (int i = 0; i < num; i++) {
        fds[i] = socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(fds[i] >= 0 && connect(fds[i], (const struct sockaddr *)&where.storage, where.bytes) == 0,
              "stranger %d cannot connect", i);
    }
    OK(s->list[0]->ops->connect(s->list[0], s->cards[0]));
    OK(s->list[1]->ops->connect(s->list[1], s->cards[0]));
    poll_pair(s, 1, 0, 4);
    CHECK(s->list[1]->ops->is_connected(s->list[1], 0), "rank 1 has not got in: \"%s\"",
          s->list[1]->peers[0].text);
    return TEST_PASSED;
}
static int strangers(struct test *t)
{
    enum { NUM = 60 };
    struct engines s;
    int fds[NUM], result;
    (void)t;
    memset(fds, -1, sizeof fds);
    result = open_engines(&s, 2);
    result = result ? result : strangers_body(&s, fds, NUM);
    for (int i = 0; i < NUM; i++) {
        close(fds[i]);
    }
    close_engines(&s);
    return result;
}

/* Rank 1 calls, and says who it is a while later. */
static int late_body(struct engines *s)
{
    double end = test_seconds() + 5.5;
    OK(s->list[0]->ops->connect(s->list[0], s->cards[0]));
    OK(s->list[1]->ops->connect(s->list[1], s->cards[0]));
    while (test_seconds() < end) {
        poll_once(s->list[0]);
        nap_ms(1);
    }
    poll_pair(s, 1, 0, 5);
    CHECK(s->list[1]->ops->is_connected(s->list[1], 0), "rank 1 has not got in: \"%s\"",
          s->list[1]->peers[0].text);
    return TEST_PASSED;
}
static int late(struct test *t)
{
    struct engines s;
    int result = open_engines(&s, 2);
    (void)t;
    result = result ? result : late_body(&s);
    close_engines(&s);
    return result;
}

/* Who is waited for calls, or is called. */
static int missing_body(struct machine *m)
{
    struct proxy_config config = {.machine = m, .num_queues = 1, .depth = 2, .timeout_ms = 1000};
    for (int r = 0; r < 2; r++) {
        struct proxy *p;
        OK(open_engine(r, 2, &config.engine));
        OK(terni_proxy_open(&config, &p));
        EXPECT(terni_proxy_await(p, 1), TERN_TIMEOUT);
        terni_proxy_close(p);
        CHECK(strcmp(tern_last_error(),
                     r == 0 ? "rank 1 has not called rank 0's proxy within 1 ms"
                            : "rank 0 has not answered a call of rank 1's proxy within 1 ms") == 0,
              "\"%s\"", tern_last_error());
    }
    return TEST_PASSED;
}
static int missing(struct test *t)
{
    struct executor *x;
    struct machine *m;
    int result;
    (void)t;
    OK(terni_executor_open(0, &x));
    OK(terni_cpu_open(x, &m));
    result = missing_body(m);
    m->ops->close(m);
    terni_executor_release(x);
    return result;
}

/* Who waits for connections hears all that there are not, not only the first, and before them who is lost. */
static int absent_ranks(struct test *t)
{
    static const struct {
        uint32_t absent;
        const char *sentence;
    } cases[] = {
        {1u << 1, "rank 1 has not answered a call of rank 3's proxy within 1 ms"},
        {1u << 0 | 1u << 2, "ranks 0, 2 have not answered a call of rank 3's proxy within 1 ms"},
        {1u << 4 | 1u << 19, "ranks 4, 19 have not called rank 3's proxy within 1 ms"},
        {1u << 2 | 1u << 5 | 1u << 6,
         "rank 2 has not answered a call of rank 3's proxy, and ranks 5, 6 have not "
         "called it, within 1 ms"},
        {0xfffffff7,
         "ranks 0, 1, 2 have not answered a call of rank 3's proxy, and ranks 4, 5, 6, 7, 8, 9, 10, 11 "
         "and 8 more have not called it, within 1 ms"},
    };
    struct executor *x;
    struct machine *m;
    (void)t;
    OK(terni_executor_open(0, &x));
    OK(terni_cpu_open(x, &m));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mock_engine *engine = mock_engine_new(3, 20);
        struct proxy_config c = {m, &engine->base, 1, 64, 1000, 0, 0};
        struct proxy *p;
        OK(terni_proxy_open(&c, &p));
        engine->absent = cases[i].absent;
        EXPECT(terni_proxy_await(p, 1), TERN_TIMEOUT);
        CHECK(strcmp(tern_last_error(), cases[i].sentence) == 0, "\"%s\"", tern_last_error());
        terni_engine_lose(&engine->base, 19, TERN_DISCONNECTED, "rank 19 cannot be reached");
        REFUSES(terni_proxy_await(p, 1), TERN_DISCONNECTED, "rank 19 cannot be reached");
        terni_proxy_close(p);
    }
    m->ops->close(m);
    terni_executor_release(x);
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "a rank without a descriptor for who calls", no_descriptor);
    test_run(&t, "a call for which there is no port, and no way", no_way);
    test_run(&t, "strangers who say nothing", strangers);
    test_run(&t, "a rank that calls and says late who it is", late);
    test_run(&t, "the sentence for a missing rank says who calls", missing);
    test_run(&t, "ranks that are not connected are all named", absent_ranks);
    return test_end(&t);
}
