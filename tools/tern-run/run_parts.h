/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of tern-run share. Ranks are started (run_start.c), their output is passed on
 * (run_output.c), and a run ends, by its ranks, by signals and by time (run_end.c).
 *
 * Who reads the output may stall, so whoever waits for room there sees to signals, ranks and times, too. What
 * tern-run says of them meanwhile is kept until the line that is being written is whole. */
#ifndef TERN_TOOLS_RUN_PARTS_H
#define TERN_TOOLS_RUN_PARTS_H

#include "core/core.h"

#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

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
    int has_lost_output; /* which was said */
    int is_stalled[3];   /* of standard output and error: given up, as nobody takes anything */
    char *said;          /* by run_tell, not yet written */
    size_t num_said;
    double timeout_seconds; /* 0: none */
    char **argv;            /* of the program */
    struct rank *ranks;
    struct stream *streams; /* with -p: [2 * num_ranks], else NULL */
    struct pollfd *fds;
    int num_running;
    int signal_fd;
    int complaint_fd; /* an eventfd that one child can read: the one that says why the program does not run */
    timer_t write_timer;
    int is_ticking;
    sigset_t old_mask; /* ranks start with this, and with those below */
    void (*old_pipe)(int);
    void (*old_child)(int);
    struct sigaction old_tick;
    enum phase phase;
    uint64_t phase_end_ns; /* UINT64_MAX: none */
    uint64_t timeout_ns;   /* likewise */
    uint64_t terminated_ns;
    int must_end; /* by a signal or --timeout, also if nobody takes the output */
    int exit_status;
};

/* A line on standard error: at once, which may wait for who reads it; or by the next run_flush,
 * which comes after whatever was written. */
void run_say(const char *format, ...) TERN_PRINTF(1, 2);
void run_tell(struct run *run, const char *format, ...) TERN_PRINTF(2, 3);
void run_flush(struct run *run);

int run_start_all(struct run *run);

int run_prepare_output(struct run *run);
size_t run_pump(struct run *run, struct stream *s);
void run_drain(struct run *run, struct stream *s);

void run_signal_all(const struct run *run, int signal);
void run_enter(struct run *run, enum phase phase);
/* Takes signals, and finds ranks that ended. */
void run_attend(struct run *run);
uint64_t run_deadline_ns(const struct run *run);
void run_see_to_time(struct run *run);
void run_reap_all(struct run *run);

#endif
