/* SPDX-License-Identifier: Apache-2.0
 *
 * What ranks print, by lines, and what tern-run itself says. */
#include "comm/comm.h"
#include "comm/socket.h"
#include "run_parts.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { said_bytes = 512, tick_ns = 100000000, pause_ms = 10 };

/* ---- What tern-run says ---- */

void run_say(const char *format, ...)
{
    char text[said_bytes];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "tern-run: %s\n", text);
}

/* Without memory the line is lost. */
void run_tell(struct run *run, const char *format, ...)
{
    static const char name[] = "tern-run: ";
    char text[said_bytes];
    size_t num_bytes, at = sizeof name - 1;
    char *said;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    num_bytes = strlen(text);
    said = (char *)realloc(run->said, run->num_said + at + num_bytes + 1);
    if (said != NULL) {
        run->said = said;
        said += run->num_said;
        memcpy(said, name, at);
        memcpy(said + at, text, num_bytes);
        said[at + num_bytes] = '\n';
        run->num_said += at + num_bytes + 1;
    }
}

/* ---- Writing to a reader that may stall ---- */

static void tick(int signal) { (void)signal; }

/* A timer of its own, not alarm's, which the caller may have set. */
int run_prepare_output(struct run *run)
{
    struct sigevent event;
    struct sigaction action;
    sigset_t mask;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGRTMIN;
    memset(&action, 0, sizeof action);
    action.sa_handler = tick; /* without SA_RESTART: it ends a write */
    sigemptyset(&mask);
    sigaddset(&mask, SIGRTMIN);
    if (sigaction(SIGRTMIN, &action, &run->old_tick) != 0 || sigprocmask(SIG_UNBLOCK, &mask, NULL) != 0 ||
        timer_create(CLOCK_MONOTONIC, &event, &run->write_timer) != 0) {
        run_say("no timer: %s", strerror(errno));
        return 0;
    }
    return 1;
}

static void set_ticks(struct run *run, int is_ticking)
{
    long ns = is_ticking ? tick_ns : 0;
    struct itimerspec ticks = {.it_interval = {.tv_nsec = ns}, .it_value = {.tv_nsec = ns}};
    if (run->is_ticking != is_ticking) {
        timer_settime(run->write_timer, 0, &ticks, NULL);
        run->is_ticking = is_ticking;
    }
}

/* Where poll has found room a write may wait all the same: a terminal has less than it seems, others write to
 * the same pipe. Then it ends with EINTR, or with what was taken. */
static ssize_t write_some(struct run *run, int fd, const char *text, size_t num_bytes)
{
    set_ticks(run, 1); /* until run_flush, as it takes longer than a write */
    return write(fd, text, num_bytes < PIPE_BUF ? num_bytes : PIPE_BUF);
}

/* When to give up who has taken nothing since then. */
static uint64_t stall_end_ns(const struct run *run, uint64_t since_ns)
{
    uint64_t from_ns = since_ns > run->terminated_ns ? since_ns : run->terminated_ns;
    return run->must_end && run->phase >= phase_terminated ? from_ns + grace_seconds * 1000000000ull
                                                           : UINT64_MAX;
}

/* Sees to signals and ranks meanwhile, and to time if there is no room yet. */
static int has_room(struct run *run, int fd, uint64_t since_ns)
{
    struct pollfd fds[2] = {{.fd = fd, .events = POLLOUT}, {.fd = run->signal_fd, .events = POLLIN}};
    uint64_t stall_ns = stall_end_ns(run, since_ns), end_ns = run_deadline_ns(run);
    (void)terni_poll(fds, 2, terni_poll_ms(stall_ns < end_ns ? stall_ns : end_ns));
    if (fds[1].revents != 0) {
        run_attend(run);
    }
    return fds[0].revents != 0;
}

/* Returns 0, or errno: ETIMEDOUT if the run must end and nobody takes what is written. */
static int write_all(struct run *run, int fd, const char *text, size_t num_bytes)
{
    uint64_t since_ns = terni_clock_ns();
    while (num_bytes > 0 && !run->is_stalled[fd]) {
        int is_tried = has_room(run, fd, since_ns);
        ssize_t n = is_tried ? write_some(run, fd, text, num_bytes) : 0;
        if (n > 0) {
            text += n;
            num_bytes -= (size_t)n;
            since_ns = terni_clock_ns();
            continue;
        }
        if (n < 0 && errno == EAGAIN) { /* somebody set it not to block */
            (void)terni_poll(NULL, 0, pause_ms);
        } else if (n < 0 && errno != EINTR) {
            return errno;
        }
        run_see_to_time(run);
        run->is_stalled[fd] = terni_clock_ns() >= stall_end_ns(run, since_ns);
    }
    return num_bytes > 0 ? ETIMEDOUT : 0;
}

void run_flush(struct run *run)
{
    while (run->num_said > 0) {
        char *said = run->said; /* more may be said meanwhile */
        size_t num_bytes = run->num_said;
        run->said = NULL;
        run->num_said = 0;
        (void)write_all(run, 2, said, num_bytes);
        free(said);
    }
    set_ticks(run, 0);
}

/* ---- Lines of ranks ---- */

/* A line at a time, so that lines of different ranks do not mix. When the reader has gone, ranks go on. */
static void write_line(struct run *run, const struct stream *s, const char *line, size_t num_bytes)
{
    char text[line_bytes + 16];
    int at = snprintf(text, sizeof text, "[%d] ", s->rank);
    int error;
    memcpy(text + at, line, num_bytes);
    text[(size_t)at + num_bytes] = '\n';
    error = write_all(run, s->to, text, (size_t)at + num_bytes + 1);
    if (error != 0 && error != EPIPE && !run->has_lost_output) {
        run->has_lost_output = 1;
        run_tell(run, "output of rank %d is lost: %s", s->rank,
                 error == ETIMEDOUT ? "nobody takes it" : strerror(error));
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
size_t run_pump(struct run *run, struct stream *s)
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
void run_drain(struct run *run, struct stream *s)
{
    int held = 0;
    size_t n = 1;
    (void)ioctl(s->fd, FIONREAD, &held);
    for (size_t left = (size_t)held; left > 0 && n > 0; left -= n < left ? n : left) {
        n = run_pump(run, s);
    }
    if (s->fd >= 0) {
        end_stream(run, s);
    }
}
