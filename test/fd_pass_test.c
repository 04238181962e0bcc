/* SPDX-License-Identifier: Apache-2.0
 *
 * Handing descriptors over abstract sockets, which anybody in the network namespace can call: strangers'
 * packets, whatever they carry, neither count nor leave a descriptor open here. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include "comm/fd_pass.h"
#include "comm_scene.h"
#include "procs.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { most_fds = 4, nobody = 65534 };

/* In the place of the C library's, for the library under test: where `ends_first` is set, as the kernel may
 * do it. A look that does not wait sees no packet, then a packet comes and the connection ends, then the look
 * sees the end. */
static __thread int ends_first;
static _Atomic int has_looked; /* of the two, the first is done */

ssize_t recv(int fd, void *memory, size_t bytes, int flags)
{
    ssize_t got = recvfrom(fd, memory, bytes, flags, NULL, NULL);
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    if (!ends_first || got >= 0 || errno != EAGAIN) {
        return got;
    }
    ends_first = 0;
    has_looked = 1;
    while (poll(&polled, 1, 5000) > 0 && (polled.revents & POLLHUP) == 0) {
        usleep(100);
    }
    return 0;
}

static struct part_name name_of(int rank)
{
    struct part_name name = {{7, 7, 7, 1}, 5, rank};
    int pid = (int)getpid(); /* two runs of this program do not meet */
    memcpy(name.cookie + 8, &pid, sizeof pid);
    return name;
}

/* Connects to the socket of `to` and sends one packet: `bytes` of `from`, with num_fds copies of fd. */
static int call_with(const struct part_name *to, const struct part_name *from, size_t bytes, int fd,
                     int num_fds)
{
    union {
        struct cmsghdr header; /* for its alignment */
        char bytes[CMSG_SPACE(most_fds * sizeof(int))];
    } control;
    struct part_name name = *from;
    struct iovec data = {.iov_base = &name, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    uint64_t cookie[2];
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), n, is_sent;
    memcpy(cookie, to->cookie, sizeof cookie);
    n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "tern/%016llx%016llx/%u/%d",
                 (unsigned long long)cookie[0], (unsigned long long)cookie[1], to->heap, to->rank);
    if (num_fds > 0) {
        memset(&control, 0, sizeof control);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN((size_t)num_fds * sizeof fd);
        for (int i = 0; i < num_fds; i++) {
            memcpy(CMSG_DATA(&control.header) + (size_t)i * sizeof fd, &fd, sizeof fd);
        }
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE((size_t)num_fds * sizeof fd);
    }
    is_sent = connect(s, (const struct sockaddr *)&a,
                      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) == 0 &&
              sendmsg(s, &message, MSG_NOSIGNAL) == (ssize_t)bytes;
    close(s);
    CHECK(is_sent, "a packet of %zu bytes and %d descriptors: %m", bytes, num_fds);
    return 0;
}

/* A call in a peer's name but as another user; only root can try. */
static int call_as_nobody(const struct part_name *to, const struct part_name *from, int fd)
{
    int status = 0;
    pid_t pid = fork();
    CHECK(pid >= 0, "no process");
    if (pid == 0) {
        int result = setuid(nobody) == 0 ? call_with(to, from, sizeof *from, fd, 1) : TEST_FAILED;
        fflush(stdout);
        _exit(result != 0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "wait status 0x%x", (unsigned)status);
    return 0;
}

struct stage {
    struct part_name names[2];
    int listen_fd, peer_listen_fd; /* of rank 0, under test, and of rank 1 */
    int wanted_fd, wrong_fd;       /* what rank 1 sends, and what others do */
    int own_fd;                    /* what rank 0 sends */
};

static int stage_open(struct stage *s)
{
    s->names[0] = name_of(0);
    s->names[1] = name_of(1);
    OK(terni_fd_listen(&s->names[0], &s->listen_fd));
    OK(terni_fd_listen(&s->names[1], &s->peer_listen_fd));
    s->wanted_fd = memfd_create("wanted", MFD_CLOEXEC);
    s->wrong_fd = memfd_create("wrong", MFD_CLOEXEC);
    s->own_fd = memfd_create("own", MFD_CLOEXEC);
    CHECK(s->wanted_fd >= 0 && s->wrong_fd >= 0 && s->own_fd >= 0, "memfd_create: %m");
    return 0;
}

static void stage_close(const struct stage *s)
{
    close(s->listen_fd);
    if (s->peer_listen_fd >= 0) {
        close(s->peer_listen_fd);
    }
    close(s->wanted_fd);
    close(s->wrong_fd);
    close(s->own_fd);
}

static const unsigned char others[2][2] = {{0, 1}, {1, 0}}; /* whose packets a rank wants */

/* Rank 1, which hangs up on so many calls before it does its part. */
struct peer {
    const struct stage *stage;
    int num_hung_up;
    enum tern_status status;
    int got[2];
};

static void *peer_run(void *arg)
{
    struct peer *p = (struct peer *)arg;
    const struct stage *s = p->stage;
    for (int i = 0; i < p->num_hung_up; i++) {
        struct pollfd polled = {.fd = s->peer_listen_fd, .events = POLLIN};
        poll(&polled, 1, 5000);
        close(accept(s->peer_listen_fd, NULL, NULL));
    }
    p->status = terni_fd_exchange(&s->names[1], 2, others[1], s->peer_listen_fd, s->wanted_fd, 5000, p->got);
    return NULL;
}

static int is_file(int fd, int wanted_fd)
{
    struct stat wanted, got;
    return fstat(fd, &got) == 0 && fstat(wanted_fd, &wanted) == 0 && got.st_ino == wanted.st_ino;
}

/* Both sides of it, behind all packets that were sent so far. */
static int exchange(const struct stage *s, int num_hung_up)
{
    struct peer peer = {.stage = s, .num_hung_up = num_hung_up};
    int fds[2], before = num_fds();
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, peer_run, &peer) == 0, "no thread");
    enum tern_status status =
        terni_fd_exchange(&s->names[0], 2, others[0], s->listen_fd, s->own_fd, 5000, fds);
    pthread_join(thread, NULL);
    OK(status);
    OK(peer.status);
    CHECK(fds[0] == -1 && fds[1] >= 0, "descriptors %d and %d", fds[0], fds[1]);
    CHECK(peer.got[0] >= 0 && peer.got[1] == -1, "descriptors %d and %d", peer.got[0], peer.got[1]);
    CHECK(is_file(fds[1], s->wanted_fd), "another descriptor than rank 1's");
    CHECK(is_file(peer.got[0], s->own_fd), "another descriptor than rank 0's");
    close(fds[1]);
    close(peer.got[0]);
    CHECK(num_fds() == before, "%d descriptors after, %d before", num_fds(), before);
    return 0;
}

static int call_badly(const struct stage *s)
{
    const struct part_name *to = &s->names[0], *peer = &s->names[1];
    struct part_name bad[4] = {*peer, *peer, *peer, *peer};
    bad[0].cookie[0] ^= 1;
    bad[1].heap++;
    bad[2].rank = 0; /* no peer */
    bad[3].rank = 2; /* no rank */
    for (int num = 0; num <= most_fds; num++) {
        PASS(call_with(to, peer, 2, s->wrong_fd, num)); /* cut short */
        for (int i = 0; i < 4; i++) {
            PASS(call_with(to, &bad[i], sizeof bad[i], s->wrong_fd, num));
        }
        if (num != 1) {
            PASS(call_with(to, peer, sizeof *peer, s->wrong_fd, num)); /* right but for the number */
        }
    }
    return 0;
}

static int strangers(struct test *t)
{
    struct stage s;
    int result, before = num_fds();
    (void)t;
    PASS(stage_open(&s));
    result = call_badly(&s);
    result = result ? result : exchange(&s, 0);
    stage_close(&s);
    PASS(result);
    CHECK(num_fds() == before, "%d descriptors after, %d before", num_fds(), before);
    return 0;
}

static int other_user(struct test *t)
{
    struct stage s;
    int result;
    if (geteuid() != 0) {
        return test_skip(t, "only root can call as another user");
    }
    PASS(stage_open(&s));
    result = call_as_nobody(&s.names[0], &s.names[1], s.wrong_fd);
    result = result ? result : exchange(&s, 0);
    stage_close(&s);
    return result;
}

/* Packets that nobody took are sent again. */
static int calls_that_end(struct test *t)
{
    struct stage s;
    int result;
    (void)t;
    PASS(stage_open(&s));
    result = exchange(&s, 3);
    stage_close(&s);
    return result;
}

/* Rank 1, which comes when rank 0 has called it and has looked for an answer, as it does whenever a stranger
 * calls, and leaves when it has all it needs: who calls it again learns that. */
static void *brief_peer(void *arg)
{
    struct peer *p = (struct peer *)arg;
    const struct stage *s = p->stage;
    struct part_name stranger = name_of(7);
    struct pollfd polled = {.fd = s->peer_listen_fd, .events = POLLIN};
    poll(&polled, 1, 5000);
    for (int ms = 0; ms < 5000 && !has_looked; ms++) {
        call_with(&s->names[0], &stranger, sizeof stranger, -1, 0);
        usleep(1000);
    }
    p->status = terni_fd_exchange(&s->names[1], 2, others[1], s->peer_listen_fd, s->wanted_fd, 5000, p->got);
    close(s->peer_listen_fd);
    return NULL;
}

/* An answer counts, also where the end of its connection is seen before it. */
static int an_end_before_its_answer(struct test *t)
{
    struct stage s;
    struct peer peer = {.stage = &s};
    pthread_t thread;
    int fds[2];
    (void)t;
    PASS(stage_open(&s));
    has_looked = 0;
    ends_first = 1;
    CHECK(pthread_create(&thread, NULL, brief_peer, &peer) == 0, "no thread");
    enum tern_status status = terni_fd_exchange(&s.names[0], 2, others[0], s.listen_fd, s.own_fd, 5000, fds);
    pthread_join(thread, NULL);
    close(fds[1]);
    close(peer.got[0]);
    s.peer_listen_fd = -1;
    stage_close(&s);
    CHECK(ends_first == 0, "the end was not seen first");
    OK(status);
    OK(peer.status);
    return 0;
}

/* A peer that does not come is named at the deadline, one that has gone, at once. */
static int peers_that_do_not_come(struct test *t)
{
    struct stage s;
    int fds[2], before = num_fds();
    uint64_t begin;
    (void)t;
    PASS(stage_open(&s));
    PASS(call_with(&s.names[0], &s.names[0], sizeof s.names[0], s.wrong_fd, 1));
    REFUSES(terni_fd_exchange(&s.names[0], 2, others[0], s.listen_fd, s.own_fd, 50, fds), TERN_TIMEOUT,
            "rank 1 did not arrive within 50 ms with their windows (1 sent none, 1 took none; 0 calls ended, "
            "1 callers were strangers)");
    PASS(call_with(&s.names[0], &s.names[1], sizeof s.names[1], s.wanted_fd, 1));
    REFUSES(terni_fd_exchange(&s.names[0], 2, others[0], s.listen_fd, s.own_fd, 50, fds), TERN_TIMEOUT,
            "rank 1 did not arrive within 50 ms with their windows (0 sent none, 1 took none; 0 calls ended, "
            "0 callers were strangers)");
    CHECK(fds[1] == -1, "descriptor %d", fds[1]);
    close(s.peer_listen_fd);
    s.peer_listen_fd = -1;
    begin = terni_clock_ns();
    REFUSES(terni_fd_exchange(&s.names[0], 2, others[0], s.listen_fd, s.own_fd, 60000, fds),
            TERN_DISCONNECTED, "rank 1 left while windows were exchanged");
    CHECK(terni_clock_ns() - begin < 30000000000ull, "after the deadline");
    stage_close(&s);
    CHECK(num_fds() == before, "%d descriptors after, %d before", num_fds(), before);
    return 0;
}

/* Rank 0 has none, one or two descriptors left: to call, to accept a call, to take what comes. It blames
 * nobody else. */
static int poor_body(int rank, struct procs_page *page, void *user)
{
    static const char *const sentences[] = {"no unix socket: Too many open files",
                                            "rank 0 cannot accept a connection: Too many open files",
                                            "rank 0 has no descriptor left for rank 1's window"};
    int num_left = *(const int *)user, fds[2];
    struct stage s;
    (void)rank, (void)page;
    PASS(stage_open(&s));
    PASS(call_with(&s.names[0], &s.names[1], sizeof s.names[1], s.wanted_fd, 1));
    PASS(leave_fds(num_left));
    REFUSES(terni_fd_exchange(&s.names[0], 2, others[0], s.listen_fd, s.own_fd, 5000, fds), TERN_SYSTEM_ERROR,
            sentences[num_left]);
    CHECK(fds[1] == -1, "descriptor %d", fds[1]);
    for (int i = 0; i < num_left; i++) {
        CHECK(dup(0) >= 0, "only %d of %d descriptors were closed", i, num_left);
    }
    return 0;
}

static int few_descriptors(struct test *t)
{
    (void)t;
    for (int num_left = 0; num_left < 3; num_left++) {
        PASS(procs_run(1, -1, 30, poor_body, &num_left));
    }
    return 0;
}

/* ---- Descriptors in flight ---- */

enum { most_open = 64, num_held = 80 };

/* Packets that nobody has read yet, with more descriptors than a process of this user may have open. */
static int hold_descriptors(int *pair)
{
    union {
        struct cmsghdr header; /* for its alignment */
        char bytes[CMSG_SPACE(num_held * sizeof(int))];
    } control;
    char byte = 0;
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    memset(&control, 0, sizeof control);
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(num_held * sizeof(int)); /* of descriptor 0, again and again */
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0, "socketpair: %m");
    while (sendmsg(pair[0], &message, MSG_NOSIGNAL) == 1) {
    }
    CHECK(errno == ETOOMANYREFS || errno == EAGAIN, "sendmsg: %m");
    return errno == ETOOMANYREFS ? 0 : TEST_SKIPPED;
}

static void *read_soon(void *pair)
{
    char byte;
    usleep(100000);
    while (recv(((const int *)pair)[1], &byte, sizeof byte, 0) == 1) { /* what came with it is closed */
    }
    return NULL;
}

static int hold_and_exchange(void)
{
    struct rlimit limit = {most_open, most_open};
    struct stage s;
    pthread_t thread;
    int pair[2], fds[2], result;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit: %m");
    PASS(geteuid() != 0 || setuid(nobody) == 0 ? 0 : TEST_SKIPPED);
    PASS(hold_descriptors(pair));
    PASS(stage_open(&s));
    REFUSES(terni_fd_exchange(&s.names[0], 2, others[0], s.listen_fd, s.own_fd, 50, fds), TERN_TIMEOUT,
            "1 ranks were not called, as this user has more descriptors on their way than the limit of open "
            "files");
    CHECK(pthread_create(&thread, NULL, read_soon, pair) == 0, "no thread");
    result = exchange(&s, 0);
    pthread_join(thread, NULL);
    return result;
}

/* Linux takes no more descriptors from a user who has too many on their way, but from those who may all: a
 * call waits until others have read theirs. */
static int others_in_flight(struct test *t)
{
    int status = 0;
    pid_t pid = fork();
    CHECK(pid >= 0, "no process");
    if (pid == 0) {
        int result = hold_and_exchange();
        fflush(stdout);
        _exit(result == 0 ? 0 : result == TEST_SKIPPED ? 1 : 2);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) < 2, "wait status 0x%x",
          (unsigned)status);
    return WEXITSTATUS(status) == 0
               ? 0
               : test_skip(t, "root cannot become another user, or this system has no such limit");
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "strangers", strangers);
    test_run(&t, "other_user", other_user);
    test_run(&t, "calls_that_end", calls_that_end);
    test_run(&t, "an_end_before_its_answer", an_end_before_its_answer);
    test_run(&t, "peers_that_do_not_come", peers_that_do_not_come);
    test_run(&t, "few_descriptors", few_descriptors);
    test_run(&t, "others_in_flight", others_in_flight);
    return test_end(&t);
}
