/* SPDX-License-Identifier: Apache-2.0
 *
 * The small parts that communicators are made of, each alone: status and log, the environment, ids, the
 * carver behind tern_alloc, links, the late ranks' sentence. */
#include "comm/comm.h"
#include "comm/id.h"
#include "machine/machine.h"
#include "support.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int status_texts(struct test *t)
{
    char sentence[64];
    (void)t;
#define KNOWN(name, value, recovery, text)                                                                   \
    CHECK(strcmp(tern_status_string(name), text) == 0 && tern_status_recovery(name) == recovery, #name);
    TERN_STATUS_LIST(KNOWN)
#undef KNOWN
    CHECK(strcmp(tern_status_string((enum tern_status) - 77), "unknown status") == 0, "an unknown status");
    CHECK(tern_status_recovery((enum tern_status) - 77) == TERN_RECOVER_PROCESS,
          "recovery of an unknown status");
    CHECK(tern_version() == 0x000100, "version is %x", tern_version());
    CHECK(TERN_FAIL(TERN_NO_SPACE, "the value is %d", 41) == TERN_NO_SPACE, "TERN_FAIL returns its status");
    TERN_FAIL(TERN_NO_SPACE, "again: %s", tern_last_error());
    snprintf(sentence, sizeof sentence, "%s", tern_last_error());
    CHECK(strcmp(sentence, "again: the value is 41") == 0, "a sentence may quote the last: \"%s\"", sentence);
    return 0;
}

struct heard {
    int count;
    enum tern_log_level level;
    char text[256];
};

static void hear(enum tern_log_level level, const char *file, int line, const char *text, void *user)
{
    struct heard *h = (struct heard *)user;
    h->count += file != NULL && line > 0;
    h->level = level;
    snprintf(h->text, sizeof h->text, "%s", text);
}

static int log_levels(struct test *t)
{
    struct heard h = {0, TERN_LOG_ERROR, ""};
    (void)t;
    setenv("TERN_LOG", "warn", 1);
    tern_log_set(hear, &h);
    TERN_LOG(TERN_LOG_WARN, "number %d", 5);
    CHECK(h.count == 1 && h.level == TERN_LOG_WARN && strcmp(h.text, "number 5") == 0, "heard %d \"%s\"",
          h.count, h.text);
    TERN_FAIL(TERN_TIMEOUT, "expected by the caller");
    CHECK(h.count == 1, "a failure is no warning: \"%s\"", h.text);
    setenv("TERN_LOG", "info", 1);
    tern_log_set(hear, &h);
    TERN_FAIL(TERN_TIMEOUT, "told at info");
    CHECK(h.count == 2 && strstr(h.text, "told at info") != NULL, "heard %d \"%s\"", h.count, h.text);
    TERN_LOG(TERN_LOG_TRACE, "too fine");
    CHECK(h.count == 2, "trace is below info");
    unsetenv("TERN_LOG");
    tern_log_set(NULL, NULL);
    return 0;
}

/* Both lines on standard error, and the second choice of the same bad word, which is silent. */
static int log_of_bad_level(struct test *t)
{
    char text[1024] = "";
    FILE *file = tmpfile();
    int saved = dup(2);
    size_t bytes;
    (void)t;
    CHECK(file != NULL && saved >= 0, "a file to write standard error to");
    fflush(stderr);
    dup2(fileno(file), 2);
    setenv("TERN_LOG", "loud", 1);
    tern_log_set(NULL, NULL);
    tern_log_set(NULL, NULL);
    TERN_LOG(TERN_LOG_WARN, "told at warn");
    TERN_LOG(TERN_LOG_INFO, "not told");
    unsetenv("TERN_LOG");
    tern_log_set(NULL, NULL);
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    rewind(file);
    bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    CHECK(bytes > 0 && strstr(text, "TERN_LOG=loud is none of") != NULL, "\"%s\"", text);
    CHECK(strstr(strstr(text, "loud") + 1, "loud") == NULL, "once: \"%s\"", text);
    CHECK(strstr(text, "told at warn") != NULL && strstr(text, "not told") == NULL, "\"%s\"", text);
    return 0;
}

static int log_of_good_run(struct test *t)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_comm *comms[2];
    struct heard h = {0, TERN_LOG_ERROR, ""};
    enum tern_status status;
    (void)t;
    config.heap_bytes = 1 << 20;
    config.timeout_ms = 20000;
    setenv("TERN_LOG", "info", 1);
    tern_log_set(hear, &h);
    status = tern_comm_open_all(2, &config, comms);
    unsetenv("TERN_LOG");
    tern_log_set(NULL, NULL);
    OK(status);
    tern_comm_close(comms[0]);
    tern_comm_close(comms[1]);
    CHECK(h.count == 2 && h.level == TERN_LOG_INFO, "a line a rank, not %d", h.count);
    CHECK(strstr(h.text, "rank 1 of 2 opened: cpu (") != NULL && strstr(h.text, "domain 0 of 1") != NULL &&
              strstr(h.text, "1048576 bytes; deadline 20000 ms") != NULL,
          "\"%s\"", h.text);
    return 0;
}

struct sized {
    size_t size;
    unsigned char rest[24];
};

static int checks(struct test *t)
{
    struct sized s = {sizeof s, {0}};
    (void)t;
    OK(terni_check_pointer("s", &s));
    REFUSES(terni_check_pointer("s", NULL), TERN_INVALID_ARGUMENT, "s is NULL");
    REFUSES(terni_check_struct("s", NULL, 16), TERN_INVALID_ARGUMENT, "s is NULL");
    OK(terni_check_struct("s", &s, sizeof s));
    OK(terni_check_struct("s", &s, 16));
    REFUSES(terni_check_struct("s", &s, sizeof s + 8), TERN_INVALID_ARGUMENT, "s->size is 32");
    REFUSES(terni_check_struct("s", &s, sizeof s + 8), TERN_INVALID_ARGUMENT, "use its _INIT macro");
    s.rest[23] = 1;
    OK(terni_check_struct("s", &s, sizeof s));
    REFUSES(terni_check_struct("s", &s, 16), TERN_UNSUPPORTED, "byte 31 of s");
    s.size = 31;
    OK(terni_check_struct("s", &s, 16));
    return 0;
}

static int environment(struct test *t)
{
    uint64_t v = 7;
    struct tern_comm *comm;
    (void)t;
    for (int i = 0; i < TERN_ENV_COUNT; i++) {
        enum terni_variable row = (enum terni_variable)i;
        CHECK(strncmp(terni_env_name(row), "TERN_", 5) == 0 && terni_env_help(row)[0] != '\0', "row %d", i);
    }
    unsetenv("TERN_TIMEOUT_MS");
    OK(terni_env_uint(TERN_ENV_TIMEOUT_MS, UINT32_MAX, &v));
    CHECK(v == 30000, "default deadline %llu", (unsigned long long)v);
    setenv("TERN_TIMEOUT_MS", "", 1);
    CHECK(strcmp(terni_env(TERN_ENV_TIMEOUT_MS), "30000") == 0, "empty means unset");
    setenv("TERN_TIMEOUT_MS", "0x10", 1);
    OK(terni_env_uint(TERN_ENV_TIMEOUT_MS, UINT32_MAX, &v));
    CHECK(v == 16, "0x10 is %llu", (unsigned long long)v);
    static const char *const bad[] = {"abc", "12x", "-1",         " 1",
                                      "1 ",  "0x",  "4294967296", "99999999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv("TERN_TIMEOUT_MS", bad[i], 1);
        REFUSES(terni_env_uint(TERN_ENV_TIMEOUT_MS, UINT32_MAX, &v), TERN_INVALID_ARGUMENT, bad[i]);
        REFUSES(tern_comm_open_all(1, NULL, &comm), TERN_INVALID_ARGUMENT, "TERN_TIMEOUT_MS=");
    }
    CHECK(v == 16, "a refused value is not written");
    setenv("TERN_TIMEOUT_MS", "0", 1);
    REFUSES(tern_comm_open_all(1, NULL, &comm), TERN_INVALID_ARGUMENT, "TERN_TIMEOUT_MS=0");
    unsetenv("TERN_TIMEOUT_MS");
    setenv("TERN_MACHINE", "gpu", 1);
    REFUSES(tern_comm_open_all(1, NULL, &comm), TERN_INVALID_ARGUMENT, "TERN_MACHINE=gpu");
    setenv("TERN_MACHINE", "auto", 1);
    OK(tern_comm_open_all(1, NULL, &comm));
    CHECK(tern_comm_machine(comm) == (terni_cuda_device_count() > 0 ? TERN_MACHINE_CUDA : TERN_MACHINE_CPU),
          "machine %d of %d GPUs", (int)tern_comm_machine(comm), terni_cuda_device_count());
    tern_comm_close(comm);
    setenv("TERN_MACHINE", "cpu", 1);
    setenv("TERN_DOMAIN_SIZE", "x", 1);
    REFUSES(tern_comm_open_all(1, NULL, &comm), TERN_INVALID_ARGUMENT, "TERN_DOMAIN_SIZE=x");
    unsetenv("TERN_DOMAIN_SIZE");
    return 0;
}

/* Wildcards, and addresses of one link: the interface has another number on another host. */
static const char *const nowhere[] = {"0.0.0.0", "::", "fe80::1", "fe80::1%lo", "fe80::1%1"};

static int ids_and_text(struct test *t)
{
    struct tern_id id, back;
    struct id_fields f;
    struct address a;
    char text[TERN_ID_HEX_DIGITS + 1], address[TERN_ADDRESS_TEXT];
    int fd;
    (void)t;
    OK(tern_id_create("127.0.0.1", &id));
    OK(terni_id_read(&id, &f, &a));
    terni_address_print(&a, address);
    CHECK(strncmp(address, "127.0.0.1:", 10) == 0 && f.port != 0, "address %s", address);
    terni_id_print(&id, text);
    CHECK(strlen(text) == 256, "hex text of %zu digits", strlen(text));
    OK(terni_id_parse(text, &back));
    CHECK(memcmp(&id, &back, sizeof id) == 0, "hex text round trip");
    text[255] = '\0';
    REFUSES(terni_id_parse(text, &back), TERN_INVALID_ARGUMENT, "255");
    OK(terni_id_take_listener(&id, &fd));
    close(fd);
    REFUSES(terni_id_take_listener(&id, &fd), TERN_BAD_STATE, "does not listen on port");
    memset(&id, 0, sizeof id);
    REFUSES(terni_id_read(&id, &f, &a), TERN_INVALID_ARGUMENT, "no id");
    for (size_t i = 0; i < sizeof nowhere / sizeof nowhere[0]; i++) {
        REFUSES(tern_id_create(nowhere[i], &id), TERN_INVALID_ARGUMENT, nowhere[i]);
        snprintf(address, sizeof address, strchr(nowhere[i], ':') != NULL ? "[%s]:4567/x" : "%s:4567/x",
                 nowhere[i]);
        REFUSES(tern_id_from_address(address, &id), TERN_INVALID_ARGUMENT, nowhere[i]);
    }
    REFUSES(tern_id_create("not-a-number", &id), TERN_INVALID_ARGUMENT, "not-a-number");
    REFUSES(tern_id_create("192.0.2.77", &id), TERN_SYSTEM_ERROR, "192.0.2.77"); /* not of this host */
    REFUSES(tern_id_create(NULL, NULL), TERN_INVALID_ARGUMENT, "id is NULL");
    return 0;
}

static int ids_of_addresses(struct test *t)
{
    static const char *const bad[] = {"",
                                      "host",
                                      "host:1",
                                      "host:1/",
                                      ":1/x",
                                      "host:/x",
                                      "127.0.0.1:0/x",
                                      "127.0.0.1:65536/x",
                                      "127.0.0.1:1a/x",
                                      "[::1:5/x",
                                      "[::1]5/x",
                                      "[]:5/x",
                                      "127.0.0.1:000001/x"};
    struct tern_id a, b;
    struct id_fields f;
    struct address where;
    char text[TERN_ADDRESS_TEXT];
    (void)t;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        REFUSES(tern_id_from_address(bad[i], &a), TERN_INVALID_ARGUMENT, bad[i]);
    }
    OK(tern_id_from_address("127.0.0.1:4567/job-1", &a));
    OK(tern_id_from_address("127.0.0.1:4567/job-1", &b));
    CHECK(memcmp(&a, &b, sizeof a) == 0, "one address gives one id");
    OK(tern_id_from_address("127.0.0.1:4567/job-2", &b));
    CHECK(memcmp(&a, &b, sizeof a) != 0, "another cookie gives another id");
    OK(tern_id_from_address("[::1]:4568/job", &b));
    OK(terni_id_read(&b, &f, &where));
    terni_address_print(&where, text);
    CHECK(strcmp(text, "[::1]:4568") == 0 && (f.flags & TERN_ID_AGREED), "read back %s", text);
    return 0;
}

/* A host may be given by name where this root can resolve one: without /etc/hosts not even localhost. */
static int ids_of_names(struct test *t)
{
    struct addrinfo hints, *found = NULL;
    struct tern_id id, same;
    struct id_fields f;
    struct address where, ways[TERN_MAX_WAYS];
    char text[TERN_ADDRESS_TEXT];
    int error, num = 0;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    error = getaddrinfo("localhost", NULL, &hints, &found);
    if (error != 0) {
        return test_skip(t, "localhost does not resolve here: %s", gai_strerror(error));
    }
    freeaddrinfo(found);
    OK(tern_id_from_address("localhost:4569/job", &id));
    OK(terni_id_read(&id, &f, &where));
    CHECK(f.port == 4569, "port %u", (unsigned)f.port);
    /* The name itself is what the id has: hosts differ in what it gives. */
    CHECK(f.family == 0 && where.bytes == 0 && strcmp((const char *)f.address, "localhost") == 0, "no name");
    memset(&same, 0x55, sizeof same);
    OK(tern_id_from_address("localhost:4569/job", &same));
    CHECK(memcmp(&id, &same, sizeof id) == 0, "one name gives one id");
    OK(terni_id_ways(&f, ways, &num));
    CHECK(num >= 1 && num <= TERN_MAX_WAYS, "%d ways", num);
    for (int i = 0; i < num; i++) {
        terni_address_print(&ways[i], text);
        CHECK(strstr(text, ":4569") != NULL && terni_address_is_loopback(&ways[i]), "way %d: %s", i, text);
    }
    memset(f.address, 'x', sizeof f.address); /* no end */
    memcpy(same.bytes, &f, sizeof same.bytes);
    REFUSES(terni_id_read(&same, &f, &where), TERN_INVALID_ARGUMENT, "damaged");
    f.address[0] = 0;
    memcpy(same.bytes, &f, sizeof same.bytes);
    REFUSES(terni_id_read(&same, &f, &where), TERN_INVALID_ARGUMENT, "damaged");
    return 0;
}

static int ids_of_environment(struct test *t)
{
    struct tern_id id, wanted;
    int rank = -1, num_ranks = -1;
    (void)t;
    unsetenv("TERN_ID");
    setenv("TERN_RANK", "2", 1);
    setenv("TERN_NUM_RANKS", "4", 1);
    REFUSES(tern_id_from_environment(&id, &rank, &num_ranks), TERN_BAD_STATE, "TERN_ID");
    setenv("TERN_ID", "127.0.0.1:4567/job", 1);
    OK(tern_id_from_environment(&id, &rank, &num_ranks));
    OK(tern_id_from_address("127.0.0.1:4567/job", &wanted));
    CHECK(rank == 2 && num_ranks == 4 && memcmp(&id, &wanted, sizeof id) == 0, "rank %d of %d", rank,
          num_ranks);
    setenv("TERN_RANK", "4", 1);
    REFUSES(tern_id_from_environment(&id, &rank, &num_ranks), TERN_INVALID_ARGUMENT, "TERN_RANK=4");
    setenv("TERN_RANK", "two", 1);
    REFUSES(tern_id_from_environment(&id, &rank, &num_ranks), TERN_INVALID_ARGUMENT, "TERN_RANK=two");
    CHECK(rank == 2 && num_ranks == 4, "outputs are untouched by a failure");
    unsetenv("TERN_ID");
    unsetenv("TERN_RANK");
    unsetenv("TERN_NUM_RANKS");
    return 0;
}

enum { carver_bytes = 1 << 20, max_blocks = 400 };

/* One random history of takes and gives, then everything back: no overlap, one block at the end. */
static int carver_history(struct rng *r, struct carver *c, unsigned char *owner, int num_steps)
{
    uint64_t offsets[max_blocks], bytes[max_blocks], free_bytes, largest, taken = 0;
    int num = 0;
    memset(owner, 0, carver_bytes / 256);
    for (int step = 0; step < num_steps || num > 0; step++) {
        if (step < num_steps && num < max_blocks && !rng_one_in(r, 3)) {
            uint64_t want = rng_one_in(r, 20) ? 0 : rng_below(r, rng_one_in(r, 4) ? 60000 : 3000);
            uint64_t at, granules = want == 0 ? 1 : (want + 255) / 256;
            if (terni_carver_take(c, want, &at) != TERN_OK) {
                terni_carver_get_free(c, &free_bytes, &largest);
                CHECK(largest < granules * 256, "%llu refused with a block of %llu", (unsigned long long)want,
                      (unsigned long long)largest);
                continue;
            }
            CHECK(at % 256 == 0 && at + granules * 256 <= carver_bytes, "block at %llu",
                  (unsigned long long)at);
            for (uint64_t g = 0; g < granules; g++) {
                CHECK(owner[at / 256 + g]++ == 0, "overlap at %llu", (unsigned long long)(at + 256 * g));
            }
            offsets[num] = at;
            bytes[num++] = granules * 256;
            taken += granules * 256;
        } else if (num > 0) {
            int i = (int)rng_below(r, (uint32_t)num);
            CHECK(terni_carver_give(c, offsets[i]), "give of %llu", (unsigned long long)offsets[i]);
            CHECK(!terni_carver_give(c, offsets[i]), "a second give is noticed");
            memset(owner + offsets[i] / 256, 0, bytes[i] / 256);
            taken -= bytes[i];
            offsets[i] = offsets[--num];
            bytes[i] = bytes[num];
        }
        terni_carver_get_free(c, &free_bytes, &largest);
        CHECK(free_bytes + taken == carver_bytes, "free %llu and taken %llu", (unsigned long long)free_bytes,
              (unsigned long long)taken);
    }
    CHECK(largest == carver_bytes, "all is one block again, not %llu", (unsigned long long)largest);
    return 0;
}

static int carver_random(struct test *t)
{
    unsigned char *owner = (unsigned char *)test_take(carver_bytes / 256, 1);
    struct carver *c;
    int result = 0;
    OK(terni_carver_open(carver_bytes + 100, &c));
    for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(t, 40) && result == 0; seed++) {
        struct rng r = {seed};
        result = carver_history(&r, c, owner, 1500);
        test_detail(t, "seed %llu", (unsigned long long)seed);
    }
    terni_carver_close(c);
    free(owner);
    return result;
}

static int carver_limits(struct test *t)
{
    struct carver *c;
    uint64_t a, b;
    (void)t;
    OK(terni_carver_open(1024, &c));
    OK(terni_carver_take(c, 256, &a));
    REFUSES(terni_carver_take(c, 2000, &b), TERN_OUT_OF_MEMORY, "2000 bytes: 768 are free");
    REFUSES(terni_carver_take(c, UINT64_MAX, &b), TERN_OUT_OF_MEMORY, "18446744073709551615");
    CHECK(!terni_carver_give(c, 128), "the middle of a block is no block");
    CHECK(terni_carver_give(c, a), "give");
    OK(terni_carver_take(c, 1024, &a));
    terni_carver_close(c);
    terni_carver_close(NULL);
    return 0;
}

/* Frames survive any cut of the byte stream: one byte at a time, then all at once. */
static int link_frames(struct test *t)
{
    struct link in, out;
    struct frame header = {77, 5, 9, 1000};
    char bytes[sizeof header + 1000], got[1000];
    int pair[2], num_headers = 0, num_frames = 0;
    (void)t;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
    terni_link_init(&in, pair[0]);
    terni_link_init(&out, pair[1]);
    memcpy(bytes, &header, sizeof header);
    for (size_t i = sizeof header; i < sizeof bytes; i++) {
        bytes[i] = (char)(i * 7);
    }
    for (size_t i = 0; i < sizeof bytes; i++) {
        enum link_event e;
        CHECK(write(pair[1], bytes + i, 1) == 1, "write");
        while ((e = terni_link_recv(&in)) != LINK_AGAIN) {
            num_headers += e == LINK_HEADER;
            num_frames += e == LINK_FRAME;
            in.in_data = got;
        }
        CHECK(num_headers == (i + 1 >= sizeof header) && num_frames == (i + 1 == sizeof bytes), "at byte %zu",
              i);
    }
    CHECK(memcmp(got, bytes + sizeof header, sizeof got) == 0 && in.in.value == 5 && in.in.sequence == 9,
          "content");
    terni_link_put(&out, 78, 6, 10, got, sizeof got);
    CHECK(terni_link_is_sending(&out), "a frame is there to be sent");
    terni_link_send(&out);
    CHECK(!terni_link_is_sending(&out), "and has gone");
    CHECK(terni_link_recv(&in) == LINK_HEADER && in.in.type == 78, "header");
    CHECK(terni_link_recv(&in) == LINK_FRAME, "frame");
    terni_link_close(&out);
    CHECK(terni_link_recv(&in) == LINK_CLOSED && terni_link_recv(&in) == LINK_CLOSED, "closed stays closed");
    terni_link_close(&in);
    return 0;
}

static int late_sentences(struct test *t)
{
    unsigned char is_late[TERN_MAX_BOOT_RANKS] = {0};
    char s[TERN_SENTENCE_BYTES];
    (void)t;
    is_late[3] = 1;
    terni_late_print(is_late, NULL, 8, 250, s);
    CHECK(strcmp(s, "rank 3 did not arrive within 250 ms") == 0, "%s", s);
    is_late[5] = 1;
    terni_late_print(is_late, NULL, 8, 250, s);
    CHECK(strcmp(s, "ranks 3, 5 did not arrive within 250 ms") == 0, "%s", s);
    terni_late_mark(s, 4);
    CHECK(strcmp(s, "ranks 3, 5 did not arrive within 250 ms") == 0, "rank 4 is not late: %s", s);
    terni_late_mark(s, 250);
    CHECK(strstr(s, "this") == NULL, "rank 250 is not late: %s", s);
    terni_late_mark(s, 5);
    CHECK(strcmp(s, "ranks 3, 5 (this one) did not arrive within 250 ms") == 0, "%s", s);
    memset(is_late, 1, sizeof is_late);
    terni_late_print(is_late, NULL, TERN_MAX_BOOT_RANKS, UINT32_MAX, s);
    CHECK(strstr(s, "14, 15 and 4080 more did not arrive within 4294967295 ms") != NULL, "%s", s);
    terni_late_mark(s, 4080);
    CHECK(strstr(s, "this") == NULL, "4080 is no rank here: %s", s);
    terni_late_mark(s, 0);
    CHECK(strncmp(s, "ranks 0 (this one), 1, ", 23) == 0 && strstr(s, "4294967295 ms") != NULL, "%s", s);
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    setenv("TERN_MACHINE", "cpu", 1);
    test_run(&t, "status_texts", status_texts);
    test_run(&t, "log_levels", log_levels);
    test_run(&t, "log_of_bad_level", log_of_bad_level);
    test_run(&t, "log_of_good_run", log_of_good_run);
    test_run(&t, "checks", checks);
    test_run(&t, "environment", environment);
    test_run(&t, "ids_and_text", ids_and_text);
    test_run(&t, "ids_of_addresses", ids_of_addresses);
    test_run(&t, "ids_of_names", ids_of_names);
    test_run(&t, "ids_of_environment", ids_of_environment);
    test_run(&t, "carver_random", carver_random);
    test_run(&t, "carver_limits", carver_limits);
    test_run(&t, "link_frames", link_frames);
    test_run(&t, "late_sentences", late_sentences);
    return test_end(&t);
}
