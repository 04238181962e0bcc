/* SPDX-License-Identifier: Apache-2.0
 *
 * How a run ends: by its ranks, by signals, by time. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* strsignal */
#endif
#include "comm/comm.h"
#include "run_parts.h"

#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

void run_signal_all(const struct run *run, int signal)
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
    if (phase == phase_terminated) {
        run->terminated_ns = terni_clock_ns();
    }
}

void run_enter(struct run *run, enum phase phase)
{
    begin_phase(run, phase);
    if (phase == phase_terminated) {
        run_signal_all(run, SIGTERM);
    } else if (phase == phase_killed) {
        run_signal_all(run, SIGKILL);
        run->phase_end_ns = UINT64_MAX;
    }
}

/* Without ranks a phase leads to no other, unless the run waits for a reader and must end. */
static uint64_t phase_end_ns(const struct run *run)
{
    return run->num_running > 0 || run->must_end ? run->phase_end_ns : UINT64_MAX;
}

/* When there is something for run_see_to_time. */
uint64_t run_deadline_ns(const struct run *run)
{
    uint64_t end_ns = phase_end_ns(run);
    return end_ns < run->timeout_ns ? end_ns : run->timeout_ns;
}

void run_see_to_time(struct run *run)
{
    uint64_t now = terni_clock_ns();
    if (now >= run->timeout_ns) {
        run->timeout_ns = UINT64_MAX;
        run->must_end = 1;
        if (run->phase == phase_running) {
            run_tell(run, "%g seconds have passed; %d of %d ranks still run", run->timeout_seconds,
                     run->num_running, run->num_ranks);
            run->exit_status = exit_timeout;
            run_enter(run, phase_terminated);
        }
    } else if (now >= phase_end_ns(run)) {
        run_enter(run, run->phase == phase_grace ? phase_terminated : phase_killed);
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
        run_tell(run, "rank %d died of signal %d (%s)", rank, end->si_status, strsignal(end->si_status));
    } else if (is_told) {
        run_tell(run, "rank %d exited with status %d", rank, status);
    }
    if (is_first) {
        run->exit_status = status;
        if (run->phase == phase_running && !run->keeps_going) {
            run_enter(run, phase_grace);
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

void run_reap_all(struct run *run)
{
    for (int r = 0; r < run->num_ranks; r++) {
        if (run->ranks[r].pid > 0) {
            waitpid(run->ranks[r].pid, NULL, 0);
            run->ranks[r].pid = 0;
        }
    }
}

/* Ranks get the signal itself, each time it comes; the run ends as soon as it would after the first. */
static void pass_on(struct run *run, int signal)
{
    run->must_end = 1;
    run_signal_all(run, signal);
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

void run_attend(struct run *run)
{
    take_signals(run);
    find_ended(run);
}
