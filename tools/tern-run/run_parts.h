/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of tern-run share. Ranks are started (run_start.c), their output is passed on (run_output.c), and
 * a run ends, by its ranks, by signals and by time (run_end.c). */
#ifndef TERN_TOOLS_RUN_PARTS_H
#define TERN_TOOLS_RUN_PARTS_H

#include "core/core.h"

#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

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

/* A line on standard error. */
void run_say(const char *format, ...) TERN_PRINTF(1, 2);

int run_start_all(struct run *run);

size_t run_pump(struct run *run, struct stream *s);
void run_drain(struct run *run, struct stream *s);

void run_signal_all(const struct run *run, int signal);
void run_enter(struct run *run, enum phase phase);
void run_deadline_passed(struct run *run);
void run_find_ended(struct run *run);
void run_reap_all(const struct run *run);
void run_take_signals(struct run *run);

#endif
