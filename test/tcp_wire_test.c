/* SPDX-License-Identifier: Apache-2.0
 *
 * The TCP engine's end of a connection whose other end is the test, byte by byte: strangers, requests cut
 * into pieces, requests that may not be, answers to nothing, memory that is released in between. One file,
 * because every case is a few bytes on the one connection that the first third sets up. */
#include "net/tcp_engine.h"
#include "support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { AREA_BYTES = 1 << 20, NUM_REGIONS = 2, READ_ONLY = 1 };

/* Rank 0 of two. The other is a socket. */
struct end {
    struct executor *x;
    struct machine *m;
    struct stage stage;
    struct serve *serve;
    struct engine *e;
    struct engine_config config;
    struct address own, bound;
    unsigned char cookie[16];
    char *area[NUM_REGIONS];
    struct region region[NUM_REGIONS];
    int fd;
};

static int open_end(struct end *s)
{
    static const uint32_t access[] = {
        KEY_LOCAL_WRITE | KEY_REMOTE_WRITE | KEY_REMOTE_READ | KEY_REMOTE_ATOMIC, KEY_REMOTE_READ};
    unsigned char cards[2 * ENGINE_CARD_BYTES] = {0};
    memset(s, 0, sizeof *s);
    s->fd = -1;
    memset(s->cookie, 0x5c, sizeof s->cookie);
    terni_address_loopback(&s->own);
    s->config.num_ranks = 2;
    s->config.own = &s->own;
    s->config.cookie = s->cookie;
    OK(terni_executor_open(0, &s->x));
    OK(terni_cpu_open(s->x, &s->m));
    OK(terni_stage_open(&s->stage, s->m, 2, 2));
    s->serve = (struct serve *)test_take(1, sizeof *s->serve);
    terni_serve_init(s->serve, &s->stage);
    for (int i = 0; i < NUM_REGIONS; i++) {
        s->area[i] = (char *)test_take(1, AREA_BYTES);
        s->region[i].base = (uint64_t)(uintptr_t)s->area[i];
        s->region[i].bytes = AREA_BYTES;
        s->region[i].access = access[i];
        OK(terni_serve_add(s->serve, &s->region[i]));
    }
    OK(terni_tcp_engine_open(&s->config, &s->e));
    s->e->serve = s->serve;
    OK(s->e->ops->card(s->e, cards));
    memcpy(&s->bound, cards, sizeof s->bound);
    OK(s->e->ops->connect(s->e, cards));
    return TEST_PASSED;
}

static void close_end(struct end *s)
{
    if (s->fd >= 0) {
        close(s->fd);
    }
    if (s->e != NULL) {
        s->e->ops->close(s->e);
    }
    for (int i = 0; i < NUM_REGIONS; i++) {
        free(s->area[i]);
    }
    if (s->serve != NULL) {
        terni_serve_close(s->serve);
    }
    free(s->serve);
    terni_stage_close(&s->stage);
    s->m->ops->close(s->m);
    terni_executor_release(s->x);
}

static void turn(struct end *s, int times)
{
    for (int i = 0; i < times; i++) {
        int busy = 0;
        (void)s->e->ops->poll(s->e, &busy);
        if (!busy) {
            s->e->ops->rest(s->e, 200000);
        }
    }
}

static int call(const struct end *s)
{
    int fd = socket(s->bound.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&s->bound.storage, s->bound.bytes) != 0) {
        close(fd);
        return -1;
    }
    terni_socket_tune(fd);
    return fd;
}

static struct wire_frame hello_of(const struct end *s, uint32_t rank)
{
    struct wire_frame f = {.kind = WIRE_HELLO, .tag = rank, .key = 2, .how = tern_version()};
    memcpy(&f.value, s->cookie, 8);
    memcpy(&f.compare, s->cookie + 8, 8);
    return f;
}

/* Reads so many bytes while the engine turns; 0: it closed, or nothing more came. */
static int hear(struct end *s, int fd, void *to, size_t bytes)
{
    size_t done = 0;
    double end = test_seconds() + 10;
    while (done < bytes && test_seconds() < end) {
        ssize_t got;
        turn(s, 1);
        got = recv(fd, (char *)to + done, bytes - done, MSG_DONTWAIT);
        if (got == 0) {
            return 0;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return done == bytes;
}

/* The engine closes this caller's connection without a word. */
static int is_dropped(struct end *s, int fd)
{
    char byte;
    double end = test_seconds() + 10;
    while (test_seconds() < end) {
        ssize_t got;
        turn(s, 1);
        got = recv(fd, &byte, 1, MSG_DONTWAIT);
        if (got >= 0) {
            return got == 0;
        }
    }
    return 0;
}

/* Says hello in two pieces, and hears rank 0's. */
static int meet(struct end *s)
{
    struct wire_frame hello = hello_of(s, 1), answer, wanted = hello_of(s, 0);
    s->fd = call(s);
    CHECK(s->fd >= 0, "the engine does not listen");
    CHECK(send(s->fd, &hello, 20, 0) == 20, "half a hello");
    turn(s, 5);
    CHECK(!s->e->ops->is_connected(s->e, 1), "half a hello is enough");
    CHECK(send(s->fd, (char *)&hello + 20, sizeof hello - 20, 0) == sizeof hello - 20, "the rest");
    CHECK(hear(s, s->fd, &answer, sizeof answer) && memcmp(&answer, &wanted, sizeof answer) == 0, "no hello");
    CHECK(s->e->ops->is_connected(s->e, 1), "not connected after both have said hello");
    return TEST_PASSED;
}

static int with_end(int (*body)(struct end *s), int meets)
{
    struct end s;
    int result = open_end(&s);
    result = result || !meets ? result : meet(&s);
    result = result ? result : body(&s);
    close_end(&s);
    return result;
}

static int strangers_body(struct end *s)
{
    struct wire_frame hellos[5];
    int fd, silent = call(s);
    for (int i = 0; i < 5; i++) {
        hellos[i] = hello_of(s, 1);
    }
    hellos[0].value ^= 1; /* another cookie */
    hellos[1].tag = 2;    /* no rank of two */
    hellos[2].tag = 0;    /* the one that is called */
    hellos[3].how++;      /* another version */
    memset(&hellos[4], 'G', sizeof hellos[4]);
    for (int i = 0; i < 5; i++) {
        fd = call(s);
        CHECK(send(fd, &hellos[i], sizeof hellos[i], 0) == sizeof hellos[i], "send");
        CHECK(is_dropped(s, fd), "stranger %d is not dropped", i);
        close(fd);
    }
    PASS(meet(s)); /* whoever is silent holds up nobody */
    CHECK(is_dropped(s, silent), "a guest is still heard, and nobody is waited for");
    fd = call(s);
    CHECK(fd < 0, "the engine still listens when all are connected");
    CHECK(s->e->peers[1].lost == TERN_OK, "\"%s\"", s->e->peers[1].text);
    close(silent);
    return TEST_PASSED;
}
static int strangers(struct test *t)
{
    (void)t;
    return with_end(strangers_body, 0);
}

static struct wire_frame request(const struct end *s, uint32_t kind, int region, uint64_t at, uint64_t bytes)
{
    struct wire_frame f = {.kind = kind, .tag = 7, .key = s->region[region].key};
    f.addr = s->region[region].base + at;
    f.bytes = bytes;
    return f;
}

/* A peer is heard with every piece of a request, long before there is something to answer. */
static int pieces_heard_body(struct end *s)
{
    struct wire_frame f = request(s, WIRE_WRITE, 0, 0, 4096);
    char data[4096] = {0};
    CHECK(send(s->fd, &f, sizeof f, 0) == (ssize_t)sizeof f, "send");
    for (int i = 0; i < 4; i++) {
        uint64_t before = s->e->peers[1].heard_ns;
        CHECK(send(s->fd, data, 1000, 0) == 1000, "send");
        turn(s, 5);
        CHECK(s->e->peers[1].heard_ns > before, "piece %d was not heard", i);
    }
    turn(s, 5);
    CHECK(recv(s->fd, data, 1, MSG_DONTWAIT) < 0, "half a request was answered");
    return TEST_PASSED;
}
static int pieces_heard(struct test *t)
{
    (void)t;
    return with_end(pieces_heard_body, 1);
}

/* Sends a frame and its bytes, some at a time; the answer. */
static int ask(struct end *s, const struct wire_frame *f, const char *data, size_t piece,
               struct wire_frame *answer)
{
    size_t bytes = f->kind == WIRE_WRITE ? f->bytes : 0, all = sizeof *f + bytes;
    char *text = (char *)test_take(1, all);
    int result = TEST_PASSED;
    memcpy(text, f, sizeof *f);
    if (bytes != 0) {
        memcpy(text + sizeof *f, data, bytes);
    }
    for (size_t at = 0; at < all && !result; at += piece) {
        size_t n = all - at < piece ? all - at : piece;
        result = send(s->fd, text + at, n, 0) == (ssize_t)n ? TEST_PASSED : TEST_FAILED;
        turn(s, piece < all);
    }
    free(text);
    CHECK(!result && hear(s, s->fd, answer, sizeof *answer), "no answer to kind %u", f->kind);
    CHECK(answer->kind == WIRE_ANSWER && answer->tag == f->tag, "kind %u, tag %u", answer->kind, answer->tag);
    return TEST_PASSED;
}

static int pieces_body(struct end *s)
{
    static const size_t pieces[] = {1, 7, 47, 48, 49, 1000, 1 << 20};
    struct rng rng = {5};
    char data[700];
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        struct wire_frame f = request(s, WIRE_WRITE, 0, 100 + 1000 * i, sizeof data), answer;
        rng_bytes(&rng, data, sizeof data);
        PASS(ask(s, &f, data, pieces[i], &answer));
        CHECK(answer.key == SYNDROME_NONE && memcmp(s->area[0] + 100 + 1000 * i, data, sizeof data) == 0,
              "in pieces of %zu", pieces[i]);
        f = request(s, WIRE_READ, 0, 100 + 1000 * i, sizeof data);
        memset(data, 0, sizeof data);
        PASS(ask(s, &f, NULL, pieces[i], &answer));
        CHECK(answer.bytes == sizeof data && hear(s, s->fd, data, sizeof data), "no bytes");
        CHECK(memcmp(s->area[0] + 100 + 1000 * i, data, sizeof data) == 0, "read in pieces of %zu",
              pieces[i]);
    }
    return TEST_PASSED;
}
static int pieces(struct test *t)
{
    (void)t;
    return with_end(pieces_body, 1);
}

static int refusals_body(struct end *s)
{
    struct wire_frame bad[9], answer, good = request(s, WIRE_WRITE, 0, 0, 16);
    static const uint32_t wanted[] = {
        SYNDROME_REMOTE_ACCESS,          SYNDROME_REMOTE_ACCESS,          SYNDROME_REMOTE_ACCESS,
        SYNDROME_REMOTE_ACCESS,          SYNDROME_REMOTE_ACCESS,          SYNDROME_REMOTE_ACCESS,
        SYNDROME_REMOTE_INVALID_REQUEST, SYNDROME_REMOTE_INVALID_REQUEST, SYNDROME_REMOTE_INVALID_REQUEST};
    static const char zeros[AREA_BYTES] = {0};
    bad[0] = request(s, WIRE_WRITE, 0, AREA_BYTES - 8, 16);
    bad[1] = request(s, WIRE_WRITE, READ_ONLY, 0, 16);
    bad[2] = request(s, WIRE_WRITE, 0, 0, 16);
    bad[2].key += 2 << 8; /* behind both */
    bad[3] = request(s, WIRE_READ, 0, 8, AREA_BYTES);
    bad[4] = request(s, WIRE_STORE, READ_ONLY, 0, 0);
    bad[4].how = NET_AMO_SET | 8 << 8;
    bad[5] = request(s, WIRE_ATOMIC, READ_ONLY, 0, 0);
    bad[5].how = NET_AMO_ADD | 8 << 8;
    bad[6] = request(s, WIRE_ATOMIC, 0, 4, 0);
    bad[6].how = NET_AMO_ADD | 8 << 8;
    bad[7] = request(s, WIRE_ATOMIC, 0, 0, 0);
    bad[7].how = NET_AMO_ADD | 3 << 8;
    bad[8] = request(s, WIRE_ATOMIC, 0, 0, 0);
    bad[8].how = NET_AMO_COUNT | 4 << 8;
    for (int i = 0; i < 9; i++) {
        PASS(ask(s, &bad[i], "0123456789abcdef", 1 << 20, &answer));
        CHECK(answer.key == wanted[i], "request %d: syndrome 0x%02x", i, answer.key);
        CHECK(answer.bytes == 0, "a refused read brings bytes");
    }
    CHECK(memcmp(s->area[0], zeros, AREA_BYTES) == 0 && memcmp(s->area[1], zeros, AREA_BYTES) == 0,
          "a refused request changed memory");
    /* What was thrown away was exactly its bytes: the next is understood. */
    PASS(ask(s, &good, "0123456789abcdef", 1 << 20, &answer));
    CHECK(answer.key == SYNDROME_NONE && memcmp(s->area[0], "0123456789abcdef", 16) == 0, "the next request");
    return TEST_PASSED;
}
static int refusals(struct test *t)
{
    (void)t;
    return with_end(refusals_body, 1);
}

static int atomics_body(struct end *s)
{
    struct rng rng = {9};
    uint64_t word = 0;
    for (int i = 0; i < 2000; i++) {
        uint32_t width = rng_one_in(&rng, 2) ? 4 : 8, amo = rng_below(&rng, NET_AMO_COUNT);
        struct wire_frame f = request(s, WIRE_ATOMIC, 0, 64, 0), answer;
        uint64_t old = net_amo_word(width, word), next;
        f.how = amo | width << 8;
        f.value = rng_next(&rng);
        f.compare = rng_one_in(&rng, 2) ? old : rng_next(&rng);
        PASS(ask(s, &f, NULL, 1 << 20, &answer));
        CHECK(answer.key == SYNDROME_NONE && answer.value == old, "operation %u of %u: 0x%llx", amo, width,
              (unsigned long long)answer.value);
        next = net_amo_apply(amo, width, old, f.value, f.compare);
        word = width == 8 ? next : (word & ~0xffffffffull) | next;
        CHECK(memcmp(s->area[0] + 64, &word, 8) == 0, "operation %u of %u: the word, or what is beside it",
              amo, width);
    }
    return TEST_PASSED;
}
static int atomics(struct test *t)
{
    (void)t;
    return with_end(atomics_body, 1);
}

/* Sends a frame after which the engine must not trust the peer any more. */
static int loses_after(struct end *s, const struct wire_frame *f, const char *text)
{
    CHECK(send(s->fd, f, sizeof *f, 0) == sizeof *f, "send");
    CHECK(is_dropped(s, s->fd), "the connection lives on");
    CHECK(s->e->peers[1].lost == TERN_MISMATCH && strstr(s->e->peers[1].text, text), "\"%s\"",
          s->e->peers[1].text);
    return TEST_PASSED;
}
static int unknown_kind_body(struct end *s)
{
    struct wire_frame f = {.kind = 77};
    return loses_after(s, &f, "rank 1 sent a frame of unknown kind 77");
}
/* Answers an atomic with a syndrome that no ring can hold: the operation would never end in error. */
static int wild_syndrome_body(struct end *s)
{
    struct wire_frame f = {.kind = WIRE_ANSWER, .key = 0x100}, asked;
    struct engine_op op;
    memset(&op, 0, sizeof op);
    op.kind = ENGINE_ATOMIC;
    op.peer = 1;
    op.width = 8;
    CHECK(s->e->ops->post(s->e, &op) == ENGINE_POSTED, "post");
    CHECK(hear(s, s->fd, &asked, sizeof asked) && asked.kind == WIRE_ATOMIC, "the request");
    PASS(loses_after(s, &f, "rank 1 answered with syndrome 0x100"));
    CHECK(op.syndrome == SYNDROME_TRANSPORT_RETRY, "the operation ended with 0x%x", op.syndrome);
    return TEST_PASSED;
}
static int no_request_body(struct end *s)
{
    struct wire_frame f = {.kind = WIRE_ANSWER, .tag = 3};
    return loses_after(s, &f, "rank 1 answered a request that was not made");
}
static int wild_tag_body(struct end *s)
{
    struct wire_frame f = {.kind = WIRE_ANSWER, .tag = 1u << 31};
    return loses_after(s, &f, "rank 1 answered a request that was not made");
}

/* More bytes than were asked for. */
static int long_answer_body(struct end *s)
{
    struct wire_frame f, asked;
    struct engine_op op;
    memset(&op, 0, sizeof op);
    op.kind = ENGINE_READ;
    op.peer = 1;
    op.tag = 5;
    op.local = s->area[0];
    op.bytes = 100;
    CHECK(s->e->ops->post(s->e, &op) == ENGINE_POSTED, "post");
    CHECK(hear(s, s->fd, &asked, sizeof asked) && asked.kind == WIRE_READ && asked.bytes == 100,
          "the request");
    memset(&f, 0, sizeof f);
    f.kind = WIRE_ANSWER;
    f.tag = 5;
    f.bytes = 101;
    PASS(loses_after(s, &f, "rank 1 answered"));
    CHECK(op.syndrome == SYNDROME_TRANSPORT_RETRY, "the operation ended with 0x%02x", op.syndrome);
    return TEST_PASSED;
}

/* Asks for much and takes no answer. */
static int greedy_body(struct end *s)
{
    struct wire_frame f = request(s, WIRE_READ, 0, 0, AREA_BYTES);
    for (int i = 0; i < 4 * WIRE_MAX_OUT && s->e->peers[1].lost == TERN_OK; i++) {
        (void)!send(s->fd, &f, sizeof f, MSG_NOSIGNAL);
        turn(s, 1);
    }
    turn(s, 10);
    CHECK(s->e->peers[1].lost == TERN_MISMATCH && strstr(s->e->peers[1].text, "more than 64 requests"),
          "\"%s\"", s->e->peers[1].text);
    return TEST_PASSED;
}

static int nonsense(struct test *t)
{
    (void)t;
    PASS(with_end(unknown_kind_body, 1));
    PASS(with_end(no_request_body, 1));
    PASS(with_end(wild_tag_body, 1));
    PASS(with_end(wild_syndrome_body, 1));
    PASS(with_end(long_answer_body, 1));
    return with_end(greedy_body, 1);
}

/* As a proxy does. What was in the region is then the test's. */
static void release(struct end *s, int i)
{
    struct own_region own = {.card = s->region[i]};
    terni_serve_remove(s->serve, &own.card);
    s->e->ops->remove(s->e, &own);
    memset(s->area[i], 'r', AREA_BYTES);
}

static int is_untouched(const struct end *s, int i)
{
    int same = 1;
    for (int at = 0; at < AREA_BYTES; at++) {
        same &= s->area[i][at] == 'r';
    }
    return same;
}

static void fill_op(struct engine_op *op, enum engine_kind kind, uint32_t tag, char *local, uint64_t bytes)
{
    memset(op, 0, sizeof *op);
    op->kind = kind;
    op->peer = 1;
    op->tag = tag;
    op->local = local;
    op->bytes = bytes;
}

/* Bytes to send that cannot be read: part of a frame may be out, so the connection is of no use. */
static int unsendable_body(struct end *s)
{
    struct engine_op op;
    char *nothing = (char *)mmap(NULL, AREA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(nothing != MAP_FAILED, "no addresses");
    fill_op(&op, ENGINE_WRITE, 1, nothing, AREA_BYTES);
    CHECK(s->e->ops->post(s->e, &op) == ENGINE_POSTED, "post");
    CHECK(is_dropped(s, s->fd), "the connection lives on");
    munmap(nothing, AREA_BYTES);
    CHECK(s->e->peers[1].lost == TERN_SYSTEM_ERROR &&
              strstr(s->e->peers[1].text, "nothing can be sent to rank 1"),
          "\"%s\"", s->e->peers[1].text);
    CHECK(op.syndrome == SYNDROME_TRANSPORT_RETRY, "the operation ended with 0x%02x", op.syndrome);
    return TEST_PASSED;
}

/* The peer answers the first request and is gone: the first ends well, the second does not. */
static int last_words_body(struct end *s)
{
    struct wire_frame f = {.kind = WIRE_ANSWER, .tag = 1, .bytes = 100}, asked;
    struct linger now = {1, 0};
    struct engine_op first, second;
    char data[100];
    memset(data, 'w', sizeof data);
    fill_op(&first, ENGINE_READ, 1, s->area[0], sizeof data);
    fill_op(&second, ENGINE_WRITE, 2, s->area[1], sizeof data);
    CHECK(s->e->ops->post(s->e, &first) == ENGINE_POSTED, "post");
    CHECK(hear(s, s->fd, &asked, sizeof asked), "the request");
    CHECK(send(s->fd, &f, sizeof f, 0) == sizeof f && send(s->fd, data, sizeof data, 0) == sizeof data,
          "send");
    setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now); /* closing resets the connection */
    close(s->fd);
    s->fd = -1;
    second.syndrome = first.syndrome = 77;
    CHECK(s->e->ops->post(s->e, &second) == ENGINE_POSTED, "post");
    turn(s, 10);
    CHECK(first.syndrome == SYNDROME_NONE && memcmp(s->area[0], data, sizeof data) == 0,
          "what was answered ended with 0x%02x", first.syndrome);
    CHECK(second.syndrome == SYNDROME_TRANSPORT_RETRY, "what was not, with 0x%02x", second.syndrome);
    CHECK(s->e->peers[1].lost == TERN_DISCONNECTED, "\"%s\"", s->e->peers[1].text);
    return TEST_PASSED;
}
static int unsendable(struct test *t)
{
    (void)t;
    PASS(with_end(unsendable_body, 1));
    return with_end(last_words_body, 1);
}

/* Nothing is read, nothing is written, and it is said so. */
static int no_bytes_body(struct end *s)
{
    struct wire_frame f = request(s, WIRE_WRITE, 0, 0, 0), answer;
    PASS(ask(s, &f, NULL, 1 << 20, &answer));
    CHECK(answer.key == SYNDROME_NONE, "a write: 0x%02x", answer.key);
    f.kind = WIRE_READ;
    PASS(ask(s, &f, NULL, 1 << 20, &answer));
    CHECK(answer.key == SYNDROME_NONE && answer.bytes == 0, "a read: 0x%02x", answer.key);
    return TEST_PASSED;
}
static int no_bytes(struct test *t)
{
    (void)t;
    return with_end(no_bytes_body, 1);
}

/* In the middle of a peer's write: the rest goes nowhere, and the next request is understood. */
static int release_write_body(struct end *s, int is_staged)
{
    struct wire_frame f, answer;
    char data[700];
    if (is_staged) {
        terni_serve_remove(s->serve, &s->region[0]);
        s->region[0].is_staged = 1;
        OK(terni_serve_add(s->serve, &s->region[0]));
    }
    f = request(s, WIRE_WRITE, 0, 1000, sizeof data);
    memset(data, 'w', sizeof data);
    CHECK(send(s->fd, &f, sizeof f, 0) == sizeof f && send(s->fd, data, 300, 0) == 300, "send");
    turn(s, 10);
    CHECK(is_staged || s->area[0][1000] == 'w', "nothing has come");
    release(s, 0);
    CHECK(send(s->fd, data, sizeof data - 300, 0) == sizeof data - 300, "send");
    CHECK(hear(s, s->fd, &answer, sizeof answer) && answer.key == SYNDROME_REMOTE_ACCESS, "syndrome 0x%02x",
          answer.key);
    CHECK(is_untouched(s, 0), "released memory was written");
    f = request(s, WIRE_READ, READ_ONLY, 0, 8);
    PASS(ask(s, &f, NULL, 1 << 20, &answer));
    CHECK(answer.key == SYNDROME_NONE && hear(s, s->fd, data, 8), "the next request");
    return TEST_PASSED;
}
static int release_direct_body(struct end *s) { return release_write_body(s, 0); }
static int release_staged_body(struct end *s) { return release_write_body(s, 1); }

/* In the middle of an answer to this rank's read, and before that to the next. */
static int release_read_body(struct end *s)
{
    struct wire_frame f = {.kind = WIRE_ANSWER, .tag = 1, .bytes = 700}, asked;
    struct engine_op ops[2];
    char data[700];
    memset(data, 'w', sizeof data);
    for (uint32_t i = 0; i < 2; i++) {
        fill_op(&ops[i], ENGINE_READ, 1 + i, s->area[0] + 1000 * i, sizeof data);
        CHECK(s->e->ops->post(s->e, &ops[i]) == ENGINE_POSTED, "post");
        CHECK(hear(s, s->fd, &asked, sizeof asked), "the request");
        ops[i].syndrome = 77;
    }
    CHECK(send(s->fd, &f, sizeof f, 0) == sizeof f && send(s->fd, data, 300, 0) == 300, "send");
    turn(s, 10);
    CHECK(s->area[0][0] == 'w', "nothing has come");
    release(s, 0);
    CHECK(send(s->fd, data, 400, 0) == 400, "send");
    f.tag = 2;
    CHECK(send(s->fd, &f, sizeof f, 0) == sizeof f && send(s->fd, data, 700, 0) == 700, "send");
    turn(s, 10);
    CHECK(ops[0].syndrome == SYNDROME_NONE && ops[1].syndrome == SYNDROME_NONE, "0x%02x, 0x%02x",
          ops[0].syndrome, ops[1].syndrome);
    CHECK(is_untouched(s, 0), "released memory was written");
    return TEST_PASSED;
}

/* Frames in the queue of a peer that does not read: one of each kind has begun, the others have not. */
static int release_queue_body(struct end *s)
{
    enum { NUM = 24, BIG = AREA_BYTES };
    struct wire_frame f = request(s, WIRE_READ, 0, 0, BIG), got;
    struct engine_op op;
    char *data = (char *)test_take(1, BIG);
    int num_whole = 0, num_refused = 0, result = TEST_PASSED;
    memset(s->area[0], 'q', BIG);
    for (int i = 0; i < NUM; i++) {
        f.tag = (uint32_t)i;
        result |= send(s->fd, &f, sizeof f, 0) != sizeof f;
    }
    turn(s, 50);
    fill_op(&op, ENGINE_WRITE, 1, s->area[0] + 5, 1000);
    result |= s->e->ops->post(s->e, &op) != ENGINE_POSTED;
    f = request(s, WIRE_WRITE, 0, 0, 1);
    result |= send(s->fd, &f, sizeof f, 0) != sizeof f || send(s->fd, "q", 1, 0) != 1;
    turn(s, 5);
    release(s, 0);
    for (int i = 0; i < NUM && !result; i++) {
        result = !hear(s, s->fd, &got, sizeof got) || got.kind != WIRE_ANSWER || got.tag != (uint32_t)i;
        if (!result && got.key == SYNDROME_NONE) {
            result = !hear(s, s->fd, data, BIG) || num_refused != 0;
            num_whole++;
            for (int at = 0; at < BIG; at++) {
                result |= data[at] != 'q';
            }
        } else {
            result |= got.key != SYNDROME_REMOTE_ACCESS || got.bytes != 0;
            num_refused++;
        }
    }
    result = result || !hear(s, s->fd, &got, sizeof got) || got.kind != WIRE_WRITE || got.bytes != 0;
    /* A write that was done is no refusal. */
    result =
        result || !hear(s, s->fd, &got, sizeof got) || got.kind != WIRE_ANSWER || got.key != SYNDROME_NONE;
    free(data);
    CHECK(!result && num_whole > 0 && num_refused > 0, "%d answers, then %d refusals", num_whole,
          num_refused);
    return TEST_PASSED;
}

static int releases(struct test *t)
{
    (void)t;
    PASS(with_end(release_direct_body, 1));
    PASS(with_end(release_staged_body, 1));
    PASS(with_end(release_read_body, 1));
    return with_end(release_queue_body, 1);
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "strangers are dropped", strangers);
    test_run(&t, "a request in pieces is heard before it is answered", pieces_heard);
    test_run(&t, "requests in pieces of any size", pieces);
    test_run(&t, "requests that may not be", refusals);
    test_run(&t, "atomics of all operations and widths", atomics);
    test_run(&t, "requests of no bytes", no_bytes);
    test_run(&t, "a peer that talks nonsense is lost", nonsense);
    test_run(&t, "memory released while bytes move", releases);
    test_run(&t, "a connection on which nothing can be sent", unsendable);
    return test_end(&t);
}
