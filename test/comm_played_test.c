/* SPDX-License-Identifier: Apache-2.0
 *
 * Boots of two or three ranks of which the test plays the others, frame by frame:
 * verdicts that are none, failures of one rank alone, results that nobody takes. */
#include "comm/id.h"
#include "comm/tcp.h"
#include "comm_scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Memory that cannot be had is NULL, also of a sanitizer, whose library looks for these names. */
TERN_API const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }
TERN_API const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "allocator_may_return_null=1"; }

static int say(int fd, uint32_t type, uint32_t value, uint64_t sequence, const void *data, uint64_t bytes)
{
    struct frame frame = {.type = type, .value = value, .sequence = sequence, .bytes = bytes};
    CHECK(send(fd, &frame, sizeof frame, MSG_NOSIGNAL) == (ssize_t)sizeof frame, "a frame of type %u", type);
    CHECK(bytes == 0 || send(fd, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes, "data of type %u", type);
    return 0;
}

/* ---- A rank 0 that is played ---- */

struct verdict {
    uint32_t value;
    int is_welcomed; /* it comes in the first exchange, not at the opening */
    const char *sentence;
};
static const struct verdict *verdict;

static int play_root(struct actor *a)
{
    char said[sizeof(struct frame) + sizeof(struct hello)];
    int listen_fd, fd, result = 0;
    OK(terni_id_take_listener(&a->scene->id, &listen_fd));
    pthread_barrier_wait(&a->scene->barrier);
    do {
        fd = accept(listen_fd, NULL, NULL);
    } while (fd < 0);
    CHECK(recv(fd, said, sizeof said, MSG_WAITALL) == (ssize_t)sizeof said, "rank 1 says no hello");
    if (verdict->is_welcomed) {
        result = say(fd, TERN_FRAME_RESULT, 0, 0, NULL, 0);
    }
    result = result ? result
                    : say(fd, TERN_FRAME_VERDICT, verdict->value, (uint64_t)verdict->is_welcomed, "all", 3);
    pthread_barrier_wait(&a->scene->barrier);
    close(fd);
    close(listen_fd);
    return result;
}

static int hear_root(struct actor *a)
{
    uint64_t words[2] = {7, 7};
    struct boot *boot = NULL;
    enum tern_status status;
    pthread_barrier_wait(&a->scene->barrier); /* rank 0 has the listener */
    status = terni_tcp_open(&a->scene->id, 1, 2, NULL, 20000, &boot);
    if (verdict->is_welcomed) {
        OK(status);
        OK(boot->ops->post(boot, words, sizeof words[0]));
        status = boot->ops->wait(boot, words, sizeof words[0], 20000);
    }
    note_status(a, status);
    pthread_barrier_wait(&a->scene->barrier);
    CHECK(words[0] == 7 && words[1] == 7, "the output of a failure is untouched");
    if (boot != NULL) {
        REFUSES(boot->ops->post(boot, words, sizeof words[0]), TERN_MISMATCH, "failed earlier: rank 0 sent");
        boot->ops->close(boot);
    }
    return 0;
}

static int both_act(struct actor *a) { return a->rank == 0 ? play_root(a) : hear_root(a); }

static int no_verdicts(struct test *t)
{
    static const struct verdict verdicts[] = {
        {0, 0, "rank 0 sent a verdict of unknown status 0"},
        {0, 1, "rank 0 sent a verdict of unknown status 0"},
        {(uint32_t)-777, 0, "rank 0 sent a verdict of unknown status -777"},
        {(uint32_t)TERN_STATUS_END, 1, "rank 0 sent a verdict of unknown status -1000"}};
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    for (size_t i = 0; i < sizeof verdicts / sizeof verdicts[0]; i++) {
        verdict = &verdicts[i];
        memset(&scene, 0, sizeof scene);
        OK(tern_id_create("127.0.0.1", &scene.id));
        PASS(run_threads(&scene, actors, 2, both_act));
        PASS(same_sentence(actors + 1, 1, TERN_MISMATCH, verdict->sentence));
    }
    return 0;
}

/* Rank 0 at its door, which rank 1 calls to shrink: the verdict there. */
static int play_door(struct tern_comm *comm)
{
    enum { VERDICT = 4, CALL_BYTES = sizeof(struct frame) + TERN_COOKIE_BYTES + sizeof(struct tern_id) };
    char said[CALL_BYTES];
    int fd, result;
    do {
        fd = accept(comm->door_fd, NULL, NULL);
    } while (fd < 0);
    CHECK(recv(fd, said, sizeof said, MSG_WAITALL) == (ssize_t)sizeof said, "rank 1 does not call");
    result = say(fd, VERDICT, 0, 0, "all", 3);
    (void)!recv(fd, said, 1, 0); /* until it leaves */
    close(fd);
    return result;
}

static int at_door_actor(struct actor *a)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_shrink_args args = TERN_SHRINK_ARGS_INIT;
    struct tern_comm *comm, *shrunk = NULL;
    int32_t old_ranks[2];
    args.timeout_ms = 20000;
    OK(tern_comm_open(&a->scene->id, a->rank, 2, &config, &comm));
    OK(tern_comm_barrier(comm));
    if (a->rank == 0) {
        PASS(play_door(comm));
    } else {
        REFUSES(tern_comm_shrink(comm, &args, old_ranks, &shrunk), TERN_MISMATCH,
                "rank 0 sent a verdict of unknown status 0");
        CHECK(shrunk == NULL, "the output of a failure is untouched");
    }
    tern_comm_close(comm);
    return 0;
}

static int at_door(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    return run_threads(&scene, actors, 2, at_door_actor);
}

/* ---- Ranks that are played ---- */

enum { NUM = 3 };

/* Calls rank 0, as rank r of `num`, before that opens. -1: nobody listens. */
static int call_root(const struct tern_id *id, int r, int num)
{
    struct hello hello = {.version = tern_version(), .num_ranks = (uint32_t)num};
    struct id_fields fields;
    struct address where;
    int fd = terni_id_read(id, &fields, &where) == TERN_OK ? call_port(&where) : -1;
    memcpy(hello.cookie, fields.cookie, sizeof hello.cookie);
    return fd >= 0 && say(fd, TERN_FRAME_HELLO, (uint32_t)r, 0, &hello, sizeof hello) == 0 ? fd : -1;
}

/* Whether a frame of this type comes, with `text` in its data. */
static int hears(int fd, uint32_t type, const char *text)
{
    char data[TERN_SENTENCE_BYTES] = "";
    struct frame frame;
    CHECK(recv(fd, &frame, sizeof frame, MSG_WAITALL) == (ssize_t)sizeof frame, "no frame comes");
    CHECK(frame.type == type && frame.bytes < sizeof data, "a frame of type %u comes", frame.type);
    CHECK(frame.bytes == 0 || recv(fd, data, frame.bytes, MSG_WAITALL) == (ssize_t)frame.bytes, "cut short");
    CHECK(strstr(data, text) != NULL, "\"%s\"", data);
    return 0;
}

/* Rank 0 cannot poll two sockets, which is more than it may have open: it fails, and all are told. */
static int unpolled_body(struct boot *boot, const int *fds)
{
    struct rlimit before, few;
    enum tern_status status;
    char word[8] = "", all[NUM * sizeof word];
    getrlimit(RLIMIT_NOFILE, &before);
    few = before;
    few.rlim_cur = 1;
    OK(boot->ops->post(boot, word, sizeof word));
    setrlimit(RLIMIT_NOFILE, &few);
    status = boot->ops->wait(boot, all, sizeof word, 20000);
    setrlimit(RLIMIT_NOFILE, &before);
    REFUSES(status, TERN_SYSTEM_ERROR, "rank 0: ");
    REFUSES(boot->ops->post(boot, word, sizeof word), TERN_SYSTEM_ERROR, "failed earlier: rank 0: ");
    for (int r = 1; r < NUM; r++) {
        PASS(hears(fds[r], TERN_FRAME_VERDICT, "rank 0: "));
    }
    return 0;
}

/* Rank 0 has no memory for an exchange. */
static int unposted_body(struct boot *boot, const int *fds)
{
    char word[8] = "";
    REFUSES(boot->ops->post(boot, word, SIZE_MAX / 16), TERN_OUT_OF_MEMORY,
            "rank 0 has no memory for 3 messages");
    REFUSES(boot->ops->wait(boot, word, 0, 20000), TERN_OUT_OF_MEMORY, "failed earlier: rank 0 has no");
    for (int r = 1; r < NUM; r++) {
        PASS(hears(fds[r], TERN_FRAME_VERDICT, "rank 0 has no memory for 3 messages"));
    }
    return 0;
}

static int with_root(int (*body)(struct boot *boot, const int *fds))
{
    struct tern_id id;
    struct boot *boot;
    int fds[NUM] = {-1}, result = 0;
    OK(tern_id_create("127.0.0.1", &id));
    for (int r = 1; r < NUM; r++) {
        fds[r] = call_root(&id, r, NUM);
        CHECK(fds[r] >= 0, "rank 0 does not listen");
    }
    OK(terni_tcp_open(&id, 0, NUM, NULL, 20000, &boot));
    for (int r = 1; r < NUM; r++) {
        PASS(hears(fds[r], TERN_FRAME_RESULT, ""));
    }
    result = body(boot, fds);
    boot->ops->close(boot);
    for (int r = 1; r < NUM; r++) {
        close(fds[r]);
    }
    return result;
}

static int unpolled(struct test *t)
{
    (void)t;
    return with_root(unpolled_body);
}
static int unposted(struct test *t)
{
    (void)t;
    return with_root(unposted_body);
}

/* Another rank than rank 0 has no memory: rank 0 hears at once. */
static int unposted_actor(struct actor *a)
{
    struct boot *boot;
    char word[8] = "", all[2 * sizeof word];
    double begin;
    OK(terni_tcp_open(&a->scene->id, a->rank, 2, NULL, 20000, &boot));
    begin = test_seconds();
    if (a->rank == 1) {
        REFUSES(boot->ops->post(boot, word, SIZE_MAX / 16), TERN_OUT_OF_MEMORY, "rank 1 has no memory for 2");
        REFUSES(boot->ops->post(boot, word, 1), TERN_OUT_OF_MEMORY, "failed earlier: rank 1 has no memory");
    } else {
        OK(boot->ops->post(boot, word, sizeof word));
        REFUSES(boot->ops->wait(boot, all, sizeof word, 20000), TERN_DISCONNECTED, "rank 1 closed");
        CHECK(test_seconds() - begin < 10, "it took %.1f s", test_seconds() - begin);
    }
    pthread_barrier_wait(&a->scene->barrier);
    boot->ops->close(boot);
    return 0;
}

static int peer_unposted(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    return run_threads(&scene, actors, 2, unposted_actor);
}

/* Rank 1 posts and does not read: rank 0's exchange ends well, and its next says who took nothing. */
static int untaken_actor(struct actor *a)
{
    enum { BYTES = 8 << 20 };
    char *bytes = (char *)test_take(2, BYTES);
    struct boot *boot = NULL;
    int result = 0, fd = -1;
    if (a->rank == 1) {
        fd = call_root(&a->scene->id, 1, 2);
        result = fd < 0 || hears(fd, TERN_FRAME_RESULT, "") || say(fd, TERN_FRAME_POST, 0, 1, bytes, BYTES);
    } else {
        OK(terni_tcp_open(&a->scene->id, 0, 2, NULL, 20000, &boot));
        OK(boot->ops->post(boot, bytes, BYTES));
        OK(boot->ops->wait(boot, bytes, BYTES, deadline_ms));
        OK(boot->ops->post(boot, bytes, 8));
        note_status(a, boot->ops->wait(boot, bytes, 8, deadline_ms));
    }
    pthread_barrier_wait(&a->scene->barrier);
    if (boot != NULL) {
        boot->ops->close(boot);
    }
    if (fd >= 0) {
        close(fd);
    }
    free(bytes);
    return result;
}

static int untaken(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &scene.id));
    PASS(run_threads(&scene, actors, 2, untaken_actor));
    return same_sentence(actors, 1, TERN_TIMEOUT, "rank 1 took no result within 300 ms");
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "a verdict that is no failure", no_verdicts);
    test_run(&t, "a verdict that is no failure, of a roll call", at_door);
    test_run(&t, "rank 0 cannot poll", unpolled);
    test_run(&t, "rank 0 has no memory for an exchange", unposted);
    test_run(&t, "another rank has none", peer_unposted);
    test_run(&t, "a rank takes no result", untaken);
    return test_end(&t);
}
