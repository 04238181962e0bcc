/* SPDX-License-Identifier: Apache-2.0
 *
 * What ranks print, by lines, and what tern-run itself says. */
#include "comm/comm.h"
#include "comm/socket.h"
#include "run_parts.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void run_say(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "tern-run: %s\n", text);
}

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
        run_say("output of rank %d is lost: %s", s->rank, strerror(error));
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
