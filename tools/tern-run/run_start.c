/* SPDX-License-Identifier: Apache-2.0
 *
 * The ranks of a run: processes that lead groups of their own. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pipe2 */
#endif
#include "comm/comm.h"
#include "comm/id.h"
#include "run_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

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
    sigaction(SIGRTMIN, &run->old_tick, NULL);
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
        run_say("cannot run %s: %s", run->argv[0], strerror(error));
    }
    _exit(127);
}

static int start_rank(struct run *run, int rank, int listen_fd)
{
    int pipes[4] = {-1, -1, -1, -1}; /* out: read, write; err: read, write */
    pid_t pid;
    if (run->has_prefix && (pipe2(pipes, O_CLOEXEC) != 0 || pipe2(pipes + 2, O_CLOEXEC) != 0)) {
        run_tell(run, "no pipe for rank %d: %s", rank, strerror(errno));
        return 0;
    }
    pid = fork();
    if (pid < 0) {
        run_tell(run, "cannot fork rank %d: %s", rank, strerror(errno));
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
        run_tell(run, "rank %d is process %d: %s", rank, (int)pid, run->argv[0]);
    }
    return 1;
}

int run_start_all(struct run *run)
{
    struct tern_id id;
    char text[TERN_ID_HEX_DIGITS + 1];
    int listen_fd;
    int is_started = 1;
    if (tern_id_create(NULL, &id) != TERN_OK || terni_id_take_listener(&id, &listen_fd) != TERN_OK) {
        run_tell(run, "%s", tern_last_error());
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
