/* SPDX-License-Identifier: Apache-2.0
 *
 * tern-run: starts the ranks of a program on this host, and sees to it that none outlives the others'
 * failure.
 *
 * It makes the communicator's id, so the port listens before any rank starts, and hands the socket to rank 0
 * (TERN_ID_FD). Each rank leads a process group of its own, so that what it started dies with it. One loop
 * waits for everything: signals come through a signalfd, prefixed output through pipes, times through the
 * poll's deadline. Only who reads the output is waited for elsewhere (tern-run/run_output.c). A run ends in
 * phases; each has a deadline that leads to the next:
 *
 *     running -> a rank failed, or a signal came: grace for ranks to report -> SIGTERM -> SIGKILL
 *
 * With --keep-going a failure ends no phase: survivors of a lost rank, which they may mask, run to their end.
 *
 * Its parts are in tern-run/, and tern-run/run_parts.h says which. */
#include "comm/comm.h"
#include "comm/socket.h"
#include "output.h"
#include "tern-run/run_parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
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
    "seconds later. What the caller ignores of these, as nohup does, stays ignored. When a\n"
    "signal or --timeout ends the run, output is lost which nobody takes for 2 seconds.\n"
    "\n"
    "The exit status is that of the first rank that failed, 128 + n for signal n, also with --keep-going;\n"
    "128 + n if signal n ended the run; 0 if all ranks exited with 0; 2 if the run could not be started, or\n"
    "output was lost and no rank failed.\n";

static int parse_count(const char *text, int *value)
{
    char *end;
    long n = strtol(text, &end, 10);
    if (end == text || *end != '\0' || n < 1 || n > TERN_MAX_BOOT_RANKS) {
        run_say("-n %s is not a number of ranks from 1 to %d", text, TERN_MAX_BOOT_RANKS);
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
        run_say("--timeout %s is not a number of seconds above 0", text);
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
            run_say("unknown option %s; --help lists all", a);
            return exit_usage;
        } else if (next == NULL) {
            run_say("option %s needs a value", a);
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
        run_say(run->num_ranks == 0 ? "option -n is missing; --help tells more"
                                    : "no program to run; --help tells more");
        return exit_usage;
    }
    run->argv = argv + i;
    return -1;
}

static void watch(struct run *run)
{
    int num_streams = run->has_prefix ? 2 * run->num_ranks : 0;
    run_flush(run);
    while (run->num_running > 0) {
        run->fds[0].fd = run->signal_fd;
        run->fds[0].events = POLLIN;
        for (int i = 0; i < num_streams; i++) {
            run->fds[1 + i].fd = run->streams[i].fd;
            run->fds[1 + i].events = POLLIN;
        }
        terni_poll(run->fds, 1 + num_streams, terni_poll_ms(run_deadline_ns(run)));
        for (int i = 0; i < num_streams; i++) {
            if (run->streams[i].fd >= 0) {
                run_pump(run, &run->streams[i]);
            }
        }
        run_attend(run);
        if (run->num_running > 0) {
            run_see_to_time(run);
        }
        run_flush(run);
    }
    run_signal_all(run, SIGKILL); /* what ranks left behind */
    for (int i = 0; i < num_streams; i++) {
        if (run->streams[i].fd >= 0) {
            run_drain(run, &run->streams[i]);
        }
    }
    run_reap_all(run); /* behind the last wait, in which a signal may be passed on */
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
        run_say("no memory for %d ranks", run->num_ranks);
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
    run->old_pipe = signal(SIGPIPE, SIG_IGN); /* a reader that goes is met by a write */
    run->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (run->signal_fd < 0) {
        run_say("no signalfd: %s", strerror(errno));
        return 0;
    }
    if (!run_prepare_output(run)) {
        return 0;
    }
    run->complaint_fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
    if (run->complaint_fd < 0) {
        run_say("no eventfd: %s", strerror(errno));
        return 0;
    }
    run->phase_end_ns = UINT64_MAX;
    run->timeout_ns =
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
    if (!run_start_all(&run)) {
        run.exit_status = exit_usage;
        run_enter(&run, phase_killed);
    }
    watch(&run);
    if (run.has_lost_output && run.exit_status == 0) {
        run.exit_status = exit_usage;
    }
    if (run.is_verbose) {
        run_tell(&run, "exit status %d", run.exit_status);
    }
    run_flush(&run);
    close(run.complaint_fd);
    close(run.signal_fd);
    free(run.said);
    free(run.streams);
    free(run.fds);
    free(run.ranks);
    return run.exit_status;
}
