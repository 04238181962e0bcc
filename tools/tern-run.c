/* SPDX-License-Identifier: Apache-2.0
 *
 * tern-run: starts the ranks of a program on this host, and sees to it that none outlives the others'
 * failure.
 *
 * It makes the communicator's id, so the port listens before any rank starts, and hands the socket to rank 0
 * (TERN_ID_FD). Each rank leads a process group of its own, so that what it started dies with it. One loop
 * waits for everything: signals come through a signalfd, prefixed output through pipes, times through the
 * poll's deadline. A run ends in phases; each has a deadline that leads to the next:
 *
 *     running -> a rank failed, or a signal came: grace for ranks to report -> SIGTERM -> SIGKILL
 *
 * With --keep-going a failure ends no phase: survivors of a lost rank, which they may mask, run to their end.
 *
 * One long file, because the loop, its phases and the ranks' pipes are one state. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pipe2, strsignal */
#endif
#include "comm/comm.h"
#include "comm/id.h"
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

static const char manual[] =
    "tern-run - start the ranks of a program on this host\n"
    "\n"
    "  tern-run -n N [options] program [arguments]\n"
    "\n"
    "  -n N           number of ranks, 1 to 4096\n"
    "  -p             begin each line of output with its rank: [3]\n"
    "  -v             tell what is started and how each rank ends\n"
    "  --timeout S    end the run after S seconds, with exit status 124\n"
    "  --keep-going   when a rank fails, let the others run to their end, as ranks that mask a lost one do\n"
    "  --help         this text\n"
    "  --version      the version\n"
    "\n"
    "Each rank is a process with TERN_ID, TERN_RANK and TERN_NUM_RANKS set, as tern_id_from_environment "
    "reads\n"
    "them; ranks meet at the address TERN_INTERFACE. Rank 0 keeps standard input unless it is a terminal.\n"
    "\n"
    "When a rank exits with a status other than 0, or dies of a signal, the others have 2 seconds to end,\n"
    "then get SIGTERM, and SIGKILL 2 seconds later, unless --keep-going was given. Processes that ranks\n"
    "started and left are killed when the run ends. SIGINT and SIGHUP are passed on as they are, and ranks\n"
    "then have the same 2 seconds, also with --keep-going; SIGTERM is passed on, and SIGKILL follows 2\n"
    "seconds later. What the caller ignores of these, as nohup does, stays ignored.\n"
    "\n"
    "The exit status is that of the first rank that failed, 128 + n for signal n, also with --keep-going;\n"
    "128 + n if signal n ended the run; 0 if all ranks exited with 0; 2 if the run could not be started, or\n"
    "output was lost and no rank failed.\n";

enum { grace_seconds = 2, exit_usage = 2, exit_timeout = 124, line_bytes = 8192 };

struct stream {
    int fd; /* read end of the rank's pipe, or -1 */
    int to; /* 1 or 2 */
    int rank;
    size_t num_bytes;
    char line[line_bytes];
};

struct rank {
    pid_t pid; /* leads its process group */
    int is_running;
};

enum phase { phase_running, phase_grace, phase_terminated, phase_killed };

struct run {
    int num_ranks, has_prefix, is_verbose, keeps_going;
    int has_lost_output;    /* which was said */
    double timeout_seconds; /* 0: none */
    char **argv;            /* of the program */
    struct rank *ranks;
    struct stream *streams; /* with -p: [2 * num_ranks], else NULL */
    struct pollfd *fds;
    int num_running;
    int signal_fd;
    int complaint_fd; /* an eventfd that one child can read: the one that says why the program does not run */
    sigset_t old_mask; /* ranks start with this, and with the two below */
    void (*old_pipe)(int);
    void (*old_child)(int);
    enum phase phase;
    uint64_t phase_end_ns; /* UINT64_MAX: none */
    int exit_status;
};

static void say(const char *format, ...) TERN_PRINTF(1, 2);
static void say(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "tern-run: %s\n", text);
}

/* ---- Options ---- */

static int parse_count(const char *text, int *value)
{
    char *end;
    long n = strtol(text, &end, 10);
    if (end == text || *end != '\0' || n < 1 || n > TERN_MAX_BOOT_RANKS) {
        say("-n %s is not a number of ranks from 1 to %d", text, TERN_MAX_BOOT_RANKS);
        return 0;
    }
    *value = (int)n;
    return 1;
}

static int parse_seconds(const char *text, double *value)
{
    char *end;
    double s = strtod(text, &end);
    if (end == text || *end != '\0' || !(s > 0 && s < 1e9)) {
        say("--timeout %s is not a number of seconds above 0", text);
        return 0;
    }
    *value = s;
    return 1;
}

/* Returns -1 to go on, else the exit status. */
static int parse(struct run *run, int argc, char **argv)
{
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *a = argv[i];
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(a, "--") == 0) {
            i++;
            break;
        } else if (strcmp(a, "-p") == 0) {
            run->has_prefix = 1;
        } else if (strcmp(a, "-v") == 0) {
            run->is_verbose = 1;
        } else if (strcmp(a, "--keep-going") == 0) {
            run->keeps_going = 1;
        } else if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) {
            fputs(manual, stdout);
            return 0;
        } else if (strcmp(a, "--version") == 0) {
            printf("tern-run %d.%d.%d\n", TERN_VERSION_MAJOR, TERN_VERSION_MINOR, TERN_VERSION_PATCH);
            return 0;
        } else if (strcmp(a, "-n") != 0 && strcmp(a, "--timeout") != 0) {
            say("unknown option %s; --help lists all", a);
            return exit_usage;
        } else if (next == NULL) {
            say("option %s needs a value", a);
            return exit_usage;
        } else {
            i++;
            if (!(a[1] == 'n' ? parse_count(next, &run->num_ranks)
                              : parse_seconds(next, &run->timeout_seconds))) {
                return exit_usage;
            }
        }
    }
    if (run->num_ranks == 0 || i == argc) {
        say(run->num_ranks == 0 ? "option -n is missing; --help tells more"
                                : "no program to run; --help tells more");
        return exit_usage;
    }
    run->argv = argv + i;
    return -1;
}

/* ---- Starting ---- */

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* In the child: becomes the program, or exits with 127. The first child to fail says why for all. */
static void become(struct run *run, int rank, int listen_fd, const int *pipes)
{
    uint64_t turn;
    int error;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* should tern-run be killed without a chance to clean up */
    signal(SIGPIPE, run->old_pipe);
    signal(SIGCHLD, run->old_child);
    sigprocmask(SIG_SETMASK, &run->old_mask, NULL);
    set_number("TERN_RANK", rank);
    if (rank == 0) {
        fcntl(listen_fd, F_SETFD, 0); /* the one rank that inherits it */
        set_number("TERN_ID_FD", listen_fd);
    } else {
        unsetenv("TERN_ID_FD");
    }
    if (rank != 0 || isatty(0)) { /* a background group that reads a terminal is stopped */
        int null_fd = open("/dev/null", O_RDONLY);
        if (null_fd > 0) {
            dup2(null_fd, 0);
            close(null_fd);
        }
    }
    if (pipes != NULL) {
        dup2(pipes[1], 1);
        dup2(pipes[3], 2);
    }
    execvp(run->argv[0], run->argv);
    error = errno;
    if (read(run->complaint_fd, &turn, sizeof turn) == (ssize_t)sizeof turn) {
        say("cannot run %s: %s", run->argv[0], strerror(error));
    }
    _exit(127);
}

static int start_rank(struct run *run, int rank, int listen_fd)
{
    int pipes[4] = {-1, -1, -1, -1}; /* out: read, write; err: read, write */
    pid_t pid;
    if (run->has_prefix && (pipe2(pipes, O_CLOEXEC) != 0 || pipe2(pipes + 2, O_CLOEXEC) != 0)) {
        say("no pipe for rank %d: %s", rank, strerror(errno));
        return 0;
    }
    pid = fork();
    if (pid < 0) {
        say("cannot fork rank %d: %s", rank, strerror(errno));
        return 0;
    }
    if (pid == 0) {
        become(run, rank, listen_fd, run->has_prefix ? pipes : NULL);
    }
    setpgid(pid, pid); /* also here: the group must exist before anything signals it */
    run->ranks[rank].pid = pid;
    run->ranks[rank].is_running = 1;
    run->num_running++;
    for (int i = 0; i < 2 && run->has_prefix; i++) {
        struct stream *s = &run->streams[2 * rank + i];
        close(pipes[2 * i + 1]);
        fcntl(pipes[2 * i], F_SETFL, O_NONBLOCK);
        s->fd = pipes[2 * i];
        s->to = i + 1;
        s->rank = rank;
    }
    if (run->is_verbose) {
        say("rank %d is process %d: %s", rank, (int)pid, run->argv[0]);
    }
    return 1;
}

static int start_all(struct run *run)
{
    struct tern_id id;
    char text[TERN_ID_HEX_DIGITS + 1];
    int listen_fd;
    int is_started = 1;
    if (tern_id_create(NULL, &id) != TERN_OK || terni_id_take_listener(&id, &listen_fd) != TERN_OK) {
        say("%s", tern_last_error());
        return 0;
    }
    terni_id_print(&id, text);
    setenv("TERN_ID", text, 1);
    set_number("TERN_NUM_RANKS", run->num_ranks);
    for (int r = 0; r < run->num_ranks && is_started; r++) {
        is_started = start_rank(run, r, listen_fd);
    }
    close(listen_fd);
    return is_started;
}

/* ---- Output ---- */

/* Returns 0, or errno. Standard output may be a pipe that somebody set not to block. */
static int write_all(int fd, const char *text, size_t num_bytes)
{
    while (num_bytes > 0) {
        ssize_t n = write(fd, text, num_bytes);
        if (n > 0) {
            text += n;
            num_bytes -= (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            struct pollfd room = {.fd = fd, .events = POLLOUT};
            (void)terni_poll(&room, 1, -1);
        } else if (n < 0 && errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

/* One write a line, so that lines of different ranks do not mix in a pipe. When the reader has gone,
 * ranks go on. */
static void write_line(struct run *run, const struct stream *s, const char *line, size_t num_bytes)
{
    char text[line_bytes + 16];
    int at = snprintf(text, sizeof text, "[%d] ", s->rank);
    int error;
    memcpy(text + at, line, num_bytes);
    text[(size_t)at + num_bytes] = '\n';
    error = write_all(s->to, text, (size_t)at + num_bytes + 1);
    if (error != 0 && error != EPIPE && !run->has_lost_output) {
        run->has_lost_output = 1;
        say("output of rank %d is lost: %s", s->rank, strerror(error));
    }
}

/* Writes the whole lines in the buffer, and a line that fills it as if it ended there; keeps the rest. */
static void write_lines(struct run *run, struct stream *s)
{
    size_t done = 0;
    const char *end;
    while ((end = (const char *)memchr(s->line + done, '\n', s->num_bytes - done)) != NULL) {
        size_t num_bytes = (size_t)(end - s->line) - done;
        write_line(run, s, s->line + done, num_bytes);
        done += num_bytes + 1;
    }
    if (done == 0 && s->num_bytes == sizeof s->line) {
        write_line(run, s, s->line, s->num_bytes);
        done = s->num_bytes;
    }
    s->num_bytes -= done;
    memmove(s->line, s->line + done, s->num_bytes);
}

static void end_stream(struct run *run, struct stream *s)
{
    if (s->num_bytes > 0) {
        write_line(run, s, s->line, s->num_bytes);
    }
    close(s->fd);
    s->fd = -1;
}

/* One read, so that a rank that never stops writing keeps the loop from nothing. Returns its bytes, or 0. */
static size_t pump(struct run *run, struct stream *s)
{
    ssize_t n;
    do {
        n = read(s->fd, s->line + s->num_bytes, sizeof s->line - s->num_bytes);
    } while (n < 0 && errno == EINTR);
    if (n > 0) {
        s->num_bytes += (size_t)n;
        write_lines(run, s);
        return (size_t)n;
    }
    if (n == 0 || errno != EAGAIN) {
        end_stream(run, s);
    }
    return 0;
}

/* When all ranks have ended: writes what the pipe holds by now. A process that left its rank's group may live
 * and go on writing; that is not the run's. */
static void drain(struct run *run, struct stream *s)
{
    int held = 0;
    size_t n = 1;
    (void)ioctl(s->fd, FIONREAD, &held);
    for (size_t left = (size_t)held; left > 0 && n > 0; left -= n < left ? n : left) {
        n = pump(run, s);
    }
    if (s->fd >= 0) {
        end_stream(run, s);
    }
}

/* ---- Running and ending ---- */

static void signal_all(const struct run *run, int signal)
{
    for (int r = 0; r < run->num_ranks; r++) {
        if (run->ranks[r].pid > 0) {
            kill(-run->ranks[r].pid, signal); /* also a group whose leader has exited */
        }
    }
}

static void begin_phase(struct run *run, enum phase phase)
{
    run->phase = phase;
    run->phase_end_ns = terni_clock_ns() + grace_seconds * 1000000000ull;
}

static void enter(struct run *run, enum phase phase)
{
    begin_phase(run, phase);
    if (phase == phase_terminated) {
        signal_all(run, SIGTERM);
    } else if (phase == phase_killed) {
        signal_all(run, SIGKILL);
        run->phase_end_ns = UINT64_MAX;
    }
}

static void deadline_passed(struct run *run)
{
    if (run->phase == phase_running) {
        say("%g seconds have passed; %d of %d ranks still run", run->timeout_seconds, run->num_running,
            run->num_ranks);
        run->exit_status = exit_timeout;
        enter(run, phase_terminated);
    } else {
        enter(run, run->phase == phase_grace ? phase_terminated : phase_killed);
    }
}

static void rank_ended(struct run *run, int rank, const siginfo_t *end)
{
    int is_signal = end->si_code != CLD_EXITED;
    int status = is_signal ? 128 + end->si_status : end->si_status;
    int is_first = status != 0 && run->exit_status == 0;
    /* Where all are to end, the first failure brings the others, and is what needs telling. */
    int is_told = is_first || run->is_verbose || (status != 0 && run->keeps_going);
    run->ranks[rank].is_running = 0;
    run->num_running--;
    if (is_told && is_signal) {
        say("rank %d died of signal %d (%s)", rank, end->si_status, strsignal(end->si_status));
    } else if (is_told) {
        say("rank %d exited with status %d", rank, status);
    }
    if (is_first) {
        run->exit_status = status;
        if (run->phase == phase_running && !run->keeps_going) {
            enter(run, phase_grace);
        }
    }
}

/* Ended ranks stay zombies until the run is over: their process groups may still be signalled, so their
 * numbers must not go to somebody else. */
static void find_ended(struct run *run)
{
    for (int r = 0; r < run->num_ranks; r++) {
        siginfo_t end;
        memset(&end, 0, sizeof end);
        if (run->ranks[r].is_running &&
            waitid(P_PID, (id_t)run->ranks[r].pid, &end, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            end.si_pid != 0) {
            rank_ended(run, r, &end);
        }
    }
}

static void reap_all(const struct run *run)
{
    for (int r = 0; r < run->num_ranks; r++) {
        if (run->ranks[r].pid > 0) {
            waitpid(run->ranks[r].pid, NULL, 0);
        }
    }
}

/* Ranks get the signal itself, each time it comes; the run ends as soon as it would after the first. */
static void pass_on(struct run *run, int signal)
{
    signal_all(run, signal);
    if (signal == SIGTERM && run->phase < phase_terminated) {
        begin_phase(run, phase_terminated); /* which has sent it */
    } else if (run->phase < phase_grace) {
        begin_phase(run, phase_grace);
    }
}

static void take_signals(struct run *run)
{
    struct signalfd_siginfo info;
    while (read(run->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        int signal = (int)info.ssi_signo;
        if (signal == SIGCHLD) {
            continue; /* find_ended() looks at all ranks anyway */
        }
        run->exit_status = run->exit_status != 0 ? run->exit_status : 128 + signal;
        pass_on(run, signal);
    }
}

static void watch(struct run *run)
{
    int num_streams = run->has_prefix ? 2 * run->num_ranks : 0;
    while (run->num_running > 0) {
        run->fds[0].fd = run->signal_fd;
        run->fds[0].events = POLLIN;
        for (int i = 0; i < num_streams; i++) {
            run->fds[1 + i].fd = run->streams[i].fd;
            run->fds[1 + i].events = POLLIN;
        }
        terni_poll(run->fds, 1 + num_streams, terni_poll_ms(run->phase_end_ns));
        take_signals(run);
        for (int i = 0; i < num_streams; i++) {
            if (run->streams[i].fd >= 0) {
                pump(run, &run->streams[i]);
            }
        }
        find_ended(run);
        if (run->num_running > 0 && terni_clock_ns() >= run->phase_end_ns) {
            deadline_passed(run);
        }
    }
    signal_all(run, SIGKILL); /* what ranks left behind */
    reap_all(run);
    for (int i = 0; i < num_streams; i++) {
        if (run->streams[i].fd >= 0) {
            drain(run, &run->streams[i]);
        }
    }
}

/* What a caller as nohup ignores stays ignored; a signal that is blocked would come all the same. */
static void add_unless_ignored(sigset_t *mask, int signal)
{
    struct sigaction old;
    if (sigaction(signal, NULL, &old) != 0 || old.sa_handler != SIG_IGN) {
        sigaddset(mask, signal);
    }
}

static int prepare(struct run *run)
{
    size_t n = (size_t)run->num_ranks;
    sigset_t mask;
    run->ranks = (struct rank *)calloc(n, sizeof *run->ranks);
    run->fds = (struct pollfd *)calloc(1 + 2 * n, sizeof *run->fds);
    run->streams = run->has_prefix ? (struct stream *)calloc(2 * n, sizeof *run->streams) : NULL;
    if (run->ranks == NULL || run->fds == NULL || (run->has_prefix && run->streams == NULL)) {
        say("no memory for %d ranks", run->num_ranks);
        return 0;
    }
    for (size_t i = 0; run->has_prefix && i < 2 * n; i++) {
        run->streams[i].fd = -1;
    }
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    add_unless_ignored(&mask, SIGINT);
    add_unless_ignored(&mask, SIGTERM);
    add_unless_ignored(&mask, SIGHUP);
    run->old_child = signal(SIGCHLD, SIG_DFL); /* if it is ignored, nothing is left of ranks to wait for */
    sigprocmask(SIG_BLOCK, &mask, &run->old_mask);
    run->old_pipe = signal(SIGPIPE, SIG_IGN); /* a reader that goes is met by write_all */
    run->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (run->signal_fd < 0) {
        say("no signalfd: %s", strerror(errno));
        return 0;
    }
    run->complaint_fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
    if (run->complaint_fd < 0) {
        say("no eventfd: %s", strerror(errno));
        return 0;
    }
    run->phase_end_ns =
        run->timeout_seconds > 0 ? terni_clock_ns() + (uint64_t)(run->timeout_seconds * 1e9) : UINT64_MAX;
    return 1;
}

int main(int argc, char **argv)
{
    struct run run;
    int status;
    memset(&run, 0, sizeof run);
    status = parse(&run, argc, argv);
    if (status >= 0) {
        return status == 0 && !output_is_whole("tern-run") ? exit_usage : status;
    }
    if (!prepare(&run)) {
        return exit_usage;
    }
    if (!start_all(&run)) {
        run.exit_status = exit_usage;
        enter(&run, phase_killed);
    }
    watch(&run);
    if (run.has_lost_output && run.exit_status == 0) {
        run.exit_status = exit_usage;
    }
    if (run.is_verbose) {
        say("exit status %d", run.exit_status);
    }
    close(run.complaint_fd);
    close(run.signal_fd);
    free(run.streams);
    free(run.fds);
    free(run.ranks);
    return run.exit_status;
}
